//! How much a campaign does: short counts in `make test`, long ones in `make soak`.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// So much longer is a campaign in `make soak`, unless it says something else.
pub const SOAK_FACTOR: u32 = 20;

/// True in `make soak` (`CAUSEWAY_SOAK=1`).
pub fn is_soak() -> bool {
    std::env::var("CAUSEWAY_SOAK").is_ok_and(|value| value == "1")
}

/// How often a campaign does what it does: `short` in `make test`, `long` times `SOAK_SCALE` in `make soak`, and
/// `CAUSEWAY_KILLS` where somebody chose for a run by hand.
pub fn kills_of(short: u32, long: u32) -> u32 {
    let scaled = || (f64::from(long) * number("SOAK_SCALE").unwrap_or(1.0)).round().max(f64::from(short));
    number("CAUSEWAY_KILLS").unwrap_or_else(|| if is_soak() { scaled() as u32 } else { short })
}

/// The same for a campaign that does in `make soak` [`SOAK_FACTOR`] times what it does in `make test`.
pub fn kills(short: u32) -> u32 {
    kills_of(short, SOAK_FACTOR * short)
}

/// The first seed: `CAUSEWAY_FIRST_SEED`, else 1. Print it with every failure.
pub fn first_seed() -> u64 {
    number("CAUSEWAY_FIRST_SEED").unwrap_or(1)
}

/// A line for `make soak`'s report.
pub fn report(line: &str) {
    println!("soak: {line}");
}

/// Times in seconds as a line for the report: how many, median, 99 of 100, the longest.
pub fn spread(what: &str, mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let Some(last) = seconds.len().checked_sub(1) else { return format!("{what}: none") };
    // The smallest time that so many of a hundred do not exceed.
    let of_hundred = |rank: usize| seconds[(seconds.len() * rank).div_ceil(100).max(1) - 1] * 1e3;
    format!(
        "{what}: {} times, median {:.2} ms, p99 {:.2} ms, max {:.2} ms",
        seconds.len(),
        of_hundred(50),
        of_hundred(99),
        seconds[last] * 1e3
    )
}

/// Watches how long this process did not run though it wanted to: on a machine that is shared, or stopped by its host,
/// a gap of the program under test may be the machine's own.
pub struct Stalls {
    longest_ns: Arc<AtomicU64>,
}

impl Stalls {
    /// A thread that sleeps and looks at the clock, until this is dropped.
    pub fn watch() -> Self {
        const TICK: Duration = Duration::from_millis(5);
        let longest_ns = Arc::new(AtomicU64::new(0));
        let shared = Arc::downgrade(&longest_ns);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(longest_ns) = shared.upgrade() {
                let late = last.elapsed().saturating_sub(TICK);
                longest_ns.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
                last = Instant::now();
                std::thread::sleep(TICK);
            }
        });
        Self { longest_ns }
    }

    /// The longest since the last call.
    pub fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed))
    }
}

/// A value that is no number is a mistake of whoever set it, and must not pass as the short count.
fn number<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value} is not a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_names_what_was_seen() {
        let times = (1..=200).rev().map(|ms| f64::from(ms) / 1e3).collect();
        assert_eq!(spread("x", times), "x: 200 times, median 100.00 ms, p99 198.00 ms, max 200.00 ms");
        assert_eq!(spread("x", vec![0.5]), "x: 1 times, median 500.00 ms, p99 500.00 ms, max 500.00 ms");
        assert_eq!(spread("x", Vec::new()), "x: none");
    }
}
