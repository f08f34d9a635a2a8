//! What a plan says of lenders. Many loans may be with one, and a card that has died waits for its successor's plan, so
//! each is looked at once: what its loans know of it in one pass, and the kernel's way to it with one question.

use std::collections::BTreeMap;

use base::ids::{Incarnation, RailId};
use node::Route;

use super::{LoanEnd, LoanSpec, Rail};
use crate::address::{Addresses, RailAddress};
use crate::rail::udp;

/// What is taken to be an MTU where the kernel knows none.
const UNKNOWN_FRAME: usize = 1280;

/// The lenders of a node's loans.
pub(super) struct Lenders<'a> {
    rails: &'a [Rail],
    /// By key: by which incarnation this node calls itself at least.
    least: BTreeMap<[u8; 32], Incarnation>,
    /// By rail and address: bytes of the largest frame.
    frames: BTreeMap<(RailId, RailAddress), usize>,
}

impl<'a> Lenders<'a> {
    /// Those of all loans of a node with these rails.
    pub(super) fn of(loans: &[LoanSpec], rails: &'a [Rail]) -> Self {
        let mut least = BTreeMap::new();
        for loan in loans {
            if let LoanEnd::Borrow { lender, .. } = &loan.config.role {
                let known: &mut Incarnation = least.entry(lender.key.0).or_default();
                *known = (*known).max(loan.config.least_incarnation);
            }
        }
        Self { rails, least, frames: BTreeMap::new() }
    }

    /// By which incarnation this node calls itself at least to the lender with this key, whatever it borrows there.
    pub(super) fn least_incarnation(&self, key: &[u8; 32]) -> Incarnation {
        self.least.get(key).copied().unwrap_or_default()
    }

    /// The ways to a lender at these addresses, by rail.
    pub(super) fn routes(&mut self, peers: &Addresses) -> Vec<Route> {
        let rails = self.rails;
        let route = |(id, peer): (RailId, RailAddress)| {
            // A rail that the node does not have is reached over each that it has.
            let own = rails.iter().find(|rail| rail.id == id);
            let own = own.or_else(|| rails.iter().find(|rail| rail.gateway.is_some()));
            let peer = own.and_then(|rail| rail.gateway).unwrap_or(peer);
            let ask = || {
                // One that is not there may come.
                let found = match (own, peer) {
                    (Some(rail), _) => rail.socket.max_frame(peer).ok(),
                    (None, RailAddress::Udp(to)) => udp::max_frame(to).ok(),
                    (None, RailAddress::Ethernet(_)) => None,
                };
                found.unwrap_or(UNKNOWN_FRAME)
            };
            let max_frame = *self.frames.entry((id, peer)).or_insert_with(ask);
            Route { rail: id, peer: peer.into(), max_frame }
        };
        peers.iter().map(route).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Edge;
    use crate::agent::test_loans::listening;

    #[test]
    fn all_loans_with_a_lender_know_what_one_of_them_knows() {
        let loan = |name: &str, key: u8, least_incarnation| {
            let ([mut loan], _callers) = listening(name, 0, |path, listener| Edge::Nbd { path, listener });
            let LoanEnd::Borrow { lender, .. } = &mut loan.config.role else { panic!("it borrows") };
            lender.key.0 = [key; 32];
            loan.config.least_incarnation = Incarnation(least_incarnation);
            loan
        };
        let mut vacant = loan("lenders-vacant", 1, 9);
        vacant.vacate();
        let loans = [loan("lenders-a", 1, 3), loan("lenders-b", 1, 7), loan("lenders-c", 2, 5), vacant];
        let lenders = Lenders::of(&loans, &[]);
        let least = [1, 2, 3].map(|key| lenders.least_incarnation(&[key; 32]).0);
        assert_eq!(least, [7, 5, 0]);
    }
}
