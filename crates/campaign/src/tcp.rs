//! A TCP connection that sends as much as it gets through, to see what others leave to it, and it to others.

use crate::Error;
use crate::process::{Process, run};
use crate::world::Machine;
use std::time::Duration;

/// Longer than it takes to begin, or to get a MiB through a way that is shared fairly.
const LONG: Duration = Duration::from_secs(30);

/// Tells of each MiB that has come, and at the end how many bytes came in a second.
const TAKER: &str = r#"
import socket, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", 7501))
s.listen(1)
print("ready", flush=True)
c, _ = s.accept()
began, count, told = time.monotonic(), 0, 0
while True:
    got = len(c.recv(1 << 20))
    if not got:
        break
    count += got
    if count - told >= 1 << 20:
        told = count
        print("bytes", count, flush=True)
print("rate", count / (time.monotonic() - began), flush=True)
"#;

/// Sends for so many seconds. BBR, which some systems have as a default, gives way where a queue is much longer than
/// the way: what is meant is the TCP that fills it.
const GIVER: &str = r#"
import socket, sys, time
c = socket.create_connection((sys.argv[1], 7501))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    c.sendall(bytes(1 << 16))
"#;

/// A connection with CUBIC over rail 0. Dropped, it ends.
pub struct Flow {
    taker: Process,
    _giver: Process,
}

impl Flow {
    /// From one machine to another, for so many seconds. What it hands to the network is packets, as it would be on a
    /// wire: a queue between would take or refuse some twenty at once, and so treat it unlike who sends single ones.
    pub fn start(from: &Machine, to: &Machine, seconds: u32) -> Result<Self, Error> {
        let mut command = from.command("ip");
        command.args(["link", "set", "rail0", "gso_max_segs", "1"]);
        run(command)?;
        let begin = |machine: &Machine, name, program, arguments: &[&str]| -> Result<Process, Error> {
            let mut command = machine.command("python3");
            command.args(["-c", program]).args(arguments);
            let mut process = machine.spawn(name, command)?;
            process.wait_line("that it is ready", LONG, |line| line == "ready")?;
            Ok(process)
        };
        let taker = begin(to, "taker", TAKER, &[])?;
        let arguments = [to.addresses()[0].to_string(), seconds.to_string()];
        let giver = begin(from, "giver", GIVER, &arguments.each_ref().map(String::as_str))?;
        Ok(Self { taker, _giver: giver })
    }

    /// Waits until another MiB has come: how many bytes that are in all.
    pub fn next_bytes(&mut self) -> Result<u64, Error> {
        self.number("bytes ")
    }

    /// Waits for its end: how many bytes came in a second.
    pub fn rate(mut self) -> Result<f64, Error> {
        self.number("rate ")
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, Error> {
        let told = self.taker.wait_line(what, LONG, |line| line.starts_with(what))?;
        let number = told.strip_prefix(what).and_then(|number| number.parse().ok());
        number.ok_or_else(|| Error::unexpected(told.clone()))
    }
}
