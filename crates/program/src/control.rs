//! The control socket: how other commands on this machine reach a running node.
//!
//! A Unix stream socket that speaks HTTP/1.1: a [`Request`] is posted, a [`Response`] comes back, both as JSON, and
//! events come as lines; the routes stand in `server/routes.rs`. The same server has `/metrics` and `/healthz` on
//! localhost. The node's loop answers in its turn and never waits ([`ControlServer`]); the other side waits with a time
//! limit ([`ControlClient`]). Who may connect is decided by the folder, which belongs to the node's user alone.

pub mod capture;
mod client;
mod place;
mod server;
mod socket;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::exit::{Exit, Failure};
use crate::reload::ReloadReport;
use crate::status::{Map, Peers, Status};
pub use client::{CaptureItems, ControlClient, Events, find, running};
pub use place::{runtime_dir, socket_path};
pub use server::{Answers, CLIENTS_MAX, ControlServer, FOLLOWERS_MAX};

/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Longest answer, in bytes: far more than the largest status.
pub const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// What a node can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How it is doing.
    Status,
    /// Who reaches what of it.
    Map,
    /// Whom it hears on its rails.
    Peers,
    /// Treat a rail badly from now on: for the demo and for tests.
    Impair(Impairment),
    /// What a lent function may do from now on; a rate that is left out is not limited.
    Limit {
        /// Its name.
        function: String,
        /// Most I/O commands a second.
        #[serde(default)]
        iops: Option<u64>,
        /// Most bytes read and written a second.
        #[serde(default)]
        bytes_per_s: Option<u64>,
    },
    /// The medium of a drive, which had lost something, was seen to: its flushes are to succeed again.
    ClearFault {
        /// One of its functions, or its source.
        device: String,
    },
    /// Attach a function to a slot.
    Attach {
        /// `DOMAIN/SLOT`.
        slot: String,
        /// The function's line, with its key.
        line: String,
    },
    /// Take out of a slot what is attached to it.
    Detach {
        /// `DOMAIN/SLOT`.
        slot: String,
    },
    /// How a slot is doing.
    Slot {
        /// `DOMAIN/SLOT`.
        slot: String,
    },
    /// Read its file again.
    Reload {
        /// Say what has changed there, and do nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// End in order, as on SIGTERM.
    Stop,
}

/// How a slot is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotReport {
    /// In short.
    pub state: SlotState,
    /// What the virtual machine connects to.
    pub edge: String,
    /// Its virtual machine has not been told of it yet.
    #[serde(default)]
    pub plugging: bool,
    /// Its lender has been met, whatever became of the function since.
    #[serde(default)]
    pub met: bool,
    /// What plugs it in, where the node cannot.
    pub plug: Option<String>,
    /// What takes it out, where the node cannot.
    pub unplug: Option<String>,
    /// What went wrong last.
    pub trouble: Option<String>,
}

/// How a slot is doing, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Nothing is attached.
    Vacant,
    /// The lender has not answered yet.
    Attaching,
    /// The function can be used.
    Attached,
    /// The guest is to let go of it.
    Leaving,
    /// It is being given back.
    Returning,
}

/// How a rail is treated. Each ratio is in parts per million of its frames; all zero is as it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Impairment {
    /// The rail's name.
    pub rail: String,
    /// Frames that vanish.
    pub drop_ppm: u32,
    /// Frames that arrive twice.
    pub repeat_ppm: u32,
    /// Frames that arrive after later ones.
    pub reorder_ppm: u32,
    /// Frames with flipped bits.
    pub corrupt_ppm: u32,
    /// Nothing arrives.
    pub cut_in: bool,
    /// Nothing leaves.
    pub cut_out: bool,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    /// To [`Request::Status`].
    Status {
        /// How it is doing.
        status: Box<Status>,
    },
    /// To [`Request::Map`].
    Map {
        /// Who reaches what.
        map: Box<Map>,
    },
    /// To [`Request::Peers`].
    Peers {
        /// Whom it hears.
        peers: Box<Peers>,
    },
    /// To [`Request::Reload`].
    Reload {
        /// What became of it.
        report: Box<ReloadReport>,
    },
    /// To whatever is about a slot.
    Slot {
        /// How it is doing.
        slot: SlotReport,
    },
    /// Done as asked.
    Done,
    /// Not done.
    Refused {
        /// Why.
        why: String,
    },
}

/// Why a control socket cannot be served or reached.
#[derive(Debug, Error)]
pub enum ControlError {
    /// A node of this name is running.
    #[error("a node named {name} is running already{}; stop it, or choose another --name",
            .pid.map(|pid| format!(" as process {pid}")).unwrap_or_default())]
    InUse {
        /// The name.
        name: String,
        /// Its process, where it is known.
        pid: Option<u32>,
    },
    /// The folder of control sockets is not ours alone.
    #[error("the folder of control sockets {} {why}; remove it, or set XDG_RUNTIME_DIR", path.display())]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The path is no socket's.
    #[error("the control socket {} cannot be: {why}; choose a shorter --name, or set XDG_RUNTIME_DIR", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No node runs on this machine, or none of this user.
    #[error("no node is running here (looked into {}); start one with `causeway lend` or `causeway borrow`",
            folder.display())]
    NoneRunning {
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// No node of that name runs.
    #[error("no node named {name} is running here; {}", others(running))]
    NotRunning {
        /// The name.
        name: String,
        /// Those that run.
        running: Vec<String>,
    },
    /// Several nodes run.
    #[error("several nodes are running here: {}; choose one with --name", running.join(", "))]
    Several {
        /// Their names.
        running: Vec<String>,
    },
    /// A node is stopped.
    #[error(
        "the node {name} does not answer, since its process {pid} is stopped (SIGSTOP, Ctrl-Z or a debugger); \
             let it go on with `kill -CONT {pid}`"
    )]
    Stopped {
        /// The name.
        name: String,
        /// Its process.
        pid: u32,
    },
    /// A node has its socket open but does not answer.
    #[error(
        "the node {name} does not answer: {}; if that lasts, look at its log, then stop it",
        silence(error)
    )]
    Silent {
        /// The name.
        name: String,
        /// What the system said.
        error: io::Error,
    },
    /// A node does not know what it is asked for.
    #[error(
        "the node {name} is of an earlier version, which cannot say that: start it again with this release, or use the \
         `causeway` it was started with"
    )]
    Older {
        /// The name.
        name: String,
    },
    /// A node does not say what it is asked for.
    #[error("the node refused: {why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// A node that was followed, or asked just then, says nothing more.
    #[error("the node {name} has ended")]
    Ended {
        /// The name.
        name: String,
    },
    /// The answer is no answer.
    #[error(
        "the node {name} answered what this release does not understand ({why}); \
             use the `causeway` it was started with"
    )]
    Answer {
        /// The name.
        name: String,
        /// What was wrong.
        why: String,
    },
    /// The system said no.
    #[error("cannot {doing} {}: {error}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let exit = match &error {
            ControlError::Several { .. } | ControlError::Path { .. } => Exit::Usage,
            ControlError::Silent { .. }
            | ControlError::Stopped { .. }
            | ControlError::Ended { .. }
            | ControlError::Answer { .. } => Exit::Unreachable,
            ControlError::Io { error, .. } => Exit::of_io(error),
            _ => Exit::Refused,
        };
        Self::new(exit, error)
    }
}

/// What an error of the socket means to a person: a time limit that has passed is called by many names.
fn silence(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it has said nothing for {} s", client::TIMEOUT.as_secs())
        }
        io::ErrorKind::UnexpectedEof => "it has closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

fn others(running: &[String]) -> String {
    match running {
        [] => "none is running at all".to_owned(),
        names => format!("running: {}", names.join(", ")),
    }
}

fn io_error(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> ControlError {
    let path = path.to_owned();
    move |error| ControlError::Io { doing, path, error }
}

#[cfg(test)]
mod tests;
