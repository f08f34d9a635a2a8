//! The register BAR, whose parts have their own files; enabling, shutting down, and what each kind of reset takes away
//! (NVMe 2.0 §3.7).

use base::Rule;
use pcie::ConfigState;
use spec::nvme::registers::{Csts, DOORBELLS, HOST_KEEPS, ShutdownStatus, doorbell_queue};

use super::registers::{CcChange, PENDING_OFFSET, VECTORS_OFFSET};
use crate::nvme::Controller;
use crate::nvme::cells::{QUEUES, SHUTDOWN_SLOT};
use crate::nvme::command::{Next, Origin, Outcome, State, Work};
use crate::nvme::queues::{Doorbell, QueueMemory};

impl Controller<'_> {
    /// A dword of the register BAR; `offset` is dword aligned.
    pub(crate) fn read_register(&self, offset: u64) -> u32 {
        match offset {
            PENDING_OFFSET.. => self.interrupts.read_pending((offset - PENDING_OFFSET) as usize),
            VECTORS_OFFSET.. => self.interrupts.read_vector((offset - VECTORS_OFFSET) as usize),
            // What the one does not know it reads as 0.
            _ => self.buffer.read_register(offset) | self.registers.read(offset, self.has_to_send()),
        }
    }

    /// Writes a dword of the register BAR; `offset` is dword aligned.
    pub(crate) fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            PENDING_OFFSET.. => {}
            VECTORS_OFFSET.. => self.interrupts.write_vector((offset - VECTORS_OFFSET) as usize, value),
            DOORBELLS.. if offset != HOST_KEEPS => {
                if let Some((queue, is_cq)) = doorbell_queue(offset, 0) {
                    self.ring(Doorbell { queue, is_cq }, value);
                }
            }
            _ => {
                self.buffer.write_register(offset, value);
                if let Some(change) = self.registers.write(offset, value) {
                    self.change_configuration(change);
                }
            }
        }
    }

    fn change_configuration(&mut self, change: CcChange) {
        if change.resets {
            self.reset_controller();
        }
        if change.enables {
            // A host that does not wait for RDY to fall gets a new start all the same.
            self.registers.set_csts(self.registers.csts().with_rdy(false));
        }
        if change.shuts_down {
            self.registers.set_shutdown(ShutdownStatus::OCCURRING);
            self.continue_shutdown();
        }
        self.update_ready();
    }

    /// Lets CSTS.RDY follow CC.EN: both ways only when the medium has ended everything from before the last reset.
    pub(crate) fn update_ready(&mut self) {
        let (enabled, csts) = (self.registers.cc().en(), self.registers.csts());
        if enabled == csts.rdy() || csts.cfs() || !self.old_work_has_ended() {
            return;
        }
        if !enabled {
            self.registers.set_csts(csts.with_rdy(false));
        } else if self.create_admin_queues() {
            self.registers.set_csts(Csts(0).with_rdy(true));
        } else {
            self.registers.fail("the admin queues or the configuration are not valid");
        }
    }

    fn old_work_has_ended(&self) -> bool {
        !self.table.has_orphans() || !self.journal.rule(Rule::EndOldIncarnation)
    }

    fn create_admin_queues(&mut self) -> bool {
        let Some(queues) = self.registers.admin_queues() else { return false };
        let place = self.buffer.place_submission_queue(queues.asq, queues.sq_entries);
        let Ok((base, place)) = place else { return false };
        if self.buffer.place_completion_queue(queues.acq, queues.cq_entries).is_err() {
            return false;
        }
        self.queues.create_submission(0, base, place, queues.sq_entries, 0);
        self.queues.create_completion(0, queues.acq, QueueMemory::Host, queues.cq_entries, Some(0));
        [false, true].into_iter().for_each(|is_cq| self.shadows.begin(Doorbell { queue: 0, is_cq }));
        true
    }

    /// The flush of a shutdown that has been asked for; waits for an earlier one that a reset has orphaned.
    pub(crate) fn continue_shutdown(&mut self) {
        let command = self.command(SHUTDOWN_SLOT);
        if !self.registers.is_shutting_down() || command.state() != State::Free {
            return;
        }
        self.table.prepare(SHUTDOWN_SLOT, Origin::default());
        command.work.set(self.journal, Work::Shutdown.into());
        self.follow(SHUTDOWN_SLOT, Ok(Next::flush()));
    }

    /// The flush of a shutdown has failed, which is told when the owner keeps that, as any other is.
    pub(crate) fn fail_shutdown(&mut self) {
        let version = self.subsystem.note_fault();
        if self.waits_to_be_kept(version) {
            return self.complete_after(SHUTDOWN_SLOT, version, Outcome::default());
        }
        self.end_shutdown(false);
    }

    /// The flush of a shutdown has ended. One that failed never completes the shutdown: no completion queue could tell
    /// of it, so Controller Fatal Status does (NVMe 2.0 §3.1.3.6, §3.6).
    pub(crate) fn end_shutdown(&mut self, flushed: bool) {
        if !flushed {
            self.registers.fail("the medium has lost something that was to be flushed before the end");
        } else if self.registers.is_shutting_down() {
            self.registers.set_shutdown(ShutdownStatus::COMPLETE);
        }
        self.abandon(SHUTDOWN_SLOT);
        // Unless it has waited for its owner, the medium is only now done with it.
        if self.command(SHUTDOWN_SLOT).state() == State::Orphan {
            self.forget(SHUTDOWN_SLOT);
        }
    }

    /// A controller level reset: queues, commands, features and events go, and what the host
    /// has said of itself. AQA, ASQ, ACQ and the buffer's control stay, and
    /// CSTS.RDY stays until `update_ready` takes it.
    pub(crate) fn reset_controller(&mut self) {
        for slot in self.table.busy() {
            self.abandon(slot);
        }
        for queue in 0..QUEUES as u16 {
            [false, true].into_iter().for_each(|is_cq| self.remove_queue(Doorbell { queue, is_cq }));
        }
        self.shadows.reset();
        self.admin.reset(self.now);
        self.interrupts.clear();
        self.registers.reset_controller();
    }

    /// Nothing comes from a queue any more, or goes to it.
    pub(crate) fn remove_queue(&mut self, bell: Doorbell) {
        self.queues.remove(bell);
        self.shadows.end(bell);
    }

    /// A reset of the function, after which its configuration space is what `state` says. Work of the medium goes on,
    /// as orphans, and keeps the controller from becoming ready again.
    pub(crate) fn reset_function(&mut self, state: &ConfigState) {
        self.reset_controller();
        self.registers.reset_function();
        self.buffer.reset();
        self.interrupts.reset();
        self.config_space.set(state);
    }
}
