//! Many functions and many nodes at once, while cards die, nodes are started anew, streams end and are stuck.

use core::time::Duration;

use base::ids::{Incarnation, LifeId};
use base::ledger::Arena;
use base::{Instant, Random};
use proptest::prelude::*;

use super::*;
use crate::pair::*;

/// What becomes of a function of a pair.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    /// Everything that is sent has to come.
    Works,
    Stuck,
    /// It is given back, and wanted again.
    Comes,
}

fn close(node: &mut Node<'_>, now: Instant, index: usize) {
    node.guarded(now, |node| {
        node.wake();
        let place = &mut node.places[index];
        let slot = place.slot_index();
        let End::Claim(claim) = &mut place.end else { panic!("it lends") };
        if let Some(slot) = slot {
            claim.close(now, &mut node.slots[slot].channel, &mut place.stream);
        }
        node.commit();
    });
}

fn reopen(node: &mut Node<'_>, now: Instant, index: usize) {
    node.guarded(now, |node| {
        node.wake();
        node.places[index].claim().open(now);
        node.commit();
    });
}

fn kill_somebody(world: &mut World<'_>, most: u64) {
    let (count, stores) = (world.nodes.len() as u64, 1 + world.random.below(most));
    let node = world.random.below(count) as usize;
    world.nodes[node].kill_after(stores);
}

fn let_live(world: &mut World<'_>) {
    world.nodes.iter().for_each(|node| node.kill_after(0));
    (world.lost, world.doubled, world.late) = (0, 0, 0);
}

/// What may be sent without another word of the peer: as much as when the stream began.
fn has_all_credit(place: &TestLoan<'_>) -> bool {
    let (used, granted) = place.stream.port.sender.credits();
    (granted[0] - used[0], granted[1] - used[1]) == (1024, 1024 * 256)
}

fn run_256(seed: u64) {
    const FUNCTIONS: u32 = 256;
    let arena = Arena::default();
    let mut world = World::pair(&arena, FUNCTIONS);
    world.random = Random::new(seed);
    world.is_lazy = true;
    world.run_until(Duration::from_secs(2), |world| world.nodes.iter().all(Node::is_open));
    let fates: Vec<_> = (0..FUNCTIONS)
        .map(|_| match world.random.below(4) {
            0 => Fate::Stuck,
            1 => Fate::Comes,
            _ => Fate::Works,
        })
        .collect();
    for (index, fate) in fates.iter().enumerate() {
        world.nodes[1].places[index].log.is_stuck = *fate == Fate::Stuck;
    }
    (world.lost, world.late, world.doubled) = (5, 10, 5);
    for round in 0..120_u64 {
        (0..2).for_each(|node| world.write_all(node));
        if round % 6 == 0 {
            kill_somebody(&mut world, 4000);
        }
        for (index, fate) in fates.iter().enumerate() {
            let now = world.now;
            if *fate == Fate::Comes && world.random.below(10) == 0 {
                match world.nodes[0].places[index].claim().state() {
                    ClaimState::Closed => reopen(&mut world.nodes[0], now, index),
                    _ => close(&mut world.nodes[0], now, index),
                }
            }
        }
        world.run(3);
    }
    let_live(&mut world);
    // What is stuck goes on in the end, what was given back comes back.
    for index in 0..FUNCTIONS as usize {
        let now = world.now;
        let lent = &mut world.nodes[1].places[index];
        lent.log.is_stuck = false;
        lent.release_kept();
        if world.nodes[0].places[index].claim().state() == ClaimState::Closed {
            reopen(&mut world.nodes[0], now, index);
        }
    }
    world.nodes.iter_mut().for_each(Node::wake);
    world.nodes.iter().for_each(Node::commit);
    world.run_for(Duration::from_secs(2));
    for index in 0..FUNCTIONS as usize {
        let now = world.now;
        if world.nodes[0].places[index].claim().state() == ClaimState::Closed {
            reopen(&mut world.nodes[0], now, index);
        }
    }
    world.run_until(Duration::from_secs(10), |world| {
        let mut places = world.nodes.iter().flat_map(|node| &node.places);
        places.all(|place| place.is_open() && place.stream.is_idle())
    });
    world.run_for(Duration::from_millis(300));
    world.expect_all_came();
    for (index, fate) in fates.iter().enumerate() {
        let [one, two] = [0, 1].map(|node| &world.nodes[node].places[index]);
        assert!(has_all_credit(one) && has_all_credit(two), "{seed}: {index} {fate:?}");
        if *fate != Fate::Comes {
            assert_eq!((one.resets, two.resets), (1, 1), "{seed}: {index} {fate:?}");
            assert!(one.counts().0 >= 100, "{:?}", one.counts());
        }
    }
    let handshakes = world.nodes[0].slots[0].channel.stats().handshakes.get();
    assert_eq!(handshakes, 1, "{}", world.describe());
}

#[test]
fn half_of_256_functions_end_or_are_stuck_and_the_others_notice_nothing() {
    (0..2).for_each(run_256);
}

/// Three nodes, each of which lends two functions to each of the others, and borrows as many.
fn triangle<'m>(arena: &'m Arena, change: impl Fn(&mut NodeConfig)) -> World<'m> {
    let nodes = (0..3_usize).map(|index| {
        let mut config = config_of(index);
        for peer in (0..3).filter(|peer| *peer != index) {
            (config.peers[peer], config.calls[peer]) = (true, true);
            for which in 0..2 {
                // As both ends name it: lender, borrower, which of the two.
                let name = |lender: usize, borrower: usize| (lender * 6 + borrower * 2 + which) as u32;
                config.loans.push(Loan::Borrow { lender: peer, config: borrow(name(peer, index)) });
                config.loans.push(Loan::Lend(lend(name(index, peer), config.life)));
            }
        }
        change(&mut config);
        Node::new(arena, config, Instant::ZERO)
    });
    World::of(nodes.collect())
}

fn is_at_rest(world: &World<'_>) -> bool {
    let mut places = world.nodes.iter().flat_map(|node| &node.places);
    places.all(|place| place.is_open() && place.stream.is_idle())
}

/// What was sent at one end of each function has come at the other.
fn expect_consistent(world: &World<'_>, seed: u64) {
    let ends = |function: FunctionId| {
        let places = world.nodes.iter().flat_map(|node| node.places.iter().zip(&node.config.loans));
        let of_it = places.filter(move |(_, loan)| match loan {
            Loan::Borrow { config, .. } => config.wish.function == function,
            Loan::Lend(config) => config.function == function,
        });
        of_it.map(|(place, _)| place.counts()).collect::<Vec<_>>()
    };
    for function in (0..18).map(FunctionId) {
        let ends = ends(function);
        if let [one, two] = ends[..] {
            assert_eq!((one.0, one.1), (two.1, two.0), "{seed}: {function:?}");
        } else {
            assert!(ends.is_empty());
        }
    }
    for node in &world.nodes {
        assert!(node.places.iter().all(has_all_credit), "{seed}");
    }
}

/// Its machine may go on somewhere else, too.
fn renew(node: &mut Node<'_>, now: Instant) {
    node.config.seed = node.config.seed.wrapping_add(50);
    let seed = [node.config.seed; 32];
    let (incarnation, life) = (Incarnation(node.config.incarnation), LifeId([node.config.life; 16]));
    node.guarded(now, |node| {
        node.wake();
        node.lobby.renew(incarnation, life, seed);
        node.slots.iter_mut().for_each(|slot| slot.channel.renew_keys(now, seed, None));
        node.commit();
    });
}

/// One run: traffic everywhere, over loss, while cards die between any two stores, keys wear out, nodes are started
/// anew, rails are cut, machines renew their keys, memory is shared or is not, and functions come and go.
fn run_triangle(seed: u64) {
    let arena = Arena::default();
    let mut world = triangle(&arena, |config| {
        config.rekey_frames = [u64::MAX >> 8, 150, 400][seed as usize % 3];
        config.quiet_after = TICK * (seed as u32 % 5);
        config.max_frame = [1500, 9000][seed as usize % 2];
    });
    world.random = Random::new(seed * 77 + 5);
    world.is_lazy = seed.is_multiple_of(2);
    (world.lost, world.doubled, world.late) = [(0, 0, 0), (5, 5, 20), (25, 5, 20)][seed as usize % 3];
    let reboots = seed % 4 == 3;
    let mut lives = 10;
    for _ in 0..150 {
        (0..3).for_each(|node| world.write_all(node));
        let now = world.now;
        match world.random.below(40) {
            0..6 => kill_somebody(&mut world, 600),
            6 => {
                let (from, rail) = (world.random.below(3) as usize, world.random.below(2) as usize);
                world.cut = Box::new(move |one, _, path| one == from && path == PATHS[rail]);
            }
            7 => world.cut = Box::new(|_, _, _| false),
            8..11 => {
                let (node, index) = (world.random.below(3) as usize, world.random.below(4) as usize * 2);
                match world.nodes[node].places[index].claim().state() {
                    ClaimState::Closed => reopen(&mut world.nodes[node], now, index),
                    _ => close(&mut world.nodes[node], now, index),
                }
            }
            11 if reboots => {
                lives += 1;
                let node = world.random.below(3) as usize;
                world.nodes[node].reboot(&arena, now, lives);
                world.run_for(Duration::from_millis(500));
            }
            12 => {
                let (node, slot) = (world.random.below(3) as usize, world.random.below(2) as usize);
                world.nodes[node].slots[slot].channel.call_for_test(now);
                world.nodes[node].wake();
            }
            13 => {
                let node = world.random.below(3) as usize;
                renew(&mut world.nodes[node], now);
            }
            14 => {
                let (node, slot) = (world.random.below(3) as usize, world.random.below(2) as usize);
                let is_there = world.random.below(2) == 0;
                world.nodes[node].slots[slot].channel.set_shm(now, is_there);
                world.nodes[node].wake();
            }
            _ => {}
        }
        let ticks = 1 + world.random.below(8) as u32;
        world.run(ticks);
    }
    let_live(&mut world);
    world.cut = Box::new(|_, _, _| false);
    for _ in 0..4 {
        world.run_for(Duration::from_secs(1));
        for node in 0..3 {
            for index in [0, 2, 4, 6] {
                let now = world.now;
                if world.nodes[node].places[index].claim().state() == ClaimState::Closed {
                    reopen(&mut world.nodes[node], now, index);
                }
            }
        }
    }
    world.run_until(Duration::from_secs(20), is_at_rest);
    (0..3).for_each(|node| world.write_all(node));
    world.run_until(Duration::from_secs(5), is_at_rest);
    world.run_for(Duration::from_millis(200));
    expect_consistent(&world, seed);
    if !reboots {
        let resets = world.nodes.iter().flat_map(|node| &node.slots).flat_map(|slot| &slot.events);
        let anew = resets.filter(|event| **event == Event::Anew).count();
        assert!(anew <= 12, "{seed}: no course ends without a reason: {anew}");
    }
}

/// `PAIR_SEEDS=from..to` runs others.
#[test]
fn three_nodes_lend_to_each_other_whatever_happens() {
    let seeds = std::env::var("PAIR_SEEDS").ok();
    let range = seeds.as_deref().and_then(|seeds| {
        let (from, to) = seeds.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    for seed in range.unwrap_or(0..24) {
        run_triangle(seed);
    }
}

/// A peer that has its keys says anything at all, to both kinds of ends: each stream that it does not speak of goes on.
#[test]
fn whatever_a_peer_says_of_streams_stops_no_other() {
    use crate::pair::control::What;
    for seed in 0..10 {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 8);
        world.random = Random::new(seed);
        world.run_until(Duration::from_secs(2), |world| world.nodes.iter().all(Node::is_open));
        // It speaks of the first four.
        let spoken: Vec<_> = (0..4).map(|index| world.nodes[0].places[index].stream_number()).collect();
        let others: Vec<_> = (4..8).map(|index| world.nodes[0].places[index].stream_number()).collect();
        for _ in 0..200 {
            let liar = world.random.below(2) as usize;
            let any = world.random.below(60) as u32;
            let id = if world.random.below(2) == 0 { spoken[any as usize % 4] } else { any };
            let refusal = OpenRefusal::Other { verdict: any as u8 };
            let what = match world.random.below(7) {
                0 => What::Open { wish: borrow(any % 4).wish, proof: [any as u8; 32] },
                1 => What::Opened { tenancy: any.into(), requester: pcie::Bdf(any as u16), base: any.into() },
                2 => What::Refused(refusal),
                3 => What::Close,
                4 => What::Closed,
                5 => What::Inform(crate::Information::default()),
                _ => What::Informed,
            };
            if !others.contains(&id) {
                world.say(liar, base::ids::StreamId(id), what);
                world.say_status(liar, base::ids::StreamId(id), world.random.clone().below(100));
            }
            (0..2).for_each(|node| {
                world.nodes[node].places[4..].iter_mut().for_each(|place| _ = place.write(4));
            });
            world.nodes.iter().for_each(Node::commit);
            world.run(2);
        }
        world.run(500);
        for index in 4..8 {
            let [one, two] = [0, 1].map(|node| &world.nodes[node].places[index]);
            assert_eq!((one.counts(), one.resets, two.resets), ((200, 200), 1, 1), "{seed} {index}");
            assert_eq!(two.counts(), (200, 200));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Records of any kind with any bytes, and bytes that are none, in authentic frames of any stream.
    #[test]
    fn whatever_is_in_an_authentic_frame_harms_nobody_else(
        frames in proptest::collection::vec(
            (0..12_u32, any::<bool>(), proptest::collection::vec(
                (prop_oneof![0..24_u8, 128..150_u8], proptest::collection::vec(any::<u8>(), 0..80)),
                0..6,
            )),
            1..40,
        )
    ) {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 3);
        world.run_until(Duration::from_secs(2), |world| world.nodes.iter().all(Node::is_open));
        let spared = world.nodes[0].places[2].stream_number();
        for (number, has_status, records) in frames {
            let stream = base::ids::StreamId(number);
            let mut body = if has_status { vec![7; 32] } else { Vec::new() };
            for (kind, bytes) in records {
                body.extend([kind, bytes.len() as u8, 0]);
                body.extend(bytes);
            }
            // Those that speak of it could end it, as its own borrower may.
            let speaks = |body: &[u8]| body.windows(4).any(|word| word == spared.to_le_bytes());
            if number == spared || speaks(&body) {
                continue;
            }
            let frame = world.nodes[0].channel(1).write_for_test(stream, &body);
            world.inject(0, 1, &frame);
            world.nodes[0].places[2].write(4);
            world.nodes[0].commit();
            world.run(2);
        }
        world.run_for(Duration::from_secs(3));
        let [one, two] = [0, 1].map(|node| &world.nodes[node].places[2]);
        prop_assert_eq!((one.counts().0, one.resets, two.resets), (two.counts().1, 1, 1));
    }
}
