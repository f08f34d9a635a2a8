//! Submission and completion queues: doorbells, fetching of entries, posting of completions.

mod create;
pub(crate) mod shadow;

use base::Payload;
use base::ledger::{Cell, Journal, Layout, PAGE_SIZE};
use spec::nvme::{CompletionEntry, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::function::Dma;
use crate::nvme::cells::QUEUES;
use crate::nvme::command::{Origin, Outcome};

/// Bytes of a submission queue entry.
pub(crate) const SQE_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const CQE_BYTES: usize = 16;
/// Entries that may be under way from one submission queue: one bit each in `SubmissionQueueCells::fetched`.
const FETCH_WINDOW: u32 = 64;

/// Pages of the largest queues.
pub(crate) const SQ_PAGES: usize = (crate::nvme::QUEUE_ENTRIES as usize * SQE_BYTES).div_ceil(PAGE_SIZE);
pub(crate) const CQ_PAGES: usize = (crate::nvme::QUEUE_ENTRIES as usize * CQE_BYTES).div_ceil(PAGE_SIZE);

/// One submission queue. All zeroes: it does not exist.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct SubmissionQueueCells {
    /// Bus address of the first entry, or its offset in the controller memory buffer.
    base: Cell<u64>,
    /// Which of the entries from `head` on have arrived.
    fetched: Cell<u64>,
    /// Entries; 0 where there is no queue.
    size: Cell<u32>,
    /// Of [`QueueMemory`].
    place: Cell<u16>,
    /// Its completion queue.
    cq: Cell<u16>,
    /// Every entry before it has been fetched: what completions report.
    head: Cell<u32>,
    /// The next entry to fetch.
    next: Cell<u32>,
    /// The doorbell.
    tail: Cell<u32>,
    /// The slot of the first half of a fused operation whose second is the next entry, plus one.
    pub(crate) fused: Cell<u16>,
    reserved: Cell<u16>,
    /// The pages of a queue that is not contiguous.
    pages: [Cell<u64>; SQ_PAGES],
}

/// Where a queue lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum QueueMemory {
    /// In host memory, contiguous from `base` on.
    Host,
    /// In the controller memory buffer, from offset `base` on.
    Buffer,
    /// In host memory, in the pages of a list.
    Listed,
}

/// One completion queue. All zeroes: it does not exist.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct CompletionQueueCells {
    /// Bus address of the first entry.
    base: Cell<u64>,
    /// Entries; 0 where there is no queue.
    size: Cell<u32>,
    /// The doorbell.
    head: Cell<u32>,
    /// The next entry to post.
    tail: Cell<u32>,
    /// Whether the phase tag of the pass under way is 0.
    phase_clear: Cell<u8>,
    /// Whether posting interrupts.
    interrupts: Cell<u8>,
    vector: Cell<u16>,
    /// Of [`QueueMemory`].
    place: Cell<u16>,
    reserved: [Cell<u16>; 3],
    /// The pages of a queue that is not contiguous.
    pages: [Cell<u64>; CQ_PAGES],
}

impl SubmissionQueueCells {
    pub(crate) fn exists(&self) -> bool {
        self.size.get() != 0
    }

    /// Whether it lies in the controller memory buffer.
    pub(crate) fn is_in_buffer(&self) -> bool {
        self.place.get() == QueueMemory::Buffer as u16
    }

    /// Whether the doorbell covers an entry behind the one at `index`.
    pub(crate) fn has_entry_behind(&self, index: u16) -> bool {
        (u32::from(index) + 1) % self.size.get() != self.tail.get()
    }

    /// Where an entry lies: its bus address, or its offset in the controller memory buffer.
    pub(crate) fn address(&self, index: u16) -> u64 {
        entry_address(self.place.get(), self.base.get(), &self.pages, usize::from(index) * SQE_BYTES)
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        (to + self.size.get() - from) % self.size.get()
    }

    /// Whether an entry can be fetched.
    fn is_ready(&self) -> bool {
        self.exists()
            && self.next.get() != self.tail.get()
            && self.distance(self.head.get(), self.next.get()) < FETCH_WINDOW
    }
}

impl CompletionQueueCells {
    pub(crate) fn exists(&self) -> bool {
        self.size.get() != 0
    }

    fn address(&self, index: u32) -> u64 {
        entry_address(self.place.get(), self.base.get(), &self.pages, index as usize * CQE_BYTES)
    }

    fn is_full(&self) -> bool {
        (self.tail.get() + 1) % self.size.get() == self.head.get()
    }
}

/// A doorbell: the tail of a submission queue, or the head of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doorbell {
    pub(crate) queue: u16,
    pub(crate) is_cq: bool,
}

/// A completion on its way, and the interrupt that it stands for.
pub(crate) struct Posted {
    pub(crate) dma: Dma,
    pub(crate) vector: Option<u16>,
}

/// The queues of one controller.
pub(crate) struct Queues<'m> {
    submission: &'m [SubmissionQueueCells; QUEUES],
    completion: &'m [CompletionQueueCells; QUEUES],
    journal: Journal<'m>,
    /// Submission queues with entries to fetch.
    ready: u128,
    /// Where the round robin goes on.
    turn: u16,
}

impl<'m> Queues<'m> {
    pub(crate) fn new(
        submission: &'m [SubmissionQueueCells; QUEUES],
        completion: &'m [CompletionQueueCells; QUEUES],
        journal: Journal<'m>,
    ) -> Self {
        let mut queues = Self { submission, completion, journal, ready: 0, turn: 0 };
        (0..QUEUES as u16).for_each(|queue| queues.note_ready(queue));
        queues
    }

    /// A number that a queue can have: a host's was checked when it rang (`exists`), or made or deleted the queue.
    pub(crate) fn submission(&self, queue: u16) -> &'m SubmissionQueueCells {
        &self.submission[usize::from(queue)]
    }

    /// As above.
    fn completion(&self, queue: u16) -> &'m CompletionQueueCells {
        &self.completion[usize::from(queue)]
    }

    /// Whether there is any queue but the admin ones.
    pub(crate) fn has_io(&self) -> bool {
        let submission = self.submission.iter().skip(1).any(SubmissionQueueCells::exists);
        submission || self.completion.iter().skip(1).any(CompletionQueueCells::exists)
    }

    /// Makes a submission queue; `base` as in its cells. The pages of a listed one have been written.
    pub(crate) fn create_submission(&self, queue: u16, base: u64, place: QueueMemory, size: u32, cq: u16) {
        let (cells, journal) = (self.submission(queue), self.journal);
        for cell in [&cells.head, &cells.next, &cells.tail] {
            cell.set(journal, 0);
        }
        cells.fetched.set(journal, 0);
        cells.fused.set(journal, 0);
        cells.base.set(journal, base);
        cells.place.set(journal, place as u16);
        cells.size.set(journal, size);
        cells.cq.set(journal, cq);
    }

    /// Makes a completion queue that interrupts with `vector`, if any.
    pub(crate) fn create_completion(
        &self,
        queue: u16,
        base: u64,
        place: QueueMemory,
        size: u32,
        vector: Option<u16>,
    ) {
        let (cells, journal) = (self.completion(queue), self.journal);
        cells.head.set(journal, 0);
        cells.tail.set(journal, 0);
        cells.phase_clear.set(journal, 0);
        cells.base.set(journal, base);
        cells.place.set(journal, place as u16);
        cells.size.set(journal, size);
        cells.interrupts.set(journal, u8::from(vector.is_some()));
        cells.vector.set(journal, vector.unwrap_or(0));
    }

    pub(crate) fn remove(&mut self, bell: Doorbell) {
        if bell.is_cq {
            return self.completion(bell.queue).size.set(self.journal, 0);
        }
        let cells = self.submission(bell.queue);
        cells.size.set(self.journal, 0);
        cells.fused.set(self.journal, 0);
        self.ready &= !(1 << bell.queue);
    }

    /// Whether there is the queue of a doorbell.
    pub(crate) fn exists(&self, bell: Doorbell) -> bool {
        usize::from(bell.queue) < QUEUES && self.size(bell) != 0
    }

    /// Entries of the queue of a doorbell.
    fn size(&self, bell: Doorbell) -> u32 {
        if bell.is_cq {
            self.completion(bell.queue).size.get()
        } else {
            self.submission(bell.queue).size.get()
        }
    }

    /// What the controller knows of a doorbell.
    fn value(&self, bell: Doorbell) -> u32 {
        if bell.is_cq {
            self.completion(bell.queue).head.get()
        } else {
            self.submission(bell.queue).tail.get()
        }
    }

    /// A doorbell has a new value. False if it cannot have that.
    pub(crate) fn move_to(&mut self, bell: Doorbell, value: u32) -> bool {
        let size = self.size(bell);
        if value >= size {
            return false;
        }
        if !bell.is_cq {
            self.submission(bell.queue).tail.set(self.journal, value);
            self.note_ready(bell.queue);
            return true;
        }
        let cells = self.completion(bell.queue);
        let distance = |to: u32| (to + size - cells.head.get()) % size;
        if distance(value) > distance(cells.tail.get()) {
            return false;
        }
        cells.head.set(self.journal, value);
        true
    }

    fn note_ready(&mut self, queue: u16) {
        let bit = 1_u128 << queue;
        if self.submission(queue).is_ready() { self.ready |= bit } else { self.ready &= !bit }
    }

    /// Whether an I/O queue has entries to fetch.
    pub(crate) fn has_io_entries(&self) -> bool {
        self.ready & !1 != 0
    }

    /// The queue whose turn it is, if any has an entry: the admin queue first, the others in turn, one entry each.
    pub(crate) fn whose_turn(&self) -> Option<u16> {
        if self.ready & 1 != 0 {
            return Some(0);
        }
        let behind = self.ready & (u128::MAX << self.turn.min(QUEUES as u16));
        let set = if behind != 0 { behind } else { self.ready };
        (set != 0).then(|| set.trailing_zeros() as u16)
    }

    /// Where the next entry of a queue comes from.
    pub(crate) fn next_entry(&self, queue: u16) -> Origin {
        let cells = self.submission(queue);
        Origin { sq: queue, cid: 0, index: cells.next.get() as u16, cq: cells.cq.get() }
    }

    /// That entry has a slot of the table.
    pub(crate) fn take_entry(&mut self, queue: u16) {
        let cells = self.submission(queue);
        let next = (cells.next.get() + 1) % cells.size.get();
        cells.next.set(self.journal, next);
        if cells.is_in_buffer() {
            cells.head.set(self.journal, next);
        }
        if queue != 0 {
            self.turn = queue + 1;
        }
        self.note_ready(queue);
    }

    /// The entry at `index` has come. Returns which entries are to be executed now, it and those behind it: they come
    /// in any order, but both halves of a fused operation have to be found side by side. Empty if one before is
    /// missing. The head that completions report passes only what has arrived.
    pub(crate) fn arrive(&mut self, queue: u16, index: u16) -> impl Iterator<Item = u16> + use<> {
        let cells = self.submission(queue);
        let (first, size) = (cells.head.get(), cells.size.get());
        let fetched = cells.fetched.get() | 1 << cells.distance(first, index.into());
        let arrived = fetched.trailing_ones();
        cells.fetched.set(self.journal, fetched.checked_shr(arrived).unwrap_or(0));
        cells.head.set(self.journal, (first + arrived) % size);
        self.note_ready(queue);
        (0..arrived).map(move |place| ((first + place) % size) as u16)
    }

    /// Makes the completion of a command, or `None` when its queue is full.
    pub(crate) fn post(&self, origin: Origin, outcome: Outcome) -> Option<Posted> {
        let (cells, journal) = (self.completion(origin.cq), self.journal);
        if cells.is_full() {
            return None;
        }
        let head = self.submission(origin.sq).head.get() as u16;
        let phase = cells.phase_clear.get() == 0;
        let status = Status::from_bits(outcome.status);
        let entry = CompletionEntry::new(origin.sq, head, origin.cid, status, outcome.result, phase);
        let tail = cells.tail.get();
        cells.tail.set(journal, (tail + 1) % cells.size.get());
        if tail + 1 == cells.size.get() {
            cells.phase_clear.set(journal, u8::from(phase));
        }
        let dma = Dma::Write { address: cells.address(tail), payload: Payload::inline(entry.as_bytes()) };
        Some(Posted { dma, vector: (cells.interrupts.get() != 0).then(|| cells.vector.get()) })
    }
}

/// The address of the byte at `offset` of a queue.
fn entry_address(place: u16, base: u64, pages: &[Cell<u64>], offset: usize) -> u64 {
    if place == QueueMemory::Listed as u16 {
        pages.get(offset / PAGE_SIZE).map_or(0, Cell::get) + (offset % PAGE_SIZE) as u64
    } else {
        base + offset as u64
    }
}
