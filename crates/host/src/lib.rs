//! What can borrow: the native NVMe driver, the NBD server in front of it, and virtual machines over vfio-user.
//!
//! Cores without I/O, driven by the card that composes them (`node`). Their state lies in the ledger. They know
//! nothing of frames, streams, tags or fabric addresses: the driver sees registers of its function and the
//! bus addresses of its own memory.
//!
//! A borrowing card with an NBD edge drives both in one loop: bytes arrive ([`nbd::Server::handle_received`]), their
//! requests go to the driver while it has room ([`nbd::Server::poll_request`], [`nvme::Driver::submit`]), its accesses
//! to the stream ([`nvme::Driver::poll_access`]), the function's answers and memory writes back to the driver, its
//! completions back to the server. One commit, then everything polled is acted on and [`nbd::Server::send_spans`] is
//! sent.
//!
//! A slot of a virtual machine is a [`vfio_user::Session`]: what the guest does to its function comes out as requests,
//! and the guest's own driver does the rest.

mod access;
mod block;
pub mod nbd;
pub mod nvme;
pub mod vfio_user;

pub use access::{Access, AccessError, AccessId};
pub use block::{BlockError, BlockKind, BlockRequest, Geometry};

#[cfg(test)]
mod testing;
