use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ::io::event::Event;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::control::tests::{answer, folder, serving, serving_with};
use crate::control::{ControlClient, REQUEST_BYTES_MAX};
use crate::events::{RECORDS_MAX, Recent, Record};
use crate::status::Status;
use crate::status::tests::example;

const PATIENCE: Duration = Duration::from_secs(10);
const STOP: &str = r#"{"request":"stop"}"#;
const STATUS: &str = r#"{"request":"status"}"#;

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn post(body: &str) -> String {
    format!("POST /request HTTP/1.1\r\nHost: n\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Status and body of the next answer, which says how long it is.
fn next_answer(from: &mut impl BufRead) -> (u16, String) {
    let mut line = || {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line.trim_end().to_lowercase()
    };
    let status = line().split(' ').nth(1).unwrap().parse().unwrap();
    let mut length = 0;
    loop {
        let header = line();
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        } else if header.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

/// Whether the other end hangs up, whatever it says before.
fn hangs_up(mut stream: impl Read) -> bool {
    let mut said = Vec::new();
    let end = stream.read_to_end(&mut said).map_err(|error| error.kind());
    matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset))
}

/// A request to a door of the server, alone in its connection: its answer as text.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: n\r\n\r\n")
}

#[test]
fn pieces_and_heaps_of_requests_are_answered() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    serving(&mut server, || {
        let mut client = BufReader::new(connect(&path));
        let whole = post(STOP);
        let (first, second) = whole.split_at(whole.len() - 5);
        client.get_mut().write_all(first.as_bytes()).unwrap();
        // Whoever has a piece of a request keeps nobody waiting.
        assert_eq!(ControlClient::new(&path).call(&Request::Stop).unwrap(), Response::Done);
        client.get_mut().write_all((second.to_owned() + &post(STATUS) + &whole).as_bytes()).unwrap();
        let answers = [(); 3].map(|()| next_answer(&mut client));
        assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
        assert!(answers[1].1.starts_with(r#"{"response":"status","status":{"version":1"#), "{answers:?}");
        assert_eq!([&answers[0].1, &answers[2].1], ["{\"response\":\"done\"}\n"; 2], "in their order");
    });
}

#[test]
fn nonsense_is_refused_and_endless_requests_end_the_client() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let mut unknown = |request: Request| -> Response { panic!("no request is {request:?}") };
    serving_with(&mut server, &mut unknown, || {
        for body in ["{}", "[]", r#"{"request":"fly"}"#, r#"{"request":"events","follow":true}"#] {
            let answer = ask(connect(&path), &post(body));
            assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("no request"), "{answer}");
        }
        let answer = ask(connect(&path), &request("GET", "/events?follow=perhaps"));
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("follow=perhaps"), "{answer}");
        assert!(ask(connect(&path), &request("GET", "/keys")).starts_with("HTTP/1.1 404"));
        let answer = ask(connect(&path), &post(&" ".repeat(REQUEST_BYTES_MAX + 1)));
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("at most 4096 bytes"), "{answer}");

        for begin in ["", "POST /request HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7ffffff\r\n"] {
            let mut endless = connect(&path);
            endless.write_all(begin.as_bytes()).unwrap();
            endless.set_write_timeout(Some(PATIENCE)).unwrap();
            let ended = (0..1000).find_map(|_| endless.write_all(&[b'x'; 4096]).err());
            let ended = ended.map(|error| error.kind());
            assert!(matches!(ended, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)), "{ended:?}");
        }
    });
}

#[test]
fn a_client_that_does_not_read_blocks_nobody() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    serving(&mut server, || {
        let mut lazy = connect(&path);
        lazy.set_nonblocking(true).unwrap();
        let request = post(STATUS);
        let mut sent = 0;
        // Until neither side's buffers take more.
        let full = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        while poll(&mut [PollFd::new(&lazy, PollFlags::OUT)], Some(&full)).unwrap() > 0 {
            let rest = &request.as_bytes()[sent % request.len()..];
            sent += lazy.write(rest).unwrap_or_default();
        }
        let asked = sent / request.len();
        assert!(asked > 100, "{asked}");
        assert_eq!(ControlClient::new(&path).call(&Request::Stop).unwrap(), Response::Done);
        // And once it reads, it gets what it asked for.
        lazy.set_nonblocking(false).unwrap();
        let mut lazy = BufReader::new(lazy);
        for _ in 0..asked {
            let (status, answer) = next_answer(&mut lazy);
            assert!(status == 200 && answer.starts_with(r#"{"response":"status""#), "{status}: {answer}");
        }
    });
}

#[test]
fn clients_too_many_take_the_place_of_the_silent() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let silent: Vec<UnixStream> = (0..3 * CLIENTS_MAX).map(|_| connect(&path)).collect();
    serving(&mut server, || {
        assert_eq!(ControlClient::new(&path).call(&Request::Stop).unwrap(), Response::Done);
        assert!(hangs_up(&silent[0]), "the first was closed");
    });
}

#[test]
fn more_at_once_than_there_are_places_are_all_answered() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    // It takes its time, so that others come while all places are taken.
    let mut slow = |_| {
        std::thread::sleep(Duration::from_millis(5));
        Response::Done
    };
    serving_with(&mut server, &mut slow, || {
        std::thread::scope(|scope| {
            let ask = || ControlClient::new(&path).call(&Request::Stop);
            let asking: Vec<_> = (0..4 * CLIENTS_MAX).map(|_| scope.spawn(ask)).collect();
            for answer in asking {
                assert_eq!(answer.join().unwrap().unwrap(), Response::Done);
            }
        });
    });
}

#[test]
fn whoever_asks_a_node_to_end_is_answered_before_it_does() {
    let (_temporary, path) = folder();
    for _ in 0..20 {
        let mut server = ControlServer::new(&path).unwrap();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| ControlClient::new(&path).call(&Request::Stop));
            poll(&mut [PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)], None).unwrap();
            server.turn(&mut answer);
            drop(server);
            assert_eq!(asks.join().unwrap().unwrap(), Response::Done);
        });
    }
}

/// What is asked at the port while a node answers with `status`.
fn at_port(status: &Status, what: &str) -> String {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let address = server.address();
    let mut answer = |request| {
        assert_eq!(request, Request::Status, "nothing else comes from there");
        Response::Status { status: Box::new(status.clone()) }
    };
    serving_with(&mut server, &mut answer, || ask(TcpStream::connect(address).unwrap(), what))
}

#[test]
fn the_port_has_numbers_and_health() {
    let mut status = example();
    let metrics = at_port(&status, &request("GET", "/metrics"));
    assert!(
        metrics.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/openmetrics-text"),
        "{metrics}"
    );
    assert!(metrics.contains("causeway_card_up{card=\"0\"} 1.0\n"), "{metrics}");
    let answer = at_port(&status, &request("GET", "/healthz"));
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
    status.cards[0].state = "recovering".to_owned();
    let answer = at_port(&status, &request("GET", "/healthz"));
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("recovering"), "{answer}");
}

#[test]
fn nothing_that_changes_anything_is_behind_the_port() {
    for order in [&post(STOP), &post(STATUS), &request("GET", "/events"), &request("GET", "/request")] {
        let answer = at_port(&example(), order);
        assert!(answer.starts_with("HTTP/1.1 404"), "{order}: {answer}");
    }
    for (method, path) in [("POST", "/metrics"), ("PUT", "/healthz"), ("DELETE", "/metrics")] {
        let answer = at_port(&example(), &request(method, path));
        assert!(answer.starts_with("HTTP/1.1 405"), "{method} {path}: {answer}");
    }
}

#[test]
fn the_control_socket_has_the_numbers_too() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let metrics = serving(&mut server, || ask(connect(&path), &request("GET", "/metrics")));
    assert!(metrics.contains("causeway_card_up{card=\"0\"} 1.0\n"), "{metrics}");
}

#[test]
fn a_node_whose_loop_stands_still_is_unwell() {
    let (_temporary, path) = folder();
    let server = ControlServer::new(&path).unwrap();
    let answer = ask(TcpStream::connect(server.address()).unwrap(), &request("GET", "/healthz"));
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("said nothing for 5 s"), "{answer}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_stop_the_server(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 1..4),
        text in "((POST|GET) /(request|events|metrics)( HTTP/1.1)?|\r\n|Content-Length: [0-9]{1,9}|\
            \\{\"request\":\"status\"\\}){0,20}",
    ) {
        let (_temporary, path) = folder();
        let mut server = ControlServer::new(&path).unwrap();
        let mut client = connect(&path);
        let answer = serving(&mut server, || {
            for piece in [text.as_bytes()].into_iter().chain(pieces.iter().map(Vec::as_slice)) {
                // It may have been disconnected already.
                let _ = client.write_all(piece);
            }
            ControlClient::new(&path).call(&Request::Stop)
        });
        prop_assert_eq!(answer.unwrap(), Response::Done);
    }
}

mod following {
    use super::*;
    use crate::control::ControlError;

    /// A server and what says events to it, which lasts as long as the guard.
    fn server(path: &Path) -> (ControlServer, tracing::subscriber::DefaultGuard) {
        let recent = Recent::default().with_filter(LevelFilter::INFO);
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(recent));
        (ControlServer::new(path).unwrap(), guard)
    }

    fn say(generation: u64) {
        Event::CardKilled { signal: 9, generation }.say();
    }

    /// Follows, once it is in its place.
    fn follow(path: &Path) -> BufReader<UnixStream> {
        let mut follower = BufReader::new(connect(path));
        follower.get_mut().write_all(request("GET", "/events?follow=true").as_bytes()).unwrap();
        let mut line = String::new();
        follower.read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n");
        follower
    }

    /// The next so many events.
    fn events(from: &mut BufReader<UnixStream>, count: usize) -> Vec<Record> {
        let lines = from.lines().map(Result::unwrap).filter(|line| line.starts_with('{'));
        lines.take(count).map(|line| serde_json::from_str(&line).unwrap()).collect()
    }

    fn numbers(events: &[Record]) -> Vec<u64> {
        events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn who_asks_gets_what_was_and_who_follows_what_comes() {
        let (_temporary, path) = folder();
        let (_server, _guard) = server(&path);
        (0..40).for_each(say);
        let client = ControlClient::new(&path);
        let asked = client.run(async {
            let (mut events, mut asked) = (client.events(false).await?, Vec::new());
            while let Some(event) = events.next().await? {
                asked.push(event);
            }
            Ok::<_, ControlError>(asked)
        });
        assert_eq!(numbers(&asked.unwrap()), (1..=40).collect::<Vec<_>>());
        let mut follower = follow(&path);
        assert_eq!(numbers(&events(&mut follower, 40)), (1..=40).collect::<Vec<_>>());
        say(40);
        let next = events(&mut follower, 1);
        assert_eq!((next[0].seq, next[0].kind.as_str()), (41, "card-killed"));
    }

    #[test]
    fn a_follower_that_does_not_read_costs_nothing_and_is_told_what_it_has_missed() {
        let (_temporary, path) = folder();
        let (_server, _guard) = server(&path);
        let mut follower = follow(&path);
        // Far more than its socket takes.
        let pushed = 20 * RECORDS_MAX as u64;
        (0..pushed).for_each(say);
        let mut seen: Vec<Record> = Vec::new();
        while seen.last().is_none_or(|last| last.seq < pushed) {
            seen.extend(events(&mut follower, 1));
        }
        let missed: u64 = seen
            .iter()
            .filter_map(|event| event.values.iter().find(|(name, _)| *name == "missed")?.1.as_u64())
            .sum();
        let kept = seen.iter().filter(|event| event.kind == "card-killed").count() as u64;
        assert!(missed > 0 && kept >= RECORDS_MAX as u64, "{missed} missed, {kept} kept");
        assert_eq!(missed + kept, pushed);
        assert!(numbers(&seen).is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn followers_are_bounded_and_keep_their_place() {
        let (_temporary, path) = folder();
        let (mut server, _guard) = server(&path);
        let mut followers: Vec<_> = (0..FOLLOWERS_MAX).map(|_| follow(&path)).collect();
        let refused = ask(connect(&path), &request("GET", "/events?follow=true"));
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("8 programs follow"), "{refused}");
        let client = ControlClient::new(&path);
        let refused = client.run(async { client.events(true).await.map(drop) }).unwrap_err();
        assert!(refused.to_string().starts_with("the node refused: 8 programs follow"), "{refused}");
        // Others come and go, and none of them takes the place of one that follows in silence.
        let others: Vec<_> = (0..3 * CLIENTS_MAX).map(|_| connect(&path)).collect();
        let answer = serving(&mut server, || client.call(&Request::Stop));
        assert_eq!(answer.unwrap(), Response::Done);
        say(1);
        for follower in &mut followers {
            assert_eq!(numbers(&events(follower, 1)), [1]);
        }
        drop((others, followers.pop()));
        // It is noticed that one has gone.
        let again = client.run(async {
            loop {
                match client.events(true).await {
                    Ok(mut events) => return events.next().await,
                    Err(ControlError::Refused { .. }) => tokio::task::yield_now().await,
                    Err(error) => return Err(error),
                }
            }
        });
        assert_eq!(again.unwrap().unwrap().seq, 1);
    }

    #[test]
    fn what_a_follower_says_meanwhile_is_not_read() {
        let (_temporary, path) = folder();
        let (_server, _guard) = server(&path);
        let mut follower = follow(&path);
        follower.get_mut().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let request = post(STATUS);
        let taken = (0..100_000).take_while(|_| follower.get_mut().write_all(request.as_bytes()).is_ok());
        assert!(taken.count() < 100_000, "somebody reads all of it");
        say(1);
        assert_eq!(numbers(&events(&mut follower, 1)), [1]);
    }

    #[test]
    fn who_follows_gets_the_last_events_and_the_end() {
        let (_temporary, path) = folder();
        let (server, _guard) = server(&path);
        let mut follower = follow(&path);
        let client = ControlClient::new(&path);
        let dropped = client.run(async {
            let mut events = client.events(true).await?;
            (0..100).for_each(say);
            drop(server);
            for seq in 1..=100 {
                assert_eq!(events.next().await?.unwrap().seq, seq);
            }
            events.next().await
        });
        assert!(matches!(dropped, Err(ControlError::Ended { .. })), "{dropped:?}");
        assert_eq!(numbers(&events(&mut follower, 100)), (1..=100).collect::<Vec<_>>());
        let mut rest = String::new();
        follower.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "\r\n0\r\n\r\n", "an end in order");
    }

    #[test]
    fn who_does_not_read_does_not_keep_a_node_from_its_end() {
        let (_temporary, path) = folder();
        let (server, _guard) = server(&path);
        let follower = follow(&path);
        let silent = connect(&path);
        (0..20 * RECORDS_MAX as u64).for_each(say);
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            sender.send(()).unwrap();
        });
        ended.recv_timeout(PATIENCE).unwrap();
        assert!(hangs_up(follower) && hangs_up(silent) && !path.exists());
    }
}
