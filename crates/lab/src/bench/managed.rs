//! Two nodes of a fabric with a manager: how long an assignment takes, and what the manager's death does to a loan.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use program::exit::Failure;

use super::attach_gap::{BLOCK, each_gap};
use super::case::Transport;
use super::core_to_core::round_trip_ns;
use super::loans::Nodes;
use super::report::{PERCENTS, Round};
use super::slot_client::read_capabilities;
use crate::local::{Fabric, Halt, Interrupt, Scratch, own_address};
use crate::nbd_client::{NbdClient, NbdError};

const PORT: u16 = 7443;
const OTHER_PORT: u16 = 7444;
/// Functions that are assigned, one after the other: of one that changes hands more often than twice a second its
/// lender writes down the next change only when that is over.
const FUNCTIONS: usize = 16;
const MACHINE: &str = "machine";
const SLOT: &str = "machine/slot";
/// How often a driver looks whether its drive is there.
const LOOK: Duration = Duration::from_micros(500);
const PATIENCE: Duration = Duration::from_secs(20);
/// Deaths of the manager in a round.
const KILLS: usize = 3;
/// For so long after a death nobody starts another one.
const AWAY: Duration = Duration::from_millis(200);
/// How often the nodes are asked whether they hear a manager, whichever one dies.
const POLL: Duration = Duration::from_millis(20);

/// A manager, and two nodes that have joined: a loan, and a slot.
struct Ground<'a> {
    fabric: Fabric<'a>,
    nodes: Nodes,
    /// Of the slot.
    socket: PathBuf,
}

impl<'a> Ground<'a> {
    fn start(transport: Transport, scratch: &'a Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let fabric = Fabric::found(scratch, (own_address(), PORT).into(), interrupt)?;
        fabric.join("lender")?;
        fabric.join("borrower")?;
        let socket = scratch.join("slot.sock");
        let domains = format!(
            "[[domains]]\nname = '{MACHINE}'\nkind = 'vm'\n[[domains.slots]]\nname = 'slot'\nsocket = '{}'\n",
            socket.display()
        );
        let nodes = Nodes::start((1, FUNCTIONS), transport, &domains, scratch, interrupt)?;
        fabric.wait_known(&function(FUNCTIONS - 1), MACHINE)?;
        Ok(Self { fabric, nodes, socket })
    }

    fn stop(self) -> Result<(), Failure> {
        self.nodes.borrower.stop()?;
        self.nodes.lender.stop()?;
        self.fabric.stop()
    }
}

/// The name of a function that is assigned; the first of the drive is lent on its line.
fn function(number: usize) -> String {
    format!("d0-{}", number % FUNCTIONS + 2)
}

/// Assigns.
pub(super) struct Assign<'a> {
    ground: Ground<'a>,
    assigned: usize,
    interrupt: &'a Interrupt,
}

impl<'a> Assign<'a> {
    /// Starts manager and nodes.
    pub(super) fn start(scratch: &'a Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let ground = Ground::start(Transport::Udp { sealed: true }, scratch, interrupt)?;
        Ok(Self { ground, assigned: 0, interrupt })
    }

    /// Milliseconds from the start of the command until a driver that waits for its drive has read a register of it.
    pub(super) fn round(&mut self) -> Result<Round, Halt> {
        let Ground { fabric, nodes, socket } = &self.ground;
        let function = function(self.assigned);
        self.assigned += 1;
        let before = round_trip_ns();
        let start = Instant::now();
        let was_refused = AtomicBool::new(false);
        let (told, took) = std::thread::scope(|scope| {
            let driver = scope.spawn(|| {
                while start.elapsed() < PATIENCE && !was_refused.load(Ordering::Relaxed) {
                    if read_capabilities(socket).is_ok() {
                        return Some(start.elapsed());
                    }
                    std::thread::sleep(LOOK);
                }
                None
            });
            let told = fabric.assign(&function, Some(SLOT));
            was_refused.store(told.is_err(), Ordering::Relaxed);
            (told, driver.join().expect("a driver that reads a register does not panic"))
        });
        told?;
        let took = took.ok_or_else(|| {
            let seconds = PATIENCE.as_secs();
            Failure::failed(format!("{function} was assigned, and its slot was empty for {seconds} s"))
        })?;
        let core_to_core_ns = super::mean(before, round_trip_ns());
        self.interrupt.check()?;
        fabric.assign(&function, None)?;
        let is_vacant = || Ok(nodes.borrower.slot_state(SLOT)? == "vacant" && !socket.exists());
        fabric.until("an empty slot", is_vacant)?;
        Ok(Round { value: took.as_secs_f64() * 1e3, core_to_core_ns, ..Round::default() })
    }

    /// Ends all in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.ground.stop()
    }
}

/// A busy loan, whose nodes have a manager that dies again and again, beside that of another fabric, which dies as
/// often: a program that starts takes processors from everybody, whoever it is.
pub(super) struct ManagerKill<'a> {
    ground: Ground<'a>,
    other: Fabric<'a>,
    client: NbdClient,
    blocks: u64,
    next: u64,
    rounds: u32,
    /// How long the nodes took to hear their next manager, at last: for so long they are watched with the other one.
    heard: Duration,
    interrupt: &'a Interrupt,
}

impl<'a> ManagerKill<'a> {
    /// Starts managers and nodes, with something assigned.
    pub(super) fn start(
        transport: Transport,
        (scratch, other): (&'a Scratch, &'a Scratch),
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let ground = Ground::start(transport, scratch, interrupt)?;
        ground.fabric.assign(&function(0), Some(SLOT))?;
        let other = Fabric::found(other, (own_address(), OTHER_PORT).into(), interrupt)?;
        let client = NbdClient::connect(&ground.nodes.sockets[0], PATIENCE)?;
        let blocks = client.size() / u64::from(BLOCK);
        let (next, rounds, heard) = (0, 0, Duration::ZERO);
        let mut it = Self { ground, other, client, blocks, next, rounds, heard, interrupt };
        // All of it takes longer when it is first.
        it.measured(true)?;
        Ok(it)
    }

    /// The longest gap in milliseconds, and how all are distributed: with deaths of the nodes' manager, and with as
    /// many of the other one.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.rounds += 1;
        super::in_turns(self.rounds - 1, self, |it| it.measured(true), |it| it.measured(false))
    }

    fn measured(&mut self, is_own: bool) -> Result<Round, Halt> {
        let before = round_trip_ns();
        let is_over = AtomicBool::new(false);
        let (client, blocks, next) = (&mut self.client, self.blocks, &mut self.next);
        let (ground, other) = (&mut self.ground, &mut self.other);
        let (heard, interrupt) = (&mut self.heard, self.interrupt);
        let (done, gaps) = std::thread::scope(|scope| {
            let goes_on = || !is_over.load(Ordering::Relaxed);
            let gaps = scope.spawn(move || {
                let mut gaps = Vec::new();
                each_gap(client, (blocks, next), goes_on, |gap| gaps.push(gap.as_secs_f64() * 1e6))?;
                Ok::<_, NbdError>(gaps)
            });
            let done = (0..KILLS).try_for_each(|_| match is_own {
                true => ground.kill_manager(interrupt).map(|took| *heard = took),
                false => ground.kill_other(other, *heard, interrupt),
            });
            is_over.store(true, Ordering::Relaxed);
            (done, gaps.join().expect("reading a drive does not panic"))
        });
        done?;
        let latencies_us = distribution(gaps?);
        let longest_us = latencies_us.last().map_or(0.0, |(_, us)| *us);
        let core_to_core_ns = super::mean(before, round_trip_ns());
        let shown = latencies_us.into_iter().filter(|(percent, _)| PERCENTS.contains(percent)).collect();
        let round = Round { value: longest_us / 1e3, core_to_core_ns, ..Round::default() };
        Ok(round.with_latencies(shown))
    }

    /// Ends all in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        drop(self.client);
        self.other.stop()?;
        self.ground.stop()
    }
}

impl Ground<'_> {
    /// The nodes' manager dies, and another one is started; how long both nodes take then until they have heard it.
    fn kill_manager(&mut self, interrupt: &Interrupt) -> Result<Duration, Halt> {
        let epochs = self.epochs()?;
        self.fabric.kill();
        self.watch(AWAY, interrupt)?;
        self.fabric.start()?;
        let start = Instant::now();
        while self.epochs()?.iter().zip(&epochs).any(|(now, before)| now <= before) {
            if start.elapsed() > PATIENCE {
                let seconds = PATIENCE.as_secs();
                let what = format!("a node has not heard the next manager for {seconds} s");
                return Err(Failure::failed(what).into());
            }
            self.watch(POLL, interrupt)?;
        }
        Ok(start.elapsed())
    }

    /// The same with a manager that they know nothing of.
    fn kill_other(&self, other: &mut Fabric<'_>, heard: Duration, interrupt: &Interrupt) -> Result<(), Halt> {
        other.kill();
        self.watch(AWAY, interrupt)?;
        other.start()?;
        self.watch(heard, interrupt)
    }

    /// Looks at the nodes, which is all that is done meanwhile.
    fn watch(&self, duration: Duration, interrupt: &Interrupt) -> Result<(), Halt> {
        let end = Instant::now() + duration;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            interrupt.check()?;
            self.epochs()?;
            std::thread::sleep(left.min(POLL));
        }
        Ok(())
    }

    /// Of the managers that the nodes have heard.
    fn epochs(&self) -> Result<[u64; 2], Failure> {
        let of = |status: program::status::Status| status.fabric.map_or(0, |fabric| fabric.epoch);
        Ok([of(self.nodes.lender.status()?), of(self.nodes.borrower.status()?)])
    }
}

/// Percents of the values, and how large they are at most; the largest at the end.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let Some(largest) = values.last().copied() else { return Vec::new() };
    let at = |percent: f64| values[((values.len() as f64 * percent / 100.0).ceil() as usize).max(1) - 1];
    PERCENTS.iter().map(|percent| (*percent, at(*percent))).chain([(100.0, largest)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_ends_with_the_largest() {
        let found = distribution((1..=1000).rev().map(f64::from).collect());
        let of = |percent: f64| found.iter().find(|(known, _)| *known == percent).unwrap().1;
        assert_eq!([50.0, 99.0, 99.95, 100.0].map(of), [500.0, 990.0, 1000.0, 1000.0]);
        assert_eq!(distribution(vec![3.0]).first(), Some(&(1.0, 3.0)));
        assert!(distribution(Vec::new()).is_empty());
    }

    #[test]
    fn assigned_functions_are_not_the_one_that_is_lent() {
        let names: std::collections::BTreeSet<_> = (0..100).map(function).collect();
        assert_eq!(names.len(), FUNCTIONS);
        assert!(names.contains("d0-2") && names.contains("d0-17") && !names.contains("d0-1"));
    }
}
