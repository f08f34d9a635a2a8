//! The handshake of a channel, and which keys are in use.

use base::Instant;
use base::ids::{CardGeneration, ChannelIndex, DomainId, Incarnation, LifeId, NodeId};
use base::times::{HANDSHAKE_RETRY, HANDSHAKE_RETRY_MAX};

use super::admission::{Call, Verdict, Why};
use super::incoming::{Dropped, Heard};
use super::{Channel, ChannelConfig, Event, Role, State};
use crate::answered::CallName;
use crate::cipher::{Cipher, Ciphers};
use crate::frame::{Header, Kind};
use crate::handshake::{
    Answer, Binding, Destination, FIRST_LEN, Initiator, KeySet, Positions, Proposal, RefusalDetails,
    Responder, Secrets, Speaker, agreed_frame, agreed_payload, derive, verdict,
};
use crate::name::Name;
use crate::seal::Direction;
use crate::sealing::{Sealing, Wear};
use crate::tenancy::Tenancy;

/// Attempts of which a borrower still understands the answer: enough for a round trip of ten seconds.
const ATTEMPTS: usize = 16;

impl Channel<'_> {
    /// Rebuilds the ciphers from the key sets in the ledger.
    pub(super) fn load_keys(&mut self) {
        let sends = match self.config.role {
            Role::Borrower => Direction::ToCallee,
            Role::Lender => Direction::ToCaller,
        };
        let load = |keys: KeySet| Sealing::load(self.journal, &keys, sends, self.config.generation);
        self.current = load(self.cells.current.get());
        self.previous = load(self.cells.previous.get());
        self.pending = load(self.cells.pending.get());
    }

    /// The borrower begins an attempt.
    pub(super) fn begin_handshake(&mut self, now: Instant) {
        let attempt = self.cells.attempt.update(self.journal, |attempt| attempt + 1);
        let proposal = Proposal {
            speaker: self.speaker(),
            attempt,
            positions: self.positions(),
            max_payload: self.config.max_payload as u16,
            max_frame: self.paths.max_frame(),
            ciphers: self.config.protection.ciphers().0,
            streams: 0,
            is_understood: true,
        };
        let entropy = self.next_entropy();
        // Who was met before can be found by its domain, whatever channel it has for us now. But it may have another
        // domain now: so each second attempt is for whoever hears it.
        let current = self.cells.current.get();
        let known = if current.is_valid() { current.domain() } else { self.config.lender.domain };
        let peer = if attempt.is_multiple_of(2) { DomainId::default() } else { known };
        let handshake = &mut self.handshake;
        let binding = binding(&self.config, self.config.domain, peer);
        handshake.to = Destination { domain: peer, channel: ChannelIndex::default() };
        if handshake.attempted.len() == ATTEMPTS {
            handshake.attempted.pop_front();
        }
        let initiator = Initiator::begin(binding, entropy, &proposal, &mut handshake.message);
        handshake.attempted.extend(initiator.map(|initiator| (initiator, now)));
        handshake.kind = Kind::Initiation;
        handshake.due = self.paths.all_rails();
        handshake.next = Some(now + handshake.wait.max(handshake.patience()));
        handshake.wait = (handshake.wait * 2).min(HANDSHAKE_RETRY_MAX);
    }

    /// A first message has come to the lender.
    pub(super) fn handle_initiation(
        &mut self,
        now: Instant,
        header: &Header,
        body: &[u8],
    ) -> Result<Heard, Dropped> {
        // No answer is longer than what it answers.
        if body.len() < FIRST_LEN {
            return Err(Dropped::Malformed);
        }
        let (entropy, path) = (self.next_entropy(), header.source.rail);
        let binding = binding(&self.config, header.source.domain, header.destination.domain);
        let (responder, proposal) = Responder::read(binding, entropy, body)?;
        if !proposal.speaker.is_named_by(header) {
            return Err(Dropped::Malformed);
        }
        let call = Call { responder, proposal, paths: 1 << path };
        let (attempt, name) = (call.attempt(), CallName::of(&call.attempt()));
        let verdict = self.judge(now, path, &attempt, self.obstacle(&proposal));
        if !proposal.is_understood {
            self.cells.stats.dropped_not_understood.add(1);
        }
        let is_repeated = matches!(verdict, Verdict::Ignore);
        let is_answered = match verdict {
            Verdict::Ignore => false,
            Verdict::Defer => {
                self.cells.stats.deferred_handshakes.add(1);
                false
            }
            Verdict::Repeat => {
                self.answer_on(1 << path);
                true
            }
            Verdict::Probe => {
                self.probe_peer(now, call);
                true
            }
            Verdict::Refuse(why) => self.refuse(now, call, why),
            Verdict::Accept => self.accept(now, call),
        };
        if is_answered {
            return Ok(Heard::Proposal(name));
        }
        if is_repeated {
            self.cells.stats.dropped_replay.add(1);
        }
        Ok(if self.has_answer(path, &attempt) { Heard::Again(name) } else { Heard::Nothing })
    }

    /// Why nothing can be agreed, whoever has the function.
    fn obstacle(&self, proposal: &Proposal) -> Option<Why> {
        if !proposal.is_understood {
            return Some(Why::Version);
        }
        if !self.is_allowed(proposal.speaker.node) {
            return Some(Why::NotAllowed);
        }
        self.agreed_cipher(proposal).is_none().then_some(Why::Sealing)
    }

    /// Whether a node may have the function.
    pub(super) fn is_allowed(&self, node: NodeId) -> bool {
        self.config.allowed.as_deref().is_none_or(|allowed| allowed.contains(&node))
    }

    /// Prepares keys and answers. They are used only when a frame under them comes, so a repeated message changes
    /// nothing.
    pub(super) fn accept(&mut self, now: Instant, call: Call) -> bool {
        let Call { responder, proposal, paths } = call;
        let answer = self.answer_to(&proposal);
        let Some(Secrets { send, receive, hash }) = responder.answer(&answer, &mut self.handshake.message)
        else {
            return false;
        };
        let goes_on = answer.positions.peer != LifeId::default();
        let begun = if goes_on { self.cells.current.get().begun } else { proposal.attempt };
        let keys = KeySet {
            valid: 1,
            id: answer.key_id.into(),
            send,
            receive,
            hash,
            max_payload: answer.max_payload.into(),
            max_frame: answer.max_frame,
            cipher: answer.cipher.into(),
            continues: goes_on.into(),
            tenancy: answer.tenancy,
            incarnation: self.config.incarnation.0,
            begun,
            ..KeySet::with(&proposal.speaker)
        };
        self.cells.pending.set(self.journal, keys);
        self.cells.pending_at.set(self.journal, now.as_nanos());
        self.load_keys();
        let attempt = proposal.attempt_of();
        self.cells.answered.record(self.journal, &attempt);
        let handshake = &mut self.handshake;
        handshake.kind = Kind::Response;
        handshake.to = Destination::of(&proposal.speaker);
        handshake.answers = Some(attempt);
        (handshake.due, handshake.answered_paths) = (0, 0);
        handshake.refusals.iter_mut().for_each(|refused| refused.is_due = false);
        self.answer_on(paths);
        true
    }

    /// Sends the message at hand on `paths`, once: the path that the first message took first may lead in one direction
    /// only.
    fn answer_on(&mut self, paths: u8) {
        self.handshake.due |= paths;
        self.handshake.answered_paths |= paths;
    }

    pub(super) fn answer_to(&self, proposal: &Proposal) -> Answer {
        let Speaker { node, incarnation, life, .. } = proposal.speaker;
        let goes_on = self.goes_on_with((node, incarnation, life), &proposal.positions);
        Answer {
            speaker: self.speaker(),
            attempt: proposal.attempt,
            verdict: verdict::ACCEPTED,
            key_id: self.unused_key_id(),
            cipher: self.agreed_cipher(proposal).map_or(0, |cipher| cipher as u8),
            max_payload: agreed_payload(self.config.max_payload, proposal.max_payload),
            max_frame: agreed_frame(self.paths.max_frame(), proposal.max_frame),
            positions: if goes_on { self.positions() } else { Positions::default() },
            streams: 0,
            tenancy: self.tenant().taken_by(node, life, Name::default(), self.config.life).number,
            refusal: RefusalDetails::default(),
        }
    }

    /// What this end says of itself.
    fn speaker(&self) -> Speaker {
        let ChannelConfig { ref identity, incarnation, life, domain, index, .. } = self.config;
        Speaker {
            node: identity.id(),
            incarnation,
            life,
            domain,
            channel: index,
            name: self.config.name.to_bytes(),
        }
    }

    /// What this end knows of the streams that flow.
    fn positions(&self) -> Positions {
        let keys = self.cells.current.get();
        if !keys.is_valid() || matches!(self.state(), State::Idle | State::Closed) || self.handshake.anew {
            return Positions::default();
        }
        Positions {
            peer: keys.peer_life,
            begun: keys.begun.into(),
            sent: self.stream.port.sender.committed().into(),
            accepted: self.stream.receiver().committed().into(),
        }
    }

    /// Whether the peer of these names, whose streams stand at `theirs`, speaks of the streams that flow here.
    fn goes_on_with(&self, peer: (NodeId, Incarnation, LifeId), theirs: &Positions) -> bool {
        self.is_pair(peer)
            && theirs.peer == self.config.life
            && theirs.begun.get() == self.cells.current.get().begun
            && theirs.sent.get() <= self.stream.receiver().committed()
            && theirs.accepted.get() <= self.stream.port.sender.next()
    }

    /// The answer has come to the borrower: it proves that the lender knows the key and is there now.
    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        header: &Header,
        body: &[u8],
    ) -> Result<Heard, Dropped> {
        if !self.begins() {
            return Err(Dropped::Replay);
        }
        let (handshake, attempt) = (&mut self.handshake, header.packet_number);
        let place = handshake.attempted.iter().position(|(initiator, _)| initiator.attempt == attempt);
        let place = place.ok_or(Dropped::Replay)?;
        let (initiator, begun) = &mut handshake.attempted[place];
        let called = initiator.destination;
        let (answer, Secrets { send, receive, hash }) = initiator.finish(body)?;
        let is_called = [DomainId::default(), answer.speaker.domain].contains(&called);
        if !answer.speaker.is_named_by(header) || !is_called {
            return Err(Dropped::Malformed);
        }
        handshake.round_trip = now.since(*begun);
        handshake.attempted.drain(..=place);
        if let Some(refusal) = answer.refusal() {
            handshake.attempted.clear();
            self.events.push_back(Event::Refused(refusal));
            return Ok(Heard::Nothing);
        }
        if !handshake.attempted.is_empty() {
            // The lender keeps the keys of the greatest attempt that it has heard. Nothing was lost, it only takes so
            // long.
            handshake.next = Some(now + handshake.patience());
            return Ok(Heard::Nothing);
        }
        let accepted = self.config.protection.ciphers();
        if !Cipher::from_number(answer.cipher).is_some_and(|cipher| accepted.has(cipher)) {
            return Err(Dropped::Malformed);
        }
        self.handshake.wait = HANDSHAKE_RETRY;
        let claims_to_go_on = answer.positions.peer != LifeId::default();
        let Speaker { node, incarnation, life, .. } = answer.speaker;
        if claims_to_go_on && !self.goes_on_with((node, incarnation, life), &answer.positions) {
            // The lender knows of a later course of this pair, or of another one: neither may go on with what it has.
            self.handshake.anew = true;
            self.handshake.next = Some(now);
            return Ok(Heard::Nothing);
        }
        self.handshake.next = None;
        let begun = if claims_to_go_on { self.cells.current.get().begun } else { answer.attempt };
        let keys = KeySet {
            valid: 1,
            id: answer.key_id.into(),
            send,
            receive,
            hash,
            max_payload: agreed_payload(self.config.max_payload, answer.max_payload).into(),
            max_frame: agreed_frame(self.paths.max_frame(), answer.max_frame),
            cipher: answer.cipher.into(),
            continues: claims_to_go_on.into(),
            tenancy: answer.tenancy,
            incarnation: self.config.incarnation.0,
            begun,
            ..KeySet::with(&answer.speaker)
        };
        self.handshake.anew = false;
        self.adopt(now, keys);
        self.greet(now);
        Ok(Heard::Nothing)
    }

    /// A frame under the pending keys has come: they are the keys now.
    pub(super) fn promote_pending(&mut self, now: Instant) -> Result<(), Dropped> {
        let keys = self.cells.pending.get();
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..keys });
        if keys.continues != 0 && !self.is_same_pair(&keys) {
            // What was to go on has ended since the answer.
            self.load_keys();
            return Err(Dropped::Auth);
        }
        self.cells.answered.complete(self.journal, keys.node());
        self.adopt(now, keys);
        Ok(())
    }

    fn adopt(&mut self, now: Instant, keys: KeySet) {
        let old = self.cells.current.get();
        let same_pair = keys.continues != 0;
        self.cells.previous.set(self.journal, if same_pair { old } else { KeySet { valid: 0, ..old } });
        self.cells.current.set(self.journal, keys);
        self.cells.renewing.set(self.journal, 0);
        self.wear = Wear::default();
        self.handshake.probe = None;
        self.hear_peer(now);
        self.cells.stats.handshakes.add(1);
        if !same_pair {
            self.cells.peer_generation.set(self.journal, 0);
            self.cells.bound_at.set(self.journal, now.as_nanos());
            self.handshake.is_other_lender = keys.is_fork_of(&old);
            if self.config.role == Role::Lender {
                let tenancy = self.tenant().taken_by(
                    keys.node(),
                    keys.peer_life,
                    Name::from_bytes(keys.peer_name),
                    self.config.life,
                );
                self.set_tenant(Tenancy { number: keys.tenancy, ..tenancy });
            }
            self.forget_received(now);
            self.reset_streams(keys.max_payload as usize);
        }
        self.load_keys();
    }

    /// Whether `keys` were agreed with the peer whose streams flow.
    pub(super) fn is_same_pair(&self, keys: &KeySet) -> bool {
        self.is_pair((keys.node(), keys.incarnation(), keys.peer_life))
            && keys.begun == self.cells.current.get().begun
    }

    fn is_pair(&self, peer: (NodeId, Incarnation, LifeId)) -> bool {
        let current = self.cells.current.get();
        let ended = matches!(self.state(), State::Idle | State::Closed);
        current.is_valid() && !ended && (current.node(), current.incarnation(), current.peer_life) == peer
    }

    /// The peer's newest card, as far as known under the keys in use.
    pub(super) fn peer_generation(&self) -> CardGeneration {
        CardGeneration(self.cells.peer_generation.get())
    }

    /// What frames will be protected with, if there is something that both ends accept.
    fn agreed_cipher(&self, proposal: &Proposal) -> Option<Cipher> {
        self.config.protection.ciphers().best_of_both(Ciphers(proposal.ciphers))
    }

    fn unused_key_id(&self) -> u8 {
        let known =
            [&self.cells.current, &self.cells.previous, &self.cells.pending].map(|keys| keys.get().id);
        (0..=3).find(|&id| !known.contains(&u32::from(id))).expect("three ids cannot take four places")
    }

    fn next_entropy(&mut self) -> [u8; 32] {
        self.handshake.attempts += 1;
        derive(&self.config.seed, self.handshake.attempts)
    }

    /// No answer to an attempt is waited for, and there is no other one.
    pub(super) fn forget_attempts(&mut self) {
        let handshake = &mut self.handshake;
        handshake.attempted.clear();
        (handshake.next, handshake.anew, handshake.due) = (None, false, 0);
    }

    /// Whether this side may begin a handshake.
    pub(super) fn begins(&self) -> bool {
        self.config.role == Role::Borrower && self.state() != State::Closed
    }
}

/// What a handshake is bound to between these two domains.
pub(super) fn binding(config: &ChannelConfig, source: DomainId, destination: DomainId) -> Binding<'_> {
    let ChannelConfig { ref identity, lender, ref secret, fabric, group, stream, loan_generation, .. } =
        *config;
    Binding {
        identity,
        lender: lender.key,
        secret: Some(secret),
        fabric,
        group,
        source,
        destination,
        stream,
        loan_generation,
    }
}
