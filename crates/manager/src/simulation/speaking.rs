//! How nodes hear and are heard.

use super::node::Told;
use super::world::{Happening, World};
use crate::model::FunctionKey;
use crate::report::{Holder, Report};

impl World {
    pub(super) fn node_hears(&mut self, at: usize, told: &Told) {
        let node = &mut self.nodes[at];
        if !node.is_up || node.hears_nothing || !node.is_member() {
            return;
        }
        let (reports, accepted) = node.hear(told);
        accepted.iter().for_each(|accepted| self.checks.accepted(accepted));
        self.checks.tables(&self.nodes);
        reports.into_iter().for_each(|report| self.report(at, report));
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
        let rows = self.nodes[at].kept.rows.clone();
        for (number, row) in rows {
            let key = FunctionKey { node: id, number };
            match row.holder {
                Holder::Leaving { from, .. } => {
                    let borrower =
                        self.nodes.iter().find(|node| node.id() == from.borrower && node.is_member());
                    if borrower.is_none_or(|it| it.is_up && !it.uses(key, row.generation)) {
                        let report = self.nodes[at].let_go(number);
                        report.into_iter().for_each(|report| self.report(at, report));
                    }
                }
                Holder::Assigned(to) => {
                    let is_silent = self.nodes.iter().any(|node| node.id() == to.borrower && !node.is_up);
                    if is_silent && self.faults.happens(&mut self.random, 200) {
                        self.counts.hold_overs += 1;
                        let report = self.nodes[at].hold_over(number);
                        self.report(at, report);
                    }
                }
                Holder::Nobody => {}
            }
        }
        self.nodes[at].inventory().into_iter().for_each(|report| self.report(at, report));
    }
}
