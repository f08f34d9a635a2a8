//! A question and its answer, again and again, over one connection of the kernel's MPTCP that has a subflow on each of
//! two networks.

use super::tool;
use campaign::Error;
use campaign::process::{Process, poll_until};
use campaign::world::Machine;
use std::io::Write;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const MPTCP: &str = "262";

const SERVER: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(sys.argv[2]))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", 7500))
s.listen(1)
print("ready", flush=True)
c, _ = s.accept()
while True:
    asked = c.recv(65536)
    if not asked:
        break
    c.sendall(asked)
"#;

/// Words on standard input: `go`, `pause`, `gap` (prints the longest since it was asked last, in nanoseconds).
const CLIENT: &str = r#"
import queue, socket, sys, threading, time
c = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(sys.argv[2]))
c.connect((sys.argv[1], 7500))
words = queue.Queue()
def hear():
    for line in sys.stdin:
        words.put(line.strip())
    words.put("end")
threading.Thread(target=hear, daemon=True).start()
print("ready", flush=True)
longest, runs, before, unasked = 0, False, time.monotonic_ns(), True
c.settimeout(0.005)
question = bytes(4096)
left = 0
while True:
    while not words.empty() or not runs and left == 0:
        word = words.get()
        if word == "end":
            sys.exit(0)
        if word == "gap":
            print("gap", max(longest, time.monotonic_ns() - before), flush=True)
            longest, before = 0, max(before, time.monotonic_ns())
        elif word == "go":
            runs, longest, before = True, 0, time.monotonic_ns()
        elif word == "pause":
            runs = False
    if left == 0:
        c.settimeout(None)
        c.sendall(question)
        c.settimeout(0.005)
        left = len(question)
    try:
        left -= len(c.recv(left))
    except TimeoutError:
        continue
    if left == 0:
        now = time.monotonic_ns()
        longest, before = max(longest, now - before), now
"#;

pub(super) struct Connection {
    client: Process,
    _server: Process,
}

impl Connection {
    pub(super) fn start(left: &Machine, right: &Machine) -> Result<Self, Error> {
        let [first, second] = right.addresses() else { return Err(Error::unexpected("two rails")) };
        for machine in [left, right] {
            tool(machine, &["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"])?;
        }
        let second = second.to_string();
        tool(right, &["ip", "mptcp", "endpoint", "add", &second, "dev", "rail1", "signal"])?;
        let start = |machine: &Machine, name, program| -> Result<Process, Error> {
            let mut command = machine.command("python3");
            command.args(["-c", program, &first.to_string(), MPTCP]);
            let mut process = Process::spawn_piped(command, &machine.dir().join(format!("{name}.log")))?;
            process.wait_line("that it is ready", LONG, |line| line == "ready")?;
            Ok(process)
        };
        let server = start(right, "mptcp-server", SERVER)?;
        let mut connection = Self { client: start(left, "mptcp-client", CLIENT)?, _server: server };
        connection.go_on()?;
        poll_until("a subflow on the second network", LONG, || {
            let subflows = tool(left, &["ss", "-tHn", "dst", &second])?;
            Ok(subflows.contains("ESTAB").then_some(()))
        })?;
        connection.pause()?;
        Ok(connection)
    }

    fn say(&mut self, word: &str) -> Result<(), Error> {
        let stdin =
            self.client.stdin().ok_or_else(|| Error::unexpected("the client has no standard input"))?;
        writeln!(stdin, "{word}").map_err(Error::io("cannot tell the client"))
    }

    pub(super) fn go_on(&mut self) -> Result<(), Error> {
        self.say("go")
    }

    pub(super) fn pause(&mut self) -> Result<(), Error> {
        self.say("pause")
    }

    pub(super) fn take_longest_gap(&mut self) -> Result<Duration, Error> {
        self.say("gap")?;
        let told = self.client.wait_line("its longest gap", LONG, |line| line.starts_with("gap "))?;
        let gap = told.strip_prefix("gap ").and_then(|gap| gap.parse().ok());
        gap.map(Duration::from_nanos).ok_or_else(|| Error::unexpected(told))
    }
}
