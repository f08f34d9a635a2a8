//! 4 KiB random reads: ours and nbdkit's in turns, of the same image.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use io::load::LoadResult;

use super::bound::Share;
use super::case::Reader;
use super::core_to_core::round_trip_ns;
use super::peer::{self, Nbdkit};
use super::report::Round;
use super::usage::{self, CpuTime};
use crate::exit::Failure;
use crate::local::{Halt, Interrupt, NETWORK_ONLY, Node, Scratch};

/// How long each side reads in a round.
pub(super) const DURATION: Duration = Duration::from_secs(2);

/// How to read.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) reader: Reader,
    pub(super) sealed: bool,
    pub(super) depth: u16,
}

/// Both sides, ready.
pub(super) struct Reads<'a> {
    way: Way,
    scratch: &'a Scratch,
    interrupt: &'a Interrupt,
    nbdkit: Nbdkit,
    lender: Node,
    line: String,
    /// For fio; the native reader is a borrower of its own each time.
    borrower: Option<(Node, String)>,
    rounds: usize,
}

impl<'a> Reads<'a> {
    /// Serves `image` both ways.
    pub(super) fn start(
        way: Way,
        image: &Path,
        scratch: &'a Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let nbdkit = Nbdkit::start(image, interrupt)?;
        let (lender, line) = Node::lend(scratch, image, 1, way.options(), interrupt)?;
        let borrower = match way.reader {
            Reader::Native => None,
            Reader::Nbd => {
                let (node, socket) = Node::borrow(scratch, &line, way.options(), interrupt)?;
                Some((node, format!("nbd+unix:///?socket={}", socket.display())))
            }
        };
        Ok(Self { way, scratch, interrupt, nbdkit, lender, line, borrower, rounds: 0 })
    }

    /// One measurement of each, ours first every other time.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.rounds += 1;
        if self.rounds.is_multiple_of(2) {
            let peer = between(|| self.peer())?;
            return Ok((between(|| self.ours())?, peer));
        }
        let ours = between(|| self.ours())?;
        Ok((ours, between(|| self.peer())?))
    }

    fn ours(&self) -> Result<Round, Halt> {
        self.interrupt.check()?;
        let lender = node_processes(&self.lender, LENDER)?;
        match &self.borrower {
            Some((borrower, uri)) => {
                let servers = [node_processes(borrower, BORROWER)?, lender].concat();
                self.fio(uri, &servers)
            }
            None => self.native(&lender),
        }
    }

    fn peer(&self) -> Result<Round, Halt> {
        self.interrupt.check()?;
        self.fio(&self.nbdkit.uri(), &[(self.nbdkit.pid(), "nbdkit")])
    }

    /// `servers` are the processes behind `uri`.
    fn fio(&self, uri: &str, servers: &[(u32, &'static str)]) -> Result<Round, Halt> {
        let watch = Watch::begin(servers);
        let reads = peer::read(uri, self.way.depth, DURATION, self.scratch.path())?;
        let (shares, cpu) = watch.end(&[("fio", reads.cpu)]);
        Ok(Round {
            value: reads.iops,
            cpu_us_per_io: Some(cpu.as_secs_f64() * 1e6 / reads.count as f64),
            cpu_shares: shares,
            p50_us: reads.p50_us,
            p99_us: reads.p99_us,
            ..Round::default()
        })
    }

    fn native(&self, lender: &[(u32, &'static str)]) -> Result<Round, Halt> {
        let watch = Watch::begin(lender);
        let result = self.run_native()?;
        if result.errors > 0 || result.requests == 0 {
            return Err(Failure::failed(format_args!(
                "{} of the native driver's reads failed",
                result.errors
            ))
            .into());
        }
        // The reader's card counts for itself, and does not say where the time was spent.
        let used = CpuTime { user: Duration::from_nanos(result.cpu_ns), system: Duration::ZERO };
        let (shares, cpu) = watch.end(&[("borrower's card (user and system in one)", used)]);
        let reads = result.requests as f64;
        Ok(Round {
            value: reads * 1e9 / result.elapsed_ns as f64,
            cpu_us_per_io: Some(cpu.as_secs_f64() * 1e6 / reads),
            cpu_shares: shares,
            p50_us: Some(result.p50_ns as f64 / 1e3),
            p99_us: Some(result.p99_ns as f64 / 1e3),
            ..Round::default()
        })
    }

    /// A borrower whose card reads on its own, from its start to its end.
    fn run_native(&self) -> Result<LoadResult, Halt> {
        let mut arguments: Vec<OsString> = vec!["__load".into(), Node::line_file(self.scratch, &self.line)?];
        arguments.extend(["--depth".into(), self.way.depth.to_string().into()]);
        arguments.extend(["--seconds".into(), DURATION.as_secs_f64().to_string().into()]);
        arguments.extend(self.way.options().iter().map(OsString::from));
        let (reader, json) = Node::start(self.scratch, "reader", arguments, "{", self.interrupt)?;
        reader.stop()?;
        let result = serde_json::from_str(&json);
        Ok(result.map_err(|error| Failure::failed(format_args!("the reader said {json}: {error}")))?)
    }

    /// Ends our nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        if let Some((borrower, _)) = self.borrower {
            borrower.stop()?;
        }
        self.lender.stop()
    }
}

/// What the agent and the card of a node are called.
type Names = [&'static str; 2];
const LENDER: Names = ["lender's agent", "lender's card"];
const BORROWER: Names = ["borrower's agent", "borrower's card"];

fn node_processes(node: &Node, names: Names) -> Result<Vec<(u32, &'static str)>, Failure> {
    Ok(usage::processes(node)?.into_iter().zip(names).collect())
}

/// Processes whose processor time is counted for a while.
struct Watch {
    since: Instant,
    before: Vec<(u32, &'static str, CpuTime)>,
}

impl Watch {
    fn begin(processes: &[(u32, &'static str)]) -> Self {
        let before = processes.iter().map(|&(pid, name)| (pid, name, usage::cpu_time(pid))).collect();
        Self { since: Instant::now(), before }
    }

    /// The share of each, and the time of all. `others` have been counted elsewhere.
    fn end(self, others: &[(&'static str, CpuTime)]) -> (Vec<Share>, Duration) {
        let elapsed = self.since.elapsed();
        let watched =
            self.before.iter().map(|(pid, name, before)| (*name, usage::cpu_time(*pid).since(*before)));
        let used: Vec<_> = others.iter().copied().chain(watched).collect();
        let shares = used.iter().map(|(name, time)| Share::of(name, *time, elapsed)).collect();
        (shares, used.iter().map(|(_, time)| time.total()).sum())
    }
}

impl Way {
    fn options(self) -> &'static [&'static str] {
        if self.sealed { &[NETWORK_ONLY] } else { &[NETWORK_ONLY, "--insecure"] }
    }
}

/// A measurement with the distance of the cores before and after.
fn between(measure: impl FnOnce() -> Result<Round, Halt>) -> Result<Round, Halt> {
    let before = round_trip_ns();
    let round = measure()?;
    Ok(Round { core_to_core_ns: super::mean(before, round_trip_ns()), ..round })
}
