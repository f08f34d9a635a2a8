//! Exactly once, in order, with the same bytes; and what each end believes of the other.

use std::collections::BTreeMap;

use base::ids::RailId;
use link::{Stream as Flow, tlp_digest};
use pcie::FlowClass;

use super::Verdict;

/// One direction of a loan's stream, from its beginning to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamId {
    pub(crate) loan: usize,
    /// Whether the lender sends it.
    pub(crate) is_lenders: bool,
    /// What both ends call it.
    pub(crate) name: u64,
}

/// When a TLP was queued, which may be long before it gets its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queued {
    /// Its place among all TLPs of the stream.
    pub(crate) order: u64,
    pub(crate) is_completion: bool,
}

#[derive(Default)]
struct Stream {
    /// Digests of the TLPs by their numbers.
    sent: Vec<u64>,
    queued: Vec<Queued>,
    /// How many have been handed on.
    accepted: u64,
    granted: [u64; 3],
}

/// All streams of a run.
#[derive(Default)]
pub(crate) struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    buffer: Vec<u8>,
}

impl Streams {
    /// After a commit of the sender: remembers what has got a number.
    pub(crate) fn numbered(&mut self, id: StreamId, flow: &Flow<'_>) -> Verdict {
        let sender = &flow.port.sender;
        let stream = self.streams.entry(id).or_default();
        let known = stream.sent.len() as u64;
        if sender.next() < known {
            return Err(format!("{id:?}: {known} numbers were given, now only {}", sender.next()));
        }
        if sender.next() > known && sender.committed() > known {
            return Err(format!("{id:?}: the peer has committed what was never sent"));
        }
        self.buffer.resize(8192, 0);
        for number in known..sender.next() {
            let len = sender.write_tlp(number, RailId::default(), &mut self.buffer);
            stream.sent.push(tlp_digest(&self.buffer[..len]));
            let (class, order) = sender.order_of(number);
            stream.queued.push(Queued { order, is_completion: class == FlowClass::Completion });
        }
        Ok(())
    }

    /// TLPs `first..first + count` are sent, or would be: their bytes are those they had when they were numbered.
    pub(crate) fn transmitted(&mut self, id: StreamId, flow: &Flow<'_>, first: u64, count: u64) -> Verdict {
        let stream = self.streams.entry(id).or_default();
        self.buffer.resize(8192, 0);
        for number in first..first + count {
            let len = flow.port.sender.write_tlp(number, RailId::default(), &mut self.buffer);
            if stream.sent.get(number as usize) != Some(&tlp_digest(&self.buffer[..len])) {
                return Err(format!("{id:?}: TLP {number} has other bytes than when it was numbered"));
            }
        }
        Ok(())
    }

    /// The receiver has handed on, and committed, these TLPs.
    pub(crate) fn accepted(&mut self, id: StreamId, tlps: &[(u64, u64)]) -> Verdict {
        let stream = self.streams.entry(id).or_default();
        for &(number, digest) in tlps {
            if number != stream.accepted {
                return Err(format!("{id:?}: TLP {number} was handed on when {} was due", stream.accepted));
            }
            if stream.sent.get(number as usize) != Some(&digest) {
                return Err(format!("{id:?}: TLP {number} came with other bytes than it was sent with"));
            }
            stream.accepted += 1;
        }
        Ok(())
    }

    /// The receiver's own account agrees with what was handed on.
    pub(crate) fn expects(&self, id: StreamId, expected: u64) -> Verdict {
        let accepted = self.streams.get(&id).map_or(0, |stream| stream.accepted);
        if expected == accepted {
            return Ok(());
        }
        Err(format!("{id:?}: {accepted} TLPs were handed on, the receiver says {expected}"))
    }

    /// When TLPs of a stream were queued.
    pub(crate) fn queued(&self, id: StreamId, tlps: &[(u64, u64)]) -> impl Iterator<Item = Queued> {
        let known = self.streams.get(&id);
        tlps.iter().filter_map(move |&(number, _)| known?.queued.get(number as usize).copied())
    }

    /// What the sender has forgotten as committed was handed on, by a card that lived to commit it.
    pub(crate) fn committed(&self, id: StreamId, flow: &Flow<'_>) -> Verdict {
        let accepted = self.streams.get(&id).map_or(0, |stream| stream.accepted);
        let believed = flow.port.sender.committed();
        if believed <= accepted {
            return Ok(());
        }
        Err(format!("{id:?}: the sender believes {believed} to be committed, and {accepted} were handed on"))
    }

    /// Used credits are granted, and grants only grow.
    pub(crate) fn credits(&mut self, id: StreamId, flow: &Flow<'_>) -> Verdict {
        let (used, granted) = flow.port.sender.credits();
        let stream = self.streams.entry(id).or_default();
        if used.iter().zip(&granted).any(|(used, granted)| used > granted) {
            return Err(format!("{id:?}: used {used:?} of granted {granted:?}"));
        }
        if granted.iter().zip(&stream.granted).any(|(now, before)| now < before) {
            return Err(format!("{id:?}: granted {granted:?} after {:?}", stream.granted));
        }
        stream.granted = granted;
        Ok(())
    }
}

/// What `sender` believes of `receiver` is not more than what that has committed.
pub(crate) fn granted_truly(sender: &Flow<'_>, receiver: &Flow<'_>) -> Verdict {
    let (_, believed) = sender.port.sender.credits();
    let granted = receiver.receiver().granted();
    if believed.iter().zip(&granted).any(|(believed, granted)| believed > granted) {
        return Err(format!("the sender has {believed:?}, the receiver has granted {granted:?}"));
    }
    Ok(())
}

/// What `sender` has forgotten as committed is in its final place at `receiver`.
pub(crate) fn committed_truly(sender: &Flow<'_>, receiver: &Flow<'_>) -> Verdict {
    let (believed, expected) = (sender.port.sender.committed(), receiver.receiver().expected());
    if believed > expected {
        return Err(format!("the sender believes {believed} to be committed, the receiver has {expected}"));
    }
    Ok(())
}
