//! Machines that are restored from a snapshot, perhaps twice.

use std::collections::BTreeMap;

use super::*;
use crate::frame::{Header, Kind};

/// The machine was restored, and its agent has drawn this; a borrower's has raised its incarnation, too, as its lender
/// asks for.
fn renew(end: &mut End<'_>, now: Instant, drawn: u8) {
    let life = LifeId([drawn + 100; 16]);
    if end.config.role == Role::Borrower {
        end.config.incarnation.0 += 1;
        end.channel.raise_incarnation(now, end.config.incarnation);
        end.config.life = life;
    }
    end.channel.renew_keys(now, [drawn; 32], Some(life));
    end.ledger.journal.commit();
}

#[test]
fn each_side_gets_new_keys_when_its_machine_may_be_a_copy() {
    for side in 0..2 {
        let arena = Arena::default();
        let mut ends = pair(&arena);
        let mut now = Instant::ZERO;
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        let ten = |end: &mut End<'_>| (0..10).for_each(|index| end.write(index * 4));
        ten(&mut ends[0]);
        let before = [0, 1].map(|end| ends[end].channel.key_fingerprint());
        renew(&mut ends[side], now, 77);
        // It stays so, whatever becomes of the card.
        ends[side].restart(now);
        let mut network = lossy();
        run(&mut now, &mut ends, &mut network, 4_000);
        if side == 0 {
            // It is another life from here on, whose streams begin anew; a lender goes on with those that flow.
            assert_eq!(ends[1].log.0, []);
            ten(&mut ends[0]);
            run(&mut now, &mut ends, &mut network, 2_000);
        }
        expect(&ends[1], 10);
        for (end, before) in ends.iter().zip(before) {
            assert_ne!(end.channel.key_fingerprint(), before);
            assert_eq!(end.channel.stats().handshakes.get(), 2);
            assert!(!end.channel.is_renewing() && end.channel.state() == State::Open);
            let resets = end.events.iter().filter(|event| **event == Event::Reset).count();
            assert_eq!(resets, if side == 0 { 2 } else { 1 });
        }
    }
}

#[test]
fn who_has_no_keys_has_none_to_renew() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    for end in &mut ends {
        end.channel.renew_keys(now, [77; 32], None);
        end.ledger.journal.commit();
    }
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    assert!(ends.iter().all(|end| end.channel.state() == State::Open));
}

/// What one of the two sends from the snapshot on, by the key that seals it and its nonce.
fn frames_of_a_copy(side: usize, copy: u8) -> BTreeMap<(u64, u8, u64), Vec<u8>> {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    renew(&mut ends[side], now, copy);
    let mut sent = BTreeMap::new();
    let mut buffer = vec![0; MAX_FRAME];
    for round in 0..3000_u64 {
        // Each copy has something else to say.
        if round.is_multiple_of(6) {
            ends[side].write(round * 4096 + u64::from(copy) * 4);
        }
        now += Duration::from_micros(200);
        ends.iter_mut().for_each(|end| end.step(now));
        for from in 0..2 {
            while let Some(Transmit { len, .. }) = ends[from].channel.poll_transmit(now, &mut buffer) {
                let frame = &mut buffer[..len];
                let header = Header::parse(frame).unwrap();
                if from == side && header.kind == Kind::Sealed {
                    let key = ends[from].channel.key_fingerprint().unwrap();
                    sent.insert((key, header.path(), header.packet_number), frame.to_vec());
                }
                let to = &mut ends[1 - from];
                to.channel.handle_frame(now, frame, &mut to.log);
                to.ledger.journal.commit();
            }
        }
    }
    // What a borrower has said before it was let in as another life is said to nobody.
    assert!(ends[1 - side].log.0.len() >= [150, 500][side], "{side}: {}", ends[1 - side].log.0.len());
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

/// A call that waited in the snapshot would be answered with the same keys in each copy, and an answer or a refusal that
/// was sent before leads to keys that are forgotten.
#[test]
fn what_a_lender_has_prepared_ends_with_its_old_seed() {
    let answered = |copy: u8| {
        let arena = Arena::default();
        let mut ends = pair(&arena);
        let mut now = Instant::ZERO;
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        let [_, mut lender] = ends;
        // Another life of the borrower's node, while the one before seems to be gone, and another node.
        let newcomer = |node: u64| {
            End::new(&arena, Role::Borrower, |config| {
                (config.identity, config.incarnation) = (NodeKey::numbered(node), Incarnation(2));
                (config.life, config.seed) = (LifeId([90; 16]), [90; 32]);
            })
        };
        let mut buffer = vec![0; MAX_FRAME];
        for node in [1, 50] {
            let mut newcomer = newcomer(node);
            newcomer.step(now);
            let len = newcomer.channel.poll_transmit(now, &mut buffer).unwrap().len;
            lender.channel.handle_frame(now, &mut buffer[..len], &mut lender.log);
            lender.step(now);
        }
        lender.channel.renew_keys(now, [copy; 32], None);
        lender.ledger.journal.commit();
        let mut answers = 0;
        for _ in 0..10 {
            now += base::times::RAIL_VERDICT / 5;
            lender.step(now);
            while let Some(sent) = lender.channel.poll_transmit(now, &mut buffer) {
                answers += u32::from(sent.is_handshake);
            }
        }
        (answers, lender.channel.pending.is_some())
    };
    for copy in [1, 2] {
        assert_eq!(answered(copy), (0, false));
    }
}
