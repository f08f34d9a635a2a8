//! What an agent tells its card and hears of it: any bytes are a plan, a message, or an error that can be shown.
#![no_main]

use base::ids::NodeId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    io::fuzzing::plan(NodeId::numbered(1), bytes);
    io::fuzzing::messages(bytes);
});
