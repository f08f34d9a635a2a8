//! The world: two nodes, a network, disks and clients, and the loop that moves time. Its parts decide from their own
//! state and what they are shown; here it is carried out, since a card that does anything may die of it.

use std::rc::Rc;

use base::Random;
use base::ledger::Arena;
use base::times::HOLD;

use node::agent::Effect;

use crate::checkers::names;
use crate::clock::Clock;
use crate::contest::Contest;
use crate::death::{End, Switch, survive};
use crate::edge::Clients;
use crate::faults::Faults;
use crate::guest::{Guest, Memories};
use crate::identity::Identity;
use crate::loans::Loan;
use crate::media::Media;
use crate::neighbours::Neighbours;
use crate::network::{Frame, Network};
use crate::nodes::Node;
use crate::replaced::Replaced;
use crate::report::Report;
use crate::setting::Setting;
use crate::shared::Shared;
use crate::siege::Siege;
use crate::slot::{SharedMemories, SlotSocket};
use crate::spoof::Spoofer;
use crate::terms::Terms;
use crate::volatile::Volatile;
use crate::watch::Watch;
use crate::{Failure, Options, Summary};

/// The node that lends.
pub(crate) const LENDER: usize = 0;
/// The node that borrows.
pub(crate) const BORROWER: usize = 1;
/// In some worlds, the node that wants what the borrower has.
pub(crate) const RIVAL: usize = 2;
/// Nodes at most.
pub(crate) const NODES: usize = 3;

/// Virtual nanoseconds after the end of all faults in which everything has to end.
const PATIENCE: u64 = 60_000_000_000;
/// Events of one run, against runs that never end.
const MOST_EVENTS: u64 = 20_000_000;

/// What happens.
pub(crate) enum Event {
    /// A node has something to do.
    Wake(usize),
    Arrival(Frame),
    /// The disk of a loan has ended a request of the ring.
    Ring(usize, u64),
    /// The mark of an executed piece of work is made late: only without [`Rule::MarkEffects`].
    Mark(usize),
    /// The agent of a node has something to do.
    Agent(usize),
    /// What the agent of this life of a node has asked for is done: a card begins, or disks have had their time.
    Performed(usize, u64, Effect),
    /// The next fault.
    Fault,
    /// A rail comes back.
    Mend(u64),
    /// A client thinks of something.
    Think(usize),
    /// A guest of a virtual machine does.
    ThinkGuest(usize),
    /// Its driver looks at its clock.
    GuestTick(usize),
    /// The agents agree on memory.
    Agree,
    /// A node looks into it.
    Memory(usize),
    /// It has what is to be kept of a drive.
    Kept(usize),
    /// The kernel writes back, or drops, some of what the cache of a drive has.
    Medium(usize),
    /// The lender's agent looks at its images.
    Look,
    /// An operator clears a drive.
    Clear(usize),
    /// A drive is unplugged from its guest.
    Unplug(usize),
    /// The lender is switched off and on.
    Off,
    /// The borrowers' next move.
    Contest,
    /// The program of a node ends, if that life of it still runs.
    Gone(usize, u64),
    /// It is started again.
    Return(usize),
    /// A node that nobody could reach can be reached again.
    Join(usize),
    /// Somebody repeats first messages of a life that is over.
    OldMessages,
}

/// Everything, by part.
pub(crate) struct World<'w> {
    pub(crate) arena: &'w Arena,
    pub(crate) terms: Terms,
    pub(crate) random: Random,
    pub(crate) clock: Clock<Event>,
    pub(crate) report: Report,
    /// Two, or with a rival three.
    pub(crate) nodes: Vec<Node<'w>>,
    pub(crate) loans: Vec<Loan<'w>>,
    /// In some worlds they have one namespace together.
    pub(crate) shared: Option<Shared>,
    /// In some worlds media fail.
    pub(crate) media: Option<Media<'w>>,
    /// In some worlds somebody replaces images.
    pub(crate) replaced: Option<Replaced>,
    /// In some worlds guests have drives with a volatile cache.
    pub(crate) volatile: Option<Volatile>,
    pub(crate) clients: Clients,
    /// In some worlds the borrower's edges are slots: by loan, in place of all clients.
    pub(crate) guests: Vec<Guest>,
    pub(crate) slots: Vec<SlotSocket>,
    pub(crate) memories: SharedMemories<'w>,
    pub(crate) network: Network,
    /// In some worlds the nodes are on one machine.
    pub(crate) neighbours: Option<Neighbours>,
    pub(crate) faults: Faults,
    pub(crate) watch: Watch,
    /// In some worlds old first messages keep the borrower out.
    pub(crate) siege: Siege,
    /// In some worlds there is a rival.
    pub(crate) contest: Option<Contest>,
    /// In some, state folders are restored and copied.
    pub(crate) identity: Option<Identity>,
    /// In some, somebody repeats frames faster than the network.
    pub(crate) spoofer: Option<Spoofer>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) seed: u64,
}

/// Runs the world of `seed`.
pub(crate) fn run(seed: u64, options: &Options) -> Result<Summary, Failure> {
    let arena = Arena::default();
    let switches: [Switch<'_>; NODES] = core::array::from_fn(|_| Switch::default());
    let mut world = World::new(seed, options, &arena, switches.each_ref());
    let outcome = survive(|| world.live());
    if let Err(End::Panicked(what)) = outcome {
        world.report.fail(names::ASSERTION, format!("outside of a card: {what}"));
    }
    let summary = world.summary();
    match world.report.take_failure() {
        Some((checker, what)) => {
            let what = format!("at {:.6} s: {what}", world.clock.now as f64 / 1e9);
            Err(Failure { seed, checker, what, summary })
        }
        None => Ok(summary),
    }
}

impl<'w> World<'w> {
    fn new(seed: u64, options: &Options, arena: &'w Arena, switches: [&'w Switch<'w>; NODES]) -> Self {
        let mut random = Random::new(seed);
        let setting = Setting::of(seed, options.rules, &mut random);
        let (nodes, loans) = (setting.nodes(), setting.loans.len());
        let clients = setting.clients(options.requests, &mut random);
        let guests = setting.guests(options.requests, &mut random);
        let clock = Clock::new(1_000_000);
        let when = (setting.terms.rules, clock.instant());
        let node = |node: usize| Node::new(node, arena, switches[node], (setting.kind(node), loans), when);
        let rails = setting.terms.rails[1].count_ones() as usize;
        Self {
            arena,
            clock,
            report: Report::new(options.trace),
            nodes: (0..nodes).map(node).collect(),
            clients: Clients::new(clients, nodes, loans),
            slots: guests.iter().map(|_| SlotSocket::default()).collect(),
            memories: setting.terms.has_guests.then(|| Rc::new(Memories::new(loans, switches[BORROWER]))),
            guests,
            network: Network::new(random.fork(), nodes),
            faults: setting.faults(random.fork()),
            watch: Watch::new(nodes, loans, rails),
            siege: Siege::default(),
            spoofer: Spoofer::of(seed),
            terms: setting.terms,
            loans: setting.loans,
            shared: setting.shared,
            media: setting.media,
            replaced: setting.replaced,
            volatile: setting.volatile,
            neighbours: setting.neighbours,
            contest: setting.contest,
            identity: setting.identity,
            buffer: vec![0; link::frame::MAX_FRAME],
            seed,
            random,
        }
    }

    fn live(&mut self) {
        for node in 0..self.nodes.len() {
            let memory = self.nodes[node].memory;
            self.nodes[node].switch.set_memory(memory);
            let after = self.random.below(3_000_000);
            self.schedule_agent(node, self.clock.now + after);
        }
        for client in 0..self.clients.len() {
            let after = self.random.below(2_000_000);
            self.clock.after(after, Event::Think(client));
        }
        for guest in 0..self.guests.len() {
            self.clock.after(2_000_000, Event::ThinkGuest(guest));
            self.clock.after(1_000_000_000, Event::GuestTick(guest));
        }
        self.clock.after(5_000_000, Event::Fault);
        for drive in 0..self.media.as_ref().map_or(0, Media::drives) {
            self.clock.after(1_000_000, Event::Medium(drive));
        }
        self.begin_identity();
        // Dice of its own: the other worlds stay what they are.
        let is_plain = self.contest.is_none() && self.spoofer.is_none();
        if is_plain && Random::new(!self.seed).chance(200) {
            self.begin_siege();
        }
        self.begin_contest();
        while !self.report.has_failed() && !self.is_over() {
            let Some(event) = self.clock.next() else {
                return self.report.fail(names::QUIET, "nothing happens any more".into());
            };
            let (watch, mut scene) = self.scene();
            watch.check_silence(&mut scene);
            if !self.report.has_failed() {
                self.happen(event);
            }
        }
        if !self.report.has_failed() {
            self.finish();
        }
    }

    fn is_over(&mut self) -> bool {
        if self.report.log.events() > MOST_EVENTS {
            self.report.fail(names::QUIET, format!("{MOST_EVENTS} events and no end"));
        }
        let Some(since) = self.faults.over_since else { return self.report.has_failed() };
        let hold = self.contest.as_ref().map_or(0, |_| HOLD.as_nanos() as u64);
        let is_quiet = self.is_quiet();
        if !is_quiet && self.clock.now > since + PATIENCE + hold {
            self.report.fail(names::QUIET, self.unrest());
        }
        is_quiet || self.report.has_failed()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(node) => {
                if self.nodes[node].wake.rings(self.clock.now) {
                    self.run_node(node);
                }
            }
            Event::Arrival(frame) => self.arrive(frame),
            Event::Ring(loan, request) => self.ring_done(loan, request),
            Event::Mark(loan) => self.mark_late(loan),
            Event::Agent(node) => self.run_agent(node),
            Event::Performed(node, life, effect) => self.performed(node, life, &effect),
            Event::Fault => self.fault(),
            Event::Mend(rails) => self.mend(rails),
            Event::Think(client) => self.think(client),
            Event::ThinkGuest(loan) => self.think_guest(loan),
            Event::GuestTick(loan) => self.guest_ticks(loan),
            Event::Agree => self.agree(),
            Event::Memory(node) => self.read_memory(node),
            Event::Kept(drive) => self.record_is_durable(drive),
            Event::Medium(drive) => self.turn_medium(drive),
            Event::Clear(drive) => self.clear_medium(drive),
            Event::Unplug(loan) => self.unplug(loan),
            Event::Off => self.switch_off(),
            Event::Look => self.look_at_lent_images(),
            Event::Contest => self.next_move(),
            Event::Gone(node, life) => self.end_program(node, life),
            Event::Return(node) => self.start_program(node),
            Event::Join(node) => self.network.islands[node] = false,
            Event::OldMessages => self.repeat_old(),
        }
    }

    /// Wakes a node at `at`, and a little later than now in any case.
    pub(crate) fn wake_at(&mut self, node: usize, at: u64) {
        let at = at.max(self.clock.now + 1_000);
        if self.nodes[node].wake.set(at) {
            self.clock.at(at, Event::Wake(node));
        }
    }

    /// Faults are over.
    pub(crate) fn calm(&mut self) {
        self.report.log.event(self.clock.now, None, "calm", 0, 0);
        self.faults.over_since = Some(self.clock.now);
        self.network.calm();
        self.nodes.iter().for_each(|node| node.switch.disarm());
        self.guests.iter_mut().for_each(Guest::calm);
    }

    fn summary(&self) -> Summary {
        Summary {
            seed: self.seed,
            digest: self.report.log.digest(),
            events: self.report.log.events(),
            virtual_ns: self.clock.now,
            requests: self.clients.all().map(|(_, client)| u64::from(client.ended)).sum::<u64>()
                + self.guests.iter().map(|guest| u64::from(guest.ended)).sum::<u64>(),
            bytes: self.loans.iter().map(|loan| loan.shared.bytes).sum(),
            kills: self.report.kills,
            marks: self.report.marks,
        }
    }
}
