//! What can go wrong around a guest, by name.

use std::io;
use std::time::Duration;

/// Why a guest could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation of the system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// QEMU or what it needs is not here.
    #[error("{0}")]
    Missing(String),
    /// Whoever waited for it had enough.
    #[error("given up before its end")]
    Abandoned,
    /// QEMU has ended.
    #[error("QEMU ended with {status} while {what} was awaited; its last words:\n{output}")]
    Ended {
        /// What was awaited.
        what: String,
        /// How it ended.
        status: String,
        /// The end of what it and the guest's kernel printed.
        output: String,
    },
    /// Something awaited did not come.
    #[error("waited {waited:?} for {what}; last words:\n{output}")]
    TimedOut {
        /// What was awaited.
        what: String,
        /// For how long.
        waited: Duration,
        /// What had come until then.
        output: String,
    },
    /// A command in the guest ended with another status than 0.
    #[error("in the guest `{command}` ended with {status}:\n{output}")]
    Failed {
        /// The command.
        command: String,
        /// Its exit status.
        status: i32,
        /// What it printed.
        output: String,
    },
    /// QEMU's machine protocol.
    #[error(transparent)]
    Qmp(#[from] qmp::Error),
    /// The guest or QEMU said something that is not what it should be.
    #[error("{0}")]
    Unexpected(String),
}

impl Error {
    /// For `map_err`: names what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
