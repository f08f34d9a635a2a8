//! Accesses to memory of the client by message, for maps without a descriptor: DMA_READ and DMA_WRITE, the commands
//! that go the other way.
//!
//! Older versions of QEMU (10.1 for one, 11.1.3 not) have the data four bytes before their place, both ways, in
//! messages of the same length; but where the document has a reply to a write repeat address and count, theirs is a
//! bare header. So the first message to each client is a write of nothing, and what follows waits for the reply.

use base::Instant;
use base::ledger::Span;
use spec::vfio_user::{Command as WireCommand, DmaAccess, Errno, HEADER_BYTES, MessageHeader};
use zerocopy::IntoBytes;

use super::Session;
use super::cells::{
    Layout, Output, TRANSFER_MESSAGE, TRANSFER_PLACES, TRANSFERS, Transfer, TransferKind, TransferState,
};

/// Where the document puts data, from the start of the message.
const DATA: usize = HEADER_BYTES + size_of::<DmaAccess>();
/// Bits of a message's number that are the place.
const PLACE_BITS: u32 = TRANSFER_PLACES.ilog2();

/// Why a transfer cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferRefused {
    /// Too many are under way: later.
    Busy,
    /// Longer than [`Session::transfer_limit`]: never.
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

impl<'m> Session<'m> {
    /// Most bytes of one transfer; 0 while no client is ready.
    pub fn transfer_limit(&self) -> usize {
        self.cells.peer_transfer.get() as usize
    }

    /// Reads memory of the client by message. `token` comes back with the bytes.
    pub fn read_memory(
        &mut self,
        now: Instant,
        token: u32,
        address: u64,
        len: usize,
    ) -> Result<(), TransferRefused> {
        self.now = now;
        self.begin_transfer(token, address, len, &[], TransferKind::Read)
    }

    /// Writes memory of the client by message. `token` comes back when it is done.
    pub fn write_memory(
        &mut self,
        now: Instant,
        token: u32,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), TransferRefused> {
        self.now = now;
        self.begin_transfer(token, address, bytes.len(), bytes, TransferKind::Write)
    }

    /// Whether a write that has failed since it took too long may still be done: the client has it and has not
    /// answered.
    pub fn has_late_writes(&self) -> bool {
        self.cells.transfers.late.get() != 0
    }

    /// Whether the client did not even say where it has the data: what was [`TransferRefused::Busy`] for that reason
    /// has failed. True once; whoever begins a transfer afterwards lets it be asked again.
    pub fn poll_silence(&mut self) -> bool {
        let layout = &self.cells.transfers.layout;
        let is_silent = layout.value() == Layout::Silent;
        if is_silent {
            layout.set(self.journal, Layout::Unknown.into());
        }
        is_silent
    }

    /// A transfer that has ended, each once.
    pub fn poll_transfer(&mut self) -> Option<TransferDone<'m>> {
        let table = &self.cells.transfers;
        if table.ended.get() == 0 {
            return None;
        }
        let place =
            self.transfer_slots.iter().find(|place| self.transfer(*place).state == TransferState::Ended)?;
        table.ended.update(self.journal, |ended| ended.saturating_sub(1));
        let transfer = Transfer { state: TransferState::Told.into(), ..self.transfer(place) };
        self.set_transfer(place, transfer);
        let data = if transfer.kind != TransferKind::Read { 0 } else { transfer.len as usize };
        let span = self.transfer_span(place, DATA, data);
        self.free_transfer(place);
        let result = if transfer.error == 0 { Ok(span) } else { Err(Errno(transfer.error)) };
        Some(TransferDone { token: transfer.token, result })
    }

    fn begin_transfer(
        &mut self,
        token: u32,
        address: u64,
        len: usize,
        bytes: &[u8],
        kind: TransferKind,
    ) -> Result<(), TransferRefused> {
        if len > self.transfer_limit() {
            return Err(TransferRefused::TooLong);
        }
        if kind != TransferKind::Question && !self.knows_layout(address) {
            return Err(TransferRefused::Busy);
        }
        let (table, journal) = (&self.cells.transfers, self.journal);
        let running = self.transfer_slots.used() - table.late.get() as usize;
        if running >= TRANSFERS || self.cells.outputs.room() == 0 {
            return Err(TransferRefused::Busy);
        }
        let place = self.transfer_slots.alloc().ok_or(TransferRefused::Busy)?;
        let generation = table.generation.update(journal, |generation| generation.wrapping_add(1));
        let id = (generation << PLACE_BITS) as u16 | place;
        let code = if kind == TransferKind::Read { WireCommand::DMA_READ } else { WireCommand::DMA_WRITE };
        let header = MessageHeader::request(id, code, (size_of::<DmaAccess>() + bytes.len()) as u32);
        let access = DmaAccess { address: address.into(), count: (len as u64).into() };
        let message = &table.messages[usize::from(place)];
        message.write(journal, 0, header.as_bytes());
        message.write(journal, HEADER_BYTES, access.as_bytes());
        let data = self.transfer_data();
        message.write(journal, data, bytes);
        // Not what another transfer has left there.
        message.write(journal, data + bytes.len(), &[0; DATA][..DATA - data]);
        let transfer = Transfer {
            started: self.now.as_nanos(),
            token,
            len: len as u32,
            error: 0,
            id,
            kind: kind.into(),
            state: TransferState::Running.into(),
            unsent: 1,
            late: 0,
        };
        self.cells.counters.transfers.add(u64::from(kind != TransferKind::Question));
        self.set_transfer(place, transfer);
        self.push_output(Output { start: 0, place: place.into(), len: header.size.get(), transfer: 1 });
        Ok(())
    }

    /// Whether it is known where the client has data. If not, it is asked, at an address that it has mapped.
    fn knows_layout(&mut self, address: u64) -> bool {
        if self.config.old_transfers.is_some() {
            return true;
        }
        let layout = &self.cells.transfers.layout;
        if layout.value() == Layout::Unknown
            && self.begin_transfer(0, address, 0, &[], TransferKind::Question).is_ok()
        {
            layout.set(self.journal, Layout::Asked.into());
        }
        matches!(layout.value(), Layout::Document | Layout::Old)
    }

    /// The question has ended.
    fn end_question(&self, place: u16, layout: Layout) {
        self.cells.transfers.layout.set(self.journal, layout.into());
        self.set_transfer(place, Transfer { state: TransferState::Told.into(), ..self.transfer(place) });
        self.free_transfer(place);
    }

    /// Where the client has the data of a message, from its start.
    fn transfer_data(&self) -> usize {
        let is_old = self.cells.transfers.layout.value() == Layout::Old;
        if self.config.old_transfers.unwrap_or(is_old) {
            HEADER_BYTES + DmaAccess::OLD_QEMU_DATA
        } else {
            DATA
        }
    }

    /// The client has answered a transfer; what belongs to none is ignored.
    pub(super) fn transfer_replied(&mut self, header: &MessageHeader, payload: &[u8]) {
        let place = header.id.get() & ((1 << PLACE_BITS) - 1);
        if !self.transfer_slots.is_used(place) {
            return;
        }
        // A place that is in use is one of the table.
        let transfer = self.transfer(place);
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
        let start = self.transfer_data() - HEADER_BYTES;
        let data = payload.get(start..).and_then(|data| data.get(..transfer.len as usize));
        match (header.error(), transfer.kind != TransferKind::Read, data) {
            // The number of an error is optional.
            (Some(error), _, _) => self.fail_transfer(place, if error.0 == 0 { Errno::EIO } else { error }),
            (None, true, _) => self.end_transfer(place, 0),
            (None, false, Some(data)) => {
                self.cells.transfers.messages[usize::from(place)].write(self.journal, DATA, data);
                self.end_transfer(place, 0);
            }
            (None, false, None) => self.fail_transfer(place, Errno::EIO),
        }
    }

    fn fail_transfer(&self, place: u16, error: Errno) {
        self.cells.counters.failed_transfers.add(1);
        self.end_transfer(place, error.0);
    }

    fn end_transfer(&self, place: u16, error: u32) {
        self.set_transfer(
            place,
            Transfer { state: TransferState::Ended.into(), error, ..self.transfer(place) },
        );
        self.cells.transfers.ended.update(self.journal, |ended| ended + 1);
    }

    /// The message of a transfer has been sent.
    pub(super) fn transfer_sent(&self, place: u16) {
        self.set_transfer(place, Transfer { unsent: 0, ..self.transfer(place) });
        self.free_transfer(place);
    }

    /// Frees the place of a transfer of which nothing is left.
    fn free_transfer(&self, place: u16) {
        let transfer = self.transfer(place);
        if transfer.state == TransferState::Told && transfer.unsent == 0 && transfer.late == 0 {
            self.transfer_slots.free(place);
        }
    }

    pub(super) fn oldest_transfer(&self) -> Option<Instant> {
        if self.transfer_slots.used() == 0 {
            return None;
        }
        let started = |place| Instant::from_nanos(self.transfer(place).started);
        let running =
            self.transfer_slots.iter().filter(|place| self.transfer(*place).state == TransferState::Running);
        running.map(started).min()
    }

    /// Fails what the client does not answer.
    pub(super) fn expire_transfers(&mut self) {
        for place in self.transfer_slots.iter() {
            let transfer = self.transfer(place);
            let end = Instant::from_nanos(transfer.started) + self.config.timeout;
            if transfer.state != TransferState::Running || end > self.now {
                continue;
            }
            if transfer.kind == TransferKind::Question {
                self.cells.counters.failed_transfers.add(1);
                self.end_question(place, Layout::Silent);
                continue;
            }
            self.fail_transfer(place, Errno::ETIMEDOUT);
            if transfer.kind == TransferKind::Write && self.cells.transfers.late.get() < TRANSFERS as u32 {
                self.set_transfer(place, Transfer { late: 1, ..self.transfer(place) });
                self.cells.transfers.late.update(self.journal, |late| late + 1);
            }
        }
    }

    /// A late write is done, or will never be.
    fn end_lateness(&self, place: u16) {
        self.set_transfer(place, Transfer { late: 0, ..self.transfer(place) });
        self.cells.transfers.late.update(self.journal, |late| late.saturating_sub(1));
        self.free_transfer(place);
    }

    /// Whether the device has not been told yet of transfers that have ended: their maps are in use.
    pub(super) fn has_untold_transfers(&self) -> bool {
        self.cells.transfers.ended.get() != 0
    }

    /// The client has gone, and nothing more is sent.
    pub(super) fn forget_transfers(&mut self) {
        self.cells.transfers.layout.set(self.journal, Layout::Unknown.into());
        for place in self.transfer_slots.iter() {
            let transfer = Transfer { unsent: 0, ..self.transfer(place) };
            self.set_transfer(place, transfer);
            if transfer.late != 0 {
                self.end_lateness(place);
                continue;
            }
            match transfer.state.get() {
                TransferState::Running if transfer.kind == TransferKind::Question => {
                    self.end_question(place, Layout::Unknown);
                }
                TransferState::Running => self.end_transfer(place, Errno::EIO.0),
                TransferState::Ended | TransferState::Told => self.free_transfer(place),
            }
        }
    }

    /// `len` bytes of a transfer's message, or of the data that answer it.
    pub(super) fn transfer_span(&self, place: u16, offset: usize, len: usize) -> Span<'m> {
        self.cells.transfers.messages[usize::from(place) % TRANSFER_PLACES].span(offset, len)
    }

    fn transfer(&self, place: u16) -> Transfer {
        self.cells.transfers.heads[usize::from(place)].get()
    }

    fn set_transfer(&self, place: u16, transfer: Transfer) {
        self.cells.transfers.heads[usize::from(place)].set(self.journal, transfer);
    }
}

const _: () = assert!(TRANSFER_PLACES.is_power_of_two() && TRANSFER_MESSAGE > DATA);
