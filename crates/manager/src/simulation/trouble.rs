//! What goes wrong, one thing after the other.

use super::world::{Happening, World};

impl World {
    pub(super) fn trouble(&mut self) {
        if !self.faults.is_on {
            return;
        }
        let ms = self.random.range(200, 2000);
        self.after_ms(ms, Happening::Trouble);
        let at = self.random.index(self.nodes.len());
        match self.random.below(10) {
            0 if self.driver.manager.is_some() => self.die_and_start(),
            1 => {
                let node = &mut self.nodes[at];
                node.is_up = !node.is_up;
                node.session += 1;
                node.begin();
                self.counts.reboots += 1;
            }
            2 => {
                let cut = self.random.below(4);
                let node = &mut self.nodes[at];
                (node.hears_nothing, node.is_unheard) = (cut & 1 != 0, cut & 2 != 0);
                self.counts.cuts += 1;
            }
            3 if self.faults.lies => self.lie(at),
            4 if self.faults.copies => self.copy(at),
            5 if self.faults.members => self.change_members(),
            6 if self.faults.restore => self.restore(),
            8 => self.doubt(at),
            7 => self.wall_s = self.random.range(0, 600) as i64 - 300,
            _ => {
                // Most trouble ends soon.
                let node = &mut self.nodes[at];
                (node.is_up, node.hears_nothing, node.is_unheard) = (true, false, false);
            }
        }
    }

    /// A lender has a greater generation than anybody has given it.
    pub(super) fn lie(&mut self, at: usize) {
        let number = self.random.below(3) as u32;
        let by = self.random.range(1000, 1_000_000);
        let node = &mut self.nodes[at];
        if node.is_member() {
            node.lie(number, by, self.random.chance(300));
            self.counts.lies += 1;
        }
    }

    pub(super) fn copy(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.make_copy() {
            node.go_back();
            node.session += 1;
            self.counts.copies += 1;
        }
    }

    /// First a backup is made, later it is put back.
    pub(super) fn restore(&mut self) {
        let Some(backup) = self.backup.take() else {
            if self.driver.manager.is_some() && !self.is_restoring {
                self.backup = Some(self.driver.disk.clone());
            }
            return;
        };
        if self.driver.manager.is_some() {
            self.die_and_start();
        }
        self.trace(|| "a backup is put back".to_owned());
        self.driver.disk = backup;
        let Ok(found) = self.driver.read(0) else { return self.checks.fail(|| "no backup".to_owned()) };
        self.driver.disk.log.truncate(found.len);
        let index = found.state.index();
        self.checks.go_back(found.state);
        for client in &mut self.clients {
            client.pending.iter_mut().for_each(|pending| pending.after = pending.after.min(index));
        }
        self.is_restoring = true;
        self.counts.restores += 1;
    }

    /// Nothing goes wrong any more.
    pub(super) fn calm(&mut self) {
        self.faults.is_on = false;
        self.wall_s = 0;
        for node in &mut self.nodes {
            (node.is_up, node.hears_nothing, node.is_unheard) = (true, false, false);
        }
        if self.driver.manager.is_none() {
            self.after_ms(1, Happening::Start);
        }
    }
}
