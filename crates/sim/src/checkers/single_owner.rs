//! A function has one owner at a time.
//!
//! The owner is the node whose request took effect on the medium last. It changes only when the former one has given
//! the function back, or was not heard for the hold time; so effects of two borrowers never interleave, and nobody
//! loses a drive while it lives.

use base::times::HOLD;

/// A lender's ledger knows when its borrower was last heard to within a second.
pub(super) const HEARD_STEP: u64 = 1_000_000_000;

/// One life of a node: from the start of its program to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Life {
    pub(crate) node: usize,
    /// Counts the lives of the node.
    pub(crate) number: u64,
}

/// How a function came to the owner of an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It had it.
    None,
    /// The one before has given it back.
    GivenBack,
    /// The one before was silent for the hold time.
    HoldOver,
}

/// Of one loan.
pub(crate) struct SingleOwner {
    owner: Option<Life>,
    /// By node: when the newest of its frames that have come to the lender was sent.
    heard: Vec<u64>,
    /// By node: it was silent for the hold time, and what it had it has lost, whether anybody has taken it or not.
    lapsed: Vec<bool>,
    /// By node: its last life that was asked to give everything back.
    gives_back: Vec<u64>,
    /// When the lender's present life began: it could not hear anybody before.
    listens: u64,
}

impl SingleOwner {
    pub(crate) fn new(nodes: usize) -> Self {
        let (heard, gives_back) = (vec![0; nodes], vec![0; nodes]);
        Self { owner: None, heard, lapsed: vec![false; nodes], gives_back, listens: 0 }
    }

    /// A frame that `node` sent at `sent` has come to the lender.
    pub(crate) fn heard(&mut self, node: usize, sent: u64) {
        self.lapsed[node] = self.is_hold_over(sent, node);
        self.heard[node] = self.heard[node].max(sent);
    }

    /// The lender's next life has begun.
    pub(crate) fn lender_began(&mut self, now: u64) {
        self.listens = now;
        self.lapsed.fill(false);
    }

    /// A life was asked to give back whatever it has.
    pub(crate) fn gives_back(&mut self, life: Life) {
        self.gives_back[life.node] = life.number;
    }

    /// Whether `node` was silent for the hold time.
    pub(crate) fn is_hold_over(&self, now: u64, node: usize) -> bool {
        self.lapsed[node] || self.silent(now, node) + HEARD_STEP >= HOLD.as_nanos() as u64
    }

    fn silent(&self, now: u64, node: usize) -> u64 {
        now.saturating_sub(self.heard[node].max(self.listens))
    }

    /// A request of `life` takes effect.
    ///
    /// # Errors
    /// Who loses the function by that, and why it may not.
    pub(crate) fn effect(&mut self, now: u64, life: Life) -> Result<Change, String> {
        self.lapsed[life.node] = false;
        let Some(former) = self.owner.replace(life).filter(|former| former.node != life.node) else {
            return Ok(Change::None);
        };
        if self.gives_back[former.node] >= former.number {
            return Ok(Change::GivenBack);
        }
        if self.is_hold_over(now, former.node) {
            return Ok(Change::HoldOver);
        }
        Err(format!(
            "a request of {life:?} takes effect, though {former:?} has not given the function back and was silent for \
             {} ms only",
            self.silent(now, former.node) / 1_000_000
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn life(node: usize, number: u64) -> Life {
        Life { node, number }
    }

    #[test]
    fn the_owner_changes_when_it_gave_back_or_was_silent_for_the_hold_time() {
        let mut owner = SingleOwner::new(3);
        owner.heard(1, SECOND);
        owner.effect(SECOND, life(1, 1)).unwrap();
        owner.effect(2 * SECOND, life(1, 2)).unwrap();
        owner.gives_back(life(1, 2));
        assert_eq!(owner.effect(3 * SECOND, life(2, 1)), Ok(Change::GivenBack));
        owner.heard(2, 3 * SECOND);
        assert_eq!(owner.effect(604 * SECOND, life(1, 3)), Ok(Change::HoldOver));
    }

    #[test]
    fn who_lives_loses_nothing() {
        let mut owner = SingleOwner::new(3);
        owner.effect(SECOND, life(1, 1)).unwrap();
        owner.heard(1, 5 * SECOND);
        owner.effect(600 * SECOND, life(2, 1)).unwrap_err();
        // A lender that was away has heard nobody, so it waits again.
        let mut owner = SingleOwner::new(3);
        owner.effect(SECOND, life(1, 1)).unwrap();
        owner.lender_began(600 * SECOND);
        owner.effect(700 * SECOND, life(2, 1)).unwrap_err();
    }

    #[test]
    fn what_was_lost_by_silence_stays_free_though_its_borrower_is_heard_again() {
        let mut owner = SingleOwner::new(3);
        owner.heard(1, SECOND);
        owner.effect(SECOND, life(1, 1)).unwrap();
        owner.heard(1, 618 * SECOND);
        owner.heard(1, 619 * SECOND);
        assert_eq!(owner.effect(866 * SECOND, life(2, 3)), Ok(Change::HoldOver));
        owner.heard(2, 866 * SECOND);
        // Unless it has taken it again.
        let mut owner = SingleOwner::new(3);
        owner.heard(1, SECOND);
        owner.effect(SECOND, life(1, 1)).unwrap();
        owner.heard(1, 618 * SECOND);
        owner.effect(619 * SECOND, life(1, 2)).unwrap();
        owner.effect(866 * SECOND, life(2, 3)).unwrap_err();
    }

    #[test]
    fn another_life_has_to_give_back_again_what_it_took_again() {
        let mut owner = SingleOwner::new(3);
        owner.effect(SECOND, life(1, 1)).unwrap();
        owner.gives_back(life(1, 1));
        owner.heard(1, 2 * SECOND);
        owner.effect(2 * SECOND, life(1, 2)).unwrap();
        owner.effect(3 * SECOND, life(2, 1)).unwrap_err();
    }
}
