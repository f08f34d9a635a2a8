//! How the manager lives and dies, and what its disk keeps.

use super::world::{Happening, World};
use crate::entry::{Change, Entry};
use crate::machine::Start;

impl World {
    /// Nobody uses what a node lends that the administrator has not waited for and the backup did not know.
    pub(super) fn forget_strangers(&mut self) {
        for node in &mut self.nodes {
            let is_stranger = self.checks.shadow.joined(node.id()).is_none();
            node.marks.values_mut().for_each(|mark| mark.is_old |= is_stranger);
        }
    }

    pub(super) fn disk_done(&mut self) {
        let Some(record) = self.driver.settle() else { return };
        self.is_durable(record.first, &record.entries);
        let last = record.first + record.entries.len() as u64 - 1;
        self.with_manager(|manager| manager.handle_durable(last));
    }

    pub(super) fn is_durable(&mut self, first: u64, entries: &[Entry]) {
        self.checks.durable(first, entries, &self.nodes);
        for entry in entries {
            match &entry.change {
                Change::NodeRemoved { id, .. } => {
                    self.counts.removals += 1;
                    self.nodes
                        .iter_mut()
                        .filter(|node| node.id() == *id)
                        .for_each(|node| node.is_removed = true);
                }
                Change::EpochBegun { restored: true, .. } => self.is_restoring = false,
                Change::RestoreEnded => self.forget_strangers(),
                _ => {}
            }
        }
    }

    pub(super) fn die(&mut self) {
        self.trace(|| "the manager dies".to_owned());
        self.counts.deaths += 1;
        let before = self.driver.disk.log.len();
        let had_pending = self.driver.pending.is_some();
        let whole = self.driver.die(&mut self.random);
        if let Some(record) = whole {
            self.is_durable(record.first, &record.entries);
        } else if had_pending && self.driver.disk.log.len() > before {
            self.counts.torn += 1;
        }
        // Connections end with it.
        self.driver.life += 1;
        self.tickets.clear();
        self.heard.clear();
    }

    pub(super) fn die_and_start(&mut self) {
        self.die();
        let ms = self.random.range(10, 4000);
        self.after_ms(ms, Happening::Start);
    }

    pub(super) fn start(&mut self) {
        if self.driver.manager.is_some() {
            return;
        }
        self.look_at_damage();
        let start = if self.is_restoring { Start::Restored { any_time: false } } else { Start::Plain };
        let (now, durable) = (self.both(), self.checks.shadow.index());
        match self.driver.start(now, start, durable) {
            Ok(state) => self.checks.started(&state),
            Err(damage) => return self.checks.fail(|| format!("the manager does not start: {damage}")),
        }
        self.drain();
    }

    /// What was acknowledged and is not what was written has to be noticed.
    pub(super) fn look_at_damage(&mut self) {
        if !self.faults.happens(&mut self.random, 200) {
            return;
        }
        let Ok(found) = self.driver.read(0) else { return };
        if let Some((at, bit)) = self.driver.flip(&mut self.random, found.len) {
            self.counts.flips += 1;
            let is_noticed = self.driver.read(0).is_err();
            self.driver.disk.log[at] ^= bit;
            if !is_noticed {
                self.checks.fail(|| format!("byte {at} of the log is damaged, and nobody notices"));
            }
        }
    }
}
