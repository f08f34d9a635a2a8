//! What a liar makes of a frame.

use core::ops::Range;

use base::ids::{DomainId, RailId};
use link::frame::{HEADER_LEN, MAX_FRAME, TAG_LEN};
use node::Card;
use pcie::{
    Bdf, Completion, CompletionStatus, ConfigKind, ConfigRequest, FlowClass, Header, MemoryRequest, Tag,
};
use spec::nvme::{CompletionEntry, Status};
use zerocopy::IntoBytes;

use super::Dice;

/// The first byte of a stream record.
const STREAM: u8 = 0x82;
/// Bytes of the status that begins a body.
pub(crate) const STATUS: usize = 32;
/// Bits of an address below the domain's.
const APERTURE_BITS: u32 = node::APERTURE_BYTES.trailing_zeros();
/// Places in a function's BARs at which a write does something: CC, AQA, ASQ, ACQ, CMBMSC, doorbells, vectors, the
/// memory buffer.
const REGISTERS: [u64; 12] =
    [0x00, 0x14, 0x1c, 0x20, 0x24, 0x28, 0x30, 0x50, 0x1000, 0x1008, 0x8000, 4 << 31];
/// Values of them: disabled, enabled, shut down, the key of a subsystem reset, a buffer's address.
const VALUES: [u64; 8] =
    [0, 0x0046_0001, 0x0046_0000, 0x0046_4001, 0x4e56_4d65, 0x0800_0000_0003, 0x000f_000f, u64::MAX];
/// Places in the memory of a driver, and the last page, where the functions of slots interrupt.
const MEMORY: [u64; 8] = [
    0x1000_0000,
    0x1000_1000,
    0x1000_2000,
    0x1000_3000,
    0x2000_0000,
    0x4000_0000,
    (1 << 44) - 4096,
    0x1234_5000,
];

/// Where lies are told.
pub(crate) struct Target {
    /// The domain of who is lied to.
    pub(crate) domain: DomainId,
    /// Whether it lends: then lies are about registers, else about memory.
    pub(crate) is_lent: bool,
    /// Where its endpoint begins in that domain's aperture.
    pub(crate) base: u64,
    /// Whose requests they claim to be.
    pub(crate) requesters: Vec<Bdf>,
}

/// What the one who is lied to expects in a stream.
pub(crate) struct Told {
    place: Target,
    /// The number of the next TLP.
    expected: u64,
    /// Its requests that wait for completions.
    requests: Vec<Header>,
}

impl Told {
    pub(crate) fn of(card: &Card<'_>, loan: usize, place: Target) -> Self {
        let flow = card.stream(loan);
        let headers = flow.port.sender.headers().filter_map(|header| Header::decode(header.as_bytes()).ok());
        Self {
            place,
            expected: flow.receiver().expected(),
            requests: headers.filter(|header| header.class() == FlowClass::NonPosted).collect(),
        }
    }

    /// Where its aperture begins.
    fn aperture(&self) -> u64 {
        u64::from(self.place.domain.0) << APERTURE_BITS
    }

    fn requester(&self, dice: &mut dyn Dice) -> Bdf {
        match &self.place.requesters[..] {
            [only] => *only,
            some => some[dice.below(some.len() as u64) as usize],
        }
    }
}

/// What of a frame a lie may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What it says of its own stream.
    Stream,
    /// Its whole body.
    Body,
}

/// What of a body is about its stream alone: the status, and what is in records of TLPs. What else a frame says is of
/// the whole channel, and of the other loan as well.
fn own(body: &[u8]) -> (Vec<Range<usize>>, Vec<usize>) {
    let status = 0..STATUS.min(body.len());
    let (mut own, mut starts, mut at) = (Vec::from([status]), Vec::new(), STATUS);
    while let Some(&[kind, low, high]) = body.get(at..at + 3) {
        let end = at + 3 + usize::from(u16::from_le_bytes([low, high]));
        if end > body.len() {
            break;
        }
        starts.push(at);
        if kind == STREAM {
            own.push(at + 3..end);
        }
        at = end;
    }
    (own, starts)
}

/// One access of 4 bytes of its own endpoint, as somebody else, at the same place of another domain, or over a rail
/// that it has not come on: nobody may have that. What of a record it is, with its number.
pub(crate) fn add_foreign(dice: &mut dyn Dice, told: &Told, own: Bdf, body: &mut Vec<u8>) {
    let (lie, is_write) = (dice.below(3), dice.chance(500));
    let is_other = lie == 0;
    let others: Vec<Bdf> = told.place.requesters.iter().copied().filter(|other| *other != own).collect();
    let requester = if is_other { others[dice.below(others.len() as u64) as usize] } else { own };
    let elsewhere = if lie == 1 { (1 + dice.below(3)) << APERTURE_BITS } else { 0 };
    // What goes through memory leads over the first rail.
    let rail = RailId::ALL[if lie == 2 { 1 + dice.below(3) as usize } else { 0 }];
    // CC, or the head of a queue.
    let offset = if told.place.is_lent { REGISTERS[1] } else { MEMORY[1] };
    let address = told.aperture().wrapping_add(elsewhere) | (told.place.base + offset);
    let address = rail.in_address(address);
    let request = MemoryRequest::new(requester, Tag::default(), address, 4).expect("it is aligned");
    let header = if is_write { Header::MemoryWrite(request) } else { Header::MemoryRead(request) };
    let mut tlp = header.encode().as_bytes().to_vec();
    tlp.resize(tlp.len() + header.payload_len(), 0);
    body.push(STREAM);
    body.extend((10 + tlp.len() as u16).to_le_bytes());
    body.extend(1_u16.to_le_bytes());
    body.extend(told.expected.to_le_bytes());
    body.extend(tlp);
}

/// A place in that.
fn place_in(dice: &mut dyn Dice, reach: Extent, body: &[u8]) -> Range<usize> {
    let own = match reach {
        Extent::Stream => own(body).0,
        Extent::Body => core::iter::once(0..body.len()).collect(),
    };
    let part = own[dice.below(own.len() as u64) as usize].clone();
    part.start + dice.below(part.len() as u64 + 1) as usize..part.end
}

/// Changes a frame, whose tag stays what it was.
pub(crate) fn twist(dice: &mut dyn Dice, told: &Told, reach: Extent, frame: &mut Vec<u8>) {
    let tag = frame.split_off(frame.len() - TAG_LEN);
    let mut body = frame.split_off(HEADER_LEN);
    for _ in 0..=dice.below(3) {
        match dice.below(8) {
            0 | 1 => set_byte(dice, reach, &mut body),
            2 | 3 => set_number(dice, reach, &mut body),
            4 => body.truncate(dice.below(body.len() as u64 + 1) as usize),
            5 => {
                // Some of its last records come twice.
                let (_, starts) = own(&body);
                if let Some(start) = starts.get(dice.below(starts.len() as u64 + 1) as usize) {
                    body.extend_from_within(start..);
                }
            }
            6 => add_record(dice, &mut body),
            _ => add_stream(dice, told, &mut body),
        }
    }
    body.truncate(MAX_FRAME - HEADER_LEN - TAG_LEN);
    frame.extend(body);
    frame.extend(tag);
}

fn set_byte(dice: &mut dyn Dice, reach: Extent, body: &mut [u8]) {
    let place = place_in(dice, reach, body);
    if let Some(byte) = body[place].first_mut() {
        *byte = dice.below(256) as u8;
    }
}

/// A number of two, four or eight bytes becomes one that is worth a try.
fn set_number(dice: &mut dyn Dice, reach: Extent, body: &mut [u8]) {
    let len = 2 << dice.below(3);
    let place = place_in(dice, reach, body);
    let Some(bytes) = body[place].get_mut(..len) else { return };
    let mut old = [0; 8];
    old[..len].copy_from_slice(bytes);
    let old = u64::from_le_bytes(old);
    let value = match dice.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << dice.below(64),
        3 => old.wrapping_add(dice.below(5)).wrapping_sub(2),
        4 => u64::from(u16::MAX),
        _ => dice.below(u64::MAX),
    };
    bytes.copy_from_slice(&value.to_le_bytes()[..len]);
}

/// A record that carries no TLPs: any of the small ones, or one that is none.
fn add_record(dice: &mut dyn Dice, body: &mut Vec<u8>) {
    if body.len() < STATUS {
        return;
    }
    let (len, lies) = (dice.below(20), dice.chance(100));
    body.push(dice.below(12) as u8);
    body.extend((len as u16 + u16::from(lies) * dice.below(300) as u16).to_le_bytes());
    body.extend((0..len).map(|_| dice.below(256) as u8));
}

/// TLPs that the peer never sent: a few of all kinds, or as many of one as a frame takes.
pub(crate) fn add_stream(dice: &mut dyn Dice, told: &Told, body: &mut Vec<u8>) {
    let is_burst = dice.chance(100);
    let wanted = if is_burst { 1 + dice.below(3000) } else { 1 + dice.below(12) };
    let (mut tlps, mut again, mut count) = (Vec::<u8>::new(), Vec::new(), 0_u16);
    for _ in 0..wanted {
        if again.is_empty() || !is_burst || dice.chance(50) {
            again = tlp(dice, told);
        }
        if body.len() + tlps.len() + again.len() > MAX_FRAME - 200 {
            break;
        }
        tlps.extend(&again);
        count += 1;
    }
    let count = if dice.chance(50) { dice.below(1 << 16) as u16 } else { count };
    let ahead = if dice.chance(100) { dice.below(3000) } else { 0 };
    body.push(STREAM);
    body.extend((10 + tlps.len() as u16).to_le_bytes());
    body.extend(count.to_le_bytes());
    body.extend((told.expected + ahead).to_le_bytes());
    body.extend(tlps);
}

fn tlp(dice: &mut dyn Dice, told: &Told) -> Vec<u8> {
    let made = match dice.below(12) {
        0..=5 => write(dice, told),
        6 => read(dice, told),
        7 => Some(config(dice, told)),
        8..=10 => complete(dice, told),
        _ => None,
    };
    match made {
        Some((header, data)) if header.check().is_ok() => {
            let mut bytes = header.encode().as_bytes().to_vec();
            let end = bytes.len() + header.payload_len();
            bytes.extend(data.iter().take(header.payload_len()));
            bytes.resize(end, 0);
            bytes
        }
        _ => (0..12 + 4 * dice.below(8)).map(|_| dice.below(256) as u8).collect(),
    }
}

/// An address that means something to who is written to or read from.
fn place(dice: &mut dyn Dice, told: &Told) -> u64 {
    let places: &[u64] = if told.place.is_lent { &REGISTERS } else { &MEMORY };
    let place = places[dice.below(places.len() as u64) as usize];
    let behind = if dice.chance(500) { 0 } else { 4 * dice.below(1024) };
    told.aperture() | (told.place.base + place + behind)
}

fn write(dice: &mut dyn Dice, told: &Told) -> Option<(Header, Vec<u8>)> {
    let (address, data) = match (told.place.is_lent, dice.below(3)) {
        (true, 0 | 1) => {
            let value = VALUES[dice.below(VALUES.len() as u64) as usize];
            (place(dice, told), value.to_le_bytes()[..4 << dice.below(2)].to_vec())
        }
        (false, 0 | 1) => {
            // A completion entry, in the admin queue or the other.
            let cid = [0xffff, 0xfffe, dice.below(8) as u16][dice.below(3) as usize];
            let status = if dice.chance(700) { Status::SUCCESS } else { Status::INTERNAL_ERROR };
            let (queue, slot, phase) = (dice.below(2), dice.below(16), dice.chance(500));
            let entry = CompletionEntry::new(queue as u16, 0, cid, status, dice.below(1 << 32) as u32, phase);
            (
                told.aperture() | (told.place.base + 0x1000_1000 + queue * 0x1000 + slot * 16),
                entry.as_bytes().to_vec(),
            )
        }
        _ => {
            let most = if dice.chance(100) { 4096 } else { 64 };
            let len = 1 + dice.below(most);
            (place(dice, told), (0..len).map(|_| dice.below(256) as u8).collect())
        }
    };
    let request = MemoryRequest::new(told.requester(dice), Tag::default(), address, data.len()).ok()?;
    Some((Header::MemoryWrite(request), data))
}

fn read(dice: &mut dyn Dice, told: &Told) -> Option<(Header, Vec<u8>)> {
    let (address, len) = (place(dice, told), 1 + dice.below(4096) as usize);
    let tag = Tag::new(dice.below(1024) as u16)?;
    Some((Header::MemoryRead(MemoryRequest::new(told.requester(dice), tag, address, len).ok()?), Vec::new()))
}

fn config(dice: &mut dyn Dice, told: &Told) -> (Header, Vec<u8>) {
    let request = ConfigRequest {
        requester: told.requester(dice),
        tag: Tag::new(dice.below(1024) as u16).unwrap_or_default(),
        target: Bdf(0x0100),
        register: (dice.below(4096) & 0xffc) as u16,
        first_be: 0xf,
        kind: ConfigKind::Type0,
        poisoned: false,
    };
    let data = (0..4).map(|_| dice.below(256) as u8).collect();
    if dice.chance(500) {
        (Header::ConfigRead(request), Vec::new())
    } else {
        (Header::ConfigWrite(request), data)
    }
}

/// The completion of a request that is out, with a value that it should not have.
fn complete(dice: &mut dyn Dice, told: &Told) -> Option<(Header, Vec<u8>)> {
    let request = told.requests.get(dice.below(told.requests.len() as u64 + 1) as usize)?;
    let wanted = match request {
        Header::MemoryRead(read) => read.byte_range().1,
        Header::ConfigRead(_) => 4,
        _ => 0,
    };
    let lower_address = match request {
        Header::MemoryRead(read) => read.byte_range().0 as u8 & 0x7f,
        _ => 0,
    };
    let status = if dice.chance(900) {
        CompletionStatus::Success
    } else {
        CompletionStatus::from_bits(dice.below(8) as u8)
    };
    let len = if status == CompletionStatus::Success && dice.chance(900) { wanted.min(4096) } else { 0 };
    let completion = Completion {
        byte_count: if len > 0 { wanted as u16 } else { 4 },
        lower_address,
        length_dw: len.div_ceil(4) as u16,
        ..Completion::without_data(request.requester(), request.tag(), told.requester(dice), status)
    };
    let value = VALUES[dice.below(VALUES.len() as u64) as usize].to_le_bytes();
    let random = dice.chance(500);
    let data = (0..len.div_ceil(4) * 4).map(|at| if random { dice.below(256) as u8 } else { value[at % 8] });
    Some((Header::Completion(completion), data.collect()))
}
