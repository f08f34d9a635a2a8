//! QEMU's machine protocol, as far as hot plug needs it: JSON values, a line each.
//!
//! A virtual processor that waits for a register holds QEMU's lock, so that answers can take seconds. Whoever uses this
//! must have nothing else to do: never a card, never the loop of a node.

mod plug;
mod stay;

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use serde_json::{Value, json};

pub(crate) use self::plug::Plug;

/// Longest line that is read, in bytes.
const MAX_LINE: usize = 16 << 20;
/// The first version with a vfio-user client.
const FIRST_VERSION: [u64; 3] = [10, 1, 0];

/// Why QEMU did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QmpError {
    #[error("cannot reach QEMU at {path}: {error}; is its machine running, with `-qmp \
             unix:{path},server=on,wait=off`?", path = path.display())]
    Connect { path: PathBuf, error: io::Error },
    #[error("QEMU did not say {what} within {} s", patience.as_secs())]
    Silent { what: String, patience: Duration },
    #[error("QEMU has ended the connection instead of saying {what}")]
    Ended { what: String },
    #[error("QEMU said what makes no sense: {0}")]
    Invalid(String),
    #[error("this is QEMU {}.{}.{}; vfio-user needs 10.1 or later", .0[0], .0[1], .0[2])]
    TooOld([u64; 3]),
    #[error(
        "{0} cannot be taken out of QEMU: its guest has not enabled it, and QEMU would end with an assertion; it stays \
         there, dead, until its machine is stopped"
    )]
    NotEnabled(String),
    #[error(
        "the machine waits for its state from elsewhere (-incoming), which a borrowed function does not come with; \
         attach the function when the machine runs"
    )]
    Incoming,
    #[error("cannot make an image in memory: {0}")]
    Image(io::Error),
    #[error("QEMU refused `{command}`: {description}")]
    Refused { command: String, class: String, description: String },
}

/// A connection to QEMU that has exchanged greetings.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: UnixStream,
    received: Vec<u8>,
    version: [u64; 3],
    patience: Duration,
}

impl Qmp {
    /// Connects to the socket at `path`; each answer may take as long as `patience`.
    pub(crate) fn connect(path: &Path, patience: Duration) -> Result<Self, QmpError> {
        match connect(path, patience) {
            Ok(stream) => Self::greet(stream, patience),
            Err(Errno::AGAIN) => Err(QmpError::Silent { what: "its greeting".to_owned(), patience }),
            Err(error) => Err(QmpError::Connect { path: path.to_owned(), error: error.into() }),
        }
    }

    fn greet(stream: UnixStream, patience: Duration) -> Result<Self, QmpError> {
        let mut qmp = Self { stream, received: Vec::new(), version: [0; 3], patience };
        let greeting = qmp.next_value("its greeting", Instant::now() + patience)?;
        let number = |name: &str| greeting["QMP"]["version"]["qemu"][name].as_u64();
        qmp.version = match (number("major"), number("minor"), number("micro")) {
            (Some(major), Some(minor), Some(micro)) => [major, minor, micro],
            _ => return Err(QmpError::Invalid(format!("its greeting is {greeting}"))),
        };
        if qmp.version < FIRST_VERSION {
            return Err(QmpError::TooOld(qmp.version));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns what it returns. Events are of no use here: the one that a device has gone does
    /// not come for such devices.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.execute_with(command, arguments, None)
    }

    /// The same, with a descriptor that QEMU gets.
    fn execute_with(
        &mut self,
        command: &str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value, QmpError> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let what = format!("anything to `{command}`");
        let deadline = Instant::now() + self.patience;
        self.limit_wait(&what, deadline)?;
        let sent = self.send(line.as_bytes(), descriptor);
        sent.map_err(|error| self.broken(&error, &what))?;
        loop {
            let mut value = self.next_value(&what, deadline)?;
            if value.get("event").is_some() {
                continue;
            } else if let Some(result) = value.get_mut("return") {
                return Ok(result.take());
            } else {
                let word = |name: &str| value["error"][name].as_str().unwrap_or("no reason").to_owned();
                let (class, description) = (word("class"), word("desc"));
                return Err(QmpError::Refused { command: command.to_owned(), class, description });
            }
        }
    }

    /// Sends a line; the descriptor goes with its first byte.
    fn send(&mut self, line: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let Some(descriptor) = descriptor else { return self.stream.write_all(line) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let pieces = [IoSlice::new(line)];
        let sent = net::sendmsg(&self.stream, &pieces, &mut control, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&line[sent..])
    }

    /// Executes a command of the human monitor; returns what it prints.
    pub(crate) fn human(&mut self, line: &str) -> Result<String, QmpError> {
        let text = self.execute("human-monitor-command", json!({ "command-line": line }))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    fn next_value(&mut self, what: &str, deadline: Instant) -> Result<Value, QmpError> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| QmpError::Invalid(error.to_string()));
            }
            if self.received.len() > MAX_LINE {
                return Err(QmpError::Invalid(format!("a line without end instead of {what}")));
            }
            self.limit_wait(what, deadline)?;
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(QmpError::Ended { what: what.to_owned() }),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error, what)),
            }
        }
    }

    fn limit_wait(&self, what: &str, deadline: Instant) -> Result<(), QmpError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeouts = (!left.is_zero())
            .then(|| self.stream.set_read_timeout(Some(left)).and(self.stream.set_write_timeout(Some(left))));
        match timeouts {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(self.broken(&error, what)),
            None => Err(QmpError::Silent { what: what.to_owned(), patience: self.patience }),
        }
    }

    fn broken(&self, error: &io::Error, what: &str) -> QmpError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                QmpError::Silent { what: what.to_owned(), patience: self.patience }
            }
            _ => QmpError::Ended { what: what.to_owned() },
        }
    }
}

/// Connects to the socket at `path`. Where as many wait as may, it takes until somebody is accepted: at most as long as
/// `patience`, and then it is `EAGAIN`.
fn connect(path: &Path, patience: Duration) -> Result<UnixStream, Errno> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: &str = r#"{"QMP":{"version":{"qemu":{"micro":3,"minor":1,"major":11}},"capabilities":[]}}
{"return":{}}
"#;

    /// A QEMU that has said all this after its greeting already, and says no more.
    pub(super) fn qemu(lines: &str) -> (Result<Qmp, QmpError>, UnixStream) {
        stranger(&format!("{GREETING}{lines}"))
    }

    /// Whoever has said all this already, and says no more.
    fn stranger(lines: &str) -> (Result<Qmp, QmpError>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines.as_bytes()).unwrap();
        (Qmp::greet(ours, Duration::from_millis(200)), theirs)
    }

    #[test]
    fn events_among_answers_are_left_out() {
        let rest = r#"{"event":"DEVICE_DELETED","data":{"device":"s0"}}
{"return":"text"}
{"error":{"class":"DeviceNotFound","desc":"no s1"}}
"#;
        let (qmp, _qemu) = qemu(rest);
        let mut qmp = qmp.unwrap();
        assert_eq!(qmp.human("info mtree -f").unwrap(), "text");
        let refused = qmp.execute("device_del", json!({ "id": "s1" })).unwrap_err();
        assert_eq!(refused.to_string(), "QEMU refused `device_del`: no s1");
        assert!(matches!(qmp.execute("stop", json!({})), Err(QmpError::Silent { .. })));
    }

    #[test]
    fn a_monitor_that_accepts_nobody_is_waited_for_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        net::listen(&listener, 0).unwrap();
        let patience = Duration::from_millis(50);
        // As many as may wait, and one more: whether they are let in or not, none says anything.
        let waiting: Vec<_> = (0..4).map(|_| connect(&path, patience)).collect();
        assert!(waiting.iter().any(|it| matches!(it, Err(Errno::AGAIN))), "{waiting:?}");
        assert!(matches!(Qmp::connect(&path, patience), Err(QmpError::Silent { .. })));
    }

    #[test]
    fn what_is_no_fit_qemu_is_refused_by_name() {
        assert!(matches!(stranger("hello\n").0, Err(QmpError::Invalid(_))));
        assert!(matches!(stranger("{}\n").0, Err(QmpError::Invalid(_))));
        let old = GREETING.replace("11", "9");
        assert_eq!(
            stranger(&old).0.unwrap_err().to_string(),
            "this is QEMU 9.1.3; vfio-user needs 10.1 or later"
        );
        let (qmp, theirs) = stranger(GREETING);
        drop(theirs);
        assert!(matches!(qmp.unwrap().human("x"), Err(QmpError::Ended { .. })));
        let nowhere = Qmp::connect(Path::new("/nonexistent/qmp"), Duration::from_secs(1)).unwrap_err();
        assert!(nowhere.to_string().contains("-qmp unix:/nonexistent/qmp,server=on,wait=off"), "{nowhere}");
    }
}
