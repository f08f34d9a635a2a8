use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::history::{HISTORY_MAX, History, NOTED_MAX, Record};
use super::{Corruption, Restore, State};
use crate::entry::Entry;
use crate::model::{
    API_TOKENS_MAX, ApiToken, FUNCTIONS_MAX, FabricId, Function, JOIN_TOKENS_MAX, JoinToken,
    MADE_PER_NODE_MAX, Making, NODES_MAX, Name, Node, QUARANTINES_MAX, Quarantine, UNMADE_MAX, WallTime,
    node_text,
};

/// A node's id in a list.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Id(#[serde(with = "node_text")] base::ids::NodeId);

/// A state as a snapshot has it: without what follows from the rest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    fabric: FabricId,
    index: u64,
    at: WallTime,
    epoch: u64,
    nodes: Vec<Node>,
    functions: Vec<Function>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    making: Vec<(Id, Making)>,
    join_tokens: Vec<JoinToken>,
    api_tokens: Vec<(Name, ApiToken)>,
    quarantine: Vec<Quarantine>,
    restore: Option<(bool, Vec<Id>)>,
    #[serde(default)]
    adopted: Vec<(Id, WallTime)>,
    #[serde(default)]
    any_time: bool,
    history: Vec<Record>,
    #[serde(default)]
    noted: Vec<Record>,
}

impl From<&State> for Stored {
    fn from(state: &State) -> Self {
        let unheard = |restore: &Restore| restore.unheard.iter().copied().map(Id).collect();
        let adopted = |restore: &Restore| -> Vec<_> {
            restore.adopted.iter().map(|(id, issued)| (Id(*id), *issued)).collect()
        };
        Self {
            fabric: state.fabric,
            index: state.index,
            at: state.at,
            epoch: state.epoch,
            nodes: state.nodes.values().cloned().collect(),
            functions: state.functions.values().cloned().collect(),
            making: state.making.iter().map(|(node, making)| (Id(*node), making.clone())).collect(),
            join_tokens: state.join_tokens.values().cloned().collect(),
            api_tokens: state.api_tokens.iter().map(|(name, token)| (name.clone(), *token)).collect(),
            quarantine: state.quarantine.clone(),
            restore: state.restore.as_ref().map(|it| (it.is_closed, unheard(it))),
            adopted: state.restore.iter().flat_map(adopted).collect(),
            any_time: state.restore.as_ref().is_some_and(|it| it.any_time),
            history: state.history.records().cloned().collect(),
            noted: state.history.noted().cloned().collect(),
        }
    }
}

impl TryFrom<Stored> for State {
    type Error = Corruption;

    fn try_from(stored: Stored) -> Result<Self, Corruption> {
        let lists: [(&str, usize, usize); 7] = [
            ("nodes", stored.nodes.len(), NODES_MAX),
            ("functions", stored.functions.len(), FUNCTIONS_MAX),
            ("join tokens", stored.join_tokens.len(), JOIN_TOKENS_MAX),
            ("tokens", stored.api_tokens.len(), API_TOKENS_MAX),
            ("quarantines", stored.quarantine.len(), QUARANTINES_MAX),
            ("requests", stored.history.len(), HISTORY_MAX),
            ("notes", stored.noted.len(), NOTED_MAX),
        ];
        if let Some((what, ..)) = lists.iter().find(|(_, len, most)| len > most) {
            return Err(Corruption::TooMany(what));
        }
        let mut state = State::new(stored.fabric);
        (state.index, state.at, state.epoch) = (stored.index, stored.at, stored.epoch);
        for node in stored.nodes {
            state.take_node(node)?;
        }
        for function in stored.functions {
            state.take_function(function)?;
        }
        for (Id(node), making) in stored.making {
            state.joined(node).ok_or(Corruption::NoNode(node))?;
            if making.functions.len() > MADE_PER_NODE_MAX || making.refused.len() > UNMADE_MAX {
                return Err(Corruption::TooMany("functions"));
            }
            state.making.insert(node, making);
        }
        state.join_tokens = stored.join_tokens.into_iter().map(|token| (token.hash, token)).collect();
        state.api_tokens = stored.api_tokens.into_iter().collect();
        state.quarantine = stored.quarantine;
        let unheard = |ids: Vec<Id>| ids.into_iter().map(|id| id.0).collect::<BTreeSet<_>>();
        let adopted = stored.adopted.into_iter().map(|(id, issued)| (id.0, issued)).collect();
        let any_time = stored.any_time;
        state.restore = stored.restore.map(|(is_closed, ids)| Restore {
            is_closed,
            unheard: unheard(ids),
            adopted,
            any_time,
        });
        let mut history = History::default();
        take_history(&mut history, stored.history, state.index, |entry| entry.request.is_some())?;
        let is_noted = |entry: &Entry| entry.request.is_none() && entry.change.is_noteworthy();
        take_history(&mut history, stored.noted, state.index, is_noted)?;
        state.history = history;
        Ok(state)
    }
}

impl State {
    fn take_node(&mut self, node: Node) -> Result<(), Corruption> {
        let (id, name) = (node.id, node.name.clone());
        if node.is_joined() {
            let before = self.blocks.range(..node.block.end()).next_back();
            if before.and_then(|(_, id)| self.nodes.get(id)).is_some_and(|it| it.block.overlaps(node.block)) {
                return Err(Corruption::DomainsTaken(id));
            }
            self.blocks.insert(node.block.base(), id);
            if self.names.insert(name.clone(), id).is_some() {
                return Err(Corruption::NameTaken(name));
            }
        }
        self.nodes.insert(id, node).map_or(Ok(()), |_| Err(Corruption::NodeThere(id)))
    }

    fn take_function(&mut self, function: Function) -> Result<(), Corruption> {
        let key = function.key;
        self.joined(key.node).ok_or(Corruption::NoNode(key.node))?;
        if let Some(of) = function.loan.occupied()
            && self.slots.insert(of.place, key).is_some()
        {
            return Err(Corruption::Slot(of.place));
        }
        self.functions.insert(key, function).map_or(Ok(()), |_| Err(Corruption::FunctionThere(key)))
    }
}

/// In order, none behind the last entry, none twice.
fn take_history(
    history: &mut History,
    records: Vec<Record>,
    index: u64,
    fits: impl Fn(&Entry) -> bool,
) -> Result<(), Corruption> {
    let mut last = 0;
    for record in records {
        if record.index <= last || record.index > index {
            return Err(Corruption::Index { next: last + 1, found: record.index });
        }
        last = record.index;
        if !fits(&record.entry) || !history.push(record) {
            return Err(Corruption::Request);
        }
    }
    Ok(())
}
