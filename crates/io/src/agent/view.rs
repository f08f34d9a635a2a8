use std::collections::BTreeMap;
use std::time::Duration;

use base::RuleSet;
use base::ids::{NodeId, RailId};
use node::{
    Bdf, ChannelStats, Decoder, DriverCells, EdgeGauges, EndCells, FunctionCells, Grant, LoanParts,
    LobbyStats, NodeLedger, OfferCells, PeerCells, ServerCells, SessionCells, Sighting, SlotCells,
    StreamStats, Target, Tenancy,
};

use super::{CardRecord, Edge, LoanEnd, LoanSpec, NodeSpec, Rail};
use crate::address::RailAddress;
use crate::impair::ImpairmentCells;
use crate::memory::Mapping;
use crate::plan::{MediumKind, SharedCells, parts_of};

/// Reads of a value that keeps changing.
const READS: usize = 16;

/// The state of a node's data plane, read from the counters its card keeps: the card is not asked, and not waited for.
pub struct View<'a> {
    spec: &'a NodeSpec,
    ledger: NodeLedger<'a>,
    shared: &'a SharedCells,
    /// Places of peers that share memory with this node.
    sharing: Vec<usize>,
    /// What became of the cards.
    pub card: CardRecord,
    /// The process id of the card that stands by.
    pub standby: Option<i32>,
}

/// One rail of a loan.
#[derive(Clone, Debug)]
pub struct RailView {
    /// The node's own address.
    pub local: RailAddress,
    /// To which rail of the peer it leads.
    pub to: Option<RailId>,
    /// The peer's address, if it is known and the rail leads there.
    pub peer: Option<RailAddress>,
    /// Whether it answers.
    pub up: bool,
    /// Smoothed round trip.
    pub round_trip: Option<Duration>,
    /// Share of packets lost.
    pub loss_ratio: f64,
}

/// Memory that is shared with a peer.
#[derive(Clone, Debug)]
pub struct SharedMemoryView {
    /// Whether the peer answers there.
    pub up: bool,
    /// Smoothed round trip.
    pub round_trip: Option<Duration>,
    /// Share of packets lost.
    pub loss_ratio: f64,
}

impl<'a> View<'a> {
    pub(super) fn new(
        mapping: &'a Mapping,
        spec: &'a NodeSpec,
        (card, standby): (CardRecord, Option<i32>),
        sharing: Vec<usize>,
    ) -> Self {
        let (ledger, shared) = parts(mapping);
        Self { spec, ledger, shared, sharing, card, standby }
    }

    pub(super) fn ledger(&self) -> NodeLedger<'a> {
        self.ledger
    }

    /// What the node was started with.
    pub fn spec(&self) -> &'a NodeSpec {
        self.spec
    }

    /// Each loan with its counters.
    pub fn loans(&self) -> impl Iterator<Item = (&'a LoanSpec, LoanView<'a>)> + use<'a> {
        let cells = self.ledger.loans();
        let loans = self.spec.loans.iter().enumerate();
        // Many loans are with few peers, and an id is a hash.
        let mut peers = BTreeMap::new();
        loans.map(move |(place, spec)| {
            let parts = cells.get(place, spec.config.life);
            let mut known = |peer| *peers.entry(peer).or_insert_with(|| with_node(cells.peer(peer)));
            (spec, LoanView::new(parts, &mut known))
        })
    }

    /// Whether any of them is for a virtual machine.
    pub fn has_slots(&self) -> bool {
        let is_slot =
            |loan: &LoanSpec| matches!(loan.config.role, LoanEnd::Borrow { edge: Edge::Vm { .. }, .. });
        self.spec.loans.iter().any(is_slot)
    }

    /// The same of one place, if there is such a one.
    pub fn loan(&self, place: usize) -> Option<(&'a LoanSpec, LoanView<'a>)> {
        let spec = self.spec.loans.get(place)?;
        let parts = self.ledger.loan(place, spec.config.life);
        Some((spec, LoanView::new(parts, |peer| with_node(self.ledger.peer(peer)))))
    }

    /// What the channels have counted, one for each peer.
    pub fn channels(&self) -> impl Iterator<Item = (NodeId, &'a ChannelStats)> + use<'a> {
        self.ledger.peers().filter_map(|(_, peer)| Some((peer.node()?, peer.channel.stats())))
    }

    /// What was counted of those who call.
    pub fn lobby(&self) -> &'a LobbyStats {
        self.ledger.root.lobby.stats()
    }

    /// What the card has counted beside its loans.
    pub fn gauges(&self) -> &'a node::Gauges {
        &self.ledger.root.gauges
    }

    /// What its cards have seen of nodes that somebody should know of.
    pub fn sightings(&self) -> impl Iterator<Item = Sighting> + use<'a> {
        self.ledger.root.sightings.all()
    }

    /// Where a node is, by rail, as far as that is known.
    pub fn addresses_of(&self, node: NodeId) -> Vec<RailAddress> {
        let mut peers = self.ledger.peers().filter(|(_, peer)| peer.node() == Some(node));
        let addresses = peers.next().map(|(_, peer)| peer.addresses());
        addresses.into_iter().flatten().filter_map(|(_, address)| address.try_into().ok()).collect()
    }

    /// This one of [`NodeSpec::rails`], as a loan has it.
    pub fn rail(&self, loan: LoanView<'_>, rail: &Rail) -> RailView {
        let (edge, local, id) = (loan.edge(), rail.socket.local(), rail.id);
        let rail = id.index();
        let (rtt, state) = (edge.rtt_ns[rail].get(), edge.rail_state[rail].get());
        let to = u8::try_from(edge.rail_peer[rail].get()).ok().and_then(RailId::new);
        let address = || loan.peer?.address_between(id, to?).filter(|_| state > 0);
        RailView {
            local,
            to,
            peer: settled(address).flatten().and_then(|peer| peer.try_into().ok()),
            up: state == 2,
            round_trip: (rtt > 0).then(|| Duration::from_nanos(rtt)),
            loss_ratio: edge.loss_ppm[rail].get() as f64 / 1e6,
        }
    }

    /// The memory that is shared with the peer of `loan`, if any is.
    pub fn shared_memory(&self, loan: LoanView<'_>) -> Option<SharedMemoryView> {
        loan.peer_place().filter(|peer| self.sharing.contains(peer))?;
        let edge = loan.edge();
        let rtt = edge.shm_rtt_ns.get();
        Some(SharedMemoryView {
            up: edge.shm_state.get() == 2,
            round_trip: (rtt > 0).then(|| Duration::from_nanos(rtt)),
            loss_ratio: edge.shm_loss_ppm.get() as f64 / 1e6,
        })
    }

    /// What the peer of the loan in this place reaches of this node, at most `most` of it, and how many grants there
    /// are.
    pub fn grants(
        &self,
        (place, loan, cells): (usize, &LoanSpec, LoanView<'_>),
        most: usize,
    ) -> (Vec<Grant>, usize) {
        let requester = node::requester_of(place);
        let fixed: Vec<Grant> = match &loan.config.role {
            LoanEnd::Lend { .. } => node::granted_to_host(place).collect(),
            LoanEnd::Borrow { edge: Edge::Vm { .. }, .. } => vec![node::granted_to_slot(requester)],
            LoanEnd::Borrow { edge: Edge::Nbd { .. } | Edge::Load(_), .. } => {
                node::granted_to_drive(place).collect()
            }
            LoanEnd::Vacant { .. } => Vec::new(),
        };
        let guest = cells.slot().filter(|(_, slot)| !slot.is_closed_out()).map(|(session, _)| session);
        let maps = guest.map_or(0, SessionCells::map_count);
        let mapped =
            (0..maps).filter_map(|at| settled(|| guest.and_then(|session| session.map(at))).flatten());
        let count = fixed.len() + maps;
        let mapped = mapped.map(|mapping| node::granted_by_guest(requester, &mapping));
        (fixed.into_iter().chain(mapped).take(most).collect(), count)
    }

    /// For whom a lent function is kept that has no stream of it, and for how long that node has not been heard: how
    /// long that may last, [`node::LendConfig::patience`] says.
    pub fn absent_holder(&self, loan: &LoanSpec, cells: LoanView<'_>) -> Option<(Tenancy, Duration)> {
        let lent = loan.lent()?;
        let offer = cells.offer()?;
        // A name and ids, of which any bytes will do.
        let (tenancy, heard) = settled(|| offer.absent_holder()).flatten()?;
        lent.is_kept_for(tenancy.node).then(|| (tenancy, crate::card::now().since(heard)))
    }

    /// Who answers for which address of this node.
    pub fn decoder(&self) -> Decoder<Target> {
        let loans = self.spec.loans.iter().enumerate();
        let domain_of = |loan| self.spec.domain_of(loan);
        node::decoder_of(
            loans.filter_map(|(place, loan)| Some((place, loan.config.role.kind()?, domain_of(loan)))),
        )
    }

    /// How the medium of a lent loan is driven.
    pub fn medium(&self, loan: &LoanSpec) -> Option<MediumKind> {
        let image = &self.spec.drive(loan.lent()?.drive)?.image;
        Some(super::medium_of(image, self.has_ring()))
    }

    /// What is done on purpose to the rail of this name.
    pub fn impairment(&self, name: &str) -> Option<&'a ImpairmentCells> {
        let rail = self.spec.rails.iter().find(|rail| rail.name == name)?;
        Some(&self.shared.impairments[rail.id.index()])
    }

    /// Now, by the clock of the ledger.
    pub fn now(&self) -> base::Instant {
        crate::card::now()
    }

    /// Seconds since the peer of a loan was heard.
    pub fn silence(&self, loan: LoanView<'_>) -> Duration {
        crate::card::now().since(base::Instant::from_nanos(loan.edge().last_heard.get()))
    }

    fn has_ring(&self) -> bool {
        self.shared.ring.is_made()
    }
}

/// What the ledger has of a loan: nothing, if the place is vacant or its card has not begun.
#[derive(Clone, Copy)]
pub struct LoanView<'a> {
    parts: Option<LoanParts<'a>>,
    /// The node that it is with, or was last.
    peer: Option<&'a PeerCells>,
}

impl<'a> LoanView<'a> {
    fn new(
        parts: Option<LoanParts<'a>>,
        mut peer: impl FnMut(usize) -> Option<(&'a PeerCells, NodeId)>,
    ) -> Self {
        let peer = parts.and_then(|parts| peer(parts.cells.peer()?));
        // The place may have another node since the loan has ended.
        let met = parts.and_then(|parts| parts.cells.edge.peer()).map(|(node, _)| node);
        let peer = peer.filter(|(_, node)| met.is_none_or(|met| met == *node));
        Self { parts, peer: peer.map(|(cells, _)| cells) }
    }

    /// The place of the node that it is with, or was last.
    pub fn peer_place(&self) -> Option<usize> {
        self.peer?;
        self.parts?.cells.peer()
    }

    /// Its gauges.
    pub fn edge(&self) -> &'a EdgeGauges {
        self.parts.map_or(&node::NO_GAUGES, |parts| &parts.cells.edge)
    }

    /// What the channel that carries it has counted, for all loans with that node.
    pub fn channel(&self) -> Option<&'a ChannelStats> {
        self.peer.map(|peer| peer.channel.stats())
    }

    /// What its stream has counted.
    pub fn stream(&self) -> Option<&'a StreamStats> {
        self.parts.map(|parts| parts.cells.stream.stats())
    }

    /// What its requests bear in the domain of its peer, once its stream has been open.
    pub fn known_as(&self) -> Option<Bdf> {
        self.parts.map(|parts| parts.known_as())
    }

    /// How far into the aperture of its peer's domain its requests lead, once its stream has been open.
    pub fn leads_to(&self) -> Option<u64> {
        self.parts.map(|parts| parts.leads_to())
    }

    /// Of what is lent: who has it.
    pub fn offer(&self) -> Option<&'a OfferCells> {
        self.controller()?;
        self.parts.map(|parts| &parts.cells.offer)
    }

    /// A lent function.
    pub fn controller(&self) -> Option<&'a FunctionCells> {
        if let EndCells::Lent(controller) = self.parts?.end { Some(controller) } else { None }
    }

    /// Driver and NBD edge of a borrowed drive.
    pub fn drive(&self) -> Option<(&'a DriverCells, &'a ServerCells)> {
        if let EndCells::Drive { driver, server } = self.parts?.end { Some((driver, server)) } else { None }
    }

    /// The client of a slot.
    pub fn session(&self) -> Option<&'a SessionCells> {
        self.slot().map(|(session, _)| session)
    }

    /// Client and function of a slot.
    pub fn slot(&self) -> Option<(&'a SessionCells, &'a SlotCells)> {
        if let EndCells::Slot { session, slot } = self.parts?.end { Some((session, slot)) } else { None }
    }
}

/// A peer's cells, if they are anybody's, and whose.
fn with_node(peer: Option<&PeerCells>) -> Option<(&PeerCells, NodeId)> {
    peer.and_then(|peer| Some((peer, peer.node()?)))
}

/// Makes new memory the ledger of a node, or tells it that it has grown: no card has it.
pub(super) fn entitle(mapping: &Mapping, spec: &NodeSpec) {
    // SAFETY: the agent has made the memory, and no card is there that would change it meanwhile.
    let parts = unsafe { parts_of(mapping) };
    let (memory, _) = parts.expect("the agent has made memory for a ledger");
    NodeLedger::entitle(memory, spec.identity.id());
}

/// The ledger of a node, to look at.
pub(super) fn ledger(mapping: &Mapping) -> NodeLedger<'_> {
    parts(mapping).0
}

fn parts(mapping: &Mapping) -> (NodeLedger<'_>, &SharedCells) {
    // SAFETY: nothing here writes there. What is read is atomic, or is read volatile, and then by `settled`, since a
    // card, which is another process, may be writing it.
    let parts = unsafe { parts_of(mapping) };
    let (memory, shared) = parts.expect("the agent has made memory for a ledger");
    (NodeLedger::new(memory, None, RuleSet::ALL), shared)
}

/// The node that has this place, and whether that is, of a node with itself, the end that calls. Where a node has
/// several places, one in each group, it is only in that of the least: two nodes share memory once.
pub(super) fn peer(mapping: &Mapping, place: usize) -> Option<(NodeId, bool)> {
    let peer = ledger(mapping).peer(place)?;
    // A key, of which any bytes will do.
    let (node, is_caller) = settled(|| peer.node().map(|node| (node, peer.calls_itself()))).flatten()?;
    let is_lesser = |other: &PeerCells| {
        other.group() < peer.group() && other.node() == Some(node) && other.calls_itself() == is_caller
    };
    (!ledger(mapping).peers().any(|(_, other)| is_lesser(other))).then_some((node, is_caller))
}

/// What only the two ends of the channel with `node`, which has this place, know.
pub(super) fn secret(mapping: &Mapping, place: usize, node: NodeId) -> Option<[u8; 32]> {
    let peer = ledger(mapping).peer(place)?;
    // Keys, of which any bytes will do.
    settled(|| peer.node().filter(|present| *present == node).and_then(|_| peer.channel.secret())).flatten()
}

/// A value of several words that another process may be writing meanwhile: what two volatile reads in a row agree on. A
/// writer that was killed half-way leaves what agrees and is still torn, until its successor has taken it back; so the
/// value must be one of which any bytes will do. `None`: it changes faster than it can be read.
fn settled<T: PartialEq>(read: impl Fn() -> T) -> Option<T> {
    let mut last = read();
    for _ in 0..READS {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let next = read();
        if next == last {
            return Some(next);
        }
        last = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_torn_value_is_not_taken() {
        let reads = Cell::new(0);
        let read = |values: &[u32]| {
            let at = reads.replace(reads.get() + 1);
            values[at.min(values.len() - 1)]
        };
        assert_eq!(settled(|| read(&[1, 2, 3, 3, 4])), Some(3));
        assert_eq!(reads.replace(0), 4);
        assert_eq!(settled(|| reads.replace(reads.get() + 1)), None);
        assert_eq!(reads.get(), READS + 1);
    }
}
