use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::Duration;

use base::RuleSet;
use base::ledger::RawMemory;
use node::{LoanCells, NodeCells, Role};

use super::{CardRecord, LoanEnd, LoanSpec, NodeSpec};
use crate::impair::Impairment;
use crate::memory::Mapping;
use crate::plan::{MediumKind, SHARED_OFFSET, SharedCells, decode_address};

/// Reads of a value that keeps changing.
const READS: usize = 16;

/// The state of a node's data plane, read from the counters its card keeps: the card is not asked, and not waited for.
pub struct View<'a> {
    spec: &'a NodeSpec,
    cells: &'a NodeCells,
    shared: &'a SharedCells,
    /// Loans that share memory with their peer.
    sharing: Vec<usize>,
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

/// Memory that a loan shares with its peer.
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
        card: CardRecord,
        sharing: Vec<usize>,
    ) -> Self {
        let base = NonNull::new(mapping.as_ptr()).expect("a mapping does not begin at zero");
        // SAFETY: the mapping is initialised, page aligned and outlives the view, which writes nothing. What it reads
        // is atomic, or is read volatile, and then by `settled`, since a card, which is another process, may be writing
        // it.
        let memory = unsafe { RawMemory::new(base, SHARED_OFFSET) };
        // SAFETY: as above; the shared cells lie behind the ledger.
        let shared = unsafe { &*mapping.at::<SharedCells>(SHARED_OFFSET) };
        Self { spec, cells: memory.ledger::<NodeCells>(None, RuleSet::ALL).root, shared, sharing, card }
    }

    /// What the node was started with.
    pub fn spec(&self) -> &'a NodeSpec {
        self.spec
    }

    /// Each loan with its counters.
    pub fn loans(&self) -> impl Iterator<Item = (&'a LoanSpec, &'a LoanCells)> + use<'a> {
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
            peer: settled(|| cells.peers[rail].get()).and_then(decode_address),
            up: edge.rail_up[rail].get() != 0,
            round_trip: (rtt > 0).then(|| Duration::from_nanos(rtt)),
            loss_ratio: edge.loss_ppm[rail].get() as f64 / 1e6,
        }
    }

    /// The memory that `loan` shares with its peer, if it does.
    pub fn shared_memory(&self, loan: usize) -> Option<SharedMemoryView> {
        let edge = &self.cells.loans.get(loan)?.edge;
        let rtt = edge.private_rtt_ns.get();
        self.sharing.contains(&loan).then(|| SharedMemoryView {
            up: edge.private_state.get() == 2,
            round_trip: (rtt > 0).then(|| Duration::from_nanos(rtt)),
            loss_ratio: edge.private_loss_ppm.get() as f64 / 1e6,
        })
    }

    /// How the medium of a lent loan is driven.
    pub fn medium(&self, loan: &LoanSpec) -> Option<MediumKind> {
        match &loan.end {
            LoanEnd::Lend { drive, .. } => {
                let image = &self.spec.drives.get(*drive)?.image;
                Some(super::medium_of(image, self.has_ring()))
            }
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

/// See [`node::LoanCells`]: what only the two ends of the channel of `loan` know.
pub(super) fn secret(mapping: &Mapping, loan: usize, role: Role) -> Option<[u8; 32]> {
    let base = NonNull::new(mapping.as_ptr()).expect("a mapping does not begin at zero");
    // SAFETY: as in `View::new`; the keys, of which any bytes will do, are read by `settled`.
    let memory = unsafe { RawMemory::new(base, SHARED_OFFSET) };
    let cells = memory.ledger::<NodeCells>(None, RuleSet::ALL).root;
    settled(|| cells.loans[loan].channel.secret(role)).flatten()
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
