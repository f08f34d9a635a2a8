//! The network of a fleet: each rail of a node reaches each one of each other node.

use base::Random;
use base::ids::RailId;
use node::Address;

use crate::network::{Manners, RAILS};

/// A frame that arrives.
pub(super) struct Arrival {
    pub(super) to: usize,
    /// Of the receiver.
    pub(super) rail: RailId,
    pub(super) from: Address,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Network {
    random: Random,
    manners: Manners,
    nodes: usize,
    /// By sender, receiver and rail of the sender, the even or the odd ones: nothing passes.
    cuts: Vec<(usize, usize, u8)>,
}

impl Network {
    pub(super) fn new(random: Random, nodes: usize) -> Self {
        Self { random, manners: Manners::GOOD, nodes, cuts: Vec::new() }
    }

    /// Other manners than now.
    pub(super) fn change(&mut self) {
        self.manners = Manners::any(&mut self.random, [120, 100, 40, 150], [200_000, 100_000]);
    }

    pub(super) fn calm(&mut self) {
        self.manners = Manners::GOOD;
        self.cuts.clear();
    }

    /// Something cannot be reached: one way of a rail, both ways of it, or a whole node.
    pub(super) fn cut(&mut self) {
        let random = &mut self.random;
        let (one, other, rail) =
            (random.index(self.nodes), random.index(self.nodes), random.index(RAILS) as u8);
        match random.below(3) {
            0 => self.cuts.push((one, other, rail)),
            1 => self.cuts.extend([(one, other, rail), (other, one, rail)]),
            _ => {
                let ways = (0..self.nodes).flat_map(|node| (0..RAILS as u8).map(move |rail| (node, rail)));
                self.cuts.extend(ways.flat_map(|(node, rail)| [(one, node, rail), (node, one, rail)]));
            }
        }
    }

    /// All of that can be reached again.
    pub(super) fn mend(&mut self) {
        self.cuts.clear();
    }

    /// What becomes of a frame: when it arrives, perhaps more than once.
    pub(super) fn send(
        &mut self,
        (from, own): (usize, RailId),
        address: Address,
        bytes: &[u8],
    ) -> Vec<(u64, Arrival)> {
        let (manners, random) = (self.manners, &mut self.random);
        let to = usize::from(address.0[0]).wrapping_sub(1);
        let rail = RailId::ALL[usize::from(crate::network::Network::rail_of(address))];
        if to >= self.nodes
            || self.cuts.contains(&(from, to, own.get() % RAILS as u8))
            || random.chance(manners.loss)
        {
            return Vec::new();
        }
        let copies = if random.chance(manners.repeat) { 2 } else { 1 };
        let arrival = |random: &mut Random| {
            let mut bytes = bytes.to_vec();
            if random.chance(manners.corrupt) {
                let (index, bit) = (random.index(bytes.len()), random.below(8));
                bytes[index] ^= 1 << bit;
            }
            let late = if random.chance(manners.late) { random.below(3_000_000) } else { 0 };
            let from = crate::network::Network::address(from, own.index());
            (manners.delay + random.below(manners.jitter + 1) + late, Arrival { to, rail, from, bytes })
        };
        (0..copies).map(|_| arrival(random)).collect()
    }
}
