//! A node that is who it says, and lies about all else: to two others that have loans between them.
//!
//! Three nodes, all cards of them our own. The first two lend to each other. The third, the *rogue*, has a key of its
//! own and thus a channel with each of them; it borrows one function, lends another, asks for one of which it does not
//! know the secret, and for one that is assigned anew some time, which it is told later, or not at all. Whatever it
//! sends through the memory that it shares with them is changed on its way, in any part: it opens, closes and describes
//! streams, speaks in those of others, of older generations, before they are open, with anybody's requester ids and
//! addresses, and lies about packets, credits and cards as well. Cards are killed meanwhile, and the rogue begins anew,
//! with and without its ledger.
//!
//! Its own loans may fail. But no card dies, every step ends with its commit, what the other two lend each other keeps
//! every byte, and no function is the rogue's of which it does not know the secret, or whose assignment is over
//! ([`crate::checkers`], `opening`). Where chance comes from is the caller's.

mod lies;
mod nodes;

use core::time::Duration;

use base::ids::{LoanGeneration, NodeId};
use base::ledger::Arena;
use base::{Instant, Random, RuleSet};
use link::Tenancy;
use node::{CardEvent, Egress, NodeLedger, Refusal};

use self::lies::Memory;
use self::nodes::{Nodes, place_of};
use crate::checkers::{names, opening};
use crate::client::Finding;
use crate::death::{End, survive};
use crate::liars::seat;
use crate::liars::{Client, Dice, FRAMES, PATIENCE, TURN};
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
/// and what is assigned anew some time, which the rogue is told later.
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
    /// Frames of an assignment that is over, which were dropped.
    pub outdated: u64,
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
    let mut moment = |from: u32| from + dice.below(u64::from(turns - from).max(1)) as u32;
    let reassigned = moment(0);
    let told = moment(reassigned.min(turns));
    for turn in 0..turns {
        let lies = dice.chance(500);
        world.turn(dice, lies)?;
        if turn == reassigned {
            world.reassign();
        }
        if turn == told {
            world.tell_assignment();
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

/// Whose the function is that is assigned anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Assignment {
    /// The rogue's, by the assignment that it knows.
    First,
    /// Nobody's that the rogue knows of.
    Over,
    /// The rogue's again, by another one.
    Again,
}

struct World<'w> {
    arena: &'w Arena,
    now: Instant,
    nodes: Nodes<'w>,
    /// By node: who has a function, and the turns until that is durable.
    saving: [Vec<(u64, usize, Tenancy)>; NODES],
    /// By function: who uses it.
    clients: [Client; FUNCTIONS],
    /// What the rogue knows of its channel with each of the others.
    memories: [Memory; NODES],
    assignment: Assignment,
    buffer: Vec<u8>,
    was_open: bool,
    rogue: Rogue,
}

impl<'w> World<'w> {
    fn new(arena: &'w Arena, rules: RuleSet) -> Self {
        let now = Instant::from_nanos(1_000_000);
        Self {
            arena,
            now,
            nodes: Nodes::new(arena, rules, now),
            saving: Default::default(),
            clients: core::array::from_fn(|_| Client::new()),
            memories: Default::default(),
            assignment: Assignment::First,
            buffer: vec![0; link::frame::MAX_FRAME],
            was_open: false,
            rogue: Rogue::default(),
        }
    }

    /// The card of a node dies, and the next one goes on.
    fn replace(&mut self, node: usize) {
        self.nodes.seats[node].replace(self.now);
        if node == ROGUE {
            // What the card before has sent is old.
            self.memories = Default::default();
        }
        self.rogue.replaced += 1;
    }

    /// The rogue gives up what it has borrowed and begins it anew.
    fn borrow_anew(&mut self) {
        self.nodes.seats[ROGUE].config.loans[place_of(ROGUE, LENT)].life += 1;
        self.replace(ROGUE);
        self.clients[LENT] = Client::new();
    }

    /// The rogue learns of the assignment that there is now.
    fn tell_assignment(&mut self) {
        let generation = self.nodes.generation(LENDER, place_of(LENDER, FORMER));
        let loan = &mut self.nodes.seats[ROGUE].config.loans[place_of(ROGUE, FORMER)];
        if loan.generation() != generation {
            nodes::entitle(loan, generation);
            loan.life += 1;
            self.assignment = Assignment::Again;
            self.replace(ROGUE);
        }
    }

    /// The rogue loses its ledger.
    fn reboot(&mut self) {
        self.nodes.seats[ROGUE].reboot(self.arena, self.now);
        self.saving[ROGUE].clear();
        self.clients[LENT] = Client::new();
        self.memories = Default::default();
        self.rogue.reboots += 1;
    }

    /// The lender has another assignment of a function: what was lent before is over.
    fn reassign(&mut self) {
        let loan = &mut self.nodes.seats[LENDER].config.loans[place_of(LENDER, FORMER)];
        let next = LoanGeneration(loan.generation().0 + 1);
        nodes::entitle(loan, next);
        loan.life += 1;
        self.assignment = Assignment::Over;
        self.replace(LENDER);
    }

    /// Whether everybody has what it is to have, and the rogue's frames go through memory.
    fn is_met(&self) -> bool {
        let is_open = |function: usize| {
            let node = LENDERS[function];
            self.nodes.seats[node].card.state(place_of(node, function)) == link::State::Open
        };
        let is_shared =
            |node: usize, other: usize| seat::is_shared(self.nodes.channel(node, other), self.now);
        [THERE, BACK, LENT, BAIT, FORMER].into_iter().all(is_open)
            && [LENDER, NEIGHBOUR].into_iter().all(|node| is_shared(node, ROGUE) && is_shared(ROGUE, node))
    }

    /// Some time passes for all nodes. With `lies`, what the rogue sends may be changed.
    fn turn(&mut self, dice: &mut dyn Dice, lies: bool) -> Result<(), Finding> {
        self.now += TURN;
        self.nodes.share(self.now);
        self.use_drives(dice)?;
        for node in 0..NODES {
            self.nodes.seats[node].let_time_pass(self.now);
            self.serve(node, dice);
            self.transmit(node, dice, lies && node == ROGUE)?;
            self.check(node)?;
        }
        let state = self.nodes.seats[ROGUE].card.state(place_of(ROGUE, LENT));
        let is_open = state == link::State::Open;
        self.rogue.opened += u64::from(is_open && !self.was_open);
        self.was_open = is_open;
        Ok(())
    }

    /// Events and media.
    fn serve(&mut self, node: usize, dice: &mut dyn Dice) {
        let (now, seat, saving) = (self.now, &mut self.nodes.seats[node], &mut self.saving[node]);
        while let Some(event) = seat.card.poll_event() {
            match event {
                CardEvent::Tenant(loan, tenancy) => {
                    // Whoever has said so before has died.
                    saving.retain(|(_, other, _)| *other != loan);
                    saving.push((dice.below(40), loan, tenancy));
                }
                CardEvent::Refused(_, Refusal::NotLent) => self.rogue.unproven += 1,
                CardEvent::Refused(_, Refusal::Generation) => self.rogue.fenced += 1,
                _ => {}
            }
        }
        for (left, loan, tenancy) in core::mem::take(saving) {
            if left > 0 {
                saving.push((left - 1, loan, tenancy));
            } else {
                seat.config.loans[loan].tenancy = tenancy;
                seat.card.set_tenancy(now, loan, tenancy);
            }
        }
        seat.serve_media(now);
    }

    fn transmit(&mut self, node: usize, dice: &mut dyn Dice, lies: bool) -> Result<(), Finding> {
        for _ in 0..FRAMES {
            let now = self.now;
            let Some(sent) = self.nodes.seats[node].card.poll_transmit(now, &mut self.buffer) else {
                return if lies { self.make_up(dice) } else { Ok(()) };
            };
            let mut frame = self.buffer[..sent.len].to_vec();
            match sent.egress {
                Egress::Rail(rail) => {
                    let to = sent.to.map_or(0, |to| usize::from(to.0[0])) - 1;
                    self.nodes.seats[to].card.handle_frame(now, rail, seat::address(node), &mut frame);
                    self.check(to)?;
                }
                Egress::Shm(peer) => {
                    let to = self.nodes.node_of(node, peer);
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
        if self.assignment == Assignment::Again && dice.chance(100) {
            self.reach_back(dice)?;
        }
        Ok(())
    }

    /// The rogue says in the stream of a function what it would have said by the assignment before.
    fn reach_back(&mut self, dice: &mut dyn Dice) -> Result<(), Finding> {
        let loan = place_of(LENDER, FORMER);
        let (card, id) = (&self.nodes.seats[LENDER].card, self.nodes.seats[LENDER].card.stream_id(loan));
        let is_open = card.stream(loan).state() == link::State::Open;
        let Some((id, mut frame)) = id.filter(|_| is_open).zip(self.memories[LENDER].forge()) else {
            return Ok(());
        };
        let before = LoanGeneration(self.nodes.generation(LENDER, loan).0 - 1);
        lies::reach_back(dice, &self.nodes.told(LENDER, loan), (id, before), &mut frame);
        self.rogue.told += 1;
        self.deliver(ROGUE, LENDER, &mut frame)
    }

    /// The rogue makes an access in the stream of its own loan, with the name or the address of somebody else.
    fn reach_out(&mut self, to: usize, function: usize, dice: &mut dyn Dice) -> Result<(), Finding> {
        let loan = place_of(to, function);
        let (card, id) = (&self.nodes.seats[to].card, self.nodes.seats[to].card.stream_id(loan));
        let is_open = card.stream(loan).state() == link::State::Open;
        let Some((id, mut frame)) = id.filter(|_| is_open).zip(self.memories[to].forge()) else {
            return Ok(());
        };
        let told = self.nodes.told(to, loan);
        lies::reach_out(dice, &told, (id, node::requester_of(loan)), &mut frame);
        let before = self.nodes.seen_of(to, loan);
        self.deliver(ROGUE, to, &mut frame)?;
        let after = self.nodes.seen_of(to, loan);
        self.rogue.told += 1;
        if after.0 > before.0 && after.1 == before.1 {
            let what = format!(
                "function {function}: an access with the name or the address of another was not denied"
            );
            return Err((names::STRAYS, what));
        }
        Ok(())
    }

    fn deliver(&mut self, from: usize, to: usize, frame: &mut [u8]) -> Result<(), Finding> {
        let Some(peer) = self.nodes.peer_of(to, from) else { return self.check(to) };
        let fence = self.nodes.fence(to, peer, frame);
        self.nodes.seats[to].card.handle_shm_frame(self.now, peer, frame);
        if let Some((loan, fence)) = fence {
            let card = &self.nodes.seats[to].card;
            let taken = card.stream(loan).receiver().expected();
            fence.check(card.stream_id(loan), taken).map_err(|what| (names::OPENING, what))?;
        }
        self.check(to)
    }

    fn lie(&mut self, to: usize, dice: &mut dyn Dice, frame: &mut Vec<u8>) {
        let streams = self.nodes.streams(to, dice);
        self.memories[to].lie(dice, &streams, frame);
        self.rogue.told += 1;
    }

    /// Nobody has what it must not have.
    fn check(&self, node: usize) -> Result<(), Finding> {
        let seat = &self.nodes.seats[node];
        seat.check_commit();
        for function in (0..FUNCTIONS).filter(|function| LENDERS[*function] == node) {
            let loan = place_of(node, function);
            let stream = seat.card.stream(loan);
            let seen = opening::Seen {
                loan: seat.card.state(loan),
                stream: stream.state(),
                taken: stream.receiver().expected(),
                node: seat
                    .card
                    .peer_of(loan)
                    .map(|peer| self.nodes.keys[self.nodes.node_of(node, peer)].id()),
            };
            opening::check(&seen, &self.entitled(function))
                .map_err(|what| (names::OPENING, format!("function {function}: {what}")))?;
        }
        Ok(())
    }

    /// Who may have a function.
    fn entitled(&self, function: usize) -> Vec<NodeId> {
        match function {
            THERE | BAIT => vec![self.nodes.keys[NEIGHBOUR].id()],
            BACK => vec![self.nodes.keys[LENDER].id()],
            LENT => vec![self.nodes.keys[ROGUE].id()],
            FORMER if self.assignment != Assignment::Over => vec![self.nodes.keys[ROGUE].id()],
            _ => Vec::new(),
        }
    }

    fn use_drives(&mut self, dice: &mut dyn Dice) -> Result<(), Finding> {
        for (node, function) in [(NEIGHBOUR, THERE), (LENDER, BACK), (ROGUE, LENT), (NEIGHBOUR, BAIT)] {
            let (seat, client) = (&mut self.nodes.seats[node], &mut self.clients[function]);
            match seat.use_drive(self.now, place_of(node, function), client, dice) {
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
            let is_over =
                |function: usize| self.clients[function].under_way() == 0 && self.nodes.is_at_rest(function);
            if honest.into_iter().all(is_over) {
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

    /// What the nodes have counted.
    fn count(&mut self) {
        for node in [LENDER, NEIGHBOUR] {
            let stats = self.nodes.channel(node, ROGUE).map(|channel| channel.stats());
            self.rogue.strays += stats.map_or(0, |stats| stats.unknown_streams.get());
            self.rogue.outdated += stats.map_or(0, |stats| stats.dropped_generation.get());
            let seat = &self.nodes.seats[node];
            let ledger = NodeLedger::new(seat.memory, None, RuleSet::ALL);
            for (loan, config) in seat.config.loans.iter().enumerate() {
                let denied =
                    ledger.loan(loan, config.life).map(|parts| parts.cells.edge.denied_accesses.get());
                self.rogue.denied += denied.unwrap_or_default();
            }
        }
    }
}
