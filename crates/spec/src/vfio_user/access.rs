//! Accesses: of the client to regions of the device, of the server to memory of the client (vfio-user 0.1 §Read and
//! Write Operations).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Payload of REGION_READ and REGION_WRITE and start of their replies, 16 bytes. The data follow a write and the reply
/// to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionAccess {
    /// First byte in the region. Unchecked.
    pub offset: U64,
    /// [`super::RegionIndex`].
    pub region: U32,
    /// Bytes. Unchecked.
    pub count: U32,
}

const _: () = assert!(size_of::<RegionAccess>() == 16);

/// Payload of REGION_WRITE_MULTI before its [`WriteMultiEntry`]s, and the whole payload of its reply, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteMultiHeader {
    /// Writes that follow, or were done.
    pub count: U64,
}

const _: () = assert!(size_of::<WriteMultiHeader>() == 8);

/// One write of a REGION_WRITE_MULTI, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteMultiEntry {
    /// First byte in the region. Unchecked.
    pub offset: U64,
    /// [`super::RegionIndex`].
    pub region: U32,
    /// Bytes, at most 8. Unchecked.
    pub count: U32,
    /// The first `count` of them are written.
    pub data: [u8; 8],
}

const _: () = assert!(size_of::<WriteMultiEntry>() == 24);

/// Most writes that QEMU puts into one REGION_WRITE_MULTI.
pub const WRITE_MULTI_MAX: usize = 200;

/// Payload of DMA_READ and DMA_WRITE and start of their replies as the document has it, 16 bytes; the data follow a
/// write and the reply to a read.
///
/// The client of older versions of QEMU has a count of four bytes. Its structure ends behind four bytes of padding all
/// the same, so that its messages have the document's length, but the data begin at [`DmaAccess::OLD_QEMU_DATA`]
/// instead of behind the structure, both in the writes that it takes and in its replies to reads. Its reply to a write
/// is a bare header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaAccess {
    /// First DMA address.
    pub address: U64,
    /// Bytes.
    pub count: U64,
}

const _: () = assert!(size_of::<DmaAccess>() == 16);

impl DmaAccess {
    /// Where the data of older versions of QEMU begin, from the start of this structure.
    pub const OLD_QEMU_DATA: usize = 12;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_access() {
        let bytes = b"\x14\0\0\0\0\0\0\0\x07\0\0\0\x04\0\0\0";
        let access = RegionAccess::read_from_bytes(bytes).unwrap();
        assert_eq!((access.offset.get(), access.region.get(), access.count.get()), (0x14, 7, 4));
    }

    #[test]
    fn golden_write_multi_entry() {
        let entry = WriteMultiEntry {
            offset: 0x1000.into(),
            region: 0.into(),
            count: 4.into(),
            data: [1, 2, 3, 4, 0, 0, 0, 0],
        };
        assert_eq!(entry.as_bytes(), b"\0\x10\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\x01\x02\x03\x04\0\0\0\0");
    }
}
