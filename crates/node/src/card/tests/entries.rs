//! A function that is managed, beside one that is not.

use link::{Applied, Assignment, Entry, Holder, Members, Possession};

use super::coming::{both, is_ready_at, write, written};
use super::*;

/// The borrower's first loan, by the manager's slot and not by its place in the card.
fn place() -> Assignment {
    let node = NodeKey::numbered(2).id();
    Assignment { node, domain: DomainId(2), slot: 70, group: Group::DEFAULT, hold: Duration::from_secs(60) }
}

fn entry(generation: u64, holder: Holder) -> Entry {
    Entry { generation: LoanGeneration(generation), holder }
}

/// The borrower asks for the function in this group by this entry, instead of what it has asked for before.
fn borrow_by(end: &mut End<'_>, now: Instant, generation: u64, group: Group) {
    end.card.forget(now, 0);
    let before = end.card.config.loans[0].clone();
    let title = Title::Entry { generation: LoanGeneration(generation), slot: 70 };
    end.card.attach(now, 0, LoanConfig { title, group, life: before.life + 1, ..before }).unwrap();
}

fn applied(events: &[CardEvent]) -> Vec<(u64, Possession)> {
    let of = |event: &CardEvent| match event {
        CardEvent::Applied(0, Applied { generation, held, .. }) => Some((generation.0, *held)),
        _ => None,
    };
    let mut all: Vec<_> = events.iter().filter_map(of).collect();
    all.dedup();
    all
}

/// Who is forced out has nothing at once; nobody has the function before its medium has ended what it was asked for.
#[test]
fn a_function_is_taken_back_while_another_goes_on() {
    let arena = Arena::default();
    let (mut lends, mut borrows) = both();
    let LoanRole::Lend(lent) = &mut lends.loans[0].role else { panic!("it borrows") };
    lent.entry = Some(entry(3, Holder::Assigned(place())));
    borrows.loans[0].title = Title::Entry { generation: LoanGeneration(3), slot: 70 };
    let mut now = Instant::ZERO;
    let mut ends = [End::new(&arena, lends), End::new(&arena, borrows)];
    let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), are_ready));
    // Its requests find the way to the borrower's memory.
    (0..2).for_each(|loan| write(&mut ends[1], now, loan, 0));
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    assert_eq!([0, 1].map(|loan| written(&mut ends[1], now, loan)), [4, 4]);
    assert_eq!(applied(&ends[0].events), [(3, Possession::Assigned)]);
    let name = ends[0].card.stream(1).name();

    ends[0].held = Some(Vec::new());
    write(&mut ends[1], now, 0, 8);
    run(&mut now, &mut ends, Duration::from_millis(3), never);
    let held = ends[0].held.take().unwrap();
    assert!(!held.is_empty());
    ends[0].events.clear();
    ends[0].card.set_entry(now, 0, entry(4, Holder::Leaving { from: place(), forced: true }));
    assert!(ends[0].card.loans[0].end.window().is_none(), "the borrower's memory is not reached any more");
    assert_ne!(ends[0].card.state(0), link::State::Open);
    write(&mut ends[1], now, 1, 8);
    run(&mut now, &mut ends, Duration::from_secs(1), never);
    assert_eq!(applied(&ends[0].events), [(4, Possession::Leaving)]);
    for (loan, id) in held {
        ends[0].card.handle_media(now, loan, id, Ok(()));
    }
    run(&mut now, &mut ends, Duration::from_millis(5), never);
    assert_eq!(applied(&ends[0].events), [(4, Possession::Leaving), (4, Possession::Nobody)]);
    let refused = CardEvent::Refused(0, crate::Refusal::Generation);
    assert!(ends[1].events.contains(&refused), "{:?}", ends[1].events);
    assert_eq!(written(&mut ends[1], now, 1), 4);
    assert_eq!((ends[0].card.stream(1).name(), ends[1].card.state(1)), (name, link::State::Open));
}

/// The assignment says in which zone a function is, whatever its lender's own configuration says: there it is had, and
/// nowhere else, also after it was assigned in another one while it was used.
#[test]
fn an_assignment_says_the_zone() {
    let (first, second) = (Group(7), Group(9));
    let arena = Arena::default();
    let (lends, mut borrows) = both();
    borrows.loans[0].title = Title::Entry { generation: LoanGeneration(3), slot: 70 };
    borrows.loans[0].group = first;
    let mut now = Instant::ZERO;
    let mut ends = [End::new(&arena, lends), End::new(&arena, borrows)];
    ends[0].card.set_entry(now, 0, entry(3, Holder::Assigned(place())));
    run(&mut now, &mut ends, Duration::from_secs(1), never);
    let is_open =
        |ends: &[End<'_>; 2]| [0, 1].map(|end: usize| ends[end].card.state(0)) == [link::State::Open; 2];
    assert!(!is_open(&ends), "it is assigned in another zone than it is asked for in");
    assert_eq!(ends[0].card.config.groups(), [Group::DEFAULT]);

    let in_first = Assignment { group: first, ..place() };
    ends[0].card.set_entry(now, 0, entry(4, Holder::Assigned(in_first)));
    assert_eq!(ends[0].card.config.groups(), [Group::DEFAULT, first], "the other function is where it was");
    borrow_by(&mut ends[1], now, 4, first);
    let is_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0);
    assert!(run(&mut now, &mut ends, Duration::from_secs(5), is_ready));
    write(&mut ends[1], now, 0, 0);
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    assert_eq!(written(&mut ends[1], now, 0), 4);

    // Taken back, it is in the zone where it is had until that is over.
    ends[0].card.set_entry(now, 0, entry(5, Holder::Leaving { from: in_first, forced: false }));
    assert_eq!(ends[0].card.config.groups(), [Group::DEFAULT, first]);
    assert!(is_open(&ends), "it is not given back yet");
    ends[0].card.set_entry(now, 0, entry(5, Holder::Leaving { from: in_first, forced: true }));
    run(&mut now, &mut ends, Duration::from_secs(1), never);
    ends[0].card.set_entry(now, 0, entry(6, Holder::Assigned(Assignment { group: second, ..place() })));
    borrow_by(&mut ends[1], now, 6, first);
    run(&mut now, &mut ends, Duration::from_secs(2), never);
    assert!(!is_open(&ends), "it is nowhere else any more");
    borrow_by(&mut ends[1], now, 6, second);
    assert!(run(&mut now, &mut ends, Duration::from_secs(5), is_ready));
}

/// Who has a function by its line keeps it until that is over, in the line's zone, also with the lender's next card.
#[test]
fn who_has_a_function_by_its_line_is_met_where_that_is() {
    let (lines, assigned) = (Group(1), Group(7));
    let mut lends = config(1, LoanRole::Lend(LendConfig::of(0)));
    let (holder, other) = (NodeKey::numbered(3).id(), place().node);
    let holds = |lends: &mut CardConfig, is_held| {
        lends.loans[0].tenancy = Tenancy { is_held, node: holder, ..lends.loans[0].tenancy };
    };
    lends.loans[0].group = lines;
    let LoanRole::Lend(lent) = &mut lends.loans[0].role else { panic!("it borrows") };
    lent.entry = Some(entry(3, Holder::Assigned(Assignment { group: assigned, ..place() })));
    holds(&mut lends, true);
    assert_eq!(lends.groups(), [lines, assigned]);
    assert!(lends.may_meet(holder, lines) && lends.may_meet(other, assigned));
    holds(&mut lends, false);
    assert_eq!(lends.groups(), [assigned], "it is nowhere else any more");
    assert!(!lends.may_meet(holder, lines));
}

/// Somebody asks by what is in no table: that is to be known.
#[test]
fn a_generation_that_nobody_knows_is_seen() {
    let arena = Arena::default();
    let (lends, mut borrows) = both();
    borrows.loans[0].title = Title::Entry { generation: LoanGeneration(3), slot: 70 };
    let mut now = Instant::ZERO;
    let mut ends = [End::new(&arena, lends), End::new(&arena, borrows)];
    run(&mut now, &mut ends, Duration::from_secs(1), never);
    let seen = |ends: &[End<'_>; 2]| {
        let all = ends[0].card.ledger.root.sightings.all();
        all.map(|sighting| sighting.cause).collect::<Vec<_>>()
    };
    assert_eq!(seen(&ends), [crate::Cause::UnknownGeneration]);
    ends[0].card.set_entry(now, 0, entry(3, Holder::Assigned(place())));
    let is_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0);
    assert!(run(&mut now, &mut ends, Duration::from_secs(3), is_ready));
}

/// Who was removed from the fabric has nothing any more, be it here or away: what it had by a line is free at once, and
/// nothing is kept for it.
#[test]
fn what_a_removed_node_had_by_a_line_is_free_at_once() {
    let members = |gone: u64| Members {
        fabric: [7; 16],
        authority: [0; 32],
        certificate: Box::default(),
        revoked: [NodeKey::numbered(gone).id()].into(),
        only_members: false,
        assigned: Box::default(),
        clock_ahead_ms: 0,
    };
    let freed = |events: &[CardEvent]| {
        let is_free = |event: &&CardEvent| matches!(event, CardEvent::Tenant(_, tenancy) if !tenancy.is_held);
        events.iter().filter(is_free).count()
    };
    for is_here in [true, false] {
        let arena = Arena::default();
        let (lends, borrows) = both();
        let mut now = Instant::ZERO;
        let mut ends = [End::new(&arena, lends), End::new(&arena, borrows)];
        if is_here {
            let are_ready = |card: &Card<'_>, _: Instant| is_ready_at(card, 0) && is_ready_at(card, 1);
            assert!(run(&mut now, &mut ends, Duration::from_secs(1), are_ready));
        }
        ends[0].card.set_members(now, Some(members(9)));
        let _ = ends[0].turn(now);
        assert_eq!(freed(&ends[0].events), 0, "another one was removed");
        ends[0].card.set_members(now, Some(members(2)));
        let _ = ends[0].turn(now);
        // Of an earlier life one of the two is kept for it.
        assert_eq!(freed(&ends[0].events), if is_here { 2 } else { 1 }, "it is here: {is_here}");
        assert!([0, 1].iter().all(|loan| ends[0].card.loans[*loan].tenant().is_none()));
    }
}
