//! The bytes to a client: a queue of replies with their positions in the stream.

use base::ledger::{PAGE_SIZE, PageIndex, Span};
use spec::nbd::{ChunkHeader, ChunkType, NbdError, SimpleReply};
use zerocopy::IntoBytes;

use super::Server;
use super::cells::{HEADER_BYTES, OUTPUTS, Output, agreed};

impl<'m> Server<'m> {
    /// Replies that are not sent.
    pub(super) fn output_len(&self, slot: usize) -> usize {
        let connection = self.connection(slot);
        connection.output_tail.get().wrapping_sub(connection.output_head.get()) as usize
    }

    /// Replies that can be queued beyond those owed to the requests in flight.
    pub(super) fn output_room(&self, slot: usize) -> usize {
        OUTPUTS.saturating_sub(self.output_len(slot) + usize::from(self.connection(slot).held.get()))
    }

    /// Queues a reply: a header made of `parts`, then the data of the read at place `request`.
    pub(super) fn push_output(&self, slot: usize, parts: &[&[u8]], request: Option<(u16, u32)>) {
        let (connection, journal) = (self.connection(slot), self.journal);
        assert!(self.output_len(slot) < OUTPUTS, "every request in flight has reserved its reply");
        let mut header = [0; HEADER_BYTES];
        let mut len = 0;
        for part in parts {
            header[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        let tail = connection.output_tail.get();
        let index = tail as usize % OUTPUTS;
        connection.headers[index].write(journal, 0, &header[..len]);
        let (place, data) = request.map_or((0, 0), |(place, data)| (place + 1, data));
        let output = Output { start: connection.output_end.get(), data, header: len as u16, request: place };
        connection.outputs[index].set(journal, output);
        connection.output_tail.set(journal, tail.wrapping_add(1));
        connection.output_end.set(journal, output.end());
    }

    /// Replies to a request without data.
    pub(super) fn push_result(&self, slot: usize, cookie: u64, error: NbdError) {
        self.cells.counters.errors.add((error != NbdError::OK).into());
        if self.connection(slot).agreed.get() & agreed::STRUCTURED == 0 {
            return self.push_output(slot, &[SimpleReply::new(cookie, error).as_bytes()], None);
        }
        if error == NbdError::OK {
            return self.push_output(
                slot,
                &[ChunkHeader::new(ChunkType::NONE, true, cookie, 0).as_bytes()],
                None,
            );
        }
        // The error, and the length of a message that we leave out.
        let header = ChunkHeader::new(ChunkType::ERROR, true, cookie, 6);
        self.push_output(slot, &[header.as_bytes(), &error.0.to_be_bytes(), &[0, 0]], None);
    }

    /// Replies to the read at `place` with its data.
    pub(super) fn push_data(&self, slot: usize, place: u16) {
        let request = self.request(place);
        let data = Some((place, request.len));
        if self.connection(slot).agreed.get() & agreed::STRUCTURED == 0 {
            let header = SimpleReply::new(request.cookie, NbdError::OK);
            return self.push_output(slot, &[header.as_bytes()], data);
        }
        let header = ChunkHeader::new(ChunkType::OFFSET_DATA, true, request.cookie, 8 + request.len);
        self.push_output(slot, &[header.as_bytes(), &request.offset.to_be_bytes()], data);
    }

    /// The spans of the stream from `position` on.
    pub(super) fn fill_spans(&self, slot: usize, position: u64, spans: &mut [Span<'m>]) -> usize {
        let connection = self.connection(slot);
        let mut filled = 0;
        let mut at = position;
        for offset in 0..self.output_len(slot) {
            let index = connection.output_head.get().wrapping_add(offset as u32) as usize % OUTPUTS;
            let output = connection.outputs[index].get();
            while at >= output.start && at < output.end() {
                let Some(span) = spans.get_mut(filled) else { return filled };
                *span = self.span_at(slot, index, &output, (at - output.start) as usize);
                at += span.len() as u64;
                filled += 1;
            }
        }
        filled
    }

    /// The stretch of an output that begins `offset` bytes into it.
    fn span_at(&self, slot: usize, index: usize, output: &Output, offset: usize) -> Span<'m> {
        let header = usize::from(output.header);
        if offset < header {
            return self.connection(slot).headers[index].span(offset, header - offset);
        }
        let offset = offset - header;
        let place = output.request.checked_sub(1).expect("only an output with a request has data");
        let page = self.cells.requests[usize::from(place)].pages[offset / PAGE_SIZE].get();
        let start = offset % PAGE_SIZE;
        let len = (PAGE_SIZE - start).min(output.data as usize - offset);
        self.pages.span(PageIndex(page), start, len)
    }

    /// Forgets what has been sent before `position`.
    pub(super) fn pop_sent(&mut self, slot: usize, position: u64) {
        let connection = self.connection(slot);
        while self.output_len(slot) > 0 {
            let head = connection.output_head.get();
            let output = connection.outputs[head as usize % OUTPUTS].get();
            if output.end() > position {
                return;
            }
            connection.output_head.set(self.journal, head.wrapping_add(1));
            if let Some(place) = output.request.checked_sub(1) {
                self.release(place);
            }
        }
    }

    /// Forgets everything that is to be sent.
    pub(super) fn drop_outputs(&mut self, slot: usize) {
        self.pop_sent(slot, u64::MAX);
    }
}
