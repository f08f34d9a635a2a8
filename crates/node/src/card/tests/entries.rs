//! A function that is managed, beside one that is not.

use link::{Applied, Assignment, Entry, Holder, Possession};

use super::coming::{both, is_ready_at, write, written};
use super::*;

/// The borrower's first loan, by the manager's slot and not by its place in the card.
fn place() -> Assignment {
    let node = NodeKey::numbered(2).id();
    Assignment { node, domain: DomainId(2), slot: 70, hold: Duration::from_secs(60) }
}

fn entry(generation: u64, holder: Holder) -> Entry {
    Entry { generation: LoanGeneration(generation), holder }
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
