//! Frames of a peer that knows the key: any status, any records.

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use link::frame::{HEADER_LEN, Header, Kind, OVERHEAD, TAG_LEN};

use crate::tlps::{Context, Tlp};

/// A body: well-formed as far as its parts are, or any bytes.
#[derive(Arbitrary, Debug)]
pub enum Body {
    Raw(Vec<u8>),
    Records { status: Status, records: Vec<Record> },
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

#[derive(Arbitrary, Debug)]
pub enum Record {
    Ack { path: u8, generation: u8, delay_us: u16, ranges: Vec<(Near, u8)> },
    Stream { first: Near, count: Option<u16>, tlps: Vec<Tlp> },
    Ping,
    Hello,
    HelloHeard(u8),
    Information([u8; 42]),
    Goodbye,
    GoodbyeHeard,
    Raw(Vec<u8>),
}

impl Body {
    /// The bytes, as records of the frame format.
    pub fn encode(&self, context: &Context) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Records { status, records } => {
                let mut out = Vec::new();
                for (near, value) in [
                    (&status.committed, context.numbered),
                    (&status.posted_headers, 1024),
                    (&status.posted_data, 1024 * 256),
                    (&status.non_posted_headers, 256),
                ] {
                    out.extend(near.of(value).to_le_bytes());
                }
                let mut context = context.clone();
                records.iter().for_each(|record| record.encode(&mut context, &mut out));
                out
            }
        }
    }
}

impl Record {
    fn encode(&self, context: &mut Context, out: &mut Vec<u8>) {
        match self {
            Self::Ack { path, generation, delay_us, ranges } => {
                out.extend([1, path % 3, ranges.len() as u8]);
                out.extend(delay_us.to_le_bytes());
                out.extend(u32::from(*generation).to_le_bytes());
                for (high, len) in ranges.iter().take(255) {
                    let high = high.of(context.packets);
                    out.extend(high.saturating_sub((*len).into()).to_le_bytes());
                    out.extend(high.to_le_bytes());
                }
            }
            Self::Stream { first, count, tlps } => {
                let bytes: Vec<u8> = tlps.iter().flat_map(|tlp| tlp.encode(context)).collect();
                let Ok(len) = u16::try_from(bytes.len()) else { return };
                let count = count.unwrap_or(tlps.len() as u16);
                out.push(2);
                out.extend(count.to_le_bytes());
                out.extend(len.to_le_bytes());
                out.extend(first.of(context.expected).to_le_bytes());
                out.extend(bytes);
                context.expected += u64::from(count);
            }
            Self::Ping => out.push(3),
            Self::Hello => out.push(4),
            Self::HelloHeard(generation) => {
                out.push(5);
                out.extend(u32::from(*generation).to_le_bytes());
            }
            Self::Information(bytes) => {
                out.push(6);
                out.extend(bytes);
            }
            Self::Goodbye => out.push(7),
            Self::GoodbyeHeard => out.push(8),
            Self::Raw(bytes) => out.extend(bytes),
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
