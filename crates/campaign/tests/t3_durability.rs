//! T3: the lender's disk forgets what was not synchronised, and the whole lending node is killed with `kill -9`. Nothing
//! that was answered is lost while the borrower lives, nothing that was flushed or written with FUA in any case, and the borrower
//! connects again by itself.

// The whole file is a test; an unwrap in one of its helpers is as good as one in a test function.
#![allow(clippy::unwrap_used)]

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT};
use campaign::load::{Load, Model, Since, connect};
use campaign::lossy::LossyFs;
use campaign::nbd_client::Request;
use campaign::process::{family, poll_until, signal};
use campaign::world::{World, WorldConfig};
use campaign::{Error, scale, tools};
use rustix::process::Signal;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// Rounds of load, death of the lender, loss of what was volatile, restart; how many pages were lost in all.
fn rounds(count: u32, seed: u64, prepare: impl Fn(&mut LossyFs)) -> Result<u64, Error> {
    let world = World::new(&WorldConfig { seed, rails: 1, ..WorldConfig::default() })?;
    let mut disk = LossyFs::mount(world.right(), 16 * MIB)?;
    prepare(&mut disk);
    let image = disk.image().to_str().unwrap().to_owned();
    let mut lender = Lender::start(world.right(), &[&image], &[])?;
    let line = lender.lines[0].clone();
    let borrower = Borrower::start(world.left(), &line, &[])?;
    let mut model = Model::new(0, 4 * MIB, seed);
    let mut forgotten = 0;
    for round in 0..count {
        let load = Load::start(&borrower.socket, model, 8)?;
        load.wait_done(300 + 37 * u64::from(round), LONG)?;
        lender.process.kill_tree()?;
        load.begin_stop();
        forgotten += disk.forget()?;
        lender = Lender::start(world.right(), &[&image], &[])?;
        assert_eq!(lender.lines[0], line);
        let report = load.stop()?;
        assert_eq!((report.failed, report.lost), (0, None), "requests wait for the lender");
        assert!(report.model.durable_blocks() > 0, "nothing was flushed");
        model = report.model;
        model
            .verify(&mut connect(&borrower.socket)?, Since::Nothing)
            .map_err(|error| Error::unexpected(format!("round {round}, seed {seed}: {error}")))?;
    }
    Ok(forgotten)
}

#[test]
fn t3_nothing_flushed_is_lost_with_the_lender() {
    let _exclusive = scale::exclusive();
    let seed = scale::first_seed();
    let forgotten = rounds(scale::kills(8), seed, |_| {}).unwrap();
    assert!(forgotten > 0, "the disk forgot nothing: this test shows nothing");
    scale::report(&format!("t3: seed {seed}, {forgotten} pages forgotten"));
}

#[test]
fn t3_a_disk_that_lies_about_flushes_is_found_out() {
    let _exclusive = scale::exclusive();
    let found = rounds(4, scale::first_seed(), |disk| disk.lie().unwrap());
    let error = found.expect_err("flushed writes were forgotten, and nobody noticed").to_string();
    assert!(error.contains("since Nothing"), "{error}");
}

/// A write is answered, then the lender dies and its disk forgets the write. The borrower has kept it and writes it again,
/// so that it is there for every read, and a flush that is answered with success after that says that it is durable.
fn a_flush_across_the_loss(sent_while_away: bool) {
    let _exclusive = scale::exclusive();
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let mut disk = LossyFs::mount(world.right(), MIB).unwrap();
    let image = disk.image().to_str().unwrap().to_owned();
    let mut lender = Lender::start(world.right(), &[&image], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.write(4096, &[2; 4096]).unwrap();
    lender.process.kill_tree().unwrap();
    assert_eq!(disk.forget().unwrap(), 1, "the second write was not synchronised");
    if sent_while_away {
        client.submit(Request::Flush).unwrap();
    }
    lender = Lender::start(world.right(), &[&image], &[]).unwrap();
    let mut data = Vec::new();
    if !sent_while_away {
        // The borrower has connected again.
        client.read(0, 4096, &mut data).unwrap();
        client.submit(Request::Flush).unwrap();
    }
    client
        .next_reply(&mut data)
        .unwrap()
        .result
        .expect("the write is kept, so the flush does not have to fail");
    client.read(4096, 4096, &mut data).unwrap();
    assert_eq!(data, [2; 4096], "an answered write is lost though its borrower lives");
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!(data, [1; 4096], "what was flushed before stays");
    // And it is durable: what the disk forgets now is nothing.
    lender.process.kill_tree().unwrap();
    assert_eq!(disk.forget().unwrap(), 0, "the flush was answered before the disk had everything");
}

#[test]
fn t3_a_flush_sent_while_the_lender_is_away_does_not_lie() {
    a_flush_across_the_loss(true);
}

#[test]
fn t3_a_flush_sent_after_the_lender_came_back_does_not_lie() {
    a_flush_across_the_loss(false);
}

/// A borrower is asleep while its lender restarts and another borrower uses the drive. What the first one had not flushed
/// must not be written over the other's data, and its next flush says that it is gone.
#[test]
fn t3_unflushed_writes_are_not_written_over_another_borrowers_data() {
    let _exclusive = scale::exclusive();
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let image = image.to_str().unwrap();
    let mut lender = Lender::start(world.right(), &[image], &[]).unwrap();
    let line = lender.lines[0].clone();
    let mut sleeper = Borrower::start(world.left(), &line, &[]).unwrap();
    let mut client = connect(&sleeper.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.write(8192, &[1; 4096]).unwrap();
    let processes = family(sleeper.process.pid());
    processes.iter().for_each(|pid| signal(*pid, Signal::STOP).unwrap());

    lender.process.kill_tree().unwrap();
    lender = Lender::start(world.right(), &[image], &[]).unwrap();
    let mut other = Borrower::start_as(world.left(), "other", &line, &[]).unwrap();
    let mut theirs = connect(&other.socket).unwrap();
    theirs.write(0, &[3; 4096]).unwrap();
    theirs.flush().unwrap();
    assert_eq!(other.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", other.process.tail());

    processes.iter().for_each(|pid| signal(*pid, Signal::CONT).unwrap());
    let mut data = Vec::new();
    poll_until("the sleeper to be served again", LONG, || {
        Ok(client.read(0, 4096, &mut data).is_ok().then_some(()))
    })
    .unwrap();
    assert_eq!((data[0], data[4095]), (3, 3), "an old write came back over another borrower's");
    client.flush().expect_err("the flush says nothing of the writes that are gone");
    client.flush().expect("it says so once");
    client.write(4096, &[4; 4096]).unwrap();
    assert_eq!(sleeper.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", sleeper.process.tail());
    assert!(sleeper.process.tail().contains("another node has used the drive"), "{}", sleeper.process.tail());
    drop(lender);
}

/// A borrower that returns to a lender which nobody else has used keeps its unflushed writes, whoever restarted.
#[test]
fn t3_a_restarted_lender_remembers_its_borrower() {
    let _exclusive = scale::exclusive();
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let mut disk = LossyFs::mount(world.right(), MIB).unwrap();
    let image = disk.image().to_str().unwrap().to_owned();
    let mut lender = Lender::start(world.right(), &[&image], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    let mut data = Vec::new();
    for round in 1..4 {
        client.write(0, &[round; 4096]).unwrap();
        lender.process.kill_tree().unwrap();
        disk.forget().unwrap();
        lender = Lender::start(world.right(), &[&image], &[]).unwrap();
        client.read(0, 4096, &mut data).unwrap();
        assert_eq!(data, [round; 4096]);
        client.flush().unwrap();
    }
}

/// The lender is away when the borrower is told to end: it says whether anything is lost with it.
#[test]
fn t3_an_orderly_end_says_what_is_lost() {
    let _exclusive = scale::exclusive();
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let image = image.to_str().unwrap();
    for (is_flushed, exit) in [(true, 4), (false, 1)] {
        let mut lender = Lender::start(world.right(), &[image], &[]).unwrap();
        let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
        let mut client = connect(&borrower.socket).unwrap();
        client.write(0, &[1; 4096]).unwrap();
        if is_flushed {
            client.flush().unwrap();
        }
        lender.process.kill_tree().unwrap();
        let ended = borrower.process.terminate(STOP_TIMEOUT).unwrap();
        assert_eq!(ended, exit, "flushed: {is_flushed}; {}", borrower.process.tail());
    }
}
