//! What each kind of reset takes away (NVMe 2.0 §3.7).

use pcie::ConfigState;

use crate::nvme::Controller;
use crate::nvme::cells::QUEUES;
use crate::nvme::queues::Doorbell;

impl Controller<'_> {
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
        self.features.reset();
        self.feature_data.reset(self.now);
        self.keep_alive.stop();
        self.events.reset();
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
