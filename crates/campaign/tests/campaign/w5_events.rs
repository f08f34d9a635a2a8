//! W5: what has happened in a node, by `causeway events`: a killed card and its successor, a refused borrower, a
//! follower that never reads, and how following ends.

use crate::events;
use campaign::causeway::{
    Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, borrower_socket, card, kill_card, number, status,
};
use campaign::load::{Load, Model};
use campaign::process::{poll_until, run, run_to_end, signal};
use campaign::world::{Machine, World, WorldConfig};
use program::control::{ControlClient, Request, Response};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(30);
/// The requester id of a loan in the first place of its node.
const FIRST: &str = "01:00.0";

fn all(machine: &Machine, name: &str) -> Vec<Value> {
    let text = run(events::command(machine, name, &["-o", "json"])).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn w5_a_killed_card_and_its_successor_are_events() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let mut lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut follower = events::follow(world.left(), "borrower");
    assert_eq!(events::next(&mut follower, "loan-usable")["severity"], "info");
    let load = Load::start(&borrower.socket, Model::new(0, MIB, 1), 4).unwrap();
    for _ in 0..3 {
        let before = card(&status(world.left(), "borrower").unwrap()).unwrap();
        kill_card(world.left(), "borrower", SOON).unwrap();
        let killed = events::next(&mut follower, "card-killed");
        assert_eq!((&killed["severity"], &killed["signal"]), (&"warning".into(), &9.into()), "{killed}");
        assert_eq!(killed["generation"], before.generation, "{killed}");
        let recovered = events::next(&mut follower, "card-recovered");
        assert_eq!(recovered["generation"], before.generation + 1, "{recovered}");
        assert!(
            recovered["after_s"].as_f64().is_some_and(|after| after > 0.0 && after < 10.0),
            "{recovered}"
        );
        assert!(recovered["seq"].as_u64() > killed["seq"].as_u64(), "{recovered}");
        borrower.process.wait_log("its line", SOON, |line| line.contains("card recovered")).unwrap();
    }
    let report = load.stop().unwrap();
    assert_eq!((report.failed, report.lost), (0, None));

    // What has followed is what is kept, and the numbers have no gaps.
    let kept = all(world.left(), "borrower");
    let numbers: Vec<_> = kept.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=kept.len() as u64).collect::<Vec<_>>());
    let text = run(events::command(world.left(), "borrower", &[])).unwrap();
    assert!(text.lines().any(|line| line.contains(" WARN card was killed signal=9 generation=1")), "{text}");

    // The end of the node is told, and then following has ended.
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    events::next(&mut follower, "node-ending");
    events::next(&mut follower, "loan-returned");
    assert_eq!(follower.wait(SOON).unwrap().code(), Some(4));
    assert!(follower.tail().contains("the node borrower has ended"), "{}", follower.tail());

    // Who is asked to end ends in order, and who asks for a node that is not there is refused.
    let mut watcher = events::follow(world.right(), "lender");
    events::next(&mut watcher, "loan-taken");
    signal(watcher.pid(), Signal::INT).unwrap();
    assert_eq!(watcher.wait(SOON).unwrap().code(), Some(0));
    let command = events::command(world.left(), "borrower", &["--follow"]);
    let ended = run_to_end(command, &world.left().dir().join("logs"), "nobody", START_TIMEOUT).unwrap();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
}

#[test]
fn w5_a_refused_borrower_says_who_has_the_function() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let _first = Borrower::start_as(world.left(), "first", &lender.lines[0], &[]).unwrap();
    // A node that is there for more than one loan goes on.
    let machine = world.left();
    let config = machine.dir().join("second.toml");
    let text = format!(
        "name = \"second\"\nstate_dir = {:?}\n[[loans]]\nline = \"{}\"\nnbd = {:?}\n",
        machine.dir().join("state/second"),
        lender.lines[0],
        borrower_socket(machine, "second"),
    );
    std::fs::write(&config, text).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.arg("node").arg("--config").arg(&config);
    let mut second = machine.spawn("second", command).unwrap();
    second.wait_log("a refusal", SOON, |line| line.contains("is in use by first")).unwrap();
    let refused = events::next(&mut events::follow(machine, "second"), "loan-refused");
    assert_eq!((&refused["reason"], &refused["holder"]), (&"in-use".into(), &"first".into()), "{refused}");
    assert_eq!(refused["node"], status(machine, "first").unwrap()["node"]["id"], "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("is in use by first"), "{refused}");
    let said = all(machine, "second").iter().filter(|event| event["kind"] == "loan-refused").count();
    assert!(second.tail().matches("is in use by first").count() <= said, "said twice:\n{}", second.tail());
}

#[test]
fn w5_a_follower_that_never_reads_costs_nothing() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let machine = world.right();
    let socket = machine.dir().join("run/causeway/lender.sock");
    let deaf = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"GET /events?follow=true HTTP/1.1\r\nHost: lender\r\n\r\n").unwrap();
        stream
    };
    let mut followers: Vec<_> = (0..8).map(|_| deaf()).collect();
    poll_until("a refusal of the ninth", SOON, || {
        let ninth = deaf();
        ninth.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut lines = BufReader::new(ninth).lines().map_while(Result::ok);
        Ok(lines.any(|line| line.contains("8 programs follow")).then_some(()))
    })
    .unwrap();
    let memory = || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", lender.process.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    // Each change of a limit is an event: many times what a ring and the sockets hold.
    let function = lender.lines[0].rsplit_once('/').unwrap().1.to_owned();
    let control = ControlClient::new(&socket);
    let change = |times: u64| {
        for iops in 1..=times {
            let limit = Request::Limit { function: function.clone(), iops: Some(iops), bytes_per_s: None };
            assert_eq!(control.call(&limit).unwrap(), Response::Done);
        }
    };
    change(6_000);
    let before = memory();
    change(6_000);
    let after = memory();
    assert!(after < before + MIB, "{before} bytes, then {after}");
    // The node is as quick as ever, and who reads at last is told what he has missed.
    assert!(number(&status(machine, "lender").unwrap(), "/node/pid").is_ok());
    let reader = BufReader::new(followers.remove(0));
    reader.get_ref().set_read_timeout(Some(SOON)).unwrap();
    let mut lines = reader.lines().map(Result::unwrap);
    let missed = lines.find(|line| line.contains("events-missed")).unwrap();
    assert!(missed.contains("\"missed\":"), "{missed}");
    assert!(all(machine, "lender").len() <= 1024);
}

#[test]
fn w5_the_map_has_both_ends_of_a_loan() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let _borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let ask = |machine: &Machine, name: &str, arguments: &[&str]| {
        let mut command = machine.command(binary().unwrap());
        command.args(["status", "--map", "--name", name]).args(arguments);
        run(command).unwrap()
    };
    // What a card counts may be a moment old.
    let map = |machine: &Machine, name: &str| -> Value {
        poll_until("a window", SOON, || {
            let map: Value = serde_json::from_str(&ask(machine, name, &["-o", "json"])).unwrap();
            Ok((!map["windows"].as_array().unwrap().is_empty()).then_some(map))
        })
        .unwrap()
    };
    let (at_lender, at_borrower) = (map(world.right(), "lender"), map(world.left(), "borrower"));
    assert_eq!((&at_lender["version"], &at_lender["node"]["name"]), (&1.into(), &"lender".into()));
    // What one end puts on its requests is what the other one grants something to: who receives them gives the id, of
    // the loan in its first place this one.
    for (from, to) in [(&at_lender, &at_borrower), (&at_borrower, &at_lender)] {
        let (window, domain) = (&from["windows"][0], &to["domains"][0]);
        let requester = &window["requester"];
        assert_eq!(requester, FIRST, "{window}");
        assert_eq!((&window["domain"], &domain["is_own"]), (&domain["domain"], &true.into()), "{window}");
        let grants = to["grants"].as_array().unwrap();
        assert!(
            !grants.is_empty() && grants.iter().all(|grant| grant["requester"] == *requester),
            "{grants:?}"
        );
    }
    let rights: Vec<_> = at_borrower["grants"].as_array().unwrap().iter().collect();
    let of = |memory: &str| &rights.iter().find(|grant| grant["memory"] == memory).unwrap()["rights"];
    assert_eq!((of("queues"), of("interrupts"), of("data")), (&"rw".into(), &"w".into(), &"rw".into()));
    let text = ask(world.left(), "borrower", &[]);
    assert!(text.contains("borrower (this node)") && text.contains("registers at lender"), "{text}");
}
