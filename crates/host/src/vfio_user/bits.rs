//! Sets of small numbers in the ledger, with their size.

use base::ledger::Cell;

use super::Session;

impl Session<'_> {
    pub(super) fn set_bit(&self, words: &[Cell<u64>], count: &Cell<u32>, number: u16) {
        let (word, bit) = (&words[usize::from(number) / 64], 1 << (number % 64));
        if word.get() & bit == 0 {
            word.update(self.journal, |word| word | bit);
            count.update(self.journal, |count| count + 1);
        }
    }

    /// Removes the lowest number.
    pub(super) fn take_bit(&self, words: &[Cell<u64>], count: &Cell<u32>) -> Option<u16> {
        if count.get() == 0 {
            return None;
        }
        let (index, word) = words.iter().enumerate().find(|(_, word)| word.get() != 0)?;
        let bit = word.get().trailing_zeros();
        word.update(self.journal, |word| word & !(1 << bit));
        count.update(self.journal, |count| count.saturating_sub(1));
        Some((index * 64) as u16 + bit as u16)
    }
}
