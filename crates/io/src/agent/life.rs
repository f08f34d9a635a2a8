//! What the core decides about the card's life, done with a process, a ring and the kernel's clock.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use node::agent::{Effect, Unfinished};

use super::lenders::Lenders;
use super::standby::Ready;
use super::{Agent, AgentEvent, token, view, watchdog};
use crate::card::now;
use crate::event::Event;
use crate::messages::{self, ToCard, ToDrive, ToLoan, ToPeer, ToRail};
use crate::outbox::{Enclosure, Outbox};
use crate::process::Child;
use crate::ring::DrainError;
use crate::wait::Interest;

/// A card that runs.
pub(super) struct LiveCard {
    pub(super) child: Child,
    pub(super) messages: OwnedFd,
    pub(super) outbox: Outbox<ToCard>,
    /// Bytes of the memory that it has, or has as soon as they are there.
    pub(super) memory_bytes: usize,
    /// By drive, what it is told of one that comes,
    pub(super) coming: BTreeMap<usize, OwnedFd>,
    /// and of who may have one.
    pub(super) allowed: BTreeMap<usize, OwnedFd>,
    /// What the node knows of its fabric since then, on its way.
    pub(super) fabric: Option<OwnedFd>,
}

impl Agent {
    /// When [`Agent::advance_life`] is to be called.
    pub(super) fn next_of_life(&self) -> Option<Instant> {
        let retry_at = self.card.as_ref().and_then(|card| card.outbox.retry_at());
        let due = self.core.poll_timeout().map(|at| Instant::now() + at.since(now()));
        [retry_at, due, self.standby.poll_timeout()].into_iter().flatten().min()
    }

    /// The first card of the node.
    ///
    /// # Errors
    /// It cannot be started: then none will be.
    pub(super) fn start_first_card(&mut self) -> io::Result<()> {
        self.core.handle_timeout(now());
        let first = self.core.poll_effect();
        assert!(matches!(first, Some(Effect::Start { .. })), "a new agent begins with a card");
        self.start_card()
    }

    /// Does what is due for the card, or for there to be one.
    ///
    /// # Errors
    /// A child that cannot be reaped.
    pub(super) fn advance_life(&mut self) -> io::Result<()> {
        self.tell_card();
        self.core.handle_timeout(now());
        self.perform()?;
        self.prepare_standby();
        Ok(())
    }

    /// As [`Agent::perform`], between two turns: the next one says what has gone wrong.
    pub(super) fn follow(&mut self) {
        if let Err(error) = self.perform() {
            self.failure.get_or_insert(error);
        }
    }

    /// Does what the core wants done, and says what it wants said.
    pub(super) fn perform(&mut self) -> io::Result<()> {
        loop {
            while let Some(said) = self.core.poll_event() {
                self.log.say(said, &self.spec.loans);
            }
            match self.core.poll_effect() {
                None => return Ok(()),
                Some(Effect::Start { .. }) => self.try_to_start()?,
                Some(Effect::Kill) => self.card.as_ref().map_or(Ok(()), |card| card.child.kill())?,
                Some(Effect::Drain { wait }) => self.drain(wait),
                Some(Effect::Look) => self.look_at_card(),
                Some(Effect::StoreTenancy { loan, tenancy }) => {
                    self.wants.push(AgentEvent::StoreTenancy { loan, tenancy });
                }
                Some(Effect::StoreHolder(holder)) => self.wants.push(AgentEvent::StoreHolder(holder)),
                Some(Effect::TellEnd) => self.tell(ToCard::ShutDown),
                Some(Effect::TellReturn { loan }) => self.tell_of(loan, ToLoan::GiveBack),
                Some(Effect::TellForget { loan }) => self.tell_of(loan, ToLoan::Forget),
                Some(Effect::TellLoan { loan }) => {
                    let mut lenders = Lenders::of(&self.spec.loans, &self.spec.rails);
                    let config = Box::new(self.loan_config(&self.spec.loans[loan], &mut lenders));
                    self.tell_of(loan, ToLoan::Attach(config));
                }
                Some(Effect::TellDrive { drive }) => self.tell_drive(drive),
                Some(Effect::TellWithdrawal { drive }) => self.tell(ToCard::Drive(drive, ToDrive::Withdraw)),
                Some(Effect::TellPresence { loan, is_present }) => {
                    self.tell_of(loan, ToLoan::Present(is_present));
                }
                Some(Effect::Vacate { loan }) => self.vacate(loan),
                Some(Effect::TellTenancy { loan, tenancy }) => self.tell_tenancy(loan, tenancy),
                Some(Effect::RaiseIncarnation { loan, seen }) => {
                    self.wants.push(AgentEvent::RaiseIncarnation { loan, seen });
                }
                Some(Effect::TellIncarnation { loan, incarnation }) => {
                    self.tell_incarnation(loan, incarnation);
                }
            }
        }
    }

    fn try_to_start(&mut self) -> io::Result<()> {
        let Err(error) = self.start_card() else { return Ok(()) };
        self.core.handle_start_failed(now(), error.to_string());
        if let Some(card) = &self.card {
            card.child.kill()?;
            self.bury_card()?;
        }
        Ok(())
    }

    fn look_at_card(&mut self) {
        let Some(pid) = self.card.as_ref().map(|card| card.child.pid()) else { return };
        let beat = self.shared().pulse.beat();
        self.core.handle_beat(now(), beat, || watchdog::ask(pid));
    }

    /// Starts a card; what has to be said to it waits in its outbox. After an error there may be a card that is not
    /// watched.
    fn start_card(&mut self) -> io::Result<()> {
        self.shared().pulse.wake();
        self.images.ask_witnesses(&self.spec.last_writes, self.spec.incarnation);
        self.have_ring();
        // Whoever has attached a loan has made room for it. A card that finds too little for one serves the others.
        if let Err(error) = self.reserve(&[], self.spec.drives.len()) {
            Event::LedgerNotGrown { error: error.to_string() }.say();
        }
        view::entitle(&self.mapping, &self.spec);
        let plan = self.plan().encode()?;
        // Who is of no use is gone after the card was started, which is what somebody waits for.
        let mut unfit = None;
        let (child, ours) = match self.take_standby(&plan) {
            Some((Ready { child, messages, .. }, true)) => (child, messages),
            other => {
                unfit = other;
                let (ours, theirs) = messages::pair()?;
                (self.spawn(&theirs, &plan.share()?)?, ours)
            }
        };
        self.give_over(&ours)?;
        let pid = child.pid();
        let mut outbox = Outbox::new(self.spec.loans.iter().map(|loan| loan.config.life).collect());
        self.slots.tell_all(&self.spec.loans, &mut outbox);
        for (loan, slot, _) in self.clients.connections() {
            outbox.push_of(loan, ToLoan::Connection { slot });
        }
        self.neighbours.agreements().for_each(|shared| outbox.push(shared));
        self.lenders_at.all().for_each(|(node, at)| outbox.push(ToCard::Heard(node, at)));
        self.members.iter().for_each(|(node, rails)| outbox.push(ToCard::Member(*node, *rails)));
        self.captures.forget_ended();
        self.captures.all().for_each(|(place, wish)| outbox.push(ToCard::Capture { place, wish }));
        let (coming, allowed) = (BTreeMap::new(), BTreeMap::new());
        let memory_bytes = self.mapping.len();
        let card = LiveCard { child, messages: ours, outbox, memory_bytes, coming, allowed, fabric: None };
        let card = self.card.insert(card);
        self.waiter.register(card.child.as_fd(), token::CARD, Interest::READ)?;
        self.waiter.register(card.messages.as_fd(), token::MESSAGES, Interest::READ)?;
        self.tell_all_growth();
        self.core.handle_started(now(), pid);
        self.tell_card();
        drop(unfit);
        // The card that had them is gone, with all that it had asked of their disks.
        self.conclude_leaving();
        Ok(())
    }

    /// Sends what waits for the card.
    pub(super) fn tell_card(&mut self) {
        if let Some(card) = &mut self.card {
            let (clients, neighbours, slots) = (&self.clients, &self.neighbours, &self.slots);
            let (coming, allowed, spec) = (&card.coming, &card.allowed, &self.spec);
            let (captures, fabric) = (&self.captures, &card.fabric);
            card.outbox.flush(card.messages.as_fd(), |message| match message {
                ToCard::Loan(loan, ToLoan::Connection { slot }) => {
                    clients.connection(loan.place, *slot).map_or(Enclosure::Gone, Enclosure::Descriptor)
                }
                ToCard::Loan(loan, ToLoan::Slot(what)) => slots.enclosure(loan.place, what),
                ToCard::Peer(peer, ToPeer::Shared { node, .. }) => {
                    neighbours.shared(*peer, *node).map_or(Enclosure::Gone, |shared| {
                        Enclosure::Descriptors(vec![shared.memory.as_fd(), shared.bell.as_fd()])
                    })
                }
                ToCard::Drive(drive, ToDrive::Lend) => match (spec.drive(*drive), coming.get(drive)) {
                    (Some(spec), Some(paper)) => {
                        Enclosure::Descriptors(vec![spec.image.as_fd(), paper.as_fd()])
                    }
                    _ => Enclosure::Gone,
                },
                ToCard::Rail(id, ToRail::Come { .. }) => {
                    let rail = spec.rails.iter().find(|rail| rail.id == *id);
                    rail.map_or(Enclosure::Gone, |rail| Enclosure::Descriptor(rail.socket.as_fd()))
                }
                ToCard::Drive(drive, ToDrive::Allow) => {
                    allowed.get(drive).map_or(Enclosure::Gone, |paper| Enclosure::Descriptor(paper.as_fd()))
                }
                ToCard::Fabric => {
                    fabric.as_ref().map_or(Enclosure::Gone, |paper| Enclosure::Descriptor(paper.as_fd()))
                }
                ToCard::Parked { number } => slots.parked(*number),
                ToCard::Capture { place, .. } => captures
                    .memory(*place)
                    .map_or(Enclosure::Gone, |memory| Enclosure::Descriptor(memory.as_fd())),
                _ => Enclosure::None,
            });
        }
    }

    /// The card is dead, or is to be: nothing of it may have an effect any more before its successor starts.
    ///
    /// # Errors
    /// It cannot be reaped.
    pub(super) fn bury_card(&mut self) -> io::Result<()> {
        let Some(mut card) = self.card.take() else { return Ok(()) };
        let died_at = now();
        // A card that could not be watched is not in the set.
        let _ = self.waiter.deregister(card.child.as_fd());
        let _ = self.waiter.deregister(card.messages.as_fd());
        let exit = card.child.reap()?;
        self.core.handle_exit(died_at, exit);
        Ok(())
    }

    fn drain(&mut self, wait: Duration) {
        let drained = self.ring.as_mut().map_or(Ok(()), |ring| ring.drain(wait).map(|_| ()));
        let unfinished = |DrainError { in_flight, source }| Unfinished {
            in_flight,
            why: source.map(|error| error.to_string()).unwrap_or_default(),
        };
        self.core.handle_drained(now(), drained.map_err(unfinished));
    }

    /// The last card is dead: waits until the disks have ended what it has asked for, however long that takes.
    ///
    /// # Errors
    /// None of theirs, which may come again; of the processes that are to be gone.
    pub(super) fn drain_all(&mut self) -> io::Result<()> {
        self.core.handle_end(now());
        self.perform()?;
        while !self.core.is_over() {
            let at = self.core.poll_timeout().unwrap_or_else(now);
            std::thread::sleep(at.since(now()));
            self.core.handle_timeout(now());
            self.perform()?;
        }
        Ok(())
    }
}
