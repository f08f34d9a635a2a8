use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

use zerocopy::FromBytes;

use super::header::{Header, LedgerError};
use super::{Layout, LayoutHash};
use crate::rules::{Rule, RuleSet};

/// Words that a step may have changed when it takes up more work. No single piece of work (a TLP, a message of a
/// client, a timer) changes more than so many, nor does what follows at the end of a step.
pub const STEP_ENTRIES: usize = 1 << 16;
/// Entries of the undo log: the most words one step may change. The last quarter is never used, as far as anybody
/// knows: debug builds make a finding of it.
pub const JOURNAL_ENTRIES: usize = 4 * STEP_ENTRIES;

/// Called before every store to the ledger; the simulator kills cards here, and checks the undo log against its own.
pub trait Hook {
    /// The card is about to store.
    fn before_store(&self);

    /// A logged value is about to be changed: `old` (at most 8 bytes) lies at `offset` of the ledger.
    fn before_change(&self, _offset: usize, _old: &[u8]) {}

    /// The step has been committed: its changes are permanent.
    fn committed(&self) {}

    /// A roll-back has come to its end.
    fn rolled_back(&self) {}
}

/// The undo log as it lies at the start of the ledger, behind the header. All zeroes is an empty log.
#[derive(Layout)]
#[repr(C)]
pub(super) struct JournalArea {
    header: Header,
    /// Entries that a roll-back would restore.
    count: UnsafeCell<u64>,
    /// Steps committed since the ledger was made.
    commits: UnsafeCell<u64>,
    entries: [UnsafeCell<Entry>; JOURNAL_ENTRIES],
}

/// One saved word: so many bytes at an offset of the ledger were `old`.
#[derive(Clone, Copy, Layout)]
#[repr(C)]
struct Entry {
    /// The offset, above [`LEN_BITS`] bits for the length: a ledger may be larger than 4 GiB.
    place: u64,
    old: u64,
}

/// Bytes that are cleared without a word to the hook: a loan has hundreds of thousands.
const CLEARED_AT_ONCE: usize = 4096;

/// Bits of the length of a saved word, which is 1 to 8.
const LEN_BITS: u32 = 4;

/// What stands for the layout of a ledger's beginning: of header and undo log, and what an entry of that means.
pub(super) const AREA: LayoutHash = JournalArea::LAYOUT.number(LEN_BITS as u64);

/// A place in the undo log of a step.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    step: u64,
    count: usize,
}

/// A handle to the undo log of one ledger; every change of a [`super::Cell`] goes through one.
///
/// Copies are the same log. A card is one thread, and so is everything that holds a handle.
#[derive(Clone, Copy)]
pub struct Journal<'m> {
    base: *mut u8,
    len: usize,
    area: *const JournalArea,
    hook: Option<&'m dyn Hook>,
    rules: RuleSet,
    memory: PhantomData<&'m UnsafeCell<u8>>,
}

impl<'m> Journal<'m> {
    /// # Safety
    /// `base` points to `len` bytes that live and stay mapped for `'m`, are aligned to a page, begin with a
    /// `JournalArea` and are changed by no other thread while a handle exists.
    pub(super) unsafe fn new(base: *mut u8, len: usize, hook: Option<&'m dyn Hook>, rules: RuleSet) -> Self {
        assert!(len >= size_of::<JournalArea>(), "a ledger begins with its undo log");
        assert!(len.leading_zeros() >= LEN_BITS, "an offset in the undo log leaves room for a length");
        Self { base, len, area: base.cast(), hook, rules, memory: PhantomData }
    }

    /// Makes every store since the last commit permanent, with one store.
    #[inline]
    pub fn commit(&self) {
        if self.count() != 0 {
            self.store(self.area().count.get(), 0);
        }
        if let Some(hook) = self.hook {
            hook.committed();
        }
        self.store(self.area().commits.get(), self.step() + 1);
    }

    /// Takes back everything since the last commit and returns how many words that were. Idempotent: a roll-back that
    /// is killed is run again from its start.
    ///
    /// # Errors
    /// The log is none that a card can have left: nothing is restored.
    pub fn roll_back(&self) -> Result<usize, LedgerError> {
        self.roll_back_within(self.len)
    }

    /// The same of a log that another card has left in a ledger of so many bytes.
    ///
    /// # Errors
    /// As of [`Journal::roll_back`].
    pub fn roll_back_within(&self, bytes: usize) -> Result<usize, LedgerError> {
        let count = usize::try_from(self.count()).ok().filter(|count| *count <= JOURNAL_ENTRIES);
        let count = count.ok_or(LedgerError::Corrupt)?;
        for index in 0..count {
            let (offset, len, _) = self.saved(index)?;
            if offset.checked_add(len).is_none_or(|end| end > bytes) {
                return Err(LedgerError::Corrupt);
            }
        }
        for index in (0..count).rev() {
            let (offset, len, old) = self.saved(index)?;
            self.before_store();
            // SAFETY: `saved` has checked that it lies inside the ledger, which nothing else borrows as plain memory.
            unsafe { ptr::copy_nonoverlapping((&raw const old).cast(), self.base.add(offset), len) };
        }
        self.store(self.area().count.get(), 0);
        if let Some(hook) = self.hook {
            hook.rolled_back();
        }
        Ok(count)
    }

    /// Where the undo log stands, for [`Journal::roll_back_to`].
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark { step: self.step(), count: self.pending() }
    }

    /// Takes back what was changed since `mark`, or since the last commit if there was one in between; what came before
    /// stands. For a part of a step that has failed while the rest goes on.
    ///
    /// # Panics
    /// If somebody else writes the undo log.
    pub fn roll_back_to(&self, mark: Mark) {
        let (first, count) = (if mark.step == self.step() { mark.count } else { 0 }, self.pending());
        for index in (first..count).rev() {
            let (offset, len, old) = self.saved(index).expect("this card has written the undo log");
            self.before_store();
            // SAFETY: `saved` has checked that it lies inside the ledger, which nothing else borrows as plain memory.
            unsafe { ptr::copy_nonoverlapping((&raw const old).cast(), self.base.add(offset), len) };
            // One by one: a card that dies in between has restored what it no longer lists.
            self.store(self.area().count.get(), index as u64);
        }
    }

    /// Offset, length and value of a saved word, which lies behind the log.
    fn saved(&self, index: usize) -> Result<(usize, usize, u64), LedgerError> {
        // SAFETY: the entries are initialised memory of the ledger (any bytes are an `Entry`).
        let entry = unsafe { ptr::read_volatile(self.area().entries[index].get()) };
        let (offset, len) = ((entry.place >> LEN_BITS) as usize, entry.place as usize % (1 << LEN_BITS));
        let is_inside = offset >= size_of::<JournalArea>() && offset <= self.len && len <= self.len - offset;
        if is_inside && (1..=8).contains(&len) {
            Ok((offset, len, entry.old))
        } else {
            Err(LedgerError::Corrupt)
        }
    }

    /// The number of the step that is under way. Unchanged by a roll-back.
    #[inline]
    pub fn step(&self) -> u64 {
        // SAFETY: initialised memory of the ledger, changed by this thread only.
        unsafe { ptr::read_volatile(self.area().commits.get()) }
    }

    /// Words changed in this step so far; at most [`JOURNAL_ENTRIES`].
    #[inline]
    pub fn pending(&self) -> usize {
        self.count() as usize
    }

    /// Whether this step may take up one more piece of work, of any kind. Whoever works through what comes from outside
    /// asks before each piece, and leaves the rest for the next step: how much there is of it, others decide.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.pending() < STEP_ENTRIES
    }

    /// Whether `rule` is in force; always so outside the simulator's canaries.
    #[inline]
    pub fn rule(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }

    /// Whether receivers grant next to no credit: in some runs of the simulator.
    #[inline]
    pub fn has_tight_credits(&self) -> bool {
        self.rules.has_tight_credits()
    }

    /// Saves `len` (at most 8) bytes at `target`, to be restored by a roll-back.
    #[inline]
    fn save(&self, target: *const u8, len: usize) {
        let offset = self.offset_of(target, len);
        let count = self.count();
        assert!((count as usize) < JOURNAL_ENTRIES, "a step changes at most {JOURNAL_ENTRIES} words");
        debug_assert!((count as usize) < 3 * STEP_ENTRIES, "a step ends in time");
        let mut old = 0_u64;
        // SAFETY: `offset_of` has checked that the source lies inside the ledger; `old` has 8 bytes.
        unsafe { ptr::copy_nonoverlapping(target, (&raw mut old).cast(), len) };
        self.store(
            self.area().entries[count as usize].get(),
            Entry { place: (offset as u64) << LEN_BITS | len as u64, old },
        );
        self.store(self.area().count.get(), count + 1);
    }

    /// Saves `T` at `target` and stores `value`.
    ///
    /// A block read changes some fifty words. With the hook's calls on the same way, each change would save the
    /// registers that these may use.
    pub(super) fn change<T: Copy>(&self, target: *mut T, value: T) {
        match self.hook {
            None => Self { hook: None, ..*self }.log_and_store(target, value),
            Some(hook) => self.tell_and_change(hook, target, value),
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_and_change<T: Copy>(&self, hook: &dyn Hook, target: *mut T, value: T) {
        self.tell_change(hook, target.cast(), size_of::<T>());
        self.log_and_store(target, value);
    }

    #[inline(always)]
    fn log_and_store<T: Copy>(&self, target: *mut T, value: T) {
        if self.rules.has(Rule::LogStores) {
            let (bytes, size) = (target.cast::<u8>().cast_const(), size_of::<T>());
            for start in (0..size).step_by(8) {
                // SAFETY: `start` is inside of `T`, which `save` checks to lie inside the ledger.
                self.save(unsafe { bytes.add(start) }, (size - start).min(8));
            }
        } else {
            self.offset_of(target.cast(), size_of::<T>());
        }
        self.store(target, value);
    }

    /// Tells the hook what a change of `len` bytes at `target` overwrites.
    fn tell_change(&self, hook: &dyn Hook, target: *const u8, len: usize) {
        let offset = self.offset_of(target, len);
        for start in (0..len).step_by(8) {
            let mut old = [0_u8; 8];
            let part = (len - start).min(8);
            // SAFETY: `offset_of` has checked that the whole value lies inside the ledger; `old` has room for a part.
            unsafe { ptr::copy_nonoverlapping(target.add(start), old.as_mut_ptr(), part) };
            hook.before_change(offset + start, &old[..part]);
        }
    }

    /// Makes `cells` what they were in new memory: all zeroes, without a log. Nothing committed may refer to what is in
    /// them, and a successor that finds this unfinished does it again. `C` consists of ledger cells and nothing else:
    /// others do that by [`Region::clear`](super::Region::clear) of what is made of cells.
    pub(super) fn clear<C: FromBytes>(&self, cells: &C) {
        let (target, len) = (core::ptr::from_ref(cells).cast_mut().cast::<u8>(), size_of::<C>());
        self.offset_of(target, len);
        for start in (0..len).step_by(CLEARED_AT_ONCE) {
            self.before_store();
            let part = (len - start).min(CLEARED_AT_ONCE);
            // SAFETY: inside of `cells`, which lie in the ledger, as just checked.
            unsafe { ptr::write_bytes(target.add(start), 0, part) };
        }
        // What gives the cells to an owner is a store like all others, and comes behind these.
        compiler_fence(Ordering::Release);
    }

    /// Copies `bytes` to `target` without a log, as two stores.
    #[inline]
    pub(super) fn fill(&self, target: *mut u8, bytes: &[u8]) {
        self.offset_of(target, bytes.len());
        let half = if self.hook.is_some() { bytes.len() / 2 } else { 0 };
        for (start, part) in [(0, &bytes[..half]), (half, &bytes[half..])] {
            if !part.is_empty() {
                self.before_store();
                // SAFETY: `offset_of` has checked the whole range; ledger memory is never borrowed as plain bytes.
                unsafe { ptr::copy_nonoverlapping(part.as_ptr(), target.add(start), part.len()) };
            }
        }
    }

    /// Stores `value` without a log.
    #[inline]
    pub(super) fn store<T: Copy>(&self, target: *mut T, value: T) {
        self.before_store();
        // SAFETY: callers pass pointers into the ledger (checked, or fields of the area), aligned for `T`.
        unsafe { ptr::write_volatile(target, value) };
    }

    /// The place that entry `index` names; then that and the number of entries are these, for tests of a corrupt log.
    #[cfg(test)]
    pub(super) fn spoil(&self, index: usize, place_and_count: Option<(u64, u64)>) -> u64 {
        let entry = self.area().entries[index].get();
        // SAFETY: initialised memory of the ledger, changed by this thread only.
        let old = unsafe { ptr::read_volatile(entry) };
        if let Some((place, count)) = place_and_count {
            self.store(entry, Entry { place, ..old });
            self.store(self.area().count.get(), count);
        }
        old.place
    }

    #[inline]
    fn before_store(&self) {
        if let Some(hook) = self.hook {
            hook.before_store();
        }
    }

    #[inline]
    fn count(&self) -> u64 {
        // SAFETY: initialised memory of the ledger, changed by this thread only.
        unsafe { ptr::read_volatile(self.area().count.get()) }
    }

    #[inline]
    fn area(&self) -> &JournalArea {
        // SAFETY: `new` requires that the ledger begins with an area and lives for `'m`.
        unsafe { &*self.area }
    }

    #[inline]
    fn offset_of(&self, target: *const u8, len: usize) -> usize {
        let offset = (target as usize).wrapping_sub(self.base as usize);
        assert!(offset < self.len && len <= self.len - offset, "a cell belongs to the ledger of its journal");
        offset
    }
}
