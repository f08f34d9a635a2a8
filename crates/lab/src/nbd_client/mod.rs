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

mod connection;
mod error;
mod geometry;
mod negotiation;
mod replies;
mod request;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use connection::Connection;
use error::protocol;
use replies::Pending;
use request::{disconnect_request, encode_request};

pub use error::NbdError;
pub use geometry::{BlockSizes, Geometry, TransmissionFlags};
pub use request::{Errno, Handle, Reply, Request};

/// The largest read or write that a server without stated limits must take (`NBD §Block size constraints`), and the
/// largest that this client accepts as a stated maximum.
pub const DEFAULT_MAXIMUM_LENGTH: u32 = 32 << 20;

// NBD §Simple reply message, §Structured reply chunk message.
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// One connection to an NBD server.
///
/// Requests are pipelined: [`submit`](Self::submit) returns at once, [`next_reply`](Self::next_reply) gives the replies
/// in the order in which the server finished them. The helpers ([`read`](Self::read) and so on) do one request and wait
/// for it; they may only be used while nothing else is in flight.
///
/// After an error that is not [`NbdError::Refused`] or [`NbdError::Usage`] the connection is of no further use.
pub struct NbdClient {
    connection: Connection,
    geometry: Geometry,
    structured: bool,
    next_handle: u64,
    pending: BTreeMap<u64, Pending>,
    output: Vec<u8>,
    /// A buffer of an earlier reply, kept to spare an allocation a read.
    spare: Vec<u8>,
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
        let connection = Connection::open(path, options.timeout)?;
        let mut client = Self::unnegotiated(connection);
        client.negotiate(&options)?;
        Ok(client)
    }

    fn unnegotiated(connection: Connection) -> Self {
        let block_sizes = BlockSizes { minimum: 1, preferred: 4096, maximum: DEFAULT_MAXIMUM_LENGTH };
        Self {
            connection,
            geometry: Geometry { size: 0, flags: TransmissionFlags(0), block_sizes },
            structured: false,
            next_handle: 1,
            pending: BTreeMap::new(),
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

    /// Tells the server by the socket alone that no request follows; replies to those in flight still come.
    pub fn end_requests(&mut self) -> Result<(), NbdError> {
        self.connection.end_output()
    }

    /// Sends a request and returns without waiting for its reply.
    ///
    /// # Errors
    /// [`NbdError::Usage`] for a payload above the server's maximum or a capability the server lacks. Ranges outside
    /// the export and wrong alignment are left to the server: tests ask for them.
    pub fn submit(&mut self, request: Request<'_>) -> Result<Handle, NbdError> {
        self.check(&request)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.output.clear();
        encode_request(&mut self.output, handle, &request);
        let pending = Pending::new(&request, &mut self.spare);
        self.connection.owe(pending.payload, pending.reads());
        self.pending.insert(handle, pending);
        self.connection.send(&self.output).map(|()| Handle(handle))
    }

    /// Waits for the next finished request. `data` is replaced: the bytes of a successful read, else empty.
    ///
    /// # Errors
    /// [`NbdError::Usage`] when nothing is in flight; otherwise the connection's own failures. A request that the
    /// server failed is not an error here but [`Reply::result`].
    pub fn next_reply(&mut self, data: &mut Vec<u8>) -> Result<Reply, NbdError> {
        if self.pending.is_empty() {
            return Err(NbdError::Usage("no request is in flight, so no reply can come".into()));
        }
        let deadline = self.connection.deadline();
        loop {
            let magic = self.connection.take_u32(deadline)?;
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
        self.connection.send(&disconnect_request())
    }

    /// Sends bytes as they are, for tests of what a server does with nonsense.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), NbdError> {
        self.connection.send(bytes)
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
