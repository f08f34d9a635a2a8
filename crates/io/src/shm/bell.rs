//! What wakes the other end: a stream of bytes that say nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// One end of a bell. No call waits, whatever the other end does to its own.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Wakes the other end. Where that is gone, or has been rung for often enough, nothing happens.
    pub(crate) fn ring(&self) {
        let _ = rustix::net::send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes note of what was rung.
    ///
    /// # Errors
    /// The other end is gone: the bell is readable for ever.
    pub(crate) fn hear(&self) -> io::Result<()> {
        let mut bytes = [0_u8; 256];
        match rustix::net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Shared;

    #[test]
    fn a_bell_never_waits_and_tells_when_nobody_is_there() {
        let (ours, theirs) = Shared::create().unwrap();
        let (ours, theirs) = (Bell::new(ours.bell), Bell::new(theirs.bell));
        // The flags are the peer's to change.
        rustix::io::ioctl_fionbio(&theirs.0, false).unwrap();
        theirs.hear().unwrap();
        for _ in 0..100_000 {
            theirs.ring();
        }
        ours.hear().unwrap();
        drop(theirs);
        ours.ring();
        // A child that another test has just forked may hold the other end for a moment longer.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let end = loop {
            match ours.hear() {
                Err(end) => break end,
                Ok(()) => assert!(std::time::Instant::now() < deadline, "who is gone is still there"),
            }
        };
        assert!(matches!(end.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{end}");
    }
}
