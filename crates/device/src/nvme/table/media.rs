//! Work for the medium: one piece a command at a time, in the order in which it was decided.
//!
//! Work for a namespace passes through one gate, `admit`: a namespace that is another command's alone lets nobody else
//! in, and one that has gone or changed fails what was meant for it.

use base::Rule;
use base::ledger::PageIndex;
use spec::nvme::Status;

use crate::function::{MediaError, MediaId, MediaKind, MediaOp};
use crate::nvme::Controller;
use crate::nvme::cells::SHUTDOWN_SLOT;
use crate::nvme::command::{CommandCells, Event, MediaWork, State, Work, media_id, media_target};
use crate::nvme::subsystem::Owner;

/// Whether a command may give the medium its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Admission {
    Now,
    Later,
    /// The namespace is not what it was when the command was decoded.
    Never,
}

impl Controller<'_> {
    pub(crate) fn front_media(&mut self) -> Option<u16> {
        self.serve_waiting();
        self.serve_parked();
        loop {
            match self.media.front() {
                Some(slot) => return Some(slot),
                None if self.fetch_entries() => {}
                None => return None,
            }
        }
    }

    /// The next work that this card has not given out.
    pub(crate) fn next_media(&mut self) -> Option<MediaOp<'_>> {
        let slot = self.front_media()?;
        self.media.pop();
        self.redo = self.redo.saturating_sub(1);
        let command = self.command(slot);
        let work = command.media.get();
        let kind = work.kind.get();
        let count = match kind {
            MediaKind::Read | MediaKind::Write => (work.len as usize).div_ceil(base::ledger::PAGE_SIZE),
            MediaKind::Flush | MediaKind::Trim | MediaKind::Zero { .. } => 0,
        };
        for (index, page) in self.media_pages.iter_mut().enumerate().take(count) {
            *page = command.page(usize::from(work.page) + index);
        }
        let pages: &[PageIndex] = &self.media_pages[..count];
        let id = media_id(slot, command.uses.get());
        Some(MediaOp { id, kind, offset: work.offset, len: work.len, pages })
    }

    /// Decides work for the medium, with the command's pages from the first on.
    pub(crate) fn begin_media(&mut self, slot: u16, kind: MediaKind, offset: u64, len: u32) {
        self.begin_media_at(slot, kind, offset, len, 0);
    }

    /// Decides work for the medium, with the command's pages from `page` on.
    pub(crate) fn begin_media_at(&mut self, slot: u16, kind: MediaKind, offset: u64, len: u32, page: u16) {
        let command = self.command(slot);
        command.media.set(self.journal, MediaWork { offset, len, kind: kind.into(), reserved: 0, page });
        self.admit(slot);
    }

    /// Lets a command's decided work through, or keeps it until the namespace is free.
    fn admit(&mut self, slot: u16) {
        match self.admission(slot) {
            Admission::Now => self.enter(slot),
            Admission::Later if self.command(slot).state() == State::Parked => {}
            Admission::Later => self.step(slot, Event::Park),
            Admission::Never => self.complete(slot, 0, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()),
        }
    }

    fn enter(&mut self, slot: u16) {
        let command = self.command(slot);
        if command.work() == Work::Delete {
            return self.finish_delete(slot);
        }
        if let Some(nsid) = counted_for(command) {
            self.subsystem.namespace_cells(nsid).busy.update(self.journal, |busy| busy + 1);
        }
        self.step(slot, Event::NeedMedia);
        let flush = command.media.get().kind.get() == MediaKind::Flush;
        if flush && !self.journal.rule(Rule::FlushWaits) {
            self.end_media(slot);
        }
    }

    fn admission(&self, slot: u16) -> Admission {
        let command = self.command(slot);
        let Some(nsid) = counted_for(command) else { return Admission::Now };
        let cells = self.subsystem.namespace_cells(nsid);
        let administers = matches!(command.work(), Work::Format | Work::Delete);
        let present = cells.bytes.get() != 0 && cells.epoch.get() == command.epoch.get();
        if !present || !(administers || self.subsystem.is_attached(nsid, self.index)) {
            return Admission::Never;
        }
        let (me, owner) = (Owner::new(self.index, slot), Owner(cells.owner.get()));
        if owner == Owner::NOBODY && command.exclusive.get() != 0 {
            cells.owner.set(self.journal, me.0);
        } else if owner == Owner::NOBODY {
            return Admission::Now;
        } else if owner != me {
            return Admission::Later;
        }
        if cells.busy.get() == 0 { Admission::Now } else { Admission::Later }
    }

    /// Lets in who waited for a namespace, first come, first served.
    pub(crate) fn serve_parked(&mut self) {
        let mut position = 0;
        while let Some(slot) = self.parked.get(position) {
            self.admit(slot);
            if self.parked.get(position) == Some(slot) {
                position += 1;
            }
        }
    }

    /// Whether somebody who waits for a namespace can be let in, or told that it has gone.
    pub(crate) fn can_serve_parked(&self) -> bool {
        (0..self.parked.len())
            .filter_map(|position| self.parked.get(position))
            .any(|slot| self.admission(slot) != Admission::Later)
    }

    /// The namespace is no longer this command's alone.
    pub(crate) fn release_namespace(&self, slot: u16) {
        let command = self.command(slot);
        let nsid = command.target.get().nsid;
        if command.exclusive.get() == 0 || nsid == 0 {
            return;
        }
        self.end_format_early(slot);
        command.exclusive.set(self.journal, 0);
        let cells = self.subsystem.namespace_cells(nsid);
        if Owner(cells.owner.get()) == Owner::new(self.index, slot) {
            cells.owner.set(self.journal, Owner::NOBODY.0);
        }
    }

    /// Hands a namespace that is one command's alone to another.
    pub(crate) fn hand_over_namespace(&self, from: u16, to: u16) {
        let command = self.command(from);
        let cells = self.subsystem.namespace_cells(command.target.get().nsid);
        debug_assert_eq!(Owner(cells.owner.get()), Owner::new(self.index, from));
        cells.owner.set(self.journal, Owner::new(self.index, to).0);
        command.exclusive.set(self.journal, 0);
        self.command(to).exclusive.set(self.journal, 1);
    }

    pub(crate) fn begin_media_read(&mut self, slot: u16) {
        let target = self.command(slot).target.get();
        self.begin_media(slot, MediaKind::Read, target.offset, target.len);
    }

    /// All data of a command has come from the host.
    pub(crate) fn data_loaded(&mut self, slot: u16) {
        let command = self.command(slot);
        match command.work() {
            Work::Deallocate => self.continue_ranges(slot),
            Work::Copy => self.begin_copy(slot),
            Work::Admin => self.execute_admin_data(slot),
            Work::Compare | Work::Write if command.partner.get() != 0 => self.half_loaded(slot),
            Work::Compare => self.continue_compare(slot),
            _ => self.begin_write(slot),
        }
    }

    /// The write of a command's data.
    pub(crate) fn begin_write(&mut self, slot: u16) {
        let target = self.command(slot).target.get();
        self.begin_media(slot, MediaKind::Write, target.offset, target.len);
    }

    /// The medium has ended its work for a command.
    pub(crate) fn take_media_result(&mut self, id: MediaId, result: Result<(), MediaError>) {
        let Some(slot) = media_target(id, |slot| self.command(slot).uses.get()) else { return };
        let command = self.command(slot);
        let state = command.state();
        if !matches!(state, State::Media | State::Orphan) {
            return;
        }
        if let Some(nsid) = counted_for(command) {
            self.subsystem.namespace_cells(nsid).busy.update(self.journal, |busy| {
                busy.checked_sub(1).expect("work was counted when it was decided")
            });
        }
        if result.is_ok() {
            self.note_written(slot);
        }
        let flush = command.media.get().kind.get() == MediaKind::Flush;
        let (result, is_lost) = self.latch(flush, result);
        match (state, result) {
            (State::Orphan, _) => {
                self.forget(slot);
                if slot == SHUTDOWN_SLOT {
                    self.continue_shutdown();
                }
            }
            (_, Err(_)) if command.work() == Work::SelfTest => self.end_self_test(slot, false),
            (_, Err(error)) => {
                self.cells.statistics.media_errors.add(1);
                let status = media_status(error, command);
                match command.work() {
                    Work::Shutdown => self.end_shutdown(false),
                    _ if is_lost => self.complete_lost(slot, status),
                    _ => self.complete(slot, 0, status),
                }
            }
            (_, Ok(())) => self.end_media(slot),
        }
        self.serve_parked();
    }

    /// What a piece of work has come to, and whether that means that something is lost. An error of a flush tells of
    /// any write, of any function, and a system tells it only once: so it holds for each flush that ends from now on.
    fn latch(&self, flush: bool, result: Result<(), MediaError>) -> (Result<(), MediaError>, bool) {
        if !self.journal.rule(Rule::LatchLosses) {
            return (result, false);
        }
        match result {
            Err(error) if flush || error == MediaError::Lost => {
                self.subsystem.note_fault();
                (result, true)
            }
            Ok(()) if flush && self.subsystem.has_fault() => (Err(MediaError::Lost), true),
            _ => (result, false),
        }
    }

    /// What was written is readable again, however bad it was.
    fn note_written(&mut self, slot: u16) {
        let command = self.command(slot);
        let work = command.media.get();
        let writes = matches!(work.kind.get(), MediaKind::Write | MediaKind::Zero { .. } | MediaKind::Trim);
        if writes && self.subsystem.clear_bad(work.offset, work.len.into()) {
            if command.state() == State::Orphan {
                self.subsystem.want_persisted();
            } else {
                command.set_healed(self.journal);
            }
        }
    }

    pub(crate) fn end_media(&mut self, slot: u16) {
        let command = self.command(slot);
        let work = command.media.get();
        match (command.work(), work.kind.get()) {
            (Work::Shutdown, _) => self.end_shutdown(true),
            (Work::Read, _) if self.subsystem.is_bad(work.offset, work.len.into()) => {
                self.complete_unreadable(slot);
            }
            (Work::Read, _) => {
                self.cells.statistics.note_read(work.len);
                self.begin_store(slot);
            }
            (Work::Deallocate, MediaKind::Trim) => self.end_range(slot, work.len),
            (Work::Verify, _) => self.end_verified(slot, work.len),
            (Work::SelfTest, _) => self.end_self_test(slot, true),
            (Work::Compare, _) => self.end_compared(slot, work.len),
            (Work::Copy, MediaKind::Read) => self.end_copy_read(slot),
            (Work::Zeroes, MediaKind::Zero { .. }) => self.end_zeroed(slot, work.len),
            (Work::Format, MediaKind::Zero { .. } | MediaKind::Trim) => self.end_formatted(slot, work.len),
            (Work::Format, _) => self.finish_format(slot),
            (Work::Write | Work::Copy, MediaKind::Write) => self.end_written(slot),
            _ => self.complete_write(slot),
        }
    }

    /// The last piece of a command that writes is done.
    pub(crate) fn end_written(&mut self, slot: u16) {
        self.cells.statistics.note_write(self.command(slot).target.get().len);
        if self.is_durable_write(slot) {
            self.begin_media(slot, MediaKind::Flush, 0, 0);
        } else {
            self.complete_write(slot);
        }
    }

    /// Completes a command that may have made bad blocks readable again, which is to be kept too.
    pub(crate) fn complete_write(&mut self, slot: u16) {
        if self.command(slot).is_healed() {
            self.complete_kept(slot, 0);
        } else {
            self.complete(slot, 0, Status::SUCCESS);
        }
    }

    /// Ends a read of blocks that are marked uncorrectable.
    pub(crate) fn complete_unreadable(&mut self, slot: u16) {
        self.cells.statistics.media_errors.add(1);
        self.complete(slot, 0, Status::UNRECOVERED_READ_ERROR.with_dnr());
    }
}

/// The namespace whose work the medium does for a command: none for flushes and for the drive's own.
fn counted_for(command: &CommandCells) -> Option<u32> {
    let nsid = command.target.get().nsid;
    let flush = command.media.get().kind.get() == MediaKind::Flush;
    (nsid != 0 && (!flush || command.work() == Work::Delete)).then_some(nsid)
}

fn media_status(error: MediaError, command: &CommandCells) -> Status {
    let reads = command.media.get().kind.get() == MediaKind::Read;
    match error {
        MediaError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        MediaError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        MediaError::Io if reads => Status::UNRECOVERED_READ_ERROR.with_dnr(),
        MediaError::Io | MediaError::Lost => Status::WRITE_FAULT.with_dnr(),
    }
}
