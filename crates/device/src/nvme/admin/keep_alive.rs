//! The Keep Alive Timer (NVMe 2.0 §3.9): a host of whom nothing was heard has to find out by itself.

use base::Instant;
use core::time::Duration;

/// When the host was last known to live, if that matters. Volatile: a new card gives it the whole time again.
#[derive(Default)]
pub(crate) struct KeepAlive {
    heard: Option<Instant>,
}

impl KeepAlive {
    /// The host lives.
    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// Time has passed, with a timer of so many milliseconds; 0 for none.
    pub(crate) fn see(&mut self, now: Instant, timer_ms: u32) {
        if self.heard.is_none() && timer_ms != 0 {
            self.heard = Some(now);
        }
    }

    /// When the host has to have sent a Keep Alive, if there is a timer.
    pub(crate) fn timeout(&self, timer_ms: u32) -> Option<Instant> {
        let since = self.heard.filter(|_| timer_ms != 0)?;
        Some(since + Duration::from_millis(timer_ms.into()))
    }

    /// The timer starts anew with whatever comes.
    pub(crate) fn stop(&mut self) {
        self.heard = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_time_begins_when_the_host_was_heard() {
        let (mut timer, second) = (KeepAlive::default(), Instant::from_nanos(1_000_000_000));
        assert_eq!(timer.timeout(500), None);
        timer.see(second, 0);
        assert_eq!(timer.timeout(500), None, "without a timer nobody has to be heard");
        timer.see(second, 500);
        timer.see(second + Duration::from_millis(400), 500);
        assert_eq!(timer.timeout(500), Some(second + Duration::from_millis(500)));
        timer.hear(second + Duration::from_millis(400));
        assert_eq!(timer.timeout(500), Some(second + Duration::from_millis(900)));
        timer.stop();
        assert_eq!(timer.timeout(500), None);
    }
}
