//! The seam between the phases and what reads and writes meanwhile: a client in this process, or fio in a guest.

use std::time::Instant;

use program::exit::Failure;

use super::report::Guest;
use super::show::Show;
use crate::local::Halt;
use crate::workload::{Model, Tally, Timeline};

/// Reads, writes and verifies all the time, and counts.
pub(super) trait Load {
    /// When its time line begins.
    fn origin(&self) -> Instant;

    /// A phase begins: returns when requests complete.
    fn begin(&mut self) -> Result<(), Halt>;

    /// Whether it still goes on; the phases ask often.
    fn check(&mut self) -> Result<(), Failure>;

    /// What was counted in this phase until now, for people: it may lag behind.
    fn so_far(&mut self) -> Tally;

    /// A card was killed just now.
    fn killed(&mut self, now: Instant);

    /// A card was killed, and no request sent after that has completed.
    fn is_recovering(&mut self) -> Result<bool, Failure>;

    /// The phase ends: what was counted in it. What goes wrong here is told by the next [`check`](Self::check) and at
    /// the end.
    fn end(&mut self) -> Tally;

    /// Ends it in order.
    fn finish(self: Box<Self>, show: &Show) -> Finished;
}

/// What is left of a load.
#[derive(Default)]
pub(super) struct Finished {
    /// What was counted after the last phase.
    pub rest: Tally,
    /// The gaps, from [`Load::origin`].
    pub timeline: Timeline,
    /// What the image must contain now, as far as the load knows.
    pub model: Option<Model>,
    /// What a guest has to say.
    pub guest: Option<Guest>,
    /// What was not as it should be, for a person.
    pub problems: Vec<String>,
}
