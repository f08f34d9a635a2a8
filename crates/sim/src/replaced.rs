//! In some worlds somebody replaces an image: while its lender is away, or under its hands. To whoever has borrowed it
//! that is another drive: the lender's next life finds out and raises the tenancy, so nothing that was kept is put over
//! the other content, and who reads is told.

use base::{Random, Rule};
use link::Tenancy;

use crate::checkers::names;
use crate::disk::author;
use crate::marks::Mark;
use crate::slot::has_guests;
use crate::world::{BORROWER, Event, LENDER, World};

/// Told from other seeds.
const REPLACED: u64 = 0x9e91_ace0_0000;

/// Nanoseconds between two looks of an agent.
const LOOK: u64 = 1_000_000_000;

/// What becomes of the images of a world.
pub(crate) struct Replaced {
    random: Random,
    /// How often somebody will still write to images while they are lent.
    alterations: u32,
    /// Somebody has, since the lender's present life began.
    is_altered: bool,
}

impl Replaced {
    /// In a tenth of all worlds.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ REPLACED);
        let is_one = !has_guests(seed) && random.chance(120);
        let alterations = random.below(3) as u32;
        is_one.then_some(Self { random, alterations, is_altered: false })
    }

    /// Somebody has written to the images that the lender has.
    pub(crate) fn is_altered(&self) -> bool {
        self.is_altered
    }
}

impl World<'_> {
    /// The lender's program is about to start again: perhaps on other images than it had, and then it finds out.
    pub(crate) fn look_at_images(&mut self) {
        let Some(replaced) = &mut self.replaced else { return };
        let was_altered = core::mem::take(&mut replaced.is_altered);
        let is_other = replaced.random.chance(800);
        if !was_altered && !is_other {
            return;
        }
        for loan in 0..self.loans.len() {
            // What its last life had asked for was about the old image.
            self.loans[loan].disk.ring.clear();
            let content = if is_other { Some(self.write_image(loan)) } else { None };
            self.begin_with_image(loan, content);
        }
        self.report.marks.set(Mark::ImageReplaced);
    }

    /// Somebody writes to the images while they are lent. True if somebody does.
    pub(crate) fn alter_images(&mut self) -> bool {
        let Some(replaced) = &mut self.replaced else { return false };
        if replaced.alterations == 0 || !replaced.random.chance(300) {
            return false;
        }
        replaced.alterations -= 1;
        replaced.is_altered = true;
        for loan in 0..self.loans.len() {
            let content = self.write_image(loan);
            let blocks = self.loans[loan].drive.blocks as usize;
            let shared = &mut self.loans[loan].shared;
            shared.tick += 1;
            for block in 0..blocks {
                shared.model.went_back(block, content, shared.tick);
            }
        }
        let after = self.random.range(1_000_000, LOOK);
        self.clock.after(after, Event::Look);
        true
    }

    /// Other content lies behind a loan, told by the number of a request that nobody has made.
    fn write_image(&mut self, loan: usize) -> u64 {
        let who = self.nodes[BORROWER].who();
        let lent = &mut self.loans[loan];
        lent.shared.begin_request(who);
        lent.disk.replace(lent.shared.requests);
        self.report.log.event(self.clock.now, None, "image", loan as u64, lent.shared.requests);
        lent.shared.requests
    }

    /// A life of the lender begins with another image than the one before it had. `content` is what nobody has seen
    /// yet.
    fn begin_with_image(&mut self, loan: usize, content: Option<u64>) {
        let Tenancy { number, life, .. } = self.loans[loan].tenure.tenancy;
        let is_borrowed = number > 0 && life == self.nodes[BORROWER].life_id();
        let (lender, lent) = (self.nodes[LENDER].life_id(), &mut self.loans[loan]);
        lent.disk.sync();
        lent.shared.tick += 1;
        let left = (0..).zip(lent.disk.blocks()).map(|(block, bytes)| author(block, bytes));
        let Some(left) = left.collect::<Option<Vec<_>>>() else {
            return self.report.fail(names::DISK, "a block has bytes that nobody has written".into());
        };
        lent.shared.model.replaced(left, content.filter(|_| is_borrowed), lent.shared.tick);
        if number > 0 && self.terms.rules.has(Rule::LookAtImages) {
            lent.tenure.tenancy = lent.tenure.tenancy.renewed(lender);
            lent.tenure.displaced[BORROWER] = true;
            self.report.log.event(
                self.clock.now,
                Some(LENDER),
                "other",
                loan as u64,
                lent.tenure.tenancy.number,
            );
        }
    }
}
