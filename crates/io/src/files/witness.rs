//! A second look at an image's errors.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;

use super::Image;

/// Where no image has a page.
const BEHIND_THE_END: i64 = i64::MAX & !0xffff;

/// Another open file description of an image, through which nothing is written or flushed. Linux tells an error of
/// writing back once an open file description: here it still tells what a flush has taken that nobody has heard of,
/// because who asked for it was killed.
#[derive(Debug)]
pub struct Witness {
    file: File,
}

impl Witness {
    /// Of an image that may be written; `None` of one in memory, which is never written back.
    ///
    /// # Errors
    /// What opening it returned.
    pub fn of(image: &Image) -> io::Result<Option<Self>> {
        if image.info.memory_backed || image.info.read_only {
            return Ok(None);
        }
        let path = format!("/proc/self/fd/{}", image.as_fd().as_raw_fd());
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        Ok(Some(Self { file: OpenOptions::new().read(true).custom_flags(flags).open(path)? }))
    }

    /// Whether writing back has failed since the last call, or since the image was opened. Waits for nothing.
    pub fn has_lost(&self) -> bool {
        // SAFETY: takes plain numbers; the descriptor is open.
        let told = unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), BEHIND_THE_END, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
        };
        let error = if told == 0 { None } else { io::Error::last_os_error().raw_os_error() };
        // What it says otherwise is about the call, not about the image.
        error.is_some_and(|error| !matches!(error, libc::EINVAL | libc::ESPIPE | libc::EBADF | libc::ENOSYS))
    }
}
