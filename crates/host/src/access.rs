use base::Payload;

/// Names a read of a host until its completion. Chosen by whoever reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessId(pub u32);

/// An access of a host to its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Posted write to a BAR: at most a dword-multiple of 64 bytes inline, or part of a page.
    Write {
        /// Base address register.
        bar: u8,
        /// Byte offset in it, dword aligned.
        offset: u64,
        /// The bytes; whole dwords.
        payload: Payload,
    },
    /// Read of a BAR.
    Read {
        /// Comes back with the data.
        id: AccessId,
        /// Base address register.
        bar: u8,
        /// Byte offset in it.
        offset: u64,
        /// Bytes: 4 or 8.
        len: u8,
    },
    /// Read of a configuration dword.
    ConfigRead {
        /// Comes back with the data.
        id: AccessId,
        /// Byte offset, dword aligned.
        register: u16,
    },
    /// Write of a configuration dword. Non-posted: it is completed without data.
    ConfigWrite {
        /// Comes back when it is done.
        id: AccessId,
        /// Byte offset, dword aligned.
        register: u16,
        /// The value.
        value: u32,
        /// Which of its bytes.
        byte_enables: u8,
    },
}

impl Access {
    /// By what its completion is told; a write has none.
    #[must_use]
    pub fn id(&self) -> Option<AccessId> {
        match self {
            Self::Write { .. } => None,
            Self::Read { id, .. } | Self::ConfigRead { id, .. } | Self::ConfigWrite { id, .. } => Some(*id),
        }
    }
}

/// Why a read or a configuration write failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// Completed with Unsupported Request (PCIe 6.0 §2.2.9).
    UnsupportedRequest,
    /// Completed with Completer Abort or a poisoned payload.
    Aborted,
    /// No completion in time (PCIe 6.0 §2.8).
    Timeout,
}
