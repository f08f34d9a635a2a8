//! Creation and deletion of I/O queues (NVMe 2.0 §5.4 to §5.7).

use base::ledger::PAGE_SIZE;
use spec::nvme::registers::Cc;
use spec::nvme::{
    AdminOpcode, CreateIoCompletionQueue, CreateIoSubmissionQueue, DeleteIoQueue, Status, SubmissionEntry,
};

use super::{CQE_BYTES, Doorbell, QueueMemory, Queues, SQE_BYTES};
use crate::nvme::cells::{QUEUE_ENTRIES, QUEUES, VECTORS};
use crate::nvme::command::CommandCells;
use crate::nvme::control::cmb::MemoryBuffer;

const PAGE_MASK: u64 = PAGE_SIZE as u64 - 1;
/// Entry sizes as CC writes them: 2^6 and 2^4 bytes.
const SQE_SHIFT: u8 = 6;
const CQE_SHIFT: u8 = 4;

impl Queues<'_> {
    /// Checks what a Create I/O Queue says. Returns where its list of pages lies and the bytes that those have, for a
    /// queue that is not contiguous.
    pub(crate) fn check_create(&self, entry: &SubmissionEntry, cc: Cc) -> Result<Option<(u64, u32)>, Status> {
        let (contiguous, base, bytes) = match entry.admin_opcode() {
            AdminOpcode::CREATE_IO_CQ => {
                let queue = CreateIoCompletionQueue::parse(entry);
                self.check_cq(&queue, cc)?;
                (queue.contiguous, queue.base, queue.entries * CQE_BYTES as u32)
            }
            _ => {
                let queue = CreateIoSubmissionQueue::parse(entry);
                self.check_sq(&queue, cc)?;
                (queue.contiguous, queue.base, queue.entries * SQE_BYTES as u32)
            }
        };
        if base & PAGE_MASK != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        Ok((!contiguous).then_some((base, bytes)))
    }

    /// Takes over the pages of a queue whose list has been read. Meanwhile the world may have changed.
    pub(crate) fn take_pages(&self, command: &CommandCells, cc: Cc) -> Result<(), Status> {
        let entry = command.entry();
        self.check_create(&entry, cc)?;
        let pages = if entry.admin_opcode() == AdminOpcode::CREATE_IO_CQ {
            &self.completion(CreateIoCompletionQueue::parse(&entry).qid).pages[..]
        } else {
            &self.submission(CreateIoSubmissionQueue::parse(&entry).qid).pages[..]
        };
        let count = usize::from(command.counts.get().prps);
        for (index, page) in pages.iter().take(count).enumerate() {
            page.set(self.journal, command.prp(index));
        }
        Ok(())
    }

    /// Makes a queue that was checked, whose pages lie in host memory one behind the other or were taken over. Returns
    /// its doorbell.
    pub(crate) fn create(
        &self,
        entry: &SubmissionEntry,
        place: QueueMemory,
        buffer: &MemoryBuffer<'_>,
    ) -> Result<Doorbell, Status> {
        if entry.admin_opcode() == AdminOpcode::CREATE_IO_CQ {
            let queue = CreateIoCompletionQueue::parse(entry);
            if place == QueueMemory::Host {
                buffer.place_completion_queue(queue.base, queue.entries)?;
            }
            let vector = queue.interrupts.then_some(queue.vector);
            self.create_completion(queue.qid, queue.base, place, queue.entries, vector);
            return Ok(Doorbell { queue: queue.qid, is_cq: true });
        }
        let queue = CreateIoSubmissionQueue::parse(entry);
        let (base, place) = match place {
            QueueMemory::Host => buffer.place_submission_queue(queue.base, queue.entries)?,
            _ => (queue.base, place),
        };
        self.create_submission(queue.qid, base, place, queue.entries, queue.cqid);
        Ok(Doorbell { queue: queue.qid, is_cq: false })
    }

    fn check_cq(&self, queue: &CreateIoCompletionQueue, cc: Cc) -> Result<(), Status> {
        self.check(Doorbell { queue: queue.qid, is_cq: true }, queue.entries)?;
        if cc.iocqes() != CQE_SHIFT {
            Err(Status::INVALID_QUEUE_SIZE)
        } else if queue.interrupts && usize::from(queue.vector) >= VECTORS {
            Err(Status::INVALID_INTERRUPT_VECTOR)
        } else {
            Ok(())
        }
    }

    /// Priorities are accepted; the arbitration is round robin, where they mean nothing.
    fn check_sq(&self, queue: &CreateIoSubmissionQueue, cc: Cc) -> Result<(), Status> {
        self.check(Doorbell { queue: queue.qid, is_cq: false }, queue.entries)?;
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

    fn check(&self, bell: Doorbell, entries: u32) -> Result<(), Status> {
        if bell.queue == 0 || usize::from(bell.queue) >= QUEUES || self.exists(bell) {
            Err(Status::INVALID_QUEUE_ID)
        } else if !(2..=QUEUE_ENTRIES).contains(&entries) {
            Err(Status::INVALID_QUEUE_SIZE)
        } else {
            Ok(())
        }
    }

    /// The I/O queue that a Delete I/O Queue names, if it can go.
    pub(crate) fn check_delete(&self, entry: &SubmissionEntry) -> Result<Doorbell, Status> {
        let is_cq = entry.admin_opcode() == AdminOpcode::DELETE_IO_CQ;
        let bell = Doorbell { queue: DeleteIoQueue::parse(entry).qid, is_cq };
        if bell.queue == 0 || !self.exists(bell) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let mut submission = self.submission.iter();
        if is_cq && submission.any(|cells| cells.exists() && cells.cq.get() == bell.queue) {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        Ok(bell)
    }
}
