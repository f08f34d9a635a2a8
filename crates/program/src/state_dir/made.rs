//! Functions that a manager has made at this node: what it has said (`managed.functions`), and what is so (`made`).
//!
//! They are two, for what is said comes first: a row of the second one is what is lent of a device beside what the
//! node's file says, also after the next start, whether there is a manager or not.

use ::manager::model::{Made, MadeId, MadeList};
use node::MadeNamespace;
use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};

const MADE: &str = "made";
pub(super) const LIST: &str = "managed.functions";

/// A function that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeRow {
    /// As the manager has decided it.
    pub made: Made,
    /// Which controller of its drive it is.
    pub controller: u16,
    /// What it has of its drive.
    pub namespace: MadeNamespace,
    /// Whether nothing is left there of what was there before: then it is lent.
    pub is_ready: bool,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    functions: Vec<MadeRow>,
}

impl StateDir {
    /// The functions that were made here.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn made(&self) -> Result<Vec<MadeRow>, StateError> {
        let damaged = "it is no table of functions that were made, as this version knows it";
        Ok(self.read_json::<Table>(MADE, damaged)?.unwrap_or_default().functions)
    }

    /// Keeps them, durably.
    ///
    /// # Errors
    /// The system said no; what was kept still is, but for [`StateError::Unsettled`].
    pub fn keep_made(&self, rows: &[MadeRow]) -> Result<(), StateError> {
        self.write_json(MADE, &Table { functions: rows.to_vec() })
    }

    /// A function is there no more, and there is none of its number again: what was told of it is forgotten.
    ///
    /// # Errors
    /// The system said no.
    pub fn forget_managed(&self, number: u32) -> Result<(), StateError> {
        self.remove(&format!("managed.{number}"))
    }

    /// What managers of another fabric have made is the node's, and older than all that those of this one decide: they
    /// hear of it as if the first of them had said so.
    pub(super) fn disown_made(&self) -> Result<(), StateError> {
        let mut rows = self.made()?;
        if rows.is_empty() {
            return Ok(());
        }
        let id = MadeId { epoch: 0, index: 0 };
        rows.iter_mut().for_each(|row| row.made.id = id);
        self.keep_made(&rows)?;
        let mut functions: Vec<Made> = rows.into_iter().map(|row| row.made).collect();
        functions.sort_by(|one, two| one.name.cmp(&two.name));
        self.write_json(LIST, &MadeList { id, functions })
    }
}

#[cfg(test)]
mod tests {
    use ::manager::model::{Limits, Shape, Storage};

    use super::*;

    fn row(name: &str, device: &str) -> MadeRow {
        let storage = Storage::Own { bytes: 4096.try_into().unwrap() };
        let (device, limits) = (device.parse().unwrap(), Limits::default());
        let shape = Shape { device, storage, group: None, limits };
        let made = Made { name: name.parse().unwrap(), id: MadeId { epoch: 3, index: u64::MAX }, shape };
        let namespace = MadeNamespace::Own { start: u64::MAX, bytes: 4096 };
        MadeRow { made, controller: 64, namespace, is_ready: true }
    }

    #[test]
    fn what_was_made_comes_back_and_is_told_to_another_fabric_as_old() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        assert_eq!(state.made().unwrap(), []);
        state.disown_made().unwrap();
        assert_eq!(state.managed().unwrap().made, None);
        let rows = [row("slow", "a"), row("fast", "b")];
        state.keep_made(&rows).unwrap();
        assert_eq!(state.made().unwrap(), rows);
        state.disown_made().unwrap();
        let list = state.managed().unwrap().made.unwrap();
        let names: Vec<&str> = list.functions.iter().map(|made| made.name.as_str()).collect();
        assert_eq!((names, list.id), (vec!["fast", "slow"], MadeId { epoch: 0, index: 0 }));
        let told = state.made().unwrap().into_iter().map(|row| row.made);
        assert!(told.into_iter().all(|made| list.functions.contains(&made)));
    }

    #[test]
    fn a_damaged_table_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        state.keep_made(&[row("fast", "b")]).unwrap();
        let file = state.path().join(MADE);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("fast", "last")).unwrap();
        assert!(state.made().unwrap_err().to_string().contains("made"));
    }
}
