//! What the agent wants kept in the state folder.

use base::ids::NodeId;
use io::agent::AgentEvent;
use io::event::Event;
use node::Tenancy;

use super::Node;
use crate::exit::Failure;

impl Node {
    /// Writes what is to be durable, and says so: what waits for that has an effect only then.
    pub(super) fn keep(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::StoreTenancy { loan, tenancy } => {
                let stored = self.store_tenancy(*loan, *tenancy).map_err(|failure| failure.to_string());
                self.agent.tenancy_stored(*loan, stored);
            }
            AgentEvent::StoreHolder(holder) => {
                let stored = self.state.set_holder(holder).map_err(|error| error.to_string());
                self.agent.holder_stored(*holder, stored);
            }
            AgentEvent::ForgetHolder(node) => self.forget_holder(*node),
            AgentEvent::RaiseIncarnation { loan, seen } => self.catch_up(*loan, *seen),
            AgentEvent::Persist { drive, version, bytes } => self.keep_drive(*drive, *version, bytes),
            _ => {}
        }
    }

    /// Unless it has something that is not lent now. What stays goes at the next start.
    fn forget_holder(&self, node: NodeId) {
        if !self.state.held_by().is_ok_and(|nodes| nodes.contains(&node)) {
            self.state.forget_holder(node).unwrap_or_default();
        }
    }

    fn store_tenancy(&self, loan: usize, tenancy: Tenancy) -> Result<(), Failure> {
        let function = self.agent.view().spec().loans[loan].function.parse().map_err(Failure::usage)?;
        Ok(self.state.set_tenancy(&function, tenancy)?)
    }

    /// The node ends: whatever waits is written now, or never.
    pub(super) fn keep_tenancies(&mut self) {
        for (loan, tenancy) in self.agent.take_unsaved() {
            if let Err(error) = self.store_tenancy(loan, tenancy) {
                let function = self.agent.view().spec().loans[loan].function.clone();
                let (node, error) = (tenancy.node.to_string(), error.to_string());
                Event::TenancyUnkept { function, node, error }.say();
            }
        }
    }

    /// The lender has seen a later life of this node than the state folder knew of: it comes from a backup or a copy.
    fn catch_up(&mut self, loan: usize, seen: u64) {
        let function = self.agent.view().spec().loans[loan].function.clone();
        let folder = self.state.path().display().to_string();
        match self.state.raise_above(seen) {
            Ok(incarnation) => {
                Event::StateOutdated { function, incarnation, seen, folder }.say();
                self.agent.incarnation_raised(loan, incarnation);
            }
            Err(error) => Event::StateNotRaised { function, seen, folder, error: error.to_string() }.say(),
        }
    }

    /// What a drive wants to be kept is written before its commands that wait for that complete.
    fn keep_drive(&mut self, drive: usize, version: u64, bytes: &[u8]) {
        let Some((name, layout)) = self.layouts.get(drive) else { return };
        let written = crate::state_dir::drive::write(self.state.path(), name, *layout, bytes);
        if let Err(error) = &written {
            let (drive, error) = (name.to_string(), error.to_string());
            self.said.unkept().say(|others| Event::DriveUnkept { drive, error, others }.say());
        }
        self.agent.persisted(drive, version, written.is_ok());
    }
}
