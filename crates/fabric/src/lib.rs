//! Fabric addresses, windows and grants: who reaches which memory, decided by address alone.
//!
//! Every card applies the same two translations at its own edge, and the middle none: a [`Window`] leads out of a
//! domain, and a [`GrantTable`] guards the way in. Left out: how TLPs travel (`link`).

mod address;
mod grants;
mod window;

pub use address::{APERTURE_BITS, FabricAddress, Rail};
pub use grants::{AccessKind, Denied, GrantTable, Granted, Rights};
pub use window::{Window, WindowError};
