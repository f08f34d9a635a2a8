//! The way of a command through the parts of the controller: from its queue to the medium, and back to its host.

use base::Rule;
use spec::nvme::Status;

use crate::function::{Dma, DmaId, MediaError, MediaId, MediaKind};
use crate::nvme::Controller;
use crate::nvme::cells::SHUTDOWN_SLOT;
use crate::nvme::command::{CommandCells, Event, MediaWork, Outcome, State, Work, media_target};
use crate::nvme::events;
use crate::nvme::gate::{Admission, media_status};
use crate::nvme::queues::shadow::Shadow;
use crate::nvme::queues::{Doorbell, SQE_BYTES};

/// Entries that one verb takes from the queues.
const FETCH_BURST: usize = 32;
/// Commands that wait for the medium while no more are taken from the memory buffer: each has pages, and pages that are
/// used again soon are still in the processor's caches.
const MEDIA_AHEAD: usize = 4;

impl<'m> Controller<'m> {
    pub(crate) fn command(&self, slot: u16) -> &'m CommandCells {
        self.table.command(slot)
    }

    pub(crate) fn set_work(&self, slot: u16, work: Work) {
        self.command(slot).work.set(self.journal, work.into());
    }

    /// Takes entries from the queues, round robin, the admin queue first. Returns whether there was one.
    pub(crate) fn fetch_entries(&mut self) -> bool {
        if self.queues.whose_turn().is_none() || !self.registers.is_processing() {
            return false;
        }
        (0..FETCH_BURST).take_while(|_| self.fetch_entry()).count() > 0
    }

    fn fetch_entry(&mut self) -> bool {
        let Some(queue) = self.queues.whose_turn() else { return false };
        if queue != 0 && !self.limit.may_take(self.now, self.table.fetching()) {
            return false;
        }
        let is_here = self.queues.submission(queue).is_in_buffer();
        if queue != 0 && is_here && self.table.waiting_for_media() >= MEDIA_AHEAD {
            return false;
        }
        let origin = self.queues.next_entry(queue);
        let Some(slot) = self.table.take(origin) else { return false };
        self.queues.take_entry(queue);
        if queue != 0 {
            self.limit.charge_command();
        }
        if !is_here {
            self.table.step(slot, Event::FetchEntry);
            return true;
        }
        let mut entry = [0; SQE_BYTES];
        self.buffer.read(self.queues.submission(queue).address(origin.index), &mut entry);
        self.command(slot).write_entry(self.journal, 0, &entry);
        self.table.step(slot, Event::TakeEntry);
        self.execute(slot);
        true
    }

    /// A part of a submission queue entry.
    pub(crate) fn handle_entry(&mut self, slot: u16, offset: usize, data: &[u8], last: bool) {
        let end = offset.saturating_add(data.len());
        if end > SQE_BYTES || (last && end != SQE_BYTES) {
            return self.registers.fail("a submission queue entry came with a wrong length");
        }
        self.command(slot).write_entry(self.journal, offset, data);
        if !last {
            return;
        }
        let origin = self.command(slot).origin.get();
        let mut arrived = self.queues.arrive(origin.sq, origin.index);
        if arrived.next().is_none() {
            return self.table.step(slot, Event::Early);
        }
        self.table.step(slot, Event::Fetched);
        self.execute(slot);
        for index in arrived {
            let is_next = |slot: &u16| {
                let here = self.command(*slot).origin.get();
                (here.sq, here.index) == (origin.sq, index)
            };
            if let Some(next) = self.table.in_state(State::Arrived).find(is_next) {
                self.table.step(next, Event::Fetched);
                self.execute(next);
            }
        }
    }

    /// The completion queue entry of a command, or `None` when its queue is full: it then waits for the doorbell.
    pub(crate) fn send_completion(&mut self, slot: u16) -> Option<Dma> {
        self.table.release_pages(slot);
        let command = self.command(slot);
        let origin = command.origin.get();
        let Some(posted) = self.queues.post(origin, command.outcome.get()) else {
            self.table.hold(slot);
            self.shadows.want(Doorbell { queue: origin.cq, is_cq: true });
            return None;
        };
        if let Some(vector) = posted.vector {
            self.interrupts.raise(vector, &self.config_space);
        }
        self.table.step(slot, Event::Sent);
        Some(posted.dma)
    }

    /// Ends a command that has data neither to take nor to give any more.
    pub(crate) fn complete(&mut self, slot: u16, result: u32, status: Status) {
        let command = self.command(slot);
        if !status.is_success() {
            self.errors.note(command, status);
        }
        self.gate.release(slot, command);
        self.table.end(slot, Outcome { result, status: status.bits(), reserved: 0 });
        if !status.is_success() {
            self.fail_partner(slot);
        }
    }

    /// Ends a command when the owner keeps the change of the drive that it has made.
    pub(crate) fn complete_kept(&mut self, slot: u16, result: u32) {
        if !self.config.keeps_state {
            return self.complete(slot, result, Status::SUCCESS);
        }
        self.gate.release(slot, self.command(slot));
        let version = self.subsystem.want_persisted();
        self.table.end_after(slot, version, Outcome { result, ..Outcome::default() });
    }

    /// Ends a command with an error that says that the medium has lost something, when the owner keeps that.
    fn complete_lost(&mut self, slot: u16, status: Status) {
        let version = self.subsystem.note_fault();
        if !self.config.keeps_state || self.subsystem.is_persisted(version).is_some() {
            return self.complete(slot, 0, status);
        }
        self.gate.release(slot, self.command(slot));
        self.table.end_after(slot, version, Outcome { status: status.bits(), ..Outcome::default() });
    }

    /// Completes commands whose change is kept, or could not be.
    pub(crate) fn serve_saving(&mut self) {
        if !self.table.is_saving() {
            return;
        }
        for slot in self.table.in_state(State::Saving) {
            let command = self.command(slot);
            let Outcome { result, status, .. } = command.outcome.get();
            match (self.subsystem.is_persisted(command.list.get()), Status::from_bits(status)) {
                (Some(false), Status::SUCCESS) => self.complete(slot, 0, Status::INTERNAL_ERROR),
                (Some(_), status) => self.complete(slot, result, status),
                (None, _) => {}
            }
        }
    }

    /// Whether a command that waits for the owner can go on.
    pub(crate) fn can_serve_saving(&self) -> bool {
        let is_kept = |slot| self.subsystem.is_persisted(self.command(slot).list.get()).is_some();
        self.table.is_saving() && self.table.in_state(State::Saving).any(is_kept)
    }

    /// Nobody waits for the command any more.
    pub(crate) fn abandon(&mut self, slot: u16) {
        let command = self.command(slot);
        if !matches!(command.state(), State::Free | State::Orphan | State::Media) {
            self.gate.release(slot, command);
        }
        self.table.abandon(slot);
    }

    /// The medium is done with an orphan, for which something may have waited.
    pub(crate) fn forget(&mut self, slot: u16) {
        self.gate.release(slot, self.command(slot));
        self.table.forget(slot);
        for slot in self.table.in_state(State::Draining) {
            if !self.table.has_orphans_of(self.command(slot).entry().cdw10.get() as u16) {
                self.complete(slot, 0, Status::SUCCESS);
            }
        }
        self.update_ready();
    }

    /// Gives pages to those who wait for them.
    pub(crate) fn serve_waiting(&mut self) {
        while let Some(slot) = self.table.take_pages() {
            match self.command(slot).work() {
                Work::Report => {
                    self.fill_report(slot);
                    self.begin_store(slot);
                }
                Work::Read => self.begin_media_read(slot),
                Work::Verify | Work::SelfTest => self.continue_verify(slot),
                _ => self.begin_load(slot),
            }
        }
    }

    /// What commands have for the medium that has not been given out.
    pub(crate) fn prepare_media(&mut self) {
        self.serve_waiting();
        self.serve_parked();
        while self.table.waiting_for_media() == 0 && self.fetch_entries() {}
    }

    /// The real doorbell of a queue was rung (NVMe PCIe 1.0 §3.1.2).
    pub(crate) fn ring(&mut self, bell: Doorbell, value: u32) {
        let value = value & 0xffff;
        if !self.registers.is_processing() {
        } else if !self.queues.exists(bell) {
            self.raise_event(events::INVALID_DOORBELL_REGISTER);
        } else if !self.shadows.ring(bell, value, &self.queues) {
            self.move_doorbell(bell, value);
        }
    }

    /// A doorbell has a new value. False if it cannot have that.
    fn move_doorbell(&mut self, bell: Doorbell, value: u32) -> bool {
        let moved = self.queues.move_to(bell, value);
        if !moved {
            self.raise_event(events::INVALID_DOORBELL_VALUE);
        } else if bell.is_cq {
            self.table.send_held(bell.queue);
        } else {
            self.shadows.want(bell);
            self.fetch_entries();
        }
        moved
    }

    /// Takes what the read of a shadow doorbell has brought.
    pub(crate) fn take_shadow(&mut self, id: DmaId, offset: usize, data: &[u8], last: bool) {
        match self.shadows.take(id, offset, data, last, &self.queues) {
            Shadow::Nothing => {}
            Shadow::WrongLength => self.registers.fail("a shadow doorbell came with a wrong length"),
            Shadow::Moved(bell, value) => {
                if self.move_doorbell(bell, value) {
                    self.shadows.note_told(bell, &self.queues);
                }
            }
        }
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
        match self.gate.admission(slot, self.command(slot)) {
            Admission::Now => self.enter(slot),
            Admission::Later if self.command(slot).state() == State::Parked => {}
            Admission::Later => self.table.step(slot, Event::Park),
            Admission::Never => self.complete(slot, 0, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()),
        }
    }

    fn enter(&mut self, slot: u16) {
        let command = self.command(slot);
        if command.work() == Work::Delete {
            return self.finish_delete(slot);
        }
        self.gate.enter(command);
        self.table.step(slot, Event::NeedMedia);
        let flush = command.media.get().kind.get() == MediaKind::Flush;
        if flush && !self.journal.rule(Rule::FlushWaits) {
            self.end_media(slot);
        }
    }

    /// Lets in who waited for a namespace, first come, first served.
    pub(crate) fn serve_parked(&mut self) {
        let mut position = 0;
        while let Some(slot) = self.table.parked(position) {
            self.admit(slot);
            if self.table.parked(position) == Some(slot) {
                position += 1;
            }
        }
    }

    /// Whether somebody who waits for a namespace can be let in, or told that it has gone.
    pub(crate) fn can_serve_parked(&self) -> bool {
        (0..)
            .map_while(|position| self.table.parked(position))
            .any(|slot| self.gate.admission(slot, self.command(slot)) != Admission::Later)
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
        if result.is_ok() {
            self.note_written(slot);
        }
        let (result, is_lost) = self.gate.leave(command, result);
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
                let status = media_status(error, command).with_dnr();
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
