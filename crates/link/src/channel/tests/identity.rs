//! Who somebody is: nodes that are started again, from whatever was left of their state folders, and lenders that are.

use base::times::{HANDSHAKE_RETRY_MAX, HOLD, RAIL_VERDICT, SILENCE};

use super::*;

fn second(arena: &Arena) -> End<'_> {
    End::new(arena, Role::Borrower, |config| {
        (config.identity, config.name) = (NodeKey::numbered(77), Name::new("second"));
        (config.life, config.seed) = (LifeId([77; 16]), [77; 32]);
    })
}

/// The borrower's node is started again: with an empty ledger, another life, and this incarnation.
fn again(arena: &Arena, incarnation: u64) -> End<'_> {
    End::new(arena, Role::Borrower, |config| {
        config.incarnation = Incarnation(incarnation);
        (config.life, config.seed) = (LifeId([100; 16]), [100; 32]);
    })
}

/// The lender's node is started again.
fn lender_again<'a>(arena: &'a Arena, before: &End<'_>, now: Instant) -> End<'a> {
    let mut config = before.config.clone();
    config.incarnation.0 += 1;
    (config.life, config.seed) = (LifeId([config.life.0[0] + 100; 16]), [config.seed[0] + 100; 32]);
    End::start(arena.zeroed::<Root>(), config, now)
}

fn refusals(end: &End<'_>) -> Vec<Refusal> {
    let refusals = end.events.iter().filter_map(|event| match event {
        Event::Refused(refusal) => Some(refusal.clone()),
        _ => None,
    });
    refusals.collect()
}

fn is_open(end: &End<'_>) -> bool {
    end.channel.state() == State::Open
}

/// Runs until `done`, at most for `most`.
fn run_until(
    now: &mut Instant,
    ends: &mut [End<'_>; 2],
    most: Duration,
    done: impl Fn(&[End<'_>; 2]) -> bool,
) {
    let before = *now;
    while !done(ends) {
        assert!(now.since(before) < most, "{:?}, {:?}", ends[0].events, ends[1].events);
        run(now, ends, &mut |_, _| true, 5);
    }
}

/// A pair that has been up, and `sent` writes that the lender has committed.
fn used_pair<'a>(arena: &'a Arena, now: &mut Instant, sent: u64) -> [End<'a>; 2] {
    let mut ends = pair(arena);
    run(now, &mut ends, &mut |_, _| true, 50);
    for index in 0..sent {
        ends[0].write(index * 4);
        run(now, &mut ends, &mut |_, _| true, 1);
    }
    run(now, &mut ends, &mut |_, _| true, 50);
    expect(&ends[1], sent);
    ends
}

/// Writes go through, and what counts as committed was handed on.
fn expect_fresh_streams(now: &mut Instant, ends: &mut [End<'_>; 2]) {
    ends.iter_mut().for_each(|end| end.log.0.clear());
    (0..10).for_each(|index| ends[0].write(index * 4));
    run(now, ends, &mut |_, _| true, 100);
    expect(&ends[1], 10);
    assert_eq!(ends[0].channel.stream.port.sender.committed(), 10);
    assert_eq!(ends[1].channel.stream.receiver().expected(), 10);
}

#[test]
fn a_borrower_that_is_started_again_is_let_in_once_the_one_before_does_not_answer() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [_, lender] = used_pair(&arena, &mut now, 30);
    let before = now;
    let mut ends = [again(&arena, 2), lender];
    run_until(&mut now, &mut ends, Duration::from_secs(1), |ends| ends.iter().all(is_open));
    let took = now.since(before);
    assert!(took >= RAIL_VERDICT && took < RAIL_VERDICT + Duration::from_millis(60), "{took:?}");
    assert_eq!(refusals(&ends[0]), []);
    expect_fresh_streams(&mut now, &mut ends);
    assert_eq!(ends[0].channel.tenancy() >> 32, 2, "whoever had it before in another life has lost it");
}

#[test]
fn who_was_silent_for_long_is_asked_all_the_same() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [_, lender] = used_pair(&arena, &mut now, 1);
    let mut ends = [End::new(&arena, Role::Borrower, |config| config.secret = [9; 32]), lender];
    run(&mut now, &mut ends, &mut |_, _| false, 3000);
    let [_, lender] = ends;
    let before = now;
    let mut ends = [again(&arena, 2), lender];
    run_until(&mut now, &mut ends, Duration::from_secs(1), |ends| ends.iter().all(is_open));
    // Silence may be this end's own: it may have stood still, with the answer waiting in its socket.
    let took = now.since(before);
    assert!(took >= RAIL_VERDICT && took < RAIL_VERDICT + Duration::from_millis(60), "{took:?}");
}

#[test]
fn a_probe_for_which_the_network_takes_its_time_is_answered() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [mut first, mut lender] = used_pair(&arena, &mut now, 1);
    let mut clone = again(&arena, 2);
    let mut buffer = vec![0; MAX_FRAME];
    clone.step(now);
    let sent = clone.channel.poll_transmit(now, &mut buffer).unwrap();
    lender.channel.handle_frame(now, &mut buffer[..sent.len], &mut lender.log);
    // What was under way before the probe says nothing.
    first.write(4);
    first.step(now);
    let sent = first.channel.poll_transmit(now, &mut buffer).unwrap();
    lender.channel.handle_frame(now, &mut buffer[..sent.len], &mut lender.log);
    lender.step(now);
    let mut said_no = false;
    for _ in 0..1000 {
        now += Duration::from_micros(200);
        lender.step(now);
        while let Some(sent) = lender.channel.poll_transmit(now, &mut buffer) {
            said_no |= sent.is_handshake;
            first.channel.handle_frame(now, &mut buffer[..sent.len], &mut first.log);
        }
        assert!(!said_no || now.since(Instant::ZERO) > Duration::from_millis(100));
        first.step(now);
        while let Some(sent) = first.channel.poll_transmit(now, &mut buffer) {
            if now.since(Instant::ZERO) > Duration::from_millis(100) {
                lender.channel.handle_frame(now, &mut buffer[..sent.len], &mut lender.log);
            }
        }
    }
    assert!(said_no, "the first one is there");
}

/// The clone calls, and its message reaches the lender.
fn call<'a>(arena: &'a Arena, now: Instant, lender: &mut End<'_>) -> End<'a> {
    let mut clone = again(arena, 2);
    let mut buffer = vec![0; MAX_FRAME];
    clone.step(now);
    let sent = clone.channel.poll_transmit(now, &mut buffer).unwrap();
    lender.channel.handle_frame(now, &mut buffer[..sent.len], &mut lender.log);
    lender.step(now);
    clone
}

fn frames_of(end: &mut End<'_>, now: Instant) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; MAX_FRAME];
    core::iter::from_fn(|| {
        let sent = end.channel.poll_transmit(now, &mut buffer)?;
        Some(buffer[..sent.len].to_vec())
    })
    .collect()
}

fn take(end: &mut End<'_>, now: Instant, frames: &[Vec<u8>]) {
    for frame in frames {
        end.channel.handle_frame(now, &mut frame.clone(), &mut end.log);
        end.step(now);
    }
}

#[test]
fn who_stood_still_finds_the_answer_to_its_probe_in_its_socket() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [mut first, mut lender] = used_pair(&arena, &mut now, 1);
    let mut clone = call(&arena, now, &mut lender);
    // What was sent before the probe came lies in front of its answer.
    let mut socket = Vec::new();
    for index in 0..20 {
        first.write(index * 4);
        first.step(now);
        socket.extend(frames_of(&mut first, now));
    }
    let probes = frames_of(&mut lender, now);
    take(&mut first, now, &probes);
    socket.extend(frames_of(&mut first, now));
    assert!(socket.len() > 1);
    now += RAIL_VERDICT * 2;
    // The clock is looked at first, and the socket is read bit by bit.
    lender.step(now);
    for frame in socket {
        now += Duration::from_micros(200);
        lender.step(now);
        take(&mut lender, now, &[frame]);
    }
    now += Duration::from_millis(10);
    lender.step(now);
    let said = frames_of(&mut lender, now);
    take(&mut clone, now, &said);
    assert!(matches!(refusals(&clone)[..], [Refusal::Twin { .. }]), "{:?}", clone.events);
    assert_eq!(clone.channel.state(), State::Idle);
}

/// A card dies after it has let in who called, and the life before that seemed to be gone is heard by the next one.
#[test]
fn an_offer_is_withdrawn_when_the_life_before_is_heard_again() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [first, mut lender] = used_pair(&arena, &mut now, 1);
    let mut clone = call(&arena, now, &mut lender);
    frames_of(&mut lender, now);
    for _ in 0..10 {
        now += RAIL_VERDICT / 5;
        lender.step(now);
        if lender.channel.pending.is_some() {
            break;
        }
        frames_of(&mut lender, now);
    }
    assert!(lender.channel.pending.is_some(), "it was let in");
    let answer = frames_of(&mut lender, now);
    lender.restart(now);
    let mut ends = [first, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 100);
    take(&mut clone, now, &answer);
    let [first, mut lender] = ends;
    let frames = frames_of(&mut clone, now);
    assert!(is_open(&clone) && !frames.is_empty(), "it takes itself for the user");
    take(&mut lender, now, &frames);
    let mut ends = [first, lender];
    ends[0].write(4);
    run(&mut now, &mut ends, &mut |_, _| true, 100);
    assert_eq!((ends[1].log.0.len(), ends[1].channel.tenant().number >> 32), (2, 1), "the first one goes on");
}

#[test]
fn a_clone_takes_nothing_from_a_borrower_that_is_there() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [mut first, mut lender] = used_pair(&arena, &mut now, 30);
    // The first has an attempt later than all that the clone will have, and one incarnation less.
    for incarnation in [2, 9] {
        let mut clone = again(&arena, incarnation);
        clone.config.life = LifeId([incarnation as u8 + 100; 16]);
        let mut buffer = vec![0; MAX_FRAME];
        for round in 0..15_000 {
            now += Duration::from_micros(200);
            if round % 20 == 0 {
                first.write(first.channel.stream.port.sender.next() * 4);
            }
            for end in [&mut first, &mut clone, &mut lender] {
                end.step(now);
            }
            // Both are heard by the lender, on a rail each of their own here, and each hears what it can.
            for end in [&mut first, &mut clone] {
                while let Some(sent) = end.channel.poll_transmit(now, &mut buffer) {
                    lender.channel.handle_frame(now, &mut buffer[..sent.len], &mut lender.log);
                    lender.ledger.journal.commit();
                }
            }
            while let Some(sent) = lender.channel.poll_transmit(now, &mut buffer) {
                for end in [&mut first, &mut clone] {
                    end.channel.handle_frame(now, &mut buffer[..sent.len].to_vec(), &mut end.log);
                    end.ledger.journal.commit();
                }
            }
        }
        assert_eq!(clone.channel.state(), State::Idle);
        let twins = refusals(&clone);
        assert!(twins.len() > 1 && twins.iter().all(|why| matches!(why, Refusal::Twin { .. })), "{twins:?}");
        assert_eq!((first.channel.tenancy() >> 32, refusals(&first)), (1, Vec::new()));
    }
    let written = first.channel.stream.port.sender.next();
    assert!(written > 1000 && first.events.iter().filter(|event| **event == Event::Reset).count() == 1);
    // It can still renew its keys.
    first.channel.handshake.next = Some(now);
    let handshakes = first.channel.stats().handshakes.get();
    let mut ends = [first, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 500);
    assert_eq!(ends[0].channel.stats().handshakes.get(), handshakes + 1);
    expect(&ends[1], written);
}

#[test]
fn a_restored_state_folder_is_told_of_and_begins_anew_with_a_greater_incarnation() {
    let arena = Arena::default();
    // Older by three lives, and by none.
    for (number, incarnation) in [2, 5].into_iter().enumerate() {
        let mut now = Instant::ZERO;
        let first = End::new(&arena, Role::Borrower, |config| config.incarnation = Incarnation(5));
        let mut ends = [first, End::new(&arena, Role::Lender, |_| {})];
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        (0..400).for_each(|index| {
            ends[0].write(index * 4);
            run(&mut now, &mut ends, &mut |_, _| true, 1);
        });
        if number == 0 {
            ends[0].channel.close(now);
            run(&mut now, &mut ends, &mut |_, _| true, 100);
        }
        let [_, lender] = ends;
        let mut ends = [again(&arena, incarnation), lender];
        let (state, tenancy) = (ends[1].channel.state(), ends[1].channel.tenant());
        run(&mut now, &mut ends, &mut |_, _| true, 5000);
        let told = refusals(&ends[0]);
        let outdated = Refusal::Outdated { seen: Incarnation(5) };
        assert!(!told.is_empty() && told.iter().all(|why| *why == outdated), "{told:?}");
        assert_eq!((ends[1].channel.state(), ends[1].channel.tenant()), (state, tenancy), "nothing changed");
        ends[0].channel.raise_incarnation(now, Incarnation(6));
        run_until(&mut now, &mut ends, SILENCE, |ends| ends.iter().all(is_open));
        expect_fresh_streams(&mut now, &mut ends);
    }
}

#[test]
fn old_messages_are_refused_no_more_often_than_is_useful() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut old = again(&arena, 0);
    let mut buffer = vec![0; MAX_FRAME];
    old.step(now);
    let sent = old.channel.poll_transmit(now, &mut buffer).unwrap();
    let message = buffer[..sent.len].to_vec();
    let [_, mut lender] = used_pair(&arena, &mut now, 1);
    let mut answered = 0;
    for _ in 0..1000 {
        now += Duration::from_millis(1);
        lender.channel.handle_frame(now, &mut message.clone(), &mut lender.log);
        lender.step(now);
        while let Some(sent) = lender.channel.poll_transmit(now, &mut buffer) {
            answered += u32::from(sent.is_handshake);
        }
    }
    assert!((1..=50).contains(&answered), "{answered}");
    assert!(lender.channel.stats().dropped_replay.get() >= 1000);
}

/// A machine goes back to a snapshot of its memory: its life is the same, its streams are not.
#[test]
fn streams_that_have_gone_on_without_an_end_of_theirs_begin_anew() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let ends = used_pair(&arena, &mut now, 20);
    for fallen in [0, 1] {
        // What this end has of the streams, some time ago: nothing but a handshake can tell.
        let mut ends = used_pair(&arena, &mut now, 20);
        ends[fallen].channel.stream.port.sender.reset();
        ends[fallen].channel.stream.lose_receiver();
        ends[fallen].ledger.journal.commit();
        ends[0].channel.handshake.next = Some(now);
        ends.iter_mut().for_each(|end| end.events.clear());
        run(&mut now, &mut ends, &mut |_, _| true, 500);
        assert!(ends.iter().all(|end| end.events.contains(&Event::Reset)), "{fallen}: {:?}", ends[0].events);
        expect_fresh_streams(&mut now, &mut ends);
    }
    drop(ends);
}

#[test]
fn a_lender_that_is_started_again_keeps_the_function_for_whom_it_belonged_to() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [first, lender] = used_pair(&arena, &mut now, 5);
    let mut lender = lender_again(&arena, &lender, now);
    let mut ends = [second(&arena), lender];
    run(&mut now, &mut ends, &mut |_, _| true, 20_000);
    assert_eq!((ends[0].channel.state(), ends[1].channel.state()), (State::Idle, State::Idle));
    let why = refusals(&ends[0]).pop().unwrap();
    let Refusal::InUse { by, since: None, hold: Some(hold), .. } = why else { panic!("{why:?}") };
    assert_eq!(by.to_string(), "node");
    assert!(hold < HOLD && hold > HOLD - Duration::from_secs(10), "{hold:?}");
    // Whose it is comes back, and goes on; in the lender's next card too.
    [_, lender] = ends;
    lender.restart(now);
    let mut ends = [first, lender];
    run_until(&mut now, &mut ends, SILENCE + HANDSHAKE_RETRY_MAX, |ends| is_open(&ends[1]));
    assert_eq!(ends[0].channel.tenancy() >> 32, 1, "nobody else has used it");
    assert!(!ends[0].channel.is_other_lender());
    expect_fresh_streams(&mut now, &mut ends);
}

#[test]
fn the_hold_time_counts_from_when_a_restarted_lender_can_hear() {
    let arena = Arena::default();
    let mut now = Instant::ZERO + Duration::from_secs(5);
    let [_, lender] = used_pair(&arena, &mut now, 5);
    now += HOLD * 2;
    let mut ends = [second(&arena), lender_again(&arena, &lender, now)];
    ends[1].step(now);
    // Cards come and go.
    for _ in 0..9 {
        now += HOLD / 10;
        ends[1].restart(now);
        run(&mut now, &mut ends, &mut |_, _| true, 6000);
        assert_eq!(ends[1].channel.state(), State::Idle);
    }
    now += HOLD / 10;
    run_until(&mut now, &mut ends, HANDSHAKE_RETRY_MAX * 3, |ends| is_open(&ends[1]));
    assert_eq!(ends[0].channel.tenancy() >> 32, 2);
}

#[test]
fn what_was_given_back_is_free_after_a_restart_of_the_lender() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = used_pair(&arena, &mut now, 5);
    ends[0].channel.close(now);
    run(&mut now, &mut ends, &mut lossy(), 200);
    assert!(ends[0].events.contains(&Event::Closed));
    let mut ends = [second(&arena), lender_again(&arena, &ends[1], now)];
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert!(ends.iter().all(is_open));
}

#[test]
fn a_goodbye_is_answered_when_it_is_durable_and_nobody_is_let_in_before() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = used_pair(&arena, &mut now, 5);
    ends[1].disk_is_full = true;
    ends[0].channel.close(now);
    run(&mut now, &mut ends, &mut |_, _| true, 500);
    assert!(!ends[0].events.contains(&Event::Closed) && ends[1].events.contains(&Event::Closed));
    // A successor asks for it as well.
    ends[1].restart(now);
    assert!(ends[1].channel.unsaved_tenancy().is_some_and(|tenancy| !tenancy.is_held));
    let [first, lender] = ends;
    let mut ends = [second(&arena), lender];
    run(&mut now, &mut ends, &mut |_, _| true, 500);
    assert_eq!((ends[1].channel.state(), refusals(&ends[0])), (State::Closed, Vec::new()));
    let [second, mut lender] = ends;
    lender.disk_is_full = false;
    let mut ends = [first, lender];
    run(&mut now, &mut ends, &mut |_, _| true, 500);
    assert!(ends[0].events.contains(&Event::Closed));
    let [_, lender] = ends;
    let mut ends = [second, lender];
    run_until(&mut now, &mut ends, HANDSHAKE_RETRY_MAX * 2, |ends| ends.iter().all(is_open));
}

#[test]
fn both_start_again_and_the_lender_waits_a_moment_for_the_life_before() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [_, lender] = used_pair(&arena, &mut now, 5);
    let before = now;
    let mut ends = [again(&arena, 2), lender_again(&arena, &lender, now)];
    run_until(&mut now, &mut ends, Duration::from_secs(5), |ends| ends.iter().all(is_open));
    assert!(
        now.since(before) >= SILENCE + HANDSHAKE_RETRY_MAX,
        "it could have lived: {:?}",
        now.since(before)
    );
    assert_eq!(refusals(&ends[0]), []);
}

/// Another one was let in and has left before its lender's agent had written anything: the next one is told a number of
/// its own.
#[test]
fn tenancies_that_follow_each_other_fast_have_numbers_of_their_own() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = pair(&arena);
    ends[1].disk_is_full = true;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!(ends[0].channel.tenancy() >> 32, 1);
    let asked = ends[1].channel.unsaved_tenancy().unwrap();
    let [first, mut lender] = ends;
    now += HOLD * 2;
    lender.step(now);
    let mut ends = [second(&arena), lender];
    run_until(&mut now, &mut ends, SILENCE * 4, |ends| ends[1].channel.tenancy() >> 32 == 2);
    // The first one's becomes durable late.
    ends[1].channel.set_tenancy(asked);
    assert_eq!(ends[1].channel.unsaved_tenancy().map(|tenancy| tenancy.number >> 32), Some(2));
    ends[1].disk_is_full = false;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert_eq!((ends[0].channel.tenancy() >> 32, ends[1].config.tenancy.number >> 32), (2, 2));
    drop(first);
}

#[test]
fn a_lender_from_a_copied_state_folder_is_another_one() {
    let arena = Arena::default();
    for (incarnation, is_other) in [(1, true), (2, false)] {
        let mut now = Instant::ZERO;
        let [first, lender] = used_pair(&arena, &mut now, 5);
        let mut copy = lender_again(&arena, &lender, now);
        copy.config.incarnation = Incarnation(incarnation);
        let copy = End::start(arena.zeroed::<Root>(), copy.config, now);
        let mut ends = [first, copy];
        ends[0].events.clear();
        run_until(&mut now, &mut ends, SILENCE * 3, |ends| is_open(&ends[1]));
        assert!(ends[0].events.contains(&Event::Reset));
        assert_eq!(ends[0].channel.is_other_lender(), is_other);
        expect_fresh_streams(&mut now, &mut ends);
    }
}

/// A domain comes with the identity: a lender whose state folder is new has another one, and its borrower still knows
/// the old one.
#[test]
fn a_lender_that_has_another_domain_now_is_found() {
    let arena = Arena::default();
    for earlier_attempts in 0..2 {
        let mut now = Instant::ZERO;
        let [first, lender] = used_pair(&arena, &mut now, 5);
        first.channel.cells.attempt.update(first.ledger.journal, |attempt| attempt + earlier_attempts);
        first.ledger.journal.commit();
        let mut other = lender_again(&arena, &lender, now);
        other.config.domain = DomainId(9);
        let other = End::start(arena.zeroed::<Root>(), other.config, now);
        let mut ends = [first, other];
        run_until(&mut now, &mut ends, SILENCE + HANDSHAKE_RETRY_MAX * 2, |ends| is_open(&ends[1]));
        assert_eq!(ends[0].channel.peer().map(|(_, _, domain)| domain), Some(DomainId(9)));
        expect_fresh_streams(&mut now, &mut ends);
    }
}

#[test]
fn a_lender_with_a_list_lets_in_only_who_stands_there_and_says_so_to_others() {
    let (listed, other) = (NodeKey::numbered(Role::Borrower as u64 + 1), NodeKey::numbered(77));
    let allows = |id: NodeId| {
        move |config: &mut ChannelConfig| config.allowed = Some(Arc::from([NodeId::numbered(1), id]))
    };
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let lender = End::new(&arena, Role::Lender, allows(other.id()));
    let mut ends = [End::new(&arena, Role::Borrower, |_| {}), lender];
    run(&mut now, &mut ends, &mut |_, _| true, 500);
    assert_eq!(refusals(&ends[0])[..1], [Refusal::NotAllowed]);
    assert_eq!((ends[1].channel.state(), ends[1].channel.tenancy()), (State::Idle, 0));
    let lender = End::new(&arena, Role::Lender, allows(listed.id()));
    let mut ends = [End::new(&arena, Role::Borrower, |_| {}), lender];
    run_until(&mut now, &mut ends, Duration::from_secs(1), |ends| ends.iter().all(is_open));
    assert_eq!(ends[1].channel.peer().map(|(node, ..)| node), Some(listed.id()));
}

#[test]
fn a_list_that_does_not_name_the_holder_takes_the_function_from_it() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let [first, lender] = used_pair(&arena, &mut now, 1);
    let other = NodeKey::numbered(77);
    let mut again = lender_again(&arena, &lender, now);
    again.config.allowed = Some(Arc::from([other.id()]));
    let again = End::start(arena.zeroed::<Root>(), again.config, now);
    // Who has had it is refused.
    let mut ends = [first, again];
    run_until(&mut now, &mut ends, SILENCE * 3, |ends| refusals(&ends[0]).contains(&Refusal::NotAllowed));
    let [_, again] = ends;
    let other = End::new(&arena, Role::Borrower, |config| config.identity = other);
    let mut ends = [other, again];
    run_until(&mut now, &mut ends, Duration::from_secs(2), |ends| ends.iter().all(is_open));
}

/// Whoever has one secret of a node and not its key, or the key and not the secret, gets no answer.
#[test]
fn who_calls_another_node_or_knows_another_secret_gets_no_answer() {
    let wrong: [fn(&mut ChannelConfig); 2] = [
        |config| config.lender = NodeKey::numbered(99).lends_in(config.lender.domain),
        |config| config.secret = [6; 32],
    ];
    for wrong in wrong {
        let arena = Arena::default();
        let mut now = Instant::ZERO;
        let borrower = End::new(&arena, Role::Borrower, wrong);
        let mut ends = [borrower, End::new(&arena, Role::Lender, |_| {})];
        run(&mut now, &mut ends, &mut |_, _| true, 3000);
        let [borrower, lender] = &ends;
        assert_eq!((lender.channel.stats().sent_frames.get(), lender.channel.state()), (0, State::Idle));
        assert!(lender.channel.stats().dropped_auth.get() > 0 && borrower.events.is_empty());
    }
}
