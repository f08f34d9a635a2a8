//! Reads over an Ethernet rail, beside a UDP rail of the same kind of wire.

use super::{Round, json, node};
use campaign::Error;
use campaign::causeway::START_TIMEOUT;
use campaign::process::{Process, poll_until, run};
use campaign::world::{Machine, Mesh};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Two nodes, with the socket of what one borrows from the other.
pub(super) struct Pair {
    _nodes: [Process; 2],
    pub(super) socket: PathBuf,
}

impl Pair {
    /// Each has the rail that these keys of its file say.
    pub(super) fn start([left, right]: [&Machine; 2], name: &str, rails: [&str; 2]) -> Result<Self, Error> {
        let rail = |keys: &str| format!("[[rails]]\nname = \"rail\"\n{keys}\n");
        let device = "[[devices]]\nfunction = \"nvme0\"\nsource = \"ram:64M\"\n";
        let mut lender = node(right, &format!("{name}-lender"), &format!("{}{device}", rail(rails[1])))?;
        let line = lender.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://"))?;
        let socket = left.dir().join(format!("{name}.sock"));
        let loan = format!("[[loans]]\nline = \"{line}\"\nnbd = \"{}\"\n", socket.display());
        let borrower = node(left, &format!("{name}-borrower"), &format!("{}{loan}", rail(rails[0])))?;
        poll_until("the drive to be there", LONG, || Ok(socket.exists().then_some(())))?;
        Ok(Self { _nodes: [lender, borrower], socket })
    }
}

pub(super) fn measure(rounds: usize, work: (&str, u32), offload: bool) -> Result<Vec<Round>, Error> {
    let mesh = Mesh::new(2, 2)?;
    let [left, right] = mesh.machines() else { return Err(Error::unexpected("two machines")) };
    let at = |machine: &Machine| format!("listen = \"{}:7411\"\noffload = {offload}", machine.addresses()[1]);
    let over_ethernet = ["ethernet = \"rail0\""; 2];
    let ours = Pair::start([left, right], "ethernet", over_ethernet)?;
    let peer = Pair::start([left, right], "udp", [&at(left), &at(right)])?;
    let of = |pair: &Pair| reads(left, &pair.socket, work);
    (0..rounds).map(|_| Ok(Round { ours: of(&ours)?, peer: of(&peer)? })).collect()
}

/// Random reads of so many bytes with so many under way, each second.
pub(super) fn reads(machine: &Machine, socket: &Path, work: (&str, u32)) -> Result<f64, Error> {
    reads_for(2, machine, socket, work)
}

/// The same, measured for so many seconds.
pub(super) fn reads_for(
    seconds: u32,
    machine: &Machine,
    socket: &Path,
    (bytes, depth): (&str, u32),
) -> Result<f64, Error> {
    let mut command = machine.command("fio");
    command.args(["--name=reads", "--ioengine=nbd", "--output-format=json", "--eta=never", "--thread"]);
    command.args(["--rw=randread", "--time_based", "--ramp_time=0.3", "--size=32M"]);
    command.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    command.args([format!("--bs={bytes}"), format!("--iodepth={depth}"), format!("--runtime={seconds}")]);
    let told = run(command)?;
    // It says before that it is connected.
    let report = json(&told[told.find('{').unwrap_or(0)..])?;
    let rate = report["jobs"][0]["read"]["iops"].as_f64();
    rate.ok_or_else(|| Error::unexpected("fio has measured nothing"))
}
