//! Admin commands about queues and other commands, which the controller executes itself.

use spec::nvme::{Abort, AdminOpcode, Status, SubmissionEntry};

use super::HostView;
use crate::nvme::Controller;
use crate::nvme::cells::{ASYNC_EVENT_REQUESTS, SHUTDOWN_SLOT};
use crate::nvme::command::{Event, Next, State};
use crate::nvme::queues::QueueMemory;

impl Controller<'_> {
    pub(crate) fn execute_admin(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<Next, Status> {
        if !self.admin.has_command(entry.admin_opcode()) {
            return Err(Status::INVALID_OPCODE);
        }
        match entry.admin_opcode() {
            AdminOpcode::CREATE_IO_SQ | AdminOpcode::CREATE_IO_CQ => {
                match self.queues.check_create(entry, self.registers.cc())? {
                    Some((list, len)) => self.pointer(slot).begin_queue_list(list, len),
                    None => self.create_queue(entry, QueueMemory::Host),
                }
            }
            AdminOpcode::DELETE_IO_SQ => self.delete_submission_queue(entry),
            AdminOpcode::DELETE_IO_CQ => {
                self.remove_queue(self.queues.check_delete(entry)?);
                Ok(Next::Complete(0))
            }
            AdminOpcode::DOORBELL_BUFFER_CONFIG => {
                self.shadows.configure(entry, &self.buffer)?;
                Ok(Next::Complete(0))
            }
            AdminOpcode::ABORT => Ok(Next::Complete(self.abort(&Abort::parse(entry)))),
            // Held until there is something to report.
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                if self.table.in_state(State::Held).count() >= ASYNC_EVENT_REQUESTS {
                    return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
                }
                self.table.step(slot, Event::Hold);
                Ok(Next::Wait)
            }
            _ => {
                let (registers, config_space) = (&self.registers, &self.config_space);
                let host = HostView { config_space, registers, now: self.now };
                self.admin.execute(self.table.command(slot), entry, &host, self.queues.has_io())
            }
        }
    }

    fn create_queue(&mut self, entry: &SubmissionEntry, place: QueueMemory) -> Result<Next, Status> {
        self.shadows.begin(self.queues.create(entry, place, &self.buffer)?);
        Ok(Next::Complete(0))
    }

    /// The list of a queue's pages has been read.
    pub(crate) fn finish_create_queue(&mut self, slot: u16) -> Result<Next, Status> {
        let command = self.command(slot);
        self.queues.take_pages(command, self.registers.cc())?;
        self.create_queue(&command.entry(), QueueMemory::Listed)
    }

    /// Ends a queue's commands, and completes when the medium is done with them: then nothing of them has an effect
    /// any more, on the host's memory or on the disk.
    fn delete_submission_queue(&mut self, entry: &SubmissionEntry) -> Result<Next, Status> {
        let bell = self.queues.check_delete(entry)?;
        self.remove_queue(bell);
        for slot in self.table.busy().filter(|slot| *slot != SHUTDOWN_SLOT) {
            if self.command(slot).origin.get().sq == bell.queue {
                self.abandon(slot);
            }
        }
        let drains = self.table.has_orphans_of(bell.queue);
        Ok(if drains { Next::Step(Event::Drain) } else { Next::Complete(0) })
    }

    /// Ends a command that has not come to the medium or to its answer. Returns dword 0 of the completion.
    fn abort(&mut self, abort: &Abort) -> u32 {
        let found = self.table.busy().find(|slot| {
            let command = self.command(*slot);
            let origin = command.origin.get();
            origin.sq == abort.sqid && origin.cid == abort.command && command.state().can_be_aborted()
        });
        let Some(slot) = found else { return Abort::NOT_ABORTED };
        self.complete(slot, 0, Status::ABORT_REQUESTED);
        0
    }

    /// An event has happened.
    pub(crate) fn raise_event(&mut self, event: u32) {
        self.admin.events.raise(event);
        self.report_events();
    }

    /// Tells what there is to tell, as far as the host has asked.
    pub(crate) fn report_events(&mut self) {
        while let Some(slot) = self.table.in_state(State::Held).next() {
            let Some(event) = self.admin.events.take() else { return };
            self.complete(slot, event.0, Status::SUCCESS);
        }
    }
}
