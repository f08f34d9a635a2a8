//! What a rogue makes of a frame of one of its channels. It may say anything, of any stream, in any kind of frame: only
//! the name of the key stays, by which a frame is taken for its own.

use std::collections::VecDeque;

use base::ids::{LoanGeneration, StreamId};
use link::frame::{HEADER_LEN, MAX_FRAME, TAG_LEN};
use pcie::Bdf;

use crate::liars::Dice;
use crate::liars::twist::{self, Extent, STATUS, Told};

/// Where the numbers of a header lie, and their bytes.
const DESTINATION: (usize, usize) = (8, 4);
const STREAM: (usize, usize) = (24, 4);
const ASSIGNMENT: (usize, usize) = (32, 8);
const PACKET_NUMBER: (usize, usize) = (56, 8);
/// Those that a lie may be about: prefixes, group, channel, stream, generations, incarnation, packet number.
const NUMBERS: [(usize, usize); 9] =
    [DESTINATION, (12, 4), (16, 2), (20, 4), STREAM, ASSIGNMENT, (40, 8), (48, 8), PACKET_NUMBER];
/// Bodies that are kept, to be said again.
const KEPT: usize = 16;
/// Records about streams, with the bytes of what follows kind and length.
const CONTROL: [(u8, usize); 7] =
    [(0x8d, 54), (0x8e, 14), (0x8f, 73), (0x90, 4), (0x91, 4), (18, 46), (19, 4)];
/// The other records without TLPs, with the bytes of the shortest.
const OTHERS: [(u8, usize); 9] =
    [(1, 12), (1, 28), (3, 0), (4, 5), (5, 12), (9, 8), (10, 8), (11, 0), (12, 36)];

/// What a rogue knows of a channel.
#[derive(Default)]
pub(super) struct Memory {
    /// The last frame of its card.
    last: Vec<u8>,
    /// The greatest packet number that was made up for this card.
    newest: u64,
    /// Bodies of earlier ones, with the stream that they were of.
    bodies: VecDeque<([u8; 4], Vec<u8>)>,
}

/// What a rogue knows of the streams of who it lies to.
pub(super) struct Streams {
    /// Their names, in whatever channel, and those that the rogue asks for.
    pub(super) ids: Vec<StreamId>,
    /// Functions that are lent there.
    pub(super) functions: u32,
    /// What is expected in one of them.
    pub(super) told: Told,
}

impl Memory {
    /// The card has sent this frame.
    pub(super) fn keep(&mut self, frame: &[u8]) {
        self.last = frame.to_vec();
        let stream = number(frame, STREAM).try_into().unwrap_or_default();
        self.bodies.push_back((stream, frame[HEADER_LEN..frame.len() - TAG_LEN].to_vec()));
        if self.bodies.len() > KEPT {
            self.bodies.pop_front();
        }
    }

    /// A frame that the card has not sent: like the last one, with a number that did not come yet, which one of the
    /// card's will have in vain. `None` before the first.
    pub(super) fn forge(&mut self) -> Option<Vec<u8>> {
        let mut frame = Some(self.last.clone()).filter(|last| !last.is_empty())?;
        let (at, len) = PACKET_NUMBER;
        let mut packet = [0; 8];
        packet.copy_from_slice(number(&frame, PACKET_NUMBER));
        self.newest = u64::from_le_bytes(packet).max(self.newest).wrapping_add(1);
        frame[at..at + len].copy_from_slice(&self.newest.to_le_bytes());
        Some(frame)
    }

    /// Lies about anything.
    pub(super) fn lie(&self, dice: &mut dyn Dice, streams: &Streams, frame: &mut Vec<u8>) {
        match dice.below(10) {
            0 | 1 => twist::twist(dice, &streams.told, Extent::Body, frame),
            2 => {
                let which = NUMBERS[dice.below(NUMBERS.len() as u64) as usize];
                set(dice, which, frame);
            }
            3..6 => speak(dice, streams, frame),
            6 | 7 => with_body(frame, |body, stream| {
                *stream = [0; 4];
                body.clear();
                for _ in 0..=dice.below(3) {
                    let (kind, len) = CONTROL[dice.below(CONTROL.len() as u64) as usize];
                    add_record(dice, (kind, len), Some(streams), body);
                }
            }),
            8 => with_body(frame, |body, _| {
                let (kind, len) = OTHERS[dice.below(OTHERS.len() as u64) as usize];
                let stream = (kind == 12).then_some(streams);
                add_record(dice, (kind, len), stream, body);
            }),
            _ => {
                let said = self.bodies.get(dice.below(self.bodies.len() as u64 + 1) as usize).cloned();
                with_body(frame, |body, stream| (*stream, *body) = said.unwrap_or_default());
            }
        }
    }
}

/// An access in its own stream, which has the name or the address of somebody else.
pub(super) fn reach_out(dice: &mut dyn Dice, told: &Told, (id, own): (StreamId, Bdf), frame: &mut Vec<u8>) {
    with_body(frame, |body, stream| {
        *stream = id.0.to_le_bytes();
        *body = vec![0; STATUS];
        twist::add_foreign(dice, told, own, body);
    });
}

/// TLPs in its own stream, in a frame that names an assignment which is over.
pub(super) fn reach_back(
    dice: &mut dyn Dice,
    told: &Told,
    (id, former): (StreamId, LoanGeneration),
    frame: &mut Vec<u8>,
) {
    let (at, len) = ASSIGNMENT;
    frame[at..at + len].copy_from_slice(&former.0.to_le_bytes());
    with_body(frame, |body, stream| {
        *stream = id.0.to_le_bytes();
        *body = vec![0; STATUS];
        twist::add_stream(dice, told, body);
    });
}

/// TLPs in a stream that may be of somebody else, or not be open.
fn speak(dice: &mut dyn Dice, streams: &Streams, frame: &mut Vec<u8>) {
    with_body(frame, |body, stream| {
        if body.len() < STATUS || *stream == [0; 4] || dice.chance(300) {
            *body = vec![0; STATUS];
        }
        body.truncate(STATUS);
        *stream = any_stream(dice, streams);
        twist::add_stream(dice, &streams.told, body);
    });
}

fn any_stream(dice: &mut dyn Dice, streams: &Streams) -> [u8; 4] {
    let known = streams.ids.get(dice.below(streams.ids.len() as u64 + 1) as usize);
    known.map_or_else(|| dice.below(20) as u32, |id| id.0).to_le_bytes()
}

/// A record of chance, about one of the streams if it begins with that.
fn add_record(dice: &mut dyn Dice, (kind, len): (u8, usize), streams: Option<&Streams>, body: &mut Vec<u8>) {
    body.push(kind);
    body.extend((len as u16).to_le_bytes());
    let start = body.len();
    let is_plain = dice.chance(500);
    body.extend((0..len).map(|_| if is_plain { 0 } else { dice.below(256) as u8 }));
    let Some(streams) = streams else { return };
    body[start..start + 4].copy_from_slice(&any_stream(dice, streams));
    if kind == 0x8d {
        // An opening: a function, its generation, the domain of somebody.
        body[start + 4..start + 8]
            .copy_from_slice(&(1 + dice.below(streams.functions.into()) as u32).to_le_bytes());
        body[start + 8..start + 16].copy_from_slice(&dice.below(3).to_le_bytes());
        body[start + 16..start + 20].copy_from_slice(&(dice.below(5) as u32).to_le_bytes());
    }
}

/// Changes what is between header and tag, and the header's stream.
fn with_body(frame: &mut Vec<u8>, change: impl FnOnce(&mut Vec<u8>, &mut [u8; 4])) {
    let tag = frame.split_off(frame.len() - TAG_LEN);
    let mut body = frame.split_off(HEADER_LEN);
    let (at, len) = STREAM;
    let mut stream = [0; 4];
    stream.copy_from_slice(&frame[at..at + len]);
    change(&mut body, &mut stream);
    frame[at..at + len].copy_from_slice(&stream);
    body.truncate(MAX_FRAME - HEADER_LEN - TAG_LEN);
    frame.extend(body);
    frame.extend(tag);
}

fn number(frame: &[u8], (at, len): (usize, usize)) -> &[u8] {
    &frame[at..at + len]
}

/// A number of the header is another one.
fn set(dice: &mut dyn Dice, (at, len): (usize, usize), frame: &mut [u8]) {
    let mut old = [0; 8];
    old[..len].copy_from_slice(&frame[at..at + len]);
    let old = u64::from_le_bytes(old);
    let value = match dice.below(5) {
        0 => 0,
        // Rarely so great that nothing can be greater: its channel would not be heard any more.
        1 if dice.chance(50) => u64::MAX,
        1 | 2 => old.wrapping_add(1 + dice.below(3)),
        3 => old.wrapping_sub(1 + dice.below(3)),
        _ => dice.below(1 << 20),
    };
    frame[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}
