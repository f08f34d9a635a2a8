//! Scatter Gather Lists (NVMe 2.0 §4.1.2): read a few descriptors at a time, since a list may be as long as its host
//! likes.
//!
//! A *window* of at most [`RUNS`] pieces of host memory is under way; when its bytes have moved, the next descriptors
//! are read. A list that goes in circles ends at [`DESCRIPTORS_MAX`].

use base::ledger::PAGE_SIZE;
use spec::nvme::sgl::DESCRIPTOR_SIZE;
use spec::nvme::{SglDescriptor, SglType, Status};
use zerocopy::FromBytes;

use super::DataPointer;
use crate::function::Dma;
use crate::nvme::command::{
    CommandCells, Counts, Event, Next, PRP_ENTRIES, RUNS, Run, SglCursor, State, Work,
};

const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of descriptors that are read at once: no more than a window can take.
const CHUNK: usize = RUNS * DESCRIPTOR_SIZE;
/// Segments begin at multiples of 8 bytes, so one descriptor may lie in two pages.
const HALF: usize = DESCRIPTOR_SIZE / 2;
/// Most descriptors of a command.
pub(crate) const DESCRIPTORS_MAX: u32 = 4096;
/// Most pieces of a page or less in a window: as many as the name of a DMA read can tell apart.
const PIECES: u64 = 63;
/// Data blocks are multiples of a dword in address and length (SGLS).
const GRANULARITY: u64 = 3;

const _: () = assert!(CHUNK <= PRP_ENTRIES * 8 && PIECES > (crate::nvme::DATA_MAX as u64) / PAGE);

/// Where in a list the reading is: the cells of a command, taken out while it moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walk {
    /// Where the next descriptor is.
    list: u64,
    cursor: SglCursor,
    /// Bytes of the whole command.
    len: u32,
    runs: [Run; RUNS],
}

impl Walk {
    fn load(command: &CommandCells) -> Self {
        let runs = core::array::from_fn(|index| command.runs[index].get());
        Self { list: command.list.get(), cursor: command.sgl.get(), len: command.counts.get().len, runs }
    }

    fn pieces(&self) -> u64 {
        self.runs[..usize::from(self.cursor.runs)].iter().map(|run| pages(run.address, run.len)).sum()
    }

    /// Takes one descriptor. `Ok(false)`: the window has no room for it.
    fn take(&mut self, descriptor: &SglDescriptor, in_command: bool) -> Result<bool, Status> {
        if descriptor.sub_type() != 0 {
            return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID);
        }
        if self.cursor.descriptors >= DESCRIPTORS_MAX {
            return Err(Status::INVALID_SGL_DESCRIPTOR_COUNT);
        }
        let taken = match descriptor.kind() {
            SglType::DATA_BLOCK => self.take_block(descriptor)?,
            SglType::SEGMENT | SglType::LAST_SEGMENT => {
                self.take_segment(descriptor, in_command)?;
                self.cursor.descriptors += 1;
                return Ok(true);
            }
            _ => return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        };
        if taken {
            self.cursor.descriptors += 1;
            if !in_command {
                self.list += DESCRIPTOR_SIZE as u64;
                self.cursor.segment_left -= DESCRIPTOR_SIZE as u32;
            }
        }
        Ok(taken)
    }

    fn take_block(&mut self, block: &SglDescriptor) -> Result<bool, Status> {
        let (address, length) = (block.address.get(), block.length.get());
        if (address | u64::from(length)) & GRANULARITY != 0 {
            return Err(Status::SGL_GRANULARITY_INVALID);
        } else if address.checked_add(length.into()).is_none() {
            return Err(Status::SGL_OFFSET_INVALID);
        }
        // What lies behind the command's last byte is not wanted (SGLS, longer).
        let len = length.min(self.len - self.cursor.mapped);
        if len == 0 {
            return Ok(true);
        }
        let index = usize::from(self.cursor.runs);
        if index == RUNS || self.pieces() + pages(address, len) > PIECES {
            return Ok(false);
        }
        self.runs[index] = Run { address, len, start: self.cursor.mapped };
        self.cursor.runs += 1;
        self.cursor.mapped += len;
        Ok(true)
    }

    fn take_segment(&mut self, segment: &SglDescriptor, in_command: bool) -> Result<(), Status> {
        let length = segment.length.get();
        let behind = if in_command { 0 } else { self.cursor.segment_left - DESCRIPTOR_SIZE as u32 };
        if behind != 0 {
            return Err(Status::INVALID_SGL_DESCRIPTOR_COUNT);
        }
        let address = segment.address.get();
        let whole = length != 0 && length.is_multiple_of(DESCRIPTOR_SIZE as u32);
        let placed = address.is_multiple_of(HALF as u64) && address.checked_add(length.into()).is_some();
        if self.cursor.last != 0 || !whole || !placed {
            return Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
        }
        self.list = address;
        self.cursor.segment_left = length;
        self.cursor.last = u16::from(segment.kind() == SglType::LAST_SEGMENT);
        Ok(())
    }

    /// Takes descriptors until the window is full, all data have their place, or they are in another segment.
    fn take_all(&mut self, bytes: &[u8]) -> Result<(), Status> {
        for raw in bytes.chunks_exact(DESCRIPTOR_SIZE) {
            let Ok(descriptor) = SglDescriptor::read_from_bytes(raw) else { break };
            let expected = self.list + DESCRIPTOR_SIZE as u64;
            if self.cursor.mapped == self.len || !self.take(&descriptor, false)? || self.list != expected {
                break;
            }
        }
        Ok(())
    }

    /// Bytes of the next read of descriptors, of which `have` have been read before.
    fn chunk(&self, have: usize) -> usize {
        let room = (PAGE - (self.list + have as u64) % PAGE) as usize;
        if have != 0 || room < DESCRIPTOR_SIZE {
            return HALF;
        }
        CHUNK.min(self.cursor.segment_left as usize).min(room - room % DESCRIPTOR_SIZE)
    }
}

fn pages(address: u64, len: u32) -> u64 {
    spec::nvme::prp::pages(address, len.into(), PAGE)
}

impl DataPointer<'_> {
    /// Begins the transfer of `len` bytes by the SGL whose first descriptor is in the command.
    pub(super) fn begin_sgl(&self, work: Work, len: u32) -> Result<Next, Status> {
        let (command, journal) = (self.command, self.journal);
        let entry = command.entry();
        let mut first = [0; DESCRIPTOR_SIZE];
        first[..8].copy_from_slice(&entry.prp1.get().to_le_bytes());
        first[8..].copy_from_slice(&entry.prp2.get().to_le_bytes());
        let first = SglDescriptor::read_from_bytes(&first).unwrap_or_default();
        let mut walk = Walk { list: 0, cursor: SglCursor::default(), len, runs: [Run::default(); RUNS] };
        walk.take(&first, true)?;
        if walk.cursor.segment_left == 0 && walk.cursor.mapped < len {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        self.refuse_runs(&walk)?;
        command.work.set(journal, work.into());
        command.counts.set(journal, Counts { len, prps: 0, pages: 0 });
        self.store_walk(&walk);
        Ok(Next::Step(Event::NeedPages))
    }

    fn store_walk(&self, walk: &Walk) {
        let (command, journal) = (self.command, self.journal);
        command.list.set(journal, walk.list);
        command.sgl.set(journal, walk.cursor);
        let runs = usize::from(walk.cursor.runs);
        command.runs.iter().zip(walk.runs).take(runs).for_each(|(cell, run)| cell.set(journal, run));
    }

    /// Data in the controller memory buffer are not supported, only lists (CMBSZ).
    fn refuse_runs(&self, walk: &Walk) -> Result<(), Status> {
        walk.runs[..usize::from(walk.cursor.runs)].iter().try_for_each(|run| {
            self.buffer.refuse(run.address)?;
            self.buffer.refuse(run.address + u64::from(run.len - 1))
        })
    }

    /// The bytes of the window have moved: the next one, at once if its descriptors are in the controller memory
    /// buffer.
    pub(super) fn next_window(&self) -> Result<Next, Status> {
        let mut walk = Walk::load(self.command);
        walk.cursor.runs = 0;
        while let Some(offset) = self.buffer.offset_of(walk.list) {
            let mut bytes = [0; CHUNK];
            let wanted = CHUNK.min(walk.cursor.segment_left as usize);
            let room = crate::nvme::MEMORY_BUFFER_BYTES.saturating_sub(offset as usize);
            if wanted == 0 || wanted > room {
                return Err(short(wanted));
            }
            let bytes = &mut bytes[..wanted];
            self.buffer.read(offset, bytes);
            walk.take_all(bytes)?;
            self.refuse_runs(&walk)?;
            if walk.cursor.runs != 0 {
                self.store_walk(&walk);
                return Ok(self.move_window());
            }
        }
        if walk.cursor.segment_left == 0 {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        self.store_walk(&walk);
        self.command.counts.update(self.journal, |counts| Counts { prps: 0, ..counts });
        Ok(Next::Step(Event::NeedList))
    }

    fn move_window(&self) -> Next {
        let stores = matches!(self.command.work(), Work::Read | Work::Report);
        match self.command.state() {
            State::Store => Next::Wait,
            _ if stores => Next::Step(Event::HaveData),
            _ => Next::Step(Event::NeedData),
        }
    }

    /// The read of the next descriptors.
    pub(super) fn send_descriptor_read(&self) -> Dma {
        let have = usize::from(self.command.counts.get().prps);
        self.read(0, self.command.list.get() + have as u64, Walk::load(self.command).chunk(have))
    }

    /// A part of the descriptors. `counts.prps` counts the bytes that earlier reads have brought.
    pub(super) fn take_descriptors(&self, offset: usize, data: &[u8], last: bool) -> Result<Next, Status> {
        let command = self.command;
        let mut walk = Walk::load(command);
        let have = usize::from(command.counts.get().prps);
        let (chunk, end) = (walk.chunk(have), offset.saturating_add(data.len()));
        if end > chunk || (last && end != chunk) {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        command.write_prps(self.journal, have + offset, data);
        if !last {
            return Ok(Next::Wait);
        }
        let bytes = have + chunk;
        if bytes < DESCRIPTOR_SIZE {
            command.counts.update(self.journal, |counts| Counts { prps: bytes as u16, ..counts });
            return Ok(Next::Step(Event::NeedList));
        }
        let mut raw = [0; CHUNK];
        command.read_prps(0, &mut raw[..bytes]);
        walk.take_all(&raw[..bytes])?;
        self.refuse_runs(&walk)?;
        self.store_walk(&walk);
        if walk.cursor.runs != 0 { Ok(self.move_window()) } else { self.next_window() }
    }

    /// The piece of an SGL's window that the byte at `position` belongs to: its number, bus address and bytes from
    /// there on.
    pub(super) fn place_in_runs(&self, position: u32) -> (usize, u64, u32) {
        let command = self.command;
        let mut piece = 0;
        for index in 0..usize::from(command.sgl.get().runs) {
            let run = command.runs[index].get();
            if position < run.start + run.len {
                let address = run.address + u64::from(position - run.start);
                let inside = pages(run.address, position - run.start + 1) - 1;
                let room = (PAGE - address % PAGE) as u32;
                return ((piece + inside) as usize, address, room.min(run.start + run.len - position));
            }
            piece += pages(run.address, run.len);
        }
        // `note_sent` turns to the next window at the end of this one, and `take_data` takes nothing that was not
        // asked for.
        unreachable!("only bytes of the window are moved");
    }

    /// Where in the data a piece of the window begins.
    pub(super) fn start_in_runs(&self, piece: usize) -> Option<u32> {
        let command = self.command;
        let mut piece = piece as u64;
        for index in 0..usize::from(command.sgl.get().runs) {
            let run = command.runs[index].get();
            let count = pages(run.address, run.len);
            if piece < count {
                let first = PAGE - run.address % PAGE;
                let inside = if piece == 0 { 0 } else { first + (piece - 1) * PAGE };
                return Some(run.start + inside as u32);
            }
            piece -= count;
        }
        None
    }
}

/// Why a segment in the memory buffer cannot be read on.
fn short(wanted: usize) -> Status {
    if wanted == 0 { Status::DATA_SGL_LENGTH_INVALID } else { Status::INVALID_SGL_SEGMENT_DESCRIPTOR }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(len: u32) -> Walk {
        Walk { list: 0x1000, cursor: SglCursor::default(), len, runs: [Run::default(); RUNS] }
    }

    #[test]
    fn a_window_takes_what_it_has_room_for() {
        let mut walk = walk(128 << 10);
        walk.cursor.segment_left = 160;
        let blocks: Vec<u8> = (0..10_u64)
            .flat_map(|n| {
                let block = SglDescriptor::new(SglType::DATA_BLOCK, 0x10_0000 + n * 0x1_0000 + 4, 8192);
                zerocopy::IntoBytes::as_bytes(&block).to_vec()
            })
            .collect();
        walk.take_all(&blocks).unwrap();
        assert_eq!((walk.cursor.runs, walk.cursor.mapped, walk.cursor.segment_left), (8, 65536, 32));
        assert_eq!(walk.list, 0x1080);
        assert_eq!(walk.runs[7], Run { address: 0x17_0004, len: 8192, start: 57344 });
        assert_eq!(walk.pieces(), 24);
    }

    #[test]
    fn what_a_list_may_not_say() {
        let segment = |length| SglDescriptor::new(SglType::SEGMENT, 0x2000, length);
        let mut at_end = walk(512);
        at_end.cursor.segment_left = 16;
        let mut in_middle = walk(512);
        in_middle.cursor.segment_left = 32;
        let mut in_last = at_end;
        in_last.cursor.last = 1;
        assert_eq!(at_end.clone().take(&segment(16), false), Ok(true));
        assert_eq!(at_end.clone().take(&segment(0), false), Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR));
        assert_eq!(at_end.clone().take(&segment(24), false), Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR));
        assert_eq!(in_middle.take(&segment(16), false), Err(Status::INVALID_SGL_DESCRIPTOR_COUNT));
        assert_eq!(in_last.take(&segment(16), false), Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR));
        let block = |address, length| SglDescriptor::new(SglType::DATA_BLOCK, address, length);
        for (descriptor, status) in [
            (block(0x1002, 512), Status::SGL_GRANULARITY_INVALID),
            (block(0x1000, 510), Status::SGL_GRANULARITY_INVALID),
            (block(!3, 512), Status::SGL_OFFSET_INVALID),
            (SglDescriptor::new(SglType::BIT_BUCKET, 0, 512), Status::SGL_DESCRIPTOR_TYPE_INVALID),
            (SglDescriptor { id: 1, ..block(0, 512) }, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        ] {
            assert_eq!(at_end.clone().take(&descriptor, false), Err(status), "{descriptor:?}");
        }
    }

    #[test]
    fn a_circle_ends() {
        let mut walk = walk(512);
        walk.cursor.segment_left = 16;
        let circle = SglDescriptor::new(SglType::SEGMENT, 0x1000, 16);
        let ended = (0..=DESCRIPTORS_MAX).find_map(|_| walk.take(&circle, false).err());
        assert_eq!(ended, Some(Status::INVALID_SGL_DESCRIPTOR_COUNT));
    }

    #[test]
    fn a_descriptor_in_two_pages_is_read_in_halves() {
        let mut walk = walk(512);
        (walk.list, walk.cursor.segment_left) = (0x1fe8, 48);
        assert_eq!(walk.chunk(0), 16);
        walk.list = 0x1ff8;
        assert_eq!((walk.chunk(0), walk.chunk(8)), (8, 8));
    }
}
