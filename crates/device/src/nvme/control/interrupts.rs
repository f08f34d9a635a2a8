//! MSI-X: the vector table, the pending bits and the messages (PCIe 6.0 §6.1.4, §7.7.2).

use base::Payload;
use base::ledger::{Cell, Layout};
use pcie::msix::{Delivery, Entry};
use zerocopy::FromBytes;

use crate::function::Dma;
use crate::nvme::cells::{Part, VECTORS};
use crate::nvme::config_space::ConfigSpace;

/// Dwords of an entry of the vector table.
const ENTRY_DWORDS: usize = 4;
const ALL_BYTES: u8 = 0xf;

/// One entry of the vector table. The control word is stored relative to its value after reset, which is not zero.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct VectorCells {
    address: Cell<u64>,
    data: Cell<u32>,
    control: Cell<u32>,
}

impl VectorCells {
    fn entry(&self) -> Entry {
        let control = self.control.get() ^ Entry::RESET.control;
        Entry { address: self.address.get(), data: self.data.get(), control }
    }
}

/// The interrupts of one function.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct InterruptCells {
    vectors: [VectorCells; VECTORS],
    /// Vectors with a message that has not been sent: the pending bit array.
    pending: Cell<u64>,
}

/// The vector table, and which messages are due.
pub(crate) type Interrupts<'m> = Part<'m, InterruptCells>;

impl Interrupts<'_> {
    /// A dword of the vector table.
    pub(crate) fn read_vector(&self, offset: usize) -> u32 {
        let (index, dword) = (offset / 4 / ENTRY_DWORDS, offset / 4 % ENTRY_DWORDS);
        let Some(vector) = self.cells.vectors.get(index) else { return 0 };
        let bytes = vector.entry().to_bytes();
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[dword * 4 + byte]))
    }

    /// Writes a dword of the vector table.
    pub(crate) fn write_vector(&self, offset: usize, value: u32) {
        let (index, dword) = (offset / 4 / ENTRY_DWORDS, offset / 4 % ENTRY_DWORDS);
        let Some(vector) = self.cells.vectors.get(index) else { return };
        self.set_vector(vector, vector.entry().write(dword, value, ALL_BYTES));
    }

    fn set_vector(&self, vector: &VectorCells, entry: Entry) {
        vector.address.set(self.journal, entry.address);
        vector.data.set(self.journal, entry.data);
        vector.control.set(self.journal, entry.control ^ Entry::RESET.control);
    }

    /// A dword of the pending bit array.
    pub(crate) fn read_pending(&self, offset: usize) -> u32 {
        match offset {
            0 => self.cells.pending.get() as u32,
            4 => (self.cells.pending.get() >> 32) as u32,
            _ => 0,
        }
    }

    /// A message of `vector` is due. Several that have not left are one.
    pub(crate) fn raise(&self, vector: u16, config: &ConfigSpace<'_>) {
        if config.msix_control().enabled {
            self.cells.pending.update(self.journal, |pending| pending | 1 << vector);
        }
    }

    /// Takes the next message that may leave.
    pub(crate) fn take(&self, config: &ConfigSpace<'_>) -> Option<Dma> {
        let pending = self.cells.pending.get();
        if pending == 0 {
            return None;
        }
        let control = config.msix_control();
        for (index, vector) in self.cells.vectors.iter().enumerate() {
            let entry = vector.entry();
            if pending >> index & 1 == 1 && entry.deliver(control) == Delivery::Send {
                self.cells.pending.set(self.journal, pending & !(1 << index));
                let payload = Payload::inline(&entry.data.to_le_bytes());
                return Some(Dma::Write { address: entry.address, payload });
            }
        }
        None
    }

    /// No message is due any more.
    pub(crate) fn clear(&self) {
        self.cells.pending.set(self.journal, 0);
    }

    /// The table as it is after a reset of the function.
    pub(crate) fn reset(&self) {
        self.clear();
        for vector in &self.cells.vectors {
            self.set_vector(vector, Entry::RESET);
        }
    }
}
