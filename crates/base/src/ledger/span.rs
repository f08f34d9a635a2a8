use core::cell::UnsafeCell;
use core::marker::PhantomData;

use super::Journal;

/// A stretch of payload memory in the ledger, as system calls and media see it.
#[derive(Clone, Copy, Debug)]
pub struct Span<'m> {
    start: *mut u8,
    len: usize,
    memory: PhantomData<&'m UnsafeCell<u8>>,
}

impl<'m> Span<'m> {
    /// # Safety
    /// `start` points to `len` bytes of payload memory of one ledger that lives for `'m`.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// A span of nothing.
    pub fn empty() -> Self {
        Self { start: core::ptr::NonNull::dangling().as_ptr(), len: 0, memory: PhantomData }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it lies, for the system calls of the `io` crate.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// The part from `offset`, at most `len` bytes long; empty when `offset` is behind the end.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        // SAFETY: the offset is inside of this span, or one behind its end with no bytes left.
        let start = unsafe { self.start.add(offset) };
        Self { start, len: len.min(self.len - offset), memory: PhantomData }
    }

    /// Copies the whole span to `out`, which has its length.
    pub fn read(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "a span is read as a whole");
        // SAFETY: `new` was promised valid memory; an exclusive borrow cannot be ledger memory.
        unsafe { core::ptr::copy_nonoverlapping(self.start, out.as_mut_ptr(), self.len) };
    }

    /// Copies `bytes`, which have the span's length, to it. Not logged.
    pub fn write(&self, journal: Journal<'_>, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len, "a span is written as a whole");
        journal.fill(self.start, bytes);
    }
}
