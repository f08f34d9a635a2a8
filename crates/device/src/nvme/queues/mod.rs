//! Submission and completion queues: doorbells, fetching of entries, posting of completions.

mod create;
mod shadow;

use base::Payload;
use base::ledger::{Cell, Layout, PAGE_SIZE};
use spec::nvme::{CompletionEntry, Status};
use zerocopy::{FromBytes, IntoBytes};

use self::shadow::ShadowCells;
use crate::function::Dma;
use crate::nvme::Controller;
use crate::nvme::cells::QUEUES;
use crate::nvme::command::{Event, Origin, State, dma_id};
use crate::nvme::events;

/// Bytes of a submission queue entry.
pub(crate) const SQE_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const CQE_BYTES: usize = 16;
/// Entries that may be under way from one submission queue: one bit each in `SubmissionQueueCells::fetched`.
const FETCH_WINDOW: u32 = 64;
/// Entries that one verb takes from the queues.
const FETCH_BURST: usize = 32;
/// Commands that wait for the medium while no more are taken from the memory buffer: each has pages, and pages that are
/// used again soon are still in the processor's caches.
const MEDIA_AHEAD: usize = 4;

/// Pages of the largest queues.
pub(crate) const SQ_PAGES: usize = (crate::nvme::QUEUE_ENTRIES as usize * SQE_BYTES).div_ceil(PAGE_SIZE);
pub(crate) const CQ_PAGES: usize = (crate::nvme::QUEUE_ENTRIES as usize * CQE_BYTES).div_ceil(PAGE_SIZE);

/// One submission queue. All zeroes: it does not exist.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct SubmissionQueueCells {
    /// Bus address of the first entry, or its offset in the controller memory buffer.
    pub(crate) base: Cell<u64>,
    /// Which of the entries from `head` on have arrived.
    fetched: Cell<u64>,
    /// Entries; 0 where there is no queue.
    pub(crate) size: Cell<u32>,
    /// Of [`QueueMemory`].
    pub(crate) place: Cell<u16>,
    /// Its completion queue.
    pub(crate) cq: Cell<u16>,
    /// Every entry before it has been fetched: what completions report.
    head: Cell<u32>,
    /// The next entry to fetch.
    next: Cell<u32>,
    /// The doorbell.
    tail: Cell<u32>,
    /// The slot of the first half of a fused operation whose second is the next entry, plus one.
    pub(crate) fused: Cell<u16>,
    reserved: Cell<u16>,
    shadow: ShadowCells,
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
    pub(crate) base: Cell<u64>,
    /// Entries; 0 where there is no queue.
    pub(crate) size: Cell<u32>,
    /// The doorbell.
    head: Cell<u32>,
    /// The next entry to post.
    tail: Cell<u32>,
    /// Whether the phase tag of the pass under way is 0.
    phase_clear: Cell<u8>,
    /// Whether posting interrupts.
    pub(crate) interrupts: Cell<u8>,
    pub(crate) vector: Cell<u16>,
    /// Of [`QueueMemory`].
    place: Cell<u16>,
    reserved: [Cell<u16>; 3],
    shadow: ShadowCells,
    /// The pages of a queue that is not contiguous.
    pages: [Cell<u64>; CQ_PAGES],
}

impl SubmissionQueueCells {
    pub(crate) fn exists(&self) -> bool {
        self.size.get() != 0
    }

    /// Whether the doorbell covers an entry behind the one at `index`.
    pub(crate) fn has_entry_behind(&self, index: u16) -> bool {
        (u32::from(index) + 1) % self.size.get() != self.tail.get()
    }

    fn address(&self, index: u32) -> u64 {
        entry_address(self.place.get(), self.base.get(), &self.pages, index as usize * SQE_BYTES)
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

impl<'m> Controller<'m> {
    /// A number that a queue can have: a host's was checked when it rang (`ring`), or made or deleted the queue.
    pub(crate) fn submission(&self, queue: u16) -> &'m SubmissionQueueCells {
        &self.cells.submission[usize::from(queue)]
    }

    /// Whether there is any queue but the admin ones.
    pub(crate) fn has_io_queues(&self) -> bool {
        let submission = self.cells.submission.iter().skip(1).any(SubmissionQueueCells::exists);
        submission || self.cells.completion.iter().skip(1).any(CompletionQueueCells::exists)
    }

    /// As above.
    pub(crate) fn completion(&self, queue: u16) -> &'m CompletionQueueCells {
        &self.cells.completion[usize::from(queue)]
    }

    /// Makes a submission queue; `base` as in its cells. The pages of a listed one have been written.
    pub(crate) fn create_submission_queue(
        &mut self,
        queue: u16,
        base: u64,
        place: QueueMemory,
        size: u32,
        cq: u16,
    ) {
        let (cells, journal) = (self.submission(queue), self.journal);
        for cell in [&cells.head, &cells.next, &cells.tail] {
            cell.set(journal, 0);
        }
        cells.fetched.set(journal, 0);
        cells.fused.set(journal, 0);
        cells.shadow.begin(journal);
        cells.base.set(journal, base);
        cells.place.set(journal, place as u16);
        cells.size.set(journal, size);
        cells.cq.set(journal, cq);
    }

    /// Makes a completion queue that interrupts with `vector`, if any.
    pub(crate) fn create_completion_queue(
        &mut self,
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
        cells.shadow.begin(journal);
        cells.base.set(journal, base);
        cells.place.set(journal, place as u16);
        cells.size.set(journal, size);
        cells.interrupts.set(journal, u8::from(vector.is_some()));
        cells.vector.set(journal, vector.unwrap_or(0));
    }

    /// Ends a submission queue and everything that came from it.
    pub(crate) fn remove_submission_queue(&mut self, queue: u16) {
        self.remove_submission_queue_cells(queue);
        for slot in self.busy_slots() {
            if self.command(slot).origin.get().sq == queue && slot != crate::nvme::cells::SHUTDOWN_SLOT {
                self.abandon(slot);
            }
        }
    }

    pub(crate) fn remove_submission_queue_cells(&mut self, queue: u16) {
        let cells = self.submission(queue);
        cells.size.set(self.journal, 0);
        cells.fused.set(self.journal, 0);
        cells.shadow.end(self.journal);
        self.ready &= !(1 << queue);
    }

    pub(crate) fn remove_completion_queue(&mut self, queue: u16) {
        let cells = self.completion(queue);
        cells.size.set(self.journal, 0);
        cells.shadow.end(self.journal);
    }

    /// A write to a doorbell (NVMe PCIe 1.0 §3.1.2).
    pub(crate) fn ring(&mut self, queue: u16, is_cq: bool, value: u32) {
        if !self.registers.is_processing() {
            return;
        }
        let known = usize::from(queue) < QUEUES
            && if is_cq { self.completion(queue).exists() } else { self.submission(queue).exists() };
        let value = value & 0xffff;
        if !known {
            return self.raise_event(events::INVALID_DOORBELL_REGISTER);
        }
        self.outdate_shadow(queue, is_cq);
        if self.is_late(queue, is_cq, value) {
            return self.want_shadow(queue, is_cq);
        }
        if !(if is_cq { self.move_head(queue, value) } else { self.move_tail(queue, value) }) {
            self.raise_event(events::INVALID_DOORBELL_VALUE);
        }
    }

    fn move_tail(&mut self, queue: u16, tail: u32) -> bool {
        let cells = self.submission(queue);
        if tail >= cells.size.get() {
            return false;
        }
        cells.tail.set(self.journal, tail);
        self.note_ready(queue);
        self.want_shadow(queue, false);
        self.fetch_entries();
        true
    }

    fn move_head(&mut self, queue: u16, head: u32) -> bool {
        let cells = self.completion(queue);
        let size = cells.size.get();
        let distance = |to: u32| (to + size - cells.head.get()) % size;
        if head >= size || distance(head) > distance(cells.tail.get()) {
            return false;
        }
        cells.head.set(self.journal, head);
        // Those that waited for room in this queue stand in line again; the others keep their place.
        for _ in 0..self.held.len() {
            let Some(slot) = self.held.pop() else { break };
            if self.command(slot).origin.get().cq == queue {
                self.sending.push(slot);
            } else {
                self.held.push(slot);
            }
        }
        true
    }

    pub(crate) fn note_ready(&mut self, queue: u16) {
        let bit = 1_u128 << queue;
        if self.submission(queue).is_ready() { self.ready |= bit } else { self.ready &= !bit }
    }

    /// Takes entries from the queues, round robin, the admin queue first. Returns whether there was one.
    pub(crate) fn fetch_entries(&mut self) -> bool {
        if self.ready == 0 || !self.registers.is_processing() {
            return false;
        }
        (0..FETCH_BURST).take_while(|_| self.fetch_entry()).count() > 0
    }

    fn fetch_entry(&mut self) -> bool {
        let Some(queue) = self.next_queue() else { return false };
        if queue != 0 && !self.limit.may_take(self.now, self.fetching) {
            return false;
        }
        let cells = self.submission(queue);
        let is_here = cells.place.get() == QueueMemory::Buffer as u16;
        if queue != 0 && is_here && self.media.len() >= MEDIA_AHEAD {
            return false;
        }
        let index = cells.next.get();
        let origin = Origin { sq: queue, cid: 0, index: index as u16, cq: cells.cq.get() };
        let Some(slot) = self.take_slot(origin) else { return false };
        let next = (index + 1) % cells.size.get();
        cells.next.set(self.journal, next);
        if queue != 0 {
            self.next_queue = queue + 1;
            self.limit.charge_command();
        }
        if is_here {
            let mut entry = [0; SQE_BYTES];
            let offset = cells.base.get() + u64::from(index) * SQE_BYTES as u64;
            self.buffer.read(offset, &mut entry);
            self.command(slot).write_entry(self.journal, 0, &entry);
            cells.head.set(self.journal, next);
            self.note_ready(queue);
            self.step(slot, Event::TakeEntry);
            self.execute(slot);
        } else {
            self.note_ready(queue);
            self.step(slot, Event::FetchEntry);
        }
        true
    }

    /// The queue whose turn it is: the admin queue first, the others in turn, one entry each.
    fn next_queue(&self) -> Option<u16> {
        if self.ready & 1 != 0 {
            return Some(0);
        }
        let first = self.next_queue.min(QUEUES as u16);
        let behind = self.ready & (u128::MAX << first);
        let set = if behind != 0 { behind } else { self.ready };
        (set != 0).then(|| set.trailing_zeros() as u16)
    }

    /// The read of a submission queue entry.
    pub(crate) fn send_fetch(&mut self, slot: u16) -> Dma {
        let command = self.command(slot);
        let origin = command.origin.get();
        let address = self.submission(origin.sq).address(origin.index.into());
        self.step(slot, Event::Sent);
        Dma::Read { id: dma_id(slot, 0, command.uses.get()), address, len: SQE_BYTES as u16 }
    }

    /// A part of a submission queue entry.
    pub(crate) fn handle_entry(&mut self, slot: u16, offset: usize, data: &[u8], last: bool) {
        let end = offset.saturating_add(data.len());
        if end > SQE_BYTES || (last && end != SQE_BYTES) {
            return self.registers.fail("a submission queue entry came with a wrong length");
        }
        self.command(slot).write_entry(self.journal, offset, data);
        if last {
            self.arrive(slot);
        }
    }

    /// A whole entry has come. Entries may arrive in any order, but are executed in the order of their queue: both
    /// halves of a fused operation have to be found side by side.
    fn arrive(&mut self, slot: u16) {
        let origin = self.command(slot).origin.get();
        let cells = self.submission(origin.sq);
        let (first, index) = (cells.head.get(), u32::from(origin.index));
        self.note_fetched(origin.sq, index);
        if index != first {
            return self.step(slot, Event::Early);
        }
        let behind = cells.distance(first, cells.head.get());
        self.step(slot, Event::Fetched);
        self.execute(slot);
        for place in 1..behind {
            let index = ((first + place) % cells.size.get()) as u16;
            let next = self.busy_slots().find(|slot| {
                let (command, sq) = (self.command(*slot), origin.sq);
                let here = command.origin.get();
                command.state() == State::Arrived && (here.sq, here.index) == (sq, index)
            });
            if let Some(next) = next {
                self.step(next, Event::Fetched);
                self.execute(next);
            }
        }
    }

    /// The head that completions report passes only what has arrived.
    fn note_fetched(&mut self, queue: u16, index: u32) {
        let cells = self.submission(queue);
        let bit = cells.distance(cells.head.get(), index);
        let fetched = cells.fetched.get() | 1 << bit;
        let arrived = fetched.trailing_ones();
        cells.fetched.set(self.journal, fetched.checked_shr(arrived).unwrap_or(0));
        cells.head.update(self.journal, |head| (head + arrived) % cells.size.get());
        self.note_ready(queue);
    }

    /// The completion queue entry of a command, or `None` when its queue is full: it then waits for the doorbell.
    pub(crate) fn send_completion(&mut self, slot: u16) -> Option<Dma> {
        self.release_pages(slot);
        let command = self.command(slot);
        let (origin, outcome) = (command.origin.get(), command.outcome.get());
        let cells = self.completion(origin.cq);
        if cells.is_full() {
            self.sending.remove(slot);
            self.held.push(slot);
            self.want_shadow(origin.cq, true);
            return None;
        }
        let head = self.submission(origin.sq).head.get() as u16;
        let phase = cells.phase_clear.get() == 0;
        let status = Status::from_bits(outcome.status);
        let entry = CompletionEntry::new(origin.sq, head, origin.cid, status, outcome.result, phase);
        let tail = cells.tail.get();
        let address = cells.address(tail);
        cells.tail.set(self.journal, (tail + 1) % cells.size.get());
        if tail + 1 == cells.size.get() {
            cells.phase_clear.set(self.journal, u8::from(phase));
        }
        if cells.interrupts.get() != 0 {
            self.interrupts.raise(cells.vector.get(), &self.config_space);
        }
        self.step(slot, Event::Sent);
        Some(Dma::Write { address, payload: Payload::inline(entry.as_bytes()) })
    }

    /// Completes the deletions of submission queues whose commands the medium is done with.
    pub(crate) fn finish_deletions(&mut self) {
        for slot in self.busy_slots() {
            let command = self.command(slot);
            if command.state() == State::Draining && !self.has_orphans(command.entry().cdw10.get() as u16) {
                self.complete(slot, 0, Status::SUCCESS);
            }
        }
    }

    /// Whether the medium still works on commands of a deleted queue.
    pub(crate) fn has_orphans(&self, queue: u16) -> bool {
        self.cells.orphans.get() != 0
            && self.busy_slots().any(|slot| {
                let command = self.command(slot);
                command.state() == State::Orphan && command.origin.get().sq == queue
            })
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
