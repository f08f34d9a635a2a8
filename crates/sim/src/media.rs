//! In some worlds media fail to write what they were given, as Linux tells it: what is written lies in a page cache,
//! whatever was not written back may be dropped, and an error of writing back is told once an open file description, to
//! whoever flushes next.
//!
//! Beside the kernel's part here is the agent's: it keeps a second description as a witness and what the drive wants
//! kept in its state folder; and that of the operator, who says `device clear` some time after the card has said that
//! something is lost.

use std::collections::VecDeque;

use base::Rule;
use base::ledger::Journal;
use device::{MediaError, MediaKind};
use node::{Card, MediaWork};

use crate::checkers::names;
use crate::loans::{DiskMode, Loan};
use crate::marks::Mark;
use crate::random::Random;
use crate::slot::has_guests;
use crate::world::{Event, LENDER, World};

/// Told from other seeds.
const MEDIA: u64 = 0x3ed1_a000_0000;
/// Of a thousand flushes that fail, how often the card dies that is to be told.
const DEATHS: u64 = 300;
/// Flag of a drive's record that says that something is lost, and where it lies.
const FAULT: u8 = 1;
const FAULT_AT: usize = 24;

/// The media of a world in which they fail, by drive.
pub(crate) struct Media<'w> {
    random: Random,
    drives: Vec<Medium<'w>>,
    /// They fail now and then; else they only keep what they are told to have lost.
    fails: bool,
    /// Whether the loans are functions of one drive.
    pub(crate) is_common: bool,
}

/// The medium of a drive.
#[derive(Default)]
struct Medium<'w> {
    errors: Errors,
    /// Whether it fails at the moment.
    is_bad: bool,
    /// The agent's: its witness has told something, and no operator has seen to the medium since.
    has_lost: bool,
    /// Results in the ring that tell of a loss, and that no card has taken.
    left: u32,
    /// Flushes that the card has one at a time: whom the present one and the next one are for.
    flushes: [Vec<MediaWork<'w>>; 2],
    /// What the state folder has of the drive, and what is just being written there.
    record: Option<Vec<u8>>,
    writing: VecDeque<Record>,
    /// How often an operator has cleared it, and whether one is about to.
    clears: u64,
    is_reported: bool,
    /// The same since the present life of the lender began: each of its cards hears that.
    orders: u64,
    /// A loss could not be written there: it is known as long as the node lives.
    is_unkept: bool,
    /// A flush may fail.
    is_suspect: bool,
}

struct Record {
    version: u64,
    bytes: Vec<u8>,
    clears: u64,
}

/// Errors of writing back, and what the open file descriptions have told of them: Linux's `errseq_t`.
#[derive(Default)]
struct Errors {
    count: u64,
    /// Somebody was told of the last one.
    is_seen: bool,
    description: u64,
    witness: u64,
}

impl Errors {
    fn note(&mut self) {
        self.count += 1;
        self.is_seen = false;
    }

    /// A flush: whether there was an error since the last one.
    fn flush(&mut self) -> bool {
        let is_told = core::mem::replace(&mut self.description, self.count) != self.count;
        self.is_seen |= is_told;
        is_told
    }

    fn ask_witness(&mut self) -> bool {
        let is_told = core::mem::replace(&mut self.witness, self.count) != self.count;
        self.is_seen |= is_told;
        is_told
    }

    /// The file is opened again: what nobody was told is still to be told.
    fn open(&mut self) {
        self.description = self.count - u64::from(self.count > 0 && !self.is_seen);
        self.witness = self.description;
    }

    fn is_pending(&self) -> bool {
        self.description != self.count || self.witness != self.count
    }
}

/// What a medium excuses of its users' requests, and demands.
#[derive(Clone, Copy)]
pub(crate) struct Trouble {
    /// Flushes may fail that began before this tick.
    pub(crate) flushes_before: u64,
    /// Flushes that began at this tick or later fail, until an operator has cleared the drive.
    pub(crate) fails_from: u64,
    /// Reads and writes that have failed for want of space; and for other reasons.
    pub(crate) full: u32,
    pub(crate) failures: u32,
    /// The borrower's driver has lost something, which it will say at a flush.
    pub(crate) has_lost: bool,
    /// When the last flush began that has succeeded, and was not looked at.
    pub(crate) flushed: Option<u64>,
    /// A flush that began then has failed, and was not looked at.
    pub(crate) failed: Option<u64>,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            flushes_before: 0,
            fails_from: u64::MAX,
            full: 0,
            failures: 0,
            has_lost: false,
            flushed: None,
            failed: None,
        }
    }
}

/// How a request has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no space.
    Full,
    /// Any other error of the medium.
    Error,
    /// The same, or it took too long: nobody can tell.
    ErrorOrLate,
}

/// What a request wants of its medium.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Flush,
    /// A write that is to be durable.
    Both,
    Else,
}

impl Trouble {
    /// Whether a request that began at `start` may have failed. What the medium has failed itself explains one request
    /// only.
    pub(crate) fn explains(&mut self, asks: Asks, start: u64, failure: Failure) -> bool {
        let is_own = asks != Asks::Else && self.has_lost;
        let flushes = asks != Asks::Else && start < self.flushes_before;
        if failure != Failure::Full && (is_own || flushes) {
            let is_news = asks == Asks::Flush && !is_own;
            self.failed = is_news.then_some(start).or(self.failed);
            return true;
        }
        let left = if failure == Failure::Full { &mut self.full } else { &mut self.failures };
        let is_failure = asks != Asks::Flush && *left > 0;
        *left -= u32::from(is_failure && failure != Failure::ErrorOrLate);
        is_failure
    }

    /// A flush that began at `start`, or what implies one, has succeeded.
    pub(crate) fn allows_success(&self, start: u64) -> Result<(), String> {
        if start < self.fails_from {
            return Ok(());
        }
        let since = self.fails_from;
        Err(format!(
            "began at {start} and has succeeded, though the medium has lost something, and since {since} that is kept"
        ))
    }
}

impl<'w> Media<'w> {
    /// In a tenth of all worlds, and more of those with guests, which are few.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ MEDIA);
        let fails = random.chance(if has_guests(seed) { 250 } else { 100 });
        let is_common = random.chance(600);
        fails.then(|| Self { random, drives: Vec::new(), fails, is_common })
    }

    /// Media that do not fail by themselves.
    pub(crate) fn sound(seed: u64) -> Self {
        let mut random = Random::new(seed ^ MEDIA);
        let is_common = random.chance(600);
        Self { random, drives: Vec::new(), fails: false, is_common }
    }

    /// The media of so many loans.
    pub(crate) fn with(mut self, loans: usize) -> Self {
        let drives = if self.is_common { 1 } else { loans };
        self.drives.resize_with(drives, Medium::default);
        self
    }

    pub(crate) fn drives(&self) -> usize {
        self.drives.len()
    }

    fn drive_of(&self, loan: usize) -> usize {
        if self.is_common { 0 } else { loan }
    }

    /// What is kept of a drive.
    pub(crate) fn configure(&self, drive: usize, config: &mut device::nvme::Config) {
        config.keeps_state = true;
        config.saved.clone_from(&self.drives[drive].record);
    }

    /// Whether the lender's next reboot is one of its machine, and not of its program only.
    pub(crate) fn loses_power(&mut self) -> bool {
        self.random.chance(500)
    }

    /// Does a piece of work as the kernel does it. A flush is for the whole medium.
    fn execute(
        &mut self,
        loans: &mut [Loan<'w>],
        work: &MediaWork<'w>,
        journal: Journal<'w>,
    ) -> Result<(), MediaError> {
        let (drive, is_ring) = (self.drive_of(work.loan), loans[work.loan].mode == DiskMode::Ring);
        let (medium, random) = (&mut self.drives[drive], &mut self.random);
        if work.kind != MediaKind::Flush {
            if medium.is_bad && random.chance(25) {
                // Nothing of it has happened. What is written into the system's own memory may tell of what was written
                // before.
                let writes = work.kind != MediaKind::Read;
                let error = match random.below(3) {
                    0 if writes && is_ring => MediaError::Lost,
                    1 if writes => MediaError::NoSpace,
                    _ => MediaError::Io,
                };
                medium.is_suspect |= error == MediaError::Lost;
                return Err(error);
            }
            loans[work.loan].disk.execute(work, journal);
            return Ok(());
        }
        // A device that refuses to flush, which is no error of writing back: nobody but who has asked is told.
        let refuses = medium.is_bad && is_ring && random.chance(150);
        for (_, loan) in loans.iter_mut().enumerate().filter(|(loan, _)| self.is_common || *loan == work.loan)
        {
            for block in loan.disk.dirty_blocks() {
                let fails = medium.is_bad && random.chance(200);
                loan.disk.write_back(block, fails || refuses);
                if fails {
                    medium.errors.note();
                }
            }
        }
        medium.is_suspect |= refuses || medium.errors.is_pending();
        if medium.errors.flush() || refuses { Err(MediaError::Io) } else { Ok(()) }
    }

    /// The kernel writes back what it likes, and drops of the rest what it likes. Returns what blocks went back to, by
    /// loan.
    fn turn(&mut self, drive: usize, loans: &mut [Loan<'w>]) -> Vec<(usize, usize)> {
        let (medium, random) = (&mut self.drives[drive], &mut self.random);
        medium.is_bad = self.fails && random.chance(if medium.is_bad { 800 } else { 90 });
        let mut dropped = Vec::new();
        let own = |loan: &usize| self.is_common || *loan == drive;
        for loan in (0..loans.len()).filter(own) {
            let disk = &mut loans[loan].disk;
            for block in disk.dirty_blocks() {
                if random.chance(150) {
                    let fails = medium.is_bad && random.chance(300);
                    disk.write_back(block, fails);
                    if fails {
                        medium.errors.note();
                        medium.is_suspect = true;
                    }
                }
            }
            let lost = disk.lost_blocks();
            dropped.extend(lost.into_iter().filter(|_| random.chance(100)).map(|block| (loan, block)));
        }
        dropped
    }
}

/// Whether a record says that something is lost.
fn says_lost(record: Option<&Vec<u8>>) -> bool {
    record.and_then(|bytes| bytes.get(FAULT_AT)).is_some_and(|flags| flags & FAULT != 0)
}

impl<'w> World<'w> {
    /// Does a piece of work for a disk.
    pub(crate) fn execute(
        &mut self,
        area: usize,
        work: &MediaWork<'w>,
        journal: Journal<'w>,
    ) -> Result<(), MediaError> {
        let Some(media) = &mut self.media else {
            self.loans[area].disk.execute(work, journal);
            return Ok(());
        };
        let result = media.execute(&mut self.loans, work, journal);
        let trouble = &mut self.loans[work.loan].shared.trouble;
        match result {
            Err(MediaError::NoSpace) => trouble.full += 1,
            Err(_) if work.kind != MediaKind::Flush => trouble.failures += 1,
            _ => {}
        }
        let drive = media.drive_of(work.loan);
        let is_suspect = media.drives[drive].is_suspect;
        self.marks.set_if(Mark::MediumFailed, result.is_err());
        if is_suspect {
            self.each_loan_of(drive, |loan| loan.shared.trouble.flushes_before = u64::MAX);
        }
        result
    }

    /// A card asks for a flush: true if the disk has one, and this one waits for the next.
    pub(crate) fn waits_for_flush(&mut self, work: &MediaWork<'w>) -> bool {
        let Some(media) = self.media.as_mut().filter(|_| work.kind == MediaKind::Flush) else { return false };
        let drive = media.drive_of(work.loan);
        let [served, next] = &mut media.drives[drive].flushes;
        let waits = !served.is_empty();
        if waits { next } else { served }.push(*work);
        waits
    }

    /// The ring has ended a piece of work: whom its result is for, and who is served next.
    pub(crate) fn flush_ended(
        &mut self,
        work: &MediaWork<'w>,
    ) -> (Vec<MediaWork<'w>>, Option<MediaWork<'w>>) {
        let Some(media) = self.media.as_mut().filter(|_| work.kind == MediaKind::Flush) else {
            return (vec![*work], None);
        };
        let drive = media.drive_of(work.loan);
        let [served, next] = &mut media.drives[drive].flushes;
        let ended = core::mem::replace(served, core::mem::take(next));
        (ended, served.first().copied())
    }

    /// Whether the card dies when it is about to be told that a flush has failed.
    pub(crate) fn dies_hearing(&mut self, work: &MediaWork<'w>, result: Result<(), MediaError>) -> bool {
        let fails = work.kind == MediaKind::Flush && result.is_err() && self.calm_since.is_none();
        let dies = fails && self.media.as_mut().is_some_and(|media| media.random.chance(DEATHS));
        if dies {
            self.bury(LENDER);
        }
        dies
    }

    /// A result in the ring that no card has taken.
    pub(crate) fn leave_result(&mut self, work: &MediaWork<'w>, result: Result<(), MediaError>) {
        let Some(media) = &mut self.media else { return };
        let tells = match result {
            Ok(()) => false,
            Err(error) => work.kind == MediaKind::Flush || error == MediaError::Lost,
        };
        let drive = media.drive_of(work.loan);
        media.drives[drive].left += u32::from(tells);
    }

    /// The lender's card is dead, and with it what it remembers.
    pub(crate) fn forget_flushes(&mut self) {
        for medium in self.media.iter_mut().flat_map(|media| &mut media.drives) {
            medium.flushes = Default::default();
        }
    }

    /// The lender's agent is about to start a card, and asks its witnesses.
    pub(crate) fn ask_witnesses(&mut self) {
        for medium in self.media.iter_mut().flat_map(|media| &mut media.drives) {
            medium.has_lost |= medium.errors.ask_witness();
        }
    }

    /// A new card of the lender hears what earlier ones were told, before it serves anything. False if it dies of that.
    pub(crate) fn tell_losses(&mut self) -> bool {
        let drives = self.media.as_ref().map_or(0, |media| media.drives.len());
        for drive in 0..drives {
            let orders = self.media.as_ref().map_or(0, |media| media.drives[drive].orders);
            if orders > 0 && !self.act(LENDER, |card, now| card.clear_fault(now, drive, orders)) {
                return false;
            }
            while let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive])
                && (medium.left > 0 || medium.has_lost)
                && self.rules.has(Rule::HeedTheDead)
            {
                self.marks.set(Mark::LossInherited);
                if !self.act(LENDER, |card, now| card.note_fault(now, drive)) {
                    return false;
                }
                let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive]) else { break };
                medium.left = medium.left.saturating_sub(1);
                if medium.left == 0 {
                    break;
                }
            }
        }
        true
    }

    /// The lender's program has ended, and opens its images again.
    pub(crate) fn reopen_media(&mut self) {
        for drive in 0..self.media.as_ref().map_or(0, |media| media.drives.len()) {
            let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive]) else { return };
            let is_lost = says_lost(medium.record.as_ref());
            let is_forgotten = medium.is_suspect && medium.errors.is_seen && !is_lost;
            medium.errors.open();
            medium.writing.clear();
            medium.orders = 0;
            (medium.has_lost, medium.left, medium.is_reported, medium.is_unkept) = (false, 0, false, false);
            if is_forgotten {
                // Whoever was told of the last error has ended before that was kept. Borrowers that live write again
                // what they keep.
                self.each_loan_of(drive, |loan| loan.disk.forget_lost());
            }
            let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive]) else { return };
            medium.is_suspect |= is_lost;
            self.demand_failure(drive, is_lost);
            self.settle_suspicion(drive);
        }
    }

    /// Its machine has lost its power: what was not told never will be.
    pub(crate) fn forget_errors(&mut self) {
        for medium in self.media.iter_mut().flat_map(|media| &mut media.drives) {
            medium.errors = Errors::default();
        }
    }

    /// What a card of the lender wants kept.
    pub(crate) fn serve_records(&mut self) {
        if self.media.is_none() {
            return;
        }
        while let Some((drive, persist)) = self.nodes[LENDER].card.as_mut().and_then(Card::poll_persist) {
            let Some(media) = &mut self.media else { return };
            let (after, medium) = (media.random.range(20_000, 3_000_000), &mut media.drives[drive]);
            let (version, bytes) = (persist.version, persist.bytes);
            medium.writing.push_back(Record { version, bytes, clears: medium.clears });
            self.schedule(after, Event::Kept(drive));
        }
    }

    /// The state folder has what a card wanted kept.
    pub(crate) fn record_is_durable(&mut self, drive: usize) {
        let is_calm = self.calm_since.is_some();
        let Some(media) = &mut self.media else { return };
        let is_kept = is_calm || !media.random.chance(80);
        let medium = &mut media.drives[drive];
        let Some(record) = medium.writing.pop_front() else { return };
        let is_present = record.clears == medium.clears;
        let is_lost = says_lost(Some(&record.bytes));
        if is_kept {
            medium.record = Some(record.bytes);
        }
        medium.is_unkept = is_lost && !is_kept;
        let what = if is_kept { "kept" } else { "unkept" };
        self.log.event(self.now, Some(LENDER), what, record.version, is_lost.into());
        if is_present {
            self.demand_failure(drive, is_lost);
        }
        if self.act(LENDER, |card, now| card.handle_persisted(now, drive, record.version, is_kept)) {
            self.service(LENDER);
        }
    }

    /// The agent has found that somebody else has written to the images while it has them.
    pub(crate) fn note_altered(&mut self) {
        for drive in 0..self.media.as_ref().map_or(0, Media::drives) {
            let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive]) else { return };
            (medium.has_lost, medium.is_suspect) = (true, true);
            self.settle_suspicion(drive);
            self.act(LENDER, |card, now| card.note_fault(now, drive));
        }
        if self.nodes[LENDER].card.is_some() {
            self.service(LENDER);
        }
    }

    fn each_loan_of(&mut self, drive: usize, mut act: impl FnMut(&mut Loan<'w>)) {
        let Some(media) = &self.media else { return };
        for loan in (0..self.loans.len()).filter(|loan| media.drive_of(*loan) == drive) {
            act(&mut self.loans[loan]);
        }
    }

    /// Each flush that begins from now on fails; or need not any more.
    fn demand_failure(&mut self, drive: usize, demands: bool) {
        self.each_loan_of(drive, |loan| {
            let shared = &mut loan.shared;
            shared.trouble.fails_from = match demands {
                true => shared.trouble.fails_from.min(shared.tick + 1),
                false => u64::MAX,
            };
        });
    }

    /// The card says that a medium has lost something: an operator hears of it.
    pub(crate) fn report_loss(&mut self, drive: usize) {
        let Some(media) = &mut self.media else {
            return self
                .fail(names::MEDIA, "a medium that never fails is said to have lost something".into());
        };
        self.marks.set(Mark::LossReported);
        if !core::mem::replace(&mut media.drives[drive].is_reported, true) {
            let after = media.random.range(2_000_000, 150_000_000);
            self.schedule(after, Event::Clear(drive));
        }
    }

    /// An operator has looked, takes what is lost for lost, and clears the drive.
    pub(crate) fn clear_medium(&mut self, drive: usize) {
        let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive]) else { return };
        if !medium.is_reported {
            return;
        }
        if self.nodes[LENDER].card.is_none() {
            return self.schedule(5_000_000, Event::Clear(drive));
        }
        medium.is_reported = false;
        medium.clears += 1;
        medium.orders += 1;
        let order = medium.orders;
        medium.errors.ask_witness();
        medium.has_lost = false;
        // Whichever card hears it: what fails from now on tells of something new.
        medium.is_suspect = medium.errors.is_pending() || medium.left > 0;
        let is_suspect = medium.is_suspect;
        self.log.event(self.now, None, "clear", drive as u64, 0);
        self.demand_failure(drive, false);
        self.each_loan_of(drive, |loan| {
            loan.accept_losses();
            if !is_suspect {
                loan.shared.trouble.flushes_before = loan.shared.tick + 1;
            }
        });
        if self.act(LENDER, |card, now| card.clear_fault(now, drive, order)) {
            self.service(LENDER);
        }
    }

    /// The kernel's turn at a medium.
    pub(crate) fn turn_medium(&mut self, drive: usize) {
        let Some(media) = &mut self.media else { return };
        if self.calm_since.is_some() {
            media.drives[drive].is_bad = false;
        }
        let after = media.random.range(500_000, 6_000_000);
        let dropped = if self.calm_since.is_none() { media.turn(drive, &mut self.loans) } else { Vec::new() };
        for (loan, block) in dropped {
            self.log.note(format_args!("block {block} of loan {loan} is dropped"));
            self.loans[loan].drop_block(block);
        }
        self.settle_suspicion(drive);
        self.schedule(after, Event::Medium(drive));
    }

    /// Whether a flush may still fail for what a medium has lost.
    fn settle_suspicion(&mut self, drive: usize) {
        let card = self.nodes[LENDER].card.as_ref();
        let has_fault = card.is_none_or(|card| card.has_fault(drive));
        let Some(medium) = self.media.as_mut().map(|media| &mut media.drives[drive]) else { return };
        let is_clean = !has_fault
            && !medium.errors.is_pending()
            && !medium.has_lost
            && medium.left == 0
            && !says_lost(medium.record.as_ref())
            && medium.writing.is_empty();
        medium.is_suspect &= !is_clean;
        let is_suspect = medium.is_suspect;
        self.each_loan_of(drive, |loan| {
            let shared = &mut loan.shared;
            let trouble = &mut shared.trouble;
            if is_suspect {
                trouble.flushes_before = u64::MAX;
            } else if trouble.flushes_before == u64::MAX {
                trouble.flushes_before = shared.tick + 1;
            }
        });
    }

    /// Whether nobody has anything left to do with the media.
    pub(crate) fn media_are_quiet(&self) -> bool {
        let card = self.nodes[LENDER].card.as_ref();
        self.media.iter().flat_map(|media| media.drives.iter().enumerate()).all(|(drive, medium)| {
            medium.writing.is_empty()
                && !medium.is_reported
                && card.is_some_and(|card| !card.has_fault(drive))
        })
    }

    /// What requests that have ended say of a medium.
    pub(crate) fn judge_flushes(&mut self, loan: usize) {
        let Some(media) = &self.media else { return };
        let drive = media.drive_of(loan);
        let medium = &media.drives[drive];
        let keeps = says_lost(medium.record.as_ref()) || medium.is_unkept;
        let lent = &mut self.loans[loan];
        let trouble = &mut lent.shared.trouble;
        let (flushed, failed) = (trouble.flushed.take(), trouble.failed.take());
        if let Some(start) = failed
            && start > lent.cleared
            && !keeps
            && !lent.drive.impatient
        {
            let what =
                format!("loan {loan}: a flush that began at {start} has failed, and nothing of that is kept");
            return self.fail(names::MEDIA, what);
        }
        if let Some(what) = flushed.and_then(|start| lent.lost_behind(start)) {
            self.fail(names::DURABILITY, format!("loan {loan}: {what}"));
        }
    }

    /// The driver of a borrower says how much it has lost, ever.
    pub(crate) fn watch_losses(&mut self, loan: usize, lost: u64) {
        let lent = &mut self.loans[loan];
        if lost > core::mem::replace(&mut lent.lost, lost) {
            lent.shared.trouble.has_lost = true;
            lent.shared.tick += 1;
            lent.shared.model.kept_lost(lent.shared.tick);
        }
    }
}

impl Loan<'_> {
    /// The kernel drops a block that it could not write back.
    fn drop_block(&mut self, block: usize) {
        let shared = &mut self.shared;
        if let Some(value) = self.disk.drop_lost(block) {
            shared.tick += 1;
            shared.model.went_back(block, value, shared.tick);
        }
    }

    /// Nobody asks any more for what is lost.
    fn accept_losses(&mut self) {
        for block in self.disk.lost_blocks() {
            self.drop_block(block);
        }
        self.disk.forget_lost();
        self.shared.tick += 1;
        self.cleared = self.shared.tick;
    }

    /// What was answered before a flush began that has succeeded, and is not durable.
    fn lost_behind(&self, start: u64) -> Option<String> {
        let (block, request) = self
            .disk
            .lost()
            .find(|(block, request)| self.shared.model.was_promised(*block, *request, start))?;
        Some(format!(
            "a flush that began at {start} has succeeded, and block {block} has lost what request {request} wrote"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once_a_description() {
        let mut errors = Errors::default();
        errors.open();
        assert!(!errors.flush() && !errors.ask_witness());
        errors.note();
        errors.note();
        assert!(errors.flush() && !errors.flush());
        assert!(errors.ask_witness() && !errors.ask_witness());
        errors.note();
        errors.open();
        assert!(errors.flush() && errors.ask_witness(), "nobody was told before");
        errors.open();
        assert!(!errors.flush() && !errors.ask_witness());
        errors.note();
        assert!(errors.flush());
        errors.open();
        assert!(!errors.ask_witness(), "somebody was told");
    }

    #[test]
    fn a_request_that_took_too_long_uses_up_no_failure_of_the_medium() {
        let mut trouble = Trouble { full: 1, failures: 1, ..Trouble::default() };
        assert!(trouble.explains(Asks::Else, 1, Failure::ErrorOrLate));
        assert!(
            trouble.explains(Asks::Else, 2, Failure::Error)
                && !trouble.explains(Asks::Else, 3, Failure::Error)
        );
        assert!(
            trouble.explains(Asks::Else, 4, Failure::Full) && !trouble.explains(Asks::Else, 5, Failure::Full)
        );
        assert!(!trouble.explains(Asks::Else, 6, Failure::ErrorOrLate));
    }
}
