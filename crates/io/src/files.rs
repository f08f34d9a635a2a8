//! The image behind a lent drive: a regular file, a block device or memory.
//!
//! Opening decides everything once: whether the image may be lent at all (each refusal has a
//! name), how large it is, whether its data is in memory (then inline system calls beat any ring)
//! or on a disk (then direct I/O, where its alignment suits the caller), and takes the lock. The
//! lock lies on the open file description that does the I/O, so it lasts exactly as long as
//! anything can still be written through it: a card's inherited copy and requests in a ring keep it.

mod identity;
mod kernel;
mod last_writes;
mod lock;
mod mapped;
mod page_cache;
mod range;
mod witness;

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use self::identity::{Difference, Identity, MARK_BYTES, Mark};
pub use self::kernel::boot_id;
pub use self::last_writes::{LastFlush, LastWrites};
pub use self::lock::Holder;
use self::lock::LockError;
pub use self::mapped::Collapser;
use self::mapped::MappedImage;
pub use self::witness::Witness;

/// Every size and position is a multiple of this, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// What the memory of [`Image::ram`] is called in `/proc/PID/maps`.
pub const RAM_NAME: &str = "causeway-ram";
/// Pieces of memory in one system call (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// How an image is to be opened.
#[derive(Clone, Copy, Debug)]
pub struct ImageOptions {
    /// Lend it for reading only: a shared lock, and no writes.
    pub read_only: bool,
    /// Smallest acceptable size, in bytes.
    pub least_bytes: u64,
    /// The smallest unit the caller will read and write, in bytes. Direct I/O is used where it allows such units.
    pub unit_bytes: u32,
    /// Use direct I/O on disks, where possible.
    pub direct: bool,
    /// How long to wait for the lock: a predecessor that was killed holds it until its last writes are over.
    pub lock_patience: Duration,
}

impl Default for ImageOptions {
    fn default() -> Self {
        let (least_bytes, unit_bytes) = (SECTOR_BYTES, SECTOR_BYTES as u32);
        Self { read_only: false, least_bytes, unit_bytes, direct: true, lock_patience: Duration::ZERO }
    }
}

/// What kind of thing an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// A regular file, or memory made by [`Image::ram`].
    File,
    /// A block device.
    BlockDevice,
}

/// What opening found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// File or device.
    pub kind: ImageKind,
    /// Size in bytes, a multiple of 512 unless it was opened by descriptor.
    pub bytes: u64,
    /// Logical block size of the device, or 512.
    pub block_bytes: u32,
    /// The data is in memory: tmpfs, ramfs, hugetlbfs or a memfd.
    pub memory_backed: bool,
    /// Closing a copy of its descriptor neither writes nor waits, as it does on NFS or FUSE.
    pub closes_at_once: bool,
    /// Opened without the right to write.
    pub read_only: bool,
    /// Goes around the page cache; addresses and positions must then be aligned as said below.
    pub direct: bool,
    /// Alignment of memory addresses, in bytes (1 if not direct).
    pub memory_alignment: u32,
    /// Alignment of positions and lengths, in bytes (1 if not direct).
    pub offset_alignment: u32,
    /// It had no name when it was opened: memory.
    pub nameless: bool,
}

/// What became of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLook {
    /// Its size in bytes.
    pub bytes: u64,
    /// It had a name and has none any more.
    pub removed: bool,
    /// When it was written last, where that says something: nanoseconds since 1970.
    pub written: Option<i64>,
    /// Another file lies where it was opened.
    pub displaced: bool,
}

/// Why an image cannot be lent.
#[derive(Debug)]
pub struct OpenError {
    /// The path as given.
    pub path: PathBuf,
    /// The reason.
    pub reason: OpenRefusal,
}

/// The reasons by name.
#[derive(Debug)]
pub enum OpenRefusal {
    /// Nothing has this name.
    Missing,
    /// It may not be read.
    Unreadable(io::Error),
    /// It may be read but not written, and was to be lent for writing.
    NotWritable(io::Error),
    /// It is a directory.
    Directory,
    /// It is neither a file nor a block device.
    NotAnImage,
    /// Smaller than wanted.
    TooSmall {
        /// Its size in bytes.
        bytes: u64,
        /// The least size in bytes.
        least_bytes: u64,
    },
    /// Its size is not a multiple of 512 bytes.
    NotBlocks {
        /// Its size in bytes.
        bytes: u64,
    },
    /// Someone else lends it, or the kernel has it mounted.
    Locked(Option<Holder>),
    /// SIGTERM or SIGINT came while its lock was waited for.
    Interrupted,
    /// The system refused for another reason.
    System(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.reason {
            OpenRefusal::Missing => write!(formatter, "{path}: no such file; create it, or use ram:SIZE"),
            OpenRefusal::Unreadable(error) => write!(formatter, "{path}: cannot be read: {error}"),
            OpenRefusal::NotWritable(error) => {
                write!(formatter, "{path}: cannot be written ({error}); lend it with --read-only")
            }
            OpenRefusal::Directory => write!(formatter, "{path}: is a directory; name an image file in it"),
            OpenRefusal::NotAnImage => write!(formatter, "{path}: is neither a file nor a block device"),
            OpenRefusal::TooSmall { bytes, least_bytes } => {
                write!(formatter, "{path}: has {bytes} bytes, at least {least_bytes} are needed")
            }
            OpenRefusal::NotBlocks { bytes } => {
                let rounded = bytes.next_multiple_of(SECTOR_BYTES);
                write!(
                    formatter,
                    "{path}: its size, {bytes} bytes, is not a multiple of {SECTOR_BYTES}; `truncate -s {rounded}` \
                     would pad it"
                )
            }
            OpenRefusal::Locked(Some(holder)) if holder.pid == std::process::id() => {
                write!(formatter, "{path}: already lent (locked) by this very node; name each image once")
            }
            OpenRefusal::Locked(Some(holder)) => {
                write!(formatter, "{path}: already lent (locked) by {holder}; stop it first")
            }
            OpenRefusal::Locked(None) => {
                write!(formatter, "{path}: already lent (locked) or mounted; stop the other user")
            }
            OpenRefusal::Interrupted => {
                write!(formatter, "{path}: asked to end while waiting for the lock of the image")
            }
            OpenRefusal::System(error) => write!(formatter, "{path}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// An open image.
#[derive(Debug)]
pub struct Image {
    file: File,
    info: ImageInfo,
    mapped: Option<MappedImage>,
    /// Where it was opened, if it was.
    path: Option<PathBuf>,
}

impl Image {
    /// Opens an image, checks it and takes its lock.
    ///
    /// # Errors
    /// The first reason found why it cannot be lent.
    pub fn open(path: &Path, options: &ImageOptions) -> Result<Self, OpenError> {
        Self::open_checked(path, options).map_err(|reason| OpenError { path: path.to_owned(), reason })
    }

    fn open_checked(path: &Path, options: &ImageOptions) -> Result<Self, OpenRefusal> {
        let file = open_file(path, options.read_only)?;
        let mut image = Self::from_fd(file.into()).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTBLK) => OpenRefusal::NotAnImage,
            _ => OpenRefusal::System(error),
        })?;
        image.path = Some(path.to_owned());
        let ImageInfo { bytes, .. } = image.info;
        if bytes < options.least_bytes {
            return Err(OpenRefusal::TooSmall { bytes, least_bytes: options.least_bytes });
        }
        if !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(OpenRefusal::NotBlocks { bytes });
        }
        lock::take(image.as_fd(), path, options.read_only, options.lock_patience).map_err(
            |error| match error {
                LockError::Held(holder) => OpenRefusal::Locked(holder),
                LockError::Interrupted => OpenRefusal::Interrupted,
                LockError::System(error) => OpenRefusal::System(error),
            },
        )?;
        if options.direct && !image.info.memory_backed {
            image.try_direct(options.unit_bytes).map_err(OpenRefusal::System)?;
        }
        Ok(image)
    }

    /// Memory of `bytes` bytes as an image, all zero. It lives as long as a descriptor of it.
    ///
    /// # Errors
    /// `EINVAL` for no bytes or no multiple of 512, else what making the memory returned.
    pub fn ram(bytes: u64) -> io::Result<Self> {
        let size = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        if !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(Errno::INVAL.into());
        }
        Self::from_fd(crate::memory::create(RAM_NAME, size)?)
    }

    /// Takes over an open image from another process, with lock and direct I/O as they are.
    ///
    /// # Errors
    /// `ENOTBLK` if it is neither file nor block device, else what asking the system returned.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let kind = file.metadata()?.file_type();
        let flags = rustix::fs::fcntl_getfl(&file)?;
        let (kind, bytes, block_bytes) = if kind.is_file() {
            (ImageKind::File, file.metadata()?.len(), SECTOR_BYTES as u32)
        } else if kind.is_block_device() {
            let block_bytes = rustix::fs::ioctl_blksszget(&file)?;
            (ImageKind::BlockDevice, rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?, block_bytes)
        } else {
            return Err(Errno::NOTBLK.into());
        };
        let mut info = ImageInfo {
            kind,
            bytes,
            block_bytes,
            memory_backed: kind == ImageKind::File && memory_page_bytes(file.as_fd())?.is_some(),
            closes_at_once: kind != ImageKind::File || closes_at_once(file.as_fd())?,
            read_only: flags & OFlags::ACCMODE == OFlags::RDONLY,
            direct: flags.contains(OFlags::DIRECT),
            memory_alignment: 1,
            offset_alignment: 1,
            nameless: rustix::fs::fstat(&file)?.st_nlink == 0,
        };
        if info.direct {
            let alignment = direct_alignment(file.as_fd(), &info).ok_or(Errno::INVAL)?;
            (info.memory_alignment, info.offset_alignment) = alignment;
        }
        Ok(Self { file, info, mapped: None, path: None })
    }

    /// Copies what is used often without system calls from now on, if the image is in memory.
    ///
    /// # Errors
    /// What mapping it returned.
    pub fn map(&mut self, collapser: &Collapser) -> io::Result<()> {
        if self.info.memory_backed && self.info.bytes > 0 {
            self.mapped = Some(MappedImage::new(&self.file, !self.info.read_only, collapser)?);
        }
        Ok(())
    }

    /// Does for all of a mapped image at once what would come with its use.
    pub fn warm_up(&self) {
        if let Some(mapped) = &self.mapped {
            mapped.collapse_all();
        }
    }

    /// What opening found out.
    #[must_use]
    pub fn info(&self) -> &ImageInfo {
        &self.info
    }

    /// What tells it from another image.
    ///
    /// # Errors
    /// What asking for its size returned.
    pub fn identify(&self) -> io::Result<Identity> {
        Identity::of(self)
    }

    /// Gives a file a mark by which it can be told from others, durably. `None` where that cannot be.
    #[must_use]
    pub fn give_mark(&self, mark: [u8; MARK_BYTES]) -> Option<Mark> {
        let is_file = self.info.kind == ImageKind::File;
        if !is_file || self.info.read_only { None } else { identity::give_mark(self, mark) }
    }

    /// How many bytes it has now.
    ///
    /// # Errors
    /// What asking the system returned.
    pub fn bytes_now(&self) -> io::Result<u64> {
        Ok(match self.info.kind {
            ImageKind::File => rustix::fs::fstat(&self.file)?.st_size.cast_unsigned(),
            ImageKind::BlockDevice => rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?,
        })
    }

    /// How large it is now, when it was written last, and whether it is still to be found.
    ///
    /// # Errors
    /// What asking the system returned.
    pub fn look(&self) -> io::Result<ImageLook> {
        let bytes = self.bytes_now()?;
        if self.info.kind == ImageKind::BlockDevice {
            return Ok(ImageLook { bytes, removed: false, written: None, displaced: false });
        }
        let found = rustix::fs::fstat(&self.file)?;
        // Memory never had a name.
        let removed = found.st_nlink == 0 && !self.info.nameless;
        let there = self.path.as_ref().and_then(|path| rustix::fs::stat(path).ok());
        let displaced =
            there.is_some_and(|there| (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino));
        Ok(ImageLook { bytes, removed, written: identity::written(&self.file), displaced })
    }

    /// Reads all of `buffers` from `offset` on. The slices are of no use afterwards.
    ///
    /// # Errors
    /// The errno of the disk; `EIO` where the image has become too short.
    pub fn read_at(&self, mut buffers: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        if self.mapped.as_ref().is_some_and(|mapped| mapped.read(buffers, offset)) {
            return Ok(());
        }
        IoSliceMut::advance_slices(&mut buffers, 0);
        while !buffers.is_empty() {
            let count = buffers.len().min(MAX_PIECES);
            match rustix::io::preadv(&self.file, &mut buffers[..count], offset) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(bytes) => {
                    IoSliceMut::advance_slices(&mut buffers, bytes);
                    offset += bytes as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes all of `buffers` from `offset` on. The slices are of no use afterwards.
    ///
    /// # Errors
    /// The errno of the disk, `ENOSPC` among them: then a part may have been written.
    pub fn write_at(&self, mut buffers: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        if self.mapped.as_ref().is_some_and(|mapped| mapped.write(buffers, offset)) {
            return Ok(());
        }
        IoSlice::advance_slices(&mut buffers, 0);
        while !buffers.is_empty() {
            let count = buffers.len().min(MAX_PIECES);
            match rustix::io::pwritev(&self.file, &buffers[..count], offset) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(bytes) => {
                    IoSlice::advance_slices(&mut buffers, bytes);
                    offset += bytes as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes everything written so far durable (`fdatasync`).
    ///
    /// # Errors
    /// The errno of the disk. What was written since the last success may then be lost.
    pub fn sync_data(&self) -> io::Result<()> {
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file))?)
    }

    /// The same, and what the file system knows of the image, such as when it was written (`fsync`).
    ///
    /// # Errors
    /// As of [`Image::sync_data`].
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(&self.file))?)
    }

    /// Gives the range back to the disk if that is possible; what it reads afterwards is not said. Returns whether
    /// it was.
    ///
    /// # Errors
    /// The errno of the disk, except that it cannot do this.
    pub fn trim(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.forget(offset, bytes);
        range::trim(&self.file, self.info.kind, offset, bytes)
    }

    /// Makes the range read as zeroes, without writing them where the disk knows how. With `deallocate` its space
    /// may be given back, else it keeps it, or gets some.
    ///
    /// # Errors
    /// The errno of the disk.
    pub fn zero(&self, offset: u64, bytes: u64, deallocate: bool) -> io::Result<()> {
        if deallocate {
            self.forget(offset, bytes);
        }
        range::zero(self, offset, bytes, deallocate)
    }

    fn forget(&self, offset: u64, bytes: u64) {
        if let Some(mapped) = &self.mapped {
            mapped.forget(offset, bytes);
        }
    }

    /// Turns direct I/O on if the file system does it in units that suit the caller.
    fn try_direct(&mut self, unit_bytes: u32) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        if rustix::fs::fcntl_setfl(&self.file, flags | OFlags::DIRECT).is_err() {
            return Ok(());
        }
        match direct_alignment(self.as_fd(), &self.info) {
            Some((memory, offset))
                if unit_bytes.is_multiple_of(offset) && self.info.bytes.is_multiple_of(u64::from(offset)) =>
            {
                self.info.direct = true;
                (self.info.memory_alignment, self.info.offset_alignment) = (memory, offset);
            }
            _ => rustix::fs::fcntl_setfl(&self.file, flags)?,
        }
        Ok(())
    }
}

impl AsFd for Image {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open_file(path: &Path, read_only: bool) -> Result<File, OpenRefusal> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    // Without NONBLOCK a named pipe would wait for its other end.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    let file = match open(flags) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT | Errno::NOTDIR) => return Err(OpenRefusal::Missing),
        Err(Errno::ISDIR) => return Err(OpenRefusal::Directory),
        Err(Errno::NXIO) => return Err(OpenRefusal::NotAnImage),
        Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY)) => {
            let readable = !read_only && open(OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK).is_ok();
            let refusal = if readable { OpenRefusal::NotWritable } else { OpenRefusal::Unreadable };
            return Err(refusal(error.into()));
        }
        Err(error) => return Err(OpenRefusal::System(error.into())),
    };
    let kind = file.metadata().map_err(OpenRefusal::System)?.file_type();
    if kind.is_dir() {
        return Err(OpenRefusal::Directory);
    }
    if kind.is_block_device() && !read_only {
        // Exclusive: refused while the kernel has the device mounted.
        return match open(flags | OFlags::EXCL) {
            Ok(fd) => wait_for_blocks(File::from(fd)),
            Err(Errno::BUSY) => Err(OpenRefusal::Locked(None)),
            Err(error) => Err(OpenRefusal::System(error.into())),
        };
    }
    wait_for_blocks(file)
}

/// Takes NONBLOCK away again: a ring would hand `EAGAIN` to requests on such a file.
fn wait_for_blocks(file: File) -> Result<File, OpenRefusal> {
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| OpenRefusal::System(error.into()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)
        .map_err(|error| OpenRefusal::System(error.into()))?;
    Ok(file)
}

/// Bytes of the pages of a file whose data is in memory: a page of it is there or fails, but never waits for somebody
/// else. `None` for other files (statfs(2): `f_type`).
pub(crate) fn memory_page_bytes(fd: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
    let (system, page) = (rustix::fs::fstatfs(fd)?, rustix::param::page_size());
    Ok(match system.f_type as u32 {
        TMPFS_MAGIC | RAMFS_MAGIC => Some(page),
        HUGETLBFS_MAGIC => Some((system.f_bsize as usize).max(page)),
        _ => None,
    })
}

/// Whether the file system does nothing when a descriptor of a file is closed that is open elsewhere (`flush` of the
/// kernel's file_operations): of those that are named here that is known.
fn closes_at_once(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const EXT_MAGIC: u32 = 0xef53;
    const XFS_MAGIC: u32 = 0x5846_5342;
    const BTRFS_MAGIC: u32 = 0x9123_683e;
    let system = rustix::fs::fstatfs(fd)?.f_type as u32;
    Ok(memory_page_bytes(fd)?.is_some() || [EXT_MAGIC, XFS_MAGIC, BTRFS_MAGIC].contains(&system))
}

/// Alignment of memory and of positions for direct I/O; `None` if there is none. The kernel is asked first; one before
/// 6.1 does not know, and then it is tried.
fn direct_alignment(fd: BorrowedFd<'_>, info: &ImageInfo) -> Option<(u32, u32)> {
    let empty = CString::default();
    // SAFETY: the structure is plain C data for which zero bytes are a value; the path is a NUL-terminated string
    // that lives across the call, and the kernel fills at most one structure.
    let answer = unsafe {
        let mut answer: libc::statx = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH;
        let result = libc::statx(fd.as_raw_fd(), empty.as_ptr(), flags, libc::STATX_DIOALIGN, &mut answer);
        (result == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0).then_some(answer)
    };
    match answer {
        Some(answer) if answer.stx_dio_offset_align == 0 => None,
        Some(answer) => Some((answer.stx_dio_mem_align.max(1), answer.stx_dio_offset_align)),
        None if info.kind == ImageKind::BlockDevice => Some((info.block_bytes, info.block_bytes)),
        None => try_alignments(fd),
    }
}

fn try_alignments(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Page([0; 4096]);
    [512u32, 4096]
        .into_iter()
        .find(|size| {
            let bytes = *size as usize;
            rustix::io::pread(fd, &mut page.0[..bytes], u64::from(*size)).is_ok()
        })
        .map(|size| (size, size))
}

#[cfg(test)]
mod tests;
