//! Which accesses that were denied to the function of a guest may have been.

use node::BorrowedSlot;

/// Accesses of a function that may be denied.
///
/// A store is in doubt if its card died before it could say that it was made. A successor makes it again; but a guest
/// may have found it, since the successor signals every vector, and have left by then. That is one store for each
/// departure, and the last answer before it was told by another card than the one before.
///
/// Nothing of a function that has failed, since its guest's machine has refused a write, reaches memory until it was
/// reset. Reads may even come behind the completion that tells of the reset.
#[derive(Default)]
pub(crate) struct Excuses {
    /// There is a machine.
    is_there: bool,
    /// The card that told of the last answer, or met the machine.
    card: u64,
    /// It was another one than before.
    is_in_doubt: bool,
    /// Departures with a store in doubt.
    in_doubt: u64,
    /// Accesses that were denied while the function was closed out.
    closed_out: u64,
    /// What was seen last: denied accesses, transfers that have failed, and whether the function was closed out.
    seen: (u64, u64, bool),
}

impl Excuses {
    /// A machine comes.
    pub(crate) fn met(&mut self, card: u64) {
        (self.is_there, self.card, self.is_in_doubt) = (true, card, false);
    }

    /// It has found an answer.
    pub(crate) fn answered(&mut self, card: u64) {
        self.is_in_doubt = card != self.card;
        self.card = card;
    }

    /// It leaves, or its drive is taken from it.
    pub(crate) fn left(&mut self) {
        self.is_there = false;
        self.in_doubt += u64::from(self.is_in_doubt);
        self.is_in_doubt = false;
    }

    /// After each step of the card: how many accesses, of so many that were denied, may have been.
    pub(crate) fn excuse(&mut self, slot: &BorrowedSlot<'_>, denied: u64) -> u64 {
        let failed = slot.session().map_or(0, |session| session.counters().failed_transfers.get());
        self.step(denied, failed, self.is_there && slot.is_closed_out());
        self.count()
    }

    /// So many accesses have been denied and so many transfers have failed by now. `is_closed_out` is the function of a
    /// guest that is there.
    fn step(&mut self, denied: u64, failed: u64, is_closed_out: bool) {
        let (denied_before, failed_before, was_closed_out) = self.seen;
        // A card that died has taken back that its function failed, but not the count of what was denied then.
        if is_closed_out || was_closed_out || failed != failed_before {
            self.closed_out += denied.saturating_sub(denied_before);
        }
        self.seen = (denied, failed, is_closed_out);
    }

    fn count(&self) -> u64 {
        self.in_doubt + self.closed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest leaves, which its card has told of an answer.
    fn departure(excuses: &mut Excuses, cards: [u64; 3]) {
        excuses.met(cards[0]);
        excuses.answered(cards[1]);
        excuses.answered(cards[2]);
        excuses.left();
    }

    #[test]
    fn a_departure_excuses_a_store_only_if_a_card_died_before_the_last_answer() {
        let mut excuses = Excuses::default();
        for cards in [[1, 1, 1], [1, 2, 2], [2, 5, 5]] {
            departure(&mut excuses, cards);
            excuses.step(1, 0, false);
            assert_eq!(excuses.count(), 0, "{cards:?}");
        }
        departure(&mut excuses, [5, 5, 6]);
        assert_eq!(excuses.count(), 1);
    }

    #[test]
    fn whatever_a_failed_function_is_denied_is_excused_until_it_was_reset() {
        let mut excuses = Excuses::default();
        for (denied, failed, is_closed_out, count) in [
            (1, 0, false, 0),
            // It fails, and the card dies: nothing of that has happened, but for the counts.
            (2, 1, false, 1),
            (4, 2, true, 3),
            (5, 2, true, 4),
            // The reset ends behind the last one.
            (6, 2, false, 5),
            (7, 2, false, 5),
        ] {
            excuses.step(denied, failed, is_closed_out);
            assert_eq!(excuses.count(), count, "{denied} denied");
        }
    }
}
