//! Signals of eventfds that belong to virtual machines.
//!
//! The flags of an eventfd belong to everybody who has a copy, and so does its counter: a client may make one blocking and full at
//! any moment, and whoever writes to it then waits for as long as the client likes. The kernel's own signals never wait. One of
//! them can be had from outside: a request of Linux AIO that says which eventfd is signalled at its end (`IOCB_FLAG_RESFD`, see
//! io_submit(2)). Such a request, which writes nothing to where everything is lost, has ended when `io_submit` returns. It adds one
//! to the counter, and what does not fit is dropped: a guest that has not looked at a full one knows already.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use tracing::warn;

/// Requests whose results were not fetched: the kernel has room for at least so many.
const REQUESTS: usize = 128;

/// What interrupts guests.
pub(crate) struct Interrupts {
    /// None where Linux AIO cannot be had.
    signals: Option<Signals>,
}

impl Interrupts {
    /// Says so where a client can make the card wait.
    pub(crate) fn new() -> Self {
        let signals = Signals::new();
        if let Err(error) = &signals {
            warn!(
                %error,
                "there is no Linux AIO here (seccomp, fs.aio-max-nr): a virtual machine that makes its own interrupts block makes \
                 this node wait"
            );
        }
        Self { signals: signals.ok() }
    }

    /// Adds one to the counter of `event`, if it fits.
    pub(crate) fn signal(&self, event: BorrowedFd<'_>) {
        if self.signals.as_ref().is_none_or(|signals| !signals.signal(event)) {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

/// A queue of Linux AIO, which is only used for what its requests signal.
struct Signals {
    context: libc::c_ulong,
    nowhere: File,
}

/// A request (`struct iocb` of `linux/aio_abi.h`).
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    /// `aio_key` and `aio_rw_flags`, in the order of the processor's bytes.
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// A result (`struct io_event`).
type Completion = [u64; 4];

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Completion>() == 32);

/// `IOCB_CMD_PWRITE`.
const WRITE: u16 = 1;
/// `IOCB_FLAG_RESFD`.
const SIGNALS_EVENT: u32 = 1;

impl Signals {
    fn new() -> io::Result<Self> {
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the context, and makes a mapping at an address of the kernel's choice.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) };
        if result == 0 { Ok(Self { context, nowhere }) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether `event` was signalled.
    fn signal(&self, event: BorrowedFd<'_>) -> bool {
        let mut request = Request {
            opcode: WRITE,
            file: self.nowhere.as_fd().as_raw_fd() as u32,
            flags: SIGNALS_EVENT,
            event: event.as_raw_fd() as u32,
            ..Request::default()
        };
        // What is refused for want of room has some when the results are fetched.
        self.submit(&mut request) || (self.forget_results() && self.submit(&mut request))
    }

    fn submit(&self, request: &mut Request) -> bool {
        let mut requests = [ptr::from_mut(request)];
        // SAFETY: one request, which lives across the call and of which the kernel keeps nothing: it has ended when this returns. It
        // has no buffer. Both descriptors are open.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1_usize, requests.as_mut_ptr()) };
        submitted == 1
    }

    /// Makes room for requests. True if there were any results.
    fn forget_results(&self) -> bool {
        let mut results = [Completion::default(); REQUESTS];
        // SAFETY: a timespec is plain C data for which zero bytes are a value.
        let mut at_once: libc::timespec = unsafe { mem::zeroed() };
        // SAFETY: the kernel writes at most as many results as there is room for, and does not wait.
        let fetched = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0_usize,
                results.len(),
                results.as_mut_ptr(),
                &raw mut at_once,
            )
        };
        fetched > 0
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the context was made by `new`, and nothing is under way in it.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::EventfdFlags;
    use rustix::fs::OFlags;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;
    use std::time::Duration;

    fn event() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn every_signal_counts_also_without_the_kernels_help() {
        for interrupts in
            [Interrupts { signals: Some(Signals::new().unwrap()) }, Interrupts { signals: None }]
        {
            let (one, other) = (event(), event());
            for _ in 0..10 * REQUESTS {
                interrupts.signal(one.as_fd());
                interrupts.signal(other.as_fd());
                interrupts.signal(other.as_fd());
            }
            assert_eq!((count(&one), count(&other)), (10 * REQUESTS as u64, 20 * REQUESTS as u64));
            assert_eq!(count(&one), 0);
        }
    }

    #[test]
    fn what_blocks_and_is_full_is_not_waited_for() {
        let event = event();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&event, OFlags::RDWR).unwrap();
        let ours = event.try_clone().unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let interrupts = Interrupts::new();
            (0..3 * REQUESTS).for_each(|_| interrupts.signal(ours.as_fd()));
            done.send(()).unwrap();
        });
        let in_time = is_done.recv_timeout(Duration::from_secs(20));
        // Whatever waits is let go.
        assert!(count(&event) >= u64::MAX - 1);
        in_time.expect("a signal waits for who has filled the counter");
    }

    #[test]
    fn what_is_no_eventfd_is_left_alone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        assert!(!Signals::new().unwrap().signal(writer.as_fd()));
        assert!(rustix::io::read(&reader, &mut [0; 8]).is_err());
    }
}
