use zerocopy::FromBytes;

use super::{Cell, Journal, Layout};
use crate::rules::Rule;

/// The storage of a [`Slots`] allocator for `64 * WORDS` slots. All zeroes: everything is free.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct SlotCells<const WORDS: usize> {
    used: [Cell<u64>; WORDS],
    /// Slots of each word that were freed in the step of the same place of `freed_step`, and wait for its commit.
    freed: [Cell<u64>; WORDS],
    freed_step: [Cell<u64>; WORDS],
    /// All slots of the words before this one are taken.
    low: Cell<u64>,
}

/// An allocator of slot numbers, lowest first, that never hands out what this very step has freed: until the commit a
/// roll-back would bring the old owner back.
#[derive(Clone, Copy)]
pub struct Slots<'m, const WORDS: usize> {
    cells: &'m SlotCells<WORDS>,
    journal: Journal<'m>,
}

impl<'m, const WORDS: usize> Slots<'m, WORDS> {
    /// The allocator over `cells`.
    pub fn new(cells: &'m SlotCells<WORDS>, journal: Journal<'m>) -> Self {
        Self { cells, journal }
    }

    /// Takes a free slot, or `None` when none can be had in this step.
    #[inline]
    pub fn alloc(&self) -> Option<u16> {
        let (mut full, step) = (true, self.journal.step());
        for word in self.low()..WORDS {
            let used = &self.cells.used[word];
            full &= used.get() == u64::MAX;
            if full {
                self.cells.low.set(self.journal, word as u64 + 1);
            }
            let taken = used.get() | self.freed(word, step);
            if taken != u64::MAX {
                let bit = taken.trailing_ones();
                used.update(self.journal, |used| used | 1 << bit);
                return Some((word * 64) as u16 + bit as u16);
            }
        }
        None
    }

    /// How often `alloc` would succeed in this step.
    #[inline]
    pub fn available(&self) -> usize {
        let (words, step) = (self.low()..WORDS, self.journal.step());
        words.map(|word| (self.cells.used[word].get() | self.freed(word, step)).count_zeros() as usize).sum()
    }

    /// Whether `alloc` would succeed in this step.
    #[inline]
    pub fn can_alloc(&self) -> bool {
        let step = self.journal.step();
        (self.low()..WORDS).any(|word| self.cells.used[word].get() | self.freed(word, step) != u64::MAX)
    }

    /// Whether at least `count` slots are free, some of them perhaps only after the commit. Looks no further than it
    /// has to.
    #[inline]
    pub fn has_free(&self, count: usize) -> bool {
        let mut found = 0;
        let mut words = self.cells.used[self.low()..].iter();
        while found < count {
            let Some(word) = words.next() else { return false };
            found += word.get().count_zeros() as usize;
        }
        true
    }

    /// Gives `slot` back, for use after the commit.
    #[inline]
    pub fn free(&self, slot: u16) {
        let (word, bit) = (slot as usize / 64, slot % 64);
        assert!(self.is_used(slot), "a slot is freed once");
        self.cells.used[word].update(self.journal, |used| used & !(1 << bit));
        if word < self.low() {
            self.cells.low.set(self.journal, word as u64);
        }
        if self.journal.rule(Rule::ReuseAfterCommit) {
            let step = self.journal.step();
            self.cells.freed[word].set(self.journal, self.freed(word, step) | 1 << bit);
            self.cells.freed_step[word].set(self.journal, step);
        }
    }

    /// Whether `slot` is taken.
    #[inline]
    pub fn is_used(&self, slot: u16) -> bool {
        self.cells.used[slot as usize / 64].get() & (1 << (slot % 64)) != 0
    }

    /// How many slots are taken.
    pub fn used(&self) -> usize {
        self.cells.used.iter().map(|word| word.get().count_ones() as usize).sum()
    }

    /// How many slots there are.
    pub const fn capacity(&self) -> usize {
        WORDS * 64
    }

    /// The taken slots, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> + use<'m, WORDS> {
        let this = *self;
        (0..this.capacity() as u16).filter(move |slot| this.is_used(*slot))
    }

    /// The first word that may have a free slot.
    #[inline]
    fn low(&self) -> usize {
        (self.cells.low.get() as usize).min(WORDS)
    }

    /// The slots of a word that `step`, the present one, has freed.
    #[inline]
    fn freed(&self, word: usize, step: u64) -> u64 {
        if self.cells.freed_step[word].get() == step { self.cells.freed[word].get() } else { 0 }
    }
}
