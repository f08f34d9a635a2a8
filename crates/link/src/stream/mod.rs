//! A stream: what flows between the two ends of a loan, in order and exactly once. It is the unit of order, credit,
//! replay, reset and trouble, and knows nothing of paths and keys: its [`Channel`](crate::Channel) carries it.
//!
//! What goes out gets a number in the [`Sender`] and stays there until the peer has committed it; what comes in the
//! [`Receiver`] hands on once. Which numbers are on their way only this card knows: the next one sends again what is
//! not committed.

mod receiver;
mod sender;
mod state;
mod tags;

use core::time::Duration;
use std::collections::VecDeque;

use base::ids::{LoanGeneration, RailId};
use base::ledger::{Cell, Code, Counter, Journal, Layout, Pages};
use base::times::{PROBE_GRANULARITY, PROBE_MAX};
use base::{Instant, Payload, Rule};
use pcie::TlpView;
use zerocopy::FromBytes;

use receiver::{Arrival, Received};
pub use receiver::{Held, Receiver, ReceiverCells, tlp_digest};
pub(crate) use sender::Credits;
use sender::SLOTS;
pub use sender::{PostedCredit, Sender, SenderCells};
pub(crate) use state::Change;
pub use state::State;
pub use tags::{Completed, TagCells, Tags, TimedOut};

use crate::path::Carried;
use crate::record::{Status, Writer};

/// The storage of a [`Stream`]. All zeroes: nothing has flowed.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct StreamCells {
    sender: SenderCells,
    receiver: ReceiverCells,
    tags: TagCells,
    state: Cell<Code<State>>,
    reserved: Cell<u32>,
    /// Names what flows, the same at both ends.
    name: Cell<u64>,
    stats: StreamStats,
}

impl StreamCells {
    /// What was counted: readable by the agent at any time.
    pub fn stats(&self) -> &StreamStats {
        &self.stats
    }
}

/// What a stream has counted since its ledger was made.
#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
pub struct StreamStats {
    /// TLPs sent again.
    pub retransmissions: Counter,
    /// TLPs that could not be used: no kind of this fabric, or malformed. The stream went on behind them.
    pub malformed_tlps: Counter,
    /// Records refused because the peer went beyond its credit.
    pub credit_violations: Counter,
}

/// What a TLP may cause in its own stream: further TLPs, and the end of requests.
pub struct Port<'m> {
    /// Sends.
    pub sender: Sender<'m>,
    /// Our requests.
    pub tags: Tags<'m>,
    /// What was accepted and is not done.
    pub held: Held<'m>,
    /// The rail of this node to which the frame with the TLP at hand was sent; the first one for what came through
    /// memory.
    pub rail: RailId,
}

impl Port<'_> {
    /// Whether this step may take up one more piece of work, as [`Journal::has_room`].
    pub fn may_go_on(&self) -> bool {
        self.sender.may_go_on()
    }

    /// Whether a TLP or a request that has no room in this step has it in the next: what was freed in a step is used
    /// after its commit.
    pub fn has_room_after_commit(&self) -> bool {
        self.sender.has_room_after_commit() || self.tags.has_room_after_commit()
    }
}

/// Takes the TLPs of a stream, each once and in order.
pub trait Sink<'m> {
    /// Takes one. Never waits and never refuses: credit was granted for it. A posted request that it cannot do at once
    /// it keeps, and says so to [`Port::held`].
    fn accept(&mut self, now: Instant, port: &mut Port<'m>, tlp: &TlpView<'_>);

    /// Whether it has failed while it took one, and takes no more: what it was given with that one counts as never
    /// taken.
    fn has_failed(&self) -> bool {
        false
    }
}

/// One end of what flows.
pub struct Stream<'m> {
    cells: &'m StreamCells,
    journal: Journal<'m>,
    /// Where TLPs are queued and tags are taken.
    pub port: Port<'m>,
    receiver: Receiver<'m>,
    transmission: Transmission,
    generation: LoanGeneration,
}

/// A bit for each number, modulo the replay buffer.
struct NumberSet([u64; SLOTS / 64]);

impl NumberSet {
    fn has(&self, number: u64) -> bool {
        let at = number as usize % SLOTS;
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    fn set(&mut self, number: u64, has: bool) {
        let at = number as usize % SLOTS;
        let (word, bit) = (&mut self.0[at / 64], 1 << (at % 64));
        *word = if has { *word | bit } else { *word & !bit };
    }
}

/// What has been sent of the numbered TLPs, as far as this card knows.
struct Transmission {
    /// The first number never sent by this card.
    unsent: u64,
    /// Ranges to send again: first number, count.
    resend: VecDeque<(u64, u64)>,
    /// What the peer's present card has.
    received: NumberSet,
    /// When to ask, because something is past committed or blocked and nothing is in flight.
    probe_at: Option<Instant>,
    probes: u32,
}

/// What became of TLPs that have come.
pub(crate) enum Taken {
    /// All were the next ones.
    InOrder,
    /// They are behind a gap, or have come before.
    OutOfOrder,
    /// None was taken: their packet must not be acknowledged.
    Refused,
    /// The same, since they make no sense.
    Malformed,
}

impl<'m> Stream<'m> {
    /// The stream over `cells`, new or found: a successor goes on with its predecessor's numbers and credits. Its
    /// requests wait for `patience`.
    pub fn new(
        cells: &'m StreamCells,
        pages: Pages<'m>,
        journal: Journal<'m>,
        patience: Duration,
        max_payload: usize,
    ) -> Self {
        let sender = Sender::new(&cells.sender, pages, journal);
        let transmission = Transmission::new(sender.committed());
        let (tags, held) = (Tags::new(&cells.tags, journal, patience), Held::new(&cells.receiver, journal));
        let receiver = Receiver::new(&cells.receiver, journal, max_payload);
        let generation = LoanGeneration::default();
        Self {
            cells,
            journal,
            port: Port { sender, tags, held, rail: RailId::default() },
            receiver,
            transmission,
            generation,
        }
    }

    /// The assignment that the stream is of, as its opening says. Frames of another one are refused.
    pub fn set_generation(&mut self, generation: LoanGeneration) {
        self.generation = generation;
    }

    /// The assignment that the stream is of.
    pub fn generation(&self) -> LoanGeneration {
        self.generation
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.cells.state.value()
    }

    /// Changes the state, if `change` does.
    fn change(&mut self, change: Change) {
        if let Some(state) = self.state().after(change) {
            self.cells.state.set(self.journal, state.into());
        }
    }

    /// Everything begins anew, under a `name` that both ends know.
    pub(crate) fn begin(&mut self, name: u64, max_payload: usize) {
        self.cells.name.set(self.journal, name);
        self.reset();
        self.receiver.set_max_payload(max_payload);
        self.change(Change::NewPair);
    }

    /// Nothing of it is left, whatever it was.
    pub(crate) fn clear(&mut self) {
        self.change(Change::GivenBack);
        self.reset();
    }

    /// What was before has ended: it may flow.
    pub(crate) fn open(&mut self) {
        self.change(Change::Quiet);
    }

    /// What an end has of the other one's half is gone.
    #[cfg(test)]
    pub(crate) fn lose_receiver(&mut self) {
        self.receiver.reset();
    }

    fn reset(&mut self) {
        self.port.sender.reset();
        self.port.tags.reset();
        self.receiver.reset();
        self.transmission = Transmission::new(0);
    }

    /// What was counted.
    pub fn stats(&self) -> &'m StreamStats {
        &self.cells.stats
    }

    /// The receiving half, for status and checkers.
    pub fn receiver(&self) -> &Receiver<'m> {
        &self.receiver
    }

    /// Names what flows: the same at both ends, and another one whenever it begins anew. `None` while nothing does. For
    /// checkers.
    pub fn name(&self) -> Option<u64> {
        matches!(self.state(), State::Open | State::Resetting).then(|| self.cells.name.get())
    }

    /// Whether the peer's end has opened, as far as it shows: it has taken something of ours or sent something.
    pub fn has_flowed(&self) -> bool {
        self.port.sender.committed() > 0 || self.receiver.committed() > 0
    }

    /// Whether nothing of ours is on its way or waiting: the state when faults and requests have ended.
    pub fn is_idle(&self) -> bool {
        self.port.sender.is_empty() && self.port.tags.outstanding() == 0
    }

    /// Gives numbers to what has credit.
    pub(crate) fn assign_numbers(&mut self) {
        if self.state() == State::Open {
            self.port.sender.assign_numbers();
        }
    }

    /// When the stream is to be looked at: a request is overdue, or the peer is to be asked.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.port.tags.poll_timeout(), self.probe_at()].into_iter().flatten().min()
    }

    /// What we say of the peer's half; committed, because nothing in a transmitting step changes it.
    pub(crate) fn status(&self) -> Status {
        let grants = self.receiver.advertise();
        Status {
            committed: self.receiver.committed().into(),
            posted_headers: grants.posted_headers.into(),
            posted_data: grants.posted_data.into(),
            non_posted_headers: grants.non_posted_headers.into(),
        }
    }

    /// What the peer says of ours. A stream begins empty at both ends, so credits count from the first frame on.
    pub(crate) fn handle_status(&mut self, status: &Status) {
        if !matches!(self.state(), State::Open | State::Resetting) {
            return;
        }
        self.port.sender.handle_credits(Credits {
            posted_headers: status.posted_headers.get(),
            posted_data: status.posted_data.get(),
            non_posted_headers: status.non_posted_headers.get(),
        });
        let before = self.port.sender.committed();
        let ended = self.port.sender.handle_committed(status.committed.get());
        self.receiver.handle_completed(ended);
        let committed = self.port.sender.committed();
        if committed > before {
            self.transmission.disarm_probe();
            // A peer can have committed what this new card has not sent.
            self.transmission.unsent = self.transmission.unsent.max(committed);
        }
    }

    /// `count` TLPs with consecutive numbers from `first` on have come.
    pub(crate) fn handle_tlps(
        &mut self,
        now: Instant,
        (first, count): (u64, u16),
        (rail, tlps): (RailId, &[u8]),
        sink: &mut dyn Sink<'m>,
    ) -> Taken {
        let is_early = self.state() == State::Resetting && !self.journal.rule(Rule::OpenFirst);
        if self.state() != State::Open && !is_early {
            return Taken::Refused;
        }
        let (expected, before) = (self.receiver.expected(), self.journal.mark());
        let (port, stats) = (&mut self.port, &self.cells.stats);
        let mut accept = |arrival: Arrival<'_>, rail| hand_on(now, (arrival, rail), port, stats, sink);
        let received = self.receiver.handle(first, count, (rail, tlps), &mut accept);
        if sink.has_failed() {
            self.journal.roll_back_to(before);
            return Taken::Refused;
        }
        match received {
            Received::Taken if first == expected => Taken::InOrder,
            Received::Taken => Taken::OutOfOrder,
            Received::Refused => Taken::Refused,
            Received::Malformed => Taken::Malformed,
            Received::BeyondCredit => {
                stats.credit_violations.add(1);
                Taken::Refused
            }
        }
    }

    /// Hands on what arrived ahead of a gap that is closed now, or was left by the step before: one frame a call. True
    /// while there is more for this step.
    pub(crate) fn deliver_ahead(&mut self, now: Instant, sink: &mut dyn Sink<'m>) -> bool {
        if self.state() == State::Open {
            let (port, stats) = (&mut self.port, &self.cells.stats);
            let mut accept = |arrival: Arrival<'_>, rail| hand_on(now, (arrival, rail), port, stats, sink);
            if self.receiver.deliver_ahead(&mut accept) == Some(Received::BeyondCredit) {
                stats.credit_violations.add(1);
            }
        }
        self.receiver.has_ahead() && self.journal.has_room()
    }

    /// The peer has received what was `carried`, though it may lose it again.
    pub(crate) fn handle_received(&mut self, carried: Carried) {
        let received = &mut self.transmission.received;
        for number in carried.first..carried.first + u64::from(carried.count) {
            if number >= self.port.sender.committed() {
                // What this card has sent itself: the peer says which packets, not what was in them.
                received.set(number, true);
            }
        }
    }

    /// What was `carried` did not arrive: it is sent again.
    pub(crate) fn handle_lost(&mut self, carried: Carried) {
        if carried.count > 0 {
            self.transmission.resend.push_back((carried.first, carried.count.into()));
        }
    }

    /// The peer's card is new: what it had received and not committed is lost.
    pub(crate) fn forget_received(&mut self) {
        self.transmission.forget_received(self.port.sender.committed());
    }

    /// The next numbers to send: what was lost first, then what was never sent.
    pub(crate) fn next_range(&mut self) -> Option<(u64, u64)> {
        let (committed, next) = (self.port.sender.committed(), self.port.sender.next());
        let transmission = &mut self.transmission;
        while let Some((first, count)) = transmission.resend.pop_front() {
            let end = (first + count).min(next);
            let needs = |number: &u64| !transmission.received.has(*number);
            let Some(start) = (first.max(committed)..end).find(needs) else { continue };
            let stop = (start..end).find(|number| !needs(number)).unwrap_or(end);
            if stop < end {
                transmission.resend.push_front((stop, end - stop));
            }
            return Some((start, stop));
        }
        transmission.unsent = transmission.unsent.max(committed);
        (transmission.unsent < next).then_some((transmission.unsent, next))
    }

    /// Whether [`Stream::next_range`] may find something.
    pub(crate) fn may_send(&self) -> bool {
        let unsent = self.transmission.unsent.max(self.port.sender.committed());
        !self.transmission.resend.is_empty() || unsent < self.port.sender.next()
    }

    /// Writes as many TLPs of a range as fit; the rest of it stays to be sent. Their addresses lead over this rail of
    /// the receiver.
    pub(crate) fn write_tlps(
        &mut self,
        (first, end): (u64, u64),
        rail: RailId,
        writer: &mut Writer<'_>,
    ) -> Carried {
        let sender = &self.port.sender;
        let count = writer.stream(first, |room| {
            let (mut count, mut len) = (0_u16, 0);
            for number in first..end.min(first + u64::from(u16::MAX)) {
                if sender.tlp_len_over(number, rail) > room.len() - len {
                    break;
                }
                len += sender.write_tlp(number, rail, &mut room[len..]);
                count += 1;
            }
            (count, len)
        });
        let stop = first + u64::from(count);
        let transmission = &mut self.transmission;
        let again = stop.min(transmission.unsent).saturating_sub(first);
        self.cells.stats.retransmissions.add(again);
        if end <= transmission.unsent && stop < end {
            transmission.resend.push_front((stop, end - stop));
        }
        for number in first.max(transmission.unsent)..stop {
            transmission.received.set(number, false);
        }
        transmission.unsent = transmission.unsent.max(stop);
        Carried { first, count, ..Carried::default() }
    }

    /// Whether something lies past committed, waits for credit or would have to.
    pub(crate) fn awaits_status(&self) -> bool {
        let sender = &self.port.sender;
        // Whoever does not queue what has no credit waits for that all the same.
        let lacks_credit = self.state() == State::Open && !sender.posted_credit().suffices();
        sender.is_blocked() || sender.committed() < sender.next() || lacks_credit
    }

    /// When to ask the peer, because nothing has brought news for long.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        self.transmission.probe_at
    }

    /// Nothing is waited for.
    pub(crate) fn disarm_probe(&mut self) {
        self.transmission.disarm_probe();
    }

    /// The peer is asked, and will be again.
    pub(crate) fn probe_again(&mut self, now: Instant, round_trip: Option<Duration>) {
        self.transmission.probes += 1;
        self.arm_probe(now, round_trip);
    }

    /// The peer will be asked, unless there is news before.
    pub(crate) fn arm_probe(&mut self, now: Instant, round_trip: Option<Duration>) {
        let round_trip = round_trip.unwrap_or(PROBE_GRANULARITY);
        let wait: Duration = (round_trip * 2 + PROBE_GRANULARITY) * (1 << self.transmission.probes.min(8));
        self.transmission.probe_at = Some(now + wait.min(PROBE_MAX.max(round_trip * 2)));
    }
}

impl Transmission {
    fn new(committed: u64) -> Self {
        Self {
            unsent: committed,
            resend: VecDeque::new(),
            received: NumberSet([0; SLOTS / 64]),
            probe_at: None,
            probes: 0,
        }
    }

    fn forget_received(&mut self, committed: u64) {
        self.resend.clear();
        self.received = NumberSet([0; SLOTS / 64]);
        if committed < self.unsent {
            self.resend.push_back((committed, self.unsent - committed));
        }
    }

    fn disarm_probe(&mut self) {
        (self.probe_at, self.probes) = (None, 0);
    }
}

/// Gives a TLP to whom it is for. What cannot be used is counted, and answered if it asks for that; the stream goes on
/// behind it, as a link does (PCIe 6.0 §6.2.3.2): it would come again and again otherwise.
fn hand_on<'m>(
    now: Instant,
    (arrival, rail): (Arrival<'_>, RailId),
    port: &mut Port<'m>,
    stats: &StreamStats,
    sink: &mut dyn Sink<'m>,
) {
    port.rail = rail;
    match arrival {
        Arrival::Tlp(tlp) => sink.accept(now, port, tlp),
        Arrival::Broken(unparsed) => {
            stats.malformed_tlps.add(1);
            if let Some(refusal) = unparsed.and_then(|unparsed| unparsed.refusal()) {
                port.sender.push_completion(refusal, Payload::None, true);
            }
        }
    }
}
