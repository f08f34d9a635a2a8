//! Where answers of handshakes go: to wherever the first message came from, each to its own. One that waits, because a
//! peer is being asked whether it is there, must not go to who has called since. And somebody may repeat a first
//! message faster than the network, from any number of addresses: then the answer goes to each, and to whoever has sent
//! it first among them. That multiplies nothing, for no answer is longer than what it answers.

use std::collections::VecDeque;

use link::CallName;

use crate::cells::Address;

/// First messages that are remembered with their addresses: as many as come in one turn of a card, 64 on each rail.
const CALLERS: usize = 256;

#[derive(Default)]
pub(crate) struct Callers {
    known: VecDeque<Caller>,
    /// An answer that is to be sent elsewhere, too.
    copies: VecDeque<Copy>,
}

struct Caller {
    rail: u8,
    call: CallName,
    address: Address,
    /// It has no answer yet.
    waits: bool,
}

/// An answer once more.
pub(crate) struct Copy {
    pub(crate) rail: u8,
    pub(crate) to: Address,
    pub(crate) bytes: Vec<u8>,
}

impl Callers {
    /// `call` has come from `address` and is answered.
    pub(crate) fn expect_answer(&mut self, rail: u8, call: CallName, address: Address) {
        // Whoever came last is remembered longest.
        self.known.retain(|it| (it.rail, it.call, it.address) != (rail, call, address));
        self.note(rail, call, address);
    }

    /// `call` has come from `address`, too. True if its answer is to go there as well.
    pub(crate) fn note(&mut self, rail: u8, call: CallName, address: Address) -> bool {
        let mut known = self.known.iter();
        if known.any(|it| (it.rail, it.call, it.address) == (rail, call, address)) {
            return false;
        }
        // Many wait for ever, because a later call took their place.
        if self.known.len() == CALLERS {
            self.known.pop_front();
        }
        self.known.push_back(Caller { rail, call, address, waits: true });
        true
    }

    /// Where the answer to `call` goes, with the bytes in `frame`: to the first that waits for it, and then as copies
    /// to the others.
    pub(crate) fn answer(&mut self, rail: u8, call: CallName, frame: &[u8]) -> Option<Address> {
        let mut first = None;
        let waiting = self.known.iter_mut().filter(|it| it.waits && (it.rail, it.call) == (rail, call));
        for caller in waiting {
            caller.waits = false;
            let to = caller.address;
            if first.is_none() {
                first = Some(to);
            } else {
                self.copies.push_back(Copy { rail, to, bytes: frame.to_vec() });
            }
        }
        first
    }

    /// The next answer that goes elsewhere, too.
    pub(crate) fn next_copy(&mut self) -> Option<Copy> {
        self.copies.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use base::ids::LifeId;

    use super::*;

    #[test]
    fn who_repeats_a_call_from_many_addresses_takes_no_answer_from_who_calls() {
        let call = CallName::of_life(LifeId([1; 16]), 1);
        let mut callers = Callers::default();
        let address = |number: u32| {
            let mut bytes = [0; 28];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            Address(bytes)
        };
        callers.expect_answer(0, call, address(1));
        let answered = |callers: &mut Callers| {
            let first = callers.answer(0, call, &[7; 100]);
            let copies: Vec<_> = std::iter::from_fn(|| callers.next_copy()).map(|copy| copy.to).collect();
            first.into_iter().chain(copies).collect::<Vec<_>>()
        };
        assert_eq!(answered(&mut callers), [address(1)]);
        // More and more often than any table has places for; who has called comes last.
        for number in 2..=1000 {
            assert!(callers.note(0, call, address(number)));
            assert_eq!(answered(&mut callers), [address(number)]);
        }
        assert!(callers.note(0, call, address(1001)));
        assert_eq!(answered(&mut callers), [address(1001)], "its answer");
        assert!(!callers.note(0, call, address(1001)), "once");
        assert!(callers.known.len() <= CALLERS);
    }
}
