//! What a bad wire does to one direction of one rail. A plain value: no sockets, no clock.

use base::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

/// Chances are drawn in millionths.
const MILLION: u64 = 1_000_000;
/// Datagrams waiting on one wire at most; what comes above it is lost, as in a router's queue.
const QUEUE_MAX: usize = 8192;

/// A datagram taken out of order is held for up to this long, in nanoseconds: a few hundred others pass it.
const REORDER_HOLD_NS: u64 = 3_000_000;

/// A repeated datagram comes again after up to this long, in nanoseconds.
const REPEAT_AFTER_NS: u64 = 5_000_000;

/// How bad a wire is. Probabilities are per datagram, between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairment {
    /// Lost.
    pub drop: f64,
    /// Delivered again, up to 5 ms later.
    pub repeat: f64,
    /// Held back, so that later ones pass it.
    pub reorder: f64,
    /// One to eight bits flipped; the datagram's own checksum is right, so that it arrives.
    pub corrupt: f64,
    /// Every datagram takes at least this long, in microseconds.
    pub delay_us: u32,
    /// And up to this much more, evenly spread, in microseconds.
    pub jitter_us: u32,
}

impl Impairment {
    /// Nothing gets through.
    pub const CUT: Self = Self { drop: 1.0, ..Self::NONE };

    /// A good wire.
    pub const NONE: Self =
        Self { drop: 0.0, repeat: 0.0, reorder: 0.0, corrupt: 0.0, delay_us: 0, jitter_us: 0 };

    /// Each kind of harm with the same probability.
    pub fn each(probability: f64) -> Self {
        Self {
            drop: probability,
            repeat: probability,
            reorder: probability,
            corrupt: probability,
            ..Self::NONE
        }
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drop, repeat, reorder, corrupt, delay_us, jitter_us } = self;
        write!(f, "drop={drop} repeat={repeat} reorder={reorder} corrupt={corrupt} ")?;
        write!(f, "delay_us={delay_us} jitter_us={jitter_us}")
    }
}

impl FromStr for Impairment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut impairment = Self::NONE;
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word} is not NAME=VALUE"))?;
            let probability = || {
                let parsed = value.parse().ok().filter(|value| (0.0..=1.0).contains(value));
                parsed.ok_or_else(|| format!("{word}: a probability is between 0 and 1"))
            };
            let microseconds = || value.parse().map_err(|_| format!("{word}: not a number of microseconds"));
            match name {
                "drop" => impairment.drop = probability()?,
                "repeat" => impairment.repeat = probability()?,
                "reorder" => impairment.reorder = probability()?,
                "corrupt" => impairment.corrupt = probability()?,
                "delay_us" => impairment.delay_us = microseconds()?,
                "jitter_us" => impairment.jitter_us = microseconds()?,
                _ => return Err(format!("{name} is not a kind of impairment")),
            }
        }
        Ok(impairment)
    }
}

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
    pub fn handle(&mut self, now_ns: u64, mut datagram: Datagram) {
        self.counts.received += 1;
        // All chances are drawn for every datagram, so that one setting does not shift the luck of the others.
        let Impairment { drop, repeat, reorder, corrupt, delay_us, jitter_us } = self.impairment;
        let [drop, repeat, reorder, corrupt] = [drop, repeat, reorder, corrupt]
            .map(|p| self.random.below(MILLION) < (p * MILLION as f64) as u64);
        let jitter_ns = self.random.below(u64::from(jitter_us) * 1000 + 1);
        let hold_ns = 1 + self.random.below(REORDER_HOLD_NS);
        let again_ns = self.random.below(REPEAT_AFTER_NS);
        if drop {
            self.counts.dropped += 1;
            return;
        }
        let mut due_ns = now_ns + u64::from(delay_us) * 1000 + jitter_ns;
        if reorder {
            self.counts.reordered += 1;
            due_ns += hold_ns;
        }
        if repeat {
            self.counts.repeated += 1;
            self.push(due_ns + again_ns, datagram.clone());
        }
        if corrupt && !datagram.payload.is_empty() {
            self.counts.corrupted += 1;
            self.flip_bits(&mut datagram.payload);
        }
        self.push(due_ns, datagram);
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

    fn flip_bits(&mut self, payload: &mut [u8]) {
        let bits = payload.len() as u64 * 8;
        // An odd number of flips never cancels out to no change.
        for _ in 0..1 + 2 * self.random.below(4) {
            let bit = self.random.below(bits) as usize;
            payload[bit / 8] ^= 1 << (bit % 8);
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
        let (delivered, counts) = run(Impairment::each(0.05), 10_000, 7);
        for harmed in [counts.dropped, counts.repeated, counts.reordered, counts.corrupted] {
            assert!((380..620).contains(&harmed), "{counts:?}");
        }
        assert_eq!(counts.sent, counts.received - counts.dropped + counts.repeated);
        assert_eq!(delivered.len() as u64, counts.sent);
        assert_eq!((delivered, counts), run(Impairment::each(0.05), 10_000, 7));
    }

    #[test]
    fn a_cut_wire_delivers_nothing_and_a_long_one_delays() {
        assert!(run(Impairment::CUT, 100, 1).0.is_empty());
        let mut wire = Wire::new(1);
        wire.set(Impairment { delay_us: 300, jitter_us: 100, ..Impairment::NONE });
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
        let impairment = Impairment { delay_us: 5, jitter_us: 6, ..Impairment::each(0.25) };
        assert_eq!(impairment.to_string().parse(), Ok(impairment));
        assert!("drop=1.5".parse::<Impairment>().is_err());
        assert!("lose=0.5".parse::<Impairment>().is_err());
    }
}
