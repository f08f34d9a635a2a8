//! A bounded queue between two threads: one puts in, the other takes out, neither ever waits.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a processor fetches at once, twice: neighbours are fetched too.
#[repr(align(128))]
struct Padded<T>(T);

/// Positions only grow, and wrap; a slot is `position & (slots - 1)`. What lies from `head` to `tail` is the taker's to
/// read, the rest the putter's to write.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    head: Padded<AtomicUsize>,
    tail: Padded<AtomicUsize>,
}

// SAFETY: a slot belongs to one of two threads at a time, and passes to the other by a release of a position and its
// acquire.
unsafe impl<T: Copy + Send> Sync for Ring<T> {}

/// The end that puts in.
pub(super) struct Sender<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    /// The head as last seen.
    head: usize,
}

/// The end that takes out.
pub(super) struct Receiver<T> {
    ring: Arc<Ring<T>>,
    head: usize,
    /// The tail as last seen.
    tail: usize,
}

/// A queue of `slots` values, a power of two.
pub(super) fn queue<T: Copy + Send>(slots: usize) -> (Sender<T>, Receiver<T>) {
    assert!(slots.is_power_of_two(), "positions wrap");
    let ring = Arc::new(Ring {
        slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
    });
    (Sender { ring: Arc::clone(&ring), tail: 0, head: 0 }, Receiver { ring, head: 0, tail: 0 })
}

impl<T: Copy + Send> Sender<T> {
    /// Puts in as many as there is room for, all visible at once, and takes them from the front of `values`.
    pub(super) fn send(&mut self, values: &mut Vec<T>) {
        let slots = self.ring.slots.len();
        if slots - self.tail.wrapping_sub(self.head) < values.len() {
            self.head = self.ring.head.0.load(Ordering::Acquire);
        }
        let count = values.len().min(slots - self.tail.wrapping_sub(self.head));
        for value in values.drain(..count) {
            let slot = &self.ring.slots[self.tail & (slots - 1)];
            // SAFETY: the slot lies outside of `head..tail`, and so is ours alone.
            unsafe { (*slot.get()).write(value) };
            self.tail = self.tail.wrapping_add(1);
        }
        if count > 0 {
            self.ring.tail.0.store(self.tail, Ordering::Release);
        }
    }
}

impl<T: Copy + Send> Receiver<T> {
    /// Whether there is anything.
    pub(super) fn has_any(&mut self) -> bool {
        if self.head == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.head != self.tail
    }

    /// Takes out at most `most`; their room is given back when the iterator is at its end or dropped.
    pub(super) fn receive(&mut self, most: usize) -> Received<'_, T> {
        self.has_any();
        let left = self.tail.wrapping_sub(self.head).min(most);
        Received { receiver: self, left }
    }
}

/// What is taken out.
pub(super) struct Received<'a, T: Copy + Send> {
    receiver: &'a mut Receiver<T>,
    left: usize,
}

impl<T: Copy + Send> Iterator for Received<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        let receiver = &mut *self.receiver;
        let slot = &receiver.ring.slots[receiver.head & (receiver.ring.slots.len() - 1)];
        // SAFETY: the slot lies in `head..tail`: its value was written before the tail was, and nobody writes to it
        // until the head has passed it.
        let value = unsafe { (*slot.get()).assume_init() };
        receiver.head = receiver.head.wrapping_add(1);
        Some(value)
    }
}

impl<T: Copy + Send> Drop for Received<'_, T> {
    fn drop(&mut self) {
        self.receiver.ring.head.0.store(self.receiver.head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_stays_and_the_order_is_kept() {
        let (mut sender, mut receiver) = queue(4);
        let mut values: Vec<u32> = (0..6).collect();
        assert!(!receiver.has_any());
        sender.send(&mut values);
        assert_eq!(values, [4, 5]);
        assert_eq!(receiver.receive(3).collect::<Vec<_>>(), [0, 1, 2]);
        sender.send(&mut values);
        assert!(values.is_empty() && receiver.has_any());
        // What has come meanwhile is looked for when nothing else is left.
        assert_eq!(receiver.receive(9).collect::<Vec<_>>(), [3]);
        assert_eq!(receiver.receive(9).collect::<Vec<_>>(), [4, 5]);
        assert!(!receiver.has_any());
    }

    #[test]
    fn nothing_is_lost_between_two_threads() {
        const COUNT: u64 = if cfg!(miri) { 300 } else { 300_000 };
        let (mut sender, mut receiver) = queue(64);
        let putter = std::thread::spawn(move || {
            let (mut next, mut values) = (0, Vec::new());
            while next < COUNT || !values.is_empty() {
                let more = (next % 7 + 1).min(COUNT - next);
                values.extend((next..next + more).map(|value| [value, !value]));
                next += more;
                sender.send(&mut values);
                std::thread::yield_now();
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            for value in receiver.receive(16) {
                assert_eq!(value, [expected, !expected]);
                expected += 1;
            }
            std::thread::yield_now();
        }
        putter.join().unwrap();
    }
}
