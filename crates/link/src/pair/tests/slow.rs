//! Long ways: a satellite's, or a queue that is full.

use base::ids::RailId;
use core::time::Duration;

use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY_MAX, SILENCE};

use super::identity::call_of_twin;
use super::*;
use crate::paths::PathStatus;

fn write(world: &mut World<'_>, count: u32) {
    for _ in 0..count {
        (0..2).for_each(|node| world.write_all(node));
    }
}

#[test]
fn round_trips_of_seconds_connect_and_carry() {
    for delay in [200, 750, 1_500, 3_000].map(Duration::from_millis) {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 2);
        (world.delay, world.pace) = (delay, Duration::from_millis(5));
        // The answer to the first attempt, that to the last one before it, and what asks for the streams.
        world.run_until(delay * 8 + HANDSHAKE_RETRY_MAX, |world| world.nodes.iter().all(Node::is_open));
        write(&mut world, 200);
        world.run_until(delay * 6 + SILENCE, |world| {
            world.nodes.iter().flat_map(|node| &node.places).all(|place| place.stream.is_idle())
        });
        world.expect_all_came();
        // From now on everybody knows how long the way is, and nothing more is in doubt.
        world.run_for(delay * 10);
        let again = |world: &World<'_>| -> u64 {
            let places = world.nodes.iter().flat_map(|node| &node.places);
            places.map(|place| place.stream.stats().retransmissions.get()).sum()
        };
        let before = again(&world);
        write(&mut world, 100);
        world.run_for(delay * 10);
        world.expect_all_came();
        assert_eq!(again(&world), before, "{delay:?}");
        for node in &world.nodes {
            let channel = &node.slots[0].channel;
            assert_eq!(node.places[0].counts(), (300, 300));
            assert_eq!(channel.stats().handshakes.get(), 1, "{delay:?}: nobody was taken for silent");
            for rail in 0..2 {
                let (_, PathStatus { round_trip, is_up, .. }) =
                    channel.rail_status(RailId::ALL[rail], world.now).unwrap();
                let round_trip = round_trip.unwrap();
                assert!(is_up && round_trip.abs_diff(delay * 2) < delay / 4, "{delay:?} {round_trip:?}");
            }
        }
    }
}

/// Three round trips are longer than the verdict of a short way.
#[test]
fn the_life_before_is_given_the_time_that_its_way_takes() {
    for is_gone in [false, true] {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 1);
        world.delay = Duration::from_millis(250);
        world.run_until(SILENCE * 4, |world| world.nodes.iter().all(Node::is_open));
        world.run_for(SILENCE);
        let is_let_in = |world: &World<'_>| world.nodes[1].slots[0].channel.has_pending_for_test();
        call_of_twin(&arena, &mut world);
        world.cut = Box::new(move |from, _, _| is_gone && from == 0);
        for _ in 0..70 {
            world.write_all(0);
            world.run_for(Duration::from_millis(20));
            assert!(!is_let_in(&world), "{:?}", world.now);
        }
        world.run_for(Duration::from_millis(300));
        assert_eq!(is_let_in(&world), is_gone);
    }
}
