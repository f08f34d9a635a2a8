//! How long a borrower waits for a lender that is silent.
//!
//! The intuition: what counts is the time in which this end listened and heard nothing. When the lender was heard last
//! lies in the ledger, so the time goes on over the death of a card. But a node that stood still as a whole, as one in
//! a machine that was suspended, finds a lender that was not heard for hours and is well: so two looks are never
//! further apart than they count, as those of the watchdog, and while no card listens no time passes.

use core::time::Duration;

use base::Instant;
use base::times::PEER_VERDICT;

/// Two looks count for so long at most. The lender of a node that goes on after a standstill is heard before
/// [`PEER_VERDICT`] is over.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// For how long one lender was waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    looked: Instant,
    waited: Duration,
}

impl Patience {
    /// From now on.
    pub fn new(now: Instant) -> Self {
        Self { looked: now, waited: Duration::ZERO }
    }

    /// A look: for how long nothing has come from the lender, and whether a card of this node listens. The time that
    /// counts, once that is `hold` or more, and no less than it takes to call a node silent at all.
    pub fn look(
        &mut self,
        now: Instant,
        silence: Duration,
        is_listening: bool,
        hold: Duration,
    ) -> Option<Duration> {
        let since = now.since(core::mem::replace(&mut self.looked, now)).min(LOOK_MAX);
        let listened = if is_listening { since } else { Duration::ZERO };
        self.waited = silence.min(self.waited + listened);
        (self.waited >= hold.max(PEER_VERDICT)).then_some(self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(60);

    /// A lender as its borrower hears it, at one look after the other.
    struct Play {
        patience: Patience,
        now: Instant,
        heard: Instant,
    }

    impl Play {
        fn new() -> Self {
            let now = Instant::from_nanos(1 << 40);
            Self { patience: Patience::new(now), now, heard: now }
        }

        fn look(&mut self, after_ms: u64, listens: bool, hold: Duration) -> Option<Duration> {
            self.now += Duration::from_millis(after_ms);
            self.patience.look(self.now, self.now.since(self.heard), listens, hold)
        }

        /// Seconds until it is given up, of looks so many milliseconds apart.
        fn wait(&mut self, every_ms: u64, hold: Duration) -> u64 {
            let begin = self.now;
            while self.look(every_ms, true, hold).is_none() {
                assert!(self.now.since(begin) < 2 * (hold + HOLD), "it is waited for without end");
            }
            self.now.since(begin).as_millis() as u64 / 1000
        }
    }

    #[test]
    fn a_silent_lender_is_waited_for_as_long_as_is_said() {
        for every_ms in [50, 250, 1000] {
            assert_eq!(Play::new().wait(every_ms, HOLD), 60);
            assert_eq!(Play::new().wait(every_ms, Duration::ZERO), PEER_VERDICT.as_secs(), "at once");
        }
    }

    #[test]
    fn who_is_heard_has_all_of_it_again() {
        let mut play = Play::new();
        for _ in 0..3 {
            (0..59).for_each(|_| assert_eq!(play.look(1000, true, HOLD), None));
            play.heard = play.now;
        }
        assert_eq!(play.wait(1000, HOLD), 60);
    }

    #[test]
    fn who_is_heard_is_never_given_up() {
        let mut play = Play::new();
        for at in 0..10_000_u64 {
            // It is heard each 900 ms at least, and this node is late now and then.
            play.heard = play.now + Duration::from_millis(at * 7 % 100);
            assert_eq!(play.look(at * 37 % 900, true, Duration::ZERO), None);
        }
    }

    #[test]
    fn a_node_that_stood_still_hears_first() {
        let mut play = Play::new();
        (0..50).for_each(|_| assert_eq!(play.look(1000, true, HOLD), None));
        // Its machine was suspended for a day.
        assert_eq!(play.look(86_400_000, true, HOLD), None);
        play.heard = play.now;
        assert_eq!(play.look(1000, true, HOLD), None);
        // The same of what ends at once.
        let mut play = Play::new();
        assert_eq!(play.look(86_400_000, true, Duration::ZERO), None);
        play.heard = play.now + Duration::from_millis(500);
        assert_eq!(play.look(1000, true, Duration::ZERO), None);
    }

    #[test]
    fn while_no_card_listens_nobody_is_silent() {
        let mut play = Play::new();
        (0..30).for_each(|_| assert_eq!(play.look(1000, true, HOLD), None));
        // It waits for a disk, and cannot be replaced before that answers.
        (0..600).for_each(|_| assert_eq!(play.look(1000, false, HOLD), None));
        (0..29).for_each(|_| assert_eq!(play.look(1000, true, HOLD), None));
        assert_eq!(play.look(1000, true, HOLD), Some(HOLD));
    }
}
