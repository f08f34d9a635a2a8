//! A fabric with a manager: who joins, what is assigned and taken back, and what goes on while the manager is dead.

use std::time::Duration;

use crate::{events, switches};
use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, binary, borrow_command, kill_card, status};
use campaign::fabric::Fabric;
use campaign::host::{guest_fio, guest_fio_verified};
use campaign::process::{Process, poll_until, run_to_end};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, tools};
use guest::{HotPlug, Message, Vm};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A node `desk` with slots `vm/a` and `vm/b`, whose machine has this monitor.
pub(crate) fn start_desk(machine: &Machine, qmp: Option<&str>) -> Process {
    let dir = machine.dir().display();
    let qmp = qmp.map(|path| format!("qmp = '{path}'\nremove_after_s = 20\n")).unwrap_or_default();
    let slot = |name: &str, bus: &str| {
        format!("[[domains.slots]]\nname = '{name}'\nsocket = '{dir}/{name}.sock'\nbus = '{bus}'\n")
    };
    let text = format!(
        "name = 'desk'\nstate_dir = '{dir}/state/desk'\n[[domains]]\nname = 'vm'\nkind = 'vm'\n{qmp}{}{}",
        slot("a", "rp1"),
        slot("b", "rp2")
    );
    let config = machine.dir().join("desk.toml");
    std::fs::write(&config, text).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(config);
    let node = machine.spawn("desk", command).unwrap();
    poll_until("node desk", LONG, || Ok(status(machine, "desk").ok())).unwrap();
    node
}

pub(crate) fn start_store(machine: &Machine) -> Lender {
    let images = ["one", "two"].map(|name| machine.dir().join(format!("{name}.img")));
    for image in images.iter().filter(|image| !image.exists()) {
        tools::empty_image(image, 64 * MIB).unwrap();
    }
    let images = images.each_ref().map(|image| image.to_str().unwrap());
    Lender::start_as(machine, "store", &images, &[]).unwrap()
}

/// The loan of a slot, as its node shows it, when it is as `is_so` says.
#[track_caller]
pub(crate) fn wait_slot(machine: &Machine, slot: &str, is_so: impl Fn(Option<&Value>) -> bool) {
    let found = poll_until(&format!("slot {slot}"), LONG, || {
        let status = status(machine, "desk")?;
        let loans = status["loans"].as_array().cloned().unwrap_or_default();
        Ok(is_so(loans.iter().find(|loan| loan["slot"] == slot)).then_some(()))
    });
    found.unwrap_or_else(|error| panic!("{error}: {}", status(machine, "desk").unwrap()));
}

pub(crate) fn has(loan: Option<&Value>, function: &str) -> bool {
    loan.is_some_and(|loan| loan["function"] == function && loan["state"] == "up")
}

pub(crate) fn is_state(state: &'static str) -> impl Fn(&Value) -> bool {
    move |row| row["state"] == state
}

/// A fabric to which the nodes `store` and `desk` belong, of which the first one lends.
pub(crate) fn with_store(machine: &Machine) -> (Fabric<'_>, Lender) {
    let fabric = Fabric::found(machine).unwrap();
    for node in ["store", "desk"] {
        fabric.join(machine, node).unwrap();
    }
    (fabric, start_store(machine))
}

/// The manager has heard of both drives and of the machine.
pub(crate) fn wait_ready(fabric: &Fabric<'_>) {
    for drive in ["store/nvme0", "store/nvme1"] {
        fabric.wait_row("function", drive, LONG, is_state("free")).unwrap();
    }
    fabric.wait_row("domain", "desk/vm", LONG, |_| true).unwrap();
}

#[test]
fn a_drive_is_assigned_and_taken_back() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut desk = start_desk(machine, None);
    wait_ready(&fabric);

    let said = fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    assert!(!said.contains("pending"), "{said}");
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    // What is so already succeeds, and a conflict names who has it.
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    let refused = fabric.ask(&["assign", "store/nvme1", "vm/a"]).unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && why.contains("store/nvme0"), "{why}");
    let unknown = fabric.ask(&["assign", "store/nvme7", "vm/b"]).unwrap();
    let why = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(3) && why.contains("nvme"), "{why}");
    // The line of a managed function opens nothing.
    let line = borrow_command(machine, "thief", &store.lines[0], &["--io-timeout", "5"]).unwrap();
    let thief = run_to_end(line, &machine.dir().join("logs"), "thief", LONG).unwrap();
    assert_eq!(thief.code, Some(3), "{}", thief.stderr);
    assert!(thief.stderr.contains("manager"), "{}", thief.stderr);

    // The manager dies, then both sides are started again: the loan is there without it.
    fabric.manager.kill().unwrap();
    kill_card(machine, "desk", LONG).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    assert_eq!(desk.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", desk.tail());
    assert_eq!(store.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", store.process.tail());
    let mut store = start_store(machine);
    let mut desk = start_desk(machine, None);
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));

    // It is back, finds it so, and takes it.
    fabric.start_again().unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("applied")).unwrap();
    for node in ["desk", "store"] {
        fabric.wait_row("node", node, LONG, is_state("reachable")).unwrap();
    }
    let said = fabric.told(&["unassign", "store/nvme0"]).unwrap();
    assert!(!said.contains("pending"), "{said}");
    wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    // The next one gets it.
    fabric.told(&["assign", "store/nvme0", "desk/vm/b"]).unwrap();
    wait_slot(machine, "vm/b", |loan| has(loan, "nvme0"));
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// The manager says in which group an assignment is, which no file of the two nodes speaks of: there its channel is,
/// and in no other. Who shares no group is told so, and who leaves the group loses what it has there.
#[test]
fn an_assignment_is_in_a_group_of_both_nodes() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut desk = start_desk(machine, None);
    wait_ready(&fabric);
    let refused = |fabric: &Fabric<'_>, command: &[&str]| {
        let refused = fabric.ask(command).unwrap();
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(3), "{why}");
        why
    };
    fabric.told(&["node", "groups", "store", "2", "5", "7"]).unwrap();
    fabric.told(&["node", "groups", "desk", "3", "7"]).unwrap();
    let why = refused(&fabric, &["assign", "store/nvme0", "vm/a", "--group", "5"]);
    assert!(why.contains("`desk` may not enter group 5"), "{why}");
    // Both ends have it in the one that they share, and the lender has nothing else in it.
    let both_have = |group: u16| {
        wait_slot(machine, "vm/a", |loan| has(loan, "nvme0") && loan.unwrap()["group"] == group);
        let shown = poll_until("the lender's end", LONG, || {
            let status = status(machine, "store")?;
            let all = |of: &str| status[of].as_array().cloned().unwrap_or_default();
            let loan = |name: &str, group: u16| {
                all("loans").iter().any(|loan| loan["function"] == name && loan["group"] == group)
            };
            let is_open = |row: &Value| row["state"] == "open" && row["group"] == group;
            let is_so = loan("nvme0", group) && loan("nvme1", 1) && all("channels").iter().any(is_open);
            Ok(is_so.then_some(()))
        });
        shown.unwrap_or_else(|error| panic!("{error}: {}", status(machine, "store").unwrap()));
    };
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    both_have(7);
    fabric.wait_row("loan", "store/nvme0", LONG, |row| row["group"] == 7).unwrap();
    // Their cards and their nodes find it there, too.
    kill_card(machine, "store", LONG).unwrap();
    both_have(7);
    assert_eq!(store.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", store.process.tail());
    store = start_store(machine);
    both_have(7);

    fabric.told(&["unassign", "store/nvme0"]).unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    fabric.told(&["node", "groups", "desk", "3", "5", "7"]).unwrap();
    fabric.told(&["assign", "store/nvme0", "vm/a", "--group", "5"]).unwrap();
    both_have(5);
    fabric.told(&["node", "groups", "desk", "3"]).unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
    let why = refused(&fabric, &["assign", "store/nvme0", "vm/a"]);
    assert!(why.contains("`store` and `desk` may not enter the same group"), "{why}");
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// The borrower is gone: by force its lender takes the drive back, and another one gets it.
#[test]
fn by_force_nobody_is_waited_for() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut desk = start_desk(machine, None);
    wait_ready(&fabric);
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    desk.kill_tree().unwrap();
    fabric.wait_row("node", "desk", LONG, is_state("silent")).unwrap();
    fabric.told(&["unassign", "store/nvme0", "--wait", "1"]).unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("leaving")).unwrap();
    fabric.told(&["unassign", "store/nvme0", "--force"]).unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    // Who comes back has it no more.
    let mut desk = start_desk(machine, None);
    wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
    // A silent lender leaves it pending, and that is said.
    store.process.kill_tree().unwrap();
    fabric.wait_row("node", "store", LONG, is_state("silent")).unwrap();
    let said = fabric.told(&["assign", "store/nvme0", "vm/b", "--wait", "1"]).unwrap();
    assert!(said.contains("store"), "{said}");
    fabric.wait_row("function", "store/nvme0", LONG, is_state("wanted")).unwrap();
    let mut store = start_store(machine);
    wait_slot(machine, "vm/b", |loan| has(loan, "nvme0"));
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// A guest works on one drive and gets another one while the manager dies again and again.
#[test]
fn a_guest_does_not_notice_that_managers_die() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut vm = Vm::builder(&kit).name("managed").hot_plug(HotPlug::Acpi).start().unwrap();
    let mut desk = start_desk(machine, Some(&vm.second_qmp().display().to_string()));
    wait_ready(&fabric);
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));

    let load = "--bs=4k --iodepth=8 --size=16m --loops=40 --runtime=25 --time_based --verify_backlog=512";
    let fio = guest_fio(&format!("--filename=$(ls /dev/nvme?n1) {load}"));
    vm.check(&format!("({fio} > /tmp/report 2>&1; touch /tmp/ended) &")).unwrap();
    let rounds = if std::env::var_os("CAUSEWAY_SOAK").is_some() { 20 } else { 4 };
    for round in 0..rounds {
        // A change is under way in every second round.
        let command: &[&str] = match round % 4 {
            0 => &["assign", "store/nvme1", "desk/vm/b"],
            2 => &["unassign", "store/nvme1"],
            _ => &["node", "list"],
        };
        let mut asked = fabric.command(command).unwrap();
        asked.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut asked = asked.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(3 * round));
        fabric.manager.kill().unwrap();
        // Whether it has heard an answer, nobody knows.
        let _ = asked.wait().unwrap();
        fabric.start_again().unwrap();
        fabric.wait_row("node", "store", LONG, is_state("reachable")).unwrap();
        fabric.wait_row("domain", "desk/vm", LONG, |_| true).unwrap();
        // Asked again it is done, once.
        fabric.told(command).unwrap();
    }
    vm.wait_for(LONG, "test -e /tmp/ended").unwrap();
    let verified = guest_fio_verified(&vm.check("cat /tmp/report").unwrap()).unwrap();
    assert!(verified > 0);
    fabric.told(&["unassign", "store/nvme0"]).unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    vm.wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"").unwrap();
    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    vm.shutdown().unwrap();
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// What a node lends as `nvme0` may do so much.
fn is_limited(machine: &Machine, iops: Option<u64>) -> bool {
    let status = status(machine, "store").unwrap();
    let devices = status["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["function"] == "nvme0").unwrap();
    device["iops"].as_u64() == iops
}

/// The manager limits a drive that a guest works on, and lets it go: the guest sees nothing but the time it takes.
#[test]
fn a_limit_is_changed_under_a_guest_and_stays() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut vm = Vm::builder(&kit).name("limited").hot_plug(HotPlug::Acpi).start().unwrap();
    let mut desk = start_desk(machine, Some(&vm.second_qmp().display().to_string()));
    wait_ready(&fabric);
    fabric.told(&["function", "limit", "store/nvme0", "--iops", "100000"]).unwrap();
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));

    // 2048 writes, and as many reads: at 50 a second that does not end before the test is through with its changes.
    let load = "--bs=4k --iodepth=8 --size=8m --loops=1 --verify_backlog=64";
    let fio = guest_fio(&format!("--filename=$(ls /dev/nvme?n1) {load}"));
    let limited = ["function", "limit", "store/nvme0", "--iops", "50"];
    let said = fabric.told(&limited).unwrap();
    assert!(said.contains("50 commands a second") && !said.contains("pending"), "{said}");
    assert!(is_limited(machine, Some(50)));
    vm.check(&format!("({fio} > /tmp/report 2>&1; touch /tmp/ended) &")).unwrap();
    // Its generation is the assignment's, which is what it was.
    fabric
        .wait_row("function", "store/nvme0", LONG, |row| row["generation"] == 1 && row["is_limited"] == true)
        .unwrap();
    // Nobody at the lender changes what the manager has said, and it outlives card and manager.
    let mut local = machine.command(binary().unwrap());
    local.args(["limit", "nvme0", "--iops", "7", "--name", "store"]);
    let refused = run_to_end(local, &machine.dir().join("logs"), "limit", LONG).unwrap();
    assert!(refused.code == Some(3) && refused.stderr.contains("function limit"), "{refused:?}");
    kill_card(machine, "store", LONG).unwrap();
    assert!(is_limited(machine, Some(50)));
    fabric.manager.kill().unwrap();
    assert!(is_limited(machine, Some(50)));
    fabric.start_again().unwrap();
    fabric.wait_row("node", "store", LONG, is_state("reachable")).unwrap();
    assert_eq!(vm.check("test -e /tmp/ended || echo runs").unwrap().trim(), "runs");
    // Without a limit it soon ends, and all it has written is there.
    fabric.told(&["function", "limit", "store/nvme0"]).unwrap();
    assert!(is_limited(machine, None));
    vm.wait_for(LONG, "test -e /tmp/ended").unwrap();
    assert!(guest_fio_verified(&vm.check("cat /tmp/report").unwrap()).unwrap() > 0);
    fabric.told(&["unassign", "store/nvme0"]).unwrap();
    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    vm.shutdown().unwrap();
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// A line is enough for a node that belongs to no fabric, and for one that was removed it is not.
#[test]
fn who_was_removed_has_nothing_by_a_line_either() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut guest = Borrower::start_as(machine, "guest", &store.lines[0], &[]).unwrap();
    let mut desk = Borrower::start_as(machine, "desk", &store.lines[1], &["--no-shm"]).unwrap();
    let id = status(machine, "desk").unwrap()["node"]["id"].as_str().unwrap().to_owned();
    fabric.wait_row("node", "desk", LONG, is_state("reachable")).unwrap();
    let mut seen = events::follow(machine, "store");
    let mut own = events::follow(machine, "desk");
    fabric.told(&["node", "remove", "desk"]).unwrap();
    assert_eq!(events::next(&mut seen, "node-removed")["node"], id);
    let up = |machine: &Machine, name: &str| status(machine, name).unwrap()["loans"][0]["state"] == "up";
    poll_until("the end of its loan", LONG, || Ok((!up(machine, "desk")).then_some(()))).unwrap();
    assert!(up(machine, "guest"), "the others notice nothing");
    // What it had is free: another one gets it long before 600 s are over.
    let mut next = Borrower::start_as(machine, "next", &store.lines[1], &[]).unwrap();
    // It calls again, and is told why not; so is its lender, also after both were started again.
    let refused = events::next(&mut own, "loan-refused");
    assert_eq!(refused["reason"], "certificate", "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("removed"), "{refused}");
    let told = events::next(&mut seen, "caller-refused");
    assert_eq!((&told["reason"], &told["node"]), (&"certificate".into(), &id.clone().into()), "{told}");
    desk.process.kill_tree().unwrap();
    kill_card(machine, "store", LONG).unwrap();
    let line = borrow_command(machine, "desk", &store.lines[1], &["--io-timeout", "5"]).unwrap();
    let again = run_to_end(line, &machine.dir().join("logs"), "again", LONG).unwrap();
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    assert!(again.stderr.contains("removed from the fabric"), "{}", again.stderr);
    // Its manager, too, refuses it, which is no connection; it calls less and less often, and that is said once.
    let calls = |what: &str| again.stderr.matches(what).count();
    assert!(calls("connected to manager") == 0 && calls("no manager is heard") <= 1, "{}", again.stderr);
    for node in [&mut guest.process, &mut next.process, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// The manager's state is lost: nodes come with their certificates, the lender says who has what, and no loan notices.
#[test]
fn a_manager_whose_state_is_lost_is_rebuilt() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut desk = start_desk(machine, None);
    wait_ready(&fabric);
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    fabric.manager.kill().unwrap();
    std::fs::remove_dir_all(machine.dir().join("fabric/state")).unwrap();
    let config = machine.dir().join("fabric/manager.toml");
    let said = fabric.told(&["manager", "rebuild", "--config", config.to_str().unwrap()]).unwrap();
    assert!(said.contains("end-restore"), "{said}");
    fabric.start_again().unwrap();
    let row = fabric.wait_row("function", "store/nvme0", LONG, is_state("applied")).unwrap();
    assert_eq!(row["generation"], 1, "{row}");
    fabric.wait_row("node", "desk", LONG, is_state("reachable")).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    fabric.told(&["manager", "end-restore"]).unwrap();
    fabric.wait_row("domain", "desk/vm", LONG, |_| true).unwrap();
    fabric.told(&["unassign", "store/nvme0"]).unwrap();
    wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
    fabric.told(&["assign", "store/nvme1", "vm/a"]).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme1"));
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// Nodes that have nothing but a switch are told what is behind it, and the manager shows the switch as it is.
#[test]
fn a_drive_behind_a_switch_is_assigned_and_the_switch_is_shown() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let fabric = Fabric::found(machine).unwrap();
    let (at, dir) = ("127.0.0.1:7500", machine.dir().display());
    let node = |name: &str, own: &str, rest: &str| {
        fabric.join(machine, name).unwrap();
        let rail = format!("[[rails]]\nname = 'r'\nlisten = '{own}'\nswitch = '{at}'\n");
        let text = format!("name = '{name}'\nstate_dir = '{dir}/state/{name}'\nshm = false\n{rail}{rest}");
        let mut command = machine.command(binary().unwrap());
        command.args(["node", "--config"]).arg(switches::write(machine, name, &text));
        let row = fabric.wait_row("node", name, LONG, |_| true).unwrap();
        let range = format!("domains = [{}]", row["domains"]);
        (machine.spawn(name, command).unwrap(), switches::port(name, at, own, &range))
    };
    let device = "[[devices]]\nfunction = 'nvme0'\nsource = 'ram:16M'\n";
    let slot = format!("[[domains.slots]]\nname = 'a'\nsocket = '{dir}/a.sock'\n");
    let (mut store, to_store) = node("store", "127.0.0.1:7501", device);
    let (mut desk, to_desk) =
        node("desk", "127.0.0.1:7502", &format!("[[domains]]\nname = 'vm'\nkind = 'vm'\n{slot}"));
    let ports = to_store + &to_desk;
    let mut switch = switches::start(machine, "s", &ports);
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    fabric.wait_row("domain", "desk/vm", LONG, |_| true).unwrap();
    fabric.told(&["assign", "store/nvme0", "vm/a"]).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    let hears = |row: &Value| row["state"] == "heard" && row["nodes"] == json!(["desk/r", "store/r"]);
    let row = fabric.wait_row("switch", "s", LONG, hears).unwrap();
    assert_eq!(row["switch"], status(machine, "s").unwrap()["node"]["id"], "{row}");
    switch.kill().unwrap();
    fabric.wait_row("switch", "s", LONG, is_state("silent")).unwrap();
    wait_slot(machine, "vm/a", |loan| loan.is_some_and(|loan| loan["state"] == "silent"));
    switch = switches::start(machine, "s", &ports);
    fabric.wait_row("switch", "s", LONG, hears).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    for it in [&mut desk, &mut store, &mut switch] {
        assert_eq!(it.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", it.tail());
    }
}

#[test]
fn x_who_may_not_join_is_told_why() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut fabric = Fabric::found(machine).unwrap();
    let token = fabric.told(&["join-token", "make"]).unwrap();
    let token = token.trim();
    let join = |token: &str, name: &str| {
        let file = machine.dir().join("token");
        std::fs::write(&file, token).unwrap();
        let mut command = machine.command(binary().unwrap());
        command.arg("join").arg(format!("@{}", file.display())).args(["--name", name]);
        command.arg("--state-dir").arg(machine.dir().join("state").join(name));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mistyped = join(&token.replace('0', "1"), "desk");
    assert_eq!(mistyped.0, Some(2), "{mistyped:?}");
    assert!(!machine.dir().join("state/desk").exists(), "nothing is left of who was not let in");
    assert_eq!(join(token, "desk").0, Some(0));
    assert_eq!(join(token, "desk").0, Some(0), "the same node again");
    let used = join(token, "other");
    assert!(used.0 == Some(3) && used.1.contains("token"), "{used:?}");
    fabric.manager.kill().unwrap();
    let nobody = join(token, "third");
    assert_eq!(nobody.0, Some(4), "{nobody:?}");
    let unreachable = fabric.ask(&["node", "list"]).unwrap();
    assert_eq!(unreachable.status.code(), Some(4), "{unreachable:?}");
}
