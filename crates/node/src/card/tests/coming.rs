//! Drives come to a card that runs, and leave it, beside one that is used all the time.

use base::times::STREAM_CHECK;

use super::*;

/// A lender of one drive, and a borrower of that; with the other drive, and its loan.
pub(super) fn both() -> (CardConfig, CardConfig) {
    let lend = LoanRole::Lend(LendConfig::of(0));
    let (mut lends, mut borrows) = (config(1, lend), config(2, borrow(BorrowEdge::Program)));
    lends.drives.push(Some(DriveConfig::new(1 << 12, 512, 8)));
    lends.loans.push(coming(&lends, 1));
    borrows.loans.push(coming(&borrows, 1));
    (lends, borrows)
}

/// The loan of the other drive, in this life of its place.
fn coming(beside: &CardConfig, life: u64) -> LoanConfig {
    let role = match &beside.loans[0].role {
        LoanRole::Lend { .. } => LoanRole::Lend(LendConfig::of(1)),
        _ => borrow(BorrowEdge::Program),
    };
    let tenancy = Tenancy::default();
    LoanConfig {
        title: Title::Line(Secret([6; 32])),
        function: FunctionId(8),
        tenancy,
        life,
        role,
        ..beside.loans[0].clone()
    }
}

/// Those of the first drive only.
fn first(config: &CardConfig) -> CardConfig {
    CardConfig {
        drives: config.drives.iter().take(1).cloned().collect(),
        loans: config.loans[..1].to_vec(),
        ..config.clone()
    }
}

/// Four pages are written to a borrowed drive.
pub(super) fn write(end: &mut End<'_>, now: Instant, loan: usize, first: u32) {
    write_to(&mut end.card, now, loan, first..first + 4);
}

/// How many writes have ended well.
pub(super) fn written(end: &mut End<'_>, now: Instant, loan: usize) -> usize {
    let mut ended = Vec::new();
    end.card.drive_step(now, loan, |driver, _| {
        ended.extend(core::iter::from_fn(|| driver.poll_completion()));
    });
    ended.iter().filter(|(_, result)| result.is_ok()).count()
}

pub(super) fn is_ready_at(card: &Card<'_>, loan: usize) -> bool {
    card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready())
}

/// The ledger grows where it lies, a drive comes, is used, and goes when its medium has ended what it has; the other
/// one is served by the same streams all the time.
#[test]
fn a_drive_comes_and_goes_beside_one_that_is_used() {
    let arena = Arena::default();
    let (lends, borrows) = both();
    let memory = lends.new_memory(&arena);
    // Room for the first drive alone, to begin with.
    let small = first(&lends).new_memory(&arena).len();
    let begins = memory.growing_first(small);
    NodeLedger::entitle(begins, lends.identity.id());
    let mut now = Instant::ZERO;
    let lender = End::on(begins, first(&lends), now);
    let mut ends = [lender, End::on(borrows.new_memory(&arena), first(&borrows), now)];
    ends.iter_mut().for_each(|end| end.card.contain_faults());
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), is_ready));
    let name = ends[0].card.stream(0).name();
    for life in 1..4 {
        ends[0].card.grow_ledger(memory);
        let drive = DriveConfig { life, ..lends.drives[1].clone().unwrap() };
        ends[0].card.lend(now, 1, drive, vec![(1, coming(&lends, life))], &[]).unwrap();
        assert!(ends[0].card.loans[1].contains_faults());
        ends[1].card.attach(now, 1, coming(&borrows, life)).unwrap();
        write(&mut ends[1], now, 0, 0);
        let is_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 1);
        assert!(run(&mut now, &mut ends, Duration::from_secs(2), is_ready), "life {life}");
        write(&mut ends[1], now, 1, 0);
        run(&mut now, &mut ends, Duration::from_millis(20), never);
        assert_eq!([0, 1].map(|loan| written(&mut ends[1], now, loan)), [4, 4], "life {life}");
        // What its medium has is not waited for by anybody else.
        ends[0].held = Some(Vec::new());
        write(&mut ends[1], now, 1, 8);
        run(&mut now, &mut ends, Duration::from_millis(3), never);
        let held = ends[0].held.take().unwrap();
        assert!(!held.is_empty());
        ends[0].events.clear();
        ends[0].card.withdraw(now, 1);
        ends[1].card.give_back(now, 1);
        write(&mut ends[1], now, 0, 8);
        run(&mut now, &mut ends, Duration::from_millis(20), never);
        assert_eq!(written(&mut ends[1], now, 0), 4);
        assert!(!ends[0].events.contains(&CardEvent::Withdrawn(1)), "its medium writes from its pages");
        for (loan, id) in held {
            ends[0].card.handle_media(now, loan, id, Ok(()));
        }
        run(&mut now, &mut ends, Duration::from_millis(1), never);
        assert!(ends[0].events.contains(&CardEvent::Withdrawn(1)), "life {life}");
        assert!(ends[0].card.loans.get(1).is_none() && ends[0].card.poll_persist().is_none());
        assert!(ends[0].card.config.loans[1].title.secret().is_none(), "a secret is a loan's");
        run(&mut now, &mut ends, Duration::from_millis(200), never);
    }
    let it = ends[0].card.channel_of(0).unwrap();
    assert_eq!((ends[0].card.stream(0).name(), it.stats().handshakes.get()), (name, 1));
}

/// Who has a stream of what is lent no more is told so, and that there is no such function when it asks again.
#[test]
fn who_uses_what_is_withdrawn_hears_of_it() {
    let arena = Arena::default();
    let (lends, borrows) = both();
    let mut now = Instant::ZERO;
    let mut ends = [End::new(&arena, lends), End::new(&arena, borrows)];
    let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
    assert!(run(&mut now, &mut ends, Duration::from_secs(2), are_ready));
    ends[0].card.withdraw(now, 1);
    ends[1].events.clear();
    run(&mut now, &mut ends, Duration::from_secs(2), never);
    assert!(ends[1].events.contains(&CardEvent::Refused(1, Refusal::NotLent)), "{:?}", ends[1].events);
    assert_eq!(ends[1].card.state(0), State::Open);
    // One that is not there is gone at once.
    ends[0].card.withdraw(now, 7);
    assert_eq!(ends[0].card.poll_event(), Some(CardEvent::Withdrawn(7)));
}

/// Who has a function keeps it when it is taken off the list, and is not let in again.
#[test]
fn a_list_holds_for_whoever_calls_from_then_on() {
    let arena = Arena::default();
    let (lends, borrows) = both();
    let memory = borrows.new_memory(&arena);
    let mut now = Instant::ZERO;
    let mut ends = [End::new(&arena, lends), End::on(memory, borrows.clone(), now)];
    let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
    assert!(run(&mut now, &mut ends, Duration::from_secs(2), are_ready));
    let nobody = [NodeId([9; NodeId::BYTES])];
    ends[0].card.set_allowed(now, 1, Some(&nobody));
    write(&mut ends[1], now, 1, 0);
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    assert_eq!(written(&mut ends[1], now, 1), 4);
    ends[1].card.give_back(now, 1);
    run(&mut now, &mut ends, Duration::from_millis(100), never);
    ends[1].events.clear();
    ends[1].card.attach(now, 1, coming(&borrows, 2)).unwrap();
    run(&mut now, &mut ends, Duration::from_secs(1), never);
    assert!(ends[1].events.contains(&CardEvent::Refused(1, Refusal::NotAllowed)), "{:?}", ends[1].events);
    let mut seen = ends[0].card.ledger.root.sightings.all().map(|it| (it.cause, it.node, it.function));
    let function = Some(borrows.loans[1].function);
    assert_eq!(seen.next(), Some((crate::Cause::NotAllowed, borrows.identity.id(), function)));
    drop(seen);
    ends[0].card.set_allowed(now, 1, None);
    assert!(run(&mut now, &mut ends, Duration::from_secs(5), are_ready));
}

/// A loan whose lender does not answer, with a write under way and one that was not flushed.
fn with_a_silent_lender<'m>(
    arena: &'m Arena,
    faults: Option<&'m Faults>,
    now: &mut Instant,
) -> (CardConfig, RawMemory<'m>, [End<'m>; 2]) {
    let (lends, borrows) = both();
    let memory = borrows.new_memory(arena);
    let mut ends = [End::new(arena, lends), End::with_faults(memory, borrows.clone(), *now, faults)];
    let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
    assert!(run(now, &mut ends, Duration::from_secs(2), are_ready));
    write(&mut ends[1], *now, 1, 0);
    run(now, &mut ends, Duration::from_millis(20), never);
    assert_eq!(written(&mut ends[1], *now, 1), 4);
    ends[0].held = Some(Vec::new());
    write(&mut ends[1], *now, 1, 8);
    run(now, &mut ends, Duration::from_millis(3), never);
    ends[1].card.give_back(*now, 1);
    run(now, &mut ends, Duration::from_millis(20), never);
    ends[1].events.clear();
    (borrows, memory, ends)
}

/// It ends at once, by what is said of it what was answered is lost, and the other one goes on in its stream. Its
/// lender gives the function to the same node again.
#[test]
fn a_loan_without_its_lender_ends_beside_one_that_is_used() {
    let (arena, mut now) = (Arena::default(), Instant::ZERO);
    let (borrows, _, mut ends) = with_a_silent_lender(&arena, None, &mut now);
    let name = ends[1].card.stream(0).name();
    ends[1].card.forget(now, 1);
    run(&mut now, &mut ends, Duration::from_millis(1), never);
    assert!(ends[1].events.contains(&CardEvent::Closed { loan: 1, has_lost: true }), "{:?}", ends[1].events);
    assert_eq!(
        (ends[1].card.state(1), written(&mut ends[1], now, 1)),
        (State::Closed, 0),
        "they have failed"
    );
    for (loan, id) in ends[0].held.take().unwrap() {
        ends[0].card.handle_media(now, loan, id, Ok(()));
    }
    write(&mut ends[1], now, 0, 0);
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    assert_eq!((written(&mut ends[1], now, 0), ends[1].card.stream(0).name()), (4, name));
    assert_eq!(ends[0].card.state(1), State::Closed, "it is given back as soon as its lender hears");
    ends[1].card.attach(now, 1, coming(&borrows, 2)).unwrap();
    let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
    assert!(run(&mut now, &mut ends, Duration::from_secs(3), are_ready));
    write(&mut ends[1], now, 1, 0);
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    assert_eq!(written(&mut ends[1], now, 1), 4);
}

/// A card that dies has not said what it was to say: its lender asks now and then.
#[test]
fn a_stream_that_its_borrower_does_not_know_any_more_is_found_out() {
    let (arena, mut now) = (Arena::default(), Instant::ZERO);
    let (lends, mut borrows) = both();
    let memory = borrows.new_memory(&arena);
    let mut ends = [End::new(&arena, lends), End::on(memory, borrows.clone(), now)];
    let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
    assert!(run(&mut now, &mut ends, Duration::from_secs(2), are_ready));
    run(&mut now, &mut ends, Duration::from_millis(100), never);
    borrows.loans[1].role = LoanRole::Vacant;
    (borrows.generation, borrows.seed) = (CardGeneration(2), Secret([9; 32]));
    ends[1] = End::on(memory, borrows, now);
    run(&mut now, &mut ends, STREAM_CHECK / 2, never);
    assert_eq!(ends[0].card.state(1), State::Open);
    run(&mut now, &mut ends, STREAM_CHECK, never);
    assert_eq!(ends[0].card.state(1), State::Idle, "kept for who had it");
}

/// A card dies before any store while it forgets a loan: its successor, which is told so again, ends that.
#[test]
fn a_card_that_dies_while_it_forgets_a_loan_has_a_successor_that_does() {
    silence_injected();
    let mut stores = 0;
    loop {
        let (arena, faults, mut now) = (Arena::default(), Faults::default(), Instant::ZERO);
        let (mut borrows, memory, mut ends) = with_a_silent_lender(&arena, Some(&faults), &mut now);
        let forget = |card: &mut Card<'_>| catch_unwind(AssertUnwindSafe(|| card.forget(now, 1))).is_ok();
        let (lives, _) = ends[1].fail_in(stores, forget);
        (borrows.generation, borrows.seed) = (CardGeneration(2), Secret([9; 32]));
        ends[1] = End::on(memory, borrows, now);
        ends[1].card.forget(now, 1);
        for (loan, id) in ends[0].held.take().unwrap() {
            ends[0].card.handle_media(now, loan, id, Ok(()));
        }
        write(&mut ends[1], now, 0, 0);
        run(&mut now, &mut ends, Duration::from_millis(500), never);
        let ended = ends[1].events.contains(&CardEvent::Closed { loan: 1, has_lost: true });
        assert!(
            ended && ends[1].card.state(1) == State::Closed,
            "after {stores} stores: {:?}",
            ends[1].events
        );
        assert_eq!(written(&mut ends[1], now, 0), 4, "after {stores} stores");
        if lives {
            assert!(stores > 5, "it changes more than that");
            return;
        }
        stores += 1;
    }
}

/// A card dies before any store while a drive comes: its successor, which has that in its configuration, lends both.
#[test]
fn a_card_that_dies_while_a_drive_comes_has_a_successor_that_lends_it() {
    silence_injected();
    let mut stores = 0;
    loop {
        let (arena, faults) = (Arena::default(), Faults::default());
        let (mut lends, borrows) = both();
        let memory = lends.new_memory(&arena);
        let mut now = Instant::ZERO;
        let lender = End::with_faults(memory, first(&lends), now, Some(&faults));
        let mut ends = [lender, End::new(&arena, borrows)];
        assert!(run(&mut now, &mut ends, Duration::from_secs(1), |card, _| is_ready_at(card, 0)));
        let (drive, loan) = (lends.drives[1].clone().unwrap(), coming(&lends, 1));
        let lend = |card: &mut Card<'_>| {
            catch_unwind(AssertUnwindSafe(|| card.lend(now, 1, drive, vec![(1, loan)], &[]).unwrap())).is_ok()
        };
        let (lives, _) = ends[0].fail_in(stores, lend);
        (lends.generation, lends.seed) = (CardGeneration(2), Secret([9; 32]));
        ends[0] = End::on(memory, lends, now);
        let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
        assert!(run(&mut now, &mut ends, Duration::from_secs(3), are_ready), "after {stores} stores");
        if lives {
            assert!(stores > 20, "it changes more than that");
            return;
        }
        stores += 1 + stores / 8;
    }
}
