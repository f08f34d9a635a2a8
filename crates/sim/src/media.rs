//! In some worlds media fail to write what they were given, as Linux tells it: what is written lies in a page cache,
//! whatever was not written back may be dropped, and an error of writing back is told once an open file description, to
//! whoever flushes next.
//!
//! Beside the kernel's part here is the agent's: it keeps a second description as a witness and what the drive wants
//! kept in its state folder; and that of the operator, who says `device clear` some time after the card has said that
//! something is lost.

mod errors;
mod losses;
mod trouble;

use std::collections::VecDeque;

use base::Random;
use base::ledger::Journal;
use device::{MediaError, MediaKind};
use node::{Card, MediaWork, Persist};

use self::errors::Errors;
pub(crate) use self::trouble::{Asks, Failure, Trouble};
use crate::chance::Chance;
use crate::checkers::names;
use crate::loans::{DiskMode, Loan};
use crate::log::Log;
use crate::marks::{Mark, Marks};
use crate::report::Report;
use crate::slot::has_guests;

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

/// What has become of a record that was to be kept.
pub(crate) struct Written {
    pub(crate) version: u64,
    pub(crate) is_kept: bool,
    /// It says that something is lost.
    pub(crate) is_lost: bool,
}

/// Whether a record says that something is lost.
fn says_lost(record: Option<&Vec<u8>>) -> bool {
    record.and_then(|bytes| bytes.get(FAULT_AT)).is_some_and(|flags| flags & FAULT != 0)
}

impl Medium<'_> {
    /// Nobody has anything to tell of it any more.
    fn is_clean(&self) -> bool {
        !self.errors.is_pending()
            && !self.has_lost
            && self.left == 0
            && !says_lost(self.record.as_ref())
            && self.writing.is_empty()
    }
}

impl<'w> Media<'w> {
    /// In a tenth of all worlds, and more of those with guests, which are few.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Chance::Media.of(seed);
        let fails = random.chance(if has_guests(seed) { 250 } else { 100 });
        let is_common = random.chance(600);
        fails.then(|| Self { random, drives: Vec::new(), fails, is_common })
    }

    /// Media that do not fail by themselves.
    pub(crate) fn sound(seed: u64) -> Self {
        let mut random = Chance::Media.of(seed);
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
    fn perform(
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

    /// Does a piece of work for a disk.
    pub(crate) fn execute(
        &mut self,
        loans: &mut [Loan<'w>],
        work: &MediaWork<'w>,
        journal: Journal<'w>,
        marks: &mut Marks,
    ) -> Result<(), MediaError> {
        let result = self.perform(loans, work, journal);
        let trouble = &mut loans[work.loan].shared.trouble;
        match result {
            Err(MediaError::NoSpace) => trouble.full += 1,
            Err(_) if work.kind != MediaKind::Flush => trouble.failures += 1,
            _ => {}
        }
        marks.set_if(Mark::MediumFailed, result.is_err());
        let drive = self.drive_of(work.loan);
        if self.drives[drive].is_suspect {
            self.each_loan(drive, loans, |loan| loan.shared.trouble.flushes_before = u64::MAX);
        }
        result
    }

    /// A card asks for a flush: true if the disk has one, and this one waits for the next.
    pub(crate) fn waits_for_flush(&mut self, work: &MediaWork<'w>) -> bool {
        let drive = self.drive_of(work.loan);
        let [served, next] = &mut self.drives[drive].flushes;
        let waits = !served.is_empty();
        if waits { next } else { served }.push(*work);
        waits
    }

    /// The ring has ended a flush: whom its result is for, and who is served next.
    pub(crate) fn flush_ended(
        &mut self,
        work: &MediaWork<'w>,
    ) -> (Vec<MediaWork<'w>>, Option<MediaWork<'w>>) {
        let drive = self.drive_of(work.loan);
        let [served, next] = &mut self.drives[drive].flushes;
        let ended = core::mem::replace(served, core::mem::take(next));
        (ended, served.first().copied())
    }

    /// A card is about to be told that a flush has failed: whether it dies.
    pub(crate) fn kills(&mut self) -> bool {
        self.random.chance(DEATHS)
    }

    /// A result in the ring that no card has taken.
    pub(crate) fn leave_result(&mut self, work: &MediaWork<'w>, error: MediaError) {
        let drive = self.drive_of(work.loan);
        let tells = work.kind == MediaKind::Flush || error == MediaError::Lost;
        self.drives[drive].left += u32::from(tells);
    }

    /// The lender's agent is about to start a card, which remembers nothing, and asks its witnesses.
    pub(crate) fn card_begins(&mut self) {
        for medium in &mut self.drives {
            medium.flushes = Default::default();
            medium.has_lost |= medium.errors.ask_witness();
        }
    }

    /// What a new card is told: how often an operator has cleared the drive, and how often it hears of a loss that
    /// earlier ones were told of.
    pub(crate) fn inheritance(&self, drive: usize) -> (u64, u32) {
        let medium = &self.drives[drive];
        (medium.orders, medium.left.max(medium.has_lost.into()))
    }

    /// It has heard of one.
    pub(crate) fn is_told(&mut self, drive: usize) {
        let medium = &mut self.drives[drive];
        medium.left = medium.left.saturating_sub(1);
    }

    /// The lender's program has ended, and opens its images again.
    pub(crate) fn reopen(&mut self, loans: &mut [Loan<'w>]) {
        for drive in 0..self.drives.len() {
            let medium = &mut self.drives[drive];
            let is_lost = says_lost(medium.record.as_ref());
            let is_forgotten = medium.is_suspect && medium.errors.is_seen && !is_lost;
            medium.errors.open();
            medium.writing.clear();
            medium.orders = 0;
            (medium.has_lost, medium.left, medium.is_reported, medium.is_unkept) = (false, 0, false, false);
            medium.is_suspect |= is_lost;
            if is_forgotten {
                // Whoever was told of the last error has ended before that was kept. Borrowers that live write again
                // what they keep.
                self.each_loan(drive, loans, |loan| loan.disk.forget_lost());
            }
            self.demand_failure(drive, loans, is_lost);
            self.settle_suspicion(drive, loans, None);
        }
    }

    /// Its machine has lost its power: what was not told never will be.
    pub(crate) fn forget_errors(&mut self) {
        self.drives.iter_mut().for_each(|medium| medium.errors = Errors::default());
    }

    /// A card of the lender wants something kept: how long that takes.
    pub(crate) fn keep(&mut self, drive: usize, persist: Persist) -> u64 {
        let medium = &mut self.drives[drive];
        let (version, bytes) = (persist.version, persist.bytes);
        medium.writing.push_back(Record { version, bytes, clears: medium.clears });
        self.random.range(20_000, 3_000_000)
    }

    /// The state folder has what a card wanted kept, or could not be written.
    pub(crate) fn write_record(
        &mut self,
        drive: usize,
        loans: &mut [Loan<'w>],
        is_calm: bool,
    ) -> Option<Written> {
        let is_kept = is_calm || !self.random.chance(80);
        let medium = &mut self.drives[drive];
        let Record { version, bytes, clears } = medium.writing.pop_front()?;
        let is_lost = says_lost(Some(&bytes));
        if is_kept {
            medium.record = Some(bytes);
        }
        medium.is_unkept = is_lost && !is_kept;
        if clears == medium.clears {
            self.demand_failure(drive, loans, is_lost);
        }
        Some(Written { version, is_kept, is_lost })
    }

    /// The agent has found that somebody else has written to an image while it has it.
    pub(crate) fn note_altered(&mut self, drive: usize, loans: &mut [Loan<'w>]) {
        (self.drives[drive].has_lost, self.drives[drive].is_suspect) = (true, true);
        self.settle_suspicion(drive, loans, None);
    }

    fn each_loan(&self, drive: usize, loans: &mut [Loan<'w>], act: impl FnMut(&mut Loan<'w>)) {
        let is_its = |(loan, _): &(usize, &mut Loan<'w>)| self.drive_of(*loan) == drive;
        loans.iter_mut().enumerate().filter(is_its).map(|(_, loan)| loan).for_each(act);
    }

    /// Each flush that begins from now on fails; or need not any more.
    fn demand_failure(&self, drive: usize, loans: &mut [Loan<'w>], demands: bool) {
        self.each_loan(drive, loans, |loan| {
            let shared = &mut loan.shared;
            shared.trouble.fails_from = match demands {
                true => shared.trouble.fails_from.min(shared.tick + 1),
                false => u64::MAX,
            };
        });
    }

    /// An operator hears of a loss, and looks after so long, if he has not heard before.
    pub(crate) fn report_loss(&mut self, drive: usize) -> Option<u64> {
        let was_reported = core::mem::replace(&mut self.drives[drive].is_reported, true);
        (!was_reported).then(|| self.random.range(2_000_000, 150_000_000))
    }

    /// An operator has heard of a loss, and not looked yet.
    pub(crate) fn is_reported(&self, drive: usize) -> bool {
        self.drives[drive].is_reported
    }

    /// An operator has looked, takes what is lost for lost, and clears the drive: the how-manieth order that is.
    pub(crate) fn clear(&mut self, drive: usize, loans: &mut [Loan<'w>]) -> u64 {
        let medium = &mut self.drives[drive];
        medium.is_reported = false;
        medium.clears += 1;
        medium.orders += 1;
        let order = medium.orders;
        medium.errors.ask_witness();
        medium.has_lost = false;
        // Whichever card hears it: what fails from now on tells of something new.
        medium.is_suspect = medium.errors.is_pending() || medium.left > 0;
        let is_suspect = medium.is_suspect;
        self.demand_failure(drive, loans, false);
        self.each_loan(drive, loans, |loan| {
            loan.accept_losses();
            if !is_suspect {
                loan.shared.trouble.flushes_before = loan.shared.tick + 1;
            }
        });
        order
    }

    /// The kernel's turn at a medium: when the next one is.
    pub(crate) fn take_turn(
        &mut self,
        drive: usize,
        loans: &mut [Loan<'w>],
        (card, is_calm): (Option<&Card<'_>>, bool),
        log: &Log,
    ) -> u64 {
        let after = self.random.range(500_000, 6_000_000);
        if is_calm {
            self.drives[drive].is_bad = false;
        } else {
            for (loan, block) in self.turn(drive, loans) {
                log.note(format_args!("block {block} of loan {loan} is dropped"));
                loans[loan].drop_block(block);
            }
        }
        self.settle_suspicion(drive, loans, card);
        after
    }

    /// Whether a flush may still fail for what a medium has lost.
    fn settle_suspicion(&mut self, drive: usize, loans: &mut [Loan<'w>], card: Option<&Card<'_>>) {
        let has_no_fault = card.is_some_and(|card| !card.has_fault(drive));
        let medium = &mut self.drives[drive];
        medium.is_suspect &= !(has_no_fault && medium.is_clean());
        let is_suspect = medium.is_suspect;
        self.each_loan(drive, loans, |loan| {
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
    pub(crate) fn are_quiet(&self, card: Option<&Card<'_>>) -> bool {
        self.drives.iter().enumerate().all(|(drive, medium)| {
            medium.writing.is_empty()
                && !medium.is_reported
                && card.is_some_and(|card| !card.has_fault(drive))
        })
    }

    /// What requests that have ended say of the medium of a loan.
    pub(crate) fn judge_flushes(&self, loan: usize, lent: &mut Loan<'_>, report: &mut Report) {
        let medium = &self.drives[self.drive_of(loan)];
        let keeps = says_lost(medium.record.as_ref()) || medium.is_unkept;
        let trouble = &mut lent.shared.trouble;
        let (flushed, failed) = (trouble.flushed.take(), trouble.failed.take());
        if let Some(start) = failed
            && start > lent.cleared
            && !keeps
            && !lent.drive.impatient
        {
            let what =
                format!("loan {loan}: a flush that began at {start} has failed, and nothing of that is kept");
            return report.fail(names::MEDIA, what);
        }
        if let Some(what) = flushed.and_then(|start| lent.lost_behind(start)) {
            report.fail(names::DURABILITY, format!("loan {loan}: {what}"));
        }
    }
}
