//! The way of a command through the parts of the controller: from its queue to the medium, and back to its host. Parts
//! say what is next (`Next`); this is where it is done.

use base::Rule;
use spec::nvme::{FusedOperation, Status};

use crate::function::{Dma, DmaId, MediaKind};
use crate::nvme::Controller;
use crate::nvme::admin::{HostView, events};
use crate::nvme::cells::SHUTDOWN_SLOT;
use crate::nvme::command::{CommandCells, Event, Next, Origin, Outcome, State, Work, dma_id};
use crate::nvme::gate::Admission;
use crate::nvme::io;
use crate::nvme::queues::shadow::Shadow;
use crate::nvme::queues::{Doorbell, SQE_BYTES};
use crate::nvme::transfer::DataPointer;

/// Entries that one verb takes from the queues.
const FETCH_BURST: usize = 32;
/// Commands that wait for the medium while no more are taken from the memory buffer: each has pages, and pages that are
/// used again soon are still in the processor's caches.
const MEDIA_AHEAD: usize = 4;
/// PSDT of commands with an SGL: the metadata, which there are none of, as a buffer or as an SGL.
const SGL: core::ops::RangeInclusive<u8> = 1..=2;

/// From a doorbell to a decoded command.
impl<'m> Controller<'m> {
    pub(super) fn command(&self, slot: u16) -> &'m CommandCells {
        self.table.command(slot)
    }

    /// The real doorbell of a queue was rung (NVMe PCIe 1.0 §3.1.2).
    pub(super) fn ring(&mut self, bell: Doorbell, value: u32) {
        let value = value & 0xffff;
        if !self.registers.is_processing() {
            return;
        }
        if !self.queues.exists(bell) {
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

    /// Takes entries from the queues, round robin, the admin queue first. Returns whether there was one.
    pub(super) fn fetch_entries(&mut self) -> bool {
        if self.queues.whose_turn().is_none() || !self.registers.is_processing() {
            return false;
        }
        (0..FETCH_BURST).take_while(|_| self.fetch_entry()).count() > 0
    }

    fn fetch_entry(&mut self) -> bool {
        let Some(queue) = self.queues.whose_turn() else { return false };
        if queue != 0 && !self.limit.may_take(self.now, self.table.fetching) {
            return false;
        }
        let is_here = self.queues.submission(queue).is_in_buffer();
        if queue != 0 && is_here && self.table.media.len() >= MEDIA_AHEAD {
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
    pub(super) fn take_entry(&mut self, slot: u16, offset: usize, data: &[u8], last: bool) {
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

    /// Does what a decoded command says.
    fn execute(&mut self, slot: u16) {
        let command = self.command(slot);
        let entry = command.entry();
        let origin = command.origin.update(self.journal, |mut origin| {
            origin.cid = entry.cid.get();
            origin
        });
        let next = match (origin.sq, entry.psdt()) {
            // No SGLs on the admin queue (NVMe 2.0 §4.1).
            (0, 0) if entry.fused() == FusedOperation::NORMAL => {
                let next = self.execute_admin(slot, &entry);
                self.report_events();
                next
            }
            (0, _) => Err(Status::INVALID_FIELD),
            (_, psdt) if psdt == 0 || SGL.contains(&psdt) => self.execute_queued(slot, &entry),
            _ => Err(Status::INVALID_FIELD),
        };
        self.follow(slot, next);
    }
}

/// From a decoded command to its end.
impl<'m> Controller<'m> {
    /// Does what is next for a command.
    pub(super) fn follow(&mut self, slot: u16, next: Result<Next, Status>) {
        match next {
            Ok(Next::Complete(result)) => self.complete(slot, result, Status::SUCCESS),
            Ok(Next::Keep(result)) if !self.subsystem.config.keeps_state => {
                self.complete(slot, result, Status::SUCCESS);
            }
            Ok(Next::Keep(result)) => {
                let version = self.subsystem.want_persisted();
                self.complete_after(slot, version, Outcome { result, ..Outcome::default() });
            }
            Ok(Next::Transfer(work, len)) => {
                let next = self.pointer(slot).begin(work, len);
                self.follow(slot, next);
            }
            Ok(Next::Store) => {
                let next = self.pointer(slot).begin_moving(Event::HaveData);
                self.follow(slot, next);
            }
            Ok(Next::Loaded) => self.end_load(slot),
            Ok(Next::Media(work)) => {
                self.command(slot).media.set(self.journal, work);
                self.admit(slot);
            }
            Ok(Next::Step(event)) => {
                self.table.step(slot, event);
                if event == Event::NeedPages {
                    self.serve_waiting();
                }
            }
            Ok(Next::CreateQueue) => {
                let next = self.finish_create_queue(slot);
                self.follow(slot, next);
            }
            Ok(Next::SecondHalf) => self.begin_second_half(slot),
            Ok(Next::Wait) => {}
            // What the host's memory did not give it may give the next time.
            Err(Status::DATA_TRANSFER_ERROR) => self.complete(slot, 0, Status::DATA_TRANSFER_ERROR),
            Err(status) => self.complete(slot, 0, status.with_dnr()),
        }
    }

    pub(super) fn pointer(&self, slot: u16) -> DataPointer<'_> {
        DataPointer { slot, command: self.command(slot), journal: self.journal, buffer: &self.buffer }
    }

    pub(super) fn host_view(&self) -> HostView<'_> {
        HostView { config_space: &self.config_space, registers: &self.registers, now: self.now }
    }

    /// Whether completed writes may wait for a flush: there is a cache that the host sees, and has not turned off.
    fn has_cache(&self) -> bool {
        self.registers.shows_cache() && self.admin.features.write_cache()
    }

    /// Gives pages to those who wait for them.
    pub(super) fn serve_waiting(&mut self) {
        while let Some(slot) = self.table.take_pages() {
            let command = self.command(slot);
            let next = match command.work() {
                Work::Report => {
                    self.admin.report(command, &self.host_view());
                    self.report_events();
                    Ok(Next::Store)
                }
                Work::Read => Ok(io::read(command)),
                Work::Verify | Work::SelfTest => Ok(io::next_piece(command)),
                _ => self.pointer(slot).begin_moving(Event::NeedData),
            };
            self.follow(slot, next);
        }
    }

    /// All data of a command have come from the host.
    fn end_load(&mut self, slot: u16) {
        let command = self.command(slot);
        let has_cache = self.has_cache();
        let next = match command.work() {
            Work::Admin => self.admin.loaded(command, self.now),
            Work::Compare | Work::Write if command.partner.get() != 0 => return self.end_half_load(slot),
            _ => self.nvm.loaded(command, has_cache, &mut self.limit),
        };
        self.follow(slot, next);
    }

    /// Lets a command's decided work through to the medium, or keeps it until the namespace is free.
    fn admit(&mut self, slot: u16) {
        let command = self.command(slot);
        match self.gate.admission(slot, command) {
            Admission::Now if command.work() == Work::Delete => {
                self.gate.release(slot, command);
                let next = self.admin.end_delete(command);
                self.follow(slot, Ok(next));
            }
            Admission::Now => {
                self.gate.enter(command);
                self.table.step(slot, Event::NeedMedia);
                let flush = command.media.get().kind.get() == MediaKind::Flush;
                if flush && !self.journal.rule(Rule::FlushWaits) {
                    self.end_media(slot);
                }
            }
            Admission::Later if command.state() == State::Parked => {}
            Admission::Later => self.table.step(slot, Event::Park),
            Admission::Never => self.follow(slot, Err(Status::INVALID_NAMESPACE_OR_FORMAT)),
        }
    }

    /// Lets in who waited for a namespace, first come, first served.
    pub(super) fn serve_parked(&mut self) {
        let mut position = 0;
        while let Some(slot) = self.table.parked.get(position) {
            self.admit(slot);
            if self.table.parked.get(position) == Some(slot) {
                position += 1;
            }
        }
    }

    /// What commands have for the medium that has not been given out.
    pub(super) fn prepare_media(&mut self) {
        self.serve_waiting();
        self.serve_parked();
        while self.table.media.len() == 0 && self.fetch_entries() {}
    }

    /// The medium has done a piece of a command's work.
    pub(super) fn end_media(&mut self, slot: u16) {
        let command = self.command(slot);
        let next = match command.work() {
            Work::Shutdown => return self.end_shutdown(true),
            Work::Format | Work::SelfTest => self.admin.ended(command, true),
            _ => self.nvm.ended(command, self.has_cache()),
        };
        self.follow(slot, next);
    }

    /// Ends a command that has data neither to take nor to give any more.
    pub(super) fn complete(&mut self, slot: u16, result: u32, status: Status) {
        let command = self.command(slot);
        if !status.is_success() {
            self.admin.errors.note(command, status);
        }
        self.gate.release(slot, command);
        self.table.end(slot, Outcome { result, status: status.bits(), reserved: 0 });
        if !status.is_success() {
            self.fail_partner(slot);
        }
    }

    pub(super) fn complete_after(&mut self, slot: u16, version: u64, outcome: Outcome) {
        self.gate.release(slot, self.command(slot));
        self.table.end_after(slot, version, outcome);
    }

    /// Ends a command with an error that says that the medium has lost something, when the owner keeps that.
    pub(super) fn complete_lost(&mut self, slot: u16, status: Status) {
        let version = self.subsystem.note_fault();
        if !self.waits_to_be_kept(version) {
            return self.complete(slot, 0, status);
        }
        self.complete_after(slot, version, Outcome { status: status.bits(), ..Outcome::default() });
    }

    /// Whether the owner is to keep that, and has not said what became of it.
    pub(super) fn waits_to_be_kept(&self, version: u64) -> bool {
        self.subsystem.config.keeps_state && self.subsystem.is_persisted(version).is_none()
    }

    /// Completes commands whose change is kept, or could not be.
    pub(super) fn serve_saving(&mut self) {
        if self.table.saving == 0 {
            return;
        }
        for slot in self.table.in_state(State::Saving) {
            let command = self.command(slot);
            let Outcome { result, status, .. } = command.outcome.get();
            match (self.subsystem.is_persisted(command.list.get()), Status::from_bits(status)) {
                (Some(_), _) if slot == SHUTDOWN_SLOT => self.end_shutdown(false),
                (Some(false), Status::SUCCESS) => self.complete(slot, 0, Status::INTERNAL_ERROR),
                (Some(_), status) => self.complete(slot, result, status),
                (None, _) => {}
            }
        }
    }

    /// Nobody waits for the command any more.
    pub(super) fn abandon(&mut self, slot: u16) {
        let command = self.command(slot);
        if !matches!(command.state(), State::Free | State::Orphan | State::Media) {
            self.gate.release(slot, command);
        }
        self.table.abandon(slot);
    }

    /// The medium is done with an orphan, for which something may have waited.
    pub(super) fn forget(&mut self, slot: u16) {
        self.gate.release(slot, self.command(slot));
        self.table.forget(slot);
        for slot in self.table.in_state(State::Draining) {
            if !self.table.has_orphans_of(self.command(slot).entry().cdw10.get() as u16) {
                self.complete(slot, 0, Status::SUCCESS);
            }
        }
        self.update_ready();
    }
}

/// To the host and back.
impl Controller<'_> {
    /// Whether there is an access to the host's memory that nothing but its driver keeps from being sent.
    pub(super) fn has_to_send(&self) -> bool {
        let may_send = self.config_space.bus_master() && !self.registers.csts().cfs();
        may_send && (self.table.sending.len() > 0 || self.shadows.has_to_send())
    }

    /// The read of a submission queue entry.
    pub(super) fn fetch(&self, slot: u16) -> Dma {
        let command = self.command(slot);
        let Origin { sq, index, .. } = command.origin.get();
        let address = self.queues.submission(sq).address(index);
        Dma::Read { id: dma_id(slot, 0, command.uses.get()), address, len: SQE_BYTES as u16 }
    }

    /// The completion queue entry of a command, or `None` when its queue is full: it then waits for the doorbell.
    pub(super) fn post(&mut self, slot: u16) -> Option<Dma> {
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
        Some(posted.dma)
    }

    /// Takes what the read of a shadow doorbell has brought.
    pub(super) fn take_shadow(&mut self, id: DmaId, offset: usize, data: &[u8], last: bool) {
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
}
