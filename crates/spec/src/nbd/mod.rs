//! The Network Block Device protocol, fixed newstyle, as a server and its clients speak it.
//!
//! A connection begins with the [`handshake`], in which the client haggles options with the server, and goes on with
//! the [`transmission`] of requests and replies. Every number is big-endian.

pub mod handshake;
pub mod transmission;

pub use handshake::{
    ClientFlags, ExportNameReply, HandshakeFlags, InfoBlockSize, InfoExport, InfoRequest, InfoType,
    MetaContextRequest, OptionCode, OptionHeader, OptionReplyHeader, OptionReplyType, PayloadError,
    ServerHello, TransmissionFlags,
};
pub use transmission::{
    ChunkHeader, ChunkType, Command, CommandFlags, ErrorPayload, NbdError, RequestHeader, SimpleReply,
};

/// The longest string either side may send, in bytes (NBD «Values»).
pub const MAX_STRING: usize = 4096;

/// A message does not begin with its magic number: the peer speaks another protocol, or the stream lost its step.
/// Nothing that follows can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the NBD magic number {expected:#x}, found {found:#x}")]
pub struct WrongMagic {
    /// The number the message should begin with.
    pub expected: u64,
    /// The number it begins with.
    pub found: u64,
}

/// Compares a magic number.
fn check_magic(expected: u64, found: u64) -> Result<(), WrongMagic> {
    if expected == found { Ok(()) } else { Err(WrongMagic { expected, found }) }
}
