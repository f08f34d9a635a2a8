use pcie::Bdf;

use crate::FabricAddress;

/// Bytes of a page: the unit of grants.
pub(crate) const PAGE: u64 = 4096;

/// What a grant allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Memory reads.
    pub read: bool,
    /// Memory writes.
    pub write: bool,
}

/// Which right an access needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// A memory read.
    Read,
    /// A memory write.
    Write,
}

/// An access that is not granted: to be answered with Unsupported Request, and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// Another domain's address: it should never have come here.
    Domain,
    /// Nothing is granted there to this requester.
    Unmapped,
    /// Something is, but not this kind of access.
    Rights,
}

/// An access that is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted<M> {
    /// The memory.
    pub memory: M,
    /// Where in it.
    pub offset: u64,
}

/// The IOMMU of an endpoint: which pages of its domain's aperture which requester reaches, and what memory lies there.
/// That an address is the endpoint's, in that domain, is the word of a [`crate::Decoder`].
///
/// `M` names memory of the owner. A table is small and searched in order of addresses.
#[derive(Clone, Debug)]
pub struct GrantTable<M> {
    /// Sorted by requester and start; the ranges of one requester do not overlap.
    entries: Vec<Entry<M>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<M> {
    requester: Bdf,
    start: u64,
    len: u64,
    rights: Rights,
    memory: M,
}

impl<M> Default for GrantTable<M> {
    /// An empty table: everything is denied.
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<M: Copy> GrantTable<M> {
    /// Grants `requester` the pages from `start` on, which are `memory`. `start` and `len` are multiples of 4096, and
    /// the range overlaps no other grant of this requester: the owner's own rule, so asserted.
    pub fn grant(&mut self, requester: Bdf, start: u64, len: u64, rights: Rights, memory: M) {
        assert!(start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0, "grants are whole pages");
        let position = self.position(requester, start);
        let before = position.checked_sub(1).map(|index| &self.entries[index]);
        let free_before =
            before.is_none_or(|entry| entry.requester != requester || entry.start + entry.len <= start);
        let after = self.entries.get(position);
        let free_after = after.is_none_or(|entry| entry.requester != requester || start + len <= entry.start);
        assert!(free_before && free_after, "grants of one requester do not overlap");
        self.entries.insert(position, Entry { requester, start, len, rights, memory });
    }

    /// Takes back the grant that begins at `start`. False if there is none.
    pub fn revoke(&mut self, requester: Bdf, start: u64) -> bool {
        let index =
            self.entries.iter().position(|entry| entry.requester == requester && entry.start == start);
        index.map(|index| self.entries.remove(index)).is_some()
    }

    /// Checks an access of `len` bytes (at least one) at fabric address `address`.
    pub fn check(
        &self,
        requester: Bdf,
        kind: AccessKind,
        address: u64,
        len: usize,
    ) -> Result<Granted<M>, Denied> {
        let address = FabricAddress::decode(address);
        let index = self.position(requester, address.offset + 1).checked_sub(1).ok_or(Denied::Unmapped)?;
        let entry = &self.entries[index];
        let offset = address.offset - entry.start.min(address.offset);
        let inside = offset < entry.len && len as u64 <= entry.len - offset;
        if entry.requester != requester || !inside {
            return Err(Denied::Unmapped);
        }
        let allowed = match kind {
            AccessKind::Read => entry.rights.read,
            AccessKind::Write => entry.rights.write,
        };
        if allowed { Ok(Granted { memory: entry.memory, offset }) } else { Err(Denied::Rights) }
    }

    /// The first entry of `requester` that starts at or behind `start`.
    fn position(&self, requester: Bdf, start: u64) -> usize {
        self.entries.partition_point(|entry| (entry.requester.0, entry.start) < (requester.0, start))
    }
}

#[cfg(test)]
mod tests {
    use base::ids::DomainId;
    use proptest::prelude::*;

    use super::*;

    const READ: Rights = Rights { read: true, write: false };

    fn at(offset: u64) -> u64 {
        FabricAddress { rail: base::ids::RailId::default(), domain: DomainId(3), offset }.encode()
    }

    #[test]
    fn only_what_was_granted_is_reached() {
        let mut table = GrantTable::default();
        table.grant(Bdf(1), 0x2000, 0x1000, READ, 'a');
        table.grant(Bdf(2), 0x2000, 0x2000, Rights { read: true, write: true }, 'b');
        let check = |requester, kind, offset, len| table.check(Bdf(requester), kind, at(offset), len);
        assert_eq!(check(1, AccessKind::Read, 0x2ffc, 4), Ok(Granted { memory: 'a', offset: 0xffc }));
        assert_eq!(check(1, AccessKind::Read, 0x2ffc, 8), Err(Denied::Unmapped));
        assert_eq!(check(1, AccessKind::Write, 0x2000, 4), Err(Denied::Rights));
        assert_eq!(check(2, AccessKind::Write, 0x3000, 4096).unwrap().memory, 'b');
        assert_eq!(check(3, AccessKind::Read, 0x2000, 4), Err(Denied::Unmapped));
    }

    proptest! {
        /// Page by page against a plain list, with revocation.
        #[test]
        fn the_table_is_a_set_of_pages(
            grants in proptest::collection::vec((0..3_u16, 0..16_u64, any::<bool>()), 0..30),
            asks in proptest::collection::vec((0..3_u16, 0..20_u64), 0..30),
        ) {
            let mut table = GrantTable::default();
            let mut model = std::collections::BTreeSet::new();
            for (requester, page, give) in grants {
                if give && model.insert((requester, page)) {
                    table.grant(Bdf(requester), page * 4096, 4096, READ, page);
                } else if !give {
                    prop_assert_eq!(table.revoke(Bdf(requester), page * 4096), model.remove(&(requester, page)));
                }
            }
            for (requester, page) in asks {
                let found = table.check(Bdf(requester), AccessKind::Read, at(page * 4096 + 8), 16);
                let expected = model.contains(&(requester, page));
                prop_assert_eq!(found.ok().map(|granted| granted.memory), expected.then_some(page));
            }
        }
    }
}
