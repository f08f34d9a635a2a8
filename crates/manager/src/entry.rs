//! Entries of the log: small changes, each with who, when, and whose answer it is. The log is the audit log.

use base::ids::{LoanGeneration, NodeId};
use serde::{Deserialize, Serialize};

use crate::model::{
    ApiToken, Assignment, Block, FunctionKey, Groups, JoinToken, Limited, Limits, LimitsId, Loan, MadeId,
    MadeList, Name, Node, PublicKey, RequestId, Resource, Shape, TokenHash, Unmade, WallTime, node_text,
};
use crate::state::State;

/// Who has caused an entry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Who {
    /// The manager itself, or whoever founded the fabric.
    Manager,
    /// Somebody with a token for the interface.
    Api {
        /// The token's name.
        token: Name,
    },
    /// Whoever has a join token.
    Joiner {
        /// The token.
        token: TokenHash,
    },
    /// A node, by what it reports.
    Node {
        /// Which one.
        #[serde(with = "node_text")]
        id: NodeId,
    },
}

/// What a client hears of a request that was done. It is part of the entry, so a repeated request hears the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// It is done.
    Done,
    /// The node belongs to the fabric.
    Joined {
        /// Which one.
        #[serde(with = "node_text")]
        node: NodeId,
        /// Its domains.
        block: Block,
        /// Which groups it may enter.
        groups: Groups,
    },
    /// The function has this generation; whether its lender has applied it is told beside it.
    Function {
        /// Which one.
        key: FunctionKey,
        /// Its generation.
        generation: LoanGeneration,
    },
    /// It is decided which functions are made at the node; whether its lender has applied that is told beside it.
    Made {
        /// At which node.
        #[serde(with = "node_text")]
        node: NodeId,
        /// The function that it is about.
        name: Name,
        /// By which decision it is to be there, or not any more.
        id: MadeId,
        /// Whether it is to be there.
        is_wanted: bool,
    },
    /// These limits are decided; whether the function's lender has applied them is told beside it.
    Limits {
        /// Of which function.
        key: FunctionKey,
        /// By which decision.
        id: LimitsId,
    },
}

/// The request that has caused an entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// A number that stands for what was asked: another one under the same id is another request.
    pub fingerprint: u64,
    /// What its client hears.
    pub answer: Answer,
}

/// One entry: a change that happens as a whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// When. Never earlier than the entry before it, whatever the clock says.
    pub at: WallTime,
    /// Who has caused it.
    pub who: Who,
    /// By which request.
    pub request: Option<Request>,
    /// What changes.
    pub change: Change,
}

/// What changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A manager has started.
    EpochBegun {
        /// Greater than the one before it.
        epoch: u64,
        /// From a backup: nothing is assigned before lenders were heard.
        restored: bool,
        /// Nodes are taken in by their certificates until that ends, also by such as are good no more.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        any_time: bool,
    },
    /// The administrator has ended what a restore began.
    RestoreEnded,
    /// Somebody may use the interface, or as something else than before.
    ApiTokenSet {
        /// Its name.
        name: Name,
        /// What it is.
        token: ApiToken,
    },
    /// Somebody may not use the interface any more.
    ApiTokenRemoved {
        /// Whose token.
        name: Name,
    },
    /// A node may join.
    JoinTokenMade {
        /// By this.
        token: JoinToken,
    },
    /// A join token is worth nothing any more.
    JoinTokenRemoved {
        /// Which one.
        hash: TokenHash,
    },
    /// A node has joined.
    NodeJoined {
        /// Its id.
        #[serde(with = "node_text")]
        id: NodeId,
        /// Its name.
        name: Name,
        /// Its key.
        key: PublicKey,
        /// Its domains.
        block: Block,
        /// By which token, which is used now.
        token: TokenHash,
    },
    /// After a restore: a node that the backup did not know belongs to the fabric, by its certificate.
    NodeAdopted {
        /// It.
        node: Node,
        /// When its certificate was issued.
        #[serde(default)]
        issued: WallTime,
    },
    /// While a restored manager listens: a node was removed since the backup, as others show.
    NodeDisplaced {
        /// Which one.
        #[serde(with = "node_text")]
        id: NodeId,
    },
    /// A node does not belong to the fabric any more. What it lends is gone, what it borrows is taken back by force.
    NodeRemoved {
        /// Which one.
        #[serde(with = "node_text")]
        id: NodeId,
        /// Until when its domains are nobody's.
        until: WallTime,
    },
    /// A node may enter these groups.
    GroupsSet {
        /// Which one.
        #[serde(with = "node_text")]
        id: NodeId,
        /// From now on.
        groups: Groups,
    },
    /// A function is to be plugged in.
    Assigned {
        /// Which one.
        key: FunctionKey,
        /// By one more than before.
        generation: LoanGeneration,
        /// Where.
        to: Assignment,
    },
    /// A function is to be taken back.
    Unassigned {
        /// Which one.
        key: FunctionKey,
        /// By one more than before, or the same if it is being taken back already and now is by force.
        generation: LoanGeneration,
        /// Whether its lender waits for the borrower to let go.
        force: bool,
    },
    /// A function may do so much from now on, whoever has it.
    LimitsSet {
        /// Which one.
        key: FunctionKey,
        /// What it may do.
        limits: Limits,
    },
    /// A function is to be made at a node.
    FunctionMade {
        /// At which node.
        #[serde(with = "node_text")]
        node: NodeId,
        /// Its name there.
        name: Name,
        /// What it is.
        shape: Shape,
    },
    /// A function that was made is to be there no more.
    FunctionDeleted {
        /// At which node.
        #[serde(with = "node_text")]
        node: NodeId,
        /// Its name there.
        name: Name,
    },
    /// A node has said what it lends, and how far it is.
    Reported {
        /// Who.
        #[serde(with = "node_text")]
        id: NodeId,
        /// What is new of it.
        news: Vec<News>,
        /// The same was in an entry before, lately. How often it came again another one notes.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        is_again: bool,
    },
    /// Nothing: somebody was refused something, or people should know something of a node.
    Noted {
        /// What was asked for, or is the matter.
        what: String,
        /// What came of it.
        result: String,
        /// How often that was so since the last such entry.
        count: u64,
    },
}

impl Change {
    /// Whether whoever looks through the log for who has done what should see it, though no client has asked for it.
    pub(crate) fn is_noteworthy(&self) -> bool {
        match self {
            Self::EpochBegun { .. }
            | Self::NodeAdopted { .. }
            | Self::NodeDisplaced { .. }
            | Self::Noted { .. } => true,
            Self::Reported { news, is_again, .. } => !is_again && news.iter().any(News::is_noteworthy),
            _ => false,
        }
    }
}

impl Change {
    /// The node of which it changes what functions are made there.
    pub fn made_at(&self) -> Option<NodeId> {
        match self {
            Self::FunctionMade { node, .. } | Self::FunctionDeleted { node, .. } => Some(*node),
            Self::Reported { id, news, .. } => {
                let is_made = |news: &News| matches!(news, News::Made { .. } | News::MadeAdopted { .. });
                news.iter().any(is_made).then_some(*id)
            }
            _ => None,
        }
    }

    /// The node of which it is known by it that functions that were made there are lent.
    pub(crate) fn lent_at(&self) -> Option<NodeId> {
        let Self::Reported { id, news, .. } = self else { return None };
        let is_of_made = |news: &News| match news {
            News::Seen { resource, .. } | News::Described { resource, .. } => resource.made.is_some(),
            News::Heard => true,
            _ => false,
        };
        news.iter().any(is_of_made).then_some(*id)
    }
}

/// Something new about a function of the node that reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum News {
    /// It is there.
    Seen {
        /// Its number.
        number: u32,
        /// Its name.
        name: Name,
        /// What it is.
        resource: Resource,
        /// What generation its lender has.
        generation: LoanGeneration,
        /// Who has it, as far as its lender knows.
        loan: Loan,
    },
    /// It is called, or is, something else.
    Described {
        /// Its number.
        number: u32,
        /// Its name now.
        name: Name,
        /// What it is now.
        resource: Resource,
    },
    /// It is not there any more; nobody had it.
    Gone {
        /// Its number.
        number: u32,
    },
    /// The lender has applied what was decided.
    Applied {
        /// Its number.
        number: u32,
        /// Which generation: the present one.
        generation: LoanGeneration,
    },
    /// The lender has a greater generation, which counts from now on.
    Adopted {
        /// Its number.
        number: u32,
        /// That one, or one more where its assignment cannot stay.
        generation: LoanGeneration,
        /// Who has it.
        loan: Loan,
    },
    /// The lender acts by the limits that were decided.
    LimitsApplied {
        /// Of which function.
        number: u32,
        /// By which decision: the present one.
        id: LimitsId,
    },
    /// The lender acts by limits that were decided later than what is known: after a restore.
    LimitsAdopted {
        /// Of which function.
        number: u32,
        /// Its limits.
        limited: Limited,
    },
    /// The lender has made what is decided, but for what it cannot.
    Made {
        /// By which decision: the present one.
        id: MadeId,
        /// What it cannot make.
        refused: Vec<Unmade>,
    },
    /// The lender has functions by a decision that is newer than what is known: after a restore.
    MadeAdopted {
        /// They.
        list: MadeList,
    },
    /// After a restore, or where a lender has a greater generation: what was known of who has a function is over, for
    /// others now are where it was. What has become of it its lender says.
    Displaced {
        /// Which function: not always one of the node that reports.
        key: FunctionKey,
    },
    /// The borrower was silent for longer than the function is held: it is taken back by force.
    HeldOver {
        /// Its number.
        number: u32,
        /// By one more than before.
        generation: LoanGeneration,
    },
    /// After a restore: the lender was heard.
    Heard,
}

impl News {
    /// Whether by it somebody has a function, or has it no more, by another one's word than a client's.
    pub fn is_noteworthy(&self) -> bool {
        matches!(self, Self::Adopted { .. } | Self::Displaced { .. } | Self::HeldOver { .. })
    }

    /// What whoever looks through the log is told of it, where `node` reports; `None`: it is not noteworthy.
    pub fn text(&self, state: &State, node: NodeId) -> Option<String> {
        let key = self.function(node).filter(|_| self.is_noteworthy())?;
        let name = state.name_of(key).map_or_else(|| format!("function {}", key.number), |it| it.to_string());
        Some(match self {
            Self::HeldOver { .. } => format!("take {name} by force: its borrower was silent too long"),
            Self::Displaced { .. } => format!("take {name} from its slot, where another one is"),
            _ => format!("know better who has {name}"),
        })
    }

    /// The function that it is about, where `node` reports.
    pub fn function(&self, node: NodeId) -> Option<FunctionKey> {
        match self {
            Self::Seen { number, .. }
            | Self::Described { number, .. }
            | Self::Gone { number }
            | Self::Applied { number, .. }
            | Self::Adopted { number, .. }
            | Self::LimitsApplied { number, .. }
            | Self::LimitsAdopted { number, .. }
            | Self::HeldOver { number, .. } => Some(FunctionKey { node, number: *number }),
            Self::Displaced { key } => Some(*key),
            Self::Made { .. } | Self::MadeAdopted { .. } | Self::Heard => None,
        }
    }
}
