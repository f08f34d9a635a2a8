//! Cards joined, of which one lies: what the simulator's liars say is up to the fuzzer here.

use base::RuleSet;
use sim::liars::{Dice, Liar, lie};
use sim::rogue::go_rogue;

/// Dice that fall as the bytes say. When there are no more, nothing happens that chance could bring about.
struct Bytes<'a>(&'a [u8]);

impl Dice for Bytes<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        let len = (limit.max(2) - 1).ilog2() as usize / 8 + 1;
        let Some((bytes, rest)) = self.0.split_at_checked(len) else { return limit - 1 };
        self.0 = rest;
        let mut value = [0; 8];
        value[..len].copy_from_slice(bytes);
        u64::from_le_bytes(value) % limit
    }
}

/// Runs as many turns as the bytes may decide upon.
pub fn run(liar: Liar, bytes: &[u8]) {
    let turns = (bytes.len() as u32 / 8).clamp(1, 400);
    if let Err(what) = lie(liar, &mut Bytes(bytes), turns) {
        panic!("the honest loan suffers: {what}");
    }
}

/// The same of a rogue.
pub fn run_rogue(bytes: &[u8]) {
    let turns = (bytes.len() as u32 / 8).clamp(1, 400);
    if let Err((checker, what)) = go_rogue(&mut Bytes(bytes), turns, RuleSet::ALL) {
        panic!("{checker}: {what}");
    }
}
