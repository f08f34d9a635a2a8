//! Lines of the log that somebody outside can cause as often as he likes.

use std::num::NonZero;
use std::time::{Duration, Instant};

/// How often such a line is said at most.
const PAUSE: Duration = Duration::from_secs(1);

/// One kind of line about one thing: the first is said, and then at most one a second, which tells how many others were
/// not.
#[derive(Debug, Default)]
pub struct RateLimited {
    speak_at: Option<Instant>,
    unsaid: u64,
}

impl RateLimited {
    /// Calls `speak` if the line is to be said, with the number of `others` since the last one, if there were any.
    pub fn say(&mut self, speak: impl FnOnce(Option<NonZero<u64>>)) {
        if let Some(others) = self.count(Instant::now()) {
            speak(NonZero::new(others));
        }
    }

    /// How many have not been said since the last one that was.
    #[cfg(test)]
    pub(crate) fn unsaid(&self) -> u64 {
        self.unsaid
    }

    /// Counts one. If it is to be said, how many have not been since the last one that was.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.speak_at.is_some_and(|at| now < at) {
            self.unsaid += 1;
            return None;
        }
        self.speak_at = Some(now + PAUSE);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_all_others() {
        let (mut line, begin) = (RateLimited::default(), Instant::now());
        let mut at = |ms| line.count(begin + Duration::from_millis(ms));
        assert_eq!([at(0), at(1), at(999), at(1000)], [Some(0), None, None, Some(2)]);
        assert_eq!([at(1001), at(9000), at(10_000)], [None, Some(1), Some(0)]);
    }

    #[test]
    fn whoever_repeats_himself_is_counted() {
        let (mut line, mut said) = (RateLimited::default(), Vec::new());
        for _ in 0..1000 {
            line.say(|others| said.push(others));
        }
        assert_eq!(said[0], None);
        // One a second, however slow this is.
        assert!(said.len() < 100, "{} lines", said.len());
    }
}
