//! What is so: the fold of the log's entries.
//!
//! [`State::apply`] is a function of what was before and of the entry: no clock, no chance. An entry that does not fit
//! is a corrupt log, and says how. Decisions are made elsewhere (`decide`, `reconcile`), once, so whatever depends on
//! time or on who asks is in the entry.

mod apply;
mod corruption;
mod functions;
mod history;
mod made;
mod nodes;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use base::ids::NodeId;

pub use corruption::Corruption;
pub use history::{HISTORY_MAX, NOTED_MAX, Record};
pub(crate) use stored::Stored;

use crate::model::{
    ApiToken, Block, FabricId, Function, FunctionKey, FunctionName, JoinToken, Making, Name, Node, Place,
    Quarantine, Role, TokenHash, WallTime,
};
use history::History;

/// After a restore: whom the manager has yet to hear.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restore {
    /// Nothing is assigned, and nobody joins or leaves, until the administrator ends this.
    pub is_closed: bool,
    /// Lenders that were not heard. Their functions are not assigned, also later.
    pub unheard: BTreeSet<NodeId>,
    /// Nodes that were taken in by their certificates, and when these were issued.
    pub adopted: BTreeMap<NodeId, WallTime>,
    /// Certificates count whose time is over, or has not come.
    pub any_time: bool,
}

/// Everything that a manager knows for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    fabric: FabricId,
    index: u64,
    at: WallTime,
    epoch: u64,
    nodes: BTreeMap<NodeId, Node>,
    functions: BTreeMap<FunctionKey, Function>,
    making: BTreeMap<NodeId, Making>,
    join_tokens: BTreeMap<TokenHash, JoinToken>,
    api_tokens: BTreeMap<Name, ApiToken>,
    quarantine: Vec<Quarantine>,
    restore: Option<Restore>,
    history: History,
    /// By name, of nodes that have joined. Follows from `nodes`.
    names: BTreeMap<Name, NodeId>,
    /// What is in each slot, or is being taken from it. Follows from `functions`.
    slots: BTreeMap<Place, FunctionKey>,
    /// Of nodes that have joined, by where they begin. Follows from `nodes`.
    blocks: BTreeMap<u32, NodeId>,
}

impl State {
    /// Before the first entry.
    pub fn new(fabric: FabricId) -> Self {
        Self {
            fabric,
            index: 0,
            at: WallTime::default(),
            epoch: 0,
            nodes: BTreeMap::new(),
            functions: BTreeMap::new(),
            making: BTreeMap::new(),
            join_tokens: BTreeMap::new(),
            api_tokens: BTreeMap::new(),
            quarantine: Vec::new(),
            restore: None,
            history: History::default(),
            names: BTreeMap::new(),
            slots: BTreeMap::new(),
            blocks: BTreeMap::new(),
        }
    }

    /// Which fabric.
    pub fn fabric(&self) -> FabricId {
        self.fabric
    }

    /// The index of the last entry; the first one has 1.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// When the last entry was made.
    pub fn at(&self) -> WallTime {
        self.at
    }

    /// The epoch of the last manager that has started; 0 before the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whom a restored manager has yet to hear; `None` if it was not restored, or has heard all.
    pub fn restore(&self) -> Option<&Restore> {
        self.restore.as_ref()
    }

    /// All nodes in order of their ids, the removed ones that are remembered among them.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// The node of this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// The node of this id, if it belongs to the fabric.
    pub fn joined(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).filter(|node| node.is_joined())
    }

    /// The node of this name that belongs to the fabric.
    pub fn node_called(&self, name: &Name) -> Option<&Node> {
        self.names.get(name).and_then(|id| self.nodes.get(id))
    }

    /// Names of nodes that belong to the fabric.
    pub fn node_names(&self) -> impl Iterator<Item = &Name> {
        self.names.keys()
    }

    /// Whose domain this is.
    pub fn node_of_domain(&self, domain: base::ids::DomainId) -> Option<&Node> {
        let (_, id) = self.blocks.range(..=domain.0).next_back()?;
        self.nodes.get(id).filter(|node| node.block.contains(domain))
    }

    /// All functions, in order of lenders and their numbers.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// This function.
    pub fn function(&self, key: FunctionKey) -> Option<&Function> {
        self.functions.get(&key)
    }

    /// What a node lends.
    pub fn functions_of(&self, node: NodeId) -> impl Iterator<Item = &Function> {
        let key = |number| FunctionKey { node, number };
        self.functions.range(key(0)..=key(u32::MAX)).map(|(_, function)| function)
    }

    /// The function of this name.
    pub fn function_called(&self, name: &FunctionName) -> Option<&Function> {
        let node = self.node_called(&name.node)?;
        self.functions_of(node.id).find(|function| function.name == name.function)
    }

    /// How a function is called.
    pub fn name_of(&self, key: FunctionKey) -> Option<FunctionName> {
        let (node, function) = (self.node(key.node)?, self.function(key)?);
        Some(FunctionName { node: node.name.clone(), function: function.name.clone() })
    }

    /// What is in a slot, or is being taken from it.
    pub fn in_slot(&self, place: Place) -> Option<&Function> {
        self.slots.get(&place).and_then(|key| self.functions.get(key))
    }

    /// What is in slots of these domains, or is being taken from them, in order of slots.
    pub fn in_block(&self, block: Block) -> impl Iterator<Item = &Function> {
        let place = |domain| Place { domain: base::ids::DomainId(domain), slot: 0 };
        let range = self.slots.range(place(block.base())..place(block.end()));
        range.filter_map(|(_, key)| self.functions.get(key))
    }

    /// The join token of this hash.
    pub fn join_token(&self, hash: TokenHash) -> Option<&JoinToken> {
        self.join_tokens.get(&hash)
    }

    /// All join tokens.
    pub fn join_tokens(&self) -> impl Iterator<Item = &JoinToken> {
        self.join_tokens.values()
    }

    /// All tokens for the interface.
    pub fn api_tokens(&self) -> impl Iterator<Item = (&Name, &ApiToken)> {
        self.api_tokens.iter()
    }

    /// The token of this name.
    pub fn api_token(&self, name: &Name) -> Option<&ApiToken> {
        self.api_tokens.get(name)
    }

    /// Whose token has this hash, and what it lets do.
    pub fn authenticate(&self, hash: TokenHash) -> Option<(&Name, Role)> {
        let (name, token) = self.api_tokens.iter().find(|(_, token)| token.hash == hash)?;
        Some((name, token.role))
    }

    /// Domains that are nobody's for a while.
    pub fn quarantine(&self) -> &[Quarantine] {
        &self.quarantine
    }

    /// What was asked for and done: the last [`HISTORY_MAX`] requests.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.history.records()
    }

    /// Who has done what, in order, behind the entry of this index: requests that were done, and what was noted beside
    /// them, the last [`NOTED_MAX`] of it.
    pub fn audit(&self, after: u64) -> impl Iterator<Item = &Record> {
        let behind = move |record: &&Record| record.index > after;
        let mut requests = self.history.records().filter(behind).peekable();
        let mut noted = self.history.noted().filter(behind).peekable();
        core::iter::from_fn(move || match (requests.peek(), noted.peek()) {
            (Some(request), Some(note)) if note.index < request.index => noted.next(),
            (Some(_), _) => requests.next(),
            (None, _) => noted.next(),
        })
    }

    /// The request of this id, if it was done.
    pub fn done(&self, id: crate::model::RequestId) -> Option<&Record> {
        self.history.find(id)
    }

    /// Whether domains may be given to somebody: they are no node's, in no quarantine at `now`, and empty.
    pub(crate) fn is_free(&self, block: Block, now: WallTime) -> bool {
        let before = self.blocks.range(..block.end()).next_back();
        let taken =
            before.and_then(|(_, id)| self.nodes.get(id)).is_some_and(|node| node.block.overlaps(block));
        let kept = |it: &Quarantine| it.until > now && it.block.overlaps(block);
        let quarantined = !crate::canary::is_off(crate::canary::Rule::QuarantineDomains)
            && (self.quarantine.iter().any(kept) || self.in_block(block).next().is_some());
        !taken && !quarantined
    }

    /// Whether a lender may be given work: a restored manager has to hear it first.
    pub(crate) fn is_heard(&self, node: NodeId) -> bool {
        self.restore.as_ref().is_none_or(|restore| !restore.unheard.contains(&node))
    }
}
