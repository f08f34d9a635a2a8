//! Sets of small numbers in the ledger.

use base::ledger::{Cell, Journal, Layout};
use zerocopy::FromBytes;

/// Numbers below 64 times `WORDS`. All zeroes: none.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct NumberSet<const WORDS: usize> {
    words: [Cell<u64>; WORDS],
    count: Cell<u64>,
}

impl<const WORDS: usize> NumberSet<WORDS> {
    pub(super) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    pub(super) fn insert(&self, journal: Journal<'_>, number: u16) {
        let (word, bit) = (&self.words[usize::from(number) / 64], 1 << (number % 64));
        if word.get() & bit == 0 {
            word.update(journal, |word| word | bit);
            self.count.update(journal, |count| count + 1);
        }
    }

    /// Removes the lowest number.
    pub(super) fn take(&self, journal: Journal<'_>) -> Option<u16> {
        if self.is_empty() {
            return None;
        }
        let (index, word) = self.words.iter().enumerate().find(|(_, word)| word.get() != 0)?;
        let bit = word.get().trailing_zeros();
        word.update(journal, |word| word & !(1 << bit));
        self.count.update(journal, |count| count.saturating_sub(1));
        Some((index * 64) as u16 + bit as u16)
    }
}
