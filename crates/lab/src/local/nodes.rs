//! Nodes that are children of the same program, reached as anybody would reach them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use program::control::{ControlClient, Impairment, Request, Response, SlotState};
use program::exit::Failure;
use program::halt::{Halt, Interrupt};
use program::status::{Card, Status};
use rustix::process::{Pid, Signal, kill_process};

use super::scratch::Scratch;

/// For whoever wants to see the network at work: two nodes of one machine share memory otherwise.
pub(crate) const NETWORK_ONLY: &str = "--no-shm";
/// How long a node may take until it prints what it serves.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to end in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// An answer takes the agent a part of a core that a card may need.
const SLOT_POLL: Duration = Duration::from_millis(10);
/// Bytes of a node's log that are shown when it fails.
const LOG_TAIL: u64 = 2000;

/// A running node; dropping it kills it.
pub(crate) struct Node {
    role: &'static str,
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
    control: PathBuf,
}

impl Node {
    /// Starts `causeway lend SOURCE` on `rails` rails of this machine, with more `options`, and returns it with the
    /// line it printed.
    pub(crate) fn lend(
        scratch: &Scratch,
        source: &Path,
        rails: u8,
        options: &[&str],
        interrupt: &Interrupt,
    ) -> Result<(Self, String), Halt> {
        let mut arguments: Vec<OsString> = vec!["lend".into(), source.into()];
        // The whole network 127.0.0.0/8 is this machine: two of its addresses are two rails.
        for rail in 1..=rails {
            arguments.extend(["--listen".into(), format!("127.0.0.{rail}").into()]);
        }
        arguments.extend(options.iter().map(OsString::from));
        Self::start(scratch, "lender", arguments, "causeway://", interrupt)
    }

    /// Starts `causeway lend` with all `sources` on one rail, and returns it with a line for each.
    pub(crate) fn lend_all(
        scratch: &Scratch,
        sources: &[OsString],
        options: &[&str],
        interrupt: &Interrupt,
    ) -> Result<(Self, Vec<String>), Halt> {
        let mut arguments: Vec<OsString> = vec!["lend".into()];
        arguments.extend(sources.iter().cloned());
        arguments.extend(["--listen".into(), "127.0.0.1".into()]);
        arguments.extend(options.iter().map(OsString::from));
        let (mut node, first) = Self::start(scratch, "lender", arguments, "causeway://", interrupt)?;
        let mut lines = vec![first];
        while lines.len() < sources.len() {
            lines.push(node.wait_line("causeway://", interrupt)?);
        }
        Ok((node, lines))
    }

    /// Starts `causeway borrow` with that line and more `options`, and returns it with the NBD socket it serves.
    pub(crate) fn borrow(
        scratch: &Scratch,
        line: &str,
        options: &[&str],
        interrupt: &Interrupt,
    ) -> Result<(Self, PathBuf), Halt> {
        let socket = scratch.join("nbd.sock");
        Self::borrow_at(scratch, line, ("--nbd", &socket, "nbd+unix://"), options, interrupt)
            .map(|node| (node, socket))
    }

    /// The same for a virtual machine, with the vfio-user socket it serves.
    pub(crate) fn borrow_for_vm(
        scratch: &Scratch,
        line: &str,
        options: &[&str],
        interrupt: &Interrupt,
    ) -> Result<(Self, PathBuf), Halt> {
        let socket = scratch.join("vm.sock");
        Self::borrow_at(scratch, line, ("--vm", &socket, "vfio-user:"), options, interrupt)
            .map(|node| (node, socket))
    }

    /// `edge` is its option, the socket, and what the line begins with that names it.
    fn borrow_at(
        scratch: &Scratch,
        line: &str,
        edge: (&str, &Path, &str),
        options: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let (option, socket, prints) = edge;
        let mut arguments: Vec<OsString> = vec!["borrow".into(), Self::line_file(scratch, line)?];
        arguments.extend([option.into(), socket.into()]);
        arguments.extend(options.iter().map(OsString::from));
        Self::start(scratch, "borrower", arguments, prints, interrupt).map(|(node, _edge)| node)
    }

    /// Keeps a line in a file, and returns the argument that names it: a key has no place in a list of processes.
    pub(crate) fn line_file(scratch: &Scratch, line: &str) -> Result<OsString, Failure> {
        Self::named_line_file(scratch, "line", line)
    }

    /// The same where there are several.
    pub(crate) fn named_line_file(scratch: &Scratch, name: &str, line: &str) -> Result<OsString, Failure> {
        let file = scratch.join(name);
        fs::write(&file, line).map_err(|error| Failure::io("cannot keep the line", &error))?;
        let mut argument = OsString::from("@");
        argument.push(&file);
        Ok(argument)
    }

    /// Starts the program with `arguments`, and returns it with the first line it prints that begins with `prints`.
    pub(crate) fn start(
        scratch: &Scratch,
        role: &'static str,
        arguments: Vec<OsString>,
        prints: &str,
        interrupt: &Interrupt,
    ) -> Result<(Self, String), Halt> {
        let mut arguments = arguments;
        arguments.extend(["--name".into(), name_of(role).into(), "--state-dir".into()]);
        arguments.push(scratch.join(&format!("{role}.state")).into());
        Self::launch(scratch, role, arguments, prints, interrupt)
    }

    /// Starts `causeway node` with a file of this text, but for name and state folder, and returns it with the first
    /// `count` lines it prints that begin with `prints`.
    pub(crate) fn start_node(
        scratch: &Scratch,
        role: &'static str,
        text: &str,
        (prints, count): (&str, usize),
        interrupt: &Interrupt,
    ) -> Result<(Self, Vec<String>), Halt> {
        let arguments = vec!["node".into(), "--config".into(), Self::config(scratch, role, text)?];
        let (mut node, first) = Self::launch(scratch, role, arguments, prints, interrupt)?;
        let mut lines = vec![first];
        while lines.len() < count {
            lines.push(node.wait_line(prints, interrupt)?);
        }
        Ok((node, lines))
    }

    /// Starts `causeway switch` with a file of this text, but for name and state folder.
    pub(crate) fn start_switch(
        scratch: &Scratch,
        role: &'static str,
        text: &str,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let arguments = vec!["switch".into(), "--config".into(), Self::config(scratch, role, text)?];
        Self::launch(scratch, role, arguments, "switch ", interrupt).map(|(node, _ready)| node)
    }

    /// Keeps a configuration file that names the role and its state folder; returns its path.
    fn config(scratch: &Scratch, role: &str, text: &str) -> Result<OsString, Failure> {
        let (file, name) = (scratch.join(&format!("{role}.toml")), name_of(role));
        let text = format!("name = '{name}'\nstate_dir = '{role}.state'\n{text}");
        fs::write(&file, text).map_err(|error| Failure::io("cannot keep a node's file", &error))?;
        Ok(file.into())
    }

    /// Starts the program with `arguments` and nothing else, and returns it with the first line it prints that begins
    /// with `prints`.
    pub(super) fn launch(
        scratch: &Scratch,
        role: &'static str,
        arguments: Vec<OsString>,
        prints: &str,
        interrupt: &Interrupt,
    ) -> Result<(Self, String), Halt> {
        let log = scratch.join(&format!("{role}.log"));
        let log_file =
            File::create(&log).map_err(|error| Failure::io("cannot create a log in our folder", &error))?;
        let mut command = Command::new(program()?);
        command.args(arguments).env("XDG_RUNTIME_DIR", scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        // Out of the terminal's group: on Ctrl-C it is we who end them, in order.
        command.process_group(0);
        let mut child =
            command.spawn().map_err(|error| Failure::io(format_args!("cannot start the {role}"), &error))?;
        let lines = read_lines(&mut child);
        let control = scratch.join("causeway").join(format!("{}.sock", name_of(role)));
        let mut node = Self { role, child, lines, log, control };
        let line = node.wait_line(prints, interrupt)?;
        Ok((node, line))
    }

    fn wait_line(&mut self, prefix: &str, interrupt: &Interrupt) -> Result<String, Halt> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            interrupt.check()?;
            match self.lines.recv_timeout(POLL) {
                Ok(line) if line.starts_with(prefix) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = START_TIMEOUT.as_secs();
                    return Err(self.failure(format_args!("serves nothing after {seconds} s")).into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().map_or_else(|error| error.to_string(), describe);
                    return Err(self.failure(format_args!("ended at its start: {status}")).into());
                }
            }
        }
    }

    /// Its agent's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `lender`, `borrower`, or what else it was started as.
    pub(crate) fn role(&self) -> &'static str {
        self.role
    }

    /// How it is doing.
    pub(crate) fn status(&self) -> Result<Status, Failure> {
        match ControlClient::new(&self.control).call(&Request::Status)? {
            Response::Status { status } => Ok(*status),
            other => Err(self.failure(format_args!("answers {other:?} when asked for its status"))),
        }
    }

    /// Attaches a function to a slot, or takes out what is there (`line` is `None`), and waits until that is done.
    pub(crate) fn set_slot(&self, slot: &str, line: Option<&str>) -> Result<(), Failure> {
        let control = ControlClient::new(&self.control);
        let slot = slot.to_owned();
        let (request, wanted) = match line {
            Some(line) => {
                (Request::Attach { slot: slot.clone(), line: line.to_owned() }, SlotState::Attached)
            }
            None => (Request::Detach { slot: slot.clone() }, SlotState::Vacant),
        };
        let mut response = control.call(&request)?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match response {
                Response::Slot { slot } if slot.state == wanted => return Ok(()),
                Response::Slot { .. } if Instant::now() < deadline => std::thread::sleep(SLOT_POLL),
                other => {
                    return Err(self.failure(format_args!("answers {other:?} when {slot} is to change")));
                }
            }
            response = control.call(&Request::Slot { slot: slot.clone() })?;
        }
    }

    /// How the loan in a slot is doing: `up`, or what else the status says; nothing where it says nothing of it.
    pub(crate) fn slot_state(&self, slot: &str) -> Result<String, Failure> {
        let loan = self.status()?.loans.into_iter().find(|loan| loan.slot.as_deref() == Some(slot));
        Ok(loan.map(|loan| loan.state).unwrap_or_default())
    }

    /// Has a rail treated badly, or well again.
    pub(crate) fn impair(&self, impairment: Impairment) -> Result<(), Failure> {
        match ControlClient::new(&self.control).call(&Request::Impair(impairment))? {
            Response::Done => Ok(()),
            Response::Refused { why } => Err(self.failure(format_args!("refuses to impair a rail: {why}"))),
            other => Err(self.failure(format_args!("answers {other:?} when asked to impair a rail"))),
        }
    }

    /// Its data-plane process.
    pub(crate) fn card(&self) -> Result<Card, Failure> {
        let card = self.status()?.cards.into_iter().next();
        card.ok_or_else(|| self.failure(format_args!("has no card in its status")))
    }

    /// Kills that process with SIGKILL, from outside. It must be a child of the node: a number alone may by now be
    /// somebody else's. Returns its process id.
    pub(crate) fn kill_card(&self, card: &Card) -> Result<u32, Failure> {
        let named = card.pid.ok_or_else(|| self.failure(format_args!("has no card that could be killed")))?;
        let pid = i32::try_from(named).ok().and_then(Pid::from_raw);
        let (Some(pid), true) = (pid, parent_of(named) == Some(self.child.id())) else {
            return Err(
                self.failure(format_args!("names process {named} as its card, which is not its child"))
            );
        };
        kill_process(pid, Signal::KILL)
            .map_err(|error| self.failure(format_args!("has a card that cannot be killed: {error}")))?;
        Ok(named)
    }

    /// Kills it with SIGKILL, and its card with it; returns its process id.
    pub(crate) fn kill(self) -> u32 {
        // Dropping it kills it and waits for it.
        self.pid()
    }

    /// Ends it as an operator would, with SIGTERM; it must end with 0.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        self.stop_unless(&|| false)
    }

    /// The same; it is killed if somebody `cannot_wait`.
    pub(crate) fn stop_unless(mut self, cannot_wait: &dyn Fn() -> bool) -> Result<(), Failure> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // A node that has ended already is found below.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(self.failure(format_args!("did not end in order: {}", describe(status))));
                }
                Ok(None) if cannot_wait() => {
                    return Err(
                        self.failure(format_args!("was killed, since somebody cannot wait for its end"))
                    );
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(None) => {
                    let seconds = STOP_TIMEOUT.as_secs();
                    return Err(self.failure(format_args!("is still there {seconds} s after SIGTERM")));
                }
                Err(error) => return Err(self.failure(format_args!("cannot be waited for: {error}"))),
            }
        }
    }

    /// What is wrong with it, and the end of its log.
    fn failure(&self, what: std::fmt::Arguments<'_>) -> Failure {
        let log = log_tail(&self.log).unwrap_or_default();
        let role = self.role;
        match log.trim() {
            "" => Failure::failed(format_args!("the {role} {what}")),
            log => Failure::failed(format_args!("the {role} {what}; the end of its log:\n{log}")),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its card dies with it. Both fail where it has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program's file.
pub(super) fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::io("cannot find the program itself", &error))
}

/// The name of the node in this role, in a folder of control sockets that has one of each.
pub(super) fn name_of(role: &str) -> String {
    format!("{role}-{}", std::process::id())
}

fn read_lines(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(out) = child.stdout.take() {
        // Ends when the node does, or when nobody listens any more.
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines();
            lines.map_while(Result::ok).take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
    }
    lines
}

/// The process that a process was started by (proc(5), the fourth field of `stat`; the second may hold anything but
/// ends at the last parenthesis).
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn log_tail(path: &Path) -> std::io::Result<String> {
    use std::io::{Seek, SeekFrom};
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(LOG_TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Cut to whole lines.
    Ok(match (start, text.split_once('\n')) {
        (1.., Some((_, rest))) => rest.to_owned(),
        _ => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_process_is_found() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(parent_of(child.id()), Some(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(parent_of(child.id()), None);
    }

    #[test]
    fn the_end_of_a_log_begins_with_a_whole_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "short\n").unwrap();
        assert_eq!(log_tail(file.path()).unwrap(), "short\n");
        let long: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        fs::write(file.path(), long).unwrap();
        let tail = log_tail(file.path()).unwrap();
        assert!(tail.starts_with("line ") && tail.ends_with("line 999\n") && tail.len() > 1900, "{tail}");
    }
}
