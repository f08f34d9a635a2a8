//! What was asked of a card, and is asked of its successors too, since it may have died before it heard of it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Output};

/// How a loan ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    /// Its lender takes it back.
    InOrder,
    /// Nobody waits for its lender.
    Forgotten,
}

impl Return {
    fn tell(self, loan: usize) -> Effect {
        match self {
            Self::InOrder => Effect::TellReturn { loan },
            Self::Forgotten => Effect::TellForget { loan },
        }
    }
}

#[derive(Default)]
pub(super) struct Standing {
    /// The node ends: everything is to be given back.
    pub(super) is_ending: bool,
    /// Loans that are being given back while the node goes on.
    returning: BTreeMap<usize, Return>,
    /// Slots of which the function is not there for the machine that has them.
    absent: BTreeSet<usize>,
}

impl Standing {
    /// Another card is there.
    pub(super) fn handle_started(&mut self, out: &mut Output) {
        if self.is_ending {
            out.effect(Effect::TellEnd);
        }
        self.absent.iter().for_each(|&loan| out.effect(Effect::TellPresence { loan, is_present: false }));
        self.returning.iter().for_each(|(&loan, how)| out.effect(how.tell(loan)));
    }

    pub(super) fn handle_shut_down(&mut self, out: &mut Output) {
        self.is_ending = true;
        out.effect(Effect::TellEnd);
    }

    pub(super) fn handle_detach(&mut self, loan: usize, out: &mut Output) {
        if let Entry::Vacant(place) = self.returning.entry(loan) {
            out.effect(place.insert(Return::InOrder).tell(loan));
        }
    }

    pub(super) fn handle_abandoned(&mut self, loan: usize, out: &mut Output) {
        if self.returning.insert(loan, Return::Forgotten) != Some(Return::Forgotten) {
            out.effect(Return::Forgotten.tell(loan));
        }
    }

    pub(super) fn handle_presence(&mut self, loan: usize, is_present: bool, out: &mut Output) {
        if is_present {
            self.absent.remove(&loan);
        } else {
            self.absent.insert(loan);
        }
        out.effect(Effect::TellPresence { loan, is_present });
    }

    /// Whoever has the slot now finds the function, as any new client does.
    pub(super) fn handle_client(&mut self, loan: usize) {
        self.absent.remove(&loan);
    }

    pub(super) fn handle_given_back(&mut self, loan: usize, out: &mut Output) {
        self.absent.remove(&loan);
        if self.returning.remove(&loan).is_some() {
            out.effect(Effect::Vacate { loan });
        }
    }

    pub(super) fn handle_attached(&mut self, loan: usize) {
        self.absent.remove(&loan);
        self.returning.remove(&loan);
    }
}
