//! Whether the function is there and answers, and what its client may take for an answer of it meanwhile.

use base::ledger::{Cell, Code, Journal, Layout};
use base::{Instant, Rule, coded};
use spec::vfio_user::{Errno, RegionIndex};
use zerocopy::FromBytes;

use super::{SessionCells, SessionCounters};

/// What is known of the function. All zeroes: it is there.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct PresenceCells {
    /// Until when everything is refused that has piled up behind what timed out, in nanoseconds.
    refuse_until: Cell<u64>,
    /// 1 once the function was removed.
    absent: Cell<u32>,
    /// 1 since a command had no answer in time, until the function is heard of again.
    silent: Cell<u32>,
    /// 1 once a posted write for the function was dropped, until the card knows.
    lost: Cell<u32>,
    misled: Cell<Code<Misled>>,
}

impl PresenceCells {
    pub(super) fn is_silent(&self) -> bool {
        self.silent.get() != 0
    }
}

/// Whether the client has read registers, and not only configuration space, as all-ones since the function was heard.
#[derive(Clone, Copy, PartialEq)]
enum Misled {
    Not,
    /// It has, and the card does not know.
    Untold,
    Told,
}
coded!(Misled: Not, Untold, Told);

/// The function, as far as its client can tell.
#[derive(Clone, Copy)]
pub struct Presence<'m> {
    cells: &'m PresenceCells,
    counters: &'m SessionCounters,
    journal: Journal<'m>,
}

impl<'m> Presence<'m> {
    pub(super) fn new(cells: &'m SessionCells, journal: Journal<'m>) -> Self {
        Self { cells: &cells.presence, counters: &cells.counters, journal }
    }

    /// Whether a command had no answer in time, and nothing was heard since: each one fails at once.
    pub fn is_silent(&self) -> bool {
        self.cells.is_silent()
    }

    /// Whoever has the function has answered something: commands wait for it again.
    pub fn handle_heard(&self) {
        self.cells.silent.set(self.journal, 0);
        if self.cells.misled.value() == Misled::Told {
            self.cells.misled.set(self.journal, Misled::Not.into());
        }
    }

    /// Whether the client has read a register as all-ones because the function is silent, or was reset before it had
    /// answered: said once until it is heard. Its driver may have given the function up, and with it the memory that it
    /// has told it of.
    pub fn poll_misled(&self) -> bool {
        let is_news = self.cells.misled.value() == Misled::Untold;
        if is_news {
            self.cells.misled.set(self.journal, Misled::Told.into());
            self.counters.blackouts.add(1);
        }
        is_news
    }

    /// Whether a posted write of the client was dropped since this was asked last, though the function is there: it is
    /// not what its client takes it for.
    pub fn poll_lost_write(&self) -> bool {
        let is_news = self.cells.lost.get() != 0;
        self.cells.lost.set(self.journal, 0);
        is_news
    }

    pub(super) fn is_absent(&self) -> bool {
        self.cells.absent.get() != 0
    }

    pub(super) fn set_absent(&self, absent: bool) {
        self.cells.absent.set(self.journal, absent.into());
    }

    /// The function has answered a request.
    pub(super) fn answered(&self) {
        self.cells.refuse_until.set(self.journal, 0);
        self.handle_heard();
    }

    /// Something had no answer in time. Returns whether that is news.
    pub(super) fn fall_silent(&self) -> bool {
        let is_news = !self.is_silent();
        self.cells.silent.set(self.journal, 1);
        is_news
    }

    /// Everything is refused until then.
    pub(super) fn refuse_until(&self, end: Instant) {
        self.cells.refuse_until.set(self.journal, end.as_nanos());
    }

    /// Why a posted write for the function is not even queued, if so. What is posted to a silent function may reach it
    /// yet.
    pub(super) fn posted_refusal(&self, now: Instant) -> Option<Errno> {
        if self.is_absent() {
            return Some(Errno::EIO);
        }
        (self.cells.refuse_until.get() > now.as_nanos()).then_some(Errno::ETIMEDOUT)
    }

    /// Why a command for the function that the client waits for is not even queued, if so.
    pub(super) fn refusal(&self, now: Instant) -> Option<Errno> {
        let refuses = self.is_silent() && self.journal.rule(Rule::RefuseWhileSilent);
        self.posted_refusal(now).or_else(|| refuses.then_some(Errno::ETIMEDOUT))
    }

    /// The client reads all-ones of a region, because the function is silent or was reset.
    pub(super) fn mislead(&self, region: u32) {
        if region != RegionIndex::CONFIG.0 && self.cells.misled.value() == Misled::Not {
            self.cells.misled.set(self.journal, Misled::Untold.into());
        }
    }

    /// A write goes nowhere, and its client is not told so: a function that is there has to be known to have failed.
    pub(super) fn drop_write(&self) {
        self.counters.dropped_writes.add(1);
        if !self.is_absent() {
            self.cells.lost.set(self.journal, 1);
        }
    }

    /// The client has gone, and with it what it knows.
    pub(super) fn forget(&self) {
        self.cells.misled.set(self.journal, Misled::Not.into());
        self.cells.silent.set(self.journal, 0);
        self.cells.lost.set(self.journal, 0);
        self.cells.refuse_until.set(self.journal, 0);
    }
}
