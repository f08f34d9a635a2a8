//! Functions that are given and taken by the tables of their lenders.

use sim::Options;
use sim::fleet::{Fleet, run_managed};

/// The number of seeds can be raised by `CAUSEWAY_MANAGED`.
const SEEDS: u64 = 60;

#[test]
fn a_managed_function_is_whose_it_is_by_its_lenders_table() {
    let count = std::env::var("CAUSEWAY_MANAGED").ok().and_then(|count| count.parse().ok()).unwrap_or(SEEDS);
    let (mut failures, mut all) = (0, Fleet::default());
    for seed in 0..count {
        match run_managed(seed, &Options::default()) {
            Ok(fleet) => {
                all.verified += fleet.verified;
                all.kills += fleet.kills;
                all.reboots += fleet.reboots;
                all.passed_on += fleet.passed_on;
                all.entries += fleet.entries;
                all.forced += fleet.forced;
                all.freed += fleet.freed;
                all.promised += fleet.promised;
                all.intruders += fleet.intruders;
            }
            Err(failure) => {
                failures += 1;
                eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
            }
        }
    }
    eprintln!("{all:?}");
    assert_eq!(failures, 0);
    assert!(
        all.verified > 300 * count && all.kills > 10 * count && all.reboots > 0,
        "they are busy, and die"
    );
    assert!(all.entries > 10 * count && all.freed > 3 * count, "functions are given and taken");
    assert!(all.forced > count && all.passed_on > count && all.promised > 0, "by force, too, and too early");
    assert!(all.intruders > count, "and others ask for them");
}

#[test]
fn the_same_seed_is_the_same_managed_fleet() {
    for seed in 0..3 {
        let run = || run_managed(seed, &Options::default()).unwrap();
        assert_eq!(run(), run());
    }
}
