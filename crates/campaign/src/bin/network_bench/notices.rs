//! From a report (the system says that an interface of a node has lost its carrier) to the last of eight nodes that has
//! moved: with one frame to all, beside one frame to each.
//!
//! Each of the eight borrows from the ninth, whose rail fails. Both moments are those of events: one agent hears of its
//! interface, and the others hear from their cards that these use other paths, which is one waking more than there is.

use super::{Round, json, node, tool};
use campaign::Error;
use campaign::causeway::{START_TIMEOUT, binary, status};
use campaign::process::{Process, poll_until};
use campaign::world::{Machine, Mesh};
use serde_json::Value;
use std::time::Duration;

const NODES: u8 = 8;
const LONG: Duration = Duration::from_secs(30);

struct Fabric {
    mesh: Mesh,
    _nodes: Vec<Process>,
    followers: Vec<Process>,
}

impl Fabric {
    /// One that lends, and eight that borrow from it.
    fn start(has_key: bool) -> Result<Self, Error> {
        let mesh = Mesh::new(NODES + 1, 2)?;
        let devices: String = (0..NODES)
            .map(|at| format!("[[devices]]\nfunction = \"f{at}\"\nsource = \"ram:1M\"\n"))
            .collect();
        let mut nodes = Vec::new();
        let mut lender = start(&mesh.machines()[0], has_key, &devices)?;
        let mut lines = Vec::new();
        for _ in 0..NODES {
            lines.push(lender.wait_line("a line", START_TIMEOUT, |line| line.starts_with("causeway://"))?);
        }
        nodes.push(lender);
        for (machine, line) in mesh.machines()[1..].iter().zip(&lines) {
            nodes.push(start(
                machine,
                has_key,
                &format!("[[loans]]\nline = \"{line}\"\nnbd = \"b.sock\"\n"),
            )?);
        }
        let mut fabric = Self { mesh, _nodes: nodes, followers: Vec::new() };
        fabric.wait_up()?;
        for machine in fabric.mesh.machines() {
            let mut command = machine.command(binary()?);
            command.args(["events", "--name", "node", "--follow", "-o", "json"]);
            fabric.followers.push(machine.spawn("events", command)?);
        }
        if has_key {
            fabric.wait_members()?;
        }
        Ok(fabric)
    }

    /// Both rails of all answer.
    fn wait_up(&self) -> Result<(), Error> {
        for machine in &self.mesh.machines()[1..] {
            poll_until("both rails to answer", LONG, || {
                // It may not have begun.
                let Ok(status) = status(machine, "node") else { return Ok(None) };
                let rails = status["rails"].clone();
                let is_up = |rail: &Value| rail["state"] == "up";
                Ok(rails
                    .as_array()
                    .is_some_and(|rails| rails.len() == 2 && rails.iter().all(is_up))
                    .then_some(()))
            })?;
        }
        Ok(())
    }

    /// The one that tells knows that all others hear it.
    fn wait_members(&self) -> Result<(), Error> {
        let binary = binary()?.display().to_string();
        poll_until("all to have the key", LONG, || {
            let told = tool(&self.mesh.machines()[0], &[&binary, "peers", "--name", "node", "-o", "json"])?;
            let peers = json(&told)?;
            let members = peers["peers"]
                .as_array()
                .map_or(0, |peers| peers.iter().filter(|peer| peer["member"] == true).count());
            Ok((members == usize::from(NODES)).then_some(()))
        })
    }

    /// Microseconds.
    fn measured(&mut self) -> Result<f64, Error> {
        self.wait_up()?;
        // A rail that was doubted just now is not doubted again at once.
        std::thread::sleep(Duration::from_millis(1500));
        tool(&self.mesh.machines()[0], &["ip", "link", "set", "rail0", "down"])?;
        let mut moments = Vec::new();
        for (at, follower) in self.followers.iter_mut().enumerate() {
            let kind = if at == 0 { "interface-down" } else { "rail-doubted" };
            let text = format!("\"kind\":\"{kind}\"");
            let line = follower.wait_line(kind, LONG, |line| line.contains(&text))?;
            moments.push(moment(&line)?);
        }
        tool(&self.mesh.machines()[0], &["ip", "link", "set", "rail0", "up"])?;
        let last = moments[1..].iter().copied().fold(0.0, f64::max);
        Ok(last - moments[0])
    }
}

fn start(machine: &Machine, has_key: bool, rest: &str) -> Result<Process, Error> {
    let key = machine.dir().join("fabric.key");
    std::fs::write(key, "7".repeat(64)).map_err(Error::io("cannot write the key"))?;
    let key = if has_key { "group_key = \"fabric.key\"\n" } else { "" };
    let rails: String = machine
        .addresses()
        .iter()
        .zip(0..)
        .map(|(address, at)| format!("[[rails]]\nname = \"r{at}\"\nlisten = \"{address}:7411\"\n"))
        .collect();
    node(machine, "node", &format!("{key}{rails}{rest}"))
}

/// Microseconds within an hour, of an event's `time`.
fn moment(line: &str) -> Result<f64, Error> {
    let event = json(line)?;
    let time = event["time"].as_str().unwrap_or_default();
    let within = time.split('T').nth(1).and_then(|clock| clock.strip_suffix('Z'));
    let parts: Option<Vec<f64>> = within.map(|clock| clock.split(':').flat_map(str::parse).collect());
    match parts.as_deref() {
        Some([hours, minutes, seconds]) => Ok((hours * 3600.0 + minutes * 60.0 + seconds) * 1e6),
        _ => Err(Error::unexpected(format!("this event has no time: {line}"))),
    }
}

pub(super) fn measure(rounds: usize) -> Result<Vec<Round>, Error> {
    let of = |has_key| -> Result<Vec<f64>, Error> {
        let mut fabric = Fabric::start(has_key)?;
        (0..rounds).map(|_| fabric.measured()).collect()
    };
    // Two fabrics at a time would be twice as many programs on these processors.
    let (ours, peers) = (of(true)?, of(false)?);
    Ok(ours.into_iter().zip(peers).map(|(ours, peer)| Round { ours, peer }).collect())
}
