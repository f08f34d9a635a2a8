//! What is done to the two nodes, phase by phase, while the load runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::Random;
use program::control::Impairment;
use program::exit::Failure;
use program::status::Status;

use super::load::Load;
use super::report::{Mark, MarkKind, Phase};
use super::show::Show;
use crate::local::{Halt, Interrupt, Node};

/// What the status calls a rail that is in use.
const UP: &str = "up";
const QUIET: Duration = Duration::from_secs(5);
const LOSS: Duration = Duration::from_secs(7);
const CUT: Duration = Duration::from_secs(4);
/// A rail is given up after less, on any machine; a hasty demo waits so long for it.
const CUT_MIN: Duration = Duration::from_secs(2);
const AFTER_CUT: Duration = Duration::from_secs(2);
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
    (QUIET.as_millis() + LOSS.as_millis() + CUT.as_millis() + AFTER_CUT.as_millis()) as u64
        + 2 * KILLS as u64 * (BETWEEN_KILLS.as_millis() as u64 + BETWEEN_KILLS_RANDOM_US / 2000),
);

/// The nodes, the load, and what was seen so far.
pub(super) struct Stage<'a> {
    /// Lends the image.
    pub lender: &'a Node,
    /// Serves it to the load.
    pub borrower: &'a Node,
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
}

#[derive(Clone, Copy)]
enum Victim {
    Borrower,
    Lender,
}

impl<'a> Stage<'a> {
    /// A stage before its first phase.
    pub(super) fn new(
        (lender, borrower): (&'a Node, &'a Node),
        load: &'a mut dyn Load,
        interrupt: &'a Interrupt,
        show: &'a mut Show,
        (seed, pace): (u64, u8),
    ) -> Self {
        Self {
            lender,
            borrower,
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
        self.phase("kill-lender-card", |stage| stage.kills(Victim::Lender))
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

    fn rail_cut(&mut self) -> Result<(), Halt> {
        let (at_borrower, at_lender) = first_rail(&self.borrower.status()?, &self.lender.status()?)?;
        // The loss before may have cost it its good name.
        self.wait_up(&at_borrower, "in use after the loss")?;
        self.mark(MarkKind::RailCut, format!("{at_borrower} cut"));
        let cut = |rail: &str| Impairment {
            rail: rail.to_owned(),
            cut_in: true,
            cut_out: true,
            ..Default::default()
        };
        self.borrower.impair(cut(&at_borrower))?;
        self.lender.impair(cut(&at_lender))?;
        let cut_at = Instant::now();
        let cut_for = self.paced(CUT).max(CUT_MIN);
        while cut_at.elapsed() < cut_for {
            self.hold(TICK)?;
            if self.notes.rail_down_s.is_none() && !is_up(&self.borrower.status()?, &at_borrower) {
                self.notes.rail_down_s = Some(cut_at.elapsed().as_secs_f64());
            }
        }

        let whole = |rail: &str| Impairment { rail: rail.to_owned(), ..Default::default() };
        self.borrower.impair(whole(&at_borrower))?;
        self.lender.impair(whole(&at_lender))?;
        self.mark(MarkKind::RailRestored, format!("{at_borrower} restored"));
        if self.notes.rail_down_s.is_none() {
            return Err(
                Failure::failed(format_args!("{at_borrower} was cut, and the status called it up")).into()
            );
        }
        self.notes.rail_up_again_s =
            Some(self.wait_up(&at_borrower, "taken up again after its restoration")?);
        self.hold(self.paced(AFTER_CUT))
    }

    /// Waits until the borrower calls a rail up, and returns how long that took, in seconds.
    fn wait_up(&mut self, rail: &str, what: &str) -> Result<f64, Halt> {
        let start = Instant::now();
        while !is_up(&self.borrower.status()?, rail) {
            if start.elapsed() > RAIL_BACK_MAX {
                let seconds = RAIL_BACK_MAX.as_secs();
                return Err(Failure::failed(format_args!("{rail} was not {what} within {seconds} s")).into());
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
        let start = Instant::now();
        let in_time = |what: &str| match start.elapsed() > RECOVERY_MAX {
            true => {
                let (role, seconds) = (node.role(), RECOVERY_MAX.as_secs());
                Err(Failure::failed(format_args!(
                    "{what} within {seconds} s after a card of the {role} was killed"
                )))
            }
            false => Ok(()),
        };
        while self.load.is_recovering()? {
            self.check()?;
            in_time("no I/O completed")?;
            std::thread::sleep(RECOVERY_POLL);
        }
        loop {
            let card = node.status()?.cards.into_iter().next();
            if let Some(card) = card.filter(|card| card.pid.is_some_and(|pid| pid != killed)) {
                self.notes.card_recoveries_s.extend(card.last_recovery_s);
                return Ok(());
            }
            in_time("no new card was named")?;
            self.hold(RECOVERY_POLL)?;
        }
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

/// The names that both ends have for the borrower's first rail.
fn first_rail(borrower: &Status, lender: &Status) -> Result<(String, String), Failure> {
    let (Some(near), Some(first)) = (borrower.rails.first(), lender.rails.first()) else {
        return Err(Failure::failed("a node has no rail in its status"));
    };
    // The lender may list its rails in another order: theirs is where ours goes to.
    let far =
        lender.rails.iter().find(|rail| !near.peer.is_empty() && rail.local == near.peer).unwrap_or(first);
    Ok((near.name.clone(), far.name.clone()))
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

    fn status(rails: &[(&str, &str, &str)], retransmissions: u64) -> Status {
        let mut status = Status::new(NodeStatus::default());
        let rail = |&(name, local, peer): &(&str, &str, &str)| Rail {
            name: name.to_owned(),
            local: local.to_owned(),
            peer: peer.to_owned(),
            state: "down".to_owned(),
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
    fn both_ends_of_the_first_rail_are_found() {
        let borrower =
            status(&[("b0", "127.0.0.1:9", "127.0.0.1:7411"), ("b1", "127.0.0.2:9", "127.0.0.2:7411")], 0);
        let swapped = status(&[("l0", "127.0.0.2:7411", ""), ("l1", "127.0.0.1:7411", "")], 0);
        assert_eq!(first_rail(&borrower, &swapped).unwrap(), ("b0".to_owned(), "l1".to_owned()));
        let unknown = status(&[("l0", "0.0.0.0:1", "")], 0);
        assert_eq!(first_rail(&borrower, &unknown).unwrap().1, "l0");
        assert!(first_rail(&borrower, &status(&[], 0)).is_err());
        let mut one_up = borrower;
        one_up.rails[1].state = "up".to_owned();
        assert!(is_up(&one_up, "b1") && !is_up(&one_up, "b0") && !is_up(&one_up, "b2"));
    }

    #[test]
    fn all_phases_stay_far_below_two_minutes() {
        assert!((25..50).contains(&PLANNED.as_secs()), "{PLANNED:?}");
    }
}
