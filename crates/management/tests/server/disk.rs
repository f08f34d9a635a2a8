//! What the files keep: through a kill, damage, and a disk that is full.

use std::fs;

use base::ids::BASE32;
use management::store::{backup, restore, write_backup};
use management::wire::ToNode;
use manager::model::{Groups, Membership, WallTime};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Node, now};

#[tokio::test]
async fn nothing_that_was_acknowledged_is_lost_when_it_is_killed() {
    let fabric = Fabric::found();
    for round in 1..=4 {
        let manager = fabric.start().await;
        let admin = &manager.client;
        let hashes = |page: Value| page["items"].as_array().unwrap().len();
        assert_eq!(hashes(admin.get("/v1/join-tokens").await.ok()), 5 * (round - 1));
        for _ in 0..5 {
            admin.post("/v1/join-tokens", json!({})).await.ok();
        }
        assert_eq!(admin.get("/v1").await.ok()["epoch"], round);
        manager.kill().await;
    }
}

#[tokio::test]
async fn a_log_that_is_damaged_is_named_and_left_as_it_is() {
    let fabric = Fabric::found();
    fabric.start().await.stop().await.unwrap();
    let whole = fs::read(fabric.log()).unwrap();
    let mut flipped = whole.clone();
    flipped[100] ^= 4;
    fs::write(fabric.log(), &flipped).unwrap();
    let told = fabric.try_start().await.map(drop).unwrap_err().to_string();
    assert!(told.contains("/log") && told.contains("at byte 56"), "{told}");
    assert_eq!(fs::read(fabric.log()).unwrap(), flipped);
    // Cut at the end of a record: nobody sees it in the file.
    let end = whole.windows(4).rposition(|part| part == b"cwrc").unwrap();
    fs::write(fabric.log(), &whole[..end]).unwrap();
    let told = fabric.try_start().await.map(drop).unwrap_err().to_string();
    assert!(told.contains("was acknowledged"), "{told}");
    fs::write(fabric.log(), whole).unwrap();
    fabric.start().await;
}

#[tokio::test]
async fn a_backup_of_a_manager_that_runs_is_restored_and_begins_by_listening() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let store = Node::join(admin, "store", 1).await;
    let mut agent = store.connect(admin).await;
    agent.presets(0).await;
    let response = admin.send("GET", "/v1/backup", &[], "").await.unwrap();
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let file = fabric.home().join("backup.cw");
    write_backup(&file, &bytes).unwrap();
    assert!(backup(&fabric.config.state, fabric.config.fabric).is_err(), "it runs");
    manager.stop().await.unwrap();
    assert!(restore(&fabric.config.state, fabric.config.fabric, &file).unwrap().is_some());
    let manager = fabric.start().await;
    let admin = &manager.client;
    let document = admin.get("/v1").await.ok();
    assert_eq!(document["restoring"], json!(["store"]));
    assert!(document["epoch"].as_u64().unwrap() > 65_536, "{document}");
    let word = crate::node::join_token(admin).await;
    let key = management::keys::new_pair();
    let closed = crate::node::ask_to_join(admin, &word, "desk", &key, now()).await.problem();
    assert!(closed.0 == 409 && closed.2.contains("restored"), "{closed:?}");
    assert_eq!(admin.post("/v1/restore/end", json!({})).await.problem().0, 409);
    let mut agent = store.greet(admin, now()).await;
    let epoch = agent.greeted().await;
    store.inventory(&mut agent, epoch).await;
    for _ in 0..100 {
        if admin.post("/v1/restore/end", json!({})).await.status == 200 {
            assert_eq!(admin.get("/v1").await.ok()["restoring"], Value::Null);
            crate::node::ask_to_join(admin, &word, "desk", &key, now()).await.ok();
            manager.stop().await.unwrap();
            let again = fabric.start().await;
            let next = document["epoch"].as_u64().unwrap() + 1;
            assert_eq!(again.client.get("/v1").await.ok()["epoch"], next, "it begins as any other");
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the restore cannot be ended");
}

/// The log is gone: from the authority and from what nodes show and lenders say there is a state again. A node that has
/// never joined stays out, and so does one with the certificate of another node or another name than that says.
#[tokio::test]
async fn a_state_that_is_lost_is_made_anew_from_certificates_and_the_tables_of_lenders() {
    let mut fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = manager.client.clone();
    let mut store = Node::join(&admin, "store", 2).await;
    let mut desk = Node::join(&admin, "desk", 0).await;
    desk.has("10.0.0.2:7411", "vm1", &["disk", "more"]);
    let (mut lender, borrower) = (store.connect(&admin).await, desk.connect(&admin).await);
    // What it lends is known.
    lender.presets(0).await;
    let place = format!("{:05x}/0", desk.block().base() + 1);
    let asked = {
        let (admin, slot) = (admin.clone(), json!({"slot": place}));
        tokio::spawn(async move { admin.put("/v1/functions/store/nvme0/assignment", slot).await })
    };
    store.serve_orders(&mut lender).await;
    asked.await.unwrap().ok();
    drop((lender, borrower));
    manager.kill().await;
    fs::remove_file(fabric.log()).unwrap();
    assert!(fabric.try_start().await.is_err(), "there is no log");
    let beside = fabric.home().join("fabric/manager.toml");
    let rebuilt = management::authority::rebuild(&fabric.config, &beside, false).unwrap();
    assert_eq!(rebuilt.admin, fabric.home().join("fabric/admin.toml"));
    fabric.reload_admin();

    let manager = fabric.start().await;
    let admin = &manager.client;
    let early = admin.post("/v1/restore/end", json!({})).await.problem();
    assert!(early.0 == 409 && early.2.contains("knows no node yet"), "{early:?}");
    // Strangers stay out, whatever they show.
    let mut thief = Node::join_as_stranger(&store.joined, "thief");
    assert!(thief.greet(admin, now()).await.refused().await.contains("does not belong"));
    thief.joined.certificate.clear();
    assert!(thief.greet(admin, now()).await.refused().await.contains("does not belong"));
    // Whatever it calls itself, it is what its certificate says.
    desk.joined.name = "store".to_owned();
    let _borrower = desk.connect(admin).await;
    let mut lender = store.connect(admin).await;
    // It may have come before the borrower was known: then it is asked again, as always while the manager listens.
    let function = loop {
        let answer = admin.get("/v1/functions/store/nvme0").await;
        if answer.status == 200 {
            break answer.ok();
        }
        match lender.hear().await.expect("the connection goes on") {
            ToNode::Greet { epoch } => store.inventory(&mut lender, epoch).await,
            ToNode::Member { .. } | ToNode::Recall { .. } => {}
            other => panic!("a manager that only listens has said {other:?}"),
        }
    };
    assert_eq!(admin.get("/v1/nodes/desk").await.ok()["state"], "reachable");
    assert_eq!((&function["state"], &function["generation"]), (&json!("applied"), &json!(1)), "{function}");
    admin.post("/v1/restore/end", json!({})).await.ok();
    // From now on it is a manager as any other: what is nobody's is given, and who is removed stays out.
    let asked = {
        let (admin, slot) = (admin.clone(), json!({"slot": format!("{:05x}/1", desk.block().base() + 1)}));
        tokio::spawn(async move { admin.put("/v1/functions/store/nvme1/assignment", slot).await })
    };
    store.serve_orders(&mut lender).await;
    asked.await.unwrap().ok();
    admin.delete("/v1/nodes/desk").await.ok();
    let revoked = loop {
        match lender.hear().await.expect("the connection goes on") {
            ToNode::Member { revoked, .. } if !revoked.is_empty() => break revoked,
            _ => {}
        }
    };
    assert_eq!(revoked, [desk.id()], "others are told at once");
    assert!(desk.greet(admin, now()).await.refused().await.contains("does not belong"));
}

/// A certificate of a node, as the authority has signed it at this time.
fn certified(fabric: &Fabric, node: &Node, at: WallTime) -> String {
    let of = manager::model::Node {
        id: node.id(),
        name: node.joined.name.parse().unwrap(),
        key: management::keys::public(&node.key),
        block: node.block(),
        groups: Groups::default(),
        membership: Membership::Joined { since: at },
        version: 0,
    };
    BASE32.encode(&fabric.config.authority().unwrap().certify(&of, at).unwrap())
}

/// Nodes whose certificates are not good by the clock of a manager that knows nobody hear that with all times; and with
/// a word of the administrator they are taken in by the proof of their keys.
#[tokio::test]
async fn a_rebuilt_manager_with_another_clock_says_so_or_takes_nodes_in_by_their_keys() {
    let mut fabric = Fabric::found();
    let manager = fabric.start().await;
    let mut store = Node::join(&manager.client, "store", 1).await;
    manager.stop().await.unwrap();
    let beside = fabric.home().join("fabric/manager.toml");
    let days = |days: u64| WallTime(now().0 - days * 86_400_000);
    for any_time in [false, true] {
        management::authority::rebuild(&fabric.config, &beside, any_time).unwrap();
        fabric.reload_admin();
        let manager = fabric.start().await;
        let admin = &manager.client;
        for at in [days(40), WallTime(now().0 + 40 * 86_400_000)] {
            store.joined.certificate = certified(&fabric, &store, at);
            // Who shows it and has not that key learns nothing.
            let thief = Node::join_as_stranger(&store.joined, "thief");
            assert!(thief.greet(admin, now()).await.refused().await.contains("does not belong"));
            if any_time {
                let _agent = store.connect(admin).await;
                // Its inventory is on its way.
                while admin.get("/v1/functions/store/nvme0").await.status != 200 {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            } else {
                let why = store.greet(admin, now()).await.refused().await;
                assert!(why.contains("good") && why.contains("rebuild --any-time"), "{why}");
                let audit = admin.get("/v1/audit?limit=1000").await.ok().to_string();
                assert!(audit.contains("rebuild --any-time"), "{audit}");
            }
        }
        manager.stop().await.unwrap();
    }
}

/// Files of this process cannot grow beyond this many bytes, as a disk that is full.
const FULL: u64 = 24 << 10;

/// Runs in a process of its own, in which the signal of a file that is too long is ignored, as it is where a disk is
/// full: see [`a_full_disk_stops_changes_and_nothing_else`].
#[tokio::test]
#[ignore = "the process that it runs in has a limit for the length of files"]
async fn under_a_limit() {
    let limit = |current| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        setrlimit(Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
    };
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    limit(Some(FULL));
    let mut done = 0;
    let full = loop {
        let answer = admin.post("/v1/join-tokens", json!({})).await;
        match answer.status {
            201 => done += 1,
            _ => break answer.problem(),
        }
        assert!(done < 1000, "the disk is never full");
    };
    assert_eq!((full.0, full.1.as_str()), (503, "unavailable"), "{}", full.2);
    let health = admin.get("/healthz").await.problem();
    assert!(
        health.0 == 503 && health.2.contains("/log") && health.2.contains("cannot be appended to"),
        "{health:?}"
    );
    assert_eq!(admin.post("/v1/join-tokens", json!({})).await.problem().0, 503);
    limit(None);
    for _ in 0..200 {
        if admin.get("/healthz").await.status == 200 {
            let there = admin.get("/v1/join-tokens?limit=1000").await.ok()["items"].as_array().unwrap().len();
            assert_eq!(there, done, "neither more nor less than was said");
            admin.post("/v1/join-tokens", json!({})).await.ok();
            let failures = admin.get("/metrics").await.text;
            assert!(failures.contains("causeway_manager_disk_failures_total"), "{failures}");
            manager.stop().await.unwrap();
            fabric.start().await.client.get("/v1").await.ok();
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it never begins again");
}

#[test]
fn a_full_disk_stops_changes_and_nothing_else() {
    let this = std::env::current_exe().unwrap();
    let script = "trap '' XFSZ; exec \"$0\" --exact disk::under_a_limit --ignored --nocapture";
    let output = std::process::Command::new("sh").args(["-c", script]).arg(this).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}
