//! Submission and completion queue entries, opcodes, and the commands of the NVM command set.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::status::Status;
use crate::fields::{bitfields, open_values};

/// A submission queue entry, 64 bytes (NVMe 2.0 §3.3.3.1, Common Command Format).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SubmissionEntry {
    /// Opcode: an [`AdminOpcode`] on queue 0, else an [`NvmOpcode`].
    pub opcode: u8,
    /// Fused operation (1:0) and PRP or SGL selection (7:6).
    pub flags: u8,
    /// Command identifier, unique among what is outstanding on its submission queue.
    pub cid: U16,
    /// Namespace identifier.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// First PRP entry, or the first half of an SGL descriptor.
    pub prp1: U64,
    /// Second PRP entry or pointer to a PRP list, or the second half of an SGL descriptor.
    pub prp2: U64,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);

impl SubmissionEntry {
    /// An admin command with nothing but its identifier and namespace filled in.
    #[must_use]
    pub fn admin(opcode: AdminOpcode, cid: u16, nsid: u32) -> Self {
        Self { opcode: opcode.0, cid: cid.into(), nsid: nsid.into(), ..Self::default() }
    }

    /// An NVM command with nothing but its identifier and namespace filled in.
    #[must_use]
    pub fn nvm(opcode: NvmOpcode, cid: u16, nsid: u32) -> Self {
        Self { opcode: opcode.0, cid: cid.into(), nsid: nsid.into(), ..Self::default() }
    }

    /// A command on the logical blocks `slba .. slba + nlb`: Read, Write, Compare, Write Zeroes, Verify or Write
    /// Uncorrectable (NVM CS 1.0 §3.2). Panics unless `nlb` is 1 to 65536.
    #[must_use]
    pub fn nvm_range(opcode: NvmOpcode, cid: u16, nsid: u32, slba: u64, nlb: u32) -> Self {
        let [slba_low, slba_high] = halves(slba);
        Self {
            cdw10: slba_low.into(),
            cdw11: slba_high.into(),
            cdw12: IoControl(0).with_nlb0(zeros_based(nlb)).0.into(),
            ..Self::nvm(opcode, cid, nsid)
        }
    }

    /// Read of `nlb` blocks. Panics unless `nlb` is 1 to 65536.
    #[must_use]
    pub fn read(cid: u16, nsid: u32, slba: u64, nlb: u32) -> Self {
        Self::nvm_range(NvmOpcode::READ, cid, nsid, slba, nlb)
    }

    /// Write of `nlb` blocks. Panics unless `nlb` is 1 to 65536.
    #[must_use]
    pub fn write(cid: u16, nsid: u32, slba: u64, nlb: u32) -> Self {
        Self::nvm_range(NvmOpcode::WRITE, cid, nsid, slba, nlb)
    }

    /// Write Zeroes of `nlb` blocks; `deallocate` allows the controller to unmap them. Panics unless `nlb` is 1 to
    /// 65536.
    #[must_use]
    pub fn write_zeroes(cid: u16, nsid: u32, slba: u64, nlb: u32, deallocate: bool) -> Self {
        let mut entry = Self::nvm_range(NvmOpcode::WRITE_ZEROES, cid, nsid, slba, nlb);
        entry.cdw12 = entry.io_control().with_deac(deallocate).0.into();
        entry
    }

    /// Flush of one namespace, or of all with [`NSID_ALL`](super::NSID_ALL).
    #[must_use]
    pub fn flush(cid: u16, nsid: u32) -> Self {
        Self::nvm(NvmOpcode::FLUSH, cid, nsid)
    }

    /// Dataset Management that deallocates `ranges` (1 to 256) [`DatasetManagementRange`]s at the data pointer
    /// (NVM CS 1.0 §3.2.3). Panics outside of that number.
    #[must_use]
    pub fn deallocate(cid: u16, nsid: u32, ranges: u32) -> Self {
        assert!((1..=DatasetManagementRange::MAX as u32).contains(&ranges), "ranges out of 1 to 256");
        let mut entry = Self::nvm(NvmOpcode::DATASET_MANAGEMENT, cid, nsid);
        entry.cdw10 = (ranges - 1).into();
        entry.cdw11 = DatasetManagementAttributes(0).with_ad(true).0.into();
        entry
    }

    /// This command with a data pointer of PRP entries.
    #[must_use]
    pub fn with_prps(mut self, prp1: u64, prp2: u64) -> Self {
        self.prp1 = prp1.into();
        self.prp2 = prp2.into();
        self
    }

    /// This command with Force Unit Access set.
    #[must_use]
    pub fn with_fua(mut self) -> Self {
        self.cdw12 = self.io_control().with_fua(true).0.into();
        self
    }

    /// This command as a part of a fused operation; only the low two bits of the code count.
    #[must_use]
    pub fn with_fused(mut self, fused: FusedOperation) -> Self {
        self.flags = self.flags & !3 | fused.0 & 3;
        self
    }

    /// The opcode of a command on the admin queue.
    #[must_use]
    pub fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opcode)
    }

    /// The opcode of a command on an I/O queue.
    #[must_use]
    pub fn nvm_opcode(&self) -> NvmOpcode {
        NvmOpcode(self.opcode)
    }

    /// Fused Operation (FUSE).
    #[must_use]
    pub fn fused(&self) -> FusedOperation {
        FusedOperation(self.flags & 3)
    }

    /// PRP or SGL for Data Transfer (PSDT): 0 for PRPs; 1 and 2 for SGLs, with the metadata as a contiguous buffer or
    /// as an SGL.
    #[must_use]
    pub fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// Starting LBA of a command on a range of blocks.
    #[must_use]
    pub fn slba(&self) -> u64 {
        joined(self.cdw10, self.cdw11)
    }

    /// Number of logical blocks, 1 to 65536, of a command on a range of blocks.
    #[must_use]
    pub fn nlb(&self) -> u32 {
        u32::from(self.io_control().nlb0()) + 1
    }

    /// Force Unit Access of a command on a range of blocks.
    #[must_use]
    pub fn fua(&self) -> bool {
        self.io_control().fua()
    }

    /// Deallocate (DEAC) of Write Zeroes.
    #[must_use]
    pub fn deac(&self) -> bool {
        self.io_control().deac()
    }

    /// Command dword 12 of a command on a range of blocks.
    #[must_use]
    pub fn io_control(&self) -> IoControl {
        IoControl(self.cdw12.get())
    }

    /// Number of ranges of a Dataset Management command, 1 to 256.
    #[must_use]
    pub fn dsm_ranges(&self) -> u32 {
        (self.cdw10.get() & 0xff) + 1
    }

    /// What a Dataset Management command says about its ranges.
    #[must_use]
    pub fn dsm_attributes(&self) -> DatasetManagementAttributes {
        DatasetManagementAttributes(self.cdw11.get())
    }
}

/// A 64-bit value of two dwords, the lower first.
pub(super) fn joined(low: U32, high: U32) -> u64 {
    u64::from(high.get()) << 32 | u64::from(low.get())
}

/// The lower and the upper dword of a 64-bit value.
pub(super) fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// A count of 1 to 65536 as the specification writes it, less one.
pub(super) fn zeros_based(count: u32) -> u16 {
    assert!((1..=0x1_0000).contains(&count), "a count must be 1 to 65536");
    (count - 1) as u16
}

/// A completion queue entry, 16 bytes (NVMe 2.0 §3.3.3.2).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CompletionEntry {
    /// Command specific result.
    pub dw0: U32,
    /// Command specific result, upper half of a 64-bit one.
    pub dw1: U32,
    /// Submission Queue Head Pointer: entries before it may be reused.
    pub sq_head: U16,
    /// Submission Queue Identifier.
    pub sq_id: U16,
    /// Command Identifier of the command that ended.
    pub cid: U16,
    /// Status field in bits 15:1 and Phase Tag in bit 0.
    pub status_and_phase: U16,
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);

impl CompletionEntry {
    /// A completion; `dw0` is the command's result.
    #[must_use]
    pub fn new(sq_id: u16, sq_head: u16, cid: u16, status: Status, dw0: u32, phase: bool) -> Self {
        Self {
            dw0: dw0.into(),
            dw1: 0.into(),
            sq_head: sq_head.into(),
            sq_id: sq_id.into(),
            cid: cid.into(),
            status_and_phase: (status.bits() << 1 | u16::from(phase)).into(),
        }
    }

    /// How the command ended.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }

    /// Phase Tag: differs from the last pass through the queue when the entry is new.
    #[must_use]
    pub fn phase(&self) -> bool {
        self.status_and_phase.get() & 1 != 0
    }
}

bitfields! {
    /// Command dword 12 of Read, Write, Compare, Verify, Write Zeroes (NVM CS 1.0 §3.2).
    pub struct IoControl(u32) {
        /// Number of Logical Blocks, less one. [`SubmissionEntry::nlb`] has the count.
        nlb0, with_nlb0: u16 = 15:0;
        /// Directive Type (Write, Write Zeroes).
        dtype, with_dtype: u8 = 23:20;
        /// Storage Tag Check.
        stc, with_stc: bool = 24;
        /// Deallocate (Write Zeroes).
        deac, with_deac: bool = 25;
        /// Protection Information: PRACT (bit 3), and checks of guard (2), application tag (1), reference tag (0).
        prinfo, with_prinfo: u8 = 29:26;
        /// Force Unit Access.
        fua, with_fua: bool = 30;
        /// Limited Retry.
        lr, with_lr: bool = 31;
    }
}

bitfields! {
    /// Command dword 11 of Dataset Management (NVM CS 1.0 §3.2.3).
    pub struct DatasetManagementAttributes(u32) {
        /// Integral Dataset for Read.
        idr, with_idr: bool = 0;
        /// Integral Dataset for Write.
        idw, with_idw: bool = 1;
        /// Deallocate.
        ad, with_ad: bool = 2;
    }
}

/// One range of a Dataset Management command, 16 bytes (NVM CS 1.0 §3.2.3).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DatasetManagementRange {
    /// Context Attributes: hints about the access to come.
    pub attributes: U32,
    /// Length in logical blocks; not less one.
    pub nlb: U32,
    /// Starting LBA.
    pub slba: U64,
}

const _: () = assert!(size_of::<DatasetManagementRange>() == 16);

impl DatasetManagementRange {
    /// The most ranges of one command.
    pub const MAX: usize = 256;

    /// A range without attributes.
    #[must_use]
    pub fn new(slba: u64, nlb: u32) -> Self {
        Self { attributes: 0.into(), nlb: nlb.into(), slba: slba.into() }
    }
}

open_values! {
    /// Opcodes of the admin command set (NVMe 2.0 §5, Opcodes for Admin Commands).
    pub struct AdminOpcode(u8) {
        /// Delete I/O Submission Queue.
        DELETE_IO_SQ = 0x00;
        /// Create I/O Submission Queue.
        CREATE_IO_SQ = 0x01;
        /// Get Log Page.
        GET_LOG_PAGE = 0x02;
        /// Delete I/O Completion Queue.
        DELETE_IO_CQ = 0x04;
        /// Create I/O Completion Queue.
        CREATE_IO_CQ = 0x05;
        /// Identify.
        IDENTIFY = 0x06;
        /// Abort.
        ABORT = 0x08;
        /// Set Features.
        SET_FEATURES = 0x09;
        /// Get Features.
        GET_FEATURES = 0x0a;
        /// Asynchronous Event Request.
        ASYNC_EVENT_REQUEST = 0x0c;
        /// Namespace Management.
        NAMESPACE_MANAGEMENT = 0x0d;
        /// Firmware Commit.
        FIRMWARE_COMMIT = 0x10;
        /// Firmware Image Download.
        FIRMWARE_IMAGE_DOWNLOAD = 0x11;
        /// Device Self-test.
        DEVICE_SELF_TEST = 0x14;
        /// Namespace Attachment.
        NAMESPACE_ATTACHMENT = 0x15;
        /// Keep Alive.
        KEEP_ALIVE = 0x18;
        /// Directive Send.
        DIRECTIVE_SEND = 0x19;
        /// Directive Receive.
        DIRECTIVE_RECEIVE = 0x1a;
        /// Virtualization Management.
        VIRTUALIZATION_MANAGEMENT = 0x1c;
        /// NVMe-MI Send.
        NVME_MI_SEND = 0x1d;
        /// NVMe-MI Receive.
        NVME_MI_RECEIVE = 0x1e;
        /// Capacity Management.
        CAPACITY_MANAGEMENT = 0x20;
        /// Lockdown.
        LOCKDOWN = 0x24;
        /// Doorbell Buffer Config.
        DOORBELL_BUFFER_CONFIG = 0x7c;
        /// Fabrics commands.
        FABRICS = 0x7f;
        /// Format NVM.
        FORMAT_NVM = 0x80;
        /// Security Send.
        SECURITY_SEND = 0x81;
        /// Security Receive.
        SECURITY_RECEIVE = 0x82;
        /// Sanitize.
        SANITIZE = 0x84;
        /// Get LBA Status (NVM command set).
        GET_LBA_STATUS = 0x86;
    }
}

open_values! {
    /// Opcodes of the NVM command set (NVM CS 1.0 §3.2).
    pub struct NvmOpcode(u8) {
        /// Flush.
        FLUSH = 0x00;
        /// Write.
        WRITE = 0x01;
        /// Read.
        READ = 0x02;
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 0x04;
        /// Compare.
        COMPARE = 0x05;
        /// Write Zeroes.
        WRITE_ZEROES = 0x08;
        /// Dataset Management.
        DATASET_MANAGEMENT = 0x09;
        /// Verify.
        VERIFY = 0x0c;
        /// Reservation Register.
        RESERVATION_REGISTER = 0x0d;
        /// Reservation Report.
        RESERVATION_REPORT = 0x0e;
        /// Reservation Acquire.
        RESERVATION_ACQUIRE = 0x11;
        /// Reservation Release.
        RESERVATION_RELEASE = 0x15;
        /// Copy.
        COPY = 0x19;
    }
}

impl AdminOpcode {
    /// The direction of the data, which bits 1:0 of an opcode tell.
    #[must_use]
    pub const fn data_transfer(self) -> DataTransfer {
        DataTransfer(self.0 & 3)
    }
}

impl NvmOpcode {
    /// The direction of the data, which bits 1:0 of an opcode tell.
    #[must_use]
    pub const fn data_transfer(self) -> DataTransfer {
        DataTransfer(self.0 & 3)
    }
}

open_values! {
    /// Data Transfer: bits 1:0 of an opcode (NVMe 2.0 §3.3.3.1).
    pub struct DataTransfer(u8) {
        /// No data.
        NONE = 0;
        /// Host to controller.
        HOST_TO_CONTROLLER = 1;
        /// Controller to host.
        CONTROLLER_TO_HOST = 2;
        /// Both directions.
        BIDIRECTIONAL = 3;
    }
}

open_values! {
    /// Fused Operation (NVMe 2.0 §3.3.3.1).
    pub struct FusedOperation(u8) {
        /// A command of its own.
        NORMAL = 0;
        /// First command of a fused operation (Compare).
        FIRST = 1;
        /// Second command of a fused operation (Write).
        SECOND = 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use proptest::prelude::*;

    #[test]
    fn offsets_are_the_specifications() {
        assert_eq!(offset_of!(SubmissionEntry, cid), 2);
        assert_eq!(offset_of!(SubmissionEntry, nsid), 4);
        assert_eq!(offset_of!(SubmissionEntry, mptr), 16);
        assert_eq!(offset_of!(SubmissionEntry, prp1), 24);
        assert_eq!(offset_of!(SubmissionEntry, cdw10), 40);
        assert_eq!(offset_of!(SubmissionEntry, cdw15), 60);
        assert_eq!(offset_of!(CompletionEntry, sq_head), 8);
        assert_eq!(offset_of!(CompletionEntry, cid), 12);
    }

    /// Write, FUSE second, CID 0x1234, NSID 1, one page at 0x8765_4000, 8 blocks at LBA 0x1_0000_0002, FUA.
    const GOLDEN_WRITE: [u8; 64] = [
        0x01, 0x02, 0x34, 0x12, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // dwords 0 to 3
        0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x40, 0x65, 0x87, 0, 0, 0, 0, // MPTR, PRP1
        0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0x01, 0, 0, 0, // PRP2, SLBA
        0x07, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // dwords 12 to 15
    ];

    #[test]
    fn golden_write() {
        let entry = SubmissionEntry::write(0x1234, 1, 0x1_0000_0002, 8)
            .with_prps(0x8765_4000, 0)
            .with_fua()
            .with_fused(FusedOperation::SECOND);
        assert_eq!(entry.as_bytes(), GOLDEN_WRITE);
        let seen = SubmissionEntry::ref_from_bytes(&GOLDEN_WRITE).unwrap();
        assert_eq!(seen.nvm_opcode(), NvmOpcode::WRITE);
        assert_eq!((seen.slba(), seen.nlb(), seen.fua(), seen.deac()), (0x1_0000_0002, 8, true, false));
        assert_eq!((seen.fused(), seen.psdt()), (FusedOperation::SECOND, 0));
    }

    #[test]
    fn golden_zeroes_and_deallocate() {
        let zeroes = SubmissionEntry::write_zeroes(1, 1, 0, 65536, true);
        assert_eq!(zeroes.cdw12.get(), 0x0200_ffff);
        assert_eq!((zeroes.nlb(), zeroes.deac()), (65536, true));
        let trim = SubmissionEntry::deallocate(1, 1, 256);
        assert_eq!((trim.opcode, trim.cdw10.get(), trim.cdw11.get()), (0x09, 0xff, 0x4));
        assert_eq!((trim.dsm_ranges(), trim.dsm_attributes().ad()), (256, true));
        let range = DatasetManagementRange::new(0x10, 0x20);
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_completion() {
        let done = CompletionEntry::new(3, 0x10, 0x1234, Status::LBA_OUT_OF_RANGE.with_dnr(), 0xaabb, true);
        let bytes = [0xbb, 0xaa, 0, 0, 0, 0, 0, 0, 0x10, 0, 3, 0, 0x34, 0x12, 0x01, 0x81];
        assert_eq!(done.as_bytes(), bytes);
        assert_eq!(done.status(), Status::LBA_OUT_OF_RANGE.with_dnr());
        assert!(done.phase());
    }

    #[test]
    fn opcodes_tell_the_direction() {
        assert_eq!(NvmOpcode::WRITE.data_transfer(), DataTransfer::HOST_TO_CONTROLLER);
        assert_eq!(NvmOpcode::READ.data_transfer(), DataTransfer::CONTROLLER_TO_HOST);
        assert_eq!(NvmOpcode::COMPARE.data_transfer(), DataTransfer::HOST_TO_CONTROLLER);
        assert_eq!(NvmOpcode::WRITE_ZEROES.data_transfer(), DataTransfer::NONE);
        assert_eq!(AdminOpcode::IDENTIFY.data_transfer(), DataTransfer::CONTROLLER_TO_HOST);
        assert_eq!(AdminOpcode::SET_FEATURES.data_transfer(), DataTransfer::HOST_TO_CONTROLLER);
    }

    proptest! {
        #[test]
        fn ranges_round_trip(cid: u16, nsid: u32, slba: u64, nlb in 1u32..=65536) {
            let entry = SubmissionEntry::read(cid, nsid, slba, nlb);
            prop_assert_eq!((entry.cid.get(), entry.nsid.get(), entry.slba(), entry.nlb()), (cid, nsid, slba, nlb));
        }

        #[test]
        fn any_entry_is_readable(bytes: [u8; 32], more: [u8; 32]) {
            let all: Vec<u8> = bytes.into_iter().chain(more).collect();
            let entry = SubmissionEntry::read_from_bytes(&all).unwrap();
            prop_assert_eq!(entry.as_bytes(), &all[..]);
            let _ = (entry.slba(), entry.nlb(), entry.dsm_ranges(), format!("{:?}", entry.admin_opcode()));
        }

        #[test]
        fn completions_round_trip(sq_id: u16, sq_head: u16, cid: u16, bits in 0u16..0x8000, dw0: u32, phase: bool) {
            let status = Status::from_bits(bits);
            let done = CompletionEntry::new(sq_id, sq_head, cid, status, dw0, phase);
            prop_assert_eq!((done.status(), done.phase(), done.dw0.get()), (status, phase, dw0));
        }
    }
}
