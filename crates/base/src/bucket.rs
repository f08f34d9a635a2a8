//! How often something may be done: some at once, and then one more each time.

use core::time::Duration;

use crate::Instant;

/// A token bucket.
#[derive(Debug)]
pub struct Bucket {
    most: u32,
    /// After what time there is one more.
    one_more: Duration,
    left: u32,
    /// Since when there are so many.
    since: Instant,
}

impl Bucket {
    /// One that is full: `most` at once.
    pub fn full(most: u32, one_more: Duration, now: Instant) -> Self {
        Self { most, one_more, left: most, since: now }
    }

    /// How many there are.
    pub fn left(&mut self, now: Instant) -> u32 {
        let more = now.since(self.since).as_nanos() / self.one_more.as_nanos();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(self.most);
        self.since = if self.left == self.most { now } else { self.since + self.one_more * more };
        self.left
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let is_left = self.left(now) > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_at_once_and_then_one_more_each_time() {
        let start = Instant::from_nanos(7);
        let mut bucket = Bucket::full(3, Duration::from_millis(2), start);
        let mut taken = |now| (0..10).filter(|_| bucket.take(now)).count();
        assert_eq!((taken(start), taken(start + Duration::from_millis(1))), (3, 0));
        assert_eq!(
            (taken(start + Duration::from_millis(2)), taken(start + Duration::from_millis(5))),
            (1, 1)
        );
        assert_eq!(taken(start + Duration::from_millis(6)), 1, "what is begun of a token is not lost");
        assert_eq!(taken(start + Duration::from_secs(1_000_000_000)), 3);
    }
}
