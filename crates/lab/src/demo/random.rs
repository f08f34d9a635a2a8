//! Numbers that follow from a seed.

/// A generator of numbers that look random; the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// One generator for each purpose: what one of them uses up does not change the others.
    pub(super) fn new(seed: u64, purpose: &str) -> Self {
        Self(purpose.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte))))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`, which is not 0. The bias is far below what a demo could show.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A permutation of the 64-bit numbers that spreads neighbours (a finaliser of the kind xor, shift, multiply).
pub(super) fn mix(mut value: u64) -> u64 {
    value ^= value >> 32;
    value = value.wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^= value >> 32;
    value = value.wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ value >> 32
}
