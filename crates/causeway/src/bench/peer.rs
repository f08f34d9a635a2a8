//! The other side of comparisons: fio as the client, nbdkit as the server, both as they are installed.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::usage::CpuTime;
use crate::exit::Failure;
use crate::local::{Halt, Interrupt};

/// How long nbdkit may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// What is missing to compare with nbdkit, in words for a person; `None` when everything is there.
pub(super) fn missing() -> Option<String> {
    if version("nbdkit").is_none() {
        return Some("nbdkit is not installed; `make deps` installs it".to_owned());
    }
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
}

impl Nbdkit {
    /// Serves `image` with the settings that nbdkit has by itself.
    pub(super) fn start(image: &Path, interrupt: &Interrupt) -> Result<Self, Halt> {
        let address = free_address().map_err(|error| Failure::io("cannot find a free TCP port", &error))?;
        let mut command = Command::new("nbdkit");
        command.args([
            "--foreground",
            "--ipaddr",
            "127.0.0.1",
            "--port",
            &address.port().to_string(),
            "file",
        ]);
        command.arg(image).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Failure::io("cannot start nbdkit", &error))?;
        let mut nbdkit = Self { child, address };
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
        format!("nbd://{}", self.address)
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
pub(super) struct Reads {
    /// How many there were.
    pub(super) count: u64,
    /// In a second.
    pub(super) iops: f64,
    /// Processor time of fio.
    pub(super) cpu: CpuTime,
    /// Half of them took at most so long.
    pub(super) p50_us: Option<f64>,
    /// 99 of 100.
    pub(super) p99_us: Option<f64>,
}

/// Runs fio: 4 KiB random reads from the NBD server at `uri`, `depth` under way, for `duration`.
pub(super) fn read(uri: &str, depth: u16, duration: Duration, folder: &Path) -> Result<Reads, Failure> {
    let mut command = Command::new("fio");
    command.args(["--name=causeway", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--norandommap"]);
    command.args(["--randrepeat=0", "--time_based", "--output-format=json"]);
    // Its engine may hand over completions late, so that only the whole latency means something.
    command.args(["--clat_percentiles=0", "--lat_percentiles=1"]);
    command.arg(format!("--uri={uri}")).arg(format!("--iodepth={depth}"));
    command.arg(format!("--runtime={}ms", duration.as_millis()));
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
fn parse(text: &str) -> Result<Reads, Failure> {
    let start = text.find('{').unwrap_or(0);
    let document: Document = serde_json::from_str(&text[start..])
        .map_err(|error| Failure::failed(format_args!("fio's output is not understood: {error}")))?;
    let job = document.jobs.first().ok_or_else(|| Failure::failed("fio's output has no job"))?;
    if job.error != 0 || job.read.total_ios == 0 {
        return Err(Failure::failed(format_args!("fio read nothing (error {})", job.error)));
    }
    // fio gives percents of the job's time.
    let cpu =
        |percent: f64| Duration::from_secs_f64((percent / 100.0 * job.job_runtime as f64 / 1e3).max(0.0));
    let percentile = |name: &str| job.read.lat_ns.percentile.get(name).map(|ns| ns / 1e3);
    Ok(Reads {
        count: job.read.total_ios,
        iops: job.read.iops,
        cpu: CpuTime { user: cpu(job.usr_cpu), system: cpu(job.sys_cpu) },
        p50_us: percentile("50.000000"),
        p99_us: percentile("99.000000"),
    })
}

#[derive(Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Direction,
    /// In milliseconds.
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    iops: f64,
    #[serde(default)]
    lat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"note: something
{ "fio version" : "fio-3.33", "jobs" : [ { "jobname" : "causeway", "error" : 0, "job_runtime" : 2000, "usr_cpu" : 10.0,
  "sys_cpu" : 40.0, "read" : { "total_ios" : 20000, "iops" : 10000.0,
  "lat_ns" : { "percentile" : { "50.000000" : 52000, "99.000000" : 99000 } } } } ] }"#;

    #[test]
    fn the_output_of_fio_is_understood() {
        let reads = parse(DOCUMENT).unwrap();
        let ms = Duration::from_millis;
        assert_eq!(reads.cpu, CpuTime { user: ms(200), system: ms(800) });
        assert_eq!((reads.count, reads.iops), (20000, 10000.0));
        assert_eq!((reads.p50_us, reads.p99_us), (Some(52.0), Some(99.0)));
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
