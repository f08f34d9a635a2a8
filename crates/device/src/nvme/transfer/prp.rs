//! Physical region pages: finding, checking and completing the list of pages a command's data lie in (NVMe 2.0 §4.1.1).

use base::ledger::PAGE_SIZE;
use spec::nvme::Status;
use spec::nvme::prp::{ALIGNMENT_MASK, ENTRY_SIZE, LIST_ALIGNMENT_MASK, pages};

use super::DataPointer;
use crate::function::Dma;
use crate::nvme::command::{Counts, Event, Next, PRP_ENTRIES, Work};

const PAGE: u64 = PAGE_SIZE as u64;
const OFFSET_MASK: u64 = PAGE - 1;

/// A part of a list that lies in one page.
struct Part {
    /// Entries in it, the pointer to the next part included.
    entries: usize,
    /// Whether the last entry is a pointer to the next part.
    chained: bool,
}

impl DataPointer<'_> {
    /// Begins the transfer of a decoded command's `len` bytes (1 to [`DATA_MAX`](crate::nvme::DATA_MAX)).
    pub(crate) fn begin(&self, work: Work, len: u32) -> Result<Next, Status> {
        let (command, journal) = (self.command, self.journal);
        if command.is_sgl() {
            return self.begin_sgl(work, len);
        }
        let entry = command.entry();
        let (prp1, prp2) = (entry.prp1.get(), entry.prp2.get());
        if prp1 & ALIGNMENT_MASK != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        self.buffer.refuse(prp1)?;
        command.work.set(journal, work.into());
        command.write_prps(journal, 0, &prp1.to_le_bytes());
        command.counts.set(journal, Counts { len, prps: 1, pages: 0 });
        match self.missing_prps() {
            0 => Ok(Next::Step(Event::NeedPages)),
            1 => {
                self.check_page(prp2)?;
                command.write_prps(journal, ENTRY_SIZE, &prp2.to_le_bytes());
                command.counts.set(journal, Counts { len, prps: 2, pages: 0 });
                Ok(Next::Step(Event::NeedPages))
            }
            _ if prp2 & LIST_ALIGNMENT_MASK != 0 => Err(Status::PRP_OFFSET_INVALID),
            _ => {
                command.list.set(journal, prp2);
                self.next_part()
            }
        }
    }

    /// Begins the reading of the list of the pages of a queue with `len` bytes (NVMe 2.0 §5.4): it begins at a page,
    /// and has every page, also the first.
    pub(crate) fn begin_queue_list(&self, list: u64, len: u32) -> Result<Next, Status> {
        let (command, journal) = (self.command, self.journal);
        command.work.set(journal, Work::CreateQueue.into());
        command.counts.set(journal, Counts { len, prps: 0, pages: 0 });
        command.list.set(journal, list);
        self.next_part()
    }

    fn missing_prps(&self) -> usize {
        let counts = self.command.counts.get();
        let first = if self.command.work() == Work::CreateQueue { 0 } else { self.command.prp(0) };
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

    fn part(&self) -> Part {
        let room = ((PAGE - (self.command.list.get() & OFFSET_MASK)) / ENTRY_SIZE as u64) as usize;
        let missing = self.missing_prps();
        Part { entries: missing.min(room), chained: missing > room }
    }

    /// Reads the list from where it goes on: at once if that is in the controller memory buffer. Only the first part
    /// can be shorter than the longest list, so this ends.
    fn next_part(&self) -> Result<Next, Status> {
        let command = self.command;
        while let Some(offset) = self.buffer.offset_of(command.list.get()) {
            let mut bytes = [0; PRP_ENTRIES * ENTRY_SIZE];
            let bytes = &mut bytes[..self.part().entries * ENTRY_SIZE];
            self.buffer.read(offset, bytes);
            command.write_prps(self.journal, usize::from(command.counts.get().prps) * ENTRY_SIZE, bytes);
            if self.take_part()? {
                return Ok(self.end_list());
            }
        }
        Ok(Next::Step(Event::NeedList))
    }

    /// Takes over a part of the list that has been read. Returns whether it was the last.
    fn take_part(&self) -> Result<bool, Status> {
        let (command, part) = (self.command, self.part());
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

    /// The read of a part of a list, of PRPs or of descriptors.
    pub(crate) fn send_list_read(&self) -> Dma {
        if self.command.reads_descriptors() {
            return self.send_descriptor_read();
        }
        self.read(0, self.command.list.get(), self.part().entries * ENTRY_SIZE)
    }

    /// A piece of a part of a list has come.
    pub(crate) fn take_list(&self, offset: usize, data: &[u8], last: bool) -> Result<Next, Status> {
        if self.command.reads_descriptors() {
            return self.take_descriptors(offset, data, last);
        }
        let bytes = self.part().entries * ENTRY_SIZE;
        let end = offset.saturating_add(data.len());
        if end > bytes || (last && end != bytes) {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        let start = usize::from(self.command.counts.get().prps) * ENTRY_SIZE;
        self.command.write_prps(self.journal, start + offset, data);
        if !last {
            Ok(Next::Wait)
        } else if self.take_part()? {
            Ok(self.end_list())
        } else {
            self.next_part()
        }
    }

    /// Every entry of the list is known.
    fn end_list(&self) -> Next {
        if self.command.work() == Work::CreateQueue {
            return Next::CreateQueue;
        }
        Next::Step(Event::NeedPages)
    }

    /// Which PRP entry the byte at `position` of the data belongs to, its bus address, and how many bytes of the data
    /// follow in that page.
    pub(super) fn place_in_prps(&self, position: u32) -> (usize, u64, u32) {
        let page = PAGE as u32;
        let first = page - (self.command.prp(0) as u32 & (page - 1));
        let (piece, inside, capacity) = match position.checked_sub(first) {
            None => (0, position, first),
            Some(behind) => (1 + (behind / page) as usize, behind % page, page),
        };
        let rest = self.command.counts.get().len - position;
        (piece, self.command.prp(piece) + u64::from(inside), rest.min(capacity - inside))
    }

    /// Where in the data the page of a PRP entry begins.
    pub(super) fn start_in_prps(&self, piece: usize) -> usize {
        let first = PAGE_SIZE - (self.command.prp(0) & OFFSET_MASK) as usize;
        if piece == 0 { 0 } else { first + (piece - 1) * PAGE_SIZE }
    }
}
