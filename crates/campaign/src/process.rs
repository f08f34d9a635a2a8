//! Programs under test: started, listened to, killed by pid.

use crate::Error;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines of a program kept in memory for [`Process::wait_line`] and for messages; the log file has all of them.
const KEPT_LINES: usize = 4096;

/// How often a wait for the end of a process looks.
const WAIT_STEP: Duration = Duration::from_millis(2);
/// How long after a program's end what it has printed is waited for, where something else has its pipes.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A running program, its standard output and error captured in memory and in a log. Dropped, it is killed and reaped.
pub struct Process {
    name: String,
    child: Child,
    lines: Arc<Lines>,
    log: PathBuf,
}

impl Process {
    /// Starts `command` and writes what it prints to `log`. It gets no standard input.
    pub fn spawn(command: Command, log: &Path) -> Result<Self, Error> {
        Self::spawn_with(command, log, Stdio::null())
    }

    /// Starts `command` with a pipe as its standard input, see [`Process::stdin`].
    pub fn spawn_piped(command: Command, log: &Path) -> Result<Self, Error> {
        Self::spawn_with(command, log, Stdio::piped())
    }

    fn spawn_with(mut command: Command, log: &Path, stdin: Stdio) -> Result<Self, Error> {
        let name = describe(&command);
        // Appended to: the second start of a node must not take away what the first one said.
        let file = File::options().append(true).create(true).open(log);
        let file = file.map_err(Error::io(format!("cannot create the log {}", log.display())))?;
        let file = Arc::new(Mutex::new(file));
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io(format!("cannot start {name}")))?;
        let lines = Arc::new(Lines::default());
        let stdout = child.stdout.take().expect("standard output was set to a pipe above");
        let stderr = child.stderr.take().expect("standard error was set to a pipe above");
        collect(stdout, true, &lines, &file);
        collect(stderr, false, &lines, &file);
        Ok(Self { name, child, lines, log: log.to_path_buf() })
    }

    /// The pid of the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The program's standard input, if it was started with [`Process::spawn_piped`].
    pub fn stdin(&mut self) -> Option<&mut ChildStdin> {
        self.child.stdin.as_mut()
    }

    /// Waits for a line on standard output that `matches` accepts, and returns it. Lines before it are dropped; those
    /// after it stay for the next call.
    pub fn wait_line(
        &mut self,
        what: &str,
        timeout: Duration,
        matches: impl Fn(&str) -> bool,
    ) -> Result<String, Error> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lines.lock();
        loop {
            while let Some(line) = state.output.pop_front() {
                if matches(&line) {
                    return Ok(line);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.output_ended || left.is_zero() {
                let output = state.tail();
                drop(state);
                let what = format!("{what} from {}", self.name);
                return Err(Error::TimedOut { what, waited: timeout - left, output });
            }
            let waited = self.lines.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a line on standard output or standard error that `matches` accepts, and returns it. Nothing is taken
    /// away: also a line that has been there for long is found, as long as it is among the last few thousand.
    pub fn wait_log(
        &mut self,
        what: &str,
        timeout: Duration,
        matches: impl Fn(&str) -> bool,
    ) -> Result<String, Error> {
        poll_until(&format!("{what} in the log of {}", self.name), timeout, || {
            Ok(self.lines.lock().recent.iter().find(|line| matches(line)).cloned())
        })
    }

    /// Kills it with SIGKILL and everything it has started, and waits until it is gone.
    pub fn kill_tree(&mut self) -> Result<(), Error> {
        let family = family(self.pid());
        for pid in &family {
            // One that has ended meanwhile needs no signal.
            let _ = kill(*pid);
        }
        self.wait(Duration::from_secs(20))?;
        poll_until("the end of killed processes", Duration::from_secs(20), || {
            Ok(family.iter().all(|pid| !is_running(*pid)).then_some(()))
        })
    }

    /// Kills it with SIGKILL, and not what it has started; waits until it is gone.
    pub fn kill(&mut self) -> Result<(), Error> {
        kill(self.pid())?;
        self.wait(Duration::from_secs(20)).map(drop)
    }

    /// Waits for the program's end.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.ended()? {
                self.wait_for_last_words();
                return Ok(status);
            }
            if Instant::now() >= deadline {
                let what = format!("the end of {}", self.name);
                return Err(Error::TimedOut { what, waited: timeout, output: self.tail() });
            }
            std::thread::sleep(WAIT_STEP);
        }
    }

    /// What it has printed may still be in the pipes. They stay open while something that it has started lives.
    fn wait_for_last_words(&self) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut state = self.lines.lock();
        while !(state.output_ended && state.errors_ended) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.lines.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the program's end; anything but exit code 0 is an error with its last words.
    pub fn wait_success(&mut self, timeout: Duration) -> Result<(), Error> {
        let status = self.wait(timeout)?;
        if status.success() {
            return Ok(());
        }
        Err(Error::Failed { program: self.name.clone(), status: status.to_string(), output: self.tail() })
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.try_wait().map_err(Error::io(format!("cannot wait for {}", self.name)))
    }

    /// SIGTERM, then the exit code; a program that dies of a signal has none and is an error.
    pub fn terminate(&mut self, timeout: Duration) -> Result<i32, Error> {
        signal(self.pid(), Signal::TERM)?;
        let status = self.wait(timeout)?;
        let by_signal =
            || Error::Failed { program: self.name.clone(), status: status.to_string(), output: self.tail() };
        status.code().ok_or_else(by_signal)
    }

    /// The last lines that it printed, standard error included.
    pub fn tail(&self) -> String {
        self.lines.lock().tail()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and was reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to one process.
pub fn signal(pid: u32, signal: Signal) -> Result<(), Error> {
    let id = i32::try_from(pid).ok().filter(|&pid| pid > 1).and_then(Pid::from_raw);
    let id = id.ok_or_else(|| Error::unexpected(format!("{pid} is not the pid of a program under test")))?;
    kill_process(id, signal).map_err(|errno| Error::io(format!("cannot signal {pid}"))(errno.into()))
}

/// `kill -STOP`.
pub fn stop(pid: u32) -> Result<(), Error> {
    signal(pid, Signal::STOP)
}

/// `kill -9`.
pub fn kill(pid: u32) -> Result<(), Error> {
    signal(pid, Signal::KILL)
}

/// Runs a command to its end and returns its standard output; anything but exit code 0 is an error.
pub fn run(mut command: Command) -> Result<String, Error> {
    let name = describe(&command);
    let output = command.stdin(Stdio::null()).output().map_err(Error::io(format!("cannot start {name}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut words = String::from_utf8_lossy(&output.stdout).into_owned();
    words.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::Failed { program: name, status: output.status.to_string(), output: words })
}

/// How a program ended that was expected to end.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

/// Runs a command to its end, whatever that is, with files NAME.out and NAME.err in `folder`. One that does not end
/// within `timeout` is killed, and an error.
pub fn run_to_end(
    mut command: Command,
    folder: &Path,
    name: &str,
    timeout: Duration,
) -> Result<Outcome, Error> {
    let [out, err] = ["out", "err"].map(|ending| folder.join(format!("{name}.{ending}")));
    let create =
        |path: &Path| File::create(path).map_err(Error::io(format!("cannot create {}", path.display())));
    let read = |path: &Path| {
        let bytes = std::fs::read(path).map_err(Error::io(format!("cannot read {}", path.display())))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let name = describe(&command);
    command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
    let start = Instant::now();
    let mut child = command.spawn().map_err(Error::io(format!("cannot start {name}")))?;
    let ended = poll_until(&format!("the end of {name}"), timeout, || {
        child.try_wait().map_err(Error::io(format!("cannot wait for {name}")))
    });
    if let Err(error) = ended {
        let _ = child.kill();
        let _ = child.wait();
        return Err(Error::unexpected(format!("{error}{}{}", read(&out)?, read(&err)?)));
    }
    let took = start.elapsed();
    Ok(Outcome { code: ended?.code(), stdout: read(&out)?, stderr: read(&err)?, took })
}

/// A process and all that descends from it, itself first.
pub fn family(pid: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, stat_field(pid, 1)?.parse().ok()?))
        })
        .collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

/// Whether a process is there and not merely waiting to be reaped.
pub fn is_running(pid: u32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// Resident memory of a process, in KiB (`VmRSS`).
pub fn resident_kib(pid: u32) -> Result<u64, Error> {
    status_kib(pid, "VmRSS:")
}

/// What of it is the process's own, in KiB (`RssAnon`): neither the ledger nor parts of an image in memory, which are
/// mapped as huge pages once they are used enough.
pub fn anonymous_kib(pid: u32) -> Result<u64, Error> {
    status_kib(pid, "RssAnon:")
}

fn status_kib(pid: u32, name: &str) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(Error::io(format!("cannot read {path}")))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|number| number.parse().ok());
    number.ok_or_else(|| Error::unexpected(format!("{path} has no {name}")))
}

/// A field of `/proc/PID/stat`, counted from the state on: the name before it may hold spaces.
fn stat_field(pid: u32, index: usize) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    fields.split(' ').nth(index).map(str::to_owned)
}

/// Calls `attempt` until it gives something, at most for `timeout`. For what can only be asked, not awaited.
pub fn poll_until<T>(
    what: &str,
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt()? {
            return Ok(value);
        }
        if start.elapsed() >= timeout {
            return Err(Error::TimedOut { what: what.into(), waited: timeout, output: String::new() });
        }
        std::thread::sleep(WAIT_STEP);
    }
}

/// What a program has printed so far.
#[derive(Default)]
struct Lines {
    state: Mutex<LinesState>,
    changed: Condvar,
}

#[derive(Default)]
struct LinesState {
    /// Lines of standard output that nobody has waited for yet.
    output: VecDeque<String>,
    /// The last lines of both, for messages.
    recent: VecDeque<String>,
    output_ended: bool,
    errors_ended: bool,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, LinesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinesState {
    fn push(&mut self, line: String, is_output: bool) {
        push_bounded(&mut self.recent, line.clone());
        if is_output {
            push_bounded(&mut self.output, line);
        }
    }

    fn tail(&self) -> String {
        let first = self.recent.len().saturating_sub(30);
        self.recent.range(first..).map(|line| format!("    {line}\n")).collect()
    }
}

fn push_bounded(lines: &mut VecDeque<String>, line: String) {
    if lines.len() == KEPT_LINES {
        lines.pop_front();
    }
    lines.push_back(line);
}

/// A thread that ends with the pipe. A program's pipe that a grandchild holds open keeps it alive, and harms nothing.
fn collect(pipe: impl Read + Send + 'static, is_output: bool, lines: &Arc<Lines>, log: &Arc<Mutex<File>>) {
    let (lines, log) = (Arc::clone(lines), Arc::clone(log));
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            // A full disk must not stop the program under test: its pipe is read on, and the log has a gap.
            let _ = writeln!(log.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
            lines.lock().push(line, is_output);
            lines.changed.notify_all();
        }
        let mut state = lines.lock();
        state.output_ended |= is_output;
        state.errors_ended |= !is_output;
        drop(state);
        lines.changed.notify_all();
    });
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, name: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = std::env::temp_dir().join(format!("causeway-campaign-{}-{name}.log", std::process::id()));
        let process = Process::spawn(command, &log).unwrap();
        std::fs::remove_file(&log).unwrap();
        process
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn last_words_are_there_when_the_end_is() {
        for round in 0..200 {
            let mut process = shell("echo out; echo last >&2", &format!("last-{round}"));
            assert!(process.wait(LONG).unwrap().success());
            assert!(
                process.tail().contains("out") && process.tail().contains("last"),
                "{round}: {}",
                process.tail()
            );
        }
    }

    #[test]
    fn lines_are_awaited_in_order() {
        let mut process = shell("echo one; echo noise >&2; echo two; echo three; exit 3", "lines");
        assert_eq!(process.wait_line("two", LONG, |line| line.starts_with("tw")).unwrap(), "two");
        assert_eq!(process.wait_line("any", LONG, |_| true).unwrap(), "three");
        let error = process.wait_line("more", LONG, |_| true).unwrap_err();
        assert!(
            matches!(error, Error::TimedOut { waited, .. } if waited < LONG),
            "the end of output ends the wait"
        );
        assert_eq!(process.wait(LONG).unwrap().code(), Some(3));
    }

    #[test]
    fn terminate_tells_an_orderly_end_from_a_death() {
        let mut orderly = shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done", "orderly");
        orderly.wait_line("up", LONG, |line| line == "up").unwrap();
        assert_eq!(orderly.terminate(LONG).unwrap(), 0);
        let mut dying = shell("echo up; exec sleep 1000", "dying");
        dying.wait_line("up", LONG, |line| line == "up").unwrap();
        assert!(matches!(dying.terminate(LONG), Err(Error::Failed { .. })));
    }

    #[test]
    fn nobody_elses_process_is_signalled() {
        assert!(signal(0, Signal::KILL).is_err());
        assert!(signal(1, Signal::KILL).is_err());
        assert!(signal(u32::MAX, Signal::KILL).is_err());
    }
}
