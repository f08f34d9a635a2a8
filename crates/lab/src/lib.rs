//! The laboratory: what shows, measures and tries the program, and what no node needs.
//!
//! `demo` and `bench` run nodes in scratch folders (`local`), as children of the program that they are part of, and
//! reach them as anybody would; [`nbd_client`] is a client of their NBD sockets. `sim` runs the simulator. `bench`
//! measures the native driver with the hidden commands of `load`. `chart` and `page` are what reports are made of.

mod bench;
mod chart;
mod cli;
mod demo;
mod load;
mod local;
pub mod nbd_client;
mod page;
mod sim_command;

pub use cli::Command;
