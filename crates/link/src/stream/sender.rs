use base::ids::RailId;
use base::ledger::{Bytes, Cell, Code, Counter, Fifo, Journal, Layout, PageIndex, Pages, SlotCells, Slots};
use base::{INLINE_MAX, PageSlice, Payload, Rule, coded};
use pcie::spec::{HEADER_BYTES_MAX, HEADER_BYTES_MIN};
use pcie::{Completion, EncodedHeader, FlowClass, Header};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Words of the map of TLP slots.
const WORDS: usize = 32;
/// TLPs a sender holds, queued and in replay together.
pub(crate) const SLOTS: usize = WORDS * 64;
/// How many of them each class may hold, so that none starves another: posted, non-posted, completion.
const RESERVE: [usize; 3] = [1024, 512, 512];

/// Credits of data that the largest payload takes, in units of 16 bytes.
pub(crate) const PAYLOAD_CREDITS: u64 = 4096 / 16;

const _: () = assert!(RESERVE[0] + RESERVE[1] + RESERVE[2] == SLOTS);

/// The storage of a [`Sender`]. All zeroes: a stream that has not sent.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct SenderCells {
    slots: SlotCells<WORDS>,
    tlps: [TlpCells; SLOTS],
    queues: [Fifo<u16, 1024>; 3],
    /// The slot of each number between `committed` and `next`.
    replay: [Cell<u16>; SLOTS],
    /// The number that the next TLP gets.
    next: Cell<u64>,
    /// All TLPs below are in their final place at the peer.
    committed: Cell<u64>,
    /// TLPs queued since the stream began.
    queued: Cell<u64>,
    held: [Cell<u32>; 3],
    used: Cell<Credits>,
    granted: Cell<Credits>,
    /// Completions for which there was no room.
    unplaced: Counter,
}

/// A TLP in a slot. Header and inline payload are not logged: a slot is written only while it is free.
#[derive(FromBytes, Layout)]
#[repr(C)]
struct TlpCells {
    header: Bytes<16>,
    inline: Bytes<INLINE_MAX>,
    meta: Cell<Meta>,
}

#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Meta {
    /// Place among all TLPs queued: what the ordering rules compare.
    order: u64,
    page: u16,
    offset: u16,
    len: u16,
    header_len: u8,
    carries: Code<Carries>,
    class: u8,
    /// Whether this completion ends its request.
    ends_request: u8,
    data_credits: u16,
    reserved: u32,
}

/// Where the payload of a TLP lies.
#[derive(Clone, Copy, PartialEq)]
enum Carries {
    Nothing,
    Inline,
    Page,
}
coded!(Carries: Nothing, Inline, Page);

/// Totals of credits since a stream began; completions need none, because their tag has reserved their space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct Credits {
    pub(crate) posted_headers: u64,
    /// In units of 16 bytes (PCIe 6.0 §2.6.1).
    pub(crate) posted_data: u64,
    pub(crate) non_posted_headers: u64,
}

/// What posted requests may still be queued that get their numbers at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostedCredit {
    headers: u64,
    /// In units of 16 bytes.
    data: u64,
}

impl PostedCredit {
    /// Whether there is credit for one more, of any size.
    pub fn suffices(&self) -> bool {
        self.headers > 0 && self.data >= PAYLOAD_CREDITS
    }

    /// One was queued. There was credit for it.
    pub fn spend(&mut self, header: &Header) {
        self.headers -= 1;
        self.data -= u64::from(header.data_credits());
    }
}

/// The sending half of a stream: three queues, the numbers, and the replay buffer.
///
/// A TLP waits in the queue of its class until its receiver has granted credit and the ordering rules let it go; then
/// it gets its number, and can be sent any number of times until the peer has committed it.
pub struct Sender<'m> {
    cells: &'m SenderCells,
    slots: Slots<'m, WORDS>,
    pages: Pages<'m>,
    journal: Journal<'m>,
}

impl<'m> Sender<'m> {
    /// The sender over `cells`; payload pages belong to `pages`.
    pub fn new(cells: &'m SenderCells, pages: Pages<'m>, journal: Journal<'m>) -> Self {
        Self { cells, slots: Slots::new(&cells.slots, journal), pages, journal }
    }

    pub(crate) fn may_go_on(&self) -> bool {
        self.journal.has_room()
    }

    /// How many TLPs of `class` can still be queued in this step.
    pub fn room(&self, class: FlowClass) -> usize {
        // What this step has freed is room only after the commit.
        let reserved = RESERVE[class.index()] - self.cells.held[class.index()].get() as usize;
        if reserved == 0 { 0 } else { reserved.min(self.slots.available()) }
    }

    /// Whether a TLP of `class` can be queued in this step: what is asked before each, so it looks no further than it
    /// must.
    #[inline]
    pub fn has_room(&self, class: FlowClass) -> bool {
        (self.cells.held[class.index()].get() as usize) < RESERVE[class.index()] && self.slots.can_alloc()
    }

    /// What credit there is for posted requests that nothing has been queued for. Whoever queues no more of them than
    /// that keeps its completions from waiting for a peer that holds credit back.
    pub fn posted_credit(&self) -> PostedCredit {
        if !self.journal.rule(Rule::CreditBeforeNumber) {
            return PostedCredit { headers: u64::MAX, data: u64::MAX };
        }
        if !self.cells.queues[FlowClass::Posted.index()].is_empty() {
            return PostedCredit { headers: 0, data: 0 };
        }
        let (used, granted) = (self.cells.used.get(), self.cells.granted.get());
        PostedCredit {
            headers: granted.posted_headers.saturating_sub(used.posted_headers),
            data: granted.posted_data.saturating_sub(used.posted_data),
        }
    }

    /// Whether there is no room now, but there will be after the commit.
    pub(crate) fn has_room_after_commit(&self) -> bool {
        let held: usize = self.cells.held.iter().map(|held| held.get() as usize).sum();
        !self.slots.can_alloc() && held < SLOTS
    }

    /// Queues a completion. There is room, because its request came within the credit that was advertised, and that
    /// reserves it; should there be none, the completion is counted and dropped, and its requester is left to its
    /// time-out.
    pub fn push_completion(&mut self, completion: Completion, payload: Payload, ends_request: bool) {
        if self.has_room(FlowClass::Completion) {
            self.push(&Header::Completion(completion), payload, ends_request);
        } else {
            self.cells.unplaced.add(1);
        }
    }

    /// Completions that were dropped for want of room: none, unless something is wrong here.
    pub fn unplaced(&self) -> u64 {
        self.cells.unplaced.get()
    }

    /// Queues a TLP. `ends_request` marks the last completion of a request.
    ///
    /// # Panics
    /// Without `room`, which callers ask for first.
    pub fn push(&mut self, header: &Header, payload: Payload, ends_request: bool) {
        let class = header.class();
        assert!(self.has_room(class), "a sender is asked for room before a push");
        let slot = self.slots.alloc().expect("room means that a slot is free");
        let encoded = header.encode();
        let tlp = &self.cells.tlps[slot as usize];
        tlp.header.write(self.journal, 0, encoded.as_bytes());
        let (carries, page, offset, len) = self.keep(tlp, payload);
        assert_eq!(len as usize, header.payload_len(), "a TLP carries what its header says");
        let order = self.cells.queued.update(self.journal, |queued| queued + 1);
        let meta = Meta {
            order,
            page,
            offset,
            len,
            header_len: encoded.as_bytes().len() as u8,
            carries: carries.into(),
            class: class.index() as u8,
            ends_request: ends_request.into(),
            data_credits: header.data_credits(),
            reserved: 0,
        };
        tlp.meta.set(self.journal, meta);
        self.cells.queues[class.index()].push(self.journal, slot);
        self.cells.held[class.index()].update(self.journal, |held| held + 1);
    }

    fn keep(&self, tlp: &TlpCells, payload: Payload) -> (Carries, u16, u16, u16) {
        match payload {
            Payload::None => (Carries::Nothing, 0, 0, 0),
            Payload::Inline(bytes) => {
                tlp.inline.write(self.journal, 0, bytes.as_slice());
                (Carries::Inline, 0, 0, bytes.as_slice().len() as u16)
            }
            Payload::Page(PageSlice { page, offset, len }) => {
                if self.journal.rule(Rule::KeepReplayBytes) {
                    self.pages.retain(page);
                }
                (Carries::Page, page.0, offset, len)
            }
        }
    }

    /// Numbers whatever may go now. Returns how many TLPs that were.
    pub fn assign_numbers(&mut self) -> u64 {
        let before = self.cells.next.get();
        while let Some(class) = self.next_class() {
            let slot = self.cells.queues[class]
                .pop(self.journal)
                .expect("a class is chosen by the head of its queue");
            let meta = self.meta(slot);
            self.cells.used.update(self.journal, |used| used.plus_meta(&meta));
            let number = self.cells.next.get();
            self.cells.replay[number as usize % SLOTS].set(self.journal, slot);
            self.cells.next.set(self.journal, number + 1);
        }
        self.cells.next.get() - before
    }

    /// The class whose head may be numbered next (PCIe 6.0 §2.4.1): nothing passes an earlier posted write, posted
    /// writes pass everything, completions pass blocked reads.
    fn next_class(&self) -> Option<usize> {
        const POSTED: usize = FlowClass::Posted.index();
        let head = |class: usize| self.cells.queues[class].front().map(|slot| self.meta(slot));
        let posted = head(POSTED);
        if posted.is_some_and(|meta| self.has_credit(&meta)) {
            return Some(POSTED);
        }
        let waits_since = posted.map_or(u64::MAX, |meta| meta.order);
        [FlowClass::Completion, FlowClass::NonPosted].into_iter().find_map(|class| {
            let meta = head(class.index())?;
            let behind_posted = meta.order > waits_since
                && (class != FlowClass::Completion || self.journal.rule(Rule::CompletionsBehindPosted));
            (!behind_posted && self.has_credit(&meta)).then_some(class.index())
        })
    }

    fn has_credit(&self, meta: &Meta) -> bool {
        !self.journal.rule(Rule::CreditBeforeNumber)
            || self.cells.used.get().plus_meta(meta).within(&self.cells.granted.get())
    }

    /// The peer has granted so much in all. Older totals change nothing.
    pub(crate) fn handle_credits(&mut self, granted: Credits) {
        self.cells.granted.update(self.journal, |old| Credits {
            posted_headers: old.posted_headers.max(granted.posted_headers),
            posted_data: old.posted_data.max(granted.posted_data),
            non_posted_headers: old.non_posted_headers.max(granted.non_posted_headers),
        });
    }

    /// The peer has committed everything below `committed`: frees it. Returns how many requests their completions have
    /// ended.
    pub(crate) fn handle_committed(&mut self, committed: u64) -> u64 {
        let mut ended = 0;
        // A peer cannot commit what was never numbered.
        let end = committed.min(self.cells.next.get());
        for number in self.cells.committed.get()..end {
            // A number of ours has a slot until it is committed.
            let slot = self.cells.replay[number as usize % SLOTS].get();
            let meta = self.meta(slot);
            ended += u64::from(meta.ends_request);
            self.release(slot, &meta);
        }
        if end > self.cells.committed.get() {
            self.cells.committed.set(self.journal, end);
        }
        ended
    }

    fn release(&mut self, slot: u16, meta: &Meta) {
        if meta.carries == Carries::Page && self.journal.rule(Rule::KeepReplayBytes) {
            self.pages.release(PageIndex(meta.page));
        }
        self.cells.held[meta.class as usize].update(self.journal, |held| held - 1);
        self.slots.free(slot);
    }

    /// The stream begins anew: everything queued and in replay is dropped, all totals are zero.
    pub(crate) fn reset(&mut self) {
        for class in 0..3 {
            while let Some(slot) = self.cells.queues[class].pop(self.journal) {
                let meta = self.meta(slot);
                self.release(slot, &meta);
            }
        }
        self.handle_committed(u64::MAX);
        self.cells.next.set(self.journal, 0);
        self.cells.committed.set(self.journal, 0);
        self.cells.queued.set(self.journal, 0);
        self.cells.used.set(self.journal, Credits::default());
        self.cells.granted.set(self.journal, Credits::default());
    }

    /// The number that the next TLP gets.
    pub fn next(&self) -> u64 {
        self.cells.next.get()
    }

    /// All TLPs below this number have been committed by the peer.
    pub fn committed(&self) -> u64 {
        self.cells.committed.get()
    }

    /// Whether a TLP waits for credit.
    pub fn is_blocked(&self) -> bool {
        self.cells.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Whether nothing is queued or in replay.
    pub fn is_empty(&self) -> bool {
        !self.is_blocked() && self.next() == self.committed()
    }

    /// Bytes of TLPs in the replay buffer.
    pub fn replay_bytes(&self) -> u64 {
        (self.committed()..self.next()).map(|number| self.tlp_len(number) as u64).sum()
    }

    /// Bytes of numbered TLP `number`, which lies in the replay buffer.
    #[inline]
    pub fn tlp_len(&self, number: u64) -> usize {
        let meta = self.meta(self.slot_of(number));
        meta.header_len as usize + meta.len as usize
    }

    /// No less than it has when its address leads over `rail`: one below 4 GiB is then longer.
    #[inline]
    pub(crate) fn tlp_len_over(&self, number: u64, rail: RailId) -> usize {
        self.tlp_len(number) + if rail == RailId::default() { 0 } else { HEADER_BYTES_MAX - HEADER_BYTES_MIN }
    }

    /// Writes numbered TLP `number` to the start of `out`, which has room for it; the address of a request leads over
    /// `rail` of its receiver. A digest would have to be made behind that; TLPs that are queued here have none.
    #[inline]
    pub fn write_tlp(&self, number: u64, rail: RailId, out: &mut [u8]) -> usize {
        let slot = self.slot_of(number);
        let (tlp, meta) = (&self.cells.tlps[slot as usize], self.meta(slot));
        let mut bytes = [0; HEADER_BYTES_MAX];
        tlp.header.read(0, &mut bytes);
        let len = pcie::replace_address(&mut bytes, |address| rail.in_address(address));
        let (header, rest) = out.split_at_mut(len.unwrap_or(meta.header_len.into()));
        header.copy_from_slice(&bytes[..header.len()]);
        let payload = &mut rest[..meta.len as usize];
        match meta.carries.get() {
            Carries::Inline => tlp.inline.read(0, payload),
            Carries::Page => self.pages.read(PageIndex(meta.page), meta.offset as usize, payload),
            Carries::Nothing => {}
        }
        header.len() + payload.len()
    }

    /// Credits used and credits granted, for checkers: posted headers, posted data (16-byte units), non-posted headers.
    pub fn credits(&self) -> ([u64; 3], [u64; 3]) {
        (self.cells.used.get().totals(), self.cells.granted.get().totals())
    }

    /// The class of numbered TLP `number`, which lies in the replay buffer, and its place among all queued: for
    /// checkers.
    pub fn order_of(&self, number: u64) -> (FlowClass, u64) {
        let meta = self.meta(self.slot_of(number));
        let class = [FlowClass::Posted, FlowClass::NonPosted, FlowClass::Completion]
            .into_iter()
            .find(|class| class.index() == meta.class as usize)
            .expect("only classes are stored");
        (class, meta.order)
    }

    /// The first TLP of `class` that waits for its number, for checkers: its place among all queued, and whether there
    /// is credit for it.
    pub fn first_waiting(&self, class: FlowClass) -> Option<(u64, bool)> {
        let meta = self.meta(self.cells.queues[class.index()].front()?);
        Some((meta.order, self.cells.used.get().plus_meta(&meta).within(&self.cells.granted.get())))
    }

    /// The header of queued or numbered TLPs, oldest first: for checkers.
    pub fn headers(&self) -> impl Iterator<Item = EncodedHeader> + '_ {
        self.slots.iter().filter_map(|slot| {
            let mut bytes = [0; 16];
            self.cells.tlps[slot as usize].header.read(0, &mut bytes);
            EncodedHeader::from_bytes(&bytes).ok()
        })
    }

    /// Changes a byte of the header of numbered TLP `number`: a peer that is broken.
    #[cfg(test)]
    pub(crate) fn corrupt(&self, number: u64, offset: usize, byte: u8) {
        self.cells.tlps[self.slot_of(number) as usize].header.write(self.journal, offset, &[byte]);
    }

    #[inline]
    fn slot_of(&self, number: u64) -> u16 {
        assert!(
            (self.committed()..self.next()).contains(&number),
            "only what is in the replay buffer can be sent"
        );
        self.cells.replay[number as usize % SLOTS].get()
    }

    #[inline]
    fn meta(&self, slot: u16) -> Meta {
        self.cells.tlps[slot as usize].meta.get()
    }
}

impl Credits {
    /// As checkers compare them.
    pub(crate) fn totals(&self) -> [u64; 3] {
        [self.posted_headers, self.posted_data, self.non_posted_headers]
    }

    fn plus_meta(self, meta: &Meta) -> Self {
        self.plus(meta.class.into(), meta.data_credits)
    }

    /// With one more TLP of the class of this index.
    pub(crate) fn plus(mut self, class: usize, data_credits: u16) -> Self {
        if class == FlowClass::Posted.index() {
            self.posted_headers += 1;
            self.posted_data += u64::from(data_credits);
        } else if class == FlowClass::NonPosted.index() {
            self.non_posted_headers += 1;
        }
        self
    }

    pub(crate) fn within(&self, granted: &Self) -> bool {
        self.posted_headers <= granted.posted_headers
            && self.posted_data <= granted.posted_data
            && self.non_posted_headers <= granted.non_posted_headers
    }
}
