//! Names of things in the fabric, one type each so that they cannot be confused.

use core::fmt;
use std::sync::LazyLock;

use crate::ledger::Layout;
use data_encoding::{Encoding, Specification};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
            Layout, Serialize, Deserialize,
        )]
        $(#[$doc])*
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
    #[serde(try_from = "u16")]
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
    #[serde(try_from = "u32")]
    DomainId(u32), "{:05x}"
);

/// A rail of a node: 0 to 3. Which networks they are is the node's own affair; two nodes prefer rails of equal ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Layout, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct RailId(u8);

impl TryFrom<u8> for RailId {
    type Error = &'static str;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("a rail has a number from 0 to 3")
    }
}

impl RailId {
    /// Rails of a node, at most: an address has two bits for them.
    pub const COUNT: usize = 4;
    /// All there can be.
    pub const ALL: [Self; Self::COUNT] = [Self(0), Self(1), Self(2), Self(3)];

    /// Rail `number`, if there can be one.
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Its place in lists by rail, which have [`RailId::COUNT`] places.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Where the two bits of a rail begin in a 64-bit address of the fabric: above the domain, which lies above the
    /// offset in its aperture.
    pub const ADDRESS_SHIFT: u32 = 62;

    /// The rail that an address leads over.
    pub const fn of_address(address: u64) -> Self {
        Self((address >> Self::ADDRESS_SHIFT) as u8)
    }

    /// The same address over this rail.
    pub const fn in_address(self, address: u64) -> u64 {
        address & ((1 << Self::ADDRESS_SHIFT) - 1) | (self.0 as u64) << Self::ADDRESS_SHIFT
    }

    /// What is in a list by rail, with the rails that have something there.
    pub fn present<T>(list: &[Option<T>; Self::COUNT]) -> impl Iterator<Item = (Self, &T)> {
        Self::ALL.into_iter().zip(list).filter_map(|(rail, it)| Some((rail, it.as_ref()?)))
    }
}

impl fmt::Display for RailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for RailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RailId({})", self.0)
    }
}

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
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
pub struct LifeId(pub [u8; 16]);

/// A node: a hash of its public key, so that nobody can take another's. All zeroes: nobody's.
///
/// As text it is 32 characters of the alphabet of loan lines, see [`ALPHABET`].
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Layout,
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
pub struct NodeId(pub [u8; NodeId::BYTES]);

/// Five bits a character, lower case, without the look-alikes `i`, `l`, `o` and `u`.
pub const ALPHABET: &str = "0123456789abcdefghjkmnpqrstvwxyz";

/// Base 32 in that [`ALPHABET`], the most significant bit first.
pub static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification.symbols.push_str(ALPHABET);
    specification.encoding().expect("the alphabet has 32 characters, each once")
});

impl NodeId {
    /// Bytes of an id.
    pub const BYTES: usize = 20;
    /// Characters of its text.
    pub const CHARS: usize = Self::BYTES * 8 / 5;

    /// An id that no key has, for tests of what keeps ids.
    pub const fn numbered(number: u64) -> Self {
        let (mut id, number) = ([0; Self::BYTES], number.to_le_bytes());
        let mut at = 0;
        while at < number.len() {
            id[at] = number[at];
            at += 1;
        }
        Self(id)
    }

    /// Whether it is nobody's.
    pub fn is_nobody(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE32.encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// A text is no [`NodeId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoNodeId;

impl fmt::Display for NoNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chars, letters) = (NodeId::CHARS, "0-9 and a-z but i, l, o, u");
        write!(f, "a node's id has {chars} characters, {letters}; `causeway id` prints it")
    }
}

impl core::error::Error for NoNodeId {}

impl core::str::FromStr for NodeId {
    type Err = NoNodeId;

    fn from_str(text: &str) -> Result<Self, NoNodeId> {
        let bytes = BASE32.decode(text.as_bytes()).map_err(|_| NoNodeId)?;
        bytes.try_into().map(Self).map_err(|_| NoNodeId)
    }
}

impl Group {
    /// Where nobody has said another one.
    pub const DEFAULT: Self = Self(1);
    /// The greatest one, as of VLANs (IEEE 802.1Q §9.6).
    pub const MAX: Self = Self(4094);

    /// The group of this number, if that is one.
    pub fn new(number: i64) -> Option<Self> {
        u16::try_from(number).ok().map(Self).filter(|group| (Self(1)..=Self::MAX).contains(group))
    }
}

impl TryFrom<u16> for Group {
    type Error = &'static str;

    fn try_from(number: u16) -> Result<Self, Self::Error> {
        Self::new(number.into()).ok_or("a group has a number from 1 to 4094")
    }
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

/// The domains of a node: so many that follow each other, a power of two of them, from a multiple of that on. A switch
/// finds the node by two numbers, as a bridge finds what lies behind it by base and limit (PCIe 6.0 §7.5.1.3.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainBlock {
    base: u32,
    len: u32,
    /// The node's own.
    node: DomainId,
}

/// How many domains a node has that nobody has given any.
const DERIVED: u32 = 64;

impl DomainBlock {
    /// Those of a node that nobody has given any: around [`DomainId::of`], which is the node's own.
    pub fn of(node: NodeId) -> Self {
        let node = DomainId::of(node);
        Self { base: node.0 & !(DERIVED - 1), len: DERIVED, node }
    }

    /// `len` domains from `base` on, of which the first is the node's own. `None` unless `len` is a power of two,
    /// `base` a multiple of it, and all are domains of a fabric; zero is nobody's.
    pub fn new(base: u32, len: u32) -> Option<Self> {
        let fits = base > 0 && u64::from(base) + u64::from(len) <= 1 << DomainId::BITS;
        let is_block = len.is_power_of_two() && base.is_multiple_of(len) && fits;
        is_block.then_some(Self { base, len, node: DomainId(base) })
    }

    /// The first one.
    pub fn base(self) -> u32 {
        self.base
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(self) -> u32 {
        self.len
    }

    /// The node's own domain.
    pub fn node(self) -> DomainId {
        self.node
    }

    /// Whether a domain is one of these.
    pub fn contains(self, domain: DomainId) -> bool {
        (self.base..self.base + self.len).contains(&domain.0)
    }

    /// The domain of its virtual machine number `index`, from 0 on, if there are as many.
    pub fn machine(self, index: u32) -> Option<DomainId> {
        let behind = index.checked_add(1).filter(|behind| *behind < self.len)?;
        Some(DomainId(self.base + (self.node.0 - self.base + behind) % self.len))
    }

    /// How many virtual machines have a domain of their own.
    pub fn machines(self) -> u32 {
        self.len - 1
    }
}

impl TryFrom<u32> for DomainId {
    type Error = &'static str;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        (number >> Self::BITS == 0).then_some(Self(number)).ok_or("a domain has a number below 262144")
    }
}

/// As a configuration file names it.
impl fmt::Display for DomainBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.len)
    }
}

impl DomainId {
    /// Bits of a domain in use: a fabric has 262,144.
    pub const BITS: u32 = 18;

    /// The domain of a node that nobody has given one: the first bits of its id. One is zero in 2^18, and stands for
    /// itself.
    pub fn of(node: NodeId) -> Self {
        let [one, two, three, ..] = node.0;
        Self(u32::from_le_bytes([one, two, three, 0]) & ((1 << Self::BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_of_a_node_has_a_domain_of_its_blocks() {
        let node = NodeId([0x2a, 0xff, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        for (block, base, len) in
            [(DomainBlock::of(node), 0x3_ff00, 64), (DomainBlock::new(4096, 16).unwrap(), 4096, 16)]
        {
            let machines = (0..block.machines()).map(|index| block.machine(index).unwrap());
            let mut all: Vec<u32> = machines.chain([block.node()]).map(|domain| domain.0).collect();
            all.sort_unstable();
            assert_eq!(all, (base..base + len).collect::<Vec<_>>());
            assert_eq!((block.machine(len - 1), block.machine(u32::MAX)), (None, None));
        }
        assert_eq!(DomainBlock::of(node).node(), DomainId::of(node), "as lines have named it");
        for (base, len) in
            [(0, 16), (8, 16), (16, 12), (16, 0), (1 << 18, 1), ((1 << 18) - 16, 32), (u32::MAX, 1)]
        {
            assert_eq!(DomainBlock::new(base, len), None, "{base}/{len}");
        }
        assert!(DomainBlock::new((1 << 18) - 16, 16).is_some() && DomainBlock::new(5, 1).is_some());
    }

    #[test]
    fn an_id_is_what_its_text_says_and_no_other_text_is_one() {
        let id = NodeId(core::array::from_fn(|at| (at * 37 + 5) as u8));
        let text = id.to_string();
        assert_eq!((text.len(), text.parse()), (NodeId::CHARS, Ok(id)));
        assert_eq!(NodeId::default().to_string(), "0".repeat(NodeId::CHARS));
        let longer = format!("{text}0");
        for wrong in ["", &text[1..], &longer, &text.replace(&text[..1], "u"), &text.to_uppercase()] {
            assert_eq!(wrong.parse::<NodeId>(), Err(NoNodeId), "{wrong}");
        }
        assert_eq!("é".repeat(16).parse::<NodeId>(), Err(NoNodeId));
        assert_eq!(DomainId::of(NodeId([0xff; NodeId::BYTES])), DomainId((1 << DomainId::BITS) - 1));
    }
}
