//! Access to mapped files that may become shorter meanwhile.
//!
//! A page that a file no longer has raises SIGBUS at whoever touches it. In a watched range it gets a page of zeroes in
//! its place, so that the access comes to its end, and the range counts as torn from then on: what was read from it
//! since means nothing, and what was written to it is in no file. Anywhere else the signal ends the process, as ever.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

use libc::{c_int, c_void, siginfo_t};
use node::MAX_LOANS;
use rustix::io::Errno;

/// Most ranges that each owner can have watched at a time: so none can take those of another. A handler finds them
/// without a lock.
pub(crate) const RANGES: usize = 1024;
/// Loans, and this node's own images.
const OWNERS: usize = MAX_LOANS + 1;

/// Whose a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// This node's: images that it lends.
    Node,
    /// Memory of the virtual machine that has this loan's function.
    Loan(usize),
}

impl Owner {
    fn index(self) -> usize {
        match self {
            Self::Node => MAX_LOANS,
            Self::Loan(loan) => loan,
        }
    }
}

/// The ranges of one owner.
struct Table {
    ranges: [Range; RANGES],
    /// No range at this place or behind it has ever been used.
    used: AtomicUsize,
}

#[derive(Debug)]
struct Range {
    /// Its first address; 0 while nobody uses this place.
    start: AtomicUsize,
    /// One past its last; 0 until it is watched.
    end: AtomicUsize,
    /// Bytes of the pages that it consists of.
    page: AtomicUsize,
    is_torn: AtomicBool,
}

/// All zeroes, so that memory is used only as far as ranges are.
static WATCHED: [Table; OWNERS] = [const {
    Table {
        ranges: [const {
            Range {
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                page: AtomicUsize::new(0),
                is_torn: AtomicBool::new(false),
            }
        }; RANGES],
        used: AtomicUsize::new(0),
    }
}; OWNERS];

/// A range that is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch(&'static Range);

impl Watch {
    /// Watches the mapping of a file: `len` bytes from address `start` on, in pages of `page` bytes.
    ///
    /// # Errors
    /// `ENOMEM` if too many are watched for this owner already, else what installing the handler returned.
    pub(crate) fn new(owner: Owner, start: usize, len: usize, page: usize) -> io::Result<Self> {
        install()?;
        let table = WATCHED.get(owner.index()).ok_or(Errno::INVAL)?;
        let claim = |range: &Range| {
            range.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = table.ranges.iter().position(claim).ok_or(Errno::NOMEM)?;
        let range = &table.ranges[place];
        range.is_torn.store(false, Ordering::Relaxed);
        range.page.store(page, Ordering::Relaxed);
        table.used.fetch_max(place + 1, Ordering::Relaxed);
        range.end.store(start + len, Ordering::Release);
        Ok(Self(range))
    }

    /// Whether an access of this thread, or an earlier one of another, has met a page that was not there.
    pub(crate) fn is_torn(&self) -> bool {
        // The handler runs between two instructions of the thread that looks.
        compiler_fence(Ordering::SeqCst);
        self.0.is_torn.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// Installs the handler, once a process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), c_int>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: plain C data for which zero bytes are a value; the handler has the signature that SA_SIGINFO wants,
        // and does only what a handler may.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

extern "C" fn handle(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the information of its signal.
    let address = unsafe { (*info).si_addr() } as usize;
    // SAFETY: errno belongs to the interrupted thread, which may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    let is_inside = |range: &&Range| {
        let (start, end) = (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Acquire));
        (start..end).contains(&address)
    };
    let used = |table: &'static Table| &table.ranges[..table.used.load(Ordering::Acquire).min(RANGES)];
    let is_mended = WATCHED.iter().flat_map(used).find(is_inside).is_some_and(|range| {
        range.is_torn.store(true, Ordering::Relaxed);
        replace_page(address, range.page.load(Ordering::Relaxed))
    });
    // SAFETY: sets what it was; and the default action for a signal that is not ours, which comes again at once.
    unsafe {
        if !is_mended {
            libc::signal(signal, libc::SIG_DFL);
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts zeroes of its own where a page of a watched mapping was. Whether it could.
fn replace_page(address: usize, bytes: usize) -> bool {
    let page = (address / bytes * bytes) as *mut c_void;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page lies in a mapping that its owner keeps until it is no longer watched.
    unsafe { libc::mmap(page, bytes, protection, flags, -1, 0) == page }
}
