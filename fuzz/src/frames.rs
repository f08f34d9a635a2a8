//! Frames of a peer that knows the key: any status, any records.

use base::ids::{DomainId, LoanGeneration, StreamId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use link::PROOF_LEN;
use link::frame::{HEADER_LEN, Header, Kind, OVERHEAD, TAG_LEN};
use link::pair::{FunctionId, Wish};

use crate::tlps::{Context, Tlp};

/// A body: well-formed as far as its parts are, or any bytes. That of a frame of stream 0 has no status.
#[derive(Arbitrary, Debug)]
pub enum Body {
    Raw(Vec<u8>),
    Records { status: Status, records: Vec<Record> },
    Control { records: Vec<Record> },
}

/// The status that begins a body; near what the channel expects, or far from it.
#[derive(Arbitrary, Debug)]
pub struct Status {
    committed: Near,
    posted_headers: Near,
    posted_data: Near,
    non_posted_headers: Near,
}

/// A number close to one that makes sense, or any.
#[derive(Arbitrary, Debug)]
pub enum Near {
    By(i8),
    Any(u64),
}

impl Near {
    pub fn of(&self, value: u64) -> u64 {
        match *self {
            Self::By(by) => value.saturating_add_signed(by.into()),
            Self::Any(any) => any,
        }
    }
}

/// A stream of the channel: that of the loan, one near it, or any.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Which {
    Own,
    Near(i8),
    Any(u32),
}

impl Which {
    pub fn of(self, context: &Context) -> u32 {
        match self {
            Self::Own => context.stream,
            // Ends number their streams by twos.
            Self::Near(by) => context.stream.saturating_add_signed(2 * i32::from(by)),
            Self::Any(any) => any,
        }
    }
}

#[derive(Arbitrary, Debug)]
pub enum Record {
    Ack {
        path: u8,
        generation: u8,
        delay_us: u16,
        ranges: Vec<(Near, u8)>,
    },
    Stream {
        first: Near,
        count: Option<u16>,
        tlps: Vec<Tlp>,
    },
    Ping,
    Hello {
        rails: u8,
        edition: u8,
    },
    HelloHeard {
        generation: u8,
        edition: u8,
    },
    Challenge(u64),
    ChallengeHeard(u64),
    Renew,
    OtherStatus {
        stream: Which,
        status: Status,
    },
    /// With a proof that is right, or none.
    Open {
        stream: Which,
        function: Near,
        generation: Near,
        domain: u32,
        slot: u16,
        is_proven: bool,
    },
    Opened {
        stream: Which,
        tenancy: Near,
        requester: u16,
    },
    Refused {
        stream: Which,
        verdict: u8,
        holder: [u8; 20],
        since: u64,
        hold: u64,
    },
    Close(Which),
    Closed(Which),
    Inform {
        stream: Which,
        information: [u8; 42],
    },
    Informed(Which),
    Raw(Vec<u8>),
}

impl Status {
    fn encode(&self, context: &Context) -> Vec<u8> {
        let near = [
            (&self.committed, context.numbered),
            (&self.posted_headers, 1024),
            (&self.posted_data, 1024 * 256),
            (&self.non_posted_headers, 256),
        ];
        near.iter().flat_map(|(near, value)| near.of(*value).to_le_bytes()).collect()
    }
}

impl Body {
    /// The bytes, as records of the frame format.
    pub fn encode(&self, context: &Context) -> Vec<u8> {
        let (mut out, records) = match self {
            Self::Raw(bytes) => return bytes.clone(),
            Self::Records { status, records } => (status.encode(context), records),
            Self::Control { records } => (Vec::new(), records),
        };
        let mut context = context.clone();
        records.iter().for_each(|record| record.encode(&mut context, &mut out));
        out
    }
}

impl Record {
    fn encode(&self, context: &mut Context, out: &mut Vec<u8>) {
        if let Self::Raw(bytes) = self {
            return out.extend(bytes);
        }
        let (kind, rest) = self.parts(context);
        let Ok(len) = u16::try_from(rest.len()) else { return };
        out.push(kind);
        out.extend(len.to_le_bytes());
        out.extend(rest);
    }

    /// The kind, and what follows it and the length.
    fn parts(&self, context: &mut Context) -> (u8, Vec<u8>) {
        let of = |stream: &Which, rest: &[u8]| [&stream.of(context).to_le_bytes()[..], rest].concat();
        match self {
            Self::Ack { path, generation, delay_us, ranges } => {
                let mut rest = vec![path % 18, ranges.len() as u8];
                rest.extend(delay_us.to_le_bytes());
                rest.extend(u64::from(*generation).to_le_bytes());
                for (high, len) in ranges.iter().take(255) {
                    let high = high.of(context.packets);
                    rest.extend(high.saturating_sub((*len).into()).to_le_bytes());
                    rest.extend(high.to_le_bytes());
                }
                (1, rest)
            }
            Self::Stream { first, count, tlps } => {
                let bytes: Vec<u8> = tlps.iter().flat_map(|tlp| tlp.encode(context)).collect();
                let count = count.unwrap_or(tlps.len() as u16);
                let first = first.of(context.expected).to_le_bytes();
                context.expected += u64::from(count);
                (0x82, [&count.to_le_bytes()[..], &first, &bytes].concat())
            }
            Self::Ping => (3, Vec::new()),
            Self::Hello { rails, edition } => {
                (4, [&[*rails][..], &u32::from(*edition % 4).to_le_bytes()].concat())
            }
            Self::HelloHeard { generation, edition } => {
                let edition = u32::from(*edition % 2).to_le_bytes();
                (5, [&u64::from(*generation).to_le_bytes()[..], &edition].concat())
            }
            Self::Challenge(challenge) => (9, challenge.to_le_bytes().to_vec()),
            Self::ChallengeHeard(challenge) => (10, challenge.to_le_bytes().to_vec()),
            Self::Renew => (11, Vec::new()),
            Self::OtherStatus { stream, status } => (12, of(stream, &status.encode(context))),
            Self::Open { stream, function, generation, domain, slot, is_proven } => {
                let wish = Wish {
                    function: FunctionId(function.of(context.function.into()) as u32),
                    generation: LoanGeneration(generation.of(0)),
                    domain: DomainId(*domain),
                    slot: *slot,
                    host: pcie::Bdf(0),
                };
                let proven = wish.proven(&context.handshake, StreamId(stream.of(context)));
                let proof = if *is_proven { link::prove(&context.secret, &proven) } else { [0; PROOF_LEN] };
                let mut rest = wish.function.0.to_le_bytes().to_vec();
                rest.extend(wish.generation.0.to_le_bytes());
                rest.extend(domain.to_le_bytes());
                rest.extend(slot.to_le_bytes());
                rest.extend(wish.host.0.to_le_bytes());
                rest.extend(proof);
                (0x8d, of(stream, &rest))
            }
            Self::Opened { stream, tenancy, requester } => {
                (0x8e, of(stream, &[&tenancy.of(1).to_le_bytes()[..], &requester.to_le_bytes()].concat()))
            }
            Self::Refused { stream, verdict, holder, since, hold } => {
                let mut rest = vec![verdict % 9];
                rest.extend(holder);
                rest.extend([b'n'; 32]);
                rest.extend(since.to_le_bytes());
                rest.extend(hold.to_le_bytes());
                (0x8f, of(stream, &rest))
            }
            Self::Close(stream) => (0x90, of(stream, &[])),
            Self::Closed(stream) => (0x91, of(stream, &[])),
            Self::Inform { stream, information } => (18, of(stream, information)),
            Self::Informed(stream) => (19, of(stream, &[])),
            Self::Raw(_) => (0, Vec::new()),
        }
    }
}

/// A frame under the keys of an insecure channel.
///
/// Its checksum begins with the key of the sender. The key is not known here, but a CRC can be run backwards: over a
/// frame that was seen, it leads from the tag to the state behind the key.
pub fn seal(header: Header, body: &[u8], behind_key: u32) -> Vec<u8> {
    let mut frame = vec![0; OVERHEAD + body.len()];
    Header { kind: Kind::Sealed, ..header }.write(&mut frame);
    let end = HEADER_LEN + body.len();
    frame[HEADER_LEN..end].copy_from_slice(body);
    let state = frame[..end].iter().fold(behind_key, |state, byte| state >> 8 ^ entry(state as u8 ^ byte));
    frame[end..end + TAG_LEN][..4].copy_from_slice(&(!state).to_le_bytes());
    frame
}

/// The state of the checksum behind the sender's key, from one of its frames.
pub fn behind_key(frame: &[u8]) -> u32 {
    let (bytes, tag) = frame.split_at(frame.len() - TAG_LEN);
    let last = !u32::from_le_bytes(*tag.first_chunk().expect("a tag has 16 bytes"));
    bytes.iter().rev().fold(last, |state, byte| {
        let index = (0..=255)
            .find(|index| entry(*index) >> 24 == state >> 24)
            .expect("each upper byte is in the table");
        (state ^ entry(index)) << 8 | u32::from(index ^ byte)
    })
}

/// An entry of the table of CRC32C.
fn entry(index: u8) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    (0..8).fold(index.into(), |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
}
