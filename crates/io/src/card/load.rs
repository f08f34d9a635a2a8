use base::Instant;
use node::Card;

use crate::load::{LoadResult, LoadSpec, Run};
use crate::plan::Plan;

/// The load of a card, on the drive of a loan of its own.
///
/// It keeps nothing in the ledger. A successor of a card that died finds requests under way that are not its own, and
/// says so as errors instead of beginning anew.
pub(super) struct Load {
    loan: usize,
    spec: LoadSpec,
    seed: u64,
    phase: Phase,
}

/// ```text
/// Waiting --drive usable--> Running --last completion--> Ended --told--> Told
/// Waiting --a predecessor has begun--> Ended
/// ```
enum Phase {
    Waiting,
    Running(Box<Run>),
    Ended(LoadResult),
    Told,
}

impl Load {
    /// The loads that the plan has.
    pub(super) fn of_plan(plan: &Plan) -> Vec<Self> {
        let seed = u64::from_le_bytes(plan.card.seed.0[..8].try_into().expect("a seed has 32 bytes"));
        let loads = plan.loads.iter();
        loads
            .map(|&(loan, spec)| Self {
                loan,
                spec,
                seed: seed.wrapping_add(loan as u64 * 2),
                phase: Phase::Waiting,
            })
            .collect()
    }

    /// Ends what has completed and submits more. True if there was anything.
    pub(super) fn drive(&mut self, card: &mut Card<'_>, now: Instant) -> bool {
        match &mut self.phase {
            Phase::Waiting => self.begin(card, now),
            Phase::Running(run) => {
                // Without this look every turn of a spinning card would be a step with a commit.
                if card.borrowed(self.loan).is_none_or(|drive| !drive.driver.has_completion()) {
                    return false;
                }
                card.drive_step(now, self.loan, |driver, pages| run.go_on(driver, pages, now));
                if let Some(result) = run.result(now) {
                    self.phase = Phase::Ended(result);
                }
                true
            }
            Phase::Ended(_) | Phase::Told => false,
        }
    }

    /// What came of it, once, when it has ended.
    pub(super) fn take_result(&mut self) -> Option<(usize, LoadResult)> {
        if !matches!(self.phase, Phase::Ended(_)) {
            return None;
        }
        let Phase::Ended(result) = std::mem::replace(&mut self.phase, Phase::Told) else { return None };
        Some((self.loan, result))
    }

    fn begin(&mut self, card: &mut Card<'_>, now: Instant) -> bool {
        let Some(drive) = card.borrowed(self.loan) else { return false };
        if !drive.driver.is_ready() || drive.driver.geometry().is_none() {
            return false;
        }
        if card.pages(self.loan).used() > 0 {
            let errors = self.spec.within_bounds().depth.into();
            self.phase = Phase::Ended(LoadResult { errors, ..LoadResult::default() });
            return true;
        }
        let mut run = None;
        card.drive_step(now, self.loan, |driver, pages| {
            run = Some(Run::begin(self.spec, self.seed, driver, pages, now));
        });
        if let Some(run) = run {
            self.phase = Phase::Running(Box::new(run));
        }
        true
    }
}
