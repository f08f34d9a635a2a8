//! Who reaches what of a node: further keys of the document, and a drawing for people.

use serde::{Deserialize, Serialize};

use super::Role;
use super::render::table;
use crate::cli::ByteSize;

/// Who reaches what of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Map {
    /// This node's domain, and those of its peers.
    pub domains: Vec<MapDomain>,
    /// Who answers for which address of this node.
    pub ranges: Vec<MapRange>,
    /// The ways out of this node: one for each loan that is open.
    pub windows: Vec<MapWindow>,
    /// What peers reach of this node.
    pub grants: Vec<MapGrant>,
    /// More of them: each loan shows some.
    pub grants_not_shown: u64,
}

/// A part of the fabric's addresses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapDomain {
    /// Its number.
    pub domain: u32,
    /// The name of its node, or of the virtual machine that it belongs to.
    pub name: String,
    /// The id of its node.
    pub node: String,
    /// It is one of the node that was asked.
    pub is_own: bool,
    /// Where its aperture begins, on rail 0.
    pub base: String,
    /// Bytes of the aperture.
    pub bytes: u64,
    /// `DOMAIN/SLOT` of the virtual machine whose functions reach memory there; only of the node's own.
    pub slots: Vec<String>,
}

/// Addresses of this node, and who answers for them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapRange {
    /// Where they begin, on rail 0.
    pub address: String,
    /// How many there are.
    pub bytes: u64,
    /// The loan's function, or the virtual machine.
    pub endpoint: String,
}

/// A way from this node into a domain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MapWindow {
    /// The loan that it belongs to.
    pub loan: String,
    /// The slot that is the loan's, if it is one's.
    #[serde(default)]
    pub slot: Option<String>,
    /// Which end this node is.
    pub role: Role,
    /// Where it leads.
    #[serde(default)]
    pub domain: u32,
    /// Where in it, on rail 0: what it leads to begins there.
    #[serde(default)]
    pub address: String,
    /// Whose domain that is.
    #[serde(default)]
    pub peer: String,
    /// What requests that pass it bear.
    #[serde(default)]
    pub requester: String,
    /// The rails that carry them: those that answer.
    #[serde(default)]
    pub rails: Vec<String>,
}

/// Memory of this node that a requester reaches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapGrant {
    /// The loan that it belongs to.
    pub loan: String,
    /// Who reaches it, as the loan knows it.
    pub requester: String,
    /// Whose function or host that is.
    pub of: String,
    /// Where it begins, on rail 0.
    pub address: String,
    /// Bytes.
    pub bytes: u64,
    /// `r`, `w` or `rw`.
    pub rights: String,
    /// What lies there.
    pub memory: String,
    /// Whose it is: this node's, or that of the machine in `DOMAIN/SLOT`.
    pub owner: String,
}

/// The map as text that ends with a newline.
pub fn render(map: &Map) -> String {
    let mut text = String::new();
    // The node's own comes first.
    let row = |(index, domain): (usize, &MapDomain)| {
        let whose = match (domain.is_own, index) {
            (true, 0) => " (this node)",
            (true, _) => " (a machine here)",
            (false, _) => "",
        };
        let (name, slots) = (format!("{}{whose}", domain.name), domain.slots.join(", "));
        vec![domain.domain.to_string(), name, domain.base.clone(), ByteSize(domain.bytes).to_string(), slots]
    };
    let rows: Vec<_> = map.domains.iter().enumerate().map(row).collect();
    table(&mut text, &["DOMAIN", "OF", "APERTURE", "SIZE", "SLOTS"], &rows);
    let row = |range: &MapRange| {
        vec![range.endpoint.clone(), range.address.clone(), ByteSize(range.bytes).to_string()]
    };
    let rows: Vec<_> = map.ranges.iter().map(row).collect();
    table(&mut text, &["ENDPOINT", "ADDRESS", "SIZE"], &rows);
    let row = |window: &MapWindow| {
        let (role, arrow) = match window.role {
            Role::Lender => ("lender", "memory of"),
            Role::Borrower => ("borrower", "registers at"),
        };
        let to = format!("{arrow} {} ({})", window.peer, window.domain);
        let slot = window.slot.clone().unwrap_or_default();
        vec![
            window.loan.clone(),
            role.to_owned(),
            slot,
            window.requester.clone(),
            to,
            window.address.clone(),
            window.rails.join(", "),
        ]
    };
    let rows: Vec<_> = map.windows.iter().map(row).collect();
    table(&mut text, &["WINDOW", "ROLE", "SLOT", "REQUESTER", "LEADS TO", "ADDRESS", "RAILS"], &rows);
    let row = |grant: &MapGrant| {
        let size = ByteSize(grant.bytes).to_string();
        let who = format!("{} of {}", grant.requester, grant.of);
        let (address, rights) = (grant.address.clone(), grant.rights.clone());
        vec![grant.loan.clone(), who, rights, address, size, grant.memory.clone(), grant.owner.clone()]
    };
    let rows: Vec<_> = map.grants.iter().map(row).collect();
    table(&mut text, &["GRANT", "TO", "RIGHTS", "ADDRESS", "SIZE", "MEMORY", "OWNER"], &rows);
    if map.grants_not_shown > 0 {
        text += &format!("\nand {} grants more\n", map.grants_not_shown);
    }
    // The first table begins with an empty line, as in the status behind its first line.
    text.trim_start_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_drawn() {
        let text = |text: &str| text.to_owned();
        let domain = |domain, name, is_own| MapDomain {
            domain,
            name: text(name),
            is_own,
            base: format!("{:#x}", u64::from(domain) << 44),
            bytes: 1 << 44,
            ..MapDomain::default()
        };
        let machine = MapDomain { slots: vec![text("vm1/disk")], ..domain(5, "vm1", true) };
        let map = Map {
            domains: vec![domain(4, "desk", true), machine, domain(6, "store", false)],
            ranges: vec![MapRange {
                address: text("0x400400000000"),
                bytes: 1 << 34,
                endpoint: text("nvme1"),
            }],
            windows: vec![MapWindow {
                loan: text("nvme0"),
                slot: Some(text("vm1/disk")),
                role: Role::Borrower,
                domain: 6,
                address: text("0x600c00000000"),
                peer: text("store"),
                requester: text("00:00.0"),
                rails: vec![text("left"), text("right")],
            }],
            grants: vec![MapGrant {
                loan: text("nvme0"),
                requester: text("01:00.0"),
                of: text("store"),
                address: text("0x500000001000"),
                bytes: 4096,
                rights: text("rw"),
                memory: text("guest"),
                owner: text("vm1/disk"),
            }],
            grants_not_shown: 3,
        };
        let expected = "\
DOMAIN  OF                    APERTURE        SIZE    SLOTS
4       desk (this node)      0x400000000000  16 TiB  -
5       vm1 (a machine here)  0x500000000000  16 TiB  vm1/disk
6       store                 0x600000000000  16 TiB  -

ENDPOINT  ADDRESS         SIZE
nvme1     0x400400000000  16 GiB

WINDOW  ROLE      SLOT      REQUESTER  LEADS TO                ADDRESS         RAILS
nvme0   borrower  vm1/disk  00:00.0    registers at store (6)  0x600c00000000  left, right

GRANT  TO                RIGHTS  ADDRESS         SIZE   MEMORY  OWNER
nvme0  01:00.0 of store  rw      0x500000001000  4 KiB  guest   vm1/disk

and 3 grants more
";
        assert_eq!(render(&map), expected);
        let json = serde_json::to_string(&map).unwrap();
        assert_eq!(serde_json::from_str::<Map>(&json).unwrap(), map);
    }
}
