//! Who has a managed function: an entry of its lender's table.
//!
//! A function that nobody manages has none, and is had by who knows the secret of its line. Once it has an entry, only
//! that counts. Entries are made elsewhere and durable before they come here; a newer one has a greater generation.

use core::time::Duration;

use base::ids::{DomainId, Group, LoanGeneration, NodeId};
use base::ledger::Layout;
use base::times::SILENCE;
use serde::{Deserialize, Serialize};

/// Whom a function is for, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct Assignment {
    /// The borrower.
    pub node: NodeId,
    /// The domain in which it may have the function: of a virtual machine, or of the node.
    pub domain: DomainId,
    /// Its slot there.
    pub slot: u16,
    /// The zone in which it may: who has a channel in another one knows nothing of the function.
    pub group: Group,
    /// How long it may be silent; zero: for [`SILENCE`].
    pub hold: Duration,
}

/// Who has a function, by its lender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// This one, and nobody else may open a stream.
    Assigned(Assignment),
    /// This one has it still, if it has a stream of it, but for no longer than that. Nobody may open another one.
    Leaving {
        /// Who.
        from: Assignment,
        /// The stream ends at once; otherwise when it is given back, or its node was silent for the hold time.
        forced: bool,
    },
}

/// An entry of a lender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct Entry {
    /// Greater than zero, and than that of each entry before but one that has the same and forces its end.
    pub generation: LoanGeneration,
    /// Who has the function.
    pub holder: Holder,
}

/// How far a lender's card is with an entry: what it acts by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct Applied {
    /// Of the entry. Nothing of an older one opens any more.
    pub generation: LoanGeneration,
    /// Who has the function.
    pub held: Possession,
    /// Whether who has it by the entry was silent for longer than it may be; `None`: this card does not know yet.
    pub is_overdue: Option<bool>,
}

/// Who has a function, as its lender's card finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub enum Possession {
    /// Nobody has it, or may open it: no stream is left, no work is with its medium, and that is durable.
    Nobody,
    /// The one of the entry may open it, or has.
    Assigned,
    /// Somebody has it still whose it is not by the entry, or what that one has begun is not over.
    Leaving,
}

impl Assignment {
    /// How long it may be silent.
    pub fn patience(&self) -> Duration {
        self.hold.max(SILENCE)
    }
}

impl Holder {
    /// How long this node, which has the function, may be silent and has it still.
    pub fn patience(&self, node: NodeId) -> Duration {
        match self {
            Self::Leaving { from, .. } => from.patience(),
            Self::Assigned(to) if to.node == node => to.patience(),
            Self::Assigned(_) | Self::Nobody => SILENCE,
        }
    }
}

impl Entry {
    /// Whose the function is; `None`: nobody's, or not for long.
    pub fn assigned(&self) -> Option<Assignment> {
        if let Holder::Assigned(to) = self.holder { Some(to) } else { None }
    }

    /// The zone that the function is in; `None`: it is nobody's, and its lender's own word counts.
    pub fn group(&self) -> Option<Group> {
        match self.holder {
            Holder::Nobody => None,
            Holder::Assigned(it) | Holder::Leaving { from: it, .. } => Some(it.group),
        }
    }

    /// Whether a node is spoken of: it is let in, if only to hear that it has the function no more.
    pub fn concerns(&self, node: NodeId) -> bool {
        match self.holder {
            Holder::Nobody => false,
            Holder::Assigned(it) | Holder::Leaving { from: it, .. } => it.node == node,
        }
    }
}
