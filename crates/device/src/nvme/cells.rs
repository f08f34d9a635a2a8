use base::ledger::{Bytes, Cell, Counter, PAGE_SIZE, SlotCells};
use zerocopy::FromBytes;

use super::command::CommandCells;
use super::config_space::ConfigSpaceCells;
use super::interrupts::VectorCells;
use super::queues::{CompletionQueueCells, SubmissionQueueCells};

/// I/O queue pairs.
pub const IO_QUEUES: usize = 16;
/// Queue pairs, the admin queue included.
pub(super) const QUEUES: usize = IO_QUEUES + 1;
/// Most entries of an I/O queue.
pub const QUEUE_ENTRIES: u32 = 1024;
/// Commands that can be in the table: fetched and not completed.
pub const COMMANDS: usize = 256;
/// Of these, how many I/O queues leave to the admin queue.
pub(super) const ADMIN_COMMANDS: usize = 16;
/// The slot behind the table for the flush of a shutdown, which no queue has asked for.
pub(super) const SHUTDOWN_SLOT: u16 = COMMANDS as u16;
/// Command slots, the one of a shutdown included.
pub(super) const SLOTS: usize = COMMANDS + 1;
/// Most pages of data of one command: the maximum data transfer size (MDTS) is 128 KiB.
pub const DATA_PAGES: usize = 32;
/// Most bytes of data of one command.
pub const DATA_MAX: u32 = (DATA_PAGES * PAGE_SIZE) as u32;
/// MSI-X vectors: one a queue pair, as far as one word of pending bits goes.
pub const VECTORS: usize = if QUEUES < 64 { QUEUES } else { 64 };
/// Bytes of the controller memory buffer.
pub const MEMORY_BUFFER_BYTES: usize = 512 << 10;
/// Asynchronous Event Requests that are held (AERL plus one).
pub(super) const ASYNC_EVENT_REQUESTS: usize = 4;

const _: () = assert!(QUEUES <= 128, "volatile sets of queues are 128 bits wide");
const _: () =
    assert!(ADMIN_COMMANDS > ASYNC_EVENT_REQUESTS, "held events leave room for other admin commands");

/// Everything of a controller that outlives a card. All zeroes is the state after power-on.
#[derive(FromBytes)]
#[repr(C)]
pub struct NvmeCells {
    pub(super) config_space: ConfigSpaceCells,
    pub(super) registers: RegisterCells,
    pub(super) features: [Cell<u32>; super::features::COUNT],
    pub(super) vectors: [VectorCells; VECTORS],
    /// Vectors with a message that has not been sent: the pending bit array.
    pub(super) pending_vectors: Cell<u64>,
    pub(super) submission: [SubmissionQueueCells; QUEUES],
    pub(super) completion: [CompletionQueueCells; QUEUES],
    pub(super) slots: SlotCells<{ COMMANDS / 64 }>,
    pub(super) commands: [CommandCells; SLOTS],
    /// The next stamp of [`CommandCells::order`].
    pub(super) next_order: Cell<u64>,
    /// Commands of before a reset or a queue's deletion whose medium work has not ended.
    pub(super) orphans: Cell<u32>,
    /// Asynchronous events that have not been reported, as bits of `events.rs`.
    pub(super) events: Cell<u32>,
    /// Whether an event was reported and its log page not read since: then no more of its kind are (NVMe 2.0 §5.2).
    pub(super) events_masked: Cell<u32>,
    pub(super) statistics: Statistics,
    /// The controller memory buffer. Not logged: a posted write of a step that is taken back is received again with the
    /// same bytes, and what it writes is not live before a doorbell or a command names it.
    pub(super) memory_buffer: Bytes<MEMORY_BUFFER_BYTES>,
}

/// The controller's properties, as far as they are not computed (NVMe 2.0 §3.1.3).
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct RegisterCells {
    pub(super) asq: Cell<u64>,
    pub(super) acq: Cell<u64>,
    pub(super) cmbmsc: Cell<u64>,
    pub(super) aqa: Cell<u32>,
    pub(super) cc: Cell<u32>,
    pub(super) csts: Cell<u32>,
    pub(super) interrupt_mask: Cell<u32>,
    pub(super) cmbsts: Cell<u32>,
    reserved: Cell<u32>,
}

/// What the SMART log tells. Not logged.
#[derive(FromBytes)]
#[repr(C)]
pub(super) struct Statistics {
    pub(super) read_commands: Counter,
    pub(super) write_commands: Counter,
    pub(super) read_bytes: Counter,
    pub(super) written_bytes: Counter,
    pub(super) media_errors: Counter,
    pub(super) errors: Counter,
}
