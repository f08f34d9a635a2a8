//! Rails that die, what nodes say of that, and which of them are held to be dead when all was heard.

use std::collections::BTreeMap;

use base::ids::{NodeId, RailId};

use super::world::World;
use crate::report::{DeadRail, RailCause};
use crate::testing::node_id;

type Said<'a> = BTreeMap<NodeId, &'a BTreeMap<(NodeId, RailId), DeadRail>>;

impl World {
    /// A node finds a rail dead, which may be its own, or finds it well again: often one of few, so that they agree.
    pub(super) fn doubt(&mut self, at: usize) {
        for _ in 0..self.random.range(1, 4) {
            let number = self.random.range(1, 5);
            let (rail, cause) = (RailId::ALL[self.random.index(2)], self.random.chance(300));
            let cause = if cause { RailCause::Carrier } else { RailCause::Silence };
            self.nodes[at].doubt(DeadRail { node: node_id(number), rail, cause });
        }
        self.counts.doubts += 1;
        self.drive_node(at);
    }
}

/// Rails that are dead by what members say, in order: the rules word by word, of each rail anew.
pub(super) fn dead(said: &Said<'_>) -> Vec<DeadRail> {
    let accusers = |node: NodeId, rail| -> Vec<NodeId> {
        // What is said of others than members does not count.
        let all =
            said.iter().filter(|(_, rails)| said.contains_key(&node) && rails.contains_key(&(node, rail)));
        all.map(|(accuser, _)| *accuser).collect()
    };
    let accused = |by: NodeId, rail| -> Vec<NodeId> {
        said.keys().copied().filter(|node| *node != by && accusers(*node, rail).contains(&by)).collect()
    };
    let is_at_fault = |node: NodeId, rail| {
        let by = accusers(node, rail);
        let alone = accused(node, rail).into_iter().filter(|other| accusers(*other, rail).len() == 1).count();
        by.contains(&node) || by.len() >= 2 || alone >= 2
    };
    let mut dead = Vec::new();
    for (node, rail) in said.keys().flat_map(|node| RailId::ALL.map(|rail| (*node, rail))) {
        let by_somebody_well = accusers(node, rail).iter().any(|accuser| !is_at_fault(*accuser, rail));
        if is_at_fault(node, rail) || by_somebody_well {
            let own = said[&node].get(&(node, rail)).map(|it| it.cause);
            dead.push(DeadRail { node, rail, cause: own.unwrap_or(RailCause::Silence) });
        }
    }
    dead
}
