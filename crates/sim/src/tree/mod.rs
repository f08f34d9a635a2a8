//! Trees of switches, up to 4,096 nodes with two rails of a tree each, whose cables are cut, in both directions or
//! one, lose frames and come back, and whose switches die and begin anew. Nodes here only send frames and receive
//! them; what a channel makes of rails that fail stands in the other worlds.
//!
//! Some nodes lie: about their source, to nobody, in circles. What must hold, whatever they do:
//!
//! - `switch-source`: whoever a frame says that it is from has sent it.
//! - `switch-delivery`: it comes to whom it is for, and what is for everybody once.
//! - `switch-hops`: it passes at most 33 switches, also where their files make a circle.
//! - `switch-path`: between two nodes frames arrive on each rail whose cables and switches between them are well.
//! - `switch-counts`: what came in has left or was dropped for a reason, and was counted.
//! - `switch-epoch`: only who has partitions of a switch moves ports.

mod owners;
mod shape;

use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use base::frame::{INFORMATION, OVERHEAD, Prefix, ROUTE, RawHeader, Route, VERSION};
use base::ids::{DomainId, Group, RailId};
use base::{Instant, Random, Rule};
use node::switch::{Decision, HELLO_EVERY, PortId, Switch};
use zerocopy::{FromBytes, IntoBytes};

use self::shape::{End, Shape, domain, ring};
use crate::{Failure, Options, Summary};

const MS: Duration = Duration::from_millis(1);
/// How long a world runs.
const END: Duration = Duration::from_secs(15);
/// Faults end a while before that.
const CALM: Duration = Duration::from_secs(11);
/// They come in bursts, at the beginning of each time like this: so long, and then nothing changes.
const BURST: (Duration, Duration) = (Duration::from_millis(600), Duration::from_millis(3600));
/// Between two frames of a node to the other one of its pair, on each rail.
const SEND: Duration = Duration::from_millis(25);
/// Between two faults.
const FAULT: Duration = Duration::from_millis(60);
/// Between two looks at whether pairs hear each other.
const LOOK: Duration = Duration::from_millis(100);
/// Two switches agree on one of two cables after so long: each may have to take its turn with either.
const SETTLED: Duration = Duration::from_millis(2500);
/// By then, beside the time that it takes, a frame has come on a path that is well.
const PATIENCE: Duration = Duration::from_millis(300);
/// Switches that a frame may pass: as many as its hops, and one.
const PASSED_MAX: u32 = 33;
/// The number of what switches say to each other, which no node gets.
const HELLO_NUMBER: usize = usize::MAX;
/// Pairs whose nodes hear each other.
const PAIRS: usize = 12;

/// What a world of trees has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Nodes.
    pub nodes: usize,
    /// Switches of both trees.
    pub switches: usize,
    /// Frames that came to whom they were for.
    pub delivered: u64,
    /// Frames that were forwarded, once a switch.
    pub forwarded: u64,
    /// Those that were dropped by switches.
    pub dropped: u64,
    /// Cables cut and switches killed.
    pub faults: u64,
    /// Lies told.
    pub lies: u64,
    /// Times at which a pair was looked at on a rail that was well.
    pub looks: u64,
}

/// Runs the world of `seed`.
///
/// # Errors
/// What the first checker to find anything has found.
pub fn run_tree(seed: u64, options: &Options) -> Result<Tree, Failure> {
    let mut world = World::new(seed, options);
    let result = world.run().and_then(|()| owners::run(seed, options.rules));
    result.map(|()| world.seen.clone()).map_err(|(checker, what)| Failure {
        seed,
        checker,
        what,
        summary: Summary::of_seed(seed),
    })
}

type Wrong = (&'static str, String);

/// A frame on its way.
#[derive(Clone, Debug)]
struct Frame {
    bytes: Vec<u8>,
    /// Which one it is.
    number: usize,
    passed: u32,
}

/// What the simulator knows of a frame.
#[derive(Clone, Debug)]
struct Truth {
    sender: usize,
    /// Whom it is for; `None`: everybody, or nobody.
    to: Option<usize>,
    is_lie: bool,
    is_for_all: bool,
}

/// How a cable is doing, in the direction from its first end and from its second.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Wire {
    is_cut: [bool; 2],
    lost_per_mille: u64,
    delay_us: u64,
}

impl Wire {
    fn is_well(&self) -> bool {
        self.is_cut == [false; 2] && self.lost_per_mille == 0
    }

    /// What it does not carry does not come for certain, and what it carries comes.
    fn is_known(&self) -> bool {
        self.is_cut != [false; 2] && (self.is_cut == [true; 2] || self.lost_per_mille == 0)
    }
}

/// The tree of a rail.
struct Rail {
    id: RailId,
    shape: Shape,
    /// `None`: it is dead.
    switches: Vec<Option<Switch>>,
    /// How often each has died.
    lives: Vec<u32>,
    wires: Vec<Wire>,
}

#[derive(Clone, Debug)]
enum Event {
    /// A frame comes to this end of a cable of a tree.
    Arrive {
        rail: usize,
        end: End,
        frame: Frame,
    },
    /// A pair says something, on both rails.
    Send(usize),
    Fault,
    Lie,
    Look,
    /// All switches tell those at the other ends of their links whether they hear them.
    Hello,
}

/// What is between two nodes: cables, also those that stand by, and which life of each switch.
#[derive(PartialEq, Eq, Default)]
struct Between {
    wires: Vec<Wire>,
    lives: Vec<Option<u32>>,
}

struct World {
    random: Random,
    now: Instant,
    /// By time, and by order where that is the same.
    queue: BinaryHeap<std::cmp::Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, Event>,
    next: u64,
    nodes: usize,
    rails: Vec<Rail>,
    pairs: Vec<[usize; 2]>,
    frames: Vec<Truth>,
    /// By pair, direction and rail: when a frame came last.
    heard: Vec<[[Instant; 2]; 2]>,
    /// By pair and rail: since when what is between them is as it is, and how that is.
    between: Vec<[(Instant, Between); 2]>,
    /// Who has got which frame for everybody.
    got: BTreeMap<(usize, usize), u32>,
    seen: Tree,
    options: Options,
}

fn prefix(rail: RailId, domain: u32) -> u32 {
    Prefix { rail, domain: DomainId(domain) }.bits()
}

impl World {
    fn new(seed: u64, options: &Options) -> Self {
        let mut random = Random::of(seed, "tree");
        let nodes = match random.below(100) {
            0..80 => 2 + random.below(40) as usize,
            80..97 => 40 + random.below(500) as usize,
            _ => 1000 + random.below(3097) as usize,
        };
        let rails: Vec<Rail> = (0..2)
            .map(|rail| {
                let (id, width) = (RailId::ALL[rail], 2 + random.below(30) as usize);
                let shape = Shape::new(&mut random, id, nodes, width);
                let switches = shape.tables.iter();
                let switches = switches.map(|it| Some(Switch::under(options.rules, it.clone()))).collect();
                let wire = Wire { delay_us: 20, ..Wire::default() };
                let wires = vec![wire; shape.cables.len()];
                let lives = vec![0; shape.tables.len()];
                Rail { id, shape, switches, lives, wires }
            })
            .collect();
        let mut pairs: Vec<[usize; 2]> = Vec::new();
        for _ in 0..PAIRS.min(nodes) {
            let one = random.below(nodes as u64) as usize;
            let other = (one + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
            pairs.push([one, other]);
        }
        let heard = vec![[[Instant::ZERO; 2]; 2]; pairs.len()];
        let between = pairs.iter().map(|_| Default::default()).collect();
        let switches = rails.iter().map(|rail| rail.switches.len()).sum();
        let seen = Tree { nodes, switches, ..Tree::default() };
        let mut world = Self {
            random,
            now: Instant::ZERO,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next: 0,
            nodes,
            rails,
            pairs,
            frames: Vec::new(),
            heard,
            between,
            got: BTreeMap::new(),
            seen,
            options: *options,
        };
        world.note_ways();
        (0..world.pairs.len()).for_each(|pair| world.at(MS * pair as u32, Event::Send(pair)));
        for event in [Event::Fault, Event::Lie, Event::Look, Event::Hello] {
            world.at(SEND * 2, event);
        }
        world
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.queue.push(std::cmp::Reverse((self.now + after, self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    fn run(&mut self) -> Result<(), Wrong> {
        self.ring()?;
        while let Some(std::cmp::Reverse((at, number))) = self.queue.pop() {
            self.now = at;
            if at > Instant::ZERO + END {
                break;
            }
            let Some(event) = self.events.remove(&number) else { continue };
            if self.options.trace {
                eprintln!("{at:?} {event:?}");
            }
            match event {
                Event::Arrive { rail, end, frame } => self.arrive(rail, end, frame)?,
                Event::Send(pair) => {
                    self.say(pair);
                    self.at(SEND, Event::Send(pair));
                }
                Event::Fault => {
                    self.fault();
                    self.note_ways();
                    self.at(FAULT, Event::Fault);
                }
                Event::Lie => {
                    self.lie();
                    self.at(FAULT, Event::Lie);
                }
                Event::Hello => {
                    self.say_hello();
                    self.at(HELLO_EVERY, Event::Hello);
                }
                Event::Look => {
                    self.look()?;
                    self.at(LOOK, Event::Look);
                }
            }
        }
        Ok(())
    }

    /// A frame from a node, by what it says of itself.
    fn emit(&mut self, rail: usize, (source, to): (u32, u32), group: u16, kind: u8, truth: Truth) {
        let id = self.rails[rail].id;
        let mut bytes = vec![0; OVERHEAD];
        let raw = RawHeader {
            version: VERSION,
            kind,
            route: Route::START.byte(),
            source: prefix(id, source).into(),
            destination: prefix(id, to).into(),
            group: group.into(),
            ..FromBytes::read_from_bytes(&[0; size_of::<RawHeader>()][..]).expect("a header of zeroes")
        };
        bytes[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        let sender = truth.sender;
        self.frames.push(truth);
        let frame = Frame { bytes, number: self.frames.len() - 1, passed: 0 };
        let cable = self.rails[rail].shape.leaves[sender];
        self.carry(rail, cable, End::Node(sender), frame);
    }

    /// A frame leaves an end of a cable.
    fn carry(&mut self, rail: usize, cable: usize, from: End, frame: Frame) {
        let (ends, wire) = (self.rails[rail].shape.cables[cable].ends, self.rails[rail].wires[cable]);
        let direction = usize::from(ends[1] == from);
        if wire.is_cut[direction] || self.random.chance(wire.lost_per_mille) {
            return;
        }
        let jitter = self.random.below(10);
        self.at(
            Duration::from_micros(wire.delay_us + jitter),
            Event::Arrive { rail, end: ends[1 - direction], frame },
        );
    }

    fn arrive(&mut self, rail: usize, end: End, mut frame: Frame) -> Result<(), Wrong> {
        let (switch, port) = match end {
            End::Node(node) => return self.deliver(rail, node, &frame),
            End::Port(switch, port) => (switch, port),
        };
        let Some(core) = &mut self.rails[rail].switches[switch] else { return Ok(()) };
        let ways = forward(core, self.now, port, &mut frame)?;
        self.seen.forwarded += ways.len() as u64;
        self.seen.dropped += u64::from(ways.is_empty());
        for way in ways {
            let cable = self.rails[rail].shape.at[switch][way.index()];
            self.carry(rail, cable, End::Port(switch, way.index()), frame.clone());
        }
        Ok(())
    }

    fn deliver(&mut self, rail: usize, node: usize, frame: &Frame) -> Result<(), Wrong> {
        let Some(truth) = self.frames.get(frame.number) else {
            return Err(("switch-delivery", format!("node {node} gets what a switch says to another")));
        };
        let (raw, _) = RawHeader::ref_from_prefix(&frame.bytes).expect("it is as long as it was");
        let own = prefix(self.rails[rail].id, domain(truth.sender));
        if raw.source.get() != own {
            return Err((
                "switch-source",
                format!("node {node} gets {truth:?} as if from {:#x}", raw.source),
            ));
        }
        if truth.is_for_all {
            let count = self.got.entry((frame.number, node)).or_default();
            *count += 1;
            if *count > 1 || node == truth.sender {
                return Err(("switch-delivery", format!("node {node} gets {truth:?} {count} times")));
            }
        } else if truth.to != Some(node) {
            return Err(("switch-delivery", format!("node {node} gets {truth:?}")));
        }
        self.seen.delivered += 1;
        let now = self.now;
        for (pair, heard) in self.pairs.iter().zip(&mut self.heard) {
            for direction in 0..2 {
                if (pair[direction], Some(pair[1 - direction])) == (truth.sender, truth.to) && !truth.is_lie {
                    heard[direction][rail] = now;
                }
            }
        }
        Ok(())
    }

    fn say_hello(&mut self) {
        let now = self.now;
        for rail in 0..2 {
            let switches = self.rails[rail].switches.iter_mut().enumerate();
            let told: Vec<_> = switches
                .filter_map(|(at, core)| Some((at, core.as_mut()?)))
                .flat_map(|(at, core)| core.hellos(now).map(move |(port, hello)| (at, port, hello)))
                .collect();
            for (switch, port, hello) in told {
                let cable = self.rails[rail].shape.at[switch][port.index()];
                let frame = Frame { bytes: hello.to_vec(), number: HELLO_NUMBER, passed: 0 };
                self.carry(rail, cable, End::Port(switch, port.index()), frame);
            }
        }
    }

    fn say(&mut self, pair: usize) {
        let [one, other] = self.pairs[pair];
        for (sender, to) in [(one, other), (other, one)] {
            for rail in 0..2 {
                let truth = Truth { sender, to: Some(to), is_lie: false, is_for_all: false };
                self.emit(rail, (domain(sender), domain(to)), Group::DEFAULT.0, 3, truth);
            }
        }
    }

    /// Somebody says what is not so, or too much.
    fn lie(&mut self) {
        let [sender, other] = [0, 1].map(|_| self.random.below(self.nodes as u64) as usize);
        let rail = self.random.below(2) as usize;
        let honest = domain(sender);
        let truth = |to, is_for_all| Truth { sender, to, is_lie: true, is_for_all };
        self.seen.lies += 1;
        match self.random.below(5) {
            // In the name of another.
            0 if other != sender => {
                let to = self.pairs[0][0];
                self.emit(rail, (domain(other), domain(to)), Group::DEFAULT.0, 3, truth(Some(to), false));
            }
            // To a domain that nobody has.
            1 => self.emit(rail, (honest, domain(self.nodes + 7)), Group::DEFAULT.0, 3, truth(None, false)),
            // To itself, which lies where it came from.
            2 => self.emit(rail, (honest, honest), Group::DEFAULT.0, 3, truth(None, false)),
            // Of a group that there is not.
            3 => self.emit(rail, (honest, domain(other)), 0, 3, truth(None, false)),
            // To all, which is no lie, and in the name of another.
            _ if other != sender && self.random.chance(300) => {
                self.emit(rail, (domain(other), 0), Group::DEFAULT.0, INFORMATION, truth(None, true));
            }
            _ => self.emit(rail, (honest, 0), Group::DEFAULT.0, INFORMATION, truth(None, true)),
        }
    }

    fn fault(&mut self) {
        let at = self.random.below(2) as usize;
        if self.now > Instant::ZERO + CALM {
            return self.rails.iter_mut().for_each(|rail| {
                rail.wires.iter_mut().for_each(|wire| *wire = Wire { delay_us: 20, ..Wire::default() });
                let dead = rail.switches.iter_mut().zip(&rail.shape.tables).filter(|(it, _)| it.is_none());
                dead.for_each(|(it, table)| *it = Some(Switch::under(self.options.rules, table.clone())));
            });
        }
        if u128::from(self.now.as_nanos()) % BURST.1.as_nanos() > BURST.0.as_nanos() {
            return;
        }
        self.seen.faults += 1;
        let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
        let (random, rail) = (&mut self.random, &mut self.rails[at]);
        // Most of what fails is between two who hear each other, or nobody would notice.
        let pair = self.pairs[pick(random, self.pairs.len())];
        let near = rail.shape.ancestors(pair[pick(random, 2)]);
        let switch = if random.chance(800) {
            near[pick(random, near.len())]
        } else {
            pick(random, rail.switches.len())
        };
        let cables = &rail.shape.at[switch];
        let uplinks = &rail.shape.uplinks[switch];
        let cable = match uplinks.len() {
            1.. if random.chance(600) => uplinks[pick(random, uplinks.len())],
            _ => cables[pick(random, cables.len())],
        };
        let wire = &mut rail.wires[cable];
        match random.below(10) {
            0..2 => wire.is_cut = [true; 2],
            2..4 => wire.is_cut[pick(random, 2)] = true,
            4 => wire.lost_per_mille = 1 + random.below(400),
            5 => wire.delay_us = 20 + random.below(20_000),
            6 => {
                rail.switches[switch] = None;
                rail.lives[switch] += 1;
            }
            7 if rail.switches[switch].is_none() => {
                let table = rail.shape.tables[switch].clone();
                rail.switches[switch] = Some(Switch::under(self.options.rules, table));
            }
            _ => *wire = Wire { delay_us: 20, ..Wire::default() },
        }
    }

    /// How long frames take between two nodes on a rail where they can go either way, as far as that is certain.
    fn way(&self, rail: usize, [one, other]: [usize; 2]) -> Option<Duration> {
        let rail = &self.rails[rail];
        let (up, down) = (rail.shape.ancestors(one), rail.shape.ancestors(other));
        let top = up.iter().find(|switch| down.contains(switch)).copied()?;
        let runs = |switch: usize| rail.switches[switch].is_some();
        let below = up.iter().take_while(|it| **it != top).chain(down.iter().take_while(|it| **it != top));
        let leaves = [one, other].map(|node| vec![rail.wires[rail.shape.leaves[node]]]);
        let mut cables = leaves.to_vec();
        for switch in below.copied() {
            cables.push(rail.shape.uplinks[switch].iter().map(|it| rail.wires[*it]).collect());
            runs(switch).then_some(())?;
        }
        let used = |wires: &Vec<Wire>| match wires[..] {
            [first, ..] if first.is_well() => Some(first.delay_us),
            [first, second] if first.is_known() && second.is_well() => Some(second.delay_us),
            // Each of the two carries frames one way.
            [first, second] if [first, second].iter().all(|it| it.is_known()) => {
                let carries = |way: usize| !first.is_cut[way] || !second.is_cut[way];
                (carries(0) && carries(1)).then(|| first.delay_us.max(second.delay_us))
            }
            _ => None,
        };
        let delays: Option<Vec<u64>> = cables.iter().map(used).collect();
        delays.filter(|_| runs(top)).map(|delays| Duration::from_micros(delays.iter().sum()))
    }

    /// What is between two nodes on a rail now.
    fn between(&self, rail: usize, pair: [usize; 2]) -> Between {
        let rail = &self.rails[rail];
        let passed: Vec<usize> = pair.iter().flat_map(|node| rail.shape.ancestors(*node)).collect();
        let leaves = pair.iter().map(|node| rail.shape.leaves[*node]);
        let cables =
            leaves.chain(passed.iter().flat_map(|switch| rail.shape.uplinks[*switch].iter().copied()));
        let life = |switch: &usize| rail.switches[*switch].is_some().then_some(rail.lives[*switch]);
        Between {
            wires: cables.map(|cable| rail.wires[cable]).collect(),
            lives: passed.iter().map(life).collect(),
        }
    }

    /// Notes what has changed between pairs.
    fn note_ways(&mut self) {
        for pair in 0..self.pairs.len() {
            for rail in 0..2 {
                let between = self.between(rail, self.pairs[pair]);
                if self.between[pair][rail].1 != between {
                    self.between[pair][rail] = (self.now, between);
                }
            }
        }
    }

    /// Between those who can hear each other, and between whom nothing has changed for a while, frames arrive.
    fn look(&mut self) -> Result<(), Wrong> {
        let now = self.now;
        for (pair, nodes) in self.pairs.iter().enumerate() {
            for rail in 0..2 {
                let since = self.between[pair][rail].0;
                let Some(way) = self.way(rail, *nodes).filter(|_| now.since(since) > SETTLED) else {
                    continue;
                };
                for direction in 0..2 {
                    self.seen.looks += 1;
                    let heard = self.heard[pair][direction][rail];
                    if now.since(heard) > PATIENCE + way {
                        let what = format!(
                            "{nodes:?}, direction {direction}, rail {rail}: well since {since:?}, heard at \
                             {heard:?}, now {now:?}"
                        );
                        return Err(("switch-path", what));
                    }
                }
            }
        }
        Ok(())
    }

    /// Switches whose files make a circle, and a frame in it.
    fn ring(&mut self) -> Result<(), Wrong> {
        let mut switches: Vec<Switch> =
            ring(RailId::ALL[0]).into_iter().map(|it| Switch::under(self.options.rules, it)).collect();
        let mut bytes = vec![0; OVERHEAD];
        bytes[0] = VERSION;
        bytes[ROUTE] = Route::START.byte();
        bytes[8..12].copy_from_slice(&prefix(RailId::ALL[0], domain(1)).to_le_bytes());
        bytes[12..16].copy_from_slice(&prefix(RailId::ALL[0], domain(0)).to_le_bytes());
        bytes[16..18].copy_from_slice(&Group::DEFAULT.0.to_le_bytes());
        let mut frame = Frame { bytes, number: 0, passed: 0 };
        let mut at = 0;
        while !forward(&mut switches[at], self.now, 0, &mut frame)?.is_empty() {
            at = (at + 1) % switches.len();
        }
        if frame.passed < 3 && self.options.rules.has(Rule::CheckSources) {
            return Err(("switch-hops", "the circle is none: nothing is shown".to_owned()));
        }
        Ok(())
    }
}

/// What a switch makes of a frame: the ports where it leaves.
fn forward(core: &mut Switch, now: Instant, port: usize, frame: &mut Frame) -> Result<Vec<PortId>, Wrong> {
    let port = PortId::new(port).expect("a switch has fewer ports");
    let count = |core: &Switch| {
        let counters = core.counters(port);
        (counters.received, counters.dropped.iter().sum::<u64>())
    };
    let before = count(core);
    let decision = core.forward(now, port, &mut frame.bytes);
    let after = count(core);
    let is_dropped = matches!(decision, Decision::Drop(_));
    let ways: Vec<PortId> = match decision {
        Decision::Drop(_) | Decision::Take => Vec::new(),
        Decision::Forward(way) => vec![way],
        Decision::Copy(ways) => ways.iter().collect(),
    };
    if after != (before.0 + 1, before.1 + u64::from(is_dropped)) || ways.contains(&port) {
        return Err((
            "switch-counts",
            format!("{decision:?} at {port:?}: {before:?} before, {after:?} after"),
        ));
    }
    frame.passed += u32::from(!ways.is_empty());
    if frame.passed > PASSED_MAX {
        return Err(("switch-hops", format!("{frame:?} goes on and on")));
    }
    Ok(ways)
}
