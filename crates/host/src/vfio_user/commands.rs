//! The commands of the client in the order in which they came: what they wait for, how they end, and when they are
//! answered.

use core::time::Duration;

use base::ledger::{Cell, Code, Journal, Layout};
use base::{Instant, coded};
use spec::vfio_user::{Errno, HEADER_BYTES, MessageHeader, RegionAccess};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cells::{COMMANDS, OUTPUTS, RING_BYTES, TRANSFER_BYTES};
use super::output::Output;
use super::presence::Presence;
use super::{Request, SessionCells, SessionCounters};
use crate::AccessId;

/// Where data begin in a command's place in the ring: behind the header and the fixed part of a reply.
pub(super) const DATA: usize = HEADER_BYTES + 16;
/// The largest place of one command.
const PLACE_MAX: usize = DATA + TRANSFER_BYTES as usize;
/// Bytes of the ring that only messages from the agent get.
const RESERVE_BYTES: usize = 512;
/// For how long everything is refused that has piled up behind a command that timed out, and what is posted to a silent
/// function waits.
const REFUSAL: Duration = Duration::from_millis(100);
/// How much longer an unmap may take whose last copies ended at its time-out: well within what clients wait.
const UNMAP_GRACE: Duration = Duration::from_secs(1);
/// Bits of an access id that tell the part of its command.
const PART_BITS: u32 = 11;
/// Bits of an access id. The one above is the card's, to tell requests of its own.
const ID_MASK: u32 = u32::MAX >> 1;

/// Room that a message needs in the queue.
#[derive(Clone, Copy)]
pub(super) struct Need {
    commands: usize,
    bytes: usize,
    /// Commands that only messages from the agent get.
    reserve: usize,
}

impl Need {
    /// Of a message that the card has received.
    pub(super) const fn new(commands: usize, bytes: usize) -> Self {
        Self { commands, bytes, reserve: 1 }
    }

    /// Of a message that the agent takes.
    pub(super) const TAKEN: Self = Self { commands: 1, bytes: RESERVE_BYTES, reserve: 0 };
}

/// The queue of commands. All zeroes: it is empty.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct QueueCells {
    /// The number of the oldest that is not answered.
    head: Cell<u32>,
    tail: Cell<u32>,
    /// The first with something to emit.
    emit: Cell<u32>,
    /// One more than the number of the reset that is under way; 0 for none.
    resetting: Cell<u32>,
    table: [CommandCells; COMMANDS],
}

const _: () = assert!(size_of::<CommandCells>() == size_of::<Command>());

/// The place of a command.
#[derive(FromBytes, Layout)]
#[repr(C)]
struct CommandCells {
    fixed: Cell<[u64; 6]>,
    /// What changes while it is done: apart, so that a change of it is small.
    progress: Cell<[u64; 2]>,
}

impl CommandCells {
    fn get(&self) -> Command {
        let ([a, b, c, d, e, f], [g, h]) = (self.fixed.get(), self.progress.get());
        zerocopy::transmute!([a, b, c, d, e, f, g, h])
    }

    fn set(&self, journal: Journal<'_>, command: Command) {
        let [a, b, c, d, e, f, g, h]: [u64; 8] = zerocopy::transmute!(command);
        self.fixed.set(journal, [a, b, c, d, e, f]);
        self.progress.set(journal, [g, h]);
    }
}

/// A command of the client: something for the function, something that waits, or a reply whose turn has not come.
#[derive(Clone, Copy, PartialEq, Default, Debug, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Command {
    /// When it arrived, in nanoseconds.
    pub(super) started: u64,
    /// First byte in the region.
    pub(super) offset: u64,
    /// Its place in the ring: first the reply's header and fixed part, then data, of a write or to be read.
    pub(super) ring: u64,
    /// Bytes of its place.
    pub(super) room: u32,
    /// Bytes of the reply's payload.
    pub(super) payload: u32,
    /// Bytes to be accessed.
    pub(super) len: u32,
    /// The client's number.
    pub(super) id: u16,
    /// The code on the wire.
    pub(super) code: u16,
    pub(super) kind: Code<Kind>,
    /// Region of an access.
    pub(super) region: u8,
    pub(super) reserved: [u8; 6],
    /// Bytes that have been emitted.
    pub(super) emitted: u32,
    /// Requests to the function, or maps, that it waits for.
    pub(super) outstanding: u32,
    /// Errno, or 0.
    pub(super) error: u32,
    /// Bits of [`flag`].
    pub(super) flags: u32,
}

/// What a [`Command`] wants.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Nothing but a reply.
    Answer,
    Read,
    Write,
    /// DEVICE_RESET.
    Reset,
    /// DMA_UNMAP that waits for running copies.
    Unmap,
}
coded!(Kind: Answer, Read, Write, Reset, Unmap);

/// Bits of [`Command::flags`].
pub(super) mod flag {
    pub(in super::super) const NO_REPLY: u32 = 1;
    /// Nothing is left to do but to reply.
    pub(in super::super) const DONE: u32 = 2;
    /// It resets the function.
    pub(in super::super) const RESETS: u32 = 4;
}

impl Command {
    /// A command whose reply has `payload` bytes.
    pub(super) fn new(header: &MessageHeader, kind: Kind, payload: usize) -> Self {
        let silent = if header.flags().no_reply() { flag::NO_REPLY } else { 0 };
        Self {
            id: header.id.get(),
            code: header.command.get(),
            kind: kind.into(),
            flags: silent,
            room: (HEADER_BYTES + payload) as u32,
            payload: payload as u32,
            ..Self::default()
        }
    }

    /// An access of a region that there is.
    pub(super) fn access(header: &MessageHeader, kind: Kind, access: &RegionAccess) -> Self {
        Self {
            offset: access.offset.get(),
            region: access.region.get() as u8,
            len: access.count.get(),
            room: DATA as u32 + access.count.get(),
            ..Self::new(header, kind, size_of::<RegionAccess>())
        }
    }

    pub(super) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// The commands of one client.
pub(super) struct Commands<'m> {
    cells: &'m QueueCells,
    output: Output<'m>,
    presence: Presence<'m>,
    counters: &'m SessionCounters,
    journal: Journal<'m>,
    /// How long one waits for the function.
    timeout: Duration,
}

impl<'m> Commands<'m> {
    pub(super) fn new(
        cells: &'m SessionCells,
        output: Output<'m>,
        presence: Presence<'m>,
        journal: Journal<'m>,
        timeout: Duration,
    ) -> Self {
        let counters = &cells.counters;
        Self { cells: &cells.commands, output, presence, counters, journal, timeout }
    }

    /// Those that are not answered.
    pub(super) fn len(&self) -> usize {
        self.cells.tail.get().wrapping_sub(self.cells.head.get()) as usize
    }

    /// The number that the next one gets.
    pub(super) fn next_number(&self) -> u32 {
        self.cells.tail.get()
    }

    /// Whether so much can be queued if `used` bytes of the ring are in use.
    pub(super) fn fits(&self, need: Need, used: usize) -> bool {
        // No place crosses the end of the ring, so that one of them may leave a gap.
        let bytes = need.bytes + PLACE_MAX + need.reserve * RESERVE_BYTES;
        self.len() + need.commands + need.reserve <= COMMANDS && used + bytes <= RING_BYTES
    }

    /// Queues a command that came at `now`; there is room. `parts` are put into its place, each at an offset. An access
    /// of nothing is done at once.
    pub(super) fn push(&self, now: Instant, command: Command, parts: &[(usize, &[u8])]) {
        let ring = self.output.place(command.room, parts);
        let number = self.next_number();
        self.counters.errors.add(u64::from(command.error != 0));
        let is_access = matches!(command.kind.get(), Kind::Read | Kind::Write);
        let done = if is_access && command.len == 0 { flag::DONE } else { 0 };
        let flags = command.flags | done;
        self.set(number, Command { ring, started: now.as_nanos(), flags, ..command });
        self.cells.tail.set(self.journal, number.wrapping_add(1));
    }

    /// Queues the reply to a command that is done.
    pub(super) fn answer(&self, now: Instant, header: &MessageHeader, result: Result<&[u8], &Errno>) {
        let payload = result.unwrap_or_default();
        let command = Command::new(header, Kind::Answer, payload.len());
        let error = result.err().map_or(0, |error| error.0);
        let command = Command { error, flags: command.flags | flag::DONE, ..command };
        self.push(now, command, &[(HEADER_BYTES, payload)]);
        self.settle();
    }

    /// The first command with something to emit, and its number; none while the function is reset.
    pub(super) fn next_to_emit(&self) -> Option<(u32, Command)> {
        loop {
            let number = self.cells.emit.get();
            if number == self.cells.tail.get() {
                return None;
            }
            let command = self.get(number);
            let more = match command.kind.get() {
                Kind::Reset => command.outstanding == 0,
                Kind::Read | Kind::Write => command.emitted < command.len,
                _ => false,
            };
            if more && !command.is(flag::DONE) {
                return Some((number, command));
            }
            self.cells.emit.set(self.journal, number.wrapping_add(1));
        }
    }

    /// `len` bytes more of a command have been emitted, as `request` if the function has to do with them.
    pub(super) fn emitted(&self, number: u32, command: &Command, len: usize, request: Option<&Request>) {
        let emitted = command.emitted + len as u32;
        let is_answered = request.is_some_and(|request| request.id().is_some());
        let outstanding = command.outstanding + u32::from(is_answered);
        let done = if emitted == command.len && outstanding == 0 { flag::DONE } else { 0 };
        let resets = matches!(request, Some(Request::Reset { .. }));
        let flags = command.flags | done | if resets { flag::RESETS } else { 0 };
        self.set(number, Command { emitted, outstanding, flags, ..*command });
        if resets {
            self.cells.resetting.set(self.journal, number.wrapping_add(1));
        }
    }

    /// Whether a reset that the client wants is under way.
    pub(super) fn awaits_reset(&self) -> bool {
        self.cells.resetting.get() != 0
    }

    /// The command that an answer belongs to, with its number, and the part of it; none if it is too late.
    pub(super) fn find(&self, id: AccessId) -> Option<(u32, Command, u32)> {
        let head = self.cells.head.get();
        // As many bits of the number as the id has.
        let offset = (id.0 >> PART_BITS).wrapping_sub(head) & (ID_MASK >> PART_BITS);
        if id.0 & !ID_MASK != 0 || offset as usize >= self.len() {
            return None;
        }
        let number = head.wrapping_add(offset);
        let command = self.get(number);
        (!command.is(flag::DONE)).then_some((number, command, id.0 & ((1 << PART_BITS) - 1)))
    }

    /// The function has answered the reset of a command. False if it is not the one that is under way.
    pub(super) fn end_reset(&self, number: u32, command: &Command) -> bool {
        let resets = command.is(flag::RESETS) && self.cells.resetting.get() == number.wrapping_add(1);
        if resets {
            self.cells.resetting.set(self.journal, 0);
        }
        resets
    }

    /// The function has answered a request of a command.
    pub(super) fn answered(&self, number: u32, command: &Command, result: Result<(), Errno>) {
        let command = Command { outstanding: command.outstanding - 1, ..*command };
        self.set(number, command);
        match result {
            Err(Errno::ETIMEDOUT) => self.give_up(number, &command, Errno::ETIMEDOUT),
            // The function's own word, whatever a client makes of it.
            Err(error) => self.finish(number, Some(error)),
            Ok(()) if command.outstanding == 0 && command.emitted == command.len => self.finish(number, None),
            Ok(()) => {}
        }
        self.settle();
    }

    /// The last copy has ended from a map that command `number` waits for, if it still waits.
    pub(super) fn unmapped(&self, number: u32) {
        if !self.numbers().any(|waiting| waiting == number) {
            return;
        }
        let mut command = self.get(number);
        if command.kind == Kind::Unmap && !command.is(flag::DONE) {
            command.outstanding -= 1;
            self.set(number, command);
            if command.outstanding == 0 {
                self.finish(number, None);
                self.settle();
            }
        }
    }

    /// Writes data of an access into its place.
    pub(super) fn write_data(&self, command: &Command, offset: usize, bytes: &[u8]) {
        self.output.write(command.ring, DATA + offset, bytes);
    }

    /// Reads data of an access from its place.
    pub(super) fn read_data(&self, command: &Command, offset: usize, out: &mut [u8]) {
        self.output.read(command.ring, DATA + offset, out);
    }

    /// Answers the oldest commands, as far as they are done.
    pub(super) fn settle(&self) {
        let (cells, journal) = (self.cells, self.journal);
        let (head, tail) = (cells.head.get(), cells.tail.get());
        let mut number = head;
        while number != tail {
            let command = self.get(number);
            if !command.is(flag::DONE) || !(command.is(flag::NO_REPLY) || self.reply(&command)) {
                break;
            }
            number = number.wrapping_add(1);
        }
        if number != head {
            cells.head.set(journal, number);
            // The next to be emitted is never one that was answered.
            if tail.wrapping_sub(cells.emit.get()) > tail.wrapping_sub(number) {
                cells.emit.set(journal, number);
            }
        }
        self.free_ring();
    }

    /// Frees what nobody needs any more at the start of the ring.
    pub(super) fn free_ring(&self) {
        self.output.free(|| (self.len() > 0).then(|| self.get(self.cells.head.get()).ring));
    }

    /// Puts the reply to a command into the stream, if there is room.
    fn reply(&self, command: &Command) -> bool {
        if self.output.room() <= OUTPUTS / 8 {
            return false;
        }
        let code = spec::vfio_user::Command(command.code);
        let header = match command.error {
            0 => MessageHeader::reply(command.id, code, command.payload),
            error => MessageHeader::error_reply(command.id, code, Errno(error)),
        };
        self.output.push_reply(command.ring, &header);
        true
    }

    /// When the oldest command that waits for anything has waited too long.
    pub(super) fn end_of_oldest(&self) -> Option<Instant> {
        let waiting = self.numbers().find(|number| !self.get(*number).is(flag::DONE))?;
        Some(self.end_of(&self.get(waiting)))
    }

    /// When a command has waited too long. What is posted to a silent function, and nobody takes, holds back the
    /// answers to what came behind it, and so has a moment only; an unmap waits for the client itself.
    fn end_of(&self, command: &Command) -> Instant {
        let is_posted = command.kind == Kind::Write && command.is(flag::NO_REPLY);
        let patience = if is_posted && self.presence.is_silent() { REFUSAL } else { self.timeout };
        Instant::from_nanos(command.started) + patience
    }

    /// Fails what has waited too long. `has_untold` says that the device is about to end uses of maps, and `is_full`
    /// that something has piled up behind the commands.
    pub(super) fn expire(&self, now: Instant, has_untold: bool, is_full: bool) {
        let (mut expired, mut unanswered) = (false, false);
        for number in self.numbers() {
            let command = self.get(number);
            if command.is(flag::DONE) {
                continue;
            }
            let end = self.end_of(&command);
            if end > now {
                break;
            }
            // What it waits for has just ended, and the device is about to say so.
            if command.kind == Kind::Unmap && has_untold && end + UNMAP_GRACE > now {
                continue;
            }
            expired = true;
            // An unmap waits for the client itself.
            unanswered |= command.kind != Kind::Unmap;
            self.give_up(number, &command, Errno::ETIMEDOUT);
        }
        if expired && is_full {
            self.presence.refuse_until(now + REFUSAL);
        }
        if unanswered {
            self.fall_silent();
        }
        self.settle();
    }

    /// Something had no answer in time: whatever else waits for the function fails now, and what comes at once, so that
    /// a client waits for one of its commands and not for each in turn.
    pub(super) fn fall_silent(&self) {
        if !self.presence.fall_silent() {
            return;
        }
        self.fail_those(Errno::ETIMEDOUT, |command| !command.is(flag::NO_REPLY));
    }

    /// Fails everything that waits for the function.
    pub(super) fn fail_requests(&self, error: Errno) {
        self.fail_those(error, |_| true);
    }

    /// Fails every access that was given to the function and has not been answered. Resets go on, and so does what
    /// nobody has seen.
    pub(super) fn fail_outstanding(&self, error: Errno) {
        self.fail_those(error, |command| command.outstanding > 0 && !command.is(flag::RESETS));
    }

    /// Fails what waits for the function and is meant.
    fn fail_those(&self, error: Errno, is_meant: impl Fn(&Command) -> bool) {
        for number in self.numbers() {
            let command = self.get(number);
            let waits = matches!(command.kind.get(), Kind::Read | Kind::Write | Kind::Reset);
            if waits && !command.is(flag::DONE) && is_meant(&command) {
                self.give_up(number, &command, error);
            }
        }
        self.settle();
    }

    /// Ends a command that the function has not answered, because it is silent or was reset meanwhile: a read has no
    /// value of it. A write to a function that is gone is no error.
    fn give_up(&self, number: u32, command: &Command, error: Errno) {
        if command.kind == Kind::Read && !self.presence.is_absent() {
            self.presence.mislead(command.region.into());
        }
        let dropped =
            command.kind == Kind::Write && (self.presence.is_absent() || command.is(flag::NO_REPLY));
        if dropped {
            self.presence.drop_write();
        }
        self.finish(number, (!dropped).then_some(error));
    }

    /// Nothing is left to do for a command but to reply.
    fn finish(&self, number: u32, error: Option<Errno>) {
        let command = self.get(number);
        self.counters.errors.add(u64::from(error.is_some()));
        self.counters.timeouts.add(u64::from(error == Some(Errno::ETIMEDOUT)));
        let error = error.map_or(0, |error| error.0);
        self.set(number, Command { flags: command.flags | flag::DONE, error, ..command });
        if self.cells.resetting.get() == number.wrapping_add(1) {
            self.cells.resetting.set(self.journal, 0);
        }
    }

    /// Forgets all commands. Their numbers stay used, so that late answers to them mean nothing.
    pub(super) fn forget(&self) {
        let tail = self.cells.tail.get();
        self.cells.head.set(self.journal, tail);
        self.cells.emit.set(self.journal, tail);
        self.cells.resetting.set(self.journal, 0);
    }

    /// The numbers of all commands that are not answered.
    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let head = self.cells.head.get();
        (0..self.len() as u32).map(move |offset| head.wrapping_add(offset))
    }

    fn get(&self, number: u32) -> Command {
        self.cells.table[number as usize % COMMANDS].get()
    }

    fn set(&self, number: u32, command: Command) {
        self.cells.table[number as usize % COMMANDS].set(self.journal, command);
    }
}

/// Names a part of a command to the function.
pub(super) fn access_id(number: u32, part: u32) -> AccessId {
    AccessId((number << PART_BITS | part) & ID_MASK)
}
