//! To which fabric a node belongs, and what its manager has told it last.
//!
//! | file | what |
//! |---|---|
//! | `fabric` | name, domains and groups of the node, its managers and their authority |
//! | `certificate` | by what the node shows that it belongs there, and who does not any more |
//! | `managed.epoch` | the greatest epoch of a manager that the node has heard of |
//! | `managed.functions` | the functions that are to be made here |
//! | `managed.FUNCTION` | the row of a function, by its number |
//! | `managed.slots` | what is in the node's slots |
//! | `managed.lenders` | that, with where the lenders are |

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ::manager::member::{Change, Kept, Row};
use ::manager::model::{Block, FabricId, Groups, NODES_MAX, Name, PublicKey, WallTime};
use ::manager::report::{Identity, Preset, PresetsId};
use base::ids::NodeId;
use management::wire::Placed;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::file::{Named, read_long_value, write_value};
use super::{StateDir, StateError, made};

const FABRIC: &str = "fabric";
/// While what managers of the fabric before have told is there still.
const CHANGES: &str = "fabric.changes";
const CERTIFICATE: &str = "certificate";
const EPOCH: &str = "managed.epoch";
const SLOTS: &str = "managed.slots";
const LENDERS: &str = "managed.lenders";
const ROW_PREFIX: &str = "managed.";
/// A list of 80 slots and a certificate take less.
const BYTES_MAX: u64 = 256 << 10;

/// To which fabric a node belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Which one.
    pub fabric: FabricId,
    /// What the node is called there.
    pub name: Name,
    /// Its domains.
    pub block: Block,
    /// Which groups it may enter.
    pub groups: Groups,
    /// URLs of the managers.
    pub urls: Vec<String>,
    /// The certificate that theirs lead to, PEM.
    pub authority: String,
    /// The manager's public key.
    pub manager: PublicKey,
}

/// By what a node shows that it belongs to its fabric.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certified {
    /// Its certificate, in base 32.
    pub certificate: String,
    /// Nodes that were removed from the fabric, in order.
    pub revoked: Vec<NodeId>,
}

impl Certified {
    /// With this certificate, and with those whom a manager names as removed. Whoever was removed stays so whatever the
    /// list says, for a manager whose state was rebuilt does not know of them; where there are too many, those count
    /// that the manager names.
    pub fn renewed(&self, certificate: String, named: Vec<NodeId>) -> Self {
        let mut revoked = BTreeSet::new();
        for node in named.iter().chain(&self.revoked) {
            if revoked.len() == NODES_MAX {
                break;
            }
            revoked.insert(*node);
        }
        Self { certificate, revoked: revoked.into_iter().collect() }
    }
}

impl Membership {
    /// What the node says of itself to the manager.
    pub fn identity(&self, key: PublicKey) -> Identity {
        let (name, groups, issued) = (self.name.clone(), self.groups.clone(), WallTime::default());
        Identity { name, key, block: self.block, groups, issued }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slots {
    id: PresetsId,
    presets: Vec<Preset>,
}

impl StateDir {
    /// To which fabric the node belongs, if to one.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn membership(&self) -> Result<Option<Membership>, StateError> {
        Self::membership_in(&self.path)
    }

    /// The same of a folder, whether its node runs or not.
    ///
    /// # Errors
    /// As of [`StateDir::membership`].
    pub fn membership_in(folder: &Path) -> Result<Option<Membership>, StateError> {
        read_json(
            folder,
            FABRIC,
            "it does not say to which fabric the node belongs, as this version knows it",
        )
    }

    /// By what the node shows that it belongs to its fabric; nothing, if it has joined with an earlier release.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn certified(&self) -> Result<Certified, StateError> {
        let damaged = "it is no certificate of this node as this version knows it";
        Ok(self.read_json(CERTIFICATE, damaged)?.unwrap_or_default())
    }

    /// Keeps that, durably.
    ///
    /// # Errors
    /// The system said no.
    pub fn keep_certified(&self, certified: &Certified) -> Result<(), StateError> {
        self.write_json(CERTIFICATE, certified)
    }

    /// It belongs to this one from now on; what managers of another one have told it is forgotten.
    ///
    /// # Errors
    /// The system said no.
    pub fn set_membership(&self, membership: &Membership) -> Result<(), StateError> {
        let is_other = self.membership()?.is_none_or(|before| before.fabric != membership.fabric);
        // Who dies meanwhile joins again, and then goes on here.
        if !is_other && self.read_json::<bool>(CHANGES, "it says nothing")?.is_none() {
            return self.write_json(FABRIC, membership);
        }
        self.write_json(CHANGES, &true)?;
        self.write_json(FABRIC, membership)?;
        // Afterwards: what is left of another one opens nothing that it should not.
        for name in self.names(ROW_PREFIX)? {
            self.remove(&name)?;
        }
        self.disown_made()?;
        self.remove(CHANGES)
    }

    /// What managers have told the node, as is durable.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub fn managed(&self) -> Result<Kept, StateError> {
        let damaged = "it does not say what this version knows of managers";
        let epoch = self.read_json(EPOCH, damaged)?.unwrap_or_default();
        let slots: Option<Slots> = self.read_json(SLOTS, damaged)?;
        let mut rows = BTreeMap::new();
        for name in self.names(ROW_PREFIX)? {
            if let Ok(number) = name[ROW_PREFIX.len()..].parse::<u32>() {
                let row: Option<Row> = self.read_json(&name, damaged)?;
                rows.extend(row.map(|row| (number, row)));
            }
        }
        let made = self.read_json(made::LIST, damaged)?;
        Ok(Kept { epoch, rows, presets: slots.map(|slots| (slots.id, slots.presets)), made })
    }

    /// Makes a change of that durable.
    ///
    /// # Errors
    /// The system said no; what was kept still is, but for [`StateError::Unsettled`].
    pub fn keep_managed(&self, change: &Change) -> Result<(), StateError> {
        match change {
            Change::Epoch(epoch) => self.write_json(EPOCH, epoch),
            Change::Row { number, row } => self.write_json(&format!("{ROW_PREFIX}{number}"), row),
            Change::Presets { id, presets } => {
                self.write_json(SLOTS, &Slots { id: *id, presets: presets.clone() })
            }
            Change::Made(list) => self.write_json(made::LIST, list),
        }
    }

    /// What slots were told to hold, and where the lenders of that are.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn placed(&self) -> Result<Vec<Placed>, StateError> {
        Ok(self
            .read_json(LENDERS, "it does not say where lenders are, as this version knows it")?
            .unwrap_or_default())
    }

    /// Keeps that, durably.
    ///
    /// # Errors
    /// The system said no.
    pub fn keep_placed(&self, placed: &[Placed]) -> Result<(), StateError> {
        if self.placed()? == placed { Ok(()) } else { self.write_json(LENDERS, &placed) }
    }

    /// What was told of the function of this number last.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn managed_row(&self, number: u32) -> Result<Option<Row>, StateError> {
        self.read_json(
            &format!("{ROW_PREFIX}{number}"),
            "it is no row of a lender's table that this version knows",
        )
    }

    pub(super) fn read_json<T: DeserializeOwned>(
        &self,
        name: &str,
        why: &'static str,
    ) -> Result<Option<T>, StateError> {
        read_json(&self.path, name, why)
    }

    /// No value has a line break in it, for JSON escapes it.
    pub(super) fn write_json<T: Serialize>(&self, name: &str, what: &T) -> Result<(), StateError> {
        let text = serde_json::to_string(what).expect("plain structs with names as keys serialise");
        write_value(&self.path, name, &text)
    }
}

fn read_json<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    why: &'static str,
) -> Result<Option<T>, StateError> {
    let Some(Named { file, value }) = read_long_value(folder, name, BYTES_MAX)? else { return Ok(None) };
    serde_json::from_str(&value).map(Some).map_err(|_| StateError::Damaged { file, why })
}

#[cfg(test)]
mod tests {
    use ::manager::model::{Assignment, OnSilence, Place};
    use ::manager::model::{Limited, Limits, LimitsId, MadeId, MadeList};
    use ::manager::report::Holder;
    use base::ids::{DomainId, Group, LoanGeneration};
    use std::num::NonZeroU64;

    use super::*;

    fn membership(fabric: u8) -> Membership {
        Membership {
            fabric: FabricId([fabric; 16]),
            name: "store".parse().unwrap(),
            block: Block::new(64, 64).unwrap(),
            groups: Groups::default(),
            urls: vec!["https://[::1]:7443".to_owned()],
            authority: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
            manager: PublicKey([3; 32]),
        }
    }

    #[test]
    fn who_was_removed_stays_so_where_a_manager_has_forgotten() {
        let node = |number: usize| {
            NodeId({
                let mut id = [0; 20];
                id[12..].copy_from_slice(&(number as u64).to_be_bytes());
                id
            })
        };
        let first = Certified::default().renewed("a".to_owned(), vec![node(7), node(2)]);
        assert_eq!(first.revoked, [node(2), node(7)]);
        let rebuilt = first.renewed("b".to_owned(), vec![]);
        assert_eq!((rebuilt.certificate.as_str(), &rebuilt.revoked), ("b", &first.revoked));
        let most: Vec<NodeId> = (100..100 + NODES_MAX).map(node).collect();
        assert_eq!(rebuilt.renewed("c".to_owned(), most.clone()).revoked, most, "those count that it names");
    }

    #[test]
    fn what_a_manager_has_told_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        assert_eq!((state.membership().unwrap(), state.managed().unwrap()), (None, Kept::default()));
        state.set_membership(&membership(1)).unwrap();
        assert_eq!(state.membership().unwrap(), Some(membership(1)));
        let to = Assignment {
            borrower: NodeId([7; 20]),
            place: Place { domain: DomainId(65), slot: 3 },
            group: Group::DEFAULT,
            on_silence: OnSilence::default(),
        };
        let row = Row {
            generation: LoanGeneration(u64::MAX),
            holder: Holder::Leaving { from: to, forced: true },
            limits: Some(Limited {
                id: LimitsId { epoch: u64::MAX, index: u64::MAX },
                limits: Limits { iops: NonZeroU64::new(u64::MAX), bytes_per_s: None },
            }),
        };
        let id = PresetsId { epoch: 4, index: 9 };
        let changes = [
            Change::Epoch(4),
            Change::Row { number: u32::MAX, row },
            Change::Presets { id, presets: vec![] },
            Change::Made(MadeList { id: MadeId { epoch: 4, index: 10 }, functions: vec![] }),
        ];
        let mut kept = Kept::default();
        for change in &changes {
            state.keep_managed(change).unwrap();
            kept.apply(change);
        }
        assert_eq!(state.managed().unwrap(), kept);
        // The same fabric keeps it, another one knows nothing of it.
        state.set_membership(&membership(1)).unwrap();
        assert_eq!(state.managed().unwrap(), kept);
        state.set_membership(&membership(2)).unwrap();
        assert_eq!(state.managed().unwrap(), Kept::default());
    }

    #[test]
    fn who_dies_while_it_changes_its_fabric_goes_on_when_it_joins_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        state.set_membership(&membership(1)).unwrap();
        state.keep_managed(&Change::Epoch(4)).unwrap();
        // As far as it had come.
        state.write_json(CHANGES, &true).unwrap();
        state.write_json(FABRIC, &membership(2)).unwrap();
        state.set_membership(&membership(2)).unwrap();
        assert_eq!(state.managed().unwrap(), Kept::default(), "nothing of the one before");
        state.keep_managed(&Change::Epoch(4)).unwrap();
        state.set_membership(&membership(2)).unwrap();
        assert_eq!(state.managed().unwrap().epoch, 4, "it is the same one");
    }

    #[test]
    fn damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        state.keep_managed(&Change::Epoch(4)).unwrap();
        let file = state.path().join(EPOCH);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace('4', "5")).unwrap();
        assert!(state.managed().unwrap_err().to_string().contains(EPOCH));
    }
}
