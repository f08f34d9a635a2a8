//! The lobby: judges the first messages of handshakes for the whole node.
//!
//! In this order, each step dearer than the one before: the mark, that is who knows this node's public key (one MAC);
//! under load the cookie (two more); who it is, by Noise (three key agreements); whether it is a new attempt. Whatever
//! is refused is answered at once, in place of the message itself, and nothing of it is remembered. The rules:
//!
//! 1. A channel that is with this very life of the caller, or is being agreed with it, answers a greater attempt; the
//!    same one once more, on each path once; a lesser one not at all.
//! 2. Else only what is greater than all that was answered of this node. What is not is told so, encrypted, and rarely:
//!    it comes from a state folder that was restored or copied.
//! 3. Right after the node was started it knows which lives its functions belong to, and none of them: another life of
//!    the same node waits until those could have called.

use std::rc::Rc;

use core::time::Duration;

use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LifeId, LoanGeneration, NodeId, StreamId,
};
use base::ledger::{Counter, Journal, Layout};
use base::times::{HANDSHAKE_RETRY_MAX, REFUSAL_PAUSE, SILENCE};
use base::{Instant, Rule};
use zerocopy::FromBytes;

use super::calls::{Call, Line, NO_CHANNEL, Why, agreed_cipher};
use super::cookies::{Cookies, MARKS_LEN};
use crate::answered::{AnsweredCells, Attempt, CallName, Order};
use crate::certificate::{Bearer, Fault, Members};
use crate::cipher::Protection;
use crate::frame::{HEADER_LEN, Header, Kind, MAX_RAILS, Prefix, Route, TAG_LEN};
use crate::handshake::{FIRST_LEN, Responder, Speaker, Unread, derive, is_marked, mark};
use crate::identity::NodeKey;
use crate::name::Name;
use crate::paths::{PathId, PathSet};

/// What entropy of the lobby is derived with.
const ENTROPY: u64 = u64::from_le_bytes(*b"lobby\0\0\0");

/// Addresses at which the same attempt is refused in a row: somebody may repeat it faster than the network, and then
/// who has sent it is not the first one that it comes from.
const ADDRESSES: usize = 8;

/// For how long another life than the one a function belongs to waits after the node was started.
pub(super) const LIFE_BEFORE: Duration = SILENCE.saturating_add(HANDSHAKE_RETRY_MAX);

/// The storage of a [`Lobby`]. All zeroes: nobody has called.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct LobbyCells {
    answered: AnsweredCells,
    stats: LobbyStats,
}

impl LobbyCells {
    /// What was counted: readable by the agent at any time.
    pub fn stats(&self) -> &LobbyStats {
        &self.stats
    }
}

/// What a lobby has counted since its ledger was made.
#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
pub struct LobbyStats {
    /// First messages without the mark of who knows this node, or of no sense.
    pub dropped_auth: Counter,
    /// Attempts that had come before, or are older than others.
    pub dropped_replay: Counter,
    /// Authentic messages that were not understood: perhaps a later version's.
    pub dropped_not_understood: Counter,
    /// Frames for another fabric, group or domain.
    pub dropped_misdirected: Counter,
    /// Callers that were given a cookie instead of an answer.
    pub cookies: Counter,
    /// Calls that were refused.
    pub refused: Counter,
    /// Calls that wait, because the life before may call as well.
    pub deferred: Counter,
}

/// What a lobby is told when it is made.
#[derive(Clone)]
pub struct LobbyConfig {
    /// This node.
    pub identity: NodeKey,
    /// What this node accepts as protection of frames.
    pub protection: Protection,
    /// The fabric.
    pub fabric: u32,
    /// The groups in which this node has something: frames of others are refused.
    pub groups: Vec<Group>,
    /// The node's domain.
    pub domain: DomainId,
    /// Which life of its ledger this is.
    pub incarnation: Incarnation,
    /// The same, as nobody else has it.
    pub life: LifeId,
    /// 32 random bytes, new for each card.
    pub seed: [u8; 32],
    /// The lives that functions of this node belong to, as its agent has kept them from before it was started.
    pub tenants: Vec<(NodeId, LifeId)>,
}

/// What there is of a caller.
#[derive(Clone, Copy, Debug)]
pub enum Presence {
    /// It may not come in.
    NotAllowed,
    /// There is no channel with it, and no room for one.
    NoRoom,
    /// There is a channel, or may be one. With whom it is, or is being agreed.
    Channel(Option<Known>),
}

/// The last call that a channel has answered: see [`Channel::known_call`](super::Channel::known_call).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub(super) attempt: Attempt,
    /// Something that could not be repeated has come of this life: it is met.
    pub(super) is_met: bool,
}

/// What becomes of a first message.
#[derive(Debug)]
pub enum Reception {
    /// It is for the channel with this node: [`Channel::take_call`](super::Channel::take_call).
    Call(Box<Call>),
    /// The channel with this node in this group has had it before:
    /// [`Channel::hear_again`](super::Channel::hear_again).
    Again(NodeId, Group, CallName),
    /// So many bytes of the frame are to be sent back there, on the path that it came on: a refusal, or a cookie.
    Reply(usize),
    /// Nothing: it was dropped and counted.
    Nothing,
}

/// An attempt that was refused.
struct Refused {
    at: Instant,
    call: CallName,
    /// The addresses that the refusal went to.
    to: Vec<Vec<u8>>,
}

/// Judges the first messages of handshakes, for the whole node.
pub struct Lobby<'m> {
    cells: &'m LobbyCells,
    journal: Journal<'m>,
    config: LobbyConfig,
    cookies: Cookies,
    /// What this node knows of its fabric, if it belongs to one.
    members: Option<Rc<Members>>,
    /// Who was not believed last, and why.
    mistrusted: Option<(NodeId, Fault)>,
    /// Refusals that were made, for entropy.
    attempts: u64,
    /// By rail of ours, who was refused last.
    refused: [Option<Refused>; MAX_RAILS],
    listens_since: Instant,
}

impl<'m> Lobby<'m> {
    /// The lobby over `cells`, new or found.
    pub fn new(cells: &'m LobbyCells, journal: Journal<'m>, config: LobbyConfig, now: Instant) -> Self {
        let cookies = Cookies::new(&config.seed);
        Self {
            cells,
            journal,
            config,
            cookies,
            members: None,
            mistrusted: None,
            attempts: 0,
            refused: Default::default(),
            listens_since: now,
        }
    }

    /// Who was refused since the last time for what is wrong with its certificate.
    pub fn take_mistrusted(&mut self) -> Option<(NodeId, Fault)> {
        self.mistrusted.take()
    }

    /// What this node knows of its fabric from now on.
    pub fn set_members(&mut self, members: Option<Rc<Members>>) {
        self.members = members;
    }

    /// Functions have come or gone: these are the lives that they belong to.
    pub fn set_tenants(&mut self, tenants: Vec<(NodeId, LifeId)>) {
        self.config.tenants = tenants;
    }

    /// What was counted.
    pub fn stats(&self) -> &'m LobbyStats {
        &self.cells.stats
    }

    /// Whether a frame is a first message that is worth more than a look: by who knows this node's public key.
    pub fn is_call(&self, header: &Header, frame: &[u8]) -> bool {
        let marked = frame.get(..frame.len().saturating_sub(TAG_LEN)).unwrap_or_default();
        header.kind == Kind::Initiation
            && frame.len() >= HEADER_LEN + FIRST_LEN + MARKS_LEN
            && is_marked(&self.config.identity.public(), marked)
    }

    /// Takes a first message that came over a rail from the address with the bytes `from`. `under_load`: only who has
    /// shown that it is there is heard. `presence` tells what there is of a node in a group.
    pub fn handle_call(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        from: &[u8],
        under_load: bool,
        presence: &dyn Fn(NodeId, Group) -> Presence,
    ) -> Reception {
        let stats = &self.cells.stats;
        let header = Header::parse(frame).ok().filter(|header| self.is_call(header, frame));
        let Some(header) = header else {
            stats.dropped_auth.add(1);
            return Reception::Nothing;
        };
        if !self.is_meant(&header) {
            stats.dropped_misdirected.add(1);
            return Reception::Nothing;
        }
        if under_load && !self.cookies.is_proven(now, frame, from) {
            stats.cookies.add(1);
            let reply = self.header(header.path(), header.source.domain, header.group);
            let called = self.config.identity.public();
            return Reception::Reply(self.cookies.answer(now, &called, reply, frame, from));
        }
        match self.read(&header, frame) {
            Ok(call) => self.judge(now, call, (from, frame), presence),
            Err(Unread::Auth) => {
                stats.dropped_auth.add(1);
                Reception::Nothing
            }
            Err(Unread::Invalid) => {
                stats.dropped_not_understood.add(1);
                Reception::Nothing
            }
        }
    }

    fn is_meant(&self, header: &Header) -> bool {
        let LobbyConfig { fabric, ref groups, domain, .. } = self.config;
        header.fabric == fabric
            && groups.contains(&header.group)
            && (header.channel, header.stream.0) == (ChannelIndex::default(), 0)
            && header.loan_generation == LoanGeneration::default()
            && [domain, DomainId::default()].contains(&header.destination.domain)
    }

    fn read(&mut self, header: &Header, frame: &[u8]) -> Result<Box<Call>, Unread> {
        let entropy = self.next_entropy();
        let LobbyConfig { ref identity, fabric, .. } = self.config;
        let group = header.group;
        let line = Line { identity, fabric, group };
        let binding = line.binding(identity.public(), header.source.domain, header.destination.domain);
        // Longer than that: `is_call` was asked.
        let message = &frame[HEADER_LEN..frame.len() - MARKS_LEN];
        let (responder, proposal) = Responder::read(binding, entropy, message)?;
        if !proposal.speaker.is_named_by(header) {
            return Err(Unread::Invalid);
        }
        Ok(Box::new(Call { responder, proposal, paths: PathSet::of(header.path()), group }))
    }

    fn judge(
        &mut self,
        now: Instant,
        call: Box<Call>,
        (from, frame): (&[u8], &mut [u8]),
        presence: &dyn Fn(NodeId, Group) -> Presence,
    ) -> Reception {
        let (attempt, once) = (call.attempt(), self.journal.rule(Rule::AnswerOnce));
        let presence = presence(attempt.node, attempt.group);
        match self.order(&attempt, &presence) {
            Order::Same if once => {
                self.cells.stats.dropped_replay.add(1);
                return Reception::Again(attempt.node, attempt.group, CallName::of(&attempt));
            }
            Order::Late if once => {
                self.cells.stats.dropped_replay.add(1);
                return Reception::Nothing;
            }
            Order::Old(seen) if self.journal.rule(Rule::RefuseOutdated) => {
                self.cells.stats.dropped_replay.add(1);
                return self.say_no(now, call, Why::Outdated(seen), from, frame);
            }
            _ => {}
        }
        if let Some(why) = self.obstacle(now, &call, &presence) {
            return self.say_no(now, call, why, from, frame);
        }
        if self.may_be_before(now, &attempt, &presence) {
            self.cells.stats.deferred.add(1);
            return Reception::Nothing;
        }
        self.cells.answered.record(self.journal, &attempt);
        Reception::Call(call)
    }

    /// How an attempt compares to what was answered: of a channel with this life the channel knows best.
    fn order(&self, attempt: &Attempt, presence: &Presence) -> Order {
        match presence {
            Presence::Channel(Some(Known { attempt: known, .. })) if known.life == attempt.life => {
                attempt.order_after(known)
            }
            _ => self.cells.answered.order(attempt),
        }
    }

    /// Why nothing can be agreed.
    fn obstacle(&mut self, now: Instant, call: &Call, presence: &Presence) -> Option<Why> {
        if !call.proposal.is_understood {
            self.cells.stats.dropped_not_understood.add(1);
            return Some(Why::Version);
        }
        match presence {
            Presence::NotAllowed => return Some(Why::NotAllowed),
            Presence::NoRoom => return Some(Why::NoRoom),
            Presence::Channel(_) => {}
        }
        if let Some(why) = self.mistrust(now, call, presence) {
            return Some(why);
        }
        agreed_cipher(self.config.protection, &call.proposal).is_none().then_some(Why::Sealing)
    }

    /// What is wrong with the certificate that is shown, by what this node knows of its fabric.
    fn mistrust(&mut self, now: Instant, call: &Call, presence: &Presence) -> Option<Why> {
        let members = self.members.as_ref()?;
        let is_met =
            matches!(presence, Presence::Channel(Some(it)) if it.is_met && it.attempt.life == call.life());
        let bearer = Bearer { key: call.key(), domain: call.domain(), group: call.group, is_met };
        let fault = members.judge(now, bearer, call.proposal.certificate.as_bytes()).err()?;
        let clock = members.wall(now);
        self.mistrusted = Some((call.node(), fault));
        Some(Why::Certificate { fault, clock })
    }

    /// Whether another life of this node than this one has something here, and may still call. Once it is here, its
    /// channel asks it; but anybody can repeat its call.
    fn may_be_before(&self, now: Instant, attempt: &Attempt, presence: &Presence) -> bool {
        let tenants = &self.config.tenants;
        let is_other = tenants.iter().any(|(node, life)| *node == attempt.node && *life != attempt.life);
        let is_one = tenants.contains(&(attempt.node, attempt.life));
        let is_here = |known: &Known| known.is_met && tenants.contains(&(attempt.node, known.attempt.life));
        let is_met = matches!(presence, Presence::Channel(Some(known)) if is_here(known));
        let waits = is_other && !is_one && !is_met && now.since(self.listens_since) < LIFE_BEFORE;
        waits && self.journal.rule(Rule::ProbeBeforeTakeOver)
    }

    /// Answers a `call` that was handed on, and has come from the address with the bytes `from`, with no, in place of
    /// its frame. Nothing, if this rail has had a refusal just now, but of the same attempt from elsewhere. It is not
    /// remembered as answered any more: on another path it is refused once more.
    pub fn refuse(
        &mut self,
        now: Instant,
        call: Box<Call>,
        why: Why,
        from: &[u8],
        frame: &mut [u8],
    ) -> Reception {
        let attempt = call.attempt();
        let number = attempt.number.saturating_sub(1);
        self.cells.answered.record(self.journal, &Attempt { number, ..attempt });
        self.say_no(now, call, why, from, frame)
    }

    fn say_no(
        &mut self,
        now: Instant,
        call: Box<Call>,
        why: Why,
        from: &[u8],
        frame: &mut [u8],
    ) -> Reception {
        let (path, name) = (call.path(), CallName::of(&call.attempt()));
        let pauses = self.journal.rule(Rule::PauseRefusals);
        // A call comes over a rail.
        let own = path.rails().map_or(0, |(own, _)| own.index());
        let last = &mut self.refused[own];
        match last.as_mut().filter(|last| pauses && now.since(last.at) < REFUSAL_PAUSE) {
            None => *last = Some(Refused { at: now, call: name, to: vec![from.to_vec()] }),
            Some(last) => {
                let is_new = last.to.len() < ADDRESSES && last.to.iter().all(|to| to != from);
                if last.call != name || !is_new {
                    return Reception::Nothing;
                }
                last.to.push(from.to_vec());
            }
        }
        self.cells.stats.refused.add(1);
        let (key, group, proposal, mut message) = (call.key(), call.group, call.proposal, Vec::new());
        if call.refuse(self.speaker(), why, &mut message).is_none() {
            return Reception::Nothing;
        }
        let header = Header {
            kind: Kind::Response,
            channel: proposal.speaker.channel,
            packet_number: proposal.attempt,
            ..self.header(path, proposal.speaker.domain, group)
        };
        let len = HEADER_LEN + message.len() + TAG_LEN;
        // A first message is filled up to what the longest answer has.
        header.write(frame);
        frame[HEADER_LEN..len - TAG_LEN].copy_from_slice(&message);
        mark(&key, &mut frame[..len]);
        Reception::Reply(len)
    }

    /// The keys of a handshake with this life of a node are in use: it is there, whoever of the two has called.
    pub fn note_met(&mut self, node: NodeId, group: Group, incarnation: Incarnation, life: LifeId) {
        let answered = &self.cells.answered;
        let met = Attempt { node, group, incarnation, life, number: 0 };
        if answered.order(&met) == Order::New {
            answered.record(self.journal, &met);
        }
        answered.complete(self.journal, node, group);
    }

    /// Loans have come or gone: the groups in which this node has something.
    pub fn set_groups(&mut self, groups: Vec<Group>) {
        self.config.groups = groups;
    }

    /// From now on the node calls itself so, and answers with what follows from this seed: whenever its machine may go
    /// on somewhere else, too, before its channels [renew their keys](super::Channel::renew_keys).
    pub fn renew(&mut self, incarnation: Incarnation, life: LifeId, seed: [u8; 32]) {
        (self.config.incarnation, self.config.life, self.config.seed) = (incarnation, life, seed);
        (self.cookies, self.attempts) = (Cookies::new(&seed), 0);
    }

    fn speaker(&self) -> Speaker {
        let LobbyConfig { ref identity, incarnation, life, domain, .. } = self.config;
        let (node, name) = (identity.id(), Name::default().to_bytes());
        Speaker { node, incarnation, life, domain, channel: NO_CHANNEL, name }
    }

    fn header(&self, path: PathId, to: DomainId, group: Group) -> Header {
        let (own, peer) = path.rails().unwrap_or_default();
        Header {
            kind: Kind::Response,
            key_id: 0,
            route: Route::START,
            fabric: self.config.fabric,
            destination: Prefix { rail: peer, domain: to },
            source: Prefix { rail: own, domain: self.config.domain },
            group,
            channel: ChannelIndex::default(),
            stream: StreamId::default(),
            loan_generation: LoanGeneration::default(),
            incarnation: self.config.incarnation,
            card_generation: CardGeneration::default(),
            packet_number: 0,
        }
    }

    fn next_entropy(&mut self) -> [u8; 32] {
        self.attempts += 1;
        derive(&derive(&self.config.seed, ENTROPY), self.attempts)
    }
}
