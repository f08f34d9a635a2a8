use core::alloc::Layout;
use core::cell::{RefCell, UnsafeCell};
use core::marker::PhantomData;
use core::ptr::NonNull;

use zerocopy::FromBytes;

use super::journal::{self, JournalArea};
use super::layout::LayoutHash;
use super::{Hook, Journal, PAGE_SIZE};
use crate::rules::RuleSet;

/// The whole of a ledger: the undo log, then the cells of whoever composes it.
#[derive(Clone, Copy)]
pub struct Ledger<'m, R> {
    /// The undo log.
    pub journal: Journal<'m>,
    /// The cells.
    pub root: &'m R,
}

/// How a root lies in memory: behind the undo log, at the next page.
pub struct LedgerRoot<R>(PhantomData<R>);

impl<R> LedgerRoot<R> {
    const OFFSET: usize = size_of::<JournalArea>().next_multiple_of(PAGE_SIZE);
    /// Bytes of a ledger with root `R`; what lies behind are its regions, if it has any.
    pub const SIZE: usize = (Self::OFFSET + size_of::<R>()).next_multiple_of(PAGE_SIZE);
}

impl<R: super::Layout> LedgerRoot<R> {
    /// What stands for the layout of such a ledger up to its regions.
    pub const LAYOUT: LayoutHash = layout(journal::AREA, Self::OFFSET, R::LAYOUT);
}

/// Of a ledger that begins so, and has such a root there.
pub(super) const fn layout(area: LayoutHash, offset: usize, root: LayoutHash) -> LayoutHash {
    area.number(offset as u64).number(root.0)
}

/// Memory for a ledger: page aligned, zeroed when new, and mapped for `'m`.
#[derive(Clone, Copy)]
pub struct RawMemory<'m> {
    base: NonNull<u8>,
    len: usize,
    /// How far it can grow where it lies.
    reach: usize,
    memory: PhantomData<&'m UnsafeCell<u8>>,
}

impl<'m> RawMemory<'m> {
    /// # Safety
    /// `base` points to `len` initialised bytes, page aligned, readable and writable for `'m`, and no other thread of
    /// this process touches them, but for payload that it was given for a while and that this one leaves alone
    /// meanwhile; another process only reads them or sets [`super::Counter`]s.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(PAGE_SIZE), "ledger memory is page aligned");
        Self { base, len, reach: len, memory: PhantomData }
    }

    /// Memory that may grow where it lies, to `reach` bytes: nothing has to be found again when it does.
    ///
    /// # Safety
    /// As of [`RawMemory::new`]; and the addresses up to `reach` are kept free for it for `'m`.
    pub unsafe fn growing(base: NonNull<u8>, len: usize, reach: usize) -> Self {
        assert!(len <= reach, "a part is no larger than the whole");
        // SAFETY: as promised.
        Self { reach, ..unsafe { Self::new(base, len) } }
    }

    /// The same memory after it has grown to `len` bytes, or to as many as it can.
    ///
    /// # Safety
    /// So many bytes are as [`RawMemory::new`] wants them by now.
    pub unsafe fn grown(self, len: usize) -> Self {
        Self { len: len.clamp(self.len, self.reach), ..self }
    }

    /// Bytes of the memory.
    #[expect(clippy::len_without_is_empty, reason = "a ledger is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first `len` bytes of it, as if there were no more, for tests.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn first(&self, len: usize) -> Self {
        assert!(len <= self.len, "a part is no larger than the whole");
        Self { len, reach: len, ..*self }
    }

    /// The first `len` bytes of it, which may grow to the whole, for tests.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn growing_first(&self, len: usize) -> Self {
        Self { reach: self.reach, ..self.first(len) }
    }

    /// The cells that begin `offset` bytes into the memory, which hold whatever is there; `None` if they would not lie
    /// inside of it or not be aligned.
    pub(super) fn cells<C: FromBytes>(&self, offset: usize) -> Option<&'m C> {
        let fits = offset <= self.len && size_of::<C>() <= self.len - offset;
        if !fits || !offset.is_multiple_of(align_of::<C>()) || align_of::<C>() > PAGE_SIZE {
            return None;
        }
        // SAFETY: in range of memory that `new` was promised for `'m`, and aligned, since that is page aligned;
        // `C: FromBytes`, so any bytes are valid; cells change only through themselves.
        Some(unsafe { self.base.add(offset).cast::<C>().as_ref() })
    }

    /// Copies the bytes at `offset` to `out`, for checkers: logged or not, whatever lies there.
    ///
    /// # Panics
    /// If they are not inside of the memory.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset <= self.len && out.len() <= self.len - offset, "a checker reads inside of the ledger");
        // SAFETY: in range of memory that `new` was promised; `out` is an exclusive borrow and so cannot be ledger
        // memory.
        unsafe {
            core::ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), out.as_mut_ptr(), out.len());
        };
    }

    /// The ledger in this memory. Any bytes are a valid root, but only zeroes or what a card left make sense.
    pub fn ledger<R: FromBytes>(self, hook: Option<&'m dyn Hook>, rules: RuleSet) -> Ledger<'m, R> {
        assert!(self.len >= LedgerRoot::<R>::SIZE, "the memory holds the whole root of the ledger");
        // SAFETY: `new` was promised valid memory for `'m`; the length was checked. What lies beyond it has no cells
        // yet.
        let journal = unsafe { Journal::new(self.base.as_ptr(), self.reach, hook, rules) };
        let root = self.cells(LedgerRoot::<R>::OFFSET).expect("checked above, and the offset is a page's");
        Ledger { journal, root }
    }
}

/// Ledger memory on the heap, for the simulator and for tests: lives as long as the arena.
#[derive(Default)]
pub struct Arena {
    blocks: RefCell<Vec<(NonNull<u8>, Layout)>>,
}

impl Arena {
    /// Zeroed memory for a ledger with root `R` and nothing else.
    pub fn zeroed<R>(&self) -> RawMemory<'_> {
        self.zeroed_bytes(LedgerRoot::<R>::SIZE)
    }

    /// Zeroed memory of `len` bytes, rounded up to whole pages.
    pub fn zeroed_bytes(&self, len: usize) -> RawMemory<'_> {
        let len = len.max(1).next_multiple_of(PAGE_SIZE);
        // The allocator clears memory of a greater alignment by writing to it, which would touch all of a sparse
        // ledger.
        let layout = Layout::from_size_align(len + PAGE_SIZE, align_of::<u64>())
            .expect("a ledger is far smaller than the address space");
        // SAFETY: the layout has a size above zero, as it is rounded up from 1 at least.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { std::alloc::handle_alloc_error(layout) };
        self.blocks.borrow_mut().push((start, layout));
        // SAFETY: less than a page is skipped, and a page more than the ledger was allocated.
        let base = unsafe { start.add(start.align_offset(PAGE_SIZE)) };
        // SAFETY: freed only when the arena goes, which outlives the returned lifetime; arenas are not shared by
        // threads.
        unsafe { RawMemory::new(base, len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (base, layout) in self.blocks.get_mut().drain(..) {
            // SAFETY: allocated above with this layout, and freed once.
            unsafe { std::alloc::dealloc(base.as_ptr(), layout) };
        }
    }
}
