//! Time, ids, the header of frames, a hash, chance, impairment by chance, the table of times and the storage types of
//! the ledger: what every other crate stands on.
//!
//! The ledger is the memory that outlives a card (`ledger`). Cores borrow typed cells of it and change them
//! through a [`ledger::Journal`], which can take back whatever an unfinished step has stored. Nothing here does
//! I/O, and only `ledger` contains `unsafe`.

// For what is derived.
extern crate self as base;

mod bucket;
pub mod frame;
pub mod hash;
pub mod ids;
mod impairment;
pub mod ledger;
mod payload;
mod random;
mod rules;
mod time;
pub mod times;

pub use bucket::Bucket;
pub use impairment::{Arrival, Impairment, PPM};
pub use payload::{INLINE_MAX, InlineBytes, PageSlice, Payload};
pub use random::Random;
pub use rules::{Rule, RuleSet};
pub use time::Instant;
