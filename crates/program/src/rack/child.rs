//! One process of a rack, a node or the manager: it is started, watched, started again, and ended.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tracing::warn;

use super::log::{LogStyle, NodeLog};
use crate::exit::{Exit, Failure};
use crate::halt::Interrupt;
use crate::line::Line;

/// Between a death and the next start; doubles up to [`PAUSE_MAX`] while lives are shorter than that.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often somebody's patience is looked for while a node ends.
const POLL: Duration = Duration::from_millis(50);
/// How long a node may take to end in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// What a process of a rack is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Manager,
    Node,
}

impl Kind {
    /// The command that runs it, and what people call it.
    fn word(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Node => "node",
        }
    }

    /// The one of that name, in a sentence.
    pub(super) fn called(self, name: &str) -> String {
        match self {
            Self::Manager => "the manager".to_owned(),
            Self::Node => format!("the node {name}"),
        }
    }
}

/// What becomes of the processes, which have a number each.
pub(super) enum Event {
    /// One has printed the line of a function.
    Lends { process: usize, line: Line },
    /// One has printed where it serves something.
    Serves { process: usize, edge: String },
    /// One does not run, with this exit code.
    Refused { process: usize, code: u8 },
    /// One has ended by itself, in order.
    Ended,
}

impl Event {
    /// Whose it is, where that matters.
    pub(super) fn process(&self) -> Option<usize> {
        match self {
            Self::Lends { process, .. } | Self::Serves { process, .. } | Self::Refused { process, .. } => {
                Some(*process)
            }
            Self::Ended => None,
        }
    }
}

/// A process and the thread that looks after it.
pub(super) struct Supervised {
    kind: Kind,
    name: String,
    life: Arc<Life>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Life {
    state: Mutex<LifeState>,
    changed: Condvar,
}

#[derive(Default)]
struct LifeState {
    /// Present until it has been waited for, so that a signal meets nobody else.
    child: Option<Child>,
    stopping: bool,
    ended: bool,
    /// How its last life has ended.
    code: Option<u8>,
}

impl Life {
    fn lock(&self) -> MutexGuard<'_, LifeState> {
        // Nobody panics while holding it; if so, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.lock().child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) {
            // Fails only where it has just ended by itself.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits until `done`, or for `timeout` at most. True if it is done.
    fn wait(&self, timeout: Duration, done: impl Fn(&LifeState) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| !done(state));
        done(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Supervised {
    /// Starts what the file at `config` describes, and keeps it running. Its log has a column for names of that width.
    pub(super) fn start(
        index: usize,
        (kind, name): (Kind, String),
        config: PathBuf,
        log: (LogStyle, usize),
        events: Sender<Event>,
    ) -> Result<Self, Failure> {
        let life = Arc::new(Life::default());
        let log = NodeLog { style: log.0, node: name.clone(), width: log.1 };
        let keeper = Keeper { index, kind, log, config, events, life: Arc::clone(&life) };
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || keeper.run());
        let thread = thread.map_err(|error| Failure::io(format_args!("cannot look after {name}"), &error))?;
        Ok(Self { kind, name, life, thread })
    }

    /// What it is, in a sentence.
    pub(super) fn called(&self) -> String {
        self.kind.called(&self.name)
    }

    /// Whether it is a node.
    pub(super) fn is_node(&self) -> bool {
        self.kind == Kind::Node
    }

    /// Whether it has ended and stays so.
    pub(super) fn has_ended(&self) -> bool {
        self.life.lock().ended
    }

    /// Ends it in order, or by force when that takes too long or when somebody has asked for the end once more.
    ///
    /// # Errors
    /// It has not ended in order.
    pub(super) fn stop(self, impatience: &Interrupt) -> Result<(), Failure> {
        self.life.lock().stopping = true;
        self.life.changed.notify_all();
        self.life.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !impatience.is_set() && Instant::now() < deadline {
            if self.life.wait(POLL, |state| state.ended) {
                break;
            }
        }
        let Self { kind, name, life, thread } = self;
        let called = kind.called(&name);
        if !life.lock().ended {
            let why = if impatience.is_set() { "somebody cannot wait" } else { "it takes too long" };
            warn!(node = name, why, "has not ended in order and is killed");
            life.signal(Signal::KILL);
        }
        // It only waits for the process.
        let _ = thread.join();
        match life.lock().code {
            Some(0) => Ok(()),
            Some(code) => Err(not_in_order(&called, code)),
            None => Err(Failure::failed(format_args!("{called} was killed before it had ended in order"))),
        }
    }
}

/// The thread of a process. It lives as long as the process, which ends when this thread does.
struct Keeper {
    index: usize,
    kind: Kind,
    log: NodeLog,
    config: PathBuf,
    events: Sender<Event>,
    life: Arc<Life>,
}

impl Keeper {
    fn run(self) {
        let mut pause = PAUSE;
        loop {
            let started = Instant::now();
            let code = self.live_once();
            self.life.lock().code = code;
            if self.life.lock().stopping {
                break;
            }
            match code {
                Some(0) => {
                    self.tell(Event::Ended);
                    break;
                }
                Some(code) if [Exit::Usage, Exit::Refused].iter().any(|exit| exit.code() == code) => {
                    self.tell(Event::Refused { process: self.index, code });
                    break;
                }
                _ => {}
            }
            pause = if started.elapsed() > PAUSE_MAX { PAUSE } else { pause };
            let (what, seconds) = (self.kind.word(), pause.as_secs());
            self.log.write(&format!("the {what} has died and is started again in {seconds} s"));
            if self.life.wait(pause, |state| state.stopping) {
                // There is nothing left to end.
                self.life.lock().code = Some(0);
                break;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.life.lock().ended = true;
        self.life.changed.notify_all();
    }

    /// One life of the process; its exit code, `None` where a signal has killed it or it could not be started.
    fn live_once(&self) -> Option<u8> {
        let (stdout, log) = match self.spawn() {
            Ok(pipes) => pipes,
            // The rack is ending, and there is nothing to end.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Some(0),
            Err(error) => {
                self.log.write(&format!("cannot be started: {error}"));
                return None;
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| each_line(log, |line| self.log.write(&line)));
            each_line(stdout, |line| self.printed(line));
        });
        // Both pipes are closed, so it has ended or is about to.
        let child = self.life.lock().child.take();
        let status = child.and_then(|mut child| child.wait().ok())?;
        match (status.signal(), status.code()) {
            (Some(signal), _) => self.log.write(&format!("was killed by signal {signal}")),
            (None, Some(code)) if code != 0 => self.log.write(&format!("has ended with exit code {code}")),
            _ => {}
        }
        status.code().and_then(|code| u8::try_from(code).ok())
    }

    fn spawn(&self) -> std::io::Result<(std::process::ChildStdout, std::process::ChildStderr)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(self.log.style.arguments());
        command
            .args([self.kind.word(), "--end-with"])
            .arg(std::process::id().to_string())
            .arg("--config")
            .arg(&self.config);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Out of the terminal's group: on Ctrl-C it is we who end them, in order.
        command.process_group(0);
        let mut state = self.life.lock();
        if state.stopping {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let mut child = command.spawn()?;
        let pipes = child.stdout.take().zip(child.stderr.take()).ok_or(std::io::ErrorKind::BrokenPipe)?;
        state.child = Some(child);
        Ok(pipes)
    }

    fn printed(&self, text: String) {
        match text.parse() {
            Ok(line) => self.tell(Event::Lends { process: self.index, line }),
            Err(_) => self.tell(Event::Serves { process: self.index, edge: text }),
        }
    }

    /// Nobody listens any more only while the rack ends.
    fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// The end of a process in its own words: they are in the log.
fn not_in_order(called: &str, code: u8) -> Failure {
    let exits = [Exit::Usage, Exit::Refused, Exit::Unreachable];
    let exit = exits.into_iter().find(|exit| exit.code() == code).unwrap_or(Exit::Failed);
    Failure::new(exit, format_args!("{called} has ended with exit code {code}; its log is above"))
}

/// Reads to the end, whatever is written there: a node must not wait for somebody who has stopped to listen.
fn each_line(from: impl Read, mut take: impl FnMut(String)) {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    lines.for_each(|line| take(String::from_utf8_lossy(&line).into_owned()));
}
