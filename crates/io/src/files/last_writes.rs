//! When this machine's cards have written to their images last, and whether their last flush is known to have
//! succeeded, in memory that outlives the node.
//!
//! A node that was killed cannot say what its last write was, and the time stamp of an image that somebody copied
//! something into afterwards looks like that of a write. So a card notes the time before it writes, in a page of a
//! memory file system: it is still there when the node is started again, and gone with the machine's power. An image
//! that bears a later time was written by somebody else.
//!
//! Linux tells an error of writing back once. Where the whole node was killed when a flush had been told, and nobody
//! had kept that, the next life's flush would succeed: so a card notes each flush before it begins, and what it came
//! to.

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::ClockId;

use super::memory_page_bytes;
use crate::memory::{self, Mapping};

/// Images of a node, at most.
const IMAGES: usize = node::MAX_DRIVES;
/// A write's time stamp is at most this much later than what was noted for it, nanoseconds: whoever writes waits for
/// nobody but the file system.
const LATEST: i64 = 2_000_000_000;
/// The same while the disk has something to write, which it may do late.
const LATEST_BUSY: i64 = 30_000_000_000;

/// The page. Zeroes say nothing.
#[repr(C)]
struct Page {
    /// Whose life this is about.
    life: AtomicU64,
    images: [Entry; IMAGES],
}

/// What is known of one image.
#[repr(C)]
struct Entry {
    /// The time stamp that is known to be right: of when the image was opened, or has grown. Nanoseconds since 1970, as
    /// below.
    known: AtomicI64,
    /// When the last write began or ended.
    wrote: AtomicI64,
    /// Writes that the disk has.
    busy: AtomicU64,
    /// A [`LastFlush`].
    flush: AtomicU64,
}

/// What a life of the node has left of its last flush of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastFlush {
    /// It has succeeded, or there was none.
    Done,
    /// It was under way when the life ended: it may have been told an error.
    Untold,
    /// It has failed, and no operator has seen to that.
    Failed,
}

/// The page, mapped.
#[derive(Debug)]
pub struct LastWrites {
    fd: OwnedFd,
    mapping: Mapping,
    path: Option<PathBuf>,
    /// It was made for a start that may be refused yet: then nothing of it is to be left.
    on_trial: Cell<bool>,
}

impl Entry {
    /// It is written at `time`. A clock that is set back takes nothing back: what was written before bears the later
    /// time.
    fn note(&self, time: i64) {
        self.wrote.fetch_max(time, Ordering::Relaxed);
    }

    fn last_flush(&self) -> LastFlush {
        match self.flush.load(Ordering::Acquire) {
            done if done == LastFlush::Done as u64 => LastFlush::Done,
            untold if untold == LastFlush::Untold as u64 => LastFlush::Untold,
            _ => LastFlush::Failed,
        }
    }
}

impl LastWrites {
    /// The page of the node with this state folder, perhaps with what its last life has left there. Where there is no
    /// such memory, a page that ends with this process: then nothing is known of earlier lives. A folder that was
    /// copied has another page.
    ///
    /// # Errors
    /// There is no memory.
    pub fn of_folder(folder: &Path) -> io::Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let found = fs::metadata(folder)?;
        let path = PathBuf::from(format!("/dev/shm/causeway-{user}-{:x}-{:x}", found.dev(), found.ino()));
        Self::open(&path).or_else(|_| Self::in_memory())
    }

    /// A page that nobody finds again.
    ///
    /// # Errors
    /// There is no memory.
    pub fn in_memory() -> io::Result<Self> {
        let fd = memory::create("causeway-writes", size_of::<Page>())?;
        Self::map(fd, None)
    }

    /// The page that lies at `path`, or a new one.
    fn open(path: &Path) -> io::Result<Self> {
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(options)
            .open(path)?;
        let found = file.metadata()?;
        // Anybody may put something there.
        let is_ours = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
        let is_shm = found.mode() & 0o077 == 0 && found.nlink() == 1;
        if !is_ours || !is_shm || memory_page_bytes(file.as_fd())?.is_none() {
            return Err(io::Error::other("no memory of ours"));
        }
        let is_new = found.len() == 0;
        // That of a program for which a node had fewer images begins with the same.
        if found.len() < size_of::<Page>() as u64 {
            file.set_len(size_of::<Page>() as u64)?;
        }
        let page = Self::map(file.into(), Some(path.to_owned()))?;
        page.on_trial.set(is_new);
        Ok(page)
    }

    /// The page that somebody else has opened.
    ///
    /// # Errors
    /// It cannot be mapped, or is too short.
    pub fn of_fd(fd: OwnedFd) -> io::Result<Self> {
        Self::map(fd, None)
    }

    fn map(fd: OwnedFd, path: Option<PathBuf>) -> io::Result<Self> {
        let mapping = Mapping::shared(fd.as_fd())?;
        if mapping.len() < size_of::<Page>() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { fd, mapping, path, on_trial: Cell::new(false) })
    }

    fn page(&self) -> &Page {
        // SAFETY: the page lies in the mapping, as was seen, and consists of atomics, for which any bytes are valid.
        unsafe { &*self.mapping.at::<Page>(0) }
    }

    fn entry(&self, image: usize) -> Option<&Entry> {
        self.page().images.get(image)
    }

    /// A life of the node begins: what was known is forgotten. `written`: the time stamps of its images.
    pub fn begin(&self, life: u64, written: impl Iterator<Item = Option<i64>>) {
        let page = self.page();
        page.life.store(0, Ordering::Release);
        let known = written.chain(std::iter::repeat(None));
        for (entry, known) in page.images.iter().zip(known) {
            entry.known.store(known.unwrap_or(0), Ordering::Relaxed);
            entry.wrote.store(0, Ordering::Relaxed);
            entry.busy.store(0, Ordering::Relaxed);
            entry.flush.store(LastFlush::Done as u64, Ordering::Relaxed);
        }
        page.life.store(life, Ordering::Release);
    }

    /// An image begins to be lent while the node runs, with this time stamp: what was known of another one with its
    /// number is forgotten.
    pub fn begin_one(&self, image: usize, written: Option<i64>) {
        if let Some(entry) = self.entry(image) {
            entry.busy.store(0, Ordering::Relaxed);
            entry.wrote.store(0, Ordering::Relaxed);
            entry.flush.store(LastFlush::Done as u64, Ordering::Relaxed);
            entry.known.store(written.unwrap_or(0), Ordering::Release);
        }
    }

    /// Whether an image that has this time stamp was written by somebody else than the node in that life. False where
    /// nobody knows.
    pub fn is_foreign(&self, life: u64, image: usize, written: i64) -> bool {
        let Some(entry) = self.entry(image).filter(|_| self.page().life.load(Ordering::Acquire) == life)
        else {
            return false;
        };
        let latest = if entry.busy.load(Ordering::Acquire) == 0 { LATEST } else { LATEST_BUSY };
        written != entry.known.load(Ordering::Relaxed)
            && written > entry.wrote.load(Ordering::Relaxed).saturating_add(latest)
    }

    /// This time stamp of an image is right, whoever made it.
    pub fn accept(&self, image: usize, written: i64) {
        if let Some(entry) = self.entry(image) {
            entry.known.store(written, Ordering::Relaxed);
        }
    }

    /// A card begins: nothing of the one before is under way.
    pub(crate) fn take_over(&self, image: usize) {
        if let Some(entry) = self.entry(image).filter(|entry| entry.busy.load(Ordering::Relaxed) != 0) {
            entry.note(now());
            entry.busy.store(0, Ordering::Release);
        }
    }

    /// The image is written here and now.
    pub(crate) fn note(&self, image: usize) {
        if let Some(entry) = self.entry(image) {
            entry.note(now());
        }
    }

    /// The disk is given something to write.
    pub(crate) fn begin_write(&self, image: usize) {
        if let Some(entry) = self.entry(image) {
            // Only one thread of one process counts.
            entry.busy.store(entry.busy.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            entry.note(now());
        }
    }

    /// The disk has written it.
    pub(crate) fn end_write(&self, image: usize) {
        if let Some(entry) = self.entry(image) {
            entry.note(now());
            entry.busy.store(entry.busy.load(Ordering::Relaxed).saturating_sub(1), Ordering::Release);
        }
    }

    /// The last flush of an image in that life; `None` where nobody knows.
    pub fn last_flush(&self, life: u64, image: usize) -> Option<LastFlush> {
        let is_its = self.page().life.load(Ordering::Acquire) == life;
        self.entry(image).filter(|_| is_its).map(Entry::last_flush)
    }

    /// The disk is to make durable what it has. One flush of an image is under way at a time.
    pub fn begin_flush(&self, image: usize) {
        if let Some(entry) = self.entry(image).filter(|entry| entry.last_flush() == LastFlush::Done) {
            entry.flush.store(LastFlush::Untold as u64, Ordering::Release);
        }
    }

    /// It has, or has failed.
    pub fn end_flush(&self, image: usize, succeeded: bool) {
        let Some(entry) = self.entry(image) else { return };
        if !succeeded {
            entry.flush.store(LastFlush::Failed as u64, Ordering::Release);
        } else if entry.last_flush() == LastFlush::Untold {
            entry.flush.store(LastFlush::Done as u64, Ordering::Release);
        }
    }

    /// An operator has seen to an image of which a flush has failed.
    pub(crate) fn clear_flush(&self, image: usize) {
        if let Some(entry) = self.entry(image).filter(|entry| entry.last_flush() == LastFlush::Failed) {
            entry.flush.store(LastFlush::Done as u64, Ordering::Release);
        }
    }

    /// Whether the next life finds it.
    pub fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// The node has started: the page stays until it ends in order.
    pub fn keep(&self) {
        self.on_trial.set(false);
    }

    /// The node ends in order, and its state folder knows more than this.
    pub fn remove(&self) {
        if let Some(path) = &self.path {
            // What cannot be removed is of a life that nobody asks for again.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for LastWrites {
    fn drop(&mut self) {
        if self.on_trial.get() {
            self.remove();
        }
    }
}

impl AsFd for LastWrites {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The present by the clock of time stamps: nanoseconds since 1970, some milliseconds old.
fn now() -> i64 {
    let time = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn a_clock_that_is_set_back_makes_nobody_suspect() {
        let page = LastWrites::in_memory().unwrap();
        page.begin(1, [Some(100)].into_iter());
        let entry = page.entry(0).unwrap();
        entry.note(900 * SECOND);
        entry.note(840 * SECOND);
        assert!(!page.is_foreign(1, 0, 900 * SECOND));
    }

    #[test]
    fn what_became_of_the_last_flush_is_known_to_the_next_life() {
        let page = LastWrites::in_memory().unwrap();
        page.begin(3, std::iter::empty());
        let last = || page.last_flush(3, 0);
        assert_eq!((last(), page.last_flush(2, 0)), (Some(LastFlush::Done), None));
        page.begin_flush(0);
        assert_eq!((last(), page.last_flush(3, 1)), (Some(LastFlush::Untold), Some(LastFlush::Done)));
        page.take_over(0);
        assert_eq!(
            last(),
            Some(LastFlush::Untold),
            "a card has died, and what the disk says to it is not known"
        );
        page.end_flush(0, true);
        assert_eq!(last(), Some(LastFlush::Done));
        page.begin_flush(0);
        page.end_flush(0, false);
        page.begin_flush(0);
        page.end_flush(0, true);
        assert_eq!(last(), Some(LastFlush::Failed), "a later one says nothing of it");
        page.clear_flush(0);
        assert_eq!(last(), Some(LastFlush::Done));
        page.end_flush(0, false);
        page.begin(4, std::iter::empty());
        assert_eq!(page.last_flush(4, 0), Some(LastFlush::Done));
    }

    #[test]
    fn what_is_written_after_the_last_write_is_somebody_elses() {
        let path = PathBuf::from(format!("/dev/shm/causeway-test-{}", std::process::id()));
        let Ok(page) = LastWrites::open(&path) else { panic!("no /dev/shm") };
        page.begin(4, [Some(100), None].into_iter());
        let began = now();
        assert!(!page.is_foreign(4, 0, 100), "as it was opened");
        assert!(page.is_foreign(4, 0, began), "nothing was written");
        page.begin_write(0);
        assert!(!page.is_foreign(4, 0, now() + 20 * SECOND), "the disk may be slow");
        page.end_write(0);
        // A page that is opened again knows all that.
        page.keep();
        let again =
            LastWrites::of_fd(OwnedFd::from(OpenOptions::new().read(true).write(true).open(&path).unwrap()))
                .unwrap();
        drop(page);
        assert!(!again.is_foreign(4, 0, now() + SECOND) && again.is_foreign(4, 0, now() + 3 * SECOND));
        assert!(!again.is_foreign(4, 0, began), "an earlier write of ours");
        assert!(!again.is_foreign(5, 0, now() + 3 * SECOND), "another life");
        assert!(!again.is_foreign(4, IMAGES, now() + 3 * SECOND), "no such image");
        again.accept(0, i64::MAX - 1);
        assert!(!again.is_foreign(4, 0, i64::MAX - 1));
        again.begin_write(0);
        again.take_over(0);
        assert!(again.is_foreign(4, 0, now() + 20 * SECOND), "a dead card writes no more");
        again.begin(5, [Some(1)].into_iter());
        assert!(again.is_foreign(5, 0, now() + 3 * SECOND));
        fs::remove_file(&path).unwrap();
        drop(LastWrites::open(&path).unwrap());
        assert!(!path.exists(), "of a start that was refused");
        // What others may read or write is not believed.
        std::os::unix::fs::symlink("/dev/shm/elsewhere", &path).unwrap();
        assert!(LastWrites::open(&path).is_err());
        fs::remove_file(&path).unwrap();
        assert!(LastWrites::in_memory().unwrap().path.is_none());
    }
}
