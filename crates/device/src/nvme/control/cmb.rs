//! The controller memory buffer: submission queues and PRP lists may lie in it (NVMe 2.0 §8.5).

use base::ledger::{Bytes, Cell, Journal, Layout, PAGE_SIZE};
use spec::nvme::Status;
use spec::nvme::registers::{CMBLOC, CMBMSC, CMBSTS, CMBSZ, CmbLoc, CmbMsc, CmbSts, CmbSz};
use zerocopy::FromBytes;

use crate::nvme::cells::MEMORY_BUFFER_BYTES;
use crate::nvme::config_space::MEMORY_BUFFER_BAR;
use crate::nvme::queues::{CQE_BYTES, QueueMemory, SQE_BYTES};

const BYTES: u64 = MEMORY_BUFFER_BYTES as u64;

/// The properties of the buffer.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct BufferCells {
    cmbmsc: Cell<u64>,
    cmbsts: Cell<u32>,
    reserved: Cell<u32>,
}

/// The buffer, and where the host has put it.
pub(crate) struct MemoryBuffer<'m> {
    cells: &'m BufferCells,
    bytes: &'m Bytes<MEMORY_BUFFER_BYTES>,
    journal: Journal<'m>,
    /// Whether there is one.
    exists: bool,
}

impl<'m> MemoryBuffer<'m> {
    pub(crate) fn new(
        cells: &'m BufferCells,
        bytes: &'m Bytes<MEMORY_BUFFER_BYTES>,
        journal: Journal<'m>,
        exists: bool,
    ) -> Self {
        Self { cells, bytes, journal, exists }
    }

    /// A dword of the buffer's properties; of others, 0.
    pub(crate) fn read_register(&self, offset: u64) -> u32 {
        let size = CmbSz(0).with_sqs(true).with_lists(true).with_sz((MEMORY_BUFFER_BYTES / PAGE_SIZE) as u32);
        let control = self.control();
        match offset {
            CMBLOC if control.cre() => CmbLoc(0).with_bir(MEMORY_BUFFER_BAR).0,
            CMBSZ if control.cre() => size.0,
            CMBSTS => self.cells.cmbsts.get(),
            _ if offset & !4 == CMBMSC => (control.0 >> (8 * (offset & 4))) as u32,
            _ => 0,
        }
    }

    /// Writes a dword of CMBMSC. What is read-only or unknown ignores it.
    pub(crate) fn write_register(&self, offset: u64, value: u32) {
        if offset & !4 != CMBMSC || !self.exists {
            return;
        }
        let control = CmbMsc(joined(self.control().0, offset, value) & CmbMsc::DEFINED);
        let invalid = control.cmse() && control.base_address().checked_add(BYTES).is_none();
        self.cells.cmbmsc.set(self.journal, control.0);
        self.cells.cmbsts.set(self.journal, CmbSts(0).with_cbai(invalid).0);
    }

    fn control(&self) -> CmbMsc {
        CmbMsc(self.cells.cmbmsc.get())
    }

    /// Where `address` lies in the buffer, if it does.
    pub(crate) fn offset_of(&self, address: u64) -> Option<u64> {
        let control = self.control();
        let enabled = self.exists && control.cre() && control.cmse();
        let offset = address.checked_sub(control.base_address())?;
        (enabled && offset < BYTES && control.base_address().checked_add(BYTES).is_some()).then_some(offset)
    }

    /// Data in the buffer are not supported, only queues and lists (CMBSZ).
    pub(crate) fn refuse(&self, address: u64) -> Result<(), Status> {
        if self.offset_of(address).is_some() { Err(Status::INVALID_USE_OF_CMB) } else { Ok(()) }
    }

    /// Where a contiguous submission queue at `base` lies: address or offset in the buffer, and which of them.
    pub(crate) fn place_submission_queue(
        &self,
        base: u64,
        entries: u32,
    ) -> Result<(u64, QueueMemory), Status> {
        let bytes = u64::from(entries) * SQE_BYTES as u64;
        let end = base.checked_add(bytes).ok_or(Status::INVALID_FIELD)?;
        match (self.offset_of(base), self.offset_of(end - 1)) {
            (Some(offset), Some(_)) => Ok((offset, QueueMemory::Buffer)),
            (None, None) => Ok((base, QueueMemory::Host)),
            _ => Err(Status::INVALID_USE_OF_CMB),
        }
    }

    /// Refuses a completion queue that ends outside of the address space or lies in the buffer.
    pub(crate) fn place_completion_queue(&self, base: u64, entries: u32) -> Result<(), Status> {
        let bytes = u64::from(entries) * CQE_BYTES as u64;
        let end = base.checked_add(bytes).ok_or(Status::INVALID_FIELD)?;
        let outside = self.offset_of(base).is_none() && self.offset_of(end - 1).is_none();
        if outside { Ok(()) } else { Err(Status::INVALID_USE_OF_CMB) }
    }

    /// A write to the buffer's BAR; what ends outside is ignored.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        if let Some(offset) = inside(offset, bytes.len()).filter(|_| self.exists) {
            self.bytes.write(self.journal, offset, bytes);
        }
    }

    /// What lies in the buffer; what ends outside reads as zeroes.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        match inside(offset, out.len()).filter(|_| self.exists) {
            Some(offset) => self.bytes.read(offset, out),
            None => out.fill(0),
        }
    }

    /// The function is as after power-on.
    pub(crate) fn reset(&self) {
        self.cells.cmbmsc.set(self.journal, 0);
        self.cells.cmbsts.set(self.journal, 0);
    }
}

fn inside(offset: u64, len: usize) -> Option<usize> {
    let end = offset.checked_add(len as u64)?;
    (end <= BYTES).then_some(offset as usize)
}

/// A property of 64 bits of which the dword at `offset` is written.
pub(super) fn joined(old: u64, offset: u64, value: u32) -> u64 {
    let shift = 8 * (offset & 4);
    old & !(0xffff_ffff << shift) | u64::from(value) << shift
}
