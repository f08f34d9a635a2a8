use core::num::NonZeroU64;
use std::collections::BTreeMap;

use base::ids::Group;
use serde::{Deserialize, Serialize};

use super::{Limits, Name};

/// Functions that managers have made at one node.
pub const MADE_PER_NODE_MAX: usize = super::FUNCTIONS_PER_NODE_MAX;
/// Functions of a node that could not be made, and are remembered for those who have asked for them.
pub const UNMADE_MAX: usize = 16;
/// Characters of why a function could not be made.
pub const WHY_MAX: usize = 300;

/// Which decision about the functions that are made at a node: greater ones are newer, also after a restore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeId {
    /// Of the manager that has decided.
    pub epoch: u64,
    /// The index of the entry.
    pub index: u64,
}

/// What is to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The device of which it is a function, as its node's file names it.
    pub device: Name,
    /// What it has of that.
    pub storage: Storage,
    /// In which zone it is lent; `None`: in that of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// What it may do until something else is decided.
    pub limits: Limits,
}

/// What a function has of its device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Storage {
    /// A namespace of its own, which comes and goes with it.
    Own {
        /// Its size.
        bytes: NonZeroU64,
    },
    /// One that its node's file says is shared.
    Shared {
        /// As the file names it.
        namespace: Name,
    },
}

/// A function that a manager has made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// Its name at its node.
    pub name: Name,
    /// By which decision: another one makes another function, be it of the same name.
    pub id: MadeId,
    /// What it is.
    pub shape: Shape,
}

/// All functions that are to be made at a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeList {
    /// By which decision.
    pub id: MadeId,
    /// They, in order of their names: [`MADE_PER_NODE_MAX`] at most.
    pub functions: Vec<Made>,
}

/// A function that its lender cannot make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unmade {
    /// Which one.
    pub name: Name,
    /// Why, in words: of [`WHY_MAX`] characters at most.
    pub why: String,
}

/// What is decided of the functions that are made at a node, and how far its lender is.
///
/// ```text
///   create ──► wanted ── the lender lends it ──► made ── delete ──► leaving ── its lender has applied that ──► gone
///                └────── the lender cannot make it ──► refused: no part of the list, remembered for who has asked
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Making {
    /// Which list it is.
    pub id: MadeId,
    /// The index of the entry that has changed it last.
    pub version: u64,
    /// What is to be there.
    pub functions: BTreeMap<Name, Wanted>,
    /// What was deleted, by which decision, and may be there still.
    pub leaving: BTreeMap<Name, MadeId>,
    /// What the lender could not make: [`UNMADE_MAX`] at most.
    pub refused: BTreeMap<Name, Refused>,
    /// The last list that the lender has applied: what of it is not made waits for its place on a medium.
    pub applied: Option<MadeId>,
}

/// A function that is to be there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// By which decision.
    pub id: MadeId,
    /// What it is.
    pub shape: Shape,
    /// Whether its lender has had it: then it is there, or will be there again, until it is deleted.
    pub is_made: bool,
}

/// A function that could not be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// By which decision it was to be.
    pub id: MadeId,
    /// Why it is not, in the lender's words.
    pub why: String,
}

impl Making {
    /// Nothing was ever made, before the decision of this id.
    pub(crate) fn new(id: MadeId) -> Self {
        Self {
            id,
            version: 0,
            functions: BTreeMap::new(),
            leaving: BTreeMap::new(),
            refused: BTreeMap::new(),
            applied: None,
        }
    }

    /// Whether a lender that has come from another fabric has functions of which nothing was decided here: that
    /// somebody has made another one before it was heard deletes none of them.
    pub(crate) fn lacks(&self, list: &MadeList) -> bool {
        let is_unknown =
            |it: &Made| !self.functions.contains_key(&it.name) && !self.leaving.contains_key(&it.name);
        let has_room = self.functions.len() + self.leaving.len() < MADE_PER_NODE_MAX;
        let is_of_before = list.id.epoch == 0 && self.applied.is_none();
        is_of_before && has_room && list.functions.iter().any(is_unknown)
    }

    /// Whether its lender has applied what is decided.
    pub fn is_applied(&self) -> bool {
        self.applied == Some(self.id)
    }

    /// What the lender is told.
    pub fn list(&self) -> MadeList {
        let made =
            |(name, it): (&Name, &Wanted)| Made { name: name.clone(), id: it.id, shape: it.shape.clone() };
        MadeList { id: self.id, functions: self.functions.iter().map(made).collect() }
    }
}
