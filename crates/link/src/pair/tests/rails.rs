//! Ends that have other rails than each other, and rails that come and go.

use core::time::Duration;
use std::collections::BTreeSet;

use base::ids::RailId;
use base::ledger::Arena;
use base::times::{HEARTBEAT, PROBE_MAX};
use base::{Instant, Random};

use super::*;
use crate::RailMode;
use crate::frame::{Header, Kind};
use crate::paths::{PathConfig, PathId};

fn path(own: u8, peer: u8) -> PathId {
    PathId::new(RailId::new(own).unwrap(), RailId::new(peer).unwrap())
}

/// Two nodes with these rails, of which the first one calls and is told of the second one's.
pub(super) fn pair<'m>(arena: &'m Arena, rails: [&'static [u8]; 2]) -> World<'m> {
    pair_of_mode(arena, rails, RailMode::Balance)
}

fn pair_of_mode<'m>(arena: &'m Arena, rails: [&'static [u8]; 2], mode: RailMode) -> World<'m> {
    let mut world = World::pair_with(arena, 2, |config| {
        config.rails = rails[config.index].to_vec();
        config.said = rails[1].to_vec();
        config.rail_mode = mode;
    });
    open(&mut world);
    world
}

fn open(world: &mut World<'_>) {
    world.run_until(Duration::from_secs(5), |world| world.nodes.iter().all(Node::is_open));
}

fn is_idle(world: &World<'_>) -> bool {
    world.nodes.iter().flat_map(|node| &node.places).all(|place| place.is_open() && place.stream.is_idle())
}

fn write(world: &mut World<'_>, most: Duration) {
    (0..2).for_each(|node| world.write_all(node));
    world.run_until(most, is_idle);
}

/// A node has these rails from now on.
fn set_rails(world: &mut World<'_>, node: usize, rails: &[u8]) {
    let (now, node) = (world.now, &mut world.nodes[node]);
    node.config.rails = rails.to_vec();
    let configs = node.config.path_configs();
    node.guarded(now, |node| {
        node.is_awake = true;
        node.slots.iter_mut().for_each(|slot| slot.channel.set_rails(now, configs));
        node.commit();
    });
}

fn is_up(world: &World<'_>, node: usize, rail: u8) -> Option<bool> {
    let channel = &world.nodes[node].slots[0].channel;
    channel.rail_status(RailId::new(rail).unwrap(), world.now).map(|(_, status)| status.is_up)
}

const UNLIKE: [[&[u8]; 2]; 6] = [
    [&[0], &[0, 1]],
    [&[0, 1], &[0]],
    [&[0], &[1]],
    [&[1, 2], &[0, 2, 3]],
    [&[0, 1], &[2, 3]],
    [&[3], &[0, 1, 2]],
];

#[test]
fn ends_with_other_rails_meet_and_each_rail_carries_alone() {
    for rails in UNLIKE {
        let arena = Arena::default();
        let mut world = pair(&arena, rails);
        world.run_for(Duration::from_millis(300));
        for node in 0..2 {
            for rail in rails[node] {
                assert_eq!(is_up(&world, node, *rail), Some(true), "rail {rail} of node {node}, {rails:?}");
            }
            // All else of a node is cut, whatever that leads to.
            for rail in rails[node] {
                let only = RailId::new(*rail).unwrap();
                world.cut = Box::new(move |from, _, path| {
                    let (own, peer) = path.rails().unwrap();
                    (if from == node { own } else { peer }) != only
                });
                write(&mut world, PROBE_MAX * 4);
                world.cut = Box::new(|_, _, _| false);
                world.run_for(Duration::from_millis(400));
            }
        }
        world.expect_all_came();
        let handshakes = |node: &Node<'_>| node.slots[0].channel.stats().handshakes.get();
        assert!(
            world.nodes.iter().all(|node| handshakes(node) == 1),
            "{rails:?}: nobody was taken for silent"
        );
    }
}

/// The called end has not been told where the other one is; that is told of less than there is.
#[test]
fn an_end_learns_of_rails_of_which_no_line_speaks() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| {
        config.rails = if config.index == 0 { vec![0, 1] } else { vec![0, 1, 2] };
        config.said = vec![0];
    });
    open(&mut world);
    world.run_for(Duration::from_millis(300));
    for rail in 0..2 {
        assert!(world.nodes.iter().all(|_| is_up(&world, 0, rail) == Some(true)));
    }
    assert_eq!(is_up(&world, 1, 2), Some(true), "the rail without a counterpart is used, too");
    world.cut = Box::new(|from, _, it| it != path(1, 1) && from < 2);
    write(&mut world, PROBE_MAX * 4);
    world.expect_all_came();
}

#[test]
fn rails_come_and_go_and_nothing_is_lost_or_waits_for_long() {
    for seed in 0..4 {
        let arena = Arena::default();
        let mut world = pair(&arena, [&[0, 1], &[0, 1]]);
        (world.random, world.lost) = (Random::new(seed), seed);
        let sets: [&[u8]; 7] = [&[0], &[1], &[0, 1], &[2], &[1, 3], &[0, 1, 2, 3], &[3]];
        world.record = Some(Vec::new());
        for _ in 0..60 {
            let (node, set) = (world.random.below(2) as usize, world.random.below(7) as usize);
            (0..2).for_each(|node| world.write_all(node));
            set_rails(&mut world, node, sets[set]);
            if world.random.below(4) == 0 {
                let other = world.random.below(2) as usize;
                let now = world.now;
                world.nodes[other].restart(now);
            }
            (0..2).for_each(|node| world.write_all(node));
            let ticks = world.random.below(400) as u32;
            world.run(ticks);
        }
        world.run_until(Duration::from_secs(5), is_idle);
        world.expect_all_came();
        assert!(world.nodes.iter().flat_map(|node| &node.places).all(|place| place.resets <= 1));
        // Whatever has come back goes on where it was.
        let mut seen = BTreeSet::new();
        for (from, frame) in world.record.take().unwrap() {
            let header = Header::parse(&frame).unwrap();
            let name = (from, header.card_generation, header.key_id, header.path(), header.packet_number);
            assert!(header.kind != Kind::Sealed || seen.insert(name), "{name:?} leaves twice");
        }
    }
}

/// What the paths of a rail that goes had under way is sent at once on another one.
#[test]
fn what_is_under_way_on_a_rail_that_goes_is_sent_again_at_once() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0, 1], &[0, 1]]);
    world.run_for(Duration::from_millis(50));
    world.cut = Box::new(|_, _, it| it == path(0, 0));
    world.write_all(0);
    world.run(1);
    set_rails(&mut world, 0, &[1]);
    let took = world.run_until(PROBE_MAX, |world| world.nodes[1].places[0].counts().1 == 1);
    assert!(took < Duration::from_millis(2), "{took:?}");
    world.run_for(Duration::from_millis(50));
    assert_eq!((is_up(&world, 0, 0), is_up(&world, 0, 1)), (None, Some(true)));
    // The other end has a rail left that leads nowhere else, so it leads to this one.
    world.cut = Box::new(|_, _, _| false);
    world.run_for(Duration::from_millis(300));
    assert_eq!((is_up(&world, 1, 0), is_up(&world, 1, 1)), (Some(true), Some(true)));
}

/// Two networks that do not lead to each other, of which one end has only the first.
#[test]
fn rails_that_do_not_reach_each_other_are_asked_ever_more_seldom() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| {
        config.rails = if config.index == 0 { vec![0] } else { vec![0, 1] };
    });
    world.cut = Box::new(|_, _, it| it != path(0, 0));
    open(&mut world);
    let frames_to_nowhere = |world: &mut World<'_>, time| {
        world.record = Some(Vec::new());
        world.run_for(time);
        let record = world.record.take().unwrap();
        let is_it = |(_, bytes): &&(usize, Vec<u8>)| {
            let header = Header::parse(bytes).unwrap();
            header.kind == Kind::Sealed && header.path() != path(0, 0)
        };
        record.iter().filter(is_it).count()
    };
    world.run_for(HEARTBEAT * 64);
    let asked = frames_to_nowhere(&mut world, Duration::from_secs(60));
    assert!((2..=12).contains(&asked), "{asked} frames in a minute, of both ends");
    assert_eq!(is_up(&world, 1, 1), None, "it leads nowhere, and is not told of as down");
    // As soon as it leads there, it is used like any other.
    world.cut = Box::new(|_, _, _| false);
    world.run_for(Duration::from_secs(15));
    assert_eq!(is_up(&world, 1, 1), Some(true));
    assert!(frames_to_nowhere(&mut world, Duration::from_secs(1)) > 10);
    world.cut = Box::new(|_, _, it| it == path(0, 0));
    write(&mut world, PROBE_MAX * 3);
}

/// An end says that it has no rails, or only those that it has not.
#[test]
fn who_lies_of_its_rails_hurts_no_other_and_is_served_when_it_tells_the_truth() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0, 1], &[0, 1]]);
    for (edition, lie) in (100..).zip([0, 0xf0, 0b1100, 0b1000]) {
        let now = world.now;
        world.nodes[1].guarded(now, |node| {
            node.slots[0].channel.hear_rails_for_test(now, lie, edition);
            node.commit();
        });
        world.run_for(Duration::from_millis(20));
        assert!(world.nodes.iter().all(Node::is_open));
    }
    let now = world.now;
    world.nodes[1].guarded(now, |node| {
        node.slots[0].channel.hear_rails_for_test(now, 0b11, 99);
        node.slots[0].channel.hear_rails_for_test(now, 0b11, 200);
        node.is_awake = true;
        node.commit();
    });
    write(&mut world, PROBE_MAX * 3);
    world.expect_all_came();
}

/// A rail that takes no frame with the largest TLP that was agreed carries none.
#[test]
fn a_rail_that_is_too_small_for_what_was_agreed_is_not_used() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0], &[0, 1]]);
    let (now, node) = (world.now, &mut world.nodes[0]);
    let [large, small] = [9000, 1472].map(|max_frame| Some(PathConfig { max_frame }));
    node.guarded(now, |node| {
        node.slots[0].channel.set_rails(now, [large, small, None, None]);
        node.is_awake = true;
        node.commit();
    });
    world.run_for(Duration::from_millis(300));
    assert_eq!((is_up(&world, 0, 0), is_up(&world, 0, 1)), (Some(true), None));
    write(&mut world, PROBE_MAX);
    world.expect_all_came();
}

/// A new card knows the rails of its peer, which does not say them again.
#[test]
fn a_new_card_knows_which_rails_its_peer_has() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0, 1], &[0]]);
    world.run_for(Duration::from_millis(100));
    for round in 0..4 {
        let now: Instant = world.now;
        world.nodes[round % 2].restart(now);
        world.cut = Box::new(|from, _, it| it != if from == 0 { path(1, 0) } else { path(0, 1) });
        write(&mut world, PROBE_MAX * 4);
        world.cut = Box::new(|_, _, _| false);
        world.run_for(Duration::from_millis(400));
    }
    world.expect_all_came();
}

/// Both ends have got rails of which the other one has not been told: they find each other where lines say.
#[test]
fn ends_whose_rails_change_at_once_meet_again() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0, 1], &[0, 1]]);
    set_rails(&mut world, 1, &[3]);
    write(&mut world, PROBE_MAX * 4);
    set_rails(&mut world, 0, &[2]);
    set_rails(&mut world, 1, &[1]);
    (0..2).for_each(|node| world.write_all(node));
    world.run_until(Duration::from_secs(5), is_idle);
    world.expect_all_came();
    for (node, rail) in [(0, 2), (1, 1)] {
        assert_eq!(is_up(&world, node, rail), Some(true), "node {node}");
    }
}

/// A hello that tells of a rail more has its receiver list paths before the one on which it has come. What has come is
/// to be acknowledged on its own path nevertheless: a packet of another one with the same number may be lost, and what
/// it carried would never be sent again.
#[test]
fn a_hello_that_brings_paths_is_acknowledged_on_the_path_on_which_it_has_come() {
    let arena = Arena::default();
    let mut world = pair_of_mode(&arena, [&[1, 2], &[0, 1, 2]], RailMode::Standby);
    world.run_for(Duration::from_millis(300));
    let paths = [path(1, 1), path(2, 2)];
    let next = |world: &mut World<'_>| paths.map(|path| world.nodes[0].channel(1).next_number_for_test(path));
    loop {
        let [one, two] = next(&mut world);
        if one == two {
            break;
        }
        world.nodes[0].channel(1).challenge(if one < two { paths[0] } else { paths[1] }, 7);
        world.nodes[0].wake();
        world.tick();
    }
    let [number, _] = next(&mut world);
    world.cut = Box::new(|from, _, it| from == 0 && it != path(2, 2));
    world.write_all(0);
    world.tick();
    assert!(next(&mut world) >= [number + 1, number] && next(&mut world)[1] == number, "the write is lost");
    set_rails(&mut world, 0, &[0, 1, 2]);
    world.run(3);
    world.cut = Box::new(|_, _, _| false);
    world.run_until(Duration::from_secs(20), is_idle);
    world.expect_all_came();
}

/// The same where the path before it is a new one: acknowledgements of what has never been sent there are refused, and
/// with them all others, until as many packets have been sent. The rail is to be used at once.
#[test]
fn a_rail_that_comes_behind_the_hello_that_tells_of_it_is_used() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0, 1], &[1]]);
    for _ in 0..3000 {
        world.write_all(1);
        world.tick();
    }
    // What goes over the new rail takes longer at first.
    world.cut = Box::new(|_, _, it| it == path(0, 0));
    set_rails(&mut world, 1, &[0, 1]);
    world.run_for(Duration::from_millis(5));
    world.cut = Box::new(|_, _, _| false);
    world.run_for(Duration::from_secs(2));
    for node in 0..2 {
        assert_eq!(is_up(&world, node, 0), Some(true), "node {node}");
    }
    write(&mut world, PROBE_MAX * 4);
    world.expect_all_came();
}

/// The first exchange with a newcomer takes the path on which it was heard, and not another one that is listed before
/// it since then.
#[test]
fn a_newcomer_is_answered_on_the_path_on_which_it_was_heard() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| {
        config.rails = if config.index == 0 { vec![0] } else { vec![0, 1] };
        config.said = vec![1];
    });
    world.cut = Box::new(|_, _, it| it == path(0, 0));
    world.record = Some(Vec::new());
    open(&mut world);
    let record = world.record.take().unwrap();
    let is_lost = |(from, bytes): &&(usize, Vec<u8>)| {
        let header = Header::parse(bytes).unwrap();
        *from == 1 && header.kind == Kind::Sealed && header.path() == path(0, 0)
    };
    assert!(record.iter().filter(is_lost).count() <= 2, "no more than a hello and a ping go elsewhere");
}

/// The called end has another rail than the line says, as its hello has told, and begins anew: whoever calls it there
/// and is answered has found it. What is forgotten of the life before must not take the only path with it.
#[test]
fn an_end_that_begins_anew_on_a_rail_of_which_no_line_speaks_is_met_again() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| {
        config.rails = vec![0];
        config.said = vec![0];
    });
    open(&mut world);
    set_rails(&mut world, 1, &[2]);
    world.cut = Box::new(|_, _, it| it == path(0, 0));
    write(&mut world, PROBE_MAX * 4);
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 77);
    world.run_until(Duration::from_secs(20), |world| {
        world.nodes.iter().all(Node::is_open) && world.nodes[1].slots[0].channel.is_met()
    });
    write(&mut world, PROBE_MAX * 4);
}

/// An answer comes late, behind the hello by which its sender has told that it has another rail now. It must not take
/// back what has been told since: when this end has another rail as well, nobody would find the other one any more.
#[test]
fn an_answer_that_comes_behind_a_newer_hello_takes_back_nothing() {
    let arena = Arena::default();
    let mut world = pair(&arena, [&[0, 1], &[0, 1]]);
    world.run_for(Duration::from_millis(100));
    let now = world.now;
    world.nodes[0].channel(1).call_for_test(now);
    let call = world.frames_of(0).swap_remove(0).1;
    world.give(1, &call);
    let (_, answer) = world.nodes[1].frames(now).swap_remove(0);
    assert_eq!(Header::parse(&answer).unwrap().kind, Kind::Response);
    set_rails(&mut world, 1, &[3]);
    world.run_for(Duration::from_millis(10));
    assert_eq!(is_up(&world, 1, 3), Some(true), "the hello was heard");
    world.give(0, &answer);
    set_rails(&mut world, 0, &[2]);
    // Nobody is where the other rails were.
    world.cut = Box::new(|from, _, it| {
        let (own, peer) = it.rails().unwrap();
        (if from == 1 { own } else { peer }).get() != 3
    });
    write(&mut world, Duration::from_secs(20));
    world.expect_all_came();
}
