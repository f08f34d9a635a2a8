use base::ids::{DomainId, LifeId, NodeId};
use base::ledger::Layout;
use link::PublicKey;
use link::pair::COPIES;
use serde::{Deserialize, Serialize};

use crate::{Address, MAX_RAILS};

/// Where a node that has something of this one can be called. The agent keeps it beside the tenancy, so that a lender
/// that is started anew, perhaps at another address, can call whoever has its functions before they find it, and is not
/// found by a copy of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct Whereabouts {
    /// Nobody else can answer.
    pub key: PublicKey,
    /// Its domain.
    pub domain: DomainId,
    /// By rail, an address that has answered a challenge; [`Address::NONE`]: none has.
    pub addresses: [Address; MAX_RAILS],
    /// Lives of it that are copies of who has something; zeroes: none.
    pub copies: [LifeId; COPIES],
}

impl Whereabouts {
    /// Whose they are.
    pub fn node(&self) -> NodeId {
        self.key.id()
    }
}
