//! As much of an NBD client as the cases need.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Longer than any case takes: a reply that never comes is a failure, not a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever takes nothing for so long is full.
const QUIET: Duration = Duration::from_millis(500);

/// A connection. Requests are answered one by one.
pub(crate) struct Client {
    stream: UnixStream,
    /// Bytes of the drive.
    pub(crate) bytes: u64,
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Self {
        Self::greet(UnixStream::connect(path).unwrap())
    }

    /// Goes on with a socket that is connected.
    pub(crate) fn on(socket: OwnedFd) -> Self {
        Self::greet(socket.into())
    }

    fn greet(mut stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..8], b"NBDMAGIC");
        let mut option = Vec::from(3_u32.to_be_bytes());
        option.extend(OPTION_MAGIC.to_be_bytes());
        option.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        stream.write_all(&option).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        Self { stream, bytes: u64::from_be_bytes(export[..8].try_into().unwrap()) }
    }

    pub(crate) fn read(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        self.send(0, offset, bytes, &[]);
        assert_eq!(self.reply(), 0, "read");
        let mut data = vec![0; bytes];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// The error number that the server answers with, or zero.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.begin_write(offset, data);
        self.reply()
    }

    /// A write that may fail, or take so long that nobody waits for it.
    pub(crate) fn try_write(&mut self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.stream.set_read_timeout(Some(QUIET))?;
        self.stream.set_write_timeout(Some(QUIET))?;
        let mut request = Self::request(1, offset, data.len());
        request.extend(data);
        self.stream.write_all(&request)?;
        self.stream.read_exact(&mut [0; 16])
    }

    pub(crate) fn begin_write(&mut self, offset: u64, data: &[u8]) {
        self.send(1, offset, data.len(), data);
    }

    /// Says that it goes, and goes.
    pub(crate) fn leave(mut self) {
        self.send(2, 0, 0, &[]);
    }

    pub(crate) fn flush(&mut self) -> u32 {
        self.send(3, 0, 0, &[]);
        self.reply()
    }

    pub(crate) fn trim(&mut self, offset: u64, bytes: usize) -> u32 {
        self.send(4, offset, bytes, &[]);
        self.reply()
    }

    /// Asks for reads until nobody takes requests any more, and waits for no answer.
    pub(crate) fn begin_reads_until_full(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let requests = Self::request(0, 0, 4096).repeat(1_000);
        loop {
            match self.stream.write(&requests) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.can_write_within(QUIET) => {
                    return;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
    }

    fn can_write_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).unwrap();
        let mut watched = [PollFd::new(&self.stream, PollFlags::OUT)];
        rustix::event::poll(&mut watched, Some(&time)).unwrap() > 0
    }

    fn send(&mut self, command: u16, offset: u64, bytes: usize, data: &[u8]) {
        let mut request = Self::request(command, offset, bytes);
        request.extend(data);
        self.stream.write_all(&request).unwrap();
    }

    fn request(command: u16, offset: u64, bytes: usize) -> Vec<u8> {
        let mut request = Vec::from(REQUEST_MAGIC.to_be_bytes());
        request.extend([0; 2]);
        request.extend(command.to_be_bytes());
        request.extend([0; 8]);
        request.extend(offset.to_be_bytes());
        request.extend((bytes as u32).to_be_bytes());
        request
    }

    /// Waits for the end of the request that was sent last.
    pub(crate) fn reply(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], REPLY_MAGIC.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }
}
