//! Machines that were restored from a snapshot, while the machine that the snapshot was made of goes on or not.

use core::time::Duration;

use base::Instant;
use base::ids::{Incarnation, LifeId};
use base::ledger::Arena;
use base::times::RAIL_VERDICT;

use super::calls::refusals;
use super::identity::call_of_twin;
use super::*;
use crate::frame::{Header, Kind};
use crate::pair::*;

const ORIGINAL: usize = 0;
const COPY: usize = 1;

/// A lender and two borrowers that are the same machine until they part.
struct Copies<'m> {
    borrowers: [Node<'m>; 2],
    lender: Node<'m>,
    now: Instant,
    /// Which of the borrowers can be heard and hears.
    is_there: [bool; 2],
    /// Refusals that its agent has seen.
    seen: [usize; 2],
}

impl<'m> Copies<'m> {
    /// A pair that has met, and has written as often.
    fn begin(arena: &'m Arena, writes: u64) -> Self {
        let mut nodes = World::pair(arena, 1).nodes;
        let lender = nodes.pop().unwrap();
        let borrowers = [nodes.pop().unwrap(), World::pair(arena, 1).nodes.swap_remove(0)];
        let (now, is_there, seen) = (Instant::ZERO, [true; 2], [0; 2]);
        let mut copies = Self { borrowers, lender, now, is_there, seen };
        copies.run(100);
        (0..writes).for_each(|_| (0..2).for_each(|which| copies.write(which)));
        copies.run(100);
        assert_eq!(copies.lender.places[0].counts().1, writes);
        copies
    }

    fn write(&mut self, which: usize) {
        assert!(self.borrowers[which].places[0].write(4));
        self.borrowers[which].commit();
    }

    /// This one's kernel says that it was restored.
    fn renew(&mut self, which: usize) {
        let node = &mut self.borrowers[which];
        // Each time another one.
        node.config.life += 100 + which as u8;
        let (life, seed) = (LifeId([node.config.life; 16]), [node.config.life; 32]);
        node.lobby.renew(Incarnation(node.config.incarnation), life, seed);
        node.channel(1).renew_keys(self.now, seed, Some(life));
        node.commit();
    }

    /// Whether both are still one machine: then the lender hears it once.
    fn is_one(&self) -> bool {
        self.borrowers[0].config.life == self.borrowers[1].config.life && self.is_there == [true; 2]
    }

    fn peer_life(&self) -> Option<LifeId> {
        self.lender.slots[0].channel.peer_life()
    }

    fn run(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.now += TICK;
            let (now, is_one, has_it) = (self.now, self.is_one(), self.peer_life());
            self.lender.step(now);
            for which in (0..2).filter(|which| self.is_there[*which]) {
                let node = &mut self.borrowers[which];
                node.step(now);
                let told = refusals(node);
                for why in &told[self.seen[which]..] {
                    if let Refusal::Outdated { seen } = why {
                        // What its agent does once that is durable.
                        node.config.incarnation = seen.0 + 1;
                        node.channel(1).raise_incarnation(now, Incarnation(seen.0 + 1));
                    }
                }
                self.seen[which] = told.len();
                for (path, mut frame) in node.frames(now) {
                    if which == ORIGINAL || !is_one {
                        self.lender.handle_frame(now, 0, path, &mut frame);
                    }
                }
            }
            for (path, frame) in self.lender.frames(now) {
                let is_sealed = Header::parse(&frame).unwrap().kind == Kind::Sealed;
                for (which, node) in self.borrowers.iter_mut().enumerate() {
                    // An answer goes back to where the call came from; who did not call knows nothing of it.
                    let is_its = has_it == Some(LifeId([node.config.life; 16]));
                    if self.is_there[which] && (is_one || !is_sealed || is_its) {
                        node.handle_frame(now, 1, path, &mut frame.clone());
                    }
                }
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        self.run((time.as_nanos() / TICK.as_nanos()) as u32);
    }

    fn is_open(&self, which: usize) -> bool {
        let node = &self.borrowers[which];
        self.peer_life() == Some(LifeId([node.config.life; 16]))
            && self.lender.is_open()
            && node.is_open()
            && node.slots[0].channel.is_met()
    }

    /// What is written now arrives.
    fn expect_goes_on(&mut self, which: usize) {
        let before = self.lender.places[0].counts().1;
        (0..10).for_each(|_| self.write(which));
        self.run(200);
        assert_eq!(self.lender.places[0].counts().1, before + 10);
    }

    fn is_twin(&self, which: usize) -> bool {
        refusals(&self.borrowers[which]).iter().any(|why| matches!(why, Refusal::Twin { .. }))
    }

    fn tenancy(&self) -> u64 {
        self.lender.config.disk[0].number
    }

    fn resets(&self, which: usize) -> u32 {
        self.borrowers[which].places[0].resets
    }
}

#[test]
fn a_copy_takes_nothing_from_the_machine_that_it_was_made_of() {
    let arena = Arena::default();
    let mut copies = Copies::begin(&arena, 7);
    let tenancy = copies.tenancy();
    copies.renew(COPY);
    for _ in 0..10 {
        copies.run_for(RAIL_VERDICT);
        copies.expect_goes_on(ORIGINAL);
    }
    assert!(copies.is_twin(COPY) && !copies.borrowers[COPY].slots[0].channel.is_met());
    assert_eq!((copies.resets(ORIGINAL), copies.tenancy()), (1, tenancy));
}

/// It has been seen beside the other one, so it is not that one, started again.
#[test]
fn who_was_a_copy_once_has_nothing_of_who_is_started_again() {
    let arena = Arena::default();
    let mut copies = Copies::begin(&arena, 7);
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT);
    assert!(copies.is_twin(COPY));
    copies.is_there[ORIGINAL] = false;
    copies.run_for(RAIL_VERDICT * 20);
    let now = copies.now;
    copies.lender.restart(now);
    copies.run_for(RAIL_VERDICT * 20);
    assert!(!copies.is_open(COPY), "what it wants is kept for the other one");
    copies.is_there[ORIGINAL] = true;
    copies.renew(ORIGINAL);
    copies.run_for(RAIL_VERDICT * 4);
    assert!(copies.is_open(ORIGINAL));
    copies.expect_goes_on(ORIGINAL);
    // Started again, it is somebody else: let in when the other one is gone.
    copies.is_there[ORIGINAL] = false;
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT * 20);
    assert!(copies.is_open(COPY));
    copies.expect_goes_on(COPY);
}

/// It calls, as lenders call whose functions are kept for somebody.
#[test]
fn a_copy_of_a_lender_has_nobody_who_borrows_from_the_lender_when_that_dies() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
    let mut config = world.nodes[1].config.clone();
    (config.life, config.incarnation) = (100, 2);
    let mut twin = Node::new(&arena, config, world.now);
    // Its agent knows where the borrower is.
    let rails = twin.config.path_configs();
    twin.channel(0).set_peer_rails(world.now, rails);
    twin.channel(0).set_calling(world.now, true);
    twin.commit();
    let run = |world: &mut World<'_>, twin: &mut Node<'_>, is_there: bool| {
        for _ in 0..3 * RAIL_VERDICT.as_nanos() / TICK.as_nanos() {
            world.now += TICK;
            let now = world.now;
            for (node, _) in [(0, true), (1, is_there)].iter().filter(|(_, is_there)| *is_there) {
                world.nodes[*node].step(now);
            }
            twin.step(now);
            let own = if is_there { world.nodes[1].frames(now) } else { Vec::new() };
            for (path, mut bytes) in own.into_iter().chain(twin.frames(now)) {
                world.nodes[0].handle_frame(now, 1, path, &mut bytes);
            }
            for (path, bytes) in world.nodes[0].frames(now) {
                twin.handle_frame(now, 0, path, &mut bytes.clone());
                if is_there {
                    world.nodes[1].handle_frame(now, 0, path, &mut bytes.clone());
                }
            }
        }
    };
    run(&mut world, &mut twin, true);
    assert!(world.nodes.iter().all(Node::is_open));
    assert!(refusals(&twin).iter().any(|why| matches!(why, Refusal::Twin { .. })));
    (0..5).for_each(|_| run(&mut world, &mut twin, false));
    assert_ne!(world.nodes[0].slots[0].channel.peer_life(), Some(LifeId([100; 16])), "it is a copy");
    let now = world.now;
    world.nodes[1].reboot(&arena, now, 50);
    run(&mut world, &mut twin, true);
    assert_eq!(
        world.nodes[0].slots[0].channel.peer_life(),
        Some(LifeId([50; 16])),
        "the lender is there again"
    );
    assert!(world.nodes[..2].iter().all(Node::is_open));
}

/// Its drive may have gone on since the snapshot was made: it is told so.
#[test]
fn a_machine_that_was_restored_and_is_the_only_one_goes_on_as_another_user() {
    for restarts in [false, true] {
        let arena = Arena::default();
        let mut copies = Copies::begin(&arena, 7);
        let tenancy = copies.tenancy();
        copies.is_there[ORIGINAL] = false;
        copies.renew(COPY);
        let now = copies.now;
        if restarts {
            copies.borrowers[COPY].restart(now);
        }
        while !copies.is_open(COPY) {
            assert!(copies.now.since(now) < RAIL_VERDICT * 2, "{:?}", refusals(&copies.borrowers[COPY]));
            copies.run(5);
        }
        assert!(copies.now.since(now) >= RAIL_VERDICT, "the machine before could have answered");
        copies.run(50);
        assert_ne!(copies.tenancy(), tenancy);
        assert_eq!(copies.borrowers[COPY].places[0].claim().tenancy(), copies.tenancy());
        assert_eq!(copies.resets(COPY), 2);
        copies.expect_goes_on(COPY);
    }
}

#[test]
fn a_machine_that_is_restored_again_and_again_is_let_in_in_the_end() {
    let arena = Arena::default();
    let mut copies = Copies::begin(&arena, 7);
    copies.is_there[ORIGINAL] = false;
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT / 2);
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT * 20);
    assert!(copies.is_open(COPY));
    copies.expect_goes_on(COPY);
}

/// What a lender sends to the machine before comes to the address of both, under keys that both have.
#[test]
fn who_renews_takes_nothing_that_was_meant_for_the_machine_before() {
    let arena = Arena::default();
    let mut copies = Copies::begin(&arena, 7);
    assert!(copies.lender.places[0].write(4));
    copies.lender.commit();
    copies.renew(COPY);
    for _ in 0..1500 {
        copies.now += TICK;
        let now = copies.now;
        copies.lender.step(now);
        for (path, mut frame) in copies.lender.frames(now) {
            copies.borrowers[COPY].handle_frame(now, 1, path, &mut frame);
        }
    }
    assert!(!copies.borrowers[COPY].slots[0].channel.is_met());
    assert_eq!(copies.borrowers[COPY].places[0].counts().1, 0);
}

#[test]
fn of_two_that_were_restored_from_one_snapshot_one_goes_on() {
    let arena = Arena::default();
    let mut copies = Copies::begin(&arena, 7);
    [ORIGINAL, COPY].into_iter().for_each(|which| copies.renew(which));
    copies.run_for(RAIL_VERDICT * 10);
    let first = [ORIGINAL, COPY].into_iter().find(|which| copies.is_open(*which)).unwrap();
    assert!(copies.is_twin(1 - first) && !copies.is_twin(first));
    assert_eq!(copies.resets(first), 2);
    for _ in 0..5 {
        copies.run_for(RAIL_VERDICT);
        copies.expect_goes_on(first);
    }
    assert_eq!(copies.resets(first), 2);
}

#[test]
fn who_has_no_keys_has_none_to_renew() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    for node in 0..2 {
        let now = world.now;
        world.nodes[node].channel(1 - node).renew_keys(now, [77; 32], None);
        world.nodes[node].commit();
    }
    world.run(50);
    assert!(world.nodes.iter().all(Node::is_open));
}

/// A call that waited in the snapshot would be answered with the same keys in each copy, and an answer or a refusal
/// that was sent before leads to keys that are forgotten.
#[test]
fn what_was_prepared_ends_with_the_old_seed() {
    let answered = |is_first_call: bool| {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 1);
        if is_first_call {
            let (_, call) = world.frames_of(0).swap_remove(0);
            assert!(matches!(world.give(1, &call), Heard::Proposal(_)));
            assert!(world.nodes[1].slots[0].channel.has_pending_for_test());
        } else {
            // Another life, while the one before seems to be gone.
            world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
            call_of_twin(&arena, &mut world);
        }
        let now = world.now;
        let life = LifeId([world.nodes[1].config.life; 16]);
        world.nodes[1].lobby.renew(Incarnation(1), life, [77; 32]);
        world.nodes[1].channel(0).renew_keys(now, [77; 32], None);
        world.nodes[1].commit();
        let mut answers = 0;
        for _ in 0..10 {
            world.now += RAIL_VERDICT / 5;
            let frames = world.frames_of(1).into_iter();
            let is_answer = |(_, frame): &(_, Vec<u8>)| Header::parse(frame).unwrap().kind == Kind::Response;
            answers += frames.filter(is_answer).count();
        }
        (answers, world.nodes[1].slots[0].channel.has_pending_for_test())
    };
    assert_eq!([true, false].map(answered), [(0, false); 2]);
}

/// Every frame of these lives reaches node 0 of a pair, in this order, and its own ones reach all of them.
fn run_lenders<'m>(
    world: &mut World<'m>,
    lives: &mut [(&mut Node<'m>, bool)],
    twin_is_first: bool,
    time: Duration,
) {
    for _ in 0..time.as_nanos() / TICK.as_nanos() {
        world.now += TICK;
        let now = world.now;
        world.nodes[0].step(now);
        let mut frames = Vec::new();
        for (life, is_there) in lives.iter_mut() {
            life.step(now);
            let sent = life.frames(now);
            frames.push(if *is_there { sent } else { Vec::new() });
        }
        if twin_is_first {
            frames.reverse();
        }
        for (path, mut bytes) in frames.into_iter().flatten() {
            world.nodes[0].handle_frame(now, 1, path, &mut bytes);
        }
        for (path, bytes) in world.nodes[0].frames(now) {
            for (life, _) in lives.iter_mut().filter(|(_, is_there)| *is_there) {
                life.handle_frame(now, 0, path, &mut bytes.clone());
            }
        }
    }
}

/// A pair, and a copy of the lender's folder that runs and calls nobody.
fn with_twin<'m>(arena: &'m Arena) -> (World<'m>, Node<'m>, Node<'m>) {
    let mut world = World::pair(arena, 1);
    world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
    let mut config = world.nodes[1].config.clone();
    (config.life, config.incarnation) = (100, 2);
    let twin = Node::new(arena, config, world.now);
    let lender = world.nodes.pop().unwrap();
    (world, lender, twin)
}

/// The borrower calls for new keys, and the copy, which is where the line says, answers before the lender does.
#[test]
fn a_copy_that_answers_first_does_not_get_the_borrower_of_a_lender_that_lives() {
    let arena = Arena::default();
    let (mut world, mut lender, mut twin) = with_twin(&arena);
    let now = world.now;
    world.nodes[0].channel(1).call_for_test(now);
    world.nodes[0].wake();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, RAIL_VERDICT * 3);
    let with = world.nodes[0].slots[0].channel.peer_life();
    assert_eq!(with, Some(LifeId([lender.config.life; 16])), "the lender was there and was not even asked");
}

/// The same copy, which is known to be one: the lender that is started again answers each call a little later.
#[test]
fn a_known_copy_that_answers_first_keeps_nobody_from_the_lender_that_is_there_again() {
    let arena = Arena::default();
    let (mut world, mut lender, mut twin) = with_twin(&arena);
    let now = world.now;
    let rails = twin.config.path_configs();
    twin.channel(0).set_peer_rails(now, rails);
    twin.channel(0).set_calling(now, true);
    twin.commit();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, RAIL_VERDICT * 3);
    assert!(refusals(&twin).iter().any(|why| matches!(why, Refusal::Twin { .. })));
    assert!(world.nodes[0].is_open() && lender.is_open());
    let now = world.now;
    twin.channel(0).set_calling(now, false);
    lender.reboot(&arena, now, 50);
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, Duration::from_secs(30));
    assert_eq!(
        world.nodes[0].slots[0].channel.peer_life(),
        Some(LifeId([50; 16])),
        "it is there and answers"
    );
}

/// Or it lives all the while, and only new keys are due.
#[test]
fn a_known_copy_that_answers_first_keeps_nobody_from_new_keys() {
    let arena = Arena::default();
    let (mut world, mut lender, mut twin) = with_twin(&arena);
    let now = world.now;
    let rails = twin.config.path_configs();
    twin.channel(0).set_peer_rails(now, rails);
    twin.channel(0).set_calling(now, true);
    twin.commit();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, RAIL_VERDICT * 3);
    let (now, before) = (world.now, world.nodes[0].slots[0].channel.key_fingerprint());
    twin.channel(0).set_calling(now, false);
    world.nodes[0].channel(1).call_for_test(now);
    world.nodes[0].wake();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, Duration::from_secs(30));
    let channel = &world.nodes[0].slots[0].channel;
    assert_eq!(channel.peer_life(), Some(LifeId([lender.config.life; 16])));
    assert_ne!(channel.key_fingerprint(), before, "both ends want new keys for 30 s");
}

/// Two copies of one folder run: the second one that calls makes the first one be forgotten.
#[test]
fn of_two_copies_neither_has_anything_of_who_dies() {
    let arena = Arena::default();
    let mut copies = Copies::begin(&arena, 7);
    let mut third = World::pair(&arena, 1).nodes.swap_remove(0);
    (third.config.life, third.config.incarnation) = (150, 3);
    third = Node::new(&arena, third.config.clone(), copies.now);
    copies.renew(COPY);
    copies.run_for(RAIL_VERDICT * 3);
    assert!(copies.is_twin(COPY));
    let mut seen = 0;
    let mut run = |copies: &mut Copies<'_>, third: &mut Node<'_>, verdicts: u128| {
        for _ in 0..verdicts * RAIL_VERDICT.as_nanos() / TICK.as_nanos() {
            let now = copies.now;
            third.step(now);
            for (path, mut frame) in third.frames(now) {
                copies.lender.handle_frame(now, 0, path, &mut frame);
            }
            for (path, frame) in copies.lender.frames(now) {
                let kind = Header::parse(&frame).unwrap().kind;
                let has_it = copies.peer_life();
                if kind != Kind::Sealed || has_it == Some(LifeId([150; 16])) {
                    third.handle_frame(now, 1, path, &mut frame.clone());
                }
                for which in (0..2).filter(|which| copies.is_there[*which]) {
                    let life = LifeId([copies.borrowers[which].config.life; 16]);
                    if kind != Kind::Sealed || has_it == Some(life) {
                        copies.borrowers[which].handle_frame(now, 1, path, &mut frame.clone());
                    }
                }
            }
            // What its agent does once that is durable.
            let told = refusals(third);
            for why in &told[seen..] {
                if let Refusal::Outdated { seen } = why {
                    third.config.incarnation = seen.0 + 1;
                    third.channel(1).raise_incarnation(now, Incarnation(seen.0 + 1));
                }
            }
            seen = told.len();
            copies.run(1);
        }
    };
    run(&mut copies, &mut third, 30);
    assert!(refusals(&third).iter().any(|why| matches!(why, Refusal::Twin { .. })), "{:?}", refusals(&third));
    let original = copies.peer_life();
    assert_eq!(original, Some(LifeId([copies.borrowers[ORIGINAL].config.life; 16])));
    copies.is_there[ORIGINAL] = false;
    run(&mut copies, &mut third, 30);
    assert_eq!(copies.peer_life(), original, "both were refused as copies, and have run all the while");
}

/// The card of the lender dies now and then; the hold time goes on meanwhile, as it does for the function.
#[test]
fn what_is_kept_from_a_copy_is_kept_for_the_hold_time_and_not_longer() {
    for restarts in [false, true] {
        let arena = Arena::default();
        let mut copies = Copies::begin(&arena, 7);
        copies.renew(COPY);
        copies.run_for(RAIL_VERDICT);
        assert!(copies.is_twin(COPY));
        copies.is_there[ORIGINAL] = false;
        for _ in 0..4 {
            copies.now += Duration::from_secs(200);
            let now = copies.now;
            if restarts {
                copies.lender.restart(now);
            }
            copies.run_for(Duration::from_secs(3));
        }
        assert!(copies.is_open(COPY), "800 s, and its life before was heard by no card: {restarts}");
    }
}

/// The other one was slow, so the copy was let in; before it comes, the other one is heard, and it is not let in any
/// more. Then the other one dies.
#[test]
fn who_was_not_let_in_any_more_is_a_copy_too() {
    for dies in [false, true] {
        let arena = Arena::default();
        let mut copies = Copies::begin(&arena, 7);
        copies.renew(COPY);
        copies.is_there[ORIGINAL] = false;
        while !copies.lender.slots[0].channel.has_pending_for_test() {
            copies.run(1);
        }
        let (original, now) = (copies.peer_life(), copies.now);
        if dies {
            copies.lender.restart(now);
        }
        copies.is_there = [true, false];
        copies.run(200);
        assert!(
            !copies.lender.slots[0].channel.has_pending_for_test(),
            "it was heard, and the offer withdrawn"
        );
        assert!(copies.peer_life() == original && copies.is_open(ORIGINAL));
        copies.is_there = [false, true];
        copies.run_for(RAIL_VERDICT * 30);
        assert_eq!(copies.peer_life(), original, "the copy was there while the other one was: {dies}");
    }
}

/// The hold time is over, and the lender has not come back: its copy, known as such, is followed. What its drives hold
/// is not what the borrower left at the lender, though the tenancy that the copy tells is the same.
#[test]
fn a_known_copy_of_a_lender_that_is_followed_in_the_end_is_another_peer() {
    let arena = Arena::default();
    let (mut world, mut lender, mut twin) = with_twin(&arena);
    let now = world.now;
    let rails = twin.config.path_configs();
    twin.channel(0).set_peer_rails(now, rails);
    twin.channel(0).set_calling(now, true);
    twin.commit();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], false, RAIL_VERDICT * 3);
    assert!(refusals(&twin).iter().any(|why| matches!(why, Refusal::Twin { .. })));
    let tenancy = world.nodes[0].places[0].claim().tenancy();
    world.now += base::times::HOLD + Duration::from_secs(1);
    run_lenders(&mut world, &mut [(&mut lender, false), (&mut twin, true)], false, RAIL_VERDICT * 20);
    assert_eq!(world.nodes[0].slots[0].channel.peer_life(), Some(LifeId([100; 16])), "it is followed");
    assert!(world.nodes[0].is_open());
    let same = world.nodes[0].places[0].claim().tenancy() == tenancy;
    let is_other = world.nodes[0].slots[0].channel.fork() == LifeId([100; 16]);
    assert!(!same || is_other, "the borrower goes on as if nothing had happened");
}

/// The borrower's machine may have been copied, so it sends nothing until it has new keys; its lender lives.
#[test]
fn a_known_copy_that_answers_first_stops_nobody_who_has_to_renew_keys() {
    let arena = Arena::default();
    let (mut world, mut lender, mut twin) = with_twin(&arena);
    let now = world.now;
    let rails = twin.config.path_configs();
    twin.channel(0).set_peer_rails(now, rails);
    twin.channel(0).set_calling(now, true);
    twin.commit();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, RAIL_VERDICT * 3);
    assert!(refusals(&twin).iter().any(|why| matches!(why, Refusal::Twin { .. })));
    let now = world.now;
    twin.channel(0).set_calling(now, false);
    world.nodes[0].channel(1).renew_keys(now, [77; 32], None);
    world.nodes[0].commit();
    run_lenders(&mut world, &mut [(&mut lender, true), (&mut twin, true)], true, Duration::from_secs(60));
    assert!(world.nodes[0].slots[0].channel.is_met(), "nothing has flowed for 60 s, and both ends are there");
}

/// The copy has taken one function, and another one is still the original's: of the two who was refused beside the one
/// that is met has nothing of it when that dies.
#[test]
fn who_was_refused_beside_the_one_that_is_met_has_nothing_of_it_though_something_else_is_its() {
    let mut failed = Vec::new();
    for has_another in [false, true] {
        let arena = Arena::default();
        let mut copies = Copies::begin(&arena, 7);
        let original = copies.peer_life().unwrap();
        copies.renew(COPY);
        copies.is_there[ORIGINAL] = false;
        copies.run_for(RAIL_VERDICT * 20);
        assert!(copies.is_open(COPY));
        let copy = copies.peer_life().unwrap();
        let tenants = if has_another { vec![original, copy] } else { vec![copy] };
        copies.lender.slots[0].channel.set_tenants(tenants);
        copies.is_there[ORIGINAL] = true;
        copies.run_for(RAIL_VERDICT * 20);
        assert!(copies.is_open(COPY) && copies.is_twin(ORIGINAL));
        copies.is_there[COPY] = false;
        copies.run_for(RAIL_VERDICT * 30);
        if copies.peer_life() != Some(copy) {
            failed.push(has_another);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
