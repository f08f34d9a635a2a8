//! The two halves of a fused operation (NVMe 2.0 §3.4.2): how they find each other and wait for each other.

use spec::nvme::{FusedOperation, Status, SubmissionEntry};

use crate::nvme::Controller;
use crate::nvme::command::{Event, Next, State};
use crate::nvme::io;

impl Controller<'_> {
    /// Executes a command of an I/O queue. Commands come here in the order of their queue.
    pub(super) fn execute_queued(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<Next, Status> {
        let command = self.command(slot);
        let origin = command.origin.get();
        let queue = self.queues.submission(origin.sq);
        if let Some(first) = queue.fused.get().checked_sub(1) {
            queue.fused.set(self.journal, 0);
            if entry.fused() == FusedOperation::SECOND {
                self.execute_fused(first, slot, entry);
                return Ok(Next::Wait);
            }
            self.follow(first, Err(Status::ABORTED_MISSING_FUSED));
        }
        match entry.fused() {
            FusedOperation::NORMAL => self.nvm.execute(command, entry, &mut self.limit),
            // Both halves are announced by one doorbell (NVMe 2.0 §3.4.2).
            FusedOperation::FIRST if queue.has_entry_behind(origin.index) => {
                queue.fused.set(self.journal, slot + 1);
                Ok(Next::Step(Event::Pair))
            }
            FusedOperation::FIRST | FusedOperation::SECOND => Err(Status::ABORTED_MISSING_FUSED),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn execute_fused(&mut self, first: u16, second: u16, write: &SubmissionEntry) {
        let (comparing, writing) = (self.command(first), self.command(second));
        let compare = comparing.entry();
        self.table.step(first, Event::Fetched);
        comparing.partner.set(self.journal, second + 1);
        writing.partner.set(self.journal, first + 1);
        comparing.exclusive.set(self.journal, 1);
        if let Err(status) = self.nvm.check_fused(&compare, write) {
            return self.follow(second, Err(status));
        }
        let next = self.nvm.execute(comparing, &compare, &mut self.limit);
        self.follow(first, next);
        // One that has failed has taken the other with it.
        if writing.state() == State::Decoded {
            let next = self.nvm.execute(writing, write, &mut self.limit);
            self.follow(second, next);
        }
    }

    /// Ends the other half of a fused operation of which one has failed.
    pub(super) fn fail_partner(&mut self, slot: u16) {
        let Some(partner) = self.command(slot).partner.get().checked_sub(1) else { return };
        self.part(slot, partner);
        self.follow(partner, Err(Status::ABORTED_FAILED_FUSED));
    }

    fn part(&self, slot: u16, partner: u16) {
        self.command(slot).partner.set(self.journal, 0);
        self.command(partner).partner.set(self.journal, 0);
    }

    /// One half has its data.
    pub(super) fn end_half_load(&mut self, slot: u16) {
        let partner = self.command(slot).partner.get() - 1;
        self.table.step(slot, Event::Pair);
        if self.command(partner).state() == State::Paired {
            let first = if self.command(slot).exclusive.get() != 0 { slot } else { partner };
            self.follow(first, Ok(io::next_comparison(self.command(first))));
        }
    }

    /// The comparison has ended well: the write begins.
    pub(super) fn begin_second_half(&mut self, first: u16) {
        let Some(second) = self.command(first).partner.get().checked_sub(1) else { return };
        self.part(first, second);
        self.gate.hand_over((first, self.command(first)), (second, self.command(second)));
        self.complete(first, 0, Status::SUCCESS);
        self.follow(second, Ok(io::write(self.command(second))));
    }
}
