//! A node as the manager sees one: the product's core ([`Member`]) over a disk and a card of its own.

use std::collections::{BTreeMap, BTreeSet};

use base::Random;
use base::ids::{LoanGeneration, NodeId, RailId};

use super::making::{Deleted, Table};
use super::setting::FUNCTIONS;
use crate::machine::RAILS_SAID_MAX;
use crate::member::{Change, Effect, Kept, Member, Row, Told};
use crate::model::{Assignment, FunctionKey, Limited, LimitsId};
use crate::report::{DeadRail, Holder, Identity, Preset, Report};
use crate::testing::node_id;

/// What nobody but the checkers knows of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mark {
    /// The greatest generation that the row ever had, also before a copy of the table was put back.
    pub(super) ever: u64,
    /// The greatest one that the card has acted by.
    pub(super) acted: u64,
    /// The last decision about limits that the card has acted by.
    pub(super) limits: Option<LimitsId>,
    /// Whether who has it is by an older table: a borrower who was told since does not use it.
    pub(super) is_old: bool,
}

pub(super) struct Node {
    pub(super) number: u64,
    /// What its certificate says; `None`: it has not joined yet.
    pub(super) identity: Option<Identity>,
    pub(super) is_removed: bool,
    pub(super) is_up: bool,
    /// Which connection this is: messages of older ones are lost.
    pub(super) session: u64,
    /// Cut one way.
    pub(super) hears_nothing: bool,
    pub(super) is_unheard: bool,
    /// What is durable.
    pub(super) kept: Kept,
    pub(super) marks: BTreeMap<u32, Mark>,
    /// What it has made, durable.
    pub(super) made: Table,
    /// What was made is not what was told last.
    pub(super) makes: bool,
    /// Of which functions it clears the places, by their numbers, and how often it has looked.
    pub(super) clearing: BTreeMap<u32, u64>,
    /// How many it has cleared so.
    pub(super) cleared: u64,
    /// Whether an older copy of its folder was ever put back.
    pub(super) was_copied: bool,
    /// The process; none: it has not joined.
    pub(super) member: Option<Member>,
    /// What the card was told and does not act by yet.
    pub(super) acts: Vec<(u32, Row)>,
    /// An older copy of its folder.
    pub(super) copy: Option<(Kept, Table)>,
    /// Rails that it finds dead, each once.
    pub(super) rails: BTreeMap<(NodeId, RailId), DeadRail>,
    /// Those that it ever found dead.
    pub(super) doubted: BTreeSet<(NodeId, RailId)>,
}

/// A change of a lender's table, for checkers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    pub(super) key: FunctionKey,
    pub(super) generation: u64,
    /// The one before.
    pub(super) before: u64,
    pub(super) to: Option<Assignment>,
    /// Limits before, and now.
    pub(super) limits: [Option<Limited>; 2],
}

/// What goes wrong in a node while it does what it was told.
pub(super) struct Mishaps<'a> {
    pub(super) random: &'a mut Random,
    /// Of a thousand effects, before so many the process dies.
    pub(super) deaths: u64,
    /// Of a thousand orders the card takes so many later.
    pub(super) late: u64,
}

impl Node {
    pub(super) fn new(number: u64, identity: Option<Identity>) -> Self {
        let mut node = Self {
            number,
            identity: None,
            is_removed: false,
            is_up: true,
            session: 1,
            hears_nothing: false,
            is_unheard: false,
            kept: Kept::default(),
            marks: (0..FUNCTIONS).map(|number| (number, Mark::default())).collect(),
            made: Table::new(),
            makes: false,
            clearing: BTreeMap::new(),
            cleared: 0,
            was_copied: false,
            member: None,
            acts: Vec::new(),
            copy: None,
            rails: BTreeMap::new(),
            doubted: BTreeSet::new(),
        };
        if let Some(identity) = identity {
            node.join(identity);
        }
        node
    }

    pub(super) fn id(&self) -> NodeId {
        node_id(self.number)
    }

    pub(super) fn is_member(&self) -> bool {
        self.identity.is_some() && !self.is_removed
    }

    pub(super) fn join(&mut self, identity: Identity) {
        self.identity = Some(identity);
        self.begin();
    }

    /// A process begins with what is durable.
    pub(super) fn begin(&mut self) {
        let Some(identity) = self.identity.clone() else { return };
        let mut member = Member::new(identity, self.kept.clone());
        member.set_functions(self.lent());
        for (number, row) in &self.kept.rows {
            let mark = self.marks.entry(*number).or_default();
            mark.acted = mark.acted.max(row.generation.0);
            mark.limits = mark.limits.max(row.limits.map(|limited| limited.id));
        }
        member.set_rails(self.rails.values().copied().collect());
        (self.member, self.acts) = (Some(member), Vec::new());
        self.clearing.clear();
    }

    /// It finds this rail dead from now on, or no more.
    pub(super) fn doubt(&mut self, rail: DeadRail) {
        let key = (rail.node, rail.rail);
        if self.rails.remove(&key).is_none() && self.rails.len() < RAILS_SAID_MAX {
            self.rails.insert(key, rail);
            self.doubted.insert(key);
        }
        if let Some(member) = &mut self.member {
            member.set_rails(self.rails.values().copied().collect());
        }
    }

    pub(super) fn hear(&mut self, told: &Told) {
        if let Some(member) = &mut self.member {
            member.handle_told(told);
        }
    }

    pub(super) fn say_inventory(&mut self) {
        if let Some(member) = &mut self.member {
            member.say_inventory();
        }
    }

    /// The card comes to what it was told.
    pub(super) fn catch_up(&mut self) {
        if let Some(member) = &mut self.member {
            for (number, row) in self.acts.drain(..) {
                let mark = self.marks.entry(number).or_default();
                mark.acted = mark.acted.max(row.generation.0);
                mark.limits = mark.limits.max(row.limits.map(|limited| limited.id));
                member.handle_acted(number, row);
            }
        }
    }

    /// Does what is to be done. What it reports, and what has changed in its table.
    pub(super) fn drive(&mut self, mishaps: &mut Mishaps<'_>) -> (Vec<Report>, Vec<Accepted>, Vec<Deleted>) {
        let (mut reports, mut accepted, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(effect) = self.member.as_mut().and_then(Member::poll_effect) {
            if mishaps.random.chance(mishaps.deaths) {
                self.begin();
                break;
            }
            match effect {
                Effect::Keep(change) => {
                    accepted.extend(self.keep(&change));
                    self.member.iter_mut().for_each(Member::handle_kept);
                }
                Effect::Act { number, row } => {
                    // What the card is told later replaces what it was told before.
                    self.acts.retain(|(other, _)| *other != number);
                    self.acts.push((number, row));
                    if !mishaps.random.chance(mishaps.late) {
                        self.catch_up();
                    }
                }
                Effect::Plug => {}
                Effect::Make => {
                    self.makes = true;
                    if !mishaps.random.chance(mishaps.late) {
                        deleted.extend(self.follow_made());
                    }
                }
                Effect::Say(report) => reports.push(report),
            }
        }
        (reports, accepted, deleted)
    }

    fn keep(&mut self, change: &Change) -> Option<Accepted> {
        let before = self.kept.clone();
        self.kept.apply(change);
        let Change::Row { number, row } = change else { return None };
        let limits = [before.row(*number).limits, row.limits];
        let (before, mark) = (before.row(*number).generation.0, self.marks.entry(*number).or_default());
        let generation = row.generation.0;
        mark.is_old &= generation < mark.ever || matches!(row.holder, Holder::Leaving { .. });
        mark.ever = mark.ever.max(generation);
        let to = match row.holder {
            Holder::Assigned(to) => Some(to),
            Holder::Nobody | Holder::Leaving { .. } => None,
        };
        let key = FunctionKey { node: self.id(), number: *number };
        Some(Accepted { key, generation, before, to, limits })
    }

    /// Whether this borrower still uses the function by an older generation than `generation`.
    pub(super) fn uses(&self, key: FunctionKey, generation: u64) -> bool {
        self.kept
            .presets()
            .iter()
            .any(|preset: &Preset| preset.function == key && preset.generation.0 < generation)
    }

    /// The borrower has let go.
    pub(super) fn let_go(&mut self, number: u32) {
        let generation = self.kept.row(number).generation;
        self.member.iter_mut().for_each(|member| member.handle_let_go(number, generation));
    }

    /// The borrower was silent for too long.
    pub(super) fn hold_over(&mut self, number: u32) {
        let generation = self.kept.row(number).generation;
        self.member.iter_mut().for_each(|member| member.handle_hold_over(number, generation));
    }

    /// Its table has a greater generation than anybody has given it.
    pub(super) fn lie(&mut self, number: u32, by: u64, forget: bool) {
        let mut row = self.kept.row(number);
        row.generation = LoanGeneration(row.generation.0 + by);
        if forget {
            row.holder = Holder::Nobody;
        }
        self.kept.rows.insert(number, row);
        let mark = self.marks.entry(number).or_default();
        mark.ever = mark.ever.max(row.generation.0);
        self.begin();
    }

    /// Whether a copy of its folder was made now; else there is one.
    pub(super) fn make_copy(&mut self) -> bool {
        let is_new = self.copy.is_none();
        self.copy.get_or_insert_with(|| (self.kept.clone(), self.made.clone()));
        is_new
    }

    /// An older copy of its folder is put back. What it has promised stays: an operator who puts back that, too, and
    /// restores the manager at once, has two histories.
    pub(super) fn go_back(&mut self) {
        let Some((copy, made)) = self.copy.take() else { return };
        (self.made, self.was_copied) = (made, true);
        let epoch = self.kept.epoch;
        let now = core::mem::replace(&mut self.kept, copy);
        self.kept.epoch = epoch;
        for (number, mark) in &mut self.marks {
            mark.is_old |= self.kept.row(*number) != now.row(*number);
        }
        self.begin();
    }
}
