//! What the driver keeps in the ledger, and how its queue memory is laid out.

use base::coded;
use base::ledger::{Bytes, Cell, Code, Counter, Fifo, Layout, SlotCells};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::events::EventStage;
use super::init::InitCells;
use super::namespace::NamespaceCells;
use super::queues::QueueCells;
use super::registers::RegisterCells;
use super::unflushed::UnflushedCells;
use crate::{BlockKind, BlockRequest};

/// Entries of the admin queues.
pub(super) const ADMIN_ENTRIES: u16 = 16;
/// Most entries of the I/O queues.
pub(super) const IO_ENTRIES: u16 = 256;
/// Most commands a driver has accepted and not ended.
pub(super) const IN_FLIGHT: usize = 255;
/// Command identifiers. Twice what is in flight, since an identifier that a step frees is used again only after the
/// commit, and all in flight may end in one step.
pub(super) const COMMANDS: usize = 512;
/// Commands of the driver's own that may wait for the submission queue.
pub(super) const OWN_PENDING: usize = 128;
/// Accesses that wait to be polled.
pub(super) const ACCESSES: usize = 16;
/// Accesses that may follow from an admin completion, and those from the one awaited access or a timer. A completion is
/// taken only while there is room for both, so a controller that sends ever more of them is not heard before what they
/// lead to has left.
pub(super) const ACCESSES_RESERVED: usize = 10;
/// Words of the map of command identifiers.
pub(super) const COMMAND_WORDS: usize = COMMANDS / 64;
/// Bytes of one command's PRP list or range: all pages of a request but the first, rounded up.
pub(super) const LIST_BYTES: usize = 256;

pub(super) const SUBMISSION_BYTES: usize = 64;
pub(super) const COMPLETION_BYTES: usize = 16;

/// Where things lie in the queue memory.
pub(super) mod region {
    use super::{COMMANDS, IO_ENTRIES, LIST_BYTES, SUBMISSION_BYTES};

    pub(in super::super) const ADMIN_SQ: usize = 0;
    pub(in super::super) const ADMIN_CQ: usize = 0x1000;
    pub(in super::super) const IO_CQ: usize = 0x2000;
    pub(in super::super) const IDENTIFY: usize = 0x3000;
    pub(in super::super) const IO_SQ: usize = 0x4000;
    pub(in super::super) const LISTS: usize = IO_SQ + IO_ENTRIES as usize * SUBMISSION_BYTES;
    pub(in super::super) const END: usize = LISTS + COMMANDS * LIST_BYTES;
}

/// Bytes of the driver's queue memory as the function sees it.
pub const QUEUE_MEMORY_SIZE: usize = region::END;

const _: () = {
    assert!(QUEUE_MEMORY_SIZE.is_multiple_of(base::ledger::PAGE_SIZE), "queue memory is granted in pages");
    assert!((BlockRequest::MAX_PAGES - 1) * spec::nvme::prp::ENTRY_SIZE <= LIST_BYTES);
    assert!(IN_FLIGHT * 2 <= COMMANDS && IN_FLIGHT == IO_ENTRIES as usize - 1);
};

/// The driver's state in the ledger, a table for each of its parts. All zeroes: never started. What a new card looks at
/// comes first: of hundreds of drivers, each page that it touches is a page fault.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct DriverCells {
    pub(super) init: InitCells,
    pub(super) registers: RegisterCells,
    pub(super) queues: QueueCells,
    /// How much of the first pending command's list has been written to the controller's memory.
    pub(super) piece: Cell<u16>,
    /// What of `events` is at the controller.
    pub(super) event_stage: Cell<Code<EventStage>>,
    pub(super) namespace: NamespaceCells,
    pub(super) table: TableCells,
    /// What the driver has counted.
    pub counters: DriverCounters,
    /// Writes that have ended and are not flushed.
    pub(super) unflushed: UnflushedCells,
    pub(super) admin: AdminEntries,
    pub(super) io: IoEntries,
    /// Written when a command is issued, whose identifier was free at the last commit.
    pub(super) lists: Bytes<{ COMMANDS * LIST_BYTES }>,
    /// Data of an Identify command, complete when its completion arrives, and read in that very step.
    pub(super) identify: Bytes<4096>,
}

/// The commands. All zeroes: none.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct TableCells {
    /// When the first command that waits to be tried again may be issued; 0 while none does.
    pub(super) retry: Cell<u64>,
    /// Commands in the submission queue that have not ended.
    pub(super) issued: Cell<u32>,
    /// 1 while a flush of the driver's own is waiting or at the controller.
    pub(super) own_flush: Cell<u16>,
    /// 1 once the shutdown's own flush has ended.
    pub(super) flushed: Cell<u16>,
    pub(super) slots: SlotCells<COMMAND_WORDS>,
    /// Commands that wait for the submission queue.
    pub(super) pending: Fifo<u16, COMMANDS>,
    /// Commands of the driver's own that wait for the submission queue; they go first.
    pub(super) own: Fifo<u16, OWN_PENDING>,
    /// Completions that wait to be polled.
    pub(super) done: Fifo<Done, COMMANDS>,
    pub(super) commands: [CommandCells; COMMANDS],
}

/// Entries of the admin queues.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct AdminEntries {
    pub(super) cq: [Cell<[u64; 2]>; ADMIN_ENTRIES as usize],
    /// Written only in a slot that the controller has fetched or never seen.
    pub(super) sq: Bytes<{ ADMIN_ENTRIES as usize * SUBMISSION_BYTES }>,
}

/// Entries of the I/O queues.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct IoEntries {
    pub(super) cq: [Cell<[u64; 2]>; IO_ENTRIES as usize],
    /// As [`AdminEntries::sq`], used when there is no controller memory buffer.
    pub(super) sq: Bytes<{ IO_ENTRIES as usize * SUBMISSION_BYTES }>,
}

/// What the driver counts.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct DriverCounters {
    /// Commands ended, with whatever status.
    pub commands: Counter,
    /// Commands ended with an error.
    pub errors: Counter,
    /// Commands issued again after a status that allows it.
    pub retries: Counter,
    /// Commands issued again after a reset.
    pub reissued: Counter,
    /// Initialisations begun.
    pub resets: Counter,
    /// Completions and memory writes that made no sense.
    pub ignored: Counter,
    /// Writes kept until they are flushed.
    pub kept: Counter,
    /// Commands by which kept writes were written again after an initialisation.
    pub rewritten: Counter,
    /// Kept writes that could not be written again, or whose flush failed for good.
    pub lost: Counter,
}

/// One command in flight.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct CommandCells {
    pub(super) head: Cell<Command>,
    pub(super) pages: [Cell<u16>; BlockRequest::MAX_PAGES],
}

/// What a command is, so that it can be issued again.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Command {
    /// Of an issued flush: how many writes had been kept by then.
    pub(super) lba: u64,
    /// Nanoseconds: since when it is issued, or when it may be again.
    pub(super) at: u64,
    pub(super) blocks: u32,
    /// The requester's.
    pub(super) id: u32,
    /// Where the data begin in the first page.
    pub(super) offset: u16,
    pub(super) kind: Code<BlockKind>,
    pub(super) fua: u8,
    pub(super) pages: u8,
    pub(super) stage: Code<Stage>,
    /// How often it was tried in vain, as far as one counts.
    pub(super) tries: u8,
    pub(super) owner: Code<Owner>,
}

/// How far a command is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Stage {
    /// Waits for the submission queue.
    Pending,
    /// The controller has it.
    Issued,
    /// Waits for the time at which it may be tried again.
    Delayed,
}
coded!(Stage: Pending, Issued, Delayed);

/// Whose a command is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Owner {
    Requester,
    /// The driver's own: a flush that makes room for writes.
    Flush,
    /// The flush of an orderly shutdown.
    LastFlush,
    /// A kept write, written again.
    Rewrite,
    /// The requester has given it up: it ends when it leaves the controller, and is not issued (again).
    Nobody,
}
coded!(Owner: Requester, Flush, LastFlush, Rewrite, Nobody);

impl Command {
    pub(super) fn kind(&self) -> BlockKind {
        self.kind.get()
    }

    /// Whether the driver itself wants it.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.owner.get(), Owner::Flush | Owner::LastFlush | Owner::Rewrite)
    }

    /// Whether the requester waits for it no longer.
    pub(super) fn is_given_up(&self) -> bool {
        self.owner.get() == Owner::Nobody
    }

    /// Whether both are about the same blocks.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let end = |command: &Self| command.lba.saturating_add(command.blocks.into());
        self.lba < end(other) && other.lba < end(self)
    }

    /// Whether it changes what the drive holds.
    pub(super) fn is_write(&self) -> bool {
        matches!(self.kind(), BlockKind::Write | BlockKind::WriteZeroes { .. } | BlockKind::Trim)
    }
}

/// A completion for the requester.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Done {
    pub(super) id: u32,
    /// 0, or one more than the place of the error in [`super::commands::ERRORS`].
    pub(super) result: u32,
}
