//! T1: two machines that share nothing, a bad network between them, and both cards killed again and again from
//! outside, while tools that know nothing of Causeway copy and verify. Not one byte may be wrong, not one request fail.

use base::Impairment;
use campaign::causeway::{Borrower, Card, Lender, STOP_TIMEOUT, kill_card};
use campaign::process::Process;
use campaign::tools::{self, FioJob};
use campaign::world::{Machine, Medium, World, WorldConfig};
use campaign::{Error, gate, scale};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The first half is nbdcopy's, the second fio's.
const HALF: u64 = 48 * MIB;
/// A card has a successor long before this; here a machine of two cores runs everything.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
const ROUND_TIMEOUT: Duration = Duration::from_secs(240);
/// Bytes are moving again before the next kill.
const BETWEEN_KILLS: Duration = Duration::from_millis(150);

#[test]
fn t1_killed_cards_over_a_bad_network() {
    killed_cards(Medium::chosen(), scale::kills(30));
}

#[test]
fn t7_killed_cards_over_ethernet() {
    killed_cards(Medium::Ethernet, scale::kills(4));
}

#[test]
fn t7_killed_cards_behind_switches() {
    killed_cards(Medium::Switch, scale::kills(4));
}

fn killed_cards(medium: Medium, kills: u32) {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let mut world = World::new(&WorldConfig { seed, medium, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    let original = world.left().dir().join("original.img");
    tools::empty_image(&image, 2 * HALF).unwrap();
    tools::random_image(&original, HALF, seed).unwrap();
    world
        .relay()
        .set_all(Impairment { delay_ns: 50_000, jitter_ns: 200_000, ..Impairment::each(50_000) })
        .unwrap();

    let mut lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let (rounds, recoveries) = work_and_kill(&world, &borrower.uri, kills, seed).unwrap();

    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    let expected = tools::sha256(&original).unwrap();
    assert_eq!(tools::sha256_of_start(&image, HALF).unwrap(), expected, "the lender's image, seed {seed}");

    let network = world.relay().stats().unwrap().total();
    assert!(network.dropped > 100 && network.corrupted > 100, "the network was not bad: {network:?}");
    let longest = recoveries.iter().filter_map(|card| card.last_recovery_s).fold(0.0, f64::max);
    let count = recoveries.len();
    scale::report(&format!(
        "t1: over {medium:?}, seed {seed}, {count} kills, {rounds} rounds, longest recovery {longest} s, {network:?}"
    ));
}

/// Rounds of copying and verifying for as long as the killer has cards to kill, at least one.
fn work_and_kill(world: &World, uri: &str, kills: u32, seed: u64) -> Result<(u64, Vec<Card>), Error> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let recoveries = kill_both(world, kills, &is_over);
            is_over.store(true, Ordering::Release);
            recoveries
        });
        let mut rounds = 0;
        let worked = loop {
            rounds += 1;
            if let Err(error) = work(world.left(), uri, seed + rounds) {
                break Err(error);
            }
            if is_over.load(Ordering::Acquire) {
                break Ok(rounds);
            }
        };
        // After a failure of the work, nothing is left to kill for.
        is_over.store(true, Ordering::Release);
        let recoveries = killer.join().expect("the killer returns its errors");
        Ok((worked?, recoveries?))
    })
}

/// Kills each side's card `kills` times, in turn; every tenth time both at once.
fn kill_both(world: &World, kills: u32, is_over: &AtomicBool) -> Result<Vec<Card>, Error> {
    let mut recoveries = Vec::new();
    let lender = || kill_card(world.right(), "lender", RECOVERY_TIMEOUT);
    let borrower = || kill_card(world.left(), "borrower", RECOVERY_TIMEOUT);
    for number in 1..=kills {
        if is_over.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(BETWEEN_KILLS);
        if number % 10 == 0 {
            let (one, other) = std::thread::scope(|scope| {
                let one = scope.spawn(lender);
                let other = borrower();
                (one.join().expect("kill_card returns its errors"), other)
            });
            recoveries.extend([one?, other?]);
            continue;
        }
        recoveries.push(lender()?);
        std::thread::sleep(BETWEEN_KILLS);
        recoveries.push(borrower()?);
    }
    Ok(recoveries)
}

/// One round: an image copied in and out by nbdcopy, beside it fio writing and verifying the other half.
fn work(machine: &Machine, uri: &str, seed: u64) -> Result<(), Error> {
    let original = machine.dir().join("original.img");
    let copy = machine.dir().join("copy.img");
    let [from, back] = [&original, &copy].map(|path| path.display().to_string());
    let job = FioJob {
        uri,
        pattern: "randwrite",
        block_size: "512-64k",
        depth: 16,
        offset: HALF,
        size: HALF,
        seed,
    };
    let start = Instant::now();
    let mut fio = job.start(machine, "fio")?;
    finish(tools::start_nbdcopy(machine, "copy-in", &from, uri)?, start)?;
    // nbdcopy reads the whole drive; only the first half is the copied image.
    tools::empty_image(&copy, 2 * HALF)?;
    finish(tools::start_nbdcopy(machine, "copy-out", uri, &back)?, start)?;
    fio.wait_success(ROUND_TIMEOUT.saturating_sub(start.elapsed()))?;
    if tools::sha256_of_start(&copy, HALF)? != tools::sha256(&original)? {
        return Err(Error::unexpected(format!(
            "what was read back differs from what was written, seed {seed}"
        )));
    }
    Ok(())
}

fn finish(mut process: Process, start: Instant) -> Result<(), Error> {
    process.wait_success(ROUND_TIMEOUT.saturating_sub(start.elapsed()))
}
