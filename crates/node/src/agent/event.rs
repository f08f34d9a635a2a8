//! What happened to a node's cards and loans.

use core::time::Duration;

use base::ids::NodeId;
use link::Tenancy;

use super::watchdog::{Fault, State};

/// Something that happened. Whoever drives the agent has the words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal has ended the card.
    CardKilled {
        /// The signal.
        signal: i32,
        /// The card's generation.
        generation: u64,
    },
    /// The card has ended by itself, which it never should.
    CardEnded {
        /// Its exit status.
        status: i32,
        /// The card's generation.
        generation: u64,
    },
    /// A successor of a dead card serves.
    CardRecovered {
        /// Its generation.
        generation: u64,
        /// Since the death.
        after: Duration,
    },
    /// The next card could not be started.
    StartFailed {
        /// What the system said.
        error: String,
        /// When that is tried again.
        again_in: Duration,
    },
    /// The disks take their time with what a dead card has asked for.
    Draining {
        /// How many requests there still are.
        in_flight: u32,
        /// Since the death.
        since: Duration,
        /// What the system said, if it could not wait.
        why: String,
    },
    /// They have ended it after all.
    Drained {
        /// Since the death.
        after: Duration,
    },
    /// The card is in one system call all the time.
    CardStuck {
        /// Its process.
        pid: i32,
        /// Its generation.
        generation: u64,
        /// What it does there.
        state: State,
    },
    /// It has come out of that.
    CardFree {
        /// Its process.
        pid: i32,
        /// Its generation.
        generation: u64,
        /// How long it was there.
        after: Duration,
    },
    /// A vacant place has a loan now, of which the card knows nothing.
    Attached {
        /// The place.
        loan: usize,
        /// The card's generation.
        generation: u64,
    },
    /// Drives and loans have come or gone, and the card cannot be told of that.
    Replanned {
        /// The card's generation.
        generation: u64,
    },
    /// The card has said something of a loan that has left its place, which counts for nothing.
    Stale {
        /// The place.
        loan: usize,
        /// Which loan of it.
        life: u64,
    },
    /// Who uses a function could not be made durable, so the card is not told yet.
    TenancyUnsaved {
        /// The loan.
        loan: usize,
        /// What was to be written.
        tenancy: Tenancy,
        /// When that is tried again.
        again_in: Duration,
        /// What the system said.
        error: String,
    },
    /// Where a node is that uses a function could not be made durable: the next life of this node might not find it.
    HolderUnsaved {
        /// The node.
        node: NodeId,
        /// When that is tried again.
        again_in: Duration,
        /// What the system said.
        error: String,
    },
    /// The card lives and does not work, so it is replaced.
    CardReplaced {
        /// Its process.
        pid: i32,
        /// Its generation.
        generation: u64,
        /// What is wrong with it.
        fault: Fault,
    },
}
