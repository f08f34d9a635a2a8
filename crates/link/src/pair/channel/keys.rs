//! The handshake of a channel, and which keys are in use.
//!
//! Whoever has called uses new keys as soon as the answer has come; whoever was called keeps them as pending until a
//! frame under them authenticates. So old or forged first messages change nothing. Key sets are committed before the
//! message that lets the peer use them.

use base::Instant;
use base::ids::{CardGeneration, DomainId, Incarnation, LifeId, NodeId};
use base::times::{HANDSHAKE_RETRY, HANDSHAKE_RETRY_MAX, PENDING_KEYS};

use super::incoming::{Dropped, Which};
use super::{Channel, ChannelConfig, Event, Heard, Side, Streams};
use crate::answered::CallName;
use crate::certificate::Bearer;
use crate::cipher::{Cipher, Suite};
use crate::frame::{HEADER_LEN, Header, Kind, TAG_LEN};
use crate::handshake::{
    Answer, Destination, Initiator, KeySet, Positions, Proposal, Secrets, Speaker, agreed_frame,
    agreed_payload, derive, verdict,
};
use crate::pair::calls::{Call, Line, Refusal, agreed_cipher, shown};
use crate::pair::cookies::{self, Cookie};
use crate::paths::{PathSet, RAIL_PATHS};
use crate::seal::Direction;
use crate::sealing::{Sealing, Wear};

/// Attempts of which a caller still understands the answer: enough for a round trip of ten seconds.
const ATTEMPTS: usize = 16;

/// Key ids that one side gives: it knows which of them are in use.
const IDS: u32 = 4;

/// What an answer is good for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Its keys are those of the channel.
    Keys,
    /// Something else follows from it.
    Word,
    /// It counts for nothing: whoever else answers the same attempt is heard.
    Nothing,
}

impl<'m> Channel<'m> {
    /// Rebuilds the ciphers from the key sets in the ledger.
    pub(super) fn load_keys(&mut self) {
        let (journal, generation) = (self.journal, self.config.generation);
        let load = |keys: &KeySet| {
            let sends = if keys.called == 0 { Direction::ToCallee } else { Direction::ToCaller };
            Sealing::load(journal, keys, sends, generation)
        };
        let cells = [&self.cells.current, &self.cells.previous, &self.cells.pending];
        self.keys = cells.map(|cell| cell.get());
        [self.current, self.previous, self.pending] = self.keys.each_ref().map(load);
    }

    /// This end calls, now and until it is answered.
    pub(super) fn call(&mut self, now: Instant) {
        (self.handshake.next, self.handshake.wait) = (Some(now), HANDSHAKE_RETRY);
    }

    /// An attempt begins.
    pub(super) fn begin_handshake(&mut self, now: Instant, streams: &mut dyn Streams<'m>) {
        let attempt = self.cells.attempt.update(self.journal, |attempt| attempt + 1);
        let proposal = Proposal {
            speaker: self.speaker(),
            attempt,
            positions: self.positions(streams),
            max_payload: self.config.max_payload as u16,
            max_frame: self.paths.max_frame(),
            ciphers: self.config.protection.ciphers().0,
            streams: self.config.max_streams,
            certificate: shown(self.members.as_deref()),
            is_understood: true,
        };
        let entropy = self.next_entropy();
        // Who was met before can be found by its domain, whatever channel it has for us now. But it may have another
        // domain now: so each second attempt is for whoever hears it.
        let current = self.agreed();
        let known = if current.is_valid() { current.domain() } else { self.config.peer_domain };
        let peer = if attempt.is_multiple_of(2) { DomainId::default() } else { known };
        let mut message = Vec::new();
        let binding = self.line().binding(self.config.peer, self.config.domain, peer);
        let initiator = Initiator::begin(binding, entropy, &proposal, &mut message);
        let paths = self.paths_to_call();
        let handshake = &mut self.handshake;
        (handshake.message, handshake.kind) = (message, Kind::Initiation);
        handshake.to = Destination { domain: peer, ..Destination::default() };
        handshake.answers = None;
        if handshake.attempted.is_empty() {
            (handshake.called, handshake.is_told) = (PathSet::default(), false);
        }
        handshake.called.add(paths);
        if handshake.attempted.len() == ATTEMPTS {
            handshake.attempted.pop_front();
        }
        handshake.attempted.extend(initiator.map(|initiator| (initiator, now)));
        handshake.due = paths;
        handshake.next = Some(now + handshake.wait.max(handshake.patience()));
        handshake.wait = (handshake.wait * 2).min(HANDSHAKE_RETRY_MAX);
    }

    /// Prepares keys and answers. They are used only when a frame under them comes, so a repeated message changes
    /// nothing.
    pub(super) fn accept(&mut self, now: Instant, call: Box<Call>, streams: &mut dyn Streams<'m>) -> bool {
        let (attempt, paths) = (call.attempt(), call.paths);
        let Call { responder, proposal, .. } = *call;
        let answer = self.answer_to(&proposal, streams);
        let mut message = Vec::new();
        let Some(secrets) = responder.answer(&answer, &mut message) else { return false };
        let goes_on = answer.positions.peer != LifeId::default();
        let called = KeySet { called: 1, ..self.key_set(&answer, secrets, &proposal.speaker) };
        let keys = KeySet { begun: self.begun(goes_on, proposal.attempt, self.side.other()), ..called };
        self.cells.pending.set(self.journal, keys);
        self.cells.pending_at.set(self.journal, now.as_nanos());
        self.load_keys();
        self.record_call(&attempt);
        // Our own attempt is given up. It is begun again if nobody comes.
        let handshake = &mut self.handshake;
        if handshake.next.is_some() || !handshake.attempted.is_empty() {
            handshake.next = Some(now + PENDING_KEYS);
        }
        handshake.attempted.clear();
        (handshake.message, handshake.kind) = (message, Kind::Response);
        handshake.to = Destination::of(&proposal.speaker);
        handshake.answers = Some(attempt);
        (handshake.due, handshake.answered_paths) = (PathSet::default(), PathSet::default());
        self.answer_on(paths);
        true
    }

    /// The keys that were agreed with `peer`. `begun` and who has called is to be said.
    fn key_set(&self, answer: &Answer, secrets: Secrets, peer: &Speaker) -> KeySet {
        let Secrets { send, receive, hash } = secrets;
        KeySet {
            valid: 1,
            id: answer.key_id.into(),
            send,
            receive,
            hash,
            max_payload: agreed_payload(self.config.max_payload, answer.max_payload).into(),
            max_frame: agreed_frame(self.paths.max_frame(), answer.max_frame),
            suite: Suite::from(Cipher::from_number(answer.cipher)).into(),
            continues: u64::from(answer.positions.peer != LifeId::default()),
            incarnation: self.config.incarnation.0,
            streams: self.config.max_streams.min(answer.streams),
            ..KeySet::with(peer)
        }
    }

    /// The attempt with which the course began, and whose it was.
    fn begun(&self, goes_on: bool, attempt: u64, caller: Side) -> u64 {
        let this = attempt << 1 | u64::from(caller == Side::First);
        if goes_on { self.agreed().begun } else { this }
    }

    pub(super) fn answer_to(&self, proposal: &Proposal, streams: &mut dyn Streams<'m>) -> Answer {
        let Speaker { node, incarnation, life, .. } = proposal.speaker;
        let goes_on = self.goes_on_with((node, incarnation, life), &proposal.positions, streams);
        Answer {
            speaker: self.speaker(),
            attempt: proposal.attempt,
            verdict: verdict::ACCEPTED,
            key_id: self.unused_key_id(),
            cipher: agreed_cipher(self.config.protection, proposal).map_or(0, |cipher| cipher as u8),
            max_payload: agreed_payload(self.config.max_payload, proposal.max_payload),
            max_frame: agreed_frame(self.paths.max_frame(), proposal.max_frame),
            positions: if goes_on { self.positions(streams) } else { Positions::default() },
            streams: self.config.max_streams.min(proposal.streams),
            seen: 0,
            limit: 0,
            certificate: shown(self.members.as_deref()),
        }
    }

    /// What this end says of itself.
    pub(super) fn speaker(&self) -> Speaker {
        let ChannelConfig { ref identity, incarnation, life, domain, index, name, .. } = self.config;
        let (node, name) = (identity.id(), name.to_bytes());
        Speaker { node, incarnation, life, domain, channel: index, name }
    }

    /// What this end knows of what flows.
    fn positions(&self, streams: &mut dyn Streams<'m>) -> Positions {
        let keys = self.agreed();
        if !keys.is_valid() || self.handshake.anew {
            return Positions::default();
        }
        let totals = self.totals(streams);
        Positions {
            peer: keys.peer_life,
            begun: keys.begun.into(),
            sent: totals.committed.into(),
            accepted: totals.accepted.into(),
        }
    }

    /// Whether the peer of these names, which stands at `theirs`, speaks of what flows here.
    fn goes_on_with(
        &self,
        peer: (NodeId, Incarnation, LifeId),
        theirs: &Positions,
        streams: &mut dyn Streams<'m>,
    ) -> bool {
        let totals = self.totals(streams);
        self.is_pair(peer)
            && theirs.peer == self.config.life
            && theirs.begun.get() == self.agreed().begun
            && theirs.sent.get() <= totals.accepted
            && theirs.accepted.get() <= totals.numbered
    }

    /// An answer has come: it proves that the peer has its key and is there now.
    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        header: &Header,
        frame: &[u8],
        streams: &mut dyn Streams<'m>,
    ) -> Result<Heard, Dropped> {
        let (handshake, attempt) = (&mut self.handshake, header.packet_number);
        let place = handshake.attempted.iter().position(|(initiator, _)| initiator.attempt == attempt);
        let place = place.ok_or(Dropped::Replay)?;
        let (initiator, begun) = &mut handshake.attempted[place];
        let (called, begun) = (initiator.destination, *begun);
        // A frame has a header and a tag (`Header::parse`).
        let message = &frame[HEADER_LEN..frame.len() - TAG_LEN];
        if initiator.has_passed_over(message) {
            return Err(Dropped::Replay);
        }
        let (answer, secrets) = initiator.finish(message)?;
        let is_called = [DomainId::default(), answer.speaker.domain].contains(&called);
        if !answer.speaker.is_named_by(header) || !is_called {
            return Err(Dropped::Malformed);
        }
        match self.judge_answer(now, (place, begun), &answer, streams) {
            Use::Keys => {}
            Use::Word => return Ok(Heard::Nothing),
            Use::Nothing => {
                self.pass_over(place);
                return Ok(Heard::Nothing);
            }
        }
        let goes_on = answer.positions.peer != LifeId::default();
        let keys = self.key_set(&answer, secrets, &answer.speaker);
        let begun = self.begun(goes_on, answer.attempt, self.side);
        self.adopt(now, KeySet { begun, ..keys }, streams);
        self.hear_answer(now, header.path());
        self.greeting.begin(now);
        Ok(Heard::Accepted)
    }

    /// What follows from an answer to the attempt in `place`, which was begun then.
    fn judge_answer(
        &mut self,
        now: Instant,
        (place, begun): (usize, Instant),
        answer: &Answer,
        streams: &mut dyn Streams<'m>,
    ) -> Use {
        let Speaker { node, incarnation, life, .. } = answer.speaker;
        if let Some(refusal) = Refusal::of(answer) {
            self.events.push_back(Event::Refused(refusal));
            if self.peer_life().is_some_and(|met| met != life) {
                // That one does not speak for the life that is met.
                return Use::Nothing;
            }
            self.handshake.attempted.clear();
            return Use::Word;
        }
        if self.is_copy(now, life, streams) {
            return Use::Nothing;
        }
        if let Err(untrusted) = self.trust(now, answer) {
            self.events.push_back(Event::Refused(untrusted));
            self.handshake.attempted.clear();
            return Use::Word;
        }
        if place + 1 < self.handshake.attempted.len() {
            // The peer keeps the keys of the greatest attempt that it has heard. Nothing was lost, it only takes so
            // long.
            let handshake = &mut self.handshake;
            handshake.attempted.drain(..=place);
            handshake.round_trip = now.since(begun);
            handshake.next = Some(now + handshake.patience());
            return Use::Word;
        }
        let accepted = self.config.protection.ciphers();
        let is_sealed = Cipher::from_number(answer.cipher).is_some_and(|cipher| accepted.has(cipher));
        if !is_sealed {
            self.cells.stats.dropped_malformed.add(1);
        }
        if !is_sealed || !self.may_follow(now, (incarnation, life), streams) {
            return Use::Nothing;
        }
        let handshake = &mut self.handshake;
        handshake.attempted.clear();
        (handshake.round_trip, handshake.wait) = (now.since(begun), HANDSHAKE_RETRY);
        let goes_on = answer.positions.peer != LifeId::default();
        if goes_on && !self.goes_on_with((node, incarnation, life), &answer.positions, streams) {
            // The peer knows of a later course of this pair, or of another one: neither may go on with what it has.
            self.handshake.anew = true;
            self.handshake.next = Some(now);
            return Use::Word;
        }
        Use::Keys
    }

    /// What is wrong with the certificate of who answers, by what this node knows of its fabric.
    fn trust(&self, now: Instant, answer: &Answer) -> Result<(), Refusal> {
        let Some(members) = &self.members else { return Ok(()) };
        let Speaker { life, domain, .. } = answer.speaker;
        let is_met = self.peer_life() == Some(life);
        let bearer = Bearer { key: self.config.peer, domain, group: self.config.group, is_met };
        let judged = members.judge(now, bearer, answer.certificate.as_bytes());
        judged.map_err(|fault| Refusal::Untrusted { fault, clock: members.wall(now) })
    }

    /// The answer to the attempt in `place` counts for nothing.
    fn pass_over(&mut self, place: usize) {
        let ChannelConfig { ref identity, fabric, group, domain, peer, .. } = self.config;
        let (initiator, _) = &mut self.handshake.attempted[place];
        let binding = Line { identity, fabric, group }.binding(peer, domain, initiator.destination);
        initiator.pass_over(binding);
    }

    /// The node that was called wants to know whether we are where we seem to be.
    pub(super) fn handle_cookie(
        &mut self,
        now: Instant,
        header: &Header,
        frame: &[u8],
    ) -> Result<Heard, Dropped> {
        // A cookie comes over a rail.
        let (path, at) = (header.path(), header.path().index() % RAIL_PATHS);
        let handshake = &mut self.handshake;
        let mark = handshake.marks[at];
        if handshake.attempted.is_empty() || !cookies::answers(header, &mark) {
            return Err(Dropped::Replay);
        }
        let cookie = Cookie::read(&self.config.peer, &mark, frame).ok_or(Dropped::Auth)?;
        // Once: else whoever repeats it had us call again and again.
        if handshake.cookies[at].is_some_and(|(known, _)| known == cookie) {
            return Err(Dropped::Replay);
        }
        handshake.cookies[at] = Some((cookie, now));
        if handshake.kind == Kind::Initiation {
            handshake.due.insert(path);
        }
        Ok(Heard::Nothing)
    }

    /// Whether a cookie's frame answers a call of this channel: its header names nothing else.
    pub fn awaits_cookie(&self, header: &Header) -> bool {
        let mark = self.handshake.marks.get(header.path().index());
        let is_cookie = header.kind == Kind::Cookie && self.has_called_on(header.path());
        is_cookie && mark.is_some_and(|mark| cookies::answers(header, mark))
    }

    /// A frame under the pending keys has come: they are the keys now.
    pub(super) fn promote_pending(
        &mut self,
        now: Instant,
        streams: &mut dyn Streams<'m>,
    ) -> Result<(), Dropped> {
        let keys = *self.keys_of(Which::Pending);
        if keys.continues != 0 && !self.is_same_pair(&keys) {
            // What was to go on has ended since the answer.
            self.cells.pending.set(self.journal, KeySet { valid: 0, ..keys });
            self.load_keys();
            return Err(Dropped::Auth);
        }
        self.adopt(now, keys, streams);
        Ok(())
    }

    fn adopt(&mut self, now: Instant, keys: KeySet, streams: &mut dyn Streams<'m>) {
        let (old, pending) = (*self.agreed(), *self.keys_of(Which::Pending));
        let same_pair = keys.continues != 0;
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..pending });
        self.cells.previous.set(self.journal, if same_pair { old } else { KeySet { valid: 0, ..old } });
        self.cells.current.set(self.journal, keys);
        self.load_keys();
        self.cells.renewing.set(self.journal, 0);
        self.wear = Wear::default();
        let handshake = &mut self.handshake;
        (handshake.probe, handshake.next, handshake.anew) = (None, None, false);
        handshake.attempted.clear();
        if handshake.kind == Kind::Initiation {
            handshake.due = PathSet::default();
        }
        self.hear_peer(now);
        self.cells.stats.handshakes.add(1);
        self.events.push_back(Event::Met);
        if !same_pair {
            // Who was seen beside the life before is a copy of it, whatever incarnation it has now.
            let is_other = old.is_valid() && old.peer_life != keys.peer_life;
            let was_beside = is_other && self.is_known_copy(keys.peer_life);
            if keys.is_fork_of(&old) || was_beside {
                self.cells.fork.set(self.journal, keys.peer_life);
            }
            self.cells.peer_generation.set(self.journal, 0);
            self.cells.course.set(self.journal, crate::tlp_digest(&keys.hash).max(1));
            self.begin_course(now, streams);
        }
    }

    /// Everything begins anew: nothing of the course before is left.
    fn begin_course(&mut self, now: Instant, streams: &mut dyn Streams<'m>) {
        self.forget_received(now, streams);
        self.forget_rails(now);
        self.greeting.begin(now);
        streams.each(&mut |_, stream| stream.clear());
        self.cells.ended.set(self.journal, super::Totals::default());
        self.cells.numbers.clear(self.journal);
        self.schedule.clear();
        self.debts.clear();
        self.pings.clear();
        self.sayings.clear();
        self.touched.clear();
        self.said.clear();
        self.events.push_back(Event::Anew);
    }

    /// Whether `keys` were agreed with the peer of the present course.
    pub(super) fn is_same_pair(&self, keys: &KeySet) -> bool {
        self.is_pair((keys.node(), keys.incarnation(), keys.peer_life)) && keys.begun == self.agreed().begun
    }

    fn is_pair(&self, peer: (NodeId, Incarnation, LifeId)) -> bool {
        let current = self.agreed();
        current.is_valid() && (current.node(), current.incarnation(), current.peer_life) == peer
    }

    /// The peer's newest card, as far as known under the keys in use.
    pub(super) fn peer_generation(&self) -> CardGeneration {
        CardGeneration(self.cells.peer_generation.get())
    }

    /// Each side has ids of its own: what it answers with is never the name of keys that the other one has given.
    fn unused_key_id(&self) -> u8 {
        let known = [Which::Current, Which::Previous, Which::Pending].map(|which| self.keys_of(which).id);
        let first = if self.side == Side::First { 0 } else { IDS };
        let unused = (first..first + IDS).find(|id| !known.contains(id));
        unused.expect("three ids cannot take four places") as u8
    }

    fn next_entropy(&mut self) -> [u8; 32] {
        self.handshake.attempts += 1;
        derive(&self.config.seed, self.handshake.attempts)
    }

    /// Of an answer: the name of the call that it goes to.
    pub(super) fn answered_call(&self) -> Option<CallName> {
        let is_answer = self.handshake.kind == Kind::Response;
        self.handshake.answers.filter(|_| is_answer).map(|attempt| CallName::of(&attempt))
    }
}
