//! What the administrator does: lets nodes in and out, and ends restores.

use super::client::Heard;
use super::node::Node;
use super::setting::{DOMAINS, joining, node_name, public_key, token_hash};
use super::world::World;
use crate::command::{Asked, Asker, Command};
use crate::entry::Answer;
use crate::model::Groups;
use crate::refusal::Refusal;
use crate::report::Identity;
use crate::testing::{T0, name, node_id};

/// Which clients these are.
pub(super) const ADMIN: usize = 0;
pub(super) const JOINERS: [usize; 2] = [1, 2];

impl World {
    /// A node is removed, or two want to join with one token.
    pub(super) fn change_members(&mut self) {
        let root = || Asker::Api(name("root"));
        // A node that was removed after the backup would be one again.
        if self.random.chance(500) && !self.faults.restore && self.nodes.len() > 4 {
            let gone = self.random.index(self.nodes.len());
            let node = node_name(self.nodes[gone].number);
            return self.clients[ADMIN].queue.push_back((root(), Command::RemoveNode { node }));
        }
        if self.nodes.len() > 8 || JOINERS.iter().any(|joiner| self.clients[*joiner].pending.is_some()) {
            return;
        }
        let number = self.nodes.len() as u64 + 1;
        let hash = token_hash(number);
        let expires = T0.plus_s(86_400);
        let command = Command::MakeJoinToken { hash, expires, groups: Groups::default(), domains: DOMAINS };
        self.clients[ADMIN].queue.push_back((root(), command));
        for (joiner, number) in JOINERS.into_iter().zip(number..) {
            self.nodes.push(Node::new(number, None));
            self.clients[joiner].queue.push_back(joining(hash, number));
        }
    }

    /// A restored manager has to hear all before the administrator says so.
    pub(super) fn end_restore(&mut self) {
        let is_closed = self.checks.shadow.restore().is_some_and(|restore| restore.is_closed);
        let is_late = self.is_calm_for(15);
        let admin = &mut self.clients[ADMIN];
        if is_closed && admin.queue.is_empty() && admin.pending.is_none() {
            // Of two nodes with the same domains, by certificates of two histories, one is a stranger for ever.
            let command = Command::EndRestore { anyway: is_late };
            admin.queue.push_back((Asker::Api(name("root")), command));
        }
    }

    /// Somebody hears what came of what it asked for.
    pub(super) fn follow(&mut self, client: usize, asked: &Asked, heard: &Heard) {
        match (heard, &asked.command) {
            (Ok(reply), Command::Join { id, .. }) => {
                let Answer::Joined { block, groups, .. } = &reply.answer else { return };
                let Some(node) = self.nodes.iter_mut().find(|node| node.id() == *id) else { return };
                let (name, key) = (node_name(node.number), public_key(node.number));
                let issued = crate::model::WallTime::default();
                node.join(Identity { name, key, block: *block, groups: groups.clone(), issued });
                self.counts.joins += 1;
            }
            // The token comes, unless a restore has lost it; or the manager is open again.
            (Err(Refusal::NoJoinToken | Refusal::Restoring { .. }), Command::Join { .. })
                if self.faults.is_on =>
            {
                self.clients[client].queue.push_back((asked.who.clone(), asked.command.clone()));
            }
            _ => {}
        }
    }

    /// Nodes that have joined, and where their domains begin.
    pub(super) fn bases(&self) -> Vec<(u64, u32)> {
        let members = self.nodes.iter().filter(|node| node.is_member() && node.id() == node_id(node.number));
        members.filter_map(|node| Some((node.number, node.identity.as_ref()?.block.base()))).collect()
    }
}
