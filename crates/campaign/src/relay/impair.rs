//! What a bad wire does to one direction of one rail. A plain value: no sockets, no clock.

use base::{Arrival, Impairment, Random};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Datagrams waiting on one wire at most; what comes above it is lost, as in a router's queue.
const QUEUE_MAX: usize = 8192;

/// A repeated datagram comes again after up to this long, in nanoseconds.
const REPEAT_AFTER_NS: u64 = 5_000_000;

/// What a wire has done so far, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Came in.
    pub received: u64,
    /// Went out, repetitions included.
    pub sent: u64,
    /// Lost on purpose.
    pub dropped: u64,
    /// Delivered a second time.
    pub repeated: u64,
    /// Held back.
    pub reordered: u64,
    /// Changed.
    pub corrupted: u64,
    /// Lost because too many waited.
    pub overflowed: u64,
}

/// A datagram on a wire.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    /// The sender's port; its address follows from rail and direction.
    pub source_port: u16,
    /// The receiver's port.
    pub target_port: u16,
    /// The UDP payload.
    pub payload: Vec<u8>,
}

/// One direction of one rail. `now` is in nanoseconds, from any zero.
pub struct Wire {
    impairment: Impairment,
    random: Random,
    /// Ordered by due time, then by order of arrival.
    queue: BinaryHeap<Reverse<(u64, u64, Datagram)>>,
    arrivals: u64,
    counts: WireCounts,
}

impl Wire {
    /// A good wire with its own stream of chances.
    pub fn new(seed: u64) -> Self {
        Self {
            impairment: Impairment::NONE,
            random: Random::new(seed),
            queue: BinaryHeap::new(),
            arrivals: 0,
            counts: WireCounts::default(),
        }
    }

    /// From now on. What is under way stays under way.
    pub fn set(&mut self, impairment: Impairment) {
        self.impairment = impairment;
    }

    /// What it has done so far.
    pub fn counts(&self) -> WireCounts {
        self.counts
    }

    /// A datagram enters the wire.
    pub fn handle(&mut self, now_ns: u64, datagram: Datagram) {
        self.counts.received += 1;
        let arrivals = self.impairment.arrivals(&mut self.random, datagram.payload.len());
        let arrivals: Vec<Arrival> = arrivals.collect();
        self.counts.dropped += u64::from(arrivals.is_empty());
        self.counts.repeated += u64::from(arrivals.len() > 1);
        for (copy, arrival) in arrivals.iter().enumerate() {
            self.counts.reordered += u64::from(arrival.is_held);
            let mut datagram = datagram.clone();
            if arrival.flipped.is_some() {
                self.counts.corrupted += 1;
                arrival.corrupt(&mut datagram.payload);
                self.flip_more_bits(&mut datagram.payload);
            }
            let again_ns = if copy > 0 { self.random.below(REPEAT_AFTER_NS) } else { 0 };
            self.push(now_ns + arrival.after_ns + again_ns, datagram);
        }
    }

    /// Enters a forged datagram, which no impairment touches.
    pub fn inject(&mut self, now_ns: u64, datagram: Datagram) {
        self.push(now_ns, datagram);
    }

    /// The next datagram to deliver, if one is due.
    pub fn poll(&mut self, now_ns: u64) -> Option<Datagram> {
        let due = self.next_due_ns()?;
        if due > now_ns {
            return None;
        }
        let Reverse((_, _, datagram)) = self.queue.pop()?;
        self.counts.sent += 1;
        Some(datagram)
    }

    /// When [`Wire::poll`] has something.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((due, _, _))| *due)
    }

    fn push(&mut self, due_ns: u64, datagram: Datagram) {
        if self.queue.len() == QUEUE_MAX {
            self.counts.overflowed += 1;
            return;
        }
        self.arrivals += 1;
        self.queue.push(Reverse((due_ns, self.arrivals, datagram)));
    }

    fn flip_more_bits(&mut self, payload: &mut [u8]) {
        // An even number of them never undoes the one that is flipped already.
        for _ in 0..2 * self.random.below(4) {
            payload[self.random.index(payload.len())] ^= 1 << self.random.below(8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(impairment: Impairment, count: u64, seed: u64) -> (Vec<Datagram>, WireCounts) {
        let mut wire = Wire::new(seed);
        wire.set(impairment);
        let mut delivered = Vec::new();
        for number in 0..count {
            let now = number * 10_000;
            let payload = number.to_be_bytes().to_vec();
            wire.handle(now, Datagram { source_port: 1, target_port: 2, payload });
            delivered.extend(std::iter::from_fn(|| wire.poll(now)));
        }
        delivered.extend(std::iter::from_fn(|| wire.poll(u64::MAX)));
        assert_eq!(wire.next_due_ns(), None);
        (delivered, wire.counts())
    }

    #[test]
    fn a_good_wire_changes_nothing() {
        let (delivered, counts) = run(Impairment::NONE, 1000, 1);
        let numbers: Vec<_> = delivered.iter().map(|datagram| datagram.payload.clone()).collect();
        assert_eq!(numbers, (0..1000u64).map(|number| number.to_be_bytes().to_vec()).collect::<Vec<_>>());
        assert_eq!(counts, WireCounts { received: 1000, sent: 1000, ..WireCounts::default() });
    }

    #[test]
    fn each_harm_happens_as_often_as_asked_and_the_same_seed_repeats_it() {
        let (delivered, counts) = run(Impairment::each(50_000), 10_000, 7);
        for harmed in [counts.dropped, counts.repeated, counts.reordered, counts.corrupted] {
            assert!((380..620).contains(&harmed), "{counts:?}");
        }
        assert_eq!(counts.sent, counts.received - counts.dropped + counts.repeated);
        assert_eq!(delivered.len() as u64, counts.sent);
        assert_eq!((delivered, counts), run(Impairment::each(50_000), 10_000, 7));
    }

    #[test]
    fn a_cut_wire_delivers_nothing_and_a_long_one_delays() {
        assert!(run(Impairment::CUT, 100, 1).0.is_empty());
        let mut wire = Wire::new(1);
        wire.set(Impairment { delay_ns: 300_000, jitter_ns: 100_000, ..Impairment::NONE });
        wire.handle(0, Datagram { source_port: 1, target_port: 2, payload: vec![1] });
        assert_eq!(wire.poll(299_999), None);
        assert!(wire.poll(400_000).is_some());
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut wire = Wire::new(1);
        for _ in 0..QUEUE_MAX + 5 {
            wire.inject(9, Datagram { source_port: 1, target_port: 2, payload: vec![] });
        }
        assert_eq!(wire.counts().overflowed, 5);
    }

    #[test]
    fn settings_survive_their_text() {
        let impairment = Impairment { delay_ns: 5, jitter_ns: 6, ..Impairment::each(250_000) };
        let text = serde_json::to_string(&impairment).unwrap();
        let read = |text: &str| serde_json::from_str::<Impairment>(text);
        assert_eq!(read(&text).unwrap(), impairment);
        assert!(read(&text.replace("\"drop_ppm\":250000", "\"drop_ppm\":1.5")).is_err());
        assert!(read(&text.replace("drop", "lose")).is_err());
    }
}
