//! Virtual time, and what is to happen when.

use std::collections::BTreeMap;

use base::Instant;

/// The clock of a world, and what is to happen in it.
pub(crate) struct Clock<E> {
    /// In nanoseconds.
    pub(crate) now: u64,
    /// By time, and of what is to happen at the same time by the order in which it was wanted.
    queue: BTreeMap<(u64, u64), E>,
    sequence: u64,
}

impl<E> Clock<E> {
    pub(crate) fn new(now: u64) -> Self {
        Self { now, queue: BTreeMap::new(), sequence: 0 }
    }

    pub(crate) fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Something is to happen then, or now if that is over.
    pub(crate) fn at(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }

    /// Something is to happen in so many nanoseconds.
    pub(crate) fn after(&mut self, after: u64, event: E) {
        self.at(self.now + after, event);
    }

    /// Goes on to what happens next.
    pub(crate) fn next(&mut self) -> Option<E> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }
}

/// When somebody is to be woken, if at all.
#[derive(Default)]
pub(crate) struct Alarm(Option<u64>);

impl Alarm {
    /// True if that is earlier than before: whoever sets it sees to that.
    pub(crate) fn set(&mut self, at: u64) -> bool {
        let is_earlier = self.0.is_none_or(|known| at < known);
        if is_earlier {
            self.0 = Some(at);
        }
        is_earlier
    }

    /// Whether it is time. Then it is over.
    pub(crate) fn rings(&mut self, now: u64) -> bool {
        self.0.take_if(|at| *at <= now).is_some()
    }

    pub(crate) fn stop(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_happen_at_once_keeps_its_order() {
        let mut clock = Clock::new(5);
        clock.after(10, 'c');
        clock.at(15, 'd');
        clock.at(3, 'b');
        assert_eq!((clock.next(), clock.now), (Some('b'), 5));
        assert_eq!((clock.next(), clock.now), (Some('c'), 15));
        clock.after(1, 'e');
        assert_eq!((clock.next(), clock.next(), clock.now), (Some('d'), Some('e'), 16));
        assert_eq!(clock.next(), None);
    }

    #[test]
    fn an_alarm_is_only_ever_set_earlier() {
        let mut alarm = Alarm::default();
        assert!(!alarm.rings(9) && alarm.set(10) && !alarm.set(10) && !alarm.set(11) && alarm.set(8));
        assert!(!alarm.rings(7) && alarm.rings(8) && !alarm.rings(8));
        assert!(alarm.set(11));
    }
}
