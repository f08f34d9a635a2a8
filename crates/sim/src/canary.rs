use std::num::NonZero;
use std::sync::Mutex;

use base::{Rule, RuleSet};

use crate::fleet::run_managed;
use crate::rogue::run_rogue;
use crate::tree::run_tree;
use crate::{Failure, Options, has_guests, run};

/// A safety rule that was switched off, and whether the checkers noticed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Canary {
    /// The rule.
    pub name: String,
    /// Whether a checker found its absence.
    pub found: bool,
    /// How many seeds that took, or how many were tried.
    pub seeds_needed: u64,
    /// Which checker it was.
    pub checker: Option<&'static str>,
}

/// Switches off each rule and runs seeds from `first_seed` on, at most `max_seeds` a rule, until one fails: several
/// rules at a time, one a processor.
pub fn canaries(first_seed: u64, max_seeds: u64) -> Vec<Canary> {
    let (rest, done) = (Mutex::new(Rule::ALL.iter().enumerate()), Mutex::new(Vec::new()));
    let next = || rest.lock().expect("nobody has panicked").next();
    let work = || {
        while let Some((at, &rule)) = next() {
            let found = canary(rule, first_seed, max_seeds);
            done.lock().expect("nobody has panicked").push((at, found));
        }
    };
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        (0..processors).for_each(|_| drop(scope.spawn(work)));
    });
    let mut done = done.into_inner().expect("nobody has panicked");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, canary)| canary).collect()
}

fn canary(rule: Rule, first_seed: u64, max_seeds: u64) -> Canary {
    let options = Options { rules: RuleSet::ALL.without(rule), ..Options::default() };
    let name = format!("{rule:?}");
    // What only guests can notice is looked for where there are any.
    let is_of_guests = matches!(rule, Rule::TakeFromGuest | Rule::RefuseWhileSilent);
    let is_there = |seed: &u64| !is_of_guests || has_guests(*seed);
    for (tried, seed) in (1..=max_seeds).zip((first_seed..).filter(is_there)) {
        if let Err(failure) = run_world(rule, seed, &options) {
            return Canary { name, found: true, seeds_needed: tried, checker: Some(failure.checker) };
        }
    }
    Canary { name, found: false, seeds_needed: max_seeds, checker: None }
}

/// Turns with lies of a world that has a rogue.
const TURNS: u32 = 300;

/// The world in which somebody does what the rule is against.
fn run_world(rule: Rule, seed: u64, options: &Options) -> Result<(), Failure> {
    match rule {
        Rule::ProveSecrets
        | Rule::OpenFirst
        | Rule::FenceGenerations
        | Rule::FenceFrames
        | Rule::StreamsOfPeer
        | Rule::AddressDecoder
        | Rule::AddressRails
        | Rule::RequesterRewrite => run_rogue(seed, TURNS, options).map(drop),
        Rule::CheckSources
        | Rule::CountHops
        | Rule::UseWhatIsHeard
        | Rule::LeaveWhatIsNotHeard
        | Rule::FenceEpochs => run_tree(seed, options).map(drop),
        Rule::FenceLines | Rule::AssignedOnly | Rule::LetLeave | Rule::ForceOut => {
            run_managed(seed, options).map(drop)
        }
        _ => run(seed, options).map(drop),
    }
}
