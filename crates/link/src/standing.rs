//! Whether a path that answers is to carry TLPs: one that was silent, or loses packets, rests while another one is
//! better, and longer each time that it fails soon after it came back. So traffic leaves a bad path at once, and does
//! not flap with one that comes and goes.

use core::time::Duration;

use base::Instant;
use base::times::HEARTBEAT;

/// The first rest of a path that was silent, from when it answers again.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// Who fails within so many times its last rest rests for twice as long.
const RELAPSE: u32 = 10;
/// Packets of which so many of a thousand were lost are too many.
const LOSSY_PER_MILLE: u32 = 15;
/// As few of a trial let a path come back.
const CLEAN_PER_MILLE: u32 = 10;
/// Packets lost before a share of them means anything.
const LOSSY_LEAST: u32 = 4;
/// Packets that are remembered: then older ones count half.
const REMEMBERED: u32 = 512;
/// Packets in a trial, which a resting path is asked to answer.
const TRIAL: u32 = 100;
/// The shortest time between two of them.
const TRIAL_INTERVAL: Duration = Duration::from_millis(10);

/// What became of the last packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Recent {
    known: u32,
    lost: u32,
}

impl Recent {
    /// One has arrived.
    pub(crate) fn arrived(&mut self) {
        self.known += 1;
        if self.known >= REMEMBERED {
            (self.known, self.lost) = (self.known / 2, self.lost / 2);
        }
    }

    /// One is taken for lost.
    pub(crate) fn lost(&mut self) {
        self.lost += 1;
        self.arrived();
    }

    /// One that was taken for lost has arrived.
    pub(crate) fn acquitted(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    pub(crate) fn is_lossy(self) -> bool {
        self.lost >= LOSSY_LEAST && self.lost * 1000 > self.known * LOSSY_PER_MILLE
    }

    fn is_tried(self) -> bool {
        self.known >= TRIAL
    }

    fn is_clean(self) -> bool {
        self.lost * 1000 <= self.known * CLEAN_PER_MILLE
    }
}

/// Why a path rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    Silence,
    Loss,
}

/// Whether a path rests, and for how long it does the next time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Standing {
    rests: Option<(Cause, Instant)>,
    pause: Duration,
    /// Until when another failure is a relapse.
    doubtful_until: Instant,
}

impl Standing {
    pub(crate) fn new() -> Self {
        Self { rests: None, pause: PAUSE, doubtful_until: Instant::ZERO }
    }

    pub(crate) fn rests(&self) -> bool {
        self.rests.is_some()
    }

    /// Whether it rests because it has lost packets.
    pub(crate) fn has_lost(&self) -> bool {
        matches!(self.rests, Some((Cause::Loss, _)))
    }

    /// How often it is to be asked for something where nothing else is sent: a path that has lost packets is on trial.
    pub(crate) fn heartbeat(&self) -> Duration {
        match self.rests {
            Some((Cause::Loss, _)) => (self.pause / TRIAL).clamp(TRIAL_INTERVAL, HEARTBEAT),
            _ => HEARTBEAT,
        }
    }

    /// Looks at the path: whether it is `silent` now, and what became of its last packets. Whoever has no better one
    /// `beside` it does not begin a rest.
    pub(crate) fn judge(&mut self, now: Instant, is_silent: bool, recent: &mut Recent, beside: bool) {
        match self.rests {
            None if is_silent && beside => self.rest(now, Cause::Silence, recent),
            None if recent.is_lossy() && beside => self.rest(now, Cause::Loss, recent),
            None => {}
            // It counts from when it answers.
            Some((cause, _)) if is_silent => {
                self.rests = Some((cause, now + self.pause));
                *recent = Recent::default();
            }
            Some((_, until)) if now < until => {}
            Some((Cause::Loss, _)) if !recent.is_tried() => {}
            Some((Cause::Loss, _)) if !recent.is_clean() => *recent = Recent::default(),
            Some(_) => {
                self.rests = None;
                self.doubtful_until = now + self.pause * RELAPSE;
            }
        }
    }

    fn rest(&mut self, now: Instant, cause: Cause, recent: &mut Recent) {
        self.pause = if now < self.doubtful_until { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE };
        self.rests = Some((cause, now + self.pause));
        // What comes now is a trial.
        *recent = Recent::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Instant {
        Instant::ZERO + MS * ms
    }

    #[test]
    fn who_was_silent_comes_back_after_a_pause_that_counts_from_its_answer() {
        let (mut standing, mut recent) = (Standing::new(), Recent::default());
        standing.judge(at(0), true, &mut recent, false);
        assert!(!standing.rests(), "there is nothing better");
        standing.judge(at(1), true, &mut recent, true);
        standing.judge(at(500), true, &mut recent, true);
        standing.judge(at(501), false, &mut recent, true);
        assert!(standing.rests());
        standing.judge(at(549), false, &mut recent, true);
        assert!(standing.rests());
        standing.judge(at(550), false, &mut recent, true);
        assert!(!standing.rests());
    }

    #[test]
    fn who_comes_and_goes_is_trusted_ever_less_and_forgiven_in_the_end() {
        let (mut standing, mut recent) = (Standing::new(), Recent::default());
        let (mut now, mut carried) = (0, 0);
        // Ten times a second it is gone for 50 ms, for a minute.
        while now < 60_000 {
            standing.judge(at(now), now % 100 < 50, &mut recent, true);
            carried += u32::from(!standing.rests() && now % 100 >= 50);
            now += 1;
        }
        assert!(carried < 600, "it carried for {carried} ms");
        let healed = now;
        while standing.rests() {
            now += 1;
            standing.judge(at(now), false, &mut recent, true);
        }
        assert!(at(now).since(at(healed)) <= PAUSE_MAX);
        now += PAUSE_MAX.as_millis() as u32 * (RELAPSE + 1);
        standing.judge(at(now), true, &mut recent, true);
        standing.judge(at(now + 50), false, &mut recent, true);
        assert!(!standing.rests(), "that was long ago");
    }

    #[test]
    fn who_loses_packets_is_tried_until_it_does_not() {
        let (mut standing, mut recent) = (Standing::new(), Recent::default());
        let lose_one_of_20 = |standing: &mut Standing, recent: &mut Recent, from: u32, count: u32| {
            for packet in 0..count {
                if packet % 20 == 7 {
                    recent.lost();
                } else {
                    recent.arrived();
                }
                standing.judge(at(from + packet * 10), false, recent, true);
            }
        };
        lose_one_of_20(&mut standing, &mut recent, 0, 80);
        assert!(standing.rests());
        assert!(standing.heartbeat() < HEARTBEAT, "it is asked often");
        lose_one_of_20(&mut standing, &mut recent, 800, 2_000);
        assert!(standing.rests());
        for packet in 0..2 * TRIAL {
            recent.arrived();
            standing.judge(at(21_000 + packet * 10), false, &mut recent, true);
        }
        assert!(!standing.rests());
        assert_eq!(standing.heartbeat(), HEARTBEAT);
    }

    #[test]
    fn a_few_lost_packets_and_late_ones_are_no_loss() {
        let mut recent = Recent::default();
        (0..LOSSY_LEAST - 1).for_each(|_| recent.lost());
        assert!(!recent.is_lossy());
        recent.lost();
        assert!(recent.is_lossy());
        recent.acquitted();
        assert!(!recent.is_lossy());
        (0..10).for_each(|_| recent.acquitted());
        assert!(recent.is_clean());
    }
}
