//! Operations on a range that need not move its bytes: trim and zero.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::{Image, ImageKind};

/// `BLKDISCARD` (linux/fs.h): `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `BLKZEROOUT` (linux/fs.h): `_IO(0x12, 127)`.
const BLKZEROOUT: libc::Ioctl = 0x127f;

const ZERO_BYTES: usize = 64 << 10;

/// Aligned for direct I/O on any disk.
#[repr(align(4096))]
struct Zeroes([u8; ZERO_BYTES]);

static ZEROES: Zeroes = Zeroes([0; ZERO_BYTES]);

pub(super) fn trim(file: &File, kind: ImageKind, offset: u64, bytes: u64) -> io::Result<bool> {
    if bytes == 0 {
        return Ok(true);
    }
    let result = match kind {
        ImageKind::File => allocate(file, FallocateFlags::PUNCH_HOLE, offset, bytes),
        ImageKind::BlockDevice => block_range(file, BLKDISCARD, offset, bytes),
    };
    possible(result)
}

pub(super) fn zero(image: &Image, offset: u64, bytes: u64, deallocate: bool) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let file = &image.file;
    let punch = || allocate(file, FallocateFlags::PUNCH_HOLE, offset, bytes);
    let zero_range = || allocate(file, FallocateFlags::ZERO_RANGE, offset, bytes);
    let zeroed = match (image.info.kind, deallocate) {
        (_, true) => possible(punch())? || possible(zero_range())?,
        // Memory has no zeroed extents: it keeps its space only where something is written.
        (ImageKind::File, false) => !image.info.memory_backed && possible(zero_range())?,
        (ImageKind::BlockDevice, false) => false,
    };
    // The ioctl never discards (`BLKDEV_ZERO_NOUNMAP`), and falls back to writing itself.
    let zeroed = zeroed
        || image.info.kind == ImageKind::BlockDevice
            && possible(block_range(file, BLKZEROOUT, offset, bytes))?;
    if zeroed { Ok(()) } else { write_zeroes(image, offset, bytes) }
}

/// The last resort: zeroes as data.
fn write_zeroes(image: &Image, mut offset: u64, bytes: u64) -> io::Result<()> {
    let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
    while offset < end {
        let length = (end - offset).min(ZERO_BYTES as u64);
        image.write_at(&mut [IoSlice::new(&ZEROES.0[..length as usize])], offset)?;
        offset += length;
    }
    Ok(())
}

fn allocate(file: &File, mode: FallocateFlags, offset: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, mode | FallocateFlags::KEEP_SIZE, offset, bytes))
}

fn block_range(file: &File, request: libc::Ioctl, offset: u64, bytes: u64) -> rustix::io::Result<()> {
    let range = [offset, bytes];
    // SAFETY: both requests read two 64-bit numbers, start and length, from an array that lives across the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), request, range.as_ptr()) } == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Whether it was done; `false` if file system or device cannot do it.
fn possible(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_as_data_cover_exactly_the_range() {
        let image = Image::ram(256 << 10).unwrap();
        let ones = vec![1u8; 256 << 10];
        image.write_at(&mut [IoSlice::new(&ones)], 0).unwrap();
        write_zeroes(&image, 512, 100 << 10).unwrap();
        let mut read = vec![9; 256 << 10];
        image.read_at(&mut [io::IoSliceMut::new(&mut read)], 0).unwrap();
        let inside = 512..512 + (100 << 10);
        assert!(read.iter().enumerate().all(|(at, byte)| *byte == u8::from(!inside.contains(&at))));
        assert!(write_zeroes(&image, u64::MAX, 2).is_err());
    }
}
