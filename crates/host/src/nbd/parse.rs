//! The bytes from a client, as far as they have arrived: cut into options, requests and payloads.

use base::ledger::{PAGE_SIZE, PageIndex};
use spec::nbd::{NbdError, RequestHeader};

use super::cells::{INPUT_BYTES, Stage, agreed};
use super::requests::Admission;
use super::{Phase, Server};

const REQUEST_BYTES: usize = size_of::<RequestHeader>();

impl Server<'_> {
    /// Understands as much of the input as is there and has room.
    pub(super) fn advance(&mut self, slot: usize) {
        self.starved[slot] = None;
        while match self.phase(slot) {
            Phase::Closed | Phase::Closing => false,
            Phase::Flags => self.parse_flags(slot),
            Phase::Options => self.parse_option(slot),
            Phase::SkipOption => self.skip(slot, Phase::Options),
            Phase::Transmission => self.parse_request(slot),
            Phase::Payload => self.parse_payload(slot),
            Phase::SkipPayload => self.skip(slot, Phase::Transmission),
        } {}
    }

    /// Bytes that are there and not understood.
    pub(super) fn available(&self, slot: usize) -> usize {
        self.received[slot].saturating_sub(self.connection(slot).parsed.get()) as usize
    }

    /// Copies input from `offset` behind the parse position; it has arrived.
    pub(super) fn peek(&self, slot: usize, offset: usize, out: &mut [u8]) {
        let input = &self.cells.inputs[slot];
        let start = (self.connection(slot).parsed.get() as usize).wrapping_add(offset) % INPUT_BYTES;
        let (first, second) = out.split_at_mut(out.len().min(INPUT_BYTES - start));
        input.read(start, first);
        input.read(0, second);
    }

    /// The client broke the protocol: nothing more is read.
    pub(super) fn break_off(&self, slot: usize) -> bool {
        self.cells.counters.protocol_errors.add(1);
        self.set_phase(slot, Phase::Closing);
        false
    }

    /// Passes over bytes, in the end to `next`.
    fn skip(&mut self, slot: usize, next: Phase) -> bool {
        let connection = self.connection(slot);
        let len = (connection.skip.get() as usize).min(self.available(slot));
        self.consume(slot, len);
        if connection.skip.update(self.journal, |skip| skip - len as u32) > 0 {
            return false;
        }
        self.set_phase(slot, next);
        true
    }

    fn parse_request(&mut self, slot: usize) -> bool {
        let mut bytes = [0; REQUEST_BYTES];
        if self.available(slot) < REQUEST_BYTES || self.output_room(slot) == 0 {
            return false;
        }
        self.peek(slot, 0, &mut bytes);
        let Ok(header) = RequestHeader::parse(&bytes) else { return self.break_off(slot) };
        match self.admit(slot, header) {
            Admission::Wait => false,
            Admission::Disconnect => {
                self.consume(slot, REQUEST_BYTES);
                self.agree(slot, agreed::FAREWELL);
                self.set_phase(slot, Phase::Closing);
                false
            }
            Admission::Refuse(error) => {
                self.consume(slot, REQUEST_BYTES);
                self.refuse(slot, header, error);
                true
            }
            Admission::Started => {
                self.consume(slot, REQUEST_BYTES);
                true
            }
        }
    }

    fn refuse(&mut self, slot: usize, header: &RequestHeader, error: NbdError) {
        self.push_result(slot, header.cookie.get(), error);
        let payload = header.payload_length();
        if payload > 0 {
            self.connection(slot).skip.set(self.journal, payload);
            self.set_phase(slot, Phase::SkipPayload);
        }
    }

    /// Copies what has arrived of a write's payload to its pages.
    fn parse_payload(&mut self, slot: usize) -> bool {
        let connection = self.connection(slot);
        let place = connection.filling.get();
        let request = self.request(place);
        debug_assert_eq!(request.stage.get(), Stage::Filling);
        let mut filled = connection.filled.get() as usize;
        let arrived = (request.len as usize - filled).min(self.available(slot));
        let mut buffer = [0; PAGE_SIZE];
        let mut taken = 0;
        while taken < arrived {
            // `check_range` has found that the request is no longer than its pages.
            let page = PageIndex(self.cells.requests[usize::from(place)].pages[filled / PAGE_SIZE].get());
            let start = filled % PAGE_SIZE;
            let len = (PAGE_SIZE - start).min(arrived - taken);
            self.peek(slot, taken, &mut buffer[..len]);
            self.pages.write(page, start, &buffer[..len]);
            (filled, taken) = (filled + len, taken + len);
        }
        self.consume(slot, arrived);
        if arrived > 0 {
            connection.filled.set(self.journal, filled as u32);
            connection.filled_at.set(self.journal, self.now.as_nanos());
        }
        if filled < request.len as usize {
            return false;
        }
        self.set_phase(slot, Phase::Transmission);
        self.activate(place);
        true
    }
}
