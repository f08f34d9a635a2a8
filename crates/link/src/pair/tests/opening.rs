//! How streams begin and end: who gets a function, who is refused, and what peers can do that break the rules.

use core::time::Duration;

use base::Instant;
use base::ids::{DomainId, LoanGeneration, StreamId};
use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY_MAX, HOLD, SILENCE};

use super::*;
use crate::pair::control::What;
use crate::pair::*;

fn is_open(world: &World<'_>) -> bool {
    world.nodes.iter().all(Node::is_open)
}

fn open<'m>(arena: &'m Arena, functions: u32) -> World<'m> {
    let mut world = World::pair(arena, functions);
    world.run_until(Duration::from_secs(5), is_open);
    world
}

/// Three nodes: the first and the last borrow the only function of the one in the middle.
pub(super) fn rivals(arena: &Arena) -> World<'_> {
    let nodes = (0..3).map(|index| {
        let mut config = config_of(index);
        config.peers = if index == 1 { [true, false, true, false] } else { [false, true, false, false] };
        config.calls[1] = index != 1;
        config.loans = match index {
            1 => vec![Loan::Lend(lend(0, config.life))],
            _ => vec![Loan::Borrow { lender: 1, config: borrow(0) }],
        };
        Node::new(arena, config, Instant::ZERO)
    });
    World::of(nodes.collect())
}

pub(super) fn state(world: &World<'_>, node: usize) -> ClaimState {
    match &world.nodes[node].places[0].end {
        End::Claim(claim) => claim.state(),
        End::Offer(_) => panic!("it lends"),
    }
}

/// The node gives back what it borrows in its first place.
pub(super) fn give_back(world: &mut World<'_>, node: usize) {
    let now = world.now;
    let node = &mut world.nodes[node];
    let place = &mut node.places[0];
    let End::Claim(claim) = &mut place.end else { panic!("it lends") };
    claim.close(now, &mut node.slots[0].channel, &mut place.stream);
    node.commit();
}

#[test]
fn many_streams_open_within_few_round_trips() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 256);
    world.delay = TICK * 5;
    let took = world.run_until(Duration::from_millis(40), is_open);
    // A round trip takes 2 ms: two for the handshake and the first records, as many for asking.
    assert!(took < Duration::from_millis(10), "{took:?}");
    let place = &world.nodes[0].places[7];
    let End::Claim(claim) = &place.end else { panic!() };
    assert_eq!((claim.requester().0, claim.base(), claim.tenancy() >> 32), (7, 7 << 20, 1));
    world.run(50);
    assert!(world.nodes[0].places.iter().all(|place| place.informed == 1));
}

#[test]
fn another_node_is_refused_by_name_until_it_is_given_back() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.nodes[2].config.loans.clear();
    world.nodes[2] = Node::new(&arena, world.nodes[2].config.clone(), world.now);
    world.run_until(Duration::from_secs(1), |world| world.nodes[0].is_open());
    world.nodes[2].config.loans = vec![Loan::Borrow { lender: 1, config: borrow(0) }];
    let now = world.now;
    world.nodes[2].restart(now);
    world.run_for(Duration::from_secs(3));
    let refused = |refusal: &OpenRefusal| match refusal {
        OpenRefusal::InUse { by, node, since, hold } => {
            by.to_string() == "node0" && *node == key_of(0).id() && since.is_some() && hold.is_none()
        }
        _ => false,
    };
    assert!(!world.nodes[2].places[0].refusals.is_empty());
    assert!(world.nodes[2].places[0].refusals.iter().all(refused), "{:?}", world.nodes[2].places[0].refusals);
    world.write_all(0);
    world.run(20);
    assert_eq!(world.nodes[1].places[0].counts().1, 1, "nothing has changed for who has it");
    give_back(&mut world, 0);
    world.lost = 30;
    world.run_until(Duration::from_secs(5), |world| state(world, 0) == ClaimState::Closed);
    world.run_until(HANDSHAKE_RETRY_MAX * 4, |world| world.nodes[2].is_open());
    let tenant = world.nodes[1].config.disk[0];
    assert_eq!((tenant.node, tenant.number >> 32), (key_of(2).id(), 2));
    world.lost = 0;
    world.write_all(2);
    world.run(50);
    assert_eq!(world.nodes[1].places[0].counts().1, 1);
}

#[test]
fn what_was_given_back_is_answered_when_it_is_durable_and_nobody_is_let_in_before() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.run_until(Duration::from_secs(1), |world| [0, 2].iter().any(|node| world.nodes[*node].is_open()));
    let has_it = if world.nodes[0].is_open() { 0 } else { 2 };
    world.nodes[1].config.disk_is_full = true;
    give_back(&mut world, has_it);
    world.run_for(Duration::from_secs(1));
    assert_eq!(state(&world, has_it), ClaimState::Closing);
    let refusals = world.nodes[2 - has_it].places[0].refusals.len();
    // Neither for the next card.
    let now = world.now;
    world.nodes[1].restart(now);
    world.run_for(Duration::from_secs(2));
    assert_eq!(state(&world, has_it), ClaimState::Closing);
    assert_eq!(state(&world, 2 - has_it), ClaimState::Asking);
    assert!(world.nodes[2 - has_it].places[0].refusals.len() <= refusals + 1, "it waits");
    world.nodes[1].config.disk_is_full = false;
    world.run_until(Duration::from_secs(3), |world| {
        state(world, has_it) == ClaimState::Closed && state(world, 2 - has_it) == ClaimState::Open
    });
}

#[test]
fn nothing_opens_before_it_is_durable_whose_it_is() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| config.disk_is_full = true);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.nodes[1].places[0].offer().state(), OfferState::Saving);
    assert_eq!(state(&world, 0), ClaimState::Asking);
    let now = world.now;
    world.nodes[1].restart(now);
    world.run_for(Duration::from_secs(1));
    assert!(!world.nodes[0].is_open());
    world.nodes[1].config.disk_is_full = false;
    world.run_until(HANDSHAKE_RETRY_MAX * 2, is_open);
}

#[test]
fn what_was_before_has_ended_when_another_stream_opens() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| config.quiet_after = Duration::from_millis(700));
    world.run_until(Duration::from_secs(5), is_open);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    let took = world.run_until(Duration::from_secs(5), is_open);
    assert!(took > Duration::from_millis(700 + 350), "{took:?}");
    // A card that dies meanwhile asks its function once more.
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 101);
    world.run_until(Duration::from_secs(1), |world| {
        world.nodes[1].places[0].offer().state() == OfferState::Ending
    });
    let now = world.now;
    world.nodes[1].restart(now);
    world.run_until(Duration::from_secs(5), is_open);
}

/// A borrower with other settings than its lender's.
fn strange(arena: &Arena, change: impl Fn(&mut ClaimConfig) + 'static) -> World<'_> {
    let mut world = World::pair_with(arena, 2, |config| {
        if let Some(Loan::Borrow { config, .. }) = config.loans.first_mut() {
            change(config);
        }
    });
    world.run_for(Duration::from_secs(3));
    assert!(world.nodes[0].places[1].is_open(), "the other one is not hindered");
    assert!(!world.nodes[0].places[0].is_open() && !world.nodes[1].places[0].is_open());
    world
}

#[test]
fn who_does_not_know_the_secret_or_names_no_function_cannot_tell_which() {
    let arena = Arena::default();
    let wrong: [fn(&mut ClaimConfig); 2] =
        [|config| config.secret = Some([1; 32]), |config| config.wish.function = FunctionId(99)];
    for wrong in wrong {
        let world = strange(&arena, wrong);
        let refusals = &world.nodes[0].places[0].refusals;
        assert!(!refusals.is_empty() && refusals.iter().all(|why| *why == OpenRefusal::Unknown));
        assert!(world.nodes[1].slots[0].channel.stats().wrong_proofs.get() > 0);
        assert_eq!(world.nodes[1].config.disk[0].number, 0, "nobody has had it");
    }
}

#[test]
fn another_assignment_is_refused() {
    let arena = Arena::default();
    let world = strange(&arena, |config| config.wish.generation = LoanGeneration(2));
    assert!(world.nodes[0].places[0].refusals.iter().all(|why| *why == OpenRefusal::Generation));
}

#[test]
fn who_stands_on_no_list_is_refused_and_a_new_list_takes_the_function() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    let allow = |world: &mut World<'_>, nodes: &[usize]| {
        let Loan::Lend(config) = &mut world.nodes[1].config.loans[0] else { panic!() };
        config.allowed = only(nodes);
        let now = world.now;
        world.nodes[1].restart(now);
    };
    allow(&mut world, &[0]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    world.run_for(Duration::from_secs(2));
    assert!(world.nodes[2].places[0].refusals.iter().all(|why| *why == OpenRefusal::NotAllowed));
    // The lender is started anew with another list.
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 100);
    allow(&mut world, &[2]);
    world.run_until(Duration::from_secs(5), |world| world.nodes[2].is_open());
    assert_eq!(world.nodes[0].places[0].refusals.last(), Some(&OpenRefusal::NotAllowed));
}

/// The list of a lender that runs: who is silent and stands on it no more has lost the function, who answers has not.
#[test]
fn a_new_list_takes_the_function_from_who_is_silent() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    let allow = |world: &mut World<'_>, nodes: &[usize]| {
        let End::Offer(offer) = &mut world.nodes[1].places[0].end else { panic!("it borrows") };
        offer.set_allowed(only(nodes));
    };
    allow(&mut world, &[0]);
    world.run_until(Duration::from_secs(2), |world| world.nodes[0].is_open());
    allow(&mut world, &[2]);
    world.run_for(Duration::from_secs(5));
    assert!(world.nodes[0].is_open() && !world.nodes[2].is_open(), "it answers");
    let in_use = |world: &World<'_>| {
        matches!(world.nodes[2].places[0].refusals.last(), Some(OpenRefusal::InUse { hold: None, .. }))
    };
    assert!(in_use(&world));
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    world.run_for(SILENCE / 2);
    assert!(!world.nodes[2].is_open(), "it is not silent yet");
    world.run_until(SILENCE + HANDSHAKE_RETRY_MAX, |world| world.nodes[2].is_open());
    // It comes back, and is not let in.
    world.cut = Box::new(|_, _, _| false);
    world.write_all(0);
    world.run_until(Duration::from_secs(5), |world| {
        world.nodes[0].places[0].refusals.last() == Some(&OpenRefusal::NotAllowed)
    });
}

#[test]
fn who_is_silent_for_the_hold_time_loses_the_function_and_learns_it() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.cut = Box::new(|from, to, _| from == 2 || to == 2);
    world.run_until(Duration::from_secs(1), |world| world.nodes[0].is_open());
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    world.run_for(Duration::from_secs(3));
    let hold = |refusal: &OpenRefusal| match refusal {
        OpenRefusal::InUse { hold, .. } => *hold,
        _ => panic!("{refusal:?}"),
    };
    let left = hold(world.nodes[2].places[0].refusals.last().unwrap()).unwrap();
    assert!(left < HOLD && left > HOLD - Duration::from_secs(6), "{left:?}");
    world.now += HOLD;
    world.run_until(Duration::from_secs(3), |world| world.nodes[2].is_open());
    // It comes back: on the same channel, or after a handshake, it hears that its stream is not there.
    world.cut = Box::new(|_, _, _| false);
    world.write_all(0);
    world.run_until(Duration::from_secs(3), |world| {
        matches!(world.nodes[0].places[0].refusals.last(), Some(OpenRefusal::InUse { .. }))
    });
    world.write_all(2);
    world.run(50);
    assert_eq!(world.nodes[1].places[0].counts().1, 1);
}

#[test]
fn a_lender_that_is_started_again_keeps_the_function_for_whom_it_belonged_to() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.cut = Box::new(|from, to, _| from == 2 || to == 2);
    world.run_until(Duration::from_secs(1), |world| world.nodes[0].is_open());
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 100);
    world.cut = Box::new(|from, to, _| from == 0 || to == 0);
    world.run_for(Duration::from_secs(4));
    let why = world.nodes[2].places[0].refusals.last().unwrap();
    let OpenRefusal::InUse { by, since: None, hold: Some(hold), .. } = why else { panic!("{why:?}") };
    assert_eq!(by.to_string(), "node0");
    assert!(*hold < HOLD && *hold > HOLD - Duration::from_secs(6));
    // Whose it is comes back, and goes on; in the lender's next card too.
    let now = world.now;
    world.nodes[1].restart(now);
    world.cut = Box::new(|_, _, _| false);
    world.run_until(SILENCE * 4, |world| world.nodes[0].is_open() && world.nodes[1].is_open());
    assert_eq!(world.nodes[1].config.disk[0].number >> 32, 1, "nobody else has used it");
    assert_eq!(world.nodes[0].slots[0].channel.fork(), base::ids::LifeId::default());
    world.write_all(0);
    world.run(50);
    assert_eq!(world.nodes[1].places[0].counts().1, 1);
}

/// It gives back while its lender is started anew.
#[test]
fn what_is_given_back_is_so_for_a_lender_that_has_forgotten_its_stream() {
    let arena = Arena::default();
    let mut world = open(&arena, 1);
    world.cut = Box::new(|_, _, _| true);
    give_back(&mut world, 0);
    world.run_for(Duration::from_millis(100));
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 100);
    world.cut = Box::new(|_, _, _| false);
    world.run_until(SILENCE * 4, |world| state(world, 0) == ClaimState::Closed);
    assert!(!world.nodes[1].config.disk[0].is_held);
    assert_eq!(world.nodes[1].places[0].offer().state(), OfferState::Free);
    // It can be had again.
    let now = world.now;
    world.nodes[0].places[0].claim().open(now);
    world.nodes[0].commit();
    world.run_until(Duration::from_secs(2), is_open);
}

/// An opening that was late comes behind the close, which was answered: nobody would give back what it opens.
#[test]
fn what_was_closed_before_it_came_does_not_open_any_more() {
    let arena = Arena::default();
    let mut world = open(&arena, 2);
    let Loan::Borrow { config, .. } = world.nodes[0].config.loans[0].clone() else { panic!() };
    let id = StreamId(4001 + world.nodes[0].places[0].stream_number() % 2);
    let hash = world.nodes[0].slots[0].channel.handshake();
    let proof = crate::prove(&config.secret.unwrap(), &config.wish.proven(&hash, id));
    let stats = world.nodes[1].slots[0].channel.stats();
    let (begun, wrong) = (resets(&world), stats.wrong_numbers.get());
    world.say(0, id, What::Close);
    world.say(0, id, What::Open { wish: config.wish, proof });
    assert_eq!((resets(&world), stats.wrong_numbers.get()), (begun, wrong + 1));
}

/// What an opening proves is bound to the handshake: sealed anew under other keys it is worth nothing.
#[test]
fn an_opening_of_other_keys_proves_nothing() {
    let arena = Arena::default();
    let mut world = open(&arena, 2);
    let hash = |world: &World<'_>| world.nodes[0].slots[0].channel.handshake();
    let before = hash(&world);
    let Loan::Borrow { config, .. } = world.nodes[0].config.loans[0].clone() else { panic!() };
    let id = StreamId(4001 + world.nodes[0].places[0].stream_number() % 2);
    let old = crate::prove(&config.secret.unwrap(), &config.wish.proven(&before, id));
    let now = world.now;
    world.nodes[0].channel(1).call_for_test(now);
    world.run(50);
    assert_ne!(hash(&world), before);
    let (claims, wrong) = (resets(&world), world.nodes[1].slots[0].channel.stats().wrong_proofs.get());
    world.say(0, id, What::Open { wish: config.wish, proof: old });
    assert_eq!(world.nodes[1].slots[0].channel.stats().wrong_proofs.get(), wrong + 1);
    // Of another stream, function, domain or slot as well.
    let now = hash(&world);
    let right = crate::prove(&config.secret.unwrap(), &config.wish.proven(&now, id));
    for (id, wish) in [
        (StreamId(id.0 + 2), config.wish),
        (id, Wish { domain: DomainId(8), ..config.wish }),
        (id, Wish { slot: 8, ..config.wish }),
    ] {
        world.run_for(Duration::from_millis(30));
        world.say(0, id, What::Open { wish, proof: right });
    }
    assert_eq!(world.nodes[1].slots[0].channel.stats().wrong_proofs.get(), wrong + 4);
    assert_eq!(resets(&world), claims);
}

fn resets(world: &World<'_>) -> Vec<u32> {
    world.nodes.iter().flat_map(|node| &node.places).map(|place| place.resets).collect()
}

/// All that a peer can say that is known and breaks the rules: each is counted by name, and changes nothing for others.
#[test]
fn who_breaks_the_rules_is_counted_and_stops_nobody() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 4, |config| config.max_streams = 5);
    world.run_until(Duration::from_secs(1), is_open);
    let prove = |world: &World<'_>, id: StreamId| {
        let hash = world.nodes[0].slots[0].channel.handshake();
        let ClaimConfig { wish, secret } = borrow(1);
        What::Open { wish, proof: crate::prove(&secret.unwrap(), &wish.proven(&hash, id)) }
    };
    let ours = world.nodes[0].places.iter().map(TestLoan::stream_number).max().unwrap();
    // The stream of another function, one of the other side's numbers, none at all.
    let taken = StreamId(world.nodes[0].places[2].stream_number());
    for id in [taken, StreamId(ours + 1), StreamId(0)] {
        let what = prove(&world, id);
        world.say(0, id, what);
    }
    let stats = world.nodes[1].slots[0].channel.stats();
    assert_eq!(stats.wrong_numbers.get(), 3);
    // Streams that are not there, in records and frames.
    for what in [
        What::Close,
        What::Informed,
        What::Closed,
        What::Opened { tenancy: 1, requester: pcie::Bdf(1), base: 0 },
    ] {
        world.say(0, StreamId(ours + 200), what);
    }
    assert!(stats.unknown_streams.get() >= 4);
    world.run(10);
    // Verdicts that nobody knows.
    let first = StreamId(world.nodes[0].places[0].stream_number());
    world.say(1, first, What::Refused(OpenRefusal::Other { verdict: 77 }));
    assert!(is_open(&world), "who has a stream is not refused it");
    // A status of what was never sent, and credit beyond all measure: more is sent than there is room for.
    world.say_status(1, first, u64::MAX);
    assert_eq!(world.nodes[0].slots[0].channel.stats().wrong_statuses.get(), 1);
    (0..2).for_each(|node| world.write_all(node));
    world.run(100);
    world.expect_all_came();
    // As many as were agreed on, and one more.
    let next = StreamId(ours + 2);
    let what = prove(&world, next);
    world.say(0, next, what);
    world.run(50);
    for more in 2..5 {
        let id = StreamId(ours + 2 * more);
        let what = prove(&world, id);
        world.say(0, id, what);
        world.run(50);
    }
    world.run(500);
    assert_eq!([0, 2, 3].map(|place| world.nodes[0].places[place].resets), [1, 1, 1]);
}

#[test]
fn no_more_streams_are_opened_than_were_agreed_on() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 4, |config| {
        config.max_streams = if config.index == 0 { 100 } else { 3 };
    });
    world.run_for(Duration::from_secs(2));
    let open = world.nodes[0].places.iter().filter(|place| place.is_open()).count();
    assert_eq!(open, 3);
    assert!(world.nodes[1].slots[0].channel.stats().too_many_streams.get() > 0);
    let refused = world.nodes[0].places.iter().flat_map(|place| &place.refusals);
    assert!(refused.clone().count() > 0 && refused.clone().all(|why| *why == OpenRefusal::NoRoom));
    // One that goes makes room.
    let gone = world.nodes[0].places.iter().position(TestLoan::is_open).unwrap();
    let now = world.now;
    let node = &mut world.nodes[0];
    let place = &mut node.places[gone];
    let End::Claim(claim) = &mut place.end else { panic!() };
    claim.close(now, &mut node.slots[0].channel, &mut place.stream);
    node.commit();
    world.run_for(HANDSHAKE_RETRY_MAX * 2);
    assert_eq!(world.nodes[0].places.iter().filter(|place| place.is_open()).count(), 3);
}

/// One end has ended a stream and the other has not heard of it yet, when there are new keys: they go on.
#[test]
fn what_has_flowed_in_a_stream_that_ended_counts() {
    let arena = Arena::default();
    let mut world = open(&arena, 2);
    for _ in 0..20 {
        (0..2).for_each(|node| world.write_all(node));
        world.run(3);
    }
    let course = world.nodes[0].slots[0].channel.course();
    world.cut = Box::new(|_, _, _| true);
    give_back(&mut world, 0);
    world.run(20);
    world.cut = Box::new(|_, _, _| false);
    let now = world.now;
    world.nodes[0].channel(1).call_for_test(now);
    world.run_for(HANDSHAKE_RETRY_MAX);
    assert_eq!(state(&world, 0), ClaimState::Closed);
    assert!(world.nodes.iter().all(|node| node.slots[0].channel.course() == course));
    assert_eq!(world.nodes[0].slots[0].channel.stats().handshakes.get(), 2);
    assert_eq!(world.nodes[0].places[1].resets, 1);
}

/// Its node is there, and its configuration names the loan no more.
#[test]
fn a_function_that_nobody_wants_any_more_is_kept_for_the_hold_time() {
    let arena = Arena::default();
    let mut world = rivals(&arena);
    world.cut = Box::new(|from, to, _| from == 2 || to == 2);
    world.run_until(Duration::from_secs(1), |world| world.nodes[0].is_open());
    world.nodes[0].config.loans.clear();
    let now = world.now;
    world.nodes[0].restart(now);
    world.write_all(1);
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.nodes[1].places[0].offer().state(), OfferState::Free);
    assert!(world.nodes[1].config.disk[0].is_held);
    world.cut = Box::new(|_, _, _| false);
    world.run_for(Duration::from_secs(3));
    let last = world.nodes[2].places[0].refusals.last();
    assert!(matches!(last, Some(OpenRefusal::InUse { hold: Some(_), .. })), "{last:?}");
    assert!(world.nodes[0].slots[0].channel.is_met(), "its node is there");
    world.now += HOLD;
    world.run_until(Duration::from_secs(5), |world| world.nodes[2].is_open());
}
