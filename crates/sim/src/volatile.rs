//! In some worlds guests are shown a volatile write cache, and flush. What the lender's power takes of it nobody writes
//! again: the drive becomes another one, its slot finds that out before the guest reaches it, and takes it from the
//! guest. The agent plugs in the new one, and the guest begins with that.

use base::Random;
use device::nvme::{Config, WriteCache};

use crate::chance::Chance;
use crate::checkers::names;
use crate::disk::author;
use crate::guest::Guest;
use crate::slot::has_guests;
use crate::stage::{Event, Stage};

/// Of a thousand times that a guest has had answers, how often the lender is switched off.
const SWITCHED_OFF: u64 = 80;

/// Drives with a volatile cache.
pub(crate) struct Volatile {
    random: Random,
    /// By loan: whether its drive is one.
    chosen: Vec<bool>,
    /// Counts the machine's lives: what is not flushed survives in one only.
    keeper: u64,
    /// By loan: the drive that a guest has is no more. What the power has left of it.
    left: Vec<Option<Vec<u64>>>,
    /// How often the lender will be switched off in the middle of what a guest does.
    offs: u32,
}

impl Volatile {
    /// In some worlds with guests.
    pub(crate) fn of(seed: u64, loans: usize, is_common: bool) -> Option<Self> {
        let mut random = Chance::Volatile.of(seed);
        let is_one = has_guests(seed) && random.chance(400);
        let mut chosen: Vec<bool> = (0..loans).map(|_| random.chance(700)).collect();
        if is_common || !chosen.contains(&true) {
            chosen.fill(true);
        }
        let left = vec![None; loans];
        let offs = random.range(1, 3) as u32;
        is_one.then_some(Self { random, chosen, keeper: 1, left, offs })
    }

    /// Whether the drive of a loan is one.
    pub(crate) fn has(&self, loan: usize) -> bool {
        self.chosen[loan]
    }

    /// What a guest sees of drive `drive`.
    pub(crate) fn configure(&self, drive: usize, config: &mut Config) {
        if self.chosen[drive] {
            config.cache = WriteCache::Shown { keeper: self.keeper };
        }
    }

    /// The present life of the machine.
    pub(crate) fn keeper(&self) -> u64 {
        self.keeper
    }

    /// Whether the lender's next reboot is one of its machine, and not of its program only.
    pub(crate) fn loses_power(&mut self) -> bool {
        self.random.chance(600)
    }

    /// Its power fails.
    pub(crate) fn lose_power(&mut self) {
        self.keeper += 1;
    }

    /// A guest has had answers: perhaps the lender is switched off now.
    pub(crate) fn endanger(&mut self, stage: &mut Stage<'_>, loan: usize) {
        if self.chosen[loan] && self.offs > 0 && self.random.chance(SWITCHED_OFF) {
            self.offs -= 1;
            stage.clock.after(self.random.below(1_000_000), Event::Off);
        }
    }

    /// The power has failed behind the loan of a guest, and the model knows what it has left.
    pub(crate) fn forget_drive(&mut self, stage: &mut Stage<'_>, loan: usize, guest: &mut Guest) {
        if !self.chosen[loan] {
            return;
        }
        let lent = &mut stage.loans[loan];
        let left: Option<Vec<u64>> =
            (0..).zip(lent.disk.blocks()).map(|(lba, bytes)| author(lba, bytes)).collect();
        // The model has looked at all blocks.
        let Some(left) = left else { return };
        if guest.drive_is_gone(lent.shared.tick) {
            self.left[loan].get_or_insert(left);
        } else {
            lent.shared.model.replaced(left, None, lent.shared.tick);
        }
    }

    /// The guest has nothing of its drive any more: the next one finds the other drive, as the power has left it.
    pub(crate) fn end_session(&mut self, stage: &mut Stage<'_>, loan: usize) {
        let Some(left) = self.left[loan].take() else { return };
        let lent = &mut stage.loans[loan];
        let found = (0..).zip(lent.disk.blocks()).map(|(block, bytes)| author(block, bytes));
        if !found.eq(left.iter().copied().map(Some)) {
            let what = format!("loan {loan}: a guest has written to the drive that its own has become");
            return stage.report.fail(names::DURABILITY, what);
        }
        lent.shared.tick += 1;
        lent.shared.model.replaced(left, None, lent.shared.tick);
    }
}
