//! The code and the constants of this program that are mapped.

use std::io;

use rustix::mm::Advice;

/// Where the kernel lists what a process has mapped, and how much of it is only the process's (proc_pid_smaps(5)).
const MAPS: &str = "/proc/self/smaps";
/// What would be lost: pages that were written, by a debugger for one, some of which may be swapped out. And what the
/// kernel does not give up.
const OWN: [&str; 3] = ["Anonymous:", "Swap:", "Locked:"];

/// Gives up all pages of code and of constants. Those that are used are mapped again when they are, from the kernel's
/// cache: so what has only been needed to start, such as all relocations, does not stay. Costs a page fault of about a
/// microsecond for each 64 KiB that are used. Mappings that are not as their files are stay as they are.
///
/// # Errors
/// The kernel does not tell what is mapped, or does not take some of it back; nothing else comes of that.
pub fn give_up_unused() -> io::Result<()> {
    let maps = std::fs::read_to_string(MAPS)?;
    let mut result = Ok(());
    for (start, end) in unchanged(&maps) {
        // SAFETY: the mapping is private, of a file and not writable, and no page of it is other than the file's: the
        // kernel reads it from there when it is touched.
        let given_up = unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
        result = result.and(given_up);
    }
    Ok(result?)
}

/// The addresses of code and constants that are as their file is.
fn unchanged(maps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut present = None;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        match (fields.next(), fields.next()) {
            (Some(key), Some(kib)) if key.ends_with(':') => {
                present = present.filter(|_| !OWN.contains(&key) || kib == "0");
            }
            _ => {
                found.extend(present);
                present = read_only_file(line);
            }
        }
    }
    found.extend(present);
    found
}

/// The addresses in the first line of a mapping if that is of a file and nothing is written there (proc_pid_maps(5)).
fn read_only_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    if !matches!(permissions, "r-xp" | "r--p") || inode == "0" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?)).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mlock, mmap, mprotect};

    use super::*;

    #[test]
    fn only_what_files_have_and_nobody_writes_is_given_up() {
        for permissions in ["r-xp", "r--p"] {
            let line = format!("55d0c000-55d0d000 {permissions} 00001000 fe:00 1234   /usr/bin/cat");
            assert_eq!(read_only_file(&line), Some((0x55d0_c000, 0x55d0_d000)));
        }
        for line in [
            "55d0c000-55d0d000 rw-p 00001000 fe:00 1234   /usr/bin/cat",
            "55d0c000-55d0d000 r-xs 00001000 fe:00 1234   /usr/bin/cat",
            "7ffd0000-7ffd2000 r-xp 00000000 00:00 0      [vdso]",
            "55d0d000-55d0c000 r-xp 00001000 fe:00 1234   /usr/bin/cat",
            "55d0c000 r-xp",
            "",
        ] {
            assert_eq!(read_only_file(line), None, "{line}");
        }
    }

    #[test]
    fn code_that_was_changed_or_is_locked_is_kept() {
        let mapping = |start: usize, details: &str| {
            format!("{start:x}-{:x} r-xp 00000000 fe:00 12   /usr/bin/cat\n{details}", start + 0x1000)
        };
        let maps = [
            mapping(
                0x1000,
                "Rss: 4 kB\nAnonymous:             4 kB\nSwap: 0 kB\nLocked: 0 kB\nVmFlags: rd ex\n",
            ),
            mapping(
                0x2000,
                "Private_Dirty: 0 kB\nAnonymous: 0 kB\nSwap: 0 kB\nLocked: 0 kB\nVmFlags: rd ex\n",
            ),
            mapping(0x4000, "Anonymous: 0 kB\nSwap: 8 kB\n"),
            mapping(0x6000, "Anonymous: 0 kB\nLocked: 4 kB\n"),
            "7000-8000 rw-p 00000000 fe:00 12   /usr/bin/cat\nAnonymous: 0 kB\n".to_owned(),
            mapping(0x9000, ""),
        ];
        assert_eq!(unchanged(&maps.concat()), [(0x2000, 0x3000), (0x9000, 0xa000)]);
        assert_eq!(unchanged(""), []);
    }

    const LEN: usize = 1 << 16;

    /// A mapping as that of code, all of which is there.
    fn map() -> *mut u8 {
        let file = rustix::fs::memfd_create("code", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &[7; LEN], 0).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { mmap(std::ptr::null_mut(), LEN, protection, flags, &file, 0) };
        let start = start.unwrap().cast::<u8>();
        assert!((0..LEN).step_by(4096).all(|at| byte(start, at) == 7));
        start
    }

    fn byte(start: *mut u8, at: usize) -> u8 {
        // SAFETY: callers stay within a mapping that is never unmapped.
        unsafe { start.add(at).read_volatile() }
    }

    /// KiB of the mapping at `start` that are there.
    fn resident(start: *mut u8) -> String {
        let maps = std::fs::read_to_string(MAPS).unwrap();
        let (_, mapping) = maps.split_once(&format!("\n{:08x}-", start as usize)).unwrap();
        let rss = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().to_owned()
    }

    #[test]
    fn code_that_is_as_its_file_is_goes_and_what_was_written_stays() {
        let (clean, written, locked) = (map(), map(), map());
        // SAFETY: nobody else knows these mappings.
        unsafe {
            mprotect(written.cast(), LEN, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            written.write_volatile(8);
            mprotect(written.cast(), LEN, MprotectFlags::READ | MprotectFlags::EXEC).unwrap();
            mlock(locked.cast(), LEN).unwrap();
        }
        assert_eq!(resident(clean), "64 kB");
        give_up_unused().unwrap();
        assert_eq!((resident(clean), resident(locked)), ("0 kB".to_owned(), "64 kB".to_owned()));
        assert_eq!((byte(written, 0), byte(written, 1), byte(clean, 0)), (8, 7, 7));
    }
}
