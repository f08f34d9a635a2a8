//! Work for the medium: one piece a command at a time, in the order in which it was decided.

use base::Rule;
use base::ledger::PageIndex;
use spec::nvme::Status;

use super::Controller;
use super::command::{
    CommandCells, Event, MediaWork, RangeCursor, State, Work, media_code, media_id, media_kind, media_target,
};
use crate::function::{MediaError, MediaId, MediaKind, MediaOp};

impl Controller<'_> {
    /// The next work that this card has not given out.
    pub(super) fn next_media(&mut self) -> Option<MediaOp<'_>> {
        self.serve_waiting();
        while self.media.front().is_none() {
            if !self.fetch_entries() {
                return None;
            }
        }
        let slot = self.media.pop()?;
        let command = self.command(slot);
        let work = command.media.get();
        let kind = media_kind(work.kind);
        let count = match kind {
            MediaKind::Read | MediaKind::Write => usize::from(command.counts.get().pages),
            MediaKind::Flush | MediaKind::Trim | MediaKind::Zero => 0,
        };
        for (index, page) in self.media_pages.iter_mut().enumerate().take(count) {
            *page = command.page(index);
        }
        let pages: &[PageIndex] = &self.media_pages[..count];
        let id = media_id(slot, command.uses.get());
        Some(MediaOp { id, kind, offset: work.offset, len: work.len, pages })
    }

    /// Decides work for the medium.
    pub(super) fn begin_media(&mut self, slot: u16, kind: MediaKind, offset: u64, len: u32) {
        let command = self.command(slot);
        command.media.set(self.journal, MediaWork { offset, len, kind: media_code(kind) });
        self.step(slot, Event::NeedMedia);
        if kind == MediaKind::Flush && !self.journal.rule(Rule::FlushWaits) {
            self.end_media(slot);
        }
    }

    pub(super) fn begin_media_read(&mut self, slot: u16) {
        let (offset, len) = self.byte_range(slot);
        self.begin_media(slot, MediaKind::Read, offset, len);
    }

    /// All data of a command has come from the host.
    pub(super) fn data_loaded(&mut self, slot: u16) {
        if self.command(slot).work() == Work::Deallocate {
            return self.continue_ranges(slot);
        }
        let (offset, len) = self.byte_range(slot);
        self.begin_media(slot, MediaKind::Write, offset, len);
    }

    /// The medium has ended its work for a command.
    pub(super) fn take_media_result(&mut self, id: MediaId, result: Result<(), MediaError>) {
        let Some(slot) = media_target(id, |slot| self.command(slot).uses.get()) else { return };
        let command = self.command(slot);
        match (command.state(), result) {
            (State::Orphan, _) => self.forget(slot),
            (State::Media, Err(error)) if command.work() != Work::Shutdown => {
                self.cells.statistics.media_errors.add(1);
                self.complete(slot, 0, media_status(error, command));
            }
            (State::Media, _) => self.end_media(slot),
            _ => {}
        }
    }

    fn end_media(&mut self, slot: u16) {
        let command = self.command(slot);
        let work = command.media.get();
        match (command.work(), media_kind(work.kind)) {
            (Work::Shutdown, _) => self.end_shutdown(),
            (Work::Read, _) => {
                self.cells.statistics.read_commands.add(1);
                self.cells.statistics.read_bytes.add(work.len.into());
                self.step(slot, Event::HaveData);
            }
            (Work::Deallocate, _) => {
                let (cursor, blocks) = (command.ranges.get(), work.len >> self.config.block_shift());
                let cursor = RangeCursor { blocks: cursor.blocks + blocks, ..cursor };
                command.ranges.set(self.journal, cursor);
                self.continue_ranges(slot);
            }
            (Work::Write | Work::Zeroes, MediaKind::Write | MediaKind::Zero) => {
                self.cells.statistics.write_commands.add(1);
                self.cells.statistics.written_bytes.add(work.len.into());
                if self.is_durable_write(slot) {
                    self.begin_media(slot, MediaKind::Flush, 0, 0);
                } else {
                    self.complete(slot, 0, Status::SUCCESS);
                }
            }
            _ => self.complete(slot, 0, Status::SUCCESS),
        }
    }
}

fn media_status(error: MediaError, command: &CommandCells) -> Status {
    match (error, command.work()) {
        (MediaError::NoSpace, _) => Status::CAPACITY_EXCEEDED.with_dnr(),
        (MediaError::ReadOnly, _) => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        (MediaError::Io, Work::Read) => Status::UNRECOVERED_READ_ERROR.with_dnr(),
        (MediaError::Io, _) => Status::WRITE_FAULT.with_dnr(),
    }
}
