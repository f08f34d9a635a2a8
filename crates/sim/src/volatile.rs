//! In some worlds guests are shown a volatile write cache, and flush. What the lender's power takes of it nobody writes
//! again: the drive becomes another one, its slot finds that out before the guest reaches it, and takes it from the
//! guest. The agent plugs in the new one, and the guest begins with that.

use base::Random;
use device::nvme::{Config, WriteCache};

use crate::checkers::names;
use crate::disk::author;
use crate::marks::Mark;
use crate::slot::has_guests;
use crate::world::{BORROWER, Event, LENDER, World};

/// Told from other seeds.
const VOLATILE: u64 = 0x0f1a_7700_0000;

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
    /// By loan: the guest is about to lose it, since its slot has met the drive of this life of the machine.
    met: Vec<Option<u64>>,
}

impl Volatile {
    /// In some worlds with guests.
    pub(crate) fn of(seed: u64, loans: usize, is_common: bool) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ VOLATILE);
        let is_one = has_guests(seed) && random.chance(400);
        let mut chosen: Vec<bool> = (0..loans).map(|_| random.chance(700)).collect();
        if is_common || !chosen.contains(&true) {
            chosen.fill(true);
        }
        let (left, met) = (vec![None; loans], vec![None; loans]);
        let offs = random.range(1, 3) as u32;
        is_one.then_some(Self { random, chosen, keeper: 1, left, offs, met })
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

    /// Whether the lender's next reboot is one of its machine, and not of its program only.
    pub(crate) fn loses_power(&mut self) -> bool {
        self.random.chance(600)
    }

    /// Its power fails.
    pub(crate) fn lose_power(&mut self) {
        self.keeper += 1;
    }
}

impl World<'_> {
    /// A guest has had answers: perhaps the lender is switched off now.
    pub(crate) fn endanger(&mut self, loan: usize) {
        let Some(volatile) = self.volatile.as_mut().filter(|volatile| volatile.has(loan)) else { return };
        if volatile.offs > 0 && volatile.random.chance(SWITCHED_OFF) {
            volatile.offs -= 1;
            let after = volatile.random.below(1_000_000);
            self.clock.after(after, Event::Off);
        }
    }

    /// Its machine goes off, or its program only, and on again.
    pub(crate) fn switch_off(&mut self) {
        if !self.faults.are_over() && !self.nodes[LENDER].is_away {
            self.reboot_lender();
        }
    }

    /// The power has failed behind a loan, and the model knows what it has left.
    pub(crate) fn forget_drive(&mut self, loan: usize) {
        let Some(volatile) = self.volatile.as_mut().filter(|volatile| volatile.has(loan)) else { return };
        let blocks = (0..).zip(self.loans[loan].disk.blocks());
        let left: Option<Vec<u64>> = blocks.map(|(block, bytes)| author(block, bytes)).collect();
        // The model has looked at all blocks.
        let Some(left) = left else { return };
        let tick = self.loans[loan].shared.tick;
        if self.guests[loan].drive_is_gone(tick) {
            volatile.left[loan].get_or_insert(left);
        } else {
            self.loans[loan].shared.model.replaced(left, None, tick);
        }
    }

    /// A slot has found that its guest's drive is another one: the agent unplugs that one.
    pub(crate) fn look_for_replacement(&mut self, loan: usize) {
        let slot = self.nodes[BORROWER].card.as_ref().and_then(|card| card.slot(loan));
        let is_replaced = slot.is_some_and(|slot| slot.is_replaced());
        let Some(volatile) = self.volatile.as_mut().filter(|_| is_replaced) else { return };
        if volatile.met[loan].is_none() {
            volatile.met[loan] = Some(volatile.keeper);
            let after = volatile.random.range(100_000, 20_000_000);
            self.clock.after(after, Event::Unplug(loan));
        }
    }

    /// The drive is unplugged; whatever was asked of it has no answer.
    pub(crate) fn unplug(&mut self, loan: usize) {
        let Some(volatile) = self.volatile.as_mut() else { return };
        let Some(met) = volatile.met[loan].take() else { return };
        if met == volatile.keeper {
            self.guests[loan].finds_the_drive();
        }
        if !self.guests[loan].is_away() {
            self.report.marks.set(Mark::DriveReplaced);
            self.unplug_machine(loan);
        }
    }

    /// The guest has nothing of its drive any more: the next one finds the other drive, as the power has left it.
    pub(crate) fn end_session(&mut self, loan: usize) {
        let Some(volatile) = &mut self.volatile else { return };
        volatile.met[loan] = None;
        let Some(left) = volatile.left[loan].take() else { return };
        let lent = &mut self.loans[loan];
        let found = (0..).zip(lent.disk.blocks()).map(|(block, bytes)| author(block, bytes));
        if !found.eq(left.iter().copied().map(Some)) {
            let what = format!("loan {loan}: a guest has written to the drive that its own has become");
            return self.report.fail(names::DURABILITY, what);
        }
        lent.shared.tick += 1;
        lent.shared.model.replaced(left, None, lent.shared.tick);
    }
}
