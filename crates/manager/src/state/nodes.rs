use base::ids::{LoanGeneration, NodeId};

use super::{Corruption, State};
use crate::canary::{self, Rule};
use crate::entry::Change;
use crate::model::{
    Block, Function, FunctionKey, Groups, Loan, Membership, NODES_MAX, Name, Node, PublicKey,
    QUARANTINES_MAX, Quarantine, TokenHash, Used, WallTime,
};

impl State {
    pub(super) fn join(
        &mut self,
        id: NodeId,
        name: &Name,
        key: PublicKey,
        block: Block,
        hash: TokenHash,
    ) -> Result<(), Corruption> {
        let token = self.join_tokens.get_mut(&hash).ok_or(Corruption::JoinToken(hash))?;
        if (token.used.is_some() && !canary::is_off(Rule::UseOnce)) || token.domains != block.len() {
            return Err(Corruption::JoinToken(hash));
        }
        token.used = Some(Used { by: id, at: self.at });
        let groups = token.groups.clone();
        let membership = Membership::Joined { since: self.at };
        self.add_node(Node { id, name: name.clone(), key, block, groups, membership, version: self.index })
    }

    pub(super) fn adopt_node(&mut self, node: &Node, issued: WallTime) -> Result<(), Corruption> {
        let restore = self.restore.as_mut().ok_or(Corruption::NoRestore)?;
        restore.unheard.insert(node.id);
        restore.adopted.insert(node.id, issued);
        self.add_node(Node { version: self.index, ..node.clone() })
    }

    fn add_node(&mut self, node: Node) -> Result<(), Corruption> {
        if self.nodes.contains_key(&node.id) {
            return Err(Corruption::NodeThere(node.id));
        }
        if self.names.contains_key(&node.name) {
            return Err(Corruption::NameTaken(node.name));
        }
        if !self.is_free(node.block, self.at) {
            return Err(Corruption::DomainsTaken(node.id));
        }
        if let Some(forgotten) = self.node_to_forget(self.at)
            && self.nodes.len() >= NODES_MAX
        {
            self.nodes.remove(&forgotten);
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(Corruption::TooMany("nodes"));
        }
        self.names.insert(node.name.clone(), node.id);
        self.blocks.insert(node.block.base(), node.id);
        self.nodes.insert(node.id, node);
        Ok(())
    }

    /// It was removed before others came to be where it is: what it lends is gone, and nobody knows what became of what
    /// it had, but the lenders of that.
    pub(super) fn displace_node(&mut self, id: NodeId) -> Result<(), Corruption> {
        let restore =
            self.restore.as_mut().filter(|restore| restore.is_closed).ok_or(Corruption::NoRestore)?;
        restore.unheard.remove(&id);
        restore.adopted.remove(&id);
        let block = self.take_leave(id)?;
        let borrowed: Vec<(FunctionKey, LoanGeneration)> =
            self.in_block(block).map(|function| (function.key, function.generation)).collect();
        borrowed.into_iter().try_for_each(|(key, generation)| self.set_loan(key, generation, Loan::Free))
    }

    /// A node is none of the fabric from now on, and lends nothing. Returns its domains.
    fn take_leave(&mut self, id: NodeId) -> Result<Block, Corruption> {
        let now = self.at;
        let node = self.nodes.get_mut(&id).filter(|node| node.is_joined()).ok_or(Corruption::NoNode(id))?;
        node.membership = Membership::Removed { since: now };
        node.version = self.index;
        let (name, block) = (node.name.clone(), node.block);
        self.names.remove(&name);
        self.blocks.remove(&block.base());
        let lent: Vec<Function> = self.functions_of(id).cloned().collect();
        for function in lent {
            self.functions.remove(&function.key);
            if let Some(of) = function.loan.occupied() {
                self.slots.remove(&of.place);
            }
        }
        self.making.remove(&id);
        Ok(block)
    }

    /// The removed node that makes room for another one: of those that are in no quarantine, the one removed first.
    pub(crate) fn node_to_forget(&self, now: WallTime) -> Option<NodeId> {
        let kept = |id: NodeId| self.quarantine.iter().any(|it| it.node == id && it.until > now);
        let removed = self.nodes.values().filter_map(|node| match node.membership {
            Membership::Removed { since } if !kept(node.id) => Some((since, node.id)),
            _ => None,
        });
        removed.min().map(|(_, id)| id)
    }

    pub(super) fn remove_node(&mut self, id: NodeId, until: WallTime) -> Result<(), Corruption> {
        let now = self.at;
        let block = self.take_leave(id)?;
        self.quarantine.retain(|it| it.until > now);
        if self.quarantine.len() >= QUARANTINES_MAX {
            return Err(Corruption::TooMany("quarantines"));
        }
        self.quarantine.push(Quarantine { block, node: id, until });
        if let Some(restore) = &mut self.restore {
            restore.unheard.remove(&id);
        }
        self.forget_restore();
        let borrowed: Vec<Function> = self.in_block(block).cloned().collect();
        borrowed.iter().try_for_each(|function| self.force(function.key))
    }

    /// Its borrower is gone.
    fn force(&mut self, key: FunctionKey) -> Result<(), Corruption> {
        let function = self.functions.get(&key).ok_or(Corruption::NoFunction(key))?;
        match function.loan {
            Loan::Forced { .. } | Loan::Free | Loan::Ended { .. } => Ok(()),
            Loan::Leaving { .. } => self.unassign(key, function.generation, true),
            Loan::Wanted { .. } | Loan::Applied { .. } => {
                // A generation that is used up stays what it is; reports have kept it far from that.
                let next = LoanGeneration(function.generation.0.saturating_add(1));
                self.unassign(key, next, true)
            }
        }
    }

    pub(super) fn set_groups(&mut self, id: NodeId, groups: &Groups) -> Result<(), Corruption> {
        let version = self.index;
        let node = self.nodes.get_mut(&id).filter(|node| node.is_joined()).ok_or(Corruption::NoNode(id))?;
        node.groups = groups.clone();
        node.version = version;
        let block = node.block;
        // Whoever may not enter a group any more has nothing in it.
        let is_out = |function: &&Function| {
            let group = function.loan.assigned().map(|to| to.group);
            group.is_some_and(|group| !groups.contains(group))
        };
        let lent = self.functions_of(id).filter(is_out).map(|function| function.key);
        let borrowed = self.in_block(block).filter(is_out).map(|function| function.key);
        let mut out: Vec<FunctionKey> = lent.chain(borrowed).collect();
        out.sort_unstable();
        out.dedup();
        out.into_iter().try_for_each(|key| self.force(key))
    }

    /// Functions that an entry may change: for whoever has to tell nodes.
    pub(crate) fn affected(&self, change: &Change) -> Vec<FunctionKey> {
        match change {
            Change::Assigned { key, .. } | Change::Unassigned { key, .. } | Change::LimitsSet { key, .. } => {
                vec![*key]
            }
            Change::NodeRemoved { id, .. } | Change::NodeDisplaced { id } | Change::GroupsSet { id, .. } => {
                let borrowed = self.node(*id).map(|node| self.in_block(node.block));
                let all = self.functions_of(*id).chain(borrowed.into_iter().flatten());
                all.map(|function| function.key).collect()
            }
            Change::Reported { id, news, .. } => news.iter().filter_map(|news| news.function(*id)).collect(),
            _ => Vec::new(),
        }
    }
}
