//! The network between the nodes: each rail reaches each other one, and each direction is cut by itself.

use base::ids::RailId;
use base::times::HANDSHAKE_RETRY_MAX;
use base::{Arrival, Impairment, Instant, Random};
use link::frame::{Header, MAX_FRAME, ROUTE};
use node::{Address, Card, Egress};

use crate::checkers::freshness::Origin;
use crate::checkers::single_owner::Life;
use crate::stage::{LENDER, NODES};

/// Rails of most simulated nodes.
pub(crate) const RAILS: usize = 2;
/// Old frames that are kept for replays, by direction.
const ARCHIVE: usize = 48;

/// A frame under way.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) to: usize,
    /// The sender's rail.
    pub(crate) rail: u8,
    /// The receiver's.
    pub(crate) at: u8,
    pub(crate) from: Address,
    pub(crate) bytes: Vec<u8>,
    pub(crate) origin: Origin,
    /// When it was sent first.
    pub(crate) first: u64,
    /// The same; 0 if somebody else sends it again, by which nobody has heard its sender.
    pub(crate) sent: u64,
    /// By whom.
    pub(crate) by: Life,
    /// To the lender: when that has sent the newest packet that is acknowledged here.
    pub(crate) proof: Option<u64>,
}

impl Frame {
    /// One that somebody sends from a rail to another one.
    pub(crate) fn new(
        now: u64,
        by: Life,
        (to, at): (usize, u8),
        (from, rail): (Address, u8),
        bytes: &[u8],
    ) -> Self {
        let (bytes, origin, proof) = (bytes.to_vec(), Origin::Peer, None);
        Self { to, rail, at, from, bytes, origin, first: now, sent: now, by, proof }
    }
}

/// What a card sends in so many attempts to reach the lender, for whoever repeats it later.
pub(crate) fn first_messages(
    card: &mut Card<'_>,
    attempts: u32,
    (from, by): (Address, Life),
    now: Instant,
) -> Vec<Frame> {
    let (mut frames, mut buffer) = (Vec::new(), vec![0; MAX_FRAME]);
    for attempt in 0..attempts {
        let now = now + HANDSHAKE_RETRY_MAX * attempt;
        card.handle_timeout(now);
        while let Some(sent) = card.poll_transmit(now, &mut buffer) {
            let (Egress::Rail(rail), Some(to)) = (sent.egress, sent.to) else { continue };
            let (to, bytes) = ((LENDER, Network::rail_of(to)), &buffer[..sent.len]);
            frames.push(Frame::new(0, by, to, (from, rail.get()), bytes));
        }
    }
    frames
}

/// A network as it should be.
pub(crate) const CALM: Impairment = Impairment { delay_ns: 20_000, jitter_ns: 10_000, ..Impairment::NONE };

/// An impaired network: it loses, repeats, corrupts and holds back fewer than so many of a thousand frames, and takes
/// so many nanoseconds and so much more at most.
pub(crate) fn draw_impairment(random: &mut Random, most: [u64; 4], [delay, jitter]: [u64; 2]) -> Impairment {
    let share = |most: u64| if random.chance(500) { random.below(most) as u32 * 1000 } else { 0 };
    let [drop_ppm, repeat_ppm, corrupt_ppm, reorder_ppm] = most.map(share);
    let (delay_ns, jitter_ns) = (random.range(5_000, delay), random.range(1_000, jitter));
    Impairment { drop_ppm, repeat_ppm, corrupt_ppm, reorder_ppm, delay_ns, jitter_ns, ..CALM }
}

/// What becomes of a frame.
pub(crate) enum Fate {
    /// It arrives after so many nanoseconds.
    Arrives(u64, Frame),
    Lost,
}

pub(crate) struct Network {
    random: Random,
    impairment: Impairment,
    /// By sending node and rail, of those with more the even and the odd ones: how many cuts are in the way.
    cuts: [[u32; RAILS]; NODES],
    /// Nodes that nobody reaches, and that reach nobody.
    pub(crate) islands: [bool; NODES],
    archive: [Vec<Frame>; NODES],
    nodes: usize,
}

impl Network {
    pub(crate) fn new(random: Random, nodes: usize) -> Self {
        Self {
            random,
            impairment: CALM,
            cuts: [[0; RAILS]; NODES],
            islands: [false; NODES],
            archive: [const { Vec::new() }; NODES],
            nodes,
        }
    }

    /// Which rail an address is of.
    pub(crate) fn rail_of(address: Address) -> u8 {
        address.0[1] % RailId::COUNT as u8
    }

    /// The address of a node on a rail.
    pub(crate) fn address(node: usize, rail: usize) -> Address {
        let mut bytes = [0; 28];
        (bytes[0], bytes[1]) = (1 + node as u8, rail as u8);
        Address(bytes)
    }

    /// Another impairment than now.
    pub(crate) fn change(&mut self) {
        self.impairment = draw_impairment(&mut self.random, [150, 100, 60, 200], [300_000, 200_000]);
    }

    /// Everything passes from now on.
    pub(crate) fn calm(&mut self) {
        self.impairment = CALM;
        self.cuts = [[0; RAILS]; NODES];
        self.islands = [false; NODES];
    }

    /// Rails go. Bit `2 * node + rail` stands for what `node` sends on `rail`: bits 0 and 2 are rail 0, bits 1 and 3
    /// rail 1.
    pub(crate) fn cut(&mut self, rails: u64) {
        self.each_rail(rails, |cuts| *cuts += 1);
    }

    /// They come back.
    pub(crate) fn mend(&mut self, rails: u64) {
        self.each_rail(rails, |cuts| *cuts = cuts.saturating_sub(1));
    }

    fn each_rail(&mut self, rails: u64, change: impl Fn(&mut u32)) {
        // The rival's rails go with the borrower's.
        let bits = [rails, rails >> RAILS, rails >> RAILS];
        for (bits, cuts) in bits.into_iter().zip(&mut self.cuts) {
            (0..RAILS).filter(|rail| bits & 1 << rail != 0).for_each(|rail| change(&mut cuts[rail]));
        }
    }

    /// The rails of a node on which nothing leaves, as bits.
    pub(crate) fn lost_carriers(&self, node: usize) -> u8 {
        (0..RAILS).filter(|rail| self.cuts[node][*rail] > 0).map(|rail| 1 << rail).sum()
    }

    /// Whether something is cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.cuts.iter().flatten().any(|cuts| *cuts > 0)
    }

    /// Whether both rails of the first two nodes are, one way or the other.
    pub(crate) fn are_both_cut(&self) -> bool {
        (0..RAILS).all(|rail| (0..2).any(|node| self.cuts[node][rail] > 0))
    }

    /// A node sends a frame; what the network makes of it.
    pub(crate) fn send(&mut self, frame: Frame) -> Vec<Fate> {
        let (node, rail) = (frame.by.node, usize::from(frame.rail));
        if frame.to >= self.nodes {
            // To whoever has repeated something.
            return vec![Fate::Lost];
        }
        self.keep(node, &frame);
        let reaches = !self.islands[node] && !self.islands[frame.to];
        if self.cuts[node][rail % RAILS] > 0 || !reaches {
            return vec![Fate::Lost];
        }
        let arrivals = self.impairment.arrivals(&mut self.random, frame.bytes.len());
        let arrive = |arrival: Arrival| {
            let mut frame = frame.clone();
            arrival.corrupt(&mut frame.bytes);
            // A switch may have changed the route.
            if arrival.flipped.is_some_and(|(index, _)| index != ROUTE) {
                frame.origin = Origin::Forger;
            }
            Fate::Arrives(arrival.after_ns, frame)
        };
        let fates: Vec<Fate> = arrivals.map(arrive).collect();
        if fates.is_empty() { vec![Fate::Lost] } else { fates }
    }

    /// Something that never was on the network may still be sent there by whoever has seen it.
    pub(crate) fn keep_foreign(&mut self, node: usize, frame: Frame) {
        if self.random.chance(100) {
            self.keep(node, &frame);
        }
    }

    fn keep(&mut self, node: usize, frame: &Frame) {
        let archive = &mut self.archive[node];
        if archive.len() < ARCHIVE {
            archive.push(frame.clone());
        } else if self.random.chance(100) {
            let index = self.random.index(ARCHIVE);
            archive[index] = frame.clone();
        }
    }

    /// A frame that was sent before, whenever.
    pub(crate) fn replay(&mut self) -> Option<Frame> {
        let archive = &self.archive[self.random.index(self.nodes)];
        if archive.is_empty() {
            return None;
        }
        Some(Frame { sent: 0, ..archive[self.random.index(archive.len())].clone() })
    }

    /// A frame that nobody has sent: a header that looks right, and a body that cannot be.
    pub(crate) fn forge(&mut self) -> Option<Frame> {
        let mut frame = self.replay()?;
        frame.origin = Origin::Forger;
        if let Ok(mut header) = Header::parse(&frame.bytes) {
            header.packet_number += self.random.below(1000);
            header.card_generation.0 += self.random.below(3);
            header.incarnation.0 += self.random.below(2);
            header.write(&mut frame.bytes);
        }
        let (start, len) = (self.random.index(frame.bytes.len()), frame.bytes.len());
        match self.random.below(4) {
            0 => frame.bytes.truncate(start),
            1 => frame.bytes[start..].fill(0),
            2 => frame.bytes.extend_from_slice(&[0x5a; 40]),
            _ => {}
        }
        let last = frame.bytes.len().min(len).checked_sub(1)?;
        frame.bytes[last] ^= 1 + self.random.below(255) as u8;
        Some(frame)
    }
}
