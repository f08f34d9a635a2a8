//! Sealed shared memory: what the agent creates and every card of its life maps.
//!
//! The kernel keeps stores of a killed process visible, in order, to everyone else who maps the
//! same pages, so one commit word is enough to make a step atomic. The memory is sealed against
//! becoming smaller (no mapping can be made to fault from outside) and kept out of core dumps,
//! because keys lie in it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size and alignment of a huge page, in bytes: a collapsed mapping is reaped in 0.1 ms instead of several.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Creates anonymous memory of `bytes` bytes, all zero, close-on-exec and sealed at that size.
///
/// `name` only shows in `/proc/PID/maps`.
///
/// # Errors
/// `EINVAL` if `bytes` is zero, else what `memfd_create`, `ftruncate` or the sealing returned.
pub fn create(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    create_sealed(name, bytes, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// The same, for memory that [`grow`] can make larger.
///
/// # Errors
/// As of [`create`].
pub(crate) fn create_growing(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    create_sealed(name, bytes, SealFlags::SHRINK | SealFlags::SEAL)
}

/// Makes memory of [`create_growing`] so large, with a mapping of all of it. What is new is zero; who has it mapped
/// sees it with another mapping. It never becomes smaller.
///
/// # Errors
/// What the kernel returned: it has no room. Nothing has changed then.
pub(crate) fn grow(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
    let has = rustix::fs::fstat(fd)?.st_size.cast_unsigned();
    let bytes = bytes.max(usize::try_from(has).map_err(|_| rustix::io::Errno::INVAL)?);
    // What lies behind the end can be mapped, and that is what fails where there is no room. It cannot be made smaller
    // again, so it is made larger last.
    let mapping = Mapping::of_bytes(fd, bytes, true)?;
    if has < bytes as u64 {
        rustix::fs::ftruncate(fd, bytes as u64)?;
    }
    Ok(mapping)
}

fn create_sealed(name: &str, bytes: usize, seals: SealFlags) -> io::Result<OwnedFd> {
    if bytes == 0 {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Overwrites what was secret. The stores are made although nobody reads them.
pub fn wipe(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: the byte is ours alone, by the reference.
        unsafe { ptr::write_volatile(byte, 0) };
    }
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// A readable and writable shared mapping of a whole memory descriptor, unmapped on drop.
///
/// It hands out raw pointers only: another process may write the same bytes at any time, so what
/// lies inside must be atomics or be owned by agreement.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Bytes that are mapped: what the memory is made larger by shows up to here.
    reach: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and the type gives out no references.
unsafe impl Send for Mapping {}
// SAFETY: shared use only reads the address and the length, both constant for the mapping's life.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of `fd`, at a 2 MiB aligned address where address space allows, excluded from core dumps.
    ///
    /// # Errors
    /// `EINVAL` for an empty descriptor, else what the kernel returned.
    pub fn shared(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::of_file(fd, true)
    }

    /// The same of any file, perhaps for reading only. What lies beyond the end of one that becomes shorter cannot be
    /// accessed any more.
    ///
    /// # Errors
    /// As of [`Mapping::shared`].
    pub(crate) fn of_file(fd: BorrowedFd<'_>, is_writable: bool) -> io::Result<Self> {
        let size = rustix::fs::fstat(fd)?.st_size;
        let bytes = usize::try_from(size).map_err(|_| rustix::io::Errno::INVAL)?;
        Self::of_bytes(fd, bytes, is_writable)
    }

    fn of_bytes(fd: BorrowedFd<'_>, bytes: usize, is_writable: bool) -> io::Result<Self> {
        Self::of_range(fd, bytes, bytes, is_writable)
    }

    /// The same of memory that [`grow`] makes larger: up to `reach` bytes that shows here, too. Where there are no
    /// addresses for so many, only what there is now is mapped.
    ///
    /// # Errors
    /// As of [`Mapping::shared`].
    pub(crate) fn growing(fd: BorrowedFd<'_>, reach: usize) -> io::Result<Self> {
        let present = Self::shared(fd)?;
        // What lies behind the end of the memory has addresses and no pages.
        Ok(Self::of_range(fd, present.bytes, reach.max(present.bytes), true).unwrap_or(present))
    }

    fn of_range(fd: BorrowedFd<'_>, bytes: usize, reach: usize, is_writable: bool) -> io::Result<Self> {
        if bytes == 0 {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let base = map_aligned(fd, reach, is_writable)?;
        let mapping = Self { base, bytes, reach };
        // SAFETY: the range is exactly the mapping made above, and the advice changes no contents.
        unsafe { rustix::mm::madvise(mapping.base.as_ptr().cast(), reach, Advice::LinuxDontDump)? };
        Ok(mapping)
    }

    /// The first byte of the mapping.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes, as the descriptor had it when it was mapped.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty mapping cannot be built")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// How long it can become where it is.
    pub(crate) fn reach(&self) -> usize {
        self.reach
    }

    /// A pointer to a `T` that begins `offset` bytes into the mapping.
    ///
    /// # Panics
    /// If the value would not lie inside the mapping or not be aligned: offsets are the program's own layout.
    #[must_use]
    pub fn at<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>()).expect("offsets are small constants of a layout");
        assert!(end <= self.bytes, "value at {offset} ends at {end}, the mapping at {}", self.bytes);
        // SAFETY: offset + size lies inside the mapping, as asserted.
        let pointer = unsafe { self.base.as_ptr().add(offset) };
        assert_eq!(pointer as usize % align_of::<T>(), 0, "value at {offset} is not aligned");
        pointer.cast()
    }

    /// Makes every page present and writable now, so that neither the card nor the kernel on its behalf faults later.
    ///
    /// What the kernel writes for a dying process (`msg_len`, stream payload) must be present: a page fault under
    /// SIGKILL fails and the bytes would be lost.
    ///
    /// # Errors
    /// `ENOMEM` and others of `madvise(MADV_POPULATE_WRITE)`; on kernels before 5.14 pages are touched one by one.
    pub fn populate(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; populating does not change contents.
        match unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_POPULATE_WRITE) } {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.touch();
                    Ok(())
                }
                error => Err(error),
            },
        }
    }

    /// Finds the pages that are in memory, so that whoever uses them later need not: best effort, and makes none. What
    /// is mapped is `fd`.
    pub(crate) fn find_present(&self, fd: BorrowedFd<'_>) {
        let mut at = 0;
        while let Ok(start) = rustix::fs::seek(fd, SeekFrom::Data(at)) {
            let Ok(end) = rustix::fs::seek(fd, SeekFrom::Hole(start)) else { return };
            at = end.min(self.bytes as u64);
            if start >= at {
                return;
            }
            // SAFETY: the range is of this mapping; populating does not change contents.
            unsafe {
                let range = self.base.as_ptr().add(start as usize);
                libc::madvise(range.cast(), (at - start) as usize, libc::MADV_POPULATE_READ);
            }
        }
    }

    /// Asks for huge pages, best effort: whether the kernel collapsed the mapping.
    ///
    /// Reaping a process with collapsed memory takes a tenth of a millisecond instead of several.
    pub fn collapse(&self) -> bool {
        self.collapse_range(0, self.bytes).is_ok()
    }

    /// Asks for huge pages for some of it.
    ///
    /// # Errors
    /// What `madvise(MADV_COLLAPSE)` returned.
    ///
    /// # Panics
    /// If the range does not lie inside the mapping.
    pub(crate) fn collapse_range(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        assert!(offset <= self.bytes && len <= self.bytes - offset, "a part of a mapping lies inside of it");
        // SAFETY: the range is of this mapping; collapsing moves pages but changes no contents.
        let result =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, libc::MADV_COLLAPSE) };
        if result == 0 {
            Ok(())
        } else {
            Err(rustix::io::Errno::from_io_error(&io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::INVAL))
        }
    }

    /// Whether all pages of a range, which is page aligned, are in memory. A file's hole is not.
    ///
    /// # Panics
    /// If the range does not lie inside the mapping.
    pub(crate) fn is_resident(&self, offset: usize, len: usize) -> bool {
        assert!(offset <= self.bytes && len <= self.bytes - offset, "a part of a mapping lies inside of it");
        let mut pages = vec![0_u8; len.div_ceil(rustix::param::page_size())];
        // SAFETY: the range is of this mapping, and there is a byte for each of its pages.
        let result =
            unsafe { libc::mincore(self.base.as_ptr().add(offset).cast(), len, pages.as_mut_ptr().cast()) };
        result == 0 && pages.iter().all(|page| page & 1 != 0)
    }

    fn touch(&self) {
        for offset in (0..self.bytes).step_by(rustix::param::page_size()) {
            // SAFETY: the byte lies inside the mapping; an atomic addition of zero dirties its page without
            // losing a concurrent store.
            let cell = unsafe { &*self.base.as_ptr().add(offset).cast::<std::sync::atomic::AtomicU8>() };
            cell.fetch_add(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `shared` and nothing else unmaps it; users of raw pointers into it
        // promised not to outlive it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reach) };
    }
}

/// Reserves address space with room to align, then maps the descriptor over its aligned part.
fn map_aligned(fd: BorrowedFd<'_>, bytes: usize, is_writable: bool) -> io::Result<NonNull<u8>> {
    let page = rustix::param::page_size();
    let rounded = bytes.checked_next_multiple_of(page).ok_or(rustix::io::Errno::NOMEM)?;
    let reserved = rounded.checked_add(HUGE_PAGE_BYTES).ok_or(rustix::io::Errno::NOMEM)?;
    let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice disturbs nothing.
    let area = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            reserved,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    let start = area as usize;
    let aligned = start.next_multiple_of(HUGE_PAGE_BYTES);
    let head = aligned - start;
    // SAFETY: [aligned, aligned + rounded) lies inside the area reserved above, which is ours to replace.
    let mapped = unsafe {
        let target = area.byte_add(head);
        rustix::mm::mmap(target, bytes, protection, MapFlags::SHARED | MapFlags::FIXED, fd.as_fd(), 0)
    };
    let tail = HUGE_PAGE_BYTES - head;
    // SAFETY: the pieces before and after the mapping are the unused rest of the reservation (all of it when mapping
    // failed); nothing points there.
    unsafe {
        if mapped.is_err() {
            let _ = rustix::mm::munmap(area, reserved);
        } else {
            if head > 0 {
                let _ = rustix::mm::munmap(area, head);
            }
            if tail > 0 {
                let _ = rustix::mm::munmap(area.byte_add(head + rounded), tail);
            }
        }
    }
    NonNull::new(mapped?.cast()).ok_or_else(|| rustix::io::Errno::NOMEM.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn two_mappings_share_bytes_and_keep_their_size() {
        let fd = create("test", 3 << 20).unwrap();
        let (one, two) = (Mapping::shared(fd.as_fd()).unwrap(), Mapping::shared(fd.as_fd()).unwrap());
        assert_eq!(one.len(), 3 << 20);
        assert_eq!(one.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        assert_ne!(one.as_ptr(), two.as_ptr());
        one.populate().unwrap();
        one.touch();
        // SAFETY: both pointers lie in live mappings and are only used as atomics.
        let (a, b) = unsafe { (&*one.at::<AtomicU64>(4096), &*two.at::<AtomicU64>(4096)) };
        a.store(7, Ordering::Release);
        assert_eq!(b.load(Ordering::Acquire), 7);
        println!("collapsed: {}", one.collapse());
        assert_eq!(b.load(Ordering::Acquire), 7);
    }

    #[test]
    fn size_cannot_change() {
        let fd = create("test", 8192).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fd, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 16384), Err(rustix::io::Errno::PERM));
        assert_eq!(create("test", 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn memory_that_grows_keeps_what_is_in_it() {
        let fd = create_growing("test", 4096).unwrap();
        let before = Mapping::shared(fd.as_fd()).unwrap();
        // SAFETY: inside of a live mapping, and only used as an atomic.
        unsafe { &*before.at::<AtomicU64>(8) }.store(7, Ordering::Release);
        grow(fd.as_fd(), 8192).unwrap();
        let after = grow(fd.as_fd(), 4096).unwrap();
        assert_eq!((before.len(), after.len()), (4096, 8192), "it never becomes smaller");
        // SAFETY: as above.
        let (kept, new) = unsafe { (&*after.at::<AtomicU64>(8), &*after.at::<AtomicU64>(4096)) };
        assert_eq!((kept.load(Ordering::Acquire), new.load(Ordering::Acquire)), (7, 0));
        assert_eq!(rustix::fs::ftruncate(&fd, 4096), Err(rustix::io::Errno::PERM));
    }

    /// Whoever has mapped more than there was sees what is added.
    #[test]
    fn memory_grows_where_it_is_mapped() {
        let fd = create_growing("test", 4096).unwrap();
        let before = Mapping::growing(fd.as_fd(), 1 << 20).unwrap();
        assert_eq!((before.len(), before.reach()), (4096, 1 << 20));
        let after = grow(fd.as_fd(), 3 * 4096).unwrap();
        // SAFETY: inside of a live mapping, and only used as an atomic.
        unsafe { &*after.at::<AtomicU64>(2 * 4096) }.store(7, Ordering::Release);
        // SAFETY: the memory has these bytes by now, and the mapping reaches so far.
        let seen = unsafe { &*before.as_ptr().add(2 * 4096).cast::<AtomicU64>() };
        assert_eq!(seen.load(Ordering::Acquire), 7);
        let all = Mapping::growing(fd.as_fd(), 1 << 60).unwrap();
        assert_eq!((all.len(), all.reach()), (3 * 4096, 3 * 4096), "there are not so many addresses");
    }

    /// Who was refused room finds what there was, and so does a card that is started then.
    #[test]
    fn growth_that_fails_changes_nothing() {
        let size = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_size;
        let fd = create_growing("test", 4096).unwrap();
        // More than there are addresses.
        assert_eq!(grow(fd.as_fd(), 1 << 50).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(size(&fd), 4096);
        // It can be mapped, and not become larger.
        let fd = create("test", 4096).unwrap();
        assert_eq!(grow(fd.as_fd(), 8192).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!((size(&fd), grow(fd.as_fd(), 4096).unwrap().len()), (4096, 4096));
    }

    #[test]
    fn mapping_is_kept_out_of_core_dumps() {
        let fd = create("secret-test-memory", 4096).unwrap();
        let mapping = Mapping::shared(fd.as_fd()).unwrap();
        let start = format!("{:x}-", mapping.as_ptr() as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = lines.find(|line| line.starts_with("VmFlags")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    #[should_panic(expected = "the mapping at 4096")]
    fn values_outside_are_refused() {
        let fd = create("test", 4096).unwrap();
        let _ = Mapping::shared(fd.as_fd()).unwrap().at::<u64>(4089);
    }
}
