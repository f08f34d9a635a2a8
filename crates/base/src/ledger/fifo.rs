use zerocopy::FromBytes;

use super::{Cell, Journal, Layout, Plain};

/// A bounded queue in the ledger. All zeroes is an empty one. `N` is a power of two.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct Fifo<T, const N: usize> {
    head: Cell<u32>,
    tail: Cell<u32>,
    items: [Cell<T>; N],
}

impl<T: Plain, const N: usize> Fifo<T, N> {
    /// Entries now.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.get().wrapping_sub(self.head.get()) as usize
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.get() == self.tail.get()
    }

    /// How many entries can still be pushed.
    #[inline]
    pub fn room(&self) -> usize {
        N - self.len()
    }

    /// Appends `item`.
    ///
    /// # Panics
    /// When the queue is full: callers ask for `room` first.
    #[inline]
    pub fn push(&self, journal: Journal<'_>, item: T) {
        assert!(self.room() > 0, "a bounded queue is asked for room before a push");
        let tail = self.tail.get();
        self.items[Self::index(tail)].set(journal, item);
        self.tail.set(journal, tail.wrapping_add(1));
    }

    /// The oldest entry.
    #[inline]
    pub fn front(&self) -> Option<T> {
        self.get(0)
    }

    /// The entry `position` places behind the oldest.
    #[inline]
    pub fn get(&self, position: usize) -> Option<T> {
        (position < self.len())
            .then(|| self.items[Self::index(self.head.get().wrapping_add(position as u32))].get())
    }

    /// Removes the oldest entry.
    #[inline]
    pub fn pop(&self, journal: Journal<'_>) -> Option<T> {
        let item = self.front()?;
        self.head.update(journal, |head| head.wrapping_add(1));
        Some(item)
    }

    /// Removes everything.
    pub fn clear(&self, journal: Journal<'_>) {
        self.head.set(journal, self.tail.get());
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    #[inline]
    fn index(position: u32) -> usize {
        const { assert!(N.is_power_of_two()) };
        position as usize & (N - 1)
    }
}
