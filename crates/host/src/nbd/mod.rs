//! An NBD server: byte streams of clients on one side, block requests to a drive on the other.
//!
//! Fixed newstyle negotiation, one export with the empty name, simple and structured replies, several connections
//! (NBD «Protocol phases»). The bytes themselves are moved by the kernel into and out of the ledger, and it keeps the
//! account of their positions: the *received* and *sent* positions are therefore given to the server, and are never
//! taken back, while everything the server makes of the bytes is. Positions count from 0 at [`Server::open`].
//!
//! Bounds: [`CONNECTIONS`], each with [`INPUT_BYTES`] of input and [`CONNECTION_REQUESTS`] requests; [`REQUESTS`] in
//! all; reads and writes of up to [`ACCEPTED_PAYLOAD`]. Who exceeds them is not read from until there is room again.
//!
//! A request that the drive does not end in time fails with `EIO`. The drive is told ([`Server::poll_abandoned`]), and
//! its pages stay held until the drive lets go of them. A client that stops in the middle of a payload is closed as
//! soon as another waits for its pages.
//!
//! Left out: TLS, metadata contexts and block status, extended headers, CACHE, resizing.

mod cells;
mod handshake;
mod output;
mod parse;
mod requests;
#[cfg(test)]
mod tests;

use core::ops::RangeInclusive;
use core::time::Duration;

use base::ledger::{Journal, PageIndex, Pages, Slots, Span};
use base::{Instant, coded};

use crate::{BlockError, BlockRequest, Geometry};
pub use cells::{
    ACCEPTED_PAYLOAD, CONNECTION_REQUESTS, CONNECTIONS, INPUT_BYTES, MAX_PAYLOAD, REQUESTS, ServerCells,
    ServerCounters,
};
use cells::{ConnectionCells, PLACE_WORDS, Stage, agreed};

/// What a connection is doing.
///
/// ```text
///  Closed --open--> Flags --> Options <--> SkipOption
///                                |
///                           Transmission --> Payload (of a write) --> Transmission
///                                |      `--> SkipPayload (of a refused write) --> Transmission
///                                v
///                             Closing          from every state: ABORT, DISC, broken protocol
/// ```
/// `closed` leads to `Closed` from every state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Closed = 0,
    Flags,
    Options,
    SkipOption,
    Transmission,
    Payload,
    SkipPayload,
    Closing,
}

coded!(Phase: Closed, Flags, Options, SkipOption, Transmission, Payload, SkipPayload, Closing);

/// The NBD server in front of one drive.
///
/// The drain contract: after any verb call [`poll_abandoned`](Self::poll_abandoned) until it returns `None` and
/// [`poll_request`](Self::poll_request) until it does or the drive has no room, commit, then act on it, and send what
/// [`send_spans`](Self::send_spans) gives.
pub struct Server<'m> {
    cells: &'m ServerCells,
    pages: Pages<'m>,
    slots: Slots<'m, PLACE_WORDS>,
    journal: Journal<'m>,
    io_timeout: Duration,
    /// The present, as the last verb was told.
    now: Instant,
    /// What the first one was told.
    born: Option<Instant>,
    /// The received positions, as far as this card was told.
    received: [u64; CONNECTIONS],
    /// Pages that the first request of a connection waits for.
    starved: [Option<usize>; CONNECTIONS],
    /// The pages of the request that `poll_request` returned last.
    part: [PageIndex; BlockRequest::MAX_PAGES],
}

impl<'m> Server<'m> {
    /// The server over `cells`; over those of a dead card it goes on as soon as it is told the received positions
    /// again. `io_timeout` limits how long a request waits for the drive.
    pub fn new(cells: &'m ServerCells, pages: Pages<'m>, journal: Journal<'m>, io_timeout: Duration) -> Self {
        let received = |slot: usize| match cells.phases[slot].value() {
            Phase::Closed => 0,
            _ => cells.connections[slot].parsed.get(),
        };
        Self {
            cells,
            pages,
            slots: Slots::new(&cells.slots, journal),
            journal,
            io_timeout,
            now: Instant::ZERO,
            born: None,
            received: core::array::from_fn(received),
            starved: [None; CONNECTIONS],
            part: [PageIndex(0); BlockRequest::MAX_PAGES],
        }
    }

    /// A client has connected; `slot` is idle. Both positions start at 0.
    pub fn open(&mut self, now: Instant, slot: usize) {
        assert!(self.is_idle(slot), "a connection is opened in an idle slot");
        self.set_now(now);
        self.received[slot] = 0;
        self.starved[slot] = None;
        self.cells.counters.connections.add(1);
        self.greet(slot);
    }

    /// The client has gone, or the connection was closed: what is in flight ends silently.
    pub fn closed(&mut self, now: Instant, slot: usize) {
        self.set_now(now);
        self.abandon_all(slot);
        self.reset_connection(slot);
        self.starved[slot] = None;
    }

    /// Whether a connection can be opened in `slot`.
    pub fn is_idle(&self, slot: usize) -> bool {
        self.phase(slot) == Phase::Closed
    }

    /// Whether the card is to close the connection: it has ended in order or broken the protocol, and everything owed
    /// to it has been sent.
    pub fn wants_close(&self, slot: usize) -> bool {
        let connection = self.connection(slot);
        self.phase(slot) == Phase::Closing && connection.held.get() == 0 && self.output_len(slot) == 0
    }

    /// Whether the client has said that it goes, and something that it asked for before has not ended: that is done
    /// though the client may be gone (NBD «Request types», `NBD_CMD_DISC`: "The server MUST handle all outstanding
    /// requests").
    pub fn is_leaving(&self, slot: usize) -> bool {
        let connection = self.connection(slot);
        connection.agreed.get() & agreed::FAREWELL != 0 && connection.held.get() > 0
    }

    /// Where the kernel may put the bytes from `position` on, in this order; both empty when nothing can be taken now.
    /// Only space that was free at the last commit.
    pub fn receive_spans(&self, slot: usize, position: u64) -> [Span<'m>; 2] {
        let taken = position.saturating_sub(self.parsed_at_commit(slot));
        let reading = !matches!(self.phase(slot), Phase::Closed | Phase::Closing);
        let room = if reading {
            INPUT_BYTES.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX))
        } else {
            0
        };
        let start = position as usize % INPUT_BYTES;
        let first = room.min(INPUT_BYTES - start);
        let input = &self.cells.inputs[slot];
        [input.span(start, first), input.span(0, room - first)]
    }

    /// The client's stream has been received up to `position`. Told again to a successor.
    pub fn handle_received(&mut self, now: Instant, slot: usize, position: u64) {
        self.set_now(now);
        let most = self.parsed_at_commit(slot) + INPUT_BYTES as u64;
        self.received[slot] = position.min(most).max(self.received[slot]);
        self.advance(slot);
    }

    /// Fills `spans` with what is to be sent from `position` on, and returns how many were. Only for use right after a
    /// commit.
    pub fn send_spans(&self, slot: usize, position: u64, spans: &mut [Span<'m>]) -> usize {
        self.fill_spans(slot, position, spans)
    }

    /// The client's stream has been sent up to `position`. Told again to a successor.
    pub fn handle_sent(&mut self, now: Instant, slot: usize, position: u64) {
        self.set_now(now);
        self.pop_sent(slot, position);
        self.advance(slot);
    }

    /// Where the stream to the client ends: there is something to send while the sent position is below.
    pub fn output_end(&self, slot: usize) -> u64 {
        self.connection(slot).output_end.get()
    }

    /// What the drive is; `None` while that is not known, which makes handshakes wait. May be told as often as one
    /// likes. Requests that were cut into blocks of another size fail.
    pub fn set_geometry(&mut self, now: Instant, geometry: Option<Geometry>) {
        let (cells, journal) = (self.cells, self.journal);
        self.set_now(now);
        let known = u32::from(geometry.is_some());
        let Some(geometry) = geometry else { return cells.known.set(journal, known) };
        let old = cells.block_size.get();
        cells.blocks.set(journal, geometry.blocks);
        cells.block_size.set(journal, geometry.block_size);
        cells.read_only.set(journal, geometry.read_only.into());
        if old != 0 && old != geometry.block_size {
            self.fail_all();
        }
        if cells.known.get() != known {
            cells.known.set(journal, known);
            (0..CONNECTIONS).for_each(|slot| self.advance(slot));
        }
    }

    /// What the drive holds is no longer what the clients believe: every request that has not ended fails with `EIO`,
    /// as soon as the drive lets go of it, and then the connections are closed. Who connects anew finds what the drive
    /// holds now.
    pub fn evict_clients(&mut self, now: Instant) {
        self.set_now(now);
        self.fail_all();
        (0..CONNECTIONS).for_each(|slot| self.ended(now, slot));
    }

    /// The client will send nothing more: its connection is closed when it has all replies.
    pub fn ended(&mut self, now: Instant, slot: usize) {
        self.set_now(now);
        if !self.is_idle(slot) {
            self.end_input(slot);
        }
    }

    /// The next request to the drive, each once.
    pub fn poll_request(&mut self) -> Option<BlockRequest<'_>> {
        self.resume();
        let (place, part) = self.next_part()?;
        let count = self.copy_pages(place, &part);
        Some(BlockRequest {
            id: id_of(place, part.index),
            kind: part.kind,
            lba: part.lba,
            blocks: part.blocks,
            fua: part.fua,
            pages: &self.part[..count],
        })
    }

    /// Identifiers of requests to the drive that nobody waits for any more, each once: some of them may have ended.
    pub fn poll_abandoned(&mut self) -> Option<RangeInclusive<u32>> {
        let (place, request) = self.tell_abandoned()?;
        Some(id_of(place, 0)..=id_of(place, request.parts))
    }

    /// The drive has ended request `id`.
    pub fn handle_completion(&mut self, now: Instant, id: u32, result: Result<(), BlockError>) {
        self.set_now(now);
        let place = (id >> 16) as u16;
        if usize::from(place) < cells::PLACES && self.slots.is_used(place) {
            self.part_done(place, result);
        }
    }

    /// Whether a client waits for pages that nobody is about to free: the drive may have some.
    pub fn wants_pages(&self) -> bool {
        self.starved.iter().flatten().any(|pages| *pages > 0 && !self.has_room(*pages))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, if at all: at once when a request waits for pages
    /// that the coming commit sets free.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.starved.iter().flatten().any(|pages| self.has_room(*pages)) {
            return Some(self.now);
        }
        let deadline = self.cells.deadline.get();
        (deadline != 0).then_some(Instant::from_nanos(deadline))
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_now(now);
        self.resume();
        let deadline = self.cells.deadline.get();
        if deadline != 0 && deadline <= now.as_nanos() {
            self.expire();
        }
    }

    /// Requests of connections that have no reply.
    pub fn in_flight(&self) -> usize {
        self.cells.connections.iter().map(|connection| usize::from(connection.held.get())).sum()
    }

    /// Requests that nobody waits for any more, but whose pages the drive still has.
    pub fn abandoned(&self) -> usize {
        self.slots.iter().filter(|place| self.request(*place).stage == Stage::Abandoned).count()
    }

    /// The statistics.
    pub fn counters(&self) -> &'m ServerCounters {
        &self.cells.counters
    }

    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.born.get_or_insert(now);
    }

    fn connection(&self, slot: usize) -> &'m ConnectionCells {
        &self.cells.connections[slot]
    }

    fn phase(&self, slot: usize) -> Phase {
        self.cells.phases[slot].value()
    }

    fn set_phase(&self, slot: usize, phase: Phase) {
        self.cells.phases[slot].set(self.journal, phase.into());
    }

    /// The parse position of the last commit: before it, the input is free.
    fn parsed_at_commit(&self, slot: usize) -> u64 {
        let connection = self.connection(slot);
        if connection.parsed_step.get() == self.journal.step() + 1 {
            connection.parsed_before.get()
        } else {
            connection.parsed.get()
        }
    }

    /// Counts `bytes` of the input as understood.
    fn consume(&self, slot: usize, bytes: usize) {
        let (connection, journal) = (self.connection(slot), self.journal);
        // One more than the step, so that zeroes mean no step.
        let step = journal.step() + 1;
        if connection.parsed_step.get() != step {
            connection.parsed_before.set(journal, connection.parsed.get());
            connection.parsed_step.set(journal, step);
        }
        connection.parsed.update(journal, |parsed| parsed + bytes as u64);
    }

    /// Goes on with connections that wait for pages.
    fn resume(&mut self) {
        for slot in 0..CONNECTIONS {
            if self.starved[slot].is_some() {
                self.advance(slot);
            }
        }
    }

    /// Nothing more is read from the client.
    pub(super) fn end_input(&mut self, slot: usize) {
        let was = self.phase(slot);
        self.set_phase(slot, Phase::Closing);
        if was == Phase::Payload {
            self.release(self.connection(slot).filling.get());
        }
    }

    fn reset_connection(&self, slot: usize) {
        let (connection, journal) = (self.connection(slot), self.journal);
        for position in [
            &connection.parsed,
            &connection.parsed_step,
            &connection.output_end,
            &connection.starved_since,
            &connection.filled_at,
        ] {
            position.set(journal, 0);
        }
        for count in [&connection.held, &connection.pages, &connection.filling] {
            count.set(journal, 0);
        }
        connection.skip.set(journal, 0);
        connection.filled.set(journal, 0);
        connection.agreed.set(journal, 0);
        connection.output_head.set(journal, 0);
        connection.output_tail.set(journal, 0);
        self.set_phase(slot, Phase::Closed);
    }
}

/// Names part `part` of the request at `place` to the drive.
fn id_of(place: u16, part: u16) -> u32 {
    u32::from(place) << 16 | u32::from(part)
}
