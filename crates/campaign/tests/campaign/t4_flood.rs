//! T4: an attacker who sees every frame of a live channel sends forgeries made from them, 10,000 a second, both ways:
//! replayed, forged, truncated, oversized, of another version, under another key, false first messages and noise. They
//! are counted, I/O goes on, and memory stays.

use campaign::causeway::{Borrower, Lender, card, number, status, wait_standby};
use campaign::load::{Load, Model};
use campaign::process::{anonymous_kib, family, poll_until};
use campaign::relay::RelayStats;
use campaign::relay::flood::GENERAL;
use campaign::world::{Direction, Machine, World, WorldConfig};
use campaign::{gate, scale};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);
/// Longer than a newcomer asks.
const PATIENT: Duration = Duration::from_secs(200);
/// Over all wires.
const PER_SECOND: u64 = 10_000;
/// Of so many messages of a flood one request at least is answered beside them: a machine that is busy with something
/// else has fewer of both.
const MESSAGES_PER_REQUEST: u64 = 500;
const GROWTH_MAX_KIB: u64 = 4096;
const REASONS: [&str; 4] = ["dropped_auth", "dropped_replay", "dropped_version", "dropped_malformed"];

#[test]
fn t4_a_flood_of_forgeries_is_counted_and_harms_nobody() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let mut world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    // A first channel under another key leaves the attacker true frames of it.
    run_a_first_channel(&world);
    world.relay().keep_as_foreign().unwrap();

    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, seed), 8).unwrap();
    load.wait_done(2000, LONG).unwrap();
    set_flood(&mut world, PER_SECOND / 4);
    // Buffers that are used for the first time are not what is looked for.
    flooded(&mut world, &load, 2 * PER_SECOND);
    let before = residents(&world, &lender, &borrower);
    load.take_longest_gap();
    let served = flooded(&mut world, &load, PER_SECOND * if scale::is_soak() { 120 } else { 10 });
    let after = residents(&world, &lender, &borrower);
    let gap = load.take_longest_gap();
    set_flood(&mut world, 0);
    served.assert_enough(gap);

    assert_eq!(before.len(), 6, "two agents, their cards and those that stand by, the same before and after");
    for ((pid, before), (still, after)) in before.iter().zip(&after) {
        assert_eq!(pid, still, "a process died of it");
        assert!(*after < before + GROWTH_MAX_KIB, "process {pid} grew from {before} to {after} KiB");
    }
    let made = world.relay().stats().unwrap().floods;
    let sent: u64 = made.iter().sum();
    let left = dropped(world.left(), "borrower");
    let right = dropped(world.right(), "lender");
    for (reason, counts) in REASONS.iter().zip(left.iter().zip(&right)) {
        // How a kind is counted is the receiver's matter: a truncated frame may still be a whole header and a wrong
        // tag.
        let some = sent / GENERAL as u64 / 20;
        assert!(*counts.0 > some && *counts.1 > some, "{reason}: {counts:?} of {sent} ({made:?})");
    }
    let counted: u64 = left.iter().chain(&right).sum();
    assert!(counted > sent / 2, "{counted} of {sent} were counted");

    load.stop_whole(&borrower.socket).unwrap();
    for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
        let status = status(machine, name).unwrap();
        assert_eq!(card(&status).unwrap().restarts, 0, "the card of {name} died of it");
        assert_eq!(
            number(&status, "/counters/handshakes").unwrap(),
            1,
            "no forgery began a channel: {status}"
        );
    }
    scale::report(&format!(
        "t4: seed {seed}, {sent} forgeries, dropped {left:?} {right:?}, {served:?}, longest gap {gap:?}"
    ));
}

/// T5: messages of handshakes, true ones that are repeated, changed ones and such as come back to who has sent them,
/// 10,000 a second from a hundred addresses, both ways. Nobody loses a loan, a newcomer is let in meanwhile, processes
/// do not grow, and no answer is larger than what it answers.
#[test]
fn t5_a_flood_of_calls_keeps_nobody_out_and_takes_no_memory() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let mut world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M", "ram:16M"], &[]).unwrap();
    // True first messages of lives that are over.
    for _ in 0..4 {
        let mut former = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
        former.process.kill_tree().unwrap();
    }
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, seed), 8).unwrap();
    load.wait_done(2000, LONG).unwrap();
    set_calls(&mut world, PER_SECOND / 4);
    flooded(&mut world, &load, 2 * PER_SECOND);
    let before = residents(&world, &lender, &borrower);
    load.take_longest_gap();
    let served = flooded(&mut world, &load, PER_SECOND * if scale::is_soak() { 120 } else { 10 });
    let after = residents(&world, &lender, &borrower);
    // Whoever wants another function has it, though the lender has so much to look at.
    // A busy machine has few of its calls looked at, and it asks for longer than others.
    let asks = ["--io-timeout", "180"];
    let mut newcomer = Borrower::begin(world.left(), "newcomer", &lender.lines[1], &asks).unwrap();
    newcomer.wait_usable(PATIENT).unwrap();
    let gap = load.take_longest_gap();
    set_calls(&mut world, 0);
    served.assert_enough(gap);
    // Who sends from an address that it does not have cannot have others flooded by that.
    let stats = world.relay().stats().unwrap();
    let (calls, answers): (u64, u64) = (stats.floods.iter().sum(), stats.answers);
    assert!(answers <= calls, "{answers} answers to {calls} calls");
    let RelayStats { longest_answer, longest_call, .. } = stats;
    assert!(longest_answer <= longest_call, "an answer has {longest_answer} bytes, a call {longest_call}");

    assert_eq!(before.len(), 6, "two agents, their cards and those that stand by, the same before and after");
    for ((pid, before), (still, after)) in before.iter().zip(&after) {
        assert_eq!(pid, still, "a process died of it");
        assert!(*after < before + GROWTH_MAX_KIB, "process {pid} grew from {before} to {after} KiB");
    }
    assert_eq!(newcomer.process.terminate(LONG).unwrap(), 0);
    load.stop_whole(&borrower.socket).unwrap();
    for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
        let status = status(machine, name).unwrap();
        assert_eq!(card(&status).unwrap().restarts, 0, "the card of {name} died of it");
    }
    scale::report(&format!(
        "t5: seed {seed}, {served:?}, {answers} answers, longest gap {gap:?} among the calls"
    ));
}

fn set_calls(world: &mut World, per_second: u64) {
    for rail in 0..2 {
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            world.relay().flood_calls(rail, direction, per_second).unwrap();
        }
    }
}

/// What there was during a flood.
#[derive(Debug)]
struct Served {
    /// Messages of the flood.
    messages: u64,
    /// Requests that were answered beside them.
    requests: u64,
}

impl Served {
    /// I/O went on, and was never silent for as long as a program would not wait.
    fn assert_enough(&self, longest_gap: Duration) {
        let Self { messages, requests } = self;
        assert!(
            *requests >= messages / MESSAGES_PER_REQUEST,
            "{requests} requests beside {messages} messages"
        );
        assert!(longest_gap < LONG, "nothing was answered for {longest_gap:?}");
    }
}

/// Waits until so many messages more were sent, and I/O must get on all the time.
fn flooded(world: &mut World, load: &Load, messages: u64) -> Served {
    let mut made = || Ok(world.relay().stats()?.floods.iter().sum::<u64>());
    let (before, done) = (made().unwrap(), load.done());
    let after = poll_until("the flood", 3 * PATIENT, || {
        load.wait_done(100, LONG)?;
        Ok(Some(made()?).filter(|made| *made >= before + messages))
    })
    .unwrap();
    Served { messages: after - before, requests: load.done() - done }
}

fn run_a_first_channel(world: &World) {
    let mut lender = Lender::start_as(world.right(), "other", &["ram:16M"], &[]).unwrap();
    let mut borrower = Borrower::start_as(world.left(), "first", &lender.lines[0], &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, MIB, 7), 8).unwrap();
    load.wait_done(1000, LONG).unwrap();
    load.stop().unwrap();
    borrower.process.terminate(LONG).unwrap();
    lender.process.terminate(LONG).unwrap();
}

fn set_flood(world: &mut World, per_second: u64) {
    for rail in 0..2 {
        for direction in [Direction::LeftToRight, Direction::RightToLeft] {
            world.relay().flood(rail, direction, per_second).unwrap();
        }
    }
}

fn residents(world: &World, lender: &Lender, borrower: &Borrower) -> Vec<(u32, u64)> {
    wait_standby(world.right(), "lender", LONG).unwrap();
    wait_standby(world.left(), "borrower", LONG).unwrap();
    let pids = [lender.process.pid(), borrower.process.pid()].map(family).concat();
    pids.into_iter().map(|pid| (pid, anonymous_kib(pid).unwrap())).collect()
}

fn dropped(machine: &Machine, name: &str) -> Vec<u64> {
    let status = status(machine, name).unwrap();
    REASONS.iter().map(|reason| number(&status, &format!("/counters/{reason}")).unwrap()).collect()
}
