//! Long ways: a satellite's, or a queue that is full.

use super::*;
use base::times::{HANDSHAKE_RETRY_MAX, SILENCE};

/// Frames under way, by direction, the oldest first: when they arrive, and on which path.
type UnderWay = [VecDeque<(Instant, PathId, Vec<u8>)>; 2];

/// Runs two ends whose frames take `delay`, until `end` says so.
fn run_slowly(
    now: &mut Instant,
    ends: &mut [End<'_>; 2],
    (delay, under_way): (Duration, &mut UnderWay),
    end: &mut dyn FnMut(Instant, &[End<'_>; 2]) -> bool,
) {
    let mut buffer = vec![0; MAX_FRAME];
    while !end(*now, ends) {
        *now += Duration::from_millis(5);
        for (from, under_way) in under_way.iter_mut().enumerate() {
            let to = &mut ends[1 - from];
            while under_way.front().is_some_and(|(at, ..)| *at <= *now) {
                let (.., mut frame) = under_way.pop_front().unwrap();
                to.channel.handle_frame(*now, &mut frame, &mut to.log);
                to.ledger.journal.commit();
            }
            let end = &mut ends[from];
            end.step(*now);
            while let Some(Transmit { path, len, .. }) = end.channel.poll_transmit(*now, &mut buffer) {
                under_way.push_back((*now + delay, path, buffer[..len].to_vec()));
            }
        }
    }
}

#[test]
fn round_trips_of_seconds_connect_and_carry() {
    for delay in [200, 750, 1_500, 3_000].map(Duration::from_millis) {
        let arena = Arena::default();
        let mut ends = pair(&arena);
        let (mut now, mut under_way) = (Instant::ZERO, UnderWay::default());
        let mut run = |now: &mut Instant,
                       ends: &mut [End<'_>; 2],
                       limit: Duration,
                       done: &dyn Fn(&[End<'_>; 2]) -> bool| {
            let limit = *now + limit;
            run_slowly(now, ends, (delay, &mut under_way), &mut |now, ends| {
                assert!(
                    now < limit,
                    "{delay:?}: {:?} {:?}",
                    ends[0].channel.stats(),
                    ends[1].channel.stats()
                );
                done(ends)
            });
        };
        let is_open = |ends: &[End<'_>; 2]| ends.iter().all(|end| end.channel.state() == State::Open);
        // The answer to the first attempt, that to the last one before it, and the first frame under its keys.
        run(&mut now, &mut ends, delay * 5 + HANDSHAKE_RETRY_MAX, &is_open);
        for index in 0..200 {
            ends.iter_mut().for_each(|end| end.write(index * 4));
        }
        run(&mut now, &mut ends, delay * 6 + SILENCE, &|ends| {
            ends.iter().all(|end| end.channel.stream.is_idle())
        });
        ends.iter().for_each(|end| expect(end, 200));
        // From now on everybody knows how long the way is, and nothing more is in doubt.
        let later = now + delay * 10;
        run_slowly(&mut now, &mut ends, (delay, &mut under_way), &mut |now, _| now >= later);
        let again = [0, 1].map(|end| ends[end].channel.stream.stats().retransmissions.get());
        for index in 200..300 {
            ends.iter_mut().for_each(|end| end.write(index * 4));
        }
        let later = now + delay * 10;
        run_slowly(&mut now, &mut ends, (delay, &mut under_way), &mut |now, _| now >= later);
        for (end, again) in ends.iter().zip(again) {
            expect(end, 300);
            assert_eq!(end.channel.stats().handshakes.get(), 1, "{delay:?}: nobody was taken for silent");
            assert_eq!(end.channel.stream.stats().retransmissions.get(), again, "{delay:?}");
            for path in 0..2 {
                let (round_trip, is_up, _) = end.channel.path_status(path, now);
                assert!(
                    is_up && round_trip.unwrap().abs_diff(delay * 2) < delay / 4,
                    "{delay:?} {round_trip:?}"
                );
            }
        }
    }
}

#[test]
fn a_forged_answer_costs_no_more_than_one_try() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    let mut buffer = vec![0; MAX_FRAME];
    let mut proposals = Vec::new();
    // A lender that does not answer.
    for _ in 0..3 {
        ends[0].step(now);
        while let Some(Transmit { len, path, .. }) = ends[0].channel.poll_transmit(now, &mut buffer) {
            if path == 0 {
                proposals.push(buffer[..len].to_vec());
            }
        }
        now += HANDSHAKE_RETRY_MAX;
    }
    let answers: Vec<Vec<u8>> = proposals
        .iter()
        .map(|proposal| {
            let lender = &mut ends[1];
            lender.channel.handle_frame(now, &mut proposal.clone(), &mut lender.log);
            let len = lender.channel.poll_transmit(now, &mut buffer).unwrap().len;
            lender.ledger.journal.commit();
            buffer[..len].to_vec()
        })
        .collect();
    let numbers = answers.iter().map(|answer| crate::frame::Header::parse(answer).unwrap().packet_number);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
    let lender = ends[1].config.lender.key;
    let borrower = &mut ends[0];
    let mut give = |mut frame: Vec<u8>| {
        borrower.channel.handle_frame(now, &mut frame, &mut borrower.log);
        let stats = borrower.channel.stats();
        (stats.dropped_auth.get(), stats.dropped_replay.get(), stats.handshakes.get())
    };
    // Of an attempt that was not made, and one that says to be of another one.
    let mut other = answers[0].clone();
    let mut number = |number: u64| {
        other[56..64].copy_from_slice(&number.to_le_bytes());
        crate::handshake::mark(&lender, &mut other);
        other.clone()
    };
    let (ninth, second) = (number(9), number(2));
    assert_eq!(give(ninth), (0, 1, 0));
    assert_eq!(give(second), (1, 1, 0));
    // Those to earlier attempts come first, and only the last one counts.
    assert_eq!(give(answers[0].clone()), (1, 1, 0));
    assert_eq!(give(answers[1].clone()), (1, 1, 0));
    assert_eq!(give(answers[2].clone()), (1, 1, 1));
    assert_eq!(give(answers[2].clone()), (1, 2, 1));
}
