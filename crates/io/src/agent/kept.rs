//! What the role has made durable for the agent, and what the card is told of it.

use node::Tenancy;

use super::Agent;
use crate::card::now;
use crate::messages::ToCard;

impl Agent {
    /// What [`super::AgentEvent::StoreTenancy`] gave out is durable, or could not be written, for this reason.
    pub fn tenancy_stored(&mut self, loan: usize, result: Result<(), String>) {
        self.core.handle_tenancy_stored(now(), loan, result);
        self.follow();
    }

    /// It is durable that nobody has used this incarnation before: the node calls itself by it in a borrowed loan.
    pub fn incarnation_raised(&mut self, loan: usize, incarnation: u64) {
        self.core.handle_incarnation_raised(loan, incarnation);
        self.follow();
    }

    /// The node ends: these tenancies, by loan, are to be written now, or never.
    pub fn take_unsaved(&mut self) -> Vec<(usize, Tenancy)> {
        self.core.take_unsaved()
    }

    pub(super) fn tell_tenancy(&mut self, loan: usize, tenancy: Tenancy) {
        self.spec.loans[loan].tenancy = tenancy;
        self.tell(ToCard::Tenancy { loan, tenancy: tenancy.into() });
    }

    pub(super) fn tell_incarnation(&mut self, loan: usize, incarnation: u64) {
        self.spec.loans[loan].least_incarnation = incarnation;
        self.tell(ToCard::Incarnation { loan, incarnation });
    }
}
