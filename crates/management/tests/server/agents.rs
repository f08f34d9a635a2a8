//! Nodes that are connected: what is decided reaches them, and what they say is shown.

use base::ids::RailId;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use management::wire::{About, FromNode, NodeEvent, RailSaid, SWITCHES_MAX, SwitchSaid, ToNode};
use manager::model::WallTime;
use manager::report::{DeadRail, RailCause, Report, Said};
use serde_json::{Value, json};

use crate::client::Client;
use crate::fabric::Fabric;
use crate::node::{Agent, Node, now};

/// Somebody who follows events.
pub(crate) struct Followed {
    body: Incoming,
    text: String,
    /// The id of the last event.
    last: String,
}

impl Followed {
    pub(crate) async fn open(client: &Client) -> Self {
        Self::open_with(client, &[]).await
    }

    /// From behind this event on.
    async fn after(client: &Client, id: &str) -> Self {
        Self::open_with(client, &[("last-event-id", id)]).await
    }

    async fn open_with(client: &Client, headers: &[(&str, &str)]) -> Self {
        let response = client.send("GET", "/v1/events", headers, "").await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new(), last: String::new() }
    }

    /// The next event. `None`: there are no more.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let data = field("data: ").map(|data| serde_json::from_str(data).unwrap());
                if let Some(id) = field("id: ") {
                    self.last = id.to_owned();
                }
                self.text = rest.to_owned();
                match data {
                    Some(data) => return Some(data),
                    None => continue,
                }
            }
            let frame = self.body.frame().await?.ok()?;
            self.text.push_str(core::str::from_utf8(&frame.into_data().ok()?).unwrap());
        }
    }

    /// The next one of this name.
    pub(crate) async fn called(&mut self, name: &str) -> Value {
        let wait = async {
            loop {
                let event = self.next().await.expect("events go on");
                if event["name"] == name {
                    return event;
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), wait).await.expect("the event comes in time")
    }
}

async fn assign(admin: &Client, function: &str, slot: &str) -> crate::client::Answer {
    admin.put(&format!("/v1/functions/{function}/assignment"), json!({"slot": slot})).await
}

/// The manager finds the group that both enter, and tells it to both, with what becomes of it in silence.
#[tokio::test]
async fn an_assignment_says_group_and_silence_to_both_ends() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = manager.client.clone();
    let mut store = Node::join(&admin, "store", 2).await;
    let mut desk = Node::join(&admin, "desk", 0).await;
    store.has("10.0.0.1:7411", "none", &[]);
    desk.has("10.0.0.2:7411", "vm1", &["disk"]);
    let mut lender = store.connect(&admin).await;
    let mut borrower = desk.connect(&admin).await;
    borrower.presets(0).await;
    lender.presets(0).await;
    let groups = |node: &'static str, groups: &'static [u16]| {
        let admin = admin.clone();
        async move { admin.put(&format!("/v1/nodes/{node}/groups"), json!({"groups": groups})).await.ok() }
    };
    groups("store", &[2, 5]).await;
    groups("desk", &[3, 7]).await;
    let (status, _, detail) = assign(&admin, "store/nvme1", "vm1/disk").await.problem();
    assert_eq!(status, 409);
    assert!(detail.contains("`store` and `desk` may not enter the same group"), "{detail}");
    groups("store", &[2, 5, 7, 9]).await;
    groups("desk", &[3, 7, 9]).await;
    let asked = {
        let admin = admin.clone();
        let body = json!({"slot": "vm1/disk", "on_silence": "remove"});
        tokio::spawn(async move { admin.put("/v1/functions/store/nvme1/assignment", body).await })
    };
    let orders = store.serve_orders(&mut lender).await;
    let to = orders[0].to.unwrap();
    assert_eq!((to.group.0, to.on_silence), (7, manager::model::OnSilence::Remove));
    assert_eq!(asked.await.unwrap().ok()["progress"], "done");
    let (_, placed) = borrower.presets(1).await;
    let preset = placed[0].preset;
    assert_eq!((preset.group.0, preset.on_silence), (7, manager::model::OnSilence::Remove));
    assert_eq!(admin.get("/v1/loans/store/nvme1").await.ok()["group"], 7);
}

#[tokio::test]
async fn what_is_assigned_reaches_lender_and_borrower_and_comes_back() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = manager.client.clone();
    let mut store = Node::join(&admin, "store", 2).await;
    let mut desk = Node::join(&admin, "desk", 0).await;
    store.has("10.0.0.1:7411", "none", &[]);
    desk.has("10.0.0.2:7411", "vm1", &["disk", "more"]);
    let mut lender = store.connect(&admin).await;
    let mut borrower = desk.connect(&admin).await;
    borrower.presets(0).await;
    lender.presets(0).await;
    let asked = {
        let admin = admin.clone();
        tokio::spawn(async move { assign(&admin, "store/nvme1", "vm1/disk").await })
    };
    let orders = store.serve_orders(&mut lender).await;
    assert_eq!((orders.len(), orders[0].number), (1, 1));
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 200);
    let changed = answer.ok();
    assert_eq!((&changed["progress"], &changed["generation"]), (&json!("done"), &json!(1)));
    let (id, placed) = borrower.presets(1).await;
    assert_eq!((placed[0].function.as_str(), placed[0].lender.as_str()), ("nvme1", "store"));
    assert_eq!(placed[0].addresses, "10.0.0.1:7411");
    assert_eq!(placed[0].domain.0, store.block().base());
    let loan = admin.get("/v1/loans/store/nvme1").await.ok();
    assert_eq!((&loan["slot"], &loan["state"]), (&json!("desk/vm1/disk"), &json!("applied")));
    assert_eq!((&loan["borrower"], &loan["on_silence"]), (&json!("desk"), &json!("hold(600)")));
    let domain = admin.get("/v1/domains/desk/vm1").await.ok();
    assert_eq!(domain["slots"][0]["function"], "store/nvme1");
    // It has the last list, so it is told once more only because the lender's address is another one.
    let mut last = id;
    loop {
        let said = Said::Presets(last);
        borrower.say(&FromNode::Report(Report { epoch: last.epoch, said })).await;
        match tokio::time::timeout(2 * manager::machine::RETELL, borrower.presets(1)).await {
            Ok((id, _)) => last = id,
            Err(_) => break,
        }
    }
    store.has("10.0.9.9:7411", "none", &[]);
    lender.say(&FromNode::About(store.about.clone())).await;
    assert_eq!(borrower.presets(1).await.1[0].addresses, "10.0.9.9:7411");
    let taken = assign(&admin, "store/nvme1", "vm1/more").await.problem();
    assert!(taken.0 == 409 && taken.2.contains("of desk since"), "{taken:?}");
    let asked = {
        let admin = admin.clone();
        tokio::spawn(async move { admin.delete("/v1/functions/store/nvme1/assignment").await })
    };
    assert_eq!(store.serve_orders(&mut lender).await[0].to, None);
    assert_eq!(asked.await.unwrap().ok()["progress"], "done");
    borrower.presets(0).await;
    assert_eq!(admin.get("/v1/functions/store/nvme1").await.ok()["state"], "free");
}

#[tokio::test]
async fn a_lender_that_is_silent_leaves_it_pending() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut store = Node::join(admin, "store", 1).await;
    let desk = Node::join(admin, "desk", 0).await;
    let mut lender = store.connect(admin).await;
    lender.presets(0).await;
    let mut events = Followed::open(admin).await;
    drop(lender);
    assert_eq!(events.called("silent").await["node"], "store");
    let place = format!("{:05x}/3", desk.block().base() + 1);
    let answer = assign(admin, "store/nvme0", &place).await;
    assert_eq!(answer.status, 202);
    let changed = answer.ok();
    assert_eq!((&changed["progress"], &changed["waits_for"]), (&json!("pending"), &json!("store")));
    assert_eq!(changed["is_silent"], true);
    let shown = admin.get("/v1/nodes/store").await.ok();
    assert!(shown["state"] == "silent" && shown["silent_since"].is_string(), "{shown}");
    assert!(admin.get("/v1/nodes/desk").await.ok().get("silent_since").is_none(), "it never was heard");
    let mut lender = store.connect(admin).await;
    store.serve_orders(&mut lender).await;
    for _ in 0..100 {
        if admin.get("/v1/loans/store/nvme0").await.ok()["state"] == "applied" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("it is never applied");
}

#[tokio::test]
async fn limits_are_decided_told_and_shown_apart_from_who_has_the_function() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut store = Node::join(admin, "store", 1).await;
    let path = "/v1/functions/store/nvme0";
    let limits = format!("{path}/limits");
    let mut lender = store.connect(admin).await;
    // It is told what is in its slots, so its inventory was heard.
    lender.presets(0).await;
    let zero = admin.put(&limits, json!({"iops": 0})).await.problem();
    assert!(zero.0 == 400 && zero.2.contains("`iops`"), "{zero:?}");
    let asked = tokio::spawn({
        let (admin, limits) = (admin.clone(), limits.clone());
        async move { admin.put(&limits, json!({"iops": 100})).await }
    });
    let orders = store.serve_orders(&mut lender).await;
    assert_eq!((orders[0].generation.0, orders[0].limits.unwrap().limits.iops.unwrap().get()), (0, 100));
    assert_eq!(asked.await.unwrap().ok()["progress"], "done");
    let function = admin.get(path).await.ok();
    assert_eq!((&function["limits"], &function["is_limited"]), (&json!({"iops": 100}), &json!(true)));
    assert_eq!((&function["state"], &function["generation"]), (&json!("free"), &json!(0)));
    // What is so already is no change.
    assert_eq!(admin.put(&limits, json!({"iops": 100})).await.ok()["index"], Value::Null);
    // Of a silent lender it is decided, and pending.
    drop(lender);
    let pending = loop {
        let answer = admin.put(&limits, json!({"bytes_per_s": 1 << 20})).await;
        assert_eq!(answer.status, 202);
        let answer = answer.ok();
        if answer["is_silent"] == true {
            break answer;
        }
    };
    assert_eq!(pending["waits_for"], "store");
    assert_eq!(admin.get(path).await.ok()["is_limited"], false);
    let audit = admin.get("/v1/audit?limit=1000").await.ok().to_string();
    assert!(audit.contains("limit store/nvme0 to 100 commands and any bytes a second"), "{audit}");
}

#[tokio::test]
async fn slots_are_found_by_name_or_number_and_a_name_of_two_lists_both() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let store = Node::join(admin, "store", 1).await;
    let mut lender = store.connect(admin).await;
    lender.presets(0).await;
    let mut agents = Vec::new();
    for name in ["desk", "rack"] {
        let mut node = Node::join(admin, name, 0).await;
        node.has("", "vm", &["disk"]);
        let mut agent = node.connect(admin).await;
        agent.presets(0).await;
        agents.push(agent);
    }
    let told = |slot: &'static str| async move { assign(admin, "store/nvme0", slot).await.problem() };
    let both = told("vm/disk").await;
    assert!(both.0 == 409 && both.2.ends_with("desk/vm/disk, rack/vm/disk"), "{both:?}");
    // A name that one node alone has is certain only when all were heard, and when it is no number.
    let mut late = Node::join(admin, "late", 0).await;
    late.has("", "00041", &["disk"]);
    let mut agent = late.connect(admin).await;
    agent.presets(0).await;
    let number = told("00041/disk").await;
    assert!(number.0 == 409 && number.2.contains("late/00041/disk"), "{number:?}");
    Node::join(admin, "unheard", 0).await;
    let mut desk = Node::join(admin, "alone", 0).await;
    desk.has("", "own", &["disk"]);
    let mut own = desk.connect(admin).await;
    own.presets(0).await;
    let unheard = told("own/disk").await;
    assert!(unheard.0 == 409 && unheard.2.contains("alone/own/disk"), "{unheard:?}");
    for (slot, word) in [
        ("vmm/disk", "did you mean `vm`?"),
        ("desk/vm/dis", "did you mean `disk`?"),
        ("dask/vm/disk", "did you mean `desk`?"),
        ("3ffff/1", "is no node's"),
        ("33/1", "no node that was heard has a domain `33`"),
        ("00010/x", "has not said what its slots are called"),
        ("rack/00021/disk", "is not of `rack` but of `desk`"),
        ("a/b/c/d", "is no slot"),
        ("desk/vm/70000", "domain `vm` has no slot"),
    ] {
        let problem = told(slot).await;
        assert!(problem.2.contains(word), "{slot}: {problem:?}");
    }
    drop(lender);
    drop(agents);
}

#[tokio::test]
async fn a_second_connection_closes_the_first_and_a_removed_node_hears_so() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let node = Node::join(admin, "desk", 0).await;
    let mut first = node.connect(admin).await;
    let mut second = node.connect(admin).await;
    assert!(first.refused().await.contains("connected again"));
    second.presets(0).await;
    assert_eq!(admin.get("/v1/nodes/desk").await.ok()["state"], "reachable");
    admin.delete("/v1/nodes/desk").await.ok();
    assert!(second.refused().await.contains("does not belong"));
    let mut third = node.greet(admin, now()).await;
    assert!(third.refused().await.contains("does not belong"));
}

#[tokio::test]
async fn who_proves_nothing_or_talks_nonsense_is_refused_in_words() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let node = Node::join(admin, "desk", 0).await;
    let mut liar = Node::join(admin, "liar", 0).await;
    // With another one's id.
    let mut agent = Agent::open(admin).await;
    let Some(ToNode::Challenge { .. }) = agent.hear().await else { panic!() };
    let hello = |version| FromNode::Hello {
        version,
        node: node.id(),
        proof: [0; 32],
        now: now(),
        program: String::new(),
        certificate: String::new(),
    };
    agent.say(&hello(1)).await;
    assert!(agent.refused().await.contains("does not belong to this fabric, or not with this key"));
    let mut agent = node.connect(admin).await;
    let event = NodeEvent { at: String::new(), name: "n".to_owned(), is_trouble: false, text: String::new() };
    agent.say(&FromNode::Events(vec![event; management::wire::EVENTS_MAX + 1])).await;
    assert!(agent.refused().await.contains("too many events"));
    let mut agent = node.connect(admin).await;
    agent.say(&hello(1)).await;
    assert!(agent.refused().await.contains("once a connection"));
    let mut agent = Agent::open(admin).await;
    agent.hear().await;
    agent.say(&hello(2)).await;
    assert!(agent.refused().await.contains("speaks version 2"));
    for text in ["", "{", "{\"x\": 1}", "[1]"] {
        let mut agent = node.connect(admin).await;
        agent.say_text(text.to_owned()).await;
        assert!(agent.refused().await.contains("none that a manager knows"), "{text}");
    }
    // A domain that is another node's.
    liar.has("", "vm", &["disk"]);
    liar.about.domains[0].domain = base::ids::DomainId(node.block().base());
    let mut agent = liar.greet(admin, now()).await;
    agent.say(&FromNode::About(liar.about.clone())).await;
    assert!(agent.refused().await.contains("is not the node's"));
    assert!(admin.get("/v1/domains").await.ok()["items"].as_array().unwrap().is_empty());
}

/// Before it has proven anything, a connection is not listened to at length: neither to a message that is complete
/// nor to one that says how long it will be.
#[tokio::test]
async fn a_stranger_is_not_listened_to_at_length() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut agent = Agent::open(admin).await;
    agent.hear().await;
    agent.say_text("x".repeat(100_000)).await;
    assert!(agent.refused().await.contains("hello first"));
    let mut agent = Agent::open(admin).await;
    agent.hear().await;
    // A text of 1 MiB that never ends (RFC 6455 §5.2: FIN and text, masked, 64 bits of length, mask).
    agent
        .say_raw(&[&[0x81, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0][..], &[b'x'; 200_000]].concat())
        .await;
    assert!(agent.refused().await.contains("hello first"));
    // Who has proven who it is may say more at once.
    let mut node = Node::join(admin, "desk", 0).await;
    let slots: Vec<String> = (0..1000).map(|slot| format!("slot-{slot}")).collect();
    node.has("10.0.0.1:7411", "vm", &slots.iter().map(String::as_str).collect::<Vec<_>>());
    let mut agent = node.connect(admin).await;
    agent.presets(0).await;
    assert_eq!(admin.get("/v1/domains/desk/vm").await.ok()["slots"].as_array().unwrap().len(), 1000);
}

#[tokio::test]
async fn who_follows_and_comes_again_misses_nothing_or_is_told_so() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = manager.client.clone();
    let node = Node::join(&admin, "desk", 0).await;
    let mut events = Followed::open(&admin).await;
    let mut agent = node.connect(&admin).await;
    agent.presets(0).await;
    events.called("reachable").await;
    let last = events.last.clone();
    drop(events);
    drop(agent);
    // It happens while nobody follows.
    while admin.get("/v1/nodes/desk").await.ok()["state"] != "silent" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(Followed::after(&admin, &last).await.next().await.unwrap()["name"], "silent");
    manager.stop().await.unwrap();
    let manager = fabric.start().await;
    let lost = Followed::after(&manager.client, &last).await.next().await.unwrap();
    assert!(lost["name"] == "lost" && lost["text"].as_str().unwrap().contains("started again"), "{lost}");
}

#[tokio::test]
async fn events_of_nodes_reach_who_follows() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = manager.client.clone();
    let node = Node::join(&admin, "desk", 0).await;
    let mut events = Followed::open(&admin).await;
    let mut agent = node.greet(&admin, WallTime(now().0 + 3_600_000)).await;
    let epoch = agent.greeted().await;
    let clock = events.called("clock").await;
    assert!(clock["is_trouble"] == true && clock["node"] == "desk", "{clock}");
    let alarms = admin.get("/v1/nodes/desk").await.ok()["alarms"].clone();
    assert!(alarms[0].as_str().unwrap().contains("its clock says"), "{alarms}");
    assert_eq!(events.called("reachable").await["node"], "desk");
    node.inventory(&mut agent, epoch).await;
    let at = "1970-01-01T00:00:00Z".to_owned();
    let event = NodeEvent { at, name: "died".to_owned(), is_trouble: true, text: "x".to_owned() };
    agent.say(&FromNode::Events(vec![event])).await;
    let died = events.called("died").await;
    assert_eq!((&died["node"], &died["at"]), (&json!("desk"), &json!("1970-01-01T00:00:00Z")));
    // Whoever follows hears the end, and does not keep the process from it.
    let begun = std::time::Instant::now();
    manager.stop().await.unwrap();
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "connections were cut, and did not end");
    while events.next().await.is_some() {}
    assert!(agent.refused().await.contains("ends"));
}

#[tokio::test]
async fn a_node_that_floods_events_displaces_no_others() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut events = Followed::open(admin).await;
    let node = Node::join(admin, "desk", 0).await;
    let mut agent = node.connect(admin).await;
    agent.presets(0).await;
    events.called("reachable").await;
    let before = events.last.clone();
    // More than are kept.
    let event = NodeEvent { at: String::new(), name: "n".to_owned(), is_trouble: false, text: String::new() };
    for _ in 0..20 {
        agent.say(&FromNode::Events(vec![event.clone(); management::wire::EVENTS_MAX])).await;
    }
    let left_out = events.called("left-out").await;
    assert!(left_out["node"] == "desk" && left_out["is_trouble"] == true, "{left_out}");
    let many = left_out["text"].as_str().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(many > 0, "{left_out}");
    let mut again = Followed::after(admin, &before).await;
    assert_eq!(again.next().await.unwrap()["name"], "n", "nothing of before is lost");
    manager.stop().await.unwrap();
}

#[tokio::test]
async fn a_dead_rail_is_shown_and_told_to_all_others_as_long_as_somebody_says_so() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut nodes = Vec::new();
    for name in ["store", "desk", "rack"] {
        let mut node = Node::join(admin, name, 0).await;
        let rail = RailId::ALL[1];
        let [name, medium, address] = ["rail1", "udp", "10.1.0.1:7411"].map(str::to_owned);
        node.about.rails = vec![RailSaid { rail, name, medium, address, is_up: true }];
        let mut agent = node.connect(admin).await;
        agent.presets(0).await;
        nodes.push((node, agent));
    }
    let mut events = Followed::open(admin).await;
    let dead = DeadRail { node: nodes[0].0.id(), rail: RailId::ALL[1], cause: RailCause::Silence };
    let epoch = admin.get("/v1").await.ok()["epoch"].as_u64().unwrap();
    let report = |rails| FromNode::Report(Report { epoch, said: Said::Rails(rails) });
    nodes[1].1.say(&report(vec![dead])).await;
    for at in [0, 2] {
        assert_eq!(nodes[at].1.rails().await, [dead]);
    }
    let event = events.called("rail-dead").await;
    assert!(event["node"] == "store" && event["text"].as_str().unwrap().contains("as desk says"), "{event}");
    let verdict = admin.get("/v1/nodes/store").await.ok()["rails"][0]["verdict"].clone();
    assert_eq!((&verdict["cause"], &verdict["by"]), (&json!("silence"), &json!(["desk"])));
    let metrics = admin.get("/metrics").await.text;
    for line in ["causeway_manager_rails_dead 1.0", "causeway_manager_rails_told_total 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // Another manager knows nothing of it until it is said again.
    manager.kill().await;
    drop(events);
    let manager = fabric.start().await;
    let admin = &manager.client;
    assert_eq!(admin.get("/v1/nodes/store").await.ok()["rails"], json!([]));
    let (desk, store) = (&nodes[1].0, &nodes[0].0);
    let mut lender = store.connect(admin).await;
    lender.presets(0).await;
    let mut agent = desk.connect(admin).await;
    agent.presets(0).await;
    assert_eq!(admin.get("/v1/nodes/store").await.ok()["rails"][0]["verdict"], Value::Null);
    let epoch = admin.get("/v1").await.ok()["epoch"].as_u64().unwrap();
    let report = |rails| FromNode::Report(Report { epoch, said: Said::Rails(rails) });
    let mut events = Followed::open(admin).await;
    agent.say(&report(vec![dead])).await;
    assert_eq!(lender.rails().await, [dead]);
    agent.say(&report(vec![])).await;
    assert_eq!(events.called("rail-back").await["node"], "store");
    assert_eq!(admin.get("/v1/nodes/store").await.ok()["rails"][0]["verdict"], Value::Null);
}

#[tokio::test]
async fn switches_are_those_that_nodes_hear() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let said = |switch: u64, is_heard| SwitchSaid {
        node: base::ids::NodeId::numbered(switch),
        name: format!("switch{switch}"),
        is_heard,
        rails: vec!["rail1".to_owned()],
        ports: vec!["10.0.0.9:7411".to_owned()],
    };
    let mut agents = Vec::new();
    for (name, switches) in [("store", vec![said(1, true)]), ("desk", vec![said(1, false), said(2, false)])] {
        let mut node = Node::join(admin, name, 0).await;
        node.about = About { switches, ..About::default() };
        let mut agent = node.connect(admin).await;
        agent.presets(0).await;
        agents.push((node, agent));
    }
    let all = admin.get("/v1/switches").await.ok()["items"].clone();
    let row = |at: usize| (all[at]["name"].clone(), all[at]["state"].clone(), all[at]["nodes"].clone());
    assert_eq!(row(0), (json!("switch1"), json!("heard"), json!(["desk/rail1", "store/rail1"])), "{all}");
    assert_eq!(row(1), (json!("switch2"), json!("silent"), json!(["desk/rail1"])));
    assert_eq!((all.as_array().unwrap().len(), &all[0]["ports"]), (2, &json!(["10.0.0.9:7411"])));
    let silent = admin.get("/v1/switches?state=silent").await.ok();
    assert_eq!(silent["items"].as_array().unwrap().len(), 1);
    // What a node says that is silent itself is past.
    let (node, agent) = agents.remove(0);
    drop(agent);
    while admin.get("/v1/switches").await.ok()["items"][0]["state"] != "silent" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut loud = node.greet(admin, now()).await;
    let switches = (0..=SWITCHES_MAX as u64).map(|switch| said(switch, true)).collect();
    loud.say(&FromNode::About(About { switches, ..About::default() })).await;
    assert!(loud.refused().await.contains("switches"));
}
