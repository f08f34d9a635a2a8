//! Nodes of this machine's own: what `causeway demo` and `causeway bench` run in a private folder, and how they are
//! interrupted without leaving any of it behind.

mod nodes;
mod scratch;
mod wire;

pub(crate) use nodes::{NETWORK_ONLY, Node};
pub(crate) use program::halt::{Halt, Interrupt};
pub(crate) use scratch::Scratch;
pub(crate) use wire::{End, Wire};
