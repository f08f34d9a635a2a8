//! What a card has seen of nodes that somebody should know of, for its agent to read: who was refused, and two programs
//! with one identity.

use base::ids::NodeId;
use base::ledger::{Counter, Layout};
use link::Fault;
use link::pair::FunctionId;
use zerocopy::FromBytes;

use crate::cells::Address;

/// How many are remembered. Whoever was refused makes room for others, who came longest ago first.
const SIGHTINGS: usize = 32;

/// Faults of certificates have numbers from here on.
const CERTIFICATE: u64 = 32;

/// Words of an id and of an address.
const NODE_WORDS: usize = NodeId::BYTES.div_ceil(8);
const ADDRESS_WORDS: usize = size_of::<Address>().div_ceil(8);

/// What was seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// It stands on no list.
    NotAllowed,
    /// It asks for a function that is not there, or does not know its secret.
    Unproven,
    /// It asks by an entry of this node's table that the table does not have, and that is greater than the one it has.
    UnknownGeneration,
    /// It has as many streams as were agreed on, or there is no memory for another one.
    NoRoom,
    /// Another program than the one that this node has to do with has its identity, and was refused.
    Twin,
    /// Another program has the identity of this node, and was refused by a peer that goes on with this one.
    OwnTwin,
    /// The same, and the peer at this address goes on with the other one.
    OwnRefusal,
    /// The node at this address has something of this one and refuses it: it has seen a later life of it.
    OwnOutdated,
    /// This is wrong with the certificate that it shows. Times are kept as seconds.
    Certificate(Fault),
}

impl Cause {
    const ALL: [Self; 8] = [
        Self::NotAllowed,
        Self::Unproven,
        Self::Twin,
        Self::OwnTwin,
        Self::OwnRefusal,
        Self::OwnOutdated,
        Self::NoRoom,
        Self::UnknownGeneration,
    ];

    fn code(self) -> u64 {
        if let Self::Certificate(fault) = self {
            return CERTIFICATE + u64::from(fault.code().0);
        }
        1 + Self::ALL.iter().position(|cause| *cause == self).unwrap_or_default() as u64
    }

    /// The least make room. Anybody can cause as many refusals as he likes, and whoever is let in as many twins; of
    /// this node there is one.
    fn rank(self) -> u8 {
        match self {
            Self::NotAllowed | Self::Unproven | Self::NoRoom => 1,
            Self::Twin | Self::OwnOutdated | Self::UnknownGeneration | Self::Certificate(_) => 2,
            Self::OwnTwin | Self::OwnRefusal => 3,
        }
    }
}

/// Something that was seen, perhaps more than once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// What.
    pub cause: Cause,
    /// The node.
    pub node: NodeId,
    /// What it has asked for, if it came so far.
    pub function: Option<FunctionId>,
    /// Where it was last, if anybody knows.
    pub at: Option<Address>,
    /// How often.
    pub count: u64,
}

/// The storage of all. All zeroes: nothing was seen.
#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
pub struct Sightings {
    rows: [Row; SIGHTINGS],
    /// How many there have been.
    total: Counter,
}

#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
struct Row {
    /// Cause and function. 0: nothing.
    head: Counter,
    node: [Counter; NODE_WORDS],
    at: [Counter; ADDRESS_WORDS],
    count: Counter,
    /// Which of all it was, the last time.
    last: Counter,
    /// Of all the others: the agent reads them while a card may write.
    sum: Counter,
}

impl Sightings {
    /// Remembers one, in no step: what a card that dies has not said is seen again.
    pub(crate) fn note(&self, cause: Cause, node: NodeId, function: Option<FunctionId>, at: Option<Address>) {
        let time = match cause {
            Cause::Certificate(fault) => (fault.code().1 / 1000).min(u32::MAX.into()),
            _ => 0,
        };
        let head = cause.code() << 48 | function.map_or(time, |function| 1 << 32 | u64::from(function.0));
        let node = words::<NODE_WORDS>(&node.0);
        let is_it = |row: &&Row| row.head.get() == head && row.node.each_ref().map(Counter::get) == node;
        let known = self.rows.iter().find(is_it);
        let Some(row) = known.or_else(|| self.rows.iter().min_by_key(|row| row.rank())) else { return };
        self.total.add(1);
        let count = known.map_or(0, |row| row.count.get()) + 1;
        row.write(head, node, words::<ADDRESS_WORDS>(&Address::from(at).0), count, self.total.get());
    }

    /// All that are remembered.
    pub fn all(&self) -> impl Iterator<Item = Sighting> {
        self.rows.iter().filter_map(Row::read)
    }
}

impl Row {
    /// The least makes room: what is empty, then who was refused, then twins of others, longest ago first.
    fn rank(&self) -> (u8, u64) {
        (self.cause().map_or(0, Cause::rank), self.last.get())
    }

    fn cause(&self) -> Option<Cause> {
        let (code, seconds) = (self.head.get() >> 48, self.head.get() & u64::from(u32::MAX));
        let fault = code.checked_sub(CERTIFICATE).and_then(|fault| fault.try_into().ok());
        if let Some(fault) = fault.and_then(|fault| Fault::from_code(fault, 1000 * seconds)) {
            return Some(Cause::Certificate(fault));
        }
        Cause::ALL.into_iter().find(|cause| cause.code() == code)
    }

    fn write(&self, head: u64, node: [u64; NODE_WORDS], at: [u64; ADDRESS_WORDS], count: u64, last: u64) {
        self.head.set(head);
        self.node.iter().zip(node).for_each(|(gauge, word)| gauge.set(word));
        self.at.iter().zip(at).for_each(|(gauge, word)| gauge.set(word));
        self.count.set(count);
        self.last.set(last);
        self.sum.set(self.total());
    }

    fn total(&self) -> u64 {
        let words = self.node.iter().chain(&self.at).chain([&self.head, &self.count, &self.last]);
        words.fold(1, |sum, word| sum.rotate_left(7).wrapping_add(word.get()))
    }

    /// As a whole or not at all.
    fn read(&self) -> Option<Sighting> {
        let (head, count) = (self.head.get(), self.count.get());
        let cause = self.cause()?;
        let (mut node, mut at) = (NodeId::default(), Address::NONE);
        bytes(&self.node, &mut node.0);
        bytes(&self.at, &mut at.0);
        let function = (head >> 32 & 1 != 0).then_some(FunctionId(head as u32));
        let is_whole = self.sum.get() == self.total() && self.head.get() == head;
        is_whole.then_some(Sighting { cause, node, function, at: at.known(), count })
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(padded);
    }
    words
}

fn bytes(words: &[Counter], out: &mut [u8]) {
    for (chunk, word) in out.chunks_mut(8).zip(words) {
        chunk.copy_from_slice(&word.get().to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Box<Sightings> {
        Box::new(zerocopy::transmute!([0_u8; size_of::<Sightings>()]))
    }

    fn address(number: u8) -> Option<Address> {
        Some(Address([number; 28]))
    }

    #[test]
    fn what_was_seen_is_read_and_counted() {
        let seen = none();
        assert_eq!(seen.all().count(), 0);
        let (node, function) = (NodeId::numbered(7), Some(FunctionId(u32::MAX)));
        for at in 1..=3 {
            seen.note(Cause::Unproven, node, function, address(at));
        }
        seen.note(Cause::Twin, node, None, address(9));
        let all: Vec<_> = seen.all().collect();
        assert_eq!(
            all,
            [
                Sighting { cause: Cause::Unproven, node, function, at: address(3), count: 3 },
                Sighting { cause: Cause::Twin, node, function: None, at: address(9), count: 1 },
            ]
        );
        seen.rows[0].node[0].set(1);
        assert_eq!(seen.all().count(), 1, "it is just being written");
    }

    #[test]
    fn a_crowd_pushes_out_no_twin() {
        let seen = none();
        seen.note(Cause::OwnTwin, NodeId::numbered(1), None, address(1));
        for node in 2..1000 {
            seen.note(Cause::NotAllowed, NodeId::numbered(node), None, address(2));
        }
        let all: Vec<_> = seen.all().collect();
        assert_eq!((all.len(), all[0].cause), (SIGHTINGS, Cause::OwnTwin));
        assert!(all.iter().any(|it| it.node == NodeId::numbered(999)), "who came last is remembered");
    }

    /// Whoever is let in can be as many nodes as he likes, and two programs with each identity: that hides nobody who
    /// has the identity of this node.
    #[test]
    fn a_crowd_of_twins_pushes_out_nobody_with_the_identity_of_this_node() {
        let seen = none();
        seen.note(Cause::OwnTwin, NodeId::numbered(1), None, address(1));
        for node in 2..1000 {
            seen.note(Cause::Twin, NodeId::numbered(node), None, address(2));
        }
        assert!(seen.all().any(|it| it.cause == Cause::OwnTwin));
    }
}
