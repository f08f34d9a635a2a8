//! What can go wrong around a test, by name.

use std::io;
use std::time::Duration;

/// Why test support could not do what it was asked.
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
    /// A program ended with a failure.
    #[error("{program} ended with {status}; its last words:\n{output}")]
    Failed {
        /// The command line.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// Something awaited did not come.
    #[error("waited {waited:?} for {what}; last words:\n{output}")]
    TimedOut {
        /// What was awaited.
        what: String,
        /// For how long.
        waited: Duration,
        /// The end of what the program printed.
        output: String,
    },
    /// A program printed something that is not what it should be.
    #[error("{what}")]
    Unexpected {
        /// What it was, and what it should have been.
        what: String,
    },
}

impl Error {
    /// For `map_err`: names what was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// An [`Error::Unexpected`].
    pub fn unexpected(what: impl Into<String>) -> Self {
        Self::Unexpected { what: what.into() }
    }
}
