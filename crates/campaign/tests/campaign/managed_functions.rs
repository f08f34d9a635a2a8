//! Functions that the manager makes and deletes while nodes run, under verified I/O of a guest.

use std::path::PathBuf;
use std::time::Duration;

use campaign::causeway::{STOP_TIMEOUT, binary, kill_card, status};
use campaign::fabric::Fabric;
use campaign::host::{guest_fio, guest_fio_verified};
use campaign::process::{Process, poll_until, run_to_end};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, tools};
use guest::{HotPlug, Message, Vm};
use serde_json::Value;

use crate::managed::{is_state, start_desk};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);
/// Of 1 MiB of zeroes.
const ZEROES: &str = "b6d81b360a5672d80c27430f39153e2c";

fn file(machine: &Machine) -> PathBuf {
    machine.dir().join("store.toml")
}

/// The file of a node `store`: an image of which all functions are made, and memory that is lent as a whole.
fn write_file(machine: &Machine, devices: &str) {
    let dir = machine.dir().display();
    let text = format!("name = 'store'\nstate_dir = '{dir}/state/store'\n{devices}");
    std::fs::write(file(machine), text).unwrap();
}

fn devices(machine: &Machine) -> String {
    let dir = machine.dir().display();
    format!(
        "[[devices]]\nfunction = 'data'\nsource = '{dir}/data.img'\nfunctions = 0\n\
         [[devices]]\nfunction = 'whole'\nsource = 'ram:16M'\n"
    )
}

fn start_store(machine: &Machine) -> Process {
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(file(machine));
    let node = machine.spawn("store", command).unwrap();
    poll_until("node store", LONG, || Ok(status(machine, "store").ok())).unwrap();
    node
}

/// What the node `store` says when it reads its file again: exit code and all that is printed.
fn reload(machine: &Machine) -> (Option<i32>, String) {
    let mut command = machine.command(binary().unwrap());
    command.args(["reload", "--name", "store"]);
    let done = run_to_end(command, &machine.dir().join("logs"), "reload", LONG).unwrap();
    (done.code, format!("{}{}", done.stdout, done.stderr))
}

fn create<'a>(device: &'a str, name: &'a str, size: &'a str) -> [&'a str; 6] {
    ["function", "create", device, name, "--size", size]
}

/// A command is refused, in these words.
#[track_caller]
fn refused(fabric: &Fabric<'_>, command: &[&str], word: &str) {
    let output = fabric.ask(command).unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && why.contains(word), "{command:?}: {why}");
}

/// What `status` of the store says of a function.
fn device(machine: &Machine, function: &str) -> Option<Value> {
    let status = status(machine, "store").unwrap();
    status["devices"].as_array().unwrap().iter().find(|device| device["function"] == function).cloned()
}

#[test]
fn a_function_is_made_under_load_kept_over_restarts_and_deleted() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut fabric = Fabric::found(machine).unwrap();
    for node in ["store", "desk"] {
        fabric.join(machine, node).unwrap();
    }
    tools::empty_image(&machine.dir().join("data.img"), 64 * MIB).unwrap();
    write_file(machine, &devices(machine));
    let mut store = start_store(machine);
    let mut vm = Vm::builder(&kit).name("made").hot_plug(HotPlug::Acpi).start().unwrap();
    let mut desk = start_desk(machine, Some(&vm.second_qmp().display().to_string()));
    fabric.wait_row("function", "store/whole", LONG, is_state("free")).unwrap();
    fabric.wait_row("domain", "desk/vm", LONG, |_| true).unwrap();

    let said = fabric.told(&create("store/data", "fast", "32M")).unwrap();
    assert!(said.contains("store/fast is there, a function of store/data"), "{said}");
    let made = fabric.wait_row("function", "store/fast", LONG, is_state("free")).unwrap();
    assert_eq!((&made["bytes"], &made["made_on"]), (&(32 * MIB).into(), &"data".into()));
    assert!(fabric.told(&create("store/data", "fast", "32M")).unwrap().contains("was there already"));
    refused(&fabric, &create("store/data", "fast", "16M"), "made otherwise");
    refused(&fabric, &create("store/data", "whole", "1M"), "by its node's configuration");
    refused(&fabric, &create("store/dta", "more", "1M"), "has no device dta; it has data, whole");
    refused(&fabric, &create("store/whole", "more", "1M"), "is lent as a whole");
    refused(&fabric, &create("store/data", "MORE", "1M"), "1 to 32 of `a-z 0-9 -`");
    refused(&fabric, &create("store/data", "more", "33M"), "has no room for 34603008 bytes in one piece");
    refused(&fabric, &["function", "create", "store/data", "more", "--namespace", "all"], "no namespace all");
    refused(&fabric, &["function", "delete", "store/whole"], "take it out of the file");

    fabric.told(&["assign", "store/fast", "vm/a"]).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));
    let load = "--bs=4k --iodepth=8 --size=16m --loops=40 --runtime=10 --time_based --verify_backlog=512";
    let fio = guest_fio(&format!("--filename=$(ls /dev/nvme?n1) {load}"));
    vm.check(&format!("({fio} > /tmp/report 2>&1; touch /tmp/ended) &")).unwrap();
    // Others come and go beside it, and a card dies.
    for round in 0..3 {
        let name = format!("other-{round}");
        fabric.told(&create("store/data", &name, "8M")).unwrap();
        kill_card(machine, "store", LONG).unwrap();
        assert!(device(machine, &name).is_some());
        fabric.told(&["function", "delete", &format!("store/{name}")]).unwrap();
        assert!(device(machine, &name).is_none());
    }
    refused(&fabric, &["function", "delete", "store/fast"], "of desk");
    assert_eq!(
        reload(machine),
        (Some(0), "store does what its file says\nfunction fast stays: a manager has made it\n".to_owned())
    );
    write_file(machine, "[[devices]]\nfunction = 'whole'\nsource = 'ram:16M'\n");
    let (code, said) = reload(machine);
    assert!(code == Some(3) && said.contains("the manager has made fast on it"), "{said}");
    write_file(machine, &devices(machine));
    vm.wait_for(LONG, "test -e /tmp/ended").unwrap();
    assert!(guest_fio_verified(&vm.check("cat /tmp/report").unwrap()).unwrap() > 0);

    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    // The manager dies, and the lender is started again: the function is there, and all that is in it.
    vm.check("head -c 4194304 /dev/urandom > /tmp/data").unwrap();
    vm.check("dd if=/tmp/data of=$(ls /dev/nvme?n1) bs=1M oflag=direct 2> /dev/null && sync").unwrap();
    fabric.manager.kill().unwrap();
    assert_eq!(store.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", store.tail());
    let mut store = start_store(machine);
    let same = "dd if=$(ls /dev/nvme?n1) bs=1M count=4 iflag=direct 2> /dev/null | cmp - /tmp/data";
    vm.wait_for(LONG, same).unwrap_or_else(|error| panic!("{error}\n{}", store.tail()));
    fabric.start_again().unwrap();
    fabric.wait_row("function", "store/fast", LONG, is_state("applied")).unwrap();
    fabric.wait_row("domain", "desk/vm", LONG, |_| true).unwrap();
    refused(&fabric, &["function", "delete", "store/fast"], "of desk");
    fabric.told(&["unassign", "store/fast"]).unwrap();
    vm.wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"").unwrap();

    // What comes to its place has nothing of it, though the lender was away when that was decided.
    store.kill_tree().unwrap();
    fabric.wait_row("node", "store", LONG, is_state("silent")).unwrap();
    let said = fabric.told(&["function", "delete", "store/fast"]).unwrap();
    assert!(said.contains("pending") && said.contains("store is silent"), "{said}");
    let mut store = start_store(machine);
    poll_until("the end of store/fast", LONG, || Ok(device(machine, "fast").is_none().then_some(())))
        .unwrap();
    let wait = |word: &str| {
        let found = poll_until(word, LONG, || {
            let done = fabric.ask(&create("store/data", "fresh", "64M"))?;
            Ok(done.status.success().then_some(()))
        });
        found.unwrap();
    };
    wait("a function of all there is");
    fabric.wait_row("function", "store/fresh", LONG, is_state("free")).unwrap();
    fabric.told(&["assign", "store/fresh", "vm/a"]).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));
    let sum = vm.check("dd if=$(ls /dev/nvme?n1) bs=1M count=1 iflag=direct 2> /dev/null | md5sum").unwrap();
    assert!(sum.starts_with(ZEROES), "{sum}");
    fabric.told(&["unassign", "store/fresh"]).unwrap();
    vm.wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"").unwrap();
    fabric.told(&["function", "delete", "store/fresh"]).unwrap();
    // A lender that is started again is a controller that is reset, and nothing else.
    let trouble = vm.kernel_trouble().unwrap();
    assert!(trouble.iter().all(|message| message.text.contains("will reset")), "{trouble:?}");
    vm.shutdown().unwrap();
    for node in [&mut desk, &mut store, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}
