//! The other side of comparisons: fio as the client, nbdkit as the server, both as they are installed.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use program::exit::Failure;
use serde::Deserialize;

use super::case::{Transport, Work};
use super::tls::{self, Certificate};
use super::usage::CpuTime;
use crate::local::{Halt, Interrupt};

/// How long nbdkit may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// What is missing to go that way, in words for a person; `None` when everything is there.
pub(super) fn missing(transport: Transport) -> Option<String> {
    match transport {
        Transport::Native | Transport::Udp { .. } | Transport::Shm | Transport::SystemCalls => None,
        Transport::Nbd { .. } => fio_missing(),
        Transport::Nbdkit { tls: false } => nbdkit_missing(),
        Transport::Nbdkit { tls: true } => nbdkit_missing().or_else(tls::missing),
    }
}

/// What is installed to go that way.
pub(super) fn versions(transport: Transport) -> String {
    let of = |name| version(name).unwrap_or_default();
    match transport {
        Transport::Native | Transport::Udp { .. } | Transport::Shm | Transport::SystemCalls => {
            env!("CARGO_PKG_VERSION").to_owned()
        }
        Transport::Nbd { .. } => format!("{}, fio {}", env!("CARGO_PKG_VERSION"), of("fio")),
        Transport::Nbdkit { .. } => format!("{}, fio {}", of("nbdkit"), of("fio")),
    }
}

fn nbdkit_missing() -> Option<String> {
    if version("nbdkit").is_none() {
        return Some("nbdkit is not installed; `make deps` installs it".to_owned());
    }
    fio_missing()
}

fn fio_missing() -> Option<String> {
    let Some(engines) = output("fio", &["--enghelp"]) else {
        return Some("fio is not installed; `make deps` installs it".to_owned());
    };
    let has_engine = engines.lines().any(|line| line.trim() == "nbd");
    (!has_engine).then(|| "fio has no NBD engine; install one that was built with libnbd".to_owned())
}

/// The version of an installed program, without its name.
pub(super) fn version(program: &str) -> Option<String> {
    let text = output(program, &["--version"])?;
    let line = text.lines().next()?;
    Some(line.trim_start_matches(program).trim_start_matches(['-', ' ']).to_owned())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A running nbdkit that serves a file over TCP on loopback; dropping it ends it.
pub(super) struct Nbdkit {
    child: Child,
    address: SocketAddr,
    certificate: Option<Certificate>,
}

impl Nbdkit {
    /// Serves `image` with the settings that nbdkit has by itself; with a certificate over TLS alone.
    pub(super) fn start(
        image: &Path,
        certificate: Option<Certificate>,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let address = free_address().map_err(|error| Failure::io("cannot find a free TCP port", &error))?;
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--ipaddr", "127.0.0.1", "--port", &address.port().to_string()]);
        if let Some(certificate) = &certificate {
            command.arg("--tls=require");
            command.arg(format!("--tls-certificates={}", certificate.server_folder().display()));
        }
        command.arg("file").arg(image).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Failure::io("cannot start nbdkit", &error))?;
        let mut nbdkit = Self { child, address, certificate };
        nbdkit.wait(interrupt)?;
        Ok(nbdkit)
    }

    fn wait(&mut self, interrupt: &Interrupt) -> Result<(), Halt> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            interrupt.check()?;
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Failure::failed(format_args!("nbdkit ended at its start: {status}")).into());
            }
            if Instant::now() >= deadline {
                return Err(Failure::failed("nbdkit does not listen").into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Where fio connects.
    pub(super) fn uri(&self) -> String {
        let scheme = if self.certificate.is_some() { "nbds" } else { "nbd" };
        format!("{scheme}://{}", self.address)
    }

    /// The home folder that a client needs to trust it.
    pub(super) fn home(&self) -> Option<&Path> {
        self.certificate.as_ref().map(Certificate::home)
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// What fio measured.
#[derive(Debug, PartialEq)]
pub(super) struct Measured {
    /// How many requests there were.
    pub(super) count: u64,
    /// In a second.
    pub(super) iops: f64,
    /// Processor time of fio.
    pub(super) cpu: CpuTime,
    /// Percent of the requests, and how many microseconds they took at most. Of a mixture those of the reads.
    pub(super) latencies_us: Vec<(f64, f64)>,
    /// The longest of all, in microseconds.
    pub(super) longest_us: f64,
}

/// Where fio is to find an NBD server.
#[derive(Clone, Copy)]
pub(super) struct Server<'a> {
    pub(super) uri: &'a str,
    /// Its home folder, if that matters.
    pub(super) home: Option<&'a Path>,
}

/// Runs fio for `duration`.
pub(super) fn fio(
    server: Server<'_>,
    work: Work,
    duration: Duration,
    folder: &Path,
) -> Result<Measured, Failure> {
    let mut command = Command::new("fio");
    command.args(["--name=causeway", "--ioengine=nbd", "--norandommap"]);
    command.args(["--randrepeat=0", "--time_based", "--output-format=json"]);
    // Its engine may hand over completions late, so that only the whole latency means something.
    command.args(["--clat_percentiles=0", "--lat_percentiles=1"]);
    command.arg(format!("--rw={}", pattern(work))).arg(format!("--bs={}", work.bytes));
    command.arg(format!("--rwmixread={}", 100 - work.write_percent));
    command.arg(format!("--uri={}", server.uri)).arg(format!("--iodepth={}", work.depth));
    command.arg(format!("--runtime={}ms", duration.as_millis()));
    if let Some(home) = server.home {
        command.env("HOME", home);
    }
    // It leaves files where it runs.
    command.current_dir(folder).stdin(Stdio::null());
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::refused("fio is not installed"),
        _ => Failure::io("cannot run fio", &error),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::failed(format_args!("fio failed ({}): {}", output.status, why.trim())));
    }
    parse(&text)
}

/// fio's document, as far as it is wanted. It may begin with a few lines of notes.
pub(super) fn parse(text: &str) -> Result<Measured, Failure> {
    let start = text.find('{').unwrap_or(0);
    let document: Document = serde_json::from_str(&text[start..])
        .map_err(|error| Failure::failed(format_args!("fio's output is not understood: {error}")))?;
    let job = document.jobs.first().ok_or_else(|| Failure::failed("fio's output has no job"))?;
    let count = job.read.total_ios + job.write.total_ios;
    if job.error != 0 || count == 0 {
        return Err(Failure::failed(format_args!("fio did nothing (error {})", job.error)));
    }
    // fio gives percents of the job's time.
    let cpu =
        |percent: f64| Duration::from_secs_f64((percent / 100.0 * job.job_runtime as f64 / 1e3).max(0.0));
    let told = if job.read.total_ios > 0 { &job.read } else { &job.write };
    let mut latencies_us: Vec<(f64, f64)> = (told.lat_ns.percentile.iter())
        .filter_map(|(percent, ns)| Some((percent.parse().ok()?, ns / 1e3)))
        .collect();
    latencies_us.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    Ok(Measured {
        count,
        iops: job.read.iops + job.write.iops,
        cpu: CpuTime { user: cpu(job.usr_cpu), system: cpu(job.sys_cpu) },
        latencies_us,
        longest_us: job.read.lat_ns.max.max(job.write.lat_ns.max) / 1e3,
    })
}

/// What fio calls it.
pub(super) fn pattern(work: Work) -> &'static str {
    match (work.sequential, work.write_percent) {
        (true, 0) => "read",
        (true, 100..) => "write",
        (true, _) => "rw",
        (false, 0) => "randread",
        (false, 100..) => "randwrite",
        (false, _) => "randrw",
    }
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Direction,
    #[serde(default)]
    write: Direction,
    /// In milliseconds.
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Default, Deserialize)]
struct Direction {
    total_ios: u64,
    iops: f64,
    #[serde(default)]
    lat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    #[serde(default)]
    max: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"note: something
{ "fio version" : "fio-3.33", "jobs" : [ { "jobname" : "causeway", "error" : 0, "job_runtime" : 2000, "usr_cpu" : 10.0,
  "sys_cpu" : 40.0, "read" : { "total_ios" : 20000, "iops" : 10000.0,
  "lat_ns" : { "max" : 123456, "percentile" : { "50.000000" : 52000, "99.000000" : 99000 } } } } ] }"#;

    #[test]
    fn the_output_of_fio_is_understood() {
        let reads = parse(DOCUMENT).unwrap();
        let ms = Duration::from_millis;
        assert_eq!(reads.cpu, CpuTime { user: ms(200), system: ms(800) });
        assert_eq!((reads.count, reads.iops), (20000, 10000.0));
        assert_eq!(reads.latencies_us, [(50.0, 52.0), (99.0, 99.0)]);
        assert_eq!(reads.longest_us, 123.456);
    }

    #[test]
    fn of_a_mixture_both_count() {
        let mixed = DOCUMENT
            .replace("\"read\" :", "\"write\" : { \"total_ios\" : 5000, \"iops\" : 2500.0 }, \"read\" :");
        let both = parse(&mixed).unwrap();
        assert_eq!((both.count, both.iops, both.latencies_us.len()), (25000, 12500.0, 2));
    }

    #[test]
    fn what_fio_could_not_read_is_a_failure() {
        assert!(parse(&DOCUMENT.replace("\"error\" : 0", "\"error\" : 5")).is_err());
        assert!(parse(&DOCUMENT.replace("20000,", "0,")).is_err());
        assert!(parse("fio: failed").is_err());
    }

    #[test]
    fn a_program_that_is_not_there_has_no_version() {
        assert_eq!(version("causeway-no-such-program"), None);
    }
}
