//! How two switches that two links join know a link that carries frames one way only: each says at both of its ports
//! whether anything comes by them (RFC 5880 §6.1 has the like).
//!
//! A hello is the header of a frame that names no domain, one byte, and the tag, which is zeroes: nothing proves it.
//! Who can send in the name of the other switch has a link left that carries frames, while the other one does, too.

use core::time::Duration;

use base::frame::{HEADER_LEN, HELLO, OVERHEAD, RawHeader, Route, VERSION};
use base::ids::Group;
use base::times::{HEARTBEAT, RAIL_VERDICT};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a hello.
pub const HELLO_LEN: usize = OVERHEAD + 1;
/// Between two of them at a port.
pub const HELLO_EVERY: Duration = HEARTBEAT;

// One that is lost makes no port seem down.
const _: () = assert!(2 * HELLO_EVERY.as_nanos() < RAIL_VERDICT.as_nanos());

/// What is said at a port that was heard lately, or was not.
pub(super) fn write(fabric: u32, group: Group, is_heard: bool) -> [u8; HELLO_LEN] {
    let mut frame = [0; HELLO_LEN];
    let raw = RawHeader {
        version: VERSION,
        kind: HELLO,
        route: Route::START.byte(),
        fabric: fabric.into(),
        group: group.0.into(),
        ..FromBytes::read_from_bytes(&[0; HEADER_LEN][..]).expect("a header of zeroes")
    };
    frame[..HEADER_LEN].copy_from_slice(raw.as_bytes());
    frame[HEADER_LEN] = u8::from(is_heard);
    frame
}

/// Whether its sender hears us; `None`: it is no hello.
pub(super) fn read(frame: &[u8]) -> Option<bool> {
    let said = (frame.len() == HELLO_LEN).then(|| frame[HEADER_LEN])?;
    (said <= 1).then_some(said == 1)
}
