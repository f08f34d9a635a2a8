//! The frame: a fixed header in the clear, a body, and a 16-byte tag over both. Its layout is [`base::frame`].
//!
//! A switch may change the byte `route`, which the tag does not cover. The source's rail is the one that a frame leaves
//! on, the destination's the one that it comes on: together they are its path. In messages of a handshake, whose tag is
//! a mark of who knows its receiver, all that says nothing is zero.

use base::frame::INFORMATION;
pub use base::frame::{
    HEADER_LEN, MAX_FRAME, OVERHEAD, Prefix, ROUTE, RawHeader, Route, TAG_LEN, VERSION, group_of,
};
use base::ids::{CardGeneration, ChannelIndex, Group, Incarnation, LoanGeneration, RailId, StreamId};
use zerocopy::{FromBytes, IntoBytes};

use crate::paths::{PathId, SHM_PATH};

/// Rails of a domain: a prefix has two bits for them.
pub const MAX_RAILS: usize = RailId::COUNT;

/// Whether everything is zero that says nothing in a message of a handshake.
fn is_plain(raw: &RawHeader) -> bool {
    let is_first = raw.kind == Kind::Initiation as u8;
    (raw.key_id, raw.reserved.get(), raw.reserved2.get(), raw.card_generation.get()) == (0, 0, 0, 0)
        && (raw.destination.get() | raw.source.get()) >> Prefix::BITS == 0
        && (!is_first || raw.packet_number.get() == 0)
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
    /// What a node says of itself to everybody ([`crate::information`]).
    Information = INFORMATION,
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
            6 => Kind::Information,
            _ => return Err(FrameError::Malformed),
        };
        if !matches!(kind, Kind::Sealed | Kind::Shm) && !is_plain(raw) {
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
}
