//! Which numbers the virtual machines of a node and their slots have: the file `places`. A manager knows them by these,
//! so they stay, whatever is added to the node's file or moved in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::file::{Named, read_long_value, write_value};
use super::{StateDir, StateError};
use crate::cli::NodeName;

const PLACES: &str = "places";
/// As many machines as a block of domains has, with the longest names.
const BYTES_MAX: u64 = 1 << 20;

/// What a machine and its slots have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    number: u32,
    slots: BTreeMap<String, u16>,
}

type Machines = BTreeMap<String, Machine>;

impl StateDir {
    /// The number of a virtual machine: the one that it has had before, if that `is_free`; else the first that is, and
    /// that none of the others has, rather one that nobody ever had. `None`: there is none.
    ///
    /// # Errors
    /// The file cannot be read or written, or is damaged.
    pub fn machine_number(&self, name: &NodeName, free: &BTreeSet<u32>) -> Result<Option<u32>, StateError> {
        let mut machines = self.machines()?;
        if let Some(known) = machines.get(name.as_str()).filter(|known| free.contains(&known.number)) {
            return Ok(Some(known.number));
        }
        let had: BTreeSet<u32> = machines.values().map(|machine| machine.number).collect();
        let Some(&number) = free.difference(&had).next().or(free.first()) else { return Ok(None) };
        machines.retain(|_, machine| machine.number != number);
        machines.entry(name.to_string()).or_default().number = number;
        self.set_machines(&machines)?;
        Ok(Some(number))
    }

    /// The numbers that virtual machines have or had.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn machine_numbers(&self) -> Result<BTreeSet<u32>, StateError> {
        Ok(self.machines()?.values().map(|machine| machine.number).collect())
    }

    /// The numbers of slots of a virtual machine that has one itself: those that they have had before, else new ones.
    ///
    /// # Errors
    /// The file cannot be read or written, or is damaged.
    pub fn slot_numbers(&self, machine: &NodeName, slots: &[&NodeName]) -> Result<Vec<u16>, StateError> {
        let mut machines = self.machines()?;
        let before = machines.clone();
        let known = &mut machines.entry(machine.to_string()).or_default().slots;
        let mut numbers = Vec::with_capacity(slots.len());
        for slot in slots {
            let free = || (0..=u16::MAX).find(|number| known.values().all(|other| other != number));
            let number = match known.get(slot.as_str()) {
                Some(number) => *number,
                None => free().unwrap_or(u16::MAX),
            };
            known.insert(slot.to_string(), number);
            numbers.push(number);
        }
        if machines != before {
            self.set_machines(&machines)?;
        }
        Ok(numbers)
    }

    fn machines(&self) -> Result<Machines, StateError> {
        let Some(Named { file, value }) = read_long_value(&self.path, PLACES, BYTES_MAX)? else {
            return Ok(Machines::new());
        };
        let why = "it has no numbers of machines and slots that this version knows";
        serde_json::from_str(&value).map_err(|_| StateError::Damaged { file, why })
    }

    fn set_machines(&self, machines: &Machines) -> Result<(), StateError> {
        let text = serde_json::to_string(machines).expect("names and numbers serialise");
        write_value(&self.path, PLACES, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn numbers_stay_whatever_moves() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let machine = |text: &str, free: &[u32]| {
            state.machine_number(&name(text), &free.iter().copied().collect()).unwrap()
        };
        assert_eq!((machine("a", &[0, 1, 2]), machine("b", &[1, 2])), (Some(0), Some(1)));
        // In another order.
        assert_eq!((machine("b", &[0, 1, 2]), machine("a", &[0, 2])), (Some(1), Some(0)));
        // One that is new gets none that another one had, as long as there is one.
        assert_eq!(machine("c", &[0, 1, 2]), Some(2));
        assert_eq!(machine("d", &[1]), Some(1), "b is not there");
        assert_eq!((machine("b", &[1]), machine("e", &[])), (Some(1), None));

        let slots = |names: &[&str]| {
            let names: Vec<NodeName> = names.iter().map(|it| name(it)).collect();
            state.slot_numbers(&name("a"), &names.iter().collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(slots(&["disk", "log"]), [0, 1]);
        assert_eq!(slots(&["new", "log", "disk"]), [2, 1, 0]);
        assert_eq!(machine("a", &[0]), Some(0), "its slots are beside it");
        assert_eq!(slots(&["log"]), [1]);
    }
}
