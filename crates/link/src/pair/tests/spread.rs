//! Several rails at once, and one behind another: how much they carry, and how soon a bad one carries nothing.

use core::time::Duration;

use base::ledger::Arena;

use super::*;
use crate::{PathId, RailMode};

pub(super) const MS: Duration = Duration::from_millis(1);
/// Writes of this many bytes.
const BYTES: usize = 64;
/// Bytes that a rail carries in a tick.
const RATE: usize = 6_000;

/// Two nodes with so many rails, whose streams are open, and who know them all.
pub(super) fn pair<'m>(arena: &'m Arena, rails: u8, mode: RailMode) -> World<'m> {
    let mut world = World::pair_with(arena, 2, |config| {
        config.rails = (0..rails).collect();
        config.said = config.rails.clone();
        config.rail_mode = mode;
        config.max_frame = 1500;
    });
    world.run_until(MS * 5_000, |world| world.nodes.iter().all(Node::is_open));
    world.run_for(MS * 300);
    world
}

/// The first node writes as much as it can for a while. Returns the frames with TLPs that it sent on each of two rails,
/// and how many writes have come.
pub(super) fn write(world: &mut World<'_>, time: Duration) -> ([u64; 2], u64) {
    let received = |world: &World<'_>| -> u64 { world.nodes[1].places.iter().map(|it| it.counts().1).sum() };
    let (before, sent) = (received(world), world.nodes[0].sent_tlps);
    let end = world.now + time;
    while world.now < end {
        let now = world.now;
        world.nodes[0].guarded(now, |node| {
            node.is_awake = true;
            node.places.iter_mut().for_each(|place| while place.write(BYTES) {});
            node.commit();
        });
        world.tick();
    }
    let after = world.nodes[0].sent_tlps;
    ([after[0] - sent[0], after[1] - sent[1]], received(world) - before)
}

fn on_rail(rail: usize, wire: Wire) -> Box<dyn Fn(usize, PathId) -> Wire> {
    on_rails(move |it| if it == rail { wire } else { Wire::default() })
}

pub(super) fn on_rails(wire: impl Fn(usize) -> Wire + 'static) -> Box<dyn Fn(usize, PathId) -> Wire> {
    Box::new(move |_, path| wire(path.rails().map_or(0, |(own, _)| own.index())))
}

fn shaped() -> Wire {
    Wire { bytes_per_tick: Some(RATE), ..Wire::default() }
}

#[test]
fn two_rails_of_one_rate_carry_nearly_twice_as_much_as_one() {
    let carried = [1, 2].map(|rails| {
        let arena = Arena::default();
        let mut world = pair(&arena, rails, RailMode::Balance);
        world.wire = on_rails(|_| shaped());
        write(&mut world, MS * 200);
        write(&mut world, MS * 1_000).1
    });
    assert!(carried[1] * 10 > carried[0] * 19, "{carried:?}");
}

#[test]
fn rails_of_unlike_rates_carry_what_both_can() {
    let carried = [1, 2].map(|rails| {
        let arena = Arena::default();
        let mut world = pair(&arena, rails, RailMode::Balance);
        world.wire = on_rails(|rail| Wire {
            bytes_per_tick: Some(if rail == 0 { RATE } else { RATE / 4 }),
            ..Wire::default()
        });
        // The slow one is full before that is known, and rests for a while.
        write(&mut world, MS * 2_500);
        write(&mut world, MS * 2_000).1
    });
    assert!(carried[1] * 100 > carried[0] * 115, "{carried:?}");
}

/// What a rail is like from a moment on, beside another one that is clean, and how long it may carry anything then.
#[test]
fn a_slow_rail_a_lossy_one_and_a_cut_one_lose_their_traffic() {
    let slow = Wire { delay: MS * 20, ..Wire::default() };
    let lossy = Wire { lost: 5, ..Wire::default() };
    let cut = Wire { lost: 100, ..Wire::default() };
    for (wire, most) in [(slow, MS * 100), (lossy, MS * 100), (cut, MS * 3)] {
        for mode in [RailMode::Balance, RailMode::Standby] {
            for rail in 0..2 {
                let arena = Arena::default();
                let mut world = pair(&arena, 2, mode);
                let (_, clean) = write(&mut world, MS * 300);
                world.wire = on_rail(rail, wire);
                write(&mut world, most);
                let (frames, carried) = write(&mut world, MS * 300);
                let what = format!("{mode:?}, rail {rail}, {:?} {} %", wire.delay, wire.lost);
                assert_eq!(frames[rail], 0, "{what}");
                assert!(carried * 4 >= clean * 3, "{what}: {carried} of {clean}");
                // It is used again, once it is as good as before.
                world.wire = Box::new(|_, _| Wire::default());
                world.run_for(MS * 3_000);
                world.wire = on_rails(|_| shaped());
                let (frames, _) = write(&mut world, MS * 200);
                let is_used = mode == RailMode::Balance || rail == 0;
                assert_eq!(frames[rail] > 0, is_used, "{what}: {frames:?}");
            }
        }
    }
}

#[test]
fn a_rail_that_comes_and_goes_costs_little() {
    let carried = [false, true].map(|flaps| {
        let arena = Arena::default();
        let mut world = pair(&arena, 2, RailMode::Balance);
        let mut carried = 0;
        for round in 0..100 {
            let is_cut = flaps && round % 2 == 0;
            world.cut = Box::new(move |_, _, path| is_cut && path == PATHS[1]);
            carried += write(&mut world, MS * 50).1;
        }
        carried
    });
    assert!(carried[1] * 100 > carried[0] * 95, "{carried:?}");
}

#[test]
fn where_all_rails_are_bad_they_carry_what_they_can() {
    let arena = Arena::default();
    let mut world = pair(&arena, 2, RailMode::Balance);
    world.wire = on_rails(|_| Wire { lost: 5, ..Wire::default() });
    write(&mut world, MS * 500);
    let (frames, _) = write(&mut world, MS * 500);
    assert!(frames.iter().all(|frames| *frames > 0), "{frames:?}");
    world.wire = Box::new(|_, _| Wire::default());
    world.run_until(MS * 5_000, |world| {
        world.nodes.iter().flat_map(|node| &node.places).all(|place| place.stream.is_idle())
    });
    world.expect_all_came();
}

#[test]
fn who_stands_by_carries_nothing_while_the_first_is_well() {
    let arena = Arena::default();
    let mut world = pair(&arena, 2, RailMode::Standby);
    let (frames, _) = write(&mut world, MS * 300);
    assert!(frames[0] > 0 && frames[1] == 0, "{frames:?}");
    world.cut = Box::new(|_, _, path| path == PATHS[0]);
    write(&mut world, MS * 3);
    let (frames, _) = write(&mut world, MS * 300);
    assert!(frames[0] == 0 && frames[1] > 0, "{frames:?}");
    world.cut = Box::new(|_, _, _| false);
    world.run_for(MS * 1_000);
    let (frames, _) = write(&mut world, MS * 300);
    assert!(frames[0] > 0 && frames[1] == 0, "{frames:?}");
}

/// It has failed again and again, and would rest for seconds; meanwhile the other one has become far slower.
#[test]
fn a_rail_that_rests_is_better_than_one_that_is_far_slower() {
    for (mode, resting) in [(RailMode::Balance, 0), (RailMode::Balance, 1), (RailMode::Standby, 0)] {
        let arena = Arena::default();
        let mut world = pair(&arena, 2, mode);
        let (_, clean) = write(&mut world, MS * 100);
        for round in 0..6 {
            write(&mut world, MS * 10);
            world.cut = Box::new(move |_, _, path| path == PATHS[resting]);
            write(&mut world, MS * 20);
            world.cut = Box::new(|_, _, _| false);
            // Until it is used again: each rest is twice as long.
            world.run_for(MS * if round < 5 { 75 << round } else { 100 });
        }
        let (frames, _) = write(&mut world, MS * 50);
        assert_eq!(frames[resting], 0, "it rests: {mode:?} {frames:?}");
        world.wire = on_rail(1 - resting, Wire { delay: MS * 20, ..Wire::default() });
        write(&mut world, MS * 100);
        let (frames, carried) = write(&mut world, MS * 100);
        let what = format!("{mode:?}, rail {resting} rests: {frames:?}, {carried} of {clean}");
        assert!(frames[1 - resting] == 0 && carried * 2 >= clean, "{what}");
    }
}
