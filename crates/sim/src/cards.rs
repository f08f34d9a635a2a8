//! A node: its agent's side of a card's life, and the card while one lives.

use base::{Instant, Rule};
use core::time::Duration;
use node::{Card, CardConfig};

use crate::checkers::names;
use crate::death::{End, survive};
use crate::marks::Mark;
use crate::media::Media;
use crate::watch::{Scene, Watch};
use crate::world::{BORROWER, LENDER, World};

/// How long a node may be without a card, at most: disks end what was asked of them, the agent pauses since many cards
/// have hardly lived, and the start takes its time.
pub(crate) const LONGEST_ABSENCE: Duration = Duration::from_millis(500);

/// How long the start of a card takes at most.
pub(crate) const LONGEST_START: Duration = Duration::from_millis(300);

impl<'w> World<'w> {
    /// A card's turn: time, then everything that it wants to be done.
    pub(crate) fn run_node(&mut self, node: usize) {
        let due = self.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        if due.is_some_and(|at| at.as_nanos() <= self.clock.now) && !self.act(node, Card::handle_timeout) {
            return;
        }
        self.service(node);
    }

    /// Events, frames, media and edges, until the card has nothing more to say.
    pub(crate) fn service(&mut self, node: usize) {
        self.serve_events(node);
        if node == LENDER {
            self.serve_records();
        }
        self.transmit(node);
        for loan in 0..self.loans.len() {
            if node == LENDER {
                self.serve_media();
            } else {
                self.serve_edges(node, loan);
            }
            if node == BORROWER {
                self.serve_slot(loan);
            }
        }
        self.transmit(node);
        let due = self.nodes[node].card.as_ref().and_then(Card::poll_timeout);
        if let Some(at) = due {
            self.wake_at(node, at.as_nanos());
        }
    }

    /// Lets the card do something: false if it is dead, or dies of it.
    pub(crate) fn act(&mut self, node: usize, work: impl FnOnce(&mut Card<'w>, Instant)) -> bool {
        let now = self.clock.instant();
        let Some(card) = self.nodes[node].card.as_mut() else { return false };
        self.watch.begin_step(node, card);
        match survive(|| work(card, now)) {
            Ok(()) => {
                self.check_step(node);
                !self.report.has_failed()
            }
            Err(end) => {
                self.end_card(node, end);
                false
            }
        }
    }

    /// The checkers, and what they look at.
    pub(crate) fn scene(&mut self) -> (&mut Watch, Scene<'_, 'w>) {
        let (now, nodes, loans) = (self.clock.now, &self.nodes, &mut self.loans);
        (&mut self.watch, Scene { now, nodes, loans, report: &mut self.report })
    }

    /// After each step of a card.
    fn check_step(&mut self, node: usize) {
        let (now, nodes, loans) = (self.clock.now, &self.nodes, &mut self.loans);
        let mut scene = Scene { now, nodes, loans, report: &mut self.report };
        self.watch.end_step(&mut scene, node, self.media.is_some());
        for loan in 0..scene.loans.len() {
            self.watch.check_beliefs(&mut scene, loan);
            self.watch.check_strays(&mut scene, node, loan, |denied, report| {
                let Some(memories) = self.memories.as_ref().filter(|_| node == BORROWER) else { return 0 };
                if let Some(what) = memories.strayed(loan) {
                    let what = format!("loan {loan}: {what} were written, which their guest had taken back");
                    report.fail(names::STRAYS, what);
                }
                let slot = nodes[node].card.as_ref().and_then(|card| card.slot(loan));
                slot.map_or(0, |slot| self.slots[loan].excuse(slot, denied))
            });
        }
        if nodes[node].switch.take_mismatch().is_some() {
            self.report.fail(names::ROLL_BACK, "a roll-back where there was none".into());
        }
    }

    pub(crate) fn end_card(&mut self, node: usize, end: End) {
        match end {
            End::Killed => self.bury(node),
            End::Panicked(what) => self.report.fail(names::ASSERTION, what),
        }
    }

    /// A place at which a card may be killed from outside: true if it was.
    pub(crate) fn dies_here(&mut self, node: usize) -> bool {
        if self.nodes[node].card.is_none() {
            return true;
        }
        if !self.nodes[node].switch.dies_at_effect() {
            return false;
        }
        self.report.marks.set(Mark::EffectKilled);
        self.bury(node);
        true
    }

    /// A card is dead, and its agent notices.
    pub(crate) fn bury(&mut self, node: usize) {
        if self.nodes[node].card.is_some() {
            self.end_life(node);
            self.tell_exit(node);
        }
    }

    /// A card is dead: what it had not committed is to be seen by its successor only.
    pub(crate) fn end_life(&mut self, node: usize) {
        let Some(card) = self.nodes[node].card.take() else { return };
        self.watch.card_died(node, &card);
        self.report.kills += 1;
        self.report.log.event(self.clock.now, Some(node), "dies", self.nodes[node].generation(), 0);
        self.nodes[node].switch.disarm();
        if node == LENDER {
            self.media.iter_mut().for_each(Media::card_died);
        }
        self.nodes[node].wake.stop();
        let is_dead = |node: usize| self.nodes[node].card.is_none();
        self.report.marks.set_if(Mark::BothDead, is_dead(LENDER) && is_dead(BORROWER));
    }

    /// The next card begins on the node's ledger, and may die at once.
    pub(crate) fn start_card(&mut self, node: usize) {
        if self.nodes[node].card.is_some() {
            return self.report.fail(names::ASSERTION, format!("node {node} is to have a second card"));
        }
        if node == LENDER {
            if self.in_rings() > 0 && self.terms.rules.has(Rule::DrainBeforeStart) {
                let what = "a card starts while requests of an earlier one are under way".to_owned();
                return self.report.fail(names::ASSERTION, what);
            }
            self.loans.iter_mut().for_each(|loan| loan.unmarked.clear());
            self.media.iter_mut().for_each(Media::ask_witnesses);
        }
        self.nodes[node].cards += 1;
        let config = self.card_config(node);
        let may_die = !self.faults.are_over() && self.report.kills > 0 && self.random.chance(150);
        if may_die {
            let stores = self.random.below(120);
            self.nodes[node].switch.arm_store(stores);
        }
        self.report.log.event(self.clock.now, Some(node), "start", self.nodes[node].generation(), 0);
        let (memory, switch) = (self.nodes[node].memory, self.nodes[node].switch);
        let rollbacks = switch.rollbacks();
        let now = self.clock.instant();
        let made = survive(|| Card::new(memory, Some(switch), config, now));
        if let Some(offset) = switch.take_mismatch() {
            self.report.fail(
                names::ROLL_BACK,
                format!("offset {offset:#x} of the ledger is not what was committed"),
            );
        }
        self.report.marks.set_if(Mark::RolledBack, switch.rollbacks() > rollbacks);
        self.nodes[node].agent.handle_started(now, node as i32 + 1);
        match made {
            Ok(card) => self.welcome(node, card.expect("the memory was made for it")),
            Err(End::Killed) => {
                self.report.marks.set(Mark::RecoveryKilled);
                self.report.kills += 1;
                self.tell_exit(node);
            }
            Err(End::Panicked(what)) => self.report.fail(names::ASSERTION, what),
        }
    }

    fn welcome(&mut self, node: usize, card: Card<'w>) {
        self.nodes[node].switch.disarm();
        self.watch.listen(self.clock.now, node, &card);
        self.nodes[node].card = Some(card);
        self.nodes[node].agent.handle_running(self.clock.instant());
        let (watch, mut scene) = self.scene();
        watch.card_began(&mut scene, node);
        self.serve_events(node);
        self.faults.arm(self.nodes[node].switch);
        if node == LENDER && !self.tell_losses() {
            return;
        }
        self.tell_neighbours(node);
        for loan in 0..self.loans.len() {
            if node != LENDER {
                self.tell_edges(node, loan);
            }
            if node == BORROWER {
                self.tell_slot(loan);
            }
        }
        self.drive_agent(node);
        self.run_node(node);
    }

    /// The agent's configuration of a node's card.
    pub(crate) fn card_config(&mut self, node: usize) -> CardConfig {
        let mut drives = if node == LENDER { self.terms.drives(&self.loans) } else { Vec::new() };
        for (drive, config) in drives.iter_mut().enumerate() {
            self.media.iter().for_each(|media| media.configure(drive, config));
            self.volatile.iter().for_each(|volatile| volatile.configure(drive, config));
        }
        let mut seed = [0; 32];
        seed.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = self.random.next_u64().to_le_bytes());
        self.terms.config((node, &self.nodes), &self.loans, drives, seed)
    }
}
