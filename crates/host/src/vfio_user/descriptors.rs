//! The client's descriptors, which the agent keeps: how many are in use here, and which the agent may close.

use base::ledger::{Cell, Fifo, Journal, Layout};
use zerocopy::FromBytes;

use super::DescriptorId;
use super::cells::{MESSAGE_DESCRIPTORS, RELEASED};

/// What is known of them. All zeroes: none.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct DescriptorCells {
    released: Fifo<u32, RELEASED>,
    /// Those that are in use.
    held: Cell<u64>,
}

/// The descriptors of one client.
#[derive(Clone, Copy)]
pub struct Descriptors<'m> {
    cells: &'m DescriptorCells,
    journal: Journal<'m>,
}

impl<'m> Descriptors<'m> {
    pub(super) fn new(cells: &'m DescriptorCells, journal: Journal<'m>) -> Self {
        Self { cells, journal }
    }

    /// Those that the session does not use any more, until [`handle_closed`](Self::handle_closed).
    pub fn released(&self) -> impl Iterator<Item = DescriptorId> + use<'m> {
        self.cells.released.iter().map(DescriptorId)
    }

    /// The agent has closed `descriptor`, the first of [`released`](Self::released). May be repeated.
    pub fn handle_closed(&self, descriptor: DescriptorId) {
        if self.cells.released.front() == Some(descriptor.0) {
            self.cells.released.pop(self.journal);
        }
    }

    /// Whether the agent can take another message: everything could be given back at once.
    pub(super) fn has_room(&self) -> bool {
        self.cells.released.room() >= self.cells.held.get() as usize + 2 * MESSAGE_DESCRIPTORS
    }

    /// One more is in use. Returns how it is stored: as one more than its id, so that zeroes mean none.
    pub(super) fn hold(&self, descriptor: DescriptorId) -> u32 {
        self.cells.held.update(self.journal, |held| held + 1);
        descriptor.0.wrapping_add(1)
    }

    /// One is needed no more, if there is one, which is `stored` as [`hold`](Self::hold) said.
    pub(super) fn release(&self, stored: u32) {
        if let Some(descriptor) = stored.checked_sub(1) {
            self.cells.held.update(self.journal, |held| held.saturating_sub(1));
            self.give_back(DescriptorId(descriptor));
        }
    }

    /// The agent may close a descriptor. There is always room: a message is taken only if there is for all that are
    /// held.
    pub(super) fn give_back(&self, descriptor: DescriptorId) {
        self.cells.released.push(self.journal, descriptor.0);
    }
}
