//! What a session keeps in the ledger.

use base::ledger::{Cell, Code, Counter, Journal, Layout, STEP_ENTRIES};
use pcie::spec::header::COMMAND_BUS_MASTER;
use zerocopy::FromBytes;

use super::commands::QueueCells;
use super::config_space::ConfigCells;
use super::descriptors::DescriptorCells;
use super::dma::MapCells;
use super::input::InputCells;
use super::interrupts::InterruptCells;
use super::output::OutputCells;
use super::presence::PresenceCells;
use super::transfers::TransferCells;
use super::{DmaMapping, Phase};

/// Bytes that were received and are not understood yet.
pub const INPUT_BYTES: usize = 64 << 10;
/// Most bytes of data of one access, as the client is told.
pub const TRANSFER_BYTES: u32 = 4096;
/// DMA maps of a slot, as the client is told.
pub const MAPS: usize = 2048;
/// Most vectors of MSI-X.
pub const VECTORS: usize = 2048;
/// Most descriptors of one message, as the client is told.
pub const MESSAGE_DESCRIPTORS: usize = 16;
/// Commands that are not answered, posted writes included.
pub const COMMANDS: usize = 256;
/// Accesses to memory of the client by message that are under way.
pub const TRANSFERS: usize = 16;

/// Words of the undo log beyond which a session begins nothing more in a step: what is begun may take several times as
/// many.
pub(super) const STEP_WORDS: usize = STEP_ENTRIES / 8;
/// The longest message that is read as a whole: what is longer is refused and passed over.
pub(super) const MESSAGE_BYTES: usize = 8192;
/// The longest message that the agent takes.
pub(super) const TAKEN_BYTES: usize = 128;
/// Replies, and data of writes that the device has not got.
pub(super) const RING_BYTES: usize = 64 << 10;
/// Messages to the client that are not sent.
pub(super) const OUTPUTS: usize = 512;
/// Places of the table of maps: twice what is used, since unmapped ones stay while copies run.
pub(super) const MAP_PLACES: usize = 2 * MAPS;
/// Descriptors that nobody uses any more and that the agent has not closed.
pub(super) const RELEASED: usize = 16384;
/// Dwords of configuration space that the session has of its own.
pub(super) const LOCAL_DWORDS: usize = 64;
/// Which of them is the command register, all of whose bits are zero after a reset: nothing comes before it.
pub(super) const COMMAND_LOCAL: usize = 0;

const _: () = {
    assert!(INPUT_BYTES.is_power_of_two() && INPUT_BYTES >= 2 * MESSAGE_BYTES);
    assert!(RING_BYTES >= 4 * MESSAGE_BYTES);
    // Everything that can be held, and one message more.
    assert!(RELEASED >= 2 * (MAP_PLACES + VECTORS + 1) + MESSAGE_DESCRIPTORS);
};

/// A session's state in the ledger, a table for each of its parts. All zeroes: no client, the function is there and its
/// configuration space as after a reset.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct SessionCells {
    pub(super) phase: Cell<Code<Phase>>,
    pub(super) presence: PresenceCells,
    pub(super) config_space: ConfigCells,
    /// What the session has counted.
    pub counters: SessionCounters,
    pub(super) commands: QueueCells,
    pub(super) interrupts: InterruptCells,
    pub(super) maps: MapCells,
    pub(super) descriptors: DescriptorCells,
    pub(super) transfers: TransferCells,
    pub(super) output: OutputCells,
    pub(super) input: InputCells,
}

impl SessionCells {
    /// Whether the function has left a command without an answer, and was not heard of since.
    pub fn is_silent(&self) -> bool {
        self.presence.is_silent()
    }

    /// How many maps the client has.
    pub fn map_count(&self) -> usize {
        self.maps.count()
    }

    /// One of them, in the order of addresses, for who looks while a card works: it may be gone, or be another one.
    pub fn map(&self, position: usize) -> Option<DmaMapping> {
        self.maps.map(position)
    }

    /// Whether a driver has the function: it lets it reach memory, or be interrupted by it. One that lets go of it ends
    /// both.
    pub fn has_driver(&self) -> bool {
        let is_master = self.config_space[COMMAND_LOCAL].get() & u32::from(COMMAND_BUS_MASTER) != 0;
        is_master || self.interrupts.is_any_enabled()
    }
}

/// What a session counts.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct SessionCounters {
    /// Clients that connected.
    pub clients: Counter,
    /// Messages of clients that were read completely.
    pub messages: Counter,
    /// Commands that were answered with an error, or would have been if a reply had been wanted.
    pub errors: Counter,
    /// Commands that failed because the function did not answer in time.
    pub timeouts: Counter,
    /// Times that the function was silent until its client had read a register as all-ones.
    pub blackouts: Counter,
    /// Posted writes that were dropped: the function was silent or gone, or they were none of the client's business.
    pub dropped_writes: Counter,
    /// Maps refused: misaligned, overlapping, beyond the aperture, or too many.
    pub refused_maps: Counter,
    /// Accesses to memory that is not mapped, or not for that.
    pub denied_accesses: Counter,
    /// Interrupts of vectors that the function does not have.
    pub stray_interrupts: Counter,
    /// Clients whose messages could not be understood any further.
    pub protocol_errors: Counter,
    /// Accesses to memory of clients by message.
    pub transfers: Counter,
    /// Those that clients refused or did not answer in time, and questions without an answer.
    pub failed_transfers: Counter,
}

/// A position that only grows, and what it was at the last commit: payload memory before that one is free.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct Marked {
    now: Cell<u64>,
    /// As step `step` found it.
    before: Cell<u64>,
    /// One more than the step, so that zeroes mean none.
    step: Cell<u64>,
}

impl Marked {
    pub(super) fn get(&self) -> u64 {
        self.now.get()
    }

    pub(super) fn at_commit(&self, journal: Journal<'_>) -> u64 {
        if self.step.get() == journal.step() + 1 { self.before.get() } else { self.now.get() }
    }

    pub(super) fn set(&self, journal: Journal<'_>, position: u64) {
        if self.now.get() == position {
            return;
        }
        let step = journal.step() + 1;
        if self.step.get() != step {
            self.before.set(journal, self.now.get());
            self.step.set(journal, step);
        }
        self.now.set(journal, position);
    }

    pub(super) fn reset(&self, journal: Journal<'_>) {
        self.now.set(journal, 0);
        self.step.set(journal, 0);
    }
}
