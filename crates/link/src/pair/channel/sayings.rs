//! What is to be said of streams, on stream 0.

use std::collections::{BTreeMap, VecDeque};

use base::ids::StreamId;

use super::{CONTROL, MAX_STREAMS};
use crate::pair::control::{Control, What, Wish};
use crate::path::Carried;
use crate::proof::{PROOF_LEN, prove};
use crate::record::{Record, Writer};

/// Records about streams that wait to be sent: more than a channel has streams. What does not find room is said again.
const SAYINGS: usize = 2 * MAX_STREAMS as usize;
/// Streams that the peer believes in and that are not there, of which it waits to be told.
const STRAYS: usize = 64;
/// Frames with records about streams of which it is not known yet whether they have arrived.
const TOLD: usize = 256;

/// What is to be said of a stream.
#[derive(Clone, Copy)]
pub(super) enum Saying {
    /// With a proof that is made when it is sent, for the keys that are in use then, if there is a secret.
    Open(Wish, Option<[u8; 32]>),
    Other(What),
}

/// What was said in one frame.
struct Told {
    number: u64,
    sayings: Vec<(StreamId, Saying)>,
}

/// Records that wait to be sent, and those on their way: what a lost frame said is said again, if nothing else of its
/// kind was said of the stream since. Whoever waits for an answer says it again as well, only later.
#[derive(Default)]
pub(super) struct Sayings {
    /// By stream and kind.
    waiting: BTreeMap<(StreamId, u8), Saying>,
    /// Streams among them that are not there.
    strays: usize,
    /// Frames on their way, the oldest first.
    told: VecDeque<Told>,
    /// How many there have been.
    frames: u64,
}

impl Sayings {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has this said of a stream, once. What finds no room is said again by who waits for the answer.
    pub(super) fn say(&mut self, id: StreamId, saying: Saying) {
        if self.waiting.len() < SAYINGS {
            self.waiting.insert((id, saying.kind()), saying);
        }
    }

    /// Has it said that a stream is not there. Where too many wait for that, not of this one.
    pub(super) fn say_stray(&mut self, id: StreamId) {
        let closed = Saying::Other(What::Closed);
        if self.strays < STRAYS && !self.waiting.contains_key(&(id, closed.kind())) {
            self.strays += 1;
            self.say(id, closed);
        }
    }

    /// Nothing more is to be said of a stream but what comes now.
    pub(super) fn unsay(&mut self, id: StreamId) {
        self.unsay_all(|stream| stream == id);
    }

    /// The same of all these.
    pub(super) fn unsay_all(&mut self, is_it: impl Fn(StreamId) -> bool) {
        self.waiting.retain(|(stream, _), _| !is_it(*stream));
        self.told.iter_mut().for_each(|told| told.sayings.retain(|(stream, _)| !is_it(*stream)));
    }

    /// Writes as many as there is room for, under the keys of the handshake `hash`: what the frame carries of them.
    pub(super) fn write(&mut self, hash: &[u8; 32], writer: &mut Writer<'_>) -> Option<Carried> {
        let mut sayings = Vec::new();
        while let Some((&(stream, kind), &saying)) = self.waiting.first_key_value() {
            let what = saying.spoken(hash, stream);
            if !writer.record(&Record::Control(Control { stream, what })) {
                break;
            }
            self.waiting.remove(&(stream, kind));
            sayings.push((stream, saying));
        }
        if self.waiting.is_empty() {
            self.strays = 0;
        }
        (!sayings.is_empty()).then(|| self.note_told(sayings))
    }

    fn note_told(&mut self, sayings: Vec<(StreamId, Saying)>) -> Carried {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.frames += 1;
        self.told.push_back(Told { number: self.frames, sayings });
        Carried { stream: CONTROL, first: self.frames, count: 1 }
    }

    /// The frame of this number has arrived, or was lost.
    pub(super) fn settle(&mut self, number: u64, has_arrived: bool) {
        let Some(place) = self.told.iter().position(|told| told.number == number) else { return };
        let Some(told) = self.told.remove(place).filter(|_| !has_arrived) else { return };
        for (id, saying) in told.sayings {
            let mut later = self.told.iter().skip(place).flat_map(|told| &told.sayings);
            let is_said = later.any(|(other, said)| (*other, said.kind()) == (id, saying.kind()));
            if !is_said && !self.waiting.contains_key(&(id, saying.kind())) {
                self.say(id, saying);
            }
        }
    }

    /// The peer's card is new: what is on its way is said again by who waits for an answer.
    pub(super) fn forget_told(&mut self) {
        self.told.clear();
    }

    /// Nothing is to be said any more.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.told.clear();
        self.strays = 0;
    }
}

impl Saying {
    fn kind(&self) -> u8 {
        match self {
            Self::Open(..) => 0,
            Self::Other(What::Open { .. }) => 1,
            Self::Other(What::Opened { .. }) => 2,
            Self::Other(What::Refused(_)) => 3,
            Self::Other(What::Close) => 4,
            Self::Other(What::Closed) => 5,
            Self::Other(What::Inform(_)) => 6,
            Self::Other(What::Informed) => 7,
        }
    }

    /// As it is said under the keys of the handshake `hash`.
    fn spoken(&self, hash: &[u8; 32], id: StreamId) -> What {
        match *self {
            Self::Open(wish, secret) => {
                let proof = secret.map(|secret| prove(&secret, &wish.proven(hash, id)));
                What::Open { wish, proof: proof.unwrap_or([0; PROOF_LEN]) }
            }
            Self::Other(what) => what,
        }
    }
}
