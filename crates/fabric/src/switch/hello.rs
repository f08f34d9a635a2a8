//! How two switches that two links join know a link that carries frames one way only: each says at both of its ports
//! whether anything comes by them (RFC 5880 §6.1 has the like).
//!
//! A hello is the header of a frame that names no domain, one byte, and the tag, which is zeroes: nothing proves it. A
//! word that nothing comes is heeded only where none says otherwise: who can send in the name of the other switch, but
//! not keep back what that says, changes nothing.

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

/// How long a word that something comes counts for more than one that nothing does.
pub(super) const REFUTED: Duration = Duration::from_millis(250);
/// At a port that is none of a pair somebody is told for so long after he asked, or was heard.
pub(super) const ANSWERED: Duration = Duration::from_secs(60);

// Two that are lost in a row refute nothing.
const _: () =
    assert!(2 * HELLO_EVERY.as_nanos() < REFUTED.as_nanos() && REFUTED.as_nanos() < RAIL_VERDICT.as_nanos());

/// What a switch says at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Something has come by that port lately.
    pub(super) hears: bool,
    /// The port is one of a pair, and whoever is behind it is to say hello, too.
    pub(super) asks: bool,
}

impl Hello {
    /// As a frame.
    pub(super) fn write(self, fabric: u32, group: Group) -> [u8; HELLO_LEN] {
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
        frame[HEADER_LEN] = u8::from(self.hears) | u8::from(self.asks) << 1;
        frame
    }

    /// The same the other way; `None`: it is no hello.
    pub(super) fn read(frame: &[u8]) -> Option<Self> {
        let said = (frame.len() == HELLO_LEN).then(|| frame[HEADER_LEN])?;
        (said <= 3).then_some(Self { hears: said & 1 == 1, asks: said & 2 == 2 })
    }
}
