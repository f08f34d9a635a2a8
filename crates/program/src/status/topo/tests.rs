use super::*;
use crate::status::tests::example;
use crate::status::{Loan, PeerFunction, PeerGateway, PeerRail};

/// `desk` borrows of `store` over two rails, one by a switch; `other` is heard behind the same switch, and has
/// something of `store`, too.
fn topo() -> Topo {
    let mut status = example();
    (status.node.name, status.node.id) = ("desk".to_owned(), "desk-id".to_owned());
    let rail = |name: &str, switch: Option<&str>, state: &str, node: &str| Rail {
        name: name.to_owned(),
        medium: "udp".to_owned(),
        local: format!("10.0.0.1:{name}"),
        node: node.to_owned(),
        switch: switch.map(str::to_owned),
        state: state.to_owned(),
        rtt_us: Some(90.0),
        ..Rail::default()
    };
    status.rails = vec![rail("0", Some("10.9.9.9:1"), "up", "store-id"), rail("1", None, "down", "store-id")];
    status.loans[0].role = Role::Borrower;
    (status.loans[0].peer, status.loans[0].node) = ("store".to_owned(), "store-id".to_owned());
    let peer = |name: &str, state: &str, functions| Peer {
        name: name.to_owned(),
        node: format!("{name}-id"),
        heard_s: 3.0,
        rails: vec![PeerRail {
            rail: 0,
            address: format!("{name}:7"),
            switch: Some("10.9.9.9:1".to_owned()),
            state: state.to_owned(),
        }],
        functions,
        ..Peer::default()
    };
    let function = |name: &str, lent_to: &str| PeerFunction {
        function: name.to_owned(),
        group: 1,
        lent_to: Some(lent_to.to_owned()).filter(|id| !id.is_empty()),
        ..PeerFunction::default()
    };
    let lent = vec![function("nvme0", "desk-id"), function("nvme1", "other-id"), function("nvme2", "")];
    let peers = Peers {
        peers: vec![peer("store", "up", lent), peer("other", "down", Vec::new())],
        ..Peers::default()
    };
    Topo::new(&status, &peers)
}

#[test]
fn what_a_node_knows_is_put_together() {
    let topo = topo();
    let states: Vec<_> = topo.nodes.iter().map(|it| (it.name.as_str(), it.state.as_str())).collect();
    assert_eq!(states, [("desk", "self"), ("other", "heard"), ("store", "up")]);
    assert_eq!(topo.nodes[0].rails.len(), 2);
    let all = ["desk-id", "other-id", "store-id"].map(str::to_owned).to_vec();
    let address = "10.9.9.9:1".to_owned();
    let unknown = TopoSwitch {
        state: "unknown".to_owned(),
        addresses: vec![address.clone()],
        address,
        nodes: all,
        ..TopoSwitch::default()
    };
    assert_eq!(topo.switches, [unknown]);
    let loans: Vec<_> = topo.loans.iter().map(|it| (it.function.as_str(), it.borrower.as_deref())).collect();
    assert_eq!(
        loans,
        [("nvme0", Some("desk-id")), ("nvme1", Some("other-id")), ("nvme2", None)],
        "each once"
    );
    assert!(topo.loans.iter().all(|it| it.lender == "store-id"));
    let dead: Vec<_> = topo.dead.iter().map(|it| (it.kind.as_str(), it.node.as_str())).collect();
    assert_eq!(dead, [("rail", "store-id"), ("carrier", "other-id")]);
    let json = serde_json::to_string(&topo).unwrap();
    assert!(json.starts_with(r#"{"version":1,"node":"desk""#), "{json}");
    assert_eq!(serde_json::from_str::<Topo>(&json).unwrap(), topo);
}

/// Two addresses that one switch says are its own, and one that nobody says anything of.
#[test]
fn a_switch_that_says_who_it_is_is_one() {
    let peer = |name: &str, switch: &str| Peer {
        name: name.to_owned(),
        node: format!("{name}-id"),
        rails: vec![PeerRail { switch: Some(switch.to_owned()), ..PeerRail::default() }],
        ..Peer::default()
    };
    let switch = Peer {
        role: "switch".to_owned(),
        name: "s\u{1b}1".to_owned(),
        node: "s1-id".to_owned(),
        ports: ["10.9.0.2:1", "10.9.0.1:1", "10.9.0.3:1"].map(str::to_owned).into(),
        ..Peer::default()
    };
    let all = [peer("a", "10.9.0.2:1"), peer("b", "10.9.0.1:1"), peer("c", "10.8.0.1:1"), switch];
    let peers = Peers { peers: all.into(), ..Peers::default() };
    let topo = Topo::new(&Status { rails: Vec::new(), ..example() }, &peers);
    assert!(topo.nodes.iter().all(|node| node.id != "s1-id"), "it is no node");
    let [other, known] = &topo.switches[..] else { panic!("{:?}", topo.switches) };
    assert_eq!((other.id.as_deref(), other.nodes.as_slice()), (None, &["c-id".to_owned()][..]));
    assert_eq!(known.id.as_deref(), Some("s1-id"));
    assert_eq!((known.address.as_str(), known.addresses.len()), ("10.9.0.1:1", 2));
    assert_eq!(known.nodes, ["a-id", "b-id"]);
    assert_eq!((known.state.as_str(), other.state.as_str()), ("heard", "unknown"));
    let text = render(&topo);
    assert!(
        text.contains("s?1") && text.contains("10.9.0.1:1, 10.9.0.2:1") && text.contains("unknown"),
        "{text}"
    );
    let dot = render_dot(&topo);
    assert_eq!(dot.matches("shape=diamond").count(), 2, "{dot}");
    assert_eq!(dot.matches("-- \"10.9.0.1:1\"").count(), 2, "{dot}");
}

/// `desk` is behind a switch by two rails, and knows who it was: it is as these gateways say, and links are so.
fn behind(states: [&str; 2], link: &str) -> Topo {
    let rail = |name: &str, switch: &str, state: &str| Rail {
        name: name.to_owned(),
        node: "store-id".to_owned(),
        switch: Some(switch.to_owned()),
        state: state.to_owned(),
        ..Rail::default()
    };
    let ports = ["10.9.0.1:1", "10.9.0.2:1"];
    let gateway = |(state, address): (&str, &str)| PeerGateway {
        rail: "a".to_owned(),
        address: address.to_owned(),
        state: state.to_owned(),
        node: Some("s1-id".to_owned()),
        name: "s\u{1b}1".to_owned(),
        heard_s: Some(75.0),
        ports: ports.map(str::to_owned).into(),
    };
    let gateways = states.into_iter().zip(ports).map(gateway).collect();
    let rails = vec![rail("a", ports[0], link), rail("b", ports[1], link)];
    Topo::new(&Status { rails, ..example() }, &Peers { gateways, ..Peers::default() })
}

#[test]
fn a_switch_that_is_silent_is_dead() {
    let topo = behind(["silent", "silent"], "down");
    let [switch] = &topo.switches[..] else { panic!("{:?}", topo.switches) };
    assert_eq!((switch.id.as_deref(), switch.addresses.len()), (Some("s1-id"), 2), "it is one");
    assert_eq!((switch.state.as_str(), switch.heard_s), ("silent", Some(75.0)));
    let gone = TopoDead { kind: "switch".to_owned(), node: "s1-id".to_owned(), rail: None };
    assert!(topo.dead.contains(&gone), "{:?}", topo.dead);
    let text = render(&topo);
    assert!(text.contains("s?1     silent  75 s   10.9.0.1:1, 10.9.0.2:1"), "{text}");
    assert!(text.contains("\nswitch s?1 is not heard\n"), "{text}");
    assert!(render_dot(&topo).contains("shape=diamond, color=red]"), "{}", render_dot(&topo));
}

#[test]
fn a_switch_that_is_there_or_says_nothing_of_itself_is_not_dead() {
    for (states, link, state) in [
        (["silent", "heard"], "down", "heard"),
        (["silent", "unknown"], "down", "unknown"),
        (["silent", "silent"], "up", "unknown"),
    ] {
        let topo = behind(states, link);
        assert_eq!(topo.switches[0].state, state);
        assert!(topo.dead.iter().all(|dead| dead.kind != "switch"), "{:?}", topo.dead);
        assert!(!render_dot(&topo).contains("diamond, color=red"));
    }
    let topo = topo();
    assert_eq!((topo.switches[0].state.as_str(), topo.switches[0].heard_s), ("unknown", None));
    assert!(topo.dead.iter().all(|dead| dead.kind != "switch"), "{:?}", topo.dead);
}

#[test]
fn a_node_that_does_not_answer_is_dead_unless_another_loan_with_it_is_well() {
    let mut status = example();
    status.loans[0].node = "store-id".to_owned();
    let state = |status: &Status| {
        let topo = Topo::new(status, &Peers::default());
        (topo.nodes[1].state.clone(), topo.dead.len())
    };
    assert_eq!(state(&status), ("up".to_owned(), 0));
    for silent in ["silent", "connecting", "kept"] {
        status.loans[0].state = silent.to_owned();
        assert_eq!(state(&status), ("silent".to_owned(), 1), "{silent}");
    }
    let well = Loan { state: "up".to_owned(), ..status.loans[0].clone() };
    status.loans.insert(0, well.clone());
    assert_eq!(state(&status), ("up".to_owned(), 0));
    status.loans.swap(0, 1);
    assert_eq!(state(&status), ("up".to_owned(), 0));
}

#[test]
fn people_read_names_and_what_is_dead() {
    let text = render(&topo());
    let line =
        |of: &str| text.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}: {text}"));
    assert!(line("10.9.9.9:1  ").ends_with("desk, other, store"), "{text}");
    assert!(line("nvme1").contains("store") && line("nvme1").contains("other"), "{text}");
    assert!(line("nvme2").contains("nobody"), "{text}");
    assert!(
        text.ends_with("DEAD\nlink 1 to store does not answer\nrail 0 of other has no carrier\n"),
        "{text}"
    );
}

#[test]
fn names_do_not_break_out_of_a_graph_or_into_a_terminal() {
    let mut topo = topo();
    topo.nodes[1].name = "a\"]; b\u{1b}\\".to_owned();
    let dot = render_dot(&topo);
    assert!(dot.contains(r#""other-id" [label="a\"]; b?\\\nother-id"];"#), "{dot}");
    assert!(dot.contains(r#""desk-id" -- "store-id" [label="1\n90 us", color=red, style=dashed];"#), "{dot}");
    assert!(dot.contains(r#""store-id" -- "10.9.9.9:1" [label="0"];"#), "{dot}");
    assert!(!render(&topo).contains('\u{1b}'));
}
