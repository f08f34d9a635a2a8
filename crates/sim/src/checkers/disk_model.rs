//! What a disk may return, block by block: each block is a register, and every read must fit into one order of all writes
//! that agrees with what came before what.
//!
//! Times are ticks of the clients' own counter: a request starts when its first byte is written by the client, and ends when the
//! last byte of its answer has been read. A write takes effect somewhere between, and certainly before the end of any read that
//! has returned it.

use std::collections::BTreeSet;

use super::Verdict;
use crate::disk::author;

/// A write to a block, or what stands for one.
#[derive(Clone)]
struct Write {
    /// What a read returns of it: the request's number, or 0 for zeroes.
    value: u64,
    request: u64,
    start: u64,
    /// By then it has happened, if it ever does.
    end: Option<u64>,
    /// The end of the first read that has returned it.
    observed: Option<u64>,
    /// Nobody knows whether it has happened: its client is gone.
    maybe: bool,
    /// It was durable when it ended.
    durable: bool,
    /// The end of a read that proves that something later has replaced it.
    replaced: Option<u64>,
}

impl core::fmt::Debug for Write {
    /// `value(request) start..end`, then when it was seen, replaced, abandoned, durable.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({}) {}..", self.value, self.request, self.start)?;
        self.end.map_or(Ok(()), |end| write!(f, "{end}"))?;
        self.observed.map_or(Ok(()), |at| write!(f, " seen {at}"))?;
        self.replaced.map_or(Ok(()), |at| write!(f, " replaced {at}"))?;
        f.write_str(if self.maybe { " abandoned" } else { "" })?;
        f.write_str(if self.durable { " durable" } else { "" })
    }
}

impl Write {
    fn effective_end(&self) -> u64 {
        self.end.unwrap_or(u64::MAX).min(self.observed.unwrap_or(u64::MAX))
    }

    fn has_happened(&self) -> bool {
        self.observed.is_some() || (self.end.is_some() && !self.maybe)
    }
}

/// The model of one disk.
pub(crate) struct DiskModel {
    /// Whether a write that has been seen cannot happen again. Where the disk has several requests at a time, those under way
    /// when a card dies are done again in any order.
    once: bool,
    blocks: Vec<Vec<Write>>,
    reads: BTreeSet<u64>,
    /// The start of the last flush that has ended.
    flushed: u64,
}

impl DiskModel {
    pub(crate) fn new(blocks: usize, once: bool) -> Self {
        let zero = Write {
            value: 0,
            request: 0,
            start: 0,
            end: Some(0),
            observed: None,
            maybe: false,
            durable: true,
            replaced: None,
        };
        Self { once, blocks: vec![vec![zero]; blocks], reads: BTreeSet::new(), flushed: 0 }
    }

    /// Request `request` begins to write `value` to blocks.
    pub(crate) fn write_started(
        &mut self,
        request: u64,
        value: u64,
        blocks: core::ops::Range<u64>,
        tick: u64,
    ) {
        for block in blocks {
            self.blocks[block as usize].push(Write {
                value,
                request,
                start: tick,
                end: None,
                observed: None,
                maybe: false,
                durable: false,
                replaced: None,
            });
        }
    }

    pub(crate) fn write_ended(
        &mut self,
        request: u64,
        durable: bool,
        blocks: core::ops::Range<u64>,
        tick: u64,
    ) {
        for block in blocks {
            for write in self.blocks[block as usize].iter_mut().filter(|write| write.request == request) {
                (write.end, write.durable) = (Some(tick), durable);
            }
            self.prune(block as usize);
        }
    }

    /// The client of a write is gone.
    pub(crate) fn write_abandoned(&mut self, request: u64, blocks: core::ops::Range<u64>) {
        for block in blocks {
            for write in self.blocks[block as usize].iter_mut().filter(|write| write.request == request) {
                write.maybe = true;
            }
        }
    }

    /// From now on no abandoned write can happen any more.
    pub(crate) fn abandoned_ended(&mut self, request: u64, blocks: core::ops::Range<u64>, tick: u64) {
        for block in blocks {
            for write in self.blocks[block as usize].iter_mut().filter(|write| write.request == request) {
                write.end = write.end.or(Some(tick));
            }
        }
    }

    pub(crate) fn flush_ended(&mut self, start: u64) {
        self.flushed = self.flushed.max(start);
    }

    pub(crate) fn read_started(&mut self, start: u64) {
        self.reads.insert(start);
    }

    pub(crate) fn read_abandoned(&mut self, start: u64) {
        self.reads.remove(&start);
    }

    /// A read of whole blocks that began at `start` has returned `data`.
    pub(crate) fn read_ended(
        &mut self,
        first: u64,
        block_bytes: usize,
        data: &[u8],
        start: u64,
        end: u64,
    ) -> Verdict {
        self.reads.remove(&start);
        for (block, bytes) in (first..).zip(data.chunks(block_bytes)) {
            let Some(value) = author(block, bytes) else {
                return Err(format!("block {block}: {}", describe(bytes)));
            };
            self.observe(block as usize, value, start, end)?;
        }
        Ok(())
    }

    fn observe(&mut self, block: usize, value: u64, start: u64, end: u64) -> Verdict {
        let writes = &self.blocks[block];
        let fitting: Vec<usize> = (0..writes.len())
            .filter(|&index| writes[index].value == value && admissible(writes, index, start, end))
            .collect();
        if fitting.is_empty() {
            return Err(format!(
                "block {block}: a read from {start} to {end} returned {value}, of {writes:?}"
            ));
        }
        let writes = &mut self.blocks[block];
        if let [only] = fitting[..]
            && (self.once || writes[only].end.is_some())
        {
            let write = &mut writes[only];
            write.observed = Some(write.observed.unwrap_or(end).min(end));
        }
        // Whatever was over before the read began, and was not returned, has been replaced.
        for write in writes.iter_mut().filter(|write| write.value != value && write.effective_end() < start) {
            write.replaced = Some(write.replaced.unwrap_or(end).min(end));
        }
        self.prune(block);
        Ok(())
    }

    /// The power has failed, and these blocks are what is left.
    pub(crate) fn power_failed<'a>(&mut self, left: impl Iterator<Item = &'a [u8]>, tick: u64) -> Verdict {
        for (block, bytes) in left.enumerate() {
            let Some(value) = author(block as u64, bytes) else {
                return Err(format!("block {block}: {}", describe(bytes)));
            };
            let writes = &self.blocks[block];
            let survives = |index: usize| {
                let write = &writes[index];
                let outlived = writes.iter().any(|w| w.durable && w.start > write.effective_end());
                write.value == value && !outlived && admissible(writes, index, self.flushed, tick)
            };
            if !(0..writes.len()).any(survives) {
                let flushed = self.flushed;
                return Err(format!(
                    "block {block} has {value} after the power failed, flushed at {flushed}: {writes:?}"
                ));
            }
            self.begin_anew(block, value, tick);
        }
        self.asked_again();
        Ok(())
    }

    /// Whatever is under way may have happened and may happen again: the controller was reset, and its host asks again.
    pub(crate) fn asked_again(&mut self) {
        for write in self.blocks.iter_mut().flatten().filter(|write| write.end.is_none()) {
            write.observed = None;
            write.replaced = None;
        }
    }

    /// What is on the disk now counts as written now; what is under way may still come.
    fn begin_anew(&mut self, block: usize, value: u64, tick: u64) {
        let writes = &mut self.blocks[block];
        writes.push(Write {
            value,
            request: 0,
            start: tick,
            end: Some(tick),
            observed: None,
            maybe: false,
            durable: true,
            replaced: None,
        });
        self.prune(block);
    }

    /// What the disk holds in the end is what a read would be allowed to return.
    pub(crate) fn finally<'a>(&mut self, blocks: impl Iterator<Item = &'a [u8]>, tick: u64) -> Verdict {
        for (block, bytes) in blocks.enumerate() {
            let Some(value) = author(block as u64, bytes) else {
                return Err(format!("block {block}: {}", describe(bytes)));
            };
            self.observe(block, value, tick, tick + 1)?;
        }
        Ok(())
    }

    /// Forgets what no question can be about any more.
    fn prune(&mut self, block: usize) {
        let lower = self.reads.first().copied().unwrap_or(u64::MAX).min(self.flushed);
        let writes = &mut self.blocks[block];
        if writes.len() < 8 {
            return;
        }
        let keep: Vec<bool> = writes
            .iter()
            .map(|write| {
                let end = write.effective_end();
                let replaced = write.replaced.is_some_and(|at| at < lower);
                let over = |w: &Write| w.has_happened() && w.start > end && w.effective_end() < lower;
                !replaced && !writes.iter().any(over)
            })
            .collect();
        let mut keep = keep.iter();
        writes.retain(|_| *keep.next().unwrap_or(&true));
    }
}

/// Whether a read from `start` to `end` may return write `index`.
fn admissible(writes: &[Write], index: usize, start: u64, end: u64) -> bool {
    let write = &writes[index];
    let over = write.effective_end();
    write.start <= end
        && write.replaced.is_none_or(|at| at >= start)
        && !writes.iter().any(|w| w.has_happened() && w.start > over && w.effective_end() < start)
}

fn describe(bytes: &[u8]) -> String {
    let words = bytes.as_chunks::<8>().0;
    let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
    format!("bytes that nobody has written: {:#x} {:#x} ... {:#x}", word(0), word(1), word(words.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::pattern;

    fn read(model: &mut DiskModel, value: u64, start: u64, end: u64) -> Verdict {
        let mut bytes = [0; 512];
        pattern(value, 0, &mut bytes);
        model.read_started(start);
        model.read_ended(0, 512, &bytes, start, end)
    }

    #[test]
    fn a_read_returns_the_last_write_or_one_under_way() {
        let mut model = DiskModel::new(1, true);
        model.write_started(7, 7, 0..1, 1);
        read(&mut model, 0, 2, 3).unwrap();
        read(&mut model, 7, 4, 5).unwrap();
        read(&mut model, 0, 6, 7).unwrap_err();
        model.write_ended(7, false, 0..1, 8);
        model.write_started(9, 9, 0..1, 9);
        model.write_ended(9, false, 0..1, 10);
        read(&mut model, 7, 11, 12).unwrap_err();
        read(&mut model, 9, 13, 14).unwrap();
    }

    #[test]
    fn a_write_that_was_seen_does_not_come_back_after_a_later_one() {
        let mut model = DiskModel::new(1, true);
        model.write_started(5, 5, 0..1, 1);
        read(&mut model, 5, 2, 3).unwrap();
        model.write_started(6, 6, 0..1, 4);
        model.write_ended(6, false, 0..1, 5);
        read(&mut model, 5, 6, 7).unwrap_err();
    }

    #[test]
    fn the_power_takes_only_what_was_not_flushed() {
        let mut bytes = [[0; 512], [0; 512]];
        let mut model = DiskModel::new(1, true);
        model.write_started(5, 5, 0..1, 1);
        model.write_ended(5, false, 0..1, 2);
        pattern(5, 0, &mut bytes[0]);
        model.power_failed([&bytes[1][..]].into_iter(), 3).unwrap();
        model.write_started(8, 8, 0..1, 4);
        model.write_ended(8, false, 0..1, 5);
        model.flush_ended(6);
        model.power_failed([&bytes[1][..]].into_iter(), 8).unwrap_err();
    }
}
