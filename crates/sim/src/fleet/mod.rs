//! Many nodes, each of which lends to some and borrows from others, and what they lend comes and goes.
//!
//! Two to sixteen nodes lend a few functions each. Whoever has a vacant place borrows one that is free, uses it for a
//! while and gives it back; another node has it then, while everything else between the same nodes goes on. Drives come
//! to nodes that run, and leave them. Cards die
//! between any two stores, nodes reboot, disks take their time, the network loses, delays and repeats, and parts of it
//! cannot be reached for a while. In some fleets rails of nodes come and go. In the end all faults end, and every
//! function that is borrowed is served.
//!
//! What is judged: each block is read as it was written last, by whomever; nothing that an earlier borrower has asked
//! for takes effect once a later one has written; nobody is told of a user that there was not; coming and going leaves
//! the streams of others alone; and everything ends ([`crate::checkers::names`]).

mod agents;
mod cards;
mod client;
mod crowd;
mod function;
mod lending;
mod managed;
mod member;
mod network;
mod programs;

use base::ledger::Arena;
use base::{Instant, Random};
use node::agent::Effect;

use self::client::Claim;
use self::function::Function;
use self::lending::Lending;
use self::member::Member;
use self::network::{Arrival, Network};
use crate::checkers::names;
use crate::client::Finding;
use crate::clock::Clock;
use crate::death::{End, Switch, survive};
use crate::rails;
use crate::{Failure, Options, Summary};

/// Nodes at most.
const NODES: usize = 16;
/// Functions that a node lends at most, and places it has for those it borrows.
const LENT: u64 = 3;
const PLACES: u64 = 4;
/// Virtual nanoseconds after the end of all faults in which everything has to end.
const PATIENCE: u64 = 30_000_000_000;
/// Events of one run, against runs that never end.
const MOST_EVENTS: u64 = 20_000_000;
/// Between two looks of a node's programs at what they have asked for.
const THINK: u64 = 400_000;

/// What a run has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fleet {
    /// How many nodes there were, and functions.
    pub nodes: usize,
    /// See [`Fleet::nodes`].
    pub functions: usize,
    /// Events, and a digest of them: equal for equal runs.
    pub events: u64,
    /// See [`Fleet::events`].
    pub digest: u64,
    /// Blocks that were read and compared.
    pub verified: u64,
    /// Cards killed.
    pub kills: u64,
    /// Nodes that have lost their ledger.
    pub reboots: u64,
    /// Functions that came to a node while its card ran, and that were given back.
    pub attached: u64,
    /// Functions that were given back without their lenders.
    pub abandoned: u64,
    /// See [`Fleet::attached`].
    pub detached: u64,
    /// Drives that came to a node while its card ran, that left it, and of these those that somebody had.
    pub lent: u64,
    /// See [`Fleet::lent`].
    pub withdrawn: u64,
    /// See [`Fleet::lent`].
    pub taken_away: u64,
    /// Functions that were used by a node after another one had given them back.
    pub passed_on: u64,
    /// Times that a node got other rails while it ran.
    pub rails: u64,
    /// Of a managed fleet: entries that lenders were told, functions that were taken by force, that came to be
    /// nobody's, that were promised to the next one too early, and nodes that asked for what was not theirs.
    pub entries: u64,
    /// See [`Fleet::entries`].
    pub forced: u64,
    /// See [`Fleet::entries`].
    pub freed: u64,
    /// See [`Fleet::entries`].
    pub promised: u64,
    /// See [`Fleet::entries`].
    pub intruders: u64,
    /// Of a crowd: functions whose program or medium stood still.
    pub stuck: u64,
    /// Of a crowd: functions of the others that were read from and compared meanwhile.
    pub going: u64,
}

/// Runs the fleet of `seed`.
///
/// # Errors
/// What was wrong first.
pub fn run_fleet(seed: u64, options: &Options) -> Result<Fleet, Failure> {
    let mut random = Random::new(seed ^ 0xf1ee_7000);
    let shape = Shape::of_fleet(&mut random);
    run_shape(seed, options, random, shape)
}

/// Runs the fleet of `seed` with functions that are given and taken by tables of their lenders.
///
/// # Errors
/// What was wrong first.
pub fn run_managed(seed: u64, options: &Options) -> Result<Fleet, Failure> {
    let mut random = Random::new(seed ^ 0x3a9a_6ed0);
    let mut shape = Shape::of_fleet(&mut random);
    (shape.is_managed, shape.plan.lending) = (true, 0);
    run_shape(seed, options, random, shape)
}

/// Runs a crowd: two or three nodes with 256 loans between them, half of which are given back, end in the middle of
/// everything or stand still while cards die and frames get lost. The others go on.
///
/// # Errors
/// What was wrong first.
pub fn run_crowd(seed: u64, options: &Options) -> Result<Fleet, Failure> {
    let mut random = Random::new(seed ^ 0xc20_3d00);
    let shape = Shape::of_crowd(&mut random);
    run_shape(seed, options, random, shape)
}

fn run_shape(seed: u64, options: &Options, random: Random, shape: Shape) -> Result<Fleet, Failure> {
    let arena = Arena::default();
    let switches: [Switch<'_>; NODES] = core::array::from_fn(|_| Switch::default());
    let mut world = World::new((seed, random), shape, options, &arena, &switches);
    if let Err(End::Panicked(what)) = survive(|| world.live()) {
        world.fail(names::ASSERTION, format!("outside of a card: {what}"));
    }
    match world.failure.take() {
        Some((checker, what)) => Err(Failure { seed, checker, what, summary: Summary::of_seed(seed) }),
        None => Ok(world.fleet),
    }
}

/// What happens.
enum Event {
    /// The card of a node has something to do.
    Card(usize),
    /// Its agent has.
    Agent(usize),
    /// What the agent of this life of a node has asked for is done.
    Performed(usize, u64, Box<Effect>),
    Arrival(Arrival),
    /// The disk has ended this request of a node.
    Disk(usize, u64),
    /// The programs of a node look at their drives.
    Think(usize),
    /// The lender of a function hears of an entry.
    Enter(usize, node::Entry),
    /// The next fault, and the next change of who has what.
    Fault,
    Move,
    /// What could not be reached can be again.
    Mend,
    /// Rails of a node come or go.
    Rails,
}

/// How the world is run.
#[derive(Clone, Copy)]
struct Plan {
    /// Nanoseconds before the first fault.
    peace: u64,
    /// Mean nanoseconds between two faults, and between two moves.
    fault: u64,
    moves: u64,
    /// Of a thousand moves, beside how many a drive comes to a node or leaves it.
    lending: u64,
    /// When both end.
    end: u64,
    /// How long something cannot be reached at most.
    cut: u64,
    reboots: bool,
    /// Between two looks of a node's programs at what they have asked for.
    think: u64,
}

/// What a world is made of.
struct Shape {
    /// By node: how many functions it lends, and has places for.
    nodes: Vec<(usize, usize)>,
    plan: Plan,
    is_crowd: bool,
    is_managed: bool,
}

/// When a world begins.
const START: u64 = 1_000_000;

impl Shape {
    fn of_fleet(random: &mut Random) -> Self {
        let is_large = random.chance(150);
        let count = if is_large { random.range(7, NODES as u64) } else { random.range(2, 6) };
        let mut node = || (random.range(1, LENT) as usize, random.range(1, PLACES) as usize);
        let nodes = (0..count).map(|_| node()).collect();
        let plan = Plan {
            peace: 5_000_000,
            fault: [2_000_000, 6_000_000, 25_000_000][random.index(3)],
            moves: [3_000_000, 15_000_000, 60_000_000][random.index(3)],
            end: START + random.range(200_000_000, 900_000_000),
            cut: 400_000_000,
            lending: [0, 100, 500][random.index(3)],
            reboots: random.chance(500),
            think: THINK,
        };
        Self { nodes, plan, is_crowd: false, is_managed: false }
    }
}

struct World<'w> {
    arena: &'w Arena,
    seed: u64,
    random: Random,
    /// Dice of its own: the other worlds stay what they are.
    rail_dice: Random,
    clock: Clock<Event>,
    members: Vec<Member<'w>>,
    functions: Vec<Function<'w>>,
    /// By request: which claim has sent it.
    authors: Vec<u64>,
    /// Claims that there have been.
    claims: u64,
    network: Network,
    plan: Plan,
    is_crowd: bool,
    is_managed: bool,
    is_calm: bool,
    failure: Option<Finding>,
    fleet: Fleet,
    trace: bool,
    buffer: Vec<u8>,
}

impl<'w> World<'w> {
    fn new(
        (seed, mut random): (u64, Random),
        shape: Shape,
        options: &Options,
        arena: &'w Arena,
        switches: &'w [Switch<'w>; NODES],
    ) -> Self {
        let mut functions = Vec::new();
        let mut members: Vec<Member<'w>> = Vec::new();
        for (index, (switch, (lends, places))) in switches.iter().zip(shape.nodes).enumerate() {
            let lent = functions.len()..functions.len() + lends;
            functions.extend((0..lends).map(|place| Function::new((index, place), shape.is_managed)));
            let when = (options.rules, Instant::from_nanos(START), seed);
            members.push(Member::new(index, arena, switch, (lent, places), when));
        }
        let fleet = Fleet { nodes: members.len(), functions: functions.len(), ..Fleet::default() };
        Self {
            arena,
            seed,
            rail_dice: Random::new(!seed),
            clock: Clock::new(START),
            functions,
            authors: vec![0],
            claims: 0,
            network: Network::new(random.fork(), members.len()),
            members,
            plan: shape.plan,
            is_crowd: shape.is_crowd,
            is_managed: shape.is_managed,
            is_calm: false,
            failure: None,
            fleet,
            trace: options.trace,
            buffer: vec![0; link::frame::MAX_FRAME],
            random,
        }
    }

    fn live(&mut self) {
        for node in 0..self.members.len() {
            let after = self.random.below(3_000_000);
            self.clock.after(after, Event::Agent(node));
            self.clock.after(after, Event::Think(node));
        }
        // Some are borrowed from the start, as a configuration says; the others come later.
        if self.is_crowd {
            self.gather();
        } else {
            (0..self.functions.len()).for_each(|_| self.attach());
        }
        self.clock.after(self.plan.peace, Event::Fault);
        self.clock.after(self.plan.peace + 3_000_000, Event::Move);
        if rails::are_unlike(self.seed) && !self.is_crowd {
            self.clock.after(self.plan.peace + 1_000_000, Event::Rails);
        }
        while self.failure.is_none() && !self.is_over() {
            let Some(event) = self.clock.next() else {
                return self.fail(names::QUIET, "nothing happens any more".into());
            };
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        let (code, node) = event.name();
        self.note(code, node);
        match event {
            Event::Card(node) => self.run_card(node),
            Event::Agent(node) => self.run_agent(node),
            Event::Performed(node, life, effect) => self.performed(node, life, &effect),
            Event::Arrival(arrival) => self.arrive(arrival),
            Event::Disk(node, request) => self.disk_done(node, request),
            Event::Think(node) => self.think(node),
            Event::Enter(function, entry) => self.enter(function, entry),
            Event::Fault => self.fault(),
            Event::Move => self.make_move(),
            Event::Mend => self.network.mend(),
            Event::Rails => self.change_rails(),
        }
    }

    fn is_over(&mut self) -> bool {
        if self.fleet.events > MOST_EVENTS {
            self.fail(names::QUIET, format!("{MOST_EVENTS} events and no end"));
        }
        if !self.is_calm {
            return false;
        }
        if self.is_managed {
            self.clear_up();
        }
        let unrest = self.unrest();
        if unrest.is_some() && self.clock.now > self.plan.end + PATIENCE {
            self.fail(names::QUIET, unrest.clone().unwrap_or_default());
        }
        unrest.is_none()
    }

    /// What has not ended as it should.
    fn unrest(&self) -> Option<String> {
        let found = self.members.iter().enumerate().find_map(|(index, node)| {
            node.unrest(&self.functions).map(|what| format!("node {index}: {what}"))
        });
        found.or_else(|| self.unsettled()).or_else(|| self.owed())
    }

    fn fail(&mut self, checker: &'static str, what: String) {
        self.failure.get_or_insert((checker, what));
    }

    fn note(&mut self, what: &str, node: usize) {
        self.fleet.events += 1;
        for word in [self.clock.now, what.len() as u64, node as u64] {
            self.fleet.digest =
                (self.fleet.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        if self.trace {
            eprintln!("{:>12.3} {node:>2} {what}", self.clock.now as f64 / 1000.0);
        }
    }

    fn fault(&mut self) {
        if self.clock.now >= self.plan.end {
            self.is_calm = true;
            self.network.calm();
            self.members.iter().for_each(|member| member.node.switch.disarm());
            self.go_on();
            self.lend_all();
            self.note("calm", 0);
            return;
        }
        let node = self.random.index(self.members.len());
        match self.random.below(100) {
            0..30 => self.kill(node),
            30..50 => {
                let stores = self.random.below(2_000);
                self.members[node].node.switch.arm_store(stores);
            }
            50..60 => {
                let effects = self.random.below(20);
                self.members[node].node.switch.arm_effect(effects);
            }
            60..70 => self.network.change(),
            70..82 => {
                self.network.cut();
                let after = self.random.range(1_000_000, self.plan.cut);
                self.clock.after(after, Event::Mend);
            }
            82..90 => self.members[node].disk_is_slow = !self.members[node].disk_is_slow,
            _ if self.plan.reboots => self.reboot(node),
            _ => self.kill(node),
        }
        let after = self.random.range(self.plan.fault / 4, self.plan.fault * 2);
        self.clock.after(after, Event::Fault);
    }

    /// Somebody gives something back, or borrows something.
    fn make_move(&mut self) {
        if self.is_calm {
            return;
        }
        if self.random.chance(self.plan.lending) {
            self.change_lending();
        }
        if self.is_managed {
            self.manage();
        } else if self.is_crowd {
            self.trouble();
        } else if self.random.chance(500) {
            self.detach();
        } else {
            self.attach();
        }
        let after = self.random.range(self.plan.moves / 4, self.plan.moves * 2);
        self.clock.after(after, Event::Move);
    }

    /// A node has other rails than before; one of those that its lines name stays, so that it is found.
    fn change_rails(&mut self) {
        if self.is_calm {
            return;
        }
        let (node, set) = (self.rail_dice.index(self.members.len()), self.rail_dice.range(1, 15) as u8);
        if set & rails::of_member(self.seed, node) != 0 {
            self.fleet.rails += 1;
            self.set_rails(node, set);
        }
        let after = self.rail_dice.range(self.plan.moves / 4, self.plan.moves);
        self.clock.after(after, Event::Rails);
    }

    /// A function that nobody has comes to a node with a vacant place; now and then one that is not lent just then.
    fn attach(&mut self) {
        let any = self.random.chance(200);
        let is_free = |function: &usize| {
            let function = &self.functions[*function];
            let is_given = function.decided.is_some_and(|entry| entry.holder != node::Holder::Nobody);
            function.claim.is_none() && !is_given && (any || function.lending == Lending::Here)
        };
        let free: Vec<usize> = (0..self.functions.len()).filter(is_free).collect();
        let node = self.random.index(self.members.len());
        let places = self.members[node].vacant_places();
        if free.is_empty() || places.is_empty() {
            return;
        }
        let function = free[self.random.index(free.len())];
        let place = places[self.random.index(places.len())];
        let is_kept = self.functions[function].kept_for.is_some_and(|other| other != node);
        if self.functions[function].lender == node || is_kept || self.members[node].asks_for(function) {
            return;
        }
        self.fleet.passed_on +=
            u64::from(self.functions[function].last_user.is_some_and(|user| user != node));
        if self.is_managed {
            return self.claim_by_entry(function, node, place);
        }
        self.claims += 1;
        let claim = Claim::new(self.claims, function);
        self.functions[function].claim = Some((node, place));
        self.functions[function].last_user = Some(node);
        self.attach_to(node, place, claim);
    }

    /// Somebody has had enough.
    fn detach(&mut self) {
        let node = self.random.index(self.members.len());
        let Some(place) = self.members[node].any_claim(&mut self.random) else { return };
        let at_once = self.random.chance(300);
        self.begin_detach(node, place, at_once);
    }
}

impl Event {
    /// For the trace.
    fn name(&self) -> (&'static str, usize) {
        match self {
            Self::Card(node) => ("card", *node),
            Self::Agent(node) => ("agent", *node),
            Self::Performed(node, ..) => ("performed", *node),
            Self::Arrival(arrival) => ("arrives", arrival.to),
            Self::Disk(node, _) => ("disk", *node),
            Self::Think(node) => ("thinks", *node),
            Self::Enter(function, _) => ("told", *function),
            Self::Fault => ("fault", 0),
            Self::Move => ("move", 0),
            Self::Mend => ("mended", 0),
            Self::Rails => ("rails", 0),
        }
    }
}
