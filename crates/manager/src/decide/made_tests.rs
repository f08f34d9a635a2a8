use base::ids::Group;

use super::*;
use crate::model::{FUNCTIONS_PER_NODE_MAX, MADE_PER_NODE_MAX, MadeId, Making, Unmade};
use crate::report::{Holder, MadeSaid};
use crate::testing::{
    T0, assign, by, delete, fabric, function_name, learn, learn_all, make, name, node_id, reported,
    reported_made, run, try_run,
};

fn told(state: &State, command: Command) -> String {
    decide(state, T0, &by("op", 900, command)).unwrap_err().to_string()
}

fn making(state: &State) -> &Making {
    state.making(node_id(1)).unwrap()
}

/// `fast`, as its lender reports it.
fn fast(state: &State) -> crate::report::Reported {
    reported_made(7, "fast", making(state).functions[&name("fast")].id)
}

/// The store says that it lends these beside its own, and has made what it was told but `refused`.
fn lends(state: &mut State, made: &[crate::report::Reported], refused: &[(&str, &str)]) {
    let own = [reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)];
    let refused = refused.iter().map(|(called, why)| Unmade { name: name(called), why: (*why).to_owned() });
    let said = MadeSaid { list: making(state).list(), is_done: true, refused: refused.collect() };
    learn_all(state, 1, &[&own[..], made].concat(), Some(&said));
}

#[test]
fn a_function_is_made_once_and_named_where_it_cannot_be() {
    let mut state = fabric();
    let first = run(&mut state, by("op", 100, make("store/fast", 4)));
    let Answer::Made { id, is_wanted: true, .. } = first.answer else { panic!("{first:?}") };
    assert_eq!((id, making(&state).id.index), (making(&state).id, state.index()));
    // The same request, and another one for the same.
    assert_eq!(run(&mut state, by("op", 100, make("store/fast", 4))).done_at, Some(state.index()));
    let again = run(&mut state, by("op", 101, make("store/fast", 4)));
    assert_eq!((again.entry, again.answer), (None, first.answer));
    let taken = told(&state, make("store/fast", 8));
    assert!(taken.starts_with("there is a store/fast already, made otherwise: delete it"), "{taken}");
    let taken = told(&state, make("store/nvme0", 4));
    assert!(taken.contains("store/nvme0 already, by its node's configuration"), "{taken}");
    assert!(told(&state, make("stroe/fast", 4)).contains("did you mean `store`"));
    assert!(
        told(&state, assign("store/fast", 33, 0)).contains("lends no `fast`"),
        "its lender has yet to make it"
    );
    let foreign = match make("store/other", 4) {
        Command::MakeFunction { function, shape } => {
            Command::MakeFunction { function, shape: crate::model::Shape { group: Some(Group(9)), ..shape } }
        }
        other => other,
    };
    assert!(told(&state, foreign).contains("may not enter group 9"));
    assert!(matches!(
        decide(&state, T0, &by("eye", 901, make("store/other", 4))),
        Err(Refusal::NotAllowed { needed: Role::Operator, .. })
    ));
}

#[test]
fn a_function_that_somebody_has_is_not_deleted_and_one_that_is_deleted_is_given_to_nobody() {
    let mut state = fabric();
    run(&mut state, by("op", 100, make("store/fast", 4)));
    let it = fast(&state);
    lends(&mut state, &[it], &[]);
    assert!(making(&state).functions[&name("fast")].is_made && making(&state).is_applied());
    run(&mut state, by("op", 101, assign("store/fast", 33, 2)));
    let used = told(&state, delete("store/fast"));
    assert!(
        used.contains("store/fast is in 00021/2 of desk") && used.ends_with("unassign it first"),
        "{used}"
    );
    let own = told(&state, delete("store/nvme0"));
    assert!(own.contains("of its node's own configuration"), "{own}");
    assert!(told(&state, delete("store/fsat")).contains("did you mean `fast`"));

    let mut state = fabric();
    run(&mut state, by("op", 100, make("store/fast", 4)));
    let it = fast(&state);
    lends(&mut state, &[it], &[]);
    let deleted = run(&mut state, by("op", 102, delete("store/fast")));
    assert!(matches!(deleted.answer, Answer::Made { is_wanted: false, .. }));
    let again = run(&mut state, by("op", 103, delete("store/fast")));
    assert_eq!((again.entry, again.answer), (None, deleted.answer));
    for command in [assign("store/fast", 33, 2), make("store/fast", 4)] {
        assert!(told(&state, command).contains("store/fast is being deleted"));
    }
    lends(&mut state, &[], &[]);
    assert!(state.function_called(&function_name("store/fast")).is_none());
    assert!(told(&state, delete("store/fast")).contains("lends no `fast`"));
    run(&mut state, by("op", 104, make("store/fast", 8)));
}

/// A lender whose folder is an older copy lends what was deleted since, for a moment.
#[test]
fn what_its_lender_has_still_though_it_was_deleted_is_given_to_nobody() {
    let mut state = fabric();
    learn(
        &mut state,
        1,
        &[
            reported(0, 0, Holder::Nobody),
            reported(1, 0, Holder::Nobody),
            reported_made(7, "old", MadeId { epoch: 0, index: 3 }),
        ],
    );
    for command in [assign("store/old", 33, 2), make("store/old", 4), delete("store/old")] {
        assert!(told(&state, command).contains("store/old is being deleted"));
    }
}

#[test]
fn what_cannot_be_made_is_no_part_of_the_list_and_what_was_made_stays_whatever_is_said() {
    let mut state = fabric();
    run(&mut state, by("op", 100, make("store/fast", 4)));
    run(&mut state, by("op", 101, make("store/huge", 4000)));
    let before = making(&state).id;
    let why = "the device data lacks room";
    let it = fast(&state);
    lends(&mut state, &[it], &[("huge", why)]);
    let now = making(&state);
    assert_eq!(now.functions.keys().map(Name::as_str).collect::<Vec<_>>(), ["fast"]);
    assert_eq!(now.refused[&name("huge")].why, why);
    assert!(
        now.id > before && now.applied == Some(before),
        "the lender is told that it is not wanted any more"
    );
    let it = fast(&state);
    lends(&mut state, &[it], &[]);
    // Its device is not there after a start: it may come back.
    run(&mut state, by("op", 102, make("store/slow", 4)));
    lends(&mut state, &[], &[("fast", "there is no device data"), ("slow", "there is no device data")]);
    assert_eq!(making(&state).functions.keys().map(Name::as_str).collect::<Vec<_>>(), ["fast"]);
}

#[test]
fn there_are_so_many_functions_and_no_more_whether_their_lender_is_heard_or_not() {
    let mut state = fabric();
    for number in 0..FUNCTIONS_PER_NODE_MAX - 2 {
        let asked = by("op", 10_000 + number as u64, make(&format!("store/f{number}"), 1));
        try_run(&mut state, T0, &asked).unwrap();
    }
    assert!(told(&state, make("store/more", 1)).contains("no room for more functions of a node than 256"));
    // Two are of its own, and those that are deleted count until it has said that they are gone.
    run(&mut state, by("op", 20_000, delete("store/f0")));
    run(&mut state, by("op", 20_001, make("store/more", 1)));
    run(&mut state, by("op", 20_002, delete("store/f1")));
    run(&mut state, by("op", 20_003, make("store/most", 1)));
    run(&mut state, by("op", 20_004, delete("store/f2")));
    assert!(told(&state, make("store/last", 1)).contains("no room for more functions of a node than 256"));
    let bytes = serde_json::to_vec(&crate::state::Stored::from(&state)).unwrap();
    let stored: crate::state::Stored = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(State::try_from(stored).unwrap(), state);
}

/// After a restore the lender's list counts where it is the newer one; otherwise nobody believes it.
#[test]
fn a_newer_list_of_a_lender_counts_after_a_restore_only() {
    let mut old = fabric();
    begin(&mut old, 1, false);
    let mut new = old.clone();
    run(&mut new, by("op", 100, make("store/fast", 4)));
    let said = MadeSaid { list: making(&new).list(), is_done: true, refused: vec![] };
    let functions = [reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody), fast(&new)];
    let mut plain = old.clone();
    run(&mut plain, by("op", 100, make("store/else", 4)));
    run(&mut plain, by("op", 101, delete("store/else")));
    let claims = MadeSaid {
        list: crate::model::MadeList {
            id: MadeId { epoch: 1, index: 1 << 40 },
            functions: said.list.functions.clone(),
        },
        ..said.clone()
    };
    learn_all(&mut plain, 1, &functions, Some(&claims));
    assert!(making(&plain).functions.is_empty(), "it claims more than it was told");
    begin(&mut old, 65_537, true);
    learn_all(&mut old, 1, &functions, Some(&said));
    learn_all(&mut old, 1, &functions, Some(&said));
    assert_eq!(making(&old).list(), said.list);
    assert!(making(&old).is_applied() && making(&old).functions[&name("fast")].is_made);
}

/// A restored manager does not know what its lender has made since, nor who has it.
#[test]
fn nothing_of_a_lender_that_was_not_heard_is_deleted_after_a_restore() {
    let mut state = fabric();
    run(&mut state, by("op", 100, make("store/fast", 4)));
    begin(&mut state, 65_537, true);
    run(&mut state, by("root", 101, Command::EndRestore { anyway: true }));
    let why = told(&state, delete("store/fast"));
    assert!(why.contains("store"), "{why}");
    assert!(matches!(decide(&state, T0, &by("op", 900, delete("store/fast"))), Err(Refusal::Unheard { .. })));
}

/// What a node brings from another fabric is there beside what was asked for before it was heard.
#[test]
fn what_a_lender_has_brought_is_not_dropped_by_what_was_made_before_it_was_heard() {
    let mut state = fabric();
    run(&mut state, by("op", 100, make("store/new", 4)));
    let shape = making(&state).functions[&name("new")].shape.clone();
    let old = MadeId { epoch: 0, index: 0 };
    let made =
        |number| crate::model::Made { name: name(&format!("old{number}")), id: old, shape: shape.clone() };
    let list = |count| crate::model::MadeList { id: old, functions: (0..count).map(made).collect() };
    let own = [reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)];
    let before = making(&state).id;
    for _ in 0..2 {
        let said = MadeSaid { list: list(2), is_done: true, refused: vec![] };
        learn_all(&mut state, 1, &own, Some(&said));
        let listed: Vec<&str> = making(&state).functions.keys().map(Name::as_str).collect();
        assert_eq!(listed, ["new", "old0", "old1"]);
    }
    let now = making(&state);
    assert!(now.id > before && now.functions[&name("old0")].id == old && !now.is_applied());
    // No more than there is room for, and a list of more than that is none.
    let said = MadeSaid { list: list(MADE_PER_NODE_MAX), is_done: true, refused: vec![] };
    learn_all(&mut state, 1, &own, Some(&said));
    assert_eq!(making(&state).functions.len(), MADE_PER_NODE_MAX);
    let full = making(&state).id;
    learn_all(&mut state, 1, &own, Some(&said));
    assert_eq!(making(&state).id, full, "nothing comes of saying it again");
}

fn begin(state: &mut State, epoch: u64, restored: bool) {
    let change = Change::EpochBegun { epoch, restored, any_time: false };
    let entry = Entry { at: state.at(), who: Who::Manager, request: None, change };
    state.apply(state.index() + 1, &entry).unwrap();
}
