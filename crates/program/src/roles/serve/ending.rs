//! Whether a node ends, since when and why.

use std::time::{Duration, Instant};

use crate::exit::Failure;

/// How long giving back may take before the node ends without it.
pub(super) const GIVE_BACK: Duration = Duration::from_secs(8);

/// An end that takes longer says what it waits for.
const QUIET: Duration = Duration::from_millis(500);

/// The end of a node: it is asked for once, and then waits until all that was borrowed is given back, or for so long.
#[derive(Default)]
pub(super) struct Ending {
    since: Option<Instant>,
    /// Why it ends, if that is a failure.
    failure: Option<Failure>,
    /// Somebody has asked for the end once more, and does not want to wait.
    is_hurried: bool,
    /// When it is said what the end waits for.
    explain_at: Option<Instant>,
}

impl Ending {
    /// The node was asked to end. True: that is news.
    pub(super) fn begin(&mut self) -> bool {
        let now = Instant::now();
        let is_news = !self.has_begun();
        if is_news {
            (self.since, self.explain_at) = (Some(now), Some(now + QUIET));
        }
        is_news
    }

    /// Whether the node was asked to end.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// The node ends because of this, unless it does for another reason.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Nobody waits for what is not given back yet.
    pub(super) fn hurry(&mut self) {
        self.is_hurried = true;
    }

    /// Whether the node is to end now, where so much `has_returned`.
    pub(super) fn is_over(&self, has_returned: bool) -> bool {
        let is_late = |since: Instant| since.elapsed() >= GIVE_BACK;
        self.since.is_some_and(|since| has_returned || self.is_hurried || is_late(since))
    }

    /// Whether it is to be said now what the end waits for. That is asked once.
    pub(super) fn is_to_explain(&mut self) -> bool {
        let is_due = self.explain_at.is_some_and(|at| Instant::now() >= at);
        self.explain_at.take_if(|_| is_due).is_some()
    }

    /// When one of these has another answer.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.since.map(|since| since + GIVE_BACK);
        [ends, self.explain_at].into_iter().flatten().min()
    }

    /// Why the node has failed, if it has.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_what_is_borrowed_unless_it_is_hurried() {
        let mut ending = Ending::default();
        ending.hurry();
        assert!(!ending.is_over(true) && ending.poll_timeout().is_none(), "it has not begun");
        let mut ending = Ending::default();
        assert!(ending.begin() && !ending.begin(), "it begins once");
        assert!(ending.is_over(true) && !ending.is_over(false));
        assert!(ending.poll_timeout().is_some_and(|at| at <= Instant::now() + QUIET));
        ending.hurry();
        assert!(ending.is_over(false));
    }

    #[test]
    fn the_first_failure_is_the_one_that_counts() {
        let mut ending = Ending::default();
        ending.fail(Failure::failed("first"));
        ending.fail(Failure::failed("second"));
        assert_eq!(
            ending.take_failure().map(|failure| failure.message().to_owned()).as_deref(),
            Some("first")
        );
    }
}
