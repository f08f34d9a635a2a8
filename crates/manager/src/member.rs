//! A node that belongs to a fabric, as far as the manager commands it: the table of what it lends, and what is in its
//! slots. A core without I/O, the same in the product and in the simulation.
//!
//! ```text
//! told ──► decided ──► Keep, durable ──► Act, the card acts by it ──► Say, the manager hears of it
//! ```
//!
//! Effects come in this order, for each function and for the slots. A node that is not told anything goes on by what is
//! durable; one that dies between two effects begins with that, and is told again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::ids::{LoanGeneration, NodeId};
use serde::{Deserialize, Serialize};

use crate::canary::{self, Rule};
use crate::model::{FUNCTIONS_PER_NODE_MAX, Limited, MadeId, MadeList, Name, Resource, Unmade};
use crate::report::{DeadRail, Holder, Identity, MadeSaid, Order, Preset, PresetsId, Report, Reported, Said};

/// Effects that wait. Of what is told while there are more, nothing is heeded: the manager tells it again.
pub const EFFECTS_MAX: usize = 4096;

/// What a manager says to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// See [`crate::Effect::Greet`].
    Greet {
        /// Its epoch.
        epoch: u64,
    },
    /// See [`crate::Effect::Recall`].
    Recall {
        /// Its epoch.
        epoch: u64,
    },
    /// See [`crate::Effect::TellLender`].
    Orders {
        /// Its epoch.
        epoch: u64,
        /// What is ordered.
        orders: Vec<Order>,
    },
    /// See [`crate::Effect::TellBorrower`].
    Presets {
        /// Which list.
        id: PresetsId,
        /// The slots that are not empty.
        presets: Vec<Preset>,
    },
    /// See [`crate::Effect::TellMaker`].
    Made {
        /// Its epoch.
        epoch: u64,
        /// All functions that are to be made here.
        list: MadeList,
    },
}

impl Told {
    /// Of which manager.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Greet { epoch } | Self::Recall { epoch } => *epoch,
            Self::Orders { epoch, .. } | Self::Made { epoch, .. } => *epoch,
            Self::Presets { id, .. } => id.epoch,
        }
    }
}

/// A row of a lender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Which assignment it is.
    pub generation: LoanGeneration,
    /// Who has the function.
    pub holder: Holder,
    /// What it may do; `None`: no manager has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limited>,
}

impl Row {
    /// Nothing was ever told of the function: lines open it.
    pub const UNMANAGED: Self = Self { generation: LoanGeneration(0), holder: Holder::Nobody, limits: None };
}

/// What is durable at a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The greatest epoch of a manager that it has heard of.
    pub epoch: u64,
    /// Its table, by the function's number.
    pub rows: BTreeMap<u32, Row>,
    /// What is in its slots.
    pub presets: Option<(PresetsId, Vec<Preset>)>,
    /// The functions that are to be made here; `None`: no manager has said any.
    pub made: Option<MadeList>,
}

impl Kept {
    /// The row of a function.
    pub fn row(&self, number: u32) -> Row {
        self.rows.get(&number).copied().unwrap_or(Row::UNMANAGED)
    }

    /// What is in its slots.
    pub fn presets(&self) -> &[Preset] {
        self.presets.as_ref().map_or(&[], |(_, presets)| presets)
    }

    /// The change was made.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Epoch(epoch) => self.epoch = *epoch,
            Change::Row { number, row } => drop(self.rows.insert(*number, *row)),
            Change::Presets { id, presets } => self.presets = Some((*id, presets.clone())),
            Change::Made(list) => self.made = Some(list.clone()),
        }
    }
}

/// A change of what is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The epoch.
    Epoch(u64),
    /// A row.
    Row {
        /// Of which function.
        number: u32,
        /// What it is now.
        row: Row,
    },
    /// The list of slots.
    Presets {
        /// Which list.
        id: PresetsId,
        /// The slots that are not empty.
        presets: Vec<Preset>,
    },
    /// The functions that are to be made.
    Made(MadeList),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Make this durable, and say so by [`Member::handle_kept`]: there is no other effect before. If it fails, begin
    /// anew with what is durable.
    Keep(Change),
    /// The card shall act by this row, and [`Member::handle_acted`] is told when it does.
    Act {
        /// Of which function.
        number: u32,
        /// The row.
        row: Row,
    },
    /// These slots shall be as [`Member::kept`] says now, and all others empty that a manager has filled.
    Plug,
    /// Functions shall be made, and those that were made earlier and are not named any more deleted, as
    /// [`Member::kept`] says now: nobody has these ([`Member::is_unused`]), or they wait until that is so
    /// ([`Member::give_up`]). Each has a number that no other one ever has, be it of the same name.
    /// [`Member::handle_made`] is told when all of that is so, but for what waits for its place on a medium only.
    Make,
    /// Say this to the manager. It may get lost.
    Say(Report),
}

enum Step {
    Keep(Change),
    Act(u32),
    Plug,
    Make,
    Say(What),
}

enum What {
    Inventory,
    Function(u32),
    Presets,
    HoldOver(u32),
    Rails,
    Memory,
}

/// A node that belongs to a fabric.
pub struct Member {
    identity: Identity,
    functions: BTreeMap<u32, (Name, Resource)>,
    durable: Kept,
    /// What is durable when all steps are done.
    decided: Kept,
    /// By which rows the card acts.
    acting: BTreeMap<u32, Row>,
    /// Functions whose borrower was silent for too long, by this generation.
    over: BTreeMap<u32, LoanGeneration>,
    /// Which list of functions is done, and what of it cannot be made.
    made: Option<(MadeId, Vec<Unmade>)>,
    /// Rails that do not work.
    rails: Vec<DeadRail>,
    /// Nodes that were removed, as far as it was told.
    revoked: Vec<NodeId>,
    steps: VecDeque<Step>,
    is_keeping: bool,
}

impl Member {
    /// One that begins with what is durable, by which its card acts from the start.
    pub fn new(identity: Identity, kept: Kept) -> Self {
        // What is durable may not have been made.
        let steps = if kept.made.is_some() { VecDeque::from([Step::Make]) } else { VecDeque::new() };
        Self {
            identity,
            functions: BTreeMap::new(),
            acting: kept.rows.clone(),
            decided: kept.clone(),
            durable: kept,
            over: BTreeMap::new(),
            made: None,
            rails: Vec::new(),
            revoked: Vec::new(),
            steps,
            is_keeping: false,
        }
    }

    /// Something could not be made durable: it goes on from what is, by which the card is told to act once more. What
    /// was told since is told again.
    pub fn begin_anew(&mut self, kept: Kept) {
        (self.decided, self.durable) = (kept.clone(), kept);
        (self.steps, self.is_keeping) = (VecDeque::new(), false);
        let rows: Vec<u32> = self.durable.rows.keys().copied().collect();
        self.push(rows.into_iter().map(Step::Act));
        self.push([Step::Plug, Step::Make]);
        self.say_inventory();
    }

    /// What is durable.
    pub fn kept(&self) -> &Kept {
        &self.durable
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// This is what it lends from now on: the first [`FUNCTIONS_PER_NODE_MAX`] of them. Rows of what it lends no more
    /// stay, for it may lend it again.
    pub fn set_functions(&mut self, functions: impl IntoIterator<Item = (u32, Name, Resource)>) {
        let functions = functions.into_iter().take(FUNCTIONS_PER_NODE_MAX);
        let functions: BTreeMap<_, _> = functions.map(|(number, name, it)| (number, (name, it))).collect();
        if functions != self.functions {
            self.functions = functions;
            self.say_inventory();
        }
    }

    /// These rails do not work, as far as it has found out: its own, and those of others.
    pub fn set_rails(&mut self, rails: Vec<DeadRail>) {
        if rails != self.rails && self.steps.len() < EFFECTS_MAX {
            self.rails = rails;
            self.push([Step::Say(What::Rails)]);
        }
    }

    /// These nodes were removed from the fabric, as far as it was told.
    pub fn set_revoked(&mut self, revoked: Vec<NodeId>) {
        self.revoked = revoked;
    }

    /// Says all that it has, when there is a reason to think that the manager may not know it.
    pub fn say_inventory(&mut self) {
        self.push([Step::Say(What::Inventory)]);
        let over: Vec<u32> = self.over.keys().copied().collect();
        self.push(over.into_iter().map(|number| Step::Say(What::HoldOver(number))));
    }

    /// A manager says something.
    pub fn handle_told(&mut self, told: &Told) {
        let epoch = told.epoch();
        let is_old = epoch < self.decided.epoch && !canary::is_off(Rule::RefuseOldEpochs);
        if is_old || self.steps.len() >= EFFECTS_MAX {
            return;
        }
        if epoch > self.decided.epoch {
            self.keep(Change::Epoch(epoch));
        }
        match told {
            Told::Greet { .. } => self.say_inventory(),
            Told::Recall { .. } => self.push([Step::Say(What::Memory)]),
            Told::Orders { orders, .. } => orders.iter().for_each(|order| self.obey(*order)),
            Told::Presets { id, presets } => {
                if self.decided.presets.as_ref().is_none_or(|(kept, _)| kept < id) {
                    self.keep(Change::Presets { id: *id, presets: presets.clone() });
                    self.push([Step::Plug]);
                }
                self.push([Step::Say(What::Presets)]);
            }
            Told::Made { list, .. } => {
                let is_old = |kept: &MadeList| kept.id >= list.id && !canary::is_off(Rule::RefuseOlderMade);
                if self.decided.made.as_ref().is_some_and(is_old) {
                    return self.say_inventory();
                }
                self.keep(Change::Made(list.clone()));
                self.push([Step::Make]);
            }
        }
    }

    /// This list is done, but for what is named here, which cannot be made: nothing that was made by an earlier one is
    /// left, and all else is lent, or will be when its place reads as zeroes. May be said again, with more of those.
    pub fn handle_made(&mut self, id: MadeId, refused: Vec<Unmade>) {
        let is_present = self.durable.made.as_ref().is_some_and(|list| list.id == id);
        let made = Some((id, refused));
        if is_present && self.made != made {
            self.made = made;
            self.say_inventory();
        }
    }

    /// Whether nobody has a function by what was told, nor by what the card acts by.
    pub fn is_unused(&self, number: u32) -> bool {
        let acting = self.acting.get(&number).copied().unwrap_or(Row::UNMANAGED);
        [acting, self.decided.row(number)].iter().all(|row| row.holder == Holder::Nobody)
    }

    /// A function is to be deleted, so whoever has it by the table has it no more: the manager deletes none that
    /// somebody has, so the table is an older copy.
    pub fn give_up(&mut self, number: u32) {
        let row = self.decided.row(number);
        let (generation, from) = match row.holder {
            Holder::Assigned(from) => (LoanGeneration(row.generation.0.saturating_add(1)), from),
            Holder::Leaving { from, forced: false } => (row.generation, from),
            Holder::Leaving { forced: true, .. } | Holder::Nobody => return,
        };
        self.over.remove(&number);
        self.set_row(number, Row { generation, holder: Holder::Leaving { from, forced: true }, ..row });
    }

    /// A function that was made is there no more, and there will be none of its number again: nothing is known of it.
    pub fn handle_deleted(&mut self, number: u32) {
        self.over.remove(&number);
        self.acting.remove(&number);
        self.decided.rows.remove(&number);
        self.durable.rows.remove(&number);
    }

    /// What was to be kept is durable.
    pub fn handle_kept(&mut self) {
        if core::mem::take(&mut self.is_keeping)
            && let Some(Step::Keep(change)) = self.steps.pop_front()
        {
            self.durable.apply(&change);
        }
    }

    /// The card acts by this row of a function.
    pub fn handle_acted(&mut self, number: u32, row: Row) {
        if self.acting.insert(number, row) != Some(row) {
            self.push([Step::Say(What::Function(number))]);
        }
    }

    /// Nobody has the function any more that was to be taken back by this generation: windows are revoked, DMA has
    /// ended, the function is reset.
    pub fn handle_let_go(&mut self, number: u32, generation: LoanGeneration) {
        let row = self.decided.row(number);
        if row.generation == generation && matches!(row.holder, Holder::Leaving { .. }) {
            self.over.remove(&number);
            self.set_row(number, Row { holder: Holder::Nobody, ..row });
        }
    }

    /// The borrower of a function was silent for longer than it is held.
    pub fn handle_hold_over(&mut self, number: u32, generation: LoanGeneration) {
        let row = self.decided.row(number);
        if row.generation == generation && matches!(row.holder, Holder::Assigned(_)) {
            self.over.insert(number, generation);
            self.push([Step::Say(What::HoldOver(number))]);
        }
    }

    /// The borrower is heard again, before the manager has decided anything.
    pub fn handle_heard(&mut self, number: u32) {
        self.over.remove(&number);
    }

    /// What is to be done next: to be called until there is nothing, after each `handle_*`.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        loop {
            if self.is_keeping {
                return None;
            }
            match self.steps.front()? {
                Step::Keep(change) => {
                    self.is_keeping = true;
                    return Some(Effect::Keep(change.clone()));
                }
                Step::Act(number) => {
                    let (number, row) = (*number, self.durable.row(*number));
                    self.steps.pop_front();
                    return Some(Effect::Act { number, row });
                }
                Step::Plug => {
                    self.steps.pop_front();
                    return Some(Effect::Plug);
                }
                Step::Make => {
                    self.steps.pop_front();
                    return Some(Effect::Make);
                }
                Step::Say(what) => {
                    let said = self.said(what);
                    self.steps.pop_front();
                    if let Some(said) = said {
                        return Some(Effect::Say(Report { epoch: self.durable.epoch, said }));
                    }
                }
            }
        }
    }

    /// A lower generation is refused, an equal one changes nothing but that a function which is being taken back is now
    /// taken by force.
    fn obey(&mut self, order: Order) {
        let Order { number, generation, to, force, limits } = order;
        if !self.functions.contains_key(&number) {
            return;
        }
        let row = self.decided.row(number);
        let holder = match row.holder {
            _ if generation < row.generation && !canary::is_off(Rule::RefuseLowerGenerations) => None,
            Holder::Leaving { from, forced: false } if generation == row.generation && force => {
                Some(Holder::Leaving { from, forced: true })
            }
            _ if generation <= row.generation && !canary::is_off(Rule::RefuseLowerGenerations) => None,
            holder => Some(match (to, holder) {
                (Some(to), _) => Holder::Assigned(to),
                (None, Holder::Assigned(from)) => Holder::Leaving { from, forced: force },
                (None, Holder::Leaving { from, forced }) => Holder::Leaving { from, forced: forced || force },
                (None, Holder::Nobody) => Holder::Nobody,
            }),
        };
        let is_old = |told: &Limited| row.limits.is_some_and(|has| told.id < has.id);
        let told = limits.filter(|told| !is_old(told) || canary::is_off(Rule::RefuseOlderLimits));
        let limits = told.or(row.limits);
        match holder {
            Some(holder) => {
                self.over.remove(&number);
                self.set_row(number, Row { generation, holder, limits });
            }
            None if limits != row.limits => self.set_row(number, Row { limits, ..row }),
            None => self.push([Step::Say(What::Function(number))]),
        }
    }

    fn set_row(&mut self, number: u32, row: Row) {
        self.keep(Change::Row { number, row });
        self.push([Step::Act(number)]);
    }

    fn keep(&mut self, change: Change) {
        self.decided.apply(&change);
        self.push([Step::Keep(change)]);
    }

    fn push(&mut self, steps: impl IntoIterator<Item = Step>) {
        self.steps.extend(steps);
    }

    fn said(&self, what: &What) -> Option<Said> {
        match what {
            What::Inventory => {
                let functions = self.functions.keys().filter_map(|number| self.reported(*number)).collect();
                let presets = self.durable.presets.as_ref().map(|(id, _)| *id);
                let made = self.durable.made.clone().map(|list| {
                    let done = self.made.as_ref().filter(|(id, _)| *id == list.id);
                    let refused = done.map_or(Vec::new(), |(_, refused)| refused.clone());
                    MadeSaid { list, is_done: done.is_some(), refused }
                });
                let (identity, rails) = (self.identity.clone(), self.rails.clone());
                Some(Said::Inventory { identity, functions, presets, made, rails })
            }
            What::Function(number) => self.reported(*number).map(Said::Function),
            What::Presets => self.durable.presets.as_ref().map(|(id, _)| Said::Presets(*id)),
            What::HoldOver(number) => {
                let generation = *self.over.get(number)?;
                Some(Said::HoldOver { number: *number, generation })
            }
            What::Memory => {
                let (presets, revoked) = (self.durable.presets().to_vec(), self.revoked.clone());
                Some(Said::Memory { presets, revoked })
            }
            What::Rails => Some(Said::Rails(self.rails.clone())),
        }
    }

    /// A function as the card acts by it: what is durable only may still be refused to nobody.
    fn reported(&self, number: u32) -> Option<Reported> {
        let (name, resource) = self.functions.get(&number)?.clone();
        let row = if canary::is_off(Rule::SayActed) {
            self.decided.row(number)
        } else {
            self.acting.get(&number).copied().unwrap_or(Row::UNMANAGED)
        };
        Some(Reported {
            number,
            name,
            resource,
            generation: row.generation,
            holder: row.holder,
            limits: row.limits,
        })
    }

    /// Numbers of functions that it lends.
    pub fn functions(&self) -> BTreeSet<u32> {
        self.functions.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::model::{Assignment, Limits, LimitsId, Made, OnSilence, Place};
    use crate::testing::{fabric, identity, make, node_id, reported};
    use base::ids::{DomainId, Group};

    fn assignment(node: u64, slot: u16) -> Assignment {
        let place = Place { domain: DomainId(33), slot };
        Assignment { borrower: node_id(node), place, group: Group::DEFAULT, on_silence: OnSilence::default() }
    }

    fn member() -> Member {
        let mut member = Member::new(identity(&fabric(), 1), Kept::default());
        let Reported { name, resource, .. } = reported(0, 0, Holder::Nobody);
        member.set_functions([(0, name, resource)]);
        while member.poll_effect().is_some() {}
        member
    }

    fn order(generation: u64, to: bool, force: bool) -> Told {
        let order = Order {
            number: 0,
            generation: LoanGeneration(generation),
            to: to.then(|| assignment(2, 0)),
            force,
            limits: None,
        };
        Told::Orders { epoch: 1, orders: vec![order] }
    }

    /// Does what is to be done, but for what `stop` says.
    fn drive(member: &mut Member, acts: bool) -> Vec<Effect> {
        let mut done = Vec::new();
        while let Some(effect) = member.poll_effect() {
            match &effect {
                Effect::Keep(_) => member.handle_kept(),
                Effect::Act { number, row } if acts => member.handle_acted(*number, *row),
                _ => {}
            }
            done.push(effect);
        }
        done
    }

    fn generations(effects: &[Effect]) -> Vec<u64> {
        let said = |effect: &Effect| match effect {
            Effect::Say(Report { said: Said::Function(it), .. }) => Some(it.generation.0),
            _ => None,
        };
        effects.iter().filter_map(said).collect()
    }

    #[test]
    fn nothing_is_done_before_it_is_durable_nor_said_before_it_is_done() {
        let mut member = member();
        member.handle_told(&order(5, true, false));
        assert_eq!(member.poll_effect(), Some(Effect::Keep(Change::Epoch(1))));
        assert_eq!(member.poll_effect(), None, "what follows waits");
        member.handle_kept();
        assert!(matches!(member.poll_effect(), Some(Effect::Keep(Change::Row { number: 0, .. }))));
        assert_eq!((member.kept().row(0), member.poll_effect()), (Row::UNMANAGED, None));
        member.handle_kept();
        let acts = drive(&mut member, false);
        assert!(matches!(acts[..], [Effect::Act { number: 0, .. }]), "{acts:?}");
        // Asked meanwhile it says what the card does.
        member.handle_told(&order(5, true, false));
        assert_eq!(generations(&drive(&mut member, false)), [0]);
        member.handle_acted(0, member.kept().row(0));
        assert_eq!(generations(&drive(&mut member, false)), [5]);
    }

    #[test]
    fn lower_generations_and_older_epochs_change_nothing() {
        let mut member = member();
        member.handle_told(&order(5, true, false));
        drive(&mut member, true);
        let before = member.kept().clone();
        member.handle_told(&order(4, false, true));
        member.handle_told(&order(5, false, true));
        assert_eq!(generations(&drive(&mut member, true)), [5, 5]);
        member.handle_told(&Told::Greet { epoch: 9 });
        drive(&mut member, true);
        member.handle_told(&order(6, false, true));
        assert_eq!(drive(&mut member, true), []);
        assert_eq!((member.kept().row(0), member.kept().epoch), (before.row(0), 9));
    }

    #[test]
    fn what_is_taken_back_is_free_when_it_was_let_go_of() {
        let mut member = member();
        member.handle_told(&order(5, true, false));
        member.handle_told(&order(6, false, false));
        drive(&mut member, true);
        let leaving = |forced| Holder::Leaving { from: assignment(2, 0), forced };
        assert_eq!(member.kept().row(0).holder, leaving(false));
        member.handle_told(&order(6, false, true));
        drive(&mut member, true);
        assert_eq!(member.kept().row(0).holder, leaving(true));
        member.handle_let_go(0, LoanGeneration(5));
        assert_eq!(drive(&mut member, true), [], "that is past");
        member.handle_let_go(0, LoanGeneration(6));
        let done = drive(&mut member, true);
        assert_eq!((member.kept().row(0).holder, generations(&done)), (Holder::Nobody, vec![6]));
    }

    /// What the disk has taken all the same is acted by before it is said.
    #[test]
    fn what_could_not_be_kept_begins_anew() {
        let mut member = member();
        member.handle_told(&order(5, true, false));
        drive(&mut member, true);
        member.handle_told(&order(6, false, false));
        assert!(matches!(member.poll_effect(), Some(Effect::Keep(_))));
        let mut kept = member.kept().clone();
        let row = Row { generation: LoanGeneration(6), holder: Holder::Nobody, limits: None };
        kept.apply(&Change::Row { number: 0, row });
        member.begin_anew(kept);
        assert_eq!(member.poll_effect(), Some(Effect::Act { number: 0, row }));
        let said = drive(&mut member, false);
        let Some(Effect::Say(Report { said: Said::Inventory { functions, .. }, .. })) = said.last() else {
            panic!("{said:?}");
        };
        assert_eq!(functions[0].generation, LoanGeneration(5), "the card has not come to it yet");
        member.handle_acted(0, row);
        assert_eq!(generations(&drive(&mut member, true)), [6]);
    }

    #[test]
    fn a_list_of_slots_is_followed_by_newer_ones_only() {
        let mut member = member();
        let list = |index| Told::Presets { id: PresetsId { epoch: 1, index }, presets: vec![] };
        member.handle_told(&list(7));
        let done = drive(&mut member, true);
        assert!(done.contains(&Effect::Plug), "{done:?}");
        member.handle_told(&list(6));
        let done = drive(&mut member, true);
        let said = Said::Presets(PresetsId { epoch: 1, index: 7 });
        assert_eq!(done, [Effect::Say(Report { epoch: 1, said })]);
    }

    #[test]
    fn who_was_silent_for_too_long_is_named_until_something_is_decided() {
        let mut member = member();
        member.handle_told(&order(5, true, false));
        drive(&mut member, true);
        member.handle_hold_over(0, LoanGeneration(4));
        assert_eq!(drive(&mut member, true), []);
        let is_over =
            |effect: &Effect| matches!(effect, Effect::Say(it) if matches!(it.said, Said::HoldOver { .. }));
        member.handle_hold_over(0, LoanGeneration(5));
        assert!(drive(&mut member, true).iter().any(is_over));
        member.handle_told(&Told::Greet { epoch: 2 });
        assert!(drive(&mut member, true).iter().any(is_over));
        let taken = Told::Orders {
            epoch: 2,
            orders: match order(6, false, true) {
                Told::Orders { orders, .. } => orders,
                _ => vec![],
            },
        };
        member.handle_told(&taken);
        member.handle_told(&Told::Greet { epoch: 2 });
        assert!(!drive(&mut member, true).iter().any(is_over));
    }

    fn list(index: u64, names: &[&str]) -> MadeList {
        let id = MadeId { epoch: 1, index };
        let made = |called: &&str| {
            let Command::MakeFunction { shape, .. } = make(&format!("store/{called}"), 1) else { panic!() };
            Made { name: called.parse().unwrap(), id, shape }
        };
        MadeList { id, functions: names.iter().map(made).collect() }
    }

    fn said_made(effects: &[Effect]) -> Option<MadeSaid> {
        let said = |effect: &Effect| match effect {
            Effect::Say(Report { said: Said::Inventory { made, .. }, .. }) => made.clone(),
            _ => None,
        };
        effects.iter().rev().find_map(said)
    }

    #[test]
    fn functions_are_made_when_that_is_durable_and_newer_and_are_said_to_be_when_they_are() {
        let mut member = member();
        member.handle_told(&Told::Made { epoch: 1, list: list(7, &["fast"]) });
        let done = drive(&mut member, true);
        let keeps = done.iter().position(|effect| matches!(effect, Effect::Keep(Change::Made(_))));
        let makes = done.iter().position(|effect| *effect == Effect::Make);
        assert!(keeps.is_some() && keeps < makes, "{done:?}");
        member.handle_made(MadeId { epoch: 1, index: 6 }, vec![]);
        assert_eq!(drive(&mut member, true), [], "that is past");
        // An older list changes nothing, and is answered with what is so.
        member.handle_told(&Told::Made { epoch: 1, list: list(6, &[]) });
        let said = said_made(&drive(&mut member, true)).unwrap();
        assert_eq!((said.list, said.is_done), (list(7, &["fast"]), false));
        let refused = vec![Unmade { name: "fast".parse().unwrap(), why: "no room".to_owned() }];
        member.handle_made(MadeId { epoch: 1, index: 7 }, refused.clone());
        let said = said_made(&drive(&mut member, true)).unwrap();
        assert_eq!((said.is_done, &said.refused), (true, &refused));
        member.handle_made(MadeId { epoch: 1, index: 7 }, refused);
        assert_eq!(drive(&mut member, true), [], "that is known");
        // What was durable when it died is made, and said anew.
        let mut next = Member::new(member.identity().clone(), member.kept().clone());
        assert_eq!(next.poll_effect(), Some(Effect::Make));
        next.say_inventory();
        assert!(!said_made(&drive(&mut next, true)).unwrap().is_done);
    }

    /// By an older copy of its table somebody has a function that was deleted.
    #[test]
    fn who_has_what_is_to_be_deleted_loses_it_and_nothing_is_left_of_that() {
        let mut member = member();
        assert!(member.is_unused(0));
        member.handle_told(&order(5, true, false));
        drive(&mut member, true);
        assert!(!member.is_unused(0));
        member.give_up(0);
        drive(&mut member, false);
        assert!(!member.is_unused(0), "the card has yet to hear of it");
        let row = member.kept().row(0);
        assert_eq!(row.holder, Holder::Leaving { from: assignment(2, 0), forced: true });
        assert_eq!(row.generation, LoanGeneration(6));
        member.handle_acted(0, row);
        member.give_up(0);
        member.handle_let_go(0, LoanGeneration(6));
        drive(&mut member, true);
        assert!(member.is_unused(0));
        member.handle_deleted(0);
        assert_eq!((member.kept().rows.len(), member.kept().row(0)), (0, Row::UNMANAGED));
    }

    fn limits(index: u64, iops: u64) -> Limited {
        let limits = Limits { iops: core::num::NonZeroU64::new(iops), bytes_per_s: None };
        Limited { id: LimitsId { epoch: 1, index }, limits }
    }

    #[test]
    fn limits_are_told_apart_from_assignments_and_the_newer_ones_count() {
        let mut member = member();
        let mut tell = |generation, limits| {
            let to = Some(assignment(2, 0));
            let order = Order { number: 0, generation: LoanGeneration(generation), to, force: false, limits };
            member.handle_told(&Told::Orders { epoch: 1, orders: vec![order] });
            while let Some(effect) = member.poll_effect() {
                match effect {
                    Effect::Keep(_) => member.handle_kept(),
                    Effect::Act { number, row } => member.handle_acted(number, row),
                    Effect::Plug | Effect::Make | Effect::Say(_) => {}
                }
            }
            member.handle_hold_over(0, LoanGeneration(1));
            let said = member.reported(0).unwrap();
            (said.generation.0, said.limits, member.over.contains_key(&0))
        };
        assert_eq!(tell(1, None), (1, None, true));
        assert_eq!(tell(1, Some(limits(7, 100))), (1, Some(limits(7, 100)), true), "its loan goes on");
        assert_eq!(tell(1, Some(limits(6, 50))), (1, Some(limits(7, 100)), true), "older");
        assert_eq!(tell(1, None), (1, Some(limits(7, 100)), true), "of a manager that knows none");
        assert_eq!(tell(2, Some(limits(8, 0))), (2, Some(limits(8, 0)), false), "both at once");
    }
}
