//! QEMU as a process with a folder.

use crate::Error;
use crate::builder::{CONSOLE_LOG, QEMU_LOG};
use crate::process::spawn_tied;
use crate::stream::Deadline;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// From QEMU's start to its connections; more where two processors have a lot to do.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// For the reason of an error to show: a connection ends a moment before its process does.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a wait looks at what can only be asked.
const WAIT_STEP: Duration = Duration::from_millis(2);

/// Lines of a log that a message shows.
const TAIL_LINES: usize = 80;

/// A QEMU. Dropped, it is killed and reaped, and its folder is removed, unless the thread is panicking.
pub(crate) struct Machine {
    qemu: Child,
    folder: PathBuf,
}

impl Machine {
    pub(crate) fn start(program: &Path, arguments: &[OsString], folder: PathBuf) -> Result<Self, Error> {
        let qemu = spawn_tied(program, arguments, create(&folder.join(QEMU_LOG))?)?;
        Ok(Self { qemu, folder })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.qemu.id()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for QEMU to connect, or to end.
    pub(crate) fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream, Error> {
        let deadline = Deadline::new(CONNECT_TIMEOUT);
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(Error::io("cannot set up QEMU's connection"))?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(Error::io("cannot accept QEMU's connection")(error)),
            }
            if let Some(status) = self.ended()? {
                return Err(self.end_of("its connection", status));
            }
            if deadline.is_over() {
                return Err(deadline.timed_out("QEMU's connection", self.last_words().as_bytes()));
            }
            std::thread::sleep(WAIT_STEP);
        }
    }

    pub(crate) fn wait_end(&mut self, timeout: Duration) -> Result<ExitStatus, Error> {
        let deadline = Deadline::new(timeout);
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if deadline.is_over() {
                return Err(deadline.timed_out("QEMU's end", self.last_words().as_bytes()));
            }
            std::thread::sleep(WAIT_STEP);
        }
    }

    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.qemu.try_wait().map_err(Error::io("cannot wait for QEMU"))
    }

    /// Adds to an error what the logs know; one of a connection that QEMU's end has closed becomes [`Error::Ended`].
    pub(crate) fn explain(&mut self, what: &str, error: Error) -> Error {
        match error {
            Error::TimedOut { what, waited, output } => {
                Error::TimedOut { what, waited, output: format!("{output}\n{}", self.last_words()) }
            }
            Error::Qmp(qmp::Error::Silent { what, patience }) => {
                Error::TimedOut { what, waited: patience, output: self.last_words() }
            }
            error @ (Error::Io { .. } | Error::Qmp(qmp::Error::Ended { .. })) => {
                match self.wait_end(END_TIMEOUT) {
                    Ok(status) => self.end_of(what, status),
                    Err(_) => error,
                }
            }
            other => other,
        }
    }

    /// The ends of QEMU's and the console's logs.
    pub(crate) fn last_words(&self) -> String {
        [QEMU_LOG, CONSOLE_LOG].map(|name| tail(&self.folder.join(name))).concat()
    }

    pub(crate) fn end_of(&self, what: &str, status: ExitStatus) -> Error {
        Error::Ended { what: what.into(), status: status.to_string(), output: self.last_words() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and was reaped.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "the machine's logs are in {}", self.folder.display());
        } else {
            // What cannot be removed is in the temporary folder.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// A socket for QEMU to connect to.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let listener = UnixListener::bind(path).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(Error::io(format!("cannot listen at {}", path.display())))
}

pub(crate) fn create(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(Error::io(format!("cannot create {}", path.display())))
}

/// A log as far as there is one.
pub(crate) fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn tail(path: &Path) -> String {
    let text = read_lossy(path);
    let lines: Vec<_> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    last.iter().map(|line| format!("    {line}\n")).collect()
}
