//! The disk behind a lent function: blocks, a volatile cache, and requests under way that outlive a card.

use std::collections::{BTreeMap, BTreeSet};

use base::Random;
use base::ledger::Journal;
use device::MediaKind;
use node::MediaWork;

use crate::checkers::single_owner::Life;

/// A model disk.
pub(crate) struct Disk<'w> {
    block: usize,
    cached: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    /// Blocks that could not be written back, and whose writes they were: the cache has them and takes them for
    /// written.
    lost: BTreeMap<usize, u64>,
    /// Blocks that a card has left half written, and what they had before.
    half: BTreeMap<usize, Vec<u8>>,
    /// Requests in the agent's ring, by the order of their submission.
    pub(crate) ring: BTreeMap<u64, Submitted<'w>>,
}

/// A request in the ring.
pub(crate) struct Submitted<'w> {
    pub(crate) work: MediaWork<'w>,
    /// The memory it reads and writes.
    pub(crate) journal: Journal<'w>,
    /// Which card has submitted it.
    pub(crate) card: u64,
    /// Which life of which borrower it is for.
    pub(crate) borrower: Option<Life>,
}

impl<'w> Disk<'w> {
    pub(crate) fn new(blocks: usize, block: usize) -> Self {
        Self {
            block,
            cached: vec![0; blocks * block],
            durable: vec![0; blocks * block],
            dirty: BTreeSet::new(),
            lost: BTreeMap::new(),
            half: BTreeMap::new(),
            ring: BTreeMap::new(),
        }
    }

    /// Does a piece of work, as the kernel does it: nothing of it is logged.
    pub(crate) fn execute(&mut self, work: &MediaWork<'w>, journal: Journal<'w>) {
        let (start, len) = (work.offset as usize, work.len as usize);
        match work.kind {
            MediaKind::Read => {
                let mut at = start;
                for span in work.spans() {
                    span.write(journal, &self.cached[at..at + span.len()]);
                    at += span.len();
                }
            }
            MediaKind::Write => {
                let mut at = start;
                for span in work.spans() {
                    span.read(&mut self.cached[at..at + span.len()]);
                    at += span.len();
                }
                self.soil(start, len);
            }
            MediaKind::Trim | MediaKind::Zero { .. } => {
                self.cached[start..start + len].fill(0);
                self.soil(start, len);
            }
            MediaKind::Flush => {
                for block in core::mem::take(&mut self.dirty) {
                    let range = block * self.block..(block + 1) * self.block;
                    self.durable[range.clone()].copy_from_slice(&self.cached[range]);
                }
            }
        }
    }

    fn soil(&mut self, start: usize, len: usize) {
        let blocks = start / self.block..(start + len) / self.block;
        self.dirty.extend(blocks.clone());
        self.half.retain(|block, _| !blocks.contains(block));
    }

    /// Does the first `done` bytes of a piece of work of a card that dies in the middle of it. True if a block is left
    /// half written.
    pub(crate) fn execute_part(&mut self, work: &MediaWork<'w>, journal: Journal<'w>, done: usize) -> bool {
        let (start, len) = (work.offset as usize, work.len as usize);
        if matches!(work.kind, MediaKind::Read | MediaKind::Flush) {
            self.execute(work, journal);
            return false;
        }
        let (before, half) = (self.cached[start..start + len].to_vec(), self.half.clone());
        self.execute(work, journal);
        self.cached[start + done..start + len].copy_from_slice(&before[done..]);
        // What has not been reached is as it was, half written or not.
        let reached = (start + done) / self.block;
        self.half.extend(half.into_iter().filter(|(block, _)| *block >= reached));
        let is_half = !done.is_multiple_of(self.block);
        if is_half {
            let at = reached * self.block - start;
            self.half.entry(reached).or_insert_with(|| before[at..at + self.block].to_vec());
        }
        is_half
    }

    /// Nobody will do again what a dead card has done by half: such blocks have what they had. That a machine's end
    /// leaves none is taken for granted.
    pub(crate) fn end_half(&mut self) {
        for (block, bytes) in core::mem::take(&mut self.half) {
            self.cached[block * self.block..(block + 1) * self.block].copy_from_slice(&bytes);
        }
    }

    /// The power fails: each request under way has happened or not, each unsynced block may be lost. True if one was.
    pub(crate) fn power_off(&mut self, random: &mut Random) -> bool {
        for (_, submitted) in core::mem::take(&mut self.ring) {
            if random.chance(500) {
                self.execute(&submitted.work, submitted.journal);
            }
        }
        let mut lost = false;
        for block in core::mem::take(&mut self.dirty) {
            let range = block * self.block..(block + 1) * self.block;
            self.lost.remove(&block);
            if random.chance(700) {
                lost |= self.cached[range.clone()] != self.durable[range.clone()];
                self.cached[range.clone()].copy_from_slice(&self.durable[range]);
            } else {
                self.durable[range.clone()].copy_from_slice(&self.cached[range]);
            }
        }
        for (block, _) in core::mem::take(&mut self.lost) {
            self.go_back(block);
        }
        lost
    }

    /// What is to be written back.
    pub(crate) fn dirty_blocks(&self) -> Vec<usize> {
        self.dirty.iter().copied().collect()
    }

    /// Writes a block back, or fails to.
    pub(crate) fn write_back(&mut self, block: usize, fails: bool) {
        self.dirty.remove(&block);
        let range = block * self.block..(block + 1) * self.block;
        if !fails || self.cached[range.clone()] == self.durable[range.clone()] {
            self.durable[range.clone()].copy_from_slice(&self.cached[range]);
            self.lost.remove(&block);
        } else if let Some(request) = author(block as u64, &self.cached[range]) {
            self.lost.insert(block, request);
        }
    }

    /// Blocks that are not durable and never will be.
    pub(crate) fn lost_blocks(&self) -> Vec<usize> {
        self.lost.keys().copied().filter(|block| !self.dirty.contains(block)).collect()
    }

    /// The same, with those that were written since, and the requests that have written what is lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (usize, u64)> {
        self.lost.iter().map(|(block, request)| (*block, *request))
    }

    /// The cache drops a block that is lost. Whose write it shows from now on, if another one than before.
    pub(crate) fn drop_lost(&mut self, block: usize) -> Option<u64> {
        let range = block * self.block..(block + 1) * self.block;
        if self.cached[range.clone()] == self.durable[range] {
            return None;
        }
        self.go_back(block);
        author(block as u64, &self.cached[block * self.block..(block + 1) * self.block])
    }

    /// Somebody has written to the whole image, what this request would write.
    pub(crate) fn replace(&mut self, request: u64) {
        for (lba, block) in (0..).zip(self.cached.chunks_mut(self.block)) {
            pattern(request, lba, block);
        }
        self.sync();
    }

    /// Everything is durable.
    pub(crate) fn sync(&mut self) {
        self.durable.copy_from_slice(&self.cached);
        self.dirty.clear();
        self.half.clear();
        self.lost.clear();
    }

    /// Nobody asks for what is lost any more.
    pub(crate) fn forget_lost(&mut self) {
        self.lost.clear();
    }

    fn go_back(&mut self, block: usize) {
        let range = block * self.block..(block + 1) * self.block;
        self.cached[range.clone()].copy_from_slice(&self.durable[range]);
    }

    /// What the blocks hold.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        self.cached.chunks(self.block)
    }
}

/// What request `id` writes to block `lba`: told from everything else at every word.
pub(crate) fn pattern(id: u64, lba: u64, out: &mut [u8]) {
    if id == 0 {
        return out.fill(0);
    }
    for (index, word) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = word_of(id, lba, index as u64).to_le_bytes();
    }
}

/// Which request has written these bytes of block `lba`; `None` if they are no one's.
pub(crate) fn author(lba: u64, bytes: &[u8]) -> Option<u64> {
    let words = bytes.as_chunks::<8>().0;
    let id = u64::from_le_bytes(*words.first()?);
    if id == 0 {
        return words.iter().all(|word| *word == [0; 8]).then_some(0);
    }
    let whole =
        words.iter().enumerate().all(|(index, word)| *word == word_of(id, lba, index as u64).to_le_bytes());
    whole.then_some(id)
}

fn word_of(id: u64, lba: u64, index: u64) -> u64 {
    if index == 0 {
        return id;
    }
    (id << 32 ^ lba << 16 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
