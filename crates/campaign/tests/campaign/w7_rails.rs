//! W7: the traffic of a rail is pulled, both ways and one way, again and again. No request fails, the other rail takes
//! over within a few round trips, and the rail is taken up again when it answers.

use base::Impairment;
use campaign::causeway::{Borrower, Lender, kill_card, status};
use campaign::load::{Load, Model};
use campaign::process::poll_until;
use campaign::relay::RelayStats;
use campaign::world::{Direction, Machine, Side, World, WorldConfig};
use campaign::{Error, gate, scale};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(15);
/// Not the figure that is promised, only what tells a fail-over from waiting for something to time out.
const GAP_MAX: Duration = Duration::from_secs(1);
const LOSS: Impairment = Impairment { drop_ppm: 10_000, ..Impairment::NONE };

#[test]
fn w7_a_rail_pulled_costs_no_error_and_is_taken_up_again() {
    let _place = gate::alone();
    let seed = scale::first_seed();
    let mut world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
        wait_rail(machine, name, 0, "up").unwrap();
        wait_rail(machine, name, 1, "up").unwrap();
    }
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, seed), 8).unwrap();
    load.wait_done(1000, LONG).unwrap();
    load.take_longest_gap();

    let both = [Direction::LeftToRight, Direction::RightToLeft];
    for round in 0..scale::kills(2) {
        for cut in [&both[..], &both[..1], &both[1..]] {
            let rail = (round % 2) as u8;
            for direction in cut {
                world.relay().set(rail, *direction, Impairment::CUT).unwrap();
            }
            // Whoever hears nothing any more says so; traffic goes on meanwhile.
            let deaf = |side| cut.contains(&Direction::toward(side));
            let ends = [(Side::Left, world.left(), "borrower"), (Side::Right, world.right(), "lender")];
            for (side, machine, name) in ends {
                if deaf(side) {
                    wait_rail(machine, name, rail, "down").unwrap();
                }
            }
            load.wait_done(2000, LONG).unwrap();
            let gap = load.take_longest_gap();
            scale::report(&format!("w7: rail {rail} cut {cut:?}: longest gap {gap:?}"));
            assert!(gap < GAP_MAX, "rail {rail} cut {cut:?}: {gap:?} without a reply");

            world.relay().set_rail(rail, Impairment::NONE).unwrap();
            for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
                wait_rail(machine, name, rail, "up").unwrap();
            }
            // Taken up in earnest: the other rail is cut now, and only this one is left.
            world.relay().set_rail(1 - rail, Impairment::CUT).unwrap();
            load.wait_done(2000, LONG).unwrap();
            world.relay().set_rail(1 - rail, Impairment::NONE).unwrap();
            for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
                wait_rail(machine, name, 1 - rail, "up").unwrap();
            }
            let gap = load.take_longest_gap();
            assert!(gap < GAP_MAX, "{gap:?} without a reply when rail {rail} was the one left");
        }
    }
    assert!(dropped(&world.relay().stats().unwrap()) > 10, "nothing was lost: the rails were not cut");
    load.stop_whole(&borrower.socket).unwrap();
}

#[test]
fn w7_cards_killed_while_a_rail_is_cut_find_the_other_one() {
    let _place = gate::alone();
    let seed = scale::first_seed();
    let mut world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let sides = |world: &World, rail, state| {
        for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
            wait_rail(machine, name, rail, state).unwrap();
        }
    };
    world.relay().set_all(LOSS).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, seed), 8).unwrap();
    for kill in 0..scale::kills_of(20, 500) {
        let rail = (kill % 2) as u8;
        sides(&world, 1 - rail, "up");
        world.relay().set_rail(rail, Impairment::CUT).unwrap();
        for (machine, name) in [(world.right(), "lender"), (world.left(), "borrower")] {
            kill_card(machine, name, LONG).unwrap();
            load.wait_done(50, LONG).unwrap();
        }
        world.relay().set_rail(rail, LOSS).unwrap();
    }
    let gap = load.take_longest_gap();
    scale::report(&format!("w7: cards killed while a rail is cut: longest gap {gap:?}"));
    assert!(gap < GAP_MAX * 2, "{gap:?} without a reply");
    load.stop_whole(&borrower.socket).unwrap();
}

/// What goes wrong between two nodes is said by each end, once, in words that name it, and once that it is over.
#[test]
fn w7_trouble_with_rails_is_said_once_by_each_end() {
    // Where nothing else makes a peer silent.
    let _place = gate::alone();
    let mut world = World::new(&WorldConfig { seed: scale::first_seed(), ..WorldConfig::default() }).unwrap();
    let mut lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
        for rail in [0, 1] {
            wait_rail(machine, name, rail, "up").unwrap();
        }
    }
    let ends = |borrower: &mut Borrower, lender: &mut Lender, words: [&str; 2]| {
        for process in [&mut borrower.process, &mut lender.process] {
            process.wait_log(words[0], LONG, |line| words.iter().all(|words| line.contains(words))).unwrap();
        }
    };
    let _load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 1).unwrap();
    world.relay().set_rail(0, Impairment::CUT).unwrap();
    ends(&mut borrower, &mut lender, ["WARN", "does not answer: its frames take another path"]);
    world.relay().set_rail(0, Impairment::NONE).unwrap();
    ends(&mut borrower, &mut lender, ["rail", "answers again"]);
    for process in [&borrower.process, &lender.process] {
        let log = std::fs::read_to_string(process.log()).unwrap();
        let lines = |words| log.lines().filter(|line| line.contains(words)).count();
        assert_eq!([lines("does not answer"), lines("answers again")], [1, 1], "{log}");
    }
    world.relay().set_all(Impairment::CUT).unwrap();
    ends(&mut borrower, &mut lender, ["WARN", "has not been heard for"]);
    world.relay().set_all(Impairment::NONE).unwrap();
    ends(&mut borrower, &mut lender, ["is heard again", "s of silence"]);
    for (process, what) in
        [(&borrower.process, "wait until their I/O time-out"), (&lender.process, "hold time 600 s")]
    {
        let log = std::fs::read_to_string(process.log()).unwrap();
        assert_eq!(log.lines().filter(|line| line.contains(what)).count(), 1, "{log}");
    }
}

/// Waits until the status of a node says this about a rail.
fn wait_rail(machine: &Machine, name: &str, rail: u8, state: &str) -> Result<(), Error> {
    poll_until(&format!("rail {rail} of {name} to be {state}"), LONG, || {
        let status = status(machine, name)?;
        Ok((status["rails"][usize::from(rail)]["state"] == state).then_some(()))
    })
}

fn dropped(stats: &RelayStats) -> u64 {
    stats.total().dropped
}
