//! The guest's shell on its second serial port. The other side is `tests/guest/serve`, which says what is spoken.

use crate::Error;
use crate::stream::{Deadline, read_more};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Output of one command that is kept; more than that is an error.
const MAX_OUTPUT: usize = 16 << 20;

/// How long an interrupted command may take to end.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(10);

/// The terminal's interrupt character, ^C.
const INTERRUPT: &[u8] = &[3];

const RECORD_START: u8 = 0x1e;
const RECORD_END: u8 = 0x1f;

/// How a command in the guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; above 128 a signal, as shells have it.
    pub status: i32,
    /// What it printed, standard error included.
    pub text: String,
}

/// A command that runs in the guest beside others. See [`crate::Vm::start`].
#[derive(Debug)]
pub struct Job {
    pub(crate) key: String,
    pub(crate) command: String,
}

/// The connection to the guest's shell. A [`crate::Vm`] has one; where something else runs the machine, that makes the
/// second serial port a socket that connects to one of the test's.
pub struct Shell {
    stream: UnixStream,
    /// What came, for people.
    log: File,
    parser: Parser,
    /// Jobs that have ended and have not been asked for.
    ended: HashMap<String, i32>,
    /// Commands that were given up: what they print belongs to nobody.
    abandoned: Vec<String>,
    next_key: u64,
}

impl Shell {
    /// Over the guest's second serial port; `log` gets everything that comes.
    pub fn new(stream: UnixStream, log: File) -> Self {
        let parser = Parser::default();
        Self { stream, log, parser, ended: HashMap::new(), abandoned: Vec::new(), next_key: 0 }
    }

    /// Waits for the guest to say that it takes commands; returns its kernel's version. Whatever was there before it
    /// started anew is forgotten.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<String, Error> {
        let deadline = Deadline::new(timeout);
        loop {
            let record = self.next_record("the guest's shell", &deadline)?;
            self.parser.output.clear();
            if record.key == READY {
                self.ended.clear();
                self.abandoned.clear();
                return Ok(record.status);
            }
        }
    }

    /// Runs a command to its end. One that takes longer is interrupted, and an error.
    pub fn run(&mut self, command: &str, timeout: Duration) -> Result<Output, Error> {
        let key = self.send("run", command)?;
        match self.wait_run(&key, command, &Deadline::new(timeout)) {
            Err(Error::TimedOut { what, waited, output }) => {
                self.write(INTERRUPT)?;
                if self.wait_run(&key, command, &Deadline::new(INTERRUPT_TIMEOUT)).is_err() {
                    self.abandoned.push(key);
                }
                Err(Error::TimedOut { what, waited, output })
            }
            result => result,
        }
    }

    /// Starts a command that goes on beside others.
    pub(crate) fn start(&mut self, command: &str) -> Result<Job, Error> {
        Ok(Job { key: self.send("start", command)?, command: command.to_owned() })
    }

    /// Waits for a job's end; returns its exit status.
    pub(crate) fn wait_job(&mut self, job: &Job, timeout: Duration) -> Result<i32, Error> {
        let what = format!("the end of `{}` in the guest", job.command);
        let deadline = Deadline::new(timeout);
        loop {
            if let Some(status) = self.ended.remove(&job.key) {
                return Ok(status);
            }
            let record = self.next_record(&what, &deadline)?;
            self.note(record)?;
        }
    }

    /// Whether a job has ended, as far as the guest has said until now.
    pub(crate) fn has_ended(&mut self, job: &Job) -> Result<bool, Error> {
        let now = Deadline::new(Duration::ZERO);
        loop {
            match self.next_record("news", &now) {
                Ok(record) => self.note(record)?,
                Err(Error::TimedOut { .. }) => return Ok(self.ended.contains_key(&job.key)),
                Err(error) => return Err(error),
            }
        }
    }

    fn wait_run(&mut self, key: &str, command: &str, deadline: &Deadline) -> Result<Output, Error> {
        let what = format!("the end of `{command}` in the guest");
        loop {
            let record = self.next_record(&what, deadline)?;
            if record.key == key {
                let text = String::from_utf8_lossy(&self.parser.take_output()).into_owned();
                return Ok(Output { status: record.exit_status()?, text });
            }
            self.note(record)?;
        }
    }

    /// Keeps a record that nobody waits for at the moment.
    fn note(&mut self, record: Record) -> Result<(), Error> {
        if record.key == READY {
            return Err(Error::Unexpected("the guest has started anew, or its shell died".into()));
        }
        if let Some(index) = self.abandoned.iter().position(|key| *key == record.key) {
            self.abandoned.swap_remove(index);
            self.parser.output.clear();
        } else {
            let status = record.exit_status()?;
            self.ended.insert(record.key, status);
        }
        Ok(())
    }

    fn send(&mut self, verb: &str, command: &str) -> Result<String, Error> {
        self.next_key += 1;
        let key = self.next_key.to_string();
        let line = format!("{key} {verb} {}\n", escape(command));
        self.write(line.as_bytes())?;
        Ok(key)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(Error::io("cannot write to the guest's serial port"))
    }

    fn next_record(&mut self, what: &str, deadline: &Deadline) -> Result<Record, Error> {
        loop {
            if let Some(record) = self.parser.next_record() {
                return Ok(record);
            }
            if self.parser.output.len() > MAX_OUTPUT {
                return Err(Error::Unexpected(format!("more than {MAX_OUTPUT} bytes came before {what}")));
            }
            let count =
                read_more(&mut self.stream, &mut self.parser.pending, what, deadline).map_err(|error| {
                    let partial = self.parser.output.as_slice();
                    if matches!(error, Error::TimedOut { .. }) {
                        deadline.timed_out(what, partial)
                    } else {
                        error
                    }
                })?;
            // A full disk must not stop the test: the log has a gap then.
            let new = self.parser.pending.len() - count;
            let _ = self.log.write_all(&self.parser.pending[new..]);
        }
    }
}

/// The key of the record that a shell begins with.
const READY: &str = "ready";

struct Record {
    key: String,
    status: String,
}

impl Record {
    fn exit_status(&self) -> Result<i32, Error> {
        let wrong = || Error::Unexpected(format!("the guest's shell says {} {}", self.key, self.status));
        self.status.parse().map_err(|_| wrong())
    }
}

/// Tells records from output.
#[derive(Default)]
struct Parser {
    /// Bytes not looked at yet, from a record's possible beginning on.
    pending: Vec<u8>,
    output: Vec<u8>,
}

impl Parser {
    fn next_record(&mut self) -> Option<Record> {
        loop {
            let start =
                self.pending.iter().position(|&byte| byte == RECORD_START).unwrap_or(self.pending.len());
            self.output.extend(self.pending.drain(..start));
            let end =
                self.pending.iter().skip(1).position(|byte| matches!(*byte, RECORD_START | RECORD_END))? + 1;
            let text = std::str::from_utf8(&self.pending[1..end]).ok();
            let fields =
                text.and_then(|text| text.split_once(' ')).filter(|_| self.pending[end] == RECORD_END);
            if let Some((key, status)) = fields {
                let record = Record { key: key.into(), status: status.into() };
                self.pending.drain(..=end);
                return Some(record);
            }
            // A separator in a command's output.
            self.output.extend(self.pending.drain(..end));
        }
    }

    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}

/// One line, whatever the command is.
fn escape(command: &str) -> String {
    command.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};

    fn pair() -> (Shell, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Shell::new(ours, File::create("/dev/null").unwrap()), theirs)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn output_records_and_stray_separators_are_told_apart() {
        let mut parser = Parser::default();
        for byte in b"one\x1e\x1e9 3\x1ftwo\x1fx\x1ejunk\x1f\x1e10 0\x1f" {
            parser.pending.push(*byte);
        }
        let record = parser.next_record().unwrap();
        assert_eq!((record.key.as_str(), record.status.as_str()), ("9", "3"));
        assert_eq!(parser.take_output(), b"one\x1e");
        assert_eq!(parser.next_record().unwrap().key, "10");
        assert_eq!(parser.take_output(), b"two\x1fx\x1ejunk\x1f");
        assert!(parser.next_record().is_none());
    }

    #[test]
    fn a_job_that_ends_during_a_command_is_remembered() {
        let (mut shell, mut guest) = pair();
        guest.write_all(b"\x1eready 6.12\x1f").unwrap();
        assert_eq!(shell.wait_ready(LONG).unwrap(), "6.12");
        let job = shell.start("sleep 1").unwrap();
        guest.write_all(b"a\x1e1 7\x1fb\x1e2 0\x1f").unwrap();
        assert_eq!(shell.run("echo a\\b\nc", LONG).unwrap(), Output { status: 0, text: "ab".into() });
        assert!(shell.has_ended(&job).unwrap());
        assert_eq!(shell.wait_job(&job, LONG).unwrap(), 7);
        let lines: Vec<_> = BufReader::new(&guest).lines().take(2).map(Result::unwrap).collect();
        assert_eq!(lines, ["1 start sleep 1", "2 run echo a\\\\b\\nc"]);
    }

    #[test]
    fn what_takes_too_long_is_interrupted_and_the_next_command_is_right() {
        let (mut shell, guest) = pair();
        let guest = std::thread::spawn(move || {
            let mut input = BufReader::new(guest);
            let mut line = String::new();
            input.read_line(&mut line).unwrap();
            input.get_mut().write_all(b"half").unwrap();
            let mut interrupt = [0];
            input.read_exact(&mut interrupt).unwrap();
            assert_eq!(interrupt, INTERRUPT);
            input.get_mut().write_all(b"\x1e1 130\x1f").unwrap();
            input.read_line(&mut line).unwrap();
            input.get_mut().write_all(b"whole\x1e2 0\x1f").unwrap();
        });
        let error = shell.run("slow", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::TimedOut { output, .. } if output == "half"));
        assert_eq!(shell.run("fast", LONG).unwrap().text, "whole");
        guest.join().unwrap();
    }

    #[test]
    fn a_guest_that_starts_anew_is_noticed() {
        let (mut shell, mut guest) = pair();
        guest.write_all(b"\x1eready 6.12\x1f").unwrap();
        assert!(matches!(shell.run("true", LONG), Err(Error::Unexpected(_))));
        drop(guest);
        assert!(shell.run("true", LONG).is_err());
    }
}
