//! The frame: a fixed header in the clear, a body, and a 16-byte tag over both.
//!
//! ```text
//!  0 version  1 kind  2 path  3 key id   4 fabric   8 group  12 loan generation
//! 16 source              24 destination
//! 32 incarnation         40 card generation         44 reserved
//! 48 packet number       56 body ...                tag
//! ```
//! All numbers are little endian. Switches and capture tools read the header only.

use base::ids::{CardGeneration, Group, Incarnation, LoanGeneration, NodeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The only version.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER_LEN: usize = 56;
/// Bytes of the tag behind the body: the cipher's, or a CRC32C and zeroes, or the name of a key.
pub const TAG_LEN: usize = 16;
/// Bytes of a frame that carry no body.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// The largest frame: what one UDP datagram holds.
pub const MAX_FRAME: usize = 65_507;

/// What a frame is. Unknown kinds are malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First message of a handshake, from the borrower.
    Initiation = 1,
    /// Second message of a handshake, from the lender.
    Response = 2,
    /// Records under the keys of a handshake.
    Sealed = 3,
    /// Records over memory that only the two nodes share: the tag is the key's name, and nothing is sealed.
    Private = 4,
}

/// The header as it lies in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    version: u8,
    kind: u8,
    path: u8,
    key_id: u8,
    fabric: U32,
    group: U32,
    loan_generation: U32,
    source: U64,
    destination: U64,
    incarnation: U64,
    card_generation: U32,
    reserved: U32,
    packet_number: U64,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_LEN);

/// A header whose values have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// Which rail of the sender.
    pub path: u8,
    /// Which key seals the body.
    pub key_id: u8,
    /// Which fabric; others are not ours.
    pub fabric: u32,
    /// Which loan.
    pub group: Group,
    /// Which assignment of it.
    pub loan_generation: LoanGeneration,
    /// Who sends.
    pub source: NodeId,
    /// Who shall receive; zero while the sender does not know.
    pub destination: NodeId,
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

impl Header {
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
            4 => Kind::Private,
            _ => return Err(FrameError::Malformed),
        };
        Ok(Self {
            kind,
            path: raw.path,
            key_id: raw.key_id,
            fabric: raw.fabric.get(),
            group: Group(raw.group.get()),
            loan_generation: LoanGeneration(raw.loan_generation.get()),
            source: NodeId(raw.source.get()),
            destination: NodeId(raw.destination.get()),
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
            path: self.path,
            key_id: self.key_id,
            fabric: self.fabric.into(),
            group: self.group.0.into(),
            loan_generation: self.loan_generation.0.into(),
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            incarnation: self.incarnation.0.into(),
            card_generation: self.card_generation.0.into(),
            reserved: 0.into(),
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
}
