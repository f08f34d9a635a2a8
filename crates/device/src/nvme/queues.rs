//! Submission and completion queues: doorbells, fetching of entries, posting of completions.

use base::Payload;
use base::ledger::Cell;
use spec::nvme::{CompletionEntry, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::Controller;
use super::cells::QUEUES;
use super::command::{Event, Origin, State, dma_id};
use super::events;
use crate::function::Dma;

/// Bytes of a submission queue entry.
pub(super) const SQE_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(super) const CQE_BYTES: usize = 16;
/// Entries that may be under way from one submission queue: one bit each in `SubmissionQueueCells::fetched`.
const FETCH_WINDOW: u32 = 64;
/// Entries that one verb takes from the queues.
const FETCH_BURST: usize = 32;

/// One submission queue. All zeroes: it does not exist.
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct SubmissionQueueCells {
    /// Bus address of the first entry, or its offset in the controller memory buffer.
    pub(super) base: Cell<u64>,
    /// Which of the entries from `head` on have arrived.
    fetched: Cell<u64>,
    /// Entries; 0 where there is no queue.
    pub(super) size: Cell<u32>,
    /// Whether it lies in the controller memory buffer.
    pub(super) in_buffer: Cell<u16>,
    /// Its completion queue.
    pub(super) cq: Cell<u16>,
    /// Every entry before it has been fetched: what completions report.
    head: Cell<u32>,
    /// The next entry to fetch.
    next: Cell<u32>,
    /// The doorbell.
    tail: Cell<u32>,
    reserved: Cell<u32>,
}

/// One completion queue. All zeroes: it does not exist.
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct CompletionQueueCells {
    /// Bus address of the first entry.
    pub(super) base: Cell<u64>,
    /// Entries; 0 where there is no queue.
    pub(super) size: Cell<u32>,
    /// The doorbell.
    head: Cell<u32>,
    /// The next entry to post.
    tail: Cell<u32>,
    /// Whether the phase tag of the pass under way is 0.
    phase_clear: Cell<u8>,
    /// Whether posting interrupts.
    pub(super) interrupts: Cell<u8>,
    pub(super) vector: Cell<u16>,
}

impl SubmissionQueueCells {
    pub(super) fn exists(&self) -> bool {
        self.size.get() != 0
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
    pub(super) fn exists(&self) -> bool {
        self.size.get() != 0
    }

    fn is_full(&self) -> bool {
        (self.tail.get() + 1) % self.size.get() == self.head.get()
    }
}

impl<'m> Controller<'m> {
    pub(super) fn submission(&self, queue: u16) -> &'m SubmissionQueueCells {
        &self.cells.submission[usize::from(queue)]
    }

    pub(super) fn completion(&self, queue: u16) -> &'m CompletionQueueCells {
        &self.cells.completion[usize::from(queue)]
    }

    /// Makes a submission queue; `base` as in its cells.
    pub(super) fn create_submission_queue(
        &mut self,
        queue: u16,
        base: u64,
        in_buffer: bool,
        size: u32,
        cq: u16,
    ) {
        let (cells, journal) = (self.submission(queue), self.journal);
        for cell in [&cells.head, &cells.next, &cells.tail] {
            cell.set(journal, 0);
        }
        cells.fetched.set(journal, 0);
        cells.base.set(journal, base);
        cells.in_buffer.set(journal, u16::from(in_buffer));
        cells.size.set(journal, size);
        cells.cq.set(journal, cq);
    }

    /// Makes a completion queue that interrupts with `vector`, if any.
    pub(super) fn create_completion_queue(&mut self, queue: u16, base: u64, size: u32, vector: Option<u16>) {
        let (cells, journal) = (self.completion(queue), self.journal);
        cells.head.set(journal, 0);
        cells.tail.set(journal, 0);
        cells.phase_clear.set(journal, 0);
        cells.base.set(journal, base);
        cells.size.set(journal, size);
        cells.interrupts.set(journal, u8::from(vector.is_some()));
        cells.vector.set(journal, vector.unwrap_or(0));
    }

    /// Ends a submission queue and everything that came from it.
    pub(super) fn remove_submission_queue(&mut self, queue: u16) {
        self.submission(queue).size.set(self.journal, 0);
        self.ready &= !(1 << queue);
        for slot in self.busy_slots() {
            if self.command(slot).origin.get().sq == queue && slot != super::cells::SHUTDOWN_SLOT {
                self.abandon(slot);
            }
        }
    }

    pub(super) fn remove_completion_queue(&mut self, queue: u16) {
        self.completion(queue).size.set(self.journal, 0);
    }

    /// A write to a doorbell (NVMe PCIe 1.0 §3.1.2).
    pub(super) fn ring(&mut self, queue: u16, is_cq: bool, value: u32) {
        if !self.is_processing() {
            return;
        }
        let known = usize::from(queue) < QUEUES
            && if is_cq { self.completion(queue).exists() } else { self.submission(queue).exists() };
        let value = value & 0xffff;
        if !known {
            self.raise_event(events::INVALID_DOORBELL_REGISTER);
        } else if !(if is_cq { self.move_head(queue, value) } else { self.move_tail(queue, value) }) {
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

    pub(super) fn note_ready(&mut self, queue: u16) {
        let bit = 1_u128 << queue;
        if self.submission(queue).is_ready() { self.ready |= bit } else { self.ready &= !bit }
    }

    /// Takes entries from the queues, round robin, the admin queue first. Returns whether there was one.
    pub(super) fn fetch_entries(&mut self) -> bool {
        if self.ready == 0 || !self.is_processing() {
            return false;
        }
        (0..FETCH_BURST).take_while(|_| self.fetch_entry()).count() > 0
    }

    fn fetch_entry(&mut self) -> bool {
        let Some(queue) = self.next_queue() else { return false };
        let cells = self.submission(queue);
        let index = cells.next.get();
        let origin = Origin { sq: queue, cid: 0, index: index as u16, cq: cells.cq.get() };
        let Some(slot) = self.take_slot(origin) else { return false };
        let next = (index + 1) % cells.size.get();
        cells.next.set(self.journal, next);
        self.next_queue = queue + 1;
        if cells.in_buffer.get() != 0 {
            let mut entry = [0; SQE_BYTES];
            let offset = cells.base.get() as usize + index as usize * SQE_BYTES;
            self.cells.memory_buffer.read(offset, &mut entry);
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
    pub(super) fn send_fetch(&mut self, slot: u16) -> Dma {
        let command = self.command(slot);
        let origin = command.origin.get();
        let address = self.submission(origin.sq).base.get() + u64::from(origin.index) * SQE_BYTES as u64;
        self.step(slot, Event::Sent);
        Dma::Read { id: dma_id(slot, 0, command.uses.get()), address, len: SQE_BYTES as u16 }
    }

    /// A part of a submission queue entry.
    pub(super) fn handle_entry(&mut self, slot: u16, offset: usize, data: &[u8], last: bool) {
        let end = offset.saturating_add(data.len());
        if end > SQE_BYTES || (last && end != SQE_BYTES) {
            return self.fail("a submission queue entry came with a wrong length");
        }
        self.command(slot).write_entry(self.journal, offset, data);
        if last {
            let origin = self.command(slot).origin.get();
            self.note_fetched(origin.sq, u32::from(origin.index));
            self.step(slot, Event::Fetched);
            self.execute(slot);
        }
    }

    /// Entries may arrive in any order, but the head that completions report passes only what has arrived.
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
    pub(super) fn send_completion(&mut self, slot: u16) -> Option<Dma> {
        self.release_pages(slot);
        let command = self.command(slot);
        let (origin, outcome) = (command.origin.get(), command.outcome.get());
        let cells = self.completion(origin.cq);
        if cells.is_full() {
            self.sending.remove(slot);
            self.held.push(slot);
            return None;
        }
        let head = self.submission(origin.sq).head.get() as u16;
        let phase = cells.phase_clear.get() == 0;
        let status = Status::from_bits(outcome.status);
        let entry = CompletionEntry::new(origin.sq, head, origin.cid, status, outcome.result, phase);
        let tail = cells.tail.get();
        let address = cells.base.get() + u64::from(tail) * CQE_BYTES as u64;
        cells.tail.set(self.journal, (tail + 1) % cells.size.get());
        if tail + 1 == cells.size.get() {
            cells.phase_clear.set(self.journal, u8::from(phase));
        }
        if cells.interrupts.get() != 0 {
            self.interrupt(cells.vector.get());
        }
        self.step(slot, Event::Sent);
        Some(Dma::Write { address, payload: Payload::inline(entry.as_bytes()) })
    }

    /// Completes the deletions of submission queues whose commands the medium is done with.
    pub(super) fn finish_deletions(&mut self) {
        for slot in self.busy_slots() {
            let command = self.command(slot);
            if command.state() == State::Draining && !self.has_orphans(command.entry().cdw10.get() as u16) {
                self.complete(slot, 0, Status::SUCCESS);
            }
        }
    }

    /// Whether the medium still works on commands of a deleted queue.
    pub(super) fn has_orphans(&self, queue: u16) -> bool {
        self.cells.orphans.get() != 0
            && self.busy_slots().any(|slot| {
                let command = self.command(slot);
                command.state() == State::Orphan && command.origin.get().sq == queue
            })
    }
}
