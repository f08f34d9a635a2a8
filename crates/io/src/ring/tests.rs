//! The real kernel: cards here are forked children that only make system calls and are killed.

use super::*;
use crate::memory::{self, Mapping};
use crate::process::{Exit, OWN_EXECUTABLE, Spawn, die_with_parent, inherited};
use crate::wait::{Hint, Interest, SpinTimes, Turn, Waiter};
use std::ffi::CString;
use std::os::unix::fs::OpenOptionsExt;

const BLOCK: usize = 64 << 10;
const SLOTS: usize = 64;

/// A scratch file on the disk that holds the build, removed at once; direct I/O where the disk allows it.
fn scratch() -> std::fs::File {
    let folder = std::env::var_os("CARGO_TARGET_TMPDIR")
        .map_or_else(|| std::env::current_exe().unwrap().parent().unwrap().to_owned(), Into::into);
    let path = folder.join(format!("ring-{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file =
        options.clone().custom_flags(libc::O_DIRECT).open(&path).or_else(|_| options.open(&path)).unwrap();
    std::fs::remove_file(path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, (SLOTS * BLOCK) as u64).unwrap();
    file
}

fn ring() -> Option<Ring> {
    match Ring::create(64) {
        Ok(ring) => Some(ring),
        Err(RingError::Unavailable(error)) => {
            println!("no io_uring here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What agent and card share: buffers, a table for each, and how far the card got.
struct Shared {
    mapping: Mapping,
}

impl Shared {
    fn new() -> Self {
        let fd = memory::create("ring-test", (SLOTS + 2) * BLOCK).unwrap();
        Self::map(fd.as_fd())
    }

    fn map(fd: BorrowedFd<'_>) -> Self {
        let mapping = Mapping::shared(fd).unwrap();
        mapping.populate().unwrap();
        let shared = Self { mapping };
        for slot in 0..SLOTS {
            let iovec = libc::iovec { iov_base: shared.buffer(slot).cast(), iov_len: BLOCK };
            // SAFETY: the table lies in the second page of the live mapping, used by nobody else yet.
            unsafe { shared.table(slot).write(iovec) };
        }
        shared
    }

    fn pushed(&self) -> &AtomicU32 {
        // SAFETY: the first word of the live mapping, only used as an atomic.
        unsafe { &*self.mapping.at::<AtomicU32>(0) }
    }

    fn parameters(&self) -> *mut RingParameters {
        self.mapping.at(64)
    }

    fn table(&self, slot: usize) -> *mut libc::iovec {
        self.mapping.at(BLOCK + slot * size_of::<libc::iovec>())
    }

    fn buffer(&self, slot: usize) -> *mut u8 {
        let first: *mut [u8; BLOCK] = self.mapping.at((slot + 2) * BLOCK);
        first.cast()
    }

    fn fill(&self, value: u8) {
        for slot in 0..SLOTS {
            // SAFETY: nothing is in flight when the tests call this, so the buffer is theirs.
            unsafe { self.buffer(slot).write_bytes(value, BLOCK) };
        }
    }
}

#[test]
fn requests_complete_one_by_one() {
    let (Some(mut ring), shared, file) = (ring(), Shared::new(), scratch()) else { return };
    let fd = file.as_raw_fd();
    shared.fill(7);
    let (buffers, count) = (shared.table(1).cast_const(), 1);
    let steps = [
        (Request::Write { fd, buffers, count, offset: BLOCK as u64 }, BLOCK as i32),
        (Request::SyncData { fd }, 0),
        (Request::Read { fd, buffers, count, offset: 0 }, BLOCK as i32),
        (Request::Read { fd, buffers, count, offset: (SLOTS * BLOCK) as u64 }, 0),
        (Request::SyncData { fd: -1 }, -libc::EBADF),
    ];
    for (number, (request, expected)) in steps.into_iter().enumerate() {
        // SAFETY: the table and its buffer live in `shared`, which outlives the completion.
        unsafe { ring.push(request, number as u64).unwrap() };
        assert_eq!((ring.outstanding(), ring.in_flight()), (1, 0));
        assert_eq!(ring.reap(|_| ()), None);
        ring.submit().unwrap();
        let completion = loop {
            if let Some(completion) = ring.reap(|completion| completion) {
                break completion;
            }
            ring.wait_for(1, Duration::from_millis(100)).unwrap();
        };
        assert_eq!(completion, Completion { user_data: number as u64, result: expected });
        assert_eq!((ring.outstanding(), ring.in_flight()), (0, 0));
    }
}

#[test]
fn no_more_requests_than_completions_fit() {
    let Some(mut ring) = ring() else { return };
    let mut accepted = 0;
    loop {
        // SAFETY: a sync of no file has no buffers.
        match unsafe { ring.push(Request::SyncData { fd: -1 }, accepted) } {
            Ok(()) => accepted += 1,
            Err(Full) if ring.outstanding() == ring.capacity() => break,
            Err(Full) => assert!(ring.submit().unwrap() > 0),
        }
    }
    assert_eq!(accepted, u64::from(ring.capacity()));
    ring.submit().unwrap();
    let drained = ring.drain(Duration::from_secs(5)).unwrap();
    assert_eq!(u64::from(drained.completions), accepted);
    // The kernel has them done by threads of its own, in whatever order.
    let mut done: Vec<u64> = std::iter::from_fn(|| ring.reap(|completion| completion.user_data)).collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..accepted), "each is done once");
}

#[test]
fn attached_ring_goes_on_where_the_first_user_stopped() {
    let Some(mut ring) = ring() else { return };
    let copy = ring.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: a sync of no file has no buffers.
    unsafe { ring.push(Request::SyncData { fd: -1 }, 1).unwrap() };
    ring.submit().unwrap();
    // SAFETY: as above.
    unsafe { ring.push(Request::SyncData { fd: -1 }, 2).unwrap() };
    // SAFETY: the descriptor and the parameters are those of `ring`, which is not used below.
    let mut other = unsafe { Ring::attach(copy, ring.parameters()) }.unwrap();
    let drained = other.drain(Duration::from_secs(5)).unwrap();
    assert_eq!(drained, Drained { discarded: 1, in_flight: drained.in_flight, completions: 1 });
    // SAFETY: as above.
    unsafe { other.push(Request::SyncData { fd: -1 }, 3).unwrap() };
    other.submit().unwrap();
    assert_eq!(other.reap(|completion| completion.user_data), Some(1));
    other.wait_for(1, Duration::from_secs(5)).unwrap();
    assert_eq!(other.reap(|completion| completion.user_data), Some(3));
    assert_eq!(other.reap(|_| ()), None);
}

#[test]
fn a_read_that_never_ends_is_cancelled() {
    let Some(mut ring) = ring() else { return };
    let (reader, _writer) = std::io::pipe().unwrap();
    let shared = Shared::new();
    let request = Request::Read {
        fd: reader.as_raw_fd(),
        buffers: shared.table(0).cast_const(),
        count: 1,
        offset: u64::MAX,
    };
    // SAFETY: the table and its buffer live in `shared`, which outlives the completion.
    unsafe { ring.push(request, 9).unwrap() };
    ring.submit().unwrap();
    assert_eq!(ring.in_flight(), 1);
    let drained = ring.drain(Duration::from_secs(5)).unwrap();
    assert_eq!(drained, Drained { discarded: 0, in_flight: 1, completions: 1 });
    let completion = ring.reap(|completion| completion).unwrap();
    assert_eq!(completion, Completion { user_data: 9, result: -libc::ECANCELED });
}

/// The card: reads, or writes, every slot over and over until it is killed. Only system calls and shared memory.
fn card(ring: &mut Ring, shared: &Shared, fd: RawFd, reading: bool) -> ! {
    loop {
        for slot in 0..SLOTS {
            let (buffers, count, offset) = (shared.table(slot).cast_const(), 1, (slot * BLOCK) as u64);
            let request = if reading {
                Request::Read { fd, buffers, count, offset }
            } else {
                Request::Write { fd, buffers, count, offset }
            };
            // SAFETY: tables and buffers lie in memory the agent keeps until it has drained the ring.
            while unsafe { ring.push(request, slot as u64) }.is_err() {
                let _ = ring.wait_for(1, Duration::from_millis(1));
                while ring.reap(|_| ()).is_some() {}
            }
            shared.pushed().fetch_add(1, Ordering::Relaxed);
            if slot % 8 == 7 {
                let _ = ring.submit();
            }
        }
    }
}

#[test]
fn nothing_is_in_flight_after_the_drain_of_a_killed_card() {
    let (Some(mut ring), shared, file) = (ring(), Shared::new(), scratch()) else { return };
    let (mut caught, mut times) = (0, Vec::new());
    for round in 0..2_000u32 {
        // A machine that does other things may be done with all requests before the drain: then there are more rounds.
        if round >= 120 && caught > 0 {
            break;
        }
        let reading = round % 2 == 0;
        shared.fill(0x11);
        shared.pushed().store(0, Ordering::Relaxed);
        // SAFETY: the child only makes system calls and touches shared memory, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            card(&mut ring, &shared, file.as_raw_fd(), reading);
        }
        let target = 1 + round * 7 % 300;
        // Killed while the kernel works for it: the counters say so from outside, too.
        while shared.pushed().load(Ordering::Relaxed) < target || ring.in_flight() < 8 + round % 32 {
            std::hint::spin_loop();
        }
        // SAFETY: plain system calls on our own child.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
        let start = Instant::now();
        let drained = ring.drain(Duration::from_secs(20)).unwrap();
        assert_eq!(ring.in_flight(), 0);
        if drained.in_flight > 0 {
            caught += 1;
            times.push(start.elapsed());
        }
        // The buffers are ours again. A read still under way would overwrite them, a write change the file.
        shared.fill(0xee);
        let mut reaped = 0;
        while ring.reap(|completion| assert!(completion.user_data < SLOTS as u64)).is_some() {
            reaped += 1;
        }
        assert_eq!(reaped, drained.completions);
        assert_eq!(ring.outstanding(), 0);
        let (watch, expected) = (Instant::now(), vec![0xee; BLOCK]);
        while watch.elapsed() < Duration::from_millis(5) {
            for slot in 0..SLOTS {
                // SAFETY: the buffer lies in the live mapping; nothing writes it unless the test fails.
                let bytes = unsafe { std::slice::from_raw_parts(shared.buffer(slot), BLOCK) };
                assert!(bytes == expected, "a late read wrote buffer {slot} in round {round}");
            }
        }
    }
    assert!(caught > 0, "no kill hit a request in flight: the test shows nothing");
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{caught} kills left requests in flight; drain then: median {median:?}, worst {worst:?}");
}

const ROLE: &str = "CAUSEWAY_IO_TEST_RING_CARD";

/// Not a test in the parent: what the spawned card does.
#[test]
fn card_role() {
    let Ok(parent) = std::env::var(ROLE) else { return };
    // SAFETY: the parent gave these three numbers, and each is taken once.
    let [ring, file, memory] = [10, 11, 12].map(|number| unsafe { inherited(number) }.unwrap());
    die_with_parent(parent.parse().unwrap()).unwrap();
    let shared = Shared::map(memory.as_fd());
    // SAFETY: the parent wrote the parameters of this ring there and leaves it alone while this process lives.
    let mut ring = unsafe { Ring::attach(ring, shared.parameters().read()) }.unwrap();
    card(&mut ring, &shared, file.as_raw_fd(), false);
}

#[test]
fn spawned_cards_take_the_ring_over_from_each_other() {
    let (Some(mut ring), file) = (ring(), scratch()) else { return };
    let memory = memory::create("ring-test", (SLOTS + 2) * BLOCK).unwrap();
    let shared = Shared::map(memory.as_fd());
    // SAFETY: nobody else uses the memory yet.
    unsafe { shared.parameters().write(ring.parameters()) };
    let arguments = ["io-test", "--exact", "ring::tests::card_role", "--nocapture", "--test-threads=1"]
        .map(|argument| CString::new(argument).unwrap());
    let environment = [CString::new(format!("{ROLE}={}", std::process::id())).unwrap()];
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let descriptors = [(ring.as_fd(), 10), (file.as_fd(), 11), (memory.as_fd(), 12), (null.as_fd(), 1)]
        .map(|(fd, number)| (fd.try_clone_to_owned().unwrap(), number));
    let descriptors = descriptors.each_ref().map(|(fd, number)| (fd.as_fd(), *number));
    for round in 1..=10u32 {
        let before = shared.pushed().load(Ordering::Relaxed);
        let spawn = Spawn {
            program: OWN_EXECUTABLE,
            arguments: &arguments,
            environment: &environment,
            descriptors: &descriptors,
        };
        let mut child = spawn.start().unwrap();
        while shared.pushed().load(Ordering::Relaxed) < before + round * 37 {
            assert_eq!(child.try_reap().unwrap(), None, "the card ended by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        assert_eq!(child.reap().unwrap(), Exit::Signal(libc::SIGKILL));
        let drained = ring.drain(Duration::from_secs(20)).unwrap();
        assert_eq!(ring.in_flight(), 0);
        for _ in 0..drained.completions {
            let user_data = ring.reap(|completion| completion.user_data).unwrap();
            assert!(user_data < SLOTS as u64);
        }
        assert_eq!(ring.outstanding(), 0);
    }
}

#[test]
fn a_completion_wakes_a_sleeper() {
    let Some(mut ring) = ring() else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    let shared = Shared::new();
    let mut waiter = Waiter::new(SpinTimes::default()).unwrap();
    waiter.register(ring.as_fd(), 3, Interest::READ).unwrap();
    let (fd, buffers) = (reader.as_raw_fd(), shared.table(0).cast_const());
    // SAFETY: the table and its buffer live in `shared`, which outlives the completion.
    unsafe { ring.push(Request::Read { fd, buffers, count: 1, offset: u64::MAX }, 1).unwrap() };
    ring.submit().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| rustix::io::write(&writer, b"x").unwrap());
        while waiter.idle(crate::card::now(), Hint::Idle, || Some(Duration::from_secs(10))).unwrap()
            == Turn::Spun
        {}
    });
    assert_eq!(waiter.ready().next().map(|ready| ready.token), Some(3));
    assert_eq!(ring.reap(|completion| completion.result), Some(1));
}
