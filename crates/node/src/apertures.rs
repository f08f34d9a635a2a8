//! Where the endpoints of a node lie, and what a TLP has to pass before one of them takes it.
//!
//! Lent functions and the memory of borrowed drives lie in the node's domain, each in an aperture of its own, by the
//! place of its loan: so an address of one is none of another. The memory of a virtual machine has a domain to itself,
//! and every slot of it an address space of its own there, which the requester picks.

use std::rc::Rc;

use base::Rule;
use base::ids::{DomainId, RailId};
use base::ledger::Journal;
use fabric::{APERTURE_BITS, Decoder, FabricAddress, Range, Window, WindowError};
use link::Port;
use pcie::spec::header::BAR_COUNT;
use pcie::{Bdf, Header, MemoryRequest};

use crate::cells::{EdgeGauges, LoanKind, MAX_LOANS};
use crate::config::CardConfig;
use crate::transaction;

/// Bytes of what a loan has of its node's domain.
pub(crate) const ENDPOINT_BYTES: u64 = 1 << ENDPOINT_SHIFT;
/// As many of them as a domain's aperture has room for are enough.
const ENDPOINT_SHIFT: u32 = 34;
/// Bytes of a domain's aperture.
pub const APERTURE_BYTES: u64 = 1 << APERTURE_BITS;

/// A BAR lies in its function's aperture at `bar << BAR_SHIFT`.
const BAR_SHIFT: u32 = 31;
/// Most bytes of a BAR that can be named in the fabric.
pub(crate) const BAR_BYTES_MAX: u64 = 1 << BAR_SHIFT;

const _: () = assert!((MAX_LOANS as u64) << ENDPOINT_SHIFT <= APERTURE_BYTES);
const _: () = assert!((BAR_COUNT as u64) << BAR_SHIFT <= ENDPOINT_BYTES);

/// What lies at an address of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// What the loan in this place has in the node's domain: a function, or the memory of a drive.
    Loan(usize),
    /// The memory of the machine in this domain. The requester says in which address space: that of its slot.
    Machine(DomainId),
}

/// Where the loan in this place has its aperture in its node's domain.
pub fn base_of(place: usize) -> u64 {
    (place as u64) << ENDPOINT_SHIFT
}

/// Where `offset` of a BAR lies in the aperture of its function; `None` of one that is too large.
pub(crate) fn bar_address(bar: u8, offset: u64) -> Option<u64> {
    (offset < BAR_BYTES_MAX && usize::from(bar) < BAR_COUNT).then_some(u64::from(bar) << BAR_SHIFT | offset)
}

/// What a loan of this kind and place answers for in `domain`: its node's, or the machine's if it is a slot.
pub(crate) fn range_of(place: usize, kind: LoanKind, domain: DomainId) -> Range<Target> {
    match kind {
        LoanKind::Lend | LoanKind::Drive => {
            Range { domain, start: base_of(place), bytes: ENDPOINT_BYTES, endpoint: Target::Loan(place) }
        }
        LoanKind::Slot => {
            Range { domain, start: 0, bytes: APERTURE_BYTES, endpoint: Target::Machine(domain) }
        }
    }
}

/// Who answers for which address, where these are the loans: their places, kinds and domains.
///
/// Slots of one machine share its domain. Where a machine has the domain of the node, what came first lies there, and
/// nobody reaches the other.
pub fn decoder_of(loans: impl IntoIterator<Item = (usize, LoanKind, DomainId)>) -> Decoder<Target> {
    let mut decoder = Decoder::default();
    for (place, kind, domain) in loans {
        _ = decoder.insert(range_of(place, kind, domain));
    }
    decoder
}

impl CardConfig {
    /// Who answers for which address of the node.
    pub(crate) fn decoder(&self) -> Decoder<Target> {
        let loans = self.loans.iter().enumerate();
        decoder_of(loans.filter_map(|(place, loan)| Some((place, loan.role.kind()?, self.domain_of(loan)))))
    }
}

/// The way to a function that lies at `base` in its node's domain, as that has told.
pub(crate) fn to_function(domain: DomainId, base: u64, requester: Bdf) -> Result<Window, WindowError> {
    Window::into_range(domain, (base, ENDPOINT_BYTES), requester)
}

/// What the TLPs of a stream have to pass before its endpoint takes them: they bear the requester id that was given to
/// the stream, and lead to that endpoint, over the rail on which they have come. What the requester may do there is the
/// endpoint's own word, its grants.
///
/// An address of another endpoint would be that one's word. None grants anything to the requester of another stream
/// today, so it is denied here; one that does (memory that programs share) is asked in this place.
pub(crate) struct Gate<'m> {
    journal: Journal<'m>,
    gauges: &'m EdgeGauges,
    decoder: Rc<Decoder<Target>>,
    /// What lies behind.
    own: Range<Target>,
    /// What was given to the stream.
    requester: Bdf,
}

impl<'m> Gate<'m> {
    pub(crate) fn new(
        journal: Journal<'m>,
        gauges: &'m EdgeGauges,
        decoder: Rc<Decoder<Target>>,
        own: Range<Target>,
        requester: Bdf,
    ) -> Self {
        Self { journal, gauges, decoder, own, requester }
    }

    /// Loans have come or gone.
    pub(crate) fn set_decoder(&mut self, decoder: Rc<Decoder<Target>>) {
        self.decoder = decoder;
    }

    /// A TLP that has come, if the endpoint may have it. What may not pass is counted, and answered by `completer`.
    pub(crate) fn admit(&self, port: &mut Port<'m>, mut header: Header, completer: Bdf) -> Option<Header> {
        let is_admitted = match &mut header {
            Header::MemoryRead(request) | Header::MemoryWrite(request) => {
                self.knows(&mut request.requester)
                    && self.leads_here(request)
                    && self.came_over(request, port.rail)
            }
            Header::ConfigRead(request) | Header::ConfigWrite(request) => self.knows(&mut request.requester),
            Header::Completion(_) | Header::Message(_) => true,
        };
        if !is_admitted {
            transaction::refuse(port, self.gauges, &header, completer);
        }
        is_admitted.then_some(header)
    }

    fn knows(&self, requester: &mut Bdf) -> bool {
        if !self.journal.rule(Rule::RequesterRewrite) {
            *requester = self.requester;
        }
        *requester == self.requester
    }

    /// Whether the address leads over the rail that its frame was sent to.
    fn came_over(&self, request: &MemoryRequest, rail: RailId) -> bool {
        !self.journal.rule(Rule::AddressRails) || RailId::of_address(request.address) == rail
    }

    fn leads_here(&self, request: &mut MemoryRequest) -> bool {
        if !self.journal.rule(Rule::AddressDecoder) {
            let mut address = FabricAddress::decode(request.address);
            address.domain = self.own.domain;
            address.offset = self.own.start + address.offset % self.own.bytes;
            request.address = address.encode();
        }
        let (address, len) = request.byte_range();
        self.decoder.find(address, len.max(1)) == Ok(self.own.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_a_node_lie_apart_and_slots_of_a_machine_together() {
        let (node, machine) = (DomainId(1), DomainId(2));
        let drives = (0..MAX_LOANS).map(|place| (place, LoanKind::Drive, node));
        let slots = [7, 9].map(|place| (place, LoanKind::Slot, machine));
        let decoder = decoder_of(drives.chain(slots));
        let at = |domain, offset| {
            let address = FabricAddress { rail: RailId::default(), domain, offset };
            decoder.find(address.encode(), 4)
        };
        for place in 0..MAX_LOANS {
            let target = Ok(Target::Loan(place));
            assert_eq!(at(node, base_of(place)), target);
            assert_eq!(at(node, base_of(place + 1) - 4), target);
        }
        assert_eq!(at(machine, base_of(3)), Ok(Target::Machine(machine)));
        assert_eq!(decoder.ranges().count(), MAX_LOANS + 1);
        assert_eq!(at(DomainId(3), 0), Err(fabric::Denied::Domain));
    }
}
