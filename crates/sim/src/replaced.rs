//! In some worlds somebody replaces an image: while its lender is away, or under its hands. To whoever has borrowed it
//! that is another drive: the lender's next life finds out and raises the tenancy, so nothing that was kept is put over
//! the other content, and who reads is told.

use base::{Random, Rule};
use link::Tenancy;

use crate::chance::Chance;
use crate::checkers::names;
use crate::disk::author;
use crate::marks::Mark;
use crate::slot::has_guests;
use crate::stage::{BORROWER, Event, LENDER, Stage};

/// Nanoseconds between two looks of an agent.
const LOOK: u64 = 1_000_000_000;

/// What becomes of the images of a world.
pub(crate) struct Replaced {
    random: Random,
    /// How often somebody will still write to images while they are lent.
    alterations: u32,
    /// Somebody has, since the lender's present life began.
    pub(crate) is_altered: bool,
}

impl Replaced {
    /// In a tenth of all worlds, and a fifth of those with guests, of which there are few.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Chance::Replaced.of(seed);
        let is_one = random.chance(if has_guests(seed) { 200 } else { 120 });
        let alterations = random.below(3) as u32;
        is_one.then_some(Self { random, alterations, is_altered: false })
    }

    /// The lender's program is about to start again: perhaps on other images than it had, and then it finds out.
    /// True if so.
    pub(crate) fn program_ended(&mut self, stage: &mut Stage<'_>) -> bool {
        let was_altered = core::mem::take(&mut self.is_altered);
        let is_other = self.random.chance(800);
        if !was_altered && !is_other {
            return false;
        }
        for loan in 0..stage.loans.len() {
            // What its last life had asked for was about the old image.
            stage.loans[loan].disk.ring.clear();
            let content = if is_other { Some(write_image(stage, loan)) } else { None };
            begin_with_image(stage, loan, content);
        }
        stage.report.marks.set(Mark::ImageReplaced);
        true
    }

    /// Somebody writes to the images while they are lent. True if somebody does.
    pub(crate) fn alter(&mut self, stage: &mut Stage<'_>) -> bool {
        if self.alterations == 0 || !self.random.chance(300) {
            return false;
        }
        self.alterations -= 1;
        self.is_altered = true;
        for loan in 0..stage.loans.len() {
            let content = write_image(stage, loan);
            let blocks = stage.loans[loan].drive.blocks as usize;
            let shared = &mut stage.loans[loan].shared;
            shared.tick += 1;
            for block in 0..blocks {
                shared.model.went_back(block, content, shared.tick);
            }
        }
        let after = stage.random.range(1_000_000, LOOK);
        stage.clock.after(after, Event::Look);
        true
    }
}

/// Other content lies behind a loan, told by the number of a request that nobody has made.
fn write_image(stage: &mut Stage<'_>, loan: usize) -> u64 {
    let who = stage.nodes[BORROWER].who();
    let lent = &mut stage.loans[loan];
    lent.shared.begin_request(who);
    let request = lent.shared.requests;
    lent.disk.replace(request);
    stage.log(None, "image", loan as u64, request);
    request
}

/// A life of the lender begins with another image than the one before it had. `content` is what nobody has seen
/// yet.
fn begin_with_image(stage: &mut Stage<'_>, loan: usize, content: Option<u64>) {
    let Tenancy { number, life, .. } = stage.loans[loan].tenure.tenancy;
    let is_borrowed = number > 0 && life == stage.nodes[BORROWER].life_id();
    let (lender, lent) = (stage.nodes[LENDER].life_id(), &mut stage.loans[loan]);
    lent.disk.sync();
    lent.shared.tick += 1;
    let left = (0..).zip(lent.disk.blocks()).map(|(block, bytes)| author(block, bytes));
    let Some(left) = left.collect::<Option<Vec<_>>>() else {
        return stage.report.fail(names::DISK, "a block has bytes that nobody has written".into());
    };
    lent.shared.model.replaced(left, content.filter(|_| is_borrowed), lent.shared.tick);
    if number > 0 && stage.terms.rules.has(Rule::LookAtImages) {
        lent.tenure.tenancy = lent.tenure.tenancy.renewed(lender);
        lent.tenure.displaced[BORROWER] = true;
        let number = lent.tenure.tenancy.number;
        stage.log(Some(LENDER), "other", loan as u64, number);
    }
}
