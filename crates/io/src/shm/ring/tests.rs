use std::os::fd::AsFd;

use super::*;
use crate::memory;

type Writer = super::Writer<PathSize>;
type Reader = super::Reader<PathSize>;

fn memory() -> Arc<Mapping> {
    let fd = memory::create("test-ring", RING_BYTES).unwrap();
    Arc::new(Mapping::shared(fd.as_fd()).unwrap())
}

fn ends() -> (Writer, Reader, Arc<Mapping>) {
    let memory = memory();
    (Writer::new(Arc::clone(&memory), 0), Reader::new(Arc::clone(&memory), 0), memory)
}

fn write(writer: &mut Writer, bytes: &[u8]) -> bool {
    let Some(room) = writer.room() else { return false };
    room[..bytes.len()].copy_from_slice(bytes);
    writer.publish(bytes.len());
    true
}

fn frame(number: u64) -> Vec<u8> {
    let len = 1 + (number as usize * 7919) % FRAME_MAX;
    (0..len).map(|at| (number as usize + at) as u8).collect()
}

#[test]
fn frames_arrive_whole_in_order_and_only_once() {
    const FRAMES: u64 = 20_000;
    let (writer, mut reader, _memory) = ends();
    // SAFETY of the test: the writer is used by one thread alone.
    struct Sendable(Writer);
    // SAFETY: a writer is plain pointers into a mapping that it keeps.
    unsafe impl Send for Sendable {}
    let sendable = Sendable(writer);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let Sendable(mut writer) = { sendable };
            for number in 0..FRAMES {
                while !write(&mut writer, &frame(number)) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < FRAMES {
            let take = |bytes: &mut [u8]| {
                assert_eq!(bytes, frame(next), "frame {next}");
                next += 1;
            };
            if reader.read(64, take).unwrap() == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert!(reader.is_empty());
}

/// Whoever sleeps is woken, whatever the two do at the same time: the reader sleeps for good if that is wrong.
#[test]
fn nobody_sleeps_while_something_has_come() {
    const FRAMES: u64 = 50_000;
    let (writer, mut reader, _memory) = ends();
    struct Sendable(Writer);
    // SAFETY: a writer is plain pointers into a mapping that it keeps; one thread alone uses it.
    unsafe impl Send for Sendable {}
    let sendable = Sendable(writer);
    let (ring, rung) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let Sendable(mut writer) = { sendable };
            for number in 0..FRAMES {
                while !write(&mut writer, &number.to_le_bytes()) {
                    std::thread::yield_now();
                }
                if writer.has_to_wake() {
                    ring.send(()).unwrap();
                }
            }
        });
        let mut next = 0;
        while next < FRAMES {
            reader.read(64, |_| next += 1).unwrap();
            if next < FRAMES && reader.prepare_sleep() {
                rung.recv_timeout(std::time::Duration::from_secs(20)).expect("nobody has woken the reader");
            }
            reader.wake();
        }
    });
}

#[test]
fn what_was_not_published_dies_with_its_writer() {
    let (mut writer, mut reader, memory) = ends();
    assert!(write(&mut writer, b"one"));
    writer.room().unwrap()[..4].copy_from_slice(b"lost");
    let mut writer = Writer::new(Arc::clone(&memory), 0);
    assert!(write(&mut writer, b"two"));
    let mut seen = Vec::new();
    reader.read(1, |bytes| seen.push(bytes.to_vec())).unwrap();
    let mut reader = Reader::new(memory, 0);
    reader.read(9, |bytes| seen.push(bytes.to_vec())).unwrap();
    assert_eq!(seen, [b"one".to_vec(), b"two".to_vec()]);
}

#[test]
fn a_full_ring_refuses_and_a_reader_is_woken_once() {
    let (mut writer, mut reader, _memory) = ends();
    assert!(reader.prepare_sleep());
    let large = vec![7; FRAME_MAX];
    let mut written = 0;
    while write(&mut writer, &large) {
        written += 1;
    }
    assert!(written >= PathSize::DATA / FRAME_MAX - 2, "{written}");
    assert!(writer.has_to_wake() && !writer.has_to_wake());
    assert!(!reader.prepare_sleep());
    reader.wake();
    assert!(!writer.has_to_wake());
    assert_eq!(reader.read(99, |bytes| assert_eq!(bytes, large)), Ok(written));
    assert!(write(&mut writer, &large));
}

#[test]
fn nonsense_of_the_other_end_is_noticed() {
    for (written, len) in
        [(64_u64, 0_u32), (64, 57), (128, 1 << 30), (192, SKIP), (u64::MAX, 3), (1 << 40, 4), (13, 4), (7, 1)]
    {
        let (_, mut reader, memory) = ends();
        // SAFETY: the positions lie at the beginning of the mapping and are atomics.
        let positions = unsafe { &*memory.at::<Positions>(0) };
        let word = memory.at::<AtomicU32>(size_of::<Positions>());
        // SAFETY: the first word of the data, which is atomic.
        unsafe { (*word).store(len, Ordering::Relaxed) };
        positions.written.0.store(written, Ordering::Relaxed);
        assert_eq!(reader.read(9, |_| panic!("this is no frame")), Err(InvalidFrame), "{written} {len}");
    }
}

#[test]
fn a_writer_goes_on_whatever_the_reader_claims() {
    let (mut writer, _, memory) = ends();
    // SAFETY: the positions lie at the beginning of the mapping and are atomics.
    let positions = unsafe { &*memory.at::<Positions>(0) };
    for read in [77, u64::MAX, 1 << 63, 64] {
        positions.read.0.store(read, Ordering::Relaxed);
        let _ = write(&mut writer, b"x");
    }
    for written in [77, u64::MAX, 1 << 63, PathSize::DATA as u64 - 64] {
        positions.written.0.store(written, Ordering::Relaxed);
        positions.read.0.store(rounded(written), Ordering::Relaxed);
        let mut writer = Writer::new(Arc::clone(&memory), 0);
        assert!(write(&mut writer, &vec![1; FRAME_MAX]));
    }
}

proptest::proptest! {
    /// Any bytes at all in the memory, and a reader that is let loose on them.
    #[test]
    fn a_reader_survives_any_memory(
        written in proptest::num::u64::ANY,
        read in proptest::num::u64::ANY,
        near in 0_u64..1 << 20,
        words in proptest::collection::vec((0_usize..PathSize::DATA / UNIT, proptest::num::u32::ANY), 0..50),
    ) {
        let memory = memory();
        // SAFETY: the positions lie at the beginning of the mapping and are atomics.
        let positions = unsafe { &*memory.at::<Positions>(0) };
        for (at, len) in words {
            let word = memory.at::<AtomicU32>(size_of::<Positions>() + at * UNIT);
            let len = if len.is_multiple_of(3) { len } else { len % (FRAME_MAX as u32 + 9) };
            // SAFETY: a word of the data, which is atomic.
            unsafe { (*word).store(len, Ordering::Relaxed) };
        }
        for (written, read) in [(written, read), (read.wrapping_add(near), read), (rounded(near), 0)] {
            positions.written.0.store(written, Ordering::Relaxed);
            positions.read.0.store(read, Ordering::Relaxed);
            let mut reader = Reader::new(Arc::clone(&memory), 0);
            for _ in 0..4 {
                let _ = reader.read(100, |frame| assert!((1..=FRAME_MAX).contains(&frame.len())));
            }
            let mut writer = Writer::new(Arc::clone(&memory), 0);
            let _ = write(&mut writer, &[1; 100]);
        }
    }
}
