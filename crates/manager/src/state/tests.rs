use base::ids::LoanGeneration;
use proptest::prelude::*;

use super::*;
use crate::command::Command;
use crate::entry::{Answer, Change, Entry, News, Request, Who};
use crate::model::{Assignment, Groups, Loan, OnSilence, Place};
use crate::report::Holder;
use crate::testing::{
    FABRIC, T0, assign, by, fabric, founded, hash, join_token, joining, key, learn, name, node_id, reported,
    request, run, try_run, unassign,
};

fn entry(change: Change) -> Entry {
    Entry { at: T0, who: Who::Manager, request: None, change }
}

fn fits(state: &State, change: Change) -> Result<(), Corruption> {
    let mut state = state.clone();
    let index = state.index() + 1;
    state.apply(index, &entry(change))
}

fn assignment(borrower: u64, domain: u32, slot: u16) -> Assignment {
    let place = Place { domain: base::ids::DomainId(domain), slot };
    let (group, on_silence) = (base::ids::Group::DEFAULT, OnSilence::default());
    Assignment { borrower: node_id(borrower), place, group, on_silence }
}

/// The whole life of an assignment.
#[test]
fn a_function_goes_from_free_to_free_and_each_step_has_its_place() {
    let mut state = fabric();
    let (function, generation) = (key(1, 0), LoanGeneration);
    let loan = |state: &State| state.function(function).unwrap().loan;
    let report = |news| Change::Reported { id: node_id(1), news: vec![news], is_again: false };
    let applied = |of| report(News::Applied { number: 0, generation: generation(of) });
    assert_eq!(fits(&state, applied(0)), Err(Corruption::OutOfOrder(function)), "nothing was wanted");
    let take = |of, force| Change::Unassigned { key: function, generation: generation(of), force };
    assert_eq!(fits(&state, take(1, false)), Err(Corruption::OutOfOrder(function)));
    run(&mut state, by("op", 100, assign("store/nvme0", 33, 0)));
    assert!(matches!(loan(&state), Loan::Wanted { .. }));
    let wrong = Corruption::Generation { key: function, present: generation(1), found: generation(0) };
    assert_eq!(fits(&state, applied(0)), Err(wrong));
    let to = assignment(2, 33, 0);
    let again = Change::Assigned { key: function, generation: generation(2), to };
    assert_eq!(fits(&state, again), Err(Corruption::InUse(function)));
    let gone = report(News::Gone { number: 0 });
    assert_eq!(fits(&state, gone.clone()), Err(Corruption::InUse(function)));
    learn(&mut state, 1, &[reported(0, 1, Holder::Assigned(to)), reported(1, 0, Holder::Nobody)]);
    assert!(matches!(loan(&state), Loan::Applied { .. }));
    assert!(matches!(fits(&state, take(1, false)), Err(Corruption::Generation { .. })));
    assert!(matches!(fits(&state, take(3, true)), Err(Corruption::Generation { .. })));
    run(&mut state, by("op", 101, unassign("store/nvme0", false)));
    assert!(matches!(loan(&state), Loan::Leaving { .. }));
    run(&mut state, by("op", 102, unassign("store/nvme0", true)));
    assert!(matches!(loan(&state), Loan::Forced { .. }));
    assert!(
        run(&mut state, by("op", 103, unassign("store/nvme0", true))).entry.is_none(),
        "it is on the way"
    );
    assert_eq!(fits(&state, take(2, true)), Err(Corruption::OutOfOrder(function)));
    learn(&mut state, 1, &[reported(0, 2, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    assert_eq!((loan(&state), state.in_slot(to.place)), (Loan::Free, None));
    fits(&state, gone).unwrap();
}

#[test]
fn an_entry_that_does_not_fit_says_why() {
    let mut state = fabric();
    run(&mut state, by("op", 100, assign("store/nvme0", 33, 0)));
    let next = state.index() + 1;
    let mut other = state.clone();
    let nothing = entry(Change::EpochBegun { epoch: 1, restored: false, any_time: false });
    assert_eq!(other.apply(next + 1, &nothing), Err(Corruption::Index { next, found: next + 1 }));
    let early = Entry { at: WallTime(T0.0 - 1), ..nothing.clone() };
    assert_eq!(other.apply(next, &early), Err(Corruption::Earlier));
    let done = Request { id: request(100), fingerprint: 0, answer: Answer::Done };
    let twice = Entry { request: Some(done), ..nothing };
    assert_eq!(other.apply(next, &twice), Err(Corruption::Request));
    assert!(matches!(
        fits(&state, Change::EpochBegun { epoch: 0, restored: false, any_time: false }),
        Err(Corruption::Epoch { .. })
    ));
    assert_eq!(fits(&state, Change::RestoreEnded), Err(Corruption::NoRestore));
    let report = |id, news| Change::Reported { id: node_id(id), news: vec![news], is_again: false };
    assert_eq!(fits(&state, report(1, News::Heard)), Err(Corruption::NoRestore));
    assert_eq!(fits(&state, report(9, News::Heard)), Err(Corruption::NoNode(node_id(9))));
    let unknown = News::Gone { number: 9 };
    assert_eq!(fits(&state, report(1, unknown)), Err(Corruption::NoFunction(key(1, 9))));
    let to = |borrower, domain, slot| Change::Assigned {
        key: key(1, 1),
        generation: LoanGeneration(1),
        to: assignment(borrower, domain, slot),
    };
    for wrong in [to(2, 33, 0), to(1, 33, 1), to(2, 99, 0), to(2, 33, 256)] {
        assert!(matches!(fits(&state, wrong), Err(Corruption::Slot(_))));
    }
    fits(&state, to(2, 33, 1)).unwrap();
    let joined = |id, called: &str, base, token| Change::NodeJoined {
        id: node_id(id),
        name: name(called),
        key: crate::model::PublicKey([0; 32]),
        block: Block::new(base, 16).unwrap(),
        token: hash(token),
    };
    assert_eq!(fits(&state, joined(5, "a", 64, 11)), Err(Corruption::JoinToken(hash(11))), "it was used");
    assert_eq!(fits(&state, joined(5, "a", 64, 99)), Err(Corruption::JoinToken(hash(99))));
    run(&mut state, by("root", 101, join_token(70, 16)));
    assert_eq!(fits(&state, joined(1, "a", 64, 70)), Err(Corruption::NodeThere(node_id(1))));
    assert_eq!(fits(&state, joined(5, "desk", 64, 70)), Err(Corruption::NameTaken(name("desk"))));
    assert_eq!(fits(&state, joined(5, "a", 32, 70)), Err(Corruption::DomainsTaken(node_id(5))));
    fits(&state, joined(5, "a", 64, 70)).unwrap();
}

/// What somebody may ask for, by numbers.
fn command(what: u8, a: u8, b: u8) -> Command {
    let node = ["store", "desk", "third"][usize::from(a) % 3];
    let function = format!("{node}/nvme{}", b % 3);
    match what % 9 {
        0..=2 => assign(&function, 16 * (1 + u32::from(b % 4)) + u32::from(a % 2), u16::from(b % 3)),
        3 => unassign(&function, false),
        4 => unassign(&function, true),
        5 => Command::RemoveNode { node: name(node) },
        6 => Command::SetGroups {
            node: name(node),
            groups: Groups::new([base::ids::Group(1 + u16::from(b % 2)), base::ids::Group(2)]).unwrap(),
        },
        7 => join_token(100 + b % 8, 16),
        _ => Command::RemoveApiToken { name: name("op") },
    }
}

proptest! {
    /// Whatever is decided fits, whoever asks for what in which order, and reports what; and a snapshot is the state.
    #[test]
    fn what_is_decided_fits(steps in prop::collection::vec(any::<[u8; 5]>(), 1..200)) {
        let mut state = fabric();
        for (number, [what, a, b, c, generation]) in (1000..).zip(steps) {
            let wall = T0.plus_s(u64::from(c) * 20);
            let id = if c % 16 == 0 { 1000 } else { number };
            match what % 4 {
                0 => {
                    let holder = match b % 3 {
                        0 => Holder::Nobody,
                        1 => Holder::Assigned(assignment(1 + u64::from(a % 3), 16 + u32::from(b), u16::from(c % 4))),
                        _ => Holder::Leaving { from: assignment(2, 33, u16::from(c % 4)), forced: a % 2 == 0 },
                    };
                    let lender = 1 + u64::from(a % 3);
                    if state.joined(node_id(lender)).is_some() {
                        let other = reported(u32::from(c % 3), u64::from(generation % 8), holder);
                        let one = reported(u32::from(b % 4), u64::from(generation % 5), holder);
                        learn(&mut state, lender, &[one, other]);
                    }
                }
                3 if a % 16 == 0 => {
                    let change = if b % 4 == 0 && state.restore().is_some() {
                        Change::RestoreEnded
                    } else {
                        Change::EpochBegun { epoch: state.epoch() + 1, restored: b % 2 == 0, any_time: false }
                    };
                    let entry = Entry { at: state.at(), ..entry(change) };
                    state.apply(state.index() + 1, &entry).unwrap();
                }
                1 if a % 4 == 0 => {
                    let joiner = joining(100 + c % 8, id, 3 + u64::from(b % 4), ["third", "desk"][usize::from(a % 2)]);
                    let _ = try_run(&mut state, wall, &joiner);
                }
                _ => drop(try_run(&mut state, wall, &by("root", id, command(a, b, c)))),
            }
        }
        let stored = serde_json::to_string(&Stored::from(&state)).unwrap();
        let again = State::try_from(serde_json::from_str::<Stored>(&stored).unwrap()).unwrap();
        prop_assert_eq!(again, state);
    }
}

#[test]
fn requests_are_remembered_for_a_while() {
    let mut state = founded();
    let mut asked = |number: u64| {
        let command = if number.is_multiple_of(2) {
            join_token(200, 4)
        } else {
            Command::RemoveJoinToken { hash: hash(200) }
        };
        let decision = try_run(&mut state, T0, &by("root", 10_000 + number, command)).unwrap();
        assert!(decision.entry.is_some());
        state.history().count()
    };
    let most = (0..HISTORY_MAX as u64 + 10).map(&mut asked).max().unwrap();
    assert_eq!(most, HISTORY_MAX);
    assert!(state.done(request(1)).is_none() && state.done(request(10_010)).is_some());
    assert_eq!(state.fabric(), FABRIC);
}
