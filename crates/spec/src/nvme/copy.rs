//! Copy: the command and its source ranges (NVM CS 1.0 §3.2.2).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::command::{NvmOpcode, SubmissionEntry, halves, joined};
use crate::fields::bitfields;

bitfields! {
    /// Command dword 12 of Copy.
    pub struct CopyControl(u32) {
        /// Number of Ranges, less one.
        nr0, with_nr0: u8 = 7:0;
        /// Descriptor Format.
        desfmt, with_desfmt: u8 = 11:8;
        /// Protection Information of the reads.
        prinfor, with_prinfor: u8 = 15:12;
        /// Directive Type.
        dtype, with_dtype: u8 = 23:20;
        /// Protection Information of the write.
        prinfow, with_prinfow: u8 = 29:26;
        /// Force Unit Access.
        fua, with_fua: bool = 30;
        /// Limited Retry.
        lr, with_lr: bool = 31;
    }
}

/// A source range of descriptor format 0, 32 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CopyRange {
    /// Reserved.
    pub reserved_0: [u8; 8],
    /// Starting LBA.
    pub slba: U64,
    /// Number of Logical Blocks, less one.
    pub nlb0: U16,
    /// Reserved.
    pub reserved_18: [u8; 6],
    /// Expected Initial Logical Block Reference Tag.
    pub eilbrt: U32,
    /// Expected Logical Block Application Tag.
    pub elbat: U16,
    /// Expected Logical Block Application Tag Mask.
    pub elbatm: U16,
}

const _: () = assert!(size_of::<CopyRange>() == 32);

impl CopyRange {
    /// A range of `nlb` (1 to 65536) blocks.
    #[must_use]
    pub fn new(slba: u64, nlb: u32) -> Self {
        Self { slba: slba.into(), nlb0: super::command::zeros_based(nlb).into(), ..Self::default() }
    }

    /// Number of logical blocks, 1 to 65536.
    #[must_use]
    pub fn nlb(&self) -> u32 {
        u32::from(self.nlb0.get()) + 1
    }
}

impl SubmissionEntry {
    /// Copy of `ranges` (1 to 256) ranges of format 0 at the data pointer to the blocks from `sdlba` on.
    #[must_use]
    pub fn copy(cid: u16, nsid: u32, sdlba: u64, ranges: u32) -> Self {
        assert!((1..=256).contains(&ranges), "ranges out of 1 to 256");
        let [low, high] = halves(sdlba);
        Self {
            cdw10: low.into(),
            cdw11: high.into(),
            cdw12: (ranges - 1).into(),
            ..Self::nvm(NvmOpcode::COPY, cid, nsid)
        }
    }

    /// Starting Destination LBA of a Copy.
    #[must_use]
    pub fn sdlba(&self) -> u64 {
        joined(self.cdw10, self.cdw11)
    }

    /// Command dword 12 of a Copy.
    #[must_use]
    pub fn copy_control(&self) -> CopyControl {
        CopyControl(self.cdw12.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn golden_copy() {
        let entry = SubmissionEntry::copy(1, 1, 0x1_0000_0002, 3);
        assert_eq!((entry.opcode, entry.cdw10.get(), entry.cdw11.get(), entry.cdw12.get()), (0x19, 2, 1, 2));
        assert_eq!((entry.sdlba(), entry.copy_control().nr0()), (0x1_0000_0002, 2));
        assert_eq!((offset_of!(CopyRange, slba), offset_of!(CopyRange, eilbrt)), (8, 24));
        assert_eq!(CopyRange::new(7, 65536).nlb(), 65536);
    }
}
