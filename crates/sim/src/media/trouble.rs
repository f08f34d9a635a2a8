//! What a medium excuses of its users' requests, and demands.

/// What a medium excuses of its users' requests, and demands.
#[derive(Clone, Copy)]
pub(crate) struct Trouble {
    /// Flushes may fail that began before this tick.
    pub(crate) flushes_before: u64,
    /// Flushes that began at this tick or later fail, until an operator has cleared the drive.
    pub(crate) fails_from: u64,
    /// Reads and writes that have failed for want of space; and for other reasons.
    pub(crate) full: u32,
    pub(crate) failures: u32,
    /// The borrower's driver has lost something, which it will say at a flush.
    pub(crate) has_lost: bool,
    /// When the last flush began that has succeeded, and was not looked at.
    pub(crate) flushed: Option<u64>,
    /// A flush that began then has failed, and was not looked at.
    pub(crate) failed: Option<u64>,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            flushes_before: 0,
            fails_from: u64::MAX,
            full: 0,
            failures: 0,
            has_lost: false,
            flushed: None,
            failed: None,
        }
    }
}

/// How a request has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no space.
    Full,
    /// Any other error of the medium.
    Error,
    /// The same, or it took too long: nobody can tell.
    ErrorOrLate,
}

/// What a request wants of its medium.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Flush,
    /// A write that is to be durable.
    Both,
    Else,
}

impl Trouble {
    /// Whether a request that began at `start` may have failed. What the medium has failed itself explains one request
    /// only.
    pub(crate) fn explains(&mut self, asks: Asks, start: u64, failure: Failure) -> bool {
        let is_own = asks != Asks::Else && self.has_lost;
        let flushes = asks != Asks::Else && start < self.flushes_before;
        if failure != Failure::Full && (is_own || flushes) {
            let is_news = asks == Asks::Flush && !is_own;
            self.failed = is_news.then_some(start).or(self.failed);
            return true;
        }
        let left = if failure == Failure::Full { &mut self.full } else { &mut self.failures };
        let is_failure = asks != Asks::Flush && *left > 0;
        *left -= u32::from(is_failure && failure != Failure::ErrorOrLate);
        is_failure
    }

    /// A flush that began at `start`, or what implies one, has succeeded.
    pub(crate) fn allows_success(&self, start: u64) -> Result<(), String> {
        if start < self.fails_from {
            return Ok(());
        }
        let since = self.fails_from;
        Err(format!(
            "began at {start} and has succeeded, though the medium has lost something, and since {since} that is kept"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_took_too_long_uses_up_no_failure_of_the_medium() {
        let mut trouble = Trouble { full: 1, failures: 1, ..Trouble::default() };
        assert!(trouble.explains(Asks::Else, 1, Failure::ErrorOrLate));
        assert!(
            trouble.explains(Asks::Else, 2, Failure::Error)
                && !trouble.explains(Asks::Else, 3, Failure::Error)
        );
        assert!(
            trouble.explains(Asks::Else, 4, Failure::Full) && !trouble.explains(Asks::Else, 5, Failure::Full)
        );
        assert!(!trouble.explains(Asks::Else, 6, Failure::ErrorOrLate));
    }
}
