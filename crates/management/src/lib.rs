//! The manager's process, and those who speak to it. What it decides is the affair of the core ([`manager`]), which has
//! no I/O.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | asks a manager, for the command line |
//! | [`keys`] | proofs of who has which key, and tokens |
//! | [`shapes`] | documents of the HTTP interface: what clients ask for and hear |
//! | [`wire`] | what a node and the manager say to each other, on one connection |

pub mod client;
pub mod keys;
pub mod shapes;
pub mod wire;
