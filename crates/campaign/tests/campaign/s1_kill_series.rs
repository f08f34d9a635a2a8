//! The kill experiment on the whole program: both cards are killed with `kill -9`, by pid and from outside, hundreds of
//! times at random moments, thousands of times in `make soak`. Verified I/O goes on all the time; nothing is lost,
//! nothing is done twice, no request fails.

use base::Random;
use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, Watch};
use campaign::load::{Load, Model, connect};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{Error, gate, scale, tools};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Small, so that each block is written again and again, and a write done twice would show as an older version.
const REGION: u64 = 2 * MIB;
const DEPTH: usize = 8;
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
/// Kills come up to so long after the recovery from the one before.
const LIFE_MAX_US: u64 = 80_000;
/// Recoveries take milliseconds; one that waited for a time-out is named in the report.
const WORTH_A_LINE: Duration = Duration::from_millis(500);

/// A node whose card is killed.
struct Victim {
    watch: Watch,
    kills: u32,
    /// In seconds, as the node itself counts.
    recoveries: Vec<f64>,
}

impl Victim {
    fn new(watch: Watch) -> Self {
        Self { watch, kills: 0, recoveries: Vec::new() }
    }

    /// Kills the card there is, and returns its generation.
    fn kill(&mut self) -> Result<u64, Error> {
        let card = self.watch.successor(0, RECOVERY_TIMEOUT)?;
        campaign::process::kill(card.pid.expect("a successor has a process"))?;
        self.kills += 1;
        Ok(card.generation)
    }

    /// What the node has counted so far, for whoever wants to know what a long gap was spent on.
    fn counted(&self) -> Result<String, Error> {
        let status = self.watch.status()?;
        let channel = status.channels.first().map(|channel| channel.retransmissions).unwrap_or_default();
        let counters = status.counters.all();
        let counters = counters.iter().filter(|(_, count)| *count > 0);
        let counters: Vec<String> = counters.map(|(name, count)| format!("{name} {count}")).collect();
        Ok(format!("{}: retransmissions {channel}, {}", status.node.name, counters.join(", ")))
    }

    fn recover(&mut self, generation: u64) -> Result<(), Error> {
        let card = self.watch.recovered(generation, RECOVERY_TIMEOUT)?;
        self.recoveries.extend(card.last_recovery_s);
        Ok(())
    }
}

/// What is done at a random moment, and how often of ten times.
#[derive(Clone, Copy)]
enum Blow {
    /// One card is killed: eight.
    One,
    /// Both at once: one.
    Both,
    /// One, and its successor before that has begun to serve: one.
    SuccessorToo,
}

impl Blow {
    const NAMES: [&str; 3] = ["one card", "both cards at once", "a card and its successor"];

    fn choose(random: &mut Random) -> Self {
        match random.below(10) {
            0 => Self::Both,
            1 => Self::SuccessorToo,
            _ => Self::One,
        }
    }

    /// Strikes, the first of these first, and waits until all serve again.
    fn strike(self, first: &mut Victim, second: &mut Victim) -> Result<(), Error> {
        let mut generation = first.kill()?;
        match self {
            Self::One => {}
            Self::Both => {
                let other = second.kill()?;
                second.recover(other)?;
            }
            Self::SuccessorToo => {
                first.watch.successor(generation, RECOVERY_TIMEOUT)?;
                generation = first.kill()?;
            }
        }
        first.recover(generation)
    }
}

#[test]
fn s1_cards_killed_at_random_lose_nothing_and_do_nothing_twice() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    kill_series("s1", &world, world.left(), scale::kills_of(200, 8000));
}

/// The same with both nodes on one machine, where their cards speak through memory.
#[test]
fn s1_cards_of_neighbours_killed_at_random_lose_nothing_and_do_nothing_twice() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    kill_series("s1-shm", &world, world.right(), scale::kills_of(100, 4000));
}

/// Until the cards of both nodes speak through memory, or for ever through none.
fn wait_shared(victims: [&mut Victim; 2], expected: bool) {
    let start = std::time::Instant::now();
    for victim in victims {
        while victim
            .watch
            .status()
            .unwrap()
            .rails
            .iter()
            .any(|rail| rail.medium == "shm" && rail.state == "up")
            != expected
        {
            assert!(start.elapsed() < RECOVERY_TIMEOUT, "memory is shared: {}", !expected);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The borrower is on the machine `beside`.
fn kill_series(name: &str, world: &World, beside: &Machine, wanted: u32) {
    let seed = scale::first_seed();
    let are_neighbours = beside.dir() == world.right().dir();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 4 * MIB).unwrap();
    let mut lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut borrower = Borrower::start(beside, &lender.lines[0], &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, REGION, seed), DEPTH).unwrap();
    load.wait_done(500, RECOVERY_TIMEOUT).unwrap();

    let mut random = Random::new(seed);
    let mut of_borrower = Victim::new(Watch::new(beside, "borrower"));
    let mut of_lender = Victim::new(Watch::new(world.right(), "lender"));
    wait_shared([&mut of_borrower, &mut of_lender], are_neighbours);
    let mut gaps: [Vec<f64>; 3] = Default::default();
    let mut blows = 0;
    let stalls = scale::Stalls::watch();
    load.take_longest_gap();
    while of_borrower.kills + of_lender.kills < wanted {
        std::thread::sleep(Duration::from_micros(random.below(LIFE_MAX_US)));
        let blow = Blow::choose(&mut random);
        let lender_first = random.below(2) == 1;
        let struck = if lender_first {
            blow.strike(&mut of_lender, &mut of_borrower)
        } else {
            blow.strike(&mut of_borrower, &mut of_lender)
        };
        struck.unwrap_or_else(|error| panic!("seed {seed}, blow {blows}: {error}"));
        // The gap ends with a reply, which may come a little after the card is back.
        load.wait_done(DEPTH as u64 + 1, RECOVERY_TIMEOUT).unwrap();
        let (gap, stall) = (load.take_longest_gap(), stalls.take_longest());
        if gap > WORTH_A_LINE {
            let kind = Blow::NAMES[blow as usize];
            let of = if lender_first { "lender" } else { "borrower" };
            let counted = [of_borrower.counted().unwrap(), of_lender.counted().unwrap()].join("; ");
            scale::report(&format!(
                "{name}: blow {blows}, {kind}, the {of}'s first: {gap:?} without a reply, of which the test itself \
                 stood still for {stall:?}; {counted}"
            ));
        }
        gaps[blow as usize].push(gap.as_secs_f64());
        blows += 1;
    }
    load.wait_done(500, RECOVERY_TIMEOUT).unwrap();
    wait_shared([&mut of_borrower, &mut of_lender], are_neighbours);
    let mut report = load.stop().unwrap();
    assert_eq!((report.failed, report.failed_flushes, &report.lost), (0, 0, &None), "seed {seed}");
    report.model.verify(&mut connect(&borrower.socket).unwrap()).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());

    scale::report(&format!(
        "{name}: seed {seed}, {} kills of the borrower's card, {} of the lender's, {} requests verified",
        of_borrower.kills, of_lender.kills, report.done
    ));
    scale::report(&scale::spread(
        &format!("{name}: recovery of the borrower's card"),
        of_borrower.recoveries,
    ));
    scale::report(&scale::spread(&format!("{name}: recovery of the lender's card"), of_lender.recoveries));
    for (kind, gaps) in Blow::NAMES.into_iter().zip(gaps) {
        scale::report(&scale::spread(&format!("{name}: longest time without a reply, {kind}"), gaps));
    }
}
