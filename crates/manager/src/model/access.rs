use base::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::{Groups, TokenHash, WallTime, node_text};

/// What somebody may do. Each may do what those before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    ReadOnly,
    /// Assign and unassign.
    Operator,
    /// Let nodes in and out, and say who may do what.
    Administrator,
}

impl Role {
    /// As people call it.
    pub fn text(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Operator => "operator",
            Self::Administrator => "administrator",
        }
    }
}

/// Lets whoever has the token do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiToken {
    /// The token's hash.
    pub hash: TokenHash,
    /// What it lets do.
    pub role: Role,
}

/// Lets one node join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinToken {
    /// The token's hash.
    pub hash: TokenHash,
    /// It is worth nothing from then on.
    pub expires: WallTime,
    /// Which groups its node may enter.
    pub groups: Groups,
    /// How many domains its node gets: a power of two, at most [`super::BLOCK_MAX`].
    pub domains: u32,
    /// Who has joined with it. It is remembered until it expires, so that a second one is told.
    pub used: Option<Used>,
}

/// A token's use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Used {
    /// By whom.
    #[serde(with = "node_text")]
    pub by: NodeId,
    /// When.
    pub at: WallTime,
}
