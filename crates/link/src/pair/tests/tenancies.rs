//! Whose a function is, while cards, nodes and years come and go.

use core::time::Duration;

use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY_MAX, HOLD, SILENCE};

use super::opening::{give_back, rivals, state};
use super::*;
use crate::pair::*;

/// Nodes 0 and 2 borrow the function of node 1: node 0 has it, and node 2 cannot be heard.
fn one_has_it(arena: &Arena) -> World<'_> {
    let mut world = rivals(arena);
    only_hears(&mut world, 0);
    world.run_until(Duration::from_secs(1), |world| world.nodes[0].is_open());
    world.write_all(0);
    world.run(50);
    world
}

/// Of the two rivals only this one is connected.
fn only_hears(world: &mut World<'_>, node: usize) {
    let other = 2 - node;
    world.cut = Box::new(move |from, to, _| from == other || to == other);
}

fn tenancy(world: &World<'_>) -> u64 {
    world.nodes[1].places[0].offer().tenant().number >> 32
}

#[test]
fn the_hold_time_goes_on_while_cards_of_the_lender_come_and_go() {
    let arena = Arena::default();
    let mut world = one_has_it(&arena);
    only_hears(&mut world, 2);
    let minute = Duration::from_secs(60);
    for _ in 0..HOLD.as_secs() / minute.as_secs() {
        world.now += minute;
        let now = world.now;
        world.nodes[1].restart(now);
    }
    world.now += minute / 2;
    let silent = world.now.since(world.nodes[1].slots[0].channel.last_heard());
    assert!(silent >= HOLD && silent < HOLD + minute, "{silent:?}");
    world.run_until(SILENCE * 3, |world| world.nodes[2].is_open());
    assert_eq!(world.nodes[1].config.disk[0].node, key_of(2).id());
}

#[test]
fn the_hold_time_counts_from_when_a_lender_that_was_started_can_hear() {
    let arena = Arena::default();
    let mut world = one_has_it(&arena);
    only_hears(&mut world, 2);
    world.now += HOLD * 2;
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 100);
    // Cards come and go.
    for _ in 0..9 {
        world.now += HOLD / 10;
        let now = world.now;
        world.nodes[1].restart(now);
        world.run_for(Duration::from_millis(600));
        assert!(!world.nodes[2].is_open());
    }
    world.now += HOLD / 10;
    world.run_until(HANDSHAKE_RETRY_MAX * 3, |world| world.nodes[2].is_open());
    assert_eq!(tenancy(&world), 2);
}

#[test]
fn what_was_given_back_is_free_after_a_restart_of_the_lender() {
    let arena = Arena::default();
    let mut world = one_has_it(&arena);
    give_back(&mut world, 0);
    world.lost = 30;
    world.run_until(SILENCE * 3, |world| state(world, 0) == ClaimState::Closed);
    world.lost = 0;
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 100);
    only_hears(&mut world, 2);
    world.run_until(SILENCE * 2, |world| world.nodes[2].is_open());
}

/// Another one was let in and has left before its lender's agent had written anything: the next one is told a number of
/// its own.
#[test]
fn tenancies_that_follow_each_other_fast_have_numbers_of_their_own() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.nodes[1].config.disk_is_full = true;
    only_hears(&mut world, 0);
    world.run_for(Duration::from_millis(100));
    let asked = world.nodes[1].places[0].offer().unsaved_tenancy().unwrap();
    assert_eq!((asked.number >> 32, state(&world, 0)), (1, ClaimState::Asking));
    only_hears(&mut world, 2);
    world.now += HOLD * 2;
    world.run_until(SILENCE * 4, |world| tenancy(world) == 2);
    // The first one's becomes durable late.
    let End::Offer(offer) = &mut world.nodes[1].places[0].end else { panic!() };
    offer.set_tenancy(asked);
    assert_eq!(offer.unsaved_tenancy().map(|tenancy| tenancy.number >> 32), Some(2));
    world.run(50);
    assert_eq!(state(&world, 2), ClaimState::Asking);
    world.nodes[1].config.disk_is_full = false;
    world.run_until(HANDSHAKE_RETRY_MAX * 2, |world| world.nodes[2].is_open());
    assert_eq!(world.nodes[2].places[0].claim().tenancy() >> 32, 2);
    assert_eq!(world.nodes[1].config.disk[0].number >> 32, 2);
}

/// A borrower that lost the function by its silence, to one that has given it back since, comes again: the lender has
/// ended what this one still believes in.
#[test]
fn who_slept_through_the_hold_time_begins_anew() {
    let arena = Arena::default();
    let mut world = one_has_it(&arena);
    only_hears(&mut world, 2);
    world.now += HOLD;
    world.run_until(SILENCE * 3, |world| world.nodes[2].is_open());
    give_back(&mut world, 2);
    world.run_until(SILENCE, |world| state(world, 2) == ClaimState::Closed);
    only_hears(&mut world, 0);
    world.write_all(0);
    world.run_until(SILENCE * 3, |world| world.nodes[0].places[0].resets == 2 && world.nodes[0].is_open());
    assert_eq!(tenancy(&world), 3);
    world.write_all(0);
    world.run(50);
    assert_eq!(world.nodes[1].places[0].counts().1, 1, "its writes arrive again");
    assert!(world.nodes[0].places[0].refusals.is_empty());
}

#[test]
fn who_ends_before_it_met_anybody_has_nothing_to_give_back() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let now = world.now;
    world.nodes[0].step(now);
    give_back(&mut world, 0);
    assert_eq!(state(&world, 0), ClaimState::Closed, "at once");
    world.run(200);
    assert_eq!(state(&world, 0), ClaimState::Closed);
    assert_eq!(world.nodes[1].places[0].offer().state(), OfferState::Free);
    assert_eq!((tenancy(&world), world.nodes[0].places[0].resets), (0, 0));
}
