//! What is sent to the host and what comes back: the one place that decides the order of everything that leaves.

use base::PageSlice;
use base::Payload;
use base::ledger::PAGE_SIZE;
use spec::nvme::Status;

use crate::function::{Dma, DmaError, DmaId};
use crate::nvme::Controller;
use crate::nvme::command::{Event, Origin, Progress, State, dma_id, dma_target};
use crate::nvme::queues::SQE_BYTES;
use crate::nvme::queues::shadow::ShadowDoorbells;

const PAGE: u32 = PAGE_SIZE as u32;

impl Controller<'_> {
    /// The next access: commands in line one after the other, each up to its end; an interrupt after the completions it
    /// stands for, before anything else.
    pub(crate) fn next_dma(&mut self, max_payload: usize) -> Option<Dma> {
        if self.registers.csts().cfs() || !self.config_space.bus_master() {
            return None;
        }
        self.serve_waiting();
        self.serve_saving();
        self.fetch_entries();
        loop {
            if let Some(dma) = self.shadows.next(&self.queues) {
                return Some(dma);
            }
            let Some(slot) = self.table.first_sending() else {
                if let Some(message) = self.interrupts.take(&self.config_space) {
                    return Some(message);
                } else if self.fetch_entries() {
                    continue;
                }
                return None;
            };
            let state = self.command(slot).state();
            if state != State::Complete
                && let Some(message) = self.interrupts.take(&self.config_space)
            {
                return Some(message);
            }
            let dma = match state {
                State::Fetch => {
                    let command = self.command(slot);
                    let Origin { sq, index, .. } = command.origin.get();
                    let address = self.queues.submission(sq).address(index);
                    self.table.step(slot, Event::Sent);
                    Some(Dma::Read {
                        id: dma_id(slot, 0, command.uses.get()),
                        address,
                        len: SQE_BYTES as u16,
                    })
                }
                State::List if self.command(slot).reads_descriptors() => {
                    Some(self.send_descriptor_read(slot))
                }
                State::List => Some(self.send_list_read(slot)),
                State::Load => Some(self.send_data_read(slot)),
                State::Store => Some(self.send_data_write(slot, max_payload)),
                State::Complete => self.send_completion(slot),
                // `step` keeps all others out of the line.
                other => unreachable!("a command in state {other:?} sends nothing"),
            };
            if dma.is_some() {
                return dma;
            }
        }
    }

    /// Whether there is an access to the host's memory that nothing but its driver keeps from being sent.
    pub(crate) fn has_to_send(&self) -> bool {
        let may_send = self.config_space.bus_master() && !self.registers.csts().cfs();
        may_send && (self.table.sending() > 0 || self.shadows.has_to_send())
    }

    /// Which PRP entry the byte at `position` of the data belongs to, its bus address, and how many bytes of the data
    /// follow in that page.
    fn place(&self, slot: u16, position: u32) -> (usize, u64, u32) {
        let command = self.command(slot);
        if command.is_sgl() {
            return self.place_in_runs(slot, position);
        }
        let first = PAGE - (command.prp(0) as u32 & (PAGE - 1));
        let (piece, inside, capacity) = match position.checked_sub(first) {
            None => (0, position, first),
            Some(behind) => (1 + (behind / PAGE) as usize, behind % PAGE, PAGE),
        };
        let rest = command.counts.get().len - position;
        (piece, command.prp(piece) + u64::from(inside), rest.min(capacity - inside))
    }

    fn note_sent(&mut self, slot: u16, bytes: u32) {
        let command = self.command(slot);
        let progress = command.progress.get();
        let sent = progress.sent + bytes;
        command.progress.set(self.journal, Progress { sent, ..progress });
        if sent == command.counts.get().len {
            self.table.step(slot, Event::Sent);
        } else if sent == command.mapped() {
            // The rest of an SGL: writes need not wait for anything, reads have to have come.
            match command.state() {
                State::Store => self.next_window(slot),
                _ => self.table.step(slot, Event::Sent),
            }
        }
    }

    /// The read of the next piece of a command's data.
    fn send_data_read(&mut self, slot: u16) -> Dma {
        let command = self.command(slot);
        let (piece, address, len) = self.place(slot, command.progress.get().sent);
        self.note_sent(slot, len);
        Dma::Read { id: dma_id(slot, piece, command.uses.get()), address, len: len as u16 }
    }

    /// The write of the next piece of a command's data: inside of one page on both sides. The pages stay the command's
    /// until its completion is sent.
    fn send_data_write(&mut self, slot: u16, max_payload: usize) -> Dma {
        let command = self.command(slot);
        let position = command.progress.get().sent;
        let (_, address, len) = self.place(slot, position);
        let offset = position % PAGE;
        let len = len.min(PAGE - offset).min(u32::try_from(max_payload).unwrap_or(PAGE).max(1));
        let page = command.page((position / PAGE) as usize);
        self.note_sent(slot, len);
        Dma::Write {
            address,
            payload: Payload::Page(PageSlice { page, offset: offset as u16, len: len as u16 }),
        }
    }

    /// Data of a read; what is not expected any more is dropped.
    pub(crate) fn take_dma_data(&mut self, id: DmaId, offset: usize, data: &[u8], last: bool) {
        if ShadowDoorbells::is_read(id) {
            return self.take_shadow(id, offset, data, last);
        }
        let Some((slot, piece)) = dma_target(id, |slot| self.command(slot).uses.get()) else { return };
        match self.command(slot).state() {
            State::Listing if self.command(slot).reads_descriptors() => {
                self.handle_descriptors(slot, offset, data, last);
            }
            State::Fetching => self.handle_entry(slot, offset, data, last),
            State::Listing => self.handle_list(slot, offset, data, last),
            State::Load | State::Loading => self.handle_data(slot, piece, offset, data, last),
            _ => {}
        }
    }

    fn handle_data(&mut self, slot: u16, piece: usize, offset: usize, data: &[u8], last: bool) {
        let command = self.command(slot);
        let start = if command.is_sgl() {
            let Some(start) = self.start_in_runs(slot, piece) else { return };
            start as usize
        } else {
            let first = PAGE_SIZE - (command.prp(0) as usize & (PAGE_SIZE - 1));
            if piece == 0 { 0 } else { first + (piece - 1) * PAGE_SIZE }
        };
        let progress = command.progress.get();
        if start >= progress.sent as usize {
            return;
        }
        let (_, _, len) = self.place(slot, start as u32);
        let end = offset.saturating_add(data.len());
        if end > len as usize || (last && end != len as usize) {
            return self.complete(slot, 0, Status::DATA_TRANSFER_ERROR);
        }
        self.write_pages(slot, start + offset, data);
        let arrived = progress.arrived.saturating_add(data.len() as u32);
        command.progress.set(self.journal, Progress { arrived, ..progress });
        if command.state() != State::Loading {
            return;
        }
        if arrived == command.counts.get().len {
            self.data_loaded(slot);
        } else if command.is_sgl() && arrived == command.mapped() {
            self.next_window(slot);
        }
    }

    /// Copies `bytes` to a command's pages, from `position` of its data on.
    pub(crate) fn write_pages(&self, slot: u16, position: usize, bytes: &[u8]) {
        let (mut position, mut rest) = (position, bytes);
        while !rest.is_empty() {
            let offset = position % PAGE_SIZE;
            let (now, later) = rest.split_at(rest.len().min(PAGE_SIZE - offset));
            self.pages.write(self.command(slot).page(position / PAGE_SIZE), offset, now);
            (position, rest) = (position + now.len(), later);
        }
    }

    /// A read brought nothing. Without its commands a controller cannot go on; without its data a command cannot.
    pub(crate) fn take_dma_error(&mut self, id: DmaId, _error: DmaError) {
        if ShadowDoorbells::is_read(id) {
            return self.shadows.fail(id);
        }
        let Some((slot, _)) = dma_target(id, |slot| self.command(slot).uses.get()) else { return };
        match self.command(slot).state() {
            State::Fetching => self.registers.fail("a submission queue entry could not be read"),
            State::Listing | State::Load | State::Loading => {
                self.complete(slot, 0, Status::DATA_TRANSFER_ERROR);
            }
            _ => {}
        }
    }
}
