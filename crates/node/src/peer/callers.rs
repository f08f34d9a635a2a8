//! Where answers of handshakes go: to wherever the first message came from, each to its own. One that waits, because a
//! peer is being asked whether it is there, must not go to who has called since. And somebody may repeat a first
//! message faster than the network, from any number of addresses: then the answer goes to others as well, and to
//! whoever has sent it first among them. Such second answers are no longer than what they answer, and bounded in time.

use core::time::Duration;
use std::collections::VecDeque;

use base::{Bucket, Instant};
use link::{CallName, PathId};

use crate::cells::Address;

/// First messages that are remembered with their addresses: as many as come in one turn of a card, 64 on each rail.
const CALLERS: usize = 256;
/// Answers to further addresses that may leave at once, and after what time there is one more.
const SECOND_ANSWERS: u32 = 128;
const ONE_MORE: Duration = Duration::from_millis(4);

pub(crate) struct Callers {
    known: VecDeque<Caller>,
    /// What is to be sent elsewhere, too.
    copies: VecDeque<Copy>,
    second_answers: Bucket,
}

struct Caller {
    path: PathId,
    call: CallName,
    address: Address,
    /// It has no answer yet.
    waits: bool,
    /// No other address had sent this when it came.
    is_first: bool,
}

/// A message once more.
pub(crate) struct Copy {
    pub(crate) path: PathId,
    pub(crate) to: Address,
    pub(crate) bytes: Vec<u8>,
}

impl Callers {
    pub(crate) fn new(now: Instant) -> Self {
        let second_answers = Bucket::full(SECOND_ANSWERS, ONE_MORE, now);
        Self { known: VecDeque::new(), copies: VecDeque::new(), second_answers }
    }

    /// `call` has come from `address` and is answered, now or later.
    pub(crate) fn expect_answer(&mut self, now: Instant, path: PathId, call: CallName, address: Address) {
        let mut waiting = self.known.iter().filter(|it| it.waits && (it.path, it.call) == (path, call));
        let is_first = waiting.clone().next().is_none();
        if waiting.any(|it| it.address == address) || (!is_first && !self.second_answers.take(now)) {
            return;
        }
        // Whoever came last is remembered longest.
        self.known.retain(|it| (it.path, it.call, it.address) != (path, call, address));
        self.remember(Caller { path, call, address, waits: true, is_first });
    }

    /// `call` has come from `address`, too. True if its answer is to go there as well.
    pub(crate) fn note(&mut self, now: Instant, path: PathId, call: CallName, address: Address) -> bool {
        let mut known = self.known.iter();
        if known.any(|it| (it.path, it.call, it.address) == (path, call, address))
            || !self.second_answers.take(now)
        {
            return false;
        }
        self.remember(Caller { path, call, address, waits: true, is_first: false });
        true
    }

    /// Many wait for ever, because a later call took their place. But whoever repeats messages shall take no place of
    /// who has called first.
    fn remember(&mut self, caller: Caller) {
        if self.known.len() == CALLERS {
            let is_free = |it: &Caller| !(it.waits && it.is_first);
            self.known.remove(self.known.iter().position(is_free).unwrap_or(0));
        }
        self.known.push_back(caller);
    }

    /// Where the answer to `call` goes, with the bytes in `frame`: to the first that waits for it, and then as copies
    /// to the others.
    pub(crate) fn answer(&mut self, path: PathId, call: CallName, frame: &[u8]) -> Option<Address> {
        let mut first = None;
        let waiting = self.known.iter_mut().filter(|it| it.waits && (it.path, it.call) == (path, call));
        for caller in waiting {
            caller.waits = false;
            let to = caller.address;
            if first.is_none() {
                first = Some(to);
            } else {
                self.copies.push_back(Copy { path, to, bytes: frame.to_vec() });
            }
        }
        first
    }

    /// Where a call has come from first that is still remembered.
    pub(crate) fn address_of(&self, call: CallName) -> Option<Address> {
        self.known.iter().find(|it| it.call == call).map(|it| it.address)
    }

    /// A first message goes to this address, too.
    pub(crate) fn copy(&mut self, path: PathId, to: Address, frame: &[u8]) {
        self.copies.push_back(Copy { path, to, bytes: frame.to_vec() });
    }

    /// The next message that goes elsewhere, too.
    pub(crate) fn next_copy(&mut self) -> Option<Copy> {
        self.copies.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use base::ids::{LifeId, RailId};

    use super::*;

    const START: Instant = Instant::ZERO;
    const PATH: PathId = PathId::new(RailId::ALL[0], RailId::ALL[0]);

    fn address(number: u32) -> Address {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        Address(bytes)
    }

    fn call(number: u64) -> CallName {
        CallName::of_life(LifeId([1; 16]), number)
    }

    /// Where the answer goes that is sent now.
    fn answered(callers: &mut Callers, call: CallName) -> Vec<Address> {
        let first = callers.answer(PATH, call, &[7; 100]);
        let copies: Vec<_> = std::iter::from_fn(|| callers.next_copy()).map(|copy| copy.to).collect();
        first.into_iter().chain(copies).collect()
    }

    #[test]
    fn who_repeats_a_call_from_many_addresses_takes_no_answer_from_who_calls() {
        let mut callers = Callers::new(START);
        callers.expect_answer(START, PATH, call(1), address(1));
        assert_eq!(answered(&mut callers, call(1)), [address(1)]);
        // Who has called comes last.
        for number in 2..=100 {
            assert!(callers.note(START, PATH, call(1), address(number)));
            assert_eq!(answered(&mut callers, call(1)), [address(number)]);
        }
        assert!(callers.note(START, PATH, call(1), address(101)));
        assert_eq!(answered(&mut callers, call(1)), [address(101)], "its answer");
        assert!(!callers.note(START, PATH, call(1), address(101)), "once");
    }

    #[test]
    fn second_answers_are_bounded_in_time_wherever_a_call_comes_from() {
        let mut callers = Callers::new(START);
        callers.expect_answer(START, PATH, call(1), address(0));
        assert_eq!(answered(&mut callers, call(1)).len(), 1);
        let mut sent = 0;
        for number in 1..=10_000 {
            let now = START + Duration::from_micros(100) * number;
            callers.note(now, PATH, call(1), address(number));
            sent += answered(&mut callers, call(1)).len();
        }
        assert_eq!(sent, 128 + 249, "in a second");
        assert!(callers.known.len() <= CALLERS);
        // Who calls anew is answered all the same.
        callers.expect_answer(START + Duration::from_secs(1), PATH, call(2), address(1));
        assert_eq!(answered(&mut callers, call(2)), [address(1)]);
    }

    /// A call waits while the life before is asked whether it is there.
    #[test]
    fn who_has_called_first_keeps_its_place_while_others_repeat_the_call() {
        let mut callers = Callers::new(START);
        callers.expect_answer(START, PATH, call(1), address(1));
        for number in 2..=10_000 {
            callers.expect_answer(START + Duration::from_micros(30) * number, PATH, call(1), address(number));
        }
        let to = answered(&mut callers, call(1));
        assert!(to[0] == address(1) && to.len() <= CALLERS, "{} answers", to.len());
        assert!(answered(&mut callers, call(1)).is_empty());
    }
}
