//! The path through memory that two nodes share.

use core::time::Duration;

use base::ledger::Arena;

use super::*;
use crate::frame::{Header, Kind};
use crate::paths::SHM_PATH;

fn open(arena: &Arena, change: impl Fn(&mut NodeConfig)) -> World<'_> {
    let mut world = World::pair_with(arena, 2, change);
    world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
    world.run(50);
    (0..2).for_each(|node| set(&mut world, node, true));
    world.run(20);
    world
}

fn set(world: &mut World<'_>, node: usize, is_there: bool) {
    let now = world.now;
    world.nodes[node].channel(1 - node).set_shm(now, is_there);
}

fn retransmissions(world: &World<'_>) -> u64 {
    world.nodes[0].places.iter().map(|place| place.stream.stats().retransmissions.get()).sum()
}

/// What node 0 sends for a new write, over memory.
fn frame_of_write(world: &mut World<'_>) -> Vec<u8> {
    assert!(world.nodes[0].places[0].write(4));
    world.nodes[0].commit();
    let (path, frame) = world.frames_of(0).swap_remove(0);
    assert_eq!(path, SHM_PATH);
    frame
}

#[test]
fn what_answers_is_preferred_and_carries_all() {
    let arena = Arena::default();
    let mut world = open(&arena, |_| {});
    world.record = Some(Vec::new());
    for _ in 0..300 {
        world.write_all(0);
        world.tick();
    }
    let record = world.record.take().unwrap();
    world.run(10);
    world.expect_all_came();
    for node in &world.nodes {
        assert!(node.slots[0].channel.shm_status(world.now).is_some_and(|path| path.is_up));
    }
    // Heartbeats of two rails, their answers and perhaps a hello.
    let is_on_rail = |(_, bytes): &&(usize, Vec<u8>)| Header::parse(bytes).unwrap().kind != Kind::Shm;
    let on_rails = record.iter().filter(is_on_rail).count();
    assert!(on_rails < 20, "{on_rails} frames");
    assert_eq!(retransmissions(&world), 0);
}

#[test]
fn nothing_is_sent_over_what_was_not_agreed_or_does_not_answer() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.cut = Box::new(|_, _, path| {
        assert_ne!(path, SHM_PATH);
        false
    });
    world.run(1000);
    assert!(world.nodes[0].slots[0].channel.shm_status(world.now).is_none());
    // Only one end has it: it asks there, and goes on over the rails.
    set(&mut world, 0, true);
    world.cut = Box::new(|_, _, path| path == SHM_PATH);
    for count in 1..=100 {
        world.write_all(0);
        world.run(2);
        assert_eq!(world.nodes[1].places[0].counts().1, count, "at once");
    }
}

#[test]
fn what_was_in_it_when_it_ended_is_sent_again() {
    let arena = Arena::default();
    let mut world = open(&arena, |_| {});
    for index in 0..200 {
        world.write_all(0);
        // Every tenth time it swallows what it is given, and ends at one end, then at the other.
        if index % 10 != 3 {
            world.tick();
            continue;
        }
        world.cut = Box::new(|_, _, path| path == SHM_PATH);
        world.tick();
        let first = (index / 10) % 2;
        set(&mut world, first, false);
        world.run(3);
        set(&mut world, 1 - first, false);
        (0..2).for_each(|node| set(&mut world, node, true));
        world.cut = Box::new(|_, _, _| false);
    }
    world.run(2000);
    world.expect_all_came();
    assert_eq!(world.nodes[1].places[0].counts().1, 200);
    assert!(retransmissions(&world) > 0);
}

#[test]
fn cards_that_die_lose_nothing_although_nothing_else_works() {
    let arena = Arena::default();
    let mut world = open(&arena, |_| {});
    world.cut = Box::new(|_, _, path| path != SHM_PATH);
    for index in 0..300 {
        world.write_all(0);
        world.tick();
        for (node, every) in [(0, 7), (1, 11)] {
            if index % every == 0 {
                let now = world.now;
                world.nodes[node].restart(now);
                set(&mut world, node, true);
            }
        }
    }
    world.run(1000);
    world.expect_all_came();
    assert_eq!(world.nodes[1].places[0].counts().1, 300);
}

#[test]
fn a_frame_counts_only_where_it_belongs() {
    let arena = Arena::default();
    let mut world = open(&arena, |_| {});
    let frame = frame_of_write(&mut world);
    let now = world.now;
    let node = &mut world.nodes[1];
    let stats = node.slots[0].channel.stats();
    let before = stats.dropped_malformed.get();
    // Over a network, where anyone could have written it.
    node.take_misdirected(now, PATHS[0], &mut frame.clone());
    // What claims to be a rail's, in memory; and handshakes there.
    for kind in [3, 1, 2, 5] {
        let mut changed = frame.clone();
        changed[1] = kind;
        node.take_misdirected(now, SHM_PATH, &mut changed.clone());
        node.take_misdirected(now, PATHS[0], &mut changed);
    }
    assert_eq!(
        stats.dropped_malformed.get(),
        before + 8,
        "one looks right on a rail, and does not open there"
    );
    assert_eq!(node.places[0].counts().1, 0);
    node.take_misdirected(now, SHM_PATH, &mut frame.clone());
    assert_eq!(node.places[0].counts().1, 1);
}

#[test]
fn what_an_earlier_key_has_left_in_it_is_dropped() {
    let arena = Arena::default();
    let mut world = open(&arena, |config| config.rekey_frames = 40);
    let frame = frame_of_write(&mut world);
    set(&mut world, 0, false);
    let (id, mut met) = (frame[2], 0);
    world.cut = Box::new(|_, _, path| path == SHM_PATH);
    let stats = world.nodes[1].slots[0].channel.stats();
    let handshakes = stats.handshakes.get();
    // Until the ids of keys have come round.
    while stats.handshakes.get() < handshakes + 12 {
        world.write_all(0);
        world.run(20);
        let is_known = world.nodes[1].slots[0].channel.is_key_id_for_test(id);
        if stats.handshakes.get() > handshakes + 2 && is_known {
            let (now, before) = (world.now, stats.dropped_auth.get());
            world.nodes[1].take_misdirected(now, SHM_PATH, &mut frame.clone());
            assert_eq!(stats.dropped_auth.get(), before + 1, "its key has only the same number");
            met += 1;
        }
    }
    assert!(met > 0);
    world.run(100);
    world.expect_all_came();
}
