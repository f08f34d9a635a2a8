//! The agents: what [`node::agent`] decides is done here in virtual time, with disks and starts that take theirs.

use base::Instant;
use base::ids::Incarnation;
use link::Tenancy;
use node::agent::{Agent, Beat, Effect, Rest, Unfinished};
use node::{Card, Refusal};

use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::identity::borrower_of;
use crate::loans::in_rings;
use crate::marks::Mark;
use crate::stage::{Event, LENDER, LONGEST_START, Stage};

/// Nanoseconds that a node has to give everything back.
const GIVE_BACK: u64 = 8_000_000_000;

impl Stage<'_> {
    /// The agent of a node has something to do then.
    pub(crate) fn schedule_agent(&mut self, node: usize, at: u64) {
        if self.nodes[node].agent_wake.set(at) {
            self.clock.at(at, Event::Agent(node));
        }
    }

    pub(crate) fn run_agent(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if this.agent_wake.rings(self.clock.now) && !this.is_away {
            self.tell_agent(node, Agent::handle_timeout);
        }
    }

    /// An agent hears something, and begins what it wants done.
    pub(crate) fn tell_agent(&mut self, node: usize, hears: impl FnOnce(&mut Agent, Instant)) {
        hears(&mut self.nodes[node].agent, self.clock.instant());
        self.drive_agent(node);
    }

    /// Begins what an agent wants done.
    pub(crate) fn drive_agent(&mut self, node: usize) {
        while let Some(effect) = self.nodes[node].agent.poll_effect() {
            self.perform(node, effect);
        }
        while let Some(event) = self.nodes[node].agent.poll_event() {
            self.report.log.note(format_args!("agent {node}: {event:?}"));
        }
        if let Some(at) = self.nodes[node].agent.poll_timeout() {
            self.schedule_agent(node, at.as_nanos());
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        let (now, has_requests) = (self.clock.instant(), node == LENDER && in_rings(&self.loans) > 0);
        let agent = &mut self.nodes[node].agent;
        let after = match effect {
            Effect::Start { .. } if self.random.chance(900) => self.random.range(200_000, 6_000_000),
            Effect::Start { .. } => self.random.range(10_000_000, LONGEST_START.as_nanos() as u64),
            Effect::Drain { wait } if has_requests => self.random.below(wait.as_nanos() as u64),
            Effect::Drain { .. } => return agent.handle_drained(now, Ok(())),
            Effect::StoreTenancy { .. } => self.random.range(50_000, 5_000_000),
            // Nobody waits for it, so it takes no dice.
            Effect::StoreHolder(_) => 1_000_000,
            Effect::Kill => return self.bury(node),
            Effect::TellEnd => {
                self.act(node, Card::shut_down);
                return;
            }
            // Nothing is attached or detached here.
            Effect::TellReturn { .. } | Effect::TellForget { .. } | Effect::TellPresence { .. } => return,
            Effect::TellLoan { .. } | Effect::Vacate { .. } => return,
            Effect::TellDrive { .. } | Effect::TellWithdrawal { .. } => return,
            Effect::TellTenancy { loan, tenancy } => return self.tell_tenancy(loan, tenancy),
            Effect::RaiseIncarnation { loan, seen } => {
                return self.nodes[node].raise_incarnation(loan, seen);
            }
            Effect::TellIncarnation { loan, incarnation } => {
                self.log(Some(node), "raised", loan as u64, incarnation);
                self.act(node, |card, now| card.raise_incarnation(now, loan, Incarnation(incarnation)));
                return;
            }
            Effect::Look => {
                // No card hangs here: each moment it has made another turn.
                let beat = Beat { turns: self.clock.now, rest: Rest::Awake };
                return agent.handle_beat(now, beat, || None);
            }
        };
        self.clock.after(after, Event::Performed(node, self.nodes[node].life, effect));
    }

    /// Another borrower than before, or none any more: a moment later that is durable.
    pub(crate) fn tenant_changes(&mut self, loan: usize, tenancy: Tenancy) {
        self.scene().1.check_take_over(loan, &tenancy);
        let taker = borrower_of(&tenancy, self.nodes.len());
        self.loans[loan].tenure.is_wanted(taker);
        self.tell_agent(LENDER, |agent, now| agent.handle_tenant(now, loan, tenancy));
    }

    fn tell_tenancy(&mut self, loan: usize, tenancy: Tenancy) {
        if self.loans[loan].tenure.tenancy != tenancy {
            let number = tenancy.number;
            let what = format!("the card is told of tenancy {number} of loan {loan}, which is not durable");
            self.report.fail(names::SINGLE_OWNER, what);
        }
        self.act(LENDER, |card, now| card.set_tenancy(now, loan, tenancy));
    }

    /// A loan was given back, or there was nothing to give back.
    pub(crate) fn given_back(&mut self, node: usize, loan: usize, has_lost: bool) {
        if !self.nodes[node].agent.is_shutting_down() {
            let what = format!("node {node} has given loan {loan} back unasked");
            return self.report.fail(names::ASSERTION, what);
        }
        self.log(Some(node), "back", loan as u64, has_lost.into());
        self.nodes[node].gives_back[loan] = false;
        if self.loans[loan].tenure.holder == Some(node) {
            self.loans[loan].shared.model.given_back();
        }
        if self.nodes[node].gives_back.iter().all(|open| !open) {
            self.clock.after(100_000, Event::Gone(node, self.nodes[node].life));
        }
    }

    /// Disks have had their time, mostly enough of it.
    pub(crate) fn disks_had_time(&mut self, node: usize) {
        let in_flight = in_rings(&self.loans) as u32;
        self.report.marks.set_if(Mark::DiskSlow, in_flight > 0);
        let unfinished = Unfinished { in_flight, why: String::new() };
        let result = if in_flight == 0 { Ok(()) } else { Err(unfinished) };
        self.tell_agent(node, |agent, now| agent.handle_drained(now, result));
    }

    /// The state folder has who has a loan: which life has lost it by that.
    pub(crate) fn change_tenant(&mut self, loan: usize, tenancy: Tenancy) -> Option<Life> {
        self.log(Some(LENDER), "tenant", loan as u64, tenancy.number);
        let (holder, lent) = (borrower_of(&tenancy, self.nodes.len()), &mut self.loans[loan]);
        let former = lent.tenure.changes(tenancy, holder, lent.shared.tick)?;
        self.report.marks.set(Mark::TenantChanged);
        let is_hold_over = lent.owner.is_hold_over(self.clock.now, former);
        self.report.marks.set_if(Mark::HoldOver, is_hold_over);
        let who = self.nodes[former].who();
        lent.lose_kept(who);
        Some(who)
    }

    /// A node's agent has died, and with it the ledger: another life begins.
    pub(crate) fn begin_life(&mut self, node: usize) {
        self.nodes[node].begin_life(self.arena, self.clock.instant());
        self.watch.life_began(node);
        self.log(Some(node), "boot", self.nodes[node].incarnation, 0);
        self.schedule_agent(node, self.clock.now);
    }

    /// A node is asked to end, and gives back what it has. Returns the node, if that has a card to be served.
    pub(crate) fn give_everything_back(&mut self, node: usize) -> Option<usize> {
        let this = &mut self.nodes[node];
        if this.is_away || this.agent.is_shutting_down() {
            return None;
        }
        this.agent.handle_shut_down();
        this.gives_back = vec![true; self.loans.len()];
        let life = this.who();
        self.log(Some(node), "leave", 0, 0);
        self.loans.iter_mut().for_each(|lent| lent.owner.gives_back(life));
        self.clock.after(GIVE_BACK, Event::Gone(node, life.number));
        self.drive_agent(node);
        self.nodes[node].with_card()
    }

    /// A card says that its loan was refused.
    pub(crate) fn refused(&mut self, node: usize, loan: usize, refusal: Refusal) {
        self.report.marks.set(Mark::Refused);
        if let Refusal::Twin { .. } = refusal {
            self.report.marks.set(Mark::TwinRefused);
            let life = self.nodes[node].who();
            // Who hears it late may be a twin of somebody who has nothing any more.
            if self.loans.iter().any(|lent| lent.take_over.is_held()) {
                self.loans.iter_mut().for_each(|lent| lent.take_over.is_twin(life));
            }
        }
        if let Refusal::Outdated { seen } = refusal {
            self.report.marks.set(Mark::Outdated);
            self.tell_agent(node, |agent, now| agent.handle_outdated(now, loan, seen.0));
        }
    }
}
