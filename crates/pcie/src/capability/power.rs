//! PCI Power Management (PCIe 6.0 §7.5.2): D0 and D3hot, nothing optional.

use crate::config::ConfigBuilder;
use crate::spec::capability::{NO_SOFT_RESET, POWER_CONTROL, POWER_MANAGEMENT, POWER_STATE};

/// Version 3 of the interface, no D1, D2 or PME.
const CAPABILITIES: u16 = 0x0003;

pub(crate) fn add(builder: &mut ConfigBuilder) -> u16 {
    let offset = builder.capability(POWER_MANAGEMENT, CAPABILITIES, 8);
    builder.set(offset + POWER_CONTROL, NO_SOFT_RESET);
    builder.writable(offset + POWER_CONTROL, POWER_STATE);
    offset
}
