use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Instant;
use base::ids::{LoanGeneration, NodeId};

use super::{Progress, Reply, Ticket};
use crate::entry::Answer;
use crate::model::{FunctionKey, LimitsId, RequestId};
use crate::refusal::Refusal;
use crate::state::State;

/// Answers that are remembered though no entry has them: refusals, and of what was so already.
const REMEMBERED_MAX: usize = 4096;

/// What came of a request, and by which entry.
pub(super) type Outcome = Result<(Answer, Option<u64>), Refusal>;

/// Requests on their way to an answer: each waits until what it saw and did is durable, then until the lender has
/// applied it, is silent, or has taken too long.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// In the order of what has to be durable.
    undurable: VecDeque<(u64, Waiting)>,
    unapplied: BTreeMap<FunctionKey, Vec<Waiting>>,
    /// How many are in `unapplied`.
    unapplied_len: usize,
    /// Functions whose requests may have an answer.
    changed: BTreeSet<FunctionKey>,
    /// Until when those in `unapplied` wait.
    deadlines: BTreeSet<(Instant, FunctionKey, Ticket)>,
    ready: VecDeque<(Ticket, Result<Reply, Refusal>)>,
    remembered: BTreeMap<RequestId, (u64, Outcome)>,
    remembered_order: VecDeque<RequestId>,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    outcome: Outcome,
    deadline: Instant,
    is_late: bool,
}

impl Answers {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.undurable.len() + self.unapplied_len + self.ready.len()
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        self.ready.push_back((ticket, Err(refusal)));
    }

    pub(super) fn wait(&mut self, needs: u64, ticket: Ticket, outcome: Outcome, deadline: Instant) {
        self.undurable.push_back((needs, Waiting { ticket, outcome, deadline, is_late: false }));
    }

    /// A request that was answered without an entry is answered the same when it comes again: a copy that was late on
    /// its way does nothing that its client was told is not done, or has undone since.
    pub(super) fn remember(&mut self, request: RequestId, fingerprint: u64, outcome: &Outcome) {
        if self.remembered.insert(request, (fingerprint, outcome.clone())).is_none() {
            self.remembered_order.push_back(request);
        }
        if self.remembered_order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.remembered_order.pop_front()
        {
            self.remembered.remove(&oldest);
        }
    }

    pub(super) fn recall(&self, request: RequestId, fingerprint: u64) -> Option<Outcome> {
        let (asked, outcome) = self.remembered.get(&request)?;
        Some(if *asked == fingerprint { outcome.clone() } else { Err(Refusal::OtherRequest) })
    }

    /// Something about this function has become durable, or its lender is heard or silent.
    pub(super) fn look_again(&mut self, key: FunctionKey) {
        if self.unapplied.contains_key(&key) {
            self.changed.insert(key);
        }
    }

    /// A lender is heard or silent.
    pub(super) fn look_at_lender(&mut self, node: NodeId) {
        let key = |number| FunctionKey { node, number };
        let range = self.unapplied.range(key(0)..=key(u32::MAX));
        self.changed.extend(range.map(|(key, _)| *key));
    }

    /// Whoever has waited for too long hears that it is pending.
    pub(super) fn run_out(&mut self, now: Instant) {
        while let Some(&(at, key, ticket)) = self.deadlines.first().filter(|(at, ..)| *at <= now) {
            self.deadlines.remove(&(at, key, ticket));
            let waiting = self.unapplied.get_mut(&key).into_iter().flatten();
            waiting.for_each(|it| it.is_late |= it.deadline <= now);
            self.look_again(key);
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, ..)| *at)
    }

    pub(super) fn next(&mut self) -> Option<(Ticket, Result<Reply, Refusal>)> {
        self.ready.pop_front()
    }

    /// Moves on whoever can be.
    pub(super) fn settle(&mut self, state: &State, durable: u64, is_silent: impl Fn(&NodeId) -> bool) {
        let is_durable = |this: &Self| this.undurable.front().is_some_and(|(needs, _)| *needs <= durable);
        while is_durable(self)
            && let Some((_, waiting)) = self.undurable.pop_front()
        {
            self.place(waiting, state, durable, &is_silent);
        }
        while let Some(key) = self.changed.pop_first() {
            let waiting = self.unapplied.remove(&key).unwrap_or_default();
            self.unapplied_len -= waiting.len();
            for it in waiting {
                self.deadlines.remove(&(it.deadline, key, it.ticket));
                self.place(it, state, durable, &is_silent);
            }
        }
    }

    fn place(&mut self, it: Waiting, state: &State, durable: u64, is_silent: &impl Fn(&NodeId) -> bool) {
        let (answer, index) = match it.outcome {
            Ok(done) => done,
            Err(refusal) => return self.ready.push_back((it.ticket, Err(refusal))),
        };
        let (key, progress) = match answer {
            Answer::Function { key, generation } => {
                (Some(key), progress(state, durable, key, generation, is_silent))
            }
            Answer::Limits { key, id } => (Some(key), limited(state, durable, key, id, is_silent)),
            Answer::Done | Answer::Joined { .. } => (None, Progress::Done),
        };
        match (key, progress) {
            (Some(key), Progress::Pending { is_silent: false, .. }) if !it.is_late => {
                self.deadlines.insert((it.deadline, key, it.ticket));
                self.unapplied_len += 1;
                self.unapplied.entry(key).or_default().push(Waiting { outcome: Ok((answer, index)), ..it });
            }
            _ => self.ready.push_back((it.ticket, Ok(Reply { answer, index, progress }))),
        }
    }
}

fn progress(
    state: &State,
    durable: u64,
    key: FunctionKey,
    generation: LoanGeneration,
    is_silent: &impl Fn(&NodeId) -> bool,
) -> Progress {
    let pending = Progress::Pending { lender: key.node, is_silent: is_silent(&key.node) };
    match state.function(key) {
        // What is not lent any more nobody has.
        None => Progress::Overtaken,
        Some(function) if function.generation > generation => Progress::Overtaken,
        Some(function) if function.loan.is_settled() && function.version <= durable => Progress::Done,
        Some(_) => pending,
    }
}

fn limited(
    state: &State,
    durable: u64,
    key: FunctionKey,
    id: LimitsId,
    is_silent: &impl Fn(&NodeId) -> bool,
) -> Progress {
    match state.function(key) {
        None => Progress::Overtaken,
        Some(function) if function.limits.is_some_and(|limited| limited.id > id) => Progress::Overtaken,
        Some(function) if function.is_limited() && function.version <= durable => Progress::Done,
        Some(_) => Progress::Pending { lender: key.node, is_silent: is_silent(&key.node) },
    }
}
