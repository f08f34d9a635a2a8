mod sink;
#[cfg(test)]
mod tests;

use core::cell::Cell as StdCell;
use std::collections::VecDeque;
use std::rc::Rc;

use base::Instant;
use base::ids::{Incarnation, LifeId, NodeId, StreamId};
use base::ledger::{Journal, Pages};
use base::times::{COMPLETION_TIMEOUT, MEMORY_TIMEOUT};
use device::{MediaError, MediaFunction, MediaId};
use fabric::{Decoder, Window, WindowError};
use link::pair::{
    Asking, Channel, ClaimEvent, ClaimState, Course, OfferEvent, OfferState, OpenRefusal, Said,
};
use link::{Applied, Entry, Information, Name, Possession, Sink, State, Stream, Tenancy};

use self::sink::Contained;
use crate::apertures::{self, Gate, Target};
use crate::card::{CardEvent, MediaWork, Unusable};
use crate::cells::{LoanCells, LoanParts};
use crate::config::{CardConfig, LoanRole};
use crate::drive::Drive;
use crate::endpoint::{Remains, compose};
use crate::gauges::ChannelGauges;
use crate::loan_table::Deadline;
use crate::opening::Opening;
use crate::refusal::Refusal;
use crate::transaction::requester_of;

/// Frames delivered from behind a gap in one step, so that a step stays short.
const AHEAD_PER_STEP: usize = 4;

/// Whether an assertion has failed in a step of a loan, which ends it.
///
/// ```text
///  None --nothing remains--> Left
///    |`--work remains--> Ending --once more--> Left
///    `--a client remains--> Alone --once more--> the card dies
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

/// One loan of a card: its stream, what that is for, and what passes between them.
pub(crate) struct Loan<'m> {
    cells: &'m LoanCells,
    journal: Journal<'m>,
    pub(crate) pages: Pages<'m>,
    pub(crate) stream: Stream<'m>,
    pub(crate) opening: Opening<'m>,
    pub(crate) end: Contained<'m>,
    ready: bool,
    /// It was said that nothing is left to give back.
    has_said_vacant: bool,
    /// Where it says that it lies, if that is a lie.
    #[cfg(test)]
    pub(crate) lies_at: Option<u64>,
    /// Why the function cannot lie where its lender has told.
    misplaced: Option<WindowError>,
    /// What was reported of the function.
    unusable: Option<Unusable>,
    /// Of what is lent: the tenancy that the agent was asked to make durable.
    asked: Option<Tenancy>,
    /// Of what is lent: how far it was with its entry, as the agent was told.
    applied: Option<Applied>,
    /// The peer that was reported.
    met: Option<(NodeId, Incarnation)>,
    pub(crate) closing: bool,
    /// The last step has ended before everything was moved.
    more: bool,
    /// This node's name, for device information.
    name: Name,
    /// The function may have work for its medium: since the last step nobody has been told that it has none.
    may_have_media: bool,
    /// Whether an assertion has failed in a step of this loan, and what is still done here.
    fault: Fault,
    /// Work for the medium that this card has given out and that has not ended.
    given: Vec<MediaId>,
    /// When the loan is to be looked at, as far as that is known; others can only make it earlier.
    deadline: StdCell<Deadline>,
}

impl<'m> Loan<'m> {
    /// Loan `index` of a card, and the channel that its stream is in, if there is one.
    pub(crate) fn new(
        parts: LoanParts<'m>,
        journal: Journal<'m>,
        card: &CardConfig,
        index: usize,
        (drives, channel): (&[Option<Drive<'m>>], Option<&Channel<'m>>),
        decoder: Rc<Decoder<Target>>,
        now: Instant,
    ) -> Self {
        let config = &card.loans[index];
        let (cells, pages) = (parts.cells, Pages::new(parts.pages, journal));
        let max_payload = channel.map_or_else(|| card.own_payload(), Channel::max_payload);
        let patience =
            if matches!(config.role, LoanRole::Lend { .. }) { MEMORY_TIMEOUT } else { COMPLETION_TIMEOUT };
        let mut stream = Stream::new(&cells.stream, pages, journal, patience, max_payload);
        let opening = Opening::new(cells, journal, card, index, now);
        stream.set_generation(opening.generation());
        let end = compose(parts, &config.role, (journal, pages), drives, index, now);
        let own = apertures::range_of(index, parts.end.kind(), card.domain_of(config));
        let gate = Gate::new(journal, &cells.edge, decoder, own, requester_of(index));
        let mut loan = Self {
            cells,
            journal,
            pages,
            stream,
            opening,
            end: Contained::new(end, gate),
            #[cfg(test)]
            lies_at: None,
            misplaced: None,
            ready: false,
            has_said_vacant: false,
            unusable: None,
            asked: None,
            applied: None,
            met: None,
            closing: false,
            more: false,
            name: card.name,
            may_have_media: true,
            fault: Fault::None,
            given: Vec::new(),
            deadline: StdCell::default(),
        };
        loan.meet_peer(channel);
        loan.inform(now);
        loan
    }

    /// The place of the peer that the stream is with, or was last.
    pub(crate) fn peer(&self) -> Option<usize> {
        self.cells.peer()
    }

    /// A node asks for what is lent here on the channel of the peer in `place`. Why it is refused, if it is.
    pub(crate) fn handle_asking(
        &mut self,
        now: Instant,
        place: usize,
        said: &Said,
        (channel, holder): (&mut Channel<'m>, Option<&mut Channel<'m>>),
    ) -> Option<OpenRefusal> {
        let Opening::Offer(offer) = &mut self.opening else { return None };
        let course = channel.course();
        let refusal = offer.handle_asking(now, Asking { said, channel, holder, stream: &mut self.stream });
        if offer.stream().is_some_and(|(of, _)| Some(of) == course) && self.peer() != Some(place) {
            self.cells.peer.set(self.journal, place as u32 + 1);
        }
        refusal
    }

    /// Only these nodes may have what is lent from now on; who has it keeps it.
    pub(crate) fn set_allowed(&mut self, allowed: Option<Box<[NodeId]>>) {
        if let Opening::Offer(offer) = &mut self.opening {
            offer.set_allowed(allowed);
        }
    }

    /// The lender's table has this entry of what is lent from now on.
    pub(crate) fn set_entry(&mut self, now: Instant, entry: Entry) {
        if let Opening::Offer(offer) = &mut self.opening {
            offer.set_entry(now, entry);
        }
    }

    /// Whoever has what is lent was removed from the fabric, and has it no more.
    pub(crate) fn evict(&mut self, channel: Option<&mut Channel<'m>>) {
        if let Opening::Offer(offer) = &mut self.opening {
            offer.evict(channel, &mut self.stream);
        }
    }

    /// Whose what is lent is, also while that is not durable yet.
    pub(crate) fn tenant(&self) -> Option<NodeId> {
        let Opening::Offer(offer) = &self.opening else { return None };
        Some(offer.tenant()).filter(|tenant| tenant.is_held).map(|tenant| tenant.node)
    }

    /// How far what is lent is with its entry, as it was in the last step; `None`: it has none.
    fn applied(&self) -> Option<Applied> {
        let Opening::Offer(offer) = &self.opening else { return None };
        let applied = offer.applied()?;
        // Nobody has it when nothing of it is with the medium any more.
        let has_ended = self.end.function().is_none_or(|function| function.is_quiescent());
        let held =
            if has_ended || applied.held != Possession::Nobody { applied.held } else { Possession::Leaving };
        Some(Applied { held, ..applied })
    }

    /// The function is lent no more: whoever has a stream of it is told so, and its work comes to an end.
    pub(crate) fn withdraw(&mut self, now: Instant, channel: Option<&mut Channel<'m>>) {
        let Opening::Offer(offer) = &mut self.opening else { return };
        offer.withdraw(channel, &mut self.stream);
        (self.opening, self.has_said_vacant) = (Opening::Nothing, true);
        if let Some(function) = self.end.function_mut() {
            function.reset(now);
        }
    }

    /// Whether a medium has nothing of the function, nor is to have.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_quiescent = self.end.function().is_none_or(|function| function.is_quiescent());
        self.given.is_empty() && (is_quiescent || self.has_failed())
    }

    /// The stream that there is or shall be, in which course of the peer's channel.
    pub(crate) fn stream_id(&self) -> Option<(Course, StreamId)> {
        self.opening.stream()
    }

    /// Of what is lent: who has it, as is durable.
    pub(crate) fn holder(&self) -> Option<(NodeId, LifeId)> {
        self.opening.holder()
    }

    /// Since when what is lent is kept for this node, which has not given it back and has no stream of it.
    pub(crate) fn waits_for(&self, node: NodeId) -> Option<Instant> {
        let Opening::Offer(_) = &self.opening else { return None };
        let (tenant, since) = self.cells.offer.absent_holder()?;
        (tenant.node == node).then_some(since)
    }

    /// Where the loan stands.
    pub(crate) fn state(&self) -> State {
        self.opening.state()
    }

    /// See [`crate::Card::contain_faults`].
    pub(crate) fn contain_faults(&mut self) {
        self.end.contain();
    }

    /// Whether an assertion that fails now ends the loan. What answers a machine alone has nobody behind it but the
    /// next card.
    pub(crate) fn contains_faults(&self) -> bool {
        self.end.is_contained() && self.fault != Fault::Alone
    }

    /// Whether an assertion has failed while it took a TLP.
    pub(crate) fn has_faulted(&self) -> bool {
        self.end.has_failed()
    }

    /// An assertion has failed: whatever is in memory of the loan may be wrong.
    pub(crate) fn fail(&mut self) {
        self.fault = Fault::Left;
    }

    /// Takes the place of one that has failed, in a step of its own: it was made anew from what is committed.
    pub(crate) fn replace(&mut self, now: Instant, failed: &Self) {
        self.end.contain();
        self.fault = match self.end.remains() {
            Remains::Nothing => Fault::Left,
            Remains::Work => Fault::Ending,
            Remains::Client => Fault::Alone,
        };
        self.given.clone_from(&failed.given);
        self.end.replace(now, &**failed.end, &self.given);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.fault != Fault::None
    }

    /// Whether steps of the loan are still taken.
    pub(crate) fn takes_steps(&self) -> bool {
        matches!(self.fault, Fault::None | Fault::Alone)
    }

    /// The medium has ended work.
    pub(crate) fn handle_media(&mut self, now: Instant, id: MediaId, result: Result<(), MediaError>) {
        if let Some(function) = self.end.function_mut() {
            function.handle_media(now, id, result);
        }
    }

    /// The medium has ended work of a function that is given up.
    pub(crate) fn end_media(&mut self, now: Instant, id: MediaId, result: Result<(), MediaError>) {
        if self.fault == Fault::Ending {
            self.handle_media(now, id, result);
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

    /// Whether the machine of a slot is told that its peer is silent.
    pub(crate) fn is_silent(&self) -> bool {
        self.end.is_silent() && !self.has_failed()
    }

    /// Only an answer to this very card shows that the peer hears it, too: one whose frames come while ours get lost is
    /// as good as dead.
    pub(crate) fn note_answer(&mut self, now: Instant) {
        self.end.heard(now);
    }

    /// The peer has said something of the stream.
    pub(crate) fn handle_said(&mut self, now: Instant, said: &Said, channel: &mut Channel<'m>) {
        self.opening.handle_said(now, said, channel, &mut self.stream);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.end.handle_timeout(now, &mut self.stream.port);
    }

    /// When the loan is to be looked at. What others do to it shows in `depends_on_others`; everything else happens in
    /// its own steps, so the answer is remembered from one to the next.
    pub(crate) fn poll_timeout(&self, channel: Option<&Channel<'m>>) -> Option<Instant> {
        if !self.takes_steps() {
            return None;
        }
        match self.deadline.get() {
            Deadline::Known(deadline) if self.is_steady() => deadline,
            _ => {
                let deadline = self.find_deadline(channel);
                self.deadline.set(Deadline::Known(deadline));
                deadline
            }
        }
    }

    /// Whether only steps of the loan itself can give it something to do.
    pub(crate) fn is_steady(&self) -> bool {
        !self.end.depends_on_others()
    }

    /// Whether an answer is awaited for which its card is to stay awake.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.has_failed() && self.end.is_waiting(&self.stream.port)
    }

    /// Whether it is for a virtual machine.
    pub(crate) fn is_slot(&self) -> bool {
        self.end.slot().is_some()
    }

    pub(crate) fn find_deadline(&self, channel: Option<&Channel<'m>>) -> Option<Instant> {
        if self.more || (!self.has_failed() && self.stream.receiver().has_ahead()) {
            return Some(Instant::ZERO);
        }
        let stream = [self.stream.poll_timeout(), self.opening.poll_timeout(channel)].into_iter().flatten();
        let stream = stream.min().filter(|_| !self.has_failed());
        [stream, self.end.poll_timeout()].into_iter().flatten().min()
    }

    /// Bytes of the next work for the medium, if there is any, and whether asking has given the loan something to do.
    pub(crate) fn media_cost(&mut self) -> (Option<u32>, bool) {
        if !self.may_have_media || self.fault == Fault::Left {
            return (None, false);
        }
        // Asking fetches commands, and what is fetched has answers.
        self.wake();
        let cost = self.ask_for_media(|function| function.peek_media()).flatten();
        self.may_have_media = cost.is_some();
        (cost, self.more)
    }

    /// Whether the next work for the medium comes before that of all other functions: see [`MediaFunction::must_redo`].
    pub(crate) fn must_redo(&self) -> bool {
        self.fault != Fault::Left && self.end.function().is_some_and(|function| function.must_redo())
    }

    /// What is borrowed is flushed, its function shut down; then it is given back.
    pub(crate) fn begin_closing(&mut self, now: Instant) {
        if self.has_failed() {
            return;
        }
        self.closing = true;
        self.end.begin_closing(now);
    }

    /// Nobody waits for the lender any more: what is borrowed ends without him.
    pub(crate) fn forget(&mut self, now: Instant, channel: Option<&mut Channel<'m>>) {
        if let Opening::Claim(claim) = &mut self.opening {
            self.closing = false;
            self.end.give_up(now);
            claim.forget(channel, &mut self.stream);
        }
    }

    /// Something may have changed: everybody asks again.
    fn wake(&mut self) {
        self.may_have_media = true;
        self.deadline.take();
    }

    pub(crate) fn poll_media(&mut self, loan: usize) -> Option<MediaWork<'m>> {
        let pages = self.pages;
        self.ask_for_media(|function| {
            let redo = function.must_redo();
            Some(MediaWork::new(loan, &function.poll_media()?, &pages, redo))
        })?
    }

    /// Asks the function about its work for the medium; `None` of a loan that lends nothing.
    ///
    /// Asking goes on where work behind the present one waits: it fetches commands, and lets in or ends those that
    /// waited for a namespace. That may give the host something to read or to send, of which no step follows: without
    /// `more` it would lie until the next event of this very loan, for which the host may be waiting. Only what has
    /// been added counts, not what is there: a step that has no room for it leaves it where it is, asking once more
    /// adds nothing, and whoever makes room is an event. So a loan that cannot send is not awake for it.
    fn ask_for_media<T>(&mut self, ask: impl FnOnce(&mut (dyn MediaFunction + 'm)) -> T) -> Option<T> {
        let function = self.end.function_mut()?;
        let before = function.sending();
        let answer = ask(function);
        if function.sending() > before {
            self.more = true;
            self.deadline.take();
        }
        Some(answer)
    }

    /// What follows from a verb: how the stream begins and ends, late TLPs, and the flow between the parts. `channel`
    /// is that of the peer, where there is one.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        index: usize,
        mut channel: Option<&mut Channel<'m>>,
        events: &mut VecDeque<CardEvent>,
    ) {
        self.wake();
        if self.has_failed() {
            return self.advance_alone(now);
        }
        self.opening.advance(now, channel.as_deref_mut(), &mut self.stream);
        self.handle_events(now, index, channel.as_deref(), events);
        if self.end_reset(index) {
            self.opening.advance(now, channel.as_deref_mut(), &mut self.stream);
            self.handle_events(now, index, channel.as_deref(), events);
        }
        let course = channel.as_deref().and_then(Channel::course);
        let id = self.stream_id().filter(|(of, _)| Some(*of) == course).map(|(_, id)| id);
        let mut here = channel.as_deref_mut().zip(id);
        if let Some((channel, id)) = &mut here {
            for _ in 0..AHEAD_PER_STEP {
                if !channel.deliver_ahead(now, *id, &mut self.stream, &mut self.end) {
                    break;
                }
            }
        }
        let (open, port) = (self.stream.state() == State::Open, &mut self.stream.port);
        self.more = self.end.pump(now, port, open);
        // What the step has freed is room in the next one, which nobody else would begin.
        self.more |= open && port.has_room_after_commit();
        if let Some((channel, id)) = here {
            channel.tend(now, id, &mut self.stream);
        }
        self.remember_tenancy();
        self.report(now, index, channel.as_deref_mut(), events);
        // What has nothing to give back is closed at once, and no step follows.
        self.handle_events(now, index, channel.as_deref(), events);
    }

    /// What follows where nobody but the client of an endpoint is told anything.
    fn advance_alone(&mut self, now: Instant) {
        self.more = self.fault == Fault::Alone && self.end.pump(now, &mut self.stream.port, false);
    }

    fn handle_events(
        &mut self,
        now: Instant,
        index: usize,
        channel: Option<&Channel<'m>>,
        events: &mut VecDeque<CardEvent>,
    ) {
        loop {
            match &mut self.opening {
                Opening::Claim(claim) => {
                    let Some(event) = claim.poll_event() else { return };
                    self.handle_claim(now, index, event, channel, events);
                }
                Opening::Offer(offer) => {
                    let Some(event) = offer.poll_event() else { return };
                    self.handle_offer(now, index, event, channel, events);
                }
                Opening::Nothing if self.has_said_vacant => return,
                Opening::Nothing => {
                    self.has_said_vacant = true;
                    self.end_claim(now, index, events);
                }
            }
        }
    }

    fn handle_claim(
        &mut self,
        now: Instant,
        index: usize,
        event: ClaimEvent,
        channel: Option<&Channel<'m>>,
        events: &mut VecDeque<CardEvent>,
    ) {
        match event {
            ClaimEvent::Reset => {
                self.meet_peer(channel);
                self.end.handle_reset(now);
            }
            ClaimEvent::Opened { tenancy, .. } => {
                self.meet_peer(channel);
                self.compare_tenancy(now, index, tenancy, channel, events);
                if self.misplaced.is_none() {
                    self.end.handle_open(now);
                }
            }
            ClaimEvent::Refused(refusal) => {
                let refusal = Refusal::of_opening(refusal);
                events.extend(refusal.map(|refusal| CardEvent::Refused(index, refusal)));
            }
            ClaimEvent::Closed => self.end_claim(now, index, events),
            ClaimEvent::Information(information) => {
                self.cells.edge.information_frames.add(1);
                self.end.note_information(information.bytes.get(), information.flags & 1 != 0);
            }
        }
    }

    fn handle_offer(
        &mut self,
        now: Instant,
        index: usize,
        event: OfferEvent,
        channel: Option<&Channel<'m>>,
        events: &mut VecDeque<CardEvent>,
    ) {
        match event {
            OfferEvent::Opened => return,
            OfferEvent::Reset { .. } => self.meet_peer(channel),
            // Nobody's memory is reached any more.
            OfferEvent::Ended | OfferEvent::Closed => self.end.set_peer(None, 0),
        }
        self.end.handle_reset(now);
        if event == OfferEvent::Closed {
            events.push_back(CardEvent::Closed { loan: index, has_lost: false });
        }
    }

    /// What was borrowed is given back, or there was nothing.
    fn end_claim(&mut self, now: Instant, index: usize, events: &mut VecDeque<CardEvent>) {
        let has_lost = self.end.end(now);
        events.push_back(CardEvent::Closed { loan: index, has_lost });
    }

    /// The stream opens: its borrower learns whether somebody else has used the drive since it did.
    fn compare_tenancy(
        &mut self,
        now: Instant,
        index: usize,
        tenancy: u64,
        channel: Option<&Channel<'m>>,
        events: &mut VecDeque<CardEvent>,
    ) {
        let fork = channel.map(Channel::fork).unwrap_or_default();
        let is_fork = fork != LifeId::default() && fork != self.cells.fork.get();
        if is_fork {
            self.cells.fork.set(self.journal, fork);
        }
        let used = self.cells.tenancy.get();
        if used == 0 || (used == tenancy && !is_fork) {
            return;
        }
        self.cells.tenancy.set(self.journal, 0);
        self.cells.untold.set(self.journal, 1);
        self.end.forget(now);
        events.push_back(CardEvent::Overtaken(index));
    }

    /// A card before this one has found that another node has used the drive, and perhaps not lived to say so.
    pub(crate) fn is_untold(&self) -> bool {
        self.cells.untold.get() != 0
    }

    /// A borrower knows a tenancy once its stream flows: the lender opens that when the tenancy is durable. One that
    /// fell before this makes another number of its next life, and nobody has used the drive in between.
    fn remember_tenancy(&self) {
        let Opening::Claim(claim) = &self.opening else { return };
        let number = claim.tenancy();
        let is_news = claim.state() == ClaimState::Open && self.cells.tenancy.get() != number;
        if is_news && self.stream.has_flowed() {
            self.cells.tenancy.set(self.journal, number);
            self.cells.untold.set(self.journal, 0);
        }
    }

    /// A lender has the agent make durable who has its function, or had it: before that has an effect that somebody
    /// could know of.
    fn keep_tenancy(&mut self, index: usize, events: &mut VecDeque<CardEvent>) {
        let Opening::Offer(offer) = &self.opening else { return };
        let unsaved = offer.unsaved_tenancy();
        if self.asked != unsaved {
            self.asked = unsaved;
            events.extend(unsaved.map(|tenancy| CardEvent::Tenant(index, tenancy)));
        }
    }

    /// The agent has made durable who has the function.
    pub(crate) fn set_tenancy(&mut self, tenancy: Tenancy) {
        if let Opening::Offer(offer) = &mut self.opening {
            offer.set_tenancy(tenancy);
        }
    }

    /// A stream opens when nothing of the one before can still have an effect. True if that is so now.
    fn end_reset(&mut self, index: usize) -> bool {
        let Opening::Offer(offer) = &mut self.opening else { return false };
        let has_ended = || self.end.function().is_none_or(|function| function.is_quiescent());
        let is_quiet = offer.state() == OfferState::Ending && has_ended();
        if is_quiet {
            let base = apertures::base_of(index);
            #[cfg(test)]
            let base = self.lies_at.unwrap_or(base);
            offer.quiet(requester_of(index), base);
        }
        is_quiet
    }

    fn report(
        &mut self,
        now: Instant,
        index: usize,
        channel: Option<&mut Channel<'m>>,
        events: &mut VecDeque<CardEvent>,
    ) {
        self.keep_tenancy(index, events);
        let applied = self.applied();
        if self.applied != applied {
            self.applied = applied;
            events.extend(applied.map(|applied| CardEvent::Applied(index, applied)));
        }
        if self.state() == State::Open
            && let Some(channel) = channel.as_deref()
        {
            let peer = channel.newest_peer().map(|(incarnation, _)| incarnation);
            let met = channel.peer().map(|(node, ..)| node).zip(peer);
            if self.met != met {
                self.met = met;
                events.extend(met.map(|(node, incarnation)| CardEvent::Met(index, node, incarnation)));
            }
        }
        let unusable = self.misplaced.map(Unusable::Window).or_else(|| self.end.unusable());
        if !self.ready && self.end.is_ready() {
            self.ready = true;
            events.push_back(CardEvent::Ready(index));
        }
        if self.unusable != unusable {
            self.unusable = unusable;
            events.extend(unusable.map(|error| CardEvent::Unusable(index, error)));
        }
        if self.closing
            && self.end.may_close()
            && let (Opening::Claim(claim), Some(channel)) = (&mut self.opening, channel)
        {
            self.closing = false;
            claim.close(now, channel, &mut self.stream);
        }
    }

    /// Where accesses lead, as far as that is known.
    pub(crate) fn meet_peer(&mut self, channel: Option<&Channel<'m>>) {
        let Some((channel, (_, _, domain))) = channel.and_then(|channel| Some((channel, channel.peer()?)))
        else {
            return;
        };
        let max_payload = channel.max_payload();
        let window = match &self.opening {
            // Not in the node's own domain, if it is for a machine.
            Opening::Offer(offer) => {
                let (domain, _) = offer.place();
                Ok(Window::new(domain, offer.host()))
            }
            Opening::Claim(claim) => apertures::to_function(domain, claim.base(), claim.requester()),
            // Nobody is reached from a vacant place.
            Opening::Nothing => return,
        };
        // A lender may say anything. What cannot be reached is none.
        self.misplaced = window.err();
        self.end.set_peer(window.ok(), max_payload);
    }

    /// What a lender says of its function, which may have grown. True if that is news.
    pub(crate) fn inform(&mut self, now: Instant) -> bool {
        let Some(function) = self.end.function() else { return false };
        let (bytes, read_only) = function.capacity();
        self.cells.edge.drive_bytes.set(bytes);
        self.cells.edge.drive_rights.set(1 + u64::from(read_only));
        self.cells.edge.media_fault.set(function.has_fault().into());
        let information =
            Information { bytes: bytes.into(), kind: 1, flags: read_only.into(), name: self.name.to_bytes() };
        let Opening::Offer(offer) = &mut self.opening else { return false };
        let is_news = offer.set_information(now, information);
        if is_news {
            self.deadline.take();
        }
        is_news
    }

    /// Renews the gauges of the channel, if there is one.
    pub(crate) fn show(&self, channel: Option<&ChannelGauges>) {
        if let Some(channel) = channel.filter(|_| !self.has_failed()) {
            channel.publish(&self.cells.edge);
        }
    }

    /// Whether the agent sees where the stream stands. It may have opened without a step of this loan's.
    pub(crate) fn shows_its_state(&self) -> bool {
        self.has_failed() || self.cells.edge.channel_state.get() == self.state() as u64
    }

    /// Renews the gauges. True if the loan has something to do since.
    pub(crate) fn publish(&mut self, now: Instant, channel: Option<&ChannelGauges>) -> bool {
        if self.has_failed() {
            return false;
        }
        let has_news = self.inform(now);
        self.show(channel);
        let edge = &self.cells.edge;
        edge.channel_state.set(self.state() as u64);
        let sender = &self.stream.port.sender;
        edge.in_flight.set(sender.next() - sender.committed());
        edge.replay_bytes.set(sender.replay_bytes());
        self.end.publish();
        has_news
    }
}
