//! Groups: zones of which none sees anything of another.

use super::*;
use base::ids::RailId;

const OTHER: Group = Group(7);

/// Two functions of one drive, each in a group of its own, lent or borrowed.
fn in_two_groups(node: u64) -> CardConfig {
    let mut config = sharers(node);
    config.loans[1].group = OTHER;
    config
}

fn are_ready(card: &Card<'_>, _: Instant) -> bool {
    (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
}

#[test]
fn two_nodes_have_a_channel_in_each_group() {
    let arena = Arena::default();
    let mut ends = [End::new(&arena, in_two_groups(1)), End::new(&arena, in_two_groups(2))];
    let mut now = Instant::ZERO;
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), are_ready));
    for end in &ends {
        assert_eq!(end.card.peers().count(), 2);
        let [one, other] = [0, 1].map(|loan| end.card.channel_of(loan).unwrap());
        assert_ne!(one.handshake(), other.handshake(), "keys of their own");
        assert_eq!([one, other].map(|channel| channel.stats().handshakes.get()), [1, 1]);
        assert_eq!(one.peer(), other.peer());
    }
    // What is said in one group does not reach the other one, be it under true keys.
    let dropped = |end: &End<'_>| {
        let channels = end.card.peers.iter();
        channels.map(|(_, peer)| peer.channel.stats().dropped_misdirected.get()).sum::<u64>()
    };
    let mut sent = Vec::new();
    while sent.is_empty() {
        now += TICK;
        sent = ends[1].turn(now);
    }
    let (_, mut frame) = sent.swap_remove(0);
    let mut header = Header::parse(&frame).unwrap();
    header.group = if header.group == OTHER { Group::DEFAULT } else { OTHER };
    header.write(&mut frame);
    let before = dropped(&ends[0]);
    ends[0].card.handle_frame(now, RailId::ALL[0], PEER, &mut frame);
    assert_eq!(dropped(&ends[0]), before + 1);
}

/// The borrower has the secret of a function, and asks for it in a group in which that is not lent.
#[test]
fn a_function_of_another_group_is_not_there() {
    let arena = Arena::default();
    let mut asks = in_two_groups(2);
    asks.loans[1].group = Group::DEFAULT;
    let mut ends = [End::new(&arena, in_two_groups(1)), End::new(&arena, asks)];
    run(&mut Instant::ZERO.clone(), &mut ends, Duration::from_millis(500), never);
    let refused = |event: &CardEvent| matches!(event, CardEvent::Refused(1, Refusal::NotLent));
    assert!(ends[1].events.iter().any(refused), "{:?}", ends[1].events);
    assert!(ends[1].card.borrowed(0).unwrap().driver.is_ready());
    assert!(!ends[1].card.borrowed(1).unwrap().driver.is_ready() && ends[0].card.peers().count() == 1);
}

#[test]
fn who_calls_in_a_group_where_nothing_is_hears_nothing() {
    let arena = Arena::default();
    let mut asks = in_two_groups(2);
    asks.loans.iter_mut().for_each(|loan| loan.group = Group(8));
    let mut ends = [End::new(&arena, in_two_groups(1)), End::new(&arena, asks)];
    run(&mut Instant::ZERO.clone(), &mut ends, Duration::from_millis(500), never);
    let lobby = ends[0].card.lobby.stats();
    assert!(lobby.dropped_misdirected.get() > 2 && lobby.refused.get() == 0);
    assert_eq!(ends[0].card.peers().count(), 0);
    assert!(ends[1].events.is_empty(), "{:?}", ends[1].events);
}
