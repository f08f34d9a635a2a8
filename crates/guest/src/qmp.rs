//! QEMU's machine protocol, QMP: JSON values, a line each.

use crate::Error;
use crate::stream::{Deadline, read_more};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Events kept for [`Qmp::wait_event`]; older ones are dropped.
const KEPT_EVENTS: usize = 1024;

/// The longest answer that is read.
const MAX_LINE: usize = 16 << 20;

/// How long QEMU may take for an answer. A processor that waits for a register read of a vfio-user device holds QEMU's
/// lock for up to five seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Something that QEMU tells unasked.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Such as `DEVICE_DELETED`.
    pub name: String,
    /// Its data; null if there is none.
    pub data: Value,
}

/// A connection to QEMU that has exchanged greetings.
pub struct Qmp {
    stream: UnixStream,
    log: File,
    received: Vec<u8>,
    events: VecDeque<Event>,
    version: [u64; 3],
}

impl Qmp {
    pub(crate) fn greet(stream: UnixStream, log: File) -> Result<Self, Error> {
        let mut qmp = Self { stream, log, received: Vec::new(), events: VecDeque::new(), version: [0; 3] };
        let greeting = qmp.next_value("QEMU's greeting", &Deadline::new(ANSWER_TIMEOUT))?;
        let version = &greeting["QMP"]["version"]["qemu"];
        let part = |name: &str| version[name].as_u64();
        let version = part("major").zip(part("minor")).zip(part("micro"));
        let ((major, minor), micro) =
            version.ok_or_else(|| Error::Unexpected(format!("QEMU's greeting is {greeting}")))?;
        qmp.version = [major, minor, micro];
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Major, minor, micro.
    pub fn version(&self) -> [u64; 3] {
        self.version
    }

    /// Executes a command; returns what it returns. Events that come meanwhile are kept.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.write_line(&request)?;
        let what = format!("QEMU's answer to `{command}`");
        let deadline = Deadline::new(ANSWER_TIMEOUT);
        loop {
            let mut value = self.next_value(&what, &deadline)?;
            if value.get("event").is_some() {
                self.keep(value);
            } else if let Some(result) = value.get_mut("return") {
                return Ok(result.take());
            } else {
                let word = |name: &str| value["error"][name].as_str().unwrap_or("unknown").to_owned();
                let (class, description) = (word("class"), word("desc"));
                return Err(Error::Refused { command: command.into(), class, description });
            }
        }
    }

    /// A command of the human monitor, such as `info pci`; returns what it prints.
    pub fn human(&mut self, line: &str) -> Result<String, Error> {
        let text = self.execute("human-monitor-command", json!({ "command-line": line }))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits for an event of this name whose data `matches` accepts; one that came before counts. It is taken away,
    /// others stay.
    pub fn wait_event(
        &mut self,
        name: &str,
        timeout: Duration,
        matches: impl Fn(&Value) -> bool,
    ) -> Result<Event, Error> {
        let deadline = Deadline::new(timeout);
        loop {
            let found = self.events.iter().position(|event| event.name == name && matches(&event.data));
            if let Some(event) = found.and_then(|index| self.events.remove(index)) {
                return Ok(event);
            }
            let value = self.next_value(&format!("QEMU's event {name}"), &deadline)?;
            self.keep(value);
        }
    }

    /// The events that nobody has waited for; they are taken away.
    pub fn take_events(&mut self) -> Result<Vec<Event>, Error> {
        // Its answer comes after all events until now.
        self.execute("query-status", json!({}))?;
        Ok(self.events.drain(..).collect())
    }

    fn keep(&mut self, mut value: Value) {
        let Some(name) = value["event"].as_str().map(str::to_owned) else { return };
        if self.events.len() == KEPT_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { name, data: value["data"].take() });
    }

    fn write_line(&mut self, value: &Value) -> Result<(), Error> {
        let line = format!("{value}\n");
        let _ = write!(self.log, "> {line}");
        self.stream.write_all(line.as_bytes()).map_err(Error::io(format!("cannot send {value} to QEMU")))
    }

    fn next_value(&mut self, what: &str, deadline: &Deadline) -> Result<Value, Error> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let _ = self.log.write_all(b"< ").and_then(|()| self.log.write_all(&line));
                let wrong = |error| Error::Unexpected(format!("not JSON from QEMU: {error}"));
                return serde_json::from_slice(&line).map_err(wrong);
            }
            if self.received.len() > MAX_LINE {
                return Err(Error::Unexpected(format!("an endless line from QEMU instead of {what}")));
            }
            read_more(&mut self.stream, &mut self.received, what, deadline)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that has said all this already.
    fn qemu(lines: &str) -> (Result<Qmp, Error>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines.as_bytes()).unwrap();
        (Qmp::greet(ours, File::create("/dev/null").unwrap()), theirs)
    }

    const GREETING: &str = r#"{"QMP":{"version":{"qemu":{"micro":3,"minor":1,"major":11},"package":""},"capabilities":[]}}
{"return":{}}
"#;

    #[test]
    fn events_among_answers_are_kept_and_found() {
        let rest = r#"{"event":"A","data":{"n":1}}
{"event":"A","data":{"n":2}}
{"return":{"x":5}}
{"error":{"class":"DeviceNotFound","desc":"no"}}
"#;
        let (qmp, _qemu) = qemu(&format!("{GREETING}{rest}"));
        let mut qmp = qmp.unwrap();
        assert_eq!(qmp.version(), [11, 1, 3]);
        assert_eq!(qmp.execute("query", json!({})).unwrap()["x"], 5);
        let long = Duration::from_secs(20);
        assert_eq!(qmp.wait_event("A", long, |data| data["n"] == 2).unwrap().data["n"], 2);
        let refused = qmp.execute("device_del", json!({})).unwrap_err();
        assert!(matches!(refused, Error::Refused { class, .. } if class == "DeviceNotFound"));
        assert_eq!(qmp.wait_event("A", long, |_| true).unwrap().data["n"], 1);
        let none = qmp.wait_event("A", Duration::from_millis(20), |_| true);
        assert!(matches!(none, Err(Error::TimedOut { .. })));
    }

    #[test]
    fn what_is_not_qemu_is_refused() {
        assert!(matches!(qemu("hello\n").0, Err(Error::Unexpected(_))));
        assert!(matches!(qemu("{}\n").0, Err(Error::Unexpected(_))));
    }
}
