//! Runs seeds: `seeds FIRST COUNT [guests|rests] [trace] [RULE]`, of these only those with guests, or with one that
//! rests, without that rule, `seeds canaries FIRST MAX`, or of fleets `seeds fleet FIRST COUNT [trace] [RULE]`, of
//! crowds `seeds crowd FIRST COUNT [trace]`, of managed fleets `seeds managed FIRST COUNT [trace] [RULE]`, of worlds
//! with a rogue `seeds rogue FIRST COUNT [RULE]`, or a liar `seeds liars FIRST COUNT`, or of trees of switches
//! `seeds tree FIRST COUNT [trace] [RULE]`.

use sim::fleet::{Fleet, run_crowd, run_fleet, run_managed};
use sim::liars::run_liar;
use sim::tree::{Tree, run_tree};
use sim::{Failure, Options};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    if arguments.first().is_some_and(|first| first == "canaries") {
        for canary in sim::canaries(number(1, 0), number(2, 100)) {
            println!("{canary:?}");
        }
        return;
    }
    let said = |word: &str| arguments.iter().any(|argument| argument == word);
    let mut options = Options { trace: said("trace"), ..Options::default() };
    if let Some(rule) =
        base::Rule::ALL.iter().find(|rule| arguments.iter().any(|a| *a == format!("{rule:?}")))
    {
        options.rules = options.rules.without(*rule);
    }
    if said("fleet") {
        return run_fleets(run_fleet, number(1, 0), number(2, 100), &options);
    }
    if said("managed") {
        return run_fleets(run_managed, number(1, 0), number(2, 100), &options);
    }
    if said("crowd") {
        return run_fleets(run_crowd, number(1, 0), number(2, 4), &options);
    }
    if said("rogue") {
        return run_rogues(number(1, 0), number(2, 100), &options);
    }
    if said("liars") {
        return run_liars(number(1, 0), number(2, 100));
    }
    if said("tree") {
        return run_trees(number(1, 0), number(2, 100), &options);
    }
    let mut seen = vec![0; sim::Mark::ALL.len()];
    let (mut kills, mut requests, mut time, mut events, mut runs) = (0, 0, 0, 0, 0);
    let seeds = (number(0, 0)..).take(number(1, 100) as usize);
    let seeds = seeds.filter(|seed| !said("guests") || sim::has_guests(*seed));
    let seeds = seeds.filter(|seed| !said("rests") || sim::has_rest(*seed));
    let failures = sim::run_many(seeds, &options, |result| {
        let summary = match result {
            Ok(summary) => summary,
            Err(failure) => {
                println!("seed {}: {}: {}", failure.seed, failure.checker, failure.what);
                &failure.summary
            }
        };
        runs += 1;
        (kills, requests) = (kills + summary.kills, requests + summary.requests);
        (time, events) = (time + summary.virtual_ns / 1_000_000, events + summary.events);
        for (count, mark) in seen.iter_mut().zip(sim::Mark::ALL) {
            *count += u64::from(summary.marks.has(*mark));
        }
    });
    println!(
        "{runs} runs, {} failures, {kills} kills, {requests} requests, {time} virtual ms, {events} events",
        failures.len()
    );
    for (count, mark) in seen.iter().zip(sim::Mark::ALL) {
        println!("{:>8} {}", count, mark.name());
    }
}

fn run_liars(first: u64, count: u64) {
    let (mut failures, mut told, mut verified) = (0, 0, 0);
    for seed in first..first + count {
        match run_liar(seed, 300) {
            Ok((_, lies)) => (told, verified) = (told + lies.told, verified + lies.verified),
            Err(failure) => {
                println!("liars {}: {}: {}", failure.seed, failure.checker, failure.what);
                failures += 1;
            }
        }
    }
    println!("{count} worlds, {failures} failures, {told} lies, {verified} blocks verified");
}

fn run_fleets(run: fn(u64, &Options) -> Result<Fleet, Failure>, first: u64, count: u64, options: &Options) {
    let (mut failures, mut verified, mut kills, mut moves) = (0, 0, 0, 0);
    let mut sizes = std::collections::BTreeMap::<usize, u64>::new();
    for seed in first..first + count {
        match run(seed, options) {
            Ok(fleet) => {
                *sizes.entry(fleet.nodes).or_default() += 1;
                verified += fleet.verified;
                kills += fleet.kills;
                moves += fleet.attached + fleet.detached;
            }
            Err(failure) => {
                failures += 1;
                println!("fleet {seed}: {}: {}", failure.checker, failure.what);
            }
        }
    }
    println!("by their nodes: {sizes:?}");
    println!("{count} fleets, {failures} failures, {kills} kills, {moves} moves, {verified} blocks verified");
}

fn run_trees(first: u64, count: u64, options: &Options) {
    let mut all = Tree::default();
    let (mut failures, mut largest) = (0, 0);
    for seed in first..first + count {
        match run_tree(seed, options) {
            Ok(tree) => {
                largest = largest.max(tree.nodes);
                all.switches += tree.switches;
                all.delivered += tree.delivered;
                all.forwarded += tree.forwarded;
                all.dropped += tree.dropped;
                all.faults += tree.faults;
                all.lies += tree.lies;
                all.looks += tree.looks;
            }
            Err(failure) => {
                failures += 1;
                println!("tree {seed}: {}: {}", failure.checker, failure.what);
            }
        }
    }
    println!(
        "{count} trees of at most {largest} nodes, {} switches, {failures} failures, {} faults, {} lies, {} frames \
         delivered, {} forwarded, {} dropped, {} looks at pairs",
        all.switches, all.faults, all.lies, all.delivered, all.forwarded, all.dropped, all.looks
    );
}

fn run_rogues(first: u64, count: u64, options: &Options) {
    let (mut failures, mut told, mut verified) = (0, 0, 0);
    for seed in first..first + count {
        match sim::rogue::run_rogue(seed, 300, options) {
            Ok(rogue) => (told, verified) = (told + rogue.told, verified + rogue.verified),
            Err(failure) => {
                failures += 1;
                println!("rogue {seed}: {}: {}", failure.checker, failure.what);
            }
        }
    }
    println!("{count} rogues, {failures} failures, {told} lies, {verified} blocks verified");
}
