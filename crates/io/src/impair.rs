//! Faults on purpose: what a bad network does to datagrams, for the demo and the tests.
//!
//! The settings lie in shared memory and may change while cards run; the agent of a demo turns
//! loss on, cuts a rail, lets it come back. Each rail of a card has two [`Impairer`]s, one for
//! what it sends and one for what it receives. An impairer decides about one datagram at a time,
//! and keeps copies only of those that are to come late, twice or damaged; the original is the
//! caller's and is never changed, because what is sent may be sent again from the same memory.
//!
//! Drawn from a generator with a seed: the same datagrams and the same times meet the same fate.

use base::ledger::Layout;
use base::{Impairment, Random};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::address::RailAddress;

/// Most datagrams an impairer holds back; beyond that they pass unimpaired.
pub const MAX_HELD: usize = 64;

/// What is done to the datagrams of a rail. Zero bytes are a rail without faults. Lies in shared memory.
///
/// Probabilities are in millionths and independent of each other, except that what is dropped is nothing else too.
#[repr(C)]
#[derive(Layout, Debug, Default)]
pub struct ImpairmentCells {
    /// Lost.
    pub drop_ppm: AtomicU32,
    /// Arrives twice.
    pub repeat_ppm: AtomicU32,
    /// Held back until `hold_packets` others have passed or `hold_us` are over.
    pub reorder_ppm: AtomicU32,
    /// One bit of it flips.
    pub corrupt_ppm: AtomicU32,
    /// Datagrams that overtake one that is held back.
    pub hold_packets: AtomicU32,
    /// Longest time one is held back, in microseconds.
    pub hold_us: AtomicU32,
    /// Not zero: nothing leaves.
    pub cut_out: AtomicU32,
    /// Not zero: nothing arrives.
    pub cut_in: AtomicU32,
    /// How many met which fate.
    pub counters: ImpairmentCounters,
}

/// How many datagrams met which fate, since the memory was zero.
#[repr(C)]
#[derive(Layout, Debug, Default)]
pub struct ImpairmentCounters {
    /// Lost by chance.
    pub dropped: AtomicU64,
    /// Arrived twice.
    pub repeated: AtomicU64,
    /// Held back.
    pub reordered: AtomicU64,
    /// Damaged.
    pub corrupted: AtomicU64,
    /// Lost because the rail was cut.
    pub cut: AtomicU64,
}

const _: () = assert!(size_of::<ImpairmentCells>() == 72);

/// Which way a datagram goes, seen from the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sent by the card.
    Out,
    /// Received by the card.
    In,
}

/// What to do with the original now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Pass it on, unchanged.
    Pass,
    /// Forget it: it is lost, or a copy will come out of [`Impairer::release`].
    Drop,
}

impl ImpairmentCells {
    /// Sets all four probabilities to the same value, and holding back to a few packets or two milliseconds.
    pub fn set_all(&self, ppm: u32) {
        for field in [&self.drop_ppm, &self.repeat_ppm, &self.reorder_ppm, &self.corrupt_ppm] {
            field.store(ppm, Ordering::Relaxed);
        }
        self.hold_packets.store(4, Ordering::Relaxed);
        self.hold_us.store(2_000, Ordering::Relaxed);
    }

    /// Cuts the rail, or restores it, one way or both.
    pub fn cut(&self, out: bool, inward: bool) {
        self.cut_out.store(out.into(), Ordering::Relaxed);
        self.cut_in.store(inward.into(), Ordering::Relaxed);
    }

    /// Whether anything at all is set: if not, and nothing is held, a card need not ask about each datagram.
    #[must_use]
    pub fn is_active(&self) -> bool {
        let fields = [
            &self.drop_ppm,
            &self.repeat_ppm,
            &self.reorder_ppm,
            &self.corrupt_ppm,
            &self.cut_out,
            &self.cut_in,
        ];
        fields.iter().any(|field| field.load(Ordering::Relaxed) != 0)
    }

    fn rates(&self) -> Impairment {
        let [drop_ppm, repeat_ppm, reorder_ppm, corrupt_ppm] =
            [&self.drop_ppm, &self.repeat_ppm, &self.reorder_ppm, &self.corrupt_ppm]
                .map(|ppm| ppm.load(Ordering::Relaxed));
        Impairment { drop_ppm, repeat_ppm, reorder_ppm, corrupt_ppm, ..Impairment::NONE }
    }

    fn is_cut(&self, direction: Direction) -> bool {
        let field = match direction {
            Direction::Out => &self.cut_out,
            Direction::In => &self.cut_in,
        };
        field.load(Ordering::Relaxed) != 0
    }
}

/// Decides, and holds what comes late. Memory is bounded and reused; times are nanoseconds of the caller's clock.
pub struct Impairer {
    direction: Direction,
    random: Random,
    passed: u64,
    held: Vec<Held>,
    /// Slots released, whose memory waits for the next.
    spare: Vec<Held>,
}

/// A copy that comes out later.
struct Held {
    peer: RailAddress,
    bytes: Vec<u8>,
    due_ns: u64,
    /// Comes out once so many datagrams have passed.
    due_passed: u64,
}

impl Impairer {
    /// An impairer for one direction of one rail.
    #[must_use]
    pub fn new(direction: Direction, seed: u64) -> Self {
        let (held, spare) = (Vec::with_capacity(MAX_HELD), Vec::with_capacity(MAX_HELD));
        Self { direction, random: Random::new(seed), passed: 0, held, spare }
    }

    /// Whether copies wait to be released.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Decides about a datagram to or from `peer`, given in pieces. Call [`Impairer::release`] afterwards.
    pub fn decide<'a>(
        &mut self,
        settings: &ImpairmentCells,
        now_ns: u64,
        peer: RailAddress,
        parts: impl IntoIterator<Item = &'a [u8]> + Clone,
    ) -> Fate {
        let counters = &settings.counters;
        if settings.is_cut(self.direction) {
            count(&counters.cut);
            return Fate::Drop;
        }
        let len = parts.clone().into_iter().map(<[u8]>::len).sum();
        let (mut fate, mut copies) = (Fate::Drop, 0);
        for arrival in settings.rates().arrivals(&mut self.random, len) {
            self.passed += u64::from(copies == 0);
            copies += 1;
            // The original can be the one that is as it was.
            let is_whole = !arrival.is_held && arrival.flipped.is_none() && fate == Fate::Drop;
            if is_whole || self.held.len() == MAX_HELD {
                fate = Fate::Pass;
                continue;
            }
            let new = || Held { peer, bytes: Vec::new(), due_ns: 0, due_passed: 0 };
            let mut held = self.spare.pop().unwrap_or_else(new);
            held.bytes.clear();
            parts.clone().into_iter().for_each(|part| held.bytes.extend_from_slice(part));
            (held.peer, held.due_ns, held.due_passed) = (peer, now_ns, self.passed);
            if arrival.is_held {
                count(&counters.reordered);
                held.due_ns += u64::from(settings.hold_us.load(Ordering::Relaxed)) * 1_000;
                held.due_passed += u64::from(settings.hold_packets.load(Ordering::Relaxed).max(1));
            }
            if arrival.flipped.is_some() {
                count(&counters.corrupted);
                arrival.corrupt(&mut held.bytes);
            }
            self.held.push(held);
        }
        match copies {
            0 => count(&counters.dropped),
            1 => {}
            _ => count(&counters.repeated),
        }
        fate
    }

    /// Gives out the copies whose time has come, in the order they were held. A cut loses them instead.
    pub fn release(
        &mut self,
        settings: &ImpairmentCells,
        now_ns: u64,
        mut give: impl FnMut(RailAddress, &mut [u8]),
    ) {
        let cut = settings.is_cut(self.direction);
        let mut index = 0;
        while index < self.held.len() {
            let held = &mut self.held[index];
            if !cut && held.due_ns > now_ns && held.due_passed > self.passed {
                index += 1;
                continue;
            }
            let mut held = self.held.remove(index);
            if cut {
                count(&settings.counters.cut);
            } else {
                give(held.peer, &mut held.bytes);
            }
            self.spare.push(held);
        }
    }

    /// When [`Impairer::release`] has something to do at the latest, if nothing passes before.
    #[must_use]
    pub fn next_release_ns(&self) -> Option<u64> {
        self.held.iter().map(|held| held.due_ns).min()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use base::PPM;

    use super::*;

    const COUNT: u64 = 100_000;

    fn peer() -> RailAddress {
        std::net::SocketAddr::from(([127, 0, 0, 1], 7411)).into()
    }

    /// What comes out of a stream of numbered datagrams, one a microsecond.
    fn run(settings: &ImpairmentCells, seed: u64) -> Vec<Vec<u8>> {
        let mut impairer = Impairer::new(Direction::Out, seed);
        let mut out = Vec::new();
        for number in 0..COUNT {
            let bytes = number.to_be_bytes();
            let (one, two) = bytes.split_at(3);
            if impairer.decide(settings, number * 1000, peer(), [one, two]) == Fate::Pass {
                out.push(bytes.to_vec());
            }
            impairer.release(settings, number * 1000, |from, bytes| {
                assert_eq!(from, peer());
                out.push(bytes.to_vec());
            });
            assert!(impairer.held.len() <= MAX_HELD && impairer.spare.len() <= MAX_HELD);
        }
        impairer.release(settings, u64::MAX, |_, bytes| out.push(bytes.to_vec()));
        assert!(impairer.is_empty() && impairer.next_release_ns().is_none());
        out
    }

    fn set(field: &AtomicU32, value: u32) {
        field.store(value, Ordering::Relaxed);
    }

    fn near(counter: &AtomicU64, ppm: u64) -> bool {
        let expected = COUNT * ppm / u64::from(PPM);
        counter.load(Ordering::Relaxed).abs_diff(expected) < expected / 10
    }

    #[test]
    fn no_faults_no_change() {
        let settings = ImpairmentCells::default();
        assert!(!settings.is_active());
        let out = run(&settings, 1);
        assert!(
            out.iter().map(Vec::as_slice).eq((0..COUNT).map(u64::to_be_bytes).collect::<Vec<_>>().iter())
        );
    }

    #[test]
    fn each_fault_has_its_rate_and_its_effect() {
        let ordered = |out: &[Vec<u8>]| out.windows(2).all(|pair| pair[0] < pair[1]);
        let drop = ImpairmentCells::default();
        set(&drop.drop_ppm, 50_000);
        let out = run(&drop, 2);
        assert!(near(&drop.counters.dropped, 50_000) && ordered(&out));
        assert_eq!(out.len() as u64, COUNT - drop.counters.dropped.load(Ordering::Relaxed));

        let repeat = ImpairmentCells::default();
        set(&repeat.repeat_ppm, 50_000);
        let mut out = run(&repeat, 3);
        let repeated = repeat.counters.repeated.load(Ordering::Relaxed);
        assert!(near(&repeat.counters.repeated, 50_000) && out.len() as u64 == COUNT + repeated);
        out.dedup();
        assert!(out.len() as u64 == COUNT && ordered(&out));

        let reorder = ImpairmentCells::default();
        set(&reorder.reorder_ppm, 50_000);
        set(&reorder.hold_packets, 4);
        set(&reorder.hold_us, 1_000_000);
        let mut out = run(&reorder, 4);
        assert!(near(&reorder.counters.reordered, 50_000) && !ordered(&out));
        for (at, bytes) in out.iter().enumerate() {
            let number = u64::from_be_bytes(bytes.as_slice().try_into().unwrap());
            assert!(number.abs_diff(at as u64) <= 5, "{number} came {at}th");
        }
        out.sort();
        assert!(out.len() as u64 == COUNT && ordered(&out));

        let corrupt = ImpairmentCells::default();
        set(&corrupt.corrupt_ppm, 50_000);
        let out = run(&corrupt, 5);
        assert!(near(&corrupt.counters.corrupted, 50_000) && out.len() as u64 == COUNT);
        let flipped: u32 = (0..COUNT)
            .zip(&out)
            .map(|(number, got)| {
                number.to_be_bytes().iter().zip(got).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
            })
            .sum();
        assert_eq!(u64::from(flipped), corrupt.counters.corrupted.load(Ordering::Relaxed));
    }

    #[test]
    fn all_together_are_bounded_and_repeatable() {
        let settings = ImpairmentCells::default();
        settings.set_all(50_000);
        assert!(settings.is_active());
        assert_eq!(run(&settings, 6), run(&settings, 6));
        assert_ne!(run(&settings, 6), run(&settings, 7));
        settings.set_all(PPM);
        assert!(run(&settings, 8).is_empty());
        set(&settings.drop_ppm, 0);
        set(&settings.hold_packets, u32::MAX);
        // Everything is repeated, and the copies of at most MAX_HELD at a time come late.
        assert!(run(&settings, 9).len() as u64 > COUNT);
    }

    #[test]
    fn time_releases_what_no_packet_does() {
        let settings = ImpairmentCells::default();
        settings.set_all(0);
        set(&settings.reorder_ppm, PPM);
        let mut impairer = Impairer::new(Direction::In, 1);
        assert_eq!(impairer.decide(&settings, 5_000, peer(), [&b"late"[..]]), Fate::Drop);
        assert_eq!(impairer.next_release_ns(), Some(2_005_000));
        impairer.release(&settings, 2_004_999, |_, _| panic!("too early"));
        let mut out = Vec::new();
        impairer.release(&settings, 2_005_000, |_, bytes| out.extend_from_slice(bytes));
        assert_eq!(out, b"late");
    }

    #[test]
    fn a_cut_is_one_way_or_both() {
        let settings = ImpairmentCells::default();
        let fates = || {
            [Direction::Out, Direction::In].map(|direction| {
                Impairer::new(direction, 1).decide(&settings, 0, peer(), [&b"x"[..]]) == Fate::Pass
            })
        };
        assert_eq!(fates(), [true, true]);
        settings.cut(true, false);
        assert!(settings.is_active());
        assert_eq!(fates(), [false, true]);
        settings.cut(false, true);
        assert_eq!(fates(), [true, false]);
        settings.cut(true, true);
        assert_eq!(fates(), [false, false]);
        assert_eq!(settings.counters.cut.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_cut_loses_what_is_held() {
        let settings = ImpairmentCells::default();
        settings.set_all(0);
        set(&settings.reorder_ppm, PPM);
        let mut impairer = Impairer::new(Direction::Out, 1);
        assert_eq!(impairer.decide(&settings, 0, peer(), [&b"x"[..]]), Fate::Drop);
        settings.cut(true, false);
        impairer.release(&settings, u64::MAX, |_, _| panic!("the rail is cut"));
        assert!(impairer.is_empty());
    }
}
