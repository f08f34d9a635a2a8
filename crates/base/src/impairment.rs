//! What a bad network does to frames: in the simulator, on rails that are impaired on purpose, and between the machines
//! of a test. Where a frame waits until it arrives is up to whoever asks.

use serde::{Deserialize, Serialize};

use crate::Random;

/// A probability of one.
pub const PPM: u32 = 1_000_000;

/// How bad a network is. Probabilities are in millionths, and independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impairment {
    /// Lost.
    pub drop_ppm: u32,
    /// Arrives twice.
    pub repeat_ppm: u32,
    /// Held back, so that later ones pass it.
    pub reorder_ppm: u32,
    /// One bit of it flips.
    pub corrupt_ppm: u32,
    /// Each one takes at least this long,
    pub delay_ns: u64,
    /// and up to this much more,
    pub jitter_ns: u64,
    /// and less than this much more if it is held back.
    pub hold_ns: u64,
}

/// How a frame arrives, or a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// So long after it was sent.
    pub after_ns: u64,
    /// It was held back.
    pub is_held: bool,
    /// Byte and bit that are flipped.
    pub flipped: Option<(usize, u8)>,
}

impl Impairment {
    /// Nothing arrives.
    pub const CUT: Self = Self { drop_ppm: PPM, ..Self::NONE };
    /// All is well.
    pub const NONE: Self = Self::each(0);

    /// Each kind of harm with the same probability. What is held back is passed by a few hundred others at most.
    pub const fn each(ppm: u32) -> Self {
        let [drop_ppm, repeat_ppm, reorder_ppm, corrupt_ppm] = [ppm; 4];
        let (delay_ns, jitter_ns, hold_ns) = (0, 0, 3_000_000);
        Self { drop_ppm, repeat_ppm, reorder_ppm, corrupt_ppm, delay_ns, jitter_ns, hold_ns }
    }

    /// What becomes of a frame of `len` bytes: nothing arrives, or one, or one and a copy.
    pub fn arrivals(self, random: &mut Random, len: usize) -> impl Iterator<Item = Arrival> {
        let copies = if hits(random, self.drop_ppm) {
            0
        } else if hits(random, self.repeat_ppm) {
            2
        } else {
            1
        };
        (0..copies).map(move |_| {
            let flips = hits(random, self.corrupt_ppm) && len > 0;
            let flipped = flips.then(|| (random.index(len), random.below(8) as u8));
            let is_held = hits(random, self.reorder_ppm);
            let hold_ns = if is_held { random.below(self.hold_ns) } else { 0 };
            let after_ns = self.delay_ns + random.below(self.jitter_ns + 1) + hold_ns;
            Arrival { after_ns, is_held, flipped }
        })
    }
}

impl Arrival {
    /// Flips in `bytes` what is to be flipped.
    pub fn corrupt(&self, bytes: &mut [u8]) {
        if let Some((index, bit)) = self.flipped {
            bytes[index] ^= 1 << bit;
        }
    }
}

fn hits(random: &mut Random, ppm: u32) -> bool {
    random.below(PPM.into()) < ppm.into()
}
