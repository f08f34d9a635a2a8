//! How long requests waited, and which of them waited for a card that was killed.

use std::time::{Duration, Instant};

use super::clock::Translated;

/// Both clocks and fio's log are right to this.
const SLACK: Duration = Duration::from_millis(20);
/// A request that was sent so long after a kill has to do with it.
const AFTER_KILL: Duration = Duration::from_millis(100);

/// The longest wait among requests that ended at about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// When it ended, from the beginning of the load.
    pub end: Duration,
    /// How long it was.
    pub length: Duration,
}

/// A card that was killed, from the beginning of the load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kill {
    pub at: Duration,
}

/// Those that ended after `origin`.
pub(super) fn since(origin: Instant, translated: &[Translated]) -> Vec<Wait> {
    let after =
        |&(at, length): &(Instant, Duration)| Some(Wait { end: at.checked_duration_since(origin)?, length });
    translated.iter().flatten().filter_map(after).collect()
}

impl Kill {
    /// The longest wait of a request that was under way, or was sent soon after. Where there is none, fio was between
    /// two passes: then until something completed again.
    pub(super) fn recovery(&self, waits: &[Wait]) -> Duration {
        let is_later = |wait: &&Wait| wait.end + SLACK >= self.at;
        let is_of_it = |wait: &&Wait| wait.end.saturating_sub(wait.length) <= self.at + AFTER_KILL;
        let later = || waits.iter().filter(is_later);
        let waited = later().filter(is_of_it).map(|wait| wait.length).max();
        let next = || later().map(|wait| wait.end.saturating_sub(self.at)).min();
        waited.or_else(next).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(end: u64, length: u64) -> Wait {
        Wait { end: Duration::from_millis(end), length: Duration::from_millis(length) }
    }

    fn recovery(kill: u64, waits: &[Wait]) -> u128 {
        Kill { at: Duration::from_millis(kill) }.recovery(waits).as_millis()
    }

    #[test]
    fn a_recovery_is_the_longest_wait_around_its_kill() {
        let waits =
            [wait(500, 90), wait(990, 3), wait(1041, 43), wait(1050, 12), wait(1340, 60), wait(3000, 70)];
        assert_eq!(recovery(1000, &waits), 43);
        assert_eq!(recovery(2000, &waits), 1000, "none was sent in time, so the next end counts");
        assert_eq!(recovery(1200, &waits), 60);
        let stuck = [wait(990, 3), wait(9000, 8001)];
        assert_eq!(recovery(1000, &stuck), 8001, "however long it was");
        assert_eq!(recovery(1000, &[]), 0);
    }

    #[test]
    fn what_ended_before_the_beginning_or_never_is_left_out() {
        let origin = Instant::now();
        let length = Duration::from_millis(1);
        let at = |offset| Some((origin + Duration::from_millis(offset), length));
        let before = Some((origin - Duration::from_millis(5), length));
        assert_eq!(since(origin, &[before, None, at(7)]), [wait(7, 1)]);
    }
}
