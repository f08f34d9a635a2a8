//! DMA_MAP and DMA_UNMAP: which memory of the client the server may reach (vfio-user 0.1 §VFIO_USER_DMA_MAP).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::bitfields;

/// Payload of DMA_MAP, 32 bytes. With a descriptor the memory can be mapped, without one it is reached by messages. The
/// reply has no payload; a map over another one fails with EEXIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: U32,
    /// [`DmaMapFlags`].
    pub flags: U32,
    /// Where the memory begins in the descriptor; 0 without one.
    pub offset: U64,
    /// First DMA address.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

const _: () = assert!(size_of::<DmaMap>() == 32);

impl DmaMap {
    /// What the server may do.
    #[must_use]
    pub fn flags(&self) -> DmaMapFlags {
        DmaMapFlags(self.flags.get())
    }
}

bitfields! {
    /// Rights of a DMA map.
    pub struct DmaMapFlags(u32) {
        /// The server may read.
        readable, with_readable: bool = 0;
        /// The server may write.
        writeable, with_writeable: bool = 1;
    }
}

/// Payload of DMA_UNMAP and of its reply, 24 bytes (vfio-user 0.1 §VFIO_USER_DMA_UNMAP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Most bytes of the reply's payload.
    pub argsz: U32,
    /// [`DmaUnmapFlags`].
    pub flags: U32,
    /// First DMA address.
    pub address: U64,
    /// Bytes.
    pub size: U64,
}

const _: () = assert!(size_of::<DmaUnmap>() == 24);

impl DmaUnmap {
    /// How to unmap.
    #[must_use]
    pub fn flags(&self) -> DmaUnmapFlags {
        DmaUnmapFlags(self.flags.get())
    }
}

bitfields! {
    /// Flags of DMA_UNMAP. The document has none; clients use those of Linux's VFIO.
    pub struct DmaUnmapFlags(u32) {
        /// A [`DirtyBitmap`] follows, in the command and, filled in, in the reply.
        dirty_bitmap, with_dirty_bitmap: bool = 0;
        /// Everything; address and size are 0.
        all, with_all: bool = 1;
    }
}

/// Follows [`DmaUnmap`] where a dirty bitmap is asked for, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirtyBitmap {
    /// Bytes that one bit stands for.
    pub page_size: U64,
    /// Bytes of the bitmap.
    pub size: U64,
}

const _: () = assert!(size_of::<DirtyBitmap>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_map() {
        let map = DmaMap {
            argsz: 32.into(),
            flags: DmaMapFlags(0).with_readable(true).with_writeable(true).0.into(),
            offset: 0x1000.into(),
            address: 0x1_0000_0000.into(),
            size: 0x20_0000.into(),
        };
        let bytes = b"\x20\0\0\0\x03\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\x20\0\0\0\0\0";
        assert_eq!(map.as_bytes(), bytes);
        assert_eq!(DmaMap::read_from_bytes(bytes), Ok(map));
    }

    #[test]
    fn golden_unmap() {
        let bytes = b"\x18\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let unmap = DmaUnmap::read_from_bytes(bytes).unwrap();
        assert!(unmap.flags().all() && !unmap.flags().dirty_bitmap());
        assert_eq!(unmap.flags().reserved_bits(), 0);
    }
}
