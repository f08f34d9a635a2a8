//! Who notices. Each has the first thing that is wrong, and the run ends there.

use std::collections::{BTreeMap, BTreeSet};

use base::Instant;
use base::ids::NodeId;

use super::client::{Heard, is_done};
use super::making::Unwanted;
use super::node::{Accepted, Node};
use super::setting::{FUNCTIONS, load};
use crate::command::{Asked, Command};
use crate::entry::{Answer, Change, Entry, News};
use crate::machine::{RAILS_TOLD_EVERY, RAILS_TOLD_MAX};
use crate::model::{Assignment, Block, FunctionKey, Place, QUARANTINE_S, RequestId, WallTime};
use crate::report::{DeadRail, Holder, Order, Preset};
use crate::state::State;

type Content = Option<Assignment>;

#[derive(Debug)]
pub(super) struct Checks {
    pub(super) error: Option<String>,
    /// The fold of what is durable.
    pub(super) shadow: State,
    /// What was decided, durably, for each generation.
    decided: BTreeMap<(FunctionKey, u64), Content>,
    /// What lenders have accepted for each generation.
    accepted: BTreeMap<(FunctionKey, u64), Content>,
    /// Requests that were acknowledged, and by which entry.
    acknowledged: BTreeMap<RequestId, u64>,
    /// Requests that were answered without an entry.
    undone: BTreeSet<RequestId>,
    /// Requests that entries have.
    done: BTreeSet<RequestId>,
    /// Which life has told which epoch.
    epochs: BTreeMap<u64, u64>,
    removed: Vec<(Block, WallTime)>,
    /// When which life told of dead rails last.
    rails_told: Option<(Instant, u64)>,
    tokens: BTreeSet<crate::model::TokenHash>,
    /// Functions that were made, and are to be there no more.
    pub(super) unwanted: Unwanted,
    /// The greatest index that anybody has heard of.
    pub(super) heard: u64,
}

impl Checks {
    pub(super) fn new(log: &[u8]) -> Self {
        let shadow = load(log);
        Self {
            error: None,
            heard: shadow.index(),
            done: shadow.history().filter_map(|it| it.entry.request.as_ref()).map(|it| it.id).collect(),
            shadow,
            decided: BTreeMap::new(),
            accepted: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            undone: BTreeSet::new(),
            epochs: BTreeMap::new(),
            removed: Vec::new(),
            rails_told: None,
            tokens: BTreeSet::new(),
            unwanted: Unwanted::default(),
        }
    }

    pub(super) fn fail(&mut self, what: impl FnOnce() -> String) {
        self.error.get_or_insert_with(what);
    }

    pub(super) fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what);
        }
    }

    /// A backup was put back: what came after it is forgotten.
    pub(super) fn go_back(&mut self, state: State) {
        let index = state.index();
        self.acknowledged.retain(|_, of| *of <= index);
        self.done = state.history().filter_map(|it| it.entry.request.as_ref()).map(|it| it.id).collect();
        // What was refused then may be done now.
        self.undone.clear();
        self.heard = index;
        self.shadow = state;
        self.tokens.clear();
    }

    /// These are durable.
    pub(super) fn durable(&mut self, first: u64, entries: &[Entry], nodes: &[Node]) {
        for (index, entry) in (first..).zip(entries) {
            let affected = self.shadow.affected(&entry.change);
            self.look_at_change(&entry.change, entry.at, nodes);
            self.note_deletion(&entry.change);
            if let Err(error) = self.shadow.apply(index, entry) {
                return self.fail(|| format!("entry {index} does not fit: {error}"));
            }
            for key in affected {
                if let Some(function) = self.shadow.function(key) {
                    let of = (key, function.generation.0);
                    self.decided.insert(of, function.loan.assigned());
                }
            }
            if let Some(request) = &entry.request {
                let (id, is_new) = (request.id, self.done.insert(request.id));
                self.expect(is_new, || format!("request {id} is done twice"));
                let was_refused = self.undone.contains(&id);
                self.expect(!was_refused, || format!("request {id} was answered, and is done later"));
            }
        }
    }

    fn look_at_change(&mut self, change: &Change, at: WallTime, nodes: &[Node]) {
        match change {
            Change::NodeRemoved { id, until } => {
                if let Some(node) = self.shadow.node(*id) {
                    self.removed.push((node.block, *until));
                }
            }
            Change::NodeJoined { block, token, .. } => {
                let is_early = |(of, until): &(Block, WallTime)| of.overlaps(*block) && at < *until;
                let early = self.removed.iter().any(is_early);
                self.expect(!early, || {
                    format!("domains {block:?} have another node within {QUARANTINE_S} s")
                });
                let is_new = self.tokens.insert(*token);
                self.expect(is_new, || format!("token {token} is used twice"));
            }
            Change::Reported { id, news, .. } => {
                let listens =
                    self.shadow.restore().is_some_and(|it| it.is_closed) || !self.shadow.is_heard(*id);
                for news in news {
                    self.look_at_claim(*id, news, listens);
                }
                if news.contains(&News::Heard) {
                    self.look_at_heard(*id, nodes);
                }
            }
            _ => {}
        }
    }

    /// Nobody gets a slot because a lender says that he has it, but while a manager that was restored listens.
    fn look_at_claim(&mut self, node: NodeId, news: &News, listens: bool) {
        let (News::Seen { number, loan, .. } | News::Adopted { number, loan, .. }) = news else { return };
        let known = self.shadow.function(FunctionKey { node, number: *number });
        let is_known = known.is_some_and(|it| it.loan.occupied() == loan.occupied());
        let is_fair = listens || is_known || loan.occupied().is_none();
        self.expect(is_fair, || format!("{node} has given its function {number} away by itself: {loan:?}"));
    }

    fn look_at_heard(&mut self, id: NodeId, nodes: &[Node]) {
        let promised = nodes.iter().find(|node| node.id() == id).map_or(0, |node| node.kept.epoch);
        let epoch = self.shadow.epoch();
        self.expect(promised >= epoch, || {
            format!("{id} counts as heard in epoch {epoch}, and has promised {promised} only")
        });
    }

    /// A manager has started with this.
    pub(super) fn started(&mut self, state: &State) {
        let same = *state == self.shadow;
        let (found, durable) = (state.index(), self.shadow.index());
        self.expect(same, || format!("a manager starts with entry {found} where {durable} is durable"));
        let lost =
            self.acknowledged.iter().find(|(id, index)| state.done(**id).map(|it| it.index) != Some(**index));
        let lost =
            lost.map(|(id, index)| format!("request {id} was acknowledged at entry {index}, and is lost"));
        if let Some(lost) = lost {
            self.fail(|| lost);
        }
    }

    pub(super) fn greeted(&mut self, epoch: u64, life: u64) {
        let teller = *self.epochs.entry(epoch).or_insert(life);
        self.expect(teller == life, || {
            format!("lives {teller} and {life} of the manager have epoch {epoch}")
        });
    }

    pub(super) fn ordered(&mut self, key: FunctionKey, order: &Order) {
        let decided = self.decided.get(&(key, order.generation.0)).copied();
        // Of a generation that a lender has had first nothing may be decided here yet.
        let same = decided == Some(order.to);
        self.expect(same, || format!("{key:?} is told {order:?}, and durable is {decided:?}"));
    }

    pub(super) fn preset(&mut self, preset: &Preset) {
        let of = (preset.function, preset.generation.0);
        let decided = self.decided.get(&of).copied().flatten().map(|to| to.place);
        self.expect(decided == Some(preset.place), || {
            format!("{preset:?} is told, and durable is {decided:?}")
        });
    }

    /// Nodes are told of dead rails: not all the time, not of any that nobody has complained of or by, and nobody of
    /// nothing but what it has said.
    pub(super) fn rails_told(
        &mut self,
        now: Instant,
        life: u64,
        told: &[NodeId],
        rails: &[DeadRail],
        nodes: &[Node],
    ) {
        let before = self.rails_told.replace((now, life));
        let is_early = before.is_some_and(|(at, of)| of == life && now < at + RAILS_TOLD_EVERY);
        self.expect(!is_early, || format!("{rails:?} are told right after others"));
        self.expect((1..=RAILS_TOLD_MAX).contains(&rails.len()), || format!("{} at once", rails.len()));
        let ever = |it: &DeadRail| {
            let is_by =
                |node: &Node| node.id() == it.node && node.doubted.iter().any(|(_, rail)| *rail == it.rail);
            nodes.iter().any(|node| node.doubted.contains(&(it.node, it.rail)) || is_by(node))
        };
        let invented = rails.iter().find(|it| !ever(it));
        self.expect(invented.is_none(), || format!("nobody has said anything of {invented:?}"));
        let is_member = |node: &NodeId| nodes.iter().any(|it| it.id() == *node && it.identity.is_some());
        let stranger = told.iter().find(|node| !is_member(node));
        self.expect(stranger.is_none(), || format!("{stranger:?} is told of {rails:?}"));
    }

    /// A lender has changed its table.
    pub(super) fn accepted(&mut self, it: &Accepted) {
        self.expect(it.generation >= it.before, || {
            format!("the lender of {:?} goes back from {} to {}", it.key, it.before, it.generation)
        });
        let [had, has] = it.limits.map(|limits| limits.map(|limited| limited.id));
        self.expect(has >= had, || format!("limits of {:?} go back from {had:?} to {has:?}", it.key));
        let before = *self.accepted.entry((it.key, it.generation)).or_insert(it.to);
        self.expect(before == it.to, || {
            format!("generation {} of {:?} has {before:?} and {:?}", it.generation, it.key, it.to)
        });
    }

    /// Whatever lenders have in their tables now.
    pub(super) fn tables(&mut self, nodes: &[Node]) {
        let mut slots: BTreeMap<Place, FunctionKey> = BTreeMap::new();
        // Nobody uses what a stranger lends.
        let is_lender = |node: &&Node| node.is_member() && self.shadow.joined(node.id()).is_some();
        for node in nodes.iter().filter(is_lender) {
            for (number, row) in node.kept.rows.iter().filter(|(number, _)| !node.marks[*number].is_old) {
                let of = match row.holder {
                    Holder::Nobody => continue,
                    Holder::Assigned(of) | Holder::Leaving { from: of, .. } => of,
                };
                // What was a removed node's is being taken back.
                if !nodes.iter().any(|node| node.id() == of.borrower && node.is_member()) {
                    continue;
                }
                let key = FunctionKey { node: node.id(), number: *number };
                if let Some(other) = slots.insert(of.place, key) {
                    return self.fail(|| format!("{other:?} and {key:?} are in slot {}", of.place));
                }
            }
        }
    }

    /// A client hears an answer, which was given just now.
    pub(super) fn answered(&mut self, asked: &Asked, heard: &Heard, nodes: &[Node]) {
        let Ok(reply) = heard else { return };
        let durable = self.shadow.index();
        let Some(index) = reply.index else { return self.look_at_done(asked, reply, nodes) };
        self.expect(index <= durable, || format!("entry {index} is acknowledged, and {durable} is durable"));
        let before = *self.acknowledged.entry(asked.request).or_insert(index);
        self.expect(before == index, || format!("request {} is done by {before} and {index}", asked.request));
        self.look_at_done(asked, reply, nodes);
    }

    fn look_at_done(&mut self, asked: &Asked, reply: &crate::machine::Reply, nodes: &[Node]) {
        self.look_at_made(asked, reply, nodes);
        let (Answer::Function { key, .. } | Answer::Limits { key, .. }) = reply.answer else { return };
        let node = nodes.iter().find(|node| node.id() == key.node);
        let mark = node.and_then(|node| node.marks.get(&key.number)).copied().unwrap_or_default();
        if let Answer::Limits { id, .. } = reply.answer {
            let is_so = !is_done(reply) || mark.limits >= Some(id);
            return self.expect(is_so, || {
                format!(
                    "{:?} is done by {id:?}, and its lender's card is at {:?}",
                    asked.command, mark.limits
                )
            });
        }
        let Answer::Function { generation, .. } = reply.answer else { return };
        let acted = mark.acted;
        // By an older copy of its folder its lender had none, and clears the place anew: what it does not lend, nobody
        // has.
        let is_anew = key.number >= FUNCTIONS && node.is_some_and(|node| node.was_copied);
        let is_so = !is_done(reply) || acted >= generation.0 || is_anew;
        self.expect(is_so, || {
            format!("{:?} is done at {generation}, and its lender's card is at {acted}", asked.command)
        });
    }

    /// A client takes an answer: what it asked for after it heard another one comes after that.
    pub(super) fn taken(&mut self, asked: &Asked, heard: &Heard, after: u64) {
        // One that nobody heard of may be done when it is asked for again.
        let Ok(reply) = heard else {
            self.undone.insert(asked.request);
            return;
        };
        if reply.index.is_none() {
            self.undone.insert(asked.request);
        }
        if let Some(index) = reply.index {
            let is_join = matches!(asked.command, Command::Join { .. });
            self.expect(index > after || is_join, || {
                format!("entry {index} was asked for after {after} was heard of")
            });
            self.heard = self.heard.max(index);
        }
    }
}
