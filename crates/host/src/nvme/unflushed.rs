//! Writes that have ended and are not flushed: kept, and written again when the controller may have lost them.
//!
//! A controller with a volatile write cache may forget, with its power, whatever was not flushed. Nothing tells the
//! driver whether a controller that comes back has kept it, so the driver keeps such writes itself, as NFS clients do
//! with unstable ones: after every initialisation they are written again before anything else. A flush that ends with
//! success releases what had been kept when it was issued.
//!
//! In a namespace that others have too nothing is kept: written again, it could undo what another one has written
//! since. Each write is made with FUA there, so that none that has ended can be lost.
//!
//! Rules: writes are kept in the order of their completions, those with FUA too, because an older one must not come
//! back over them. Written again is, of each block, only the newest content that is kept, from the newest write to the
//! oldest, many blocks at a time and in any order, then all of it is flushed; interrupted, it begins anew.
//!
//! So a block whose writes did not overlap in time, and all ended with success, has the content of the last of them
//! again before anything is read. Where writes of the same block were under way at once, that of the last completion
//! wins, though the controller may have done them in another order, and a read may have returned the other. A write
//! that ended with an error is not kept: the block may have its content, in part too, and go back to what is kept.

use base::ledger::{Cell, Code, Journal, Layout, PAGE_SIZE, PageIndex, Pages};
use base::{Instant, Rule};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cells::{Command, OWN_PENDING, Owner, Stage};
use super::commands::Commands;
use super::covered::Covered;
use super::namespace::flag;
use crate::{BlockError, BlockKind};

/// Most writes that are kept.
pub(super) const KEPT_WRITES: usize = 2048;
/// Most pages of them.
pub(super) const KEPT_PAGES: usize = 4096;
/// Most commands at a time that write something again: a full ring takes few round trips.
pub(super) const REWRITES: usize = 64;

const _: () = assert!(KEPT_PAGES * 2 <= Pages::CAPACITY, "requests find pages however many are kept");
const _: () = assert!(REWRITES < OWN_PENDING, "a flush may wait beside them");

/// The kept writes in the ledger. All zeroes: none. Positions count from 0 and never go back.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct UnflushedCells {
    appended: Cell<u64>,
    released: Cell<u64>,
    pages_appended: Cell<u64>,
    pages_released: Cell<u64>,
    /// How many of the oldest are still to be written again.
    left: Cell<u32>,
    /// Blocks of the last of those that are behind what was asked for last.
    done: Cell<u32>,
    /// Commands that write something again and have not ended.
    out: Cell<u32>,
    /// 1 if a flush is due, however little is kept.
    due: Cell<u32>,
    /// 1 while something was lost and the requester does not know.
    lost: Cell<u64>,
    entries: [Cell<Entry>; KEPT_WRITES],
    pages: [Cell<u16>; KEPT_PAGES],
}

/// A kept write.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Entry {
    lba: u64,
    /// Position of its first page.
    first_page: u64,
    blocks: u32,
    kind: Code<BlockKind>,
    pages: u8,
    /// 1 if the requester was told of its success.
    answered: u8,
    reserved: u8,
}

impl Entry {
    fn kind(&self) -> BlockKind {
        self.kind.get()
    }

    fn end(&self) -> u64 {
        self.lba.saturating_add(self.blocks.into())
    }
}

/// The kept writes of a drive.
#[derive(Clone, Copy)]
pub(super) struct Unflushed<'m> {
    cells: &'m UnflushedCells,
    pool: Pages<'m>,
    journal: Journal<'m>,
}

impl<'m> Unflushed<'m> {
    pub(super) fn new(cells: &'m UnflushedCells, pool: Pages<'m>, journal: Journal<'m>) -> Self {
        Self { cells, pool, journal }
    }

    /// Writes that are kept, and their pages.
    pub(super) fn len(&self) -> (usize, usize) {
        let cells = self.cells;
        let writes = cells.appended.get().wrapping_sub(cells.released.get());
        let pages = cells.pages_appended.get().wrapping_sub(cells.pages_released.get());
        (writes as usize, pages as usize)
    }

    /// How many writes have been kept since the ledger was made.
    pub(super) fn appended(&self) -> u64 {
        self.cells.appended.get()
    }

    /// Keeps a write that has ended, with a reference on each of its pages. There is room.
    fn append(&self, command: &Command, pages: &[Cell<u16>]) {
        let (cells, journal) = (self.cells, self.journal);
        let (writes, kept) = self.len();
        assert!(
            writes < KEPT_WRITES && kept + pages.len() <= KEPT_PAGES,
            "a write is issued only while it could be kept"
        );
        let first_page = cells.pages_appended.get();
        for (position, page) in (first_page..).zip(pages) {
            self.pool.retain(PageIndex(page.get()));
            cells.pages[position as usize % KEPT_PAGES].set(journal, page.get());
        }
        let entry = Entry {
            lba: command.lba,
            first_page,
            blocks: command.blocks,
            kind: command.kind,
            pages: pages.len() as u8,
            answered: (!command.is_given_up()).into(),
            reserved: 0,
        };
        let position = cells.appended.get();
        cells.entries[position as usize % KEPT_WRITES].set(journal, entry);
        cells.appended.set(journal, position + 1);
        cells.pages_appended.set(journal, first_page + pages.len() as u64);
    }

    /// Forgets the writes before position `end`; returns how many of them the requester takes for done.
    fn release(&self, end: u64) -> u64 {
        let (cells, journal) = (self.cells, self.journal);
        let start = cells.released.get();
        let end = end.clamp(start, cells.appended.get());
        let first_page = cells.pages_released.get();
        let (mut page, mut answered) = (first_page, 0);
        for position in start..end {
            let entry = self.entry(position);
            page += u64::from(entry.pages);
            answered += u64::from(entry.answered);
        }
        for position in first_page..page {
            self.pool.release(PageIndex(cells.pages[position as usize % KEPT_PAGES].get()));
        }
        cells.released.set(journal, end);
        cells.pages_released.set(journal, page);
        cells.left.set(journal, cells.left.get().saturating_sub((end - start) as u32));
        answered
    }

    /// From now on everything is to be written again, and then flushed.
    fn rewrite_all(&self) {
        let writes = self.len().0 as u32;
        self.cells.left.set(self.journal, writes);
        self.cells.done.set(self.journal, 0);
        self.cells.due.set(self.journal, u32::from(writes > 0));
    }

    /// Whether something is still to be written again.
    pub(super) fn is_rewriting(&self) -> bool {
        self.cells.left.get() != 0 || self.cells.out.get() != 0
    }

    /// What is to be written again next, with its pages: blocks of `block_size` bytes of which nothing newer is kept.
    /// Each once, so that they may be written in any order. Without FUA, because a flush follows. `newer` is what was
    /// looked at already.
    fn next(
        &self,
        newer: &mut Covered,
        block_size: u64,
    ) -> Option<(Command, impl Iterator<Item = u16> + use<'m>)> {
        let (cells, journal) = (self.cells, self.journal);
        while let Some(left) = cells.left.get().checked_sub(1) {
            let entry = self.entry(cells.released.get() + u64::from(left));
            let Some((start, end)) = newer.gap(entry.lba + u64::from(cells.done.get()), entry.end()) else {
                newer.insert(entry.lba, entry.end());
                cells.left.set(journal, left);
                cells.done.set(journal, 0);
                continue;
            };
            let blocks = end - start;
            let has_data = entry.kind() == BlockKind::Write;
            let skipped = if has_data { (start - entry.lba) * block_size } else { 0 };
            let offset = skipped % PAGE_SIZE as u64;
            let pages = if has_data { (offset + blocks * block_size).div_ceil(PAGE_SIZE as u64) } else { 0 };
            let command = Command {
                lba: start,
                at: 0,
                blocks: blocks as u32,
                id: 0,
                offset: offset as u16,
                kind: entry.kind,
                fua: 0,
                pages: pages.min(entry.pages.into()) as u8,
                stage: Stage::Pending.into(),
                tries: 0,
                owner: Owner::Rewrite.into(),
            };
            cells.done.set(journal, (end - entry.lba) as u32);
            cells.out.update(journal, |out| out + 1);
            let first = entry.first_page + skipped / PAGE_SIZE as u64;
            let pages = first..first + u64::from(command.pages);
            return Some((command, pages.map(|position| cells.pages[position as usize % KEPT_PAGES].get())));
        }
        None
    }

    /// Something is gone for good: the requester will be told at its next flush.
    fn lose(&self, writes: u64) {
        if writes > 0 {
            self.cells.lost.set(self.journal, 1);
        }
    }

    /// Whether something is lost and the requester does not know.
    pub(super) fn has_lost(&self) -> bool {
        self.cells.lost.get() != 0
    }

    /// Whether something was lost since the last call.
    fn take_lost(&self) -> bool {
        let is_lost = self.has_lost();
        self.cells.lost.set(self.journal, 0);
        is_lost
    }

    /// The blocks of the writes that need not be looked at again, for a card that has not looked at them itself.
    pub(super) fn newer(&self) -> Covered {
        let cells = self.cells;
        let mut newer = Covered::default();
        if cells.left.get() == 0 {
            return newer;
        }
        for position in cells.released.get() + u64::from(cells.left.get())..cells.appended.get() {
            let entry = self.entry(position);
            newer.insert(entry.lba, entry.end());
        }
        newer
    }

    fn entry(&self, position: u64) -> Entry {
        self.cells.entries[position as usize % KEPT_WRITES].get()
    }
}

impl Commands<'_> {
    /// Whether `command` is kept when it has ended with success.
    pub(super) fn is_kept(&self, command: &Command) -> bool {
        command.is_write()
            && !command.is_own()
            && self.namespace.has(flag::VOLATILE_CACHE)
            && !self.namespace.has(flag::SHARED)
            && self.journal.rule(Rule::KeepUnflushed)
    }

    /// Whether a command may be issued: if it is to be kept, there will be room for it and all that are under way.
    pub(super) fn can_keep(&self, command: &Command) -> bool {
        if !self.is_kept(command) {
            return true;
        }
        let (writes, pages) = self.unflushed.len();
        let (writes_issued, pages_issued) = self.running.to_be_kept();
        writes + writes_issued < KEPT_WRITES
            && pages + pages_issued + usize::from(command.pages) <= KEPT_PAGES
    }

    /// Keeps command `cid`, if it is one to be kept.
    pub(super) fn keep(&mut self, cid: u16, command: &Command) {
        if self.is_kept(command) {
            self.unflushed.append(command, &self.command(cid).pages[..usize::from(command.pages)]);
            self.counters.kept.add(1);
        }
    }

    /// Command `cid` of the requester has ended with success at the controller: what that means for kept writes.
    /// Returns its result.
    pub(super) fn settle(&mut self, cid: u16, command: &Command) -> Result<(), BlockError> {
        self.keep(cid, command);
        if command.kind() == BlockKind::Flush {
            self.unflushed.release(command.lba);
            if !command.is_given_up() && self.unflushed.take_lost() {
                return Err(BlockError::Io);
            }
        }
        Ok(())
    }

    /// Asks for a flush of the driver's own, so that the pages of what is kept come free, if there are any.
    pub(super) fn flush_kept(&self) {
        let is_under_way = self.cells.own_flush.get() != 0 || self.running.has_flush();
        if self.unflushed.len().1 > 0 && !is_under_way {
            self.unflushed.cells.due.set(self.journal, 1);
        }
    }

    /// Makes the driver's own next commands, if there is need for any: kept writes that are to be written again, or a
    /// flush after those or when there is little room for more.
    pub(super) fn make_own(&mut self, now: Instant) {
        let (unflushed, block_size) = (self.unflushed, u64::from(self.namespace.block_size()));
        while (unflushed.cells.out.get() as usize) < REWRITES && self.slots.can_alloc() {
            let Some((command, pages)) = unflushed.next(&mut self.newer, block_size) else { break };
            let cid = self.submit_own(now, command).expect("one can be had, as was asked before");
            self.command(cid).pages.iter().zip(pages).for_each(|(cell, page)| cell.set(self.journal, page));
        }
        let (writes, pages) = unflushed.len();
        if writes == 0 || unflushed.is_rewriting() || self.cells.own_flush.get() != 0 {
            return;
        }
        if !self.namespace.has(flag::VOLATILE_CACHE) {
            // The controller has come back without one: what it has written is durable.
            unflushed.release(unflushed.appended());
            return;
        }
        let is_full = writes >= KEPT_WRITES / 2 || pages >= KEPT_PAGES / 2;
        if unflushed.cells.due.get() != 0 || is_full && !self.running.has_flush() {
            self.submit_flush(now, Owner::Flush);
        }
    }

    /// A flush of the driver's own, of which there is none.
    pub(super) fn submit_flush(&mut self, now: Instant, owner: Owner) {
        let kind = BlockKind::Flush.into();
        if self.submit_own(now, Command { kind, owner: owner.into(), ..Command::default() }).is_some() {
            self.cells.own_flush.set(self.journal, 1);
            self.unflushed.cells.due.set(self.journal, 0);
        }
    }

    /// A command of the driver's own. Nothing, if no identifier can be had in this step.
    fn submit_own(&mut self, now: Instant, command: Command) -> Option<u16> {
        let cid = self.slots.alloc()?;
        self.command(cid).head.set(self.journal, Command { at: now.as_nanos(), ..command });
        self.cells.own.push(self.journal, cid);
        Some(cid)
    }

    /// A command of the driver's own has ended.
    pub(super) fn own_ended(&mut self, command: &Command, is_ok: bool) {
        let (cells, unflushed) = (self.cells, self.unflushed);
        if command.owner == Owner::Rewrite {
            unflushed.cells.out.update(self.journal, |out| out - 1);
            self.counters.rewritten.add(is_ok.into());
            if !is_ok {
                self.lose(1);
            }
            return;
        }
        cells.own_flush.set(self.journal, 0);
        // After a flush that fails for good nobody can say what is durable.
        let released = unflushed.release(command.lba);
        if !is_ok {
            self.lose(released);
        }
        if command.owner == Owner::LastFlush {
            cells.flushed.set(self.journal, 1);
        }
    }

    /// Forgets the driver's own commands: a new initialisation is under way, or the end.
    pub(super) fn drop_own(&mut self) {
        for cid in self.slots.iter() {
            if self.command(cid).head.get().is_own() {
                self.leave_controller(cid);
                self.slots.free(cid);
            }
        }
        self.cells.own.clear(self.journal);
        self.cells.own_flush.set(self.journal, 0);
        self.unflushed.cells.out.set(self.journal, 0);
    }

    /// The controller is ready, and may have lost what was not flushed.
    pub(super) fn rewrite_all(&mut self) {
        self.unflushed.rewrite_all();
        self.newer = Covered::default();
    }

    /// What is kept can never be written again: it is lost.
    pub(super) fn lose_all(&mut self) {
        let writes = self.unflushed.release(self.unflushed.appended());
        self.lose(writes);
    }

    fn lose(&self, writes: u64) {
        self.unflushed.lose(writes);
        self.counters.lost.add(writes);
    }
}
