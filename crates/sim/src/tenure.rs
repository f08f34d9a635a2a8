//! Who has a loan, who had it, and what those are told.

use link::Tenancy;

use crate::client::Excuse;
use crate::stage::NODES;

/// The tenancies of a loan.
#[derive(Default)]
pub(crate) struct Tenure {
    /// What the lender's agent has made durable.
    pub(crate) tenancy: Tenancy,
    /// All that it has ever made durable.
    pub(crate) tenancies: Vec<Tenancy>,
    /// The node whose tenancy it is.
    pub(crate) holder: Option<usize>,
    /// By node: another one has had the drive since, and it has not been told.
    pub(crate) displaced: [bool; NODES],
    /// By node: another one has taken the function since it may have been let in, which it takes for the same.
    pub(crate) outrun: [bool; NODES],
    /// By node: of which tenancy it was told so last, if it ever was.
    told: [Option<u64>; NODES],
    /// By node: it has been told, so what it had not flushed may be lost.
    has_lost: [bool; NODES],
    /// By node: the tick at which another one had it, or itself took it again: what its clients had asked before may
    /// fail.
    taken_again: [u64; NODES],
}

/// How right it is to tell a node that another one has used its drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Rightly,
    /// The card before this one may have died right after it said so, before it served anything again.
    Again,
    Wrongly,
}

impl Tenure {
    /// Which requests of a borrower's clients may fail.
    pub(crate) fn excuse(&self, node: usize, is_shutting_down: bool) -> Excuse {
        let is_displaced = (self.displaced[node] || self.has_lost[node]) && self.holder != Some(node);
        if is_shutting_down || is_displaced {
            return Excuse { before: u64::MAX, flushes: true };
        }
        Excuse { before: self.taken_again[node], flushes: self.has_lost[node] }
    }

    /// Another borrower than before, or none any more, which is not durable yet.
    pub(crate) fn is_wanted(&mut self, taker: Option<usize>) {
        // If that one leaves before it is durable, the one before is told all the same.
        if let Some(holder) = self.holder.filter(|holder| Some(*holder) != taker) {
            self.displaced[holder] = true;
        }
        // Whose first frame was lost knows nothing of that: it was answered, and takes itself for the user.
        for node in 1..NODES {
            self.outrun[node] |= Some(node) != taker;
        }
    }

    /// That is durable: who has lost the loan by it.
    pub(crate) fn changes(&mut self, tenancy: Tenancy, holder: Option<usize>, tick: u64) -> Option<usize> {
        self.tenancy = tenancy;
        self.tenancies.push(tenancy);
        let former = core::mem::replace(&mut self.holder, holder).filter(|former| Some(*former) != holder);
        holder.into_iter().for_each(|holder| self.taken_again[holder] = tick);
        former.into_iter().for_each(|former| self.displaced[former] = true);
        former
    }

    /// A node is told that another one has used its drive. `is_served` says whether it was served anything that was
    /// asked for since a tick.
    pub(crate) fn is_told(&mut self, node: usize, is_served: impl FnOnce(u64) -> bool) -> Told {
        let was_outrun = core::mem::take(&mut self.outrun[node]);
        let number = self.tenancy.number;
        let was_told = self.told[node].replace(number) == Some(number);
        if core::mem::take(&mut self.displaced[node]) || was_outrun {
            Told::Rightly
        } else if was_told && !is_served(self.taken_again[node]) {
            Told::Again
        } else {
            Told::Wrongly
        }
    }

    /// What it had not flushed at this tick may be lost.
    pub(crate) fn has_lost(&mut self, node: usize, tick: u64) {
        self.has_lost[node] = true;
        self.taken_again[node] = tick;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_displaced_is_told_once_and_again_until_it_was_served() {
        let mut tenure = Tenure::default();
        let tenancy = |number| Tenancy { number, ..Tenancy::default() };
        assert_eq!(tenure.is_told(2, |_| false), Told::Wrongly, "nobody has anything yet");
        assert_eq!(tenure.changes(tenancy(1), Some(1), 5), None);
        assert!(!tenure.excuse(1, false).flushes && tenure.excuse(1, true).flushes);
        assert_eq!(tenure.is_told(1, |_| false), Told::Wrongly);
        assert_eq!(tenure.changes(tenancy(2), Some(2), 6), Some(1));
        assert_eq!(tenure.excuse(1, false).before, u64::MAX);
        assert_eq!(tenure.is_told(1, |_| false), Told::Rightly);
        assert_eq!(tenure.is_told(1, |since| since != 5), Told::Again);
        assert_eq!(tenure.is_told(1, |_| true), Told::Wrongly);
        tenure.is_wanted(Some(1));
        assert_eq!(tenure.is_told(2, |_| true), Told::Rightly, "though that is not durable");
    }
}
