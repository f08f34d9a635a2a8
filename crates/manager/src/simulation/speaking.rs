//! How nodes hear and are heard.

use super::node::Mishaps;
use super::world::{Happening, World};
use crate::member::Told;
use crate::model::FunctionKey;
use crate::report::{Holder, Report};

impl World {
    pub(super) fn node_hears(&mut self, at: usize, told: &Told) {
        let node = &mut self.nodes[at];
        if !node.is_up || node.hears_nothing || !node.is_member() {
            return;
        }
        let (promised, epoch) = (node.kept.epoch, told.epoch());
        node.hear(told);
        if self.drive_node(at) && epoch < promised {
            self.checks.fail(|| format!("a node that has promised epoch {promised} has obeyed {epoch}"));
        }
    }

    /// A node does what it has to. Whether its table has changed.
    pub(super) fn drive_node(&mut self, at: usize) -> bool {
        let rate = |rate| if self.faults.is_on { rate } else { 0 };
        let (deaths, late) = (rate(5), rate(300));
        let mut mishaps = Mishaps { random: &mut self.random, deaths, late };
        let (reports, accepted, deleted) = self.nodes[at].drive(&mut mishaps);
        self.counts.deleted += deleted.len() as u64;
        deleted.iter().for_each(|deleted| self.checks.deleted(deleted));
        accepted.iter().for_each(|accepted| self.checks.accepted(accepted));
        self.checks.tables(&self.nodes);
        reports.into_iter().for_each(|report| self.report(at, report));
        !accepted.is_empty()
    }

    pub(super) fn report(&mut self, at: usize, report: Report) {
        let (session, life) = (self.nodes[at].session, self.driver.life);
        let copies = 1 + u64::from(self.faults.happens(&mut self.random, self.faults.repeat));
        for _ in 0..copies {
            if let Some(us) = self.faults.delay_us(&mut self.random) {
                let report = report.clone();
                self.after_us(us, Happening::ToManager { node: at, session, life, report });
            }
        }
    }

    pub(super) fn manager_hears(&mut self, at: usize, session: u64, life: u64, report: &Report) {
        let node = &self.nodes[at];
        if self.driver.manager.is_none()
            || session != node.session
            || life != self.driver.life
            || node.is_unheard
            || !node.is_member()
        {
            return;
        }
        let (id, now) = (node.id(), self.both());
        self.trace(|| format!("{id} says {report:?}"));
        let last = self.heard.insert(at, self.now);
        self.with_manager(|manager| {
            if last.is_none() {
                manager.handle_reachable(id);
            }
            manager.handle_report(now, id, report);
        });
    }

    pub(super) fn node_tick(&mut self, at: usize) {
        let ms = self.random.range(500, 2000);
        self.after_ms(ms, Happening::NodeTick { node: at });
        if self.nodes.get(at).is_none_or(|node| !node.is_up || !node.is_member()) {
            return;
        }
        let id = self.nodes[at].id();
        self.nodes[at].catch_up();
        let deleted = self.nodes[at].follow_made();
        self.counts.cleared += core::mem::take(&mut self.nodes[at].cleared);
        self.counts.deleted += deleted.len() as u64;
        deleted.iter().for_each(|deleted| self.checks.deleted(deleted));
        self.drive_node(at);
        let rows = self.nodes[at].kept.rows.clone();
        for (number, row) in rows {
            let key = FunctionKey { node: id, number };
            match row.holder {
                Holder::Leaving { forced: true, .. } => self.nodes[at].let_go(number),
                Holder::Leaving { from, .. } => {
                    let borrower =
                        self.nodes.iter().find(|node| node.id() == from.borrower && node.is_member());
                    if borrower.is_none_or(|it| it.is_up && !it.uses(key, row.generation.0)) {
                        self.nodes[at].let_go(number);
                    }
                }
                Holder::Assigned(to) => {
                    let is_silent = self.nodes.iter().any(|node| node.id() == to.borrower && !node.is_up);
                    if is_silent && self.faults.happens(&mut self.random, 200) {
                        self.counts.hold_overs += 1;
                        self.nodes[at].hold_over(number);
                    }
                }
                Holder::Nobody => {}
            }
        }
        self.nodes[at].say_inventory();
        self.drive_node(at);
    }
}
