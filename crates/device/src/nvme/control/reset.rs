//! What each kind of reset takes away (NVMe 2.0 §3.7).

use base::Instant;
use pcie::ConfigState;
use spec::nvme::registers::{Cc, Csts};

use crate::function::MediaId;
use crate::nvme::Controller;
use crate::nvme::cells::QUEUES;
use crate::nvme::command::media_id;
use crate::nvme::line::Line;

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

    /// Everything that the host has asked for ends, as with a reset, and it finds Controller Fatal Status: nobody
    /// serves it any more. To be said of a controller that was made anew over the cells of one that has failed in this
    /// very card. Work of the medium of which `is_given` holds was given out by that one, and is not given out again;
    /// its results come here.
    pub fn give_up(&mut self, now: Instant, is_given: impl Fn(MediaId) -> bool) {
        self.see(now);
        let mut left = Line::new();
        while let Some(slot) = self.media.pop() {
            if !is_given(media_id(slot, self.command(slot).uses.get())) {
                left.push(slot);
            }
        }
        self.media = left;
        // Those come first in a line that was just made.
        let redone =
            (0..).map_while(|at| self.media.get(at)).take_while(|slot| self.command(*slot).is_store());
        self.redo = redone.count();
        self.reset_controller();
        if Cc(self.cells.registers.cc.get()).en() {
            self.fail("an assertion has failed in its card");
        }
    }

    /// A reset of the function, after which its configuration space is what `state` says. Work of the medium goes on,
    /// as orphans, and keeps the controller from becoming ready again.
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
