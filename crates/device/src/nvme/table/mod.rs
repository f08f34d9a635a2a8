//! The table of commands: their slots, their pages, and the lines in which they stand. The only place that changes a
//! command's state.

pub(crate) mod cells;
pub(crate) mod command;
pub(crate) mod gate;
pub(crate) mod line;

use base::Rule;
use base::ledger::{Cell, Journal, Layout, PAGE_SIZE, PageIndex, Pages, SlotCells, Slots};
use zerocopy::FromBytes;

use self::command::{
    CommandCells, Counts, Event, MediaWork, Origin, Outcome, Progress, RangeCursor, SglCursor, State, Target,
    Work, media_id,
};
use self::line::Line;
use crate::function::{MediaId, MediaKind, MediaOp};
use crate::nvme::cells::{ADMIN_COMMANDS, COMMANDS, DATA_PAGES, EXTRA_PAGES, SHUTDOWN_SLOT, SLOTS};

/// Which slots are taken, and who came first.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct TableCells {
    slots: SlotCells<{ COMMANDS / 64 }>,
    /// The next stamp of [`CommandCells::order`].
    next_order: Cell<u64>,
    /// Commands of before a reset or a queue's deletion whose medium work has not ended.
    orphans: Cell<u64>,
}

/// Every command that was taken from a queue and has not been completed, and the flush of a shutdown. The lines live in
/// the card only: a new one makes them from what is in the ledger.
pub(crate) struct CommandTable<'m> {
    cells: &'m TableCells,
    commands: &'m [CommandCells; SLOTS],
    journal: Journal<'m>,
    pages: Pages<'m>,
    /// Commands with something to send to the host.
    pub(crate) sending: Line,
    /// Commands whose completion queue is full.
    held: Line,
    /// Commands that wait for pages.
    waiting: Line,
    /// Commands whose media work this card has not given out.
    pub(crate) media: Line,
    /// How many of the first of those write what a dead card may have written half.
    redo: usize,
    /// Commands whose namespace is another command's alone.
    pub(crate) parked: Line,
    /// Commands that wait for the owner to keep what they have changed.
    pub(crate) saving: usize,
    /// Entries on their way.
    pub(crate) fetching: usize,
    /// The pages of the last `MediaOp`.
    media_pages: [PageIndex; DATA_PAGES],
}

impl<'m> CommandTable<'m> {
    /// The table as whoever had it before has left it.
    pub(crate) fn new(
        cells: &'m TableCells,
        commands: &'m [CommandCells; SLOTS],
        journal: Journal<'m>,
        pages: Pages<'m>,
    ) -> Self {
        let mut table = Self {
            cells,
            commands,
            journal,
            pages,
            sending: Line::new(),
            held: Line::new(),
            waiting: Line::new(),
            media: Line::new(),
            redo: 0,
            parked: Line::new(),
            saving: 0,
            fetching: 0,
            media_pages: [PageIndex::default(); DATA_PAGES],
        };
        table.make_lines();
        table
    }

    fn make_lines(&mut self) {
        // What a dead card may have written half comes before all else.
        let redoes = self.journal.rule(Rule::RedoFirst);
        let is_redone = |command: &CommandCells| redoes && command.is_store();
        let (mut busy, mut count) = ([0; SLOTS], 0);
        for slot in self.busy() {
            busy[count] = slot;
            count += 1;
        }
        let key = |command: &CommandCells| (!is_redone(command), command.order.get());
        busy[..count].sort_unstable_by_key(|slot| key(self.command(*slot)));
        for slot in &busy[..count] {
            let command = self.command(*slot);
            self.redo += usize::from(is_redone(command));
            self.fetching += usize::from(command.state().fetches());
            match command.state() {
                state if state.sends() => self.sending.push(*slot),
                State::Waiting => self.waiting.push(*slot),
                State::Parked => self.parked.push(*slot),
                State::Media | State::Orphan => self.media.push(*slot),
                State::Saving => self.saving += 1,
                _ => {}
            }
        }
    }

    /// A slot from the table of those in use, or one that a name from outside was found to stand for (`dma_target`,
    /// `media_target`).
    pub(crate) fn command(&self, slot: u16) -> &'m CommandCells {
        &self.commands[usize::from(slot)]
    }

    pub(crate) fn slots(&self) -> Slots<'m, { COMMANDS / 64 }> {
        Slots::new(&self.cells.slots, self.journal)
    }

    /// Every slot that is in use. The memory of others is not touched: most controllers have few.
    pub(crate) fn busy(&self) -> impl Iterator<Item = u16> + use<'m> {
        let commands = self.commands;
        let slots = self.slots().iter().chain([SHUTDOWN_SLOT]);
        slots.filter(move |slot| commands[usize::from(*slot)].state() != State::Free)
    }

    /// Every slot whose command is in this state.
    pub(crate) fn in_state(&self, state: State) -> impl Iterator<Item = u16> + use<'m> {
        let commands = self.commands;
        self.busy().filter(move |slot| commands[usize::from(*slot)].state() == state)
    }

    /// Takes a slot for the next entry of a queue; I/O queues leave some to the admin queue.
    pub(crate) fn take(&self, origin: Origin) -> Option<u16> {
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
            State::Saving => self.saving -= 1,
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
            State::Saving => {
                self.saving += 1;
                return;
            }
            State::Free => return self.free(slot),
            _ => return,
        }
        command.order.set(self.journal, self.cells.next_order.get());
        self.cells.next_order.update(self.journal, |order| order.wrapping_add(1));
    }

    fn free(&mut self, slot: u16) {
        self.release_pages(slot);
        if slot != SHUTDOWN_SLOT {
            self.slots().free(slot);
        }
    }

    /// Ends a command that has data neither to take nor to give any more.
    pub(crate) fn end(&mut self, slot: u16, outcome: Outcome) {
        let command = self.command(slot);
        command.outcome.set(self.journal, outcome);
        // The page of a write that is just leaving has to live a little longer.
        if command.state() != State::Store {
            self.release_pages(slot);
        }
        self.step(slot, Event::End);
    }

    /// Ends a command with `outcome` when the owner keeps change `version` of the drive.
    pub(crate) fn end_after(&mut self, slot: u16, version: u64, outcome: Outcome) {
        let command = self.command(slot);
        command.list.set(self.journal, version);
        command.outcome.set(self.journal, outcome);
        self.release_pages(slot);
        self.step(slot, Event::Save);
    }

    /// Nobody waits for the command any more: frees it now, or when the medium is done with it.
    pub(crate) fn abandon(&mut self, slot: u16) {
        let state = self.command(slot).state();
        if state == State::Media {
            self.cells.orphans.update(self.journal, |orphans| orphans + 1);
        }
        if !matches!(state, State::Free | State::Orphan) {
            self.step(slot, Event::Abandon);
        }
    }

    /// The medium is done with an orphan.
    pub(crate) fn forget(&mut self, slot: u16) {
        self.step(slot, Event::Forget);
        self.cells.orphans.update(self.journal, |orphans| {
            orphans.checked_sub(1).expect("every orphan was counted when it became one")
        });
    }

    /// Whether the medium still works on commands that nobody waits for.
    pub(crate) fn has_orphans(&self) -> bool {
        self.cells.orphans.get() != 0
    }

    /// Whether the medium still works on commands of a deleted queue.
    pub(crate) fn has_orphans_of(&self, queue: u16) -> bool {
        self.has_orphans()
            && self.in_state(State::Orphan).any(|slot| self.command(slot).origin.get().sq == queue)
    }

    /// There is no room for a completion: it waits for the doorbell.
    pub(crate) fn hold(&mut self, slot: u16) {
        self.sending.remove(slot);
        self.held.push(slot);
    }

    /// There is room in a completion queue: who waited for that stands in line again; the others keep their place.
    pub(crate) fn send_held(&mut self, cq: u16) {
        for _ in 0..self.held.len() {
            let Some(slot) = self.held.pop() else { break };
            if self.command(slot).origin.get().cq == cq {
                self.sending.push(slot);
            } else {
                self.held.push(slot);
            }
        }
    }

    /// The bytes that the next work moves that this card has not given out; 0 for work without data.
    pub(crate) fn peek_media(&self) -> Option<u32> {
        let work = self.command(self.media.front()?).media.get();
        match work.kind.get() {
            MediaKind::Read | MediaKind::Write | MediaKind::Zero { deallocate: false } => Some(work.len),
            MediaKind::Flush | MediaKind::Trim | MediaKind::Zero { deallocate: true } => Some(0),
        }
    }

    /// The next work that this card has not given out.
    pub(crate) fn take_media(&mut self) -> Option<MediaOp<'_>> {
        let slot = self.media.pop()?;
        self.redo = self.redo.saturating_sub(1);
        let command = self.command(slot);
        let MediaWork { offset, len, kind, page, .. } = command.media.get();
        let kind = kind.get();
        let count = match kind {
            MediaKind::Read | MediaKind::Write => (len as usize).div_ceil(PAGE_SIZE),
            MediaKind::Flush | MediaKind::Trim | MediaKind::Zero { .. } => 0,
        };
        for (index, place) in self.media_pages.iter_mut().enumerate().take(count) {
            *place = command.page(usize::from(page) + index);
        }
        let pages = &self.media_pages[..count];
        Some(MediaOp { id: media_id(slot, command.uses.get()), kind, offset, len, pages })
    }

    /// Whether the next work writes what a dead card may have written half.
    pub(crate) fn must_redo(&self) -> bool {
        self.redo > 0 && self.media.front().is_some_and(|slot| self.command(slot).is_store())
    }

    /// Forgets what has been given out by another in this card. To be said of a table that was just made: what is to be
    /// redone comes first in it.
    pub(crate) fn keep_media(&mut self, is_given: &dyn Fn(MediaId) -> bool) {
        let mut left = Line::new();
        while let Some(slot) = self.media.pop() {
            if !is_given(media_id(slot, self.command(slot).uses.get())) {
                left.push(slot);
            }
        }
        let redone = (0..).map_while(|at| left.get(at)).take_while(|slot| self.command(*slot).is_store());
        self.redo = redone.count();
        self.media = left;
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

    /// Whether there are pages for the first of those who wait.
    pub(crate) fn has_pages(&self) -> bool {
        self.waiting.front().is_some_and(|slot| self.pages.has_free(self.wanted_pages(slot)))
    }

    /// Gives the first of those who wait all its pages, or none: waiting commands hold nothing that another one waits
    /// for. First come, first served, so that large commands are not starved. Returns who has them.
    pub(crate) fn take_pages(&self) -> Option<u16> {
        let slot = self.waiting.front()?;
        let command = self.command(slot);
        let wanted = self.wanted_pages(slot);
        if !self.pages.has_free(wanted) {
            return None;
        }
        for index in 0..wanted {
            let Some(page) = self.pages.alloc() else {
                // Pages freed in this very step count as free, but cannot be had before the commit.
                (0..index).for_each(|index| self.pages.release(command.page(index)));
                return None;
            };
            command.write_page(self.journal, index, page);
        }
        command.counts.update(self.journal, |counts| Counts { pages: wanted as u16, ..counts });
        Some(slot)
    }

    pub(crate) fn release_pages(&self, slot: u16) {
        let command = self.command(slot);
        let counts = command.counts.get();
        (0..usize::from(counts.pages)).for_each(|index| self.pages.release(command.page(index)));
        command.counts.set(self.journal, Counts { pages: 0, ..counts });
    }
}
