//! What happened to a node, as its log says it.

use core::fmt;
use core::time::Duration;

use base::times::WATCHDOG;
use link::Tenancy;

use super::watchdog::{Fault, State};

/// Something that happened. Its [`Display`](fmt::Display) is the line of the log; what stands beside that line there
/// are its values.
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
    /// The card has said something of a loan that has left its place, which counts for nothing.
    Stale {
        /// The place.
        loan: usize,
        /// Which loan of it.
        life: u32,
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

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something of this software's own is wrong.
    Error,
    /// Somebody should look.
    Warning,
    /// Good to know.
    Info,
}

impl Event {
    /// How much it matters.
    pub fn severity(&self) -> Severity {
        match self {
            Self::CardEnded { .. } | Self::CardReplaced { fault: Fault::Spins, .. } => Severity::Error,
            Self::CardKilled { .. }
            | Self::StartFailed { .. }
            | Self::Draining { .. }
            | Self::CardStuck { .. }
            | Self::TenancyUnsaved { .. }
            | Self::CardReplaced { .. } => Severity::Warning,
            Self::CardRecovered { .. }
            | Self::Drained { .. }
            | Self::CardFree { .. }
            | Self::Attached { .. }
            | Self::Stale { .. } => Severity::Info,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CardKilled { .. } => f.write_str("card was killed"),
            Self::CardEnded { .. } => f.write_str("card has ended"),
            Self::CardRecovered { .. } => f.write_str("card recovered"),
            Self::StartFailed { .. } => f.write_str("the next card could not be started"),
            Self::Draining { .. } => f.write_str(
                "waiting for disk requests of the old card, which must end before the next card may start: look \
                 at the disk",
            ),
            Self::Drained { .. } => f.write_str("the disk requests of the old card have ended"),
            Self::CardStuck { .. } => write!(
                f,
                "the card has been in one system call for {WATCHDOG:?} and serves nobody meanwhile; it is left alone, since \
                 killing it would not end the call: look at the disk behind what is lent"
            ),
            Self::Attached { .. } => f.write_str("the card is replaced by one that knows the new loan"),
            Self::Stale { .. } => f.write_str("what the card said of a loan that is gone is dropped"),
            Self::TenancyUnsaved { tenancy, error, .. } => {
                let what = if tenancy.is_held { "used" } else { "given back" };
                write!(f, "the function cannot be {what} yet: {error}")
            }
            Self::CardFree { .. } => f.write_str("the card goes on"),
            Self::CardReplaced { fault, .. } => f.write_str(match fault {
                Fault::Stopped => "the card was stopped by a signal (SIGSTOP): it is killed and replaced",
                Fault::Spins => {
                    "the card runs and makes no turn: it is killed and replaced. Please report this with the log"
                }
                Fault::Oversleeps => {
                    "the card did not wake up when it was to, though it had a processor: it is killed and replaced"
                }
            }),
        }
    }
}
