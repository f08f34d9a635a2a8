//! Who uses what this node lends, until that is durable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use node::Tenancy;
use tracing::warn;

use crate::exit::Failure;
use crate::state_dir::StateDir;

/// Between two attempts to write the state folder.
const RETRY: Duration = Duration::from_secs(1);

/// A function whose user has changed twice within this time waits for the rest of it, should it change once more.
const CHANGES: Duration = Duration::from_secs(1);

/// Changes of who uses what, until they are durable.
#[derive(Default)]
pub(super) struct Tenants {
    /// By loan.
    waiting: BTreeMap<usize, Tenancy>,
    /// By loan: when its last two changes were written. A third one within [`CHANGES`] waits: each costs a write to the
    /// disk.
    written: BTreeMap<usize, [Option<Instant>; 2]>,
    retry_at: Option<Instant>,
}

impl Tenants {
    /// Somebody has taken what a loan lends, or given it back.
    pub(super) fn add(&mut self, loan: usize, tenancy: Tenancy, now: Instant) {
        self.waiting.insert(loan, tenancy);
        let at = self.earliest(loan).map_or(now, |at| at.max(now));
        self.retry_by(at);
    }

    /// When [`Tenants::make_durable`] has something to do.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Writes what is due; what was written may have an effect. What cannot be written is tried again: until then its
    /// user waits, since nobody could tell after a restart that there was one. `name_of`: the function of a loan.
    pub(super) fn make_durable(
        &mut self,
        state: &StateDir,
        now: Instant,
        name_of: &impl Fn(usize) -> String,
    ) -> Vec<(usize, Tenancy)> {
        let mut done = Vec::new();
        if self.retry_at.is_none_or(|at| at > now) {
            return done;
        }
        self.retry_at = None;
        for (loan, tenancy) in std::mem::take(&mut self.waiting) {
            let wait = self.earliest(loan).filter(|at| *at > now);
            let at = wait.or_else(|| (!write(state, loan, tenancy, name_of)).then(|| now + RETRY));
            if let Some(at) = at {
                self.waiting.insert(loan, tenancy);
                self.retry_by(at);
                continue;
            }
            let written = self.written.entry(loan).or_default();
            *written = [written[1], Some(now)];
            done.push((loan, tenancy));
        }
        done
    }

    /// The node ends: whatever waits is written now, or never.
    pub(super) fn conclude(&mut self, state: &StateDir, name_of: &impl Fn(usize) -> String) {
        for (loan, tenancy) in std::mem::take(&mut self.waiting) {
            write(state, loan, tenancy, name_of);
        }
    }

    fn earliest(&self, loan: usize) -> Option<Instant> {
        self.written.get(&loan).and_then(|[before, _]| *before).map(|at| at + CHANGES)
    }

    fn retry_by(&mut self, at: Instant) {
        self.retry_at = Some(self.retry_at.map_or(at, |known| known.min(at)));
    }
}

/// Whether it is durable now.
fn write(state: &StateDir, loan: usize, tenancy: Tenancy, name_of: &impl Fn(usize) -> String) -> bool {
    let function = name_of(loan);
    let named = function.parse().map_err(Failure::usage);
    let written = named.and_then(|name| Ok(state.set_tenancy(&name, tenancy)?));
    if let Err(error) = &written {
        let what = if tenancy.is_held { "used" } else { "given back" };
        warn!(function, node = %tenancy.node, again_in = ?RETRY, "the function cannot be {what} yet: {error}");
    }
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ids::{LifeId, NodeId};
    use node::Name;

    fn name_of(loan: usize) -> String {
        format!("nvme{loan}")
    }

    #[test]
    fn a_give_back_that_waits_for_its_turn_is_written_when_the_node_ends() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let kept = || state.tenancy(&"nvme0".parse().unwrap()).unwrap();
        let held = Tenancy::default().taken_by(NodeId(7), LifeId([1; 16]), Name::new("one"));
        let (mut tenants, now) = (Tenants::default(), Instant::now());
        for tenancy in [held, held.given_back(), held] {
            tenants.add(0, tenancy, now);
            tenants.make_durable(&state, now, &name_of);
        }
        assert!(!kept().is_held && tenants.retry_at() == Some(now + CHANGES), "the third one waits");
        let done = tenants.make_durable(&state, now + CHANGES, &name_of);
        assert!(kept().is_held && done == [(0, held)] && tenants.retry_at().is_none());
        tenants.add(0, held.given_back(), now + CHANGES);
        tenants.make_durable(&state, now + CHANGES, &name_of);
        tenants.add(0, held, now + CHANGES);
        tenants.add(0, held.given_back(), now + CHANGES);
        tenants.add(1, held, now + CHANGES);
        tenants.conclude(&state, &name_of);
        assert!(!kept().is_held, "it would be kept for a node that has given it back");
        assert!(state.tenancy(&"nvme1".parse().unwrap()).unwrap().is_held);
    }
}
