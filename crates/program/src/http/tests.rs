use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::control::ControlServer;
use crate::status::tests::example;

/// What a client gets who asks for `path`, while a node answers with `status`.
fn ask_for(path: &str, status: &Status) -> String {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("causeway").join("n.sock");
    let mut control = ControlServer::new(&socket).unwrap();
    let server = HttpServer::start(&socket).unwrap();
    let (address, path) = (server.address(), path.to_owned());
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    while !client.is_finished() {
        control.turn(&mut |_| Answer::Status { status: Box::new(status.clone()) });
        thread::yield_now();
    }
    client.join().unwrap()
}

#[test]
fn metrics_are_what_the_status_says() {
    let answer = ask_for("/metrics", &example());
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    for line in [
        r#"causeway_node_incarnation{name="disk"} 7.0"#,
        r#"causeway_events_total{event="dropped_auth"} 2"#,
        r#"causeway_card_restarts_total{card="0"} 2"#,
        r#"causeway_card_last_recovery_seconds{card="0"} 0.0034"#,
        r#"causeway_rail_up{rail="left",medium="udp"} 1.0"#,
        r#"causeway_rail_loss_ratio{rail="left",medium="udp"} 0.0512"#,
        r#"causeway_channel_retransmissions_total{peer="9f3c2a771b0e55d4",group="1"} 17"#,
        r#"causeway_stream_replay_bytes{function="nvme0"} 12288.0"#,
        r#"causeway_loan_up{function="nvme0",role="lender",peer="9f3c2a771b0e55d4"} 1.0"#,
    ] {
        assert!(answer.lines().any(|found| found == line), "no `{line}` in {answer}");
    }
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

#[test]
fn the_documented_metrics_are_those_that_are_served() {
    let answer = ask_for("/metrics", &example());
    let served: BTreeSet<&str> =
        answer.lines().filter_map(|line| line.split_once('{')).map(|(name, _)| name).collect();
    let table = include_str!("../../../../docs/metrics.md").lines();
    let documented = table.filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name);
    assert_eq!(served, documented.collect());
}

#[test]
fn health_follows_the_card() {
    let mut status = example();
    let answer = ask_for("/healthz", &status);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
    status.cards[0].state = "recovering".to_owned();
    let answer = ask_for("/healthz", &status);
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("recovering"), "{answer}");
}

#[test]
fn a_node_that_is_gone_is_unwell_and_other_paths_are_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let server = HttpServer::start(&folder.path().join("gone.sock")).unwrap();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("/healthz").starts_with("HTTP/1.1 503"));
    assert!(get("/key").starts_with("HTTP/1.1 404"));
}
