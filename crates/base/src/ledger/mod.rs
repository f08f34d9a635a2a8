//! The ledger: memory that outlives the card, and the means to change it in steps that happen or do not.
//!
//! A card may be killed between any two machine stores. A *step* is everything a card does between two commits.
//! Each store of a step to a [`Cell`] first saves the old value in the undo log; [`Journal::commit`] empties the
//! log with one store; a new card calls [`Journal::roll_back`] before anything else, which restores the old values
//! in reverse order. A roll-back that is itself killed is simply run again.
//!
//! What is not logged, and why that is right:
//! - [`Bytes`] (pages, slots): written only where nothing committed lives. What a step frees is therefore allocated
//!   again only after the commit ([`Slots`], [`Pages`]).
//! - [`Counter`]: statistics; a step that is taken back may leave them a little high.
//!
//! The kernel keeps the stores of a killed process, in program order, so the compiler's order is the only thing
//! that has to be fixed: all stores here are volatile.
#![allow(unsafe_code)]

mod bytes;
mod cell;
mod code;
mod fifo;
mod header;
mod journal;
mod layout;
mod memory;
mod pages;
mod regions;
mod slots;
mod span;
#[cfg(test)]
mod tests;

pub use bytes::Bytes;
pub use cell::{Cell, Counter, Plain};
pub use code::{Code, Coded};
pub use fifo::Fifo;
pub use header::LedgerError;
pub use journal::{Hook, JOURNAL_ENTRIES, Journal, STEP_ENTRIES};
pub use layout::{Layout, LayoutHash};
pub use memory::{Arena, Ledger, LedgerRoot, RawMemory};
pub use pages::{PAGE_SIZE, PageCells, PageIndex, Pages};
pub use regions::{Owned, Owner, REGIONS_MAX, Region, RegionError, RegionTable, Regions, region_bytes};
pub use slots::{SlotCells, Slots};
pub use span::Span;
