//! W3, T4, X: a running node reads its file again, while I/O verifies on another loan.

mod rails;
mod slots;

use campaign::causeway::{
    Lender, START_TIMEOUT, STOP_TIMEOUT, binary, card, kill_card, lend_command, status,
};
use campaign::load::{Load, Model, connect};
use campaign::process::{Outcome, Process, poll_until, run, run_to_end, signal};
use campaign::tools::{self, FioJob};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, scale};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(30);
/// Longer than any pause that a card costs which is replaced in order, on a busy machine.
const PAUSE: Duration = Duration::from_secs(2);

/// A node that runs as a file says, which changes.
struct Node<'a> {
    machine: &'a Machine,
    name: &'static str,
    process: Process,
}

impl<'a> Node<'a> {
    fn start(machine: &'a Machine, name: &'static str, parts: &[String]) -> Self {
        write(machine, name, parts);
        let mut command = machine.command(binary().unwrap());
        command.arg("node").arg("--config").arg(file(machine, name));
        let process = machine.spawn(name, command).unwrap();
        Self { machine, name, process }
    }

    fn line(&mut self) -> String {
        self.process.wait_line("a line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap()
    }

    fn edge(&mut self) {
        self.process.wait_line("an edge", START_TIMEOUT, |line| line.starts_with("nbd+unix://")).unwrap();
    }

    fn ask(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.machine.command(binary().unwrap());
        command.args(["reload", "--name", self.name]).args(arguments);
        run_to_end(command, &self.machine.dir().join("logs"), "reload", START_TIMEOUT).unwrap()
    }

    /// The file is this from now on, and the node is told so: its document. A card that is replaced for it has been.
    fn reload(&self, parts: &[String]) -> Value {
        let before = self.shown().2;
        write(self.machine, self.name, parts);
        let outcome = self.ask(&["-o", "json"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&report["version"], &report["refusal"]), (&1.into(), &Value::Null), "{report}");
        if report["card_replaced"] == true {
            let is_next = || Ok((self.shown().2 > before).then_some(()));
            poll_until("the next card", SOON, is_next).unwrap();
        }
        report
    }

    /// The file is this, which cannot be done.
    fn refused(&self, parts: &[String], code: i32, words: &[&str]) {
        let before = self.shown();
        write(self.machine, self.name, parts);
        let outcome = self.ask(&[]);
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains("nothing has changed"), "{outcome:?}");
        assert!(words.iter().all(|word| outcome.stderr.contains(word)), "{words:?}: {outcome:?}");
        assert!(!outcome.stdout.contains(": done"), "{outcome:?}");
        assert_eq!(self.shown(), before);
    }

    fn status(&self) -> Value {
        status(self.machine, self.name).unwrap()
    }

    /// What a reload can change of a status: functions, loans and the card.
    fn shown(&self) -> (Vec<String>, Vec<String>, u64) {
        let status = self.status();
        let names = |key: &str| {
            let all = status[key].as_array().unwrap().iter();
            all.map(|it| it["function"].as_str().unwrap().to_owned()).collect()
        };
        (names("devices"), names("loans"), card(&status).unwrap().generation)
    }

    fn wait_event(&self, kind: &str) -> Value {
        self.wait_event_of(kind, |_| true)
    }

    /// The last event of a kind that is so: one of something before does not count.
    fn wait_event_of(&self, kind: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        poll_until(kind, SOON, || {
            let mut command = self.machine.command(binary().unwrap());
            command.args(["events", "--name", self.name, "-o", "json"]);
            let events = run(command)?;
            let mut events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            Ok(events.rfind(|event| event["kind"] == kind && is_it(event)))
        })
        .unwrap()
    }

    fn end(mut self) {
        assert_eq!(self.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", self.process.tail());
    }
}

fn file(machine: &Machine, name: &str) -> PathBuf {
    machine.dir().join(format!("{name}.toml"))
}

fn write(machine: &Machine, name: &str, parts: &[String]) {
    let state = machine.dir().join("state").join(name);
    let text = format!("state_dir = {state:?}\n{}", parts.concat());
    std::fs::write(file(machine, name), text).unwrap();
}

fn rail(machine: &Machine) -> String {
    format!("[[rails]]\nname = 'r'\nlisten = '{}'\n", machine.addresses()[0])
}

fn device(function: &str, source: &str) -> String {
    format!("[[devices]]\nfunction = '{function}'\nsource = '{source}'\n")
}

fn socket(machine: &Machine, name: &str) -> PathBuf {
    machine.dir().join(format!("{name}.nbd"))
}

fn loan(machine: &Machine, name: &str, line: &str) -> String {
    format!("[[loans]]\nline = '{line}'\nnbd = {:?}\n", socket(machine, name))
}

fn uri(machine: &Machine, name: &str) -> String {
    format!("nbd+unix:///?socket={}", socket(machine, name).display())
}

fn world() -> World {
    World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap()
}

fn image(machine: &Machine, name: &str) -> String {
    let path = machine.dir().join(name);
    tools::empty_image(&path, 16 * MIB).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What a reload has changed: name, action and state of each.
fn states(report: &Value) -> Vec<String> {
    let changes = report["changes"].as_array().unwrap().iter();
    let words =
        |change: &Value| ["name", "action", "state"].map(|key| change[key].as_str().unwrap().to_owned());
    changes.map(|change| words(change).join(" ")).collect()
}

#[test]
fn w3_devices_and_loans_come_and_go_while_fio_verifies_another_loan() {
    let _place = gate::alone();
    let world = world();
    let (left, right) = (world.left(), world.right());
    let (rail, a, b) = (rail(right), device("a", "ram:256M"), device("b", &image(right, "b.img")));
    let mut lender = Node::start(right, "lender", &[rail.clone(), a.clone()]);
    let loan_a = loan(left, "a", &lender.line());
    let mut borrower = Node::start(left, "borrower", std::slice::from_ref(&loan_a));
    borrower.edge();
    let job = FioJob {
        uri: &uri(left, "a"),
        pattern: "randrw",
        block_size: "4k",
        depth: 8,
        offset: 0,
        size: 192 * MIB,
        seed: 1,
    };
    let mut fio = job.start(left, "fio").unwrap();
    let load = Load::start(&socket(left, "a"), Model::new(192 * MIB, MIB, 1), 4).unwrap();
    load.wait_done(100, SOON).unwrap();

    // A device comes, a disk to a node that had none, and its line is printed where the others were, and for who has
    // asked. The card goes on.
    let lends = card(&lender.status()).unwrap();
    let report = lender.reload(&[rail.clone(), a.clone(), b.clone()]);
    assert_eq!((states(&report), &report["card_replaced"]), (vec!["b added done".to_owned()], &false.into()));
    let line = lender.line();
    assert_eq!(report["lines"], serde_json::json!([line]));
    assert_eq!(lender.shown().0, ["a", "b"]);
    assert_eq!(card(&lender.status()).unwrap().pid, lends.pid);
    load.wait_done(100, SOON).unwrap();

    // It is borrowed by the card that runs.
    let before = borrower.shown();
    let loan_b = loan(left, "b", &line);
    let report = borrower.reload(&[loan_a.clone(), loan_b.clone()]);
    assert_eq!(
        (states(&report), &report["card_replaced"]),
        (vec!["b added pending".to_owned()], &false.into())
    );
    borrower.edge();
    let mut client = connect(&socket(left, "b")).unwrap();
    client.write(4096, &[7; 4096]).unwrap();
    assert_eq!(borrower.shown().2, before.2, "the card goes on");

    // Whatever has come outlives the cards.
    kill_card(left, "borrower", SOON).unwrap();
    kill_card(right, "lender", SOON).unwrap();
    let mut data = Vec::new();
    client.read(4096, 4096, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    load.wait_done(100, SOON).unwrap();

    // Who has a device keeps it, and it stays if it is wanted again meanwhile.
    let lends = card(&lender.status()).unwrap();
    let report = lender.reload(&[rail.clone(), a.clone()]);
    assert_eq!(states(&report), ["b removed pending"]);
    assert_eq!(report["changes"][0]["waits_for"], "borrower to give it back", "{report}");
    assert_eq!(lender.status()["devices"][1]["leaving"], true);
    let again = lender.ask(&["--dry-run"]).stdout;
    assert!(again.starts_with("device b removed") && again.contains("waits for borrower"), "{again}");
    client.write(8192, &[8; 4096]).unwrap();
    let report = lender.reload(&[rail.clone(), a.clone(), b.clone()]);
    assert_eq!(states(&report), ["b added done"]);
    assert_eq!(lender.status()["devices"][1]["leaving"], false);
    let report = lender.reload(&[rail.clone(), a.clone()]);
    assert_eq!(states(&report), ["b removed pending"]);

    // It is given back by the card that runs, and goes then.
    let generation = borrower.shown().2;
    borrower.reload(std::slice::from_ref(&loan_a));
    borrower.wait_event("loan-removed");
    assert_eq!(borrower.shown(), (vec![], vec!["a".to_owned()], generation));
    assert!(!socket(left, "b").exists());
    lender.wait_event("device-removed");
    assert_eq!(lender.shown().0, ["a"]);
    let now = card(&lender.status()).unwrap();
    assert_eq!((now.pid, now.generation), (lends.pid, lends.generation), "the card goes on");
    assert!(fio.ended().unwrap().is_none(), "all that was to happen while it verifies");
    load.wait_done(100, SOON).unwrap();

    // What was written is there for somebody else, who can have the image now.
    let command = lend_command(right, "other", &[right.dir().join("b.img").to_str().unwrap()], &[]).unwrap();
    let mut other = right.spawn("other", command).unwrap();
    other.wait_line("a line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    assert_eq!(other.terminate(STOP_TIMEOUT).unwrap(), 0);
    let mut written = vec![0; 8192];
    std::os::unix::fs::FileExt::read_exact_at(
        &std::fs::File::open(right.dir().join("b.img")).unwrap(),
        &mut written,
        4096,
    )
    .unwrap();
    assert_eq!((&written[..4096], &written[4096..]), (&[7; 4096][..], &[8; 4096][..]));

    fio.wait_success(SOON * 4).unwrap();
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.failed_flushes, report.lost), (0, 0, None));
    assert!(report.longest_gap < PAUSE, "{:?}", report.longest_gap);
    scale::report(&format!("w3: longest gap beside reloads and kills: {:?}", report.longest_gap));
    borrower.end();
    lender.end();
}

#[test]
fn w3_twenty_loans_come_and_go_on_one_card() {
    let world = world();
    let (left, right) = (world.left(), world.right());
    let lender = Lender::start(right, &["ram:16M", "ram:16M"], &[]).unwrap();
    let [a, b] = [0, 1].map(|index| lender.lines[index].clone());
    let stays = loan(left, "a", &a);
    let mut borrower = Node::start(left, "borrower", std::slice::from_ref(&stays));
    borrower.edge();
    let load = Load::start(&socket(left, "a"), Model::new(0, MIB, 1), 4).unwrap();
    load.wait_done(100, SOON).unwrap();
    load.take_longest_gap();
    for round in 0..20_u8 {
        borrower.reload(&[stays.clone(), loan(left, "b", &b)]);
        borrower.edge();
        let mut client = connect(&socket(left, "b")).unwrap();
        client.write(0, &[round; 4096]).unwrap();
        drop(client);
        borrower.reload(std::slice::from_ref(&stays));
        poll_until("the loan to be gone", SOON, || Ok((borrower.shown().1.len() == 1).then_some(())))
            .unwrap();
    }
    let gap = load.take_longest_gap();
    scale::report(&format!("w3: longest gap beside 20 loans that come and go: {gap:?}"));
    let card = card(&borrower.status()).unwrap();
    assert_eq!((card.generation, card.restarts), (1, 0), "no other card");
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.lost), (0, None));
    borrower.end();
}

#[test]
fn x_a_reload_that_cannot_be_done_changes_nothing() {
    let world = world();
    let (left, right) = (world.left(), world.right());
    let (rail, a) = (rail(right), device("a", "ram:16M"));
    let [fine, locked] = ["fine.img", "locked.img"].map(|name| image(right, name));
    let mut lender = Node::start(right, "lender", &[rail.clone(), a.clone()]);
    let line = lender.line();
    let holder = Lender::start_as(right, "holder", &[&locked], &["--listen", "127.0.0.1:7999"]).unwrap();
    let with = |more: &[String]| [&[rail.clone(), a.clone()], more].concat();

    // Wrong files, as at the start.
    lender.refused(&with(&["colour = 'red'\n".to_owned()]), 2, &["lender.toml:", "colour"]);
    lender.refused(&with(&["[[devices]\n".to_owned()]), 2, &["lender.toml:8"]);
    lender.refused(&with(&[device("a", "ram:1M")]), 2, &["function `a`", "already"]);
    lender.refused(&with(&[device("b", &fine), device("c", &fine)]), 2, &["source", "already"]);
    lender.refused(&with(&[device("b", "ram:9999999G")]), 2, &["is more", "memory"]);
    // What would be fine beside it is not done either, and is given back.
    let missing = right.dir().join("missing.img");
    for (wrong, word) in [(locked.as_str(), "holder"), (missing.to_str().unwrap(), "missing.img")] {
        let word = if wrong == locked { "locked.img" } else { word };
        lender.refused(&with(&[device("b", &fine), device("c", wrong)]), 3, &[word]);
    }
    let free = Lender::start_as(right, "free", &[&fine], &["--listen", "127.0.0.1:7998"]).unwrap();
    drop((free, holder));
    // What takes a restart.
    let moved = rail.replace("name = 'r'", "name = 'r'\nport = 7500");
    lender.refused(&[moved, a.clone(), device("b", &fine)], 3, &["rail r", "restart the node"]);
    let read_only = format!("{a}read_only = true\n");
    lender.refused(&[rail.clone(), read_only], 3, &["device a", "read_only false to true"]);
    lender.refused(&with(&["shm = false\n".to_owned()]), 2, &["shm"]);

    // The same of loans: a socket that somebody has, a function twice, and nothing at all.
    let stays = loan(left, "a", &line);
    let mut borrower = Node::start(left, "borrower", std::slice::from_ref(&stays));
    borrower.edge();
    let load = Load::start(&socket(left, "a"), Model::new(0, MIB, 1), 4).unwrap();
    let taken = UnixListener::bind(socket(left, "taken")).unwrap();
    let report = lender.reload(&with(&[device("b", "ram:1M"), device("c", "ram:1M")]));
    let [b, c] = [0, 1].map(|index| report["lines"][index].as_str().unwrap().to_owned());
    // A function that is to come, and to be borrowed from this very node.
    let (others, e) = ([device("b", "ram:1M"), device("c", "ram:1M")], device("e", "ram:1M"));
    let report = lender.reload(&with(&[&others[..], std::slice::from_ref(&e)].concat()));
    let own = loan(right, "e", report["lines"][0].as_str().unwrap());
    lender.reload(&with(&others));
    lender.refused(&with(&[&others[..], &[e, own]].concat()), 3, &["e would stand twice"]);
    let both = [stays.clone(), loan(left, "b", &b), loan(left, "taken", &c)];
    borrower.refused(&both, 3, &["taken.nbd", "in use by another program"]);
    assert!(!socket(left, "b").exists(), "a socket that nobody serves");
    borrower.refused(&[stays.clone(), loan(left, "b", &line)], 2, &["a stands twice"]);
    borrower.refused(&[], 2, &["would do nothing"]);
    borrower.refused(&[loan(left, "elsewhere", &line)], 3, &["loan a", "its socket"]);
    borrower.refused(&[stays.clone(), device("d", "ram:1M")], 3, &["device d", "restart"]);
    drop(taken);
    borrower.reload(&both);
    borrower.edge();
    borrower.edge();
    load.wait_done(100, SOON).unwrap();
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.lost), (0, None));
    assert_eq!(borrower.wait_event("reload-refused")["severity"], "warning");

    // A node without a file has nothing to read.
    let plain = Lender::start_as(right, "plain", &["ram:1M"], &["--listen", "127.0.0.1:7997"]).unwrap();
    let mut command = right.command(binary().unwrap());
    command.args(["reload", "--name", "plain"]);
    let outcome = run_to_end(command, &right.dir().join("logs"), "plain-reload", START_TIMEOUT).unwrap();
    assert!(outcome.code == Some(3) && outcome.stderr.contains("--config"), "{outcome:?}");
    drop(plain);
    borrower.end();
    lender.end();
}

/// A dry run knows of it too, and nothing is left of what was never lent: not what its image is known by, not a life.
#[test]
fn x_a_reload_for_which_the_ledger_has_no_room_leaves_no_trace() {
    let world = world();
    let right = world.right();
    let (rail, a, image) = (rail(right), device("a", "ram:1M"), image(right, "b.img"));
    let with = |ledger: &str, more: &[String]| {
        [&[format!("ledger = '{ledger}'\n"), rail.clone(), a.clone()], more].concat()
    };
    // What it takes, as it says itself.
    write(right, "tight", &with("1M", &[]));
    let mut command = right.command(binary().unwrap());
    command.arg("node").arg("--config").arg(file(right, "tight"));
    let outcome = run_to_end(command, &right.dir().join("logs"), "too-tight", START_TIMEOUT).unwrap();
    let takes = outcome.stderr.split_once("would take ").unwrap().1.split_once(" MiB").unwrap().0.to_owned();
    let takes = format!("{takes}M");
    let mut tight = Node::start(right, "tight", &with(&takes, &[]));
    tight.line();
    let state = right.dir().join("state/tight");
    let incarnation = || std::fs::read(state.join("incarnation")).unwrap();
    let before = incarnation();
    let more = with(&takes, &(0..8).map(|at| device(&format!("c{at}"), "ram:1M")).collect::<Vec<_>>());
    let more = [&more[..], &[device("b", &image)]].concat();
    tight.refused(&more, 3, &["no memory", "would take"]);
    let outcome = tight.ask(&["--dry-run"]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("would take"), "{outcome:?}");
    assert!(incarnation() == before && !state.join("medium.b").exists());
    tight.end();
}

#[test]
fn w3_a_loan_whose_lender_is_gone_leaves_all_the_same() {
    let world = world();
    let (left, right) = (world.left(), world.right());
    let stays = Lender::start_as(right, "stays", &["ram:4M"], &[]).unwrap();
    let mut leaves = Lender::start_as(right, "leaves", &["ram:1M"], &[]).unwrap();
    let [one, other] = [("a", &stays), ("b", &leaves)].map(|(name, of)| loan(left, name, &of.lines[0]));
    let mut borrower = Node::start(left, "borrower", &[one.clone(), other.clone()]);
    borrower.edge();
    borrower.edge();
    let mut client = connect(&socket(left, "b")).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    let load = Load::start(&socket(left, "a"), Model::new(0, MIB, 1), 4).unwrap();
    load.wait_done(100, SOON).unwrap();
    let before = card(&borrower.status()).unwrap();
    leaves.process.kill_tree().unwrap();
    load.take_longest_gap();
    let report = borrower.reload(std::slice::from_ref(&one));
    assert_eq!(states(&report), ["nvme0 removed pending"]);
    borrower.wait_event("loan-abandoned");
    poll_until("the loan to be gone", SOON, || Ok((borrower.shown().1.len() == 1).then_some(()))).unwrap();
    // It may come back, though nobody answers for it yet.
    let report = borrower.reload(&[one, other]);
    assert_eq!(states(&report), ["nvme0 added pending"]);
    load.wait_done(100, SOON).unwrap();
    let gap = load.take_longest_gap();
    scale::report(&format!("w3: longest gap beside a loan whose lender is gone: {gap:?}"));
    let now = card(&borrower.status()).unwrap();
    assert_eq!((now.pid, now.generation), (before.pid, before.generation), "the card goes on");
    // And is usable when somebody does.
    let leaves = Lender::start_as(right, "leaves", &["ram:1M"], &[]).unwrap();
    borrower.edge();
    assert_eq!(card(&borrower.status()).unwrap().pid, before.pid);
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.lost), (0, None));
    drop((stays, leaves));
}

/// A loan between them works, and both say what is wrong.
#[test]
fn x_domains_that_collide_are_named_at_both_ends() {
    let world = world();
    let (left, right) = (world.left(), world.right());
    let block = "domain_block = '4096/16'\n".to_owned();
    let mut lender = Node::start(right, "lender", &[block.clone(), rail(right), device("a", "ram:1M")]);
    let loan = loan(left, "a", &lender.line());
    let mut borrower = Node::start(left, "borrower", &[block, loan]);
    borrower.edge();
    for node in [&lender, &borrower] {
        let shared = node.wait_event("domain-shared");
        assert!(shared["domain"] == 4096 && shared["severity"] == "warning", "{shared}");
    }
    connect(&socket(left, "a")).unwrap().write(0, &[7; 4096]).unwrap();
    borrower.end();
    lender.end();
}

#[test]
fn w3_a_dry_run_tells_and_a_hangup_does() {
    let world = world();
    let right = world.right();
    let (rail, a) = (rail(right), device("a", "ram:16M"));
    let mut lender = Node::start(right, "lender", &[rail.clone(), a.clone()]);
    lender.line();
    let outcome = lender.ask(&[]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "lender does what its file says\n"));
    let before = lender.shown();
    let limited = format!("{a}iops = 500\n");
    write(right, "lender", &[rail.clone(), limited.clone(), device("b", &image(right, "b.img"))]);
    let outcome = lender.ask(&["--dry-run"]);
    let words: Vec<_> = outcome.stdout.lines().collect();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(words[0], "device a changed (limits): to do");
    assert!(words[1].starts_with("device b added (") && words[1].ends_with("b.img): to do"), "{words:?}");
    let outcome = lender.ask(&["--dry-run", "-o", "json"]);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["version"], &report["dry_run"]), (&1.into(), &true.into()));
    assert_eq!(states(&report), ["a changed planned", "b added planned"]);
    // It has left no trace, not even a lock.
    assert_eq!(lender.shown(), before);
    assert_eq!(lender.status()["devices"][0]["iops"], Value::Null);
    let path = right.dir().join("b.img");
    let other = Lender::start_as(right, "other", &[path.to_str().unwrap()], &["--listen", "127.0.0.1:7999"]);
    let mut other = other.unwrap();
    let outcome = lender.ask(&["--dry-run"]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("nothing would change"), "{outcome:?}");
    assert_eq!(other.process.terminate(STOP_TIMEOUT).unwrap(), 0);

    signal(lender.process.pid(), Signal::HUP).unwrap();
    // The first reload has said that nothing has changed.
    let done = lender.wait_event_of("reload-done", |event| event["changes"] != 0);
    assert_eq!((&done["changes"], &done["pending"]), (&2.into(), &0.into()), "{done}");
    lender.line();
    assert_eq!(lender.shown().0, ["a", "b"]);
    assert_eq!(lender.status()["devices"][0]["iops"], 500);
    write(right, "lender", &["nonsense".to_owned()]);
    signal(lender.process.pid(), Signal::HUP).unwrap();
    lender.wait_event("reload-refused");
    assert_eq!(lender.shown().0, ["a", "b"]);
    // Nobody has had it, so it goes at once, and its image is free.
    lender.reload(&[rail, limited]);
    lender.wait_event("device-removed");
    let other = Lender::start_as(right, "other", &[path.to_str().unwrap()], &["--listen", "127.0.0.1:7999"]);
    drop(other.unwrap());
    lender.end();
}

#[test]
fn w3_slots_come_and_go_on_one_card() {
    let world = world();
    let (left, right) = (world.left(), world.right());
    let lender = Lender::start(right, &["ram:16M", "ram:16M", "ram:16M"], &[]).unwrap();
    let [a, b, c] = [0, 1, 2].map(|index| lender.lines[index].clone());
    let stays = loan(left, "a", &a);
    let mut borrower = Node::start(left, "borrower", std::slice::from_ref(&stays));
    borrower.edge();
    let load = Load::start(&socket(left, "a"), Model::new(0, MIB, 1), 4).unwrap();
    load.wait_done(100, SOON).unwrap();
    let path = |name: &str| left.dir().join(format!("{name}.vm"));
    let slot = |name: &str, more: &str| {
        format!("[[domains.slots]]\nname = '{name}'\nsocket = {:?}\n{more}", path(name))
    };
    let domain = |slots: &[String]| format!("[[domains]]\nname = 'vm'\nkind = 'vm'\n{}", slots.concat());
    // A machine that the file names only by its socket, and one with slots, of which one has something from the start.
    let bare = format!("[[loans]]\nline = '{b}'\nvm = {:?}\n", path("bare"));
    let one = domain(&[slot("x", ""), slot("y", &format!("line = '{c}'\n"))]);
    let report = borrower.reload(&[stays.clone(), bare.clone(), one.clone()]);
    assert_eq!(states(&report), ["vm added done", "nvme1 added pending"]);
    assert_eq!(report["card_replaced"], false);
    poll_until("both to be usable", SOON, || {
        let status = borrower.status();
        let all = status["loans"].as_array().unwrap().iter();
        Ok((all.filter(|loan| loan["state"] == "up").count() == 3).then_some(()))
    })
    .unwrap();
    assert!(path("bare").exists() && path("y").exists() && !path("x").exists());
    // A slot goes, and another one comes; then the domain goes as a whole.
    let two = domain(&[slot("x", ""), slot("z", "")]);
    let report = borrower.reload(&[stays.clone(), two]);
    assert_eq!(states(&report), ["vm changed pending", "vm changed done", "nvme1 removed pending"]);
    borrower.wait_event("slots-removed");
    assert!(!path("y").exists());
    borrower.wait_event("loan-removed");
    let report = borrower.reload(std::slice::from_ref(&stays));
    assert_eq!(states(&report), ["vm removed done"]);
    let report = borrower.reload(&[stays.clone(), one]);
    assert_eq!(
        (states(&report), &report["card_replaced"]),
        (vec!["vm added done".to_owned()], &false.into())
    );
    let card = card(&borrower.status()).unwrap();
    assert_eq!((card.generation, card.restarts), (1, 0), "no other card");
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.lost), (0, None));
    borrower.end();
}
