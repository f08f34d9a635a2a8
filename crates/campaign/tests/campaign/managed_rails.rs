//! Rails that are dead, as a manager sees and tells them.

use std::time::Duration;

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, binary, status};
use campaign::fabric::Fabric;
use campaign::gate;
use campaign::process::{poll_until, run, run_to_end};
use campaign::world::{Machine, Mesh, World, WorldConfig};
use serde_json::Value;

use crate::events;
use crate::managed::with_store;

const LONG: Duration = Duration::from_secs(60);

/// A rail of the lender dies: its borrower says so, the manager shows it and tells others, and it is over when the rail
/// answers. All of it goes on without a manager, too.
#[test]
fn a_dead_rail_is_shown_until_it_answers() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut desk = Borrower::start_as(machine, "desk", &store.lines[1], &["--no-shm"]).unwrap();
    let rails = status(machine, "store").unwrap()["rails"].as_array().unwrap().clone();
    let last = rails.iter().map(|rail| rail["name"].as_str().unwrap()).rfind(|name| *name != "shm").unwrap();
    let of_store = |row: &Value| row["node"] == "store" && row["name"] == last;
    let wait_verdict = |fabric: &Fabric<'_>, is_dead: bool| {
        poll_until("a verdict on the rail", LONG, || {
            let rows = fabric.list("rail")?;
            let row = rows.iter().find(|row| of_store(row));
            Ok(row.filter(|row| row["verdict"].is_object() == is_dead).cloned())
        })
    };
    wait_verdict(&fabric, false).unwrap();
    let cut = |way: &str| {
        let mut command = machine.command(binary().unwrap());
        command.args(["link", way, last, "--name", "store"]);
        let done = run_to_end(command, &machine.dir().join("logs"), "link", LONG).unwrap();
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    };
    cut("down");
    let row = wait_verdict(&fabric, true).unwrap();
    assert_eq!(row["verdict"]["cause"], "silence", "{row}");
    // The manager dies with it, and its successor hears it again.
    fabric.manager.kill().unwrap();
    fabric.start_again().unwrap();
    wait_verdict(&fabric, true).unwrap();
    cut("up");
    wait_verdict(&fabric, false).unwrap();
    assert_eq!(status(machine, "desk").unwrap()["loans"][0]["state"], "up");
    for node in [&mut desk.process, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// One node reaches another one no more by one of its rails. It tells the manager, which tells a third one that knows
/// nothing of it, and that nobody else has told: it looks whether that rail answers it.
#[test]
fn a_node_doubts_a_rail_because_its_manager_says_so() {
    let mesh = Mesh::new(3, 2).unwrap();
    let [first, second, third] = mesh.machines() else { panic!("three machines") };
    let mut fabric = Fabric::found_for_others(first, first.addresses()[0]).unwrap();
    for (machine, name) in [(first, "store"), (second, "desk"), (third, "lab")] {
        fabric.join(machine, name).unwrap();
    }
    let mut store = Lender::start_as(first, "store", &["ram:16M", "ram:16M"], &[]).unwrap();
    // These two do not know each other.
    for (machine, other) in [(second, third), (third, second)] {
        other.addresses().iter().for_each(|address| drop_all(machine, &address.to_string()));
    }
    let start = |machine, name, line: &str| Borrower::start_as(machine, name, line, &[]).unwrap();
    let mut desk = start(second, "desk", &store.lines[0]);
    let mut lab = start(third, "lab", &store.lines[1]);
    for name in ["store", "desk", "lab"] {
        fabric.wait_row("node", name, LONG, |row| row["state"] == "reachable").unwrap();
    }
    let lender = status(first, "store").unwrap()["node"]["id"].as_str().unwrap().to_owned();
    let is_doubt = |event: &Value| event["peer"] == lender.as_str();
    // Without a manager nobody tells it.
    fabric.manager.kill().unwrap();
    let mut seen = events::follow(second, "desk");
    drop_all(second, &first.addresses()[1].to_string());
    events::next(&mut seen, "rail-down");
    let said = || -> Vec<Value> { events::all(third, "lab", "rail-doubted") };
    assert!(!said().iter().any(is_doubt), "{:?}", said());
    fabric.start_again().unwrap();
    let doubt = poll_until("a doubt of the third node", LONG, || Ok(said().into_iter().find(is_doubt)));
    let doubt = doubt.unwrap_or_else(|error| panic!("{error}: {:?}\n{}", said(), lab.process.tail()));
    assert_eq!(doubt["cause"], "it is silent", "{doubt}");
    // It answers there: the loan has two rails, as before.
    let loans = status(third, "lab").unwrap();
    assert_eq!(loans["loans"][0]["state"], "up", "{loans}");
    for node in [&mut desk.process, &mut lab.process, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// What a machine sends to an address and hears from it is lost.
fn drop_all(machine: &Machine, address: &str) {
    for (hook, field) in [("output", "daddr"), ("input", "saddr")] {
        let chain = format!("add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}");
        let rule = format!("add rule inet cut {hook} ip {field} {address} drop");
        for words in ["add table inet cut", &chain, &rule] {
            let mut command = machine.command("nft");
            command.arg(words);
            run(command).unwrap();
        }
    }
}
