//! Loans that come and go while the node runs.
//!
//! A place for a loan is in the plan from the start, perhaps vacant. Who moves in gets what nobody has used before: the
//! card is replaced, as if it had been killed, and its successor finds another life of the place in its plan. The other
//! loans notice no more of it than of any other death.

use std::collections::BTreeSet;
use std::io;

use node::SessionCells;
use tracing::info;

use super::clients::stop_listening_at;
use super::{Agent, Edge, LoanEnd, LoanSpec};
use crate::messages::ToCard;
use crate::outbox::Outbox;

/// What was asked of a card and is asked of its successors too, since it may have died before it heard of it.
#[derive(Default)]
pub(super) struct Standing {
    /// Loans that are being given back while the node goes on.
    pub(super) returning: BTreeSet<usize>,
    /// Slots of which the function is not there for the machine that has them.
    pub(super) absent: BTreeSet<usize>,
}

impl Standing {
    /// Says it to a new card, which knows by then who has the slots.
    pub(super) fn tell(&self, outbox: &mut Outbox<ToCard>) {
        self.absent.iter().for_each(|&loan| outbox.push(ToCard::Present { loan, is_present: false }));
        self.returning.iter().for_each(|&loan| outbox.push(ToCard::GiveBack { loan }));
    }

    /// The function of a slot is there for its machine, or not.
    fn set_present(&mut self, loan: usize, is_present: bool) {
        if is_present {
            self.absent.remove(&loan);
        } else {
            self.absent.insert(loan);
        }
    }

    /// The loan has ended, or another one has its place. Returns whether it was being given back.
    fn forget(&mut self, loan: usize) -> bool {
        self.absent.remove(&loan);
        self.returning.remove(&loan)
    }
}

impl LoanSpec {
    /// The incarnation by which a node of `incarnation` calls itself in this loan.
    pub(super) fn incarnation(&self, incarnation: u64) -> u64 {
        (incarnation + u64::from(self.life)).max(self.least_incarnation)
    }

    /// Whether this is a place without a loan.
    pub fn is_vacant(&self) -> bool {
        matches!(&self.end, LoanEnd::Vacant { .. })
    }
}

impl LoanEnd {
    /// What was borrowed is not any more: nobody new may connect.
    fn vacate(&mut self) {
        let Self::Borrow { edge, .. } = self else { return };
        let edge = match edge {
            Edge::Nbd { path, listener } => {
                stop_listening_at(path, listener);
                Edge::Nbd { path: std::mem::take(path), listener: None }
            }
            Edge::Vm { path, listener } => {
                stop_listening_at(path, listener);
                Edge::Vm { path: std::mem::take(path), listener: None }
            }
            Edge::Load(load) => Edge::Load(*load),
        };
        *self = Self::Vacant { edge };
    }
}

impl Agent {
    /// Gives the vacant place `loan` to another loan.
    ///
    /// # Errors
    /// What ending the card returned; the place then has its loan all the same.
    ///
    /// # Panics
    /// If the place is not vacant, or has had a loan of this life or a later one.
    pub fn attach(&mut self, loan: usize, spec: LoanSpec) -> io::Result<()> {
        let place = &mut self.spec.loans[loan];
        assert!(place.is_vacant(), "a loan moves in where there is none");
        assert!(spec.life > place.life, "each loan of a place has an incarnation of its own");
        *place = spec;
        self.standing.forget(loan);
        self.core.handle_attached(loan);
        self.slots.renew(loan);
        self.neighbours.forget(loan);
        for account in &self.shared().edges[loan] {
            account.received.reset();
            account.sent.reset();
        }
        info!(
            loan,
            generation = self.core.record().generation,
            "the card is replaced by one that knows the new loan"
        );
        self.card.as_mut().map_or(Ok(()), |card| {
            card.outdated.insert(loan);
            card.child.kill()
        })
    }

    /// Has what `loan` borrows given back: [`super::AgentEvent::GivenBack`] follows when its lender has heard of it,
    /// and the place is vacant then.
    pub fn detach(&mut self, loan: usize) {
        if self.spec.loans[loan].is_vacant() || !self.standing.returning.insert(loan) {
            return;
        }
        if let Some(card) = &mut self.card {
            card.outbox.push(ToCard::GiveBack { loan });
        }
        self.tell_card();
    }

    /// The lender of `loan`, which is being given back, does not answer: the place is vacant at once, and the lender
    /// keeps the function for this node. The card is replaced.
    ///
    /// # Errors
    /// What ending the card returned.
    pub fn abandon(&mut self, loan: usize) -> io::Result<()> {
        // No card says anything of a place without a loan.
        self.neighbours.forget(loan);
        self.given_back(loan);
        self.card.as_ref().map_or(Ok(()), |card| card.child.kill())
    }

    /// Whether [`Agent::shut_down`] was called: no loan comes any more.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Whether a virtual machine is connected to the slot of `loan`.
    pub fn has_guest(&self, loan: usize) -> bool {
        self.slots.has_client(loan)
    }

    /// Whether a driver has the function of a slot, by what its machine has set up.
    pub fn has_driver(&self, loan: usize) -> bool {
        self.view()
            .loans()
            .nth(loan)
            .is_some_and(|(_, view)| view.session().is_some_and(SessionCells::has_driver))
    }

    /// Whether the function of a slot is there for its machine.
    pub fn set_present(&mut self, loan: usize, is_present: bool) {
        self.standing.set_present(loan, is_present);
        if let Some(card) = &mut self.card {
            card.outbox.push(ToCard::Present { loan, is_present });
        }
        self.tell_card();
    }

    pub(super) fn given_back(&mut self, loan: usize) {
        if !self.standing.forget(loan) {
            return;
        }
        self.slots.ignore_one(&self.spec.loans, loan, &self.waiter);
        self.spec.loans[loan].end.vacate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages;
    use crate::outbox::Enclosure;
    use std::os::fd::AsFd;

    fn told(standing: &Standing) -> Vec<ToCard> {
        let (agent, card) = messages::pair().unwrap();
        let mut outbox = Outbox::new();
        standing.tell(&mut outbox);
        outbox.flush(agent.as_fd(), |_| Enclosure::None);
        std::iter::from_fn(|| messages::receive::<ToCard>(&card).unwrap())
            .map(|(message, _)| message)
            .collect()
    }

    #[test]
    fn a_successor_is_told_which_functions_are_taken_away() {
        let mut standing = Standing::default();
        for (loan, is_present) in [(1, false), (2, false), (3, false), (2, true), (1, false)] {
            standing.set_present(loan, is_present);
        }
        standing.returning.insert(1);
        let absent = |loan| ToCard::Present { loan, is_present: false };
        assert_eq!(told(&standing), [absent(1), absent(3), ToCard::GiveBack { loan: 1 }]);
        assert!(standing.forget(1) && !standing.forget(3));
        assert_eq!(told(&standing), []);
    }
}
