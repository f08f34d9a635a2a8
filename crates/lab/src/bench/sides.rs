//! The ways to a drive, each ready to be measured round by round.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use io::load::LoadResult;
use program::exit::Failure;

use super::case::{Drives, Setup, Transport, Work};
use super::peer::{self, Nbdkit, Server};
use super::report::{PERCENTS, Round};
use super::tls::Certificate;
use super::usage::CpuTime;
use super::watch::{BORROWER, LENDER, Watch, node_processes};
use crate::local::{Halt, Interrupt, Node, Scratch};

/// Memory of a flash module: enough that its content is not in the processors' caches.
const MODULE: &str = "ram:64M";
/// Borrowers that may work at the same time; a name for each.
const READERS: [&str; 4] = ["reader", "reader-b", "reader-c", "reader-d"];

/// One side of a comparison.
pub(super) struct Side<'a> {
    setup: Setup,
    scratch: Scratch,
    interrupt: &'a Interrupt,
    served: Served,
}

/// What serves it.
enum Served {
    /// Nothing: a process of its own each time, with these images.
    Alone(Vec<OsString>),
    /// A lender; the borrowers are started each time.
    Lent(Node, Vec<String>),
    /// A lender, and a borrower with an NBD socket.
    Nbd {
        lender: Node,
        borrower: Node,
        uri: String,
    },
    Nbdkit(Nbdkit),
}

impl<'a> Side<'a> {
    /// Starts what serves, in a folder of its own.
    pub(super) fn start(
        setup: Setup,
        image: Option<&Path>,
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "side")?;
        let images: Vec<OsString> = match setup.drives {
            Drives::Image => image.iter().map(|path| path.as_os_str().to_owned()).collect(),
            Drives::Flash { modules, scale, .. } => {
                // A card has two modules.
                let source = format!("flash:{MODULE}?scale={}", 2 * scale);
                vec![source.into(); modules]
            }
        };
        let options = setup.transport.options();
        let served = match setup.transport {
            Transport::Native | Transport::SystemCalls => Served::Alone(images),
            Transport::Udp { .. } | Transport::Shm => {
                let (lender, lines) = Node::lend_all(&scratch, &images, options, interrupt)?;
                Served::Lent(lender, lines)
            }
            Transport::Nbd { .. } => {
                let (lender, lines) = Node::lend_all(&scratch, &images, options, interrupt)?;
                let (borrower, socket) = Node::borrow(&scratch, &lines[0], options, interrupt)?;
                Served::Nbd { lender, borrower, uri: format!("nbd+unix:///?socket={}", socket.display()) }
            }
            Transport::Nbdkit { tls } => {
                let certificate = if tls { Some(Certificate::make(&scratch)?) } else { None };
                Served::Nbdkit(Nbdkit::start(Path::new(&images[0]), certificate, interrupt)?)
            }
        };
        Ok(Self { setup, scratch, interrupt, served })
    }

    /// One measurement: its value is how many requests there were in a second.
    pub(super) fn round(&self, work: Work, duration: Duration) -> Result<Round, Halt> {
        self.interrupt.check()?;
        match &self.served {
            Served::Alone(images) => self.alone(images, work, duration),
            Served::Lent(lender, lines) => {
                let watch = Watch::begin(&node_processes(lender, LENDER)?);
                let results = self.borrow(lines, work, duration)?;
                round(&results, watch, "borrower's card (user and system in one)")
            }
            Served::Nbd { lender, borrower, uri } => {
                let servers = [node_processes(borrower, BORROWER)?, node_processes(lender, LENDER)?].concat();
                self.fio(Server { uri, home: None }, &servers, work, duration)
            }
            Served::Nbdkit(nbdkit) => {
                let uri = nbdkit.uri();
                let server = Server { uri: &uri, home: nbdkit.home() };
                self.fio(server, &[(nbdkit.pid(), "nbdkit")], work, duration)
            }
        }
    }

    /// Ends our nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        match self.served {
            Served::Lent(lender, _) => lender.stop(),
            Served::Nbd { lender, borrower, .. } => borrower.stop().and(lender.stop()),
            Served::Alone(_) | Served::Nbdkit(_) => Ok(()),
        }
    }

    /// `servers` are the processes behind `server`.
    fn fio(
        &self,
        server: Server<'_>,
        servers: &[(u32, &'static str)],
        work: Work,
        duration: Duration,
    ) -> Result<Round, Halt> {
        let watch = Watch::begin(servers);
        let done = peer::fio(server, work, duration, self.scratch.path())?;
        let (shares, cpu) = watch.end(&[("fio", done.cpu)]);
        Ok(Round {
            value: done.iops,
            cpu_us_per_io: Some(cpu.as_secs_f64() * 1e6 / done.count as f64),
            cpu_shares: shares,
            ..Round::default()
        }
        .with_latencies(done.latencies_us))
    }

    /// Driver and drive in one process, or system calls alone.
    fn alone(&self, images: &[OsString], work: Work, duration: Duration) -> Result<Round, Halt> {
        let program = std::env::current_exe();
        let mut command =
            Command::new(program.map_err(|error| Failure::io("cannot find the program itself", &error))?);
        command.arg("__native").args(images).args(arguments(work, duration));
        if self.setup.transport == Transport::SystemCalls {
            command.arg("--plain");
        }
        let watch = Watch::begin(&[]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| Failure::io("cannot start the native load", &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        round(&[result(&text)?], watch, "driver and drive (user and system in one)")
    }

    /// Borrowers whose cards read and write on their own, from their start to their end.
    fn borrow(&self, lines: &[String], work: Work, duration: Duration) -> Result<Vec<LoadResult>, Halt> {
        let hosts = match self.setup.drives {
            Drives::Image => 1,
            Drives::Flash { hosts, .. } => hosts,
        };
        let (scratch, interrupt, transport) = (&self.scratch, self.interrupt, self.setup.transport);
        let start = |(index, lines): (usize, &[String])| {
            let mut arguments: Vec<OsString> = vec!["__load".into()];
            for (number, line) in lines.iter().enumerate() {
                let name = format!("line-{index}-{number}");
                arguments.push(Node::named_line_file(scratch, &name, line)?);
            }
            arguments.extend(self::arguments(work, duration));
            arguments.extend(transport.options().iter().map(OsString::from));
            Node::start(scratch, READERS[index], arguments, "{", interrupt)
        };
        let parts = lines.chunks(lines.len().div_ceil(hosts)).enumerate();
        // All work at the same time.
        let started: Vec<Result<_, Halt>> = std::thread::scope(|scope| {
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || start(part))).collect();
            threads.into_iter().map(|thread| thread.join().expect("starting a node does not panic")).collect()
        });
        let mut results = Vec::new();
        for reader in started {
            let (reader, json) = reader?;
            reader.stop()?;
            results.push(result(&json)?);
        }
        Ok(results)
    }
}

fn arguments(work: Work, duration: Duration) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    for (name, value) in [
        ("--bytes", work.bytes.to_string()),
        ("--depth", work.depth.to_string()),
        ("--write-percent", work.write_percent.to_string()),
        ("--seconds", duration.as_secs_f64().to_string()),
    ] {
        arguments.extend([name.into(), value.into()]);
    }
    if work.sequential {
        arguments.push("--sequential".into());
    }
    arguments
}

/// What a load has printed.
fn result(text: &str) -> Result<LoadResult, Failure> {
    let result: LoadResult = serde_json::from_str(text)
        .map_err(|error| Failure::failed(format_args!("the load said {text:?}: {error}")))?;
    if result.errors > 0 || result.requests == 0 {
        let (errors, requests) = (result.errors, result.requests);
        return Err(Failure::failed(format_args!(
            "of the load {errors} requests failed, {requests} did not"
        )));
    }
    Ok(result)
}

/// What processes came to that had loads at the same time. Their cards count for themselves, and do not say where the
/// time was spent.
fn round(results: &[LoadResult], watch: Watch, name: &'static str) -> Result<Round, Halt> {
    let cpu = results.iter().map(|result| Duration::from_nanos(result.cpu_ns)).sum();
    let elapsed = results.iter().map(|result| result.elapsed_ns).max().unwrap_or(1);
    let (mut shares, cpu) = watch.end(&[(name, CpuTime { user: cpu, system: Duration::ZERO })]);
    // The watch also saw the start.
    if let Some(share) = shares.iter_mut().find(|share| share.process == name) {
        share.user = results.iter().map(|result| result.cpu_ns).sum::<u64>() as f64 / elapsed as f64;
    }
    let rate: f64 = results.iter().map(|it| it.requests as f64 * 1e9 / it.elapsed_ns as f64).sum();
    let all = LoadResult::together(results);
    let latencies = PERCENTS.iter().map(|percent| (*percent, all.percentile_ns(*percent) as f64 / 1e3));
    Ok(Round {
        value: rate,
        cpu_us_per_io: Some(cpu.as_secs_f64() * 1e6 / all.requests as f64),
        cpu_shares: shares,
        ..Round::default()
    }
    .with_latencies(latencies.collect()))
}
