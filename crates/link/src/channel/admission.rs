//! Whom a lender lets in: who has the function, who waits or is refused, and whether a peer is still there.
//!
//! The rules:
//!
//! 1. A function belongs to the life that has it until that gives it back, or was silent for the hold time. A lender
//!    that was started anew knows whose it was from its agent, and counts from when it could hear.
//! 2. Of one node only a greater attempt is let in. Whoever comes with an older one learns that, and nothing changes.
//! 3. Another life of the node that has the function is most likely that node, started again. It may be a copy of it as
//!    well. So it is let in when the life before has left a probe under its own keys unanswered.

use base::ids::{Incarnation, LifeId};
use base::times::{HANDSHAKE_RETRY_MAX, HOLD, PENDING_KEYS, REFUSAL_PAUSE, SILENCE};
use base::{Instant, Rule};

use super::{Channel, Role, State};
use crate::answered::{Attempt, CallName, Order};
use crate::handshake::{
    Answer, Destination, KeySet, Proposal, RefusalDetails, Responder, Speaker, UNKNOWN, verdict,
};
use crate::name::Name;
use crate::path::{AckRanges, LATE, READ_FIRST};
use crate::paths::{MAX_PATHS, PathId};
use crate::tenancy::Tenancy;

/// A proposal that is to be answered.
pub(super) struct Call {
    pub(super) responder: Responder,
    pub(super) proposal: Proposal,
    /// The paths on which it came, as bits.
    pub(super) paths: u8,
}

impl Call {
    pub(super) fn attempt(&self) -> Attempt {
        self.proposal.attempt_of()
    }
}

/// An answer that says no, kept so that it can be sent again.
pub(super) struct Refused {
    pub(super) path: PathId,
    pub(super) attempt: Attempt,
    pub(super) to: Destination,
    pub(super) message: Vec<u8>,
    at: Instant,
    pub(super) is_due: bool,
}

/// What a lender says to a proposal.
pub(super) enum Verdict {
    Accept,
    /// The same message has come before, and needs no second answer.
    Ignore,
    /// It came on another path before, and its answer is at hand.
    Repeat,
    /// Not now; it will come again.
    Defer,
    /// When it is clear that the life before is gone.
    Probe,
    Refuse(Why),
}

/// Why a proposal is refused.
#[derive(Clone, Copy)]
pub(super) enum Why {
    InUse(Tenancy),
    Sealing,
    Version,
    NotAllowed,
    Outdated(Incarnation),
    Twin(Tenancy),
}

/// A probe of the present peer, because another life of its node wants its place.
pub(super) struct PeerProbe {
    /// Who wants it.
    life: LifeId,
    /// What the peer has not answered by then it does not answer.
    until: Instant,
    /// That was found too late, and put off.
    was_late: bool,
    /// By path: it answers by acknowledging this packet or a later one.
    first: [u64; MAX_PATHS],
    outcome: Outcome,
    /// The newest attempt of who wants it.
    waiting: Option<Call>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Open,
    Lives,
    Gone,
}

impl PeerProbe {
    /// What was found out is true for so long.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until + SILENCE
    }

    /// When it is decided in favour of who waits.
    fn timeout(&self) -> Option<Instant> {
        (self.outcome == Outcome::Open && self.waiting.is_some()).then_some(self.until)
    }
}

impl Channel<'_> {
    pub(super) fn judge(
        &self,
        now: Instant,
        path: PathId,
        attempt: &Attempt,
        obstacle: Option<Why>,
    ) -> Verdict {
        let once = self.journal.rule(Rule::AnswerOnce);
        match self.cells.answered.order(attempt) {
            Order::Same if once => {
                let at_hand = self.handshake.answers == Some(*attempt);
                let repeats = at_hand && self.handshake.answered_paths & 1 << path == 0;
                return if repeats { Verdict::Repeat } else { Verdict::Ignore };
            }
            Order::Late if once => return Verdict::Ignore,
            Order::Old(seen) if self.journal.rule(Rule::RefuseOutdated) => {
                return Verdict::Refuse(Why::Outdated(seen));
            }
            _ => {}
        }
        if let Some(why) = obstacle {
            return Verdict::Refuse(why);
        }
        if let Some(verdict) = self.judge_against_holder(now, attempt) {
            return verdict;
        }
        // An old message of a node that is not remembered any more can take this place, but not for long.
        let pending = self.cells.pending.get();
        let is_young = now.since(Instant::from_nanos(self.cells.pending_at.get())) < PENDING_KEYS;
        let is_other = (pending.node(), pending.peer_life) != (attempt.node, attempt.life);
        if pending.is_valid() && is_other && is_young && once {
            return Verdict::Defer;
        }
        Verdict::Accept
    }

    /// What follows from somebody having the function.
    fn judge_against_holder(&self, now: Instant, attempt: &Attempt) -> Option<Verdict> {
        let Some(holder) = self.holder() else {
            // Until it is durable that the function was given back, the one who did so listens for the answer.
            return (self.state() == State::Closed && self.unsaved_tenancy().is_some())
                .then_some(Verdict::Defer);
        };
        if (holder.node, holder.life) == (attempt.node, attempt.life) {
            return None;
        }
        if holder.node != attempt.node {
            return (!self.is_hold_over(now)).then_some(Verdict::Refuse(Why::InUse(holder)));
        }
        if !self.journal.rule(Rule::ProbeBeforeTakeOver) {
            return None;
        }
        if self.state() != State::Idle {
            return Some(self.judge_other_life(now, attempt.life, holder));
        }
        // There are no keys to ask the life before with: it calls as soon as it has noticed that this lender was away.
        let is_due = now.since(self.handshake.last_heard) < SILENCE + HANDSHAKE_RETRY_MAX;
        is_due.then_some(Verdict::Defer)
    }

    fn judge_other_life(&self, now: Instant, life: LifeId, holder: Tenancy) -> Verdict {
        let probe = self.handshake.probe.as_ref().filter(|probe| !probe.is_over(now));
        match probe.map(|probe| (probe.outcome, probe.life == life)) {
            Some((Outcome::Lives, _)) => Verdict::Refuse(Why::Twin(holder)),
            Some((Outcome::Gone, true)) => Verdict::Accept,
            Some((Outcome::Open, true)) => Verdict::Probe,
            Some(_) => Verdict::Defer,
            None => Verdict::Probe,
        }
    }

    /// Asks the present peer whether it is there; `call` waits for that.
    pub(super) fn probe_peer(&mut self, now: Instant, call: Call) {
        let until = now + self.paths.verdict_after();
        let present = self.handshake.probe.as_mut().filter(|probe| !probe.is_over(now));
        if let Some(probe) = present {
            let same = probe.waiting.as_ref().filter(|waiting| waiting.attempt() == call.attempt());
            let paths = same.map_or(0, |waiting| waiting.paths) | call.paths;
            probe.waiting = Some(Call { paths, ..call });
            return;
        }
        let mut first = [0; MAX_PATHS];
        for (path, first) in self.paths.iter_mut().zip(&mut first) {
            path.ping = true;
            *first = path.outgoing.next_number();
        }
        let life = call.proposal.speaker.life;
        let waiting = Some(call);
        let (was_late, outcome) = (false, Outcome::Open);
        self.handshake.probe = Some(PeerProbe { life, until, was_late, first, outcome, waiting });
    }

    /// When [`Channel::end_probe`] is to be called.
    pub(super) fn probe_ends(&self) -> Option<Instant> {
        self.handshake.probe.as_ref().and_then(PeerProbe::timeout)
    }

    /// The peer has not answered in time: who waits for its place has it. But a card that stood still finds the answer
    /// in its socket, perhaps behind other frames of the peer: as long as those come, it is read on.
    pub(super) fn end_probe(&mut self, now: Instant) {
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
            self.accept(now, call);
        }
    }

    /// The peer has acknowledged `ranges` of what was sent on `path`: if a probe is among them, it is there.
    pub(super) fn answer_probe(&mut self, now: Instant, path: usize, ranges: &AckRanges) {
        let Some(probe) = &mut self.handshake.probe else { return };
        let answers = ranges.largest().is_some_and(|largest| largest >= probe.first[path]);
        if !answers || probe.outcome == Outcome::Lives {
            return;
        }
        probe.outcome = Outcome::Lives;
        let waiting = probe.waiting.take();
        if let (Some(call), Some(holder)) = (waiting, self.holder()) {
            self.refuse(now, call, Why::Twin(holder));
        }
    }

    /// The peer that has the function is there: whoever was let in because it seemed to be gone, by this card or one
    /// before it, and has not come yet, is not let in any more.
    pub(super) fn withdraw_offer(&mut self) {
        let (current, pending) = (self.cells.current.get(), self.cells.pending.get());
        let is_other = (pending.node(), pending.peer_life) != (current.node(), current.peer_life);
        let has_it = matches!(self.state(), State::Open | State::Resetting);
        if !pending.is_valid() || !is_other || !has_it {
            return;
        }
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..pending });
        self.load_keys();
        if let Some(probe) = &mut self.handshake.probe {
            probe.outcome = Outcome::Lives;
        }
    }

    /// Answers `call` with no. True unless something better is waiting to be sent, or this path has had a refusal just
    /// now.
    pub(super) fn refuse(&mut self, now: Instant, call: Call, why: Why) -> bool {
        if let Why::Outdated(_) = why {
            self.cells.stats.dropped_replay.add(1);
        }
        // A call came over a rail, at least one (`Channel::take_frame`).
        let path = call.paths.trailing_zeros() as PathId;
        let last = self.handshake.refusals.iter().find(|refused| refused.path == path);
        let is_early = last.is_some_and(|last| now.since(last.at) < REFUSAL_PAUSE)
            && self.journal.rule(Rule::PauseRefusals);
        if is_early || self.handshake.due != 0 {
            return false;
        }
        let (attempt, to) = (call.attempt(), Destination::of(&call.proposal.speaker));
        let answer = self.refusal_of(now, &call.proposal, why);
        let mut message = Vec::new();
        if call.responder.answer(&answer, &mut message).is_none() {
            return false;
        }
        let refusals = &mut self.handshake.refusals;
        refusals.retain(|other| other.path != path);
        refusals.push(Refused { path, attempt, to, message, at: now, is_due: true });
        true
    }

    /// Whether what was answered last, or refused last on this path, is this attempt.
    pub(super) fn has_answer(&self, path: PathId, attempt: &Attempt) -> bool {
        let refused = self.handshake.refusals.iter().find(|refused| refused.path == path);
        self.handshake.answers == Some(*attempt) || refused.is_some_and(|refused| refused.attempt == *attempt)
    }

    /// The answer to the first message of this name is to be sent on `path` once more, since that has come from
    /// somewhere else as well.
    pub fn answer_again(&mut self, path: PathId, call: CallName) {
        let handshake = &mut self.handshake;
        if handshake.answers.is_some_and(|attempt| CallName::of(&attempt) == call) {
            handshake.due |= 1 << path;
            return;
        }
        let is_it = |refused: &&mut Refused| refused.path == path && CallName::of(&refused.attempt) == call;
        if let Some(refused) = handshake.refusals.iter_mut().find(is_it) {
            refused.is_due = true;
        }
    }

    fn refusal_of(&self, now: Instant, proposal: &Proposal, why: Why) -> Answer {
        let mut details = RefusalDetails::default();
        let (verdict, by) = match why {
            Why::Sealing => (verdict::SEALING, Name::default()),
            Why::Version => (verdict::VERSION, Name::default()),
            Why::NotAllowed => (verdict::NOT_ALLOWED, Name::default()),
            Why::Twin(holder) => (verdict::TWIN, holder.name),
            Why::Outdated(seen) => {
                details.seen = seen.0.into();
                (verdict::OUTDATED, Name::default())
            }
            Why::InUse(holder) => {
                let silent = now.since(self.handshake.last_heard);
                let is_silent = self.state() == State::Idle || silent >= SILENCE;
                let left = HOLD.saturating_sub(silent).as_secs().max(1);
                details.holder = holder.node;
                details.hold_seconds = if is_silent { left } else { 0 }.into();
                let bound_at = Instant::from_nanos(self.cells.bound_at.get());
                let since = if self.state() == State::Idle { UNKNOWN } else { now.since(bound_at).as_secs() };
                details.since_seconds = since.into();
                (verdict::IN_USE, holder.name)
            }
        };
        let answer = self.answer_to(proposal);
        let speaker = Speaker { name: by.to_bytes(), ..answer.speaker };
        Answer { verdict, speaker, refusal: details, ..answer }
    }

    /// Who has the function, be it that this lender has not met it yet.
    fn holder(&self) -> Option<Tenancy> {
        match self.state() {
            State::Idle if !self.journal.rule(Rule::HoldAfterRestart) => None,
            // Who may not have it any more cannot keep it either: so an operator takes a function back.
            State::Idle if !self.is_allowed(self.tenant().node) => None,
            State::Open | State::Resetting | State::Idle => Some(self.tenant()).filter(|it| it.is_held),
            State::Closed => None,
        }
    }

    /// Whether the borrower was silent for so long that it loses the function. A card that is new, because the lender
    /// itself was away, listens first.
    fn is_hold_over(&self, now: Instant) -> bool {
        let handshake = &self.handshake;
        now.since(handshake.last_heard) >= HOLD && now.since(handshake.listens_since) >= SILENCE
    }

    /// Of a lender: who has the function now, durable or not.
    pub(super) fn tenant(&self) -> Tenancy {
        self.cells.tenant.get().into()
    }

    pub(super) fn set_tenant(&self, tenancy: Tenancy) {
        self.cells.tenant.set(self.journal, tenancy.into());
    }

    /// Of a lender: the tenancy that its agent has to make durable. Until it says so with [`Channel::set_tenancy`],
    /// neither do the streams of who has taken the function open, nor is who has given it back answered.
    pub fn unsaved_tenancy(&self) -> Option<Tenancy> {
        let tenant = self.tenant();
        (self.config.role == Role::Lender && tenant != self.config.tenancy).then_some(tenant)
    }

    /// Of a lender: `tenancy` is durable.
    pub fn set_tenancy(&mut self, tenancy: Tenancy) {
        self.config.tenancy = tenancy;
        if self.goodbye_waits && self.unsaved_tenancy().is_none() {
            (self.goodbye_waits, self.goodbye_heard) = (false, true);
        }
    }
}
