//! The cells of a drive, and how many there are of everything.

use base::ledger::{Cell, Layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::contains;
use crate::nvme::admin::features;
use crate::nvme::{Config, MadeFunction, MadeNamespace};

/// Most namespaces of a drive.
pub const NAMESPACES: usize = 128;
/// Most controllers of a drive: a physical function and its virtual ones.
pub const CONTROLLERS: usize = 65;
/// Most ranges of blocks that are marked uncorrectable.
pub(crate) const BAD_RANGES: usize = 64;
/// Namespaces begin at whole pages of the medium.
pub(super) const ALIGNMENT: u64 = 4096;
/// Words of a set of controllers or of namespaces.
pub(crate) const WORDS: usize = 2;

const _: () = assert!(NAMESPACES <= WORDS * 64 && CONTROLLERS <= WORDS * 64);

/// What the controllers of a drive share. All zeroes: a drive that has not been made yet.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct SubsystemCells {
    /// Bytes of the medium; 0 until the drive is made.
    pub(crate) capacity: Cell<u64>,
    /// Changes that are to be kept, counted; how many of them the owner has kept, or failed to keep.
    pub(crate) wanted: Cell<u64>,
    pub(crate) kept: Cell<u64>,
    pub(crate) failed: Cell<u64>,
    /// The change with which it was noted that the medium has lost something; 0 while it has not.
    pub(crate) fault: Cell<u64>,
    /// The last order of an operator to forget that which has had its effect.
    pub(crate) cleared: Cell<u64>,
    /// Namespaces ever made: part of their identifiers, so that none is used twice.
    pub(crate) serials: Cell<u32>,
    /// Entries of `bad`.
    pub(crate) bad_count: Cell<u32>,
    pub(crate) namespaces: [NamespaceCells; NAMESPACES],
    pub(crate) controllers: [SharedControllerCells; CONTROLLERS],
    pub(crate) bad: [Cell<BadRange>; BAD_RANGES],
}

impl SubsystemCells {
    /// Where a namespace of so many bytes would lie: in the first gap that holds it, and in none of `taken`, which are
    /// first bytes and lengths. For onlookers too: who has a drive with virtual functions knows who makes namespaces.
    pub fn gap(&self, bytes: u64, taken: &[(u64, u64)]) -> Option<u64> {
        let allocated = self.namespaces.iter().map(NamespaceCells::extent);
        let present = allocated.chain(taken.iter().copied()).filter(|(_, bytes)| *bytes != 0);
        let present: Vec<(u64, u64)> = present.collect();
        let is_full = self.namespaces.iter().all(|it| it.bytes.get() != 0);
        let mut start = 0_u64;
        loop {
            let end = start.checked_add(bytes)?;
            if bytes == 0 || is_full || end > self.capacity.get() {
                return None;
            }
            let hit = |other: &&(u64, u64)| other.0 < end && start < other.0.saturating_add(other.1);
            match present.iter().find(hit) {
                Some((at, bytes)) => start = at.checked_add(*bytes)?.checked_next_multiple_of(ALIGNMENT)?,
                None => return Some(start),
            }
        }
    }

    /// Whether no namespace is attached to a controller of a function that was made, but for its own: nothing is left
    /// of those that have gone.
    pub fn is_divided(&self, config: &Config) -> bool {
        (1..).zip(&self.namespaces).filter(|(_, it)| it.bytes.get() != 0).all(|(nsid, it)| {
            let mut made =
                (config.functions + 1..CONTROLLERS as u16).filter(|at| contains(&it.attached, *at));
            made.all(|controller| self.is_as_made(nsid, controller, &config.made))
        })
    }

    /// Whether a function was made with this namespace, of all that its controller can have been attached to.
    pub(super) fn is_as_made(&self, nsid: u32, controller: u16, made: &[MadeFunction]) -> bool {
        let cells = &self.namespaces[nsid as usize - 1];
        let (extent, is_shared) = (cells.extent(), cells.flags.get() & flag::SHARED != 0);
        made.iter().any(|made| {
            made.controller == controller
                && match made.namespace {
                    MadeNamespace::Own { start, bytes } => !is_shared && extent == (start, bytes),
                    MadeNamespace::Shared { nsid: shared } => is_shared && shared == nsid,
                }
        })
    }

    /// Whether a place on the medium is there and in no namespace.
    pub(super) fn is_free(&self, start: u64, bytes: u64) -> bool {
        self.is_free_but(start, bytes, |_| false)
    }

    /// Whether a card can give a function that was made its namespace, or has: else it never has one. For onlookers.
    pub fn can_have(&self, namespace: MadeNamespace) -> bool {
        match namespace {
            // What lies exactly there is its own.
            MadeNamespace::Own { start, bytes } => self.is_free_but(start, bytes, |it| it == (start, bytes)),
            MadeNamespace::Shared { nsid } => {
                let cells = (nsid as usize).checked_sub(1).and_then(|at| self.namespaces.get(at));
                cells.is_some_and(|it| it.bytes.get() != 0 && it.flags.get() & flag::SHARED != 0)
            }
        }
    }

    fn is_free_but(&self, start: u64, bytes: u64, ignore: impl Fn((u64, u64)) -> bool) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let hits = |it: (u64, u64)| it.1 != 0 && it.0 < end && start < it.0.saturating_add(it.1);
        let mut present = self.namespaces.iter().map(NamespaceCells::extent);
        bytes != 0 && end <= self.capacity.get() && !present.any(|it| hits(it) && !ignore(it))
    }

    /// Bytes of the medium in no namespace.
    pub fn unallocated(&self) -> u64 {
        let taken = self.namespaces.iter().fold(0_u64, |sum, it| sum.saturating_add(it.bytes.get()));
        self.capacity.get().saturating_sub(taken)
    }

    /// Whether there is such a drive: a card has made it.
    pub fn is_made(&self) -> bool {
        self.capacity.get() != 0
    }
}

/// One namespace. All zeroes: it does not exist.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct NamespaceCells {
    /// First byte on the medium.
    pub(crate) start: Cell<u64>,
    /// Bytes; 0 where there is no namespace.
    pub(crate) bytes: Cell<u64>,
    /// The controllers it is attached to.
    pub(crate) attached: [Cell<u64>; WORDS],
    /// Which of all namespaces ever made it is.
    pub(crate) serial: Cell<u32>,
    /// Bytes of a block, as a power of two.
    pub(crate) shift: Cell<u8>,
    /// Of [`flag`].
    pub(crate) flags: Cell<u8>,
    reserved: Cell<u16>,
    /// Goes up whenever what commands know of it stops being right.
    pub(crate) epoch: Cell<u32>,
    /// Pieces of work that the medium has for it.
    pub(crate) busy: Cell<u32>,
    /// Who alone may give the medium work for it: see `subsystem::Owner`. 0 for nobody.
    pub(crate) owner: Cell<u32>,
    reserved2: Cell<u32>,
}

impl NamespaceCells {
    /// First byte on the medium, and bytes.
    fn extent(&self) -> (u64, u64) {
        (self.start.get(), self.bytes.get())
    }
}

/// Bits of [`NamespaceCells::flags`].
pub(crate) mod flag {
    pub(crate) const SHARED: u8 = 1;
    pub(crate) const READ_ONLY: u8 = 2;
    pub(crate) const FORMATTING: u8 = 4;
}

/// What others leave for a controller, and what it keeps over resets.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct SharedControllerCells {
    /// Namespaces that have changed since the controller's host has read the list.
    pub(crate) changed: [Cell<u64>; WORDS],
    /// Whether that is still to be announced by an event.
    pub(crate) announce: Cell<u32>,
    /// The saved features, as in `NvmeCells::features`.
    pub(crate) saved: [Cell<u32>; features::COUNT],
}

/// Bytes of the medium that are marked uncorrectable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct BadRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}
