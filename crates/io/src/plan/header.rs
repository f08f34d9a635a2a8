use base::ids::NodeId;
use base::ledger::{Layout, LayoutHash};
use node::NodeLedger;

use crate::messages;

use super::{Allowed, DriveComing, LEDGER_OFFSET, Plan, SharedCells};

/// The first bytes of every plan.
const MAGIC: [u8; 8] = *b"cwplan\0\0";

/// What stands for the layout of a plan, and of what is told later: of what is in it, and of the memory whose places it
/// names.
const LAYOUT: LayoutHash = Plan::LAYOUT
    .number(DriveComing::LAYOUT.0)
    .number(<Allowed as Layout>::LAYOUT.0)
    .number(messages::LAYOUT.0)
    .number(NodeLedger::LAYOUT.0)
    .field::<SharedCells>("shared", LEDGER_OFFSET);

/// What a plan begins with; then it has as many bytes as it says.
pub(super) struct Header {
    pub(super) layout: LayoutHash,
    /// Bytes of what follows.
    pub(super) bytes: u64,
    pub(super) node: NodeId,
}

impl Header {
    /// Magic, layout, bytes, node, and zeroes.
    pub(super) const BYTES: usize = 64;
    const NODE: core::ops::Range<usize> = 24..24 + NodeId::BYTES;

    /// Of a plan for a node.
    pub(super) fn new(node: NodeId, bytes: usize) -> Self {
        Self { layout: LAYOUT, bytes: bytes as u64, node }
    }

    pub(super) fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.layout.0, self.bytes].map(u64::to_le_bytes);
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([MAGIC].into_iter().chain(words)) {
            *place = word;
        }
        bytes[Self::NODE].copy_from_slice(&self.node.0);
        bytes
    }

    /// Header of a plan that this very program could have written, and what follows it.
    pub(super) fn parse(plan: &[u8]) -> Result<(Self, &[u8]), PlanError> {
        let (header, body) = plan.split_first_chunk::<{ Self::BYTES }>().ok_or(PlanError::NoPlan)?;
        let [magic, layout, bytes, ..] = header.as_chunks::<8>().0 else {
            return Err(PlanError::NoPlan);
        };
        if *magic != MAGIC {
            return Err(PlanError::NoPlan);
        }
        let [layout, bytes] = [layout, bytes].map(|word| u64::from_le_bytes(*word));
        let mut node = NodeId::default();
        node.0.copy_from_slice(&header[Self::NODE]);
        if LayoutHash(layout) != LAYOUT {
            return Err(PlanError::OtherLayout(LayoutHash(layout)));
        }
        let body = usize::try_from(bytes).ok().and_then(|bytes| body.get(..bytes));
        let body = body.ok_or(PlanError::OtherSize(bytes, plan.len() - Self::BYTES))?;
        Ok((Self { layout: LAYOUT, bytes, node }, body))
    }
}

/// Why a card does not take a plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error("what the agent has given is no plan")]
    NoPlan,
    #[error(
        "the plan has layout {:016x}, and this program's is {:016x}: the agent is of another version of the program, \
         so start the node again as a whole", .0.0, LAYOUT.0
    )]
    OtherLayout(LayoutHash),
    #[error("the plan is to have {0} bytes, and there are {1}")]
    OtherSize(u64, usize),
    #[error("the plan cannot be read: {0}")]
    Unreadable(postcard::Error),
    #[error("the plan cannot be read: {0}")]
    Garbled(&'static str),
    #[error("the plan says that it is of node {0}, and names {1}")]
    OtherNode(NodeId, NodeId),
}
