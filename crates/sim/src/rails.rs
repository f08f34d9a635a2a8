//! Which rails simulated nodes have. In most worlds two each; in some other ones than their peers.

use base::ids::RailId;
use node::{RailConfig, RailMode, Rails};

use crate::chance::Chance;
use crate::network::RAILS;

/// Those of nodes that have two.
const ALIKE: u8 = (1 << RAILS) - 1;

/// Rails of two ends, as bits: one and two, two and one, two and three of which one has a counterpart, two and two of
/// which none has, one and one.
const PAIRS: [[u8; 2]; 6] = [
    [0b0001, 0b0011],
    [0b0011, 0b0001],
    [0b0110, 0b1101],
    [0b1011, 0b0101],
    [0b0011, 0b1100],
    [0b0010, 0b0100],
];

/// Rails of a lender and of those who borrow from it, in the world of `seed`.
pub(crate) fn of_world(seed: u64) -> [u8; 2] {
    let mut random = Chance::Rails.of(seed);
    if random.chance(250) { PAIRS[random.index(PAIRS.len())] } else { [ALIKE; 2] }
}

/// How a lender and those who borrow from it use several rails, in the world of `seed`.
pub(crate) fn modes_of_world(seed: u64) -> [RailMode; 2] {
    let mut random = Chance::RailMode.of(seed);
    [(); 2].map(|()| if random.chance(300) { RailMode::Standby } else { RailMode::Balance })
}

/// Whether nodes of the fleet of `seed` have rails that come and go.
pub(crate) fn are_unlike(seed: u64) -> bool {
    Chance::Rails.of(seed).chance(400)
}

/// Those that the lines of a node of the fleet of `seed` name.
pub(crate) fn of_member(seed: u64, node: usize) -> u8 {
    if !are_unlike(seed) {
        return ALIKE;
    }
    let mut random = Chance::Rails.of(seed ^ (node as u64 + 1) << 8);
    random.range(1, 15) as u8
}

/// As a card is told.
pub(crate) fn config(rails: u8, max_frame: usize) -> Rails {
    RailId::ALL.map(|rail| has(rails, rail).then_some(RailConfig { max_frame }))
}

/// The rails of a mask.
pub(crate) fn each(rails: u8) -> impl Iterator<Item = RailId> {
    RailId::ALL.into_iter().filter(move |rail| has(rails, *rail))
}

fn has(rails: u8, rail: RailId) -> bool {
    rails & 1 << rail.get() != 0
}
