use base::ids::{DomainId, RailId};

/// Bits of an offset inside of an aperture: 16 TiB.
pub const APERTURE_BITS: u32 = 44;

// Whoever fills frames knows of an address only where its rail stands.
const _: () = assert!(APERTURE_BITS + DomainId::BITS == RailId::ADDRESS_SHIFT);

/// A 64-bit address of the fabric.
///
/// ```text
/// 63 62 61                 44 43                                           0
/// [rail][      domain        ][      offset inside the domain's aperture    ]
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricAddress {
    /// Over which rail of its owner: set when a frame is filled.
    pub rail: RailId,
    /// Whose memory.
    pub domain: DomainId,
    /// Where in its aperture.
    pub offset: u64,
}

impl FabricAddress {
    /// The parts of `address`; every 64-bit value is an address.
    pub const fn decode(address: u64) -> Self {
        Self {
            rail: RailId::of_address(address),
            domain: DomainId((address >> APERTURE_BITS) as u32 & ((1 << DomainId::BITS) - 1)),
            offset: address & ((1 << APERTURE_BITS) - 1),
        }
    }

    /// As it stands in a TLP. The parts are in range, as `decode` and [`crate::Window`] make them.
    pub fn encode(self) -> u64 {
        assert!(
            self.domain.0 < 1 << DomainId::BITS && self.offset < 1 << APERTURE_BITS,
            "the parts of an address fit"
        );
        self.rail.in_address(u64::from(self.domain.0) << APERTURE_BITS | self.offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_is_an_address(value in any::<u64>()) {
            prop_assert_eq!(FabricAddress::decode(value).encode(), value);
        }
    }
}
