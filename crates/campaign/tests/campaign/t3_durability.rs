//! T3: the lender's disk forgets what was not synchronised, and the whole lending node is killed with `kill -9`.
//! Nothing that was answered is lost while the borrower lives, nothing that was flushed or written with FUA in any
//! case, and the borrower connects again by itself.

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, binary, status};
use campaign::load::{Load, Model, connect};
use campaign::lossy::LossyFs;
use campaign::nbd_client::Request;
use campaign::process::{Process, family, kill, poll_until, run, signal};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{Error, scale, tools};
use rustix::process::Signal;
use std::path::PathBuf;
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
        model = report.model;
        model
            .verify(&mut connect(&borrower.socket)?)
            .map_err(|error| Error::unexpected(format!("round {round}, seed {seed}: {error}")))?;
    }
    Ok(forgotten)
}

#[test]
fn t3_nothing_flushed_is_lost_with_the_lender() {
    let seed = scale::first_seed();
    let forgotten = rounds(scale::kills(8), seed, |_| {}).unwrap();
    assert!(forgotten > 0, "the disk forgot nothing: this test shows nothing");
    scale::report(&format!("t3: seed {seed}, {forgotten} pages forgotten"));
}

#[test]
fn t3_a_disk_that_lies_about_flushes_is_found_out() {
    let found = rounds(4, scale::first_seed(), |disk| disk.lie().unwrap());
    let error = found.expect_err("flushed writes were forgotten, and nobody noticed").to_string();
    assert!(error.contains(" in place of version "), "{error}");
}

/// A write is answered, then the lender dies and its disk forgets the write. The borrower has kept it and writes it
/// again, so that it is there for every read, and a flush that is answered with success after that says that it is
/// durable.
fn a_flush_across_the_loss(sent_while_away: bool) {
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

/// A borrower is asleep while its lender restarts and another borrower uses the drive. What the first one had not
/// flushed must not be written over the other's data, and its next flush says that it is gone.
#[test]
fn t3_unflushed_writes_are_not_written_over_another_borrowers_data() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = &empty_disk(&world, "disk.img");
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
    // The drive is kept for the sleeper. An operator gives it back in its name, with a copy of its state folder.
    let state = |machine: &Machine| machine.dir().join("state").join("borrower");
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(state(world.left())).arg(state(world.right()));
    run(copy).unwrap();
    let mut instead = Borrower::start(world.right(), &line, &[]).unwrap();
    assert_eq!(instead.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", instead.process.tail());
    let mut other = Borrower::start_as(world.left(), "other", &line, &[]).unwrap();
    let mut theirs = connect(&other.socket).unwrap();
    theirs.write(0, &[3; 4096]).unwrap();
    theirs.flush().unwrap();
    assert_eq!(other.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", other.process.tail());

    processes.iter().for_each(|pid| signal(*pid, Signal::CONT).unwrap());
    let mut data = Vec::new();
    poll_until("the sleeper's client to be disconnected: its drive is another one now", LONG, || {
        Ok(client.read(0, 4096, &mut data).is_err().then_some(()))
    })
    .unwrap();
    let mut client = connect(&sleeper.socket).unwrap();
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!((data[0], data[4095]), (3, 3), "an old write came back over another borrower's");
    client.flush().expect_err("the flush says nothing of the writes that are gone");
    client.flush().expect("it says so once");
    client.write(4096, &[4; 4096]).unwrap();
    assert_eq!(sleeper.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", sleeper.process.tail());
    assert!(
        sleeper.process.tail().contains("no longer holds what this node left"),
        "{}",
        sleeper.process.tail()
    );
    drop(lender);
}

/// A borrower that returns to a lender which nobody else has used keeps its unflushed writes, whoever restarted.
#[test]
fn t3_a_restarted_lender_remembers_its_borrower() {
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
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = &empty_disk(&world, "disk.img");
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

/// A borrower of two drives whose card is killed while it ends: one drive is given back twice, the other not at all.
#[test]
fn t3_a_drive_given_back_twice_does_not_stand_for_another() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let (alive, dead) = (empty_disk(&world, "alive.img"), empty_disk(&world, "dead.img"));
    let alive =
        Lender::start_as(world.right(), "alive", &[&alive], &["--listen", &listen(&world, 7500)]).unwrap();
    let mut dead =
        Lender::start_as(world.right(), "dead", &[&dead], &["--listen", &listen(&world, 7501)]).unwrap();
    let (mut borrower, edges) = borrow_all(&world, &[&alive.lines[0], &dead.lines[0]]);
    let mut client = connect(&edges[1]).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    dead.process.kill_tree().unwrap();
    signal(borrower.pid(), Signal::TERM).unwrap();
    borrower.wait_log("one drive given back", LONG, |line| line.contains("loan was given back")).unwrap();
    let card = status(world.right(), "all").unwrap()["cards"][0]["pid"].as_u64().unwrap();
    kill(card as u32).unwrap();
    let ended = borrower.wait(STOP_TIMEOUT).unwrap().code();
    assert_eq!(ended, Some(1), "an unflushed write is lost: {}", borrower.tail());
}

/// An image of the lenders' machine, full of zeroes.
fn empty_disk(world: &World, name: &str) -> String {
    let path = world.right().dir().join(name);
    tools::empty_image(&path, 16 * MIB).unwrap();
    path.to_str().unwrap().to_owned()
}

fn listen(world: &World, port: u16) -> String {
    format!("{}:{port}", world.right().addresses()[0])
}

/// A node that borrows all of them, each served at its place's number.
fn borrow_all(world: &World, lines: &[&str]) -> (Process, Vec<PathBuf>) {
    // On the lenders' machine, because the way between the two knows one port of each.
    let machine = world.right();
    let mut config = "name = \"all\"\nstate_dir = \"all\"\n".to_owned();
    for (index, line) in lines.iter().enumerate() {
        config += &format!("[[loans]]\nline = \"{line}\"\nnbd = \"{index}.sock\"\n");
    }
    let path = machine.dir().join("all.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.arg("node").arg("--config").arg(path);
    let node = machine.spawn("all", command).unwrap();
    let edges: Vec<_> = (0..lines.len()).map(|index| machine.dir().join(format!("{index}.sock"))).collect();
    for edge in &edges {
        poll_until("every edge", LONG, || Ok(connect(edge).is_ok().then_some(()))).unwrap();
    }
    (node, edges)
}

/// Eight drives with many unflushed writes are lost at once: no single step of the card has to forget them all.
#[test]
fn t3_many_drives_are_given_up_together() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let images: Vec<_> = (0..8).map(|index| empty_disk(&world, &format!("{index}.img"))).collect();
    let sources: Vec<_> = images.iter().map(String::as_str).collect();
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let lines: Vec<_> = lender.lines.iter().map(String::as_str).collect();
    let (mut borrower, edges) = borrow_all(&world, &lines);
    let data = vec![7; 128 << 10];
    let mut clients: Vec<_> = edges.iter().map(|edge| connect(edge).unwrap()).collect();
    for client in &mut clients {
        (0..60).for_each(|index| client.write(index * data.len() as u64, &data).unwrap());
    }
    lender.process.kill_tree().unwrap();
    for client in &mut clients {
        for index in 0..30 {
            client
                .submit(Request::Write { offset: index * data.len() as u64, data: &data, fua: false })
                .unwrap();
        }
    }
    signal(borrower.pid(), Signal::TERM).unwrap();
    assert_eq!(borrower.wait(STOP_TIMEOUT).unwrap().code(), Some(1), "{}", borrower.tail());
    assert!(!borrower.tail().contains("card recovered"), "a card has died: {}", borrower.tail());
}

/// Who ends before its drive was usable leaves it to others.
#[test]
fn t3_a_borrower_that_ends_at_once_leaves_nothing_behind() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let lender = Lender::start(world.right(), &[&empty_disk(&world, "disk.img")], &[]).unwrap();
    let mut orderly = 0;
    for round in 0..200 {
        let name = format!("early{round}");
        let mut early = Borrower::begin(world.left(), &name, &lender.lines[0], &[]).unwrap();
        // Each a little later, so that all moments of a start come in turn.
        std::thread::sleep(Duration::from_millis(5 * round));
        // Before it listens to signals it dies of them, and has met nobody either.
        if let Ok(ended) = early.process.terminate(STOP_TIMEOUT) {
            assert_eq!(ended, 0, "{}", early.process.tail());
            orderly += 1;
        }
        if orderly == 8 {
            break;
        }
    }
    assert_eq!(orderly, 8, "none was told to end while it began");
    let mut next = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    assert_eq!(next.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", next.process.tail());
}

/// Memory is new in each life of a lender: whoever had used it learns that, and takes no zeroes for its data.
#[test]
fn t3_memory_that_is_gone_disconnects_its_clients() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let mut lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    lender.process.kill_tree().unwrap();
    lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let mut data = Vec::new();
    client.read(0, 4096, &mut data).expect_err("zeroes were taken for what had been flushed");
    poll_until("a new client to be served", LONG, || {
        Ok(connect(&borrower.socket)
            .is_ok_and(|mut client| client.read(0, 4096, &mut Vec::new()).is_ok())
            .then_some(()))
    })
    .unwrap();
    drop(lender);
}

/// A client that closes its half of the connection without a farewell still gets its replies.
#[test]
fn t3_a_half_closed_client_gets_its_replies() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    for _ in 0..20 {
        let mut client = connect(&borrower.socket).unwrap();
        for block in 0..64 {
            client.submit(Request::Read { offset: block * 4096, length: 4096 }).unwrap();
        }
        client.end_requests().unwrap();
        let mut data = Vec::new();
        for _ in 0..64 {
            client.next_reply(&mut data).unwrap().result.unwrap();
        }
    }
}
