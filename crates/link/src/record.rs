//! Records: what the body of a sealed frame consists of.
//!
//! A body is one [`Status`] and then records, each a type byte and a fixed or counted rest. Whatever does not parse
//! makes the whole frame malformed; nothing of it is used.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::path::AckRanges;

/// The shortest TLP: a header of three dwords. A record cannot count more of them than its bytes can hold, which bounds
/// what a frame asks of its receiver.
const TLP_BYTES_MIN: usize = pcie::spec::HEADER_BYTES_MIN;

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

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAck {
    path: u8,
    ranges: u8,
    delay_us: U16,
    generation: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStream {
    count: U16,
    len: U16,
    first: U64,
}

/// What a lender says of the function of a loan, periodically (device information frame).
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
    /// Packets of `path` that have arrived, sent by card `generation`.
    Ack { path: u8, generation: u32, delay_us: u16, ranges: AckRanges },
    /// `count` TLPs with consecutive numbers from `first` on.
    Stream { first: u64, count: u16, tlps: &'a [u8] },
    /// Answer, please.
    Ping,
    /// A new card is here and wants to be answered.
    Hello,
    /// The hello of card `generation` was heard.
    HelloHeard { generation: u32 },
    /// About the function.
    Information(Information),
    /// The borrower gives the function back.
    Goodbye,
    /// The goodbye was heard.
    GoodbyeHeard,
    /// Whoever is at the address that this was sent to shall say so (RFC 9000 §8.2).
    Challenge(u64),
    /// This challenge was heard.
    ChallengeHeard(u64),
    /// The lender's keys may be used by a copy of its machine, too: the borrower shall begin a new handshake.
    Renew,
}

mod kind {
    pub(super) const ACK: u8 = 1;
    pub(super) const STREAM: u8 = 2;
    pub(super) const PING: u8 = 3;
    pub(super) const HELLO: u8 = 4;
    pub(super) const HELLO_HEARD: u8 = 5;
    pub(super) const INFORMATION: u8 = 6;
    pub(super) const GOODBYE: u8 = 7;
    pub(super) const GOODBYE_HEARD: u8 = 8;
    pub(super) const CHALLENGE: u8 = 9;
    pub(super) const CHALLENGE_HEARD: u8 = 10;
    pub(super) const RENEW: u8 = 11;
}

/// Bytes of a stream record before its TLPs.
pub(crate) const STREAM_OVERHEAD: usize = 1 + size_of::<RawStream>();

/// Splits a body into its status and its records.
pub(crate) fn parse(body: &[u8]) -> Option<(Status, Records<'_>)> {
    let (status, rest) = Status::read_from_prefix(body).ok()?;
    Some((status, Records { rest }))
}

/// The records of a body; ends with `Some(Err(()))` where it is malformed.
#[derive(Clone)]
pub(crate) struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.parse_one();
        if record.is_none() {
            self.rest = &[];
        }
        Some(record.ok_or(()))
    }
}

impl<'a> Records<'a> {
    fn parse_one(&mut self) -> Option<Record<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match kind {
            kind::ACK => {
                let raw: RawAck = self.take()?;
                let mut ranges = AckRanges::default();
                for _ in 0..raw.ranges {
                    let [low, high]: [U64; 2] = self.take()?;
                    ranges.push(low.get(), high.get())?;
                }
                let (path, generation) = (raw.path, raw.generation.get());
                Record::Ack { path, generation, delay_us: raw.delay_us.get(), ranges }
            }
            kind::STREAM => {
                let raw: RawStream = self.take()?;
                let tlps = self.rest.get(..raw.len.get() as usize)?;
                self.rest = &self.rest[tlps.len()..];
                if usize::from(raw.count.get()) * TLP_BYTES_MIN > tlps.len() {
                    return None;
                }
                // A number cannot overflow in the life of a stream; a frame that says so is malformed.
                raw.first.get().checked_add(u64::from(raw.count.get()))?;
                Record::Stream { first: raw.first.get(), count: raw.count.get(), tlps }
            }
            kind::PING => Record::Ping,
            kind::HELLO => Record::Hello,
            kind::HELLO_HEARD => Record::HelloHeard { generation: self.take::<U32>()?.get() },
            kind::INFORMATION => Record::Information(self.take()?),
            kind::GOODBYE => Record::Goodbye,
            kind::GOODBYE_HEARD => Record::GoodbyeHeard,
            kind::CHALLENGE => Record::Challenge(self.take::<U64>()?.get()),
            kind::CHALLENGE_HEARD => Record::ChallengeHeard(self.take::<U64>()?.get()),
            kind::RENEW => Record::Renew,
            _ => return None,
        })
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
        let mut bytes = [0_u8; 1 + size_of::<RawAck>() + MAX_RANGES * 16];
        let len = encode(record, &mut bytes);
        let fits = len <= self.room();
        if fits {
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
        let limit = self.buffer.len().min(self.len + STREAM_OVERHEAD + usize::from(u16::MAX));
        let (count, len) = fill(&mut self.buffer[self.len + STREAM_OVERHEAD..limit]);
        if count > 0 {
            let raw = RawStream { count: count.into(), len: (len as u16).into(), first: first.into() };
            self.put(&[kind::STREAM]);
            self.put(raw.as_bytes());
            self.len += len;
        }
        count
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

fn encode(record: &Record<'_>, out: &mut [u8]) -> usize {
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        out[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    match record {
        Record::Ack { path, generation, delay_us, ranges } => {
            put(&[kind::ACK]);
            let count = ranges.iter().count() as u8;
            let raw = RawAck {
                path: *path,
                ranges: count,
                delay_us: (*delay_us).into(),
                generation: (*generation).into(),
            };
            put(raw.as_bytes());
            for (low, high) in ranges.iter() {
                put([U64::new(low), U64::new(high)].as_bytes());
            }
        }
        Record::Stream { .. } => unreachable!("TLPs are written by `Writer::stream`"),
        Record::Ping => put(&[kind::PING]),
        Record::Hello => put(&[kind::HELLO]),
        Record::HelloHeard { generation } => {
            put(&[kind::HELLO_HEARD]);
            put(U32::new(*generation).as_bytes());
        }
        Record::Information(information) => {
            put(&[kind::INFORMATION]);
            put(information.as_bytes());
        }
        Record::Goodbye => put(&[kind::GOODBYE]),
        Record::GoodbyeHeard => put(&[kind::GOODBYE_HEARD]),
        Record::Challenge(challenge) => {
            put(&[kind::CHALLENGE]);
            put(U64::new(*challenge).as_bytes());
        }
        Record::ChallengeHeard(challenge) => {
            put(&[kind::CHALLENGE_HEARD]);
            put(U64::new(*challenge).as_bytes());
        }
        Record::Renew => put(&[kind::RENEW]),
    }
    len
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
        assert!(writer.record(&Record::HelloHeard { generation: 9 }));
        assert!(writer.record(&Record::Challenge(5)) && writer.record(&Record::ChallengeHeard(6)));
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
        assert_eq!(text.len(), 5);
        assert!(text[0].contains("generation: 3") && text[4].contains("first: 40, count: 2"), "{text:?}");
    }
}
