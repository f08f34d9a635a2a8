//! What a path takes for its round trip, beside how long answers truly took: the simulator's checkers believe it.

use base::Random;

use super::*;

/// A step of the clock.
const TICK: Duration = Duration::from_micros(100);

/// Of so many answers in a row that were no longer than some time, what is believed is no longer than twice that.
const FORGOTTEN: u32 = 40;

/// A way and its packets, under way in either direction.
struct Way {
    random: Random,
    path: Outgoing,
    now: Instant,
    /// One direction takes so long, and up to a quarter more.
    delay: Duration,
    /// Packets and answers lost in a thousand.
    loss: u64,
    /// When a packet was sent, by number; nothing once it was answered.
    sent: Vec<Option<Instant>>,
    /// When it arrives.
    coming: Vec<(Instant, u64)>,
    /// The newest packets that have arrived.
    arrived: VecDeque<u64>,
    /// When an answer arrives, and what it says.
    answers: Vec<(Instant, AckRanges)>,
    /// The longest that an answer took, of all.
    longest: Duration,
    /// Answers since one took longer than `recent`, and what those took at most.
    recent: (u32, Duration),
}

impl Way {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            path: Outgoing::new(),
            now: Instant::from_nanos(1),
            delay: Duration::ZERO,
            loss: 0,
            sent: Vec::new(),
            coming: Vec::new(),
            arrived: VecDeque::new(),
            answers: Vec::new(),
            longest: Duration::ZERO,
            recent: (0, Duration::ZERO),
        }
    }

    /// Another distance, another loss: from 50 us to 400 ms.
    fn change(&mut self) {
        self.delay = Duration::from_micros(50 << self.random.below(13));
        self.loss = if self.random.chance(500) { 0 } else { self.random.below(300) };
        self.recent = (0, self.delay * 3);
    }

    fn arrives(&mut self) -> Option<Instant> {
        let jitter = Duration::from_nanos(self.random.below(self.delay.as_nanos() as u64 / 4));
        (!self.random.chance(self.loss)).then_some(self.now + self.delay + jitter)
    }

    fn send(&mut self) {
        let number = self.path.take_number();
        self.path.record(self.now, number, 100, Carried::default());
        self.sent.push(Some(self.now));
        let at = self.arrives();
        self.coming.extend(at.map(|at| (at, number)));
    }

    /// The other end answers each packet, with what else came lately.
    fn answer(&mut self) {
        let now = self.now;
        let here: Vec<u64> =
            self.coming.extract_if(.., |(at, _)| *at <= now).map(|(_, number)| number).collect();
        for number in here {
            self.arrived.push_front(number);
            self.arrived.truncate(64);
            let mut numbers: Vec<u64> = self.arrived.iter().copied().collect();
            numbers.sort_unstable_by(|one, other| other.cmp(one));
            let mut ranges = AckRanges::default();
            for run in numbers.chunk_by(|above, below| above - below == 1) {
                if ranges.push(run[run.len() - 1], run[0]).is_none() {
                    break;
                }
            }
            let at = self.arrives();
            self.answers.extend(at.map(|at| (at, ranges)));
        }
    }

    fn hear(&mut self) {
        let now = self.now;
        let here: Vec<AckRanges> =
            self.answers.extract_if(.., |(at, _)| *at <= now).map(|(_, ranges)| ranges).collect();
        for ranges in here {
            for number in ranges.iter().flat_map(|(low, high)| low..=high) {
                let Some(sent) = self.sent[number as usize].take() else { continue };
                let took = now.since(sent);
                self.longest = self.longest.max(took);
                self.recent.0 = if took <= self.recent.1 { self.recent.0 + 1 } else { 0 };
            }
            assert!(self.path.handle_ack(now, &ranges, Duration::ZERO, &mut |_| {}));
            self.path.detect_loss(now, &mut |_| {});
        }
    }

    fn check(&self, what: &str) {
        let Some(believed) = self.path.round_trip() else { return };
        assert!(believed <= self.longest, "{what}: {believed:?}, and no answer took over {:?}", self.longest);
        let (count, most) = self.recent;
        let is_over = count < FORGOTTEN || believed <= most * 2;
        assert!(is_over, "{what}: {believed:?}, after {count} answers of at most {most:?}");
    }
}

#[test]
fn no_round_trip_is_believed_that_no_answer_took() {
    for seed in 0..200 {
        let mut way = Way::new(seed);
        for _ in 0..4 {
            way.change();
            let pause = way.delay / 2;
            let (mut next, ends) = (way.now, way.now + (way.delay * 100).max(Duration::from_millis(20)));
            while way.now < ends {
                if next <= way.now {
                    way.send();
                    next = way.now + pause;
                }
                way.answer();
                way.hear();
                if way.path.poll_timeout().is_some_and(|at| at <= way.now) {
                    way.path.handle_timeout(way.now, way.random.chance(500), &mut |_| {});
                }
                way.check(&format!("seed {seed}"));
                way.now += TICK;
            }
        }
    }
}
