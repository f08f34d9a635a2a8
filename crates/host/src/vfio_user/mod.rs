//! A vfio-user server session: one slot of a virtual machine, one socket, one function.
//!
//! The client is a virtual machine monitor. Its bytes come in, its accesses to the function go out
//! ([`Session::poll_request`]), the function's answers and interrupts come in, and what is to be signalled, mapped and
//! closed goes out. The bytes themselves are moved by the kernel into and out of the ledger, and it keeps the account
//! of their positions, which are given to the session and never taken back. Positions count from 0 at
//! [`Session::open`].
//!
//! Messages with descriptors are not read by the card. It looks at what the socket has (`MSG_PEEK`), and the session
//! says how much of it the card may receive and when the agent has to take the next message
//! ([`Session::handle_peeked`], [`Session::handle_taken`]). Those messages do not count in the positions.
//!
//! ```text
//!  socket --peek--> handle_peeked --Consume(n)-----> card receives n --> handle_received
//!                        `--AgentTakes{len}--> agent receives len --> handle_taken (again until `taken` says so)
//! ```
//!
//! Commands are done, and answered, in the order in which they came: a client may wait for the last of several only.
//! Posted writes stand in the same queue, so that nothing passes them. A command that the function does not answer in
//! time fails, and from then on each one fails at once, until the function is heard of again
//! ([`Session::handle_heard`]): a client holds all of its machine while it waits. An errno is what makes a read
//! all-ones in the guest.
//!
//! Bounds: [`COMMANDS`] commands, [`INPUT_BYTES`] of input, [`TRANSFER_BYTES`] an access, [`MAPS`] maps, [`VECTORS`]
//! vectors. Who exceeds them is not read from until there is room again, or gets an error.
//!
//! Left out: regions that can be mapped, I/O descriptors of regions, migration, dirty pages, MSI, twin sockets.

mod bits;
mod cells;
mod commands;
mod config_space;
mod dma;
mod input;
mod interrupts;
mod output;
mod queue;
mod regions;
mod slot_config;
#[cfg(test)]
mod tests;
mod transfers;

use base::ledger::{Journal, Slots, Span};
use base::{InlineBytes, Instant, coded};
use spec::vfio_user::Errno;

use crate::{AccessError, AccessId};
pub use cells::{
    COMMANDS, INPUT_BYTES, MAPS, MESSAGE_DESCRIPTORS, SessionCells, SessionCounters, TRANSFER_BYTES,
    TRANSFERS, VECTORS,
};
use cells::{MAP_WORDS, Misled, flag};
use config_space::Local;
pub use dma::{DmaAccessKind, DmaError, DmaMapping, DmaPiece, MapId};
use queue::Need;
pub use slot_config::{SlotConfig, SlotConfigError};
pub use transfers::{TransferDone, TransferRefused};

/// Where the DMA addresses of a client end: the last page of an aperture of 44 bits is the card's, for interrupts.
pub const DMA_END: u64 = (1 << 44) - 4096;

/// Names a descriptor that the agent keeps. Chosen by the agent, each once in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorId(pub u32);

impl DescriptorId {
    /// The greatest id that an agent may choose.
    pub const MAX: Self = Self(u32::MAX - 1);
}

/// What to do with the bytes that the socket has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peeked {
    /// The card receives at most so many, and no more: at least 1.
    Consume(usize),
    /// The agent receives the next message: this many bytes, all of which are there, and its descriptors.
    AgentTakes {
        /// Bytes.
        len: usize,
    },
    /// Too little to decide: look again when there is more. A socket with something in it is always readable, so that
    /// only an edge-triggered wait notices.
    NeedMore,
    /// The session has no room, or has not been told of all that was received: look again when something else has
    /// happened.
    Wait,
}

/// What the session wants of the function. Each is given out once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Posted write to a BAR: 1 to 64 bytes that do not cross a multiple of 64, so that one TLP with byte enables does
    /// it.
    Write {
        /// Base address register.
        bar: u8,
        /// Byte offset in it.
        offset: u64,
        /// The bytes.
        bytes: InlineBytes,
    },
    /// Read of a BAR. Answered with `len` bytes.
    Read {
        /// Comes back with the data.
        id: AccessId,
        /// Base address register.
        bar: u8,
        /// Byte offset in it.
        offset: u64,
        /// Bytes: 1 to 64, not crossing a multiple of 64.
        len: u8,
    },
    /// Read of a configuration dword. Answered with its 4 bytes.
    ConfigRead {
        /// Comes back with the data.
        id: AccessId,
        /// Byte offset, dword aligned.
        register: u16,
    },
    /// Write of a configuration dword. Answered without data.
    ConfigWrite {
        /// Comes back when it is done.
        id: AccessId,
        /// Byte offset, dword aligned.
        register: u16,
        /// The value.
        value: u32,
        /// Which of its bytes.
        byte_enables: u8,
    },
    /// The function is to be reset, and everything restored that the card itself needs: vectors, memory space. Nothing
    /// else is given out until it is answered, without data.
    Reset {
        /// Comes back when it is done.
        id: AccessId,
        /// What was asked for.
        kind: ResetKind,
    },
}

/// What resets a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetKind {
    /// The guest initiated a function-level reset (PCIe 6.0 §6.6.2).
    FunctionLevel,
    /// DEVICE_RESET: the bus above the function is reset, or the machine.
    Bus,
}

/// What a session is doing.
///
/// ```text
///  Closed --open--> Version --VERSION--> Ready
///                      `------> Ending <---'      a message without sense, or a version that is not ours
/// ```
/// `closed` leads to `Closed` from every state. What comes while `Ending` is received and dropped: QEMU dies of a
/// socket that is closed while something in it is unread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Closed = 0,
    Version,
    Ready,
    Ending,
}

coded!(Phase: Closed, Version, Ready, Ending);

/// One slot's session.
///
/// The drain contract: after any verb call [`poll_request`](Self::poll_request) until it returns `None` or the function
/// has no room, and [`poll_signal`](Self::poll_signal), [`poll_vector`](Self::poll_vector),
/// [`poll_map`](Self::poll_map) and [`poll_transfer`](Self::poll_transfer) until they return `None`; commit, then act
/// on it, and send what [`send_spans`](Self::send_spans) gives. Signals that a dead card did not give are made good by
/// [`signal_all`](Self::signal_all).
pub struct Session<'m> {
    cells: &'m SessionCells,
    config: SlotConfig,
    locals: Vec<Local>,
    journal: Journal<'m>,
    map_slots: Slots<'m, MAP_WORDS>,
    transfer_slots: Slots<'m, 1>,
    /// The present, as the last verb was told.
    now: Instant,
    /// The received position, as far as this card was told.
    received: u64,
    /// Where the first message begins that has not been framed: at or behind `received`, or less than a header before
    /// it.
    framed: u64,
    /// What the next message waits for, which is there.
    stalled: Option<Need>,
    /// This step has done enough, and something is left.
    deferred: bool,
}

impl<'m> Session<'m> {
    /// The session over `cells`; over those of a dead card it goes on as soon as it is told the positions again.
    /// `config` is the same for every card on one ledger, and has been checked.
    pub fn new(cells: &'m SessionCells, journal: Journal<'m>, config: SlotConfig) -> Self {
        let locals = config_space::locals(&config);
        let received = cells.parsed.get();
        Self {
            cells,
            locals,
            config,
            journal,
            map_slots: Slots::new(&cells.maps.slots, journal),
            transfer_slots: Slots::new(&cells.transfers.slots, journal),
            now: Instant::ZERO,
            received,
            framed: received + cells.skip.get(),
            stalled: None,
            deferred: false,
        }
    }

    /// A client has connected; the session is idle. Both positions start at 0.
    pub fn open(&mut self, now: Instant) {
        assert!(self.is_idle(), "a client is taken by an idle session");
        self.now = now;
        self.cells.counters.clients.add(1);
        self.set_phase(Phase::Version);
    }

    /// The client has gone, or the connection was closed: its maps, vectors and descriptors go, and nothing is answered
    /// any more. Maps with running copies stay until those have ended. A step of its own: it may take most of the undo
    /// log.
    pub fn closed(&mut self, now: Instant) {
        self.now = now;
        self.forget_commands();
        self.unmap_everything();
        self.release_vectors();
        self.forget_transfers();
        self.reset_stream();
        // The next one finds configuration space as after a reset; that the function is so is the card's business.
        self.reset_registers();
        self.set_phase(Phase::Closed);
    }

    /// Whether no client is there.
    pub fn is_idle(&self) -> bool {
        self.phase() == Phase::Closed
    }

    /// Whether version and capabilities have been agreed upon.
    pub fn is_ready(&self) -> bool {
        self.phase() == Phase::Ready
    }

    /// Whether the card is to close the connection: the client broke the protocol, and everything owed to it has been
    /// sent.
    pub fn wants_close(&self) -> bool {
        self.phase() == Phase::Ending && self.command_count() == 0 && self.cells.outputs.is_empty()
    }

    /// Whether the client is between two messages, as far as they were received, and every one has been answered, and
    /// that sent.
    pub fn is_at_rest(&self) -> bool {
        let everything = self.received == self.cells.parsed.get() && self.cells.skip.get() == 0;
        self.is_ready() && everything && self.command_count() == 0 && self.cells.outputs.is_empty()
    }

    /// Whether the function is there and the client wants to be interrupted by it: what a driver begins with and ends
    /// with.
    pub fn is_in_use(&self) -> bool {
        !self.is_absent() && (0..self.config.vectors()).any(|vector| self.is_enabled(vector))
    }

    /// What to do with `bytes`, the first that the socket has: behind the received `position`, and after `taken`
    /// messages that the agent has taken of it. While the session has not been told of all of that, it waits. Only for
    /// use right after a commit.
    pub fn handle_peeked(&self, position: u64, taken: u64, bytes: &[u8]) -> Peeked {
        if position != self.received || taken != self.taken() {
            return Peeked::Wait;
        }
        self.judge(bytes)
    }

    /// Where the kernel may put at most `len` bytes from `position` on, in this order: what
    /// [`handle_peeked`](Self::handle_peeked) allowed. Only space that was free at the last commit.
    pub fn receive_spans(&self, position: u64, len: usize) -> [Span<'m>; 2] {
        let room = self.input_room(position).min(len);
        let start = position as usize % INPUT_BYTES;
        let first = room.min(INPUT_BYTES - start);
        [self.cells.input.span(start, first), self.cells.input.span(0, room - first)]
    }

    /// Up to where this session was told that the client's stream has been received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The client's stream has been received up to `position`. Told again to a successor, before anything is peeked at.
    pub fn handle_received(&mut self, now: Instant, position: u64) {
        self.now = now;
        let most = self.cells.parsed.at_commit(self.journal) + INPUT_BYTES as u64;
        self.received = position.min(most).max(self.received);
        self.frame();
        self.advance();
    }

    /// The agent has taken a message: its bytes, and what it calls the descriptors that came with it. `number` counts
    /// the messages that the agent takes for this slot, from 1 on. May be repeated; the agent keeps the message until
    /// [`taken`](Self::taken) has been committed.
    ///
    /// # Panics
    /// If there are more than [`MESSAGE_DESCRIPTORS`] descriptors: the agent closes what is too many.
    pub fn handle_taken(&mut self, now: Instant, number: u64, bytes: &[u8], descriptors: &[DescriptorId]) {
        self.now = now;
        assert!(descriptors.len() <= MESSAGE_DESCRIPTORS, "an agent gives at most {MESSAGE_DESCRIPTORS}");
        if number > self.cells.taken.get() {
            self.cells.taken.set(self.journal, number);
            self.take(bytes, descriptors);
            self.advance();
        }
    }

    /// The number of the last message that was handed in by [`handle_taken`](Self::handle_taken).
    pub fn taken(&self) -> u64 {
        self.cells.taken.get()
    }

    /// Fills `spans` with what is to be sent from `position` on, and returns how many were. Only for use right after a
    /// commit.
    ///
    /// QEMU gives up on a header that does not arrive as a whole. The kernel takes what is sent at once in pieces of
    /// about half the send buffer: whoever sends at most 64 KiB at once never cuts one.
    pub fn send_spans(&self, position: u64, spans: &mut [Span<'m>]) -> usize {
        self.fill_spans(position, spans)
    }

    /// The client's stream has been sent up to `position`. Told again to a successor.
    pub fn handle_sent(&mut self, now: Instant, position: u64) {
        self.now = now;
        self.pop_sent(position);
        self.settle();
        self.advance();
    }

    /// Where the stream to the client ends: there is something to send while the sent position is below.
    pub fn output_end(&self) -> u64 {
        self.cells.output_end.get()
    }

    /// The client will send nothing more: the connection is closed when everything has been answered.
    pub fn ended(&mut self, now: Instant) {
        self.now = now;
        if !self.is_idle() {
            self.set_phase(Phase::Ending);
        }
    }

    /// The next request to the function, each once.
    pub fn poll_request(&mut self) -> Option<Request> {
        self.next_request()
    }

    /// The function has answered request `id`, or is known not to. A late answer is ignored.
    pub fn handle_done(&mut self, now: Instant, id: AccessId, result: Result<&[u8], AccessError>) {
        self.now = now;
        if result.is_ok() {
            self.cells.refuse_until.set(self.journal, 0);
            self.end_silence();
        }
        let is_awaited = self.command_of(id).is_some_and(|(number, _)| !self.command(number).is(flag::DONE));
        self.request_done(id, result.map_err(errno_of));
        if is_awaited && result == Err(AccessError::Timeout) {
            self.fall_silent();
        }
        self.advance();
    }

    /// Whoever has the function has answered something: commands wait for it again.
    pub fn handle_heard(&mut self, now: Instant) {
        self.now = now;
        self.end_silence();
    }

    /// Whether a command had no answer in time, and nothing was heard since: each one fails at once.
    pub fn is_silent(&self) -> bool {
        self.cells.is_silent()
    }

    /// Whether the client has read a register as all-ones because the function is silent: said once in a silence. Its
    /// driver may have given the function up, and with it the memory that it has told it of.
    pub fn poll_misled(&mut self) -> bool {
        let is_news = self.cells.misled.value() == Misled::Untold;
        if is_news {
            self.cells.misled.set(self.journal, Misled::Told.into());
            self.cells.counters.blackouts.add(1);
        }
        is_news
    }

    /// Whether a posted write of the client was dropped since this was asked last, though the function is there: it is
    /// not what its client takes it for.
    pub fn poll_lost_write(&mut self) -> bool {
        let is_news = self.cells.lost.get() != 0;
        self.cells.lost.set(self.journal, 0);
        is_news
    }

    /// The function was reset, and not because this client wanted it: what it was given and has not answered fails, and
    /// what it wanted to say is forgotten. Its vectors and its command register are the card's to restore.
    pub fn handle_function_reset(&mut self, now: Instant) {
        self.now = now;
        self.fail_outstanding(Errno::EIO);
        self.forget_pending();
        self.advance();
    }

    /// Where the part of a BAR begins that request `id` reads, if it is one that has no answer yet: base address
    /// register and byte offset.
    pub fn bar_read(&self, id: AccessId) -> Option<(u8, u64)> {
        self.find_bar_read(id)
    }

    /// Whether a reset that the client wants is under way, and the client waits for it.
    pub fn awaits_reset(&self) -> bool {
        self.cells.resetting.get() != 0
    }

    /// The command register as the client has set it: what the function's has to be after a reset that the client does
    /// not know of.
    pub fn command_register(&self) -> u16 {
        self.own_command() as u16
    }

    /// Whether the function is there. While it is not, reads fail, writes go nowhere, and everything is answered.
    pub fn set_present(&mut self, now: Instant, present: bool) {
        self.now = now;
        self.cells.absent.set(self.journal, u32::from(!present));
        if !present {
            self.fail_requests(Errno::EIO);
        }
        self.advance();
    }

    /// The fabric has seen errors of the function: sets bits of a status register of Advanced Error Reporting, which is
    /// `status` bytes into the capability ([`pcie::capability::aer`]).
    pub fn record_error(&mut self, status: u16, bits: u32) {
        self.set_error_bits(status, bits);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, if at all: at once when something waits for
    /// nothing but the coming commit.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.can_resume() {
            return Some(self.now);
        }
        let transfer = self.oldest_transfer().map(|started| started + self.config.timeout);
        [self.oldest_command(), transfer].into_iter().flatten().min()
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        // A command may wait for a transfer that is no younger.
        self.expire_transfers();
        self.expire_commands();
        self.advance();
    }

    /// The descriptors that the session does not use any more, until [`handle_closed`](Self::handle_closed).
    pub fn released(&self) -> impl Iterator<Item = DescriptorId> + '_ {
        self.cells.released.iter().map(DescriptorId)
    }

    /// The agent has closed `descriptor`, the first of [`released`](Self::released). May be repeated.
    pub fn handle_closed(&mut self, descriptor: DescriptorId) {
        if self.cells.released.front() == Some(descriptor.0) {
            self.cells.released.pop(self.journal);
        }
    }

    /// Commands that have no reply.
    pub fn in_flight(&self) -> usize {
        self.command_count()
    }

    /// The statistics.
    pub fn counters(&self) -> &'m SessionCounters {
        &self.cells.counters
    }

    fn phase(&self) -> Phase {
        self.cells.phase.value()
    }

    fn end_silence(&self) {
        self.cells.silent.set(self.journal, 0);
        if self.cells.misled.value() == Misled::Told {
            self.cells.misled.set(self.journal, Misled::Not.into());
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.cells.phase.set(self.journal, phase.into());
    }

    fn is_absent(&self) -> bool {
        self.cells.absent.get() != 0
    }

    /// The session has a descriptor more.
    fn hold(&self, descriptor: DescriptorId) -> u32 {
        self.cells.held.update(self.journal, |held| held + 1);
        descriptor.0.wrapping_add(1)
    }

    /// The session needs a descriptor no more; `stored` is one more than its id.
    fn release(&self, stored: u32) {
        if let Some(descriptor) = stored.checked_sub(1) {
            self.cells.held.update(self.journal, |held| held.saturating_sub(1));
            self.return_descriptor(DescriptorId(descriptor));
        }
    }

    /// The agent may close a descriptor. There is always room: a message is taken only if there is for all that are
    /// held.
    fn return_descriptor(&self, descriptor: DescriptorId) {
        self.cells.released.push(self.journal, descriptor.0);
    }

    /// The client broke the protocol: what it sends is dropped from here on.
    fn break_off(&self) {
        self.cells.counters.protocol_errors.add(1);
        self.set_phase(Phase::Ending);
    }

    fn reset_stream(&mut self) {
        let (cells, journal) = (self.cells, self.journal);
        cells.parsed.reset(journal);
        cells.ring_head.reset(journal);
        cells.misled.set(journal, Misled::Not.into());
        for flag in [&cells.silent, &cells.lost] {
            flag.set(journal, 0);
        }
        for position in [&cells.ring_tail, &cells.output_end, &cells.skip, &cells.refuse_until] {
            position.set(journal, 0);
        }
        cells.outputs.clear(journal);
        cells.peer_transfer.set(journal, 0);
        (self.received, self.framed) = (0, 0);
        (self.stalled, self.deferred) = (None, false);
    }
}

/// What a failure of the function is to the client.
fn errno_of(error: AccessError) -> Errno {
    match error {
        AccessError::UnsupportedRequest | AccessError::Aborted => Errno::EIO,
        AccessError::Timeout => Errno::ETIMEDOUT,
    }
}
