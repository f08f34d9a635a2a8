//! A node: its agent's side of a card's life, and the card while one lives.

use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, LoanGeneration, RailId};
use base::ledger::{Arena, RawMemory};
use base::{Instant, Rule, RuleSet};
use core::time::Duration;
use link::{Name, Secret};
use node::agent::Agent;
use node::{
    BorrowEdge, Card, CardConfig, Egress, FunctionId, LendConfig, LoanConfig, LoanKind, LoanRole, NodeKey,
    NodeLedger, Route, Whereabouts,
};

use crate::checkers::freshness::{Freshness, Origin};
use crate::checkers::liveness::Liveness;
use crate::checkers::names;
use crate::checkers::outrun::Outrun;
use crate::checkers::streams::StreamId;
use crate::death::{End, Switch, survive};
use crate::edge::Socket;
use crate::identity::life_id;
use crate::marks::Mark;
use crate::network::{Fate, Frame, Network};
use crate::rails;
use crate::world::{BORROWER, Event, LENDER, NODES, World};

/// How long a node may be without a card, at most: disks end what was asked of them, the agent pauses since many cards
/// have hardly lived, and the start takes its time.
pub(crate) const LONGEST_ABSENCE: Duration = Duration::from_millis(500);

/// How long the start of a card takes at most.
pub(crate) const LONGEST_START: Duration = Duration::from_millis(300);

/// A node: an agent's side of it, and a card while one lives.
pub(crate) struct Node<'w> {
    pub(crate) memory: RawMemory<'w>,
    pub(crate) switch: &'w Switch<'w>,
    pub(crate) card: Option<Card<'w>>,
    pub(crate) identity: NodeKey,
    /// Counts its lives, whatever it calls them itself.
    pub(crate) life: u64,
    pub(crate) incarnation: u64,
    /// The last incarnation that its state folder knows of.
    pub(crate) folder: u64,
    /// Where those are who have something of it, as the folder has it.
    pub(crate) holders: Vec<Whereabouts>,
    /// What its agent decides.
    pub(crate) agent: Agent,
    /// When the agent is to be woken, if at all.
    pub(crate) agent_wake: Option<u64>,
    /// Cards started.
    pub(crate) cards: u64,
    /// Its program does not run: nobody starts a card.
    pub(crate) is_away: bool,
    /// By loan: that one is still to be given back.
    pub(crate) gives_back: Vec<bool>,
    /// When it is to be woken, if at all.
    pub(crate) wake: Option<u64>,
    /// By loan: what the last card had handed on when it died, with the stream's name.
    pub(crate) torn: Vec<(StreamId, Vec<(u64, u64)>)>,
    /// By loan, the stream that came to the card before the verb under way, which may end it and be taken back.
    flowing: Vec<Option<StreamId>>,
    pub(crate) freshness: Freshness,
    pub(crate) liveness: Vec<Liveness>,
    /// By loan and slot of its edge: its clients' connections.
    pub(crate) sockets: Vec<Vec<Option<Socket>>>,
    /// By loan: whether its driver was issuing requests when last seen.
    pub(crate) was_ready: Vec<bool>,
    /// By loan: what its driver has taken back while the function was asking for it.
    pub(crate) outrun: Vec<Outrun>,
}

impl<'w> Node<'w> {
    /// A node with so many loans of a kind, and as many drives.
    pub(crate) fn new(
        index: usize,
        arena: &'w Arena,
        switch: &'w Switch<'w>,
        (kind, loans): (LoanKind, usize),
        (rules, now): (RuleSet, Instant),
    ) -> Self {
        let bytes = node::ledger_bytes(None, (0..loans).map(|_| kind), loans);
        let bytes = bytes.expect("there is no table yet");
        let (memory, identity) = (arena.zeroed_bytes(bytes), NodeKey::numbered(index as u64 + 1));
        NodeLedger::entitle(memory, identity.id());
        Self {
            memory,
            switch,
            card: None,
            identity,
            life: 1,
            incarnation: 1,
            folder: 1,
            holders: Vec::new(),
            agent: Agent::new(rules, now),
            agent_wake: None,
            cards: 0,
            is_away: false,
            gives_back: Vec::new(),
            wake: None,
            torn: Vec::new(),
            flowing: Vec::new(),
            freshness: Freshness::default(),
            liveness: (0..loans).map(|_| Liveness::default()).collect(),
            sockets: (0..loans).map(|_| (0..node::EDGE_CONNECTIONS).map(|_| None).collect()).collect(),
            was_ready: vec![false; loans],
            outrun: (0..loans).map(|_| Outrun::default()).collect(),
        }
    }

    /// The generation of its card.
    pub(crate) fn generation(&self) -> u64 {
        self.agent.record().generation
    }

    /// Its agent has died, and with it the ledger: another one begins another life.
    pub(crate) fn begin_life(&mut self, arena: &'w Arena, rules: RuleSet, now: Instant) {
        self.torn.clear();
        self.memory = arena.zeroed_bytes(self.memory.len());
        self.switch.set_memory(self.memory);
        self.life += 1;
        self.folder += 1;
        self.incarnation = self.folder;
        NodeLedger::entitle(self.memory, self.identity.id());
        self.agent = Agent::new(rules, now);
        self.agent_wake = None;
        self.was_ready.fill(false);
        self.outrun.fill_with(Outrun::default);
    }
}

impl<'w> World<'w> {
    /// A card's turn: time, then everything that it wants to be done.
    pub(crate) fn run_node(&mut self, node: usize) {
        let due = self.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        if due.is_some_and(|at| at.as_nanos() <= self.now) && !self.act(node, Card::handle_timeout) {
            return;
        }
        self.service(node);
    }

    /// Events, frames, media and edges, until the card has nothing more to say.
    pub(crate) fn service(&mut self, node: usize) {
        self.serve_events(node);
        if node == LENDER {
            self.serve_records();
        }
        self.transmit(node);
        for loan in 0..self.loans.len() {
            if node == LENDER {
                self.serve_media(loan);
            } else {
                self.serve_edges(node, loan);
            }
            if node == BORROWER {
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
        let Some(card) = self.nodes[node].card.as_ref() else { return false };
        let flowing = (0..self.loans.len()).map(|loan| self.stream_to(node, loan, card)).collect();
        self.nodes[node].flowing = flowing;
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

    pub(crate) fn end_card(&mut self, node: usize, end: End) {
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

    /// A card is dead, and its agent notices.
    pub(crate) fn bury(&mut self, node: usize) {
        if self.nodes[node].card.is_some() {
            self.end_life(node);
            self.tell_exit(node);
        }
    }

    /// A card is dead: what it had not committed is to be seen by its successor only.
    pub(crate) fn end_life(&mut self, node: usize) {
        let Some(card) = self.nodes[node].card.take() else { return };
        for loan in 0..self.loans.len() {
            let (before, now) =
                (self.nodes[node].flowing.get(loan).copied(), self.stream_to(node, loan, &card));
            let accepted = card.stream(loan).receiver().take_accepted();
            // Nothing flows in a stream in the verb that begins it.
            let id = before.flatten().or(now);
            self.nodes[node].torn.extend(id.map(|id| (id, accepted)));
        }
        self.kills += 1;
        self.log.event(self.now, Some(node), "dies", self.nodes[node].generation(), 0);
        self.nodes[node].switch.disarm();
        if node == LENDER {
            self.forget_flushes();
        }
        self.nodes[node].wake = None;
        let is_dead = |node: usize| self.nodes[node].card.is_none();
        self.marks.set_if(Mark::BothDead, is_dead(LENDER) && is_dead(BORROWER));
    }

    /// The next card begins on the node's ledger, and may die at once.
    pub(crate) fn start_card(&mut self, node: usize) {
        if self.nodes[node].card.is_some() {
            return self.fail(names::ASSERTION, format!("node {node} is to have a second card"));
        }
        if node == LENDER {
            if self.in_rings() > 0 && self.rules.has(Rule::DrainBeforeStart) {
                let what = "a card starts while requests of an earlier one are under way".to_owned();
                return self.fail(names::ASSERTION, what);
            }
            self.loans.iter_mut().for_each(|loan| loan.unmarked.clear());
            self.ask_witnesses();
        }
        self.nodes[node].cards += 1;
        let config = self.card_config(node);
        let may_die = self.calm_since.is_none() && self.kills > 0 && self.random.chance(150);
        if may_die {
            let stores = self.random.below(120);
            self.nodes[node].switch.arm_store(stores);
        }
        self.log.event(self.now, Some(node), "start", self.nodes[node].generation(), 0);
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
        self.nodes[node].agent.handle_started(now, node as i32 + 1);
        match made {
            Ok(card) => self.welcome(node, card.expect("the memory was made for it")),
            Err(End::Killed) => {
                self.marks.set(Mark::RecoveryKilled);
                self.kills += 1;
                self.tell_exit(node);
            }
            Err(End::Panicked(what)) => self.fail(names::ASSERTION, what),
        }
    }

    fn welcome(&mut self, node: usize, card: Card<'w>) {
        self.nodes[node].switch.disarm();
        for loan in 0..self.loans.len() {
            card.stream(loan).receiver().watch_accepted();
            self.nodes[node].liveness[loan].started(self.now);
        }
        self.nodes[node].card = Some(card);
        self.nodes[node].agent.handle_running(Instant::from_nanos(self.now));
        self.check_recovery(node);
        self.serve_events(node);
        self.faults.arm(self.nodes[node].switch);
        if node == LENDER && !self.tell_losses() {
            return;
        }
        self.tell_neighbours(node);
        for loan in 0..self.loans.len() {
            if node != LENDER {
                self.tell_edges(node, loan);
            }
            if node == BORROWER {
                self.tell_slot(loan);
            }
        }
        self.drive_agent(node);
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
            let (Egress::Rail(rail), Some(to)) = (outgoing.way, outgoing.to) else {
                self.write_memory(node, frame);
                continue;
            };
            let rail = rail.get();
            if node == LENDER {
                self.besiege(to, frame);
                self.check_destination(to, rail, frame);
            }
            let frame = Frame {
                to: usize::from(to.0[0]).wrapping_sub(1),
                rail,
                at: Network::rail_of(to),
                from: Network::address(node, rail.into()),
                bytes: frame.to_vec(),
                origin: Origin::Peer,
                first: self.now,
                sent: self.now,
                by: self.life_of(node),
                proof: self.proof_in(node, frame),
            };
            let mut fates = self.network.send(frame.clone());
            self.spoof(&frame, &mut fates);
            self.delay_answer(&frame, &mut fates);
            for fate in fates {
                match fate {
                    Fate::Lost => self.log.event(self.now, Some(node), "lost", rail.into(), 0),
                    Fate::Arrives(after, frame) => self.schedule(after, Event::Arrival(frame)),
                }
            }
        }
        self.buffer = buffer;
    }

    /// What a node calls its present life.
    pub(crate) fn life_id(&self, node: usize) -> LifeId {
        life_id(self.life_of(node))
    }

    /// The agent's configuration of a node's card.
    pub(crate) fn card_config(&mut self, node: usize) -> CardConfig {
        let loans = self.loans.iter().enumerate().map(|(index, loan)| LoanConfig {
            secret: Secret([index as u8 + 1; 32]),
            function: FunctionId(index as u32 + 1),
            group: Group::DEFAULT,
            generation: LoanGeneration(index as u64),
            tenancy: loan.tenancy,
            life: 0,
            least_incarnation: Incarnation(self.nodes[node].agent.least_incarnation(index)),
            role: if node == LENDER {
                let (drive, controller) =
                    if self.common.is_some() { (0, index as u16 + 1) } else { (index, 0) };
                LoanRole::Lend(LendConfig { controller, ..LendConfig::of(drive) })
            } else {
                let max_frame = self.frame_bytes;
                let route =
                    |rail: RailId| Route { rail, peer: Network::address(LENDER, rail.index()), max_frame };
                let routes = rails::each(self.rails[0]).map(route).collect();
                let slot = BorrowEdge::Slot { domain: DomainId((NODES + index) as u32 + 1) };
                let edge = if self.guests.is_empty() { BorrowEdge::Drive } else { slot };
                let lender = self.nodes[LENDER].identity.lends_in(domain_of(LENDER));
                LoanRole::Borrow { lender, routes, io_timeout: loan.io_timeout(), edge }
            },
        });
        let loans = loans.collect();
        let mut drives = match &self.common {
            _ if node != LENDER => Vec::new(),
            Some(drive) => vec![drive.clone()],
            None => self.loans.iter().map(|loan| loan.config.clone()).collect(),
        };
        if let Some(media) = &self.media {
            drives.iter_mut().enumerate().for_each(|(drive, config)| media.configure(drive, config));
        }
        if let Some(volatile) = &self.volatile {
            drives.iter_mut().enumerate().for_each(|(drive, config)| volatile.configure(drive, config));
        }
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.next().to_le_bytes());
        CardConfig {
            identity: self.nodes[node].identity.clone(),
            name: Name::new(["lender", "borrower", "rival"][node]),
            domain: domain_of(node),
            incarnation: Incarnation(self.nodes[node].incarnation),
            life: self.life_id(node),
            restored_as: None,
            generation: CardGeneration(self.nodes[node].generation()),
            seed: Secret(seed),
            protection: self.protection[usize::from(node != LENDER)],
            rails: rails::config(self.rails[usize::from(node != LENDER)], self.frame_bytes),
            drives: drives.into_iter().map(Some).collect(),
            loans,
            holders: self.nodes[node].holders.clone(),
            // Often, so that keys are replaced in the middle of everything else.
            rekey_frames: 300,
            rules: self.rules,
        }
    }
}

/// Where a node is.
fn domain_of(node: usize) -> DomainId {
    DomainId(node as u32 + 1)
}
