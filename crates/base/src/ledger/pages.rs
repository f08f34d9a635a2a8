use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Bytes, Cell, Journal, Layout, SlotCells, Slots, Span};

/// Bytes of a page: the unit of grants, of PRP entries and of payload buffers.
pub const PAGE_SIZE: usize = 4096;
/// Words of the allocation map of a pool.
const WORDS: usize = 128;
/// Pages of a pool.
const PAGES: usize = WORDS * 64;

/// Which page of a pool.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Layout,
)]
#[repr(transparent)]
pub struct PageIndex(pub u16);

#[derive(FromBytes, Layout)]
#[repr(C, align(4096))]
struct Page(Bytes<PAGE_SIZE>);

/// The storage of a pool of pages with reference counts. All zeroes: everything is free.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct PageCells {
    pages: [Page; PAGES],
    slots: SlotCells<WORDS>,
    references: [Cell<u16>; PAGES],
}

impl PageCells {
    /// Makes all pages free, as [`Journal::clear`] does. Their content stays.
    pub fn clear(&self, journal: Journal<'_>) {
        journal.clear(&self.slots);
        journal.clear(&self.references);
    }
}

/// A loan's pool of payload pages. A page lives as long as anyone has a reference: the command it belongs to, each
/// TLP in a replay buffer, a reply that is being sent.
#[derive(Clone, Copy)]
pub struct Pages<'m> {
    cells: &'m PageCells,
    slots: Slots<'m, WORDS>,
    journal: Journal<'m>,
}

impl<'m> Pages<'m> {
    /// Pages of a pool.
    pub const CAPACITY: usize = PAGES;

    /// The pool over `cells`.
    pub fn new(cells: &'m PageCells, journal: Journal<'m>) -> Self {
        Self { cells, slots: Slots::new(&cells.slots, journal), journal }
    }

    /// Takes a free page with one reference; its content is arbitrary.
    #[inline]
    pub fn alloc(&self) -> Option<PageIndex> {
        let page = self.slots.alloc()?;
        self.cells.references[page as usize].set(self.journal, 1);
        Some(PageIndex(page))
    }

    /// Adds a reference.
    #[inline]
    pub fn retain(&self, page: PageIndex) {
        let cell = &self.cells.references[page.0 as usize];
        assert!(cell.get() > 0, "only a live page can be shared");
        cell.update(self.journal, |count| {
            count.checked_add(1).expect("references are bounded by the slots that hold them")
        });
    }

    /// Gives a reference back; the last one frees the page.
    #[inline]
    pub fn release(&self, page: PageIndex) {
        let count = self.cells.references[page.0 as usize]
            .update(self.journal, |count| count.checked_sub(1).expect("a reference is given back once"));
        if count == 0 {
            self.slots.free(page.0);
        }
    }

    /// Copies `bytes` to `offset` of a page.
    #[inline]
    pub fn write(&self, page: PageIndex, offset: usize, bytes: &[u8]) {
        self.cells.pages[page.0 as usize].0.write(self.journal, offset, bytes);
    }

    /// Copies from `offset` of a page.
    #[inline]
    pub fn read(&self, page: PageIndex, offset: usize, out: &mut [u8]) {
        self.cells.pages[page.0 as usize].0.read(offset, out);
    }

    /// `len` bytes from `offset` of a page on, for system calls and media.
    #[inline]
    pub fn span(&self, page: PageIndex, offset: usize, len: usize) -> Span<'m> {
        self.cells.pages[page.0 as usize].0.span(offset, len)
    }

    /// The whole pool as one stretch: page `i` lies `i * 4096` behind its start.
    pub fn memory(&self) -> Span<'m> {
        let pages = self.cells.pages.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the pages lie behind each other, a page each without padding, consist of nothing but `Bytes`, and
        // live for 'm.
        unsafe { Span::new(pages, PAGES * PAGE_SIZE) }
    }

    /// References on a page; zero when it is free or not in the pool.
    pub fn references(&self, page: PageIndex) -> u16 {
        self.cells.references.get(page.0 as usize).map_or(0, Cell::get)
    }

    /// Pages that are taken.
    pub fn used(&self) -> usize {
        self.slots.used()
    }

    /// Whether at least `count` pages are free, some of them perhaps only after the commit: cheaper than counting all.
    #[inline]
    pub fn has_free(&self, count: usize) -> bool {
        self.slots.has_free(count)
    }

    /// Pages that are free, some of them only after the commit.
    pub fn free(&self) -> usize {
        PAGES - self.used()
    }
}
