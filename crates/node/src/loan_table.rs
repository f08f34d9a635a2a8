//! The loans of a card by their places, and what each turn of a card asks of all of them: found anew only for those
//! that somebody may have changed, so that a turn does not take longer where there are many that do nothing.

use core::cell::Cell as StdCell;
use core::ops::{Index, IndexMut};

use base::Instant;

use crate::cells::MAX_LOANS;
use crate::loan::Loan;

const WORDS: usize = MAX_LOANS.div_ceil(u64::BITS as usize);

/// The loans of a card by their places, some of which are vacant.
pub(crate) struct LoanTable<'m> {
    loans: Vec<Option<Loan<'m>>>,
    /// By place, what was found last.
    found: Vec<StdCell<Found>>,
    /// Of whom that may be another thing by now.
    stale: LoanSet,
    /// Who may have work for a medium: since the last change nobody has said that there is none.
    workers: LoanSet,
    /// Slots of virtual machines.
    slots: LoanSet,
    /// By [`Asker`], who may have changed since that one has asked.
    changed: [LoanSet; Asker::COUNT],
}

/// Whoever looks now and then at those loans that may have changed since, and at no others.
#[derive(Clone, Copy)]
pub(crate) enum Asker {
    /// Shows what loans have come to in their gauges.
    Gauges,
    /// Knows which nodes have something of this one.
    Holders,
    /// Sends clients what they are owed.
    Edges,
}

impl Asker {
    const COUNT: usize = Self::Edges as usize + 1;
}

/// What is asked of a loan each turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    /// When it is to be looked at.
    pub(crate) deadline: Option<Instant>,
    /// Somebody awaits an answer.
    pub(crate) waits: bool,
}

/// When somebody is to be looked at, remembered from one question to the next.
#[derive(Clone, Copy, Default)]
pub(crate) enum Deadline {
    /// It may be another one than was found last.
    #[default]
    Stale,
    /// What was found still holds.
    Known(Option<Instant>),
}

/// Some of the places.
pub(crate) struct LoanSet([StdCell<u64>; WORDS]);

impl<'m> LoanTable<'m> {
    /// So many, without loans.
    pub(crate) fn vacant(count: usize) -> Self {
        let mut places = Self {
            loans: Vec::new(),
            found: Vec::new(),
            stale: LoanSet::default(),
            workers: LoanSet::default(),
            slots: LoanSet::default(),
            changed: Default::default(),
        };
        (0..count).for_each(|_| places.append_vacant());
        places
    }

    /// There is another place, behind the others, without a loan.
    pub(crate) fn append_vacant(&mut self) {
        self.loans.push(None);
        self.found.push(StdCell::default());
    }

    /// A place has this loan from now on.
    pub(crate) fn occupy(&mut self, place: usize, loan: Loan<'m>) {
        self.slots.set(place, loan.is_slot());
        self.loans[place] = Some(loan);
        self.note_change(place);
    }

    /// A place has no loan from now on.
    pub(crate) fn vacate(&mut self, place: usize) {
        self.loans[place] = None;
        self.slots.set(place, false);
        self.note_change(place);
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.loans.len()
    }

    /// The loan in a place, if there is one.
    pub(crate) fn get(&self, place: usize) -> Option<&Loan<'m>> {
        self.loans.get(place)?.as_ref()
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Loan<'m>> {
        if place < self.loans.len() {
            self.note_change(place);
        }
        self.loans.get_mut(place)?.as_mut()
    }

    /// The same for whoever asks it, and says with [`LoanTable::note_change`] if that has changed anything.
    pub(crate) fn peek_mut(&mut self, place: usize) -> Option<&mut Loan<'m>> {
        self.loans.get_mut(place)?.as_mut()
    }

    /// The loans.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Loan<'m>> {
        self.loans.iter().flatten()
    }

    /// The loans with their places.
    pub(crate) fn iter_with_places(&self) -> impl Iterator<Item = (usize, &Loan<'m>)> {
        self.loans.iter().enumerate().filter_map(|(place, loan)| Some((place, loan.as_ref()?)))
    }

    /// The same, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Loan<'m>)> {
        (0..self.loans.len()).for_each(|place| self.note_change(place));
        self.loans.iter_mut().enumerate().filter_map(|(place, loan)| Some((place, loan.as_mut()?)))
    }

    /// The places of slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        self.slots.iter()
    }

    /// What was found of a loan may be another thing by now, though it was not changed itself.
    pub(crate) fn note_stale(&self, place: usize) {
        self.stale.set(place, true);
        self.changed.iter().for_each(|changed| changed.set(place, true));
    }

    /// The same of all.
    pub(crate) fn note_all_stale(&self) {
        (0..self.loans.len()).for_each(|place| self.note_stale(place));
    }

    /// What there is of a loan, by `find` if it may have changed. `find` also says whether it stays so until the loan
    /// is changed.
    pub(crate) fn found(&self, place: usize, find: impl FnOnce() -> (Found, bool)) -> Found {
        if !self.stale.has(place) {
            return self.found[place].get();
        }
        let (found, is_steady) = find();
        self.stale.set(place, !is_steady);
        self.found[place].set(found);
        found
    }

    /// The places of which [`LoanTable::found`] would find anew.
    pub(crate) fn stale(&self) -> impl Iterator<Item = usize> + use<> {
        self.stale.iter()
    }

    /// What was found of all loans.
    pub(crate) fn all_found(&self) -> impl Iterator<Item = Found> {
        self.found.iter().map(StdCell::get)
    }

    /// Whether a loan may have work for a medium.
    pub(crate) fn may_work(&self, place: usize) -> bool {
        self.workers.has(place)
    }

    /// It has none, until it is changed.
    pub(crate) fn note_idle(&mut self, place: usize) {
        self.workers.set(place, false);
    }

    /// Who may have changed since this one has asked.
    pub(crate) fn take_changed(&self, asker: Asker) -> LoanSet {
        self.changed[asker as usize].take()
    }

    /// That one knows of a loan what there is.
    pub(crate) fn note_known(&mut self, asker: Asker, place: usize) {
        self.changed[asker as usize].set(place, false);
    }

    /// A loan was changed, or may have been.
    pub(crate) fn note_change(&mut self, place: usize) {
        self.note_stale(place);
        self.workers.set(place, true);
    }
}

/// For whoever knows that there is a loan: in the middle of its step.
impl<'m> Index<usize> for LoanTable<'m> {
    type Output = Loan<'m>;

    fn index(&self, place: usize) -> &Loan<'m> {
        self.get(place).expect("only a place with a loan takes steps")
    }
}

impl IndexMut<usize> for LoanTable<'_> {
    fn index_mut(&mut self, place: usize) -> &mut Self::Output {
        self.get_mut(place).expect("only a place with a loan takes steps")
    }
}

impl Default for LoanSet {
    fn default() -> Self {
        Self([const { StdCell::new(0) }; WORDS])
    }
}

impl LoanSet {
    /// Whether it is one of them.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.0[place / 64].get() >> (place % 64) & 1 != 0
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.get() == 0)
    }

    /// A place is one of them from now on, or none.
    pub(crate) fn set(&self, place: usize, is_in: bool) {
        let (bit, word) = (1 << (place % 64), &self.0[place / 64]);
        word.set(if is_in { word.get() | bit } else { word.get() & !bit });
    }

    /// They, in ascending order, as they are now.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let words: [u64; WORDS] = core::array::from_fn(|at| self.0[at].get());
        words.into_iter().enumerate().filter(|(_, word)| *word != 0).flat_map(|(at, mut word)| {
            core::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
                word &= word - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// They; none is one of them any more.
    fn take(&self) -> Self {
        Self(core::array::from_fn(|at| StdCell::new(self.0[at].take())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it_in_order() {
        let set = LoanSet::default();
        for place in [0, 63, 64, 200, MAX_LOANS - 1] {
            set.set(place, true);
            assert!(set.has(place) && !set.has(place ^ 1));
        }
        set.set(64, false);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 200, MAX_LOANS - 1]);
    }

    #[test]
    fn what_was_found_holds_until_it_is_stale() {
        let mut places = LoanTable::vacant(70);
        let find = |waits: bool, is_steady| move || (Found { deadline: None, waits }, is_steady);
        places.vacate(69);
        assert!(places.found(69, find(true, false)).waits, "found, and not to be relied on");
        assert!(!places.found(69, find(false, true)).waits);
        assert!(!places.found(69, find(true, true)).waits, "nobody has changed it");
        places.note_stale(69);
        assert_eq!(places.stale().collect::<Vec<_>>(), [69]);
        assert!(places.found(69, find(true, true)).waits);
        assert!(places.all_found().any(|found| found.waits));
        assert!(places.may_work(69));
        places.note_idle(69);
        assert!(!places.may_work(69));
        assert!(places.get_mut(69).is_none());
        assert!(places.may_work(69), "whoever had it could have changed it");
    }

    #[test]
    fn each_who_asks_hears_of_a_change_once() {
        let mut places = LoanTable::vacant(70);
        let changed = |places: &LoanTable<'_>, asker| places.take_changed(asker).iter().collect::<Vec<_>>();
        places.vacate(69);
        places.note_stale(3);
        assert_eq!(changed(&places, Asker::Gauges), [3, 69]);
        assert!(places.take_changed(Asker::Gauges).is_empty());
        assert_eq!(changed(&places, Asker::Edges), [3, 69], "another one has not asked");
        places.vacate(4);
        places.note_known(Asker::Gauges, 4);
        assert!(places.take_changed(Asker::Gauges).is_empty(), "it was the one who has changed it");
        assert_eq!(changed(&places, Asker::Edges), [4]);
    }
}
