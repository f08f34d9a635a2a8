//! Who somebody is: lives of a node that come back, or seem to, and nodes that are somewhere else now.

use core::time::Duration;

use base::Random;
use base::ids::DomainId;
use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY, HANDSHAKE_RETRY_MAX, RAIL_VERDICT, SILENCE};

use super::calls::refusals;
use super::*;
use crate::frame::{Header, Kind};
use crate::pair::*;

fn is_open(world: &World<'_>) -> bool {
    world.nodes.iter().all(Node::is_open)
}

fn open(arena: &Arena) -> World<'_> {
    let mut world = World::pair(arena, 1);
    world.run_until(Duration::from_secs(1), is_open);
    world.write_all(0);
    world.run(50);
    world
}

/// Another life of node 0 calls, on its own machine, and its first message reaches node 1.
pub(super) fn call_of_twin<'m>(arena: &'m Arena, world: &mut World<'m>) -> Node<'m> {
    let mut config = world.nodes[0].config.clone();
    (config.life, config.incarnation, config.generation) = (100, 2, 1);
    let (now, mut twin) = (world.now, Node::new(arena, config, world.now));
    twin.step(now);
    let (_, call) = twin.frames(now).swap_remove(0);
    assert!(matches!(world.give(1, &call), Heard::Proposal(_)));
    twin
}

#[test]
fn who_was_silent_for_long_is_asked_all_the_same() {
    let arena = Arena::default();
    let mut world = open(&arena);
    world.cut = Box::new(|_, _, _| true);
    world.run_for(Duration::from_millis(600));
    world.cut = Box::new(|_, _, _| false);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    // Silence may be this end's own: it may have stood still, with the answer waiting in its socket.
    let took = world.run_until(SILENCE, is_open);
    assert!(took >= RAIL_VERDICT && took < RAIL_VERDICT + HANDSHAKE_RETRY * 3, "{took:?}");
}

#[test]
fn a_probe_for_which_the_network_takes_its_time_is_answered() {
    let arena = Arena::default();
    let mut world = open(&arena);
    call_of_twin(&arena, &mut world);
    // What was under way before the probe says nothing.
    world.write_all(0);
    let (_, frame) = world.frames_of(0).swap_remove(0);
    world.give(1, &frame);
    let (begun, mut said_no) = (world.now, false);
    for _ in 0..1000 {
        world.now += TICK;
        for (_, frame) in world.frames_of(1) {
            said_no |= Header::parse(&frame).unwrap().kind == Kind::Response;
            world.give(0, &frame);
        }
        let is_late = world.now.since(begun) > Duration::from_millis(100);
        assert!(!said_no || is_late);
        for (_, frame) in world.frames_of(0) {
            if is_late {
                world.give(1, &frame);
            }
        }
    }
    assert!(said_no, "the first one is there");
}

#[test]
fn who_stood_still_finds_the_answer_to_its_probe_in_its_socket() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let mut twin = call_of_twin(&arena, &mut world);
    // What was sent before the probe came lies in front of its answer.
    let mut socket = Vec::new();
    for _ in 0..20 {
        world.write_all(0);
        socket.extend(world.frames_of(0));
    }
    for (_, probe) in world.frames_of(1) {
        world.give(0, &probe);
    }
    socket.extend(world.frames_of(0));
    assert!(socket.len() > 1);
    // The clock is looked at first, and the socket is read bit by bit.
    world.now += RAIL_VERDICT * 2;
    let now = world.now;
    world.nodes[1].step(now);
    for (_, frame) in socket {
        world.now += TICK;
        let now = world.now;
        world.nodes[1].step(now);
        world.give(1, &frame);
        world.nodes[1].step(now);
    }
    world.now += Duration::from_millis(10);
    for (path, mut frame) in world.frames_of(1) {
        twin.handle_frame(world.now, 1, path, &mut frame);
    }
    assert!(matches!(refusals(&twin)[..], [Refusal::Twin { .. }]), "{:?}", refusals(&twin));
    assert!(!twin.slots[0].channel.is_met());
}

/// A card dies after it has let in who called, and the life before that seemed to be gone is heard by the next one.
#[test]
fn an_offer_is_withdrawn_when_the_life_before_is_heard_again() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let mut twin = call_of_twin(&arena, &mut world);
    world.frames_of(1);
    let mut answer = Vec::new();
    for _ in 0..10 {
        world.now += RAIL_VERDICT / 5;
        answer = world.frames_of(1);
        if world.nodes[1].slots[0].channel.has_pending_for_test() {
            break;
        }
    }
    assert!(world.nodes[1].slots[0].channel.has_pending_for_test(), "it was let in");
    let now = world.now;
    world.nodes[1].restart(now);
    world.run(100);
    for (path, mut frame) in answer {
        twin.handle_frame(world.now, 1, path, &mut frame);
    }
    twin.step(world.now);
    let frames = twin.frames(world.now);
    assert!(twin.slots[0].channel.is_met() && !frames.is_empty(), "it takes itself for the one that is met");
    for (_, frame) in frames {
        world.give(1, &frame);
    }
    world.write_all(0);
    world.run(100);
    let place = &world.nodes[1].places[0];
    assert_eq!((place.counts().1, place.offer().tenant().number >> 32), (2, 1), "the first one goes on");
}

/// A copy was just told that the node lives, and then that node ends and is started again: what was found out is past.
#[test]
fn who_is_started_again_right_after_a_twin_was_refused_is_none() {
    for pause in [Duration::from_millis(10), RAIL_VERDICT / 2, RAIL_VERDICT * 2] {
        let arena = Arena::default();
        let mut world = open(&arena);
        let mut twin = call_of_twin(&arena, &mut world);
        let mut has_told = false;
        while !has_told {
            world.now += TICK;
            for (path, mut frame) in world.frames_of(1) {
                world.give(0, &frame);
                twin.handle_frame(world.now, 1, path, &mut frame);
                has_told |= !refusals(&twin).is_empty();
            }
            for (_, frame) in world.frames_of(0) {
                world.give(1, &frame);
            }
        }
        world.run_for(pause);
        let now = world.now;
        world.nodes[0].config.incarnation = 2;
        world.nodes[0].reboot(&arena, now, 101);
        let took = world.run_until(SILENCE, is_open);
        assert!(took >= RAIL_VERDICT && took < RAIL_VERDICT + HANDSHAKE_RETRY * 3, "{took:?}");
        assert!(refusals(&world.nodes[0]).is_empty(), "{pause:?}: {:?}", refusals(&world.nodes[0]));
    }
}

/// Wherever it came from first: somebody may have repeated it faster than the network.
#[test]
fn a_call_that_waits_is_answered_on_each_path_that_it_comes_on() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    let calls = world.frames_of(0);
    for (_, call) in calls.iter().chain(&calls) {
        assert!(matches!(world.give(1, call), Heard::Proposal(_)));
    }
    let mut answered = Vec::new();
    while world.now.since(now) < RAIL_VERDICT * 2 && answered.is_empty() {
        world.now += TICK;
        let answers = world.frames_of(1).into_iter();
        let answers = answers.filter(|(_, frame)| Header::parse(frame).unwrap().kind == Kind::Response);
        answered.extend(answers.map(|(path, _)| path));
    }
    assert_eq!(answered, PATHS);
}

/// Whatever gets lost, and whenever cards die.
#[test]
fn a_twin_takes_nothing_over_loss_and_killed_cards() {
    for seed in 0..6 {
        let arena = Arena::default();
        let mut world = open(&arena);
        world.random = Random::new(seed);
        (world.lost, world.doubled, world.late) = (20, 5, 20);
        let course = world.nodes[1].slots[0].channel.course();
        let (mut twin, mut lives) = (call_of_twin(&arena, &mut world), 101);
        for round in 0..8_000 {
            world.tick();
            twin.step(world.now);
            let now = world.now;
            for (_, frame) in twin.frames(now) {
                if world.random.below(100) >= 20 {
                    world.give(1, &frame);
                }
            }
            for (path, frame) in world.nodes[1].frames(now) {
                twin.handle_frame(now, 1, path, &mut frame.clone());
                world.give(0, &frame);
            }
            if round % 20 == 0 {
                world.write_all(0);
            }
            if world.random.below(400) == 0 {
                let (node, stores) = (world.random.below(2) as usize, 1 + world.random.below(300));
                world.nodes[node].kill_after(stores);
            }
            if round % 2_500 == 2_499 {
                assert!(!refusals(&twin).is_empty(), "{seed}: it was told");
                lives += 1;
                twin.reboot(&arena, now, lives);
            }
        }
        let channel = &world.nodes[1].slots[0].channel;
        assert_eq!(channel.course(), course, "{seed}: {}", world.describe());
        assert!(!twin.slots[0].channel.is_met(), "{seed}");
        world.nodes.iter().for_each(|node| node.kill_after(0));
        (world.lost, world.doubled, world.late) = (0, 0, 0);
        world.run_for(Duration::from_secs(1));
        world.expect_all_came();
        assert!(world.nodes[1].places[0].counts().1 > 300);
    }
}

#[test]
fn whichever_rail_leads_back_a_twin_is_told_on_it() {
    let arena = Arena::default();
    let mut world = open(&arena);
    let mut twin = call_of_twin(&arena, &mut world);
    for _ in 0..10_000 {
        world.tick();
        twin.step(world.now);
        for (_, frame) in twin.frames(world.now) {
            world.give(1, &frame);
        }
        let now = world.now;
        for (path, frame) in world.nodes[1].frames(now) {
            world.give(0, &frame);
            if path == PATHS[1] {
                twin.handle_frame(now, 1, path, &mut frame.clone());
            }
        }
    }
    let told = refusals(&twin);
    assert!(!told.is_empty() && told.iter().all(|why| matches!(why, Refusal::Twin { .. })), "{told:?}");
}

/// A domain comes with the identity: a node whose state folder is new has another one, and whoever has met it still
/// knows the old one.
#[test]
fn a_peer_that_has_another_domain_now_is_found() {
    for earlier_attempts in 0..2 {
        let arena = Arena::default();
        let mut world = open(&arena);
        world.nodes[0].channel(1).skip_attempts_for_test(earlier_attempts);
        world.nodes[0].commit();
        let now = world.now;
        world.nodes[1].config.domain = 9;
        world.nodes[1].reboot(&arena, now, 100);
        world.run_until(SILENCE + HANDSHAKE_RETRY_MAX * 2, |world| world.nodes[1].is_open());
        let peer = world.nodes[0].slots[0].channel.peer();
        assert_eq!(peer.map(|(_, _, domain)| domain), Some(DomainId(9)));
        world.write_all(0);
        world.run(50);
        world.expect_all_came();
    }
}
