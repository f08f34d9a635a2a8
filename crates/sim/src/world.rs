//! The world: it composes its parts, moves time, and tells each part what happens. What is about several of them stands
//! in [`crate::lives`], and how it ends in [`crate::quiet`].

use std::rc::Rc;

use base::Random;
use base::ledger::Arena;
use base::times::HOLD;

use crate::checkers::names;
use crate::clock::Clock;
use crate::contest::{Contest, Move};
use crate::death::{End, Switch, survive};
use crate::disks::Disks;
use crate::edge::Clients;
use crate::faults::Faults;
use crate::guest::{Guest, Memories};
use crate::identity::Identity;
use crate::network::Network;
use crate::nodes::Node;
use crate::report::Report;
use crate::rest::Rest;
use crate::setting::Setting;
use crate::slot::Guests;
use crate::stage::{Event, NODES, Stage};
use crate::traffic::Traffic;
use crate::watch::Watch;
use crate::{Failure, Options, Summary};

/// Virtual nanoseconds after the end of all faults in which everything has to end.
const PATIENCE: u64 = 60_000_000_000;
/// Events of one run, against runs that never end.
const MOST_EVENTS: u64 = 20_000_000;

/// Everything, by part.
pub(crate) struct World<'w> {
    pub(crate) stage: Stage<'w>,
    pub(crate) traffic: Traffic,
    pub(crate) disks: Disks<'w>,
    pub(crate) clients: Clients,
    /// In some worlds the edges of those who borrow, or of one of them, are slots, with guests in place of clients.
    pub(crate) guests: Option<Guests<'w>>,
    pub(crate) faults: Faults,
    /// In some worlds there is a rival.
    pub(crate) contest: Option<Contest>,
    /// In some of these a guest rests.
    pub(crate) rest: Option<Rest>,
    /// In some, state folders are restored and copied.
    pub(crate) identity: Option<Identity>,
    seed: u64,
}

/// Runs the world of `seed`.
pub(crate) fn run(seed: u64, options: &Options) -> Result<Summary, Failure> {
    let arena = Arena::default();
    let switches: [Switch<'_>; NODES] = core::array::from_fn(|_| Switch::default());
    let mut world = World::new(seed, options, &arena, switches.each_ref());
    let outcome = survive(|| world.live());
    if let Err(End::Panicked(what)) = outcome {
        world.stage.report.fail(names::ASSERTION, format!("outside of a card: {what}"));
    }
    let summary = world.summary();
    match world.stage.report.take_failure() {
        Some((checker, what)) => {
            let what = format!("at {:.6} s: {what}", world.stage.clock.now as f64 / 1e9);
            Err(Failure { seed, checker, what, summary })
        }
        None => Ok(summary),
    }
}

impl<'w> World<'w> {
    fn new(seed: u64, options: &Options, arena: &'w Arena, switches: [&'w Switch<'w>; NODES]) -> Self {
        let mut random = Random::new(seed);
        let setting = Setting::of(seed, options.rules, &mut random);
        Self::of(setting, (seed, options), random, (arena, switches))
    }

    /// A world of that setting.
    pub(crate) fn of(
        setting: Setting<'w>,
        (seed, options): (u64, &Options),
        mut random: Random,
        (arena, switches): (&'w Arena, [&'w Switch<'w>; NODES]),
    ) -> Self {
        let (count, loans) = (setting.nodes(), setting.loans.len());
        let clients = setting.clients(options.requests, &mut random);
        let guests = setting.guests(options.requests, &mut random);
        let clock = Clock::new(1_000_000);
        let when = (setting.terms.rules, clock.instant());
        let node = |node: usize| {
            let bytes = node::ledger_bytes(None, (0..loans).map(|_| setting.kind(node)), loans);
            let memory = arena.zeroed_bytes(bytes.expect("there is no table yet"));
            Node::new(node, memory, switches[node], when)
        };
        let nodes = (0..count).map(node).collect();
        let rails = setting.terms.rails[1].count_ones() as usize;
        let memory = |node: usize| {
            let has_guests = setting.terms.guests[node];
            has_guests.then(|| Rc::new(Memories::new(loans, switches[node])))
        };
        let memories: Vec<_> = (0..count).map(memory).collect();
        let has_guests = setting.terms.has_guests();
        let network = Network::new(random.fork(), count);
        let faults = setting.faults(random.fork());
        let has_media = setting.disks.media.is_some();
        Self {
            stage: Stage {
                arena,
                clock,
                report: Report::new(options.trace),
                nodes,
                watch: Watch::new((count, loans), rails, has_media, memories.clone()),
                terms: setting.terms,
                loans: setting.loans,
                random,
                calm_since: None,
            },
            traffic: Traffic::new(seed, network, setting.neighbours),
            disks: setting.disks,
            clients: Clients::new(clients, count, loans),
            guests: has_guests.then(|| Guests::new(guests, memories, setting.volatile)),
            faults,
            contest: setting.contest,
            rest: setting.rest,
            identity: setting.identity,
            seed,
        }
    }

    /// From the beginning to the end, or until something is wrong.
    pub(crate) fn live(&mut self) {
        self.begin();
        while !self.stage.report.has_failed() && !self.is_over() {
            let Some(event) = self.stage.clock.next() else {
                return self.stage.report.fail(names::QUIET, "nothing happens any more".into());
            };
            let (watch, mut scene) = self.stage.scene();
            watch.check_silence(&mut scene);
            if !self.stage.report.has_failed() {
                self.happen(event);
            }
        }
        if !self.stage.report.has_failed() {
            self.finish();
        }
    }

    fn begin(&mut self) {
        let stage = &mut self.stage;
        for node in 0..stage.nodes.len() {
            let after = stage.random.below(3_000_000);
            stage.schedule_agent(node, stage.clock.now + after);
        }
        self.clients.begin(stage);
        self.guests.iter().for_each(|guests| guests.begin(stage));
        stage.clock.after(self.faults.begin, Event::Fault);
        self.disks.begin(stage);
        if let Some(identity) = &mut self.identity {
            // Twins fight for moments.
            let twins = self.contest.iter_mut().filter(|_| identity.has_twins());
            twins.for_each(Contest::keep_short);
            self.faults.reboot_often();
            identity.begin(stage);
        }
        // Dice of its own: the other worlds stay what they are.
        let is_plain = self.contest.is_none() && !self.traffic.has_spoofer();
        if is_plain && Random::new(!self.seed).chance(200) {
            self.traffic.siege.begin(stage);
        }
        self.contest.iter_mut().for_each(|contest| contest.begin(stage));
        let now = stage.clock.now;
        self.rest.iter_mut().for_each(|rest| rest.look_at(stage, now));
    }

    fn is_over(&mut self) -> bool {
        if self.stage.report.log.events() > MOST_EVENTS {
            self.stage.report.fail(names::QUIET, format!("{MOST_EVENTS} events and no end"));
        }
        let Some(since) = self.stage.calm_since else { return self.stage.report.has_failed() };
        let hold = self.contest.as_ref().map_or(0, |_| HOLD.as_nanos() as u64);
        let is_quiet = self.is_quiet();
        if !is_quiet && self.stage.clock.now > since + PATIENCE + hold {
            self.stage.report.fail(names::QUIET, self.unrest());
        }
        is_quiet || self.stage.report.has_failed()
    }

    /// Something happens, and then the card is served that it was about, if it is to be.
    fn happen(&mut self, event: Event) {
        let (stage, disks) = (&mut self.stage, &mut self.disks);
        let served = match event {
            Event::Wake(node) if stage.nodes[node].wake.rings(stage.clock.now) => stage.let_time_pass(node),
            Event::Wake(_) => None,
            Event::Arrival(frame) => Traffic::arrive(stage, frame),
            Event::Carriers(node, lost) => Traffic::hear_of_carriers(stage, node, lost),
            Event::Notice(node, notice) => Traffic::hear_of_rail(stage, node, notice),
            Event::Ring(loan, request) => disks.ring_done(stage, loan, request),
            Event::Mark(loan) => Disks::mark_late(stage, loan),
            Event::Think(client) => self.clients.think(stage, client),
            Event::ThinkGuest(guest) => self.guests.as_mut().and_then(|guests| guests.think(stage, guest)),
            Event::GuestTick(guest) => self.guests.as_mut().and_then(|guests| guests.tick(stage, guest)),
            Event::Unplug(guest) => self.guests.as_mut().and_then(|guests| guests.unplug(stage, guest)),
            Event::Memory(node) => self.traffic.neighbours.as_mut().and_then(|it| it.read(stage, node)),
            Event::Kept(drive) => disks.record_is_durable(stage, drive),
            Event::Clear(drive) => disks.clear(stage, drive),
            Event::Look => disks.look_at_images(stage),
            Event::Medium(drive) => return disks.turn(stage, drive),
            Event::Agent(node) => return stage.run_agent(node),
            Event::Agree => return self.traffic.neighbours.iter_mut().for_each(|it| it.agree(stage)),
            Event::Mend(rails) => return self.traffic.mend(stage, rails),
            Event::Join(node) => return self.traffic.network.islands[node] = false,
            Event::OldMessages => return self.identity.iter_mut().for_each(|it| it.repeat_old(stage)),
            Event::Performed(node, life, effect) => return self.performed(node, life, &effect),
            Event::Fault => return self.fault(),
            Event::Off => return self.switch_off(),
            Event::Contest => return self.contest(),
            Event::Rest => return self.rest(),
            Event::Gone(node, life) => return self.end_program(node, life),
            Event::Return(node) => return self.make_move(Move::Return(node)),
        };
        if let Some(node) = served {
            self.service(node);
        }
    }

    /// Faults are over.
    pub(crate) fn calm(&mut self) {
        let stage = &mut self.stage;
        stage.log(None, "calm", 0, 0);
        stage.calm_since = Some(stage.clock.now);
        stage.nodes.iter().for_each(|node| node.switch.disarm());
        self.traffic.calm(stage);
        self.guests.iter_mut().flat_map(|guests| &mut guests.guests).for_each(Guest::calm);
    }

    pub(crate) fn guests(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter().flat_map(|guests| &guests.guests)
    }

    /// How many requests there are in all, and how many of these have ended.
    pub(crate) fn progress(&self) -> [u32; 2] {
        let clients = self.clients.all().map(|it| [it.left + it.in_flight() as u32, it.ended]);
        let guests = self.guests().map(|it| [it.left + it.in_flight() as u32, it.ended]);
        clients.chain(guests).fold([0; 2], |[total, ended], [open, over]| [total + open + over, ended + over])
    }

    fn summary(&self) -> Summary {
        let Stage { report, clock, loans, .. } = &self.stage;
        Summary {
            seed: self.seed,
            digest: report.log.digest(),
            events: report.log.events(),
            virtual_ns: clock.now,
            requests: self.progress()[1].into(),
            bytes: loans.iter().map(|loan| loan.shared.bytes).sum(),
            kills: report.kills,
            marks: report.marks,
        }
    }
}
