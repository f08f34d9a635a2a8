//! W1: nodes on one segment lend and borrow over raw Ethernet, two rails of it, through a plain bridge; links go down,
//! cards are killed. What cannot be used is refused by name.

use crate::events;
use campaign::causeway::{
    Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, borrow_command, kill_card, status,
};
use campaign::load::{Load, Model};
use campaign::process::{Process, poll_until, run, run_to_end};
use campaign::world::{Machine, Mesh};
use campaign::{Error, gate, scale};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);
const BOTH: [&str; 4] = ["--listen", "eth:rail0", "--listen", "eth:rail1"];

fn ip(machine: &Machine, words: &[&str]) -> Command {
    let mut command = machine.command("ip");
    command.args(words);
    command
}

fn set_link(machine: &Machine, device: &str, state: &str) {
    run(ip(machine, &["link", "set", device, state])).unwrap();
}

fn wait_rail(machine: &Machine, name: &str, rail: usize, state: &str) -> Result<Value, Error> {
    poll_until(&format!("rail {rail} of {name} to be {state}"), LONG, || {
        let rail = status(machine, name)?["rails"][rail].clone();
        Ok((rail["state"] == state).then_some(rail))
    })
}

#[test]
fn w1_a_drive_over_two_ethernet_rails() {
    let _place = gate::alone();
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let mut lender = Lender::start(right, &["ram:16M"], &BOTH).unwrap();
    let line = &lender.lines[0];
    assert_eq!(line.matches("eth:").count(), 2, "{line}");
    let chosen = ["--ethernet", "rail0", "--ethernet", "rail1"];
    let mut borrower = Borrower::start(left, line, &chosen).unwrap();
    let ends = [(left, "borrower"), (right, "lender")];
    for (machine, name) in ends {
        for rail in [0, 1] {
            let rail = wait_rail(machine, name, rail, "up").unwrap();
            let is_address = |key: &str| rail[key].as_str().unwrap().starts_with("eth:");
            assert!(rail["medium"] == "ethernet" && is_address("local") && is_address("peer"), "{rail}");
        }
    }
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(500, LONG).unwrap();
    for round in 0..scale::kills(2) {
        let rail = (round % 2) as usize;
        let device = format!("rail{rail}");
        for (machine, name) in ends {
            set_link(machine, &device, "down");
            load.wait_done(500, LONG).unwrap();
            kill_card(machine, name, LONG).unwrap();
            load.wait_done(500, LONG).unwrap();
            set_link(machine, &device, "up");
            ends.iter().for_each(|(machine, name)| drop(wait_rail(machine, name, rail, "up").unwrap()));
        }
    }
    load.stop_whole(&borrower.socket).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

/// Where the segment carries frames of 9,000 bytes they are used: a page and its header go in one.
#[test]
fn w1_jumbo_frames_are_used() {
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let enlarge = |mut command: Command, device: &str| {
        command.args(["link", "set", device, "mtu", "9000"]);
        run(command).unwrap();
    };
    for port in ["m1r0", "m2r0"] {
        let mut command = mesh.bridges();
        command.arg("ip");
        enlarge(command, port);
    }
    for machine in [left, right] {
        enlarge(machine.command("ip"), "rail0");
    }
    let nft = |words: &str| {
        let mut command = left.command("nft");
        command.arg(words);
        run(command).unwrap()
    };
    nft("add table netdev sizes");
    nft("add chain netdev sizes come { type filter hook ingress device rail0 priority 0; }");
    nft("add rule netdev sizes come meta length > 4096 counter");
    let lender = Lender::start(right, &["ram:16M"], &["--listen", "eth:rail0"]).unwrap();
    let borrower = Borrower::start(left, &lender.lines[0], &["--ethernet", "rail0"]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(500, LONG).unwrap();
    let counted = nft("list table netdev sizes");
    let words = counted.split_whitespace().skip_while(|word| *word != "packets");
    let large: u64 = words.skip(1).map_while(|word| word.parse().ok()).next().unwrap();
    assert!(large > 50, "{counted}");
    load.stop_whole(&borrower.socket).unwrap();
}

/// The next event of a kind is of this rail.
fn wait_event(follower: &mut Process, kind: &str, rail: &str) {
    let event = events::next(follower, kind);
    assert_eq!((&event["rail"], &event["interface"]), (&rail.into(), &rail.into()), "{event}");
}

/// The kernel knows of it before anything is missed, of a rail over UDP as of one over Ethernet: I/O goes on, and the
/// rail is used again when it is back.
#[test]
fn w2_a_lost_carrier_is_known_at_once() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let [first, second] = [0, 1].map(|rail| right.addresses()[rail].to_string());
    let over_udp = ["--listen", &first, "--listen", &second];
    for (lends, borrows) in [(over_udp, &[][..]), (BOTH, &["--ethernet", "rail0", "--ethernet", "rail1"])] {
        let lender = Lender::start(right, &["ram:16M"], &lends).unwrap();
        let borrower = Borrower::start(left, &lender.lines[0], borrows).unwrap();
        let ends = [(left, "borrower"), (right, "lender")];
        for rail in [0, 1] {
            ends.iter().for_each(|(machine, name)| drop(wait_rail(machine, name, rail, "up").unwrap()));
        }
        let mut follower = events::follow(right, "lender");
        let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
        for rail in [0, 1] {
            load.wait_done(200, LONG).unwrap();
            let device = format!("rail{rail}");
            set_link(right, &device, "down");
            wait_event(&mut follower, "interface-down", &device);
            load.wait_done(500, LONG).unwrap();
            drop(wait_rail(left, "borrower", rail, "down").unwrap());
            // A card that starts now knows it too.
            kill_card(right, "lender", LONG).unwrap();
            load.wait_done(500, LONG).unwrap();
            set_link(right, &device, "up");
            wait_event(&mut follower, "interface-up", &device);
            ends.iter().for_each(|(machine, name)| drop(wait_rail(machine, name, rail, "up").unwrap()));
        }
        load.stop_whole(&borrower.socket).unwrap();
    }
}

/// An interface that is taken away costs its rail and nothing else, also when the card dies after it.
#[test]
fn w1_an_interface_that_goes_takes_no_card_with_it() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let lender = Lender::start(right, &["ram:16M"], &BOTH).unwrap();
    let chosen = ["--ethernet", "rail0", "--ethernet", "rail1"];
    let borrower = Borrower::start(left, &lender.lines[0], &chosen).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
    load.wait_done(200, LONG).unwrap();
    run(ip(left, &["link", "del", "rail1"])).unwrap();
    for (machine, name) in [(left, "borrower"), (right, "lender")] {
        load.wait_done(200, LONG).unwrap();
        kill_card(machine, name, LONG).unwrap();
        load.wait_done(200, LONG).unwrap();
    }
    load.stop_whole(&borrower.socket).unwrap();
}

/// What one end could send is more than the other one's interface takes.
#[test]
fn w1_the_smaller_mtu_is_that_of_both() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    for (lender, borrower) in [(left, right), (right, left)] {
        run(ip(left, &["link", "set", "rail0", "mtu", "9000"])).unwrap();
        let lent = Lender::start(lender, &["ram:16M"], &BOTH[..2]).unwrap();
        let borrowed = Borrower::start(borrower, &lent.lines[0], &[]).unwrap();
        let load = Load::start(&borrowed.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
        load.wait_done(200, LONG).unwrap();
        load.stop_whole(&borrowed.socket).unwrap();
    }
}

/// Others were promised larger frames: nothing changes, and no card dies of it.
#[test]
fn x_a_rail_of_smaller_frames_than_promised_is_refused_by_name() {
    let _place = gate::waits();
    let mesh = Mesh::new(1, 1).unwrap();
    let machine = &mesh.machines()[0];
    let file = machine.dir().join("node.toml");
    let config = |rails: &str| {
        let text = format!(
            "name = \"n\"\n[[rails]]\nname = \"u\"\nlisten = \"{}\"\n{rails}[[devices]]\nfunction = \"d\"\nsource = \
             \"ram:1M\"\n",
            machine.addresses()[0]
        );
        std::fs::write(&file, text).unwrap();
    };
    let reload = || {
        let mut command = machine.command(binary().unwrap());
        command.args(["reload", "--name", "n"]);
        run_to_end(command, &machine.dir().join("logs"), "reload", START_TIMEOUT).unwrap()
    };
    config("");
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(&file);
    let mut node = machine.spawn("n", command).unwrap();
    node.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    config("[[rails]]\nname = \"e\"\nethernet = \"rail0\"\n");
    let outcome = reload();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("rail e takes smaller frames"), "{outcome:?}");
    run(ip(machine, &["link", "set", "rail0", "mtu", "9000"])).unwrap();
    let outcome = reload();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("rail e added"), "{outcome:?}");
    assert_eq!(status(machine, "n").unwrap()["cards"][0]["generation"], 1);
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
}

/// A borrower that cannot tell which interface leads to the lender, or may use none, goes where it can.
#[test]
fn w1_a_lender_on_ethernet_and_udp_is_reached_over_either() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let udp = right.addresses()[1].to_string();
    let lender = Lender::start(right, &["ram:16M"], &["--listen", "eth:rail0", "--listen", &udp]).unwrap();
    let line = &lender.lines[0];
    let rails = |name: &str| {
        let told = status(left, name).unwrap();
        let rails = told["rails"].as_array().unwrap().clone();
        rails.iter().map(|rail| rail["medium"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (chosen, media) in [(&["--ethernet", "rail0"][..], &["ethernet", "udp"][..]), (&[], &["udp"])] {
        let mut borrower = Borrower::start(left, line, chosen).unwrap();
        assert_eq!(rails("borrower"), media);
        if chosen.is_empty() {
            let told = "not used here: the lender is reached over Ethernet, and several interfaces are up";
            borrower.process.wait_log(told, LONG, |line| line.contains(told)).unwrap();
        }
        assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    }
}

#[test]
fn x_interfaces_that_cannot_be_used_are_refused_by_name() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let lend = |before: &[&str], listen: &str| {
        let mut command = right.command(before.first().copied().map_or(binary().unwrap(), Into::into));
        if let [_, rest @ ..] = before {
            command.args(rest).arg(binary().unwrap());
        }
        command.args(["lend", "ram:16M", "--listen", listen, "--name", "refused"]);
        refusal(right, command)
    };
    let unprivileged = ["setpriv", "--bounding-set=-net_raw", "--"];
    set_link(right, "rail1", "down");
    run(ip(right, &["link", "set", "rail0", "mtu", "1000"])).unwrap();
    for (before, listen, exit, words) in [
        (&[][..], "eth:none", 3, "there is no interface none on this machine"),
        (&[], "eth:lo", 3, "lo is no Ethernet interface"),
        (&[], "eth:rail0", 3, "the MTU of rail0 is below 1280"),
        (&[], "eth:a/b", 2, "is no name of an interface"),
        (&unprivileged, "eth:rail1", 3, "CAP_NET_RAW"),
    ] {
        let (found, told) = lend(before, listen);
        assert!(found == exit && told.contains(words), "{listen}: {found}: {told}");
    }

    // One that is down only waits.
    let mut lender = Lender::start(right, &["ram:16M"], &["--listen", "eth:rail1"]).unwrap();
    lender.process.wait_log("its interface", LONG, |line| line.contains("rail1 is down")).unwrap();
    let borrow = |arguments: &[&str]| {
        let command = borrow_command(left, "refused", &lender.lines[0], arguments).unwrap();
        refusal(left, command)
    };
    let (exit, told) = borrow(&[]);
    assert!(exit == 2 && told.contains("several interfaces are up here: rail0, rail1"), "{exit}: {told}");
    let (exit, told) = borrow(&["--ethernet", "rail1", "--ethernet", "rail0"]);
    assert!(exit == 2 && told.contains("rail0 leads to no address"), "{exit}: {told}");
    let mut borrower = Borrower::begin(left, "borrower", &lender.lines[0], &["--ethernet", "rail1"]).unwrap();
    set_link(right, "rail1", "up");
    borrower.wait_usable(LONG).unwrap();

    // Nobody hears what it sends itself.
    let command = borrow_command(right, "own", &lender.lines[0], &["--ethernet", "rail1"]).unwrap();
    let (exit, told) = refusal(right, command);
    assert!(exit == 3 && told.contains("is rail1 of this very machine"), "{exit}: {told}");
}

/// How a command ended that is expected to be refused, and what it said.
fn refusal(machine: &Machine, command: Command) -> (i32, String) {
    let outcome = run_to_end(command, &machine.dir().join("logs"), "refused", START_TIMEOUT).unwrap();
    assert!(outcome.stdout.is_empty() && !outcome.stderr.contains("panicked"), "{outcome:?}");
    (outcome.code.unwrap(), outcome.stderr)
}
