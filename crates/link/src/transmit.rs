//! Frames that go out.

use crate::answered::CallName;
use crate::paths::PathId;

/// A frame that has been built.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// The path it shall take.
    pub path: PathId,
    /// Its bytes.
    pub len: usize,
    /// Whether it is a message of a handshake.
    pub is_handshake: bool,
    /// Of an answer: it goes to whoever has sent this.
    pub answers: Option<CallName>,
    /// The challenge in it: it goes to the address that this is about, and nowhere else.
    pub challenge: Option<u64>,
    /// It carries TLPs: it goes to where the peer has proven to be on this very path.
    pub has_tlps: bool,
    /// Nothing is known that would follow it at once.
    pub is_last: bool,
}

/// Where frames are built: those of the path through shared memory right where the peer reads them.
pub trait FrameBuffer {
    /// Memory for the largest frame that `path` takes. It is written only.
    fn of(&mut self, path: PathId) -> &mut [u8];
}

impl FrameBuffer for [u8] {
    fn of(&mut self, _path: PathId) -> &mut [u8] {
        self
    }
}

impl FrameBuffer for Vec<u8> {
    fn of(&mut self, _path: PathId) -> &mut [u8] {
        self
    }
}
