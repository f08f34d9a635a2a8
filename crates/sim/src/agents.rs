//! The agents: what [`node::agent`] decides is done here in virtual time, with disks and starts that take theirs. And
//! what agents do about what their cards tell them, as `io::agent` and the program's roles do it: who uses what is lent
//! becomes durable, and whoever has given everything back ends.

use base::ids::Incarnation;
use link::Tenancy;
use node::agent::{Beat, Effect, Exit, Rest, Unfinished};
use node::{Card, CardEvent, Refusal};

use crate::cards::LONGEST_START;
use crate::checkers::names;
use crate::identity::holder_of;
use crate::marks::Mark;
use crate::tenure::Told;
use crate::world::{BORROWER, Event, LENDER, World};

/// The signal that kills cards.
const SIGKILL: i32 = 9;

impl World<'_> {
    /// The agent of a node has something to do now.
    pub(crate) fn wake_agent(&mut self, node: usize) {
        self.schedule_agent(node, self.clock.now);
    }

    pub(crate) fn schedule_agent(&mut self, node: usize, at: u64) {
        if self.nodes[node].agent_wake.set(at) {
            self.clock.at(at, Event::Agent(node));
        }
    }

    pub(crate) fn run_agent(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if this.agent_wake.rings(self.clock.now) && !this.is_away {
            this.agent.handle_timeout(self.clock.instant());
            self.drive_agent(node);
        }
    }

    /// The card of a node is dead.
    pub(crate) fn tell_exit(&mut self, node: usize) {
        self.nodes[node].agent.handle_exit(self.clock.instant(), Exit::Signal(SIGKILL));
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
        let (now, has_requests) = (self.clock.instant(), node == LENDER && self.in_rings() > 0);
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
            Effect::TellReturn { .. } | Effect::TellPresence { .. } => return,
            Effect::TellLoan { .. } | Effect::Vacate { .. } => return,
            Effect::TellDrive { .. } | Effect::TellWithdrawal { .. } => return,
            Effect::TellTenancy { loan, tenancy } => return self.tell_tenancy(loan, tenancy),
            Effect::RaiseIncarnation { loan, seen } => return self.raise_incarnation(node, loan, seen),
            Effect::TellIncarnation { loan, incarnation } => {
                return self.tell_incarnation(node, loan, incarnation);
            }
            Effect::Look => {
                // No card hangs here: each moment it has made another turn.
                let beat = Beat { turns: self.clock.now, rest: Rest::Awake };
                return agent.handle_beat(now, beat, || None);
            }
        };
        self.clock.after(after, Event::Performed(node, self.nodes[node].life, effect));
    }

    /// What an agent wanted done is, if it still lives.
    pub(crate) fn performed(&mut self, node: usize, life: u64, effect: &Effect) {
        if self.nodes[node].life != life || self.nodes[node].is_away {
            return;
        }
        match effect {
            Effect::Start { .. } => self.start_card(node),
            Effect::Drain { .. } => self.disks_had_time(node),
            Effect::StoreTenancy { loan, tenancy } => self.tenancy_was_written(*loan, *tenancy),
            Effect::StoreHolder(holder) => {
                self.nodes[node].keep_holder(self.clock.instant(), *holder);
                self.drive_agent(node);
            }
            // The others take no time.
            _ => {}
        }
    }

    /// Mostly that was long enough.
    fn disks_had_time(&mut self, node: usize) {
        if self.random.chance(700) {
            self.drain_rings();
        }
        let in_flight = self.in_rings() as u32;
        self.report.marks.set_if(Mark::DiskSlow, in_flight > 0);
        let unfinished = Unfinished { in_flight, why: String::new() };
        let result = if in_flight == 0 { Ok(()) } else { Err(unfinished) };
        self.nodes[node].agent.handle_drained(self.clock.instant(), result);
        self.drive_agent(node);
    }

    /// What a card tells its agent, which keeps who uses what, whatever becomes of cards and ledgers.
    pub(crate) fn serve_events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].card.as_mut().and_then(Card::poll_event) {
            match event {
                CardEvent::Tenant(loan, tenancy) => self.tenant_changes(loan, tenancy),
                CardEvent::Located(holder) => {
                    let now = self.clock.instant();
                    self.nodes[node].agent.handle_located(now, holder);
                    self.drive_agent(node);
                }
                CardEvent::Overtaken(loan) => self.overtaken(node, loan),
                CardEvent::Joined(_, peer, incarnation) => self.neighbour_met(node, (peer, incarnation)),
                CardEvent::Left(_) => self.neighbour_left(node),
                // Nothing is withdrawn here.
                CardEvent::Withdrawn(_) => {}
                CardEvent::Closed { loan, has_lost } if node != LENDER => {
                    self.given_back(node, loan, has_lost);
                }
                CardEvent::MediaFault(drive) => self.report_loss(drive),
                CardEvent::Refused(loan, refusal) if node != LENDER => {
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
                        let now = self.clock.instant();
                        self.nodes[node].agent.handle_outdated(now, loan, seen.0);
                        self.drive_agent(node);
                    }
                }
                CardEvent::Ready(_)
                | CardEvent::Refused(..)
                | CardEvent::Met(..)
                | CardEvent::Unusable(..)
                | CardEvent::Closed { .. } => {}
            }
        }
    }

    /// The node that has, or had, a function.
    pub(crate) fn borrower_of(&self, tenancy: &Tenancy) -> Option<usize> {
        let node = holder_of(tenancy)?.node;
        (BORROWER..self.nodes.len()).contains(&node).then_some(node)
    }

    /// Another borrower than before, or none any more: a moment later that is durable.
    fn tenant_changes(&mut self, loan: usize, tenancy: Tenancy) {
        self.check_take_over(loan, &tenancy);
        let taker = self.borrower_of(&tenancy);
        self.loans[loan].tenure.is_wanted(taker);
        self.nodes[LENDER].agent.handle_tenant(self.clock.instant(), loan, tenancy);
        self.drive_agent(LENDER);
    }

    /// The state folder has it, or could not be written.
    fn tenancy_was_written(&mut self, loan: usize, tenancy: Tenancy) {
        let fails = !self.faults.are_over() && self.random.chance(30);
        self.report.marks.set_if(Mark::TenancyUnsaved, fails);
        if !fails {
            self.change_tenant(loan, tenancy);
        }
        let result = if fails { Err("no space".to_owned()) } else { Ok(()) };
        self.nodes[LENDER].agent.handle_tenancy_stored(self.clock.instant(), loan, result);
        self.drive_agent(LENDER);
        if self.nodes[LENDER].card.is_some() {
            self.service(LENDER);
        }
    }

    fn tell_tenancy(&mut self, loan: usize, tenancy: Tenancy) {
        if self.loans[loan].tenure.tenancy != tenancy {
            let what = format!(
                "the card is told of tenancy {} of loan {loan}, which is not durable",
                tenancy.number
            );
            self.report.fail(names::SINGLE_OWNER, what);
        }
        self.act(LENDER, |card, now| card.set_tenancy(now, loan, tenancy));
    }

    /// The state folder has a greater incarnation than a lender has seen.
    fn raise_incarnation(&mut self, node: usize, loan: usize, seen: u64) {
        let this = &mut self.nodes[node];
        this.folder = this.folder.max(seen) + 1;
        this.agent.handle_incarnation_raised(loan, this.folder);
    }

    fn tell_incarnation(&mut self, node: usize, loan: usize, incarnation: u64) {
        self.report.log.event(self.clock.now, Some(node), "raised", loan as u64, incarnation);
        self.act(node, |card, now| card.raise_incarnation(now, loan, Incarnation(incarnation)));
    }

    fn change_tenant(&mut self, loan: usize, tenancy: Tenancy) {
        self.report.log.event(self.clock.now, Some(LENDER), "tenant", loan as u64, tenancy.number);
        let (holder, lent) = (self.borrower_of(&tenancy), &mut self.loans[loan]);
        let Some(former) = lent.tenure.changes(tenancy, holder, lent.shared.tick) else { return };
        self.report.marks.set(Mark::TenantChanged);
        let is_hold_over = lent.owner.is_hold_over(self.clock.now, former);
        self.report.marks.set_if(Mark::HoldOver, is_hold_over);
        let who = self.nodes[former].who();
        lent.lose_kept(who);
        // What its clients wait for has happened by now, or not before the next one is served.
        self.clients.abandon_writes(loan, who, &mut lent.shared);
    }

    /// A card says that another node has used its drive.
    fn overtaken(&mut self, node: usize, loan: usize) {
        let (lent, clients) = (&mut self.loans[loan], &self.clients);
        match lent.tenure.is_told(node, |since| clients.are_served(node, loan, since)) {
            Told::Rightly => {}
            Told::Again => return,
            Told::Wrongly => {
                let what =
                    format!("node {node} was told that another one has used loan {loan}, and nobody has");
                self.report.fail(names::SINGLE_OWNER, what);
            }
        }
        self.report.log.event(self.clock.now, Some(node), "overtaken", loan as u64, 0);
        if lent.tenure.holder == Some(node) {
            lent.lose_kept(self.nodes[node].who());
        }
        lent.tenure.has_lost(node, lent.shared.tick + 1);
    }
}
