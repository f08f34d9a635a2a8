//! What goes wrong, and when.

use base::Random;
use link::Tenancy;

use crate::checkers::names;
use crate::contest::Contest;
use crate::death::Switch;
use crate::edge::Edge;
use crate::identity::{holder_of, life_of_id};
use crate::marks::Mark;
use crate::media::Media;
use crate::volatile::Volatile;
use crate::world::{BORROWER, Event, LENDER, World};

/// Mean nanoseconds between two faults while a node stays away for long.
const LONG_PAUSE: u64 = 8_000_000_000;

/// The plan of a run's faults: how often, how long, and what for.
pub(crate) struct Faults {
    random: Random,
    /// Mean nanoseconds between two faults.
    pause: u64,
    reboots: u32,
    /// Worlds with guests are few, and what reboots do to them is to be seen all the same.
    reboots_often: bool,
    /// Whether a cut of both rails may outlast the completion time-out.
    long_cuts: bool,
    /// Virtual time after which faults end in any case.
    end: u64,
    /// When they have ended.
    pub(crate) over_since: Option<u64>,
}

impl Faults {
    pub(crate) fn new(mut random: Random) -> Self {
        let pause = [1_500_000, 4_000_000, 12_000_000][random.index(3)];
        let reboots = if random.chance(400) { random.range(1, 3) as u32 } else { 0 };
        let long_cuts = random.chance(150);
        Self {
            random,
            pause,
            reboots,
            reboots_often: false,
            long_cuts,
            end: 30_000_000_000,
            over_since: None,
        }
    }

    /// For worlds of which there are few: with guests, whose drivers would have to begin anew after a long silence, and
    /// with media that fail.
    pub(crate) fn with_reboots(random: Random, may_be_silent: bool) -> Self {
        let mut faults = Self { reboots_often: true, ..Self::new(random) };
        faults.long_cuts &= may_be_silent;
        faults.reboots += faults.random.range(0, 3) as u32;
        faults
    }

    /// So that there are more lives than elsewhere.
    pub(crate) fn reboot_often(&mut self) {
        self.reboots_often = true;
        self.reboots += 4;
    }

    /// Everything passes, and everybody lives, from now on.
    pub(crate) fn are_over(&self) -> bool {
        self.over_since.is_some()
    }

    /// The rails that are cut, and for how long.
    fn next_cut(&mut self, is_cut: bool) -> Option<(u64, u64)> {
        let random = &mut self.random;
        // A network that is always cut tells little.
        if is_cut && random.chance(800) {
            return None;
        }
        let rails = match random.below(10) {
            0..4 => 0b0101 << random.below(2),
            4..8 => 1 << random.below(4),
            _ => 0b1111,
        };
        let is_long = self.long_cuts && rails == 0b1111;
        let lasts = match random.below(10) {
            _ if is_long => random.range(3_000_000_000, 9_000_000_000),
            0..7 => random.range(1_000_000, 60_000_000),
            _ => random.range(60_000_000, 1_500_000_000),
        };
        if is_long {
            self.long_cuts = random.chance(500);
        }
        Some((rails, lasts))
    }

    /// Lets a card die some time.
    pub(crate) fn arm(&mut self, switch: &Switch<'_>) {
        if switch.is_armed() || !self.random.chance(500) {
            return;
        }
        if self.random.chance(700) {
            let most = [60, 600, 6_000, 30_000][self.random.index(4)];
            switch.arm_store(self.random.below(most));
        } else {
            switch.arm_effect(self.random.below(60));
        }
    }
}

impl World<'_> {
    /// One fault, and the next one's date; or the end of all.
    pub(crate) fn fault(&mut self) {
        if self.is_besieged() {
            return self.clock.after(1_000_000, Event::Fault);
        }
        let total: u32 = self
            .clients
            .all()
            .map(|(_, client)| client.left + client.ended + client.in_flight() as u32)
            .chain(self.guests.iter().map(|guest| guest.left + guest.ended + guest.in_flight() as u32))
            .sum();
        let ended = self.clients.all().map(|(_, client)| client.ended);
        let ended: u32 = ended.chain(self.guests.iter().map(|guest| guest.ended)).sum();
        let waits = self.contest.as_ref().is_some_and(|contest| contest.is_waiting(self.clock.now));
        if !waits && (ended * 100 >= total * 85 || self.clock.now > self.faults.end) {
            return self.calm();
        }
        match self.faults.random.below(100) {
            0..26 => self.kill(LENDER),
            26..52 => self.kill_borrower(),
            52..58 => {
                self.kill(LENDER);
                self.kill_borrower();
            }
            58..68 => self.network.change(),
            68..78 => self.cut(),
            78..85 => self.inject(false),
            85..92 if self.faults.reboots_often => self.reboot(),
            85..92 => self.inject(true),
            92..95 => self.leave(),
            95 => self.part(None),
            _ => self.reboot(),
        }
        let pause = if waits { LONG_PAUSE } else { self.faults.pause };
        let after = self.faults.random.range(pause / 4, pause * 2);
        self.clock.after(after, Event::Fault);
    }

    /// Any borrower's card.
    fn kill_borrower(&mut self) {
        let node = self.any_borrower();
        self.kill(node);
    }

    fn any_borrower(&mut self) -> usize {
        self.contest.as_mut().map_or(BORROWER, Contest::any_borrower)
    }

    fn kill(&mut self, node: usize) {
        let now = self.faults.random.chance(150);
        if self.nodes[node].card.is_some() && now {
            self.bury(node);
        } else {
            let switch = self.nodes[node].switch;
            self.faults.arm(switch);
        }
    }

    fn cut(&mut self) {
        let Some((rails, lasts)) = self.faults.next_cut(self.network.is_cut()) else { return };
        self.network.cut(rails);
        self.report.log.event(self.clock.now, None, "cut", rails, lasts);
        self.report.marks.set_if(Mark::BothRailsCut, self.network.are_both_cut());
        self.report.marks.set_if(Mark::OneWayCut, rails.count_ones() == 1);
        self.clock.after(lasts, Event::Mend(rails));
    }

    pub(crate) fn mend(&mut self, rails: u64) {
        self.report.log.event(self.clock.now, None, "mend", rails, 0);
        self.network.mend(rails);
    }

    /// Old frames, or false ones.
    fn inject(&mut self, forged: bool) {
        if !forged && self.siege.has_recorded() && self.faults.random.chance(200) {
            self.repeat_former(2_000_000);
        }
        for _ in 0..self.faults.random.range(1, 12) {
            let frame = if forged { self.network.forge() } else { self.network.replay() };
            let Some(frame) = frame else { return };
            let after = self.faults.random.below(2_000_000);
            self.report.log.event(
                self.clock.now,
                None,
                if forged { "forged" } else { "old" },
                frame.to as u64,
                after,
            );
            self.clock.after(after, Event::Arrival(frame));
        }
    }

    /// A client leaves in the middle of everything.
    fn leave(&mut self) {
        let loan = self.faults.random.index(self.loans.len());
        let node = self.any_borrower();
        let slots: Vec<usize> = self.clients.connected(node, loan).collect();
        if slots.is_empty() {
            return;
        }
        let slot = slots[self.faults.random.index(slots.len())];
        self.hang_up(Edge { node, loan, slot });
        if !self.dies_here(node) && self.act(node, |card, now| card.edge_closed(now, loan, slot)) {
            self.service(node);
        }
    }

    /// A node loses its ledger, its sockets, and what its disks had not written.
    fn reboot(&mut self) {
        if self.faults.reboots == 0 || self.alter_images() {
            return;
        }
        self.faults.reboots -= 1;
        let node = self.faults.random.index(2);
        if self.nodes[node].is_away {
            return;
        }
        if node == LENDER {
            self.reboot_lender();
        } else {
            self.lose_ledger(node);
            self.report.marks.set(Mark::BorrowerReboot);
        }
    }

    /// The lender's program, or the machine.
    pub(crate) fn reboot_lender(&mut self) {
        let is_machine = self.media.as_mut().is_none_or(Media::loses_power)
            && self.volatile.as_mut().is_none_or(Volatile::loses_power);
        self.begin_anew(LENDER, is_machine);
        self.report.marks.set(Mark::LenderReboot);
        if is_machine {
            self.lose_power();
        }
        self.guests.iter_mut().for_each(|guest| guest.lender_rebooted = true);
        self.look_at_images();
    }

    /// The lending node has lost its power.
    fn lose_power(&mut self) {
        self.media.iter_mut().for_each(Media::forget_errors);
        if let Some(volatile) = &mut self.volatile {
            volatile.lose_power();
        }
        for loan in 0..self.loans.len() {
            let lent = &mut self.loans[loan];
            lent.unmarked.clear();
            let lost = lent.disk.power_off(&mut self.random);
            self.report.marks.set_if(Mark::CacheLost, lost);
            let tick = lent.shared.next_tick();
            let verdict = lent.shared.model.power_failed(lent.disk.blocks(), tick);
            if !self.guests.is_empty() {
                // Nobody writes anything again.
                lent.shared.model.mended();
            }
            self.report.judge(names::DURABILITY, verdict);
            self.forget_drive(loan);
        }
    }

    /// A node's program is killed, and its next life begins with the next card.
    pub(crate) fn lose_ledger(&mut self, node: usize) {
        self.begin_anew(node, false);
    }

    /// The same, or its machine loses its power.
    fn begin_anew(&mut self, node: usize, loses_power: bool) {
        self.end_life(node);
        if node == LENDER && !loses_power {
            // Requests under way hold the image's lock, and the next program opens it when they have ended.
            self.drain_rings();
        }
        self.part(Some(node));
        self.tamper_with_folder(node);
        if node == BORROWER {
            (0..self.guests.len()).for_each(|loan| self.crash_machine(loan));
        }
        let holder = |tenancy: &Tenancy| holder_of(tenancy).filter(|_| tenancy.is_held);
        let known: Vec<_> = self.loans.iter().filter_map(|lent| holder(&lent.tenure.tenancy)).collect();
        let kept = self.nodes[LENDER].holders.iter().flat_map(|holder| holder.copies);
        let twins: Vec<_> = kept.filter_map(life_of_id).collect();
        for loan in 0..self.loans.len() {
            if node == LENDER {
                self.loans[loan].disk.end_half();
                self.loans[loan].owner.lender_began(self.clock.now);
                let holder = holder(&self.loans[loan].tenure.tenancy);
                self.loans[loan].take_over.lender_began(self.clock.now, holder, &known, &twins);
                self.loans[loan].unmarked.clear();
            } else {
                (0..node::EDGE_CONNECTIONS).for_each(|slot| self.hang_up(Edge { node, loan, slot }));
                if self.loans[loan].tenure.holder == Some(node) {
                    self.loans[loan].lose_kept(self.nodes[node].who());
                }
            }
        }
        if node == LENDER {
            self.media.iter_mut().for_each(|media| media.reopen(&mut self.loans));
        }
        self.nodes[node].begin_life(self.arena, self.clock.instant());
        self.watch.life_began(node);
        self.report.log.event(self.clock.now, Some(node), "boot", self.nodes[node].incarnation, 0);
        self.wake_agent(node);
    }
}
