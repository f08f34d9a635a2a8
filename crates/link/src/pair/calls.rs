//! Calls: the first message of a handshake between two nodes, and what becomes of it.

use base::ids::{ChannelIndex, DomainId, Group, Incarnation, LifeId, NodeId, RailId};

use crate::answered::Attempt;
use crate::certificate::{Fault, Members, Shown};
use crate::cipher::{Cipher, Ciphers, Protection};
use crate::handshake::{Answer, Binding, Positions, Proposal, Responder, Speaker, verdict};
use crate::identity::{NodeKey, PublicKey};
use crate::name::Name;
use crate::paths::{PathId, PathSet};

/// Why a node does not answer a call with keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// One side insists on sealed frames and the other on unsealed ones.
    Sealing,
    /// It has seen a greater incarnation of this node, or this one in another life: the state folder was restored.
    Outdated {
        /// The greatest that it has seen.
        seen: Incarnation,
    },
    /// Another life of this node is met already, and answers: the state folder was copied.
    Twin {
        /// Its name.
        by: Name,
    },
    /// It lets in other nodes only.
    NotAllowed,
    /// The two nodes speak no common version of the protocol.
    Version,
    /// It has no room for another channel.
    NoRoom,
    /// It does not take the certificate of this node.
    Certificate {
        /// What is wrong with it.
        fault: Fault,
        /// The other one's clock, in milliseconds since 1970.
        clock: u64,
    },
    /// This node does not take the certificate of the other one.
    Untrusted {
        /// What is wrong with it.
        fault: Fault,
        /// This node's clock.
        clock: u64,
    },
    /// For a reason that a later version knows.
    Unknown {
        /// Its number.
        verdict: u8,
    },
}

/// Why a call is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// See [`Refusal::Sealing`].
    Sealing,
    /// See [`Refusal::Version`].
    Version,
    /// See [`Refusal::NotAllowed`].
    NotAllowed,
    /// See [`Refusal::NoRoom`].
    NoRoom,
    /// See [`Refusal::Outdated`].
    Outdated(Incarnation),
    /// See [`Refusal::Twin`].
    Twin(Name),
    /// See [`Refusal::Certificate`].
    Certificate {
        /// What is wrong with it.
        fault: Fault,
        /// This node's clock.
        clock: u64,
    },
}

/// A first message that was read, and whose sender is proven to have the key of its node. It may have come before.
pub struct Call {
    pub(super) responder: Responder,
    pub(super) proposal: Proposal,
    /// The paths on which it came, at least one.
    pub(super) paths: PathSet,
    pub(super) group: Group,
}

impl Call {
    /// Who calls.
    pub fn node(&self) -> NodeId {
        self.proposal.speaker.node
    }

    /// Its public key.
    pub fn key(&self) -> PublicKey {
        self.responder.key
    }

    /// The group of the channel that it is for.
    pub fn group(&self) -> Group {
        self.group
    }

    /// In which life.
    pub fn life(&self) -> LifeId {
        self.proposal.speaker.life
    }

    /// Where it is in the fabric.
    pub fn domain(&self) -> DomainId {
        self.proposal.speaker.domain
    }

    pub(super) fn attempt(&self) -> Attempt {
        self.proposal.attempt_of(self.group)
    }

    /// The path on which it came first.
    pub(super) fn path(&self) -> PathId {
        self.paths.first().unwrap_or(PathId::new(RailId::ALL[0], RailId::ALL[0]))
    }

    /// Answers with no, in the name of a node that has no channel for it. The message goes to `out`; `None` if there is
    /// none, which no key leads to.
    pub(super) fn refuse(self, speaker: Speaker, why: Why, out: &mut Vec<u8>) -> Option<()> {
        let (mut limit, plain) = (0, Name::default());
        let (verdict, name, seen) = match why {
            Why::Sealing => (verdict::SEALING, plain, 0),
            Why::Version => (verdict::VERSION, plain, 0),
            Why::NotAllowed => (verdict::NOT_ALLOWED, plain, 0),
            Why::NoRoom => (verdict::NO_ROOM, plain, 0),
            Why::Outdated(seen) => (verdict::OUTDATED, plain, seen.0),
            Why::Twin(by) => (verdict::TWIN, by, 0),
            Why::Certificate { fault, clock } => {
                let (verdict, time) = fault.code();
                limit = time;
                (verdict, plain, clock)
            }
        };
        let answer = Answer {
            speaker: Speaker { name: name.to_bytes(), ..speaker },
            attempt: self.proposal.attempt,
            verdict,
            key_id: 0,
            cipher: 0,
            max_payload: 0,
            max_frame: 0,
            positions: Positions::default(),
            streams: 0,
            seen,
            limit,
            certificate: Shown::NONE,
        };
        self.responder.answer(&answer, out).map(drop)
    }
}

impl core::fmt::Debug for Call {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Call({:?}, attempt {})", self.node(), self.proposal.attempt)
    }
}

impl Refusal {
    /// The refusal in this answer, if it is one.
    pub(super) fn of(answer: &Answer) -> Option<Self> {
        match answer.verdict {
            verdict::ACCEPTED => None,
            verdict::SEALING => Some(Self::Sealing),
            verdict::OUTDATED => Some(Self::Outdated { seen: Incarnation(answer.seen) }),
            verdict::TWIN => Some(Self::Twin { by: Name::from_bytes(answer.speaker.name) }),
            verdict::VERSION => Some(Self::Version),
            verdict::NOT_ALLOWED => Some(Self::NotAllowed),
            verdict::NO_ROOM => Some(Self::NoRoom),
            verdict => Some(match Fault::from_code(verdict, answer.limit) {
                Some(fault) => Self::Certificate { fault, clock: answer.seen },
                None => Self::Unknown { verdict },
            }),
        }
    }
}

/// What a member of a fabric shows of itself.
pub(super) fn shown(members: Option<&Members>) -> Shown {
    // A longer one is none.
    members.and_then(|members| Shown::new(&[&members.certificate])).unwrap_or(Shown::NONE)
}

/// What the handshake between two nodes is bound to.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) identity: &'a NodeKey,
    pub(super) fabric: u32,
    pub(super) group: Group,
}

impl<'a> Line<'a> {
    /// Between these domains, with `called`.
    pub(super) fn binding(self, called: PublicKey, source: DomainId, destination: DomainId) -> Binding<'a> {
        let Self { identity, fabric, group } = self;
        Binding { identity, called, fabric, group, source, destination }
    }
}

/// What frames will be protected with, if there is something that both ends accept.
pub(super) fn agreed_cipher(ours: Protection, proposal: &Proposal) -> Option<Cipher> {
    ours.ciphers().best_of_both(Ciphers(proposal.ciphers))
}

/// Stands for no channel in a refusal, where a message must name one.
pub(super) const NO_CHANNEL: ChannelIndex = ChannelIndex(u32::MAX);
