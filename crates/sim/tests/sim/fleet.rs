//! Many nodes that lend to each other and borrow from each other, and what they lend comes and goes.

use sim::Options;
use sim::fleet::{Fleet, run_fleet};

/// The number of seeds can be raised by `CAUSEWAY_FLEET`.
const SEEDS: u64 = 60;

#[test]
fn what_comes_and_goes_between_many_nodes_disturbs_nobody() {
    let count = std::env::var("CAUSEWAY_FLEET").ok().and_then(|count| count.parse().ok()).unwrap_or(SEEDS);
    let (mut failures, mut all) = (0, Fleet::default());
    for seed in 0..count {
        match run_fleet(seed, &Options::default()) {
            Ok(fleet) => {
                all.nodes = all.nodes.max(fleet.nodes);
                all.verified += fleet.verified;
                all.kills += fleet.kills;
                all.reboots += fleet.reboots;
                all.attached += fleet.attached;
                all.detached += fleet.detached;
                all.lent += fleet.lent;
                all.withdrawn += fleet.withdrawn;
                all.taken_away += fleet.taken_away;
                all.passed_on += fleet.passed_on;
                all.abandoned += fleet.abandoned;
            }
            Err(failure) => {
                failures += 1;
                eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
            }
        }
    }
    eprintln!("{all:?}");
    assert_eq!(failures, 0);
    assert!(all.nodes == 16 && all.verified > 1_000 * count, "the fleets are large and busy");
    assert!(all.kills > 10 * count && all.reboots > count, "cards and nodes die");
    assert!(all.attached > 2 * count && all.detached > 5 * count, "functions come and go");
    assert!(all.lent > count / 2 && all.withdrawn > count && all.taken_away > count / 4, "so do drives");
    assert!(all.passed_on > 2 * count, "and others have them afterwards");
    assert!(all.abandoned > count / 4, "some without their lenders");
}

#[test]
fn the_same_seed_is_the_same_fleet() {
    for seed in 0..4 {
        assert_eq!(
            run_fleet(seed, &Options::default()).unwrap(),
            run_fleet(seed, &Options::default()).unwrap()
        );
    }
}
