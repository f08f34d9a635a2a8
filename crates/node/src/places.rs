use core::ops::{Index, IndexMut};

use crate::loan::Loan;

/// The loans of a card by their places, some of which are vacant.
pub(crate) struct Places<'m>(Vec<Option<Loan<'m>>>);

impl<'m> Places<'m> {
    /// So many, without loans.
    pub(crate) fn vacant(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// There is another place, behind the others, without a loan.
    pub(crate) fn append_vacant(&mut self) {
        self.0.push(None);
    }

    /// A place has this loan from now on.
    pub(crate) fn occupy(&mut self, place: usize, loan: Loan<'m>) {
        self.0[place] = Some(loan);
    }

    /// A place has no loan from now on.
    pub(crate) fn vacate(&mut self, place: usize) {
        self.0[place] = None;
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The loan in a place, if there is one.
    pub(crate) fn get(&self, place: usize) -> Option<&Loan<'m>> {
        self.0.get(place)?.as_ref()
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Loan<'m>> {
        self.0.get_mut(place)?.as_mut()
    }

    /// The loans.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Loan<'m>> {
        self.0.iter().flatten()
    }

    /// The loans with their places.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Loan<'m>)> {
        self.0.iter_mut().enumerate().filter_map(|(place, loan)| Some((place, loan.as_mut()?)))
    }
}

/// For whoever knows that there is a loan: in the middle of its step.
impl<'m> Index<usize> for Places<'m> {
    type Output = Loan<'m>;

    fn index(&self, place: usize) -> &Loan<'m> {
        self.get(place).expect("only a place with a loan takes steps")
    }
}

impl IndexMut<usize> for Places<'_> {
    fn index_mut(&mut self, place: usize) -> &mut Self::Output {
        self.get_mut(place).expect("only a place with a loan takes steps")
    }
}
