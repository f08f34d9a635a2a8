//! Copy (NVM CS 1.0 §3.2.2): all sources are gathered in pages of the command, then written at once.
//!
//! Nothing is written before the last source has been read and that has been committed, so sources and destination may
//! overlap, and a successor that repeats the write writes the same.

use base::ledger::PAGE_SIZE;
use spec::nvme::{CopyRange, Status, SubmissionEntry};
use zerocopy::IntoBytes;

use super::{NvmCommands, write};
use crate::function::MediaKind;
use crate::nvme::cells::{DATA_MAX, DATA_PAGES};
use crate::nvme::command::{CommandCells, Counts, MediaWork, Next, RangeCursor, Target, Work};
use crate::nvme::limit::RateLimit;
use crate::nvme::subsystem::Namespace;

/// Most source ranges: they fill one page.
pub(crate) const COPY_RANGES: u32 = (PAGE_SIZE / RANGE_BYTES) as u32;
const RANGE_BYTES: usize = size_of::<CopyRange>();
/// The pages behind those that are written: of the ranges, and of what does not begin at a page of its own.
const RANGES_PAGE: usize = DATA_PAGES;
const SCRATCH_PAGE: u16 = DATA_PAGES as u16 + 1;
const PAGE: u32 = PAGE_SIZE as u32;

/// Most blocks of a Copy, of one range and of all.
pub(crate) const fn copy_blocks(shift: u32) -> u32 {
    DATA_MAX >> shift
}

/// Checks what a Copy says before its ranges are read.
pub(super) fn check(entry: &SubmissionEntry, namespace: &Namespace) -> Result<Next, Status> {
    let control = entry.copy_control();
    let ranges = u32::from(control.nr0()) + 1;
    if control.desfmt() != 0 || control.dtype() != 0 {
        return Err(Status::INVALID_FIELD);
    } else if namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    } else if ranges > COPY_RANGES {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    }
    Ok(Next::Transfer(Work::Copy, ranges * RANGE_BYTES as u32))
}

impl NvmCommands<'_> {
    /// The ranges have come: checks every one, and finds the destination.
    pub(super) fn begin_copy(
        &self,
        command: &CommandCells,
        limit: &mut RateLimit<'_>,
    ) -> Result<Next, Status> {
        let entry = command.entry();
        // The data pointer's pages are filled from the first on, which is wanted for what is copied.
        let mut bytes = [0; PAGE_SIZE];
        self.pages.read(command.page(0), 0, &mut bytes);
        self.pages.write(command.page(RANGES_PAGE), 0, &bytes);
        let namespace = self.copied_namespace(command)?;
        let mut blocks = 0_u32;
        for range in 0..u32::from(entry.copy_control().nr0()) + 1 {
            let range = self.copy_range(command, range);
            namespace.byte_range(range.slba.get(), range.nlb())?;
            blocks += range.nlb();
            if blocks > copy_blocks(namespace.shift) {
                return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
            }
        }
        let (offset, len) = namespace.byte_range(entry.sdlba(), blocks)?;
        command.target.set(self.journal, Target { offset, len, nsid: namespace.nsid });
        command.counts.update(self.journal, |counts| Counts { len, ..counts });
        command.progress.set(self.journal, Default::default());
        // Read once and written once.
        limit.charge_bytes(len.saturating_mul(2));
        self.continue_copy(command)
    }

    fn copied_namespace(&self, command: &CommandCells) -> Result<Namespace, Status> {
        let namespace = self.subsystem.active(command.target.get().nsid, self.index);
        namespace.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)
    }

    fn copy_range(&self, command: &CommandCells, range: u32) -> CopyRange {
        let mut copy = CopyRange::default();
        self.pages.read(command.page(RANGES_PAGE), range as usize * RANGE_BYTES, copy.as_mut_bytes());
        copy
    }

    /// Reads the next piece of the sources, or writes when all are there. `progress.arrived` counts the bytes gathered.
    fn continue_copy(&self, command: &CommandCells) -> Result<Next, Status> {
        let (target, gathered) = (command.target.get(), command.progress.get().arrived);
        if gathered == target.len {
            return Ok(write(command));
        }
        let namespace = self.copied_namespace(command)?;
        let cursor = command.ranges.get();
        let range = self.copy_range(command, cursor.range);
        let offset = namespace.start + (range.slba.get() << namespace.shift);
        let left = (range.nlb() - cursor.blocks) << namespace.shift;
        let inside = gathered % PAGE;
        // What begins at a page goes where it belongs, the rest through the scratch page.
        let (len, page) = if inside == 0 {
            (left, (gathered / PAGE) as u16)
        } else {
            (left.min(PAGE - inside), SCRATCH_PAGE)
        };
        let offset = offset + (u64::from(cursor.blocks) << namespace.shift);
        Ok(Next::Media(MediaWork { page, ..MediaWork::new(MediaKind::Read, offset, len) }))
    }

    pub(super) fn end_copy_read(&self, command: &CommandCells, work: &MediaWork) -> Result<Next, Status> {
        let gathered = command.progress.get().arrived;
        if work.page == SCRATCH_PAGE {
            let mut bytes = [0; PAGE_SIZE];
            let bytes = &mut bytes[..work.len as usize];
            self.pages.read(command.page(SCRATCH_PAGE.into()), 0, bytes);
            command.write_data(self.pages, gathered as usize, bytes);
        }
        self.advance(command, work.len);
        let namespace = self.copied_namespace(command)?;
        let cursor = command.ranges.get();
        let blocks = cursor.blocks + (work.len >> namespace.shift);
        let whole = blocks == self.copy_range(command, cursor.range).nlb();
        let next = if whole {
            RangeCursor { range: cursor.range + 1, blocks: 0 }
        } else {
            RangeCursor { blocks, ..cursor }
        };
        command.ranges.set(self.journal, next);
        self.continue_copy(command)
    }
}
