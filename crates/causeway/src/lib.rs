//! The binary `causeway`: command line, configuration, state on disk, control socket, status.
//!
//! It is the outermost layer, the only crate that sees all others. What people and scripts touch is here: [`cli`]
//! (commands and arguments), [`line`](mod@line) (the loan line), [`config`] (`NODE.toml`), [`state_dir`] (what a node
//! keeps), [`control`] (the socket other commands reach a node by), [`status`] (what it answers),
//! [`events`] (what has happened in it), [`exit`] (how a
//! command ends), `logging`. [`roles`] runs the nodes themselves.
//!
//! It is a library with a thin binary on top, so that tests and fuzz targets reach its decoders, and the campaign its
//! [`nbd_client`].

mod bench;
mod chart;
pub mod cli;
pub mod config;
pub mod control;
mod demo;
mod edge;
pub mod events;
pub mod exit;
pub mod http;
pub mod line;
mod local;
mod logging;
pub mod nbd_client;
mod page;
mod qemu_args;
mod qmp;
mod rack;
pub mod reload;
pub mod roles;
mod sim_command;
pub mod state_dir;
pub mod status;
