//! A node of a fleet: its agent, its card while one lives, its disks and its programs.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;

use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, LoanGeneration, RailId};
use base::ledger::{Arena, Journal, RawMemory};
use base::{Instant, RuleSet};
use link::{Name, NodeKey, Secret, Tenancy};
use node::agent::{Agent, Beat, Effect, Exit, Rest};
use node::{
    BorrowEdge, Card, CardConfig, CardEvent, Egress, FunctionId, LendConfig, LoanConfig, LoanKind, LoanRole,
    MediaWork, NodeLedger, Refusal, Route, Whereabouts,
};

use super::client::{Act, Claim};
use super::function::Function;
use super::lending::{Lending, drive_config};
use super::network::Arrival;
use super::{Event, World};
use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::clock::Alarm;
use crate::death::{End, Switch, survive};
use crate::identity::life_id;
use crate::network::Network;
use crate::rails;
use crate::random::Random;

/// Bytes of the largest frame.
const FRAME: usize = 8952;
/// The signal that kills cards.
const SIGKILL: i32 = 9;
/// How long programs go on when all faults have ended: every function that is borrowed is used once more.
const ENCORE: u64 = 60_000_000;

/// A place for what a node borrows.
struct Entry {
    /// Which loan it has, or had.
    life: u32,
    claim: Option<Claim>,
}

/// A request of the disk.
pub(super) struct Submitted<'w> {
    work: MediaWork<'w>,
    pub(super) function: usize,
    /// The memory it reads and writes.
    journal: Journal<'w>,
    card: u64,
}

pub(super) struct Node<'w> {
    index: usize,
    memory: RawMemory<'w>,
    pub(super) switch: &'w Switch<'w>,
    pub(super) card: Option<Card<'w>>,
    identity: NodeKey,
    life: u64,
    incarnation: u64,
    /// The last incarnation that its state folder knows of.
    folder: u64,
    /// Where those are who have something of it, as the folder has it.
    holders: Vec<Whereabouts>,
    pub(super) agent: Agent,
    rules: RuleSet,
    agent_wake: Alarm,
    card_wake: Alarm,
    /// Of the fleet: by that the lines of other nodes are known.
    seed: u64,
    /// Its rails, as bits.
    rails: u8,
    /// The functions it lends, whose loans have the first places.
    pub(super) lent: Range<usize>,
    places: Vec<Entry>,
    pub(super) disk: BTreeMap<u64, Submitted<'w>>,
    next_request: u64,
    pub(super) disk_is_slow: bool,
}

impl<'w> Node<'w> {
    pub(super) fn new(
        index: usize,
        arena: &'w Arena,
        switch: &'w Switch<'w>,
        (lent, places): (Range<usize>, usize),
        (rules, now, seed): (RuleSet, Instant, u64),
    ) -> Self {
        Self {
            index,
            memory: new_memory(arena, &lent, places),
            switch,
            card: None,
            identity: NodeKey::numbered(index as u64 + 1),
            life: 1,
            incarnation: 1,
            folder: 1,
            holders: Vec::new(),
            agent: Agent::new(rules, now),
            rules,
            agent_wake: Alarm::default(),
            card_wake: Alarm::default(),
            seed,
            rails: rails::of_member(seed, index),
            lent,
            places: (0..places).map(|_| Entry { life: 0, claim: None }).collect(),
            disk: BTreeMap::new(),
            next_request: 0,
            disk_is_slow: false,
        }
    }

    /// Its cards run on its memory from now on.
    pub(super) fn begin_ledger(&self) {
        NodeLedger::entitle(self.memory, self.identity.id());
        self.switch.set_memory(self.memory);
    }

    pub(super) fn vacant_places(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|place| self.places[*place].claim.is_none()).collect()
    }

    /// A place of which the loan is not being given back.
    pub(super) fn any_claim(&self, random: &mut Random) -> Option<usize> {
        let stays = |claim: &Claim| !claim.is_leaving && !claim.is_returning;
        let held = |place: &usize| self.places[*place].claim.as_ref().is_some_and(stays);
        let places: Vec<usize> = (0..self.places.len()).filter(held).collect();
        (!places.is_empty()).then(|| places[random.index(places.len())])
    }

    /// The loans that it has.
    pub(super) fn loans(&self, functions: &[Function<'_>]) -> Vec<usize> {
        let is_lent = |loan: &usize| functions[self.lent.start + loan].lending == Lending::Here;
        let is_borrowed = |place: &usize| self.places[*place].claim.is_some();
        let borrowed = (0..self.places.len()).filter(is_borrowed).map(|place| self.loan_of(place));
        (0..self.lent.len()).filter(is_lent).chain(borrowed).collect()
    }

    /// What a place has borrowed will not be there for a while, and is kept for it: false if it is being given back.
    pub(super) fn wait_for(&mut self, place: usize) -> bool {
        let claim = self.places[place].claim.as_mut();
        let Some(claim) = claim.filter(|claim| !claim.is_leaving && !claim.is_returning) else {
            return false;
        };
        // If it were given back before it has come again, it would be kept for this node.
        claim.is_former = true;
        true
    }

    /// The loan of a place.
    pub(super) fn loan_of(&self, place: usize) -> usize {
        self.lent.len() + place
    }

    /// The stream of a loan, where that is open.
    pub(super) fn stream(&self, loan: usize) -> Option<&link::Stream<'w>> {
        let card = self.card.as_ref()?;
        (card.state(loan) == link::State::Open).then(|| card.stream(loan))
    }

    /// What a place has borrowed can be used.
    fn note_ready(&mut self, loan: usize, functions: &[Function<'_>]) {
        let place = loan.checked_sub(self.lent.len());
        if let Some(claim) = place.and_then(|place| self.places[place].claim.as_mut()) {
            claim.is_former &= functions[claim.function].lending != Lending::Here;
        }
    }

    fn generation(&self) -> u64 {
        self.agent.record().generation
    }

    /// What has not ended as it should.
    pub(super) fn unrest(&self, functions: &[Function<'_>]) -> Option<String> {
        let Some(card) = &self.card else { return Some("it has no card".into()) };
        if !self.disk.is_empty() {
            return Some("its disk has not ended what it was asked for".into());
        }
        for (place, claim) in self.places.iter().enumerate() {
            let Some(claim) = &claim.claim else { continue };
            let function = &functions[claim.function];
            let what = format!("function {} of node {}", function.place, function.lender);
            let Some(drive) = card.borrowed(self.loan_of(place)) else {
                return Some(format!("{what} is not borrowed"));
            };
            if claim.is_returning || !drive.driver.is_ready() || !claim.is_idle() {
                let state = drive.driver.state();
                let (flying, ended) = (drive.driver.in_flight(), drive.driver.has_completion());
                return Some(format!(
                    "{what}: {claim:?}, driver {state:?}, {flying} in flight, ended {ended}"
                ));
            }
            let pages = card.pages(self.loan_of(place)).used();
            if pages != drive.driver.kept().1 {
                return Some(format!("{what}: {pages} pages are not free"));
            }
        }
        self.lent.clone().enumerate().find_map(|(loan, function)| {
            let function = &functions[function];
            if function.lending != Lending::Here {
                return Some(format!("function {loan} is not lent"));
            }
            let (used, is_idle) = (card.pages(loan).used(), card.stream(loan).is_idle());
            let ends = used == 0 && is_idle && function.tenancy.is_held == function.claim.is_some();
            let held = function.tenancy.is_held;
            (!ends).then(|| format!("function {loan}: {used} pages in use, idle: {is_idle}, held: {held}"))
        })
    }

    fn config(&self, functions: &[Function<'_>], seed: [u8; 32]) -> CardConfig {
        let lent = self.lent.clone().map(|function| self.lent_loan(&functions[function], function));
        let borrowed = (0..self.places.len()).map(|place| self.borrowed_loan(place, functions));
        let drive = |function: usize| match functions[function].lending {
            Lending::Here => Some(drive_config(function)),
            Lending::Going | Lending::Away => None,
        };
        CardConfig {
            identity: self.identity.clone(),
            name: Name::new(&format!("node-{}", self.index)),
            domain: domain_of(self.index),
            incarnation: Incarnation(self.incarnation),
            life: self.life_id(),
            restored_as: None,
            generation: CardGeneration(self.generation()),
            seed: Secret(seed),
            protection: link::Protection::Aegis,
            rails: rails::config(self.rails, FRAME),
            drives: self.lent.clone().map(drive).collect(),
            loans: lent.chain(borrowed).collect(),
            holders: self.holders.clone(),
            rekey_frames: 500,
            rules: self.rules,
        }
    }

    fn life_id(&self) -> LifeId {
        life_id(Life { node: self.index, number: self.life })
    }

    pub(super) fn lent_loan(&self, function: &Function<'_>, index: usize) -> LoanConfig {
        match function.lending {
            Lending::Here => {
                let role = LoanRole::Lend(LendConfig::of(function.place));
                loan(index, role, (function.tenancy, function.life, 0))
            }
            Lending::Going | Lending::Away => no_loan(function.life),
        }
    }

    fn borrowed_loan(&self, place: usize, functions: &[Function<'_>]) -> LoanConfig {
        let Entry { life, claim } = &self.places[place];
        let Some(claim) = claim else {
            return no_loan(*life);
        };
        let lender = functions[claim.function].lender;
        let route = |rail: RailId| {
            let peer = Network::address(lender, rail.index());
            Route { rail, peer, max_frame: FRAME }
        };
        let role = LoanRole::Borrow {
            lender: NodeKey::numbered(lender as u64 + 1).lends_in(domain_of(lender)),
            routes: rails::each(rails::of_member(self.seed, lender)).map(route).collect(),
            io_timeout: Duration::from_secs(3600),
            edge: BorrowEdge::Program,
        };
        let least = self.agent.least_incarnation(self.loan_of(place));
        loan(claim.function, role, (Tenancy::default(), *life, least))
    }
}

fn new_memory<'w>(arena: &'w Arena, lent: &Range<usize>, places: usize) -> RawMemory<'w> {
    let kinds = lent.clone().map(|_| LoanKind::Lend).chain((0..places).map(|_| LoanKind::Drive));
    let bytes = node::ledger_bytes(None, kinds, lent.len()).expect("there is no table yet");
    arena.zeroed_bytes(bytes)
}

fn loan(function: usize, role: LoanRole, (tenancy, life, least): (Tenancy, u32, u64)) -> LoanConfig {
    LoanConfig {
        secret: Secret([function as u8; 32]),
        function: FunctionId((function as u32).wrapping_add(1)),
        group: Group::DEFAULT,
        generation: LoanGeneration(3),
        tenancy,
        life,
        least_incarnation: Incarnation(least),
        role,
    }
}

/// A vacant place, which had this loan.
fn no_loan(life: u32) -> LoanConfig {
    loan(usize::MAX, LoanRole::Vacant, (Tenancy::default(), life, 0))
}

fn domain_of(node: usize) -> DomainId {
    DomainId(node as u32 + 1)
}

fn journal(memory: RawMemory<'_>) -> Journal<'_> {
    NodeLedger::new(memory, None, RuleSet::ALL).journal
}

/// A node's card.
impl<'w> World<'w> {
    pub(super) fn run_card(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if !this.card_wake.rings(self.clock.now) {
            return;
        }
        let due = this.card.as_ref().and_then(Card::poll_timeout);
        if due.is_some_and(|at| at.as_nanos() <= self.clock.now) && !self.act(node, Card::handle_timeout) {
            return;
        }
        self.service(node);
    }

    /// Events, media and frames, until the card has nothing more to say.
    pub(super) fn service(&mut self, node: usize) {
        self.serve_events(node);
        self.transmit(node);
        self.serve_media(node);
        self.transmit(node);
        let this = &mut self.nodes[node];
        let Some(at) = this.card.as_ref().and_then(Card::poll_timeout) else { return };
        if this.card_wake.set(at.as_nanos()) {
            self.clock.at(at.as_nanos(), Event::Card(node));
        }
    }

    /// Lets the card do something: false if it is dead, or dies of it.
    pub(super) fn act(&mut self, node: usize, work: impl FnOnce(&mut Card<'w>, Instant)) -> bool {
        let now = self.clock.instant();
        let Some(card) = self.nodes[node].card.as_mut() else { return false };
        match survive(|| work(card, now)) {
            Ok(()) => {
                if card.uncommitted() > 0 {
                    self.fail(names::COMMIT_BEFORE_SEND, "a step has ended without its commit".into());
                }
                self.check_roll_back(node);
                self.failure.is_none()
            }
            Err(end) => {
                self.end_card(node, end);
                false
            }
        }
    }

    fn check_roll_back(&mut self, node: usize) {
        if let Some(offset) = self.nodes[node].switch.take_mismatch() {
            let what = format!("offset {offset:#x} of the ledger is not what was committed");
            self.fail(names::ROLL_BACK, what);
        }
    }

    fn end_card(&mut self, node: usize, end: End) {
        match end {
            End::Killed => self.kill(node),
            End::Panicked(what) => self.fail(names::ASSERTION, format!("node {node}: {what}")),
        }
    }

    /// A card dies, and its agent notices.
    pub(super) fn kill(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if this.card.take().is_none() {
            return;
        }
        this.switch.disarm();
        this.card_wake.stop();
        self.fleet.kills += 1;
        self.note("dies", node);
        let now = self.clock.instant();
        self.nodes[node].agent.handle_exit(now, Exit::Signal(SIGKILL));
        self.drive_agent(node);
    }

    /// True if the card died at this effect, or was dead.
    fn dies_here(&mut self, node: usize) -> bool {
        if self.nodes[node].card.is_some() && self.nodes[node].switch.dies_at_effect() {
            self.kill(node);
        }
        self.nodes[node].card.is_none() || self.failure.is_some()
    }

    fn start_card(&mut self, node: usize) {
        if self.nodes[node].card.is_some() || !self.nodes[node].disk.is_empty() {
            let what = format!("node {node} is to have a card beside another one's requests");
            return self.fail(names::ASSERTION, what);
        }
        self.note("start", node);
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.next().to_le_bytes());
        let config = self.nodes[node].config(&self.functions, seed);
        if !self.is_calm && self.fleet.kills > 0 && self.random.chance(100) {
            let stores = self.random.below(300);
            self.nodes[node].switch.arm_store(stores);
        }
        let (now, this) = (self.clock.instant(), &mut self.nodes[node]);
        let (memory, switch) = (this.memory, this.switch);
        let made = survive(|| Card::new(memory, Some(switch), config, now));
        this.agent.handle_started(now, node as i32 + 1);
        self.check_roll_back(node);
        match made {
            Ok(card) => self.welcome(node, card.expect("the memory was made for it")),
            Err(End::Killed) => {
                self.fleet.kills += 1;
                self.nodes[node].agent.handle_exit(now, Exit::Signal(SIGKILL));
                self.drive_agent(node);
            }
            Err(End::Panicked(what)) => self.fail(names::ASSERTION, format!("node {node} starts: {what}")),
        }
        // The card that had them is gone, with all that it had asked of its disk.
        self.conclude_withdrawals(node);
    }

    fn welcome(&mut self, node: usize, card: Card<'w>) {
        let now = self.clock.instant();
        let this = &mut self.nodes[node];
        this.card = Some(card);
        this.agent.handle_running(now);
        self.drive_agent(node);
        self.service(node);
    }

    fn transmit(&mut self, node: usize) {
        let mut buffer = core::mem::take(&mut self.buffer);
        while !self.dies_here(node) {
            let now = self.clock.instant();
            let Some(card) = self.nodes[node].card.as_mut() else { break };
            let outgoing = match survive(|| card.poll_transmit(now, &mut buffer)) {
                Ok(Some(outgoing)) => outgoing,
                Ok(None) => break,
                Err(end) => {
                    self.end_card(node, end);
                    break;
                }
            };
            let (Egress::Rail(rail), Some(to)) = (outgoing.way, outgoing.to) else { continue };
            let sent = self.network.send((node, rail), to, &buffer[..outgoing.len]);
            for (after, arrival) in sent {
                self.clock.after(after, Event::Arrival(arrival));
            }
        }
        self.buffer = buffer;
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let Arrival { to, rail, from, mut bytes } = arrival;
        if !self.dies_here(to) && self.act(to, |card, now| card.handle_frame(now, rail, from, &mut bytes)) {
            self.service(to);
        }
    }

    /// A node has these rails from now on: what the next card is told, too, before the present one is.
    pub(super) fn set_rails(&mut self, node: usize, rails: u8) {
        self.nodes[node].rails = rails;
        let set = |card: &mut Card<'_>, now| {
            card.set_rails(now, rails::config(rails, FRAME)).expect("there is one, as large as the others");
        };
        if !self.dies_here(node) && self.act(node, set) {
            self.service(node);
        }
    }

    fn serve_media(&mut self, node: usize) {
        while !self.dies_here(node) {
            let Some(card) = self.nodes[node].card.as_mut() else { return };
            let work = match survive(|| card.poll_media()) {
                Ok(Some(work)) => work,
                Ok(None) => return,
                Err(end) => return self.end_card(node, end),
            };
            let this = &mut self.nodes[node];
            this.next_request += 1;
            let (request, function) = (this.next_request, this.lent.start + work.loan);
            let submitted =
                Submitted { work, function, journal: journal(this.memory), card: this.generation() };
            this.disk.insert(request, submitted);
            let slow = self.nodes[node].disk_is_slow && !self.is_calm && self.random.chance(20);
            let most = if slow { 2_000_000_000 } else { 150_000 };
            let stands = self.functions[function].is_stuck;
            let still = if stands { self.plan.end.saturating_sub(self.clock.now) } else { 0 };
            let after = still + self.random.range(5_000, most);
            self.clock.after(after, Event::Disk(node, request));
        }
    }

    /// The disk does something, whether or not the card that has asked for it still lives.
    pub(super) fn disk_done(&mut self, node: usize, request: u64) {
        let Some(submitted) = self.nodes[node].disk.remove(&request) else { return };
        self.execute(&submitted);
        let Submitted { work, card, .. } = submitted;
        if card == self.nodes[node].generation()
            && !self.dies_here(node)
            && self.act(node, |card, now| card.handle_media(now, work.loan, work.id, Ok(())))
        {
            self.service(node);
        }
    }

    fn execute(&mut self, submitted: &Submitted<'w>) {
        let function = &mut self.functions[submitted.function];
        if let Err(what) = function.check_effect(&submitted.work, &self.authors) {
            let what = format!("function {} of node {}: {what}", function.place, function.lender);
            return self.fail(names::SINGLE_OWNER, what);
        }
        function.disk.execute(&submitted.work, submitted.journal);
    }

    /// Everything that the disk was asked for happens, in any order.
    fn drain(&mut self, node: usize) {
        while !self.nodes[node].disk.is_empty() {
            let any = self.random.index(self.nodes[node].disk.len());
            let request = self.nodes[node].disk.keys().copied().nth(any);
            if let Some(submitted) = request.and_then(|request| self.nodes[node].disk.remove(&request)) {
                self.execute(&submitted);
            }
        }
    }
}

/// What a node's agent does.
impl World<'_> {
    pub(super) fn run_agent(&mut self, node: usize) {
        let now = self.clock.instant();
        let this = &mut self.nodes[node];
        this.agent_wake.stop();
        this.agent.handle_timeout(now);
        self.drive_agent(node);
    }

    pub(super) fn drive_agent(&mut self, node: usize) {
        while self.failure.is_none()
            && let Some(effect) = self.nodes[node].agent.poll_effect()
        {
            self.perform(node, effect);
        }
        while self.nodes[node].agent.poll_event().is_some() {}
        let this = &mut self.nodes[node];
        let Some(at) = this.agent.poll_timeout().map(Instant::as_nanos) else { return };
        if this.agent_wake.set(at) {
            self.clock.at(at, Event::Agent(node));
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        let now = self.clock.instant();
        let after = match effect {
            Effect::Start { .. } if self.random.chance(900) => self.random.range(200_000, 6_000_000),
            Effect::Start { .. } => self.random.range(10_000_000, 200_000_000),
            Effect::Drain { wait } => self.random.below(wait.as_nanos() as u64),
            Effect::StoreTenancy { .. } => self.random.range(50_000, 5_000_000),
            Effect::StoreHolder(_) => 1_000_000,
            Effect::Kill => return self.kill(node),
            Effect::TellTenancy { loan, tenancy } => {
                self.act(node, |card, now| card.set_tenancy(now, loan, tenancy));
                return;
            }
            Effect::TellReturn { loan } => {
                self.act(node, |card, now| card.give_back(now, loan));
                return;
            }
            Effect::TellLoan { loan } => return self.tell_loan(node, loan),
            Effect::Vacate { loan } => return self.vacate(node, loan),
            Effect::RaiseIncarnation { loan, seen } => {
                let this = &mut self.nodes[node];
                this.folder = this.folder.max(seen) + 1;
                return this.agent.handle_incarnation_raised(loan, this.folder);
            }
            Effect::TellIncarnation { loan, incarnation } => {
                let incarnation = Incarnation(incarnation);
                self.act(node, |card, now| card.raise_incarnation(now, loan, incarnation));
                return;
            }
            Effect::Look => {
                // No card hangs here: each moment it has made another turn.
                let beat = Beat { turns: self.clock.now, rest: Rest::Awake };
                return self.nodes[node].agent.handle_beat(now, beat, || None);
            }
            // Nobody ends here in order, and there are no machines.
            Effect::TellEnd | Effect::TellPresence { .. } => return,
            Effect::TellDrive { drive } => return self.tell_drive(node, drive),
            Effect::TellWithdrawal { drive } => {
                self.act(node, |card, now| card.withdraw(now, drive));
                return;
            }
        };
        self.clock.after(after, Event::Performed(node, self.nodes[node].life, Box::new(effect)));
    }

    /// What an agent wanted done is, if it still lives.
    pub(super) fn performed(&mut self, node: usize, life: u64, effect: &Effect) {
        if self.nodes[node].life != life {
            return;
        }
        match *effect {
            Effect::Start { .. } => return self.start_card(node),
            Effect::Drain { .. } => {
                self.drain(node);
                let now = self.clock.instant();
                self.nodes[node].agent.handle_drained(now, Ok(()));
            }
            Effect::StoreTenancy { loan, tenancy } => {
                let fails = !self.is_calm && self.random.chance(30);
                if !fails {
                    let function = self.nodes[node].lent.start + loan;
                    self.functions[function].tenancy = tenancy;
                }
                let (now, result) =
                    (self.clock.instant(), if fails { Err("no space".to_owned()) } else { Ok(()) });
                self.nodes[node].agent.handle_tenancy_stored(now, loan, result);
            }
            Effect::StoreHolder(holder) => {
                let (now, this) = (self.clock.instant(), &mut self.nodes[node]);
                this.holders.retain(|known| known.key != holder.key);
                this.holders.push(holder);
                this.agent.handle_holder_stored(now, holder.node(), Ok(()));
            }
            // The others take no time.
            _ => {}
        }
        self.drive_agent(node);
        self.service(node);
    }

    fn serve_events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].card.as_mut().and_then(Card::poll_event) {
            if self.trace {
                eprintln!("{:>12.3} {node:>2} * {event:?}", self.clock.now as f64 / 1000.0);
            }
            let now = self.clock.instant();
            let agent = &mut self.nodes[node].agent;
            match event {
                CardEvent::Tenant(loan, tenancy) => agent.handle_tenant(now, loan, tenancy),
                CardEvent::Located(holder) => agent.handle_located(now, holder),
                CardEvent::Closed { loan, has_lost } => self.given_back(node, loan, has_lost),
                CardEvent::Refused(loan, Refusal::Outdated { seen }) => {
                    agent.handle_outdated(now, loan, seen.0);
                }
                CardEvent::Overtaken(loan) => {
                    let what = format!("node {node} was told that another one has used loan {loan}");
                    self.fail(names::SINGLE_OWNER, what);
                }
                CardEvent::MediaFault(_) | CardEvent::Unusable(..) => {
                    self.fail(names::ASSERTION, format!("node {node}: {event:?}"));
                }
                CardEvent::Ready(loan) => self.nodes[node].note_ready(loan, &self.functions),
                CardEvent::Refused(..) | CardEvent::Met(..) | CardEvent::Joined(..) => {}
                CardEvent::Withdrawn(drive) => self.note_withdrawn(node, drive),
                CardEvent::Left(_) => {}
            }
            self.drive_agent(node);
        }
    }

    fn given_back(&mut self, node: usize, loan: usize, has_lost: bool) {
        let this = &mut self.nodes[node];
        let Some(place) = loan.checked_sub(this.lent.len()) else { return };
        if has_lost {
            self.fail(names::DURABILITY, format!("node {node} has lost writes of loan {loan}"));
        } else if this.places[place].claim.as_ref().is_some_and(|claim| claim.is_returning) {
            this.agent.handle_given_back(loan);
        }
    }

    fn vacate(&mut self, node: usize, loan: usize) {
        self.note("vacated", node);
        let this = &mut self.nodes[node];
        let place = loan - this.lent.len();
        if let Some(claim) = this.places[place].claim.take() {
            self.functions[claim.function].claim = None;
            self.fleet.detached += 1;
        }
    }

    /// A vacant place has a loan from now on.
    pub(super) fn attach_to(&mut self, node: usize, place: usize, claim: Claim) {
        self.note("attach", node);
        let can_take = self.random.chance(850);
        let this = &mut self.nodes[node];
        let life = this.places[place].life + 1;
        this.places[place] = Entry { life, claim: Some(claim) };
        let loan = this.loan_of(place);
        this.agent.handle_attached(loan, can_take);
        self.drive_agent(node);
    }

    fn tell_loan(&mut self, node: usize, loan: usize) {
        let this = &self.nodes[node];
        let config = this.borrowed_loan(loan - this.lent.len(), &self.functions);
        let told = self.tell(node, loan, |card, now| {
            card.attach(now, loan, config).expect("this ledger is not corrupt");
        });
        self.fleet.attached += u64::from(told);
    }

    /// What a place has borrowed is to be given back: when its program has ended, or in the middle of everything.
    pub(super) fn begin_detach(&mut self, node: usize, place: usize, at_once: bool) {
        let this = &mut self.nodes[node];
        let Some(claim) = &mut this.places[place].claim else { return };
        claim.is_leaving = true;
        // Somebody who asks for what is not lent just then is heard by nobody.
        if self.functions[claim.function].lending != Lending::Here {
            return;
        }
        if (at_once || claim.is_idle()) && !claim.is_returning && !claim.is_former {
            claim.is_returning = true;
            let loan = this.loan_of(place);
            this.agent.handle_detach(loan);
            self.note("detach", node);
            self.drive_agent(node);
            self.service(node);
        }
    }

    /// The program of a place stands still, or goes on.
    pub(super) fn stop_program(&mut self, node: usize, place: usize, is_stuck: bool) {
        if let Some(claim) = &mut self.nodes[node].places[place].claim {
            claim.is_stuck = is_stuck;
        }
    }

    /// The node's program ends, and with it the ledger. Another one begins: what was borrowed is in its configuration.
    pub(super) fn reboot(&mut self, node: usize) {
        self.note("reboot", node);
        self.fleet.reboots += 1;
        // The next one waits for the locks of the images, that is for the disk.
        self.drain(node);
        let (now, arena) = (self.clock.instant(), self.arena);
        let this = &mut self.nodes[node];
        this.card = None;
        this.card_wake.stop();
        this.agent_wake.stop();
        this.switch.disarm();
        this.memory = new_memory(arena, &this.lent, this.places.len());
        this.begin_ledger();
        this.life += 1;
        this.folder += 1;
        this.incarnation = this.folder;
        this.agent = Agent::new(this.rules, now);
        for function in this.lent.clone() {
            self.functions[function].life = 0;
        }
        self.conclude_withdrawals(node);
        let this = &mut self.nodes[node];
        for place in &mut this.places {
            place.life = 0;
            if let Some(claim) = &mut place.claim {
                self.claims += 1;
                *claim = claim.again(self.claims);
            }
        }
        let after = self.random.range(1_000_000, 300_000_000);
        self.clock.after(after, Event::Agent(node));
    }

    /// The programs of a node look at what they have asked for, and ask for more.
    pub(super) fn think(&mut self, node: usize) {
        for place in 0..self.nodes[node].places.len() {
            self.use_drive(node, place);
            let claim = self.nodes[node].places[place].claim.as_ref();
            if claim.is_some_and(|claim| claim.is_leaving && !claim.is_returning) {
                self.begin_detach(node, place, false);
            }
        }
        let after = self.random.range(self.plan.think / 2, self.plan.think);
        self.clock.after(after, Event::Think(node));
    }

    fn use_drive(&mut self, node: usize, place: usize) {
        let may_ask = self.clock.now < self.plan.end + ENCORE;
        let loan = self.nodes[node].loan_of(place);
        let Some(mut claim) = self.nodes[node].places[place].claim.clone() else { return };
        if claim.is_stuck
            || claim.is_idle() && (!may_ask || claim.is_leaving)
            || self.nodes[node].card.is_none()
        {
            return;
        }
        let asks = !claim.is_leaving && may_ask;
        let (memory, first) = (self.nodes[node].memory, self.authors.len());
        let (mut random, mut did) = (self.random.fork(), Act::default());
        let this = &mut self.functions[claim.function];
        let now = self.clock.instant();
        let card = self.nodes[node].card.as_mut().expect("it was looked for");
        let acted = survive(|| {
            card.drive_step(now, loan, |driver, pages| {
                did = claim.act(now, &mut random, (this, first), asks, driver, pages, journal(memory));
            });
        });
        self.authors.append(&mut did.authors);
        self.fleet.verified += did.verified;
        self.functions[claim.function].verified += did.verified;
        if let Some(what) = did.wrong {
            self.fail(names::DISK, format!("node {node}, loan {loan}: {what}"));
        }
        match acted {
            Ok(()) => {
                self.nodes[node].places[place].claim = Some(claim);
                self.service(node);
            }
            // What it has taken and asked for is taken back, unless it has died right behind the commit.
            Err(end) => {
                if journal(memory).pending() == 0 {
                    self.nodes[node].places[place].claim = Some(claim);
                }
                self.end_card(node, end);
            }
        }
    }
}
