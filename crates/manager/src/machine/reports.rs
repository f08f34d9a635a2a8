use base::ids::{LoanGeneration, NodeId};

use super::contact::Contact;
use super::{Manager, Now};
use crate::canary::{self, Rule};
use crate::entry::{Change, Entry, News, Who};
use crate::model::{EPOCH_STRIDE, FunctionKey, Membership, NODES_MAX, Node, WallTime};
use crate::reconcile::{Judge, Verdict};
use crate::report::{Alarm, Event, Identity, Report, Said};

/// How often one node has a restored manager begin another epoch: there may have been managers of which the backup did
/// not know, but not ever more of them.
const RAISES_MAX: u32 = 3;

impl Manager {
    /// A node can be reached, anew: whatever was told to it before may be lost.
    pub fn handle_reachable(&mut self, node: NodeId) {
        if self.state.joined(node).is_none() && self.state.restore().is_none() {
            return self.event(Event::Alarm { node, alarm: Alarm::Stranger });
        }
        // A stranger after a restore may turn out to be none; of more there is no room.
        if self.contacts.len() >= 2 * NODES_MAX && !self.contacts.contains_key(&node) {
            return;
        }
        let index = self.state.index();
        let contact = self.contacts.entry(node).or_insert_with(|| Contact::new(index));
        let was = core::mem::replace(&mut contact.is_reachable, true);
        if !(was && canary::is_off(Rule::TellAgain)) {
            contact.forget_promise();
        }
        // It says anew which rails it finds dead.
        self.hear_rails(self.state.at(), node, &[]);
        self.ready.insert(node);
        if !was {
            self.event(Event::Reachable(node));
        }
        self.answers.look_at_lender(node);
        self.answer_durable();
    }

    /// A node is not heard any more. What waits for it is pending.
    pub fn handle_silent(&mut self, node: NodeId) {
        let Some(contact) = self.contacts.get_mut(&node).filter(|contact| contact.is_reachable) else {
            return;
        };
        contact.is_reachable = false;
        contact.forget_promise();
        // What it has said may be over.
        self.hear_rails(self.state.at(), node, &[]);
        self.event(Event::Silent(node));
        self.answers.look_at_lender(node);
        self.answer_durable();
    }

    /// A node that can be reached says something.
    pub fn handle_report(&mut self, now: Now, node: NodeId, report: &Report) {
        if !self.contacts.get(&node).is_some_and(|contact| contact.is_reachable) {
            return;
        }
        if report.epoch > self.state.epoch() {
            return self.hear_greater_epoch(now, node, report.epoch);
        }
        if report.epoch < self.state.epoch() && !canary::is_off(Rule::HearPromised) {
            return;
        }
        if self.state.joined(node).is_none() {
            let Said::Inventory { identity, .. } = &report.said else { return };
            if !self.adopt(now, node, identity) {
                return self.alarm(now, node, None, Alarm::Stranger);
            }
        }
        match &report.said {
            Said::Inventory { identity, functions, presets, made, rails } => {
                self.hear_issued(node, identity.issued);
                self.hear_rails(now.wall, node, rails);
                if let Some(contact) = self.contacts.get_mut(&node) {
                    let is_newcomer = !core::mem::replace(&mut contact.has_promised, true);
                    contact.has_kept(*presets);
                    if is_newcomer {
                        self.greet_with_rails(node);
                    }
                }
                let judge = Judge::new(&self.state, node, self.state.clamp(now.wall));
                let verdict = judge.with_slots(self.memories.slots()).inventory(functions, made.as_ref());
                let removed = self.memories.removed_by(node).map(|by| Alarm::Removed { by });
                if let Some(contact) = self.contacts.get_mut(&node) {
                    // What is over may be raised again.
                    let stays = |it: &Alarm| verdict.alarms.contains(it) || removed.as_ref() == Some(it);
                    contact.alarms.retain(|_, alarm| stays(alarm));
                    contact.is_making_behind = verdict.is_making_behind;
                }
                self.follow(now, node, verdict);
            }
            // Nothing counts of one who has not said what it has.
            _ if !self.contacts.get(&node).is_some_and(|contact| contact.has_promised) => {}
            Said::Function(reported) => {
                let judge = Judge::new(&self.state, node, self.state.clamp(now.wall));
                let verdict = judge.with_slots(self.memories.slots()).one(reported);
                self.follow(now, node, verdict);
            }
            Said::Presets(id) => {
                if let Some(contact) = self.contacts.get_mut(&node) {
                    contact.has_kept(Some(*id));
                }
            }
            Said::Memory { presets, revoked } => self.hear_memory(now, node, presets, revoked),
            Said::Rails(rails) => self.hear_rails(now.wall, node, rails),
            Said::HoldOver { number, generation } => self.hold_over(now, node, *number, *generation),
        }
        self.ready.insert(node);
        self.answer_durable();
    }

    /// After a restore there may have been managers of which the backup did not know. Otherwise there is another one
    /// now, or the node lies: people have to look, and it is this node alone that does not heed this manager.
    fn hear_greater_epoch(&mut self, now: Now, node: NodeId, epoch: u64) {
        self.alarm(now, node, None, Alarm::GreaterEpoch { epoch });
        let is_near = epoch - self.state.epoch() <= EPOCH_STRIDE;
        let is_known = self.state.joined(node).is_some();
        match self.state.restore() {
            Some(restore) if is_near && (restore.is_closed || (is_known && !self.state.is_heard(node))) => {
                let is_closed = restore.is_closed;
                // Whoever says ever greater ones does not have all others wait for ever.
                let raised = self.contacts.get_mut(&node).map(|contact| {
                    contact.raised += 1;
                    contact.raised
                });
                if raised.is_none_or(|raised| raised > RAISES_MAX) {
                    return;
                }
                self.begin_epoch(now, epoch.saturating_add(1), is_closed, false);
                self.ready.extend(self.contacts.keys());
            }
            _ => {}
        }
    }

    /// A node with a certificate of this fabric that the backup did not know: it has joined since.
    fn adopt(&mut self, now: Now, id: NodeId, identity: &Identity) -> bool {
        let at = self.state.clamp(now.wall);
        let is_closed = self.state.restore().is_some_and(|restore| restore.is_closed);
        let Identity { name, key, block, groups, issued } = identity.clone();
        let has_room = self.state.nodes().count() < NODES_MAX || self.state.node_to_forget(at).is_some();
        if !is_closed || !has_room || self.state.node(id).is_some() || !self.make_place(now, id, identity) {
            return false;
        }
        if !self.state.is_free(block, at) || self.state.node_called(&name).is_some() {
            return false;
        }
        let membership = Membership::Joined { since: at };
        let node = Node { id, name, key, block, groups, membership, version: 0 };
        self.append(Entry {
            at,
            who: Who::Node { id },
            request: None,
            change: Change::NodeAdopted { node, issued },
        });
        true
    }

    fn follow(&mut self, now: Now, node: NodeId, verdict: Verdict) {
        self.report(now, node, verdict.news);
        if let Some(contact) = self.contacts.get_mut(&node) {
            verdict.settled.iter().for_each(|number| contact.has_settled(*number));
            if !canary::is_off(Rule::TellAgain) {
                verdict.behind.iter().for_each(|number| contact.is_behind(*number));
            }
        }
        for alarm in verdict.alarms {
            let number = match &alarm {
                Alarm::Twice { number, .. }
                | Alarm::Missing { number }
                | Alarm::GreaterGeneration { number, .. }
                | Alarm::ImpossibleGeneration { number, .. }
                | Alarm::Diverged { number, .. } => Some(*number),
                Alarm::Stranger
                | Alarm::GreaterEpoch { .. }
                | Alarm::Removed { .. }
                | Alarm::TooMany { .. } => None,
            };
            self.alarm(now, node, number, alarm);
        }
    }

    fn report(&mut self, now: Now, id: NodeId, news: Vec<News>) {
        if !news.is_empty() {
            let at: WallTime = self.state.clamp(now.wall);
            let is_again = self.is_again(now, id, &news);
            self.append(Entry {
                at,
                who: Who::Node { id },
                request: None,
                change: Change::Reported { id, news, is_again },
            });
        }
    }

    fn hold_over(&mut self, now: Now, node: NodeId, number: u32, generation: LoanGeneration) {
        let function = self.state.function(FunctionKey { node, number });
        let ends = function.is_some_and(|it| it.generation == generation && it.loan.assigned().is_some());
        if ends {
            let generation = LoanGeneration(generation.0.saturating_add(1));
            self.report(now, node, vec![News::HeldOver { number, generation }]);
        }
    }

    /// Raises an alarm, unless it is the one that was raised last.
    pub(super) fn alarm(&mut self, now: Now, node: NodeId, number: Option<u32>, alarm: Alarm) {
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        if contact.alarms.get(&number) != Some(&alarm) {
            contact.alarms.insert(number, alarm.clone());
            self.handle_note(now, Who::Node { id: node }, "report what it has", &format!("alarm: {alarm}"));
            self.event(Event::Alarm { node, alarm });
        }
    }
}
