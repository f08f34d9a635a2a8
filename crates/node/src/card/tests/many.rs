//! A card of many loans, few of which do anything.

use link::frame::Kind;

use super::*;

const LOANS: usize = 40;

fn many(node: u64) -> CardConfig {
    let role = |loan: usize| match node {
        1 => LoanRole::Lend(LendConfig { controller: loan as u16 + 1, ..LendConfig::of(0) }),
        _ => borrow(BorrowEdge::Program),
    };
    let mut many = config(node, role(0));
    many.loans = (0..LOANS)
        .map(|loan| LoanConfig {
            function: FunctionId(7 + loan as u32),
            ..config(node, role(loan)).loans.remove(0)
        })
        .collect();
    let namespace = crate::NamespaceConfig {
        blocks: 1 << 12,
        block_size: 512,
        read_only: false,
        shared: true,
        controllers: (1..=LOANS as u16).collect(),
    };
    for drive in many.drives.iter_mut().flatten() {
        (drive.functions, drive.namespaces) = (LOANS as u16, vec![namespace.clone()]);
    }
    many
}

/// A new card looks first after loans that have something under way, wherever they stand. The others follow without
/// anybody's help, some a turn, and then it is as if all of them had been first.
#[test]
fn who_has_something_under_way_is_first_in_a_new_card() {
    let arena = Arena::default();
    let memories = [1, 2].map(|node| many(node).new_memory(&arena));
    let mut ends = [1, 2].map(|node: usize| End::on(memories[node - 1], many(node as u64), Instant::ZERO));
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..LOANS).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    let mut now = Instant::ZERO;
    assert!(run(&mut now, &mut ends, Duration::from_secs(2), are_ready));
    assert!(ends.iter().all(|end| end.card.behind.is_empty()));
    let busy = LOANS - 1;
    write_to(&mut ends[1].card, now, busy, 0..1);
    // Nothing more is heard of the card that has asked.
    let [lender, _] = ends;
    let successor = CardConfig { generation: CardGeneration(2), ..many(2) };
    let mut ends = [lender, End::on(memories[1], successor, now)];
    let behind = &ends[1].card.behind;
    assert!(!behind.has(busy));
    assert!((1..LOANS - 1).contains(&behind.iter().count()), "some have not had their turn");
    assert_eq!(ends[1].card.poll_timeout(), Some(Instant::ZERO), "it is asked again for them");
    for left in (0..=behind.iter().count()).rev().step_by(BEHIND_PER_TURN).skip(1) {
        ends[1].card.handle_timeout(now);
        assert!(ends[1].card.behind.iter().count() <= left);
    }
    ends[1].card.handle_timeout(now);
    assert!(ends[1].card.behind.is_empty());
    let is_served = |card: &Card<'_>, _: Instant| {
        let idle = |loan: usize| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready());
        card.behind.is_empty() && (0..LOANS).all(idle) && !card.is_waiting()
    };
    assert!(run(&mut now, &mut ends, Duration::from_secs(2), is_served));
    for loan in 0..LOANS {
        write_to(&mut ends[1].card, now, loan, 1..2);
    }
    assert!(run(&mut now, &mut ends, Duration::from_secs(2), is_served));
}

/// Frames go to whom they name, until `holds`.
fn run_three(
    now: &mut Instant,
    tick: Duration,
    ends: &mut [End<'_>; 3],
    holds: impl Fn(&[End<'_>; 3], Instant) -> bool,
) {
    while !holds(ends, *now) {
        *now += tick;
        for at in 0..3 {
            let sent = ends[at].turn(*now);
            deliver(ends, at, sent);
        }
    }
}

/// What an end has sent: the borrowers have only the lender to speak to, and know what is for them.
fn deliver(ends: &mut [End<'_>; 3], from: usize, sent: Vec<(Egress, Vec<u8>)>) {
    for (egress, frame) in sent {
        let to = Header::parse(&frame).unwrap().destination.domain.0 as usize;
        match (from, to) {
            (0, 2 | 3) => ends[to - 1].incoming.push_back((egress, frame)),
            (0, _) => ends[1..].iter_mut().for_each(|end| end.incoming.push_back((egress, frame.clone()))),
            _ => ends[0].incoming.push_back((egress, frame)),
        }
    }
}

/// A node that has many functions is started anew, and another one asks for one of them before the lender has come to
/// that: it is kept for whom it belongs to, be it that he came long ago.
#[test]
fn who_is_started_anew_keeps_what_the_lender_has_not_come_to() {
    let arena = Arena::default();
    let wanted = LOANS - 1;
    let other = CardConfig { loans: vec![many(3).loans.swap_remove(wanted)], ..many(3) };
    let mut ends = [many(1), many(2), other].map(|config| End::new(&arena, config));
    let mut now = Instant::ZERO;
    let are_open = |ends: &[End<'_>; 3], _: Instant| {
        (0..LOANS).all(|loan| ends[1].card.state(loan) == link::State::Open)
    };
    run_three(&mut now, TICK, &mut ends, are_open);
    let until = now + base::times::HOLD + Duration::from_secs(1);
    run_three(&mut now, Duration::from_millis(50), &mut ends, |_, now| now >= until);
    let holder = |ends: &[End<'_>; 3]| ends[0].card.loans[wanted].holder();
    let life = LifeId([9; 16]);
    let mut anew = CardConfig { incarnation: Incarnation(2), life, seed: Secret([9; 32]), ..many(2) };
    anew.loans.truncate(1);
    ends[1] = End::on(anew.new_memory(&arena), anew, now);
    // What the other one asks comes right behind what tells the lender of the new life.
    let mut asks: Vec<Vec<u8>> = Vec::new();
    let until = now + Duration::from_secs(5);
    while now < until {
        now += Duration::from_millis(50);
        let sent = ends[2].turn(now).into_iter().map(|(_, frame)| frame);
        let is_sealed = |frame: &Vec<u8>| Header::parse(frame).unwrap().kind == Kind::Sealed;
        asks.extend(sent.filter(is_sealed));
    }
    let mut asks = asks.into_iter().max_by_key(Vec::len).expect("it asks again and again");
    let was = holder(&ends);
    let mut told: VecDeque<Vec<u8>> = VecDeque::new();
    while !ends[0].card.behind.has(wanted) {
        if let Some(mut frame) = told.pop_front() {
            ends[0].card.handle_frame(now, RailId::ALL[0], PEER, &mut frame);
            continue;
        }
        now += TICK;
        assert!(now < until + Duration::from_secs(5), "the lender meets the new life");
        let sent = ends[0].turn(now);
        deliver(&mut ends, 0, sent);
        told.extend(ends[1].turn(now).into_iter().map(|(_, frame)| frame));
    }
    ends[0].card.handle_frame(now, RailId::ALL[0], PEER, &mut asks);
    let until = now + Duration::from_secs(2);
    run_three(&mut now, Duration::from_millis(1), &mut ends, |_, now| now >= until);
    assert_eq!((holder(&ends), ends[2].card.state(0)), (was, link::State::Resetting));
}
