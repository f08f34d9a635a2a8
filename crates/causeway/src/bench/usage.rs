//! What processes use, from proc(5).

use std::fs;
use std::time::Duration;

use crate::exit::Failure;
use crate::local::Node;

/// The agent and the card of a node.
pub(super) fn processes(node: &Node) -> Result<[u32; 2], Failure> {
    Ok([node.pid(), node.card()?.pid])
}

/// Processor time of all these processes since they began, with that of threads that have ended; in ticks of 10 ms.
pub(super) fn cpu_time(pids: &[u32]) -> Duration {
    pids.iter().filter_map(|pid| ticks(*pid)).sum()
}

/// Processor time of the threads that these processes have, to the nanosecond where the kernel keeps that.
pub(super) fn fine_cpu_time(pids: &[u32]) -> Duration {
    pids.iter().filter_map(|pid| scheduled(*pid).or_else(|| ticks(*pid))).sum()
}

/// Resident memory of all these processes together, in bytes. What they share counts for each.
pub(super) fn resident_bytes(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| resident(*pid)).sum()
}

fn scheduled(pid: u32) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        total += Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?);
    }
    Some(total)
}

/// In ticks of the clock: fields 14 and 15 of `stat`, whose second may hold anything but ends at the last parenthesis.
fn ticks(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_secs_f64((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

fn resident(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn work_shows_as_processor_time_both_ways() {
        let pid = std::process::id();
        let before = (scheduled(pid), ticks(pid).unwrap());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) || ticks(pid).unwrap() == before.1 {
            std::hint::black_box(0);
        }
        assert!(ticks(pid).unwrap() > before.1);
        if let Some(before) = before.0 {
            let used = scheduled(pid).unwrap().saturating_sub(before);
            assert!(used > Duration::from_millis(1), "{used:?}");
        }
        assert!(cpu_time(&[pid]) > Duration::ZERO && fine_cpu_time(&[pid]) > Duration::ZERO);
        assert_eq!((cpu_time(&[u32::MAX]), fine_cpu_time(&[u32::MAX])), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn this_process_has_memory() {
        let bytes = resident_bytes(&[std::process::id()]);
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
    }
}
