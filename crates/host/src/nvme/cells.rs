//! What the driver keeps in the ledger, and how its queue memory is laid out.

use base::coded;
use base::ledger::{Bytes, Cell, Code, Counter, Fifo, Layout, SlotCells};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::events::EventStage;
use super::init::State;
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

/// The driver's state in the ledger. All zeroes: never started. What a new card looks at comes first: of hundreds of
/// drivers, each page that it touches is a page fault.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct DriverCells {
    pub(super) state: Cell<Code<State>>,
    /// Failed attempts to initialise since the last success.
    pub(super) attempts: Cell<u32>,
    /// The access that is waited for; 0 for none.
    pub(super) awaited: Cell<u32>,
    /// Number of the last access or admin command.
    pub(super) serial: Cell<u32>,
    /// When the present state is to be looked at again, in nanoseconds; 0 for never.
    pub(super) timer: Cell<u64>,
    /// When what the present state polls for must have come.
    pub(super) limit: Cell<u64>,
    /// When the commands are checked for their age; 0 while there are none.
    pub(super) watch: Cell<u64>,
    /// When an orderly shutdown is given up; 0 while none is wanted.
    pub(super) shutdown_limit: Cell<u64>,
    /// When the first command that waits to be tried again may be issued; 0 while none does.
    pub(super) retry: Cell<u64>,
    /// The shutdown's own flush has ended.
    pub(super) flushed: Cell<u32>,
    /// Accesses of the initialisation that are to be polled.
    pub(super) out: Fifo<AccessRecord, ACCESSES>,

    /// Capabilities still to be visited, so that a loop in the chain ends.
    pub(super) chain_left: Cell<u32>,
    /// Offset of the capability that is read.
    pub(super) capability: Cell<u32>,
    /// Message control of MSI-X, shifted into its dword.
    pub(super) msix_control: Cell<u32>,
    /// Table BIR and offset of MSI-X.
    pub(super) msix_table: Cell<u32>,
    /// Controller Capabilities.
    pub(super) cap: Cell<u64>,
    /// Raw CMBLOC.
    pub(super) cmb_location: Cell<u32>,
    /// Raw CMBSZ; 0 for no controller memory buffer.
    pub(super) cmb_size: Cell<u32>,

    /// Admin submission tail, admin completion head, and the phase of the entry there.
    pub(super) admin_tail: Cell<u16>,
    pub(super) admin_head: Cell<u16>,
    pub(super) admin_phase: Cell<u16>,
    /// The admin completion head that the controller was told.
    pub(super) admin_rung: Cell<u16>,
    /// Identifier of the admin command under way.
    pub(super) admin_cid: Cell<u16>,
    /// Entries of both I/O queues.
    pub(super) io_entries: Cell<u16>,
    pub(super) sq_tail: Cell<u16>,
    /// The tail that the controller was told.
    pub(super) sq_rung: Cell<u16>,
    pub(super) cq_head: Cell<u16>,
    pub(super) cq_phase: Cell<u16>,
    /// Completions taken since the controller was told the head.
    pub(super) cq_owed: Cell<u16>,
    /// Commands in the submission queue that have not ended.
    pub(super) issued: Cell<u16>,
    /// How much of the first pending command has been written to the controller's memory.
    pub(super) piece: Cell<u16>,
    /// 1 while a flush of the driver's own is waiting or at the controller.
    pub(super) own_flush: Cell<u16>,

    /// Namespace size in logical blocks; valid with `block_size`.
    pub(super) blocks: Cell<u64>,
    /// 0 before the first initialisation.
    pub(super) block_size: Cell<u32>,
    /// Bits of [`flag`].
    pub(super) flags: Cell<u32>,
    /// The namespace that is driven.
    pub(super) nsid: Cell<u32>,
    /// What of `events` is at the controller.
    pub(super) event_stage: Cell<Code<EventStage>>,

    pub(super) slots: SlotCells<COMMAND_WORDS>,
    /// What the driver has counted.
    pub counters: DriverCounters,
    /// Commands that wait for the submission queue.
    pub(super) pending: Fifo<u16, COMMANDS>,
    /// Commands of the driver's own that wait for the submission queue; they go first.
    pub(super) own: Fifo<u16, OWN_PENDING>,
    /// Completions that wait to be polled.
    pub(super) done: Fifo<Done, COMMANDS>,
    /// Writes that have ended and are not flushed.
    pub(super) unflushed: UnflushedCells,
    pub(super) commands: [CommandCells; COMMANDS],
    pub(super) admin_cq: [Cell<[u64; 2]>; ADMIN_ENTRIES as usize],
    pub(super) io_cq: [Cell<[u64; 2]>; IO_ENTRIES as usize],

    /// Written only in a slot that the controller has fetched or never seen.
    pub(super) admin_sq: Bytes<{ ADMIN_ENTRIES as usize * SUBMISSION_BYTES }>,
    /// The same, used when there is no controller memory buffer.
    pub(super) io_sq: Bytes<{ IO_ENTRIES as usize * SUBMISSION_BYTES }>,
    /// Written when a command is issued, whose identifier was free at the last commit.
    pub(super) lists: Bytes<{ COMMANDS * LIST_BYTES }>,
    /// Data of an Identify command, complete when its completion arrives, and read in that very step.
    pub(super) identify: Bytes<4096>,
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

/// Bits of [`DriverCells::flags`].
pub(super) mod flag {
    pub(in super::super) const READ_ONLY: u32 = 1;
    pub(in super::super) const VOLATILE_CACHE: u32 = 2;
    pub(in super::super) const DEALLOCATE: u32 = 4;
    pub(in super::super) const WRITE_ZEROES: u32 = 8;
    pub(in super::super) const NAMESPACE_EVENTS: u32 = 16;
    pub(in super::super) const SHARED: u32 = 32;
    /// There is a volatile write cache for hosts that keep what is not flushed.
    pub(in super::super) const HIDDEN_CACHE: u32 = 64;
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

/// An access of the initialisation.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct AccessRecord {
    pub(super) offset: u64,
    pub(super) data: [u8; 16],
    pub(super) id: u32,
    pub(super) kind: Code<AccessKind>,
    pub(super) bar: u8,
    pub(super) len: u8,
    pub(super) byte_enables: u8,
}

/// What is accessed, and how.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum AccessKind {
    Write,
    Read,
    ConfigRead,
    ConfigWrite,
}
coded!(AccessKind: Write, Read, ConfigRead, ConfigWrite);
