use base::ledger::{Coded, PageIndex};

/// What a block request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Read into the pages.
    Read,
    /// Write the pages.
    Write,
    /// Make every completed write durable.
    Flush,
    /// The range may lose its content.
    Trim,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// It need not keep its space on the medium.
        deallocate: bool,
    },
}

impl Coded for BlockKind {
    const ALL: &'static [Self] = &[
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteZeroes { deallocate: false },
        Self::WriteZeroes { deallocate: true },
    ];
    const NAMES: &'static [&'static str] = &["Read", "Write", "Flush", "Trim", "WriteZeroes", "Deallocate"];

    fn code(self) -> u8 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 2,
            Self::Trim => 3,
            Self::WriteZeroes { deallocate: false } => 4,
            Self::WriteZeroes { deallocate: true } => 5,
        }
    }
}

/// A request to a drive, at most [`BlockRequest::MAX_BYTES`] of data long.
#[derive(Clone, Copy, Debug)]
pub struct BlockRequest<'a> {
    /// Comes back with the result. Chosen by whoever requests, unique among those under way.
    pub id: u32,
    /// What to do.
    pub kind: BlockKind,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks; zero only for a flush.
    pub blocks: u32,
    /// Force unit access: complete only when durable.
    pub fua: bool,
    /// The pages of a read or a write, each full but the last. The requester keeps its references until completion;
    /// those of a write may be kept longer, so that it does not change their content while anyone else has a reference.
    pub pages: &'a [PageIndex],
}

impl BlockRequest<'_> {
    /// Most bytes of one read or write.
    pub const MAX_BYTES: u32 = 128 << 10;
    /// Most pages of one read or write.
    pub const MAX_PAGES: usize = Self::MAX_BYTES as usize / base::ledger::PAGE_SIZE;
}

/// Why a block request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// Outside of the drive, or not of its block size.
    Invalid,
    /// The medium is full.
    NoSpace,
    /// The drive is read-only.
    ReadOnly,
    /// The medium failed, or the drive stayed absent for too long.
    Io,
}

/// What a drive is, once it is usable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether there is a volatile write cache, so that a flush means something.
    pub volatile_cache: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_codes() {
        for (code, kind) in BlockKind::ALL.iter().enumerate() {
            assert_eq!(usize::from(kind.code()), code);
        }
    }
}
