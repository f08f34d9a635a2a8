use core::fmt;

use base::ids::{LoanGeneration, NodeId};

use crate::model::{FunctionKey, Name, Place, TokenHash};

/// Why an entry does not fit to those before it: the log is not one that a manager has written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// Its index is not the next one.
    Index {
        /// The next one.
        next: u64,
        /// What it has.
        found: u64,
    },
    /// It was made before the one before it.
    Earlier,
    /// Its epoch is not greater.
    Epoch {
        /// The present one.
        present: u64,
        /// What it has.
        found: u64,
    },
    /// A request was done twice.
    Request,
    /// There is no such node, or it was removed.
    NoNode(NodeId),
    /// The node is there already.
    NodeThere(NodeId),
    /// The name is another's.
    NameTaken(Name),
    /// The domains are not free.
    DomainsTaken(NodeId),
    /// There is no such function.
    NoFunction(FunctionKey),
    /// The function is there already.
    FunctionThere(FunctionKey),
    /// The function is in use.
    InUse(FunctionKey),
    /// What is said of the function cannot follow what it is.
    OutOfOrder(FunctionKey),
    /// The generation cannot follow the present one.
    Generation {
        /// Of which function.
        key: FunctionKey,
        /// The present one.
        present: LoanGeneration,
        /// What the entry has.
        found: LoanGeneration,
    },
    /// Another function is in the slot, or it is no slot of the borrower.
    Slot(Place),
    /// There is no such join token, or it cannot be used.
    JoinToken(TokenHash),
    /// There is no such token for the interface.
    ApiToken(Name),
    /// There is no such function that was made.
    NotMade(Name),
    /// What is said of the functions that are made at a node cannot follow what is decided.
    Making(NodeId),
    /// There would be too many of something.
    TooMany(&'static str),
    /// No restore has begun.
    NoRestore,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { next, found } => write!(f, "it has index {found}, and the next one is {next}"),
            Self::Earlier => write!(f, "it is earlier than the one before it"),
            Self::Epoch { present, found } => write!(f, "its epoch {found} does not follow {present}"),
            Self::Request => write!(f, "its request was done before"),
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::NodeThere(node) => write!(f, "node {node} is there already"),
            Self::NameTaken(name) => write!(f, "the name {name} is another's"),
            Self::DomainsTaken(node) => write!(f, "the domains of node {node} are not free"),
            Self::NoFunction(key) => write!(f, "node {} has no function {}", key.node, key.number),
            Self::FunctionThere(key) => {
                write!(f, "function {} of node {} is there already", key.number, key.node)
            }
            Self::InUse(key) => write!(f, "function {} of node {} is in use", key.number, key.node),
            Self::OutOfOrder(key) => {
                write!(f, "function {} of node {} is not at that point", key.number, key.node)
            }
            Self::Generation { key, present, found } => {
                let (number, node) = (key.number, key.node);
                write!(f, "generation {found} of function {number} of node {node} cannot follow {present}")
            }
            Self::Slot(place) => write!(f, "slot {place} is taken, or is no slot of the borrower"),
            Self::JoinToken(hash) => write!(f, "the join token {hash} cannot be used"),
            Self::ApiToken(name) => write!(f, "there is no token {name}"),
            Self::NotMade(name) => write!(f, "no function {name} was made"),
            Self::Making(node) => {
                write!(f, "node {node} is not at that point with the functions that are made there")
            }
            Self::TooMany(what) => write!(f, "there would be too many {what}"),
            Self::NoRestore => write!(f, "no restore has begun"),
        }
    }
}

impl core::error::Error for Corruption {}
