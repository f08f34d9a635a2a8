//! Trees of switches, whose cables are cut and whose switches die.

use sim::Options;
use sim::tree::{Tree, run_tree};

/// The number of seeds can be raised by `CAUSEWAY_TREES`.
const SEEDS: u64 = 150;

#[test]
fn trees_carry_what_they_can_and_nothing_else() {
    let count = std::env::var("CAUSEWAY_TREES").ok().and_then(|count| count.parse().ok()).unwrap_or(SEEDS);
    let (mut failures, mut all, mut nodes) = (0, Tree::default(), Vec::new());
    for seed in 0..count {
        match run_tree(seed, &Options::default()) {
            Ok(tree) => {
                nodes.push(tree.nodes);
                all.delivered += tree.delivered;
                all.dropped += tree.dropped;
                all.looks += tree.looks;
            }
            Err(failure) => {
                failures += 1;
                eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
            }
        }
    }
    assert_eq!(failures, 0);
    assert!(all.delivered > 100_000 && all.dropped > 1_000 && all.looks > 5_000, "{all:?} shows little");
    assert!(nodes.iter().any(|nodes| *nodes > 100), "{nodes:?} nodes");
    let again = |seed| run_tree(seed, &Options::default()).unwrap();
    assert_eq!(again(3), again(3), "a run is a function of its seed");
}
