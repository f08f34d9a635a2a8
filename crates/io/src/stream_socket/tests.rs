//! The users of the stream are forked children that are killed at random.

use super::*;
use crate::memory::{self, Mapping};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Room for the stream's last bytes, so that nothing checked late is overwritten: more than a kill takes.
const WINDOW: usize = 1 << 20;
const KILLS: u32 = 300;

fn byte_at(position: u64) -> u8 {
    let mut x = position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    (x >> 8) as u8
}

struct Shared {
    mapping: Mapping,
}

impl Shared {
    fn new() -> Self {
        let fd = memory::create("stream-test", WINDOW + 4096).unwrap();
        let mapping = Mapping::shared(fd.as_fd()).unwrap();
        mapping.populate().unwrap();
        Self { mapping }
    }

    fn account(&self) -> &StreamAccount {
        // SAFETY: the account lies in the live mapping, and its zero bytes are a value.
        unsafe { &*self.mapping.at::<StreamAccount>(0) }
    }

    /// What the parent has checked, so that the receiving child does not overrun it.
    fn checked(&self) -> &AtomicU64 {
        // SAFETY: a word of the live mapping, only used as an atomic.
        unsafe { &*self.mapping.at::<AtomicU64>(1024) }
    }

    /// The memory of the stream's bytes from `position` to the window's end or `most`.
    #[allow(clippy::mut_from_ref)]
    fn bytes(&self, position: u64, most: usize) -> &mut [u8] {
        let offset = (position % WINDOW as u64) as usize;
        let length = most.min(WINDOW - offset);
        // SAFETY: the range lies in the live mapping; child and parent use ranges apart from each other's.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.at::<u8>(4096 + offset), length) }
    }
}

/// Forks `child`, lets it move some bytes and then run for a while that differs from round to round, kills and reaps
/// it.
fn kill_at_work(round: u32, account: &StreamAccount, child: impl Fn()) {
    let before = account.position();
    // SAFETY: the children only make system calls and touch shared memory, and never return.
    let pid = unsafe { crate::process::fork_with_our_descriptors() };
    if pid == 0 {
        loop {
            child();
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while account.position() == before {
        assert!(Instant::now() < deadline, "the child moves nothing");
        std::thread::yield_now();
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_nanos(u64::from(round * 7919 % 300_000)) {
        std::hint::spin_loop();
    }
    // SAFETY: plain system calls on our own child.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, ptr::null_mut(), 0);
    }
}

#[test]
fn successor_receives_on_at_the_exact_byte() {
    let shared = Shared::new();
    let (near, far) = UnixStream::pair().unwrap();
    let writer = std::thread::spawn({
        let mut far = far.try_clone().unwrap();
        move || {
            let mut position = 0u64;
            loop {
                let length = 1 + (byte_at(position) as usize) * 13;
                let chunk: Vec<u8> = (position..position + length as u64).map(byte_at).collect();
                if far.write_all(&chunk).is_err() {
                    return;
                }
                position += length as u64;
            }
        }
    });
    let account = shared.account();
    for round in 0..KILLS {
        kill_at_work(round, account, || {
            let position = account.position();
            let room = WINDOW as u64 - (position - shared.checked().load(Ordering::Acquire));
            if room > 4000 {
                let (one, two) = shared.bytes(position, 4000).split_at_mut(1);
                let _ = receive(near.as_fd(), account, &mut [IoSliceMut::new(one), IoSliceMut::new(two)]);
            }
        });
        let (from, to) = (shared.checked().load(Ordering::Relaxed), account.position());
        for position in from..to {
            assert_eq!(shared.bytes(position, 1)[0], byte_at(position), "byte {position}, round {round}");
        }
        shared.checked().store(to, Ordering::Release);
    }
    println!("{} bytes over {KILLS} kills", account.position());
    drop(near);
    far.shutdown(std::net::Shutdown::Both).unwrap();
    writer.join().unwrap();
}

#[test]
fn successor_sends_on_at_the_exact_byte() {
    let shared = Shared::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    // The bytes repeat with the window: all are in place from the start.
    for position in 0..WINDOW as u64 {
        shared.bytes(position, 1)[0] = byte_at(position);
    }
    let reader = std::thread::spawn(move || {
        let (mut position, mut buffer) = (0u64, vec![0; 10_000]);
        loop {
            let length = far.read(&mut buffer).unwrap();
            if length == 0 {
                return position;
            }
            for byte in &buffer[..length] {
                assert_eq!(*byte, byte_at(position % WINDOW as u64), "byte {position}");
                position += 1;
            }
        }
    });
    let account = shared.account();
    for round in 0..KILLS {
        kill_at_work(round, account, || {
            let position = account.position();
            let length = 1 + byte_at(position) as usize * 29;
            let _ = send(near.as_fd(), account, &[IoSlice::new(shared.bytes(position, length))]);
        });
    }
    drop(near);
    assert_eq!(reader.join().unwrap(), account.position());
    println!("{} bytes over {KILLS} kills", account.position());
}

#[test]
fn every_outcome_has_a_name() {
    let account = StreamAccount::default();
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    let mut take = |near: &UnixStream| receive(near.as_fd(), &account, &mut [IoSliceMut::new(&mut buffer)]);
    assert!(matches!(take(&near), StreamProgress::WouldBlock));
    far.write_all(b"0123456789").unwrap();
    assert!(matches!(take(&near), StreamProgress::Progressed(8)));
    assert!(matches!(take(&near), StreamProgress::Progressed(2)));
    assert!(matches!(take(&near), StreamProgress::WouldBlock));
    assert_eq!(account.position(), 10);

    let sending = StreamAccount::default();
    let large = vec![0; 1 << 20];
    let put = |near: &UnixStream| send(near.as_fd(), &sending, &[IoSlice::new(&large)]);
    let mut sent = 0;
    while let StreamProgress::Progressed(bytes) = put(&near) {
        sent += bytes as u64;
    }
    assert!(sent > 0 && sending.position() == sent);
    assert!(matches!(put(&near), StreamProgress::WouldBlock));
    drop(far);
    // A child that another test has just forked may hold the far end for a moment longer.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut ended = take(&near);
    while matches!(ended, StreamProgress::WouldBlock) && Instant::now() < deadline {
        std::thread::yield_now();
        ended = take(&near);
    }
    assert!(matches!(ended, StreamProgress::Closed));
    assert!(matches!(put(&near), StreamProgress::Closed));
    assert_eq!((account.position(), sending.position()), (10, sent));

    let file = std::fs::File::open("/dev/null").unwrap();
    let failed = receive(file.as_fd(), &account, &mut [IoSliceMut::new(&mut [0; 1])]);
    assert!(matches!(failed, StreamProgress::Failed(error) if error.raw_os_error() == Some(libc::ENOTSOCK)));
    account.reset();
    assert_eq!(account.position(), 0);
}

#[test]
fn position_is_the_same_after_each_store() {
    let account = StreamAccount::default();
    let mut stores = 0;
    for round in 1..=5u64 {
        // What the kernel does: it adds to the current slot, which then is not zero.
        let slot = account.fresh(|| {
            stores += 1;
            assert_eq!(account.position(), (round - 1) * 1000);
        });
        assert_eq!(slot.moved().load(Ordering::Relaxed), 0);
        slot.moved().store(1000, Ordering::Relaxed);
        assert_eq!(account.position(), round * 1000);
    }
    assert_eq!(stores, 4 * 3);
}
