//! The programs of a fleet: they come to what nodes borrow, use it, and give it back.

use super::client::{Act, Claim};
use super::lending::Lending;
use super::member::Entry;
use super::{Event, World};
use crate::checkers::names;
use crate::death::survive;

/// How long programs go on when all faults have ended: every function that is borrowed is used once more.
const ENCORE: u64 = 60_000_000;
/// How long a program waits for a lender at most, if it does not wait for ever.
const GIVES_UP: u64 = 40_000_000;

impl World<'_> {
    /// A vacant place has a loan from now on.
    pub(super) fn attach_to(&mut self, node: usize, place: usize, claim: Claim) {
        self.note("attach", node);
        let can_take = self.random.chance(850);
        let this = &mut self.members[node];
        let life = this.places[place].life + 1;
        this.places[place] = Entry { life, claim: Some(claim) };
        let loan = this.loan_of(place);
        this.node.agent.handle_attached(loan, can_take);
        self.drive_agent(node);
    }

    /// What a place has borrowed is to be given back: when its program has ended, or in the middle of everything.
    pub(super) fn begin_detach(&mut self, node: usize, place: usize, at_once: bool) {
        let this = &mut self.members[node];
        let Some(claim) = &mut this.places[place].claim else { return };
        claim.is_leaving = true;
        // Somebody who asks for what is not lent just then is heard by nobody.
        if self.functions[claim.function].lending != Lending::Here {
            return;
        }
        if (at_once || claim.is_idle()) && !claim.is_returning && (!claim.is_former || self.is_managed) {
            claim.is_returning = true;
            // In a managed fleet others are given what nobody gives back.
            claim.gives_up_at = (!self.is_managed && self.random.chance(300))
                .then(|| self.clock.now + self.random.range(1_000_000, GIVES_UP));
            let loan = this.loan_of(place);
            this.node.agent.handle_detach(loan);
            self.note("detach", node);
            self.drive_agent(node);
            self.service(node);
        }
    }

    /// Nobody waits any more for a lender that does not take a function back, if it is the lender that it waits for.
    fn abandon(&mut self, node: usize, place: usize) {
        let this = &mut self.members[node];
        let loan = this.loan_of(place);
        let drive = this.node.card.as_ref().and_then(|card| card.borrowed(loan));
        let Some(claim) = &mut this.places[place].claim else { return };
        if drive.is_some_and(|drive| drive.driver.kept().0 == 0) {
            (claim.is_abandoned, claim.gives_up_at) = (true, None);
            self.functions[claim.function].kept_for = Some(node);
            this.node.agent.handle_abandoned(loan);
            self.fleet.abandoned += 1;
            self.note("abandon", node);
            self.drive_agent(node);
            self.service(node);
        }
    }

    /// The program of a place stands still, or goes on.
    pub(super) fn stop_program(&mut self, node: usize, place: usize, is_stuck: bool) {
        if let Some(claim) = &mut self.members[node].places[place].claim {
            claim.is_stuck = is_stuck;
        }
    }

    /// The programs of a node look at what they have asked for, and ask for more.
    pub(super) fn think(&mut self, node: usize) {
        for place in 0..self.members[node].places.len() {
            self.use_drive(node, place);
            let claim = self.members[node].places[place].claim.as_ref();
            if claim.is_some_and(|claim| claim.is_leaving && !claim.is_returning) {
                self.begin_detach(node, place, false);
            }
            let claim = self.members[node].places[place].claim.as_ref();
            if claim.and_then(|claim| claim.gives_up_at).is_some_and(|at| at <= self.clock.now) {
                self.abandon(node, place);
            }
        }
        let after = self.random.range(self.plan.think / 2, self.plan.think);
        self.clock.after(after, Event::Think(node));
    }

    fn use_drive(&mut self, node: usize, place: usize) {
        let may_ask = self.clock.now < self.plan.end + ENCORE;
        let loan = self.members[node].loan_of(place);
        let Some(mut claim) = self.members[node].places[place].claim.clone() else { return };
        if claim.is_stuck
            || claim.is_idle() && (!may_ask || claim.is_leaving)
            || self.members[node].node.card.is_none()
        {
            return;
        }
        let asks = !claim.is_leaving && may_ask;
        let (journal, first) = (self.members[node].node.kernel(), self.authors.len());
        let (mut random, mut did) = (self.random.fork(), Act::default());
        let this = &mut self.functions[claim.function];
        let now = self.clock.instant();
        let card = self.members[node].node.card.as_mut().expect("it was looked for");
        let acted = survive(|| {
            card.drive_step(now, loan, |driver, pages| {
                did = claim.act(now, &mut random, (this, first), asks, driver, pages, journal);
            });
        });
        self.authors.append(&mut did.authors);
        self.fleet.verified += did.verified;
        self.functions[claim.function].verified += did.verified;
        if let Some(what) = did.wrong {
            self.fail(names::DISK, format!("node {node}, loan {loan}: {what}"));
        }
        match acted {
            Ok(()) => {
                self.members[node].places[place].claim = Some(claim);
                self.service(node);
            }
            // What it has taken and asked for is taken back, unless it has died right behind the commit.
            Err(end) => {
                if self.members[node].node.kernel().pending() == 0 {
                    self.members[node].places[place].claim = Some(claim);
                }
                self.end_card(node, end);
            }
        }
    }
}
