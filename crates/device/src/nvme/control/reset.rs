//! What each kind of reset takes away (NVMe 2.0 §3.7).

use pcie::ConfigState;

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
        self.cells.shadow_doorbells.set(self.journal, 0);
        self.cells.event_indexes.set(self.journal, 0);
        self.features.reset();
        self.feature_data.reset(self.now);
        self.keep_alive.stop();
        self.events.reset();
        self.interrupts.clear();
        self.registers.reset_controller();
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
