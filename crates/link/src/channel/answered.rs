//! Which first messages a lender has answered, so that none is answered twice, whoever sends it again and whenever.

use base::ids::NodeId;
use base::ledger::{Cell, Journal};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Nodes whose last answered attempt is remembered.
const NODES: usize = 64;

/// Orders the handshakes of one node: only a greater attempt is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Attempt {
    /// First, so that a new life of a node need not know how far the one before had counted.
    pub(super) incarnation: u64,
    pub(super) number: u64,
}

/// The table in the ledger. All zeroes: nobody was answered.
///
/// A node that is not in the table is answered once more, if someone has kept an old message of it. So those are forgotten
/// first who were answered and have never proven to be there: whoever repeats old messages pushes out only them.
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct AnsweredCells {
    entries: [Cell<Entry>; NODES],
    /// Handshakes that nodes have completed.
    completed: Cell<u64>,
}

#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Entry {
    node: u64,
    incarnation: u64,
    number: u64,
    /// Whether something is here.
    used: u32,
    reserved: u32,
    /// The last handshake that this node has completed, counted over all; zero for none.
    completed: u64,
}

impl AnsweredCells {
    /// Whether `attempt` of `node` is greater than the last one that was answered, as far as is remembered.
    pub(super) fn is_new(&self, node: NodeId, attempt: Attempt) -> bool {
        self.find(node).is_none_or(|cell| {
            let Entry { incarnation, number, .. } = cell.get();
            attempt > Attempt { incarnation, number }
        })
    }

    /// `attempt` of `node` is being answered.
    pub(super) fn record(&self, journal: Journal<'_>, node: NodeId, attempt: Attempt) {
        let known = self.find(node);
        let completed = known.map_or(0, |cell| cell.get().completed);
        let oldest = || self.entries.iter().min_by_key(|cell| (cell.get().used, cell.get().completed));
        let cell = known.or_else(oldest).expect("the table has entries");
        let Attempt { incarnation, number } = attempt;
        cell.set(journal, Entry { node: node.0, incarnation, number, used: 1, reserved: 0, completed });
    }

    /// `node` has used the keys of its handshake: it is there.
    pub(super) fn complete(&self, journal: Journal<'_>, node: NodeId) {
        let completed = self.completed.update(journal, |completed| completed + 1);
        if let Some(cell) = self.find(node) {
            cell.update(journal, |entry| Entry { completed, ..entry });
        }
    }

    fn find(&self, node: NodeId) -> Option<&Cell<Entry>> {
        self.entries.iter().find(|cell| {
            let entry = cell.get();
            entry.used != 0 && entry.node == node.0
        })
    }
}

#[cfg(test)]
mod tests {
    use base::RuleSet;
    use base::ledger::{Arena, Ledger};

    use super::*;

    fn attempt(incarnation: u64, number: u64) -> Attempt {
        Attempt { incarnation, number }
    }

    #[test]
    fn each_attempt_is_answered_once_and_never_an_older_one() {
        let arena = Arena::default();
        let Ledger { journal, root } =
            arena.zeroed::<AnsweredCells>().ledger::<AnsweredCells>(None, RuleSet::ALL);
        assert!(root.is_new(NodeId(0), attempt(0, 0)), "zero is a node like any other");
        root.record(journal, NodeId(0), attempt(1, 5));
        for (old, incarnation, number) in
            [(true, 1, 5), (true, 1, 4), (true, 0, 9), (false, 1, 6), (false, 2, 1)]
        {
            assert_eq!(!root.is_new(NodeId(0), attempt(incarnation, number)), old);
        }
        assert!(root.is_new(NodeId(1), attempt(1, 1)));
    }

    #[test]
    fn who_was_there_is_remembered_longer_than_who_was_only_answered() {
        let arena = Arena::default();
        let Ledger { journal, root } =
            arena.zeroed::<AnsweredCells>().ledger::<AnsweredCells>(None, RuleSet::ALL);
        for node in 0..NODES as u64 - 1 {
            root.record(journal, NodeId(node), attempt(1, 1));
            root.complete(journal, NodeId(node));
            journal.commit();
        }
        for stranger in 1000..1200 {
            root.record(journal, NodeId(stranger), attempt(1, 1));
            journal.commit();
        }
        assert!((0..NODES as u64 - 1).all(|node| !root.is_new(NodeId(node), attempt(1, 1))));
        // When all have been there, the one goes that was there longest ago.
        root.complete(journal, NodeId(1199));
        root.complete(journal, NodeId(0));
        root.record(journal, NodeId(2000), attempt(1, 1));
        assert!(root.is_new(NodeId(1), attempt(1, 1)) && !root.is_new(NodeId(0), attempt(1, 1)));
    }
}
