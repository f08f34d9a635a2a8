//! Test support for whole programs: what the integration tests of the workspace stand on.
//!
//! A [`world::World`] is two machines made of namespaces, with the test's own [`relay`] on every wire between them.
//! [`process`] starts programs in a machine, reads their lines and kills them by pid; [`causeway`] knows the command
//! lines of the program under test, [`host`] those of its slots for virtual machines; [`tools`] runs fio, nbdcopy and
//! their kind; [`capture`] reads what was on the wire; [`tcp`] is a connection beside it. [`gate`] says which tests run
//! beside which.
//!
//! Nothing outlives a test, not even one that is killed: namespaces belong to processes that end when their standard
//! input does, and are gone with them. There are no names to clean up.
//!
//! Tests that cannot run fail with the reason. They never skip.

pub mod capture;
pub mod causeway;
pub mod error;
pub mod fabric;
pub mod gate;
pub mod host;
pub mod load;
pub mod lossy;
pub mod process;
pub mod relay;
pub mod scale;
pub mod tcp;
pub mod tools;
pub mod world;

pub use error::Error;
/// The NBD client of the laboratory, the peer in tests of the server.
pub use lab::nbd_client;
