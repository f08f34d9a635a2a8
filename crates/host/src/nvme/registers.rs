//! The function's registers: what is known of them, posted writes, and the one access whose answer is awaited.

use base::Payload;
use base::coded;
use base::ledger::{Cell, Code, Fifo, Journal, Layout};
use spec::nvme::registers::{self, Cap, CmbLoc, CmbSz};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cells::ACCESSES;
use crate::{Access, AccessId};

/// The BAR of the controller's registers (NVMe PCIe 1.0 §3.1.1).
pub(super) const REGISTERS: u8 = 0;

/// What is known of the registers, and accesses to them. All zeroes: nothing.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct RegisterCells {
    /// The access that is waited for; 0 for none.
    awaited: Cell<u32>,
    /// Number of the last access.
    serial: Cell<u32>,
    /// Controller Capabilities.
    cap: Cell<u64>,
    /// Raw CMBLOC.
    cmb_location: Cell<u32>,
    /// Raw CMBSZ; 0 for no controller memory buffer.
    cmb_size: Cell<u32>,
    /// Accesses that are to be polled.
    out: Fifo<AccessRecord, ACCESSES>,
}

/// An access of the initialisation.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct AccessRecord {
    offset: u64,
    data: [u8; 16],
    id: u32,
    kind: Code<AccessKind>,
    bar: u8,
    len: u8,
    byte_enables: u8,
}

/// What is accessed, and how.
#[derive(Clone, Copy, PartialEq)]
enum AccessKind {
    Write,
    Read,
    ConfigRead,
    ConfigWrite,
}
coded!(AccessKind: Write, Read, ConfigRead, ConfigWrite);

/// The registers of the function.
#[derive(Clone, Copy)]
pub(super) struct Registers<'m> {
    cells: &'m RegisterCells,
    journal: Journal<'m>,
}

impl<'m> Registers<'m> {
    pub(super) fn new(cells: &'m RegisterCells, journal: Journal<'m>) -> Self {
        Self { cells, journal }
    }

    /// Whether nothing waits to be polled.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.out.is_empty()
    }

    /// Accesses for which there is room.
    pub(super) fn room(&self) -> usize {
        self.cells.out.room()
    }

    /// The next access to the function.
    pub(super) fn poll(&self) -> Option<Access> {
        self.cells.out.pop(self.journal).map(|record| record.access())
    }

    /// What waits to be polled is not wanted any more.
    pub(super) fn clear(&self) {
        self.cells.out.clear(self.journal);
    }

    /// Whether an answer is awaited.
    pub(super) fn is_awaiting(&self) -> bool {
        self.cells.awaited.get() != 0
    }

    /// Whether `id` is the access whose answer is awaited.
    pub(super) fn awaits(&self, id: AccessId) -> bool {
        id.0 != 0 && id.0 == self.cells.awaited.get()
    }

    /// No answer is awaited any more.
    pub(super) fn stop_awaiting(&self) {
        self.cells.awaited.set(self.journal, 0);
    }

    pub(super) fn config_read(&self, register: u16) {
        self.ask(AccessRecord { kind: AccessKind::ConfigRead.into(), ..record(register.into()) });
    }

    pub(super) fn config_write(&self, register: u16, value: u32, byte_enables: u8) {
        let kind = AccessKind::ConfigWrite.into();
        let mut asked = AccessRecord { kind, byte_enables, ..record(register.into()) };
        asked.data[..4].copy_from_slice(&value.to_le_bytes());
        self.ask(asked);
    }

    pub(super) fn read(&self, offset: u64, len: u8) {
        self.ask(AccessRecord { kind: AccessKind::Read.into(), len, ..record(offset) });
    }

    fn ask(&self, mut asked: AccessRecord) {
        asked.id = self.cells.serial.update(self.journal, |serial| serial.wrapping_add(1).max(1));
        self.cells.awaited.set(self.journal, asked.id);
        self.cells.out.push(self.journal, asked);
    }

    pub(super) fn post_u32(&self, offset: u64, value: u32) {
        self.post(REGISTERS, offset, &value.to_le_bytes());
    }

    pub(super) fn post(&self, bar: u8, offset: u64, bytes: &[u8]) {
        let mut posted = AccessRecord { bar, len: bytes.len() as u8, ..record(offset) };
        posted.data[..bytes.len()].copy_from_slice(bytes);
        self.cells.out.push(self.journal, posted);
    }

    pub(super) fn cap(&self) -> Cap {
        Cap(self.cells.cap.get())
    }

    pub(super) fn set_cap(&self, cap: Cap) {
        self.cells.cap.set(self.journal, cap.0);
    }

    /// The controller memory buffer as the controller describes it: no size for none.
    pub(super) fn cmb(&self) -> CmbSz {
        CmbSz(self.cells.cmb_size.get())
    }

    pub(super) fn set_cmb(&self, size: CmbSz) {
        self.cells.cmb_size.set(self.journal, size.0);
    }

    pub(super) fn set_cmb_location(&self, location: u32) {
        self.cells.cmb_location.set(self.journal, location);
    }

    /// The BAR of the controller memory buffer and the buffer's offset in it.
    pub(super) fn cmb_place(&self) -> (u8, u64) {
        let location = CmbLoc(self.cells.cmb_location.get());
        let unit = self.cmb().unit().unwrap_or(0);
        (location.bir(), u64::from(location.ofst()) * unit)
    }

    /// Whether the submission queue lies in the controller.
    pub(super) fn has_cmb(&self) -> bool {
        self.cells.cmb_size.get() != 0
    }

    /// A write to the controller's memory.
    pub(super) fn cmb_write(&self, offset: u64, bytes: &[u8]) -> Access {
        let (bar, base) = self.cmb_place();
        Access::Write { bar, offset: base + offset, payload: Payload::inline(bytes) }
    }

    /// Offset of a doorbell.
    pub(super) fn doorbell(&self, queue: u16, is_cq: bool) -> u64 {
        registers::doorbell(queue, is_cq, self.cap().dstrd())
    }

    /// The write that rings a doorbell.
    pub(super) fn ring(&self, queue: u16, is_cq: bool, value: u16) -> Access {
        let payload = Payload::inline(&u32::from(value).to_le_bytes());
        Access::Write { bar: REGISTERS, offset: self.doorbell(queue, is_cq), payload }
    }
}

impl AccessRecord {
    /// The access that it stands for.
    fn access(&self) -> Access {
        let Self { offset, bar, len, byte_enables, .. } = *self;
        let (id, register) = (AccessId(self.id), offset as u16);
        match self.kind.get() {
            AccessKind::Read => Access::Read { id, bar, offset, len },
            AccessKind::ConfigRead => Access::ConfigRead { id, register },
            AccessKind::ConfigWrite => {
                let [a, b, c, d, ..] = self.data;
                Access::ConfigWrite { id, register, value: u32::from_le_bytes([a, b, c, d]), byte_enables }
            }
            AccessKind::Write => {
                let payload = Payload::inline(&self.data[..usize::from(len).min(self.data.len())]);
                Access::Write { bar, offset, payload }
            }
        }
    }
}

fn record(offset: u64) -> AccessRecord {
    let kind = AccessKind::Write.into();
    AccessRecord { offset, data: [0; 16], id: 0, kind, bar: REGISTERS, len: 0, byte_enables: 0 }
}
