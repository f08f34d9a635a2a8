//! A node as the manager sees one: a lender with a table, a borrower with a list of its slots, both durable.

use std::collections::BTreeMap;

use base::ids::{LoanGeneration, NodeId};

use super::setting::FUNCTIONS;
use crate::model::{Assignment, FunctionKey};
use crate::report::{Holder, Identity, Order, Preset, PresetsId, Report, Reported, Said};
use crate::testing::{node_id, reported};

/// A row of a lender's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) generation: u64,
    pub(super) holder: Holder,
    /// The greatest generation that it ever had, also before a copy of the table was put back.
    pub(super) ever: u64,
    /// Whether who has it is by an older table: a borrower who was told since does not use it.
    pub(super) is_old: bool,
}

/// What is durable at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    pub(super) rows: BTreeMap<u32, Row>,
    pub(super) presets: Option<(PresetsId, Vec<Preset>)>,
}

#[derive(Debug)]
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
    /// The greatest epoch that it has promised to.
    pub(super) epoch: u64,
    pub(super) kept: Kept,
    /// An older copy of its folder.
    pub(super) copy: Option<Kept>,
}

/// What a manager sends to a node.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Greet { epoch: u64 },
    Orders { epoch: u64, orders: Vec<Order> },
    Presets { id: PresetsId, presets: Vec<Preset> },
}

/// A change of a lender's table, for checkers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    pub(super) key: FunctionKey,
    pub(super) generation: u64,
    pub(super) to: Option<Assignment>,
}

impl Node {
    pub(super) fn new(number: u64, identity: Option<Identity>) -> Self {
        let row = Row { generation: 0, holder: Holder::Nobody, ever: 0, is_old: false };
        let rows = (0..FUNCTIONS).map(|number| (number, row)).collect();
        Self {
            number,
            identity,
            is_removed: false,
            is_up: true,
            session: 1,
            hears_nothing: false,
            is_unheard: false,
            epoch: 0,
            kept: Kept { rows, presets: None },
            copy: None,
        }
    }

    pub(super) fn id(&self) -> NodeId {
        node_id(self.number)
    }

    pub(super) fn is_member(&self) -> bool {
        self.identity.is_some() && !self.is_removed
    }

    pub(super) fn inventory(&self) -> Option<Report> {
        let identity = self.identity.clone()?;
        let functions = self.kept.rows.keys().map(|number| self.function(*number)).collect();
        let presets = self.kept.presets.as_ref().map(|(id, _)| *id);
        Some(self.report(Said::Inventory { identity, functions, presets }))
    }

    fn function(&self, number: u32) -> Reported {
        let row = self.kept.rows[&number];
        reported(number, row.generation, row.holder)
    }

    fn report(&self, said: Said) -> Report {
        Report { epoch: self.epoch, said }
    }

    /// What it answers, and what has changed in its table.
    pub(super) fn hear(&mut self, told: &Told) -> (Vec<Report>, Vec<Accepted>) {
        match told {
            Told::Greet { epoch } if *epoch >= self.epoch => {
                self.epoch = *epoch;
                (self.inventory().into_iter().collect(), vec![])
            }
            Told::Orders { epoch, orders } if *epoch >= self.epoch => {
                self.epoch = *epoch;
                let accepted = orders.iter().filter_map(|order| self.obey(*order)).collect();
                let answers = orders.iter().filter(|order| self.kept.rows.contains_key(&order.number));
                let answers = answers.map(|order| self.report(Said::Function(self.function(order.number))));
                (answers.collect(), accepted)
            }
            Told::Presets { id, presets } if id.epoch >= self.epoch => {
                self.epoch = id.epoch;
                if self.kept.presets.as_ref().is_none_or(|(kept, _)| kept < id) {
                    self.kept.presets = Some((*id, presets.clone()));
                }
                let kept = self.kept.presets.as_ref().map(|(id, _)| *id);
                (kept.map(|id| self.report(Said::Presets(id))).into_iter().collect(), vec![])
            }
            _ => (vec![], vec![]),
        }
    }

    fn obey(&mut self, order: Order) -> Option<Accepted> {
        let key = FunctionKey { node: self.id(), number: order.number };
        let row = self.kept.rows.get_mut(&order.number)?;
        let generation = order.generation.0;
        if generation == row.generation
            && order.force
            && let Holder::Leaving { .. } = row.holder
        {
            row.holder = Holder::Nobody;
        }
        if generation <= row.generation {
            return None;
        }
        row.holder = match (order.to, row.holder) {
            (Some(to), _) => Holder::Assigned(to),
            (None, Holder::Assigned(from) | Holder::Leaving { from, .. }) if !order.force => {
                Holder::Leaving { from, forced: false }
            }
            (None, _) => Holder::Nobody,
        };
        row.generation = generation;
        row.is_old &= generation < row.ever || matches!(row.holder, Holder::Leaving { .. });
        row.ever = row.ever.max(generation);
        Some(Accepted { key, generation, to: order.to })
    }

    /// Whether this borrower still uses the function by an older generation than `generation`.
    pub(super) fn uses(&self, key: FunctionKey, generation: u64) -> bool {
        let presets = self.kept.presets.iter().flat_map(|(_, presets)| presets);
        presets.into_iter().any(|preset| preset.function == key && preset.generation.0 < generation)
    }

    /// The borrower has let go. Returns what it reports.
    pub(super) fn let_go(&mut self, number: u32) -> Option<Report> {
        let row = self.kept.rows.get_mut(&number)?;
        row.holder = Holder::Nobody;
        Some(self.report(Said::Function(self.function(number))))
    }

    /// The borrower was silent for too long.
    pub(super) fn hold_over(&self, number: u32) -> Report {
        let generation = LoanGeneration(self.kept.rows[&number].generation);
        self.report(Said::HoldOver { number, generation })
    }

    /// An older copy of its folder is put back. What it has promised stays: an operator who puts back that, too, and
    /// restores the manager at once, has two histories.
    pub(super) fn go_back(&mut self) {
        let Some(copy) = self.copy.take() else { return };
        let now = core::mem::replace(&mut self.kept, copy);
        for (number, now) in now.rows {
            if let Some(row) = self.kept.rows.get_mut(&number) {
                row.is_old = now.is_old || (row.generation, row.holder) != (now.generation, now.holder);
                row.ever = now.ever;
            }
        }
    }
}
