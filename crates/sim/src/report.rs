//! What a run tells: its events, the situations it was in, and what a checker has found.

use crate::checkers::Verdict;
use crate::client::Finding;
use crate::log::Log;
use crate::marks::Marks;

/// What a run has told so far.
pub(crate) struct Report {
    pub(crate) log: Log,
    pub(crate) marks: Marks,
    /// Cards that were killed.
    pub(crate) kills: u64,
    failure: Option<Finding>,
}

impl Report {
    pub(crate) fn new(print: bool) -> Self {
        Self { log: Log::new(print), marks: Marks::default(), kills: 0, failure: None }
    }

    /// Something is wrong. What was wrong first counts.
    pub(crate) fn fail(&mut self, checker: &'static str, what: String) {
        self.failure.get_or_insert((checker, what));
    }

    pub(crate) fn judge(&mut self, checker: &'static str, verdict: Verdict) {
        if let Err(what) = verdict {
            self.fail(checker, what);
        }
    }

    /// The run ends: something is wrong.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(crate) fn take_failure(&mut self) -> Option<Finding> {
        self.failure.take()
    }
}
