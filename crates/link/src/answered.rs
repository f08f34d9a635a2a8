//! Which first messages a node has answered, so that none is answered twice, whoever sends it again and whenever.

use base::ids::{Group, Incarnation, LifeId, NodeId};
use base::ledger::{Cell, Journal, Layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Nodes whose last answered attempt is remembered.
const NODES: usize = 64;

/// One attempt of a node to begin a handshake. Of one node only a greater one is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attempt {
    pub(crate) node: NodeId,
    /// For the channel in this group: each counts for itself.
    pub(crate) group: Group,
    /// First, so that a new life of a node need not know how far the one before had counted.
    pub(crate) incarnation: Incarnation,
    /// Two lives that bear one incarnation cannot be ordered: the one that was answered counts.
    pub(crate) life: LifeId,
    pub(crate) number: u64,
}

impl Attempt {
    /// How this attempt of a node compares to one of it that was answered.
    pub(crate) fn order_after(&self, known: &Self) -> Order {
        if self.incarnation > known.incarnation {
            return Order::New;
        }
        match self.incarnation == known.incarnation && self.life == known.life {
            true if self.number > known.number => Order::New,
            true if self.number == known.number => Order::Same,
            true => Order::Late,
            false => Order::Old(known.incarnation),
        }
    }
}

/// How an attempt compares to the last one of its node that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// It is greater, or the node is not remembered.
    New,
    /// It is the very same, perhaps on another path.
    Same,
    /// It is an earlier one of the same life, which has called again since.
    Late,
    /// It is older, or of another life with the same incarnation. This is the greatest incarnation that was answered.
    Old(Incarnation),
}

/// Names a first message among all that come to a channel, wherever it comes from: the same message may come from
/// several addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallName(u64);

impl CallName {
    pub(crate) fn of(attempt: &Attempt) -> Self {
        let Attempt { node, group, incarnation, life, number } = attempt;
        let words = [group.0.into(), incarnation.0, *number].map(u64::to_le_bytes);
        Self(crate::tlp_digest(&[&node.0[..], &life.0, words.as_flattened()].concat()))
    }

    /// One of this life, for tests of who keeps such names.
    pub fn of_life(life: LifeId, number: u64) -> Self {
        let (node, group, incarnation) = (NodeId::default(), Group::DEFAULT, Incarnation(1));
        Self::of(&Attempt { node, group, incarnation, life, number })
    }
}

/// The table in the ledger. All zeroes: nobody was answered.
///
/// A node that is not in the table is answered once more, if someone has kept an old message of it. So those are
/// forgotten first who were answered and have never proven to be there: whoever repeats old messages pushes out only
/// them.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct AnsweredCells {
    entries: [Cell<Entry>; NODES],
    /// Handshakes that nodes have completed.
    completed: Cell<u64>,
}

#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Entry {
    node: NodeId,
    group: [u8; 2],
    /// Whether something is here.
    used: [u8; 2],
    incarnation: u64,
    life: LifeId,
    number: u64,
    /// The last handshake that this node has completed, counted over all; zero for none.
    completed: u64,
}

impl Entry {
    fn attempt(&self) -> Attempt {
        let &Self { node, group, incarnation, life, number, .. } = self;
        let (group, incarnation) = (Group(u16::from_le_bytes(group)), Incarnation(incarnation));
        Attempt { node, group, incarnation, life, number }
    }
}

impl AnsweredCells {
    /// How `attempt` compares to the last one that was answered, as far as is remembered.
    pub(crate) fn order(&self, attempt: &Attempt) -> Order {
        let known = self.find(attempt.node, attempt.group).map(|cell| cell.get());
        known.map_or(Order::New, |entry| attempt.order_after(&entry.attempt()))
    }

    /// `attempt` is being answered.
    pub(crate) fn record(&self, journal: Journal<'_>, attempt: &Attempt) {
        let known = self.find(attempt.node, attempt.group);
        let completed = known.map_or(0, |cell| cell.get().completed);
        let oldest = || self.entries.iter().min_by_key(|cell| (cell.get().used, cell.get().completed));
        let cell = known.or_else(oldest).expect("the table has entries");
        let &Attempt { node, group, incarnation: Incarnation(incarnation), life, number } = attempt;
        let group = group.0.to_le_bytes();
        cell.set(journal, Entry { node, group, used: [1; 2], incarnation, life, number, completed });
    }

    /// `node` has used the keys of its handshake: it is there.
    pub(crate) fn complete(&self, journal: Journal<'_>, node: NodeId, group: Group) {
        let completed = self.completed.update(journal, |completed| completed + 1);
        if let Some(cell) = self.find(node, group) {
            cell.update(journal, |entry| Entry { completed, ..entry });
        }
    }

    fn find(&self, node: NodeId, group: Group) -> Option<&Cell<Entry>> {
        self.entries.iter().find(|cell| {
            let entry = cell.get();
            entry.used != [0; 2] && (entry.node, entry.group) == (node, group.0.to_le_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use base::RuleSet;
    use base::ledger::{Arena, Ledger};

    use super::*;

    fn attempt(node: u64, incarnation: u64, number: u64) -> Attempt {
        let incarnation = Incarnation(incarnation);
        let (node, group) = (NodeId::numbered(node), Group::DEFAULT);
        Attempt { node, group, incarnation, life: LifeId([1; 16]), number }
    }

    #[test]
    fn each_attempt_is_answered_once_and_never_an_older_one() {
        let arena = Arena::default();
        let Ledger { journal, root } =
            arena.zeroed::<AnsweredCells>().ledger::<AnsweredCells>(None, RuleSet::ALL);
        assert_eq!(root.order(&attempt(0, 0, 0)), Order::New, "zero is a node like any other");
        root.record(journal, &attempt(0, 1, 5));
        let old = Order::Old(Incarnation(1));
        for (order, incarnation, number) in
            [(Order::Same, 1, 5), (Order::Late, 1, 4), (old, 0, 9), (Order::New, 1, 6), (Order::New, 2, 1)]
        {
            assert_eq!(root.order(&attempt(0, incarnation, number)), order, "{incarnation} {number}");
        }
        let other_life = |incarnation| Attempt { life: LifeId([2; 16]), ..attempt(0, incarnation, 9) };
        assert_eq!(root.order(&other_life(1)), old, "whose counts cannot be compared");
        assert_eq!(root.order(&other_life(2)), Order::New);
        assert_eq!(root.order(&attempt(1, 1, 1)), Order::New);
    }

    #[test]
    fn who_was_there_is_remembered_longer_than_who_was_only_answered() {
        let arena = Arena::default();
        let Ledger { journal, root } =
            arena.zeroed::<AnsweredCells>().ledger::<AnsweredCells>(None, RuleSet::ALL);
        let is_new = |node| root.order(&attempt(node, 1, 1)) == Order::New;
        for node in 0..NODES as u64 - 1 {
            root.record(journal, &attempt(node, 1, 1));
            root.complete(journal, NodeId::numbered(node), Group::DEFAULT);
            journal.commit();
        }
        for stranger in 1000..1200 {
            root.record(journal, &attempt(stranger, 1, 1));
            journal.commit();
        }
        assert!((0..NODES as u64 - 1).all(|node| !is_new(node)));
        // When all have been there, the one goes that was there longest ago.
        root.complete(journal, NodeId::numbered(1199), Group::DEFAULT);
        root.complete(journal, NodeId::numbered(0), Group::DEFAULT);
        root.record(journal, &attempt(2000, 1, 1));
        assert!(is_new(1) && !is_new(0));
    }
}
