//! The bytes from the client: how much of them the card may receive, and their cutting into messages.

use base::ledger::{Bytes, Cell, Journal, Layout, Span};
use spec::vfio_user::{Command, HEADER_BYTES, IrqSet, IrqSetFlags, MessageFlags, MessageHeader};
use zerocopy::FromBytes;

use super::Peeked;
use super::cells::{INPUT_BYTES, Marked, TAKEN_BYTES};

/// What is needed of a message to know whether it may carry descriptors: that of DEVICE_SET_IRQS, up to its flags.
const JUDGED_BYTES: usize = HEADER_BYTES + 8;

/// The stream from the client, as far as it is not understood. All zeroes: nothing has come.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct InputCells {
    /// Position up to which the input is understood. Messages that the agent took do not count.
    parsed: Marked,
    /// Bytes that belong to nothing.
    skip: Cell<u64>,
    /// The number of the last message that the agent took and the session has seen. Outlives clients.
    taken: Cell<u64>,
    /// Written by the kernel behind what is committed as understood.
    bytes: Bytes<INPUT_BYTES>,
}

/// Who receives a message.
enum Receiver {
    Card,
    Agent,
    /// Too little of it is there to say.
    Unknown,
}

/// The stream from the client.
pub(super) struct Input<'m> {
    cells: &'m InputCells,
    journal: Journal<'m>,
    /// The received position, as far as this card was told.
    received: u64,
    /// Where the first message begins that has not been framed: at or behind `received`, or less than a header before
    /// it.
    framed: u64,
}

impl<'m> Input<'m> {
    pub(super) fn new(cells: &'m InputCells, journal: Journal<'m>) -> Self {
        let received = cells.parsed.get();
        Self { cells, journal, received, framed: received + cells.skip.get() }
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The number of the last message that the agent took.
    pub(super) fn taken(&self) -> u64 {
        self.cells.taken.get()
    }

    /// The agent has taken the message with this number. False if that is known already.
    pub(super) fn take(&self, number: u64) -> bool {
        let is_news = number > self.taken();
        if is_news {
            self.cells.taken.set(self.journal, number);
        }
        is_news
    }

    /// Whether everything received is understood, and no message has begun.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_understood() && !self.is_skipping()
    }

    /// Whether everything received is understood, or passed over.
    pub(super) fn is_understood(&self) -> bool {
        self.received == self.cells.parsed.get()
    }

    /// Bytes that may be received from `position` on.
    pub(super) fn room(&self, position: u64) -> usize {
        let taken = position.saturating_sub(self.cells.parsed.at_commit(self.journal));
        INPUT_BYTES.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX))
    }

    /// Where they go, if there are at most `len`.
    pub(super) fn spans(&self, position: u64, len: usize) -> [Span<'m>; 2] {
        let room = self.room(position).min(len);
        let start = position as usize % INPUT_BYTES;
        let first = room.min(INPUT_BYTES - start);
        [self.cells.bytes.span(start, first), self.cells.bytes.span(0, room - first)]
    }

    /// What to do with `bytes`, which come next, if the card has `room` for so many. `can_take` says whether the agent
    /// may take a message.
    pub(super) fn judge(&self, bytes: &[u8], room: usize, can_take: impl FnOnce() -> bool) -> Peeked {
        if bytes.is_empty() {
            return Peeked::NeedMore;
        }
        let consume = |len: usize| if room == 0 { Peeked::Wait } else { Peeked::Consume(len.min(room)) };
        // What has begun to be received is received: its header first, which says how much it is.
        let header_end = self.framed + HEADER_BYTES as u64;
        if (self.framed + 1..header_end).contains(&self.received) {
            return consume(((header_end - self.received) as usize).min(bytes.len()));
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
            (Some(len), 0) if can_take() => Peeked::AgentTakes { len },
            (Some(_), 0) => Peeked::Wait,
            _ => consume(usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len())),
        }
    }

    /// Everything up to `position` has been received: notes where messages begin.
    pub(super) fn receive(&mut self, position: u64) {
        let most = self.cells.parsed.at_commit(self.journal) + INPUT_BYTES as u64;
        self.received = position.min(most).max(self.received);
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

    /// Whether what comes next belongs to nothing.
    pub(super) fn is_skipping(&self) -> bool {
        self.cells.skip.get() > 0
    }

    /// Drops what belongs to nothing, as far as it is there. Returns whether that was all of it.
    pub(super) fn pass_over(&mut self) -> bool {
        let len = usize::try_from(self.cells.skip.get()).unwrap_or(usize::MAX).min(self.available());
        self.consume(len);
        self.cells.skip.update(self.journal, |skip| skip - len as u64) == 0
    }

    /// The header of the next message, if it is there.
    pub(super) fn header(&self) -> Option<MessageHeader> {
        let mut header = [0; HEADER_BYTES];
        if self.available() < HEADER_BYTES {
            return None;
        }
        self.peek(0, &mut header);
        Some(*MessageHeader::view(&header))
    }

    /// Bytes that are there and not understood.
    pub(super) fn available(&self) -> usize {
        self.received.saturating_sub(self.cells.parsed.get()) as usize
    }

    /// Copies input from `offset` behind what is understood; it has arrived.
    pub(super) fn peek(&self, offset: usize, out: &mut [u8]) {
        let start = (self.cells.parsed.get() as usize).wrapping_add(offset) % INPUT_BYTES;
        let (first, second) = out.split_at_mut(out.len().min(INPUT_BYTES - start));
        self.cells.bytes.read(start, first);
        self.cells.bytes.read(0, second);
    }

    /// So many bytes are understood.
    pub(super) fn consume(&mut self, bytes: usize) {
        let parsed = self.cells.parsed.get() + bytes as u64;
        self.cells.parsed.set(self.journal, parsed);
        self.framed = self.framed.max(parsed);
    }

    /// The next message is not to be understood, and passed over as it arrives.
    pub(super) fn skip(&mut self, header: &MessageHeader) {
        self.cells.skip.set(self.journal, u64::from(header.size.get()) - HEADER_BYTES as u64);
        self.consume(HEADER_BYTES);
    }

    /// The client has gone: the next one has a stream of its own.
    pub(super) fn reset(&mut self) {
        self.cells.parsed.reset(self.journal);
        self.cells.skip.set(self.journal, 0);
        (self.received, self.framed) = (0, 0);
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
