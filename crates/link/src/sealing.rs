//! Key sets in use: their ciphers, and when they are worn.

use base::Rule;
use base::ids::CardGeneration;
use base::ledger::Journal;

use crate::handshake::KeySet;
use crate::seal::{Direction, FrameKeys, Opener, Seal};

/// Frames of both directions, under the secrets of one handshake, after which there is a new one: far before packet
/// numbers run out.
pub const REKEY_FRAMES: u64 = 1 << 28;

/// Bytes after which there is, too: 2^36 blocks of AES-GCM, of which an adversary who could choose them all would
/// tell the cipher from a random function with a probability below 2^-56 (the square of the blocks over 2^129).
/// AEGIS-128X2 would bear more.
pub(crate) const REKEY_BYTES: u64 = 1 << 40;

/// The two ends' agreement in use: a key set with its ciphers.
pub(crate) struct Sealing {
    pub(crate) id: u8,
    pub(crate) send: Seal,
    pub(crate) receive: Opener,
    pub(crate) send_shm: Seal,
    pub(crate) receive_shm: Seal,
    /// Names the key that this card seals with.
    pub(crate) fingerprint: u64,
}

impl Sealing {
    /// The ciphers of card `generation` under `keys`; `None` where there are no keys. `sends` is the direction of this
    /// end's frames.
    pub(crate) fn load(
        journal: Journal<'_>,
        keys: &KeySet,
        sends: Direction,
        generation: CardGeneration,
    ) -> Option<Self> {
        let (cipher, each_card) = (keys.cipher()?, journal.rule(Rule::KeyOfEachCard));
        let send = FrameKeys::new(&keys.send, cipher, sends, each_card);
        Some(Self {
            id: keys.id as u8,
            send: send.seal(generation),
            receive: Opener::new(FrameKeys::new(&keys.receive, cipher, sends.back(), each_card)),
            send_shm: Seal::shm(&keys.send),
            receive_shm: Seal::shm(&keys.receive),
            fingerprint: crate::tlp_digest(&send.key(generation)),
        })
    }
}

/// What has been sealed under the secrets of the last handshake, in both directions, as far as this card knows: its own
/// frames are under a key that no card before had.
#[derive(Default)]
pub(crate) struct Wear {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

impl Wear {
    pub(crate) fn add(&mut self, len: usize) {
        self.frames += 1;
        self.bytes += len as u64;
    }

    pub(crate) fn is_over(&self, frames: u64) -> bool {
        self.frames > frames || self.bytes > REKEY_BYTES
    }
}
