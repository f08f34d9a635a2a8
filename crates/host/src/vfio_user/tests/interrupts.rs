//! DEVICE_SET_IRQS, signals, masks and pending bits.

use spec::vfio_user::{Command, Errno};

use super::world::{Input, PENDING, World, everywhere};
use super::*;

const NONE: u32 = 1;
const BOOL: u32 = 2;
const EVENTFD: u32 = 4;
const MASK: u32 = 8;
const UNMASK: u32 = 16;
const TRIGGER: u32 = 32;
const INTX: u32 = 0;
const MSIX: u32 = 2;

fn set(flags: u32, index: u32, start: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let payload = [&words(&[20 + data.len() as u32, flags, index, start, count]), data].concat();
    message(3, Command::DEVICE_SET_IRQS, &payload)
}

fn done() -> Vec<u8> {
    reply(3, Command::DEVICE_SET_IRQS, b"")
}

fn refused(errno: Errno) -> Vec<u8> {
    error(3, Command::DEVICE_SET_IRQS, errno)
}

fn signals(world: &mut World<'_>) -> Vec<u32> {
    let mut signals: Vec<u32> = std::mem::take(&mut world.signals).iter().map(|id| id.0).collect();
    // A successor signals everything once more.
    signals.sort_unstable();
    signals.dedup();
    signals
}

/// Whether these have been signalled, and others only by a successor.
fn assert_signalled(world: &mut World<'_>, expected: &[u32]) {
    let lives = world.lives;
    let seen = signals(world);
    assert!(expected.iter().all(|signal| seen.contains(signal)), "{seen:?} lacks some of {expected:?}");
    assert!(lives > 1 || seen == expected, "{seen:?} is more than {expected:?}");
}

#[test]
fn vectors_are_set_up_and_signalled() {
    everywhere(|world| {
        ready(world);
        assert_eq!(world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 3, b""), &[10, 11, 12]), done());
        assert_eq!(std::mem::take(&mut world.vectors), [(0, true), (1, true), (2, true)]);
        assert_eq!(world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 7, 1, b""), &[17]), done());
        assert_signalled(world, &[]);
        for (vector, descriptor) in [(0, 10), (2, 12), (7, 17)] {
            world.input(Input::Interrupt(vector));
            assert_signalled(world, &[descriptor]);
        }
        assert_eq!(world.open.len(), 4);
        // Another descriptor, none, and none for all.
        assert_eq!(world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 1, 1, b""), &[21]), done());
        assert!(!world.open.contains(&11));
        assert_eq!(world.exchange(&set(EVENTFD | TRIGGER, MSIX, 0, 1, b"")), done());
        assert_eq!(world.exchange(&set(NONE | TRIGGER, MSIX, 0, 0, b"")), done());
        assert_eq!(world.vectors, [(7, true), (0, false), (1, false), (2, false), (7, false)]);
        assert!(world.open.is_empty() && world.lost == 0);
    });
}

#[test]
fn what_nobody_can_hear_is_kept() {
    everywhere(|world| {
        ready(world);
        world.input(Input::Interrupt(1));
        world.input(Input::Interrupt(200));
        assert_signalled(world, &[]);
        world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 2, b""), &[10, 11]);
        assert_signalled(world, &[11]);
        assert_eq!(world.exchange(&set(NONE | MASK, MSIX, 0, 2, b"")), done());
        signals(world);
        world.input(Input::Interrupt(0));
        world.input(Input::Interrupt(0));
        let pending = world.exchange(&read(2, 0, PENDING.into(), 1));
        assert!(world.lives > 1 || pending[32] == 1);
        assert!(signals(world).is_empty());
        assert_eq!(world.exchange(&set(BOOL | UNMASK, MSIX, 0, 2, &[1, 0])), done());
        assert_signalled(world, &[10]);
        world.input(Input::Interrupt(1));
        assert!(!signals(world).contains(&11));
        assert_eq!(world.exchange(&set(NONE | UNMASK, MSIX, 1, 1, b"")), done());
        assert_signalled(world, &[11]);
        let strays = world.session.counters().stray_interrupts.get();
        assert!((1..=world.lives as u64).contains(&strays));
    });
}

#[test]
fn a_successor_signals_each_enabled_vector_once() {
    everywhere(|world| {
        ready(world);
        world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 3, b""), &[10, 11, 12]);
        world.exchange(&set(NONE | MASK, MSIX, 1, 1, b""));
        signals(world);
        world.input(Input::SignalAll);
        assert_eq!(signals(world), [10, 12]);
        world.exchange(&set(NONE | UNMASK, MSIX, 1, 1, b""));
        assert_signalled(world, &[11]);
    });
}

#[test]
fn what_changes_its_mind_in_one_step_loses_nothing() {
    everywhere(|world| {
        ready(world);
        world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 1, b""), &[10]);
        world.exchange(&set(NONE | MASK, MSIX, 0, 1, b""));
        world.input(Input::Interrupt(0));
        signals(world);
        let both = [set(NONE | UNMASK, MSIX, 0, 1, b""), set(NONE | MASK, MSIX, 0, 1, b"")];
        assert_eq!(world.exchange(&both.concat()), [done(), done()].concat());
        assert!(signals(world).is_empty());
        let both = [set(NONE | UNMASK, MSIX, 0, 1, b""), set(NONE | TRIGGER, MSIX, 0, 0, b"")];
        assert_eq!(world.exchange(&both.concat()), [done(), done()].concat());
        assert!(signals(world).is_empty());
        world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 1, b""), &[11]);
        assert_signalled(world, &[11]);
    });
}

#[test]
fn a_client_triggers_interrupts() {
    everywhere(|world| {
        ready(world);
        world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 3, b""), &[10, 11, 12]);
        signals(world);
        assert_eq!(world.exchange(&set(NONE | TRIGGER, MSIX, 1, 2, b"")), done());
        assert_signalled(world, &[11, 12]);
        assert_eq!(world.exchange(&set(BOOL | TRIGGER, MSIX, 0, 3, &[1, 0, 0])), done());
        assert_signalled(world, &[10]);
        assert_eq!(world.exchange(&set(NONE | TRIGGER, MSIX, 5, 1, b"")), done());
        assert_signalled(world, &[]);
    });
}

#[test]
fn the_pin_masks_itself() {
    everywhere(|world| {
        ready(world);
        assert_eq!(world.exchange_with(&set(EVENTFD | TRIGGER, INTX, 0, 1, b""), &[9]), done());
        world.input(Input::Pin(true));
        assert_signalled(world, &[9]);
        world.input(Input::Pin(true));
        assert_signalled(world, &[]);
        assert_eq!(world.exchange(&set(NONE | UNMASK, INTX, 0, 1, b"")), done());
        assert_signalled(world, &[9]);
        world.input(Input::Pin(false));
        signals(world);
        assert_eq!(world.exchange(&set(NONE | UNMASK, INTX, 0, 1, b"")), done());
        assert!(signals(world).is_empty());
        assert_eq!(world.exchange(&set(NONE | TRIGGER, INTX, 0, 0, b"")), done());
        assert!(world.open.is_empty());
    });
}

#[test]
fn nonsense_is_refused_and_its_descriptors_are_closed() {
    everywhere(|world| {
        ready(world);
        let cases = [
            (set(EVENTFD | TRIGGER, MSIX, 0, 3, b""), vec![1, 2], Errno::EINVAL),
            (set(EVENTFD | TRIGGER, MSIX, 6, 3, b""), vec![1, 2, 3], Errno::EINVAL),
            (set(EVENTFD | TRIGGER, MSIX, u32::MAX, 2, b""), vec![1, 2], Errno::EINVAL),
            (set(EVENTFD | TRIGGER, 3, 0, 1, b""), vec![1], Errno::EINVAL),
            (set(EVENTFD | TRIGGER, 4, 0, 1, b""), vec![1], Errno::EINVAL),
            (set(EVENTFD | TRIGGER, MSIX, 0, 0, b""), vec![], Errno::EINVAL),
            (set(EVENTFD | TRIGGER, MSIX, 0, 1, b"abcd"), vec![1], Errno::EINVAL),
            (set(EVENTFD | UNMASK, INTX, 0, 1, b""), vec![1], Errno::EOPNOTSUPP),
            (set(EVENTFD | NONE | TRIGGER, MSIX, 0, 1, b""), vec![1], Errno::EINVAL),
            (set(EVENTFD | MASK | TRIGGER, MSIX, 0, 1, b""), vec![1], Errno::EINVAL),
            (set(BOOL | MASK, MSIX, 0, 2, &[1]), vec![], Errno::EINVAL),
            (set(NONE | MASK, MSIX, 0, 0, b""), vec![], Errno::EINVAL),
            (set(NONE | MASK, MSIX, 0, 9, b""), vec![], Errno::EINVAL),
            (set(0x80 | NONE | MASK, MSIX, 0, 1, b""), vec![], Errno::EINVAL),
            (message(3, Command::DEVICE_SET_IRQS, &words(&[20, EVENTFD | TRIGGER])), vec![], Errno::EINVAL),
        ];
        for (bytes, descriptors, errno) in cases {
            assert_eq!(world.exchange_with(&bytes, &descriptors), refused(errno), "{bytes:?}");
            assert!(world.open.is_empty());
        }
        assert!(world.vectors.is_empty() && world.session.interrupts.poll_change().is_none());
    });
}

#[test]
fn descriptors_where_none_belong_are_the_kernels_to_close() {
    everywhere(|world| {
        ready(world);
        let answer = world.exchange_with(&set(NONE | MASK, MSIX, 0, 1, b""), &[1, 2]);
        assert_eq!((answer, world.lost), (done(), 2));
        assert_eq!(world.exchange_with(&read(2, 0, 0, 4), &[3]), read_reply(2, 0, 0, &world.bar[..4]));
        assert!(world.open.is_empty());
    });
}

#[test]
fn a_client_that_leaves_takes_its_descriptors_with_it() {
    everywhere(|world| {
        ready(world);
        world.exchange_with(&set(EVENTFD | TRIGGER, MSIX, 0, 3, b""), &[10, 11, 12]);
        world.exchange_with(&set(EVENTFD | TRIGGER, INTX, 0, 1, b""), &[9]);
        world.disconnect();
        assert!(world.open.is_empty());
        assert_eq!(world.vectors[3..], [(0, false), (1, false), (2, false)]);
        ready(world);
        signals(world);
        world.input(Input::Interrupt(0));
        assert!(signals(world).is_empty());
    });
}
