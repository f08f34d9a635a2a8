//! The lender's disks: what its card asks of them, inline or in the agent's ring, which outlives the card.

use base::Rule;
use base::ledger::Journal;
use device::{MediaError, MediaKind};
use link::Tenancy;
use node::{Card, MediaWork};

use crate::checkers::names;
use crate::death::survive;
use crate::disk::Submitted;
use crate::identity::{holder_of, life_of_id};
use crate::loans::{DiskMode, Loan};
use crate::marks::Mark;
use crate::media::{Media, Written};
use crate::replaced::Replaced;
use crate::shared::Shared;
use crate::stage::{Event, LENDER, Stage};

/// How a piece of work has ended.
type Done = Result<(), MediaError>;

/// What lies behind the loans: their media, and what is done to those.
pub(crate) struct Disks<'w> {
    /// In some worlds they have one namespace together.
    pub(crate) shared: Option<Shared>,
    /// In some worlds media fail.
    pub(crate) media: Option<Media<'w>>,
    /// In some worlds somebody replaces images.
    pub(crate) replaced: Option<Replaced>,
}

impl<'w> Disks<'w> {
    /// How many media fail, or keep what they are told to have lost.
    fn drives(&self) -> usize {
        self.media.as_ref().map_or(0, Media::drives)
    }

    /// The media's turns begin.
    pub(crate) fn begin(&self, stage: &mut Stage<'w>) {
        (0..self.drives()).for_each(|drive| stage.clock.after(1_000_000, Event::Medium(drive)));
    }

    /// Whose disk a piece of work is for.
    fn area_of(&self, loans: &[Loan<'_>], work: &MediaWork<'_>) -> usize {
        if self.shared.is_none() || work.kind == MediaKind::Flush {
            return work.loan;
        }
        loans.iter().rposition(|loan| loan.base <= work.offset).unwrap_or(work.loan)
    }

    /// The card's work for a disk.
    pub(crate) fn serve(&mut self, stage: &mut Stage<'w>) {
        while !stage.report.has_failed()
            && !stage.dies_here(LENDER)
            && !self.shared.as_ref().is_some_and(|shared| shared.is_busy(stage))
        {
            let Some(card) = stage.nodes[LENDER].card.as_mut() else { return };
            match survive(|| card.poll_media()) {
                Ok(Some(work)) => self.do_media(stage, work),
                Ok(None) => return,
                Err(end) => return stage.end_card(LENDER, end),
            }
        }
    }

    fn do_media(&mut self, stage: &mut Stage<'w>, mut work: MediaWork<'w>) {
        // A flush is for the whole medium; the other functions' parts of it are disks of their own here.
        let area = self.area_of(&stage.loans, &work);
        if work.kind != MediaKind::Flush {
            work.offset -= stage.loans[area].base;
        }
        stage.report.judge(names::COMMIT_BEFORE_SEND, stage.nodes[LENDER].check_commit());
        if stage.dies_here(LENDER) {
            return;
        }
        let what = u64::from(work.len) << 3 | kind_number(work.kind);
        stage.log(Some(LENDER), "media", work.offset, what);
        stage.report.log.note(format_args!(
            "{:?} {:?} {}+{} of {}, area {area}",
            work.id, work.kind, work.offset, work.len, work.loan
        ));
        if stage.loans[work.loan].mode == DiskMode::Inline {
            return self.do_inline(stage, area, &work);
        }
        let waits = work.kind == MediaKind::Flush
            && self.media.as_mut().is_some_and(|media| media.waits_for_flush(&work));
        if !waits {
            submit(stage, area, work);
        }
    }

    fn do_inline(&mut self, stage: &mut Stage<'w>, area: usize, work: &MediaWork<'w>) {
        let loan = work.loan;
        self.shared.iter_mut().for_each(|shared| shared.begin_work(stage.clock.now));
        let journal = stage.nodes[LENDER].kernel();
        let tenant = stage.watch.tenant_of(&stage.nodes[LENDER], loan);
        stage.loans[loan].check_owner(stage.clock.now, work, tenant, &mut stage.report);
        if stage.dies_here(LENDER)
            || self.shared.as_mut().is_some_and(|shared| shared.dies_writing(stage, work))
        {
            if self.media.is_some() {
                // What a card hears that dies of it, nobody else hears from it.
                let _ = self.execute(stage, area, work, journal);
                return;
            }
            let done = stage.random.below(u64::from(work.len) + 1) as usize;
            let is_half = stage.loans[area].disk.execute_part(work, journal, done);
            stage
                .report
                .log
                .note(format_args!("loan {loan} died in the middle of {}+{}", work.offset, work.len));
            return stage.report.marks.set_if(Mark::HalfWritten, is_half);
        }
        let result = self.execute(stage, area, work, journal);
        if self.dies_hearing(stage, work, result) {
            return;
        }
        if !stage.terms.rules.has(Rule::MarkEffects) {
            stage.loans[loan].unmarked.push(work.id);
            let after = stage.random.below(6_000_000);
            return stage.clock.after(after, Event::Mark(loan));
        }
        if stage.act(LENDER, |card, now| card.handle_media(now, loan, work.id, result)) {
            stage.wake_at(LENDER, stage.clock.now);
        }
    }

    /// Without the rule that an effect is marked before the next one, marks come late and in any order.
    pub(crate) fn mark_late(stage: &mut Stage<'w>, loan: usize) -> Option<usize> {
        if stage.loans[loan].unmarked.is_empty() || stage.nodes[LENDER].card.is_none() {
            return None;
        }
        let index = stage.random.index(stage.loans[loan].unmarked.len());
        let id = stage.loans[loan].unmarked.swap_remove(index);
        stage.act(LENDER, |card, now| card.handle_media(now, loan, id, Ok(()))).then_some(LENDER)
    }

    /// The disk has done something.
    pub(crate) fn ring_done(&mut self, stage: &mut Stage<'w>, area: usize, number: u64) -> Option<usize> {
        let submitted = stage.loans[area].disk.ring.remove(&number)?;
        let loan = submitted.work.loan;
        let (watch, mut scene) = stage.scene();
        watch.check_incarnation(&mut scene, loan, submitted.borrower);
        stage.loans[loan].check_owner(
            stage.clock.now,
            &submitted.work,
            submitted.borrower,
            &mut stage.report,
        );
        let result = self.execute(stage, area, &submitted.work, submitted.journal);
        stage.log(Some(LENDER), "done", submitted.work.offset, number);
        stage.report.log.note(format_args!("{:?}", submitted.work.id));
        if stage.nodes[LENDER].card.is_none() {
            stage.report.marks.set(Mark::DiskOutlivedCard);
        }
        if submitted.card != stage.nodes[LENDER].cards
            || stage.dies_here(LENDER)
            || self.dies_hearing(stage, &submitted.work, result)
        {
            self.leave_result(&submitted.work, result);
            return None;
        }
        let (ended, next) = match &mut self.media {
            Some(media) if submitted.work.kind == MediaKind::Flush => media.flush_ended(&submitted.work),
            _ => (vec![submitted.work], None),
        };
        for work in ended {
            if !stage.act(LENDER, |card, now| card.handle_media(now, work.loan, work.id, result)) {
                self.leave_result(&submitted.work, result);
                return None;
            }
        }
        if let Some(next) = next {
            submit(stage, next.loan, next);
        }
        Some(LENDER)
    }

    /// The disks end everything at once, in any order; the results are no one's any more.
    pub(crate) fn drain(&mut self, stage: &mut Stage<'w>) {
        for loan in 0..stage.loans.len() {
            while !stage.loans[loan].disk.ring.is_empty() {
                let keys: Vec<u64> = stage.loans[loan].disk.ring.keys().copied().collect();
                let key = keys[stage.random.index(keys.len())];
                let Some(submitted) = stage.loans[loan].disk.ring.remove(&key) else { break };
                let (work, borrower) = (&submitted.work, submitted.borrower);
                stage.loans[work.loan].check_owner(stage.clock.now, work, borrower, &mut stage.report);
                let result = self.execute(stage, loan, &submitted.work, submitted.journal);
                self.leave_result(&submitted.work, result);
                stage.log(Some(LENDER), "drain", submitted.work.offset, key);
                stage.report.marks.set(Mark::DiskOutlivedCard);
            }
        }
    }

    /// Does a piece of work for a disk.
    fn execute(
        &mut self,
        stage: &mut Stage<'w>,
        area: usize,
        work: &MediaWork<'w>,
        journal: Journal<'w>,
    ) -> Done {
        if let Some(media) = &mut self.media {
            return media.execute(&mut stage.loans, work, journal, &mut stage.report.marks);
        }
        stage.loans[area].disk.execute(work, journal);
        Ok(())
    }

    /// Whether the card dies when it is about to be told that a flush has failed.
    fn dies_hearing(&mut self, stage: &mut Stage<'w>, work: &MediaWork<'w>, result: Done) -> bool {
        let fails = work.kind == MediaKind::Flush && result.is_err() && !stage.is_calm();
        let dies = fails && self.media.as_mut().is_some_and(Media::kills);
        if dies {
            stage.bury(LENDER);
        }
        dies
    }

    /// A result in the ring that no card has taken.
    fn leave_result(&mut self, work: &MediaWork<'w>, result: Done) {
        if let (Some(media), Err(error)) = (&mut self.media, result) {
            media.leave_result(work, error);
        }
    }

    /// A new card of the lender hears what earlier ones were told, before it serves anything. False if it dies of that.
    pub(crate) fn tell_losses(&mut self, stage: &mut Stage<'w>) -> bool {
        let Some(media) = &mut self.media else { return true };
        for drive in 0..media.drives() {
            let (orders, losses) = media.inheritance(drive);
            let losses = if stage.terms.rules.has(Rule::HeedTheDead) { losses } else { 0 };
            if orders > 0 && !stage.act(LENDER, |card, now| card.clear_fault(now, drive, orders)) {
                return false;
            }
            for _ in 0..losses {
                stage.report.marks.set(Mark::LossInherited);
                if !stage.act(LENDER, |card, now| card.note_fault(now, drive)) {
                    return false;
                }
                media.is_told(drive);
            }
        }
        true
    }

    /// What a card of the lender wants kept.
    pub(crate) fn serve_records(&mut self, stage: &mut Stage<'w>) {
        let Some(media) = &mut self.media else { return };
        while let Some((drive, persist)) = stage.nodes[LENDER].card.as_mut().and_then(Card::poll_persist) {
            stage.clock.after(media.keep(drive, persist), Event::Kept(drive));
        }
    }

    /// The state folder has what a card wanted kept.
    pub(crate) fn record_is_durable(&mut self, stage: &mut Stage<'w>, drive: usize) -> Option<usize> {
        let is_calm = stage.is_calm();
        let written = self.media.as_mut()?.write_record(drive, &mut stage.loans, is_calm);
        let Written { version, is_kept, is_lost } = written?;
        let what = if is_kept { "kept" } else { "unkept" };
        stage.log(Some(LENDER), what, version, is_lost.into());
        let hears = |card: &mut Card<'w>, now| card.handle_persisted(now, drive, version, is_kept);
        stage.act(LENDER, hears).then_some(LENDER)
    }

    /// The agent looks at its images, and may find that somebody else has written to them.
    pub(crate) fn look_at_images(&mut self, stage: &mut Stage<'w>) -> Option<usize> {
        let media = self.media.as_mut()?;
        if !self.replaced.as_ref()?.is_altered {
            return None;
        }
        for drive in 0..media.drives() {
            media.note_altered(drive, &mut stage.loans);
            stage.act(LENDER, |card, now| card.note_fault(now, drive));
        }
        stage.nodes[LENDER].with_card()
    }

    /// The card says that a medium has lost something: an operator hears of it.
    pub(crate) fn report_loss(&mut self, stage: &mut Stage<'w>, drive: usize) {
        let Some(media) = &mut self.media else {
            let what = "a medium that never fails is said to have lost something";
            return stage.report.fail(names::MEDIA, what.into());
        };
        stage.report.marks.set(Mark::LossReported);
        if let Some(after) = media.report_loss(drive) {
            stage.clock.after(after, Event::Clear(drive));
        }
    }

    /// An operator has looked, and clears the drive.
    pub(crate) fn clear(&mut self, stage: &mut Stage<'w>, drive: usize) -> Option<usize> {
        let media = self.media.as_mut().filter(|media| media.is_reported(drive))?;
        if stage.nodes[LENDER].card.is_none() {
            stage.clock.after(5_000_000, Event::Clear(drive));
            return None;
        }
        let order = media.clear(drive, &mut stage.loans);
        stage.log(None, "clear", drive as u64, 0);
        stage.act(LENDER, |card, now| card.clear_fault(now, drive, order)).then_some(LENDER)
    }

    /// The kernel's turn at a medium.
    pub(crate) fn turn(&mut self, stage: &mut Stage<'w>, drive: usize) {
        let Some(media) = &mut self.media else { return };
        let lender = (stage.nodes[LENDER].card.as_ref(), stage.is_calm());
        let after = media.take_turn(drive, &mut stage.loans, lender, &stage.report.log);
        stage.clock.after(after, Event::Medium(drive));
    }

    /// Another life of the lender begins.
    pub(crate) fn lender_begins(&mut self, stage: &mut Stage<'w>) {
        let holder = |tenancy: &Tenancy| holder_of(tenancy).filter(|_| tenancy.is_held);
        let known: Vec<_> = stage.loans.iter().filter_map(|lent| holder(&lent.tenure.tenancy)).collect();
        let kept = stage.nodes[LENDER].holders.iter().flat_map(|holder| holder.copies);
        let twins: Vec<_> = kept.filter_map(life_of_id).collect();
        for lent in &mut stage.loans {
            lent.disk.end_half();
            lent.owner.lender_began(stage.clock.now);
            lent.take_over.lender_began(stage.clock.now, holder(&lent.tenure.tenancy), &known, &twins);
            lent.unmarked.clear();
        }
        self.media.iter_mut().for_each(|media| media.reopen(&mut stage.loans));
    }

    /// The lending node has lost its power.
    pub(crate) fn power_failed(&mut self, stage: &mut Stage<'w>) {
        self.media.iter_mut().for_each(Media::forget_errors);
        for lent in &mut stage.loans {
            lent.unmarked.clear();
            let lost = lent.disk.power_off(&mut stage.random);
            stage.report.marks.set_if(Mark::CacheLost, lost);
            let tick = lent.shared.next_tick();
            let verdict = lent.shared.model.power_failed(lent.disk.blocks(), tick);
            if lent.tenure.holder.is_none_or(|holder| stage.terms.guests[holder]) && stage.terms.has_guests()
            {
                // Guests write nothing again.
                lent.shared.model.mended();
            }
            stage.report.judge(names::DURABILITY, verdict);
        }
    }

    /// What requests that have ended say of a medium.
    pub(crate) fn judge_flushes(&self, stage: &mut Stage<'_>, loan: usize) {
        if let Some(media) = &self.media {
            media.judge_flushes(loan, &mut stage.loans[loan], &mut stage.report);
        }
    }
}

/// The agent's ring has a request from now on.
fn submit<'w>(stage: &mut Stage<'w>, area: usize, work: MediaWork<'w>) {
    let loan = work.loan;
    let submitted = Submitted {
        work,
        journal: stage.nodes[LENDER].kernel(),
        card: stage.nodes[LENDER].cards,
        borrower: stage.watch.tenant_of(&stage.nodes[LENDER], loan),
    };
    let after = match stage.random.below(10) {
        0 => stage.random.range(1_000_000, 25_000_000),
        _ => stage.random.range(5_000, 600_000),
    };
    let ring = &mut stage.loans[area].disk.ring;
    let number = ring.last_key_value().map_or(0, |(last, _)| last + 1).max(stage.clock.now << 8);
    ring.insert(number, submitted);
    stage.clock.after(after, Event::Ring(area, number));
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
