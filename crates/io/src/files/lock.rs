//! The lock of an image: an open file description lock over the whole file (fcntl(2), "Open file description locks").
//!
//! Unlike a process's lock it is shared by inherited copies of the descriptor and ends with the last of them, I/O in
//! flight included.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why a lock was not taken.
#[derive(Debug)]
pub(super) enum LockError {
    /// Someone else has it.
    Held,
    /// The file system cannot lock, or another error.
    System(io::Error),
}

/// Takes the lock: shared for reading only, else exclusive. Waits for it up to `patience`, asking ever more rarely.
pub(super) fn take(fd: BorrowedFd<'_>, read_only: bool, patience: Duration) -> Result<(), LockError> {
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        match try_take(fd, read_only) {
            Err(LockError::Held) => {}
            result => return result,
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(LockError::Held);
        }
        std::thread::sleep(pause.min(deadline - now));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn try_take(fd: BorrowedFd<'_>, read_only: bool) -> Result<(), LockError> {
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    // SAFETY: the structure is plain C data for which zero bytes are a value: from the start to the end, no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: F_OFD_SETLK reads a flock that lives across the call; the kernel wants its l_pid zero, as it is.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(LockError::Held),
        _ => Err(LockError::System(error)),
    }
}
