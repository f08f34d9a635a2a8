//! A child here is this very test program, told by a variable to play the child in [`child_role`].

use super::*;
use std::io::Read;

const ROLE: &str = "CAUSEWAY_IO_TEST_ROLE";

fn arguments() -> Vec<CString> {
    ["io-test", "--exact", "process::tests::child_role", "--nocapture", "--test-threads=1"]
        .iter()
        .map(|argument| CString::new(*argument).unwrap())
        .collect()
}

fn spawn(role: &str, descriptors: &[(BorrowedFd<'_>, RawFd)]) -> Child {
    let environment = [CString::new(format!("{ROLE}={role}")).unwrap()];
    Spawn { program: OWN_EXECUTABLE, arguments: &arguments(), environment: &environment, descriptors }
        .start()
        .unwrap()
}

/// Not a test in the parent: what the spawned children do.
#[test]
fn child_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("list") => {
            let mut numbers: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
                .collect();
            numbers.sort_unstable();
            // The listing itself has one descriptor open; it took the lowest free number.
            std::fs::write("/proc/self/fd/7", format!("{numbers:?}")).unwrap();
            std::process::exit(42);
        }
        Ok("sleep") => {
            rustix::io::write(rustix::stdio::stdout(), b"x").unwrap();
            loop {
                rustix::event::pause();
            }
        }
        Ok("grandparent") => {
            // SAFETY: the test's parent gave number 5 to this process, and it is taken here only.
            let pipe = unsafe { inherited(5) }.unwrap();
            let child = spawn("orphan", &[(pipe.as_fd(), 5)]);
            std::mem::forget(child);
            loop {
                rustix::event::pause();
            }
        }
        Ok("orphan") => {
            let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
            assert_eq!(die_with_parent(parent + 1).unwrap_err().raw_os_error(), Some(libc::ESRCH));
            die_with_parent(parent).unwrap();
            // SAFETY: the test's parent gave number 5 to this process, and it is taken here only.
            let pipe = unsafe { inherited(5) }.unwrap();
            rustix::io::write(&pipe, b"ready").unwrap();
            loop {
                rustix::event::pause();
            }
        }
        _ => {}
    }
}

#[test]
fn child_gets_exactly_the_listed_descriptors() {
    let (reader, writer) = std::io::pipe().unwrap();
    let extra = std::fs::File::open("/dev/zero").unwrap();
    // Inheritable on purpose: it must not arrive all the same.
    // SAFETY: plain dup of an open descriptor; the result is leaked for the life of the test.
    assert!(unsafe { libc::dup(extra.as_raw_fd()) } > 0);
    let mut child = spawn("list", &[(writer.as_fd(), 7), (extra.as_fd(), 9)]);
    drop(writer);
    let mut text = String::new();
    std::io::BufReader::new(reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "[0, 1, 2, 3, 7, 9]");
    assert_eq!(child.reap().unwrap(), Exit::Status(42));
    assert_eq!(child.try_reap().unwrap(), Some(Exit::Status(42)));
}

#[test]
fn sources_may_have_each_others_numbers() {
    let (one, two) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (a, b) = (one.1.as_raw_fd(), two.1.as_raw_fd());
    let script = CString::new(format!("echo one >/proc/self/fd/{b}; echo two >/proc/self/fd/{a}")).unwrap();
    let arguments = [c"sh".to_owned(), c"-c".to_owned(), script];
    let descriptors = [(one.1.as_fd(), b), (two.1.as_fd(), a)];
    let mut child =
        Spawn { program: c"/bin/sh", arguments: &arguments, environment: &[], descriptors: &descriptors }
            .start()
            .unwrap();
    assert_eq!(child.reap().unwrap(), Exit::Status(0));
    let mut buffer = [0; 8];
    let length = (&one.0).read(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"one\n");
    let length = (&two.0).read(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"two\n");
}

#[test]
fn killed_child_is_seen_and_reaped() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = spawn("sleep", &[(writer.as_fd(), 1)]);
    let mut byte = [0];
    (&reader).read_exact(&mut byte).unwrap();
    assert_eq!(child.try_reap().unwrap(), None);
    child.kill().unwrap();
    let mut fds = [rustix::event::PollFd::new(&child, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
    assert_eq!(child.reap().unwrap(), Exit::Signal(libc::SIGKILL));
    child.kill().unwrap();
}

#[test]
fn who_lets_go_of_a_child_leaves_nobody_behind() {
    let (reader, writer) = std::io::pipe().unwrap();
    let child = spawn("sleep", &[(writer.as_fd(), 1)]);
    let mut byte = [0];
    (&reader).read_exact(&mut byte).unwrap();
    let entry = format!("/proc/{}", child.pid());
    drop(child);
    assert!(!std::path::Path::new(&entry).exists(), "it was killed and reaped");
}

#[test]
fn missing_program_is_an_error() {
    let spawn =
        Spawn { program: c"/nonexistent/program", arguments: &[], environment: &[], descriptors: &[] };
    assert_eq!(spawn.start().unwrap_err().raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn child_dies_with_its_parent() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut parent = spawn("grandparent", &[(writer.as_fd(), 5)]);
    drop(writer);
    let mut ready = [0; 5];
    (&reader).read_exact(&mut ready).unwrap();
    parent.kill().unwrap();
    parent.reap().unwrap();
    // End of file comes only when the orphan, the last holder of the pipe, is gone too.
    assert_eq!((&reader).read(&mut ready).unwrap(), 0);
}

/// After a fork the pages of the parent are copied when they are written: each is a fault.
#[test]
fn a_spawn_copies_nothing_of_the_agent() {
    let page = rustix::param::page_size();
    const BYTES: usize = 64 << 20;
    let mut agent: Vec<u8> = Vec::with_capacity(BYTES);
    let first = agent.as_mut_ptr().align_offset(page);
    // SAFETY: these pages lie within the allocation, and their content stays what it is. That huge ones are not to be
    // used is only a wish, and a kernel that has none says no.
    unsafe {
        let begin = agent.as_mut_ptr().add(first).cast();
        libc::madvise(begin, (BYTES - first) / page * page, libc::MADV_NOHUGEPAGE);
    }
    agent.resize(BYTES, 1);
    let arguments = [c"true".to_owned()];
    let spawn = Spawn { program: c"/bin/true", arguments: &arguments, environment: &[], descriptors: &[] };
    let mut faults_after_spawn = || {
        spawn.start().unwrap().reap().unwrap();
        let before = faults();
        agent.iter_mut().step_by(page).for_each(|byte| *byte ^= 1);
        std::hint::black_box(&agent);
        faults() - before
    };
    // Other tests fork meanwhile, but not each time, and a busy kernel unmaps some pages by itself. A copy would be a
    // fault for each of 16,384 pages.
    let few = (BYTES / page / 16) as i64;
    assert!((0..100).any(|_| faults_after_spawn() < few), "it copies the agent");
}

/// Page faults of this thread so far that needed no disk.
fn faults() -> i64 {
    // SAFETY: any bytes are a `rusage`, and the call writes one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn a_peer_that_cannot_be_seen_is_nobody() {
    // Of a socket without a peer the kernel says 0, as of one in a foreign namespace.
    let alone = std::os::unix::net::UnixDatagram::unbound().unwrap();
    assert_eq!(peer_pid(alone.as_fd()).unwrap(), None);
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(peer_pid(one.as_fd()).unwrap(), Some(std::process::id() as i32));
}
