//! What the kernel calls its own life, and a disk's.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `BLKGETDISKSEQ` (linux/fs.h): `_IOR(0x12, 128, __u64)`.
const GET_DISK_NUMBER: libc::Ioctl = 0x8008_1280;

/// The text that is another one after each start of the machine.
///
/// # Errors
/// It cannot be read, or the system has none.
pub fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    match id.trim() {
        "" => Err(io::Error::other("the system has no boot id")),
        id => Ok(id.to_owned()),
    }
}

/// The number of a disk (`diskseq`), also by one of its partitions: each that is plugged in, or made, gets another one,
/// and after each start of the machine. `opened`: the device, where that is what is open. It is asked first, for it can
/// say so without /sys.
///
/// # Errors
/// What is not told here: then nobody can know.
pub(super) fn disk_number(opened: Option<BorrowedFd<'_>>, major: u32, minor: u32) -> io::Result<u64> {
    if let Some(number) = opened.and_then(number_of) {
        return Ok(number);
    }
    let folder = format!("/sys/dev/block/{major}:{minor}");
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}"));
    let number = read("diskseq").or_else(|_| read("../diskseq"));
    let number = number.map_err(|error| {
        io::Error::other(format!(
            "{folder} does not tell the disk's number ({error}; needs /sys, and Linux 5.15 or later)"
        ))
    })?;
    number.trim().parse().map_err(|_| io::Error::other(format!("{folder} has no number of the disk")))
}

fn number_of(device: BorrowedFd<'_>) -> Option<u64> {
    let mut number = 0_u64;
    // SAFETY: the kernel writes 64 bits to a word that lives across the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_DISK_NUMBER, &raw mut number) };
    (result == 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_disk_has_a_number_and_what_is_none_has_not() {
        let disks = std::fs::read_dir("/sys/dev/block").unwrap();
        for disk in disks.map(|disk| disk.unwrap().file_name().into_string().unwrap()) {
            let (major, minor) = disk.split_once(':').unwrap();
            disk_number(None, major.parse().unwrap(), minor.parse().unwrap()).unwrap();
        }
        let no_disk = std::fs::File::open("/dev/null").unwrap();
        let error = disk_number(Some(no_disk.as_fd()), 4095, 0).unwrap_err();
        assert!(error.to_string().contains("/sys/dev/block/4095:0"));
    }

    #[test]
    fn both_ways_tell_one_number() {
        // Whoever may open none of the disks here sees nothing of it.
        for disk in std::fs::read_dir("/sys/dev/block").unwrap() {
            let numbers = disk.unwrap().file_name().into_string().unwrap();
            let Ok(device) = std::fs::File::open(format!("/dev/block/{numbers}")) else { continue };
            let (major, minor) = numbers.split_once(':').unwrap();
            if let Some(number) = number_of(device.as_fd()) {
                assert_eq!(
                    disk_number(None, major.parse().unwrap(), minor.parse().unwrap()).unwrap(),
                    number
                );
            }
        }
    }

    #[test]
    fn this_life_has_an_id() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert!(boot_id().unwrap().chars().filter(char::is_ascii_hexdigit).count() >= 32);
    }
}
