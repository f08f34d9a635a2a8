use super::*;

/// A node with one of everything.
pub(crate) fn example() -> Status {
    let (name, id) = ("disk".to_owned(), "0".repeat(32));
    let node = Node { name, id, pid: 41, incarnation: 7, http: None, identity_shared: false };
    let mut status = Status::new(node);
    status.cards.push(Card {
        pid: Some(42),
        generation: 3,
        restarts: 2,
        state: "running".to_owned(),
        last_recovery_s: Some(0.0034),
        standby_pid: Some(43),
    });
    for (name, rtt_us) in [("left", Some(81.4)), ("right", None)] {
        status.rails.push(Rail {
            name: name.to_owned(),
            medium: "udp".to_owned(),
            local: "127.0.0.1:7411".to_owned(),
            peer: String::new(),
            node: String::new(),
            switch: None,
            state: "up".to_owned(),
            rtt_us,
            loss_ratio: 0.0512,
        });
    }
    status.channels.push(Channel {
        peer: "9f3c2a771b0e55d4".to_owned(),
        group: 1,
        state: "open".to_owned(),
        sealed: true,
        cipher: Some("aegis-128x2".to_owned()),
        sent_frames: 1_234_567,
        received_frames: 1_234_001,
        retransmissions: 17,
    });
    status.streams.push(Stream {
        loan: "nvme0".to_owned(),
        direction: "out".to_owned(),
        in_flight: 3,
        replay_bytes: 12_288,
        retransmissions: 17,
    });
    status.devices.push(Device {
        function: "nvme0".to_owned(),
        kind: "nvme".to_owned(),
        source: "/srv/disk.img".to_owned(),
        bytes: 3 << 29,
        read_only: false,
        media: "ok".to_owned(),
        lent_to: None,
        kept_s: None,
        io: "ring".to_owned(),
        drive: "nvme0".to_owned(),
        controller: 0,
        iops: Some(1000),
        bytes_per_s: None,
        leaving: false,
    });
    status.loans.push(Loan {
        function: "nvme0".to_owned(),
        generation: 1,
        group: 1,
        role: Role::Lender,
        peer: "9f3c2a771b0e55d4".to_owned(),
        node: String::new(),
        state: "up".to_owned(),
        silent_s: None,
        kept_s: None,
        edge: None,
        slot: None,
        leaving: false,
        identity_shared: false,
    });
    status.counters.dropped_auth = 2;
    status.counters.more.insert("kicks".to_owned(), 0);
    status
}

/// The keys of the interface, as it lists them.
const KEYS: [(&str, &[&str]); 7] = [
    ("cards", &["pid", "generation", "restarts", "state", "last_recovery_s", "standby_pid"]),
    ("rails", &["name", "medium", "local", "peer", "state", "rtt_us", "loss_ratio"]),
    ("channels", &["peer", "state", "sealed", "cipher", "sent_frames", "received_frames", "retransmissions"]),
    ("streams", &["loan", "direction", "in_flight", "replay_bytes"]),
    ("devices", &["function", "kind", "source", "bytes", "read_only", "lent_to"]),
    ("loans", &["function", "generation", "role", "peer", "state", "edge"]),
    (
        "counters",
        &["dropped_auth", "dropped_replay", "dropped_version", "dropped_malformed", "denied_accesses"],
    ),
];

#[test]
fn every_key_of_the_interface_is_there_even_when_empty() {
    let json = serde_json::to_value(example()).unwrap();
    let keys =
        |value: &serde_json::Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for key in ["name", "pid", "incarnation", "http"] {
        assert!(keys(&json["node"]).contains(&key.to_owned()), "node.{key}");
    }
    for (section, expected) in KEYS {
        let entry = if json[section].is_array() { &json[section][0] } else { &json[section] };
        for key in expected {
            assert!(keys(entry).contains(&(*key).to_owned()), "{section}.{key}");
        }
    }
    assert_eq!(json["loans"][0]["role"], "lender");
    assert_eq!(json["counters"]["kicks"], 0);
}

#[test]
fn an_identity_that_two_programs_have_is_shown() {
    let mut status = example();
    assert!(!render(&status).contains("identity"), "{}", render(&status));
    status.loans[0].identity_shared = true;
    assert!(render(&status).contains("up, two programs have its peer's identity"), "{}", render(&status));
    status.node.identity_shared = true;
    let first = render(&status).lines().next().unwrap_or_default().to_owned();
    assert!(first.ends_with(", another program has its identity"), "{first}");
}

#[test]
fn the_version_stands_first() {
    let json = serde_json::to_string(&example()).unwrap();
    assert!(json.starts_with(r#"{"version":1,"node":{"name":"disk""#), "{json}");
}

#[test]
fn a_status_comes_back() {
    let json = serde_json::to_string(&example()).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), example());
}

#[test]
fn a_card_that_is_being_replaced_has_no_process() {
    let mut status = example();
    status.cards[0].pid = None;
    let json = serde_json::to_value(&status).unwrap();
    assert!(json["cards"][0].get("pid").is_some_and(serde_json::Value::is_null), "{json}");
    assert!(render(&status).contains("\n-     3    2         running"), "{}", render(&status));
}

#[test]
fn a_status_of_another_release_is_read() {
    let json = r#"{"version":1,"node":{"name":"n","colour":"red"},"clouds":[],"counters":{"new_one":4}}"#;
    let status: Status = serde_json::from_str(json).unwrap();
    assert_eq!(status.counters.all().last(), Some(&("new_one", 4)));
}

#[test]
fn people_get_one_screen() {
    let expected = "\
node disk, process 41, incarnation 7

FUNCTION  KIND  SIZE     IO    ACCESS      LIMIT      LENT TO  SOURCE
nvme0     nvme  1.5 GiB  ring  read-write  1000 iops  nobody   /srv/disk.img

LOAN   GEN  ROLE    STATE  PEER              EDGE
nvme0  1    lender  up     9f3c2a771b0e55d4  -

RAIL   MEDIUM  STATE  RTT    LOSS    LOCAL           PEER
left   udp     up     81 us  5.12 %  127.0.0.1:7411  -
right  udp     up     -      5.12 %  127.0.0.1:7411  -

CHANNEL           GROUP  STATE  SEALED       SENT     RECEIVED  RETRANSMITTED
9f3c2a771b0e55d4  1      open   aegis-128x2  1234567  1234001   17

STREAM  DIRECTION  IN FLIGHT  REPLAY
nvme0   out        3          12 KiB

CARD  GEN  RESTARTS  STATE    LAST RECOVERY
42    3    2         running  3.4 ms

COUNTED  dropped_auth 2
";
    assert_eq!(render(&example()), expected);
}

#[test]
fn a_loan_that_is_silent_says_for_how_long() {
    let mut status = example();
    for (state, silent_s, shown) in [
        ("silent", Some(4.2), "silent for 4 s"),
        ("connecting", Some(200.0), "connecting, silent for 3 min"),
        ("connecting", None, "connecting  "),
    ] {
        (status.loans[0].state, status.loans[0].silent_s) = (state.to_owned(), silent_s);
        assert!(render(&status).contains(shown), "{}", render(&status));
    }
}

#[test]
fn what_is_empty_takes_no_room_and_terminals_are_safe() {
    let mut status = Status::new(Node { name: "a\u{1b}[2J".to_owned(), ..Node::default() });
    assert_eq!(render(&status), "node a?[2J, process 0, incarnation 0\n");
    status.node.http = Some("127.0.0.1:80".to_owned());
    assert!(render(&status).contains("http://127.0.0.1:80"));
}
