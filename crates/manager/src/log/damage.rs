use core::fmt;

use super::VERSION;
use crate::model::FabricId;
use crate::state::Corruption;

/// Why a log or a snapshot is not read. Nothing of it may be written over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Damage {
    /// It is no log, or no snapshot, of a manager.
    NotOurs {
        /// What it should be.
        what: &'static str,
    },
    /// It was written by a newer version.
    Newer {
        /// Its version.
        version: u32,
    },
    /// It is another fabric's.
    OtherFabric {
        /// Whose.
        found: FabricId,
    },
    /// It ends within its header, which is written as a whole.
    Short {
        /// After so many bytes.
        len: usize,
    },
    /// Bytes are not what was written.
    Flipped {
        /// Where what is damaged begins.
        offset: usize,
        /// What it is.
        what: &'static str,
    },
    /// A record is whole, but is not the one that followed those before it.
    Chain {
        /// Where it begins.
        offset: usize,
        /// The index that it says.
        index: u64,
        /// The index that it should have.
        next: u64,
    },
    /// What is in a record cannot be read.
    Unreadable {
        /// Where it begins.
        offset: usize,
        /// Why.
        why: String,
    },
    /// An entry does not fit to those before.
    Entry {
        /// Where its record begins.
        offset: usize,
        /// The entry's index.
        index: u64,
        /// Why.
        why: Corruption,
    },
    /// The log does not begin where the state is that it was given.
    Begin {
        /// Where it begins: behind this entry.
        log: u64,
        /// The last entry of the state.
        state: u64,
    },
    /// It ends before what was acknowledged.
    Missing {
        /// Its last entry.
        last: u64,
        /// What was acknowledged.
        acknowledged: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs { what } => write!(f, "this is no {what} of a manager"),
            Self::Newer { version } => {
                write!(f, "it is of version {version}, and this program knows {VERSION}: use a newer program")
            }
            Self::OtherFabric { found } => write!(f, "it is of another fabric, {found}"),
            Self::Short { len } => write!(f, "it ends within its header, after {len} bytes"),
            Self::Flipped { offset, what } => {
                write!(f, "at byte {offset}: {what} is damaged; restore a backup")
            }
            Self::Chain { offset, index, next } => {
                write!(f, "at byte {offset}: a record of entry {index} where the one of entry {next} belongs")
            }
            Self::Unreadable { offset, why } => {
                write!(f, "at byte {offset}: a record that cannot be read: {why}")
            }
            Self::Entry { offset, index, why } => {
                write!(f, "at byte {offset}: entry {index} does not fit: {why}")
            }
            Self::Begin { log, state } => {
                write!(f, "the log begins after entry {log}, and the snapshot is of entry {state}")
            }
            Self::Missing { last, acknowledged } => {
                write!(f, "it ends with entry {last}, but entry {acknowledged} was acknowledged")
            }
        }
    }
}

impl core::error::Error for Damage {}
