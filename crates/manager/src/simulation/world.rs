//! One run: what happens when, and to whom.

use core::time::Duration;
use std::collections::BTreeMap;

use base::{Instant, Random};

use super::admin::JOINERS;
use super::checks::Checks;
use super::client::{Client, Heard};
use super::driver::{Disk, Driver};
use super::faults::Faults;
use super::node::Node;
use super::rails::dead;
use super::setting::{NODES, first_log, load};
use super::settled::{listed, unsettled};
use crate::command::Asked;
use crate::machine::{Effect, Now, Ticket};
use crate::member::{Kept, Told};
use crate::model::{FunctionKey, WallTime};
use crate::report::Report;
use crate::testing::{T0, identity};

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
    pending, refused, repeated, alarms, cleared, deleted, doubts, verdicts
);

/// What happens at some time.
pub(super) enum Happening {
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
    pub(super) driver: Driver,
    pub(super) now: Instant,
    /// By how much the clock of the wall is wrong, in seconds.
    pub(super) wall_s: i64,
    pub(super) queue: BTreeMap<(Instant, u64), Happening>,
    pub(super) happened: u64,
    pub(super) tickets: BTreeMap<Ticket, (usize, Asked)>,
    pub(super) next_ticket: u64,
    /// When the manager has heard each node last.
    pub(super) heard: BTreeMap<usize, Instant>,
    pub(super) backup: Option<Disk>,
    /// Whether a backup was put back, and no manager knows it for good yet.
    pub(super) is_restoring: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::of(seed, "manager");
        let faults = Faults::new(&mut random);
        let log = first_log();
        let state = load(&log);
        let identity = |number| Some(identity(&state, number));
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

    /// Whether nothing has gone wrong for so long.
    pub(super) fn is_calm_for(&self, s: u64) -> bool {
        self.now > Instant::ZERO + Duration::from_secs(TROUBLE_S + s)
    }

    pub(super) fn both(&self) -> Now {
        let s = self.now.as_nanos() / 1_000_000_000;
        Now { clock: self.now, wall: WallTime(T0.0.saturating_add_signed(self.wall_s * 1000)).plus_s(s) }
    }

    pub(super) fn after_us(&mut self, us: u64, happening: Happening) {
        self.happened += 1;
        self.queue.insert((self.now + Duration::from_micros(us), self.happened), happening);
    }

    pub(super) fn after_ms(&mut self, ms: u64, happening: Happening) {
        self.after_us(ms * 1000, happening);
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:?} {}", self.now, what());
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToNode { node, told } => self.node_hears(node, &told),
            Happening::ToManager { node, session, life, report } => {
                self.manager_hears(node, session, life, &report);
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

    pub(super) fn with_manager(&mut self, act: impl FnOnce(&mut crate::machine::Manager)) {
        if let Some(manager) = &mut self.driver.manager {
            act(manager);
            self.drain();
        }
    }

    /// Does what the manager wants, and kills it between any two effects.
    pub(super) fn drain(&mut self) {
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
            Effect::Recall { node, epoch } => self.tell(node, Told::Recall { epoch }),
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
            Effect::TellMaker { node, epoch, list } => self.tell(node, Told::Made { epoch, list }),
            Effect::TellRails { nodes, rails } => {
                self.counts.verdicts += rails.len() as u64;
                let (now, life) = (self.now, self.driver.life);
                self.checks.rails_told(now, life, &nodes, &rails, &self.nodes);
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

    fn tables(&self) -> Vec<(Kept, Vec<(FunctionKey, u64)>)> {
        self.nodes.iter().map(|node| (node.kept.clone(), listed(node))).collect()
    }

    fn look_same(&self, before: &[(Kept, Vec<(FunctionKey, u64)>)]) -> Result<(), String> {
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
        let is_known = |node: &&Node| node.is_member() && manager.state().joined(node.id()).is_some();
        let rails = self.nodes.iter().filter(is_known).map(|node| (node.id(), &node.rails)).collect();
        let (held, expected) = (manager.dead_rails().collect::<Vec<_>>(), dead(&rails));
        if held != expected {
            return Err(format!("dead rails are {held:?} instead of {expected:?}"));
        }
        unsettled(manager.state(), &self.nodes).map_or(Ok(()), Err)
    }
}
