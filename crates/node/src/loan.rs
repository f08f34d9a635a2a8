mod addresses;
mod callers;
#[cfg(test)]
mod tests;

use core::cell::Cell as StdCell;
use std::collections::VecDeque;

use base::ids::{ChannelIndex, Group, Incarnation, NodeId};
use base::ledger::{Journal, Pages};
use base::{Instant, Rule};
use device::nvme::Controller;
use device::{Function, MediaError, MediaId};
use link::{
    Channel, ChannelConfig, Event, Heard, Information, Lender, Name, PathConfig, Role, Room, Sink, State,
    Tenancy, Transmit,
};

use self::addresses::Addresses;
use self::callers::Callers;
use crate::borrower::BorrowedDrive;
use crate::card::{CardEvent, LoanRooms, MediaWork, Outgoing, Rooms, Unusable, Way, way};
use crate::cells::{Address, EndCells, LoanCells, LoanParts, loan_owner};
use crate::config::{BorrowEdge, CardConfig, LoanRole, loan_incarnation};
use crate::drive::Drive;
use crate::lender::LentFunction;
use crate::slot::BorrowedSlot;

/// Frames delivered from behind a gap in one step, so that a step stays short.
const AHEAD_PER_STEP: usize = 4;

/// What a loan is made of, beside its channel.
#[expect(clippy::large_enum_variant, reason = "there are few loans, and none is moved")]
pub(crate) enum End<'m> {
    Lent(LentFunction<'m>),
    Borrowed(BorrowedDrive<'m>),
    Slot(BorrowedSlot<'m>),
}

impl<'m> End<'m> {
    /// Who takes the TLPs.
    pub(crate) fn sink(&mut self) -> &mut dyn Sink<'m> {
        match self {
            Self::Lent(function) => function,
            Self::Borrowed(drive) => drive,
            Self::Slot(slot) => slot,
        }
    }
}

/// Whether an assertion has failed in a step of a loan, which ends it.
///
/// ```text
///  None --of a drive--> Left
///    |`--of what is lent--> Ending --once more--> Left
///    `--of a slot--> Alone --once more--> the card dies
/// ```
/// The peer hears nothing any more in each of them, until the next card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Nothing is looked at any more.
    Left,
    /// The function shows fatal status, and its work for the medium comes to an end: others may wait for that in a
    /// namespace that they have too.
    Ending,
    /// The machine is answered, for which the function is gone.
    Alone,
}

/// One loan of a card: the channel, what it is for, and what passes between them.
pub(crate) struct Loan<'m> {
    cells: &'m LoanCells,
    journal: Journal<'m>,
    pub(crate) pages: Pages<'m>,
    pub(crate) channel: Channel<'m>,
    pub(crate) end: End<'m>,
    /// A reset was asked for and the medium is not quiet yet.
    resetting: bool,
    /// Where answers of handshakes go.
    callers: Callers,
    /// Where the borrower may be.
    addresses: Addresses,
    ready: bool,
    /// What was reported of the function.
    unusable: Option<Unusable>,
    /// Of what is lent: the tenancy that the agent was asked to make durable.
    asked: Option<Tenancy>,
    /// The peer that was reported.
    met: Option<(NodeId, Incarnation)>,
    pub(crate) closing: bool,
    /// The last step has ended before everything was moved.
    more: bool,
    /// This node's name, for device information.
    name: Name,
    /// The function may have work for its medium: since the last step nobody has been told that it has none.
    may_have_media: bool,
    /// The channel may have a frame to send: since the last step nobody has been told that it has none.
    may_transmit: bool,
    /// Whether an assertion that fails in a step of this loan ends the loan, and not the card.
    contained: bool,
    /// Whether one has, and what is still done here.
    fault: Fault,
    /// Work for the medium that this card has given out and that has not ended.
    given: Vec<MediaId>,
    /// When the loan is to be looked at, as far as that is known; others can only make it earlier.
    deadline: StdCell<Option<Option<Instant>>>,
}

impl<'m> Loan<'m> {
    /// Loan `index` of a card.
    pub(crate) fn new(
        parts: LoanParts<'m>,
        journal: Journal<'m>,
        card: &CardConfig,
        index: usize,
        drives: &[Drive<'m>],
        now: Instant,
    ) -> Self {
        let config = &card.loans[index];
        let (cells, pages) = (parts.cells, Pages::new(parts.pages, journal));
        let domain = card.domain_of(config);
        if let LoanRole::Borrow { routes, .. } = &config.role {
            for (cell, route) in cells.peers.iter().zip(routes) {
                cell.set(journal, route.peer);
            }
        }
        let end = match (parts.end, &config.role) {
            (EndCells::Lent(function), LoanRole::Lend { drive, controller, limit, .. }) => {
                let subsystem = &drives[*drive].subsystem;
                let mut controller = Controller::in_subsystem(function, pages, subsystem, *controller);
                if controller.limit() != *limit {
                    controller.set_limit(now, *limit);
                }
                End::Lent(LentFunction::new(controller, pages, &cells.edge, domain))
            }
            (EndCells::Drive { driver, server }, LoanRole::Borrow { io_timeout, edge, .. }) => {
                let (parts, gauges) = ((driver, server), &cells.edge);
                let drive = BorrowedDrive::new(parts, gauges, pages, journal, domain, *io_timeout);
                End::Borrowed(if *edge == BorrowEdge::Program { drive.for_program() } else { drive })
            }
            (EndCells::Slot { session, slot }, _) => {
                let parts = (session, slot);
                End::Slot(BorrowedSlot::new(parts, &cells.edge, pages, journal, index, domain))
            }
            _ => unreachable!("the cells of a loan are those of its role, and only a slot outlives its loan"),
        };
        let channel = Channel::new(&cells.channel, pages, journal, channel_config(card, index), now);
        let mut loan = Self {
            cells,
            journal,
            pages,
            channel,
            end,
            resetting: false,
            callers: Callers::new(now),
            addresses: Addresses::new(&seed_of(card, index)),
            ready: false,
            unusable: None,
            asked: None,
            met: None,
            closing: false,
            more: false,
            name: card.name,
            may_have_media: true,
            may_transmit: true,
            contained: false,
            fault: Fault::None,
            given: Vec::new(),
            deadline: StdCell::new(None),
        };
        if let LoanRole::Vacant = config.role {
            loan.channel.close(now);
        }
        loan.meet_peer();
        loan.inform();
        loan
    }

    /// See [`crate::Card::contain_faults`].
    pub(crate) fn contain_faults(&mut self) {
        self.contained = true;
    }

    /// Whether an assertion that fails now ends the loan. What answers a machine alone has nobody behind it but the
    /// next card.
    pub(crate) fn contains_faults(&self) -> bool {
        self.contained && self.fault != Fault::Alone
    }

    /// An assertion has failed: whatever is in memory of the loan may be wrong.
    pub(crate) fn fail(&mut self) {
        self.fault = Fault::Left;
    }

    /// Takes the place of one that has failed, in a step of its own: it was made anew from what is committed.
    pub(crate) fn replace(&mut self, now: Instant, failed: &Self) {
        self.contained = true;
        match (&mut self.end, &failed.end) {
            (End::Lent(function), _) => {
                self.fault = Fault::Ending;
                self.given.clone_from(&failed.given);
                function.controller.give_up(now, |id| failed.given.contains(&id));
            }
            (End::Slot(slot), End::Slot(failed)) => {
                self.fault = Fault::Alone;
                slot.replace(now, failed);
            }
            _ => self.fault = Fault::Left,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.fault != Fault::None
    }

    /// Whether steps of the loan are still taken.
    pub(crate) fn takes_steps(&self) -> bool {
        matches!(self.fault, Fault::None | Fault::Alone)
    }

    /// The medium has ended work of a function that is given up.
    pub(crate) fn end_media(&mut self, now: Instant, id: MediaId, result: Result<(), MediaError>) {
        if let (Fault::Ending, End::Lent(function)) = (self.fault, &mut self.end) {
            function.controller.handle_media(now, id, result);
        }
    }

    /// Work for the medium was given out.
    pub(crate) fn note_given(&mut self, id: MediaId) {
        self.given.push(id);
    }

    /// That has ended.
    pub(crate) fn note_ended(&mut self, id: MediaId) {
        if let Some(at) = self.given.iter().position(|given| *given == id) {
            self.given.swap_remove(at);
        }
    }

    pub(crate) fn handle_frame(&mut self, now: Instant, rail: u8, from: Address, frame: &mut [u8]) {
        if self.has_failed() {
            return;
        }
        // Until the borrower has proven an address, it may be wherever its frames come from, be it that they came from
        // elsewhere first.
        let is_unproven = self.cells.peers.get(rail as usize).is_some_and(|peer| !peer.get().is_known());
        self.channel.hear_duplicates(is_unproven && matches!(self.end, End::Lent(_)));
        let heard = self.channel.handle_frame(now, frame, self.end.sink());
        match heard {
            Heard::Proposal(call) => self.callers.expect_answer(now, rail, call, from),
            Heard::Again(call) if self.callers.note(now, rail, call, from) => {
                self.channel.answer_again(rail, call);
            }
            _ => {}
        }
        // A borrower knows its lender's addresses from the line.
        if matches!(self.end, End::Lent(_)) {
            self.learn_address(now, rail, from, (heard, frame.len()));
        }
        self.note(now, heard);
    }

    /// From nowhere that could be learned: the addresses of the rails stay what they are.
    pub(crate) fn handle_private_frame(&mut self, now: Instant, frame: &mut [u8]) {
        if self.has_failed() {
            return;
        }
        let heard = self.channel.handle_private_frame(now, frame, self.end.sink());
        self.note(now, heard);
    }

    /// Only an answer to this very card shows that the peer hears it, too: one whose frames come while ours get lost is
    /// as good as dead.
    fn note(&mut self, now: Instant, heard: Heard) {
        if let (Heard::Answer | Heard::Newcomer, End::Slot(slot)) = (heard, &mut self.end) {
            slot.heard(now);
        }
    }

    /// A lender learns where the borrower is: from whatever is authentic, once the address it came from has answered a
    /// challenge.
    fn learn_address(&mut self, now: Instant, rail: u8, from: Address, (heard, len): (Heard, usize)) {
        let (journal, peers) = (self.journal, &self.cells.peers);
        let Some(cell) = peers.get(rail as usize) else { return };
        match heard {
            Heard::Nothing | Heard::Proposal(_) | Heard::Again(_) => return,
            Heard::Newcomer => {
                peers.iter().for_each(|peer| peer.set(journal, Address::default()));
                self.addresses.forget();
            }
            Heard::Answer | Heard::Peer | Heard::Duplicate => {}
        }
        while let Some(challenge) = self.channel.poll_proof() {
            if let Some((rail, address)) = self.addresses.prove(challenge) {
                peers[rail].set(journal, address);
            }
        }
        if !journal.rule(Rule::ProveAddresses) {
            return cell.set(journal, from);
        }
        if cell.get() == from {
            return;
        }
        let challenge = match heard {
            Heard::Duplicate => self.addresses.hear_duplicate(now, rail.into(), from),
            _ => self.addresses.hear(now, rail.into(), from, len),
        };
        if let Some(challenge) = challenge {
            self.channel.challenge(rail, challenge);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if !self.has_failed() {
            self.channel.handle_timeout(now);
        }
        match &mut self.end {
            End::Lent(function) => function.handle_timeout(now, &mut self.channel.stream.port),
            End::Borrowed(drive) => drive.handle_timeout(now, &mut self.channel.stream.port),
            End::Slot(slot) => slot.handle_timeout(now, &mut self.channel.stream.port),
        }
    }

    /// When the loan is to be looked at. What others do to it shows in `depends_on_others`; everything else happens in
    /// its own steps, so the answer is remembered from one to the next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if !self.takes_steps() {
            return None;
        }
        let steady = match &self.end {
            End::Lent(function) => !function.controller.depends_on_others(),
            End::Borrowed(_) | End::Slot(_) => true,
        };
        match self.deadline.get().filter(|_| steady) {
            Some(known) => known,
            None => {
                let deadline = self.find_deadline();
                self.deadline.set(Some(deadline));
                deadline
            }
        }
    }

    pub(crate) fn find_deadline(&self) -> Option<Instant> {
        if self.more || (!self.has_failed() && self.channel.stream.receiver().has_ahead()) {
            return Some(Instant::ZERO);
        }
        let end = match &self.end {
            End::Lent(function) => function.controller.poll_timeout(),
            End::Borrowed(drive) => drive.poll_timeout(),
            End::Slot(slot) => slot.poll_timeout(),
        };
        let channel = self.channel.poll_timeout().filter(|_| !self.has_failed());
        [channel, end].into_iter().flatten().min()
    }

    /// The next frame. There is always room for it, be it that what is built there gets lost: so nobody but a step of
    /// this loan can change the answer that there is none.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        index: usize,
        room: &mut LoanRooms<'_, impl Rooms + ?Sized>,
    ) -> Option<Outgoing> {
        if !self.may_transmit || self.has_failed() {
            return None;
        }
        self.deadline.set(None);
        if let Some(copy) = self.callers.next_copy() {
            let len = copy.bytes.len();
            room.of(copy.rail)[..len].copy_from_slice(&copy.bytes);
            return Some(Outgoing { way: way(copy.rail, index), to: copy.to, len });
        }
        // What goes to a peer whose address is not known is dropped, as a network would.
        loop {
            let Some(frame) = self.channel.poll_transmit(now, room) else {
                self.may_transmit = false;
                return None;
            };
            let way = way(frame.path, index);
            if let Way::Private(_) = way {
                return Some(Outgoing { way, to: Address::default(), len: frame.len });
            }
            let to = match frame.answers {
                Some(call) => self.callers.answer(frame.path, call, &room.of(frame.path)[..frame.len]),
                None => self.address_for(&frame),
            };
            if let Some(to) = to.filter(Address::is_known) {
                return Some(Outgoing { way, to, len: frame.len });
            }
        }
    }

    /// Where a frame for a rail goes.
    fn address_for(&mut self, frame: &Transmit) -> Option<Address> {
        let rail = frame.path as usize;
        let known = Some(self.cells.peers[rail].get()).filter(Address::is_known);
        match (&self.end, frame.challenge) {
            (_, Some(challenge)) => self.addresses.of(challenge),
            (End::Lent(_), None) => known.or_else(|| self.addresses.spend(rail, frame.len)),
            (End::Borrowed(_) | End::Slot(_), None) => known,
        }
    }

    /// Bytes of the next work for the medium, if there is any.
    pub(crate) fn media_cost(&mut self) -> Option<u32> {
        if !self.may_have_media || self.fault == Fault::Left {
            return None;
        }
        // Asking fetches commands, and what is fetched has answers.
        self.wake();
        let cost = self.ask_for_media(Controller::peek_media)?;
        self.may_have_media = cost.is_some();
        cost
    }

    /// Whether the next work for the medium comes before that of all other functions: see [`Controller::must_redo`].
    pub(crate) fn must_redo(&self) -> bool {
        let is_redone = |end: &End<'_>| matches!(end, End::Lent(function) if function.controller.must_redo());
        self.fault != Fault::Left && is_redone(&self.end)
    }

    /// What is borrowed is flushed, its function shut down; then the channel closes.
    pub(crate) fn begin_closing(&mut self, now: Instant) {
        if self.has_failed() {
            return;
        }
        self.closing = true;
        match &mut self.end {
            End::Borrowed(drive) => drive.driver.shutdown(now),
            End::Slot(slot) => slot.set_present(now, false),
            End::Lent(_) => {}
        }
    }

    /// Something may have changed: everybody asks again.
    fn wake(&mut self) {
        self.may_transmit = true;
        self.may_have_media = true;
        self.deadline.set(None);
    }

    /// The channel is asked once more, for tests of what it had said.
    #[cfg(test)]
    pub(crate) fn ask_again(&mut self) {
        self.may_transmit = true;
    }

    pub(crate) fn poll_media(&mut self, loan: usize) -> Option<MediaWork<'m>> {
        let pages = self.pages;
        self.ask_for_media(|controller| {
            let redo = controller.must_redo();
            Some(MediaWork::new(loan, &controller.poll_media()?, &pages, redo))
        })?
    }

    /// Asks the function about its work for the medium; `None` of a loan that lends nothing.
    ///
    /// Asking goes on where work behind the present one waits: it fetches commands, and lets in or ends those that
    /// waited for a namespace. That may give the host something to read or to send, of which no step follows: without
    /// `more` it would lie until the next event of this very loan, for which the host may be waiting. Only what has
    /// been added counts, not what is there: a step that has no room for it leaves it where it is, asking once more
    /// adds nothing, and whoever makes room is an event. So a loan that cannot send is not awake for it.
    fn ask_for_media<T>(&mut self, ask: impl FnOnce(&mut Controller<'m>) -> T) -> Option<T> {
        let End::Lent(function) = &mut self.end else { return None };
        let before = function.controller.sending();
        let answer = ask(&mut function.controller);
        if function.controller.sending() > before {
            self.more = true;
            self.deadline.set(None);
        }
        Some(answer)
    }

    /// What follows from a verb: events of the channel, late TLPs, and the flow between the parts.
    pub(crate) fn advance(&mut self, now: Instant, index: usize, events: &mut VecDeque<CardEvent>) {
        self.wake();
        if self.has_failed() {
            return self.advance_alone(now);
        }
        self.handle_events(now, index, events);
        self.end_reset();
        for _ in 0..AHEAD_PER_STEP {
            if !self.advance_channel(now) {
                break;
            }
        }
        let open = self.channel.state() == State::Open;
        self.more = match &mut self.end {
            End::Lent(function) => open && function.pump(now, &mut self.channel.stream.port),
            End::Borrowed(drive) => drive.pump(now, &mut self.channel.stream.port, open),
            End::Slot(slot) => slot.pump(now, &mut self.channel.stream.port, open),
        };
        // What the step has freed is room in the next one, which nobody else would begin.
        self.more |= open && self.channel.stream.port.has_room_after_commit();
        self.channel.assign_numbers(now);
        self.remember_tenancy();
        self.report(now, index, events);
        // A channel that has nothing to say goodbye to closes at once, and no step follows.
        self.handle_events(now, index, events);
    }

    /// What follows where nobody but the machine of a slot is told anything.
    fn advance_alone(&mut self, now: Instant) {
        self.more = match &mut self.end {
            End::Slot(slot) => slot.pump(now, &mut self.channel.stream.port, false),
            End::Lent(_) | End::Borrowed(_) => false,
        };
    }

    fn handle_events(&mut self, now: Instant, index: usize, events: &mut VecDeque<CardEvent>) {
        while let Some(event) = self.channel.poll_event() {
            self.handle_event(now, index, event, events);
        }
    }

    fn advance_channel(&mut self, now: Instant) -> bool {
        self.channel.deliver_ahead(now, self.end.sink())
    }

    fn handle_event(&mut self, now: Instant, index: usize, event: Event, events: &mut VecDeque<CardEvent>) {
        match event {
            Event::Reset => {
                self.meet_peer();
                self.resetting = true;
                self.compare_tenancy(now, index, events);
                match &mut self.end {
                    End::Lent(function) => function.controller.reset(now),
                    End::Borrowed(drive) => {
                        drive.driver.handle_reset(now);
                        // One that is being given back is not taken again because its lender was restarted meanwhile.
                        if !self.channel.is_leaving() {
                            drive.driver.start(now);
                        }
                    }
                    End::Slot(slot) => slot.handle_reset(now),
                }
            }
            Event::Refused(refusal) => events.push_back(CardEvent::Refused(index, refusal)),
            Event::Closed => {
                let has_lost = match &mut self.end {
                    End::Lent(function) => {
                        function.controller.reset(now);
                        false
                    }
                    End::Borrowed(drive) => drive.driver.has_lost(),
                    End::Slot(slot) => {
                        slot.set_present(now, false);
                        false
                    }
                };
                events.push_back(CardEvent::Closed { loan: index, has_lost });
            }
            Event::Information(information) => {
                let edge = &self.cells.edge;
                edge.information_frames.add(1);
                // Nobody else here looks at the drive of a virtual machine.
                if matches!(self.end, End::Slot(_)) {
                    edge.drive_bytes.set(information.bytes.get());
                    edge.drive_rights.set(1 + u64::from(information.flags & 1));
                }
            }
        }
    }

    /// A new pair has met: its borrower learns whether somebody else has used the drive since it did.
    fn compare_tenancy(&mut self, now: Instant, index: usize, events: &mut VecDeque<CardEvent>) {
        if let End::Lent(_) = self.end {
            return;
        }
        let used = self.cells.tenancy.get();
        if used == 0 || (used == self.channel.tenancy() && !self.channel.is_other_lender()) {
            return;
        }
        self.cells.tenancy.set(self.journal, 0);
        match &mut self.end {
            End::Borrowed(drive) => drive.forget(now),
            // Its guest shall not take what another one has left for its own.
            End::Slot(slot) => slot.note_replaced(now),
            End::Lent(_) => {}
        }
        events.push_back(CardEvent::Overtaken(index));
    }

    /// A borrower knows a tenancy once its stream flows: the lender opens that when the tenancy is durable. One that
    /// fell before this makes another number of its next life, and nobody has used the drive in between.
    fn remember_tenancy(&self) {
        let number = self.channel.tenancy();
        let is_news = !matches!(self.end, End::Lent(_)) && self.cells.tenancy.get() != number;
        if is_news && self.channel.stream.has_flowed() {
            self.cells.tenancy.set(self.journal, number);
        }
    }

    /// A lender has the agent make durable who has its function, or had it: before that has an effect that somebody
    /// could know of.
    fn keep_tenancy(&mut self, index: usize, events: &mut VecDeque<CardEvent>) {
        let unsaved = self.channel.unsaved_tenancy();
        if self.asked != unsaved {
            self.asked = unsaved;
            events.extend(unsaved.map(|tenancy| CardEvent::Tenant(index, tenancy)));
        }
    }

    /// The streams of a new pair open when nothing of the old one can still have an effect.
    fn end_reset(&mut self) {
        let quiet = match &self.end {
            End::Lent(function) => {
                function.controller.is_quiescent() && self.channel.unsaved_tenancy().is_none()
            }
            End::Borrowed(_) | End::Slot(_) => true,
        };
        if self.resetting && quiet && self.channel.state() == State::Resetting {
            self.channel.open();
            self.resetting = false;
        }
    }

    fn report(&mut self, now: Instant, index: usize, events: &mut VecDeque<CardEvent>) {
        self.keep_tenancy(index, events);
        if self.channel.state() == State::Open {
            let peer = self.channel.newest_peer().map(|(incarnation, _)| incarnation);
            let met = self.channel.peer().map(|(node, ..)| node).zip(peer);
            if self.met != met {
                self.met = met;
                events.extend(met.map(|(node, incarnation)| CardEvent::Met(index, node, incarnation)));
            }
        }
        let (is_ready, unusable, is_shut_down) = match &self.end {
            End::Lent(_) => return,
            End::Borrowed(drive) => {
                let driver = &drive.driver;
                (driver.geometry().is_some(), driver.unusable().map(Unusable::Drive), driver.is_shut_down())
            }
            End::Slot(slot) => (slot.is_ready(), slot.unusable().map(Unusable::Slot), true),
        };
        if !self.ready && is_ready {
            self.ready = true;
            events.push_back(CardEvent::Ready(index));
        }
        if self.unusable != unusable {
            self.unusable = unusable;
            events.extend(unusable.map(|error| CardEvent::Unusable(index, error)));
        }
        if self.closing && is_shut_down {
            self.closing = false;
            self.channel.close(now);
        }
    }

    fn meet_peer(&mut self) {
        let Some((_, _, domain)) = self.channel.peer() else { return };
        let max_payload = self.channel.max_payload();
        match &mut self.end {
            End::Lent(function) => function.set_peer(domain, max_payload),
            End::Borrowed(drive) => drive.set_peer(domain, max_payload),
            End::Slot(slot) => slot.set_peer(domain, max_payload),
        }
    }

    /// What a lender says of its function, which may have grown.
    fn inform(&mut self) {
        let End::Lent(function) = &self.end else { return };
        let (bytes, read_only) = function.controller.capacity();
        self.cells.edge.drive_bytes.set(bytes);
        self.cells.edge.drive_rights.set(1 + u64::from(read_only));
        self.cells.edge.media_fault.set(function.controller.subsystem().has_fault().into());
        self.channel.set_information(Information {
            bytes: bytes.into(),
            kind: 1,
            flags: read_only.into(),
            name: self.name.to_bytes(),
        });
    }

    /// Renews the gauges.
    pub(crate) fn publish(&mut self, now: Instant) {
        if self.has_failed() {
            return;
        }
        self.inform();
        let edge = &self.cells.edge;
        edge.channel_state.set(self.channel.state() as u64);
        edge.last_heard.set(self.channel.last_heard().as_nanos());
        for rail in 0..self.channel.paths() {
            let (round_trip, up, loss) = self.channel.path_status(rail as u8, now);
            edge.rtt_ns[rail].set(round_trip.map_or(0, |round_trip| round_trip.as_nanos() as u64));
            edge.rail_up[rail].set(up.into());
            edge.loss_ppm[rail].set((loss * 1e6) as u64);
        }
        edge.cipher.set(self.channel.cipher().map_or(0, |cipher| cipher as u64));
        let private = self.channel.private_status(now);
        edge.private_state.set(private.map_or(0, |(_, up, _)| 1 + u64::from(up)));
        let (round_trip, _, loss) = private.unwrap_or_default();
        edge.private_rtt_ns.set(round_trip.map_or(0, |round_trip| round_trip.as_nanos() as u64));
        edge.private_loss_ppm.set((loss * 1e6) as u64);
        let sender = &self.channel.stream.port.sender;
        edge.in_flight.set(sender.next() - sender.committed());
        edge.replay_bytes.set(sender.replay_bytes());
        if let Some((node, name, domain)) = self.channel.peer() {
            edge.set_peer(node, name, domain);
        }
        let End::Borrowed(drive) = &self.end else { return };
        edge.has_lost.set(drive.driver.has_lost().into());
        edge.kept_writes.set(drive.driver.kept().0 as u64);
        if let Some(geometry) = drive.driver.geometry() {
            edge.drive_bytes.set(geometry.blocks * u64::from(geometry.block_size));
            edge.drive_rights.set(1 + u64::from(geometry.read_only));
        }
    }
}

/// How frames to this node name the channel of a loan.
pub(crate) fn channel_index(loan: usize) -> ChannelIndex {
    ChannelIndex(loan as u32 + 1)
}

/// What is random in one loan must not be known from another, nor from the one that had its place before.
pub(crate) fn seed_of(card: &CardConfig, index: usize) -> [u8; 32] {
    link::derive(&card.seed, loan_owner(index, card.loans[index].life).0)
}

fn channel_config(card: &CardConfig, index: usize) -> ChannelConfig {
    let loan = &card.loans[index];
    let frames: Vec<usize> = match &loan.role {
        LoanRole::Lend { .. } => card.rails.clone(),
        // Nothing is sent there.
        LoanRole::Vacant => card.rails[..1].to_vec(),
        // As many rails as the borrower knows addresses of its lender.
        LoanRole::Borrow { routes, .. } => {
            routes.iter().zip(&card.rails).map(|(route, _)| route.max_frame).collect()
        }
    };
    let max_payload = if frames.iter().all(|&frame| frame >= 8192) { 4096 } else { 1024 };
    let (lender, allowed) = match &loan.role {
        LoanRole::Borrow { lender, .. } => (*lender, None),
        LoanRole::Lend { allowed, .. } => (card.identity.lends_in(card.domain), allowed.clone()),
        LoanRole::Vacant => (Lender::default(), None),
    };
    let role = if matches!(loan.role, LoanRole::Lend { .. }) { Role::Lender } else { Role::Borrower };
    let borrows_as = card.borrows_as.filter(|_| role == Role::Borrower);
    ChannelConfig {
        role,
        secret: loan.secret,
        lender,
        allowed,
        protection: loan.protection,
        fabric: 0,
        group: Group::DEFAULT,
        index: channel_index(index),
        stream: loan.stream,
        loan_generation: loan.generation,
        tenancy: loan.tenancy,
        identity: card.identity.clone(),
        name: card.name,
        domain: card.domain_of(loan),
        incarnation: loan_incarnation(card.incarnation, loan.life, loan.least_incarnation),
        life: borrows_as.unwrap_or(card.life),
        generation: card.generation,
        seed: seed_of(card, index),
        rekey_frames: card.rekey_frames,
        paths: frames.iter().map(|&max_frame| PathConfig { max_frame }).collect(),
        max_payload,
    }
}
