//! What runs a node: command line, configuration, state on disk, control socket, status.
//!
//! What people and scripts touch is here: [`cli`] (commands and arguments), [`line`](mod@line) (the loan line),
//! [`config`] (`NODE.toml`), [`state_dir`] (what a node keeps), [`control`] (the server that other commands reach a
//! node by), [`status`] (what it answers), [`events`] (what has happened in it), [`exit`] (how a command ends),
//! `logging`.
//! [`roles`] runs the nodes themselves.
//!
//! The binary, in `crates/causeway`, joins its commands with those of the laboratory, `crates/lab`. Nothing here knows
//! of either.

pub mod assigned;
pub mod cli;
pub mod config;
pub mod control;
mod edge;
pub mod events;
pub mod exit;
pub mod halt;
pub mod line;
mod logging;
pub mod qemu_args;
mod qmp;
mod rack;
pub mod reload;
pub mod roles;
pub mod state_dir;
pub mod status;
pub mod switch_control;
