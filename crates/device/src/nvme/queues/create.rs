//! Creation and deletion of I/O queues (NVMe 2.0 §5.4 to §5.7).

use base::ledger::PAGE_SIZE;
use spec::nvme::{
    AdminOpcode, CreateIoCompletionQueue, CreateIoSubmissionQueue, DeleteIoQueue, Status, SubmissionEntry,
};

use super::{CQE_BYTES, QueueMemory, SQE_BYTES};
use crate::nvme::Controller;
use crate::nvme::cells::{QUEUE_ENTRIES, QUEUES, VECTORS};
use crate::nvme::command::Event;

const PAGE_MASK: u64 = PAGE_SIZE as u64 - 1;
/// Entry sizes as CC writes them: 2^6 and 2^4 bytes.
const SQE_SHIFT: u8 = 6;
const CQE_SHIFT: u8 = 4;

impl Controller<'_> {
    /// Creates a queue, at once or when the list of its pages has been read.
    pub(crate) fn begin_create_queue(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let (contiguous, base, bytes) = match entry.admin_opcode() {
            AdminOpcode::CREATE_IO_CQ => {
                let queue = CreateIoCompletionQueue::parse(entry);
                self.check_io_cq(&queue)?;
                (queue.contiguous, queue.base, queue.entries * CQE_BYTES as u32)
            }
            _ => {
                let queue = CreateIoSubmissionQueue::parse(entry);
                self.check_io_sq(&queue)?;
                (queue.contiguous, queue.base, queue.entries * SQE_BYTES as u32)
            }
        };
        if base & PAGE_MASK != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        } else if !contiguous {
            return self.begin_queue_list(slot, base, bytes);
        }
        self.create_queue(entry, QueueMemory::Host)?;
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    /// The list of a queue's pages has been read. Meanwhile the world may have changed.
    pub(crate) fn finish_create_queue(&mut self, slot: u16) -> Result<(), Status> {
        let command = self.command(slot);
        let entry = command.entry();
        let count = usize::from(command.counts.get().prps);
        let pages = if entry.admin_opcode() == AdminOpcode::CREATE_IO_CQ {
            let queue = CreateIoCompletionQueue::parse(&entry);
            self.check_io_cq(&queue)?;
            &self.completion(queue.qid).pages[..]
        } else {
            let queue = CreateIoSubmissionQueue::parse(&entry);
            self.check_io_sq(&queue)?;
            &self.submission(queue.qid).pages[..]
        };
        pages
            .iter()
            .take(count)
            .enumerate()
            .for_each(|(index, page)| page.set(self.journal, command.prp(index)));
        self.create_queue(&entry, QueueMemory::Listed)?;
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    fn create_queue(&mut self, entry: &SubmissionEntry, place: QueueMemory) -> Result<(), Status> {
        if entry.admin_opcode() == AdminOpcode::CREATE_IO_CQ {
            let queue = CreateIoCompletionQueue::parse(entry);
            if place == QueueMemory::Host {
                self.buffer.place_completion_queue(queue.base, queue.entries)?;
            }
            let vector = queue.interrupts.then_some(queue.vector);
            self.create_completion_queue(queue.qid, queue.base, place, queue.entries, vector);
            return Ok(());
        }
        let queue = CreateIoSubmissionQueue::parse(entry);
        let (base, place) = match place {
            QueueMemory::Host => self.buffer.place_submission_queue(queue.base, queue.entries)?,
            _ => (queue.base, place),
        };
        self.create_submission_queue(queue.qid, base, place, queue.entries, queue.cqid);
        Ok(())
    }

    fn check_io_cq(&self, queue: &CreateIoCompletionQueue) -> Result<(), Status> {
        let cc = self.registers.cc();
        check_queue(queue.qid, queue.entries, |qid| self.completion(qid).exists())?;
        if cc.iocqes() != CQE_SHIFT {
            Err(Status::INVALID_QUEUE_SIZE)
        } else if queue.interrupts && usize::from(queue.vector) >= VECTORS {
            Err(Status::INVALID_INTERRUPT_VECTOR)
        } else {
            Ok(())
        }
    }

    /// Priorities are accepted; the arbitration is round robin, where they mean nothing.
    fn check_io_sq(&self, queue: &CreateIoSubmissionQueue) -> Result<(), Status> {
        let cc = self.registers.cc();
        check_queue(queue.qid, queue.entries, |qid| self.submission(qid).exists())?;
        if queue.cqid == 0 || usize::from(queue.cqid) >= QUEUES {
            Err(Status::INVALID_QUEUE_ID)
        } else if !self.completion(queue.cqid).exists() {
            Err(Status::COMPLETION_QUEUE_INVALID)
        } else if cc.iosqes() != SQE_SHIFT {
            Err(Status::INVALID_QUEUE_SIZE)
        } else {
            Ok(())
        }
    }

    /// Ends a queue's commands, and completes when the medium is done with them: then nothing of them has an effect
    /// any more, on the host's memory or on the disk.
    pub(crate) fn delete_submission_queue(
        &mut self,
        slot: u16,
        entry: &SubmissionEntry,
    ) -> Result<(), Status> {
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

    pub(crate) fn delete_io_cq(&mut self, queue: u16) -> Result<(), Status> {
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
