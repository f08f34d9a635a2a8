//! A fabric and its manager from outside: founded, run, asked, and what is said when something is amiss.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with everything of a fabric in it.
struct Fabric {
    folder: TempDir,
}

/// What a command came to.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

/// A manager that runs. Dropped, it is killed.
struct Manager {
    child: Child,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Fabric {
    /// Founded, for a port that the system chooses.
    fn found() -> Self {
        let fabric = Self { folder: tempfile::tempdir().unwrap() };
        let founded = fabric.run(&["init", "f", "--listen", "127.0.0.1:0"]);
        assert_eq!((founded.code, founded.err.as_str()), (0, ""));
        assert!(founded.out.contains("causeway manager --config"), "{}", founded.out);
        fabric
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
        let folder = self.folder.path();
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        for variable in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"] {
            command.env(variable, folder);
        }
        command.env_remove("CAUSEWAY_MANAGER");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let output = self.command(arguments).output().unwrap();
        Ended {
            code: output.status.code().expect("was not killed"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The same as the administrator.
    fn ask(&self, arguments: &[&str]) -> Ended {
        self.run(&[arguments, &["--manager", "f/admin.toml"]].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.ask(&[arguments, &["-o", "json"]].concat());
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{arguments:?}");
        assert!(ended.out.starts_with("{\n  \"version\": 1"), "{}", ended.out);
        serde_json::from_str(&ended.out).unwrap()
    }

    /// A manager, and where it is, which the credentials say from then on.
    fn start(&self) -> Manager {
        let mut command = self.command(&["manager", "--config", "f/manager.toml"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("https://127.0.0.1:"), "{line}");
        self.change("f/admin.toml", "url", line.trim());
        Manager { child }
    }

    /// Puts another value into a file of credentials.
    fn change(&self, file: &str, key: &str, value: &str) {
        let text = fs::read_to_string(self.path(file)).unwrap();
        let begins = format!("{key} = ");
        let change = |line: &str| match line.starts_with(&begins) {
            true => format!("{key} = \"{value}\"\n"),
            false => format!("{line}\n"),
        };
        fs::write(self.path(file), text.lines().map(change).collect::<String>()).unwrap();
    }
}

impl Manager {
    fn terminate(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), Signal::TERM).unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_fabric_is_founded_run_and_looked_at() {
    let fabric = Fabric::found();
    let again = fabric.run(&["init", "f"]);
    assert!(again.code == 3 && again.err.contains("not an empty folder"), "{}", again.err);
    let nameless = fabric.run(&["init", "g", "--listen", "0.0.0.0:7443"]);
    assert!(nameless.code == 2 && nameless.err.contains("--name HOST"), "{}", nameless.err);
    let manager = fabric.start();
    for (list, none) in [
        (&["node", "list"][..], "no nodes\n"),
        (&["device", "list"], "no devices\n"),
        (&["function", "list", "--filter", "state=free"], "no functions\n"),
        (&["domain", "list"], "no domains\n"),
        (&["slot", "list"], "no slots\n"),
        (&["rail", "list"], "no rails\n"),
        (&["loan", "list"], "no loans\n"),
        (&["join-token", "list"], "no join tokens\n"),
        (&["audit", "--filter", "who=admin"], "no entries\n"),
    ] {
        let ended = fabric.ask(list);
        assert_eq!((ended.code, ended.out.as_str()), (0, none), "{list:?}: {}", ended.err);
    }
    let audit = fabric.ask(&["audit"]).out;
    assert!(audit.lines().count() == 2 && audit.contains("the manager  begin epoch 1"), "{audit}");
    assert_eq!(fabric.json(&["rail", "list"])["rails"], serde_json::json!([]));
    assert_eq!(fabric.json(&["manager", "show"])["nodes"], 0);
    let tokens = fabric.ask(&["token", "list"]);
    assert!(tokens.out.starts_with("TOKEN  ROLE           HASH\nadmin  administrator  "), "{}", tokens.out);
    assert_eq!(fabric.json(&["token", "list"])["tokens"][0]["name"], "admin");
    // Two managers are refused the same files.
    let second = fabric.run(&["manager", "--config", "f/manager.toml"]);
    assert_eq!((second.code, second.out.as_str()), (3, ""), "{}", second.err);
    let (code, log) = manager.terminate();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn tokens_are_made_written_and_removed() {
    let fabric = Fabric::found();
    let _manager = fabric.start();
    let made = fabric.ask(&["join-token", "make", "--expires", "60", "--groups", "1,7", "--domains", "16"]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    assert!(made.out.starts_with("cwj_") && made.out.lines().count() == 1, "{}", made.out);
    let token = &fabric.json(&["join-token", "list"])["join_tokens"][0];
    assert_eq!((token["domains"].as_u64(), &token["groups"]), (Some(16), &serde_json::json!([1, 7])));
    let hash = token["hash"].as_str().unwrap();
    assert_eq!(fabric.ask(&["join-token", "remove", hash]).code, 0);
    assert_eq!(fabric.ask(&["join-token", "list"]).out, "no join tokens\n");

    let written = fabric.ask(&["token", "make", "eye", "read-only", "--write", "eye.toml"]);
    assert_eq!((written.code, written.out.as_str(), written.err.as_str()), (0, "", ""));
    assert_eq!(mode(&fabric.path("eye.toml")), 0o600);
    assert_eq!(fabric.ask(&["token", "make", "eye", "read-only", "--write", "eye.toml"]).code, 3);
    let as_eye = |arguments: &[&str]| fabric.run(&[arguments, &["--manager", "eye.toml"]].concat());
    assert_eq!(as_eye(&["node", "list"]).out, "no nodes\n");
    let refused = as_eye(&["token", "make", "more", "operator"]);
    assert!(refused.code == 3 && refused.err.contains("yours is read-only"), "{}", refused.err);
    // The usual place, and the variable.
    fs::create_dir(fabric.path("causeway")).unwrap();
    fs::copy(fabric.path("eye.toml"), fabric.path("causeway/manager.toml")).unwrap();
    assert_eq!(fabric.run(&["node", "list"]).code, 0);
    let by_variable =
        fabric.command(&["node", "list"]).env("CAUSEWAY_MANAGER", "nowhere.toml").output().unwrap();
    assert_eq!(by_variable.status.code(), Some(2), "the variable goes before the usual place");

    assert!(fabric.ask(&["token", "remove", "eye"]).out.starts_with("nobody asks by the token eye"));
    let gone = as_eye(&["node", "list"]);
    assert!(gone.code == 3 && gone.err.contains("eye.toml"), "{}", gone.err);
    assert_eq!(fabric.ask(&["token", "remove", "admin"]).code, 3, "the last administrator stays");
    let audit = fabric.ask(&["audit", "--filter", "who=admin"]).out;
    assert!(
        audit.starts_with("INDEX  AT") && audit.lines().count() == 6 && audit.contains("refused: "),
        "{audit}"
    );
    let audit = fabric.ask(&["audit", "--filter", "who=eye"]).out;
    assert!(audit.lines().count() == 2 && audit.contains("refused: "), "{audit}");
}

#[test]
fn what_is_not_there_is_refused_in_words() {
    let fabric = Fabric::found();
    let _manager = fabric.start();
    for (arguments, words) in [
        (&["assign", "store/nvme0", "vm1/disk0"][..], "`vm1`"),
        (&["unassign", "store/nvme0"], "`store`"),
        (&["function", "show", "store/nvme0"], "`store`"),
        (&["node", "show", "desk"], "`desk`"),
        (&["node", "remove", "desk"], "`desk`"),
        (&["device", "show", "desk"], "`desk`"),
        (&["manager", "end-restore"], "no restore"),
    ] {
        let ended = fabric.ask(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (3, ""), "{arguments:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{arguments:?}: {}", ended.err);
    }
    let field = fabric.ask(&["slot", "list", "--filter", "stat=x"]);
    assert!(field.code == 2 && field.err.contains("did you mean `state`?"), "{}", field.err);
    assert_eq!(fabric.ask(&["events"]).code, 2, "a manager keeps no events");
}

#[test]
fn credentials_that_are_wrong_are_named_with_their_remedy() {
    let fabric = Fabric::found();
    let none = fabric.run(&["node", "list"]);
    assert_eq!((none.code, none.out.as_str()), (2, ""));
    for place in ["--manager", "CAUSEWAY_MANAGER", "/causeway/manager.toml", "/etc/causeway/manager.toml"] {
        assert!(none.err.contains(place), "{}", none.err);
    }
    let missing = fabric.run(&["node", "list", "--manager", "nowhere.toml"]);
    assert!(missing.code == 2 && missing.err.contains("nowhere.toml"), "{}", missing.err);

    let manager = fabric.start();
    let token = fs::read_to_string(fabric.path("f/admin.toml")).unwrap();
    let token = token.lines().find_map(|line| line.strip_prefix("token = \"")?.strip_suffix('"')).unwrap();
    fs::set_permissions(fabric.path("f/admin.toml"), fs::Permissions::from_mode(0o640)).unwrap();
    let open = fabric.ask(&["node", "list"]);
    assert!(open.code == 3 && open.err.contains("chmod 0600"), "{}", open.err);
    fs::set_permissions(fabric.path("f/admin.toml"), fs::Permissions::from_mode(0o600)).unwrap();

    // Of another fabric is who has another authority, whatever it is called.
    let other = Fabric::found();
    let url = fs::read_to_string(fabric.path("f/admin.toml")).unwrap();
    let url = url.lines().find_map(|line| line.strip_prefix("url = \"")?.strip_suffix('"')).unwrap();
    other.change("f/admin.toml", "url", url);
    let strange = other.ask(&["node", "list"]);
    assert!(strange.code == 3 && strange.err.contains("another fabric"), "{}", strange.err);
    assert!(strange.err.contains("f/admin.toml"), "{}", strange.err);

    let wrong = token.chars().rev().collect::<String>();
    fabric.change("f/admin.toml", "token", &wrong);
    let unknown = fabric.ask(&["node", "list"]);
    assert!(unknown.code == 3 && unknown.err.contains("f/admin.toml"), "{}", unknown.err);
    assert!(!unknown.err.contains(&wrong[..20]), "the token is not shown: {}", unknown.err);
    fabric.change("f/admin.toml", "token", token);
    assert_eq!(fabric.ask(&["node", "list"]).code, 0);

    drop(manager);
    for arguments in [&["node", "list"][..], &["assign", "a/b", "c/d"], &["events", "--follow"]] {
        let away = fabric.ask(arguments);
        assert_eq!((away.code, away.out.as_str()), (4, ""), "{arguments:?}");
        assert!(
            away.err.contains("nobody listens there") && away.err.contains("causeway manager"),
            "{}",
            away.err
        );
    }
}

#[test]
fn a_backup_is_made_of_a_manager_that_runs_and_of_one_that_does_not_and_restored() {
    let fabric = Fabric::found();
    let manager = fabric.start();
    assert_eq!(fabric.ask(&["manager", "backup", "running"]).code, 0);
    assert_eq!(mode(&fabric.path("running")), 0o600);
    let used = fabric.run(&["manager", "backup", "b", "--config", "f/manager.toml"]);
    assert!(used.code == 3 && used.err.contains("leave out --config"), "{}", used.err);
    assert_eq!(fabric.run(&["manager", "restore", "running", "--config", "f/manager.toml"]).code, 3);
    fabric.ask(&["token", "make", "later", "operator"]);
    assert_eq!(manager.terminate().0, Some(0));
    assert_eq!(fabric.run(&["manager", "backup", "stopped", "--config", "f/manager.toml"]).code, 0);
    let restored = fabric.run(&["manager", "restore", "running", "--config", "f/manager.toml"]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(restored.out.contains("before-restore-1") && restored.out.contains("end-restore"));

    let _manager = fabric.start();
    let tokens = fabric.json(&["token", "list"]);
    assert_eq!(tokens["tokens"].as_array().unwrap().len(), 1, "what came after the backup is gone");
    assert!(fabric.ask(&["manager", "show"]).out.contains("restore"), "it only listens");
    let early = fabric.ask(&["manager", "end-restore"]);
    assert!(early.code == 3 && early.err.contains("--anyway"), "nobody has come: {}", early.err);
    assert_eq!(fabric.ask(&["manager", "end-restore", "--anyway"]).code, 0);
    let damaged = fs::read(fabric.path("stopped")).unwrap();
    fs::write(fabric.path("damaged"), &damaged[..damaged.len() - 1]).unwrap();
    let other = Fabric::found();
    let file = fabric.path("damaged");
    let refused = other.run(&["manager", "restore", file.to_str().unwrap(), "--config", "f/manager.toml"]);
    assert!(refused.code == 1 && refused.err.contains("damaged"), "{}", refused.err);
}

#[test]
fn who_follows_events_goes_on_when_the_manager_comes_back() {
    let fabric = Fabric::found();
    // A port that stays, for the credentials are read once.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = fs::read_to_string(fabric.path("f/manager.toml")).unwrap();
    let config = config.replace("\"127.0.0.1:0\"", &format!("\"127.0.0.1:{port}\""));
    let config = config.replace("https://localhost:0", &format!("https://127.0.0.1:{port}"));
    fs::write(fabric.path("f/manager.toml"), config).unwrap();
    let manager = fabric.start();
    let mut command = fabric.command(&["events", "--manager", "f/admin.toml", "-f"]);
    let mut follower = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(follower.stderr.take().unwrap()).lines();
    // It listens when the manager counts it; here it is enough that it has not ended when that ends.
    std::thread::sleep(std::time::Duration::from_millis(500));
    manager.terminate();
    assert!(said.next().unwrap().unwrap().contains("the manager is away"));
    let _manager = fabric.start();
    let back = said.next().unwrap().unwrap();
    assert!(back.contains("is back") && back.contains("follows"), "{back}");
    kill_process(Pid::from_raw(follower.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(follower.wait().unwrap().code(), Some(0));
}

#[test]
fn shells_complete_all_commands() {
    let fabric = Fabric { folder: tempfile::tempdir().unwrap() };
    for shell in ["bash", "zsh", "fish"] {
        let script = fabric.run(&["completions", shell]);
        assert_eq!((script.code, script.err.as_str()), (0, ""));
        for word in ["join-token", "unassign", "on-silence", "bench"] {
            assert!(script.out.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(fabric.run(&["completions", "sh"]).code, 2);
}
