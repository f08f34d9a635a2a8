//! A machine with a borrowed drive stays where it is: QEMU would save and migrate it, and leave a dead drive.

use campaign::causeway::{Lender, STOP_TIMEOUT, binary};
use campaign::gate;
use campaign::host::{Domain, Host};
use campaign::process::{Process, poll_until};
use campaign::world::{World, WorldConfig};
use guest::Vm;
use serde_json::json;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn start_node(world: &World, qmp: &Path) -> Process {
    let domain = Domain { name: "vm1", qmp: Some(qmp), remove_after_s: 1, bus: "rp1" };
    Host::start(world.left(), &[domain]).unwrap().process
}

fn causeway(world: &World, arguments: &[&str]) -> Output {
    world.left().command(binary().unwrap()).args(arguments).args(["--name", "host"]).output().unwrap()
}

/// What QEMU says to whoever wants to save or migrate the machine.
fn refusals(vm: &mut Vm) -> [String; 3] {
    let file = vm.folder().join("state");
    let migrate = vm.qmp().execute("migrate", json!({ "uri": format!("file:{}", file.display()) }));
    let migrate = migrate.map_or_else(|error| error.to_string(), |_| String::new());
    [migrate, vm.qmp().human("savevm one").unwrap(), vm.qmp().human("loadvm one").unwrap()]
}

#[test]
fn a_machine_with_a_borrowed_drive_is_neither_saved_nor_migrated() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let mut lender = Lender::start_image(world.right(), "lender", 32 * MIB).unwrap();
    let mut vm = Vm::builder(&kit).name("stays").start().unwrap();
    let mut node = start_node(&world, &vm.second_qmp());
    let attached = causeway(&world, &["attach", &lender.lines[0], "vm1/disk"]);
    assert!(attached.status.success(), "{attached:?}\n{}", node.tail());
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    let all = |said: [String; 3]| said.iter().all(|it| it.contains("causeway-disk"));
    poll_until("QEMU to refuse", LONG, || Ok(all(refusals(&mut vm)).then_some(())))
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", refusals(&mut vm), node.tail()));
    let qemu = std::fs::read_to_string(vm.folder().join("qemu.log")).unwrap();
    assert!(!qemu.contains("error recovery"), "{qemu}");
    // `loadvm` has stopped it.
    vm.qmp().execute("cont", json!({})).unwrap();
    // Somebody takes it out by hand.
    vm.qmp().human("info mtree -f").unwrap();
    vm.qmp().execute("device_del", json!({ "id": "causeway-disk" })).unwrap();
    wait_free(&mut vm, &node);
    // And plugs it in again.
    let device = json!({
        "driver": "vfio-user-pci", "id": "causeway-disk", "bus": "rp2",
        "socket": { "type": "unix", "path": Host::socket(world.left(), "vm1") }
    });
    vm.hot_add(device).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    wait_held(&mut vm, &node);
    // Its guest lets go of it when the node has taken the function away.
    vm.qmp().execute("stop", json!({})).unwrap();
    let detached = causeway(&world, &["detach", "vm1/disk"]);
    let said = String::from_utf8_lossy(&detached.stderr);
    assert!(said.contains("did not say that causeway-disk is gone") && is_held(&mut vm), "{detached:?}");
    vm.qmp().execute("cont", json!({})).unwrap();
    wait_free(&mut vm, &node);
    // Nothing is left of it that another one could meet.
    let attached = causeway(&world, &["attach", &lender.lines[0], "vm1/disk"]);
    assert!(attached.status.success(), "{attached:?}\n{}", node.tail());
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    wait_held(&mut vm, &node);
    drop(vm);
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

/// Whether QEMU has what makes it refuse.
fn is_held(vm: &mut Vm) -> bool {
    let nodes = vm.qmp().execute("query-named-block-nodes", json!({})).unwrap();
    nodes.as_array().unwrap().iter().any(|node| node["node-name"] == "causeway-disk")
}

#[track_caller]
fn wait_held(vm: &mut Vm, node: &Process) {
    let held = poll_until("QEMU to refuse", LONG, || Ok(is_held(vm).then_some(())));
    held.unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
}

#[track_caller]
fn wait_free(vm: &mut Vm, node: &Process) {
    let free = poll_until("QEMU to refuse no longer", LONG, || Ok((!is_held(vm)).then_some(())));
    free.unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
}

#[test]
fn a_machine_that_waits_for_its_state_gets_no_drive() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let lender = Lender::start_image(world.right(), "lender", 32 * MIB).unwrap();
    let vm = Vm::builder(&kit).name("incoming").argument("-incoming").argument("defer").launch().unwrap();
    let node = start_node(&world, &vm.second_qmp());
    let attached = causeway(&world, &["attach", &lender.lines[0], "vm1/disk"]);
    let said = String::from_utf8_lossy(&attached.stderr);
    assert!(attached.status.code() == Some(3) && said.contains("-incoming"), "{attached:?}\n{}", node.tail());
}
