//! A client of QEMU's machine protocol, QMP: JSON values, a line each.
//!
//! A virtual processor that waits for a register holds QEMU's lock, so that answers can take seconds. Whoever uses this
//! must have nothing else to do: never a card, never the loop of a node.

use std::collections::VecDeque;
use std::fs::File;
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

/// Longest line that is read, in bytes.
const MAX_LINE: usize = 16 << 20;
/// Events kept for [`Qmp::wait_event`]; older ones are dropped.
const KEPT_EVENTS: usize = 1024;

/// The first version with a vfio-user client.
const FIRST_VERSION: [u64; 3] = [10, 1, 0];

/// Why QEMU did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nobody at the socket.
    #[error("cannot reach QEMU at {path}: {error}; is its machine running, with `-qmp \
             unix:{path},server=on,wait=off`?", path = path.display())]
    Connect {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It takes too long.
    #[error("QEMU did not say {what} within {} s", patience.as_secs())]
    Silent {
        /// What was awaited.
        what: String,
        /// For how long.
        patience: Duration,
    },
    /// It has closed the connection.
    #[error("QEMU has ended the connection instead of saying {what}")]
    Ended {
        /// What was awaited.
        what: String,
    },
    /// It has no vfio-user client.
    #[error("this is QEMU {}.{}.{}; vfio-user needs 10.1 or later", .0[0], .0[1], .0[2])]
    TooOld([u64; 3]),
    /// What came is not of the protocol.
    #[error("QEMU said what makes no sense: {0}")]
    Invalid(String),
    /// It does not want to.
    #[error("QEMU refused `{command}`: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's class of the error, such as `DeviceNotFound`.
        class: String,
        /// QEMU's words.
        description: String,
    },
}

/// Something that QEMU tells unasked.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Such as `DEVICE_DELETED`.
    pub name: String,
    /// Its data; null if there is none.
    pub data: Value,
}

/// A connection to QEMU that has exchanged greetings.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    received: Vec<u8>,
    events: VecDeque<Event>,
    version: [u64; 3],
    patience: Duration,
    log: Option<File>,
}

impl Qmp {
    /// Connects to the socket at `path`; each answer may take as long as `patience`.
    ///
    /// # Errors
    /// There is no QEMU, or it does not say what one says.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self, Error> {
        match connect(path, patience) {
            Ok(stream) => Self::greet(stream, patience, None),
            Err(Errno::AGAIN) => Err(Error::Silent { what: "its greeting".to_owned(), patience }),
            Err(error) => Err(Error::Connect { path: path.to_owned(), error: error.into() }),
        }
    }

    /// The same with a QEMU that has connected to us. What is said goes to `log`, too.
    ///
    /// # Errors
    /// It does not say what one says.
    pub fn greet(stream: UnixStream, patience: Duration, log: Option<File>) -> Result<Self, Error> {
        let (received, events) = (Vec::new(), VecDeque::new());
        let mut qmp = Self { stream, received, events, version: [0; 3], patience, log };
        let greeting = qmp.next_value("its greeting", Instant::now() + patience, patience)?;
        let number = |name: &str| greeting["QMP"]["version"]["qemu"][name].as_u64();
        qmp.version = match (number("major"), number("minor"), number("micro")) {
            (Some(major), Some(minor), Some(micro)) => [major, minor, micro],
            _ => return Err(Error::Invalid(format!("its greeting is {greeting}"))),
        };
        if qmp.version < FIRST_VERSION {
            return Err(Error::TooOld(qmp.version));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Major, minor, micro.
    pub fn version(&self) -> [u64; 3] {
        self.version
    }

    /// Executes a command and returns what it returns. Events that come meanwhile are kept.
    ///
    /// # Errors
    /// QEMU refuses, or cannot be heard.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        self.execute_with(command, arguments, None)
    }

    /// The same, with a descriptor that QEMU gets.
    ///
    /// # Errors
    /// As of [`Qmp::execute`].
    pub fn execute_with(
        &mut self,
        command: &str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value, Error> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let what = format!("anything to `{command}`");
        let (deadline, patience) = (Instant::now() + self.patience, self.patience);
        self.note("> ", line.as_bytes());
        self.limit_wait(&what, deadline, patience)?;
        let sent = self.send(line.as_bytes(), descriptor);
        sent.map_err(|error| broken(&error, &what, patience))?;
        loop {
            let mut value = self.next_value(&what, deadline, patience)?;
            if value.get("event").is_some() {
                self.keep(value);
            } else if let Some(result) = value.get_mut("return") {
                return Ok(result.take());
            } else {
                let word = |name: &str| value["error"][name].as_str().unwrap_or("no reason").to_owned();
                let (class, description) = (word("class"), word("desc"));
                return Err(Error::Refused { command: command.to_owned(), class, description });
            }
        }
    }

    /// Executes a command of the human monitor, such as `info pci`; returns what it prints.
    ///
    /// # Errors
    /// As of [`Qmp::execute`].
    pub fn human(&mut self, line: &str) -> Result<String, Error> {
        let text = self.execute("human-monitor-command", json!({ "command-line": line }))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits for an event of this name whose data `matches` accepts; one that came before counts. It is taken away,
    /// others stay.
    ///
    /// # Errors
    /// It does not come in time, or QEMU has ended.
    pub fn wait_event(
        &mut self,
        name: &str,
        patience: Duration,
        matches: impl Fn(&Value) -> bool,
    ) -> Result<Event, Error> {
        let deadline = Instant::now() + patience;
        loop {
            let found = self.events.iter().position(|event| event.name == name && matches(&event.data));
            if let Some(event) = found.and_then(|index| self.events.remove(index)) {
                return Ok(event);
            }
            let value = self.next_value(name, deadline, patience)?;
            self.keep(value);
        }
    }

    fn keep(&mut self, mut value: Value) {
        let Some(name) = value["event"].as_str().map(str::to_owned) else { return };
        if self.events.len() == KEPT_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { name, data: value["data"].take() });
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

    fn next_value(&mut self, what: &str, deadline: Instant, patience: Duration) -> Result<Value, Error> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                self.note("< ", &line);
                return serde_json::from_slice(&line).map_err(|error| Error::Invalid(error.to_string()));
            }
            if self.received.len() > MAX_LINE {
                return Err(Error::Invalid(format!("a line without end instead of {what}")));
            }
            self.limit_wait(what, deadline, patience)?;
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Error::Ended { what: what.to_owned() }),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error, what, patience)),
            }
        }
    }

    fn limit_wait(&self, what: &str, deadline: Instant, patience: Duration) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeouts = (!left.is_zero())
            .then(|| self.stream.set_read_timeout(Some(left)).and(self.stream.set_write_timeout(Some(left))));
        match timeouts {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(broken(&error, what, patience)),
            None => Err(Error::Silent { what: what.to_owned(), patience }),
        }
    }

    /// For people: what cannot be written down is lost.
    fn note(&mut self, whose: &str, line: &[u8]) {
        if let Some(log) = &mut self.log {
            let _ = log.write_all(whose.as_bytes()).and_then(|()| log.write_all(line));
        }
    }
}

fn broken(error: &io::Error, what: &str, patience: Duration) -> Error {
    let what = what.to_owned();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent { what, patience },
        _ => Error::Ended { what },
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

    /// Whoever has said all this already, and says no more.
    fn stranger(lines: &str) -> (Result<Qmp, Error>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines.as_bytes()).unwrap();
        (Qmp::greet(ours, Duration::from_millis(200), None), theirs)
    }

    #[test]
    fn events_among_answers_are_kept_and_found() {
        let rest = r#"{"event":"A","data":{"n":1}}
{"event":"A","data":{"n":2}}
{"return":"text"}
{"error":{"class":"DeviceNotFound","desc":"no s1"}}
"#;
        let (qmp, _qemu) = stranger(&format!("{GREETING}{rest}"));
        let mut qmp = qmp.unwrap();
        assert_eq!(qmp.version(), [11, 1, 3]);
        assert_eq!(qmp.human("info mtree -f").unwrap(), "text");
        let long = Duration::from_secs(20);
        assert_eq!(qmp.wait_event("A", long, |data| data["n"] == 2).unwrap().data["n"], 2);
        let refused = qmp.execute("device_del", json!({ "id": "s1" })).unwrap_err();
        assert_eq!(refused.to_string(), "QEMU refused `device_del`: no s1");
        assert_eq!(qmp.wait_event("A", long, |_| true).unwrap().data["n"], 1);
        let none = qmp.wait_event("A", Duration::from_millis(20), |_| true);
        assert!(matches!(none, Err(Error::Silent { .. })));
        assert!(matches!(qmp.execute("stop", json!({})), Err(Error::Silent { .. })));
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
        assert!(matches!(Qmp::connect(&path, patience), Err(Error::Silent { .. })));
    }

    #[test]
    fn what_is_no_qemu_is_refused_by_name() {
        assert!(matches!(stranger("hello\n").0, Err(Error::Invalid(_))));
        assert!(matches!(stranger("{}\n").0, Err(Error::Invalid(_))));
        let (qmp, theirs) = stranger(GREETING);
        drop(theirs);
        assert!(matches!(qmp.unwrap().human("x"), Err(Error::Ended { .. })));
        let nowhere = Qmp::connect(Path::new("/nonexistent/qmp"), Duration::from_secs(1)).unwrap_err();
        assert!(nowhere.to_string().contains("-qmp unix:/nonexistent/qmp,server=on,wait=off"), "{nowhere}");
    }
}
