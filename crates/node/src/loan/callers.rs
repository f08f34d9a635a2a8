//! Where answers of handshakes go: to wherever the first message came from, each to its own. One that waits, because a
//! peer is being asked whether it is there, must not go to who has called since. And somebody may repeat a first
//! message faster than the network, from an address of his own: then the answer goes to both.

use std::collections::VecDeque;

use link::CallName;

use crate::cells::Address;

/// First messages that are remembered with their addresses.
const CALLERS: usize = 64;
/// Addresses of one first message on one rail: so often it is answered at most.
const ADDRESSES: usize = 4;

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
        let same = self.known.iter().filter(|caller| (caller.rail, caller.call) == (rail, call));
        if same.clone().any(|caller| caller.address == address) || same.count() >= ADDRESSES {
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
