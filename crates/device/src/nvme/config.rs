//! What a drive is made for.

use core::fmt;

use base::ledger::Layout;
use serde::{Deserialize, Serialize};

use super::cells::{CONTROLLERS, NAMESPACES};
use super::limit::Limit;
use super::subsystem::record;

/// Most virtual functions of a drive.
pub const FUNCTIONS_MAX: u16 = CONTROLLERS as u16 - 1;

/// What a drive is made for: the same for every card on one ledger, and for every controller of the drive.
#[derive(Clone, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct Config {
    /// Logical blocks of the medium, at least 1, in units of `block_size`.
    pub blocks: u64,
    /// Bytes of a block: 512 or 4096. With 4096 no namespace has smaller blocks.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Whether completed writes may wait for a flush.
    pub cache: WriteCache,
    /// Whether there is a controller memory buffer: for native borrowers.
    pub memory_buffer: bool,
    /// Model number: ASCII, at most 40 characters are used.
    pub model: String,
    /// Firmware revision: ASCII, at most 8 characters are used.
    pub firmware: String,
    /// An EUI-64, never reused for another drive: what is kept of the drive bears it. Hosts see [`Config::shown_id`].
    pub unique_id: u64,
    /// Which life of its place in the ledger it has: another drive that comes to that place has a greater one.
    pub life: u64,
    /// Namespaces of a new drive, by number from 1 on. None: one that has all blocks, attached to controller 0, unless
    /// the drive [begins empty](Config::is_empty).
    pub namespaces: Vec<NamespaceConfig>,
    /// A new drive without namespaces has none: all of them come with functions that are made.
    pub is_empty: bool,
    /// Functions that were made since, beyond [`Config::functions`]. Cards on one ledger may differ in these: a new one
    /// makes the namespaces of those that have come, and deletes those of which the function has gone.
    pub made: Vec<MadeFunction>,
    /// Virtual functions that were declared, at most [`FUNCTIONS_MAX`]; each is a controller of its own, from 1 on. The
    /// physical function is controller 0.
    pub functions: u16,
    /// What each function may do until told otherwise.
    pub limit: Limit,
    /// Whether hosts may keep doorbells in their memory (Doorbell Buffer Config).
    pub doorbell_buffer: bool,
    /// What the medium has been told to deallocate reads as zeroes (DLFEAT), where it was deallocated.
    pub zeroes_deallocated: bool,
    /// The owner keeps what [`Subsystem::poll_persist`](super::Subsystem::poll_persist) gives over the ledger's end.
    /// Without it there is nothing to change for good: no namespace management, format, saved features or write
    /// uncorrectable.
    pub keeps_state: bool,
    /// What the owner has kept from an earlier life of the drive. Counts only while the ledger is new.
    pub saved: Option<Vec<u8>>,
}

/// What stands between a completed write and the medium, and who gets to see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub enum WriteCache {
    /// Nothing: the medium keeps every completed write, and no flush is ever needed.
    Absent,
    /// A volatile cache, for a host only that has said to keep what is not flushed
    /// ([`HOST_KEEPS`](spec::nvme::registers::HOST_KEEPS)). For any other there is none: each write is durable before
    /// it completes.
    Hidden,
    /// A volatile cache that every host sees, and may lose without being told.
    Shown {
        /// Stands for what holds the writes that are not flushed: a number that nothing else has that may hold less.
        /// With another one it is another drive to its hosts ([`Config::shown_id`]), so that none of them goes on as if
        /// nothing was lost.
        keeper: u64,
    },
}

/// A namespace of a new drive.
#[derive(Clone, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct NamespaceConfig {
    /// Logical blocks, at least 1, in units of `block_size`. Namespaces lie on the medium one behind the other.
    pub blocks: u64,
    /// Bytes of a block: 512 or 4096, not less than the drive's.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// It may be attached to several controllers.
    pub shared: bool,
    /// The controllers it is attached to.
    pub controllers: Vec<u16>,
}

/// A virtual function that a drive has got since it was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct MadeFunction {
    /// Its controller: beyond those of [`Config::functions`].
    pub controller: u16,
    /// What it has.
    pub namespace: MadeNamespace,
}

/// The namespace of a function that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub enum MadeNamespace {
    /// One of its own, which comes and goes with it.
    Own {
        /// First byte on the medium: it lies there, or there is none.
        start: u64,
        /// Bytes: whole blocks of the drive.
        bytes: u64,
    },
    /// One that may be attached to several controllers.
    Shared {
        /// Which.
        nsid: u32,
    },
}

impl Config {
    /// A writable namespace with a hidden cache and a controller memory buffer.
    pub fn new(blocks: u64, block_size: u32, unique_id: u64) -> Self {
        Self {
            blocks,
            block_size,
            read_only: false,
            cache: WriteCache::Hidden,
            memory_buffer: true,
            model: "Causeway NVMe".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            unique_id,
            life: 0,
            namespaces: Vec::new(),
            is_empty: false,
            made: Vec::new(),
            functions: 0,
            limit: Limit::NONE,
            doorbell_buffer: true,
            zeroes_deallocated: true,
            keeps_state: false,
            saved: None,
        }
    }

    /// The EUI-64 that hosts know the drive by: the first namespace's, the function's (Device Serial Number), and in
    /// hexadecimal the serial number; NGUIDs, UUIDs and the subsystem's name begin or end with it. The drive's own,
    /// unless hosts rely on a cache.
    pub fn shown_id(&self) -> u64 {
        match self.cache {
            WriteCache::Absent | WriteCache::Hidden => self.unique_id,
            WriteCache::Shown { keeper } => self.unique_id ^ keeper,
        }
    }

    /// Bytes of the medium.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size.into())
    }

    /// What makes no sense, if anything.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !is_block_size(self.block_size) {
            return Err(ConfigError::BlockSize(self.block_size));
        } else if !(1..=i64::MAX as u64 / 4096).contains(&self.blocks) {
            return Err(ConfigError::Blocks(self.blocks));
        } else if self.functions > FUNCTIONS_MAX {
            return Err(ConfigError::Functions(self.functions));
        } else if self.namespaces.len() > NAMESPACES {
            return Err(ConfigError::Namespaces(self.namespaces.len()));
        }
        let mut made: Vec<u16> = self.made.iter().map(|it| it.controller).collect();
        made.sort_unstable();
        let is_beyond = |it: &&u16| **it > self.functions && **it <= FUNCTIONS_MAX;
        let twice = made.windows(2).find(|two| two[0] == two[1]).map(|two| &two[0]);
        if let Some(controller) = made.iter().find(|it| !is_beyond(it)).or(twice) {
            return Err(ConfigError::MadeFunction(*controller));
        }
        let mut end = 0_u64;
        for (index, namespace) in self.namespaces.iter().enumerate() {
            let nsid = index as u32 + 1;
            let size = namespace.block_size;
            if !is_block_size(size) || size < self.block_size {
                return Err(ConfigError::NamespaceBlockSize { nsid, block_size: size });
            }
            let bytes = namespace.blocks.saturating_mul(size.into());
            end = end.next_multiple_of(4096).saturating_add(bytes);
            if bytes == 0 || end > self.bytes() {
                return Err(ConfigError::NamespaceTooLarge {
                    nsid,
                    missing: end.saturating_sub(self.bytes()),
                });
            } else if let Some(controller) = namespace.controllers.iter().find(|id| **id > self.functions) {
                return Err(ConfigError::NoSuchController { nsid, controller: *controller });
            } else if !namespace.shared && namespace.controllers.len() > 1 {
                return Err(ConfigError::NotShared { nsid });
            }
        }
        match &self.saved {
            Some(bytes) if !record::is_valid(bytes, self) => Err(ConfigError::Saved),
            _ => Ok(()),
        }
    }
}

fn is_block_size(bytes: u32) -> bool {
    matches!(bytes, 512 | 4096)
}

/// Why a drive cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// Blocks of this many bytes.
    BlockSize(u32),
    /// A medium of this many blocks.
    Blocks(u64),
    /// More virtual functions than a drive has.
    Functions(u16),
    /// A function was made as a controller that another one is, or that the drive cannot have.
    MadeFunction(u16),
    /// More namespaces than a drive has.
    Namespaces(usize),
    /// A namespace with blocks of a size that it cannot have on this drive.
    NamespaceBlockSize {
        /// Which.
        nsid: u32,
        /// Its bytes.
        block_size: u32,
    },
    /// A namespace without blocks, or behind the end of the medium.
    NamespaceTooLarge {
        /// Which.
        nsid: u32,
        /// Bytes that the medium lacks.
        missing: u64,
    },
    /// A namespace attached to a controller that the drive does not have.
    NoSuchController {
        /// Which namespace.
        nsid: u32,
        /// Which controller.
        controller: u16,
    },
    /// A namespace that is not shared is attached to several controllers.
    NotShared {
        /// Which.
        nsid: u32,
    },
    /// What was kept from an earlier life is damaged or belongs to another drive.
    Saved,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize(bytes) => write!(f, "blocks have 512 or 4096 bytes, not {bytes}"),
            Self::Blocks(blocks) => write!(f, "a drive has 1 to 2^51 blocks, not {blocks}"),
            Self::Functions(count) => {
                write!(f, "a drive has at most {FUNCTIONS_MAX} virtual functions, not {count}")
            }
            Self::MadeFunction(controller) => write!(
                f,
                "a function cannot be made as controller {controller}: another one is that, or the drive has none"
            ),
            Self::Namespaces(count) => {
                write!(f, "a drive has at most {NAMESPACES} namespaces, not {count}")
            }
            Self::NamespaceBlockSize { nsid, block_size } => write!(
                f,
                "namespace {nsid} cannot have blocks of {block_size} bytes: 512 or 4096, and not less than the drive's"
            ),
            Self::NamespaceTooLarge { nsid, missing: 0 } => write!(f, "namespace {nsid} has no blocks"),
            Self::NamespaceTooLarge { nsid, missing } => {
                write!(f, "namespace {nsid} is too large: the drive lacks {missing} bytes")
            }
            Self::NoSuchController { nsid, controller } => {
                write!(f, "namespace {nsid} names controller {controller}, which the drive does not have")
            }
            Self::NotShared { nsid } => {
                write!(f, "namespace {nsid} has several controllers but is not declared shared")
            }
            Self::Saved => write!(f, "the saved state of the drive is damaged or of another drive"),
        }
    }
}

impl core::error::Error for ConfigError {}
