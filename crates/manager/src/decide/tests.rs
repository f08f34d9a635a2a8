use base::ids::{DomainId, Group, LoanGeneration};

use super::*;
use crate::command::Command;
use crate::model::{API_TOKENS_MAX, Groups, Loan, OnSilence, Place, QUARANTINE_S};
use crate::report::Holder;
use crate::testing::{
    T0, assign, by, fabric, founded, function_name, hash, join_token, joining, key, learn, name, node_id,
    reported, request, run, try_run, unassign,
};

fn refused(state: &State, asked: &Asked) -> Refusal {
    decide(state, T0, asked).unwrap_err()
}

fn told(state: &State, asked: &Asked) -> String {
    refused(state, asked).to_string()
}

#[test]
fn who_asks_has_to_be_somebody_and_to_be_allowed() {
    let state = fabric();
    let order = assign("store/nvme0", 33, 0);
    assert_eq!(refused(&state, &by("nobody", 1, order.clone())), Refusal::OtherRequest, "the id was used");
    let no_token = Refusal::NoToken { name: name("nobody") };
    assert_eq!(refused(&state, &by("nobody", 100, order.clone())), no_token);
    let not_allowed = Refusal::NotAllowed { needed: Role::Operator, has: Some(Role::ReadOnly) };
    assert_eq!(refused(&state, &by("eye", 100, order.clone())), not_allowed);
    assert_eq!(not_allowed.to_string(), "this takes a token of an operator, and yours is read-only");
    for who in ["op", "root"] {
        assert!(decide(&state, T0, &by(who, 100, order.clone())).is_ok());
    }
    let remove = Command::RemoveNode { node: name("desk") };
    assert!(matches!(refused(&state, &by("op", 100, remove)), Refusal::NotAllowed { .. }));
    let joiner = Asked { who: Asker::Joiner(hash(11)), ..by("op", 100, order) };
    assert_eq!(refused(&state, &joiner), Refusal::NotAllowed { needed: Role::Operator, has: None });
}

#[test]
fn assigning_is_done_once_and_what_is_so_succeeds() {
    let mut state = fabric();
    let first = run(&mut state, by("op", 100, assign("store/nvme0", 33, 4)));
    let answer = Answer::Function { key: key(1, 0), generation: LoanGeneration(1) };
    assert_eq!(first.answer, answer);
    let index = state.index();
    let entry = first.entry.unwrap();
    assert_eq!((entry.at, entry.who), (T0, Who::Api { token: name("op") }), "the log says who and when");
    // The same request, and another one for the same.
    let again = run(&mut state, by("op", 100, assign("store/nvme0", 33, 4)));
    assert_eq!(again, Decision { entry: None, answer: answer.clone(), done_at: Some(index) });
    let other = run(&mut state, by("op", 101, assign("store/nvme0", 33, 4)));
    assert_eq!(other, Decision { entry: None, answer, done_at: None });
    assert_eq!(refused(&state, &by("op", 100, assign("store/nvme0", 33, 5))), Refusal::OtherRequest);
    assert_eq!(refused(&state, &by("root", 100, assign("store/nvme0", 33, 4))), Refusal::OtherRequest);
    // A repeated request is answered though it could not be done any more.
    run(&mut state, by("op", 102, unassign("store/nvme0", false)));
    let again = run(&mut state, by("op", 100, assign("store/nvme0", 33, 4)));
    assert_eq!((again.entry, again.done_at), (None, Some(index)));
}

#[test]
fn a_conflict_says_who_has_it_and_since_when() {
    let mut state = fabric();
    run(&mut state, by("op", 100, assign("store/nvme0", 33, 4)));
    let says = |state: &State, command| told(state, &by("op", 200, command));
    assert_eq!(
        says(&state, assign("store/nvme0", 16, 0)),
        "store/nvme0 is in 00021/4 of desk since 2023-11-14T22:13:20Z: unassign it first"
    );
    assert_eq!(
        says(&state, assign("store/nvme1", 33, 4)),
        "store/nvme0 is in slot 00021/4 since 2023-11-14T22:13:20Z: unassign it first"
    );
    let command = |group, on_silence| Command::Assign {
        function: function_name("store/nvme0"),
        domain: DomainId(33),
        slot: 4,
        group: Some(group),
        on_silence,
    };
    let otherwise = says(&state, command(Group::DEFAULT, OnSilence::Remove));
    assert!(otherwise.contains("another hold time"), "{otherwise}");
    run(&mut state, by("op", 101, unassign("store/nvme0", false)));
    assert!(says(&state, assign("store/nvme0", 33, 4)).contains("is being taken from 00021/4 of desk since"));
    assert!(says(&state, assign("store/nvme1", 33, 4)).contains("store/nvme0 is in slot"));
    let hold = OnSilence::Hold { seconds: u32::MAX };
    run(&mut state, by("op", 102, unassign("store/nvme0", true)));
    learn(&mut state, 1, &[reported(0, 2, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    assert_eq!(says(&state, command(Group::DEFAULT, hold)), "a function is held 2592000 s at most");
    assert_eq!(says(&state, command(Group(7), OnSilence::Remove)), "node `store` may not enter group 7");
    assert_eq!(says(&state, assign("store/nvme0", 99, 0)), "domain 00063 is no node's");
    assert_eq!(says(&state, assign("store/nvme0", 33, 256)), "there is no slot 256: they are below 256");
}

#[test]
fn a_name_that_is_unknown_is_answered_with_the_nearest() {
    let state = fabric();
    let says = |command| told(&state, &by("root", 200, command));
    assert_eq!(says(assign("stor/nvme0", 33, 0)), "there is no node `stor`; did you mean `store`?");
    assert_eq!(says(assign("store/nvme", 33, 0)), "node `store` lends no `nvme`; did you mean `nvme0`?");
    assert_eq!(says(unassign("desk/disk", false)), "node `desk` lends no `disk`");
    assert_eq!(says(Command::RemoveNode { node: name("printer") }), "there is no node `printer`");
}

#[test]
fn a_change_on_a_condition_is_done_if_nothing_has_changed() {
    let mut state = fabric();
    let version = state.function(key(1, 0)).unwrap().version;
    let asked =
        |number, if_version, command| Asked { if_version: Some(if_version), ..by("root", number, command) };
    let order = assign("store/nvme0", 33, 0);
    let stale = Refusal::Stale { named: version - 1, present: version };
    assert_eq!(refused(&state, &asked(100, version - 1, order.clone())), stale);
    run(&mut state, asked(100, version, order.clone()));
    // What it did has changed the version; the same request again is no other one.
    assert!(run(&mut state, asked(100, version, order)).done_at.is_some());
    let back = unassign("store/nvme0", false);
    assert!(matches!(refused(&state, &asked(101, version, back)), Refusal::Stale { .. }));
    let gone = Command::RemoveNode { node: name("printer") };
    assert_eq!(refused(&state, &asked(101, 5, gone)), Refusal::Stale { named: 5, present: 0 });
    let desk = state.node(node_id(2)).unwrap().version;
    let remove = Command::RemoveNode { node: name("desk") };
    assert!(decide(&state, T0, &asked(101, desk, remove)).is_ok());
}

#[test]
fn a_token_lets_one_node_join_until_it_expires() {
    let mut state = founded();
    assert_eq!(refused(&state, &joining(50, 100, 5, "a")), Refusal::NoJoinToken);
    run(&mut state, by("root", 101, join_token(50, 16)));
    let late = T0.plus_s(3600);
    let expired = decide(&state, late, &joining(50, 100, 5, "a")).unwrap_err();
    assert_eq!(
        expired.to_string(),
        "the join token has expired at 2023-11-14T23:13:20Z, and it is 2023-11-14T23:13:20Z by the manager's clock"
    );
    let joined = run(&mut state, joining(50, 100, 5, "a"));
    assert!(
        matches!(joined.answer, Answer::Joined { node, block, .. } if node == node_id(5) && block.len() == 16)
    );
    assert_eq!(run(&mut state, joining(50, 100, 5, "a")).answer, joined.answer, "it asks again");
    assert!(matches!(refused(&state, &joining(50, 102, 6, "b")), Refusal::Used { .. }));
    run(&mut state, by("root", 103, join_token(51, 16)));
    assert!(matches!(refused(&state, &joining(51, 104, 5, "b")), Refusal::NodeThere { .. }));
    let taken = Refusal::NameTaken { name: name("a"), by: node_id(5) };
    assert_eq!(refused(&state, &joining(51, 104, 6, "a")), taken);
    for domains in [0, 3, 8192] {
        assert!(matches!(
            refused(&state, &by("root", 105, join_token(52, domains))),
            Refusal::Domains { .. }
        ));
    }
    assert!(matches!(refused(&state, &by("root", 105, join_token(51, 4))), Refusal::TokenThere { .. }));
    run(&mut state, by("root", 106, Command::RemoveJoinToken { hash: hash(51) }));
    assert_eq!(refused(&state, &joining(51, 107, 6, "b")), Refusal::NoJoinToken);
    assert_eq!(
        refused(
            &state,
            &by(
                "root",
                108,
                Command::Join { id: node_id(6), name: name("b"), key: crate::model::PublicKey([0; 32]) }
            )
        ),
        Refusal::NoJoinToken
    );
}

#[test]
fn who_is_removed_loses_all_and_its_domains_are_nobodys_for_a_while() {
    let mut state = fabric();
    run(&mut state, by("op", 100, assign("store/nvme0", 33, 0)));
    run(&mut state, by("op", 101, assign("store/nvme1", 17, 0)));
    run(&mut state, by("root", 102, Command::RemoveNode { node: name("desk") }));
    let loan = |state: &State, number| state.function(key(1, number)).unwrap().loan;
    assert!(matches!(loan(&state, 0), Loan::Forced { .. }));
    assert!(matches!(loan(&state, 1), Loan::Wanted { .. }), "nobody else's changes");
    assert!(matches!(
        refused(&state, &by("op", 103, assign("store/nvme0", 33, 1))),
        Refusal::NoDomain { .. }
    ));
    run(&mut state, by("root", 104, join_token(60, 16)));
    assert!(matches!(refused(&state, &joining(60, 105, 2, "desk")), Refusal::Revoked { .. }));
    let block_of = |decision: Decision| match decision.answer {
        Answer::Joined { block, .. } => block.base(),
        other => panic!("{other:?}"),
    };
    let late = T0.plus_s(QUARANTINE_S);
    let token = |number, hash_of: u8| {
        let (expires, groups) = (late.plus_s(9), Groups::default());
        by("root", number, Command::MakeJoinToken { hash: hash(hash_of), expires, groups, domains: 16 })
    };
    assert_eq!(block_of(run(&mut state, joining(60, 106, 3, "desk"))), 48);
    run(&mut state, token(107, 61));
    run(&mut state, token(108, 62));
    // Its time is over, but the lender has not said that nobody has the function.
    assert_eq!(block_of(try_run(&mut state, late, &joining(61, 109, 4, "c")).unwrap()), 64);
    learn(&mut state, 1, &[reported(0, 2, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    assert_eq!(block_of(try_run(&mut state, late, &joining(62, 110, 5, "d")).unwrap()), 32);
    // What it lent is gone, too.
    try_run(&mut state, late, &by("root", 111, Command::RemoveNode { node: name("store") })).unwrap();
    assert_eq!(state.functions().count(), 0);
    assert!(state.in_slot(Place { domain: DomainId(17), slot: 0 }).is_none());
}

#[test]
fn who_may_not_enter_a_group_any_more_has_nothing_in_it() {
    let mut state = fabric();
    let set = |number, node: &str, groups: &[u16]| {
        let groups = Groups::new(groups.iter().map(|group| Group(*group))).unwrap();
        by("root", number, Command::SetGroups { node: name(node), groups })
    };
    run(&mut state, set(100, "store", &[1, 2]));
    run(&mut state, by("op", 101, assign("store/nvme0", 33, 0)));
    assert!(run(&mut state, set(102, "store", &[1, 2])).entry.is_none());
    run(&mut state, set(103, "desk", &[2]));
    assert!(matches!(state.function(key(1, 0)).unwrap().loan, Loan::Forced { .. }));
    assert!(
        Groups::new([]).is_none()
            && Groups::new([Group(4095)]).is_none()
            && Groups::new([Group(0)]).is_none()
    );
    assert!(Groups::new((1..=65).map(Group)).is_none());
}

#[test]
fn nobody_need_say_in_which_group() {
    let mut state = fabric();
    let set = |number, node: &str, groups: &[u16]| {
        let groups = Groups::new(groups.iter().map(|group| Group(*group))).unwrap();
        by("root", number, Command::SetGroups { node: name(node), groups })
    };
    let put = |slot, group: Option<u16>| Command::Assign {
        function: function_name("store/nvme0"),
        domain: DomainId(33),
        slot,
        group: group.map(Group),
        on_silence: OnSilence::default(),
    };
    let group_of = |state: &State| state.function(key(1, 0)).unwrap().loan.assigned().map(|to| to.group.0);
    run(&mut state, set(100, "store", &[2, 5, 7, 9]));
    run(&mut state, set(101, "desk", &[3, 7, 9]));
    // It is the least one that both may enter, and stays that.
    run(&mut state, by("op", 102, put(4, None)));
    assert_eq!(group_of(&state), Some(7));
    run(&mut state, set(103, "store", &[2, 3, 5, 7, 9]));
    let again = run(&mut state, by("op", 104, put(4, None)));
    assert_eq!((again.entry, group_of(&state)), (None, Some(7)), "it is there already");
    assert!(run(&mut state, by("op", 105, put(4, Some(7)))).entry.is_none());
    assert!(told(&state, &by("op", 106, put(4, Some(9)))).contains("another"), "in another group");
    assert!(told(&state, &by("op", 107, put(5, None))).contains("store/nvme0 is in 00021/4 of desk"));
    // They share none.
    run(&mut state, by("op", 108, unassign("store/nvme0", true)));
    learn(&mut state, 1, &[reported(0, 2, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    run(&mut state, set(109, "store", &[2, 5]));
    assert_eq!(
        told(&state, &by("op", 110, put(4, None))),
        "nodes `store` and `desk` may not enter the same group: give one of them another one (`causeway node groups`)"
    );
    assert_eq!(told(&state, &by("op", 111, put(4, Some(5)))), "node `desk` may not enter group 5");
    assert_eq!(told(&state, &by("op", 112, put(4, Some(3)))), "node `store` may not enter group 3");
    run(&mut state, set(113, "store", &[9, 3]));
    run(&mut state, by("op", 114, put(4, None)));
    assert_eq!(group_of(&state), Some(3));
}

#[test]
fn somebody_always_may_say_who_may_do_what() {
    let mut state = founded();
    let set = |number, who: &str, token: u8, role| {
        let (name, hash) = (name(who), hash(token));
        by("root", number, Command::SetApiToken { name, hash, role, replace: true })
    };
    assert_eq!(refused(&state, &set(100, "root", 1, Role::Operator)), Refusal::LastAdministrator);
    let remove = |number, who: &str| by("root", number, Command::RemoveApiToken { name: name(who) });
    assert_eq!(refused(&state, &remove(100, "root")), Refusal::LastAdministrator);
    assert_eq!(refused(&state, &set(100, "x", 1, Role::Operator)), Refusal::TokenThere { hash: hash(1) });
    run(&mut state, set(101, "second", 9, Role::Administrator));
    run(&mut state, remove(102, "root"));
    assert_eq!(state.authenticate(hash(1)), None);
    assert_eq!(state.authenticate(hash(9)), Some((&name("second"), Role::Administrator)));
    // Its own last request, again: it is done, and another one is refused.
    assert!(run(&mut state, remove(102, "root")).done_at.is_some());
    assert_eq!(refused(&state, &remove(103, "eye")), Refusal::NoToken { name: name("root") });
    for number in 0..API_TOKENS_MAX as u64 {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(1000 + number).to_le_bytes());
        let (called, hash) = (name(&format!("t{number}")), TokenHash(bytes));
        let command = Command::SetApiToken { name: called, hash, role: Role::ReadOnly, replace: false };
        let outcome = try_run(&mut state, T0, &by("second", 1000 + number, command));
        let is_full = state.api_tokens().count() == API_TOKENS_MAX;
        assert!(outcome.is_ok() || is_full, "{number}: {outcome:?}");
    }
    assert_eq!(state.api_tokens().count(), API_TOKENS_MAX);
}

/// A clock was a hundred days fast for a while, and the log has entries of that time.
#[test]
fn a_join_token_is_good_by_the_clock_whatever_the_log_says() {
    let mut state = founded();
    let fast = T0.plus_s(100 * 86_400);
    let eye = Command::SetApiToken { name: name("x"), hash: hash(60), role: Role::ReadOnly, replace: false };
    try_run(&mut state, fast, &by("root", 101, eye)).unwrap();
    assert_eq!(state.at(), fast);
    // It is set right again: an hour is an hour, neither nothing nor a hundred days.
    run(&mut state, by("root", 102, join_token(71, 64)));
    run(&mut state, by("root", 103, join_token(72, 64)));
    let late = try_run(&mut state, T0.plus_s(3600), &joining(71, 200, 1, "store"));
    assert!(matches!(late, Err(Refusal::Expired { now, .. }) if now == T0.plus_s(3600)), "{late:?}");
    let in_time = try_run(&mut state, T0.plus_s(3599), &joining(72, 201, 1, "store")).unwrap();
    assert_eq!(in_time.entry.unwrap().at, fast, "the log does not go back");
}

#[test]
fn a_token_is_replaced_by_who_says_so_only() {
    let mut state = founded();
    let set = |number, token: u8, replace| {
        let (name, hash) = (name("eye"), hash(token));
        by("root", number, Command::SetApiToken { name, hash, role: Role::Operator, replace })
    };
    assert_eq!(refused(&state, &set(100, 9, false)), Refusal::TokenNamed { name: name("eye") });
    run(&mut state, set(101, 9, true));
    assert_eq!(state.authenticate(hash(3)), None);
    assert_eq!(state.authenticate(hash(9)), Some((&name("eye"), Role::Operator)));
    // What is so already is no refusal: a request under another id that asks for the same.
    assert!(run(&mut state, set(102, 9, false)).entry.is_none());
}

#[test]
fn a_node_has_so_many_slots_and_clocks_that_go_back_do_no_harm() {
    let mut state = fabric();
    let all: Vec<_> = (0..81).map(|number| reported(number, 0, Holder::Nobody)).collect();
    learn(&mut state, 1, &all);
    for number in 0..80 {
        run(&mut state, by("op", 100 + number, assign(&format!("store/nvme{number}"), 33, number as u16)));
    }
    let full = refused(&state, &by("op", 300, assign("store/nvme80", 34, 0)));
    assert!(matches!(full, Refusal::Full { most: 80, .. }), "{full}");
    let back = try_run(&mut state, WallTime(5), &by("op", 301, unassign("store/nvme0", false))).unwrap();
    assert_eq!(back.entry.unwrap().at, T0, "an entry is never earlier than the one before it");
    assert_eq!(state.done(request(301)).unwrap().entry.at, T0);
}
