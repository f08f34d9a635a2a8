//! The network of a fleet: each rail of a node reaches each one of each other node.

use base::ids::RailId;
use base::{Impairment, Random};
use node::Address;

use crate::network::{CALM, RAILS, draw_impairment};

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
    impairment: Impairment,
    nodes: usize,
    /// By sender, receiver and rail of the sender, the even or the odd ones: nothing passes.
    cuts: Vec<(usize, usize, u8)>,
}

impl Network {
    pub(super) fn new(random: Random, nodes: usize) -> Self {
        Self { random, impairment: CALM, nodes, cuts: Vec::new() }
    }

    /// Another impairment than now.
    pub(super) fn change(&mut self) {
        self.impairment = draw_impairment(&mut self.random, [120, 100, 40, 150], [200_000, 100_000]);
    }

    pub(super) fn calm(&mut self) {
        self.impairment = CALM;
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
        let to = usize::from(address.0[0]).wrapping_sub(1);
        let rail = RailId::ALL[usize::from(crate::network::Network::rail_of(address))];
        if to >= self.nodes || self.cuts.contains(&(from, to, own.get() % RAILS as u8)) {
            return Vec::new();
        }
        let from = crate::network::Network::address(from, own.index());
        let arrive = |arrival: base::Arrival| {
            let mut bytes = bytes.to_vec();
            arrival.corrupt(&mut bytes);
            (arrival.after_ns, Arrival { to, rail, from, bytes })
        };
        self.impairment.arrivals(&mut self.random, bytes.len()).map(arrive).collect()
    }
}
