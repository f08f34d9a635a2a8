//! The bytes from the client: how much of them the card may receive, and their cutting into messages.

use spec::vfio_user::{Command, HEADER_BYTES, IrqSet, IrqSetFlags, MessageFlags, MessageHeader};

use super::cells::{INPUT_BYTES, MESSAGE_BYTES, MESSAGE_DESCRIPTORS, TAKEN_BYTES};
use super::queue::Need;
use super::{Peeked, Phase, Session};

/// A short message: most accesses to registers.
const SHORT_BYTES: usize = 64;

/// What is needed of a message to know whether it may carry descriptors: that of DEVICE_SET_IRQS, up to its flags.
const JUDGED_BYTES: usize = HEADER_BYTES + 8;

/// Who receives a message.
enum Receiver {
    Card,
    Agent,
    /// Too little of it is there to say.
    Unknown,
}

impl Session<'_> {
    pub(super) fn input_room(&self, position: u64) -> usize {
        if self.is_idle() {
            return 0;
        }
        let taken = position.saturating_sub(self.cells.parsed.at_commit(self.journal));
        INPUT_BYTES.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX))
    }

    pub(super) fn judge(&self, bytes: &[u8]) -> Peeked {
        let room = self.input_room(self.received);
        if bytes.is_empty() {
            return Peeked::NeedMore;
        }
        if self.phase() == Phase::Ending {
            // Whatever it is, it goes nowhere.
            return if room == 0 { Peeked::Wait } else { Peeked::Consume(bytes.len().min(room)) };
        }
        // What has begun to be received is received: its header first, which says how much it is.
        let header_end = self.framed + HEADER_BYTES as u64;
        if (self.framed + 1..header_end).contains(&self.received) {
            let rest = ((header_end - self.received) as usize).min(bytes.len());
            return if room == 0 { Peeked::Wait } else { Peeked::Consume(rest.min(room)) };
        }
        let mut end = self.framed.saturating_sub(self.received);
        let mut agent = None;
        while let Some(rest) = usize::try_from(end).ok().and_then(|end| bytes.get(end..)) {
            let Some((header, _)) = rest.split_first_chunk() else { break };
            let header = MessageHeader::view(header);
            if header.payload_length().is_none() {
                // Not to be understood, nor is anything behind it.
                end = bytes.len() as u64;
                break;
            }
            match receiver(header, rest) {
                Receiver::Card => end += u64::from(header.size.get()),
                Receiver::Agent => {
                    agent = Some(header.size.get() as usize);
                    break;
                }
                Receiver::Unknown => break,
            }
        }
        match (agent, end) {
            (None, 0) => Peeked::NeedMore,
            (Some(len), 0) if bytes.len() < len => Peeked::NeedMore,
            (Some(len), 0) if self.can_take() => Peeked::AgentTakes { len },
            (Some(_), 0) => Peeked::Wait,
            _ if room == 0 => Peeked::Wait,
            _ => Peeked::Consume(usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len()).min(room)),
        }
    }

    /// Whether a message with descriptors can be handed in: everything before it has been understood, and there is
    /// room.
    fn can_take(&self) -> bool {
        let descriptors = self.cells.held.get() as usize + 2 * MESSAGE_DESCRIPTORS;
        let first = self.received == self.cells.parsed.get();
        first
            && self.fits(Need::TAKEN, self.cells.ring_head.at_commit(self.journal))
            && self.cells.released.room() >= descriptors
    }

    /// Notes where messages begin, up to the received position.
    pub(super) fn frame(&mut self) {
        while self.framed + HEADER_BYTES as u64 <= self.received {
            let offset = self.framed.saturating_sub(self.cells.parsed.get()) as usize;
            let mut header = [0; HEADER_BYTES];
            self.peek(offset, &mut header);
            let size = MessageHeader::view(&header).size.get();
            if (size as usize) < HEADER_BYTES {
                self.framed = self.received;
                return;
            }
            self.framed += u64::from(size);
        }
    }

    /// Understands as much of the input as is there and has room.
    pub(super) fn advance(&mut self) {
        (self.stalled, self.deferred) = (None, false);
        self.pump();
        while match self.phase() {
            Phase::Closed => false,
            _ if self.is_spent() => false,
            Phase::Ending => {
                self.consume(self.available());
                false
            }
            Phase::Version | Phase::Ready if self.cells.skip.get() > 0 => self.pass_over(),
            Phase::Version | Phase::Ready => self.parse_message(),
        } {}
        self.pump();
    }

    /// Bytes that are there and not understood.
    fn available(&self) -> usize {
        self.received.saturating_sub(self.cells.parsed.get()) as usize
    }

    /// Copies input from `offset` behind the parse position; it has arrived.
    fn peek(&self, offset: usize, out: &mut [u8]) {
        let start = (self.cells.parsed.get() as usize).wrapping_add(offset) % INPUT_BYTES;
        let (first, second) = out.split_at_mut(out.len().min(INPUT_BYTES - start));
        self.cells.input.read(start, first);
        self.cells.input.read(0, second);
    }

    fn consume(&mut self, bytes: usize) {
        let parsed = self.cells.parsed.get() + bytes as u64;
        self.cells.parsed.set(self.journal, parsed);
        self.framed = self.framed.max(parsed);
    }

    fn pass_over(&mut self) -> bool {
        let len = usize::try_from(self.cells.skip.get()).unwrap_or(usize::MAX).min(self.available());
        self.consume(len);
        self.cells.skip.update(self.journal, |skip| skip - len as u64) == 0
    }

    fn parse_message(&mut self) -> bool {
        let mut head = [0; HEADER_BYTES];
        let available = self.available();
        if available < HEADER_BYTES {
            return false;
        }
        self.peek(0, &mut head);
        let header = MessageHeader::view(&head);
        let size = header.size.get() as usize;
        if header.payload_length().is_none() || header.flags().kind() > MessageFlags::REPLY {
            self.break_off();
            return true;
        }
        match size {
            _ if size > MESSAGE_BYTES => self.refuse_long(header),
            _ if available < size => false,
            // Nearly all are short, and clearing room for a long one would take longer than to understand them.
            ..=SHORT_BYTES => self.parse_whole::<SHORT_BYTES>(header, size),
            _ => self.parse_whole::<MESSAGE_BYTES>(header, size),
        }
    }

    /// Understands a message that is there, of at most `N` bytes.
    fn parse_whole<const N: usize>(&mut self, header: &MessageHeader, size: usize) -> bool {
        let mut bytes = [0; N];
        // `parse_message` has seen to it that the size is that of a header at least, and of `N` bytes at most.
        let payload = &mut bytes[HEADER_BYTES..size];
        self.peek(HEADER_BYTES, payload);
        let mut done = self.handle_message(header, payload);
        if !done {
            // What is queued may need nothing but to be done.
            self.pump();
            done = self.handle_message(header, payload);
        }
        if done {
            self.stalled = None;
            self.cells.counters.messages.add(1);
            self.consume(size);
        }
        done
    }

    /// A message that is too long to be looked at: refused at once, and passed over as it arrives.
    fn refuse_long(&mut self, header: &MessageHeader) -> bool {
        if !self.refuse_message(header) {
            return false;
        }
        self.cells.skip.set(self.journal, u64::from(header.size.get()) - HEADER_BYTES as u64);
        self.consume(HEADER_BYTES);
        true
    }
}

/// Who receives a message that begins like this. A command that is too short or too long to be sensible is the card's,
/// which refuses it; the kernel closes whatever came with it.
fn receiver(header: &MessageHeader, bytes: &[u8]) -> Receiver {
    let size = header.size.get() as usize;
    if header.flags().kind() != MessageFlags::COMMAND || size > TAKEN_BYTES {
        return Receiver::Card;
    }
    match header.command() {
        Command::DMA_MAP => Receiver::Agent,
        Command::DEVICE_SET_IRQS if size >= HEADER_BYTES + size_of::<IrqSet>() => {
            let Some(flags) = bytes.get(JUDGED_BYTES - 4..).and_then(|bytes| bytes.first_chunk()) else {
                return Receiver::Unknown;
            };
            let flags = IrqSetFlags(u32::from_le_bytes(*flags));
            if flags.data_eventfd() { Receiver::Agent } else { Receiver::Card }
        }
        _ => Receiver::Card,
    }
}
