//! What clients ask for.

use core::fmt::Write;

use base::ids::{DomainId, Group, NodeId};

use crate::model::{
    FunctionName, Groups, Limits, Name, OnSilence, Place, PublicKey, RequestId, Role, Shape, TokenHash,
    WallTime,
};

/// What a client asks for. Each is one entry at most, so it happens as a whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// A node, whose key the caller has proven, wants to belong to the fabric. By whoever has the join token.
    Join {
        /// The hash of its key.
        id: NodeId,
        /// What it wants to be called.
        name: Name,
        /// Its key.
        key: PublicKey,
    },
    /// A node shall not belong to the fabric any more. Administrator.
    RemoveNode {
        /// Which one.
        node: Name,
    },
    /// A node shall be in these groups; loans of it in others end by force. Administrator.
    SetGroups {
        /// Which one.
        node: Name,
        /// From then on.
        groups: Groups,
    },
    /// A node may join with this token. Administrator.
    MakeJoinToken {
        /// The token's hash.
        hash: TokenHash,
        /// How long.
        expires: WallTime,
        /// Which groups it may enter.
        groups: Groups,
        /// How many domains it gets.
        domains: u32,
    },
    /// Nobody may join with this token. Administrator.
    RemoveJoinToken {
        /// The token's hash.
        hash: TokenHash,
    },
    /// Somebody may use the interface as this. Administrator.
    SetApiToken {
        /// Its name.
        name: Name,
        /// The token's hash.
        hash: TokenHash,
        /// As what.
        role: Role,
        /// Whether one of this name is worth nothing any more.
        replace: bool,
    },
    /// Somebody may not use the interface any more. Administrator.
    RemoveApiToken {
        /// Whose token.
        name: Name,
    },
    /// A function shall be plugged in. Operator.
    Assign {
        /// Which one.
        function: FunctionName,
        /// The domain.
        domain: DomainId,
        /// The slot there.
        slot: u16,
        /// In which group; `None`: in the least one that both nodes may enter.
        group: Option<Group>,
        /// What becomes of it when one end is silent.
        on_silence: OnSilence,
    },
    /// A function shall be taken back. Operator.
    Unassign {
        /// Which one.
        function: FunctionName,
        /// Whether the lender takes it back though the borrower does not let go.
        force: bool,
    },
    /// A function may do so much from then on, whoever has it. Operator.
    SetLimits {
        /// Which one.
        function: FunctionName,
        /// What it may do, all of it: nothing is left as it was.
        limits: Limits,
    },
    /// A function shall be made at a node. Operator.
    MakeFunction {
        /// How it is called.
        function: FunctionName,
        /// What it is.
        shape: Shape,
    },
    /// A function that was made shall not be there any more, and its namespace neither. Operator.
    DeleteFunction {
        /// Which one.
        function: FunctionName,
    },
    /// After a restore: all there is was heard, or is not waited for. Administrator.
    EndRestore {
        /// Although some nodes were not heard.
        anyway: bool,
    },
}

impl Command {
    /// What somebody has to be to ask for it; `None`: whoever has a join token.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Join { .. } => None,
            Self::Assign { .. }
            | Self::Unassign { .. }
            | Self::SetLimits { .. }
            | Self::MakeFunction { .. }
            | Self::DeleteFunction { .. } => Some(Role::Operator),
            Self::RemoveNode { .. }
            | Self::SetGroups { .. }
            | Self::MakeJoinToken { .. }
            | Self::RemoveJoinToken { .. }
            | Self::SetApiToken { .. }
            | Self::RemoveApiToken { .. }
            | Self::EndRestore { .. } => Some(Role::Administrator),
        }
    }

    /// Whether it ends a restore.
    pub(crate) fn ends_restore(&self) -> bool {
        matches!(self, Self::EndRestore { .. })
    }

    /// The slot that is asked for.
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Assign { domain, slot, .. } => Some(Place { domain: *domain, slot: *slot }),
            _ => None,
        }
    }
}

/// A command, as it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The request's id. The same one again is the same request again.
    pub request: RequestId,
    /// Who asks.
    pub who: Asker,
    /// Only if what it is about has this version (HTTP's `If-Match`).
    pub if_version: Option<u64>,
    /// What for.
    pub command: Command,
}

/// Who asks, as the caller has found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asker {
    /// Whoever has the token of this name. What it lets do is looked up each time, so a token that is taken away is
    /// worth nothing at once.
    Api(Name),
    /// Whoever has a join token of this hash.
    Joiner(TokenHash),
}

impl Asked {
    /// A number that stands for all that is asked. The derived text of types is the same in each run of one program;
    /// over versions a repeated request may be refused as another one, and is asked anew.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{:?} {:?} {:?}", self.who, self.if_version, self.command);
        base::hash::fnv1a(text.as_bytes())
    }
}
