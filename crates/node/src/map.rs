//! Who reaches what of a node, for whoever asks the agent: the same constants that a card's tables are made of, and what
//! the ledger has of guests.

use base::ledger::PAGE_SIZE;
use fabric::Rights;
use host::vfio_user::DmaMapping;
use pcie::Bdf;

use crate::transaction::{FUNCTION, HOST};
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

/// Bytes of a domain's aperture.
pub const APERTURE_BYTES: u64 = 1 << fabric::APERTURE_BITS;
/// The id by which the requests of a lent function are known at its borrower.
pub const FUNCTION_REQUESTER: Bdf = FUNCTION;
/// The id by which the requests of a borrower are known at the function.
pub const HOST_REQUESTER: Bdf = HOST;

/// What the borrower of a function reaches at its lender.
pub fn granted_to_host() -> impl Iterator<Item = Grant> {
    lender::grants().map(|(bar, start, bytes, rights)| {
        let memory = Granted::Bar(bar);
        Grant { requester: HOST, start, bytes, rights, memory }
    })
}

/// What the function of a borrowed drive reaches at its borrower.
pub fn granted_to_drive() -> impl Iterator<Item = Grant> {
    borrower::grants().into_iter().map(|(memory, start, bytes, rights)| {
        let memory = match memory {
            borrower::Memory::Queues => Granted::Queues,
            borrower::Memory::Interrupts => Granted::Interrupts,
            borrower::Memory::Data => Granted::Data,
        };
        Grant { requester: FUNCTION, start, bytes, rights, memory }
    })
}

/// What the function of a slot reaches at its borrower, whatever its guest has mapped.
pub fn granted_to_slot() -> Grant {
    let rights = Rights { read: false, write: true };
    let (start, bytes) = (slot::DOORBELL, PAGE_SIZE as u64);
    Grant { requester: FUNCTION, start, bytes, rights, memory: Granted::Doorbell }
}

/// What it reaches by a map of its guest.
pub fn granted_by_guest(mapping: &DmaMapping) -> Grant {
    let rights = Rights { read: mapping.readable, write: mapping.writable };
    let memory = if mapping.descriptor.is_some() { Granted::Guest } else { Granted::GuestByMessage };
    Grant { requester: FUNCTION, start: mapping.start, bytes: mapping.len, rights, memory }
}
