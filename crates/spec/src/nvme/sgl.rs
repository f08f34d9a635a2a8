//! Scatter Gather Lists: the other way a command names its data (NVMe 2.0 §4.1.2).
//!
//! A list is made of segments; a segment is an array of 16-byte descriptors, of which the last may point to the next
//! segment. The first descriptor lies in the command, where else the PRP entries are.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::open_values;

/// The size of a descriptor in bytes.
pub const DESCRIPTOR_SIZE: usize = 16;

open_values! {
    /// SGL Descriptor Type.
    pub struct SglType(u8) {
        /// A block of data.
        DATA_BLOCK = 0;
        /// Data that nobody wants.
        BIT_BUCKET = 1;
        /// The next segment, which is not the last.
        SEGMENT = 2;
        /// The next segment, which is the last.
        LAST_SEGMENT = 3;
        /// Keyed data block: fabrics only.
        KEYED_DATA_BLOCK = 4;
        /// Transport data block: fabrics only.
        TRANSPORT_DATA_BLOCK = 5;
        /// Vendor specific.
        VENDOR = 15;
    }
}

/// An SGL descriptor, 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address of the data or of the segment.
    pub address: U64,
    /// Bytes of the data or of the segment.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// SGL Identifier: type in 7:4, sub type in 3:0.
    pub id: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == DESCRIPTOR_SIZE);

impl SglDescriptor {
    /// A descriptor with sub type 0: an address.
    #[must_use]
    pub fn new(kind: SglType, address: u64, length: u32) -> Self {
        Self { address: address.into(), length: length.into(), reserved: [0; 3], id: kind.0 << 4 }
    }

    /// What it describes.
    #[must_use]
    pub fn kind(&self) -> SglType {
        SglType(self.id >> 4)
    }

    /// Sub type: 0 for an address, 1 for an offset (fabrics only).
    #[must_use]
    pub fn sub_type(&self) -> u8 {
        self.id & 0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_descriptor() {
        let segment = SglDescriptor::new(SglType::LAST_SEGMENT, 0x1_0000_2000, 0x30);
        assert_eq!(segment.as_bytes(), [0, 0x20, 0, 0, 1, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0x30]);
        assert_eq!((segment.kind(), segment.sub_type()), (SglType::LAST_SEGMENT, 0));
    }
}
