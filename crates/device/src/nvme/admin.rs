//! The admin command set: queues, features, abort, events; reports are in `identify.rs` and `log.rs` (NVMe 2.0 §5).

use base::ledger::PAGE_SIZE;
use spec::nvme::registers::Cc;
use spec::nvme::{
    Abort, AdminOpcode, CreateIoCompletionQueue, CreateIoSubmissionQueue, DeleteIoQueue, GetLogPage,
    Identify, Status, SubmissionEntry,
};

use super::Controller;
use super::cells::{QUEUE_ENTRIES, QUEUES, VECTORS};
use super::command::{Event, State, Work};

const PAGE_MASK: u64 = PAGE_SIZE as u64 - 1;
/// Entry sizes as CC writes them: 2^6 and 2^4 bytes.
const SQE_SHIFT: u8 = 6;
const CQE_SHIFT: u8 = 4;

impl Controller<'_> {
    pub(super) fn execute_admin(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        match entry.admin_opcode() {
            AdminOpcode::DELETE_IO_SQ => return self.delete_submission_queue(slot, entry),
            AdminOpcode::CREATE_IO_SQ => self.create_io_sq(&CreateIoSubmissionQueue::parse(entry))?,
            AdminOpcode::DELETE_IO_CQ => self.delete_io_cq(DeleteIoQueue::parse(entry).qid)?,
            AdminOpcode::CREATE_IO_CQ => self.create_io_cq(&CreateIoCompletionQueue::parse(entry))?,
            AdminOpcode::IDENTIFY => {
                self.check_identify(&Identify::parse(entry))?;
                return self.begin_transfer(slot, Work::Report, PAGE_SIZE as u32);
            }
            AdminOpcode::GET_LOG_PAGE => {
                let len = self.check_log_page(&GetLogPage::parse(entry))?;
                return self.begin_transfer(slot, Work::Report, len);
            }
            AdminOpcode::ABORT => {
                let result = self.abort(Abort::parse(entry));
                self.complete(slot, result, Status::SUCCESS);
                return Ok(());
            }
            AdminOpcode::SET_FEATURES | AdminOpcode::GET_FEATURES => {
                let result = self.features(entry)?;
                self.complete(slot, result, Status::SUCCESS);
                return Ok(());
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => return self.hold_event_request(slot),
            _ => return Err(Status::INVALID_OPCODE),
        }
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    fn create_io_cq(&mut self, queue: &CreateIoCompletionQueue) -> Result<(), Status> {
        let taken = |qid| self.completion(qid).exists();
        let cc = Cc(self.cells.registers.cc.get());
        check_queue(queue.qid, queue.entries, taken)?;
        if cc.iocqes() != CQE_SHIFT {
            return Err(Status::INVALID_QUEUE_SIZE);
        } else if queue.interrupts && usize::from(queue.vector) >= VECTORS {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        check_memory(queue.base, queue.contiguous)?;
        self.place_completion_queue(queue.base, queue.entries)?;
        let vector = queue.interrupts.then_some(queue.vector);
        self.create_completion_queue(queue.qid, queue.base, queue.entries, vector);
        Ok(())
    }

    fn create_io_sq(&mut self, queue: &CreateIoSubmissionQueue) -> Result<(), Status> {
        let cc = Cc(self.cells.registers.cc.get());
        check_queue(queue.qid, queue.entries, |qid| self.submission(qid).exists())?;
        if queue.cqid == 0 || usize::from(queue.cqid) >= QUEUES {
            return Err(Status::INVALID_QUEUE_ID);
        } else if !self.completion(queue.cqid).exists() {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        } else if cc.iosqes() != SQE_SHIFT {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        check_memory(queue.base, queue.contiguous)?;
        let (base, in_buffer) = self.place_submission_queue(queue.base, queue.entries)?;
        self.create_submission_queue(queue.qid, base, in_buffer, queue.entries, queue.cqid);
        Ok(())
    }

    /// Ends a queue's commands, and completes when the medium is done with them: then nothing of them has an effect
    /// any more, on the host's memory or on the disk.
    fn delete_submission_queue(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let queue = DeleteIoQueue::parse(entry).qid;
        if queue == 0 || usize::from(queue) >= QUEUES || !self.submission(queue).exists() {
            return Err(Status::INVALID_QUEUE_ID);
        }
        self.remove_submission_queue(queue);
        if self.has_orphans(queue) {
            self.step(slot, Event::Drain);
        } else {
            self.complete(slot, 0, Status::SUCCESS);
        }
        Ok(())
    }

    fn delete_io_cq(&mut self, queue: u16) -> Result<(), Status> {
        if queue == 0 || usize::from(queue) >= QUEUES || !self.completion(queue).exists() {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let mut submission = self.cells.submission.iter();
        if submission.any(|cells| cells.exists() && cells.cq.get() == queue) {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        self.remove_completion_queue(queue);
        Ok(())
    }

    /// Ends a command that has not come to the medium or to its answer. Returns dword 0 of the completion.
    fn abort(&mut self, abort: Abort) -> u32 {
        let found = self.busy_slots().find(|slot| {
            let command = self.command(*slot);
            let origin = command.origin.get();
            origin.sq == abort.sqid && origin.cid == abort.command && command.state().can_be_aborted()
        });
        let Some(slot) = found else { return Abort::NOT_ABORTED };
        debug_assert_ne!(self.command(slot).state(), State::Media);
        self.complete(slot, 0, Status::ABORT_REQUESTED);
        0
    }
}

fn check_queue(qid: u16, entries: u32, taken: impl FnOnce(u16) -> bool) -> Result<(), Status> {
    if qid == 0 || usize::from(qid) >= QUEUES || taken(qid) {
        Err(Status::INVALID_QUEUE_ID)
    } else if !(2..=QUEUE_ENTRIES).contains(&entries) {
        Err(Status::INVALID_QUEUE_SIZE)
    } else {
        Ok(())
    }
}

fn check_memory(base: u64, contiguous: bool) -> Result<(), Status> {
    if !contiguous {
        Err(Status::INVALID_FIELD)
    } else if base & PAGE_MASK != 0 {
        Err(Status::PRP_OFFSET_INVALID)
    } else {
        Ok(())
    }
}
