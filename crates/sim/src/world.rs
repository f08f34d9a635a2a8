//! The world: two nodes, a network, disks and clients, and the loop that moves time.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ids::{CardGeneration, DomainId, Group, Incarnation, LoanGeneration, NodeId};
use base::ledger::{Arena, RawMemory};
use base::{Instant, Rule, RuleSet};
use core::time::Duration;
use link::Name;
use node::{BorrowEdge, Card, CardConfig, CardEvent, LoanConfig, LoanRole, NodeCells, Tenancy, Way};

use crate::checkers::disk_model::DiskModel;
use crate::checkers::freshness::Freshness;
use crate::checkers::liveness::Liveness;
use crate::checkers::nonces::Nonces;
use crate::checkers::ordering::Ordering;
use crate::checkers::streams::{StreamId, Streams};
use crate::checkers::{Verdict, names};
use crate::client::{Client, Drive, Finding, Shared};
use crate::death::{End, Switch, survive};
use crate::disk::Disk;
use crate::edge::Socket;
use crate::faults::Faults;
use crate::guest::{Guest, Memories};
use crate::log::Log;
use crate::marks::{Mark, Marks};
use crate::neighbours::Neighbours;
use crate::network::{Fate, Frame, Network, RAILS};
use crate::random::Random;
use crate::slot::{SharedMemories, SlotSocket, has_guests};
use crate::{Failure, Options, Summary};

/// The node that lends.
pub(crate) const LENDER: usize = 0;
/// The node that borrows.
pub(crate) const BORROWER: usize = 1;

/// Virtual nanoseconds after the end of all faults in which everything has to end.
const PATIENCE: u64 = 60_000_000_000;
/// How long a node may be without a card, at most.
pub(crate) const LONGEST_ABSENCE: Duration = Duration::from_millis(300);
/// Told from other seeds.
const IMPATIENT: u64 = 0x1a7e_0000_0000;
/// Mixed into the seed of the dice for a drive that both loans share.
const COMMON_DRIVE: u64 = 0x5a5a;
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
    /// The agent starts a card.
    Start(usize),
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
    /// The agents agree on memory for a loan.
    Agree(usize),
    /// A node looks into the memory of a loan.
    Memory(usize, usize),
}

/// A node: an agent's side of it, and a card while one lives.
pub(crate) struct Node<'w> {
    pub(crate) memory: RawMemory<'w>,
    pub(crate) switch: &'w Switch<'w>,
    pub(crate) card: Option<Card<'w>>,
    pub(crate) incarnation: u64,
    pub(crate) generation: u32,
    /// Cards started.
    pub(crate) cards: u64,
    /// When it is to be woken, if at all.
    wake: Option<u64>,
    /// By loan: what the last card had handed on when it died, with the stream's name.
    pub(crate) torn: Vec<(StreamId, Vec<(u64, u64)>)>,
    pub(crate) freshness: Freshness,
    pub(crate) liveness: Vec<Liveness>,
}

/// How a lent disk is driven.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskMode {
    Inline,
    Ring,
}

/// A loan, as the world sees it.
pub(crate) struct Loan<'w> {
    pub(crate) disk: Disk<'w>,
    pub(crate) mode: DiskMode,
    pub(crate) drive: Drive,
    /// What the lender's agent has made durable.
    pub(crate) tenancy: Tenancy,
    pub(crate) shared: Shared,
    /// By slot of the borrower's edge.
    pub(crate) sockets: Vec<Option<Socket>>,
    /// Whether the borrower's driver was issuing requests when last seen.
    pub(crate) was_ready: bool,
    /// Whether a request of either end had no completion in time, ever.
    pub(crate) timed_out: bool,
    /// Executed and not marked.
    pub(crate) unmarked: Vec<device::MediaId>,
    config: device::nvme::Config,
    /// Where the loan's namespace begins on its drive's medium.
    pub(crate) base: u64,
    insecure: bool,
}

/// Everything.
pub(crate) struct World<'w> {
    pub(crate) arena: &'w Arena,
    pub(crate) rules: RuleSet,
    pub(crate) random: Random,
    pub(crate) log: Log,
    pub(crate) now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pub(crate) nodes: [Node<'w>; 2],
    pub(crate) loans: Vec<Loan<'w>>,
    /// The drive of which each loan lends a virtual function; else each has a drive of its own.
    common: Option<device::nvme::Config>,
    /// Loan and client.
    pub(crate) clients: Vec<(usize, Client)>,
    /// In some worlds the borrower's edges are slots: by loan, in place of all clients.
    pub(crate) guests: Vec<Guest>,
    pub(crate) slots: Vec<SlotSocket>,
    pub(crate) memories: SharedMemories<'w>,
    pub(crate) network: Network,
    /// In some worlds the nodes are on one machine.
    pub(crate) neighbours: Option<Neighbours>,
    pub(crate) faults: Faults,
    pub(crate) marks: Marks,
    pub(crate) streams: Streams,
    pub(crate) ordering: Ordering,
    pub(crate) nonces: Nonces,
    pub(crate) failure: Option<Finding>,
    /// Old first messages of nodes that are gone.
    pub(crate) former: Vec<Frame>,
    /// They are being repeated since the beginning, and the borrower is not served yet.
    pub(crate) siege: bool,
    frame_bytes: usize,
    pub(crate) buffer: Vec<u8>,
    calm_since: Option<u64>,
    pub(crate) kills: u64,
    pub(crate) seed: u64,
}

/// Runs the world of `seed`.
pub(crate) fn run(seed: u64, options: &Options) -> Result<Summary, Failure> {
    let arena = Arena::default();
    let switches = [Switch::default(), Switch::default()];
    let mut world = World::new(seed, options, &arena, [&switches[0], &switches[1]]);
    let outcome = survive(|| world.live());
    if let Err(End::Panicked(what)) = outcome {
        world.fail(names::ASSERTION, format!("outside of a card: {what}"));
    }
    let summary = world.summary();
    match world.failure.take() {
        Some((checker, what)) => Err(Failure { seed, checker, what, summary }),
        None => Ok(summary),
    }
}

impl<'w> World<'w> {
    fn new(seed: u64, options: &Options, arena: &'w Arena, switches: [&'w Switch<'w>; 2]) -> Self {
        let mut random = Random::new(seed);
        let rules = if random.chance(250) { options.rules.with_tight_credits() } else { options.rules };
        let frame_bytes = [1452, 8952, 65_507][random.index(3)];
        let count = if random.chance(250) { 2 } else { 1 };
        // Dice of its own: the other worlds stay what they are.
        let impatient = Random::new(seed ^ IMPATIENT).chance(200);
        let mut loans: Vec<_> = (0..count).map(|index| Loan::new(&mut random, index, impatient)).collect();
        let is_common = count > 1 && Random::new(seed ^ COMMON_DRIVE).chance(600);
        let common = is_common.then(|| common_drive(&mut loans));
        let guests = has_guests(seed);
        let served = if guests { 0 } else { count };
        let clients = (0..served)
            .flat_map(|loan| (0..3).map(move |client| (loan, client)))
            .map(|(loan, _)| {
                let requests = options.requests / (3 * count as u32);
                (loan, Client::new(random.fork(), loans[loan].drive, requests))
            })
            .collect();
        let machines: Vec<Guest> = (0..if guests { count } else { 0 })
            .map(|loan| {
                let nsid = if is_common { loan as u32 + 1 } else { 1 };
                Guest::new(random.fork(), loan, nsid, loans[loan].drive, options.requests / count as u32)
            })
            .collect();
        let node = |index: usize| Node {
            memory: arena.zeroed::<NodeCells>(),
            switch: switches[index],
            card: None,
            incarnation: 1,
            generation: 0,
            cards: 0,
            wake: None,
            torn: Vec::new(),
            freshness: Freshness::default(),
            liveness: (0..count).map(|_| Liveness::default()).collect(),
        };
        Self {
            arena,
            rules,
            log: Log::new(options.trace),
            now: 1_000_000,
            queue: BTreeMap::new(),
            sequence: 0,
            nodes: [node(LENDER), node(BORROWER)],
            loans,
            common,
            clients,
            slots: machines.iter().map(|_| SlotSocket::default()).collect(),
            memories: guests.then(|| Rc::new(Memories::new(count, switches[BORROWER]))),
            guests: machines,
            network: Network::new(random.fork()),
            neighbours: Neighbours::of(seed, count),
            faults: if guests { Faults::for_guests(random.fork()) } else { Faults::new(random.fork()) },
            marks: Marks::default(),
            streams: Streams::default(),
            ordering: Ordering::default(),
            nonces: Nonces::default(),
            failure: None,
            former: Vec::new(),
            siege: false,
            frame_bytes,
            buffer: vec![0; link::frame::MAX_FRAME],
            calm_since: None,
            kills: 0,
            seed,
            random,
        }
    }

    fn live(&mut self) {
        for node in [LENDER, BORROWER] {
            let memory = self.nodes[node].memory;
            self.nodes[node].switch.set_memory(memory);
            let after = self.random.below(3_000_000);
            self.schedule(after, Event::Start(node));
        }
        for client in 0..self.clients.len() {
            let after = self.random.below(2_000_000);
            self.schedule(after, Event::Think(client));
        }
        for guest in 0..self.guests.len() {
            self.schedule(2_000_000, Event::ThinkGuest(guest));
            self.schedule(1_000_000_000, Event::GuestTick(guest));
        }
        self.schedule(5_000_000, Event::Fault);
        // Dice of its own: the other worlds stay what they are.
        if Random::new(!self.seed).chance(200) {
            self.record_former();
            self.siege = true;
            self.repeat_former(4_000_000);
        }
        while self.failure.is_none() && !self.is_over() {
            let Some(((at, _), event)) = self.queue.pop_first() else {
                return self.fail(names::QUIET, "nothing happens any more".into());
            };
            self.now = self.now.max(at);
            self.watch();
            if self.failure.is_none() {
                self.happen(event);
            }
        }
        if self.failure.is_none() {
            self.finish();
        }
    }

    fn is_over(&mut self) -> bool {
        if self.log.events() > MOST_EVENTS {
            self.fail(names::QUIET, format!("{MOST_EVENTS} events and no end"));
        }
        let Some(since) = self.calm_since else { return false };
        if self.is_quiet() {
            return true;
        }
        if self.now > since + PATIENCE {
            let what = self.unrest();
            self.fail(names::QUIET, what);
        }
        false
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(node) if self.nodes[node].wake.is_some_and(|at| at <= self.now) => {
                self.nodes[node].wake = None;
                self.run_node(node);
            }
            Event::Wake(_) => {}
            Event::Arrival(frame) => self.arrive(frame),
            Event::Ring(loan, request) => self.ring_done(loan, request),
            Event::Mark(loan) => self.mark_late(loan),
            Event::Start(node) => self.start_card(node),
            Event::Fault => self.fault(),
            Event::Mend(rails) => self.mend(rails),
            Event::Think(client) => self.think(client),
            Event::ThinkGuest(loan) => self.think_guest(loan),
            Event::GuestTick(loan) => self.guest_ticks(loan),
            Event::Agree(loan) => self.agree(loan),
            Event::Memory(node, loan) => self.read_memory(node, loan),
        }
    }

    /// A card's turn: time, then everything that it wants to be done.
    pub(crate) fn run_node(&mut self, node: usize) {
        let due = self.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        if due.is_some_and(|at| at.as_nanos() <= self.now) && !self.act(node, Card::handle_timeout) {
            return;
        }
        self.service(node);
    }

    /// What a card tells its agent, which keeps who uses what, whatever becomes of cards and ledgers.
    fn serve_events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].card.as_mut().and_then(Card::poll_event) {
            match event {
                CardEvent::Tenant(loan, user) => {
                    let tenancy = self.loans[loan].tenancy.taken_by(user);
                    self.loans[loan].tenancy = tenancy;
                    if !self.act(node, |card, now| card.set_tenancy(now, loan, tenancy)) {
                        return;
                    }
                }
                CardEvent::Overtaken(_) => {
                    self.fail(names::ASSERTION, "there is one borrower, and it was overtaken".into());
                }
                CardEvent::Met(loan, peer, incarnation) => {
                    self.neighbour_met(node, loan, (peer, incarnation));
                }
                CardEvent::Ready(_)
                | CardEvent::Refused(..)
                | CardEvent::Unusable(..)
                | CardEvent::Closed { .. } => {}
            }
        }
    }

    /// Events, frames, media and edges, until the card has nothing more to say.
    pub(crate) fn service(&mut self, node: usize) {
        self.serve_events(node);
        self.transmit(node);
        for loan in 0..self.loans.len() {
            if node == LENDER {
                self.serve_media(loan);
            } else {
                self.serve_edges(loan);
                self.serve_slot(loan);
            }
        }
        self.transmit(node);
        let due = self.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        if let Some(at) = due {
            self.wake_at(node, at.as_nanos());
        }
    }

    /// Lets the card do something: false if it is dead, or dies of it.
    pub(crate) fn act(&mut self, node: usize, work: impl FnOnce(&mut Card<'w>, Instant)) -> bool {
        let now = Instant::from_nanos(self.now);
        let Some(card) = self.nodes[node].card.as_mut() else { return false };
        match survive(|| work(card, now)) {
            Ok(()) => {
                self.check_step(node);
                self.failure.is_none()
            }
            Err(end) => {
                self.end_card(node, end);
                false
            }
        }
    }

    fn end_card(&mut self, node: usize, end: End) {
        match end {
            End::Killed => self.bury(node),
            End::Panicked(what) => self.fail(names::ASSERTION, what),
        }
    }

    /// A place at which a card may be killed from outside: true if it was.
    pub(crate) fn dies_here(&mut self, node: usize) -> bool {
        if self.nodes[node].card.is_none() {
            return true;
        }
        if !self.nodes[node].switch.dies_at_effect() {
            return false;
        }
        self.marks.set(Mark::EffectKilled);
        self.bury(node);
        true
    }

    /// A card is dead: what it had not committed is to be seen by its successor only.
    pub(crate) fn bury(&mut self, node: usize) {
        let Some(card) = self.nodes[node].card.take() else { return };
        for loan in 0..self.loans.len() {
            if let Some(id) = self.stream_to(node, loan, &card) {
                let accepted = card.channel(loan).receiver().take_accepted();
                self.nodes[node].torn.push((id, accepted));
            }
        }
        self.kills += 1;
        self.log.event(self.now, Some(node), "dies", self.nodes[node].generation.into(), 0);
        self.nodes[node].switch.disarm();
        self.nodes[node].wake = None;
        self.marks.set_if(Mark::BothDead, self.nodes.iter().all(|node| node.card.is_none()));
        self.schedule_start(node);
    }

    pub(crate) fn schedule_start(&mut self, node: usize) {
        let after = if self.random.chance(900) {
            self.random.range(200_000, 6_000_000)
        } else {
            self.random.range(10_000_000, LONGEST_ABSENCE.as_nanos() as u64)
        };
        self.schedule(after, Event::Start(node));
    }

    /// The agent starts the next card on the node's ledger, which may die at once.
    fn start_card(&mut self, node: usize) {
        if self.nodes[node].card.is_some() {
            return;
        }
        if node == LENDER {
            self.drain_rings();
        }
        let raised = self.rules.has(Rule::RaiseGeneration) || self.nodes[node].generation == 0;
        self.nodes[node].generation += u32::from(raised);
        self.nodes[node].cards += 1;
        let config = self.card_config(node);
        let may_die = self.calm_since.is_none() && self.kills > 0 && self.random.chance(150);
        if may_die {
            let stores = self.random.below(120);
            self.nodes[node].switch.arm_store(stores);
        }
        self.log.event(self.now, Some(node), "start", self.nodes[node].generation.into(), 0);
        let (memory, switch) = (self.nodes[node].memory, self.nodes[node].switch);
        let rollbacks = switch.rollbacks();
        let now = Instant::from_nanos(self.now);
        let made = survive(|| Card::new(memory, Some(switch), config, now));
        if let Some(offset) = switch.take_mismatch() {
            self.fail(
                names::ROLL_BACK,
                format!("offset {offset:#x} of the ledger is not what was committed"),
            );
        }
        self.marks.set_if(Mark::RolledBack, switch.rollbacks() > rollbacks);
        match made {
            Ok(card) => self.welcome(node, card),
            Err(End::Killed) => {
                self.marks.set(Mark::RecoveryKilled);
                self.kills += 1;
                self.schedule_start(node);
            }
            Err(End::Panicked(what)) => self.fail(names::ASSERTION, what),
        }
    }

    fn welcome(&mut self, node: usize, card: Card<'w>) {
        self.nodes[node].switch.disarm();
        for loan in 0..self.loans.len() {
            card.channel(loan).receiver().watch_accepted();
            self.nodes[node].liveness[loan].started(self.now);
        }
        self.nodes[node].card = Some(card);
        self.check_recovery(node);
        self.faults.arm(self.nodes[node].switch);
        self.tell_neighbours(node);
        if node == BORROWER {
            for loan in 0..self.loans.len() {
                self.tell_edges(loan);
                self.tell_slot(loan);
            }
        }
        self.run_node(node);
    }

    fn transmit(&mut self, node: usize) {
        let mut buffer = core::mem::take(&mut self.buffer);
        while self.failure.is_none() && !self.dies_here(node) {
            let now = Instant::from_nanos(self.now);
            let Some(card) = self.nodes[node].card.as_mut() else { break };
            let outgoing = match survive(|| card.poll_transmit(now, &mut buffer)) {
                Ok(Some(outgoing)) => outgoing,
                Ok(None) => break,
                Err(end) => {
                    self.end_card(node, end);
                    break;
                }
            };
            let frame = &buffer[..outgoing.len];
            self.check_frame(node, frame);
            let rail = match outgoing.way {
                Way::Rail(rail) => rail,
                Way::Private(loan) => {
                    self.write_memory(node, loan, frame);
                    continue;
                }
            };
            if node == LENDER {
                self.besiege(outgoing.to, frame);
            }
            for fate in self.network.send(node, rail.into(), outgoing.to, frame) {
                match fate {
                    Fate::Lost => self.log.event(self.now, Some(node), "lost", rail.into(), 0),
                    Fate::Arrives(after, frame) => self.schedule(after, Event::Arrival(frame)),
                }
            }
        }
        self.buffer = buffer;
    }

    /// The agent's configuration of a node's card.
    pub(crate) fn card_config(&mut self, node: usize) -> CardConfig {
        let loans = self.loans.iter().enumerate().map(|(index, loan)| LoanConfig {
            key: [index as u8 + 1; 32],
            insecure: loan.insecure,
            group: Group(index as u32 + 1),
            generation: LoanGeneration(0),
            tenancy: loan.tenancy,
            life: 0,
            role: if node == LENDER {
                let (drive, controller) =
                    if self.common.is_some() { (0, index as u16 + 1) } else { (index, 0) };
                LoanRole::Lend { drive, controller, limit: node::Limit::NONE }
            } else {
                let peers = (0..RAILS).map(|rail| Network::address(LENDER, rail)).collect();
                let edge = if self.guests.is_empty() { BorrowEdge::Drive } else { BorrowEdge::Slot };
                LoanRole::Borrow { peers, io_timeout: loan.io_timeout(), edge }
            },
        });
        let loans = loans.collect();
        let drives = match &self.common {
            _ if node != LENDER => Vec::new(),
            Some(drive) => vec![drive.clone()],
            None => self.loans.iter().map(|loan| loan.config.clone()).collect(),
        };
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.next().to_le_bytes());
        CardConfig {
            node: NodeId(node as u64 + 1),
            name: Name::new(["lender", "borrower"][node]),
            domain: DomainId(node as u32 + 1),
            incarnation: Incarnation(self.nodes[node].incarnation),
            generation: CardGeneration(self.nodes[node].generation),
            seed,
            rails: vec![self.frame_bytes; RAILS],
            drives,
            loans,
            // Often, so that keys are replaced in the middle of everything else.
            rekey_frames: 300,
            rules: self.rules,
        }
    }

    pub(crate) fn schedule(&mut self, after: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), event);
    }

    /// Wakes a node at `at`, and a little later than now in any case.
    pub(crate) fn wake_at(&mut self, node: usize, at: u64) {
        let at = at.max(self.now + 1_000);
        if self.nodes[node].wake.is_none_or(|known| at < known) {
            self.nodes[node].wake = Some(at);
            self.sequence += 1;
            self.queue.insert((at, self.sequence), Event::Wake(node));
        }
    }

    /// Faults are over.
    pub(crate) fn calm(&mut self) {
        self.log.event(self.now, None, "calm", 0, 0);
        self.calm_since = Some(self.now);
        self.network.calm();
        self.nodes.iter().for_each(|node| node.switch.disarm());
        self.guests.iter_mut().for_each(Guest::calm);
    }

    pub(crate) fn fail(&mut self, checker: &'static str, what: String) {
        if self.failure.is_none() {
            self.failure = Some((checker, format!("at {:.6} s: {what}", self.now as f64 / 1e9)));
        }
    }

    pub(crate) fn judge(&mut self, checker: &'static str, verdict: Verdict) {
        if let Err(what) = verdict {
            self.fail(checker, what);
        }
    }

    fn summary(&self) -> Summary {
        Summary {
            seed: self.seed,
            digest: self.log.digest(),
            events: self.log.events(),
            virtual_ns: self.now,
            requests: self.clients.iter().map(|(_, client)| u64::from(client.ended)).sum::<u64>()
                + self.guests.iter().map(|guest| u64::from(guest.ended)).sum::<u64>(),
            bytes: self.loans.iter().map(|loan| loan.shared.bytes).sum(),
            kills: self.kills,
            marks: self.marks,
        }
    }
}

/// A drive with a virtual function and a namespace for each loan.
fn common_drive(loans: &mut [Loan<'_>]) -> device::nvme::Config {
    let mut end = 0_u64;
    let mut namespaces = Vec::new();
    for (loan, controller) in loans.iter_mut().zip(1..) {
        loan.base = end.next_multiple_of(4096);
        end = loan.base + loan.config.bytes();
        namespaces.push(device::nvme::NamespaceConfig {
            blocks: loan.config.blocks,
            block_size: loan.config.block_size,
            read_only: false,
            shared: false,
            controllers: vec![controller],
        });
    }
    let mut drive = device::nvme::Config::new(end / 512, 512, 0x2000);
    drive.memory_buffer = loans.iter().all(|loan| loan.config.memory_buffer);
    drive.functions = loans.len() as u16;
    drive.namespaces = namespaces;
    drive
}

impl Loan<'_> {
    /// How long the borrower lets a request wait: for ever, or so short that many fail.
    fn io_timeout(&self) -> Duration {
        if self.drive.impatient { Duration::from_millis(150) } else { Duration::from_secs(3600) }
    }

    fn new(random: &mut Random, index: usize, impatient: bool) -> Self {
        let (blocks, block) = if random.chance(500) { (640, 512) } else { (160, 4096) };
        let mut config = device::nvme::Config::new(blocks, block, 0x1000 + index as u64);
        config.memory_buffer = random.chance(600);
        let mode = if random.chance(500) { DiskMode::Ring } else { DiskMode::Inline };
        Self {
            disk: Disk::new(blocks as usize, block as usize),
            mode,
            was_ready: false,
            timed_out: false,
            drive: Drive { blocks, block: block.into(), impatient },
            tenancy: Tenancy::default(),
            shared: Shared {
                tick: 1,
                requests: 0,
                model: DiskModel::new(blocks as usize, mode == DiskMode::Inline),
                orphans: Vec::new(),
                bytes: 0,
                timeouts: 0,
            },
            sockets: (0..node::EDGE_CONNECTIONS).map(|_| None).collect(),
            unmarked: Vec::new(),
            config,
            base: 0,
            insecure: random.chance(200),
        }
    }
}
