//! Several nodes over a network that loses, repeats and delays what it is told to.

use core::time::Duration;
use std::collections::BTreeMap;

use base::ids::{NodeId, StreamId};
use base::ledger::Arena;
use base::{Instant, Random};

use super::node::*;
use crate::frame::Header;
use crate::pair::Heard;
use crate::paths::PathId;

/// A frame on its way.
struct Flying {
    at: Instant,
    from: usize,
    to: usize,
    path: PathId,
    bytes: Vec<u8>,
}

/// Whether a frame of a node passes.
type Filter = Box<dyn Fn(usize, &[u8]) -> bool>;
/// From whom to whom and on which path nothing passes.
type Cut = Box<dyn Fn(usize, usize, PathId) -> bool>;

/// What a path of a node is like, beside what holds for all.
#[derive(Clone, Copy, Default)]
pub(super) struct Wire {
    pub(super) delay: Duration,
    /// Frames of a hundred that are lost.
    pub(super) lost: u64,
    /// What passes in a tick, where that is limited; what would wait for more than [`QUEUE`] is lost.
    pub(super) bytes_per_tick: Option<usize>,
}

/// The longest that a frame waits for others on its path.
const QUEUE: Duration = Duration::from_millis(10);

/// Nodes and the network between them.
pub(super) struct World<'m> {
    pub(super) nodes: Vec<Node<'m>>,
    pub(super) now: Instant,
    flying: Vec<Flying>,
    pub(super) random: Random,
    /// Frames of a hundred that are lost, come twice, or later than those behind them.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) late: u64,
    pub(super) delay: Duration,
    pub(super) cut: Cut,
    pub(super) wire: Box<dyn Fn(usize, PathId) -> Wire>,
    /// Until when what was sent before is on its way, by node and path.
    busy_until: BTreeMap<(usize, PathId), Instant>,
    pub(super) filter: Filter,
    /// Between two ticks.
    pub(super) pace: Duration,
    /// Frames that a node may send in a tick.
    pub(super) frames_per_tick: usize,
    /// Nodes are looked at only when something has come, or at the time that they have said.
    pub(super) is_lazy: bool,
    /// Frames that were sent, in all.
    pub(super) frames: u64,
    /// Everything that was sent, if it is recorded.
    pub(super) record: Option<Vec<(usize, Vec<u8>)>>,
}

impl<'m> World<'m> {
    pub(super) fn of(nodes: Vec<Node<'m>>) -> Self {
        Self {
            nodes,
            now: Instant::ZERO,
            flying: Vec::new(),
            random: Random::new(1),
            lost: 0,
            doubled: 0,
            late: 0,
            delay: Duration::ZERO,
            cut: Box::new(|_, _, _| false),
            wire: Box::new(|_, _| Wire::default()),
            busy_until: BTreeMap::new(),
            filter: Box::new(|_, _| true),
            pace: TICK,
            frames_per_tick: usize::MAX,
            is_lazy: false,
            frames: 0,
            record: None,
        }
    }

    /// Two nodes: the first borrows so many functions of the second.
    pub(super) fn pair(arena: &'m Arena, functions: u32) -> Self {
        Self::pair_with(arena, functions, |_| {})
    }

    pub(super) fn pair_with(arena: &'m Arena, functions: u32, change: impl Fn(&mut NodeConfig)) -> Self {
        let nodes = (0..2).map(|index| {
            let mut config = config_of(index);
            config.peers[1 - index] = true;
            config.calls[1 - index] = index == 0;
            config.loans = (0..functions)
                .map(|function| match index {
                    0 => Loan::Borrow { lender: 1, config: borrow(function) },
                    _ => Loan::Lend(lend(function, config.life)),
                })
                .collect();
            change(&mut config);
            Node::new(arena, config, Instant::ZERO)
        });
        Self::of(nodes.collect())
    }

    pub(super) fn run(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        self.run((time.as_nanos() / self.pace.as_nanos()) as u32);
    }

    /// Runs while only these frames pass.
    pub(super) fn run_filtered(&mut self, time: Duration, passes: impl Fn(usize, &[u8]) -> bool + 'static) {
        self.filter = Box::new(passes);
        self.run_for(time);
        self.filter = Box::new(|_, _| true);
    }

    /// Runs until `done`; panics if that takes longer than `most`.
    pub(super) fn run_until(&mut self, most: Duration, done: impl Fn(&Self) -> bool) -> Duration {
        let before = self.now;
        while !done(self) {
            assert!(self.now.since(before) < most, "it takes longer than {most:?}: {}", self.describe());
            self.tick();
        }
        self.now.since(before)
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for slot in &node.slots {
                let channel = &slot.channel;
                text += &format!(
                    "\nnode {index} to {}: met {}, {:?}, {:?}",
                    slot.peer,
                    channel.is_met(),
                    channel.course(),
                    channel.stats()
                );
            }
            text += &format!("\n{:?}", node.lobby.stats());
            for place in node.places.iter().take(6) {
                let state = match &place.end {
                    End::Claim(claim) => format!("{:?}", claim.state()),
                    End::Offer(offer) => format!("{:?}", offer.state()),
                };
                text += &format!("\n  {state} {:?} {:?}", place.stream.state(), place.counts());
            }
        }
        text
    }

    pub(super) fn tick(&mut self) {
        self.now += self.pace;
        let now = self.now;
        let lazy = self.is_lazy;
        self.nodes.iter_mut().for_each(|node| if lazy { node.step_if_due(now) } else { node.step(now) });
        for from in 0..self.nodes.len() {
            if lazy && !self.nodes[from].may_send {
                continue;
            }
            for _ in 0..self.frames_per_tick {
                let Some((to, path, bytes)) = self.nodes[from].poll_transmit(now) else {
                    self.nodes[from].may_send = false;
                    break;
                };
                self.send(from, to, path, bytes);
            }
        }
        self.deliver();
    }

    fn send(&mut self, from: usize, to: usize, path: PathId, bytes: Vec<u8>) {
        self.frames += 1;
        if let Some(record) = &mut self.record {
            record.push((from, bytes.clone()));
        }
        if (self.cut)(from, to, path) || !(self.filter)(from, &bytes) || self.random.below(100) < self.lost {
            return;
        }
        let wire = (self.wire)(from, path);
        let Some(left) = self.leaves(&wire, (from, path), bytes.len()) else { return };
        if wire.lost > 0 && self.random.below(100) < wire.lost {
            return;
        }
        let copies = 1 + u64::from(self.random.below(100) < self.doubled);
        for _ in 0..copies {
            let late = if self.random.below(100) < self.late { self.random.below(10) as u32 } else { 0 };
            let at = left + self.delay + wire.delay + TICK * late;
            self.flying.push(Flying { at, from, to, path, bytes: bytes.clone() });
        }
    }

    /// When a frame has left; `None`: there is no room for it.
    fn leaves(&mut self, wire: &Wire, of: (usize, PathId), bytes: usize) -> Option<Instant> {
        let Some(most) = wire.bytes_per_tick else { return Some(self.now) };
        let free = self.busy_until.entry(of).or_insert(self.now);
        let begin = self.now.max(*free);
        if begin.since(self.now) > QUEUE {
            return None;
        }
        *free = begin + TICK * bytes as u32 / most as u32;
        Some(*free)
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, rest) = core::mem::take(&mut self.flying).into_iter().partition(|frame| frame.at <= now);
        self.flying = rest;
        let due: Vec<Flying> = due;
        for Flying { from, to, path, mut bytes, .. } in due {
            if let Some(node) = self.nodes.get_mut(to) {
                node.handle_frame(now, from, path.reversed(), &mut bytes);
            }
        }
    }

    /// Gives a node a frame as if it had come from another one; what it answers goes into the network.
    pub(super) fn inject(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let now = self.now;
        let path = Header::parse(bytes).map_or(PATHS[0], |header| header.path());
        self.nodes[to].handle_frame(now, from, path, &mut bytes.to_vec());
    }

    /// Gives a node of a pair a frame of the other one: what it was.
    pub(super) fn give(&mut self, to: usize, bytes: &[u8]) -> Heard {
        self.inject(1 - to, to, bytes);
        self.nodes[to].heard
    }

    /// All that a node sends after a step now.
    pub(super) fn frames_of(&mut self, node: usize) -> Vec<(PathId, Vec<u8>)> {
        let now = self.now;
        self.nodes[node].step(now);
        self.nodes[node].frames(now)
    }

    /// A node that breaks the rules says something of a stream, and it arrives.
    pub(super) fn say(&mut self, from: usize, id: StreamId, what: crate::pair::control::What) {
        let peer = 1 - from;
        self.nodes[from].channel(peer).say_of(id, what);
        self.flush(from);
    }

    /// A node that breaks the rules has committed so much, and grants without measure.
    pub(super) fn say_status(&mut self, from: usize, id: StreamId, committed: u64) {
        let peer = 1 - from;
        self.nodes[from].channel(peer).lie_for_test(id, committed);
        self.flush(from);
    }

    fn flush(&mut self, from: usize) {
        let now = self.now;
        while let Some((to, _, bytes)) = self.nodes[from].poll_transmit(now) {
            self.inject(from, to, &bytes);
        }
    }

    /// Each stream of node `from` that is open gets something to send.
    pub(super) fn write_all(&mut self, from: usize) {
        let now = self.now;
        self.nodes[from].guarded(now, |node| {
            node.is_awake = true;
            node.places.iter_mut().for_each(|place| _ = place.write(4));
            node.commit();
        });
    }

    /// The place at the other end of a place of node 0 in a pair.
    pub(super) fn expect_all_came(&self) {
        let [one, two] = &self.nodes[..] else { panic!("a pair has two nodes") };
        for (index, (ours, theirs)) in one.places.iter().zip(&two.places).enumerate() {
            let (sent, received) = ours.counts();
            assert_eq!((sent, received), (theirs.counts().1, theirs.counts().0), "{index}");
            assert!(ours.stream.is_idle() && theirs.stream.is_idle(), "{index}");
        }
    }
}

/// The allow list of these nodes.
pub(super) fn only(nodes: &[usize]) -> Option<Box<[NodeId]>> {
    Some(nodes.iter().map(|index| key_of(*index).id()).collect())
}
