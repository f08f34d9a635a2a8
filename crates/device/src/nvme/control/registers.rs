//! The controller's properties (NVMe 2.0 §3.1.3), as far as they are the controller's own: the register BAR has the
//! doorbells, the vector table and the pending bits too.

use base::ledger::{Cell, Journal, Layout};
use base::times;
use spec::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CRTO, CSTS, Cap, Cc, CommandSetSelected, Crto, Csts, DOORBELLS, HOST_KEEPS,
    INTMC, INTMS, ShutdownNotification, ShutdownStatus, VS, Version,
};
use zerocopy::FromBytes;

use super::cmb::joined;
use crate::nvme::cells::{QUEUE_ENTRIES, QUEUES, VECTORS};
use crate::nvme::config::{Config, WriteCache};

/// Bytes of the register BAR.
pub const BAR_BYTES: u64 = 64 << 10;
/// Where the MSI-X table lies in it.
pub const VECTORS_OFFSET: u64 = 0x8000;
/// Where the pending bits lie in it.
pub const PENDING_OFFSET: u64 = 0xc000;
const DOORBELLS_END: u64 = DOORBELLS + QUEUES as u64 * 8;
/// The unit of CAP.TO and CRTO.
const READY_UNIT_MS: u128 = 500;
const READY_UNITS: u8 = (times::CONTROLLER_READY.as_millis() / READY_UNIT_MS) as u8;
/// Bits of ASQ and ACQ that are an address.
const QUEUE_ADDRESS: u64 = !0xfff;

const _: () = assert!(DOORBELLS_END <= HOST_KEEPS && HOST_KEEPS < VECTORS_OFFSET);
const _: () =
    assert!(DOORBELLS_END <= VECTORS_OFFSET && VECTORS_OFFSET + VECTORS as u64 * 16 <= PENDING_OFFSET);

/// The properties, as far as they are not computed.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct RegisterCells {
    asq: Cell<u64>,
    acq: Cell<u64>,
    aqa: Cell<u32>,
    cc: Cell<u32>,
    csts: Cell<u32>,
    interrupt_mask: Cell<u32>,
    /// Bit 0 of [`HOST_KEEPS`].
    host_keeps: Cell<u32>,
    reserved: Cell<u32>,
}

/// The properties, and what they say of the controller: whether it is enabled, ready, shut down, failed.
pub(crate) struct Registers<'m> {
    cells: &'m RegisterCells,
    journal: Journal<'m>,
    cache: WriteCache,
    has_buffer: bool,
    /// Why this card last set Controller Fatal Status.
    pub(crate) failure: Option<&'static str>,
}

/// The admin queues as AQA, ASQ and ACQ say.
pub(crate) struct AdminQueues {
    pub(crate) asq: u64,
    pub(crate) sq_entries: u32,
    pub(crate) acq: u64,
    pub(crate) cq_entries: u32,
}

/// What a write to CC asks for.
pub(crate) struct CcChange {
    pub(crate) resets: bool,
    pub(crate) enables: bool,
    pub(crate) shuts_down: bool,
}

impl<'m> Registers<'m> {
    pub(crate) fn new(cells: &'m RegisterCells, journal: Journal<'m>, config: &Config) -> Self {
        Self { cells, journal, cache: config.cache, has_buffer: config.memory_buffer, failure: None }
    }

    /// A dword; of what is unknown, 0. A shutdown is not over while something has yet to be sent, for the host takes
    /// its memory back then.
    pub(crate) fn read(&self, offset: u64, has_to_send: bool) -> u32 {
        let half = |value: u64| (value >> (8 * (offset & 4))) as u32;
        match (offset, offset & !4) {
            (_, CAP) => half(self.capabilities().0),
            (_, ASQ) => half(self.cells.asq.get()),
            (_, ACQ) => half(self.cells.acq.get()),
            (VS, _) => Version::V2_0.0,
            (INTMS | INTMC, _) => self.cells.interrupt_mask.get(),
            (CC, _) => self.cc().0,
            (CSTS, _) if has_to_send && self.csts().shst() == ShutdownStatus::COMPLETE.0 => {
                self.csts().with_shst(ShutdownStatus::OCCURRING.0).0
            }
            (CSTS, _) => self.csts().0,
            (AQA, _) => self.cells.aqa.get(),
            (CRTO, _) => Crto(0).with_crwmt(READY_UNITS.into()).0,
            (HOST_KEEPS, _) => self.cells.host_keeps.get(),
            _ => 0,
        }
    }

    fn capabilities(&self) -> Cap {
        Cap(0)
            .with_mqes((QUEUE_ENTRIES - 1) as u16)
            .with_cqr(false)
            .with_to(READY_UNITS)
            .with_css_nvm(true)
            .with_cmbs(self.has_buffer)
            .with_crwms(true)
    }

    /// Writes a dword; what is read-only or unknown ignores it. Returns what a write to CC asks for.
    pub(crate) fn write(&self, offset: u64, value: u32) -> Option<CcChange> {
        let (cells, journal, enabled) = (self.cells, self.journal, self.cc().en());
        let address = |old: u64| joined(old, offset, value) & QUEUE_ADDRESS;
        match (offset, offset & !4) {
            (INTMS, _) => drop(cells.interrupt_mask.update(journal, |mask| mask | value)),
            (INTMC, _) => drop(cells.interrupt_mask.update(journal, |mask| mask & !value)),
            (CC, _) => {
                let (old, new) = (self.cc(), Cc(value & Cc::DEFINED));
                cells.cc.set(journal, new.0);
                return Some(CcChange {
                    resets: old.en() && !new.en(),
                    enables: new.en() && !old.en(),
                    shuts_down: new.shn() != old.shn() && new.shn() != ShutdownNotification::NONE.0,
                });
            }
            (AQA, _) if !enabled => cells.aqa.set(journal, value & Aqa::DEFINED),
            (_, ASQ) if !enabled => drop(cells.asq.update(journal, address)),
            (_, ACQ) if !enabled => drop(cells.acq.update(journal, address)),
            // The host keeps what is not flushed, or does not. It says so before it writes anything: what was written
            // under another rule would otherwise be taken for durable.
            (HOST_KEEPS, _) if self.cache == WriteCache::Hidden => cells.host_keeps.set(journal, value & 1),
            _ => {}
        }
        None
    }

    /// Whether the host is shown a volatile write cache.
    pub(crate) fn shows_cache(&self) -> bool {
        match self.cache {
            WriteCache::Absent => false,
            WriteCache::Hidden => self.cells.host_keeps.get() != 0,
            WriteCache::Shown { .. } => true,
        }
    }

    pub(crate) fn cc(&self) -> Cc {
        Cc(self.cells.cc.get())
    }

    pub(crate) fn csts(&self) -> Csts {
        Csts(self.cells.csts.get())
    }

    pub(crate) fn set_csts(&self, csts: Csts) {
        self.cells.csts.set(self.journal, csts.0);
    }

    /// Whether a shutdown has been asked for and is not over.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.csts().shst() == ShutdownStatus::OCCURRING.0
    }

    pub(crate) fn set_shutdown(&self, status: ShutdownStatus) {
        self.set_csts(self.csts().with_shst(status.0));
    }

    /// Whether queues are served.
    pub(crate) fn is_processing(&self) -> bool {
        let csts = self.csts();
        self.cc().en() && csts.rdy() && !csts.cfs() && csts.shst() == ShutdownStatus::NORMAL.0
    }

    /// The admin queues, if they and CC make sense (NVMe 2.0 §3.5.1).
    pub(crate) fn admin_queues(&self) -> Option<AdminQueues> {
        let (cc, aqa) = (self.cc(), Aqa(self.cells.aqa.get()));
        let (sq_entries, cq_entries) = (u32::from(aqa.asqs()) + 1, u32::from(aqa.acqs()) + 1);
        let supported = cc.css() == CommandSetSelected::NVM.0 && cc.mps() == 0 && cc.ams() == 0;
        let (asq, acq) = (self.cells.asq.get(), self.cells.acq.get());
        let valid = supported && sq_entries >= 2 && cq_entries >= 2;
        valid.then_some(AdminQueues { asq, sq_entries, acq, cq_entries })
    }

    /// Controller Fatal Status: nothing but a reset helps (NVMe 2.0 §9.5).
    pub(crate) fn fail(&mut self, why: &'static str) {
        self.failure = Some(why);
        self.set_csts(self.csts().with_cfs(true));
    }

    /// A controller level reset: what the host has said of itself goes. AQA, ASQ and ACQ stay, and CSTS.RDY until the
    /// medium has ended everything.
    pub(crate) fn reset_controller(&mut self) {
        self.cells.host_keeps.set(self.journal, 0);
        self.set_csts(Csts(0).with_rdy(self.csts().rdy()));
        self.failure = None;
    }

    /// A reset of the function, behind one of the controller.
    pub(crate) fn reset_function(&self) {
        let (cells, journal) = (self.cells, self.journal);
        [&cells.asq, &cells.acq].into_iter().for_each(|cell| cell.set(journal, 0));
        for cell in [&cells.aqa, &cells.cc, &cells.csts, &cells.interrupt_mask] {
            cell.set(journal, 0);
        }
    }
}
