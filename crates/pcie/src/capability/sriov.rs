//! Single Root I/O Virtualization of a physical function (PCIe 6.0 §9.3.3), and ARI, without which no more than seven
//! virtual functions have a number (PCIe 6.0 §7.8.8).
//!
//! The registers alone: which virtual functions exist and who uses them is for the owner to say.

use crate::config::ConfigBuilder;
use crate::spec::capability::{EXTENDED_ARI, EXTENDED_SRIOV};
use crate::spec::header::{BAR_64, BAR_COUNT, BAR_PREFETCHABLE};

/// SR-IOV control (15:0) and status (31:16), from the start of the capability.
pub const CONTROL: u16 = 0x08;
/// InitialVFs (15:0) and TotalVFs (31:16).
pub const TOTAL_VFS: u16 = 0x0c;
/// NumVFs (15:0) and Function Dependency Link (23:16).
pub const NUM_VFS: u16 = 0x10;
/// First VF Offset (15:0) and VF Stride (31:16).
pub const ROUTING: u16 = 0x14;
/// VF Device ID (31:16).
pub const VF_DEVICE: u16 = 0x18;
/// Supported Page Sizes.
pub const PAGE_SIZES: u16 = 0x1c;
/// System Page Size.
pub const SYSTEM_PAGE_SIZE: u16 = 0x20;
/// VF BAR 0; five more follow.
pub const VF_BARS: u16 = 0x24;

/// VF Enable.
pub const VF_ENABLE: u32 = 1 << 0;
/// VF Memory Space Enable.
pub const VF_MEMORY_SPACE: u32 = 1 << 3;
/// ARI Capable Hierarchy.
pub const ARI_CAPABLE_HIERARCHY: u32 = 1 << 4;

/// 4 KiB, 8 KiB, 64 KiB, 256 KiB, 1 MiB and 4 MiB: the sizes that every function supports.
const SUPPORTED_PAGE_SIZES: u32 = 0x553;
/// The system page size after reset: 4 KiB.
const INITIAL_PAGE_SIZE: u32 = 1;
const BYTES: u16 = 0x40;
const VERSION: u8 = 1;
const ARI_BYTES: u16 = 8;

/// What a physical function says about its virtual functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrIovOptions {
    /// TotalVFs and InitialVFs: at least 1.
    pub total: u16,
    /// Distance of the first virtual function's routing id from the physical function's.
    pub first_offset: u16,
    /// Distance of one virtual function's routing id from the next one's.
    pub stride: u16,
    /// Device id of the virtual functions.
    pub device: u16,
    /// 64-bit BARs of each virtual function: index, bytes (a power of two from 4096), prefetchable.
    pub bars: Vec<(usize, u64, bool)>,
}

pub(crate) fn add(builder: &mut ConfigBuilder, options: &SrIovOptions) -> u16 {
    assert!(options.total > 0 && options.first_offset > 0 && options.stride > 0, "no virtual functions");
    let offset = builder.extended(EXTENDED_SRIOV, VERSION, BYTES);
    builder.writable(offset + CONTROL, VF_ENABLE | VF_MEMORY_SPACE | ARI_CAPABLE_HIERARCHY);
    builder.set(offset + TOTAL_VFS, u32::from(options.total) << 16 | u32::from(options.total));
    builder.writable(offset + NUM_VFS, 0xffff);
    builder.set(offset + ROUTING, u32::from(options.stride) << 16 | u32::from(options.first_offset));
    builder.set(offset + VF_DEVICE, u32::from(options.device) << 16);
    builder.set(offset + PAGE_SIZES, SUPPORTED_PAGE_SIZES);
    builder.set(offset + SYSTEM_PAGE_SIZE, INITIAL_PAGE_SIZE);
    builder.writable(offset + SYSTEM_PAGE_SIZE, SUPPORTED_PAGE_SIZES);
    for &(index, bytes, prefetchable) in &options.bars {
        let fits = index + 1 < BAR_COUNT && bytes.is_power_of_two() && bytes >= 4096;
        assert!(fits, "no VF BAR {index} of {bytes} bytes");
        let register = offset + VF_BARS + (index * 4) as u16;
        let address = !(bytes - 1);
        builder.set(register, BAR_64 | if prefetchable { BAR_PREFETCHABLE } else { 0 });
        builder.writable(register, address as u32);
        builder.writable(register + 4, (address >> 32) as u32);
    }
    offset
}

pub(crate) fn add_ari(builder: &mut ConfigBuilder) -> u16 {
    builder.extended(EXTENDED_ARI, VERSION, ARI_BYTES)
}
