use base::ledger::{Bytes, Cell, Counter, Layout, PAGE_SIZE, SlotCells};
use zerocopy::FromBytes;

use crate::nvme::admin::AdminCells;
use crate::nvme::command::CommandCells;
use crate::nvme::config_space::ConfigSpaceCells;
use crate::nvme::interrupts::VectorCells;
use crate::nvme::limit::LimitCells;
use crate::nvme::queues::{CompletionQueueCells, SubmissionQueueCells};
use crate::nvme::subsystem::SubsystemCells;

pub(crate) use crate::nvme::subsystem::{CONTROLLERS, NAMESPACES};

/// I/O queue pairs.
pub const IO_QUEUES: usize = 64;
/// Queue pairs, the admin queue included.
pub(crate) const QUEUES: usize = IO_QUEUES + 1;
/// Most entries of an I/O queue.
pub const QUEUE_ENTRIES: u32 = 1024;
/// Commands that can be in the table: fetched and not completed.
pub const COMMANDS: usize = 256;
/// Of these, how many I/O queues leave to the admin queue.
pub(crate) const ADMIN_COMMANDS: usize = 16;
/// The slot behind the table for the flush of a shutdown, which no queue has asked for.
pub(crate) const SHUTDOWN_SLOT: u16 = COMMANDS as u16;
/// Command slots, the one of a shutdown included.
pub(crate) const SLOTS: usize = COMMANDS + 1;
/// Most pages of data of one command: the maximum data transfer size (MDTS) is 128 KiB.
pub const DATA_PAGES: usize = 32;
/// Pages a command can hold beside its data: ranges of a Copy, and blocks that are compared or moved.
pub(crate) const EXTRA_PAGES: usize = 2;
/// Most bytes of data of one command.
pub const DATA_MAX: u32 = (DATA_PAGES * PAGE_SIZE) as u32;
/// MSI-X vectors: one a queue pair, as far as one word of pending bits goes.
pub const VECTORS: usize = if QUEUES < 64 { QUEUES } else { 64 };
/// Bytes of the controller memory buffer.
pub const MEMORY_BUFFER_BYTES: usize = 512 << 10;
/// Asynchronous Event Requests that are held (AERL plus one).
pub(crate) const ASYNC_EVENT_REQUESTS: usize = 4;

/// Most entries of the error log (ELPE plus one).
pub(crate) const ERRORS: usize = 16;
/// Most results of self-tests.
pub(crate) const SELF_TESTS: usize = 20;

/// What a function costs, without payload: the memory buffer is touched only as far as a host uses it.
const _: () = assert!(size_of::<NvmeCells>() - MEMORY_BUFFER_BYTES <= 224 << 10);
const _: () = assert!(QUEUES <= 128, "volatile sets of queues are 128 bits wide");
const _: () =
    assert!(ADMIN_COMMANDS > ASYNC_EVENT_REQUESTS, "held events leave room for other admin commands");

/// Everything of a controller that outlives a card. All zeroes is the state after power-on. What a new card looks at
/// comes first: of hundreds of controllers, each page that it touches is a page fault.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct NvmeCells {
    pub(crate) config_space: ConfigSpaceCells,
    pub(crate) registers: RegisterCells,
    pub(crate) features: [Cell<u32>; crate::nvme::features::COUNT],
    pub(crate) admin: AdminCells,
    pub(crate) limit: LimitCells,
    pub(crate) vectors: [VectorCells; VECTORS],
    /// Vectors with a message that has not been sent: the pending bit array.
    pub(crate) pending_vectors: Cell<u64>,
    pub(crate) submission: [SubmissionQueueCells; QUEUES],
    pub(crate) completion: [CompletionQueueCells; QUEUES],
    pub(crate) slots: SlotCells<{ COMMANDS / 64 }>,
    /// The next stamp of [`CommandCells::order`].
    pub(crate) next_order: Cell<u64>,
    /// Commands of before a reset or a queue's deletion whose medium work has not ended.
    pub(crate) orphans: Cell<u32>,
    /// Asynchronous events that have not been reported, as bits of `events.rs`.
    pub(crate) events: Cell<u32>,
    /// The types of events of which one was reported and its log page not read since: then no more of the type are
    /// (NVMe 2.0 §5.2).
    pub(crate) events_masked: Cell<u32>,
    pub(crate) statistics: Statistics,
    /// The drive of a controller that has one for itself.
    pub(crate) own_subsystem: SubsystemCells,
    pub(crate) commands: [CommandCells; SLOTS],
    /// The controller memory buffer. Not logged: a posted write of a step that is taken back is received again with the
    /// same bytes, and what it writes is not live before a doorbell or a command names it.
    pub(crate) memory_buffer: Bytes<MEMORY_BUFFER_BYTES>,
}

/// The controller's properties, as far as they are not computed (NVMe 2.0 §3.1.3).
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct RegisterCells {
    pub(crate) asq: Cell<u64>,
    pub(crate) acq: Cell<u64>,
    pub(crate) cmbmsc: Cell<u64>,
    pub(crate) aqa: Cell<u32>,
    pub(crate) cc: Cell<u32>,
    pub(crate) csts: Cell<u32>,
    pub(crate) interrupt_mask: Cell<u32>,
    pub(crate) cmbsts: Cell<u32>,
    /// Bit 0 of [`HOST_KEEPS`](spec::nvme::registers::HOST_KEEPS).
    pub(crate) host_keeps: Cell<u32>,
}

impl NvmeCells {
    /// Commands that the medium failed.
    pub fn media_errors(&self) -> u64 {
        self.statistics.media_errors.get()
    }
}

/// What the SMART log tells. Not logged.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct Statistics {
    pub(crate) read_commands: Counter,
    pub(crate) write_commands: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) written_bytes: Counter,
    pub(crate) media_errors: Counter,
    pub(crate) errors: Counter,
}

impl Statistics {
    pub(crate) fn note_read(&self, bytes: u32) {
        self.read_commands.add(1);
        self.read_bytes.add(bytes.into());
    }

    pub(crate) fn note_write(&self, bytes: u32) {
        self.write_commands.add(1);
        self.written_bytes.add(bytes.into());
    }
}
