//! Whether this machine is a virtual one that was just restored from a snapshot: it may run twice now.
//!
//! Linux (`drivers/virt/vmgenid.c`; QEMU: `-device vmgenid`) renews its own random numbers then, and has said so in its
//! log since 5.18. To whoever listens for its events only 6.8 says it, and the kernels of some vendors: mainline has
//! taken that back. So both are heard.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// The group of what the kernel itself says; the other one is udev's.
const FROM_THE_KERNEL: u32 = 1;
/// Longest event (`UEVENT_BUFFER_SIZE` and its head), and more than the longest record of the log
/// (`PRINTK_MESSAGE_MAX`).
const EVENT_BYTES: usize = 8 << 10;
/// Events, and records of the log, that are read in one turn.
const EVENTS_PER_TURN: usize = 64;
/// What the log says (`add_vmfork_randomness`).
const IN_THE_LOG: &[u8] = b"random: crng reseeded due to virtual machine fork";

/// Listens for the kernel.
pub(crate) struct VmGeneration {
    events: io::Result<OwnedFd>,
    log: io::Result<File>,
    /// The log has said it, and an event that says it next means the same time.
    is_said: bool,
}

impl VmGeneration {
    /// Begins to listen, to what it may.
    pub(crate) fn listen() -> Self {
        Self { events: listen_for_events(), log: open_log(), is_said: false }
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

    /// Reads what has been said.
    pub(crate) fn news(&mut self) -> News {
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
        self.sum(events, log)
    }

    /// Of what both have said: each restoration once.
    fn sum(&mut self, events: News, log: News) -> News {
        let is_known = events == News::Restored && std::mem::take(&mut self.is_said);
        if log == News::Restored {
            self.is_said = is_known || events != News::Restored;
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
    log.seek(SeekFrom::End(0))?;
    Ok(log)
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
        // An interface may be called so, and then the kernel says that.
        own::ip("link add NEW_VMGENID=1 type veth peer name other");
        let events = heard(&witness);
        let is_it = |event: &[u8]| event.split(|byte| *byte == 0).any(|it| it == b"INTERFACE=NEW_VMGENID=1");
        let (from, event) = events.iter().find(|(_, event)| is_it(event)).expect("the kernel tells of it");
        assert_eq!(*from, 0);
        assert_eq!(listening.news(), News::None);
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
        assert_eq!(listening.news(), News::None);
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
        // Of each turn: the events, the log, what it comes to.
        for turns in [
            vec![(Restored, None, Restored), (Restored, None, Restored)],
            vec![(None, Restored, Restored), (None, Restored, Restored)],
            vec![(Restored, Restored, Restored), (Restored, Restored, Restored), (None, None, None)],
            vec![(None, Restored, Restored), (Restored, None, None), (None, Restored, Restored)],
            vec![(None, Restored, Restored), (Restored, Restored, Restored), (Restored, None, None)],
            vec![(Missed, Restored, Restored), (None, Missed, Missed), (Restored, Missed, Missed)],
        ] {
            let mut listening = VmGeneration::listen();
            for (turn, (events, log, news)) in turns.iter().enumerate() {
                assert_eq!(listening.sum(*events, *log), *news, "turn {turn} of {turns:?}");
            }
        }
    }
}
