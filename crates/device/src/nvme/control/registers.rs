//! The register BAR: properties, doorbells, vector table, pending bits; enabling, shutting down and failing.

use base::{Rule, times};
use spec::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CMBLOC, CMBMSC, CMBSTS, CMBSZ, CRTO, CSTS, Cap, Cc, CommandSetSelected,
    Crto, Csts, DOORBELLS, HOST_KEEPS, INTMC, INTMS, ShutdownNotification, ShutdownStatus, VS, Version,
    doorbell_queue,
};

use crate::function::MediaKind;
use crate::nvme::Controller;
use crate::nvme::cells::{QUEUE_ENTRIES, QUEUES, SHUTDOWN_SLOT, VECTORS};
use crate::nvme::command::{Origin, State, Work};
use crate::nvme::config::WriteCache;
use crate::nvme::queues::QueueMemory;

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

impl Controller<'_> {
    /// A dword of the register BAR; `offset` is dword aligned.
    pub(crate) fn read_register(&self, offset: u64) -> u32 {
        if (VECTORS_OFFSET..PENDING_OFFSET).contains(&offset) {
            return self.read_vector((offset - VECTORS_OFFSET) as usize);
        } else if offset >= PENDING_OFFSET {
            return self.read_pending((offset - PENDING_OFFSET) as usize);
        }
        let registers = &self.cells.registers;
        let wide = match offset & !4 {
            CAP => self.capabilities().0,
            ASQ => registers.asq.get(),
            ACQ => registers.acq.get(),
            CMBMSC if self.config.memory_buffer => registers.cmbmsc.get(),
            _ => return self.read_narrow(offset),
        };
        (wide >> (8 * (offset & 4))) as u32
    }

    fn read_narrow(&self, offset: u64) -> u32 {
        let registers = &self.cells.registers;
        match offset {
            VS => Version::V2_0.0,
            INTMS | INTMC => registers.interrupt_mask.get(),
            CC => registers.cc.get(),
            CSTS => self.shown_csts().0,
            AQA => registers.aqa.get(),
            CMBLOC => self.buffer_location().0,
            CMBSZ => self.buffer_size().0,
            CMBSTS => registers.cmbsts.get(),
            CRTO => Crto(0).with_crwmt(READY_UNITS.into()).0,
            HOST_KEEPS => registers.host_keeps.get(),
            _ => 0,
        }
    }

    fn capabilities(&self) -> Cap {
        Cap(0)
            .with_mqes((QUEUE_ENTRIES - 1) as u16)
            .with_cqr(false)
            .with_to(READY_UNITS)
            .with_css_nvm(true)
            .with_cmbs(self.config.memory_buffer)
            .with_crwms(true)
    }

    /// Writes a dword of the register BAR; `offset` is dword aligned. What is read-only or unknown ignores it.
    pub(crate) fn write_register(&mut self, offset: u64, value: u32) {
        if (VECTORS_OFFSET..PENDING_OFFSET).contains(&offset) {
            return self.write_vector((offset - VECTORS_OFFSET) as usize, value);
        } else if offset == HOST_KEEPS {
            return self.set_host_keeps(value & 1);
        } else if (DOORBELLS..VECTORS_OFFSET).contains(&offset) {
            if let Some((queue, is_cq)) = doorbell_queue(offset, 0) {
                self.ring(queue, is_cq, value);
            }
            return;
        }
        let (registers, journal) = (&self.cells.registers, self.journal);
        let joined = |old: u64| {
            let shift = 8 * (offset & 4);
            old & !(0xffff_ffff << shift) | u64::from(value) << shift
        };
        let enabled = Cc(registers.cc.get()).en();
        match (offset, offset & !4) {
            (INTMS, _) => drop(registers.interrupt_mask.update(journal, |mask| mask | value)),
            (INTMC, _) => drop(registers.interrupt_mask.update(journal, |mask| mask & !value)),
            (CC, _) => self.write_cc(Cc(value & Cc::DEFINED)),
            (AQA, _) if !enabled => registers.aqa.set(journal, value & Aqa::DEFINED),
            (_, ASQ) if !enabled => drop(registers.asq.update(journal, |old| joined(old) & QUEUE_ADDRESS)),
            (_, ACQ) if !enabled => drop(registers.acq.update(journal, |old| joined(old) & QUEUE_ADDRESS)),
            (_, CMBMSC) if self.config.memory_buffer => {
                self.write_buffer_control(joined(registers.cmbmsc.get()));
            }
            _ => {}
        }
    }

    /// The host keeps what is not flushed, or does not. It says so before it writes anything: what was written under
    /// another rule would otherwise be taken for durable.
    fn set_host_keeps(&mut self, keeps: u32) {
        if self.config.cache == WriteCache::Hidden {
            self.cells.registers.host_keeps.set(self.journal, keeps);
        }
    }

    /// Whether the host is shown a volatile write cache.
    pub(crate) fn shows_cache(&self) -> bool {
        match self.config.cache {
            WriteCache::Absent => false,
            WriteCache::Hidden => self.cells.registers.host_keeps.get() != 0,
            WriteCache::Shown { .. } => true,
        }
    }

    pub(crate) fn csts(&self) -> Csts {
        Csts(self.cells.registers.csts.get())
    }

    /// What the host finds: a shutdown is not over while something has yet to be sent, for the host takes its memory
    /// back then.
    fn shown_csts(&self) -> Csts {
        let csts = self.csts();
        let is_early = csts.shst() == ShutdownStatus::COMPLETE.0 && self.has_to_send();
        if is_early { csts.with_shst(ShutdownStatus::OCCURRING.0) } else { csts }
    }

    fn set_csts(&self, csts: Csts) {
        self.cells.registers.csts.set(self.journal, csts.0);
    }

    /// Whether queues are served.
    pub(crate) fn is_processing(&self) -> bool {
        let csts = self.csts();
        let enabled = Cc(self.cells.registers.cc.get()).en();
        enabled && csts.rdy() && !csts.cfs() && csts.shst() == ShutdownStatus::NORMAL.0
    }

    fn write_cc(&mut self, new: Cc) {
        let old = Cc(self.cells.registers.cc.get());
        self.cells.registers.cc.set(self.journal, new.0);
        if old.en() && !new.en() {
            self.reset_controller();
        }
        if new.en() && !old.en() {
            // A host that does not wait for RDY to fall gets a new start all the same.
            self.set_csts(self.csts().with_rdy(false));
        }
        if new.shn() != old.shn() && new.shn() != ShutdownNotification::NONE.0 {
            self.set_csts(self.csts().with_shst(ShutdownStatus::OCCURRING.0));
            self.continue_shutdown();
        }
        self.update_ready();
    }

    /// Lets CSTS.RDY follow CC.EN: both ways only when the medium has ended everything from before the last reset.
    pub(crate) fn update_ready(&mut self) {
        let (enabled, csts) = (Cc(self.cells.registers.cc.get()).en(), self.csts());
        if enabled == csts.rdy() || csts.cfs() || !self.old_work_has_ended() {
            return;
        }
        if !enabled {
            self.set_csts(csts.with_rdy(false));
        } else if self.create_admin_queues() {
            self.set_csts(Csts(0).with_rdy(true));
        } else {
            self.fail("the admin queues or the configuration are not valid");
        }
    }

    pub(crate) fn old_work_has_ended(&self) -> bool {
        self.cells.orphans.get() == 0 || !self.journal.rule(Rule::EndOldIncarnation)
    }

    /// Makes the admin queues as AQA, ASQ and ACQ say, if those and CC make sense (NVMe 2.0 §3.5.1).
    fn create_admin_queues(&mut self) -> bool {
        let registers = &self.cells.registers;
        let (cc, aqa) = (Cc(registers.cc.get()), Aqa(registers.aqa.get()));
        let (sq, cq) = (registers.asq.get(), registers.acq.get());
        let (sq_size, cq_size) = (u32::from(aqa.asqs()) + 1, u32::from(aqa.acqs()) + 1);
        let supported = cc.css() == CommandSetSelected::NVM.0 && cc.mps() == 0 && cc.ams() == 0;
        let Ok((base, place)) = self.place_submission_queue(sq, sq_size) else { return false };
        if !supported || sq_size < 2 || cq_size < 2 || self.place_completion_queue(cq, cq_size).is_err() {
            return false;
        }
        self.create_submission_queue(0, base, place, sq_size, 0);
        self.create_completion_queue(0, cq, QueueMemory::Host, cq_size, Some(0));
        true
    }

    /// Controller Fatal Status: nothing but a reset helps (NVMe 2.0 §9.5).
    pub(crate) fn fail(&mut self, why: &'static str) {
        self.last_failure = Some(why);
        self.set_csts(self.csts().with_cfs(true));
    }

    /// The flush of a shutdown that has been asked for; waits for an earlier one that a reset has orphaned.
    pub(crate) fn continue_shutdown(&mut self) {
        if self.csts().shst() != ShutdownStatus::OCCURRING.0
            || self.command(SHUTDOWN_SLOT).state() != State::Free
        {
            return;
        }
        self.prepare(SHUTDOWN_SLOT, Origin::default());
        self.set_work(SHUTDOWN_SLOT, Work::Shutdown);
        self.begin_media(SHUTDOWN_SLOT, MediaKind::Flush, 0, 0);
    }

    /// The flush of a shutdown has ended. One that failed never completes the shutdown: no completion queue could tell
    /// of it, so Controller Fatal Status does (NVMe 2.0 §3.1.3.6, §3.6).
    pub(crate) fn end_shutdown(&mut self, flushed: bool) {
        if !flushed {
            self.fail("the medium has lost something that was to be flushed before the end");
        } else if self.csts().shst() == ShutdownStatus::OCCURRING.0 {
            self.set_csts(self.csts().with_shst(ShutdownStatus::COMPLETE.0));
        }
        self.abandon(SHUTDOWN_SLOT);
        self.forget(SHUTDOWN_SLOT);
    }
}
