//! What processes use, from proc(5).

use std::fs;
use std::time::Duration;

use program::exit::Failure;

use crate::local::Node;

/// What QEMU calls memory of a machine that it shares.
const GUEST_MEMORY: &str = "memfd:memory-backend-memfd";

/// The agent and the card of a node.
pub(super) fn processes(node: &Node) -> Result<[u32; 2], Failure> {
    let card = node.card()?.pid.ok_or_else(|| Failure::failed("a node has no card just now"))?;
    Ok([node.pid(), card])
}

/// Processor time, by where it was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CpuTime {
    /// In the program.
    pub(super) user: Duration,
    /// In the kernel on its behalf.
    pub(super) system: Duration,
}

impl CpuTime {
    /// Both together.
    pub(super) fn total(self) -> Duration {
        self.user + self.system
    }

    /// What was spent since `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// Processor time of a process since it began, with that of threads that have ended; in ticks of 10 ms. Zero where
/// there is no such process.
pub(super) fn cpu_time(pid: u32) -> CpuTime {
    ticks(pid).unwrap_or_default()
}

/// Processor time of the threads that these processes have, to the nanosecond where the kernel keeps that.
pub(super) fn fine_cpu_time(pids: &[u32]) -> Duration {
    pids.iter().filter_map(|pid| scheduled(*pid).or_else(|| Some(ticks(*pid)?.total()))).sum()
}

/// Resident memory of all these processes together, in bytes, without the content of drives in memory and the memory of
/// virtual machines. What they share counts for each.
pub(super) fn resident_bytes(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| resident(*pid)).sum()
}

/// Page tables of these processes together, in bytes.
pub(super) fn page_table_bytes(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum::<u64>() << 10
}

fn scheduled(pid: u32) -> Option<Duration> {
    // Of a thread that ends meanwhile there is nothing to be read.
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.filter_map(Result::ok);
    let times = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
    });
    times.reduce(|one, other| one + other)
}

/// Fields 14 and 15 of `stat`.
fn ticks(pid: u32) -> Option<CpuTime> {
    fields(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, 14)
}

/// Two fields in ticks of the clock, counted from 1 as proc(5) does. The second field may hold anything but ends at the
/// last parenthesis, so that the third is the first behind it.
fn fields(stat: &str, first: usize) -> Option<CpuTime> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(first - 3);
    let mut time = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    };
    Some(CpuTime { user: time()?, system: time()? })
}

fn resident(pid: u32) -> Option<u64> {
    Some(resident_of(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?))
}

/// Bytes of the mappings of `smaps`, but for a medium or a virtual machine that is mapped.
fn resident_of(smaps: &str) -> u64 {
    let (mut kib, mut is_foreign) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if !is_foreign => kib += words.next().and_then(|kib| kib.parse().ok()).unwrap_or(0),
            // A mapping begins with its addresses.
            Some(first) if !first.ends_with(':') => {
                is_foreign = line.contains(io::files::RAM_NAME) || line.contains(GUEST_MEMORY);
            }
            _ => {}
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn work_shows_as_processor_time_both_ways() {
        let pid = std::process::id();
        let before = (scheduled(pid), ticks(pid).unwrap().total());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) || ticks(pid).unwrap().total() == before.1 {
            std::hint::black_box(0);
        }
        assert!(ticks(pid).unwrap().total() > before.1);
        if let Some(before) = before.0 {
            let used = scheduled(pid).unwrap().saturating_sub(before);
            assert!(used > Duration::from_millis(1), "{used:?}");
        }
        assert!(cpu_time(pid).total() > Duration::ZERO && fine_cpu_time(&[pid]) > Duration::ZERO);
        assert_eq!((cpu_time(u32::MAX), fine_cpu_time(&[u32::MAX])), (CpuTime::default(), Duration::ZERO));
    }

    #[test]
    fn threads_that_end_meanwhile_keep_nobody_from_being_counted() {
        let pid = std::process::id();
        // A kernel may not tell it at all.
        let is_told = scheduled(pid).is_some();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::spawn(|| ()).join().unwrap();
                }
            });
            let seen = (0..2000).all(|_| scheduled(pid).is_some() == is_told);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(seen);
        });
    }

    #[test]
    fn the_fields_are_those_of_the_manual() {
        let stat = "7 (a) b (c)) S 4 5 6 7 8 9 10 11 12 13 200 300 400 500 18";
        let tick = Duration::from_secs(1) / rustix::param::clock_ticks_per_second() as u32;
        assert_eq!(fields(stat, 14), Some(CpuTime { user: tick * 200, system: tick * 300 }));
        assert_eq!(fields(stat, 16), Some(CpuTime { user: tick * 400, system: tick * 500 }));
        assert_eq!(fields("7 (a) S 4 5", 14), None);
    }

    #[test]
    fn the_content_of_a_drive_does_not_count() {
        let line = |name: &str, kib: u32| {
            format!(
                "7f00-7f01 rw-s 00000000 00:01 7   {name}\nSize:  99 kB\nRss:     {kib} kB\nVmFlags: rd\n"
            )
        };
        let foreign = ["/memfd:causeway-ram (deleted)", "/memfd:memory-backend-memfd (deleted)"];
        let smaps = [line("[heap]", 8), line(foreign[0], 65536), line(foreign[1], 777), line("", 4)].concat();
        assert_eq!(resident_of(&smaps), 12 << 10);
    }

    #[test]
    fn this_process_has_memory() {
        let bytes = resident_bytes(&[std::process::id()]);
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
    }
}
