//! W4: either side restarted, in order or by `kill -9`, while verified I/O goes on. The same command gives the same
//! line, the borrower connects again by itself, requests wait and succeed; only a lender that is away for longer than
//! `--io-timeout` costs errors, and those end when it is back.

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, number, status};
use campaign::gate;
use campaign::load::{Load, Model, connect};
use campaign::process::poll_until;
use campaign::world::{World, WorldConfig};
use campaign::{scale, tools};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const REGION: u64 = 4 * MIB;
const DEPTH: usize = 8;
/// Until requests succeed again after a restart: far below the 30 s for which they may wait.
const RESUMED: Duration = Duration::from_secs(15);

fn world(seed: u64) -> (World, PathBuf) {
    let world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    (world, image)
}

#[test]
fn w4_a_lender_restarted_under_load_costs_no_error() {
    let seed = scale::first_seed();
    let (world, image) = world(seed);
    let sources = [image.to_str().unwrap()];
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let line = lender.lines[0].clone();
    let mut borrower = Borrower::start(world.left(), &line, &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, REGION, seed), DEPTH).unwrap();
    let mut longest = Duration::ZERO;
    for round in 0..scale::kills(4) {
        load.wait_done(500, RESUMED).unwrap();
        let before = number(&status(world.right(), "lender").unwrap(), "/node/incarnation").unwrap();
        if round % 2 == 0 {
            lender.process.kill_tree().unwrap();
        } else {
            assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
        }
        load.take_longest_gap();
        lender = Lender::start(world.right(), &sources, &[]).unwrap();
        assert_eq!(lender.lines[0], line, "the same command prints the same line");
        load.wait_done(500, RESUMED).unwrap();
        longest = longest.max(load.take_longest_gap());
        let after = number(&status(world.right(), "lender").unwrap(), "/node/incarnation").unwrap();
        assert!(after > before, "a restarted node is a new incarnation");
    }
    let mut report = load.stop().unwrap();
    assert_eq!(
        (report.failed, report.failed_flushes, report.lost),
        (0, 0, None),
        "requests wait for a lender that comes back"
    );
    report.model.verify(&mut connect(&borrower.socket).unwrap()).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    scale::report(&format!("w4: lender restarted, {} requests, longest gap {longest:?}", report.done));
}

/// Its line is not true any more, and nobody tells the borrower: the lender knows where that is, and calls it.
#[test]
fn w2_a_lender_killed_that_comes_back_on_another_port_calls_its_borrower() {
    let seed = scale::first_seed();
    let (world, image) = world(seed);
    let sources = [image.to_str().unwrap()];
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let line = lender.lines[0].clone();
    let mut borrower = Borrower::start(world.left(), &line, &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, REGION, seed), DEPTH).unwrap();
    load.wait_done(500, RESUMED).unwrap();
    let state = world.right().dir().join("state/lender");
    poll_until("the lender to keep where its borrower is", RESUMED, || {
        let names = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names = names.map(|name| name.into_string().unwrap());
        Ok(names.any(|name| name.starts_with("holder.")).then_some(()))
    })
    .unwrap();
    lender.process.kill_tree().unwrap();
    let elsewhere: Vec<String> =
        world.right().addresses().iter().map(|address| format!("{address}:7555")).collect();
    let listen: Vec<&str> = elsewhere.iter().flat_map(|address| ["--listen", address]).collect();
    lender = Lender::start(world.right(), &sources, &listen).unwrap();
    assert!(lender.lines[0].contains(":7555") && lender.lines[0] != line, "it has another line");
    load.wait_done(500, RESUMED).unwrap();
    let seen = status(world.left(), "borrower").unwrap();
    assert!(seen["rails"][0]["peer"].as_str().unwrap().ends_with(":7555"), "{}", seen["rails"]);
    load.stop_whole(&borrower.socket).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
}

#[test]
fn w4_a_lender_away_for_longer_than_the_io_timeout_costs_errors_until_it_is_back() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let (world, image) = world(seed);
    let sources = [image.to_str().unwrap()];
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &["--io-timeout", "3"]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, REGION, seed), DEPTH).unwrap();
    load.wait_done(500, RESUMED).unwrap();
    lender.process.kill_tree().unwrap();
    let gone = Instant::now();
    let failed = poll_until("requests to fail", Duration::from_secs(20), || {
        Ok((load.failed() >= DEPTH as u64).then(|| gone.elapsed()))
    })
    .unwrap();
    assert!(
        failed >= Duration::from_millis(2_500),
        "requests wait for --io-timeout, these failed after {failed:?}"
    );
    assert!(failed <= Duration::from_secs(8), "requests of 3 s failed after {failed:?} only");
    lender = Lender::start(world.right(), &sources, &[]).unwrap();
    load.wait_done(500, RESUMED).unwrap();
    let failures = load.failed();
    load.wait_done(500, RESUMED).unwrap();
    assert_eq!(load.failed(), failures, "no request fails once they succeed again");
    let mut report = load.stop().unwrap();
    assert_eq!(report.lost, None, "errors do not close the connection");
    report.model.verify(&mut connect(&borrower.socket).unwrap()).unwrap();
    drop(lender);
}

#[test]
fn w4_a_borrower_restarted_finds_everything_it_had_written() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let (world, image) = world(seed);
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut model = Model::new(0, REGION, seed);
    for round in 0..scale::kills(4) {
        let start = Instant::now();
        let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
        let started = start.elapsed();
        assert!(started < Duration::from_secs(5), "the borrower was usable after {started:?} only");
        model.verify(&mut connect(&borrower.socket).unwrap()).unwrap();
        let load = Load::start(&borrower.socket, model, DEPTH).unwrap();
        load.wait_done(500, RESUMED).unwrap();
        if round % 2 == 0 {
            borrower.process.kill_tree().unwrap();
        } else {
            assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
        }
        let report = load.stop().unwrap();
        assert!(report.lost.is_some(), "the connection ends with the borrower");
        model = report.model;
    }
}
