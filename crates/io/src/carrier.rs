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

/// Tells of links.
const OF_LINKS: u32 = libc::RTMGRP_LINK as u32;
/// Messages that are read in one turn: what they say is read anew anyway.
const MESSAGES_PER_TURN: usize = 64;

/// The interfaces that rails use, as the kernel says.
pub(crate) struct Carriers {
    /// None where the system refused one: then a rail that has failed is known by its silence.
    socket: Option<OwnedFd>,
    /// By rail, the name of its interface, where one was found.
    names: [Option<String>; RailId::COUNT],
    lost: u8,
}

impl Carriers {
    /// Begins to listen.
    pub(crate) fn listen() -> Self {
        Self { socket: open().ok(), names: Default::default(), lost: 0 }
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
            let (bit, known) = (1 << id.get(), &mut self.names[id.index()]);
            let found = interfaces.iter().find(|interface| interface.carries(socket.device()));
            if let Some(interface) = found {
                *known = Some(interface.name.clone());
            }
            // One that was never found is another's business: an address may be on none.
            let Some(interface) = known.clone() else { continue };
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
