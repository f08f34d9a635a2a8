//! What the device and its regions are (vfio-user 0.1 §VFIO_USER_DEVICE_GET_INFO and the two that follow).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::{bitfields, open_values};

/// Payload of DEVICE_GET_INFO and of its reply, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceInfo {
    /// In the command the most bytes of the reply's payload, in the reply those it needs.
    pub argsz: U32,
    /// [`DeviceFlags`].
    pub flags: U32,
    /// Regions of the device: at least [`RegionIndex::COUNT`] of a PCI device.
    pub num_regions: U32,
    /// Kinds of interrupts: of a PCI device at least those up to [`super::IrqIndex::MSIX`], for QEMU.
    pub num_irqs: U32,
}

const _: () = assert!(size_of::<DeviceInfo>() == 16);

bitfields! {
    /// What a device can do.
    pub struct DeviceFlags(u32) {
        /// DEVICE_RESET is supported.
        reset, with_reset: bool = 0;
        /// It is a PCI device.
        pci, with_pci: bool = 1;
    }
}

/// Payload of DEVICE_GET_REGION_INFO and of its reply, 32 bytes; capabilities may follow in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// In the command the most bytes of the reply's payload, in the reply those it needs.
    pub argsz: U32,
    /// [`RegionFlags`].
    pub flags: U32,
    /// [`RegionIndex`].
    pub index: U32,
    /// Where capabilities begin, from the start of this structure.
    pub cap_offset: U32,
    /// Bytes of the region; 0 of one that the device does not have.
    pub size: U64,
    /// What to give to `mmap`.
    pub offset: U64,
}

const _: () = assert!(size_of::<RegionInfo>() == 32);

bitfields! {
    /// How a region can be used.
    pub struct RegionFlags(u32) {
        /// By REGION_READ.
        read, with_read: bool = 0;
        /// By REGION_WRITE.
        write, with_write: bool = 1;
        /// By `mmap` of the descriptor that comes with the reply. One such region makes QEMU send all writes
        /// synchronously.
        mmap, with_mmap: bool = 2;
        /// Capabilities follow.
        caps, with_caps: bool = 3;
    }
}

open_values! {
    /// Regions of a PCI device, as Linux's VFIO numbers them.
    pub struct RegionIndex(u32) {
        /// First base address register; the others follow.
        BAR_0 = 0;
        /// Last base address register.
        BAR_5 = 5;
        /// Expansion ROM.
        ROM = 6;
        /// Configuration space.
        CONFIG = 7;
        /// VGA ranges.
        VGA = 8;
    }
}

impl RegionIndex {
    /// Regions that every PCI device answers for.
    pub const COUNT: u32 = 9;
}

/// Payload of DEVICE_GET_REGION_IO_FDS and start of its reply, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionIoFds {
    /// In the command the most bytes of the reply's payload, in the reply those it needs.
    pub argsz: U32,
    /// 0.
    pub flags: U32,
    /// [`RegionIndex`].
    pub index: U32,
    /// Parts that follow in the reply, [`SubRegionIoFd`] each.
    pub count: U32,
}

const _: () = assert!(size_of::<RegionIoFds>() == 16);

/// A part of a region with a descriptor that tells of accesses, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubRegionIoFd {
    /// First byte in the region.
    pub offset: U64,
    /// Bytes; 0 where they do not matter.
    pub size: U64,
    /// Which of the descriptors that come with the reply.
    pub fd_index: U32,
    /// [`IoFdType`].
    pub kind: U32,
    /// Flags of KVM for the type.
    pub flags: U32,
    /// 0.
    pub padding: U32,
    /// The value to match, or what the messages carry.
    pub data: U64,
}

const _: () = assert!(size_of::<SubRegionIoFd>() == 40);

open_values! {
    /// How a descriptor tells of accesses.
    pub struct IoFdType(u32) {
        /// An eventfd that is signalled.
        IOEVENTFD = 0;
        /// A socket with messages.
        IOREGIONFD = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_region_info() {
        let info = RegionInfo {
            argsz: 32.into(),
            flags: RegionFlags(0).with_read(true).with_write(true).0.into(),
            index: RegionIndex::CONFIG.0.into(),
            cap_offset: 0.into(),
            size: 4096.into(),
            offset: 0.into(),
        };
        let bytes = b"\x20\0\0\0\x03\0\0\0\x07\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(info.as_bytes(), bytes);
    }

    #[test]
    fn golden_device_info() {
        let flags = DeviceFlags(0).with_pci(true).with_reset(true).0;
        let info =
            DeviceInfo { argsz: 16.into(), flags: flags.into(), num_regions: 9.into(), num_irqs: 5.into() };
        assert_eq!(info.as_bytes(), b"\x10\0\0\0\x03\0\0\0\x09\0\0\0\x05\0\0\0");
    }
}
