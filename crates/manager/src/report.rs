//! What nodes say to a manager, and what it says to them.

use core::fmt;

use base::ids::{Group, LoanGeneration, NodeId, RailId};
use serde::{Deserialize, Serialize};

use crate::model::{
    Assignment, Block, FunctionKey, Groups, Limited, MadeList, Name, OnSilence, Place, PublicKey, Resource,
    Unmade, WallTime,
};

/// A report of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The greatest epoch of a manager that the node has heard of, made durable before this was said. It heeds no older
    /// one any more.
    pub epoch: u64,
    /// What it says.
    pub said: Said,
}

/// What a node says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Said {
    /// All that it lends, and which list of its slots it has. In answer to each greeting, and now and then.
    Inventory {
        /// Who it is, by its certificate.
        identity: Identity,
        /// What it lends: [`crate::model::FUNCTIONS_PER_NODE_MAX`] at most.
        functions: Vec<Reported>,
        /// Which list it has.
        presets: Option<PresetsId>,
        /// The functions that are to be made there, as it was told last; `None`: no manager has said any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made: Option<MadeSaid>,
        /// As of [`Said::Rails`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rails: Vec<DeadRail>,
    },
    /// How far a function is: in answer to each order, and when something has changed.
    Function(Reported),
    /// It has made this list of its slots durable.
    Presets(PresetsId),
    /// The borrower of a function was silent for longer than it is held.
    HoldOver {
        /// Which function.
        number: u32,
        /// By which generation.
        generation: LoanGeneration,
    },
    /// All rails that do not work as far as it has found out, its own and those of others: when that changes. The first
    /// [`crate::machine::RAILS_SAID_MAX`] count.
    Rails(Vec<DeadRail>),
    /// What it remembers of what managers have told it, in answer to [`crate::Effect::Recall`].
    Memory {
        /// What is in its slots.
        presets: Vec<Preset>,
        /// Who was removed from the fabric.
        revoked: Vec<NodeId>,
    },
}

/// A rail that does not seem to work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadRail {
    /// Whose it is.
    pub node: NodeId,
    /// Which one of that node.
    pub rail: RailId,
    /// Why.
    pub cause: RailCause,
}

/// Why a rail does not seem to work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RailCause {
    /// Its node is not heard there, though on another one.
    Silence,
    /// Its interface has no carrier, as only its node knows.
    Carrier,
}

impl RailCause {
    /// As it is shown.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Silence => "it is silent",
            Self::Carrier => "it has no carrier",
        }
    }
}

/// Which functions a node was told to make, and how far it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeSaid {
    /// What it was told, durable there.
    pub list: MadeList,
    /// Whether it lends all of these but those that it cannot make, and those of which the place on a medium has yet to
    /// read as zeroes; and nothing that was made earlier.
    pub is_done: bool,
    /// What it cannot make, and has never made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Unmade>,
}

/// What the certificate of a node says. Whoever takes reports from the network has checked it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its name.
    pub name: Name,
    /// Its key.
    pub key: PublicKey,
    /// Its domains.
    pub block: Block,
    /// Which groups it may enter.
    pub groups: Groups,
    /// When that was certified last; 0: nobody knows. What a node says of that itself does not count.
    #[serde(default, skip_serializing_if = "WallTime::is_zero")]
    pub issued: WallTime,
}

/// A function, as its lender has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reported {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: Name,
    /// What it is.
    pub resource: Resource,
    /// The generation that the lender has made durable.
    pub generation: LoanGeneration,
    /// Who has it by that.
    pub holder: Holder,
    /// The limits by which it acts; `None`: no manager has said any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limited>,
}

/// Who has a function, by its lender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Holder {
    /// Nobody: windows are revoked, DMA has ended, the function is reset.
    Nobody,
    /// This one.
    Assigned(Assignment),
    /// This one has it still, but not for long.
    Leaving {
        /// Who.
        from: Assignment,
        /// Whether the lender does not wait for it.
        forced: bool,
    },
}

/// Which list of a node's slots: greater ones are newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetsId {
    /// Of the manager that told it.
    pub epoch: u64,
    /// The index of the last entry that has changed it.
    pub index: u64,
}

/// What a lender shall have in its table. One of a generation that is not greater than the one it has changes nothing,
/// except that one being taken back is now taken by force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Of which function.
    pub number: u32,
    /// By which generation.
    pub generation: LoanGeneration,
    /// Who shall have it; `None`: nobody.
    pub to: Option<Assignment>,
    /// Whether whoever has it now is not waited for.
    pub force: bool,
    /// What it may do, which has nothing to do with generations: of two decisions the newer one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limited>,
}

/// What is in a slot of a borrower.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Which slot.
    pub place: Place,
    /// Which function.
    pub function: FunctionKey,
    /// The key of its lender.
    pub lender: PublicKey,
    /// By which generation.
    pub generation: LoanGeneration,
    /// In which group.
    pub group: Group,
    /// What becomes of it when its lender is silent.
    #[serde(default, skip_serializing_if = "OnSilence::is_default")]
    pub on_silence: OnSilence,
}

/// Something about a node that people should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Alarm {
    /// Somebody who does not belong to the fabric reports.
    Stranger,
    /// It has heard a manager of a greater epoch than this one's.
    GreaterEpoch {
        /// That one.
        epoch: u64,
    },
    /// Another node knows that it was removed, which this manager, restored or rebuilt, does not.
    Removed {
        /// Which one.
        by: NodeId,
    },
    /// It lends too much.
    TooMany {
        /// What may be.
        most: usize,
    },
    /// Two of its functions are called the same, or have one number.
    Twice {
        /// The second one.
        number: u32,
        /// The name.
        name: Name,
    },
    /// A function that somebody has is not there.
    Missing {
        /// Which one.
        number: u32,
    },
    /// A function has a generation that this manager has not given.
    GreaterGeneration {
        /// Which one.
        number: u32,
        /// What the manager knew.
        known: LoanGeneration,
        /// What its lender says.
        reported: LoanGeneration,
        /// Whether the assignment that the lender says it has could not stay.
        refused: bool,
    },
    /// A function has a generation that nobody can have given.
    ImpossibleGeneration {
        /// Which one.
        number: u32,
        /// What its lender says.
        reported: LoanGeneration,
    },
    /// Somebody else has a function than by the manager, at the same generation.
    Diverged {
        /// Which one.
        number: u32,
        /// At which generation.
        generation: LoanGeneration,
    },
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => write!(f, "it does not belong to the fabric"),
            Self::GreaterEpoch { epoch } => {
                write!(
                    f,
                    "it has heard a manager of epoch {epoch}, which is greater: is there another manager?"
                )
            }
            Self::Removed { by } => {
                write!(
                    f,
                    "it was removed from the fabric, as node {by} remembers: it is again when the restore ends"
                )
            }
            Self::TooMany { most } => {
                write!(f, "it lends more than {most} functions: none of this report counts")
            }
            Self::Twice { number, name } => {
                write!(f, "its function {number} has the number or the name ({name}) of another one")
            }
            Self::Missing { number } => {
                write!(f, "its function {number} is assigned, and it does not lend it")
            }
            Self::GreaterGeneration { number, known, reported, refused } => {
                let then = if *refused {
                    "the assignment cannot stay and is ended"
                } else {
                    "it counts from now on"
                };
                write!(f, "its function {number} has generation {reported} and {known} was known: {then}")
            }
            Self::ImpossibleGeneration { number, reported } => {
                write!(f, "its function {number} says it has generation {reported}, which cannot be")
            }
            Self::Diverged { number, generation } => {
                write!(f, "by its table another one has function {number} at generation {generation}")
            }
        }
    }
}

/// Something that happened, for people. What has changed is in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A node is heard.
    Reachable(NodeId),
    /// A node is not heard any more.
    Silent(NodeId),
    /// Something is wrong with a node.
    Alarm {
        /// Which one.
        node: NodeId,
        /// What.
        alarm: Alarm,
    },
    /// All that are heard were told that a rail seems to be dead.
    RailDead {
        /// Which one.
        rail: DeadRail,
        /// Who has said so.
        by: Vec<NodeId>,
    },
    /// Nobody says so any more.
    RailBack {
        /// Whose it is.
        node: NodeId,
        /// Which one of that node.
        rail: RailId,
    },
}

#[cfg(test)]
mod tests {
    use base::ids::DomainId;

    use super::*;

    #[test]
    fn what_a_slot_holds_is_read_as_earlier_versions_have_kept_it() {
        let preset = |on_silence| Preset {
            place: Place { domain: DomainId(65), slot: 3 },
            function: FunctionKey { node: NodeId::numbered(7), number: 1 },
            lender: PublicKey([1; 32]),
            generation: LoanGeneration(4),
            group: Group::DEFAULT,
            on_silence,
        };
        let text = |it: &Preset| serde_json::to_string(it).unwrap();
        let plain = text(&preset(OnSilence::default()));
        assert!(!plain.contains("on_silence"), "{plain}");
        for on_silence in [OnSilence::default(), OnSilence::Remove, OnSilence::Hold { seconds: 5 }] {
            let preset = preset(on_silence);
            assert_eq!(serde_json::from_str::<Preset>(&text(&preset)).unwrap(), preset);
        }
    }
}
