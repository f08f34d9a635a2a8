//! How a card shows its agent that it works: a count of turns, and until when at most it sleeps. Two stores a turn into
//! memory that both have, and no system call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Instant;
use base::ledger::Layout;
use node::agent::{Beat, Rest};

/// Not a time: the card is awake.
const AWAKE: u64 = 0;
/// Not a time: it sleeps until something comes.
const UNPROMISED: u64 = u64::MAX;

/// What a card shows. Zeroes are a card that is awake and has made no turn.
#[repr(C)]
#[derive(Layout, Debug, Default)]
pub(crate) struct Pulse {
    turns: AtomicU64,
    /// In nanoseconds of the monotonic clock, or one of the above.
    rest: AtomicU64,
}

impl Pulse {
    /// The card begins a turn. Only one thread writes, so this need not be one atomic addition.
    pub(crate) fn turn(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// It sleeps from `now` on, for so long at most.
    pub(crate) fn sleep(&self, now: Instant, longest: Option<Duration>) {
        let until = longest.map_or(UNPROMISED, |time| (now + time).as_nanos());
        self.rest.store(until, Ordering::Relaxed);
    }

    /// It is awake: also said of one that begins, since another one may have died in its sleep.
    pub(crate) fn wake(&self) {
        self.rest.store(AWAKE, Ordering::Relaxed);
    }

    /// What is to be seen now.
    pub(crate) fn beat(&self) -> Beat {
        let rest = match self.rest.load(Ordering::Relaxed) {
            AWAKE => Rest::Awake,
            UNPROMISED => Rest::Unpromised,
            until => Rest::Until(Instant::from_nanos(until)),
        };
        Beat { turns: self.turns.load(Ordering::Relaxed), rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_card_says_is_seen() {
        let (pulse, now) = (Pulse::default(), Instant::from_nanos(5));
        assert_eq!(pulse.beat(), Beat { turns: 0, rest: Rest::Awake });
        pulse.turn();
        pulse.sleep(now, Some(Duration::from_nanos(7)));
        assert_eq!(pulse.beat(), Beat { turns: 1, rest: Rest::Until(Instant::from_nanos(12)) });
        pulse.sleep(now, None);
        assert_eq!(pulse.beat().rest, Rest::Unpromised);
        pulse.wake();
        assert_eq!(pulse.beat().rest, Rest::Awake);
    }
}
