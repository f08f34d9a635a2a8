//! The queues: the driver's memory as the function sees it, what arrives in it, and doorbells.

use base::ledger::{Bytes, Cell};
use base::{Instant, Payload};
use spec::nvme::CompletionEntry;
use spec::nvme::registers::Cap;
use zerocopy::{FromBytes, IntoBytes};

use super::cells::{ACCESSES_RESERVED, ADMIN_ENTRIES, COMPLETION_BYTES, IO_ENTRIES, region};
use super::init::{Event, IO_QUEUE, REGISTERS};
use super::{Driver, State};
use crate::Access;

/// Completions taken before the controller is told; far from the queue's size, so that it never waits.
const HEAD_BATCH: u16 = 64;

impl Driver<'_> {
    /// The function writes to the queue memory: completions, and the data of the initialisation. Elsewhere it is
    /// ignored.
    pub fn memory_write(&mut self, now: Instant, offset: u64, bytes: &[u8]) {
        let cells = self.cells;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        match offset & !0xfff {
            region::IO_CQ => {
                self.store(&cells.io_cq, offset - region::IO_CQ, bytes);
                self.take_completions(now);
            }
            region::ADMIN_CQ => {
                self.store(&cells.admin_cq, offset - region::ADMIN_CQ, bytes);
                self.take_admin(now);
            }
            region::IDENTIFY if self.state().has_admin_queue() => {
                // The start lies in the region's 4096 bytes.
                let start = offset - region::IDENTIFY;
                let len = bytes.len().min(4096 - start);
                cells.identify.write(self.journal, start, &bytes[..len]);
            }
            _ => cells.counters.ignored.add(1),
        }
    }

    /// The function reads the queue memory: fills `out`; what holds nothing reads as zeroes.
    pub fn memory_read(&self, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        read_area(&self.cells.admin_sq, region::ADMIN_SQ, start, out);
        read_area(&self.cells.io_sq, region::IO_SQ, start, out);
        read_area(&self.cells.lists, region::LISTS, start, out);
    }

    /// The function signals a vector. Completions were noticed when they were written; this only looks again.
    pub fn interrupt(&mut self, now: Instant, _vector: u32) {
        self.take_admin(now);
        self.take_completions(now);
    }

    /// Both queues as a new controller finds them.
    pub(super) fn reset_queues(&mut self) {
        let (cells, journal) = (self.cells, self.journal);
        for entry in cells.admin_cq.iter().chain(&cells.io_cq) {
            entry.set(journal, [0; 2]);
        }
        for (cell, value) in [
            (&cells.admin_tail, 0),
            (&cells.admin_head, 0),
            (&cells.admin_rung, 0),
            (&cells.admin_phase, 1),
            (&cells.sq_tail, 0),
            (&cells.sq_rung, 0),
            (&cells.cq_head, 0),
            (&cells.cq_phase, 1),
            (&cells.cq_owed, 0),
        ] {
            cell.set(journal, value);
        }
        let supported = u32::from(Cap(cells.cap.get()).mqes()) + 1;
        cells.io_entries.set(journal, supported.min(IO_ENTRIES.into()) as u16);
    }

    /// The admin completion queue's head doorbell, if it is owed.
    pub(super) fn poll_admin_head(&mut self) -> Option<Access> {
        let head = self.cells.admin_head.get();
        if head == self.cells.admin_rung.get() || !self.state().has_admin_queue() {
            return None;
        }
        self.cells.admin_rung.set(self.journal, head);
        Some(self.ring(0, true, head))
    }

    /// The next write that submits something or acknowledges completions: entries first, then one doorbell for all.
    pub(super) fn poll_queues(&mut self, now: Instant) -> Option<Access> {
        let (cells, journal) = (self.cells, self.journal);
        self.make_own(now);
        while let Some(cid) = self.next_pending() {
            if cells.issued.get() >= cells.io_entries.get() - 1 {
                break;
            }
            if let Some(access) = self.issue(now, cid) {
                return Some(access);
            }
        }
        let tail = cells.sq_tail.get();
        if cells.sq_rung.get() != tail {
            cells.sq_rung.set(journal, tail);
            return Some(self.ring(IO_QUEUE, false, tail));
        }
        if cells.cq_owed.get() >= HEAD_BATCH.min(cells.io_entries.get() / 2) {
            cells.cq_owed.set(journal, 0);
            return Some(self.ring(IO_QUEUE, true, cells.cq_head.get()));
        }
        // What could not be issued may have ended without the controller.
        if cells.shutdown_limit.get() != 0 && cells.pending.is_empty() && self.slots.used() == 0 {
            self.transition(now, Event::Idle);
            return self.poll_access(now);
        }
        None
    }

    fn ring(&self, queue: u16, is_cq: bool, value: u16) -> Access {
        let payload = Payload::inline(&u32::from(value).to_le_bytes());
        Access::Write { bar: REGISTERS, offset: self.doorbell(queue, is_cq), payload }
    }

    /// Takes what has come in the admin completion queue, as long as there is room for what may follow from it.
    pub(super) fn take_admin(&mut self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
        for _ in 0..ADMIN_ENTRIES {
            if !self.state().has_admin_queue() || cells.out.room() < ACCESSES_RESERVED {
                return;
            }
            let head = cells.admin_head.get();
            let entry = completion(&cells.admin_cq[usize::from(head % ADMIN_ENTRIES)]);
            if u16::from(entry.phase()) != cells.admin_phase.get() {
                return;
            }
            let next = (head + 1) % ADMIN_ENTRIES;
            cells.admin_head.set(journal, next);
            if next == 0 {
                cells.admin_phase.update(journal, |phase| phase ^ 1);
            }
            if self.take_event(now, &entry) {
                continue;
            }
            if entry.cid.get() == cells.admin_cid.get() && self.state().waits_for_admin() {
                cells.timer.set(journal, 0);
                self.transition(now, Event::Admin(entry));
            } else {
                cells.counters.ignored.add(1);
            }
        }
    }

    fn take_completions(&mut self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
        if self.state() != State::Ready {
            return;
        }
        let entries = cells.io_entries.get();
        for _ in 0..entries {
            let head = cells.cq_head.get();
            let entry = completion(&cells.io_cq[usize::from(head % IO_ENTRIES)]);
            if u16::from(entry.phase()) != cells.cq_phase.get() {
                break;
            }
            let next = if head + 1 >= entries { 0 } else { head + 1 };
            cells.cq_head.set(journal, next);
            if next == 0 {
                cells.cq_phase.update(journal, |phase| phase ^ 1);
            }
            cells.cq_owed.update(journal, |owed| owed.saturating_add(1));
            self.complete(now, entry.cid.get(), entry.status());
        }
        self.transition(now, Event::Idle);
    }

    /// Stores what lies inside of a queue.
    fn store(&self, queue: &[Cell<[u64; 2]>], offset: usize, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while let Some(cell) = queue.get(at / COMPLETION_BYTES) {
            let start = at % COMPLETION_BYTES;
            let len = rest.len().min(COMPLETION_BYTES - start);
            if len == 0 {
                return;
            }
            let mut entry = cell.get();
            entry.as_mut_bytes()[start..start + len].copy_from_slice(&rest[..len]);
            cell.set(self.journal, entry);
            (at, rest) = (at + len, &rest[len..]);
        }
    }
}

/// Copies what of `area`, which lies at `at`, overlaps `out`, which begins at `start`.
fn read_area<const N: usize>(area: &Bytes<N>, at: usize, start: usize, out: &mut [u8]) {
    let (from, to) = (start.max(at), start.saturating_add(out.len()).min(at + N));
    if from < to {
        area.read(from - at, &mut out[from - start..to - start]);
    }
}

/// The entry as the controller wrote it.
fn completion(cell: &Cell<[u64; 2]>) -> CompletionEntry {
    let words = cell.get();
    CompletionEntry::read_from_bytes(words.as_bytes()).expect("two words are an entry long")
}
