//! A ring of frames in memory that two processes share: one writes, the other reads, neither trusts the other.
//!
//! It is a datagram medium, not a stream: whatever a killed writer had not published is gone, and whatever a killed
//! reader had taken is taken. The channel above sends again what was lost, as on any rail, so a successor simply goes
//! on at the positions that lie in the shared memory.
//!
//! Frames are built in the ring and copied out of it before they are looked at. A writer never reads what it has
//! written, and believes the reader's position only as far as it can do no harm.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::memory::Mapping;

/// Bytes of a ring with its positions. A loan has two; longer ones are colder, and no faster.
pub(crate) const RING_BYTES: usize = 256 << 10;
/// Frames begin at multiples of this, each behind a word with its length: no two share a cache line.
const UNIT: usize = 64;
/// Bytes before a frame.
const WORD: usize = 8;
/// Largest frame: four TLPs with the largest payload. What a frame costs hardly counts then, and the reader need not
/// wait for long until there is one.
pub(crate) const FRAME_MAX: usize = 17 << 10;
/// In place of a length: the rest up to the end of the ring is unused.
const SKIP: u32 = u32::MAX;

/// How large a ring is.
pub(crate) trait Size {
    /// Bytes of it with its positions.
    const RING: usize;
    /// Largest frame in it.
    const FRAME: usize;
    /// Bytes of frames in it.
    const DATA: usize = {
        assert!(size_of::<Positions>() == 4096 && Self::RING.is_multiple_of(UNIT));
        assert!(3 * occupied(Self::FRAME) + size_of::<Positions>() <= Self::RING);
        Self::RING - size_of::<Positions>()
    };
}

/// Of a path between two nodes.
pub(crate) struct PathSize;

impl Size for PathSize {
    const RING: usize = RING_BYTES;
    const FRAME: usize = FRAME_MAX;
}

// A window of the channel fits, however small its frames are, beside the frame that goes beyond it, what is skipped,
// and what is just being built.
const _: () = assert!(node::SHM_WINDOW / 5 * 8 + 3 * FRAME_MAX <= PathSize::DATA);

/// Each in cache lines of its own, since they belong to different processors.
#[repr(C, align(4096))]
struct Positions {
    /// Bytes written so far. Moved by the writer alone.
    written: Line<AtomicU64>,
    /// Bytes read so far. Moved by the reader alone.
    read: Line<AtomicU64>,
    /// The reader sleeps, or is about to: whoever writes wakes it.
    sleeping: Line<AtomicU32>,
}

#[repr(C, align(128))]
struct Line<T>(T);

/// One end of a ring.
struct Ring<S> {
    positions: NonNull<Positions>,
    data: NonNull<u8>,
    _memory: Arc<Mapping>,
    _size: PhantomData<fn() -> S>,
}

impl<S: Size> Ring<S> {
    /// The ring that begins `offset` bytes into `memory`.
    fn new(memory: Arc<Mapping>, offset: usize) -> Self {
        let positions = memory.at::<Positions>(offset);
        // Asserts that all of it lies inside of the memory.
        let _last = memory.at::<u8>(offset + S::RING - 1);
        let data = memory.at::<u8>(offset + size_of::<Positions>());
        let not_zero = "a mapping does not begin at zero";
        Self {
            positions: NonNull::new(positions).expect(not_zero),
            data: NonNull::new(data).expect(not_zero),
            _memory: memory,
            _size: PhantomData,
        }
    }

    fn positions(&self) -> &Positions {
        // SAFETY: `Mapping::at` has checked place and alignment, the mapping lives as long as the ring, and the
        // positions are atomics, for which any bytes are valid.
        unsafe { self.positions.as_ref() }
    }

    /// The word at a position, which is a multiple of UNIT.
    fn word(&self, position: u64) -> &AtomicU32 {
        let at = position as usize % S::DATA;
        assert!(at.is_multiple_of(UNIT), "positions are rounded wherever they are read");
        // SAFETY: the word lies inside of the data and is aligned, as just seen.
        unsafe { &*self.data.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Where the bytes of a frame at a position begin. The caller has checked that they end inside of the data.
    fn bytes(&self, position: u64) -> *mut u8 {
        let at = position as usize % S::DATA;
        assert!(at.is_multiple_of(UNIT), "positions are rounded wherever they are read");
        // SAFETY: a unit, which is longer than a word, lies inside of the data.
        unsafe { self.data.as_ptr().add(at + WORD) }
    }
}

/// Bytes of a frame with its length, up to where the next one begins.
const fn occupied(len: usize) -> usize {
    (WORD + len).next_multiple_of(UNIT)
}

fn until_end<S: Size>(position: u64) -> usize {
    S::DATA - position as usize % S::DATA
}

fn rounded(position: u64) -> u64 {
    position / UNIT as u64 * UNIT as u64
}

/// The end that writes.
pub(crate) struct Writer<S = PathSize> {
    ring: Ring<S>,
    position: u64,
}

impl<S: Size> Writer<S> {
    pub(crate) fn new(memory: Arc<Mapping>, offset: usize) -> Self {
        let ring = Ring::new(memory, offset);
        // Whoever shares the memory may have written nonsense there; the position must still be one of a frame.
        let position = rounded(ring.positions().written.0.load(Ordering::Relaxed));
        Self { ring, position }
    }

    /// Room for the next frame, whatever its length; `None` while there is none. [`Writer::publish`] follows.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let skipped = self.skipped();
        // What the reader claims to have read bounds nothing but its own loss.
        let read = self.ring.positions().read.0.load(Ordering::Acquire);
        let used = self.position.wrapping_sub(read);
        if used > S::DATA as u64 || used as usize + skipped + occupied(S::FRAME) > S::DATA {
            return None;
        }
        let start = self.ring.bytes(self.position.wrapping_add(skipped as u64));
        // SAFETY: S::FRAME bytes from there on lie inside of the data, because what is left up to its end was skipped
        // otherwise. They are this writer's until it publishes them. The other process can change them meanwhile: they
        // are bytes, for which any value is valid, they are only written, and nothing that was written is read back.
        Some(unsafe { std::slice::from_raw_parts_mut(start, S::FRAME) })
    }

    /// Lets the reader see the first `len` bytes of the room that was just given.
    pub(crate) fn publish(&mut self, len: usize) {
        assert!((1..=S::FRAME).contains(&len), "a frame was built in the room there is");
        let skipped = self.skipped();
        if skipped > 0 {
            self.ring.word(self.position).store(SKIP, Ordering::Relaxed);
            self.position = self.position.wrapping_add(skipped as u64);
        }
        self.ring.word(self.position).store(len as u32, Ordering::Relaxed);
        self.position = self.position.wrapping_add(occupied(len) as u64);
        self.ring.positions().written.0.store(self.position, Ordering::Release);
    }

    /// Whether the reader sleeps and has to be woken, for what was published before this call.
    pub(crate) fn has_to_wake(&self) -> bool {
        // Pairs with the fence of `prepare_sleep`: either the reader sees the frames, or we see that it sleeps.
        fence(Ordering::SeqCst);
        let sleeping = &self.ring.positions().sleeping.0;
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// Bytes up to the end of the ring in which the largest frame would not fit.
    fn skipped(&self) -> usize {
        let rest = until_end::<S>(self.position);
        if rest < occupied(S::FRAME) { rest } else { 0 }
    }
}

/// The other end makes no sense: it is broken, or means harm.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidFrame;

/// The end that reads.
pub(crate) struct Reader<S = PathSize> {
    ring: Ring<S>,
    position: u64,
    /// Frames are copied before they are looked at: the writer could change them at any time.
    frame: Box<[u8]>,
    is_asleep: Cell<bool>,
}

impl<S: Size> Reader<S> {
    pub(crate) fn new(memory: Arc<Mapping>, offset: usize) -> Self {
        let ring = Ring::new(memory, offset);
        // A predecessor's position is ours as well, unless somebody has written nonsense there.
        let position = rounded(ring.positions().read.0.load(Ordering::Relaxed));
        // A predecessor may have died in its sleep.
        ring.positions().sleeping.0.store(0, Ordering::Relaxed);
        Self { ring, position, frame: vec![0; S::FRAME].into(), is_asleep: Cell::new(false) }
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.positions().written.0.load(Ordering::Relaxed) == self.position
    }

    /// Hands at most `limit` frames to `take`; returns how many.
    ///
    /// # Errors
    /// The writer makes no sense: the ring is of no use any more.
    pub(crate) fn read(
        &mut self,
        limit: usize,
        mut take: impl FnMut(&mut [u8]),
    ) -> Result<usize, InvalidFrame> {
        let written = self.ring.positions().written.0.load(Ordering::Acquire);
        let mut count = 0;
        while count < limit && self.position != written {
            let len = self.next(written).ok_or(InvalidFrame)?;
            if len > 0 {
                take(&mut self.frame[..len]);
                count += 1;
            }
        }
        self.ring.positions().read.0.store(self.position, Ordering::Release);
        Ok(count)
    }

    /// Copies the next frame; 0 where something was skipped, `None` where it makes no sense.
    fn next(&mut self, written: u64) -> Option<usize> {
        let available = written.wrapping_sub(self.position);
        if available > S::DATA as u64 || !written.is_multiple_of(UNIT as u64) {
            return None;
        }
        let len = self.ring.word(self.position).load(Ordering::Relaxed);
        let rest = until_end::<S>(self.position);
        if len == SKIP {
            self.position = (available >= rest as u64).then_some(self.position.wrapping_add(rest as u64))?;
            return Some(0);
        }
        let len = usize::try_from(len).ok().filter(|len| (1..=S::FRAME).contains(len))?;
        let size = occupied(len);
        if size > rest || size as u64 > available {
            return None;
        }
        // SAFETY: the frame ends inside of the data, as just seen, and `frame` has room for the largest. The writer may
        // change the bytes meanwhile; whatever is copied is then what is looked at.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ring.bytes(self.position), self.frame.as_mut_ptr(), len);
        }
        self.position = self.position.wrapping_add(size as u64);
        Some(len)
    }

    /// Says that this end is going to sleep. True if it may: nothing has come, and whoever writes from now on wakes it.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.is_asleep.set(true);
        self.ring.positions().sleeping.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is_empty()
    }

    /// Says that this end is awake.
    pub(crate) fn wake(&self) {
        if self.is_asleep.replace(false) {
            self.ring.positions().sleeping.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
