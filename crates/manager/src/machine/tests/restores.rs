//! What a manager that was restored or rebuilt makes of who comes, and of what they remember.

use base::ids::{DomainId, Group};

use super::*;
use crate::model::{Block, Groups, OnSilence, PublicKey, WallTime};
use crate::report::Preset;

/// A manager that knows nobody.
fn rebuilt() -> Rig {
    let mut rig = Rig::new(crate::testing::founded(), Start::Restored { any_time: false });
    rig.all();
    rig
}

/// So many days after the fabric was founded.
fn day(number: u64) -> WallTime {
    T0.plus_s(number * 86_400)
}

/// A node of this name comes, with 16 domains from this one on, by a certificate of this day.
fn come(rig: &mut Rig, node: u64, called: &str, base: u32, issued: u64, functions: &[Reported]) {
    let (block, key) = (Block::new(base, 16).unwrap(), PublicKey([node as u8; 32]));
    let identity =
        Identity { name: name(called), key, block, groups: Groups::default(), issued: day(issued) };
    rig.manager.handle_reachable(node_id(node));
    let functions = functions.to_vec();
    rig.say(node, Said::Inventory { identity, functions, presets: None, made: None, rails: vec![] });
    rig.all();
}

/// It remembers who was removed, and what is in its slots.
fn remember(rig: &mut Rig, node: u64, revoked: &[u64], slots: &[(Place, FunctionKey)]) -> Vec<Effect> {
    let preset = |(place, function): &(Place, FunctionKey)| Preset {
        place: *place,
        function: *function,
        lender: PublicKey::default(),
        generation: LoanGeneration(1),
        group: Group::DEFAULT,
        on_silence: OnSilence::default(),
    };
    let revoked = revoked.iter().copied().map(node_id).collect();
    rig.say(node, Said::Memory { presets: slots.iter().map(preset).collect(), revoked });
    rig.all()
}

fn end(rig: &mut Rig) -> Vec<(u64, Result<Progress, Refusal>)> {
    rig.ask(99, Command::EndRestore { anyway: false });
    answers(&rig.all())
}

fn members(rig: &Rig) -> Vec<NodeId> {
    rig.manager.state().nodes().filter(|node| node.is_joined()).map(|node| node.id).collect()
}

#[test]
fn who_was_removed_does_not_take_the_place_of_who_came_after() {
    // Whichever of the two comes first.
    for order in [[1, 2], [2, 1]] {
        for (called, base) in [("store", 64), ("store", 16), ("other", 64)] {
            let mut rig = rebuilt();
            for node in order {
                match node {
                    1 => come(&mut rig, 1, "store", 64, 3, &[reported(0, 0, Holder::Nobody)]),
                    _ => come(&mut rig, 2, called, base, 5, &[reported(0, 0, Holder::Nobody)]),
                }
            }
            assert_eq!(members(&rig), [node_id(2)], "{order:?} {called} {base}");
            assert_eq!(rig.manager.state().functions_of(node_id(1)).count(), 0);
            assert_eq!(end(&mut rig), [(99, Ok(Progress::Done))]);
        }
    }
}

#[test]
fn who_was_removed_since_the_backup_is_displaced_by_who_joined_since() {
    // By the backup, node 2 has these domains since the fabric was founded.
    let mut rig = Rig::new(fabric(), Start::Restored { any_time: false });
    rig.all();
    rig.hear(1, &[reported(0, 1, holder(33, 0)), reported(1, 0, Holder::Nobody)]);
    come(&mut rig, 9, "new", 32, 0, &[]);
    assert_eq!(members(&rig), [node_id(1), node_id(2)], "its certificate is no younger than that");
    come(&mut rig, 9, "new", 32, 1, &[]);
    assert_eq!(members(&rig), [node_id(1), node_id(9)]);
    // What it had is nobody's until its lender says more, and that nobody has a function of another's domain.
    let function = rig.manager.state().function(crate::testing::key(1, 0)).unwrap();
    assert_eq!(function.loan, Loan::Free);
    rig.hear(1, &[reported(0, 1, holder(33, 0)), reported(1, 0, Holder::Nobody)]);
    let function = rig.manager.state().function(crate::testing::key(1, 0)).unwrap();
    assert!(matches!(function.loan, Loan::Ended { .. }) && function.generation.0 == 2, "{function:?}");
    // Its key is refused from now on.
    come(&mut rig, 2, "desk", 32, 9, &[]);
    assert_eq!(members(&rig), [node_id(1), node_id(9)]);
}

#[test]
fn who_was_removed_is_removed_again_by_the_word_of_those_who_belong_to_the_fabric() {
    let mut rig = rebuilt();
    come(&mut rig, 1, "store", 16, 3, &[]);
    come(&mut rig, 2, "desk", 32, 5, &[]);
    come(&mut rig, 3, "rack", 48, 5, &[]);
    assert_eq!(members(&rig).len(), 3);
    // Who was removed may lie, and its certificate is older.
    assert_eq!(alarms(&remember(&mut rig, 1, &[2, 3], &[])), []);
    let by = node_id(2);
    assert_eq!(alarms(&remember(&mut rig, 2, &[1], &[])), [Alarm::Removed { by }]);
    remember(&mut rig, 3, &[1], &[]);
    // People see it as long as it is so.
    come(&mut rig, 1, "store", 16, 3, &[]);
    assert_eq!(rig.manager.alarms(node_id(1)).collect::<Vec<_>>(), [&Alarm::Removed { by }]);
    assert_eq!(members(&rig).len(), 3, "nothing is done before the administrator has looked");
    assert_eq!(end(&mut rig), [(99, Ok(Progress::Done))]);
    assert_eq!(members(&rig), [node_id(2), node_id(3)]);
}

#[test]
fn the_word_of_who_was_removed_later_counts_for_nothing() {
    let mut rig = rebuilt();
    // Both were away when the last one was removed, whose certificate is newer than one of theirs.
    come(&mut rig, 1, "store", 16, 3, &[]);
    come(&mut rig, 2, "liar", 32, 5, &[]);
    come(&mut rig, 3, "rack", 48, 7, &[]);
    remember(&mut rig, 2, &[1, 3], &[]);
    remember(&mut rig, 3, &[2], &[]);
    remember(&mut rig, 1, &[], &[]);
    assert_eq!(end(&mut rig), [(99, Ok(Progress::Done))]);
    assert_eq!(members(&rig), [node_id(1), node_id(3)]);
}

#[test]
fn of_two_lenders_who_claim_a_slot_its_borrower_decides() {
    let place = Place { domain: DomainId(33), slot: 0 };
    let claim = [reported(0, 7, holder(33, 0))];
    let has = |rig: &Rig, node| rig.manager.state().function(crate::testing::key(node, 0)).map(|it| it.loan);
    let applied = |loan: Option<Loan>| matches!(loan, Some(Loan::Applied { .. }));
    // Whoever of them, and the borrower, comes when: the one whose function is in the slot has it.
    for order in [[1, 3, 2], [3, 1, 2], [2, 1, 3], [2, 3, 1], [1, 2, 3], [3, 2, 1]] {
        let mut rig = rebuilt();
        // Who is asked again says the same again.
        for _ in 0..2 {
            for node in order {
                match node {
                    1 => come(&mut rig, 1, "store", 16, 3, &claim),
                    2 => {
                        come(&mut rig, 2, "desk", 32, 3, &[]);
                        remember(&mut rig, 2, &[], &[(place, crate::testing::key(3, 0))]);
                    }
                    _ => come(&mut rig, 3, "vault", 48, 3, &claim),
                }
            }
        }
        assert!(applied(has(&rig, 3)), "{order:?}: {:?}", has(&rig, 3));
        assert!(!applied(has(&rig, 1)), "{order:?}: {:?}", has(&rig, 1));
        assert_eq!(end(&mut rig), [(99, Ok(Progress::Done))], "{order:?}");
        come(&mut rig, 1, "store", 16, 3, &claim);
        assert!(matches!(has(&rig, 1), Some(Loan::Ended { .. })), "{order:?}: {:?}", has(&rig, 1));
    }
}

#[test]
fn a_slot_that_two_lenders_claim_waits_for_its_borrower_or_the_administrator() {
    let mut rig = Rig::new(fabric(), Start::Restored { any_time: false });
    rig.all();
    come(&mut rig, 3, "vault", 48, 3, &[reported(0, 7, holder(33, 0))]);
    rig.hear(1, &[reported(0, 7, holder(33, 0)), reported(1, 0, Holder::Nobody)]);
    rig.all();
    let unheard = &rig.manager.state().restore().unwrap().unheard;
    assert!(unheard.contains(&node_id(1)) && !unheard.contains(&node_id(3)), "{unheard:?}");
    assert!(matches!(end(&mut rig)[..], [(99, Err(Refusal::Restoring { unheard: 2, .. }))]));
    rig.ask(100, Command::EndRestore { anyway: true });
    rig.all();
    rig.hear(1, &[reported(0, 7, holder(33, 0)), reported(1, 0, Holder::Nobody)]);
    let loan = rig.manager.state().function(crate::testing::key(1, 0)).unwrap().loan;
    assert!(matches!(loan, Loan::Ended { .. }), "{loan:?}");
}

#[test]
fn one_node_does_not_hold_up_a_restore_by_ever_greater_epochs() {
    let mut rig = Rig::new(fabric(), Start::Restored { any_time: false });
    rig.all();
    rig.manager.handle_reachable(node_id(2));
    for round in 1..10 {
        let epoch = rig.manager.state().epoch() + round;
        let said = Said::Function(reported(0, 0, Holder::Nobody));
        rig.manager.handle_report(rig.now, node_id(2), &Report { epoch, said });
        rig.all();
    }
    let before = rig.manager.state().epoch();
    rig.hear(1, &[reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    rig.all();
    let said = Said::Function(reported(0, 0, Holder::Nobody));
    rig.manager.handle_report(rig.now, node_id(2), &Report { epoch: before + 1, said });
    rig.all();
    assert_eq!(rig.manager.state().epoch(), before);
    let unheard: Vec<NodeId> = rig.manager.state().restore().unwrap().unheard.iter().copied().collect();
    assert_eq!(unheard, [node_id(2)], "the others stay heard");
    assert!(rig.manager.alarms(node_id(2)).any(|alarm| matches!(alarm, Alarm::GreaterEpoch { .. })));
}

#[test]
fn what_a_node_remembers_is_asked_for_while_a_manager_listens_and_only_then() {
    let recalled =
        |effects: &[Effect]| effects.iter().filter(|effect| matches!(effect, Effect::Recall { .. })).count();
    let mut rig = Rig::new(fabric(), Start::Restored { any_time: false });
    rig.all();
    rig.hear(2, &[]);
    assert_eq!(recalled(&rig.all()), 1);
    rig.go(600);
    assert_eq!(recalled(&rig.all()), 1, "it may get lost");
    remember(&mut rig, 2, &[], &[]);
    rig.go(60_000);
    assert_eq!(recalled(&rig.all()), 0);
    let mut rig = Rig::settled();
    rig.hear(2, &[]);
    assert_eq!(recalled(&rig.all()), 0);
}
