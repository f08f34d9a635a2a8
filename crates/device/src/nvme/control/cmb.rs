//! The controller memory buffer: submission queues and PRP lists may lie in it (NVMe 2.0 §8.5).

use base::ledger::PAGE_SIZE;
use spec::nvme::Status;
use spec::nvme::registers::{CmbLoc, CmbMsc, CmbSts, CmbSz};

use crate::nvme::Controller;
use crate::nvme::cells::MEMORY_BUFFER_BYTES;
use crate::nvme::config_space::MEMORY_BUFFER_BAR;
use crate::nvme::queues::{CQE_BYTES, QueueMemory, SQE_BYTES};

const BYTES: u64 = MEMORY_BUFFER_BYTES as u64;

impl Controller<'_> {
    pub(crate) fn buffer_location(&self) -> CmbLoc {
        if self.buffer_control().cre() { CmbLoc(0).with_bir(MEMORY_BUFFER_BAR) } else { CmbLoc(0) }
    }

    pub(crate) fn buffer_size(&self) -> CmbSz {
        let size = CmbSz(0).with_sqs(true).with_lists(true).with_sz((MEMORY_BUFFER_BYTES / PAGE_SIZE) as u32);
        if self.buffer_control().cre() { size } else { CmbSz(0) }
    }

    fn buffer_control(&self) -> CmbMsc {
        CmbMsc(self.cells.registers.cmbmsc.get())
    }

    pub(crate) fn write_buffer_control(&mut self, value: u64) {
        let control = CmbMsc(value & CmbMsc::DEFINED);
        let invalid = control.cmse() && control.base_address().checked_add(BYTES).is_none();
        self.cells.registers.cmbmsc.set(self.journal, control.0);
        self.cells.registers.cmbsts.set(self.journal, CmbSts(0).with_cbai(invalid).0);
    }

    /// Where `address` lies in the buffer, if it does.
    pub(crate) fn buffer_offset(&self, address: u64) -> Option<u64> {
        let control = self.buffer_control();
        let enabled = self.config.memory_buffer && control.cre() && control.cmse();
        let offset = address.checked_sub(control.base_address())?;
        (enabled && offset < BYTES && control.base_address().checked_add(BYTES).is_some()).then_some(offset)
    }

    /// Where a contiguous submission queue at `base` lies: address or offset in the buffer, and which of them.
    pub(crate) fn place_submission_queue(
        &self,
        base: u64,
        entries: u32,
    ) -> Result<(u64, QueueMemory), Status> {
        let bytes = u64::from(entries) * SQE_BYTES as u64;
        let end = base.checked_add(bytes).ok_or(Status::INVALID_FIELD)?;
        match (self.buffer_offset(base), self.buffer_offset(end - 1)) {
            (Some(offset), Some(_)) => Ok((offset, QueueMemory::Buffer)),
            (None, None) => Ok((base, QueueMemory::Host)),
            _ => Err(Status::INVALID_USE_OF_CMB),
        }
    }

    /// Refuses a completion queue that ends outside of the address space or lies in the buffer.
    pub(crate) fn place_completion_queue(&self, base: u64, entries: u32) -> Result<(), Status> {
        let bytes = u64::from(entries) * CQE_BYTES as u64;
        let end = base.checked_add(bytes).ok_or(Status::INVALID_FIELD)?;
        let outside = self.buffer_offset(base).is_none() && self.buffer_offset(end - 1).is_none();
        if outside { Ok(()) } else { Err(Status::INVALID_USE_OF_CMB) }
    }

    /// A write to the buffer's BAR; what ends outside is ignored.
    pub(crate) fn write_buffer(&mut self, offset: u64, bytes: &[u8]) {
        if let Some(offset) = inside(offset, bytes.len()) {
            self.cells.memory_buffer.write(self.journal, offset, bytes);
        }
    }

    /// A read of the buffer's BAR.
    pub(crate) fn read_buffer(&self, offset: u64, out: &mut [u8]) {
        match inside(offset, out.len()) {
            Some(offset) => self.cells.memory_buffer.read(offset, out),
            None => out.fill(0),
        }
    }
}

fn inside(offset: u64, len: usize) -> Option<usize> {
    let end = offset.checked_add(len as u64)?;
    (end <= BYTES).then_some(offset as usize)
}
