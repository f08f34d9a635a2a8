//! Reading from QEMU's sockets until a point in time.

use crate::Error;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A point in time that an operation of several steps has until.
pub(crate) struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { at: Instant::now() + timeout, timeout }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// What is left, and a little when nothing is: sockets take no time-out of zero.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    pub(crate) fn timed_out(&self, what: &str, received: &[u8]) -> Error {
        let output = String::from_utf8_lossy(received).into_owned();
        Error::TimedOut { what: what.into(), waited: self.timeout, output }
    }
}

/// Appends what comes next to `received`, and returns how much that is. The end of the stream is an error that names
/// `what` was awaited.
pub(crate) fn read_more(
    stream: &mut UnixStream,
    received: &mut Vec<u8>,
    what: &str,
    deadline: &Deadline,
) -> Result<usize, Error> {
    let mut chunk = [0; 1 << 14];
    loop {
        let reading = stream.set_read_timeout(Some(deadline.left())).and_then(|()| stream.read(&mut chunk));
        return match reading {
            Ok(0) => {
                Err(Error::io(format!("QEMU has ended; awaited was {what}"))(ErrorKind::UnexpectedEof.into()))
            }
            Ok(count) => {
                received.extend_from_slice(&chunk[..count]);
                Ok(count)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(deadline.timed_out(what, received))
            }
            Err(error) => Err(Error::io(format!("cannot read from QEMU; awaited was {what}"))(error)),
        };
    }
}
