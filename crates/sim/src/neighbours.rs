//! Memory that the two nodes share, in some worlds: what their agents agree on, and what is under way in it.
//!
//! It loses nothing and keeps the order, and only the cards' deaths lose what was in their hands. The agents agree when
//! both cards have told them whom they have met, and part when a node reboots, or at any time.

use std::collections::VecDeque;

use base::Random;
use base::ids::{Incarnation, NodeId};

use crate::marks::Mark;
use crate::world::{Event, World};

/// Told from other seeds.
const SHARED: u64 = 0x5a4d_0000_0000;
/// Frames that fit.
const FRAMES: usize = 2_000;

/// The memory of the lender and the borrower.
pub(crate) struct Neighbours {
    random: Random,
    memory: Memory,
}

/// What is in it, and who knows of it.
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
    pub(crate) fn of(seed: u64) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ SHARED);
        let shares = random.chance(500);
        shares.then(|| Self { random, memory: Memory::default() })
    }

    /// Whether `node` is to send and receive through it.
    pub(crate) fn shares(&self, node: usize) -> bool {
        self.memory.told[node]
    }

    /// `node` writes a frame: for whom, and after how long that one looks.
    pub(crate) fn write(&mut self, node: usize, frame: &[u8]) -> (usize, u64) {
        let to = 1 - node;
        let ring = &mut self.memory.rings[to];
        if ring.len() < FRAMES {
            ring.push_back(frame.to_vec());
        }
        // Whoever is awake sees it at once; whoever sleeps, or has no processor, later.
        let slow = self.random.chance(20);
        (to, self.random.range(100, if slow { 5_000_000 } else { 30_000 }))
    }

    /// What is there for `node` next.
    pub(crate) fn read(&mut self, node: usize) -> Option<Vec<u8>> {
        self.memory.rings[node].pop_front()
    }

    /// A card has met this life of the other one: if that is news, the agents agree after so long.
    fn met(&mut self, node: usize, peer: (NodeId, Incarnation)) -> Option<u64> {
        let is_news = self.memory.met[node].replace(peer) != Some(peer);
        is_news.then(|| {
            self.memory.told[node] = false;
            self.random.range(20_000, 3_000_000)
        })
    }

    /// A card has given up its channel with the other one.
    fn left(&mut self, node: usize) {
        (self.memory.met[node], self.memory.told[node]) = (None, false);
    }

    /// The agents agree on new memory, if both have met who lives now: whose card hears of it first.
    fn agree(&mut self, lives: [(NodeId, Incarnation); 2]) -> Option<usize> {
        let memory = &mut self.memory;
        if memory.met != [Some(lives[1]), Some(lives[0])] || memory.told == [true, true] {
            return None;
        }
        memory.rings.iter_mut().for_each(VecDeque::clear);
        memory.told = [true, true];
        Some(self.random.index(2))
    }

    /// The agents part, any time or because a node has a new life: if they agree again by themselves, after how long.
    fn part(&mut self, rebooted: Option<usize>) -> Option<u64> {
        self.memory.told = [false, false];
        let after = self.random.range(100_000, 20_000_000);
        if let Some(node) = rebooted {
            self.memory.met[node] = None;
        }
        rebooted.is_none().then_some(after)
    }
}

impl World<'_> {
    /// A card has told whom it has a channel with. Only these two share memory, so nobody else counts.
    pub(crate) fn neighbour_met(&mut self, node: usize, peer: (NodeId, Incarnation)) {
        let other = self.nodes[1 - node.min(1)].identity.id();
        let Some(neighbours) = self.neighbours.as_mut().filter(|_| peer.0 == other) else { return };
        if let Some(after) = neighbours.met(node, peer) {
            self.clock.after(after, Event::Agree);
            self.tell_neighbour(node, false);
        }
    }

    /// A card has given up a channel: if it was that one, there is no memory any more.
    pub(crate) fn neighbour_left(&mut self, node: usize) {
        if self.neighbour_place(node).is_none() {
            self.neighbours.iter_mut().for_each(|neighbours| neighbours.left(node));
        }
    }

    /// The place of the other one among the peers of a node's card.
    pub(crate) fn neighbour_place(&self, node: usize) -> Option<usize> {
        self.nodes[node].place_of(&self.nodes[1 - node.min(1)])
    }

    /// The agents agree on new memory.
    pub(crate) fn agree(&mut self) {
        let loans = self.loans.len();
        let lives = [0, 1].map(|node: usize| self.nodes[node].known_as(loans));
        let Some(first) = self.neighbours.as_mut().and_then(|neighbours| neighbours.agree(lives)) else {
            return;
        };
        self.report.marks.set(Mark::MemoryShared);
        self.report.log.event(self.clock.now, None, "agree", 0, 0);
        // One card hears of it before the other one.
        for node in [first, 1 - first] {
            self.tell_neighbour(node, true);
        }
    }

    /// The agents part, and agree again later: any time, or because `node` has a new life.
    pub(crate) fn part(&mut self, rebooted: Option<usize>) {
        let Some(neighbours) = &mut self.neighbours else { return };
        if let Some(after) = neighbours.part(rebooted) {
            self.clock.after(after, Event::Agree);
        }
        self.report.log.event(self.clock.now, None, "part", 0, 0);
        for node in [0, 1] {
            self.tell_neighbour(node, false);
        }
    }

    fn tell_neighbour(&mut self, node: usize, is_there: bool) {
        if let Some(place) = self.neighbour_place(node)
            && self.act(node, |card, now| card.set_shm(now, place, is_there))
        {
            self.wake_at(node, self.clock.now);
        }
    }

    /// A card that has just started is told what its agent knows.
    pub(crate) fn tell_neighbours(&mut self, node: usize) {
        if self.neighbours.as_ref().is_some_and(|neighbours| neighbours.shares(node)) {
            self.tell_neighbour(node, true);
        }
    }
}
