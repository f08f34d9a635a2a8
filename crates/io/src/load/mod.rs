//! What a card does on its own to measure its drive: `causeway bench` compares it with other ways to the same bytes.
//!
//! A load takes the place of an edge: the card submits reads and writes to its own driver and keeps a number of
//! them under way. It is no part of a node's service and outlives no card. Writes overwrite the drive.

mod run;

use std::time::Duration;

use base::ledger::Layout;
use serde::{Deserialize, Serialize};

pub(crate) use run::{Pattern, Run, cpu_time};

/// Most requests under way.
pub const DEPTH_MAX: u16 = 128;
/// Largest request in bytes.
pub const REQUEST_MAX: u32 = 64 << 10;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub struct LoadSpec {
    /// Bytes of each request: a multiple of the drive's block size, at most [`REQUEST_MAX`].
    pub bytes: u32,
    /// How many of a hundred requests are writes.
    pub write_percent: u8,
    /// One after the other over the whole drive, instead of at random.
    pub sequential: bool,
    /// Requests under way, from 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// How long to go on, in milliseconds.
    pub duration_ms: u64,
}

impl LoadSpec {
    /// The nearest that is possible.
    pub(crate) fn within_bounds(self) -> Self {
        Self { depth: self.depth.clamp(1, DEPTH_MAX), bytes: self.bytes.clamp(1, REQUEST_MAX), ..self }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub struct LoadResult {
    /// Requests that succeeded.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// From the first submission to the last completion.
    pub elapsed_ns: u64,
    /// Processor time of the card meanwhile.
    pub cpu_ns: u64,
    /// Half of the requests took at most so long.
    pub p50_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// All of them: nanoseconds and how many took at most so long and longer than the entry before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<(u64, u64)>,
}

impl LoadResult {
    /// So many percent of the requests took at most so long; zero where there were none.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let total: u64 = self.latencies.iter().map(|(_, count)| count).sum();
        let wanted = (total as f64 * percent / 100.0).ceil() as u64;
        let mut seen = 0;
        let found = self.latencies.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, |(end, _)| (*end).min(self.max_ns))
    }

    /// What loads came to that ran at the same time in one process.
    #[must_use]
    pub fn together(results: &[Self]) -> Self {
        let mut latencies = Histogram::new();
        for &(ns, count) in results.iter().flat_map(|result| &result.latencies) {
            latencies.add_many(Duration::from_nanos(ns), count);
        }
        let most = |value: fn(&Self) -> u64| results.iter().map(value).max().unwrap_or_default();
        latencies.max_ns = most(|result| result.max_ns);
        let sums = Self {
            requests: results.iter().map(|result| result.requests).sum(),
            errors: results.iter().map(|result| result.errors).sum(),
            ..Self::default()
        };
        let (elapsed, cpu) = (most(|result| result.elapsed_ns), most(|result| result.cpu_ns));
        sums.with_times(Duration::from_nanos(elapsed), Duration::from_nanos(cpu), &latencies)
    }

    pub(crate) fn with_times(self, elapsed: Duration, cpu: Duration, latencies: &Histogram) -> Self {
        Self {
            elapsed_ns: elapsed.as_nanos() as u64,
            cpu_ns: cpu.as_nanos() as u64,
            p50_ns: latencies.quantile_ns(0.5),
            p99_ns: latencies.quantile_ns(0.99),
            p999_ns: latencies.quantile_ns(0.999),
            max_ns: latencies.max_ns(),
            latencies: latencies.classes(),
            ..self
        }
    }
}

/// Counts of durations in classes whose width is 1/16 of their value or less.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

/// Classes of each power of two.
const FINENESS_BITS: u32 = 4;
const FINENESS: u64 = 1 << FINENESS_BITS;
/// Durations above this many bits of nanoseconds (18 minutes) count as that.
const BITS: u32 = 40;
const CLASSES: usize = ((BITS - FINENESS_BITS + 1) as usize) << FINENESS_BITS;

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; CLASSES], total: 0, max_ns: 0 }
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        self.add_many(duration, 1);
    }

    fn add_many(&mut self, duration: Duration, count: u64) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min((1 << BITS) - 1);
        self.counts[class_of(ns)] += count;
        self.total += count;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The upper end of the class in which `share` (0 to 1) of all durations end; zero when there are none.
    pub(crate) fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return end_of(class).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The classes that hold anything: their upper ends and counts.
    pub(crate) fn classes(&self) -> Vec<(u64, u64)> {
        let classes = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        classes.map(|(class, count)| (end_of(class), *count)).collect()
    }

    pub(crate) fn max_ns(&self) -> u64 {
        self.max_ns
    }
}

fn class_of(ns: u64) -> usize {
    let exponent = ns.max(FINENESS).ilog2() - FINENESS_BITS;
    let mantissa = ns >> exponent;
    ((u64::from(exponent) << FINENESS_BITS) + mantissa) as usize
}

/// The largest duration of a class.
fn end_of(class: usize) -> u64 {
    let class = class as u64;
    if class < 2 * FINENESS {
        return class;
    }
    let exponent = (class >> FINENESS_BITS) - 1;
    let mantissa = class - (exponent << FINENESS_BITS);
    ((mantissa + 1) << exponent) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_without_gaps() {
        let mut last = 0;
        for class in 1..CLASSES {
            let end = end_of(class);
            assert_eq!(class_of(last + 1), class, "begins at {}", last + 1);
            assert_eq!(class_of(end), class, "ends at {end}");
            assert!(end - last <= (end / 16).max(1));
            last = end;
        }
        assert_eq!(class_of((1 << BITS) - 1), CLASSES - 1);
    }

    #[test]
    fn loads_together_are_one_with_all_requests() {
        let of = |from: u64, to: u64| {
            let mut latencies = Histogram::new();
            (from..to).for_each(|us| latencies.add(Duration::from_micros(us)));
            let one = LoadResult { requests: to - from, ..LoadResult::default() };
            one.with_times(Duration::from_millis(to), Duration::from_millis(5), &latencies)
        };
        let both = LoadResult::together(&[of(1, 500), of(500, 1000)]);
        assert_eq!((both.requests, both.elapsed_ns, both.cpu_ns), (999, 1_000_000_000, 5_000_000));
        let whole = of(1, 1000);
        assert_eq!((both.percentile_ns(50.0), both.percentile_ns(99.0)), (both.p50_ns, both.p99_ns));
        assert_eq!(LoadResult::default().percentile_ns(50.0), 0);
        assert_eq!((both.p50_ns, both.p99_ns, both.latencies), (whole.p50_ns, whole.p99_ns, whole.latencies));
    }

    #[test]
    fn quantiles_are_those_of_the_durations() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile_ns(0.5), 0);
        (1..=1000).for_each(|us| histogram.add(Duration::from_micros(us)));
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = histogram.quantile_ns(share) as f64 / 1e3;
            assert!((us..us * 1.07).contains(&found), "{share}: {found}");
        }
        assert_eq!(histogram.max_ns(), 1_000_000);
        histogram.add(Duration::from_secs(1 << 30));
        assert_eq!(histogram.quantile_ns(1.0), (1 << BITS) - 1);
    }
}
