//! Blocks that a host has marked uncorrectable (Write Uncorrectable, NVM CS 1.0 §3.2.7): reads of them fail until they
//! are written again. A short list of ranges of bytes, for a command that is there for tests of error handling.

use super::Subsystem;
use super::cells::{BAD_RANGES, BadRange};

impl Subsystem<'_> {
    /// Whether any of the bytes are marked.
    pub(crate) fn is_bad(&self, start: u64, len: u64) -> bool {
        let count = self.cells.bad_count.get();
        count != 0 && self.bad().any(|range| range.start < start + len && start < range.end)
    }

    /// The marked ranges.
    pub(crate) fn bad(&self) -> impl Iterator<Item = BadRange> + '_ {
        self.cells.bad.iter().take(self.cells.bad_count.get() as usize).map(|cell| cell.get())
    }

    /// Marks a range. False where the list has no room: then nothing has changed.
    pub(crate) fn mark_bad(&self, start: u64, len: u64) -> bool {
        // What it overlaps or touches becomes a part of it.
        let mut whole = BadRange { start, end: start + len };
        let mut rest = Vec::with_capacity(BAD_RANGES);
        for range in self.bad() {
            if range.start <= whole.end && whole.start <= range.end {
                whole = BadRange { start: whole.start.min(range.start), end: whole.end.max(range.end) };
            } else {
                rest.push(range);
            }
        }
        rest.push(whole);
        self.set_bad(&rest)
    }

    /// Takes the marks of a range away. Whether there was one.
    ///
    /// A write into the middle of a marked range leaves two; where the list has no room for the second, its blocks are
    /// readable again.
    pub(crate) fn clear_bad(&self, start: u64, len: u64) -> bool {
        if !self.is_bad(start, len) {
            return false;
        }
        let mut rest = Vec::with_capacity(BAD_RANGES + 1);
        for range in self.bad() {
            let before = BadRange { end: range.end.min(start), ..range };
            let behind = BadRange { start: range.start.max(start + len), ..range };
            rest.extend([before, behind].into_iter().filter(|part| part.start < part.end));
        }
        rest.truncate(BAD_RANGES);
        self.set_bad(&rest)
    }

    fn set_bad(&self, ranges: &[BadRange]) -> bool {
        if ranges.len() > BAD_RANGES {
            return false;
        }
        self.cells.bad.iter().zip(ranges).for_each(|(cell, range)| cell.set(self.journal, *range));
        self.cells.bad_count.set(self.journal, ranges.len() as u32);
        true
    }
}
