//! What is made durable before a card is told of it: who uses what this node lends, and by which incarnation it calls
//! itself in what it borrows. And where those are who use it, for the next life of the node.

use core::time::Duration;
use std::collections::BTreeMap;

use base::ids::NodeId;
use base::{Instant, Rule, RuleSet};
use link::Tenancy;

use super::event::Event;
use super::{Effect, Output};
use crate::Whereabouts;

/// Between two attempts to write the state folder.
const RETRY: Duration = Duration::from_secs(1);
/// A function whose user has changed twice within this time waits for the rest of it, should it change once more: each
/// change costs a write to the disk.
const CHANGES: Duration = Duration::from_secs(1);
/// A lender that lies could say of each new incarnation that it is outdated: then it costs a write now and then,
/// however many loans are of it.
const RAISES: Duration = Duration::from_secs(1);

/// Changes of who uses what, until they are durable, by loan.
pub(super) struct Tenants {
    rules: RuleSet,
    loans: BTreeMap<usize, Kept<Tenancy>>,
}

/// What is kept of one loan, or node.
///
/// ```text
/// wanted --not too soon--> writing --durable--> the card is told
///    ^                        |
///    +-------not written------+
/// ```
struct Kept<T> {
    wanted: Option<T>,
    writing: Option<T>,
    /// When its last two changes were written.
    written: [Option<Instant>; 2],
    /// The last attempt has failed, and there is none before this.
    retry_at: Option<Instant>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { wanted: None, writing: None, written: [None; 2], retry_at: None }
    }
}

impl<T: Copy + PartialEq> Kept<T> {
    /// When what is wanted may be written.
    fn due_at(&self) -> Option<Instant> {
        if self.wanted.is_none() || self.writing.is_some() {
            return None;
        }
        let paced = self.written[0].map(|at| at + CHANGES);
        Some(paced.max(self.retry_at).unwrap_or(Instant::ZERO))
    }

    /// What is to be written now.
    fn begin(&mut self, now: Instant) -> Option<T> {
        self.due_at().filter(|at| *at <= now)?;
        (self.writing, self.retry_at) = (self.wanted.take(), None);
        self.writing
    }

    /// Another card may say again what is just being written.
    fn want(&mut self, value: T) {
        self.wanted = Some(value).filter(|_| self.writing != Some(value));
    }

    /// What was written, or could not be and is tried again. `None` where nothing was.
    fn end(&mut self, now: Instant, is_written: bool) -> Option<T> {
        let value = self.writing.take()?;
        match is_written {
            true => self.written = [self.written[1], Some(now)],
            false => {
                self.retry_at = Some(now + RETRY);
                self.wanted.get_or_insert(value);
            }
        }
        Some(value)
    }
}

impl Tenants {
    pub(super) fn new(rules: RuleSet) -> Self {
        Self { rules, loans: BTreeMap::new() }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.loans.values().filter_map(Kept::due_at).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        for (&loan, lent) in &mut self.loans {
            if let Some(tenancy) = lent.begin(now) {
                out.effect(Effect::StoreTenancy { loan, tenancy });
            }
        }
    }

    pub(super) fn handle_tenant(&mut self, now: Instant, loan: usize, tenancy: Tenancy, out: &mut Output) {
        self.loans.entry(loan).or_default().want(tenancy);
        if !self.rules.has(Rule::StoreBeforeTell) {
            out.effect(Effect::TellTenancy { loan, tenancy });
        }
        self.handle_timeout(now, out);
    }

    /// What could not be written is tried again: until then its user waits, since nobody could tell after a restart
    /// that there was one.
    pub(super) fn handle_stored(
        &mut self,
        now: Instant,
        loan: usize,
        result: Result<(), String>,
        out: &mut Output,
    ) {
        let Some(lent) = self.loans.get_mut(&loan) else { return };
        let Some(tenancy) = lent.end(now, result.is_ok()) else { return };
        match result {
            Ok(()) => out.effect(Effect::TellTenancy { loan, tenancy }),
            Err(error) => {
                out.event(Event::TenancyUnsaved { loan, tenancy, again_in: RETRY, error });
            }
        }
        self.handle_timeout(now, out);
    }

    /// Another loan has the place, or none.
    pub(super) fn forget(&mut self, loan: usize) {
        self.loans.remove(&loan);
    }

    pub(super) fn has_unsaved(&self, loan: usize) -> bool {
        self.loans.get(&loan).is_some_and(|lent| lent.wanted.or(lent.writing).is_some())
    }

    pub(super) fn take_unsaved(&mut self) -> Vec<(usize, Tenancy)> {
        let loans = core::mem::take(&mut self.loans).into_iter();
        loans.filter_map(|(loan, lent)| Some((loan, lent.wanted.or(lent.writing)?))).collect()
    }
}

/// Where those are who have something of this node, until that is durable, by node. Nobody waits for it: what is lost
/// of it is said again by the next card.
#[derive(Default)]
pub(super) struct Holders {
    nodes: BTreeMap<NodeId, Kept<Whereabouts>>,
}

impl Holders {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.nodes.values().filter_map(Kept::due_at).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        for kept in self.nodes.values_mut() {
            if let Some(holder) = kept.begin(now) {
                out.effect(Effect::StoreHolder(holder));
            }
        }
    }

    pub(super) fn handle_located(&mut self, now: Instant, holder: Whereabouts, out: &mut Output) {
        self.nodes.entry(holder.node()).or_default().want(holder);
        self.handle_timeout(now, out);
    }

    pub(super) fn handle_stored(
        &mut self,
        now: Instant,
        node: NodeId,
        result: Result<(), String>,
        out: &mut Output,
    ) {
        let Some(kept) = self.nodes.get_mut(&node) else { return };
        if kept.end(now, result.is_ok()).is_some()
            && let Err(error) = result
        {
            out.event(Event::HolderUnsaved { node, again_in: RETRY, error });
        }
        self.handle_timeout(now, out);
    }

    /// It has nothing of this node any more.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }
}

/// By which incarnation the node calls itself at least, by loan.
#[derive(Default)]
pub(super) struct Incarnations {
    least: BTreeMap<usize, u64>,
    /// Loans whose lenders have seen a later life than this one, and which. They all get the incarnation that is raised
    /// next, if it is above that, for it is the node's.
    outdated: BTreeMap<usize, u64>,
    /// When the state folder was last asked for a greater one, and for which loan.
    asked: Option<(Instant, usize)>,
}

impl Incarnations {
    pub(super) fn least(&self, loan: usize) -> u64 {
        self.least.get(&loan).copied().unwrap_or(0)
    }

    /// Nothing is taken from anybody by a greater incarnation: the lender lets it in when whoever has the function does
    /// not answer.
    pub(super) fn handle_outdated(&mut self, now: Instant, loan: usize, seen: u64, out: &mut Output) {
        if self.least(loan) > seen {
            return;
        }
        self.outdated.insert(loan, seen);
        let last = match self.asked {
            Some((at, _)) if now < at + RAISES => return,
            Some((_, last)) => last,
            None => usize::MAX,
        };
        // In turn: what one lender has seen may be no number that there can be.
        let mut behind = self.outdated.range(last.saturating_add(1)..).chain(&self.outdated);
        if let Some((&loan, &seen)) = behind.next() {
            self.asked = Some((now, loan));
            out.effect(Effect::RaiseIncarnation { loan, seen });
        }
    }

    pub(super) fn handle_raised(&mut self, loan: usize, incarnation: u64, out: &mut Output) {
        self.outdated.insert(loan, 0);
        self.outdated.retain(|&loan, seen| {
            let is_above = incarnation > *seen;
            if is_above {
                self.least.insert(loan, incarnation);
                out.effect(Effect::TellIncarnation { loan, incarnation });
            }
            !is_above
        });
    }

    /// Another loan has the place.
    pub(super) fn forget(&mut self, loan: usize) {
        self.least.remove(&loan);
        self.outdated.remove(&loan);
    }
}
