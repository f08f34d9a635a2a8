//! One run: what happens when, and to whom.

use core::time::Duration;
use std::collections::BTreeMap;

use base::{Instant, Random};

use super::admin::JOINERS;
use super::checks::Checks;
use super::client::{Client, Heard, is_done};
use super::driver::{Disk, Driver};
use super::faults::Faults;
use super::node::{Node, Told};
use super::setting::{NODES, first_log, load};
use super::settled::{listed, unsettled};
use crate::command::Asked;
use crate::entry::Change;
use crate::machine::{Effect, Now, Start, Ticket};
use crate::model::{FunctionKey, WallTime};
use crate::report::{Holder, Identity, Report};
use crate::testing::T0;

/// How long things go wrong, and how long everything has to settle, in seconds.
const TROUBLE_S: u64 = 50;
const CALM_S: u64 = 50;
/// A node that was not heard for so long is silent.
const SILENCE: Duration = Duration::from_secs(6);

macro_rules! counts {
    ($($name:ident),*) => {
        /// How often what happened.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub(super) struct Counts {
            $(pub(super) $name: u64,)*
        }

        impl Counts {
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            pub(super) fn all(&self) -> Vec<u64> {
                vec![$(self.$name),*]
            }
        }
    };
}

counts!(
    deaths, torn, restores, flips, snapshots, lies, copies, cuts, reboots, removals, joins, hold_overs, done,
    pending, refused, repeated, alarms
);

enum Happening {
    ToNode { node: usize, told: Told },
    ToManager { node: usize, session: u64, life: u64, report: Report },
    Ask { client: usize, life: u64, asked: Asked },
    Hear { client: usize, life: u64, asked: Asked, heard: Heard },
    DiskDone { life: u64 },
    Start,
    NodeTick { node: usize },
    ClientTick { client: usize },
    Trouble,
    Sweep,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) nodes: Vec<Node>,
    pub(super) clients: Vec<Client>,
    pub(super) checks: Checks,
    pub(super) counts: Counts,
    pub(super) is_traced: bool,
    driver: Driver,
    now: Instant,
    /// By how much the clock of the wall is wrong, in seconds.
    wall_s: i64,
    queue: BTreeMap<(Instant, u64), Happening>,
    happened: u64,
    tickets: BTreeMap<Ticket, (usize, Asked)>,
    next_ticket: u64,
    /// When the manager has heard each node last.
    heard: BTreeMap<usize, Instant>,
    backup: Option<Disk>,
    /// Whether a backup was put back, and no manager knows it for good yet.
    is_restoring: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::of(seed, "manager");
        let faults = Faults::new(&mut random);
        let log = first_log();
        let state = load(&log);
        let identity = |number| {
            let node = state.joined(crate::testing::node_id(number))?.clone();
            Some(Identity { name: node.name, key: node.key, block: node.block, groups: node.groups })
        };
        let clients = (0..6).map(|number| Client::new(number, random.fork(), number <= JOINERS[1] as u64));
        let mut world = Self {
            clients: clients.collect(),
            nodes: (1..=NODES).map(|number| Node::new(number, identity(number))).collect(),
            checks: Checks::new(&log),
            driver: Driver::new(log),
            random,
            faults,
            counts: Counts::default(),
            is_traced: false,
            now: Instant::ZERO,
            wall_s: 0,
            queue: BTreeMap::new(),
            happened: 0,
            tickets: BTreeMap::new(),
            next_ticket: 0,
            heard: BTreeMap::new(),
            backup: None,
            is_restoring: false,
        };
        world.after_ms(0, Happening::Start);
        (0..10).for_each(|node| world.after_ms(10 + node as u64, Happening::NodeTick { node }));
        (0..6).for_each(|client| world.after_ms(100, Happening::ClientTick { client }));
        world.after_ms(500, Happening::Trouble);
        world.after_ms(1000, Happening::Sweep);
        world
    }

    pub(super) fn run(&mut self) -> Result<Counts, String> {
        self.run_until(TROUBLE_S)?;
        self.calm();
        self.run_until(TROUBLE_S + CALM_S)?;
        self.look_settled()?;
        // The manager dies, and nobody notices.
        let tables = self.tables();
        self.die();
        self.run_until(TROUBLE_S + CALM_S + 10)?;
        self.look_same(&tables)?;
        self.after_ms(0, Happening::Start);
        self.run_until(TROUBLE_S + CALM_S + 40)?;
        self.look_same(&tables)?;
        self.look_settled()?;
        Ok(self.counts.clone())
    }

    fn run_until(&mut self, s: u64) -> Result<(), String> {
        let end = Instant::ZERO + Duration::from_secs(s);
        loop {
            let next = self.queue.first_key_value().map_or(Instant::FAR_FUTURE, |((at, _), _)| *at);
            let timer = self.driver.manager.as_ref().and_then(|manager| manager.poll_timeout());
            let at = timer.unwrap_or(Instant::FAR_FUTURE).max(self.now).min(next);
            if at > end {
                self.now = end;
                return Ok(());
            }
            self.now = at;
            if timer.is_some_and(|timer| timer <= at) {
                let now = self.both();
                self.with_manager(|manager| manager.handle_timeout(now));
            } else if let Some((_, happening)) = self.queue.pop_first() {
                self.happen(happening);
            }
            if let Some(error) = self.checks.error.take() {
                return Err(error);
            }
        }
    }

    fn both(&self) -> Now {
        let s = self.now.as_nanos() / 1_000_000_000;
        Now { clock: self.now, wall: WallTime(T0.0.saturating_add_signed(self.wall_s * 1000)).plus_s(s) }
    }

    fn after_us(&mut self, us: u64, happening: Happening) {
        self.happened += 1;
        self.queue.insert((self.now + Duration::from_micros(us), self.happened), happening);
    }

    fn after_ms(&mut self, ms: u64, happening: Happening) {
        self.after_us(ms * 1000, happening);
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:?} {}", self.now, what());
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToNode { node, told } => self.to_node(node, &told),
            Happening::ToManager { node, session, life, report } => {
                self.to_manager(node, session, life, &report)
            }
            Happening::Ask { client, life, asked } => self.ask(client, life, asked),
            Happening::Hear { client, life, asked, heard } if life == self.driver.life => {
                self.hear(client, &asked, &heard);
            }
            Happening::Hear { .. } => {}
            Happening::DiskDone { life } if life == self.driver.life => self.disk_done(),
            Happening::DiskDone { .. } => {}
            Happening::Start => self.start(),
            Happening::NodeTick { node } => self.node_tick(node),
            Happening::ClientTick { client } => self.client_tick(client),
            Happening::Trouble => self.trouble(),
            Happening::Sweep => self.sweep(),
        }
    }

    fn with_manager(&mut self, act: impl FnOnce(&mut crate::machine::Manager)) {
        if let Some(manager) = &mut self.driver.manager {
            act(manager);
            self.drain();
        }
    }

    /// Does what the manager wants, and kills it between any two effects.
    fn drain(&mut self) {
        let now = self.both();
        while let Some(effect) = self.driver.manager.as_mut().and_then(|manager| manager.poll_effect(now)) {
            self.effect(effect);
            if self.faults.happens(&mut self.random, self.faults.death) && self.random.chance(100) {
                return self.die_and_start();
            }
        }
    }

    fn effect(&mut self, effect: Effect) {
        self.trace(|| format!("{effect:?}"));
        match effect {
            Effect::Append { first, entries } => {
                self.driver.append(first, entries);
                let us = self.random.range(50, self.faults.disk_ms * 1000);
                self.after_us(us, Happening::DiskDone { life: self.driver.life });
            }
            Effect::Answer { ticket, reply } => {
                let Some((client, asked)) = self.tickets.remove(&ticket) else {
                    return self.checks.fail(|| format!("{ticket:?} is answered twice"));
                };
                self.checks.answered(&asked, &reply, &self.nodes);
                if let Some(us) = self.faults.delay_us(&mut self.random) {
                    let life = self.driver.life;
                    self.after_us(us, Happening::Hear { client, life, asked, heard: reply });
                }
            }
            Effect::Greet { node, epoch } => {
                self.checks.greeted(epoch, self.driver.life);
                self.tell(node, Told::Greet { epoch });
            }
            Effect::TellLender { node, epoch, orders } => {
                for order in &orders {
                    self.checks.ordered(FunctionKey { node, number: order.number }, order);
                }
                self.tell(node, Told::Orders { epoch, orders });
            }
            Effect::TellBorrower { node, id, presets } => {
                presets.iter().for_each(|preset| self.checks.preset(preset));
                self.tell(node, Told::Presets { id, presets });
            }
            Effect::Event(crate::report::Event::Alarm { .. }) => self.counts.alarms += 1,
            Effect::Event(_) => {}
        }
    }

    fn tell(&mut self, node: base::ids::NodeId, told: Told) {
        let Some(node) = self.nodes.iter().position(|it| it.id() == node) else { return };
        let copies = 1 + u64::from(self.faults.happens(&mut self.random, self.faults.repeat));
        for _ in 0..copies {
            if let Some(us) = self.faults.delay_us(&mut self.random) {
                self.after_us(us, Happening::ToNode { node, told: told.clone() });
            }
        }
    }

    fn to_node(&mut self, at: usize, told: &Told) {
        let node = &mut self.nodes[at];
        if !node.is_up || node.hears_nothing || !node.is_member() {
            return;
        }
        let (reports, accepted) = node.hear(told);
        accepted.iter().for_each(|accepted| self.checks.accepted(accepted));
        self.checks.tables(&self.nodes);
        reports.into_iter().for_each(|report| self.report(at, report));
    }

    fn report(&mut self, at: usize, report: Report) {
        let (session, life) = (self.nodes[at].session, self.driver.life);
        let copies = 1 + u64::from(self.faults.happens(&mut self.random, self.faults.repeat));
        for _ in 0..copies {
            if let Some(us) = self.faults.delay_us(&mut self.random) {
                let report = report.clone();
                self.after_us(us, Happening::ToManager { node: at, session, life, report });
            }
        }
    }

    fn to_manager(&mut self, at: usize, session: u64, life: u64, report: &Report) {
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

    fn sweep(&mut self) {
        self.after_ms(1000, Happening::Sweep);
        let silent: Vec<usize> = self
            .heard
            .iter()
            .filter(|(_, at)| self.now.since(**at) > SILENCE)
            .map(|(node, _)| *node)
            .collect();
        for node in silent {
            self.heard.remove(&node);
            let id = self.nodes[node].id();
            self.with_manager(|manager| manager.handle_silent(id));
        }
        self.end_restore();
        if self.faults.happens(&mut self.random, 50) {
            self.driver.compact();
            self.counts.snapshots += 1;
        }
    }

    fn node_tick(&mut self, at: usize) {
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

    fn client_tick(&mut self, at: usize) {
        let ms = self.random.range(100, 1500);
        self.after_ms(ms, Happening::ClientTick { client: at });
        let (bases, heard, is_calm) = (self.bases(), self.checks.heard, !self.faults.is_on);
        let client = &mut self.clients[at];
        let asked = match &client.pending {
            Some(pending) => {
                self.counts.repeated += 1;
                Some(pending.asked.clone())
            }
            None => client.ask(&bases, heard, is_calm),
        };
        let Some(asked) = asked else { return };
        let copies = 1 + u64::from(self.faults.happens(&mut self.random, self.faults.repeat));
        for _ in 0..copies {
            if let Some(us) = self.faults.delay_us(&mut self.random) {
                let (life, asked) = (self.driver.life, asked.clone());
                self.after_us(us, Happening::Ask { client: at, life, asked });
            }
        }
    }

    fn ask(&mut self, client: usize, life: u64, asked: Asked) {
        if life != self.driver.life || self.driver.manager.is_none() {
            return;
        }
        self.trace(|| format!("client {client} asks {asked:?}"));
        self.next_ticket += 1;
        let (ticket, now) = (Ticket(self.next_ticket), self.both());
        self.tickets.insert(ticket, (client, asked.clone()));
        self.with_manager(|manager| manager.handle_command(now, ticket, &asked));
    }

    fn hear(&mut self, client: usize, asked: &Asked, heard: &Heard) {
        let after = self.clients[client].pending.as_ref().map_or(0, |pending| pending.after);
        if !self.clients[client].hear(asked, heard) {
            return;
        }
        self.checks.taken(asked, heard, after);
        match heard {
            Ok(reply) if is_done(reply) => self.counts.done += 1,
            Ok(_) => self.counts.pending += 1,
            Err(_) => self.counts.refused += 1,
        }
        self.follow(client, asked, heard);
    }

    fn disk_done(&mut self) {
        let Some(record) = self.driver.settle() else { return };
        self.is_durable(record.first, &record.entries);
        let last = record.first + record.entries.len() as u64 - 1;
        self.with_manager(|manager| manager.handle_durable(last));
    }

    fn is_durable(&mut self, first: u64, entries: &[crate::entry::Entry]) {
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
                _ => {}
            }
        }
    }

    fn die(&mut self) {
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

    fn die_and_start(&mut self) {
        self.die();
        let ms = self.random.range(10, 4000);
        self.after_ms(ms, Happening::Start);
    }

    fn start(&mut self) {
        if self.driver.manager.is_some() {
            return;
        }
        self.look_at_damage();
        let start = if self.is_restoring { Start::Restored } else { Start::Plain };
        let (now, durable) = (self.both(), self.checks.shadow.index());
        if let Err(damage) = self.driver.start(now, start, durable) {
            return self.checks.fail(|| format!("the manager does not start: {damage}"));
        }
        if let Some(manager) = &self.driver.manager {
            // The start itself is an entry, not durable yet.
            let found = self.driver.read(0).map(|found| found.state);
            debug_assert!(manager.durable() + 1 == manager.state().index());
            match found {
                Ok(state) => self.checks.started(&state),
                Err(damage) => self.checks.fail(|| format!("{damage}")),
            }
        }
        self.drain();
    }

    /// What was acknowledged and is not what was written has to be noticed.
    fn look_at_damage(&mut self) {
        let Ok(found) = self.driver.read(0) else { return };
        if !self.faults.happens(&mut self.random, 300) {
            return;
        }
        if let Some((at, bit)) = self.driver.flip(&mut self.random, found.len) {
            self.counts.flips += 1;
            let is_noticed = self.driver.read(0).is_err();
            self.driver.disk.log[at] ^= bit;
            if !is_noticed {
                self.checks.fail(|| format!("byte {at} of the log is damaged, and nobody notices"));
            }
        }
    }

    fn trouble(&mut self) {
        if !self.faults.is_on {
            return;
        }
        let ms = self.random.range(200, 2000);
        self.after_ms(ms, Happening::Trouble);
        let at = self.random.index(self.nodes.len());
        match self.random.below(9) {
            0 if self.driver.manager.is_some() => self.die_and_start(),
            1 => {
                let node = &mut self.nodes[at];
                node.is_up = !node.is_up;
                node.session += 1;
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
            7 => self.wall_s = self.random.range(0, 600) as i64 - 300,
            _ => {
                // Most trouble ends soon.
                let node = &mut self.nodes[at];
                (node.is_up, node.hears_nothing, node.is_unheard) = (true, false, false);
            }
        }
    }

    /// A lender has a greater generation than anybody has given it.
    fn lie(&mut self, at: usize) {
        let number = self.random.below(3) as u32;
        let by = self.random.range(1000, 1_000_000);
        let node = &mut self.nodes[at];
        if node.is_member()
            && let Some(row) = node.kept.rows.get_mut(&number)
        {
            row.generation += by;
            row.ever = row.ever.max(row.generation);
            if self.random.chance(300) {
                row.holder = Holder::Nobody;
            }
            self.counts.lies += 1;
        }
    }

    fn copy(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.copy.is_none() {
            node.copy = Some(node.kept.clone());
        } else {
            node.go_back();
            node.session += 1;
            self.counts.copies += 1;
        }
    }

    /// First a backup is made, later it is put back.
    fn restore(&mut self) {
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
    fn calm(&mut self) {
        self.faults.is_on = false;
        self.wall_s = 0;
        for node in &mut self.nodes {
            (node.is_up, node.hears_nothing, node.is_unheard) = (true, false, false);
        }
        if self.driver.manager.is_none() {
            self.after_ms(1, Happening::Start);
        }
    }

    fn tables(&self) -> Vec<(super::node::Kept, Vec<(FunctionKey, u64)>)> {
        self.nodes.iter().map(|node| (node.kept.clone(), listed(node))).collect()
    }

    fn look_same(&self, before: &[(super::node::Kept, Vec<(FunctionKey, u64)>)]) -> Result<(), String> {
        let same = self.nodes.iter().zip(before);
        let same =
            same.into_iter().all(|(node, (kept, list))| node.kept.rows == kept.rows && listed(node) == *list);
        if same { Ok(()) } else { Err("loans have changed because a manager died".to_owned()) }
    }

    fn look_settled(&self) -> Result<(), String> {
        let Some(manager) = &self.driver.manager else { return Err("there is no manager".to_owned()) };
        if manager.state().restore().is_some() {
            return Err(format!("a restore does not end: {:?}", manager.state().restore()));
        }
        if let Some(client) = self.clients.iter().find(|client| client.pending.is_some()) {
            return Err(format!("client {} waits for ever: {:?}", client.number, client.pending));
        }
        unsettled(manager.state(), &self.nodes).map_or(Ok(()), Err)
    }
}
