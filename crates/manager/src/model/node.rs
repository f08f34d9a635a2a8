use std::collections::BTreeSet;

use base::ids::{DomainBlock, DomainId, Group, NodeId};
use serde::{Deserialize, Serialize};

use super::{GROUPS_PER_NODE_MAX, Name, PublicKey, WallTime, node_text};

/// The domains of a node: `len` from `base` on, as [`DomainBlock`] has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
pub struct Block {
    base: u32,
    len: u32,
}

impl Block {
    /// `None` where [`DomainBlock::new`] says so.
    pub fn new(base: u32, len: u32) -> Option<Self> {
        DomainBlock::new(base, len).map(|_| Self { base, len })
    }

    /// The first domain, which is the node's own.
    pub fn base(self) -> u32 {
        self.base
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(self) -> u32 {
        self.len
    }

    /// Behind the last one.
    pub fn end(self) -> u32 {
        self.base + self.len
    }

    /// Whether a domain is one of these.
    pub fn contains(self, domain: DomainId) -> bool {
        (self.base..self.end()).contains(&domain.0)
    }

    /// Whether a domain is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.base < other.end() && other.base < self.end()
    }
}

impl TryFrom<(u32, u32)> for Block {
    type Error = &'static str;

    fn try_from((base, len): (u32, u32)) -> Result<Self, Self::Error> {
        Self::new(base, len).ok_or("no block of domains: a power of two, from a multiple of it on")
    }
}

impl From<Block> for (u32, u32) {
    fn from(block: Block) -> Self {
        (block.base, block.len)
    }
}

/// Groups that a node may enter: one at least, [`GROUPS_PER_NODE_MAX`] at most.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "BTreeSet<Group>", into = "BTreeSet<Group>")]
pub struct Groups(BTreeSet<Group>);

impl Groups {
    /// `None` if these are none or too many, or one has a number that no group has.
    pub fn new(groups: impl IntoIterator<Item = Group>) -> Option<Self> {
        let groups: BTreeSet<Group> = groups.into_iter().take(GROUPS_PER_NODE_MAX + 1).collect();
        let are_groups = groups.iter().all(|group| Group::new(group.0.into()).is_some());
        (!groups.is_empty() && groups.len() <= GROUPS_PER_NODE_MAX && are_groups).then_some(Self(groups))
    }

    /// Whether `group` is one of them.
    pub fn contains(&self, group: Group) -> bool {
        self.0.contains(&group)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Group> {
        self.0.iter().copied()
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self(BTreeSet::from([Group::DEFAULT]))
    }
}

impl TryFrom<BTreeSet<Group>> for Groups {
    type Error = &'static str;

    fn try_from(groups: BTreeSet<Group>) -> Result<Self, Self::Error> {
        Self::new(groups).ok_or("a node may enter 1 to 64 groups")
    }
}

impl From<Groups> for BTreeSet<Group> {
    fn from(groups: Groups) -> Self {
        groups.0
    }
}

/// Whether a node belongs to the fabric.
///
/// ```text
///   (nobody) ── join ──► Joined ── remove ──► Removed ── room is needed, quarantine over ──► (nobody)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Membership {
    /// It does.
    Joined {
        /// Since when.
        since: WallTime,
    },
    /// It did. Its key stays refused for as long as this is remembered.
    Removed {
        /// Since when.
        since: WallTime,
    },
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The hash of its key.
    #[serde(with = "node_text")]
    pub id: NodeId,
    /// Its name, which no other node that has joined bears.
    pub name: Name,
    /// Its public key.
    pub key: PublicKey,
    /// Its domains.
    pub block: Block,
    /// Which groups it may enter.
    pub groups: Groups,
    /// Whether it belongs to the fabric.
    pub membership: Membership,
    /// The index of the entry that changed it last: its version for changes on a condition.
    pub version: u64,
}

impl Node {
    /// Whether it belongs to the fabric.
    pub fn is_joined(&self) -> bool {
        matches!(self.membership, Membership::Joined { .. })
    }

    /// Since when it does, or does not.
    pub fn since(&self) -> WallTime {
        match self.membership {
            Membership::Joined { since } | Membership::Removed { since } => since,
        }
    }
}

/// Domains of a node that was removed: nobody gets them for a while, for frames and tables may name them still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantine {
    /// The domains.
    pub block: Block,
    /// Whose they were.
    #[serde(with = "node_text")]
    pub node: NodeId,
    /// Until then, and for as long as a function is in a slot of them.
    pub until: WallTime,
}
