//! Memory that the two nodes share, in some worlds: what their agents agree on, and what is under way in it.
//!
//! It loses nothing and keeps the order, and only the cards' deaths lose what was in their hands. The agents agree when
//! both cards have told them whom they have met, and part when a node reboots, or at any time.

use std::collections::VecDeque;

use base::ids::{Incarnation, NodeId};

use crate::checkers::freshness::Origin;
use crate::marks::Mark;
use crate::network::{Frame, Network};
use crate::random::Random;
use crate::world::{Event, World};

/// Told from other seeds.
const SHARED: u64 = 0x5a4d_0000_0000;
/// Frames that fit.
const FRAMES: usize = 2_000;

/// The memory of all loans.
pub(crate) struct Neighbours {
    random: Random,
    loans: Vec<Memory>,
}

/// The memory of one loan.
#[derive(Default)]
struct Memory {
    /// By node: the peer that its card has told of, as its agent remembers.
    met: [Option<(NodeId, Incarnation)>; 2],
    /// By node: whether its agent has told the card, and each that follows.
    told: [bool; 2],
    /// By receiving node.
    rings: [VecDeque<Vec<u8>>; 2],
}

impl Neighbours {
    /// In half of all worlds.
    pub(crate) fn of(seed: u64, loans: usize) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ SHARED);
        let shares = random.chance(500);
        shares.then(|| Self { random, loans: (0..loans).map(|_| Memory::default()).collect() })
    }

    /// Whether `node` is to send and receive through the memory of `loan`.
    pub(crate) fn shares(&self, node: usize, loan: usize) -> bool {
        self.loans[loan].told[node]
    }
}

impl World<'_> {
    /// A card has told whom it has met.
    pub(crate) fn neighbour_met(&mut self, node: usize, loan: usize, peer: (NodeId, Incarnation)) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let memory = &mut neighbours.loans[loan];
        if memory.met[node].replace(peer) != Some(peer) {
            memory.told[node] = false;
            let after = neighbours.random.range(20_000, 3_000_000);
            self.schedule(after, Event::Agree(loan));
            self.tell_neighbour(node, loan, false);
        }
    }

    /// The agents agree on new memory, if both have met who lives now.
    pub(crate) fn agree(&mut self, loan: usize) {
        let lives = [0, 1].map(|node: usize| {
            let least = self.nodes[node].agent.least_incarnation(loan);
            let incarnation = self.nodes[node].incarnation.max(least);
            (self.nodes[node].identity.id(), Incarnation(incarnation))
        });
        let Some(neighbours) = &mut self.neighbours else { return };
        let memory = &mut neighbours.loans[loan];
        if memory.met != [Some(lives[1]), Some(lives[0])] || memory.told == [true, true] {
            return;
        }
        memory.rings.iter_mut().for_each(VecDeque::clear);
        memory.told = [true, true];
        self.marks.set(Mark::MemoryShared);
        self.log.event(self.now, None, "agree", loan as u64, 0);
        // One card hears of it before the other one.
        let first = self.neighbours.as_mut().map_or(0, |neighbours| neighbours.random.index(2));
        for node in [first, 1 - first] {
            self.tell_neighbour(node, loan, true);
        }
    }

    /// The agents part, and agree again later: any time, or because `node` has a new life.
    pub(crate) fn part(&mut self, rebooted: Option<usize>) {
        for loan in 0..self.loans.len() {
            let Some(neighbours) = &mut self.neighbours else { return };
            let memory = &mut neighbours.loans[loan];
            memory.told = [false, false];
            let after = neighbours.random.range(100_000, 20_000_000);
            if let Some(node) = rebooted {
                memory.met[node] = None;
            } else {
                self.schedule(after, Event::Agree(loan));
            }
            self.log.event(self.now, None, "part", loan as u64, 0);
            for node in [0, 1] {
                self.tell_neighbour(node, loan, false);
            }
        }
    }

    fn tell_neighbour(&mut self, node: usize, loan: usize, is_there: bool) {
        if self.nodes[node].card.is_some()
            && self.act(node, |card, now| card.set_private(now, loan, is_there))
        {
            self.wake_at(node, self.now);
        }
    }

    /// A card that has just started is told what its agent knows.
    pub(crate) fn tell_neighbours(&mut self, node: usize) {
        for loan in 0..self.loans.len() {
            if self.neighbours.as_ref().is_some_and(|neighbours| neighbours.shares(node, loan)) {
                self.tell_neighbour(node, loan, true);
            }
        }
    }

    /// `node` has written a frame.
    pub(crate) fn write_memory(&mut self, node: usize, loan: usize, frame: &[u8]) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let to = 1 - node;
        let ring = &mut neighbours.loans[loan].rings[to];
        if ring.len() < FRAMES {
            ring.push_back(frame.to_vec());
        }
        // Whoever is awake sees it at once; whoever sleeps, or has no processor, later.
        let slow = neighbours.random.chance(20);
        let after = neighbours.random.range(100, if slow { 5_000_000 } else { 30_000 });
        // Over a network it is a forgery, whenever.
        let bytes = frame.to_vec();
        let (from, by, origin) = (Network::address(node, 0), self.life_of(node), Origin::Forger);
        let forgery =
            Frame { to, rail: 0, from, bytes, origin, first: self.now, sent: self.now, by, proof: None };
        self.network.keep_foreign(node, forgery);
        self.schedule(after, Event::Memory(to, loan));
    }

    /// `node` looks into its ring.
    pub(crate) fn read_memory(&mut self, node: usize, loan: usize) {
        for _ in 0..64 {
            let Some(neighbours) = &mut self.neighbours else { return };
            if !neighbours.shares(node, loan) || self.nodes[node].card.is_none() {
                return;
            }
            // What a card takes and does not live to commit is gone.
            let Some(mut frame) = neighbours.loans[loan].rings[node].pop_front() else { break };
            self.arrive_private(node, loan, &mut frame);
        }
        if self.nodes[node].card.is_some() {
            self.service(node);
        }
    }
}
