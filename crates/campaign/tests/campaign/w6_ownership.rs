//! W6: whoever has partitions of a switch moves ports between them under I/O, and no frame is lost; what was answered
//! is there after a kill; who is overtaken, or nobody, changes nothing.

use crate::events;
use crate::switches::{at, id, keep_rails, port, start, switch_command};
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, status};
use campaign::load::{Load, Model};
use campaign::process::{Outcome, Process, poll_until, run, run_to_end};
use campaign::world::{Machine, Mesh};
use campaign::{gate, scale};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// Sends 100 random datagrams to where a switch takes orders, and 100 with the head and the length of a call; and says
/// whether anything has come back.
const HOSTILE: &str = r#"
import random, socket, struct, sys, time
random.seed(6)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
for n in range(100):
    s.sendto(random.randbytes(random.randrange(1, 300)), (sys.argv[1], 7412))
    s.sendto(struct.pack("<BB6xQ", 1, 1, n) + random.randbytes(128), (sys.argv[1], 7412))
    time.sleep(0.001)
try:
    s.recv(2000)
    print("an answer")
except TimeoutError:
    print("no answer")
"#;

/// A switch between left and right, with a third port beside them, whose partitions `manager` may take.
struct Scene<'a> {
    middle: &'a Machine,
    text: String,
    switch: Process,
    url: String,
}

impl<'a> Scene<'a> {
    fn new([left, right, middle]: [&'a Machine; 3]) -> Self {
        let manager = id(middle, "manager");
        let nodes = |machine: &Machine, name: &str| format!("nodes = [\"{}\"]", id(machine, name));
        let text = format!("control = \"{}:7412\"\n", middle.addresses()[0])
            + &port("left", &at(middle, 0), &at(left, 0), &nodes(left, "borrower"))
            + &port("right", &at(middle, 1), &at(right, 1), &nodes(right, "lender"))
            + &port("third", &at(middle, 1), "10.78.1.77:7411", "domains = [\"16/16\"]")
            + &format!(
                "[[partitions]]\nname = \"red\"\nports = [\"left\", \"right\"]\nowners = [\"{manager}\"]\n\
                 [[partitions]]\nname = \"blue\"\nports = [\"third\"]\nowners = [\"{manager}\"]\n"
            );
        let mut switch = start(middle, "s", &text);
        let url = switch
            .wait_line("its URL", START_TIMEOUT, |line| line.starts_with("causeway-switch://"))
            .unwrap();
        Self { middle, text, switch, url }
    }

    fn restart(&mut self) {
        self.switch.kill().unwrap();
        self.switch = start(self.middle, "s", &self.text);
    }

    fn ctl(&self, who: &str, words: &[&str]) -> Command {
        let mut command = self.middle.command(binary().unwrap());
        command.args(["switch", "ctl", &self.url]).args(words);
        command.arg("--state-dir").arg(self.middle.dir().join("state").join(who));
        command
    }

    fn refused(&self, who: &str, words: &[&str]) -> Outcome {
        run_to_end(self.ctl(who, words), &self.middle.dir().join("logs"), "refused", LONG).unwrap()
    }

    fn partitions(&self) -> Value {
        let told = run(self.ctl("manager", &["show", "-o", "json"])).unwrap();
        serde_json::from_str::<Value>(&told).unwrap()["partitions"].clone()
    }

    /// Frames that the switch has dropped, but for those that it drops in good order.
    fn dropped(&self) -> u64 {
        let told = status(self.middle, "s").unwrap();
        let ports = told["switch"]["ports"].as_array().unwrap();
        let reasons = ports.iter().flat_map(|port| port["dropped"].as_object().unwrap());
        let counts = reasons.filter(|(reason, _)| *reason != "unaddressed" && *reason != "duplicate");
        counts.map(|(_, count)| count.as_u64().unwrap()).sum()
    }
}

fn ports_of(partitions: &Value, name: &str) -> Value {
    partitions.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap()["ports"].clone()
}

#[test]
fn w6_ports_are_moved_a_thousand_times_and_no_frame_is_lost() {
    let _place = gate::alone();
    let mesh = Mesh::new(3, 2).unwrap();
    let [left, right, middle] = mesh.machines() else { panic!("three machines") };
    keep_rails(left, &[0]);
    keep_rails(right, &[1]);
    let scene = Scene::new([left, right, middle]);
    let lend = ["--listen", &at(right, 1), "--switch", &at(middle, 1)];
    let mut lender = Lender::start(right, &["ram:16M"], &lend).unwrap();
    let borrow = ["--listen", &at(left, 0), "--switch", &at(middle, 0), "--io-timeout", "120"];
    let mut borrower = Borrower::start(left, &lender.lines[0], &borrow).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(200, LONG).unwrap();
    run(scene.ctl("manager", &["take", "red", "blue"])).unwrap();
    let before = scene.dropped();
    for turn in 0..1000 {
        let to = ["blue", "red"][turn % 2];
        let told = run(scene.ctl("manager", &["move", "left", "right", "--to", to])).unwrap();
        assert!(told.contains("left, right"), "{told}");
    }
    load.wait_done(200, LONG).unwrap();
    assert_eq!(scene.dropped(), before, "{}", status(middle, "s").unwrap()["switch"]);
    let partitions = scene.partitions();
    assert_eq!(ports_of(&partitions, "red"), json!(["left", "right"]));
    assert_eq!(partitions[0]["epoch"], 1);
    // One alone: the two are apart, and together again.
    run(scene.ctl("manager", &["move", "left", "--to", "blue"])).unwrap();
    assert_eq!(status(middle, "s").unwrap()["switch"]["partitions"][1]["ports"], json!(["left", "third"]));
    run(scene.ctl("manager", &["move", "left", "--to", "red"])).unwrap();
    load.wait_done(200, LONG).unwrap();
    load.stop_whole(&borrower.socket).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

#[test]
fn w6_what_was_answered_is_there_after_a_kill() {
    let _place = gate::waits();
    let mesh = Mesh::new(3, 2).unwrap();
    let [left, right, middle] = mesh.machines() else { panic!("three machines") };
    let mut scene = Scene::new([left, right, middle]);
    run(scene.ctl("manager", &["take", "red", "blue", "--epoch", "41"])).unwrap();
    for round in 0..scale::kills(6) {
        let answered = scene.partitions();
        // One more is under way when the switch dies: it is done as a whole, or not at all.
        let is_blue = ports_of(&answered, "blue") != json!(["third"]);
        let to = if is_blue { "red" } else { "blue" };
        let mut asking = scene.ctl("manager", &["move", "left", "right", "--to", to]);
        let mut asking = asking.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(7 * u64::from(round)));
        scene.restart();
        asking.kill().unwrap();
        let was_answered = asking.wait().unwrap().success();
        let now = scene.partitions();
        let moved = json!(["left", "right"]);
        let is_moved = match to {
            "red" => ports_of(&now, "red") == moved && ports_of(&now, "blue") == json!(["third"]),
            _ => ports_of(&now, "blue") == json!(["left", "right", "third"]),
        };
        assert!(is_moved || (now == answered && !was_answered), "round {round}: {answered} {now}");
        assert_eq!((&now[0]["epoch"], &now[1]["epoch"]), (&41.into(), &41.into()), "{now}");
    }
    // What was kept does not fit another file.
    scene.switch.kill().unwrap();
    let other = scene.text.replace("third", "fourth");
    let command = switch_command(middle, "s", &other);
    let outcome = run_to_end(command, &middle.dir().join("logs"), "misfit", START_TIMEOUT).unwrap();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("there is no port `third`"), "{}", outcome.stderr);
}

#[test]
fn x_who_is_overtaken_or_nobody_moves_no_port() {
    let _place = gate::waits();
    let mesh = Mesh::new(3, 2).unwrap();
    let [left, right, middle] = mesh.machines() else { panic!("three machines") };
    let mut scene = Scene::new([left, right, middle]);
    id(middle, "stranger");
    let before = scene.partitions();
    assert_eq!((&before[0]["owner"], &before[0]["epoch"]), (&Value::Null, &0.into()), "{before}");
    let check = |who: &str, words: &[&str], said: &str| {
        let outcome = scene.refused(who, words);
        assert_eq!(outcome.code, Some(3), "{words:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(said), "{words:?}: {}", outcome.stderr);
    };
    check("manager", &["move", "left", "--to", "blue"], "partition `red` is nobody's: take it first");
    run(scene.ctl("manager", &["take", "red", "blue", "--epoch", "9"])).unwrap();
    check("manager", &["take", "red", "--epoch", "9"], "epoch 9 of partition `red` is stale: it is at 9");
    check("manager", &["take", "red", "--epoch", "99999999999"], "may be 1048585 at most");
    check(
        "manager",
        &["move", "left", "--to", "blue", "--epoch", "8"],
        "epoch 8 of partition `red` is stale",
    );
    check("manager", &["move", "nowhere", "--to", "blue"], "there is no port `nowhere`");
    check("manager", &["move", "left", "--to", "green"], "there is no partition `green`");
    check("stranger", &["show"], "name it in `owners` of one");
    check("stranger", &["take", "red"], "name it in `owners` of one");
    let wrong = scene.refused("nobody", &["show"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("makes one"), "{}", wrong.stderr);
    scene.switch.wait_log("it is said", LONG, |line| line.contains("is refused what it asks")).unwrap();
    let now = scene.partitions();
    assert_eq!(ports_of(&now, "red"), json!(["left", "right"]));
    assert_eq!((&now[0]["epoch"], &now[1]["epoch"]), (&9.into(), &9.into()), "{now}");
    // Who does not know its key is counted, spoken of once, and not answered.
    let counted = |what: &str| status(middle, "s").unwrap()["counters"][what].as_u64().unwrap();
    assert!(counted("control_refused") >= 8, "{}", status(middle, "s").unwrap());
    let before = counted("control_dropped");
    let mut hostile = middle.command("python3");
    hostile.args(["-c", HOSTILE, &middle.addresses()[0].to_string()]);
    assert_eq!(run(hostile).unwrap().trim(), "no answer");
    poll_until("all are counted", LONG, || Ok((counted("control_dropped") == before + 200).then_some(())))
        .unwrap();
    let told = run(events::command(middle, "s", &[])).unwrap();
    assert_eq!(told.matches("is dropped and not answered").count(), 1, "{told}");
    // Nobody is there any more: that is another exit code.
    scene.switch.kill().unwrap();
    let gone = scene.refused("manager", &["show"]);
    assert_eq!(gone.code, Some(4), "{}", gone.stderr);
    assert!(gone.stderr.contains("no switch with this key answers"), "{}", gone.stderr);
    let slip = scene.url.replace("switch://", "switch://y");
    let mut command = middle.command(binary().unwrap());
    command.args(["switch", "ctl", &slip, "show", "--name", "manager"]);
    let outcome = run_to_end(command, &middle.dir().join("logs"), "slip", LONG).unwrap();
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
}

/// Nobody is behind a port until somebody who may has said so; it is so after a kill, and may be said anew when the
/// peer moves, under I/O.
#[test]
fn w6_who_is_behind_a_port_is_told() {
    let _place = gate::waits();
    let mesh = Mesh::new(3, 2).unwrap();
    let [left, right, middle] = mesh.machines() else { panic!("three machines") };
    keep_rails(left, &[0]);
    keep_rails(right, &[1]);
    let mut scene = Scene::new([left, right, middle]);
    let peer = format!("peer = \"{}\"\n", at(right, 1));
    assert!(scene.text.contains(&peer), "{}", scene.text);
    scene.text = scene.text.replacen(&peer, "", 1);
    scene.restart();
    let port_right = || status(middle, "s").unwrap()["switch"]["ports"][1].clone();
    assert_eq!(port_right()["peer"], "", "{}", port_right());
    id(middle, "stranger");
    let first = at(right, 1);
    for (who, words, code, what) in [
        ("manager", &["peer", "right", &first][..], 3, "partition `red` is nobody's: take it first"),
        ("stranger", &["peer", "right", &first], 3, "may take no partition here"),
        ("manager", &["peer", "right", "10.78.1.2"], 2, "invalid socket address"),
    ] {
        let outcome = scene.refused(who, words);
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    }
    run(scene.ctl("manager", &["take", "red", "blue"])).unwrap();
    let own = at(middle, 1);
    for (words, what) in [
        (&["peer", "none", &first][..], "there is no port `none`"),
        (&["peer", "right", &own], "this is the port's own address"),
        (&["peer", "right", "10.78.1.77:7411"], "is behind port `third` already"),
        (&["peer", "right", "[fd00::1]:7411"], "IPv4 and IPv6"),
        (&["peer", "right", &first, "--epoch", "7"], "epoch 7 of partition `red` is stale"),
    ] {
        let outcome = scene.refused("manager", words);
        assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    }
    run(scene.ctl("manager", &["peer", "right", &first])).unwrap();
    let image = mesh.dir().join("moving.img");
    std::fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let image = image.display().to_string();
    let lend = |listen: &str| {
        Lender::start(right, &[&image], &["--listen", listen, "--switch", &at(middle, 1)]).unwrap()
    };
    let mut lender = lend(&first);
    let borrow = ["--listen", &at(left, 0), "--switch", &at(middle, 0), "--io-timeout", "120"];
    let borrower = Borrower::start(left, &lender.lines[0], &borrow).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, scale::first_seed()), 8).unwrap();
    load.wait_done(200, LONG).unwrap();
    scene.restart();
    assert_eq!(port_right()["peer"], first.as_str());
    load.wait_done(200, LONG).unwrap();
    // The lender comes back elsewhere.
    lender.process.kill().unwrap();
    let second = first.replace("7411", "7500");
    let _lender = lend(&second);
    run(scene.ctl("manager", &["peer", "right", &second])).unwrap();
    load.wait_done(200, LONG).unwrap();
    assert_eq!(port_right()["peer"], second.as_str());
    load.stop_whole(&borrower.socket).unwrap();
}
