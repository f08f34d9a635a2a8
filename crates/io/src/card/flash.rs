//! The time of flash cards: what a medium has done sooner than a flash card would have is held back until then.
//!
//! Memory is written and read when the time is over, and the result handed in at once, so that still only one effect of
//! the card is ever in doubt. A disk works meanwhile, and its result is held back. What is held is lost with the card,
//! as everything under way is: whatever has no result is done again, on a flash card that has nothing else to do.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Instant;
use node::{FlashModel, MediaError, MediaId, MediaWork};

/// How long before the time a sleep is to end: timers have a slack of 50 us, and waking up takes its time too. The
/// rest is waited for awake.
const WAKE_EARLY: Duration = Duration::from_micros(100);

/// The flash cards behind the lent functions of a card, and what is held back for them: at most all that the
/// controllers can have out.
pub(crate) struct Flash<'m> {
    /// By drive.
    models: Vec<Option<FlashModel>>,
    /// By loan.
    drives: Vec<Option<usize>>,
    /// By the time when it is due, then in the order of arrival.
    held: BTreeMap<(Instant, u64), Held<'m>>,
    /// Arrivals so far.
    arrivals: u64,
}

/// What is held back.
pub(crate) enum Held<'m> {
    /// Work for memory that has not begun.
    Work(Box<MediaWork<'m>>),
    /// What a disk has answered.
    Result(usize, MediaId, Result<(), MediaError>),
}

impl<'m> Flash<'m> {
    /// `models` by drive, and by loan which drive is lent.
    pub(crate) fn new(models: Vec<Option<FlashModel>>, drives: Vec<Option<usize>>) -> Self {
        Self { models, drives, held: BTreeMap::new(), arrivals: 0 }
    }

    /// A drive has this flash card from now on, or none.
    pub(crate) fn come(&mut self, drive: usize, model: Option<FlashModel>) {
        self.models.resize_with(self.models.len().max(drive + 1), || None);
        self.models[drive] = model;
    }

    /// A loan lends a function of this drive from now on, or of none.
    pub(crate) fn lend(&mut self, loan: usize, drive: Option<usize>) {
        self.drives.resize(self.drives.len().max(loan + 1), None);
        self.drives[loan] = drive;
    }

    /// When that work may end; `now` where no flash card is.
    pub(crate) fn submit(&mut self, now: Instant, work: &MediaWork<'m>) -> Instant {
        let model = self.drives[work.loan].and_then(|drive| self.models[drive].as_mut());
        match model {
            Some(model) => model.submit(now, work.kind, work.len.into()),
            None => now,
        }
    }

    /// Holds something back until `due`.
    pub(crate) fn hold(&mut self, due: Instant, what: Held<'m>) {
        self.arrivals += 1;
        self.held.insert((due, self.arrivals), what);
    }

    /// What is due next, if it is now.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Held<'m>> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When to be awake.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let ((due, _), _) = self.held.first_key_value()?;
        Some(Instant::from_nanos(due.as_nanos().saturating_sub(WAKE_EARLY.as_nanos() as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_when_they_are_due_and_in_order() {
        let mut flash = Flash::new(Vec::new(), Vec::new());
        let at = |us: u64| Instant::from_nanos(us * 1000);
        for (due, loan) in [(300, 0), (200, 1), (300, 2)] {
            flash.hold(at(due), Held::Result(loan, MediaId(7), Ok(())));
        }
        assert_eq!(flash.poll_timeout(), Some(at(100)), "awake before it is due");
        let mut taken = |now| match flash.take_due(at(now)) {
            Some(Held::Result(loan, ..)) => Some(loan),
            _ => None,
        };
        assert_eq!(taken(199), None);
        assert_eq!([taken(300), taken(300), taken(300), taken(300)], [Some(1), Some(0), Some(2), None]);
        assert_eq!(flash.poll_timeout(), None);
    }
}
