//! Fabric addresses, windows, decoders and grants: who reaches which memory, decided by address alone; and the switch.
//!
//! Every card applies the same at its own edge, and the middle, a [`switch`], nothing but prefixes: a [`Window`] leads
//! out of a domain, a [`Decoder`] finds the endpoint that an address is of, and a [`GrantTable`] guards the way into
//! that. Left out: how TLPs travel (`link`).

mod address;
mod decoder;
mod grants;
pub mod switch;
mod window;

pub use address::{APERTURE_BITS, FabricAddress};
pub use decoder::{Decoder, Range};
pub use grants::{AccessKind, Denied, GrantTable, Granted, Rights};
pub use window::{Window, WindowError};
