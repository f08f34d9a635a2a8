//! A node of a fleet: what it has, and how its agent configures its card.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;

use base::ids::{CardGeneration, DomainId, Incarnation, LoanGeneration, RailId};
use base::ledger::{Arena, Journal};
use base::{Instant, Random, RuleSet};
use link::{Name, NodeKey, Secret, Tenancy};
use node::{
    BorrowEdge, CardConfig, FunctionId, LendConfig, LoanConfig, LoanKind, LoanRole, MediaWork, Route, Title,
};

use super::client::{By, Claim};
use super::function::Function;
use super::lending::{Lending, drive_config};
use super::managed::slot_of;
use crate::death::Switch;
use crate::network::Network;
use crate::nodes::Node;
use crate::rails;

/// Bytes of the largest frame.
pub(super) const FRAME: usize = 8952;

/// A place for what a node borrows.
pub(super) struct Entry {
    /// Which loan it has, or had.
    pub(super) life: u64,
    pub(super) claim: Option<Claim>,
}

/// A request of the disk.
pub(super) struct Submitted<'w> {
    pub(super) work: MediaWork<'w>,
    pub(super) function: usize,
    /// The memory it reads and writes.
    pub(super) journal: Journal<'w>,
    pub(super) card: u64,
}

/// A node, what it lends, and what it has places for.
pub(super) struct Member<'w> {
    pub(super) node: Node<'w>,
    /// Of the fleet: by that the lines of other nodes are known.
    seed: u64,
    /// Its rails, as bits.
    pub(super) rails: u8,
    /// The functions it lends, whose loans have the first places.
    pub(super) lent: Range<usize>,
    pub(super) places: Vec<Entry>,
    pub(super) disk: BTreeMap<u64, Submitted<'w>>,
    pub(super) next_request: u64,
    pub(super) disk_is_slow: bool,
}

impl<'w> Member<'w> {
    pub(super) fn new(
        index: usize,
        arena: &'w Arena,
        switch: &'w Switch<'w>,
        (lent, places): (Range<usize>, usize),
        (rules, now, seed): (RuleSet, Instant, u64),
    ) -> Self {
        let kinds = lent.clone().map(|_| LoanKind::Lend).chain((0..places).map(|_| LoanKind::Drive));
        let bytes = node::ledger_bytes(None, kinds, lent.len()).expect("there is no table yet");
        Self {
            node: Node::new(index, arena.zeroed_bytes(bytes), switch, (rules, now)),
            seed,
            rails: rails::of_member(seed, index),
            lent,
            places: (0..places).map(|_| Entry { life: 0, claim: None }).collect(),
            disk: BTreeMap::new(),
            next_request: 0,
            disk_is_slow: false,
        }
    }

    pub(super) fn vacant_places(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|place| self.places[*place].claim.is_none()).collect()
    }

    /// Whether a place has a loan of this function: nodes speak of it by its name, so no two places have.
    pub(super) fn asks_for(&self, function: usize) -> bool {
        self.places.iter().flat_map(|place| &place.claim).any(|claim| claim.function == function)
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
        let card = self.node.card.as_ref()?;
        (card.state(loan) == link::State::Open).then(|| card.stream(loan))
    }

    /// What a place has borrowed can be used.
    pub(super) fn note_ready(&mut self, loan: usize, functions: &[Function<'_>]) {
        let place = loan.checked_sub(self.lent.len());
        if let Some(claim) = place.and_then(|place| self.places[place].claim.as_mut()) {
            claim.is_former &= functions[claim.function].lending != Lending::Here;
            claim.was_ready = true;
        }
    }

    /// What has not ended as it should.
    pub(super) fn unrest(&self, functions: &[Function<'_>]) -> Option<String> {
        let Some(card) = &self.node.card else { return Some("it has no card".into()) };
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
            let held = function.tenancy.is_held;
            // Whoever has given it back may have died before its lender heard of that, who keeps it for the hold time,
            // and, until another one comes, what that one has not acknowledged and the pages where it lies.
            let is_kept = function.claim.is_none() && function.kept_for.is_some() && held;
            let ends = is_kept || used == 0 && is_idle && held == function.claim.is_some();
            (!ends).then(|| format!("function {loan}: {used} pages in use, idle: {is_idle}, held: {held}"))
        })
    }

    pub(super) fn config(&self, functions: &[Function<'_>], seed: [u8; 32]) -> CardConfig {
        let lent = self.lent.clone().map(|function| self.lent_loan(&functions[function], function));
        let borrowed = (0..self.places.len()).map(|place| self.borrowed_loan(place, functions));
        let drive = |function: usize| match functions[function].lending {
            Lending::Here => Some(drive_config(function, functions[function].life)),
            Lending::Going | Lending::Away => None,
        };
        let (node, index) = (&self.node, self.node.who().node);
        CardConfig {
            identity: node.identity.clone(),
            name: Name::new(&format!("node-{index}")),
            domain: domain_of(index),
            incarnation: Incarnation(node.incarnation),
            life: node.life_id(),
            restored_as: None,
            generation: CardGeneration(node.generation()),
            seed: Secret(seed),
            protection: link::Protection::Aegis,
            rail_mode: link::RailMode::default(),
            lost_carriers: 0,
            rails: rails::config(self.rails, FRAME),
            drives: self.lent.clone().map(drive).collect(),
            loans: lent.chain(borrowed).collect(),
            holders: node.holders.clone(),
            rekey_frames: 500,
            rules: node.rules,
        }
    }

    pub(super) fn lent_loan(&self, function: &Function<'_>, index: usize) -> LoanConfig {
        match function.lending {
            Lending::Here => {
                let lent = LendConfig { entry: function.entry, ..LendConfig::of(function.place) };
                let role = LoanRole::Lend(lent);
                loan(index, role, (function.tenancy, function.life, 0))
            }
            Lending::Going | Lending::Away => no_loan(function.life),
        }
    }

    pub(super) fn borrowed_loan(&self, place: usize, functions: &[Function<'_>]) -> LoanConfig {
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
        let least = self.node.agent.least_incarnation(self.loan_of(place));
        let loan = loan(claim.function, role, (Tenancy::default(), *life, least));
        match claim.by {
            By::Line => loan,
            By::Entry(generation) => {
                let (generation, slot) = (LoanGeneration(generation), slot_of(place));
                LoanConfig { title: Title::Entry { generation, slot }, ..loan }
            }
        }
    }
}

fn loan(function: usize, role: LoanRole, (tenancy, life, least): (Tenancy, u64, u64)) -> LoanConfig {
    let (secret, function) = (Secret([function as u8; 32]), FunctionId((function as u32).wrapping_add(1)));
    let least_incarnation = Incarnation(least);
    LoanConfig { tenancy, life, least_incarnation, ..LoanConfig::new(secret, function, role) }
}

/// A vacant place, which had this loan.
fn no_loan(life: u64) -> LoanConfig {
    LoanConfig { life, ..LoanConfig::vacant(LoanRole::Vacant) }
}

pub(super) fn domain_of(node: usize) -> DomainId {
    DomainId(node as u32 + 1)
}
