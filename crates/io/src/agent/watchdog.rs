//! What the kernel says of a card, for [`node::agent`]'s watchdog.

use std::time::Duration;

use node::agent::{Process, State};

/// What the kernel says of the first thread of a process that has not been reaped.
pub(super) fn ask(pid: i32) -> Option<Process> {
    let thread = format!("/proc/{pid}/task/{pid}");
    let stat = std::fs::read_to_string(format!("{thread}/stat")).ok()?;
    // The 2nd field is a name in brackets, which may have any characters (proc_pid_stat(5)).
    let state = match stat.rsplit_once(')')?.1.trim_start().bytes().next()? {
        b'R' => State::Running,
        b'S' => State::Sleeping,
        b'D' => State::InKernel,
        b'T' | b't' => State::Stopped,
        _ => State::Other,
    };
    let status = std::fs::read_to_string(format!("{thread}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    let traced = tracer.is_some_and(|pid| pid.trim() != "0");
    let times = std::fs::read_to_string(format!("{thread}/schedstat")).unwrap_or_default();
    let mut times = times.split_ascii_whitespace().map(|field| field.parse().map(Duration::from_nanos));
    // A kernel without these times says nothing of who spins: then nobody is killed for that.
    let mut time = || times.next().and_then(Result::ok).unwrap_or_default();
    Some(Process { state, traced, used: time(), waited: time() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_a_thread() {
        let ours = rustix::process::getpid().as_raw_nonzero().get();
        let found = ask(ours).unwrap();
        assert!(!found.traced && found.state != State::Stopped, "{found:?}");
        // A process that was reaped is none.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        assert_eq!(ask(pid), None);
    }
}
