//! Physical region pages: finding, checking and completing the list of pages a command's data lie in (NVMe 2.0 §4.1.1).

use base::ledger::PAGE_SIZE;
use spec::nvme::Status;
use spec::nvme::prp::{ALIGNMENT_MASK, ENTRY_SIZE, LIST_ALIGNMENT_MASK, pages};

use crate::function::Dma;
use crate::nvme::Controller;
use crate::nvme::command::{Counts, Event, PRP_ENTRIES, Work, dma_id};

const PAGE: u64 = PAGE_SIZE as u64;
const OFFSET_MASK: u64 = PAGE - 1;

/// A part of a list that lies in one page.
struct Part {
    /// Entries in it, the pointer to the next part included.
    entries: usize,
    /// Whether the last entry is a pointer to the next part.
    chained: bool,
}

impl Controller<'_> {
    /// Begins the transfer of a decoded command's `len` bytes (1 to [`super::DATA_MAX`]).
    pub(crate) fn begin_transfer(&mut self, slot: u16, work: Work, len: u32) -> Result<(), Status> {
        if self.command(slot).is_sgl() {
            return self.begin_sgl(slot, work, len);
        }
        let (command, journal) = (self.command(slot), self.journal);
        let entry = command.entry();
        let (prp1, prp2) = (entry.prp1.get(), entry.prp2.get());
        if prp1 & ALIGNMENT_MASK != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        self.buffer.refuse(prp1)?;
        self.set_work(slot, work);
        command.write_prps(journal, 0, &prp1.to_le_bytes());
        command.counts.set(journal, Counts { len, prps: 1, pages: 0 });
        match self.missing_prps(slot) {
            0 => self.want_pages(slot),
            1 => {
                self.check_page(prp2)?;
                command.write_prps(journal, ENTRY_SIZE, &prp2.to_le_bytes());
                command.counts.set(journal, Counts { len, prps: 2, pages: 0 });
                self.want_pages(slot);
            }
            _ if prp2 & LIST_ALIGNMENT_MASK != 0 => return Err(Status::PRP_OFFSET_INVALID),
            _ => {
                command.list.set(journal, prp2);
                self.read_list(slot)?;
            }
        }
        Ok(())
    }

    /// Begins the reading of the list of the pages of a queue with `len` bytes (NVMe 2.0 §5.4): it begins at a page,
    /// and has every page, also the first.
    pub(crate) fn begin_queue_list(&mut self, slot: u16, list: u64, len: u32) -> Result<(), Status> {
        let (command, journal) = (self.command(slot), self.journal);
        self.set_work(slot, Work::CreateQueue);
        command.counts.set(journal, Counts { len, prps: 0, pages: 0 });
        command.list.set(journal, list);
        self.read_list(slot)
    }

    fn missing_prps(&self, slot: u16) -> usize {
        let command = self.command(slot);
        let counts = command.counts.get();
        let first = if command.work() == Work::CreateQueue { 0 } else { command.prp(0) };
        let wanted = pages(first, counts.len.into(), PAGE) as usize;
        assert!(wanted <= PRP_ENTRIES, "the length was checked against the maximum data transfer size");
        wanted - usize::from(counts.prps)
    }

    /// An entry behind the first names a whole page of host memory.
    fn check_page(&self, entry: u64) -> Result<(), Status> {
        if entry & OFFSET_MASK != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        self.buffer.refuse(entry)
    }

    fn part(&self, slot: u16) -> Part {
        let room = ((PAGE - (self.command(slot).list.get() & OFFSET_MASK)) / ENTRY_SIZE as u64) as usize;
        let missing = self.missing_prps(slot);
        Part { entries: missing.min(room), chained: missing > room }
    }

    /// Reads the list from where it goes on: at once if that is in the controller memory buffer. Only the first part
    /// can be shorter than the longest list, so this ends.
    fn read_list(&mut self, slot: u16) -> Result<(), Status> {
        let command = self.command(slot);
        while let Some(offset) = self.buffer.offset_of(command.list.get()) {
            let mut bytes = [0; PRP_ENTRIES * ENTRY_SIZE];
            let bytes = &mut bytes[..self.part(slot).entries * ENTRY_SIZE];
            self.buffer.read(offset, bytes);
            command.write_prps(self.journal, usize::from(command.counts.get().prps) * ENTRY_SIZE, bytes);
            if self.take_part(slot)? {
                return self.end_list(slot);
            }
        }
        self.table.step(slot, Event::NeedList);
        Ok(())
    }

    /// Takes over a part of the list that has been read. Returns whether it was the last.
    fn take_part(&mut self, slot: u16) -> Result<bool, Status> {
        let (command, part) = (self.command(slot), self.part(slot));
        let counts = command.counts.get();
        let first = usize::from(counts.prps);
        let end = first + part.entries - usize::from(part.chained);
        (first..end).try_for_each(|index| self.check_page(command.prp(index)))?;
        if part.chained {
            let next = command.prp(end);
            if next & OFFSET_MASK != 0 {
                return Err(Status::PRP_OFFSET_INVALID);
            }
            command.list.set(self.journal, next);
        }
        command.counts.set(self.journal, Counts { prps: end as u16, ..counts });
        Ok(!part.chained)
    }

    /// The read of a part of a list.
    pub(crate) fn send_list_read(&mut self, slot: u16) -> Dma {
        let command = self.command(slot);
        let len = (self.part(slot).entries * ENTRY_SIZE) as u16;
        self.table.step(slot, Event::Sent);
        Dma::Read { id: dma_id(slot, 0, command.uses.get()), address: command.list.get(), len }
    }

    /// A piece of a part of a list.
    pub(crate) fn handle_list(&mut self, slot: u16, offset: usize, data: &[u8], last: bool) {
        let command = self.command(slot);
        let bytes = self.part(slot).entries * ENTRY_SIZE;
        let end = offset.saturating_add(data.len());
        if end > bytes || (last && end != bytes) {
            return self.complete(slot, 0, Status::DATA_TRANSFER_ERROR);
        }
        let start = usize::from(command.counts.get().prps) * ENTRY_SIZE;
        command.write_prps(self.journal, start + offset, data);
        if !last {
            return;
        }
        let outcome = match self.take_part(slot) {
            Ok(true) => self.end_list(slot),
            Ok(false) => self.read_list(slot),
            Err(status) => Err(status),
        };
        if let Err(status) = outcome {
            self.complete(slot, 0, status.with_dnr());
        }
    }

    /// Every entry of the list is known.
    fn end_list(&mut self, slot: u16) -> Result<(), Status> {
        if self.command(slot).work() == Work::CreateQueue {
            return self.finish_create_queue(slot);
        }
        self.want_pages(slot);
        Ok(())
    }

    fn want_pages(&mut self, slot: u16) {
        self.table.step(slot, Event::NeedPages);
        self.serve_waiting();
    }
}
