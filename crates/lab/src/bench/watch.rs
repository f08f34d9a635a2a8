//! Whose processor time a measurement takes.

use std::time::{Duration, Instant};

use program::exit::Failure;

use super::bound::Share;
use super::usage::{self, CpuTime};
use crate::local::Node;

/// What the agent and the card of a node are called.
pub(super) type Names = [&'static str; 2];
pub(super) const LENDER: Names = ["lender's agent", "lender's card"];
pub(super) const BORROWER: Names = ["borrower's agent", "borrower's card"];

/// The processes of a node, to be watched.
pub(super) fn node_processes(node: &Node, names: Names) -> Result<Vec<(u32, &'static str)>, Failure> {
    Ok(usage::processes(node)?.into_iter().zip(names).collect())
}

/// Processes whose processor time is counted for a while.
pub(super) struct Watch {
    since: Instant,
    before: Vec<(u32, &'static str, CpuTime)>,
}

impl Watch {
    /// Begins with the processes' times of now.
    pub(super) fn begin(processes: &[(u32, &'static str)]) -> Self {
        let before = processes.iter().map(|&(pid, name)| (pid, name, usage::cpu_time(pid))).collect();
        Self { since: Instant::now(), before }
    }

    /// The share of each, and the time of all. `others` have been counted elsewhere.
    pub(super) fn end(self, others: &[(&'static str, CpuTime)]) -> (Vec<Share>, Duration) {
        let elapsed = self.since.elapsed();
        let watched =
            self.before.iter().map(|(pid, name, before)| (*name, usage::cpu_time(*pid).since(*before)));
        let used: Vec<_> = others.iter().copied().chain(watched).collect();
        let shares = used.iter().map(|(name, time)| Share::of(name, *time, elapsed)).collect();
        (shares, used.iter().map(|(_, time)| time.total()).sum())
    }
}
