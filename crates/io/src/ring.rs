//! An io_uring that outlives the card.
//!
//! Disk requests of a killed process are neither cancelled nor lost: they complete up to seconds
//! after it was reaped, and late reads overwrite buffers that were reused. So reaping is no
//! barrier, and a ring that died with its card could be waited for by nobody. Hence the *agent*
//! makes the ring, the card inherits its descriptor and attaches, and at a take-over the agent
//! [drains](Ring::drain) it before the next card starts.
//!
//! The kernel keeps the account, in memory both processes map:
//!
//! ```text
//!     submission head   requests the kernel has taken         in flight = submission head - dropped
//!     completion tail   requests it has completed                          - completion tail
//! ```
//!
//! This holds because every request has exactly one completion here (no multishot, no suppressed
//! completions, none lost by overflow: [`Ring::push`] refuses more requests than completions fit).

use base::ledger::Layout;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Parameters, opcode, squeue};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Longest wait for completions before cancelling is tried again.
const DRAIN_SLICE: Duration = Duration::from_millis(20);

/// What the kernel said when the ring was made: a successor needs it, besides the descriptor, to attach. Plain
/// numbers that mean the same in every process; zero bytes are a value (of no ring).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Layout)]
#[repr(C)]
pub struct RingParameters([u32; 30]);

const _: () = assert!(size_of::<RingParameters>() == size_of::<Parameters>());
const _: () = assert!(align_of::<Parameters>() <= 8);

impl RingParameters {
    /// Whether these are parameters of a ring, and not zeroes.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.0[word::SQ_ENTRIES] != 0
    }
}

/// Word numbers in `struct io_uring_params` (linux/io_uring.h).
mod word {
    pub(super) const SQ_ENTRIES: usize = 0;
    pub(super) const CQ_ENTRIES: usize = 1;
    pub(super) const FEATURES: usize = 5;
    pub(super) const SQ_HEAD: usize = 10;
    pub(super) const SQ_TAIL: usize = 11;
    pub(super) const SQ_DROPPED: usize = 15;
    pub(super) const SQ_ARRAY: usize = 16;
    pub(super) const CQ_HEAD: usize = 20;
    pub(super) const CQ_TAIL: usize = 21;
    pub(super) const CQ_CQES: usize = 25;
}

/// `IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG`: Linux 5.11.
const FEATURES_NEEDED: u32 = 1 | 1 << 1 | 1 << 8;

/// Why there is no ring.
#[derive(Debug)]
pub enum RingError {
    /// io_uring is forbidden here (seccomp, sysctl) or the kernel has none or too old a one: use plain system calls.
    Unavailable(io::Error),
    /// The system refused for another reason, such as a limit.
    System(io::Error),
}

impl fmt::Display for RingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(error) => write!(formatter, "io_uring is not available here: {error}"),
            Self::System(error) => write!(formatter, "io_uring could not be set up: {error}"),
        }
    }
}

impl std::error::Error for RingError {}

/// One request. Pointers are of the process that submits.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// `preadv` at `offset`, in bytes.
    Read {
        /// File.
        fd: RawFd,
        /// Buffers; the table itself is copied when it is submitted.
        buffers: *const libc::iovec,
        /// How many.
        count: u32,
        /// Where in the file, in bytes.
        offset: u64,
    },
    /// `pwritev` at `offset`, in bytes.
    Write {
        /// File.
        fd: RawFd,
        /// Buffers; the table itself is copied when it is submitted.
        buffers: *const libc::iovec,
        /// How many.
        count: u32,
        /// Where in the file, in bytes.
        offset: u64,
    },
    /// `fdatasync`. Queued ones of a killed card come back `EINTR`: issue them again.
    SyncData {
        /// File.
        fd: RawFd,
    },
}

impl Request {
    fn entry(self, user_data: u64) -> squeue::Entry {
        let entry = match self {
            Self::Read { fd, buffers, count, offset } => {
                opcode::Readv::new(Fd(fd), buffers.cast(), count).offset(offset).build()
            }
            Self::Write { fd, buffers, count, offset } => {
                opcode::Writev::new(Fd(fd), buffers.cast(), count).offset(offset).build()
            }
            Self::SyncData { fd } => opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(user_data)
    }
}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number given to [`Ring::push`].
    pub user_data: u64,
    /// Bytes moved, or a negative errno.
    pub result: i32,
}

/// No room: reap completions, or submit, first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What a drain found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were in the queue but never reached the kernel. They are gone.
    pub discarded: u32,
    /// Requests that were in flight when the drain began.
    pub in_flight: u32,
    /// Completions that wait to be reaped by the next card.
    pub completions: u32,
}

/// Requests were still in flight at the deadline: the disk hangs, and no card may start.
#[derive(Debug)]
pub struct DrainError {
    /// How many.
    pub in_flight: u32,
    /// An error of the kernel, if that was the reason.
    pub source: Option<io::Error>,
}

impl fmt::Display for DrainError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} disk requests of the old card are still in flight", self.in_flight)?;
        self.source.as_ref().map_or(Ok(()), |error| write!(formatter, ": {error}"))
    }
}

impl std::error::Error for DrainError {}

/// A ring, as its maker or a process that inherited it sees it. Only one process uses it at a time.
pub struct Ring {
    uring: IoUring,
    counters: Counters,
    parameters: RingParameters,
}

impl Ring {
    /// Makes a ring with room for `entries` requests (a power of two) and twice as many completions.
    ///
    /// # Errors
    /// [`RingError::Unavailable`] where io_uring is forbidden or too old, [`RingError::System`] otherwise.
    pub fn create(entries: u32) -> Result<Self, RingError> {
        // COOP_TASKRUN spares interrupts to a thread that enters the kernel anyway. SINGLE_ISSUER would bind the
        // ring to the first card.
        let uring = IoUring::builder()
            .setup_coop_taskrun()
            .build(entries)
            .or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => IoUring::builder().build(entries),
                _ => Err(error),
            })
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EOPNOTSUPP) => {
                    RingError::Unavailable(error)
                }
                _ => RingError::System(error),
            })?;
        // SAFETY: both are 120 bytes of plain integers (the size is asserted above), and reading unaligned is not
        // needed because the words are aligned like the original's first field.
        let parameters =
            unsafe { std::ptr::from_ref(uring.params()).cast::<RingParameters>().read_unaligned() };
        if parameters.0[word::FEATURES] & FEATURES_NEEDED != FEATURES_NEEDED {
            return Err(RingError::Unavailable(Errno::NOSYS.into()));
        }
        let counters = Counters::map(uring.as_raw_fd(), &parameters).map_err(RingError::System)?;
        Ok(Self { uring, counters, parameters })
    }

    /// Attaches to a ring that another process made.
    ///
    /// # Errors
    /// What mapping the ring returned.
    ///
    /// # Safety
    /// `fd` is a ring made by [`Ring::create`], `parameters` are that ring's, and no other process uses it now.
    pub unsafe fn attach(fd: OwnedFd, parameters: RingParameters) -> io::Result<Self> {
        // SAFETY: a Parameters is a transparent wrapper of the kernel's 120 bytes of plain integers, which these
        // words are a copy of.
        let copy = unsafe { std::ptr::from_ref(&parameters).cast::<Parameters>().read_unaligned() };
        let counters = Counters::map(fd.as_raw_fd(), &parameters)?;
        // SAFETY: the caller promises that the descriptor is a ring with these parameters; it is passed on owned.
        let uring = unsafe { IoUring::from_fd(fd.into_raw_fd(), copy)? };
        Ok(Self { uring, counters, parameters })
    }

    /// What a successor needs besides the descriptor.
    #[must_use]
    pub fn parameters(&self) -> RingParameters {
        self.parameters
    }

    /// Most requests that may be out (pushed and not yet reaped).
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.parameters.0[word::CQ_ENTRIES]
    }

    /// Requests pushed and not yet reaped.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        let dropped = self.counters.load(word::SQ_DROPPED);
        self.counters
            .load(word::SQ_TAIL)
            .wrapping_sub(dropped)
            .wrapping_sub(self.counters.load(word::CQ_HEAD))
    }

    /// Requests the kernel has taken and not completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let dropped = self.counters.load(word::SQ_DROPPED);
        self.counters
            .load(word::SQ_HEAD)
            .wrapping_sub(dropped)
            .wrapping_sub(self.counters.load(word::CQ_TAIL))
    }

    /// Puts a request into the queue; nothing happens before [`Ring::submit`].
    ///
    /// # Errors
    /// [`Full`] if the queue is, or if so many requests are out that their completions might not fit.
    ///
    /// # Safety
    /// The buffer table must stay valid until `submit` has returned and the buffers themselves until the completion
    /// was reaped, whatever happens to this process: they lie in memory that a successor also keeps for them.
    pub unsafe fn push(&mut self, request: Request, user_data: u64) -> Result<(), Full> {
        if self.outstanding() >= self.capacity() {
            return Err(Full);
        }
        // SAFETY: the entry is well formed by construction, and the caller answers for its buffers.
        unsafe { self.uring.submission().push(&request.entry(user_data)) }.map_err(|_| Full)
    }

    /// Whether something was pushed that the kernel has not taken yet.
    #[must_use]
    pub fn has_pushed(&self) -> bool {
        self.counters.load(word::SQ_TAIL) != self.counters.load(word::SQ_HEAD)
    }

    /// Gives what was pushed to the kernel; returns how many requests it took.
    ///
    /// # Errors
    /// What `io_uring_enter` returned. `EAGAIN` and `EBUSY` mean: reap completions and submit again.
    pub fn submit(&mut self) -> io::Result<usize> {
        loop {
            match self.uring.submit() {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                result => return result,
            }
        }
    }

    /// Takes one completion and shows it to `note` *before* the ring forgets it: killed in between, the next card
    /// sees it again, so a note in the ledger is never missing, at worst repeated.
    ///
    /// A completed request appears when this thread next enters the kernel, for whatever reason.
    pub fn reap<R>(&mut self, note: impl FnOnce(Completion) -> R) -> Option<R> {
        let mut queue = self.uring.completion();
        let entry = queue.next()?;
        let noted = note(Completion { user_data: entry.user_data(), result: entry.result() });
        // The head moves here, in the queue's destructor.
        drop(queue);
        Some(noted)
    }

    /// After the last user of the ring was reaped: takes back what it had not submitted, cancels what can be
    /// cancelled and waits until everything it did submit is over. Then no request of the dead card touches disk or
    /// memory any more.
    ///
    /// The completions stay in the ring: whatever has no result in the ledger is submitted again by the next card, but
    /// errors that are told only once count.
    ///
    /// # Errors
    /// [`DrainError`] if requests are still in flight when `deadline` is over, or the kernel refused to wait.
    pub fn drain(&mut self, deadline: Duration) -> Result<Drained, DrainError> {
        let end = Instant::now() + deadline;
        let head = self.counters.load(word::SQ_HEAD);
        let discarded = self.counters.load(word::SQ_TAIL).wrapping_sub(head);
        self.counters.store(word::SQ_TAIL, head);
        let in_flight = self.in_flight();
        loop {
            let remaining = self.in_flight();
            let waiting = self.completions();
            if remaining == 0 {
                return Ok(Drained { discarded, in_flight, completions: waiting });
            }
            let now = Instant::now();
            if now >= end {
                return Err(DrainError { in_flight: remaining, source: None });
            }
            let slice = DRAIN_SLICE.min(end - now);
            self.cancel_all(slice);
            self.wait_for(waiting + self.in_flight(), slice)
                .map_err(|error| DrainError { in_flight: remaining, source: Some(error) })?;
        }
    }

    /// Completions that can be reaped.
    fn completions(&self) -> u32 {
        self.counters.load(word::CQ_TAIL).wrapping_sub(self.counters.load(word::CQ_HEAD))
    }

    /// Asks for every request to end early. Says nothing about whether any did: that is counted. Kernels before 6.0
    /// do not know the call; there requests that never end by themselves would be met by the deadline.
    fn cancel_all(&self, patience: Duration) {
        let builder = CancelBuilder::any();
        let timeout = Timespec::from(patience.min(Duration::from_millis(1)));
        let _ = self.uring.submitter().register_sync_cancel(Some(timeout), builder);
    }

    /// Enters the kernel until `count` completions can be reaped or the time is over.
    fn wait_for(&self, count: u32, timeout: Duration) -> io::Result<()> {
        let timespec = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timespec);
        match self.uring.submitter().submit_with_args(count as usize, &arguments) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Ring {
    /// The ring's descriptor: readable when completions can be reaped. It is close-on-exec; give it to a card with
    /// [`crate::process::Spawn::descriptors`] (a ring cannot be sent over a socket).
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is owned by `uring`, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

/// A view of the kernel's counters, whose positions the parameters give.
struct Counters {
    base: NonNull<u8>,
    bytes: usize,
    parameters: RingParameters,
}

// SAFETY: the mapping belongs to the process; all access goes through atomics.
unsafe impl Send for Counters {}

impl Counters {
    fn map(ring: RawFd, parameters: &RingParameters) -> io::Result<Self> {
        let p = &parameters.0;
        let after_array = p[word::SQ_ARRAY] as usize + p[word::SQ_ENTRIES] as usize * size_of::<u32>();
        let after_entries = p[word::CQ_CQES] as usize + p[word::CQ_ENTRIES] as usize * 16;
        let bytes = after_array.max(after_entries);
        for position in [word::SQ_HEAD, word::SQ_TAIL, word::SQ_DROPPED, word::CQ_HEAD, word::CQ_TAIL] {
            let offset = p[position] as usize;
            if !offset.is_multiple_of(align_of::<u32>()) || offset + size_of::<u32>() > bytes {
                return Err(Errno::INVAL.into());
            }
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the descriptor is only borrowed for the call.
        let base = unsafe {
            let fd = BorrowedFd::borrow_raw(ring);
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes, parameters: *parameters })
    }

    fn cell(&self, position: usize) -> &AtomicU32 {
        // SAFETY: `map` checked that each of the positions used lies inside the mapping and is aligned; the kernel
        // and other processes access the word atomically.
        unsafe { &*self.base.as_ptr().add(self.parameters.0[position] as usize).cast::<AtomicU32>() }
    }

    fn load(&self, position: usize) -> u32 {
        self.cell(position).load(Ordering::Acquire)
    }

    fn store(&self, position: usize, value: u32) {
        self.cell(position).store(value, Ordering::Release);
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and references into it do not outlive `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests;
