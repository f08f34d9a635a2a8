//! Real time: sockets, rings, files, the agent and the card's loop.
//!
//! A node is an *agent*, which creates and keeps every descriptor, and a *card*, which moves the
//! data with inherited copies of them and may be killed at any moment. The modules here are the
//! primitives both stand on; each can be used alone:
//!
//! - [`memory`]: sealed shared memory and its mapping; the ledger lies in one.
//! - [`process`]: starting a card with chosen descriptors, watching and reaping it.
//! - [`address`]: where rails lead: kinds of addresses, and their text.
//! - [`rail`]: the sockets of rails, over UDP and Ethernet, batched.
//! - [`wait`]: spin, then sleep; wake-ups between processes.
//! - [`files`]: the image behind a lent drive: locks, direct I/O, trim, zeroes.
//! - [`ring`]: an io_uring that outlives the card and can be drained after its death.
//! - [`stream_socket`]: byte streams whose position survives the reader and the writer.
//! - `shm`: memory that two nodes of one machine share.
//! - [`capture`]: copies of frames for whoever looks on.
//! - [`impair`]: faults on purpose for the demo and the tests.
//! - [`discovery`]: what nodes say of themselves on their rails.
//! - [`event`]: what happens in a running node, for its log and for programs.
//! - [`rate_limited`]: lines of the log that somebody outside can cause.
//! - [`load`]: what a card reads on its own to measure its drive.
//! - [`whereabouts`]: where a node is, as the state folder keeps it.
//! - [`native`]: the same with driver and drive in one process, and no fabric.
//!
//! No protocol is decided here: what bytes mean is the business of the cores this crate drives.
//!
//! On top of them stand [`agent`] and [`card`], which are told about each other by `plan` and `messages`.
#![allow(unsafe_code)]

pub mod address;
pub mod agent;
pub mod capture;
pub mod card;
mod carrier;
pub mod code;
pub mod discovery;
pub mod event;
mod fault;
pub mod files;
mod filter;
mod guest_memory;
pub mod impair;
mod interrupts;
pub mod load;
pub mod memory;
mod messages;
pub mod native;
pub mod net;
mod outbox;
mod plan;
pub mod process;
mod pulse;
pub mod rail;
pub mod rate_limited;
pub mod ring;
mod shm;
pub mod stream_socket;
pub mod switch;
mod time_slice;
pub mod users;
mod vm_generation;
pub mod wait;
pub mod whereabouts;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use plan::MediumKind;

/// Formats that only an agent and its card use, for who feeds them any bytes.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::messages::fuzzing::read as messages;
    pub use crate::plan::fuzzing::read as plan;
}

/// Keeps keys out of core dumps and away from other processes of this user.
pub fn harden() {
    // SAFETY: sets two attributes of this process and touches no memory.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
    }
}

/// Lets this process, and those it starts, open as many descriptors as they may: each connection of a machine is one,
/// and none of them can be given up.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, the lower limit holds.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
