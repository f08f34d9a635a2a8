//! A card of many loans, few of which do anything.

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
    let behind = ends[1].card.behind;
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
