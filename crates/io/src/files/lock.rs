//! The lock of an image: an open file description lock over the whole file (fcntl(2), "Open file description locks").
//!
//! Unlike a process's lock it is shared by inherited copies of the descriptor and ends with the last of them, I/O in
//! flight included.

mod holder;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use crate::event::{Event, seconds};

pub use self::holder::Holder;

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Who waits longer than this is told for whom.
const QUIET: Duration = Duration::from_millis(200);

/// Why a lock was not taken.
#[derive(Debug)]
pub(super) enum LockError {
    /// Someone else has it: this one, as far as can be told.
    Held(Option<Holder>),
    /// SIGTERM or SIGINT came while it was waited for.
    Interrupted,
    /// The file system cannot lock, or another error.
    System(io::Error),
}

/// Takes the lock of `path`: shared for reading only, else exclusive. Waits for it up to `patience`, asking ever more
/// rarely; not at all for this process itself. SIGTERM and SIGINT to this thread end the wait, and are used up by it.
pub(super) fn take(
    fd: BorrowedFd<'_>,
    path: &Path,
    read_only: bool,
    patience: Duration,
) -> Result<(), LockError> {
    if try_take(fd, read_only)? {
        return Ok(());
    }
    let start = Instant::now();
    let first_holder = holder::find(fd);
    if patience.is_zero() || first_holder.as_ref().is_some_and(Holder::is_self) {
        return Err(LockError::Held(first_holder));
    }
    let signals = BlockedSignals::new();
    let (mut pause, mut told) = (FIRST_PAUSE, false);
    loop {
        let waited = start.elapsed();
        if waited >= patience {
            return Err(LockError::Held(holder::find(fd)));
        }
        if waited >= QUIET && !told {
            told = true;
            let holder = holder::find(fd).map_or_else(|| "another process".to_owned(), |by| by.to_string());
            let (source, up_to_s) = (path.display().to_string(), seconds(patience));
            Event::ImageLocked { source, holder, up_to_s }.say();
        }
        if signals.wait(pause.min(patience - waited)) {
            return Err(LockError::Interrupted);
        }
        if try_take(fd, read_only)? {
            return Ok(());
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether the lock was free.
fn try_take(fd: BorrowedFd<'_>, read_only: bool) -> Result<bool, LockError> {
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    // SAFETY: the structure is plain C data for which zero bytes are a value: from the start to the end, no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: F_OFD_SETLK reads a flock that lives across the call; the kernel wants its l_pid zero, as it is.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(LockError::System(error)),
    }
}

/// SIGTERM and SIGINT wait, for this thread, until they are asked for: so none of them is lost, whoever handles them
/// afterwards, and what has been made so far can be cleaned up.
struct BlockedSignals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigemptyset initialises the set that the others read, and the last call the mask from before; none of
        // them fails with valid arguments.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Self { set: set.assume_init(), before: before.assume_init() }
        }
    }

    /// Waits so long, or until one comes. Whether one came.
    fn wait(&self, time: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: set and time live across the call, and nothing is to be written.
        unsafe { libc::sigtimedwait(&self.set, ptr::null_mut(), &time) > 0 }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask was filled by the constructor, in this thread: the type is not sent to another one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
