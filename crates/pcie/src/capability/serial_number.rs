//! Device Serial Number (PCIe 6.0 §7.9.3): an EUI-64, lower dword first.

use crate::config::ConfigBuilder;
use crate::spec::capability::EXTENDED_SERIAL_NUMBER;

pub(crate) fn add(builder: &mut ConfigBuilder, number: u64) {
    let offset = builder.extended(EXTENDED_SERIAL_NUMBER, 1, 12);
    builder.set(offset + 4, number as u32);
    builder.set(offset + 8, (number >> 32) as u32);
}
