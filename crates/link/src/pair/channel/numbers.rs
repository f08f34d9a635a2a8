//! Numbers of streams: whoever opens one gives it a number that no stream of this course has had.

use base::ids::StreamId;
use base::ledger::{Cell, Journal, Layout};
use zerocopy::FromBytes;

use super::{CONTROL, Channel, Side};
use crate::stream::Stream;

/// Words of the map of numbers.
const WORDS: usize = 64;
/// Numbers behind the greatest of which it is known whether they were used.
const WINDOW: u32 = WORDS as u32 * 64;

const _: () = assert!(WINDOW >= super::MAX_STREAMS, "a peer may open all in any order");

/// The numbers of one course. All zeroes: none was used.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct NumberCells {
    /// How many this end has given.
    given: Cell<u32>,
    /// The peer's: how many places the greatest one that was used has below and at it.
    end: Cell<u32>,
    /// Streams of the peer's that are open.
    open: Cell<u32>,
    reserved: Cell<u32>,
    /// By place modulo the window.
    used: [Cell<u64>; WORDS],
}

/// Why the peer may not open a stream of this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pair) enum NotNow {
    /// It cannot be, or was used before.
    Number,
    /// As many as were agreed on are open.
    TooMany,
}

impl NumberCells {
    fn word(&self, place: u32) -> (&Cell<u64>, u64) {
        (&self.used[(place % WINDOW / 64) as usize], 1 << (place % 64))
    }

    fn is_used(&self, place: u32) -> bool {
        let (end, (word, bit)) = (self.end.get(), self.word(place));
        place < end && (end - place > WINDOW || word.get() & bit != 0)
    }

    fn mark(&self, journal: Journal<'_>, place: u32) {
        let end = self.end.get();
        // What was left out is free; of what is farther behind nobody asks.
        for skipped in end.max(place.saturating_sub(WINDOW - 1))..place {
            let (word, bit) = self.word(skipped);
            word.update(journal, |word| word & !bit);
        }
        let (word, bit) = self.word(place);
        word.update(journal, |word| word | bit);
        self.end.set(journal, end.max(place + 1));
    }

    /// Whether a stream of the peer's is open: it has something here.
    pub(super) fn has_open(&self) -> bool {
        self.open.get() > 0
    }

    pub(super) fn clear(&self, journal: Journal<'_>) {
        for cell in [&self.given, &self.end, &self.open] {
            cell.set(journal, 0);
        }
        self.used.iter().for_each(|word| word.set(journal, 0));
    }
}

impl Side {
    /// The number of its stream in this place: even ones from 2 on, or odd ones from 1 on.
    fn number(self, place: u32) -> StreamId {
        StreamId(place * 2 + if self == Self::First { 2 } else { 1 })
    }

    /// The place of a stream that this side has numbered.
    fn place(self, id: StreamId) -> Option<u32> {
        let least = if self == Self::First { 2 } else { 1 };
        id.0.checked_sub(least).filter(|above| above % 2 == 0).map(|above| above / 2)
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

impl<'m> Channel<'m> {
    /// A number for a stream that this end opens. `None`: there is no other one in this course.
    pub(in crate::pair) fn next_stream(&mut self) -> Option<StreamId> {
        let place = Some(self.cells.numbers.given.get()).filter(|place| *place < u32::MAX / 2 - 1)?;
        self.cells.numbers.given.set(self.journal, place + 1);
        Some(self.side.number(place))
    }

    /// Whether the peer may open a stream of this number; then it is used.
    pub(in crate::pair) fn admit(&mut self, id: StreamId) -> Result<(), NotNow> {
        let numbers = &self.cells.numbers;
        let place = self.side.other().place(id).filter(|place| !numbers.is_used(*place));
        let Some(place) = place.filter(|_| id != CONTROL) else {
            self.cells.stats.wrong_numbers.add(1);
            return Err(NotNow::Number);
        };
        if numbers.open.get() >= self.agreed().streams {
            self.cells.stats.too_many_streams.add(1);
            return Err(NotNow::TooMany);
        }
        numbers.mark(self.journal, place);
        numbers.open.update(self.journal, |open| open + 1);
        Ok(())
    }

    /// The peer has given up a stream of this number, which never came: it does not open any more, if the opening was
    /// only late.
    pub(super) fn bury(&mut self, id: StreamId) {
        let numbers = &self.cells.numbers;
        let place = self.side.other().place(id).filter(|place| id != CONTROL && !numbers.is_used(*place));
        if let Some(place) = place {
            numbers.mark(self.journal, place);
        }
    }

    /// A stream of this course has ended: what has flowed in it is remembered, and it is empty from here on.
    pub(in crate::pair) fn release(&mut self, id: StreamId, stream: &mut Stream<'m>) {
        self.cells.ended.update(self.journal, |ended| ended.with(stream));
        if self.side.other().place(id).is_some() {
            self.cells.numbers.open.update(self.journal, |open| open.saturating_sub(1));
        }
        self.debts.pay(id);
        self.sayings.unsay(id);
        stream.clear();
    }

    /// The step of a claim or an offer is taken back: what it has had said of its stream is not said, nor of one that
    /// it has opened.
    pub fn unsay(&mut self, id: Option<StreamId>) {
        let (side, given) = (self.side, self.cells.numbers.given.get());
        let is_new = |of: StreamId| side.place(of).is_some_and(|place| place >= given);
        self.sayings.unsay_all(|of| Some(of) == id || is_new(of));
    }
}

#[cfg(test)]
mod tests {
    use base::RuleSet;
    use base::ledger::{Arena, Ledger};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_two_sides_never_give_the_same_number() {
        for place in [0, 1, 77, u32::MAX / 2 - 2] {
            for (side, other) in [(Side::First, Side::Second), (Side::Second, Side::First)] {
                let id = side.number(place);
                assert_eq!((side.place(id), other.place(id)), (Some(place), None));
            }
        }
        assert_eq!([Side::First, Side::Second].map(|side| side.place(CONTROL)), [None, None]);
    }

    proptest! {
        /// The map is the set of the numbers that were used, as far as it reaches back.
        #[test]
        fn each_number_is_used_once(places in proptest::collection::vec(0..3 * WINDOW, 1..200)) {
            let arena = Arena::default();
            let memory = arena.zeroed::<NumberCells>();
            let Ledger { journal, root } = memory.ledger::<NumberCells>(None, RuleSet::ALL);
            let mut used = std::collections::BTreeSet::new();
            for place in places {
                let end = used.last().map_or(0, |last| last + 1);
                let is_far_behind = end > place && end - place > WINDOW;
                prop_assert_eq!(root.is_used(place), is_far_behind || used.contains(&place));
                if !root.is_used(place) {
                    root.mark(journal, place);
                    used.insert(place);
                }
            }
        }
    }
}
