//! What a slot knows of NVMe, and of no other class: a function that has lost its state shows Controller Fatal Status
//! until its guest disables it, and the controller memory buffer is not shown at all.
//!
//! A guest would put its submission queues into that buffer, and each of their entries would be a trapped store instead
//! of one to its own memory, which the function fetches for itself. So CAP.CMBS and the registers of the buffer read as
//! zero, writes to them go nowhere, and the slot shows only the BARs of registers and vectors.
//!
//! Nor may a guest say that it keeps what is not flushed ([`HOST_KEEPS`]): it does not, and would lose writes with the
//! lender's power.

use base::ledger::Journal;
use pcie::spec::header::{BAR_COUNT, CLASS};
use spec::nvme::PCI_CLASS_CODE;
use spec::nvme::registers::{
    CAP, CC, CMBEBS, CMBLOC, CMBMSC, CMBSWTP, CMBSZ, CSTS, Cap, Csts, HOST_KEEPS, ShutdownStatus,
};

use super::cells::SlotCells;

/// The BAR of the registers (NVMe 2.0 §3.1.1, PCI Express).
const REGISTERS_BAR: u8 = 0;
/// CC.EN, in its first byte.
const ENABLE: u8 = 1;

/// Whether a function with this configuration space is an NVMe I/O controller.
pub(super) fn is_known(read: impl Fn(u16) -> u32) -> bool {
    read(CLASS) >> 8 == PCI_CLASS_CODE
}

/// Leaves of the BARs those that a guest needs: registers and, in `others`, vectors. Given and left are sizes in bytes.
pub(super) fn hide_bars(bars: &mut [u64; BAR_COUNT], others: [u8; 2]) {
    for (bar, size) in bars.iter_mut().enumerate() {
        let bar = bar as u8;
        if bar != REGISTERS_BAR && !others.contains(&bar) {
            *size = 0;
        }
    }
}

/// The guest writes. False if the function is to know nothing of it.
pub(super) fn write(cells: &SlotCells, journal: Journal<'_>, bar: u8, offset: u64, bytes: &[u8]) -> bool {
    if bar != REGISTERS_BAR {
        return true;
    }
    let end = offset.saturating_add(bytes.len() as u64);
    if [CMBMSC..CMBSWTP + 4, HOST_KEEPS..HOST_KEEPS + 4].iter().any(|own| offset < own.end && own.start < end)
    {
        return false;
    }
    let control = CC.checked_sub(offset).and_then(|at| bytes.get(usize::try_from(at).ok()?));
    if let Some(control) = control {
        let enabled = control & ENABLE != 0;
        cells.enabled.set(journal, enabled.into());
        if !enabled {
            cells.fatal.set(journal, 0);
        }
    }
    true
}

/// The function has answered a read of the guest with `bytes`: turns them into what the guest is to see.
pub(super) fn read(cells: &SlotCells, bar: u8, offset: u64, bytes: &mut [u8]) {
    if bar != REGISTERS_BAR {
        return;
    }
    let buffer = Cap(0).with_cmbs(true).0.to_le_bytes();
    let fatal = Csts(0).with_rdy(true).with_cfs(true).0.to_le_bytes();
    let place = |at: u64, start: u64| (at - start) as usize;
    for (at, byte) in (offset..).zip(bytes) {
        match at {
            CAP..=7 => *byte &= !buffer[place(at, CAP)],
            CSTS..0x20 if cells.fatal.get() != 0 => *byte = fatal[place(at, CSTS)],
            CMBLOC..0x40 | CMBMSC..0x64 | HOST_KEEPS..0x2004 => *byte = 0,
            _ => {}
        }
    }
}

/// Something that the function has written is not in its guest's memory yet, though what it has answered to a read
/// comes behind that: it has not ended as long. A guest that has disabled it finds it ready, one that has shut it down
/// finds it at that.
pub(super) fn settling(cells: &SlotCells, bar: u8, offset: u64, bytes: &mut [u8]) {
    let status = CSTS.checked_sub(offset).and_then(|at| bytes.get_mut(usize::try_from(at).ok()?));
    let Some(status) = status.filter(|_| bar == REGISTERS_BAR) else { return };
    let shown = Csts(u32::from(*status));
    let is_ending = cells.enabled.get() == 0 && !shown.rdy();
    let shown = if is_ending { shown.with_rdy(true) } else { shown };
    let is_shut_down = shown.shst() == ShutdownStatus::COMPLETE.0;
    let shown = if is_shut_down { shown.with_shst(ShutdownStatus::OCCURRING.0) } else { shown };
    *status = shown.0 as u8;
}

/// The function was reset, and its guest does not know.
pub(super) fn lost(cells: &SlotCells, journal: Journal<'_>) {
    if cells.enabled.get() != 0 {
        cells.fatal.set(journal, 1);
    }
}

/// The function was reset because the guest wanted it, or nobody uses it.
pub(super) fn reset(cells: &SlotCells, journal: Journal<'_>) {
    cells.enabled.set(journal, 0);
    cells.fatal.set(journal, 0);
}

const _: () = assert!(
    CAP == 0
        && CSTS + 4 == 0x20
        && CMBSZ + 4 == 0x40
        && CMBEBS + 4 == CMBSWTP
        && CMBSWTP + 4 == 0x64
        && HOST_KEEPS == 0x2000
);
