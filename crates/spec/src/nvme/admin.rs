//! Admin commands: the owned form of each, to and from a [`SubmissionEntry`].
//!
//! The host builds with `entry`, the controller reads with `parse`. Parsing never fails, since every bit pattern is a
//! command; whether its values are legal is for the controller to say, with the status the specification names.

use super::command::{AdminOpcode, SubmissionEntry, halves, joined, zeros_based};
use super::feature::{FeatureId, FeatureSelect};
use super::identify::{Cns, CommandSetId};
use super::log::LogPageId;
use crate::fields::open_values;

/// Create I/O Completion Queue (NVMe 2.0 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIoCompletionQueue {
    /// Queue Identifier.
    pub qid: u16,
    /// Queue size in entries, 1 to 65536 (legal from 2 on).
    pub entries: u32,
    /// Interrupt Vector.
    pub vector: u16,
    /// Interrupts Enabled.
    pub interrupts: bool,
    /// Physically Contiguous: `base` is the queue, else a list of its pages.
    pub contiguous: bool,
    /// PRP Entry 1.
    pub base: u64,
}

impl CreateIoCompletionQueue {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let (dw10, dw11) = (entry.cdw10.get(), entry.cdw11.get());
        Self {
            qid: dw10 as u16,
            entries: (dw10 >> 16) + 1,
            vector: (dw11 >> 16) as u16,
            interrupts: dw11 & 2 != 0,
            contiguous: dw11 & 1 != 0,
            base: entry.prp1.get(),
        }
    }

    /// Builds the command. Panics unless `entries` is 1 to 65536.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::CREATE_IO_CQ, cid, 0);
        let flags = u16::from(self.contiguous) | u16::from(self.interrupts) << 1;
        entry.prp1 = self.base.into();
        entry.cdw10 = words(zeros_based(self.entries), self.qid).into();
        entry.cdw11 = words(self.vector, flags).into();
        entry
    }
}

/// Create I/O Submission Queue (NVMe 2.0 §5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateIoSubmissionQueue {
    /// Queue Identifier.
    pub qid: u16,
    /// Queue size in entries, 1 to 65536 (legal from 2 on).
    pub entries: u32,
    /// Completion Queue Identifier.
    pub cqid: u16,
    /// Queue Priority, used with weighted round robin only.
    pub priority: QueuePriority,
    /// Physically Contiguous: `base` is the queue, else a list of its pages.
    pub contiguous: bool,
    /// NVM Set Identifier, 0 for none.
    pub nvm_set: u16,
    /// PRP Entry 1.
    pub base: u64,
}

impl CreateIoSubmissionQueue {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let (dw10, dw11) = (entry.cdw10.get(), entry.cdw11.get());
        Self {
            qid: dw10 as u16,
            entries: (dw10 >> 16) + 1,
            cqid: (dw11 >> 16) as u16,
            priority: QueuePriority((dw11 >> 1) as u8 & 3),
            contiguous: dw11 & 1 != 0,
            nvm_set: entry.cdw12.get() as u16,
            base: entry.prp1.get(),
        }
    }

    /// Builds the command. Panics unless `entries` is 1 to 65536.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::CREATE_IO_SQ, cid, 0);
        let flags = u16::from(self.contiguous) | u16::from(self.priority.0 & 3) << 1;
        entry.prp1 = self.base.into();
        entry.cdw10 = words(zeros_based(self.entries), self.qid).into();
        entry.cdw11 = words(self.cqid, flags).into();
        entry.cdw12 = u32::from(self.nvm_set).into();
        entry
    }
}

open_values! {
    /// Queue Priority (NVMe 2.0 §5.5).
    pub struct QueuePriority(u8) {
        /// Urgent.
        URGENT = 0;
        /// High.
        HIGH = 1;
        /// Medium.
        MEDIUM = 2;
        /// Low.
        LOW = 3;
    }
}

/// Delete I/O Completion Queue or Delete I/O Submission Queue (NVMe 2.0 §5.6, §5.7); the opcode tells which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteIoQueue {
    /// Queue Identifier.
    pub qid: u16,
    /// The completion queue of that number is meant.
    pub is_cq: bool,
}

impl DeleteIoQueue {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self { qid: entry.cdw10.get() as u16, is_cq: entry.admin_opcode() == AdminOpcode::DELETE_IO_CQ }
    }

    /// Builds the command.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let opcode = if self.is_cq { AdminOpcode::DELETE_IO_CQ } else { AdminOpcode::DELETE_IO_SQ };
        let mut entry = SubmissionEntry::admin(opcode, cid, 0);
        entry.cdw10 = u32::from(self.qid).into();
        entry
    }
}

/// Abort (NVMe 2.0 §5.1). Bit 0 of the completion's dword 0 is set when the command was *not* aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Submission Queue Identifier of the command to abort.
    pub sqid: u16,
    /// Command Identifier of the command to abort.
    pub command: u16,
}

impl Abort {
    /// Bit of the completion's dword 0: the command was not aborted.
    pub const NOT_ABORTED: u32 = 1;

    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dw10 = entry.cdw10.get();
        Self { sqid: dw10 as u16, command: (dw10 >> 16) as u16 }
    }

    /// Builds the command.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::ABORT, cid, 0);
        entry.cdw10 = words(self.command, self.sqid).into();
        entry
    }
}

/// Identify (NVMe 2.0 §5.17). The answer is 4096 bytes at the data pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Controller or Namespace Structure: what is asked for.
    pub cns: Cns,
    /// Namespace Identifier.
    pub nsid: u32,
    /// Controller Identifier.
    pub cntid: u16,
    /// CNS Specific Identifier.
    pub cns_specific: u16,
    /// Command Set Identifier.
    pub csi: CommandSetId,
    /// UUID Index, 0 to 127.
    pub uuid_index: u8,
}

impl Identify {
    /// Asks for one structure of one namespace (0 where it is not of a namespace) in the NVM command set.
    #[must_use]
    pub fn new(cns: Cns, nsid: u32) -> Self {
        Self { cns, nsid, cntid: 0, cns_specific: 0, csi: CommandSetId::NVM, uuid_index: 0 }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let (dw10, dw11) = (entry.cdw10.get(), entry.cdw11.get());
        Self {
            cns: Cns(dw10 as u8),
            nsid: entry.nsid.get(),
            cntid: (dw10 >> 16) as u16,
            cns_specific: dw11 as u16,
            csi: CommandSetId((dw11 >> 24) as u8),
            uuid_index: entry.cdw14.get() as u8 & 0x7f,
        }
    }

    /// Builds the command, without its data pointer.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::IDENTIFY, cid, self.nsid);
        entry.cdw10 = words(self.cntid, self.cns.0.into()).into();
        entry.cdw11 = (u32::from(self.csi.0) << 24 | u32::from(self.cns_specific)).into();
        entry.cdw14 = u32::from(self.uuid_index & 0x7f).into();
        entry
    }
}

/// Get Features (NVMe 2.0 §5.15). The value, or the capabilities, return in the completion's dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature Identifier.
    pub fid: FeatureId,
    /// Which value of the feature.
    pub select: FeatureSelect,
    /// Namespace Identifier, 0 where the feature is the controller's.
    pub nsid: u32,
    /// Command dword 11, feature specific.
    pub dw11: u32,
}

impl GetFeatures {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dw10 = entry.cdw10.get();
        Self {
            fid: FeatureId(dw10 as u8),
            select: FeatureSelect((dw10 >> 8) as u8 & 7),
            nsid: entry.nsid.get(),
            dw11: entry.cdw11.get(),
        }
    }

    /// Builds the command, without its data pointer.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::GET_FEATURES, cid, self.nsid);
        entry.cdw10 = (u32::from(self.select.0 & 7) << 8 | u32::from(self.fid.0)).into();
        entry.cdw11 = self.dw11.into();
        entry
    }
}

/// Set Features (NVMe 2.0 §5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature Identifier.
    pub fid: FeatureId,
    /// Save: the value survives resets and power cycles.
    pub save: bool,
    /// Namespace Identifier, 0 where the feature is the controller's.
    pub nsid: u32,
    /// Command dword 11: the value, for most features.
    pub dw11: u32,
    /// Command dword 12, feature specific.
    pub dw12: u32,
}

impl SetFeatures {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dw10 = entry.cdw10.get();
        Self {
            fid: FeatureId(dw10 as u8),
            save: dw10 >> 31 != 0,
            nsid: entry.nsid.get(),
            dw11: entry.cdw11.get(),
            dw12: entry.cdw12.get(),
        }
    }

    /// Builds the command, without its data pointer.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::admin(AdminOpcode::SET_FEATURES, cid, self.nsid);
        entry.cdw10 = (u32::from(self.save) << 31 | u32::from(self.fid.0)).into();
        entry.cdw11 = self.dw11.into();
        entry.cdw12 = self.dw12.into();
        entry
    }
}

/// Get Log Page (NVMe 2.0 §5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Log Page Identifier.
    pub lid: LogPageId,
    /// Namespace Identifier, [`NSID_ALL`](super::NSID_ALL) or 0 for the controller.
    pub nsid: u32,
    /// Log Specific Field, 0 to 127.
    pub lsp: u8,
    /// Retain Asynchronous Event: reading does not rearm the event.
    pub rae: bool,
    /// Number of dwords to return, 1 to 2^32.
    pub dwords: u64,
    /// Log Specific Identifier.
    pub lsi: u16,
    /// Log Page Offset: in bytes, or an index with `offset_is_index`.
    pub offset: u64,
    /// Offset Type.
    pub offset_is_index: bool,
    /// Command Set Identifier.
    pub csi: CommandSetId,
    /// UUID Index, 0 to 127.
    pub uuid_index: u8,
}

impl GetLogPage {
    /// Asks for the first `dwords` dwords of a log page.
    #[must_use]
    pub fn new(lid: LogPageId, nsid: u32, dwords: u64) -> Self {
        Self {
            lid,
            nsid,
            lsp: 0,
            rae: false,
            dwords,
            lsi: 0,
            offset: 0,
            offset_is_index: false,
            csi: CommandSetId::NVM,
            uuid_index: 0,
        }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let (dw10, dw11, dw14) = (entry.cdw10.get(), entry.cdw11.get(), entry.cdw14.get());
        Self {
            lid: LogPageId(dw10 as u8),
            nsid: entry.nsid.get(),
            lsp: (dw10 >> 8) as u8 & 0x7f,
            rae: dw10 & 1 << 15 != 0,
            dwords: u64::from((dw11 & 0xffff) << 16 | dw10 >> 16) + 1,
            lsi: (dw11 >> 16) as u16,
            offset: joined(entry.cdw12, entry.cdw13),
            offset_is_index: dw14 & 1 << 23 != 0,
            csi: CommandSetId((dw14 >> 24) as u8),
            uuid_index: dw14 as u8 & 0x7f,
        }
    }

    /// Builds the command, without its data pointer. Panics unless `dwords` is 1 to 2^32.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        assert!((1..=1 << 32).contains(&self.dwords), "a log page is read in 1 to 2^32 dwords");
        let numd = (self.dwords - 1) as u32;
        let [offset_low, offset_high] = halves(self.offset);
        let mut entry = SubmissionEntry::admin(AdminOpcode::GET_LOG_PAGE, cid, self.nsid);
        let low = u16::from(self.lid.0) | u16::from(self.lsp & 0x7f) << 8 | u16::from(self.rae) << 15;
        entry.cdw10 = words(numd as u16, low).into();
        entry.cdw11 = words(self.lsi, (numd >> 16) as u16).into();
        entry.cdw12 = offset_low.into();
        entry.cdw13 = offset_high.into();
        let dw14 = u32::from(self.csi.0) << 24 | u32::from(self.offset_is_index) << 23;
        entry.cdw14 = (dw14 | u32::from(self.uuid_index & 0x7f)).into();
        entry
    }
}

/// Format NVM (NVMe 2.0 §5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatNvm {
    /// Namespace Identifier, or [`NSID_ALL`](super::NSID_ALL).
    pub nsid: u32,
    /// LBA format index, 0 to 63.
    pub lba_format: u8,
    /// Metadata is transferred as part of an extended data LBA.
    pub extended_metadata: bool,
    /// Protection Information: 0 none, 1 to 3 for the types.
    pub protection: u8,
    /// Protection information stands first in the metadata.
    pub protection_first: bool,
    /// Secure Erase Settings: 0 none, 1 user data erase, 2 cryptographic erase.
    pub secure_erase: u8,
}

impl FormatNvm {
    /// Reads the command.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dw10 = entry.cdw10.get();
        Self {
            nsid: entry.nsid.get(),
            lba_format: (dw10 & 0xf | dw10 >> 8 & 0x30) as u8,
            extended_metadata: dw10 & 1 << 4 != 0,
            protection: (dw10 >> 5) as u8 & 7,
            protection_first: dw10 & 1 << 8 != 0,
            secure_erase: (dw10 >> 9) as u8 & 7,
        }
    }

    /// Builds the command. Panics if a value does not fit its field.
    #[must_use]
    pub fn entry(&self, cid: u16) -> SubmissionEntry {
        assert!(self.lba_format < 64 && self.protection < 8 && self.secure_erase < 8, "fields of Format NVM");
        let format = u32::from(self.lba_format);
        let mut entry = SubmissionEntry::admin(AdminOpcode::FORMAT_NVM, cid, self.nsid);
        let dw10 = format & 0xf | (format & 0x30) << 8 | u32::from(self.extended_metadata) << 4;
        let protection = u32::from(self.protection) << 5 | u32::from(self.protection_first) << 8;
        entry.cdw10 = (dw10 | protection | u32::from(self.secure_erase) << 9).into();
        entry
    }
}

/// A dword of two words.
fn words(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_create_queues() {
        let cq = CreateIoCompletionQueue {
            qid: 2,
            entries: 1024,
            vector: 5,
            interrupts: true,
            contiguous: true,
            base: 0x7000,
        };
        let entry = cq.entry(9);
        assert_eq!((entry.opcode, entry.cid.get(), entry.prp1.get()), (0x05, 9, 0x7000));
        assert_eq!((entry.cdw10.get(), entry.cdw11.get()), (0x03ff_0002, 0x0005_0003));
        let sq = CreateIoSubmissionQueue {
            qid: 2,
            entries: 65536,
            cqid: 3,
            priority: QueuePriority::MEDIUM,
            contiguous: true,
            nvm_set: 0,
            base: 0x8000,
        };
        let entry = sq.entry(10);
        assert_eq!((entry.opcode, entry.cdw10.get(), entry.cdw11.get()), (0x01, 0xffff_0002, 0x0003_0005));
    }

    #[test]
    fn golden_other_commands() {
        assert_eq!(Identify::new(Cns::CONTROLLER, 0).entry(1).cdw10.get(), 1);
        assert_eq!(Abort { sqid: 1, command: 0x22 }.entry(1).cdw10.get(), 0x0022_0001);
        assert_eq!(DeleteIoQueue { qid: 4, is_cq: true }.entry(1).opcode, 0x04);
        let log = GetLogPage::new(LogPageId::SMART, super::super::NSID_ALL, 128).entry(1);
        assert_eq!((log.cdw10.get(), log.cdw11.get()), (0x007f_0002, 0));
        let set = SetFeatures { fid: FeatureId::VOLATILE_WRITE_CACHE, save: true, nsid: 0, dw11: 1, dw12: 0 };
        assert_eq!(set.entry(1).cdw10.get(), 0x8000_0006);
        let format = FormatNvm {
            nsid: 1,
            lba_format: 0x21,
            extended_metadata: false,
            protection: 1,
            protection_first: true,
            secure_erase: 2,
        };
        assert_eq!(format.entry(1).cdw10.get(), 0x0000_2521);
    }

    proptest! {
        /// Whatever a host sends parses, and what was parsed survives being built and parsed again.
        #[test]
        fn any_command_round_trips(dwords: [u32; 6], nsid: u32, prp1: u64, opcode: u8) {
            let mut entry = SubmissionEntry::admin(AdminOpcode(opcode), 7, nsid).with_prps(prp1, 0);
            let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = dwords.map(Into::into);
            entry = SubmissionEntry { cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, ..entry };
            macro_rules! survives {
                ($($command:ident)*) => {
                    $( let seen = $command::parse(&entry);
                       prop_assert_eq!($command::parse(&seen.entry(7)), seen); )*
                };
            }
            survives!(CreateIoCompletionQueue CreateIoSubmissionQueue DeleteIoQueue Abort Identify GetFeatures
                SetFeatures GetLogPage FormatNvm);
        }
    }
}
