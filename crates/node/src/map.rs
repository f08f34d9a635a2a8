//! Who reaches what of a node, for whoever asks the agent: the same constants that a card's tables are made of, and
//! what the ledger has of guests.

use base::ledger::PAGE_SIZE;
use fabric::Rights;
use host::vfio_user::DmaMapping;
use pcie::Bdf;

use crate::transaction::requester_of;
use crate::{borrower, lender, slot};

/// A grant of a card: pages of its domain that a requester reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who reaches it.
    pub requester: Bdf,
    /// First byte, as an offset in the aperture of the card's domain.
    pub start: u64,
    /// Bytes; whole pages.
    pub bytes: u64,
    /// How.
    pub rights: Rights,
    /// What lies there.
    pub memory: Granted,
}

/// What lies behind a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Registers of a lent function.
    Bar(u8),
    /// Queues of the driver of a borrowed drive.
    Queues,
    /// Its doorbell for interrupts.
    Interrupts,
    /// Its pages of data: those of running commands, in their direction.
    Data,
    /// The doorbell for interrupts of a slot.
    Doorbell,
    /// Memory that a virtual machine shares.
    Guest,
    /// Memory that a virtual machine is asked for.
    GuestByMessage,
}

/// What the borrower of the function in this place reaches.
pub fn granted_to_host(place: usize) -> impl Iterator<Item = Grant> {
    let requester = requester_of(place);
    lender::grants(place).map(move |(bar, start, bytes, rights)| {
        let memory = Granted::Bar(bar);
        Grant { requester, start, bytes, rights, memory }
    })
}

/// What the function of the drive that is borrowed in this place reaches.
pub fn granted_to_drive(place: usize) -> impl Iterator<Item = Grant> {
    let requester = requester_of(place);
    borrower::grants(place).into_iter().map(move |(memory, start, bytes, rights)| {
        let memory = match memory {
            borrower::Memory::Queues => Granted::Queues,
            borrower::Memory::Interrupts => Granted::Interrupts,
            borrower::Memory::Data => Granted::Data,
        };
        Grant { requester, start, bytes, rights, memory }
    })
}

/// What the function of a slot reaches at its borrower, whatever its guest has mapped.
pub fn granted_to_slot(requester: Bdf) -> Grant {
    let rights = Rights { read: false, write: true };
    let (start, bytes) = (slot::DOORBELL, PAGE_SIZE as u64);
    Grant { requester, start, bytes, rights, memory: Granted::Doorbell }
}

/// What it reaches by a map of its guest.
pub fn granted_by_guest(requester: Bdf, mapping: &DmaMapping) -> Grant {
    let rights = Rights { read: mapping.readable, write: mapping.writable };
    let memory = if mapping.descriptor.is_some() { Granted::Guest } else { Granted::GuestByMessage };
    Grant { requester, start: mapping.start, bytes: mapping.len, rights, memory }
}
