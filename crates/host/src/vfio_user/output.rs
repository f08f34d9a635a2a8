//! What goes to the client: messages with their positions in the stream, and the ring in which replies lie.

use base::ledger::{Bytes, Cell, Fifo, Journal, Layout, Span};
use spec::vfio_user::MessageHeader;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cells::{Marked, OUTPUTS, RING_BYTES};

/// The stream to the client, as far as it is not sent. All zeroes: nothing was ever said.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct OutputCells {
    /// Up to where the ring is free.
    ring_head: Marked,
    ring_tail: Cell<u64>,
    /// Position in the stream behind the last message.
    end: Cell<u64>,
    messages: Fifo<Message, OUTPUTS>,
    /// Replies, and data of writes that the function has not got. Written where the ring is free.
    ring: Bytes<RING_BYTES>,
}

/// A message to the client, in the order of the stream.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(super) struct Message {
    /// Position of its first byte in the stream.
    start: u64,
    /// Its place in the ring, or the place of its transfer.
    place: u64,
    /// Bytes.
    len: u32,
    /// 0 for the ring, 1 for a transfer.
    transfer: u32,
}

impl Message {
    /// Position behind the last byte.
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    /// The place of its transfer, if it belongs to one.
    pub(super) fn transfer(&self) -> Option<u16> {
        (self.transfer != 0).then_some(self.place as u16)
    }
}

/// The stream to the client.
#[derive(Clone, Copy)]
pub(super) struct Output<'m> {
    cells: &'m OutputCells,
    journal: Journal<'m>,
}

impl<'m> Output<'m> {
    pub(super) fn new(cells: &'m OutputCells, journal: Journal<'m>) -> Self {
        Self { cells, journal }
    }

    /// Whether everything has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.messages.is_empty()
    }

    /// Position behind the last message.
    pub(super) fn end(&self) -> u64 {
        self.cells.end.get()
    }

    /// Messages for which there is room.
    pub(super) fn room(&self) -> usize {
        self.cells.messages.room()
    }

    /// Bytes of the ring that are in use in this step.
    pub(super) fn used(&self) -> usize {
        (self.cells.ring_tail.get() - self.cells.ring_head.at_commit(self.journal)) as usize
    }

    /// The same after the coming commit.
    pub(super) fn used_after_commit(&self) -> usize {
        (self.cells.ring_tail.get() - self.cells.ring_head.get()) as usize
    }

    /// Takes a place of `room` bytes in the ring, where there is room, and puts `parts` into it, each at an offset. No
    /// place crosses the end of the ring.
    pub(super) fn place(&self, room: u32, parts: &[(usize, &[u8])]) -> u64 {
        let mut place = self.cells.ring_tail.get();
        let left = RING_BYTES as u64 - place % RING_BYTES as u64;
        if left < room.into() {
            place += left;
        }
        self.cells.ring_tail.set(self.journal, place + u64::from(room));
        for (offset, bytes) in parts {
            self.write(place, *offset, bytes);
        }
        place
    }

    /// Writes at an offset of a place.
    pub(super) fn write(&self, place: u64, offset: usize, bytes: &[u8]) {
        self.cells.ring.write(self.journal, place as usize % RING_BYTES + offset, bytes);
    }

    /// Reads at an offset of a place.
    pub(super) fn read(&self, place: u64, offset: usize, out: &mut [u8]) {
        self.cells.ring.read(place as usize % RING_BYTES + offset, out);
    }

    /// Frees what nobody needs any more at the start of the ring; `oldest` is the place of the first command.
    pub(super) fn free(&self, oldest: impl FnOnce() -> Option<u64>) {
        let reply = self.cells.messages.iter().find(|message| message.transfer == 0);
        let head = reply.map(|reply| reply.place).or_else(oldest).unwrap_or(self.cells.ring_tail.get());
        self.cells.ring_head.set(self.journal, head);
    }

    /// Puts a reply at the end of the stream, whose payload lies at its place; there is room.
    pub(super) fn push_reply(&self, place: u64, header: &MessageHeader) {
        self.write(place, 0, header.as_bytes());
        self.push(Message { start: 0, place, len: header.size.get(), transfer: 0 });
    }

    /// Puts the message of a transfer at the end of the stream; there is room.
    pub(super) fn push_transfer(&self, place: u16, header: &MessageHeader) {
        self.push(Message { start: 0, place: place.into(), len: header.size.get(), transfer: 1 });
    }

    fn push(&self, message: Message) {
        let end = &self.cells.end;
        let message = Message { start: end.get(), ..message };
        self.cells.messages.push(self.journal, message);
        end.set(self.journal, message.end());
    }

    /// Fills `spans` with what is to be sent from `position` on, and returns how many were. `of_transfer` gives bytes
    /// of the message of a transfer, by place, offset and length.
    pub(super) fn spans(
        &self,
        position: u64,
        spans: &mut [Span<'m>],
        of_transfer: impl Fn(u16, usize, usize) -> Span<'m>,
    ) -> usize {
        let behind = self.cells.messages.iter().filter(|message| message.end() > position);
        let mut filled = 0;
        for (message, span) in behind.zip(spans) {
            let offset = position.saturating_sub(message.start) as usize;
            let len = message.len as usize - offset;
            *span = match message.transfer() {
                Some(place) => of_transfer(place, offset, len),
                None => self.cells.ring.span(message.place as usize % RING_BYTES + offset, len),
            };
            filled += 1;
        }
        filled
    }

    /// Takes the next message that has been sent before `position`.
    pub(super) fn pop_sent(&self, position: u64) -> Option<Message> {
        self.cells.messages.front().filter(|message| message.end() <= position)?;
        self.cells.messages.pop(self.journal)
    }

    /// The client has gone: the next one has a stream of its own.
    pub(super) fn reset(&self) {
        self.cells.ring_head.reset(self.journal);
        self.cells.ring_tail.set(self.journal, 0);
        self.cells.end.set(self.journal, 0);
        self.cells.messages.clear(self.journal);
    }
}
