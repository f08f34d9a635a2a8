//! What a guest sees of a borrowed controller: a function that has lost its state shows Controller Fatal Status until
//! its guest disables it, and the controller memory buffer is not shown at all.
//!
//! A guest would put its submission queues into that buffer, and each of their entries would be a trapped store instead
//! of one to its own memory, which the function fetches for itself. So CAP.CMBS and the registers of the buffer read as
//! zero, writes to them go nowhere, and the guest is shown only the BARs of registers and vectors.
//!
//! Nor may a guest say that it keeps what is not flushed ([`HOST_KEEPS`]): it does not, and would lose writes with the
//! lender's power.

use base::ledger::{Cell, Journal, Layout};
use pcie::spec::header::{BAR_COUNT, CLASS};
use spec::nvme::PCI_CLASS_CODE;
use spec::nvme::registers::{
    CAP, CC, CMBEBS, CMBLOC, CMBMSC, CMBSWTP, CMBSZ, CSTS, Cap, Csts, HOST_KEEPS, ShutdownStatus,
};
use zerocopy::FromBytes;

/// The BAR of the registers (NVMe 2.0 §3.1.1, PCI Express).
const REGISTERS_BAR: u8 = 0;
/// CC.EN, in its first byte.
const ENABLE: u8 = 1;

/// What is known of the guest's use of the controller. All zeroes: it has not enabled it.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct GuestViewCells {
    /// 1 while the guest has it enabled.
    enabled: Cell<u32>,
    /// 1 while it has lost its state and its guest does not know.
    fatal: Cell<u32>,
}

impl GuestViewCells {
    /// Whether the controller has lost its state, and its guest sees that and has not disabled it yet.
    pub fn is_fatal(&self) -> bool {
        self.fatal.get() != 0
    }
}

/// The controller as its guest sees it.
#[derive(Clone, Copy)]
pub struct GuestView<'m> {
    cells: &'m GuestViewCells,
    journal: Journal<'m>,
}

/// Whether a function with this configuration space is an NVMe I/O controller. `read` reads a dword.
pub fn is_controller(read: impl Fn(u16) -> u32) -> bool {
    read(CLASS) >> 8 == PCI_CLASS_CODE
}

/// Leaves of the BARs those that a guest needs: registers and, in `others`, vectors. Given and left are sizes in bytes.
pub fn hide_bars(bars: &mut [u64; BAR_COUNT], others: [u8; 2]) {
    for (bar, size) in bars.iter_mut().enumerate() {
        let bar = bar as u8;
        if bar != REGISTERS_BAR && !others.contains(&bar) {
            *size = 0;
        }
    }
}

impl<'m> GuestView<'m> {
    /// As the cells have it.
    pub fn new(cells: &'m GuestViewCells, journal: Journal<'m>) -> Self {
        Self { cells, journal }
    }

    /// The guest writes. False if the function is to know nothing of it.
    pub fn write(&self, bar: u8, offset: u64, bytes: &[u8]) -> bool {
        if bar != REGISTERS_BAR {
            return true;
        }
        let end = offset.saturating_add(bytes.len() as u64);
        if [CMBMSC..CMBSWTP + 4, HOST_KEEPS..HOST_KEEPS + 4]
            .iter()
            .any(|own| offset < own.end && own.start < end)
        {
            return false;
        }
        let control = CC.checked_sub(offset).and_then(|at| bytes.get(usize::try_from(at).ok()?));
        if let Some(control) = control {
            let enabled = control & ENABLE != 0;
            self.cells.enabled.set(self.journal, enabled.into());
            if !enabled {
                self.cells.fatal.set(self.journal, 0);
            }
        }
        true
    }

    /// The function has answered a read of the guest with `bytes`: turns them into what the guest is to see.
    pub fn read(&self, bar: u8, offset: u64, bytes: &mut [u8]) {
        if bar != REGISTERS_BAR {
            return;
        }
        let buffer = Cap(0).with_cmbs(true).0.to_le_bytes();
        let fatal = Csts(0).with_rdy(true).with_cfs(true).0.to_le_bytes();
        let place = |at: u64, start: u64| (at - start) as usize;
        for (at, byte) in (offset..).zip(bytes) {
            match at {
                CAP..=7 => *byte &= !buffer[place(at, CAP)],
                CSTS..0x20 if self.cells.is_fatal() => *byte = fatal[place(at, CSTS)],
                CMBLOC..0x40 | CMBMSC..0x64 | HOST_KEEPS..0x2004 => *byte = 0,
                _ => {}
            }
        }
    }

    /// Something that the function has written is not in its guest's memory yet, though what it has answered to a read
    /// comes behind that: it has not ended as long. A guest that has disabled it finds it ready, one that has shut it
    /// down finds it at that.
    pub fn settling(&self, bar: u8, offset: u64, bytes: &mut [u8]) {
        let status = CSTS.checked_sub(offset).and_then(|at| bytes.get_mut(usize::try_from(at).ok()?));
        let Some(status) = status.filter(|_| bar == REGISTERS_BAR) else { return };
        let shown = Csts(u32::from(*status));
        let is_ending = self.cells.enabled.get() == 0 && !shown.rdy();
        let shown = if is_ending { shown.with_rdy(true) } else { shown };
        let is_shut_down = shown.shst() == ShutdownStatus::COMPLETE.0;
        let shown = if is_shut_down { shown.with_shst(ShutdownStatus::OCCURRING.0) } else { shown };
        *status = shown.0 as u8;
    }

    /// The function was reset, and its guest does not know.
    pub fn lose(&self) {
        if self.cells.enabled.get() != 0 {
            self.cells.fatal.set(self.journal, 1);
        }
    }

    /// The function was reset because the guest wanted it, or nobody uses it.
    pub fn reset(&self) {
        self.cells.enabled.set(self.journal, 0);
        self.cells.fatal.set(self.journal, 0);
    }
}

const _: () = assert!(
    CAP == 0
        && CSTS + 4 == 0x20
        && CMBSZ + 4 == 0x40
        && CMBEBS + 4 == CMBSWTP
        && CMBSWTP + 4 == 0x64
        && HOST_KEEPS == 0x2000
);
