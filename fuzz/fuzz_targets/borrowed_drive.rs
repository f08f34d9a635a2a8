//! What a peer that knows the key can do to a card with a borrowed drive: frames, records and TLPs of any content, in
//! any order, up to the function or driver behind them.
#![no_main]

use base::ledger::Arena;
use libfuzzer_sys::fuzz_target;
use rigs::cards::{End, Step, World};

fuzz_target!(|steps: Vec<Step>| {
    let arena = Arena::default();
    let mut world = World::new(&arena, End::Borrower);
    steps.iter().take(64).for_each(|step| world.step(step));
});
