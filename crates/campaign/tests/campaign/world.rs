//! The test network tested: namespaces are separate, datagrams arrive as the relay is told, nothing is left behind.

use base::Impairment;
use campaign::capture;
use campaign::process::{Process, run};
use campaign::world::{Direction, Machine, World, WorldConfig};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Echoes every datagram back to where it came from.
const ECHO: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: # On a busy machine all may come before it runs. SO_RCVBUFFORCE is for root only.
    s.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)
except PermissionError:
    pass
s.bind((sys.argv[1], 7411))
print("listening", flush=True)
while True:
    data, peer = s.recvfrom(65536)
    s.sendto(data, peer)
"#;

/// Sends COUNT numbered datagrams of SIZE bytes, one every 200 microseconds, and says what came back.
const PING: &str = r#"
import select, socket, sys, time
target, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: # As above.
    s.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)
except PermissionError:
    pass
s.setblocking(False)
got, order = [], 0
def receive(seconds):
    end = time.monotonic() + seconds
    while select.select([s], [], [], max(0, end - time.monotonic()))[0]:
        data, peer = s.recvfrom(65536)
        assert peer == (target, 7411), peer
        got.append(data)
pattern = bytes(range(1, 251)) * (size // 250 + 1)
sent = [n.to_bytes(4, "big") + pattern[:size - 4] for n in range(count)]
for data in sent:
    s.sendto(data, (target, 7411))
    receive(0.0002)
receive(1.5)
whole = [d for d in got if d in set(sent)]
late = sum(1 for a, b in zip(whole, whole[1:]) if b < a)
print("got", len(got), "whole", len(set(whole)), "late", late, flush=True)
"#;

/// Sends COUNT datagrams, each from a port of its own, and waits for what comes back.
const EVER_NEW_PORTS: &str = r#"
import socket, sys
heard = 0
for n in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.bind(("0.0.0.0", 10000 + n))
    s.sendto(n.to_bytes(4, "big"), (sys.argv[1], 7411))
    try:
        heard += s.recv(100) == n.to_bytes(4, "big")
    except TimeoutError:
        break
print("heard", heard, flush=True)
"#;

fn python(machine: &Machine, name: &str, script: &str, arguments: &[&str]) -> Process {
    let mut command = machine.command("python3");
    command.args(["-c", script]).args(arguments);
    machine.spawn(name, command).unwrap()
}

fn echo(world: &World, rail: u8) -> Process {
    let address = world.right().addresses()[usize::from(rail)].to_string();
    let mut process = python(world.right(), &format!("echo{rail}"), ECHO, &[&address]);
    process.wait_line("listening", LONG, |line| line == "listening").unwrap();
    process
}

/// What came back of `count` datagrams: how many, how many different ones unharmed, how many after a later one.
fn ping(world: &World, rail: u8, count: u32, size: u32) -> [u32; 3] {
    let target = world.right().addresses()[usize::from(rail)].to_string();
    let mut process = python(world.left(), "ping", PING, &[&target, &count.to_string(), &size.to_string()]);
    let line = process.wait_line("the result", LONG, |line| line.starts_with("got ")).unwrap();
    process.wait_success(LONG).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    [1, 3, 5].map(|word| words[word].parse().unwrap())
}

#[test]
fn good_wires_carry_everything_and_cut_ones_nothing() {
    let mut world = World::new(&WorldConfig { capture: true, ..WorldConfig::default() }).unwrap();
    let _echoes = [echo(&world, 0), echo(&world, 1)];
    assert_eq!(ping(&world, 0, 200, 1000), [200, 200, 0]);
    // Above the MTU: fragmented and put together again, as on a real network.
    assert_eq!(ping(&world, 1, 50, 4000), [50, 50, 0]);

    world.relay().set_rail(0, Impairment::CUT).unwrap();
    assert_eq!(ping(&world, 0, 50, 100)[0], 0);
    assert_eq!(ping(&world, 1, 50, 100), [50, 50, 0], "the other rail is not harmed");

    // One way only: the echo answers, but nobody hears it.
    world.relay().set_rail(0, Impairment::NONE).unwrap();
    world.relay().set(0, Direction::RightToLeft, Impairment::CUT).unwrap();
    let before = world.relay().stats().unwrap().total();
    assert_eq!(ping(&world, 0, 50, 100)[0], 0);
    let after = world.relay().stats().unwrap();
    assert_eq!(after.total().dropped - before.dropped, 50);
    assert_eq!(after.send_errors, 0);

    let captured = capture::read(world.relay().capture().unwrap()).unwrap();
    let sent = |rail, direction| {
        captured.iter().filter(|packet| (packet.rail, packet.direction) == (rail, direction)).count()
    };
    assert_eq!(sent(0, Direction::LeftToRight), 200 + 50 + 50, "what was dropped was seen too");
    assert_eq!(sent(0, Direction::RightToLeft), 200 + 50);
    assert_eq!(sent(1, Direction::LeftToRight), 50 + 50);
    assert!(
        captured.iter().any(|packet| capture::contains(&packet.datagram.payload, &[1, 2, 3, 4, 5, 6, 7, 8]))
    );
}

/// As nodes do that are started a thousand times.
#[test]
fn whoever_comes_from_ever_new_ports_is_heard() {
    const COUNT: &str = "1100";
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let _echo = echo(&world, 0);
    let target = world.right().addresses()[0].to_string();
    let mut process = python(world.left(), "ports", EVER_NEW_PORTS, &[&target, COUNT]);
    let line = process.wait_line("the result", LONG, |line| line.starts_with("heard ")).unwrap();
    assert_eq!(line, format!("heard {COUNT}"));
    process.wait_success(LONG).unwrap();
}

#[test]
fn harm_happens_as_often_as_asked() {
    let mut world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let _echo = echo(&world, 0);
    world.relay().set(0, Direction::LeftToRight, Impairment::each(200_000)).unwrap();
    let [got, whole, late] = ping(&world, 0, 1000, 200);
    let counts = world.relay().stats().unwrap().wires[0].2;
    assert_eq!(
        u64::from(got),
        counts.sent,
        "each datagram that left the bad wire arrived, flipped bits or not"
    );
    assert!((130..270).contains(&counts.dropped), "{counts:?}");
    assert!((100..260).contains(&counts.corrupted), "{counts:?}");
    assert!((500..800).contains(&whole), "of 1000, 20 % dropped, then 20 % changed, some repeated: {whole}");
    assert!(late > 50, "repeated and reordered ones come after later ones: {late}");
}

#[test]
fn forged_datagrams_arrive_with_the_addresses_they_claim() {
    let mut world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let script = "import socket,sys\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                  s.bind((sys.argv[1],7411))\nprint('up',flush=True)\nprint(*s.recvfrom(100),flush=True)";
    let mut listener =
        python(world.right(), "listener", script, &[&world.right().addresses()[0].to_string()]);
    listener.wait_line("up", LONG, |line| line == "up").unwrap();
    world.relay().inject(0, Direction::LeftToRight, 555, 7411, b"forged").unwrap();
    let line = listener.wait_line("the datagram", LONG, |_| true).unwrap();
    assert_eq!(line, "b'forged' ('10.77.0.1', 555)");
    assert!(world.relay().inject(7, Direction::LeftToRight, 1, 1, b"").is_err(), "a rail that is not there");
}

#[test]
fn machines_share_no_files_and_leave_nothing() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let write = |machine: &Machine, path: &str| {
        let mut command = machine.command("sh");
        command.args(["-c", &format!("echo secret > {path}")]);
        run(command).unwrap();
    };
    let sees = |machine: &Machine, path: &str| {
        let mut command = machine.command("test");
        command.args(["-e", path]);
        run(command).is_ok()
    };
    let own = world.left().dir().join("file");
    let own = own.to_str().unwrap();
    for path in [own, "/run/cw-test", "/dev/shm/cw-test", "/var/lib/cw-test"] {
        write(world.left(), path);
        assert!(sees(world.left(), path), "{path}");
        assert!(!sees(world.right(), path), "{path} of the left machine is visible in the right one");
    }
    assert_eq!(std::fs::read_to_string(own).unwrap(), "secret\n", "the test sees it from outside");
    for path in ["/run/cw-test", "/dev/shm/cw-test", "/var/lib/cw-test"] {
        assert!(!std::path::Path::new(path).exists(), "{path} leaked to the outside");
    }

    let sleeper = python(world.left(), "sleeper", "import time; time.sleep(1000)", &[]);
    let proc = format!("/proc/{}", sleeper.pid());
    assert!(std::path::Path::new(&proc).exists());
    let dir = world.dir().to_path_buf();
    drop(sleeper);
    drop(world);
    assert!(!dir.exists() && !std::path::Path::new(&proc).exists());
}
