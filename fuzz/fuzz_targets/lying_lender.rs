//! A lender lies to the driver of a drive that is borrowed, of another loan than the one that must not suffer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::liars::Liar;

fuzz_target!(|bytes: &[u8]| rigs::liars::run(Liar::Lender, bytes));
