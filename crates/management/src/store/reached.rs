//! Up to which entry the log was durable: so it is noticed when a log has lost whole records at its end, which cannot
//! be seen in the log itself, and which somebody has heard of.
//!
//! The file has two places of 16 bytes, which are written in turn: index, CRC-32C of that, and zeros. Of the valid ones
//! the greater counts. It is written after the log has become durable, so it is never ahead of it, and not made durable
//! itself except when the manager ends in order and with each snapshot: that would cost as much as the log. So a file
//! that was cut, or put in place of a newer one, is noticed however the process ended; after the loss of the machine's
//! power only as far as the system had written this file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::StoreError;

const PLACE_LEN: usize = 16;

/// The file.
#[derive(Debug)]
pub(super) struct Reached {
    path: PathBuf,
    file: File,
    index: u64,
    /// Which place is written next.
    next: u64,
}

impl Reached {
    /// Opens it. What cannot be read counts as nothing: the log decides.
    pub(super) fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("reached");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| StoreError::File { path: path.clone(), what: "opened", error })?;
        let places = [0, 1].map(|place| read(&file, place).unwrap_or(0));
        let next = u64::from(places[0] >= places[1]);
        Ok(Self { path, file, index: places[0].max(places[1]), next })
    }

    /// Up to there the log was durable.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// The log is durable up to there. That this cannot be written is no error: it only is not noticed then.
    pub(super) fn tell(&mut self, index: u64) {
        self.index = index;
        let mut place = [0; PLACE_LEN];
        let index = index.to_le_bytes();
        place[..8].copy_from_slice(&index);
        place[8..12].copy_from_slice(&sum(&index));
        if self.file.write_all_at(&place, self.next * PLACE_LEN as u64).is_ok() {
            self.next = 1 - self.next;
        }
    }

    /// Makes it durable.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        let refused = |error| StoreError::File { path: self.path.clone(), what: "made durable", error };
        self.file.sync_all().map_err(refused)
    }
}

fn read(file: &File, place: u64) -> Option<u64> {
    let mut bytes = [0; PLACE_LEN];
    file.read_exact_at(&mut bytes, place * PLACE_LEN as u64).ok()?;
    let (index, rest) = bytes.split_first_chunk()?;
    (sum(index) == rest[..4]).then_some(u64::from_le_bytes(*index))
}

fn sum(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).to_le_bytes()
}
