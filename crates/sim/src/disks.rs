//! The lender's disks: what its card asks of them, inline or in the agent's ring, which outlives the card.

use base::ledger::Journal;
use base::{Instant, Rule};
use device::{MediaError, MediaKind};
use node::{Card, MediaWork};

use crate::checkers::names;
use crate::death::survive;
use crate::disk::Submitted;
use crate::loans::DiskMode;
use crate::marks::Mark;
use crate::media::{Media, Written};
use crate::replaced::Replaced;
use crate::world::{Event, LENDER, World};

impl<'w> World<'w> {
    /// The card's work for a disk.
    pub(crate) fn serve_media(&mut self) {
        while !self.report.has_failed() && !self.dies_here(LENDER) && !self.is_busy_with_memory() {
            let Some(card) = self.nodes[LENDER].card.as_mut() else { return };
            match survive(|| card.poll_media()) {
                Ok(Some(work)) => self.do_media(work),
                Ok(None) => return,
                Err(end) => return self.end_card(LENDER, end),
            }
        }
    }

    fn do_media(&mut self, mut work: MediaWork<'w>) {
        // A flush is for the whole medium; the other functions' parts of it are disks of their own here.
        let area = self.area_of(&work);
        if work.kind != MediaKind::Flush {
            work.offset -= self.loans[area].base;
        }
        self.report.judge(names::COMMIT_BEFORE_SEND, self.nodes[LENDER].check_commit());
        if self.dies_here(LENDER) {
            return;
        }
        self.report.log.event(
            self.clock.now,
            Some(LENDER),
            "media",
            work.offset,
            u64::from(work.len) << 3 | kind_number(work.kind),
        );
        self.report.log.note(format_args!(
            "{:?} {:?} {}+{} of {}, area {area}",
            work.id, work.kind, work.offset, work.len, work.loan
        ));
        let loan = work.loan;
        if self.loans[loan].mode == DiskMode::Ring {
            let waits = work.kind == MediaKind::Flush
                && self.media.as_mut().is_some_and(|media| media.waits_for_flush(&work));
            if !waits {
                self.submit(area, work);
            }
            return;
        }
        self.begin_with_memory();
        let journal = self.nodes[LENDER].kernel();
        let tenant = self.watch.tenant_of(&self.nodes[LENDER], loan);
        self.loans[loan].check_owner(self.clock.now, &work, tenant, &mut self.report);
        if self.dies_here(LENDER) || self.dies_writing(&work) {
            if self.media.is_some() {
                // What a card hears that dies of it, nobody else hears from it.
                let _ = self.execute(area, &work, journal);
                return;
            }
            let done = self.random.below(u64::from(work.len) + 1) as usize;
            let is_half = self.loans[area].disk.execute_part(&work, journal, done);
            self.report
                .log
                .note(format_args!("loan {loan} died in the middle of {}+{}", work.offset, work.len));
            return self.report.marks.set_if(Mark::HalfWritten, is_half);
        }
        let result = self.execute(area, &work, journal);
        if self.dies_hearing(&work, result) {
            return;
        }
        if !self.terms.rules.has(Rule::MarkEffects) {
            self.loans[loan].unmarked.push(work.id);
            let after = self.random.below(6_000_000);
            return self.clock.after(after, Event::Mark(loan));
        }
        if self.act(LENDER, |card, now| card.handle_media(now, loan, work.id, result)) {
            self.wake_at(LENDER, self.clock.now);
        }
    }

    /// Without the rule that an effect is marked before the next one, marks come late and in any order.
    pub(crate) fn mark_late(&mut self, loan: usize) {
        if self.loans[loan].unmarked.is_empty() || self.nodes[LENDER].card.is_none() {
            return;
        }
        let index = self.random.index(self.loans[loan].unmarked.len());
        let id = self.loans[loan].unmarked.swap_remove(index);
        if self.act(LENDER, |card, now: Instant| card.handle_media(now, loan, id, Ok(()))) {
            self.service(LENDER);
        }
    }

    fn submit(&mut self, area: usize, work: MediaWork<'w>) {
        let loan = work.loan;
        let submitted = Submitted {
            work,
            journal: self.nodes[LENDER].kernel(),
            card: self.nodes[LENDER].cards,
            borrower: self.watch.tenant_of(&self.nodes[LENDER], loan),
        };
        let after = match self.random.below(10) {
            0 => self.random.range(1_000_000, 25_000_000),
            _ => self.random.range(5_000, 600_000),
        };
        let ring = &mut self.loans[area].disk.ring;
        let number = ring.last_key_value().map_or(0, |(last, _)| last + 1).max(self.clock.now << 8);
        ring.insert(number, submitted);
        self.clock.after(after, Event::Ring(area, number));
    }

    /// The disk has done something.
    pub(crate) fn ring_done(&mut self, area: usize, number: u64) {
        let Some(submitted) = self.loans[area].disk.ring.remove(&number) else { return };
        let loan = submitted.work.loan;
        let (watch, mut scene) = self.scene();
        watch.check_incarnation(&mut scene, loan, submitted.borrower);
        self.loans[loan].check_owner(self.clock.now, &submitted.work, submitted.borrower, &mut self.report);
        let result = self.execute(area, &submitted.work, submitted.journal);
        self.report.log.event(self.clock.now, Some(LENDER), "done", submitted.work.offset, number);
        self.report.log.note(format_args!("{:?}", submitted.work.id));
        if self.nodes[LENDER].card.is_none() {
            self.report.marks.set(Mark::DiskOutlivedCard);
        }
        if submitted.card != self.nodes[LENDER].cards
            || self.dies_here(LENDER)
            || self.dies_hearing(&submitted.work, result)
        {
            return self.leave_result(&submitted.work, result);
        }
        let (ended, next) = match &mut self.media {
            Some(media) if submitted.work.kind == MediaKind::Flush => media.flush_ended(&submitted.work),
            _ => (vec![submitted.work], None),
        };
        for work in ended {
            if !self.act(LENDER, |card, now| card.handle_media(now, work.loan, work.id, result)) {
                return self.leave_result(&submitted.work, result);
            }
        }
        if let Some(next) = next {
            self.submit(next.loan, next);
        }
        self.service(LENDER);
    }

    /// How many requests the disks have not ended yet.
    pub(crate) fn in_rings(&self) -> usize {
        self.loans.iter().map(|loan| loan.disk.ring.len()).sum()
    }

    /// The disks end everything at once, in any order; the results are no one's any more.
    pub(crate) fn drain_rings(&mut self) {
        for loan in 0..self.loans.len() {
            while !self.loans[loan].disk.ring.is_empty() {
                let keys: Vec<u64> = self.loans[loan].disk.ring.keys().copied().collect();
                let key = keys[self.random.index(keys.len())];
                let Some(submitted) = self.loans[loan].disk.ring.remove(&key) else { break };
                let (work, borrower) = (&submitted.work, submitted.borrower);
                self.loans[work.loan].check_owner(self.clock.now, work, borrower, &mut self.report);
                let result = self.execute(loan, &submitted.work, submitted.journal);
                self.leave_result(&submitted.work, result);
                self.report.log.event(self.clock.now, Some(LENDER), "drain", submitted.work.offset, key);
                self.report.marks.set(Mark::DiskOutlivedCard);
            }
        }
    }

    /// Does a piece of work for a disk.
    fn execute(&mut self, area: usize, work: &MediaWork<'w>, journal: Journal<'w>) -> Result<(), MediaError> {
        if let Some(media) = &mut self.media {
            return media.execute(&mut self.loans, work, journal, &mut self.report.marks);
        }
        self.loans[area].disk.execute(work, journal);
        Ok(())
    }

    /// Whether the card dies when it is about to be told that a flush has failed.
    fn dies_hearing(&mut self, work: &MediaWork<'w>, result: Result<(), MediaError>) -> bool {
        let fails = work.kind == MediaKind::Flush && result.is_err() && !self.faults.are_over();
        let dies = fails && self.media.as_mut().is_some_and(Media::kills);
        if dies {
            self.bury(LENDER);
        }
        dies
    }

    /// A result in the ring that no card has taken.
    fn leave_result(&mut self, work: &MediaWork<'w>, result: Result<(), MediaError>) {
        if let (Some(media), Err(error)) = (&mut self.media, result) {
            media.leave_result(work, error);
        }
    }

    /// A new card of the lender hears what earlier ones were told, before it serves anything. False if it dies of that.
    pub(crate) fn tell_losses(&mut self) -> bool {
        for drive in 0..self.media.as_ref().map_or(0, Media::drives) {
            let inheritance = self.media.as_ref().map(|media| media.inheritance(drive));
            let (orders, losses) = inheritance.unwrap_or_default();
            let losses = if self.terms.rules.has(Rule::HeedTheDead) { losses } else { 0 };
            if orders > 0 && !self.act(LENDER, |card, now| card.clear_fault(now, drive, orders)) {
                return false;
            }
            for _ in 0..losses {
                self.report.marks.set(Mark::LossInherited);
                if !self.act(LENDER, |card, now| card.note_fault(now, drive)) {
                    return false;
                }
                self.media.iter_mut().for_each(|media| media.is_told(drive));
            }
        }
        true
    }

    /// What a card of the lender wants kept.
    pub(crate) fn serve_records(&mut self) {
        let Some(media) = &mut self.media else { return };
        while let Some((drive, persist)) = self.nodes[LENDER].card.as_mut().and_then(Card::poll_persist) {
            self.clock.after(media.keep(drive, persist), Event::Kept(drive));
        }
    }

    /// The state folder has what a card wanted kept.
    pub(crate) fn record_is_durable(&mut self, drive: usize) {
        let is_calm = self.faults.are_over();
        let media = self.media.as_mut();
        let written = media.and_then(|media| media.write_record(drive, &mut self.loans, is_calm));
        let Some(Written { version, is_kept, is_lost }) = written else { return };
        let what = if is_kept { "kept" } else { "unkept" };
        self.report.log.event(self.clock.now, Some(LENDER), what, version, is_lost.into());
        if self.act(LENDER, |card, now| card.handle_persisted(now, drive, version, is_kept)) {
            self.service(LENDER);
        }
    }

    /// The agent looks at its images, and may find that somebody else has written to them.
    pub(crate) fn look_at_lent_images(&mut self) {
        if !self.replaced.as_ref().is_some_and(Replaced::is_altered) {
            return;
        }
        for drive in 0..self.media.as_ref().map_or(0, Media::drives) {
            self.media.iter_mut().for_each(|media| media.note_altered(drive, &mut self.loans));
            self.act(LENDER, |card, now| card.note_fault(now, drive));
        }
        if self.nodes[LENDER].card.is_some() {
            self.service(LENDER);
        }
    }

    /// The card says that a medium has lost something: an operator hears of it.
    pub(crate) fn report_loss(&mut self, drive: usize) {
        let Some(media) = &mut self.media else {
            let what = "a medium that never fails is said to have lost something";
            return self.report.fail(names::MEDIA, what.into());
        };
        self.report.marks.set(Mark::LossReported);
        if let Some(after) = media.report_loss(drive) {
            self.clock.after(after, Event::Clear(drive));
        }
    }

    /// An operator has looked, and clears the drive.
    pub(crate) fn clear_medium(&mut self, drive: usize) {
        let Some(media) = self.media.as_mut().filter(|media| media.is_reported(drive)) else { return };
        if self.nodes[LENDER].card.is_none() {
            return self.clock.after(5_000_000, Event::Clear(drive));
        }
        let order = media.clear(drive, &mut self.loans);
        self.report.log.event(self.clock.now, None, "clear", drive as u64, 0);
        if self.act(LENDER, |card, now| card.clear_fault(now, drive, order)) {
            self.service(LENDER);
        }
    }

    /// The kernel's turn at a medium.
    pub(crate) fn turn_medium(&mut self, drive: usize) {
        let Some(media) = &mut self.media else { return };
        let lender = (self.nodes[LENDER].card.as_ref(), self.faults.are_over());
        let after = media.take_turn(drive, &mut self.loans, lender, &self.report.log);
        self.clock.after(after, Event::Medium(drive));
    }

    /// What requests that have ended say of a medium.
    pub(crate) fn judge_flushes(&mut self, loan: usize) {
        if let Some(media) = &self.media {
            media.judge_flushes(loan, &mut self.loans[loan], &mut self.report);
        }
    }
}

/// What stands for a kind in the log's hash.
fn kind_number(kind: MediaKind) -> u64 {
    match kind {
        MediaKind::Read => 0,
        MediaKind::Write => 1,
        MediaKind::Flush => 2,
        MediaKind::Trim => 3,
        MediaKind::Zero { deallocate } => 4 + u64::from(deallocate),
    }
}
