//! One command: its states, and what of it is in the ledger.

use base::coded;
use base::ledger::{Bytes, Cell, Code, Coded, Journal, Layout, PAGE_SIZE, PageIndex, Pages};
use spec::nvme::SubmissionEntry;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::function::{DmaId, MediaId, MediaKind};
use crate::nvme::cells::{DATA_MAX, DATA_PAGES, EXTRA_PAGES, SLOTS};
use crate::nvme::subsystem::Namespace;

/// PRP entries of the largest command: one more than its pages, since the first may begin in the middle of a page.
pub(crate) const PRP_ENTRIES: usize = DATA_PAGES + 1;
/// Pieces of an SGL that are under way at a time.
pub(crate) const RUNS: usize = 8;
const SLOT_BITS: u32 = 9;
const PIECE_BITS: u32 = 6;
const _: () = assert!(SLOTS <= 1 << SLOT_BITS && PRP_ENTRIES <= 1 << PIECE_BITS);

/// Where a command stands.
///
/// ```text
///        (host memory)                     (PRP list in host memory)
///  Free ──> Fetch ──> Fetching ──> Decoded ──> List ──> Listing ─┐ (next page of the list: back to List)
///    │                   └> Arrived ─^  │ │                      │
///    └───────(controller memory)────────^ └──> Waiting <─────────┘
///            Held, Draining <───────────┤        │ pages for all of the data, or none yet
///                                       │        ├──> Load ──> Loading ──> Media   write, dataset management
///                                       │        ├──> Media ──> Store              read
///                                       │        └──> Store                        identify, log pages
///                                       └──> Media                                 flush, write zeroes
///  every one of these ──> Complete ──> Free
/// ```
///
/// Entries that arrive before their predecessors wait in `Arrived`: commands are decoded in the order of their queue.
/// `Paired` waits for the other half of a fused operation, `Parked` in front of `Media` while a namespace is somebody
/// else's, `Saving` in front of `Complete` until the owner keeps what has changed. An SGL is read piece by piece:
/// `Waiting`, `Media`, `Loading` and `Store` lead to `List`, and `Listing` back to `Load` or `Store`.
///
/// `Media` leads to itself while a command needs several pieces of work (each range of a dataset management, the flush
/// behind a write with FUA). What a reset or the deletion of its queue ends goes to `Free` at once, but from `Media` to
/// `Orphan`, which keeps its pages until the medium is done with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
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
    /// The entry is here, but not yet all those before it.
    Arrived,
    /// Waits for the other half of a fused operation.
    Paired,
    /// The medium has work, but the namespace is another command's alone.
    Parked,
    /// Done, when the owner keeps what has changed.
    Saving,
}

/// What moves a command from state to state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A submission queue entry in host memory is to be fetched.
    FetchEntry,
    /// A submission queue entry in the controller memory buffer was taken.
    TakeEntry,
    /// The last request of this state has been sent.
    Sent,
    /// The whole entry is here, and all those before it.
    Fetched,
    /// The whole entry is here.
    Early,
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
    /// The other half of a fused operation has to come first.
    Pair,
    /// The namespace has to become free first.
    Park,
    /// What has changed has to be kept first.
    Save,
}

coded!(
    State: Free, Fetch, Fetching, Decoded, List, Listing, Waiting, Load, Loading, Media, Store, Complete, Held,
    Draining, Orphan, Arrived, Paired, Parked, Saving,
);

/// What is next for a command: what the parts answer that know what it is about. The controller does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It has ended well, with this dword 0 of its completion.
    Complete(u32),
    /// The same, when the owner keeps the change of the drive that it has made.
    Keep(u32),
    /// So many bytes of data are to be moved for this work.
    Transfer(Work, u32),
    /// The data from the host are all here.
    Loaded,
    /// The data for the host are in the pages.
    Store,
    /// The medium has work.
    Media(MediaWork),
    /// This has happened to it.
    Step(Event),
    /// The list of the pages of its queue has been read.
    CreateQueue,
    /// It was the first half of a fused operation.
    SecondHalf,
    /// Something else has to come first.
    Wait,
}

impl Next {
    /// Everything that was written is to be durable.
    pub(crate) fn flush() -> Self {
        Self::Media(MediaWork::new(MediaKind::Flush, 0, 0))
    }
}

impl State {
    /// The state after `event`, or `None` where it cannot happen.
    pub(crate) const fn next(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::Free, E::FetchEntry) => S::Fetch,
            (S::Free, E::TakeEntry) => S::Decoded,
            (S::Free, E::NeedMedia) => S::Media,
            (S::Fetch, E::Sent) => S::Fetching,
            (S::Fetching, E::Early) => S::Arrived,
            (S::Fetching | S::Arrived, E::Fetched) => S::Decoded,
            (S::Decoded | S::Listing | S::Waiting | S::Loading | S::Media | S::Store, E::NeedList) => S::List,
            (S::List, E::Sent) => S::Listing,
            (S::Decoded | S::Listing, E::NeedPages) => S::Waiting,
            (S::Waiting | S::Listing | S::Loading, E::NeedData) => S::Load,
            (S::Load, E::Sent) => S::Loading,
            (S::Decoded, E::Pair) | (S::Loading, E::Pair) => S::Paired,
            (S::Paired, E::Fetched) => S::Decoded,
            (S::Decoded | S::Waiting | S::Loading | S::Media | S::Paired, E::Park) => S::Parked,
            (S::Decoded | S::Waiting | S::Loading | S::Media | S::Paired | S::Parked, E::NeedMedia) => {
                S::Media
            }
            (S::Waiting | S::Media | S::Listing, E::HaveData) => S::Store,
            (S::Decoded, E::Hold) => S::Held,
            (S::Decoded, E::Drain) => S::Draining,
            (S::Decoded | S::Loading | S::Media | S::Parked, E::Save) => S::Saving,
            (S::Store, E::Sent) => S::Complete,
            (S::Free | S::Fetch | S::Fetching | S::Arrived | S::Complete | S::Orphan, E::End) => return None,
            (_, E::End) => S::Complete,
            (S::Complete, E::Sent) => S::Free,
            (S::Media, E::Abandon) => S::Orphan,
            (S::Free | S::Orphan, E::Abandon) => return None,
            (_, E::Abandon) | (S::Orphan, E::Forget) => S::Free,
            _ => return None,
        })
    }

    /// Whether something is to be sent to the host.
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::Fetch | Self::List | Self::Load | Self::Store | Self::Complete)
    }

    /// Whether the entry is on its way or about to be.
    pub(crate) const fn fetches(self) -> bool {
        matches!(self, Self::Fetch | Self::Fetching)
    }

    /// Whether an Abort command ends it.
    pub(crate) const fn can_be_aborted(self) -> bool {
        matches!(self, Self::List | Self::Listing | Self::Waiting | Self::Load | Self::Loading | Self::Held)
    }
}

/// What a command has its data or the medium for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
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
    /// Compare, fused or not.
    Compare,
    /// Verify.
    Verify,
    /// Copy.
    Copy,
    /// An admin command with data from the host.
    Admin,
    /// Create I/O Submission Queue or Completion Queue with a list of pages.
    CreateQueue,
    /// Format NVM.
    Format,
    /// Namespace Management: delete.
    Delete,
    /// Device Self-test.
    SelfTest,
}

coded!(
    Work: Report, Read, Write, Flush, Zeroes, Deallocate, Shutdown, Compare, Verify, Copy, Admin, CreateQueue, Format,
    Delete, SelfTest,
);

/// Where a command came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Origin {
    /// Submission queue.
    pub(crate) sq: u16,
    /// Command identifier; known once the entry is decoded.
    pub(crate) cid: u16,
    /// The entry's index in its queue.
    pub(crate) index: u16,
    /// The completion queue of the submission queue.
    pub(crate) cq: u16,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Outcome {
    pub(crate) result: u32,
    pub(crate) status: u16,
    pub(crate) reserved: u16,
}

/// The piece of work that the medium has for a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct MediaWork {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) kind: Code<MediaKind>,
    pub(crate) reserved: u8,
    /// The first of the command's pages that it reads or writes.
    pub(crate) page: u16,
}

impl MediaWork {
    /// Work on the command's pages from the first on.
    pub(crate) fn new(kind: MediaKind, offset: u64, len: u32) -> Self {
        Self { offset, len, kind: kind.into(), reserved: 0, page: 0 }
    }
}

/// The blocks of a command on a range of blocks, as bytes of the medium, and whose they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The namespace whose work this is; 0 for the drive's.
    pub(crate) nsid: u32,
}

/// A piece of host memory in an SGL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) address: u64,
    pub(crate) len: u32,
    /// Where in the command's data it begins.
    pub(crate) start: u32,
}

/// How far an SGL has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct SglCursor {
    /// Bytes of the segment that have not been read.
    pub(crate) segment_left: u32,
    /// Descriptors read: an end to lists that go in circles.
    pub(crate) descriptors: u32,
    /// Bytes of data that runs have been made for.
    pub(crate) mapped: u32,
    /// Runs in the window.
    pub(crate) runs: u16,
    /// Whether this is the last segment.
    pub(crate) last: u16,
}

/// How far a command's data has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Progress {
    /// Bytes for which requests have been sent.
    pub(crate) sent: u32,
    /// Bytes that have arrived.
    pub(crate) arrived: u32,
}

/// What of the lists of a command is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Counts {
    /// Bytes of data.
    pub(crate) len: u32,
    /// Entries in `prps`.
    pub(crate) prps: u16,
    /// Pages in `pages`.
    pub(crate) pages: u16,
}

/// Where in the ranges of a Dataset Management command the medium is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct RangeCursor {
    pub(crate) range: u32,
    /// Blocks of the range that are done.
    pub(crate) blocks: u32,
}

/// One command. The byte fields are not logged: a slot freed in a step is not given out again in it, so while they are
/// filled nothing committed refers to them.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct CommandCells {
    pub(crate) state: Cell<Code<State>>,
    pub(crate) work: Cell<Code<Work>>,
    /// Whether it has made blocks readable that were marked uncorrectable.
    healed: Cell<u16>,
    /// How often the slot was taken. A part of the ids, so that late results are recognised. Survives every reset.
    pub(crate) uses: Cell<u32>,
    /// Where the command stands among others in the same state: from `next_order`.
    pub(crate) order: Cell<u64>,
    pub(crate) origin: Cell<Origin>,
    pub(crate) outcome: Cell<Outcome>,
    pub(crate) counts: Cell<Counts>,
    pub(crate) progress: Cell<Progress>,
    pub(crate) media: Cell<MediaWork>,
    pub(crate) target: Cell<Target>,
    pub(crate) ranges: Cell<RangeCursor>,
    /// Bus address of the part of the PRP list or SGL segment to be read; what a `Saving` command waits for.
    pub(crate) list: Cell<u64>,
    pub(crate) sgl: Cell<SglCursor>,
    /// What the namespace's was when the command was decoded.
    pub(crate) epoch: Cell<u32>,
    /// The slot of the other half of a fused operation, plus one.
    pub(crate) partner: Cell<u16>,
    /// Whether the namespace's work is, or is to be, this command's alone.
    pub(crate) exclusive: Cell<u16>,
    /// The pieces of host memory under way, of an SGL.
    pub(crate) runs: [Cell<Run>; RUNS],
    entry: Bytes<64>,
    /// PRP entries, or SGL descriptors as they come.
    prps: Bytes<{ PRP_ENTRIES * 8 }>,
    pages: Bytes<{ (DATA_PAGES + EXTRA_PAGES) * 2 }>,
}

impl CommandCells {
    pub(crate) fn state(&self) -> State {
        self.state.value()
    }

    pub(crate) fn work(&self) -> Work {
        self.work.value()
    }

    /// Whether the medium is to change something for it.
    pub(crate) fn is_store(&self) -> bool {
        let kind = self.media.get().kind.get();
        let stores = matches!(kind, MediaKind::Write | MediaKind::Zero { .. } | MediaKind::Trim);
        stores && matches!(self.state(), State::Media | State::Orphan)
    }

    /// Wants pages to read so many bytes of the medium into, piece by piece.
    pub(crate) fn want_pages(&self, journal: Journal<'_>, work: Work, len: u32) -> Next {
        self.work.set(journal, work.into());
        self.counts.set(journal, Counts { len: len.min(DATA_MAX), prps: 0, pages: 0 });
        Next::Step(Event::NeedPages)
    }

    /// Wants a namespace to be this command's alone.
    pub(crate) fn claim(&self, journal: Journal<'_>, work: Work, namespace: &Namespace) {
        self.work.set(journal, work.into());
        self.target.set(journal, Target { nsid: namespace.nsid, ..Target::default() });
        self.epoch.set(journal, namespace.epoch);
        self.exclusive.set(journal, 1);
    }

    /// Copies `bytes` to the command's pages, from `position` of its data on.
    pub(crate) fn write_data(&self, pages: Pages<'_>, position: usize, bytes: &[u8]) {
        let (mut position, mut rest) = (position, bytes);
        while !rest.is_empty() {
            let offset = position % PAGE_SIZE;
            let (now, later) = rest.split_at(rest.len().min(PAGE_SIZE - offset));
            pages.write(self.page(position / PAGE_SIZE), offset, now);
            (position, rest) = (position + now.len(), later);
        }
    }

    pub(crate) fn entry(&self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::default();
        self.entry.read(0, entry.as_mut_bytes());
        entry
    }

    pub(crate) fn write_entry(&self, journal: Journal<'_>, offset: usize, bytes: &[u8]) {
        self.entry.write(journal, offset, bytes);
    }

    pub(crate) fn prp(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        self.prps.read(index * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Reads the list's bytes, for descriptors.
    pub(crate) fn read_prps(&self, offset: usize, out: &mut [u8]) {
        self.prps.read(offset, out);
    }

    /// Whether the list it reads is an SGL.
    pub(crate) fn reads_descriptors(&self) -> bool {
        self.is_sgl() && self.work() != Work::CreateQueue
    }

    /// Bytes of data whose place in host memory is known.
    pub(crate) fn mapped(&self) -> u32 {
        if self.is_sgl() { self.sgl.get().mapped } else { self.counts.get().len }
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.healed.get() != 0
    }

    pub(crate) fn set_healed(&self, journal: Journal<'_>) {
        self.healed.set(journal, 1);
    }

    pub(crate) fn clear_healed(&self, journal: Journal<'_>) {
        self.healed.set(journal, 0);
    }

    pub(crate) fn is_sgl(&self) -> bool {
        let mut flags = [0];
        self.entry.read(1, &mut flags);
        flags[0] >> 6 != 0
    }

    /// Writes `bytes` of PRP entries, beginning `offset` bytes into the first.
    pub(crate) fn write_prps(&self, journal: Journal<'_>, offset: usize, bytes: &[u8]) {
        self.prps.write(journal, offset, bytes);
    }

    pub(crate) fn page(&self, index: usize) -> PageIndex {
        let mut bytes = [0; 2];
        self.pages.read(index * 2, &mut bytes);
        PageIndex(u16::from_le_bytes(bytes))
    }

    pub(crate) fn write_page(&self, journal: Journal<'_>, index: usize, page: PageIndex) {
        self.pages.write(journal, index * 2, &page.0.to_le_bytes());
    }
}

/// The name of a DMA read: slot, which piece of the data, use count.
pub(crate) fn dma_id(slot: u16, piece: usize, uses: u32) -> DmaId {
    DmaId(u32::from(slot) | (piece as u32) << SLOT_BITS | uses << (SLOT_BITS + PIECE_BITS))
}

/// The slot of `id`, whatever its use count.
pub(crate) fn raw_slot(id: DmaId) -> u16 {
    (id.0 & ((1 << SLOT_BITS) - 1)) as u16
}

/// The slot and piece of `id`, if its use count is still the slot's.
pub(crate) fn dma_target(id: DmaId, uses: impl FnOnce(u16) -> u32) -> Option<(u16, usize)> {
    let slot = (id.0 & ((1 << SLOT_BITS) - 1)) as u16;
    let piece = (id.0 >> SLOT_BITS & ((1 << PIECE_BITS) - 1)) as usize;
    (usize::from(slot) < SLOTS && dma_id(slot, piece, uses(slot)) == id).then_some((slot, piece))
}

/// The name of work for the medium: slot and use count.
pub(crate) fn media_id(slot: u16, uses: u32) -> MediaId {
    MediaId(u32::from(slot) | uses << SLOT_BITS)
}

/// The slot of `id`, if its use count is still the slot's.
pub(crate) fn media_target(id: MediaId, uses: impl FnOnce(u16) -> u32) -> Option<u16> {
    let slot = (id.0 & ((1 << SLOT_BITS) - 1)) as u16;
    (usize::from(slot) < SLOTS && media_id(slot, uses(slot)) == id).then_some(slot)
}

impl Coded for MediaKind {
    const ALL: &'static [Self] = &[
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::Zero { deallocate: false },
        Self::Zero { deallocate: true },
    ];
    const NAMES: &'static [&'static str] = &["Read", "Write", "Flush", "Trim", "Zero", "Deallocate"];

    fn code(self) -> u8 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 2,
            Self::Trim => 3,
            Self::Zero { deallocate: false } => 4,
            Self::Zero { deallocate: true } => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_codes_and_memory_of_zeroes_is_free() {
        for (code, kind) in MediaKind::ALL.iter().enumerate() {
            assert_eq!(usize::from(kind.code()), code);
        }
        assert_eq!(Code::<State>::default().get(), State::Free);
    }

    /// The whole table; a changed transition has to be changed here too.
    #[test]
    fn transitions() {
        use Event::*;
        let events = [
            FetchEntry, TakeEntry, Sent, Fetched, NeedList, NeedPages, NeedData, NeedMedia, HaveData, Hold,
            Drain, End, Abandon, Forget, Early, Pair, Park, Save,
        ];
        let mut table = String::new();
        for &state in State::ALL {
            let next = |event: &Event| state.next(*event).map(|next| format!(" {event:?}>{next:?}"));
            table += &format!("{state:?}:{}\n", events.iter().filter_map(next).collect::<String>());
        }
        assert_eq!(table, TABLE);
    }

    const TABLE: &str = "\
Free: FetchEntry>Fetch TakeEntry>Decoded NeedMedia>Media
Fetch: Sent>Fetching Abandon>Free
Fetching: Fetched>Decoded Abandon>Free Early>Arrived
Decoded: NeedList>List NeedPages>Waiting NeedMedia>Media Hold>Held Drain>Draining End>Complete Abandon>Free \
    Pair>Paired Park>Parked Save>Saving
List: Sent>Listing End>Complete Abandon>Free
Listing: NeedList>List NeedPages>Waiting NeedData>Load HaveData>Store End>Complete Abandon>Free
Waiting: NeedList>List NeedData>Load NeedMedia>Media HaveData>Store End>Complete Abandon>Free Park>Parked
Load: Sent>Loading End>Complete Abandon>Free
Loading: NeedList>List NeedData>Load NeedMedia>Media End>Complete Abandon>Free Pair>Paired Park>Parked Save>Saving
Media: NeedList>List NeedMedia>Media HaveData>Store End>Complete Abandon>Orphan Park>Parked Save>Saving
Store: Sent>Complete NeedList>List End>Complete Abandon>Free
Complete: Sent>Free Abandon>Free
Held: End>Complete Abandon>Free
Draining: End>Complete Abandon>Free
Orphan: Forget>Free
Arrived: Fetched>Decoded Abandon>Free
Paired: Fetched>Decoded NeedMedia>Media End>Complete Abandon>Free Park>Parked
Parked: NeedMedia>Media End>Complete Abandon>Free Save>Saving
Saving: End>Complete Abandon>Free
";

    #[test]
    fn whatever_a_command_is_doing_it_can_be_abandoned() {
        for &state in State::ALL {
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
