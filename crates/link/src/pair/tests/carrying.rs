//! What flows: many streams over loss, killed cards, rails that are cut, and keys that are replaced.

use base::Random;
use base::ids::RailId;
use core::time::Duration;

use base::ledger::Arena;
use base::times::PROBE_MAX;
use pcie::{Bdf, Header as TlpHeader, MemoryRequest, Tag};

use super::*;
use crate::paths::{PathId, SHM_PATH};

fn open(world: &mut World<'_>) {
    world.run_until(Duration::from_secs(20), |world| world.nodes.iter().all(Node::is_open));
}

fn is_idle(world: &World<'_>) -> bool {
    world.nodes.iter().flat_map(|node| &node.places).all(|place| place.is_open() && place.stream.is_idle())
}

/// Writes in both directions, so many on each stream, one each few ticks.
fn write(world: &mut World<'_>, count: u32, ticks: u32) {
    for _ in 0..count {
        (0..world.nodes.len()).for_each(|node| world.write_all(node));
        world.run(ticks);
    }
}

#[test]
fn two_nodes_meet_open_a_stream_and_write() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let took = world.run_until(Duration::from_millis(20), |world| world.nodes.iter().all(Node::is_open));
    assert!(took < Duration::from_millis(3), "a few round trips of 200 us: {took:?}");
    write(&mut world, 100, 1);
    world.run_until(Duration::from_secs(1), is_idle);
    world.expect_all_came();
    assert_eq!(world.nodes[1].places[0].counts(), (100, 100));
    assert!(world.nodes.iter().all(|node| node.slots[0].channel.stats().handshakes.get() == 1));
}

#[test]
fn many_streams_carry_over_loss_duplication_and_reordering() {
    for seed in 0..4 {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 16);
        world.random = Random::new(seed);
        (world.lost, world.doubled, world.late) = (30, 10, 30);
        open(&mut world);
        write(&mut world, 100, 2);
        world.run_until(Duration::from_secs(20), is_idle);
        world.expect_all_came();
        let resent: u64 =
            world.nodes[0].places.iter().map(|place| place.stream.stats().retransmissions.get()).sum();
        assert!(resent > 0);
    }
}

#[test]
fn both_cards_die_again_and_again_between_any_two_stores() {
    for seed in 0..6 {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 8);
        world.random = Random::new(seed);
        world.lost = 5;
        open(&mut world);
        let mut kills = 0;
        for round in 0..300 {
            (0..2).for_each(|node| world.write_all(node));
            if round % 5 == 0 {
                let (node, stores) = (world.random.below(2) as usize, 1 + world.random.below(300));
                world.nodes[node].kill_after(stores);
                kills += 1;
            }
            world.run(2);
        }
        world.nodes.iter().for_each(|node| node.kill_after(0));
        world.run_until(Duration::from_secs(10), is_idle);
        world.expect_all_came();
        let generations: u64 = world.nodes.iter().map(|node| node.config.generation - 1).sum();
        assert!(generations > kills / 2, "{generations} cards died");
        assert!(world.nodes.iter().flat_map(|node| &node.places).all(|place| place.resets <= 1));
        assert!(world.nodes.iter().all(|node| node.slots[0].channel.stats().handshakes.get() <= 2));
    }
}

#[test]
fn a_rail_that_is_cut_costs_a_few_round_trips_and_cards_may_die_meanwhile() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 4);
    open(&mut world);
    for round in 0..10_u8 {
        world.cut = Box::new(move |_, _, path| path == PATHS[usize::from(round % 2)]);
        world.write_all(0);
        let before = world.now;
        world.run_until(PROBE_MAX * 3, is_idle);
        assert!(world.now.since(before) < PROBE_MAX * 3);
        world.nodes[usize::from(round % 2)].restart(world.now);
        world.write_all(1);
        world.run_until(PROBE_MAX * 3, is_idle);
        world.run_for(Duration::from_millis(400));
    }
    world.expect_all_came();
}

/// Whether a rail of a node answers.
fn is_up(world: &World<'_>, node: usize, rail: u8) -> bool {
    let channel = &world.nodes[node].slots[0].channel;
    channel.rail_status(RailId::ALL[usize::from(rail)], world.now).is_some_and(|(_, status)| status.is_up)
}

#[test]
fn a_rail_that_is_cut_is_told_of_and_taken_up_again() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    open(&mut world);
    world.run(50);
    world.write_all(0);
    world.cut = Box::new(|_, _, path| path == PATHS[0]);
    let moved = world.run_until(PROBE_MAX, |world| world.nodes[1].places[0].counts().1 == 1);
    assert!(moved < Duration::from_millis(20), "moved after {moved:?}");
    world.run_for(Duration::from_millis(600));
    assert!(!is_up(&world, 0, 0) && is_up(&world, 0, 1));
    world.cut = Box::new(|_, _, _| false);
    world.run_for(Duration::from_millis(600));
    assert!(is_up(&world, 0, 0) && is_up(&world, 0, 1));
}

#[test]
fn the_other_rail_is_cut_when_one_comes_back() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    open(&mut world);
    for round in 0..6_u8 {
        // The longer a rail is dead, the deader it seems, and the one that has just died seems healthier.
        world.cut = Box::new(move |_, _, path| path == PATHS[usize::from(round % 2)]);
        world.run_for(Duration::from_millis(600));
        (0..2).for_each(|node| world.write_all(node));
        world.cut = Box::new(move |_, _, path| path != PATHS[usize::from(round % 2)]);
        world.run_until(PROBE_MAX * 3, is_idle);
    }
    world.expect_all_came();
}

#[test]
fn cards_that_are_killed_while_a_rail_is_cut_find_the_other_one() {
    for seed in 0..4 {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 2);
        world.random = Random::new(seed);
        world.lost = 1;
        open(&mut world);
        for kill in 0..20_u8 {
            let cut = kill % 2;
            let ticks = world.random.below(3000) as u32;
            world.run(ticks);
            world.run_until(Duration::from_secs(2), |world| (0..2).all(|node| is_up(world, node, 1 - cut)));
            world.cut = Box::new(move |_, _, path| path == PATHS[usize::from(cut)]);
            for node in [1, 0] {
                let now = world.now;
                world.nodes[node].restart(now);
                write(&mut world, 20, 1);
                world.run_until(Duration::from_secs(1), is_idle);
            }
            world.cut = Box::new(|_, _, _| false);
        }
        world.expect_all_came();
    }
}

/// Whoever queues nothing without credit hears of new credit as early as one who has something waiting.
#[test]
fn who_has_no_credit_asks_for_it() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    open(&mut world);
    let credit = |world: &World<'_>| world.nodes[0].places[0].stream.port.sender.posted_credit();
    world.nodes[1].places[0].log.is_stuck = true;
    for _ in 0..1024 {
        assert!(credit(&world).suffices());
        world.write_all(0);
        world.tick();
    }
    world.run(5);
    assert!(world.nodes[0].places[0].stream.port.sender.is_empty() && !credit(&world).suffices());
    world.nodes[1].places[0].release_kept();
    world.nodes[1].commit();
    world.run(50);
    assert!(credit(&world).suffices(), "within 10 ms");
    let mut credit_left = credit(&world);
    let request = MemoryRequest::new(Bdf(8), Tag::new(0).unwrap(), 0, 4096).unwrap();
    let count = (0..).take_while(|_| {
        let suffices = credit_left.suffices();
        if suffices {
            credit_left.spend(&TlpHeader::MemoryWrite(request));
        }
        suffices
    });
    assert_eq!(count.count(), 1024, "credit for each, however large");
    // One that waits is before all others.
    assert!(world.nodes[0].places[0].write(4));
    assert!(!credit(&world).suffices());
}

#[test]
fn keys_are_replaced_under_traffic_and_nothing_is_lost() {
    for seed in 0..3 {
        let arena = Arena::default();
        let mut world = World::pair_with(&arena, 4, |config| config.rekey_frames = 40);
        world.random = Random::new(seed);
        (world.lost, world.late) = (20, 20);
        open(&mut world);
        write(&mut world, 400, 5);
        world.run_until(Duration::from_secs(20), is_idle);
        world.expect_all_came();
        assert!(world.nodes[0].slots[0].channel.stats().handshakes.get() > 3);
        assert!(world.nodes.iter().flat_map(|node| &node.places).all(|place| place.resets <= 1));
    }
}

/// Both find at once that keys are worn, again and again.
#[test]
fn handshakes_that_cross_under_traffic_lose_nothing() {
    for seed in 0..6 {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 4);
        world.random = Random::new(seed);
        world.late = 30;
        world.lost = if seed < 3 { 0 } else { 20 };
        open(&mut world);
        for round in 0..40 {
            let now = world.now;
            // At the same time, or one a little later.
            let later = (round % 4) as u32;
            world.nodes[round as usize % 2].slots[0].channel.call_for_test(now);
            write(&mut world, later, 1);
            let now = world.now;
            world.nodes[1 - round as usize % 2].slots[0].channel.call_for_test(now);
            write(&mut world, 10, 2);
        }
        world.run_until(Duration::from_secs(20), is_idle);
        world.expect_all_came();
        assert!(world.nodes[0].slots[0].channel.stats().handshakes.get() >= 20);
        assert!(world.nodes.iter().flat_map(|node| &node.places).all(|place| place.resets <= 1));
        let fingerprints: Vec<_> =
            world.nodes.iter().map(|node| node.slots[0].channel.course().unwrap()).collect();
        assert_eq!(fingerprints[0], fingerprints[1]);
    }
}

#[test]
fn streams_share_a_narrow_network_by_bytes() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 4, |config| config.max_frame = 1500);
    open(&mut world);
    world.frames_per_tick = 3;
    world.delay = TICK;
    // Small ones and large ones; the more TLPs a stream has queued, the fuller its frames.
    let sizes = [4, 64, 64, 4];
    let before: Vec<_> = (0..4).map(|index| world.nodes[1].places[index].counts().1).collect();
    for _ in 0..3000 {
        for (index, size) in sizes.into_iter().enumerate() {
            let batch = if index == 3 { 2 } else { 64 };
            for _ in 0..batch {
                if world.nodes[0].places[index].counts().0
                    >= world.nodes[1].places[index].counts().1 + batch * 2
                {
                    break;
                }
                world.nodes[0].places[index].write(size);
            }
        }
        world.nodes[0].commit();
        world.tick();
    }
    // A header has 16 bytes.
    let bytes: Vec<_> = (0..3)
        .map(|index| (world.nodes[1].places[index].counts().1 - before[index]) * (16 + sizes[index] as u64))
        .collect();
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    assert!(most * 100 < least * 125, "{bytes:?}");
    // One with little to send has all of it sent.
    let [sent, came] = [world.nodes[0].places[3].counts().0, world.nodes[1].places[3].counts().1];
    assert!(came > 1000 && sent - came <= 4, "{sent} {came}");
}

#[test]
fn a_stream_that_is_stuck_stops_no_other() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 4);
    open(&mut world);
    world.nodes[1].places[2].log.is_stuck = true;
    for _ in 0..1500 {
        world.write_all(0);
        world.tick();
    }
    world.run(50);
    let counts: Vec<_> = (0..4).map(|index| world.nodes[1].places[index].counts().1).collect();
    assert_eq!([counts[0], counts[1], counts[2], counts[3]], [1500, 1500, 1024, 1500]);
    assert!(world.nodes[0].places[2].stream.port.sender.is_blocked());
    // When its sink goes on, so does it.
    world.nodes[1].places[2].log.is_stuck = false;
    world.nodes[1].places[2].release_kept();
    world.nodes[1].commit();
    world.run_until(Duration::from_secs(2), is_idle);
    world.expect_all_came();
}

/// Frames a second of two nodes with so many streams that have nothing to say.
fn idle_frames(functions: u32) -> u64 {
    let arena = Arena::default();
    let mut world = World::pair(&arena, functions);
    open(&mut world);
    write(&mut world, 3, 1);
    world.run_for(Duration::from_secs(1));
    assert!(is_idle(&world));
    let before = world.frames;
    world.run_for(Duration::from_secs(2));
    (world.frames - before) / 2
}

#[test]
fn idle_frames_do_not_grow_with_the_number_of_streams() {
    let (one, many) = (idle_frames(1), idle_frames(256));
    // Two rails, heartbeats of both ends, ten each second, and their answers.
    assert!(one <= 80, "{one}");
    assert!(many <= one + 2, "{one} {many}");
}

#[test]
fn the_path_through_memory_carries_all_and_is_left_when_it_ends() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 4);
    open(&mut world);
    let now = world.now;
    world.nodes.iter_mut().for_each(|node| node.slots[0].channel.set_shm(now, true));
    world.run(20);
    let alone = |_: usize, _: usize, path: PathId| path != SHM_PATH;
    world.cut = Box::new(alone);
    write(&mut world, 100, 1);
    world.run_until(Duration::from_secs(1), is_idle);
    // It swallows what it is given, and ends at one end, then at the other.
    world.cut = Box::new(|_, _, path| path == SHM_PATH);
    for round in 0..20 {
        write(&mut world, 3, 1);
        let now = world.now;
        world.nodes[round % 2].slots[0].channel.set_shm(now, false);
        world.run(3);
        world.nodes[1 - round % 2].slots[0].channel.set_shm(now, false);
        write(&mut world, 3, 1);
        let now = world.now;
        world.nodes.iter_mut().for_each(|node| node.slots[0].channel.set_shm(now, true));
    }
    world.cut = Box::new(|_, _, _| false);
    world.run_until(Duration::from_secs(2), is_idle);
    world.expect_all_came();
}

#[test]
fn forged_and_repeated_frames_are_counted_and_change_nothing() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    open(&mut world);
    world.record = Some(Vec::new());
    write(&mut world, 5, 3);
    world.run_until(Duration::from_secs(1), is_idle);
    let record = world.record.take().unwrap();
    let before = world.nodes[1].places[0].counts();
    for (from, bytes) in &record {
        world.inject(*from, 1 - from, bytes);
        // To where it came from.
        world.inject(1 - from, *from, bytes);
        for bit in (0..bytes.len() * 8).step_by(101).filter(|bit| bit / 8 != crate::frame::ROUTE) {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            world.inject(*from, 1 - from, &forged);
        }
        for short in (0..bytes.len()).step_by(7) {
            world.inject(*from, 1 - from, &bytes[..short]);
        }
    }
    assert_eq!(world.nodes[1].places[0].counts(), before);
    let stats = world.nodes[1].slots[0].channel.stats();
    assert!(stats.dropped_replay.get() > 0 && stats.dropped_auth.get() > 0);
    write(&mut world, 5, 3);
    world.run_until(Duration::from_secs(1), is_idle);
    world.expect_all_came();
}
