//! What tells an image from another one that lies in its place later.
//!
//! The intuition: whoever replaces an image leaves traces, but no file system shows all of them. So everything is taken
//! that this one keeps, and two images are the same unless something of it differs:
//!
//! - A mark of our own, a random number in the extended attribute `user.causeway.drive`: another file has none, or
//!   another one.
//! - Number, generation and time of birth of the file, where the file system keeps them for good: a copy that took the
//!   mark along was born later.
//! - Of a block device its own name (WWID, serial number, UUID), else the kernel's number for this attachment of it
//!   (`diskseq`).
//! - The size.
//! - When it was written last: this alone tells of content that was copied into the same file. See
//!   [`super::LastWrites`].
//!
//! What a file system makes up anew each time it is mounted, or keeps by the clock of another machine, is not looked
//! at: it would tell of another image where there is none.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use base::hash::fnv1a;
use rustix::fs::{AtFlags, FileType, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::kernel::disk_number;
use super::{Image, ImageKind};

const ATTRIBUTE: &str = "user.causeway.drive";
/// Bytes of a mark.
pub const MARK_BYTES: usize = 16;

/// `FS_IOC_GETVERSION` (linux/fs.h): `_IOR('v', 1, long)`.
const GET_GENERATION: libc::Ioctl = 0x8008_7601;

/// The number in our attribute of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The file system has no attributes for it.
    Impossible,
    /// It has none.
    None,
    /// This one.
    Is([u8; MARK_BYTES]),
}

/// What an image can be told by. `None` is what cannot be known of it, and tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A file.
    File {
        /// Its size.
        bytes: u64,
        /// Our attribute.
        mark: Mark,
        /// Its number, where that is kept for good.
        number: Option<u64>,
        /// Which of the files that have had this number.
        generation: Option<u32>,
        /// When it was made: nanoseconds since 1970.
        birth: Option<i64>,
        /// When it was written last: nanoseconds since 1970, by this machine's clock.
        written: Option<i64>,
    },
    /// A block device.
    Device {
        /// Its size.
        bytes: u64,
        /// Stands for its own name.
        name: Option<u64>,
        /// Stands for the file behind a loop device.
        behind: Option<u64>,
        /// The kernel's number for it: another one each time it appears, and after each start of the machine.
        sequence: Option<u64>,
    },
}

/// How another image shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Another file, or none but a device.
    File,
    /// Another device.
    Device,
    /// Another size.
    Size {
        /// Bytes before.
        had: u64,
        /// Bytes now.
        has: u64,
    },
    /// The file was written by somebody else.
    Written,
}

impl Identity {
    /// Of an open image.
    ///
    /// # Errors
    /// What asking for its size returned.
    pub fn of(image: &Image) -> io::Result<Self> {
        match image.info.kind {
            ImageKind::File => Self::of_file(image.as_fd()),
            ImageKind::BlockDevice => Self::of_device(image),
        }
    }

    fn of_file(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let (bytes, number, written, birth) = match rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, what) {
            Ok(found) => {
                let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
                let birth = has_birth.then(|| nanoseconds(found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
                let written = nanoseconds(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec);
                (found.stx_size, found.stx_ino, written, birth)
            }
            // Before Linux 4.11, or where it is forbidden.
            Err(_) => {
                let found = rustix::fs::fstat(fd)?;
                let written = nanoseconds(found.st_mtime, found.st_mtime_nsec as u32);
                (found.st_size.cast_unsigned(), found.st_ino, written, None)
            }
        };
        let keeps = Keeps::of(fd)?;
        Ok(Self::File {
            bytes,
            mark: mark_of(fd),
            number: keeps.number.then_some(number),
            generation: generation(fd).filter(|_| keeps.number),
            birth: birth.filter(|_| keeps.times),
            written: keeps.times.then_some(written),
        })
    }

    fn of_device(image: &Image) -> io::Result<Self> {
        let found = rustix::fs::fstat(image)?;
        let (major, minor) = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
        let folder = format!("/sys/dev/block/{major}:{minor}");
        let (name, behind) = names(Path::new(&folder));
        let sequence = disk_number(Some(image.as_fd()), major, minor).ok();
        Ok(Self::Device { bytes: image.bytes_now()?, name, behind, sequence })
    }

    /// What tells that `self`, seen later, is not the image that `before` was. `same_boot`: the machine was not started
    /// in between. Says nothing of what was written: see [`Identity::written`].
    pub fn difference(&self, before: &Self, same_boot: bool) -> Option<Difference> {
        let differs = |one: Option<u64>, two: Option<u64>| one.zip(two).is_some_and(|(one, two)| one != two);
        match (*before, *self) {
            (
                Self::File { bytes: had, mark, number, generation, birth, .. },
                Self::File {
                    bytes: has,
                    mark: mark_now,
                    number: number_now,
                    generation: generation_now,
                    birth: birth_now,
                    ..
                },
            ) => {
                let other_mark = match (mark, mark_now) {
                    (Mark::Is(one), Mark::Is(two)) => one != two,
                    (Mark::Is(_), Mark::None) => true,
                    _ => false,
                };
                let other = other_mark
                    || differs(number, number_now)
                    || differs(generation.map(u64::from), generation_now.map(u64::from))
                    || differs(birth.map(i64::cast_unsigned), birth_now.map(i64::cast_unsigned));
                let size = (had != has).then_some(Difference::Size { had, has });
                if other { Some(Difference::File) } else { size }
            }
            (
                Self::Device { bytes: had, name, behind, sequence },
                Self::Device { bytes: has, name: name_now, behind: behind_now, sequence: sequence_now },
            ) => {
                let other = match (name.zip(name_now), same_boot && sequence.zip(sequence_now).is_some()) {
                    (Some((one, two)), _) => one != two,
                    (None, true) => differs(sequence, sequence_now),
                    (None, false) => differs(behind, behind_now),
                };
                // It may have grown: whether somebody else has written to it shows nowhere.
                let size = (has < had).then_some(Difference::Size { had, has });
                if other { Some(Difference::Device) } else { size }
            }
            _ => Some(Difference::File),
        }
    }

    /// When it was written last, where that says something.
    pub fn written(&self) -> Option<i64> {
        match self {
            Self::File { written, .. } => *written,
            Self::Device { .. } => None,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::File { bytes, .. } | Self::Device { bytes, .. } => *bytes,
        }
    }
}

/// Gives the file a new mark, which is durable when this returns. `None` where that cannot be.
pub(super) fn give_mark(image: &Image, mark: [u8; MARK_BYTES]) -> Option<Mark> {
    // Another open file description: it takes no error from the one that moves data.
    let path = format!("/proc/self/fd/{}", image.as_fd().as_raw_fd());
    let file = OpenOptions::new().read(true).open(path).ok()?;
    rustix::fs::fsetxattr(&file, ATTRIBUTE, &mark, XattrFlags::empty()).ok()?;
    file.sync_all().ok()?;
    Some(Mark::Is(mark))
}

/// When a file was written last, where this machine's clock says so: nanoseconds since 1970.
pub(super) fn written(file: &File) -> Option<i64> {
    let found = rustix::fs::fstat(file).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let keeps = Keeps::of(file.as_fd()).ok().filter(|_| is_file)?;
    keeps.times.then(|| nanoseconds(found.st_mtime, found.st_mtime_nsec as u32))
}

fn nanoseconds(seconds: i64, nanoseconds: u32) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into())
}

/// What a file system keeps for good.
#[derive(Clone, Copy)]
struct Keeps {
    /// Numbers of files.
    number: bool,
    /// Times, to the nanosecond and by this machine's clock.
    times: bool,
}

impl Keeps {
    /// By `f_type` of statfs(2). Others make numbers up (FAT, FUSE), round times, or have them from a server's clock.
    fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        const OWN: [u32; 9] = [
            0x0000_ef53, // ext2, ext3, ext4
            0x5846_5342, // XFS
            0x9123_683e, // Btrfs
            0xf2f5_2010, // F2FS
            0x2fc1_2fc1, // ZFS
            0xca45_1a4e, // bcachefs
            0x0102_1994, // tmpfs
            0x8584_58f6, // ramfs
            0x794c_7630, // overlayfs
        ];
        const NFS: u32 = 0x6969;
        let system = rustix::fs::fstatfs(fd)?.f_type as u32;
        let times = OWN.contains(&system);
        Ok(Self { number: times || system == NFS, times })
    }
}

fn mark_of(fd: BorrowedFd<'_>) -> Mark {
    let mut found = [0; MARK_BYTES + 1];
    match rustix::fs::fgetxattr(fd, ATTRIBUTE, &mut found) {
        Ok(MARK_BYTES) => found[..MARK_BYTES].try_into().map_or(Mark::None, Mark::Is),
        // What is no mark is not ours.
        Ok(_) | Err(Errno::NODATA | Errno::RANGE) => Mark::None,
        Err(_) => Mark::Impossible,
    }
}

fn generation(fd: BorrowedFd<'_>) -> Option<u32> {
    let mut word = [0_u32; 2];
    // SAFETY: the kernel writes a long at most, for which there is room, to an array that lives across the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), GET_GENERATION, word.as_mut_ptr()) };
    (result == 0).then_some(word[0])
}

/// What stands for the name of a block device, and for the file behind one. `folder`: of sysfs. A partition has its
/// disk's name, and its number.
fn names(folder: &Path) -> (Option<u64>, Option<u64>) {
    let read = |folder: &Path, file: &str| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let part = read(&folder, "partition");
    let disk = if part.is_some() { folder.parent().unwrap_or(&folder) } else { &folder };
    let name = ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial"]
        .into_iter()
        .find_map(|file| Some(format!("{file} {}", read(disk, file)?)));
    let behind = read(disk, "loop/backing_file");
    // Names are as long as they like.
    let stands_for =
        |text: String| fnv1a(format!("{text} {}", part.as_deref().unwrap_or_default()).as_bytes());
    (name.map(stands_for), behind.map(stands_for))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark::Is([7; 16]);
    const NUMBERS: (Option<u64>, Option<u32>, Option<i64>) = (Some(12), Some(3), Some(99));

    fn file(bytes: u64, mark: Mark, numbers: (Option<u64>, Option<u32>, Option<i64>)) -> Identity {
        let (number, generation, birth) = numbers;
        Identity::File { bytes, mark, number, generation, birth, written: Some(5) }
    }

    #[test]
    fn each_trace_of_another_file_counts_and_what_is_unknown_does_not() {
        let before = file(4096, MARK, NUMBERS);
        let find = |bytes, mark, numbers| file(bytes, mark, numbers).difference(&before, true);
        let (number, generation, birth) = NUMBERS;
        assert_eq!(find(4096, MARK, NUMBERS), None);
        assert_eq!(find(8192, MARK, NUMBERS), Some(Difference::Size { had: 4096, has: 8192 }));
        for other in [Mark::Is([8; 16]), Mark::None] {
            assert_eq!(find(4096, other, NUMBERS), Some(Difference::File));
        }
        for other in [(Some(13), generation, birth), (number, Some(4), birth), (number, generation, Some(98))]
        {
            assert_eq!(find(4096, MARK, other), Some(Difference::File));
        }
        assert_eq!(find(4096, Mark::Impossible, (None, None, None)), None);
        let unmarked = file(4096, Mark::None, NUMBERS);
        assert_eq!(before.difference(&unmarked, true), None, "it was given its mark since");
    }

    #[test]
    fn a_device_goes_by_its_name_and_else_by_its_number_of_this_boot() {
        let device = |name, behind, sequence, bytes| Identity::Device { bytes, name, behind, sequence };
        let named = device(Some(1), None, Some(5), 4096);
        assert_eq!(device(Some(1), None, Some(6), 8192).difference(&named, true), None, "plugged in again");
        assert_eq!(device(Some(2), None, Some(5), 4096).difference(&named, true), Some(Difference::Device));
        let size = Some(Difference::Size { had: 4096, has: 512 });
        assert_eq!(device(Some(1), None, Some(5), 512).difference(&named, false), size);
        let nameless = device(None, Some(3), Some(5), 4096);
        assert_eq!(device(None, Some(3), Some(5), 4096).difference(&nameless, true), None);
        assert_eq!(
            device(None, Some(3), Some(6), 4096).difference(&nameless, true),
            Some(Difference::Device)
        );
        assert_eq!(device(None, Some(3), Some(6), 4096).difference(&nameless, false), None);
        assert_eq!(
            device(None, Some(4), Some(6), 4096).difference(&nameless, false),
            Some(Difference::Device)
        );
        assert_eq!(file(4096, MARK, NUMBERS).difference(&nameless, true), Some(Difference::File));
    }

    #[test]
    fn a_partition_is_not_its_disk() {
        let folder = std::env::temp_dir().join(format!("causeway-names-{}", std::process::id()));
        let part = folder.join("sda1");
        fs::create_dir_all(&part).unwrap();
        fs::write(folder.join("wwid"), "naa.5000\n").unwrap();
        fs::write(part.join("partition"), "1\n").unwrap();
        let [disk, one] = [&folder, &part].map(|path| names(path).0);
        fs::write(part.join("partition"), "2\n").unwrap();
        let two = names(&part).0;
        fs::remove_dir_all(&folder).unwrap();
        assert!(disk.is_some() && one.is_some() && two.is_some());
        assert!(disk != one && one != two);
        assert_eq!(names(Path::new("/nonexistent")), (None, None));
    }
}
