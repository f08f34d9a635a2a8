//! Whether the interfaces on which rails leave have a carrier: known as soon as the kernel says that one has changed
//! (rtnetlink(7)), and not only when nothing is heard any more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::ids::RailId;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::agent::Rail;
use crate::event::Event;
use crate::net;
use crate::rail::Device;

/// Tells of links.
const OF_LINKS: u32 = libc::RTMGRP_LINK as u32;
/// Messages that are read in one turn: what they say is read anew anyway.
const MESSAGES_PER_TURN: usize = 64;

/// The interfaces that rails use, as the kernel says.
pub(crate) struct Carriers {
    /// None where the system refused one: then a rail that has failed is known by its silence.
    socket: Option<OwnedFd>,
    /// By rail, where its socket sends, and the name of the interface, where one was found.
    known: [Option<(Device, String)>; RailId::COUNT],
    lost: u8,
}

impl Carriers {
    /// Begins to listen.
    pub(crate) fn listen() -> Self {
        Self { socket: open().ok(), known: Default::default(), lost: 0 }
    }

    /// Readable when [`Carriers::look`] may find something else than before.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Rails without a carrier, as bits.
    pub(crate) fn lost(&self) -> u8 {
        self.lost
    }

    /// Looks at the interfaces of these rails, and says what has changed. Whether anything has.
    pub(crate) fn look(&mut self, rails: &[Rail]) -> bool {
        self.drain();
        let (before, interfaces) = (core::mem::take(&mut self.lost), net::interfaces());
        for Rail { id, name, socket, .. } in rails {
            let (bit, device, known) = (1 << id.get(), socket.device(), &mut self.known[id.index()]);
            let found = interfaces.iter().find(|interface| interface.carries(device));
            if let Some(interface) = found {
                *known = Some((device, interface.name.clone()));
            }
            // One that was never found is another's business: an address may be on none. So is what an earlier rail of
            // this id was on.
            let Some((_, interface)) = known.clone().filter(|(of, _)| *of == device) else { continue };
            let (rail, was_lost) = (name.clone(), before & bit != 0);
            match (found.is_some_and(|interface| interface.is_running), was_lost) {
                (true, true) => Event::InterfaceUp { rail, interface }.say(),
                (false, false) => Event::InterfaceDown { rail, interface }.say(),
                _ => {}
            }
            if found.is_none_or(|interface| !interface.is_running) {
                self.lost |= bit;
            }
        }
        self.lost != before
    }

    fn drain(&self) {
        let Some(socket) = &self.socket else { return };
        let mut message = [0; 1];
        for _ in 0..MESSAGES_PER_TURN {
            match rustix::net::recv(socket, &mut message, RecvFlags::empty()) {
                // What was too much to keep is found as well.
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, OF_LINKS))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::RailOptions;
    use crate::rail::udp::UdpSocket;

    fn rail(address: &str) -> Rail {
        let socket = UdpSocket::bind(address.parse().unwrap(), &RailOptions::default()).unwrap();
        Rail {
            id: RailId::ALL[0],
            name: "rail0".to_owned(),
            socket: Box::new(socket),
            gateway: None,
            announces: false,
        }
    }

    #[test]
    fn a_rail_in_place_of_another_is_not_taken_for_that_one() {
        let mut carriers = Carriers::listen();
        carriers.look(&[rail("127.0.0.1:0")]);
        assert!(carriers.known[0].as_ref().is_some_and(|(_, name)| name == "lo"), "{:?}", carriers.known);
        // Wherever routes lead.
        assert!(!carriers.look(&[rail("0.0.0.0:0")]));
        assert_eq!(carriers.lost(), 0);
    }
}
