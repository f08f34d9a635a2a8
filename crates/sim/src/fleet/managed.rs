//! A fleet whose functions are given and taken: tables of lenders say whose each is, and somebody changes them at
//! random while everything else goes wrong.
//!
//! Whoever decides tells lender and borrower in any order and at any time. A function is given to a node, is to be
//! given back, or is taken by force; now and then it is promised to the next one before the last has let go. Some ask
//! for what is not theirs: by a line, by the entry of another, or by one that is over.

use base::ids::{Group, LoanGeneration};
use link::State;
use node::{Applied, Assignment, Entry, Holder, Possession};

use super::client::{By, Claim};
use super::member::domain_of;
use super::{Event, World};
use crate::checkers::names;

/// Slots of the entries are not places of cards.
const SLOTS: u16 = 40;
/// Virtual nanoseconds until one who is told something hears of it, at most.
const TOLD: u64 = 40_000_000;
/// Longer than a run.
const FOREVER: core::time::Duration = core::time::Duration::from_secs(600);

/// Who has a stream of a function, as its lender's card shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Had {
    name: Option<u64>,
    node: usize,
}

/// The slot that a place of a node is known by.
pub(super) fn slot_of(place: usize) -> u16 {
    SLOTS + place as u16
}

impl<'w> World<'w> {
    /// The table of a lender changes, or somebody asks for what is not its own.
    pub(super) fn manage(&mut self) {
        match self.random.below(100) {
            0..45 => self.attach(),
            45..65 => self.take_back(false),
            65..85 => self.take_back(true),
            85..93 => self.intrude(),
            _ => self.promise(),
        }
    }

    /// A function that nobody has is this node's from now on, by its lender's table. Returns by which entry.
    pub(super) fn give(&mut self, function: usize, node: usize, place: usize) -> u64 {
        let generation = self.newest(function) + 1;
        let hold = if self.random.chance(200) { core::time::Duration::ZERO } else { FOREVER };
        let to = Assignment {
            node: self.members[node].node.identity.id(),
            domain: domain_of(node),
            slot: slot_of(place),
            group: Group::DEFAULT,
            hold,
        };
        self.order(function, Entry { generation: LoanGeneration(generation), holder: Holder::Assigned(to) });
        generation
    }

    /// The entry that was decided last.
    fn newest(&self, function: usize) -> u64 {
        self.functions[function].decided.map_or(0, |entry| entry.generation.0)
    }

    /// The lender hears of an entry, now or later.
    fn order(&mut self, function: usize, entry: Entry) {
        self.functions[function].decided = Some(entry);
        if self.random.chance(500) {
            self.enter(function, entry);
        } else {
            let after = self.random.below(TOLD);
            self.clock.after(after, Event::Enter(function, entry));
        }
    }

    /// It is in the lender's table, which outlives everything; its card is told.
    pub(super) fn enter(&mut self, function: usize, entry: Entry) {
        let this = &mut self.functions[function];
        // What was decided before comes too late.
        if this.decided != Some(entry) {
            return;
        }
        this.entry = Some(entry);
        let (lender, place) = (this.lender, this.place);
        self.note("entry", lender);
        self.fleet.entries += 1;
        self.tell(lender, place, |card, now| card.set_entry(now, place, entry));
    }

    /// Somebody has to give a function back, or loses it at once.
    fn take_back(&mut self, forced: bool) {
        let taken = |holder: Holder| match holder {
            Holder::Assigned(from) => Some(from),
            Holder::Leaving { from, forced: false } if forced => Some(from),
            _ => None,
        };
        let can_go = |function: &usize| {
            let decided = self.functions[*function].decided;
            decided.and_then(|entry| taken(entry.holder)).is_some()
        };
        let all: Vec<usize> = (0..self.functions.len()).filter(can_go).collect();
        if all.is_empty() {
            return;
        }
        let function = all[self.random.index(all.len())];
        let Some(before) = self.functions[function].decided else { return };
        let Some(from) = taken(before.holder) else { return };
        let is_anew = matches!(before.holder, Holder::Assigned(_));
        let generation = LoanGeneration(before.generation.0 + u64::from(is_anew));
        self.fleet.forced += u64::from(forced);
        self.order(function, Entry { generation, holder: Holder::Leaving { from, forced } });
        // The borrower hears of it, too, now or when it is refused.
        if let Some((node, place)) = self.functions[function].claim
            && self.random.chance(700)
        {
            let at_once = self.random.chance(300);
            self.begin_detach(node, place, at_once);
        }
    }

    /// A function is another node's before whoever has it has let go.
    fn promise(&mut self) {
        let is_had = |function: &usize| {
            let decided = self.functions[*function].decided;
            decided.is_some_and(|entry| matches!(entry.holder, Holder::Assigned(_)))
        };
        let had: Vec<usize> = (0..self.functions.len()).filter(is_had).collect();
        let node = self.random.index(self.members.len());
        let places = self.members[node].vacant_places();
        if had.is_empty() || places.is_empty() {
            return;
        }
        let function = had[self.random.index(had.len())];
        let Some((from, left)) = self.functions[function].claim else { return };
        if self.members[node].asks_for(function) || self.functions[function].lender == node {
            return;
        }
        self.fleet.promised += 1;
        self.claim_by_entry(function, node, places[0]);
        self.begin_detach(from, left, false);
    }

    /// A node has a function by an entry from now on.
    pub(super) fn claim_by_entry(&mut self, function: usize, node: usize, place: usize) {
        self.claims += 1;
        self.functions[function].claim = Some((node, place));
        self.functions[function].last_user = Some(node);
        let generation = self.give(function, node, place);
        let claim = Claim::by(By::Entry(generation), self.claims, function);
        self.attach_to(node, place, claim);
    }

    /// Somebody asks for what is not its own.
    fn intrude(&mut self) {
        let function = self.random.index(self.functions.len());
        let node = self.random.index(self.members.len());
        let places = self.members[node].vacant_places();
        let this = &self.functions[function];
        if this.lender == node || self.members[node].asks_for(function) || places.is_empty() {
            return;
        }
        let newest = self.newest(function);
        let by = match self.random.below(4) {
            0 => By::Line,
            1 => By::Entry(newest + 1 + self.random.below(3)),
            2 => By::Entry(newest.saturating_sub(1).max(1)),
            _ => By::Entry(newest.max(1)),
        };
        self.claims += 1;
        let claim = Claim::by(by, self.claims, function).intruding();
        self.fleet.intruders += 1;
        self.attach_to(node, places[0], claim);
    }

    /// A lender has refused a loan: what is not its borrower's any more is given up.
    pub(super) fn note_refused(&mut self, node: usize, loan: usize) {
        let Some(place) = loan.checked_sub(self.members[node].lent.len()) else { return };
        let Some(claim) = &self.members[node].places[place].claim else { return };
        if claim.is_intruder {
            if self.random.chance(300) {
                self.begin_detach(node, place, true);
            }
        } else if !self.is_current(claim, node, place) {
            self.begin_detach(node, place, true);
        }
    }

    /// Whether a claim is by what was decided last.
    pub(super) fn is_current(&self, claim: &Claim, node: usize, place: usize) -> bool {
        let decided = self.functions[claim.function].decided;
        let is_its =
            |to: Assignment| (to.node, to.slot) == (self.members[node].node.identity.id(), slot_of(place));
        decided.is_some_and(|entry| {
            By::Entry(entry.generation.0) == claim.by && entry.assigned().is_some_and(is_its)
        })
    }

    /// Those who are not to have anything give it up, when nothing else goes wrong any more.
    pub(super) fn clear_up(&mut self) {
        for node in 0..self.members.len() {
            for place in 0..self.members[node].places.len() {
                let claim = self.members[node].places[place].claim.as_ref();
                if claim.is_some_and(|claim| !self.is_current(claim, node, place)) {
                    self.begin_detach(node, place, true);
                }
            }
        }
        for function in 0..self.functions.len() {
            if let Some(entry) = self.functions[function].decided
                && self.functions[function].entry != Some(entry)
            {
                self.enter(function, entry);
            }
        }
    }

    /// The card of a lender says how far a function is.
    pub(super) fn note_applied(&mut self, node: usize, loan: usize, applied: Applied) {
        let function = self.members[node].lent.start + loan;
        let known = self.functions[function].entry;
        if known.is_none_or(|entry| applied.generation > entry.generation) {
            let what = format!("function {function} acts by {applied:?}, which is in no table");
            return self.fail(names::ENTRIES, what);
        }
        if applied.held != Possession::Nobody {
            return;
        }
        if self.members[node].disk.values().any(|submitted| submitted.function == function) {
            let what = format!("nobody has function {function}, of which the disk has something");
            return self.fail(names::ENTRIES, what);
        }
        if self.functions[function].tenancy.is_held {
            let what = format!("nobody has function {function}, which somebody has by what is durable");
            return self.fail(names::ENTRIES, what);
        }
        let Some(decided) = self.functions[function].decided else { return };
        if decided.generation == applied.generation && matches!(decided.holder, Holder::Leaving { .. }) {
            self.fleet.freed += 1;
            self.order(function, Entry { holder: Holder::Nobody, ..decided });
        }
    }

    /// Whose the streams of a lender are.
    pub(super) fn check_entries(&mut self, node: usize) {
        for function in self.members[node].lent.clone() {
            if let Err(what) = self.check_entry(function) {
                return self.fail(names::ENTRIES, format!("function {function}: {what}"));
            }
        }
    }

    fn check_entry(&mut self, function: usize) -> Result<(), String> {
        let this = &self.functions[function];
        let (Some(card), loan) = (&self.members[this.lender].node.card, this.place) else { return Ok(()) };
        let stream = card.stream(loan);
        let is_had = matches!(card.state(loan), State::Open | State::Resetting);
        let peer = card.peer_of(loan).filter(|_| is_had);
        let key = peer.and_then(|peer| card.peers().find(|(place, _)| *place == peer)).map(|(_, key)| key);
        let holder = self.members.iter().position(|it| Some(it.node.identity.public()) == key);
        let (Some(holder), Some(entry)) = (holder, this.entry) else {
            let is_lineless = holder.is_some() && is_had;
            self.functions[function].had = None;
            return if is_lineless { Err("a line has opened it".into()) } else { Ok(()) };
        };
        let had = Had { name: stream.name(), node: holder };
        let to = entry.assigned();
        let is_its = to.is_some_and(|to| to.node == self.members[holder].node.identity.id())
            && stream.generation() == entry.generation;
        let generation = stream.generation();
        let before = self.functions[function].had.replace(had);
        match entry.holder {
            Holder::Nobody => Err(format!("node {holder} has a stream, and nobody is to have it")),
            Holder::Leaving { forced: true, .. } => Err(format!("node {holder} is still there, by force")),
            _ if before == Some(had) || is_its && before.is_none_or(|before| before.node == holder) => Ok(()),
            _ if is_its => Err(format!("node {holder} has got it before {before:?} has let go")),
            _ => Err(format!("node {holder} has opened it by {generation}, which is not its: {entry:?}")),
        }
    }

    /// What has not come to what was decided.
    pub(super) fn unsettled(&self) -> Option<String> {
        let waits = |(index, function): (usize, &super::Function<'_>)| {
            let is_leaving =
                function.decided.is_some_and(|entry| matches!(entry.holder, Holder::Leaving { .. }));
            let is_late = function.decided != function.entry;
            (is_leaving || is_late)
                .then(|| format!("function {index} is not settled: {:?}", function.decided))
        };
        self.functions.iter().enumerate().find_map(waits)
    }
}
