//! Signals of eventfds that belong to virtual machines.
//!
//! The flags of an eventfd belong to everybody who has a copy, and so does its counter: a client may make one blocking
//! and full at any moment, and whoever writes to it then waits for as long as the client likes. The kernel's own
//! signals never wait. Some of them can be had from outside: an io_uring signals the eventfd that is registered with it
//! whenever one of its requests ends (io_uring_register(2)). So one is registered, a request that does nothing ends,
//! and it is taken away again. That adds one to the counter, and what does not fit is dropped: a guest that has not
//! looked at a full one knows already.
//!
//! Linux AIO signals eventfds too, in half the time. But a process that has ever used it dies 30 ms later than others:
//! the kernel waits twice for all processors to have gone on before anybody hears of the death.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode};
use rustix::event::{PollFd, PollFlags, Timespec};

/// What interrupts guests.
#[derive(Default)]
pub(crate) struct Interrupts {
    /// None before it is needed, and where it cannot be had.
    signals: RefCell<Option<Signals>>,
}

impl Interrupts {
    /// Gets ready before there is anything to signal.
    ///
    /// # Errors
    /// There is no io_uring of Linux 5.19 here, so that a client can make the card wait.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        let mut signals = self.signals.borrow_mut();
        if signals.is_none() {
            *signals = Some(Signals::new()?);
        }
        Ok(())
    }

    /// Adds one to the counter of `event`, if it fits.
    pub(crate) fn signal(&self, event: BorrowedFd<'_>) {
        let is_done = self.signals.borrow_mut().as_mut().is_some_and(|signals| signals.signal(event));
        // It may become full between the two calls, if a client wants just that.
        if !is_done && has_room(event) {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

/// Whether one more fits into the counter. One that signals have filled up to the last is ready too, with an error.
fn has_room(event: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(event, PollFlags::OUT)];
    let is_known = rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok();
    is_known && polled[0].revents().contains(PollFlags::OUT)
}

/// A ring that is only used for what the ends of its requests signal.
struct Signals {
    ring: IoUring,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let ring = IoUring::new(1)?;
        // Older kernels let all processors go on before they register anything: that takes milliseconds.
        let is_quick = ring.params().is_feature_linked_file();
        if is_quick { Ok(Self { ring }) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Whether `event` was signalled.
    fn signal(&mut self, event: BorrowedFd<'_>) -> bool {
        if self.ring.submitter().register_eventfd(event.as_fd().as_raw_fd()).is_err() {
            return false;
        }
        // SAFETY: a request that does nothing has no buffer and no descriptor. There is no room for it while one is
        // left that the kernel has refused: that one will do.
        let _ = unsafe { self.ring.submission().push(&opcode::Nop::new().build()) };
        let submitted = self.ring.submit();
        self.ring.completion().for_each(drop);
        self.ring.submitter().unregister_eventfd().is_ok() && submitted.is_ok_and(|count| count > 0)
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

    const ROUNDS: u64 = 1000;

    fn event() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn every_signal_counts_also_without_the_kernels_help() {
        for is_prepared in [true, false] {
            let interrupts = Interrupts::default();
            if is_prepared {
                interrupts.prepare().unwrap();
            }
            assert_eq!(interrupts.signals.borrow().is_some(), is_prepared);
            let (one, other) = (event(), event());
            for _ in 0..ROUNDS {
                interrupts.signal(one.as_fd());
                interrupts.signal(other.as_fd());
                interrupts.signal(other.as_fd());
            }
            assert_eq!((count(&one), count(&other)), (ROUNDS, 2 * ROUNDS));
            assert_eq!(count(&one), 0);
        }
    }

    /// Also where nothing helps, as long as nobody does that between two calls.
    #[test]
    fn what_blocks_and_is_full_is_not_waited_for() {
        for is_prepared in [true, false] {
            is_not_waited_for(is_prepared);
        }
    }

    fn is_not_waited_for(is_prepared: bool) {
        let event = event();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&event, OFlags::RDWR).unwrap();
        let ours = event.try_clone().unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let interrupts = Interrupts::default();
            if is_prepared {
                interrupts.prepare().unwrap();
            }
            (0..ROUNDS).for_each(|_| interrupts.signal(ours.as_fd()));
            done.send(()).unwrap();
        });
        let in_time = is_done.recv_timeout(Duration::from_secs(20));
        // Whatever waits is let go.
        assert!(count(&event) >= u64::MAX - 1);
        in_time.expect("a signal waits for who has filled the counter");
    }

    #[test]
    fn what_the_kernel_has_filled_has_no_room() {
        let event = event();
        assert!(has_room(event.as_fd()));
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(!has_room(event.as_fd()));
        // Only signals go further than writes.
        assert!(Signals::new().unwrap().signal(event.as_fd()));
        assert!(!has_room(event.as_fd()));
        assert_eq!(count(&event), u64::MAX);
        assert!(has_room(event.as_fd()));
    }

    #[test]
    fn what_is_no_eventfd_is_left_alone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        assert!(!Signals::new().unwrap().signal(writer.as_fd()));
        assert!(rustix::io::read(&reader, &mut [0; 8]).is_err());
    }
}
