//! A card whose agent has ended or died, and which serves virtual machines.
//!
//! QEMU does not survive that a connection is cut off while something in it is unread, nor that a device of which the
//! connection has ended cannot be told of a change of memory, as when its machine is started again. So such a card goes
//! on until its clients are gone: everything else is closed, and whatever they ask for is answered with an error at
//! once, as a device that was pulled out would be.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::slots::Context;
use super::{Driver, now, token};
use crate::outbox::Outbox;
use crate::rail::udp::MAX_DATAGRAM_BYTES;
use crate::wait::{Hint, Ready, Turn};

/// At least so long it sleeps when nobody asks for anything: nothing that its cores want to do has a purpose any more.
const REST: Duration = Duration::from_millis(1);

impl Driver<'_> {
    /// Serves errors until the last client has gone.
    pub(super) fn outlive_agent(self) -> io::Result<()> {
        let Self { mut card, mut slots, mut waiter, messages, rails, shm, edges, media, .. } = self;
        waiter.deregister(messages.as_fd())?;
        drop((messages, rails, shm, edges, media));
        // There may be nobody any more who reads it.
        let _ = writeln!(
            io::stderr(),
            "causeway card: the agent has ended; virtual machines find their drives gone until they unplug them"
        );
        let_go_of_outputs();
        let mut frame = vec![0; MAX_DATAGRAM_BYTES];
        let mut at = now();
        slots.outlive_agent(&mut card, at);
        while slots.has_clients() {
            let ready: Vec<Ready> = waiter.ready().filter(|ready| ready.token >= token::SLOT).collect();
            ready.into_iter().for_each(|ready| slots.note(ready));
            // Nobody reads what an agent would be told, and nobody hears the frames.
            let mut nobody = Outbox::new(Vec::new());
            let busy = slots.receive(Context {
                card: &mut card,
                now: at,
                waiter: &waiter,
                to_agent: &mut nobody,
            })? | slots.send(Context {
                card: &mut card,
                now: at,
                waiter: &waiter,
                to_agent: &mut nobody,
            })?;
            if card.poll_timeout().is_some_and(|deadline| deadline <= at) {
                card.handle_timeout(at);
            }
            while card.poll_event().is_some() || card.poll_transmit(at, &mut frame).is_some() {}
            if busy {
                waiter.busy();
                waiter.poll()?;
            } else {
                let deadline = [card.poll_timeout(), slots.poll_timeout()].into_iter().flatten().min();
                let deadline = deadline.map(|deadline| deadline.since(at).max(REST));
                if waiter.idle(at, Hint::Idle, || deadline)? == Turn::Spun {
                    waiter.poll()?;
                }
            }
            at = now();
        }
        Ok(())
    }
}

/// Whoever reads what the node prints is to see its end.
fn let_go_of_outputs() {
    let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") else { return };
    for output in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: replaces an output of this process, which nothing else here owns, by another open file.
        unsafe { libc::dup2(null.as_raw_fd(), output) };
    }
}
