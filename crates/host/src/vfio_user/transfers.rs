//! Accesses to memory of the client by message, for maps without a descriptor: DMA_READ and DMA_WRITE, the commands
//! that go the other way.
//!
//! Older versions of QEMU (10.1 for one, 11.1.3 not) have the data four bytes before their place, both ways, in
//! messages of the same length; but where the document has a reply to a write repeat address and count, theirs is a
//! bare header. So the first message to each client is a write of nothing, and what follows waits for the reply.

use core::time::Duration;

use base::ledger::{Bytes, Cell, Code, Journal, Layout as LedgerLayout, SlotCells, Slots, Span};
use base::{Instant, coded};
use spec::vfio_user::{Command as WireCommand, DmaAccess, Errno, HEADER_BYTES, MessageHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cells::{TRANSFER_BYTES, TRANSFERS};
use super::output::Output;
use super::{SessionCells, SessionCounters, SlotConfig};

/// Places of transfers: twice what is used, which is [`TRANSFERS`] under way and as many late writes, since one that a
/// step frees is used again only after the commit.
const PLACES: usize = 64;
/// The longest message of a transfer.
const MESSAGE: usize = 32 + TRANSFER_BYTES as usize;

/// Where the document puts data, from the start of the message.
const DATA: usize = HEADER_BYTES + size_of::<DmaAccess>();
/// Bits of a message's number that are the place.
const PLACE_BITS: u32 = PLACES.ilog2();

/// Accesses to memory of the client by message. All zeroes: none.
#[derive(FromBytes, LedgerLayout)]
#[repr(C)]
pub(super) struct TransferCells {
    slots: SlotCells<1>,
    heads: [Cell<Transfer>; PLACES],
    /// Counts up with every transfer, so that late replies are recognised.
    generation: Cell<u32>,
    /// Transfers that have ended and the device has not been told of.
    ended: Cell<u32>,
    layout: Cell<Code<Layout>>,
    /// Writes whose time is over, and which the client may do all the same.
    late: Cell<u32>,
    /// What the client receives at most: bytes of an access.
    limit: Cell<u64>,
    messages: [Bytes<MESSAGE>; PLACES],
}

/// Where the client has data in DMA messages.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Unknown,
    /// A write of nothing is under way, whose reply tells.
    Asked,
    Document,
    Old,
    /// The client was asked and did not answer, of which the device has not been told.
    Silent,
}
coded!(Layout: Unknown, Asked, Document, Old, Silent);

/// What a [`Transfer`] is for.
#[derive(Clone, Copy, PartialEq)]
enum TransferKind {
    Read,
    Write,
    /// A write of nothing that tells the layout.
    Question,
}
coded!(TransferKind: Read, Write, Question);

/// How far a [`Transfer`] is.
#[derive(Clone, Copy, PartialEq)]
enum TransferState {
    Running,
    Ended,
    /// Whoever began it was told of its end.
    Told,
}
coded!(TransferState: Running, Ended, Told);

/// One of them.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, LedgerLayout)]
#[repr(C)]
struct Transfer {
    /// When it began, in nanoseconds.
    started: u64,
    /// What it is to whoever began it.
    token: u32,
    /// Bytes.
    len: u32,
    /// Errno, or 0.
    error: u32,
    /// The number of its message.
    id: u16,
    kind: Code<TransferKind>,
    state: Code<TransferState>,
    /// 1 while its message is not sent.
    unsent: u32,
    /// 1 while it is one of [`TransferCells::late`].
    late: u32,
}

/// Why a transfer cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferRefused {
    /// Too many are under way: later.
    Busy,
    /// Longer than [`Transfers::limit`]: never.
    TooLong,
}

/// A transfer that has ended.
#[derive(Clone, Copy, Debug)]
pub struct TransferDone<'m> {
    /// What it was called when it began.
    pub token: u32,
    /// The bytes of a read, for use in this step or right after its commit; nothing of a write.
    pub result: Result<Span<'m>, Errno>,
}

/// The accesses to memory of one client.
pub struct Transfers<'m> {
    cells: &'m TransferCells,
    slots: Slots<'m, 1>,
    output: Output<'m>,
    counters: &'m SessionCounters,
    journal: Journal<'m>,
    timeout: Duration,
    /// Whether the client is an older version of QEMU, if that is known.
    is_old: Option<bool>,
}

impl<'m> Transfers<'m> {
    pub(super) fn new(
        cells: &'m SessionCells,
        output: Output<'m>,
        journal: Journal<'m>,
        config: &SlotConfig,
    ) -> Self {
        let slots = Slots::new(&cells.transfers.slots, journal);
        let (cells, counters) = (&cells.transfers, &cells.counters);
        Self {
            cells,
            slots,
            output,
            counters,
            journal,
            timeout: config.timeout,
            is_old: config.old_transfers,
        }
    }

    /// Most bytes of one transfer; 0 while no client is ready.
    pub fn limit(&self) -> usize {
        self.cells.limit.get() as usize
    }

    pub(super) fn set_limit(&self, bytes: u32) {
        self.cells.limit.set(self.journal, bytes.into());
    }

    /// Reads memory of the client by message. `token` comes back with the bytes.
    pub fn read(&self, now: Instant, token: u32, address: u64, len: usize) -> Result<(), TransferRefused> {
        self.begin(now, token, address, len, &[], TransferKind::Read)
    }

    /// Writes memory of the client by message. `token` comes back when it is done.
    pub fn write(&self, now: Instant, token: u32, address: u64, bytes: &[u8]) -> Result<(), TransferRefused> {
        self.begin(now, token, address, bytes.len(), bytes, TransferKind::Write)
    }

    /// Whether a write that has failed since it took too long may still be done: the client has it and has not
    /// answered.
    pub fn has_late_writes(&self) -> bool {
        self.cells.late.get() != 0
    }

    /// Whether the client did not even say where it has the data: what was [`TransferRefused::Busy`] for that reason
    /// has failed. True once; whoever begins a transfer afterwards lets it be asked again.
    pub fn poll_silence(&self) -> bool {
        let layout = &self.cells.layout;
        let is_silent = layout.value() == Layout::Silent;
        if is_silent {
            layout.set(self.journal, Layout::Unknown.into());
        }
        is_silent
    }

    /// A transfer that has ended, each once.
    pub fn poll_done(&self) -> Option<TransferDone<'m>> {
        let table = self.cells;
        if table.ended.get() == 0 {
            return None;
        }
        let place = self.slots.iter().find(|place| self.get(*place).state == TransferState::Ended)?;
        table.ended.update(self.journal, |ended| ended.saturating_sub(1));
        let transfer = Transfer { state: TransferState::Told.into(), ..self.get(place) };
        self.set(place, transfer);
        let data = if transfer.kind != TransferKind::Read { 0 } else { transfer.len as usize };
        let span = self.span(place, DATA, data);
        self.free(place);
        let result = if transfer.error == 0 { Ok(span) } else { Err(Errno(transfer.error)) };
        Some(TransferDone { token: transfer.token, result })
    }

    fn begin(
        &self,
        now: Instant,
        token: u32,
        address: u64,
        len: usize,
        bytes: &[u8],
        kind: TransferKind,
    ) -> Result<(), TransferRefused> {
        if len > self.limit() {
            return Err(TransferRefused::TooLong);
        }
        if kind != TransferKind::Question && !self.knows_layout(now, address) {
            return Err(TransferRefused::Busy);
        }
        let (table, journal) = (self.cells, self.journal);
        let running = self.slots.used() - table.late.get() as usize;
        if running >= TRANSFERS || self.output.room() == 0 {
            return Err(TransferRefused::Busy);
        }
        let place = self.slots.alloc().ok_or(TransferRefused::Busy)?;
        let generation = table.generation.update(journal, |generation| generation.wrapping_add(1));
        let id = (generation << PLACE_BITS) as u16 | place;
        let code = if kind == TransferKind::Read { WireCommand::DMA_READ } else { WireCommand::DMA_WRITE };
        let header = MessageHeader::request(id, code, (size_of::<DmaAccess>() + bytes.len()) as u32);
        let access = DmaAccess { address: address.into(), count: (len as u64).into() };
        let message = &table.messages[usize::from(place)];
        message.write(journal, 0, header.as_bytes());
        message.write(journal, HEADER_BYTES, access.as_bytes());
        let data = self.data_offset();
        message.write(journal, data, bytes);
        // Not what another transfer has left there.
        message.write(journal, data + bytes.len(), &[0; DATA][..DATA - data]);
        let transfer = Transfer {
            started: now.as_nanos(),
            token,
            len: len as u32,
            error: 0,
            id,
            kind: kind.into(),
            state: TransferState::Running.into(),
            unsent: 1,
            late: 0,
        };
        self.counters.transfers.add(u64::from(kind != TransferKind::Question));
        self.set(place, transfer);
        self.output.push_transfer(place, &header);
        Ok(())
    }

    /// Whether it is known where the client has data. If not, it is asked, at an address that it has mapped.
    fn knows_layout(&self, now: Instant, address: u64) -> bool {
        if self.is_old.is_some() {
            return true;
        }
        let layout = &self.cells.layout;
        if layout.value() == Layout::Unknown
            && self.begin(now, 0, address, 0, &[], TransferKind::Question).is_ok()
        {
            layout.set(self.journal, Layout::Asked.into());
        }
        matches!(layout.value(), Layout::Document | Layout::Old)
    }

    /// The question has ended.
    fn end_question(&self, place: u16, layout: Layout) {
        self.cells.layout.set(self.journal, layout.into());
        self.set(place, Transfer { state: TransferState::Told.into(), ..self.get(place) });
        self.free(place);
    }

    /// Where the client has the data of a message, from its start.
    fn data_offset(&self) -> usize {
        let is_old = self.cells.layout.value() == Layout::Old;
        if self.is_old.unwrap_or(is_old) { HEADER_BYTES + DmaAccess::OLD_QEMU_DATA } else { DATA }
    }

    /// The client has answered a transfer; what belongs to none is ignored.
    pub(super) fn replied(&self, header: &MessageHeader, payload: &[u8]) {
        let place = header.id.get() & ((1 << PLACE_BITS) - 1);
        if !self.slots.is_used(place) {
            return;
        }
        // A place that is in use is one of the table.
        let transfer = self.get(place);
        let code =
            if transfer.kind == TransferKind::Read { WireCommand::DMA_READ } else { WireCommand::DMA_WRITE };
        if transfer.id != header.id.get() || header.command() != code {
            return;
        }
        if transfer.late != 0 {
            return self.end_lateness(place);
        }
        if transfer.state != TransferState::Running {
            return;
        }
        if transfer.kind == TransferKind::Question {
            // One that refuses to write nothing does as the document says.
            let is_bare = header.error().is_none() && payload.is_empty();
            return self.end_question(place, if is_bare { Layout::Old } else { Layout::Document });
        }
        let start = self.data_offset() - HEADER_BYTES;
        let data = payload.get(start..).and_then(|data| data.get(..transfer.len as usize));
        match (header.error(), transfer.kind != TransferKind::Read, data) {
            // The number of an error is optional.
            (Some(error), _, _) => self.fail(place, if error.0 == 0 { Errno::EIO } else { error }),
            (None, true, _) => self.end(place, 0),
            (None, false, Some(data)) => {
                self.cells.messages[usize::from(place)].write(self.journal, DATA, data);
                self.end(place, 0);
            }
            (None, false, None) => self.fail(place, Errno::EIO),
        }
    }

    fn fail(&self, place: u16, error: Errno) {
        self.counters.failed_transfers.add(1);
        self.end(place, error.0);
    }

    fn end(&self, place: u16, error: u32) {
        self.set(place, Transfer { state: TransferState::Ended.into(), error, ..self.get(place) });
        self.cells.ended.update(self.journal, |ended| ended + 1);
    }

    /// The message of a transfer has been sent.
    pub(super) fn sent(&self, place: u16) {
        self.set(place, Transfer { unsent: 0, ..self.get(place) });
        self.free(place);
    }

    /// Frees the place of a transfer of which nothing is left.
    fn free(&self, place: u16) {
        let transfer = self.get(place);
        if transfer.state == TransferState::Told && transfer.unsent == 0 && transfer.late == 0 {
            self.slots.free(place);
        }
    }

    /// When the oldest has waited too long.
    pub(super) fn end_of_oldest(&self) -> Option<Instant> {
        if self.slots.used() == 0 {
            return None;
        }
        let started = |place| Instant::from_nanos(self.get(place).started);
        let running = self.slots.iter().filter(|place| self.get(*place).state == TransferState::Running);
        running.map(started).min().map(|started| started + self.timeout)
    }

    /// Fails what the client does not answer.
    pub(super) fn expire(&self, now: Instant) {
        for place in self.slots.iter() {
            let transfer = self.get(place);
            let end = Instant::from_nanos(transfer.started) + self.timeout;
            if transfer.state != TransferState::Running || end > now {
                continue;
            }
            if transfer.kind == TransferKind::Question {
                self.counters.failed_transfers.add(1);
                self.end_question(place, Layout::Silent);
                continue;
            }
            self.fail(place, Errno::ETIMEDOUT);
            if transfer.kind == TransferKind::Write && self.cells.late.get() < TRANSFERS as u32 {
                self.set(place, Transfer { late: 1, ..self.get(place) });
                self.cells.late.update(self.journal, |late| late + 1);
            }
        }
    }

    /// A late write is done, or will never be.
    fn end_lateness(&self, place: u16) {
        self.set(place, Transfer { late: 0, ..self.get(place) });
        self.cells.late.update(self.journal, |late| late.saturating_sub(1));
        self.free(place);
    }

    /// Whether the device has not been told yet of transfers that have ended: their maps are in use.
    pub(super) fn has_untold(&self) -> bool {
        self.cells.ended.get() != 0
    }

    /// The client has gone, and nothing more is sent.
    pub(super) fn forget(&self) {
        self.set_limit(0);
        self.cells.layout.set(self.journal, Layout::Unknown.into());
        for place in self.slots.iter() {
            let transfer = Transfer { unsent: 0, ..self.get(place) };
            self.set(place, transfer);
            if transfer.late != 0 {
                self.end_lateness(place);
                continue;
            }
            match transfer.state.get() {
                TransferState::Running if transfer.kind == TransferKind::Question => {
                    self.end_question(place, Layout::Unknown);
                }
                TransferState::Running => self.end(place, Errno::EIO.0),
                TransferState::Ended | TransferState::Told => self.free(place),
            }
        }
    }

    /// `len` bytes of a transfer's message, or of the data that answer it.
    pub(super) fn span(&self, place: u16, offset: usize, len: usize) -> Span<'m> {
        self.cells.messages[usize::from(place) % PLACES].span(offset, len)
    }

    fn get(&self, place: u16) -> Transfer {
        self.cells.heads[usize::from(place)].get()
    }

    fn set(&self, place: u16, transfer: Transfer) {
        self.cells.heads[usize::from(place)].set(self.journal, transfer);
    }
}

const _: () = assert!(PLACES.is_power_of_two() && 4 * TRANSFERS <= PLACES && MESSAGE > DATA);
