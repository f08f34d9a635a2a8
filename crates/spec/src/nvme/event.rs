//! Asynchronous events: dword 0 of the completion of an Asynchronous Event Request (NVMe 2.0 §5.2.1).

use super::log::LogPageId;
use crate::fields::{bitfields, open_values};

bitfields! {
    /// What happened, and the log page whose reading rearms the event.
    pub struct AsyncEvent(u32) {
        /// Event type: an [`AsyncEventType`] code.
        event_type, with_event_type: u8 = 2:0;
        /// Event information, whose meaning depends on the type.
        info, with_info: u8 = 15:8;
        /// Log Page Identifier.
        log_page, with_log_page: u8 = 23:16;
    }
}

impl AsyncEvent {
    /// Error: write to a doorbell that does not exist.
    pub const INVALID_DOORBELL_REGISTER: Self = Self::error(0x00);
    /// Error: a doorbell value that is out of range or unchanged.
    pub const INVALID_DOORBELL_VALUE: Self = Self::error(0x01);
    /// Error: diagnostic failure.
    pub const DIAGNOSTIC_FAILURE: Self = Self::error(0x02);
    /// Error: persistent internal error.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self::error(0x03);
    /// Error: transient internal error.
    pub const TRANSIENT_INTERNAL_ERROR: Self = Self::error(0x04);
    /// Error: a firmware image could not be loaded.
    pub const FIRMWARE_LOAD_ERROR: Self = Self::error(0x05);
    /// SMART / Health: NVM subsystem reliability is degraded.
    pub const SUBSYSTEM_RELIABILITY: Self = Self::health(0x00);
    /// SMART / Health: a temperature threshold was crossed.
    pub const TEMPERATURE_THRESHOLD: Self = Self::health(0x01);
    /// SMART / Health: spare capacity fell below its threshold.
    pub const SPARE_BELOW_THRESHOLD: Self = Self::health(0x02);
    /// Notice: namespace attributes changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self = Self::notice(0x00, LogPageId::CHANGED_NAMESPACE_LIST);
    /// Notice: firmware activation starts.
    pub const FIRMWARE_ACTIVATION_STARTING: Self = Self::notice(0x01, LogPageId::FIRMWARE_SLOT);
    /// Notice: the controller-initiated telemetry log changed.
    pub const TELEMETRY_LOG_CHANGED: Self = Self::notice(0x02, LogPageId::TELEMETRY_CONTROLLER_INITIATED);
    /// Notice: asymmetric namespace access changed.
    pub const ANA_CHANGE: Self = Self::notice(0x03, LogPageId::ASYMMETRIC_NAMESPACE_ACCESS);

    /// An event of one type; bits that do not belong to the fields stay clear.
    #[must_use]
    pub const fn new(event_type: AsyncEventType, info: u8, log_page: LogPageId) -> Self {
        Self(0).with_event_type(event_type.0 & 7).with_info(info).with_log_page(log_page.0)
    }

    const fn error(info: u8) -> Self {
        Self::new(AsyncEventType::ERROR_STATUS, info, LogPageId::ERROR_INFORMATION)
    }

    const fn health(info: u8) -> Self {
        Self::new(AsyncEventType::SMART_HEALTH_STATUS, info, LogPageId::SMART)
    }

    const fn notice(info: u8, log_page: LogPageId) -> Self {
        Self::new(AsyncEventType::NOTICE, info, log_page)
    }
}

open_values! {
    /// Values of [`AsyncEvent::event_type`].
    pub struct AsyncEventType(u8) {
        /// Error status.
        ERROR_STATUS = 0;
        /// SMART / Health status.
        SMART_HEALTH_STATUS = 1;
        /// Notice.
        NOTICE = 2;
        /// I/O command set specific status.
        IO_COMMAND_SET = 6;
        /// Vendor specific.
        VENDOR = 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_events() {
        assert_eq!(AsyncEvent::INVALID_DOORBELL_VALUE, AsyncEvent(0x0001_0100));
        assert_eq!(AsyncEvent::TEMPERATURE_THRESHOLD, AsyncEvent(0x0002_0101));
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED, AsyncEvent(0x0004_0002));
    }
}
