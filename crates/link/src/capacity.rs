//! How long a frame would take on a path now: its round trip while nothing waits on it, and how many bytes fit into
//! that before they wait for each other. Both follow from round trips alone, and serve only the choice among paths; the
//! congestion window bounds what is sent.

use core::time::Duration;

use base::Instant;
use base::times::{INITIAL_RTT, PROBE_GRANULARITY};

/// Bytes that fit, as long as nothing else is known.
const INITIAL: usize = 256 << 10;
/// The least that is believed to fit.
const LEAST: usize = 8 << 10;
/// The first bytes in flight wait for nothing: what is little takes one path.
const TRAIN: usize = 64 << 10;
/// Behind fewer bytes nothing waits.
const FEW: usize = 1024;

/// No way is taken for shorter: what one end says that it has kept an answer back may be all that it took.
const SHORTEST: Duration = Duration::from_micros(10);

/// What is known of a path.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// While nothing waits; `None`: there was none.
    round_trip: Option<Duration>,
    bytes: usize,
    /// Packets sent before this have been seen to wait.
    shrunk_at: Instant,
}

/// A packet that was acknowledged, and what else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) sent_at: Instant,
    /// What it took.
    pub(crate) round_trip: Duration,
    /// Bytes that were in flight before it.
    pub(crate) before: usize,
    /// Bytes that were acknowledged with it.
    pub(crate) acked: usize,
}

impl Capacity {
    pub(crate) fn new() -> Self {
        Self { round_trip: None, bytes: INITIAL, shrunk_at: Instant::ZERO }
    }

    /// The round trip while nothing waits, as far as it is known.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or(INITIAL_RTT)
    }

    /// It takes so long, for all that is known.
    pub(crate) fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = Some(round_trip);
    }

    /// A packet was acknowledged; no more than `window` is in flight at once.
    pub(crate) fn sample(&mut self, now: Instant, sample: Sample, window: usize) {
        let Sample { sent_at, round_trip, before, acked } = sample;
        let round_trip = round_trip.max(SHORTEST);
        if before < FEW {
            self.set_round_trip(round_trip);
            return;
        }
        // However long it is full: what waits then is no longer way, and would make another one seem too short.
        let base = self.round_trip.map_or(round_trip, |least| least.min(round_trip));
        self.set_round_trip(base);
        if round_trip > full(base) {
            if sent_at > self.shrunk_at {
                self.shrunk_at = now;
                self.bytes = (self.bytes.min(before) / 8 * 7).max(LEAST);
            }
        } else if before >= self.bytes / 2 {
            self.bytes = (self.bytes + acked).min(window.max(LEAST));
        }
    }

    /// Whether what is sent behind so many bytes does not wait.
    pub(crate) fn has_room(&self, in_flight: usize) -> bool {
        in_flight < self.bytes
    }

    /// How long a frame takes to the other end behind so many bytes.
    pub(crate) fn expected(&self, in_flight: usize) -> Duration {
        let behind = in_flight.saturating_sub(TRAIN.min(self.bytes / 4)) as u64;
        let full = full(self.round_trip()).as_nanos() as u64;
        self.round_trip() / 2 + Duration::from_nanos(full.saturating_mul(behind) / self.bytes as u64)
    }
}

/// The round trip of a path on which no more fits.
fn full(round_trip: Duration) -> Duration {
    round_trip + round_trip / 2 + PROBE_GRANULARITY / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn sample(capacity: &mut Capacity, at: u32, round_trip: u32, before: usize) {
        let (now, round_trip) = (Instant::ZERO + US * at, US * round_trip);
        let sent_at = Instant::ZERO + US * at.saturating_sub(round_trip.as_micros() as u32);
        capacity.sample(now, Sample { sent_at, round_trip, before, acked: 8_000 }, 2 << 20);
    }

    #[test]
    fn what_fits_follows_from_how_long_packets_take() {
        let mut capacity = Capacity::new();
        sample(&mut capacity, 1_000, 100, 0);
        assert_eq!(capacity.round_trip(), US * 100);
        // Twice as fast as the round trip and what it varies by, however much more is in flight.
        (2..100).for_each(|at| sample(&mut capacity, at * 1_000, 900, 64_000));
        let small = capacity.bytes;
        assert!((LEAST..64_000).contains(&small), "{small}");
        (100..200).for_each(|at| sample(&mut capacity, at * 1_000, 120, small));
        assert!(capacity.bytes > small);
        assert_eq!(capacity.expected(small / 8), US * 50);
        assert!(capacity.expected(small * 8) > US * 1_000);
    }

    #[test]
    fn what_waits_makes_the_way_no_longer() {
        let mut capacity = Capacity::new();
        sample(&mut capacity, 1_000, 100, 0);
        (0..250).for_each(|at| sample(&mut capacity, 2_000 + at * 1_000, 2_000, 4_000));
        assert_eq!(capacity.round_trip(), US * 100);
        sample(&mut capacity, 300_000, 300, 0);
        assert_eq!(capacity.round_trip(), US * 300, "nothing waited for anything");
    }
}
