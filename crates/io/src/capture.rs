//! Frames as a card or a switch sends and takes them, for whoever looks on.
//!
//! The card copies them into a ring in memory that its agent keeps, and a reader in the agent's process takes them out.
//! The card waits for nobody: what finds no room is dropped and counted. The memory outlives the card, so a capture
//! goes on with its successor. Where nobody captures, the card looks at an empty list once in a batch and at nothing
//! else.
//!
//! What is captured is what the card hands to a rail and takes from one; the faults that the demo makes lie beyond
//! that, as the network does. A [switch](crate::switch) is one process, and writes into the same ring what comes in by
//! its ports and leaves by them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::ids::RailId;
use base::ledger::Layout;
use node::switch::MAX_PORTS;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::memory::{self, Mapping};
use crate::rail::udp::MAX_DATAGRAM_BYTES;
use crate::shm::ring::{self, Size};

/// Most captures of a node or a switch at a time.
pub const CAPTURES_MAX: usize = 4;
/// Links that can be captured: of a node its rails, by id, and the memory that it shares with others; of a switch its
/// ports.
pub const LINKS: usize = MAX_PORTS;
/// That memory.
pub const MEMORY_LINK: usize = RailId::COUNT;

/// Bytes before the ring.
const CONTROL_BYTES: usize = 8192;
const HEAD_BYTES: usize = size_of::<Head>();
const BYTES: usize = CONTROL_BYTES + RingSize::RING;
/// Frames that the reader takes at a time.
const READ_LIMIT: usize = 256;

const SENT: u32 = 1;
const OPENED: u32 = 2;

/// As much as some 5 ms of the fastest rail.
struct RingSize;

impl Size for RingSize {
    const RING: usize = 8 << 20;
    const FRAME: usize = 64 << 10;
}

const _: () = assert!(HEAD_BYTES + MAX_DATAGRAM_BYTES <= RingSize::FRAME);
const _: () = assert!(size_of::<Control>() <= CONTROL_BYTES);
const _: () = assert!(MEMORY_LINK < LINKS && LINKS == 1 << u8::BITS);

/// What is to be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub struct Wish {
    /// Which link; `None`: all, also those that come later.
    pub link: Option<u8>,
    /// Frames that this node has the keys of are opened.
    pub opened: bool,
}

impl Wish {
    fn has(self, link: usize) -> bool {
        self.link.is_none_or(|it| usize::from(it) == link)
    }
}

/// What is known of a frame beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Over which link.
    pub link: usize,
    /// It was sent, or else taken.
    pub is_sent: bool,
    /// It was opened: its body is as its sender has written it, and its tag is zero.
    pub is_opened: bool,
}

/// Frames of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCount {
    /// That were to be captured.
    pub seen: u64,
    /// Of these, those that found no room.
    pub dropped: u64,
}

/// [`Captured`], as it lies before a frame.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    at_ns: U64,
    link: U32,
    flags: U32,
}

/// What lies before the ring.
#[repr(C, align(64))]
struct Control {
    /// The reader is gone.
    is_over: AtomicU32,
    seen: [AtomicU64; LINKS],
    dropped: [AtomicU64; LINKS],
}

fn control(memory: &Mapping) -> &Control {
    // SAFETY: it lies inside of the mapping, aligned, as `at` has checked; it lives as long as that, and consists of
    // atomics, for which any bytes are valid.
    unsafe { &*memory.at::<Control>(0) }
}

/// What an agent keeps of its captures.
#[derive(Default)]
pub(crate) struct Kept {
    places: [Option<(OwnedFd, Arc<Mapping>, Wish)>; CAPTURES_MAX],
}

impl Kept {
    /// Memory for another capture, its place, and who reads it. `None`: there are too many.
    pub(crate) fn begin(&mut self, wish: Wish) -> io::Result<Option<(usize, Reader)>> {
        self.forget_ended();
        let Some(place) = self.places.iter().position(Option::is_none) else { return Ok(None) };
        let memory = memory::create("causeway-capture", BYTES)?;
        let mapping = Arc::new(Mapping::shared(memory.as_fd())?);
        let reader = Reader::new(Arc::clone(&mapping));
        self.places[place] = Some((memory, mapping, wish));
        Ok(Some((place, reader)))
    }

    /// Gives up the memory of those that nobody reads any more.
    pub(crate) fn forget_ended(&mut self) {
        for place in &mut self.places {
            place.take_if(|(_, mapping, _)| control(mapping).is_over.load(Ordering::Relaxed) != 0);
        }
    }

    /// Those that go on, by place.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, Wish)> {
        self.places.iter().enumerate().filter_map(|(place, kept)| Some((place, kept.as_ref()?.2)))
    }

    /// The memory of the one in this place.
    pub(crate) fn memory(&self, place: usize) -> Option<&OwnedFd> {
        self.places.get(place)?.as_ref().map(|(memory, ..)| memory)
    }
}

/// Takes out what a card has captured. The capture ends with it.
pub struct Reader {
    memory: Arc<Mapping>,
    ring: ring::Reader<RingSize>,
}

// SAFETY: it consists of pointers into a mapping that it keeps, which belongs to no thread, and only its owner uses
// them.
unsafe impl Send for Reader {}

impl Reader {
    fn new(memory: Arc<Mapping>) -> Self {
        Self { ring: ring::Reader::new(Arc::clone(&memory), CONTROL_BYTES), memory }
    }

    /// Gives at most some hundred frames to `take`; returns how many.
    ///
    /// # Errors
    /// What is there makes no sense: there will be nothing more.
    pub fn read(&mut self, mut take: impl FnMut(Captured, &[u8])) -> io::Result<usize> {
        let mut is_sound = true;
        let count = self.ring.read(READ_LIMIT, |bytes| match Head::read_from_prefix(bytes) {
            Ok((head, frame)) if (head.link.get() as usize) < LINKS => {
                let flags = head.flags.get();
                let captured = Captured {
                    at_ns: head.at_ns.get(),
                    link: head.link.get() as usize,
                    is_sent: flags & SENT != 0,
                    is_opened: flags & OPENED != 0,
                };
                take(captured, frame);
            }
            _ => is_sound = false,
        });
        match count {
            Ok(count) if is_sound => Ok(count),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "what the card has captured makes no sense")),
        }
    }

    /// What was counted so far, by link, up to the last one of which anything was seen.
    #[must_use]
    pub fn counts(&self) -> Vec<LinkCount> {
        let control = control(&self.memory);
        let count = |link: usize| {
            // In this order: no more can have been dropped than seen.
            let dropped = control.dropped[link].load(Ordering::Acquire);
            LinkCount { seen: control.seen[link].load(Ordering::Acquire), dropped }
        };
        let mut counts: Vec<LinkCount> = (0..LINKS).map(count).collect();
        let used = counts.iter().rposition(|count| count.seen > 0).map_or(0, |last| last + 1);
        counts.truncate(used);
        counts
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        control(&self.memory).is_over.store(1, Ordering::Relaxed);
    }
}

/// What a card captures.
#[derive(Default)]
pub(crate) struct Captures {
    taps: Vec<Tap>,
    /// Where frames are opened.
    opened: Vec<u8>,
}

/// One capture.
struct Tap {
    place: usize,
    wish: Wish,
    memory: Arc<Mapping>,
    ring: ring::Writer<RingSize>,
}

impl Captures {
    /// Goes on where the card before has ended, if it had begun.
    ///
    /// # Errors
    /// There is no address space for it, or this is no memory of a capture.
    pub(crate) fn begin(&mut self, place: usize, wish: Wish, memory: OwnedFd) -> io::Result<()> {
        let memory = Arc::new(Mapping::shared(memory.as_fd())?);
        if memory.len() != BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let ring = ring::Writer::new(Arc::clone(&memory), CONTROL_BYTES);
        self.taps.retain(|tap| tap.place != place);
        self.opened.reserve(MAX_DATAGRAM_BYTES);
        self.taps.push(Tap { place, wish, memory, ring });
        Ok(())
    }

    /// Whether anybody captures.
    pub(crate) fn are_active(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Gives up those that nobody reads any more, also where no frame comes.
    pub(crate) fn forget_ended(&mut self) {
        self.taps.retain(|tap| !tap.is_over());
    }

    /// Copies a frame for those who want it, opened by `reveal` for those who want that; who is gone gets nothing more.
    pub(crate) fn record(
        &mut self,
        link: usize,
        is_sent: bool,
        frame: &[u8],
        reveal: &mut dyn FnMut(&mut [u8], bool) -> bool,
    ) {
        let way = if is_sent { SENT } else { 0 };
        let opened = &mut self.opened;
        // Whether it can be opened; not known before somebody wants to know.
        let mut is_opened = None;
        self.taps.retain_mut(|tap| {
            if tap.is_over() {
                return false;
            }
            if !tap.wish.has(link) {
                return true;
            }
            let wants_opened = tap.wish.opened
                && *is_opened.get_or_insert_with(|| {
                    opened.clear();
                    opened.extend_from_slice(frame);
                    reveal(opened, is_sent)
                });
            match wants_opened {
                true => tap.record(link, way | OPENED, opened),
                false => tap.record(link, way, frame),
            }
            true
        });
    }
}

impl Tap {
    /// Nobody reads it any more.
    fn is_over(&self) -> bool {
        control(&self.memory).is_over.load(Ordering::Relaxed) != 0
    }

    fn record(&mut self, link: usize, flags: u32, frame: &[u8]) {
        let control = control(&self.memory);
        control.seen[link].fetch_add(1, Ordering::Release);
        let len = HEAD_BYTES + frame.len();
        let Some(room) = self.ring.room().and_then(|room| room.get_mut(..len)) else {
            control.dropped[link].fetch_add(1, Ordering::Release);
            return;
        };
        let head = Head { at_ns: present().into(), link: (link as u32).into(), flags: flags.into() };
        room[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        room[HEAD_BYTES..].copy_from_slice(frame);
        self.ring.publish(len);
    }
}

/// Nanoseconds since 1970.
fn present() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wish = Wish { link: None, opened: false };

    fn begin(kept: &mut Kept, captures: &mut Captures, wish: Wish) -> Reader {
        let (place, reader) = kept.begin(wish).unwrap().unwrap();
        captures.begin(place, wish, kept.memory(place).unwrap().try_clone().unwrap()).unwrap();
        reader
    }

    fn never(_: &mut [u8], _: bool) -> bool {
        panic!("nobody wants frames to be opened")
    }

    fn read(reader: &mut Reader) -> Vec<(usize, bool, Vec<u8>)> {
        let mut all = Vec::new();
        while reader.read(|of, frame| all.push((of.link, of.is_sent, frame.to_vec()))).unwrap() > 0 {}
        all
    }

    #[test]
    fn frames_are_seen_as_they_were_by_those_who_want_their_link() {
        let (mut kept, mut captures) = (Kept::default(), Captures::default());
        assert!(!captures.are_active());
        let mut all = begin(&mut kept, &mut captures, ALL);
        let mut one = begin(&mut kept, &mut captures, Wish { link: Some(2), ..ALL });
        let largest = vec![7; MAX_DATAGRAM_BYTES];
        captures.record(0, true, b"one", &mut never);
        captures.record(2, false, &largest, &mut never);
        captures.record(LINKS - 1, true, b"three", &mut never);
        let expected =
            [(0, true, b"one".to_vec()), (2, false, largest), (LINKS - 1, true, b"three".to_vec())];
        assert_eq!(read(&mut all), expected);
        assert_eq!(read(&mut one), expected[1..2]);
        let (none, some) = (LinkCount::default(), LinkCount { seen: 1, dropped: 0 });
        assert_eq!(one.counts(), [none, none, some], "up to the last that was seen");
        assert_eq!(all.counts().len(), LINKS);
    }

    #[test]
    fn frames_are_opened_for_those_who_want_that_and_can_be() {
        let (mut kept, mut captures) = (Kept::default(), Captures::default());
        let mut plain = begin(&mut kept, &mut captures, ALL);
        let mut opened = begin(&mut kept, &mut captures, Wish { opened: true, ..ALL });
        captures.record(0, true, b"sealed", &mut |frame, is_sent| {
            frame.make_ascii_uppercase();
            is_sent
        });
        // What could not be opened makes no sense any more.
        captures.record(0, false, b"foreign", &mut |frame, is_sent| {
            frame.fill(0);
            is_sent
        });
        assert_eq!(read(&mut plain), [(0, true, b"sealed".to_vec()), (0, false, b"foreign".to_vec())]);
        let mut seen = Vec::new();
        opened.read(|of, frame| seen.push((of.is_opened, frame.to_vec()))).unwrap();
        assert_eq!(seen, [(true, b"SEALED".to_vec()), (false, b"foreign".to_vec())]);
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let (mut kept, mut captures) = (Kept::default(), Captures::default());
        let mut reader = begin(&mut kept, &mut captures, ALL);
        let frame = vec![7; 60_000];
        (0..1_000).for_each(|_| captures.record(1, true, &frame, &mut never));
        let LinkCount { seen, dropped } = reader.counts()[1];
        assert!(seen == 1_000 && dropped > 800 && dropped < 900, "{dropped}");
        assert_eq!(read(&mut reader).len() as u64, seen - dropped);
        captures.record(1, true, &frame, &mut never);
        assert_eq!((read(&mut reader).len(), reader.counts()[1].dropped), (1, dropped));
    }

    #[test]
    fn a_capture_goes_on_with_the_next_card_and_ends_with_its_reader() {
        let (mut kept, mut captures) = (Kept::default(), Captures::default());
        let mut reader = begin(&mut kept, &mut captures, ALL);
        captures.record(0, true, b"one", &mut never);
        let mut successor = Captures::default();
        for (place, wish) in kept.all() {
            successor.begin(place, wish, kept.memory(place).unwrap().try_clone().unwrap()).unwrap();
        }
        successor.record(0, true, b"two", &mut never);
        assert_eq!(read(&mut reader).len(), 2);
        assert_eq!(reader.counts()[0].seen, 2);
        drop(reader);
        assert!(successor.are_active());
        successor.record(0, true, b"three", &mut never);
        assert!(!successor.are_active());
        kept.forget_ended();
        assert_eq!(kept.all().count(), 0);
    }

    #[test]
    fn there_are_so_many_captures_and_no_more() {
        let mut kept = Kept::default();
        let readers: Vec<Reader> = (0..CAPTURES_MAX).map(|_| kept.begin(ALL).unwrap().unwrap().1).collect();
        assert!(kept.begin(ALL).unwrap().is_none());
        drop(readers);
        assert!(kept.begin(ALL).unwrap().is_some());
    }

    #[test]
    fn nonsense_in_the_memory_is_an_error() {
        let (mut kept, mut captures) = (Kept::default(), Captures::default());
        let mut reader = begin(&mut kept, &mut captures, ALL);
        let room = captures.taps[0].ring.room().unwrap();
        let head = Head { at_ns: 1.into(), link: (LINKS as u32).into(), flags: 0.into() };
        room[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        captures.taps[0].ring.publish(HEAD_BYTES);
        assert!(reader.read(|_, _| panic!("of no link")).is_err());
        captures.taps[0].ring.publish(3);
        assert!(reader.read(|_, _| panic!("no head")).is_err());
    }
}
