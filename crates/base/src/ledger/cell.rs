use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Journal;

/// What a [`Cell`] may hold: values without padding for which any bytes are valid, so that nothing found in the ledger
/// can be undefined.
pub trait Plain: Copy + PartialEq + FromBytes + IntoBytes + Immutable {}
impl<T: Copy + PartialEq + FromBytes + IntoBytes + Immutable> Plain for T {}

/// One value in the ledger. Changes are taken back by a roll-back.
#[derive(FromBytes)]
#[repr(transparent)]
pub struct Cell<T>(UnsafeCell<T>);

impl<T: Plain> Cell<T> {
    /// The value.
    #[inline]
    pub fn get(&self) -> T {
        // SAFETY: the ledger is changed by this thread only, and never while a reference to its inside exists.
        unsafe { core::ptr::read_volatile(self.0.get()) }
    }

    /// Changes a value that no card has yet, and that no step takes back.
    pub(super) fn put(&self, value: T) {
        // SAFETY: as for `get`; a cell lies in memory that may be written.
        unsafe { core::ptr::write_volatile(self.0.get(), value) };
    }

    /// Changes the value in this step.
    #[inline]
    pub fn set(&self, journal: Journal<'_>, value: T) {
        if self.get() != value {
            journal.change(self.0.get(), value);
        }
    }

    /// Changes the value by `change` and returns the new one.
    #[inline]
    pub fn update(&self, journal: Journal<'_>, change: impl FnOnce(T) -> T) -> T {
        let value = change(self.get());
        self.set(journal, value);
        value
    }
}

impl<T: Plain + core::fmt::Debug> core::fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.get().fmt(f)
    }
}

/// A statistic: outside the undo log, readable by the agent at any time.
#[derive(FromBytes, Debug)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        // One thread writes, so a load and a store suffice.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value: for gauges.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
