use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

use super::*;
use crate::cli::NodeName;
use crate::status::tests::example;

pub(super) fn folder() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("causeway/disk.sock");
    (temporary, path)
}

pub(super) fn answer(request: Request) -> Response {
    match request {
        Request::Status => Response::Status { status: Box::new(example()) },
        Request::Impair(impairment) if impairment.rail == "left" => Response::Done,
        Request::Impair(impairment) => Response::Refused { why: format!("no rail {}", impairment.rail) },
        Request::Map => Response::Map { map: Box::default() },
        Request::Peers => Response::Peers { peers: Box::default() },
        Request::Limit { .. } | Request::ClearFault { .. } | Request::Stop => Response::Done,
        Request::Reload { dry_run } => {
            Response::Reload { report: Box::new(ReloadReport::new("disk", dry_run)) }
        }
        Request::Attach { slot, .. } | Request::Detach { slot } | Request::Slot { slot } => {
            Response::Refused { why: format!("no slot {slot}") }
        }
    }
}

/// Is a node's loop, in a thread of its own, while `client` runs.
pub(super) fn serving<T>(server: &mut ControlServer, client: impl FnOnce() -> T) -> T {
    serving_with(server, &mut answer, client)
}

/// The same with other answers.
pub(super) fn serving_with<T>(
    server: &mut ControlServer,
    mut answer: &mut (dyn FnMut(Request) -> Response + Send),
    client: impl FnOnce() -> T,
) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let soon = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            while !done.load(Ordering::Acquire) {
                let mut watched = [PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)];
                if poll(&mut watched, Some(&soon)).unwrap() > 0 {
                    server.turn(&mut answer);
                }
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
        let client = find(path.parent().unwrap(), None).unwrap();
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

/// Whoever listens at the socket and gives each of these answers to a request, whatever it is.
fn answers<T>(path: &Path, answers: &[&[u8]], client: impl FnOnce() -> T) -> T {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for answer in answers {
                // Whoever only looks who listens here asks nothing.
                let mut asking = listener.incoming().map(Result::unwrap);
                let mut stream =
                    asking.find_map(|mut it| (it.read(&mut [0; 1000]).unwrap() > 0).then_some(it));
                // The client may have had enough.
                let _ = stream.as_mut().unwrap().write_all(answer);
            }
        });
        client()
    })
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn a_node_that_hangs_up_or_talks_nonsense_is_named() {
    let (_temporary, path) = folder();
    let endless = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &vec![b' '; RESPONSE_BYTES_MAX + 1]].concat();
    let other_protocol = b"{\"response\":\"refused\",\"why\":\"no request\"}\n";
    let poem = http("200 OK", r#"{"response":"poem"}"#);
    let cut = &http("200 OK", r#"{"response":"done"}"#)[..45];
    answers(&path, &[b"", cut, other_protocol, &poem, &endless], || {
        let ask = || ControlClient::new(&path).call(&Request::Status).unwrap_err();
        for _ in 0..2 {
            let error = ask();
            assert!(error.to_string().contains("does not answer: it has closed the connection"), "{error}");
            assert_eq!(Failure::from(error).exit(), Exit::Unreachable);
        }
        for _ in 0..3 {
            let error = ask();
            assert!(matches!(&error, ControlError::Answer { name, .. } if name == "disk"), "{error}");
            assert_eq!(Failure::from(error).exit(), Exit::Unreachable);
        }
    });
}

#[test]
fn a_node_that_does_not_know_a_request_is_of_an_earlier_version() {
    let (_temporary, path) = folder();
    let refused = serde_json::to_string(&Response::Refused { why: "no request".to_owned() }).unwrap();
    answers(&path, &[&http("400 Bad Request", &refused), &http("404 Not Found", "")], || {
        let client = ControlClient::new(&path);
        let events = client.run(async { client.events(true).await.map(drop) });
        for error in [client.call(&Request::Map).unwrap_err(), events.unwrap_err()] {
            assert!(error.to_string().contains("disk is of an earlier version"), "{error}");
            assert_eq!(Failure::from(error).exit(), Exit::Refused);
        }
    });
}

#[test]
fn a_node_that_says_nothing_is_not_waited_for_long() {
    let (_temporary, path) = folder();
    let _server = ControlServer::new(&path).unwrap();
    // Its loop does not come by.
    let error = ControlClient::new(&path).call(&Request::Status).unwrap_err();
    assert!(error.to_string().contains("it has said nothing for 5 s"), "{error}");
    assert_eq!(Failure::from(error).exit(), Exit::Unreachable);
}

#[test]
fn who_asks_when_the_node_ends_is_told() {
    let (_temporary, path) = folder();
    let server = ControlServer::new(&path).unwrap();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| ControlClient::new(&path).call(&Request::Status).unwrap_err());
        // The question is there.
        poll(&mut [PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)], None).unwrap();
        drop(server);
        let error = asks.join().unwrap();
        assert!(matches!(&error, ControlError::Ended { name } if name == "disk"), "{error}");
        assert_eq!(Failure::from(error).exit(), Exit::Unreachable);
    });
}
