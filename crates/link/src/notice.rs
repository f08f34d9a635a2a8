//! What a node tells others of a rail that seems to have failed, in the manner of PCIe's error messages (PCIe 6.0
//! §6.2.4): whose it is, and why. Who hears it asks that rail at once and has others carry its traffic until it has
//! answered, so that a notice that is late, or a lie, costs a question.

use base::ids::{NodeId, RailId};

/// A rail that seems to have failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Whose it is.
    pub node: NodeId,
    /// Which one of that node.
    pub rail: RailId,
    /// Why.
    pub cause: NoticeCause,
}

/// Why a rail seems to have failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoticeCause {
    /// It does not answer the sender, which that node does on another one.
    Silence,
    /// Its interface has no carrier, as only that node knows.
    Carrier,
}

impl NoticeCause {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Silence => 0,
            Self::Carrier => 1,
        }
    }

    /// What a later version knows is one that can only be asked about.
    pub(crate) fn from_code(code: u8) -> Self {
        if code == Self::Carrier.code() { Self::Carrier } else { Self::Silence }
    }
}
