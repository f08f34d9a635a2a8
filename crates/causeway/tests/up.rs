//! `causeway up` from outside: order, restarts, and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

const WAIT: Duration = Duration::from_secs(20);

struct Rack {
    folder: TempDir,
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Rack {
    /// A rack of a node that lends memory and one that borrows it.
    fn start(desk: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
        write("rack.toml", "[[nodes]]\nconfig = \"store.toml\"\n[[nodes]]\nconfig = \"desk.toml\"\n");
        let rail = rail();
        // For root the default place is one for the whole machine.
        let state = "state_dir = \"state\"\n";
        write("store.toml", &format!("{state}{rail}[[devices]]\nfunction = \"disk\"\nsource = \"ram:1M\"\n"));
        write("desk.toml", desk);
        let mut child = causeway(path, &["up", "rack.toml"]).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { folder, child, lines }
    }

    fn next_line(&mut self) -> String {
        let Some(line) = self.lines.next() else {
            let mut log = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
            panic!("it prints no more lines: {log}");
        };
        line.unwrap()
    }

    fn pid_of(&self, node: &str) -> Option<Pid> {
        let asked = causeway(self.folder.path(), &["status", "--name", node, "-o", "json"]).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&asked.stdout).ok()?;
        Pid::from_raw(status["node"]["pid"].as_i64()? as i32)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Its exit code and what it logged.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

fn causeway(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(arguments).current_dir(folder);
    command.env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder).env("HOME", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT;
    loop {
        match found() {
            Some(found) => return found,
            None => assert!(Instant::now() < deadline, "{what} does not happen"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_gone(pid: Pid) -> Option<()> {
    test_kill_process(pid).is_err().then_some(())
}

/// A rail at an address of its own: a lender comes back to its port, which nobody else may have taken meanwhile.
fn rail() -> String {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    let host = 1 + TAKEN.fetch_add(1, Ordering::Relaxed);
    format!("[[rails]]\nname = \"one\"\nlisten = \"127.0.7.{host}\"\n")
}

const DESK: &str =
    "state_dir = \"desk-state\"\n[[loans]]\nline_file = \"lines/store/disk.line\"\nnbd = \"nbd\"\n";

#[test]
fn nodes_start_in_order_come_back_and_end() {
    let mut rack = Rack::start(DESK);
    assert_eq!(rack.next_line(), "store lends lines/store/disk.line");
    assert!(rack.next_line().starts_with("desk serves nbd+unix:///?socket="));
    let store = rack.pid_of("store").unwrap();
    kill_process(store, Signal::KILL).unwrap();
    assert_eq!(rack.next_line(), "store lends lines/store/disk.line");
    let again = until("another life", || rack.pid_of("store").filter(|pid| *pid != store));
    let desk = rack.pid_of("desk").unwrap();
    rack.signal(Signal::INT);
    let (code, log) = rack.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("store | was killed by signal 9"), "{log}");
    assert!(is_gone(again).is_some() && is_gone(desk).is_some(), "{log}");
}

#[test]
fn a_node_starts_when_every_function_of_a_split_drive_has_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("rack.toml", "[[nodes]]\nconfig = \"store.toml\"\n[[nodes]]\nconfig = \"desk.toml\"\n");
    let rail = rail();
    let disk = "[[devices]]\nfunction = \"disk\"\nsource = \"ram:16M\"\nfunctions = 16\n";
    write("store.toml", &format!("state_dir = \"state\"\n{rail}{disk}"));
    // Refused as soon as it is looked at: all that is printed comes from before.
    write("desk.toml", "nonsense = 1\n");
    let done = causeway(folder.path(), &["up", "rack.toml"]).output().unwrap();
    let (printed, log) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert_eq!(done.status.code(), Some(2), "{log}");
    let expected: Vec<_> = (1..=16).map(|it| format!("store lends lines/store/disk-{it}.line")).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{log}");
    // And the last of them can be borrowed.
    let nbd = "nbd = \"nbd\"\n";
    let loan = format!("[[loans]]\nline_file = \"lines/store/disk-16.line\"\n{nbd}");
    write("desk.toml", &format!("state_dir = \"desk-state\"\n{loan}"));
    let mut child = causeway(folder.path(), &["up", "rack.toml"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let served = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("desk serves ")));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(served.is_some() && done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut rack = Rack::start(DESK);
    rack.next_line();
    rack.next_line();
    let nodes = ["store", "desk"].map(|name| rack.pid_of(name).unwrap());
    // A node that will never end.
    kill_process(nodes[1], Signal::STOP).unwrap();
    let start = Instant::now();
    until("the end of the rack", || {
        // Signals that come together are one.
        rack.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(100));
        rack.child.try_wait().unwrap()
    });
    assert!(start.elapsed() < WAIT);
    let (code, log) = rack.ended();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("desk") && log.contains("somebody cannot wait"), "{log}");
    assert!(nodes.into_iter().all(|node| is_gone(node).is_some()), "{log}");
}

#[test]
fn logs_name_their_node_in_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("rack.toml", "[[nodes]]\nconfig = \"store.toml\"\n");
    write("store.toml", "state_dir = \"s\"\n[[devices]]\nfunction = \"disk\"\nsource = \"gone.img\"\n");
    let done = causeway(folder.path(), &["up", "rack.toml", "--log-format", "json"]).output().unwrap();
    let log = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(3), "{log}");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["node"] == "store" && line["exit"] == 3), "{log}");
    assert!(lines.iter().any(|line| line["node"].is_null() && line["exit"] == 3), "{log}");
}

#[test]
fn a_killed_rack_leaves_nothing_behind() {
    let mut rack = Rack::start(DESK);
    rack.next_line();
    rack.next_line();
    let nodes = ["store", "desk"].map(|name| rack.pid_of(name).unwrap());
    rack.signal(Signal::KILL);
    assert_eq!(rack.child.wait().unwrap().code(), None);
    for node in nodes {
        until("the end of a node", || is_gone(node));
    }
}

#[test]
fn a_node_that_does_not_run_ends_the_rack_with_its_code() {
    let (code, log) = Rack::start("[[loans]]\nline_file = \"nowhere\"\nnbd = \"nbd\"\n").ended();
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("desk.toml:2:13") && log.contains("nowhere"), "{log}");
    let long = format!("name = \"store\"\n{DESK}");
    let (code, log) = Rack::start(&long).ended();
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("rack.toml:4:10: the name `store` is that of another node"), "{log}");
}
