//! The transmission phase: requests, simple replies and structured reply chunks (NBD «Transmission», «Request types»,
//! «Structured reply types», «Error values»).

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MAX_STRING, WrongMagic, check_magic};
use crate::fields::{bitfields, open_values};

/// Begins a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Begins a request with a 64-bit length (experimental).
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a reply with a 64-bit length (experimental).
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// A request, 28 bytes; a WRITE is followed by `length` bytes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`CommandFlags`].
    pub flags: U16,
    /// [`Command`].
    pub command: U16,
    /// The client's number for the request; the reply repeats it.
    pub cookie: U64,
    /// First byte of the export. Unchecked.
    pub offset: U64,
    /// Number of bytes. Unchecked.
    pub length: U32,
}

const _: () = assert!(size_of::<RequestHeader>() == 28);

impl RequestHeader {
    /// A request for `length` bytes at `offset`.
    #[must_use]
    pub fn new(command: Command, flags: CommandFlags, cookie: u64, offset: u64, length: u32) -> Self {
        Self {
            magic: REQUEST_MAGIC.into(),
            flags: flags.0.into(),
            command: command.0.into(),
            cookie: cookie.into(),
            offset: offset.into(),
            length: length.into(),
        }
    }

    /// Reads a request and checks its magic number, and nothing else.
    pub fn parse(bytes: &[u8; 28]) -> Result<&Self, WrongMagic> {
        let request: &Self = zerocopy::transmute_ref!(bytes);
        check_magic(REQUEST_MAGIC.into(), request.magic.get().into())?;
        Ok(request)
    }

    /// What is asked for.
    #[must_use]
    pub fn command(&self) -> Command {
        Command(self.command.get())
    }

    /// How it is to be done.
    #[must_use]
    pub fn flags(&self) -> CommandFlags {
        CommandFlags(self.flags.get())
    }

    /// Bytes of data behind the header: `length` of a WRITE, else none.
    #[must_use]
    pub fn payload_length(&self) -> u32 {
        if self.command() == Command::WRITE { self.length.get() } else { 0 }
    }
}

open_values! {
    /// Request types.
    pub struct Command(u16) {
        /// Read.
        READ = 0;
        /// Write.
        WRITE = 1;
        /// Disconnect; has no reply.
        DISC = 2;
        /// Make completed writes durable.
        FLUSH = 3;
        /// Discard.
        TRIM = 4;
        /// Read ahead.
        CACHE = 5;
        /// Write zeros.
        WRITE_ZEROES = 6;
        /// Ask for the state of extents.
        BLOCK_STATUS = 7;
        /// Change the size of the export (experimental).
        RESIZE = 8;
    }
}

bitfields! {
    /// Command flags. One that is reserved, or not of the command, is EINVAL.
    pub struct CommandFlags(u16) {
        /// Durable before the reply.
        fua, with_fua: bool = 0;
        /// WRITE_ZEROES must not make a hole.
        no_hole, with_no_hole: bool = 1;
        /// READ must not be fragmented.
        df, with_df: bool = 2;
        /// BLOCK_STATUS for the first extent only.
        req_one, with_req_one: bool = 3;
        /// WRITE_ZEROES only if that is faster than writing.
        fast_zero, with_fast_zero: bool = 4;
        /// The length is that of a payload (experimental).
        payload_len, with_payload_len: bool = 5;
    }
}

open_values! {
    /// Error values, in simple replies and error chunks.
    pub struct NbdError(u32) {
        /// No error.
        OK = 0;
        /// Operation not permitted.
        EPERM = 1;
        /// Input/output error.
        EIO = 5;
        /// Cannot allocate memory.
        ENOMEM = 12;
        /// Invalid argument.
        EINVAL = 22;
        /// No space left on device.
        ENOSPC = 28;
        /// Value too large.
        EOVERFLOW = 75;
        /// Operation not supported.
        ENOTSUP = 95;
        /// The server is shutting down.
        ESHUTDOWN = 108;
    }
}

/// A simple reply, 16 bytes; that of a READ without error is followed by the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// [`NbdError`].
    pub error: U32,
    /// The request's number.
    pub cookie: U64,
}

const _: () = assert!(size_of::<SimpleReply>() == 16);

impl SimpleReply {
    /// A reply.
    #[must_use]
    pub fn new(cookie: u64, error: NbdError) -> Self {
        Self { magic: SIMPLE_REPLY_MAGIC.into(), error: error.0.into(), cookie: cookie.into() }
    }

    /// Reads a reply and checks its magic number.
    pub fn parse(bytes: &[u8; 16]) -> Result<&Self, WrongMagic> {
        let reply: &Self = zerocopy::transmute_ref!(bytes);
        check_magic(SIMPLE_REPLY_MAGIC.into(), reply.magic.get().into())?;
        Ok(reply)
    }

    /// How the request ended.
    #[must_use]
    pub fn error(&self) -> NbdError {
        NbdError(self.error.get())
    }
}

/// The header of a structured reply chunk, 20 bytes; `length` bytes of payload follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub magic: U32,
    /// Bit 0, DONE: the last chunk of the reply.
    pub flags: U16,
    /// [`ChunkType`].
    pub chunk: U16,
    /// The request's number.
    pub cookie: U64,
    /// Bytes of payload. Unchecked.
    pub length: U32,
}

const _: () = assert!(size_of::<ChunkHeader>() == 20);

impl ChunkHeader {
    /// Flag DONE.
    pub const DONE: u16 = 1;

    /// A header for `length` bytes of payload.
    #[must_use]
    pub fn new(chunk: ChunkType, done: bool, cookie: u64, length: u32) -> Self {
        Self {
            magic: STRUCTURED_REPLY_MAGIC.into(),
            flags: if done { Self::DONE } else { 0 }.into(),
            chunk: chunk.0.into(),
            cookie: cookie.into(),
            length: length.into(),
        }
    }

    /// Reads a header and checks its magic number.
    pub fn parse(bytes: &[u8; 20]) -> Result<&Self, WrongMagic> {
        let header: &Self = zerocopy::transmute_ref!(bytes);
        check_magic(STRUCTURED_REPLY_MAGIC.into(), header.magic.get().into())?;
        Ok(header)
    }

    /// What the payload is.
    #[must_use]
    pub fn chunk(&self) -> ChunkType {
        ChunkType(self.chunk.get())
    }

    /// This chunk is the reply's last.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.flags.get() & Self::DONE != 0
    }
}

open_values! {
    /// Structured reply types.
    pub struct ChunkType(u16) {
        /// No payload; always the last.
        NONE = 0;
        /// A 64-bit offset, then data.
        OFFSET_DATA = 1;
        /// [`OffsetHole`].
        OFFSET_HOLE = 2;
        /// A 32-bit context id, then [`BlockExtent`]s.
        BLOCK_STATUS = 5;
        /// Extents with 64-bit lengths (experimental).
        BLOCK_STATUS_EXT = 6;
        /// [`ErrorPayload`] without offset.
        ERROR = 1 << 15 | 1;
        /// [`ErrorPayload`] with offset.
        ERROR_OFFSET = 1 << 15 | 2;
    }
}

impl ChunkType {
    /// An error chunk: known or not, the request failed.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 >> 15 != 0
    }
}

/// What stands before the data of an OFFSET_DATA chunk, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OffsetData {
    /// First byte of the export.
    pub offset: U64,
}

const _: () = assert!(size_of::<OffsetData>() == 8);

/// Payload of an OFFSET_HOLE chunk, 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OffsetHole {
    /// First byte of the export.
    pub offset: U64,
    /// Bytes that read as zeros; not 0.
    pub length: U32,
}

const _: () = assert!(size_of::<OffsetHole>() == 12);

/// One extent of a BLOCK_STATUS chunk, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockExtent {
    /// Bytes; not 0.
    pub length: U32,
    /// State; of the context `base:allocation` [`AllocationState`].
    pub state: U32,
}

const _: () = assert!(size_of::<BlockExtent>() == 8);

bitfields! {
    /// State of an extent in the context `base:allocation` (NBD «Metadata querying»).
    pub struct AllocationState(u32) {
        /// Not allocated: writing may fail for lack of space.
        hole, with_hole: bool = 0;
        /// Reads as zeros.
        zero, with_zero: bool = 1;
    }
}

/// Payload of an error chunk, checked and viewed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPayload<'a> {
    /// What went wrong.
    pub error: NbdError,
    /// A text for people, UTF-8 if the server keeps to the protocol.
    pub message: &'a [u8],
    /// Where, in an ERROR_OFFSET chunk.
    pub offset: Option<u64>,
}

/// The payload of an error chunk contradicts itself or its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload of an error chunk of {length} bytes does not hold what it announces")]
pub struct MalformedError {
    /// Length of the payload in bytes.
    pub length: usize,
}

impl<'a> ErrorPayload<'a> {
    /// Reads the payload of a chunk of the given type. Of an unknown error type what lies behind the message is
    /// ignored.
    pub fn parse(chunk: ChunkType, payload: &'a [u8]) -> Result<Self, MalformedError> {
        let malformed = MalformedError { length: payload.len() };
        let (error, rest) = U32::ref_from_prefix(payload).map_err(|_| malformed)?;
        let (length, rest) = U16::ref_from_prefix(rest).map_err(|_| malformed)?;
        let (message, rest) = rest.split_at_checked(length.get().into()).ok_or(malformed)?;
        let offset = match chunk {
            ChunkType::ERROR_OFFSET => Some(U64::ref_from_bytes(rest).map_err(|_| malformed)?.get()),
            ChunkType::ERROR if !rest.is_empty() => return Err(malformed),
            _ => None,
        };
        if message.len() > MAX_STRING || error.get() == 0 {
            return Err(malformed);
        }
        Ok(Self { error: NbdError(error.get()), message, offset })
    }

    /// Appends the payload. Panics if the message is longer than [`MAX_STRING`].
    pub fn encode(&self, payload: &mut Vec<u8>) {
        assert!(self.message.len() <= MAX_STRING, "strings of NBD have at most {MAX_STRING} bytes");
        payload.extend_from_slice(&self.error.0.to_be_bytes());
        payload.extend_from_slice(&(self.message.len() as u16).to_be_bytes());
        payload.extend_from_slice(self.message);
        payload.extend(self.offset.iter().flat_map(|offset| offset.to_be_bytes()));
    }

    /// The type of chunk this is the payload of.
    #[must_use]
    pub const fn chunk(&self) -> ChunkType {
        if self.offset.is_some() { ChunkType::ERROR_OFFSET } else { ChunkType::ERROR }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_request() {
        let bytes =
            b"\x25\x60\x95\x13\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\x10\0\0\0\0\x10\0";
        let request = RequestHeader::new(
            Command::WRITE,
            CommandFlags(0).with_fua(true),
            0x0102_0304_0506_0708,
            1 << 20,
            4096,
        );
        assert_eq!(request.as_bytes(), bytes);
        let seen = RequestHeader::parse(bytes).unwrap();
        assert_eq!((seen.command(), seen.flags().fua(), seen.payload_length()), (Command::WRITE, true, 4096));
        let mut wrong = *bytes;
        wrong[3] = 0x14;
        let error = RequestHeader::parse(&wrong).unwrap_err();
        assert_eq!(error, WrongMagic { expected: 0x2560_9513, found: 0x2560_9514 });
        assert_eq!(error.to_string(), "expected the NBD magic number 0x25609513, found 0x25609514");
        assert_eq!(CommandFlags(0xffff).reserved_bits(), 0xffc0);
    }

    #[test]
    fn golden_replies() {
        let simple = SimpleReply::new(0x55, NbdError::EIO);
        assert_eq!(simple.as_bytes(), b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x55");
        assert_eq!(SimpleReply::parse(b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x55"), Ok(&simple));
        let chunk = ChunkHeader::new(ChunkType::OFFSET_DATA, true, 0x55, 8 + 512);
        let bytes = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x55\0\0\x02\x08";
        assert_eq!(chunk.as_bytes(), bytes);
        assert_eq!(ChunkHeader::parse(bytes).unwrap().chunk(), ChunkType::OFFSET_DATA);
        assert!(chunk.is_done() && !chunk.chunk().is_error());
        assert!(ChunkType(0x8005).is_error());
    }

    #[test]
    fn golden_error_chunk() {
        let error = ErrorPayload { error: NbdError::ENOSPC, message: b"full", offset: Some(4096) };
        let mut payload = Vec::new();
        error.encode(&mut payload);
        assert_eq!(payload, b"\0\0\0\x1c\0\x04full\0\0\0\0\0\0\x10\0");
        assert_eq!(error.chunk().0, 0x8002);
        assert_eq!(ErrorPayload::parse(ChunkType::ERROR_OFFSET, &payload), Ok(error));
        assert!(ErrorPayload::parse(ChunkType::ERROR, &payload).is_err());
        assert!(ErrorPayload::parse(ChunkType::ERROR, b"\0\0\0\x05\0\x02x").is_err());
        assert!(ErrorPayload::parse(ChunkType::ERROR, b"\0\0\0\0\0\0").is_err());
    }

    proptest! {
        #[test]
        fn requests_round_trip(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
            let built = RequestHeader::new(Command(command), CommandFlags(flags), cookie, offset, length);
            let bytes: [u8; 28] = zerocopy::transmute!(built);
            let seen = RequestHeader::parse(&bytes).unwrap();
            prop_assert_eq!((seen.command().0, seen.flags().0, seen.cookie.get()), (command, flags, cookie));
            prop_assert_eq!((seen.offset.get(), seen.length.get()), (offset, length));
        }

        #[test]
        fn any_bytes_are_answered(request: [u8; 28], simple: [u8; 16], chunk: [u8; 20], kind: u16, payload: Vec<u8>) {
            let _ = (RequestHeader::parse(&request), SimpleReply::parse(&simple), ChunkHeader::parse(&chunk));
            for kind in [ChunkType(kind), ChunkType::ERROR, ChunkType::ERROR_OFFSET] {
                if let Ok(error) = ErrorPayload::parse(kind, &payload) {
                    prop_assert!(error.message.len() + 6 <= payload.len());
                }
            }
        }

        #[test]
        fn error_chunks_round_trip(code in 1u32.., message: Vec<u8>, offset: Option<u64>) {
            let error = ErrorPayload { error: NbdError(code), message: &message, offset };
            let mut payload = Vec::new();
            error.encode(&mut payload);
            prop_assert_eq!(ErrorPayload::parse(error.chunk(), &payload), Ok(error));
        }
    }
}
