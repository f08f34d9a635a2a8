//! In some worlds somebody who sees all frames for the lender repeats them from an address of his own, faster than the
//! network. He cannot answer what is asked there, so nothing but the questions may go there, and little before the
//! borrower has proven its own address.

use node::Address;

use crate::checkers::names;
use crate::marks::Mark;
use crate::network::{Fate, Frame, RAILS};
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
    /// By loan and rail: bytes that the lender may send there, for what has come from there, and has sent there.
    allowed: Vec<[usize; RAILS]>,
    sent: Vec<[usize; RAILS]>,
}

impl Spoofer {
    /// In one of seven worlds.
    pub(crate) fn of(seed: u64, loans: usize) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ SPOOF);
        random.chance(150).then(|| Self {
            share: [100, 500, 900, 1000][random.index(4)],
            random,
            allowed: vec![[0; RAILS]; loans],
            sent: vec![[0; RAILS]; loans],
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

    /// The lender has accepted a frame.
    pub(crate) fn note_spoofed(&mut self, loan: usize, rail: u8, from: Address, len: usize) {
        if let Some(spoofer) = self.spoofer.as_mut().filter(|_| from == Spoofer::address(rail)) {
            spoofer.allowed[loan][usize::from(rail)] += len * AMPLIFICATION + CHALLENGE_BYTES;
            self.marks.set(Mark::Spoofed);
        }
        let Some(parts) = self.ledger(LENDER).loan(loan, 0) else { return };
        let is_proven = |rail: usize| parts.cells.peers[rail].get() == Spoofer::address(rail as u8);
        if (0..RAILS).any(is_proven) {
            let what = format!("data of loan {loan} go to an address that has answered nothing");
            self.fail(names::ADDRESSES, what);
        }
    }

    /// The lender has seen a frame that had come before: if it is authentic, it may ask who is there.
    pub(crate) fn note_repeated(&mut self, loan: usize, rail: u8, from: Address, len: usize) {
        if let Some(spoofer) = self.spoofer.as_mut().filter(|_| from == Spoofer::address(rail)) {
            spoofer.allowed[loan][usize::from(rail)] += CHALLENGE_BYTES.min(len * AMPLIFICATION);
        }
    }

    /// The lender sends a frame that belongs to no handshake.
    pub(crate) fn check_address(&mut self, to: Address, loan: usize, rail: u8, len: usize) {
        let Some(spoofer) = self.spoofer.as_mut().filter(|_| to == Spoofer::address(rail)) else { return };
        let place = (loan, usize::from(rail));
        spoofer.sent[place.0][place.1] += len;
        let (sent, allowed) = (spoofer.sent[place.0][place.1], spoofer.allowed[place.0][place.1]);
        if sent > allowed {
            let what = format!("{sent} bytes of loan {loan} went where nothing was answered, not {allowed}");
            self.fail(names::ADDRESSES, what);
        }
    }
}
