//! Compare, and the fused operation Compare and Write (NVM CS 1.0 §3.2.1, NVMe 2.0 §3.4.2).
//!
//! The halves of a fused operation load their data side by side. When both are there, the namespace becomes the first
//! half's alone, so that nobody writes between the comparison and the write. The outcome of the comparison is committed
//! before the write begins: a successor repeats the write, never the comparison.

use base::ledger::PAGE_SIZE;
use spec::nvme::{NvmOpcode, Status, SubmissionEntry};

use super::NvmCommands;
use crate::function::MediaKind;
use crate::nvme::command::{CommandCells, MediaWork, Next};

/// Most bytes of a fused operation: a page.
pub(crate) const FUSED_MAX: u32 = PAGE_SIZE as u32;

impl NvmCommands<'_> {
    /// Whether two commands make a fused operation.
    pub(crate) fn check_fused(
        &self,
        compare: &SubmissionEntry,
        write: &SubmissionEntry,
    ) -> Result<(), Status> {
        let range = |entry: &SubmissionEntry| (entry.nsid.get(), entry.slba(), entry.nlb());
        let opcodes = (compare.nvm_opcode(), write.nvm_opcode());
        if opcodes != (NvmOpcode::COMPARE, NvmOpcode::WRITE) || range(compare) != range(write) {
            return Err(Status::INVALID_FIELD);
        }
        let namespace = self.subsystem.active_namespace(write.nsid.get(), self.index)?;
        if u64::from(write.nlb()) << namespace.shift > u64::from(FUSED_MAX) {
            return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED);
        }
        Ok(())
    }

    /// Compares the page that was read.
    pub(super) fn compare(&self, command: &CommandCells, work: &MediaWork) -> Result<Next, Status> {
        let done = command.ranges.get().blocks;
        let (mut theirs, mut ours) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let (theirs, ours) = (&mut theirs[..work.len as usize], &mut ours[..work.len as usize]);
        self.pages.read(command.page(done as usize / PAGE_SIZE), 0, theirs);
        self.pages.read(command.page(work.page.into()), 0, ours);
        if theirs != ours {
            return Err(Status::COMPARE_FAILURE);
        }
        let ranges = command.ranges.update(self.journal, |mut ranges| {
            ranges.blocks = done + work.len;
            ranges
        });
        if ranges.blocks < command.target.get().len {
            return Ok(next(command));
        }
        self.statistics.note_read(ranges.blocks);
        Ok(if command.partner.get() != 0 { Next::SecondHalf } else { Next::Complete(0) })
    }
}

/// Reads the next page of blocks that are compared, behind the data. `ranges.blocks` counts the bytes that are.
pub(crate) fn next(command: &CommandCells) -> Next {
    let (target, done) = (command.target.get(), command.ranges.get().blocks);
    let len = (target.len - done).min(PAGE_SIZE as u32);
    let page = command.counts.get().len.div_ceil(PAGE_SIZE as u32) as u16;
    Next::Media(MediaWork { page, ..MediaWork::new(MediaKind::Read, target.offset + u64::from(done), len) })
}
