//! The same cards in virtual time: a network, disks and clients that misbehave as they can, cards that die between any
//! two stores, nodes that reboot, and checkers that know what must never happen.
//!
//! A run is a function of its seed: [`run`] builds a world of a lending and a borrowing node with one or two loans over
//! two rails, lets NBD clients, or in some worlds the drivers of guests, read and write while everything goes wrong,
//! then ends all faults and expects everything to end well. What is judged stands in [`checkers::names`], one module a
//! property. [`canaries`] shows that the checkers find each safety rule's absence.
//!
//! Left out: real sockets, files and processes (`io`), and how long anything takes on a real machine.

mod agents;
mod canary;
mod chance;
pub mod checkers;
mod client;
mod clock;
mod contest;
mod death;
mod disk;
mod disks;
mod edge;
mod faults;
pub mod fleet;
mod guest;
mod identity;
pub mod liars;
mod lives;
mod loans;
mod log;
mod marks;
mod media;
mod neighbours;
mod network;
mod nodes;
mod quiet;
mod rails;
mod replaced;
mod report;
mod rest;
pub mod rogue;
mod setting;
mod shared;
mod siege;
mod slot;
mod spoof;
mod stage;
mod tenure;
mod terms;
mod traffic;
pub mod tree;
mod volatile;
mod watch;
mod world;

pub use canary::{Canary, canaries};
pub use marks::{Mark, Marks};
pub use rest::has_rest;
pub use slot::has_guests;

use base::RuleSet;

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The rules in force; all but for canaries.
    pub rules: RuleSet,
    /// Requests of all clients together.
    pub requests: u32,
    /// Print each event to standard error, one a line.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { rules: RuleSet::ALL, requests: 300, trace: false }
    }
}

/// What a run has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// Of all events: equal for equal runs.
    pub digest: u64,
    /// Events.
    pub events: u64,
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Requests that have ended.
    pub requests: u64,
    /// Bytes read and written by clients.
    pub bytes: u64,
    /// Cards killed.
    pub kills: u64,
    /// The rare situations it was in.
    pub marks: Marks,
}

impl Summary {
    /// Of a run that is told apart by its seed only.
    fn of_seed(seed: u64) -> Self {
        let (digest, events, virtual_ns, requests, bytes, kills) = (0, 0, 0, 0, 0, 0);
        Self { seed, digest, events, virtual_ns, requests, bytes, kills, marks: Marks::default() }
    }
}

/// What a run has found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed, by which the run can be repeated.
    pub seed: u64,
    /// One of [`checkers::names`].
    pub checker: &'static str,
    /// What is wrong.
    pub what: String,
    /// As far as the run came.
    pub summary: Summary,
}

/// Runs the world of `seed`.
///
/// # Errors
/// What the first checker to find anything has found.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Failure> {
    world::run(seed, options)
}

/// Runs these seeds, and tells `progress` of each; all failures are returned.
pub fn run_many(
    seeds: impl Iterator<Item = u64>,
    options: &Options,
    mut progress: impl FnMut(&Result<Summary, Failure>),
) -> Vec<Failure> {
    let mut failures = Vec::new();
    for seed in seeds {
        let result = run(seed, options);
        progress(&result);
        failures.extend(result.err());
    }
    failures
}
