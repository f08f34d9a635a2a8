//! A path beside a TCP connection on one narrow way, whose queue takes what there is room for: neither takes the way
//! from the other.

use base::Random;

use super::*;

/// Bytes of a packet on the way, and what one takes at 100 Mbit/s.
const PACKET: usize = 1500;
const STEP: Duration = Duration::from_micros(120);
/// Packets that may wait there: some 20 ms.
const QUEUE: usize = 170;
/// Packets that are handed over at once, as either does with what it has.
const TRAIN: u64 = 16;

/// CUBIC (RFC 9438), its window in packets.
struct Cubic {
    window: f64,
    threshold: f64,
    /// When it was cut last, the window before that, and what Reno's would be now (RFC 9438 §4.3).
    cut_at: Instant,
    before: f64,
    reno: f64,
    next: u64,
    /// What is under way, and from which number on a loss is another one.
    flight: VecDeque<u64>,
    recovered: u64,
}

impl Cubic {
    const BETA: f64 = 0.7;
    const C: f64 = 0.4;

    fn new() -> Self {
        let (window, threshold) = (10.0, f64::INFINITY);
        let (cut_at, flight) = (Instant::ZERO, VecDeque::new());
        Self { window, threshold, cut_at, before: 0.0, reno: 0.0, next: 0, flight, recovered: 0 }
    }

    /// Of what left in order this one has come: whatever left before it has not.
    fn hear(&mut self, now: Instant, number: u64) {
        while let Some(first) = self.flight.pop_front().filter(|first| *first != number) {
            if first >= self.recovered {
                self.cut(now);
            }
        }
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let passed = now.since(self.cut_at).as_secs_f64();
        let turn = (self.before * (1.0 - Self::BETA) / Self::C).cbrt();
        let cubic = Self::C * (passed - turn).powi(3) + self.before;
        self.reno += 3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA) / self.window;
        let target = cubic.clamp(self.window, self.window * 1.5);
        self.window = (self.window + (target - self.window) / self.window).max(self.reno);
    }

    fn cut(&mut self, now: Instant) {
        let is_less = self.window < self.before;
        self.before = if is_less { self.window * (1.0 + Self::BETA) / 2.0 } else { self.window };
        self.window = (self.window * Self::BETA).max(2.0);
        (self.threshold, self.reno, self.cut_at) = (self.window, self.window, now);
        self.recovered = self.next;
    }
}

/// A packet that waits.
enum Packet {
    Ours(u64),
    Theirs(u64),
}

/// What each has carried after so many seconds, but for the first five.
fn carried_by(seed: u64, seconds: u32) -> [u64; 2] {
    let mut random = Random::new(seed);
    let (mut ours, mut theirs) = (Outgoing::new(), Cubic::new());
    let (mut queue, mut carried) = (VecDeque::new(), [0; 2]);
    // What has come of ours, newest first.
    let mut runs: VecDeque<(u64, u64)> = VecDeque::new();
    let mut now = Instant::from_nanos(1);
    let (begin, end) = (now + Duration::from_secs(5), now + Duration::from_secs(seconds.into()));
    while now < end {
        let counts = u64::from(now >= begin);
        match queue.pop_front() {
            Some(Packet::Ours(number)) => {
                carried[0] += counts;
                match runs.front_mut().filter(|(_, high)| *high + 1 == number) {
                    Some((_, high)) => *high = number,
                    None => runs.push_front((number, number)),
                }
                runs.truncate(MAX_RANGES);
                let mut come = AckRanges::default();
                runs.iter().for_each(|(low, high)| come.push(*low, *high).unwrap());
                assert!(ours.handle_ack(now, &come, Duration::ZERO, &mut |_| {}));
                ours.detect_loss(now, &mut |_| {});
            }
            Some(Packet::Theirs(number)) => {
                carried[1] += counts;
                theirs.hear(now, number);
            }
            None => {}
        }
        if ours.poll_timeout().is_some_and(|at| at <= now) {
            ours.handle_timeout(now, false, &mut |_| {});
        }
        if !queue.iter().any(|packet| matches!(packet, Packet::Theirs(_))) && !theirs.flight.is_empty() {
            // All of it is lost: its timer, or its probe of the tail, finds that out.
            theirs.flight.clear();
            theirs.cut(now);
        }
        // Whoever comes first finds the room.
        let first = random.below(2);
        for who in [first, 1 - first] {
            for _ in 0..TRAIN {
                let packet = match who {
                    0 if ours.has_window() => {
                        let number = ours.take_number();
                        ours.record(now, number, PACKET, Carried::default());
                        Packet::Ours(number)
                    }
                    1 if (theirs.flight.len() as f64) < theirs.window => {
                        theirs.next += 1;
                        theirs.flight.push_back(theirs.next);
                        Packet::Theirs(theirs.next)
                    }
                    _ => break,
                };
                if queue.len() < QUEUE {
                    queue.push_back(packet);
                }
            }
        }
        now += STEP;
    }
    carried
}

#[test]
fn a_narrow_way_is_shared_with_tcp() {
    for seed in 0..4 {
        let [ours, theirs] = carried_by(seed, 35);
        assert!(ours + theirs > 240_000, "the way is full: {ours} and {theirs}");
        assert!(ours < theirs * 2 && theirs < ours * 2, "seed {seed}: {ours} of ours, {theirs} of TCP");
    }
}
