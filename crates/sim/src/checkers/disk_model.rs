//! What a disk may return, block by block: each block is a register, and every read must fit into one order of all
//! writes that agrees with what came before what.
//!
//! Times are ticks of the clients' own counter: a request starts when its first byte is written by the client, and ends
//! when the last byte of its answer has been read. A write takes effect somewhere between, and certainly before the end
//! of any read that has returned it.
//!
//! A controller that begins anew gets the writes again that were under way, and those that had ended and were not
//! flushed. Among concurrent ones that may settle their order anew; nothing else may change. The power of the lender
//! takes nothing that was answered while the borrower lives: what its disk has lost comes back before anything is read.

mod write;

use std::collections::BTreeSet;

use self::write::{Eclipse, WENT_BACK, Write, admissible};
use super::Verdict;
use crate::disk::author;

/// The model of one disk.
pub(crate) struct DiskModel {
    /// Whether a write that has been seen cannot happen again while the controller goes on. Where the disk has several
    /// requests at a time, those under way when a card dies are done again in any order.
    once: bool,
    /// Whether the borrower keeps until a flush what was under way, also if nobody waits for it any more.
    keeps: bool,
    blocks: Vec<Vec<Write>>,
    reads: BTreeSet<u64>,
    /// The start of the last flush that has ended.
    flushed: u64,
    /// When the controller last began anew: what began before tells nothing about the order since.
    anew: u64,
    /// When the present borrower's life began.
    life: u64,
    /// By block, what the disk was left with by a power failure, until the borrower has written again what it keeps.
    torn: Option<Vec<u64>>,
    /// The controller has begun anew, and the borrower has not written everything again.
    rewrites: bool,
    /// The borrower has given up some of what it kept, and the power may take that.
    gave_up: bool,
    /// When the image was replaced by another one, and what that holds until the borrower has been told.
    replaced: u64,
    untold: Option<u64>,
    /// When a client was last answered from what the disk holds, or with what it has taken.
    used: u64,
}

impl DiskModel {
    pub(crate) fn new(blocks: usize, once: bool) -> Self {
        let zero = Write { end: Some(0), durable: true, ..Write::new(0, 0, 0) };
        Self {
            once,
            keeps: true,
            blocks: vec![vec![zero]; blocks],
            reads: BTreeSet::new(),
            flushed: 0,
            anew: 0,
            life: 0,
            torn: None,
            rewrites: false,
            gave_up: false,
            replaced: 0,
            untold: None,
            used: 0,
        }
    }

    /// Of a borrower that keeps nothing, since others have the namespace, too.
    pub(crate) fn keeping_nothing(&mut self) {
        self.keeps = false;
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
            self.blocks[block as usize].push(Write::new(value, request, tick));
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
        self.used = tick;
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
        self.gave_up = false;
    }

    /// The medium has failed a write: its client was told, and nobody keeps it.
    pub(crate) fn write_failed(&mut self, request: u64, blocks: core::ops::Range<u64>, tick: u64) {
        for block in blocks {
            for write in self.blocks[block as usize].iter_mut().filter(|write| write.request == request) {
                (write.maybe, write.failed, write.end) = (true, true, Some(tick));
            }
        }
    }

    /// The medium has lost what was written to a block, which has again what `value` stands for; until what is just
    /// written again comes to it.
    pub(crate) fn went_back(&mut self, block: usize, value: u64, tick: u64) {
        let maybe = self.rewrites;
        self.blocks[block].push(Write { end: Some(tick), maybe, ..Write::new(value, WENT_BACK, tick) });
    }

    /// The borrower has given up what it kept, or some of it: until a flush succeeds, nobody can say what is durable.
    pub(crate) fn kept_lost(&mut self, tick: u64) {
        self.gave_up = true;
        for (block, value) in self.torn.clone().into_iter().flatten().enumerate() {
            self.may_have_gone_back(block, value, tick);
        }
    }

    fn may_have_gone_back(&mut self, block: usize, value: u64, tick: u64) {
        if self.blocks[block].last().is_some_and(|newest| newest.value != value) {
            self.went_back(block, value, tick);
            self.blocks[block].iter_mut().rev().take(1).for_each(|write| write.maybe = true);
        }
    }

    /// Whether a flush that began at `start` and succeeds says that what `request` has written to a block is durable.
    pub(crate) fn was_promised(&self, block: usize, request: u64, start: u64) -> bool {
        self.blocks[block].iter().any(|write| {
            let is_answered = write.end.is_some_and(|end| end < start || write.durable);
            write.request == request && request != 0 && !write.maybe && is_answered
        })
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
            if self.untold == Some(value) {
                return Err(format!(
                    "block {block}: a read from {start} to {end} returned what somebody has put into the image, \
                     and its borrower was not told"
                ));
            }
            // What was asked of the image before has no answer that this model knows.
            if start >= self.replaced {
                self.observe(block as usize, value, start, end)?;
            }
        }
        self.used = end;
        Ok(())
    }

    /// The lender begins anew with another image, whose blocks have these values. All before is gone, and what the
    /// borrower kept is not written to it. `untold` is what nobody can have seen who was not told; whoever has not used
    /// the disk yet has nothing to be told.
    pub(crate) fn replaced(&mut self, left: Vec<u64>, untold: Option<u64>, tick: u64) {
        let untold = untold.filter(|_| self.used > self.life || self.untold.is_some());
        for (writes, value) in self.blocks.iter_mut().zip(left) {
            *writes = vec![Write { end: Some(tick), durable: true, ..Write::new(value, 0, tick) }];
        }
        (self.anew, self.life, self.replaced, self.untold) = (tick, tick, tick, untold);
        (self.torn, self.gave_up) = (None, false);
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
        if start < self.anew {
            return Ok(());
        }
        // One that was under way when the controller began anew comes once more: what is seen may be what it did
        // before.
        let comes_no_more = |write: &Write| write.has_ended() || (self.once && write.start >= self.anew);
        if let [only] = fitting[..]
            && comes_no_more(&writes[only])
        {
            let write = &mut writes[only];
            write.observed = Some(write.observed.unwrap_or(end).min(end));
        }
        // Whatever was over before the read began, and was not returned, has been replaced: by a write that the power
        // may take again, unless all that it may have been were answered.
        let is_kept = self.keeps;
        let unanswered: Vec<usize> =
            fitting.into_iter().filter(|&index| !writes[index].was_answered()).collect();
        let eclipse = match unanswered[..] {
            [] => None,
            [only] => Some(Eclipse { request: writes[only].request, at: end, is_taken: false, is_kept }),
            // By which of them nobody knows.
            _ => return Ok(()),
        };
        for write in writes.iter_mut().filter(|write| write.value != value && write.effective_end() < start) {
            match eclipse {
                Some(by) => {
                    let is_it = |known: &Eclipse| known.request == by.request && !known.is_taken;
                    if !write.eclipses.iter().any(is_it) {
                        write.eclipses.push(by);
                    }
                }
                None => write.replaced = Some(write.replaced.unwrap_or(end).min(end)),
            }
        }
        self.prune(block);
        Ok(())
    }

    /// The power has failed, and these blocks are what is left: what was durable, and perhaps more. The borrower still
    /// has what it was told in its life; writes of earlier lives that are not left are gone.
    pub(crate) fn power_failed<'a>(&mut self, left: impl Iterator<Item = &'a [u8]>, tick: u64) -> Verdict {
        let mut torn = Vec::with_capacity(self.blocks.len());
        for (block, bytes) in left.enumerate() {
            let Some(value) = author(block as u64, bytes) else {
                return Err(format!("block {block}: {}", describe(bytes)));
            };
            let writes = &self.blocks[block];
            let survives = |index: &usize| {
                let write = &writes[*index];
                let outlived = writes.iter().any(|w| w.durable && w.start > write.effective_end());
                write.value == value && !outlived && admissible(writes, *index, self.flushed, tick)
            };
            let survivor = (0..writes.len()).find(survives);
            if survivor.is_none() {
                let flushed = self.flushed;
                return Err(format!(
                    "block {block} has {value} after the power failed, flushed at {flushed}: {writes:?}"
                ));
            }
            let is_of_earlier_life = survivor.is_none_or(|index| writes[index].start < self.life);
            // What was read in its place has gone before anybody flushed it.
            let left = survivor.map(|index| &mut self.blocks[block][index]);
            left.into_iter().flat_map(|write| &mut write.eclipses).for_each(|by| by.is_taken = true);
            if is_of_earlier_life {
                self.forget_earlier_lives(block, value);
            }
            if self.gave_up {
                self.may_have_gone_back(block, value, tick);
            }
            torn.push(value);
        }
        self.torn = Some(torn);
        self.asked_again(tick);
        Ok(())
    }

    /// Of what earlier lives of the borrower have written to a block, `value` is left.
    fn forget_earlier_lives(&mut self, block: usize, value: u64) {
        let life = self.life;
        let writes = &mut self.blocks[block];
        writes.retain(|write| write.start >= life || !write.has_ended());
        writes.push(Write { end: Some(life), durable: true, ..Write::new(value, 0, life) });
    }

    /// Whether the borrower is still to write again what it keeps: the disk may have less than what was answered.
    pub(crate) fn is_mending(&self) -> bool {
        self.torn.is_some() || self.rewrites
    }

    /// The borrower has written again what it keeps.
    pub(crate) fn mended(&mut self) {
        (self.torn, self.rewrites) = (None, false);
    }

    /// The borrower is gone, and what it kept with it. If it had not written everything again, some blocks may stay as
    /// the power failure left them: as if `request` wrote them, until its client's end. Returns whether that is so.
    pub(crate) fn borrower_lost(&mut self, request: u64, tick: u64) -> bool {
        (self.life, self.untold, self.rewrites) = (tick, None, false);
        let Some(torn) = self.torn.take() else { return false };
        for (writes, value) in self.blocks.iter_mut().zip(torn) {
            let is_there =
                |index: usize| writes[index].value == value && admissible(writes, index, tick, tick);
            if (0..writes.len()).any(is_there) {
                continue;
            }
            writes.push(Write { maybe: true, ..Write::new(value, request, tick) });
        }
        true
    }

    /// The borrower has given the drive back in order: it writes nothing again.
    pub(crate) fn given_back(&mut self) {
        self.rewrites = false;
    }

    /// The same as [`asked_again`](Self::asked_again), by a borrower that writes again what it keeps before anything is
    /// read, each block at a time of its own.
    pub(crate) fn begins_anew(&mut self, tick: u64) {
        self.asked_again(tick);
        self.rewrites = true;
    }

    /// The controller begins anew at `tick`. Whatever is under way may have happened and may happen again, for its host
    /// asks again; and what has ended and is not flushed is written again, in an order in which it may have happened.
    pub(crate) fn asked_again(&mut self, tick: u64) {
        self.anew = tick;
        let flushed = self.flushed;
        for write in self.blocks.iter_mut().flatten().filter(|write| !write.is_settled(flushed)) {
            // What was seen has happened, whoever asked for it; only when is open again. What the medium has lost may
            // be written again.
            write.maybe &= write.failed || write.observed.is_none() || !write.has_ended();
            write.maybe |= write.request == WENT_BACK;
            write.observed = None;
            write.replaced = None;
            write.eclipses.clear();
        }
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
        let flushed = self.flushed;
        let lower = self.reads.first().copied().unwrap_or(u64::MAX).min(flushed);
        let writes = &mut self.blocks[block];
        if writes.len() < 8 {
            return;
        }
        let keep: Vec<bool> = writes
            .iter()
            .map(|write| {
                let end = write.effective_end();
                let replaced = write.is_replaced(lower, writes);
                let over = |w: &Write| w.hides(write) && w.start > end && w.effective_end() < lower;
                !write.is_settled(flushed) || (!replaced && !writes.iter().any(over))
            })
            .collect();
        let mut keep = keep.iter();
        writes.retain(|_| *keep.next().unwrap_or(&true));
    }
}

fn describe(bytes: &[u8]) -> String {
    let words = bytes.as_chunks::<8>().0;
    let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
    format!("bytes that nobody has written: {:#x} {:#x} ... {:#x}", word(0), word(1), word(words.len() - 1))
}

#[cfg(test)]
mod tests;
