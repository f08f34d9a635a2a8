//! T5: nodes killed at every point of start, handshake and stop, the whole node or its agent alone. Whatever they leave
//! behind, the next start works, finds the data, and no process stays.

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, borrow_command, lend_command};
use campaign::load::connect;
use campaign::process::{Process, family, is_running, poll_until, signal};
use campaign::world::{World, WorldConfig};
use campaign::{scale, tools};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(20);
/// A start that finds what a killed node left is hardly slower than a first one.
const START_MAX: Duration = Duration::from_secs(10);

/// Waits until a started process is the program itself, no longer one of those that lead into the machine.
fn wait_program(process: &Process) {
    let comm = format!("/proc/{}/comm", process.pid());
    poll_until("the program's start", LONG, || {
        let comm = std::fs::read_to_string(&comm).unwrap_or_default();
        Ok((comm.trim() == "causeway").then_some(()))
    })
    .unwrap();
}

/// Waits exactly so long: a sleep alone would round up to what the scheduler likes.
fn wait_exactly(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Kills a node with everything it started, or only its agent. Its card ends by itself then.
fn kill(process: &mut Process, agent_alone: bool) {
    let processes = family(process.pid());
    if agent_alone {
        process.kill().unwrap();
    } else {
        process.kill_tree().unwrap();
    }
    poll_until("the end of all processes of a killed node", LONG, || {
        Ok(processes.iter().all(|pid| !is_running(*pid)).then_some(()))
    })
    .unwrap();
}

/// The moments: every half millisecond until a start is surely over, so many times.
fn moments(short: u32) -> impl Iterator<Item = (u32, Duration)> {
    (0..scale::kills(short)).map(|number| (number, Duration::from_micros(500) * (number % 60)))
}

fn world() -> (World, String) {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, MIB).unwrap();
    let image = image.to_str().unwrap().to_owned();
    (world, image)
}

#[test]
fn t5_a_lender_killed_while_it_starts_or_stops() {
    let (world, image) = world();
    let machine = world.right();
    let mut line = None;
    for (number, moment) in moments(60) {
        let command = lend_command(machine, "lender", &[&image], &[]).unwrap();
        let mut process = machine.spawn("lender", command).unwrap();
        wait_program(&process);
        wait_exactly(moment);
        kill(&mut process, number % 3 == 0);

        let start = Instant::now();
        let mut lender = Lender::start(machine, &[&image], &[]).unwrap();
        let took = start.elapsed();
        assert!(took < START_MAX, "killed {moment:?} after its start; the next took {took:?}");
        let line = line.get_or_insert_with(|| lender.lines[0].clone());
        assert_eq!(*line, lender.lines[0], "killed {moment:?} after its start, it has another line");
        signal(lender.process.pid(), Signal::TERM).unwrap();
        wait_exactly(moment / 2);
        kill(&mut lender.process, number % 3 == 1);
    }
}

#[test]
fn t5_a_borrower_killed_while_it_starts_or_stops() {
    let (world, image) = world();
    let lender = Lender::start(world.right(), &[&image], &[]).unwrap();
    let line = &lender.lines[0];
    let machine = world.left();
    let mut content = vec![0; 4096];
    let mut found = Vec::new();
    for (number, moment) in moments(60) {
        let mut process =
            machine.spawn("borrower", borrow_command(machine, "borrower", line, &[]).unwrap()).unwrap();
        wait_program(&process);
        wait_exactly(moment);
        kill(&mut process, number % 3 == 0);

        let start = Instant::now();
        let mut borrower = Borrower::start(machine, line, &[]).unwrap();
        let took = start.elapsed();
        assert!(took < START_MAX, "killed {moment:?} after its start; the next took {took:?}");
        let mut client = connect(&borrower.socket).unwrap();
        client.read(0, 4096, &mut found).unwrap();
        assert!(found == content, "what the last one wrote is gone, {moment:?}");
        content.fill((number % 255 + 1) as u8);
        client.write(0, &content).unwrap();
        signal(borrower.process.pid(), Signal::TERM).unwrap();
        wait_exactly(moment / 2);
        kill(&mut borrower.process, number % 3 == 1);
    }
    // None of them keeps the drive: another borrower is only refused while one of them lives.
    let mut last = Borrower::start(machine, line, &[]).unwrap();
    assert_eq!(last.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", last.process.tail());
    Borrower::start_as(machine, "another", line, &[]).unwrap();
}

#[test]
fn t5_either_side_killed_in_the_middle_of_the_handshake() {
    let (world, image) = world();
    let mut lender = Lender::start(world.right(), &[&image], &[]).unwrap();
    let line = lender.lines[0].clone();
    for (number, moment) in moments(30) {
        // The lender dies under a borrower that is shaking hands, and comes back.
        let mut borrower = Borrower::begin(world.left(), "borrower", &line, &[]).unwrap();
        wait_program(&borrower.process);
        wait_exactly(moment);
        kill(&mut lender.process, number % 2 == 0);
        lender = Lender::start(world.right(), &[&image], &[]).unwrap();
        let start = Instant::now();
        borrower.wait_usable(LONG).unwrap_or_else(|error| {
            panic!("lender killed {moment:?} after the borrower's start: {error}\n{}", lender.process.tail())
        });
        connect(&borrower.socket).unwrap().write(0, &[number as u8; 4096]).unwrap();
        let took = start.elapsed();
        assert!(
            took < START_MAX,
            "lender killed {moment:?} after the borrower's start: usable after {took:?}"
        );
        kill(&mut borrower.process, number % 2 == 1);
    }
}

#[test]
fn t5_killed_as_soon_as_a_line_appears_in_the_log() {
    let (world, image) = world();
    let debug = ["--log-level", "debug"];
    let mut lender = Lender::start(world.right(), &[&image], &debug).unwrap();
    let line = lender.lines[0].clone();
    for words in ["", "drive is usable", "nbd+unix", "ending"] {
        let mut borrower = Borrower::begin(world.left(), "borrower", &line, &debug).unwrap();
        if words == "ending" {
            borrower.wait_usable(LONG).unwrap();
            signal(borrower.process.pid(), Signal::TERM).unwrap();
        }
        borrower.process.wait_log(words, LONG, |line| line.contains(words)).unwrap();
        kill(&mut borrower.process, false);
        let mut next = Borrower::start(world.left(), &line, &[]).unwrap();
        assert_eq!(
            next.process.terminate(STOP_TIMEOUT).unwrap(),
            0,
            "after {words:?}: {}",
            next.process.tail()
        );
    }
    for words in ["causeway://", "ending"] {
        if words == "ending" {
            signal(lender.process.pid(), Signal::TERM).unwrap();
        }
        lender.process.wait_log(words, LONG, |line| line.contains(words)).unwrap();
        kill(&mut lender.process, false);
        lender = Lender::start(world.right(), &[&image], &debug).unwrap();
        assert_eq!(lender.lines[0], line, "after {words:?}");
    }
}
