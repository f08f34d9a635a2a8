//! First messages of former borrowers, recorded in a life of the lender that it knows nothing of, and repeated when
//! they hurt most: right behind each answer.

use core::time::Duration;

use base::times::{HANDSHAKE_RETRY_MAX, PENDING_KEYS};
use link::State;
use node::{Address, Card, NodeKey};

use crate::cards::LONGEST_ABSENCE;
use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::marks::Mark;
use crate::network::{Frame, first_messages};
use crate::world::{BORROWER, Event, LENDER, World};

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
}

impl World<'_> {
    /// Former borrowers repeat from now on what they have sent.
    pub(crate) fn begin_siege(&mut self) {
        for node in 0..NODES {
            let mut config = self.card_config(BORROWER);
            config.identity = NodeKey::numbered(0x1000 + node);
            let now = self.clock.instant();
            let memory = config.new_memory(self.arena);
            let mut card = Card::new(memory, None, config, now).expect("the memory was made for it");
            let who = (REPEATER, Life { node: BORROWER, number: 0 });
            self.siege.former.extend(first_messages(&mut card, ATTEMPTS as u32, who, now));
        }
        self.siege.is_on = true;
        self.repeat_former(4_000_000);
    }

    /// Whether those who have recorded something still keep the borrower from its drives: faults begin later then, but
    /// for cards that die. It is only for a moment.
    pub(crate) fn is_besieged(&mut self) -> bool {
        if !self.siege.is_on {
            return false;
        }
        // The borrower opens with the answer; the lender with the first frame that uses it, and as soon as it is
        // durable whose the function is now.
        let lender = self.nodes[LENDER].card.as_ref();
        let states = || (0..self.loans.len()).map(|loan| lender.map(|card| card.state(loan)));
        let is_kept_out = states().any(|state| !matches!(state, Some(State::Open | State::Resetting)));
        self.siege.is_on = !states().all(|state| state == Some(State::Open));
        if is_kept_out && u128::from(self.clock.now) > self.longest_siege().as_nanos() {
            self.report.fail(names::NEWCOMER, "old first messages keep the borrower out".into());
        }
        self.siege.is_on
    }

    /// How long the borrower may be kept out: an attempt that fails is followed by the next after
    /// [`HANDSHAKE_RETRY_MAX`] at most.
    fn longest_siege(&self) -> Duration {
        // Each recorded attempt is answered once. All at once they cost no more than these answers' places.
        // A card that dies takes an attempt with it, and later ones come to nobody until it has a successor.
        let deaths = (HANDSHAKE_RETRY_MAX + LONGEST_ABSENCE) * self.report.kills as u32;
        PENDING_KEYS * (NODES * ATTEMPTS) as u32 + HANDSHAKE_RETRY_MAX + deaths + MARGIN
    }

    /// An answer of the lender was seen on its way to `to`.
    pub(crate) fn besiege(&mut self, to: Address) {
        // Answers to what was repeated are of no use to anyone.
        if self.siege.is_on && to != REPEATER {
            self.repeat_former(REPEAT);
        }
    }

    /// Everything recorded comes within so many nanoseconds.
    pub(crate) fn repeat_former(&mut self, within: u64) {
        self.report.marks.set_if(Mark::FormerReplayed, !self.siege.former.is_empty());
        for frame in &self.siege.former {
            self.clock.after(self.random.below(within), Event::Arrival(frame.clone()));
        }
    }
}
