use super::{Cell, Layout, LayoutHash, RawMemory, RegionError};
use crate::ids::NodeId;
use zerocopy::FromBytes;

/// The first bytes of every ledger.
const MAGIC: [u8; 8] = *b"cwledger";

/// What a ledger begins with: whose it is and how it is laid out. Written once, before the first card, and when the
/// ledger has grown.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct Header {
    magic: Cell<[u8; 8]>,
    /// [`LayoutHash`] of everything that lies in it.
    layout: Cell<u64>,
    /// Its bytes.
    bytes: Cell<u64>,
    node: Cell<NodeId>,
    reserved: [Cell<u8>; 20],
}

/// Why memory is not the ledger that was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerError {
    /// It does not begin as a ledger does.
    NoLedger,
    /// It was made by a program that lays its ledger out in another way.
    OtherLayout {
        /// That one's layout.
        found: LayoutHash,
        /// This one's.
        wanted: LayoutHash,
    },
    /// It says that it has so many bytes, and there are so many.
    OtherSize(u64, usize),
    /// It is of this other node.
    OtherNode(NodeId),
    /// Its undo log is none that a card can have left.
    Corrupt,
    /// A region of it cannot be had.
    Region(RegionError),
}

impl From<RegionError> for LedgerError {
    fn from(error: RegionError) -> Self {
        Self::Region(error)
    }
}

impl core::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoLedger => write!(f, "the memory that the agent has given is no ledger"),
            Self::OtherLayout { found, wanted } => write!(
                f,
                "the ledger has layout {:016x}, and this program's is {:016x}: it was made by another version of the \
                 program, so start the node again as a whole",
                found.0, wanted.0
            ),
            Self::OtherSize(says, has) => {
                write!(f, "the ledger is to have {says} bytes, and the memory of it has {has}")
            }
            Self::Corrupt => write!(f, "the ledger is corrupt: its undo log names memory that is not in it"),
            Self::Region(error) => error.fmt(f),
            Self::OtherNode(node) => write!(f, "the ledger is of another node, {node}"),
        }
    }
}

impl core::error::Error for LedgerError {}

impl RawMemory<'_> {
    /// Makes new memory a ledger of this layout and node, and tells one that has grown so: before a card has it. What
    /// is in it stays.
    pub fn entitle(&self, layout: LayoutHash, node: NodeId) {
        let Some(header) = self.header() else { return };
        // Nobody else has it yet, and whoever dies half-way leaves what is no ledger.
        header.layout.put(layout.0);
        header.bytes.put(self.len() as u64);
        header.node.put(node);
        header.magic.put(MAGIC);
    }

    /// Whether this is the ledger of a node, laid out so.
    ///
    /// # Errors
    /// What it is instead.
    pub fn check(&self, layout: LayoutHash, node: NodeId) -> Result<(), LedgerError> {
        let header =
            self.header().filter(|header| header.magic.get() == MAGIC).ok_or(LedgerError::NoLedger)?;
        let (found, bytes) = (LayoutHash(header.layout.get()), header.bytes.get());
        if found != layout {
            return Err(LedgerError::OtherLayout { found, wanted: layout });
        }
        if bytes != self.len() as u64 {
            return Err(LedgerError::OtherSize(bytes, self.len()));
        }
        let owner = header.node.get();
        if owner == node { Ok(()) } else { Err(LedgerError::OtherNode(owner)) }
    }

    fn header(&self) -> Option<&Header> {
        self.cells(0)
    }
}
