//! `causeway bench --against PROGRAM`: whether this program is slower than another build of it, case by case.
//!
//! Both run the same case in turns, a round each, as `causeway bench CASE --rounds N -o json`. A pair counts where the
//! cores were equally far apart in both of its rounds. Of the pairs' ratios the geometric mean and its 95 % interval
//! are kept; a case whose whole interval lies below [`SLOWER_BELOW`] is slower, and fails the run.
//!
//! Both are run from copies that are made in the same way: since Linux 6.18 a fault in a file maps as much of it as the
//! kernel has in one piece, and how large the pieces are depends on how the file has come into its cache. The same
//! program had 9.2 or 12.4 MiB in memory, depending on who had read it before.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use program::cli::{Output, print};
use program::exit::Failure;
use serde::{Deserialize, Serialize};

use super::case::{Better, Case};
use super::core_to_core::Distance;
use super::report::{Machine, VERSION};
use super::show::Show;
use crate::cli::BenchArgs;
use crate::local::{Halt, Interrupt, Scratch};

/// A case is slower where the whole interval lies below this.
const SLOWER_BELOW: f64 = 0.97;
/// Pairs of a case, unless somebody chose.
const PAIRS: u32 = 8;
/// Kills of a round where recoveries are measured: one says little.
const KILLS: u32 = 10;
/// Fewer pairs have no interval worth the name.
const FEWEST: usize = 3;

/// The document `against.json`.
#[derive(Debug, Serialize)]
struct Document {
    version: u32,
    commit: String,
    /// The other program, and what it says it is.
    against: String,
    against_commit: String,
    machine: Machine,
    slower_below: f64,
    cases: Vec<Compared>,
    interrupted: bool,
}

/// One case.
#[derive(Debug, Serialize)]
struct Compared {
    id: &'static str,
    unit: &'static str,
    better: Better,
    /// Of the pairs that compare; above 1 this program is better. null where there are fewer than three.
    ratio: Option<Interval>,
    slower: bool,
    pairs: Vec<Pair>,
    failed: Option<String>,
}

/// A round of each.
#[derive(Debug, Clone, Copy, Serialize)]
struct Pair {
    ours: Turn,
    theirs: Turn,
}

/// What a program's turn came to.
#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    value: f64,
    core_to_core_ns: Option<f64>,
}

/// A geometric mean, and the bounds between which it lies in 95 of 100 repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Interval {
    mean: f64,
    low: f64,
    high: f64,
}

/// What another program's report is read for.
#[derive(Deserialize)]
struct TheirReport {
    commit: String,
    cases: Vec<TheirCase>,
}

#[derive(Deserialize)]
struct TheirCase {
    ours: Option<TheirSide>,
    skipped: Option<String>,
    failed: Option<String>,
}

#[derive(Deserialize)]
struct TheirSide {
    median: f64,
    rounds: Vec<TheirRound>,
}

#[derive(Deserialize)]
struct TheirRound {
    core_to_core_ns: Option<f64>,
}

/// Compares, writes `against.json` into the folder and prints the table.
///
/// # Errors
/// Exit 1 where a case is slower or failed, 2 where there is no such program.
pub(super) fn run(args: &BenchArgs, other: &Path, cases: Vec<&'static Case>) -> Result<(), Failure> {
    let ours = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
    let scratch = Scratch::create("against")?;
    let programs = [Program::copied(&ours, &scratch, "this")?, Program::copied(other, &scratch, "other")?];
    let sides = Sides { programs, scratch, interrupt: Interrupt::install()? };
    let show = Show::start(&cases, Some(args.rounds.unwrap_or(PAIRS)));
    let mut document = Document {
        version: VERSION,
        commit: super::commit(),
        against: other.display().to_string(),
        against_commit: String::new(),
        machine: super::machine(),
        slower_below: SLOWER_BELOW,
        cases: Vec::with_capacity(cases.len()),
        interrupted: false,
    };
    for case in cases {
        show.begin(case);
        match sides.compare(case, args.rounds.unwrap_or(PAIRS), &show, &mut document.against_commit) {
            Ok(pairs) => document.cases.push(Compared::of(case, pairs)),
            Err(Halt::Interrupted) => {
                document.interrupted = true;
                break;
            }
            Err(Halt::Failed(failure)) => document.cases.push(Compared {
                failed: Some(failure.message().to_owned()),
                ..Compared::of(case, Vec::new())
            }),
        }
    }
    show.finish();
    let json = serde_json::to_string_pretty(&document).expect("the document has string keys only") + "\n";
    let path = args.out.join("against.json");
    fs::write(&path, &json)
        .map_err(|error| Failure::io(format_args!("cannot write {}", path.display()), &error))?;
    print(&match args.output.format {
        Output::Text => format!("{}report  {}\n", document.text(), path.display()),
        Output::Json => json,
    })?;
    document.verdict()
}

struct Program {
    /// As the user knows it.
    path: PathBuf,
    copy: PathBuf,
}

impl Program {
    fn copied(path: &Path, scratch: &Scratch, name: &str) -> Result<Self, Failure> {
        let copy = scratch.join(name);
        let copied = fs::copy(path, &copy).and_then(|_| fs::File::open(&copy)?.sync_all());
        copied.map_err(|error| Failure::usage(format_args!("cannot copy {}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned(), copy })
    }
}

struct Sides {
    /// This one, and the other one.
    programs: [Program; 2],
    scratch: Scratch,
    interrupt: Interrupt,
}

impl Sides {
    fn compare(
        &self,
        case: &Case,
        pairs: u32,
        show: &Show,
        their_commit: &mut String,
    ) -> Result<Vec<Pair>, Halt> {
        (0..pairs)
            .map(|pair| {
                self.interrupt.check()?;
                let (ours, theirs) = super::in_turns(
                    pair,
                    &mut (),
                    |()| self.turn(case, &self.programs[0]),
                    |()| self.turn(case, &self.programs[1]),
                )?;
                show.round();
                their_commit.clone_from(&theirs.1);
                Ok(Pair { ours: ours.0, theirs: theirs.0 })
            })
            .collect()
    }

    /// One round of a program, and the commit that it names.
    fn turn(&self, case: &Case, Program { path, copy }: &Program) -> Result<(Turn, String), Halt> {
        let rounds = if case.kind.is_recovery() { KILLS } else { 1 };
        let mut command = Command::new(copy);
        command.args(["bench", case.id, "-o", "json", "--rounds", &rounds.to_string(), "--out"]);
        command.arg(self.scratch.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| {
            Failure::usage(format_args!("cannot run a copy of {}: {error}", path.display()))
        })?;
        self.interrupt.check()?;
        let report: TheirReport = serde_json::from_slice(&output.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("nothing");
            Failure::failed(format_args!("{} gave no report; it said: {said}", path.display()))
        })?;
        let measured = report.cases.into_iter().next().map(|case| (case.ours, case.skipped.or(case.failed)));
        match measured {
            Some((Some(side), _)) => {
                let distances: Vec<f64> =
                    side.rounds.iter().filter_map(|round| round.core_to_core_ns).collect();
                let mean = distances.iter().sum::<f64>() / distances.len() as f64;
                let core_to_core_ns = (!distances.is_empty()).then_some(mean);
                Ok((Turn { value: side.median, core_to_core_ns }, report.commit))
            }
            other => {
                let why = other.and_then(|(_, why)| why).unwrap_or_else(|| "no such case".to_owned());
                Err(Failure::failed(format_args!("{}: {why}", path.display())).into())
            }
        }
    }
}

impl Pair {
    /// Whether the cores were equally far apart in both turns.
    fn compares(&self) -> bool {
        Distance::of(self.ours.core_to_core_ns) == Distance::of(self.theirs.core_to_core_ns)
    }
}

impl Compared {
    fn of(case: &Case, pairs: Vec<Pair>) -> Self {
        let ratios = pairs.iter().filter(|pair| pair.compares());
        let ratios: Vec<f64> =
            ratios.map(|pair| case.better.ratio(pair.ours.value, pair.theirs.value)).collect();
        let ratio = Interval::of(&ratios);
        let slower = ratio.is_some_and(|ratio| ratio.high < SLOWER_BELOW);
        Self { id: case.id, unit: case.unit, better: case.better, ratio, slower, pairs, failed: None }
    }
}

impl Interval {
    /// Student's interval of the logarithms. `None` of too few ratios, or of such that are none.
    fn of(ratios: &[f64]) -> Option<Self> {
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        if logs.len() < FEWEST || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = student(logs.len() - 1) * (variance / count).sqrt();
        Some(Self { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
    }
}

/// What 95 of 100 values of Student's distribution do not exceed on either side, by degrees of freedom.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 20] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    ];
    // Beyond the table a little too wide, never too narrow.
    TABLE[freedom.clamp(1, TABLE.len()) - 1]
}

impl Document {
    fn text(&self) -> String {
        let mut text = format!(
            "{} against {} ({})\n{:<36} {:>6} {:>7}  {:<15} {}\n",
            self.commit, self.against, self.against_commit, "case", "pairs", "ratio", "95 %", "verdict"
        );
        for case in &self.cases {
            let verdict = match (&case.failed, case.ratio, case.slower) {
                (Some(why), ..) => why.as_str(),
                (_, None, _) => "too few pairs of one distance",
                (_, _, true) => "SLOWER",
                (_, _, false) => "not slower",
            };
            let (mean, bounds) = case.ratio.map_or((String::new(), String::new()), |ratio| {
                (format!("{:.3}", ratio.mean), format!("{:.3} to {:.3}", ratio.low, ratio.high))
            });
            let pairs = case.pairs.iter().filter(|pair| pair.compares()).count();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<36} {pairs:>6} {mean:>7}  {bounds:<15} {verdict}", case.id);
        }
        text
    }

    fn verdict(&self) -> Result<(), Failure> {
        let slower = self.cases.iter().filter(|case| case.slower).map(|case| case.id);
        let slower: Vec<_> = slower.collect();
        let failed =
            self.cases.iter().filter_map(|case| Some(format!("{}: {}", case.id, case.failed.as_ref()?)));
        let failed: Vec<_> = failed.collect();
        match (slower.as_slice(), failed.as_slice()) {
            ([], []) => Ok(()),
            ([], failed) => Err(Failure::failed(failed.join("; "))),
            (slower, _) => {
                Err(Failure::failed(format_args!("slower than {}: {}", self.against, slower.join(", "))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ours: f64, theirs: f64) -> Pair {
        let turn = |value| Turn { value, core_to_core_ns: Some(100.0) };
        Pair { ours: turn(ours), theirs: turn(theirs) }
    }

    fn compared(id: &str, pairs: Vec<Pair>) -> Compared {
        Compared::of(super::super::cases::select(&[id.to_owned()]).unwrap()[0], pairs)
    }

    #[test]
    fn an_interval_is_that_of_students_distribution() {
        let interval = Interval::of(&[0.9, 1.0, 1.1]).unwrap();
        // By hand: logarithms -0.10536, 0, 0.09531; mean -0.00335; deviation 0.10038; t(2) = 4.303.
        assert!((interval.mean - 0.99666).abs() < 1e-4, "{interval:?}");
        assert!(
            (interval.low - 0.7767).abs() < 1e-3 && (interval.high - 1.2789).abs() < 1e-3,
            "{interval:?}"
        );
        assert_eq!(Interval::of(&[1.0, 1.0]), None);
        assert_eq!(Interval::of(&[1.0, 1.0, 0.0]), None);
    }

    #[test]
    fn a_case_is_slower_only_where_the_whole_interval_says_so() {
        let slow = [(90.0, 100.0), (91.0, 100.0), (89.0, 100.0), (90.5, 100.0)];
        let noisy = [(60.0, 100.0), (120.0, 100.0), (80.0, 100.0), (90.0, 100.0)];
        let pairs = |of: &[(f64, f64)]| of.iter().map(|(ours, theirs)| pair(*ours, *theirs)).collect();
        let rate = "native-udp-sealed-4k-read-qd32";
        assert!(compared(rate, pairs(&slow)).slower);
        assert!(!compared(rate, pairs(&noisy)).slower);
        // Of times the smaller one is better.
        assert!(!compared("recovery-memory", pairs(&slow)).slower);
        let late: Vec<Pair> = slow.iter().map(|(ours, theirs)| pair(*theirs, *ours)).collect();
        assert!(compared("recovery-memory", late).slower);
    }

    #[test]
    fn rounds_of_different_distances_do_not_compare() {
        let mut pairs = vec![pair(50.0, 100.0); 4];
        for pair in &mut pairs[..2] {
            pair.theirs.core_to_core_ns = Some(500.0);
        }
        let compared = compared("native-udp-sealed-4k-read-qd32", pairs);
        assert_eq!((compared.ratio, compared.slower), (None, false));
    }
}
