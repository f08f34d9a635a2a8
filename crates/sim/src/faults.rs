//! What goes wrong, and when.

use base::Random;

use crate::death::Switch;
use crate::stage::Stage;
use crate::traffic::Traffic;

/// Mean nanoseconds between two faults while a node stays away for long.
const LONG_PAUSE: u64 = 8_000_000_000;

/// The plan of a run's faults: how often, how long, and what for.
pub(crate) struct Faults {
    pub(crate) random: Random,
    /// When the first one comes.
    pub(crate) begin: u64,
    /// Mean nanoseconds between two faults.
    pause: u64,
    /// Reboots that are left.
    pub(crate) reboots: u32,
    /// Worlds with guests are few, and what reboots do to them is to be seen all the same.
    pub(crate) reboots_often: bool,
    /// Whether a cut of both rails may outlast the completion time-out.
    long_cuts: bool,
    /// Virtual time after which faults end in any case.
    end: u64,
    /// Cards die.
    kills: bool,
}

impl Faults {
    pub(crate) fn new(mut random: Random) -> Self {
        let pause = [1_500_000, 4_000_000, 12_000_000][random.index(3)];
        let reboots = if random.chance(400) { random.range(1, 3) as u32 } else { 0 };
        let long_cuts = random.chance(150);
        Self {
            random,
            begin: 5_000_000,
            pause,
            reboots,
            reboots_often: false,
            long_cuts,
            end: 30_000_000_000,
            kills: true,
        }
    }

    /// None, and they are over at `end`.
    #[cfg(test)]
    pub(crate) fn none(end: u64) -> Self {
        Self { begin: end, end: end - 1, kills: false, ..Self::new(Random::new(0)) }
    }

    /// For worlds of which there are few: with guests and with media that fail.
    pub(crate) fn with_reboots(random: Random) -> Self {
        let mut faults = Self { reboots_often: true, ..Self::new(random) };
        faults.reboots += faults.random.range(0, 3) as u32;
        faults
    }

    /// Guests' drivers would have to begin anew after a long silence; and slots have to find out what they have before
    /// there is a guest to whom anything can happen.
    pub(crate) fn for_guests(mut self) -> Self {
        self.long_cuts = false;
        self.pause *= 4;
        if self.random.chance(700) {
            self.begin = 100_000_000;
        }
        self
    }

    /// So that there are more lives than elsewhere.
    pub(crate) fn reboot_often(&mut self) {
        self.reboots_often = true;
        self.reboots += 4;
    }

    /// Whether they end now, when so many of all requests have ended.
    pub(crate) fn are_over(&self, now: u64, [total, ended]: [u32; 2]) -> bool {
        ended * 100 >= total * 85 || now > self.end
    }

    /// They go on until then, at least.
    pub(crate) fn go_on_until(&mut self, until: u64) {
        self.end = self.end.max(until);
    }

    /// How long it is to the one after that.
    pub(crate) fn pause(&mut self, is_long: bool) -> u64 {
        let pause = if is_long { LONG_PAUSE } else { self.pause };
        self.random.range(pause / 4, pause * 2)
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

    /// Rails go.
    pub(crate) fn cut(&mut self, stage: &mut Stage<'_>, traffic: &mut Traffic) {
        if let Some(cut) = self.next_cut(traffic.network.is_cut()) {
            traffic.cut(stage, cut);
        }
    }

    /// A card dies, now or some time.
    pub(crate) fn kill(&mut self, stage: &mut Stage<'_>, node: usize) {
        let now = self.random.chance(150) && self.kills;
        if stage.nodes[node].card.is_some() && now {
            stage.bury(node);
        } else {
            self.arm(stage.nodes[node].switch);
        }
    }

    /// Lets a card die some time.
    pub(crate) fn arm(&mut self, switch: &Switch<'_>) {
        if !self.kills || switch.is_armed() || !self.random.chance(500) {
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
