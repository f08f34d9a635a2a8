//! What the role has made durable for the agent, and what the card is told of it.

use base::ids::{Incarnation, NodeId};
use node::{Tenancy, Whereabouts};

use super::change::loans_of;
use super::{Agent, AgentEvent};
use crate::card::now;
use crate::messages::ToLoan;

impl Agent {
    /// What [`super::AgentEvent::StoreTenancy`] gave out is durable, or could not be written, for this reason.
    pub fn tenancy_stored(&mut self, loan: usize, result: Result<(), String>) {
        self.core.handle_tenancy_stored(now(), loan, result);
        self.follow();
    }

    /// What [`AgentEvent::StoreHolder`] gave out is durable, or could not be written, for this reason.
    pub fn holder_stored(&mut self, holder: Whereabouts, result: Result<(), String>) {
        let node = holder.node();
        if result.is_ok() && self.has_something(node) {
            self.spec.holders.retain(|known| known.node() != node);
            self.spec.holders.push(holder);
            self.standby.note_change();
        }
        self.core.handle_holder_stored(now(), node, result);
        self.follow();
    }

    /// A card says where a node is that has something of this one.
    pub(super) fn note_holder(&mut self, holder: Whereabouts) {
        if self.has_something(holder.node()) && !self.spec.holders.contains(&holder) {
            self.core.handle_located(now(), holder);
        }
    }

    /// Whether a node has something of this one, as is durable.
    fn has_something(&self, node: NodeId) -> bool {
        self.spec.loans.iter().any(|loan| loan.config.tenancy.is_held && loan.config.tenancy.node == node)
    }

    /// It is durable that no other life of this node uses this incarnation: the node calls itself by it in a borrowed
    /// loan.
    pub fn incarnation_raised(&mut self, loan: usize, incarnation: u64) {
        self.core.handle_incarnation_raised(loan, incarnation);
        self.follow();
    }

    /// Whether it is not durable yet who uses a function of a drive: it is not to be withdrawn.
    pub fn is_keeping(&self, drive: usize) -> bool {
        loans_of(&self.spec.loans, drive).into_iter().any(|loan| self.core.is_keeping(loan))
    }

    /// The node ends: these tenancies, by loan, are to be written now, or never.
    pub fn take_unsaved(&mut self) -> Vec<(usize, Tenancy)> {
        self.core.take_unsaved()
    }

    pub(super) fn tell_tenancy(&mut self, loan: usize, tenancy: Tenancy) {
        let former = core::mem::replace(&mut self.spec.loans[loan].config.tenancy, tenancy);
        if former.is_held && !self.has_something(former.node) {
            self.spec.holders.retain(|holder| holder.node() != former.node);
            self.core.handle_holder_gone(former.node);
            self.wants.push(AgentEvent::ForgetHolder(former.node));
        }
        self.tell_of(loan, ToLoan::Tenancy(tenancy));
    }

    pub(super) fn tell_incarnation(&mut self, loan: usize, incarnation: u64) {
        let incarnation = Incarnation(incarnation);
        self.spec.loans[loan].config.least_incarnation = incarnation;
        self.tell_of(loan, ToLoan::Incarnation(incarnation));
    }
}
