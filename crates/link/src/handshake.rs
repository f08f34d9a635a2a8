//! The handshake: Noise `NNpsk0` with the key of the loan's line, so that only who knows the line can begin or answer.
//!
//! State of a handshake dies with the card; what has to outlive it are the [`KeySet`]s, which the channel commits
//! before the message that lets the peer use them.

use core::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base::ids::{DomainId, Group, Incarnation, LifeId, NodeId};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::channel::Name;
use crate::cipher;
use crate::frame::VERSION;
use crate::seal::KEY_LEN;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes that Noise adds to a payload: an ephemeral public key and a tag.
pub(crate) const NOISE_OVERHEAD: usize = 32 + 16;

/// What a handshake has agreed. All zeroes: nothing.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct KeySet {
    pub(crate) valid: u32,
    /// As frames name it.
    pub(crate) id: u32,
    /// What the keys of frames are derived from, in each direction.
    pub(crate) send: [u8; KEY_LEN],
    pub(crate) receive: [u8; KEY_LEN],
    pub(crate) peer_incarnation: u64,
    pub(crate) peer_node: u64,
    pub(crate) peer_domain: u32,
    pub(crate) max_payload: u32,
    /// Bytes of the largest frame that both ends take.
    pub(crate) max_frame: u32,
    /// Number of a [`cipher::Cipher`].
    pub(crate) cipher: u32,
    /// 1 if both ends have agreed that the streams before go on.
    pub(crate) continues: u64,
    /// Number of the [`Tenancy`](crate::Tenancy) that the borrower's loan belongs to.
    pub(crate) tenancy: u64,
    /// Our own incarnation, as the peer knows it.
    pub(crate) incarnation: u64,
    /// The attempt with which the streams began: names them among all that this pair of lives has had.
    pub(crate) begun: u64,
    pub(crate) peer_life: LifeId,
    pub(crate) peer_name: [u8; 32],
}

/// Why a lender does not lend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another node has the function.
    InUse {
        /// Its name.
        by: Name,
        /// For how long it has had it; `None`: since before the lender was started.
        since: Option<Duration>,
        /// It is not heard at present: if it does not come back, the function is kept for it for so long.
        hold: Option<Duration>,
    },
    /// One side insists on sealed frames and the other on unsealed ones.
    Sealing,
    /// The lender has seen a greater incarnation of this node, or this one in another life: the state folder was
    /// restored.
    Outdated {
        /// The greatest that it has seen.
        seen: Incarnation,
    },
    /// Another life of this node has the function and answers: the state folder was copied.
    Twin {
        /// Its name.
        by: Name,
    },
}

/// Where the streams of a pair stand at one of its ends. Nothing here ever falls while the pair lasts, and no end can
/// have accepted what the other one has not numbered: so it shows whether two ends speak of the same streams.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Positions {
    /// Whose streams these are: the peer's life; zero if there are none to go on with.
    pub(crate) peer: LifeId,
    /// The attempt with which they began.
    pub(crate) begun: U64,
    /// All that was sent below this number is committed by the peer.
    pub(crate) sent: U64,
    /// All below this number was accepted.
    pub(crate) accepted: U64,
}

/// What the borrower says in the first message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Proposal {
    pub(crate) incarnation: U64,
    pub(crate) attempt: U64,
    pub(crate) node: U64,
    pub(crate) life: LifeId,
    pub(crate) positions: Positions,
    pub(crate) domain: U32,
    pub(crate) max_payload: U16,
    pub(crate) max_frame: U32,
    /// [`crate::cipher::Ciphers`] that the borrower accepts.
    pub(crate) ciphers: u8,
    pub(crate) name: [u8; 32],
}

/// What the lender answers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Answer {
    /// One of [`verdict`].
    pub(crate) verdict: u8,
    /// How frames shall name the new keys: by a number that the lender does not use for others.
    pub(crate) key_id: u8,
    /// Number of the [`cipher::Cipher`]: the best that both accept. Whoever stands in between cannot make it another
    /// one, because both messages are authenticated and the second one is bound to the first.
    pub(crate) cipher: u8,
    pub(crate) max_payload: U16,
    pub(crate) max_frame: U32,
    pub(crate) domain: U32,
    pub(crate) incarnation: U64,
    pub(crate) attempt: U64,
    pub(crate) node: U64,
    pub(crate) life: LifeId,
    /// `peer` is zero unless the streams of this very pair go on: both ends go on, or both begin anew.
    pub(crate) positions: Positions,
    /// The lender's name; of a refusal, the present borrower's.
    pub(crate) name: [u8; 32],
    /// Number of the borrower's [`Tenancy`](crate::Tenancy).
    pub(crate) tenancy: U64,
    /// Of a refusal: more about it.
    pub(crate) refusal: RefusalDetails,
}

/// What a refusal says beside its verdict.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RefusalDetails {
    /// For how long the present borrower has had the function; [`UNKNOWN`] where nobody knows.
    pub(crate) since_seconds: U64,
    /// For how long the function is kept for it if it stays silent; 0 if it is there.
    pub(crate) hold_seconds: U64,
    /// The greatest incarnation of the refused node that the lender has seen.
    pub(crate) seen: U64,
}

/// No duration.
pub(crate) const UNKNOWN: u64 = u64::MAX;

pub(crate) mod verdict {
    pub(crate) const ACCEPTED: u8 = 0;
    pub(crate) const IN_USE: u8 = 1;
    pub(crate) const SEALING: u8 = 2;
    pub(crate) const OUTDATED: u8 = 3;
    pub(crate) const TWIN: u8 = 4;
}

impl Answer {
    /// The refusal in this answer, if it is one.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let (by, details) = (Name::from_bytes(self.name), &self.refusal);
        let seconds = |seconds: U64, none: u64| {
            Some(seconds.get()).filter(|seconds| *seconds != none).map(Duration::from_secs)
        };
        match self.verdict {
            verdict::ACCEPTED => None,
            verdict::SEALING => Some(Refusal::Sealing),
            verdict::OUTDATED => Some(Refusal::Outdated { seen: Incarnation(details.seen.get()) }),
            verdict::TWIN => Some(Refusal::Twin { by }),
            _ => Some(Refusal::InUse {
                by,
                since: seconds(details.since_seconds, UNKNOWN),
                hold: seconds(details.hold_seconds, 0),
            }),
        }
    }
}

/// What a handshake is bound to, beside the key: both sides must agree on it.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) key: &'a [u8; KEY_LEN],
    pub(crate) fabric: u32,
    pub(crate) group: Group,
}

/// The borrower's side of one attempt.
pub(crate) struct Initiator {
    state: HandshakeState,
    pub(crate) attempt: u64,
}

impl Initiator {
    /// Begins an attempt; the message goes to `out`. `None` if the key is unusable, which no key of 32 bytes is.
    pub(crate) fn begin(
        binding: Binding<'_>,
        entropy: [u8; 32],
        proposal: &Proposal,
        out: &mut Vec<u8>,
    ) -> Option<Self> {
        let prologue = binding.prologue();
        let mut state = binding.builder(&prologue, entropy)?.build_initiator().ok()?;
        out.resize(size_of::<Proposal>() + NOISE_OVERHEAD, 0);
        let len = state.write_message(proposal.as_bytes(), out).ok()?;
        out.truncate(len);
        Some(Self { state, attempt: proposal.attempt.get() })
    }

    /// Reads the answer: the keys for sending and receiving with it. `None`: not an answer to this attempt.
    pub(crate) fn finish(&mut self, message: &[u8]) -> Option<(Answer, [u8; KEY_LEN], [u8; KEY_LEN])> {
        let mut payload = [0; size_of::<Answer>() + NOISE_OVERHEAD];
        if message.len() > payload.len() {
            return None;
        }
        let len = self.state.read_message(message, &mut payload).ok()?;
        let answer = Answer::read_from_bytes(payload.get(..len)?).ok()?;
        let (send, receive) = self.state.dangerously_get_raw_split();
        (answer.attempt.get() == self.attempt).then_some((answer, send, receive))
    }
}

/// The lender's side of one attempt, between the two messages.
pub(crate) struct Responder {
    state: HandshakeState,
}

impl Responder {
    /// Reads a first message; `None`: not from someone who knows the key.
    pub(crate) fn read(binding: Binding<'_>, entropy: [u8; 32], message: &[u8]) -> Option<(Self, Proposal)> {
        let prologue = binding.prologue();
        let mut state = binding.builder(&prologue, entropy)?.build_responder().ok()?;
        let mut payload = [0; size_of::<Proposal>() + NOISE_OVERHEAD];
        if message.len() > payload.len() {
            return None;
        }
        let len = state.read_message(message, &mut payload).ok()?;
        Some((Self { state }, Proposal::read_from_bytes(payload.get(..len)?).ok()?))
    }

    /// Answers; the message goes to `out`. Returns the keys for sending and receiving.
    pub(crate) fn answer(
        mut self,
        answer: &Answer,
        out: &mut Vec<u8>,
    ) -> Option<([u8; KEY_LEN], [u8; KEY_LEN])> {
        out.resize(size_of::<Answer>() + NOISE_OVERHEAD, 0);
        let len = self.state.write_message(answer.as_bytes(), out).ok()?;
        out.truncate(len);
        let (receive, send) = self.state.dangerously_get_raw_split();
        Some((send, receive))
    }
}

impl KeySet {
    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.peer_node)
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.peer_incarnation)
    }

    pub(crate) fn domain(&self) -> DomainId {
        DomainId(self.peer_domain)
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.valid != 0
    }

    /// What its frames are protected with; `None` where there is no key set.
    pub(crate) fn cipher(&self) -> Option<cipher::Cipher> {
        cipher::Cipher::from_number(self.cipher as u8).filter(|_| self.is_valid())
    }
}

impl Binding<'_> {
    fn prologue(&self) -> [u8; 9] {
        let mut prologue = [VERSION; 9];
        prologue[1..5].copy_from_slice(&self.fabric.to_le_bytes());
        prologue[5..].copy_from_slice(&self.group.0.to_le_bytes());
        prologue
    }

    fn builder<'b>(&'b self, prologue: &'b [u8], entropy: [u8; 32]) -> Option<Builder<'b>> {
        let params = PATTERN.parse().expect("the pattern is one that Noise defines");
        let resolver: BoxedCryptoResolver = Box::new(Resolver { entropy });
        Builder::with_resolver(params, resolver).psk(0, self.key).ok()?.prologue(prologue).ok()
    }
}

/// The primitives of Noise, with randomness that the driver has given, so that a simulation can be repeated.
struct Resolver {
    entropy: [u8; 32],
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Stream { entropy: self.entropy, blocks: 0 }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Stream {
    entropy: [u8; 32],
    blocks: u64,
}

impl Random for Stream {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        for chunk in dest.chunks_mut(32) {
            let block = derive(&self.entropy, self.blocks);
            chunk.copy_from_slice(&block[..chunk.len()]);
            self.blocks += 1;
        }
        Ok(())
    }
}

/// The `index`-th secret derived from `seed`.
pub fn derive(seed: &[u8; 32], index: u64) -> [u8; 32] {
    let mut input = [0; 40];
    input[..32].copy_from_slice(seed);
    input[32..].copy_from_slice(&index.to_le_bytes());
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, &input).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [9; 32];

    fn binding(group: u32) -> Binding<'static> {
        Binding { key: &KEY, fabric: 0, group: Group(group) }
    }

    fn proposal() -> Proposal {
        Proposal::read_from_bytes(&[1; size_of::<Proposal>()]).unwrap()
    }

    #[test]
    fn both_sides_agree_on_both_keys() {
        let mut message = Vec::new();
        let mut initiator = Initiator::begin(binding(1), [1; 32], &proposal(), &mut message).unwrap();
        let (responder, read) = Responder::read(binding(1), [2; 32], &message).unwrap();
        assert_eq!(read.as_bytes(), proposal().as_bytes());
        let answer = Answer {
            attempt: proposal().attempt,
            ..Answer::read_from_bytes(&[0; size_of::<Answer>()]).unwrap()
        };
        let (send, receive) = responder.answer(&answer, &mut message).unwrap();
        let (_, their_send, their_receive) = initiator.finish(&message).unwrap();
        assert_eq!((send, receive), (their_receive, their_send));
        assert_ne!(send, receive);
    }

    #[test]
    fn another_group_or_key_is_refused() {
        let mut message = Vec::new();
        Initiator::begin(binding(1), [1; 32], &proposal(), &mut message).unwrap();
        assert!(Responder::read(binding(2), [2; 32], &message).is_none());
        let other = Binding { key: &[8; 32], ..binding(1) };
        assert!(Responder::read(other, [2; 32], &message).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Responder::read(binding(1), [2; 32], &bytes).is_none());
            let mut message = Vec::new();
            let mut initiator = Initiator::begin(binding(1), [1; 32], &proposal(), &mut message).unwrap();
            prop_assert!(initiator.finish(&bytes).is_none());
        }
    }
}
