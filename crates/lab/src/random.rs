//! Numbers that follow from a seed: the same seed gives the same run. Not for keys.

/// SplitMix64: small, and good enough for deciding which datagram to lose.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One generator for each purpose: what one of them uses up does not change the others.
    pub fn of(seed: u64, purpose: &str) -> Self {
        purpose.bytes().fold(Self(seed), |random, byte| random.fork(byte.into()))
    }

    /// Another one for each number.
    pub fn fork(mut self, number: u64) -> Self {
        Self(self.next_u64() ^ number)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        // The bias of the remainder is below 2^-32 for the bounds that tests use.
        self.next_u64() % bound
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what a f64 holds exactly.
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = self.next_u64().to_le_bytes());
        if !rest.is_empty() {
            rest.copy_from_slice(&self.next_u64().to_le_bytes()[..rest.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_hold() {
        let mut random = Random::new(1);
        let hits = (0..100_000).filter(|_| random.chance(0.05)).count();
        assert!((4_700..5_300).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| random.chance(1.0)));
        assert!(!(0..1000).any(|_| random.chance(0.0)));
    }
}
