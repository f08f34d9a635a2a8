//! The handshake: Noise `IK`. Each node proves its key pair; who calls knows the other's public key.
//!
//! In front of that, each message bears a MAC that only who knows the called node's public key can make
//! ([`is_marked`]): all that anybody else costs a node is to look at it.
//!
//! State of a handshake dies with the card; what has to outlive it are the [`KeySet`]s, which the channel commits
//! before the message that lets the peer use them.

mod messages;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base::ids::{ChannelIndex, DomainId, Group, Incarnation, LifeId, NodeId};
use base::ledger::{Code, Layout};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::cipher::{self, Suite};
use crate::frame::{ROUTE, TAG_LEN, VERSION};
use crate::identity::{NodeKey, PublicKey};
use crate::seal::KEY_LEN;
use crate::x25519::x25519;
use messages::MAX_MESSAGE;
pub use messages::PROPOSAL_LEN;
pub(crate) use messages::{Answer, Positions, Proposal, Speaker, verdict};

const PATTERN: &str = "Noise_IK_25519_AESGCM_SHA256";
/// Bytes that Noise adds to the payload of a first message: an ephemeral public key, a sealed static one and a tag. An
/// answer has less.
pub(crate) const NOISE_OVERHEAD: usize = 32 + (32 + 16) + 16;
/// Bytes of a first message, at least: nobody gets an answer that is longer than what it answers.
pub(crate) const FIRST_LEN: usize = PROPOSAL_LEN + NOISE_OVERHEAD;

/// The smallest frame that carries a TLP of the smallest maximum payload, whatever a peer says.
const MIN_FRAME: u32 = 1280;

/// Why a message is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// It is not from someone who knows the key, or is bound to something else.
    Auth,
    /// It is, and makes no sense.
    Invalid,
}

/// What a handshake has agreed. All zeroes: nothing.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct KeySet {
    pub(crate) valid: u32,
    /// As frames name it.
    pub(crate) id: u32,
    /// What the keys of frames are derived from, in each direction.
    pub(crate) send: [u8; KEY_LEN],
    pub(crate) receive: [u8; KEY_LEN],
    /// Names the handshake, the same at both ends (Noise 5.2); what is proven under its keys is bound to it.
    pub(crate) hash: [u8; KEY_LEN],
    pub(crate) peer_incarnation: u64,
    pub(crate) peer_domain: u32,
    /// How the peer has numbered the channel.
    pub(crate) peer_channel: u32,
    pub(crate) max_payload: u32,
    /// Bytes of the largest frame that both ends take.
    pub(crate) max_frame: u32,
    /// What protects the frames.
    pub(crate) suite: Code<Suite>,
    pub(crate) reserved: [u8; 3],
    /// 1 if the peer has begun the handshake.
    pub(crate) called: u32,
    /// 1 if both ends have agreed that the streams before go on.
    pub(crate) continues: u64,
    /// Our own incarnation, as the peer knows it.
    pub(crate) incarnation: u64,
    /// The attempt with which the streams began: names them among all that this pair of lives has had.
    pub(crate) begun: u64,
    pub(crate) peer_life: LifeId,
    pub(crate) peer_name: [u8; 32],
    pub(crate) peer_node: NodeId,
    /// Streams that both ends take at once.
    pub(crate) streams: u32,
}

/// Who speaks, and what the handshake is bound to: both sides must agree on it.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    /// This node.
    pub(crate) identity: &'a NodeKey,
    /// Who answers, which may be this node.
    pub(crate) called: PublicKey,
    pub(crate) fabric: u32,
    pub(crate) group: Group,
    /// The domains of who begins and of who answers, as the first message's header has them.
    pub(crate) source: DomainId,
    pub(crate) destination: DomainId,
}

/// What both ends of a handshake have when it is over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Secrets {
    pub(crate) send: [u8; KEY_LEN],
    pub(crate) receive: [u8; KEY_LEN],
    /// The same at both ends.
    pub(crate) hash: [u8; KEY_LEN],
}

/// The caller's side of one attempt.
pub(crate) struct Initiator {
    state: HandshakeState,
    called: NodeId,
    pub(crate) attempt: u64,
    /// The domain that it was for; zero: whoever hears it.
    pub(crate) destination: DomainId,
    /// The answer that was read, as it came: it may come with a false header first, and can be opened only once.
    heard: Option<(Vec<u8>, Answer)>,
    /// One that was read before, and is not used: it may come once more, on another path.
    passed_over: Option<Vec<u8>>,
    /// What the attempt was begun with.
    entropy: [u8; 32],
    proposal: Proposal,
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
        let builder = binding.builder(&prologue, entropy)?.remote_public_key(&binding.called.0).ok()?;
        let mut state = builder.build_initiator().ok()?;
        out.resize(FIRST_LEN, 0);
        let len = state.write_message(&proposal.encode(), out).ok()?;
        out.truncate(len);
        let (attempt, destination, called) = (proposal.attempt, binding.destination, binding.called.id());
        let (heard, passed_over, proposal) = (None, None, *proposal);
        Some(Self { state, called, attempt, destination, heard, passed_over, entropy, proposal })
    }

    /// The answer that was read is not used. The attempt stands for whoever else answers it: it is begun again, as it
    /// was, since only one answer can be opened. `binding` is the one that it was begun with.
    pub(crate) fn pass_over(&mut self, binding: Binding<'_>) {
        let Some((message, _)) = self.heard.take() else { return };
        if let Some(begun) = Self::begin(binding, self.entropy, &self.proposal, &mut Vec::new()) {
            *self = Self { passed_over: Some(message), ..begun };
        }
    }

    /// Whether this answer is the last one that was not used.
    pub(crate) fn has_passed_over(&self, message: &[u8]) -> bool {
        self.passed_over.as_deref() == Some(message)
    }

    /// Reads the answer: the keys for sending and receiving with it.
    pub(crate) fn finish(&mut self, message: &[u8]) -> Result<(Answer, Secrets), Unread> {
        let answer = match &self.heard {
            Some((heard, answer)) if heard == message => *answer,
            _ => {
                let mut room = [0; MAX_MESSAGE];
                let payload = open(&mut self.state, message, &mut room)?;
                let answer = Answer::decode(payload, self.called).ok_or(Unread::Invalid)?;
                self.heard = Some((message.to_vec(), answer));
                answer
            }
        };
        let (send, receive) = self.state.dangerously_get_raw_split();
        let secrets = Secrets { send, receive, hash: hash_of(&self.state) };
        (answer.attempt == self.attempt).then_some((answer, secrets)).ok_or(Unread::Invalid)
    }
}

/// The side of one attempt that answers, between the two messages.
pub(crate) struct Responder {
    state: HandshakeState,
    /// Of who has called.
    pub(crate) key: PublicKey,
}

impl Responder {
    /// Reads a first message.
    pub(crate) fn read(
        binding: Binding<'_>,
        entropy: [u8; 32],
        message: &[u8],
    ) -> Result<(Self, Proposal), Unread> {
        let prologue = binding.prologue();
        let builder = binding.builder(&prologue, entropy).ok_or(Unread::Auth)?;
        let mut state = builder.build_responder().map_err(|_| Unread::Auth)?;
        let mut room = [0; MAX_MESSAGE];
        let payload = open(&mut state, message, &mut room)?;
        let mut key = PublicKey::default();
        key.0.copy_from_slice(state.get_remote_static().ok_or(Unread::Auth)?);
        if !key.is_usable() {
            return Err(Unread::Auth);
        }
        let proposal = Proposal::decode(payload, key.id()).ok_or(Unread::Invalid)?;
        Ok((Self { state, key }, proposal))
    }

    /// Answers; the message goes to `out`.
    pub(crate) fn answer(mut self, answer: &Answer, out: &mut Vec<u8>) -> Option<Secrets> {
        out.resize(FIRST_LEN, 0);
        let len = self.state.write_message(&answer.encode(), out).ok()?;
        out.truncate(len);
        let (receive, send) = self.state.dangerously_get_raw_split();
        Some(Secrets { send, receive, hash: hash_of(&self.state) })
    }
}

/// The hash of a handshake that is over.
fn hash_of(state: &HandshakeState) -> [u8; KEY_LEN] {
    let mut hash = [0; KEY_LEN];
    // That of SHA-256 is as long.
    hash.copy_from_slice(state.get_handshake_hash());
    hash
}

/// Bytes of the largest payload of a TLP that both ends can have.
pub(crate) fn agreed_payload(ours: usize, theirs: u16) -> u16 {
    if ours >= 4096 && theirs >= 4096 { 4096 } else { 1024 }
}

/// Bytes of the largest frame that both ends take.
pub(crate) fn agreed_frame(ours: u32, theirs: u32) -> u32 {
    ours.min(theirs).max(MIN_FRAME)
}

/// What a message says, if it is authentic and no longer than anything that is read.
fn open<'r>(
    state: &mut HandshakeState,
    message: &[u8],
    room: &'r mut [u8; MAX_MESSAGE],
) -> Result<&'r [u8], Unread> {
    if message.len() > room.len() + NOISE_OVERHEAD {
        return Err(Unread::Auth);
    }
    let len = state.read_message(message, room).map_err(|_| Unread::Auth)?;
    room.get(..len).ok_or(Unread::Auth)
}

impl KeySet {
    /// One with this peer, and nothing agreed yet.
    pub(crate) fn with(peer: &Speaker) -> Self {
        Self {
            peer_incarnation: peer.incarnation.0,
            peer_node: peer.node,
            peer_domain: peer.domain.0,
            peer_channel: peer.channel.0,
            peer_life: peer.life,
            peer_name: peer.name,
            ..Self::new_zeroed()
        }
    }

    pub(crate) fn channel(&self) -> ChannelIndex {
        ChannelIndex(self.peer_channel)
    }

    pub(crate) fn node(&self) -> NodeId {
        self.peer_node
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

    /// Whether a peer that has another life than the one before did not come later than that: its state folder is a
    /// copy.
    pub(crate) fn is_fork_of(&self, old: &Self) -> bool {
        let is_node = old.is_valid() && old.node() == self.node();
        is_node && old.peer_life != self.peer_life && self.incarnation() <= old.incarnation()
    }

    /// What its frames are protected with; `None` where there is no key set.
    ///
    /// # Panics
    /// If the set is there and its cipher is none: the ledger is corrupt ([`Code::get`]).
    pub(crate) fn cipher(&self) -> Option<cipher::Cipher> {
        if self.is_valid() { self.suite.get().cipher() } else { None }
    }
}

/// Whom a message of a handshake is for, as its header says: zeroes for what is not known yet.
#[derive(Clone, Copy, Default)]
pub(crate) struct Destination {
    pub(crate) domain: DomainId,
    pub(crate) channel: ChannelIndex,
}

impl Destination {
    /// Whoever has sent a first message.
    pub(crate) fn of(speaker: &Speaker) -> Self {
        Self { domain: speaker.domain, channel: speaker.channel }
    }

    /// The peer under these keys.
    pub(crate) fn of_keys(keys: &KeySet) -> Self {
        Self { domain: keys.domain(), channel: keys.channel() }
    }
}

impl Binding<'_> {
    fn prologue(&self) -> Vec<u8> {
        let ids = [self.fabric, self.source.0, self.destination.0].map(u32::to_le_bytes);
        [&[VERSION][..], &self.group.0.to_le_bytes(), ids.as_flattened()].concat()
    }

    fn builder<'b>(&'b self, prologue: &'b [u8], entropy: [u8; 32]) -> Option<Builder<'b>> {
        builder(self.identity, prologue, entropy)
    }
}

/// What either end of a handshake begins with. `None` if the key is unusable, which no key of 32 bytes is.
pub(crate) fn builder<'b>(own: &'b NodeKey, prologue: &'b [u8], entropy: [u8; 32]) -> Option<Builder<'b>> {
    let params = PATTERN.parse().expect("the pattern is one that Noise defines");
    let resolver: BoxedCryptoResolver = Box::new(Resolver { entropy });
    let builder = Builder::with_resolver(params, resolver).prologue(prologue).ok()?;
    builder.local_private_key(own.reveal()).ok()
}

/// Marks a message of a handshake for a node, so that only who knows the node's public key can have made it: as
/// WireGuard's `mac1` does, but over the frame's header, too. `frame` ends with room for the mark.
pub fn mark(node: &PublicKey, frame: &mut [u8]) {
    let mark = mark_of(node, frame);
    if let Some(tag) = frame.last_chunk_mut() {
        *tag = mark;
    }
}

/// Whether a message of a handshake bears the mark of who knows the node's public key.
pub(crate) fn is_marked(node: &PublicKey, frame: &[u8]) -> bool {
    let mark = mark_of(node, frame);
    frame.last_chunk().is_some_and(|tag: &[u8; TAG_LEN]| verify_slices_are_equal(tag, &mark).is_ok())
}

fn mark_of(node: &PublicKey, frame: &[u8]) -> [u8; TAG_LEN] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &derive(&node.0, MARK));
    let mut context = hmac::Context::with_key(&key);
    // A switch changes the route.
    let (before, behind) = frame.split_at_checked(ROUTE).unwrap_or((frame, &[]));
    context.update(before);
    context.update(behind.get(1..behind.len().saturating_sub(TAG_LEN)).unwrap_or_default());
    let mut mark = [0; TAG_LEN];
    mark.copy_from_slice(&context.sign().as_ref()[..TAG_LEN]);
    mark
}

/// What keys of marks are derived by.
const MARK: u64 = u64::from_le_bytes(*b"mark\0\0\0\0");

/// The primitives of Noise, with randomness that the driver has given, so that a simulation can be repeated.
struct Resolver {
    entropy: [u8; 32],
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Stream { entropy: self.entropy, blocks: 0 }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        (*choice == DHChoice::Curve25519).then(x25519)
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

/// A first message that says anything at all, by who knows the key.
#[cfg(test)]
pub(crate) fn say(binding: Binding<'_>, payload: &[u8]) -> Vec<u8> {
    let prologue = binding.prologue();
    let builder = binding.builder(&prologue, [1; 32]).unwrap().remote_public_key(&binding.called.0).unwrap();
    let mut state = builder.build_initiator().unwrap();
    let mut message = vec![0; payload.len() + NOISE_OVERHEAD];
    let len = state.write_message(payload, &mut message).unwrap();
    message.truncate(len);
    message
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::messages::tests::{answer, proposal};
    use super::*;

    static IDENTITIES: LazyLock<[NodeKey; 2]> = LazyLock::new(|| [1, 2].map(NodeKey::numbered));

    /// Of the caller, who knows whom it calls.
    fn binding() -> Binding<'static> {
        let [caller, called] = &*IDENTITIES;
        Binding {
            identity: caller,
            called: called.public(),
            fabric: 0,
            group: Group::DEFAULT,
            source: DomainId(1),
            destination: DomainId(2),
        }
    }

    fn called() -> Binding<'static> {
        Binding { identity: &IDENTITIES[1], ..binding() }
    }

    #[test]
    fn both_sides_agree_on_both_keys() {
        let mut message = Vec::new();
        let mut initiator = Initiator::begin(binding(), [1; 32], &proposal(), &mut message).unwrap();
        let first = message.len();
        let (responder, read) = Responder::read(called(), [2; 32], &message).unwrap();
        // No message says who speaks: its key does.
        let ids = IDENTITIES.each_ref().map(NodeKey::id);
        let speaker = |speaker: Speaker, node| Speaker { node, ..speaker };
        assert_eq!(read, Proposal { speaker: speaker(proposal().speaker, ids[0]), ..proposal() });
        let ours = responder.answer(&answer(), &mut message).unwrap();
        assert!(message.len() <= first, "{} {first}", message.len());
        let (read, theirs) = initiator.finish(&message).unwrap();
        assert_eq!(ours, Secrets { send: theirs.receive, receive: theirs.send, hash: theirs.hash });
        assert_eq!(read, Answer { speaker: speaker(answer().speaker, ids[1]), ..answer() });
        assert_ne!(ours.send, ours.receive);
    }

    #[test]
    fn a_first_message_is_bound_to_the_loan_and_the_domains_in_its_header() {
        let mut message = Vec::new();
        Initiator::begin(binding(), [1; 32], &proposal(), &mut message).unwrap();
        let others = [
            Binding { identity: &IDENTITIES[0], ..called() },
            Binding { fabric: 1, ..called() },
            Binding { group: Group(2), ..called() },
            Binding { source: DomainId(2), ..called() },
            Binding { destination: DomainId(1), ..called() },
        ];
        for other in others {
            assert_eq!(Responder::read(other, [2; 32], &message).err(), Some(Unread::Auth));
        }
        assert!(Responder::read(called(), [2; 32], &message).is_ok());
    }

    /// One byte more each time, up to more than is read.
    #[test]
    fn a_longer_message_of_a_later_version_is_read_up_to_a_limit() {
        for (len, is_read) in [(PROPOSAL_LEN, true), (1024, true), (1025, false)] {
            let mut payload = proposal().encode();
            while payload.len() + 2 < len {
                let more = (len - payload.len() - 2).min(200);
                payload.extend([100, more as u8]);
                payload.resize(payload.len() + more, 7);
            }
            payload.resize(len, 0);
            let read = Responder::read(called(), [2; 32], &say(binding(), &payload));
            let attempt = read.ok().map(|(_, read)| read.attempt);
            assert_eq!(attempt, is_read.then_some(proposal().attempt), "{len}");
        }
    }

    /// A number that stands for no cipher is never taken for another one, nor for none at all.
    #[test]
    fn a_key_set_with_a_cipher_that_there_is_not_is_corrupt() {
        let cipher_of = |number: u32, valid: u32| {
            let mut bytes = KeySet { valid, ..KeySet::new_zeroed() }.as_bytes().to_vec();
            bytes[core::mem::offset_of!(KeySet, suite)..][..4].copy_from_slice(&number.to_le_bytes());
            let keys = KeySet::read_from_bytes(&bytes).unwrap();
            std::panic::catch_unwind(|| keys.cipher()).ok()
        };
        for cipher in cipher::Cipher::ALL {
            assert_eq!(cipher_of(cipher as u32, 1), Some(Some(cipher)));
        }
        assert_eq!(cipher_of(9, 1), None, "the card that finds it ends");
        assert_eq!(cipher_of(9, 0), Some(None), "what is not valid is not looked at");
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Responder::read(called(), [2; 32], &bytes).err(), Some(Unread::Auth));
            let mut message = Vec::new();
            let mut initiator = Initiator::begin(binding(), [1; 32], &proposal(), &mut message).unwrap();
            prop_assert_eq!(initiator.finish(&bytes).err(), Some(Unread::Auth));
        }
    }
}
