//! Features: identifiers and the layouts of their values (NVMe 2.0 §5.27.1).

use super::command::zeros_based;
use crate::fields::{bitfields, open_values};

open_values! {
    /// Feature Identifier (FID).
    pub struct FeatureId(u8) {
        /// Arbitration: [`Arbitration`].
        ARBITRATION = 0x01;
        /// Power Management: [`PowerManagement`].
        POWER_MANAGEMENT = 0x02;
        /// LBA Range Type (NVM command set).
        LBA_RANGE_TYPE = 0x03;
        /// Temperature Threshold: [`TemperatureThreshold`].
        TEMPERATURE_THRESHOLD = 0x04;
        /// Error Recovery (NVM command set): [`ErrorRecovery`].
        ERROR_RECOVERY = 0x05;
        /// Volatile Write Cache: [`VolatileWriteCache`].
        VOLATILE_WRITE_CACHE = 0x06;
        /// Number of Queues: [`NumberOfQueues`].
        NUMBER_OF_QUEUES = 0x07;
        /// Interrupt Coalescing: [`InterruptCoalescing`].
        INTERRUPT_COALESCING = 0x08;
        /// Interrupt Vector Configuration: [`InterruptVectorConfiguration`].
        INTERRUPT_VECTOR_CONFIGURATION = 0x09;
        /// Write Atomicity Normal (NVM command set): [`WriteAtomicity`].
        WRITE_ATOMICITY = 0x0a;
        /// Asynchronous Event Configuration: [`AsyncEventConfiguration`].
        ASYNC_EVENT_CONFIGURATION = 0x0b;
        /// Autonomous Power State Transition.
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0c;
        /// Host Memory Buffer.
        HOST_MEMORY_BUFFER = 0x0d;
        /// Timestamp: 8 bytes of data.
        TIMESTAMP = 0x0e;
        /// Keep Alive Timer: milliseconds, 0 for none.
        KEEP_ALIVE_TIMER = 0x0f;
        /// Host Controlled Thermal Management.
        HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10;
        /// Non-Operational Power State Config.
        NON_OPERATIONAL_POWER_STATE_CONFIG = 0x11;
        /// Read Recovery Level Config.
        READ_RECOVERY_LEVEL_CONFIG = 0x12;
        /// Predictable Latency Mode Config.
        PREDICTABLE_LATENCY_MODE_CONFIG = 0x13;
        /// Predictable Latency Mode Window.
        PREDICTABLE_LATENCY_MODE_WINDOW = 0x14;
        /// LBA Status Information Report Interval (NVM command set).
        LBA_STATUS_INFORMATION_REPORT_INTERVAL = 0x15;
        /// Host Behavior Support: 512 bytes of data.
        HOST_BEHAVIOR_SUPPORT = 0x16;
        /// Sanitize Config.
        SANITIZE_CONFIG = 0x17;
        /// Endurance Group Event Configuration.
        ENDURANCE_GROUP_EVENT_CONFIGURATION = 0x18;
        /// I/O Command Set Profile.
        IO_COMMAND_SET_PROFILE = 0x19;
        /// Spinup Control.
        SPINUP_CONTROL = 0x1a;
        /// Enhanced Controller Metadata.
        ENHANCED_CONTROLLER_METADATA = 0x7d;
        /// Controller Metadata.
        CONTROLLER_METADATA = 0x7e;
        /// Namespace Metadata.
        NAMESPACE_METADATA = 0x7f;
        /// Software Progress Marker.
        SOFTWARE_PROGRESS_MARKER = 0x80;
        /// Host Identifier: 8 or 16 bytes of data.
        HOST_IDENTIFIER = 0x81;
        /// Reservation Notification Mask.
        RESERVATION_NOTIFICATION_MASK = 0x82;
        /// Reservation Persistence.
        RESERVATION_PERSISTENCE = 0x83;
        /// Namespace Write Protection Config.
        NAMESPACE_WRITE_PROTECTION = 0x84;
        /// Boot Partition Write Protection Config.
        BOOT_PARTITION_WRITE_PROTECTION = 0x85;
    }
}

open_values! {
    /// Select (SEL) of Get Features (NVMe 2.0 §5.15).
    pub struct FeatureSelect(u8) {
        /// The value in effect.
        CURRENT = 0;
        /// The value a controller is made with.
        DEFAULT = 1;
        /// The value that survives a reset.
        SAVED = 2;
        /// No value but its [`FeatureCapabilities`].
        SUPPORTED_CAPABILITIES = 3;
    }
}

bitfields! {
    /// Dword 0 of the completion of Get Features with [`FeatureSelect::SUPPORTED_CAPABILITIES`].
    pub struct FeatureCapabilities(u32) {
        /// The feature can be saved.
        saveable, with_saveable: bool = 0;
        /// The feature has a value for each namespace.
        namespace_specific, with_namespace_specific: bool = 1;
        /// The feature can be changed.
        changeable, with_changeable: bool = 2;
    }
}

bitfields! {
    /// Arbitration.
    pub struct Arbitration(u32) {
        /// Arbitration Burst: 2^n commands at a time, 7 for no limit.
        burst, with_burst: u8 = 2:0;
        /// Low Priority Weight, less one.
        low, with_low: u8 = 15:8;
        /// Medium Priority Weight, less one.
        medium, with_medium: u8 = 23:16;
        /// High Priority Weight, less one.
        high, with_high: u8 = 31:24;
    }
}

bitfields! {
    /// Power Management.
    pub struct PowerManagement(u32) {
        /// Power State.
        ps, with_ps: u8 = 4:0;
        /// Workload Hint.
        wh, with_wh: u8 = 7:5;
    }
}

bitfields! {
    /// Temperature Threshold.
    pub struct TemperatureThreshold(u32) {
        /// Threshold in kelvins.
        tmpth, with_tmpth: u16 = 15:0;
        /// Sensor: 0 composite, 1 to 8 one sensor, 15 all (Set Features only).
        tmpsel, with_tmpsel: u8 = 19:16;
        /// Type: 0 over temperature, 1 under temperature.
        thsel, with_thsel: u8 = 21:20;
    }
}

bitfields! {
    /// Error Recovery.
    pub struct ErrorRecovery(u32) {
        /// Time Limited Error Recovery in units of 100 ms, 0 for no limit.
        tler, with_tler: u16 = 15:0;
        /// Deallocated or Unwritten Logical Block Error Enable.
        dulbe, with_dulbe: bool = 16;
    }
}

bitfields! {
    /// Volatile Write Cache.
    pub struct VolatileWriteCache(u32) {
        /// Volatile Write Cache Enable.
        wce, with_wce: bool = 0;
    }
}

bitfields! {
    /// Number of Queues: what is asked for, and in the completion's dword 0 what was allocated.
    pub struct NumberOfQueues(u32) {
        /// I/O submission queues, less one; 65535 is not legal.
        nsq0, with_nsq0: u16 = 15:0;
        /// I/O completion queues, less one; 65535 is not legal.
        ncq0, with_ncq0: u16 = 31:16;
    }
}

impl NumberOfQueues {
    /// From counts of I/O queues. Panics unless each is 1 to 65536.
    #[must_use]
    pub fn from_counts(submission: u32, completion: u32) -> Self {
        Self(0).with_nsq0(zeros_based(submission)).with_ncq0(zeros_based(completion))
    }

    /// Count of I/O submission queues, 1 to 65536.
    #[must_use]
    pub fn submission_queues(self) -> u32 {
        u32::from(self.nsq0()) + 1
    }

    /// Count of I/O completion queues, 1 to 65536.
    #[must_use]
    pub fn completion_queues(self) -> u32 {
        u32::from(self.ncq0()) + 1
    }
}

bitfields! {
    /// Interrupt Coalescing.
    pub struct InterruptCoalescing(u32) {
        /// Aggregation Threshold: completions to wait for, less one.
        thr, with_thr: u8 = 7:0;
        /// Aggregation Time in units of 100 µs, 0 for none.
        time, with_time: u8 = 15:8;
    }
}

bitfields! {
    /// Interrupt Vector Configuration.
    pub struct InterruptVectorConfiguration(u32) {
        /// Interrupt Vector.
        iv, with_iv: u16 = 15:0;
        /// Coalescing Disable.
        cd, with_cd: bool = 16;
    }
}

bitfields! {
    /// Write Atomicity Normal.
    pub struct WriteAtomicity(u32) {
        /// Disable Normal: AWUN and NAWUN need not be kept, AWUPF and NAWUPF must.
        dn, with_dn: bool = 0;
    }
}

bitfields! {
    /// Asynchronous Event Configuration: which events may complete a request.
    pub struct AsyncEventConfiguration(u32) {
        /// SMART / Health Critical Warnings, bit for bit as in the log page.
        smart, with_smart: u8 = 7:0;
        /// Namespace Attribute Notices.
        namespace_attribute, with_namespace_attribute: bool = 8;
        /// Firmware Activation Notices.
        firmware_activation, with_firmware_activation: bool = 9;
        /// Telemetry Log Notices.
        telemetry_log, with_telemetry_log: bool = 10;
        /// Asymmetric Namespace Access Change Notices.
        ana_change, with_ana_change: bool = 11;
        /// Predictable Latency Event Aggregate Log Change Notices.
        predictable_latency, with_predictable_latency: bool = 12;
        /// LBA Status Information Alert Notices.
        lba_status, with_lba_status: bool = 13;
        /// Endurance Group Event Aggregate Log Change Notices.
        endurance_group, with_endurance_group: bool = 14;
        /// Normal NVM Subsystem Shutdown.
        subsystem_shutdown, with_subsystem_shutdown: bool = 15;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        assert_eq!(NumberOfQueues::from_counts(4, 8), NumberOfQueues(0x0007_0003));
        assert_eq!(NumberOfQueues(0xffff_0000).completion_queues(), 65536);
        assert_eq!(InterruptVectorConfiguration(0x1_0003).iv(), 3);
        assert!(InterruptVectorConfiguration(0x1_0003).cd());
        assert_eq!(AsyncEventConfiguration(0).with_namespace_attribute(true), AsyncEventConfiguration(0x100));
        assert_eq!(FeatureCapabilities(0).with_changeable(true), FeatureCapabilities(4));
        assert_eq!(TemperatureThreshold(0x0010_0157).tmpth(), 343);
        assert_eq!(format!("{:?}", FeatureId(0xc0)), "FeatureId(0xc0)");
    }
}
