//! `causeway bench` from outside: its report follows from its rounds, and a peer that is missing is named.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the bench with folders of its own, and returns what it has written too.
fn bench(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> (Output, Value) {
    let out = folder.join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.arg("bench").args(arguments).arg("--out").arg(&out);
    command.env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder).env_remove("CI");
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let report = std::fs::read(out.join("report.json")).unwrap();
    assert!(out.join("report.html").is_file());
    (output, serde_json::from_slice(&report).unwrap())
}

/// The medians of both sides of a case, from its rounds alone.
fn medians(case: &Value) -> [f64; 2] {
    ["ours", "peer"].map(|side| {
        let rounds = case[side]["rounds"].as_array().unwrap();
        let mut values: Vec<f64> = rounds.iter().map(|round| round["value"].as_f64().unwrap()).collect();
        values.sort_by(f64::total_cmp);
        assert_eq!(case[side]["min"].as_f64(), Some(values[0]));
        (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
    })
}

#[test]
fn ratios_follow_from_the_rounds_of_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let cases = ["native-4k-mixed-qd32", "native-udp-insecure-4k-read-qd1-vs-calls", "added-latency"];
    let (output, report) = bench(folder.path(), &[&cases[..], &["--rounds", "2"]].concat(), &[]);
    assert!(output.status.success(), "{output:?}");
    let measured = report["cases"].as_array().unwrap();
    assert_eq!(measured.len(), cases.len());
    for case in measured {
        let [ours, peer] = medians(case);
        let ratio = if case["better"] == "higher" { ours / peer } else { peer / ours };
        // A decimal number that was read is not always the one that was written, to the last bit.
        let told = case["ratio"].as_f64().unwrap();
        assert!((told / ratio - 1.0).abs() < 1e-12, "{ratio}: {case}");
        assert!(ours > 0.0 && case["ours"]["rounds"].as_array().unwrap().len() == 2, "{case}");
        assert!(!case["ours"]["rounds"][0]["latencies_us"].as_array().unwrap().is_empty(), "{case}");
    }
}

#[test]
fn a_copy_goes_over_the_network_and_its_processor_time_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (output, report) = bench(folder.path(), &["copy-read", "--rounds", "1"], &[]);
    assert!(output.status.success(), "{output:?}");
    let case = &report["cases"][0];
    assert!(case["cpu_us_per_io"].as_f64().unwrap() > 0.0, "{case}");
    assert!(case["peer"]["cpu_us_per_io"].as_f64().unwrap() > 0.0, "{case}");
    assert!(case["bound_by"].as_str().unwrap().contains("borrower's card"), "{case}");
    let shares = case["cpu_shares"].as_array().unwrap();
    assert_eq!(shares.len(), 5, "the copying process and both processes of both nodes: {case}");
}

#[test]
fn an_assignment_and_the_death_of_a_manager_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let cases = ["assign", "manager-kill", "shm-manager-kill"];
    let (output, report) = bench(folder.path(), &[&cases[..], &["--rounds", "2"]].concat(), &[]);
    assert!(output.status.success(), "{output:?}");
    let [assign, kills @ ..] = report["cases"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((assign["target"].as_f64(), assign["unit"].as_str()), (Some(500.0), Some("ms")));
    assert_eq!(assign["ours"]["rounds"].as_array().unwrap().len(), 2, "{assign}");
    assert!(assign["ours"]["min"].as_f64().unwrap() > 0.0, "{assign}");
    for case in kills {
        let [ours, peer] = medians(case);
        assert!(ours > 0.0 && peer > 0.0 && case["ratio"].is_number(), "{case}");
        for round in
            [&case["ours"], &case["peer"]].into_iter().flat_map(|it| it["rounds"].as_array().unwrap())
        {
            assert_eq!(round["latencies_us"].as_array().unwrap().len(), 17, "{round}");
        }
    }
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert!(page.contains("times between two answers"), "both distributions are plotted");
}

#[test]
fn a_peer_that_is_not_installed_is_named_and_counts_in_ci() {
    for (environment, code) in [(&[("PATH", "")][..], 0), (&[("PATH", ""), ("CI", "true")], 1)] {
        let folder = tempfile::tempdir().unwrap();
        let (output, report) = bench(folder.path(), &["native-udp-sealed-4k-read-qd1-vs-tls"], environment);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let skipped = report["cases"][0]["skipped"].as_str().unwrap();
        assert!(skipped.contains("nbdkit is not installed"), "{skipped}");
        assert!(report["cases"][0]["ratio"].is_null());
    }
}

/// Runs cases with a guest, unless there is no kit; in CI there is one.
fn guest_cases(cases: &[&str]) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let (output, report) = bench(folder.path(), &[cases, &["--rounds", "1"]].concat(), &[]);
    assert!(output.status.success(), "{output:?}");
    if let Some(why) = report["cases"][0]["skipped"].as_str() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        eprintln!("SKIPPED: {why}");
        return None;
    }
    Some(report)
}

#[test]
fn a_guest_has_the_borrowed_drive_beside_others() {
    let cases = ["guest-4k-read-qd1", "guest-register-read", "guest-map-4g"];
    let Some(report) = guest_cases(&cases) else { return };
    for (case, id) in report["cases"].as_array().unwrap().iter().zip(cases) {
        assert_eq!(case["id"], id);
        let [ours, peer] = medians(case);
        assert!(ours > 0.0 && peer > 0.0 && case["ratio"].is_number(), "{case}");
    }
    let traffic = &report["cases"][0];
    assert!(traffic["bound_by"].as_str().unwrap().contains("QEMU"), "{traffic}");
    let version = traffic["peer"]["version"].as_str().unwrap();
    assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
}

#[test]
fn without_a_kit_cases_with_guests_are_skipped_and_count_in_ci() {
    for (ci, code) in [("false", 0), ("true", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let environment = [("CAUSEWAY_GUEST", cache.to_str().unwrap()), ("CI", ci)];
        let (output, report) = bench(folder.path(), &["guest-4k-read-qd1", "guest-map-4g"], &environment);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        for case in report["cases"].as_array().unwrap() {
            let skipped = case["skipped"].as_str().unwrap();
            assert!(skipped.contains("fetch.sh"), "{skipped}");
            assert!(case["met"].is_null() && case["ratio"].is_null());
        }
    }
}
