//! The path through memory that two nodes share.

use super::*;

fn open_pair<'a>(arena: &'a Arena, now: &mut Instant) -> [End<'a>; 2] {
    let mut ends = pair(arena);
    run(now, &mut ends, &mut |_, _| true, 50);
    ends.iter_mut().for_each(|end| end.channel.set_private(*now, true));
    run(now, &mut ends, &mut |_, _| true, 10);
    ends
}

#[test]
fn what_answers_is_preferred_and_carries_all() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = open_pair(&arena, &mut now);
    let mut on_rails = 0;
    for index in 0..300 {
        ends[0].write(index * 4);
        let mut network = |_, path| {
            on_rails += u32::from(path != PRIVATE_PATH);
            true
        };
        run(&mut now, &mut ends, &mut network, 1);
    }
    run(&mut now, &mut ends, &mut |_, _| true, 10);
    expect(&ends[1], 300);
    assert!(ends.iter().all(|end| end.channel.private_status(now).is_some_and(|(_, up, _)| up)));
    // Heartbeats of two rails, their answers and perhaps a hello.
    assert!(on_rails < 20, "{on_rails} frames");
    assert_eq!(ends[0].channel.stream.stats().retransmissions.get(), 0);
}

#[test]
fn nothing_is_sent_over_what_was_not_agreed_or_does_not_answer() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = pair(&arena);
    let mut rails_only = |_, path| {
        assert_ne!(path, PRIVATE_PATH);
        true
    };
    run(&mut now, &mut ends, &mut rails_only, 1000);
    assert!(ends[0].channel.private_status(now).is_none());
    // Only one end has it: it asks there, and goes on over the rails.
    ends[0].channel.set_private(now, true);
    for index in 0..100 {
        ends[0].write(index * 4);
        run(&mut now, &mut ends, &mut |_, path| path != PRIVATE_PATH, 2);
        assert_eq!(ends[1].log.0.len() as u64, index + 1, "at once");
    }
    expect(&ends[1], 100);
}

#[test]
fn what_was_in_it_when_it_ended_is_sent_again() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = open_pair(&arena, &mut now);
    for index in 0..200 {
        ends[0].write(index * 4);
        // Every tenth time it swallows what it is given, and ends at one end, then at the other.
        let swallows = index % 10 == 3;
        run(&mut now, &mut ends, &mut |_, path| !swallows || path != PRIVATE_PATH, 1);
        if swallows {
            let first = (index as usize / 10) % 2;
            ends[first].channel.set_private(now, false);
            run(&mut now, &mut ends, &mut |_, path| path != PRIVATE_PATH, 3);
            ends[1 - first].channel.set_private(now, false);
            ends.iter_mut().for_each(|end| end.channel.set_private(now, true));
        }
    }
    run(&mut now, &mut ends, &mut |_, _| true, 2000);
    expect(&ends[1], 200);
    assert!(ends[0].channel.stream.is_idle());
    assert!(ends[0].channel.stream.stats().retransmissions.get() > 0);
}

#[test]
fn cards_that_die_lose_nothing_although_nothing_else_works() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = open_pair(&arena, &mut now);
    let mut alone = |_, path| path == PRIVATE_PATH;
    for index in 0..300 {
        ends[0].write(index * 4);
        run(&mut now, &mut ends, &mut alone, 1);
        for (end, every) in [(0, 7), (1, 11)] {
            if index % every == 0 {
                ends[end].restart(now);
                ends[end].channel.set_private(now, true);
            }
        }
    }
    run(&mut now, &mut ends, &mut alone, 1000);
    expect(&ends[1], 300);
    assert!(ends[0].channel.stream.is_idle());
}

#[test]
fn both_ends_know_a_secret_that_no_other_pair_has() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let secrets =
        |ends: &[End<'_>; 2]| [&ends[0], &ends[1]].map(|end| end.ledger.root.channel.secret(end.config.role));
    let mut ends = pair(&arena);
    assert_eq!(secrets(&ends), [None, None]);
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let [ours, theirs] = secrets(&ends);
    assert!(ours.is_some() && ours == theirs);
    let mut others = pair(&arena);
    others[0].config.seed[3] = 1;
    others[0] = End::start(arena.zeroed::<Root>(), others[0].config.clone(), now);
    run(&mut now, &mut others, &mut |_, _| true, 50);
    assert!(secrets(&others)[0].is_some() && secrets(&others)[0] != ours, "the line is the same");
}

#[test]
fn a_frame_counts_only_where_it_belongs() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let mut ends = open_pair(&arena, &mut now);
    ends[0].write(0);
    ends[0].step(now);
    let mut frame = vec![0; MAX_FRAME];
    let sent = ends[0].channel.poll_transmit(now, &mut frame).unwrap();
    assert_eq!(sent.path, PRIVATE_PATH);
    let lender = &mut ends[1];
    // Over a network, where anyone could have written it.
    let malformed = |lender: &End<'_>| lender.channel.stats().dropped_malformed.get();
    let before = malformed(lender);
    lender.channel.handle_frame(now, &mut frame[..sent.len].to_vec(), &mut lender.log);
    // What claims to be a rail's, in memory; and handshakes there.
    for kind in [3, 1, 2] {
        let mut changed = frame[..sent.len].to_vec();
        changed[1] = kind;
        lender.channel.handle_private_frame(now, &mut changed.clone(), &mut lender.log);
        lender.channel.handle_frame(now, &mut changed, &mut lender.log);
    }
    assert_eq!(malformed(lender), before + 6, "one looks right on a rail, and does not open there");
    expect(lender, 0);
    lender.channel.handle_private_frame(now, &mut frame[..sent.len], &mut lender.log);
    expect(lender, 1);
}

#[test]
fn what_an_earlier_key_has_left_in_it_is_dropped() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let rekey = |config: &mut ChannelConfig| config.rekey_frames = 20;
    let mut ends = [End::new(&arena, Role::Borrower, rekey), End::new(&arena, Role::Lender, rekey)];
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    ends.iter_mut().for_each(|end| end.channel.set_private(now, true));
    run(&mut now, &mut ends, &mut |_, _| true, 10);
    ends[0].write(0);
    ends[0].step(now);
    let mut frame = vec![0; MAX_FRAME];
    let sent = ends[0].channel.poll_transmit(now, &mut frame).unwrap();
    assert_eq!(sent.path, PRIVATE_PATH);
    ends[0].channel.set_private(now, false);
    // Until the ids of keys have come round.
    let (mut index, mut met, id) = (1, 0, frame[2]);
    let stats = ends[1].channel.stats();
    let handshakes = stats.handshakes.get();
    while stats.handshakes.get() < handshakes + 8 {
        ends[0].write(index * 4);
        index += 1;
        run(&mut now, &mut ends, &mut |_, path| path != PRIVATE_PATH, 20);
        let lender = &mut ends[1];
        let keys = [&lender.ledger.root.channel.current, &lender.ledger.root.channel.previous].map(Cell::get);
        let is_known = keys.iter().any(|keys| keys.is_valid() && keys.id == u32::from(id));
        if stats.handshakes.get() > handshakes + 2 && is_known {
            let before = stats.dropped_auth.get();
            lender.channel.handle_private_frame(now, &mut frame[..sent.len].to_vec(), &mut lender.log);
            assert_eq!(stats.dropped_auth.get(), before + 1, "its key has only the same number");
            met += 1;
        }
    }
    assert!(met > 0);
    expect(&ends[1], index);
}
