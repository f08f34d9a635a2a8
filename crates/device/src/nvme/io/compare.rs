//! Compare, and the fused operation Compare and Write (NVM CS 1.0 §3.2.1, NVMe 2.0 §3.4.2).
//!
//! The halves of a fused operation load their data side by side. When both are there, the namespace becomes the first
//! half's alone, so that nobody writes between the comparison and the write. The outcome of the comparison is committed
//! before the write begins: a successor repeats the write, never the comparison.

use base::ledger::PAGE_SIZE;
use spec::nvme::{FusedOperation, NvmOpcode, Status, SubmissionEntry};

use crate::function::MediaKind;
use crate::nvme::Controller;
use crate::nvme::command::{Event, State};

/// Most bytes of a fused operation: a page.
pub(crate) const FUSED_MAX: u32 = PAGE_SIZE as u32;

impl Controller<'_> {
    /// Executes a command of an I/O queue. Commands come here in the order of their queue.
    pub(crate) fn execute_queued(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let origin = self.command(slot).origin.get();
        let queue = self.queues.submission(origin.sq);
        if let Some(first) = queue.fused.get().checked_sub(1) {
            queue.fused.set(self.journal, 0);
            if entry.fused() == FusedOperation::SECOND {
                self.execute_fused(first, slot, entry);
                return Ok(());
            }
            self.complete(first, 0, Status::ABORTED_MISSING_FUSED.with_dnr());
        }
        match entry.fused() {
            FusedOperation::NORMAL => self.execute_io(slot, entry),
            // Both halves are announced by one doorbell (NVMe 2.0 §3.4.2).
            FusedOperation::FIRST if queue.has_entry_behind(origin.index) => {
                queue.fused.set(self.journal, slot + 1);
                self.table.step(slot, Event::Pair);
                Ok(())
            }
            FusedOperation::FIRST | FusedOperation::SECOND => Err(Status::ABORTED_MISSING_FUSED),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn execute_fused(&mut self, first: u16, second: u16, write: &SubmissionEntry) {
        let compare = self.command(first).entry();
        self.table.step(first, Event::Fetched);
        self.command(first).partner.set(self.journal, second + 1);
        self.command(second).partner.set(self.journal, first + 1);
        self.command(first).exclusive.set(self.journal, 1);
        if let Err(status) = self.check_fused(&compare, write) {
            self.complete(second, 0, status.with_dnr());
            return;
        }
        if let Err(status) = self.execute_io(first, &compare) {
            self.complete(first, 0, status.with_dnr());
        } else if let Err(status) = self.execute_io(second, write) {
            self.complete(second, 0, status.with_dnr());
        }
    }

    fn check_fused(&self, compare: &SubmissionEntry, write: &SubmissionEntry) -> Result<(), Status> {
        let range = |entry: &SubmissionEntry| (entry.nsid.get(), entry.slba(), entry.nlb());
        let opcodes = (compare.nvm_opcode(), write.nvm_opcode());
        if opcodes != (NvmOpcode::COMPARE, NvmOpcode::WRITE) || range(compare) != range(write) {
            return Err(Status::INVALID_FIELD);
        }
        let namespace = self.active_namespace(write.nsid.get())?;
        if u64::from(write.nlb()) << namespace.shift > u64::from(FUSED_MAX) {
            return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED);
        }
        Ok(())
    }

    /// Ends the other half of a fused operation of which one has failed.
    pub(crate) fn fail_partner(&mut self, slot: u16) {
        let Some(partner) = self.command(slot).partner.get().checked_sub(1) else { return };
        self.part_fused(slot, partner);
        self.complete(partner, 0, Status::ABORTED_FAILED_FUSED.with_dnr());
    }

    fn part_fused(&self, slot: u16, partner: u16) {
        self.command(slot).partner.set(self.journal, 0);
        self.command(partner).partner.set(self.journal, 0);
    }

    /// One half of a fused operation has its data.
    pub(crate) fn half_loaded(&mut self, slot: u16) {
        let partner = self.command(slot).partner.get() - 1;
        self.table.step(slot, Event::Pair);
        if self.command(partner).state() == State::Paired {
            let first = if self.command(slot).exclusive.get() != 0 { slot } else { partner };
            self.continue_compare(first);
        }
    }

    /// Reads the next page of blocks that are compared, behind the data.
    pub(crate) fn continue_compare(&mut self, slot: u16) {
        let command = self.command(slot);
        let (target, done) = (command.target.get(), command.ranges.get().blocks);
        let len = (target.len - done).min(PAGE_SIZE as u32);
        let page = command.counts.get().len.div_ceil(PAGE_SIZE as u32) as u16;
        self.begin_media_at(slot, MediaKind::Read, target.offset + u64::from(done), len, page);
    }

    pub(crate) fn end_compared(&mut self, slot: u16, len: u32) {
        let command = self.command(slot);
        let work = command.media.get();
        if self.subsystem.is_bad(work.offset, work.len.into()) {
            return self.complete_unreadable(slot);
        }
        let done = command.ranges.get().blocks;
        let (mut theirs, mut ours) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let (theirs, ours) = (&mut theirs[..len as usize], &mut ours[..len as usize]);
        self.pages.read(command.page(done as usize / PAGE_SIZE), 0, theirs);
        self.pages.read(command.page(work.page.into()), 0, ours);
        if theirs != ours {
            return self.complete(slot, 0, Status::COMPARE_FAILURE.with_dnr());
        }
        let ranges = command.ranges.update(self.journal, |mut ranges| {
            ranges.blocks = done + len;
            ranges
        });
        if ranges.blocks < command.target.get().len {
            return self.continue_compare(slot);
        }
        self.cells.statistics.note_read(ranges.blocks);
        let Some(second) = command.partner.get().checked_sub(1) else {
            return self.complete(slot, 0, Status::SUCCESS);
        };
        self.part_fused(slot, second);
        self.gate.hand_over((slot, command), (second, self.command(second)));
        self.complete(slot, 0, Status::SUCCESS);
        self.begin_write(second);
    }
}
