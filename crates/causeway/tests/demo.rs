//! `causeway demo --vm` where there can be no virtual machine: it says why, and leaves nothing behind. With one:
//! `crates/campaign/tests/campaign/vm_demo.rs`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs it with an empty cache, and with programs before those of the system, each a shell script.
fn demo_vm(folder: &Path, programs: &[(&str, &str)], arguments: &[&str]) -> Output {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, script) in programs {
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(bin.join(name), Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(["demo", "--vm", "-o", "json"]).args(arguments).current_dir(folder);
    command
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("CAUSEWAY_GUEST", folder.join("cache"));
    command.env("TMPDIR", folder).env_remove("CAUSEWAY_GUEST_ACCEL").output().unwrap()
}

#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(words.iter().all(|word| said.contains(word)) && !said.contains("panicked"), "{said}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn what_keeps_a_guest_from_this_machine_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = "case $* in indextargets*) echo http://mirror.test/debian/ main ;; *) echo E: no network; exit 100 ;; \
                  esac";
    for (programs, words) in [
        (("uname", "echo aarch64"), ["this is aarch64", "x86_64"]),
        (("apt-get", "exit 1"), ["no Debian mirror", "apt sources"]),
        (("apt-get", mirror), ["E: no network", "update failed"]),
    ] {
        let output = demo_vm(folder.path(), &[programs], &[]);
        assert_refused(&output, &words);
        assert_refused(&output, &["there can be no virtual machine here", "without --vm"]);
        fs::remove_dir_all(folder.path().join("bin")).unwrap();
    }
    let left: Vec<_> =
        fs::read_dir(folder.path().join("cache")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_expected = |name: &str| name.starts_with("scripts-") || name.ends_with(".lock");
    assert!(left.iter().all(|name| is_expected(&name.to_string_lossy())), "{left:?}");
    assert!(fs::read_dir(folder.path()).unwrap().count() == 1, "the cache alone is left");
}

#[test]
fn a_manager_is_killed_under_load_and_the_next_one_takes_back_what_it_gave() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(["demo", "-o", "json", "--seed", "3", "--pace", "10"]).current_dir(folder.path());
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let phase = report["phases"].as_array().unwrap().last().unwrap();
    assert_eq!((&phase["name"], &phase["io_errors"]), (&"manager-kill".into(), &0.into()), "{report}");
    assert!(phase["killed_pid"].is_u64() && phase["bytes_verified"].as_u64().unwrap() > 0, "{phase}");
    assert!(phase["recovery_s"].is_f64() && phase["longest_gap_s"].is_f64(), "{phase}");
    let kinds: Vec<_> = report["events"].as_array().unwrap().iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds[kinds.len() - 4..], ["assigned", "kill", "manager-started", "unassigned"]);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "the page alone is left: {left:?}");
}

#[test]
fn a_kernel_that_is_gone_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guest/fetch.sh");
    let output =
        Command::new(script).arg("--where").env("CAUSEWAY_GUEST", folder.path().join("cache")).output();
    let kit = String::from_utf8(output.unwrap().stdout).unwrap();
    let kit = Path::new(kit.trim_end());
    fs::create_dir_all(kit.join("bin")).unwrap();
    fs::write(kit.join("bin/qemu-system-x86_64"), "").unwrap();
    assert_refused(&demo_vm(folder.path(), &[], &[]), &["kernel/vmlinuz is missing; remove that folder"]);
}

#[test]
fn a_wrong_image_is_refused_before_anything_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo_vm(folder.path(), &[("apt-get", "touch fetched")], &["--image", "none.img"]);
    assert_refused(&output, &["none.img"]);
    assert!(!folder.path().join("fetched").exists() && !folder.path().join("cache").exists());
}
