//! Advanced Error Reporting (PCIe 6.0 §7.8.4). Error logs are sticky: they survive a function-level reset.

use crate::config::ConfigBuilder;
use crate::spec::capability::EXTENDED_AER;

/// Uncorrectable error status, from the start of the capability.
pub const UNCORRECTABLE_STATUS: u16 = 0x04;
/// Uncorrectable error mask.
pub const UNCORRECTABLE_MASK: u16 = 0x08;
/// Uncorrectable error severity: 1 is fatal.
pub const UNCORRECTABLE_SEVERITY: u16 = 0x0c;
/// Correctable error status.
pub const CORRECTABLE_STATUS: u16 = 0x10;
/// Correctable error mask.
pub const CORRECTABLE_MASK: u16 = 0x14;
/// Capabilities and control; First Error Pointer in bits 4:0.
pub const CONTROL: u16 = 0x18;
/// The header of the TLP that caused the first error: four dwords, the first header byte in bits 31:24.
pub const HEADER_LOG: u16 = 0x1c;

/// Poisoned TLP received.
pub const POISONED: u32 = 1 << 12;
/// Completion timeout.
pub const COMPLETION_TIMEOUT: u32 = 1 << 14;
/// Completer abort.
pub const COMPLETER_ABORT: u32 = 1 << 15;
/// Unexpected completion.
pub const UNEXPECTED_COMPLETION: u32 = 1 << 16;
/// Malformed TLP.
pub const MALFORMED: u32 = 1 << 18;
/// Unsupported request.
pub const UNSUPPORTED_REQUEST: u32 = 1 << 20;
/// Uncorrectable internal error.
pub const INTERNAL: u32 = 1 << 22;

/// All uncorrectable errors but those of optional features (ECRC, ACS, AtomicOps, prefixes).
const UNCORRECTABLE: u32 = 0x0057_f030;
/// Data link protocol, surprise down, flow control, overflow, malformed, internal: fatal after reset.
const SEVERITY_INITIAL: u32 = 0x0046_2030;
/// Receiver, bad TLP, bad DLLP, rollover, timer, advisory non-fatal, internal, header log overflow.
const CORRECTABLE: u32 = 0xf1c1;
/// Advisory non-fatal, internal and header log overflow are masked after reset.
const CORRECTABLE_MASK_INITIAL: u32 = 0xe000;
/// Up to the end of the TLP prefix log.
const BYTES: u16 = 0x48;
const VERSION: u8 = 2;

pub(crate) fn add(builder: &mut ConfigBuilder) -> u16 {
    let offset = builder.extended(EXTENDED_AER, VERSION, BYTES);
    builder.clearable(offset + UNCORRECTABLE_STATUS, UNCORRECTABLE);
    builder.set(offset + UNCORRECTABLE_MASK, INTERNAL);
    builder.writable(offset + UNCORRECTABLE_MASK, UNCORRECTABLE);
    builder.set(offset + UNCORRECTABLE_SEVERITY, SEVERITY_INITIAL);
    builder.writable(offset + UNCORRECTABLE_SEVERITY, UNCORRECTABLE);
    builder.clearable(offset + CORRECTABLE_STATUS, CORRECTABLE);
    builder.set(offset + CORRECTABLE_MASK, CORRECTABLE_MASK_INITIAL);
    builder.writable(offset + CORRECTABLE_MASK, CORRECTABLE);
    builder.variable(offset + CONTROL);
    for dword in 0..4 {
        builder.variable(offset + HEADER_LOG + 4 * dword);
    }
    for register in (UNCORRECTABLE_STATUS..HEADER_LOG + 16).step_by(4) {
        builder.sticky(offset + register, u32::MAX);
    }
    offset
}
