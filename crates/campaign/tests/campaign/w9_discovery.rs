//! W9: nodes hear of each other on their rails, prove nothing by it, and a function is borrowed by the name of its
//! node, wherever that is today.

use crate::events;
use crate::switches::{self, at, id, keep_rails, port};
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, kill_card, status};
use campaign::gate;
use campaign::load::{Load, Model};
use campaign::process::{Outcome, Process, poll_until, run, run_to_end};
use campaign::scale;
use campaign::world::{Machine, Mesh};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// Sends COUNT datagrams to where information frames go: rubbish, and frames of their kind with rubbish in them.
const HOSTILE: &str = r#"
import random, socket, struct, sys
own, count = sys.argv[1], int(sys.argv[2])
random.seed(9)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
for n in range(count):
    head = bytes([1, 6, 0, 128]) + struct.pack("<IIIHHIIIQQQQ", 0, 0, 5, 1, 0, 0, 0, 0, 0, 1, 0, n)
    head = head if n % 2 else b""
    s.sendto(head + random.randbytes(random.randrange(0, 1300 - len(head))), ("239.255.136.181", 7410))
"#;

fn peers(machine: &Machine, name: &str) -> Value {
    let mut command = machine.command(binary().unwrap());
    command.args(["peers", "--name", name, "-o", "json"]);
    serde_json::from_str(&run(command).unwrap()).unwrap()
}

/// What `name` knows of the peer called `peer`, once that is so and `is_it` says so.
fn hears(machine: &Machine, name: &str, peer: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    poll_until(&format!("{name} hears {peer}"), LONG, || {
        let all = peers(machine, name);
        let found = all["peers"].as_array().unwrap().iter().find(|it| it["name"] == peer && is_it(it));
        Ok(found.cloned())
    })
    .unwrap()
}

/// A node that lends a little memory, by a file, and its line.
fn start_node(machine: &Machine, name: &str, rails: &str) -> (Process, String) {
    let file = machine.dir().join(format!("{name}.toml"));
    let devices = "[[devices]]\nfunction = \"spare\"\nsource = \"ram:1M\"\n";
    std::fs::write(&file, format!("name = \"{name}\"\n{rails}{devices}")).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(file);
    let mut node = machine.spawn(name, command).unwrap();
    let line = node.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    (node, line)
}

fn by_name(machine: &Machine, wanted: &str, line: &Path, socket: &Path, patience: &str) -> Command {
    let mut command = machine.command(binary().unwrap());
    command.args(["borrow", wanted, "--name", "guest", "--io-timeout", patience, "--secret"]);
    command.arg(format!("@{}", line.display())).arg("--nbd").arg(socket);
    command
}

fn refused(machine: &Machine, wanted: &str, line: &Path) -> Outcome {
    let socket = machine.dir().join("refused.sock");
    run_to_end(by_name(machine, wanted, line, &socket, "7"), machine.dir(), "refused", LONG).unwrap()
}

fn kept_line(machine: &Machine, name: &str, line: &str) -> PathBuf {
    let file = machine.dir().join(name);
    std::fs::write(&file, line).unwrap();
    file
}

#[test]
fn w9_nodes_hear_each_other_and_a_function_is_borrowed_by_name() {
    let _place = gate::waits();
    let mesh = Mesh::new(3, 2).unwrap();
    let [left, right, third] = mesh.machines() else { panic!("three machines") };
    let image = mesh.dir().join("moving.img");
    std::fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let image = image.display().to_string();
    let listen = ["--listen", &at(right, 0), "--listen", &at(right, 1)];
    let mut lender = Lender::start_as(right, "store", &[&image], &listen).unwrap();
    let line = kept_line(left, "store.line", &lender.lines[0]);

    // One that listens on one of the two rails, says nothing on the other, and hears of what is there.
    let rails = format!(
        "[[rails]]\nname = \"a\"\nlisten = \"{}\"\n[[rails]]\nname = \"b\"\nlisten = \"{}\"\nannounce = false\n",
        at(third, 0),
        at(third, 1)
    );
    let (mut watcher, _) = start_node(third, "watcher", &rails);
    let it = hears(third, "watcher", "store", |_| true);
    assert_eq!(it["node"], status(right, "store").unwrap()["node"]["id"]);
    assert_eq!(it["over"], serde_json::json!(["a"]), "{it}");
    let addresses: Vec<&str> =
        it["rails"].as_array().unwrap().iter().map(|rail| rail["address"].as_str().unwrap()).collect();
    assert_eq!(addresses, [at(right, 0), at(right, 1)]);
    let function = &it["functions"][0];
    assert_eq!((&function["function"], &function["bytes"]), (&"nvme0".into(), &(16 * MIB).into()), "{it}");
    assert_eq!(function["lent_to"], Value::Null);
    let heard = hears(right, "store", "watcher", |_| true);
    assert_eq!(heard["over"], serde_json::json!(["rail0"]), "nothing is said on the other rail: {heard}");
    let key = lender.lines[0].split(['/', '@']).nth(2).unwrap();
    assert!(!peers(third, "watcher").to_string().contains(key), "no secret is told");

    // Somebody who knows but the name and the secret.
    let socket = left.dir().join("named.sock");
    let mut borrow = left.spawn("named", by_name(left, "store/nvme0", &line, &socket, "30")).unwrap();
    borrow.wait_line("its edge", LONG, |line| line.starts_with("nbd+unix:")).unwrap();
    let load = Load::start(&socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(300, LONG).unwrap();
    let model = load.stop_whole(&socket).unwrap().model;
    let own = status(left, "guest").unwrap()["node"]["id"].clone();
    hears(third, "watcher", "store", |it| it["functions"][0]["lent_to"] == own);
    assert_eq!(borrow.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrow.tail());

    // What comes to harm, or means it, is counted: no more of it than a socket's queue takes at once.
    let mut hostile = left.command("python3");
    hostile.args(["-c", HOSTILE, &left.addresses()[0].to_string(), "60"]);
    run(hostile).unwrap();
    poll_until("the rubbish is counted", LONG, || {
        let all = peers(third, "watcher");
        Ok((all["malformed_frames"].as_u64() >= Some(60)).then_some(()))
    })
    .unwrap();
    assert_eq!(peers(third, "watcher")["peers"].as_array().unwrap().len(), 1);

    // It is elsewhere now, with what it had; the line is the old one.
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    std::fs::create_dir_all(third.dir().join("state")).unwrap();
    let [from, to] = [right, third].map(|machine| machine.dir().join("state").join("store"));
    std::fs::rename(from, to).unwrap();
    let moved = format!("{}:7500", third.addresses()[1]);
    let listen = ["--listen", &moved];
    let mut lender = Lender::start_as(third, "store", &[&image], &listen).unwrap();
    let mut borrow = left.spawn("named", by_name(left, "store/nvme0", &line, &socket, "30")).unwrap();
    borrow.wait_line("its edge", LONG, |line| line.starts_with("nbd+unix:")).unwrap();
    let load = Load::start(&socket, model, 8).unwrap();
    load.wait_done(300, LONG).unwrap();
    load.stop_whole(&socket).unwrap();
    assert_eq!(borrow.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrow.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());

    // Whoever takes its name has not its key.
    let rail = format!("[[rails]]\nname = \"a\"\nlisten = \"{}\"\n", at(right, 0));
    let (mut impostor, _) = start_node(right, "store", &rail);
    let outcome = refused(left, "store/nvme0", &line);
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("calls itself store is there, but it is"), "{}", outcome.stderr);
    let outcome = refused(left, "elsewhere/nvme0", &line);
    assert_eq!(outcome.code, Some(4), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no node called elsewhere was heard within 7 s"), "{}", outcome.stderr);
    let outcome = refused(left, "store/spare", &line);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert_eq!(impostor.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", impostor.tail());
    assert_eq!(watcher.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", watcher.tail());
}

/// A borrower that leads nowhere in particular hears others, and says nothing.
#[test]
fn w9_a_borrower_hears_and_is_not_heard() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let mut lender = Lender::start(right, &["ram:1M"], &["--listen", &at(right, 0)]).unwrap();
    let mut borrower = Borrower::start(left, &lender.lines[0], &[]).unwrap();
    hears(left, "borrower", "lender", |it| !it["functions"][0]["lent_to"].is_null());
    assert_eq!(peers(right, "lender")["peers"], serde_json::json!([]));
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

/// Over Ethernet a borrower says by which interface it listens.
#[test]
fn w9_over_ethernet_a_function_is_borrowed_by_name() {
    let _place = gate::waits();
    let mesh = Mesh::new(3, 1).unwrap();
    let [left, right, third] = mesh.machines() else { panic!("three machines") };
    let mut lender = Lender::start_as(right, "store", &["ram:16M"], &["--listen", "eth:rail0"]).unwrap();
    let line = kept_line(left, "store.line", &lender.lines[0]);
    let rails = "[[rails]]\nname = \"a\"\nethernet = \"rail0\"\n";
    let (mut watcher, _) = start_node(third, "watcher", rails);
    let it = hears(third, "watcher", "store", |_| true);
    assert_eq!(it["over"], serde_json::json!(["a"]), "{it}");
    let address = it["rails"][0]["address"].as_str().unwrap();
    assert!(address.starts_with("eth:"), "{it}");
    hears(right, "store", "watcher", |_| true);
    let function = it["functions"][0]["function"].as_str().unwrap();
    let wanted = format!("store/{function}");
    let socket = left.dir().join("named.sock");
    let mut by_interface = by_name(left, &wanted, &line, &socket, "30");
    by_interface.args(["--ethernet", "rail0"]);
    let mut borrow = left.spawn("named", by_interface).unwrap();
    borrow.wait_line("its edge", LONG, |line| line.starts_with("nbd+unix:")).unwrap();
    let load = Load::start(&socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(300, LONG).unwrap();
    load.stop_whole(&socket).unwrap();
    assert_eq!(borrow.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrow.tail());

    // Nobody listens on Ethernet without being told where.
    let outcome = refused(left, &wanted, &line);
    assert_eq!(outcome.code, Some(4), "{}", outcome.stderr);
    let mut nowhere = by_name(left, &wanted, &line, &socket, "7");
    nowhere.args(["--ethernet", "lo"]);
    let outcome = run_to_end(nowhere, left.dir(), "nowhere", LONG).unwrap();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("lo is no Ethernet interface"), "{}", outcome.stderr);
    assert_eq!(watcher.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", watcher.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

fn topo(machine: &Machine, name: &str, format: &str) -> String {
    let mut command = machine.command(binary().unwrap());
    command.args(["topo", "--name", name, "-o", format]);
    run(command).unwrap()
}

/// Who is behind a switch is heard through it, also by those who have nothing to do with each other, and `topo` says
/// who is where, who has what, and what is dead.
#[test]
fn w7_w9_nodes_behind_a_switch_know_of_each_other_and_of_what_is_dead() {
    let _place = gate::waits();
    let mesh = Mesh::new(4, 2).unwrap();
    let [left, right, third, middle] = mesh.machines() else { panic!("four machines") };
    keep_rails(left, &[0]);
    keep_rails(right, &[1]);
    keep_rails(third, &[0]);
    let of = |machine: &Machine, name: &str| format!("nodes = [\"{}\"]", id(machine, name));
    let text = port("left", &at(middle, 0), &at(left, 0), &of(left, "borrower"))
        + &port("third", &at(middle, 0), &at(third, 0), &of(third, "watcher"))
        + &port("right", &at(middle, 1), &at(right, 1), &of(right, "store"));
    let mut switch = switches::start(middle, "s", &text);
    let lend = ["--listen", &at(right, 1), "--switch", &at(middle, 1)];
    let mut lender = Lender::start_as(right, "store", &["ram:16M"], &lend).unwrap();
    let state = third.dir().join("state/watcher");
    let rails = format!(
        "state_dir = \"{}\"\n[[rails]]\nname = \"a\"\nlisten = \"{}\"\nswitch = \"{}\"\n",
        state.display(),
        at(third, 0),
        at(middle, 0)
    );
    let (mut watcher, _) = start_node(third, "watcher", &rails);
    let store = hears(third, "watcher", "store", |_| true);
    assert_eq!(store["rails"][0]["switch"], at(middle, 1), "{store}");
    assert_eq!(store["over"], serde_json::json!(["a"]), "{store}");
    hears(right, "store", "watcher", |_| true);

    // By its name, where the line's address is that of the switch anyhow.
    let line = kept_line(left, "store.line", &lender.lines[0]);
    let socket = left.dir().join("named.sock");
    let function = store["functions"][0]["function"].as_str().unwrap();
    let mut command = by_name(left, &format!("store/{function}"), &line, &socket, "30");
    command.args(["--switch", &at(middle, 0), "--listen", &at(left, 0), "--no-shm"]);
    command.arg("--state-dir").arg(left.dir().join("state/borrower"));
    let mut borrow = left.spawn("named", command).unwrap();
    borrow.wait_line("its edge", LONG, |line| line.starts_with("nbd+unix:")).unwrap();
    let own = status(left, "guest").unwrap()["node"]["id"].clone();
    hears(third, "watcher", "store", |it| it["functions"][0]["lent_to"] == own);
    hears(left, "guest", "watcher", |_| true);

    // One that has nothing of it knows of the loan, and whoever is behind which switch.
    let known: Value = serde_json::from_str(&topo(third, "watcher", "json")).unwrap();
    let loans = known["loans"].as_array().unwrap();
    let loan = loans.iter().find(|loan| loan["function"] == function).unwrap();
    assert_eq!((&loan["lender"], &loan["borrower"]), (&store["node"], &own), "{known}");
    // The switch says who it is: its two addresses are those of one.
    let its_id = status(middle, "s").unwrap()["node"]["id"].clone();
    let it = hears(third, "watcher", "s", |it| it["role"] == "switch");
    let both = serde_json::json!([at(middle, 0), at(middle, 1)]);
    assert_eq!((&it["node"], &it["ports"], &it["functions"]), (&its_id, &both, &serde_json::json!([])));
    let known: Value = serde_json::from_str(&topo(third, "watcher", "json")).unwrap();
    let [one] = &known["switches"].as_array().unwrap()[..] else { panic!("{known}") };
    assert_eq!((&one["name"], &one["id"], &one["addresses"]), (&"s".into(), &it["node"], &both), "{known}");
    assert_eq!(one["nodes"].as_array().unwrap().len(), 3, "{known}");
    assert!(known["nodes"].as_array().unwrap().iter().all(|node| node["name"] != "s"), "{known}");
    let linked: Value = serde_json::from_str(&topo(left, "guest", "json")).unwrap();
    let link = &linked["links"][0];
    assert_eq!((&link["to"], &link["switch"]), (&store["node"], &at(middle, 0).into()), "{linked}");
    assert_eq!((&link["state"], &linked["dead"]), (&"up".into(), &serde_json::json!([])), "{linked}");
    let told = topo(left, "guest", "text");
    assert!(told.contains("store") && told.contains("watcher") && !told.contains("DEAD"), "{told}");
    let graph = topo(left, "guest", "dot");
    assert!(graph.starts_with("graph causeway {") && graph.contains("shape=diamond"), "{graph}");

    // It dies, and whoever has something of it says so.
    lender.process.kill().unwrap();
    poll_until("what is dead to be told", LONG, || {
        let told = topo(left, "guest", "text");
        Ok(told.contains("node store is not heard").then_some(()))
    })
    .unwrap();
    assert!(topo(left, "guest", "dot").contains("color=red"));
    let mut command = middle.command(binary().unwrap());
    command.args(["topo", "--name", "s"]);
    let outcome = run_to_end(command, &middle.dir().join("logs"), "topo", LONG).unwrap();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("s is a switch, which knows no nodes"), "{}", outcome.stderr);

    // So does the switch, and who is behind it knows whom it does not hear.
    assert_eq!((&one["state"], &known["dead"]), (&"heard".into(), &serde_json::json!([])), "{known}");
    switch.kill().unwrap();
    poll_until("the dead switch to be told", LONG, || {
        let told = topo(third, "watcher", "text");
        Ok(told.contains("switch s is not heard").then_some(()))
    })
    .unwrap();
    let known: Value = serde_json::from_str(&topo(third, "watcher", "json")).unwrap();
    assert_eq!((&known["switches"][0]["state"], &known["switches"][0]["id"]), (&"silent".into(), &its_id));
    assert_eq!(
        (&known["dead"][0]["kind"], &known["dead"][0]["node"]),
        (&"switch".into(), &its_id),
        "{known}"
    );
    assert!(topo(third, "watcher", "dot").contains("shape=diamond, color=red"));
    borrow.kill().unwrap();
    assert_eq!(watcher.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", watcher.tail());
}

/// Repeats each frame that comes to where information frames go, COUNT times in all, as anybody on the segment can.
const REPEATER: &str = r#"
import socket, struct, sys
own, count = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("239.255.136.181", 7410))
group = socket.inet_aton("239.255.136.181")
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + socket.inet_aton(own))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
print("ready", flush=True)
while count:
    frame = s.recv(2000)
    for _ in range(10):
        s.sendto(frame, ("239.255.136.181", 7410))
        count -= 1
"#;

/// One frame tells all who have the group's key of a rail: once, though somebody repeats it, and nobody who has another
/// key.
#[test]
fn w3_a_notice_to_all_is_heard_by_those_who_have_the_key() {
    let _place = gate::waits();
    let mesh = Mesh::new(4, 2).unwrap();
    let [teller, idle, borrower, other] = mesh.machines() else { panic!("four machines") };
    let start = |machine: &Machine, name: &str, digit: &str, more: &str| {
        std::fs::write(machine.dir().join("fabric.key"), digit.repeat(64)).unwrap();
        let rail =
            |rail: usize| format!("[[rails]]\nname = \"r{rail}\"\nlisten = \"{}\"\n", at(machine, rail));
        start_node(machine, name, &format!("group_key = \"fabric.key\"\n{}{}{more}", rail(0), rail(1)))
    };
    let (_teller, line) = start(teller, "teller", "a", "");
    let loan = format!("[[loans]]\nline = \"{line}\"\nnbd = \"b.sock\"\n");
    let _idle = start(idle, "idle", "a", "");
    let _borrower = start(borrower, "borrower", "a", &loan);
    let _other = start(other, "other", "b", "");
    let of = [(teller, "teller", "borrower", true), (idle, "idle", "teller", true)];
    for (machine, name, peer, is_member) in
        of.into_iter().chain([(borrower, "borrower", "teller", true), (teller, "teller", "other", false)])
    {
        hears(machine, name, peer, |it| it["member"] == is_member);
    }
    let mut repeater = other.command("python3");
    repeater.args(["-c", REPEATER, &other.addresses()[1].to_string(), "1000000"]);
    let mut repeater = other.spawn("repeater", repeater).unwrap();
    repeater.wait_line("that it listens", LONG, |line| line == "ready").unwrap();
    let mut follower = events::follow(borrower, "borrower");
    poll_until("both rails are up", LONG, || {
        let rails = status(borrower, "borrower")?["rails"].clone();
        Ok(rails.as_array().unwrap().iter().all(|rail| rail["state"] == "up").then_some(()))
    })
    .unwrap();
    switches::ip(teller, &["link", "set", "rail0", "down"]);
    let doubted = events::next(&mut follower, "rail-doubted");
    let teller_id = &status(teller, "teller").unwrap()["node"]["id"];
    assert_eq!((&doubted["rail"], &doubted["peer"]), (&0.into(), teller_id), "{doubted}");
    assert_eq!(doubted["cause"], "it has no carrier");
    // The borrower misses it as well, and may say so.
    let count = |machine: &Machine, name: &str, what: &str| peers(machine, name)[what].as_u64().unwrap();
    let all_heard = || {
        let sent = count(teller, "teller", "notices_sent") + count(borrower, "borrower", "notices_sent");
        (sent, count(idle, "idle", "notices_heard"))
    };
    poll_until("each notice is heard", LONG, || {
        let (sent, heard) = all_heard();
        Ok((sent > 0 && sent == heard).then_some(()))
    })
    .unwrap();
    // More of what is repeated has come meanwhile.
    let seen = count(idle, "idle", "heard_frames");
    poll_until("it hears more", LONG, || Ok((count(idle, "idle", "heard_frames") > seen + 50).then_some(())))
        .unwrap();
    let (sent, heard) = all_heard();
    assert!(heard <= sent, "{heard} of {sent}");
    assert_eq!(count(other, "other", "notices_heard"), 0);
}

/// A lender is where no line says that it is, and knows nobody: a borrower that runs hears of it and calls it there,
/// and so does its next card.
#[test]
fn w9_a_borrower_calls_its_lender_where_that_says_it_is() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let lend = |port: &str| {
        let listen = at(right, 0).replace("7411", port);
        Lender::start_as(right, "store", &["ram:16M"], &["--listen", &listen]).unwrap()
    };
    let mut lender = lend("7411");
    let line = lender.lines[0].clone();
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    let mut borrower = Borrower::begin(left, "borrower", &line, &["--io-timeout", "60"]).unwrap();
    let _lender = lend("7500");
    borrower.wait_usable(LONG).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(200, LONG).unwrap();
    kill_card(left, "borrower", LONG).unwrap();
    load.wait_done(200, LONG).unwrap();
    load.stop_whole(&borrower.socket).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
}
