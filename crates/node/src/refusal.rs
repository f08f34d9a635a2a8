//! Why a loan does not come about, be it that the nodes do not meet, or that the lender does not open the stream.

use core::time::Duration;

use base::ids::{Incarnation, NodeId};
use base::ledger::Layout;
use link::pair::{self, OpenRefusal};
use link::{Fault, Name};
use serde::{Deserialize, Serialize};

/// Why a lender does not lend.
#[derive(Clone, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub enum Refusal {
    /// Another node has the function.
    InUse {
        /// Its name.
        by: Name,
        /// Its id.
        node: NodeId,
        /// For how long it has had it; `None`: since before the lender was started.
        since: Option<Duration>,
        /// It is not heard at present: if it does not come back, the function is kept for it for so long.
        hold: Option<Duration>,
    },
    /// The lender has no such function, or its secret is another one than the line's.
    NotLent,
    /// The function was assigned anew or taken back, or its lender does not know yet that it is this node's.
    Generation,
    /// A manager says who has the function: its line opens it no more.
    Managed,
    /// One side insists on sealed frames and the other on unsealed ones.
    Sealing,
    /// The lender has seen a greater incarnation of this node, or this one in another life: the state folder was
    /// restored.
    Outdated {
        /// The greatest that it has seen.
        seen: Incarnation,
    },
    /// Another life of this node is met already, and answers: the state folder was copied.
    Twin {
        /// Its name.
        by: Name,
    },
    /// The lender lends to others only.
    NotAllowed,
    /// The two nodes speak no common version of the protocol.
    Version,
    /// The lender has no room for another node, or for another stream.
    NoRoom,
    /// The lender does not take the certificate of this node.
    Certificate {
        /// What is wrong with it.
        fault: Fault,
        /// The lender's clock, in milliseconds since 1970.
        clock: u64,
    },
    /// This node does not take the certificate of the lender.
    Untrusted {
        /// What is wrong with it.
        fault: Fault,
        /// This node's clock.
        clock: u64,
    },
    /// For a reason that a later version knows.
    Unknown {
        /// Its number.
        verdict: u8,
    },
}

impl From<pair::Refusal> for Refusal {
    fn from(refusal: pair::Refusal) -> Self {
        match refusal {
            pair::Refusal::Sealing => Self::Sealing,
            pair::Refusal::Outdated { seen } => Self::Outdated { seen },
            pair::Refusal::Twin { by } => Self::Twin { by },
            pair::Refusal::NotAllowed => Self::NotAllowed,
            pair::Refusal::Version => Self::Version,
            pair::Refusal::NoRoom => Self::NoRoom,
            pair::Refusal::Certificate { fault, clock } => Self::Certificate { fault, clock },
            pair::Refusal::Untrusted { fault, clock } => Self::Untrusted { fault, clock },
            pair::Refusal::Unknown { verdict } => Self::Unknown { verdict },
        }
    }
}

impl Refusal {
    /// What a borrower is told of an opening; nothing where its claim asks again by itself.
    pub(crate) fn of_opening(refusal: OpenRefusal) -> Option<Self> {
        Some(match refusal {
            OpenRefusal::Number => return None,
            OpenRefusal::Unknown => Self::NotLent,
            OpenRefusal::InUse { by, node, since, hold } => Self::InUse { by, node, since, hold },
            OpenRefusal::NotAllowed => Self::NotAllowed,
            OpenRefusal::Generation => Self::Generation,
            OpenRefusal::Managed => Self::Managed,
            OpenRefusal::NoRoom => Self::NoRoom,
            OpenRefusal::Other { verdict } => Self::Unknown { verdict },
        })
    }
}
