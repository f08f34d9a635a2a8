//! Identify data structures (NVMe 2.0 §5.17.2 and NVM CS 1.0 §4.1.5).

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::{bitfields, open_values};

/// The size of every Identify data structure.
pub const SIZE: usize = 4096;

open_values! {
    /// Controller or Namespace Structure (NVMe 2.0 §5.17.1).
    pub struct Cns(u8) {
        /// Namespace: [`IdentifyNamespace`].
        NAMESPACE = 0x00;
        /// Controller: [`IdentifyController`].
        CONTROLLER = 0x01;
        /// Active Namespace ID list, above the given namespace: up to 1024 numbers.
        ACTIVE_NAMESPACES = 0x02;
        /// Namespace Identification Descriptors: [`NamespaceIdentifiers`].
        NAMESPACE_DESCRIPTORS = 0x03;
        /// NVM Set List.
        NVM_SETS = 0x04;
        /// I/O Command Set specific Namespace.
        IO_NAMESPACE = 0x05;
        /// I/O Command Set specific Controller: [`NvmIdentifyController`] for the NVM command set.
        IO_CONTROLLER = 0x06;
        /// I/O Command Set specific Active Namespace ID list.
        IO_ACTIVE_NAMESPACES = 0x07;
        /// I/O Command Set Independent Namespace.
        INDEPENDENT_NAMESPACE = 0x08;
        /// Namespace capabilities for a User Data Format.
        NAMESPACE_FORMAT = 0x09;
        /// I/O Command Set specific namespace capabilities for a User Data Format.
        IO_NAMESPACE_FORMAT = 0x0a;
        /// Allocated Namespace ID list.
        ALLOCATED_NAMESPACES = 0x10;
        /// Allocated namespace: [`IdentifyNamespace`].
        ALLOCATED_NAMESPACE = 0x11;
        /// Controllers attached to a namespace.
        NAMESPACE_CONTROLLERS = 0x12;
        /// Controllers of the NVM subsystem.
        SUBSYSTEM_CONTROLLERS = 0x13;
        /// Primary Controller Capabilities.
        PRIMARY_CONTROLLER = 0x14;
        /// Secondary Controller list.
        SECONDARY_CONTROLLERS = 0x15;
        /// Namespace Granularity List.
        NAMESPACE_GRANULARITIES = 0x16;
        /// UUID List.
        UUIDS = 0x17;
        /// Domain List.
        DOMAINS = 0x18;
        /// Endurance Group List.
        ENDURANCE_GROUPS = 0x19;
        /// I/O Command Set specific Allocated Namespace ID list.
        IO_ALLOCATED_NAMESPACES = 0x1a;
        /// I/O Command Set specific allocated namespace.
        IO_ALLOCATED_NAMESPACE = 0x1b;
        /// I/O Command Set combinations.
        IO_COMMAND_SETS = 0x1c;
    }
}

open_values! {
    /// Command Set Identifier (CSI).
    pub struct CommandSetId(u8) {
        /// NVM command set.
        NVM = 0;
        /// Key Value command set.
        KEY_VALUE = 1;
        /// Zoned Namespace command set.
        ZONED = 2;
    }
}

/// Fills a fixed ASCII field the standard's way: left justified, padded with spaces, cut where it is too long.
/// What is not printable ASCII becomes `?`.
pub fn fill_ascii(field: &mut [u8], text: &str) {
    let printable = text.chars().map(|c| if matches!(c, ' '..='~') { c as u8 } else { b'?' });
    for (slot, byte) in field.iter_mut().zip(printable.chain(core::iter::repeat(b' '))) {
        *slot = byte;
    }
}

/// The content of a fixed ASCII field without its padding; `None` where it is no printable ASCII.
#[must_use]
pub fn ascii(field: &[u8]) -> Option<&str> {
    let text = core::str::from_utf8(field).ok()?.trim_end_matches([' ', '\0']);
    text.bytes().all(|byte| matches!(byte, b' '..=b'~')).then_some(text)
}

/// Identify Controller, 4096 bytes (NVMe 2.0 §5.17.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI Vendor ID.
    pub vid: U16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// Serial Number, ASCII: see [`fill_ascii`].
    pub sn: [u8; 20],
    /// Model Number, ASCII.
    pub mn: [u8; 40],
    /// Firmware Revision, ASCII.
    pub fr: [u8; 8],
    /// Recommended Arbitration Burst: 2^n commands.
    pub rab: u8,
    /// IEEE OUI, least significant byte first.
    pub ieee: [u8; 3],
    /// Controller Multi-Path I/O and Namespace Sharing: more ports (0), more controllers (1), is an SR-IOV VF (2),
    /// ANA reporting (3).
    pub cmic: u8,
    /// Maximum Data Transfer Size: 2^n minimum memory pages, 0 for no limit.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: U16,
    /// Version, as in the VS property.
    pub ver: U32,
    /// RTD3 Resume Latency in µs.
    pub rtd3r: U32,
    /// RTD3 Entry Latency in µs.
    pub rtd3e: U32,
    /// Optional Asynchronous Events Supported; bits as in
    /// [`AsyncEventConfiguration`](super::feature::AsyncEventConfiguration).
    pub oaes: U32,
    /// Controller Attributes.
    pub ctratt: U32,
    /// Read Recovery Levels Supported.
    pub rrls: U16,
    /// Reserved.
    pub reserved_102: [u8; 9],
    /// Controller Type: 1 I/O, 2 discovery, 3 administrative.
    pub cntrltype: u8,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Command Retry Delay Times 1 to 3 in units of 100 ms.
    pub crdt: [U16; 3],
    /// Reserved.
    pub reserved_134: [u8; 119],
    /// NVM Subsystem Report.
    pub nvmsr: u8,
    /// VPD Write Cycle Information.
    pub vwci: u8,
    /// Management Endpoint Capabilities.
    pub mec: u8,
    /// Optional Admin Command Support: [`Oacs`].
    pub oacs: U16,
    /// Abort Command Limit, less one.
    pub acl: u8,
    /// Asynchronous Event Request Limit, less one.
    pub aerl: u8,
    /// Firmware Updates: slot 1 is read only (0), number of slots (3:1), activation without reset (4).
    pub frmw: u8,
    /// Log Page Attributes: [`Lpa`].
    pub lpa: u8,
    /// Error Log Page Entries, less one.
    pub elpe: u8,
    /// Number of Power States Support, less one.
    pub npss: u8,
    /// Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Warning Composite Temperature Threshold in kelvins.
    pub wctemp: U16,
    /// Critical Composite Temperature Threshold in kelvins.
    pub cctemp: U16,
    /// Maximum Time for Firmware Activation in units of 100 ms.
    pub mtfa: U16,
    /// Host Memory Buffer Preferred Size in units of 4 KiB.
    pub hmpre: U32,
    /// Host Memory Buffer Minimum Size in units of 4 KiB.
    pub hmmin: U32,
    /// Total NVM Capacity in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM Capacity in bytes.
    pub unvmcap: U128,
    /// Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// Extended Device Self-test Time in minutes.
    pub edstt: U16,
    /// Device Self-test Options.
    pub dsto: u8,
    /// Firmware Update Granularity in units of 4 KiB, 0xff for none.
    pub fwug: u8,
    /// Keep Alive Support: granularity in units of 100 ms, 0 for none.
    pub kas: U16,
    /// Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// Minimum Thermal Management Temperature in kelvins.
    pub mntmt: U16,
    /// Maximum Thermal Management Temperature in kelvins.
    pub mxtmt: U16,
    /// Sanitize Capabilities.
    pub sanicap: U32,
    /// Host Memory Buffer Minimum Descriptor Entry Size in units of 4 KiB.
    pub hmminds: U32,
    /// Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// ANA Transition Time in seconds.
    pub anatt: u8,
    /// Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// Persistent Event Log Size in units of 64 KiB.
    pub pels: U32,
    /// Domain Identifier.
    pub domainid: U16,
    /// Reserved.
    pub reserved_358: [u8; 10],
    /// Max Endurance Group Capacity in bytes.
    pub megcap: U128,
    /// Reserved.
    pub reserved_384: [u8; 128],
    /// Submission Queue Entry Size: required (3:0) and maximum (7:4), as powers of two. 0x66 for 64 bytes.
    pub sqes: u8,
    /// Completion Queue Entry Size: required (3:0) and maximum (7:4), as powers of two. 0x44 for 16 bytes.
    pub cqes: u8,
    /// Maximum Outstanding Commands, 0 where it is not reported.
    pub maxcmd: U16,
    /// Number of Namespaces: the greatest valid namespace identifier.
    pub nn: U32,
    /// Optional NVM Command Support: [`Oncs`].
    pub oncs: U16,
    /// Fused Operation Support: bit 0 for compare and write.
    pub fuses: U16,
    /// Format NVM Attributes.
    pub fna: u8,
    /// Volatile Write Cache: [`Vwc`].
    pub vwc: u8,
    /// Atomic Write Unit Normal in logical blocks, less one.
    pub awun: U16,
    /// Atomic Write Unit Power Fail in logical blocks, less one.
    pub awupf: U16,
    /// I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// Atomic Compare & Write Unit in logical blocks, less one.
    pub acwu: U16,
    /// Copy Descriptor Formats Supported: bit 0 for format 0.
    pub cdfs: U16,
    /// SGL Support: 0 for none; [`Sgls`].
    pub sgls: U32,
    /// Maximum Number of Allowed Namespaces, 0 for `nn`.
    pub mnan: U32,
    /// Maximum Domain Namespace Attachments.
    pub maxdna: U128,
    /// Maximum I/O Controller Namespace Attachments.
    pub maxcna: U32,
    /// Reserved.
    pub reserved_564: [u8; 204],
    /// NVM Subsystem NVMe Qualified Name, UTF-8, ended by a zero byte.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved_1024: [u8; 768],
    /// NVMe over Fabrics.
    pub fabrics: [u8; 256],
    /// Power State Descriptors 0 to 31; `npss` tells how many count.
    pub psd: [PowerStateDescriptor; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == SIZE);

bitfields! {
    /// Optional Admin Command Support.
    pub struct Oacs(u16) {
        /// Security Send and Receive.
        security, with_security: bool = 0;
        /// Format NVM.
        format, with_format: bool = 1;
        /// Firmware Commit and Image Download.
        firmware, with_firmware: bool = 2;
        /// Namespace Management and Attachment.
        namespace_management, with_namespace_management: bool = 3;
        /// Device Self-test.
        self_test, with_self_test: bool = 4;
        /// Directives.
        directives, with_directives: bool = 5;
        /// NVMe-MI Send and Receive.
        nvme_mi, with_nvme_mi: bool = 6;
        /// Virtualization Management.
        virtualization, with_virtualization: bool = 7;
        /// Doorbell Buffer Config.
        doorbell_buffer, with_doorbell_buffer: bool = 8;
        /// Get LBA Status.
        lba_status, with_lba_status: bool = 9;
        /// Command and Feature Lockdown.
        lockdown, with_lockdown: bool = 10;
    }
}

bitfields! {
    /// Log Page Attributes.
    pub struct Lpa(u8) {
        /// SMART / Health for each namespace.
        smart_per_namespace, with_smart_per_namespace: bool = 0;
        /// Commands Supported and Effects log page.
        command_effects, with_command_effects: bool = 1;
        /// Extended data for Get Log Page: 32-bit lengths and offsets.
        extended_data, with_extended_data: bool = 2;
        /// Telemetry log pages and notices.
        telemetry, with_telemetry: bool = 3;
        /// Persistent Event log.
        persistent_event, with_persistent_event: bool = 4;
        /// Supported Log Pages and the pages of supported effects (0x00, 0x12, 0x13).
        supported_pages, with_supported_pages: bool = 5;
        /// Telemetry data area 4.
        telemetry_area_4, with_telemetry_area_4: bool = 6;
    }
}

bitfields! {
    /// Optional NVM Command Support.
    pub struct Oncs(u16) {
        /// Compare.
        compare, with_compare: bool = 0;
        /// Write Uncorrectable.
        write_uncorrectable, with_write_uncorrectable: bool = 1;
        /// Dataset Management.
        dataset_management, with_dataset_management: bool = 2;
        /// Write Zeroes.
        write_zeroes, with_write_zeroes: bool = 3;
        /// Save and Select fields of Set and Get Features.
        save_features, with_save_features: bool = 4;
        /// Reservations.
        reservations, with_reservations: bool = 5;
        /// Timestamp feature.
        timestamp, with_timestamp: bool = 6;
        /// Verify.
        verify, with_verify: bool = 7;
        /// Copy.
        copy, with_copy: bool = 8;
    }
}

bitfields! {
    /// Volatile Write Cache of Identify Controller.
    pub struct Vwc(u8) {
        /// A volatile write cache is present: Flush matters.
        present, with_present: bool = 0;
        /// Flush of all namespaces at once: 0 not told, 2 not supported, 3 supported.
        flush_all, with_flush_all: u8 = 2:1;
    }
}

/// The first vendor specific bytes of Identify Controller: the controller takes [`super::registers::HOST_KEEPS`].
pub const HOST_KEEPS_OFFERED: [u8; 8] = *b"hostkeep";

bitfields! {
    /// SGL Support.
    pub struct Sgls(u32) {
        /// 0 none, 1 without alignment, 2 with dword alignment.
        support, with_support: u8 = 1:0;
        /// Keyed SGL Data Block descriptor.
        keyed, with_keyed: bool = 2;
        /// SGL Bit Bucket descriptor.
        bit_bucket, with_bit_bucket: bool = 16;
        /// Byte aligned contiguous buffer of metadata.
        metadata_buffer, with_metadata_buffer: bool = 17;
        /// The SGL may be longer than the data.
        longer, with_longer: bool = 18;
        /// The metadata pointer may name an SGL segment.
        metadata_sgl, with_metadata_sgl: bool = 19;
        /// The address of a descriptor may be an offset.
        offset, with_offset: bool = 20;
        /// Transport SGL Data Block descriptor.
        transport, with_transport: bool = 21;
    }
}

/// Power State Descriptor, 32 bytes (NVMe 2.0 §5.17.2.1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct PowerStateDescriptor {
    /// Maximum Power in centiwatts, or in 0.1 mW with the scale bit.
    pub mp: U16,
    /// Reserved.
    pub reserved_2: u8,
    /// Max Power Scale (0), Non-Operational State (1).
    pub flags: u8,
    /// Entry Latency in µs.
    pub enlat: U32,
    /// Exit Latency in µs.
    pub exlat: U32,
    /// Relative Read Throughput, 0 is best.
    pub rrt: u8,
    /// Relative Read Latency, 0 is best.
    pub rrl: u8,
    /// Relative Write Throughput, 0 is best.
    pub rwt: u8,
    /// Relative Write Latency, 0 is best.
    pub rwl: u8,
    /// Idle Power.
    pub idlp: U16,
    /// Idle Power Scale in 7:6.
    pub ips: u8,
    /// Reserved.
    pub reserved_19: u8,
    /// Active Power.
    pub actp: U16,
    /// Active Power Workload (2:0) and Scale (7:6).
    pub apw: u8,
    /// Reserved.
    pub reserved_23: [u8; 9],
}

const _: () = assert!(size_of::<PowerStateDescriptor>() == 32);

/// Identify Namespace of the NVM command set, 4096 bytes (NVM CS 1.0 §4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Namespace Size in logical blocks.
    pub nsze: U64,
    /// Namespace Capacity in logical blocks.
    pub ncap: U64,
    /// Namespace Utilization in logical blocks.
    pub nuse: U64,
    /// Namespace Features: [`Nsfeat`].
    pub nsfeat: u8,
    /// Number of LBA Formats, less one.
    pub nlbaf: u8,
    /// Formatted LBA Size: [`Flbas`].
    pub flbas: u8,
    /// Metadata Capabilities: as part of the data (0), as a buffer of its own (1).
    pub mc: u8,
    /// End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// Namespace Multi-path I/O and Namespace Sharing Capabilities: bit 0 where it may be shared.
    pub nmic: u8,
    /// Reservation Capabilities.
    pub rescap: u8,
    /// Format Progress Indicator.
    pub fpi: u8,
    /// Deallocate Logical Block Features: [`Dlfeat`].
    pub dlfeat: u8,
    /// Namespace Atomic Write Unit Normal in logical blocks, less one.
    pub nawun: U16,
    /// Namespace Atomic Write Unit Power Fail in logical blocks, less one.
    pub nawupf: U16,
    /// Namespace Atomic Compare & Write Unit in logical blocks, less one.
    pub nacwu: U16,
    /// Namespace Atomic Boundary Size Normal in logical blocks, less one.
    pub nabsn: U16,
    /// Namespace Atomic Boundary Offset in logical blocks.
    pub nabo: U16,
    /// Namespace Atomic Boundary Size Power Fail in logical blocks, less one.
    pub nabspf: U16,
    /// Namespace Optimal I/O Boundary in logical blocks, 0 for none.
    pub noiob: U16,
    /// NVM Capacity in bytes.
    pub nvmcap: U128,
    /// Namespace Preferred Write Granularity in logical blocks, less one.
    pub npwg: U16,
    /// Namespace Preferred Write Alignment in logical blocks, less one.
    pub npwa: U16,
    /// Namespace Preferred Deallocate Granularity in logical blocks, less one.
    pub npdg: U16,
    /// Namespace Preferred Deallocate Alignment in logical blocks, less one.
    pub npda: U16,
    /// Namespace Optimal Write Size in logical blocks, less one.
    pub nows: U16,
    /// Maximum Single Source Range Length of Copy in logical blocks.
    pub mssrl: U16,
    /// Maximum Copy Length in logical blocks.
    pub mcl: U32,
    /// Maximum Source Range Count of Copy, less one.
    pub msrc: u8,
    /// Reserved.
    pub reserved_81: [u8; 11],
    /// ANA Group Identifier.
    pub anagrpid: U32,
    /// Reserved.
    pub reserved_96: [u8; 3],
    /// Namespace Attributes: bit 0 where it is write protected.
    pub nsattr: u8,
    /// NVM Set Identifier.
    pub nvmsetid: U16,
    /// Endurance Group Identifier.
    pub endgid: U16,
    /// Namespace Globally Unique Identifier, big-endian.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, big-endian.
    pub eui64: [u8; 8],
    /// LBA Formats 0 to 63; `nlbaf` tells how many count.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == SIZE);

impl IdentifyNamespace {
    /// The LBA format in use.
    #[must_use]
    pub fn current_format(&self) -> LbaFormat {
        self.lbaf[Flbas(self.flbas).index()]
    }
}

bitfields! {
    /// Namespace Features.
    pub struct Nsfeat(u8) {
        /// Thin provisioning.
        thin, with_thin: bool = 0;
        /// The namespace's atomic units are its own (NAWUN, NAWUPF, NACWU).
        nsabp, with_nsabp: bool = 1;
        /// Deallocated or Unwritten Logical Block errors can be enabled.
        dae, with_dae: bool = 2;
        /// NGUID and EUI64 are never reused.
        uidreuse, with_uidreuse: bool = 3;
        /// NPWG, NPWA, NPDG, NPDA and NOWS are defined.
        optperf, with_optperf: bool = 4;
    }
}

bitfields! {
    /// Formatted LBA Size.
    pub struct Flbas(u8) {
        /// Format index, bits 3:0.
        index_low, with_index_low: u8 = 3:0;
        /// Metadata is transferred at the end of the data.
        extended_metadata, with_extended_metadata: bool = 4;
        /// Format index, bits 5:4.
        index_high, with_index_high: u8 = 6:5;
    }
}

impl Flbas {
    /// The index of the LBA format, 0 to 63.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.index_high() << 4 | self.index_low())
    }
}

bitfields! {
    /// Deallocate Logical Block Features.
    pub struct Dlfeat(u8) {
        /// What a deallocated block reads: 0 not told, 1 zeros, 2 ones.
        read, with_read: u8 = 2:0;
        /// Write Zeroes may deallocate.
        write_zeroes, with_write_zeroes: bool = 3;
        /// The guard of a deallocated block is the CRC of what it reads.
        guard_crc, with_guard_crc: bool = 4;
    }
}

/// LBA Format, 4 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata Size in bytes.
    pub ms: U16,
    /// LBA Data Size: 2^n bytes, at least 9; 0 where the format is not available.
    pub lbads: u8,
    /// Relative Performance in 1:0, 0 is best.
    pub rp: u8,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// The logical block size in bytes; `None` where `lbads` is not available or absurd (below 512 bytes, above
    /// 2 GiB).
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        (9..32).contains(&self.lbads).then(|| 1 << self.lbads)
    }
}

/// I/O Command Set specific Identify Controller of the NVM command set, 4096 bytes (NVM CS 1.0 §4.1.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmIdentifyController {
    /// Verify Size Limit: 2^n minimum memory pages, 0 for none.
    pub vsl: u8,
    /// Write Zeroes Size Limit: 2^n minimum memory pages, 0 for none.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit: 2^n minimum memory pages, 0 for none.
    pub wusl: u8,
    /// Dataset Management Ranges Limit, 0 for none.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit in logical blocks, 0 for none.
    pub dmrsl: U32,
    /// Dataset Management Size Limit in logical blocks, 0 for none.
    pub dmsl: U64,
    /// Reserved.
    pub reserved_16: [u8; 4080],
}

const _: () = assert!(size_of::<NvmIdentifyController>() == SIZE);

open_values! {
    /// Namespace Identifier Type of a descriptor (NVMe 2.0 §5.17.2.3).
    pub struct NamespaceIdType(u8) {
        /// IEEE Extended Unique Identifier, 8 bytes.
        EUI64 = 1;
        /// Namespace Globally Unique Identifier, 16 bytes.
        NGUID = 2;
        /// UUID, 16 bytes.
        UUID = 3;
        /// Command Set Identifier, 1 byte.
        CSI = 4;
    }
}

/// Namespace Identification Descriptors: walks the list that [`Cns::NAMESPACE_DESCRIPTORS`] returns.
///
/// Each descriptor is a type, a length, two reserved bytes and the identifier. A length of zero ends the list, and so
/// does a descriptor that would reach past the end.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceIdentifiers<'a> {
    rest: &'a [u8],
}

impl<'a> NamespaceIdentifiers<'a> {
    /// Walks a list, of at most [`SIZE`] bytes.
    #[must_use]
    pub fn new(list: &'a [u8]) -> Self {
        Self { rest: list }
    }

    /// Writes a list; what follows it is zero. `None` where it does not fit, or an identifier is empty or longer than
    /// 255 bytes.
    #[must_use]
    pub fn encode(identifiers: &[(NamespaceIdType, &[u8])]) -> Option<[u8; SIZE]> {
        let mut list = [0; SIZE];
        let mut rest = &mut list[..];
        for (kind, id) in identifiers {
            let length = u8::try_from(id.len()).ok().filter(|length| *length > 0)?;
            let (descriptor, behind) = rest.split_at_mut_checked(4 + id.len())?;
            descriptor[..2].copy_from_slice(&[kind.0, length]);
            descriptor[4..].copy_from_slice(id);
            rest = behind;
        }
        Some(list)
    }
}

impl<'a> Iterator for NamespaceIdentifiers<'a> {
    type Item = (NamespaceIdType, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[kind, length, _, _], behind) = self.rest.split_first_chunk()?;
        if length == 0 {
            return None;
        }
        let (id, rest) = behind.split_at_checked(length.into())?;
        self.rest = rest;
        Some((NamespaceIdType(kind), id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    #[test]
    fn controller_offsets_are_the_specifications() {
        macro_rules! at {
            ($($field:ident $at:literal)*) => { $( assert_eq!(offset_of!(IdentifyController, $field), $at); )* };
        }
        at!(sn 4 mn 24 fr 64 rab 72 ieee 73 cmic 76 mdts 77 cntlid 78 ver 80 rtd3r 84 rtd3e 88 oaes 92 ctratt 96);
        at!(rrls 100 cntrltype 111 fguid 112 crdt 128 nvmsr 253 vwci 254 mec 255 oacs 256 acl 258 aerl 259 frmw 260);
        at!(lpa 261 elpe 262);
        at!(npss 263 avscc 264 apsta 265 wctemp 266 cctemp 268 mtfa 270 hmpre 272 hmmin 276 tnvmcap 280);
        at!(unvmcap 296 rpmbs 312 edstt 316 dsto 318 fwug 319 kas 320 hctma 322 mntmt 324 mxtmt 326 sanicap 328);
        at!(hmminds 332 hmmaxd 336 nsetidmax 338 endgidmax 340 anatt 342 anacap 343 anagrpmax 344 nanagrpid 348);
        at!(pels 352 domainid 356 megcap 368 sqes 512 cqes 513 maxcmd 514 nn 516 oncs 520 fuses 522 fna 524 vwc 525);
        at!(awun 526 awupf 528 icsvscc 530 nwpc 531 acwu 532 cdfs 534 sgls 536 mnan 540 maxdna 544 maxcna 560);
        at!(subnqn 768 fabrics 1792 psd 2048 vendor 3072);
    }

    #[test]
    fn namespace_offsets_are_the_specifications() {
        macro_rules! at {
            ($($field:ident $at:literal)*) => { $( assert_eq!(offset_of!(IdentifyNamespace, $field), $at); )* };
        }
        at!(ncap 8 nuse 16 nsfeat 24 nlbaf 25 flbas 26 mc 27 dpc 28 dps 29 nmic 30 rescap 31 fpi 32 dlfeat 33 nawun 34);
        at!(nawupf 36 nacwu 38 nabsn 40 nabo 42 nabspf 44 noiob 46 nvmcap 48 npwg 64 npwa 66 npdg 68 npda 70 nows 72);
        at!(mssrl 74 mcl 76 msrc 80 anagrpid 92 nsattr 99 nvmsetid 100 endgid 102 nguid 104 eui64 120 lbaf 128);
        at!(vendor 384);
        assert_eq!(offset_of!(NvmIdentifyController, dmsl), 8);
        assert_eq!(offset_of!(PowerStateDescriptor, actp), 20);
    }

    #[test]
    fn the_current_format_is_found_in_the_upper_half_too() {
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.lbaf[0x21].lbads = 12;
        namespace.flbas = 0x41;
        assert_eq!(namespace.current_format().block_size(), Some(4096));
        assert_eq!(LbaFormat { lbads: 8, ..Default::default() }.block_size(), None);
        assert_eq!(LbaFormat { lbads: 255, ..Default::default() }.block_size(), None);
    }

    #[test]
    fn text_is_padded_cut_and_read_back() {
        let mut field = [0; 8];
        fill_ascii(&mut field, "a b\u{e9}");
        assert_eq!(field, *b"a b?    ");
        assert_eq!(ascii(&field), Some("a b?"));
        fill_ascii(&mut field, "longer than eight");
        assert_eq!(field, *b"longer t");
        assert_eq!(ascii(&[0xff, 0x20]), None);
        assert_eq!(ascii(&[0; 4]), Some(""));
    }

    #[test]
    fn golden_descriptors() {
        let list = NamespaceIdentifiers::encode(&[
            (NamespaceIdType::EUI64, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (NamespaceIdType::CSI, &[0]),
        ])
        .unwrap();
        assert_eq!(list[..18], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 1, 0, 0, 0, 0]);
        let seen: Vec<_> = NamespaceIdentifiers::new(&list).collect();
        assert_eq!(
            seen,
            [(NamespaceIdType::EUI64, &[1, 2, 3, 4, 5, 6, 7, 8][..]), (NamespaceIdType::CSI, &[0][..])]
        );
        assert!(NamespaceIdentifiers::encode(&[(NamespaceIdType::UUID, &[])]).is_none());
        assert!(NamespaceIdentifiers::encode(&[(NamespaceIdType::UUID, &[0; 255][..]); 17]).is_none());
    }

    proptest! {
        #[test]
        fn any_list_is_walked_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let length: usize = NamespaceIdentifiers::new(&bytes).map(|(_, id)| id.len() + 4).sum();
            prop_assert!(length <= bytes.len());
        }

        #[test]
        fn any_format_byte_has_a_format(flbas: u8, lbads: u8) {
            let mut namespace = IdentifyNamespace::new_zeroed();
            namespace.flbas = flbas;
            namespace.lbaf.fill(LbaFormat { lbads, ..Default::default() });
            let _ = namespace.current_format().block_size();
        }
    }
}
