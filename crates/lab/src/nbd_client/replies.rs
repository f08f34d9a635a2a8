//! Replies, simple and structured, and the reads they complete.

use std::time::Instant;

use super::NbdClient;
use super::error::{NbdError, protocol, unknown_handle};
use super::request::{Errno, Handle, Reply, Request};

// NBD §Structured reply types.
const CHUNK_DONE: u16 = 1 << 0;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_OFFSET_HOLE: u16 = 2;
const CHUNK_ERROR_BIT: u16 = 1 << 15;

/// The largest error chunk this client takes; real ones are below 200 bytes.
const ERROR_CHUNK_MAX: u32 = 64 << 10;

/// A request in flight.
pub(super) struct Pending {
    /// Bytes both ways.
    pub(super) payload: usize,
    /// For a read: what has come so far.
    read: Option<ReadState>,
    /// The first error chunk of a structured reply.
    error: Option<Errno>,
}

impl Pending {
    pub(super) fn new(request: &Request<'_>, spare: &mut Vec<u8>) -> Self {
        let read = match *request {
            Request::Read { offset, length } => Some(ReadState::new(offset, length, std::mem::take(spare))),
            _ => None,
        };
        Self { payload: request.payload(), read, error: None }
    }

    /// Bytes that the server sends for it.
    pub(super) fn reads(&self) -> usize {
        self.read.as_ref().map_or(0, |read| read.length as usize)
    }
}

/// The data of one read, which structured replies may bring in pieces and in any order.
struct ReadState {
    offset: u64,
    length: u32,
    data: Vec<u8>,
    /// Ranges that have come, as first byte and end, relative to the read. Disjoint.
    covered: Vec<(u32, u32)>,
}

impl ReadState {
    fn new(offset: u64, length: u32, mut data: Vec<u8>) -> Self {
        data.clear();
        Self { offset, length, data, covered: Vec::new() }
    }

    /// Notes that `length` bytes at the export's `offset` have come; returns where they lie in the read.
    fn cover(&mut self, offset: u64, length: u32) -> Result<std::ops::Range<usize>, NbdError> {
        let outside = || protocol(format!("a chunk of {length} bytes at {offset} lies outside of its read"));
        let start = offset
            .checked_sub(self.offset)
            .and_then(|start| u32::try_from(start).ok())
            .ok_or_else(outside)?;
        let end = start.checked_add(length).filter(|&end| end <= self.length).ok_or_else(outside)?;
        if length == 0 || self.covered.iter().any(|&(first, last)| start < last && first < end) {
            return Err(protocol(format!("a chunk of {length} bytes at {offset} is empty or came before")));
        }
        // Chunks mostly come in order, then one range is enough.
        match self.covered.last_mut() {
            Some((_, last)) if *last == start => *last = end,
            _ => self.covered.push((start, end)),
        }
        Ok(start as usize..end as usize)
    }

    fn is_complete(&self) -> bool {
        let covered: u64 = self.covered.iter().map(|&(first, last)| u64::from(last - first)).sum();
        covered == u64::from(self.length)
    }
}

/// Replies of the transmission phase.
impl NbdClient {
    /// `NBD §Simple reply message`, after its magic number.
    pub(super) fn simple_reply(&mut self, deadline: Instant) -> Result<u64, NbdError> {
        let error = self.connection.take_u32(deadline)?;
        let handle = self.connection.take_u64(deadline)?;
        let pending = self.pending.get_mut(&handle).ok_or_else(|| unknown_handle(handle))?;
        if error != 0 {
            pending.error = Some(Errno(error));
            return Ok(handle);
        }
        let Some(read) = &mut pending.read else { return Ok(handle) };
        if self.structured {
            return Err(protocol("a simple reply to a read, though structured replies were agreed".into()));
        }
        let range = read.cover(read.offset, read.length)?;
        let mut data = std::mem::take(&mut read.data);
        data.resize(range.len(), 0);
        self.connection.take_into(&mut data, deadline)?;
        self.put_back(handle, data);
        Ok(handle)
    }

    /// `NBD §Structured reply chunk message`, after its magic number. The handle, if this chunk is the last one.
    pub(super) fn structured_chunk(&mut self, deadline: Instant) -> Result<Option<u64>, NbdError> {
        let flags_and_type = self.connection.take_u32(deadline)?;
        let (flags, kind) = ((flags_and_type >> 16) as u16, flags_and_type as u16);
        let handle = self.connection.take_u64(deadline)?;
        let length = self.connection.take_u32(deadline)?;
        if !self.pending.contains_key(&handle) {
            return Err(unknown_handle(handle));
        }
        match kind {
            CHUNK_NONE if length == 0 && flags & CHUNK_DONE != 0 => {}
            CHUNK_OFFSET_DATA if length > 8 => self.data_chunk(handle, length - 8, deadline)?,
            CHUNK_OFFSET_HOLE if length == 12 => self.hole_chunk(handle, deadline)?,
            kind if kind & CHUNK_ERROR_BIT != 0 => self.error_chunk(handle, length, deadline)?,
            _ => {
                return Err(protocol(format!(
                    "a chunk of type {kind:#06x} with {length} bytes and flags {flags:#x}"
                )));
            }
        }
        Ok((flags & CHUNK_DONE != 0).then_some(handle))
    }

    fn data_chunk(&mut self, handle: u64, length: u32, deadline: Instant) -> Result<(), NbdError> {
        let offset = self.connection.take_u64(deadline)?;
        let read = self.read_state(handle)?;
        let range = read.cover(offset, length)?;
        let mut data = std::mem::take(&mut read.data);
        data.resize(read.length as usize, 0);
        self.connection.take_into(&mut data[range], deadline)?;
        self.put_back(handle, data);
        Ok(())
    }

    fn hole_chunk(&mut self, handle: u64, deadline: Instant) -> Result<(), NbdError> {
        let offset = self.connection.take_u64(deadline)?;
        let length = self.connection.take_u32(deadline)?;
        let read = self.read_state(handle)?;
        let range = read.cover(offset, length)?;
        read.data.resize(read.length as usize, 0);
        read.data[range].fill(0);
        Ok(())
    }

    /// Any chunk with the error bit: error, length of a text, the text, and for some types an offset.
    fn error_chunk(&mut self, handle: u64, length: u32, deadline: Instant) -> Result<(), NbdError> {
        if !(6..=ERROR_CHUNK_MAX).contains(&length) {
            return Err(protocol(format!("an error chunk of {length} bytes")));
        }
        let errno = Errno(self.connection.take_u32(deadline)?);
        let mut text = vec![0; length as usize - 4];
        self.connection.take_into(&mut text, deadline)?;
        let pending = self.pending.get_mut(&handle).ok_or_else(|| unknown_handle(handle))?;
        pending.error.get_or_insert(errno);
        Ok(())
    }

    fn read_state(&mut self, handle: u64) -> Result<&mut ReadState, NbdError> {
        let pending = self.pending.get_mut(&handle).ok_or_else(|| unknown_handle(handle))?;
        pending.read.as_mut().ok_or_else(|| protocol("data for a request that reads nothing".into()))
    }

    fn put_back(&mut self, handle: u64, data: Vec<u8>) {
        if let Some(Pending { read: Some(read), .. }) = self.pending.get_mut(&handle) {
            read.data = data;
        }
    }

    /// The request is over: its data goes to the caller, whose old buffer is kept for a later read.
    pub(super) fn finish(&mut self, handle: u64, data: &mut Vec<u8>) -> Result<Reply, NbdError> {
        let pending = self.pending.remove(&handle).ok_or_else(|| unknown_handle(handle))?;
        self.connection.settle(pending.payload, pending.reads());
        data.clear();
        let result = pending.error.map_or(Ok(()), Err);
        if let Some(mut read) = pending.read {
            if result.is_ok() && !read.is_complete() {
                return Err(protocol(format!(
                    "the reply to a read at {} lacks some of its bytes",
                    read.offset
                )));
            }
            if result.is_err() {
                read.data.clear();
            }
            self.spare = std::mem::replace(data, read.data);
        }
        Ok(Reply { handle: Handle(handle), result })
    }
}
