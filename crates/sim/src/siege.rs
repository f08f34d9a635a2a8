//! First messages of former borrowers, recorded in a life of the lender that it knows nothing of, and repeated when
//! they hurt most: right behind each answer.

use core::time::Duration;

use base::times::{HANDSHAKE_RETRY_MAX, PENDING_KEYS};
use link::State;
use node::{Address, CardConfig, NodeKey};

use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::marks::Mark;
use crate::network::{Frame, first_messages};
use crate::stage::{BORROWER, Event, LENDER, LONGEST_ABSENCE, Stage};

/// Former borrowers.
const NODES: u64 = 2;
/// Attempts recorded of each.
const ATTEMPTS: u64 = 2;
/// Where recorded messages come from.
const REPEATER: Address = Address([9; 28]);
/// Nanoseconds within which all are repeated: shorter than the answer's way.
const REPEAT: u64 = 5_000;
/// An answer, and the first frame behind it; and for the cards to start.
const MARGIN: Duration = Duration::from_millis(50);

/// Who keeps the borrower out.
#[derive(Default)]
pub(crate) struct Siege {
    /// Old first messages of nodes that are gone.
    former: Vec<Frame>,
    /// They are being repeated since the beginning, and the borrower is not served yet.
    is_on: bool,
}

impl Siege {
    pub(crate) fn has_recorded(&self) -> bool {
        !self.former.is_empty()
    }

    /// Former borrowers repeat from now on what they have sent.
    pub(crate) fn begin(&mut self, stage: &mut Stage<'_>) {
        for node in 0..NODES {
            let become_former = |config: &mut CardConfig| config.identity = NodeKey::numbered(0x1000 + node);
            let mut card = stage.foreign_card(BORROWER, become_former);
            let (who, now) = ((REPEATER, Life { node: BORROWER, number: 0 }), stage.clock.instant());
            self.former.extend(first_messages(&mut card, ATTEMPTS as u32, who, now));
        }
        self.is_on = true;
        self.repeat(stage, 4_000_000);
    }

    /// Whether those who have recorded something still keep the borrower from its drives: faults begin later then, but
    /// for cards that die. It is only for a moment.
    pub(crate) fn keeps_out(&mut self, stage: &mut Stage<'_>) -> bool {
        if !self.is_on {
            return false;
        }
        // The borrower opens with the answer; the lender with the first frame that uses it, and as soon as it is
        // durable whose the function is now.
        let lender = stage.nodes[LENDER].card.as_ref();
        let states = || (0..stage.loans.len()).map(|loan| lender.map(|card| card.state(loan)));
        let is_kept_out = states().any(|state| !matches!(state, Some(State::Open | State::Resetting)));
        self.is_on = !states().all(|state| state == Some(State::Open));
        if is_kept_out && u128::from(stage.clock.now) > longest(stage.report.kills).as_nanos() {
            stage.report.fail(names::NEWCOMER, "old first messages keep the borrower out".into());
        }
        self.is_on
    }

    /// An answer of the lender was seen on its way to `to`.
    pub(crate) fn answer_leaves(&self, stage: &mut Stage<'_>, to: Address) {
        // Answers to what was repeated are of no use to anyone.
        if self.is_on && to != REPEATER {
            self.repeat(stage, REPEAT);
        }
    }

    /// Everything recorded comes within so many nanoseconds.
    pub(crate) fn repeat(&self, stage: &mut Stage<'_>, within: u64) {
        stage.report.marks.set_if(Mark::FormerReplayed, !self.former.is_empty());
        for frame in &self.former {
            stage.clock.after(stage.random.below(within), Event::Arrival(frame.clone()));
        }
    }
}

/// How long the borrower may be kept out if so many cards were killed: an attempt that fails is followed by the next
/// after [`HANDSHAKE_RETRY_MAX`] at most.
fn longest(kills: u64) -> Duration {
    // Each recorded attempt is answered once. All at once they cost no more than these answers' places.
    // A card that dies takes an attempt with it, and later ones come to nobody until it has a successor.
    let deaths = (HANDSHAKE_RETRY_MAX + LONGEST_ABSENCE) * kills as u32;
    PENDING_KEYS * (NODES * ATTEMPTS) as u32 + HANDSHAKE_RETRY_MAX + deaths + MARGIN
}
