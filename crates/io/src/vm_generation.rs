//! Whether this machine is a virtual one that was just restored from a snapshot: it may run twice now.
//!
//! Linux says so to whoever listens for events of the kernel (`drivers/virt/vmgenid.c`; QEMU: `-device vmgenid`), after
//! it has renewed its own random numbers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// The group of what the kernel itself says; the other one is udev's.
const FROM_THE_KERNEL: u32 = 1;
/// Longest event (`UEVENT_BUFFER_SIZE` and its head).
const EVENT_BYTES: usize = 8 << 10;
/// Events that are read in one turn.
const EVENTS_PER_TURN: usize = 64;

/// Listens for the kernel.
pub(crate) struct VmGeneration {
    socket: OwnedFd,
}

impl VmGeneration {
    /// Begins to listen.
    ///
    /// # Errors
    /// What the system refused: not every container may.
    pub(crate) fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, protocol) = (AddressFamily::NETLINK, Some(KOBJECT_UEVENT));
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, FROM_THE_KERNEL))?;
        Ok(Self { socket })
    }

    /// Readable when [`VmGeneration::news`] has something to read.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what has been said.
    pub(crate) fn news(&self) -> News {
        read_news(|event| {
            let (len, _, from) = rustix::net::recvfrom(&self.socket, event, RecvFlags::empty())?;
            let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            Ok(if from.is_some_and(|from| from.pid() == 0) { len } else { 0 })
        })
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

/// Reads events with `receive`, which tells the length of the next one.
fn read_news(mut receive: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> News {
    let mut news = News::None;
    let mut event = [0; EVENT_BYTES];
    for _ in 0..EVENTS_PER_TURN {
        news = news.max(match receive(&mut event) {
            Ok(len) if says_so(&event[..len]) => News::Restored,
            Ok(_) | Err(Errno::INTR) => News::None,
            Err(Errno::NOBUFS) => News::Missed,
            Err(_) => break,
        });
    }
    news
}

/// Whether an event, `ACTION@PATH` and variables with zeroes between them, is about a new generation.
fn says_so(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).any(|variable| variable == b"NEW_VMGENID=1")
}

#[cfg(test)]
mod tests {
    use rustix::net::SendFlags;

    use super::*;
    use crate::net::own;

    /// What the driver says, as a program may say it, too.
    const CLAIM: &[u8] =
        b"change@/devices/LNXSYSTM:00/QEMUVGID:00\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=1703\0";

    /// All that has come to a listener, with the port that each is from.
    fn heard(by: &VmGeneration) -> Vec<(u32, Vec<u8>)> {
        let mut event = vec![0; EVENT_BYTES];
        let mut next = || {
            let (len, _, from) = rustix::net::recvfrom(&by.socket, &mut event, RecvFlags::empty()).ok()?;
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
        let (listening, witness) = (VmGeneration::listen().unwrap(), VmGeneration::listen().unwrap());
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
        let program = VmGeneration::listen().unwrap();
        let port = SocketAddrNetlink::try_from(rustix::net::getsockname(&listening.socket).unwrap()).unwrap();
        for to in [SocketAddrNetlink::new(0, FROM_THE_KERNEL), SocketAddrNetlink::new(port.pid(), 0)] {
            rustix::net::sendto(&program.socket, CLAIM, SendFlags::empty(), &to).unwrap();
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
        ] {
            let mut events = events.into_iter();
            let receive = |out: &mut [u8]| {
                let event = events.next().unwrap_or(Err(Errno::AGAIN))?;
                out[..event.len()].copy_from_slice(event);
                Ok(event.len())
            };
            assert_eq!(read_news(receive), news);
        }
    }

    #[test]
    fn the_kernels_event_is_known_among_others() {
        assert!(says_so(CLAIM));
        assert!(!says_so(b"change@/devices/x\0ACTION=change\0SYNTH_ARG_NEW_VMGENID=1\0SEQNUM=9\0"));
        assert!(!says_so(b"add@/devices/NEW_VMGENID=1\0ACTION=add\0") && !says_so(b""));
    }
}
