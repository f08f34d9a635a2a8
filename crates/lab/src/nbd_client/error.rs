//! Why a connection or a request did not work.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::request::Errno;

/// Why a connection or a request did not work.
#[derive(Debug)]
pub enum NbdError {
    /// The socket could not be reached.
    Connect {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Reading from or writing to the socket failed.
    Io(io::Error),
    /// The server closed the connection, with this many requests unanswered.
    Closed {
        /// Requests in flight.
        unanswered: usize,
    },
    /// Nothing came within the time-out, with this many requests unanswered.
    TimedOut {
        /// Requests in flight.
        unanswered: usize,
    },
    /// The server refused an option; the text is its own, or the name of the error type.
    Negotiation {
        /// The option's name.
        option: &'static str,
        /// Why.
        why: String,
    },
    /// The server broke the protocol.
    Protocol(String),
    /// The server answered a helper's request with an error.
    Refused {
        /// The request's name.
        request: &'static str,
        /// The server's answer.
        errno: Errno,
    },
    /// The request cannot be sent on this connection; nothing was sent.
    Usage(String),
}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { path, error } => {
                write!(f, "cannot connect to the NBD socket {}: {error}", path.display())
            }
            Self::Io(error) => write!(f, "the NBD connection failed: {error}"),
            Self::Closed { unanswered } => {
                write!(f, "the NBD server closed the connection with {unanswered} requests unanswered")
            }
            Self::TimedOut { unanswered } => {
                write!(f, "the NBD server did not answer in time, {unanswered} requests are unanswered")
            }
            Self::Negotiation { option, why } => write!(f, "the NBD server refused {option}: {why}"),
            Self::Protocol(what) => write!(f, "the NBD server broke the protocol: {what}"),
            Self::Refused { request, errno } => write!(f, "the NBD server answered {request} with {errno:?}"),
            Self::Usage(what) => write!(f, "this request cannot be sent: {what}"),
        }
    }
}

impl std::error::Error for NbdError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { error, .. } | Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

pub(super) fn protocol(what: String) -> NbdError {
    NbdError::Protocol(what)
}

pub(super) fn unknown_handle(handle: u64) -> NbdError {
    protocol(format!("a reply to handle {handle}, which is not in flight"))
}
