//! How a command names its data: PRP entries in place, or a list of them; and the range of a deallocation.
//!
//! A list lies in the area of its command identifier: in the controller memory buffer if that takes lists, written
//! there ahead of the command, else in the queue memory.

use base::ledger::{Bytes, Cell, Journal, PAGE_SIZE};
use spec::nvme::prp::ENTRY_SIZE;
use spec::nvme::{DatasetManagementRange, NvmOpcode, SubmissionEntry};
use zerocopy::IntoBytes;

use super::DriverConfig;
use super::cells::{COMMANDS, Command, IO_ENTRIES, LIST_BYTES, SUBMISSION_BYTES, region};
use super::init::CMB_ADDRESS;
use super::namespace::{Namespace, flag};
use super::registers::Registers;
use crate::{Access, BlockKind};

/// Where the lists begin in a controller memory buffer: behind the submission queue.
const CMB_LISTS: u64 = IO_ENTRIES as u64 * SUBMISSION_BYTES as u64;
/// Bytes of a controller memory buffer that takes queue and lists.
const CMB_WITH_LISTS: u64 = CMB_LISTS + (COMMANDS * LIST_BYTES) as u64;
/// Bytes of one posted write.
const PIECE: usize = base::INLINE_MAX;

/// The commands' entries and lists.
pub(super) struct Lists<'m> {
    pub(super) memory: &'m Bytes<{ COMMANDS * LIST_BYTES }>,
    /// How much of the first pending command's list has been written to the controller's memory.
    pub(super) piece: &'m Cell<u16>,
    pub(super) registers: Registers<'m>,
    pub(super) namespace: Namespace<'m>,
    pub(super) journal: Journal<'m>,
    pub(super) config: DriverConfig,
}

impl Lists<'_> {
    /// The submission queue entry of a command with these pages.
    pub(super) fn submission(&self, cid: u16, command: &Command, pages: &[Cell<u16>]) -> SubmissionEntry {
        let (lba, blocks) = (command.lba, command.blocks);
        let nsid = self.namespace.nsid();
        let entry = match command.kind() {
            BlockKind::Flush => return SubmissionEntry::flush(cid, nsid),
            BlockKind::Trim => {
                return SubmissionEntry::deallocate(cid, nsid, 1)
                    .with_prps(self.list_address(cid, command), 0);
            }
            BlockKind::WriteZeroes { deallocate } => {
                SubmissionEntry::write_zeroes(cid, nsid, lba, blocks, deallocate)
            }
            BlockKind::Read => self.with_data(
                SubmissionEntry::nvm_range(NvmOpcode::READ, cid, nsid, lba, blocks),
                cid,
                command,
                pages,
            ),
            BlockKind::Write => self.with_data(
                SubmissionEntry::nvm_range(NvmOpcode::WRITE, cid, nsid, lba, blocks),
                cid,
                command,
                pages,
            ),
        };
        if command.fua != 0 || self.namespace.has(flag::SHARED) && command.is_write() {
            entry.with_fua()
        } else {
            entry
        }
    }

    /// Writes a command's list to the queue memory, or returns its next piece for the controller's; `None` when all of
    /// it is in place.
    pub(super) fn place(&self, cid: u16, command: &Command, pages: &[Cell<u16>]) -> Option<Access> {
        let total = list_len(command);
        let place = usize::from(cid) * LIST_BYTES;
        let mut bytes = [0; LIST_BYTES];
        if total == 0 {
            return None;
        }
        if !self.list_in_cmb(command) {
            self.fill(command, pages, &mut bytes[..total]);
            self.memory.write(self.journal, place, &bytes[..total]);
            return None;
        }
        let start = usize::from(self.piece.get()) * PIECE;
        if start >= total {
            return None;
        }
        self.fill(command, pages, &mut bytes[..total]);
        self.piece.update(self.journal, |piece| piece + 1);
        let offset = CMB_LISTS + (place + start) as u64;
        Some(self.registers.cmb_write(offset, &bytes[start..total.min(start + PIECE)]))
    }

    /// The next command is another one.
    pub(super) fn rewind(&self) {
        self.piece.set(self.journal, 0);
    }

    fn with_data(
        &self,
        entry: SubmissionEntry,
        cid: u16,
        command: &Command,
        pages: &[Cell<u16>],
    ) -> SubmissionEntry {
        let second = match command.pages {
            0 | 1 => 0,
            2 => self.page_address(&pages[1]),
            _ => self.list_address(cid, command),
        };
        entry.with_prps(self.page_address(&pages[0]) + u64::from(command.offset), second)
    }

    /// The list of all pages but the first, or the range to deallocate.
    fn fill(&self, command: &Command, pages: &[Cell<u16>], out: &mut [u8]) {
        if command.kind() == BlockKind::Trim {
            return out.copy_from_slice(DatasetManagementRange::new(command.lba, command.blocks).as_bytes());
        }
        for (page, entry) in pages[1..].iter().zip(out.chunks_exact_mut(ENTRY_SIZE)) {
            entry.copy_from_slice(&self.page_address(page).to_le_bytes());
        }
    }

    fn page_address(&self, page: &Cell<u16>) -> u64 {
        self.config.data_memory + u64::from(page.get()) * PAGE_SIZE as u64
    }

    fn list_address(&self, cid: u16, command: &Command) -> u64 {
        let place = usize::from(cid) * LIST_BYTES;
        if self.list_in_cmb(command) {
            CMB_ADDRESS + CMB_LISTS + place as u64
        } else {
            self.config.queue_memory + (region::LISTS + place) as u64
        }
    }

    /// The range of a deallocation is data to the controller, not a list.
    fn list_in_cmb(&self, command: &Command) -> bool {
        let size = self.registers.cmb();
        let taken = if command.kind() == BlockKind::Trim { size.wds() } else { size.lists() };
        taken && size.bytes().is_some_and(|bytes| bytes >= CMB_WITH_LISTS)
    }
}

/// Bytes of what a command's data pointer points to beside the data.
fn list_len(command: &Command) -> usize {
    match command.kind() {
        BlockKind::Trim => size_of::<DatasetManagementRange>(),
        BlockKind::Read | BlockKind::Write if command.pages > 2 => {
            (usize::from(command.pages) - 1) * ENTRY_SIZE
        }
        _ => 0,
    }
}
