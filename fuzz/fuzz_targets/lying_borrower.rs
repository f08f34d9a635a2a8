//! A borrower with the key of a loan lies to its lender, of another loan than the one that must not suffer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::liars::Liar;

fuzz_target!(|bytes: &[u8]| rigs::liars::run(Liar::Borrower, bytes));
