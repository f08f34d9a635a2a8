//! Records: what the body of a sealed frame consists of.
//!
//! A body is one [`Status`] and then records, each with a kind and the length of what follows. What a later version has
//! put behind the parts known here is skipped, and so is a record of an unknown kind, unless that is marked as
//! critical. Whatever does not parse makes the whole frame malformed; nothing of it is used.

use base::ids::{NodeId, RailId, StreamId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::notice::{Notice, NoticeCause};
use crate::pair::Control;
use crate::path::AckRanges;

/// The shortest TLP: a header of three dwords. A record cannot count more of them than its bytes can hold, which bounds
/// what a frame asks of its receiver.
const TLP_BYTES_MIN: usize = pcie::spec::HEADER_BYTES_MIN;

/// Bytes of an address, as the driver of a channel writes it.
pub const ADDRESS_BYTES: usize = 28;

/// Most ranges of one acknowledgement.
pub(crate) const MAX_RANGES: usize = 16;

/// What every sealed frame says of the stream it flows against: absolute, so that any later one replaces all earlier
/// ones.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Status {
    /// All TLPs below this number are committed.
    pub(crate) committed: U64,
    /// Credits granted since the stream began: posted headers, posted data (16-byte units), non-posted headers.
    pub(crate) posted_headers: U64,
    pub(crate) posted_data: U64,
    pub(crate) non_posted_headers: U64,
}

/// What each record begins with.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    kind: u8,
    /// Of what follows.
    len: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAck {
    path: u8,
    ranges: u8,
    delay_us: U16,
    generation: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    rails: u8,
    edition: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNotice {
    node: [u8; NodeId::BYTES],
    rail: u8,
    cause: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHelloHeard {
    generation: U64,
    edition: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStream {
    count: U16,
    first: U64,
}

/// What a lender says of its function.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Information {
    /// Bytes of the medium.
    pub bytes: U64,
    /// 1: NVMe controller.
    pub kind: u8,
    /// Bit 0: read-only.
    pub flags: u8,
    /// The function's name, filled up with zeroes.
    pub name: [u8; 32],
}

/// One record of a body. Lives on the stack for the time of one frame, so the size of an acknowledgement does not
/// matter.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(crate) enum Record<'a> {
    /// Packets of `path`, as their sender numbers that, which have arrived, sent by card `generation`.
    Ack { path: u8, generation: u64, delay_us: u16, ranges: AckRanges },
    /// `count` TLPs with consecutive numbers from `first` on.
    Stream { first: u64, count: u16, tlps: &'a [u8] },
    /// Answer, please.
    Ping,
    /// A card is here that is new, or has other rails than before, and wants to be answered: these, as bits, which
    /// `edition` of them.
    Hello { rails: u8, edition: u32 },
    /// That hello of card `generation` was heard.
    HelloHeard { generation: u64, edition: u32 },
    /// Whoever is at the address that this was sent to shall say so (RFC 9000 §8.2).
    Challenge(u64),
    /// This challenge was heard.
    ChallengeHeard(u64),
    /// The sender's keys may be used by a copy of its machine, too: the other end shall begin a new handshake.
    Renew,
    /// Another program has the identity of whom this is for; it was at this address, as the sender writes such, and was
    /// refused.
    Twin([u8; ADDRESS_BYTES]),
    /// A rail of a node seems to have failed.
    Notice(Notice),
    /// The status of another stream than the frame's.
    StreamStatus { stream: StreamId, status: Status },
    /// About the beginning and the end of a stream.
    Control(Control),
}

mod kind {
    /// Who does not know a kind with this bit cannot use the frame at all.
    pub(super) const CRITICAL: u8 = 0x80;

    pub(super) const ACK: u8 = 1;
    pub(super) const STREAM: u8 = CRITICAL | 2;
    pub(super) const PING: u8 = 3;
    pub(super) const HELLO: u8 = 4;
    pub(super) const HELLO_HEARD: u8 = 5;
    pub(super) const CHALLENGE: u8 = 9;
    pub(super) const CHALLENGE_HEARD: u8 = 10;
    pub(super) const RENEW: u8 = 11;
    pub(super) const STREAM_STATUS: u8 = 12;
    pub(super) const TWIN: u8 = 20;
    pub(super) const NOTICE: u8 = 21;
}

/// Bytes of what follows the kind and length of the longest record without TLPs.
const RECORD_MAX: usize = size_of::<RawAck>() + MAX_RANGES * 16;
/// Bytes of the record with the status of another stream.
pub(crate) const STATUS_RECORD: usize = size_of::<RawRecord>() + size_of::<U32>() + size_of::<Status>();

/// Bytes of a stream record before its TLPs.
pub(crate) const STREAM_OVERHEAD: usize = size_of::<RawRecord>() + size_of::<RawStream>();

/// Splits a body into its status and its records.
pub(crate) fn parse(body: &[u8]) -> Option<(Status, Records<'_>)> {
    let (status, rest) = Status::read_from_prefix(body).ok()?;
    Some((status, Records { rest }))
}

/// The records of a body without a status: of stream 0.
pub(crate) fn parse_control(body: &[u8]) -> Records<'_> {
    Records { rest: body }
}

/// The records of a body; ends with `Some(Err(()))` where it is malformed.
#[derive(Clone)]
pub(crate) struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.parse_one() {
                Ok(Some(record)) => return Some(Ok(record)),
                Ok(None) => {}
                Err(()) => {
                    self.rest = &[];
                    return Some(Err(()));
                }
            }
        }
        None
    }
}

impl<'a> Records<'a> {
    /// The next record; `None` for one that is skipped.
    fn parse_one(&mut self) -> Result<Option<Record<'a>>, ()> {
        let (raw, rest) = RawRecord::read_from_prefix(self.rest).map_err(drop)?;
        let (body, rest) = rest.split_at_checked(raw.len.get().into()).ok_or(())?;
        self.rest = rest;
        match (Parser { rest: body }).record(raw.kind) {
            Some(Parsed::Record(record)) => Ok(Some(record)),
            Some(Parsed::Unknown) if raw.kind & kind::CRITICAL == 0 => Ok(None),
            _ => Err(()),
        }
    }
}

#[allow(clippy::large_enum_variant)]
enum Parsed<'a> {
    Record(Record<'a>),
    Unknown,
}

/// What follows the kind and length of a record.
struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn record(mut self, kind: u8) -> Option<Parsed<'a>> {
        Some(Parsed::Record(match kind {
            kind::ACK => self.ack()?,
            kind::STREAM => self.stream()?,
            kind::PING => Record::Ping,
            kind::HELLO => {
                let RawHello { rails, edition } = self.take()?;
                Record::Hello { rails, edition: edition.get() }
            }
            kind::HELLO_HEARD => {
                let RawHelloHeard { generation, edition } = self.take()?;
                Record::HelloHeard { generation: generation.get(), edition: edition.get() }
            }
            kind::CHALLENGE => Record::Challenge(self.take::<U64>()?.get()),
            kind::CHALLENGE_HEARD => Record::ChallengeHeard(self.take::<U64>()?.get()),
            kind::RENEW => Record::Renew,
            kind::TWIN => Record::Twin(self.take()?),
            kind::NOTICE => {
                let RawNotice { node, rail, cause } = self.take()?;
                let cause = NoticeCause::from_code(cause);
                Record::Notice(Notice { node: NodeId(node), rail: RailId::new(rail)?, cause })
            }
            kind::STREAM_STATUS => {
                Record::StreamStatus { stream: StreamId(self.take::<U32>()?.get()), status: self.take()? }
            }
            other if Control::is_kind(other) => Record::Control(Control::parse(other, self.rest)?),
            _ => return Some(Parsed::Unknown),
        }))
    }

    fn ack(&mut self) -> Option<Record<'a>> {
        let raw: RawAck = self.take()?;
        let mut ranges = AckRanges::default();
        for _ in 0..raw.ranges {
            let [low, high]: [U64; 2] = self.take()?;
            ranges.push(low.get(), high.get())?;
        }
        let (path, generation) = (raw.path, raw.generation.get());
        Some(Record::Ack { path, generation, delay_us: raw.delay_us.get(), ranges })
    }

    fn stream(&mut self) -> Option<Record<'a>> {
        let raw: RawStream = self.take()?;
        let (first, count, tlps) = (raw.first.get(), raw.count.get(), self.rest);
        if usize::from(count) * TLP_BYTES_MIN > tlps.len() {
            return None;
        }
        // A number cannot overflow in the life of a stream; a frame that says so is malformed.
        first.checked_add(u64::from(count))?;
        Some(Record::Stream { first, count, tlps })
    }

    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.rest).ok()?;
        self.rest = rest;
        Some(value)
    }
}

/// Writes a body into a buffer, as far as it has room.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// A body in `buffer`, which has room for the status.
    pub(crate) fn new(buffer: &'a mut [u8], status: Status) -> Self {
        let mut writer = Self { buffer, len: 0 };
        writer.put(status.as_bytes());
        writer
    }

    /// A body without a status.
    pub(crate) fn of_control(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: 0 }
    }

    /// Bytes written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that can still be written.
    pub(crate) fn room(&self) -> usize {
        self.buffer.len() - self.len
    }

    /// Appends a record without TLPs; false, and nothing written, where there is no room.
    pub(crate) fn record(&mut self, record: &Record<'_>) -> bool {
        let mut bytes = [0_u8; RECORD_MAX];
        let (kind, len) = encode(record, &mut bytes);
        let fits = size_of::<RawRecord>() + len <= self.room();
        if fits {
            self.put(RawRecord { kind, len: (len as u16).into() }.as_bytes());
            self.put(&bytes[..len]);
        }
        fits
    }

    /// Begins a stream record: `fill` is given the room for TLPs and returns how many it has written there, in how many
    /// bytes. Nothing is written where that is none.
    pub(crate) fn stream(&mut self, first: u64, fill: impl FnOnce(&mut [u8]) -> (u16, usize)) -> u16 {
        if self.room() < STREAM_OVERHEAD {
            return 0;
        }
        let most = size_of::<RawRecord>() + usize::from(u16::MAX);
        let limit = self.buffer.len().min(self.len + most);
        let (count, len) = fill(&mut self.buffer[self.len + STREAM_OVERHEAD..limit]);
        if count > 0 {
            let record = (size_of::<RawStream>() + len) as u16;
            self.put(RawRecord { kind: kind::STREAM, len: record.into() }.as_bytes());
            self.put(RawStream { count: count.into(), first: first.into() }.as_bytes());
            self.len += len;
        }
        count
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Writes what follows the kind and length of a record, which it returns.
fn encode(record: &Record<'_>, out: &mut [u8]) -> (u8, usize) {
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        out[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    let kind = match record {
        Record::Ack { path, generation, delay_us, ranges } => {
            let count = ranges.iter().count() as u8;
            let (delay_us, generation) = ((*delay_us).into(), (*generation).into());
            put(RawAck { path: *path, ranges: count, delay_us, generation }.as_bytes());
            for (low, high) in ranges.iter() {
                put([U64::new(low), U64::new(high)].as_bytes());
            }
            kind::ACK
        }
        Record::Stream { .. } => unreachable!("TLPs are written by `Writer::stream`"),
        Record::Ping => kind::PING,
        Record::Hello { rails, edition } => {
            put(RawHello { rails: *rails, edition: (*edition).into() }.as_bytes());
            kind::HELLO
        }
        Record::HelloHeard { generation, edition } => {
            let (generation, edition) = ((*generation).into(), (*edition).into());
            put(RawHelloHeard { generation, edition }.as_bytes());
            kind::HELLO_HEARD
        }
        Record::Challenge(challenge) => {
            put(U64::new(*challenge).as_bytes());
            kind::CHALLENGE
        }
        Record::ChallengeHeard(challenge) => {
            put(U64::new(*challenge).as_bytes());
            kind::CHALLENGE_HEARD
        }
        Record::Renew => kind::RENEW,
        Record::Twin(at) => {
            put(at);
            kind::TWIN
        }
        Record::Notice(Notice { node, rail, cause }) => {
            put(RawNotice { node: node.0, rail: rail.get(), cause: cause.code() }.as_bytes());
            kind::NOTICE
        }
        Record::StreamStatus { stream, status } => {
            put(U32::new(stream.0).as_bytes());
            put(status.as_bytes());
            kind::STREAM_STATUS
        }
        Record::Control(control) => control.encode(&mut put),
    };
    (kind, len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_records_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some((_, records)) = parse(&bytes) {
                prop_assert!(records.count() <= bytes.len());
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut buffer = [0; 400];
        let mut ranges = AckRanges::default();
        ranges.push(8, 9).unwrap();
        ranges.push(1, 5).unwrap();
        let status = Status { committed: 7.into(), ..Status::default() };
        let mut writer = Writer::new(&mut buffer, status);
        assert!(writer.record(&Record::Ack { path: 1, generation: 3, delay_us: 20, ranges }));
        assert!(writer.record(&Record::HelloHeard { generation: 9, edition: 1 }));
        assert!(writer.record(&Record::Challenge(5)) && writer.record(&Record::ChallengeHeard(6)));
        assert!(writer.record(&Record::Twin([7; ADDRESS_BYTES])));
        let notice = Notice { node: NodeId::numbered(5), rail: RailId::ALL[2], cause: NoticeCause::Carrier };
        assert!(writer.record(&Record::Notice(notice)));
        assert_eq!(
            writer.stream(40, |room| {
                room[..24].fill(7);
                (2, 24)
            }),
            2
        );
        let len = writer.len();
        let (read, records) = parse(&buffer[..len]).unwrap();
        assert_eq!(read, status);
        let text: Vec<String> = records.map(|record| format!("{:?}", record.unwrap())).collect();
        assert_eq!(text.len(), 7);
        assert_eq!(text[5], format!("{:?}", Record::Notice(notice)));
        assert!(text[4].starts_with("Twin([7, "), "{text:?}");
        assert!(text[0].contains("generation: 3") && text[6].contains("first: 40, count: 2"), "{text:?}");
    }

    #[test]
    fn what_a_later_version_adds_is_skipped_unless_it_is_critical() {
        let mut buffer = [0; 200];
        let mut writer = Writer::new(&mut buffer, Status::default());
        assert!(writer.record(&Record::Ping));
        let known = writer.len();
        assert!(writer.record(&Record::Challenge(5)));
        let len = writer.len();
        let records = |body: &[u8]| {
            let (_, records) = parse(body).unwrap();
            records.map(|record| record.map(|record| format!("{record:?}"))).collect::<Vec<_>>()
        };
        // More behind what is known of a record.
        let mut longer = [&buffer[..len], &[1, 2, 3]].concat();
        longer[known + 1] += 3;
        assert_eq!(records(&longer), records(&buffer[..len]));
        let unknown = |kind: u8| [&buffer[..known], &[kind, 2, 0, 9, 9], &buffer[known..len]].concat();
        assert_eq!(records(&unknown(100)), records(&buffer[..len]));
        assert_eq!(records(&unknown(kind::CRITICAL | 100)), [Ok("Ping".to_owned()), Err(())]);
        // A length beyond the end.
        assert_eq!(records(&longer[..len]), [Ok("Ping".to_owned()), Err(())]);
    }
}
