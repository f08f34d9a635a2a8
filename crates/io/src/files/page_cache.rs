//! What keeps what an image was given and nobody has flushed.
//!
//! Such writes lie in the system's page cache, or in the cache of the disk. Both forget them when the power fails; the
//! page cache when the system is started again, the disk's when it is taken out. While nothing of the kind has happened
//! they are there, whoever opens the image.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::kernel::{boot_id, disk_number};
use super::{Image, ImageKind};

/// The kernel never gives the same number to two mounts (statx(2), since Linux 6.8). It gives those of `STATX_MNT_ID`
/// again, as it does made-up device numbers, so that an unmount and a mount would look like none.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

impl Image {
    /// A text that is another one if anything may be gone that the image was given and nobody has flushed: which life
    /// of the system it is, which disk the image lies on (or which mount, where the file system has no disk of its
    /// own), and which file it is there.
    ///
    /// # Errors
    /// What is not told here: then nobody can know.
    pub fn page_cache(&self) -> io::Result<String> {
        self.place()?.page_cache()
    }

    fn place(&self) -> io::Result<Place> {
        let found = self.statx(libc::STATX_INO | libc::STATX_BTIME | STATX_MNT_ID_UNIQUE)?;
        let (opened, major, minor) = match self.info.kind {
            ImageKind::File => (None, found.stx_dev_major, found.stx_dev_minor),
            ImageKind::BlockDevice => (Some(self.as_fd()), found.stx_rdev_major, found.stx_rdev_minor),
        };
        let born = found.stx_btime;
        Ok(Place {
            boot: boot_id()?,
            device: (major, minor),
            // Block devices have a major number; those of file systems without one are made up (`get_anon_bdev`).
            disk: if major == 0 { None } else { Some(disk_number(opened, major, minor)?) },
            mount: unique_mount(found.stx_mask, found.stx_mnt_id),
            file: match self.info.kind {
                ImageKind::File => format!("{} born {}.{:09}", found.stx_ino, born.tv_sec, born.tv_nsec),
                ImageKind::BlockDevice => "whole".to_owned(),
            },
        })
    }

    fn statx(&self, mask: u32) -> io::Result<libc::statx> {
        let empty = CString::default();
        // SAFETY: the structure is plain C data for which zero bytes are a value; the path is a NUL-terminated string
        // that lives across the call, and the kernel fills at most one structure.
        unsafe {
            let mut found: libc::statx = std::mem::zeroed();
            let fd = self.as_fd().as_raw_fd();
            match libc::statx(fd, empty.as_ptr(), libc::AT_EMPTY_PATH, mask, &mut found) {
                0 => Ok(found),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

/// What the system says of where an image lies.
#[derive(Clone)]
struct Place {
    boot: String,
    /// Major and minor number.
    device: (u32, u32),
    /// `None` where the file system has no disk of its own.
    disk: Option<u64>,
    /// `None` where the system has only numbers that it gives again.
    mount: Option<u64>,
    file: String,
}

impl Place {
    /// See [`Image::page_cache`].
    fn page_cache(&self) -> io::Result<String> {
        let Self { boot, device: (major, minor), disk, mount, file } = self;
        let keeper = match (disk, mount) {
            (Some(number), _) => format!("disk {major}:{minor} number {number}"),
            (None, Some(number)) => format!("mount {number} of {major}:{minor}"),
            (None, None) => {
                return Err(io::Error::other(
                    "its file system has no disk of its own, and the system gives numbers of mounts again \
                     (before Linux 6.8)",
                ));
            }
        };
        Ok(format!("boot {boot}, {keeper}, file {file}"))
    }
}

/// The number of a mount, by what the kernel says it has filled in, if no other mount ever gets it.
fn unique_mount(filled: u32, number: u64) -> Option<u64> {
    (filled & STATX_MNT_ID_UNIQUE != 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ImageOptions;
    use std::path::{Path, PathBuf};

    fn open(path: &Path) -> Image {
        Image::open(path, &ImageOptions::default()).unwrap()
    }

    fn image(name: &str) -> PathBuf {
        // Not in /tmp, which may be memory.
        let path = std::env::current_exe()
            .unwrap()
            .with_file_name(format!("page-cache-{}-{name}", std::process::id()));
        std::fs::write(&path, [1; 4096]).unwrap();
        path
    }

    #[test]
    fn an_image_is_known_again_by_what_keeps_its_writes() {
        let paths = ["a", "b"].map(image);
        let first = open(&paths[0]).page_cache().unwrap();
        std::fs::write(&paths[0], [2; 8192]).unwrap();
        assert_eq!(open(&paths[0]).page_cache().unwrap(), first, "whatever it holds");
        assert_ne!(open(&paths[1]).page_cache().unwrap(), first);
        assert!(first.starts_with("boot ") && !first.contains("boot ,"), "{first}");
        std::fs::rename(&paths[1], &paths[0]).unwrap();
        assert_ne!(open(&paths[0]).page_cache().unwrap(), first, "another file has the name");
        std::fs::remove_file(&paths[0]).unwrap();
    }

    fn mounted() -> Place {
        let (boot, file) = ("b".to_owned(), "7 born 1.000000000".to_owned());
        Place { boot, device: (0, 42), disk: None, mount: Some(9), file }
    }

    #[test]
    fn only_a_number_that_no_other_mount_gets_tells_a_mount() {
        assert_eq!(unique_mount(libc::STATX_INO | libc::STATX_MNT_ID, 9), None);
        assert_eq!(unique_mount(libc::STATX_INO | STATX_MNT_ID_UNIQUE, 9), Some(9));
        let untold = Place { mount: None, ..mounted() };
        assert!(untold.page_cache().unwrap_err().to_string().contains("Linux 6.8"));
        let disk = Place { device: (8, 1), disk: Some(3), ..untold };
        assert_eq!(disk.page_cache().unwrap(), "boot b, disk 8:1 number 3, file 7 born 1.000000000");
    }

    #[test]
    fn whatever_is_another_one_makes_another_cache() {
        let other_boot = |place: &Place| Place { boot: "c".to_owned(), ..place.clone() };
        let other_device = |place: &Place| Place { device: (place.device.0, 43), ..place.clone() };
        let other_file = |place: &Place| Place { file: "8 born 1.000000000".to_owned(), ..place.clone() };
        let mounted = mounted();
        let disk = Place { device: (8, 1), disk: Some(3), ..mounted.clone() };
        let texts = [
            mounted.clone(),
            Place { mount: Some(10), ..mounted.clone() },
            other_boot(&mounted),
            other_device(&mounted),
            other_file(&mounted),
            disk.clone(),
            Place { disk: Some(4), ..disk.clone() },
            other_boot(&disk),
            other_device(&disk),
            other_file(&disk),
        ]
        .map(|place| place.page_cache().unwrap());
        for (index, text) in texts.iter().enumerate() {
            assert!(!texts[..index].contains(text), "{text}");
        }
        assert_eq!(mounted.page_cache().unwrap(), texts[0], "and the same place has the same");
    }
}
