//! What the agent of a node decides, without doing any of it.
//!
//! An agent keeps what must outlive a card, starts a card whenever there is none, and makes durable what a card may
//! rely on. [`Agent`] is the part that decides: it is told what has happened, and gives out what is to be done
//! ([`Effect`]) and what the log is to say ([`Event`]). Two drivers run it: `io::agent` with processes, files and
//! sockets, `sim` in virtual time.
//!
//! After each verb the driver takes all effects, in order, and tells what came of each; then it asks
//! [`Agent::poll_timeout`].

mod event;
mod life;
mod patience;
mod standing;
mod tenancy;
mod watchdog;

use core::time::Duration;
use std::collections::VecDeque;

use base::ids::NodeId;
use base::{Instant, RuleSet};

pub use event::Event;
use life::Life;
pub use life::{CardRecord, Exit, Unfinished};
use link::Tenancy;
pub use patience::Patience;
use standing::Standing;
use tenancy::{Holders, Incarnations, Tenants};
pub use watchdog::{Beat, Condition, Fault, Process, Rest, State};

use crate::Whereabouts;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start a card: [`Agent::handle_started`] or [`Agent::handle_start_failed`] follows.
    Start {
        /// What frames of this card are told from those of its predecessors by.
        generation: u64,
    },
    /// End the card: [`Agent::handle_exit`] follows.
    Kill,
    /// Wait until the disks have ended what a dead card has asked for: [`Agent::handle_drained`] follows.
    Drain {
        /// For so long at most.
        wait: Duration,
    },
    /// Look whether the card makes turns: [`Agent::handle_beat`] follows.
    Look,
    /// Make durable who uses what is lent: [`Agent::handle_tenancy_stored`] follows.
    StoreTenancy {
        /// The loan.
        loan: usize,
        /// In place of what is kept of it.
        tenancy: Tenancy,
    },
    /// It is durable, also for cards to come: tell the card.
    TellTenancy {
        /// The loan.
        loan: usize,
        /// What is durable.
        tenancy: Tenancy,
    },
    /// Make durable where a node is that uses what is lent, in place of what is kept of it:
    /// [`Agent::handle_holder_stored`] follows, and cards to come are told.
    StoreHolder(Whereabouts),
    /// Make an incarnation durable that is greater than this one, which a lender has seen of this node:
    /// [`Agent::handle_incarnation_raised`] follows, unless that cannot be.
    RaiseIncarnation {
        /// The loan.
        loan: usize,
        /// What the lender has seen.
        seen: u64,
    },
    /// Tell the card that the node ends, and that everything is to be given back.
    TellEnd,
    /// Tell it to give back what this loan has borrowed: [`Agent::handle_given_back`] follows.
    TellReturn {
        /// The loan.
        loan: usize,
    },
    /// Tell it to end what this loan has borrowed without its lender: [`Agent::handle_given_back`] follows.
    TellForget {
        /// The loan.
        loan: usize,
    },
    /// Tell it of the loan that a vacant place has now.
    TellLoan {
        /// The place.
        loan: usize,
    },
    /// Tell it of a drive that is lent from now on, with the loans of its functions.
    TellDrive {
        /// The drive.
        drive: usize,
    },
    /// Tell it that a drive is lent no more.
    TellWithdrawal {
        /// The drive.
        drive: usize,
    },
    /// Tell it whether the function of a slot is there for its machine.
    TellPresence {
        /// The loan.
        loan: usize,
        /// Whether it answers.
        is_present: bool,
    },
    /// The place has no loan any more: nobody is accepted there.
    Vacate {
        /// The place.
        loan: usize,
    },
    /// The node calls itself by this incarnation in a borrowed loan, also for cards to come: tell the card.
    TellIncarnation {
        /// The loan.
        loan: usize,
        /// What is durable.
        incarnation: u64,
    },
}

/// What verbs leave behind for the driver.
#[derive(Default)]
struct Output {
    effects: VecDeque<Effect>,
    events: VecDeque<Event>,
}

impl Output {
    fn effect(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }
}

/// The agent of a node, from the start of its program to the end.
pub struct Agent {
    life: Life,
    tenants: Tenants,
    holders: Holders,
    incarnations: Incarnations,
    standing: Standing,
    /// The generation of the last card that does not know what has come and gone.
    replanned: Option<u64>,
    out: Output,
}

impl Agent {
    /// One that has no card yet: the first one is due now.
    pub fn new(rules: RuleSet, now: Instant) -> Self {
        Self {
            life: Life::new(rules, now),
            tenants: Tenants::new(rules),
            holders: Holders::default(),
            incarnations: Incarnations::default(),
            standing: Standing::default(),
            replanned: None,
            out: Output::default(),
        }
    }

    /// When [`Agent::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let kept = [self.tenants.poll_timeout(), self.holders.poll_timeout()];
        kept.into_iter().chain([self.life.poll_timeout()]).flatten().min()
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.effects.pop_front()
    }

    /// The next line of the log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// What became of the cards so far.
    pub fn record(&self) -> &CardRecord {
        &self.life.record
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.life.handle_timeout(now, &mut self.out);
        self.tenants.handle_timeout(now, &mut self.out);
        self.holders.handle_timeout(now, &mut self.out);
    }

    /// The card that was asked for is there, as this process.
    pub fn handle_started(&mut self, now: Instant, pid: i32) {
        self.life.handle_started(now, pid);
        self.standing.handle_started(&mut self.out);
    }

    /// The card that was asked for could not be started. If there is something of it, [`Agent::handle_exit`] follows
    /// when that is gone.
    pub fn handle_start_failed(&mut self, now: Instant, error: String) {
        self.life.handle_start_failed(now, error, &mut self.out);
    }

    /// The card serves.
    pub fn handle_running(&mut self, now: Instant) {
        self.life.handle_running(now, &mut self.out);
    }

    /// The card is dead, and nothing that it did by itself has an effect any more.
    pub fn handle_exit(&mut self, now: Instant, exit: Exit) {
        self.life.handle_exit(now, exit, &mut self.out);
    }

    /// Whether the disks have ended what a dead card has asked for.
    pub fn handle_drained(&mut self, now: Instant, result: Result<(), Unfinished>) {
        self.life.handle_drained(now, result, &mut self.out);
    }

    /// What the card's pulse shows. `ask` tells what the kernel says of its process, `None` where that is gone: it is
    /// asked only of a card that has made no turn.
    pub fn handle_beat(&mut self, now: Instant, beat: Beat, ask: impl FnOnce() -> Option<Process>) {
        self.life.handle_beat(now, beat, ask, &mut self.out);
    }

    /// The card says that somebody else than before has taken what a loan lends, or that it was given back.
    pub fn handle_tenant(&mut self, now: Instant, loan: usize, tenancy: Tenancy) {
        self.tenants.handle_tenant(now, loan, tenancy, &mut self.out);
    }

    /// What [`Effect::StoreTenancy`] gave out is durable, or could not be written.
    pub fn handle_tenancy_stored(&mut self, now: Instant, loan: usize, result: Result<(), String>) {
        self.tenants.handle_stored(now, loan, result, &mut self.out);
    }

    /// The card says where a node is that uses what is lent.
    pub fn handle_located(&mut self, now: Instant, holder: Whereabouts) {
        self.holders.handle_located(now, holder, &mut self.out);
    }

    /// What [`Effect::StoreHolder`] gave out is durable, or could not be written.
    pub fn handle_holder_stored(&mut self, now: Instant, node: NodeId, result: Result<(), String>) {
        self.holders.handle_stored(now, node, result, &mut self.out);
    }

    /// A node has nothing of this one any more: where it is need not be known.
    pub fn handle_holder_gone(&mut self, node: NodeId) {
        self.holders.forget(node);
    }

    /// Whether it is not durable yet who uses a function. Its drive is not withdrawn meanwhile: whoever has just given
    /// it back would have it again by what the next one to lend it knows.
    pub fn is_keeping(&self, loan: usize) -> bool {
        self.tenants.has_unsaved(loan)
    }

    /// The node ends: what is not durable is to be written now, or never.
    pub fn take_unsaved(&mut self) -> Vec<(usize, Tenancy)> {
        self.tenants.take_unsaved()
    }

    /// A lender has seen a later life of this node than this one: the state folder comes from a backup or a copy.
    pub fn handle_outdated(&mut self, now: Instant, loan: usize, seen: u64) {
        self.incarnations.handle_outdated(now, loan, seen, &mut self.out);
    }

    /// It is durable that no other life of this node uses this incarnation.
    pub fn handle_incarnation_raised(&mut self, loan: usize, incarnation: u64) {
        self.incarnations.handle_raised(loan, incarnation, &mut self.out);
    }

    /// By which incarnation the node calls itself at least in a borrowed loan, if a lender has seen more than the state
    /// folder knew of; else 0.
    pub fn least_incarnation(&self, loan: usize) -> u64 {
        self.incarnations.least(loan)
    }

    /// A vacant place has another loan, which gets what nobody has used before: the card is told, if it `can_take` the
    /// loan, else it is replaced by one that knows it. The other loans notice no more of that than of any other death.
    pub fn handle_attached(&mut self, loan: usize, can_take: bool) {
        self.forget(loan);
        let CardRecord { pid, generation, .. } = self.life.record;
        match pid {
            Some(_) if can_take => self.out.effect(Effect::TellLoan { loan }),
            Some(_) => {
                self.out.event(Event::Attached { loan, generation });
                self.out.effect(Effect::Kill);
            }
            None => {}
        }
    }

    /// A drive has come, and its functions to these places: the card is told.
    pub fn handle_lent(&mut self, drive: usize, loans: impl IntoIterator<Item = usize>) {
        loans.into_iter().for_each(|loan| self.forget(loan));
        if self.life.record.pid.is_some() {
            self.out.effect(Effect::TellDrive { drive });
        }
    }

    /// A drive is lent no more, of which these were the functions: the card is told. One that comes later has no part
    /// of it.
    pub fn handle_withdrawn(&mut self, drive: usize, loans: impl IntoIterator<Item = usize>) {
        loans.into_iter().for_each(|loan| self.forget(loan));
        if self.life.record.pid.is_some() {
            self.out.effect(Effect::TellWithdrawal { drive });
        }
    }

    /// What the card is told at its start has changed in a way that no card can be told of later: drives and loans have
    /// come to these places, or have left them. It is replaced by one that knows.
    pub fn handle_replanned(&mut self, loans: impl IntoIterator<Item = usize>) {
        loans.into_iter().for_each(|loan| self.forget(loan));
        let CardRecord { pid, generation, .. } = self.life.record;
        // One that is dying already is replaced once.
        if pid.is_some() && self.replanned.replace(generation) != Some(generation) {
            self.out.event(Event::Replanned { generation });
            self.out.effect(Effect::Kill);
        }
    }

    /// Another loan has the place, or none.
    fn forget(&mut self, loan: usize) {
        self.incarnations.forget(loan);
        self.tenants.forget(loan);
        self.standing.handle_attached(loan);
    }

    /// What the card said of the loan that had a place in this life is dropped: another one has it, or none.
    pub fn handle_stale(&mut self, loan: usize, life: u64) {
        self.out.event(Event::Stale { loan, life });
    }

    /// What `loan` has borrowed is to be given back, while the node goes on.
    pub fn handle_detach(&mut self, loan: usize) {
        self.standing.handle_detach(loan, &mut self.out);
    }

    /// It was given back.
    pub fn handle_given_back(&mut self, loan: usize) {
        self.standing.handle_given_back(loan, &mut self.out);
    }

    /// Its lender does not answer, and keeps the function for this node: nobody waits for that any more.
    pub fn handle_abandoned(&mut self, loan: usize) {
        self.standing.handle_abandoned(loan, &mut self.out);
    }

    /// A machine takes the function of a slot out, or puts it in.
    pub fn handle_presence(&mut self, loan: usize, is_present: bool) {
        self.standing.handle_presence(loan, is_present, &mut self.out);
    }

    /// Another client has the slot of `loan`.
    pub fn handle_client(&mut self, loan: usize) {
        self.standing.handle_client(loan);
    }

    /// The node is to end: everything is given back first.
    pub fn handle_shut_down(&mut self) {
        self.standing.handle_shut_down(&mut self.out);
    }

    /// Whether it is.
    pub fn is_shutting_down(&self) -> bool {
        self.standing.is_ending
    }

    /// The node ends, and its last card is dead: what that one has asked of disks is waited for. It is over when
    /// [`Agent::is_over`].
    pub fn handle_end(&mut self, now: Instant) {
        self.life.handle_end(now, &mut self.out);
    }

    /// Whether the disks have ended what the last card has asked for.
    pub fn is_over(&self) -> bool {
        self.life.is_over()
    }
}

#[cfg(test)]
mod tests;
