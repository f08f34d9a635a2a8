//! Configuration requests (PCIe 6.0 §2.2.7): CfgRd and CfgWr of type 0 and 1, always one dword.

use super::common::{AddressType, Attributes, Dword0, FirstFields};
use super::{EncodedHeader, Malformed};
use crate::id::{Bdf, Tag};
use crate::spec::{BYTE_ENABLES_ALL, config_request, fmt_type, header::CONFIG_BYTES};

/// Who consumes a configuration request (PCIe 6.0 §7.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfigKind {
    /// For the function at the end of this link.
    Type0,
    /// For a bus further down.
    Type1,
}

/// A configuration read or write; which of the two, the [`Header`](super::Header) says. Traffic class and attributes
/// are fixed to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConfigRequest {
    /// Who asks.
    pub requester: Bdf,
    /// Ties the completion to the request.
    pub tag: Tag,
    /// The function whose register is meant.
    pub target: Bdf,
    /// Byte offset of the dword in configuration space: a multiple of 4 below 4096.
    pub register: u16,
    /// Bytes enabled, bit 0 for the lowest offset.
    pub first_be: u8,
    /// Who consumes it.
    pub kind: ConfigKind,
    /// The payload is damaged (EP).
    pub poisoned: bool,
}

impl ConfigRequest {
    #[inline]
    pub(super) fn decode(first: Dword0, fmt_type: u8, d1: u32, d2: u32) -> Result<Self, Malformed> {
        if d2 & config_request::RESERVED != 0 {
            return Err(Malformed::Reserved);
        }
        if first.length_raw() != 1 {
            return Err(Malformed::Length);
        }
        if first.traffic_class() != 0 {
            return Err(Malformed::TrafficClass);
        }
        if first.attributes() != Attributes::NONE {
            return Err(Malformed::Attributes);
        }
        if first.address_type() != AddressType::Untranslated {
            return Err(Malformed::AddressType);
        }
        // The last byte enables.
        if d1 & 0xf0 != 0 {
            return Err(Malformed::ByteEnables);
        }
        Ok(Self {
            requester: Bdf((d1 >> 16) as u16),
            tag: first.tag((d1 >> 8) as u8),
            target: Bdf((d2 >> 16) as u16),
            register: (d2 & config_request::REGISTER_MASK) as u16,
            first_be: d1 as u8 & BYTE_ENABLES_ALL,
            kind: if fmt_type & 1 == 0 { ConfigKind::Type0 } else { ConfigKind::Type1 },
            poisoned: first.poisoned(),
        })
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), Malformed> {
        if self.register & 0x3 != 0 || usize::from(self.register) >= CONFIG_BYTES {
            return Err(Malformed::Address);
        }
        if self.first_be > BYTE_ENABLES_ALL { Err(Malformed::ByteEnables) } else { Ok(()) }
    }

    /// `type_0` is the first header byte of the type 0 form.
    #[inline]
    pub(super) fn encode(&self, type_0: u8) -> EncodedHeader {
        let type_1_bit = fmt_type::CONFIG_READ_0 ^ fmt_type::CONFIG_READ_1;
        let fields = FirstFields {
            fmt_type: if self.kind == ConfigKind::Type1 { type_0 | type_1_bit } else { type_0 },
            tag: self.tag,
            traffic_class: 0,
            attributes: Attributes::NONE,
            address_type: AddressType::Untranslated,
            poisoned: self.poisoned,
            length_dw: 1,
        };
        let d1 = u32::from(self.requester.0) << 16 | self.tag.low() << 8 | u32::from(self.first_be);
        let d2 = u32::from(self.target.0) << 16 | u32::from(self.register);
        EncodedHeader::three([fields.encode(), d1, d2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlp::{Header, ParseError};

    const REQUEST: ConfigRequest = ConfigRequest {
        requester: Bdf(1),
        tag: Tag::ZERO,
        target: Bdf(0x100),
        register: 0x10,
        first_be: 0xf,
        kind: ConfigKind::Type0,
        poisoned: false,
    };

    #[test]
    fn fixed_fields_are_checked() {
        let with = |index: usize, bits: u8| {
            let mut bytes = Header::ConfigRead(REQUEST).encode().as_bytes().to_vec();
            bytes[index] ^= bits;
            Header::decode(&bytes).map(|_| ())
        };
        assert_eq!(with(0, 0), Ok(()));
        assert_eq!(with(3, 0x02), Err(Malformed::Length.into()));
        assert_eq!(with(3, 0x01), Err(Malformed::Length.into()), "0 stands for 1024");
        assert_eq!(with(1, 0x10), Err(Malformed::TrafficClass.into()));
        assert_eq!(with(1, 0x04), Err(Malformed::Attributes.into()));
        assert_eq!(with(2, 0x20), Err(Malformed::Attributes.into()));
        assert_eq!(with(2, 0x04), Err(Malformed::AddressType.into()));
        assert_eq!(with(7, 0x10), Err(Malformed::ByteEnables.into()));
        for (index, bit) in [(10, 0x80), (10, 0x10), (11, 0x01), (11, 0x02)] {
            assert_eq!(with(index, bit), Err(ParseError::Malformed(Malformed::Reserved)));
        }
    }

    #[test]
    fn registers_are_dwords_of_the_space() {
        assert_eq!(ConfigRequest { register: 0xffc, ..REQUEST }.check(), Ok(()));
        assert_eq!(ConfigRequest { register: 0x1000, ..REQUEST }.check(), Err(Malformed::Address));
        assert_eq!(ConfigRequest { register: 0x11, ..REQUEST }.check(), Err(Malformed::Address));
        assert_eq!(ConfigRequest { first_be: 0x10, ..REQUEST }.check(), Err(Malformed::ByteEnables));
    }
}
