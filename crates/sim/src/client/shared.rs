//! What the clients and guests of a loan share, and which of their requests may fail.

use crate::checkers::disk_model::DiskModel;
use crate::checkers::single_owner::Life;
use crate::media::Trouble;

/// A write of a client that has gone.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub(crate) request: u64,
    pub(crate) blocks: core::ops::Range<u64>,
    /// The borrower's life in which it was sent.
    pub(crate) who: Life,
}

/// What clients share: the counter of ticks and requests, and the model of the drive.
pub(crate) struct Shared {
    pub(crate) tick: u64,
    pub(crate) requests: u64,
    pub(crate) model: DiskModel,
    pub(crate) orphans: Vec<Orphan>,
    pub(crate) bytes: u64,
    /// Requests that took too long.
    pub(crate) timeouts: u64,
    /// By request: who has sent it.
    pub(crate) authors: Vec<Life>,
    /// What the medium excuses and demands.
    pub(crate) trouble: Trouble,
}

/// Which requests may fail, beside those that take too long.
#[derive(Clone, Copy)]
pub(crate) struct Excuse {
    /// Those that were sent before this tick.
    pub(crate) before: u64,
    /// Flushes, since what they are to make durable is lost.
    pub(crate) flushes: bool,
}

impl Shared {
    /// Another moment.
    pub(crate) fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Another request, of a client of `who`.
    pub(crate) fn begin_request(&mut self, who: Life) {
        self.requests += 1;
        self.authors.push(who);
    }

    /// A new borrower is served: writes of its predecessors have happened by now, or never will.
    pub(crate) fn end_orphans_of_others(&mut self, who: Life) {
        self.end_orphans(|orphan| orphan.who != who);
    }

    /// What a borrower's card knows to have no client has happened by now, or never will.
    pub(crate) fn end_orphans_of(&mut self, who: Life) {
        self.tick += 1;
        self.end_orphans(|orphan| orphan.who == who);
    }

    fn end_orphans(&mut self, ends: impl Fn(&Orphan) -> bool) {
        let (model, tick) = (&mut self.model, self.tick);
        self.orphans.retain(|orphan| {
            let has_ended = ends(orphan);
            if has_ended {
                model.abandoned_ended(orphan.request, orphan.blocks.clone(), tick);
            }
            !has_ended
        });
    }

    /// Who has sent a request; nobody has sent zeroes.
    pub(crate) fn author(&self, request: u64) -> Option<Life> {
        self.authors.get(request as usize).copied().filter(|_| request != 0)
    }
}
