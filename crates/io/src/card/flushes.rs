//! Flushes of one medium that wait for each other: group commit.
//!
//! A flush covers whatever the medium had done before it began. So while one is with the medium, those that are asked
//! for meanwhile wait, and then a single one is for all of them. A host whose writes are durable before they are
//! answered asks for as many as it writes, and each costs what a write costs, or more.

/// The flushes of one medium: at most one for each command of its controllers.
pub(super) struct Flushes<T> {
    /// Whom the one that the medium has is for; nobody if it has none.
    served: Vec<T>,
    /// Whom the next one is for.
    waiting: Vec<T>,
}

impl<T> Default for Flushes<T> {
    fn default() -> Self {
        Self { served: Vec::new(), waiting: Vec::new() }
    }
}

impl<T: Copy> Flushes<T> {
    /// Asks for a flush; true if the medium is to be given one now.
    pub(super) fn ask(&mut self, asked: T) -> bool {
        let begins = self.served.is_empty();
        if begins { &mut self.served } else { &mut self.waiting }.push(asked);
        begins
    }

    /// The medium has ended its flush: whom it was for.
    pub(super) fn end(&mut self) -> Vec<T> {
        std::mem::take(&mut self.served)
    }

    /// In whose name the medium is to be given the next flush, after one has ended.
    pub(super) fn begin(&mut self) -> Option<T> {
        if self.served.is_empty() {
            std::mem::swap(&mut self.served, &mut self.waiting);
            return self.served.first().copied();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_during_a_flush_is_for_the_next_one() {
        let mut flushes = Flushes::default();
        assert!(flushes.ask(1) && !flushes.ask(2) && !flushes.ask(3));
        assert_eq!(flushes.begin(), None, "the first is under way");
        assert_eq!(flushes.end(), [1]);
        assert_eq!(flushes.begin(), Some(2));
        assert!(!flushes.ask(4));
        assert_eq!(flushes.end(), [2, 3]);
        assert_eq!(flushes.begin(), Some(4));
        assert_eq!(flushes.end(), [4]);
        assert_eq!((flushes.begin(), flushes.ask(5)), (None, true));
    }
}
