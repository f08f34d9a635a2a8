//! Who has a lock: `/proc/locks` does not say it of open file descriptions, but each process's own list does
//! (proc(5), `/proc/PID/fdinfo`).

use std::fmt;
use std::fs;
use std::os::fd::BorrowedFd;

/// A process that has an image locked, with or without others that inherited it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// What it runs, as the kernel names it (at most 15 bytes).
    pub command: String,
}

impl Holder {
    pub(super) fn is_self(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (process {})", self.command, self.pid)
    }
}

/// The process that has the file of `fd` locked. `None`: it may not be looked at from here, or lives on another
/// machine. Where a process and its children have it, as an agent and its card do, it is the eldest.
pub(super) fn find(fd: BorrowedFd<'_>) -> Option<Holder> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let file = format!("{:02x}:{:02x}:{}", device.0, device.1, stat.st_ino);
    if has_lock(std::process::id(), &file) {
        return holder(std::process::id());
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holders: Vec<u32> = pids.filter(|pid| has_lock(*pid, &file)).collect();
    let eldest = holders.iter().find(|pid| parent(**pid).is_none_or(|parent| !holders.contains(&parent)));
    holder(*eldest?)
}

fn has_lock(pid: u32, file: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    descriptors.flatten().any(|entry| {
        fs::read_to_string(entry.path()).is_ok_and(|info| info.lines().any(|line| is_lock(line, file)))
    })
}

/// Whether a line says that the descriptor has a lock on `file`, for example
/// `lock:  1: OFDLCK  ADVISORY  WRITE -1 08:01:1234 0 EOF`.
fn is_lock(line: &str, file: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("lock:") && words.any(|word| word == "OFDLCK") && words.any(|word| word == file)
}

fn holder(pid: u32) -> Option<Holder> {
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Holder { pid, command: command.trim_end().to_owned() })
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let line = "lock:\t1: OFDLCK ADVISORY  WRITE -1 08:01:1234 0 EOF";
        assert!(is_lock(line, "08:01:1234"));
        assert!(!is_lock(line, "08:01:123"));
        assert!(!is_lock(&line.replace("OFDLCK", "POSIX"), "08:01:1234"));
        assert!(!is_lock("flags:\t0100002 OFDLCK 08:01:1234", "08:01:1234"));
    }
}
