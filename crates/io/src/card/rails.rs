use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

use base::Instant;
use base::ids::{CardGeneration, RailId};
use node::{Card, Egress, FrameBuffers, RailConfig};

use super::heard::Heard;
use super::shm::ShmPaths;
use super::{HOT, token};
use crate::address::RailAddress;
use crate::capture::Captures;
use crate::impair::{Direction, Fate, Impairer, ImpairmentCells};
use crate::plan::{Plan, RailPlan, SharedCells};
use crate::rail::udp::MAX_DATAGRAM_BYTES;
use crate::rail::{self, Datagram, RailSocket};
use crate::wait::{Interest, Waiter};

/// Datagrams taken from one rail in a turn, so that nothing else waits for long.
const RECEIVE_LIMIT: usize = 64;
/// Bytes of frames built before they are handed to the kernel.
const SEND_BYTES: usize = 1 << 20;
/// Frames built before they are handed to the kernel.
const SEND_FRAMES: usize = 128;

/// The rails of a card, by id: their sockets, and what the demo and the tests do to them.
pub(super) struct Rails<'m> {
    rails: [Option<Rail<'m>>; RailId::COUNT],
    shared: &'m SharedCells,
    generation: CardGeneration,
    buffer: Box<[u8]>,
    frames: Vec<Frame>,
    heard: Heard,
}

struct Rail<'m> {
    socket: Box<dyn RailSocket>,
    config: RailConfig,
    /// The switch that everything goes to and comes from.
    gateway: Option<RailAddress>,
    impairment: &'m ImpairmentCells,
    outgoing: Impairer,
    incoming: Impairer,
    /// The last call left datagrams that raise no readiness.
    more: bool,
    /// Until then it is read without asking.
    hot_until: Instant,
}

/// A frame in the buffer.
struct Frame {
    rail: usize,
    to: RailAddress,
    start: usize,
    len: usize,
}

/// Where frames are built.
struct Outbound<'a> {
    buffer: &'a mut [u8],
    shm: &'a mut ShmPaths,
}

impl FrameBuffers for Outbound<'_> {
    fn of(&mut self, egress: Egress) -> &mut [u8] {
        match egress {
            Egress::Rail(_) => self.buffer,
            Egress::Shm(peer) => self.shm.room(peer),
        }
    }
}

impl<'m> Rails<'m> {
    /// With the sockets of the plan's rails, in its order.
    pub(super) fn take_over(
        plan: &Plan,
        sockets: impl Iterator<Item = OwnedFd>,
        shared: &'m SharedCells,
        waiter: &Waiter,
    ) -> io::Result<Self> {
        let (buffer, frames) = (vec![0; SEND_BYTES].into(), Vec::with_capacity(SEND_FRAMES));
        let rails = [const { None }; RailId::COUNT];
        let (generation, heard) = (plan.card.generation, Heard::new(super::now()));
        let mut all = Self { rails, shared, generation, buffer, frames, heard };
        for ((id, rail), socket) in plan.rails.iter().zip(sockets) {
            let no_such = || io::Error::other("the plan has a rail that the card is not told of");
            let config = plan.card.rails[id.index()].ok_or_else(no_such)?;
            all.add(*id, config, *rail, socket, waiter)?;
        }
        Ok(all)
    }

    /// A rail comes, in place of the one that has its id, if any does.
    pub(super) fn add(
        &mut self,
        id: RailId,
        config: RailConfig,
        plan: RailPlan,
        socket: OwnedFd,
        waiter: &Waiter,
    ) -> io::Result<()> {
        self.remove(id, waiter);
        let index = id.index();
        let socket = rail::take_over(socket, plan.offload)?;
        waiter.register(socket.as_fd(), token::RAIL + index as u64, Interest::READ)?;
        let seed = self.generation.0 << 8 | index as u64;
        self.rails[index] = Some(Rail {
            socket,
            config,
            gateway: plan.gateway,
            impairment: &self.shared.impairments[index],
            outgoing: Impairer::new(Direction::Out, seed << 1),
            incoming: Impairer::new(Direction::In, seed << 1 | 1),
            more: true,
            hot_until: Instant::ZERO,
        });
        Ok(())
    }

    /// The rail of this id goes, if there is one.
    pub(super) fn remove(&mut self, id: RailId, waiter: &Waiter) {
        if let Some(rail) = self.rails[id.index()].take() {
            // The agent may have it open still.
            let _ = waiter.deregister(rail.socket.as_fd());
        }
    }

    /// What is the agent's of what has come.
    pub(super) fn heard(&mut self) -> &mut Heard {
        &mut self.heard
    }

    /// As the card proper knows them.
    pub(super) fn configs(&self) -> node::Rails {
        RailId::ALL.map(|id| Some(self.rails[id.index()].as_ref()?.config))
    }

    /// Takes what has come on rail `index`. True if that was anything.
    pub(super) fn receive(
        &mut self,
        index: usize,
        card: &mut Card<'_>,
        captures: &mut Captures,
        now: Instant,
    ) -> io::Result<bool> {
        // What was readable on a rail that is gone is of no use.
        let Some(rail) = self.rails.get_mut(index).and_then(Option::as_mut) else { return Ok(false) };
        let (socket, incoming, impairment) = (&mut rail.socket, &mut rail.incoming, rail.impairment);
        let (id, gateway, heard) = (RailId::ALL[index], rail.gateway, &mut self.heard);
        let (impaired, captured) = (impairment.is_active(), captures.are_active());
        let received = socket.receive(RECEIVE_LIMIT, &mut |from, bytes| {
            let at = now.as_nanos();
            if !impaired || incoming.decide(impairment, at, from, [&*bytes]) == Fate::Pass {
                if captured {
                    captures.record(index, false, bytes, &mut |it, is_sent| card.reveal(it, is_sent));
                }
                if !heard.take(now, id, (from, gateway), bytes) {
                    // Whoever it is from is reached by the switch: several may be, and the frame says which it is.
                    card.handle_frame(now, id, gateway.unwrap_or(from).into(), bytes);
                }
            }
        })?;
        rail.more = received.more;
        if received.datagrams > 0 {
            rail.hot_until = now + HOT;
        }
        Ok(received.datagrams > 0 || received.more)
    }

    /// Takes what has come on rails that were heard lately, what earlier calls have left, and what was held back on
    /// purpose. True if that was anything.
    pub(super) fn receive_hot(
        &mut self,
        card: &mut Card<'_>,
        captures: &mut Captures,
        now: Instant,
    ) -> io::Result<bool> {
        let mut busy = false;
        for id in RailId::ALL {
            let is_hot = self.rails[id.index()].as_ref().is_some_and(|it| it.more || now < it.hot_until);
            if is_hot {
                busy |= self.receive(id.index(), card, captures, now)?;
            }
            let Some(rail) = &mut self.rails[id.index()] else { continue };
            if !rail.incoming.is_empty() {
                let (gateway, heard) = (rail.gateway, &mut self.heard);
                rail.incoming.release(rail.impairment, now.as_nanos(), |from, bytes| {
                    busy = true;
                    captures.record(id.index(), false, bytes, &mut |it, is_sent| card.reveal(it, is_sent));
                    if !heard.take(now, id, (from, gateway), bytes) {
                        card.handle_frame(now, id, gateway.unwrap_or(from).into(), bytes);
                    }
                });
            }
        }
        Ok(busy)
    }

    /// Sends what the card has to say, through `shm` too. True if that was anything.
    pub(super) fn send(
        &mut self,
        card: &mut Card<'_>,
        shm: &mut ShmPaths,
        captures: &mut Captures,
        now: Instant,
    ) -> io::Result<bool> {
        let (mut used, mut through_memory, mut busy) = (0, 0, false);
        while used + MAX_DATAGRAM_BYTES <= self.buffer.len()
            && self.frames.len() + through_memory < SEND_FRAMES
        {
            let mut outbound = Outbound { buffer: &mut self.buffer[used..], shm };
            let Some(outgoing) = card.poll_transmit(now, &mut outbound) else { break };
            match (outgoing.egress, outgoing.to.map(RailAddress::try_from)) {
                (Egress::Shm(peer), _) => {
                    shm.publish(peer, outgoing.len, captures);
                    through_memory += 1;
                }
                (Egress::Rail(rail), Some(Ok(to))) => {
                    let gateway = self.rails[rail.index()].as_ref().and_then(|rail| rail.gateway);
                    let to = gateway.unwrap_or(to);
                    self.frames.push(Frame { rail: rail.index(), to, start: used, len: outgoing.len });
                    used += outgoing.len;
                }
                // None that there is a way to: the frame is dropped, as a network would.
                (Egress::Rail(_), Some(Err(_)) | None) => {}
            }
            if outgoing.is_last && self.frames.len() == 1 {
                // Whoever waits for it waits for it alone: what else there is to say takes time to find out.
                self.send_built(card, captures, now)?;
                (used, busy) = (0, true);
            }
        }
        shm.wake_readers();
        busy |= !self.frames.is_empty() || through_memory > 0;
        self.send_built(card, captures, now)?;
        for rail in self.rails.iter_mut().flatten() {
            busy |= rail.release(now)?;
        }
        Ok(busy)
    }

    /// Hands the frames that were built to the kernel.
    fn send_built(&mut self, card: &mut Card<'_>, captures: &mut Captures, now: Instant) -> io::Result<()> {
        if self.frames.is_empty() {
            return Ok(());
        }
        if captures.are_active() {
            for frame in &self.frames {
                let bytes = &self.buffer[frame.start..][..frame.len];
                captures.record(frame.rail, true, bytes, &mut |it, is_sent| card.reveal(it, is_sent));
            }
        }
        for (index, rail) in self.rails.iter_mut().enumerate() {
            let Some(rail) = rail else { continue };
            rail.send(&self.buffer, self.frames.iter().filter(|frame| frame.rail == index), now)?;
        }
        self.frames.clear();
        Ok(())
    }

    /// When something that is held back is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.rails.iter().flatten().flat_map(|rail| {
            [rail.incoming.next_release_ns(), rail.outgoing.next_release_ns()].into_iter().flatten()
        });
        due.min().map(Instant::from_nanos)
    }
}

impl Rail<'_> {
    fn send<'f>(
        &mut self,
        buffer: &[u8],
        frames: impl Iterator<Item = &'f Frame>,
        now: Instant,
    ) -> io::Result<()> {
        let impaired = self.impairment.is_active();
        let bytes_of = |frame: &Frame| &buffer[frame.start..frame.start + frame.len];
        let mut frames = frames.peekable();
        let Some(first) = frames.next() else { return Ok(()) };
        if frames.peek().is_none() && !impaired {
            // As most do where a little is asked at a time: without memory for a list.
            return self
                .send_datagrams(&[Datagram { to: first.to, parts: &[IoSlice::new(bytes_of(first))] }]);
        }
        let mut pieces = Vec::with_capacity(SEND_FRAMES);
        for frame in [first].into_iter().chain(frames) {
            let bytes = bytes_of(frame);
            if !impaired
                || self.outgoing.decide(self.impairment, now.as_nanos(), frame.to, [bytes]) == Fate::Pass
            {
                pieces.push((frame.to, [IoSlice::new(bytes)]));
            }
        }
        let datagrams: Vec<Datagram<'_>> =
            pieces.iter().map(|(to, parts)| Datagram { to: *to, parts }).collect();
        self.send_datagrams(&datagrams)
    }

    fn send_datagrams(&mut self, datagrams: &[Datagram<'_>]) -> io::Result<()> {
        let mut rest = datagrams;
        for _ in 0..2 {
            rest = &rest[self.socket.send_batch(rest)?..];
            if rest.is_empty() {
                break;
            }
            // The send buffer is full: whoever empties it gets a chance. What then does not fit is lost, as on any
            // network.
            rustix::thread::sched_yield();
        }
        Ok(())
    }

    /// Sends what was held back on purpose and is due. True if there was any.
    fn release(&mut self, now: Instant) -> io::Result<bool> {
        if self.outgoing.is_empty() {
            return Ok(false);
        }
        let (mut result, mut busy) = (Ok(0), false);
        let socket = &mut self.socket;
        self.outgoing.release(self.impairment, now.as_nanos(), |to, bytes| {
            busy = true;
            result = socket.send_batch(&[Datagram { to, parts: &[IoSlice::new(bytes)] }]);
        });
        result.map(|_| busy)
    }
}
