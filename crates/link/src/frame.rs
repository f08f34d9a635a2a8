//! The frame: a fixed header in the clear, a body, and a 16-byte tag over both.
//!
//! ```text
//!  0 version  1 kind  2 key id  3 route (hops left, congestion seen)
//!  4 fabric               8 destination prefix   12 source prefix
//! 16 group   18 reserved 20 channel              24 stream            28 reserved
//! 32 loan generation     40 incarnation          48 card generation   56 packet number
//! 64 body ...                                                         tag
//! ```
//! All numbers are little endian. A prefix is what stands above the offset of a fabric address: a rail in bits 19 and
//! 18, a domain below. Switches and capture tools read the header only. A switch may change the byte `route`, which the
//! tag does not cover. The source's rail is the one that a frame leaves on, the destination's the one that it comes on:
//! together they are its path. In messages of a handshake, whose tag is a mark of who knows its receiver, all that says
//! nothing is zero.

use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LoanGeneration, RailId, StreamId,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::paths::{PathId, SHM_PATH};

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
/// Rails of a domain: a prefix has two bits for them.
pub const MAX_RAILS: usize = RailId::COUNT;

/// Switches that a frame may pass.
const HOPS: u8 = 32;

/// Which zone a frame is of, as its header says, which nothing has proven; `None`: it is too short. On Ethernet its tag
/// says the same.
pub fn group_of(frame: &[u8]) -> Option<Group> {
    let (raw, _) = RawHeader::ref_from_prefix(frame).ok()?;
    Some(Group(raw.group.get()))
}

/// What a frame is. Unknown kinds are malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First message of a handshake.
    Initiation = 1,
    /// Second message of a handshake: the answer.
    Response = 2,
    /// Records under the keys of a handshake.
    Sealed = 3,
    /// Records over memory that only the two nodes share: the tag is the key's name, and nothing is sealed.
    Shm = 4,
    /// Whoever calls shall say once more from where, with what is in here: the answer of a node under load.
    Cookie = 5,
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

    const fn from_byte(byte: u8) -> Self {
        Self { hops_left: byte >> 2, congestion: byte & 3 }
    }

    const fn byte(self) -> u8 {
        self.hops_left << 2 | self.congestion & 3
    }
}

/// The header as it lies in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    version: u8,
    kind: u8,
    key_id: u8,
    route: u8,
    fabric: U32,
    destination: U32,
    source: U32,
    group: U16,
    reserved: U16,
    channel: U32,
    stream: U32,
    reserved2: U32,
    loan_generation: U64,
    incarnation: U64,
    card_generation: U64,
    packet_number: U64,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

impl RawHeader {
    /// Whether everything is zero that says nothing in a message of a handshake.
    fn is_plain(&self) -> bool {
        let prefix_bits = DomainId::BITS + 2;
        let is_first = self.kind == Kind::Initiation as u8;
        (self.key_id, self.reserved.get(), self.reserved2.get(), self.card_generation.get()) == (0, 0, 0, 0)
            && (self.destination.get() | self.source.get()) >> prefix_bits == 0
            && (!is_first || self.packet_number.get() == 0)
    }
}

/// A header whose values have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Which key seals the body.
    pub key_id: u8,
    /// What has become of it on the way.
    pub route: Route,
    /// Which fabric; others are not ours.
    pub fabric: u32,
    /// Where it goes.
    pub destination: Prefix,
    /// Where it comes from.
    pub source: Prefix,
    /// Which zone.
    pub group: Group,
    /// Which channel of the receiver, as that has numbered it; zero in a first message.
    pub channel: ChannelIndex,
    /// Which stream of the channel.
    pub stream: StreamId,
    /// Which assignment of its function.
    pub loan_generation: LoanGeneration,
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The sender's card.
    pub card_generation: CardGeneration,
    /// Counts frames of one card, key and path: never twice.
    pub packet_number: u64,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Another version than ours: dropped, and counted apart.
    Version(u8),
    /// Too short, too long or of no known kind.
    Malformed,
}

impl Prefix {
    fn from_bits(bits: u32) -> Self {
        let domain = DomainId(bits & ((1 << DomainId::BITS) - 1));
        Self { rail: RailId::ALL[(bits >> DomainId::BITS) as usize % MAX_RAILS], domain }
    }

    fn bits(self) -> u32 {
        u32::from(self.rail.get()) << DomainId::BITS | self.domain.0 & ((1 << DomainId::BITS) - 1)
    }
}

impl Header {
    /// The path that the frame has taken, as its receiver sees it.
    pub fn path(&self) -> PathId {
        if self.kind == Kind::Shm {
            return SHM_PATH;
        }
        PathId::new(self.destination.rail, self.source.rail)
    }

    /// Reads the header of `frame`.
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        let &version = frame.first().ok_or(FrameError::Malformed)?;
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if frame.len() < OVERHEAD || frame.len() > MAX_FRAME {
            return Err(FrameError::Malformed);
        }
        let (raw, _) = RawHeader::ref_from_prefix(frame).map_err(|_| FrameError::Malformed)?;
        let kind = match raw.kind {
            1 => Kind::Initiation,
            2 => Kind::Response,
            3 => Kind::Sealed,
            4 => Kind::Shm,
            5 => Kind::Cookie,
            _ => return Err(FrameError::Malformed),
        };
        if !matches!(kind, Kind::Sealed | Kind::Shm) && !raw.is_plain() {
            return Err(FrameError::Malformed);
        }
        Ok(Self {
            kind,
            key_id: raw.key_id,
            route: Route::from_byte(raw.route),
            fabric: raw.fabric.get(),
            destination: Prefix::from_bits(raw.destination.get()),
            source: Prefix::from_bits(raw.source.get()),
            group: Group(raw.group.get()),
            channel: ChannelIndex(raw.channel.get()),
            stream: StreamId(raw.stream.get()),
            loan_generation: LoanGeneration(raw.loan_generation.get()),
            incarnation: Incarnation(raw.incarnation.get()),
            card_generation: CardGeneration(raw.card_generation.get()),
            packet_number: raw.packet_number.get(),
        })
    }

    /// Writes the header to the start of `frame`, which holds at least [`HEADER_LEN`] bytes.
    pub fn write(&self, frame: &mut [u8]) {
        let raw = RawHeader {
            version: VERSION,
            kind: self.kind as u8,
            key_id: self.key_id,
            route: self.route.byte(),
            fabric: self.fabric.into(),
            destination: self.destination.bits().into(),
            source: self.source.bits().into(),
            group: self.group.0.into(),
            reserved: 0.into(),
            channel: self.channel.0.into(),
            stream: self.stream.0.into(),
            reserved2: 0.into(),
            loan_generation: self.loan_generation.0.into(),
            incarnation: self.incarnation.0.into(),
            card_generation: self.card_generation.0.into(),
            packet_number: self.packet_number.into(),
        };
        frame[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(header) = Header::parse(&bytes) {
                let mut again = bytes.clone();
                header.write(&mut again);
                prop_assert_eq!(Header::parse(&again), Ok(header));
            }
        }
    }

    #[test]
    fn another_version_is_told_from_rubbish() {
        assert_eq!(Header::parse(&[2; 100]), Err(FrameError::Version(2)));
        assert_eq!(Header::parse(&[VERSION; 10]), Err(FrameError::Malformed));
        assert_eq!(Header::parse(&[]), Err(FrameError::Malformed));
        assert_eq!(Header::parse(&[VERSION; 70_000]), Err(FrameError::Malformed));
    }

    #[test]
    fn a_prefix_is_the_upper_part_of_an_address() {
        let prefix = Prefix { rail: RailId::ALL[3], domain: DomainId(0x2_0001) };
        assert_eq!((prefix.bits(), Prefix::from_bits(prefix.bits())), (0xe_0001, prefix));
        assert_eq!(Prefix::from_bits(u32::MAX), Prefix { rail: RailId::ALL[3], domain: DomainId(0x3_ffff) });
    }
}
