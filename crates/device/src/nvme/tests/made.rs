//! Functions that come to a drive after it was declared, and go from it: from one card to the next.

use super::*;
use crate::nvme::{ConfigError, MadeFunction, MadeNamespace, NamespaceConfig};

/// Bytes of the medium.
const BYTES: u64 = 2048 * 512;
const PAGE: u64 = 4096;

fn own(controller: u16, start: u64, bytes: u64) -> MadeFunction {
    MadeFunction { controller, namespace: MadeNamespace::Own { start, bytes } }
}

/// A drive with one declared function, which has the first page, and with these.
fn with(made: &[MadeFunction]) -> Config {
    let first = |blocks, shared, controllers: &[u16]| NamespaceConfig {
        blocks,
        block_size: 512,
        read_only: false,
        shared,
        controllers: controllers.to_vec(),
    };
    Config {
        functions: 1,
        keeps_state: true,
        is_empty: true,
        namespaces: vec![first(8, false, &[1]), first(8, true, &[])],
        made: made.to_vec(),
        ..config()
    }
}

/// A drive as the next card has it.
fn next<'m>(ledger: &Ledger<'m, Root>, config: Config) -> Subsystem<'m> {
    let drive = Subsystem::new(&ledger.root.drive, ledger.journal, config);
    ledger.journal.commit();
    drive
}

/// Each namespace: where it lies, and who has it.
fn divided(drive: &Subsystem<'_>) -> Vec<(u64, u64, Vec<u16>)> {
    let attached = |nsid| (0..=64).filter(|controller| drive.is_attached(nsid, *controller)).collect();
    drive.allocated().map(|it| (it.start, it.bytes, attached(it.nsid))).collect()
}

fn in_memory(test: impl FnOnce(&Ledger<'_, Root>)) {
    let arena = Arena::default();
    test(&arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL));
}

#[test]
fn a_function_gets_its_place_once_and_leaves_it_with_all_that_was_marked() {
    in_memory(|ledger| {
        let declared = [(0, PAGE, vec![1]), (PAGE, PAGE, vec![])];
        let at = |start, bytes, controller| (start, bytes, vec![controller]);
        let drive = next(ledger, with(&[]));
        assert_eq!(divided(&drive), declared);
        assert_eq!(
            (drive.cells.gap(PAGE, &[]), drive.cells.gap(PAGE, &[(2 * PAGE, 1)])),
            (Some(2 * PAGE), Some(3 * PAGE))
        );
        let made = [own(64, 2 * PAGE, PAGE), own(63, 4 * PAGE, 2 * PAGE)];
        let drive = next(ledger, with(&made));
        let both = [&declared[..], &[at(2 * PAGE, PAGE, 64), at(4 * PAGE, 2 * PAGE, 63)]].concat();
        assert_eq!(divided(&drive), both);
        let serial = drive.namespace(4).unwrap().serial;
        // The same for the next card.
        let drive = next(ledger, with(&made));
        assert_eq!((divided(&drive), drive.namespace(4).unwrap().serial), (both.clone(), serial));
        assert!(drive.mark_bad(4 * PAGE, 512));
        drive.controller(63).saved[0].set(ledger.journal, 7);
        assert!(!drive.cells.is_divided(&with(&made[..1])));
        let drive = next(ledger, with(&made[..1]));
        assert!(drive.cells.is_divided(drive.config()));
        assert_eq!(divided(&drive), both[..3]);
        let version = drive.cells.wanted.get();
        // Another one has its controller and its place, and nothing of it.
        let drive = next(ledger, with(&[made[0], own(63, 4 * PAGE, PAGE)]));
        assert_eq!(divided(&drive)[3], at(4 * PAGE, PAGE, 63));
        assert!(drive.namespace(4).unwrap().serial > serial && !drive.is_bad(4 * PAGE, PAGE));
        assert_eq!(drive.controller(63).saved[0].get(), 0);
        assert!(drive.cells.wanted.get() > version, "it is kept");
        assert_eq!(drive.cells.unallocated(), BYTES - 4 * PAGE);
    });
}

#[test]
fn what_is_kept_of_a_drive_is_what_the_next_life_finds_whatever_was_decided_meanwhile() {
    let made = [own(64, 2 * PAGE, PAGE), own(63, 4 * PAGE, PAGE)];
    let mut saved = None;
    in_memory(|ledger| saved = next(ledger, with(&made)).poll_persist().map(|it| it.bytes));
    let saved = saved.unwrap();
    in_memory(|ledger| {
        let drive = next(ledger, Config { saved: Some(saved.clone()), ..with(&made) });
        assert_eq!(divided(&drive)[2..], [(2 * PAGE, PAGE, vec![64]), (4 * PAGE, PAGE, vec![63])]);
        assert!(drive.poll_persist().is_none(), "nothing has changed");
    });
    // It was deleted, and the node died before its card knew of it.
    in_memory(|ledger| {
        let drive = next(ledger, Config { saved: Some(saved.clone()), ..with(&made[1..]) });
        assert_eq!(divided(&drive)[2..], [(4 * PAGE, PAGE, vec![63])]);
        assert!(drive.poll_persist().is_some());
    });
}

#[test]
fn one_that_is_shared_stays_and_where_there_is_no_room_a_function_has_nothing() {
    let shared = |controller| MadeFunction { controller, namespace: MadeNamespace::Shared { nsid: 2 } };
    in_memory(|ledger| {
        let drive = next(ledger, with(&[shared(64), shared(63)]));
        assert_eq!(divided(&drive)[1], (PAGE, PAGE, vec![63, 64]));
        let drive = next(ledger, with(&[shared(63)]));
        assert_eq!(divided(&drive)[1], (PAGE, PAGE, vec![63]));
        let private = MadeFunction { controller: 62, namespace: MadeNamespace::Shared { nsid: 1 } };
        // There is room elsewhere, which nobody has cleared for them.
        let taken = [own(61, 0, BYTES), own(60, PAGE, PAGE), own(59, BYTES - PAGE, 2 * PAGE)];
        let free = own(58, BYTES - PAGE, PAGE);
        let drive = next(ledger, with(&[&[private, free][..], &taken].concat()));
        let place = (BYTES - PAGE, PAGE, vec![58]);
        assert_eq!(divided(&drive), [(0, PAGE, vec![1]), (PAGE, PAGE, vec![]), place]);
        let can_have = |made: &MadeFunction| drive.cells.can_have(made.namespace);
        assert!(taken[..1].iter().chain([&private, &taken[2]]).all(|made| !can_have(made)));
        assert!(can_have(&shared(64)) && can_have(&free) && can_have(&own(57, 2 * PAGE, PAGE)));
    });
}

/// A controller number that is freed and taken in one list.
#[test]
fn a_new_function_has_nothing_of_the_one_whose_controller_it_has() {
    let shared = MadeFunction { controller: 64, namespace: MadeNamespace::Shared { nsid: 2 } };
    let (old, moved) = (own(64, 2 * PAGE, PAGE), own(64, 4 * PAGE, PAGE));
    for (before, after) in
        [(old, moved), (old, shared), (shared, old), (old, own(64, 2 * PAGE, 2 * PAGE)), (moved, old)]
    {
        in_memory(|ledger| {
            let drive = next(ledger, with(&[before]));
            let serials = drive.cells.serials.get();
            drive.controller(64).saved[0].set(ledger.journal, 7);
            assert!(drive.cells.is_divided(drive.config()));
            assert!(!drive.cells.is_divided(&with(&[after])), "{before:?} {after:?}");
            let drive = next(ledger, with(&[after]));
            assert!(drive.cells.is_divided(drive.config()));
            let has: Vec<_> =
                divided(&drive).into_iter().filter(|(_, _, controllers)| controllers[..] == [64]).collect();
            match after.namespace {
                MadeNamespace::Own { start, bytes } => {
                    assert_eq!(has, [(start, bytes, vec![64])]);
                    assert_eq!(drive.cells.serials.get(), serials + 1);
                }
                MadeNamespace::Shared { .. } => assert_eq!(has, [(PAGE, PAGE, vec![64])]),
            }
            assert_eq!(drive.controller(64).saved[0].get(), 0);
        });
    }
}

/// A place behind a single namespace may be being cleared for a function that no card knows of yet.
#[test]
fn what_a_medium_grows_by_goes_to_a_namespace_that_reaches_its_end() {
    let one = |blocks| NamespaceConfig {
        blocks,
        block_size: 512,
        read_only: false,
        shared: false,
        controllers: vec![1],
    };
    for (blocks, after) in [(8, 8), (2048, 4096)] {
        in_memory(|ledger| {
            let drive = next(ledger, Config { namespaces: vec![one(blocks)], ..with(&[]) });
            drive.grow(4096);
            assert_eq!(divided(&drive), [(0, after * 512, vec![1])]);
        });
    }
}

/// Of a drive that begins empty all is for functions that are made, also what it has grown by.
#[test]
fn a_drive_that_begins_empty_has_what_is_made() {
    let empty =
        |made: &[MadeFunction]| Config { functions: 0, namespaces: vec![], made: made.to_vec(), ..with(&[]) };
    in_memory(|ledger| {
        assert_eq!(divided(&next(ledger, empty(&[]))), []);
        let drive = next(ledger, empty(&[own(64, 0, PAGE)]));
        drive.grow(4096);
        assert_eq!(divided(&drive), [(0, PAGE, vec![64])]);
        assert_eq!(drive.cells.unallocated(), 2 * BYTES - PAGE);
        assert_eq!(drive.controllers(), 65);
        assert_eq!(divided(&next(ledger, empty(&[]))), []);
    });
}

/// Whoever dies in between has a successor that finds the same.
#[test]
fn a_card_that_dies_while_it_divides_a_drive_has_a_successor_that_does() {
    silence_kills();
    let made = [own(64, 2 * PAGE, PAGE), own(63, 4 * PAGE, PAGE)];
    for left in 0.. {
        let hook = KillAt { left: StdCell::new(u64::MAX) };
        let arena = Arena::default();
        let memory = arena.zeroed::<Root>();
        let ledger = memory.ledger::<Root>(Some(&hook), RuleSet::ALL);
        next(&ledger, with(&made[..1]));
        hook.left.set(left);
        let lived = catch_unwind(AssertUnwindSafe(|| drop(next(&ledger, with(&made[1..]))))).is_ok();
        hook.left.set(u64::MAX);
        let ledger = memory.ledger::<Root>(Some(&hook), RuleSet::ALL);
        ledger.journal.roll_back().unwrap();
        let drive = next(&ledger, with(&made[1..]));
        assert_eq!(divided(&drive)[2..], [(4 * PAGE, PAGE, vec![63])], "{left}");
        if lived {
            assert!(left > 5);
            break;
        }
    }
}

#[test]
fn no_two_functions_are_one_controller() {
    let told = |made: &[MadeFunction]| with(made).check().unwrap_err();
    for (made, wrong) in [
        (&[own(1, 0, PAGE)][..], 1),
        (&[own(0, 0, PAGE)], 0),
        (&[own(65, 0, PAGE)], 65),
        (&[own(64, 0, PAGE), own(9, 0, PAGE), own(64, PAGE, PAGE)], 64),
    ] {
        assert_eq!(told(made), ConfigError::MadeFunction(wrong));
    }
    assert_eq!(with(&[own(2, 0, PAGE), own(64, 0, PAGE)]).check(), Ok(()));
}
