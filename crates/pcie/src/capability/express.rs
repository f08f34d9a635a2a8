//! The PCI Express capability of an endpoint (PCIe 6.0 §7.5.3), version 2, with function-level reset.

use crate::config::ConfigBuilder;
use crate::spec::capability as spec;

/// What the capability claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpressOptions {
    /// Largest payload the function takes: 128, 256, 512, 1024, 2048 or 4096 bytes.
    pub max_payload: u16,
    /// Link speed as the specification numbers it: 1 for 2.5 GT/s to 6 for 64 GT/s. A fabric in software has no
    /// such rate; it is what drivers and tools show.
    pub link_speed: u8,
    /// Lanes: 1, 2, 4, 8 or 16.
    pub link_width: u8,
}

impl Default for ExpressOptions {
    /// 4096 bytes, 16 GT/s, four lanes.
    fn default() -> Self {
        Self { max_payload: 4096, link_speed: 4, link_width: 4 }
    }
}

/// Version 2, endpoint.
const CAPABILITIES: u16 = 0x0002;
/// Max_Read_Request_Size after reset: 512 bytes (PCIe 6.0 §7.5.3.4).
const MAX_READ_REQUEST_INITIAL: u32 = 2;

pub(crate) fn add(builder: &mut ConfigBuilder, options: ExpressOptions) -> u16 {
    let ExpressOptions { max_payload, link_speed, link_width } = options;
    assert!(max_payload.is_power_of_two() && (128..=4096).contains(&max_payload), "payload {max_payload}");
    assert!((1..=6).contains(&link_speed), "link speed {link_speed}");
    assert!(link_width.is_power_of_two() && link_width <= 16, "link width {link_width}");
    let offset = builder.capability(spec::EXPRESS, CAPABILITIES, spec::EXPRESS_BYTES);
    add_device(builder, offset, max_payload);

    let link = u32::from(link_width) << 4 | u32::from(link_speed);
    builder.set(offset + spec::LINK_CAPABILITIES, spec::ASPM_OPTIONALITY | link);
    builder.set(offset + spec::LINK_CONTROL, link << 16);
    builder.writable(offset + spec::LINK_CONTROL, spec::LINK_CONTROL_WRITABLE);
    builder.sticky(offset + spec::LINK_CONTROL, spec::LINK_CONTROL_WRITABLE);
    // Bit n of the supported speeds stands for speed n.
    builder.set(offset + spec::LINK_CAPABILITIES_2, (2 << link_speed) - 2);
    builder.set(offset + spec::LINK_CONTROL_2, u32::from(link_speed));
    builder.writable(offset + spec::LINK_CONTROL_2, 0xf);
    builder.sticky(offset + spec::LINK_CONTROL_2, 0xf);
    offset
}

fn add_device(builder: &mut ConfigBuilder, offset: u16, max_payload: u16) {
    let payload_code = u32::from(max_payload).ilog2() - 7;
    let capabilities =
        payload_code | spec::EXTENDED_TAGS_SUPPORTED | spec::ROLE_BASED_ERRORS | spec::FLR_CAPABLE;
    builder.set(offset + spec::DEVICE_CAPABILITIES, capabilities);
    let initial = spec::RELAXED_ORDERING
        | spec::NO_SNOOP
        | spec::EXTENDED_TAGS
        | MAX_READ_REQUEST_INITIAL << spec::MAX_READ_REQUEST_SHIFT;
    builder.set(offset + spec::DEVICE_CONTROL, initial);
    let max_payload_field = 0x7 << spec::MAX_PAYLOAD_SHIFT;
    let writable = spec::ERROR_ENABLES
        | spec::RELAXED_ORDERING
        | spec::EXTENDED_TAGS
        | spec::NO_SNOOP
        | max_payload_field
        | 0x7 << spec::MAX_READ_REQUEST_SHIFT;
    builder.writable(offset + spec::DEVICE_CONTROL, writable);
    builder.clearable(offset + spec::DEVICE_CONTROL, spec::DEVICE_STATUS_CLEARABLE);
    builder.sticky(offset + spec::DEVICE_CONTROL, max_payload_field);

    let capabilities_2 = spec::COMPLETION_TIMEOUT_DISABLE | spec::TAG_10_BIT_SUPPORTED;
    builder.set(offset + spec::DEVICE_CAPABILITIES_2, capabilities_2);
    let writable_2 = spec::COMPLETION_TIMEOUT_DISABLE | spec::ID_ORDERING_ENABLES | spec::TAG_10_BIT_ENABLE;
    builder.writable(offset + spec::DEVICE_CONTROL_2, writable_2);
}
