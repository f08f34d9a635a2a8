//! Managers that take a switch's partitions from each other and move its ports, of whom some do not know that they were
//! overtaken.

use std::collections::BTreeMap;

use base::ids::{NodeId, RailId};
use base::{Random, RuleSet};
use node::switch::{GroupSet, OwnedPartition, Ownership, PartitionSpec, PortSpec, PrefixRange, TableSpec};

use super::Wrong;

const MANAGERS: u64 = 3;
const PORTS: usize = 6;
const TURNS: u32 = 200;

/// Runs them.
pub(super) fn run(seed: u64, rules: RuleSet) -> Result<(), Wrong> {
    let mut random = Random::of(seed, "owners");
    let managers: Vec<NodeId> = (1..=MANAGERS).map(NodeId::numbered).collect();
    let port = |at: usize| PortSpec {
        name: format!("p{at}"),
        ranges: PrefixRange::new(RailId::ALL[0], 16 * (at as u32 + 1), 16).into_iter().collect(),
        is_default: false,
        standby_for: None,
    };
    let partition = |at: usize| PartitionSpec {
        name: format!("part{at}"),
        ports: (0..PORTS).filter(|port| port % 2 == at).collect(),
        groups: GroupSet::all(),
    };
    let spec = TableSpec {
        ports: (0..PORTS).map(port).collect(),
        partitions: vec![partition(0), partition(1)],
        ..TableSpec::default()
    };
    let fresh = || Ownership::under(rules, spec.clone(), vec![managers.clone(); 2]);
    let mut ownership = fresh();
    // What each manager believes, and whom each partition was given to last, with the greatest epoch.
    let mut believed: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); managers.len()];
    let mut given: BTreeMap<String, (NodeId, u64)> = BTreeMap::new();
    for _ in 0..TURNS {
        let at = random.below(MANAGERS) as usize;
        let who = managers[at];
        match random.below(10) {
            0..3 => {
                let name = format!("part{}", random.below(2));
                // Sometimes an old epoch, as of an order that was under way for long.
                let next = owner(&ownership.partitions(), &name).1 + 1;
                let epoch = if random.chance(300) { random.below(8) } else { next };
                let Ok(change) = ownership.take(who, std::slice::from_ref(&name), epoch) else { continue };
                ownership.apply(change);
                let epoch = owner(&ownership.partitions(), &name).1;
                if given.get(&name).is_some_and(|(_, greatest)| epoch <= *greatest) {
                    return Err((
                        "switch-epoch",
                        format!("{name} was given to {who} by epoch {epoch} again"),
                    ));
                }
                given.insert(name.clone(), (who, epoch));
                believed[at].insert(name, epoch);
            }
            3 => {
                // It dies, and what was kept is there again.
                let kept = ownership.partitions();
                ownership = fresh();
                let restored = ownership.restore(&kept);
                let change = restored.map_err(|error| ("switch-epoch", format!("what was kept: {error}")))?;
                ownership.apply(change);
                if ownership.partitions() != kept {
                    return Err(("switch-epoch", format!("{kept:?} was kept, and is not there")));
                }
            }
            _ => {
                let moved = vec![format!("p{}", random.below(PORTS as u64))];
                let to = format!("part{}", random.below(2));
                let touched = touched(&ownership.partitions(), &moved[0], &to);
                let Ok(change) = ownership.move_ports(who, &moved, &to, &believed[at]) else { continue };
                let is_its = |name: &String| {
                    given
                        .get(name)
                        .is_some_and(|(owner, epoch)| *owner == who && believed[at].get(name) == Some(epoch))
                };
                if !touched.iter().all(is_its) {
                    let what = format!("{who} moves {moved:?} to {to} by {:?}, of {given:?}", believed[at]);
                    return Err(("switch-epoch", what));
                }
                ownership.apply(change);
            }
        }
    }
    Ok(())
}

fn owner(partitions: &[OwnedPartition], name: &str) -> (Option<NodeId>, u64) {
    let found = partitions.iter().find(|it| it.name == name);
    found.map_or((None, 0), |it| (it.owner.node, it.owner.epoch))
}

/// The partitions that a move has to do with.
fn touched(partitions: &[OwnedPartition], port: &str, to: &str) -> Vec<String> {
    let is_it = |it: &&OwnedPartition| it.name == to || it.ports.iter().any(|name| name == port);
    partitions.iter().filter(is_it).map(|it| it.name.clone()).collect()
}
