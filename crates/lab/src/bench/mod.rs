//! `causeway bench`: what a borrowed drive costs and gives on this machine, beside the peer on the same machine.
//!
//! [`case`] lists what is measured. Nodes run as children of the same program and are reached as anybody reaches them;
//! the peer is `nbdkit` with `fio`, as installed. Ours and the peer take turns, round by round, and each round carries
//! the time a cache line took from core to core before and after it ([`core_to_core`]): on virtual machines that
//! changes within seconds and moves every result, so only rounds of one distance compare. All rounds are kept in the
//! report; medians and ratios follow from them ([`report`], [`page`], [`plot`]).
//!
//! The command line's `load` is the part of the native cases that runs in the borrowing card ([`io::load`]).

mod against;
mod attach_gap;
mod bound;
mod case;
mod cases;
mod copy;
mod core_to_core;
mod cut_gap;
mod forwarding;
mod guests;
mod idle;
mod loans;
mod managed;
mod page;
mod papers;
mod peer;
mod place;
mod plot;
mod recovery;
mod report;
mod show;
mod sides;
mod slot_client;
mod tls;
mod traffic;
mod usage;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};

use program::cli::{Output, print};
use program::exit::Failure;

use crate::cli::BenchArgs;
use crate::local::{Halt, Interrupt, Scratch};
use crate::nbd_client::NbdError;
use attach_gap::AttachGap;
use case::{Case, Drives, GuestCase, Kind, LoansCase, Medium, Traffic, Transport};
use copy::Copies;
use cut_gap::CutGap;
use forwarding::{Between, Forwarding, Measure};
use guests::{Guest, MapTimes, Memory};
use idle::Idle;
use loans::Loans;
use managed::{Assign, ManagerKill};
use place::Image;
use recovery::Recovery;
use report::{CaseReport, Machine, Peer, Report, Round};
use show::Show;
use traffic::Both;

/// What is lent where the medium does not matter, or must be memory.
const RAM: &str = "ram:64M";

/// Measures, writes the report and prints it.
///
/// # Errors
/// Exit 1 when a case failed, or in CI when a peer is missing; 2 for an unknown case. A target that was missed is a
/// result, and an interruption ends the bench with what it has.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let cases = cases::select(&args.cases)?;
    fs::create_dir_all(&args.out)
        .map_err(|error| Failure::io(format_args!("cannot create {}", args.out.display()), &error))?;
    if let Some(other) = &args.against {
        return against::run(args, other, cases);
    }
    let is_papers = args.cases.iter().any(|name| name == cases::PAPERS);
    let mut report = Report {
        version: report::VERSION,
        commit: commit(),
        machine: machine(),
        cases: Vec::with_capacity(cases.len()),
        interrupted: false,
    };
    let mut bench = Bench {
        guest: None,
        interrupt: Interrupt::install()?,
        scratch: Scratch::create("bench")?,
        memory: None,
        out: args.out.clone(),
        rounds: args.rounds,
        show: Show::start(&cases, args.rounds),
    };
    for case in cases {
        match bench.case(case) {
            Ok(measured) => report.cases.push(measured),
            Err(Halt::Interrupted) => {
                report.interrupted = true;
                break;
            }
            Err(Halt::Failed(failure)) => {
                let mut failed = CaseReport::empty(case, bench.rounds(case));
                failed.failed = Some(failure.message().to_owned());
                report.cases.push(failed);
            }
        }
        if let Some(last) = report.cases.last() {
            bench.show.case(last);
        }
    }
    let stopped = bench.stop_guest();
    bench.show.finish();
    write(&args.out, &report)?;
    print(&match args.output.format {
        Output::Text => format!(
            "{}{}report  {}\n",
            report.text(),
            if is_papers { papers::text(&report) } else { String::new() },
            args.out.join("report.html").display()
        ),
        Output::Json => report.json(),
    })?;
    stopped?;
    verdict(&report, std::env::var_os("CI").is_some_and(|value| value == "true"))
}

fn write(out: &Path, report: &Report) -> Result<(), Failure> {
    for (name, content) in [("report.json", report.json()), ("report.html", page::render(report))] {
        let path = out.join(name);
        fs::write(&path, content)
            .map_err(|error| Failure::io(format_args!("cannot write {}", path.display()), &error))?;
    }
    Ok(())
}

fn verdict(report: &Report, in_ci: bool) -> Result<(), Failure> {
    let of = |why: fn(&CaseReport) -> &Option<String>| {
        let found = report.cases.iter().filter_map(|case| Some((case.id, why(case).as_ref()?)));
        found.map(|(id, why)| format!("{id}: {why}")).collect::<Vec<_>>()
    };
    let failed = of(|case| &case.failed);
    if !failed.is_empty() {
        return Err(Failure::failed(failed.join("; ")));
    }
    let skipped = of(|case| &case.skipped);
    if in_ci && !skipped.is_empty() {
        return Err(Failure::failed(format_args!("in CI nothing may be skipped: {}", skipped.join("; "))));
    }
    Ok(())
}

impl From<NbdError> for Halt {
    fn from(error: NbdError) -> Self {
        Failure::failed(format_args!("the borrowed drive failed: {error}")).into()
    }
}

struct Bench {
    /// The machine of cases with a guest, while they follow each other. Dropped first: it has the image.
    guest: Option<Guest>,
    interrupt: Interrupt,
    scratch: Scratch,
    /// The image in memory, once a case has needed it.
    memory: Option<Image>,
    out: PathBuf,
    rounds: Option<u32>,
    show: Show,
}

impl Bench {
    fn case(&mut self, case: &'static Case) -> Result<CaseReport, Halt> {
        self.show.begin(case);
        if !matches!(case.kind, Kind::Guest(_)) {
            self.stop_guest()?;
        }
        match case.kind {
            Kind::Recovery(Medium::Memory) => self.recovery(case, Path::new(RAM)),
            Kind::Recovery(Medium::Disk) => match place::on_disk(&self.out, &self.interrupt)? {
                Ok(image) => self.recovery(case, &image.path),
                Err(why) => Ok(self.skipped(case, why)),
            },
            Kind::Traffic(traffic) => self.traffic(case, traffic),
            Kind::Copy { write } => self.copy(case, write),
            Kind::IdleCpu => self.idle(case, |idle| idle.cpu_round()),
            Kind::IdleMemory => self.idle(case, |idle| idle.memory_round()),
            Kind::Guest(what) => self.guest_case(case, what),
            Kind::Loans(what, transport) => self.loans(case, what, transport),
            Kind::AttachGap(transport) => self.attach_gap(case, transport),
            Kind::CutGap => self.cut_gap(case),
            Kind::Assign => self.assign(case),
            Kind::ManagerKill(transport) => self.manager_kill(case, transport),
            Kind::Forwarding(between, measure) => self.forwarding(case, (between, measure)),
        }
    }

    fn recovery(&self, case: &Case, source: &Path) -> Result<CaseReport, Halt> {
        let mut recovery = Recovery::start(source, &self.scratch, &self.interrupt)?;
        let medium = recovery.medium()?;
        if (medium == "memory") != (case.kind == Kind::Recovery(Medium::Memory)) {
            let why = format!("{} is served as {medium}", source.display());
            return Err(Failure::failed(why).into());
        }
        let rounds = self.repeat(case, || recovery.round())?;
        recovery.stop()?;
        Ok(CaseReport::measured(case, rounds, None))
    }

    fn traffic(&mut self, case: &Case, traffic: Traffic) -> Result<CaseReport, Halt> {
        let transports = [traffic.ours.transport, traffic.peer.transport];
        if let Some(missing) = transports.into_iter().find_map(peer::missing) {
            return Ok(self.skipped(case, missing));
        }
        let image = match traffic.ours.drives {
            Drives::Image => match self.memory_image()? {
                Ok(path) => Some(path),
                Err(why) => return Ok(self.skipped(case, why)),
            },
            Drives::Flash { .. } => None,
        };
        let mut both = Both::start(traffic, image.as_deref(), &self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || both.round())?;
        both.stop()?;
        let (ours, theirs) = rounds.into_iter().unzip();
        let peer = Peer::new(traffic.peer.transport.name(), peer::versions(traffic.peer.transport), theirs);
        Ok(CaseReport::measured(case, ours, Some(peer)))
    }

    fn copy(&mut self, case: &Case, write: bool) -> Result<CaseReport, Halt> {
        let image = match self.memory_image()? {
            Ok(path) => path,
            Err(why) => return Ok(self.skipped(case, why)),
        };
        let mut copies = Copies::start(write, &image, &self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || copies.round())?;
        copies.stop()?;
        let (ours, theirs) = rounds.into_iter().unzip();
        let peer = Peer::new("the image itself", env!("CARGO_PKG_VERSION").to_owned(), theirs);
        Ok(CaseReport::measured(case, ours, Some(peer)))
    }

    fn guest_case(&mut self, case: &Case, what: GuestCase) -> Result<CaseReport, Halt> {
        let kit = match guests::kit() {
            Ok(kit) => kit,
            Err(why) => return Ok(self.skipped(case, why)),
        };
        if matches!(what, GuestCase::Memory | GuestCase::MapTime) {
            self.stop_guest()?;
        }
        let mut version = guests::version(&kit);
        let rounds = match what {
            GuestCase::Memory => match Memory::start(&kit, &self.scratch, &self.interrupt)? {
                Ok(mut sets) => {
                    let rounds = self.repeat(case, || sets.round())?;
                    sets.stop()?;
                    rounds
                }
                Err(why) => return Ok(self.skipped(case, why)),
            },
            GuestCase::MapTime => {
                let mut times = MapTimes::start(&kit, &self.scratch, &self.interrupt)?;
                let rounds = self.repeat(case, || times.round())?;
                times.stop()?;
                rounds
            }
            GuestCase::Traffic(..) | GuestCase::Registers | GuestCase::Recovery => {
                if self.guest.as_ref().is_some_and(|guest| guest.transport() != what.transport()) {
                    self.stop_guest()?;
                }
                let mut guest = match self.guest.take() {
                    Some(guest) => guest,
                    None => match self.memory_image()? {
                        Ok(image) => {
                            Guest::start(&kit, &image, what.transport(), &self.scratch, &self.interrupt)?
                        }
                        Err(why) => return Ok(self.skipped(case, why)),
                    },
                };
                let rounds = self.repeat(case, || guest.round(what))?;
                version = guest.peer_version(&kit, what);
                // One that has failed is not used again.
                self.guest = Some(guest);
                rounds
            }
        };
        let (ours, theirs) = rounds.into_iter().unzip();
        let peer = Peer::new(what.peer(), version, theirs);
        Ok(CaseReport::measured(case, ours, Some(peer)))
    }

    fn stop_guest(&mut self) -> Result<(), Failure> {
        self.guest.take().map_or(Ok(()), Guest::stop)
    }

    /// The image in memory, which all cases share; or why there is none.
    fn memory_image(&mut self) -> Result<Result<PathBuf, String>, Halt> {
        if self.memory.is_none() {
            match place::in_memory(&self.interrupt)? {
                Ok(image) => self.memory = Some(image),
                Err(why) => return Ok(Err(why)),
            }
        }
        let image = self.memory.as_ref().expect("it was made just now");
        Ok(Ok(image.path.clone()))
    }

    fn idle(
        &self,
        case: &Case,
        round: impl Fn(&Idle<'_>) -> Result<Round, Halt>,
    ) -> Result<CaseReport, Halt> {
        let idle = Idle::start(Path::new(RAM), &self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || round(&idle))?;
        idle.stop()?;
        Ok(CaseReport::measured(case, rounds, None))
    }

    fn loans(&self, case: &Case, what: LoansCase, transport: Transport) -> Result<CaseReport, Halt> {
        let mut loans = Loans::start(what, transport, &self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || loans.round())?;
        loans.stop()?;
        Ok(beside_ourselves(case, "one loan", rounds))
    }

    fn attach_gap(&self, case: &Case, transport: Transport) -> Result<CaseReport, Halt> {
        let mut gap = AttachGap::start(transport, &self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || gap.round())?;
        gap.stop()?;
        Ok(beside_ourselves(case, "the same without attach and detach", rounds))
    }

    fn cut_gap(&self, case: &Case) -> Result<CaseReport, Halt> {
        let mut gap = CutGap::start(&self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || gap.round())?;
        gap.stop()?;
        Ok(beside_ourselves(case, "the same without a cut", rounds))
    }

    fn assign(&self, case: &Case) -> Result<CaseReport, Halt> {
        let scratch = Scratch::create_in(self.scratch.path(), "assign")?;
        let mut assign = Assign::start(&scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || assign.round())?;
        assign.stop()?;
        Ok(CaseReport::measured(case, rounds, None))
    }

    fn manager_kill(&self, case: &Case, transport: Transport) -> Result<CaseReport, Halt> {
        let scratch = Scratch::create_in(self.scratch.path(), "manager")?;
        let other = Scratch::create_in(self.scratch.path(), "other")?;
        let mut kills = ManagerKill::start(transport, (&scratch, &other), &self.interrupt)?;
        let rounds = self.repeat(case, || kills.round())?;
        kills.stop()?;
        Ok(beside_ourselves(case, "the same with the manager of another fabric", rounds))
    }

    fn forwarding(&self, case: &Case, what: (Between, Measure)) -> Result<CaseReport, Halt> {
        let mut both = Forwarding::start(what, &self.scratch, &self.interrupt)?;
        let rounds = self.repeat(case, || both.round())?;
        both.stop()?;
        Ok(beside_ourselves(case, "a loop that only copies", rounds))
    }

    fn repeat<T>(&self, case: &Case, mut round: impl FnMut() -> Result<T, Halt>) -> Result<Vec<T>, Halt> {
        let count = self.rounds(case);
        (0..count)
            .map(|_| {
                self.interrupt.check()?;
                let result = round()?;
                self.show.round();
                Ok(result)
            })
            .collect()
    }

    fn rounds(&self, case: &Case) -> u32 {
        self.rounds.unwrap_or(case.rounds)
    }

    fn skipped(&self, case: &Case, why: String) -> CaseReport {
        CaseReport { skipped: Some(why), ..CaseReport::empty(case, self.rounds(case)) }
    }
}

/// A case whose peer is this program, too.
fn beside_ourselves(case: &Case, peer: &'static str, rounds: Vec<(Round, Round)>) -> CaseReport {
    let (ours, theirs) = rounds.into_iter().unzip();
    let peer = Peer::new(peer, env!("CARGO_PKG_VERSION").to_owned(), theirs);
    CaseReport::measured(case, ours, Some(peer))
}

/// One measurement of ours and one of the peer: in the first round ours is first, in the next one the peer, and so on.
fn in_turns<S, T>(
    round: u32,
    sides: &mut S,
    ours: impl FnOnce(&mut S) -> Result<T, Halt>,
    peer: impl FnOnce(&mut S) -> Result<T, Halt>,
) -> Result<(T, T), Halt> {
    if round.is_multiple_of(2) {
        let ours = ours(sides)?;
        return Ok((ours, peer(sides)?));
    }
    let peer = peer(sides)?;
    Ok((ours(sides)?, peer))
}

/// The mean of what is known of two.
fn mean(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    match (before, after) {
        (Some(before), Some(after)) => Some((before + after) / 2.0),
        (one, other) => one.or(other),
    }
}

fn machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let system = rustix::system::uname();
    let memory = rustix::system::sysinfo();
    Machine {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: memory.totalram as u64 * u64::from(memory.mem_unit),
        kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        load_average: read("/proc/loadavg")
            .split_whitespace()
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or(0.0),
    }
}

/// The commit of the sources, where they are still there, else the version of the program.
pub(crate) fn commit() -> String {
    let mut command = std::process::Command::new("git");
    command.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=12"]);
    let output =
        command.stdin(std::process::Stdio::null()).output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| format!("version {}", env!("CARGO_PKG_VERSION")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_end_with_one_and_skipped_cases_only_in_ci() {
        let mut report = report::tests::example();
        assert!(verdict(&report, false).is_ok());
        let failure = verdict(&report, true).unwrap_err();
        assert!(failure.message().contains("nbd-sealed-4k-read-qd32: nbdkit is"), "{failure}");
        report.cases[0].failed = Some("it broke".to_owned());
        let failure = verdict(&report, false).unwrap_err();
        assert_eq!((failure.exit().code(), failure.message()), (1, "recovery-memory: it broke"));
    }

    #[test]
    fn ours_and_the_peer_are_first_in_turns() {
        let mut order = Vec::new();
        for round in 0..3 {
            let ours = |order: &mut Vec<&str>| {
                order.push("ours");
                Ok(1)
            };
            let peer = |order: &mut Vec<&str>| {
                order.push("peer");
                Ok(2)
            };
            assert_eq!(in_turns(round, &mut order, ours, peer).unwrap(), (1, 2));
        }
        assert_eq!(order, ["ours", "peer", "peer", "ours", "ours", "peer"]);
    }

    #[test]
    fn the_machine_is_described() {
        let machine = machine();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20 && machine.kernel.starts_with("Linux"));
    }
}
