//! T4: a manager with many real nodes, each of which lends to the next one.

use campaign::causeway::{STOP_TIMEOUT, binary, kill_card};
use campaign::fabric::Fabric;
use campaign::process::{Process, poll_until};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, scale};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Nodes in `make soak`, and in `make test`.
const NODES: [usize; 2] = [64, 12];
/// Two processors start and stop three processes a node.
const LONG: Duration = Duration::from_secs(240);

#[test]
fn t4_each_of_many_nodes_lends_to_the_next_one() {
    let _place = gate::alone();
    let count = NODES[usize::from(std::env::var_os("CAUSEWAY_SOAK").is_none())];
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut fabric = Fabric::found(machine).unwrap();
    let mut nodes: Vec<Process> = (0..count).map(|at| start(&fabric, machine, at)).collect();
    wait_all(&fabric, "node", "reachable", count);
    wait_all(&fabric, "function", "free", count);

    let start = Instant::now();
    for at in 0..count {
        fabric.told(&["assign", &format!("n{at}/d"), &format!("n{}/vm/a", (at + 1) % count)]).unwrap();
    }
    scale::report(&format!("t4: {count} functions of as many nodes assigned in {:?}", start.elapsed()));
    wait_all(&fabric, "function", "applied", count);
    wait_all(&fabric, "loan", "up", count);

    // Cards die, and the manager, in the middle of nothing and of everything.
    fabric.manager.kill().unwrap();
    for at in (0..count).step_by(4) {
        kill_card(machine, &name(at), LONG).unwrap();
    }
    fabric.start_again().unwrap();
    wait_all(&fabric, "node", "reachable", count);
    wait_all(&fabric, "loan", "up", count);
    for at in 0..count {
        fabric.told(&["unassign", &format!("n{at}/d")]).unwrap();
    }
    wait_all(&fabric, "function", "free", count);
    assert_eq!(fabric.list("loan").unwrap(), Vec::<Value>::new());
    for node in &mut nodes {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
    assert_eq!(fabric.manager.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", fabric.manager.tail());
}

fn name(at: usize) -> String {
    format!("n{at}")
}

/// A node with a function and a slot.
fn start(fabric: &Fabric<'_>, machine: &Machine, at: usize) -> Process {
    let (name, dir) = (name(at), machine.dir().display());
    let state = fabric.join(machine, &name).unwrap();
    let text = format!(
        "name = '{name}'\nstate_dir = {state:?}\n[[rails]]\nname = 'r'\nlisten = '{}:{}'\n\
         [[devices]]\nfunction = 'd'\nsource = 'ram:1M'\n[[domains]]\nname = 'vm'\nkind = 'vm'\n\
         [[domains.slots]]\nname = 'a'\nsocket = '{dir}/{name}.sock'\n",
        machine.addresses()[0],
        7500 + at
    );
    let config = machine.dir().join(format!("{name}.toml"));
    std::fs::write(&config, text).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(config);
    machine.spawn(&name, command).unwrap()
}

/// There are so many of a kind, and all are in this state.
#[track_caller]
fn wait_all(fabric: &Fabric<'_>, of: &str, state: &str, count: usize) {
    let mut rows = Vec::new();
    let found = poll_until(&format!("{count} {of}s that are {state}"), LONG, || {
        rows = fabric.list(of)?;
        let are_so = rows.len() == count && rows.iter().all(|row| row["state"] == state);
        Ok(are_so.then_some(()))
    });
    found.unwrap_or_else(|error| panic!("{error}: {rows:?}"));
}
