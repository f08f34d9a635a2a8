//! How long the scheduler lets a thread run at a time.
//!
//! A card yields at every idle turn ([`crate::wait`]), and is woken for work of a few microseconds. Linux 6.12 and
//! later take the time slice that a thread asks for as the deadline it is scheduled by: who yields is put off by the
//! rest of it, and who wakes up with a shorter one goes first. With the default of about 3 ms a card among other busy
//! threads, such as virtual processors, waits for most of that; a short one gives it no more time in all, only sooner.

use std::io;

/// The shortest that Linux takes.
const SHORT_NS: u64 = 100_000;

/// Asks for short slices for this thread, and those that it starts from now on. Everything else about its scheduling
/// stays.
///
/// # Errors
/// What the system call returned. Kernels before 6.12 take the wish and do nothing about it.
pub(crate) fn ask_for_short() -> io::Result<()> {
    let mut attributes = attributes()?;
    // The other policies have no slices, or use the field for something else.
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.sched_runtime = SHORT_NS;
    // SAFETY: the structure is valid, says its own size, and is only read.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// How this thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: it consists of integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes there.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    Ok(attributes)
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_get_shorter_and_the_rest_stays() {
        // In a thread of its own: the other tests keep theirs.
        let (before, after) = std::thread::spawn(|| {
            rustix::process::setpriority_process(None, 3).unwrap();
            let before = attributes().unwrap();
            ask_for_short().unwrap();
            (before, attributes().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, 3));
        // Kernels without slices of one's own say 0.
        assert_eq!(after.sched_runtime, if before.sched_runtime == 0 { 0 } else { SHORT_NS });
    }
}
