//! Constants of the PCI Express Base Specification 6.0. A header dword is read most significant byte first.

/// Smallest number of bytes a header has (three dwords).
pub const HEADER_BYTES_MIN: usize = 12;
/// Largest number of bytes a header has (four dwords).
pub const HEADER_BYTES_MAX: usize = 16;
/// Bytes in a dword, the unit of the Length field.
pub const DWORD_BYTES: usize = 4;
/// Largest value of the Length field, written as 0 (PCIe 6.0 §2.2.2).
pub const LENGTH_DW_MAX: u16 = 1024;
/// Largest payload, and largest read (PCIe 6.0 §2.2.2).
pub const PAYLOAD_BYTES_MAX: usize = LENGTH_DW_MAX as usize * DWORD_BYTES;
/// Largest Byte Count of a completion, written as 0 (PCIe 6.0 §2.2.9).
pub const BYTE_COUNT_MAX: u16 = 4096;
/// "Requests must not specify an Address/Length combination that causes a Memory Space access to cross a 4-KB
/// boundary" (PCIe 6.0 §2.2.7).
pub const REQUEST_BOUNDARY_BYTES: u64 = 4096;
/// "For Addresses below 4 GB, Requesters must use the 32-bit format" (PCIe 6.0 §2.2.4.1).
pub const ADDRESS_64_MIN: u64 = 1 << 32;
/// Bytes that one data credit stands for (PCIe 6.0 §2.6.1).
pub const DATA_CREDIT_BYTES: usize = 16;
/// Number of 10-bit tags (PCIe 6.0 §2.2.6.2).
pub const TAG_COUNT: u16 = 1024;
/// Largest traffic class (PCIe 6.0 §2.2.6.6).
pub const TRAFFIC_CLASS_MAX: u8 = 7;
/// Mask of the four byte enables of a dword (PCIe 6.0 §2.2.5).
pub const BYTE_ENABLES_ALL: u8 = 0xf;
/// Mask of the Lower Address field of a completion (PCIe 6.0 §2.2.9).
pub const LOWER_ADDRESS_MASK: u8 = 0x7f;

/// Values of the first header byte: Fmt in bits 7:5, Type in 4:0 (PCIe 6.0 §2.2.1, table of Fmt and Type field
/// encodings).
pub mod fmt_type {
    /// Set where a payload follows (bit 1 of Fmt).
    pub const WITH_DATA: u8 = 0x40;
    /// Set where the header has four dwords (bit 0 of Fmt).
    pub const FOUR_DW: u8 = 0x20;
    /// Set where no header follows that has a length: a prefix, or a reserved format (bit 2 of Fmt).
    pub const NO_HEADER: u8 = 0x80;
    /// Memory read, 32-bit address.
    pub const MEMORY_READ_32: u8 = 0x00;
    /// Memory read, 64-bit address.
    pub const MEMORY_READ_64: u8 = 0x20;
    /// Memory write, 32-bit address.
    pub const MEMORY_WRITE_32: u8 = 0x40;
    /// Memory write, 64-bit address.
    pub const MEMORY_WRITE_64: u8 = 0x60;
    /// Configuration read, type 0.
    pub const CONFIG_READ_0: u8 = 0x04;
    /// Configuration write, type 0.
    pub const CONFIG_WRITE_0: u8 = 0x44;
    /// Configuration read, type 1.
    pub const CONFIG_READ_1: u8 = 0x05;
    /// Configuration write, type 1.
    pub const CONFIG_WRITE_1: u8 = 0x45;
    /// Completion without data.
    pub const COMPLETION: u8 = 0x0a;
    /// Completion with data.
    pub const COMPLETION_DATA: u8 = 0x4a;
    /// Message without data, routing 000b; bits 2:0 hold the routing.
    pub const MESSAGE: u8 = 0x30;
    /// Message with data, routing 000b; bits 2:0 hold the routing.
    pub const MESSAGE_DATA: u8 = 0x70;
    /// The routing bits of a message type (PCIe 6.0 §2.2.8).
    pub const MESSAGE_ROUTING: u8 = 0x07;
}

/// Fields of the first header dword in non-flit mode (PCIe 6.0 §2.2.1.1).
pub mod dword0 {
    /// Shift of Fmt and Type.
    pub const FMT_TYPE_SHIFT: u32 = 24;
    /// T9, bit 9 of the tag.
    pub const TAG_9: u32 = 1 << 23;
    /// Shift of the traffic class (three bits).
    pub const TRAFFIC_CLASS_SHIFT: u32 = 20;
    /// T8, bit 8 of the tag.
    pub const TAG_8: u32 = 1 << 19;
    /// Attr\[2\], ID-based ordering.
    pub const ATTRIBUTE_2: u32 = 1 << 18;
    /// Reserved; was the lightweight notification bit.
    pub const RESERVED: u32 = 1 << 17;
    /// TH: a processing hint is present.
    pub const PROCESSING_HINT: u32 = 1 << 16;
    /// TD: a digest follows the payload.
    pub const DIGEST: u32 = 1 << 15;
    /// EP: the payload is poisoned.
    pub const POISONED: u32 = 1 << 14;
    /// Shift of Attr\[1:0\], relaxed ordering and no snoop.
    pub const ATTRIBUTE_SHIFT: u32 = 12;
    /// Shift of the address type (two bits).
    pub const ADDRESS_TYPE_SHIFT: u32 = 10;
    /// The Length field.
    pub const LENGTH_MASK: u32 = 0x3ff;
}

/// Fields of the second and third dword of a completion (PCIe 6.0 §2.2.9).
pub mod completion {
    /// Shift of the status (three bits) in the second dword.
    pub const STATUS_SHIFT: u32 = 13;
    /// BCM, which only PCI-X completers may set.
    pub const BYTE_COUNT_MODIFIED: u32 = 1 << 12;
    /// The Byte Count field.
    pub const BYTE_COUNT_MASK: u32 = 0xfff;
    /// The reserved bit of the third dword, above Lower Address.
    pub const RESERVED: u32 = 1 << 7;
}

/// Fields of the third dword of a configuration request (PCIe 6.0 §2.2.7).
pub mod config_request {
    /// Extended and plain register number, which together are the byte offset of a dword.
    pub const REGISTER_MASK: u32 = 0xffc;
    /// Bits that must be zero.
    pub const RESERVED: u32 = 0xf003;
}

/// Registers of the type 0 header and their bits (PCIe 6.0 §7.5.1). Offsets in bytes.
pub mod header {
    /// Bytes of configuration space of a function.
    pub const CONFIG_BYTES: usize = 4096;
    /// Vendor id (15:0) and device id (31:16).
    pub const ID: u16 = 0x00;
    /// Command (15:0) and status (31:16).
    pub const COMMAND: u16 = 0x04;
    /// Revision (7:0) and class code (31:8).
    pub const CLASS: u16 = 0x08;
    /// Cache line size, latency timer, header type, BIST.
    pub const CACHE_LINE: u16 = 0x0c;
    /// The first of six base address registers.
    pub const BAR_0: u16 = 0x10;
    /// Number of base address registers.
    pub const BAR_COUNT: usize = 6;
    /// Subsystem vendor id (15:0) and subsystem id (31:16).
    pub const SUBSYSTEM: u16 = 0x2c;
    /// Offset of the first capability (7:0).
    pub const CAPABILITIES_POINTER: u16 = 0x34;
    /// Interrupt line (7:0) and pin (15:8).
    pub const INTERRUPT: u16 = 0x3c;

    /// Memory Space Enable.
    pub const COMMAND_MEMORY_SPACE: u16 = 1 << 1;
    /// Bus Master Enable.
    pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
    /// Parity Error Response.
    pub const COMMAND_PARITY_ERROR_RESPONSE: u16 = 1 << 6;
    /// SERR# Enable.
    pub const COMMAND_SERR: u16 = 1 << 8;
    /// Interrupt Disable.
    pub const COMMAND_INTERRUPT_DISABLE: u16 = 1 << 10;
    /// Capabilities List.
    pub const STATUS_CAPABILITIES: u16 = 1 << 4;
    /// The status bits cleared by writing one: master data parity, target and master aborts, system error, parity.
    pub const STATUS_CLEARABLE: u16 = 0xf900;

    /// A BAR's type bits for a 64-bit address.
    pub const BAR_64: u32 = 0x4;
    /// A BAR's prefetchable bit.
    pub const BAR_PREFETCHABLE: u32 = 0x8;
    /// The bits of a memory BAR that are no address.
    pub const BAR_FLAGS: u32 = 0xf;
}

/// Capability ids (PCIe 6.0 §7.5.2, §7.5.3, §7.7.2) and the bounds of their chain.
pub mod capability {
    /// Offset of the first possible capability, behind the header.
    pub const FIRST: u16 = 0x40;
    /// End of the space the plain chain lives in.
    pub const END: u16 = 0x100;
    /// PCI Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x01;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSIX: u8 = 0x11;

    /// Offset of the first extended capability.
    pub const EXTENDED_FIRST: u16 = 0x100;
    /// Advanced Error Reporting (PCIe 6.0 §7.8.4).
    pub const EXTENDED_AER: u16 = 0x0001;
    /// Device Serial Number (PCIe 6.0 §7.9.3).
    pub const EXTENDED_SERIAL_NUMBER: u16 = 0x0003;
    /// Alternative Routing-ID Interpretation (PCIe 6.0 §7.8.8).
    pub const EXTENDED_ARI: u16 = 0x000e;
    /// Single Root I/O Virtualization (PCIe 6.0 §9.3.3).
    pub const EXTENDED_SRIOV: u16 = 0x0010;

    /// Shift of the link in an extended capability's first dword; 12 bits.
    pub const EXTENDED_NEXT_SHIFT: u32 = 20;

    /// Control and status register of Power Management (PCIe 6.0 §7.5.2.2), from its start.
    pub const POWER_CONTROL: u16 = 0x04;
    /// PowerState.
    pub const POWER_STATE: u32 = 0x3;
    /// PowerState of D0.
    pub const POWER_D0: u32 = 0;
    /// PowerState of D3hot.
    pub const POWER_D3_HOT: u32 = 3;
    /// No_Soft_Reset: going to D0 keeps the function's state.
    pub const NO_SOFT_RESET: u32 = 1 << 3;

    /// Device capabilities of PCI Express (PCIe 6.0 §7.5.3.3), from its start.
    pub const DEVICE_CAPABILITIES: u16 = 0x04;
    /// Role-Based Error Reporting.
    pub const ROLE_BASED_ERRORS: u32 = 1 << 15;
    /// Function Level Reset Capability.
    pub const FLR_CAPABLE: u32 = 1 << 28;
    /// Device control (15:0) and status (31:16) of PCI Express (PCIe 6.0 §7.5.3.4).
    pub const DEVICE_CONTROL: u16 = 0x08;
    /// Error reporting enables: correctable, non-fatal, fatal, unsupported request.
    pub const ERROR_ENABLES: u32 = 0xf;
    /// Enable Relaxed Ordering.
    pub const RELAXED_ORDERING: u32 = 1 << 4;
    /// Shift of Max_Payload_Size (three bits).
    pub const MAX_PAYLOAD_SHIFT: u32 = 5;
    /// Extended Tag Field Enable; in the device capabilities the same feature is bit 5.
    pub const EXTENDED_TAGS: u32 = 1 << 8;
    /// Extended Tag Field Supported, in the device capabilities.
    pub const EXTENDED_TAGS_SUPPORTED: u32 = 1 << 5;
    /// Enable No Snoop.
    pub const NO_SNOOP: u32 = 1 << 11;
    /// Shift of Max_Read_Request_Size (three bits).
    pub const MAX_READ_REQUEST_SHIFT: u32 = 12;
    /// Initiate Function Level Reset; always reads 0.
    pub const INITIATE_FLR: u32 = 1 << 15;
    /// The status bits that are cleared by writing one: errors detected.
    pub const DEVICE_STATUS_CLEARABLE: u32 = 0xf << 16;
    /// Link capabilities (PCIe 6.0 §7.5.3.6).
    pub const LINK_CAPABILITIES: u16 = 0x0c;
    /// ASPM Optionality Compliance.
    pub const ASPM_OPTIONALITY: u32 = 1 << 22;
    /// Link control (15:0) and status (31:16) (PCIe 6.0 §7.5.3.7).
    pub const LINK_CONTROL: u16 = 0x10;
    /// ASPM control, RCB, common clock, extended synch: the bits of link control an endpoint has.
    pub const LINK_CONTROL_WRITABLE: u32 = 0xcb;
    /// Device capabilities 2 (PCIe 6.0 §7.5.3.15).
    pub const DEVICE_CAPABILITIES_2: u16 = 0x24;
    /// Completion Timeout Disable Supported; in device control 2 the bit that disables it.
    pub const COMPLETION_TIMEOUT_DISABLE: u32 = 1 << 4;
    /// 10-Bit Tag Completer and Requester Supported.
    pub const TAG_10_BIT_SUPPORTED: u32 = 0x3 << 16;
    /// Device control 2 (PCIe 6.0 §7.5.3.16).
    pub const DEVICE_CONTROL_2: u16 = 0x28;
    /// IDO Request and Completion Enable.
    pub const ID_ORDERING_ENABLES: u32 = 0x3 << 8;
    /// 10-Bit Tag Requester Enable.
    pub const TAG_10_BIT_ENABLE: u32 = 1 << 12;
    /// Link capabilities 2 (PCIe 6.0 §7.5.3.18).
    pub const LINK_CAPABILITIES_2: u16 = 0x2c;
    /// Link control 2 (PCIe 6.0 §7.5.3.19).
    pub const LINK_CONTROL_2: u16 = 0x30;
    /// Bytes of the PCI Express capability, version 2.
    pub const EXPRESS_BYTES: u16 = 0x3c;

    /// MSI-X Enable, in the first dword of the capability (PCIe 6.0 §7.7.2.2).
    pub const MSIX_ENABLE: u32 = 1 << 31;
    /// Function Mask.
    pub const MSIX_FUNCTION_MASK: u32 = 1 << 30;
    /// What software writes there.
    pub const MSIX_CONTROL_WRITABLE: u32 = MSIX_ENABLE | MSIX_FUNCTION_MASK;
    /// Largest number of vectors.
    pub const MSIX_VECTORS_MAX: u16 = 2048;
    /// Table offset and BIR (PCIe 6.0 §7.7.2.3).
    pub const MSIX_TABLE: u16 = 0x04;
    /// PBA offset and BIR (PCIe 6.0 §7.7.2.4).
    pub const MSIX_PENDING: u16 = 0x08;
    /// Bytes of the MSI-X capability.
    pub const MSIX_BYTES: u16 = 0x0c;
}
