//! What can borrow: the native NVMe driver and the NBD server in front of it.
//!
//! Cores without I/O, driven by the card that composes them (`node`). Their state lies in the ledger. They know
//! nothing of frames, streams, tags or fabric addresses: the driver sees registers of its function and the
//! bus addresses of its own memory.

mod access;
mod block;
pub mod nbd;
pub mod nvme;

pub use access::{Access, AccessError, AccessId};
pub use block::{BlockError, BlockKind, BlockRequest, Geometry};

#[cfg(test)]
mod testing;
