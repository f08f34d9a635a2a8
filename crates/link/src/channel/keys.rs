//! The handshake of a channel, and which keys are in use.

use base::Instant;
use base::Rule;
use base::ids::{CardGeneration, Incarnation, NodeId};
use base::times::{HANDSHAKE_RETRY, HANDSHAKE_RETRY_MAX, HOLD, PENDING_KEYS, SILENCE};

use super::incoming::{Dropped, Heard};
use super::{Attempt, Channel, Event, Role, Sealing, State, Wear};
use crate::cipher::{Cipher, Ciphers};
use crate::frame::Kind;
use crate::handshake::{Answer, Binding, Initiator, KeySet, Proposal, Responder, derive, verdict};
use crate::seal::{Direction, FrameKeys, Opener, Seal};

/// The smallest frame that carries a TLP of the smallest maximum payload, whatever a peer says.
const MIN_FRAME: u32 = 1280;

/// Attempts of which a borrower still understands the answer: enough for a round trip of ten seconds.
const ATTEMPTS: usize = 16;

/// What a lender says to a proposal.
enum Verdict {
    Accept,
    /// An old message.
    Ignore,
    /// It came on another path before, and its answer is at hand.
    Repeat,
    /// Another node is being answered: it has a moment to use its keys.
    Defer,
    Refuse(u8),
}

impl Channel<'_> {
    /// Rebuilds the ciphers from the key sets in the ledger.
    pub(super) fn load_keys(&mut self) {
        let (ours, theirs) = match self.config.role {
            Role::Borrower => (Direction::ToLender, Direction::ToBorrower),
            Role::Lender => (Direction::ToBorrower, Direction::ToLender),
        };
        let each_card = self.journal.rule(Rule::KeyOfEachCard);
        let load = |keys: KeySet| {
            let cipher = keys.cipher()?;
            let send = FrameKeys::new(&keys.send, cipher, ours, each_card);
            Some(Sealing {
                id: keys.id as u8,
                send: send.seal(self.config.generation),
                receive: Opener::new(FrameKeys::new(&keys.receive, cipher, theirs, each_card)),
                send_private: Seal::private(&keys.send),
                receive_private: Seal::private(&keys.receive),
                fingerprint: crate::tlp_digest(&send.key(self.config.generation)),
            })
        };
        self.current = load(self.cells.current.get());
        self.previous = load(self.cells.previous.get());
        self.pending = load(self.cells.pending.get());
    }

    /// The borrower begins an attempt.
    pub(super) fn begin_handshake(&mut self, now: Instant) {
        let attempt = self.cells.attempt.update(self.journal, |attempt| attempt + 1);
        let proposal = Proposal {
            incarnation: self.config.incarnation.0.into(),
            attempt: attempt.into(),
            node: self.config.node.0.into(),
            domain: self.config.domain.0.into(),
            max_payload: (self.config.max_payload as u16).into(),
            max_frame: self.max_frame().into(),
            ciphers: self.config.protection.ciphers().0,
            name: self.config.name.to_bytes(),
        };
        let entropy = self.next_entropy();
        let handshake = &mut self.handshake;
        let binding = Binding { key: &self.config.key, fabric: self.config.fabric, group: self.config.group };
        if handshake.attempted.len() == ATTEMPTS {
            handshake.attempted.pop_front();
        }
        let initiator = Initiator::begin(binding, entropy, &proposal, &mut handshake.message);
        handshake.attempted.extend(initiator.map(|initiator| (initiator, now)));
        handshake.kind = Kind::Initiation;
        handshake.due = all_rails(self.paths.len() - 1);
        handshake.next = Some(now + handshake.wait.max(handshake.patience()));
        handshake.wait = (handshake.wait * 2).min(HANDSHAKE_RETRY_MAX);
    }

    /// A first message has come to the lender.
    pub(super) fn handle_initiation(
        &mut self,
        now: Instant,
        path: u8,
        body: &[u8],
    ) -> Result<Heard, Dropped> {
        let entropy = self.next_entropy();
        let binding = Binding { key: &self.config.key, fabric: self.config.fabric, group: self.config.group };
        let (responder, proposal) = Responder::read(binding, entropy, body).ok_or(Dropped::Auth)?;
        let is_answered = match self.judge(now, path, &proposal) {
            Verdict::Ignore => return Err(Dropped::Replay),
            Verdict::Defer => {
                self.cells.stats.deferred_handshakes.add(1);
                false
            }
            Verdict::Repeat => {
                self.answer_on(path);
                true
            }
            Verdict::Refuse(verdict) => self.refuse(now, path, responder, &proposal, verdict),
            Verdict::Accept => self.accept_proposal(now, path, responder, &proposal),
        };
        Ok(if is_answered { Heard::Proposal } else { Heard::Nothing })
    }

    fn judge(&self, now: Instant, path: u8, proposal: &Proposal) -> Verdict {
        let (node, attempt) = attempt_of(proposal);
        let once = self.journal.rule(Rule::AnswerOnce);
        if !self.cells.answered.is_new(node, attempt) && once {
            let at_hand = self.handshake.answers == Some((node, attempt));
            let repeats = at_hand && self.handshake.answered_paths & 1 << path == 0;
            return if repeats { Verdict::Repeat } else { Verdict::Ignore };
        }
        if self.agreed_cipher(proposal).is_none() {
            return Verdict::Refuse(verdict::SEALING);
        }
        let current = self.cells.current.get();
        let bound = current.is_valid() && matches!(self.state(), State::Open | State::Resetting);
        if bound && current.node() != node && !self.is_hold_over(now) {
            return Verdict::Refuse(verdict::IN_USE);
        }
        // An old message of a node that is not remembered any more can take this place, but not for long.
        let pending = self.cells.pending.get();
        let is_young = now.since(Instant::from_nanos(self.cells.pending_at.get())) < PENDING_KEYS;
        if pending.is_valid() && pending.node() != node && is_young && once {
            return Verdict::Defer;
        }
        Verdict::Accept
    }

    /// Whether the borrower was silent for so long that it loses the function. A card that is new, because the lender itself was
    /// away, listens first.
    fn is_hold_over(&self, now: Instant) -> bool {
        let handshake = &self.handshake;
        now.since(handshake.last_heard) >= HOLD && now.since(handshake.listens_since) >= SILENCE
    }

    /// True unless something better is waiting to be sent.
    fn refuse(
        &mut self,
        now: Instant,
        path: u8,
        responder: Responder,
        proposal: &Proposal,
        verdict: u8,
    ) -> bool {
        let bound_at = Instant::from_nanos(self.cells.bound_at.get());
        let answer = Answer {
            verdict,
            since_seconds: now.since(bound_at).as_secs().into(),
            name: self.cells.current.get().peer_name,
            ..self.answer_to(proposal)
        };
        let handshake = &mut self.handshake;
        if handshake.accepts && handshake.due != 0 {
            return false;
        }
        if responder.answer(&answer, &mut handshake.message).is_none() {
            return false;
        }
        self.has_answer(path, proposal, false);
        true
    }

    /// Prepares keys and answers. They are used only when a frame under them comes, so a repeated message changes nothing.
    fn accept_proposal(&mut self, now: Instant, path: u8, responder: Responder, proposal: &Proposal) -> bool {
        let answer = self.answer_to(proposal);
        let Some((send, receive)) = responder.answer(&answer, &mut self.handshake.message) else {
            return false;
        };
        let keys = KeySet {
            valid: 1,
            id: answer.key_id.into(),
            send,
            receive,
            peer_incarnation: proposal.incarnation.get(),
            peer_node: proposal.node.get(),
            peer_domain: proposal.domain.get(),
            max_payload: u32::from(answer.max_payload.get()),
            max_frame: answer.max_frame.get(),
            cipher: answer.cipher.into(),
            tenancy: answer.tenancy.get(),
            peer_name: proposal.name,
        };
        self.cells.pending.set(self.journal, keys);
        self.cells.pending_at.set(self.journal, now.as_nanos());
        self.load_keys();
        self.has_answer(path, proposal, true);
        true
    }

    /// The message at hand answers `proposal`, which came on `path`.
    fn has_answer(&mut self, path: u8, proposal: &Proposal, accepts: bool) {
        let (node, attempt) = attempt_of(proposal);
        self.cells.answered.record(self.journal, node, attempt);
        let handshake = &mut self.handshake;
        handshake.kind = Kind::Response;
        (handshake.answers, handshake.accepts) = (Some((node, attempt)), accepts);
        (handshake.due, handshake.answered_paths) = (0, 0);
        self.answer_on(path);
    }

    /// Sends the message at hand on `path`, once: the path that the first message took first may lead in one direction only.
    fn answer_on(&mut self, path: u8) {
        self.handshake.due |= 1 << path;
        self.handshake.answered_paths |= 1 << path;
    }

    pub(super) fn answer_to(&self, proposal: &Proposal) -> Answer {
        Answer {
            verdict: verdict::ACCEPTED,
            key_id: self.unused_key_id(),
            cipher: self.agreed_cipher(proposal).map_or(0, |cipher| cipher as u8),
            max_payload: agreed_payload(self.config.max_payload, proposal.max_payload.get()).into(),
            max_frame: agreed_frame(self.max_frame(), proposal.max_frame.get()).into(),
            domain: self.config.domain.0.into(),
            incarnation: self.config.incarnation.0.into(),
            attempt: proposal.attempt,
            node: self.config.node.0.into(),
            name: self.config.name.to_bytes(),
            since_seconds: 0.into(),
            tenancy: self.config.tenancy.taken_by(NodeId(proposal.node.get())).number.into(),
            continues: self
                .is_pair(NodeId(proposal.node.get()), Incarnation(proposal.incarnation.get()))
                .into(),
        }
    }

    /// The answer has come to the borrower: it proves that the lender knows the key and is there now.
    pub(super) fn handle_response(
        &mut self,
        now: Instant,
        attempt: u64,
        body: &[u8],
    ) -> Result<Heard, Dropped> {
        let handshake = &mut self.handshake;
        let place = handshake.attempted.iter().position(|(initiator, _)| initiator.attempt == attempt);
        let place = place.ok_or(Dropped::Replay)?;
        let (initiator, begun) = &mut handshake.attempted[place];
        let (answer, send, receive) = initiator.finish(body).ok_or(Dropped::Auth)?;
        handshake.round_trip = now.since(*begun);
        handshake.attempted.drain(..=place);
        if let Some(refusal) = answer.refusal() {
            handshake.attempted.clear();
            self.events.push_back(Event::Refused(refusal));
            return Ok(Heard::Nothing);
        }
        if !handshake.attempted.is_empty() {
            // The lender keeps the keys of the greatest attempt that it has heard. Nothing was lost, it only takes so long.
            handshake.next = Some(now + handshake.patience());
            return Ok(Heard::Nothing);
        }
        let accepted = self.config.protection.ciphers();
        if !Cipher::from_number(answer.cipher).is_some_and(|cipher| accepted.has(cipher)) {
            return Err(Dropped::Malformed);
        }
        self.handshake.wait = HANDSHAKE_RETRY;
        self.handshake.next = None;
        let keys = KeySet {
            valid: 1,
            id: answer.key_id.into(),
            send,
            receive,
            peer_incarnation: answer.incarnation.get(),
            peer_node: answer.node.get(),
            peer_domain: answer.domain.get(),
            max_payload: u32::from(agreed_payload(self.config.max_payload, answer.max_payload.get())),
            max_frame: agreed_frame(self.max_frame(), answer.max_frame.get()),
            cipher: answer.cipher.into(),
            tenancy: answer.tenancy.get(),
            peer_name: answer.name,
        };
        // A lender that has had another borrower meanwhile, or none for too long, has ended what this one still believes in.
        let same_pair = answer.continues != 0 && self.is_same_pair(&keys);
        self.adopt(now, keys, same_pair);
        self.greet(now);
        Ok(Heard::Nothing)
    }

    /// A frame under the pending keys has come: they are the keys now.
    pub(super) fn promote_pending(&mut self, now: Instant) {
        let keys = self.cells.pending.get();
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..keys });
        self.cells.answered.complete(self.journal, keys.node());
        let same_pair = self.is_same_pair(&keys);
        self.adopt(now, keys, same_pair);
    }

    fn adopt(&mut self, now: Instant, keys: KeySet, same_pair: bool) {
        let old = self.cells.current.get();
        self.cells.previous.set(self.journal, if same_pair { old } else { KeySet { valid: 0, ..old } });
        self.cells.current.set(self.journal, keys);
        self.cells.renewing.set(self.journal, 0);
        self.wear = Wear::default();
        self.hear_peer(now);
        self.cells.stats.handshakes.add(1);
        if !same_pair {
            self.cells.peer_generation.set(self.journal, 0);
            self.cells.bound_at.set(self.journal, now.as_nanos());
            self.forget_received(now);
            self.reset_streams(keys.max_payload as usize);
        }
        self.load_keys();
    }

    /// Whether `keys` were agreed with the peer whose streams flow.
    pub(super) fn is_same_pair(&self, keys: &KeySet) -> bool {
        self.is_pair(keys.node(), keys.incarnation())
    }

    fn is_pair(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let current = self.cells.current.get();
        let ended = matches!(self.state(), State::Idle | State::Closed);
        current.is_valid() && !ended && current.incarnation() == incarnation && current.node() == node
    }

    /// The peer's newest card, as far as known under the keys in use.
    pub(super) fn peer_generation(&self) -> CardGeneration {
        CardGeneration(self.cells.peer_generation.get())
    }

    /// What frames will be protected with, if there is something that both ends accept.
    fn agreed_cipher(&self, proposal: &Proposal) -> Option<Cipher> {
        self.config.protection.ciphers().best_of_both(Ciphers(proposal.ciphers))
    }

    /// The largest frame of our smallest rail: any rail can then replay what another has lost.
    fn max_frame(&self) -> u32 {
        self.config.paths.iter().map(|path| path.max_frame as u32).min().unwrap_or(MIN_FRAME)
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

    /// Whether this side may begin a handshake.
    pub(super) fn begins(&self) -> bool {
        self.config.role == Role::Borrower && self.state() != State::Closed
    }
}

fn attempt_of(proposal: &Proposal) -> (NodeId, Attempt) {
    let (incarnation, number) = (proposal.incarnation.get(), proposal.attempt.get());
    (NodeId(proposal.node.get()), Attempt { incarnation, number })
}

fn agreed_payload(ours: usize, theirs: u16) -> u16 {
    if ours >= 4096 && theirs >= 4096 { 4096 } else { 1024 }
}

fn agreed_frame(ours: u32, theirs: u32) -> u32 {
    ours.min(theirs).max(MIN_FRAME)
}

/// Every rail, as bits.
fn all_rails(count: usize) -> u8 {
    (0..count).fold(0, |bits, path| bits | 1 << path)
}
