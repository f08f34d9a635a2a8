//! The queues: the admin pair and the one for I/O, and their doorbells.

use base::ledger::{Bytes, Cell, Journal, Layout};
use spec::nvme::{CompletionEntry, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

use super::cells::{ADMIN_ENTRIES, AdminEntries, COMPLETION_BYTES, IO_ENTRIES, IoEntries, SUBMISSION_BYTES};
use super::registers::Registers;
use crate::Access;

/// The I/O queue pair.
pub(super) const IO_QUEUE: u16 = 1;
/// Completions taken before the controller is told; far from the queue's size, so that it never waits.
const HEAD_BATCH: u16 = 64;

/// Where both pairs are.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct QueueCells {
    /// Admin submission tail, admin completion head, and the phase of the entry there.
    admin_tail: Cell<u16>,
    admin_head: Cell<u16>,
    admin_phase: Cell<u16>,
    /// The admin completion head that the controller was told.
    admin_rung: Cell<u16>,
    /// Entries of both I/O queues.
    entries: Cell<u16>,
    tail: Cell<u16>,
    /// The tail that the controller was told.
    rung: Cell<u16>,
    head: Cell<u16>,
    phase: Cell<u16>,
    /// Completions taken since the controller was told the head.
    owed: Cell<u16>,
}

/// The queues.
#[derive(Clone, Copy)]
pub(super) struct Queues<'m> {
    pub(super) cells: &'m QueueCells,
    pub(super) admin: &'m AdminEntries,
    pub(super) io: &'m IoEntries,
    pub(super) registers: Registers<'m>,
    pub(super) journal: Journal<'m>,
}

impl Queues<'_> {
    /// All of them as a new controller finds them, which takes so many entries.
    pub(super) fn reset(&self, supported: u32) {
        let (cells, journal) = (self.cells, self.journal);
        for entry in self.admin.cq.iter().chain(&self.io.cq) {
            entry.set(journal, [0; 2]);
        }
        for (cell, value) in [
            (&cells.admin_tail, 0),
            (&cells.admin_head, 0),
            (&cells.admin_rung, 0),
            (&cells.admin_phase, 1),
            (&cells.tail, 0),
            (&cells.rung, 0),
            (&cells.head, 0),
            (&cells.phase, 1),
            (&cells.owed, 0),
        ] {
            cell.set(journal, value);
        }
        cells.entries.set(journal, supported.min(IO_ENTRIES.into()) as u16);
    }

    /// Entries of both I/O queues.
    pub(super) fn entries(&self) -> u16 {
        self.cells.entries.get()
    }

    /// The controller writes into the admin completion queue.
    pub(super) fn store_admin(&self, offset: usize, bytes: &[u8]) {
        store(&self.admin.cq, self.journal, offset, bytes);
    }

    /// The controller writes into the I/O completion queue.
    pub(super) fn store_io(&self, offset: usize, bytes: &[u8]) {
        store(&self.io.cq, self.journal, offset, bytes);
    }

    /// Puts a command into the admin queue, and tells the controller.
    pub(super) fn submit_admin(&self, cid: u16, mut entry: SubmissionEntry) {
        entry.cid = cid.into();
        let slot = self.cells.admin_tail.get();
        self.admin.sq.write(self.journal, usize::from(slot) * SUBMISSION_BYTES, entry.as_bytes());
        let tail = (slot + 1) % ADMIN_ENTRIES;
        self.cells.admin_tail.set(self.journal, tail);
        self.registers.post_u32(self.registers.doorbell(0, false), tail.into());
    }

    /// Puts a command into the I/O queue, where there is room; the write that does so, if it lies in the controller.
    pub(super) fn submit(&self, entry: &SubmissionEntry) -> Option<Access> {
        let slot = self.cells.tail.get();
        self.cells.tail.set(self.journal, (slot + 1) % self.entries());
        let at = usize::from(slot) * SUBMISSION_BYTES;
        if self.registers.has_cmb() {
            return Some(self.registers.cmb_write(at as u64, entry.as_bytes()));
        }
        self.io.sq.write(self.journal, at, entry.as_bytes());
        None
    }

    /// The next admin completion.
    pub(super) fn take_admin(&self) -> Option<CompletionEntry> {
        let (cells, head) = (self.cells, self.cells.admin_head.get());
        let entry = completion(&self.admin.cq[usize::from(head % ADMIN_ENTRIES)]);
        if u16::from(entry.phase()) != cells.admin_phase.get() {
            return None;
        }
        self.advance(&cells.admin_head, &cells.admin_phase, (head + 1) % ADMIN_ENTRIES);
        Some(entry)
    }

    /// The next completion of I/O.
    pub(super) fn take(&self) -> Option<CompletionEntry> {
        let (cells, head) = (self.cells, self.cells.head.get());
        let entry = completion(&self.io.cq[usize::from(head % IO_ENTRIES)]);
        if u16::from(entry.phase()) != cells.phase.get() {
            return None;
        }
        self.advance(&cells.head, &cells.phase, if head + 1 >= self.entries() { 0 } else { head + 1 });
        cells.owed.update(self.journal, |owed| owed.saturating_add(1));
        Some(entry)
    }

    fn advance(&self, head: &Cell<u16>, phase: &Cell<u16>, next: u16) {
        head.set(self.journal, next);
        if next == 0 {
            phase.update(self.journal, |phase| phase ^ 1);
        }
    }

    /// The admin completion queue's head doorbell, if it is owed.
    pub(super) fn poll_admin_head(&self) -> Option<Access> {
        let head = self.cells.admin_head.get();
        if head == self.cells.admin_rung.get() {
            return None;
        }
        self.cells.admin_rung.set(self.journal, head);
        Some(self.registers.ring(0, true, head))
    }

    /// The next doorbell of the I/O queues that is owed: one for all entries, and one for many completions.
    pub(super) fn poll_doorbell(&self) -> Option<Access> {
        let (cells, journal) = (self.cells, self.journal);
        let tail = cells.tail.get();
        if cells.rung.get() != tail {
            cells.rung.set(journal, tail);
            return Some(self.registers.ring(IO_QUEUE, false, tail));
        }
        if cells.owed.get() >= HEAD_BATCH.min(self.entries() / 2) {
            cells.owed.set(journal, 0);
            return Some(self.registers.ring(IO_QUEUE, true, cells.head.get()));
        }
        None
    }
}

/// Stores what lies inside of a queue.
fn store(queue: &[Cell<[u64; 2]>], journal: Journal<'_>, offset: usize, bytes: &[u8]) {
    let (mut at, mut rest) = (offset, bytes);
    while let Some(cell) = queue.get(at / COMPLETION_BYTES) {
        let start = at % COMPLETION_BYTES;
        let len = rest.len().min(COMPLETION_BYTES - start);
        if len == 0 {
            return;
        }
        let mut entry = cell.get();
        entry.as_mut_bytes()[start..start + len].copy_from_slice(&rest[..len]);
        cell.set(journal, entry);
        (at, rest) = (at + len, &rest[len..]);
    }
}

/// Copies what of `area`, which lies at `at`, overlaps `out`, which begins at `start`.
pub(super) fn read_area<const N: usize>(area: &Bytes<N>, at: usize, start: usize, out: &mut [u8]) {
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
