//! The laboratory: what shows, measures and tries the program, and what no node needs.
//!
//! `demo` and `bench` run nodes in scratch folders (`local`), as children of the program that they are part of, and
//! reach them as anybody would; [`nbd_client`] is a client of their NBD sockets, and [`workload`] one that knows what
//! it wrote, which tests of whole programs use too. `sim` runs the simulator. `bench` measures the native driver with
//! the hidden commands of `load`. `chart` and `page` are what reports are made of.

mod bench;
mod chart;
mod cli;
mod demo;
mod load;
mod local;
pub mod nbd_client;
mod page;
mod sim_command;
pub mod workload;

pub use cli::Command;
