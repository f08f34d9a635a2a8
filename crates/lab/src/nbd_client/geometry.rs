//! What a server offers: size, abilities, block sizes.

use std::fmt;

/// What the server offers, from `NBD_INFO_EXPORT` and `NBD_INFO_BLOCK_SIZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the export in bytes.
    pub size: u64,
    /// What the server can do.
    pub flags: TransmissionFlags,
    /// Sizes that requests must keep to.
    pub block_sizes: BlockSizes,
}

/// Block size constraints in bytes; 1, 4096 and [`DEFAULT_MAXIMUM_LENGTH`](super::DEFAULT_MAXIMUM_LENGTH) where the
/// server states none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this.
    pub minimum: u32,
    /// The smallest size at which the server works well.
    pub preferred: u32,
    /// The largest payload of a read or write.
    pub maximum: u32,
}

/// The transmission flags of the export (`NBD §Transmission flags`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TransmissionFlags(pub u16);

impl TransmissionFlags {
    /// `NBD_FLAG_READ_ONLY`.
    pub fn read_only(self) -> bool {
        self.0 & 1 << 1 != 0
    }
    /// `NBD_FLAG_SEND_FLUSH`.
    pub fn flush(self) -> bool {
        self.0 & 1 << 2 != 0
    }
    /// `NBD_FLAG_SEND_FUA`.
    pub fn fua(self) -> bool {
        self.0 & 1 << 3 != 0
    }
    /// `NBD_FLAG_SEND_TRIM`.
    pub fn trim(self) -> bool {
        self.0 & 1 << 5 != 0
    }
    /// `NBD_FLAG_SEND_WRITE_ZEROES`.
    pub fn write_zeroes(self) -> bool {
        self.0 & 1 << 6 != 0
    }
    /// `NBD_FLAG_CAN_MULTI_CONN`: a flush on one connection covers what was answered on another.
    pub fn multi_conn(self) -> bool {
        self.0 & 1 << 8 != 0
    }
}

impl fmt::Debug for TransmissionFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransmissionFlags({:#06x})", self.0)
    }
}
