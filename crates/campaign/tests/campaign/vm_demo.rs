//! `causeway demo --vm`: a guest with a borrowed drive through all phases. Short in `make test`, as people see it in
//! `make soak`. Where there can be no guest: `crates/causeway/tests/demo.rs`.

use campaign::causeway::binary;
use campaign::process::run_to_end;
use campaign::{gate, scale};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Under two minutes on a machine that has nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(600);

/// In percent of what people see.
const PACE: u32 = 20;

#[test]
fn w7_a_guest_comes_through_the_phases() {
    let _place = gate::computes();
    let Some(_kit) = guest::kit() else { return };
    let folder = std::env::temp_dir().join(format!("causeway-vm-demo-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let pace = scale::kills_of(PACE, 100).min(100).to_string();
    let mut command = Command::new(binary().unwrap());
    command.args(["demo", "--vm", "-o", "json", "--seed", "7", "--pace", &pace]).current_dir(&folder);
    let outcome = run_to_end(command, &folder, "demo", TIMEOUT).unwrap();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["version"], &report["ok"], &report["seed"]), (&1.into(), &true.into(), &7.into()));
    assert_eq!((&report["io_errors"], &report["corrupted_bytes"]), (&0.into(), &0.into()));
    assert_phases(&report);
    assert_guest(&report);
    let page = std::fs::read_to_string(report["report"].as_str().unwrap()).unwrap();
    assert!(page.contains("virtual machine") && page.contains("Linux version 6"), "{}", report["report"]);
    std::fs::remove_file(report["report"].as_str().unwrap()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

fn assert_phases(report: &Value) {
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    let killing = ["kill-borrower-card", "kill-lender-card", "switch-kill", "manager-kill"];
    let (first, last) = killing.split_at(3);
    let all = [&["quiet", "loss", "rail-cut"], first, &["inter-switch-cut", "slow-rail"], last].concat();
    assert_eq!(names, all);
    for phase in phases {
        assert!(phase["bytes_verified"].as_u64().unwrap() > 0, "{phase}");
        assert!(phase["longest_gap_s"].as_f64().unwrap() > 0.0, "{phase}");
        assert_eq!(phase["io_errors"], 0, "{phase}");
        let is_kill = killing.contains(&phase["name"].as_str().unwrap());
        for key in ["recovery_s", "killed_pid"] {
            assert_eq!(phase[key].is_number(), is_kill, "{phase}");
        }
    }
    let sum: u64 = phases.iter().map(|phase| phase["bytes_verified"].as_u64().unwrap()).sum();
    assert_eq!(report["bytes_verified"], sum);
    assert!(phases[1]["retransmissions"].as_u64().unwrap() > 0, "{}", phases[1]);
}

fn assert_guest(report: &Value) {
    let guest = &report["guest"];
    assert_eq!(guest["trouble"], Value::Array(Vec::new()), "{guest}");
    let lines = guest["kernel_log"].as_array().unwrap();
    assert!(lines.len() > 100, "{guest}");
    let highlights = guest["highlights"].to_string();
    assert!(highlights.contains("nvme nvme0: pci function"), "{highlights}");
    for checked in [&guest["file_system"], &report["image"]["file_system"]] {
        assert_eq!(checked["clean"], true, "{report}");
    }
    assert!(report["image"]["compared_bytes"].as_u64().unwrap() >= 64 << 20, "{report}");
}
