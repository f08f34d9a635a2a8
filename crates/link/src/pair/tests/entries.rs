//! Functions that a manager gives and takes: an entry of the lender's table says whose one is.

use core::time::Duration;

use base::ids::{DomainId, Group, LoanGeneration};
use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY_MAX, HOLD, SILENCE};

use super::opening::{give_back, rivals, state};
use super::*;
use crate::entry::{Applied, Assignment, Entry, Holder, Possession};
use crate::pair::*;

const LENDER: usize = 1;
/// Longer than any silence that is not meant.
const KEPT: Duration = Duration::from_secs(20);

/// Where [`borrow`] asks for the function.
fn place_of(node: usize, hold: Duration) -> Assignment {
    Assignment { node: key_of(node).id(), domain: DomainId(9), slot: 0, group: Group::DEFAULT, hold }
}

fn assigned(generation: u64, node: usize) -> Entry {
    let holder = Holder::Assigned(place_of(node, KEPT));
    Entry { generation: LoanGeneration(generation), holder }
}

fn leaving(generation: u64, node: usize, hold: Duration, forced: bool) -> Entry {
    let holder = Holder::Leaving { from: place_of(node, hold), forced };
    Entry { generation: LoanGeneration(generation), holder }
}

fn nobody(generation: u64) -> Entry {
    Entry { generation: LoanGeneration(generation), holder: Holder::Nobody }
}

/// The lender's table has this from now on.
fn enter(world: &mut World<'_>, entry: Entry) {
    let (now, node) = (world.now, &mut world.nodes[LENDER]);
    let Loan::Lend(config) = &mut node.config.loans[0] else { panic!("it borrows") };
    config.entry = Some(Box::new(entry));
    let End::Offer(offer) = &mut node.places[0].end else { panic!("it borrows") };
    offer.set_entry(now, entry);
    node.drive(now);
    node.commit();
    world.run(1);
}

/// What a node asks for from now on.
fn ask(world: &mut World<'_>, node: usize, change: impl Fn(&mut ClaimConfig)) {
    let now = world.now;
    let Loan::Borrow { config, .. } = &mut world.nodes[node].config.loans[0] else { panic!("it lends") };
    change(config);
    world.nodes[node].restart(now);
}

fn ask_by_entry(world: &mut World<'_>, node: usize, generation: u64) {
    ask(world, node, |config| {
        config.secret = None;
        config.wish.generation = LoanGeneration(generation);
    });
}

/// Three nodes of which the first and the last ask by these entries for what the one in the middle lends.
fn managed(arena: &Arena, entry: Entry, generations: [u64; 2]) -> World<'_> {
    let mut world = rivals(arena);
    enter(&mut world, entry);
    for (node, generation) in [0, 2].into_iter().zip(generations) {
        ask_by_entry(&mut world, node, generation);
    }
    world
}

fn last(world: &World<'_>, node: usize) -> Option<OpenRefusal> {
    world.nodes[node].places[0].refusals.last().copied()
}

fn applied(world: &World<'_>) -> (u64, Possession) {
    let Applied { generation, held, .. } = world.nodes[LENDER].places[0].offer().applied().unwrap();
    (generation.0, held)
}

#[test]
fn whose_it_is_opens_it_without_a_secret_and_nobody_else_does() {
    let arena = Arena::default();
    let mut world = managed(&arena, assigned(5, 0), [5, 5]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.run_for(Duration::from_secs(3));
    assert_eq!(last(&world, 2), Some(OpenRefusal::NotAllowed));
    assert_eq!(applied(&world), (5, Possession::Assigned));
    let generations = [0, LENDER].map(|node| world.nodes[node].places[0].stream.generation());
    assert_eq!(generations, [LoanGeneration(5); 2], "frames bear it");
    world.write_all(0);
    world.run(50);
    assert_eq!(world.nodes[LENDER].places[0].counts().1, 1);
    // The lender's next card knows it, too.
    let now = world.now;
    world.nodes[LENDER].restart(now);
    assert_eq!(world.nodes[LENDER].places[0].stream.generation(), LoanGeneration(5));
    world.write_all(0);
    world.run(50);
    assert_eq!(world.nodes[LENDER].places[0].counts().1, 2);
}

#[test]
fn it_is_opened_in_its_place_by_its_generation_and_by_no_line() {
    type Change = fn(&mut ClaimConfig);
    let wrong: [(Change, OpenRefusal); 5] = [
        (|config| config.wish.generation = LoanGeneration(4), OpenRefusal::Generation),
        (|config| config.wish.generation = LoanGeneration(6), OpenRefusal::Generation),
        (|config| config.wish.domain = DomainId(8), OpenRefusal::NotAllowed),
        (|config| config.wish.slot = 1, OpenRefusal::NotAllowed),
        (|config| *config = borrow(0), OpenRefusal::Managed),
    ];
    let refused = |change: &dyn Fn(&mut ClaimConfig)| {
        let arena = Arena::default();
        let mut world = rivals(&arena);
        enter(&mut world, assigned(5, 0));
        ask_by_entry(&mut world, 0, 5);
        ask(&mut world, 0, change);
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.nodes[LENDER].places[0].resets, 0);
        core::mem::take(&mut world.nodes[0].places[0].refusals)
    };
    for (change, refusal) in wrong {
        let refusals = refused(&change);
        assert!(!refusals.is_empty() && refusals.iter().all(|why| *why == refusal), "{refusals:?}");
    }
    // Who has no line of it is not told what there is.
    let stranger = |config: &mut ClaimConfig| {
        *config = borrow(0);
        config.secret = Some([1; 32]);
    };
    assert!(refused(&stranger).iter().all(|why| *why == OpenRefusal::Unknown));
}

/// A table that has nothing of a function knows no generation of it.
#[test]
fn without_an_entry_only_the_line_counts() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    ask_by_entry(&mut world, 0, 1);
    world.run_until(Duration::from_secs(2), |world| world.nodes[2].is_open());
    world.run_for(Duration::from_secs(2));
    assert_eq!(last(&world, 0), Some(OpenRefusal::Generation));
    assert_eq!(world.nodes[LENDER].places[0].offer().applied(), None);
}

#[test]
fn who_is_to_give_it_back_keeps_it_until_then_and_nobody_gets_it_before() {
    let arena = Arena::default();
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    enter(&mut world, leaving(6, 0, KEPT, false));
    let now = world.now;
    world.nodes[LENDER].restart(now);
    world.run_for(Duration::from_secs(3));
    assert_eq!((world.nodes[0].is_open(), applied(&world)), (true, (6, Possession::Leaving)));
    // Nor does it when the table is in a hurry.
    enter(&mut world, assigned(7, 2));
    world.write_all(0);
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.nodes[LENDER].places[0].counts().1, 1);
    assert!(matches!(last(&world, 2), Some(OpenRefusal::InUse { hold: None, .. })), "{:?}", last(&world, 2));
    assert_eq!(applied(&world), (7, Possession::Leaving));
    give_back(&mut world, 0);
    world.run_until(HANDSHAKE_RETRY_MAX * 2, |world| world.nodes[2].is_open());
    assert_eq!((state(&world, 0), applied(&world)), (ClaimState::Closed, (7, Possession::Assigned)));
}

#[test]
fn nobody_has_it_when_that_is_durable() {
    let arena = Arena::default();
    let mut world = managed(&arena, assigned(5, 0), [5, 5]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    enter(&mut world, leaving(6, 0, KEPT, true));
    assert_eq!(applied(&world), (6, Possession::Nobody));
    let mut world = managed(&arena, assigned(5, 0), [5, 5]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.nodes[LENDER].config.disk_is_full = true;
    enter(&mut world, leaving(6, 0, KEPT, true));
    world.run_for(Duration::from_secs(1));
    assert_eq!(applied(&world), (6, Possession::Leaving));
    let now = world.now;
    world.nodes[LENDER].restart(now);
    world.run_for(Duration::from_secs(1));
    assert_eq!(applied(&world), (6, Possession::Leaving));
    world.nodes[LENDER].config.disk_is_full = false;
    world.run_for(Duration::from_millis(100));
    assert_eq!(applied(&world), (6, Possession::Nobody));
    assert!(!world.nodes[LENDER].config.disk[0].is_held);
}

#[test]
fn who_is_silent_for_its_hold_time_has_it_no_more() {
    let arena = Arena::default();
    for (hold, patience) in [(Duration::ZERO, SILENCE), (Duration::from_secs(5), Duration::from_secs(5))] {
        let mut world = managed(&arena, assigned(5, 0), [5, 7]);
        world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
        world.cut = Box::new(|from, to, _| from == 0 || to == 0);
        enter(&mut world, leaving(6, 0, hold, false));
        let took = world.run_until(patience * 2, |world| applied(world).1 == Possession::Nobody);
        assert!(took + Duration::from_millis(200) > patience, "{took:?}");
        // It comes back, and learns it.
        world.cut = Box::new(|_, _, _| false);
        world.write_all(0);
        world.run_until(Duration::from_secs(5), |world| last(world, 0) == Some(OpenRefusal::Generation));
    }
}

#[test]
fn who_is_forced_out_loses_it_at_once_and_learns_it() {
    let arena = Arena::default();
    for is_heard in [true, false] {
        let mut world = managed(&arena, assigned(5, 0), [5, 7]);
        world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
        world.cut = Box::new(move |from, to, _| !is_heard && (from == 0 || to == 0));
        enter(&mut world, leaving(6, 0, KEPT, false));
        world.run_for(SILENCE * 3);
        assert_eq!(applied(&world).1, Possession::Leaving);
        enter(&mut world, leaving(6, 0, KEPT, true));
        assert_eq!(applied(&world), (6, Possession::Nobody));
        enter(&mut world, nobody(6));
        enter(&mut world, assigned(7, 2));
        world.run_until(HANDSHAKE_RETRY_MAX * 2, |world| world.nodes[2].is_open());
        world.cut = Box::new(|_, _, _| false);
        world.write_all(0);
        world.run_until(Duration::from_secs(3), |world| last(world, 0) == Some(OpenRefusal::Generation));
        world.write_all(2);
        world.run(50);
        assert_eq!(world.nodes[LENDER].places[0].counts().1, 1, "nothing of who had it before");
        // It asks, but not all the time.
        let before = world.nodes[0].places[0].refusals.len();
        world.run_for(Duration::from_secs(30));
        assert!(world.nodes[0].places[0].refusals.len() - before <= 35);
    }
}

/// Whoever had it by its line is as good as anybody whose it is not any more.
#[test]
fn a_line_opens_it_no_more_once_it_is_managed() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.cut = Box::new(|from, to, _| from == 2 || to == 2);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.cut = Box::new(|_, _, _| false);
    enter(&mut world, assigned(1, 2));
    ask_by_entry(&mut world, 2, 1);
    world.run_for(Duration::from_secs(3));
    assert!(world.nodes[0].is_open() && !world.nodes[2].is_open());
    give_back(&mut world, 0);
    world.run_until(HANDSHAKE_RETRY_MAX * 2, |world| world.nodes[2].is_open());
    let now = world.now;
    world.nodes[0].places[0].claim().open(now);
    world.nodes[0].commit();
    world.run_until(Duration::from_secs(3), |world| last(world, 0) == Some(OpenRefusal::Managed));
}

/// It has lost its stream, and is not let in: so it has nothing, and nobody waits for it.
#[test]
fn without_a_stream_nobody_is_waited_for() {
    let arena = Arena::default();
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    let now = world.now;
    world.nodes[LENDER].reboot(&arena, now, 100);
    world.nodes[LENDER].config.disk_is_full = true;
    enter(&mut world, leaving(6, 0, HOLD, false));
    world.run(5);
    assert_eq!(applied(&world), (6, Possession::Leaving), "that is not durable yet");
    world.nodes[LENDER].config.disk_is_full = false;
    world.run(5);
    assert_eq!(applied(&world), (6, Possession::Nobody));
    assert!(!world.nodes[LENDER].config.disk[0].is_held, "it is not called any more");
    // Whose it is has it though it was not heard since.
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    let now = world.now;
    world.nodes[LENDER].reboot(&arena, now, 100);
    world.run_until(SILENCE * 4, |world| world.nodes[0].is_open() && world.nodes[LENDER].is_open());
}

#[test]
fn whose_it_is_is_overdue_after_its_hold_time_and_until_it_is_heard() {
    let arena = Arena::default();
    let is_overdue = |world: &World<'_>| world.nodes[LENDER].places[0].offer().applied().unwrap().is_overdue;
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.run_for(SILENCE * 2);
    assert_eq!(is_overdue(&world), Some(false));
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    let took = world.run_until(KEPT * 2, |world| is_overdue(world) == Some(true));
    assert!(took + Duration::from_millis(200) > KEPT, "{took:?}");
    assert!(world.nodes[LENDER].places[0].offer().state() == OfferState::Open, "it keeps it");
    // The next card listens before it says so.
    let now = world.now;
    world.nodes[LENDER].restart(now);
    world.run(1);
    assert_eq!(is_overdue(&world), None);
    world.run_until(SILENCE * 2, |world| is_overdue(world) == Some(true));
    world.cut = Box::new(|_, _, _| false);
    world.write_all(0);
    world.run_until(SILENCE * 4, |world| is_overdue(world) == Some(false));
    // One that never came is awaited from when it was assigned.
    enter(&mut world, leaving(6, 0, KEPT, true));
    world.cut = Box::new(|from, to, _| from == 2 || to == 2);
    enter(&mut world, assigned(7, 2));
    let took = world.run_until(KEPT * 2, |world| is_overdue(world) == Some(true));
    assert!(took + Duration::from_millis(200) > KEPT, "{took:?}");
    // So is one that has had it before, however long ago that was.
    let arena = Arena::default();
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    enter(&mut world, leaving(6, 0, KEPT, true));
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    world.run_for(KEPT * 2);
    enter(&mut world, assigned(7, 0));
    assert_eq!(is_overdue(&world), Some(false));
    let took = world.run_until(KEPT * 2, |world| is_overdue(world) == Some(true));
    assert!(took + Duration::from_millis(200) > KEPT, "{took:?}");
}

/// A node whose the function is and that has given it back is awaited from then on, also by the lender's next card.
#[test]
fn who_gave_back_what_is_its_is_awaited_from_then_on() {
    let arena = Arena::default();
    let is_overdue = |world: &World<'_>| world.nodes[LENDER].places[0].offer().applied().unwrap().is_overdue;
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.run_for(KEPT * 2);
    give_back(&mut world, 0);
    world.run_until(SILENCE, |world| world.nodes[LENDER].places[0].offer().state() == OfferState::Free);
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    let now = world.now;
    world.nodes[LENDER].restart(now);
    world.run_for(SILENCE * 2);
    assert_eq!(is_overdue(&world), Some(false));
    let took = world.run_until(KEPT * 2, |world| is_overdue(world) == Some(true));
    assert!(took + SILENCE * 3 > KEPT, "{took:?}");
}

/// The lender's card went before it knew of an entry that the next one begins with.
#[test]
fn whose_it_is_by_an_entry_that_a_new_card_brings_is_awaited_from_then_on() {
    let arena = Arena::default();
    let is_overdue = |world: &World<'_>| world.nodes[LENDER].places[0].offer().applied().unwrap().is_overdue;
    let mut world = managed(&arena, assigned(5, 0), [5, 7]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    enter(&mut world, leaving(6, 0, KEPT, true));
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    world.run_for(KEPT * 2);
    let Loan::Lend(config) = &mut world.nodes[LENDER].config.loans[0] else { panic!("it borrows") };
    config.entry = Some(Box::new(assigned(7, 0)));
    let now = world.now;
    world.nodes[LENDER].restart(now);
    world.run_for(SILENCE * 2);
    assert_eq!(is_overdue(&world), Some(false));
    let took = world.run_until(KEPT * 2, |world| is_overdue(world) == Some(true));
    assert!(took + SILENCE * 3 > KEPT, "{took:?}");
    // No card after that begins anew with it.
    let now = world.now;
    world.nodes[LENDER].restart(now);
    world.run_until(SILENCE * 2, |world| is_overdue(world) == Some(true));
}
