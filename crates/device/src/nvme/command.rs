use base::ledger::{Bytes, Cell, PageIndex};
use spec::nvme::SubmissionEntry;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cells::{DATA_PAGES, SLOTS};
use crate::function::{DmaId, MediaId, MediaKind};

/// PRP entries of the largest command: one more than its pages, since the first may begin in the middle of a page.
pub(super) const PRP_ENTRIES: usize = DATA_PAGES + 1;
const SLOT_BITS: u32 = 9;
const PIECE_BITS: u32 = 6;
const _: () = assert!(SLOTS <= 1 << SLOT_BITS && PRP_ENTRIES <= 1 << PIECE_BITS);

/// Where a command stands.
///
/// ```text
///        (host memory)                     (PRP list in host memory)
///  Free ──> Fetch ──> Fetching ──> Decoded ──> List ──> Listing ─┐ (next page of the list: back to List)
///    └───────(controller memory)──────^ │ │                      │
///                                       │ └──> Waiting <─────────┘
///            Held, Draining <───────────┤        │ pages for all of the data, or none yet
///                                       │        ├──> Load ──> Loading ──> Media   write, dataset management
///                                       │        ├──> Media ──> Store              read
///                                       │        └──> Store                        identify, log pages
///                                       └──> Media                                 flush, write zeroes
///  every one of these ──> Complete ──> Free
/// ```
///
/// `Media` leads to itself while a command needs several pieces of work (each range of a dataset management, the flush behind
/// a write with FUA). What a reset or the deletion of its queue ends goes to `Free` at once, but from `Media` to `Orphan`,
/// which keeps its pages until the medium is done with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum State {
    /// Not in use.
    Free,
    /// The read of the submission queue entry is to be sent.
    Fetch,
    /// The submission queue entry is on its way.
    Fetching,
    /// The entry is here; decided upon within the same verb.
    Decoded,
    /// The read of a part of the PRP list is to be sent.
    List,
    /// A part of the PRP list is on its way.
    Listing,
    /// Waits for pages.
    Waiting,
    /// Reads of the data are to be sent.
    Load,
    /// All reads of the data have been sent.
    Loading,
    /// The medium works on it, or will.
    Media,
    /// Writes of the data are to be sent.
    Store,
    /// The completion queue entry is to be sent, when there is room.
    Complete,
    /// An Asynchronous Event Request without an event.
    Held,
    /// A deletion of a submission queue that waits for the queue's orphans.
    Draining,
    /// Nobody waits for it, but the medium works on it or will.
    Orphan,
}

/// What moves a command from state to state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A submission queue entry in host memory is to be fetched.
    FetchEntry,
    /// A submission queue entry in the controller memory buffer was taken.
    TakeEntry,
    /// The last request of this state has been sent.
    Sent,
    /// The whole entry is here.
    Fetched,
    /// A part of the PRP list has to be read.
    NeedList,
    /// Every PRP entry is known; pages are next.
    NeedPages,
    /// The host's data is to be read.
    NeedData,
    /// The medium has (more) work.
    NeedMedia,
    /// The data for the host is in the pages.
    HaveData,
    /// An event has to come first.
    Hold,
    /// The medium has to be done with the queue's commands first.
    Drain,
    /// The command has ended, well or not.
    End,
    /// Nobody waits for the command any more.
    Abandon,
    /// The medium has ended work that nobody waits for.
    Forget,
}

impl State {
    pub(super) const ALL: [Self; 15] = [
        Self::Free,
        Self::Fetch,
        Self::Fetching,
        Self::Decoded,
        Self::List,
        Self::Listing,
        Self::Waiting,
        Self::Load,
        Self::Loading,
        Self::Media,
        Self::Store,
        Self::Complete,
        Self::Held,
        Self::Draining,
        Self::Orphan,
    ];

    /// The state after `event`, or `None` where it cannot happen.
    pub(super) const fn next(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::Free, E::FetchEntry) => S::Fetch,
            (S::Free, E::TakeEntry) => S::Decoded,
            (S::Free, E::NeedMedia) => S::Media,
            (S::Fetch, E::Sent) => S::Fetching,
            (S::Fetching, E::Fetched) => S::Decoded,
            (S::Decoded | S::Listing, E::NeedList) => S::List,
            (S::List, E::Sent) => S::Listing,
            (S::Decoded | S::Listing, E::NeedPages) => S::Waiting,
            (S::Waiting, E::NeedData) => S::Load,
            (S::Load, E::Sent) => S::Loading,
            (S::Decoded | S::Waiting | S::Loading | S::Media, E::NeedMedia) => S::Media,
            (S::Waiting | S::Media, E::HaveData) => S::Store,
            (S::Decoded, E::Hold) => S::Held,
            (S::Decoded, E::Drain) => S::Draining,
            (S::Store, E::Sent) => S::Complete,
            (S::Free | S::Fetch | S::Fetching | S::Store | S::Complete | S::Orphan, E::End) => return None,
            (_, E::End) => S::Complete,
            (S::Complete, E::Sent) => S::Free,
            (S::Media, E::Abandon) => S::Orphan,
            (S::Free | S::Orphan, E::Abandon) => return None,
            (_, E::Abandon) | (S::Orphan, E::Forget) => S::Free,
            _ => return None,
        })
    }

    /// The state of a stored code; codes are only ever stored from a `State`.
    pub(super) fn from_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Free)
    }

    /// Whether something is to be sent to the host.
    pub(super) const fn sends(self) -> bool {
        matches!(self, Self::Fetch | Self::List | Self::Load | Self::Store | Self::Complete)
    }

    /// Whether an Abort command ends it.
    pub(super) const fn can_be_aborted(self) -> bool {
        matches!(self, Self::List | Self::Listing | Self::Waiting | Self::Load | Self::Loading | Self::Held)
    }
}

/// What a command has its data or the medium for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Work {
    /// The controller makes the data: identify and log pages.
    Report,
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Write Zeroes.
    Zeroes,
    /// Dataset Management.
    Deallocate,
    /// The flush of a shutdown.
    Shutdown,
}

impl Work {
    const ALL: [Self; 7] =
        [Self::Report, Self::Read, Self::Write, Self::Flush, Self::Zeroes, Self::Deallocate, Self::Shutdown];

    pub(super) fn from_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Report)
    }
}

/// Where a command came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Origin {
    /// Submission queue.
    pub(super) sq: u16,
    /// Command identifier; known once the entry is decoded.
    pub(super) cid: u16,
    /// The entry's index in its queue.
    pub(super) index: u16,
    /// The completion queue of the submission queue.
    pub(super) cq: u16,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Outcome {
    pub(super) result: u32,
    pub(super) status: u16,
    pub(super) reserved: u16,
}

/// The piece of work that the medium has for a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct MediaWork {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) kind: u32,
}

/// How far a command's data has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Progress {
    /// Bytes for which requests have been sent.
    pub(super) sent: u32,
    /// Bytes that have arrived.
    pub(super) arrived: u32,
}

/// What of the lists of a command is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Counts {
    /// Bytes of data.
    pub(super) len: u32,
    /// Entries in `prps`.
    pub(super) prps: u16,
    /// Pages in `pages`.
    pub(super) pages: u16,
}

/// Where in the ranges of a Dataset Management command the medium is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct RangeCursor {
    pub(super) range: u32,
    /// Blocks of the range that are done.
    pub(super) blocks: u32,
}

/// One command. The byte fields are not logged: a slot freed in a step is not given out again in it, so while they are
/// filled nothing committed refers to them.
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct CommandCells {
    pub(super) state: Cell<u8>,
    pub(super) work: Cell<u8>,
    reserved: Cell<u16>,
    /// How often the slot was taken. A part of the ids, so that late results are recognised. Survives every reset.
    pub(super) uses: Cell<u32>,
    /// Where the command stands among others in the same state: from `next_order`.
    pub(super) order: Cell<u64>,
    pub(super) origin: Cell<Origin>,
    pub(super) outcome: Cell<Outcome>,
    pub(super) counts: Cell<Counts>,
    pub(super) progress: Cell<Progress>,
    pub(super) media: Cell<MediaWork>,
    pub(super) ranges: Cell<RangeCursor>,
    /// Bus address of the part of the PRP list to be read.
    pub(super) list: Cell<u64>,
    entry: Bytes<64>,
    prps: Bytes<{ PRP_ENTRIES * 8 }>,
    pages: Bytes<{ DATA_PAGES * 2 }>,
}

impl CommandCells {
    pub(super) fn state(&self) -> State {
        State::from_code(self.state.get())
    }

    pub(super) fn work(&self) -> Work {
        Work::from_code(self.work.get())
    }

    pub(super) fn entry(&self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::default();
        self.entry.read(0, entry.as_mut_bytes());
        entry
    }

    pub(super) fn write_entry(&self, journal: base::ledger::Journal<'_>, offset: usize, bytes: &[u8]) {
        self.entry.write(journal, offset, bytes);
    }

    pub(super) fn prp(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        self.prps.read(index * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Writes `bytes` of PRP entries, beginning `offset` bytes into the first.
    pub(super) fn write_prps(&self, journal: base::ledger::Journal<'_>, offset: usize, bytes: &[u8]) {
        self.prps.write(journal, offset, bytes);
    }

    pub(super) fn page(&self, index: usize) -> PageIndex {
        let mut bytes = [0; 2];
        self.pages.read(index * 2, &mut bytes);
        PageIndex(u16::from_le_bytes(bytes))
    }

    pub(super) fn write_page(&self, journal: base::ledger::Journal<'_>, index: usize, page: PageIndex) {
        self.pages.write(journal, index * 2, &page.0.to_le_bytes());
    }
}

/// The name of a DMA read: slot, which piece of the data, use count.
pub(super) fn dma_id(slot: u16, piece: usize, uses: u32) -> DmaId {
    DmaId(u32::from(slot) | (piece as u32) << SLOT_BITS | uses << (SLOT_BITS + PIECE_BITS))
}

/// The slot and piece of `id`, if its use count is still the slot's.
pub(super) fn dma_target(id: DmaId, uses: impl FnOnce(u16) -> u32) -> Option<(u16, usize)> {
    let slot = (id.0 & ((1 << SLOT_BITS) - 1)) as u16;
    let piece = (id.0 >> SLOT_BITS & ((1 << PIECE_BITS) - 1)) as usize;
    (usize::from(slot) < SLOTS && dma_id(slot, piece, uses(slot)) == id).then_some((slot, piece))
}

/// The name of work for the medium: slot and use count.
pub(super) fn media_id(slot: u16, uses: u32) -> MediaId {
    MediaId(u32::from(slot) | uses << SLOT_BITS)
}

/// The slot of `id`, if its use count is still the slot's.
pub(super) fn media_target(id: MediaId, uses: impl FnOnce(u16) -> u32) -> Option<u16> {
    let slot = (id.0 & ((1 << SLOT_BITS) - 1)) as u16;
    (usize::from(slot) < SLOTS && media_id(slot, uses(slot)) == id).then_some(slot)
}

/// The code of `kind` in [`MediaWork`].
pub(super) const fn media_code(kind: MediaKind) -> u32 {
    match kind {
        MediaKind::Read => 0,
        MediaKind::Write => 1,
        MediaKind::Flush => 2,
        MediaKind::Trim => 3,
        MediaKind::Zero => 4,
    }
}

/// The kind of a stored code.
pub(super) const fn media_kind(code: u32) -> MediaKind {
    match code {
        0 => MediaKind::Read,
        1 => MediaKind::Write,
        3 => MediaKind::Trim,
        4 => MediaKind::Zero,
        _ => MediaKind::Flush,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_can_be_stored_and_only_free_is_zero() {
        for (code, state) in State::ALL.iter().enumerate() {
            assert_eq!((*state as usize, State::from_code(code as u8)), (code, *state));
        }
        assert_eq!(State::from_code(0), State::Free);
        assert_eq!(State::from_code(200), State::Free);
    }

    /// The whole table; a changed transition has to be changed here too.
    #[test]
    fn transitions() {
        use Event::*;
        let events = [
            FetchEntry, TakeEntry, Sent, Fetched, NeedList, NeedPages, NeedData, NeedMedia, HaveData, Hold,
            Drain, End, Abandon, Forget,
        ];
        let mut table = String::new();
        for state in State::ALL {
            let next = |event: &Event| state.next(*event).map(|next| format!(" {event:?}>{next:?}"));
            table += &format!("{state:?}:{}\n", events.iter().filter_map(next).collect::<String>());
        }
        assert_eq!(table, TABLE);
    }

    const TABLE: &str = "\
Free: FetchEntry>Fetch TakeEntry>Decoded NeedMedia>Media
Fetch: Sent>Fetching Abandon>Free
Fetching: Fetched>Decoded Abandon>Free
Decoded: NeedList>List NeedPages>Waiting NeedMedia>Media Hold>Held Drain>Draining End>Complete Abandon>Free
List: Sent>Listing End>Complete Abandon>Free
Listing: NeedList>List NeedPages>Waiting End>Complete Abandon>Free
Waiting: NeedData>Load NeedMedia>Media HaveData>Store End>Complete Abandon>Free
Load: Sent>Loading End>Complete Abandon>Free
Loading: NeedMedia>Media End>Complete Abandon>Free
Media: NeedMedia>Media HaveData>Store End>Complete Abandon>Orphan
Store: Sent>Complete Abandon>Free
Complete: Sent>Free Abandon>Free
Held: End>Complete Abandon>Free
Draining: End>Complete Abandon>Free
Orphan: Forget>Free
";

    #[test]
    fn whatever_a_command_is_doing_it_can_be_abandoned() {
        for state in State::ALL {
            let next = state.next(Event::Abandon);
            match state {
                State::Free | State::Orphan => assert_eq!(next, None),
                State::Media => assert_eq!(next, Some(State::Orphan)),
                _ => assert_eq!(next, Some(State::Free)),
            }
        }
    }

    #[test]
    fn ids_of_an_earlier_use_are_not_recognised() {
        let id = dma_id(256, 32, 7);
        assert_eq!(dma_target(id, |_| 7), Some((256, 32)));
        assert_eq!(dma_target(id, |_| 8), None);
        assert_eq!(dma_target(DmaId(u32::MAX), |_| u32::MAX), None);
        assert_eq!(media_target(media_id(3, 9), |_| 9), Some(3));
        assert_eq!(media_target(media_id(3, 9), |_| 10), None);
    }
}
