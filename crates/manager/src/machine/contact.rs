use core::time::Duration;
use std::collections::BTreeMap;

use base::Instant;
use base::ids::NodeId;

use super::{Effect, Manager, ORDERS_MAX, RETELL, RETELL_MAX};
use crate::canary::{self, Rule};
use crate::model::{Assignment, Function, FunctionKey, Loan};
use crate::report::{Alarm, Order, Preset, PresetsId};

/// What a manager knows of a node for now. Nothing of it is kept: after a restart a node is greeted, says what it has,
/// and what it lacks follows from that.
///
/// ```text
///                         a report under the present epoch
///   greeted, and again ──────────────────────────────────────► told what it lacks, and again until it has it
///        ▲                                                                  │
///        └──────────── it was silent, or there is another epoch ◄───────────┘
/// ```
#[derive(Debug)]
pub(super) struct Contact {
    /// Whether it is heard.
    pub(super) is_reachable: bool,
    /// Whether it has promised to heed no older epoch than the present one, and has said what it has.
    pub(super) has_promised: bool,
    is_greeted: bool,
    /// Functions of which it does not have what is decided, and whether it was told since the last pause.
    behind: BTreeMap<u32, bool>,
    /// The index of the last entry that has changed what is in its slots.
    presets_index: u64,
    /// Which list it has.
    presets_kept: Option<PresetsId>,
    presets_told: bool,
    /// Whether it does not have what is decided of the functions that are made there, though it had.
    pub(super) is_making_behind: bool,
    making_told: bool,
    /// It was asked what it remembers, since the last pause.
    is_asked: bool,
    /// How often it has had the manager begin another epoch.
    pub(super) raised: u32,
    pause: Duration,
    /// When it is told again.
    due: Option<Instant>,
    /// The last alarm of each function, and of the node as such, so that each is raised once.
    pub(super) alarms: BTreeMap<Option<u32>, Alarm>,
}

impl Contact {
    pub(super) fn new(presets_index: u64) -> Self {
        Self {
            is_reachable: false,
            has_promised: false,
            is_greeted: false,
            behind: BTreeMap::new(),
            presets_index,
            presets_kept: None,
            presets_told: false,
            is_making_behind: false,
            making_told: false,
            is_asked: false,
            raised: 0,
            pause: RETELL,
            due: None,
            alarms: BTreeMap::new(),
        }
    }

    /// It has to be greeted before anything else.
    pub(super) fn forget_promise(&mut self) {
        (self.has_promised, self.is_greeted, self.is_asked) = (false, false, false);
        self.pause = RETELL;
    }

    /// The pause is over: whatever it has not answered is told again.
    pub(super) fn tell_again(&mut self) {
        self.due = None;
        (self.is_greeted, self.is_asked) = (false, false);
        self.behind.values_mut().for_each(|is_told| *is_told = false);
        self.presets_told = false;
        self.making_told = false;
        self.pause = (self.pause * 2).min(RETELL_MAX);
    }

    pub(super) fn is_behind(&mut self, number: u32) {
        self.behind.entry(number).or_insert(false);
    }

    /// It has answered, so it is worth while to tell it soon.
    pub(super) fn has_settled(&mut self, number: u32) {
        if self.behind.remove(&number).is_some() {
            self.pause = RETELL;
        }
    }

    pub(super) fn has_kept(&mut self, id: Option<PresetsId>) {
        self.presets_kept = id;
    }

    fn presets_id(&self, epoch: u64) -> PresetsId {
        let index = if canary::is_off(Rule::NumberPresets) { 1 } else { self.presets_index };
        PresetsId { epoch, index }
    }
}

impl Manager {
    /// What is to be told to a node now, if there is something.
    pub(super) fn tell(&mut self, now: Instant, node: NodeId) -> Option<Effect> {
        let epoch = self.state.epoch();
        if !self.is_epoch_durable() {
            self.held.insert(node);
            return None;
        }
        // Until a restore has ended a manager knows less than nodes do, and only listens.
        let is_closed = self.state.restore().is_some_and(|restore| restore.is_closed);
        let only_listens = is_closed && !canary::is_off(Rule::HearFirst);
        let contact = self.contacts.get_mut(&node).filter(|contact| contact.is_reachable)?;
        let effect = if !contact.has_promised {
            (!core::mem::replace(&mut contact.is_greeted, true)).then_some(Effect::Greet { node, epoch })
        } else if only_listens {
            let has_said = self.memories.has(node) || core::mem::replace(&mut contact.is_asked, true);
            (!has_said).then_some(Effect::Recall { node, epoch })
        } else {
            self.tell_orders(node, epoch)
                .or_else(|| self.tell_presets(node, epoch))
                .or_else(|| self.tell_making(node, epoch))
        };
        if effect.is_some() {
            self.arm(now, node);
        }
        effect
    }

    /// Nodes are told an epoch only when no other manager can come to have it, and orders only under such a one.
    fn is_epoch_durable(&self) -> bool {
        canary::is_off(Rule::TellDurable) || self.durable >= self.epoch_index
    }

    fn arm(&mut self, now: Instant, node: NodeId) {
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        let at = now + contact.pause;
        if contact.due.is_some_and(|due| due <= at) {
            return;
        }
        if let Some(later) = contact.due.replace(at) {
            self.due.remove(&(later, node));
        }
        self.due.insert((at, node));
    }

    fn tell_orders(&mut self, node: NodeId, epoch: u64) -> Option<Effect> {
        let contact = self.contacts.get_mut(&node)?;
        let mut orders = Vec::new();
        for (number, is_told) in contact.behind.iter_mut().filter(|(_, is_told)| !**is_told) {
            let Some(function) = self.state.function(FunctionKey { node, number: *number }) else {
                *is_told = true;
                continue;
            };
            if function.version > self.durable && !canary::is_off(Rule::TellDurable) {
                self.held.insert(node);
                continue;
            }
            *is_told = true;
            orders.push(order(function));
            if orders.len() == ORDERS_MAX {
                break;
            }
        }
        (!orders.is_empty()).then_some(Effect::TellLender { node, epoch, orders })
    }

    fn tell_presets(&mut self, node: NodeId, epoch: u64) -> Option<Effect> {
        let contact = self.contacts.get_mut(&node)?;
        let id = contact.presets_id(epoch);
        let is_undurable = contact.presets_index > self.durable && !canary::is_off(Rule::TellDurable);
        if contact.presets_told || contact.presets_kept == Some(id) {
            return None;
        }
        if is_undurable {
            self.held.insert(node);
            return None;
        }
        contact.presets_told = true;
        let block = self.state.joined(node)?.block;
        let assigned = self.state.in_block(block).filter_map(|function| {
            let to = function.loan.assigned()?;
            let lender = self.state.joined(function.key.node)?.key;
            let Assignment { place, group, on_silence, .. } = to;
            let (function, generation) = (function.key, function.generation);
            Some(Preset { place, function, lender, generation, group, on_silence })
        });
        Some(Effect::TellBorrower { node, id, presets: assigned.collect() })
    }

    fn tell_making(&mut self, node: NodeId, epoch: u64) -> Option<Effect> {
        let (contact, making) = (self.contacts.get_mut(&node)?, self.state.making(node)?);
        if contact.making_told || (making.is_applied() && !contact.is_making_behind) {
            return None;
        }
        if making.version > self.durable && !canary::is_off(Rule::TellDurable) {
            self.held.insert(node);
            return None;
        }
        contact.making_told = true;
        Some(Effect::TellMaker { node, epoch, list: making.list() })
    }

    /// What is decided of the functions that are made at a node has changed.
    pub(super) fn making_changed(&mut self, node: NodeId) {
        if let Some(contact) = self.contacts.get_mut(&node) {
            contact.making_told = false;
            contact.pause = RETELL;
            self.ready.insert(node);
        }
    }

    /// What is in the slots of a node has changed by the entry of this index.
    pub(super) fn presets_changed(&mut self, node: NodeId, index: u64) {
        if let Some(contact) = self.contacts.get_mut(&node) {
            (contact.presets_index, contact.presets_told) = (index, false);
            contact.pause = RETELL;
            self.ready.insert(node);
        }
    }

    /// There is another borrower, which lenders may have named that were not understood without it: they are asked
    /// again.
    pub(super) fn ask_unheard(&mut self) {
        let state = &self.state;
        let unheard =
            |(node, contact): &(&NodeId, &mut Contact)| contact.has_promised && !state.is_heard(**node);
        for (node, contact) in self.contacts.iter_mut().filter(unheard) {
            contact.forget_promise();
            self.ready.insert(*node);
        }
    }

    /// A lender has to be told of this function, if it does not have what is decided.
    pub(super) fn order_changed(&mut self, key: FunctionKey) {
        let Some(function) = self.state.function(key) else { return };
        if let Some(contact) = self.contacts.get_mut(&key.node)
            && (!function.loan.is_settled() || !function.is_limited() || canary::is_off(Rule::WaitForLender))
        {
            contact.behind.insert(key.number, false);
            contact.pause = RETELL;
            self.ready.insert(key.node);
        }
    }
}

fn order(function: &Function) -> Order {
    Order {
        number: function.key.number,
        generation: function.generation,
        to: function.loan.assigned(),
        force: matches!(function.loan, Loan::Forced { .. } | Loan::Ended { .. } | Loan::Free),
        limits: function.limits,
    }
}
