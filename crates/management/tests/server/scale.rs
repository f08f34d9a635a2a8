//! A fabric as great as one may be: all of it is there after a start, page by page, in little memory; and many clients
//! who change it at once. With `--nocapture` it is shown how long that takes.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use base::ids::LoanGeneration;
use manager::entry::{Change, Entry, News, Who};
use manager::log::{Base, Writer, read};
use manager::model::{
    Block, Groups, JoinToken, Kind, Loan, NODES_MAX, PublicKey, Resource, TokenHash, WallTime,
};
use manager::report::Order;
use manager::state::State;
use serde_json::json;

use crate::fabric::Fabric;
use crate::node::Node;

const FUNCTIONS: u32 = 16;
/// What a manager of all of it may take.
const MEMORY_MAX_MIB: u64 = 512;
const AT: WallTime = WallTime(1 << 41);

/// Writes what so many nodes have done to the log of a new fabric.
fn fill(fabric: &Fabric, nodes: usize) {
    let bytes = std::fs::read(fabric.log()).unwrap();
    let recovered = read(&bytes, Base::new(fabric.config.fabric), 0).unwrap();
    let (mut state, mut writer): (State, Writer) = (recovered.state, recovered.writer);
    let mut file = OpenOptions::new().append(true).open(fabric.log()).unwrap();
    for number in 0..nodes {
        let entries = node(number);
        for entry in &entries {
            state.apply(state.index() + 1, entry).unwrap();
        }
        file.write_all(&writer.record(&entries)).unwrap();
    }
}

/// A node joins, and says what it lends.
fn node(number: usize) -> Vec<Entry> {
    let key = management::keys::public(&management::keys::NodeKey::numbered(number as u64));
    let (id, hash) =
        (management::keys::node_id(PublicKey(key.0)), TokenHash(management::keys::sha256(&key.0)));
    let block = Block::new(16 * (number as u32 + 1), 16).unwrap();
    let token =
        JoinToken { hash, expires: AT.plus_s(60), groups: Groups::default(), domains: 16, used: None };
    let resource = Resource { kind: Kind::Nvme, bytes: 1 << 40, read_only: false, made: None };
    let seen = (0..FUNCTIONS).map(|number| News::Seen {
        number,
        name: format!("nvme{number}").parse().unwrap(),
        resource,
        generation: LoanGeneration(0),
        loan: Loan::Free,
    });
    let name = format!("node-{number}").parse().unwrap();
    let changes = [
        (Who::Manager, Change::JoinTokenMade { token }),
        (Who::Joiner { token: hash }, Change::NodeJoined { id, name, key, block, token: hash }),
        (Who::Node { id }, Change::Reported { id, news: seen.collect(), is_again: false }),
    ];
    changes.into_iter().map(|(who, change)| Entry { at: AT, who, request: None, change }).collect()
}

/// Resident memory of this process, in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn the_greatest_fabric() {
    let fabric = Fabric::found();
    fill(&fabric, NODES_MAX - 1);
    let before = memory();
    let begun = Instant::now();
    let manager = fabric.start().await;
    let all = manager.client.get("/v1").await.ok();
    let nodes = NODES_MAX - 1;
    assert_eq!((&all["nodes"], &all["functions"]), (&json!(nodes), &json!(nodes * FUNCTIONS as usize)));
    let more = memory().saturating_sub(before);
    println!("start: {:?}, memory: {more} MiB more than {before} MiB", begun.elapsed());
    assert!(more < MEMORY_MAX_MIB, "{more} MiB");
    for (path, rows) in [
        ("/v1/nodes?limit=1000", 1000),
        ("/v1/functions?limit=1000", 1000),
        ("/v1/functions?limit=1000&after=node-5/x", 1000),
        ("/v1/functions?name=node-999/nvme15", 1),
        ("/v1/functions?node=node-999", FUNCTIONS as usize),
        ("/v1/loans", 0),
    ] {
        let begun = Instant::now();
        let page = manager.client.get(path).await.ok();
        println!("{path}: {:?}", begun.elapsed());
        assert_eq!(page["items"].as_array().map(Vec::len), Some(rows), "{path}");
    }
    let more = memory().saturating_sub(before);
    assert!(more < MEMORY_MAX_MIB, "{more} MiB after it was asked");
    let begun = Instant::now();
    manager.stop().await.unwrap();
    println!("end: {:?}", begun.elapsed());
}

#[tokio::test]
async fn changes_in_a_second() {
    const CLIENTS: u16 = 64;
    const ROUNDS: usize = 20;
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = manager.client.clone();
    let mut lenders = Vec::new();
    for number in 0..CLIENTS {
        let mut node = Node::join(&admin, &format!("node-{number}"), 1).await;
        let mut agent = node.connect(&admin).await;
        agent.presets(0).await;
        lenders.push(tokio::spawn(async move {
            loop {
                let _: Vec<Order> = node.serve_orders(&mut agent).await;
            }
        }));
    }
    let begun = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let admin = admin.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                let path = format!("/v1/functions/node-{number}/nvme0/assignment");
                let (mut io, slot) = (admin.keep().await, json!({"slot": "00010/0"}));
                // One slot each: the number of the client.
                let slot = slot.to_string().replace("/0", &format!("/{number}"));
                for _ in 0..ROUNDS {
                    for (method, body) in [("PUT", slot.as_str()), ("DELETE", "")] {
                        let begun = Instant::now();
                        assert_eq!(io.call(method, &path, body).await, 200);
                        took.push(begun.elapsed());
                    }
                }
                took
            })
        })
        .collect();
    let mut took: Vec<Duration> = Vec::new();
    for client in clients {
        took.extend(client.await.unwrap());
    }
    let (count, elapsed) = (took.len(), begun.elapsed());
    took.sort_unstable();
    println!(
        "{count} changes in {elapsed:?}: {:.0} a second, median {:?}, p99 {:?}",
        count as f64 / elapsed.as_secs_f64(),
        took[count / 2],
        took[count * 99 / 100]
    );
    // Each was done once: a generation more.
    assert_eq!(count, 2 * ROUNDS * usize::from(CLIENTS));
    for number in 0..CLIENTS {
        let function = admin.get(&format!("/v1/functions/node-{number}/nvme0")).await.ok();
        assert_eq!(
            (&function["generation"], &function["state"]),
            (&json!(2 * ROUNDS), &json!("free")),
            "{function}"
        );
    }
    lenders.iter().for_each(tokio::task::JoinHandle::abort);
}
