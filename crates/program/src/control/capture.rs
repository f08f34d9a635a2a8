//! How captured frames go over the control socket: an endless answer to `POST /capture`, in items.
//!
//! An item is a length (4 bytes, little endian, of what follows it), a kind (1 byte) and the rest: the [`Head`] as
//! JSON, which comes first; a frame; or the [counts](LinkCount) so far as JSON, by link, whenever they have changed.
//! Who does not read has the ring run full, where who captures drops and counts.

use io::capture::{CAPTURES_MAX, Captured, LINKS, LinkCount, Reader};
use serde::{Deserialize, Serialize};

/// What somebody wants to capture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureOrder {
    /// The name of a rail, or `shm`, or of a switch's port; `None`: all links.
    pub link: Option<String>,
    /// Frames that the node has the keys of are opened.
    pub opened: bool,
}

/// What comes before all frames.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The node, or the switch.
    pub node: String,
    /// Its links that are captured.
    pub links: Vec<Link>,
}

/// A link that is captured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number: of a rail its id, or that of memory; of a port its place.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// `udp`, ...
    pub medium: String,
    /// The local address; empty for memory.
    pub local: String,
}

/// A capture that a node or a switch has begun.
pub struct Capture {
    /// What it is of.
    pub head: Head,
    /// Takes out the frames.
    pub reader: Reader,
}

impl Capture {
    /// Of that of the links which the order names, or of all: then `begin` is told of none, and what comes later is
    /// captured, too.
    ///
    /// # Errors
    /// Why it cannot be, for a person.
    pub fn begin(
        node: String,
        mut links: Vec<Link>,
        order: &CaptureOrder,
        begin: impl FnOnce(Option<u8>) -> std::io::Result<Option<Reader>>,
    ) -> Result<Self, String> {
        let mut link = None;
        if let Some(wanted) = &order.link {
            links.retain(|link| link.name == *wanted);
            let Some(found) = links.first() else {
                return Err(format!("it has no link {wanted}; `causeway link list` lists them"));
            };
            link = u8::try_from(found.number).ok();
        }
        match begin(link) {
            Ok(Some(reader)) => Ok(Self { head: Head { node, links }, reader }),
            Ok(None) => Err(format!("{CAPTURES_MAX} captures of it run already; end one of them")),
            Err(error) => Err(format!("there is no memory for the frames: {error}")),
        }
    }
}

/// A piece of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// First of all.
    Head(Head),
    /// A frame.
    Frame(Captured, Vec<u8>),
    /// What was counted so far, by link.
    Counts(Vec<LinkCount>),
}

/// It is no item.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoItem;

/// Longest item: far more than the largest frame.
const ITEM_BYTES_MAX: usize = 256 << 10;
/// Before the bytes of a frame: kind, time, link, flags.
const FRAME_HEAD_BYTES: usize = 11;

mod kind {
    pub(super) const HEAD: u8 = 0;
    pub(super) const FRAME: u8 = 1;
    pub(super) const COUNTS: u8 = 2;
}

const SENT: u8 = 1;
const OPENED: u8 = 2;

pub(super) fn put_head(head: &Head, out: &mut Vec<u8>) {
    put_json(kind::HEAD, head, out);
}

pub(super) fn put_counts(counts: &[LinkCount], out: &mut Vec<u8>) {
    put_json(kind::COUNTS, &counts, out);
}

pub(super) fn put_frame(captured: Captured, frame: &[u8], out: &mut Vec<u8>) {
    let len = (FRAME_HEAD_BYTES + frame.len()) as u32;
    out.extend_from_slice(&len.to_le_bytes());
    out.push(kind::FRAME);
    out.extend_from_slice(&captured.at_ns.to_le_bytes());
    out.push(captured.link as u8);
    out.push((u8::from(captured.is_sent) * SENT) | (u8::from(captured.is_opened) * OPENED));
    out.extend_from_slice(frame);
}

fn put_json(kind: u8, what: &impl Serialize, out: &mut Vec<u8>) {
    let text = serde_json::to_vec(what).expect("texts and numbers always serialise");
    out.extend_from_slice(&(1 + text.len() as u32).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&text);
}

/// Takes the next item off the front of `input`; `None`: it is not complete.
pub(super) fn take(input: &mut &[u8]) -> Result<Option<Item>, NoItem> {
    let Some((len, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 || len > ITEM_BYTES_MAX {
        return Err(NoItem);
    }
    let Some((bytes, rest)) = rest.split_at_checked(len) else { return Ok(None) };
    *input = rest;
    // An item is not empty, as just seen.
    let (&kind, body) = bytes.split_first().ok_or(NoItem)?;
    let item = match kind {
        kind::HEAD => serde_json::from_slice(body).ok().map(Item::Head),
        kind::COUNTS => serde_json::from_slice(body).ok().map(Item::Counts),
        kind::FRAME => frame(body),
        _ => None,
    };
    item.map(Some).ok_or(NoItem)
}

fn frame(body: &[u8]) -> Option<Item> {
    let (at_ns, rest) = body.split_first_chunk()?;
    let ([link, flags], bytes) = rest.split_first_chunk()?;
    let captured = Captured {
        at_ns: u64::from_le_bytes(*at_ns),
        link: usize::from(*link),
        is_sent: flags & SENT != 0,
        is_opened: flags & OPENED != 0,
    };
    (captured.link < LINKS).then(|| Item::Frame(captured, bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken_however_it_is_cut() {
        let link =
            Link { number: 2, name: "left".to_owned(), medium: "udp".to_owned(), local: "a".to_owned() };
        let head = Head { node: "n".to_owned(), links: vec![link] };
        let captured = Captured { at_ns: 1 << 60, link: LINKS - 1, is_sent: true, is_opened: false };
        let counts = [LinkCount { seen: 3, dropped: 1 }; 5];
        let mut bytes = Vec::new();
        put_head(&head, &mut bytes);
        put_frame(captured, b"frame", &mut bytes);
        put_counts(&counts, &mut bytes);
        let all = [Item::Head(head), Item::Frame(captured, b"frame".to_vec()), Item::Counts(counts.to_vec())];
        for cut in 0..=bytes.len() {
            let (mut items, mut input) = (Vec::new(), Vec::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                input.extend_from_slice(part);
                let mut rest = &input[..];
                while let Some(item) = take(&mut rest).unwrap() {
                    items.push(item);
                }
                input = rest.to_vec();
            }
            assert_eq!(items, all);
        }
    }

    #[test]
    fn what_is_no_item_is_refused() {
        for bytes in
            [&[0_u8, 0, 0, 0][..], &[255; 8], &[1, 0, 0, 0, 9], &[2, 0, 0, 0, 1, 1], &[2, 0, 0, 0, 0, 0]]
        {
            assert_eq!(take(&mut &bytes[..]), Err(NoItem), "{bytes:?}");
        }
    }
}
