//! Requests: what is admitted, how it is cut for the drive, and how it ends.

use core::time::Duration;

use base::Instant;
use base::ledger::{PAGE_SIZE, PageIndex, Pages};
use spec::nbd::{Command, NbdError, RequestHeader};

use super::cells::{
    ACCEPTED_PAYLOAD, CONNECTION_REQUESTS, CONNECTIONS, FlushAfter, REQUESTS, Request, Stage, agreed,
};
use super::{Phase, Server};
use crate::nvme::Driver;
use crate::{BlockError, BlockKind, BlockRequest};

/// Most blocks of one request for zeroes, as NVMe counts them.
const ZEROES_MAX: u64 = 1 << 16;
/// Pages that stay for others however many one connection wants, and that it may have in any case.
const PAGES_RESERVED: usize = 256;

/// Pages that requests of all connections may have, however many the driver keeps.
const PAGES_FOR_REQUESTS: usize = Pages::CAPACITY - Driver::KEPT_PAGES;

/// A client that has sent nothing of a payload for so long is closed when another waits for pages.
pub(super) const STALL: Duration = Duration::from_secs(3);

/// Whoever looks later than that cannot blame the client.
const LATE: Duration = Duration::from_secs(1);

/// Pages that are left to whoever shares the pool.
const POOL_RESERVE: usize = 64;

/// What becomes of a request.
pub(super) enum Admission {
    /// It has a place and its pages.
    Started,
    /// It has to wait for room.
    Wait,
    /// It is answered with an error.
    Refuse(NbdError),
    /// The client leaves in order.
    Disconnect,
}

/// A request to the drive: a part of a client's request, or the flush behind it.
pub(super) struct Part {
    pub(super) index: u16,
    pub(super) kind: BlockKind,
    pub(super) lba: u64,
    pub(super) blocks: u32,
    pub(super) fua: bool,
    /// Bytes before it.
    before: u32,
    /// Bytes of it; 0 for a flush.
    len: u32,
}

impl Server<'_> {
    /// Takes in a request of which the header is there.
    pub(super) fn admit(&mut self, slot: usize, header: &RequestHeader) -> Admission {
        let kind = match self.check(slot, header) {
            Ok(Some(kind)) => kind,
            Ok(None) => return Admission::Disconnect,
            Err(error) => return Admission::Refuse(error),
        };
        let connection = self.connection(slot);
        let has_data = matches!(kind, BlockKind::Read | BlockKind::Write);
        let count = if has_data { (header.length.get() as usize).div_ceil(PAGE_SIZE) } else { 0 };
        let held = usize::from(connection.held.get());
        // Whoever has something under way lets those go first who cannot begin.
        let over_budget = usize::from(connection.pages.get()) + count > self.page_budget();
        if held >= CONNECTION_REQUESTS || (held > 0 && (over_budget || self.others_starve(slot))) {
            connection.starved_since.set(self.journal, 0);
            return Admission::Wait;
        }
        let Some(place) = self.take_place(count) else { return self.starve(slot, count) };
        connection.starved_since.set(self.journal, 0);
        connection.held.update(self.journal, |held| held + 1);
        connection.pages.update(self.journal, |pages| pages + count as u16);
        self.cells.requests[usize::from(place)]
            .head
            .set(self.journal, self.request_of(slot, header, kind, count));
        if kind == BlockKind::Write {
            connection.filling.set(self.journal, place);
            connection.filled.set(self.journal, 0);
            connection.filled_at.set(self.journal, self.now.as_nanos());
            self.set_phase(slot, Phase::Payload);
        } else {
            self.activate(place);
        }
        Admission::Started
    }

    fn request_of(&self, slot: usize, header: &RequestHeader, kind: BlockKind, pages: usize) -> Request {
        let fua = header.flags().fua();
        let flush_after = if fua && kind == BlockKind::Trim { FlushAfter::Wanted } else { FlushAfter::No };
        Request {
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            started: self.now.as_nanos(),
            len: if kind == BlockKind::Flush { 0 } else { header.length.get() },
            emitted: 0,
            outstanding: 0,
            pages: pages as u16,
            parts: 0,
            kind: kind.into(),
            fua: u8::from(fua && matches!(kind, BlockKind::Write | BlockKind::WriteZeroes { .. })),
            stage: Stage::Filling.into(),
            error: 0,
            queued: 0,
            flush_after: flush_after.into(),
            connection: slot as u8,
            untold: 0,
            reserved: [0; 2],
        }
    }

    /// What a request does, `None` for the end; or why it is refused.
    fn check(&self, slot: usize, header: &RequestHeader) -> Result<Option<BlockKind>, NbdError> {
        let (flags, command) = (header.flags(), header.command());
        let structured = self.connection(slot).agreed.get() & agreed::STRUCTURED != 0;
        let kind = match command {
            Command::DISC => return Ok(None),
            Command::READ => BlockKind::Read,
            Command::WRITE => BlockKind::Write,
            Command::FLUSH => BlockKind::Flush,
            Command::TRIM => BlockKind::Trim,
            Command::WRITE_ZEROES => BlockKind::WriteZeroes { deallocate: !flags.no_hole() },
            _ => return Err(NbdError::EINVAL),
        };
        let zeroes = matches!(kind, BlockKind::WriteZeroes { .. });
        let misplaced = (flags.df() && !(structured && kind == BlockKind::Read))
            || ((flags.no_hole() || flags.fast_zero()) && !zeroes)
            || flags.req_one()
            || flags.payload_len()
            || flags.reserved_bits() != 0;
        if misplaced {
            return Err(NbdError::EINVAL);
        }
        if kind == BlockKind::Flush {
            return Ok(Some(kind));
        }
        if self.cells.read_only.get() != 0 && kind != BlockKind::Read {
            return Err(NbdError::EPERM);
        }
        // Zeroes are written by whatever means the drive has.
        if flags.fast_zero() {
            return Err(NbdError::ENOTSUP);
        }
        self.check_range(kind, header.offset.get(), header.length.get()).map(|()| Some(kind))
    }

    fn check_range(&self, kind: BlockKind, offset: u64, length: u32) -> Result<(), NbdError> {
        let block_size = u64::from(self.cells.block_size.get()).max(1);
        let has_data = matches!(kind, BlockKind::Read | BlockKind::Write);
        let grows = matches!(kind, BlockKind::Write | BlockKind::WriteZeroes { .. });
        let aligned = offset.is_multiple_of(block_size) && u64::from(length).is_multiple_of(block_size);
        if length == 0 || !aligned || (has_data && length > ACCEPTED_PAYLOAD) {
            return Err(NbdError::EINVAL);
        }
        match offset.checked_add(length.into()) {
            Some(end) if end <= self.size() => Ok(()),
            _ if grows => Err(NbdError::ENOSPC),
            _ => Err(NbdError::EINVAL),
        }
    }

    fn others_starve(&self, slot: usize) -> bool {
        let starves = |other: usize| self.starved[other].is_some_and(|pages| pages > 0);
        (0..CONNECTIONS).any(|other| other != slot && starves(other))
    }

    /// Pages that one connection may have beyond its first request.
    fn page_budget(&self) -> usize {
        let open = (0..CONNECTIONS).filter(|slot| !self.is_idle(*slot)).count().max(1);
        ((PAGES_FOR_REQUESTS - PAGES_RESERVED) / open).max(PAGES_RESERVED)
    }

    /// Whether there is room for a request of `count` pages, now or after the commit.
    pub(super) fn has_room(&self, count: usize) -> bool {
        let pages = count == 0 || self.pages.has_free(count + POOL_RESERVE);
        pages && self.slots.used() < REQUESTS
    }

    /// Takes a place with `count` pages, or nothing.
    fn take_place(&mut self, count: usize) -> Option<u16> {
        if !self.has_room(count) {
            return None;
        }
        let place = self.slots.alloc()?;
        let cells = &self.cells.requests[usize::from(place)].pages;
        // A request of `ACCEPTED_PAYLOAD` bytes at most (`admit`) has no more pages than a place.
        for (taken, cell) in cells[..count].iter().enumerate() {
            let Some(page) = self.pages.alloc() else {
                cells[..taken].iter().for_each(|cell| self.pages.release(PageIndex(cell.get())));
                self.slots.free(place);
                return None;
            };
            cell.set(self.journal, page.0);
        }
        Some(place)
    }

    /// There is no room for a request; after too long a wait it fails, as it would in the drive.
    fn starve(&mut self, slot: usize, count: usize) -> Admission {
        let since = &self.connection(slot).starved_since;
        if since.get() == 0 {
            since.set(self.journal, self.now.as_nanos().max(1));
        }
        let end = Instant::from_nanos(since.get()) + self.io_timeout;
        if end <= self.now {
            self.cells.counters.timeouts.add(1);
            return Admission::Refuse(NbdError::EIO);
        }
        self.arm(end);
        self.starved[slot] = Some(count);
        if count > 0 {
            self.evict_stalled(slot);
        }
        Admission::Wait
    }

    /// Someone waits for pages: whoever has them for a payload that does not arrive loses them, and the connection.
    fn evict_stalled(&mut self, starving: usize) {
        for slot in (0..CONNECTIONS).filter(|slot| *slot != starving) {
            if self.phase(slot) != Phase::Payload {
                continue;
            }
            let connection = self.connection(slot);
            // What came to a dead card its successor is told in its first moments.
            let since = Instant::from_nanos(connection.filled_at.get()).max(self.born.unwrap_or(self.now));
            let end = since + STALL;
            if end > self.now {
                self.arm(end);
                continue;
            }
            if self.now.since(end) >= LATE {
                // The card itself may have been away, and the payload may be there by now.
                connection.filled_at.set(self.journal, self.now.as_nanos());
                self.arm(self.now + STALL);
                continue;
            }
            self.cells.counters.stalled.add(1);
            self.end_input(slot);
        }
    }

    pub(super) fn request(&self, place: u16) -> Request {
        self.cells.requests[usize::from(place)].head.get()
    }

    fn set_request(&self, place: u16, request: Request) {
        self.cells.requests[usize::from(place)].head.set(self.journal, request);
    }

    /// All of a request is there: the drive gets it.
    pub(super) fn activate(&mut self, place: u16) {
        let request =
            Request { stage: Stage::Active.into(), started: self.now.as_nanos(), ..self.request(place) };
        self.set_request(place, request);
        self.cells.counters.requests.add(1);
        self.arm(self.now + self.io_timeout);
        self.make_ready(place);
    }

    fn make_ready(&self, place: u16) {
        let request = Request { queued: 1, ..self.request(place) };
        self.set_request(place, request);
        self.cells.ready.push(self.journal, place);
    }

    /// The next part of the oldest request that has one.
    pub(super) fn next_part(&mut self) -> Option<(u16, Part)> {
        loop {
            let place = self.cells.ready.front()?;
            let mut request = self.request(place);
            let part = self.part_of(&request);
            if let Some(part) = &part {
                if request.emitted == request.len {
                    request.flush_after = FlushAfter::No.into();
                }
                request.emitted += part.len;
                request.outstanding += 1;
                request.parts += 1;
            }
            let more = part.is_some() && self.part_of(&request).is_some();
            request.queued = more.into();
            self.set_request(place, request);
            if !more {
                self.cells.ready.pop(self.journal);
            }
            match part {
                Some(part) => return Some((place, part)),
                None => self.settle(place),
            }
        }
    }

    /// What is to be emitted next of a request.
    fn part_of(&self, request: &Request) -> Option<Part> {
        if request.error != 0 || request.stage != Stage::Active {
            return None;
        }
        let block_size = self.cells.block_size.get().max(1);
        let kind = request.kind();
        let flush = Part {
            index: request.parts,
            kind: BlockKind::Flush,
            lba: 0,
            blocks: 0,
            fua: false,
            before: 0,
            len: 0,
        };
        if request.emitted == request.len {
            let own = kind == BlockKind::Flush && request.parts == 0;
            let behind = request.flush_after == FlushAfter::Due;
            return (own || behind).then_some(flush);
        }
        let most = match kind {
            BlockKind::Read | BlockKind::Write => BlockRequest::MAX_BYTES.into(),
            BlockKind::WriteZeroes { .. } => ZEROES_MAX * u64::from(block_size),
            BlockKind::Trim | BlockKind::Flush => u64::MAX,
        };
        let len = u64::from(request.len - request.emitted).min(most) as u32;
        let start = request.offset + u64::from(request.emitted);
        Some(Part {
            kind,
            lba: start / u64::from(block_size),
            blocks: len / block_size,
            fua: request.fua != 0,
            before: request.emitted,
            len,
            ..flush
        })
    }

    /// Copies the pages of a part to where `poll_request` lends them from, and returns how many.
    pub(super) fn copy_pages(&mut self, place: u16, part: &Part) -> usize {
        if !matches!(part.kind, BlockKind::Read | BlockKind::Write) {
            return 0;
        }
        let cells = &self.cells.requests[usize::from(place)].pages[part.before as usize / PAGE_SIZE..];
        let count = (part.len as usize).div_ceil(PAGE_SIZE);
        for (page, cell) in self.part.iter_mut().zip(&cells[..count]) {
            *page = PageIndex(cell.get());
        }
        count
    }

    /// The drive has ended one part.
    pub(super) fn part_done(&mut self, place: u16, result: Result<(), BlockError>) {
        let mut request = self.request(place);
        let Some(outstanding) = request.outstanding.checked_sub(1) else { return };
        request.outstanding = outstanding;
        if request.error == 0 {
            request.error = result.err().map_or(0, error_of).try_into().expect("our errors are below 256");
        }
        self.set_request(place, request);
        self.settle(place);
    }

    /// Ends a request of which nothing is left to do.
    fn settle(&mut self, place: u16) {
        let request = self.request(place);
        if request.queued != 0 || request.outstanding > 0 {
            return;
        }
        match request.stage.get() {
            Stage::Abandoned => self.release(place),
            Stage::Active if request.error == 0 && request.flush_after == FlushAfter::Wanted => {
                self.set_request(place, Request { flush_after: FlushAfter::Due.into(), ..request });
                self.make_ready(place);
            }
            Stage::Active => self.finish(place),
            _ => {}
        }
    }

    fn finish(&mut self, place: u16) {
        let request = self.request(place);
        let slot = usize::from(request.connection);
        let counters = &self.cells.counters;
        match (request.kind(), request.error) {
            (BlockKind::Read, 0) => {
                counters.read_bytes.add(request.len.into());
                self.set_request(place, Request { stage: Stage::Replying.into(), ..request });
                self.push_data(slot, place);
            }
            (kind, error) => {
                let written = kind == BlockKind::Write && error == 0;
                counters.written_bytes.add(if written { request.len.into() } else { 0 });
                self.push_result(slot, request.cookie, NbdError(error.into()));
                self.release(place);
            }
        }
        // The reply made room.
        self.starved[slot] = self.starved[slot].or(Some(0));
    }

    /// Gives back what a request has.
    pub(super) fn release(&mut self, place: u16) {
        let request = self.request(place);
        let cells = &self.cells.requests[usize::from(place)].pages;
        cells[..usize::from(request.pages)].iter().for_each(|cell| self.pages.release(PageIndex(cell.get())));
        if request.stage != Stage::Abandoned {
            self.discount(&request);
        }
        if request.untold != 0 {
            self.cells.untold.update(self.journal, |untold| untold - 1);
        }
        self.slots.free(place);
    }

    /// A request is no longer its connection's.
    fn discount(&self, request: &Request) {
        let connection = self.connection(usize::from(request.connection));
        connection.held.update(self.journal, |held| held - 1);
        connection.pages.update(self.journal, |pages| pages - request.pages);
    }

    /// Nobody waits for a request any more. Its pages stay while the drive has parts of it.
    fn abandon(&mut self, place: u16) {
        let request = self.request(place);
        self.discount(&request);
        let untold = u8::from(request.outstanding > 0);
        self.set_request(place, Request { stage: Stage::Abandoned.into(), untold, ..request });
        if untold != 0 {
            self.cells.untold.update(self.journal, |untold| untold + 1);
        }
        self.cells.counters.abandoned.add(untold.into());
        self.settle(place);
    }

    /// A request that was given up and that the drive has not been told of; now it is.
    pub(super) fn tell_abandoned(&mut self) -> Option<(u16, Request)> {
        if self.cells.untold.get() == 0 {
            return None;
        }
        let place = self.slots.iter().find(|place| self.request(*place).untold != 0)?;
        let request = Request { untold: 0, ..self.request(place) };
        self.set_request(place, request);
        self.cells.untold.update(self.journal, |untold| untold - 1);
        Some((place, request))
    }

    /// Abandons all requests of a connection and what was to be sent.
    pub(super) fn abandon_all(&mut self, slot: usize) {
        self.drop_outputs(slot);
        for place in self.slots.iter() {
            let request = self.request(place);
            if usize::from(request.connection) == slot && request.stage != Stage::Abandoned {
                self.abandon(place);
            }
        }
    }

    /// Fails every request that has not ended.
    pub(super) fn fail_all(&mut self) {
        for place in self.slots.iter() {
            let request = self.request(place);
            if matches!(request.stage.get(), Stage::Filling | Stage::Active) && request.error == 0 {
                self.set_request(place, Request { error: NbdError::EIO.0 as u8, ..request });
                self.settle(place);
            }
        }
    }

    /// Fails what has waited too long, and looks when to look again.
    pub(super) fn expire(&mut self) {
        self.cells.deadline.set(self.journal, 0);
        for place in self.slots.iter() {
            let request = self.request(place);
            let end = Instant::from_nanos(request.started) + self.io_timeout;
            if request.stage != Stage::Active {
                continue;
            }
            if end > self.now {
                self.arm(end);
                continue;
            }
            self.cells.counters.timeouts.add(1);
            let slot = usize::from(request.connection);
            self.push_result(slot, request.cookie, NbdError::EIO);
            self.abandon(place);
        }
        (0..CONNECTIONS).for_each(|slot| self.advance(slot));
    }

    /// Looks at the ages at `at`, or earlier.
    fn arm(&self, at: Instant) {
        let deadline = self.cells.deadline.get();
        if deadline == 0 || at.as_nanos() < deadline {
            self.cells.deadline.set(self.journal, at.as_nanos());
        }
    }
}

/// What a failure of the drive is to the client.
fn error_of(error: BlockError) -> u32 {
    match error {
        BlockError::Invalid => NbdError::EINVAL.0,
        BlockError::NoSpace => NbdError::ENOSPC.0,
        BlockError::ReadOnly => NbdError::EPERM.0,
        BlockError::Io => NbdError::EIO.0,
    }
}
