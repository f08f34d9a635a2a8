//! Nodes of this machine's own: what `causeway demo` and `causeway bench` run in a private folder, and how they are
//! interrupted without leaving any of it behind.

mod fabric;
mod nodes;
mod scratch;
mod wire;

pub(crate) use fabric::Fabric;
pub(crate) use nodes::{NETWORK_ONLY, Node};
pub(crate) use program::halt::{Halt, Interrupt};
pub(crate) use scratch::Scratch;
pub(crate) use wire::{End, Wire};

/// An address of loopback that no other process of this program has. 127.0.0.1 and its neighbours are everybody's.
pub(crate) fn own_address() -> std::net::Ipv4Addr {
    let [_, first, second, third] = std::process::id().to_be_bytes();
    std::net::Ipv4Addr::new(127, 64 | first & 63, second, third)
}
