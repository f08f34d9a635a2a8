//! A state directory whose node is killed at random moments, thousands of file operations apart.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::ids::NodeId;
use program::state_dir::StateDir;

const FOLDER_VARIABLE: &str = "CAUSEWAY_TEST_STATE_DIR";
const KILLS: u32 = 60;

/// Not a test: the process that is killed. It starts and stops nodes as fast as it can.
#[test]
#[ignore = "runs as a child of the test below"]
fn node_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from) else { return };
    println!("\nbegun");
    for port in (1..=u16::MAX).cycle() {
        let mut state = StateDir::open(&folder).unwrap();
        state.set_port(port).unwrap();
    }
}

fn start_node(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "node_that_is_killed", "--ignored", "--nocapture"]).env(FOLDER_VARIABLE, folder);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "begun"), "the child did not begin");
    child
}

#[test]
fn no_moment_of_death_prevents_the_next_start() {
    let temporary = tempfile::tempdir().unwrap();
    let mut last: Option<(NodeId, u64)> = None;
    for round in 0..KILLS {
        // Every third folder is new, so that its making is cut off, too.
        let folder = temporary.path().join(format!("{}", round / 3));
        if round % 3 == 0 {
            last = None;
        }
        let mut child = start_node(&folder);
        // Spread over the first operations: the moment is what the test varies, nothing waits for it.
        let begun = Instant::now();
        let moment = Duration::from_micros(u64::from(round) * 7919 % 3000);
        while begun.elapsed() < moment {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let state = StateDir::open(&folder).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let now = (state.identity().id(), state.incarnation());
        if let Some(last) = last {
            assert_eq!(now.0, last.0, "the identity stays");
            assert!(now.1 > last.1, "the incarnation rises");
        }
        last = Some(now);
    }
}
