//! Handshakes: who is let in, who is refused, and what those can do who have recorded messages.

use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::ids::Incarnation;
use base::ledger::Arena;
use base::times::{HANDSHAKE_RETRY, HANDSHAKE_RETRY_MAX, RAIL_VERDICT, SILENCE};
use base::{Instant, Random};

use super::*;
use crate::Protection;
use crate::certificate::{self, Certificate, Fault, Members};
use crate::frame::{Header, Kind};
use crate::identity::NodeKey;
use crate::pair::*;
use crate::paths::PathId;

fn is_met(world: &World<'_>) -> bool {
    world.nodes.iter().flat_map(|node| &node.slots).all(|slot| slot.channel.is_met())
}

fn is_open(world: &World<'_>) -> bool {
    world.nodes.iter().all(Node::is_open)
}

fn handshakes(world: &World<'_>) -> Vec<u64> {
    world.nodes.iter().map(|node| node.slots[0].channel.stats().handshakes.get()).collect()
}

/// How often the streams of a node have begun: the same for all.
fn resets(node: &Node<'_>) -> u32 {
    assert!(node.places.iter().all(|place| place.resets == node.places[0].resets));
    node.places[0].resets
}

pub(super) fn refusals(node: &Node<'_>) -> Vec<Refusal> {
    let events = node.slots.iter().flat_map(|slot| &slot.events);
    let refusals = events.filter_map(|event| match event {
        Event::Refused(refusal) => Some(*refusal),
        _ => None,
    });
    refusals.collect()
}

/// The first messages of the next attempts of node 0, as a network could have recorded them.
fn first_messages(world: &mut World<'_>, ticks: u32) -> Vec<Vec<u8>> {
    world.record = Some(Vec::new());
    world.cut = Box::new(|_, _, _| true);
    world.run(ticks);
    world.cut = Box::new(|_, _, _| false);
    let record = world.record.take().unwrap().into_iter();
    let calls =
        record.filter(|(from, bytes)| *from == 0 && Header::parse(bytes).unwrap().kind == Kind::Initiation);
    calls.map(|(_, bytes)| bytes).collect()
}

fn both_call(config: &mut NodeConfig) {
    config.calls = config.peers;
}

#[test]
fn both_ends_call_at_once_and_there_is_one_channel() {
    for seed in 0..20 {
        let arena = Arena::default();
        let mut world = World::pair_with(&arena, 2, both_call);
        world.random = Random::new(seed);
        (world.lost, world.doubled, world.late) = (if seed < 5 { 0 } else { 40 }, 20, 40);
        world.run_until(Duration::from_secs(5), is_open);
        world.run_for(Duration::from_millis(500));
        let courses: Vec<_> = world.nodes.iter().map(|node| node.slots[0].channel.course()).collect();
        assert_eq!(courses[0], courses[1], "{seed}");
        if seed < 5 {
            assert_eq!(handshakes(&world), [1, 1], "{seed}");
        }
        (0..2).for_each(|node| world.write_all(node));
        world.run_for(Duration::from_secs(2));
        world.expect_all_came();
    }
}

/// Calls of the smaller id get lost, or what answers them.
#[test]
fn whose_calls_get_lost_is_called_by_the_other_one() {
    for deaf in 0..2 {
        let arena = Arena::default();
        let mut world = World::pair_with(&arena, 1, both_call);
        // First messages of this one never arrive.
        world.run_filtered(Duration::from_secs(3), move |from, bytes| {
            !(from == deaf && Header::parse(bytes).unwrap().kind == Kind::Initiation)
        });
        assert!(is_open(&world), "{deaf}: {}", world.describe());
        assert!(world.nodes[1 - deaf].slots[0].channel.is_met());
    }
}

#[test]
fn a_first_rail_that_leads_in_one_direction_only_hinders_no_handshake() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.cut = Box::new(|from, _, path| from == 1 && path == PATHS[0]);
    world.run_until(HANDSHAKE_RETRY * 3, is_open);
}

#[test]
fn round_trips_of_seconds_connect() {
    for delay in [200, 750, 1_500].map(Duration::from_millis) {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 1);
        world.delay = delay;
        world.run_until(delay * 8 + HANDSHAKE_RETRY_MAX * 3, is_open);
    }
}

#[test]
fn two_ends_agree_on_a_cipher_or_say_why_not() {
    use Protection::{Aegis, Aes256Gcm, Insecure};
    for (one, two, agreed) in [
        (Aegis, Aegis, Some(crate::Cipher::Aegis128X2)),
        (Aegis, Aes256Gcm, Some(crate::Cipher::Aes256Gcm)),
        (Insecure, Insecure, Some(crate::Cipher::Crc32c)),
        (Aegis, Insecure, None),
        (Insecure, Aes256Gcm, None),
    ] {
        let arena = Arena::default();
        let mut world = World::pair_with(&arena, 1, |config| {
            config.protection = if config.index == 0 { one } else { two };
        });
        world.run_for(Duration::from_millis(200));
        let ciphers: Vec<_> = world.nodes.iter().map(|node| node.slots[0].channel.cipher()).collect();
        assert_eq!(ciphers, [agreed, agreed]);
        if agreed.is_none() {
            assert!(refusals(&world.nodes[0]).contains(&Refusal::Sealing));
        }
        world.nodes[0].restart(world.now);
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.nodes[0].slots[0].channel.cipher(), agreed);
    }
}

#[test]
fn who_may_not_come_in_and_for_whom_there_is_no_room_are_told() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| {
        if config.index == 1 {
            config.allowed = Some(vec![NodeKey::numbered(77).id()]);
        }
    });
    world.run_for(Duration::from_millis(200));
    assert!(refusals(&world.nodes[0]).contains(&Refusal::NotAllowed));
    let mut world = World::pair_with(&arena, 1, |config| {
        if config.index == 1 {
            config.peers = [false; 4];
        }
    });
    world.run_for(Duration::from_millis(200));
    assert!(refusals(&world.nodes[0]).contains(&Refusal::NoRoom));
}

/// A member of the fabric at 1500 s, by a certificate from 1000 to 2000 s that `change` was made in.
fn member(index: usize, change: impl FnOnce(&mut Certificate)) -> Members {
    let mut certificate = certificate::tests::certificate(key_of(index).public());
    (certificate.base, certificate.domains) = (index as u32 + 1, 1);
    change(&mut certificate);
    certificate::tests::members(certificate::tests::signed(&certificate, &certificate::tests::authority(1)))
}

/// Two members of which the second is what `change` makes of it.
fn members<'m>(arena: &'m Arena, change: impl Fn(&mut Members)) -> World<'m> {
    World::pair_with(arena, 1, |config| {
        let mut members = member(config.index, |_| {});
        if config.index == 1 {
            change(&mut members);
        }
        config.members = Some(Rc::new(members));
    })
}

#[test]
fn members_meet_and_so_do_strangers_unless_only_members_may() {
    let arena = Arena::default();
    let mut world = members(&arena, |_| {});
    world.run_for(Duration::from_millis(200));
    assert!(is_open(&world));
    for only_members in [false, true] {
        let mut world = World::pair_with(&arena, 1, |config| {
            let members = Members { only_members, ..member(config.index, |_| {}) };
            config.members = (config.index == 1).then(|| Rc::new(members));
        });
        world.run_for(Duration::from_millis(200));
        assert_eq!(is_open(&world), !only_members);
        let is_it = |it: &Refusal| matches!(it, Refusal::Certificate { fault: Fault::Missing, .. });
        assert_eq!(refusals(&world.nodes[0]).iter().any(is_it), only_members);
    }
}

/// A first frame with the longest certificate passes wherever the smallest of TLPs does, and IPv6.
#[test]
fn a_first_frame_with_a_certificate_is_below_1280_bytes() {
    let arena = Arena::default();
    let longest = |index| {
        member(index, |it| {
            it.name = "n".repeat(64);
            it.groups = (1..=64).map(base::ids::Group).collect();
        })
    };
    assert_eq!(longest(0).certificate.len(), certificate::CERTIFICATE_MAX);
    let mut world =
        World::pair_with(&arena, 1, |config| config.members = Some(Rc::new(longest(config.index))));
    let calls = first_messages(&mut world, 2);
    assert!(!calls.is_empty());
    calls.iter().for_each(|call| assert!(call.len() < 1280, "{}", call.len()));
    world.run_for(Duration::from_millis(200));
    assert!(is_open(&world), "and it is understood");
}

/// By whichever end, and by the end that calls as well as the one that is called.
#[test]
fn whom_either_end_does_not_believe_it_has_nothing_to_do_with() {
    let arena = Arena::default();
    let forged = |index: usize| {
        let certificate = certificate::tests::certificate(key_of(index).public());
        certificate::tests::signed(&certificate, &certificate::tests::authority(2))
    };
    let changed = |change: fn(&mut Certificate)| member(1, change).certificate;
    let cases = [
        (Fault::Forged, forged(1).into()),
        (Fault::OtherKey, changed(|it| it.key = key_of(2).public())),
        (Fault::OtherFabric, changed(|it| it.fabric = [9; 16])),
        (Fault::Expired { not_after: 1_400_000 }, changed(|it| it.not_after = 1_400_000)),
        (Fault::NotYet { not_before: 1_600_000 }, changed(|it| it.not_before = 1_600_000)),
        (Fault::Outside, changed(|it| it.base = 99)),
    ];
    for (fault, certificate) in cases {
        // Node 0 calls: it does not believe who answers, and when node 1 calls, tells it so.
        let mut world = members(&arena, |members| members.certificate = certificate.clone());
        world.run_for(Duration::from_millis(200));
        assert!(!is_open(&world), "{fault:?}");
        let is_it = |it: &Refusal| matches!(it, Refusal::Untrusted { fault: is, .. } if *is == fault);
        assert!(refusals(&world.nodes[0]).iter().any(is_it), "{fault:?}: {:?}", refusals(&world.nodes[0]));
        let mut world = World::pair_with(&arena, 1, |config| {
            // The caller is the one with the bad certificate.
            let mut members = member(config.index, |_| {});
            if config.index == 0 {
                let by = |of: &Certificate| certificate::tests::signed(of, &certificate::tests::authority(1));
                let of = Certificate::read(&members.certificate, &members.authority).unwrap();
                let bad = match fault {
                    Fault::Forged => forged(0),
                    Fault::OtherKey => changed(|_| {}).into(),
                    Fault::OtherFabric => by(&Certificate { fabric: [9; 16], ..of }),
                    Fault::Expired { not_after } => by(&Certificate { not_after, ..of }),
                    Fault::NotYet { not_before } => by(&Certificate { not_before, ..of }),
                    _ => by(&Certificate { base: 99, ..of }),
                };
                members.certificate = bad.into();
            }
            config.members = Some(Rc::new(members));
        });
        world.run_for(Duration::from_millis(200));
        assert!(!is_open(&world), "{fault:?}");
        let is_it = |it: &Refusal| match it {
            Refusal::Certificate { fault: is, clock } => *is == fault && *clock / 1000 == 1500,
            _ => false,
        };
        assert!(refusals(&world.nodes[0]).iter().any(is_it), "{fault:?}: {:?}", refusals(&world.nodes[0]));
    }
}

#[test]
fn an_expired_certificate_ends_nothing_that_runs_and_a_removed_node_is_refused() {
    let arena = Arena::default();
    let mut world = members(&arena, |_| {});
    world.run_for(Duration::from_millis(200));
    assert!(is_open(&world));
    let late = |index| Members { clock_ahead_ms: 9_000_000, ..member(index, |_| {}) };
    for index in 0..2 {
        world.nodes[index].set_members(late(index));
    }
    // New keys of the same lives.
    let before = handshakes(&world);
    for seed in 0..2 {
        world.nodes[0].slots[0].channel.renew_keys(world.now, [seed; 32], None);
        world.run_for(Duration::from_millis(500));
    }
    assert!(is_open(&world) && handshakes(&world) > before, "{:?}", handshakes(&world));
    let revoked = [key_of(0).id()].into();
    world.nodes[1].set_members(Members { revoked, ..late(1) });
    world.nodes[0].slots[0].channel.renew_keys(world.now, [9; 32], None);
    world.run_for(Duration::from_millis(500));
    let is_it = |it: &Refusal| matches!(it, Refusal::Certificate { fault: Fault::Revoked, .. });
    assert!(refusals(&world.nodes[0]).iter().any(is_it), "{:?}", refusals(&world.nodes[0]));
}

/// Whoever knows another public key, or none, gets no answer.
#[test]
fn who_calls_another_node_gets_no_answer() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let calls = first_messages(&mut world, 2);
    // Node 1 is another one.
    let mut other = config_of(2);
    other.peers[0] = true;
    world.nodes[1] = Node::new(&arena, other, world.now);
    let before = world.frames;
    calls.iter().for_each(|call| world.inject(0, 1, call));
    let now = world.now;
    assert_eq!(world.nodes[1].poll_transmit(now).map(|_| ()), None);
    assert_eq!((world.frames, world.nodes[1].lobby.stats().dropped_auth.get()), (before, calls.len() as u64));
}

#[test]
fn a_message_that_is_repeated_is_answered_once_a_path_and_an_earlier_one_not_at_all() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let calls = first_messages(&mut world, 500);
    assert!(calls.len() >= 4, "two attempts on two rails");
    let now = world.now;
    let mut answers = 0;
    let mut count = |world: &mut World<'_>, call: &[u8]| {
        world.inject(0, 1, call);
        while world.nodes[1].poll_transmit(now).is_some() {
            answers += 1;
        }
        core::mem::take(&mut answers)
    };
    // The second attempt, on each rail; then again, and the first one.
    assert_eq!([2, 3, 2, 3, 0, 1].map(|call| count(&mut world, &calls[call])), [1, 1, 0, 0, 0, 0]);
    assert!(world.nodes[1].lobby.stats().dropped_replay.get() >= 4);
    // The next card remembers.
    world.nodes[1].restart(now);
    assert_eq!((0..4).map(|call| count(&mut world, &calls[call])).sum::<i32>(), 0);
    world.run_until(Duration::from_secs(2), is_open);
}

/// Old first messages change nothing for those who have met, but two answers of a few hundred bytes.
#[test]
fn recorded_messages_change_nothing_for_who_has_met() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let calls = first_messages(&mut world, 3000);
    world.run_until(Duration::from_secs(5), is_open);
    let (before, frames) = (handshakes(&world), world.frames);
    for _ in 0..50 {
        calls.iter().for_each(|call| world.inject(0, 1, call));
        world.tick();
    }
    assert_eq!(handshakes(&world), before);
    assert!(world.frames - frames < 50, "{}", world.frames - frames);
    (0..2).for_each(|node| world.write_all(node));
    world.run(50);
    world.expect_all_came();
}

#[test]
fn a_peer_that_is_started_anew_is_met_again_by_whoever_calls() {
    for who in 0..2 {
        for caller in 0..2 {
            let arena = Arena::default();
            let mut world = World::pair_with(&arena, 2, |config| {
                config.calls[1 - config.index] = config.index == caller;
            });
            world.run_until(Duration::from_secs(1), is_open);
            world.record = Some(Vec::new());
            (0..10).for_each(|_| world.write_all(0));
            world.run(50);
            let record = world.record.take().unwrap();
            let now = world.now;
            world.nodes[who].reboot(&arena, now, 100);
            world.run_until(SILENCE * 3, is_open);
            // Nothing of before has an effect.
            record.iter().for_each(|(from, bytes)| world.inject(*from, 1 - from, bytes));
            assert_eq!(world.nodes[1].places[0].counts(), (0, 0));
            (0..2).for_each(|node| world.write_all(node));
            world.run(100);
            world.expect_all_came();
            assert!(world.nodes[1 - who].places.iter().all(|place| place.resets >= 2));
        }
    }
}

#[test]
fn a_restored_state_folder_is_told_of_and_begins_anew_with_a_greater_incarnation() {
    // Older by three lives, and by none.
    for incarnation in [2, 5] {
        let arena = Arena::default();
        let mut world = World::pair_with(&arena, 1, |config| config.incarnation = 5);
        world.run_until(Duration::from_secs(1), is_open);
        let now = world.now;
        world.nodes[0].config.incarnation = incarnation - 1;
        world.nodes[0].reboot(&arena, now, 100);
        let course = world.nodes[1].slots[0].channel.course();
        world.run_for(Duration::from_secs(2));
        let told = refusals(&world.nodes[0]);
        let outdated = Refusal::Outdated { seen: Incarnation(5) };
        assert!(!told.is_empty() && told.iter().all(|why| *why == outdated), "{told:?}");
        assert_eq!(world.nodes[1].slots[0].channel.course(), course, "nothing changed");
        assert_eq!(world.nodes[1].config.disk[0].number >> 32, 1);
        let now = world.now;
        world.nodes[0].config.incarnation = 6;
        world.nodes[0].channel(1).raise_incarnation(now, Incarnation(6));
        world.run_until(SILENCE, is_open);
        world.write_all(0);
        world.run(50);
        world.expect_all_came();
    }
}

#[test]
fn old_messages_are_refused_no_more_often_than_is_useful() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let calls = first_messages(&mut world, 2);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    world.run_until(Duration::from_secs(1), is_open);
    let before = world.nodes[1].lobby.stats().refused.get();
    for _ in 0..5_000 {
        world.inject(0, 1, &calls[0]);
        world.tick();
    }
    let refused = world.nodes[1].lobby.stats().refused.get() - before;
    assert!((1..=50).contains(&refused), "{refused} in a second");
}

#[test]
fn who_is_refused_hears_it_though_somebody_repeats_its_message_faster() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    let calls = first_messages(&mut world, 2);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    world.run_until(Duration::from_secs(1), is_open);
    world.run(1_000);
    let before = world.nodes[1].lobby.stats().refused.get();
    // From elsewhere first, and again and again.
    for from in [1, 0, 1, 0] {
        world.inject(from, 1, &calls[0]);
    }
    world.tick();
    assert_eq!(world.nodes[1].lobby.stats().refused.get() - before, 2, "once at each address");
}

#[test]
fn under_load_who_calls_shows_first_that_it_is_there() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 1, |config| config.is_under_load = config.index == 1);
    world.record = Some(Vec::new());
    world.run_until(Duration::from_millis(20), is_open);
    assert!(world.nodes[1].lobby.stats().cookies.get() >= 1);
    let record = world.record.take().unwrap();
    let of_kind = |kind: Kind| {
        let is_it = move |bytes: &[u8]| Header::parse(bytes).unwrap().kind == kind;
        record.iter().map(|(_, bytes)| bytes.clone()).filter(move |bytes| is_it(bytes))
    };
    let (calls, cookies): (Vec<_>, Vec<_>) =
        (of_kind(Kind::Initiation).collect(), of_kind(Kind::Cookie).collect());
    assert!(cookies[0].len() < calls[0].len());
    // One that has a cookie counts from its address only.
    let with_cookie = calls.iter().rfind(|call| call[call.len() - 16..] != [0; 16]).unwrap();
    let cookies_before = world.nodes[1].lobby.stats().cookies.get();
    world.inject(3, 1, with_cookie);
    assert_eq!(world.nodes[1].lobby.stats().cookies.get(), cookies_before + 1);
    // A cookie that is repeated, changed or of another call has no effect.
    let sent = world.nodes[0].slots[0].channel.stats().sent_frames.get();
    for cookie in &cookies {
        world.inject(1, 0, cookie);
        for bit in (0..cookie.len() * 8).step_by(7) {
            let mut forged = cookie.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            world.inject(1, 0, &forged);
        }
    }
    let now = world.now;
    while world.nodes[0].poll_transmit(now).is_some() {}
    let after = world.nodes[0].slots[0].channel.stats().sent_frames.get();
    assert!(after - sent <= 2, "{}", after - sent);
}

/// A copy of a state folder, on a machine of its own: both call themselves node 0.
#[test]
fn a_twin_takes_nothing_from_who_is_there_and_is_told() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.run_until(Duration::from_secs(1), is_open);
    let course = world.nodes[1].slots[0].channel.course();
    for incarnation in [2, 9] {
        let mut twin = world.nodes[0].config.clone();
        (twin.life, twin.incarnation) = (100 + incarnation as u8, incarnation);
        let mut twin = Node::new(&arena, twin, world.now);
        for round in 0..10_000 {
            world.tick();
            twin.step(world.now);
            for (_, bytes) in twin.frames(world.now) {
                world.inject(0, 1, &bytes);
            }
            // What node 1 says to node 0 both hear.
            let now = world.now;
            for (path, bytes) in world.nodes[1].frames(now) {
                twin.handle_frame(now, 1, path, &mut bytes.clone());
                world.nodes[0].handle_frame(now, 1, path, &mut bytes.clone());
            }
            if round % 20 == 0 {
                world.write_all(0);
            }
        }
        assert_eq!(world.nodes[1].slots[0].channel.course(), course, "the first one goes on");
        let told = refusals(&twin);
        assert!(!told.is_empty() && told.iter().all(|why| matches!(why, Refusal::Twin { .. })), "{told:?}");
        assert_eq!(refusals(&world.nodes[0]), []);
    }
    // It can still renew its keys.
    let (now, before) = (world.now, handshakes(&world)[0]);
    world.nodes[0].channel(1).call_for_test(now);
    world.run(500);
    assert_eq!(handshakes(&world)[0], before + 1);
    world.expect_all_came();
    assert_eq!(world.nodes[1].places[0].counts().1, 1000);
    assert_eq!(resets(&world.nodes[0]), 1);
}

#[test]
fn another_life_is_let_in_when_the_one_before_does_not_answer() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.run_until(Duration::from_secs(1), is_open);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    let took = world.run_until(SILENCE, is_open);
    assert!(took >= RAIL_VERDICT && took < RAIL_VERDICT + HANDSHAKE_RETRY * 3, "{took:?}");
    assert_eq!(refusals(&world.nodes[0]), []);
    assert_eq!(world.nodes[1].config.disk[0].number >> 32, 2, "whoever had it in another life has lost it");
    world.write_all(0);
    world.run(50);
    world.expect_all_came();
}

/// Whose functions belong to a life that this node has not met since it was started.
#[test]
fn a_lender_that_was_started_waits_for_the_life_before() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.run_until(Duration::from_secs(1), is_open);
    let now = world.now;
    world.nodes[0].reboot(&arena, now, 100);
    world.nodes[1].reboot(&arena, now, 101);
    let took = world.run_until(Duration::from_secs(5), is_open);
    assert!(took >= SILENCE + HANDSHAKE_RETRY_MAX, "it could have lived: {took:?}");
    assert!(world.nodes[1].lobby.stats().deferred.get() > 0);
    assert_eq!(refusals(&world.nodes[0]), []);
}

#[test]
fn a_peer_from_a_copied_state_folder_is_another_one() {
    for (incarnation, is_other) in [(1, true), (2, false)] {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 1);
        world.run_until(Duration::from_secs(1), is_open);
        let now = world.now;
        world.nodes[1].config.incarnation = incarnation - 1;
        world.nodes[1].reboot(&arena, now, 100);
        world.run_until(SILENCE * 4, is_open);
        let fork = world.nodes[0].slots[0].channel.fork();
        assert_eq!(fork, if is_other { base::ids::LifeId([100; 16]) } else { base::ids::LifeId::default() });
    }
}

/// A machine goes back to a snapshot of its memory: its life is the same, what flows is not.
#[test]
fn what_has_gone_on_without_an_end_of_its_own_begins_anew() {
    for fallen in 0..2 {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 2);
        world.run_until(Duration::from_secs(1), is_open);
        (0..20).for_each(|_| {
            (0..2).for_each(|node| world.write_all(node));
            world.run(10);
        });
        let node = &mut world.nodes[fallen];
        node.places[0].stream.port.sender.reset();
        node.places[0].stream.lose_receiver();
        node.commit();
        let now = world.now;
        world.nodes[0].channel(1).call_for_test(now);
        world.run_for(Duration::from_millis(300));
        assert!(is_open(&world));
        assert_eq!(world.nodes.iter().map(resets).collect::<Vec<_>>(), [2, 2], "{fallen}");
        (0..2).for_each(|node| world.write_all(node));
        world.run(100);
        world.expect_all_came();
    }
}

#[test]
fn keys_are_renewed_when_a_machine_may_be_a_copy() {
    for side in 0..2 {
        for as_another in [false, true] {
            let arena = Arena::default();
            let mut world = World::pair(&arena, 2);
            world.run_until(Duration::from_secs(1), is_open);
            world.lost = 20;
            let before: Vec<_> =
                world.nodes.iter().map(|node| node.slots[0].channel.key_fingerprint()).collect();
            let now = world.now;
            let node = &mut world.nodes[side];
            node.config.seed = 77;
            if as_another {
                (node.config.life, node.config.incarnation) = (77, node.config.incarnation + 1);
                node.channel(1 - side).raise_incarnation(now, Incarnation(2));
            }
            let life = as_another.then_some(base::ids::LifeId([77; 16]));
            node.channel(1 - side).renew_keys(now, [77; 32], life);
            node.commit();
            (0..2).for_each(|node| world.write_all(node));
            // It stays so, whatever becomes of the card.
            world.nodes[side].restart(now);
            world.run_for(Duration::from_secs(3));
            assert!(is_open(&world), "{side} {as_another}: {}", world.describe());
            for (node, before) in world.nodes.iter().zip(before) {
                assert_ne!(node.slots[0].channel.key_fingerprint(), before);
                assert_eq!(resets(node), if as_another { 2 } else { 1 }, "{side} {as_another}");
            }
            (0..2).for_each(|node| world.write_all(node));
            world.run_for(Duration::from_secs(1));
            world.expect_all_came();
        }
    }
}

#[test]
fn both_ends_know_a_secret_that_no_other_pair_has() {
    let arena = Arena::default();
    let secrets = |both: bool| {
        let mut world = World::pair_with(&arena, 1, |config| {
            config.calls = [both || config.index == 0; 4];
            config.seed += u8::from(both);
        });
        world.run_until(Duration::from_secs(1), is_met);
        let now = world.now;
        let _ = now;
        [0, 1].map(|node| world.nodes[node].secret(1 - node))
    };
    let (one, other) = (secrets(false), secrets(true));
    assert!(one[0].is_some() && one[0] == one[1] && other[0] == other[1] && one[0] != other[0]);
}

#[test]
fn a_node_borrows_from_itself() {
    let arena = Arena::default();
    let mut config = config_of(0);
    config.loans = vec![Loan::Borrow { lender: 0, config: borrow(1) }, Loan::Lend(lend(1, 1))];
    config.is_its_own_peer = true;
    let mut world = World::of(vec![Node::new(&arena, config, Instant::ZERO)]);
    world.run_until(Duration::from_millis(100), is_open);
    world.write_all(0);
    world.run(50);
    let [one, two] = [0, 1].map(|place| world.nodes[0].places[place].counts());
    assert_eq!((one, two), ((1, 1), (1, 1)));
    world.nodes[0].restart(world.now);
    world.write_all(0);
    world.run(500);
    assert_eq!(world.nodes[0].places[1].counts(), (2, 2));
}

/// What one of the two sends from the snapshot on, by the key that seals it and its nonce.
fn frames_of_a_copy(side: usize, copy: u8) -> BTreeMap<(u64, PathId, u64), Vec<u8>> {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    world.run_until(Duration::from_secs(1), is_open);
    let life = base::ids::LifeId([100 + copy; 16]);
    let now = world.now;
    let node = &mut world.nodes[side];
    node.lobby.renew(Incarnation(2), life, [copy + 100; 32]);
    node.channel(1 - side).raise_incarnation(now, Incarnation(2));
    node.channel(1 - side).renew_keys(now, [copy; 32], Some(life));
    node.commit();
    let mut sent = BTreeMap::new();
    for round in 0..5000_u64 {
        world.now += TICK;
        let now = world.now;
        // Each copy has something else to say.
        if (round + u64::from(copy)).is_multiple_of(6) {
            world.write_all(side);
        }
        world.nodes.iter_mut().for_each(|node| node.step(now));
        for from in 0..2 {
            while let Some((to, path, mut bytes)) = world.nodes[from].poll_transmit(now) {
                let header = Header::parse(&bytes).unwrap();
                if from == side && header.kind == Kind::Sealed {
                    let key = world.nodes[from].slots[0].channel.key_fingerprint().unwrap();
                    sent.insert((key, header.path(), header.packet_number), bytes.clone());
                }
                world.nodes[to].handle_frame(now, from, path, &mut bytes);
            }
        }
    }
    assert!(world.nodes[1 - side].places[0].counts().1 > 300, "{side}");
    sent
}

#[test]
fn two_copies_of_a_machine_seal_nothing_different_with_one_nonce() {
    for side in 0..2 {
        let [one, two] = [1, 2].map(|copy| frames_of_a_copy(side, copy));
        let both = one.iter().filter_map(|(nonce, frame)| Some((frame, two.get(nonce)?)));
        assert!(both.clone().all(|(one, two)| one == two), "{side}: a nonce was used twice");
        assert!(both.count() < 10 && one.len() > 100 && two.len() > 100);
    }
}

/// Frames that a card seals have nonces of their own, whatever becomes of cards and keys.
#[test]
fn no_nonce_is_used_twice() {
    let arena = Arena::default();
    let mut world = World::pair_with(&arena, 4, |config| config.rekey_frames = 60);
    world.random = Random::new(9);
    world.run_until(Duration::from_secs(1), is_open);
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..1500 {
        world.now += TICK;
        let now = world.now;
        (0..2).for_each(|node| world.write_all(node));
        if round % 30 == 0 {
            let (node, stores) = (world.random.below(2) as usize, 1 + world.random.below(500));
            world.nodes[node].kill_after(stores);
        }
        world.nodes.iter_mut().for_each(|node| node.step(now));
        for from in 0..2 {
            while let Some((to, path, mut bytes)) = world.nodes[from].poll_transmit(now) {
                let header = Header::parse(&bytes).unwrap();
                if header.kind == Kind::Sealed {
                    let key = world.nodes[from].slots[0].channel.key_fingerprint().unwrap();
                    assert!(seen.insert((key, header.path(), header.packet_number)));
                }
                if world.random.below(10) > 0 {
                    world.nodes[to].handle_frame(now, from, path, &mut bytes);
                }
            }
        }
    }
    assert!(world.nodes[0].slots[0].channel.stats().handshakes.get() > 5 && seen.len() > 3000);
}

/// Forged, repeated and reflected first messages from everywhere: memory is bounded, and who is there goes on.
#[test]
fn floods_of_first_messages_cost_no_memory_and_hinder_nobody() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 2);
    let calls = first_messages(&mut world, 3000);
    // Strangers, each with a key of its own, who know node 1.
    let strangers: Vec<_> = (0..20)
        .flat_map(|stranger| {
            let mut config = config_of(50 + stranger);
            (config.peers[1], config.calls[1]) = (true, true);
            let mut one = World::of(vec![Node::new(&arena, config, Instant::ZERO)]);
            first_messages(&mut one, 400)
        })
        .collect();
    world.run_until(Duration::from_secs(5), is_open);
    let met = handshakes(&world);
    for round in 0..500 {
        (0..2).for_each(|node| world.write_all(node));
        for _ in 0..4 {
            let from = world.random.below(4) as usize;
            let pick = |world: &mut World<'_>, list: &[Vec<u8>]| {
                list[world.random.below(list.len() as u64) as usize].clone()
            };
            let (old, stranger) = (pick(&mut world, &calls), pick(&mut world, &strangers));
            world.inject(from, 1, &old);
            world.inject(from, 0, &old);
            world.inject(from, 1, &stranger);
            let mut forged = stranger.clone();
            let at = world.random.below(forged.len() as u64) as usize;
            forged[at] ^= 1;
            world.inject(from, 1, &forged);
        }
        world.nodes[1].config.is_under_load = round > 250;
        world.tick();
    }
    world.run(200);
    world.expect_all_came();
    assert_eq!(handshakes(&world), met);
    let stats = world.nodes[1].lobby.stats();
    assert!(stats.dropped_auth.get() > 1000 && stats.cookies.get() > 1000);
    assert!(stats.refused.get() < 30, "rarely: {}", stats.refused.get());
}
