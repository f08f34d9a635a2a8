//! The socket: bytes out, bytes in, and never both ends waiting for each other.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::NbdError;

/// With at most this much payload in flight, both ways together, everything fits the socket's buffers and a write never
/// blocks. Above it writes are non-blocking and take replies in between: a server that waits for us to read does not
/// read either, and draining breaks that circle.
const SOCKET_HOLDS: usize = 64 << 10;

/// Turns given to the server before the wait for it to read or write becomes a sleep.
const YIELDS: u32 = 64;

/// That sleep; short, as the system's time-outs of a socket are only as fine as its timer tick.
const BACK_OFF: Duration = Duration::from_micros(50);

/// Bytes taken from the socket at once, beyond the payload of a read; also more than the headers of any reply have.
const INPUT_CHUNK: usize = 64 << 10;

/// A connected socket, and what was received and not yet decoded.
pub(super) struct Connection {
    stream: UnixStream,
    timeout: Duration,
    nonblocking: bool,
    /// What the requests in flight mean for the socket.
    owed: Owed,
    /// Received and not yet decoded: `input[taken..]`.
    input: Vec<u8>,
    taken: usize,
}

/// The account of the requests in flight.
#[derive(Clone, Copy, Default)]
struct Owed {
    requests: usize,
    /// Payload both ways, in bytes.
    payload: usize,
    /// The part of it that the server sends.
    read: usize,
}

impl Connection {
    /// Connects; each later wait ends after `timeout`.
    pub(super) fn open(path: &Path, timeout: Duration) -> Result<Self, NbdError> {
        if timeout.is_zero() {
            return Err(NbdError::Usage("a time-out of zero".into()));
        }
        let stream = UnixStream::connect(path)
            .map_err(|error| NbdError::Connect { path: path.to_path_buf(), error })?;
        stream.set_read_timeout(Some(timeout)).map_err(NbdError::Io)?;
        stream.set_write_timeout(Some(timeout)).map_err(NbdError::Io)?;
        let (nonblocking, owed, input, taken) = (false, Owed::default(), Vec::new(), 0);
        Ok(Self { stream, timeout, nonblocking, owed, input, taken })
    }

    /// Closes the half towards the server.
    pub(super) fn end_output(&self) -> Result<(), NbdError> {
        self.stream.shutdown(std::net::Shutdown::Write).map_err(NbdError::Io)
    }

    /// When a wait that begins now has lasted too long.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// A request is going to be sent, with `payload` bytes both ways of which `read` come back.
    pub(super) fn owe(&mut self, payload: usize, read: usize) {
        self.owed.requests += 1;
        self.owed.payload += payload;
        self.owed.read += read;
    }

    /// Such a request was answered.
    pub(super) fn settle(&mut self, payload: usize, read: usize) {
        self.owed.requests -= 1;
        self.owed.payload -= payload;
        self.owed.read -= read;
    }

    /// Sends all of `bytes`. While the server does not take them, its replies are taken in.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<(), NbdError> {
        let deadline = self.deadline();
        self.set_nonblocking(self.owed.payload > SOCKET_HOLDS)?;
        let mut idle_turns = 0;
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(self.closed()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    idle_turns = 0;
                }
                Err(error) if would_block(&error) && !self.nonblocking => return Err(self.timed_out()),
                Err(error) if would_block(&error) => {
                    idle_turns = if self.drain()? { 0 } else { idle_turns + 1 };
                    if Instant::now() >= deadline {
                        return Err(self.timed_out());
                    }
                    match idle_turns {
                        0 => {}
                        1..=YIELDS => std::thread::yield_now(),
                        _ => std::thread::sleep(BACK_OFF),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.closed()),
                Err(error) => return Err(NbdError::Io(error)),
            }
        }
        Ok(())
    }

    /// Fills `target` from the input; what is missing goes from the socket to its place without a detour.
    pub(super) fn take_into(&mut self, target: &mut [u8], deadline: Instant) -> Result<(), NbdError> {
        let mut done = self.take_available(target);
        while done < target.len() {
            if Instant::now() >= deadline {
                return Err(self.timed_out());
            }
            self.set_nonblocking(false)?;
            // Small pieces are headers: more than was asked for usually follows, and one call takes it all.
            if target.len() - done < INPUT_CHUNK / 4 {
                match self.receive_more() {
                    Err(NbdError::Io(error)) if would_block(&error) => return Err(self.timed_out()),
                    other => other?,
                }
                done += self.take_available(&mut target[done..]);
                continue;
            }
            match self.stream.read(&mut target[done..]) {
                Ok(0) => return Err(self.closed()),
                Ok(count) => done += count,
                Err(error) if would_block(&error) => return Err(self.timed_out()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NbdError::Io(error)),
            }
        }
        Ok(())
    }

    pub(super) fn take_u16(&mut self, deadline: Instant) -> Result<u16, NbdError> {
        self.take(deadline).map(u16::from_be_bytes)
    }

    pub(super) fn take_u32(&mut self, deadline: Instant) -> Result<u32, NbdError> {
        self.take(deadline).map(u32::from_be_bytes)
    }

    pub(super) fn take_u64(&mut self, deadline: Instant) -> Result<u64, NbdError> {
        self.take(deadline).map(u64::from_be_bytes)
    }

    fn take<const N: usize>(&mut self, deadline: Instant) -> Result<[u8; N], NbdError> {
        let mut bytes = [0; N];
        self.take_into(&mut bytes, deadline)?;
        Ok(bytes)
    }

    fn take_available(&mut self, target: &mut [u8]) -> usize {
        let available = &self.input[self.taken..];
        let count = available.len().min(target.len());
        target[..count].copy_from_slice(&available[..count]);
        self.taken += count;
        count
    }

    /// Takes in what has arrived, without waiting; false if that is nothing. The socket must be non-blocking. Bounded
    /// by what the requests in flight can be answered with.
    fn drain(&mut self) -> Result<bool, NbdError> {
        let expected = self.owed.requests * INPUT_CHUNK + self.owed.read;
        let mut any = false;
        while self.input.len() - self.taken <= expected {
            match self.receive_more() {
                Ok(()) => any = true,
                Err(NbdError::Io(error)) if would_block(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }

    /// Changes the socket's mode, if it is not in it.
    fn set_nonblocking(&mut self, nonblocking: bool) -> Result<(), NbdError> {
        if self.nonblocking != nonblocking {
            self.stream.set_nonblocking(nonblocking).map_err(NbdError::Io)?;
            self.nonblocking = nonblocking;
        }
        Ok(())
    }

    /// Appends one read's worth to the input.
    fn receive_more(&mut self) -> Result<(), NbdError> {
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
        }
        let filled = self.input.len();
        self.input.resize(filled + INPUT_CHUNK, 0);
        let received = self.stream.read(&mut self.input[filled..]);
        self.input.truncate(filled + received.as_ref().copied().unwrap_or(0));
        match received {
            Ok(0) => Err(self.closed()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(self.closed()),
            Err(error) => Err(NbdError::Io(error)),
        }
    }

    fn closed(&self) -> NbdError {
        NbdError::Closed { unanswered: self.owed.requests }
    }

    fn timed_out(&self) -> NbdError {
        NbdError::TimedOut { unanswered: self.owed.requests }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
