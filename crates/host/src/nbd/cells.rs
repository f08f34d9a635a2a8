//! What the server keeps in the ledger.

use base::coded;
use base::ledger::{Bytes, Cell, Code, Counter, Fifo, Layout, PAGE_SIZE, SlotCells};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Phase;
use crate::BlockKind;

/// Connections of a server.
pub const CONNECTIONS: usize = 16;
/// Bytes a connection has received and not yet understood.
pub const INPUT_BYTES: usize = 256 << 10;
/// Most bytes of one read or write, as clients are told.
pub const MAX_PAYLOAD: u32 = 1 << 20;
/// Most bytes of one read or write that is taken nevertheless: Linux's client cuts requests by its own limits, 1280 KiB
/// or 4 MiB.
pub const ACCEPTED_PAYLOAD: u32 = 4 << 20;
/// Requests of one connection that have no reply, or whose data is still being sent.
pub const CONNECTION_REQUESTS: usize = 64;
/// Requests of all connections, abandoned ones included.
pub const REQUESTS: usize = 256;

/// Places of the request table. Twice what is used, since a place that a step frees is used again only after the
/// commit.
pub(super) const PLACES: usize = 512;
pub(super) const PLACE_WORDS: usize = PLACES / 64;
/// Replies of one connection that are not sent.
pub(super) const OUTPUTS: usize = 128;
/// The longest reply without data: an option reply with block sizes.
pub(super) const HEADER_BYTES: usize = 40;
/// Pages of a request.
pub(super) const REQUEST_PAGES: usize = ACCEPTED_PAYLOAD as usize / PAGE_SIZE;

const _: () = {
    assert!(INPUT_BYTES.is_power_of_two() && OUTPUTS.is_power_of_two());
    assert!(REQUESTS * 2 <= PLACES && CONNECTION_REQUESTS * 2 <= OUTPUTS);
};

/// The server's state in the ledger. All zeroes: no connection, no geometry. What a new card looks at comes first: of
/// hundreds of servers, each page that it touches is a page fault.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct ServerCells {
    /// Logical blocks of the drive.
    pub(super) blocks: Cell<u64>,
    /// When ages are looked at, in nanoseconds; 0 for never.
    pub(super) deadline: Cell<u64>,
    /// Bytes of a block; 0 before the first geometry.
    pub(super) block_size: Cell<u32>,
    /// 1 for a read-only drive.
    pub(super) read_only: Cell<u32>,
    /// 1 while the drive is known, so that handshakes go on.
    pub(super) known: Cell<u32>,
    /// Requests given up that the drive has not been told of.
    pub(super) untold: Cell<u32>,
    /// Of each connection. Beside each other, so that nobody touches the memory of those that are not there.
    pub(super) phases: [Cell<Code<Phase>>; CONNECTIONS],
    pub(super) slots: SlotCells<PLACE_WORDS>,
    /// What the server has counted.
    pub counters: ServerCounters,
    /// Requests with something to emit.
    pub(super) ready: Fifo<u16, PLACES>,
    pub(super) connections: [ConnectionCells; CONNECTIONS],
    pub(super) requests: [RequestCells; PLACES],
    /// By connection, what it has received: written by the kernel behind what is committed as parsed.
    pub(super) inputs: [Bytes<INPUT_BYTES>; CONNECTIONS],
}

/// What the server counts.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct ServerCounters {
    /// Connections opened.
    pub connections: Counter,
    /// Requests that were read completely.
    pub requests: Counter,
    /// Bytes read by clients.
    pub read_bytes: Counter,
    /// Bytes written by clients.
    pub written_bytes: Counter,
    /// Requests answered with an error.
    pub errors: Counter,
    /// Requests that failed because the drive took too long.
    pub timeouts: Counter,
    /// Requests abandoned while the drive had them: timed out, or their client left.
    pub abandoned: Counter,
    /// Connections ended because a payload did not arrive while others waited for pages.
    pub stalled: Counter,
    /// Connections ended because the client broke the protocol.
    pub protocol_errors: Counter,
}

/// One connection.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct ConnectionCells {
    /// Position in the stream up to which the input is understood.
    pub(super) parsed: Cell<u64>,
    /// `parsed` as step `parsed_step` found it.
    pub(super) parsed_before: Cell<u64>,
    pub(super) parsed_step: Cell<u64>,
    /// Position in the stream behind the last reply.
    pub(super) output_end: Cell<u64>,
    /// Since when the first request waits for pages or a place, in nanoseconds; 0 for not.
    pub(super) starved_since: Cell<u64>,
    /// When the last byte of the present write's payload arrived, in nanoseconds.
    pub(super) filled_at: Cell<u64>,
    /// Bytes of payload that belong to nothing.
    pub(super) skip: Cell<u32>,
    /// Bytes of the present write's payload that have arrived.
    pub(super) filled: Cell<u32>,
    /// The present write.
    pub(super) filling: Cell<u16>,
    /// Requests counted to this connection.
    pub(super) held: Cell<u16>,
    /// Pages counted to this connection.
    pub(super) pages: Cell<u16>,
    pub(super) reserved: Cell<u8>,
    /// Bits of [`agreed`].
    pub(super) agreed: Cell<u8>,
    pub(super) output_head: Cell<u32>,
    pub(super) output_tail: Cell<u32>,
    pub(super) outputs: [Cell<Output>; OUTPUTS],
    /// Each is written with its output; what is replaced has been sent.
    pub(super) headers: [Bytes<HEADER_BYTES>; OUTPUTS],
}

/// Bits of [`ConnectionCells::agreed`].
pub(super) mod agreed {
    pub(in super::super) const NO_ZEROES: u8 = 1;
    pub(in super::super) const STRUCTURED: u8 = 2;
    /// The client has said that it goes.
    pub(in super::super) const FAREWELL: u8 = 4;
}

/// One reply.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Output {
    /// Position of its first byte in the stream.
    pub(super) start: u64,
    /// Bytes behind the header: data of a read.
    pub(super) data: u32,
    /// Bytes of the header.
    pub(super) header: u16,
    /// One more than the place of the request whose data follow; 0 for none.
    pub(super) request: u16,
}

impl Output {
    /// Position behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.header) + u64::from(self.data)
    }
}

/// One request.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct RequestCells {
    pub(super) head: Cell<Request>,
    pub(super) pages: [Cell<u16>; REQUEST_PAGES],
}

/// What a request is, and how far it has come.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Request {
    /// The client's number.
    pub(super) cookie: u64,
    /// First byte.
    pub(super) offset: u64,
    /// When its last byte arrived, in nanoseconds.
    pub(super) started: u64,
    /// Bytes.
    pub(super) len: u32,
    /// Bytes for which block requests have been emitted.
    pub(super) emitted: u32,
    /// Block requests without completion.
    pub(super) outstanding: u16,
    /// Pages held.
    pub(super) pages: u16,
    /// Block requests emitted.
    pub(super) parts: u16,
    pub(super) kind: Code<BlockKind>,
    pub(super) fua: u8,
    pub(super) stage: Code<Stage>,
    /// 0, or the NBD error; all of ours fit.
    pub(super) error: u8,
    /// Whether it stands in the ready queue.
    pub(super) queued: u8,
    pub(super) flush_after: Code<FlushAfter>,
    pub(super) connection: u8,
    /// 1 if it was given up and the drive has not been told.
    pub(super) untold: u8,
    pub(super) reserved: [u8; 2],
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Stage {
    /// The payload is arriving.
    Filling,
    /// The drive has it, or will.
    Active,
    /// Its data is being sent.
    Replying,
    /// Nobody waits for it, but the drive may still use its pages.
    Abandoned,
}
coded!(Stage: Filling, Active, Replying, Abandoned);

/// Whether a flush follows when all else of a request is done.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum FlushAfter {
    No,
    Wanted,
    /// All else is done.
    Due,
}
coded!(FlushAfter: No, Wanted, Due);

impl Request {
    pub(super) fn kind(&self) -> BlockKind {
        self.kind.get()
    }
}
