//! W5: nodes that do not reach each other are joined by switches, over UDP and Ethernet, while these are killed and
//! links between them are cut. What is forged is dropped and counted; what cannot be a switch is refused by name.

use crate::switches::{
    Way, at, heal, id, ip, keep_rails, lose, mac, port, port_of, start, switch_command, write,
};
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, kill_card, number, status};
use campaign::load::{Load, Model};
use campaign::process::{poll_until, run, run_to_end};
use campaign::world::{Machine, Mesh};
use campaign::{gate, scale};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// Sends COUNT random datagrams, then COUNT frames that say they are from another node, each to the same place.
const HOSTILE: &str = r#"
import random, socket, struct, sys
own, port, target, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
forged, victim = int(sys.argv[5]), int(sys.argv[6])
random.seed(7)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((own, port))
for n in range(count):
    s.sendto(bytes([random.choice([0, 2, 255])]) + random.randbytes(random.randrange(0, 1200)), (target, 7411))
for n in range(count):
    head = bytes([1, 3, 0, 32 << 2]) + struct.pack("<IIIHHIIIQQQQ", 0, victim, forged, 1, 0, 1, 1, 0, 0, 1, 1, n)
    s.sendto(head + random.randbytes(200), (target, 7411))
"#;

/// Nodes that have nothing but the switch go on with their work, however often it dies.
#[test]
fn w5_a_switch_is_killed_again_and_again() {
    let _place = gate::alone();
    let mesh = Mesh::new(3, 2).unwrap();
    let [left, right, middle] = mesh.machines() else { panic!("three machines") };
    keep_rails(left, &[0]);
    keep_rails(right, &[1]);
    let text = port("left", &at(middle, 0), &at(left, 0), &format!("nodes = [\"{}\"]", id(left, "borrower")))
        + &port("right", &at(middle, 1), &at(right, 1), &format!("nodes = [\"{}\"]", id(right, "lender")));
    let mut switch = start(middle, "s", &text);
    let own_id = status(middle, "s").unwrap()["node"]["id"].clone();
    let lend = ["--listen", &at(right, 1), "--switch", &at(middle, 1)];
    let mut lender = Lender::start(right, &["ram:16M", "ram:16M"], &lend).unwrap();
    let borrow = ["--listen", &at(left, 0), "--switch", &at(middle, 0), "--io-timeout", "120"];
    let mut borrower = Borrower::start(left, &lender.lines[0], &borrow).unwrap();
    let rail = &status(left, "borrower").unwrap()["rails"][0];
    assert_eq!(rail["peer"].as_str().unwrap(), at(middle, 0), "all is sent to the switch: {rail}");
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(500, LONG).unwrap();
    for round in 0..scale::kills(4) {
        switch.kill().unwrap();
        // From a moment to longer than a peer is waited for before it is called anew.
        std::thread::sleep(Duration::from_millis([20, 300, 900, 2500][round as usize % 4]));
        switch = start(middle, "s", &text);
        load.wait_done(500, LONG).unwrap();
        let counts = port_of(middle, "s", "left");
        assert!(counts["received_frames"].as_u64() > Some(100) && counts["state"] == "up", "{counts}");
        assert_eq!(status(middle, "s").unwrap()["node"]["id"], own_id, "it is the same node");
    }
    // A card whose peers are all behind the switch, and a switch that dies with it.
    kill_card(right, "lender", LONG).unwrap();
    load.wait_done(500, LONG).unwrap();
    switch.kill().unwrap();
    kill_card(left, "borrower", LONG).unwrap();
    switch = start(middle, "s", &text);
    load.wait_done(500, LONG).unwrap();
    load.stop_whole(&borrower.socket).unwrap();
    let dropped = port_of(middle, "s", "right")["dropped"].clone();
    let unexpected =
        dropped.as_object().unwrap().iter().filter(|(name, count)| *name != "unaddressed" && **count != 0);
    assert_eq!(unexpected.count(), 0, "{dropped}");
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    assert_eq!(switch.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", switch.tail());
}

/// Several nodes share the address of the switch on one rail: none is taken for another.
#[test]
fn w5_several_nodes_behind_one_address() {
    let _place = gate::waits();
    let mesh = Mesh::new(4, 2).unwrap();
    let [one, two, right, middle] = mesh.machines() else { panic!("four machines") };
    keep_rails(one, &[0]);
    keep_rails(two, &[0]);
    keep_rails(right, &[1]);
    let of = |machine: &Machine, name: &str| format!("nodes = [\"{}\"]", id(machine, name));
    let text = port("one", &at(middle, 0), &at(one, 0), &of(one, "borrower"))
        + &port("two", &at(middle, 0), &at(two, 0), &of(two, "borrower"))
        + &port("right", &at(middle, 1), &at(right, 1), &of(right, "lender"));
    let mut switch = start(middle, "s", &text);
    let lend = ["--listen", &at(right, 1), "--switch", &at(middle, 1)];
    let lender = Lender::start(right, &["ram:16M", "ram:16M"], &lend).unwrap();
    let borrow = |machine: &Machine, line: &str| {
        let borrow = ["--listen", &at(machine, 0), "--switch", &at(middle, 0), "--io-timeout", "120"];
        Borrower::start(machine, line, &borrow).unwrap()
    };
    let borrowers = [borrow(one, &lender.lines[0]), borrow(two, &lender.lines[1])];
    let loads = [1, 2].map(|seed| Model::new(0, 4 * MIB, seed));
    let loads: Vec<_> = loads
        .into_iter()
        .zip(&borrowers)
        .map(|(model, it)| Load::start(&it.socket, model, 4).unwrap())
        .collect();
    let go_on = || loads.iter().for_each(|load| load.wait_done(200, LONG).unwrap());
    go_on();
    kill_card(right, "lender", LONG).unwrap();
    go_on();
    kill_card(one, "borrower", LONG).unwrap();
    switch.kill().unwrap();
    let _switch = start(middle, "s", &text);
    go_on();
    let channels = status(right, "lender").unwrap()["channels"].as_array().unwrap().len();
    assert_eq!(channels, 2);
    loads.into_iter().zip(&borrowers).for_each(|(load, it)| drop(load.stop_whole(&it.socket).unwrap()));
}

/// A borrower on UDP, a lender on Ethernet, two switches between them with two links: each link is cut in its turn, and
/// each switch killed.
#[test]
fn w5_two_switches_with_two_links() {
    let _place = gate::alone();
    let mesh = Mesh::new(4, 4).unwrap();
    let [left, right, one, two] = mesh.machines() else { panic!("four machines") };
    keep_rails(left, &[0]);
    keep_rails(right, &[3]);
    keep_rails(one, &[0, 1, 2]);
    keep_rails(two, &[1, 2, 3]);
    let borrower_id = id(left, "borrower");
    let of_left = format!("nodes = [\"{borrower_id}\"]");
    let of_right = "domains = [\"4096/16\"]";
    let first = port("left", &at(one, 0), &at(left, 0), &of_left)
        + &port("link", &at(one, 1), &at(two, 1), of_right)
        + &port("spare", &at(one, 2), &at(two, 2), "standby_for = \"link\"");
    let second = format!(
        "[[ports]]\nname = \"right\"\nethernet = \"rail3\"\npeer = \"{}\"\n{of_right}\n",
        mac(right, 3)
    ) + &port("link", &at(two, 1), &at(one, 1), "default = true")
        + &port("spare", &at(two, 2), &at(one, 2), "standby_for = \"link\"");
    let mut switches = [start(one, "one", &first), start(two, "two", &second)];

    let node = format!(
        "name = \"lender\"\nstate_dir = \"state/lender\"\ndomain_block = \"4096/16\"\n[[rails]]\nname = \"r\"\n\
         ethernet = \"rail3\"\nswitch = \"{}\"\n[[devices]]\nfunction = \"d\"\nsource = \"ram:16M\"\n",
        mac(two, 3)
    );
    let mut command = right.command(binary().unwrap());
    command.args(["node", "--config"]).arg(write(right, "lender", &node));
    let mut lender = right.spawn("lender", command).unwrap();
    let line = lender.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    assert!(line.contains("eth:"), "{line}");
    let borrow = ["--listen", &at(left, 0), "--switch", &at(one, 0), "--io-timeout", "120"];
    let mut borrower = Borrower::start(left, &line, &borrow).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(300, LONG).unwrap();

    let sent = |name: &str| number(&port_of(one, "one", name), "/sent_frames").unwrap();
    for (cut, rest) in [("link", "spare"), ("spare", "link"), ("link", "spare")] {
        let device = if cut == "link" { "rail1" } else { "rail2" };
        ip(one, &["link", "set", device, "down"]);
        load.wait_done(300, LONG).unwrap();
        let before = sent(rest);
        load.wait_done(300, LONG).unwrap();
        assert!(sent(rest) > before, "{rest} is used while {cut} is cut");
        ip(one, &["link", "set", device, "up"]);
    }
    // The spare is in use. Nothing comes by it to the second switch, while all comes that this one sends: it is left at
    // both ends.
    let is_up = || port_of(one, "one", "spare")["state"] == "up";
    assert!(is_up());
    lose(two, "rail2", Way::In, 1000);
    poll_until("the spare to be left", LONG, || Ok((!is_up()).then_some(()))).unwrap();
    let before = [sent("link"), sent("spare")];
    load.wait_done(300, LONG).unwrap();
    let grown = [sent("link") - before[0], sent("spare") - before[1]];
    assert!(
        grown[1] * 2 < grown[0],
        "more than hellos still leave by a link that carries nothing: {grown:?}"
    );
    heal(two);
    let told =
        "nothing comes by port link, or nothing arrives that leaves by it: port spare is used in its place";
    switches[0].wait_log(told, LONG, |line| line.contains(told)).unwrap();
    for round in 0..scale::kills(2) as usize {
        let (machine, name, text) = [(one, "one", &first), (two, "two", &second)][round % 2];
        switches[round % 2].kill().unwrap();
        std::thread::sleep(Duration::from_millis(400));
        switches[round % 2] = start(machine, name, text);
        load.wait_done(300, LONG).unwrap();
    }
    load.stop_whole(&borrower.socket).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.tail());
}

/// Whoever is behind a port can speak for nobody else, and whoever is behind none for nobody at all.
#[test]
fn x_what_is_forged_or_no_frame_is_dropped_counted_and_said_once() {
    const COUNT: u64 = 2000;
    let _place = gate::waits();
    let mesh = Mesh::new(4, 1).unwrap();
    let [left, right, mallory, middle] = mesh.machines() else { panic!("four machines") };
    // What leaves is to be counted, so the switch itself says nothing.
    let behind = |name: &str, machine: &Machine, domains: &str| {
        let rest = format!("domains = [\"{domains}\"]\nannounce = false");
        port(name, &at(middle, 0), &at(machine, 0), &rest)
    };
    let text = behind("left", left, "16/16")
        + &behind("right", right, "32/16")
        + &behind("mallory", mallory, "48/16")
        + "[[multicast]]\nname = \"all\"\ndomains = [\"100/1\"]\nports = [\"left\", \"right\", \"mallory\"]\n";
    let mut switch = start(middle, "s", &text);
    let send = |port: &str, forged: &str, victim: &str| {
        let mut command = mallory.command("python3");
        let (own, to) = (mallory.addresses()[0].to_string(), middle.addresses()[0].to_string());
        command.args(["-c", HOSTILE, &own, port, &to, &COUNT.to_string(), forged, victim]);
        run(command).unwrap();
    };
    let totals = || {
        let told = status(middle, "s").unwrap();
        let sum = |name: &str| -> u64 {
            let ports = told["switch"]["ports"].as_array().unwrap();
            ports.iter().map(|port| port.pointer(name).and_then(Value::as_u64).unwrap()).sum()
        };
        [sum("/received_frames"), sum("/sent_frames"), sum("/dropped/forged_source")]
            .map(|it| it as i64)
            .into_iter()
            .chain([number(&told, "/switch/listeners/0/strangers").unwrap() as i64])
            .collect::<Vec<_>>()
    };
    // From its own place, as the left node: to the right one, and to all.
    send("7411", "16", "32");
    send("7411", "17", "100");
    // From another port of its machine, as itself.
    send("9999", "48", "32");
    // A socket that overflows loses some: what has come is accounted for, all of it.
    let seen = poll_until("what was sent to be counted", LONG, || {
        let seen = totals();
        std::thread::sleep(Duration::from_millis(200));
        Ok((seen == totals() && seen[0] > 0 && seen[3] > 0).then_some(seen))
    })
    .unwrap();
    let (received, sent, forged, strangers) = (seen[0], seen[1], seen[2], seen[3]);
    assert!(sent == 0 && strangers <= 2 * COUNT as i64, "{seen:?}");
    let counts = port_of(middle, "s", "mallory");
    let of = |name: &str| number(&counts["dropped"], name).unwrap() as i64;
    assert!(forged > COUNT as i64 / 2 && of("/version") > 100 && of("/malformed") > 10, "{counts}");
    assert_eq!(of("/forged_source") + of("/version") + of("/malformed"), received, "{counts}");
    for told in ["frames at port mallory are dropped", "from addresses that are no port's"] {
        switch.wait_log(told, LONG, |line| line.contains(told)).unwrap();
    }
    assert_eq!(switch.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", switch.tail());
    let log = std::fs::read_to_string(switch.log()).unwrap();
    let said = log.lines().filter(|line| line.contains("source is outside of the port's ranges")).count();
    assert_eq!(said, 1, "once for each reason:\n{log}");
}

/// A copy of a node's state folder, behind another port, has the prefix of the first: nothing that it says is passed
/// on.
#[test]
fn x_of_two_nodes_with_one_prefix_the_one_at_its_port_is_heard() {
    let _place = gate::waits();
    let mesh = Mesh::new(4, 1).unwrap();
    let [left, right, third, middle] = mesh.machines() else { panic!("four machines") };
    let behind = |name: &str, machine: &Machine, node: &str| {
        port(name, &at(middle, 0), &at(machine, 0), &format!("nodes = [\"{}\"]", id(machine, node)))
    };
    let text = behind("left", left, "borrower")
        + &behind("right", right, "store")
        + &behind("third", third, "other");
    let mut switch = start(middle, "s", &text);
    let by_switch =
        |machine: &Machine| ["--listen".to_owned(), at(machine, 0), "--switch".to_owned(), at(middle, 0)];
    let lend = |machine: &Machine| {
        let words = by_switch(machine);
        Lender::start_as(machine, "store", &["ram:16M"], &words.each_ref().map(String::as_str)).unwrap()
    };
    let mut lender = lend(right);
    let words = by_switch(left);
    let mut borrower =
        Borrower::start(left, &lender.lines[0], &words.each_ref().map(String::as_str)).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
    load.wait_done(200, LONG).unwrap();

    let mut command = Command::new("cp");
    command.arg("-r").arg(right.dir().join("state/store")).arg(third.dir().join("state/store"));
    run(command).unwrap();
    let mut copy = lend(third);
    let of = |machine: &Machine| status(machine, "store").unwrap()["node"]["id"].clone();
    assert_eq!(of(third), of(right));
    poll_until("what the copy says to be dropped", LONG, || {
        Ok((number(&port_of(middle, "s", "third")["dropped"], "/forged_source")? > 2).then_some(()))
    })
    .unwrap();
    kill_card(right, "store", LONG).unwrap();
    load.wait_done(500, LONG).unwrap();
    let port = port_of(middle, "s", "third");
    assert_eq!(port["received_frames"], port["dropped"]["forged_source"], "{port}");
    assert_eq!(number(&status(third, "store").unwrap(), "/counters/handshakes").unwrap(), 0);
    load.stop_whole(&borrower.socket).unwrap();
    for node in [&mut borrower.process, &mut copy.process, &mut lender.process, &mut switch] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
    let log = std::fs::read_to_string(switch.log()).unwrap();
    let said = log.lines().filter(|line| line.contains("at port third are dropped"));
    assert_eq!(said.count(), 1, "once:\n{log}");
}

#[test]
fn x_switches_that_cannot_be_are_refused_by_name() {
    let _place = gate::waits();
    let mesh = Mesh::new(2, 2).unwrap();
    let [middle, other] = mesh.machines() else { panic!("two machines") };
    let refused = |text: &str| {
        let command = switch_command(middle, "refused", text);
        let outcome = run_to_end(command, &middle.dir().join("logs"), "refused", START_TIMEOUT).unwrap();
        assert!(outcome.stdout.is_empty() && !outcome.stderr.contains("panicked"), "{outcome:?}");
        (outcome.code.unwrap(), outcome.stderr)
    };
    let a = port("a", &at(middle, 0), "10.78.0.9:7411", "domains = [\"16/16\"]");
    let ethernet = |interface: &str| {
        a.clone()
            + &format!(
                "[[ports]]\nname = \"b\"\nethernet = \"{interface}\"\npeer = \"{}\"\ndefault = true\n",
                mac(other, 1)
            )
    };
    let b = |rest: &str| a.clone() + &port("b", &at(middle, 0), "10.78.0.8:7411", rest);
    let both = "ports = [\"a\", \"b\"]";
    ip(middle, &["link", "set", "rail1", "mtu", "1000"]);
    for (text, exit, words) in [
        (
            b("domains = [\"31/1\"]"),
            2,
            "refused.toml:7:8: the domains 31/1 on rail 0 overlap with 16/16 on rail 0 of `a`",
        ),
        (
            b("default = true")
                + &format!("[[partitions]]\nname = \"p\"\n{both}\n[[partitions]]\nname = \"q\"\n{both}\n"),
            2,
            "port `a` is in partition `p` already",
        ),
        (b("standby_for = \"c\""), 2, "there is no port `c`"),
        (b(""), 2, "nothing lies behind this port"),
        (ethernet("none"), 3, "there is no interface none on this machine"),
        (ethernet("lo"), 3, "lo is no Ethernet interface"),
        (ethernet("rail1"), 3, "the MTU of rail1 is below 1280"),
        (
            a.clone() + &port("b", "10.9.9.9:1", "10.78.0.8:7411", "default = true"),
            3,
            "10.9.9.9 is no address of this machine",
        ),
    ] {
        let (found, told) = refused(&text);
        assert!(found == exit && told.contains(words), "{text}: {found}: {told}");
    }
    // One that is down is waited for; a second switch of the name, or at the address, is refused.
    ip(middle, &["link", "set", "rail1", "mtu", "1500"]);
    ip(middle, &["link", "set", "rail1", "down"]);
    let mut switch = start(middle, "s", &ethernet("rail1"));
    switch.wait_log("its interface", LONG, |line| line.contains("rail1 is down")).unwrap();
    let (found, told) = refused(&b("default = true"));
    assert!(found == 3 && told.contains("in use by another program"), "{found}: {told}");
    ip(middle, &["link", "set", "rail1", "up"]);
    switch.wait_log("it", LONG, |line| line.contains("interface rail1 is up again")).unwrap();
    assert_eq!(switch.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", switch.tail());
}
