//! How a command ends: the exit codes scripts rely on, and the message a person reads.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::line::redact;

/// The exit codes of the outside surface. Numbers never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// 0: done, or ended by SIGTERM or SIGINT in order.
    Done,
    /// 1: a verification failed, or data was lost.
    Failed,
    /// 2: wrong usage or wrong configuration.
    Usage,
    /// 3: refused: in use, not permitted, not found, or the system has no more of something.
    Refused,
    /// 4: the peer or the node does not answer.
    Unreachable,
}

impl Exit {
    /// The number the process ends with.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Unreachable => 4,
        }
    }

    /// The exit that fits an error of the operating system.
    ///
    /// Silence of somebody else is [`Exit::Unreachable`], a malformed argument is [`Exit::Usage`], and every
    /// other "no" of the system is [`Exit::Refused`]: 1 is kept for data that is wrong.
    pub fn of_io(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::TimedOut
            | Kind::WouldBlock
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::UnexpectedEof => Self::Unreachable,
            Kind::InvalidInput | Kind::InvalidFilename => Self::Usage,
            _ => Self::Refused,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command ended before it was done.
///
/// The message says what happened, to what, and what to do next, in one or a few sentences. It passes
/// [`redact`] on its way in, so that no path through an error prints a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// A failure with this exit and this message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: redact(&message.to_string()) }
    }

    /// A verification failed or data was lost (exit 1).
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Wrong usage or configuration (exit 2).
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// In use, not permitted, not found (exit 3).
    pub fn refused(message: impl fmt::Display) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// The peer or node does not answer (exit 4).
    pub fn unreachable(message: impl fmt::Display) -> Self {
        Self::new(Exit::Unreachable, message)
    }

    /// An error of the operating system: `doing` says what was tried and to what ("cannot open /srv/a.img"),
    /// the exit comes from the kind of error.
    pub fn io(doing: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Exit::of_io(error), format_args!("{doing}: {error}"))
    }

    /// What the process ends with.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// What the person reads.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_interface() {
        let all = [Exit::Done, Exit::Failed, Exit::Usage, Exit::Refused, Exit::Unreachable];
        assert_eq!(all.map(Exit::code), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn system_errors_map_by_kind() {
        use std::io::ErrorKind as Kind;
        let exit_of = |kind: Kind| Exit::of_io(&io::Error::from(kind));
        assert_eq!(exit_of(Kind::NotFound), Exit::Refused);
        assert_eq!(exit_of(Kind::PermissionDenied), Exit::Refused);
        assert_eq!(exit_of(Kind::AddrInUse), Exit::Refused);
        assert_eq!(exit_of(Kind::StorageFull), Exit::Refused);
        assert_eq!(exit_of(Kind::ConnectionRefused), Exit::Unreachable);
        assert_eq!(exit_of(Kind::TimedOut), Exit::Unreachable);
        assert_eq!(exit_of(Kind::InvalidInput), Exit::Usage);
    }

    #[test]
    fn a_message_never_carries_a_key() {
        let line = crate::line::tests::example().reveal();
        let failure = Failure::refused(format_args!("cannot open {line}: no such file"));
        assert!(!failure.message().contains(crate::line::tests::example().secret().reveal_text().as_str()));
        assert!(failure.message().contains("192.0.2.1:7411/nvme0: no such file"), "{failure}");
    }
}
