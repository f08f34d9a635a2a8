use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Instant;
use base::ids::{LoanGeneration, NodeId};

use super::{Progress, Reply, Ticket};
use crate::canary::{self, Rule};
use crate::entry::Answer;
use crate::model::{FunctionKey, LimitsId, MadeId, Name, RequestId};
use crate::refusal::Refusal;
use crate::state::State;

/// Answers that are remembered though no entry has them: refusals, and of what was so already.
const REMEMBERED_MAX: usize = 4096;

/// Of what it is waited that a lender applies it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Subject {
    /// What is decided of a function.
    Function(FunctionKey),
    /// Which functions are made at a node.
    Making(NodeId),
}

/// What came of a request, and by which entry.
pub(super) type Outcome = Result<(Answer, Option<u64>), Refusal>;

/// Requests on their way to an answer: each waits until what it saw and did is durable, then until the lender has
/// applied it, is silent, or has taken too long.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// In the order of what has to be durable.
    undurable: VecDeque<(u64, Waiting)>,
    unapplied: BTreeMap<Subject, Vec<Waiting>>,
    /// How many are in `unapplied`.
    unapplied_len: usize,
    /// Those whose requests may have an answer.
    changed: BTreeSet<Subject>,
    /// Until when those in `unapplied` wait.
    deadlines: BTreeSet<(Instant, Subject, Ticket)>,
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

    /// Something about this has become durable, or its lender is heard or silent.
    pub(super) fn look_again(&mut self, key: Subject) {
        if self.unapplied.contains_key(&key) {
            self.changed.insert(key);
        }
    }

    /// A lender is heard or silent.
    pub(super) fn look_at_lender(&mut self, node: NodeId) {
        let key = |number| Subject::Function(FunctionKey { node, number });
        let range = self.unapplied.range(key(0)..=key(u32::MAX));
        self.changed.extend(range.map(|(key, _)| *key));
        self.look_again(Subject::Making(node));
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
        let (key, progress) = match &answer {
            Answer::Function { key, generation } => {
                (Some(Subject::Function(*key)), progress(state, durable, *key, *generation, is_silent))
            }
            Answer::Limits { key, id } => {
                (Some(Subject::Function(*key)), limited(state, durable, *key, *id, is_silent))
            }
            Answer::Made { node, name, id, is_wanted } => {
                match made(state, durable, (*node, name), (*id, *is_wanted), is_silent) {
                    Ok(progress) => (Some(Subject::Making(*node)), progress),
                    Err(refusal) => return self.ready.push_back((it.ticket, Err(refusal))),
                }
            }
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
        // One that was not lent for a while is known anew, with what its lender says.
        Some(function) if function.generation != generation => Progress::Overtaken,
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
        Some(function) if function.limits.is_none_or(|limited| limited.id != id) => Progress::Overtaken,
        Some(function) if function.is_limited() && function.version <= durable => Progress::Done,
        Some(_) => Progress::Pending { lender: key.node, is_silent: is_silent(&key.node) },
    }
}

/// A function that its lender cannot make is none: who has asked for it hears why.
fn made(
    state: &State,
    durable: u64,
    (node, name): (NodeId, &Name),
    (id, is_wanted): (MadeId, bool),
    is_silent: &impl Fn(&NodeId) -> bool,
) -> Result<Progress, Refusal> {
    // What was made at a node that was removed is nobody's here.
    let Some(making) = state.making(node) else { return Ok(Progress::Overtaken) };
    let wanted = making.functions.get(name);
    let is_later = |of: MadeId| of > id;
    if wanted.is_some_and(|wanted| is_later(wanted.id)) {
        return Ok(Progress::Overtaken);
    }
    if let Some(refused) = making.refused.get(name).filter(|it| it.id == id && making.version <= durable) {
        return Err(Refusal::Unmakable { name: name.clone(), why: refused.why.clone() });
    }
    if is_wanted && wanted.is_none() {
        return Ok(Progress::Overtaken);
    }
    let is_applied = match (is_wanted, wanted) {
        (true, Some(wanted)) => wanted.is_made,
        _ => !making.leaving.contains_key(name),
    };
    // A manager that was restored does not know what its lender has made and deleted since.
    let is_known = state.is_heard(node) || canary::is_off(Rule::HearFirst);
    Ok(match is_applied && is_known && making.version <= durable {
        true => Progress::Done,
        false => Progress::Pending { lender: node, is_silent: is_silent(&node) },
    })
}
