//! Memory of virtual machines and what they are interrupted with, by the descriptors that came over a slot's socket.
//!
//! Nothing is believed of a descriptor: only files in memory are mapped, as far as they reach at the time, and only
//! eventfds are signalled. A file that is cut off while it is accessed costs the access (see [`crate::fault`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use node::{DescriptorId, GuestMemory};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use spec::vfio_user::{Command, DmaMap, HEADER_BYTES, MessageHeader};
use zerocopy::FromBytes;

use crate::fault::{Owner, RANGES, Watch};
use crate::files::memory_page_bytes;
use crate::interrupts::Interrupts;
use crate::messages::SlotTrouble;
use crate::rate_limited::RateLimited;

/// A map of so many bytes without a descriptor is worth a word: it is no firmware.
pub(crate) const WORTH_SHARING: u64 = 16 << 20;

/// Up to so many bytes are written in words, in order: a guest looks at the last one, and takes the others to be there.
const WORDS_BYTES: usize = 64;

/// Most files of one slot that are mapped: what comes beyond is read and written by messages. Half of what can be
/// watched for a loan, because a file that it shares with another one may outlive its own part in it; and few enough
/// for all loans together to stay below the kernel's limit of mappings of a process (`vm.max_map_count`, 65,530).
pub(crate) const FILES: usize = RANGES / 2;

/// Files of one machine that are looked at.
const KNOWN_FILES: usize = 64;
/// So much is read of a machine's mappings: some 10,000 of them.
const MAPS_BYTES: u64 = 1 << 20;

/// Which file a descriptor is of, and how it was opened: equal keys reach the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    device: u64,
    inode: u64,
    writable: bool,
}

impl FileKey {
    /// Of a regular file; nothing else can be told apart.
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> Option<Self> {
        let stat = rustix::fs::fstat(descriptor).ok()?;
        let flags = rustix::fs::fcntl_getfl(descriptor).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            writable: flags & OFlags::ACCMODE == OFlags::RDWR,
        })
    }

    /// Whether process `pid` has mapped the file, and only so that what it writes stays its own. False where that
    /// cannot be seen.
    fn is_private_to(&self, pid: i32) -> bool {
        let maps = File::open(format!("/proc/{pid}/maps")).map(|file| file.take(MAPS_BYTES));
        let maps = maps.and_then(io::read_to_string).unwrap_or_default();
        let (major, minor) = (rustix::fs::major(self.device), rustix::fs::minor(self.device));
        let file = format!("{major:02x}:{minor:02x} {}", self.inode);
        are_all_private(&maps, &file)
    }
}

/// The files of a machine that it was found out of whether it has them for itself.
#[derive(Default)]
pub(crate) struct Known {
    /// With what was found.
    files: Vec<(FileKey, bool)>,
}

impl Known {
    /// Whether process `pid` has the file for itself. That takes a look at all its mappings, of which it may have very
    /// many: `None` for what it comes with beyond [`KNOWN_FILES`].
    pub(crate) fn is_private(&mut self, file: FileKey, pid: i32) -> Option<bool> {
        if let Some((_, is_private)) = self.files.iter().find(|(known, _)| *known == file) {
            return Some(*is_private);
        }
        (self.files.len() < KNOWN_FILES).then(|| {
            let is_private = file.is_private_to(pid);
            self.files.push((file, is_private));
            is_private
        })
    }
}

/// Whether a file (device and inode, as the kernel shows them) is in `maps`, and nowhere shared.
fn are_all_private(maps: &str, file: &str) -> bool {
    // ADDRESSES RIGHTS OFFSET MAJOR:MINOR INODE PATH (proc_pid_maps(5)); the last right is `p` or `s`.
    let of_file = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (rights, _, device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        (file.split_once(' ') == Some((device, inode))).then(|| rights.ends_with('p'))
    });
    of_file.reduce(|all, private| all && private).unwrap_or(false)
}

/// Bytes that a message wants to map, if it is a DMA_MAP, and whether they may be written.
pub(crate) fn mapped_bytes(message: &[u8]) -> Option<(u64, bool)> {
    let (header, payload) = message.split_first_chunk::<HEADER_BYTES>()?;
    let map = DmaMap::read_from_prefix(payload).ok()?.0;
    let is_map = MessageHeader::view(header).command() == Command::DMA_MAP;
    is_map.then(|| (map.size.get(), map.flags().writeable()))
}

/// Addresses that the memory of one loan's clients may take, so that all slots together leave some to the card. Files
/// of holes cost a client nothing.
const ADDRESSES: usize = 1 << 40;
const _: () = assert!(ADDRESSES * node::MAX_SLOTS < 1 << 47);

/// The descriptors of all slots of a card, by loan and id.
#[derive(Default)]
pub(crate) struct GuestDescriptors {
    inner: RefCell<Inner>,
    interrupts: Interrupts,
    /// By loan, of which there are at most [`node::MAX_LOANS`].
    lines: RefCell<BTreeMap<usize, Lines>>,
    /// By loan, of which there are as many: addresses that it may still take.
    left: RefCell<BTreeMap<usize, Rc<Cell<usize>>>>,
    /// What the agent has not been told: of each loan and kind at most one a second.
    troubles: RefCell<Vec<(usize, SlotTrouble, u64)>>,
}

/// What the log has of what one loan's clients give, who may cause it as often as they can.
#[derive(Default)]
struct Lines {
    on_disk: RateLimited,
    short: RateLimited,
    large: RateLimited,
    blocking: RateLimited,
}

#[derive(Default)]
struct Inner {
    descriptors: BTreeMap<(usize, u32), Descriptor>,
    files: BTreeMap<FileKey, Rc<GuestFile>>,
}

#[derive(Clone)]
enum Descriptor {
    Memory(Rc<GuestFile>),
    Event(Rc<OwnedFd>),
    Other,
}

impl GuestDescriptors {
    /// The agent keeps `descriptor` by this id.
    pub(crate) fn insert(&self, loan: usize, id: u32, descriptor: OwnedFd) {
        let mut inner = self.inner.borrow_mut();
        let descriptor = match FileKey::of(descriptor.as_fd()) {
            Some(key) if matches!(memory_page_bytes(descriptor.as_fd()), Ok(Some(_))) => {
                let file = inner.files.entry(key).or_insert_with(|| Rc::new(GuestFile::new(descriptor, key)));
                Descriptor::Memory(Rc::clone(file))
            }
            Some(_) => {
                self.note(loan, SlotTrouble::OnDisk);
                Descriptor::Other
            }
            None if is_eventfd(descriptor.as_fd()) => {
                // Not in the middle of an interrupt. The next one that is given finds out whether there is one now.
                if let Err(error) = self.interrupts.prepare() {
                    self.note(loan, SlotTrouble::Blocking(error.raw_os_error().unwrap_or_default()));
                }
                Descriptor::Event(Rc::new(descriptor))
            }
            None => Descriptor::Other,
        };
        inner.descriptors.insert((loan, id), descriptor);
    }

    /// The slot needs it no more.
    pub(crate) fn remove(&self, loan: usize, id: u32) {
        let mut inner = self.inner.borrow_mut();
        inner.descriptors.remove(&(loan, id));
        inner.files.retain(|_, file| Rc::strong_count(file) > 1);
    }

    /// Another loan has the place, of which nothing is kept yet.
    pub(crate) fn forget(&self, loan: usize) {
        let mut inner = self.inner.borrow_mut();
        inner.descriptors.retain(|(of, _), _| *of != loan);
        inner.files.retain(|_, file| Rc::strong_count(file) > 1);
        self.lines.borrow_mut().remove(&loan);
    }

    /// Interrupts the guest.
    pub(crate) fn signal(&self, loan: usize, id: DescriptorId) {
        let descriptor = self.inner.borrow().descriptors.get(&(loan, id.0)).cloned();
        if let Some(Descriptor::Event(event)) = descriptor {
            self.interrupts.signal(event.as_fd());
        }
    }

    /// Whether what `access` wants to do to the file was done.
    fn access(
        &self,
        loan: usize,
        id: DescriptorId,
        access: impl FnOnce(&GuestFile, &Rc<Cell<usize>>) -> Access,
    ) -> bool {
        let Some(file) = self.file(loan, id) else { return false };
        let left =
            Rc::clone(self.left.borrow_mut().entry(loan).or_insert_with(|| Rc::new(Cell::new(ADDRESSES))));
        match access(&file, &left) {
            Access::Done => return true,
            Access::Refused => {}
            Access::Large => self.note(loan, SlotTrouble::Large),
            Access::Torn => self.note(loan, SlotTrouble::Short),
        }
        false
    }

    /// What is to be said of clients, by loan, and how often it has not been since the last time.
    pub(crate) fn take_troubles(&self) -> Vec<(usize, SlotTrouble, u64)> {
        self.troubles.take()
    }

    fn note(&self, loan: usize, trouble: SlotTrouble) {
        let mut lines = self.lines.borrow_mut();
        let lines = lines.entry(loan).or_default();
        let line = match trouble {
            SlotTrouble::OnDisk => &mut lines.on_disk,
            SlotTrouble::Short => &mut lines.short,
            SlotTrouble::Large => &mut lines.large,
            SlotTrouble::Blocking(_) => &mut lines.blocking,
        };
        line.say(|others| {
            self.troubles.borrow_mut().push((loan, trouble, others.map_or(0, NonZero::get)));
        });
    }

    fn file(&self, loan: usize, id: DescriptorId) -> Option<Rc<GuestFile>> {
        match self.inner.borrow().descriptors.get(&(loan, id.0))? {
            Descriptor::Memory(file) => Some(Rc::clone(file)),
            Descriptor::Event(_) | Descriptor::Other => None,
        }
    }
}

impl GuestMemory for GuestDescriptors {
    fn read(&self, loan: usize, descriptor: DescriptorId, offset: u64, out: &mut [u8]) -> bool {
        // A read does not pass the writes before it (PCIe 6.0 §2.4.1), and a processor's load passes its stores: a
        // controller that writes the event index of a doorbell and then reads its shadow would miss what the guest has
        // stored in between.
        fence(Ordering::SeqCst);
        let len = out.len();
        // SAFETY: `access` gives `len` bytes of a mapping; the guest may change them meanwhile: any value is valid.
        let copy = |from: *mut u8| unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) };
        self.access(loan, descriptor, |file, left| file.access((loan, left), offset, len, false, copy))
    }

    fn write(&self, loan: usize, descriptor: DescriptorId, offset: u64, bytes: &[u8]) -> bool {
        let copy = |to: *mut u8| store(to, bytes);
        self.access(loan, descriptor, |file, left| file.access((loan, left), offset, bytes.len(), true, copy))
    }
}

/// Writes to memory of a guest that watches it.
fn store(to: *mut u8, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    if bytes.len() <= WORDS_BYTES && rest.is_empty() && to.addr().is_multiple_of(8) {
        for (at, word) in words.iter().enumerate() {
            // SAFETY: inside of what `access` gave for these bytes, aligned, and only ever accessed as bytes or
            // atomically.
            let cell = unsafe { AtomicU64::from_ptr(to.add(at * 8).cast()) };
            cell.store(u64::from_ne_bytes(*word), Ordering::Release);
        }
        return;
    }
    // SAFETY: `access` gave so many bytes of a mapping that can be written.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// What came of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Done,
    /// There is nothing that could be accessed so.
    Refused,
    /// It would take more addresses than the loan may have.
    Large,
    /// What was accessed was not there after all.
    Torn,
}

/// A file in memory, mapped as far as it reaches when it is first accessed, and again when it has grown or was cut off.
struct GuestFile {
    descriptor: OwnedFd,
    writable: bool,
    mapping: RefCell<Option<GuestMapping>>,
}

impl GuestFile {
    fn new(descriptor: OwnedFd, key: FileKey) -> Self {
        Self { descriptor, writable: key.writable, mapping: RefCell::new(None) }
    }

    /// Lets `copy` loose on `len` bytes at `offset`. A mapping that it takes is the loan's.
    fn access(
        &self,
        (loan, left): (usize, &Rc<Cell<usize>>),
        offset: u64,
        len: usize,
        writes: bool,
        copy: impl FnOnce(*mut u8),
    ) -> Access {
        let Some(end) = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len)) else {
            return Access::Refused;
        };
        let mut mapping = self.mapping.borrow_mut();
        if mapping.as_ref().is_none_or(|mapping| mapping.bytes < end) {
            // What it had is free for what it gets.
            *mapping = None;
            match GuestMapping::new(loan, left, self.descriptor.as_fd(), self.writable) {
                Ok(made) => *mapping = Some(made),
                Err(MapError::Large) => return Access::Large,
                Err(MapError::System) => return Access::Refused,
            }
        }
        let Some(mapped) = mapping.as_ref().filter(|mapped| end <= mapped.bytes) else {
            return Access::Refused;
        };
        if writes && !self.writable {
            return Access::Refused;
        }
        copy(mapped.base.as_ptr().wrapping_add(end - len));
        if mapped.watch.is_torn() {
            *mapping = None;
            return Access::Torn;
        }
        Access::Done
    }
}

/// All of a file.
struct GuestMapping {
    // Before the memory that it watches.
    watch: Watch,
    base: NonNull<u8>,
    bytes: usize,
    mapped: usize,
    /// Addresses that the loan may still take beside these.
    left: Rc<Cell<usize>>,
}

/// Why a file is not mapped.
enum MapError {
    /// The loan would have more addresses than it may have.
    Large,
    System,
}

impl<E: Into<std::io::Error>> From<E> for MapError {
    fn from(_: E) -> Self {
        Self::System
    }
}

impl GuestMapping {
    fn new(
        loan: usize,
        left: &Rc<Cell<usize>>,
        descriptor: BorrowedFd<'_>,
        writable: bool,
    ) -> Result<Self, MapError> {
        let size = rustix::fs::fstat(descriptor)?.st_size;
        let bytes = usize::try_from(size).ok().filter(|bytes| *bytes > 0).ok_or(Errno::INVAL)?;
        let page = memory_page_bytes(descriptor)?.ok_or(Errno::INVAL)?;
        let mapped = bytes.checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        let rest = left.get().checked_sub(mapped).ok_or(MapError::Large)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), mapped, protection, MapFlags::SHARED, descriptor, 0)?
        };
        let unmap = |error| {
            // SAFETY: the mapping was just made, and nobody has its address.
            let _ = unsafe { rustix::mm::munmap(base, mapped) };
            error
        };
        // SAFETY: the range is exactly the mapping, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(base, mapped, Advice::LinuxDontDump) };
        let watch = Watch::new(Owner::Loan(loan), base.addr(), mapped, page).map_err(unmap)?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        left.set(rest);
        Ok(Self { watch, base, bytes, mapped, left: Rc::clone(left) })
    }
}

impl Drop for GuestMapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`; whoever got an address of it has ended its access.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
        self.left.set(self.left.get() + self.mapped);
    }
}

/// Whether it is one; writing to it does not block then, as long as nobody else says otherwise (see
/// [`crate::interrupts`]).
fn is_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let is_one = link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]");
    let flags = rustix::fs::fcntl_getfl(descriptor);
    is_one && flags.is_ok_and(|flags| rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::EventfdFlags;
    use rustix::fs::MemfdFlags;

    const ID: DescriptorId = DescriptorId(3);

    fn memory(bytes: u64) -> OwnedFd {
        let memory = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, bytes).unwrap();
        memory
    }

    fn with(descriptor: &OwnedFd) -> GuestDescriptors {
        let guest = GuestDescriptors::default();
        guest.insert(1, ID.0, descriptor.try_clone().unwrap());
        guest
    }

    #[test]
    fn memory_is_reached_as_far_as_it_goes() {
        let file = memory(8192);
        let guest = with(&file);
        for (offset, len) in [(0, 16), (4000, 200), (8, 64), (8191, 1), (1, 8)] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + 1) as u8).collect();
            let mut back = vec![0; len];
            assert!(guest.write(1, ID, offset, &bytes) && guest.read(1, ID, offset, &mut back));
            assert_eq!(back, bytes);
        }
        assert!(!guest.read(1, ID, 8185, &mut [0; 8]));
        assert!(!guest.read(1, ID, u64::MAX - 3, &mut [0; 8]));
        assert!(!guest.read(2, ID, 0, &mut [0; 8]) && !guest.read(1, DescriptorId(4), 0, &mut [0; 8]));
        rustix::fs::ftruncate(&file, 16384).unwrap();
        assert!(guest.read(1, ID, 16376, &mut [0; 8]), "it has grown");
        guest.remove(1, ID.0);
        assert!(!guest.read(1, ID, 0, &mut [0; 8]));
        assert!(guest.inner.borrow().files.is_empty());
    }

    #[test]
    fn a_file_that_is_cut_off_costs_the_access_alone() {
        let file = memory(3 * 4096);
        let guest = with(&file);
        assert!(guest.write(1, ID, 8192, &[7; 16]));
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(!guest.read(1, ID, 8192, &mut [0; 16]));
        assert!(!guest.write(1, ID, 8192, &[7; 16]));
        assert!(guest.write(1, ID, 0, &[7; 16]), "what is left of it");
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
    }

    /// What one client does again and again does not keep the log from naming another one.
    #[test]
    fn each_loan_has_lines_of_its_own() {
        let guest = GuestDescriptors::default();
        let torn = |loan| {
            let file = memory(4096);
            guest.insert(loan, ID.0, file.try_clone().unwrap());
            assert!(guest.write(loan, ID, 0, &[7; 16]));
            rustix::fs::ftruncate(&file, 0).unwrap();
            assert!(!guest.write(loan, ID, 0, &[7; 16]));
        };
        let path = std::env::current_exe().unwrap();
        for loan in [1, 1, 1, 2] {
            torn(loan);
            guest.insert(loan, 9, std::fs::File::open(&path).unwrap().into());
        }
        let lines = guest.lines.borrow();
        let [first, second] =
            [1, 2].map(|loan| [&lines[&loan].short, &lines[&loan].on_disk].map(RateLimited::unsaid));
        assert!(second == [0; 2] && first.iter().all(|unsaid| *unsaid <= 2), "{first:?} {second:?}");
    }

    #[test]
    fn what_is_read_only_is_not_written() {
        let file = memory(4096);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = rustix::fs::open(path, OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let guest = with(&file);
        assert!(guest.read(1, ID, 0, &mut [0; 8]));
        assert!(!guest.write(1, ID, 0, &[0; 8]));
    }

    /// It costs nothing to make them, and there are addresses for others all the same.
    #[test]
    fn files_of_holes_take_no_addresses_from_others() {
        let guest = GuestDescriptors::default();
        let tries = |id: u32, bytes: u64| {
            guest.insert(1, id, memory(bytes));
            guest.write(1, DescriptorId(id), 0, &[7; 8])
        };
        assert!(!tries(0, 1 << 46), "more than a client may have in one piece");
        let few = (1..200).filter(|id| tries(*id, 1 << 38)).count();
        let troubles = guest.take_troubles();
        let are_all = troubles.iter().all(|(loan, what, _)| (*loan, *what) == (1, SlotTrouble::Large));
        assert!(few == 4 && !troubles.is_empty() && are_all, "{few} {troubles:?}");
        guest.insert(2, 1000, memory(4096));
        assert!(guest.write(2, DescriptorId(1000), 0, &[7; 8]));
        // What is given back can be had again.
        (0..200).for_each(|id| guest.remove(1, id));
        assert!(tries(1, 1 << 39));
    }

    #[test]
    fn only_eventfds_are_signalled_and_only_memory_is_mapped() {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let guest = with(&event);
        guest.signal(1, ID);
        guest.signal(1, ID);
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        guest.signal(1, ID);
        assert!(!guest.read(1, ID, 0, &mut [0; 8]));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let guest = with(&writer);
        guest.signal(1, ID);
        drop((guest, writer));
        assert_eq!(rustix::io::read(&reader, &mut count).unwrap(), 0);
    }

    #[test]
    fn private_mappings_are_told_from_shared_ones() {
        let maps = "7f0000000000-7f0000200000 rw-p 00000000 00:01 1026 /memfd:mem (deleted)\n\
                    7f0000200000-7f0000400000 rw-s 00000000 00:01 1027 /memfd:mem (deleted)\n\
                    7f0000400000-7f0000600000 rw-p 00000000 00:01 1027 /memfd:mem (deleted)\n\
                    7f0000600000-7f0000800000 rw-p 00000000 00:00 0\n";
        assert!(are_all_private(maps, "00:01 1026"));
        assert!(!are_all_private(maps, "00:01 1027"));
        assert!(!are_all_private(maps, "00:01 1028"));
        let file = memory(4096);
        let key = FileKey::of(file.as_fd()).unwrap();
        let pid = std::process::id() as i32;
        assert!(!key.is_private_to(pid));
        let map = |flags| {
            // SAFETY: a mapping at an address of the kernel's choice disturbs nothing.
            unsafe { rustix::mm::mmap(ptr::null_mut(), 4096, ProtFlags::READ, flags, &file, 0).unwrap() };
        };
        map(MapFlags::PRIVATE);
        assert!(key.is_private_to(pid));
        map(MapFlags::SHARED);
        assert!(!key.is_private_to(pid));
    }

    /// Each look reads all mappings of a process, in the agent's only thread.
    #[test]
    fn who_comes_with_ever_new_files_is_not_looked_at_each_time() {
        let mut known = Known::default();
        let files: Vec<_> =
            (0..KNOWN_FILES as u64 + 50).map(|inode| FileKey { device: 1, inode, writable: true }).collect();
        // Of no such process anything can be seen.
        let is_private =
            |known: &mut Known| files.iter().map(|file| known.is_private(*file, -1)).collect::<Vec<_>>();
        let first = is_private(&mut known);
        assert_eq!(first.iter().filter(|found| **found == Some(false)).count(), KNOWN_FILES);
        assert!(first[KNOWN_FILES..].iter().all(Option::is_none));
        assert_eq!((is_private(&mut known), known.files.len()), (first, KNOWN_FILES));
    }

    #[test]
    fn one_client_takes_no_ranges_but_its_own() {
        crate::raise_descriptor_limit();
        let guest = GuestDescriptors::default();
        let reaches = |loan, id| {
            guest.insert(loan, id, memory(4096));
            guest.write(loan, DescriptorId(id), 0, &[1; 8])
        };
        assert_eq!((0..RANGES as u32 + 100).filter(|id| reaches(5, *id)).count(), RANGES);
        assert_eq!((0..FILES as u32).filter(|id| reaches(6, *id)).count(), FILES, "what is another's");
        guest.remove(5, 0);
        assert!(reaches(5, 9999), "there is room again");
    }
}
