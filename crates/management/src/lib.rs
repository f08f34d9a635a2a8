//! The manager's process, and those who speak to it. What it decides is the affair of the core ([`manager`]), which has
//! no I/O.
//!
//! | module | what |
//! |---|---|
//! | [`authority`] | how a fabric is founded, its certificates, configuration and credentials |
//! | [`client`] | asks a manager, for the command line |
//! | [`keys`] | proofs of who has which key, and tokens |
//! | [`server`] | the process: interface, connections of nodes, and the thread that owns the core |
//! | [`shapes`] | documents of the HTTP interface: what clients ask for and hear |
//! | [`joining`] | how a node comes to belong to a fabric |
//! | [`session`] | a node's connection to its manager |
//! | [`texts`] | what texts of a request look like, for the description of the interface |
//! | [`store`] | the files of log, snapshot and backup |
//! | [`wire`] | what a node and the manager say to each other, on one connection |

pub mod authority;
pub mod client;
mod clock;
pub mod joining;
pub mod keys;
pub mod server;
pub mod session;
pub mod shapes;
pub mod store;
pub mod texts;
mod trust;
mod url;
pub mod wire;
