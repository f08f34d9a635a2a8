//! The NVM command set: checks of the arguments, and what each command needs (NVM CS 1.0 §3.2).

use base::ledger::PAGE_SIZE;
use spec::nvme::{DatasetManagementRange, FusedOperation, NSID_ALL, NvmOpcode, Status, SubmissionEntry};
use zerocopy::FromBytes;

use super::Controller;
use super::cells::DATA_MAX;
use super::command::{RangeCursor, Work};
use super::features;
use crate::function::MediaKind;

/// The one namespace.
pub(super) const NAMESPACE: u32 = 1;
/// Longest piece of a range that the medium is given at once, in bytes: a power of two, so whole blocks.
const TRIM_PIECE: u32 = 1 << 30;
const RANGE_BYTES: usize = size_of::<DatasetManagementRange>();
const _: () = assert!(DatasetManagementRange::MAX * RANGE_BYTES <= PAGE_SIZE, "all ranges fit into one page");

impl Controller<'_> {
    /// Does what a decoded command says.
    pub(super) fn execute(&mut self, slot: u16) {
        let command = self.command(slot);
        let entry = command.entry();
        let origin = command.origin.update(self.journal, |mut origin| {
            origin.cid = entry.cid.get();
            origin
        });
        let outcome = if entry.psdt() != 0 || entry.fused() != FusedOperation::NORMAL {
            Err(Status::INVALID_FIELD)
        } else if origin.sq == 0 {
            self.execute_admin(slot, &entry)
        } else {
            self.execute_io(slot, &entry)
        };
        if let Err(status) = outcome {
            self.complete(slot, 0, status.with_dnr());
        }
    }

    fn execute_io(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let (opcode, nsid) = (entry.nvm_opcode(), entry.nsid.get());
        let known = [
            NvmOpcode::FLUSH,
            NvmOpcode::READ,
            NvmOpcode::WRITE,
            NvmOpcode::WRITE_ZEROES,
            NvmOpcode::DATASET_MANAGEMENT,
        ];
        if !known.contains(&opcode) {
            return Err(Status::INVALID_OPCODE);
        } else if nsid != NAMESPACE && !(opcode == NvmOpcode::FLUSH && nsid == NSID_ALL) {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        match opcode {
            NvmOpcode::FLUSH => {
                self.set_work(slot, Work::Flush);
                self.begin_media(slot, MediaKind::Flush, 0, 0);
            }
            NvmOpcode::READ => {
                let len = self.transfer_length(entry)?;
                self.begin_transfer(slot, Work::Read, len)?;
            }
            NvmOpcode::WRITE => {
                let len = self.transfer_length(entry)?;
                self.refuse_read_only()?;
                self.begin_transfer(slot, Work::Write, len)?;
            }
            NvmOpcode::WRITE_ZEROES => {
                self.check_range(entry.slba(), entry.nlb())?;
                self.refuse_read_only()?;
                self.set_work(slot, Work::Zeroes);
                let (offset, len) = self.byte_range(slot);
                self.begin_media(slot, MediaKind::Zero, offset, len);
            }
            _ if entry.dsm_attributes().ad() => {
                self.refuse_read_only()?;
                let len = entry.dsm_ranges() * RANGE_BYTES as u32;
                self.begin_transfer(slot, Work::Deallocate, len)?;
            }
            // Without the deallocate attribute the command is a hint, and this controller has no use for it.
            _ => self.complete(slot, 0, Status::SUCCESS),
        }
        Ok(())
    }

    /// The bytes of a command with data, if it may have so many and the blocks exist.
    fn transfer_length(&self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let io = entry.io_control();
        if io.prinfo() != 0 || io.dtype() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let len = u64::from(entry.nlb()) << self.config.block_shift();
        if len > u64::from(DATA_MAX) {
            return Err(Status::INVALID_FIELD);
        }
        self.check_range(entry.slba(), entry.nlb())?;
        Ok(len as u32)
    }

    fn check_range(&self, slba: u64, blocks: u32) -> Result<(), Status> {
        let end = slba.checked_add(blocks.into()).ok_or(Status::LBA_OUT_OF_RANGE)?;
        if end <= self.config.blocks { Ok(()) } else { Err(Status::LBA_OUT_OF_RANGE) }
    }

    fn refuse_read_only(&self) -> Result<(), Status> {
        if self.config.read_only { Err(Status::NAMESPACE_WRITE_PROTECTED) } else { Ok(()) }
    }

    /// First byte and length of a command on a range of blocks, which was checked. At most 65,536 blocks of 4 KiB.
    pub(super) fn byte_range(&self, slot: u16) -> (u64, u32) {
        let (entry, shift) = (self.command(slot).entry(), self.config.block_shift());
        (entry.slba() << shift, entry.nlb() << shift)
    }

    /// Whether a write has to be durable before it completes: because it says so, or because the cache is off.
    pub(super) fn is_durable_write(&self, slot: u16) -> bool {
        self.config.volatile_cache && (self.command(slot).entry().fua() || !features::write_cache(self))
    }

    /// Gives the medium the next range of a Dataset Management command, or completes it.
    pub(super) fn continue_ranges(&mut self, slot: u16) {
        let command = self.command(slot);
        let count = command.entry().dsm_ranges();
        let mut cursor = command.ranges.get();
        while cursor.range < count {
            let mut bytes = [0; RANGE_BYTES];
            self.pages.read(command.page(0), cursor.range as usize * RANGE_BYTES, &mut bytes);
            let range = DatasetManagementRange::read_from_bytes(&bytes).unwrap_or_default();
            if self.check_range(range.slba.get(), range.nlb.get()).is_err() {
                return self.complete(slot, 0, Status::LBA_OUT_OF_RANGE.with_dnr());
            }
            let shift = self.config.block_shift();
            let blocks = range.nlb.get().saturating_sub(cursor.blocks).min(TRIM_PIECE >> shift);
            if blocks != 0 {
                command.ranges.set(self.journal, cursor);
                let offset = (range.slba.get() + u64::from(cursor.blocks)) << shift;
                return self.begin_media(slot, MediaKind::Trim, offset, blocks << shift);
            }
            cursor = RangeCursor { range: cursor.range + 1, blocks: 0 };
        }
        self.complete(slot, 0, Status::SUCCESS);
    }
}
