//! Who reaches what, as `status --map` draws it: domains, windows out of this node, grants at it.

use std::collections::BTreeMap;

use base::ids::{DomainId, NodeId};
use io::agent::{LoanEnd, LoanSpec, LoanView, View};
use node::{APERTURE_BYTES, Grant, Granted, Target};

use super::domains::Domains;
use super::report;
use crate::status::{Map, MapDomain, MapGrant, MapRange, MapWindow, Role};

/// Grants of a loan that are shown: a guest may have thousands of maps.
const GRANTS_SHOWN: usize = 32;

/// The map of a running node.
pub(super) fn map(view: &View<'_>, slots: &Domains) -> Map {
    let spec = view.spec();
    let id = spec.identity.id();
    let mut map = Map::default();
    let mut own = BTreeMap::from([(spec.domains.node(), domain(spec.domains.node(), id, &spec.name, true))]);
    let mut peers = BTreeMap::new();
    for (index, (loan, cells)) in view.loans().enumerate() {
        let slot = slots.slot_of(index);
        let here = spec.domain_of(loan);
        let machine = slot.as_deref().map_or(loan.function.as_str(), machine_of);
        let here = own.entry(here).or_insert_with(|| domain(here, id, machine, true));
        here.slots.extend(slot.clone());
        let Some((node, name)) = cells.edge().peer().filter(|_| report::has_stream(cells)) else { continue };
        let peer = domain(cells.edge().peer_domain(), node, &name.to_string(), false);
        let role = match loan.config.role {
            LoanEnd::Lend { .. } => Role::Lender,
            LoanEnd::Borrow { .. } => Role::Borrower,
            LoanEnd::Vacant { .. } => continue,
        };
        map.windows.push(MapWindow {
            loan: loan.function.clone(),
            slot: slot.clone(),
            role,
            domain: peer.domain,
            address: format!("{:#x}", base_of(peer.domain) + cells.leads_to().unwrap_or_default()),
            peer: peer.name.clone(),
            requester: cells.known_as().map(|id| id.to_string()).unwrap_or_default(),
            rails: rails(view, cells),
        });
        let (grants, count) = view.grants((index, loan, cells), GRANTS_SHOWN);
        map.grants_not_shown += count.saturating_sub(grants.len()) as u64;
        let owner = slot.unwrap_or_else(|| spec.name.clone());
        map.grants.extend(grants.iter().map(|grant| granted(grant, loan, here, &peer, &owner)));
        peers.entry((node, peer.domain)).or_insert(peer);
    }
    let endpoint = |target: Target| match target {
        Target::Loan(place) => view.loan(place).map(|(loan, _)| loan.function.clone()),
        Target::Machine(domain) => own.get(&domain).map(|machine| machine.name.clone()),
    };
    map.ranges = view
        .decoder()
        .ranges()
        .map(|range| MapRange {
            address: format!("{:#x}", base_of(range.domain.0) + range.start),
            bytes: range.bytes,
            endpoint: endpoint(range.endpoint).unwrap_or_default(),
        })
        .collect();
    // The node's own comes first, then its machines'.
    let node = own.remove(&spec.domains.node());
    map.domains = node.into_iter().chain(own.into_values()).chain(peers.into_values()).collect();
    map
}

/// The virtual machine of `DOMAIN/SLOT`.
fn machine_of(slot: &str) -> &str {
    slot.split_once('/').map_or(slot, |(machine, _)| machine)
}

fn domain(domain: DomainId, node: NodeId, name: &str, is_own: bool) -> MapDomain {
    MapDomain {
        domain: domain.0,
        name: if name.is_empty() { node.to_string() } else { name.to_owned() },
        node: node.to_string(),
        is_own,
        base: format!("{:#x}", base_of(domain.0)),
        bytes: APERTURE_BYTES,
        slots: Vec::new(),
    }
}

/// Where the aperture of a domain begins, on rail 0.
fn base_of(domain: u32) -> u64 {
    u64::from(domain) * APERTURE_BYTES
}

/// The rails that lead to the peer of a loan and answer.
fn rails(view: &View<'_>, cells: LoanView<'_>) -> Vec<String> {
    let memory = view.shared_memory(cells).filter(|memory| memory.up).map(|_| "shm".to_owned());
    let up = view.spec().rails.iter().filter(|rail| {
        let seen = view.rail(cells, rail);
        seen.up && seen.peer.is_some()
    });
    memory.into_iter().chain(up.map(|rail| rail.name.clone())).collect()
}

fn granted(grant: &Grant, loan: &LoanSpec, own: &MapDomain, peer: &MapDomain, owner: &str) -> MapGrant {
    let (memory, owner) = match grant.memory {
        Granted::Bar(bar) => (format!("bar{bar}"), own.name.as_str()),
        Granted::Queues => ("queues".to_owned(), own.name.as_str()),
        Granted::Interrupts => ("interrupts".to_owned(), own.name.as_str()),
        Granted::Data => ("data".to_owned(), own.name.as_str()),
        Granted::Doorbell => ("doorbell".to_owned(), own.name.as_str()),
        Granted::Guest => ("guest".to_owned(), owner),
        Granted::GuestByMessage => ("guest-by-message".to_owned(), owner),
    };
    let right = |may: bool, letter: &str| if may { letter.to_owned() } else { String::new() };
    MapGrant {
        loan: loan.function.clone(),
        requester: grant.requester.to_string(),
        of: peer.name.clone(),
        address: format!("{:#x}", base_of(own.domain) | grant.start),
        bytes: grant.bytes,
        rights: right(grant.rights.read, "r") + &right(grant.rights.write, "w"),
        memory,
        owner: owner.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aperture_of_a_domain_lies_where_addresses_lead() {
        let node = NodeId::numbered(7);
        let domain = domain(DomainId(0x3_0007), node, "", true);
        assert_eq!(domain.name, node.to_string());
        assert_eq!(base_of(domain.domain) >> 44, 0x3_0007);
        assert_eq!((machine_of("vm1/disk"), machine_of("nvme0")), ("vm1", "nvme0"));
        assert_eq!((domain.base, domain.bytes), (format!("{:#x}", base_of(domain.domain)), 1 << 44));
    }
}
