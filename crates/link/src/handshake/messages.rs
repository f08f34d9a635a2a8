//! What the two messages of a handshake say: fields, each with a tag and a length.
//!
//! An unknown field is skipped; what a later version has put behind the known part of a field is skipped as well. Who
//! speaks no version of ours, or says something unknown that is critical, can still be told so: who speaks, and what
//! was agreed, is said in each version as here. A first message is filled up, so that no answer is longer.

use base::ids::{ChannelIndex, DomainId, Group, Incarnation, LifeId, NodeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::answered::Attempt;
use crate::certificate::{CERTIFICATE_MAX, Shown};
use crate::frame::{Header, VERSION};

/// Bytes of a first message before it is sealed, at least: the longest answer is no longer.
pub const PROPOSAL_LEN: usize = 512;
/// Bytes of the longest message that is read, before it is sealed: a later version has more to say.
pub(crate) const MAX_MESSAGE: usize = 1024;

/// Where the streams of a pair stand at one of its ends. Nothing here ever falls while the pair lasts, and no end can
/// have accepted what the other one has not numbered: so it shows whether two ends speak of the same streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
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

/// Who speaks, and in which attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speaker {
    /// Which its public key proves: no message says it.
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) life: LifeId,
    pub(crate) domain: DomainId,
    /// How frames to it shall name the channel.
    pub(crate) channel: ChannelIndex,
    /// Filled up with zeroes.
    pub(crate) name: [u8; 32],
}

/// What the caller says in the first message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) speaker: Speaker,
    pub(crate) attempt: u64,
    pub(crate) positions: Positions,
    pub(crate) max_payload: u16,
    pub(crate) max_frame: u32,
    /// [`crate::cipher::Ciphers`] that the caller accepts.
    pub(crate) ciphers: u8,
    /// Streams that the caller takes at once.
    pub(crate) streams: u32,
    /// What the fabric's authority says of the caller, if it belongs to one.
    pub(crate) certificate: Shown,
    /// False: it speaks no version of ours, or says something critical that is unknown here. Only the speaker and the
    /// attempt are of use then.
    pub(crate) is_understood: bool,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Who answers; of a refusal as a twin, with the name of who is met.
    pub(crate) speaker: Speaker,
    /// The caller's.
    pub(crate) attempt: u64,
    /// One of [`verdict`].
    pub(crate) verdict: u8,
    /// How frames shall name the new keys: by a number that who answers does not use for others.
    pub(crate) key_id: u8,
    /// Number of the [`crate::Cipher`]: the best that both accept. Whoever stands in between cannot make it another
    /// one, because both messages are authenticated and the second one is bound to the first.
    pub(crate) cipher: u8,
    pub(crate) max_payload: u16,
    pub(crate) max_frame: u32,
    /// `peer` is zero unless the streams of this very pair go on: both ends go on, or both begin anew.
    pub(crate) positions: Positions,
    /// As in the proposal.
    pub(crate) streams: u32,
    /// Of a refusal: the greatest incarnation of the refused node that the speaker has seen; for a certificate, the
    /// speaker's clock.
    pub(crate) seen: u64,
    /// Of a refusal for a certificate: from when or until when that is good.
    pub(crate) limit: u64,
    /// What the fabric's authority says of the speaker.
    pub(crate) certificate: Shown,
}

pub(crate) mod verdict {
    pub(crate) const ACCEPTED: u8 = 0;
    pub(crate) const SEALING: u8 = 2;
    pub(crate) const OUTDATED: u8 = 3;
    pub(crate) const TWIN: u8 = 4;
    pub(crate) const VERSION: u8 = 5;
    pub(crate) const NOT_ALLOWED: u8 = 6;
    pub(crate) const NO_ROOM: u8 = 7;
}

mod tag {
    /// Who does not know a field with this bit cannot use the message at all.
    pub(super) const CRITICAL: u8 = 0x80;

    pub(super) const PADDING: u8 = 0;
    /// The least and the greatest version that the sender speaks.
    pub(super) const VERSIONS: u8 = CRITICAL | 1;
    pub(super) const WHO: u8 = CRITICAL | 2;
    pub(super) const NAME: u8 = 3;
    pub(super) const POSITIONS: u8 = CRITICAL | 4;
    pub(super) const LIMITS: u8 = 5;
    pub(super) const CIPHERS: u8 = 6;
    pub(super) const AGREED: u8 = CRITICAL | 7;
    /// Of a refusal.
    pub(super) const SEEN: u8 = CRITICAL | 9;
    pub(super) const STREAMS: u8 = 10;
    pub(super) const CERTIFICATE: u8 = 11;
    /// What does not fit into the field before.
    pub(super) const CERTIFICATE_REST: u8 = 12;
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWho {
    incarnation: U64,
    life: LifeId,
    attempt: U64,
    domain: U32,
    channel: U32,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLimits {
    max_payload: U16,
    max_frame: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAgreed {
    verdict: u8,
    key_id: u8,
    cipher: u8,
}

/// The fields of a message; `None` where one is cut off.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&tag, rest) = self.rest.split_first()?;
        let field = rest.split_first().and_then(|(&len, rest)| rest.split_at_checked(len.into()));
        self.rest = field.map_or(&[], |(_, rest)| rest);
        Some(field.map(|(value, _)| (tag, value)))
    }
}

/// What was read so far, by field.
#[derive(Default)]
struct Read<'a> {
    /// Something critical is unknown here.
    has_unknown: bool,
    versions: Option<[u8; 2]>,
    who: Option<RawWho>,
    name: Option<[u8; 32]>,
    positions: Option<Positions>,
    limits: Option<RawLimits>,
    ciphers: Option<u8>,
    agreed: Option<RawAgreed>,
    seen: Option<[U64; 2]>,
    streams: Option<U32>,
    certificate: [Option<&'a [u8]>; 2],
}

impl<'a> Read<'a> {
    /// Reads all fields. `None` if one is malformed, or stands twice.
    fn all(message: &'a [u8]) -> Option<Self> {
        let mut read = Self::default();
        for field in (Fields { rest: message }) {
            let (tag, value) = field?;
            read.field(tag, value)?;
        }
        Some(read)
    }

    fn field(&mut self, tag: u8, value: &'a [u8]) -> Option<()> {
        match tag {
            tag::VERSIONS => once(&mut self.versions, prefix(value)?),
            tag::WHO => once(&mut self.who, prefix(value)?),
            tag::NAME => once(&mut self.name, fitting(value)),
            tag::POSITIONS => once(&mut self.positions, prefix(value)?),
            tag::LIMITS => once(&mut self.limits, prefix(value)?),
            tag::CIPHERS => once(&mut self.ciphers, prefix(value)?),
            tag::AGREED => once(&mut self.agreed, prefix(value)?),
            tag::SEEN => once(&mut self.seen, prefix(value)?),
            tag::STREAMS => once(&mut self.streams, prefix(value)?),
            tag::CERTIFICATE => once(&mut self.certificate[0], value),
            tag::CERTIFICATE_REST => once(&mut self.certificate[1], value),
            other => {
                self.has_unknown |= other & tag::CRITICAL != 0;
                Some(())
            }
        }
    }

    /// Whether the sender speaks our version, and says nothing that must be understood and is not.
    fn is_understood(&self) -> bool {
        let speaks = self.versions.is_some_and(|[least, most]| (least..=most).contains(&VERSION));
        speaks && !self.has_unknown
    }

    /// What is longer than any certificate is cut, and so none that anybody has signed.
    fn certificate(&self) -> Shown {
        let [first, rest] = self.certificate.map(Option::unwrap_or_default);
        let room = CERTIFICATE_MAX.saturating_sub(first.len());
        Shown::new(&[first, &rest[..rest.len().min(room)]]).unwrap_or(Shown::NONE)
    }

    /// Who speaks, in which attempt. Zeroes stand for no channel and no life.
    fn speaker(&self, node: NodeId) -> Option<(Speaker, u64)> {
        let who = self.who.filter(|who| {
            let is_domain = who.domain.get() >> DomainId::BITS == 0;
            is_domain && who.channel.get() != 0 && who.life != LifeId::default()
        })?;
        let speaker = Speaker {
            node,
            incarnation: Incarnation(who.incarnation.get()),
            life: who.life,
            domain: DomainId(who.domain.get()),
            channel: ChannelIndex(who.channel.get()),
            name: self.name.unwrap_or_default(),
        };
        Some((speaker, who.attempt.get()))
    }
}

/// Puts a value where none was. Two fields of one kind could be read in two ways.
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

/// What fits of a name, which a later version may have made longer: cut at a character.
fn fitting(name: &[u8]) -> [u8; 32] {
    let is_boundary = |&end: &usize| name.get(end).is_none_or(|byte| byte & 0xc0 != 0x80);
    let end = (0..=name.len().min(32)).rev().find(is_boundary).unwrap_or(0);
    let mut fitting = [0; 32];
    fitting[..end].copy_from_slice(&name[..end]);
    fitting
}

fn prefix<T: FromBytes>(value: &[u8]) -> Option<T> {
    T::read_from_prefix(value).ok().map(|(value, _)| value)
}

fn put(message: &mut Vec<u8>, tag: u8, value: &[u8]) {
    message.extend([tag, value.len() as u8]);
    message.extend(value);
}

fn put_certificate(message: &mut Vec<u8>, certificate: &Shown) {
    let mut parts = certificate.as_bytes().chunks(u8::MAX.into());
    for tag in [tag::CERTIFICATE, tag::CERTIFICATE_REST] {
        parts.next().into_iter().for_each(|part| put(message, tag, part));
    }
}

fn put_speaker(message: &mut Vec<u8>, speaker: &Speaker, attempt: u64) {
    put(message, tag::VERSIONS, &[VERSION, VERSION]);
    let who = RawWho {
        incarnation: speaker.incarnation.0.into(),
        life: speaker.life,
        attempt: attempt.into(),
        domain: speaker.domain.0.into(),
        channel: speaker.channel.0.into(),
    };
    put(message, tag::WHO, who.as_bytes());
    let len = speaker.name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    put(message, tag::NAME, &speaker.name[..len]);
}

impl Speaker {
    /// Whether a header names the sender as its message does: the message is authentic, and anybody who knows whom it
    /// is for could have changed the header.
    pub(crate) fn is_named_by(&self, header: &Header) -> bool {
        (header.source.domain, header.incarnation) == (self.domain, self.incarnation)
    }
}

impl Proposal {
    /// Its place among all attempts of its node.
    pub(crate) fn attempt_of(&self, group: Group) -> Attempt {
        let Speaker { node, incarnation, life, .. } = self.speaker;
        Attempt { node, group, incarnation, life, number: self.attempt }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(PROPOSAL_LEN);
        put_speaker(&mut message, &self.speaker, self.attempt);
        put(&mut message, tag::POSITIONS, self.positions.as_bytes());
        let limits = RawLimits { max_payload: self.max_payload.into(), max_frame: self.max_frame.into() };
        put(&mut message, tag::LIMITS, limits.as_bytes());
        put(&mut message, tag::CIPHERS, &[self.ciphers]);
        put(&mut message, tag::STREAMS, &self.streams.to_le_bytes());
        put_certificate(&mut message, &self.certificate);
        while let left @ 1.. = PROPOSAL_LEN.saturating_sub(message.len()) {
            // A field has two bytes of its own, so that one byte cannot be left.
            let most = if left == usize::from(u8::MAX) + 3 { u8::MAX - 1 } else { u8::MAX };
            put(&mut message, tag::PADDING, &vec![0; left.saturating_sub(2).min(most.into())]);
        }
        message
    }

    pub(crate) fn decode(message: &[u8], node: NodeId) -> Option<Self> {
        let read = Read::all(message)?;
        let (speaker, attempt) = read.speaker(node)?;
        let is_understood = read.is_understood() && read.limits.is_some() && read.ciphers.is_some();
        let (limits, ciphers) = (read.limits.unwrap_or_default(), read.ciphers.unwrap_or_default());
        let (max_payload, max_frame) = (limits.max_payload.get(), limits.max_frame.get());
        let positions = read.positions.unwrap_or_default();
        let streams = read.streams.unwrap_or_default().get();
        let certificate = read.certificate();
        Some(Self {
            speaker,
            attempt,
            positions,
            max_payload,
            max_frame,
            ciphers,
            streams,
            certificate,
            is_understood,
        })
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(PROPOSAL_LEN);
        put_speaker(&mut message, &self.speaker, self.attempt);
        let agreed = RawAgreed { verdict: self.verdict, key_id: self.key_id, cipher: self.cipher };
        put(&mut message, tag::AGREED, agreed.as_bytes());
        put(&mut message, tag::POSITIONS, self.positions.as_bytes());
        let limits = RawLimits { max_payload: self.max_payload.into(), max_frame: self.max_frame.into() };
        put(&mut message, tag::LIMITS, limits.as_bytes());
        put(&mut message, tag::STREAMS, &self.streams.to_le_bytes());
        if self.verdict != verdict::ACCEPTED {
            put(&mut message, tag::SEEN, [self.seen, self.limit].map(u64::to_le_bytes).as_flattened());
        }
        put_certificate(&mut message, &self.certificate);
        message
    }

    pub(crate) fn decode(message: &[u8], node: NodeId) -> Option<Self> {
        let read = Read::all(message)?;
        let (speaker, attempt) = read.speaker(node)?;
        // Whatever it says, it is of no use.
        let foreign = RawAgreed { verdict: verdict::VERSION, key_id: 0, cipher: 0 };
        let agreed = if read.is_understood() { read.agreed? } else { foreign };
        let (limits, [seen, limit]) = match agreed.verdict {
            verdict::ACCEPTED => (read.limits?, Default::default()),
            verdict::VERSION => Default::default(),
            _ => (read.limits.unwrap_or_default(), read.seen?),
        };
        Some(Self {
            speaker,
            attempt,
            verdict: agreed.verdict,
            key_id: agreed.key_id,
            cipher: agreed.cipher,
            max_payload: limits.max_payload.get(),
            max_frame: limits.max_frame.get(),
            positions: read.positions.unwrap_or_default(),
            streams: read.streams.unwrap_or_default().get(),
            seen: seen.get(),
            limit: limit.get(),
            certificate: read.certificate(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Who speaks.
    pub(crate) const NODE: NodeId = NodeId::numbered(1);

    pub(crate) fn proposal() -> Proposal {
        Proposal {
            speaker: Speaker {
                node: NODE,
                incarnation: Incarnation(2),
                life: LifeId([3; 16]),
                domain: DomainId(4),
                channel: ChannelIndex(5),
                name: [b'x'; 32],
            },
            attempt: 6,
            positions: Positions {
                peer: LifeId([7; 16]),
                begun: 8.into(),
                sent: 9.into(),
                accepted: 10.into(),
            },
            max_payload: 4096,
            max_frame: 9000,
            ciphers: 3,
            streams: 77,
            certificate: Shown::new(&[&[11; CERTIFICATE_MAX]]).unwrap(),
            is_understood: true,
        }
    }

    pub(crate) fn answer() -> Answer {
        let Proposal { speaker, attempt, positions, max_payload, max_frame, streams, certificate, .. } =
            proposal();
        Answer {
            speaker,
            attempt,
            verdict: verdict::TWIN,
            key_id: 1,
            cipher: 2,
            max_payload,
            max_frame,
            positions,
            streams,
            seen: 9,
            limit: 10,
            certificate,
        }
    }

    #[test]
    fn what_is_written_is_read_and_no_answer_is_longer_than_what_it_answers() {
        assert_eq!(Proposal::decode(&proposal().encode(), NODE), Some(proposal()));
        assert_eq!(Answer::decode(&answer().encode(), NODE), Some(answer()));
        let mut nameless = proposal();
        nameless.speaker.name = [0; 32];
        for proposal in [proposal(), nameless] {
            assert_eq!(proposal.encode().len(), PROPOSAL_LEN);
        }
        assert!(answer().encode().len() <= PROPOSAL_LEN, "{}", answer().encode().len());
    }

    /// `message` without its field of this tag, and the field.
    fn split(message: &[u8], tag: u8) -> (Vec<u8>, Vec<u8>) {
        let fields = Fields { rest: message }.map(|field| field.unwrap());
        let (taken, rest): (Vec<_>, Vec<_>) = fields.partition(|(this, _)| *this == tag);
        let join = |fields: Vec<(u8, &[u8])>| {
            let mut message = Vec::new();
            fields.into_iter().for_each(|(tag, value)| put(&mut message, tag, value));
            message
        };
        (join(rest), join(taken))
    }

    #[test]
    fn what_a_later_version_adds_is_skipped_and_who_must_be_understood_and_is_not_is_told() {
        let with = |tag: u8| [&proposal().encode()[..], &[tag, 2, 9, 9]].concat();
        assert_eq!(Proposal::decode(&with(100), NODE), Some(proposal()));
        let foreign = Proposal { is_understood: false, ..proposal() };
        assert_eq!(Proposal::decode(&with(tag::CRITICAL | 100), NODE), Some(foreign));
        // A longer field than we know.
        let mut longer = proposal().encode();
        let at = longer.len() - PROPOSAL_LEN + 2 + 2;
        assert_eq!(longer[at], tag::WHO);
        longer[at + 1] += 1;
        longer.insert(at + 2 + size_of::<RawWho>(), 77);
        assert_eq!(Proposal::decode(&longer, NODE), Some(proposal()));
    }

    #[test]
    fn a_domain_has_eighteen_bits() {
        for (domain, is_understood) in [((1 << 18) - 1, true), (1 << 18, false), (u32::MAX, false)] {
            let mut message = proposal();
            message.speaker.domain = DomainId(domain);
            assert_eq!(Proposal::decode(&message.encode(), NODE).is_some(), is_understood, "{domain}");
        }
    }

    #[test]
    fn nobody_speaks_without_a_channel_or_a_life() {
        let Proposal { speaker, .. } = proposal();
        let without_channel = Speaker { channel: ChannelIndex(0), ..speaker };
        for speaker in [without_channel, Speaker { life: LifeId::default(), ..speaker }] {
            assert_eq!(Proposal::decode(&Proposal { speaker, ..proposal() }.encode(), NODE), None);
            assert_eq!(Answer::decode(&Answer { speaker, ..answer() }.encode(), NODE), None);
        }
    }

    #[test]
    fn who_speaks_no_common_version_is_told_so() {
        for (least, most, is_understood) in [(1, 1, true), (0, 9, true), (2, 9, false), (0, 0, false)] {
            let (mut message, mut said) = (proposal().encode(), answer().encode());
            message[2..4].copy_from_slice(&[least, most]);
            said[2..4].copy_from_slice(&[least, most]);
            let read = Proposal::decode(&message, NODE).unwrap();
            assert_eq!((read.speaker, read.attempt), (proposal().speaker, proposal().attempt));
            assert_eq!(read.is_understood, is_understood);
            let verdict = if is_understood { verdict::TWIN } else { verdict::VERSION };
            assert_eq!(Answer::decode(&said, NODE).unwrap().verdict, verdict);
        }
        assert!(!Proposal::decode(&proposal().encode()[4..], NODE).unwrap().is_understood, "it does not say");
    }

    /// What each message must say.
    #[test]
    fn what_is_missing_is_not_made_up() {
        let accepted = Answer { verdict: verdict::ACCEPTED, ..answer() };
        for (answer, tag) in [
            (accepted, tag::WHO),
            (accepted, tag::AGREED),
            (accepted, tag::LIMITS),
            (answer(), tag::WHO),
            (answer(), tag::AGREED),
            (answer(), tag::SEEN),
        ] {
            assert!(Answer::decode(&answer.encode(), NODE).is_some());
            assert_eq!(Answer::decode(&split(&answer.encode(), tag).0, NODE), None, "{tag:#x}");
        }
        for tag in [tag::VERSIONS, tag::LIMITS, tag::CIPHERS] {
            let read = Proposal::decode(&split(&proposal().encode(), tag).0, NODE).unwrap();
            assert!(!read.is_understood, "{tag:#x}");
        }
        assert_eq!(Proposal::decode(&split(&proposal().encode(), tag::WHO).0, NODE), None);
    }

    #[test]
    fn no_field_stands_twice_but_padding() {
        for field in (Fields { rest: &proposal().encode() }) {
            let (tag, _) = field.unwrap();
            let twice = [proposal().encode(), split(&proposal().encode(), tag).1].concat();
            assert_eq!(Proposal::decode(&twice, NODE).is_some(), tag == tag::PADDING, "{tag:#x}");
        }
        for tag in [tag::AGREED, tag::SEEN] {
            let twice = [answer().encode(), split(&answer().encode(), tag).1].concat();
            assert_eq!(Answer::decode(&twice, NODE), None, "{tag:#x}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_at_a_character() {
        for (name, fits) in [
            ("x".repeat(33), "x".repeat(32)),
            ("ä".repeat(17), "ä".repeat(16)),
            ("x".repeat(31) + "ä", "x".repeat(31)),
        ] {
            let mut message = split(&proposal().encode(), tag::NAME).0;
            put(&mut message, tag::NAME, name.as_bytes());
            let read = Proposal::decode(&message, NODE).unwrap().speaker.name;
            assert_eq!(crate::name::Name::from_bytes(read).to_string(), fits);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0..256_usize,
        ) {
            for bytes in [&bytes[..], &[&proposal().encode()[..cut], &bytes].concat()] {
                if let Some(read) = Proposal::decode(bytes, NODE).filter(|read| read.is_understood) {
                    prop_assert_eq!(Proposal::decode(&read.encode(), NODE), Some(read));
                }
                if let Some(read) = Answer::decode(bytes, NODE) {
                    prop_assert!(Answer::decode(&read.encode(), NODE).is_some());
                }
            }
        }
    }
}
