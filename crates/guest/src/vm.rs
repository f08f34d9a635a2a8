//! A running machine.

use crate::builder::{CONSOLE_LOG, QMP_LOG, QMP_SOCKET, SECOND_QMP_SOCKET, SHELL_LOG, SHELL_SOCKET};
use crate::machine::{Machine, create, listen, read_lossy};
use crate::shell::Shell;
use crate::{Builder, Error, Event, Job, Kit, Message, Output, Qmp, parse_kernel_log};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// From QEMU's start to the first command: a few seconds under TCG; more where two processors have a lot to do.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// For [`Vm::run`]. A command that is known to take longer has [`Vm::run_for`].
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long QEMU may take for an answer. A processor that waits for a register read of a vfio-user device holds QEMU's
/// lock for up to five seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// From `poweroff` to QEMU's end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// A machine. Dropped, it is killed and reaped; its folder goes too, unless the thread is panicking.
pub struct Vm {
    // Dropped in this order: QEMU's end is last.
    shell: Shell,
    qmp: Qmp,
    machine: Machine,
}

impl Vm {
    /// Describes a machine made of `kit`.
    pub fn builder(kit: &Kit) -> Builder {
        Builder::new(kit)
    }

    pub(crate) fn launch(qemu: &Path, arguments: &[OsString], folder: PathBuf) -> Result<Self, Error> {
        // QEMU connects to us: then there is no waiting for its sockets to appear.
        let [shell, qmp] = [SHELL_SOCKET, QMP_SOCKET].map(|name| listen(&folder.join(name)));
        let (shell, qmp) = (shell?, qmp?);
        let mut machine = Machine::start(qemu, arguments, folder)?;
        let shell = Shell::new(machine.accept(&shell)?, create(&machine.folder().join(SHELL_LOG))?);
        let log = create(&machine.folder().join(QMP_LOG))?;
        let qmp = Qmp::greet(machine.accept(&qmp)?, ANSWER_TIMEOUT, Some(log));
        let qmp = qmp.map_err(|error| machine.explain("QMP", error.into()))?;
        Ok(Self { shell, qmp, machine })
    }

    /// Waits until the guest takes commands, after its start or after a reset; returns its kernel's version.
    pub fn wait_ready(&mut self) -> Result<String, Error> {
        self.wait_ready_for(START_TIMEOUT)
    }

    /// [`Vm::wait_ready`] with a time-out of its own; it may be tried again.
    pub fn wait_ready_for(&mut self, timeout: Duration) -> Result<String, Error> {
        let ready = self.shell.wait_ready(timeout);
        ready.map_err(|error| self.explain("the guest's shell", error))
    }

    /// Runs a command line of the guest's shell (busybox) to its end. At most a minute, then it is interrupted, which
    /// is an error; another exit status than 0 is none.
    pub fn run(&mut self, command: &str) -> Result<Output, Error> {
        self.run_for(RUN_TIMEOUT, command)
    }

    /// [`Vm::run`] with a time-out of its own.
    pub fn run_for(&mut self, timeout: Duration, command: &str) -> Result<Output, Error> {
        let output = self.shell.run(command, timeout);
        output.map_err(|error| self.explain(command, error))
    }

    /// Runs a command that has to succeed; returns what it printed.
    pub fn check(&mut self, command: &str) -> Result<String, Error> {
        self.check_for(RUN_TIMEOUT, command)
    }

    /// [`Vm::check`] with a time-out of its own.
    pub fn check_for(&mut self, timeout: Duration, command: &str) -> Result<String, Error> {
        let Output { status, text } = self.run_for(timeout, command)?;
        if status == 0 {
            Ok(text)
        } else {
            Err(Error::Failed { command: command.into(), status, output: text })
        }
    }

    /// Runs a command in the guest again and again until it succeeds; returns what it printed then.
    pub fn wait_for(&mut self, timeout: Duration, command: &str) -> Result<String, Error> {
        self.check_for(timeout, &format!("until text=$({command}); do usleep 10000; done; echo \"$text\""))
    }

    /// Starts a command that goes on while others run. [`Vm::wait`] has its output.
    pub fn start(&mut self, command: &str) -> Result<Job, Error> {
        self.shell.start(command)
    }

    /// Waits for the end of a started command.
    pub fn wait(&mut self, job: Job, timeout: Duration) -> Result<Output, Error> {
        let status = self.shell.wait_job(&job, timeout);
        let status = status.map_err(|error| self.explain(&job.command, error))?;
        let text = self.check(&format!("cat /run/job.{key}; rm /run/job.{key}", key = job.key))?;
        Ok(Output { status, text })
    }

    /// Whether a started command has ended.
    pub fn has_ended(&mut self, job: &Job) -> Result<bool, Error> {
        self.shell.has_ended(job)
    }

    /// QEMU's machine protocol.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// A second QMP socket, for the program under test. It takes one connection at a time.
    pub fn second_qmp(&self) -> PathBuf {
        self.machine.folder().join(SECOND_QMP_SOCKET)
    }

    /// Plugs a device in, described as `-device` has it in JSON: `{"driver": .., "id": .., "bus": "rp1"}`.
    pub fn hot_add(&mut self, device: Value) -> Result<(), Error> {
        Ok(self.qmp.execute("device_add", device).map(drop)?)
    }

    /// Asks the guest to let a device go, and waits until QEMU says that it is gone.
    pub fn hot_remove(&mut self, id: &str, timeout: Duration) -> Result<Event, Error> {
        self.qmp.execute("device_del", json!({ "id": id }))?;
        Ok(self.qmp.wait_event("DEVICE_DELETED", timeout, |data| data["device"] == id)?)
    }

    /// What the guest's kernel has said, asked from the guest.
    pub fn kernel_log(&mut self) -> Result<Vec<Message>, Error> {
        Ok(parse_kernel_log(&self.check("dmesg -r")?))
    }

    /// Those of the guest's kernel messages that are [`Message::is_trouble`].
    pub fn kernel_trouble(&mut self) -> Result<Vec<Message>, Error> {
        Ok(self.kernel_log()?.into_iter().filter(Message::is_trouble).collect())
    }

    /// What came from the guest's console, firmware and boot loader included: there also when the guest takes no
    /// commands.
    pub fn console(&self) -> String {
        read_lossy(&self.machine.folder().join(CONSOLE_LOG))
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.machine.pid()
    }

    /// The machine's folder, for sockets and images as well: it goes with the machine.
    pub fn folder(&self) -> &Path {
        self.machine.folder()
    }

    /// Powers the guest off and waits for QEMU's end, which has to be orderly.
    pub fn shutdown(mut self) -> Result<(), Error> {
        // The answer may be cut off by the power; QEMU's end counts.
        self.shell.start("sync; poweroff -f")?;
        let status = self.wait_end(SHUTDOWN_TIMEOUT)?;
        if status.success() {
            return Ok(());
        }
        Err(Error::Ended {
            what: "its end".into(),
            status: status.to_string(),
            output: self.machine.last_words(),
        })
    }

    /// Waits for QEMU's end.
    pub fn wait_end(&mut self, timeout: Duration) -> Result<ExitStatus, Error> {
        self.machine.wait_end(timeout)
    }

    /// How QEMU ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.machine.ended()
    }

    /// What the logs know about an error.
    fn explain(&mut self, what: &str, error: Error) -> Error {
        self.machine.explain(what, error)
    }
}
