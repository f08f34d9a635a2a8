//! Functions that the driver cannot use. They are somebody else's, and nothing they say is trusted.

/// Why a function cannot be used, whatever is done about it here. It is looked at again from time to time all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionError {
    /// Its class code is another one than that of an NVMe controller.
    Class(u32),
    /// Its MSI-X table lies in a BAR that no function has (PCIe 6.0 §7.7.2.3).
    VectorTable(u8),
    /// Controller Capabilities that no controller can have, or none that works with pages of 4 KiB (NVMe 2.0 §3.1.3.1).
    Capabilities(u64),
    /// Its controller memory buffer lies in a BAR that no function has, or reaches beyond what a BAR can have (NVMe 2.0
    /// §3.1.3.11).
    MemoryBuffer(u8),
}

impl core::fmt::Display for FunctionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Class(code) => write!(f, "its class code {code:06x} is not that of an NVMe controller"),
            Self::VectorTable(bar) => {
                write!(f, "it says that its MSI-X table lies in BAR {bar}, where none can be")
            }
            Self::Capabilities(cap) => {
                write!(f, "its capabilities {cap:#x} are none that a driver can work with")
            }
            Self::MemoryBuffer(bar) => {
                write!(
                    f,
                    "it says that its controller memory buffer lies at a place of BAR {bar} where none can be"
                )
            }
        }
    }
}

impl core::error::Error for FunctionError {}
