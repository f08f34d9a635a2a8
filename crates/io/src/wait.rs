//! Waiting: spin, then sleep.
//!
//! To sleep and be woken costs about 20 us, far more than most answers take. So a card that has
//! nothing to do polls its sources for about twice that time, longer while a request of its own is
//! out, and only then sleeps in epoll. Every turn yields the processor: three spinning threads on
//! two cores would otherwise wait for each other's time slice.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use base::Instant;
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;

/// Most descriptors reported by one sleep; others follow in the next.
pub const MAX_READY: usize = 64;
/// From a yield to the next turn: if nobody else has run meanwhile it takes less.
const ALONE: Duration = Duration::from_micros(4);
/// How often who spins alone yields.
const YIELD_EVERY: Duration = Duration::from_micros(2);

/// How long to spin before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinTimes {
    /// With nothing expected: twice the cost of a wake-up.
    pub idle: Duration,
    /// While a request of ours is out and an answer must come.
    pub expecting: Duration,
}

impl Default for SpinTimes {
    fn default() -> Self {
        Self { idle: Duration::from_micros(40), expecting: Duration::from_micros(400) }
    }
}

/// Whether something is likely to happen soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Nothing of ours is out.
    Idle,
    /// A request of ours is out.
    Expecting,
}

/// What a turn of [`Waiter::idle`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Yielded once: poll every source again.
    Spun,
    /// Slept, and this many descriptors are ready: see [`Waiter::ready`].
    Ready(usize),
    /// Slept until the time given, or a signal came: nothing registered is ready.
    TimedOut,
}

/// What to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Something can be read, or the peer is gone.
    pub read: bool,
    /// Something can be written.
    pub write: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Self = Self { read: true, write: false };
    /// Reading and writing.
    pub const BOTH: Self = Self { read: true, write: true };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number given at registration.
    pub token: u64,
    /// Reading will not block: data, end of stream or an error.
    pub read: bool,
    /// Writing will not block.
    pub write: bool,
    /// The other end is gone or an error is pending. Reported without being asked for.
    pub hangup: bool,
    /// The other end sends nothing more.
    pub ended: bool,
}

/// The one place where a card or an agent waits.
pub struct Waiter {
    epoll: OwnedFd,
    times: SpinTimes,
    spinning_since: Option<Instant>,
    events: Vec<epoll::Event>,
    /// When the processor was last offered to others, by the time of the turn that did.
    yielded_at: Instant,
    /// No turn has come since.
    has_just_yielded: bool,
    /// Nobody has taken it then.
    is_alone: bool,
}

impl Waiter {
    /// An empty set of descriptors.
    ///
    /// # Errors
    /// `EMFILE` and others of `epoll_create1`.
    pub fn new(times: SpinTimes) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            times,
            spinning_since: None,
            events: Vec::with_capacity(MAX_READY),
            yielded_at: Instant::ZERO,
            has_just_yielded: false,
            is_alone: false,
        })
    }

    /// Adds a descriptor, level-triggered. `token` comes back in [`Ready`].
    ///
    /// # Errors
    /// `EEXIST` if it is in the set already; `EPERM` for a regular file.
    pub fn register(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Adds a descriptor, edge-triggered: each arrival, and each time that there is room again, is told once.
    ///
    /// # Errors
    /// As of [`Waiter::register`].
    pub fn register_edges(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = Interest::BOTH.flags() | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Changes token or interest of a descriptor in the set.
    ///
    /// # Errors
    /// `ENOENT` if it is not in the set.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Removes a descriptor. Do this before closing it: a copy in another process would keep it in the set.
    ///
    /// # Errors
    /// `ENOENT` if it is not in the set.
    pub fn deregister(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Something was done: the next idle turn begins to spin anew.
    pub fn busy(&mut self) {
        self.spinning_since = None;
    }

    /// Nothing was to be done at `now`: offers the processor to others, or, when that has gone on for long enough,
    /// sleeps until a descriptor is ready or the time that `timeout` gives is over (`None`: no end). It is asked only
    /// then; a timeout of zero never sleeps.
    ///
    /// # Errors
    /// What epoll returned, except `EINTR`.
    pub fn idle(
        &mut self,
        now: Instant,
        hint: Hint,
        timeout: impl FnOnce() -> Option<Duration>,
    ) -> io::Result<Turn> {
        let since = *self.spinning_since.get_or_insert(now);
        let limit = match hint {
            Hint::Idle => self.times.idle,
            Hint::Expecting => self.times.expecting,
        };
        let timeout = if now.since(since) < limit { Some(Duration::ZERO) } else { timeout() };
        if timeout == Some(Duration::ZERO) {
            self.offer_processor(now);
            self.events.clear();
            return Ok(Turn::Spun);
        }
        let ready = self.sleep(timeout)?;
        if ready > 0 {
            self.spinning_since = None;
            return Ok(Turn::Ready(ready));
        }
        Ok(Turn::TimedOut)
    }

    /// Whoever spins yields: in each turn where others want the processor, and now and then where nobody does, for that
    /// costs more than a turn.
    fn offer_processor(&mut self, now: Instant) {
        let since = now.since(self.yielded_at);
        if std::mem::take(&mut self.has_just_yielded) {
            self.is_alone = since < ALONE;
        }
        if self.is_alone && since < YIELD_EVERY {
            return std::hint::spin_loop();
        }
        rustix::thread::sched_yield();
        (self.yielded_at, self.has_just_yielded) = (now, true);
    }

    /// Which descriptors are ready now, without waiting; see [`Waiter::ready`].
    ///
    /// # Errors
    /// What epoll returned, except `EINTR`.
    pub fn poll(&mut self) -> io::Result<usize> {
        self.sleep(Some(Duration::ZERO))
    }

    /// What the last sleep or poll found.
    pub fn ready(&self) -> impl Iterator<Item = Ready> + '_ {
        self.events.iter().map(|event| {
            // Copied out: the fields of an event are not aligned.
            let (flags, data) = (event.flags, event.data);
            let hangup = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            let read = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP) || hangup;
            let (write, ended) =
                (flags.contains(epoll::EventFlags::OUT), flags.contains(epoll::EventFlags::RDHUP));
            Ready { token: data.u64(), read, write, hangup, ended }
        })
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.events.clear();
        let timespec = timeout.map(|time| libc::timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: time.subsec_nanos().into(),
        });
        let pointer = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // rustix rounds to milliseconds where it can, so the call with nanoseconds is made here.
        // SAFETY: the kernel writes at most MAX_READY events into the spare room of the vector, which has that
        // capacity; rustix's event has the kernel's layout. The timespec lives across the call.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                MAX_READY,
                pointer,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if let Ok(count) = usize::try_from(count) {
            // SAFETY: the kernel filled `count` events, at most the capacity.
            unsafe { self.events.set_len(count) };
            return Ok(count);
        }
        match Errno::from_io_error(&io::Error::last_os_error()) {
            // A completion on a ring interrupts the sleeper too, and makes the ring ready.
            Some(Errno::INTR) if timeout != Some(Duration::ZERO) => self.sleep(Some(Duration::ZERO)),
            Some(Errno::INTR) => Ok(0),
            Some(Errno::NOSYS) => self.sleep_milliseconds(timeout),
            error => Err(error.unwrap_or(Errno::IO).into()),
        }
    }

    /// Kernels before 5.11 count in milliseconds; rounded up, so that nothing wakes early and spins.
    fn sleep_milliseconds(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let rounded = timeout.map(|time| Duration::from_millis(time.as_nanos().div_ceil(1_000_000) as u64));
        let timespec = rounded.and_then(|time| rustix::event::Timespec::try_from(time).ok());
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timespec.as_ref()) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Waiter {
    /// The epoll descriptor: readable when one of the set is.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A wake-up between threads or processes: an eventfd that the sleeper registers.
#[derive(Debug)]
pub struct WakeUp {
    fd: OwnedFd,
}

impl WakeUp {
    /// A wake-up nobody has signalled yet, close-on-exec.
    ///
    /// # Errors
    /// `EMFILE` and others of `eventfd2`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Takes over an eventfd from another process.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Wakes the sleeper. Signals before it looks count as one.
    ///
    /// # Errors
    /// What writing to the eventfd returned, except that it is full, which is as good as signalled.
    pub fn signal(&self) -> io::Result<()> {
        match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there was a signal since the last call; clears it.
    ///
    /// # Errors
    /// What reading the eventfd returned, except that it is empty.
    pub fn take(&self) -> io::Result<bool> {
        match rustix::io::read(&self.fd, &mut [0u8; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::now;
    use std::time::Instant;

    fn waiter() -> Waiter {
        Waiter::new(SpinTimes { idle: Duration::from_micros(40), expecting: Duration::from_millis(20) })
            .unwrap()
    }

    /// Idle turns until the waiter sleeps: how many, and what came of the sleep.
    fn until_sleep(waiter: &mut Waiter, hint: Hint, timeout: Duration) -> (usize, Turn) {
        let mut turns = 0;
        loop {
            match waiter.idle(now(), hint, || Some(timeout)).unwrap() {
                Turn::Spun => turns += 1,
                other => return (turns, other),
            }
        }
    }

    #[test]
    fn spins_first_then_sleeps_for_less_than_a_millisecond() {
        let mut waiter = waiter();
        let (mut shortest, mut spun) = (Duration::MAX, 0);
        for _ in 0..200 {
            let start = Instant::now();
            waiter.busy();
            let (turns, turn) = until_sleep(&mut waiter, Hint::Idle, Duration::from_micros(100));
            let took = start.elapsed();
            assert_eq!(turn, Turn::TimedOut);
            assert!(took >= Duration::from_micros(140), "{took:?}");
            (shortest, spun) = (shortest.min(took), spun + turns);
        }
        // Whoever has no processor for so long does not spin; that is not each time.
        assert!(spun > 0, "it has never spun");
        assert!(shortest < Duration::from_micros(900), "sleeps are rounded to milliseconds: {shortest:?}");
        // Once it slept in vain, it goes on sleeping.
        assert_eq!(until_sleep(&mut waiter, Hint::Idle, Duration::from_micros(10)), (0, Turn::TimedOut));
        assert_eq!(waiter.idle(now(), Hint::Idle, || Some(Duration::ZERO)).unwrap(), Turn::Spun);
    }

    #[test]
    fn spins_longer_while_an_answer_is_expected() {
        let start = Instant::now();
        let mut waiter = waiter();
        until_sleep(&mut waiter, Hint::Expecting, Duration::from_nanos(1));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn wake_up_is_seen_by_token_and_cleared() {
        let mut waiter = waiter();
        let (one, two) = (WakeUp::new().unwrap(), WakeUp::new().unwrap());
        waiter.register(one.as_fd(), 1, Interest::READ).unwrap();
        waiter.register(two.as_fd(), u64::MAX, Interest::READ).unwrap();
        assert_eq!(waiter.poll().unwrap(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| two.signal().unwrap());
            let (_, turn) = until_sleep(&mut waiter, Hint::Idle, Duration::from_secs(5));
            assert_eq!(turn, Turn::Ready(1));
        });
        let ready: Vec<_> = waiter.ready().collect();
        assert_eq!(ready, [Ready { token: u64::MAX, read: true, write: false, hangup: false, ended: false }]);
        assert!(two.take().unwrap());
        assert!(!two.take().unwrap());
        assert_eq!(waiter.poll().unwrap(), 0);
        waiter.deregister(one.as_fd()).unwrap();
        one.signal().unwrap();
        assert_eq!(waiter.poll().unwrap(), 0);
    }

    #[test]
    fn closed_peer_is_a_hangup() {
        let mut waiter = waiter();
        let (one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        waiter.register(one.as_fd(), 5, Interest::READ).unwrap();
        waiter.modify(one.as_fd(), 6, Interest::BOTH).unwrap();
        assert_eq!(waiter.poll().unwrap(), 1);
        assert_eq!(
            waiter.ready().next(),
            Some(Ready { token: 6, read: false, write: true, hangup: false, ended: false })
        );
        drop(two);
        waiter.poll().unwrap();
        assert_eq!(
            waiter.ready().next(),
            Some(Ready { token: 6, read: true, write: true, hangup: true, ended: true })
        );
    }

    #[test]
    fn milliseconds_round_up() {
        let mut waiter = waiter();
        let start = Instant::now();
        assert_eq!(waiter.sleep_milliseconds(Some(Duration::from_micros(1100))).unwrap(), 0);
        assert!(start.elapsed() >= Duration::from_micros(1100));
        let wake = WakeUp::new().unwrap();
        wake.signal().unwrap();
        waiter.register(wake.as_fd(), 9, Interest::READ).unwrap();
        assert_eq!(waiter.sleep_milliseconds(None).unwrap(), 1);
        assert_eq!(waiter.ready().next().unwrap().token, 9);
    }
}
