//! What the agent wants kept in the state folder.

use io::agent::AgentEvent;
use node::Tenancy;
use tracing::warn;

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
            AgentEvent::RaiseIncarnation { loan, seen } => self.catch_up(*loan, *seen),
            AgentEvent::Persist { drive, version, bytes } => self.keep_drive(*drive, *version, bytes),
            _ => {}
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
                let function = &self.agent.view().spec().loans[loan].function;
                warn!(%function, node = %tenancy.node, "who has the function cannot be kept: {error}");
            }
        }
    }

    /// The lender has seen a later life of this node than the state folder knew of: it comes from a backup or a copy.
    fn catch_up(&mut self, loan: usize, seen: u64) {
        let function = &self.agent.view().spec().loans[loan].function;
        let folder = self.state.path().display();
        match self.state.raise_above(seen) {
            Ok(incarnation) => {
                warn!(
                    %function, incarnation, seen,
                    "the state directory {folder} is older than what the lender has seen of this node: it was restored or copied. \
                     This node goes on with a greater incarnation; if another one runs with a copy, give one of them a state \
                     directory of its own"
                );
                self.agent.incarnation_raised(loan, incarnation);
            }
            Err(error) => warn!(
                %function, seen,
                "the lender has seen a later life of this node than the state directory {folder} knows of, and does not let it in: \
                 {error}; restore a newer copy of the folder, or give this node a new one"
            ),
        }
    }

    /// What a drive wants to be kept is written before its commands that wait for that complete.
    fn keep_drive(&mut self, drive: usize, version: u64, bytes: &[u8]) {
        let Some((name, layout)) = self.layouts.get(drive) else { return };
        let written = crate::state_dir::drive::write(self.state.path(), name, *layout, bytes);
        if let Err(error) = &written {
            warn!(%error, drive = %name, "the state of a drive cannot be kept: what has changed it fails");
        }
        self.agent.persisted(drive, version, written.is_ok());
    }
}
