//! Memory that the two nodes share, in some worlds: what their agents agree on, and what is under way in it.
//!
//! It loses nothing and keeps the order, and only the cards' deaths lose what was in their hands. The agents agree when
//! both cards have told them whom they have met, and part when a node reboots, or at any time.

use std::collections::VecDeque;

use base::Random;
use base::ids::{Incarnation, NodeId};
use link::frame::Header;
use node::Card;

use crate::chance::Chance;
use crate::marks::Mark;
use crate::stage::{Event, Stage};
use crate::watch::Before;

/// Frames that fit.
const FRAMES: usize = 2_000;
/// Frames that a card takes in one turn.
const TURN: usize = 64;

/// The memory of the lender and the borrower: what is in it, and who knows of it.
pub(crate) struct Neighbours {
    random: Random,
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
        let mut random = Chance::Neighbours.of(seed);
        let shares = random.chance(500);
        let (met, told, rings) = Default::default();
        shares.then_some(Self { random, met, told, rings })
    }

    /// `node` writes a frame: for whom, and after how long that one looks.
    pub(crate) fn write(&mut self, node: usize, frame: &[u8]) -> (usize, u64) {
        let to = 1 - node;
        let ring = &mut self.rings[to];
        if ring.len() < FRAMES {
            ring.push_back(frame.to_vec());
        }
        // Whoever is awake sees it at once; whoever sleeps, or has no processor, later.
        let slow = self.random.chance(20);
        (to, self.random.range(100, if slow { 5_000_000 } else { 30_000 }))
    }

    /// `node` looks into its memory. Returns it, if its card is to be served.
    pub(crate) fn read(&mut self, stage: &mut Stage<'_>, node: usize) -> Option<usize> {
        for _ in 0..TURN {
            stage.nodes[node].with_card()?;
            if !self.told[node] {
                return None;
            }
            // What a card takes and does not live to commit is gone.
            let Some(frame) = self.rings[node].pop_front() else { break };
            take(stage, node, frame);
        }
        stage.nodes[node].with_card()
    }

    /// A card has told whom it has a channel with. Only these two share memory, so nobody else counts.
    pub(crate) fn met(&mut self, stage: &mut Stage<'_>, node: usize, peer: (NodeId, Incarnation)) {
        let is_other = peer.0 == stage.nodes[1 - node.min(1)].identity.id();
        if is_other && self.met[node].replace(peer) != Some(peer) {
            self.told[node] = false;
            stage.clock.after(self.random.range(20_000, 3_000_000), Event::Agree);
            tell(stage, node, false);
        }
    }

    /// A card has given up a channel: if it was that one, there is no memory any more.
    pub(crate) fn left(&mut self, stage: &Stage<'_>, node: usize) {
        if place_of_other(stage, node).is_none() {
            (self.met[node], self.told[node]) = (None, false);
        }
    }

    /// The agents agree on new memory, if both have met who lives now.
    pub(crate) fn agree(&mut self, stage: &mut Stage<'_>) {
        let lives = [1, 0].map(|node: usize| Some(stage.nodes[node].known_as(stage.loans.len())));
        if self.met != lives || self.told == [true, true] {
            return;
        }
        self.rings.iter_mut().for_each(VecDeque::clear);
        self.told = [true, true];
        stage.report.marks.set(Mark::MemoryShared);
        stage.log(None, "agree", 0, 0);
        // One card hears of it before the other one.
        let first = self.random.index(2);
        [first, 1 - first].into_iter().for_each(|node| tell(stage, node, true));
    }

    /// The agents part, and agree again later: any time, or because a node has a new life.
    pub(crate) fn part(&mut self, stage: &mut Stage<'_>, rebooted: Option<usize>) {
        self.told = [false, false];
        let after = self.random.range(100_000, 20_000_000);
        match rebooted {
            Some(node) => self.met[node] = None,
            None => stage.clock.after(after, Event::Agree),
        }
        stage.log(None, "part", 0, 0);
        [0, 1].into_iter().for_each(|node| tell(stage, node, false));
    }

    /// A card that has just started is told what its agent knows.
    pub(crate) fn card_began(&self, stage: &mut Stage<'_>, node: usize) {
        if self.told[node] {
            tell(stage, node, true);
        }
    }
}

/// The place of the other one among the peers of a node's card.
fn place_of_other(stage: &Stage<'_>, node: usize) -> Option<usize> {
    stage.nodes[node].place_of(&stage.nodes[1 - node.min(1)])
}

/// A card hears whether there is memory.
fn tell(stage: &mut Stage<'_>, node: usize, is_there: bool) {
    if let Some(place) = place_of_other(stage, node)
        && stage.act(node, |card, now| card.set_shm(now, place, is_there))
    {
        stage.wake_at(node, stage.clock.now);
    }
}

/// A card takes a frame from memory.
fn take(stage: &mut Stage<'_>, node: usize, mut bytes: Vec<u8>) {
    let Ok(header) = Header::parse(&bytes) else { return };
    let (path, packet) = (header.path().index() as u64, header.packet_number);
    stage.log(Some(node), "rx", path, packet);
    let Some(place) = place_of_other(stage, node) else { return };
    let before = Before::in_memory(&stage.nodes[node], place, header);
    let original = bytes.clone();
    let hears = |card: &mut Card<'_>, now| card.handle_shm_frame(now, place, &mut bytes);
    if !stage.dies_here(node) && stage.act(node, hears) {
        let (watch, mut scene) = stage.scene();
        watch.frame_came_in_memory(&mut scene, node, &original, &before);
    }
}
