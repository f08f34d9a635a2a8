//! The commands of the client in the order in which they came: what they wait for, how they end, and when they are
//! answered.

use core::time::Duration;

use base::Instant;
use spec::vfio_user::{Errno, HEADER_BYTES, MessageHeader, RegionIndex};
use zerocopy::IntoBytes;

use super::cells::{
    COMMANDS, Command, Kind, Misled, OUTPUTS, Output, RING_BYTES, STEP_WORDS, TRANSFER_BYTES, flag,
};
use super::{AccessId, Session};

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
pub(super) const PART_BITS: u32 = 11;
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

impl Session<'_> {
    pub(super) fn command_count(&self) -> usize {
        self.cells.tail.get().wrapping_sub(self.cells.head.get()) as usize
    }

    /// Whether so much can be queued now. If not, the message that needs it waits.
    pub(super) fn has_room(&mut self, need: Need) -> bool {
        let fits = self.fits(need, self.cells.ring_head.at_commit(self.journal));
        if !fits {
            self.stalled = Some(need);
        }
        fits
    }

    /// Whether so much can be queued if the ring is free up to `ring_head`.
    pub(super) fn fits(&self, need: Need, ring_head: u64) -> bool {
        let used = self.cells.ring_tail.get() - ring_head;
        // No place crosses the end of the ring, so that one of them may leave a gap.
        let bytes = need.bytes + PLACE_MAX + need.reserve * RESERVE_BYTES;
        self.command_count() + need.commands + need.reserve <= COMMANDS && used as usize + bytes <= RING_BYTES
    }

    /// Whether this step has done enough. What is left goes on after its commit.
    pub(super) fn is_spent(&mut self) -> bool {
        let spent = self.journal.pending() > STEP_WORDS;
        self.deferred |= spent;
        spent
    }

    /// Whether something that waits could go on after the coming commit.
    pub(super) fn can_resume(&self) -> bool {
        self.deferred || self.stalled.is_some_and(|need| self.fits(need, self.cells.ring_head.get()))
    }

    pub(super) fn command(&self, number: u32) -> Command {
        self.cells.commands[number as usize % COMMANDS].get()
    }

    pub(super) fn set_command(&self, number: u32, command: Command) {
        self.cells.commands[number as usize % COMMANDS].set(self.journal, command);
    }

    /// The numbers of all commands that are not answered.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let head = self.cells.head.get();
        (0..self.command_count() as u32).map(move |offset| head.wrapping_add(offset))
    }

    /// Queues a command; there is room. `parts` are put into its place, each at an offset.
    pub(super) fn push_command(&self, command: Command, parts: &[(usize, &[u8])]) -> u32 {
        let (cells, journal) = (self.cells, self.journal);
        let room = u64::from(command.room);
        let mut ring = cells.ring_tail.get();
        let left = RING_BYTES as u64 - ring % RING_BYTES as u64;
        if left < room {
            ring += left;
        }
        cells.ring_tail.set(journal, ring + room);
        for (offset, bytes) in parts {
            cells.ring.write(journal, ring as usize % RING_BYTES + offset, bytes);
        }
        let number = cells.tail.get();
        let command = Command { ring, started: self.now.as_nanos(), ..command };
        self.cells.counters.errors.add(u64::from(command.error != 0));
        self.set_command(number, command);
        cells.tail.set(journal, number.wrapping_add(1));
        number
    }

    /// Where the data of a command are, from the start of the ring.
    pub(super) fn data_place(&self, command: &Command, offset: usize) -> usize {
        command.ring as usize % RING_BYTES + DATA + offset
    }

    /// Nothing is left to do for a command but to reply.
    pub(super) fn finish(&self, number: u32, error: Option<Errno>) {
        let command = self.command(number);
        self.cells.counters.errors.add(u64::from(error.is_some()));
        self.cells.counters.timeouts.add(u64::from(error == Some(Errno::ETIMEDOUT)));
        if error == Some(Errno::ETIMEDOUT) && command.kind == Kind::Read {
            self.mislead(command.region.into());
        }
        let error = error.map_or(0, |error| error.0);
        self.set_command(number, Command { flags: command.flags | flag::DONE, error, ..command });
        if self.cells.resetting.get() == number.wrapping_add(1) {
            self.cells.resetting.set(self.journal, 0);
        }
    }

    /// Answers the oldest commands, as far as they are done.
    pub(super) fn settle(&self) {
        let (cells, journal) = (self.cells, self.journal);
        let (head, tail) = (cells.head.get(), cells.tail.get());
        let mut number = head;
        while number != tail {
            let command = self.command(number);
            if !command.is(flag::DONE) || !(command.is(flag::NO_REPLY) || self.push_reply(&command)) {
                break;
            }
            number = number.wrapping_add(1);
        }
        if number == head {
            return self.free_ring();
        }
        cells.head.set(journal, number);
        // The next to be emitted is never one that was answered.
        if tail.wrapping_sub(cells.emit.get()) > tail.wrapping_sub(number) {
            cells.emit.set(journal, number);
        }
        self.free_ring();
    }

    /// Puts the reply to a command into the stream, if there is room.
    fn push_reply(&self, command: &Command) -> bool {
        if self.cells.outputs.room() <= OUTPUTS / 8 {
            return false;
        }
        let code = spec::vfio_user::Command(command.code);
        let header = match command.error {
            0 => MessageHeader::reply(command.id, code, command.payload),
            error => MessageHeader::error_reply(command.id, code, Errno(error)),
        };
        let place = command.ring as usize % RING_BYTES;
        self.cells.ring.write(self.journal, place, header.as_bytes());
        self.push_output(Output { start: 0, place: command.ring, len: header.size.get(), transfer: 0 });
        true
    }

    /// Frees what nobody needs any more at the start of the ring.
    pub(super) fn free_ring(&self) {
        let cells = self.cells;
        let reply = cells.outputs.iter().find(|output| output.transfer == 0).map(|output| output.place);
        let oldest = || (self.command_count() > 0).then(|| self.command(cells.head.get()).ring);
        let head = reply.or_else(oldest).unwrap_or(cells.ring_tail.get());
        cells.ring_head.set(self.journal, head);
    }

    /// When the oldest command that waits for anything has waited too long.
    pub(super) fn oldest_command(&self) -> Option<Instant> {
        let waiting = self.numbers().find(|number| !self.command(*number).is(flag::DONE))?;
        Some(self.end_of(&self.command(waiting)))
    }

    /// When a command has waited too long. What is posted to a silent function, and nobody takes, holds back the
    /// answers to what came behind it, and so has a moment only; an unmap waits for the client itself.
    fn end_of(&self, command: &Command) -> Instant {
        let is_posted = command.kind == Kind::Write && command.is(flag::NO_REPLY);
        let patience = if is_posted && self.is_silent() { REFUSAL } else { self.config.timeout };
        Instant::from_nanos(command.started) + patience
    }

    /// Fails what has waited too long.
    pub(super) fn expire_commands(&mut self) {
        let (mut expired, mut unanswered) = (false, false);
        for number in self.numbers() {
            let command = self.command(number);
            if command.is(flag::DONE) {
                continue;
            }
            let end = self.end_of(&command);
            if end > self.now {
                break;
            }
            // What it waits for has just ended, and the device is about to say so.
            if command.kind == Kind::Unmap && self.has_untold_transfers() && end + UNMAP_GRACE > self.now {
                continue;
            }
            expired = true;
            // An unmap waits for the client itself.
            unanswered |= command.kind != Kind::Unmap;
            self.fail(number, &command, Errno::ETIMEDOUT);
        }
        if expired && self.stalled.is_some() {
            let until = self.now + REFUSAL;
            self.cells.refuse_until.set(self.journal, until.as_nanos());
        }
        if unanswered {
            self.fall_silent();
        }
        self.settle();
    }

    /// Something had no answer in time: whatever else waits for the function fails now, and what comes at once, so that
    /// a client waits for one of its commands and not for each in turn.
    pub(super) fn fall_silent(&mut self) {
        if self.is_silent() {
            return;
        }
        self.cells.silent.set(self.journal, 1);
        for number in self.numbers() {
            let command = self.command(number);
            let waits = matches!(command.kind.get(), Kind::Read | Kind::Write | Kind::Reset);
            if waits && !command.is(flag::DONE) && !command.is(flag::NO_REPLY) {
                self.fail(number, &command, Errno::ETIMEDOUT);
            }
        }
        self.settle();
    }

    /// Fails everything that waits for the function.
    pub(super) fn fail_requests(&mut self, error: Errno) {
        for number in self.numbers() {
            let command = self.command(number);
            if !command.is(flag::DONE) && matches!(command.kind.get(), Kind::Read | Kind::Write | Kind::Reset)
            {
                self.fail(number, &command, error);
            }
        }
        self.settle();
    }

    /// Fails every access that was given to the function and has not been answered. Resets go on, and so does what
    /// nobody has seen.
    pub(super) fn fail_outstanding(&mut self, error: Errno) {
        for number in self.numbers() {
            let command = self.command(number);
            let given = matches!(command.kind.get(), Kind::Read | Kind::Write) && command.outstanding > 0;
            if given && !command.is(flag::DONE) && !command.is(flag::RESETS) {
                self.fail(number, &command, error);
            }
        }
        self.settle();
    }

    /// Ends a command that can not be done. A write to a function that is gone is no error.
    fn fail(&self, number: u32, command: &Command, error: Errno) {
        let dropped = command.kind == Kind::Write && (self.is_absent() || command.is(flag::NO_REPLY));
        if dropped {
            self.drop_write();
        }
        self.finish(number, (!dropped).then_some(error));
    }

    /// A write goes nowhere, and its client is not told so: a function that is there has to be known to have failed.
    pub(super) fn drop_write(&self) {
        self.cells.counters.dropped_writes.add(1);
        if !self.is_absent() {
            self.cells.lost.set(self.journal, 1);
        }
    }

    /// Why a posted write for the function is not even queued, if so. What is posted to a silent function may reach it
    /// yet.
    pub(super) fn posted_refusal(&self) -> Option<Errno> {
        if self.is_absent() {
            return Some(Errno::EIO);
        }
        (self.cells.refuse_until.get() > self.now.as_nanos()).then_some(Errno::ETIMEDOUT)
    }

    /// Why a command for the function that the client waits for is not even queued, if so.
    pub(super) fn refusal(&self) -> Option<Errno> {
        self.posted_refusal().or_else(|| self.is_silent().then_some(Errno::ETIMEDOUT))
    }

    /// The client reads all-ones of a region, because the function is silent.
    pub(super) fn mislead(&self, region: u32) {
        if region != RegionIndex::CONFIG.0 && self.cells.misled.value() == Misled::Not {
            self.cells.misled.set(self.journal, Misled::Untold.into());
        }
    }

    /// Forgets all commands. Their numbers stay used, so that late answers to them mean nothing.
    pub(super) fn forget_commands(&mut self) {
        let (cells, journal) = (self.cells, self.journal);
        let tail = cells.tail.get();
        cells.head.set(journal, tail);
        cells.emit.set(journal, tail);
        cells.resetting.set(journal, 0);
    }

    /// Names a part of a command to the function.
    pub(super) fn access_id(number: u32, part: u32) -> AccessId {
        AccessId((number << PART_BITS | part) & ID_MASK)
    }

    /// The command that an answer belongs to, and the part of it; `None` if it is too late.
    pub(super) fn command_of(&self, id: AccessId) -> Option<(u32, u32)> {
        let head = self.cells.head.get();
        // As many bits of the number as the id has.
        let offset = (id.0 >> PART_BITS).wrapping_sub(head) & (ID_MASK >> PART_BITS);
        let waits = id.0 & !ID_MASK == 0 && (offset as usize) < self.command_count();
        waits.then(|| (head.wrapping_add(offset), id.0 & ((1 << PART_BITS) - 1)))
    }
}
