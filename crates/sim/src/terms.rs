//! What all cards of a world are told alike, and each of its own.

use base::RuleSet;
use base::ids::{CardGeneration, DomainId, Incarnation, RailId};
use device::nvme::Config;
use link::{Name, Protection, RailMode, Secret};
use node::{BorrowEdge, CardConfig, FunctionId, LendConfig, LoanConfig, LoanRole, Route};

use crate::loans::Loan;
use crate::network::Network;
use crate::nodes::Node;
use crate::rails;
use crate::stage::{LENDER, NODES};

/// What the agents of a world configure.
pub(crate) struct Terms {
    pub(crate) rules: RuleSet,
    pub(crate) frame_bytes: usize,
    /// Of the lender, and of who borrows: rails as bits, and what they accept.
    pub(crate) rails: [u8; 2],
    pub(crate) protection: [Protection; 2],
    pub(crate) rail_mode: [RailMode; 2],
    /// The drive of which each loan lends a virtual function; else each has a drive of its own.
    pub(crate) common: Option<Config>,
    /// By node: its edges are slots of virtual machines.
    pub(crate) guests: [bool; NODES],
}

/// Where a node is.
fn domain_of(node: usize) -> DomainId {
    DomainId(node as u32 + 1)
}

impl Terms {
    /// Whether any node has guests.
    pub(crate) fn has_guests(&self) -> bool {
        self.guests.contains(&true)
    }

    /// The drives that are lent.
    pub(crate) fn drives(&self, loans: &[Loan<'_>]) -> Vec<Config> {
        match &self.common {
            Some(drive) => vec![drive.clone()],
            None => loans.iter().map(|loan| loan.config.clone()).collect(),
        }
    }

    /// The configuration of a node's card.
    pub(crate) fn config(
        &self,
        (at, nodes): (usize, &[Node<'_>]),
        loans: &[Loan<'_>],
        drives: Vec<Config>,
        seed: [u8; 32],
    ) -> CardConfig {
        let (node, side) = (&nodes[at], usize::from(at != LENDER));
        let role = |(index, loan): (usize, &Loan<'_>)| match side {
            LENDER => self.lends(index),
            _ => self.borrows((at, &nodes[LENDER]), index, loan),
        };
        let loans = loans.iter().enumerate().map(|(index, loan)| LoanConfig {
            tenancy: loan.tenure.tenancy,
            least_incarnation: Incarnation(node.agent.least_incarnation(index)),
            ..LoanConfig::new(
                Secret([index as u8 + 1; 32]),
                FunctionId(index as u32 + 1),
                role((index, loan)),
            )
        });
        CardConfig {
            identity: node.identity.clone(),
            name: Name::new(["lender", "borrower", "rival"][at]),
            domain: domain_of(at),
            incarnation: Incarnation(node.incarnation),
            life: node.life_id(),
            restored_as: None,
            generation: CardGeneration(node.generation()),
            seed: Secret(seed),
            protection: self.protection[side],
            rail_mode: self.rail_mode[side],
            lost_carriers: 0,
            rails: rails::config(self.rails[side], self.frame_bytes),
            drives: drives.into_iter().map(Some).collect(),
            loans: loans.collect(),
            holders: node.holders.clone(),
            // Often, so that keys are replaced in the middle of everything else.
            rekey_frames: 300,
            rules: self.rules,
        }
    }

    fn lends(&self, loan: usize) -> LoanRole {
        let (drive, controller) = if self.common.is_some() { (0, loan as u16 + 1) } else { (loan, 0) };
        LoanRole::Lend(LendConfig { controller, ..LendConfig::of(drive) })
    }

    fn borrows(&self, (at, lender): (usize, &Node<'_>), index: usize, loan: &Loan<'_>) -> LoanRole {
        let max_frame = self.frame_bytes;
        let route = |rail: RailId| Route { rail, peer: Network::address(LENDER, rail.index()), max_frame };
        let slot = BorrowEdge::Slot { domain: DomainId((NODES + index) as u32 + 1) };
        LoanRole::Borrow {
            lender: lender.identity.lends_in(domain_of(LENDER)),
            routes: rails::each(self.rails[0]).map(route).collect(),
            io_timeout: loan.io_timeout(),
            edge: if self.guests[at] { slot } else { BorrowEdge::Drive },
        }
    }
}
