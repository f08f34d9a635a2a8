//! The status field of a completion (NVMe 2.0 §3.3.3.2.1): how a command ended, and whether to try again.

use core::fmt;

use crate::fields::open_values;

/// The status field without its phase tag: 15 bits, laid out as the specification does after dropping bit 0.
///
/// Status Code in bits 7:0, Status Code Type in 10:8, Command Retry Delay in 12:11, More in 13, Do Not Retry in 14.
/// The named constants have retry delay, More and Do Not Retry cleared; compare with [`Self::code`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

impl Status {
    const CODE_BITS: u16 = 0x07ff;
    const CRD_SHIFT: u32 = 11;
    const MORE: u16 = 1 << 13;
    const DNR: u16 = 1 << 14;

    /// A status from its two codes; only the low three bits of the type count.
    #[must_use]
    pub const fn new(sct: StatusCodeType, sc: u8) -> Self {
        // `From` is not const; both casts widen.
        #[allow(clippy::cast_lossless)]
        Self(((sct.0 & 7) as u16) << 8 | sc as u16)
    }

    /// A status from its 15 bits; bit 15 is dropped.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The 15 bits, in 14:0.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Status Code Type (SCT).
    #[must_use]
    pub const fn sct(self) -> StatusCodeType {
        StatusCodeType((self.0 >> 8) as u8 & 7)
    }

    /// Status Code (SC), whose meaning depends on [`Self::sct`].
    #[must_use]
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Command Retry Delay: 0 for none, else which of the controller's three delay times applies.
    #[must_use]
    pub const fn crd(self) -> u8 {
        (self.0 >> Self::CRD_SHIFT) as u8 & 3
    }

    /// More: the Error Information log page tells more about this command.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// Do Not Retry: the same command is expected to fail again.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// This status with Do Not Retry set.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// This status with More set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | Self::MORE)
    }

    /// This status with a Command Retry Delay; only its two low bits count.
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Self {
        // `From` is not const; the cast widens.
        #[allow(clippy::cast_lossless)]
        Self(self.0 & !(3 << Self::CRD_SHIFT) | ((crd & 3) as u16) << Self::CRD_SHIFT)
    }

    /// The type and code alone, to compare with a named constant.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & Self::CODE_BITS)
    }

    /// The command completed without error.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code().0 == 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "Status({name}")?,
            None => write!(f, "Status(sct {:#x}, sc {:#04x}", self.sct().0, self.sc())?,
        }
        if self.crd() != 0 {
            write!(f, ", crd {}", self.crd())?;
        }
        f.write_str(if self.more() { ", more" } else { "" })?;
        f.write_str(if self.dnr() { ", dnr)" } else { ")" })
    }
}

open_values! {
    /// Status Code Type: which table a status code is of.
    pub struct StatusCodeType(u8) {
        /// Generic Command Status.
        GENERIC = 0;
        /// Command Specific Status.
        COMMAND_SPECIFIC = 1;
        /// Media and Data Integrity Errors.
        MEDIA = 2;
        /// Path Related Status.
        PATH = 3;
        /// Vendor Specific.
        VENDOR = 7;
    }
}

/// Declares the named constants of [`Status`], by table, and the look-up of their names.
macro_rules! statuses {
    ( $( $sct:ident { $( $(#[$doc:meta])* $name:ident = $sc:literal; )* } )* ) => {
        impl Status {
            $( $( $(#[$doc])* pub const $name: Self = Self::new(StatusCodeType::$sct, $sc); )* )*

            /// Every status that has a name.
            pub const KNOWN: &'static [Self] = &[$( $( Self::$name, )* )*];

            /// The name of the type and code, if they have one here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                #[deny(unreachable_patterns)]
                match self.code() {
                    $( $( Self::$name => Some(stringify!($name)), )* )*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    GENERIC {
        /// Successful Completion.
        SUCCESS = 0x00;
        /// Invalid Command Opcode.
        INVALID_OPCODE = 0x01;
        /// Invalid Field in Command.
        INVALID_FIELD = 0x02;
        /// Command ID Conflict: the identifier is already in use.
        COMMAND_ID_CONFLICT = 0x03;
        /// Data Transfer Error: data or metadata could not be moved.
        DATA_TRANSFER_ERROR = 0x04;
        /// Commands Aborted due to Power Loss Notification.
        ABORTED_POWER_LOSS = 0x05;
        /// Internal Error.
        INTERNAL_ERROR = 0x06;
        /// Command Abort Requested.
        ABORT_REQUESTED = 0x07;
        /// Command Aborted due to SQ Deletion.
        ABORTED_SQ_DELETION = 0x08;
        /// Command Aborted due to Failed Fused Command.
        ABORTED_FAILED_FUSED = 0x09;
        /// Command Aborted due to Missing Fused Command.
        ABORTED_MISSING_FUSED = 0x0a;
        /// Invalid Namespace or Format.
        INVALID_NAMESPACE_OR_FORMAT = 0x0b;
        /// Command Sequence Error.
        COMMAND_SEQUENCE_ERROR = 0x0c;
        /// Invalid SGL Segment Descriptor.
        INVALID_SGL_SEGMENT_DESCRIPTOR = 0x0d;
        /// Invalid Number of SGL Descriptors.
        INVALID_SGL_DESCRIPTOR_COUNT = 0x0e;
        /// Data SGL Length Invalid.
        DATA_SGL_LENGTH_INVALID = 0x0f;
        /// Metadata SGL Length Invalid.
        METADATA_SGL_LENGTH_INVALID = 0x10;
        /// SGL Descriptor Type Invalid.
        SGL_DESCRIPTOR_TYPE_INVALID = 0x11;
        /// Invalid Use of Controller Memory Buffer.
        INVALID_USE_OF_CMB = 0x12;
        /// PRP Offset Invalid.
        PRP_OFFSET_INVALID = 0x13;
        /// Atomic Write Unit Exceeded.
        ATOMIC_WRITE_UNIT_EXCEEDED = 0x14;
        /// Operation Denied: lack of access rights.
        OPERATION_DENIED = 0x15;
        /// SGL Offset Invalid.
        SGL_OFFSET_INVALID = 0x16;
        /// Host Identifier Inconsistent Format.
        HOST_ID_INCONSISTENT_FORMAT = 0x18;
        /// Keep Alive Timer Expired.
        KEEP_ALIVE_EXPIRED = 0x19;
        /// Keep Alive Timeout Invalid.
        KEEP_ALIVE_INVALID = 0x1a;
        /// Command Aborted due to Preempt and Abort.
        ABORTED_PREEMPT = 0x1b;
        /// Sanitize Failed.
        SANITIZE_FAILED = 0x1c;
        /// Sanitize In Progress.
        SANITIZE_IN_PROGRESS = 0x1d;
        /// SGL Data Block Granularity Invalid.
        SGL_GRANULARITY_INVALID = 0x1e;
        /// Command Not Supported for Queue in CMB.
        NOT_SUPPORTED_FOR_QUEUE_IN_CMB = 0x1f;
        /// Namespace is Write Protected.
        NAMESPACE_WRITE_PROTECTED = 0x20;
        /// Command Interrupted: the host should try again.
        COMMAND_INTERRUPTED = 0x21;
        /// Transient Transport Error.
        TRANSIENT_TRANSPORT_ERROR = 0x22;
        /// Command Prohibited by Command and Feature Lockdown.
        PROHIBITED_BY_LOCKDOWN = 0x23;
        /// Admin Command Media Not Ready.
        ADMIN_MEDIA_NOT_READY = 0x24;
        /// LBA Out of Range.
        LBA_OUT_OF_RANGE = 0x80;
        /// Capacity Exceeded.
        CAPACITY_EXCEEDED = 0x81;
        /// Namespace Not Ready.
        NAMESPACE_NOT_READY = 0x82;
        /// Reservation Conflict.
        RESERVATION_CONFLICT = 0x83;
        /// Format In Progress.
        FORMAT_IN_PROGRESS = 0x84;
    }
    COMMAND_SPECIFIC {
        /// Completion Queue Invalid.
        COMPLETION_QUEUE_INVALID = 0x00;
        /// Invalid Queue Identifier.
        INVALID_QUEUE_ID = 0x01;
        /// Invalid Queue Size.
        INVALID_QUEUE_SIZE = 0x02;
        /// Abort Command Limit Exceeded.
        ABORT_LIMIT_EXCEEDED = 0x03;
        /// Asynchronous Event Request Limit Exceeded.
        ASYNC_EVENT_LIMIT_EXCEEDED = 0x05;
        /// Invalid Firmware Slot.
        INVALID_FIRMWARE_SLOT = 0x06;
        /// Invalid Firmware Image.
        INVALID_FIRMWARE_IMAGE = 0x07;
        /// Invalid Interrupt Vector.
        INVALID_INTERRUPT_VECTOR = 0x08;
        /// Invalid Log Page.
        INVALID_LOG_PAGE = 0x09;
        /// Invalid Format.
        INVALID_FORMAT = 0x0a;
        /// Firmware Activation Requires Conventional Reset.
        FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x0b;
        /// Invalid Queue Deletion: a completion queue still has submission queues.
        INVALID_QUEUE_DELETION = 0x0c;
        /// Feature Identifier Not Saveable.
        FEATURE_NOT_SAVEABLE = 0x0d;
        /// Feature Not Changeable.
        FEATURE_NOT_CHANGEABLE = 0x0e;
        /// Feature Not Namespace Specific.
        FEATURE_NOT_NAMESPACE_SPECIFIC = 0x0f;
        /// Firmware Activation Requires NVM Subsystem Reset.
        FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x10;
        /// Firmware Activation Requires Controller Level Reset.
        FIRMWARE_NEEDS_RESET = 0x11;
        /// Firmware Activation Requires Maximum Time Violation.
        FIRMWARE_NEEDS_MAX_TIME_VIOLATION = 0x12;
        /// Firmware Activation Prohibited.
        FIRMWARE_ACTIVATION_PROHIBITED = 0x13;
        /// Overlapping Range.
        OVERLAPPING_RANGE = 0x14;
        /// Namespace Insufficient Capacity.
        NAMESPACE_INSUFFICIENT_CAPACITY = 0x15;
        /// Namespace Identifier Unavailable.
        NAMESPACE_ID_UNAVAILABLE = 0x16;
        /// Namespace Already Attached.
        NAMESPACE_ALREADY_ATTACHED = 0x18;
        /// Namespace Is Private.
        NAMESPACE_IS_PRIVATE = 0x19;
        /// Namespace Not Attached.
        NAMESPACE_NOT_ATTACHED = 0x1a;
        /// Thin Provisioning Not Supported.
        THIN_PROVISIONING_NOT_SUPPORTED = 0x1b;
        /// Controller List Invalid.
        CONTROLLER_LIST_INVALID = 0x1c;
        /// Device Self-test In Progress.
        SELF_TEST_IN_PROGRESS = 0x1d;
        /// Boot Partition Write Prohibited.
        BOOT_PARTITION_WRITE_PROHIBITED = 0x1e;
        /// Invalid Controller Identifier.
        INVALID_CONTROLLER_ID = 0x1f;
        /// Invalid Secondary Controller State.
        INVALID_SECONDARY_CONTROLLER_STATE = 0x20;
        /// Invalid Number of Controller Resources.
        INVALID_CONTROLLER_RESOURCES = 0x21;
        /// Invalid Resource Identifier.
        INVALID_RESOURCE_ID = 0x22;
        /// Sanitize Prohibited While Persistent Memory Region is Enabled.
        SANITIZE_PROHIBITED_PMR = 0x23;
        /// ANA Group Identifier Invalid.
        ANA_GROUP_ID_INVALID = 0x24;
        /// ANA Attach Failed.
        ANA_ATTACH_FAILED = 0x25;
        /// Insufficient Capacity.
        INSUFFICIENT_CAPACITY = 0x26;
        /// Namespace Attachment Limit Exceeded.
        NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 0x27;
        /// Prohibition of Command Execution Not Supported.
        LOCKDOWN_NOT_SUPPORTED = 0x28;
        /// I/O Command Set Not Supported.
        IO_COMMAND_SET_NOT_SUPPORTED = 0x29;
        /// I/O Command Set Not Enabled.
        IO_COMMAND_SET_NOT_ENABLED = 0x2a;
        /// I/O Command Set Combination Rejected.
        IO_COMMAND_SET_COMBINATION_REJECTED = 0x2b;
        /// Invalid I/O Command Set.
        INVALID_IO_COMMAND_SET = 0x2c;
        /// Identifier Unavailable.
        IDENTIFIER_UNAVAILABLE = 0x2d;
        /// Conflicting Attributes (NVM command set).
        CONFLICTING_ATTRIBUTES = 0x80;
        /// Invalid Protection Information (NVM command set).
        INVALID_PROTECTION_INFORMATION = 0x81;
        /// Attempted Write to Read Only Range (NVM command set).
        WRITE_TO_READ_ONLY_RANGE = 0x82;
        /// Command Size Limit Exceeded (NVM command set).
        COMMAND_SIZE_LIMIT_EXCEEDED = 0x83;
    }
    MEDIA {
        /// Write Fault.
        WRITE_FAULT = 0x80;
        /// Unrecovered Read Error.
        UNRECOVERED_READ_ERROR = 0x81;
        /// End-to-end Guard Check Error.
        GUARD_CHECK_ERROR = 0x82;
        /// End-to-end Application Tag Check Error.
        APPLICATION_TAG_CHECK_ERROR = 0x83;
        /// End-to-end Reference Tag Check Error.
        REFERENCE_TAG_CHECK_ERROR = 0x84;
        /// Compare Failure.
        COMPARE_FAILURE = 0x85;
        /// Access Denied.
        ACCESS_DENIED = 0x86;
        /// Deallocated or Unwritten Logical Block.
        DEALLOCATED_OR_UNWRITTEN = 0x87;
        /// End-to-end Storage Tag Check Error.
        STORAGE_TAG_CHECK_ERROR = 0x88;
    }
    PATH {
        /// Internal Path Error.
        INTERNAL_PATH_ERROR = 0x00;
        /// Asymmetric Access Persistent Loss.
        ANA_PERSISTENT_LOSS = 0x01;
        /// Asymmetric Access Inaccessible.
        ANA_INACCESSIBLE = 0x02;
        /// Asymmetric Access Transition.
        ANA_TRANSITION = 0x03;
        /// Controller Pathing Error.
        CONTROLLER_PATHING_ERROR = 0x60;
        /// Host Pathing Error.
        HOST_PATHING_ERROR = 0x70;
        /// Command Aborted By Host.
        ABORTED_BY_HOST = 0x71;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bits() {
        assert_eq!(Status::INVALID_QUEUE_ID.bits(), 0x0101);
        assert_eq!(Status::COMPARE_FAILURE.with_dnr().bits(), 0x4285);
        assert_eq!(Status::COMMAND_INTERRUPTED.with_crd(3).with_more().bits(), 0x3821);
        assert!(Status::SUCCESS.with_more().is_success());
        assert!(!Status::INVALID_OPCODE.is_success());
        assert!(!Status::COMPLETION_QUEUE_INVALID.is_success());
    }

    #[test]
    fn debug_names_the_code_and_the_flags() {
        assert_eq!(format!("{:?}", Status::INVALID_FIELD.with_dnr()), "Status(INVALID_FIELD, dnr)");
        assert_eq!(format!("{:?}", Status::from_bits(0x28ff)), "Status(sct 0x0, sc 0xff, crd 1, more)");
    }

    proptest! {
        #[test]
        fn any_bits_round_trip(bits in 0u16..0x8000) {
            let status = Status::from_bits(bits);
            prop_assert_eq!(status.bits(), bits);
            let mut built = Status::new(status.sct(), status.sc()).with_crd(status.crd());
            if status.more() {
                built = built.with_more();
            }
            if status.dnr() {
                built = built.with_dnr();
            }
            prop_assert_eq!(built, status);
            let _ = format!("{status:?}");
        }
    }
}
