use std::cell::Cell as StdCell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::rules::RuleSet;

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    small: [Cell<u16>; 8],
    wide: [Cell<[u64; 3]>; 4],
    queue: Fifo<u32, 4>,
    pages: PageCells,
}

struct Killed;

/// Kills at the `left`-th store.
struct KillAt {
    left: StdCell<u64>,
}

impl Hook for KillAt {
    fn before_store(&self) {
        match self.left.get() {
            0 => panic_any(Killed),
            left => self.left.set(left - 1),
        }
    }
}

fn snapshot(ledger: &Ledger<'_, Root>) -> (Vec<u16>, Vec<[u64; 3]>, Vec<u32>, Vec<u16>) {
    let pages = Pages::new(&ledger.root.pages, ledger.journal);
    (
        ledger.root.small.iter().map(Cell::get).collect(),
        ledger.root.wide.iter().map(Cell::get).collect(),
        ledger.root.queue.iter().collect(),
        (0..8).map(|page| pages.references(PageIndex(page))).collect(),
    )
}

#[derive(Clone, Debug)]
enum Change {
    Small(usize, u16),
    Wide(usize, [u64; 3]),
    Push(u32),
    Pop,
    Alloc,
    Free(u16),
}

fn apply(ledger: &Ledger<'_, Root>, change: &Change) {
    let (journal, root) = (ledger.journal, ledger.root);
    let pages = Pages::new(&root.pages, journal);
    match change {
        Change::Small(index, value) => root.small[*index].set(journal, *value),
        Change::Wide(index, value) => root.wide[*index].set(journal, *value),
        Change::Push(value) if root.queue.room() > 0 => root.queue.push(journal, *value),
        Change::Pop => drop(root.queue.pop(journal)),
        Change::Alloc => drop(pages.alloc()),
        Change::Free(page) if pages.references(PageIndex(*page)) > 0 => pages.release(PageIndex(*page)),
        Change::Push(_) | Change::Free(_) => {}
    }
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        (0..8_usize, any::<u16>()).prop_map(|(i, v)| Change::Small(i, v)),
        (0..4_usize, any::<[u64; 3]>()).prop_map(|(i, v)| Change::Wide(i, v)),
        any::<u32>().prop_map(Change::Push),
        Just(Change::Pop),
        Just(Change::Alloc),
        (0..8_u16).prop_map(Change::Free),
    ];
    proptest::collection::vec(change, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever store a card dies before, and whatever store its successor's roll-back dies before, the cells are those
    /// of the last commit, or of the new one.
    #[test]
    fn a_killed_step_leaves_the_last_commit(before in changes(), step in changes(), kill in 0..200_u64, again in 0..50_u64) {
        let arena = Arena::default();
        let memory = arena.zeroed::<Root>();
        let calm = memory.ledger::<Root>(None, RuleSet::ALL);
        before.iter().for_each(|change| apply(&calm, change));
        calm.journal.commit();
        let old = snapshot(&calm);

        let hook = KillAt { left: StdCell::new(kill) };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let ledger = memory.ledger::<Root>(Some(&hook), RuleSet::ALL);
            step.iter().for_each(|change| apply(&ledger, change));
            ledger.journal.commit();
        }));
        let torn = snapshot(&calm);
        let hook = KillAt { left: StdCell::new(again) };
        let _ = catch_unwind(AssertUnwindSafe(|| memory.ledger::<Root>(Some(&hook), RuleSet::ALL).journal.roll_back()));
        calm.journal.roll_back();
        if ended.is_ok() {
            prop_assert_eq!(snapshot(&calm), torn);
        } else {
            // The commit is one store; a step killed right behind it has happened.
            let now = snapshot(&calm);
            prop_assert!(now == old || now == torn);
        }
    }
}

#[test]
fn what_a_step_frees_is_not_handed_out_before_the_commit() {
    let arena = Arena::default();
    let ledger = arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL);
    let pages = Pages::new(&ledger.root.pages, ledger.journal);
    let first = pages.alloc().unwrap();
    ledger.journal.commit();
    pages.release(first);
    assert_ne!(pages.alloc(), Some(first));
    ledger.journal.commit();
    assert_eq!(pages.alloc(), Some(first));
}

#[test]
fn a_page_lives_until_its_last_reference() {
    let arena = Arena::default();
    let ledger = arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL);
    let pages = Pages::new(&ledger.root.pages, ledger.journal);
    let page = pages.alloc().unwrap();
    pages.retain(page);
    pages.release(page);
    assert_eq!((pages.references(page), pages.used()), (1, 1));
    pages.release(page);
    assert_eq!((pages.references(page), pages.used()), (0, 0));
}

#[test]
fn a_full_pool_says_so() {
    let arena = Arena::default();
    let ledger = arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL);
    let pages = Pages::new(&ledger.root.pages, ledger.journal);
    assert_eq!(std::iter::from_fn(|| pages.alloc()).count(), Pages::CAPACITY);
    assert_eq!(pages.alloc(), None);
}

#[test]
fn low_pages_are_taken_first_though_a_step_was_taken_back() {
    let arena = Arena::default();
    let ledger = arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL);
    let pages = Pages::new(&ledger.root.pages, ledger.journal);
    (0..300).for_each(|_| assert!(pages.alloc().is_some()));
    ledger.journal.commit();
    (0..100).for_each(|page| pages.release(PageIndex(page)));
    assert_eq!(pages.alloc(), Some(PageIndex(300)));
    ledger.journal.roll_back();
    assert_eq!(pages.alloc(), Some(PageIndex(300)));
    [200, 70].into_iter().for_each(|page| pages.release(PageIndex(page)));
    ledger.journal.commit();
    assert_eq!([pages.alloc(), pages.alloc()], [Some(PageIndex(70)), Some(PageIndex(200))]);
    assert!(pages.has_free(Pages::CAPACITY - 301) && !pages.has_free(Pages::CAPACITY - 300));
}

#[test]
fn every_page_can_be_freed_in_one_step() {
    let arena = Arena::default();
    let ledger = arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL);
    let pages = Pages::new(&ledger.root.pages, ledger.journal);
    (0..Pages::CAPACITY).for_each(|_| assert!(pages.alloc().is_some()));
    ledger.journal.commit();
    (0..Pages::CAPACITY).for_each(|page| pages.release(PageIndex(page as u16)));
    assert!(ledger.journal.pending() < STEP_ENTRIES / 2 && pages.alloc().is_none());
    ledger.journal.commit();
    assert_eq!((pages.alloc(), pages.used()), (Some(PageIndex(0)), 1));
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Nothing,
    Something,
}
crate::coded!(Kind: Nothing, Something);

#[test]
fn codes_stand_for_their_values() {
    assert_eq!(Code::<Kind>::default().get(), Kind::Nothing);
    assert_eq!(Code::from(Kind::Something).get(), Kind::Something);
    assert_eq!(Code::from(Kind::Something).as_bytes(), [1]);
}

#[test]
#[should_panic(expected = "the ledger is corrupt: 2 is no")]
fn an_unknown_code_is_no_other_value() {
    Code::<Kind>::read_from_bytes(&[2]).unwrap().get();
}
