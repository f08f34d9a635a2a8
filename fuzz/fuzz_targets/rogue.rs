//! A node that is who it says lies about everything else, to two others that lend to each other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rigs::liars::run_rogue(bytes));
