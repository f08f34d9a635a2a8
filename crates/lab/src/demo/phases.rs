//! What is done to the two nodes and the network between them, phase by phase, while the load runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::Random;
use program::control::Impairment;
use program::exit::Failure;
use program::status::Status;

use super::load::Load;
use super::network::{ASSIGNED, MACHINE, Network, SLOT, SWITCHED, Which};
use super::report::{Mark, MarkKind, Phase};
use super::show::Show;
use crate::local::{Halt, Interrupt, Node};

/// What the status calls a rail that is in use.
const UP: &str = "up";
const QUIET: Duration = Duration::from_secs(4);
const LOSS: Duration = Duration::from_secs(6);
const CUT: Duration = Duration::from_secs(3);
/// A rail is given up after less, on any machine; a hasty demo waits so long for it.
const CUT_MIN: Duration = Duration::from_secs(2);
const AFTER_CUT: Duration = Duration::from_secs(1);
/// Each switch once.
const SWITCHES: [Which; 2] = [Which::Near, Which::Far];
/// A switch is away for so long.
const SWITCH_AWAY: Duration = Duration::from_secs(1);
/// In either direction of the rail that is slow.
const SLOWNESS: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_secs(3);
/// A rail that has become slow has lost its traffic by then, on any machine.
const SLOW_SETTLES: Duration = Duration::from_secs(1);
/// What is measured then lasts at least so long.
const SLOW_MIN: Duration = Duration::from_secs(1);
/// Of the frames, so many may still go over a slow rail: it is asked how it is doing.
const SLOW_SHARE_MAX: f64 = 0.25;
/// The manager is away for so long.
const MANAGER_AWAY: Duration = Duration::from_millis(1500);
/// Before it is killed, and after a drive was taken back.
const AROUND_MANAGER: Duration = Duration::from_millis(500);
const KILLS: u32 = 5;
/// Between kills: so long, plus a random part, so that cards die at moments nobody chose.
const BETWEEN_KILLS: Duration = Duration::from_millis(600);
const BETWEEN_KILLS_RANDOM_US: u64 = 600_000;
/// Five of a hundred frames.
const FIVE_PERCENT_PPM: u32 = 50_000;
/// Time until a rail that was restored must be in use again.
const RAIL_BACK_MAX: Duration = Duration::from_secs(20);
/// Time until I/O must go on after a kill, and the node must name its new card. Requests fail before that.
const RECOVERY_MAX: Duration = Duration::from_secs(40);
/// How often the phases look at interrupts, the load and the progress bar.
const TICK: Duration = Duration::from_millis(40);
/// How often both nodes are asked for their counters.
const SAMPLE: Duration = Duration::from_millis(400);
/// How finely the end of a recovery is waited for.
const RECOVERY_POLL: Duration = Duration::from_millis(2);

/// How long all phases take, if nothing needs waiting for.
pub(super) const PLANNED: Duration = Duration::from_millis(
    (QUIET.as_millis()
        + LOSS.as_millis()
        + 2 * (CUT.as_millis() + AFTER_CUT.as_millis())
        + SWITCHES.len() as u128 * (SWITCH_AWAY.as_millis() + AFTER_CUT.as_millis())
        + SLOW_SETTLES.as_millis()
        + SLOW.as_millis()
        + MANAGER_AWAY.as_millis()
        + 2 * AROUND_MANAGER.as_millis()) as u64
        + 2 * KILLS as u64 * (BETWEEN_KILLS.as_millis() as u64 + BETWEEN_KILLS_RANDOM_US / 2000),
);

/// The nodes, the load, and what was seen so far.
pub(super) struct Stage<'a, 'n> {
    /// Lends the image.
    pub lender: &'a Node,
    /// Serves it to the load.
    pub borrower: &'a Node,
    /// Joins them.
    pub network: &'a mut Network<'n>,
    /// Reads and writes.
    pub load: &'a mut dyn Load,
    /// Whether somebody wants it to end.
    pub interrupt: &'a Interrupt,
    /// What is shown meanwhile.
    pub show: &'a mut Show,
    /// The phases that ended.
    pub phases: Vec<Phase>,
    /// What was done when.
    pub marks: Vec<Mark>,
    current: &'static str,
    notes: Notes,
    retransmissions: Retransmissions,
    next_sample: Instant,
    random: Random,
    /// How long the phases are, in percent of their length.
    pace: u8,
}

/// What a phase found out beside the tally.
#[derive(Default)]
struct Notes {
    killed_pids: Vec<u32>,
    card_recoveries_s: Vec<f64>,
    rail_down_s: Option<f64>,
    rail_up_again_s: Option<f64>,
    slow_rail_share: Option<f64>,
}

#[derive(Clone, Copy)]
enum Victim {
    Borrower,
    Lender,
}

impl<'a, 'n> Stage<'a, 'n> {
    /// A stage before its first phase.
    pub(super) fn new(
        (lender, borrower): (&'a Node, &'a Node),
        network: &'a mut Network<'n>,
        load: &'a mut dyn Load,
        interrupt: &'a Interrupt,
        show: &'a mut Show,
        (seed, pace): (u64, u8),
    ) -> Self {
        Self {
            lender,
            borrower,
            network,
            load,
            interrupt,
            show,
            phases: Vec::new(),
            marks: Vec::new(),
            current: "",
            notes: Notes::default(),
            retransmissions: Retransmissions::default(),
            next_sample: Instant::now(),
            random: Random::of(seed, "phases"),
            pace,
        }
    }

    /// Runs all phases, or up to the first that cannot be ended.
    pub(super) fn run(&mut self) -> Result<(), Halt> {
        self.sample()?;
        self.retransmissions.total = 0;
        self.phase("quiet", |stage| stage.hold(stage.paced(QUIET)))?;
        self.phase("loss", Self::loss)?;
        self.phase("rail-cut", Self::rail_cut)?;
        self.phase("kill-borrower-card", |stage| stage.kills(Victim::Borrower))?;
        self.phase("kill-lender-card", |stage| stage.kills(Victim::Lender))?;
        self.phase("switch-kill", Self::switch_kills)?;
        self.phase("inter-switch-cut", Self::inter_switch_cut)?;
        self.phase("slow-rail", Self::slow_rail)?;
        self.phase("manager-kill", Self::manager_kill)
    }

    fn phase(
        &mut self,
        name: &'static str,
        body: impl FnOnce(&mut Self) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        self.current = name;
        self.show.doing(name);
        self.load.begin()?;
        let start_s = self.now_s();
        let result = body(self);
        if result.is_err() {
            self.restore_rails();
        }
        // A phase that failed still counts: with what it has.
        let sampled = self.sample();
        let tally = self.load.end();
        let notes = std::mem::take(&mut self.notes);
        let seconds =
            |durations: &[Duration]| durations.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
        let recoveries_s = seconds(&tally.recoveries);
        self.phases.push(Phase {
            name,
            bytes_verified: tally.bytes_verified,
            io_errors: tally.io_errors,
            longest_gap_s: tally.longest_gap.as_secs_f64(),
            retransmissions: std::mem::take(&mut self.retransmissions.total),
            recovery_s: recoveries_s.iter().copied().reduce(f64::max),
            killed_pid: notes.killed_pids.last().copied(),
            corrupted_bytes: tally.corrupted_bytes,
            completions: tally.completions,
            start_s,
            seconds: self.now_s() - start_s,
            recoveries_s,
            killed_pids: notes.killed_pids,
            card_recoveries_s: notes.card_recoveries_s,
            rail_down_s: notes.rail_down_s,
            rail_up_again_s: notes.rail_up_again_s,
            slow_rail_share: notes.slow_rail_share,
        });
        if let Some(phase) = self.phases.last() {
            self.show.phase(phase);
        }
        result.and(sampled.map_err(Halt::from))
    }

    fn loss(&mut self) -> Result<(), Halt> {
        let bad = Impairment {
            drop_ppm: FIVE_PERCENT_PPM,
            repeat_ppm: FIVE_PERCENT_PPM,
            reorder_ppm: FIVE_PERCENT_PPM,
            corrupt_ppm: FIVE_PERCENT_PPM,
            ..Impairment::default()
        };
        self.impair_all(&bad)?;
        self.hold(self.paced(LOSS))?;
        self.impair_all(&Impairment::default())?;
        Ok(())
    }

    /// At both ends of the rail.
    fn rail_cut(&mut self) -> Result<(), Halt> {
        self.cut(SWITCHED, |stage, is_cut| {
            let how = Impairment {
                rail: SWITCHED.to_owned(),
                cut_in: is_cut,
                cut_out: is_cut,
                ..Impairment::default()
            };
            stage.borrower.impair(how.clone())?;
            stage.lender.impair(how)
        })
    }

    /// Between the switches, where no end of the rail sees it.
    fn inter_switch_cut(&mut self) -> Result<(), Halt> {
        self.cut("the link between the switches", |stage, is_cut| {
            stage.network.wire.cut(is_cut);
            Ok(())
        })
    }

    /// Cuts the rail by the switches somewhere, and restores it.
    fn cut(&mut self, what: &str, set: impl Fn(&Self, bool) -> Result<(), Failure>) -> Result<(), Halt> {
        // What was done before may have cost it its good name.
        self.wait_up("in use before it was cut")?;
        self.mark(MarkKind::RailCut, format!("{what} cut"));
        set(self, true)?;
        let cut_at = Instant::now();
        let cut_for = self.paced(CUT).max(CUT_MIN);
        while cut_at.elapsed() < cut_for {
            self.hold(TICK)?;
            if self.notes.rail_down_s.is_none() && !is_up(&self.borrower.status()?, SWITCHED) {
                self.notes.rail_down_s = Some(cut_at.elapsed().as_secs_f64());
            }
        }
        set(self, false)?;
        self.mark(MarkKind::RailRestored, format!("{what} restored"));
        if self.notes.rail_down_s.is_none() {
            return Err(Failure::failed(format_args!("{what} was cut, and the status called it up")).into());
        }
        self.notes.rail_up_again_s = Some(self.wait_up("taken up again after its restoration")?);
        self.hold(self.paced(AFTER_CUT))
    }

    /// Each switch dies, and another one comes, which knows nothing.
    fn switch_kills(&mut self) -> Result<(), Halt> {
        for which in SWITCHES {
            self.wait_up("in use before a switch was killed")?;
            let Some(killed) = self.network.kill_switch(which) else { continue };
            self.load.killed(Instant::now());
            self.notes.killed_pids.push(killed);
            self.mark(MarkKind::Kill, format!("switch {}, process {killed}, killed", which.name()));
            self.goes_on(&format!("the {} switch was killed", which.name()))?;
            self.hold(self.paced(SWITCH_AWAY))?;
            self.network.start_switch(which)?;
            self.mark(MarkKind::RailRestored, format!("switch {} started", which.name()));
            self.notes.rail_up_again_s = Some(self.wait_up("taken up again with a new switch")?);
            self.hold(self.paced(AFTER_CUT))?;
        }
        Ok(())
    }

    /// A rail that takes long is used no more than to find out that it still does.
    fn slow_rail(&mut self) -> Result<(), Halt> {
        self.wait_up("in use before it was slow")?;
        let milliseconds = SLOWNESS.as_millis();
        self.network.wire.slow(SLOWNESS);
        self.mark(MarkKind::RailSlowed, format!("the link between the switches takes {milliseconds} ms"));
        self.hold(SLOW_SETTLES)?;
        let before = self.frames()?;
        self.hold(self.paced(SLOW).max(SLOW_MIN))?;
        let after = self.frames()?;
        self.network.wire.slow(Duration::ZERO);
        self.mark(MarkKind::RailRestored, "the link between the switches is quick again".to_owned());
        let [switched, all] = [0, 1].map(|which| after[which].saturating_sub(before[which]) as f64);
        let share = if all > 0.0 { switched / all } else { 1.0 };
        self.notes.slow_rail_share = Some(share);
        if share > SLOW_SHARE_MAX {
            let percent = share * 100.0;
            let what = format!("{SWITCHED} was slow, and carried {percent:.0} % of the frames all the same");
            return Err(Failure::failed(what).into());
        }
        Ok(())
    }

    /// The borrower gets a second drive; the manager that has said so dies; and the next one takes it back.
    fn manager_kill(&mut self) -> Result<(), Halt> {
        self.network.fabric.wait_known(ASSIGNED, MACHINE)?;
        self.network.fabric.assign(ASSIGNED, Some(SLOT))?;
        self.wait_slot("up")?;
        self.mark(MarkKind::Assigned, format!("{ASSIGNED} assigned to {SLOT} of the borrower"));
        self.hold(self.paced(AROUND_MANAGER))?;
        let killed = self.network.fabric.kill();
        self.load.killed(Instant::now());
        self.notes.killed_pids.extend(killed);
        let pid = killed.unwrap_or_default();
        self.mark(MarkKind::Kill, format!("the manager, process {pid}, killed"));
        self.goes_on("the manager was killed")?;
        self.hold(self.paced(MANAGER_AWAY))?;
        let state = self.borrower.slot_state(SLOT)?;
        if state != "up" {
            let what = format!("without a manager the loan in {SLOT} is `{state}`, and was up");
            return Err(Failure::failed(what).into());
        }
        self.network.fabric.start()?;
        self.mark(MarkKind::ManagerStarted, "another manager started".to_owned());
        self.network.fabric.wait_reachable()?;
        self.network.fabric.assign(ASSIGNED, None)?;
        self.wait_slot("vacant")?;
        self.mark(MarkKind::Unassigned, format!("{ASSIGNED} taken back"));
        self.hold(self.paced(AROUND_MANAGER))
    }

    /// Waits until the borrower says that of the slot that a manager fills.
    fn wait_slot(&self, state: &str) -> Result<(), Halt> {
        let what = format!("{SLOT} of the borrower to be {state}");
        self.network.fabric.until(&what, || Ok(self.borrower.slot_state(SLOT)? == state))
    }

    /// Frames that the borrower has sent: over the rail by the switches, and all.
    fn frames(&self) -> Result<[u64; 2], Failure> {
        let all = self.borrower.status()?.channels.iter().map(|channel| channel.sent_frames).sum();
        Ok([self.network.switched_frames()?, all])
    }

    /// Waits until the borrower calls the rail by the switches up, and returns how long that took, in seconds.
    fn wait_up(&mut self, what: &str) -> Result<f64, Halt> {
        let start = Instant::now();
        while !is_up(&self.borrower.status()?, SWITCHED) {
            if start.elapsed() > RAIL_BACK_MAX {
                let seconds = RAIL_BACK_MAX.as_secs();
                return Err(
                    Failure::failed(format_args!("{SWITCHED} was not {what} within {seconds} s")).into()
                );
            }
            self.hold(RECOVERY_POLL)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn kills(&mut self, victim: Victim) -> Result<(), Halt> {
        let node = match victim {
            Victim::Borrower => self.borrower,
            Victim::Lender => self.lender,
        };
        for _ in 0..(KILLS * u32::from(self.pace)).div_ceil(100) {
            let random = Duration::from_micros(self.random.below(BETWEEN_KILLS_RANDOM_US));
            self.hold(BETWEEN_KILLS + random)?;
            let card = node.card()?;
            let killed = node.kill_card(&card)?;
            self.load.killed(Instant::now());
            self.notes.killed_pids.push(killed);
            self.mark(MarkKind::Kill, format!("card {killed} of the {} killed", node.role()));
            self.recovered(node, killed)?;
        }
        self.hold(BETWEEN_KILLS)
    }

    /// Waits until I/O goes on and the node names another card.
    fn recovered(&mut self, node: &Node, killed: u32) -> Result<(), Halt> {
        let after = format!("a card of the {} was killed", node.role());
        self.goes_on(&after)?;
        let start = Instant::now();
        loop {
            let card = node.status()?.cards.into_iter().next();
            if let Some(card) = card.filter(|card| card.pid.is_some_and(|pid| pid != killed)) {
                self.notes.card_recoveries_s.extend(card.last_recovery_s);
                return Ok(());
            }
            in_time(start, "no new card was named", &after)?;
            self.hold(RECOVERY_POLL)?;
        }
    }

    /// Waits until a request completes that was sent after something was killed.
    fn goes_on(&mut self, after: &str) -> Result<(), Halt> {
        let start = Instant::now();
        while self.load.is_recovering()? {
            self.check()?;
            in_time(start, "no I/O completed", after)?;
            std::thread::sleep(RECOVERY_POLL);
        }
        Ok(())
    }

    fn paced(&self, duration: Duration) -> Duration {
        duration * u32::from(self.pace) / 100
    }

    /// Lets time pass, while everything is watched.
    fn hold(&mut self, duration: Duration) -> Result<(), Halt> {
        let end = Instant::now() + duration;
        loop {
            self.check()?;
            let now = Instant::now();
            if now >= self.next_sample {
                self.sample()?;
            }
            let elapsed = now.saturating_duration_since(self.load.origin());
            self.show.tick(self.current, elapsed, &self.phases, &self.load.so_far());
            match end.checked_duration_since(now) {
                Some(rest) if !rest.is_zero() => std::thread::sleep(rest.min(TICK)),
                _ => return Ok(()),
            }
        }
    }

    fn check(&mut self) -> Result<(), Halt> {
        self.interrupt.check()?;
        Ok(self.load.check()?)
    }

    fn sample(&mut self) -> Result<(), Failure> {
        for node in [self.borrower, self.lender] {
            self.retransmissions.observe(node.role(), &node.status()?);
        }
        self.next_sample = Instant::now() + SAMPLE;
        Ok(())
    }

    fn impair_all(&self, how: &Impairment) -> Result<(), Failure> {
        for node in [self.borrower, self.lender] {
            for rail in node.status()?.rails {
                node.impair(Impairment { rail: rail.name, ..how.clone() })?;
            }
        }
        Ok(())
    }

    /// So that what is in flight can end after a phase that failed.
    fn restore_rails(&self) {
        self.network.wire.cut(false);
        self.network.wire.slow(Duration::ZERO);
        if let Err(failure) = self.impair_all(&Impairment::default()) {
            tracing::debug!(%failure, "the rails stay impaired");
        }
    }

    fn mark(&mut self, kind: MarkKind, text: String) {
        self.show.event(&text);
        self.marks.push(Mark { at_s: self.now_s(), kind, text });
    }

    fn now_s(&self) -> f64 {
        self.load.origin().elapsed().as_secs_f64()
    }
}

/// It is not yet too late for something since a kill.
fn in_time(start: Instant, what: &str, after: &str) -> Result<(), Failure> {
    if start.elapsed() <= RECOVERY_MAX {
        return Ok(());
    }
    let seconds = RECOVERY_MAX.as_secs();
    Err(Failure::failed(format_args!("{what} within {seconds} s after {after}")))
}

fn is_up(status: &Status, rail: &str) -> bool {
    status.rails.iter().any(|known| known.name == rail && known.state == UP)
}

/// Sums counters that begin anew with each card.
#[derive(Default)]
struct Retransmissions {
    last: BTreeMap<(&'static str, String), u64>,
    total: u64,
}

impl Retransmissions {
    fn observe(&mut self, node: &'static str, status: &Status) {
        for channel in &status.channels {
            let now = channel.retransmissions;
            let last = self.last.insert((node, channel.peer.clone()), now).unwrap_or(0);
            self.total += now.checked_sub(last).unwrap_or(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::status::{Channel, Node as NodeStatus, Rail};

    fn status(rails: &[(&str, &str)], retransmissions: u64) -> Status {
        let mut status = Status::new(NodeStatus::default());
        let rail = |&(name, state): &(&str, &str)| Rail {
            name: name.to_owned(),
            state: state.to_owned(),
            ..Rail::default()
        };
        status.rails = rails.iter().map(rail).collect();
        status.channels = vec![Channel { peer: "p".to_owned(), retransmissions, ..Channel::default() }];
        status
    }

    #[test]
    fn retransmissions_go_on_where_a_new_card_counts_from_zero() {
        let mut sum = Retransmissions::default();
        for (node, count) in [("a", 5), ("b", 2), ("a", 9), ("b", 2), ("a", 3), ("a", 4)] {
            sum.observe(node, &status(&[], count));
        }
        assert_eq!(sum.total, 5 + 2 + 4 + 3 + 1);
    }

    #[test]
    fn a_rail_is_up_if_it_is_to_anybody() {
        let status = status(&[("b0", "down"), ("b1", "down"), ("b1", "up")], 0);
        assert!(is_up(&status, "b1") && !is_up(&status, "b0") && !is_up(&status, "b2"));
    }

    #[test]
    fn all_phases_stay_far_below_two_minutes() {
        assert!((25..50).contains(&PLANNED.as_secs()), "{PLANNED:?}");
    }
}
