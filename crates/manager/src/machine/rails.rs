use std::collections::{BTreeMap, BTreeSet};

use base::Instant;
use base::ids::{NodeId, RailId};

use super::{Effect, Manager, RAILS_SAID_MAX, RAILS_TOLD_EVERY, RAILS_TOLD_MAX};
use crate::canary::{self, Rule};
use crate::model::WallTime;
use crate::report::{DeadRail, Event, RailCause};

/// A rail of a node.
type Key = (NodeId, RailId);

/// What the manager makes of what is said of a rail: that it is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Why.
    pub cause: RailCause,
    /// Since when, by the clock of the manager.
    pub since: WallTime,
    is_told: bool,
}

/// Rails that nodes find dead, each as long as it says so and is heard, and what follows from all of it:
///
/// - What a node says of its own rail is so.
/// - A rail that two others find dead is dead.
/// - Whoever finds several rails dead, of which nobody else says so, has a dead one itself, of the same id: nodes
///   prefer paths of equal ids. The others are not.
/// - Else the rail is dead that somebody finds dead.
///
/// A verdict is told once to each connection of a node. Nothing of this is kept: nodes that connect say all of it anew,
/// and without a manager they tell each other.
#[derive(Debug, Default)]
pub(super) struct Rails {
    /// Who finds each of them dead, and why.
    said: BTreeMap<Key, BTreeMap<NodeId, RailCause>>,
    /// The same by who says it.
    by: BTreeMap<NodeId, BTreeSet<Key>>,
    dead: BTreeMap<Key, Verdict>,
    /// Those of `dead` that were not told.
    untold: BTreeSet<Key>,
    told_at: Option<Instant>,
    /// Nodes that have connected since the others were told what is told.
    newcomers: BTreeSet<NodeId>,
}

impl Rails {
    /// A node finds these dead, and no others. Returns those that were told as dead, and are not any more.
    fn hear(&mut self, at: WallTime, from: NodeId, rails: BTreeMap<Key, RailCause>) -> Vec<Key> {
        let keys: BTreeSet<Key> = rails.keys().copied().collect();
        let before = self.by.remove(&from).unwrap_or_default();
        // What one accuser more or less means for others depends on how it was, and on how it is.
        let mut affected = self.around(from, &before, &keys);
        for key in &before {
            self.take_back(from, *key);
        }
        for (key, cause) in rails {
            self.said.entry(key).or_default().insert(from, cause);
        }
        if !keys.is_empty() {
            self.by.insert(from, keys.clone());
        }
        affected.extend(self.around(from, &before, &keys));
        self.judge_all(at, affected)
    }

    /// A node is not there any more: nothing counts that it has said, nor what others say of it.
    fn forget(&mut self, at: WallTime, node: NodeId) -> Vec<Key> {
        let mut back = self.hear(at, node, BTreeMap::new());
        for key in RailId::ALL.map(|rail| (node, rail)) {
            let accusers: Vec<NodeId> =
                self.said.get(&key).into_iter().flatten().map(|(it, _)| *it).collect();
            let mut affected = BTreeSet::from([key]);
            for accuser in accusers {
                let of = self.by.get(&accuser).cloned().unwrap_or_default();
                affected.extend(self.around(accuser, &of, &of));
                self.take_back(accuser, key);
                if let Some(keys) = self.by.get_mut(&accuser) {
                    keys.remove(&key);
                }
            }
            back.extend(self.judge_all(at, affected));
        }
        back
    }

    fn take_back(&mut self, from: NodeId, key: Key) {
        if let Some(accusers) = self.said.get_mut(&key) {
            accusers.remove(&from);
            if accusers.is_empty() {
                self.said.remove(&key);
            }
        }
    }

    /// All of which another verdict may come when `from` says `after` instead of `before`.
    fn around(&self, from: NodeId, before: &BTreeSet<Key>, after: &BTreeSet<Key>) -> BTreeSet<Key> {
        let mut affected = BTreeSet::new();
        for (node, rail) in before.union(after).copied() {
            affected.extend([(node, rail), (from, rail)]);
            affected.extend(self.accused_by(node, rail));
            // One of one or two accusers may be alone in this from now on, or not any more. Of more nobody is.
            let accusers = self.said.get(&(node, rail)).filter(|accusers| accusers.len() <= 2);
            for accuser in accusers.into_iter().flatten().map(|(accuser, _)| *accuser) {
                affected.insert((accuser, rail));
                affected.extend(self.accused_by(accuser, rail));
            }
        }
        affected
    }

    /// Rails of this id that a node finds dead.
    fn accused_by(&self, node: NodeId, rail: RailId) -> impl Iterator<Item = Key> {
        self.by.get(&node).into_iter().flatten().copied().filter(move |(_, it)| *it == rail)
    }

    fn judge_all(&mut self, at: WallTime, affected: BTreeSet<Key>) -> Vec<Key> {
        let mut back = Vec::new();
        for key in affected {
            match (self.judge(key), self.dead.get_mut(&key)) {
                (Some(cause), Some(verdict)) => verdict.cause = cause,
                (Some(cause), None) => {
                    self.dead.insert(key, Verdict { cause, since: at, is_told: false });
                    self.untold.insert(key);
                }
                (None, Some(verdict)) => {
                    back.extend(verdict.is_told.then_some(key));
                    self.dead.remove(&key);
                    self.untold.remove(&key);
                }
                (None, None) => {}
            }
        }
        back
    }

    /// Why a rail is dead, if it is.
    fn judge(&self, (node, rail): Key) -> Option<RailCause> {
        let accusers = self.said.get(&(node, rail));
        // That an interface has no carrier only its node can know.
        let own = accusers.and_then(|accusers| accusers.get(&node)).copied();
        let is_dead = || {
            let mut accusers = accusers.into_iter().flatten().map(|(accuser, _)| *accuser);
            self.is_at_fault(node, rail) || accusers.any(|accuser| !self.is_at_fault(accuser, rail))
        };
        own.or_else(|| is_dead().then_some(RailCause::Silence))
    }

    /// Whether this rail of a node is dead whatever becomes of those that it finds dead itself.
    fn is_at_fault(&self, node: NodeId, rail: RailId) -> bool {
        let accusers = self.said.get(&(node, rail));
        let by_others = accusers.into_iter().flatten().filter(|(accuser, _)| **accuser != node).count();
        let is_own = accusers.is_some_and(|accusers| accusers.contains_key(&node));
        let is_alone = |key: &Key| key.0 != node && self.said.get(key).is_some_and(|it| it.len() == 1);
        let accuses_alone = || self.accused_by(node, rail).filter(is_alone).nth(1).is_some();
        is_own || by_others > 1 || (accuses_alone() && !canary::is_off(Rule::BlameAccuser))
    }

    /// When there is something to be told.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let at = self.told_at.map_or(Instant::ZERO, |at| at + RAILS_TOLD_EVERY);
        (!self.untold.is_empty() || !self.newcomers.is_empty()).then_some(at)
    }

    fn take_untold(&mut self, now: Instant) -> Vec<DeadRail> {
        let is_early = self.timeout().is_none_or(|at| now < at);
        if self.untold.is_empty() || (is_early && !canary::is_off(Rule::PaceRails)) {
            return Vec::new();
        }
        self.told_at = Some(now);
        let mut told = Vec::new();
        while told.len() < RAILS_TOLD_MAX
            && let Some(key) = self.untold.pop_first()
        {
            let Some(verdict) = self.dead.get_mut(&key) else { continue };
            verdict.is_told = true;
            told.push(DeadRail { node: key.0, rail: key.1, cause: verdict.cause });
        }
        told
    }

    /// Nodes that have connected since, and what the others were told.
    fn take_newcomers(&mut self, now: Instant) -> (BTreeSet<NodeId>, Vec<DeadRail>) {
        if self.newcomers.is_empty() || self.timeout().is_none_or(|at| now < at) {
            return <_>::default();
        }
        self.told_at = Some(now);
        (core::mem::take(&mut self.newcomers), self.told().take(RAILS_TOLD_MAX).collect())
    }

    fn told(&self) -> impl Iterator<Item = DeadRail> {
        let told = self.dead.iter().filter(|(_, verdict)| verdict.is_told);
        told.map(|((node, rail), it)| DeadRail { node: *node, rail: *rail, cause: it.cause })
    }

    /// Who finds a rail dead, or whom its node finds dead by it.
    fn accusers(&self, key: Key) -> Vec<NodeId> {
        match self.said.get(&key) {
            Some(accusers) => accusers.keys().copied().collect(),
            None => vec![key.0],
        }
    }
}

impl Manager {
    /// What is held of a rail, if it is dead, and who has said so.
    pub fn dead_rail(&self, node: NodeId, rail: RailId) -> Option<(Verdict, Vec<NodeId>)> {
        let verdict = self.rails.dead.get(&(node, rail))?;
        Some((*verdict, self.rails.accusers((node, rail))))
    }

    /// All that are held to be dead.
    pub fn dead_rails(&self) -> impl Iterator<Item = DeadRail> {
        self.rails.dead.iter().map(|((node, rail), it)| DeadRail {
            node: *node,
            rail: *rail,
            cause: it.cause,
        })
    }

    /// A node finds these dead, and no others.
    pub(super) fn hear_rails(&mut self, at: WallTime, from: NodeId, rails: &[DeadRail]) {
        let known = |it: &&DeadRail| self.state.joined(it.node).is_some();
        let counts = rails.iter().filter(known).take(RAILS_SAID_MAX);
        let rails = counts.map(|it| ((it.node, it.rail), it.cause)).collect();
        let back = self.rails.hear(at, from, rails);
        self.tell_back(back);
    }

    /// A node does not belong to the fabric any more.
    pub(super) fn forget_rails(&mut self, node: NodeId) {
        let back = self.rails.forget(self.state.at(), node);
        self.tell_back(back);
    }

    fn tell_back(&mut self, back: Vec<Key>) {
        back.into_iter().for_each(|(node, rail)| self.event(Event::RailBack { node, rail }));
    }

    /// A node has connected and said what it finds dead: it is to know what the others were told.
    pub(super) fn greet_with_rails(&mut self, node: NodeId) {
        if self.rails.told().next().is_some() {
            self.rails.newcomers.insert(node);
        }
    }

    /// What is new is told to all that are heard; then those that have connected are told what the others were, of
    /// which [`RAILS_TOLD_MAX`] is enough: they look at their rails themselves. Nobody is told what it has said.
    pub(super) fn tell_rails(&mut self, now: Instant) -> Option<Effect> {
        let rails = self.rails.take_untold(now);
        for rail in &rails {
            let by = self.rails.accusers((rail.node, rail.rail));
            self.event(Event::RailDead { rail: *rail, by });
        }
        let (newcomers, rails) =
            if rails.is_empty() { self.rails.take_newcomers(now) } else { (BTreeSet::new(), rails) };
        let by = &self.rails.by;
        let says =
            |node: &NodeId, it: &DeadRail| by.get(node).is_some_and(|all| all.contains(&(it.node, it.rail)));
        let heard = self.contacts.iter().filter(|(_, contact)| contact.is_reachable).map(|(node, _)| *node);
        let asked = heard.filter(|node| newcomers.is_empty() || newcomers.contains(node));
        let nodes: Vec<NodeId> = asked.filter(|node| !rails.iter().all(|rail| says(node, rail))).collect();
        (!nodes.is_empty()).then_some(Effect::TellRails { nodes, rails })
    }
}
