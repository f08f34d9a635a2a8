use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::Duration;

use base::RuleSet;
use base::ledger::RawMemory;
use node::{LoanCells, NodeCells};

use super::{CardRecord, LoanEnd, LoanSpec, NodeSpec};
use crate::impair::Impairment;
use crate::memory::Mapping;
use crate::plan::{MediumKind, SHARED_OFFSET, SharedCells, decode_address};

/// The state of a node's data plane, read from the counters its card keeps: the card is not asked, and not waited for.
pub struct View<'a> {
    spec: &'a NodeSpec,
    cells: &'a NodeCells,
    shared: &'a SharedCells,
    /// What became of the cards.
    pub card: CardRecord,
}

/// One rail of a loan.
#[derive(Clone, Debug)]
pub struct RailView {
    /// The node's own address.
    pub local: SocketAddr,
    /// The peer's, if it is known.
    pub peer: Option<SocketAddr>,
    /// Whether it answers.
    pub up: bool,
    /// Smoothed round trip.
    pub round_trip: Option<Duration>,
    /// Share of packets lost.
    pub loss_ratio: f64,
}

impl<'a> View<'a> {
    pub(super) fn new(mapping: &'a Mapping, spec: &'a NodeSpec, card: CardRecord) -> Self {
        let base = NonNull::new(mapping.as_ptr()).expect("a mapping does not begin at zero");
        // SAFETY: the mapping is initialised, page aligned and outlives the view, which reads only counters: those are atomic.
        let memory = unsafe { RawMemory::new(base, SHARED_OFFSET) };
        // SAFETY: as above; the shared cells lie behind the ledger.
        let shared = unsafe { &*mapping.at::<SharedCells>(SHARED_OFFSET) };
        Self { spec, cells: memory.ledger::<NodeCells>(None, RuleSet::ALL).root, shared, card }
    }

    /// What the node was started with.
    pub fn spec(&self) -> &'a NodeSpec {
        self.spec
    }

    /// Each loan with its counters.
    pub fn loans(&self) -> impl Iterator<Item = (&'a LoanSpec, &'a LoanCells)> {
        self.spec.loans.iter().zip(&self.cells.loans)
    }

    /// What the card has counted beside its loans.
    pub fn gauges(&self) -> &'a node::Gauges {
        &self.cells.gauges
    }

    /// Rail `rail` of a loan.
    pub fn rail(&self, cells: &LoanCells, rail: usize) -> RailView {
        let edge = &cells.edge;
        let rtt = edge.rtt_ns[rail].get();
        RailView {
            local: self.spec.rails[rail].socket.local(),
            // A plain read of a cell that the card may be changing: at worst an address that is none, for once.
            peer: decode_address(cells.peers[rail].get()),
            up: edge.rail_up[rail].get() != 0,
            round_trip: (rtt > 0).then(|| Duration::from_nanos(rtt)),
            loss_ratio: edge.loss_ppm[rail].get() as f64 / 1e6,
        }
    }

    /// How the medium of a lent loan is driven.
    pub fn medium(&self, loan: &LoanSpec) -> Option<MediumKind> {
        match &loan.end {
            LoanEnd::Lend { image, .. } => Some(super::medium_of(image, self.has_ring())),
            LoanEnd::Borrow { .. } => None,
        }
    }

    /// What is done on purpose to the rail of this name.
    pub fn impairment(&self, name: &str) -> Option<&'a Impairment> {
        let rail = self.spec.rails.iter().position(|rail| rail.name == name)?;
        Some(&self.shared.impairments[rail])
    }

    /// Seconds since the peer of a loan was heard.
    pub fn silence(&self, cells: &LoanCells) -> Duration {
        crate::card::now().since(base::Instant::from_nanos(cells.edge.last_heard.get()))
    }

    fn has_ring(&self) -> bool {
        self.shared.ring.is_made()
    }
}
