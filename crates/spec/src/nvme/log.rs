//! Log pages (NVMe 2.0 §5.16.1).

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::{bitfields, open_values};

open_values! {
    /// Log Page Identifier (LID).
    pub struct LogPageId(u8) {
        /// Supported Log Pages.
        SUPPORTED_LOG_PAGES = 0x00;
        /// Error Information: [`ErrorLogEntry`].
        ERROR_INFORMATION = 0x01;
        /// SMART / Health Information: [`SmartLog`].
        SMART = 0x02;
        /// Firmware Slot Information: [`FirmwareSlotLog`].
        FIRMWARE_SLOT = 0x03;
        /// Changed Namespace List: up to 1024 namespace identifiers.
        CHANGED_NAMESPACE_LIST = 0x04;
        /// Commands Supported and Effects: [`CommandsSupportedAndEffects`].
        COMMANDS_SUPPORTED_AND_EFFECTS = 0x05;
        /// Device Self-test.
        DEVICE_SELF_TEST = 0x06;
        /// Telemetry Host-Initiated.
        TELEMETRY_HOST_INITIATED = 0x07;
        /// Telemetry Controller-Initiated.
        TELEMETRY_CONTROLLER_INITIATED = 0x08;
        /// Endurance Group Information.
        ENDURANCE_GROUP_INFORMATION = 0x09;
        /// Predictable Latency Per NVM Set.
        PREDICTABLE_LATENCY_PER_NVM_SET = 0x0a;
        /// Predictable Latency Event Aggregate.
        PREDICTABLE_LATENCY_EVENT_AGGREGATE = 0x0b;
        /// Asymmetric Namespace Access.
        ASYMMETRIC_NAMESPACE_ACCESS = 0x0c;
        /// Persistent Event Log.
        PERSISTENT_EVENT = 0x0d;
        /// LBA Status Information (NVM command set).
        LBA_STATUS_INFORMATION = 0x0e;
        /// Endurance Group Event Aggregate.
        ENDURANCE_GROUP_EVENT_AGGREGATE = 0x0f;
        /// Media Unit Status.
        MEDIA_UNIT_STATUS = 0x10;
        /// Supported Capacity Configuration List.
        SUPPORTED_CAPACITY_CONFIGURATIONS = 0x11;
        /// Feature Identifiers Supported and Effects.
        FEATURES_SUPPORTED_AND_EFFECTS = 0x12;
        /// NVMe-MI Commands Supported and Effects.
        NVME_MI_SUPPORTED_AND_EFFECTS = 0x13;
        /// Command and Feature Lockdown.
        COMMAND_AND_FEATURE_LOCKDOWN = 0x14;
        /// Boot Partition.
        BOOT_PARTITION = 0x15;
        /// Rotational Media Information.
        ROTATIONAL_MEDIA_INFORMATION = 0x16;
        /// Discovery.
        DISCOVERY = 0x70;
        /// Reservation Notification.
        RESERVATION_NOTIFICATION = 0x80;
        /// Sanitize Status.
        SANITIZE_STATUS = 0x81;
    }
}

/// One entry of the Error Information log page, 64 bytes (NVMe 2.0 §5.16.1.2). The newest stands first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Counts the errors of the controller's life; 0 marks an unused entry.
    pub error_count: U64,
    /// Submission Queue ID, 0xffff where the error belongs to no command.
    pub sq_id: U16,
    /// Command ID, 0xffff where the error belongs to no command.
    pub cid: U16,
    /// Status field in 15:1, phase tag in bit 0, as in the completion.
    pub status_and_phase: U16,
    /// Parameter Error Location: byte in 7:0, bit in 10:8 of the command; 0xffff where it is unknown.
    pub parameter_location: U16,
    /// First LBA with the error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor specific log page, or 0.
    pub vendor_page: u8,
    /// Transport Type.
    pub transport: u8,
    /// Command Set Indicator, in later versions; reserved in 2.0.
    pub csi: u8,
    /// Opcode of the command, in later versions; reserved in 2.0.
    pub opcode: u8,
    /// Command specific information.
    pub command_specific: U64,
    /// Transport type specific information.
    pub transport_specific: U16,
    /// Reserved.
    pub reserved: [u8; 22],
}

const _: () = assert!(size_of::<ErrorLogEntry>() == 64);

/// SMART / Health Information, 512 bytes (NVMe 2.0 §5.16.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning: [`CriticalWarning`].
    pub critical_warning: u8,
    /// Composite Temperature in kelvins.
    pub composite_temperature: U16,
    /// Available Spare in percent.
    pub available_spare: u8,
    /// Available Spare Threshold in percent.
    pub available_spare_threshold: u8,
    /// Percentage Used; may exceed 100, saturates at 255.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    /// Reserved.
    pub reserved_7: [u8; 25],
    /// Data Units Read, in thousands of 512-byte units, rounded up.
    pub data_units_read: U128,
    /// Data Units Written, in thousands of 512-byte units, rounded up.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_read_commands: U128,
    /// Host Write Commands.
    pub host_write_commands: U128,
    /// Controller Busy Time in minutes.
    pub controller_busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_time: U32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_time: U32,
    /// Temperature Sensors 1 to 8 in kelvins, 0 where there is none.
    pub temperature_sensors: [U16; 8],
    /// Thermal Management Temperature 1 and 2 Transition Counts.
    pub thermal_transitions: [U32; 2],
    /// Total Time For Thermal Management Temperature 1 and 2 in seconds.
    pub thermal_times: [U32; 2],
    /// Reserved.
    pub reserved_232: [u8; 280],
}

const _: () = assert!(size_of::<SmartLog>() == 512);

bitfields! {
    /// Critical Warning of [`SmartLog`].
    pub struct CriticalWarning(u8) {
        /// Available spare is below its threshold.
        spare, with_spare: bool = 0;
        /// A temperature is beyond its threshold.
        temperature, with_temperature: bool = 1;
        /// Reliability is degraded.
        reliability, with_reliability: bool = 2;
        /// All media are read only.
        read_only, with_read_only: bool = 3;
        /// The backup of volatile memory failed.
        volatile_backup, with_volatile_backup: bool = 4;
        /// The persistent memory region is read only or unreliable.
        persistent_memory, with_persistent_memory: bool = 5;
    }
}

/// Firmware Slot Information, 512 bytes (NVMe 2.0 §5.16.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Active Firmware Info: the running slot in 2:0, the one of the next reset in 6:4 (0 for the same).
    pub active: u8,
    /// Reserved.
    pub reserved_1: [u8; 7],
    /// Firmware Revision for Slots 1 to 7, ASCII; zeros for an empty slot.
    pub revisions: [[u8; 8]; 7],
    /// Reserved.
    pub reserved_64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);

/// One result of the Device Self-test log page, 28 bytes (NVMe 2.0 §5.16.1.7).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SelfTestResult {
    /// Result in 3:0 (0 passed, 7 a segment failed, 0xf not used), Self-test Code in 7:4.
    pub status: u8,
    /// The segment that failed.
    pub segment: u8,
    /// Which of the fields below are valid: NSID (0), FLBA (1), SCT (2), SC (3).
    pub valid: u8,
    /// Reserved.
    pub reserved_3: u8,
    /// Power On Hours when the test ended.
    pub power_on_hours: U64,
    /// Namespace of the failure.
    pub nsid: U32,
    /// Failing LBA.
    pub lba: U64,
    /// Status Code Type of the failure.
    pub sct: u8,
    /// Status Code of the failure.
    pub sc: u8,
    /// Vendor specific.
    pub vendor: [u8; 2],
}

const _: () = assert!(size_of::<SelfTestResult>() == 28);

impl SelfTestResult {
    /// Result of an entry that is not used.
    pub const UNUSED: u8 = 0xf;
}

/// Device Self-test, 564 bytes (NVMe 2.0 §5.16.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SelfTestLog {
    /// The test under way: 0 none, 1 short, 2 extended.
    pub current: u8,
    /// How far it is, in percent.
    pub completion: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// Results, the newest first.
    pub results: [SelfTestResult; 20],
}

const _: () = assert!(size_of::<SelfTestLog>() == 564);

/// Commands Supported and Effects, 4096 bytes (NVMe 2.0 §5.16.1.6): one [`CommandEffects`] per opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandsSupportedAndEffects {
    /// Admin commands, by opcode.
    pub admin: [U32; 256],
    /// I/O commands, by opcode.
    pub io: [U32; 256],
    /// Reserved.
    pub reserved: [u8; 2048],
}

const _: () = assert!(size_of::<CommandsSupportedAndEffects>() == 4096);

bitfields! {
    /// What one command does beside its work (NVMe 2.0 §5.16.1.6).
    pub struct CommandEffects(u32) {
        /// Command Supported.
        csupp, with_csupp: bool = 0;
        /// Logical Block Content Change.
        lbcc, with_lbcc: bool = 1;
        /// Namespace Capability Change.
        ncc, with_ncc: bool = 2;
        /// Namespace Inventory Change.
        nic, with_nic: bool = 3;
        /// Controller Capability Change.
        ccc, with_ccc: bool = 4;
        /// Command Submission and Execution: 0 no restriction, 1 alone on its namespace, 2 alone on the controller.
        cse, with_cse: u8 = 18:16;
        /// UUID Selection Supported.
        uuid_selection, with_uuid_selection: bool = 19;
        /// Command Scope: namespace (bit 0), controller (1), NVM set (2), endurance group (3), domain (4), subsystem
        /// (5).
        csp, with_csp: u16 = 31:20;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use proptest::prelude::*;

    #[test]
    fn offsets_are_the_specifications() {
        assert_eq!(offset_of!(ErrorLogEntry, lba), 16);
        assert_eq!(offset_of!(ErrorLogEntry, transport), 29);
        assert_eq!(offset_of!(ErrorLogEntry, command_specific), 32);
        assert_eq!(offset_of!(SmartLog, composite_temperature), 1);
        assert_eq!(offset_of!(SmartLog, data_units_read), 32);
        assert_eq!(offset_of!(SmartLog, error_log_entries), 176);
        assert_eq!(offset_of!(SmartLog, warning_temperature_time), 192);
        assert_eq!(offset_of!(SmartLog, temperature_sensors), 200);
        assert_eq!(offset_of!(SmartLog, thermal_transitions), 216);
        assert_eq!(offset_of!(FirmwareSlotLog, revisions), 8);
        assert_eq!(offset_of!(CommandsSupportedAndEffects, io), 1024);
    }

    #[test]
    fn golden_effects() {
        let write = CommandEffects(0).with_csupp(true).with_lbcc(true);
        assert_eq!(write, CommandEffects(0x3));
        assert_eq!(CommandEffects(0).with_cse(2).with_csp(1), CommandEffects(0x0012_0000));
        assert_eq!(CriticalWarning(0).with_read_only(true), CriticalWarning(0x08));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_log_page(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Ok((log, _)) = SmartLog::ref_from_prefix(&bytes) {
                prop_assert_eq!(log.as_bytes(), &bytes[..512]);
            } else {
                prop_assert!(bytes.len() < 512);
            }
        }
    }
}
