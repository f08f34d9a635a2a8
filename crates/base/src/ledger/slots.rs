use zerocopy::FromBytes;

use super::{Cell, Journal};
use crate::rules::Rule;

/// The storage of a [`Slots`] allocator for `64 * WORDS` slots. All zeroes: everything is free.
#[derive(FromBytes)]
#[repr(C)]
pub struct SlotCells<const WORDS: usize> {
    used: [Cell<u64>; WORDS],
    /// Slots freed in step `freed_step`, which wait for its commit.
    freed: [Cell<u64>; WORDS],
    freed_step: Cell<u64>,
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
        let fresh = self.cells.freed_step.get() != self.journal.step();
        for (word, used) in self.cells.used.iter().enumerate() {
            let taken = used.get() | if fresh { 0 } else { self.cells.freed[word].get() };
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
        let fresh = self.cells.freed_step.get() != self.journal.step();
        let words = self.cells.used.iter().zip(&self.cells.freed);
        words
            .map(|(used, freed)| (used.get() | if fresh { 0 } else { freed.get() }).count_zeros() as usize)
            .sum()
    }

    /// Gives `slot` back, for use after the commit.
    #[inline]
    pub fn free(&self, slot: u16) {
        let (word, bit) = (slot as usize / 64, slot % 64);
        assert!(self.is_used(slot), "a slot is freed once");
        self.cells.used[word].update(self.journal, |used| used & !(1 << bit));
        if !self.journal.rule(Rule::ReuseAfterCommit) {
            return;
        }
        if self.cells.freed_step.get() != self.journal.step() {
            for freed in &self.cells.freed {
                freed.set(self.journal, 0);
            }
            self.cells.freed_step.set(self.journal, self.journal.step());
        }
        self.cells.freed[word].update(self.journal, |freed| freed | 1 << bit);
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
}
