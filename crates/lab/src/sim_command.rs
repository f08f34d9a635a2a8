//! `causeway sim`: runs the simulator's seeds, or shows that its checkers find what they are for.
//!
//! With `CAUSEWAY_SIM_TRACE=1` in the environment every event is a line on standard error; the legend stands with the
//! simulator's log.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};
use program::cli::Output;
use program::exit::Failure;
use serde::Serialize;
use sim::{Canary, Failure as Found, Mark, Options, Summary};

use crate::cli::{SimArgs, choose_seed};

/// Seeds that a canary may take where no count is given.
const CANARY_SEEDS: u64 = 600;

/// What `-o json` prints.
#[derive(Serialize)]
struct Report {
    version: u32,
    commit: String,
    seeds: Seeds,
    failures: Vec<FailureReport>,
    canaries: Vec<CanaryReport>,
    /// In how many seeds each rare situation occurred.
    coverage: Vec<Coverage>,
    kills: u64,
    requests: u64,
}

#[derive(Serialize)]
struct Seeds {
    first: u64,
    count: u64,
}

#[derive(Serialize)]
struct FailureReport {
    seed: u64,
    checker: &'static str,
    what: String,
}

#[derive(Serialize)]
struct CanaryReport {
    name: String,
    found: bool,
    seeds_needed: u64,
    checker: Option<&'static str>,
}

#[derive(Serialize)]
struct Coverage {
    name: &'static str,
    seeds: u64,
}

/// Runs `causeway sim`; `commit` names the sources in the report.
///
/// # Errors
/// When a checker has found something, or a canary was not found; and when standard output is closed.
pub(crate) fn run(args: &SimArgs, commit: String) -> Result<(), Failure> {
    let first = args.seed.map_or_else(choose_seed, Ok)?;
    let report =
        if args.canaries { run_canaries(args, first, commit) } else { run_seeds(args, first, commit) };
    let text = match args.output.format {
        Output::Json => serde_json::to_string_pretty(&report).map_err(Failure::failed)? + "\n",
        Output::Text => text_of(&report),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::io("print the report", &error))?;
    let missed = report.canaries.iter().filter(|canary| !canary.found).count();
    match (report.failures.as_slice(), missed) {
        ([], 0) => Ok(()),
        ([], missed) => {
            Err(Failure::failed(format!("{missed} switched-off rules were not noticed by any checker")))
        }
        ([first, ..], _) => Err(Failure::failed(format!(
            "{} of {} seeds failed; repeat the first with: causeway sim --seed {}",
            report.failures.len(),
            report.seeds.count,
            first.seed
        ))),
    }
}

fn run_seeds(args: &SimArgs, first: u64, commit: String) -> Report {
    let trace = std::env::var_os("CAUSEWAY_SIM_TRACE").is_some_and(|value| value != "0");
    let options = Options { trace, ..Options::default() };
    let bar = progress(args, args.count);
    let mut seen = vec![0; Mark::ALL.len()];
    let (mut kills, mut requests) = (0, 0);
    let failures = sim::run_many(first..first.saturating_add(args.count), &options, |result| {
        let summary: &Summary = result.as_ref().unwrap_or_else(|failure: &Found| &failure.summary);
        (kills, requests) = (kills + summary.kills, requests + summary.requests);
        for (count, mark) in seen.iter_mut().zip(Mark::ALL) {
            *count += u64::from(summary.marks.has(*mark));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let report =
        |failure: Found| FailureReport { seed: failure.seed, checker: failure.checker, what: failure.what };
    Report {
        version: 1,
        commit,
        seeds: Seeds { first, count: args.count },
        failures: failures.into_iter().map(report).collect(),
        canaries: Vec::new(),
        coverage: Mark::ALL
            .iter()
            .zip(seen)
            .map(|(mark, seeds)| Coverage { name: mark.name(), seeds })
            .collect(),
        kills,
        requests,
    }
}

fn run_canaries(args: &SimArgs, first: u64, commit: String) -> Report {
    let most = if args.count > 1 { args.count } else { CANARY_SEEDS };
    let report = |canary: Canary| CanaryReport {
        name: canary.name,
        found: canary.found,
        seeds_needed: canary.seeds_needed,
        checker: canary.checker,
    };
    Report {
        version: 1,
        commit,
        seeds: Seeds { first, count: most },
        failures: Vec::new(),
        canaries: sim::canaries(first, most).into_iter().map(report).collect(),
        coverage: Vec::new(),
        kills: 0,
        requests: 0,
    }
}

fn text_of(report: &Report) -> String {
    let Seeds { first, count } = report.seeds;
    let mut text = String::new();
    for failure in &report.failures {
        text += &format!("seed {}: {}: {}\n", failure.seed, failure.checker, failure.what);
    }
    for canary in &report.canaries {
        let Some(checker) = canary.checker.filter(|_| canary.found) else {
            text += &format!("{:<24} not found in {} seeds\n", canary.name, canary.seeds_needed);
            continue;
        };
        text += &format!(
            "{:<24} found by {checker:<20} in seed {} of {count}\n",
            canary.name, canary.seeds_needed
        );
    }
    if report.canaries.is_empty() {
        let failures = report.failures.len();
        text += &format!(
            "{count} seeds from {first}: {failures} failures, {} requests, {} cards killed\n",
            report.requests, report.kills
        );
        for mark in &report.coverage {
            text += &format!("{:>8} seeds  {}\n", mark.seeds, mark.name);
        }
    }
    text
}

/// A bar on standard error, where that is a terminal and nothing else is printed there.
fn progress(args: &SimArgs, count: u64) -> ProgressBar {
    if args.output.format == Output::Json || count < 10 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left");
    ProgressBar::new(count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
