//! Where lenders say that they are today, as the cards of a node are told.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::NodeId;
use node::{Address, MAX_RAILS};

/// Addresses, by rail.
pub(super) type ByRail = [Option<Address>; MAX_RAILS];

/// What the present card was told, and the next one has to be.
#[derive(Default)]
pub(super) struct LendersAt(BTreeMap<NodeId, ByRail>);

impl LendersAt {
    /// What the card has to be told now that these are the lenders, and `at` says where they are.
    pub(super) fn follow(
        &mut self,
        lenders: &BTreeSet<NodeId>,
        mut at: impl FnMut(NodeId) -> Option<ByRail>,
    ) -> Vec<(NodeId, ByRail)> {
        let mut news = Vec::new();
        let nodes: BTreeSet<NodeId> = lenders.iter().chain(self.0.keys()).copied().collect();
        for node in nodes {
            let at = lenders.contains(&node).then(|| at(node)).flatten().unwrap_or_default();
            // What is not said any more has to be taken back: that somebody said it once is no reason to call there.
            let is_nowhere = at == ByRail::default();
            let before = if is_nowhere { self.0.remove(&node) } else { self.0.insert(node, at) };
            if before.unwrap_or_default() != at {
                news.push((node, at));
            }
        }
        news
    }

    /// What a new card has to be told.
    pub(super) fn all(&self) -> impl Iterator<Item = (NodeId, ByRail)> {
        self.0.iter().map(|(node, at)| (*node, *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_says_any_more_is_taken_back() {
        let mut all = LendersAt::default();
        let node = NodeId::numbered;
        let at = |last: u8| [Some(Address([last; 28])); MAX_RAILS];
        let nowhere = ByRail::default();
        let both = BTreeSet::from([node(1), node(2)]);
        let first = |it: NodeId| (it == node(1)).then(|| at(1));
        assert_eq!(all.follow(&both, first), [(node(1), at(1))]);
        assert_eq!(all.follow(&both, first), []);
        assert_eq!(all.follow(&both, |_| Some(at(2))), [(node(1), at(2)), (node(2), at(2))]);
        // It is contested, or was not heard again; the other one is behind a switch now.
        let gone = |it: NodeId| (it == node(2)).then_some(nowhere);
        assert_eq!(all.follow(&both, gone), [(node(1), nowhere), (node(2), nowhere)]);
        assert_eq!(all.follow(&both, gone), []);
        assert_eq!(all.all().count(), 0, "the next card knows of none");
        // Nothing more is borrowed from it.
        assert_eq!(all.follow(&both, first), [(node(1), at(1))]);
        assert_eq!(all.follow(&BTreeSet::new(), first), [(node(1), nowhere)]);
    }
}
