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
    use super::*;

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
        let event = b"change@/devices/LNXSYSTM:00/QEMUVGID:00\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=1703\0";
        assert!(says_so(event));
        assert!(!says_so(b"change@/devices/x\0ACTION=change\0SYNTH_ARG_NEW_VMGENID=1\0SEQNUM=9\0"));
        assert!(!says_so(b"add@/devices/NEW_VMGENID=1\0ACTION=add\0") && !says_so(b""));
    }
}
