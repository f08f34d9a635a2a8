//! Names of things in the fabric, one type each so that they cannot be confused.

use core::fmt;

use crate::ledger::Layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }
    };
}

id!(
    /// A node, for as long as its state directory lives. Chosen at random.
    NodeId(u64), "{:016x}"
);
id!(
    /// Which life of a node's ledger this is: raised whenever a node starts with an empty ledger.
    Incarnation(u64), "{}"
);
id!(
    /// Which card of one ledger this is: raised by the agent before each start of a card.
    CardGeneration(u64), "{}"
);
id!(
    /// Which assignment of a function this is: a lender refuses frames of older ones. Presets are 0.
    LoanGeneration(u64), "{}"
);
id!(
    /// A zone of isolation, 1 to 4094: nodes of other groups see nothing of it.
    Group(u16), "{}"
);
id!(
    /// A stream between two nodes: the loan that it belongs to, as frames name it.
    StreamId(u32), "{:08x}"
);
id!(
    /// A channel, as the node that receives its frames has numbered it.
    ChannelIndex(u32), "{}"
);
id!(
    /// A domain: something with one memory and one aperture in the fabric. 18 bits are used.
    DomainId(u32), "{:05x}"
);

/// Which run of a node this is: 128 random bits, drawn when it starts with an empty ledger, told to its peers and kept
/// nowhere else. Nodes that were started from copies of one state folder have one identity and perhaps one incarnation,
/// but never one life.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Layout,
)]
#[repr(transparent)]
pub struct LifeId(pub [u8; 16]);

impl Group {
    /// Where nobody has said another one.
    pub const DEFAULT: Self = Self(1);
}

impl fmt::Display for LifeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for LifeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LifeId({self})")
    }
}

impl core::str::FromStr for LifeId {
    type Err = core::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(|bits| Self(bits.to_be_bytes()))
    }
}

impl DomainId {
    /// Bits of a domain in use: a fabric has 262,144.
    pub const BITS: u32 = 18;

    /// The domain of a node that nobody has given one: its identity folded bit by bit. Two nodes have the same one
    /// where the bits in which their identities differ cancel out.
    pub fn of(node: NodeId) -> Self {
        Self((node.0 as u32 ^ (node.0 >> 32) as u32) & ((1 << Self::BITS) - 1))
    }
}
