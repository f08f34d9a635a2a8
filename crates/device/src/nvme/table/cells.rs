//! The cells of a controller, and how many there are of everything.

use base::ledger::{Bytes, Cell, Counter, Journal, Layout, PAGE_SIZE};
use zerocopy::FromBytes;

use crate::nvme::admin::events::EventCells;
use crate::nvme::admin::feature_data::FeatureDataCells;
use crate::nvme::admin::features;
use crate::nvme::admin::log::ErrorLogCells;
use crate::nvme::admin::self_test::SelfTestCells;
use crate::nvme::command::CommandCells;
use crate::nvme::control::cmb::BufferCells;
use crate::nvme::control::config_space::ConfigSpaceCells;
use crate::nvme::control::interrupts::InterruptCells;
use crate::nvme::control::registers::RegisterCells;
use crate::nvme::limit::LimitCells;
use crate::nvme::queues::shadow::ShadowCells;
use crate::nvme::queues::{CompletionQueueCells, SubmissionQueueCells};
use crate::nvme::subsystem::SubsystemCells;
use crate::nvme::table::TableCells;

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

/// Everything of a controller that outlives a card, part by part. All zeroes is the state after power-on. What a new
/// card looks at comes first: of hundreds of controllers, each page that it touches is a page fault.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct NvmeCells {
    /// Whether there was a card before: the first one takes over what was saved.
    pub(crate) made: Cell<u64>,
    pub(crate) config_space: ConfigSpaceCells,
    pub(crate) registers: RegisterCells,
    pub(crate) buffer: BufferCells,
    pub(crate) features: [Cell<u32>; features::COUNT],
    pub(crate) feature_data: FeatureDataCells,
    pub(crate) events: EventCells,
    pub(crate) errors: ErrorLogCells,
    pub(crate) self_tests: SelfTestCells,
    pub(crate) limit: LimitCells,
    pub(crate) interrupts: InterruptCells,
    pub(crate) table: TableCells,
    pub(crate) shadows: ShadowCells,
    pub(crate) submission: [SubmissionQueueCells; QUEUES],
    pub(crate) completion: [CompletionQueueCells; QUEUES],
    pub(crate) statistics: Statistics,
    /// The drive of a controller that has one for itself.
    pub(crate) own_subsystem: SubsystemCells,
    pub(crate) commands: [CommandCells; SLOTS],
    /// The controller memory buffer. Not logged: a posted write of a step that is taken back is received again with the
    /// same bytes, and what it writes is not live before a doorbell or a command names it.
    pub(crate) memory_buffer: Bytes<MEMORY_BUFFER_BYTES>,
}

/// A part of the controller that is all in the ledger: its cells, and the log of what changes in them.
pub(crate) struct Part<'m, C> {
    pub(crate) cells: &'m C,
    pub(crate) journal: Journal<'m>,
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
