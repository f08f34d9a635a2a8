use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

use super::*;
use crate::cli::NodeName;
use crate::status::tests::example;

fn folder() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("causeway/disk.sock");
    (temporary, path)
}

fn answer(request: Request) -> Response {
    match request {
        Request::Status => Response::Status { status: Box::new(example()) },
        Request::Impair(impairment) if impairment.rail == "left" => Response::Done,
        Request::Impair(impairment) => Response::Refused { why: format!("no rail {}", impairment.rail) },
        Request::Map => Response::Map { map: Box::default() },
        Request::Limit { .. } | Request::ClearFault { .. } | Request::Events { .. } | Request::Stop => {
            Response::Done
        }
        Request::Reload { dry_run } => {
            Response::Reload { report: Box::new(ReloadReport::new("disk", dry_run)) }
        }
        Request::Attach { slot, .. } | Request::Detach { slot } | Request::Slot { slot } => {
            Response::Refused { why: format!("no slot {slot}") }
        }
    }
}

/// Runs turns until nothing has happened for a moment; returns how many requests were answered.
fn turns(server: &mut ControlServer) -> usize {
    let mut requests = 0;
    let quiet = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while poll(&mut [PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)], Some(&quiet)).unwrap() > 0 {
        server.turn(&mut |request| {
            requests += 1;
            answer(request)
        });
    }
    requests
}

/// Serves in a thread of its own while `client` runs.
fn serving<T>(server: &mut ControlServer, client: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                turns(server);
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(client));
        done.store(true, Ordering::Release);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

#[test]
fn requests_are_answered_in_order() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    serving(&mut server, || {
        let mut client = find(path.parent().unwrap(), None).unwrap();
        let status = client.call(&Request::Status).unwrap();
        assert_eq!(status, Response::Status { status: Box::new(example()) });
        let impair =
            |rail: &str| Request::Impair(Impairment { rail: rail.to_owned(), ..Impairment::default() });
        assert_eq!(client.call(&impair("left")).unwrap(), Response::Done);
        assert_eq!(client.call(&impair("up")).unwrap(), Response::Refused { why: "no rail up".to_owned() });
        assert_eq!(client.call(&Request::Stop).unwrap(), Response::Done);
    });
}

#[test]
fn requests_look_as_documented() {
    let text = r#"{"request":"impair","rail":"left","drop_ppm":50000,"cut_in":true}"#;
    let expected =
        Impairment { rail: "left".to_owned(), drop_ppm: 50_000, cut_in: true, ..Impairment::default() };
    assert_eq!(serde_json::from_str::<Request>(text).unwrap(), Request::Impair(expected));
    assert_eq!(serde_json::to_string(&Request::Status).unwrap(), r#"{"request":"status"}"#);
    assert_eq!(serde_json::to_string(&Response::Done).unwrap(), r#"{"response":"done"}"#);
    assert!(serde_json::from_str::<Request>(r#"{"request":"impair","rial":"left"}"#).is_err());
}

#[test]
fn pieces_and_heaps_of_requests_are_answered() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    for piece in ["{\"req", "uest\":\"stop\"}", "\n{\"request\":\"stop\"}\n{\"request\":\"stop\"}\n{"] {
        client.write_all(piece.as_bytes()).unwrap();
        turns(&mut server);
    }
    let lines: Vec<String> = BufReader::new(&client).lines().take(3).map(Result::unwrap).collect();
    assert_eq!(lines, vec![r#"{"response":"done"}"#; 3]);
}

#[test]
fn nonsense_is_refused_and_endless_lines_end_the_client() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"\xff\xfe{}\n[]\n{\"request\":\"fly\"}\n").unwrap();
    assert_eq!(turns(&mut server), 0);
    let lines: Vec<String> = BufReader::new(&client).lines().take(3).map(Result::unwrap).collect();
    assert!(lines.iter().all(|line| line.contains("refused")), "{lines:?}");

    client.write_all(&vec![b'x'; REQUEST_BYTES_MAX + 1]).unwrap();
    turns(&mut server);
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)), "still connected");
}

#[test]
fn a_client_that_does_not_read_blocks_nobody() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let mut lazy = UnixStream::connect(&path).unwrap();
    lazy.set_nonblocking(true).unwrap();
    let mut asked = 0;
    // Until neither side's buffers take more.
    loop {
        match lazy.write(b"{\"request\":\"status\"}\n") {
            Ok(_) => asked += 1,
            Err(_) if turns(&mut server) == 0 => break,
            Err(_) => {}
        }
    }
    assert!(asked > 100);
    serving(&mut server, || {
        assert_eq!(ControlClient::connect(&path).unwrap().call(&Request::Stop).unwrap(), Response::Done);
        // And once it reads, it gets what it asked for.
        lazy.set_nonblocking(false).unwrap();
        lazy.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let answered = BufReader::new(&lazy).lines().take(asked - 1).map(Result::unwrap);
        assert!(
            answered
                .into_iter()
                .all(|line| line.starts_with(r#"{"response":"status","status":{"version":1"#))
        );
    });
}

#[test]
fn clients_too_many_take_the_place_of_the_silent() {
    let (_temporary, path) = folder();
    let mut server = ControlServer::new(&path).unwrap();
    let silent: Vec<UnixStream> = (0..3 * CLIENTS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
    turns(&mut server);
    let mut last = UnixStream::connect(&path).unwrap();
    last.write_all(b"{\"request\":\"stop\"}\n").unwrap();
    assert_eq!(turns(&mut server), 1);
    assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0, "the first was closed");
}

#[test]
fn sockets_of_the_dead_are_replaced_and_those_of_the_living_refused() {
    let (_temporary, path) = folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead node leaves its socket");
    fs::write(path.with_extension("lock"), "7").unwrap();

    let server = ControlServer::new(&path).unwrap();
    let error = ControlServer::new(&path).unwrap_err();
    let pid = std::process::id();
    assert!(
        matches!(&error, ControlError::InUse { name, pid: Some(p) } if name == "disk" && *p == pid),
        "{error}"
    );
    assert_eq!(Failure::from(error).exit(), Exit::Refused);
    assert!(UnixStream::connect(&path).is_ok(), "the refused one left the socket alone");
    drop(server);
    assert!(!path.exists(), "a node that ends takes its socket along");

    let _foreign = UnixListener::bind(&path).unwrap();
    assert!(matches!(ControlServer::new(&path), Err(ControlError::InUse { pid: None, .. })));
}

#[test]
fn the_folder_and_the_socket_are_private() {
    let (_temporary, path) = folder();
    let _server = ControlServer::new(&path).unwrap();
    let folder = path.parent().unwrap();
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let (_other_temporary, other) = self::folder();
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::set_permissions(other.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(ControlServer::new(&other), Err(ControlError::NotPrivate { .. })));
    assert!(matches!(find(other.parent().unwrap(), None), Err(ControlError::NotPrivate { .. })));
}

#[test]
fn nodes_are_found_by_name_or_by_being_alone() {
    let (temporary, path) = folder();
    let folder = path.parent().unwrap();
    let none = find(folder, None).unwrap_err();
    assert!(matches!(none, ControlError::NoneRunning { .. }), "{none}");

    let _disk = ControlServer::new(&path).unwrap();
    drop(UnixListener::bind(folder.join("dead.sock")).unwrap());
    assert!(find(folder, None).is_ok(), "the only one that lives");
    assert!(find(folder, Some(&name("disk"))).is_ok());
    let dead = find(folder, Some(&name("dead"))).unwrap_err();
    assert_eq!(dead.to_string(), "no node named dead is running here; running: disk");

    let _second = ControlServer::new(&folder.join("a.b.sock")).unwrap();
    let several = find(folder, None).unwrap_err();
    assert_eq!(several.to_string(), "several nodes are running here: a.b, disk; choose one with --name");
    assert_eq!(Failure::from(several).exit(), Exit::Usage);
    drop(temporary);
}

#[test]
fn a_node_that_hangs_up_or_talks_nonsense_is_named() {
    let (_temporary, path) = folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"response\":\"poem\"}\n").unwrap();
            let _ = stream.read(&mut [0; 100]);
        });
        let ask = || ControlClient::connect(&path).unwrap().call(&Request::Status).unwrap_err();
        let error = ask();
        assert!(matches!(error, ControlError::Silent { .. }), "{error}");
        assert_eq!(Failure::from(error).exit(), Exit::Unreachable);
        assert!(matches!(ask(), ControlError::Answer { .. }));
    });
}

#[test]
fn places_follow_the_interface() {
    let choose = |user, xdg: Option<&str>, owner| {
        place::choose(user, xdg.map(PathBuf::from), owner, "/tmp".into()).display().to_string()
    };
    assert_eq!(choose(0, None, None), "/run/causeway");
    assert_eq!(choose(0, Some("/run/user/0"), None), "/run/user/0/causeway");
    assert_eq!(choose(7, None, Some(7)), "/run/causeway");
    assert_eq!(choose(7, None, Some(0)), "/tmp/causeway-7");
    let long = Path::new("/tmp").join("x".repeat(120)).join("n.sock");
    assert!(matches!(ControlServer::new(&long), Err(ControlError::Path { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_stop_the_server(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 1..4),
        text in "(\\{\"request\":\"(status|stop|impair)\"|,\"rail\":\"left\"|\\}|\n|\\[){0,20}",
    ) {
        let (_temporary, path) = folder();
        let mut server = ControlServer::new(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        for piece in pieces.iter().map(Vec::as_slice).chain([text.as_bytes()]) {
            // It may have been disconnected already.
            let _ = client.write_all(piece);
            server.turn(&mut answer);
            server.turn(&mut answer);
        }
        let mut other = UnixStream::connect(&path).unwrap();
        other.write_all(b"{\"request\":\"stop\"}\n").unwrap();
        for _ in 0..4 {
            server.turn(&mut answer);
        }
        let mut line = String::new();
        other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        BufReader::new(&other).read_line(&mut line).unwrap();
        prop_assert_eq!(line, "{\"response\":\"done\"}\n");
    }
}

mod following {
    use ::io::event::Event;
    use tracing_subscriber::Layer as _;
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::events::{RECORDS_MAX, Recent};

    /// A server and what says events to it, which lasts as long as the guard.
    fn server(path: &Path) -> (ControlServer, tracing::subscriber::DefaultGuard) {
        let recent = Recent::default().with_filter(LevelFilter::INFO);
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(recent));
        (ControlServer::new(path).unwrap(), guard)
    }

    fn say(generation: u64) {
        Event::CardKilled { signal: 9, generation }.say();
    }

    fn follow(path: &Path) -> UnixStream {
        let mut follower = UnixStream::connect(path).unwrap();
        follower.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        follower.write_all(b"{\"request\":\"events\",\"follow\":true}\n").unwrap();
        follower
    }

    /// The events of the next answer.
    fn events(from: &mut BufReader<UnixStream>) -> Vec<Record> {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        match serde_json::from_str(&line).unwrap() {
            Response::Events { events } => events,
            other => panic!("no events: {other:?}"),
        }
    }

    fn numbers(events: &[Record]) -> Vec<u64> {
        events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn who_asks_gets_what_was_and_who_follows_what_comes() {
        let (_temporary, path) = folder();
        let (mut server, _guard) = server(&path);
        (0..40).for_each(say);
        let mut asker = UnixStream::connect(&path).unwrap();
        asker.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        asker.write_all(b"{\"request\":\"events\"}\n{\"request\":\"stop\"}\n").unwrap();
        let mut follower = BufReader::new(follow(&path));
        turns(&mut server);
        say(40);
        server.publish();
        let mut asker = BufReader::new(asker);
        let asked = [events(&mut asker), events(&mut asker)].concat();
        assert_eq!(numbers(&asked), (1..=40).collect::<Vec<_>>());
        let rest: Vec<String> = asker.lines().take(2).map(Result::unwrap).collect();
        assert_eq!(rest, ["{\"response\":\"done\"}"; 2], "the end, and the next answer");
        let followed = [events(&mut follower), events(&mut follower), events(&mut follower)].concat();
        assert_eq!(numbers(&followed), (1..=41).collect::<Vec<_>>());
        assert_eq!(followed[40].kind, "card-killed");
    }

    #[test]
    fn a_follower_that_does_not_read_costs_nothing_and_is_told_what_it_has_missed() {
        let (_temporary, path) = folder();
        let (mut server, _guard) = server(&path);
        let follower = follow(&path);
        turns(&mut server);
        // Far more than its socket takes.
        let pushed = 20 * RECORDS_MAX as u64;
        for generation in 0..pushed {
            say(generation);
            server.publish();
        }
        assert_eq!(turns(&mut server), 0, "its socket is full");
        let mut reader = BufReader::new(follower);
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last: &Record| last.seq < pushed) {
            seen.extend(events(&mut reader));
            server.turn(&mut answer);
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
        let mut followers: Vec<_> = (0..FOLLOWERS_MAX).map(|_| BufReader::new(follow(&path))).collect();
        turns(&mut server);
        let mut line = String::new();
        let mut refused = BufReader::new(follow(&path));
        turns(&mut server);
        refused.read_line(&mut line).unwrap();
        assert!(line.contains("refused") && line.contains("8 programs follow"), "{line}");
        // Others come and go, and none of them takes the place of one that follows in silence.
        let others: Vec<_> = (0..3 * CLIENTS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        turns(&mut server);
        say(1);
        server.publish();
        for follower in &mut followers {
            assert_eq!(numbers(&events(follower)), [1]);
        }
        drop((others, followers.pop()));
        turns(&mut server);
        let mut again = BufReader::new(follow(&path));
        turns(&mut server);
        assert_eq!(numbers(&events(&mut again)), [1]);
    }

    #[test]
    fn what_a_follower_says_meanwhile_is_bounded() {
        let (_temporary, path) = folder();
        let (mut server, _guard) = server(&path);
        let mut follower = follow(&path);
        turns(&mut server);
        follower.write_all(&b"{\"request\":\"status\"}\n".repeat(REQUEST_BYTES_MAX / 8)).unwrap();
        assert_eq!(turns(&mut server), 0);
        assert!(matches!(follower.read(&mut [0]), Ok(0) | Err(_)), "still connected");
    }
}

#[test]
fn a_node_that_does_not_know_a_request_is_of_an_earlier_version() {
    let (_temporary, path) = folder();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let why = "no request: unknown variant `events`, expected one of `status`, `stop`";
            writeln!(stream, "{}", serde_json::to_string(&Response::Refused { why: why.into() }).unwrap())
                .unwrap();
            let _ = stream.read(&mut [0; 100]);
        });
        let error =
            ControlClient::connect(&path).unwrap().call(&Request::Events { follow: true }).unwrap_err();
        assert!(error.to_string().contains("disk is of an earlier version"), "{error}");
        assert_eq!(Failure::from(error).exit(), Exit::Refused);
    });
}
