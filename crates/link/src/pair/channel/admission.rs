//! Which life of the other node a channel is with.
//!
//! Another life of the node that is met is most likely that node, started again. It may be a copy of it as well. So it
//! is let in when the life before has left a probe under its own keys unanswered, on all paths; else it is a twin. Who
//! was a twin once is a copy, and not the node started again: as long as what the other life has here is kept for that,
//! the copy is not let in, whoever is silent.

use base::ids::{Incarnation, LifeId};
use base::times::{HANDSHAKE_RETRY, HOLD, PENDING_KEYS, SILENCE};
use base::{Instant, Rule};
use core::time::Duration;

use super::incoming::Which;
use super::{CalledWords, Channel, Event, Heard, Side, Streams};
use crate::answered::{Attempt, CallName};
use crate::frame::Kind;
use crate::handshake::{Destination, KeySet, Speaker};
use crate::name::Name;
use crate::pair::calls::{Call, NO_CHANNEL, Why};
use crate::pair::lobby::LIFE_BEFORE;
use crate::path::{AckRanges, LATE, READ_FIRST};
use crate::paths::{MAX_PATHS, PathId, PathSet};

/// Attempts without an answer after which even the end with the smaller id answers the other one's: ours may get lost.
const GIVES_WAY: usize = 3;

/// A probe of the present life of the peer, because another one wants its place.
pub(super) struct LifeProbe {
    /// Who wants it.
    life: LifeId,
    /// What the present one has not answered by then it does not answer.
    until: Instant,
    /// That was found too late, and put off.
    was_late: bool,
    /// By path: it answers by acknowledging this packet or a later one.
    first: [u64; MAX_PATHS],
    outcome: Outcome,
    /// The newest attempt of who wants it.
    waiting: Option<Box<Call>>,
    /// It has answered a call of ours.
    has_answered: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Open,
    Lives,
    Gone,
}

impl LifeProbe {
    /// What was found out is true for so long.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until + SILENCE
    }

    /// When it is decided in favour of who waits.
    fn timeout(&self) -> Option<Instant> {
        let is_wanted = self.waiting.is_some() || self.has_answered;
        (self.outcome == Outcome::Open && is_wanted).then_some(self.until)
    }
}

/// What a channel does with a call.
enum Verdict {
    Accept,
    /// Not now; it will come again.
    Defer,
    /// When it is clear that the life before is gone.
    Probe,
    Twin,
}

impl<'m> Channel<'m> {
    /// The peer calls, as the lobby has found. From here on it may be that the two have met, or will have; or the call
    /// comes back, with the reason why the lobby shall refuse it.
    ///
    /// # Errors
    /// The call and why it is refused.
    pub fn take_call(
        &mut self,
        now: Instant,
        call: Box<Call>,
        streams: &mut dyn Streams<'m>,
    ) -> Result<Heard, (Box<Call>, Why)> {
        let name = CallName::of(&call.attempt());
        match self.judge(now, &call, streams) {
            Verdict::Defer => {
                self.cells.stats.deferred_handshakes.add(1);
                Ok(Heard::Nothing)
            }
            Verdict::Twin => Err((call, Why::Twin(self.present_name()))),
            Verdict::Probe => {
                self.probe_life(now, call);
                Ok(Heard::Proposal(name))
            }
            Verdict::Accept if self.accept(now, call, streams) => Ok(Heard::Proposal(name)),
            Verdict::Accept => Ok(Heard::Nothing),
        }
    }

    /// A call that was answered has come once more, on `path`: it gets the same answer, there once. So does one that
    /// waits.
    pub fn hear_again(&mut self, path: PathId, call: CallName) -> Heard {
        let handshake = &mut self.handshake;
        let waiting = handshake.probe.as_mut().and_then(|probe| probe.waiting.as_mut());
        if let Some(waiting) = waiting.filter(|waiting| CallName::of(&waiting.attempt()) == call) {
            waiting.paths.insert(path);
            return Heard::Proposal(call);
        }
        let is_it = handshake.answers.is_some_and(|attempt| CallName::of(&attempt) == call);
        if !is_it || handshake.kind != Kind::Response {
            return Heard::Nothing;
        }
        if handshake.answered_paths.contains(path) {
            return Heard::Again(call);
        }
        self.answer_on(PathSet::of(path));
        Heard::Proposal(call)
    }

    /// The answer to the call of this name is to be sent on `path` once more, since that has come from somewhere else
    /// as well.
    pub fn answer_again(&mut self, path: PathId, call: CallName) {
        let handshake = &mut self.handshake;
        let is_it = handshake.answers.is_some_and(|attempt| CallName::of(&attempt) == call);
        if is_it && handshake.kind == Kind::Response {
            handshake.due.insert(path);
        }
    }

    fn judge(&self, now: Instant, call: &Call, streams: &mut dyn Streams<'m>) -> Verdict {
        let attempt = call.attempt();
        if self.is_copy(now, attempt.life, streams) {
            return Verdict::Twin;
        }
        // Both call at once: that of the smaller id wins, unless it gets lost again and again.
        let attempts = self.handshake.attempted.len();
        if self.side == Side::First && (1..GIVES_WAY).contains(&attempts) {
            return Verdict::Defer;
        }
        if let Some(verdict) = self.judge_life(now, attempt.life) {
            return verdict;
        }
        // An old message of another life can take this place, but not for long.
        let pending = self.keys_of(Which::Pending);
        let is_young = self.pending_age(now) < PENDING_KEYS;
        let is_other = pending.peer_life != attempt.life;
        let once = self.journal.rule(Rule::AnswerOnce);
        if pending.is_valid() && is_other && is_young && once { Verdict::Defer } else { Verdict::Accept }
    }

    /// A life of the peer, which is not known as a copy, has answered our call. It is followed, unless another one has
    /// something here that may still be there, or lends what flows here and was heard just now: then that one is asked
    /// first, and who has answered is called again.
    pub(super) fn may_follow(
        &mut self,
        now: Instant,
        (incarnation, life): (Incarnation, LifeId),
        streams: &mut dyn Streams<'m>,
    ) -> bool {
        let present = self.agreed();
        // As the lobby has those wait who call.
        let is_other = !self.tenants.is_empty() && !self.tenants.contains(&life);
        let may_call = now.since(self.handshake.listens_since) < LIFE_BEFORE;
        if !present.is_valid() && is_other && may_call && self.journal.rule(Rule::ProbeBeforeTakeOver) {
            self.handshake.next = Some(self.handshake.listens_since + LIFE_BEFORE);
            return false;
        }
        let has_something = self.has_something();
        let is_old = present.is_valid() && present.peer_life != life && incarnation <= present.incarnation();
        if has_something && is_old && self.journal.rule(Rule::RefuseOutdated) {
            // When it calls, it is told.
            return false;
        }
        let is_there = now.since(self.last_heard()) < self.paths.verdict_after();
        let is_asked = has_something || (is_there && has_streams(streams));
        match self.judge_life(now, life).filter(|_| is_asked) {
            None => return true,
            Some(Verdict::Probe) => {
                self.probe_for(now, life).has_answered = true;
            }
            Some(_) => {}
        }
        let until = self.handshake.probe.as_ref().map_or(now, |probe| probe.until);
        self.handshake.next = Some(until.max(now) + HANDSHAKE_RETRY);
        false
    }

    /// What follows from another life being met.
    fn judge_life(&self, now: Instant, life: LifeId) -> Option<Verdict> {
        let present = self.agreed();
        let is_other = present.is_valid() && present.peer_life != life;
        if !is_other || !self.journal.rule(Rule::ProbeBeforeTakeOver) {
            return None;
        }
        let probe = self.handshake.probe.as_ref().filter(|probe| !probe.is_over(now));
        Some(match probe.map(|probe| (probe.outcome, probe.life == life)) {
            Some((Outcome::Lives, true)) => Verdict::Twin,
            Some((Outcome::Gone, true)) => return None,
            // It lived when another one asked: who asks now may be that very node, started again since.
            Some((Outcome::Open, true) | (Outcome::Lives, false)) | None => Verdict::Probe,
            Some(_) => Verdict::Defer,
        })
    }

    /// Whether that life was seen beside the present one, or beside those that have something here, which may still
    /// come back, started again, for what the two ends have with each other.
    pub(super) fn is_copy(&self, now: Instant, life: LifeId, streams: &mut dyn Streams<'m>) -> bool {
        let present = self.agreed();
        let (is_other, known_at) = match present.is_valid() {
            true => (present.peer_life != life, self.last_heard()),
            // It may have come to have something since.
            false => (!self.tenants.contains(&life), Instant::from_nanos(self.cells.copies_since.get())),
        };
        // The time goes on while cards come and go, but a new one listens first.
        let is_kept = now.since(known_at) < HOLD || now.since(self.handshake.listens_since) < SILENCE;
        let is_copy = is_other && is_kept && self.is_known_copy(life);
        if !is_copy || !self.journal.rule(Rule::KeepFromCopies) {
            return false;
        }
        has_streams(streams) || self.has_something()
    }

    /// Whether that life was ever seen beside one that was met.
    pub(super) fn is_known_copy(&self, life: LifeId) -> bool {
        self.cells.copies.iter().any(|copy| copy.get() == life)
    }

    /// That life was seen beside the one that is met: it is the last of whom that is forgotten.
    pub(super) fn note_copy(&mut self, life: LifeId) {
        let copies = &self.cells.copies;
        let known = copies.iter().position(|copy| copy.get() == life);
        for at in (1..=known.unwrap_or(copies.len() - 1)).rev() {
            copies[at].set(self.journal, copies[at - 1].get());
        }
        copies[0].set(self.journal, life);
    }

    /// Whether the peer has something here.
    fn has_something(&self) -> bool {
        self.cells.numbers.has_open() || !self.tenants.is_empty()
    }

    /// How old the pending keys are.
    pub(super) fn pending_age(&self, now: Instant) -> Duration {
        now.since(Instant::from_nanos(self.cells.pending_at.get()))
    }

    fn present_name(&self) -> Name {
        Name::from_bytes(self.agreed().peer_name)
    }

    /// Asks the present life of the peer whether it is there; `call` waits for that.
    fn probe_life(&mut self, now: Instant, call: Box<Call>) {
        let life = call.life();
        self.probe_for(now, life).waiting = Some(call);
    }

    /// The question whether the present life of the peer is there, because this one wants its place: it may be under
    /// way.
    fn probe_for(&mut self, now: Instant, life: LifeId) -> &mut LifeProbe {
        let is_it =
            |probe: &LifeProbe| probe.life == life && probe.outcome == Outcome::Open && !probe.is_over(now);
        let present = self.handshake.probe.take().filter(is_it);
        let probe = present.unwrap_or_else(|| {
            let until = now + self.paths.verdict_after();
            let mut first = [0; MAX_PATHS];
            for path in self.paths.iter_mut() {
                path.ping = true;
                first[path.id.index()] = path.outgoing.next_number();
            }
            let (was_late, outcome, waiting, has_answered) = (false, Outcome::Open, None, false);
            LifeProbe { life, until, was_late, first, outcome, waiting, has_answered }
        });
        self.handshake.probe.insert(probe)
    }

    /// When [`Channel::end_probe`] is to be called.
    pub(super) fn probe_ends(&self) -> Option<Instant> {
        self.handshake.probe.as_ref().and_then(LifeProbe::timeout)
    }

    /// The present life has not answered in time: who waits for its place has it. But a card that stood still finds the
    /// answer in its socket, perhaps behind other frames of the peer: as long as those come, it is read on.
    pub(super) fn end_probe(&mut self, now: Instant, streams: &mut dyn Streams<'m>) {
        let is_reading = now.since(self.handshake.last_heard) < READ_FIRST;
        let Some(probe) = &mut self.handshake.probe else { return };
        let Some(until) = probe.timeout().filter(|until| *until <= now) else { return };
        let is_late = now.since(until) > LATE && !probe.was_late;
        if is_late || is_reading {
            probe.was_late |= is_late;
            probe.until = now + READ_FIRST;
            return;
        }
        probe.outcome = Outcome::Gone;
        if let Some(call) = probe.waiting.take() {
            self.accept(now, call, streams);
        }
    }

    /// The peer has acknowledged `ranges` of what was sent on `path`: if a probe is among them, it is there.
    pub(super) fn answer_probe(&mut self, path: PathId, ranges: &AckRanges) {
        let by = self.present_name();
        let Some(probe) = &mut self.handshake.probe else { return };
        let answers = ranges.largest().is_some_and(|largest| largest >= probe.first[path.index()]);
        if !answers || probe.outcome == Outcome::Lives {
            return;
        }
        probe.outcome = Outcome::Lives;
        let (life, waiting) = (probe.life, probe.waiting.take());
        self.note_copy(life);
        // What waits to be sent is better than a refusal.
        if let Some(call) = waiting.filter(|_| self.handshake.due.is_empty()) {
            self.refuse_twin(call, by);
        }
    }

    fn refuse_twin(&mut self, call: Box<Call>, by: Name) {
        let (attempt, paths) = (call.attempt(), call.paths);
        let (to, key) = (Destination::of(&call.proposal.speaker), call.key());
        let speaker = Speaker { channel: NO_CHANNEL, ..self.speaker() };
        let mut message = Vec::new();
        if key == self.config.peer && call.refuse(speaker, Why::Twin(by), &mut message).is_some() {
            let handshake = &mut self.handshake;
            (handshake.message, handshake.kind, handshake.to) = (message, Kind::Response, to);
            (handshake.answers, handshake.answered_paths) = (Some(attempt), PathSet::default());
            self.answer_on(paths);
            self.events.push_back(Event::TwinRefused(CallName::of(&attempt)));
        }
    }

    /// The life that is met is there: another one that was let in because it seemed to be gone, by this card or one
    /// before it, and has not come yet, is not let in any more.
    pub(super) fn withdraw_offer(&mut self) {
        let [current, _, pending] = self.keys.each_ref();
        if !pending.is_valid() || !current.is_valid() || pending.peer_life == current.peer_life {
            return;
        }
        let pending = *pending;
        // What this card has sent was answered after a card before it had let the other one in. An answer to this
        // card's own probe is noted where that ends, and one to what was sent before may have taken its time.
        if self.cells.pending_at.get() <= self.handshake.listens_since.as_nanos() {
            self.note_copy(pending.peer_life);
        }
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..pending });
        self.load_keys();
        if let Some(probe) = &mut self.handshake.probe {
            probe.outcome = Outcome::Lives;
        }
    }

    /// This attempt of the peer's is being answered.
    pub(super) fn record_call(&mut self, attempt: &Attempt) {
        let &Attempt { node, incarnation, life, number, .. } = attempt;
        let words = CalledWords { node, used: [1; 4], incarnation: incarnation.0, life, number };
        self.cells.called.set(self.journal, words);
    }

    /// Sends the message at hand on `paths`, once: the path that the first message took first may lead in one direction
    /// only.
    pub(super) fn answer_on(&mut self, paths: PathSet) {
        self.handshake.due.add(paths);
        self.handshake.answered_paths.add(paths);
    }
}

/// Whether there is a stream of the present course.
fn has_streams<'m>(streams: &mut dyn Streams<'m>) -> bool {
    let mut is_one = false;
    streams.each(&mut |_, _| is_one = true);
    is_one
}
