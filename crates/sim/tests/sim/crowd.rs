//! 256 loans between two or three nodes: half of them come into trouble, and the others go on.

use sim::Options;
use sim::fleet::run_crowd;

/// The number of seeds can be raised by `CAUSEWAY_CROWDS`.
const SEEDS: u64 = 4;

#[test]
fn half_of_256_loans_in_trouble_leave_the_others_alone() {
    let count = std::env::var("CAUSEWAY_CROWDS").ok().and_then(|count| count.parse().ok()).unwrap_or(SEEDS);
    let (mut failures, mut nodes) = (0, Vec::new());
    for seed in 0..count {
        match run_crowd(seed, &Options::default()) {
            Ok(crowd) => {
                eprintln!("seed {seed}: {crowd:?}");
                assert_eq!(crowd.functions, 256);
                assert!(crowd.kills > 5, "cards die");
                assert!(crowd.stuck > 30 && crowd.detached > 30, "half of the loans come into trouble");
                assert!(crowd.going > 100, "the others go on meanwhile");
                nodes.push(crowd.nodes);
            }
            Err(failure) => {
                failures += 1;
                eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
            }
        }
    }
    assert_eq!(failures, 0);
    assert!(nodes.contains(&2) && nodes.contains(&3), "{nodes:?} nodes");
}
