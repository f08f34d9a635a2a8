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
    fn a_killed_step_leaves_the_last_commit(
        before in changes(),
        step in changes(),
        kill in 0..200_u64,
        again in 0..50_u64,
    ) {
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
        calm.journal.roll_back().unwrap();
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
    ledger.journal.roll_back().unwrap();
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

#[derive(FromBytes)]
#[repr(C)]
struct Table {
    regions: RegionTable,
}

#[derive(FromBytes, Layout)]
#[repr(C)]
struct Few([Cell<u64>; 4]);

impl Region for Few {
    const KIND: u32 = 1;
}

#[derive(FromBytes, Layout)]
#[repr(C)]
struct Many([Cell<u64>; 1000]);

impl Region for Many {
    const KIND: u32 = 2;
}

/// Room for so many regions of a page, with those of the table's own.
fn with_room(arena: &Arena, pages: usize) -> RawMemory<'_> {
    arena.zeroed_bytes(LedgerRoot::<Table>::SIZE + pages * PAGE_SIZE)
}

fn regions<'m>(memory: RawMemory<'m>, hook: Option<&'m dyn Hook>) -> (Journal<'m>, Regions<'m>) {
    let Ledger { journal, root } = memory.ledger::<Table>(hook, RuleSet::ALL);
    (journal, Regions::new::<Table>(memory, journal, &root.regions))
}

fn owner(name: u64) -> Owner {
    Owner { name, life: 0 }
}

#[test]
fn a_region_is_its_owners_until_it_is_given_back_and_begins_with_zeroes() {
    let arena = Arena::default();
    let (journal, regions) = regions(with_room(&arena, 3), None);
    assert!(regions.find::<Few>(owner(1)).unwrap().is_none());
    let first = regions.obtain::<Few>(owner(1)).unwrap();
    first.0[3].set(journal, 7);
    journal.commit();
    assert_eq!(regions.obtain::<Few>(owner(1)).unwrap().0[3].get(), 7, "what it has already");
    let later = Owner { life: 1 << 32, ..owner(1) };
    assert!(regions.find::<Few>(later).unwrap().is_none(), "another life of it has nothing");
    let large = regions.obtain::<Many>(owner(1)).unwrap();
    large.0[999].set(journal, 9);
    journal.commit();
    assert_eq!(first.0[3].get(), 7, "regions lie apart");
    // A page and two.
    assert_eq!(
        regions.obtain::<Few>(owner(2)).err(),
        Some(RegionError::Full(regions.end().unwrap() + PAGE_SIZE))
    );
    regions.retain(|kind, _| kind == Many::KIND);
    assert!(regions.find::<Few>(owner(1)).unwrap().is_none());
    assert!(regions.find::<Many>(owner(1)).unwrap().is_some());
    assert_eq!(regions.obtain::<Few>(owner(2)).unwrap().0[3].get(), 0, "the next one's begins anew");
    let taken: Vec<_> = regions.iter().collect();
    assert_eq!(taken, [(1, owner(2), PAGE_SIZE), (2, owner(1), 2 * PAGE_SIZE)]);
}

/// What the owner has had is not taken for nothing, nor is anything made of a table that cannot be.
#[test]
fn a_table_that_names_foreign_memory_is_no_table() {
    let arena = Arena::default();
    let (journal, regions) = regions(with_room(&arena, 3), None);
    regions.obtain::<Few>(owner(1)).unwrap().0[0].set(journal, 7);
    journal.commit();
    let (first, page) = (LedgerRoot::<Table>::SIZE as u64, PAGE_SIZE as u64);
    for start in [0, first + 3 * page, u64::MAX - 7] {
        regions.misplace(journal, (start, page), 1);
        assert_eq!(regions.find::<Few>(owner(1)).err(), Some(RegionError::Corrupt));
        assert_eq!(regions.obtain::<Few>(owner(1)).err(), Some(RegionError::Corrupt), "not another one");
        assert_eq!(regions.obtain::<Many>(owner(1)).err(), Some(RegionError::Corrupt));
    }
    assert_eq!(regions.iter().count(), 1, "nothing was added");
}

/// Whoever makes the memory as large as the table says asks this first.
#[test]
fn a_table_ends_inside_of_its_memory_or_is_none() {
    let arena = Arena::default();
    let (journal, regions) = regions(with_room(&arena, 2), None);
    regions.obtain::<Few>(owner(1)).unwrap();
    let (first, page) = (LedgerRoot::<Table>::SIZE as u64, PAGE_SIZE as u64);
    let wrong = [
        (first, u64::MAX - first),
        (first, u64::MAX - page + 1),
        (first, 3 * page),
        (first, 0),
        (first, page + 8),
        (first + page, page),
        (u64::MAX - page + 1, page),
    ];
    for place in wrong {
        regions.misplace(journal, place, 1);
        assert_eq!(regions.end(), Err(RegionError::Corrupt), "{place:x?}");
    }
    regions.misplace(journal, (first, page), 2);
    assert_eq!(regions.end(), Err(RegionError::Corrupt), "the second was never made");
    for count in [REGIONS_MAX as u64 + 1, u64::MAX] {
        regions.misplace(journal, (first, page), count);
        assert_eq!(regions.end(), Err(RegionError::Corrupt), "{count}");
    }
    regions.misplace(journal, (first, page), 1);
    assert_eq!(regions.end(), Ok((first + page) as usize));
}

/// Whatever store a card dies before while regions change hands, its successor finds each with the one owner that it
/// had, or was to have; and nobody finds what another one has left.
#[test]
fn regions_have_one_owner_whenever_a_card_dies() {
    let change = |regions: &Regions<'_>, journal: Journal<'_>| {
        let dirty = regions.obtain::<Few>(owner(1)).unwrap();
        dirty.0[0].set(journal, 1);
        journal.commit();
        regions.retain(|_, whose| whose != owner(1));
        for name in [2, 3] {
            let cells = regions.obtain::<Few>(owner(name)).unwrap();
            assert!([0, name].contains(&cells.0[0].get()), "what another owner has left");
            cells.0[0].set(journal, name);
            journal.commit();
        }
        regions.obtain::<Many>(owner(3)).unwrap();
    };
    let mut stores = 0;
    loop {
        let arena = Arena::default();
        let memory = with_room(&arena, 5);
        let hook = KillAt { left: StdCell::new(stores) };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let (journal, regions) = regions(memory, Some(&hook));
            change(&regions, journal);
        }));
        let (journal, regions) = regions(memory, None);
        journal.roll_back().unwrap();
        change(&regions, journal);
        let mut taken: Vec<_> = regions.iter().map(|(kind, owner, _)| (kind, owner)).collect();
        taken.sort();
        assert_eq!(taken, [(1, owner(2)), (1, owner(3)), (2, owner(3))], "killed before store {stores}");
        assert!(regions.end().unwrap() <= memory.len());
        if ended.is_ok() {
            return assert!(stores > 20);
        }
        stores += 1;
    }
}

/// Header, undo log and the place of the root count as the root does.
#[test]
fn all_of_a_ledger_counts_for_its_layout() {
    let (area, offset) = (journal::AREA, 1 << 12);
    let usual = memory::layout(area, offset, RegionTable::LAYOUT);
    assert_ne!(usual, memory::layout(LayoutHash(area.0 ^ 1), offset, RegionTable::LAYOUT));
    assert_ne!(usual, memory::layout(area, offset + 1, RegionTable::LAYOUT));
    assert_ne!(usual, memory::layout(area, offset, LayoutHash(RegionTable::LAYOUT.0 ^ 1)));
    assert_ne!(LedgerRoot::<RegionTable>::LAYOUT, LedgerRoot::<Few>::LAYOUT);
}

/// A log that no card can have left is refused as a whole: what of it makes sense is not restored either.
#[test]
fn a_corrupt_undo_log_is_refused_and_restores_nothing() {
    let arena = Arena::default();
    let memory = arena.zeroed::<Root>();
    let ledger = memory.ledger::<Root>(None, RuleSet::ALL);
    ledger.root.small[0].set(ledger.journal, 1);
    ledger.root.small[1].set(ledger.journal, 2);
    ledger.root.small[2].set(ledger.journal, 3);
    let offset = |place: u64| place >> 4;
    let good = ledger.journal.spoil(1, None);
    let wrong = [
        offset(good) << 4,
        offset(good) << 4 | 9,
        (memory.len() as u64) << 4 | 2,
        (memory.len() as u64 - 1) << 4 | 2,
        u64::MAX >> 4 << 4 | 8,
        // The log itself.
        64 << 4 | 8,
    ];
    for place in wrong {
        ledger.journal.spoil(1, Some((place, 3)));
        assert_eq!(ledger.journal.roll_back(), Err(LedgerError::Corrupt), "{place:x}");
        assert_eq!(ledger.root.small[0].get(), 1, "{place:x}");
        assert_eq!(ledger.root.small[2].get(), 3, "{place:x}");
    }
    for count in [JOURNAL_ENTRIES as u64 + 1, u64::MAX] {
        ledger.journal.spoil(1, Some((good, count)));
        assert_eq!(ledger.journal.roll_back(), Err(LedgerError::Corrupt), "{count}");
    }
    ledger.journal.spoil(1, Some((good, 3)));
    assert_eq!(ledger.journal.roll_back(), Ok(3));
    assert_eq!(ledger.root.small[2].get(), 0);
}
