//! In some worlds somebody who sees all frames for the lender repeats them from an address of his own, faster than the
//! network. He cannot answer what is asked there, so nothing but the questions may go there, and little before the
//! borrower has proven its own address.

use std::collections::BTreeMap;

use base::ids::RailId;
use link::PathId;
use node::Address;

use crate::checkers::names;
use crate::marks::Mark;
use crate::network::{Fate, Frame, Network};
use crate::random::Random;
use crate::world::{LENDER, World};

/// Told from other seeds.
const SPOOF: u64 = 0x5b00_f000_0000;
/// What may leave for an address that is not proven: so many times of what came from there (RFC 9000 §8.1), and a
/// challenge for each frame.
const AMPLIFICATION: usize = 3;
const CHALLENGE_BYTES: usize = 128;

/// Who repeats frames.
pub(crate) struct Spoofer {
    random: Random,
    /// Of a thousand frames, so many.
    share: u64,
    /// By the lender's peer and that one's rail: bytes that it may send there, for what has come from there, and has
    /// sent there.
    allowed: BTreeMap<(usize, u8), usize>,
    sent: BTreeMap<(usize, u8), usize>,
}

impl Spoofer {
    /// In one of seven worlds.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ SPOOF);
        random.chance(150).then(|| Self {
            share: [100, 500, 900, 1000][random.index(4)],
            random,
            allowed: BTreeMap::new(),
            sent: BTreeMap::new(),
        })
    }

    fn address(rail: u8) -> Address {
        let mut bytes = [77; 28];
        bytes[1] = rail;
        Address(bytes)
    }
}

impl World<'_> {
    /// What happens to a frame for the lender: somebody may repeat it, and be faster.
    pub(crate) fn spoof(&mut self, frame: &Frame, fates: &mut Vec<Fate>) {
        let Some(spoofer) = self.spoofer.as_mut().filter(|_| frame.to == LENDER) else { return };
        let arrives = fates.iter().filter_map(|fate| match fate {
            Fate::Arrives(after, _) => Some(*after),
            Fate::Lost => None,
        });
        let Some(first) = arrives.min().filter(|_| spoofer.random.chance(spoofer.share)) else { return };
        let after = spoofer.random.below(first.max(1));
        fates.push(Fate::Arrives(after, Frame { from: Spoofer::address(frame.rail), ..frame.clone() }));
    }

    /// The lender has accepted a frame of the peer in `place`.
    pub(crate) fn note_spoofed(&mut self, place: usize, rail: u8, from: Address, len: usize) {
        if let Some(spoofer) = self.spoofer.as_mut().filter(|_| from == Spoofer::address(rail)) {
            *spoofer.allowed.entry((place, rail)).or_default() += len * AMPLIFICATION + CHALLENGE_BYTES;
            self.marks.set(Mark::Spoofed);
        }
        let Some(peer) = self.ledger(LENDER).peer(place) else { return };
        let is_proven = |(_, address): (PathId, Address)| {
            RailId::ALL.into_iter().any(|rail| address == Spoofer::address(rail.get()))
        };
        if peer.addresses().any(is_proven) {
            let what = format!("data for peer {place} go to an address that has answered nothing");
            self.fail(names::ADDRESSES, what);
        }
    }

    /// The lender has seen a frame that had come before: if it is authentic, it may ask who is there.
    pub(crate) fn note_repeated(&mut self, place: usize, rail: u8, from: Address, len: usize) {
        if let Some(spoofer) = self.spoofer.as_mut().filter(|_| from == Spoofer::address(rail)) {
            *spoofer.allowed.entry((place, rail)).or_default() += CHALLENGE_BYTES.min(len * AMPLIFICATION);
        }
    }

    /// The lender sends the peer in `place` a frame that belongs to no handshake.
    pub(crate) fn check_address(&mut self, to: Address, place: usize, len: usize) {
        let rail = Network::rail_of(to);
        let Some(spoofer) = self.spoofer.as_mut().filter(|_| to == Spoofer::address(rail)) else { return };
        let sent = spoofer.sent.entry((place, rail)).or_default();
        *sent += len;
        let (sent, allowed) = (*sent, spoofer.allowed.get(&(place, rail)).copied().unwrap_or_default());
        if sent > allowed {
            let what =
                format!("{sent} bytes for peer {place} went where nothing was answered, not {allowed}");
            self.fail(names::ADDRESSES, what);
        }
    }
}
