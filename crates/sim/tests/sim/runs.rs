//! Some hundred worlds, all canaries, and that a seed is a run.

use sim::{Mark, Options, canaries, run, run_many};

#[test]
fn whatever_happens_to_it_nothing_is_lost_and_nothing_happens_twice() {
    let mut seen = vec![0; Mark::ALL.len()];
    let mut quiet = 0;
    let failures = run_many(1..231, &Options::default(), |result| {
        let Ok(summary) = result else { return };
        assert!(summary.requests > 0);
        quiet += u32::from(summary.kills == 0);
        for (count, mark) in seen.iter_mut().zip(Mark::ALL) {
            *count += u32::from(summary.marks.has(*mark));
        }
    });
    for failure in &failures {
        eprintln!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
    }
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
    assert!(quiet < 23, "in {quiet} of 230 worlds no card died");
    for (count, mark) in seen.iter().zip(Mark::ALL) {
        // Worlds in which guests rest are few, and tests of their own come to that.
        assert!(*count > 0 || *mark == Mark::DriveTaken, "no seed came to {}", mark.name());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 100..106 {
        let (one, two) = (run(seed, &Options::default()), run(seed, &Options::default()));
        assert_eq!(one.unwrap(), two.unwrap());
    }
    let other = run(107, &Options::default()).unwrap();
    assert_ne!(other.digest, run(108, &Options::default()).unwrap().digest);
}

#[test]
fn the_absence_of_each_rule_is_noticed() {
    // These are noticed in one of 80 to 150 seeds, the others in one of 30 at least.
    let rare = ["EndOldIncarnation", "KeepUnflushed", "LookAtImages", "RefuseOutdated"];
    for canary in canaries(0, 1500) {
        eprintln!("{canary:?}");
        let most = if rare.contains(&canary.name.as_str()) { 1500 } else { 300 };
        let is_soon = canary.found && canary.seeds_needed <= most;
        assert!(is_soon, "{} was not noticed in {most} seeds", canary.name);
    }
}
