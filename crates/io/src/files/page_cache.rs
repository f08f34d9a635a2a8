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

/// The kernel never gives the same number to two mounts (statx(2), since Linux 6.8).
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

impl Image {
    /// A text that is another one if anything may be gone that the image was given and nobody has flushed: which life
    /// of the system it is, which disk the image lies on (or which mount, where the file system has no disk of its
    /// own), and which file it is there.
    ///
    /// # Errors
    /// What is not told here: then nobody can know.
    pub fn page_cache(&self) -> io::Result<String> {
        let boot = boot_id()?;
        let found =
            self.statx(libc::STATX_INO | libc::STATX_BTIME | libc::STATX_MNT_ID | STATX_MNT_ID_UNIQUE)?;
        let born = found.stx_btime;
        let file = match self.info.kind {
            ImageKind::File => format!("{} born {}.{:09}", found.stx_ino, born.tv_sec, born.tv_nsec),
            ImageKind::BlockDevice => "whole".to_owned(),
        };
        Ok(format!("boot {boot}, {}, file {file}", self.keeper(&found)?))
    }

    /// The disk or the mount.
    fn keeper(&self, found: &libc::statx) -> io::Result<String> {
        let (opened, major, minor) = match self.info.kind {
            ImageKind::File => (None, found.stx_dev_major, found.stx_dev_minor),
            ImageKind::BlockDevice => (Some(self.as_fd()), found.stx_rdev_major, found.stx_rdev_minor),
        };
        // Block devices have a major number; those of file systems without one are made up (`get_anon_bdev`).
        if major != 0 {
            return Ok(format!("disk {major}:{minor} number {}", disk_number(opened, major, minor)?));
        }
        if found.stx_mask & (libc::STATX_MNT_ID | STATX_MNT_ID_UNIQUE) == 0 {
            return Err(io::Error::other("the system does not number its mounts (before Linux 5.8)"));
        }
        Ok(format!("mount {} of {major}:{minor}", found.stx_mnt_id))
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
}
