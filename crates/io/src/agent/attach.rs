//! Loans that come and go while the node runs.
//!
//! A place for a loan is in the plan from the start, perhaps vacant. Who moves in gets what nobody has used before:
//! another life of the place. The card is told of it, and goes on; its successors find it in their plans. Where a
//! machine is still connected to the place the card is replaced, as if it had been killed, and the other loans notice
//! no more of it than of any other death.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use base::ids::{Group, LoanGeneration, NodeId};
use node::{LendConfig, LoanConfig, SessionCells, Title};

use super::change::Told;
use super::clients::stop_listening_at;
use super::{Agent, Edge, LoanEnd, LoanSpec};

impl LoanSpec {
    /// A place without a loan, and who may use what comes there.
    pub fn vacant(edge: Option<Edge>) -> Self {
        let config = LoanConfig::vacant(LoanEnd::Vacant { edge });
        Self { function: String::new(), config, hold: None }
    }

    /// What was here is not any more: nobody new may connect, and its secret is forgotten.
    pub(super) fn vacate(&mut self) {
        self.config.role.vacate();
        self.config.title = Title::Nothing;
    }

    /// What it lends, if it lends anything.
    pub fn lent(&self) -> Option<&LendConfig> {
        if let LoanEnd::Lend(lent) = &self.config.role { Some(lent) } else { None }
    }

    /// The zone that its function is in ([`LoanConfig::zone`]).
    pub fn zone(&self) -> Group {
        self.lent().and_then(LendConfig::group).unwrap_or(self.config.group)
    }

    /// By which entry of its lender's table it is, or may be, had; 0: by a line.
    pub fn generation(&self) -> LoanGeneration {
        self.lent().map_or_else(|| self.config.title.generation(), LendConfig::generation)
    }

    /// The node that it borrows from, if it borrows.
    pub(super) fn lender(&self) -> Option<NodeId> {
        match &self.config.role {
            LoanEnd::Borrow { lender, .. } => Some(lender.key.id()),
            LoanEnd::Lend { .. } | LoanEnd::Vacant { .. } => None,
        }
    }

    /// Whether this is a place without a loan.
    pub fn is_vacant(&self) -> bool {
        matches!(&self.config.role, LoanEnd::Vacant { .. })
    }
}

/// By which incarnation a node with these loans calls itself at least to `lender`, whatever it borrows there.
pub(super) fn least_incarnation(loans: &[LoanSpec], lender: NodeId) -> u64 {
    let its = loans.iter().filter(|loan| loan.lender() == Some(lender));
    its.map(|loan| loan.config.least_incarnation).max().unwrap_or_default().0
}

impl LoanEnd {
    fn edge_mut(&mut self) -> Option<&mut Edge> {
        match self {
            Self::Borrow { edge, .. } => Some(edge),
            Self::Vacant { edge } => edge.as_mut(),
            Self::Lend { .. } => None,
        }
    }

    /// What was lent or borrowed is not any more: nobody new may connect.
    fn vacate(&mut self) {
        let edge = match self {
            Self::Vacant { .. } => return,
            Self::Borrow { edge: Edge::Nbd { path, listener }, .. } => {
                stop_listening_at(path, listener);
                None
            }
            Self::Borrow { edge: Edge::Vm { path, listener, machine }, .. } => {
                stop_listening_at(path, listener);
                Some(Edge::Vm { path: std::mem::take(path), listener: None, machine: *machine })
            }
            Self::Borrow { edge: Edge::Load(_), .. } | Self::Lend { .. } => None,
        };
        *self = Self::Vacant { edge };
    }
}

impl Agent {
    /// Gives the vacant place `loan` to another loan.
    ///
    /// # Errors
    /// There is no memory for it: the place stays vacant, and the card goes on. Or what ending the card returned; the
    /// place then has its loan all the same.
    ///
    /// # Panics
    /// If the place is not vacant, or has had a loan of this life or a later one.
    pub fn attach(&mut self, loan: usize, spec: LoanSpec) -> io::Result<()> {
        let mut coming = [(loan, spec)];
        if let Err(error) = self.reserve(&coming, self.spec.drives.len()) {
            coming[0].1.vacate();
            return Err(error);
        }
        let [(_, spec)] = coming;
        let told = self.seat(loan, spec);
        self.core.handle_attached(loan, told == Told::ByMessage);
        self.perform()
    }

    /// Has what `loan` borrows given back: [`super::AgentEvent::GivenBack`] follows when its lender has heard of it,
    /// and the place is vacant then.
    pub fn detach(&mut self, loan: usize) {
        if !self.spec.loans[loan].is_vacant() {
            self.core.handle_detach(loan);
        }
        self.follow();
    }

    /// The lender of `loan`, which is being given back, does not answer, and keeps the function for this node: the card
    /// is told to end the loan without him, and [`super::AgentEvent::GivenBack`] follows.
    pub fn abandon(&mut self, loan: usize) {
        if !self.spec.loans[loan].is_vacant() {
            self.core.handle_abandoned(loan);
        }
        self.follow();
    }

    /// Whether [`Agent::shut_down`] was called: no loan comes any more.
    pub fn is_shutting_down(&self) -> bool {
        self.core.is_shutting_down()
    }

    /// Whether a virtual machine is connected to the slot of `loan`.
    pub fn has_guest(&self, loan: usize) -> bool {
        self.slots.has_client(loan)
    }

    /// The process that has the function of a slot, if any has, as far as the kernel tells.
    pub fn guest(&self, loan: usize) -> Option<Option<i32>> {
        self.slots.client(loan)
    }

    /// Whether a driver has the function of a slot, by what its machine has set up.
    pub fn has_driver(&self, loan: usize) -> bool {
        self.view().loan(loan).is_some_and(|(_, view)| view.session().is_some_and(SessionCells::has_driver))
    }

    /// Whether the function of a slot is there for its machine; clients of one that is not, behind another edge, are
    /// disconnected.
    pub fn set_present(&mut self, loan: usize, is_present: bool) {
        self.core.handle_presence(loan, is_present);
        self.follow();
    }

    /// The machine of a slot connects at this path from now on, where this socket lies, if anybody is to come. The one
    /// before is closed.
    pub fn move_edge(&mut self, loan: usize, to: &Path, socket: Option<UnixListener>) {
        self.slots.ignore_one(&self.spec.loans, loan, &self.waiter);
        let edge = self.spec.loans.get_mut(loan).and_then(|loan| loan.config.role.edge_mut());
        let Some(Edge::Vm { path, listener, .. }) = edge else { return };
        if path != to {
            stop_listening_at(path, listener);
        }
        (*path, *listener) = (to.to_owned(), socket);
        if let Err(error) = self.slots.listen_one(&self.spec.loans, loan, &self.waiter) {
            // As where there are no descriptors for clients: they wait, and this is tried again.
            self.stop_accepting(&error);
        }
    }

    /// Nobody new is accepted at a place that has no loan any more.
    pub(super) fn vacate(&mut self, loan: usize) {
        self.slots.ignore_one(&self.spec.loans, loan, &self.waiter);
        self.spec.loans[loan].vacate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::test_loans::listening;

    /// A message names a loan by place and life: what is of another one, or of no place at all, is dropped.
    #[test]
    fn a_message_of_a_loan_that_is_gone_is_of_nobody() {
        let ([mut loan], _callers) =
            listening("present", 0, |path, listener| Edge::Vm { path, listener, machine: 0 });
        loan.config.life = 2;
        let loans = [loan];
        let present = |place, life| crate::agent::is_present(&loans, place, life);
        assert!(present(0, 2) && !present(0, 1) && !present(0, 3));
        assert!(!present(1, 2) && !present(usize::MAX, 0));
    }

    /// One that was made up, or is left of another loan, would be a key that somebody knows.
    #[test]
    fn a_vacant_place_has_no_secret() {
        let ([mut loan], _callers) = listening("no-secret", 0, |path, listener| Edge::Nbd { path, listener });
        assert!(loan.config.title.secret().is_some());
        loan.vacate();
        for vacant in [loan, LoanSpec::vacant(None)] {
            assert!(vacant.is_vacant() && vacant.config.title.secret().is_none());
            assert_eq!(vacant.generation().0, 0);
        }
    }

    /// `causeway qemu-args` tells it, and whoever is attached next comes there.
    #[test]
    fn a_vacant_place_still_says_where_its_socket_was() {
        let ([mut loan], _callers) =
            listening("vacate", 0, |path, listener| Edge::Vm { path, listener, machine: 0 });
        let path_of = |loan: &LoanSpec| match loan.config.role.edge() {
            Some(Edge::Vm { path, listener, .. }) => (path.clone(), listener.is_some()),
            _ => panic!("it is a slot"),
        };
        let (path, listens) = path_of(&loan);
        assert!(listens);
        loan.vacate();
        assert!(loan.is_vacant());
        assert_eq!(path_of(&loan), (path, false));
    }
}
