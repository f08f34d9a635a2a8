use core::cell::UnsafeCell;

use zerocopy::FromBytes;

use super::{Journal, Span};

/// `N` bytes of payload in the ledger: not logged, so written only where nothing committed lives.
#[derive(FromBytes)]
#[repr(transparent)]
pub struct Bytes<const N: usize>(UnsafeCell<[u8; N]>);

impl<const N: usize> Bytes<N> {
    /// Copies `bytes` to `offset`; both must fit.
    #[inline]
    pub fn write(&self, journal: Journal<'_>, offset: usize, bytes: &[u8]) {
        assert!(offset <= N && bytes.len() <= N - offset, "a payload ends inside of its buffer");
        // SAFETY: the offset is inside of this object.
        journal.fill(unsafe { self.as_ptr().add(offset) }, bytes);
    }

    /// Copies from `offset` to the whole of `out`; both must fit.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset <= N && out.len() <= N - offset, "a payload ends inside of its buffer");
        // SAFETY: in range; `out` is an exclusive borrow and so cannot be ledger memory.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
    }

    /// `len` bytes from `offset` on; both must fit.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Span<'_> {
        assert!(offset <= N && len <= N - offset, "a payload ends inside of its buffer");
        // SAFETY: in range; a `Bytes` is ledger memory and borrowed for the span's life.
        unsafe { Span::new(self.as_ptr().add(offset), len) }
    }

    #[inline]
    fn as_ptr(&self) -> *mut u8 {
        self.0.get().cast()
    }
}
