//! A small blocking NBD client over a Unix socket: what `causeway demo` and `causeway bench` read and write through,
//! and the peer that tests hold against the server.
//!
//! It stands outside the fabric, where fio or a kernel would stand. It shares no code and no constants with the
//! server's codec, so that a mistake there is not repeated here. Fixed newstyle negotiation with `NBD_OPT_GO`, simple
//! and structured replies, many requests in flight on one connection. Left out: TLS, block status, extended headers,
//! and `NBD_OPT_EXPORT_NAME` (servers without `NBD_OPT_GO` are refused by name).
//!
//! A silent server ends every wait with [`NbdError::TimedOut`] after the time given at [`NbdClient::connect`], one that
//! trickles after at most twice that time.
//!
//! Source: the NBD protocol description, cited as `NBD §Name of the section`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest read or write that a server without stated limits must take (`NBD §Block size constraints`), and the
/// largest that this client accepts as a stated maximum.
pub const DEFAULT_MAXIMUM_LENGTH: u32 = 32 << 20;

/// With at most this much payload in flight, both ways together, everything fits the socket's buffers and a write never
/// blocks. Above it writes are non-blocking and take replies in between: a server that waits for us to read does not
/// read either, and draining breaks that circle.
const SOCKET_HOLDS: usize = 64 << 10;

/// Turns given to the server before the wait for it to read or write becomes a sleep.
const YIELDS: u32 = 64;

/// That sleep; short, as the system's time-outs of a socket are only as fine as its timer tick.
const BACK_OFF: Duration = Duration::from_micros(50);

/// The largest option reply this client takes; real ones are below 200 bytes.
const OPTION_REPLY_MAX: u32 = 64 << 10;

/// Bytes taken from the socket at once, beyond the payload of a read.
const INPUT_CHUNK: usize = 64 << 10;

// NBD §Newstyle negotiation, §Option types, §Option reply types, §Request types, §Structured reply types.
const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1 << 0;
const HANDSHAKE_NO_ZEROES: u16 = 1 << 1;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;
const CMD_FLAG_FUA: u16 = 1 << 0;
const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
const CHUNK_DONE: u16 = 1 << 0;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_OFFSET_HOLE: u16 = 2;
const CHUNK_ERROR_BIT: u16 = 1 << 15;

/// One connection to an NBD server.
///
/// Requests are pipelined: [`submit`](Self::submit) returns at once, [`next_reply`](Self::next_reply) gives the replies
/// in the order in which the server finished them. The helpers ([`read`](Self::read) and so on) do one request and wait
/// for it; they may only be used while nothing else is in flight.
///
/// After an error that is not [`NbdError::Refused`] or [`NbdError::Usage`] the connection is of no further use.
pub struct NbdClient {
    stream: UnixStream,
    timeout: Duration,
    geometry: Geometry,
    structured: bool,
    next_handle: u64,
    pending: BTreeMap<u64, Pending>,
    /// Payload of what is pending, both ways.
    payload_in_flight: usize,
    nonblocking: bool,
    /// Received and not yet decoded: `input[taken..]`.
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
    /// A buffer of an earlier reply, kept to spare an allocation a read.
    spare: Vec<u8>,
}

/// What the server offers, from `NBD_INFO_EXPORT` and `NBD_INFO_BLOCK_SIZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the export in bytes.
    pub size: u64,
    /// What the server can do.
    pub flags: TransmissionFlags,
    /// Sizes that requests must keep to.
    pub block_sizes: BlockSizes,
}

/// Block size constraints in bytes; 1, 4096 and [`DEFAULT_MAXIMUM_LENGTH`] where the server states none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this.
    pub minimum: u32,
    /// The smallest size at which the server works well.
    pub preferred: u32,
    /// The largest payload of a read or write.
    pub maximum: u32,
}

/// The transmission flags of the export (`NBD §Transmission flags`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TransmissionFlags(pub u16);

impl TransmissionFlags {
    /// `NBD_FLAG_READ_ONLY`.
    pub fn read_only(self) -> bool {
        self.0 & 1 << 1 != 0
    }
    /// `NBD_FLAG_SEND_FLUSH`.
    pub fn flush(self) -> bool {
        self.0 & 1 << 2 != 0
    }
    /// `NBD_FLAG_SEND_FUA`.
    pub fn fua(self) -> bool {
        self.0 & 1 << 3 != 0
    }
    /// `NBD_FLAG_SEND_TRIM`.
    pub fn trim(self) -> bool {
        self.0 & 1 << 5 != 0
    }
    /// `NBD_FLAG_SEND_WRITE_ZEROES`.
    pub fn write_zeroes(self) -> bool {
        self.0 & 1 << 6 != 0
    }
    /// `NBD_FLAG_CAN_MULTI_CONN`: a flush on one connection covers what was answered on another.
    pub fn multi_conn(self) -> bool {
        self.0 & 1 << 8 != 0
    }
}

impl fmt::Debug for TransmissionFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransmissionFlags({:#06x})", self.0)
    }
}

/// A request, as it is submitted. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Reads `length` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// At most [`BlockSizes::maximum`].
        length: u32,
    },
    /// Writes `data`.
    Write {
        /// First byte.
        offset: u64,
        /// At most [`BlockSizes::maximum`] bytes.
        data: &'a [u8],
        /// Answer only when the data is on stable storage (`NBD_CMD_FLAG_FUA`).
        fua: bool,
    },
    /// Puts everything that was answered before on stable storage.
    Flush,
    /// Says that the content is not needed any more.
    Trim {
        /// First byte.
        offset: u64,
        /// Any length that the export has.
        length: u32,
    },
    /// Writes zeroes without sending them.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Any length that the export has.
        length: u32,
        /// Keep the space allocated (`NBD_CMD_FLAG_NO_HOLE`).
        no_hole: bool,
        /// As for a write.
        fua: bool,
    },
}

/// Names a request in flight; unique on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What [`NbdClient::submit`] returned.
    pub handle: Handle,
    /// Done, or the error that the server answered for this request.
    pub result: Result<(), Errno>,
}

/// An error value of a reply (`NBD §Error values`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    /// `NBD_EPERM`.
    pub const EPERM: Self = Self(1);
    /// `NBD_EIO`.
    pub const EIO: Self = Self(5);
    /// `NBD_ENOMEM`.
    pub const ENOMEM: Self = Self(12);
    /// `NBD_EINVAL`.
    pub const EINVAL: Self = Self(22);
    /// `NBD_ENOSPC`.
    pub const ENOSPC: Self = Self(28);
    /// `NBD_EOVERFLOW`.
    pub const EOVERFLOW: Self = Self(75);
    /// `NBD_ENOTSUP`.
    pub const ENOTSUP: Self = Self(95);
    /// `NBD_ESHUTDOWN`.
    pub const ESHUTDOWN: Self = Self(108);

    /// The protocol's name of the value.
    pub fn name(self) -> &'static str {
        match self {
            Self::EPERM => "EPERM",
            Self::EIO => "EIO",
            Self::ENOMEM => "ENOMEM",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::ENOTSUP => "ENOTSUP",
            Self::ESHUTDOWN => "ESHUTDOWN",
            _ => "an error number the protocol does not name",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

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

/// What a connection asks for, beyond the socket.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions<'a> {
    /// The export's name; empty for the default one.
    pub export: &'a str,
    /// Ask for structured replies; a server that has none is used with simple ones.
    pub structured: bool,
    /// The longest wait, of the negotiation and of each later call.
    pub timeout: Duration,
}

impl NbdClient {
    /// Connects to the default export at `path`, with structured replies where the server has them.
    ///
    /// `timeout` bounds the negotiation and each later wait; zero is refused.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, NbdError> {
        Self::connect_with(path, ConnectOptions { export: "", structured: true, timeout })
    }

    /// Connects with options.
    pub fn connect_with(path: &Path, options: ConnectOptions<'_>) -> Result<Self, NbdError> {
        if options.timeout.is_zero() {
            return Err(NbdError::Usage("a time-out of zero".into()));
        }
        let stream = UnixStream::connect(path)
            .map_err(|error| NbdError::Connect { path: path.to_path_buf(), error })?;
        stream.set_read_timeout(Some(options.timeout)).map_err(NbdError::Io)?;
        stream.set_write_timeout(Some(options.timeout)).map_err(NbdError::Io)?;
        let mut client = Self::unnegotiated(stream, options.timeout);
        client.negotiate(&options)?;
        Ok(client)
    }

    fn unnegotiated(stream: UnixStream, timeout: Duration) -> Self {
        let block_sizes = BlockSizes { minimum: 1, preferred: 4096, maximum: DEFAULT_MAXIMUM_LENGTH };
        Self {
            stream,
            timeout,
            geometry: Geometry { size: 0, flags: TransmissionFlags(0), block_sizes },
            structured: false,
            next_handle: 1,
            pending: BTreeMap::new(),
            payload_in_flight: 0,
            nonblocking: false,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// What the server offers.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.geometry.size
    }

    /// What the server can do.
    pub fn flags(&self) -> TransmissionFlags {
        self.geometry.flags
    }

    /// Sizes that requests must keep to.
    pub fn block_sizes(&self) -> BlockSizes {
        self.geometry.block_sizes
    }

    /// Whether replies are structured.
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Requests submitted and not yet replied to.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Sends a request and returns without waiting for its reply.
    ///
    /// # Errors
    /// [`NbdError::Usage`] for a payload above the server's maximum or a capability the server lacks. Ranges outside the
    /// export and wrong alignment are left to the server: tests ask for them.
    pub fn submit(&mut self, request: Request<'_>) -> Result<Handle, NbdError> {
        self.check(&request)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.output.clear();
        encode_request(&mut self.output, handle, &request);
        let read = match request {
            Request::Read { offset, length } => {
                Some(ReadState::new(offset, length, std::mem::take(&mut self.spare)))
            }
            _ => None,
        };
        let payload = request.payload();
        self.payload_in_flight += payload;
        self.pending.insert(handle, Pending { payload, read, error: None });
        let output = std::mem::take(&mut self.output);
        let sent = self.send(&output);
        self.output = output;
        sent.map(|()| Handle(handle))
    }

    /// Waits for the next finished request. `data` is replaced: the bytes of a successful read, else empty.
    ///
    /// # Errors
    /// [`NbdError::Usage`] when nothing is in flight; otherwise the connection's own failures. A request that the server
    /// failed is not an error here but [`Reply::result`].
    pub fn next_reply(&mut self, data: &mut Vec<u8>) -> Result<Reply, NbdError> {
        if self.pending.is_empty() {
            return Err(NbdError::Usage("no request is in flight, so no reply can come".into()));
        }
        let deadline = Instant::now() + self.timeout;
        loop {
            let magic = self.take_u32(deadline)?;
            let finished = match magic {
                SIMPLE_REPLY_MAGIC => Some(self.simple_reply(deadline)?),
                STRUCTURED_REPLY_MAGIC if self.structured => self.structured_chunk(deadline)?,
                _ => return Err(protocol(format!("{magic:#010x} is not the magic number of a reply"))),
            };
            if let Some(handle) = finished {
                return self.finish(handle, data);
            }
        }
    }

    /// Reads `length` bytes into `data`, which is replaced.
    pub fn read(&mut self, offset: u64, length: u32, data: &mut Vec<u8>) -> Result<(), NbdError> {
        self.exchange("a read", Request::Read { offset, length }, data)
    }

    /// Writes `data`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        self.exchange("a write", Request::Write { offset, data, fua: false }, &mut Vec::new())
    }

    /// Flushes.
    pub fn flush(&mut self) -> Result<(), NbdError> {
        self.exchange("a flush", Request::Flush, &mut Vec::new())
    }

    /// Trims.
    pub fn trim(&mut self, offset: u64, length: u32) -> Result<(), NbdError> {
        self.exchange("a trim", Request::Trim { offset, length }, &mut Vec::new())
    }

    /// Writes zeroes; the server may make a hole of them.
    pub fn write_zeroes(&mut self, offset: u64, length: u32) -> Result<(), NbdError> {
        let request = Request::WriteZeroes { offset, length, no_hole: false, fua: false };
        self.exchange("a write of zeroes", request, &mut Vec::new())
    }

    /// Says goodbye (`NBD_CMD_DISC`) and closes. Dropping the client closes without a word.
    pub fn disconnect(mut self) -> Result<(), NbdError> {
        let mut frame = Vec::with_capacity(28);
        put_header(&mut frame, 0, CMD_DISC, 0, 0, 0);
        self.send(&frame)
    }

    /// Sends bytes as they are, for tests of what a server does with nonsense.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), NbdError> {
        self.send(bytes)
    }

    fn exchange(
        &mut self,
        name: &'static str,
        request: Request<'_>,
        data: &mut Vec<u8>,
    ) -> Result<(), NbdError> {
        if !self.pending.is_empty() {
            return Err(NbdError::Usage(format!("{name} that waits, while other requests are in flight")));
        }
        self.submit(request)?;
        let reply = self.next_reply(data)?;
        reply.result.map_err(|errno| NbdError::Refused { request: name, errno })
    }

    fn check(&self, request: &Request<'_>) -> Result<(), NbdError> {
        let flags = self.geometry.flags;
        let maximum = self.geometry.block_sizes.maximum as usize;
        let payload = request.payload();
        let (offered, fua) = match *request {
            Request::Read { .. } => (true, false),
            Request::Write { fua, .. } => (true, fua),
            Request::Flush => (flags.flush(), false),
            Request::Trim { .. } => (flags.trim(), false),
            Request::WriteZeroes { fua, .. } => (flags.write_zeroes(), fua),
        };
        if payload > maximum {
            return Err(NbdError::Usage(format!("{payload} bytes, the server takes at most {maximum}")));
        }
        if !offered || (fua && !flags.fua()) {
            return Err(NbdError::Usage(format!(
                "the server's flags {flags:?} do not offer it: {}",
                request.name()
            )));
        }
        Ok(())
    }
}

impl Request<'_> {
    /// Bytes that go over the socket with it, whichever way.
    fn payload(&self) -> usize {
        match self {
            Self::Read { length, .. } => *length as usize,
            Self::Write { data, .. } => data.len(),
            Self::Flush | Self::Trim { .. } | Self::WriteZeroes { .. } => 0,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Flush => "flush",
            Self::Trim { .. } => "trim",
            Self::WriteZeroes { .. } => "write zeroes",
        }
    }
}

/// A request in flight.
struct Pending {
    payload: usize,
    /// For a read: what has come so far.
    read: Option<ReadState>,
    /// The first error chunk of a structured reply.
    error: Option<Errno>,
}

impl Pending {
    /// A bound on the bytes that answer this request, chunk headers included.
    fn reply_max(&self) -> usize {
        INPUT_CHUNK + self.read.as_ref().map_or(0, |read| read.length as usize)
    }
}

/// The data of one read, which structured replies may bring in pieces and in any order.
struct ReadState {
    offset: u64,
    length: u32,
    data: Vec<u8>,
    /// Ranges that have come, as first byte and end, relative to the read. Disjoint.
    covered: Vec<(u32, u32)>,
}

impl ReadState {
    fn new(offset: u64, length: u32, mut data: Vec<u8>) -> Self {
        data.clear();
        Self { offset, length, data, covered: Vec::new() }
    }

    /// Notes that `length` bytes at the export's `offset` have come; returns where they lie in the read.
    fn cover(&mut self, offset: u64, length: u32) -> Result<std::ops::Range<usize>, NbdError> {
        let outside = || protocol(format!("a chunk of {length} bytes at {offset} lies outside of its read"));
        let start = offset
            .checked_sub(self.offset)
            .and_then(|start| u32::try_from(start).ok())
            .ok_or_else(outside)?;
        let end = start.checked_add(length).filter(|&end| end <= self.length).ok_or_else(outside)?;
        if length == 0 || self.covered.iter().any(|&(first, last)| start < last && first < end) {
            return Err(protocol(format!("a chunk of {length} bytes at {offset} is empty or came before")));
        }
        // Chunks mostly come in order, then one range is enough.
        match self.covered.last_mut() {
            Some((_, last)) if *last == start => *last = end,
            _ => self.covered.push((start, end)),
        }
        Ok(start as usize..end as usize)
    }

    fn is_complete(&self) -> bool {
        let covered: u64 = self.covered.iter().map(|&(first, last)| u64::from(last - first)).sum();
        covered == u64::from(self.length)
    }
}

/// Replies of the transmission phase.
impl NbdClient {
    /// `NBD §Simple reply message`, after its magic number.
    fn simple_reply(&mut self, deadline: Instant) -> Result<u64, NbdError> {
        let error = self.take_u32(deadline)?;
        let handle = self.take_u64(deadline)?;
        let pending = self.pending.get_mut(&handle).ok_or_else(|| unknown_handle(handle))?;
        if error != 0 {
            pending.error = Some(Errno(error));
            return Ok(handle);
        }
        let Some(read) = &mut pending.read else { return Ok(handle) };
        if self.structured {
            return Err(protocol("a simple reply to a read, though structured replies were agreed".into()));
        }
        let range = read.cover(read.offset, read.length)?;
        let mut data = std::mem::take(&mut read.data);
        data.resize(range.len(), 0);
        self.take_into(&mut data, deadline)?;
        self.put_back(handle, data);
        Ok(handle)
    }

    /// `NBD §Structured reply chunk message`, after its magic number. The handle, if this chunk is the last one.
    fn structured_chunk(&mut self, deadline: Instant) -> Result<Option<u64>, NbdError> {
        let flags_and_type = self.take_u32(deadline)?;
        let (flags, kind) = ((flags_and_type >> 16) as u16, flags_and_type as u16);
        let handle = self.take_u64(deadline)?;
        let length = self.take_u32(deadline)?;
        if !self.pending.contains_key(&handle) {
            return Err(unknown_handle(handle));
        }
        match kind {
            CHUNK_NONE if length == 0 && flags & CHUNK_DONE != 0 => {}
            CHUNK_OFFSET_DATA if length > 8 => self.data_chunk(handle, length - 8, deadline)?,
            CHUNK_OFFSET_HOLE if length == 12 => self.hole_chunk(handle, deadline)?,
            kind if kind & CHUNK_ERROR_BIT != 0 => self.error_chunk(handle, length, deadline)?,
            _ => {
                return Err(protocol(format!(
                    "a chunk of type {kind:#06x} with {length} bytes and flags {flags:#x}"
                )));
            }
        }
        Ok((flags & CHUNK_DONE != 0).then_some(handle))
    }

    fn data_chunk(&mut self, handle: u64, length: u32, deadline: Instant) -> Result<(), NbdError> {
        let offset = self.take_u64(deadline)?;
        let read = self.read_state(handle)?;
        let range = read.cover(offset, length)?;
        let mut data = std::mem::take(&mut read.data);
        data.resize(read.length as usize, 0);
        self.take_into(&mut data[range], deadline)?;
        self.put_back(handle, data);
        Ok(())
    }

    fn hole_chunk(&mut self, handle: u64, deadline: Instant) -> Result<(), NbdError> {
        let offset = self.take_u64(deadline)?;
        let length = self.take_u32(deadline)?;
        let read = self.read_state(handle)?;
        let range = read.cover(offset, length)?;
        read.data.resize(read.length as usize, 0);
        read.data[range].fill(0);
        Ok(())
    }

    /// Any chunk with the error bit: error, length of a text, the text, and for some types an offset.
    fn error_chunk(&mut self, handle: u64, length: u32, deadline: Instant) -> Result<(), NbdError> {
        if !(6..=OPTION_REPLY_MAX).contains(&length) {
            return Err(protocol(format!("an error chunk of {length} bytes")));
        }
        let mut body = vec![0; length as usize];
        self.take_into(&mut body, deadline)?;
        let errno = Errno(be_u32(&body, 0));
        let pending = self.pending.get_mut(&handle).ok_or_else(|| unknown_handle(handle))?;
        pending.error.get_or_insert(errno);
        Ok(())
    }

    fn read_state(&mut self, handle: u64) -> Result<&mut ReadState, NbdError> {
        let pending = self.pending.get_mut(&handle).ok_or_else(|| unknown_handle(handle))?;
        pending.read.as_mut().ok_or_else(|| protocol("data for a request that reads nothing".into()))
    }

    fn put_back(&mut self, handle: u64, data: Vec<u8>) {
        if let Some(Pending { read: Some(read), .. }) = self.pending.get_mut(&handle) {
            read.data = data;
        }
    }

    /// The request is over: its data goes to the caller, whose old buffer is kept for a later read.
    fn finish(&mut self, handle: u64, data: &mut Vec<u8>) -> Result<Reply, NbdError> {
        let pending = self.pending.remove(&handle).ok_or_else(|| unknown_handle(handle))?;
        self.payload_in_flight -= pending.payload;
        data.clear();
        let result = pending.error.map_or(Ok(()), Err);
        if let Some(mut read) = pending.read {
            if result.is_ok() && !read.is_complete() {
                return Err(protocol(format!(
                    "the reply to a read at {} lacks some of its bytes",
                    read.offset
                )));
            }
            if result.is_err() {
                read.data.clear();
            }
            self.spare = std::mem::replace(data, read.data);
        }
        Ok(Reply { handle: Handle(handle), result })
    }
}

/// Negotiation: `NBD §Newstyle negotiation`.
impl NbdClient {
    fn negotiate(&mut self, options: &ConnectOptions<'_>) -> Result<(), NbdError> {
        let deadline = Instant::now() + self.timeout;
        if self.take_u64(deadline)? != INIT_MAGIC || self.take_u64(deadline)? != OPTION_MAGIC {
            return Err(protocol("what listens there is not a newstyle NBD server".into()));
        }
        let handshake = self.take_u16(deadline)?;
        if handshake & HANDSHAKE_FIXED_NEWSTYLE == 0 {
            return Err(protocol("the server is not of the fixed newstyle".into()));
        }
        let client_flags = handshake & (HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES);
        self.send(&u32::from(client_flags).to_be_bytes())?;
        if options.structured {
            self.structured = self.ask_structured(deadline)?;
        }
        self.go(options.export, deadline)
    }

    fn ask_structured(&mut self, deadline: Instant) -> Result<bool, NbdError> {
        self.send_option(OPT_STRUCTURED_REPLY, &[])?;
        let (kind, _) = self.option_reply(OPT_STRUCTURED_REPLY, deadline)?;
        match kind {
            REP_ACK => Ok(true),
            _ if kind & REP_ERROR != 0 => Ok(false),
            _ => Err(protocol(format!("reply type {kind} to NBD_OPT_STRUCTURED_REPLY"))),
        }
    }

    fn go(&mut self, export: &str, deadline: Instant) -> Result<(), NbdError> {
        // NBD §Metadata: a name is at most 4096 bytes.
        let name_length = u32::try_from(export.len()).ok().filter(|&length| length <= 4096);
        let name_length =
            name_length.ok_or_else(|| NbdError::Usage("an export name above 4096 bytes".into()))?;
        let mut payload = name_length.to_be_bytes().to_vec();
        payload.extend_from_slice(export.as_bytes());
        payload.extend_from_slice(&1u16.to_be_bytes());
        payload.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
        self.send_option(OPT_GO, &payload)?;
        let mut described = false;
        loop {
            let (kind, body) = self.option_reply(OPT_GO, deadline)?;
            match kind {
                REP_ACK if described => return Ok(()),
                REP_ACK => return Err(protocol("NBD_OPT_GO ended without NBD_INFO_EXPORT".into())),
                REP_INFO => described |= self.info(&body)?,
                _ if kind & REP_ERROR != 0 => {
                    return Err(NbdError::Negotiation {
                        option: "NBD_OPT_GO",
                        why: option_error(kind, &body),
                    });
                }
                _ => return Err(protocol(format!("reply type {kind} to NBD_OPT_GO"))),
            }
        }
    }

    /// One `NBD_REP_INFO`; true if it was `NBD_INFO_EXPORT`. Unknown kinds are skipped, as the protocol asks.
    fn info(&mut self, body: &[u8]) -> Result<bool, NbdError> {
        let kind = body.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        match (kind, body.len()) {
            (Some(INFO_EXPORT), 12) => {
                self.geometry.size = be_u64(body, 2);
                self.geometry.flags = TransmissionFlags((be_u32(body, 8) & 0xffff) as u16);
                Ok(true)
            }
            (Some(INFO_BLOCK_SIZE), 14) => {
                let maximum = be_u32(body, 10).min(DEFAULT_MAXIMUM_LENGTH);
                let sizes = BlockSizes { minimum: be_u32(body, 2), preferred: be_u32(body, 6), maximum };
                if !sizes.minimum.is_power_of_two()
                    || sizes.preferred < sizes.minimum
                    || maximum < sizes.minimum
                {
                    return Err(protocol(format!("impossible block sizes: {sizes:?}")));
                }
                self.geometry.block_sizes = sizes;
                Ok(false)
            }
            (Some(INFO_EXPORT | INFO_BLOCK_SIZE) | None, length) => {
                Err(protocol(format!("an NBD_REP_INFO of {length} bytes")))
            }
            _ => Ok(false),
        }
    }

    fn send_option(&mut self, option: u32, payload: &[u8]) -> Result<(), NbdError> {
        let length =
            u32::try_from(payload.len()).map_err(|_| NbdError::Usage("an option above 4 GiB".into()))?;
        let mut frame = OPTION_MAGIC.to_be_bytes().to_vec();
        frame.extend_from_slice(&option.to_be_bytes());
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(payload);
        self.send(&frame)
    }

    /// `NBD §Fixed newstyle negotiation`: one reply to `option`: its type and its payload.
    fn option_reply(&mut self, option: u32, deadline: Instant) -> Result<(u32, Vec<u8>), NbdError> {
        let magic = self.take_u64(deadline)?;
        let answered = self.take_u32(deadline)?;
        let kind = self.take_u32(deadline)?;
        let length = self.take_u32(deadline)?;
        if magic != OPTION_REPLY_MAGIC || answered != option || length > OPTION_REPLY_MAX {
            return Err(protocol(format!(
                "an option reply with magic {magic:#x}, option {answered}, {length} bytes"
            )));
        }
        let mut body = vec![0; length as usize];
        self.take_into(&mut body, deadline)?;
        Ok((kind, body))
    }
}

/// The socket.
impl NbdClient {
    /// Sends all of `bytes`. While the server does not take them, its replies are taken in.
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), NbdError> {
        let deadline = Instant::now() + self.timeout;
        self.set_nonblocking(self.payload_in_flight > SOCKET_HOLDS)?;
        let mut idle_turns = 0;
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(self.closed()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    idle_turns = 0;
                }
                Err(error) if would_block(&error) && !self.nonblocking => return Err(self.timed_out()),
                Err(error) if would_block(&error) => {
                    idle_turns = if self.drain()? { 0 } else { idle_turns + 1 };
                    if Instant::now() >= deadline {
                        return Err(self.timed_out());
                    }
                    match idle_turns {
                        0 => {}
                        1..=YIELDS => std::thread::yield_now(),
                        _ => std::thread::sleep(BACK_OFF),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(self.closed()),
                Err(error) => return Err(NbdError::Io(error)),
            }
        }
        Ok(())
    }

    /// Takes in what has arrived, without waiting; false if that is nothing. The socket must be non-blocking. Bounded
    /// by what the requests in flight can be answered with.
    fn drain(&mut self) -> Result<bool, NbdError> {
        let expected: usize = self.pending.values().map(Pending::reply_max).sum();
        let mut any = false;
        while self.input.len() - self.taken <= expected {
            match self.receive_more() {
                Ok(()) => any = true,
                Err(NbdError::Io(error)) if would_block(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }

    /// Changes the socket's mode, if it is not in it.
    fn set_nonblocking(&mut self, nonblocking: bool) -> Result<(), NbdError> {
        if self.nonblocking != nonblocking {
            self.stream.set_nonblocking(nonblocking).map_err(NbdError::Io)?;
            self.nonblocking = nonblocking;
        }
        Ok(())
    }

    /// Appends one read's worth to the input.
    fn receive_more(&mut self) -> Result<(), NbdError> {
        if self.taken == self.input.len() {
            self.input.clear();
            self.taken = 0;
        }
        let filled = self.input.len();
        self.input.resize(filled + INPUT_CHUNK, 0);
        let received = self.stream.read(&mut self.input[filled..]);
        self.input.truncate(filled + received.as_ref().copied().unwrap_or(0));
        match received {
            Ok(0) => Err(self.closed()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(self.closed()),
            Err(error) => Err(NbdError::Io(error)),
        }
    }

    /// Fills `target` from the input; what is missing goes from the socket to its place without a detour.
    fn take_into(&mut self, target: &mut [u8], deadline: Instant) -> Result<(), NbdError> {
        let mut done = self.take_available(target);
        while done < target.len() {
            if Instant::now() >= deadline {
                return Err(self.timed_out());
            }
            self.set_nonblocking(false)?;
            // Small pieces are headers: more than was asked for usually follows, and one call takes it all.
            if target.len() - done < INPUT_CHUNK / 4 {
                match self.receive_more() {
                    Err(NbdError::Io(error)) if would_block(&error) => return Err(self.timed_out()),
                    other => other?,
                }
                done += self.take_available(&mut target[done..]);
                continue;
            }
            match self.stream.read(&mut target[done..]) {
                Ok(0) => return Err(self.closed()),
                Ok(count) => done += count,
                Err(error) if would_block(&error) => return Err(self.timed_out()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NbdError::Io(error)),
            }
        }
        Ok(())
    }

    fn take_available(&mut self, target: &mut [u8]) -> usize {
        let available = &self.input[self.taken..];
        let count = available.len().min(target.len());
        target[..count].copy_from_slice(&available[..count]);
        self.taken += count;
        count
    }

    fn take_u16(&mut self, deadline: Instant) -> Result<u16, NbdError> {
        let mut bytes = [0; 2];
        self.take_into(&mut bytes, deadline)?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn take_u32(&mut self, deadline: Instant) -> Result<u32, NbdError> {
        let mut bytes = [0; 4];
        self.take_into(&mut bytes, deadline)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn take_u64(&mut self, deadline: Instant) -> Result<u64, NbdError> {
        let mut bytes = [0; 8];
        self.take_into(&mut bytes, deadline)?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn closed(&self) -> NbdError {
        NbdError::Closed { unanswered: self.pending.len() }
    }

    fn timed_out(&self) -> NbdError {
        NbdError::TimedOut { unanswered: self.pending.len() }
    }
}

/// `NBD §Request message`.
fn encode_request(out: &mut Vec<u8>, handle: u64, request: &Request<'_>) {
    let fua_flag = |fua: bool| if fua { CMD_FLAG_FUA } else { 0 };
    match *request {
        Request::Read { offset, length } => put_header(out, 0, CMD_READ, handle, offset, length),
        Request::Write { offset, data, fua } => {
            // `check` refused anything above DEFAULT_MAXIMUM_LENGTH.
            put_header(out, fua_flag(fua), CMD_WRITE, handle, offset, data.len() as u32);
            out.extend_from_slice(data);
        }
        Request::Flush => put_header(out, 0, CMD_FLUSH, handle, 0, 0),
        Request::Trim { offset, length } => put_header(out, 0, CMD_TRIM, handle, offset, length),
        Request::WriteZeroes { offset, length, no_hole, fua } => {
            let flags = fua_flag(fua) | if no_hole { CMD_FLAG_NO_HOLE } else { 0 };
            put_header(out, flags, CMD_WRITE_ZEROES, handle, offset, length);
        }
    }
}

fn put_header(out: &mut Vec<u8>, flags: u16, command: u16, handle: u64, offset: u64, length: u32) {
    out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&command.to_be_bytes());
    out.extend_from_slice(&handle.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}

/// The server's text for an option error, or the protocol's name of its type.
fn option_error(kind: u32, body: &[u8]) -> String {
    let name = match kind & !REP_ERROR {
        1 => "NBD_REP_ERR_UNSUP",
        2 => "NBD_REP_ERR_POLICY",
        3 => "NBD_REP_ERR_INVALID",
        4 => "NBD_REP_ERR_PLATFORM",
        5 => "NBD_REP_ERR_TLS_REQD",
        6 => "NBD_REP_ERR_UNKNOWN",
        7 => "NBD_REP_ERR_SHUTDOWN",
        8 => "NBD_REP_ERR_BLOCK_SIZE_REQD",
        9 => "NBD_REP_ERR_TOO_BIG",
        _ => "an error type the protocol does not name",
    };
    let text = String::from_utf8_lossy(body);
    if text.is_empty() { name.into() } else { format!("{name}: {text}") }
}

/// Reads at a fixed place; the caller has checked the length.
fn be_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn protocol(what: String) -> NbdError {
    NbdError::Protocol(what)
}

fn unknown_handle(handle: u64) -> NbdError {
    protocol(format!("a reply to handle {handle}, which is not in flight"))
}
