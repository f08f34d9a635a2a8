//! An image in memory, mapped, so that its bytes can be copied without a system call.
//!
//! Only parts that are huge pages are used so: small ones would have to be unmapped one by one when a card is killed,
//! and mapped one by one by its successor. What is read or written often enough becomes one, in a thread beside the
//! data path. Everything else takes the system calls: parts with holes, which a mapping would fill; the end of an
//! image; and the whole image once it has become shorter than it was. Pages that are gone raise a signal
//! ([`crate::fault`]); but the last page that a cut leaves just has zeroes behind the cut, so each copy is followed by
//! a look at the last page the image had, which is itself never copied.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::io::Errno;

use crate::fault::{Owner, Watch};
use crate::memory::{HUGE_PAGE_BYTES, Mapping};

/// Bytes of a part.
const PART: u64 = HUGE_PAGE_BYTES as u64;
/// Weight of what was read from a part, or written to it, after which it becomes a huge page: as many pages of 4 KiB as
/// save with it about what making it costs.
const WORTH_IT: u16 = 512;
/// A part that is being made a huge page.
const ASKED: u16 = u16::MAX - 1;
/// A part that is one: its bytes can be copied.
const MAPPED: u16 = u16::MAX;
/// Niceness of the thread that makes huge pages: it gets a tenth of a processor that others want.
const NICENESS: i32 = 10;
/// Parts that may wait for their turn.
const MAX_ASKED: usize = 64;

/// Makes huge pages of parts of images, in a thread of its own that ends with the last of them.
#[derive(Clone, Debug)]
pub struct Collapser {
    asked: SyncSender<Ask>,
}

#[derive(Debug)]
struct Ask {
    image: Arc<Parts>,
    part: usize,
}

impl Collapser {
    /// Starts the thread.
    ///
    /// # Errors
    /// What starting a thread returned.
    pub fn start() -> io::Result<Self> {
        let (asked, asks) = sync_channel(MAX_ASKED);
        std::thread::Builder::new().name("huge-pages".into()).spawn(move || serve(&asks))?;
        Ok(Self { asked })
    }
}

fn serve(asks: &Receiver<Ask>) {
    // It has time; whoever moves data has not. Best effort.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    while let Ok(Ask { image, part }) = asks.recv() {
        image.collapse(part);
    }
}

/// The mapping of an image.
#[derive(Debug)]
pub(super) struct MappedImage {
    parts: Arc<Parts>,
    collapser: Collapser,
}

#[derive(Debug)]
struct Parts {
    // Before the memory that it watches.
    watch: Watch,
    memory: Mapping,
    /// Of each part how much it was used, or one of the states above.
    states: Box<[AtomicU16]>,
    /// This kernel makes no huge pages of this file.
    is_hopeless: AtomicBool,
}

impl MappedImage {
    /// Maps all of `file`, which is in memory.
    ///
    /// # Errors
    /// What mapping it returned.
    pub(super) fn new(file: &File, is_writable: bool, collapser: &Collapser) -> io::Result<Self> {
        let memory = Mapping::of_file(file.as_fd(), is_writable)?;
        let watch =
            Watch::new(Owner::Node, memory.as_ptr() as usize, memory.len(), rustix::param::page_size())?;
        // The last page stands for all behind a cut, so its part is left alone.
        let states = (0..(memory.len() - 1) / HUGE_PAGE_BYTES).map(|_| AtomicU16::new(0)).collect();
        let parts = Parts { watch, memory, states, is_hopeless: false.into() };
        Ok(Self { parts: Arc::new(parts), collapser: collapser.clone() })
    }

    /// Makes huge pages of all that can be, now.
    pub(super) fn collapse_all(&self) {
        for part in 0..self.parts.states.len() {
            self.parts.states[part].store(ASKED, Ordering::Relaxed);
            self.parts.collapse(part);
        }
    }

    /// Copies from `offset` on; false, and nothing is said of the buffers, where system calls have to do it.
    pub(super) fn read(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> bool {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        let Some(mut from) = self.use_range(offset, len) else { return false };
        for buffer in buffers {
            // SAFETY: the range lies in the mapping, as just seen, and a buffer of this process elsewhere. Other
            // processes may change the file meanwhile: they are bytes, for which any value is valid.
            unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
            from = from.wrapping_add(buffer.len());
        }
        self.parts.is_whole()
    }

    /// Copies to `offset` and what follows; false where system calls have to do it, all of it.
    pub(super) fn write(&self, buffers: &[IoSlice<'_>], offset: u64) -> bool {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        let Some(mut to) = self.use_range(offset, len) else { return false };
        for buffer in buffers {
            // SAFETY: as for reading; parts count as mapped only where the mapping can be written if the image can.
            unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, buffer.len()) };
            to = to.wrapping_add(buffer.len());
        }
        self.parts.is_whole()
    }

    /// The range gets holes: its parts are not used before they have none again.
    pub(super) fn forget(&self, offset: u64, len: u64) {
        let states = &self.parts.states;
        let end = offset.saturating_add(len).div_ceil(PART).min(states.len() as u64);
        for part in (offset / PART).min(end)..end {
            states[part as usize].store(0, Ordering::Relaxed);
        }
    }

    /// Where the range begins, if all its parts are mapped; else it counts as used once more.
    fn use_range(&self, offset: u64, len: usize) -> Option<*mut u8> {
        if self.parts.watch.is_torn() || len == 0 {
            return None;
        }
        let last = offset.checked_add(len as u64 - 1)?;
        let parts = usize::try_from(offset / PART).ok()?..=usize::try_from(last / PART).ok()?;
        let states = self.parts.states.get(parts.clone())?;
        // Acquire: what is seen mapped was collapsed before.
        if states.iter().all(|state| state.load(Ordering::Acquire) == MAPPED) {
            return Some(self.parts.memory.as_ptr().wrapping_add(offset as usize));
        }
        if !self.parts.is_hopeless.load(Ordering::Relaxed) {
            parts.zip(states).for_each(|(part, state)| self.count(part, state, len));
        }
        None
    }

    fn count(&self, part: usize, state: &AtomicU16, len: usize) {
        let used = state.load(Ordering::Relaxed);
        if used >= ASKED {
            return;
        }
        let used = used.saturating_add(1 + (len / 4096) as u16).min(WORTH_IT);
        state.store(if used == WORTH_IT { ASKED } else { used }, Ordering::Relaxed);
        let ask = || Ask { image: Arc::clone(&self.parts), part };
        // Who finds too many before him asks again at his next use.
        if used == WORTH_IT && self.collapser.asked.try_send(ask()).is_err() {
            state.store(used - 1, Ordering::Relaxed);
        }
    }
}

impl Parts {
    /// Whether the file still had its last page when this was called.
    fn is_whole(&self) -> bool {
        let last = self.memory.as_ptr().wrapping_add(self.memory.len() - 1);
        // SAFETY: the last byte of the mapping; should its page be gone, the watch puts another one in its place.
        unsafe { last.read_volatile() };
        !self.watch.is_torn()
    }

    /// Makes a huge page of a part that was asked for, unless it has holes.
    fn collapse(&self, part: usize) {
        let start = part * HUGE_PAGE_BYTES;
        // Whoever makes holes meanwhile has put another state in its place, and that stays.
        let conclude = |state| {
            let _ = self.states[part].compare_exchange(ASKED, state, Ordering::Release, Ordering::Relaxed);
        };
        // Asked of the mapping: to ask the file would keep everybody from writing to it meanwhile.
        if !self.memory.is_resident(start, HUGE_PAGE_BYTES) {
            return conclude(0);
        }
        match self.memory.collapse_range(start, HUGE_PAGE_BYTES) {
            Ok(()) => conclude(MAPPED),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.is_hopeless.store(true, Ordering::Relaxed);
                conclude(0);
            }
            // Short of memory for the moment, or in use.
            Err(_) => conclude(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: usize = 4 * HUGE_PAGE_BYTES + 8192;

    fn file() -> File {
        let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at / 512 % 251) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        file
    }

    /// The image with so many parts mapped, by small pages if this kernel has no huge ones.
    fn mapped(file: &File, parts: usize) -> MappedImage {
        let image = MappedImage::new(file, true, &Collapser::start().unwrap()).unwrap();
        image.parts.states[..parts].iter().for_each(|state| state.store(MAPPED, Ordering::Relaxed));
        image
    }

    fn state(image: &MappedImage, part: usize) -> u16 {
        image.parts.states[part].load(Ordering::Acquire)
    }

    fn read(image: &MappedImage, offset: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let (one, two) = bytes.split_at_mut(len / 3);
        let is_read = image.read(&mut [IoSliceMut::new(one), IoSliceMut::new(two)], offset as u64);
        is_read.then_some(bytes)
    }

    fn expected(file: &File, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        bytes
    }

    #[test]
    fn mapped_parts_are_copied_and_others_left_to_system_calls() {
        let file = file();
        let image = mapped(&file, 2);
        for (offset, len) in [(0, 512), (HUGE_PAGE_BYTES - 1024, 4096), (2 * HUGE_PAGE_BYTES - 512, 512)] {
            assert_eq!(read(&image, offset, len), Some(expected(&file, offset, len)), "{offset}");
            assert!(
                image.write(
                    &[IoSlice::new(&vec![7; len / 2]), IoSlice::new(&vec![9; len / 2])],
                    offset as u64
                )
            );
            let (sevens, nines) = (vec![7; len / 2], vec![9; len / 2]);
            assert_eq!(expected(&file, offset, len), [sevens, nines].concat());
        }
        // Beyond what is mapped, across its end, in the last part, beyond everything.
        for offset in
            [2 * HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES - 256, 4 * HUGE_PAGE_BYTES, BYTES, usize::MAX - 511]
        {
            assert_eq!(read(&image, offset, 512), None, "{offset}");
            assert!(!image.write(&[IoSlice::new(&[1; 512])], offset as u64));
        }
        assert_eq!(read(&image, 0, 0), None);
    }

    #[test]
    fn a_part_that_is_used_often_becomes_a_huge_page() {
        let file = file();
        let image = mapped(&file, 0);
        let uses = (1..).find(|_| read(&image, 0, 4096).is_none() && state(&image, 0) == ASKED).unwrap();
        assert_eq!(uses, i32::from(WORTH_IT) / 2);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while state(&image, 0) == ASKED {
            assert!(std::time::Instant::now() < end, "nobody answers");
            std::thread::yield_now();
        }
        // A kernel that cannot do it says so, and is not asked again.
        let is_hopeless = image.parts.is_hopeless.load(Ordering::Relaxed);
        assert_eq!(state(&image, 0) == MAPPED, !is_hopeless);
        assert_eq!(read(&image, 0, 4096).is_some(), !is_hopeless);
        assert_eq!(state(&image, 1), 0);
    }

    #[test]
    fn parts_with_holes_stay_as_they_are() {
        let file = file();
        let image = mapped(&file, 4);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, PART + 4096, 4096).unwrap();
        image.forget(PART + 4096, 4096);
        assert_eq!([0, 1, 2].map(|part| state(&image, part)), [MAPPED, 0, MAPPED]);
        image.collapse_all();
        assert_eq!(state(&image, 1), 0);
        // A hole that is made while the part is being looked at counts.
        image.parts.states[2].store(ASKED, Ordering::Relaxed);
        image.forget(2 * PART, 1);
        image.parts.collapse(2);
        assert_eq!(state(&image, 2), 0);
        image.forget(u64::MAX - 1, 2);
        image.forget(3 * PART, u64::MAX);
        assert_eq!(state(&image, 3), 0);
    }

    #[test]
    fn a_file_that_has_become_shorter_is_left_to_system_calls() {
        let file = file();
        let image = mapped(&file, 4);
        file.set_len(PART + 4096).unwrap();
        assert_eq!(read(&image, HUGE_PAGE_BYTES + 4000, 512), None);
        // Also what is there: nobody knows any more which of the pages are the file's.
        assert_eq!(read(&image, 0, 512), None);
        let again = mapped(&file, 1);
        file.set_len(4096).unwrap();
        assert!(!again.write(&[IoSlice::new(&[1; 8192])], 0));
    }

    #[test]
    fn what_lies_behind_a_cut_in_its_page_is_not_taken_for_the_images() {
        // Within a page, at its end, and within the last page that the image had.
        for cut in [4608, 2 * HUGE_PAGE_BYTES + 512, HUGE_PAGE_BYTES, BYTES - 4096] {
            let file = file();
            let (image, other) = (mapped(&file, 4), mapped(&file, 4));
            let at = cut.min(4 * HUGE_PAGE_BYTES - 512);
            assert!(read(&image, at, 512).is_some());
            file.set_len(cut as u64).unwrap();
            assert_eq!(read(&image, at, 512), None, "{cut}");
            assert!(!other.write(&[IoSlice::new(&[1; 512])], at as u64), "{cut}");
        }
        let file = file();
        let image = mapped(&file, 4);
        file.set_len(BYTES as u64 - 512).unwrap();
        // Its part is never used, so nothing there can be wrong.
        assert_eq!(read(&image, BYTES - 512, 512), None);
        assert!(read(&image, 0, 512).is_some());
    }
}
