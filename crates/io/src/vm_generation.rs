//! Whether this machine is a virtual one that was just restored from a snapshot: it may run twice now.
//!
//! Linux (`drivers/virt/vmgenid.c`; QEMU: `-device vmgenid`) renews its own random numbers then, and says so in its
//! log. That it says it to whoever listens for events was taken back in mainline, and few kernels do. Both are heard.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// The group of what the kernel itself says; the other one is udev's.
const FROM_THE_KERNEL: u32 = 1;
/// Longest event (`UEVENT_BUFFER_SIZE` and its head), and longest record of the log (`PRINTK_MESSAGE_MAX`, and
/// `CONSOLE_EXT_LOG_MAX` before Linux 6.3).
const EVENT_BYTES: usize = 8 << 10;
/// Events, and records of the log, that are read in one turn: all there are, unless they come faster than that.
const EVENTS_PER_TURN: usize = 4096;
/// An event comes so soon behind the record of the same restoration.
const TOGETHER: Duration = Duration::from_secs(5);
/// Keys are renewed for restorations that are only possible once in so long: the kernel may be made to say more than it
/// can keep, again and again, and while keys are renewed nothing else goes on.
const PERHAPS_EVERY: Duration = Duration::from_secs(10);
/// The log's device (`Documentation/admin-guide/devices.txt`). Containers have other things at its path.
const LOG_DEVICE: (u32, u32) = (1, 11);
/// Where the kernel shows that this machine has the device, by its driver, which is of the platform in later kernels.
const DRIVERS: [&str; 2] = ["/sys/bus/acpi/drivers/vmgenid", "/sys/bus/platform/drivers/vmgenid"];
/// What the log says (`add_vmfork_randomness`).
const IN_THE_LOG: &[u8] = b"random: crng reseeded due to virtual machine fork";

/// Listens for the kernel.
pub(crate) struct VmGeneration {
    events: io::Result<OwnedFd>,
    log: io::Result<File>,
    /// When the log has said it: an event that says it next means the same time.
    said_at: Option<Instant>,
    doubts: Doubts,
}

/// Restorations that are only possible. The first one counts at once, those that follow soon count as one, later: the
/// last of them may be certain.
#[derive(Default)]
struct Doubts {
    /// What comes before counts then.
    until: Option<Instant>,
    is_owed: bool,
}

impl Doubts {
    /// What of `news` counts now.
    fn pass(&mut self, news: News, now: Instant) -> News {
        let is_over = self.until.is_none_or(|until| until <= now);
        match news {
            // Keys are renewed for it, and so for all that was in doubt.
            News::Restored => self.is_owed = false,
            News::Missed if !is_over => {
                self.is_owed = true;
                return News::None;
            }
            News::None if !is_over || !self.is_owed => return News::None,
            News::Missed | News::None => {
                *self = Self { until: Some(now + PERHAPS_EVERY), is_owed: false };
                return News::Missed;
            }
        }
        news
    }

    fn due(&self) -> Option<Instant> {
        self.until.filter(|_| self.is_owed)
    }
}

impl VmGeneration {
    /// Begins to listen, to what it may.
    pub(crate) fn listen() -> Self {
        Self { events: listen_for_events(), log: open_log(), said_at: None, doubts: Doubts::default() }
    }

    /// One of them is readable when [`VmGeneration::news`] has something to read.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let log = self.log.as_ref().ok().map(AsFd::as_fd);
        self.events.as_ref().ok().map(AsFd::as_fd).into_iter().chain(log)
    }

    /// What cannot be heard, and why: not every container may.
    pub(crate) fn deaf(&self) -> impl Iterator<Item = (&'static str, &io::Error)> {
        let events = self.events.as_ref().err().map(|error| ("events", error));
        events.into_iter().chain(self.log.as_ref().err().map(|error| ("log", error)))
    }

    /// Why nobody hears it if this machine is restored, where its host would tell it: few kernels send an event.
    pub(crate) fn unheard(&self) -> Option<&io::Error> {
        self.log.as_ref().err().filter(|_| DRIVERS.iter().any(|driver| has_device(driver)))
    }

    /// When [`VmGeneration::news`] has something to say, whatever there is to read.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.doubts.due()
    }

    /// Reads what has been said, of which it tells what counts now.
    pub(crate) fn news(&mut self, now: Instant) -> News {
        // The kernel writes to its log first. What is read first here is what it says last, so that one restoration is
        // not found in the log after its event was taken for another.
        let events = self.events.as_ref().map_or(News::None, |socket| {
            let receive = |event: &mut [u8]| {
                let (len, _, from) = rustix::net::recvfrom(socket, event, RecvFlags::empty())?;
                let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                Ok(if from.is_some_and(|from| from.pid() == 0) { len } else { 0 })
            };
            read_news(receive, says_so)
        });
        let log = self
            .log
            .as_ref()
            .map_or(News::None, |log| read_news(|record| rustix::io::read(log, record), log_says_so));
        let news = self.sum(events, log, now);
        self.doubts.pass(news, now)
    }

    /// Of what both have said: each restoration once.
    fn sum(&mut self, events: News, log: News, now: Instant) -> News {
        let is_event = events == News::Restored;
        // What the log has lost may have been the record that belongs to the event.
        let said_at = if is_event { self.said_at.take().filter(|_| log != News::Missed) } else { None };
        let is_known = said_at.is_some_and(|at| now.saturating_duration_since(at) < TOGETHER);
        if log == News::Restored {
            self.said_at = (is_known || !is_event).then_some(now);
        }
        log.max(if is_known { News::None } else { events })
    }
}

/// What the kernel has said of this machine, the surest last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum News {
    /// Nothing.
    None,
    /// There was more than the kernel could keep for us, so it may have said anything.
    Missed,
    /// The machine was restored.
    Restored,
}

fn listen_for_events() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, protocol) = (AddressFamily::NETLINK, Some(KOBJECT_UEVENT));
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, FROM_THE_KERNEL))?;
    Ok(socket)
}

/// The kernel's log, from here on.
fn open_log() -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut log = File::from(rustix::fs::open("/dev/kmsg", flags, Mode::empty())?);
    let stat = rustix::fs::fstat(&log)?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || device != LOG_DEVICE {
        return Err(Errno::NODEV.into());
    }
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// Whether a driver has a device; these have colons in their names.
fn has_device(driver: &str) -> bool {
    let entries = std::fs::read_dir(driver).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().as_encoded_bytes().contains(&b':'))
}

/// Reads events with `receive`, which tells the length of the next one.
fn read_news(
    mut receive: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    says_so: impl Fn(&[u8]) -> bool,
) -> News {
    let mut news = News::None;
    let mut event = [0; EVENT_BYTES];
    for _ in 0..EVENTS_PER_TURN {
        news = news.max(match receive(&mut event) {
            Ok(len) if says_so(&event[..len]) => News::Restored,
            Ok(_) | Err(Errno::INTR) => News::None,
            // Of events, and of the log.
            Err(Errno::NOBUFS | Errno::PIPE) => News::Missed,
            Err(_) => break,
        });
    }
    news
}

/// Whether an event, `ACTION@PATH` and variables with zeroes between them, is about a new generation.
fn says_so(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).any(|variable| variable == b"NEW_VMGENID=1")
}

/// Whether a record of the log, `PRIORITY,NUMBER,TIME,...;TEXT` and further lines, is. Programs may write to the log,
/// but not as the kernel: that is facility 0, which lies above the three bits of the level.
fn log_says_so(record: &[u8]) -> bool {
    let Some(end) = record.iter().position(|byte| *byte == b';') else { return false };
    let (head, text) = (&record[..end], &record[end + 1..]);
    let priority = head.split(|byte| *byte == b',').next().and_then(|it| str::from_utf8(it).ok());
    let is_the_kernels = priority.and_then(|it| it.parse::<u32>().ok()).is_some_and(|it| it >> 3 == 0);
    is_the_kernels && text.split(|byte| *byte == b'\n').next() == Some(IN_THE_LOG)
}

#[cfg(test)]
mod tests {
    use rustix::net::SendFlags;

    use super::*;
    use crate::net::own;

    /// What the driver says, as a program may say it, too.
    const CLAIM: &[u8] =
        b"change@/devices/LNXSYSTM:00/QEMUVGID:00\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=1703\0";

    fn socket(by: &VmGeneration) -> &OwnedFd {
        by.events.as_ref().unwrap()
    }

    /// All that has come to a listener, with the port that each is from.
    fn heard(by: &VmGeneration) -> Vec<(u32, Vec<u8>)> {
        let mut event = vec![0; EVENT_BYTES];
        let mut next = || {
            let (len, _, from) = rustix::net::recvfrom(socket(by), &mut event, RecvFlags::empty()).ok()?;
            let from = SocketAddrNetlink::try_from(from?).ok()?;
            Some((from.pid(), event[..len].to_vec()))
        };
        std::iter::from_fn(&mut next).collect()
    }

    #[test]
    fn the_kernel_alone_is_believed() {
        own::run("vm_generation::tests::in_a_namespace_the_kernel_alone_is_believed");
    }

    /// Whatever the kernel and programs say is there to be read when they go on: nothing has to be waited for.
    #[test]
    #[ignore = "in a network namespace of its own"]
    fn in_a_namespace_the_kernel_alone_is_believed() {
        let (mut listening, witness) = (VmGeneration::listen(), VmGeneration::listen());
        // That is not the namespace's.
        listening.log = Err(Errno::NODEV.into());
        // An interface may be called so, and then the kernel says that.
        own::ip("link add NEW_VMGENID=1 type veth peer name other");
        let events = heard(&witness);
        let is_it = |event: &[u8]| event.split(|byte| *byte == 0).any(|it| it == b"INTERFACE=NEW_VMGENID=1");
        let (from, event) = events.iter().find(|(_, event)| is_it(event)).expect("the kernel tells of it");
        assert_eq!(*from, 0);
        assert_eq!(listening.news(Instant::now()), News::None);
        // It puts what a driver adds behind the subsystem.
        let subsystem = b"SUBSYSTEM=net\0";
        let at = event.windows(subsystem.len()).position(|it| it == subsystem).unwrap() + subsystem.len();
        assert!(!says_so(event) && says_so(&[&event[..at], b"NEW_VMGENID=1\0", &event[at..]].concat()));
        // Programs may speak to all who listen, or to one, in the very words.
        let program = VmGeneration::listen();
        let port =
            SocketAddrNetlink::try_from(rustix::net::getsockname(socket(&listening)).unwrap()).unwrap();
        for to in [SocketAddrNetlink::new(0, FROM_THE_KERNEL), SocketAddrNetlink::new(port.pid(), 0)] {
            rustix::net::sendto(socket(&program), CLAIM, SendFlags::empty(), &to).unwrap();
        }
        // Of whatever else the kernel says meanwhile there may be more.
        let claims = heard(&witness).into_iter().filter(|(from, _)| *from != 0).collect::<Vec<_>>();
        assert!(matches!(&claims[..], [(_, claim)] if claim == CLAIM && says_so(claim)), "{claims:?}");
        assert_eq!(listening.news(Instant::now()), News::None);
        assert!(heard(&listening).iter().all(|(from, _)| *from == 0), "they were read");
    }

    #[test]
    fn events_that_were_missed_are_no_restored_snapshot() {
        let restored: &[u8] = b"change@/x\0NEW_VMGENID=1\0";
        let other: &[u8] = b"add@/x\0ACTION=add\0";
        for (events, news) in [
            (vec![], News::None),
            (vec![Ok(other), Err(Errno::INTR), Ok(other)], News::None),
            (vec![Ok(other), Err(Errno::NOBUFS), Ok(other)], News::Missed),
            (vec![Err(Errno::NOBUFS), Ok(restored), Err(Errno::NOBUFS)], News::Restored),
            (vec![Err(Errno::PIPE), Ok(other)], News::Missed),
        ] {
            let mut events = events.into_iter();
            let receive = |out: &mut [u8]| {
                let event = events.next().unwrap_or(Err(Errno::AGAIN))?;
                out[..event.len()].copy_from_slice(event);
                Ok(event.len())
            };
            assert_eq!(read_news(receive, says_so), news);
        }
    }

    #[test]
    fn the_kernels_event_is_known_among_others() {
        assert!(says_so(CLAIM));
        assert!(!says_so(b"change@/devices/x\0ACTION=change\0SYNTH_ARG_NEW_VMGENID=1\0SEQNUM=9\0"));
        assert!(!says_so(b"add@/devices/NEW_VMGENID=1\0ACTION=add\0") && !says_so(b""));
    }

    #[test]
    fn the_kernels_record_is_known_in_its_log() {
        const TEXT: &str = "random: crng reseeded due to virtual machine fork";
        let says_so = |record: &str| log_says_so(record.as_bytes());
        assert!(says_so(&format!("5,1703,90412345,-;{TEXT}\n")));
        assert!(says_so(&format!("5,1703,90412345,-,caller=T9;{TEXT}\n SUBSYSTEM=acpi\n")));
        // A program's are of facility 1 unless it says another one, which cannot be 0.
        assert!(!says_so(&format!("13,1703,90412345,-;{TEXT}\n")));
        assert!(
            !says_so(&format!("5,1703,90412345,-;{TEXT}s\n")) && !says_so(&format!("5,1,2,-;usb: {TEXT}\n"))
        );
        assert!(!says_so(&format!("5,1703,90412345,-;usb\n {TEXT}\n")) && !says_so(TEXT) && !says_so(""));
    }

    #[test]
    fn a_restoration_that_the_log_and_an_event_tell_of_is_one() {
        use News::{Missed, None, Restored};
        let now = Instant::now();
        // Of each turn: the events, the log, what it comes to.
        for turns in [
            vec![(Restored, None, Restored), (Restored, None, Restored)],
            vec![(None, Restored, Restored), (None, Restored, Restored)],
            vec![(Restored, Restored, Restored), (Restored, Restored, Restored), (None, None, None)],
            vec![(None, Restored, Restored), (Restored, None, None), (None, Restored, Restored)],
            vec![(None, Restored, Restored), (Restored, Restored, Restored), (Restored, None, None)],
            vec![(Missed, Restored, Restored), (None, Missed, Missed), (Restored, Missed, Restored)],
        ] {
            let mut listening = silent();
            for (turn, (events, log, news)) in turns.iter().enumerate() {
                assert_eq!(listening.sum(*events, *log, now), *news, "turn {turn} of {turns:?}");
            }
        }
    }

    /// One that hears nothing.
    fn silent() -> VmGeneration {
        let refused = || Errno::NODEV.into();
        VmGeneration { events: Err(refused()), log: Err(refused()), said_at: None, doubts: Doubts::default() }
    }

    /// An event that never came does not take the next restoration for the one before.
    #[test]
    fn an_event_long_after_a_record_is_another_restoration() {
        let (mut listening, begin) = (silent(), Instant::now());
        assert_eq!(listening.sum(News::None, News::Restored, begin), News::Restored);
        assert_eq!(listening.sum(News::Restored, News::None, begin + TOGETHER), News::Restored);
    }

    /// Else whoever fills the log keeps all I/O from going on.
    #[test]
    fn keys_are_not_renewed_as_often_as_the_log_overruns() {
        use News::{Missed, None, Restored};
        let (mut doubts, begin) = (Doubts::default(), Instant::now());
        let mut pass = |news, ms| {
            let counts = doubts.pass(news, begin + Duration::from_millis(ms));
            (counts, doubts.due().map(|at| (at - begin).as_millis()))
        };
        assert_eq!(pass(Missed, 0), (Missed, Option::None), "the first one counts at once");
        assert_eq!(pass(Missed, 1), (None, Some(10_000)));
        assert_eq!(pass(Missed, 9_999), (None, Some(10_000)));
        assert_eq!(pass(None, 10_000), (Missed, Option::None), "one of many may have been certain");
        assert_eq!(pass(None, 20_001), (None, Option::None), "and no other is owed");
        assert_eq!(pass(Missed, 20_002), (Missed, Option::None));
        assert_eq!(pass(Missed, 20_003), (None, Some(30_002)));
        assert_eq!(pass(Restored, 20_004), (Restored, Option::None), "what is certain waits for nothing");
        let renewals = (0..100).filter(|at| pass(Missed, 40_000 + at * 100).0 == Missed).count();
        assert_eq!(renewals, 1);
    }
}
