//! How everything has to be when nothing has gone wrong for a while.

use std::collections::BTreeMap;

use super::node::Node;
use crate::model::{FunctionKey, Loan};
use crate::report::{Holder, Preset};
use crate::state::State;

/// What is not as it has to be.
pub(super) fn unsettled(state: &State, nodes: &[Node]) -> Option<String> {
    let members: BTreeMap<_, _> =
        nodes.iter().filter(|node| node.is_member()).map(|node| (node.id(), node)).collect();
    for function in state.functions().filter(|function| members.contains_key(&function.key.node)) {
        let row = members[&function.key.node].kept.row(function.key.number);
        let is_same = match (function.loan, row.holder) {
            (Loan::Free, Holder::Nobody) => true,
            (Loan::Applied { to, .. }, Holder::Assigned(has)) => to == has,
            _ => false,
        };
        let is_limited = function.limits == row.limits && function.is_limited();
        if !is_same || !is_limited || row.generation != function.generation {
            return Some(format!("the manager has {function:?}, and its lender {row:?}"));
        }
    }
    // One that the backup did not know, and nobody has waited for, is a stranger.
    let mut known = members.iter().filter(|(id, _)| state.joined(**id).is_some());
    let unmade = known.find(|(id, node)| {
        let list = state.making(**id).map(|making| making.list());
        let has = node.made.values().cloned().collect::<Vec<_>>();
        let is_seen =
            node.made.keys().all(|it| state.functions_of(**id).any(|function| function.name == *it));
        list.as_ref().map_or(&[][..], |list| &list.functions) != has || !is_seen
    });
    if let Some((id, node)) = unmade {
        return Some(format!("{:?} is to be made at {id}, which has {:?}", state.making(*id), node.made));
    }
    members.iter().find_map(|(id, node)| {
        let block = state.joined(*id)?.block;
        let mut expected: Vec<(FunctionKey, u64)> = Vec::new();
        for function in state.in_block(block).filter(|function| function.loan.assigned().is_some()) {
            expected.push((function.key, function.generation.0));
        }
        let has = listed(node);
        (has != expected).then(|| format!("borrower {id} has {has:?} instead of {expected:?}"))
    })
}

/// What a borrower has in its slots.
pub(super) fn listed(node: &Node) -> Vec<(FunctionKey, u64)> {
    let presets = node.kept.presets().iter();
    presets.map(|preset: &Preset| (preset.function, preset.generation.0)).collect()
}
