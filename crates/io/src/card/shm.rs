use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use base::Instant;
use base::ids::NodeId;
use node::Card;

use super::token;
use crate::capture::{Captures, MEMORY_LINK};
use crate::messages::{FromPeer, ToAgent};
use crate::outbox::Outbox;
use crate::shm::ring::FRAME_MAX;
use crate::shm::{Shared, ShmPath, Side};
use crate::wait::{Interest, Waiter};

/// Frames taken from one peer in a turn, so that nothing else waits for long.
const RECEIVE_LIMIT: usize = 64;

/// The memory that a card shares with its peers.
pub(super) struct ShmPaths {
    /// By the peer's place, whoever has that: few of many have one, and each turn asks all of these.
    paths: BTreeMap<usize, Neighbour>,
    /// Where a frame is built for which there is no room: it is lost, as on any medium.
    scrap: Box<[u8]>,
    is_scrapped: bool,
    /// Peers to which something was written since the last call of [`ShmPaths::wake_readers`].
    written: Vec<usize>,
}

/// A peer that memory is shared with.
struct Neighbour {
    node: NodeId,
    path: ShmPath,
}

/// What frames in memory say as they are.
fn nothing_sealed(_: &mut [u8], _: bool) -> bool {
    false
}

/// What a card has beside the memory.
pub(super) struct Beside<'a, 'm> {
    pub(super) card: &'a mut Card<'m>,
    pub(super) now: Instant,
    pub(super) waiter: &'a Waiter,
    pub(super) to_agent: &'a mut Outbox<ToAgent>,
    pub(super) captures: &'a mut Captures,
}

impl ShmPaths {
    pub(super) fn new() -> Self {
        let scrap = vec![0; FRAME_MAX].into();
        Self { paths: BTreeMap::new(), scrap, is_scrapped: false, written: Vec::new() }
    }

    /// Memory from the agent, shared with `node`: new, or what a dead card has used.
    pub(super) fn attach(
        &mut self,
        (peer, node): (usize, NodeId),
        side: Side,
        shared: Shared,
        beside: &mut Beside<'_, '_>,
    ) -> io::Result<()> {
        // The place may have another node since the agent has heard of it: that one's frames are nothing for this one.
        if !beside.card.peers().any(|(place, key)| place == peer && key.id() == node) {
            return Ok(());
        }
        self.detach(peer, beside)?;
        let Ok(path) = ShmPath::attach(side, shared) else {
            beside.to_agent.push(ToAgent::Peer(peer, FromPeer::Invalid));
            return Ok(());
        };
        beside.waiter.register(path.bell.as_fd(), token::SHM + peer as u64, Interest::READ)?;
        self.paths.insert(peer, Neighbour { node, path });
        beside.card.set_shm(beside.now, peer, true);
        Ok(())
    }

    /// The place has this node from now on, or nobody: what was shared with another one there is given up.
    pub(super) fn renew(
        &mut self,
        peer: usize,
        node: Option<NodeId>,
        beside: &mut Beside<'_, '_>,
    ) -> io::Result<()> {
        if self.paths.get(&peer).is_some_and(|neighbour| Some(neighbour.node) != node) {
            self.detach(peer, beside)?;
        }
        Ok(())
    }

    /// Nothing is shared with the peer any more.
    pub(super) fn detach(&mut self, peer: usize, beside: &mut Beside<'_, '_>) -> io::Result<()> {
        if let Some(Neighbour { path, .. }) = self.paths.remove(&peer) {
            // The agent holds a copy, which would keep it in the set.
            beside.waiter.deregister(path.bell.as_fd())?;
            beside.card.set_shm(beside.now, peer, false);
        }
        Ok(())
    }

    /// Takes what has come. True if that was anything.
    pub(super) fn receive(&mut self, beside: &mut Beside<'_, '_>) -> io::Result<bool> {
        let (mut busy, mut useless) = (false, None);
        for (&peer, neighbour) in &mut self.paths {
            let reader = &mut neighbour.path.reader;
            if reader.is_empty() {
                continue;
            }
            busy = true;
            let (card, captures, now) = (&mut *beside.card, &mut *beside.captures, beside.now);
            let is_captured = captures.are_active();
            let take = |frame: &mut [u8]| {
                if is_captured {
                    captures.record(MEMORY_LINK, false, frame, &mut nothing_sealed);
                }
                card.handle_shm_frame(now, peer, frame);
            };
            if reader.read(RECEIVE_LIMIT, take).is_err() {
                useless = Some(peer);
            }
        }
        // If there are more, the next turn finds them.
        if let Some(peer) = useless {
            self.give_up(peer, beside)?;
        }
        Ok(busy)
    }

    /// The peer has rung, or is gone.
    pub(super) fn hear(&mut self, peer: usize, beside: &mut Beside<'_, '_>) -> io::Result<()> {
        let Some(neighbour) = self.paths.get(&peer) else { return Ok(()) };
        if neighbour.path.bell.hear().is_err() {
            // What it has said last can still be read.
            self.receive(beside)?;
            self.give_up(peer, beside)?;
        }
        Ok(())
    }

    /// Room for a frame to a peer.
    pub(super) fn room(&mut self, peer: usize) -> &mut [u8] {
        let room = self.paths.get_mut(&peer).and_then(|neighbour| neighbour.path.writer.room());
        self.is_scrapped = room.is_none();
        room.unwrap_or(&mut self.scrap)
    }

    /// The frame in the room that was just given is complete.
    pub(super) fn publish(&mut self, peer: usize, len: usize, captures: &mut Captures) {
        if let Some(neighbour) = self.paths.get_mut(&peer).filter(|_| !self.is_scrapped) {
            if captures.are_active()
                && let Some(frame) = neighbour.path.writer.room().and_then(|room| room.get(..len))
            {
                captures.record(MEMORY_LINK, true, frame, &mut nothing_sealed);
            }
            neighbour.path.writer.publish(len);
            if !self.written.contains(&peer) {
                self.written.push(peer);
            }
        }
    }

    /// Wakes those who sleep and have got something.
    pub(super) fn wake_readers(&mut self) {
        for peer in self.written.drain(..) {
            if let Some(Neighbour { path, .. }) = self.paths.get(&peer)
                && path.writer.has_to_wake()
            {
                path.bell.ring();
            }
        }
    }

    /// This card is going to sleep: true if it may, because nothing has come.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.paths.values().all(|neighbour| neighbour.path.reader.prepare_sleep())
    }

    /// This card is awake.
    pub(super) fn wake(&self) {
        self.paths.values().for_each(|neighbour| neighbour.path.reader.wake());
    }

    fn give_up(&mut self, peer: usize, beside: &mut Beside<'_, '_>) -> io::Result<()> {
        beside.to_agent.push(ToAgent::Peer(peer, FromPeer::Invalid));
        self.detach(peer, beside)
    }
}
