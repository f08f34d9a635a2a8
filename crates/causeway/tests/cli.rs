//! The program from outside: exit codes, what goes where, and that no key is shown.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const LINE: &str = "causeway://0tnwvzzyzqyfqyqsz3vzdxfmyfsf3w7fxvpystzax7mefsq5wkhy5rf0000g\
                    40r40m30e209185gr38e1w8124gk2gahc5rr34d1p70x3rfy6mqyzgtnhpz2@192.0.2.1:7411/nvme0";
const SECRET: &str = "000g40r40m30e209185gr38e1w8124gk2gahc5rr34d1p70x3rfh";

/// The program, with folders of its own.
fn causeway(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(arguments).env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder).env("HOME", folder);
    command
}

struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code().expect("was not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    ended(causeway(folder.path(), arguments).stdin(Stdio::null()).output().unwrap())
}

/// Standard input stays open until the program has ended, as a terminal does.
fn run_with_input(arguments: &[&str], input: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let mut command = causeway(folder.path(), arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    let ended = ended(child.wait_with_output().unwrap());
    drop(stdin);
    ended
}

#[test]
fn help_and_version_are_results() {
    let help = run(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for command in ["lend", "borrow", "node", "up", "status", "qemu-args", "demo", "bench", "sim"] {
        assert!(help.out.contains(&format!("\n  {command}")), "{command} is missing in:\n{}", help.out);
        let help = run(&[command, "--help"]);
        assert_eq!((help.code, help.err.as_str()), (0, ""));
        assert!(help.out.contains("Usage: causeway"), "{}", help.out);
    }
    assert!(!help.out.contains("__card"));
    let version = run(&["--version"]);
    assert_eq!((version.code, version.out), (0, format!("causeway {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn wrong_usage_ends_with_2_and_an_empty_stdout() {
    for arguments in [
        &[][..],
        &["fly"],
        &["lend"],
        &["lend", "ram:lots"],
        &["lend", "flash:ram:1M?channels=0"],
        &["lend", "flash:ram:1M?read_iops=0"],
        &["lend", "flash:ram:1M?speed=9"],
        &["lend", "x", "--listen", "example.org"],
        &["borrow", LINE],
        &["borrow", LINE, "--nbd", "/tmp/s", "--vm", "/tmp/v"],
        &["borrow", LINE, "--vm", "/tmp/v", "--vm-mode", "rw"],
        &["borrow", LINE, "--nbd", "/tmp/s", "--vm-mode", "0660"],
        &["qemu-args"],
        &["borrow", "causeway://x", "--nbd", "/tmp/s"],
        &["borrow", LINE, "--nbd", ""],
        &["node"],
        &["node", "--config", "/nonexistent/node.toml"],
        &["status", "-o", "yaml"],
        &["sim", "--seed", "-1"],
    ] {
        let ended = run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}: {}", ended.err);
        assert!(!ended.err.is_empty(), "{arguments:?} says nothing");
    }
}

#[test]
fn mistyped_lines_are_recognised_and_no_key_is_shown() {
    let key = LINE.replacen("000g", "000h", 1);
    let address = LINE.replacen("192.0.2.1", "192.0.2.2", 1);
    let function = LINE.replacen("nvme0", "nvme1", 1);
    for (line, named) in [(&key, "the key"), (&address, "192.0.2.2:7411"), (&function, "`nvme1`")] {
        let ended = run(&["borrow", line, "--nbd", "/tmp/s"]);
        assert_eq!(ended.code, 2);
        assert!(ended.err.contains("typing error") && ended.err.contains(named), "{}", ended.err);
        assert!(!ended.err.contains(&SECRET[8..]), "{}", ended.err);
    }
    for arguments in [
        &["lend", LINE][..],
        &[LINE],
        &["borrow", LINE, LINE, "--nbd", "/tmp/s"],
        &["status", LINE],
        &["node", "--config", LINE],
        &["borrow", LINE, "--nbd", LINE, "--io-timeout", LINE],
        &["sim", "--seed", LINE],
    ] {
        let ended = run(arguments);
        assert!(ended.code == 2, "{arguments:?}");
        assert!(!(ended.err + &ended.out).contains(&SECRET[8..]), "{arguments:?} shows the key");
    }
}

#[test]
fn lines_come_from_arguments_standard_input_and_files() {
    let mistyped = LINE.replacen("nvme0", "nvme1", 1);
    let piped = run_with_input(&["borrow", "-", "--nbd", "/tmp/s"], &format!("{mistyped}\n"));
    assert_eq!(piped.code, 2);
    assert!(piped.err.contains("typing error in the function"), "{}", piped.err);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("line");
    std::fs::write(&file, &mistyped).unwrap();
    let from_file = run(&["borrow", &format!("@{}", file.display()), "--nbd", "/tmp/s"]);
    assert_eq!(from_file.code, 2);
    assert!(from_file.err.contains("typing error in the function"), "{}", from_file.err);

    let missing = run(&["borrow", "@/nonexistent/line", "--nbd", "/tmp/s"]);
    assert_eq!(missing.code, 3);
    assert!(missing.err.contains("/nonexistent/line"), "{}", missing.err);
}

#[test]
fn slips_are_named_with_their_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.line");
    std::fs::write(&empty, "\n \n").unwrap();
    let from_empty = format!("@{}", empty.display());
    let spaced = format!(" {} ", LINE.replacen("nvme0", "nvme1", 1));
    let key = LINE.replacen("000g", "00ig", 1);
    let long = "/tmp/aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeee/nvme0.toml";
    for (arguments, words) in [
        (&["borrow", LINE][..], &["--nbd PATH", "--vm PATH"][..]),
        (&["borrow", "nvme0.line", "--nbd", "/tmp/s"], &["@nvme0.line"]),
        (&["borrow", &from_empty, "--nbd", "/tmp/s"], &["empty.line", "empty"]),
        // Blanks around a line that was pasted are no mistake.
        (&["borrow", &spaced, "--nbd", "/tmp/s"], &["typing error in the function `nvme1`"]),
        (&["borrow", &key, "--nbd", "/tmp/s"], &["its character 59 cannot be part of any key"]),
        // A long name is no key.
        (&["node", "--config", long], &[long]),
    ] {
        let ended = run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}: {}", ended.err);
        assert!(words.iter().all(|word| ended.err.contains(word)), "{arguments:?}: {}", ended.err);
    }
    let unreachable = ["borrow", LINE, "--nbd", "/tmp/causeway-test-cli.sock", "--io-timeout", "1"];
    let ended = run(&unreachable);
    assert_eq!(ended.code, 4, "{}", ended.err);
    assert!(ended.err.contains("process list") && ended.err.contains("@FILE"), "{}", ended.err);
}

#[test]
fn configuration_errors_name_file_line_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    std::fs::write(&file, "[[devices]]\nfunction = 'nvme0'\nsorce = 'ram:1M'\n").unwrap();
    let ended = run(&["node", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.code, 2);
    let expected = format!("{}:3:1: unknown key `sorce`; did you mean `source`?", file.display());
    assert!(ended.err.contains(&expected), "{}", ended.err);
}

#[test]
fn status_without_a_node_is_not_found() {
    for arguments in [&["status"][..], &["status", "-o", "json"], &["status", "--name", "disk"]] {
        let ended = run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (3, ""), "{arguments:?}");
        assert!(ended.err.contains("is running here"), "{}", ended.err);
    }
}

#[test]
fn failures_are_json_lines_where_the_log_is() {
    let ended = run(&["status", "--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!((line["level"].as_str(), line["exit"].as_u64()), (Some("ERROR"), Some(3)));
    assert!(line["message"].as_str().unwrap().contains("no node is running here"));
}

/// Nodes that answer a request of every client with the same bytes.
fn with_nodes(names: &[&str], answer: &'static str, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("causeway");
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&sockets).unwrap();
    for name in names {
        let listener = UnixListener::bind(sockets.join(format!("{name}.sock"))).unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = BufReader::new(client.unwrap());
                // To the end of its body.
                if client.read_until(b'}', &mut Vec::new()).is_ok_and(|count| count > 0) {
                    client.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
        });
    }
    ended(causeway(folder.path(), arguments).output().unwrap())
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\n\r\n\
    {\"response\":\"status\",\"status\":{\"version\":1,\"node\":{\"name\":\"disk\",\"pid\":5}}}\n";

#[test]
fn status_asks_the_only_node_or_the_one_named() {
    for (names, arguments) in
        [(&["disk"][..], &["status"][..]), (&["a", "disk"], &["status", "--name", "disk"])]
    {
        let ended = with_nodes(names, ANSWER, arguments);
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        assert_eq!(ended.out, "node disk, process 5, incarnation 0\n");
    }
    let json = with_nodes(&["disk"], ANSWER, &["status", "-o", "json"]);
    assert_eq!(json.code, 0);
    assert!(json.out.trim_start_matches(['{', ' ', '\n']).starts_with("\"version\": 1"), "{}", json.out);
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    for key in ["node", "cards", "rails", "channels", "streams", "devices", "loans", "counters"] {
        assert!(document.get(key).is_some(), "{key}");
    }
}

#[test]
fn status_wants_a_name_where_several_run() {
    let ended = with_nodes(&["a", "b"], ANSWER, &["status"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    assert!(ended.err.contains("a, b") && ended.err.contains("--name"), "{}", ended.err);
}

#[test]
fn status_of_a_node_that_answers_nonsense_is_unreachable() {
    assert_eq!(with_nodes(&["a"], "nonsense\n", &["status"]).code, 4);
    assert_eq!(with_nodes(&["a"], "", &["status"]).code, 4);
}
