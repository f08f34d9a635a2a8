//! What a card is started with: descriptors, a plan, and the word to take over.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use base::RuleSet;
use base::ids::{CardGeneration, Incarnation};
use node::{BorrowEdge, CardConfig, LoanConfig, LoanRole, Name, Secret};

use super::lenders::Lenders;
use super::{Agent, DriveSpec, Edge, LoanEnd, LoanSpec, fill_random, medium_of, rails};
use crate::messages::{self, TakeOver, ToCard};
use crate::plan::{MediumPlan, Plan, descriptor, feasible};
use crate::process::{Child, OWN_EXECUTABLE, Spawn};

impl Agent {
    /// A process with the plan, which waits for [`ToCard::TakeOver`].
    ///
    /// # Errors
    /// What the system refused.
    pub(super) fn spawn(&self, messages: &OwnedFd, plan: &OwnedFd) -> io::Result<Child> {
        let mut descriptors: Vec<(BorrowedFd<'_>, RawFd)> = vec![
            (self.memory.as_fd(), descriptor::MEMORY),
            (plan.as_fd(), descriptor::PLAN),
            (messages.as_fd(), descriptor::MESSAGES),
            (self.spec.last_writes.as_fd(), descriptor::LAST_WRITES),
        ];
        if let Some(ring) = &self.ring {
            descriptors.push((ring.as_fd(), descriptor::RING));
        }
        let arguments = [c"causeway".to_owned(), c"__card".to_owned()];
        let environment: Vec<CString> = std::env::vars_os()
            .filter(|(name, _)| name == "RUST_BACKTRACE")
            .filter_map(|(name, value)| CString::new(format!("{}={}", name.display(), value.display())).ok())
            .collect();
        Spawn {
            program: OWN_EXECUTABLE,
            arguments: &arguments,
            environment: &environment,
            descriptors: &descriptors,
        }
        .start()
    }

    /// What the next card is told before it takes over, as things are now.
    pub(super) fn plan(&self) -> Plan {
        let spec = &self.spec;
        let mut lenders = Lenders::of(&spec.loans, &spec.rails);
        let card = CardConfig {
            identity: spec.identity.clone(),
            name: Name::new(&spec.name),
            // Domains are told apart within a loan; without a manager any choice will do that two nodes hardly share.
            domain: spec.domains.node(),
            incarnation: Incarnation(spec.incarnation),
            life: self.life,
            restored_as: None,
            generation: CardGeneration(0),
            seed: Secret([0; 32]),
            protection: feasible(spec.protection),
            rail_mode: spec.rail_mode,
            lost_carriers: self.carriers.lost(),
            rails: rails::configs(&spec.rails),
            drives: spec.drives.iter().map(|drive| Some(drive.as_ref()?.config.clone())).collect(),
            loans: spec.loans.iter().map(|loan| self.loan_config(loan, &mut lenders)).collect(),
            holders: spec.holders.clone(),
            rekey_frames: node::REKEY_FRAMES,
            rules: RuleSet::ALL,
        };
        let load = |(place, loan): (usize, &LoanSpec)| match loan.config.role.edge()? {
            Edge::Load(load) => Some((place, *load)),
            Edge::Nbd { .. } | Edge::Vm { .. } => None,
        };
        Plan {
            agent_pid: rustix::process::getpid().as_raw_nonzero().get(),
            card,
            has_ring: self.ring.is_some(),
            rails: spec.rails.iter().map(|rail| (rail.id, rails::plan(rail))).collect(),
            media: spec.drives().map(|(place, drive)| (place, self.medium_plan(place, drive))).collect(),
            loads: spec.loans.iter().enumerate().filter_map(load).collect(),
            fabric: spec.fabric.clone(),
        }
    }

    /// Tells a process that it is the card of its node, and gives it the rails and the images of the plan: a card that
    /// only stands by has none, since closing an image may write to a disk, or wait for one.
    ///
    /// # Errors
    /// It is gone, or there are no random numbers.
    pub(super) fn give_over(&self, to: &OwnedFd) -> io::Result<()> {
        let mut seed = Secret([0; 32]);
        fill_random(&mut seed.0)?;
        let order = ToCard::TakeOver(TakeOver {
            generation: CardGeneration(self.core.record().generation),
            seed,
            restored_as: self.restored_as,
            renews_keys: self.was_restored,
        });
        messages::send(to.as_fd(), &order, &[])?;
        let rails = self.spec.rails.iter().map(|rail| rail.socket.as_fd());
        let images = self.spec.drives().map(|(_, drive)| drive.image.as_fd());
        let descriptors: Vec<BorrowedFd<'_>> = rails.chain(images).collect();
        let mut parts = descriptors.chunks(messages::DESCRIPTORS);
        parts.try_for_each(|some| messages::send(to.as_fd(), &ToCard::Given, some))
    }

    /// What is said of the image of a drive.
    pub(super) fn medium_plan(&self, place: usize, drive: &DriveSpec) -> MediumPlan {
        MediumPlan {
            kind: medium_of(&drive.image, self.ring.is_some()),
            flash: drive.flash,
            has_lost: self.images.has_lost(place),
            cleared: self.images.cleared(place),
        }
    }

    /// What the card is told of a loan.
    pub(super) fn loan_config(&self, loan: &LoanSpec, lenders: &mut Lenders<'_>) -> LoanConfig {
        let mut least_incarnation = Incarnation::default();
        let role = match &loan.config.role {
            LoanEnd::Lend(lent) => LoanRole::Lend(lent.clone()),
            LoanEnd::Borrow { lender, peers, io_timeout, edge } => {
                least_incarnation = lenders.least_incarnation(&lender.key.0);
                let edge = match edge {
                    Edge::Nbd { .. } => BorrowEdge::Drive,
                    Edge::Load(_) => BorrowEdge::Program,
                    Edge::Vm { machine, .. } => {
                        BorrowEdge::Slot { domain: self.spec.domain_of_machine(*machine) }
                    }
                };
                let routes = lenders.routes(peers);
                LoanRole::Borrow { lender: *lender, routes, io_timeout: *io_timeout, edge }
            }
            LoanEnd::Vacant { edge: Some(Edge::Vm { .. }) } => LoanRole::VacantSlot,
            LoanEnd::Vacant { .. } => LoanRole::Vacant,
        };
        LoanConfig { least_incarnation, ..loan.config.with_role(role) }
    }
}
