//! Frames on their way: from a card over the network, or through memory, to another one.

use base::ids::RailId;
use link::frame::{Header, Kind};
use node::{Address, Card, Egress};

use crate::checkers::freshness::Origin;
use crate::death::survive;
use crate::network::{Fate, Frame, Network};
use crate::watch::{Before, proof_in};
use crate::world::{Event, LENDER, World};

/// Frames that a card takes from memory in one turn.
const TURN: usize = 64;

impl World<'_> {
    pub(crate) fn transmit(&mut self, node: usize) {
        let mut buffer = core::mem::take(&mut self.buffer);
        while !self.report.has_failed() && !self.dies_here(node) {
            let now = self.clock.instant();
            let Some(card) = self.nodes[node].card.as_mut() else { break };
            match survive(|| card.poll_transmit(now, &mut buffer)) {
                Ok(Some(sent)) => self.send(node, (sent.way, sent.to), &buffer[..sent.len]),
                Ok(None) => break,
                Err(end) => {
                    self.end_card(node, end);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    fn send(&mut self, node: usize, (way, to): (Egress, Option<Address>), bytes: &[u8]) {
        let (watch, mut scene) = self.scene();
        watch.frame_leaves(&mut scene, node, bytes);
        let (Egress::Rail(rail), Some(to)) = (way, to) else { return self.write_memory(node, bytes) };
        let rail = rail.get();
        if node == LENDER {
            if Header::parse(bytes).is_ok_and(|header| header.kind == Kind::Response) {
                self.besiege(to);
                self.check_refusal(to, rail);
            }
            let (watch, mut scene) = self.scene();
            watch.check_address(&mut scene, to, bytes);
        }
        let this = &self.nodes[node];
        let frame = Frame {
            to: usize::from(to.0[0]).wrapping_sub(1),
            rail,
            at: Network::rail_of(to),
            from: Network::address(node, rail.into()),
            bytes: bytes.to_vec(),
            origin: Origin::Peer,
            first: self.clock.now,
            sent: self.clock.now,
            by: this.who(),
            proof: proof_in(this, &self.loans, bytes).filter(|_| node != LENDER),
        };
        let mut fates = self.network.send(frame.clone());
        self.spoofer.iter_mut().for_each(|spoofer| spoofer.repeat(&frame, &mut fates));
        self.delay_answer(&frame, &mut fates);
        for fate in fates {
            match fate {
                Fate::Lost => self.report.log.event(self.clock.now, Some(node), "lost", rail.into(), 0),
                Fate::Arrives(after, frame) => self.clock.after(after, Event::Arrival(frame)),
            }
        }
    }

    /// A frame arrives: it has an effect only if it may.
    pub(crate) fn arrive(&mut self, frame: Frame) {
        let (node, at, from) = (frame.to, usize::from(frame.at), frame.from);
        let before = Before::arrival(&self.nodes[node], &frame.bytes);
        self.report.log.event(self.clock.now, Some(node), "rx", frame.rail.into(), before.packet());
        let mut bytes = frame.bytes.clone();
        let hears = |card: &mut Card<'_>, now| card.handle_frame(now, RailId::ALL[at], from, &mut bytes);
        if !self.dies_here(node) && self.act(node, hears) {
            let (watch, mut scene) = self.scene();
            watch.frame_came(&mut scene, &frame, &before);
            self.service(node);
        }
    }

    /// `node` has written a frame into memory.
    fn write_memory(&mut self, node: usize, bytes: &[u8]) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let (to, after) = neighbours.write(node, bytes);
        self.network.keep_foreign(
            node,
            Frame {
                to,
                rail: 0,
                at: 0,
                from: Network::address(node, 0),
                bytes: bytes.to_vec(),
                // Over a network it is a forgery, whenever.
                origin: Origin::Forger,
                first: self.clock.now,
                sent: self.clock.now,
                by: self.nodes[node].who(),
                proof: None,
            },
        );
        self.clock.after(after, Event::Memory(to));
    }

    /// `node` looks into its memory.
    pub(crate) fn read_memory(&mut self, node: usize) {
        for _ in 0..TURN {
            if self.nodes[node].card.is_none() {
                return;
            }
            let Some(neighbours) = self.neighbours.as_mut().filter(|it| it.shares(node)) else { return };
            // What a card takes and does not live to commit is gone.
            let Some(frame) = neighbours.read(node) else { break };
            self.take_from_memory(node, frame);
        }
        if self.nodes[node].card.is_some() {
            self.service(node);
        }
    }

    fn take_from_memory(&mut self, node: usize, mut bytes: Vec<u8>) {
        let Ok(header) = Header::parse(&bytes) else { return };
        let (path, packet) = (header.path().index() as u64, header.packet_number);
        self.report.log.event(self.clock.now, Some(node), "rx", path, packet);
        let Some(place) = self.neighbour_place(node) else { return };
        let before = Before::in_memory(&self.nodes[node], place, header);
        let original = bytes.clone();
        if !self.dies_here(node) && self.act(node, |card, now| card.handle_shm_frame(now, place, &mut bytes))
        {
            let (watch, mut scene) = self.scene();
            watch.frame_came_in_memory(&mut scene, node, &original, &before);
        }
    }
}
