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
//! ([`Presence::handle_heard`]): a client holds all of its machine while it waits. An errno is what makes a read
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
mod descriptors;
mod dma;
mod input;
mod interrupts;
mod messages;
mod output;
mod presence;
mod regions;
mod slot_config;
#[cfg(test)]
mod tests;
mod transfers;

use base::ledger::{Journal, Span};
use base::{Instant, coded};
use spec::vfio_user::{Errno, HEADER_BYTES, MessageFlags, MessageHeader};

use crate::{Access, AccessError, AccessId};
pub use cells::{
    COMMANDS, INPUT_BYTES, MAPS, MESSAGE_DESCRIPTORS, SessionCells, SessionCounters, TRANSFER_BYTES,
    TRANSFERS, VECTORS,
};
use cells::{MESSAGE_BYTES, STEP_WORDS};
use commands::{Command, Commands, Kind, Need};
pub use config_space::ConfigSpace;
pub use descriptors::Descriptors;
pub use dma::{DmaAccessKind, DmaError, DmaMapping, DmaPiece, MapId, Maps};
use input::Input;
pub use interrupts::Interrupts;
use output::Output;
pub use presence::Presence;
use regions::{BAR_UNIT, Regions};
pub use slot_config::{SlotConfig, SlotConfigError};
pub use transfers::{TransferDone, TransferRefused, Transfers};

/// A short message: most accesses to registers.
const SHORT_BYTES: usize = 64;

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
    /// An access. One to a BAR is 1 to 64 bytes long and crosses no multiple of 64, so that one TLP with byte enables
    /// does it; a read is answered with as many bytes.
    Access(Access),
    /// The function is to be reset, and everything restored that the card itself needs: vectors, memory space. Nothing
    /// else is given out until it is answered, without data.
    Reset {
        /// Comes back when it is done.
        id: AccessId,
        /// What was asked for.
        kind: ResetKind,
    },
}

impl Request {
    /// By what its completion is told; a posted write has none.
    #[must_use]
    pub fn id(&self) -> Option<AccessId> {
        match self {
            Self::Access(access) => access.id(),
            Self::Reset { id, .. } => Some(*id),
        }
    }
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

/// One slot's session: its parts, and what they have to do with each other. What concerns one part alone is asked of
/// that part.
///
/// The drain contract: after any verb call [`poll_request`](Self::poll_request) until it returns `None` or the function
/// has no room, and [`Interrupts::poll_signal`], [`Interrupts::poll_change`], [`Maps::poll_change`] and
/// [`Transfers::poll_done`] until they return `None`; commit, then act on it, and send what
/// [`send_spans`](Self::send_spans) gives. Signals that a dead card did not give are made good by
/// [`Interrupts::signal_all`].
pub struct Session<'m> {
    /// Whether the function is there and answers.
    pub presence: Presence<'m>,
    /// The client's memory.
    pub maps: Maps<'m>,
    /// What the client wants to be told of.
    pub interrupts: Interrupts<'m>,
    /// Accesses to the client's memory by message.
    pub transfers: Transfers<'m>,
    /// What the client has handed over.
    pub descriptors: Descriptors<'m>,
    cells: &'m SessionCells,
    journal: Journal<'m>,
    input: Input<'m>,
    output: Output<'m>,
    commands: Commands<'m>,
    regions: Regions<'m>,
    /// The present, as the last verb was told.
    now: Instant,
    /// What the next message waits for, which is there.
    stalled: Option<Need>,
    /// This step has done enough, and something is left.
    deferred: bool,
}

impl<'m> Session<'m> {
    /// The session over `cells`; over those of a dead card it goes on as soon as it is told the positions again.
    /// `config` is the same for every card on one ledger, and has been checked.
    pub fn new(cells: &'m SessionCells, journal: Journal<'m>, config: &SlotConfig) -> Self {
        let output = Output::new(&cells.output, journal);
        let presence = Presence::new(cells, journal);
        let descriptors = Descriptors::new(&cells.descriptors, journal);
        Self {
            presence,
            maps: Maps::new(cells, descriptors, journal),
            interrupts: Interrupts::new(cells, descriptors, journal, config),
            transfers: Transfers::new(cells, output, journal, config),
            descriptors,
            cells,
            journal,
            input: Input::new(&cells.input, journal),
            output,
            commands: Commands::new(cells, output, presence, journal, config.timeout),
            regions: Regions::new(cells, journal, config),
            now: Instant::ZERO,
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
        self.commands.forget();
        self.maps.unmap_everything();
        self.interrupts.release();
        self.transfers.forget();
        self.input.reset();
        self.output.reset();
        self.presence.forget();
        (self.stalled, self.deferred) = (None, false);
        // The next one finds configuration space as after a reset; that the function is so is the card's business.
        self.regions.config_space.reset();
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
        self.phase() == Phase::Ending && self.owes_nothing()
    }

    /// Whether the client is between two messages, as far as they were received, and every one has been answered, and
    /// that sent.
    pub fn is_at_rest(&self) -> bool {
        self.is_ready() && self.input.is_at_rest() && self.owes_nothing()
    }

    /// Whether the function is there and the client wants to be interrupted by it: what a driver begins with and ends
    /// with.
    pub fn is_in_use(&self) -> bool {
        !self.presence.is_absent() && self.interrupts.is_any_enabled()
    }

    /// What to do with `bytes`, the first that the socket has: behind the received `position`, and after `taken`
    /// messages that the agent has taken of it. While the session has not been told of all of that, it waits. Only for
    /// use right after a commit.
    pub fn handle_peeked(&self, position: u64, taken: u64, bytes: &[u8]) -> Peeked {
        let room = if self.is_idle() { 0 } else { self.input.room(position) };
        match self.phase() {
            _ if position != self.input.received() || taken != self.taken() => Peeked::Wait,
            // Whatever it is, it goes nowhere.
            Phase::Ending if room == 0 && !bytes.is_empty() => Peeked::Wait,
            Phase::Ending if !bytes.is_empty() => Peeked::Consume(bytes.len().min(room)),
            // The agent hands a message in when everything before it has been understood, and there is room.
            _ => self.input.judge(bytes, room, || {
                let fits = self.commands.fits(Need::TAKEN, self.output.used());
                self.input.is_understood() && fits && self.descriptors.has_room()
            }),
        }
    }

    /// Where the kernel may put at most `len` bytes from `position` on, in this order: what
    /// [`handle_peeked`](Self::handle_peeked) allowed. Only space that was free at the last commit.
    pub fn receive_spans(&self, position: u64, len: usize) -> [Span<'m>; 2] {
        self.input.spans(position, if self.is_idle() { 0 } else { len })
    }

    /// Up to where this session was told that the client's stream has been received.
    pub fn received(&self) -> u64 {
        self.input.received()
    }

    /// The client's stream has been received up to `position`. Told again to a successor, before anything is peeked at.
    pub fn handle_received(&mut self, now: Instant, position: u64) {
        self.now = now;
        self.input.receive(position);
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
        if self.input.take(number) {
            self.take(bytes, descriptors);
            self.advance();
        }
    }

    /// The number of the last message that was handed in by [`handle_taken`](Self::handle_taken).
    pub fn taken(&self) -> u64 {
        self.input.taken()
    }

    /// Fills `spans` with what is to be sent from `position` on, and returns how many were. Only for use right after a
    /// commit.
    ///
    /// QEMU gives up on a header that does not arrive as a whole. The kernel takes what is sent at once in pieces of
    /// about half the send buffer: whoever sends at most 64 KiB at once never cuts one.
    pub fn send_spans(&self, position: u64, spans: &mut [Span<'m>]) -> usize {
        self.output.spans(position, spans, |place, offset, len| self.transfers.span(place, offset, len))
    }

    /// The client's stream has been sent up to `position`. Told again to a successor.
    pub fn handle_sent(&mut self, now: Instant, position: u64) {
        self.now = now;
        while let Some(sent) = self.output.pop_sent(position) {
            if let Some(transfer) = sent.transfer() {
                self.transfers.sent(transfer);
            }
        }
        self.commands.free_ring();
        self.commands.settle();
        self.advance();
    }

    /// Where the stream to the client ends: there is something to send while the sent position is below.
    pub fn output_end(&self) -> u64 {
        self.output.end()
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
        let request = loop {
            if let Some(request) = self.emit(true)? {
                break request;
            }
        };
        self.pump();
        Some(request)
    }

    /// The function has answered request `id`, or is known not to. A late answer is ignored.
    pub fn handle_done(&mut self, now: Instant, id: AccessId, result: Result<&[u8], AccessError>) {
        self.now = now;
        if result.is_ok() {
            self.presence.answered();
        }
        if let Some((number, command, part)) = self.commands.find(id) {
            self.part_done(number, &command, part, result.map_err(errno_of));
            if result == Err(AccessError::Timeout) {
                self.commands.fall_silent();
            }
        }
        self.advance();
    }

    /// The function was reset, and not because this client wanted it: what it was given and has not answered fails, and
    /// what it wanted to say is forgotten. Its vectors and its command register are the card's to restore.
    pub fn handle_function_reset(&mut self, now: Instant) {
        self.now = now;
        self.commands.fail_outstanding(Errno::EIO);
        self.interrupts.forget_pending();
        self.advance();
    }

    /// Where the part of a BAR begins that request `id` reads, if it is one that has no answer yet: base address
    /// register and byte offset.
    pub fn bar_read(&self, id: AccessId) -> Option<(u8, u64)> {
        let (_, command, part) = self.commands.find(id)?;
        command.piece(part).filter(|_| command.kind == Kind::Read)?.bar()
    }

    /// Whether a reset that the client wants is under way, and the client waits for it.
    pub fn awaits_reset(&self) -> bool {
        self.commands.awaits_reset()
    }

    /// The registers that are the session's own.
    pub fn config_space(&self) -> &ConfigSpace<'m> {
        &self.regions.config_space
    }

    /// Whether the function is there. While it is not, reads fail, writes go nowhere, and everything is answered.
    pub fn set_present(&mut self, now: Instant, present: bool) {
        self.now = now;
        self.presence.set_absent(!present);
        if !present {
            self.commands.fail_requests(Errno::EIO);
        }
        self.advance();
    }

    /// A copy has ended that used a map. The last one ends an unmap.
    ///
    /// # Panics
    /// If no copy uses the map.
    pub fn end_use(&mut self, id: MapId) {
        if let Some(number) = self.maps.end_use(id) {
            self.commands.unmapped(number);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, if at all: at once when something waits for
    /// nothing but the coming commit.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let fits = |need| self.commands.fits(need, self.output.used_after_commit());
        if self.deferred || self.stalled.is_some_and(fits) {
            return Some(self.now);
        }
        [self.commands.end_of_oldest(), self.transfers.end_of_oldest()].into_iter().flatten().min()
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        // A command may wait for a transfer that is no younger.
        self.transfers.expire(now);
        self.commands.expire(now, self.transfers.has_untold(), self.stalled.is_some());
        self.advance();
    }

    /// Commands that have no reply.
    pub fn in_flight(&self) -> usize {
        self.commands.len()
    }

    /// The statistics.
    pub fn counters(&self) -> &'m SessionCounters {
        &self.cells.counters
    }

    /// Understands as much of the input as is there and has room.
    fn advance(&mut self) {
        (self.stalled, self.deferred) = (None, false);
        self.pump();
        while match self.phase() {
            Phase::Closed => false,
            _ if self.is_spent() => false,
            Phase::Ending => {
                self.input.consume(self.input.available());
                false
            }
            Phase::Version | Phase::Ready if self.input.is_skipping() => self.input.pass_over(),
            Phase::Version | Phase::Ready => self.next_message(),
        } {}
        self.pump();
    }

    /// Understands the next message. Returns whether there may be another one.
    fn next_message(&mut self) -> bool {
        let Some(header) = self.input.header() else { return false };
        let size = header.size.get() as usize;
        if header.payload_length().is_none() || header.flags().kind() > MessageFlags::REPLY {
            self.break_off();
            return true;
        }
        match size {
            // Too long to be looked at: refused at once, and passed over as it arrives.
            _ if size > MESSAGE_BYTES => {
                let is_refused = self.refuse_message(&header);
                if is_refused {
                    self.input.skip(&header);
                }
                is_refused
            }
            _ if self.input.available() < size => false,
            // Nearly all are short, and clearing room for a long one would take longer than to understand them.
            ..=SHORT_BYTES => self.whole_message::<SHORT_BYTES>(&header, size),
            _ => self.whole_message::<MESSAGE_BYTES>(&header, size),
        }
    }

    /// Understands a message that is there, of at most `N` bytes.
    fn whole_message<const N: usize>(&mut self, header: &MessageHeader, size: usize) -> bool {
        let mut bytes = [0; N];
        // `next_message` has seen to it that the size is that of a header at least, and of `N` bytes at most.
        let payload = &mut bytes[HEADER_BYTES..size];
        self.input.peek(HEADER_BYTES, payload);
        let mut done = self.handle_message(header, payload);
        if !done {
            // What is queued may need nothing but to be done.
            self.pump();
            done = self.handle_message(header, payload);
        }
        if done {
            self.stalled = None;
            self.cells.counters.messages.add(1);
            self.input.consume(size);
        }
        done
    }

    /// Does what needs no function, in order.
    fn pump(&mut self) {
        while let Some(None) = self.emit(false) {}
        self.commands.settle();
    }

    /// Does the next part of the first command that has one: what the function gets of it, if anything. Nothing is done
    /// if that is something and `outward` is not set, and none at all while the function is reset.
    fn emit(&mut self, outward: bool) -> Option<Option<Request>> {
        if self.commands.awaits_reset() || self.is_spent() {
            return None;
        }
        let (number, command) = self.commands.next_to_emit()?;
        let piece = command.next_piece();
        let (id, is_read) = (commands::access_id(number, piece.index), command.kind == Kind::Read);
        let mut bytes = [0; BAR_UNIT];
        let bytes = &mut bytes[..piece.len];
        let request = if command.kind == Kind::Reset {
            Some(Request::Reset { id, kind: ResetKind::Bus })
        } else if is_read {
            self.regions.read(id, &piece, &self.interrupts, bytes)
        } else {
            self.commands.read_data(&command, piece.data, bytes);
            self.regions.write(id, &piece, &self.interrupts, bytes)
        };
        if request.is_some() && !outward {
            return None;
        }
        match command.kind.get() {
            Kind::Read if request.is_none() => self.commands.write_data(&command, piece.data, bytes),
            Kind::Write => self.regions.write_own(&piece, bytes),
            _ => {}
        }
        self.commands.emitted(number, &command, piece.len, request.as_ref());
        Some(request)
    }

    /// The function has answered a part of a command that is not done.
    fn part_done(&mut self, number: u32, command: &Command, part: u32, result: Result<&[u8], Errno>) {
        let piece = command.piece(part);
        if command.outstanding == 0 || piece.is_none() && command.kind != Kind::Reset {
            return;
        }
        if self.commands.end_reset(number, command) && result.is_ok() {
            self.regions.config_space.reset();
            self.interrupts.forget_pending();
        }
        let stored = result.and_then(|answer| match piece.filter(|_| command.kind == Kind::Read) {
            Some(piece) => {
                let mut bytes = [0; BAR_UNIT];
                let bytes = &mut bytes[..piece.len];
                self.regions.complete(&piece, &self.interrupts, answer, bytes)?;
                self.commands.write_data(command, piece.data, bytes);
                Ok(())
            }
            None => Ok(()),
        });
        self.commands.answered(number, command, stored);
    }

    /// Whether so much can be queued now. If not, the message that needs it waits.
    fn has_room(&mut self, need: Need) -> bool {
        let fits = self.commands.fits(need, self.output.used());
        if !fits {
            self.stalled = Some(need);
        }
        fits
    }

    /// Whether this step has done enough. What is left goes on after its commit.
    fn is_spent(&mut self) -> bool {
        let spent = self.journal.pending() > STEP_WORDS;
        self.deferred |= spent;
        spent
    }

    /// Whether every command was answered, and that sent.
    fn owes_nothing(&self) -> bool {
        self.commands.len() == 0 && self.output.is_empty()
    }

    fn phase(&self) -> Phase {
        self.cells.phase.value()
    }

    fn set_phase(&self, phase: Phase) {
        self.cells.phase.set(self.journal, phase.into());
    }

    /// The client broke the protocol: what it sends is dropped from here on.
    fn break_off(&self) {
        self.cells.counters.protocol_errors.add(1);
        self.set_phase(Phase::Ending);
    }
}

/// What a failure of the function is to the client.
fn errno_of(error: AccessError) -> Errno {
    match error {
        AccessError::UnsupportedRequest | AccessError::Aborted => Errno::EIO,
        AccessError::Timeout => Errno::ETIMEDOUT,
    }
}
