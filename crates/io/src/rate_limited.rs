//! Lines of the log that somebody outside can cause as often as he likes, or that are met again and again.

use std::num::NonZero;
use std::time::{Duration, Instant};

/// How often such a line is said at most.
const PAUSE: Duration = Duration::from_secs(1);
/// The same of trouble that goes on by itself: at first, and in the end.
const TROUBLE: Duration = Duration::from_secs(10);
const TROUBLE_MAX: Duration = Duration::from_secs(600);

/// One kind of line about one thing: the first is said, and then at most one in a pause, which tells how many others
/// were not.
#[derive(Debug)]
pub struct RateLimited {
    speak_at: Option<Instant>,
    /// When it was wanted last, said or not.
    wanted_at: Option<Instant>,
    unsaid: u64,
    /// The first pause, and the longest.
    pauses: [Duration; 2],
    /// The present one.
    pause: Duration,
}

impl Default for RateLimited {
    /// At most one a second.
    fn default() -> Self {
        Self::with([PAUSE; 2])
    }
}

impl RateLimited {
    /// A line of trouble that is met again and again until somebody does something: the longer it goes on, the rarer it
    /// is said, from once in ten seconds to once in ten minutes.
    pub fn of_trouble() -> Self {
        Self::with([TROUBLE, TROUBLE_MAX])
    }

    fn with(pauses: [Duration; 2]) -> Self {
        Self { speak_at: None, wanted_at: None, unsaid: 0, pauses, pause: pauses[0] }
    }

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
        // What nobody wanted to say in a whole pause is over, and this is news.
        let goes_on = self.wanted_at.replace(now).is_some_and(|at| now < at + self.pause);
        if goes_on && self.speak_at.is_some_and(|at| now < at) {
            self.unsaid += 1;
            return None;
        }
        let [first, longest] = self.pauses;
        self.pause = if goes_on { (self.pause * 2).min(longest) } else { first };
        self.speak_at = Some(now + self.pause);
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
    fn trouble_that_goes_on_is_said_more_and_more_rarely() {
        let (mut line, begin) = (RateLimited::of_trouble(), Instant::now());
        let mut said = Vec::new();
        for second in 0..3600 {
            said.extend(line.count(begin + Duration::from_secs(second)).map(|_| second));
        }
        assert_eq!(said, [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]);
        assert_eq!(line.count(begin + Duration::from_secs(4000)), Some(569), "how many others there were");
        assert_eq!(line.count(begin + Duration::from_secs(4001)), None);
        let later = begin + Duration::from_secs(9000);
        assert_eq!(line.count(later), Some(1), "it was over, and is news again");
        assert_eq!([1, 10, 11].map(|s| line.count(later + Duration::from_secs(s))), [None, Some(1), None]);
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
