//! Virtual machines and slots that come to a node, at its start and later, and leave it.

use std::time::{Duration, Instant};

use io::agent::{Agent, Edge, LoanEnd, LoanSpec};
use node::agent::Patience;

use super::{Awaited, Domains, Entry, Hold, Machine, Monitor, Phase, SURPRISE};
use crate::cli::{NodeName, SlotName};
use crate::config::{Domain, Slot};
use crate::exit::Failure;
use crate::roles::borrow::Claim;
use crate::roles::socket;
use crate::state_dir::StateDir;
use crate::state_dir::slot::Attached;

/// Slots that are to come: their sockets are bound, where something is attached to them, and go with this.
pub(in crate::roles) struct Opened {
    machine: u32,
    monitor: Option<Monitor>,
    places: Vec<(Entry, Option<LoanSpec>)>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        for loan in self.places.iter().filter_map(|(_, loan)| loan.as_ref()) {
            if let LoanEnd::Borrow { edge: Edge::Vm { path, .. }, .. } = &loan.config.role {
                // If that fails the next start finds a dead socket, and removes it.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Opened {
    /// These slots of a domain, whose machine has this number; what was decided about them before holds. `is_new`: the
    /// machine is not known yet.
    pub(in crate::roles) fn open(
        domain: &Domain,
        slots: &[Slot],
        machine: u32,
        is_new: bool,
        state: &StateDir,
    ) -> Result<Self, Failure> {
        let qmp = domain.qmp.clone().filter(|_| is_new);
        qmp.as_deref().map_or(Ok(()), socket::check_client)?;
        let monitor = qmp.map(|path| Monitor::start(path, domain.remove_after + SURPRISE)).transpose();
        let monitor = monitor.map_err(|error| Failure::io("cannot start a thread", &error))?;
        let mut opened = Self { machine, monitor, places: Vec::new() };
        let names: Vec<_> = slots.iter().map(|slot| &slot.name).collect();
        let numbers = state.slot_numbers(&domain.name, &names)?;
        for (slot, number) in slots.iter().cloned().zip(numbers) {
            let name = SlotName { domain: domain.name.clone(), slot: slot.name.clone() };
            let decided = state.attachment(&name)?;
            let generation = decided.as_ref().map_or(0, |decided| decided.generation);
            let is_owed = decided.as_ref().is_some_and(|it| matches!(it.attached, Attached::Owed(_)));
            let claim = match decided.map(|decided| decided.attached) {
                None | Some(Attached::Preset) => slot.preset.as_ref().map(Claim::from),
                Some(Attached::Nothing) => None,
                Some(Attached::Line(line) | Attached::Owed(line)) => Some(Claim::Line(line)),
                Some(Attached::Assigned(assigned)) => Some(Claim::Assigned(assigned)),
            };
            let mut place = Entry::new(name, number, slot, machine, domain.remove_after, generation);
            place.is_lost = is_owed;
            let loan = match claim {
                Some(claim) => place.loan(&claim, None)?,
                None => place.vacancy(),
            };
            opened.places.push((place, Some(loan)));
        }
        Ok(opened)
    }

    /// Whether a function could be attached to those that are vacant: nobody listens there before.
    pub(in crate::roles) fn check_vacant(&self) -> Result<(), Failure> {
        let is_vacant = |loan: &Option<LoanSpec>| loan.as_ref().is_some_and(LoanSpec::is_vacant);
        let mut vacant = self.places.iter().filter(|(_, loan)| is_vacant(loan));
        vacant.try_for_each(|(Entry { slot, .. }, _)| socket::check(&slot.socket, &slot.access))
    }

    /// The loans that come with them; vacant ones are none.
    pub(in crate::roles) fn loans(&self) -> impl Iterator<Item = &LoanSpec> {
        self.places.iter().filter_map(|(_, loan)| loan.as_ref())
    }

    /// How many places they take.
    pub(in crate::roles) fn len(&self) -> usize {
        self.places.len()
    }

    /// Which machine they are of.
    pub(in crate::roles) fn machine(&self) -> u32 {
        self.machine
    }

    /// Each begins another life of its place.
    pub(in crate::roles) fn begin_lives(&mut self, state: &StateDir) -> Result<(), Failure> {
        for loan in self.places.iter_mut().filter_map(|(_, loan)| loan.as_mut()) {
            loan.config.life = state.begin_life()?;
        }
        Ok(())
    }

    /// They have these places from now on: their loans.
    pub(in crate::roles) fn admit(
        mut self,
        loans: impl IntoIterator<Item = usize>,
        domains: &mut Domains,
    ) -> Vec<(usize, LoanSpec)> {
        domains.monitors.extend(self.monitor.take().map(|monitor| (self.machine, monitor)));
        let mut admitted = Vec::new();
        for (at, (place, loan)) in loans.into_iter().zip(self.places.drain(..)) {
            domains.places.insert(at, place);
            admitted.extend(loan.map(|loan| (at, loan)));
        }
        admitted
    }
}

impl Domains {
    /// The number of a domain's machine.
    pub(in crate::roles) fn machine_of(&self, domain: &NodeName) -> Option<u32> {
        self.places.values().find(|place| place.name.domain == *domain).map(|place| place.domain)
    }

    /// The numbers of all machines.
    pub(in crate::roles) fn machines(&self) -> impl Iterator<Item = u32> {
        self.places.values().map(|place| place.domain)
    }

    /// Where the slots are that `is_it` says.
    pub(in crate::roles) fn places_of(&self, is_it: impl Fn(&SlotName) -> bool) -> Vec<usize> {
        self.places.iter().filter(|(_, place)| is_it(&place.name)).map(|(loan, _)| *loan).collect()
    }

    /// A slot could not come after all.
    pub(in crate::roles) fn forget(&mut self, loan: usize) {
        if let Some(place) = self.places.remove(&loan)
            && !self.machines().any(|other| other == place.domain)
        {
            self.monitors.remove(&place.domain);
        }
    }

    /// A slot is to go, when its machine has let go of what is attached. What was decided about it stays: it holds when
    /// the slot is in the file again.
    pub(in crate::roles) fn let_go(&mut self, loan: usize, agent: &mut Agent) {
        if let Some(place) = self.places.get_mut(&loan) {
            place.is_leaving = true;
            place.next = None;
            self.take_out(loan, agent);
        }
    }

    /// Whether a slot that was to go has gone.
    pub(in crate::roles) fn has_gone(&mut self, loan: usize) -> bool {
        let Some(place) = self.places.get(&loan) else { return true };
        if !place.is_leaving || place.phase != Phase::Vacant {
            return false;
        }
        let machine = place.domain;
        self.places.remove(&loan);
        if !self.machines().any(|other| other == machine) {
            self.monitors.remove(&machine);
        }
        true
    }
}

impl Entry {
    fn new(
        name: SlotName,
        number: u16,
        slot: Slot,
        domain: u32,
        remove_after: Duration,
        generation: u64,
    ) -> Self {
        Self {
            name,
            number,
            assigned: None,
            assign_at: None,
            domain,
            slot,
            remove_after,
            generation,
            phase: Phase::Vacant,
            trouble: None,
            is_asked_for: false,
            plug_at: None,
            awaited: Awaited::default(),
            machine: Machine::Unseen,
            hold: Hold::Held { looked: Instant::now() },
            unused: None,
            patience: Patience::new(base::Instant::ZERO),
            is_lost: false,
            is_unwanted: false,
            told_timeouts: 0,
            is_leaving: false,
            next: None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    /// A slot that nothing is attached to.
    pub(in super::super) fn vacant() -> Entry {
        let text =
            "[[domains]]\nname = 'vm'\nkind = 'vm'\n[[domains.slots]]\nname = 'a'\nsocket = '/run/a'\n";
        let domain = Config::parse(text, Path::new("n.toml")).unwrap().domains.remove(0);
        let name = SlotName { domain: domain.name.clone(), slot: domain.slots[0].name.clone() };
        Entry::new(name, 0, domain.slots[0].clone(), 0, domain.remove_after, 0)
    }

    /// As of one that something is attached to.
    #[test]
    fn a_vacant_slot_that_could_have_no_socket_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        std::fs::write(folder.path().join("file"), "something").unwrap();
        let check = |at: &str| {
            let at = folder.path().join(at);
            let slot = format!("[[domains.slots]]\nname = 'a'\nsocket = '{}'\n", at.display());
            let config =
                Config::parse(&format!("[[domains]]\nname = 'vm'\nkind = 'vm'\n{slot}"), Path::new("n.toml"))
                    .unwrap();
            let domain = &config.domains[0];
            let opened = Opened::open(domain, &domain.slots, 0, true, &state).unwrap();
            opened.check_vacant().map_err(|failure| failure.message().to_owned())
        };
        assert!(check("nowhere/vm.sock").unwrap_err().contains("the folder must exist"));
        assert!(check("file").unwrap_err().contains("is no socket"));
        assert_eq!(check("vm.sock"), Ok(()));
        assert!(!folder.path().join("vm.sock").exists(), "nobody listens there before something is attached");
    }
}
