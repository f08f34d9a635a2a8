//! What several fuzz targets need: frames and TLPs that a peer could send, and cards to send them to.
//!
//! A peer that knows the key of a loan can say anything under it, so authentic frames with arbitrary bodies are
//! outside bytes like any others. The rigs use `insecure` loans, whose frames end with a checksum that is made here.

pub mod cards;
pub mod channels;
pub mod frames;
pub mod ledger;
pub mod liars;
pub mod nvme;
pub mod tlps;

use base::ledger::{Arena, Journal, Pages};
use base::{Instant, RuleSet};

/// The time at which every rig starts.
pub const START: Instant = Instant::from_nanos(1_000_000);

/// A ledger with one root on the heap, and its parts.
pub struct Rig<'m, R> {
    pub journal: Journal<'m>,
    pub root: &'m R,
}

impl<'m, R: zerocopy::FromBytes> Rig<'m, R> {
    pub fn new(arena: &'m Arena) -> Self {
        let ledger = arena.zeroed::<R>().ledger::<R>(None, RuleSet::ALL);
        Self { journal: ledger.journal, root: ledger.root }
    }

    pub fn pages(&self, cells: &'m base::ledger::PageCells) -> Pages<'m> {
        Pages::new(cells, self.journal)
    }
}
