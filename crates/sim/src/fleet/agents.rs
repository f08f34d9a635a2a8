//! The agents of a fleet: what they decide is done here in virtual time, and nodes begin other lives.

use base::Instant;
use base::ids::Incarnation;
use node::agent::{Beat, Effect, Rest};
use node::{Card, CardEvent, Refusal};

use super::{Event, World};
use crate::checkers::names;

impl World<'_> {
    pub(super) fn run_agent(&mut self, node: usize) {
        let now = self.clock.instant();
        let this = &mut self.members[node];
        this.node.agent_wake.stop();
        this.node.agent.handle_timeout(now);
        self.drive_agent(node);
    }

    pub(super) fn drive_agent(&mut self, node: usize) {
        while self.failure.is_none()
            && let Some(effect) = self.members[node].node.agent.poll_effect()
        {
            self.perform(node, effect);
        }
        while self.members[node].node.agent.poll_event().is_some() {}
        let this = &mut self.members[node];
        let Some(at) = this.node.agent.poll_timeout().map(Instant::as_nanos) else { return };
        if this.node.agent_wake.set(at) {
            self.clock.at(at, Event::Agent(node));
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        let now = self.clock.instant();
        let after = match effect {
            Effect::Start { .. } if self.random.chance(900) => self.random.range(200_000, 6_000_000),
            Effect::Start { .. } => self.random.range(10_000_000, 200_000_000),
            Effect::Drain { wait } => self.random.below(wait.as_nanos() as u64),
            Effect::StoreTenancy { .. } => self.random.range(50_000, 5_000_000),
            Effect::StoreHolder(_) => 1_000_000,
            Effect::Kill => return self.kill(node),
            Effect::TellTenancy { loan, tenancy } => {
                self.act(node, |card, now| card.set_tenancy(now, loan, tenancy));
                return;
            }
            Effect::TellReturn { loan } => {
                self.act(node, |card, now| card.give_back(now, loan));
                return;
            }
            Effect::TellForget { loan } => {
                self.act(node, |card, now| card.forget(now, loan));
                return;
            }
            Effect::TellLoan { loan } => return self.tell_loan(node, loan),
            Effect::Vacate { loan } => return self.vacate(node, loan),
            Effect::RaiseIncarnation { loan, seen } => {
                return self.members[node].node.raise_incarnation(loan, seen);
            }
            Effect::TellIncarnation { loan, incarnation } => {
                let incarnation = Incarnation(incarnation);
                self.act(node, |card, now| card.raise_incarnation(now, loan, incarnation));
                return;
            }
            Effect::Look => {
                // No card hangs here: each moment it has made another turn.
                let beat = Beat { turns: self.clock.now, rest: Rest::Awake };
                return self.members[node].node.agent.handle_beat(now, beat, || None);
            }
            // Nobody ends here in order, and there are no machines.
            Effect::TellEnd | Effect::TellPresence { .. } => return,
            Effect::TellDrive { drive } => return self.tell_drive(node, drive),
            Effect::TellWithdrawal { drive } => {
                self.act(node, |card, now| card.withdraw(now, drive));
                return;
            }
        };
        self.clock.after(after, Event::Performed(node, self.members[node].node.life, Box::new(effect)));
    }

    /// What an agent wanted done is, if it still lives.
    pub(super) fn performed(&mut self, node: usize, life: u64, effect: &Effect) {
        if self.members[node].node.life != life {
            return;
        }
        match *effect {
            Effect::Start { .. } => return self.start_card(node),
            Effect::Drain { .. } => {
                self.drain(node);
                let now = self.clock.instant();
                self.members[node].node.agent.handle_drained(now, Ok(()));
            }
            Effect::StoreTenancy { loan, tenancy } => {
                let fails = !self.is_calm && self.random.chance(30);
                if !fails {
                    let function = self.members[node].lent.start + loan;
                    self.functions[function].tenancy = tenancy;
                }
                let (now, result) =
                    (self.clock.instant(), if fails { Err("no space".to_owned()) } else { Ok(()) });
                self.members[node].node.agent.handle_tenancy_stored(now, loan, result);
            }
            Effect::StoreHolder(holder) => {
                self.members[node].node.keep_holder(self.clock.instant(), holder);
            }
            // The others take no time.
            _ => {}
        }
        self.drive_agent(node);
        self.service(node);
    }

    pub(super) fn serve_events(&mut self, node: usize) {
        while let Some(event) = self.members[node].node.card.as_mut().and_then(Card::poll_event) {
            if self.trace {
                eprintln!("{:>12.3} {node:>2} * {event:?}", self.clock.now as f64 / 1000.0);
            }
            let now = self.clock.instant();
            let agent = &mut self.members[node].node.agent;
            match event {
                CardEvent::Tenant(loan, tenancy) => agent.handle_tenant(now, loan, tenancy),
                CardEvent::Located(holder) => agent.handle_located(now, holder),
                CardEvent::Closed { loan, has_lost } => self.given_back(node, loan, has_lost),
                CardEvent::Refused(loan, Refusal::Outdated { seen }) => {
                    agent.handle_outdated(now, loan, seen.0);
                }
                CardEvent::Overtaken(loan) => {
                    let what = format!("node {node} was told that another one has used loan {loan}");
                    self.fail(names::SINGLE_OWNER, what);
                }
                CardEvent::MediaFault(_) | CardEvent::Unusable(..) => {
                    self.fail(names::ASSERTION, format!("node {node}: {event:?}"));
                }
                CardEvent::Ready(loan) => self.members[node].note_ready(loan, &self.functions),
                CardEvent::Refused(loan, Refusal::Generation | Refusal::NotAllowed | Refusal::Managed) => {
                    self.note_refused(node, loan);
                }
                CardEvent::Applied(loan, applied) => self.note_applied(node, loan, applied),
                CardEvent::Refused(..) | CardEvent::Met(..) | CardEvent::Joined(..) => {}
                CardEvent::Withdrawn(drive) => self.note_withdrawn(node, drive),
                // Nobody here has a group's key.
                CardEvent::Left(_) | CardEvent::Notice(_) | CardEvent::Doubted(_) => {}
            }
            self.drive_agent(node);
        }
    }

    fn given_back(&mut self, node: usize, loan: usize, has_lost: bool) {
        let this = &mut self.members[node];
        let Some(place) = loan.checked_sub(this.lent.len()) else { return };
        // Who has lost a function by force has lost what it had not made durable.
        if has_lost && !self.is_managed {
            self.fail(names::DURABILITY, format!("node {node} has lost writes of loan {loan}"));
        } else if this.places[place].claim.as_ref().is_some_and(|claim| claim.is_returning) {
            this.node.agent.handle_given_back(loan);
        }
    }

    fn vacate(&mut self, node: usize, loan: usize) {
        self.note("vacated", node);
        let this = &mut self.members[node];
        let place = loan - this.lent.len();
        if let Some(claim) = this.places[place].claim.take() {
            let function = &mut self.functions[claim.function];
            function.claim.take_if(|it| *it == (node, place));
            // Of one that was not there yet its lender has not heard.
            if claim.was_ready && !claim.is_abandoned {
                function.kept_for = None;
            }
            self.fleet.detached += 1;
        }
    }

    fn tell_loan(&mut self, node: usize, loan: usize) {
        let this = &self.members[node];
        let config = this.borrowed_loan(loan - this.lent.len(), &self.functions);
        let told = self.tell(node, loan, |card, now| {
            card.attach(now, loan, config).expect("this ledger is not corrupt");
        });
        self.fleet.attached += u64::from(told);
    }

    /// A program ends in order and writes which functions were given back. Of one that is killed before, who had one
    /// has it for the hold time, longer than a run.
    fn end_in_order(&mut self, node: usize) {
        let this = &mut self.members[node];
        for (loan, tenancy) in this.node.agent.take_unsaved() {
            if !tenancy.is_held {
                self.functions[this.lent.start + loan].tenancy = tenancy;
            }
        }
    }

    /// The node's program ends, and with it the ledger. Another one begins: what was borrowed is in its configuration.
    pub(super) fn reboot(&mut self, node: usize) {
        self.note("reboot", node);
        self.fleet.reboots += 1;
        // The next one waits for the locks of the images, that is for the disk.
        self.drain(node);
        self.end_in_order(node);
        let this = &mut self.members[node];
        this.node.card = None;
        this.node.wake.stop();
        this.node.switch.disarm();
        this.node.begin_life(self.arena, self.clock.instant());
        for function in this.lent.clone() {
            self.functions[function].life = 0;
        }
        self.conclude_withdrawals(node);
        let this = &mut self.members[node];
        for place in &mut this.places {
            place.life = 0;
            if let Some(claim) = &mut place.claim {
                self.claims += 1;
                *claim = claim.again(self.claims);
            }
        }
        let after = self.random.range(1_000_000, 300_000_000);
        self.clock.after(after, Event::Agent(node));
    }
}
