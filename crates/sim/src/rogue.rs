//! A node that is who it says, and lies about all else: to two others that have loans between them.
//!
//! Three nodes, all cards of them our own. The first two lend to each other. The third, the *rogue*, has a key of its
//! own and thus a channel with each of them; it borrows one function, lends another, asks for one of which it does not
//! know the secret, and for one that is assigned anew some time. Whatever it sends through the memory that it shares
//! with them is changed on its way, in any part: it opens, closes and describes streams, speaks in those of others, of
//! older generations, before they are open, with anybody's requester ids and addresses, and lies about packets,
//! credits and cards as well. Cards are killed meanwhile, and the rogue begins anew, with and without its ledger.
//!
//! Its own loans may fail. But no card dies, every step ends with its commit, what the other two lend each other keeps
//! every byte, and no function is the rogue's of which it does not know the secret, or whose assignment is over
//! ([`crate::checkers`], `opening`). Where chance comes from is the caller's.

mod lies;

use core::time::Duration;

use base::ids::{
    CardGeneration, DomainId, Group, Incarnation, LifeId, LoanGeneration, NodeId, RailId, StreamId,
};
use base::ledger::{Arena, RawMemory};
use base::{Instant, RuleSet};
use link::{Name, NodeKey, PublicKey, Tenancy};
use node::{
    Address, BorrowEdge, Card, CardConfig, CardEvent, DriveConfig, FunctionId, Limit, LoanConfig, LoanRole,
    NodeLedger, RailConfig, Refusal, Route, Way,
};

use self::lies::{Memory, Streams};
use crate::checkers::{names, opening};
use crate::client::Finding;
use crate::death::{End, survive};
use crate::disk::Disk;
use crate::liars::twist::{Place, Told};
use crate::liars::{BLOCK, BLOCKS, Client, Dice, FRAMES, PATIENCE, TURN, journal};
use crate::random::Random;
use crate::{Failure, Options, Summary};

/// The nodes.
const LENDER: usize = 0;
const NEIGHBOUR: usize = 1;
const ROGUE: usize = 2;
const NODES: usize = 3;

/// The functions: what the first two lend each other,
const THERE: usize = 0;
const BACK: usize = 1;
/// what the first lends the rogue, of which it has the secret, and what the rogue lends,
const LENT: usize = 2;
const BAIT: usize = 3;
/// what nobody has the secret of,
const SECRET: usize = 4;
/// and what is assigned to somebody else some time, which the rogue is not told.
const FORMER: usize = 5;
const FUNCTIONS: usize = 6;

/// Who lends each.
const LENDERS: [usize; FUNCTIONS] = [LENDER, NEIGHBOUR, LENDER, ROGUE, LENDER, LENDER];
/// What each asks for. The rogue has no secret of [`THERE`] and [`SECRET`].
const WISHES: [&[usize]; NODES] = [&[BACK], &[THERE, BAIT], &[LENT, SECRET, FORMER, THERE]];

/// Turns before the nodes have met, at most.
const MEETING: u32 = 100_000;

/// What a run has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rogue {
    /// Frames that were changed or made up.
    pub told: u64,
    /// Blocks of the honest loans that were read and compared.
    pub verified: u64,
    /// How often a stream of the rogue's own loan opened.
    pub opened: u64,
    /// How often it was told that it has no secret, and that an assignment is over.
    pub unproven: u64,
    /// See [`Rogue::unproven`].
    pub fenced: u64,
    /// What was said of streams that are not the rogue's or not there.
    pub strays: u64,
    /// Accesses that were denied to it.
    pub denied: u64,
    /// Cards that were killed and replaced, and how often the rogue has lost its ledger.
    pub replaced: u64,
    /// See [`Rogue::replaced`].
    pub reboots: u64,
}

/// Runs the world of `seed`, in which `turns` turns may have lies.
///
/// # Errors
/// What was wrong first.
pub fn run_rogue(seed: u64, turns: u32, options: &Options) -> Result<Rogue, Failure> {
    let outcome = survive(|| go_rogue(&mut Random::new(seed ^ 0x0520_6e00), turns, options.rules));
    let (checker, what) = match outcome {
        Ok(Ok(rogue)) => return Ok(rogue),
        Ok(Err(finding)) => finding,
        Err(End::Panicked(what)) => (names::ASSERTION, what),
        Err(End::Killed) => (names::ASSERTION, "nobody kills here".into()),
    };
    Err(Failure { seed, checker, what, summary: Summary::of_seed(seed) })
}

/// Three nodes, of which one lies for `turns` turns.
///
/// # Errors
/// The checker that has found something, and what.
///
/// # Panics
/// When a card dies.
pub fn go_rogue(dice: &mut dyn Dice, turns: u32, rules: RuleSet) -> Result<Rogue, Finding> {
    let arena = Arena::default();
    let mut world = World::new(&arena, rules);
    for turn in 0.. {
        if world.is_met() {
            break;
        }
        if turn > MEETING {
            return Err((names::QUIET, "the nodes do not meet".into()));
        }
        world.turn(dice, false)?;
    }
    let reassigned = dice.below(u64::from(turns).max(1)) as u32;
    for turn in 0..turns {
        let lies = dice.chance(500);
        world.turn(dice, lies)?;
        if turn == reassigned {
            world.reassign();
        }
        match dice.below(1000) {
            0..4 => world.replace(LENDER),
            4..8 => world.replace(NEIGHBOUR),
            8..12 => world.replace(ROGUE),
            12..15 => world.reboot(),
            15..35 => world.borrow_anew(),
            _ => {}
        }
        // Now and then long enough for requests to time out, and for a peer to count as silent.
        let pause = [10_u64, 1_000, 4_000][dice.below(3) as usize];
        world.now += if dice.chance(4) { Duration::from_millis(pause) } else { Duration::ZERO };
    }
    world.come_to_rest(dice)?;
    Ok(world.rogue)
}

/// A node's card, and what it runs on.
struct Seat<'w> {
    memory: RawMemory<'w>,
    config: CardConfig,
    card: Card<'w>,
    /// By function that it lends, in their order.
    disks: Vec<Disk<'w>>,
    /// Who has a function, and the turns until that is durable.
    saving: Vec<(u64, usize, Tenancy)>,
}

struct World<'w> {
    arena: &'w Arena,
    now: Instant,
    seats: Vec<Seat<'w>>,
    /// By node.
    keys: [PublicKey; NODES],
    /// By function: who uses it.
    clients: [Client; FUNCTIONS],
    /// What the rogue knows of its channel with each of the others.
    memories: [Memory; NODES],
    is_reassigned: bool,
    buffer: Vec<u8>,
    was_open: bool,
    rogue: Rogue,
}

impl<'w> World<'w> {
    fn new(arena: &'w Arena, rules: RuleSet) -> Self {
        let now = Instant::from_nanos(1_000_000);
        let seat = |node: usize| {
            let config = config(node, rules);
            let memory = config.new_memory(arena);
            let disks = config.drives.iter().map(|_| Disk::new(BLOCKS as usize, BLOCK)).collect();
            Seat { memory, card: new_card(memory, &config, now), config, disks, saving: Vec::new() }
        };
        Self {
            arena,
            now,
            seats: (0..NODES).map(seat).collect(),
            keys: core::array::from_fn(|node| identity(node).public()),
            clients: core::array::from_fn(|_| Client::new()),
            memories: Default::default(),
            is_reassigned: false,
            buffer: vec![0; link::frame::MAX_FRAME],
            was_open: false,
            rogue: Rogue::default(),
        }
    }

    /// The card of a node dies, and the next one goes on.
    fn replace(&mut self, node: usize) {
        let seat = &mut self.seats[node];
        seat.config.generation.0 += 1;
        seat.config.seed[1] = seat.config.seed[1].wrapping_add(1);
        seat.card = new_card(seat.memory, &seat.config, self.now);
        if node == ROGUE {
            // What the card before has sent is old.
            self.memories = Default::default();
        }
        self.rogue.replaced += 1;
    }

    /// The rogue gives up what it has borrowed and begins it anew.
    fn borrow_anew(&mut self) {
        self.seats[ROGUE].config.loans[place_of(ROGUE, LENT)].life += 1;
        self.replace(ROGUE);
        self.clients[LENT] = Client::new();
    }

    /// The rogue loses its ledger.
    fn reboot(&mut self) {
        let seat = &mut self.seats[ROGUE];
        let config = &mut seat.config;
        config.incarnation.0 += 1;
        config.generation = CardGeneration(1);
        config.seed[2] = config.seed[2].wrapping_add(1);
        config.life.0[1] = config.life.0[1].wrapping_add(1);
        seat.memory = config.new_memory(self.arena);
        seat.saving.clear();
        seat.card = new_card(seat.memory, &seat.config, self.now);
        self.clients[LENT] = Client::new();
        self.memories = Default::default();
        self.rogue.reboots += 1;
    }

    /// The lender has another assignment of a function: what was lent before is over.
    fn reassign(&mut self) {
        let loan = &mut self.seats[LENDER].config.loans[place_of(LENDER, FORMER)];
        loan.generation.0 += 1;
        loan.life += 1;
        self.is_reassigned = true;
        self.replace(LENDER);
    }

    /// Whether everybody has what it is to have, and the rogue's frames go through memory.
    fn is_met(&self) -> bool {
        let is_open = |function: usize| {
            let node = LENDERS[function];
            self.seats[node].card.state(place_of(node, function)) == link::State::Open
        };
        let is_shared = |node: usize, other: usize| {
            let path = self.channel(node, other).and_then(|channel| channel.private_status(self.now));
            path.is_some_and(|(_, up, _)| up)
        };
        [THERE, BACK, LENT, BAIT, FORMER].into_iter().all(is_open)
            && [LENDER, NEIGHBOUR].into_iter().all(|node| is_shared(node, ROGUE) && is_shared(ROGUE, node))
    }

    fn channel(&self, node: usize, other: usize) -> Option<&link::pair::Channel<'w>> {
        let card = &self.seats[node].card;
        card.channel(self.peer_of(node, other)?)
    }

    /// The agents agree on memory as soon as the nodes have met.
    fn share(&mut self) {
        for node in [LENDER, NEIGHBOUR] {
            let ends = [(node, ROGUE), (ROGUE, node)];
            let is_met =
                |(one, other): (usize, usize)| self.channel(one, other).is_some_and(|it| it.is_met());
            let lacks = |(one, other): (usize, usize)| {
                self.channel(one, other).is_some_and(|it| it.private_status(self.now).is_none())
            };
            if ends.into_iter().all(is_met) && ends.into_iter().any(lacks) {
                for (one, other) in ends {
                    let Some(peer) = self.peer_of(one, other) else { continue };
                    self.seats[one].card.set_private(self.now, peer, true);
                }
            }
        }
    }

    /// Some time passes for all nodes. With `lies`, what the rogue sends may be changed.
    fn turn(&mut self, dice: &mut dyn Dice, lies: bool) -> Result<(), Finding> {
        self.now += TURN;
        self.share();
        self.use_drives(dice)?;
        for node in 0..NODES {
            let (now, seat) = (self.now, &mut self.seats[node]);
            if seat.card.poll_timeout().is_some_and(|at| at <= now) {
                seat.card.handle_timeout(now);
            }
            self.serve(node, dice);
            self.transmit(node, dice, lies && node == ROGUE)?;
            self.check(node)?;
        }
        let state = self.seats[ROGUE].card.state(place_of(ROGUE, LENT));
        let is_open = state == link::State::Open;
        self.rogue.opened += u64::from(is_open && !self.was_open);
        self.was_open = is_open;
        Ok(())
    }

    /// Events and media.
    fn serve(&mut self, node: usize, dice: &mut dyn Dice) {
        let (now, seat) = (self.now, &mut self.seats[node]);
        while let Some(event) = seat.card.poll_event() {
            match event {
                CardEvent::Tenant(loan, tenancy) => {
                    // Whoever has said so before has died.
                    seat.saving.retain(|(_, other, _)| *other != loan);
                    seat.saving.push((dice.below(40), loan, tenancy));
                }
                CardEvent::Refused(_, Refusal::NotLent) => self.rogue.unproven += 1,
                CardEvent::Refused(_, Refusal::Generation) => self.rogue.fenced += 1,
                _ => {}
            }
        }
        for (left, loan, tenancy) in core::mem::take(&mut seat.saving) {
            if left > 0 {
                seat.saving.push((left - 1, loan, tenancy));
            } else {
                seat.config.loans[loan].tenancy = tenancy;
                seat.card.set_tenancy(now, loan, tenancy);
            }
        }
        let journal = journal(seat.memory);
        while let Some(work) = seat.card.poll_media() {
            // What is lent comes first among the loans.
            seat.disks[work.loan].execute(&work, journal);
            seat.card.handle_media(now, work.loan, work.id, Ok(()));
        }
        assert_eq!(seat.card.uncommitted(), 0, "a step ends with its commit");
    }

    fn transmit(&mut self, node: usize, dice: &mut dyn Dice, lies: bool) -> Result<(), Finding> {
        for _ in 0..FRAMES {
            let now = self.now;
            let Some(sent) = self.seats[node].card.poll_transmit(now, &mut self.buffer) else {
                return if lies { self.make_up(dice) } else { Ok(()) };
            };
            let mut frame = self.buffer[..sent.len].to_vec();
            match sent.way {
                Way::Rail(rail) => {
                    let to = usize::from(sent.to.0[0]) - 1;
                    self.seats[to].card.handle_frame(now, rail, address(node), &mut frame);
                    self.check(to)?;
                }
                Way::Private(peer) => {
                    let to = self.node_of(node, peer);
                    if node == ROGUE {
                        self.memories[to].keep(&frame);
                        if lies && dice.chance(250) {
                            self.lie(to, dice, &mut frame);
                        }
                    }
                    self.deliver(node, to, &mut frame)?;
                }
            }
        }
        Err((names::LIARS, format!("node {node} sends without end")))
    }

    /// The rogue sends what its card knows nothing of.
    fn make_up(&mut self, dice: &mut dyn Dice) -> Result<(), Finding> {
        for to in [LENDER, NEIGHBOUR] {
            if dice.chance(300)
                && let Some(mut frame) = self.memories[to].forge()
            {
                self.lie(to, dice, &mut frame);
                self.deliver(ROGUE, to, &mut frame)?;
            }
        }
        for (to, function) in [(LENDER, LENT), (NEIGHBOUR, BAIT)] {
            if dice.chance(100) {
                self.reach_out(to, function, dice)?;
            }
        }
        Ok(())
    }

    /// The rogue makes an access in the stream of its own loan, with the name or the address of somebody else.
    fn reach_out(&mut self, to: usize, function: usize, dice: &mut dyn Dice) -> Result<(), Finding> {
        let loan = place_of(to, function);
        let (card, id) = (&self.seats[to].card, self.seats[to].card.stream_id(loan));
        let is_open = card.stream(loan).state() == link::State::Open;
        let Some((id, mut frame)) = id.filter(|_| is_open).zip(self.memories[to].forge()) else {
            return Ok(());
        };
        let told = self.told(to, loan);
        lies::reach_out(dice, &told, (id, node::requester_of(loan)), &mut frame);
        let before = self.seen_of(to, loan);
        self.deliver(ROGUE, to, &mut frame)?;
        let after = self.seen_of(to, loan);
        self.rogue.told += 1;
        if after.0 > before.0 && after.1 == before.1 {
            let what = format!(
                "function {function}: an access with the name or the address of another was not denied"
            );
            return Err((names::STRAYS, what));
        }
        Ok(())
    }

    /// TLPs that a loan has taken, and accesses that it has denied.
    fn seen_of(&self, node: usize, loan: usize) -> (u64, u64) {
        let (seat, taken) = (&self.seats[node], self.seats[node].card.stream(loan).receiver().expected());
        let parts = NodeLedger::new(seat.memory, None, RuleSet::ALL).loan(loan, seat.config.loans[loan].life);
        (taken, parts.map_or(0, |parts| parts.cells.edge.denied_accesses.get()))
    }

    fn deliver(&mut self, from: usize, to: usize, frame: &mut [u8]) -> Result<(), Finding> {
        if let Some(peer) = self.peer_of(to, from) {
            self.seats[to].card.handle_private_frame(self.now, peer, frame);
        }
        self.check(to)
    }

    fn lie(&mut self, to: usize, dice: &mut dyn Dice, frame: &mut Vec<u8>) {
        let streams = self.streams(to, dice);
        self.memories[to].lie(dice, &streams, frame);
        self.rogue.told += 1;
    }

    /// What the rogue knows of the streams of another node.
    fn streams(&self, to: usize, dice: &mut dyn Dice) -> Streams {
        let (told, own) = (&self.seats[to], &self.seats[ROGUE]);
        let loans = told.config.loans.len();
        let ids = |seat: &Seat<'_>| -> Vec<StreamId> {
            (0..seat.config.loans.len()).filter_map(|loan| seat.card.stream_id(loan)).collect()
        };
        // What it asks for it does not wait for, now and then.
        let asked = WISHES[ROGUE].iter().copied().find(|function| {
            let state = own.card.state(place_of(ROGUE, *function));
            LENDERS[*function] == to && state == link::State::Resetting
        });
        let asked = asked.filter(|_| dice.chance(400));
        let loan = asked.map_or_else(|| dice.below(loans as u64) as usize, |function| place_of(to, function));
        let hasty = asked.and_then(|function| own.card.stream_id(place_of(ROGUE, function)));
        Streams {
            ids: hasty.map_or_else(|| ids(told).into_iter().chain(ids(own)).collect(), |id| vec![id]),
            functions: FUNCTIONS as u32,
            told: self.told(to, loan),
        }
    }

    /// What a node expects in the stream of a loan.
    fn told(&self, node: usize, loan: usize) -> Told {
        let seat = &self.seats[node];
        let requesters = (0..seat.config.loans.len()).map(node::requester_of).chain([pcie::Bdf(0)]).collect();
        let is_lent = matches!(seat.config.loans[loan].role, LoanRole::Lend { .. });
        let place = Place { domain: seat.config.domain, is_lent, base: node::base_of(loan), requesters };
        Told::of(&seat.card, loan, place)
    }

    /// The node that has this place among the peers of another one.
    fn node_of(&self, node: usize, peer: usize) -> usize {
        let key = self.seats[node].card.peers().find(|(place, _)| *place == peer).map(|(_, key)| key);
        (0..NODES).find(|other| Some(self.keys[*other]) == key).expect("there are no others")
    }

    /// The place of a node among the peers of another one.
    fn peer_of(&self, node: usize, other: usize) -> Option<usize> {
        let key = self.keys[other];
        self.seats[node].card.peers().find(|(_, known)| *known == key).map(|(place, _)| place)
    }

    /// Nobody has what it must not have.
    fn check(&self, node: usize) -> Result<(), Finding> {
        let seat = &self.seats[node];
        assert_eq!(seat.card.uncommitted(), 0, "a step ends with its commit");
        for function in (0..FUNCTIONS).filter(|function| LENDERS[*function] == node) {
            let loan = place_of(node, function);
            let stream = seat.card.stream(loan);
            let seen = opening::Seen {
                loan: seat.card.state(loan),
                stream: stream.state(),
                taken: stream.receiver().expected(),
                node: seat.card.peer_of(loan).map(|peer| self.keys[self.node_of(node, peer)].id()),
            };
            opening::check(&seen, &self.entitled(function))
                .map_err(|what| (names::OPENING, format!("function {function}: {what}")))?;
        }
        Ok(())
    }

    /// Who may have a function.
    fn entitled(&self, function: usize) -> Vec<NodeId> {
        match function {
            THERE | BAIT => vec![self.keys[NEIGHBOUR].id()],
            BACK => vec![self.keys[LENDER].id()],
            LENT => vec![self.keys[ROGUE].id()],
            FORMER if !self.is_reassigned => vec![self.keys[ROGUE].id()],
            _ => Vec::new(),
        }
    }

    fn use_drives(&mut self, dice: &mut dyn Dice) -> Result<(), Finding> {
        for (node, function) in [(NEIGHBOUR, THERE), (LENDER, BACK), (ROGUE, LENT), (NEIGHBOUR, BAIT)] {
            let (seat, client) = (&mut self.seats[node], &mut self.clients[function]);
            let (now, memory, mut found) = (self.now, seat.memory, Ok(0));
            seat.card.drive_step(now, place_of(node, function), |driver, pages| {
                found = client.act(now, dice, driver, pages, journal(memory));
            });
            match found {
                // What goes to the rogue or comes from it, it may have made up.
                _ if function == LENT || function == BAIT => {}
                Ok(verified) => self.rogue.verified += verified,
                Err(what) => return Err((names::LIARS, format!("function {function}: {what}"))),
            }
        }
        Ok(())
    }

    /// Nobody lies any more, and nothing new is wanted: what was under way for the honest loans ends.
    fn come_to_rest(&mut self, dice: &mut dyn Dice) -> Result<(), Finding> {
        let honest = [THERE, BACK];
        honest.into_iter().for_each(|function| self.clients[function].stop());
        for _ in 0..PATIENCE {
            if honest.into_iter().all(|function| self.is_at_rest(function)) {
                self.count();
                return Ok(());
            }
            self.turn(dice, false)?;
            // A request that was lost with a card may have to time out.
            self.now += Duration::from_millis(1);
        }
        let left = honest.map(|function| self.clients[function].under_way());
        Err((
            names::QUIET,
            format!("{left:?} requests of the honest loans have not ended, or left something"),
        ))
    }

    /// Every request has ended, nothing is on its way, and no page is left.
    fn is_at_rest(&self, function: usize) -> bool {
        let (lender, borrower) = (LENDERS[function], 1 - LENDERS[function]);
        let (lent, borrowed) = (&self.seats[lender].card, &self.seats[borrower].card);
        let (here, there) = (place_of(lender, function), place_of(borrower, function));
        let Some(drive) = borrowed.borrowed(there) else { return false };
        self.clients[function].under_way() == 0
            && (lent.stream(here).is_idle() && borrowed.stream(there).is_idle())
            && (lent.pages(here).used(), borrowed.pages(there).used()) == (0, drive.driver.kept().1)
    }

    /// What the nodes have counted.
    fn count(&mut self) {
        for node in [LENDER, NEIGHBOUR] {
            let stats = self.channel(node, ROGUE).map(|channel| channel.stats());
            self.rogue.strays += stats.map_or(0, |stats| stats.unknown_streams.get());
            let seat = &self.seats[node];
            let ledger = NodeLedger::new(seat.memory, None, RuleSet::ALL);
            for (loan, config) in seat.config.loans.iter().enumerate() {
                let denied =
                    ledger.loan(loan, config.life).map(|parts| parts.cells.edge.denied_accesses.get());
                self.rogue.denied += denied.unwrap_or_default();
            }
        }
    }
}

fn new_card<'w>(memory: RawMemory<'w>, config: &CardConfig, now: Instant) -> Card<'w> {
    Card::new(memory, None, config.clone(), now).expect("the memory was made for it")
}

fn identity(node: usize) -> NodeKey {
    NodeKey::numbered(node as u64 + 1)
}

fn address(node: usize) -> Address {
    Address([node as u8 + 1; 28])
}

fn domain_of(node: usize) -> DomainId {
    DomainId(node as u32 + 1)
}

/// The functions of a node's loans, in their order: what it lends, then what it borrows.
fn functions_of(node: usize) -> impl Iterator<Item = usize> {
    (0..FUNCTIONS).filter(move |function| LENDERS[*function] == node).chain(WISHES[node].iter().copied())
}

/// The place of a loan in a node that lends or borrows the function.
fn place_of(node: usize, function: usize) -> usize {
    functions_of(node).position(|other| other == function).expect("it lends or borrows it")
}

fn config(node: usize, rules: RuleSet) -> CardConfig {
    let lent = LENDERS.iter().filter(|lender| **lender == node).count();
    let loans = functions_of(node).enumerate().map(|(place, function)| {
        let lender = LENDERS[function];
        let role = match lender == node {
            true => LoanRole::Lend { drive: place, controller: 0, limit: Limit::NONE, allowed: None },
            false => LoanRole::Borrow {
                lender: identity(lender).lends_in(domain_of(lender)),
                routes: RailId::ALL[..2]
                    .iter()
                    .map(|&rail| Route { rail, peer: address(lender), max_frame: 9000 })
                    .collect(),
                io_timeout: Duration::from_secs(3600),
                edge: BorrowEdge::Program,
            },
        };
        let is_stranger = node == ROGUE && matches!(function, SECRET | THERE);
        LoanConfig {
            secret: [if is_stranger { 0xff } else { function as u8 + 1 }; 32],
            function: FunctionId(function as u32 + 1),
            group: Group::DEFAULT,
            generation: LoanGeneration(0),
            tenancy: Tenancy::default(),
            life: 0,
            least_incarnation: Incarnation(0),
            role,
        }
    });
    CardConfig {
        identity: identity(node),
        name: Name::new("node"),
        domain: domain_of(node),
        incarnation: Incarnation(1),
        life: LifeId([node as u8 + 1; 16]),
        restored_as: None,
        generation: CardGeneration(1),
        seed: [node as u8 + 1; 32],
        protection: link::Protection::Aegis,
        rails: RailConfig::first(2, 9000),
        drives: (0..lent).map(|drive| DriveConfig::new(BLOCKS, BLOCK as u32, 7 + drive as u64)).collect(),
        loans: loans.collect(),
        holders: Vec::new(),
        rekey_frames: link::REKEY_FRAMES,
        rules,
    }
}
