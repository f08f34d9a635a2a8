//! The program under test, by its command lines and its JSON.

use program::control::{ControlClient, Request, Response};
use program::status::{Card as CardStatus, Status};

use crate::Error;
use crate::process::{Process, poll_until, run};
use crate::tools;
use crate::world::{Machine, World};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Until a node is up, or a borrower usable, over a bad network on a busy machine.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Until a node that got SIGTERM has flushed and ended.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The program: `CAUSEWAY_BIN`, else the one in the target directory that this test was built in, else built there now.
pub fn binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("CAUSEWAY_BIN").map(PathBuf::from) {
        let missing = || Error::unexpected(format!("CAUSEWAY_BIN={} is not a file", path.display()));
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let test = std::env::current_exe().map_err(Error::io("cannot find the test executable"))?;
    // TARGET/PROFILE/deps/TEST: the program lies in TARGET/PROFILE.
    let profile =
        test.ancestors().nth(2).ok_or_else(|| Error::unexpected("the test executable lies nowhere"))?;
    let program = profile.join("causeway");
    if !program.is_file() {
        build(profile)?;
    }
    let missing = || Error::unexpected(format!("cargo built no {}; set CAUSEWAY_BIN", program.display()));
    if program.is_file() { Ok(program.clone()) } else { Err(missing()) }
}

fn build(profile: &Path) -> Result<(), Error> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "-p", "causeway"]);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    if let Some(target) = profile.parent() {
        command.arg("--target-dir").arg(target);
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    run(command).map(drop)
}

/// A running `causeway lend`.
pub struct Lender {
    /// The node's process.
    pub process: Process,
    /// One loan line a source.
    pub lines: Vec<String>,
}

impl Lender {
    /// Starts it as node `lender` and waits for its lines. Its state is kept in `MACHINE/state/lender`, so that a
    /// second start there is a restart.
    pub fn start(machine: &Machine, sources: &[&str], arguments: &[&str]) -> Result<Self, Error> {
        Self::start_as(machine, "lender", sources, arguments)
    }

    /// The same under another name, with state of its own.
    pub fn start_as(
        machine: &Machine,
        name: &str,
        sources: &[&str],
        arguments: &[&str],
    ) -> Result<Self, Error> {
        Self::start_by(machine, name, sources.len(), lend_command(machine, name, sources, arguments)?)
    }

    /// The same by this command, which prints so many lines.
    pub fn start_by(machine: &Machine, name: &str, lines: usize, command: Command) -> Result<Self, Error> {
        let mut process = machine.spawn(name, command)?;
        let is_line = |line: &str| line.starts_with("causeway://");
        let lines = (0..lines)
            .map(|number| process.wait_line(&format!("line {number}"), START_TIMEOUT, is_line))
            .collect::<Result<_, _>>()?;
        Ok(Self { process, lines })
    }

    /// The same with the image `MACHINE/NAME.img`, of so many bytes. It is made unless an earlier start has made it.
    pub fn start_image(machine: &Machine, name: &str, bytes: u64) -> Result<Self, Error> {
        let image = machine.dir().join(format!("{name}.img"));
        if !image.exists() {
            tools::empty_image(&image, bytes)?;
        }
        Self::start_as(machine, name, &[&image.to_string_lossy()], &[])
    }
}

/// `causeway lend` as node `name`, listening at all of the machine's addresses unless `arguments` say where.
pub fn lend_command(
    machine: &Machine,
    name: &str,
    sources: &[&str],
    arguments: &[&str],
) -> Result<Command, Error> {
    let mut command = machine.command(binary()?);
    lend_with(&mut command, machine, name, sources, arguments);
    Ok(command)
}

/// The same where the system has no io_uring.
pub fn lend_command_without_ring(
    machine: &Machine,
    name: &str,
    sources: &[&str],
    arguments: &[&str],
) -> Result<Command, Error> {
    let mut command = machine.command("python3");
    command.args(["-c", WITHOUT_RING]).arg(binary()?);
    lend_with(&mut command, machine, name, sources, arguments);
    Ok(command)
}

/// Becomes the program of its arguments, for which io_uring_setup fails with EPERM: a filter, as containers have one.
const WITHOUT_RING: &str = r#"
import ctypes, os, struct, sys
LOAD_NUMBER, IS_IO_URING_SETUP = (0x20, 0, 0, 0), (0x15, 0, 1, 425)
ERROR, ALLOW = (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)
steps = b"".join(struct.pack("HBBI", *step) for step in (LOAD_NUMBER, IS_IO_URING_SETUP, ERROR, ALLOW))
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("steps", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(4, steps)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#;

fn lend_with(command: &mut Command, machine: &Machine, name: &str, sources: &[&str], arguments: &[&str]) {
    command.arg("lend").args(sources).args(["--name", name]);
    command.arg("--state-dir").arg(state_dir(machine, name));
    if !arguments.contains(&"--listen") {
        command.args(machine.lends_at());
    }
    command.args(arguments);
}

/// A running `causeway borrow --nbd`.
pub struct Borrower {
    /// The node's process.
    pub process: Process,
    /// What it printed: an NBD address.
    pub uri: String,
    /// The socket's path, the same inside and outside of the machine.
    pub socket: PathBuf,
}

impl Borrower {
    /// Starts it as node `borrower` and waits until its edge is usable. The line goes by a file, out of the process
    /// list.
    pub fn start(machine: &Machine, line: &str, arguments: &[&str]) -> Result<Self, Error> {
        Self::start_as(machine, "borrower", line, arguments)
    }

    /// The same under another name, with a socket and state of its own.
    pub fn start_as(machine: &Machine, name: &str, line: &str, arguments: &[&str]) -> Result<Self, Error> {
        let mut borrower = Self::begin(machine, name, line, arguments)?;
        borrower.wait_usable(START_TIMEOUT)?;
        Ok(borrower)
    }

    /// Starts it and does not wait: see [`Borrower::wait_usable`].
    pub fn begin(machine: &Machine, name: &str, line: &str, arguments: &[&str]) -> Result<Self, Error> {
        let process = machine.spawn(name, borrow_command(machine, name, line, arguments)?)?;
        let socket = borrower_socket(machine, name);
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        Ok(Self { process, uri, socket })
    }

    /// Waits until it has printed its edge.
    pub fn wait_usable(&mut self, timeout: Duration) -> Result<(), Error> {
        let line = self.process.wait_line("its edge", timeout, |line| line.starts_with("nbd+unix://"))?;
        if line == self.uri {
            return Ok(());
        }
        Err(Error::unexpected(format!("the borrower printed {line}, not {}", self.uri)))
    }
}

/// A running `causeway borrow --vm`.
pub struct Slot {
    /// The node's process.
    pub process: Process,
    /// The socket's path, the same inside and outside of the machine.
    pub socket: PathBuf,
}

impl Slot {
    /// Starts it as node `name` and waits until a virtual machine may connect.
    pub fn start_as(machine: &Machine, name: &str, line: &str, arguments: &[&str]) -> Result<Self, Error> {
        let socket = borrower_socket(machine, name);
        let mut process = machine.spawn(name, slot_command(machine, name, line, arguments)?)?;
        let printed = process.wait_line("its slot", START_TIMEOUT, |line| line.starts_with("vfio-user:"))?;
        let expected = format!("vfio-user:{}", socket.display());
        if printed == expected {
            return Ok(Self { process, socket });
        }
        Err(Error::unexpected(format!("the borrower printed {printed}, not {expected}")))
    }

    /// The device, as QEMU has it in JSON, at one of its root ports.
    pub fn device(&self, id: &str, port: &str) -> Value {
        serde_json::json!({
            "driver": "vfio-user-pci", "id": id, "bus": port,
            "socket": { "type": "unix", "path": self.socket.to_string_lossy() },
        })
    }
}

/// How most tests of a slot begin: the right machine lends `source` as node `lender`, and node `slot` of the left one
/// has a slot for it.
pub fn start_slot(world: &World, source: &str) -> Result<(Lender, Slot), Error> {
    let lender = Lender::start(world.right(), &[source], &[])?;
    let slot = Slot::start_as(world.left(), "slot", &lender.lines[0], &[])?;
    Ok((lender, slot))
}

/// `causeway borrow --vm` as node `name`, the line in a file.
pub fn slot_command(machine: &Machine, name: &str, line: &str, arguments: &[&str]) -> Result<Command, Error> {
    borrow_command_to(machine, name, line, "--vm", arguments)
}

/// Where [`Borrower`] `name` has its edge.
pub fn borrower_socket(machine: &Machine, name: &str) -> PathBuf {
    machine.dir().join(format!("{name}.sock"))
}

/// `causeway borrow --nbd` as node `name`, the line in a file.
pub fn borrow_command(
    machine: &Machine,
    name: &str,
    line: &str,
    arguments: &[&str],
) -> Result<Command, Error> {
    borrow_command_to(machine, name, line, "--nbd", arguments)
}

fn borrow_command_to(
    machine: &Machine,
    name: &str,
    line: &str,
    edge: &str,
    arguments: &[&str],
) -> Result<Command, Error> {
    let line_file = machine.dir().join(format!("{name}.line"));
    std::fs::write(&line_file, line).map_err(Error::io(format!("cannot write {}", line_file.display())))?;
    let mut command = machine.command(binary()?);
    command.arg("borrow").arg(format!("@{}", line_file.display()));
    command.arg(edge).arg(borrower_socket(machine, name)).args(["--name", name]);
    command.arg("--state-dir").arg(state_dir(machine, name)).args(arguments);
    if !arguments.contains(&"--listen") && !arguments.contains(&"--ethernet") {
        command.args(machine.borrows_at());
    }
    Ok(command)
}

/// Where the node `name` of a command line keeps its state.
pub fn state_dir(machine: &Machine, name: &str) -> PathBuf {
    machine.dir().join("state").join(name)
}

/// `causeway status -o json` of the node `name` in `machine`.
pub fn status(machine: &Machine, name: &str) -> Result<Value, Error> {
    let mut command = machine.command(binary()?);
    command.args(["status", "--name", name, "-o", "json"]);
    let text = run(command)?;
    let status: Value = serde_json::from_str(&text).map_err(|error| {
        Error::unexpected(format!("status -o json of {name} is not JSON: {error}\n{text}"))
    })?;
    match status["version"].as_u64() {
        Some(1) => Ok(status),
        _ => Err(Error::unexpected(format!("status of {name} does not say version 1:\n{text}"))),
    }
}

/// A number in a status, by JSON pointer; what is missing is an error.
pub fn number(status: &Value, pointer: &str) -> Result<u64, Error> {
    let value = status.pointer(pointer).and_then(Value::as_u64);
    value.ok_or_else(|| Error::unexpected(format!("no number {pointer} in {status}")))
}

/// A node's first card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Its process; none while the agent replaces it.
    pub pid: Option<u32>,
    /// Its generation.
    pub generation: u64,
    /// How often the agent has started another one.
    pub restarts: u64,
    /// How long the last recovery took, in seconds.
    pub last_recovery_s: Option<f64>,
}

/// The first card in a status.
pub fn card(status: &Value) -> Result<Card, Error> {
    let card = &status["cards"][0];
    let parsed = || {
        Some(Card {
            pid: card["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()),
            generation: card["generation"].as_u64()?,
            restarts: card["restarts"].as_u64()?,
            last_recovery_s: card["last_recovery_s"].as_f64(),
        })
    };
    parsed().ok_or_else(|| Error::unexpected(format!("a status without a card: {status}")))
}

/// Kills the card of a node with SIGKILL, from outside and by pid, and waits until its successor is there.
pub fn kill_card(machine: &Machine, name: &str, timeout: Duration) -> Result<Card, Error> {
    let before = card(&status(machine, name)?)?;
    let pid =
        before.pid.ok_or_else(|| Error::unexpected(format!("{name} has no card to kill: {before:?}")))?;
    crate::process::kill(pid)?;
    poll_until(&format!("a new card of {name} after {before:?}"), timeout, || {
        // While the old card is being reaped, its pid may still be the one reported, or none.
        let now = status(machine, name).and_then(|status| card(&status)).ok();
        Ok(now.filter(|now| now.pid.is_some_and(|now| now != pid) && now.generation > before.generation))
    })
}

/// Waits until a card stands by at a node, and returns its process.
pub fn wait_standby(machine: &Machine, name: &str, timeout: Duration) -> Result<u32, Error> {
    poll_until(&format!("a card of {name} that stands by"), timeout, || {
        let pid = status(machine, name)?["cards"][0]["standby_pid"].as_u64();
        Ok(pid.and_then(|pid| u32::try_from(pid).ok()))
    })
}

/// A node's card by way of the control socket, without starting a program for each question: for campaigns of
/// thousands of kills.
pub struct Watch {
    name: String,
    control: ControlClient,
}

impl Watch {
    /// Of the node `name` in `machine`.
    pub fn new(machine: &Machine, name: &str) -> Self {
        let socket = machine.dir().join("run/causeway").join(format!("{name}.sock"));
        Self { name: name.to_owned(), control: ControlClient::new(&socket) }
    }

    /// The node's status.
    pub fn status(&self) -> Result<Status, Error> {
        let wrong =
            |what: String| Error::unexpected(format!("{} answered its status with {what}", self.name));
        match self.control.call(&Request::Status) {
            Ok(Response::Status { status }) => Ok(*status),
            Ok(other) => Err(wrong(format!("{other:?}"))),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// The first card.
    pub fn card(&self) -> Result<CardStatus, Error> {
        let card = self.status()?.cards.into_iter().next();
        card.ok_or_else(|| Error::unexpected(format!("the status of {} has no card", self.name)))
    }

    /// Waits for a card of a later generation than `generation` that has a process.
    pub fn successor(&self, generation: u64, timeout: Duration) -> Result<CardStatus, Error> {
        self.wait(generation, timeout, |card| card.pid.is_some())
    }

    /// Waits until a card of a later generation than `generation` serves.
    pub fn recovered(&self, generation: u64, timeout: Duration) -> Result<CardStatus, Error> {
        self.wait(generation, timeout, |card| card.state == "running")
    }

    fn wait(
        &self,
        generation: u64,
        timeout: Duration,
        is_there: impl Fn(&CardStatus) -> bool,
    ) -> Result<CardStatus, Error> {
        let what = format!("a card of {} after generation {generation}", self.name);
        poll_until(&what, timeout, || {
            let card = self.card()?;
            Ok(Some(card).filter(|card| card.generation > generation && is_there(card)))
        })
    }
}
