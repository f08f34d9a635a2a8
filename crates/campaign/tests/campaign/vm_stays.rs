//! A machine with a borrowed drive stays where it is: QEMU would save and migrate it, and leave a dead drive.

use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, binary, slot_command};
use campaign::gate;
use campaign::host::{Domain, Host};
use campaign::process::{Process, poll_until, run};
use campaign::world::{World, WorldConfig};
use guest::Vm;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The device of a slot of that name.
const DISK: &str = "causeway-disk";
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

/// Without a monitor that the node knows.
#[test]
fn a_machine_started_as_qemu_args_says_is_neither_saved_nor_migrated() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let lender = Lender::start_image(world.right(), "lender", 32 * MIB).unwrap();
    let slot = Slot::start_as(world.left(), "slot", &lender.lines[0], &[]).unwrap();
    let mut command = world.left().command(binary().unwrap());
    command.arg("qemu-args").arg(&slot.socket).args(["-o", "json"]);
    let printed: Value = serde_json::from_str(&run(command).unwrap()).unwrap();
    let arguments: Vec<&str> =
        printed["arguments"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let [option, image] = arguments[arguments.len() - 2..] else { panic!("{arguments:?}") };
    let vm = Vm::builder(&kit).name("kept").argument(option).argument(image);
    let mut vm = vm.device(&slot.device("v1", "rp1").to_string()).start().unwrap();
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    let said = refusals(&mut vm);
    assert!(said.iter().all(|it| it.contains("causeway-stays")), "{said:?}");
    // `loadvm` has stopped it.
    vm.qmp().execute("cont", json!({})).unwrap();
    vm.check("dd if=/dev/urandom of=/dev/nvme0n1 bs=64k count=4 oflag=direct").unwrap();
    assert!(!slot.process.tail().contains("nobody keeps the virtual machine"), "{}", slot.process.tail());
    vm.shutdown().unwrap();
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
    let all = |said: [String; 3]| said.iter().all(|it| it.contains(DISK));
    poll_until("QEMU to refuse", LONG, || Ok(all(refusals(&mut vm)).then_some(())))
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", refusals(&mut vm), node.tail()));
    let qemu = std::fs::read_to_string(vm.folder().join("qemu.log")).unwrap();
    assert!(!qemu.contains("error recovery"), "{qemu}");
    // `loadvm` has stopped it.
    vm.qmp().execute("cont", json!({})).unwrap();
    // Somebody takes it out by hand.
    vm.qmp().human("info mtree -f").unwrap();
    vm.qmp().execute("device_del", json!({ "id": "causeway-disk" })).unwrap();
    wait_free(&mut vm, DISK, &node);
    // And plugs it in again.
    let device = json!({
        "driver": "vfio-user-pci", "id": "causeway-disk", "bus": "rp2",
        "socket": { "type": "unix", "path": Host::socket(world.left(), "vm1") }
    });
    vm.hot_add(device).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    wait_held(&mut vm, DISK, &node);
    assert!(!node.tail().contains("nobody keeps the virtual machine"), "{}", node.tail());
    // Its guest lets go of it when the node has taken the function away.
    vm.qmp().execute("stop", json!({})).unwrap();
    let detached = causeway(&world, &["detach", "vm1/disk"]);
    // The slot is vacant before or after that.
    let silent = "did not say that causeway-disk is gone";
    let is_said = || Ok(node.tail().contains(silent).then_some(()));
    poll_until("QEMU's silence to be said", LONG, is_said)
        .unwrap_or_else(|error| panic!("{error}: {detached:?}\n{}", node.tail()));
    assert!(is_held(&mut vm, DISK), "{detached:?}");
    vm.qmp().execute("cont", json!({})).unwrap();
    wait_free(&mut vm, DISK, &node);
    // Nothing is left of it that another one could meet.
    let attached = causeway(&world, &["attach", &lender.lines[0], "vm1/disk"]);
    assert!(attached.status.success(), "{attached:?}\n{}", node.tail());
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
    wait_held(&mut vm, DISK, &node);
    drop(vm);
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

/// Whether QEMU has what makes it refuse because of a device.
fn is_held(vm: &mut Vm, device: &str) -> bool {
    let nodes = vm.qmp().execute("query-named-block-nodes", json!({})).unwrap();
    nodes.as_array().unwrap().iter().any(|node| node["node-name"] == device)
}

#[track_caller]
fn wait_held(vm: &mut Vm, device: &str, node: &Process) {
    let held = poll_until("QEMU to refuse", LONG, || Ok(is_held(vm, device).then_some(())));
    held.unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
}

#[track_caller]
fn wait_free(vm: &mut Vm, device: &str, node: &Process) {
    let free = poll_until("QEMU to refuse no longer", LONG, || Ok((!is_held(vm, device)).then_some(())));
    free.unwrap_or_else(|error| panic!("{error}\n{}", node.tail()));
}

/// One line and no file: `causeway borrow` with a monitor does what a node with slots does.
#[test]
fn a_line_with_a_monitor_plugs_the_drive_in_and_keeps_the_machine() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let mut lender = Lender::start_image(world.right(), "lender", 32 * MIB).unwrap();
    let mut vm = Vm::builder(&kit).name("one-line").start().unwrap();
    let qmp = vm.second_qmp();
    let arguments = ["--qmp", qmp.to_str().unwrap(), "--bus", "rp1"];
    let start = || Slot::start_as(world.left(), "slot", &lender.lines[0], &arguments).unwrap();
    let mut slot = start();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", slot.process.tail()));
    wait_held(&mut vm, "causeway1", &slot.process);
    let said = refusals(&mut vm);
    assert!(said.iter().all(|it| it.contains("causeway1")), "{said:?}");
    // `loadvm` has stopped it.
    vm.qmp().execute("cont", json!({})).unwrap();
    let mut detach = world.left().command(binary().unwrap());
    let detached = detach.args(["detach", "slot/slot", "--name", "slot"]).output().unwrap();
    assert!(detached.status.success(), "{detached:?}\n{}", slot.process.tail());
    vm.wait_for(LONG, "! ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", slot.process.tail()));
    wait_free(&mut vm, "causeway1", &slot.process);
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
    // Whoever starts it again wants the drive again.
    slot = start();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", slot.process.tail()));
    wait_held(&mut vm, "causeway1", &slot.process);
    drop(vm);
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

/// The monitor of such a line may come later; what is none is refused, or told of.
#[test]
fn a_line_with_what_is_no_monitor_says_so() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let left = world.left();
    let lender = Lender::start(world.right(), &["ram:1M"], &[]).unwrap();
    let [file, later, other] = ["file", "later", "other"].map(|name| left.dir().join(name));
    std::fs::write(&file, "").unwrap();
    for (qmp, why) in [(&file, "is no socket"), (&file.join("sub/qmp"), "no folder")] {
        let mut command =
            slot_command(left, "slot", &lender.lines[0], &["--qmp", qmp.to_str().unwrap()]).unwrap();
        let refused = command.output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(3) && said.contains(why), "{refused:?}");
    }
    let start = |qmp: &Path| {
        Slot::start_as(left, "slot", &lender.lines[0], &["--qmp", qmp.to_str().unwrap()]).unwrap()
    };
    let mut slot = start(&later);
    slot.process.wait_log("why", LONG, |line| line.contains("cannot reach QEMU")).unwrap();
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
    let listener = UnixListener::bind(&other).unwrap();
    let speaks =
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"220 ready\r\n").unwrap());
    let mut slot = start(&other);
    slot.process.wait_log("why", LONG, |line| line.contains("what makes no sense")).unwrap();
    speaks.join().unwrap();
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
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
