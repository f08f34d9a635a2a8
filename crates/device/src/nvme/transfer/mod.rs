//! The data pointer of a command: where its data lie in host memory, by PRPs or an SGL, and how they come and go.

mod prp;
mod sgl;

use base::PageSlice;
use base::Payload;
use base::ledger::{Journal, PAGE_SIZE, Pages};
use spec::nvme::Status;

use crate::function::Dma;
use crate::nvme::command::{CommandCells, Event, Next, Progress, State, dma_id};
use crate::nvme::control::cmb::MemoryBuffer;

const PAGE: u32 = PAGE_SIZE as u32;

/// The data pointer of the command in a slot. How far it has been read and its data have come is in the command's
/// cells.
pub(crate) struct DataPointer<'a> {
    pub(crate) slot: u16,
    pub(crate) command: &'a CommandCells,
    pub(crate) journal: Journal<'a>,
    /// Lists may lie in it.
    pub(crate) buffer: &'a MemoryBuffer<'a>,
}

impl DataPointer<'_> {
    fn read(&self, piece: usize, address: u64, len: usize) -> Dma {
        Dma::Read { id: dma_id(self.slot, piece, self.command.uses.get()), address, len: len as u16 }
    }

    /// Which piece of host memory the byte at `position` of the data belongs to, its bus address, and how many bytes of
    /// the data follow in that page.
    fn place(&self, position: u32) -> (usize, u64, u32) {
        if self.command.is_sgl() { self.place_in_runs(position) } else { self.place_in_prps(position) }
    }

    /// The read of the next piece of a command's data, and what is next when it has been sent.
    pub(crate) fn send_data_read(&self) -> (Dma, Result<Next, Status>) {
        let (piece, address, len) = self.place(self.command.progress.get().sent);
        (self.read(piece, address, len as usize), self.note_sent(len))
    }

    /// The write of the next piece of a command's data: inside of one page on both sides. The pages stay the command's
    /// until its completion is sent.
    pub(crate) fn send_data_write(&self, max_payload: usize) -> (Dma, Result<Next, Status>) {
        let position = self.command.progress.get().sent;
        let (_, address, len) = self.place(position);
        let offset = position % PAGE;
        let len = len.min(PAGE - offset).min(u32::try_from(max_payload).unwrap_or(PAGE).max(1));
        let page = self.command.page((position / PAGE) as usize);
        let payload = Payload::Page(PageSlice { page, offset: offset as u16, len: len as u16 });
        (Dma::Write { address, payload }, self.note_sent(len))
    }

    fn note_sent(&self, bytes: u32) -> Result<Next, Status> {
        let progress = self.command.progress.get();
        let sent = progress.sent + bytes;
        self.command.progress.set(self.journal, Progress { sent, ..progress });
        if sent == self.command.counts.get().len {
            Ok(Next::Step(Event::Sent))
        } else if sent != self.command.mapped() {
            Ok(Next::Wait)
        } else if self.command.state() == State::Store {
            // The rest of an SGL: writes need not wait for anything, reads have to have come.
            self.next_window()
        } else {
            Ok(Next::Step(Event::Sent))
        }
    }

    /// A part of the data has come, to piece `piece`.
    pub(crate) fn take_data(
        &self,
        (piece, offset): (usize, usize),
        data: &[u8],
        last: bool,
        pages: Pages<'_>,
    ) -> Result<Next, Status> {
        let command = self.command;
        let start = if command.is_sgl() {
            let Some(start) = self.start_in_runs(piece) else { return Ok(Next::Wait) };
            start as usize
        } else {
            self.start_in_prps(piece)
        };
        let progress = command.progress.get();
        if start >= progress.sent as usize {
            return Ok(Next::Wait);
        }
        let (_, _, len) = self.place(start as u32);
        let end = offset.saturating_add(data.len());
        if end > len as usize || (last && end != len as usize) {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        command.write_data(pages, start + offset, data);
        let arrived = progress.arrived.saturating_add(data.len() as u32);
        command.progress.set(self.journal, Progress { arrived, ..progress });
        if command.state() != State::Loading {
            Ok(Next::Wait)
        } else if arrived == command.counts.get().len {
            Ok(Next::Loaded)
        } else if command.is_sgl() && arrived == command.mapped() {
            self.next_window()
        } else {
            Ok(Next::Wait)
        }
    }

    /// The host's data are wanted (`NeedData`), or the data for the host are in the pages (`HaveData`): moves the first
    /// window of an SGL, or reads its descriptors.
    pub(crate) fn begin_moving(&self, event: Event) -> Result<Next, Status> {
        if self.command.is_sgl() && self.command.sgl.get().runs == 0 {
            self.next_window()
        } else {
            Ok(Next::Step(event))
        }
    }
}
