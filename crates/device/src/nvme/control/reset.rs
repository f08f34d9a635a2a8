//! What each kind of reset takes away (NVMe 2.0 §3.7).

use pcie::ConfigState;
use spec::nvme::registers::Csts;

use crate::nvme::Controller;
use crate::nvme::cells::QUEUES;

impl Controller<'_> {
    /// A controller level reset: queues, commands, features and events go, and what the host
    /// has said of itself. AQA, ASQ, ACQ and the buffer's control stay, and
    /// CSTS.RDY stays until `update_ready` takes it.
    pub(crate) fn reset_controller(&mut self) {
        for slot in self.busy_slots() {
            self.abandon(slot);
        }
        for queue in 0..QUEUES as u16 {
            self.remove_submission_queue_cells(queue);
            self.remove_completion_queue(queue);
        }
        self.reset_features();
        self.reset_admin();
        self.cells.events.set(self.journal, 0);
        self.cells.events_masked.set(self.journal, 0);
        self.cells.pending_vectors.set(self.journal, 0);
        self.cells.registers.host_keeps.set(self.journal, 0);
        let ready = self.csts().rdy();
        self.cells.registers.csts.set(self.journal, Csts(0).with_rdy(ready).0);
        self.last_failure = None;
    }

    /// A reset of the function, after which its configuration space is what `state` says. Work of the medium goes on, as
    /// orphans, and keeps the controller from becoming ready again.
    pub(crate) fn reset_function(&mut self, state: impl FnOnce(&Self) -> ConfigState) {
        self.reset_controller();
        let (registers, journal) = (&self.cells.registers, self.journal);
        for cell in [&registers.asq, &registers.acq, &registers.cmbmsc] {
            cell.set(journal, 0);
        }
        for cell in
            [&registers.aqa, &registers.cc, &registers.csts, &registers.interrupt_mask, &registers.cmbsts]
        {
            cell.set(journal, 0);
        }
        self.reset_vectors();
        let state = state(self);
        self.set_config_state(&state);
    }
}
