//! Why something that was asked for is not done, in words for whoever has asked.

use core::fmt;

use base::ids::{DomainId, Group, NodeId};

use crate::model::{FunctionName, Name, Place, Role, TokenHash, WallTime};

/// Why a command is not done. Nothing of it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no token of this name, or there is none any more.
    NoToken {
        /// It.
        name: Name,
    },
    /// The token does not let do this.
    NotAllowed {
        /// What it takes.
        needed: Role,
        /// What the token is.
        has: Option<Role>,
    },
    /// Something else was asked for under this id.
    OtherRequest,
    /// There is no node of this name.
    NoNode {
        /// It.
        name: Name,
        /// What was probably meant.
        nearest: Option<Name>,
    },
    /// There is no function of this name at its node.
    NoFunction {
        /// It.
        name: FunctionName,
        /// What was probably meant.
        nearest: Option<Name>,
    },
    /// The domain is no node's.
    NoDomain {
        /// It.
        domain: DomainId,
    },
    /// There is no slot of this number.
    NoSlot {
        /// It.
        slot: u16,
    },
    /// What it is about has changed.
    Stale {
        /// The version that was asked for.
        named: u64,
        /// The present one; 0: it is not there.
        present: u64,
    },
    /// The function is assigned to somebody else, or being taken back.
    Taken {
        /// Which one.
        function: FunctionName,
        /// To whom, and where.
        borrower: Option<Name>,
        /// Where.
        place: Place,
        /// Since when.
        since: WallTime,
        /// Whether it is being taken back.
        is_leaving: bool,
    },
    /// The lender is told to end what it has done by itself.
    Ending {
        /// Which function.
        function: FunctionName,
        /// Since when.
        since: WallTime,
    },
    /// The function is there already, but in another group or with another hold time.
    Otherwise {
        /// Which one.
        function: FunctionName,
        /// Since when.
        since: WallTime,
    },
    /// There is a function of this name at the node, and it is another one.
    FunctionThere {
        /// Which one.
        function: FunctionName,
        /// Whether a manager has made it.
        is_made: bool,
    },
    /// The function is of its lender's own configuration.
    NotMade {
        /// Which one.
        function: FunctionName,
    },
    /// The function is being deleted.
    BeingDeleted {
        /// Which one.
        function: FunctionName,
    },
    /// The lender cannot make the function.
    Unmakable {
        /// Which one.
        name: Name,
        /// Why, in its words.
        why: String,
    },
    /// There is another function in the slot, or it is being taken from it.
    SlotTaken {
        /// The slot.
        place: Place,
        /// What is there.
        function: FunctionName,
        /// Since when.
        since: WallTime,
    },
    /// One of the two nodes may not enter the group.
    NotInGroup {
        /// Which node.
        node: Name,
        /// The group.
        group: Group,
    },
    /// There is no group that both nodes may enter.
    NoCommonGroup {
        /// Who lends.
        lender: Name,
        /// Who is to borrow.
        borrower: Name,
    },
    /// A hold time is too long.
    HoldTime {
        /// The longest, in seconds.
        most: u32,
    },
    /// There is no such join token.
    NoJoinToken,
    /// It has expired.
    Expired {
        /// When.
        at: WallTime,
        /// What the manager's clock says.
        now: WallTime,
    },
    /// Another node has used it.
    Used {
        /// Which one.
        by: NodeId,
        /// When.
        at: WallTime,
    },
    /// There is a token of this hash already.
    TokenThere {
        /// It.
        hash: TokenHash,
    },
    /// There is a token of this name already, and nobody has said that it is to be replaced.
    TokenNamed {
        /// It.
        name: Name,
    },
    /// The node is there already.
    NodeThere {
        /// How it is called.
        name: Name,
        /// Since when.
        since: WallTime,
    },
    /// The node was removed: it needs another key.
    Revoked {
        /// Since when.
        since: WallTime,
    },
    /// Another node is called so.
    NameTaken {
        /// The name.
        name: Name,
        /// Whose it is.
        by: NodeId,
    },
    /// This is no number of domains that a node may have.
    Domains {
        /// The greatest.
        most: u32,
    },
    /// There is no room.
    Full {
        /// For what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// Nobody could let anybody do anything any more.
    LastAdministrator,
    /// The manager was restored and has yet to hear nodes.
    Restoring {
        /// How many.
        unheard: usize,
        /// One of them.
        first: Option<Name>,
    },
    /// The manager was restored and has yet to hear this lender.
    Unheard {
        /// It.
        node: Name,
    },
    /// No restore has begun.
    NoRestore,
    /// Too many requests are under way.
    Busy,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meant = |nearest: &Option<Name>| match nearest {
            Some(name) => format!("; did you mean `{name}`?"),
            None => String::new(),
        };
        match self {
            Self::NoToken { name } => write!(f, "there is no token `{name}`: ask an administrator for one"),
            Self::NotAllowed { needed, has } => {
                let has = has.map_or("a join token", Role::text);
                write!(f, "this takes a token of an {}, and yours is {has}", needed.text())
            }
            Self::OtherRequest => write!(f, "something else was asked for under this id: use another one"),
            Self::NoNode { name, nearest } => write!(f, "there is no node `{name}`{}", meant(nearest)),
            Self::NoFunction { name, nearest } => {
                let (function, node) = (&name.function, &name.node);
                write!(f, "node `{node}` lends no `{function}`{}", meant(nearest))
            }
            Self::NoDomain { domain } => write!(f, "domain {domain} is no node's"),
            Self::NoSlot { slot } => {
                write!(f, "there is no slot {slot}: they are below {}", crate::model::SLOT_NUMBERS)
            }
            Self::Stale { named, present: 0 } => write!(f, "version {named} was asked for, and it is gone"),
            Self::Stale { named, present } => {
                write!(f, "version {named} was asked for, and it is at {present}: look again")
            }
            Self::Taken { function, borrower, place, since, is_leaving } => {
                let who = borrower.as_ref().map_or("a node that was removed", Name::as_str);
                match is_leaving {
                    true => write!(f, "{function} is being taken from {place} of {who} since {since}"),
                    false => write!(f, "{function} is in {place} of {who} since {since}: unassign it first"),
                }
            }
            Self::Ending { function, since } => {
                write!(f, "{function} is taken since {since} from somebody who cannot have it: try again")
            }
            Self::Otherwise { function, since } => {
                write!(f, "{function} is there since {since} in another group or with another hold time")
            }
            Self::FunctionThere { function, is_made: true } => {
                write!(
                    f,
                    "there is a {function} already, made otherwise: delete it first, or choose another name"
                )
            }
            Self::FunctionThere { function, is_made: false } => {
                write!(f, "there is a {function} already, by its node's configuration: choose another name")
            }
            Self::NotMade { function } => write!(
                f,
                "{function} is of its node's own configuration: take it out of the file there, and `causeway reload`"
            ),
            Self::BeingDeleted { function } => {
                write!(f, "{function} is being deleted: try again when its lender has done that")
            }
            Self::Unmakable { name, why } => write!(f, "{name} cannot be made: {why}"),
            Self::SlotTaken { place, function, since } => {
                write!(f, "{function} is in slot {place} since {since}: unassign it first")
            }
            Self::NotInGroup { node, group } => write!(f, "node `{node}` may not enter group {group}"),
            Self::NoCommonGroup { lender, borrower } => write!(
                f,
                "nodes `{lender}` and `{borrower}` may not enter the same group: give one of them another one \
                 (`causeway node groups`)"
            ),
            Self::HoldTime { most } => write!(f, "a function is held {most} s at most"),
            Self::NoJoinToken => write!(f, "there is no such join token: ask an administrator for one"),
            Self::Expired { at, now } => {
                write!(f, "the join token has expired at {at}, and it is {now} by the manager's clock")
            }
            Self::Used { by, at } => {
                write!(f, "node {by} has joined with this token at {at}: each lets one join")
            }
            Self::TokenThere { .. } => write!(f, "there is such a token already: make another one"),
            Self::TokenNamed { name } => {
                write!(f, "there is a token `{name}` already: choose another name, or `--replace` it")
            }
            Self::NodeThere { name, since } => {
                write!(f, "the node has joined already as `{name}` at {since}")
            }
            Self::Revoked { since } => {
                write!(f, "the node was removed at {since}: it joins with a new key only")
            }
            Self::NameTaken { name, by } => write!(f, "node {by} is called `{name}`: choose another name"),
            Self::Domains { most } => write!(f, "a node has 1 to {most} domains, a power of two"),
            Self::Full { what, most } => write!(f, "there is no room for more {what} than {most}"),
            Self::LastAdministrator => write!(f, "this is the last administrator's: make another one first"),
            Self::Restoring { unheard: 0, .. } => write!(
                f,
                "the manager was restored and knows no node yet: wait until all have come, then end the restore \
                 (`causeway manager end-restore`; with --anyway if there is none)"
            ),
            Self::Restoring { unheard, first } => {
                let such = first.as_ref().map(|name| format!(", such as `{name}`")).unwrap_or_default();
                write!(
                    f,
                    "the manager was restored and has yet to hear {unheard} nodes{such}; then end the restore \
                     (`causeway manager end-restore`; with --anyway if they do not come)"
                )
            }
            Self::Unheard { node } => write!(f, "the manager was restored and has yet to hear `{node}`"),
            Self::NoRestore => write!(f, "no restore has begun"),
            Self::Busy => write!(f, "too many requests are under way: try again"),
        }
    }
}

impl core::error::Error for Refusal {}
