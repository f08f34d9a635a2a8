use base::ledger::{Cell, Code, Counter, Fifo, Layout};
use host::vfio_user::TRANSFERS;
use pcie::spec::header::{BAR_COUNT, CONFIG_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::bringup::Stage;
use crate::parts::GuestViewCells;

/// Dwords of the configuration space of a function.
pub(super) const REGISTERS: usize = CONFIG_BYTES / 4;
/// Dwords of a device serial number (PCIe 6.0 §7.9.3).
pub(super) const SERIAL_DWORDS: usize = 2;

/// What a slot keeps beside its session. All zeroes: nobody has been met.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct SlotCells {
    /// Code of a [`super::bringup::Stage`].
    pub(super) stage: Cell<Code<Stage>>,
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
    /// Of a function whose class is known: what its guest does with it.
    pub(super) view: GuestViewCells,
    /// What BARs read after all ones were written.
    pub(super) sizes: [Cell<u32>; BAR_COUNT],
    /// Configuration space as after a reset.
    pub(super) registers: [Cell<u32>; REGISTERS],
    /// Requests of the function that cannot be done at once.
    pub(super) backlog: BacklogCells,
    /// 1 while nothing of the function reaches its guest, since a write by message has failed: until it has been reset.
    pub(super) failed: Cell<u32>,
    /// 1 since the function was found to be another one than its guest was given, until that guest has gone.
    pub(super) replaced: Cell<u32>,
    /// The device serial number as it was read last.
    pub(super) serial: [Cell<u32>; SERIAL_DWORDS],
    /// How often a guest's function was found to be another one.
    pub(super) replacements: Counter,
}

impl SlotCells {
    /// How often a guest's function was found to be another one than it was given; after a roll-back perhaps a little
    /// high.
    pub fn replacements(&self) -> u64 {
        self.replacements.get()
    }

    /// Whether nothing that the function does is for the guest: it reaches no memory.
    pub fn is_closed_out(&self) -> bool {
        self.failed.get() != 0 || self.is_reset_unasked()
    }

    /// Whether the function is being reset since its client has gone: what was asked of it before may still be done.
    fn is_reset_unasked(&self) -> bool {
        // Also for who looks while a card works, to whom an unknown stage is none of these.
        let is_reset =
            [Stage::Reset, Stage::Back].into_iter().any(|stage| self.stage.get() == Code::from(stage));
        is_reset && self.answers.get() == 0
    }

    /// Whether the present guest's function was found to be another one, and is not there for it any more.
    pub fn is_replaced(&self) -> bool {
        self.replaced.get() != 0
    }
}

/// Requests that wait: as many as a function can have credit for, posted ones and reads ([`link::Held`]).
const WAITING: usize = 2048;
/// Reads by message at a time: each has at least one transfer of the session.
pub(super) const READS: usize = TRANSFERS;

/// What a function wants of memory that is reached by messages, and what has come behind that.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct BacklogCells {
    /// What has not begun, in the order in which it came.
    pub(super) queue: Fifo<Waiting, WAITING>,
    /// The write by message that is under way. What has come behind it waits.
    pub(super) writing: Cell<Writing>,
    /// The reads by message that are under way.
    pub(super) reads: [Cell<Reading>; READS],
    /// So many at the front of the queue are not to be done any more.
    pub(super) abandoned: Cell<u32>,
    /// How many of `reads` there are.
    pub(super) reading: Cell<u32>,
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Waiting {
    /// Its header as it came.
    pub(super) header: [u64; 2],
    /// The page of its payload, if it has one.
    pub(super) page: u16,
    /// Bytes of its payload.
    pub(super) len: u16,
    /// What it holds back: credits of data.
    pub(super) credits: u16,
    pub(super) reserved: u16,
}

/// A write by message.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Writing {
    pub(super) request: Waiting,
    /// Bytes that are written.
    pub(super) done: u16,
    /// Bytes of the transfer that is under way; 0 if there is none.
    pub(super) part: u16,
    /// Which map that uses.
    pub(super) map: u16,
    /// Bits of [`writing`].
    pub(super) flags: u16,
}

/// Bits of [`Writing::flags`].
pub(super) mod writing {
    /// There is one.
    pub(in super::super) const ACTIVE: u16 = 1;
    /// Nobody wants it any more, but a part of it is under way.
    pub(in super::super) const ABANDONED: u16 = 2;
    /// It is of a stream that has ended: there is no credit to give back.
    pub(in super::super) const OUTLIVED: u16 = 4;
}

/// A read by message.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Reading {
    /// With the page that its bytes come to.
    pub(super) request: Waiting,
    /// Bytes that were asked for.
    pub(super) asked: u16,
    /// Transfers that have not ended.
    pub(super) transfers: u16,
    /// Which map they use.
    pub(super) map: u16,
    /// Bits of [`reading`].
    pub(super) flags: u16,
}

/// Bits of [`Reading::flags`].
pub(super) mod reading {
    /// There is one.
    pub(in super::super) const ACTIVE: u16 = 1;
    /// A part of it was refused, or had no answer in time.
    pub(in super::super) const FAILED: u16 = 2;
    /// It is of a stream that has ended: nobody waits for it.
    pub(in super::super) const OUTLIVED: u16 = 4;
}
