//! The manager's process, and those who speak to it. What it decides is the affair of the core ([`manager`]), which has
//! no I/O.
//!
//! | module | what |
//! |---|---|
//! | [`keys`] | proofs of who has which key, and tokens |
//! | [`shapes`] | documents of the HTTP interface: what clients ask for and hear |
//! | [`joining`] | how a node comes to belong to a fabric |
//! | [`session`] | a node's connection to its manager |
//! | [`wire`] | what a node and the manager say to each other, on one connection |

pub mod joining;
pub mod keys;
pub mod session;
pub mod shapes;
pub mod wire;
