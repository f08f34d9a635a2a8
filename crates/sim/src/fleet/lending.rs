//! Drives that come to nodes which run, and leave them, as a node's file says after a `reload`.
//!
//! A drive goes when nobody has it, or in the middle of everything, as from somebody who has been silent for too long:
//! whoever has its function waits then until it is lent again, and loses nothing. Somebody may ask for one that is not
//! there, and waits, too.

use base::Instant;
use node::{Card, DriveConfig};

use super::World;
use super::function::{BLOCK, BLOCKS};
use crate::checkers::names;

/// Whether a function is lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lending {
    /// It is.
    Here,
    /// It is lent no more, and the card has not said yet that nothing of it is with the disk.
    Going,
    /// No card has it.
    Away,
}

impl World<'_> {
    /// A drive leaves its node, or comes back.
    pub(super) fn change_lending(&mut self) {
        let function = self.random.index(self.functions.len());
        let this = &self.functions[function];
        let is_keeping = self.members[this.lender].node.agent.is_keeping(this.place);
        match this.lending {
            // It waits until it is durable who has it.
            Lending::Here if is_keeping => {}
            Lending::Here if this.claim.is_none() && !this.tenancy.is_held => self.withdraw(function),
            Lending::Here if self.random.chance(300) => self.withdraw_from_user(function),
            Lending::Here | Lending::Going => {}
            Lending::Away => self.lend(function),
        }
    }

    /// Everything is lent again.
    pub(super) fn lend_all(&mut self) {
        for function in 0..self.functions.len() {
            if self.functions[function].lending == Lending::Away {
                self.lend(function);
            }
        }
    }

    /// A drive goes though somebody uses it, who is not just giving it back: what that one says then would be heard by
    /// nobody.
    fn withdraw_from_user(&mut self, function: usize) {
        let Some((node, place)) = self.functions[function].claim else { return };
        if self.members[node].wait_for(place) {
            self.fleet.taken_away += 1;
            self.withdraw(function);
        }
    }

    fn withdraw(&mut self, function: usize) {
        let (node, place) = (self.functions[function].lender, self.functions[function].place);
        self.note("withdrawn", node);
        self.functions[function].lending = Lending::Going;
        self.fleet.withdrawn += 1;
        self.members[node].node.agent.handle_withdrawn(place, [place]);
        self.drive_agent(node);
        self.service(node);
    }

    /// The card has a drive no more.
    pub(super) fn note_withdrawn(&mut self, node: usize, drive: usize) {
        let function = self.members[node].lent.start + drive;
        if self.members[node].disk.values().any(|submitted| submitted.function == function) {
            let what = format!("node {node} has let go of drive {drive}, of which its disk has something");
            self.fail(names::STRAYS, what);
        }
        self.conclude(function);
    }

    /// No card has the drives any more that were to go.
    pub(super) fn conclude_withdrawals(&mut self, node: usize) {
        self.members[node].lent.clone().for_each(|function| self.conclude(function));
    }

    fn conclude(&mut self, function: usize) {
        if self.functions[function].lending == Lending::Going {
            self.functions[function].lending = Lending::Away;
            if self.is_calm {
                self.lend(function);
            }
        }
    }

    fn lend(&mut self, function: usize) {
        let can_take = self.random.chance(850);
        let this = &mut self.functions[function];
        (this.lending, this.life) = (Lending::Here, this.life + 1);
        let (node, place) = (this.lender, this.place);
        self.note("lends", node);
        let agent = &mut self.members[node].node.agent;
        match can_take {
            true => agent.handle_lent(place, [place]),
            false => agent.handle_replanned([place]),
        }
        self.drive_agent(node);
        self.service(node);
    }

    /// The card hears of a drive that is lent from now on, and the streams of its other loans go on.
    pub(super) fn tell_drive(&mut self, node: usize, drive: usize) {
        let function = self.members[node].lent.start + drive;
        let (config, this) = (drive_config(function, self.functions[function].life), &self.members[node]);
        let loan = this.lent_loan(&self.functions[function], function);
        let told = self.tell(node, drive, |card, now| {
            card.lend(now, drive, config, vec![(drive, loan)], &[]).expect("this ledger has room for it");
        });
        self.fleet.lent += u64::from(told);
    }

    /// The card hears of a loan that comes, and the streams of its others go on: false if it dies.
    pub(super) fn tell(
        &mut self,
        node: usize,
        loan: usize,
        work: impl FnOnce(&mut Card<'_>, Instant),
    ) -> bool {
        let others = self.members[node].loans(&self.functions);
        let others: Vec<usize> = others.into_iter().filter(|other| *other != loan).collect();
        let names =
            |card: &Card<'_>| -> Vec<_> { others.iter().map(|other| card.stream(*other).name()).collect() };
        let before = self.members[node].node.card.as_ref().map(names);
        if !self.act(node, work) {
            return false;
        }
        if self.members[node].node.card.as_ref().map(names) != before {
            let what = format!("node {node}: a loan that came has begun others anew");
            self.fail(names::EXACTLY_ONCE, what);
        }
        self.service(node);
        true
    }
}

/// A drive for what a function's disk holds.
pub(super) fn drive_config(function: usize, life: u64) -> DriveConfig {
    DriveConfig { life, ..DriveConfig::new(BLOCKS, BLOCK as u32, 0x1000 + function as u64) }
}
