//! How far apart the cores are at the moment: on virtual machines that changes within seconds, and results with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Round trips that are timed together.
const BATCH: u64 = 500;
/// Their times; the median ignores those that were interrupted.
const BATCHES: usize = 21;
/// Where the cores are not ours, the measurement is given up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Below it the cores are called near, else far.
const NEAR_BELOW_NS: f64 = 250.0;

/// How far apart two cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distance {
    /// A cache line goes there and back in 250 ns.
    Near,
    /// It takes longer.
    Far,
}

impl Distance {
    /// What a round trip means; `None` where it was not measured.
    pub(super) fn of(round_trip_ns: Option<f64>) -> Option<Self> {
        round_trip_ns.map(|ns| if ns < NEAR_BELOW_NS { Self::Near } else { Self::Far })
    }

    /// As the report names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// Nanoseconds that a cache line takes from one core to another and back, between two cores that this process may use.
/// `None` where there is only one, or too much else runs.
pub(super) fn round_trip_ns() -> Option<f64> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let (first, second) = (cores.next()?, cores.next()?);
    let line = Line::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(second);
            line.answer();
        });
        // A thread of its own: pinning must not outlast the measurement.
        let asked = scope.spawn(|| {
            pin(first);
            line.ask()
        });
        asked.join().ok().flatten()
    })
}

/// A cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line {
    turn: AtomicU64,
    over: AtomicBool,
}

impl Line {
    /// Odd turns are the asker's, even ones the answerer's.
    fn ask(&self) -> Option<f64> {
        let deadline = Instant::now() + PATIENCE;
        let mut times = Vec::with_capacity(BATCHES);
        let mut turn = 0;
        'batches: for _ in 0..BATCHES {
            let start = Instant::now();
            for _ in 0..BATCH {
                self.turn.store(turn + 1, Ordering::Release);
                turn += 2;
                let mut spins = 0_u32;
                while self.turn.load(Ordering::Acquire) != turn {
                    std::hint::spin_loop();
                    spins += 1;
                    if spins.is_multiple_of(1 << 16) && Instant::now() > deadline {
                        break 'batches;
                    }
                }
            }
            times.push(start.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
        }
        self.over.store(true, Ordering::Release);
        times.sort_by(f64::total_cmp);
        (times.len() > BATCHES / 2).then(|| times[times.len() / 2])
    }

    fn answer(&self) {
        let mut turn = 0;
        while !self.over.load(Ordering::Acquire) {
            if self.turn.load(Ordering::Acquire) == turn + 1 {
                turn += 2;
                self.turn.store(turn, Ordering::Release);
            }
            std::hint::spin_loop();
        }
    }
}

/// Best effort: where it is refused, the scheduler keeps two busy threads apart anyway.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_a_plausible_time() {
        // One core, or a machine that is too busy, gives none.
        if let Some(ns) = round_trip_ns() {
            assert!((5.0..1e6).contains(&ns), "{ns}");
        }
    }

    #[test]
    fn near_and_far_are_told_apart() {
        assert_eq!(Distance::of(Some(104.0)), Some(Distance::Near));
        assert_eq!(Distance::of(Some(505.0)), Some(Distance::Far));
        assert_eq!(Distance::of(None), None);
    }
}
