//! How the log and the snapshots lie in files: pure functions over bytes.
//!
//! A log is a header and records behind each other. What is appended and made durable at once is one record, so that
//! only the last one can be torn, and nothing of a torn one was acknowledged. All numbers are little-endian, all sums
//! CRC-32C (RFC 3720 Appendix B.4).
//!
//! | at | header | at | record |
//! |---|---|---|---|
//! | 0 | magic `cwmanlog` | 0 | magic `cwrc` |
//! | 8 | version, 4 bytes | 4 | length of the body, 4 bytes |
//! | 12 | zero, 4 bytes | 8 | index of its first entry |
//! | 16 | fabric, 16 bytes | 16 | number of its entries, 4 bytes |
//! | 32 | index of the entry before the first record | 20 | sum of the body, 4 bytes |
//! | 40 | chain up to there | 24 | chain: a number that stands for all records before |
//! | 48 | zero, 4 bytes | 32 | sum of the 32 bytes before, 4 bytes |
//! | 52 | sum of the 52 bytes before, 4 bytes | 36 | body: a JSON list of entries, and blanks |
//! | | | | magic `end\n` |
//!
//! Each record begins at a multiple of 8 and ends at one: what of it is in a sector are 8 bytes at least.
//!
//! A snapshot has magic `cwmansnp`, version, zero, fabric, index, chain, length of its body (8 bytes), sums of body and
//! of all before (4 bytes each), and the state as JSON.
//!
//! **Torn or damaged.** A power loss leaves of the last record a beginning, or all of it with parts that were never
//! written, which read as zeros, in whole sectors. Such a tail is cut. A complete record holds no sector of zeros, so
//! any other damage, also of the last record, is an error that says where it is: it may have been acknowledged. That a
//! file was cut where a record ends, nobody can see in it; [`read`] is told up to where it has to reach, if the caller
//! knows.

mod bytes;
mod damage;
mod read;
mod snapshot;
#[cfg(test)]
mod tests;
mod write;

pub use damage::Damage;
pub use read::{Base, Recovered, read};
pub use snapshot::{read_snapshot, snapshot};
pub use write::{HEADER_LEN, Writer};

/// Of logs and snapshots.
pub const VERSION: u32 = 1;
/// The longest body of a record: [`crate::machine::BATCH_MAX`] entries with all that a node may report.
pub const BODY_MAX: usize = 64 << 20;

const LOG_MAGIC: [u8; 8] = *b"cwmanlog";
const SNAPSHOT_MAGIC: [u8; 8] = *b"cwmansnp";
const RECORD_MAGIC: [u8; 4] = *b"cwrc";
const END_MAGIC: [u8; 4] = *b"end\n";
const RECORD_HEAD_LEN: usize = 36;
/// What a disk writes as a whole, or not.
const SECTOR: usize = 512;

/// The number that stands for all records up to one with this head, which has the number of those before it.
fn chain(head: &[u8]) -> u64 {
    base::hash::fnv1a(head)
}
