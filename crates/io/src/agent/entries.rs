//! Managed loans: what the node's table says of what it lends, and how far the card is with that.
//!
//! An entry is durable before it comes here. It is in the plan of every card from then on, and the present one is told:
//! so whatever dies when, the next card acts by it.

use std::collections::BTreeMap;

use base::ids::LoanGeneration;
use node::{Applied, Entry};

use super::{Agent, AgentEvent, LoanEnd};
use crate::messages::ToLoan;

/// What cards have said, by loan.
#[derive(Default)]
pub(super) struct Entries {
    known: BTreeMap<usize, Known>,
}

struct Known {
    applied: Applied,
    /// By which generation it was said that its borrower is overdue, who has not been heard since.
    overdue: Option<LoanGeneration>,
}

impl Entries {
    /// A card says how far a loan is. What the role is to hear of it: a new card says what it knows already.
    pub(super) fn note(&mut self, loan: usize, applied: Applied) -> Vec<AgentEvent> {
        let before = self.known.get(&loan);
        let is_news = before.is_none_or(|known| {
            (known.applied.generation, known.applied.held) != (applied.generation, applied.held)
        });
        let said = before.and_then(|known| known.overdue);
        let generation = applied.generation;
        let (overdue, is_late) = match applied.is_overdue {
            Some(true) => (Some(generation), said != Some(generation)),
            Some(false) => (None, false),
            None => (said, false),
        };
        self.known.insert(loan, Known { applied, overdue });
        let news = is_news.then_some(AgentEvent::Applied { loan, applied });
        let late = is_late.then_some(AgentEvent::HoldOver { loan, generation });
        news.into_iter().chain(late).collect()
    }

    /// Another loan has the place, or none.
    pub(super) fn forget(&mut self, loan: usize) {
        self.known.remove(&loan);
    }
}

impl Agent {
    /// The node's table has this entry of what a loan lends, which is durable: a greater generation than before, or the
    /// same one and the end is forced now. The card acts by it as soon as it can, without a pause for other loans;
    /// [`AgentEvent::Applied`] says how far it is. A loan that lends nothing has no entry.
    pub fn set_entry(&mut self, loan: usize, entry: Entry) {
        let end = self.spec.loans.get_mut(loan).map(|loan| &mut loan.config.role);
        let Some(LoanEnd::Lend(lent)) = end else { return };
        lent.entry = Some(entry);
        self.tell_of(loan, ToLoan::Entry(entry));
    }

    /// How far the card was with the entry of a loan when it was last heard of; `None`: it has none, or no card has
    /// said so yet.
    pub fn applied(&self, loan: usize) -> Option<Applied> {
        self.entries.known.get(&loan).map(|known| known.applied)
    }
}

#[cfg(test)]
mod tests {
    use node::Possession;

    use super::*;

    fn applied(generation: u64, held: Possession, is_overdue: Option<bool>) -> Applied {
        Applied { generation: LoanGeneration(generation), held, is_overdue }
    }

    #[test]
    fn a_change_is_told_once_whoever_says_it() {
        let mut entries = Entries::default();
        let leaving = applied(2, Possession::Leaving, None);
        assert_eq!(entries.note(7, leaving), [AgentEvent::Applied { loan: 7, applied: leaving }]);
        assert_eq!(entries.note(7, leaving), [], "another card");
        assert_eq!(entries.note(8, leaving).len(), 1, "of another loan");
        for next in [applied(2, Possession::Nobody, None), applied(3, Possession::Nobody, None)] {
            assert_eq!(entries.note(7, next), [AgentEvent::Applied { loan: 7, applied: next }]);
        }
        entries.forget(7);
        assert_eq!(entries.note(7, applied(3, Possession::Nobody, None)).len(), 1, "of another loan there");
    }

    #[test]
    fn silence_is_told_once_until_somebody_is_heard() {
        let mut entries = Entries::default();
        let silent = |is_overdue| applied(4, Possession::Assigned, is_overdue);
        let over = AgentEvent::HoldOver { loan: 0, generation: LoanGeneration(4) };
        entries.note(0, silent(Some(false)));
        assert_eq!(entries.note(0, silent(Some(true))), std::slice::from_ref(&over));
        // Another card does not know, and then finds the same.
        assert_eq!(entries.note(0, silent(None)), []);
        assert_eq!(entries.note(0, silent(Some(true))), []);
        assert_eq!(entries.note(0, silent(Some(false))), []);
        assert_eq!(entries.note(0, silent(Some(true))), [over]);
        assert_eq!(
            entries.note(0, applied(5, Possession::Assigned, Some(true))).len(),
            2,
            "of another entry"
        );
    }
}
