use core::cell::{Cell as Volatile, RefCell};
use std::collections::BTreeMap;

use base::Rule;
use base::ids::RailId;
use base::ledger::{Cell, Journal, Layout};
use pcie::{TlpView, Unparsed};
use zerocopy::FromBytes;

use super::sender::{Credits, PAYLOAD_CREDITS, SLOTS};

/// Credits of a stream that has received nothing: as many posted writes as a sender can hold.
const POSTED_HEADERS: u64 = 1024;
/// Every posted write may carry the largest payload.
const POSTED_DATA: u64 = POSTED_HEADERS * PAYLOAD_CREDITS;
/// Completions a completer can hold; a request of 4096 bytes needs up to `4096 / max_payload + 1` of them.
const COMPLETIONS: u64 = 512;
/// Posted headers and data of a simulated run with tight credits; the data suffices for two small TLPs and one of any
/// size.
const TIGHT_POSTED: (u64, u64) = (3, PAYLOAD_CREDITS + 2);
/// Its non-posted headers.
const TIGHT_NON_POSTED: u64 = 2;
/// Most frames kept that arrived ahead of a gap: each carries a TLP at least, of which no sender holds more.
const AHEAD_FRAMES: usize = SLOTS;
/// Most bytes of them.
const AHEAD_BYTES: usize = 8 << 20;

/// The storage of a [`Receiver`]. All zeroes: a stream that has received nothing.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct ReceiverCells {
    /// The number of the next TLP to be handed on; all below are in their final place.
    expected: Cell<u64>,
    posted_headers: Cell<u64>,
    posted_data: Cell<u64>,
    /// Requests that have been handed on.
    non_posted_headers: Cell<u64>,
    /// Requests whose last completion has been committed by the requester.
    completed: Cell<u64>,
    held: HeldCells,
}

/// What a sink has accepted and not done.
#[derive(FromBytes, Layout)]
#[repr(C)]
struct HeldCells {
    headers: Cell<u64>,
    data: Cell<u64>,
}

/// The credit of posted requests that a sink has accepted and keeps, because they cannot be done yet: it is granted
/// again when they are done. So a sink never keeps more of them than it would have had credit for at once.
pub struct Held<'m> {
    cells: &'m HeldCells,
    journal: Journal<'m>,
}

impl<'m> Held<'m> {
    /// What is held back by the sink of the receiver over `cells`.
    pub fn new(cells: &'m ReceiverCells, journal: Journal<'m>) -> Self {
        Self { cells: &cells.held, journal }
    }

    /// A posted request with so many credits of data is kept, from the step on in which it is accepted.
    pub fn keep(&self, data_credits: u16) {
        self.cells.headers.update(self.journal, |headers| headers + 1);
        self.cells.data.update(self.journal, |data| data + u64::from(data_credits));
    }

    /// It is done. Only in the stream in which it was accepted.
    pub fn give_back(&self, data_credits: u16) {
        self.cells.headers.update(self.journal, |headers| headers.saturating_sub(1));
        self.cells.data.update(self.journal, |data| data.saturating_sub(data_credits.into()));
    }

    /// Posted requests that are kept.
    pub fn count(&self) -> u64 {
        self.cells.headers.get()
    }
}

/// The receiving half of a stream: hands each TLP on once, in the order of the numbers.
pub struct Receiver<'m> {
    cells: &'m ReceiverCells,
    journal: Journal<'m>,
    non_posted_headers: u64,
    /// The totals that the peer may have been told: it must not use more. A successor begins with what it could tell
    /// itself, which is no less, since grants only grow.
    advertised: Volatile<Credits>,
    /// What arrived ahead of a gap, or is left of a frame that was too much for one step. Dies with the card: the
    /// sender still has it.
    ahead: BTreeMap<u64, Ahead>,
    ahead_bytes: usize,
    /// What was handed on, for checkers: number and [`tlp_digest`]. None unless it was asked for.
    watched: RefCell<Option<Vec<(u64, u64)>>>,
}

/// A digest of the bytes of a TLP, by which checkers compare what was sent with what came.
pub fn tlp_digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    let digest = words.iter().fold(bytes.len() as u64, |digest, word| mix(digest, u64::from_le_bytes(*word)));
    rest.iter().fold(digest, |digest, &byte| mix(digest, byte.into()))
}

/// [`tlp_digest`] of what the TLP was before its rail was chosen, which is another one if it comes again on another
/// path.
fn digest_without_rail(bytes: &[u8]) -> u64 {
    let Some((header, rest)) = bytes.split_at_checked(pcie::spec::HEADER_BYTES_MAX) else {
        return tlp_digest(bytes);
    };
    let mut header = *header.first_chunk().expect("it was split there");
    if header[0] & pcie::spec::fmt_type::FOUR_DW == 0 {
        return tlp_digest(bytes);
    }
    let len = pcie::replace_address(&mut header, |address| RailId::default().in_address(address));
    tlp_digest(&[&header[..len.unwrap_or(header.len())], rest].concat())
}

struct Ahead {
    count: u16,
    /// Our rail on which it came.
    rail: RailId,
    tlps: Box<[u8]>,
}

/// What a number stands for.
pub(crate) enum Arrival<'a> {
    Tlp(&'a TlpView<'a>),
    /// A packet that cannot be used; `None` where not even its end could be told, and with it that of all behind it in
    /// its record.
    Broken(Option<Unparsed>),
}

/// What became of a stream record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// Handed on, kept, or known already: the packet may be acknowledged.
    Taken,
    /// No room: as if it had been lost.
    Refused,
    /// Beyond what any peer can hold.
    Malformed,
    /// Beyond the credit that was advertised (PCIe 6.0 §2.6.1): the peer is broken. What came before it was handed on.
    BeyondCredit,
}

impl<'m> Receiver<'m> {
    /// The receiver over `cells` of a stream with this maximum payload.
    pub fn new(cells: &'m ReceiverCells, journal: Journal<'m>, max_payload: usize) -> Self {
        let mut receiver = Self {
            cells,
            journal,
            non_posted_headers: 0,
            advertised: Volatile::default(),
            ahead: BTreeMap::new(),
            ahead_bytes: 0,
            watched: RefCell::new(None),
        };
        receiver.set_max_payload(max_payload);
        receiver.advertise();
        receiver
    }

    /// All TLPs below this number have been handed on.
    pub fn expected(&self) -> u64 {
        self.cells.expected.get()
    }

    /// The totals to advertise: what was accepted and has left, plus what there is room for.
    pub(crate) fn grants(&self) -> Credits {
        let tight = self.journal.has_tight_credits();
        let (headers, data) = if tight { TIGHT_POSTED } else { (POSTED_HEADERS, POSTED_DATA) };
        Credits {
            posted_headers: self.cells.posted_headers.get() + headers - self.cells.held.headers.get(),
            posted_data: self.cells.posted_data.get() + data - self.cells.held.data.get(),
            non_posted_headers: self.cells.completed.get() + self.non_posted_headers,
        }
    }

    /// [`Receiver::grants`], as the peer is told now.
    pub(crate) fn advertise(&self) -> Credits {
        self.advertised.set(self.grants());
        self.advertised.get()
    }

    /// Whether there is more credit than the peer has been told of.
    pub(crate) fn has_more_credit(&self) -> bool {
        self.advertised.get() != self.grants()
    }

    /// [`Receiver::grants`] for checkers: posted headers, posted data, non-posted headers.
    pub fn granted(&self) -> [u64; 3] {
        self.grants().totals()
    }

    /// What to report as committed.
    pub(crate) fn committed(&self) -> u64 {
        if self.journal.rule(Rule::AckAfterCommit) {
            return self.expected();
        }
        let ahead = self.ahead.iter().map(|(first, ahead)| first + u64::from(ahead.count)).max();
        ahead.map_or(self.expected(), |end| end.max(self.expected()))
    }

    /// From now on remembers what is handed on, until [`Receiver::take_accepted`]: for checkers.
    pub fn watch_accepted(&self) {
        self.watched.borrow_mut().get_or_insert_default();
    }

    /// What was handed on since the last call, or since the watch began: number and [`tlp_digest`] of each TLP.
    pub fn take_accepted(&self) -> Vec<(u64, u64)> {
        self.watched.borrow_mut().as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// `requests` of the peer have been completed, and it has committed their last completions.
    pub(crate) fn handle_completed(&mut self, requests: u64) {
        self.cells.completed.update(self.journal, |completed| completed + requests);
    }

    /// Takes `count` TLPs from number `first` on; gives those that are due to `accept`.
    pub(crate) fn handle(
        &mut self,
        first: u64,
        count: u16,
        (rail, tlps): (RailId, &[u8]),
        accept: &mut dyn FnMut(Arrival<'_>, RailId),
    ) -> Received {
        let expected = self.expected();
        let end = first + u64::from(count);
        if end <= expected && self.journal.rule(Rule::DropDuplicates) {
            return Received::Taken;
        }
        if first > expected {
            return self.keep(first, count, (rail, tlps));
        }
        self.deliver(first, count, (rail, tlps), accept)
    }

    /// Hands on what was waiting for a gap that is now closed, or for the next step: one frame a call, and what became
    /// of it.
    pub(crate) fn deliver_ahead(&mut self, accept: &mut dyn FnMut(Arrival<'_>, RailId)) -> Option<Received> {
        if !self.has_ahead() {
            return None;
        }
        let (first, ahead) = self.ahead.pop_first()?;
        self.ahead_bytes -= ahead.tlps.len();
        Some(self.deliver(first, ahead.count, (ahead.rail, &ahead.tlps), accept))
    }

    /// Whether something that arrived ahead of a gap is due now.
    pub fn has_ahead(&self) -> bool {
        self.ahead.first_key_value().is_some_and(|(&first, _)| first <= self.expected())
    }

    fn keep(&mut self, first: u64, count: u16, (rail, tlps): (RailId, &[u8])) -> Received {
        // Beyond what the sender can hold, no honest peer sends.
        if first.saturating_sub(self.expected()) > SLOTS as u64 {
            return Received::Malformed;
        }
        if self.ahead.get(&first).is_some_and(|known| known.count >= count) {
            return Received::Taken;
        }
        if self.ahead.len() >= AHEAD_FRAMES || self.ahead_bytes + tlps.len() > AHEAD_BYTES {
            return Received::Refused;
        }
        self.ahead_bytes += tlps.len();
        if let Some(old) = self.ahead.insert(first, Ahead { count, rail, tlps: tlps.into() }) {
            self.ahead_bytes -= old.tlps.len();
        }
        Received::Taken
    }

    fn deliver(
        &mut self,
        first: u64,
        count: u16,
        (rail, tlps): (RailId, &[u8]),
        accept: &mut dyn FnMut(Arrival<'_>, RailId),
    ) -> Received {
        let mut rest = tlps;
        let end = first + u64::from(count);
        for number in first..end {
            let begin = rest;
            let parsed = TlpView::parse(rest);
            let arrival = match &parsed {
                Ok(tlp) => Arrival::Tlp(tlp),
                Err(_) => Arrival::Broken(Unparsed::read(rest)),
            };
            let bytes;
            (bytes, rest) = rest.split_at(arrival.len().unwrap_or(rest.len()));
            if number < self.expected() && self.journal.rule(Rule::DropDuplicates) {
                continue;
            }
            if !self.journal.has_room() {
                // The sender still has it, and what cannot be kept comes again.
                return self.keep(number, (end - number) as u16, (rail, begin));
            }
            let Some(credits) = self.credits_after(&arrival) else { return Received::BeyondCredit };
            if let Some(watched) = self.watched.get_mut() {
                watched.push((number, digest_without_rail(bytes)));
            }
            // Whoever accepts it may commit before an effect of its own, and be told again if it dies of that: nothing
            // of this TLP has been counted until then.
            accept(arrival, rail);
            self.account(credits);
            self.cells.expected.update(self.journal, |expected| expected.max(number + 1));
        }
        Received::Taken
    }

    /// What will have been used with this arrival, of what was advertised; `None` where it is beyond.
    fn credits_after(&self, arrival: &Arrival<'_>) -> Option<Credits> {
        let cells = self.cells;
        let before = Credits {
            posted_headers: cells.posted_headers.get(),
            posted_data: cells.posted_data.get(),
            non_posted_headers: cells.non_posted_headers.get(),
        };
        let (class, data_credits) = match arrival {
            Arrival::Tlp(tlp) => (tlp.header().class(), tlp.header().data_credits()),
            Arrival::Broken(Some(unparsed)) => (unparsed.class(), unparsed.data_credits()),
            Arrival::Broken(None) => return Some(before),
        };
        let after = before.plus(class.index(), data_credits);
        let is_within = after.within(&self.advertised.get());
        (is_within || !self.journal.rule(Rule::CreditBeforeNumber)).then_some(after)
    }

    /// Counts what was handed on.
    fn account(&self, after: Credits) {
        self.cells.posted_headers.set(self.journal, after.posted_headers);
        self.cells.posted_data.set(self.journal, after.posted_data);
        self.cells.non_posted_headers.set(self.journal, after.non_posted_headers);
    }

    /// The stream begins anew.
    pub(crate) fn reset(&mut self) {
        self.cells.expected.set(self.journal, 0);
        self.cells.posted_headers.set(self.journal, 0);
        self.cells.posted_data.set(self.journal, 0);
        self.cells.non_posted_headers.set(self.journal, 0);
        self.cells.completed.set(self.journal, 0);
        self.cells.held.headers.set(self.journal, 0);
        self.cells.held.data.set(self.journal, 0);
        self.advertised.set(Credits::default());
        self.ahead.clear();
        self.ahead_bytes = 0;
    }

    /// A new maximum payload has been agreed.
    pub(crate) fn set_max_payload(&mut self, max_payload: usize) {
        let tight = self.journal.has_tight_credits();
        self.non_posted_headers =
            if tight { TIGHT_NON_POSTED } else { COMPLETIONS / (4096 / max_payload as u64 + 1) };
    }
}

impl Arrival<'_> {
    /// Bytes of the packet, if its end can be told.
    fn len(&self) -> Option<usize> {
        match self {
            Self::Tlp(tlp) => Some(tlp.total_len()),
            Self::Broken(unparsed) => unparsed.map(|unparsed| unparsed.total_len()),
        }
    }
}
