use base::ledger::Cell;
use pcie::spec::header::{BAR_COUNT, CONFIG_BYTES};
use zerocopy::FromBytes;

/// Dwords of the configuration space of a function.
pub(super) const REGISTERS: usize = CONFIG_BYTES / 4;

/// What a slot keeps beside its session. All zeroes: nobody has been met.
#[derive(FromBytes)]
#[repr(C)]
pub struct SlotCells {
    /// Code of a [`super::bringup::Stage`].
    pub(super) stage: Cell<u32>,
    /// Counts the beginnings of stages, so that late answers are recognised.
    pub(super) epoch: Cell<u32>,
    /// Requests of the stage that were given out.
    pub(super) next: Cell<u32>,
    /// Requests of the stage that are over.
    pub(super) done: Cell<u32>,
    /// How often a function has not answered since its reset.
    pub(super) tries: Cell<u32>,
    /// 1 once configuration space and BARs are known.
    pub(super) probed: Cell<u32>,
    /// When the function is asked again, in nanoseconds.
    pub(super) retry_at: Cell<u64>,
    /// One more than the session's name for the reset that is under way; 0 for none of its own.
    pub(super) answers: Cell<u64>,
    /// Of an NVMe function: 1 while its guest has it enabled.
    pub(super) enabled: Cell<u32>,
    /// Of an NVMe function: 1 while it has lost its state and its guest does not know.
    pub(super) fatal: Cell<u32>,
    /// What BARs read after all ones were written.
    pub(super) sizes: [Cell<u32>; BAR_COUNT],
    /// Configuration space as after a reset.
    pub(super) registers: [Cell<u32>; REGISTERS],
}
