//! In some worlds somebody who sees all frames for the lender repeats them from an address of his own, faster than the
//! network. He cannot answer what is asked there, so nothing but the questions may go there, and little before the
//! borrower has proven its own address.

use base::Random;
use base::ids::RailId;
use node::Address;

use crate::chance::Chance;
use crate::network::{Fate, Frame};
use crate::stage::LENDER;

/// Who repeats frames.
pub(crate) struct Spoofer {
    random: Random,
    /// Of a thousand frames, so many.
    share: u64,
}

impl Spoofer {
    /// In one of seven worlds.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Chance::Spoofer.of(seed);
        random.chance(150).then(|| Self { share: [100, 500, 900, 1000][random.index(4)], random })
    }

    /// Where he is on a rail.
    pub(crate) fn address(rail: u8) -> Address {
        let mut bytes = [77; 28];
        bytes[1] = rail;
        Address(bytes)
    }

    /// Whether an address is one of his.
    pub(crate) fn is_at(address: Address) -> bool {
        RailId::ALL.into_iter().any(|rail| address == Self::address(rail.get()))
    }

    /// What happens to a frame for the lender: he may repeat it, and be faster.
    pub(crate) fn repeat(&mut self, frame: &Frame, fates: &mut Vec<Fate>) {
        let arrives = fates.iter().filter_map(|fate| match fate {
            Fate::Arrives(after, _) => Some(*after),
            Fate::Lost => None,
        });
        let is_seen = |_: &u64| frame.to == LENDER && self.random.chance(self.share);
        let Some(first) = arrives.min().filter(is_seen) else { return };
        let after = self.random.below(first.max(1));
        fates.push(Fate::Arrives(after, Frame { from: Self::address(frame.rail), ..frame.clone() }));
    }
}
