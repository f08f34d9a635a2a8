//! Who may move the ports of a switch between its partitions.
//!
//! A partition has an owner and an epoch. Nodes that its configuration lets in take it, each time with a greater epoch;
//! whoever has it moves ports into it and out of it, and has to name the epoch by which it has it. So one that was
//! overtaken, and does not know it yet, changes nothing. What a change comes to is made whole first ([`Change`]), so
//! that it can be kept before it is applied. Ranges, queues and counters of ports stay what they are.

use core::fmt;
use std::collections::BTreeMap;

use base::ids::NodeId;
use base::{Rule, RuleSet};

use super::{PartitionSpec, Table, TableSpec};

/// By how much an epoch may grow at once: nobody uses up what there is of them.
pub const EPOCH_STRIDE: u64 = 1 << 20;

/// Who has a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// `None`: nobody has taken it yet.
    pub node: Option<NodeId>,
    /// Greater each time that it is taken; 0 before the first.
    pub epoch: u64,
}

/// A partition as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedPartition {
    /// Its name.
    pub name: String,
    /// Who has it.
    pub owner: Owner,
    /// The names of its ports.
    pub ports: Vec<String>,
}

/// Why something is not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnershipError {
    /// Nothing was named.
    Nothing,
    /// There is no partition of this name.
    NoPartition {
        /// It.
        name: String,
    },
    /// There is no port of this name.
    NoPort {
        /// It.
        name: String,
    },
    /// The configuration does not let this node in.
    NotAllowed {
        /// The partition.
        partition: String,
        /// Who asks.
        node: NodeId,
    },
    /// Somebody else has it, or nobody.
    NotOwner {
        /// The partition.
        partition: String,
        /// Who has it.
        owner: Option<NodeId>,
    },
    /// The epoch is not the present one, or not greater than that where it has to be.
    Stale {
        /// The partition.
        partition: String,
        /// The epoch that was named; `None`: none was.
        named: Option<u64>,
        /// The present one.
        present: u64,
    },
    /// The epoch is greater than it may be.
    TooFar {
        /// The partition.
        partition: String,
        /// The greatest that it may be now.
        most: u64,
    },
    /// The switch could not be one of these partitions.
    Table {
        /// What is wrong, port by port.
        problems: Vec<String>,
    },
}

impl fmt::Display for OwnershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "nothing was named"),
            Self::NoPartition { name } => write!(f, "there is no partition `{}`", name.escape_debug()),
            Self::NoPort { name } => write!(f, "there is no port `{}`", name.escape_debug()),
            Self::NotAllowed { partition, node } => {
                write!(f, "{node} is none of the owners that the switch's file names for `{partition}`")
            }
            Self::NotOwner { partition, owner: Some(owner) } => {
                write!(f, "partition `{partition}` is {owner}'s: take it first")
            }
            Self::NotOwner { partition, owner: None } => {
                write!(f, "partition `{partition}` is nobody's: take it first")
            }
            Self::Stale { partition, named: Some(named), present } => {
                write!(f, "epoch {named} of partition `{partition}` is stale: it is at {present}")
            }
            Self::Stale { partition, named: None, present } => {
                write!(f, "no epoch was named for partition `{partition}`, which is at {present}")
            }
            Self::TooFar { partition, most } => {
                write!(f, "the epoch of partition `{partition}` may be {most} at most now")
            }
            Self::Table { problems } => write!(f, "the switch would be wrong: {}", problems.join("; ")),
        }
    }
}

impl core::error::Error for OwnershipError {}

/// What is to be from now on.
#[derive(Clone, Debug)]
pub struct Change {
    spec: TableSpec,
    owners: Vec<Owner>,
    table: Table,
}

impl Change {
    /// The partitions as they will be.
    pub fn partitions(&self) -> Vec<OwnedPartition> {
        listed(&self.spec, &self.owners)
    }
}

/// The partitions of a switch, with their owners.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// With the ports where they are now.
    spec: TableSpec,
    /// Of each partition, who may take it.
    allowed: Vec<Vec<NodeId>>,
    owners: Vec<Owner>,
    rules: RuleSet,
}

impl Ownership {
    /// Of a switch that was made by `spec`, whose partitions nobody has; `allowed` says of each who may.
    pub fn new(spec: TableSpec, allowed: Vec<Vec<NodeId>>) -> Self {
        Self::under(RuleSet::ALL, spec, allowed)
    }

    /// The same under these rules: all but for canaries.
    pub fn under(rules: RuleSet, spec: TableSpec, allowed: Vec<Vec<NodeId>>) -> Self {
        let owners = vec![Owner::default(); spec.partitions.len()];
        Self { spec, allowed, owners, rules }
    }

    /// Whether this node may take anything here.
    pub fn is_known(&self, node: NodeId) -> bool {
        self.allowed.iter().any(|allowed| allowed.contains(&node))
    }

    /// The partitions as they are.
    pub fn partitions(&self) -> Vec<OwnedPartition> {
        listed(&self.spec, &self.owners)
    }

    /// What is as it was `kept`. A port of which nothing was kept is where the configuration says. A partition of which
    /// the configuration does not let its owner in any more is nobody's, with the epoch that it had: so orders of
    /// before are stale still.
    ///
    /// # Errors
    /// It does not fit: it names what is not there any more, or could not be a switch.
    pub fn restore(&self, kept: &[OwnedPartition]) -> Result<Change, OwnershipError> {
        let (mut spec, mut owners) = (self.spec.clone(), self.owners.clone());
        for partition in kept {
            let at = self.partition(&partition.name)?;
            let Owner { node, epoch } = partition.owner;
            owners[at] = Owner { node: node.filter(|node| self.is_allowed(*node, at)), epoch };
            let ports = self.ports(&partition.ports)?;
            relocate(&mut spec.partitions, &ports, at);
        }
        change(spec, owners)
    }

    /// `who` takes partitions, with an epoch greater than theirs: so an order that was under way for long takes nothing
    /// from who came meanwhile.
    ///
    /// # Errors
    /// It may not, or the epoch is not greater.
    pub fn take(&self, who: NodeId, names: &[String], epoch: u64) -> Result<Change, OwnershipError> {
        if names.is_empty() {
            return Err(OwnershipError::Nothing);
        }
        let mut owners = self.owners.clone();
        for name in names {
            let at = self.partition(name)?;
            let (partition, present) = (name.clone(), self.owners[at].epoch);
            if !self.is_allowed(who, at) {
                return Err(OwnershipError::NotAllowed { partition, node: who });
            }
            if epoch <= present && self.rules.has(Rule::FenceEpochs) {
                return Err(OwnershipError::Stale { partition, named: Some(epoch), present });
            }
            let most = present.saturating_add(EPOCH_STRIDE);
            if epoch > most {
                return Err(OwnershipError::TooFar { partition, most });
            }
            owners[at] = Owner { node: Some(who), epoch };
        }
        change(self.spec.clone(), owners)
    }

    /// `who` moves ports into a partition, all or none; `epochs` has, by name, those by which it has this one and each
    /// that the ports are in.
    ///
    /// # Errors
    /// It has not all of them by these epochs, or the switch could not be one then.
    pub fn move_ports(
        &self,
        who: NodeId,
        ports: &[String],
        to: &str,
        epochs: &BTreeMap<String, u64>,
    ) -> Result<Change, OwnershipError> {
        if ports.is_empty() {
            return Err(OwnershipError::Nothing);
        }
        let to = self.partition(to)?;
        let ports = self.ports(ports)?;
        let is_from = |it: &PartitionSpec| it.ports.iter().any(|port| ports.contains(port));
        let touched = self.spec.partitions.iter().enumerate().filter(|(at, it)| *at == to || is_from(it));
        touched.into_iter().try_for_each(|(at, _)| self.check_owner(who, at, epochs))?;
        let mut spec = self.spec.clone();
        relocate(&mut spec.partitions, &ports, to);
        change(spec, self.owners.clone())
    }

    /// It is so from now on. Returns the table that the switch is to have.
    pub fn apply(&mut self, change: Change) -> Table {
        (self.spec, self.owners) = (change.spec, change.owners);
        change.table
    }

    /// The place of a port of which `who` may say where its peer is: one in a partition that it has by the epoch that
    /// `epochs` names.
    ///
    /// # Errors
    /// See [`OwnershipError`].
    pub fn port(
        &self,
        who: NodeId,
        name: &str,
        epochs: &BTreeMap<String, u64>,
    ) -> Result<usize, OwnershipError> {
        let no_port = || OwnershipError::NoPort { name: name.to_owned() };
        let port = self.spec.ports.iter().position(|it| it.name == name).ok_or_else(no_port)?;
        let at = self.spec.partitions.iter().position(|it| it.ports.contains(&port)).ok_or_else(no_port)?;
        self.check_owner(who, at, epochs)?;
        Ok(port)
    }

    /// Whether this node may take the partition in this place.
    fn is_allowed(&self, node: NodeId, at: usize) -> bool {
        self.allowed.get(at).is_some_and(|allowed| allowed.contains(&node))
    }

    fn check_owner(
        &self,
        who: NodeId,
        at: usize,
        epochs: &BTreeMap<String, u64>,
    ) -> Result<(), OwnershipError> {
        let partition = self.spec.partitions[at].name.clone();
        let Owner { node, epoch: present } = self.owners[at];
        if node != Some(who) {
            return Err(OwnershipError::NotOwner { partition, owner: node });
        }
        let named = epochs.get(&partition).copied();
        if named != Some(present) && self.rules.has(Rule::FenceEpochs) {
            return Err(OwnershipError::Stale { partition, named, present });
        }
        Ok(())
    }

    fn partition(&self, name: &str) -> Result<usize, OwnershipError> {
        let found = self.spec.partitions.iter().position(|it| it.name == name);
        found.ok_or_else(|| OwnershipError::NoPartition { name: name.to_owned() })
    }

    fn ports(&self, names: &[String]) -> Result<Vec<usize>, OwnershipError> {
        let place = |name: &String| {
            let found = self.spec.ports.iter().position(|it| it.name == *name);
            found.ok_or_else(|| OwnershipError::NoPort { name: name.clone() })
        };
        names.iter().map(place).collect()
    }
}

/// These ports are in this partition, and in no other one.
fn relocate(partitions: &mut [PartitionSpec], ports: &[usize], to: usize) {
    for partition in &mut *partitions {
        partition.ports.retain(|port| !ports.contains(port));
    }
    let there = &mut partitions[to].ports;
    there.extend(ports);
    // In the order of the configuration, each once.
    there.sort_unstable();
    there.dedup();
}

fn change(spec: TableSpec, owners: Vec<Owner>) -> Result<Change, OwnershipError> {
    let table = Table::new(spec.clone()).map_err(|problems| {
        let named = |problem: &super::TableProblem| {
            let of = spec.name_of(problem.subject).map(|name| format!("{name}: ")).unwrap_or_default();
            format!("{of}{}", problem.error)
        };
        OwnershipError::Table { problems: problems.iter().map(named).collect() }
    })?;
    Ok(Change { spec, owners, table })
}

fn listed(spec: &TableSpec, owners: &[Owner]) -> Vec<OwnedPartition> {
    let names = |ports: &[usize]| ports.iter().map(|port| spec.ports[*port].name.clone()).collect();
    let partitions = spec.partitions.iter().zip(owners);
    let listed = partitions.map(|(partition, owner)| OwnedPartition {
        name: partition.name.clone(),
        owner: *owner,
        ports: names(&partition.ports),
    });
    listed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::{GroupSet, PortSpec, PrefixRange};
    use base::ids::RailId;

    fn node(number: u64) -> NodeId {
        NodeId::numbered(number)
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    /// `red` has a, a2 and b, `blue` has c; a2 stands by for a. Nodes 1 and 2 may have red, 1 may have blue.
    fn ownership() -> Ownership {
        let port = |name: &str, base: u32, standby_for| PortSpec {
            name: name.to_owned(),
            ranges: (base > 0)
                .then(|| PrefixRange::new(RailId::ALL[0], base, 1).unwrap())
                .into_iter()
                .collect(),
            is_default: false,
            standby_for,
        };
        let partition = |name: &str, ports: &[usize]| PartitionSpec {
            name: name.to_owned(),
            ports: ports.to_vec(),
            groups: GroupSet::all(),
        };
        let spec = TableSpec {
            ports: vec![port("a", 1, None), port("a2", 0, Some(0)), port("b", 2, None), port("c", 1, None)],
            partitions: vec![partition("red", &[0, 1, 2]), partition("blue", &[3])],
            ..TableSpec::default()
        };
        Ownership::new(spec, vec![vec![node(1), node(2)], vec![node(1)]])
    }

    fn taken(who: u64, partitions: &[&str]) -> Ownership {
        let mut all = ownership();
        let change = all.take(node(who), &names(partitions), 1).unwrap();
        all.apply(change);
        all
    }

    fn epochs(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
        list.iter().map(|(name, epoch)| ((*name).to_owned(), *epoch)).collect()
    }

    #[test]
    fn a_partition_is_taken_by_whom_it_is_for_and_its_epoch_never_goes_back() {
        let mut all = ownership();
        let refused = |all: &Ownership, who: u64, name: &str, epoch| {
            all.take(node(who), &names(&[name]), epoch).unwrap_err()
        };
        assert_eq!(refused(&all, 1, "green", 1), OwnershipError::NoPartition { name: "green".to_owned() });
        assert_eq!(all.take(node(1), &[], 1).unwrap_err(), OwnershipError::Nothing);
        let not_allowed = OwnershipError::NotAllowed { partition: "blue".to_owned(), node: node(2) };
        assert_eq!(refused(&all, 2, "blue", 1), not_allowed);
        assert_eq!(all.take(node(2), &names(&["red", "blue"]), 1).unwrap_err(), not_allowed, "all or none");
        let change = all.take(node(1), &names(&["red"]), 7).unwrap();
        assert_eq!(all.partitions()[0].owner, Owner::default(), "it is so when it is applied");
        all.apply(change);
        assert_eq!(all.partitions()[0].owner, Owner { node: Some(node(1)), epoch: 7 });
        for epoch in [0, 6, 7] {
            let stale = OwnershipError::Stale { partition: "red".to_owned(), named: Some(epoch), present: 7 };
            assert_eq!(refused(&all, 2, "red", epoch), stale);
        }
        let far = 7 + EPOCH_STRIDE + 1;
        assert!(matches!(refused(&all, 2, "red", far), OwnershipError::TooFar { .. }));
        let change = all.take(node(2), &names(&["red"]), 8).unwrap();
        all.apply(change);
        assert_eq!(all.partitions()[0].owner, Owner { node: Some(node(2)), epoch: 8 });
    }

    #[test]
    fn who_has_a_partition_says_where_the_peers_of_its_ports_are() {
        let all = taken(1, &["red"]);
        let red = epochs(&[("red", 1)]);
        assert_eq!(all.port(node(1), "b", &red), Ok(2));
        let no_port = OwnershipError::NoPort { name: "z".to_owned() };
        assert_eq!(all.port(node(1), "z", &red), Err(no_port));
        let not_owner = OwnershipError::NotOwner { partition: "red".to_owned(), owner: Some(node(1)) };
        assert_eq!(all.port(node(2), "b", &red), Err(not_owner));
        assert!(matches!(all.port(node(1), "c", &red), Err(OwnershipError::NotOwner { owner: None, .. })));
        let stale = epochs(&[("red", 2)]);
        assert!(matches!(all.port(node(1), "b", &stale), Err(OwnershipError::Stale { present: 1, .. })));
    }

    #[test]
    fn who_may_not_have_a_partition_any_more_does_not_get_it_back() {
        let spec = ownership().spec;
        let mut all = Ownership::new(spec, vec![vec![node(2)], vec![node(1)]]);
        let kept = taken(1, &["red", "blue"]).partitions();
        let change = all.restore(&kept).unwrap();
        all.apply(change);
        let both = epochs(&[("red", 1), ("blue", 1)]);
        let nobodys = OwnershipError::NotOwner { partition: "red".to_owned(), owner: None };
        assert_eq!(all.port(node(1), "b", &both), Err(nobodys.clone()));
        assert_eq!(all.move_ports(node(1), &names(&["b"]), "blue", &both).unwrap_err(), nobodys);
        assert_eq!(all.port(node(1), "c", &both), Ok(3), "what it may have is its own still");
        // The epoch stays: an order of before that is under way still takes nothing.
        assert_eq!(all.partitions()[0].owner, Owner { node: None, epoch: 1 });
        assert!(matches!(all.take(node(2), &names(&["red"]), 1), Err(OwnershipError::Stale { .. })));
        assert!(all.take(node(2), &names(&["red"]), 2).is_ok());
    }

    #[test]
    fn ports_are_moved_by_whoever_has_both_partitions_by_their_present_epochs() {
        let mut all = taken(1, &["red", "blue"]);
        let both = epochs(&[("red", 1), ("blue", 1)]);
        let moved = |all: &Ownership, who: u64, ports: &[&str], to: &str, epochs: &BTreeMap<String, u64>| {
            all.move_ports(node(who), &names(ports), to, epochs)
        };
        let change = moved(&all, 1, &["b"], "blue", &both).unwrap();
        let table = all.apply(change);
        let partitions: Vec<_> = table.ports().map(|(_, name, partition)| (name, partition)).collect();
        assert_eq!(partitions, [("a", "red"), ("a2", "red"), ("b", "blue"), ("c", "blue")]);
        assert_eq!(all.partitions()[1].ports, names(&["b", "c"]));
        let change = moved(&all, 1, &["b", "b"], "red", &both).unwrap();
        all.apply(change);
        assert_eq!(all.partitions()[0].ports, names(&["a", "a2", "b"]));

        let refused = |who: u64, ports: &[&str], to: &str, epochs: &BTreeMap<String, u64>| {
            moved(&all, who, ports, to, epochs).unwrap_err().to_string()
        };
        assert_eq!(refused(1, &[], "red", &both), "nothing was named");
        assert_eq!(refused(1, &["d"], "red", &both), "there is no port `d`");
        assert!(refused(2, &["b"], "blue", &both).contains("`red` is") && !both.is_empty());
        assert!(refused(1, &["b"], "blue", &epochs(&[("red", 1)])).starts_with("no epoch was named"));
        assert!(refused(1, &["b"], "blue", &epochs(&[("red", 0), ("blue", 1)])).contains("stale"));
        assert!(refused(1, &["b"], "blue", &epochs(&[("red", 1), ("blue", 2)])).contains("stale"));
        // The switch as a whole has to be one: two ports of one range, a standby without the other one.
        assert!(refused(1, &["a", "a2"], "blue", &both).contains("overlap"));
        let alone = refused(1, &["a2"], "blue", &both);
        assert!(alone.starts_with("the switch would be wrong: a2: "), "{alone}");
        // Whoever is overtaken changes nothing.
        let mut overtaken = all.clone();
        let change = overtaken.take(node(2), &names(&["red"]), 2).unwrap();
        overtaken.apply(change);
        let error = moved(&overtaken, 1, &["b"], "blue", &both).unwrap_err();
        assert_eq!(error, OwnershipError::NotOwner { partition: "red".to_owned(), owner: Some(node(2)) });
    }

    #[test]
    fn what_was_kept_is_there_again_or_does_not_fit() {
        let mut all = taken(1, &["red", "blue"]);
        let both = epochs(&[("red", 1), ("blue", 1)]);
        let change = all.move_ports(node(1), &names(&["b"]), "blue", &both).unwrap();
        assert_eq!(change.partitions()[1].ports, names(&["b", "c"]));
        all.apply(change);
        let mut again = ownership();
        let change = again.restore(&all.partitions()).unwrap();
        again.apply(change);
        assert_eq!(again.partitions(), all.partitions());
        let mut kept = all.partitions();
        kept[0].ports.push("gone".to_owned());
        assert_eq!(
            ownership().restore(&kept).unwrap_err(),
            OwnershipError::NoPort { name: "gone".to_owned() }
        );
        kept[0].name = "gone".to_owned();
        assert!(matches!(ownership().restore(&kept).unwrap_err(), OwnershipError::NoPartition { .. }));
        // A port of which nothing was kept stays where the file says.
        let change = ownership().restore(&all.partitions()[1..]).unwrap();
        assert_eq!(change.partitions()[0].ports, names(&["a", "a2"]));
    }
}
