//! What a node tells others of a rail that seems to have failed, in the manner of PCIe's error messages (PCIe 6.0
//! §6.2.4): whose it is, and why. Who hears it asks that rail at once and has others carry its traffic until it has
//! answered, so that a notice that is late, or a lie, costs a question.

use core::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use base::ids::{NodeId, RailId};
use base::ledger::Layout;
use serde::{Deserialize, Serialize};

use crate::frame::TAG_LEN;
use crate::information::Announcer;

/// A rail that seems to have failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct Notice {
    /// Whose it is.
    pub node: NodeId,
    /// Which one of that node.
    pub rail: RailId,
    /// Why.
    pub cause: NoticeCause,
}

/// Why a rail seems to have failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
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

/// Bytes of a proof.
pub(crate) const PROOF_BYTES: usize = TAG_LEN;

/// What the nodes of a fabric share, so that one frame to all of them can carry a notice. Whoever has it can cast doubt
/// on any rail, and keep what another one says from being heeded: then nodes find out by themselves. Nothing else.
#[derive(Clone)]
pub struct GroupKey(hmac::Key);

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupKey(..)")
    }
}

impl GroupKey {
    /// Bytes of it.
    pub const BYTES: usize = 32;

    /// With these bytes.
    pub fn new(bytes: &[u8; Self::BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Shows that `notice` in the frame of `announcer` is of somebody who has the key. It is of that frame alone, so
    /// that it is taken once.
    pub fn proof(&self, announcer: &Announcer, notice: &Notice) -> [u8; PROOF_BYTES] {
        let number = announcer.number.to_le_bytes();
        let incarnation = announcer.incarnation.0.to_le_bytes();
        let about = [notice.rail.get(), notice.cause.code()];
        self.sign(&[b"notice", &announcer.key.0, &incarnation, &number, &notice.node.0, &about])
    }

    /// Shows that the node has the key: so a notice to all is heard by it as well.
    pub fn mark(&self, node: NodeId) -> [u8; PROOF_BYTES] {
        self.sign(&[b"member", &node.0])
    }

    /// Whether `proof` is the one of this notice in the frame of `announcer`.
    pub fn proves(&self, announcer: &Announcer, notice: &Notice, proof: &[u8; PROOF_BYTES]) -> bool {
        verify_slices_are_equal(&self.proof(announcer, notice), proof).is_ok()
    }

    fn sign(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(&context.sign().as_ref()[..PROOF_BYTES]);
        proof
    }
}
