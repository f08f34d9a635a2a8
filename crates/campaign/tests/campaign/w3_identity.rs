//! W3, W4: whose a function is. A lender that was restarted keeps it for whom it belonged to, and nodes with one
//! identity, of which one is a copy of the other, are told apart: whoever lives keeps the drive.

use crate::events;
use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, binary, state_dir, status};
use campaign::load::{Load, Model, connect};
use campaign::process::{Process, poll_until, run};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{scale, tools};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// For what takes moments where nothing is amiss.
const LONG: Duration = Duration::from_secs(30);

fn world() -> (World, PathBuf) {
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 8 * MIB).unwrap();
    (world, image)
}

fn copy(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from).arg(to);
    run(command).unwrap();
}
/// Verified I/O goes on, and has gone on without an error.
fn goes_on(load: &Load) {
    load.wait_done(300, LONG).unwrap();
}

fn ends_well(load: Load, borrower: &mut Borrower) -> Model {
    let mut report = load.stop().unwrap();
    assert_eq!(
        (report.failed, report.failed_flushes, report.lost),
        (0, 0, None),
        "{}",
        borrower.process.tail()
    );
    report.model.verify(&mut connect(&borrower.socket).unwrap()).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    report.model
}

/// It ends with exit 3, and its log says this.
fn is_refused(borrower: Borrower, why: &str) {
    is_refused_with(borrower, &[why]);
}

/// The same, and its log says one of these.
fn is_refused_with(mut borrower: Borrower, whys: &[&str]) {
    let status = borrower.process.wait(LONG).unwrap();
    let tail = borrower.process.tail();
    assert_eq!(status.code(), Some(3), "{tail}");
    assert!(whys.iter().any(|why| tail.contains(why)), "{tail}");
}

#[test]
fn w3_a_restarted_lender_keeps_its_drive_from_who_waits_for_it() {
    for orderly in [false, true] {
        let (world, image) = world();
        let sources = [image.to_str().unwrap()];
        let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
        let line = lender.lines[0].clone();
        let mut first = Borrower::start_as(world.left(), "first", &line, &[]).unwrap();
        let load = Load::start(&first.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
        for round in 0..scale::kills(3) {
            goes_on(&load);
            if orderly {
                assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
            } else {
                lender.process.kill_tree().unwrap();
            }
            let name = format!("second-{round}");
            let second = Borrower::begin(world.left(), &name, &line, &[]).unwrap();
            lender = Lender::start(world.right(), &sources, &[]).unwrap();
            // Before or behind the first message of who has it.
            is_refused_with(second, &["nvme0 is kept for first", "nvme0 is in use by first"]);
            goes_on(&load);
        }
        ends_well(load, &mut first);
        // Given back, it may be borrowed by another one, also when the lender was restarted in between.
        lender.process.kill_tree().unwrap();
        let _lender = Lender::start(world.right(), &sources, &[]).unwrap();
        let mut second = Borrower::start_as(world.left(), "second", &line, &[]).unwrap();
        assert_eq!(second.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", second.process.tail());
    }
}

/// Prints what `causeway id` says of a node of this machine that is not running, and makes it one if it is none yet.
fn id_of(machine: &Machine, name: &str) -> String {
    let mut command = machine.command(binary().unwrap());
    command.args(["id", "--state-dir"]).arg(state_dir(machine, name));
    run(command).unwrap().trim().to_owned()
}

#[test]
fn w3_a_lender_with_a_list_lets_in_only_who_stands_there() {
    let (world, image) = world();
    let sources = [image.to_str().unwrap()];
    let [listed, other] = ["listed", "other"].map(|name| id_of(world.left(), name));
    let mut lender = Lender::start(world.right(), &sources, &["--allow", &listed]).unwrap();
    let line = lender.lines[0].clone();
    is_refused(Borrower::begin(world.left(), "other", &line, &[]).unwrap(), &format!("its id, {other},"));
    let mut borrower = Borrower::start_as(world.left(), "listed", &line, &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
    goes_on(&load);
    lender.process.kill_tree().unwrap();
    // The list comes to each card.
    lender = Lender::start(world.right(), &sources, &["--allow", &listed]).unwrap();
    goes_on(&load);
    is_refused(Borrower::begin(world.left(), "other", &line, &[]).unwrap(), &format!("its id, {other},"));
    ends_well(load, &mut borrower);
    // Who has it loses it to a list that does not name it.
    let borrower = Borrower::start_as(world.left(), "listed", &line, &[]).unwrap();
    lender.process.kill_tree().unwrap();
    let _lender = Lender::start(world.right(), &sources, &["--allow", &other]).unwrap();
    let mut taker = Borrower::start_as(world.left(), "other", &line, &[]).unwrap();
    assert_eq!(taker.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", taker.process.tail());
    drop(borrower);
}

/// Whoever has to do with two programs of one identity, the one with this status, says where both are.
fn are_named(seen: &mut Process, status: &Value) {
    let shared = events::next(seen, "identity-shared");
    assert_eq!(shared["node"], status["node"]["id"], "{shared}");
    assert!(shared["at"].is_string() && shared["other"].is_string(), "{shared}");
    assert_ne!(shared["at"], shared["other"], "{shared}");
}

#[test]
fn w4_a_copy_of_a_living_borrower_takes_nothing_from_it() {
    let (world, image) = world();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let line = &lender.lines[0];
    let mut first = Borrower::start_as(world.left(), "first", line, &[]).unwrap();
    let load = Load::start(&first.socket, Model::new(0, 4 * MIB, 2), 8).unwrap();
    goes_on(&load);
    let mut seen = events::follow(world.right(), "lender");
    copy(&state_dir(world.left(), "first"), &state_dir(world.right(), "first"));
    let copied = Borrower::begin(world.right(), "first", line, &[]).unwrap();
    is_refused(copied, "is a copy");
    are_named(&mut seen, &status(world.left(), "first").unwrap());
    goes_on(&load);
    ends_well(load, &mut first);
}

#[test]
fn w4_a_borrower_with_an_older_state_folder_gets_its_drive() {
    let (world, image) = world();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let line = &lender.lines[0];
    let folder = state_dir(world.left(), "first");
    let saved = world.left().dir().join("saved");
    // The third has the incarnation of the second once more, the fifth an older one than the fourth.
    let mut model = Model::new(0, 4 * MIB, 3);
    for life in 0..5 {
        let mut first = Borrower::start_as(world.left(), "first", line, &[]).unwrap();
        let load = Load::start(&first.socket, model, 8).unwrap();
        goes_on(&load);
        // One is killed, the next one ends in order.
        if life % 2 == 0 {
            model = load.stop().unwrap().model;
            first.process.kill_tree().unwrap();
        } else {
            model = ends_well(load, &mut first);
        }
        match life {
            0 => copy(&folder, &saved),
            2 | 4 => {}
            _ => {
                std::fs::remove_dir_all(&folder).unwrap();
                copy(&saved, &folder);
            }
        }
    }
}

/// By an older folder a lender does not know who has written to its image since: whoever has it is told, and nothing
/// that it keeps is put over that.
#[test]
fn w4_of_a_lender_with_an_older_state_folder_its_borrower_is_told() {
    let (world, image) = world();
    let sources = [image.to_str().unwrap()];
    let (folder, saved) = (state_dir(world.right(), "lender"), world.right().dir().join("saved"));
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let line = lender.lines[0].clone();
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    copy(&folder, &saved);
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let mut first = Borrower::start_as(world.left(), "first", &line, &[]).unwrap();
    let load = Load::start(&first.socket, Model::new(0, 4 * MIB, 4), 8).unwrap();
    goes_on(&load);
    lender.process.kill_tree().unwrap();
    let written = tools::sha256(&image).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    copy(&saved, &folder);
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let told = "the drive no longer holds what this node left there";
    poll_until("the borrower to be told", LONG, || Ok(first.process.tail().contains(told).then_some(())))
        .unwrap();
    drop(load.stop());
    assert_eq!(tools::sha256(&image).unwrap(), written, "what it kept is not written");
    // It has the drive, as it is now.
    let (mut client, mut data) = (connect(&first.socket).unwrap(), Vec::new());
    client.write(6 * MIB, &[7; 4096]).unwrap();
    client.read(6 * MIB, 4096, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    drop(client);
    first.process.terminate(STOP_TIMEOUT).unwrap();
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}

/// It has another image, and all that the living one is known by.
#[test]
fn w4_a_copy_of_a_living_lender_takes_nobody_from_it() {
    let (world, image) = world();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut first = Borrower::start_as(world.left(), "first", &lender.lines[0], &[]).unwrap();
    let load = Load::start(&first.socket, Model::new(0, 4 * MIB, 5), 8).unwrap();
    goes_on(&load);
    // Where the borrower is has to be in the copy.
    let files = || std::fs::read_dir(state_dir(world.right(), "lender")).unwrap().flatten();
    let has_holder = || files().any(|file| file.file_name().to_string_lossy().starts_with("holder."));
    poll_until("who has the drive", LONG, || Ok(has_holder().then_some(()))).unwrap();
    copy(&state_dir(world.right(), "lender"), &state_dir(world.left(), "lender"));
    let other = world.left().dir().join("disk.img");
    tools::empty_image(&other, 8 * MIB).unwrap();
    let before = tools::sha256(&other).unwrap();
    let mut seen = events::follow(world.left(), "first");
    let copied = Lender::start(world.left(), &[other.to_str().unwrap()], &[]).unwrap();
    // It has the table too, so it calls who has the function by that.
    are_named(&mut seen, &status(world.right(), "lender").unwrap());
    for _ in 0..5 {
        goes_on(&load);
        std::thread::sleep(Duration::from_millis(500));
    }
    let said = copied.process.tail();
    let mut copied = copied;
    copied.process.kill_tree().unwrap();
    goes_on(&load);
    ends_well(load, &mut first);
    assert_eq!(tools::sha256(&other).unwrap(), before, "nothing went there: {said}");
}
