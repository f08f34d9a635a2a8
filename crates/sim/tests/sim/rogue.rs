//! A node that lies about everything but who it is.

use sim::Options;
use sim::rogue::{Rogue, run_rogue};

/// The number of seeds can be raised by `CAUSEWAY_ROGUES`.
const SEEDS: u64 = 60;
/// Turns with lies.
const TURNS: u32 = 300;

#[test]
fn who_lies_about_a_whole_channel_hurts_no_loan_of_others() {
    let count = std::env::var("CAUSEWAY_ROGUES").ok().and_then(|count| count.parse().ok()).unwrap_or(SEEDS);
    let (mut failures, mut all) = (0, Rogue::default());
    for seed in 0..count {
        match run_rogue(seed, TURNS, &Options::default()) {
            Ok(rogue) => {
                all.told += rogue.told;
                all.verified += rogue.verified;
                all.opened += rogue.opened;
                all.unproven += rogue.unproven;
                all.fenced += rogue.fenced;
                all.outdated += rogue.outdated;
                all.strays += rogue.strays;
                all.denied += rogue.denied;
                all.replaced += rogue.replaced;
                all.reboots += rogue.reboots;
            }
            Err(failure) => {
                failures += 1;
                eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
            }
        }
    }
    eprintln!("{all:?}");
    assert_eq!(failures, 0);
    assert!(all.told > 50 * count && all.verified > 200 * count, "it lies, and others work");
    assert!(all.opened > count && all.reboots > 0, "it comes again");
    assert!(
        all.unproven > count && all.fenced > 0 && all.outdated > count,
        "it is refused what is not its own"
    );
    assert!(all.strays > count && all.denied > count, "it speaks in streams of others, and with their names");
}

#[test]
fn the_same_rogue_does_the_same() {
    for seed in 0..3 {
        let run = || run_rogue(seed, 100, &Options::default()).unwrap();
        assert_eq!(run(), run());
    }
}
