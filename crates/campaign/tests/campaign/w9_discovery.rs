//! W9: nodes hear of each other on their rails, prove nothing by it, and a function is borrowed by the name of its
//! node, wherever that is today.

use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, status};
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

fn at(machine: &Machine, rail: usize) -> String {
    format!("{}:7411", machine.addresses()[rail])
}

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

/// A node that lends a little memory, by a file.
fn start_node(machine: &Machine, name: &str, rails: &str) -> Process {
    let file = machine.dir().join(format!("{name}.toml"));
    let devices = "[[devices]]\nfunction = \"spare\"\nsource = \"ram:1M\"\n";
    std::fs::write(&file, format!("name = \"{name}\"\n{rails}{devices}")).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(file);
    let mut node = machine.spawn(name, command).unwrap();
    node.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    node
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
    let mut watcher = start_node(third, "watcher", &rails);
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
    let mut impostor = start_node(right, "store", &rail);
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
