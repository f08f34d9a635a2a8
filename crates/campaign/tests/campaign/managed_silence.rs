//! Lenders that are silent for longer than they are waited for: their functions are taken out of the slots they are in,
//! and come back, or not, when they are heard.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::events;
use crate::managed::{has, is_state, start_desk, start_store, wait_ready, wait_slot, with_store};
use campaign::causeway::{Borrower, STOP_TIMEOUT, Slot, binary, kill_card, status};
use campaign::gate;
use campaign::process::{Process, family, is_running, poll_until, signal};
use campaign::world::{Machine, World, WorldConfig};
use guest::{HotPlug, Message, Vm};
use rustix::process::Signal;
use serde_json::Value;

const LONG: Duration = Duration::from_secs(60);

/// All processes of a node stand still, or go on.
fn signal_all(node: &Process, to: Signal) {
    let processes = family(node.pid());
    assert!(processes.len() > 1, "an agent and its card");
    // The agent first: nobody else comes then, and a card that stood by may have gone.
    signal(node.pid(), to).unwrap();
    processes.iter().skip(1).filter(|pid| is_running(**pid)).for_each(|pid| signal(*pid, to).unwrap());
}

/// What the manager shows of a slot.
fn slot_row(rows: &[Value]) -> Option<&Value> {
    rows.iter().find(|row| row["name"].as_str().is_some_and(|name| name.ends_with("vm/a")))
}

/// The lender stands still: its borrower ends the loan when the time is over that the assignment says, while the
/// manager goes on to show it as assigned, and has it again when the lender goes on. No death of a card begins that
/// time anew, and a node that is started meanwhile waits for its lender, too.
#[test]
fn an_assigned_drive_comes_back_with_its_lender() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut desk = start_desk(machine, None);
    wait_ready(&fabric);
    fabric.told(&["assign", "store/nvme0", "vm/a", "--on-silence", "hold(4)"]).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
    let mut seen = events::follow(machine, "desk");

    for round in 0..2 {
        signal_all(&store.process, Signal::STOP);
        poll_until("a lender that is silent", LONG, || {
            let status = status(machine, "desk")?;
            let loan =
                status["loans"].as_array().unwrap().iter().find(|loan| loan["slot"] == "vm/a").cloned();
            Ok(loan.filter(|loan| loan["state"] == "silent"))
        })
        .unwrap();
        kill_card(machine, "desk", LONG).unwrap();
        let lost = events::next(&mut seen, "slot-lost");
        assert_eq!((&lost["slot"], &lost["function"]), (&"vm/a".into(), &"nvme0".into()), "{lost}");
        assert!(lost["silent_s"].as_u64().is_some_and(|waited| (4..8).contains(&waited)), "{lost}");
        // The manager still means it, and shows why it is not there.
        fabric.wait_row("function", "store/nvme0", LONG, is_state("applied")).unwrap();
        let shown = poll_until("the slot as the manager shows it", LONG, || {
            let rows = fabric.list("slot")?;
            Ok(slot_row(&rows).filter(|row| row["state"] == "returning").cloned())
        })
        .unwrap();
        assert!(shown["trouble"].as_str().is_some_and(|why| why.contains("was silent")), "{shown}");
        if round == 1 {
            // Its own agent dies meanwhile: it has nothing, and waits.
            desk.kill_tree().unwrap();
            desk = start_desk(machine, None);
            seen = events::follow(machine, "desk");
        }
        signal_all(&store.process, Signal::CONT);
        // Before that it is the old loan that may be up, while it is given back.
        events::next(&mut seen, "loan-usable");
        wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
        let row = fabric.wait_row("function", "store/nvme0", LONG, is_state("applied")).unwrap();
        assert_eq!(row["generation"], 1, "{row}");
    }
    // Taken back while it is lost: the slot is empty when the lender has heard of it.
    signal_all(&store.process, Signal::STOP);
    events::next(&mut seen, "slot-lost");
    fabric.told(&["unassign", "store/nvme0", "--wait", "1"]).unwrap();
    signal_all(&store.process, Signal::CONT);
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
    fabric.told(&["assign", "store/nvme0", "vm/b"]).unwrap();
    wait_slot(machine, "vm/b", |loan| has(loan, "nvme0"));
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// The lender has its drive, and keeps it for nobody.
#[track_caller]
fn wait_free(machine: &Machine) {
    poll_until("a drive that nobody has", LONG, || {
        let status = status(machine, "store")?;
        let devices = status["devices"].as_array().unwrap();
        let drive = devices.iter().find(|device| device["function"] == "nvme0");
        Ok(drive.filter(|drive| drive["lent_to"].is_null() && drive["kept_s"].is_null()).cloned())
    })
    .unwrap();
}

/// A node of this file, whose name is `desk`.
fn start_node(machine: &Machine, rest: &str) -> Process {
    let text = format!("name = 'desk'\nstate_dir = '{}/state/desk'\n{rest}", machine.dir().display());
    let config = machine.dir().join("desk.toml");
    std::fs::write(&config, text).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(config);
    let node = machine.spawn("desk", command).unwrap();
    poll_until("node desk", LONG, || Ok(status(machine, "desk").ok())).unwrap();
    node
}

/// A node without a manager, whose slot gives up a silent lender at once.
fn start_line_desk(machine: &Machine) -> Process {
    start_desk_with(machine, "")
}

/// The same with something else in its file.
fn start_desk_with(machine: &Machine, rest: &str) -> Process {
    let socket = machine.dir().join("a.sock");
    let slot = format!("name = 'a'\nsocket = '{}'\non_silence = 'remove'\n", socket.display());
    start_node(machine, &format!("{rest}[[domains]]\nname = 'vm'\nkind = 'vm'\n[[domains.slots]]\n{slot}"))
}

fn attach(machine: &Machine, line: &str) {
    let mut command = machine.command(binary().unwrap());
    command.args(["attach", line, "vm/a", "--name", "desk"]);
    campaign::process::run(command).unwrap();
    wait_slot(machine, "vm/a", |loan| has(loan, "nvme0"));
}

/// What a line has attached is gone for good, and its lender hears of it when it is there again, be it that the
/// borrower was started anew meanwhile: the function is kept for nobody then.
#[test]
fn what_a_line_has_attached_is_given_back_when_its_lender_is_heard() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut store = start_store(machine);
    let mut desk = start_line_desk(machine);
    for restarts in [false, true] {
        attach(machine, &store.lines[0]);
        let mut seen = events::follow(machine, "desk");
        if restarts {
            store.process.kill_tree().unwrap();
        } else {
            signal_all(&store.process, Signal::STOP);
        }
        let lost = events::next(&mut seen, "slot-lost");
        assert!(lost["silent_s"].as_u64().is_some_and(|waited| waited < 10), "{lost}");
        if restarts {
            desk.kill_tree().unwrap();
            // As where that was before it had taken its socket away.
            drop(UnixListener::bind(machine.dir().join("a.sock")).unwrap());
            desk = start_line_desk(machine);
            assert!(!machine.dir().join("a.sock").exists(), "nobody is to have it");
            store = start_store(machine);
        } else {
            signal_all(&store.process, Signal::CONT);
        }
        wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
        wait_free(machine);
        // It stays so.
        assert_eq!(desk.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", desk.tail());
        desk = start_line_desk(machine);
        wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
    }
    for node in [&mut desk, &mut store.process] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// A node may have elsewhere what a slot of it has lost and still owes: it begins, and has it there.
#[test]
fn what_a_slot_owes_can_be_had_elsewhere() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut store = start_store(machine);
    let mut desk = start_line_desk(machine);
    attach(machine, &store.lines[0]);
    let mut seen = events::follow(machine, "desk");
    store.process.kill_tree().unwrap();
    events::next(&mut seen, "slot-lost");
    desk.kill_tree().unwrap();
    let nbd = machine.dir().join("nbd.sock");
    let loan = format!("[[loans]]\nline = '{}'\nnbd = '{}'\n", store.lines[0], nbd.display());
    desk = start_desk_with(machine, &loan);
    store = start_store(machine);
    for _ in 0..2 {
        poll_until("the drive where it is now", LONG, || {
            let status = status(machine, "desk")?;
            let loans = status["loans"].as_array().unwrap();
            let mut had = loans.iter().filter(|loan| has(Some(loan), "nvme0"));
            Ok(had.find(|loan| loan["slot"].is_null()).cloned())
        })
        .unwrap();
        wait_slot(machine, "vm/a", |loan| loan.is_none_or(|loan| loan["state"] == "vacant"));
        // It stays so.
        assert_eq!(desk.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", desk.tail());
        desk = start_desk_with(machine, &loan);
    }
    for node in [&mut desk, &mut store.process] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// A guest loses the drive of a lender that stands still, and finds it again as a new one.
#[test]
fn a_guest_loses_the_drive_of_a_silent_lender_and_gets_it_again() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let (mut fabric, mut store) = with_store(machine);
    let mut vm = Vm::builder(&kit).name("silence").hot_plug(HotPlug::Acpi).start().unwrap();
    let mut desk = start_desk(machine, Some(&vm.second_qmp().display().to_string()));
    wait_ready(&fabric);
    fabric.told(&["assign", "store/nvme0", "vm/a", "--on-silence", "hold(5)"]).unwrap();
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));
    let mark = "dd if=/dev/urandom of=/tmp/mark bs=4k count=16 2>/dev/null && \
                dd if=/tmp/mark of=$(ls /dev/nvme?n1) bs=4k count=16 oflag=direct 2>/dev/null";
    vm.check(mark).unwrap();
    signal_all(&store.process, Signal::STOP);
    let gone = "test -z \"$(ls /dev | grep nvme.n1)\"";
    vm.wait_for(LONG, gone).unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));
    signal_all(&store.process, Signal::CONT);
    vm.wait_for(LONG, "ls /dev/nvme?n1").unwrap_or_else(|error| panic!("{error}\n{}", desk.tail()));
    vm.check("dd if=$(ls /dev/nvme?n1) bs=4k count=16 iflag=direct 2>/dev/null | cmp - /tmp/mark").unwrap();
    fabric.told(&["unassign", "store/nvme0"]).unwrap();
    fabric.wait_row("function", "store/nvme0", LONG, is_state("free")).unwrap();
    vm.wait_for(LONG, gone).unwrap();
    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    vm.shutdown().unwrap();
    for node in [&mut desk, &mut store.process, &mut fabric.manager] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// Programs lose what is borrowed for them, too, and its lender has it back when it is heard.
#[test]
fn programs_are_disconnected_from_the_drive_of_a_silent_lender() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut store = start_store(machine);
    let socket = machine.dir().join("nvme0.nbd");
    let line = &store.lines[0];
    let loan = format!("[[loans]]\nline = '{line}'\nnbd = '{}'\non_silence = 'hold(3)'\n", socket.display());
    let mut desk = start_node(machine, &loan);
    poll_until("a loan", LONG, || {
        let status = status(machine, "desk")?;
        Ok((status["loans"][0]["state"] == "up").then_some(()))
    })
    .unwrap();
    let mut seen = events::follow(machine, "desk");
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    // Its greeting (NBD, newstyle).
    client.read_exact(&mut [0; 18]).unwrap();
    signal_all(&store.process, Signal::STOP);
    let lost = events::next(&mut seen, "loan-lost");
    assert!(lost["silent_s"].as_u64().is_some_and(|waited| (3..7).contains(&waited)), "{lost}");
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(!socket.exists(), "nobody connects any more");
    // A card that dies meanwhile has a successor that goes on with it.
    kill_card(machine, "desk", LONG).unwrap();
    signal_all(&store.process, Signal::CONT);
    events::next(&mut seen, "loan-returned");
    wait_free(machine);
    for node in [&mut desk, &mut store.process] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}

/// `causeway borrow` of one function ends with its loan, when its lender has the function back: with what exit codes
/// say of a lender that was not there.
#[test]
fn a_command_that_borrows_ends_with_its_loan() {
    let _place = gate::waits();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut store = start_store(machine);
    let hold = ["--on-silence", "hold(3)"];
    // The machine is not there yet.
    let monitor = machine.dir().join("qmp.sock");
    let monitor = ["--qmp", monitor.to_str().unwrap()];
    for is_slot in [false, true] {
        let line = &store.lines[0];
        let (mut process, socket) = if is_slot {
            let slot = Slot::start_as(machine, "desk", line, &[hold, monitor].concat()).unwrap();
            (slot.process, slot.socket)
        } else {
            let borrower = Borrower::start_as(machine, "desk", line, &hold).unwrap();
            (borrower.process, borrower.socket)
        };
        let mut seen = events::follow(machine, "desk");
        signal_all(&store.process, Signal::STOP);
        let lost = events::next(&mut seen, if is_slot { "slot-lost" } else { "loan-lost" });
        assert!(lost["silent_s"].as_u64().is_some_and(|waited| (3..7).contains(&waited)), "{lost}");
        poll_until("a socket to go", LONG, || Ok((!socket.exists()).then_some(()))).unwrap();
        assert!(is_running(process.pid()), "its lender does not know yet");
        signal_all(&store.process, Signal::CONT);
        let code = process.wait(LONG).unwrap().code();
        assert_eq!(code, Some(4), "{}", process.tail());
        assert!(process.tail().contains("so the loan has ended"), "{}", process.tail());
        wait_free(machine);
    }
    assert_eq!(store.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", store.process.tail());
}
