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
    /// The same, where nobody had been told that what replaced it has happened.
    eclipses: Vec<Eclipse>,
    /// The medium has failed it: done or not, what is kept of earlier ones may come back over it.
    failed: bool,
}

/// A read has returned a write that nobody had been told of, and so replaced another one.
#[derive(Clone, Copy)]
struct Eclipse {
    request: u64,
    /// When the read ended.
    at: u64,
    /// The power has failed since, and has left the other one.
    is_taken: bool,
    /// If nobody is ever told of it, the borrower still keeps it, since it was under way.
    is_kept: bool,
}

impl Eclipse {
    /// Whether it has gone with the power, and comes back no more.
    fn is_over(&self, writes: &[Write]) -> bool {
        let is_in_doubt = |write: &Write| write.failed || (!self.is_kept && !write.was_answered());
        self.is_taken && writes.iter().any(|write| write.request == self.request && is_in_doubt(write))
    }
}

/// In place of a request: the medium has lost something, and the block has again what it had before.
const WENT_BACK: u64 = u64::MAX;

impl core::fmt::Debug for Write {
    /// `value(request) start..end`, then when it was seen, replaced, eclipsed, and whether abandoned, durable.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({}) {}..", self.value, self.request, self.start)?;
        self.end.map_or(Ok(()), |end| write!(f, "{end}"))?;
        self.observed.map_or(Ok(()), |at| write!(f, " seen {at}"))?;
        self.replaced.map_or(Ok(()), |at| write!(f, " replaced {at}"))?;
        self.eclipses.iter().try_for_each(|by| write!(f, " eclipsed {} by {}", by.at, by.request))?;
        f.write_str(if self.maybe { " abandoned" } else { "" })?;
        f.write_str(if self.durable { " durable" } else { "" })
    }
}

impl Write {
    /// One that begins.
    fn new(value: u64, request: u64, start: u64) -> Self {
        Self {
            value,
            request,
            start,
            end: None,
            observed: None,
            maybe: false,
            durable: false,
            replaced: None,
            eclipses: Vec::new(),
            failed: false,
        }
    }

    fn effective_end(&self) -> u64 {
        self.end.unwrap_or(u64::MAX).min(self.observed.unwrap_or(u64::MAX))
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Nothing writes it again: it had ended when a flush began that has ended.
    fn is_settled(&self, flushed: u64) -> bool {
        self.end.is_some_and(|end| end < flushed)
    }

    fn has_happened(&self) -> bool {
        self.observed.is_some() || (self.end.is_some() && !self.maybe)
    }

    /// Whether a client was told that it has happened.
    fn was_answered(&self) -> bool {
        self.has_ended() && !self.maybe
    }

    /// Whether a read that begins at `start` comes behind what has replaced it. `writes` are those of the same block.
    fn is_replaced(&self, start: u64, writes: &[Self]) -> bool {
        self.replaced.is_some_and(|at| at < start)
            || self.eclipses.iter().any(|by| by.at < start && !by.is_over(writes))
    }

    /// Whether it is over `earlier` if it began after the end of that one. What nobody waits for can happen behind a
    /// loss: only who asks for the same blocks waits for it.
    fn hides(&self, earlier: &Self) -> bool {
        self.has_happened() && (self.request != WENT_BACK || !earlier.maybe)
    }
}

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
        // Whatever was over before the read began, and was not returned, has been replaced.
        let is_kept = self.keeps;
        let eclipse = match fitting[..] {
            [only] if !writes[only].was_answered() => {
                Some(Eclipse { request: writes[only].request, at: end, is_taken: false, is_kept })
            }
            _ => None,
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

/// Whether a read from `start` to `end` may return write `index`.
fn admissible(writes: &[Write], index: usize, start: u64, end: u64) -> bool {
    let write = &writes[index];
    let over = write.effective_end();
    write.start <= end
        && !write.is_replaced(start, writes)
        && !writes.iter().any(|w| w.hides(write) && w.start > over && w.effective_end() < start)
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
    fn a_write_that_a_controller_has_begun_and_the_next_one_gets_again_may_be_seen_of_both() {
        let mut model = DiskModel::new(1, true);
        model.write_started(5, 5, 0..1, 1);
        model.write_started(6, 6, 0..1, 2);
        model.asked_again(3);
        read(&mut model, 5, 4, 5).unwrap();
        read(&mut model, 6, 6, 7).unwrap();
        model.write_ended(6, false, 0..1, 8);
        read(&mut model, 6, 9, 10).unwrap();
        read(&mut model, 5, 11, 12).unwrap();
        model.write_ended(5, false, 0..1, 13);
        read(&mut model, 5, 14, 15).unwrap();
        read(&mut model, 6, 16, 17).unwrap_err();
    }

    fn block(value: u64) -> [u8; 512] {
        let mut bytes = [0; 512];
        pattern(value, 0, &mut bytes);
        bytes
    }

    fn write(model: &mut DiskModel, request: u64, start: u64, end: u64) {
        model.write_started(request, request, 0..1, start);
        model.write_ended(request, false, 0..1, end);
    }

    #[test]
    fn the_power_takes_only_what_was_not_flushed_and_that_comes_back() {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        model.power_failed([&block(0)[..]].into_iter(), 3).unwrap();
        let mut lying = DiskModel::new(1, true);
        write(&mut lying, 5, 1, 2);
        lying.power_failed([&block(0)[..]].into_iter(), 3).unwrap();
        read(&mut lying, 0, 4, 5).unwrap_err();
        // A flush, before or after it has come back, makes it durable.
        model.flush_ended(4);
        model.mended();
        read(&mut model, 5, 5, 6).unwrap();
        model.power_failed([&block(0)[..]].into_iter(), 8).unwrap_err();
    }

    #[test]
    fn the_power_may_take_what_was_read_if_nobody_keeps_it() {
        let left = |model: &mut DiskModel, tick| model.power_failed([&block(0)[..]].into_iter(), tick);
        let seen = |keeps: bool| {
            let mut model = DiskModel { keeps, ..DiskModel::new(1, true) };
            model.flush_ended(1);
            model.write_started(5, 5, 0..1, 2);
            read(&mut model, 5, 3, 4).unwrap();
            read(&mut model, 0, 5, 6).unwrap_err();
            model
        };
        // Its client has given it up, and the drive is not the borrower's own.
        let mut model = seen(false);
        left(&mut model, 7).unwrap();
        model.write_abandoned(5, 0..1);
        read(&mut model, 0, 8, 9).unwrap();
        // Its client was told that it has failed, before or after.
        for tick in [7, 9] {
            let mut model = seen(true);
            left(&mut model, 8).unwrap();
            model.write_failed(5, 0..1, tick);
            read(&mut model, 0, 10, 11).unwrap();
        }
    }

    #[test]
    fn the_power_takes_nothing_that_was_read_and_is_kept_or_flushed() {
        let left = |model: &mut DiskModel, tick| model.power_failed([&block(0)[..]].into_iter(), tick);
        let seen = |keeps: bool| {
            let mut model = DiskModel { keeps, ..DiskModel::new(1, true) };
            model.flush_ended(1);
            model.write_started(5, 5, 0..1, 2);
            read(&mut model, 5, 3, 4).unwrap();
            model
        };
        let mut model = seen(true);
        model.write_abandoned(5, 0..1);
        left(&mut model, 7).unwrap();
        read(&mut model, 0, 8, 9).unwrap_err();
        let mut model = seen(false);
        model.write_abandoned(5, 0..1);
        model.asked_again(7);
        read(&mut model, 0, 8, 9).unwrap_err();
        let mut model = seen(false);
        model.flush_ended(7);
        left(&mut model, 8).unwrap_err();
        let mut model = seen(false);
        left(&mut model, 7).unwrap();
        model.write_ended(5, false, 0..1, 8);
        read(&mut model, 0, 9, 10).unwrap_err();
    }

    #[test]
    fn what_a_medium_has_lost_comes_back_only_if_it_is_written_again() {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        assert!(model.was_promised(0, 5, 3) && !model.was_promised(0, 5, 2));
        model.went_back(0, 0, 4);
        read(&mut model, 5, 3, 5).unwrap();
        let mut lying =
            DiskModel { blocks: model.blocks.clone(), reads: BTreeSet::new(), torn: None, ..model };
        read(&mut lying, 5, 6, 7).unwrap_err();
        model.asked_again(6);
        read(&mut model, 5, 7, 8).unwrap();
        read(&mut model, 0, 9, 10).unwrap_err();
    }

    #[test]
    fn what_is_being_written_again_comes_before_or_after_a_loss() {
        let anew = || {
            let mut model = DiskModel::new(1, true);
            write(&mut model, 5, 1, 2);
            model.begins_anew(3);
            model
        };
        let mut model = anew();
        model.went_back(0, 0, 4);
        model.mended();
        read(&mut model, 5, 5, 6).unwrap();
        read(&mut model, 0, 7, 8).unwrap_err();
        let mut model = anew();
        model.went_back(0, 0, 4);
        model.mended();
        read(&mut model, 0, 5, 6).unwrap();
        read(&mut model, 5, 7, 8).unwrap_err();
        // It has been written again before that.
        let mut model = anew();
        model.mended();
        model.went_back(0, 0, 4);
        read(&mut model, 5, 5, 6).unwrap_err();
    }

    #[test]
    fn nobody_who_is_gone_writes_anything_again() {
        let leave: [fn(&mut DiskModel); 2] =
            [|model| assert!(!model.borrower_lost(100, 4)), DiskModel::given_back];
        for leave in leave {
            let mut model = DiskModel::new(1, true);
            write(&mut model, 5, 1, 2);
            model.begins_anew(3);
            leave(&mut model);
            model.went_back(0, 0, 5);
            read(&mut model, 5, 6, 7).unwrap_err();
        }
    }

    #[test]
    fn what_nobody_waits_for_may_happen_behind_a_loss_and_is_not_forgotten_then() {
        let mut model = DiskModel::new(1, true);
        (0..8).for_each(|n| write(&mut model, 10 + n, 1 + 2 * n, 2 + 2 * n));
        model.write_started(5, 5, 0..1, 20);
        model.write_abandoned(5, 0..1);
        model.abandoned_ended(5, 0..1, 21);
        model.went_back(0, 16, 22);
        model.flush_ended(23);
        read(&mut model, 5, 24, 25).unwrap();
        read(&mut model, 5, 26, 27).unwrap();
        // Neither what a read has shown to be gone, nor what was answered.
        read(&mut model, 16, 28, 29).unwrap_err();
        read(&mut model, 17, 28, 29).unwrap_err();
    }

    #[test]
    fn of_an_image_that_was_replaced_nothing_comes_back_and_who_reads_the_new_one_was_told() {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        model.write_started(6, 6, 0..1, 3);
        model.replaced(vec![9], Some(9), 4);
        read(&mut model, 5, 3, 5).unwrap();
        read(&mut model, 9, 3, 5).unwrap_err();
        read(&mut model, 9, 6, 7).unwrap_err();
        assert!(!model.borrower_lost(100, 8));
        read(&mut model, 9, 9, 10).unwrap();
        read(&mut model, 6, 11, 12).unwrap_err();
        read(&mut model, 5, 13, 14).unwrap_err();
        // Whoever has been answered nothing yet, or nothing since it was told, is told nothing.
        model.borrower_lost(100, 15);
        model.replaced(vec![7], Some(7), 16);
        read(&mut model, 7, 15, 17).unwrap();
        model.replaced(vec![8], Some(8), 18);
        read(&mut model, 8, 19, 20).unwrap_err();
        // Twice before it could be told.
        model.replaced(vec![9], Some(9), 21);
        model.replaced(vec![10], Some(10), 22);
        read(&mut model, 10, 23, 24).unwrap_err();
    }

    #[test]
    fn what_is_kept_comes_back_over_a_write_that_has_failed() {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        model.write_started(6, 6, 0..1, 3);
        model.write_failed(6, 0..1, 4);
        read(&mut model, 6, 5, 6).unwrap();
        read(&mut model, 5, 7, 8).unwrap_err();
        model.asked_again(9);
        read(&mut model, 5, 10, 11).unwrap();
        read(&mut model, 6, 12, 13).unwrap_err();
    }

    #[test]
    fn what_a_borrower_kept_goes_with_it() {
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        assert!(!model.borrower_lost(100, 3));
        read(&mut model, 5, 4, 5).unwrap();
        model.power_failed([&block(0)[..]].into_iter(), 6).unwrap();
        model.mended();
        read(&mut model, 5, 7, 8).unwrap_err();
        let mut model = DiskModel::new(1, true);
        write(&mut model, 5, 1, 2);
        model.power_failed([&block(0)[..]].into_iter(), 3).unwrap();
        assert!(model.borrower_lost(100, 4));
        let mut other =
            DiskModel { blocks: model.blocks.clone(), reads: BTreeSet::new(), torn: None, ..model };
        model.abandoned_ended(100, 0..1, 5);
        read(&mut model, 0, 6, 7).unwrap();
        read(&mut model, 5, 8, 9).unwrap_err();
        other.abandoned_ended(100, 0..1, 5);
        read(&mut other, 5, 6, 7).unwrap();
        read(&mut other, 0, 8, 9).unwrap_err();
    }

    #[test]
    fn only_concurrent_unflushed_writes_settle_anew() {
        let overlapping = |model: &mut DiskModel| {
            model.write_started(5, 5, 0..1, 1);
            model.write_started(6, 6, 0..1, 2);
            model.write_ended(5, false, 0..1, 3);
            model.write_ended(6, false, 0..1, 4);
            read(model, 5, 5, 6).unwrap();
        };
        let mut model = DiskModel::new(1, true);
        overlapping(&mut model);
        read(&mut model, 6, 7, 8).unwrap_err();
        let mut model = DiskModel::new(1, true);
        overlapping(&mut model);
        model.asked_again(7);
        read(&mut model, 6, 8, 9).unwrap();
        read(&mut model, 5, 10, 11).unwrap_err();
        let mut model = DiskModel::new(1, true);
        overlapping(&mut model);
        model.flush_ended(7);
        model.asked_again(8);
        read(&mut model, 6, 9, 10).unwrap_err();
    }
}
