//! The manager of a fabric: who may use what. A core without I/O; `management` is its process.
//!
//! The manager's state is the fold of a log of small changes. What clients ask for becomes an [`entry::Entry`], or
//! a [`refusal::Refusal`], by [`decide::decide`]; what nodes report becomes one by rules of its own. An entry is made
//! durable, then nodes are told, then the client hears of it. Nodes keep what they were told and go on by it
//! whether there is a manager or not: the data plane never waits for one.
//!
//! | module | what |
//! |---|---|
//! | [`model`] | nodes, functions, slots, assignments, tokens, and their bounds |
//! | [`entry`], [`state`] | changes, and what is so after them |
//! | [`command`], [`decide`], [`refusal`] | what is asked for, and what comes of it |
//! | [`report`] | what nodes and the manager say to each other |
//! | [`machine`] | what is driven: [`Manager`] |
//! | [`member`] | the other end: a node that it commands |
//! | [`log`] | how the log and snapshots lie in files |
//!
//! Left out: files, connections, certificates, how tokens are hashed, the interface for clients, and more than one
//! manager.

mod canary;
pub mod command;
pub mod decide;
pub mod entry;
pub mod log;
pub mod machine;
pub mod member;
pub mod model;
mod reconcile;
pub mod refusal;
pub mod report;
#[cfg(test)]
mod simulation;
pub mod state;
#[cfg(test)]
mod testing;

pub use machine::{Effect, Manager, Now, Progress, Reply, Start, Ticket};
