//! How much a function may do in a second: a token bucket.
//!
//! A command is charged when it is taken from its queue, so what waits lies in the host's memory and holds nothing
//! here. Its bytes are known only when it has arrived; they may take the bucket below zero, and nothing is taken until
//! that is paid back. The limit is in the ledger, the bucket is not: a new card begins with an empty one, so no card
//! death adds to what a function may do.

use base::Instant;
use base::ledger::{Cell, Journal, Layout};
use core::fmt;
use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

const NANOS: i128 = 1_000_000_000;
/// What a bucket can hold: the tokens of this time.
const DEPTH_NANOS: i128 = 10_000_000;
/// Commands of unknown length that may be on their way while there is a limit of bytes.
pub(super) const UNKNOWN_MAX: usize = 4;

/// A limit of one function. There is no limit of zero: a function that may do nothing is not lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Layout, Serialize, Deserialize)]
pub struct Limit {
    /// Commands a second, 0 for any.
    iops: u64,
    /// Bytes a second, 0 for any.
    bytes_per_s: u64,
}

/// A limit of zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitError {
    /// Of which quantity, as configurations write it.
    pub key: &'static str,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a limit of 0 for {} would stop the function: leave it out, or give a number above 0",
            self.key
        )
    }
}

impl core::error::Error for LimitError {}

impl Limit {
    /// No limit.
    pub const NONE: Self = Self { iops: 0, bytes_per_s: 0 };

    /// A limit of I/O commands and of bytes moved by them, each a second; `None` for any number.
    pub const fn new(iops: Option<u64>, bytes_per_s: Option<u64>) -> Result<Self, LimitError> {
        match (iops, bytes_per_s) {
            (Some(0), _) => Err(LimitError { key: "iops" }),
            (_, Some(0)) => Err(LimitError { key: "bytes_per_s" }),
            (None, None) => Ok(Self::NONE),
            (Some(iops), None) => Ok(Self { iops, bytes_per_s: 0 }),
            (None, Some(bytes_per_s)) => Ok(Self { iops: 0, bytes_per_s }),
            (Some(iops), Some(bytes_per_s)) => Ok(Self { iops, bytes_per_s }),
        }
    }

    /// Commands a second.
    pub const fn iops(self) -> Option<u64> {
        if self.iops == 0 { None } else { Some(self.iops) }
    }

    /// Bytes a second.
    pub const fn bytes_per_s(self) -> Option<u64> {
        if self.bytes_per_s == 0 { None } else { Some(self.bytes_per_s) }
    }
}

/// The limit as the owner last changed it. All zeroes: as in the configuration.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct LimitCells {
    iops: Cell<u64>,
    bytes_per_s: Cell<u64>,
    changed: Cell<u64>,
}

/// Tokens of both kinds, in billionths. Volatile.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    commands: i128,
    bytes: i128,
    filled: Option<Instant>,
}

impl Bucket {
    fn fill(&mut self, now: Instant, limit: Limit) {
        let passed =
            i128::from(self.filled.map_or(0, |filled| now.as_nanos().saturating_sub(filled.as_nanos())));
        self.filled = Some(now.max(self.filled.unwrap_or(now)));
        let fill = |level: i128, rate: u64| {
            let most = (i128::from(rate) * DEPTH_NANOS).max(NANOS);
            (level + i128::from(rate) * passed).min(most)
        };
        self.commands = fill(self.commands, limit.iops);
        self.bytes = fill(self.bytes, limit.bytes_per_s);
    }

    /// Nanoseconds until a command may be taken; 0 for now.
    fn wait(&self, limit: Limit) -> u64 {
        let wait = |missing: i128, rate: u64| {
            if rate == 0 || missing <= 0 {
                0
            } else {
                u64::try_from((missing + i128::from(rate) - 1) / i128::from(rate)).unwrap_or(u64::MAX)
            }
        };
        wait(NANOS - self.commands, limit.iops).max(wait(1 - self.bytes, limit.bytes_per_s))
    }
}

/// The limit of one function, and what it has left of it.
pub(super) struct RateLimit<'m> {
    cells: &'m LimitCells,
    journal: Journal<'m>,
    /// The limit until the owner says otherwise.
    configured: Limit,
    bucket: Bucket,
}

impl<'m> RateLimit<'m> {
    pub(super) fn new(cells: &'m LimitCells, journal: Journal<'m>, configured: Limit) -> Self {
        Self { cells, journal, configured, bucket: Bucket::default() }
    }

    /// What the function may do from now on. Lasts as long as the ledger.
    pub(super) fn set(&mut self, now: Instant, limit: Limit) {
        self.bucket.fill(now, self.limit());
        self.cells.iops.set(self.journal, limit.iops);
        self.cells.bytes_per_s.set(self.journal, limit.bytes_per_s);
        self.cells.changed.set(self.journal, 1);
        self.bucket.commands = self.bucket.commands.min(NANOS);
        self.bucket.bytes = self.bucket.bytes.min(0);
    }

    /// What the function may do.
    pub(super) fn limit(&self) -> Limit {
        match self.cells.changed.get() {
            0 => self.configured,
            _ => Limit { iops: self.cells.iops.get(), bytes_per_s: self.cells.bytes_per_s.get() },
        }
    }

    /// Whether a command may be taken from an I/O queue; `unknown` are on their way.
    pub(super) fn may_take(&mut self, now: Instant, unknown: usize) -> bool {
        let limit = self.limit();
        if limit == Limit::NONE {
            return true;
        }
        self.bucket.fill(now, limit);
        self.bucket.wait(limit) == 0 && (limit.bytes_per_s == 0 || unknown < UNKNOWN_MAX)
    }

    /// A command was taken from an I/O queue.
    pub(super) fn charge_command(&mut self) {
        if self.limit().iops != 0 {
            self.bucket.commands -= NANOS;
        }
    }

    /// A command turned out to move so many bytes.
    pub(super) fn charge_bytes(&mut self, bytes: u32) {
        if self.limit().bytes_per_s != 0 {
            self.bucket.bytes -= i128::from(bytes) * NANOS;
        }
    }

    /// When a command that waits may be taken. Never in the past, or whoever waits for it would spin.
    pub(super) fn timeout(&self, now: Instant) -> Option<Instant> {
        let (limit, mut bucket) = (self.limit(), self.bucket);
        if limit == Limit::NONE {
            return None;
        }
        bucket.fill(now, limit);
        match bucket.wait(limit) {
            // What holds it back is not the limit.
            0 => None,
            wait => Some(now + core::time::Duration::from_nanos(wait)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_refused_by_name() {
        assert_eq!(Limit::new(Some(0), None).unwrap_err().key, "iops");
        assert_eq!(Limit::new(Some(1), Some(0)).unwrap_err().key, "bytes_per_s");
        assert_eq!(Limit::new(None, None), Ok(Limit::NONE));
        assert_eq!(Limit::new(Some(5), None).unwrap().iops(), Some(5));
    }

    #[test]
    fn a_bucket_fills_with_time_and_no_further_than_its_depth() {
        let limit = Limit::new(Some(1000), Some(1 << 20)).unwrap();
        let mut bucket = Bucket::default();
        bucket.fill(Instant::from_nanos(5), limit);
        assert_eq!(bucket.wait(limit), 1_000_000, "a new one is empty");
        bucket.fill(Instant::from_nanos(1_000_005), limit);
        assert_eq!(bucket.wait(limit), 0);
        bucket.fill(Instant::from_nanos(9_000_000_000), limit);
        assert_eq!(bucket.commands, 10 * NANOS);
        bucket.bytes -= i128::from(1 << 20) * NANOS;
        assert!(bucket.wait(limit) > 980_000_000, "a debt is paid back before anything else");
        bucket.fill(Instant::from_nanos(1), limit);
        assert_eq!(bucket.filled, Some(Instant::from_nanos(9_000_000_000)), "time does not run back");
    }
}
