//! The code of this program that is mapped.

use std::io;

use rustix::mm::Advice;

/// Where the kernel lists what a process has mapped.
const MAPS: &str = "/proc/self/maps";

/// Gives up all pages of code. Those that run are mapped again when they are, from the kernel's cache: so what has only
/// been needed to start does not stay. Costs a page fault of about a microsecond for each 64 KiB that run.
///
/// # Errors
/// The kernel does not tell what is mapped, or does not take it back; nothing else comes of that.
pub fn give_up_unused() -> io::Result<()> {
    let maps = std::fs::read_to_string(MAPS)?;
    for (start, end) in maps.lines().filter_map(code_of_file) {
        // SAFETY: the mapping is private, of a file and not writable, nor was it ever: its content is that of the file,
        // and the kernel reads it from there when it is touched.
        unsafe { rustix::mm::madvise(start as *mut _, end - start, Advice::LinuxDontNeed)? };
    }
    Ok(())
}

/// The addresses in a line of `/proc/self/maps` if that is code of a file (proc_pid_maps(5)).
fn code_of_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    if permissions != "r-xp" || inode == "0" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?)).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_given_up() {
        let code = "55d0c000-55d0d000 r-xp 00001000 fe:00 1234   /usr/bin/cat";
        assert_eq!(code_of_file(code), Some((0x55d0_c000, 0x55d0_d000)));
        for line in [
            "55d0c000-55d0d000 rw-p 00001000 fe:00 1234   /usr/bin/cat",
            "55d0c000-55d0d000 r--p 00001000 fe:00 1234   /usr/bin/cat",
            "55d0c000-55d0d000 r-xs 00001000 fe:00 1234   /usr/bin/cat",
            "7ffd0000-7ffd2000 r-xp 00000000 00:00 0      [vdso]",
            "55d0d000-55d0c000 r-xp 00001000 fe:00 1234   /usr/bin/cat",
            "55d0c000 r-xp",
            "",
        ] {
            assert_eq!(code_of_file(line), None, "{line}");
        }
    }

    #[test]
    fn what_runs_goes_on() {
        let resident = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut is_code = false;
            let mut kib = 0;
            for line in smaps.lines() {
                match line.strip_prefix("Rss:") {
                    Some(rss) if is_code => kib += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap(),
                    Some(_) => {}
                    None if line.contains('-') && !line.starts_with(char::is_uppercase) => {
                        is_code = code_of_file(line).is_some();
                    }
                    None => {}
                }
            }
            kib
        };
        let before = resident();
        give_up_unused().unwrap();
        assert!(resident() < before, "{before} KiB");
    }
}
