//! How much a campaign does: short counts in `make test`, long ones in `make soak`.

use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// True in `make soak` (`CAUSEWAY_SOAK=1`).
pub fn is_soak() -> bool {
    std::env::var("CAUSEWAY_SOAK").is_ok_and(|value| value == "1")
}

/// Kills of each card in a campaign: `CAUSEWAY_KILLS`, else `short`.
pub fn kills(short: u32) -> u32 {
    number("CAUSEWAY_KILLS").unwrap_or(short)
}

/// Seeds that a simulated campaign runs through: `CAUSEWAY_SEEDS`, else `short`.
pub fn seeds(short: u64) -> u64 {
    number("CAUSEWAY_SEEDS").unwrap_or(short)
}

/// The first seed: `CAUSEWAY_FIRST_SEED`, else 1. Print it with every failure.
pub fn first_seed() -> u64 {
    number("CAUSEWAY_FIRST_SEED").unwrap_or(1)
}

/// A line for `make soak`'s report.
pub fn report(line: &str) {
    println!("soak: {line}");
}

/// Held by tests that need both cores: they run one after the other, whatever the test runner's threads do.
pub fn exclusive() -> MutexGuard<'static, ()> {
    static BOTH_CORES: Mutex<()> = Mutex::new(());
    // A test that failed while it held the lock says nothing about the next one.
    BOTH_CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that is no number is a mistake of whoever set it, and must not pass as the short count.
fn number<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value} is not a number"),
    }
}
