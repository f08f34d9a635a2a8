//! The layout of a frame's header, which is in the clear: of use to who sends and receives frames, and to switches,
//! which read nothing else of them.
//!
//! ```text
//!  0 version  1 kind  2 key id  3 route (hops left, congestion seen)
//!  4 fabric               8 destination prefix   12 source prefix
//! 16 group   18 reserved 20 channel              24 stream            28 reserved
//! 32 loan generation     40 incarnation          48 card generation   56 packet number
//! 64 body ...                                                         tag
//! ```
//! All numbers are little endian. A prefix is what stands above the offset of a fabric address: a rail in bits 19 and
//! 18, a domain below.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{DomainId, Group, RailId};

/// The only version.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER_LEN: usize = 64;
/// Where in a header is what a switch may change.
pub const ROUTE: usize = 3;
/// Bytes of the tag behind the body: the cipher's, or a CRC32C and zeroes, or the name of a key.
pub const TAG_LEN: usize = 16;
/// Bytes of a frame that carry no body.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// The largest frame: what one UDP datagram holds.
pub const MAX_FRAME: usize = 65_507;
/// The kind of a frame by which a node tells all others what it is: switches pass it on to each.
pub const INFORMATION: u8 = 6;
/// The kind of a frame by which a switch tells another one whether it is heard: for nobody else.
pub const HELLO: u8 = 7;
/// Switches that a frame may pass.
const HOPS: u8 = 32;

/// Which zone a frame is of, as its header says, which nothing has proven; `None`: it is too short. On Ethernet its tag
/// says the same.
pub fn group_of(frame: &[u8]) -> Option<Group> {
    let (raw, _) = RawHeader::ref_from_prefix(frame).ok()?;
    Some(Group(raw.group.get()))
}

/// What stands above the offset in an address of the fabric: which domain, over which of its rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prefix {
    /// One of that domain's.
    pub rail: RailId,
    /// 18 bits of it; zero while a sender does not know whom it calls.
    pub domain: DomainId,
}

/// What a switch may change on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Switches that the frame may still pass, at most 63.
    pub hops_left: u8,
    /// 0 where no queue was long, up to 3.
    pub congestion: u8,
}

impl Route {
    /// Of a frame that leaves its sender.
    pub const START: Self = Self { hops_left: HOPS, congestion: 0 };

    /// As it stands in a header.
    pub const fn from_byte(byte: u8) -> Self {
        Self { hops_left: byte >> 2, congestion: byte & 3 }
    }

    /// The same the other way.
    pub const fn byte(self) -> u8 {
        self.hops_left << 2 | self.congestion & 3
    }
}

/// The header as it lies in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawHeader {
    /// [`VERSION`].
    pub version: u8,
    /// What the frame is.
    pub kind: u8,
    /// Which key seals the body.
    pub key_id: u8,
    /// What a switch may change: see [`Route`].
    pub route: u8,
    /// Which fabric.
    pub fabric: U32,
    /// A [`Prefix`]: where it goes.
    pub destination: U32,
    /// A [`Prefix`]: where it comes from.
    pub source: U32,
    /// Which zone.
    pub group: U16,
    /// Zero.
    pub reserved: U16,
    /// Which channel of the receiver.
    pub channel: U32,
    /// Which stream of the channel.
    pub stream: U32,
    /// Zero.
    pub reserved2: U32,
    /// Which assignment of its function.
    pub loan_generation: U64,
    /// The sender's incarnation.
    pub incarnation: U64,
    /// The sender's card.
    pub card_generation: U64,
    /// Counts frames of one card, key and path.
    pub packet_number: U64,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

impl Prefix {
    /// Bits of it in a header's field; those above are zero.
    pub const BITS: u32 = DomainId::BITS + 2;

    /// As it stands in a header: the bits above are left out.
    pub const fn from_bits(bits: u32) -> Self {
        let domain = DomainId(bits & ((1 << DomainId::BITS) - 1));
        Self { rail: RailId::ALL[(bits >> DomainId::BITS) as usize % RailId::COUNT], domain }
    }

    /// The same the other way.
    pub const fn bits(self) -> u32 {
        (self.rail.get() as u32) << DomainId::BITS | self.domain.0 & ((1 << DomainId::BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_the_upper_part_of_an_address() {
        let prefix = Prefix { rail: RailId::ALL[3], domain: DomainId(0x2_0001) };
        assert_eq!((prefix.bits(), Prefix::from_bits(prefix.bits())), (0xe_0001, prefix));
        assert_eq!(Prefix::from_bits(u32::MAX), Prefix { rail: RailId::ALL[3], domain: DomainId(0x3_ffff) });
    }
}
