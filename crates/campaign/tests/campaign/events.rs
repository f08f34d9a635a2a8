//! What has happened in a node, as others follow it.

use campaign::causeway::binary;
use campaign::process::Process;
use campaign::world::Machine;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// `causeway events` of a node.
pub(crate) fn command(machine: &Machine, name: &str, arguments: &[&str]) -> Command {
    let mut command = machine.command(binary().unwrap());
    command.args(["events", "--name", name]).args(arguments);
    command
}

/// Those of a kind that have happened.
pub(crate) fn all(machine: &Machine, name: &str, kind: &str) -> Vec<Value> {
    let output = command(machine, name, &["-o", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|it: &Value| it["kind"] == kind)
        .collect()
}

/// Everything that has happened and will.
pub(crate) fn follow(machine: &Machine, name: &str) -> Process {
    machine.spawn(&format!("{name}-events"), command(machine, name, &["--follow", "-o", "json"])).unwrap()
}

/// The next event of a kind.
pub(crate) fn next(follower: &mut Process, kind: &str) -> Value {
    let text = format!("\"kind\":\"{kind}\"");
    let line = follower.wait_line(kind, SOON, |line| line.contains(&text)).unwrap();
    serde_json::from_str(&line).unwrap()
}
