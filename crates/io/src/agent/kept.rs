//! What the role has made durable for the agent, and what the card is told of it.

use std::io;

use node::Tenancy;

use super::Agent;
use crate::card::now;
use crate::messages::ToCard;

impl Agent {
    /// What [`AgentEvent::StoreTenancy`] gave out is durable, or could not be written, for this reason.
    ///
    /// # Errors
    /// What leaves the node without a card for good.
    pub fn tenancy_stored(&mut self, loan: usize, result: Result<(), String>) -> io::Result<()> {
        self.core.handle_tenancy_stored(now(), loan, result);
        self.perform()
    }

    /// It is durable that nobody has used this incarnation before: the node calls itself by it in a borrowed loan.
    ///
    /// # Errors
    /// What leaves the node without a card for good.
    pub fn incarnation_raised(&mut self, loan: usize, incarnation: u64) -> io::Result<()> {
        self.core.handle_incarnation_raised(loan, incarnation);
        self.perform()
    }

    /// The node ends: these tenancies, by loan, are to be written now, or never.
    pub fn take_unsaved(&mut self) -> Vec<(usize, Tenancy)> {
        self.core.take_unsaved()
    }

    pub(super) fn tell_tenancy(&mut self, loan: usize, tenancy: Tenancy) {
        self.spec.loans[loan].tenancy = tenancy;
        self.push_for_card(ToCard::Tenancy { loan, tenancy: tenancy.into() });
        self.tell_card();
    }

    pub(super) fn tell_incarnation(&mut self, loan: usize, incarnation: u64) {
        self.spec.loans[loan].least_incarnation = incarnation;
        self.push_for_card(ToCard::Incarnation { loan, incarnation });
        self.tell_card();
    }
}
