//! The ledger that a dead card left, with other bytes in its header and undo log: a successor takes it or says why not,
//! and touches nothing outside of it.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rigs::cards::End;
use rigs::ledger;

#[derive(Arbitrary, Debug)]
struct Input {
    is_lender: bool,
    /// Words of the beginning of the ledger, and what they are instead.
    header: Vec<(u8, u64)>,
    /// Entries of the undo log: offset, length, value.
    saved: Vec<(u32, u8, u64)>,
    /// Whether the log says that it has these entries.
    is_counted: bool,
}

fuzz_target!(|input: Input| {
    let end = if input.is_lender { End::Lender } else { End::Borrower };
    let mut memory = ledger::left(end);
    if input.is_counted {
        memory.count(input.saved.len() as u64);
    }
    for (at, &(offset, len, old)) in input.saved.iter().take(ledger::ENTRIES).enumerate() {
        memory.save(at, offset, len, old);
    }
    for &(at, word) in &input.header {
        memory.word(usize::from(at), word);
    }
    memory.succeed(end);
});
