//! Memory that came without a descriptor: it is read and written by messages to the guest's machine, and what a
//! function has posted behind such a write waits for its answer.
//!
//! # Order
//!
//! A write by message is done when the machine has answered it. So one is under way at a time, and everything that the
//! function sends behind it waits in a queue, in the order in which it came: writes of any kind, interrupts, and reads,
//! which have to see what was written before them. Reads by message are under way several at a time, and hold up nobody
//! behind them, as posted requests pass reads (PCIe 6.0 §2.4.1). While no memory is reached by messages nothing is
//! queued or under way, and a step looks at two counts.
//!
//! Completions pass. A machine answers these messages in its main loop, which holds still while one of its processors
//! waits for a register: what the register's value waited for would wait for that value. But a value may say that a
//! write is over which is not: a controller that its guest has disabled, or shut down, says that it has ended, behind
//! its last write, and its guest takes its memory back. So the status register says so only when nothing waits any more
//! and no write is late ([`crate::parts::GuestView::settling`]). Other resets end what waits: at most the one write
//! that is with the machine at that moment is done behind them.
//!
//! # Bounds
//!
//! A posted request that waits holds back its credit ([`link::Held`]), and a read has none to give back before it is
//! completed. So there are never more than the function had credit for to begin with: there is a place for each in the
//! ledger, and a page of the loan's pool for each payload.
//!
//! While all credit is held back a function sends no write ([`crate::lender`]), so its completions have none before
//! them that could not come here.
//!
//! # A card that dies
//!
//! What waits lies in the ledger, and so do the session's transfers: the kernel's account of the socket says how much
//! of a message was sent, so a successor goes on in the middle of it, and takes the answer. A store at the front of the
//! queue is made like any other ([`super::memory`]), but its bytes lie here: it leaves the queue behind the store, and
//! a successor that finds it there makes it again.
//!
//! # Failure
//!
//! A read that the machine refuses or does not answer in time is completed with Completer Abort. Of a write nobody can
//! be told: what came behind it, such as the completion of its command, must not reach the guest. So the function has
//! failed: nothing of it reaches the guest until it has been reset, which this card does, and its guest finds it as one
//! that has lost its state. The machine may still do a write that it did not answer in time: that one is late, and the
//! function has not ended before its answer.

use base::ledger::{Journal, PageIndex, Pages, Span};
use base::{INLINE_MAX, Instant};
use fabric::AccessKind;
use host::vfio_user::MapId;
use link::Port;
use pcie::{CompletionStatus, Header, MemoryRequest};
use spec::vfio_user::Errno;
use zerocopy::IntoBytes;

use super::BorrowedSlot;
use super::cells::{BacklogCells, READS, Reading, Waiting, Writing, reading, writing};
use super::memory::Reached;
use crate::endpoint::Endpoint;
use crate::transaction;

/// Requests that leave the queue in one step: keeps the undo log short.
const PER_STEP: usize = 64;
/// Names the transfers of the write; those of a read have its place.
const OF_WRITE: u32 = 0xff;
/// Bits of a transfer's name that tell where in the request it begins.
const OFFSET_BITS: u32 = 16;
const NO_PAGE: u16 = u16::MAX;

/// The requests of a function that wait.
pub(super) struct Backlog<'m> {
    cells: &'m BacklogCells,
    journal: Journal<'m>,
    pages: Pages<'m>,
}

impl<'m> Backlog<'m> {
    pub(super) fn new(cells: &'m BacklogCells, pages: Pages<'m>, journal: Journal<'m>) -> Self {
        Self { cells, journal, pages }
    }

    /// Whether nothing has to wait.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.cells.queue.is_empty() && self.cells.writing.get().flags == 0
    }

    /// Whether there is nothing to do: nothing waits, and no read is under way.
    #[inline]
    fn is_idle(&self) -> bool {
        self.is_empty() && self.cells.reading.get() == 0
    }

    /// Queues a request. False if there is no room, which a function with credit for it has.
    pub(super) fn push(&self, port: &Port<'m>, header: &Header, payload: &[u8]) -> bool {
        let page = if payload.is_empty() { None } else { self.pages.alloc() };
        if self.cells.queue.room() == 0 || (page.is_none() && !payload.is_empty()) {
            if let Some(page) = page {
                self.pages.release(page);
            }
            return false;
        }
        if let Some(page) = page {
            self.pages.write(page, 0, payload);
        }
        let mut waiting = Waiting {
            page: page.map_or(NO_PAGE, |page| page.0),
            len: payload.len() as u16,
            credits: header.data_credits(),
            ..Waiting::default()
        };
        let encoded = header.encode();
        let bytes = encoded.as_bytes();
        waiting.header.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        self.cells.queue.push(self.journal, waiting);
        if let Header::MemoryWrite(_) = header {
            port.held.keep(waiting.credits);
        }
        true
    }

    /// What waits is not to be done any more: whoever asked for it has gone, or the function was reset.
    pub(super) fn abandon(&self) {
        self.cells.abandoned.set(self.journal, self.cells.queue.len() as u32);
        self.flag_write(writing::ABANDONED);
    }

    /// The stream has ended in which everything here came.
    pub(super) fn outlive(&self) {
        while let Some(waiting) = self.cells.queue.pop(self.journal) {
            self.release(&waiting);
        }
        self.cells.abandoned.set(self.journal, 0);
        self.flag_write(writing::ABANDONED | writing::OUTLIVED);
        for cell in &self.cells.reads {
            let read = cell.get();
            if read.flags != 0 {
                cell.set(self.journal, Reading { flags: read.flags | reading::OUTLIVED, ..read });
            }
        }
    }

    fn flag_write(&self, flags: u16) {
        let write = self.cells.writing.get();
        if write.flags != 0 {
            self.cells.writing.set(self.journal, Writing { flags: write.flags | flags, ..write });
        }
    }

    /// Takes the front of the queue away, whose page is somebody else's from now on.
    fn pop(&self) {
        self.cells.queue.pop(self.journal);
        self.cells.abandoned.update(self.journal, |abandoned| abandoned.saturating_sub(1));
    }

    /// A posted request has left.
    fn leave(&self, port: &Port<'m>, waiting: &Waiting) {
        port.held.give_back(waiting.credits);
        self.release(waiting);
    }

    fn release(&self, waiting: &Waiting) {
        if waiting.page != NO_PAGE {
            self.pages.release(PageIndex(waiting.page));
        }
    }

    /// The payload of a request.
    fn payload<'b>(&self, waiting: &Waiting, bytes: &'b mut [u8; 4096]) -> &'b [u8] {
        let payload = &mut bytes[..usize::from(waiting.len).min(4096)];
        if waiting.page != NO_PAGE {
            self.pages.read(PageIndex(waiting.page), 0, payload);
        }
        payload
    }
}

impl Waiting {
    fn decode(&self) -> Option<Header> {
        Header::decode(self.header.as_bytes()).ok()
    }

    /// As of something that was queued as such.
    fn memory(&self) -> Option<MemoryRequest> {
        match self.decode()? {
            Header::MemoryRead(request) | Header::MemoryWrite(request) => Some(request),
            _ => None,
        }
    }
}

impl<'m> BorrowedSlot<'m> {
    /// Queues a posted request that cannot be done at once.
    pub(super) fn detain_write(
        &mut self,
        now: Instant,
        port: &Port<'m>,
        request: MemoryRequest,
        payload: &[u8],
    ) {
        if !self.backlog.push(port, &Header::MemoryWrite(request), payload) {
            self.fail_function(now);
        }
    }

    /// Queues a read that cannot be done at once.
    pub(super) fn detain_read(&self, port: &mut Port<'m>, request: MemoryRequest) {
        if !self.backlog.push(port, &Header::MemoryRead(request), &[]) {
            transaction::fail_read(port, &request, self.completer(), CompletionStatus::CompleterAbort);
        }
    }

    /// Does what has waited, as far as it can be done now. True if there may be more, which is then for the next step.
    pub(super) fn work_off(&mut self, now: Instant, port: &mut Port<'m>) -> bool {
        if !self.reach.has_memory() {
            // A store that is refused for that would be lost.
            return !self.backlog.is_empty();
        }
        if self.backlog.is_idle() {
            return false;
        }
        self.take_transfers(now, port);
        for place in 0..READS {
            self.read_parts(now, port, place);
        }
        (0..PER_STEP).all(|_| port.may_go_on() && self.pass_front(now, port)) || !port.may_go_on()
    }

    /// Does what stands at the front, or begins it. False if nothing can be done.
    fn pass_front(&mut self, now: Instant, port: &mut Port<'m>) -> bool {
        if self.backlog.cells.writing.get().flags != 0 {
            return self.write_part(now, port);
        }
        let Some(front) = self.backlog.cells.queue.front() else { return false };
        let is_abandoned = self.backlog.cells.abandoned.get() > 0;
        match front.decode() {
            Some(Header::MemoryRead(request)) if is_abandoned => {
                self.backlog.pop();
                transaction::fail_read(port, &request, self.completer(), CompletionStatus::CompleterAbort);
            }
            Some(Header::MemoryRead(request)) => {
                match self.reach.read(port, &request, (self.completer(), self.max_payload)) {
                    Reached::ByMessage => return self.begin_read(now, port, front, &request),
                    Reached::Done | Reached::Interrupt(_) => self.backlog.pop(),
                }
            }
            Some(Header::MemoryWrite(request)) if !is_abandoned => {
                let mut bytes = [0; 4096];
                match self.reach.write(&request, self.backlog.payload(&front, &mut bytes)) {
                    Reached::ByMessage => {
                        let write = Writing { request: front, flags: writing::ACTIVE, ..Writing::default() };
                        self.backlog.cells.writing.set(self.journal, write);
                        self.backlog.pop();
                        return true;
                    }
                    Reached::Interrupt(vector) => self.interrupt(vector),
                    Reached::Done => {}
                }
                self.backlog.pop();
                self.backlog.leave(port, &front);
            }
            _ => {
                self.backlog.pop();
                self.backlog.leave(port, &front);
            }
        }
        true
    }

    /// Sends the next part of the write that has begun, or ends it. False if it has to wait.
    fn write_part(&mut self, now: Instant, port: &mut Port<'m>) -> bool {
        let write = self.backlog.cells.writing.get();
        if write.part > 0 {
            return false;
        }
        let request = write.request.memory().filter(|_| write.flags & writing::ABANDONED == 0);
        let rest = request.map(|request| (request, request.byte_range().1 - usize::from(write.done)));
        let (Some((request, rest)), Some(session)) = (rest.filter(|rest| rest.1 > 0), &mut self.session)
        else {
            return self.end_write(port);
        };
        let (done, len) = (usize::from(write.done), rest.min(session.transfers.limit()));
        if len == 0 {
            // A machine that takes no byte at a time cannot be written to.
            return self.fail_write(now, port);
        }
        let place = self.reach.place(&request, AccessKind::Write, (done, len));
        let Some(place) = place else { return self.end_write(port) };
        let mut bytes = [0; 4096];
        let payload = self.backlog.payload(&write.request, &mut bytes);
        // `rest` lies inside of the payload, and `len` is no more than that.
        let start = request.padding() + done;
        let name = OF_WRITE << OFFSET_BITS;
        if session.transfers.write(now, name, place.address, &payload[start..start + len]).is_err() {
            return false;
        }
        session.maps.begin_use(place.map);
        let write = Writing { part: len as u16, map: place.map.0, ..write };
        self.backlog.cells.writing.set(self.journal, write);
        false
    }

    /// Nothing is left of a write. True, since what is behind it can go on.
    fn end_write(&self, port: &Port<'m>) -> bool {
        let write = self.backlog.cells.writing.get();
        if write.flags & writing::OUTLIVED == 0 {
            self.backlog.leave(port, &write.request);
        } else {
            self.backlog.release(&write.request);
        }
        self.backlog.cells.writing.set(self.journal, Writing::default());
        true
    }

    /// A write is lost. True, as [`Self::end_write`].
    fn fail_write(&mut self, now: Instant, port: &Port<'m>) -> bool {
        self.end_write(port);
        self.fail_function(now);
        true
    }

    /// Begins a read. False if as many as can be are under way.
    fn begin_read(
        &mut self,
        now: Instant,
        port: &mut Port<'m>,
        front: Waiting,
        request: &MemoryRequest,
    ) -> bool {
        let cells = self.backlog.cells;
        let Some(place) = cells.reads.iter().position(|read| read.get().flags == 0) else { return false };
        self.backlog.pop();
        let Some(page) = self.backlog.pages.alloc() else {
            transaction::fail_read(port, request, self.completer(), CompletionStatus::CompleterAbort);
            return true;
        };
        // Nothing else may come with the bytes that were asked for.
        let last = usize::from(request.length_dw) * 4 - 4;
        [0, last].into_iter().for_each(|at| self.backlog.pages.write(page, at, &[0; 4]));
        let request = Waiting { page: page.0, ..front };
        cells.reads[place]
            .set(self.journal, Reading { request, flags: reading::ACTIVE, ..Reading::default() });
        cells.reading.update(self.journal, |reading| reading + 1);
        self.read_parts(now, port, place);
        true
    }

    /// Asks for what has not been asked for of a read, if there is one in this place, and ends it if nothing is left to
    /// wait for.
    fn read_parts(&mut self, now: Instant, port: &mut Port<'m>, place: usize) {
        let cell = &self.backlog.cells.reads[place];
        let mut read = cell.get();
        if read.flags == 0 {
            return;
        }
        let (Some(request), Some(session)) = (read.request.memory(), &mut self.session) else { return };
        let (_, wanted) = request.byte_range();
        while usize::from(read.asked) < wanted && read.flags == reading::ACTIVE {
            let asked = usize::from(read.asked);
            let len = (wanted - asked).min(session.transfers.limit());
            let found = self.reach.place(&request, AccessKind::Read, (asked, len));
            // All parts use one map: another one may have come in the place of the first.
            let same = |map: MapId| read.transfers == 0 || read.map == map.0;
            let Some(found) = found.filter(|found| len > 0 && same(found.map)) else {
                read.flags |= reading::FAILED;
                break;
            };
            let name = (place as u32) << OFFSET_BITS | asked as u32;
            if session.transfers.read(now, name, found.address, len).is_err() {
                break;
            }
            session.maps.begin_use(found.map);
            (read.asked, read.map) = (read.asked + len as u16, found.map.0);
            read.transfers += 1;
        }
        cell.set(self.journal, read);
        let is_over = usize::from(read.asked) == wanted || read.flags != reading::ACTIVE;
        if is_over && read.transfers == 0 {
            self.end_read(port, place, &request);
        }
    }

    /// All parts of a read have ended.
    fn end_read(&self, port: &mut Port<'m>, place: usize, request: &MemoryRequest) {
        let read = self.backlog.cells.reads[place].get();
        let (page, len) = (PageIndex(read.request.page), usize::from(request.length_dw) * 4);
        if read.flags & reading::OUTLIVED != 0 {
            // Its requester has forgotten it.
        } else if read.flags & reading::FAILED != 0 {
            transaction::fail_read(port, request, self.completer(), CompletionStatus::CompleterAbort);
        } else if len <= INLINE_MAX {
            let mut bytes = [0; INLINE_MAX];
            self.backlog.pages.read(page, 0, &mut bytes[..len]);
            transaction::complete_inline(port, request, self.completer(), self.max_payload, &bytes[..len]);
        } else {
            transaction::complete_page(
                port,
                request,
                self.completer(),
                self.max_payload,
                (page, request.padding()),
            );
        }
        self.backlog.release(&read.request);
        self.backlog.cells.reads[place].set(self.journal, Reading::default());
        self.backlog.cells.reading.update(self.journal, |reading| reading.saturating_sub(1));
    }

    /// Takes what has come of transfers.
    fn take_transfers(&mut self, now: Instant, port: &mut Port<'m>) {
        while let Some(done) = self.session.as_ref().and_then(|session| session.transfers.poll_done()) {
            let (place, offset) = (done.token >> OFFSET_BITS, done.token & ((1 << OFFSET_BITS) - 1));
            if place == OF_WRITE {
                self.part_written(now, port, done.result.err());
            } else if (place as usize) < READS {
                self.part_read(place as usize, offset as usize, done.result);
            }
        }
        if self.session.as_ref().is_some_and(|session| session.transfers.poll_silence()) {
            self.fail_unbegun(now, port);
        }
    }

    /// The machine does not say how it is to be asked: what waits for that has failed.
    fn fail_unbegun(&mut self, now: Instant, port: &Port<'m>) {
        for cell in &self.backlog.cells.reads {
            let read = cell.get();
            if read.flags != 0 && read.transfers == 0 {
                cell.set(self.journal, Reading { flags: read.flags | reading::FAILED, ..read });
            }
        }
        let write = self.backlog.cells.writing.get();
        if write.flags == writing::ACTIVE && write.part == 0 {
            self.fail_write(now, port);
        }
    }

    fn part_written(&mut self, now: Instant, port: &Port<'m>, error: Option<Errno>) {
        let write = self.backlog.cells.writing.get();
        if let Some(session) = &mut self.session {
            session.end_use(MapId(write.map));
        }
        let done = write.done + write.part;
        self.backlog.cells.writing.set(self.journal, Writing { done, part: 0, ..write });
        if error.is_some() && write.flags & writing::ABANDONED == 0 {
            self.fail_write(now, port);
        }
    }

    fn part_read(&mut self, place: usize, offset: usize, result: Result<Span<'m>, Errno>) {
        let cell = &self.backlog.cells.reads[place];
        let mut read = cell.get();
        if let Some(session) = &mut self.session {
            session.end_use(MapId(read.map));
        }
        read.transfers -= 1;
        match (result, read.request.memory()) {
            (Ok(span), Some(request)) => {
                let mut bytes = [0; 4096];
                let bytes = &mut bytes[..span.len().min(4096)];
                span.read(bytes);
                let page = PageIndex(read.request.page);
                self.backlog.pages.write(page, request.padding() + offset, bytes);
            }
            _ => read.flags |= reading::FAILED,
        }
        cell.set(self.journal, read);
    }
}
