//! Nodes on this machine from outside: what they say when something is amiss, and how they end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lab::nbd_client::NbdClient;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything waited for here takes, also on a busy machine.
const WAIT: Duration = Duration::from_secs(60);

/// A port that no other run of these tests has, below those that the system gives out.
fn port(test: u16) -> u16 {
    20_000 + (std::process::id() % 1000) as u16 * 9 + test
}

/// A folder with everything of the nodes in it.
struct Home {
    folder: TempDir,
}

impl Home {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
        let folder = self.folder.path();
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder).env("HOME", folder);
        command.env_remove("JOURNAL_STREAM");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A node of that name, whose log and output lie in the folder.
    fn start(&self, name: &str, arguments: &[&str]) -> Node {
        let mut command = self.command(arguments);
        // For root the default place is one for the whole machine.
        command.args(["--name", name, "--state-dir"]).arg(self.path(&format!("{name}.state")));
        let log = self.path(&format!("{name}.log"));
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        Node { child: command.spawn().unwrap(), log }
    }

    /// A node that lends memory at a port of its own, and its line in a file.
    fn lend(&self, port: u16, more: &[&str]) -> Node {
        self.lend_source("ram:1M", port, more)
    }

    fn lend_source(&self, source: &str, port: u16, more: &[&str]) -> Node {
        let (listen, file) = (format!("127.0.0.1:{port}"), self.path("nvme0.line"));
        let _ = fs::remove_file(&file);
        let file = file.to_str().unwrap();
        let arguments = ["lend", source, "--listen", &listen, "--line-file", file];
        let node = self.start("lender", &[&arguments, more].concat());
        node.until("the line", || Path::new(file).exists().then_some(()));
        node
    }

    fn borrow(&self, more: &[&str]) -> Node {
        let mut node =
            self.start("borrower", &[&["borrow", "@nvme0.line", "--nbd", "nbd.sock"], more].concat());
        let edge = node.first_line();
        assert_eq!(
            edge,
            format!("nbd+unix:///?socket={}", self.path("nbd.sock").display()),
            "a path for all folders"
        );
        node
    }
}

struct Node {
    child: Child,
    log: PathBuf,
}

impl Node {
    fn first_line(&mut self) -> String {
        let mut line = String::new();
        let mut out = BufReader::new(self.child.stdout.as_mut().unwrap());
        assert!(out.read_line(&mut line).unwrap() > 0, "{}", self.log());
        line.trim_end().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    fn until<T>(&self, what: &str, mut is_so: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = is_so() {
                return found;
            }
            assert!(start.elapsed() < WAIT, "waited in vain for {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for a line of its log with these words.
    fn says(&self, words: &str) {
        self.until(words, || self.log().contains(words).then_some(()));
    }

    fn count(&self, words: &str) -> usize {
        self.log().matches(words).count()
    }

    fn ended(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.log())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

#[test]
fn lines_go_into_a_file_for_this_user_alone() {
    let home = Home::new();
    let mut lender = home.lend(port(1), &[]);
    let file = home.path("nvme0.line");
    let line = fs::read_to_string(&file).unwrap();
    assert!(line.starts_with("causeway://") && line.ends_with("/nvme0\n"), "one line");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    lender.signal(Signal::TERM);
    lender.child.wait().unwrap();
    let printed = std::io::read_to_string(lender.child.stdout.take().unwrap()).unwrap();
    assert_eq!(printed, "", "the key is nowhere else");
    assert!(!lender.log().contains(&line["causeway://".len()..][..30]), "{}", lender.log());
    // The same command, the same line.
    drop(home.lend(port(1), &[]));
    assert_eq!(fs::read_to_string(&file).unwrap(), line);
}

#[test]
fn a_line_on_its_way_into_a_journal_is_warned_about() {
    let home = Home::new();
    let out = fs::File::create(home.path("journal")).unwrap();
    let found = out.metadata().unwrap();
    let mut command =
        home.command(&["lend", "ram:1M", "--listen", &format!("127.0.0.1:{}", port(2)), "--name", "lender"]);
    command.arg("--state-dir").arg(home.path("state"));
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    let log = home.path("log");
    let child = command.stdout(out).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    let node = Node { child, log };
    node.says("--line-file");
    node.says("journal");
}

/// Of a node from a file also what comes by `reload`; without a file for them, a journal that gets them is warned
/// about.
#[test]
fn lines_of_a_node_are_kept_over_a_reload() {
    for is_kept in [true, false] {
        let home = Home::new();
        let rail = format!("[[rails]]\nname = 'r'\nlisten = '127.0.0.1:{}'\n", port(8));
        let device = |name: &str| format!("[[devices]]\nfunction = '{name}'\nsource = 'ram:1M'\n");
        let configure = |devices: &[&str]| {
            let devices = devices.iter().map(|name| device(name));
            let state = format!("state_dir = {:?}\n", home.path("state"));
            let text: String = [state, rail.clone()].into_iter().chain(devices).collect();
            fs::write(home.path("n.toml"), text).unwrap();
        };
        configure(&["a", "b"]);
        let (log, kept) = (home.path("log"), home.path("n.lines"));
        let mut command = home.command(&["node", "--config", "n.toml"]);
        if is_kept {
            command.arg("--line-file").arg("n.lines");
        }
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let mut node = Node { child: command.spawn().unwrap(), log };
        let functions = || -> Vec<String> {
            let text = fs::read_to_string(&kept).unwrap();
            text.lines().map(|line| line.rsplit_once('/').unwrap().1.to_owned()).collect()
        };
        if is_kept {
            node.until("the lines", || kept.exists().then_some(()));
            assert_eq!(functions(), ["a", "b"]);
        } else {
            assert!(node.first_line().ends_with("/a"));
        }
        configure(&["b", "c"]);
        let out = home.path("journal");
        let journal = fs::File::create(&out).unwrap();
        let found = journal.metadata().unwrap();
        let mut reload = home.command(&["reload", "--name", "n"]);
        reload.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino())).stdout(journal);
        let reload = node.until("the node to hear", || {
            let done = reload.output().unwrap();
            done.status.success().then_some(done)
        });
        let printed = fs::read_to_string(&out).unwrap();
        assert_eq!(printed.contains("causeway://"), !is_kept, "{printed}");
        let warned = text(&reload.stderr);
        assert_eq!(warned.contains("--line-file"), !is_kept, "{warned}");
        if is_kept {
            assert_eq!(functions(), ["b", "c"]);
            assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
            node.signal(Signal::TERM);
            node.child.wait().unwrap();
            let printed = std::io::read_to_string(node.child.stdout.take().unwrap()).unwrap();
            assert_eq!(printed, "", "the keys are nowhere else");
        }
    }
}

#[test]
fn a_second_signal_ends_at_once_and_what_may_be_lost_is_called_so() {
    let home = Home::new();
    // On a disk: what lies in memory has nothing that would have to be flushed.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let lender = home.lend_source(image.to_str().unwrap(), port(3), &[]);
    let borrower = home.borrow(&[]);
    let mut client = NbdClient::connect(&home.path("nbd.sock"), WAIT).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    lender.signal(Signal::TERM);
    let (code, log) = lender.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("what is lent is in use"), "{log}");
    borrower.signal(Signal::TERM);
    borrower.says("a second Ctrl-C or SIGTERM ends at once");
    borrower.signal(Signal::INT);
    let (code, log) = borrower.ended();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("ending at once"), "{log}");
    assert!(log.contains("may be lost") && !log.contains("are lost"), "{log}");
}

/// Of a card that is never idle no deadline may pass for seconds, and it renews what its gauges show all the same.
#[test]
fn status_is_renewed_while_a_card_is_never_idle() {
    const LOOKS: usize = 12;
    let home = Home::new();
    let _lender = home.lend(port(0), &["--no-shm", "--insecure"]);
    let load = "__load @nvme0.line --bytes 4096 --depth 1 --write-percent 0 --seconds 6 --no-shm --insecure";
    let mut load = home.start("reader", &load.split(' ').collect::<Vec<_>>());
    load.says("drive is usable");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..LOOKS {
        let status = text(&home.run(&["status", "--name", "reader", "-o", "json"]).stdout);
        let (_, round_trip) = status.split_once("\"rtt_us\":").expect("it has a rail");
        seen.insert(round_trip.split([',', '}']).next().unwrap().to_owned());
        std::thread::sleep(Duration::from_millis(250));
    }
    // Each frame that is acknowledged changes it.
    assert!(seen.len() > LOOKS / 2, "{LOOKS} looks at {seen:?}");
    assert!(load.first_line().contains("\"errors\":0"), "{}", load.log());
}

#[test]
fn a_peer_that_is_silent_is_named_once_by_the_other_end() {
    let home = Home::new();
    let lender = home.lend(port(4), &["--no-shm"]);
    let borrower = home.borrow(&["--no-shm"]);
    // It stands still as a whole: neither its agent nor its card says anything.
    let card = card_of(&home, "lender");
    let family = [Pid::from_raw(lender.child.id() as i32).unwrap(), Pid::from_raw(card).unwrap()];
    family.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    borrower.says("lender has not been heard for");
    let status = home.run(&["status", "--name", "lender"]);
    assert_eq!(status.status.code(), Some(4));
    let said = text(&status.stderr);
    let pid = lender.child.id();
    assert!(said.contains(&format!("process {pid} is stopped")) && said.contains("kill -CONT"), "{said}");
    family.iter().for_each(|pid| kill_process(*pid, Signal::CONT).unwrap());
    borrower.says("lender is heard again");
    assert_eq!(borrower.count("lender has not been heard for"), 1, "{}", borrower.log());
    // And the other way round.
    borrower.signal(Signal::KILL);
    lender.says("borrower has not been heard for");
    lender.says("UTC (hold time 600 s) it keeps nvme0");
}

fn card_of(home: &Home, name: &str) -> i32 {
    let asked = home.run(&["status", "--name", name, "-o", "json"]);
    let status: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    status["cards"][0]["pid"].as_i64().unwrap() as i32
}

#[test]
fn a_lender_that_is_not_there_is_waited_for_aloud() {
    let home = Home::new();
    drop(home.lend(port(5), &[]));
    let borrower = home.start("borrower", &["borrow", "@nvme0.line", "--nbd", "nbd.sock"]);
    borrower.says(&format!("nobody has answered for nvme0 at 127.0.0.1:{} yet", port(5)));
    borrower.signal(Signal::TERM);
    let (_, log) = borrower.ended();
    assert!(log.contains("the loan was never had") && !log.contains("loan was given back"), "{log}");
}

#[test]
fn a_stopped_card_is_replaced_and_its_time_out_is_kept() {
    let home = Home::new();
    let lender = home.lend(port(6), &["--no-shm"]);
    let borrower = home.borrow(&["--no-shm", "--io-timeout", "4"]);
    let mut client = NbdClient::connect(&home.path("nbd.sock"), WAIT).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    for (node, name) in [(&lender, "lender"), (&borrower, "borrower")] {
        let card = Pid::from_raw(card_of(&home, name)).unwrap();
        kill_process(card, Signal::STOP).unwrap();
        client.write(4096, &[8; 4096]).unwrap();
        node.says("the card was stopped by a signal");
        node.says("card recovered");
    }
    // With the lender gone, a request fails in its time although its card was stopped meanwhile.
    drop(lender);
    let start = Instant::now();
    let waiting = std::thread::spawn(move || client.read(0, 4096, &mut Vec::new()));
    kill_process(Pid::from_raw(card_of(&home, "borrower")).unwrap(), Signal::STOP).unwrap();
    borrower.until("the request", || waiting.is_finished().then_some(()));
    assert!(waiting.join().unwrap().is_err());
    assert!(start.elapsed() >= Duration::from_secs(3), "it waits for as long as it may");
}

#[test]
fn a_refused_start_leaves_nothing_behind() {
    let home = Home::new();
    let state = home.path("state");
    let folder = state.to_str().unwrap();
    let listen = format!("127.0.0.1:{}", port(7));
    for arguments in [
        &["lend", "missing.img"][..],
        &["lend", "ram:1M", "--listen", "192.0.2.77:7411"],
        &["lend", "ram:1M", "--listen", &listen, "--listen", &listen],
    ] {
        let done = home.run(&[arguments, &["--state-dir", folder]].concat());
        assert!(matches!(done.status.code(), Some(2 | 3)), "{arguments:?}: {}", text(&done.stderr));
        assert!(!state.exists(), "{arguments:?}");
    }
    let twice = home.run(&["lend", "ram:1M", "--listen", "127.0.0.1", "--listen", "127.0.0.1"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).contains("127.0.0.1 stands twice"), "{}", text(&twice.stderr));
}

/// The first example of the README, as whoever runs the tests, and typed as it stands there.
#[test]
fn the_first_example_of_the_readme_runs() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let section = readme.split("\n## Lend and borrow\n").nth(1).unwrap();
    let mut typed = section.lines().filter_map(|line| line.strip_prefix("    $ "));
    let mut next = |begins: &str| {
        let line = typed.next().unwrap();
        assert!(line.starts_with(begins), "{line}");
        line.to_owned()
    };
    let home = Home::new();
    let programs = Path::new(env!("CARGO_BIN_EXE_causeway")).parent().unwrap().to_owned();
    let others = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&others))).unwrap();
    let shell = |name: &str, line: &str| {
        let mut command = home.command(&[]);
        let shell = std::mem::replace(&mut command, Command::new("bash"));
        command.args(["-c", &format!("exec {line}")]).current_dir(home.folder.path()).env("PATH", &path);
        command.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        let log = home.path(&format!("{name}.log"));
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        Node { child: command.spawn().unwrap(), log }
    };
    assert!(shell("truncate", &next("truncate ")).child.wait().unwrap().success());
    // Only the folders of states are the test's: for root they are those of the whole machine.
    let lender = shell("lender", &(next("causeway lend disk.img") + " --state-dir lender"));
    let line = home.path("nvme0.line");
    lender.until("the line", || line.exists().then_some(()));
    let borrow = next("causeway borrow @nvme0.line");
    let socket = home.path("nvme0.sock");
    assert!(borrow.contains("/tmp/nvme0.sock"), "{borrow}");
    // Nor must two runs of this test meet.
    let borrow = borrow.replace("/tmp/nvme0.sock", socket.to_str().unwrap()) + " --state-dir borrower";
    let mut borrower = shell("borrower", &borrow);
    assert_eq!(borrower.first_line(), format!("nbd+unix:///?socket={}", socket.display()));
    let mut client = NbdClient::connect(&socket, WAIT).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let mut begin = [0; 4096];
    std::io::Read::read_exact(&mut fs::File::open(home.path("disk.img")).unwrap(), &mut begin).unwrap();
    assert!(begin.iter().all(|byte| *byte == 7), "it is in the image");
    for node in [borrower, lender] {
        node.signal(Signal::TERM);
        let (code, log) = node.ended();
        assert_eq!(code, Some(0), "{log}");
    }
}
