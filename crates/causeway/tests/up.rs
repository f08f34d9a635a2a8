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
    child: Running,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

/// The process of a rack. Dropped by a test that fails, it is killed.
struct Running(Child);

impl std::ops::Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
        Self { folder, child: Running(child), lines }
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

/// A rack with a manager at an address of its own, a node that lends and one with a slot; both join.
fn managed_rack(folder: &Path, manager: &str) {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let node = |name: &str| format!("[[nodes]]\nconfig = \"{name}.toml\"\njoin = true\n");
    write("rack.toml", &format!("{manager}{}{}", node("store"), node("desk")));
    let rail = rail();
    let disk = "[[devices]]\nfunction = \"disk\"\nsource = \"ram:1M\"\n";
    write("store.toml", &format!("state_dir = \"state\"\n{rail}{disk}"));
    let slot = "[[domains.slots]]\nname = \"disk\"\nsocket = \"disk.sock\"\n";
    write(
        "desk.toml",
        &format!("state_dir = \"desk-state\"\n[[domains]]\nname = \"vm\"\nkind = \"vm\"\n{slot}"),
    );
}

/// An address of loopback that no other manager here has.
fn manager_at() -> String {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    format!("127.0.8.{}:7443", 1 + TAKEN.fetch_add(1, Ordering::Relaxed))
}

fn asked(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = causeway(folder, arguments);
    let output = command.env("CAUSEWAY_MANAGER", folder.join("fabric/admin.toml")).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

impl Rack {
    /// One whose files lie there, and the children that it has when both nodes are there.
    fn start_managed(folder: TempDir) -> (Self, Vec<Pid>) {
        let mut child = causeway(folder.path(), &["up", "rack.toml"]).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let rack = Self { folder, child: Running(child), lines };
        let children = until("a manager and two nodes", || {
            ["store", "desk"].iter().all(|node| rack.pid_of(node).is_some()).then(|| rack.children())
        });
        assert_eq!(children.len(), 3);
        (rack, children)
    }

    fn children(&self) -> Vec<Pid> {
        let pid = self.child.id();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let of =
            |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let children: Vec<String> = threads.map_while(Result::ok).map(of).collect();
        let children = children.iter().flat_map(|line| line.split_whitespace());
        children.filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
    }
}

#[test]
fn a_manager_and_its_nodes_come_up_as_one_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let at = manager_at();
    managed_rack(folder.path(), &format!("[manager]\nlisten = \"{at}\"\n"));
    let path = folder.path().to_owned();
    let plan = |of: &Path| {
        let done = causeway(of, &["up", "rack.toml", "--dry-run"]).output().unwrap();
        assert_eq!((done.status.code(), String::from_utf8(done.stderr).unwrap()), (Some(0), String::new()));
        String::from_utf8(done.stdout).unwrap()
    };
    let expected = "manager: founds a fabric, and runs in fabric\nstore: runs by store.toml, and joins the \
                    fabric\ndesk: runs by desk.toml, and joins the fabric\n";
    assert_eq!(plan(&path), expected);
    assert!(!path.join("fabric").exists() && !path.join("state").exists(), "nothing was done");
    let (mut rack, first) = Rack::start_managed(folder);
    assert_eq!(rack.next_line(), format!("manager serves https://{at}"));
    assert_eq!(rack.next_line(), "store lends lines/store/disk.line");
    until("the assignment", || asked(&path, &["assign", "store/disk", "vm/disk"]));
    // The manager dies, another one comes, and it is as before.
    kill_process(first[0], Signal::KILL).unwrap();
    assert_eq!(rack.next_line(), format!("manager serves https://{at}"));
    let applied = ["loan", "list", "--filter", "state=applied"];
    let loan = || asked(&path, &applied).filter(|list| list.contains("store/disk") && list.contains("desk/"));
    until("the loan", loan);
    let children = rack.children();
    rack.signal(Signal::INT);
    let Rack { folder, mut child, .. } = rack;
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{log}");
    assert!(children.iter().all(|child| is_gone(*child).is_some()), "{log}");
    assert_eq!(log.matches("has joined").count(), 2, "{log}");
    assert!(log.contains("the manager has died"), "{log}");

    // With the same folders nobody joins again, and the loan is there.
    assert!(plan(&path).contains("store: runs by store.toml, and belongs to the fabric\n"));
    let (rack, children) = Rack::start_managed(folder);
    until("the loan", loan);
    assert_eq!(asked(&path, &["join-token", "list"]).unwrap().lines().count(), 3, "a title and two tokens");
    // Killed, it leaves nobody behind either.
    rack.signal(Signal::KILL);
    for child in children {
        until("the end of a child", || is_gone(child));
    }
    let (_, log) = rack.ended();
    assert!(!log.contains("has joined"), "{log}");
}

#[test]
fn what_would_be_started_is_said_and_nothing_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write("rack.toml", "[[nodes]]\nconfig = \"store.toml\"\n[[nodes]]\nconfig = \"desk.toml\"\n");
    let disk = "state_dir = \"state\"\n[[devices]]\nfunction = \"disk\"\nsource = \"ram:1M\"\n";
    write("store.toml", disk);
    // A line that the rack will have is not missed, and another one is.
    write("desk.toml", DESK);
    let up = || causeway(path, &["up", "rack.toml", "--dry-run"]).output().unwrap();
    let done = up();
    let line = path.canonicalize().unwrap().join("lines/store/disk.line");
    let expected = format!("store: runs by store.toml\ndesk.toml: runs when there is {}\n", line.display());
    assert_eq!((done.status.code(), String::from_utf8(done.stdout).unwrap()), (Some(0), expected));
    write("desk.toml", &DESK.replace("lines/store/", "lines/stroe/"));
    let done = up();
    let log = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(2) && log.contains("desk.toml:3:13"), "{log}");
    write("desk.toml", disk.replace("disk", "other").as_str());
    assert!(String::from_utf8(up().stdout).unwrap().ends_with("desk: runs by desk.toml\n"));
    write("desk.toml", &format!("name = \"store\"\n{disk}"));
    let log = String::from_utf8(up().stderr).unwrap();
    assert!(log.contains("rack.toml:4:10: the name `store` is that of another node"), "{log}");
    assert_eq!(fs::read_dir(path).unwrap().count(), 3, "nothing was made");
}

#[test]
fn a_join_that_was_cut_short_is_taken_up_again() {
    let folder = tempfile::tempdir().unwrap();
    managed_rack(folder.path(), &format!("[manager]\nlisten = \"{}\"\n", manager_at()));
    let path = folder.path().to_owned();
    let run = |of: TempDir| {
        let (rack, _) = Rack::start_managed(of);
        let folder = path.join("fabric");
        let token = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name());
        let kept: Vec<_> = token.filter(|name| name.to_string_lossy().ends_with(".join")).collect();
        rack.signal(Signal::INT);
        let Rack { folder, mut child, .. } = rack;
        let mut log = String::new();
        child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!((child.wait().unwrap().code(), kept.len()), (Some(0), 0), "{log}");
        (folder, log)
    };
    // As if the first node had been told before it heard that it belongs there: by hand, and then forgotten.
    let mut manager = causeway(&path, &["init", "fabric", "--listen", &manager_at()]);
    assert!(manager.status().unwrap().success());
    let listen = fs::read_to_string(path.join("fabric/manager.toml")).unwrap();
    let at = listen.lines().find_map(|line| line.strip_prefix("listen = [\"")?.strip_suffix("\"]")).unwrap();
    managed_rack(&path, &format!("[manager]\nlisten = \"{at}\"\n"));
    let manager = causeway(&path, &["manager", "--config", "fabric/manager.toml"]).spawn();
    let mut manager = Running(manager.unwrap());
    let token = until("a token", || asked(&path, &["join-token", "make"]));
    fs::write(path.join("fabric/store.join"), &token).unwrap();
    let join = ["join", "@fabric/store.join", "--name", "store", "--state-dir", "state"];
    assert!(causeway(&path, &join).status().unwrap().success());
    fs::remove_file(path.join("state/fabric")).unwrap();
    // The token of the other one has been used by somebody else: it gets another one.
    fs::write(path.join("fabric/desk.join"), &token).unwrap();
    kill_process(Pid::from_raw(manager.id() as i32).unwrap(), Signal::TERM).unwrap();
    manager.wait().unwrap();
    let (folder, log) = run(folder);
    assert_eq!(log.matches("has joined").count(), 2, "{log}");
    let (_folder, log) = run(folder);
    assert_eq!(log.matches("has joined").count(), 0, "{log}");
}

#[test]
fn what_a_rack_with_a_manager_cannot_do_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let up = |words: &[&str]| {
        let done = causeway(path, &[&["up", "rack.toml"], words].concat()).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    managed_rack(path, "");
    for words in [&[][..], &["--dry-run"]] {
        let (code, log) = up(words);
        assert!(code == Some(2) && log.contains("rack.toml:3:8: this node joins a fabric"), "{log}");
    }
    // Somebody else has the port.
    let at = manager_at();
    let taken = std::net::TcpListener::bind(&at).unwrap();
    managed_rack(path, &format!("[manager]\nlisten = \"{at}\"\n"));
    let (code, log) = up(&[]);
    assert!(code == Some(3) && log.contains("the manager does not run (exit 3)"), "{log}");
    assert!(log.contains(&format!("{at} cannot be listened on: Address already in use")), "{log}");
    assert!(!path.join("state").exists(), "no node was started");
    drop(taken);
    // The files of the fabric say something else by now.
    managed_rack(path, "[manager]\nlisten = \"127.0.8.99:1\"\n");
    let (code, log) = up(&["--dry-run"]);
    assert!(code == Some(2) && log.contains("rack.toml:2:10: the manager listens elsewhere"), "{log}");
    managed_rack(path, "[manager]\nnames = [\"m.example\"]\n");
    let (code, log) = up(&[]);
    assert!(code == Some(2) && log.contains("`m.example` is none of the `names`"), "{log}");
    // A node of another fabric.
    managed_rack(path, &format!("[manager]\nlisten = \"{at}\"\n"));
    let (rack, _) = Rack::start_managed(folder);
    rack.signal(Signal::INT);
    let Rack { folder, mut child, .. } = rack;
    assert!(child.wait().unwrap().success());
    let path = folder.path();
    fs::rename(path.join("fabric"), path.join("old")).unwrap();
    let done = causeway(path, &["up", "rack.toml"]).output().unwrap();
    let log = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(3) && log.contains("the node store belongs to fabric"), "{log}");
}

#[test]
fn a_rack_with_a_manager_ends_with_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    managed_rack(folder.path(), &format!("[manager]\nlisten = \"{}\"\n", manager_at()));
    let (mut rack, children) = Rack::start_managed(folder);
    for node in ["desk", "store"] {
        kill_process(rack.pid_of(node).unwrap(), Signal::TERM).unwrap();
    }
    let code = until("the end of the rack", || rack.child.try_wait().unwrap());
    assert_eq!(code.code(), Some(0));
    assert!(children.iter().all(|child| is_gone(*child).is_some()), "the manager too");
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
