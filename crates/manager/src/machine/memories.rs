use std::collections::{BTreeMap, BTreeSet};

use base::ids::NodeId;

use super::{Manager, Now};
use crate::entry::{Change, Entry, Who};
use crate::model::{FunctionKey, NODES_MAX, Node, Place, SLOTS_PER_NODE_MAX, WallTime};
use crate::report::{Alarm, Identity, Preset};

/// Of so many nodes at most that were removed it is remembered who says so,
const REVOKED_MAX: usize = 2 * NODES_MAX;
/// and so many who say so of each: those whose certificates are the newest.
const WITNESSES_MAX: usize = 8;

/// What nodes remember of managers before, while one that was restored or rebuilt listens.
///
/// A node that was removed may still have a certificate that is good. That it was removed others know who belong to the
/// fabric, and nobody can tell a lie of them from the truth but by the times of certificates: nodes that belong to it
/// get another one each day, and whenever somebody is removed. So nobody is removed by the word of one whose
/// certificate is older, or who was removed himself by the word of one whose is newer still.
#[derive(Debug, Default)]
pub(super) struct Memories {
    /// What is in slots, by their borrowers.
    slots: Slots,
    /// When the certificates of those who were heard were issued.
    issued: BTreeMap<NodeId, WallTime>,
    /// Who says of whom that it was removed, with the time of the certificate of who says so.
    revoked: BTreeMap<NodeId, BTreeSet<(WallTime, NodeId)>>,
}

/// What borrowers say is in their slots.
#[derive(Debug, Default)]
pub(crate) struct Slots(BTreeMap<NodeId, BTreeMap<Place, FunctionKey>>);

impl Slots {
    /// What a borrower has in this slot. `None`: it has not said what it has.
    pub(crate) fn of(&self, borrower: NodeId, place: Place) -> Option<Option<FunctionKey>> {
        self.0.get(&borrower).map(|slots| slots.get(&place).copied())
    }
}

impl Memories {
    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.slots.0.contains_key(&node)
    }

    fn issued(&self, node: NodeId) -> WallTime {
        self.issued.get(&node).copied().unwrap_or_default()
    }

    /// Who says that a node was removed whose certificate is newer than that one's.
    fn witnesses(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let issued = self.issued(node);
        let all = self.revoked.get(&node).into_iter().flatten();
        all.filter(move |(at, witness)| *at > issued && *witness != node).map(|(_, witness)| *witness)
    }

    /// By whose word a node was removed, if it was.
    pub(super) fn removed_by(&self, node: NodeId) -> Option<NodeId> {
        self.witnesses(node).find(|witness| self.witnesses(*witness).next().is_none())
    }
}

impl Manager {
    /// A node shows a certificate that was issued then.
    pub(super) fn hear_issued(&mut self, node: NodeId, issued: WallTime) {
        if self.is_closed() {
            self.memories.issued.insert(node, issued);
        }
    }

    fn is_closed(&self) -> bool {
        self.state.restore().is_some_and(|restore| restore.is_closed)
    }

    /// A node says what it remembers.
    pub(super) fn hear_memory(&mut self, now: Now, node: NodeId, presets: &[Preset], revoked: &[NodeId]) {
        let Some(block) = self.state.joined(node).map(|node| node.block).filter(|_| self.is_closed()) else {
            return;
        };
        let its =
            presets.iter().filter(|preset| block.contains(preset.place.domain)).take(SLOTS_PER_NODE_MAX);
        let slots = its.map(|preset| (preset.place, preset.function)).collect();
        let issued = self.memories.issued(node);
        for gone in revoked.iter().take(NODES_MAX) {
            let all = &mut self.memories.revoked;
            if all.len() >= REVOKED_MAX && !all.contains_key(gone) {
                continue;
            }
            let witnesses = all.entry(*gone).or_default();
            witnesses.insert((issued, node));
            if witnesses.len() > WITNESSES_MAX {
                witnesses.pop_first();
            }
        }
        if self.memories.slots.0.insert(node, slots).is_none() {
            // Lenders may have said what only its borrower can decide.
            self.ask_unheard();
        }
        let removed: Vec<(NodeId, NodeId)> = self.removed().map(|(node, by)| (node.id, by)).collect();
        for (node, by) in removed {
            self.alarm(now, node, None, Alarm::Removed { by });
        }
    }

    /// Nodes that were removed though this manager does not know it, and by whose word.
    fn removed(&self) -> impl Iterator<Item = (&Node, NodeId)> {
        let known = self.memories.revoked.keys().filter_map(|node| self.state.joined(*node));
        known.filter_map(|node| Some((node, self.memories.removed_by(node.id)?)))
    }

    /// The restore ends: those who were removed before are removed.
    pub(super) fn remove_again(&mut self, now: Now) {
        let removed: Vec<(NodeId, NodeId)> = self.removed().map(|(node, by)| (node.id, by)).collect();
        for (id, by) in removed {
            self.displace(now, id, by);
        }
    }

    fn displace(&mut self, now: Now, id: NodeId, by: NodeId) {
        let (at, who) = (self.state.clamp(now.wall), Who::Node { id: by });
        self.append(Entry { at, who, request: None, change: Change::NodeDisplaced { id } });
    }

    /// Makes place for a node that shows a certificate of this fabric. `false`: it was removed before those came who
    /// have its name or its domains, for theirs was issued later, or they have joined after it was.
    pub(super) fn make_place(&mut self, now: Now, id: NodeId, identity: &Identity) -> bool {
        let is_rival = |node: &&Node| {
            node.is_joined() && (node.name == identity.name || node.block.overlaps(identity.block))
        };
        let rivals: Vec<Node> = self.state.nodes().filter(is_rival).cloned().collect();
        let adopted = self.state.restore().map(|restore| &restore.adopted);
        let is_older = |rival: &Node| {
            let of = adopted.and_then(|adopted| adopted.get(&rival.id)).copied();
            of.unwrap_or_else(|| rival.since()) < identity.issued
        };
        if !rivals.iter().all(is_older) {
            return false;
        }
        rivals.into_iter().for_each(|rival| self.displace(now, rival.id, id));
        true
    }
}
