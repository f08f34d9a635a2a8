use base::ids::DomainId;

use crate::{APERTURE_BITS, Denied, FabricAddress};

/// Which endpoint lies where: ranges in the apertures of domains, of which no two overlap.
///
/// It says who answers for an address, and nothing of who may reach it: that is the endpoint's word
/// ([`crate::GrantTable`]). `E` names an endpoint of the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoder<E> {
    /// Sorted by domain and start.
    ranges: Vec<Range<E>>,
}

/// Part of a domain's aperture, and the endpoint that lies there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range<E> {
    /// Whose aperture.
    pub domain: DomainId,
    /// First byte in it.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// What lies there.
    pub endpoint: E,
}

impl<E> Default for Decoder<E> {
    fn default() -> Self {
        Self { ranges: Vec::new() }
    }
}

impl<E: Copy> Decoder<E> {
    /// Has an endpoint lie in a range, unless another one lies there already: false then, and nothing has changed.
    ///
    /// # Panics
    /// If the range is empty, or does not lie inside of an aperture: the owner's own rule.
    pub fn insert(&mut self, range: Range<E>) -> bool {
        let aperture = 1 << APERTURE_BITS;
        let is_inside = range.start < aperture && range.bytes <= aperture - range.start;
        assert!(is_inside && range.bytes > 0, "a range lies inside of an aperture");
        let at = self.position(range.domain, range.start);
        let before = at.checked_sub(1).map(|before| &self.ranges[before]);
        let meets_before =
            before.is_some_and(|it| it.domain == range.domain && range.start - it.start < it.bytes);
        let meets_next = self
            .ranges
            .get(at)
            .is_some_and(|it| it.domain == range.domain && it.start - range.start < range.bytes);
        if meets_before || meets_next {
            return false;
        }
        self.ranges.insert(at, range);
        true
    }

    /// The endpoint at `len` bytes (at least one) from fabric address `address` on, whatever rail that names.
    ///
    /// # Errors
    /// [`Denied::Domain`] where nothing at all lies in the domain, which is another node's, then; [`Denied::Unmapped`]
    /// where nothing lies at the address, or not so many bytes of it.
    pub fn find(&self, address: u64, len: usize) -> Result<E, Denied> {
        let address = FabricAddress::decode(address);
        let next = self.position(address.domain, address.offset + 1);
        let range = next.checked_sub(1).map(|at| &self.ranges[at]).filter(|it| it.domain == address.domain);
        let Some(range) = range else {
            let has_domain = self.ranges.get(next).is_some_and(|it| it.domain == address.domain);
            return Err(if has_domain { Denied::Unmapped } else { Denied::Domain });
        };
        let offset = address.offset - range.start;
        let is_inside = offset < range.bytes && len as u64 <= range.bytes - offset;
        if is_inside { Ok(range.endpoint) } else { Err(Denied::Unmapped) }
    }

    /// The ranges, in the order of domains and addresses.
    pub fn ranges(&self) -> impl Iterator<Item = &Range<E>> {
        self.ranges.iter()
    }

    /// The first range at or behind `start` of a domain's aperture.
    fn position(&self, domain: DomainId, start: u64) -> usize {
        self.ranges.partition_point(|range| (range.domain, range.start) < (domain, start))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use base::ids::RailId;

    fn at(domain: u32, offset: u64) -> u64 {
        FabricAddress { rail: RailId::ALL[2], domain: DomainId(domain), offset }.encode()
    }

    fn range(domain: u32, start: u64, bytes: u64, endpoint: usize) -> Range<usize> {
        Range { domain: DomainId(domain), start, bytes, endpoint }
    }

    #[test]
    fn an_address_leads_to_one_endpoint_or_to_none() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.find(at(0, 0), 1), Err(Denied::Domain));
        assert!(decoder.insert(range(3, 0x2000, 0x1000, 1)));
        assert!(decoder.insert(range(4, 0, 1 << APERTURE_BITS, 2)), "a whole aperture");
        assert!(!decoder.insert(range(4, 0x5000, 1, 3)), "it is full");
        assert_eq!(decoder.find(at(3, 0x2ffc), 4), Ok(1));
        assert_eq!(decoder.find(at(3, 0x2ffc), 5), Err(Denied::Unmapped), "half of it");
        assert_eq!(decoder.find(at(3, 0x1fff), 1), Err(Denied::Unmapped));
        assert_eq!(decoder.find(at(3, 0x3000), 1), Err(Denied::Unmapped));
        assert_eq!(decoder.find(at(4, (1 << APERTURE_BITS) - 1), 1), Ok(2));
        assert_eq!(decoder.find(at(2, 0x2000), 1), Err(Denied::Domain));
        assert_eq!(decoder.find(at(5, 0x2000), 1), Err(Denied::Domain));
    }

    #[test]
    #[should_panic(expected = "inside of an aperture")]
    fn a_range_beyond_the_aperture_is_none() {
        Decoder::default().insert(range(3, (1 << APERTURE_BITS) - 1, 2, 1));
    }

    proptest! {
        /// Byte by byte of small domains against a plain list.
        #[test]
        fn the_decoder_is_a_list_of_ranges(
            ranges in proptest::collection::vec((0..4_u32, 0..40_u64, 1..10_u64), 0..30),
            asks in proptest::collection::vec((0..5_u32, 0..60_u64, 1..8_usize), 0..60),
        ) {
            let mut decoder = Decoder::default();
            let mut model: Vec<Range<usize>> = Vec::new();
            for (number, (domain, start, bytes)) in ranges.into_iter().enumerate() {
                let new = range(domain, start, bytes, number);
                let is_free = model.iter().all(|it| {
                    it.domain != new.domain || it.start + it.bytes <= start || start + bytes <= it.start
                });
                prop_assert_eq!(decoder.insert(new), is_free);
                if is_free {
                    model.push(new);
                }
            }
            for (domain, offset, len) in asks {
                let inside = |it: &&Range<usize>| {
                    it.start <= offset && offset + len as u64 <= it.start + it.bytes
                };
                let mut here = model.iter().filter(|it| it.domain == DomainId(domain)).peekable();
                let expected = match here.peek() {
                    None => Err(Denied::Domain),
                    Some(_) => here.find(inside).map(|it| it.endpoint).ok_or(Denied::Unmapped),
                };
                prop_assert_eq!(decoder.find(at(domain, offset), len), expected);
            }
            prop_assert!(decoder.ranges().is_sorted_by_key(|it| (it.domain, it.start)));
            prop_assert_eq!(decoder.ranges().count(), model.len());
        }
    }
}
