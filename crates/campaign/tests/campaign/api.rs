//! A manager's interface, asked by a program that knows nothing but its description (`/v1/openapi.json`).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use campaign::fabric::Fabric;
use campaign::gate;
use campaign::process::run_to_end;
use campaign::world::{Machine, World, WorldConfig};

/// Seconds of each run, and the seed of both.
const RUNS: [(&str, &[&str]); 2] = [
    // Whatever takes tokens away, or puts another one in the place of one, runs by itself: the run's own token is among
    // those that lists name.
    (
        "50",
        &[
            "--exclude-path",
            "/v1/events",
            "--exclude-path",
            "/v1/agent",
            "--exclude-operation-id",
            "make_api_token",
            "--exclude-operation-id",
            "remove_api_token",
        ],
    ),
    (
        "10",
        &[
            "--include-operation-id",
            "make_api_token",
            "--include-operation-id",
            "remove_api_token",
            "--phases",
            "coverage,fuzzing",
        ],
    ),
];
const SEED: &str = "17";
/// What may come of a request that the description allows: as without this, and 412, for versions are drawn by chance.
const CONFIG: &str = "[checks]\npositive_data_acceptance.expected-statuses = \
    [\"2xx\", \"3xx\", 401, 403, 404, 409, 412, 429, \"5xx\"]\n";

/// `schemathesis`, which is fetched if it is not there yet.
fn schemathesis() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis.sh");
    let found = Command::new(script).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

/// The administrator's token, as its credentials have it.
fn token(machine: &Machine) -> String {
    let text = std::fs::read_to_string(machine.dir().join("fabric/admin.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("token = ")).unwrap();
    line.trim_matches('"').to_owned()
}

/// Streams of events and the WebSocket of nodes are left out: they have no end and no documents.
#[test]
fn the_interface_does_what_its_description_says() {
    let _place = gate::computes();
    let program = schemathesis();
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.left();
    let mut fabric = Fabric::found(machine).unwrap();
    let config = machine.dir().join("schemathesis.toml");
    std::fs::write(&config, CONFIG).unwrap();
    let description = format!("{}/v1/openapi.json", fabric.url);
    for (seconds, chosen) in RUNS {
        // The token is there still, so what the run before has asked was not all refused. The last one may hit upon it.
        fabric.told(&["manager", "show"]).unwrap();
        let mut command = machine.command(&program);
        command
            .arg("--config-file")
            .arg(&config)
            .args(["run", &description, "--tls-verify"])
            .arg(machine.dir().join("fabric/authority.pem"));
        command.args(["--header", &format!("Authorization: Bearer {}", token(machine))]);
        command.args(["--seed", SEED, "--max-time", seconds, "--checks", "all", "--continue-on-failure"]);
        command.args(["--request-timeout", "30", "--no-color"]).args(chosen).current_dir(machine.dir());
        let logs = machine.dir().join("logs");
        let outcome = run_to_end(command, &logs, "schemathesis", Duration::from_secs(240)).unwrap();
        assert_eq!(outcome.code, Some(0), "{}\n{}", outcome.stdout, outcome.stderr);
        assert!(outcome.stdout.contains("Test cases:"), "{}", outcome.stdout);
    }
    // The manager is well.
    fabric.manager.terminate(campaign::causeway::STOP_TIMEOUT).unwrap();
}
