//! The nodes of a world with a rogue: whose card has what, and in which place the cards of others have it as a peer.

use base::ids::{Group, LoanGeneration, StreamId};
use base::ledger::Arena;
use base::{Instant, RuleSet};
use link::PublicKey;
use link::frame::Header;
use node::{Assignment, BorrowEdge, CardConfig, Entry, Holder, LoanConfig, LoanRole, NodeLedger, Title};

use super::lies::Streams;
use super::{FORMER, FUNCTIONS, LENDER, LENDERS, NEIGHBOUR, NODES, ROGUE, SECRET, THERE, WISHES};
use crate::checkers::opening;
use crate::liars::Dice;
use crate::liars::seat::{self, Seat};
use crate::liars::twist::{Target, Told};

/// By which the rogue has what is assigned anew later.
const FIRST: LoanGeneration = LoanGeneration(1);

/// All nodes.
pub(super) struct Nodes<'w> {
    pub(super) seats: Vec<Seat<'w>>,
    /// By node.
    pub(super) keys: [PublicKey; NODES],
}

impl<'w> Nodes<'w> {
    pub(super) fn new(arena: &'w Arena, rules: RuleSet, now: Instant) -> Self {
        let seat = |node: usize| Seat::new(arena, config(node, rules), now);
        let keys = core::array::from_fn(|node| seat::identity(node).public());
        Self { seats: (0..NODES).map(seat).collect(), keys }
    }

    pub(super) fn generation(&self, node: usize, loan: usize) -> LoanGeneration {
        self.seats[node].config.loans[loan].generation()
    }

    pub(super) fn channel(&self, node: usize, other: usize) -> Option<&link::pair::Channel<'w>> {
        let card = &self.seats[node].card;
        card.channel(self.peer_of(node, other)?)
    }

    /// The agents agree on memory as soon as the nodes have met.
    pub(super) fn share(&mut self, now: Instant) {
        for node in [LENDER, NEIGHBOUR] {
            let ends = [(node, ROGUE), (ROGUE, node)];
            if seat::can_share(ends.map(|(one, other)| self.channel(one, other)), now) {
                for (one, other) in ends {
                    let Some(peer) = self.peer_of(one, other) else { continue };
                    self.seats[one].card.set_shm(now, peer, true);
                }
            }
        }
    }

    /// TLPs that a loan has taken, and accesses that it has denied.
    pub(super) fn seen_of(&self, node: usize, loan: usize) -> (u64, u64) {
        let (seat, taken) = (&self.seats[node], self.seats[node].card.stream(loan).receiver().expected());
        let parts = NodeLedger::new(seat.memory, None, RuleSet::ALL).loan(loan, seat.config.loans[loan].life);
        (taken, parts.map_or(0, |parts| parts.cells.edge.denied_accesses.get()))
    }

    /// If a frame names another assignment than the one that its stream is of: that stream's loan.
    pub(super) fn fence(&self, to: usize, peer: usize, frame: &[u8]) -> Option<(usize, opening::Fence)> {
        let header = Header::parse(frame).ok()?;
        let card = &self.seats[to].card;
        let is_its =
            |loan: &usize| card.peer_of(*loan) == Some(peer) && card.stream_id(*loan) == Some(header.stream);
        let loan = (0..self.seats[to].config.loans.len()).find(is_its)?;
        let (named, present) = (header.loan_generation, self.generation(to, loan));
        let taken = card.stream(loan).receiver().expected();
        (named != present).then_some((loan, opening::Fence { stream: header.stream, named, present, taken }))
    }

    /// What the rogue knows of the streams of another node.
    pub(super) fn streams(&self, to: usize, dice: &mut dyn Dice) -> Streams {
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
    pub(super) fn told(&self, node: usize, loan: usize) -> Told {
        let seat = &self.seats[node];
        let requesters = (0..seat.config.loans.len()).map(node::requester_of).chain([pcie::Bdf(0)]).collect();
        let is_lent = matches!(seat.config.loans[loan].role, LoanRole::Lend { .. });
        let place = Target { domain: seat.config.domain, is_lent, base: node::base_of(loan), requesters };
        Told::of(&seat.card, loan, place)
    }

    /// The node that has this place among the peers of another one.
    pub(super) fn node_of(&self, node: usize, peer: usize) -> usize {
        let key = self.seats[node].card.peers().find(|(place, _)| *place == peer).map(|(_, key)| key);
        (0..NODES).find(|other| Some(self.keys[*other]) == key).expect("there are no others")
    }

    /// The place of a node among the peers of another one.
    pub(super) fn peer_of(&self, node: usize, other: usize) -> Option<usize> {
        let key = self.keys[other];
        self.seats[node].card.peers().find(|(_, known)| *known == key).map(|(place, _)| place)
    }

    /// Of a function that both ends are honest about nothing is on its way, and no page is left.
    pub(super) fn is_at_rest(&self, function: usize) -> bool {
        let (lender, borrower) = (LENDERS[function], 1 - LENDERS[function]);
        let (lent, borrowed) = (&self.seats[lender].card, &self.seats[borrower].card);
        let (here, there) = (place_of(lender, function), place_of(borrower, function));
        let Some(drive) = borrowed.borrowed(there) else { return false };
        (lent.stream(here).is_idle() && borrowed.stream(there).is_idle())
            && (lent.pages(here).used(), borrowed.pages(there).used()) == (0, drive.driver.kept().1)
    }
}

/// The functions of a node's loans, in their order: what it lends, then what it borrows.
fn functions_of(node: usize) -> impl Iterator<Item = usize> {
    (0..FUNCTIONS).filter(move |function| LENDERS[*function] == node).chain(WISHES[node].iter().copied())
}

/// The place of a loan in a node that lends or borrows the function.
pub(super) fn place_of(node: usize, function: usize) -> usize {
    functions_of(node).position(|other| other == function).expect("it lends or borrows it")
}

/// The function that is assigned anew is the rogue's, by an entry of this generation.
pub(super) fn entitle(loan: &mut LoanConfig, generation: LoanGeneration) {
    let slot = place_of(ROGUE, FORMER) as u16;
    match &mut loan.role {
        LoanRole::Lend(lent) => {
            let (node, domain) = (seat::identity(ROGUE).id(), seat::domain_of(ROGUE));
            let to = Assignment { node, domain, slot, group: Group::DEFAULT, hold: base::times::HOLD };
            lent.entry = Some(Entry { generation, holder: Holder::Assigned(to) });
        }
        _ => loan.title = Title::Entry { generation, slot },
    }
}

fn config(node: usize, rules: RuleSet) -> CardConfig {
    let loans = functions_of(node).enumerate().map(|(place, function)| {
        let lender = LENDERS[function];
        let role =
            if lender == node { seat::lends(place) } else { seat::borrows(lender, BorrowEdge::Program) };
        let is_stranger = node == ROGUE && matches!(function, SECRET | THERE);
        let secret = [if is_stranger { 0xff } else { function as u8 + 1 }; 32];
        let mut loan = seat::loan_of(function, secret, role);
        if function == FORMER {
            entitle(&mut loan, FIRST);
        }
        loan
    });
    seat::config_of(node, loans.collect(), rules)
}
