//! What the network costs and what its failures cost: cases of `make bench-network`, in network namespaces.
//!
//! Each is a ratio to a peer in the same round; rounds are measured in turns, and the median and the range are shown.
//! Without arguments all cases run: `CASE... [--rounds N] [-o json]`.

mod ethernet;
mod gaps;
mod mptcp;
mod notices;
mod rings;
mod shaped;
mod share;
mod spoiled;
mod spread;

use campaign::Error;
use campaign::causeway::binary;
use campaign::process::{Process, run};
use campaign::world::Machine;
use serde_json::Value;
use std::process::ExitCode;

/// Both sides of one round.
#[derive(Clone, Copy)]
struct Round {
    ours: f64,
    peer: f64,
}

/// Which way is better, and how far ours is to be from the peer's.
enum Target {
    /// Ours is at least so many times the peer's.
    AtLeast(f64),
    /// Ours is at most so many times the peer's.
    AtMost(f64),
    /// Neither is more than so many times the other.
    Around(f64),
    /// Ours is at most so much.
    Below(f64),
}

struct Case {
    id: &'static str,
    unit: &'static str,
    peer: &'static str,
    target: Target,
    rounds: usize,
    measure: fn(usize) -> Result<Vec<Round>, Error>,
}

const CASES: [Case; 17] = [
    Case {
        id: "notice-8-nodes",
        unit: "us",
        peer: "one frame to each",
        // Myrinet's mapper: 86.9 us.
        target: Target::Below(86.9),
        rounds: 10,
        measure: notices::measure,
    },
    simulated("notice-64-nodes", |rounds| spread::measure(64, rounds)),
    simulated("notice-1024-nodes", |rounds| spread::measure(1024, rounds)),
    simulated("notice-4096-nodes", |rounds| spread::measure(4096, rounds)),
    Case {
        id: "carrier-gap",
        unit: "ms",
        peer: "MPTCP",
        target: Target::AtMost(0.1),
        rounds: 5,
        measure: gaps::carrier,
    },
    Case {
        id: "carrier-gap-round-trips",
        unit: "ms",
        peer: "ten round trips",
        target: Target::AtMost(1.0),
        rounds: 5,
        measure: gaps::carrier_by_round_trips,
    },
    Case {
        id: "blackhole-gap",
        unit: "ms",
        peer: "MPTCP",
        target: Target::AtMost(0.1),
        rounds: 5,
        measure: gaps::blackhole,
    },
    Case {
        id: "two-rails-100-mbit",
        unit: "MB/s",
        peer: "one rail",
        target: Target::AtLeast(1.9),
        rounds: 5,
        measure: shaped::measure,
    },
    Case {
        id: "one-rail-loses-5-percent",
        unit: "MB/s",
        peer: "the good rail alone",
        target: Target::AtLeast(0.95),
        rounds: 5,
        measure: spoiled::loss,
    },
    Case {
        id: "one-rail-takes-20-ms",
        unit: "MB/s",
        peer: "the good rail alone",
        target: Target::AtLeast(0.95),
        rounds: 5,
        measure: spoiled::delay,
    },
    Case {
        id: "beside-tcp-100-mbit",
        unit: "MB/s",
        peer: "TCP (CUBIC)",
        target: Target::Around(2.0),
        rounds: 3,
        measure: share::measure,
    },
    Case {
        id: "ethernet-64k-read-qd16",
        unit: "IOPS",
        peer: "UDP without GSO",
        target: Target::AtLeast(1.0),
        rounds: 7,
        measure: |rounds| ethernet::measure(rounds, ("64k", 16), false),
    },
    Case {
        id: "ethernet-4k-read-qd32",
        unit: "IOPS",
        peer: "UDP without GSO",
        target: Target::AtLeast(1.0),
        rounds: 7,
        measure: |rounds| ethernet::measure(rounds, ("4k", 32), false),
    },
    Case {
        id: "ethernet-64k-read-qd16-vs-gso",
        unit: "IOPS",
        peer: "UDP with GSO",
        target: Target::AtLeast(0.0),
        rounds: 7,
        measure: |rounds| ethernet::measure(rounds, ("64k", 16), true),
    },
    rings("ethernet-calls-vs-rings-v2", "frames/s", |rounds| {
        rings::measure(rounds, rings::Version::V2, rings::What::Frames)
    }),
    rings("ethernet-calls-vs-rings-v3", "frames/s", |rounds| {
        rings::measure(rounds, rings::Version::V3, rings::What::Frames)
    }),
    rings("ethernet-calls-vs-rings-v2-round-trip", "us", |rounds| {
        rings::measure(rounds, rings::Version::V2, rings::What::RoundTrip)
    }),
];

/// Frames that are handed over many in a call, beside rings of memory: which is faster is what is asked.
const fn rings(
    id: &'static str,
    unit: &'static str,
    measure: fn(usize) -> Result<Vec<Round>, Error>,
) -> Case {
    Case { id, unit, peer: "rings", target: Target::AtLeast(0.0), rounds: 11, measure }
}

/// A notice to so many that their machines are simulated.
const fn simulated(id: &'static str, measure: fn(usize) -> Result<Vec<Round>, Error>) -> Case {
    Case { id, unit: "us", peer: "one frame to each", target: Target::AtMost(1.0), rounds: 21, measure }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((first, rest)) if first == rings::CHILD => rings::child(rest),
        _ => measure_all(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("causeway-network-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all() -> Result<(), Error> {
    let (mut names, mut rounds, mut is_json, mut checks) = (Vec::new(), None, false, false);
    let mut arguments = std::env::args().skip(1);
    let usage =
        || Error::unexpected("usage: causeway-network-bench [CASE...] [--rounds N] [--check] [-o json]");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => {
                rounds = Some(arguments.next().and_then(|count| count.parse().ok()).ok_or_else(usage)?);
            }
            "--check" => checks = true,
            "-o" => is_json = arguments.next().filter(|form| form == "json").ok_or_else(usage)? == "json",
            _ if CASES.iter().any(|case| case.id == argument) => names.push(argument),
            _ => {
                let known: Vec<&str> = CASES.iter().map(|case| case.id).collect();
                let what = format!("there is no case `{argument}`; there are {}", known.join(", "));
                return Err(Error::unexpected(what));
            }
        }
    }
    if !is_json {
        println!("{:30} {:>9} {:>9} {:>7} {:>15}  target", "CASE", "OURS", "PEER", "RATIO", "RANGE");
    }
    let mut missed = Vec::new();
    for case in CASES.iter().filter(|case| names.is_empty() || names.iter().any(|name| name == case.id)) {
        let count: usize = rounds.unwrap_or(case.rounds).max(1);
        let measured = (case.measure)(count)?;
        if !show(case, &measured, is_json) {
            missed.push(case.id);
        }
    }
    if checks && !missed.is_empty() {
        return Err(Error::unexpected(format!("missed: {}", missed.join(", "))));
    }
    Ok(())
}

/// Shows what was measured. Whether the target is met.
fn show(case: &Case, rounds: &[Round], is_json: bool) -> bool {
    let (ours, peer) = (median(rounds, |it| it.ours), median(rounds, |it| it.peer));
    let ratio = |it: &Round| it.ours / it.peer;
    let (middle, least, most) = (
        median(rounds, ratio),
        rounds.iter().map(ratio).fold(f64::INFINITY, f64::min),
        rounds.iter().map(ratio).fold(0.0, f64::max),
    );
    let (target, is_met) = match case.target {
        Target::AtLeast(0.0) => ("none".to_owned(), true),
        Target::AtLeast(times) => (format!("at least {times} of {}", case.peer), middle >= times),
        Target::AtMost(times) => (format!("at most {times} of {}", case.peer), middle <= times),
        Target::Around(times) => {
            (format!("neither more than {times} times the other"), middle <= times && middle >= 1.0 / times)
        }
        Target::Below(value) => (format!("at most {value} {}", case.unit), ours <= value),
    };
    if is_json {
        let document = serde_json::json!({
            "case": case.id, "unit": case.unit, "peer": case.peer, "ours": ours, "peers": peer, "ratio": middle,
            "least": least, "most": most, "rounds": rounds.len(), "target": target, "met": is_met,
        });
        println!("{document}");
        return is_met;
    }
    let met = if is_met { "met" } else { "MISSED" };
    println!(
        "{:30} {ours:>9.2} {peer:>9.2} {middle:>7.3} {:>15}  {met}: {target} ({})",
        case.id,
        format!("{least:.3}-{most:.3}"),
        case.unit
    );
    is_met
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A node of this file but for its name.
fn node(machine: &Machine, name: &str, text: &str) -> Result<Process, Error> {
    let file = machine.dir().join(format!("{name}.toml"));
    let written = std::fs::write(&file, format!("name = \"{name}\"\n{text}"));
    written.map_err(Error::io("cannot write the node's file"))?;
    let mut command = machine.command(binary()?);
    command.args(["node", "--config"]).arg(file);
    machine.spawn(name, command)
}

fn json(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::unexpected(format!("what a program has told is no JSON: {error}")))
}

/// Runs a program of these words in a machine.
fn tool(machine: &Machine, words: &[&str]) -> Result<String, Error> {
    let mut command = machine.command(words[0]);
    command.args(&words[1..]);
    run(command)
}
