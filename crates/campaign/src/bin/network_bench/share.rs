//! Reads over an Ethernet rail while a TCP connection sends through the same port of the same rate.

use super::{Round, ethernet, tool};
use campaign::Error;
use campaign::process::Process;
use campaign::world::{Machine, Mesh};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Counts what comes; at the end of the connection it prints how many bytes that were in a second.
const TAKER: &str = r#"
import socket, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", 7501))
s.listen(1)
print("ready", flush=True)
c, _ = s.accept()
began, count = time.monotonic(), 0
while True:
    got = len(c.recv(1 << 20))
    if not got:
        break
    count += got
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

/// Long enough that what a connection begins with hardly counts.
const SECONDS: u32 = 30;

pub(super) fn measure(rounds: usize) -> Result<Vec<Round>, Error> {
    let mesh = Mesh::new(2, 2)?;
    let [left, right] = mesh.machines() else { return Err(Error::unexpected("two machines")) };
    let shaped = ["rate", "100mbit", "burst", "32kb", "latency", "20ms"];
    tool(right, &[&["tc", "qdisc", "add", "dev", "rail0", "root", "tbf"], &shaped[..]].concat())?;
    let pair = ethernet::Pair::start([left, right], "ethernet", ["ethernet = \"rail0\""; 2])?;
    let begin = |machine: &Machine, name, program, arguments: &[&str]| -> Result<Process, Error> {
        let mut command = machine.command("python3");
        command.args(["-c", program]).args(arguments);
        let mut process = machine.spawn(name, command)?;
        process.wait_line("that it is ready", LONG, |line| line == "ready")?;
        Ok(process)
    };
    let to = left.addresses()[0].to_string();
    let one = || -> Result<Round, Error> {
        let mut taker = begin(left, "taker", TAKER, &[])?;
        let _giver = begin(right, "giver", GIVER, &[&to, &SECONDS.to_string()])?;
        let ours = ethernet::reads_for(SECONDS, left, &pair.socket, ("64k", 16))? * 65536.0;
        let told = taker.wait_line("its rate", LONG, |line| line.starts_with("rate "))?;
        let rate = told.strip_prefix("rate ").and_then(|rate| rate.parse::<f64>().ok());
        let peer = rate.ok_or_else(|| Error::unexpected(told.clone()))?;
        Ok(Round { ours: ours / 1e6, peer: peer / 1e6 })
    };
    (0..rounds).map(|_| one()).collect()
}
