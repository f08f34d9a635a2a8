//! How commands move through the table: the only place that changes a command's state, and with it the card's lines.

use base::Rule;
use base::ledger::{PAGE_SIZE, Slots};
use spec::nvme::Status;

use crate::nvme::Controller;
use crate::nvme::cells::{ADMIN_COMMANDS, COMMANDS, DATA_PAGES, EXTRA_PAGES, SHUTDOWN_SLOT, SLOTS};
use crate::nvme::command::{
    CommandCells, Counts, Event, Origin, Outcome, Progress, RangeCursor, SglCursor, State, Target, Work,
};

impl<'m> Controller<'m> {
    /// A slot from the table of those in use, or one that a name from outside was found to stand for (`dma_target`,
    /// `media_target`).
    pub(crate) fn command(&self, slot: u16) -> &'m CommandCells {
        &self.cells.commands[usize::from(slot)]
    }

    pub(crate) fn slots(&self) -> Slots<'m, { COMMANDS / 64 }> {
        Slots::new(&self.cells.slots, self.journal)
    }

    /// Every slot that is in use. The memory of others is not touched: most controllers have few.
    pub(crate) fn busy_slots(&self) -> impl Iterator<Item = u16> + use<'m> {
        let cells = self.cells;
        let slots = self.slots().iter().chain([SHUTDOWN_SLOT]);
        slots.filter(move |slot| cells.commands[usize::from(*slot)].state() != State::Free)
    }

    /// Takes a slot for the next entry of a queue; I/O queues leave some to the admin queue.
    pub(crate) fn take_slot(&self, origin: Origin) -> Option<u16> {
        let slots = self.slots();
        if origin.sq != 0 && slots.used() >= COMMANDS - ADMIN_COMMANDS {
            return None;
        }
        let slot = slots.alloc()?;
        self.prepare(slot, origin);
        Some(slot)
    }

    /// Makes a free slot ready for a new command.
    pub(crate) fn prepare(&self, slot: u16, origin: Origin) {
        let (command, journal) = (self.command(slot), self.journal);
        command.uses.update(journal, |uses| uses.wrapping_add(1));
        command.origin.set(journal, origin);
        command.outcome.set(journal, Outcome::default());
        command.counts.set(journal, Counts::default());
        command.progress.set(journal, Progress::default());
        command.ranges.set(journal, RangeCursor::default());
        command.target.set(journal, Target::default());
        command.sgl.set(journal, SglCursor::default());
        command.partner.set(journal, 0);
        command.exclusive.set(journal, 0);
        command.clear_healed(journal);
    }

    pub(crate) fn set_work(&self, slot: u16, work: Work) {
        self.command(slot).work.set(self.journal, work.into());
    }

    /// Moves a command, keeping the lines in step.
    pub(crate) fn step(&mut self, slot: u16, event: Event) {
        let command = self.command(slot);
        let old = command.state();
        let new = old.next(event);
        // Whoever raises an event has looked at the state, or comes from the one line that only such commands are in.
        let new = new.unwrap_or_else(|| panic!("a command in state {old:?} has no {event:?}"));
        match old {
            _ if old.sends() && !new.sends() => {
                self.sending.remove(slot);
                self.held.remove(slot);
            }
            State::Waiting => self.waiting.remove(slot),
            State::Parked => self.parked.remove(slot),
            State::Media | State::Orphan if new != State::Orphan => self.media.remove(slot),
            _ => {}
        }
        command.state.set(self.journal, new.into());
        match (old.fetches(), new.fetches()) {
            (false, true) => self.fetching += 1,
            (true, false) => self.fetching -= 1,
            _ => {}
        }
        match new {
            _ if new.sends() => {
                if old.sends() {
                    return;
                }
                self.sending.push(slot);
            }
            State::Waiting => self.waiting.push(slot),
            State::Parked => self.parked.push(slot),
            State::Media => self.media.push(slot),
            State::Free => return self.free(slot),
            _ => return,
        }
        command.order.set(self.journal, self.cells.next_order.get());
        self.cells.next_order.update(self.journal, |order| order.wrapping_add(1));
    }

    fn free(&mut self, slot: u16) {
        self.release_pages(slot);
        self.release_namespace(slot);
        if slot != SHUTDOWN_SLOT {
            self.slots().free(slot);
        }
    }

    /// Ends a command that has data neither to take nor to give any more.
    pub(crate) fn complete(&mut self, slot: u16, result: u32, status: Status) {
        if !status.is_success() {
            self.errors.note(self.command(slot), status);
        }
        let outcome = Outcome { result, status: status.bits(), reserved: 0 };
        self.command(slot).outcome.set(self.journal, outcome);
        // The page of a write that is just leaving has to live a little longer.
        if self.command(slot).state() != State::Store {
            self.release_pages(slot);
        }
        self.release_namespace(slot);
        self.step(slot, Event::End);
        if !status.is_success() {
            self.fail_partner(slot);
        }
    }

    /// Ends a command when the owner keeps the change of the drive that it has made.
    pub(crate) fn complete_kept(&mut self, slot: u16, result: u32) {
        if !self.config.keeps_state {
            return self.complete(slot, result, Status::SUCCESS);
        }
        let version = self.subsystem.want_persisted();
        self.complete_after(slot, version, Outcome { result, ..Outcome::default() });
    }

    /// Ends a command with an error that says that the medium has lost something, when the owner keeps that.
    pub(crate) fn complete_lost(&mut self, slot: u16, status: Status) {
        let version = self.subsystem.note_fault();
        if !self.config.keeps_state || self.subsystem.is_persisted(version).is_some() {
            return self.complete(slot, 0, status);
        }
        self.complete_after(slot, version, Outcome { status: status.bits(), ..Outcome::default() });
    }

    fn complete_after(&mut self, slot: u16, version: u64, outcome: Outcome) {
        let command = self.command(slot);
        command.list.set(self.journal, version);
        command.outcome.set(self.journal, outcome);
        self.release_pages(slot);
        self.release_namespace(slot);
        self.saving += 1;
        self.step(slot, Event::Save);
    }

    /// Completes commands whose change is kept, or could not be.
    pub(crate) fn serve_saving(&mut self) {
        if self.saving == 0 {
            return;
        }
        for slot in self.busy_slots() {
            let command = self.command(slot);
            if command.state() != State::Saving {
                continue;
            }
            let Outcome { result, status, .. } = command.outcome.get();
            match (self.subsystem.is_persisted(command.list.get()), Status::from_bits(status)) {
                (Some(false), Status::SUCCESS) => self.complete(slot, 0, Status::INTERNAL_ERROR),
                (Some(_), status) => self.complete(slot, result, status),
                (None, _) => {}
            }
        }
        self.count_saving();
    }

    fn count_saving(&mut self) {
        self.saving = self.busy_slots().filter(|slot| self.command(*slot).state() == State::Saving).count();
    }

    /// Whether a command that waits for the owner can go on.
    pub(crate) fn can_serve_saving(&self) -> bool {
        self.saving != 0
            && self.busy_slots().any(|slot| {
                let command = self.command(slot);
                command.state() == State::Saving && self.subsystem.is_persisted(command.list.get()).is_some()
            })
    }

    /// Nobody waits for the command any more: frees it now, or when the medium is done with it.
    pub(crate) fn abandon(&mut self, slot: u16) {
        match self.command(slot).state() {
            State::Free | State::Orphan => {}
            State::Media => {
                self.step(slot, Event::Abandon);
                self.cells.orphans.update(self.journal, |orphans| orphans + 1);
            }
            _ => self.step(slot, Event::Abandon),
        }
    }

    /// The medium is done with an orphan, for which something may have waited.
    pub(crate) fn forget(&mut self, slot: u16) {
        self.step(slot, Event::Forget);
        self.cells.orphans.update(self.journal, |orphans| {
            orphans.checked_sub(1).expect("every orphan was counted when it became one")
        });
        self.finish_deletions();
        self.update_ready();
    }

    /// Whether there are pages for the first of those who wait.
    pub(crate) fn can_serve_waiting(&self) -> bool {
        self.waiting.front().is_some_and(|slot| self.pages.has_free(self.wanted_pages(slot)))
    }

    fn wanted_pages(&self, slot: u16) -> usize {
        let command = self.command(slot);
        let data = (command.counts.get().len as usize).div_ceil(PAGE_SIZE);
        match command.work() {
            Work::Compare => data + 1,
            Work::Copy => DATA_PAGES + EXTRA_PAGES,
            _ => data,
        }
    }

    /// Takes all the pages for `len` bytes, or none: waiting commands hold nothing that another one waits for.
    pub(crate) fn take_pages(&self, slot: u16) -> bool {
        let command = self.command(slot);
        let counts = command.counts.get();
        let wanted = self.wanted_pages(slot);
        if !self.pages.has_free(wanted) {
            return false;
        }
        for index in 0..wanted {
            let Some(page) = self.pages.alloc() else {
                // Pages freed in this very step count as free, but cannot be had before the commit.
                (0..index).for_each(|index| self.pages.release(command.page(index)));
                return false;
            };
            command.write_page(self.journal, index, page);
        }
        command.counts.set(self.journal, Counts { pages: wanted as u16, ..counts });
        true
    }

    pub(crate) fn release_pages(&self, slot: u16) {
        let command = self.command(slot);
        let counts = command.counts.get();
        (0..usize::from(counts.pages)).for_each(|index| self.pages.release(command.page(index)));
        command.counts.set(self.journal, Counts { pages: 0, ..counts });
    }

    /// Gives pages to those who wait for them, first come, first served, so that large commands are not starved.
    pub(crate) fn serve_waiting(&mut self) {
        while let Some(slot) = self.waiting.front() {
            if !self.take_pages(slot) {
                return;
            }
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

    /// Makes the lines of a new card from what its predecessor left in the ledger.
    pub(crate) fn rebuild_lines(&mut self) {
        for line in [&mut self.sending, &mut self.waiting, &mut self.media, &mut self.held, &mut self.parked]
        {
            line.clear();
        }
        self.count_saving();
        self.fetching = self.busy_slots().filter(|slot| self.command(*slot).state().fetches()).count();
        let mut busy = [0; SLOTS];
        let mut count = 0;
        for slot in self.busy_slots() {
            busy[count] = slot;
            count += 1;
        }
        // What a dead card may have written half comes before all else.
        let redoes = self.journal.rule(Rule::RedoFirst);
        let is_redone = |slot: u16| redoes && self.command(slot).is_store();
        busy[..count].sort_unstable_by_key(|slot| (!is_redone(*slot), self.command(*slot).order.get()));
        self.redo = busy[..count].iter().filter(|slot| is_redone(**slot)).count();
        for slot in &busy[..count] {
            match self.command(*slot).state() {
                state if state.sends() => self.sending.push(*slot),
                State::Waiting => self.waiting.push(*slot),
                State::Parked => self.parked.push(*slot),
                State::Media | State::Orphan => self.media.push(*slot),
                _ => {}
            }
        }
    }
}
