//! The lender's end of a stream: who has the function, who waits or is refused.
//!
//! The rules:
//!
//! 1. A function belongs to the life that has it until that gives it back, or was silent for the hold time. A lender
//!    that was started anew knows whose it was from its agent, and counts from when it could hear. Whose node does not
//!    stand on the list any more keeps it only as long as it is heard.
//! 2. Another life of the node that has it takes it: it could meet this node only because the life before is gone
//!    ([`Lobby`](crate::pair::Lobby), `admission` of the channel).
//! 3. Who takes it has it once that is durable; who gives it back is answered once that is.
//! 4. Whatever was in a stream before has ended before another one opens.
//! 5. Whoever was removed from the lender's fabric has nothing from then on, and nothing is kept for it.
//!
//! Of a function that a manager gives and takes, an [`Entry`] of the lender's table says whose it is:
//!
//! 6. Only the node of the entry opens it, by the entry's generation, in its domain and slot. It proves nothing more
//!    than
//!    who it is; no line opens it.
//! 7. Whose it is not by the entry keeps the stream that it has, if that flows, until it gives the function back, was
//!    silent for the hold time, or the entry forces it out. Nobody else gets a stream before. Without a stream it has
//!    nothing.

use std::collections::VecDeque;

use base::ids::{DomainId, LifeId, LoanGeneration, NodeId, StreamId};
use base::ledger::{Cell, Code, Journal, Layout};
use base::times::{HOLD, SILENCE, STREAM_CHECK};
use base::{Instant, Rule, coded};
use core::time::Duration;
use pcie::Bdf;
use zerocopy::FromBytes;

use super::Repeat;
use crate::entry::{Applied, Assignment, Entry, Holder, Possession};
use crate::pair::channel::{Channel, Course, NotNow, Said};
use crate::pair::control::{FunctionId, OpenRefusal, What, Wish};
use crate::proof::is_proof;
use crate::record::Information;
use crate::stream::Stream;
use crate::tenancy::{Tenancy, TenancyWords};

/// Where an offer stands.
///
/// ```text
/// Free --asked--> Ending --quiet--> Saving --durable--> Open --close--> Closing --durable--> Free
///  ^               ^ | |              |                  |                ^
///  |               +-+-|--asked again-+------------------+ (and Closing)  |
///  |                   +---------------close------------------------------+
///  +--anew, or closed by the borrower: from all but Closing
///
/// Ending, Saving, Open --the entry is another's--> Closing
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfferState {
    /// No stream: nobody has the function, or who has it is not here.
    Free = 0,
    /// A stream is to be opened; what was before it is being ended.
    Ending = 1,
    /// That has ended; whose the function is has to become durable.
    Saving = 2,
    /// The stream flows.
    Open = 3,
    /// It was given back, which has to become durable.
    Closing = 4,
}

coded!(OfferState: Free, Ending, Saving, Open, Closing);

/// The storage of an [`Offer`]. All zeroes: nobody has had the function.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct OfferCells {
    /// Who has the function; it has an effect when the agent has made it durable.
    tenant: Cell<TenancyWords>,
    /// When it came, in nanoseconds of the driver's clock.
    bound_at: Cell<u64>,
    /// When it was last heard, as far as its channel does not tell; or the first card began to listen.
    heard_at: Cell<u64>,
    /// The course of the channel that the stream belongs to; 0: there is none.
    course: Cell<u64>,
    /// How far into the aperture of its domain the function lies.
    base: Cell<u64>,
    /// Of the entry by which the stream was opened; 0: by a line.
    generation: Cell<u64>,
    /// Of the entry that the last card knew of; 0: of none.
    entered: Cell<u64>,
    stream: Cell<u32>,
    /// Where the function is wanted.
    domain: Cell<u32>,
    slot: Cell<u32>,
    requester: Cell<u16>,
    /// What requests of the function bear at who has the stream.
    host: Cell<u16>,
    state: Cell<Code<OfferState>>,
    reserved: [Cell<u8>; 7],
}

impl OfferCells {
    /// Where the function is wanted by who has the stream, its domain and its slot there: readable by the agent at any
    /// time.
    pub fn place(&self) -> (DomainId, u16) {
        (DomainId(self.domain.get()), self.slot.get() as u16)
    }

    /// What requests of the function bear there: readable by the agent at any time.
    pub fn host(&self) -> Bdf {
        Bdf(self.host.get())
    }

    /// Who has not given the function back, and has no stream of it, and when that node was last heard, as far as its
    /// offer knows: the function is kept for it for its hold time from then on. Readable by the agent at any time.
    pub fn absent_holder(&self) -> Option<(Tenancy, Instant)> {
        let tenant = Tenancy::from(self.tenant.get());
        let is_absent = tenant.is_held && self.course.get() == 0;
        is_absent.then(|| (tenant, Instant::from_nanos(self.heard_at.get())))
    }
}

/// What an offer is told when it is made.
#[derive(Clone)]
pub struct OfferConfig {
    /// The function.
    pub function: FunctionId,
    /// The secret of its line, if it has one.
    pub secret: Option<[u8; 32]>,
    /// Its entry in the lender's table; `None`: nobody manages it, and its line counts.
    pub entry: Option<Box<Entry>>,
    /// The nodes that may have it; `None`: all that have its line.
    pub allowed: Option<Box<[NodeId]>>,
    /// Who has used it last, as the agent has made durable.
    pub tenancy: Tenancy,
    /// The lender's life.
    pub life: LifeId,
}

/// What the owner of an offer has to act on, in the same step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfferEvent {
    /// A stream is to be opened: end what was before, then call [`Offer::quiet`].
    Reset {
        /// Whose it will be.
        node: NodeId,
        /// The domain in which the function is wanted.
        domain: DomainId,
        /// Its slot there.
        slot: u16,
    },
    /// The stream is open.
    Opened,
    /// Nothing flows any more: the two nodes have begun anew, or the borrower has the stream no more. End what was.
    Ended,
    /// The function was given back. End what was.
    Closed,
}

/// An opening that has come, for the offer of its function.
pub struct Asking<'a, 'm> {
    /// What was said.
    pub said: &'a Said,
    /// The channel on which it came.
    pub channel: &'a mut Channel<'m>,
    /// The channel of who has the stream now, where that is another one.
    pub holder: Option<&'a mut Channel<'m>>,
    /// The offer's stream.
    pub stream: &'a mut Stream<'m>,
}

/// The lender's end of a stream.
pub struct Offer<'m> {
    cells: &'m OfferCells,
    journal: Journal<'m>,
    config: OfferConfig,
    information: Option<Information>,
    informs: Repeat,
    listens_since: Instant,
    /// Whose the function is by the entry, and has not had it, is awaited since then.
    awaited_since: Instant,
    /// When it was looked last whether whose it is was silent for too long, and what came of that.
    overdue: (Instant, Option<bool>),
    events: VecDeque<OfferEvent>,
}

impl<'m> Offer<'m> {
    /// The offer over `cells`, new or found: a successor goes on with what its predecessor has agreed.
    pub fn new(cells: &'m OfferCells, journal: Journal<'m>, config: OfferConfig, now: Instant) -> Self {
        if cells.heard_at.get() == 0 {
            cells.heard_at.set(journal, now.as_nanos());
        }
        let (information, informs, events) = (None, Repeat::default(), VecDeque::new());
        let mut offer = Self {
            cells,
            journal,
            config,
            information,
            informs,
            listens_since: now,
            awaited_since: now,
            overdue: (now, None),
            events,
        };
        if offer.tenant().number < offer.config.tenancy.number {
            offer.set_tenant(offer.config.tenancy);
        }
        // The card before may have gone before it knew of it.
        if let Some(entry) = offer.entry() {
            offer.note_entry(now, &entry);
        }
        if offer.state() == OfferState::Ending {
            offer.ask_for_reset();
        }
        offer
    }

    /// Where it stands.
    pub fn state(&self) -> OfferState {
        self.cells.state.value()
    }

    /// Which function it is of.
    pub fn function(&self) -> FunctionId {
        self.config.function
    }

    /// The stream that it has or opens, in which course of its holder's channel.
    pub fn stream(&self) -> Option<(Course, StreamId)> {
        let course = Course(self.cells.course.get());
        (course != Course::default()).then(|| (course, StreamId(self.cells.stream.get())))
    }

    /// Where the function is wanted by who has the stream: its domain, and its slot there.
    pub fn place(&self) -> (DomainId, u16) {
        self.cells.place()
    }

    /// What requests of the function bear there.
    pub fn host(&self) -> Bdf {
        self.cells.host()
    }

    /// Who has the function, or has had it last.
    pub fn tenant(&self) -> Tenancy {
        self.cells.tenant.get().into()
    }

    /// The tenancy that the agent has to make durable. Until it says so with [`Offer::set_tenancy`], neither does the
    /// stream of who has taken the function open, nor is who has given it back answered.
    pub fn unsaved_tenancy(&self) -> Option<Tenancy> {
        let tenant = self.tenant();
        (tenant != self.config.tenancy).then_some(tenant)
    }

    /// Who has the function, as is durable, be it that this lender has not met it yet: it may be called.
    pub fn durable_holder(&self) -> Option<(NodeId, LifeId)> {
        self.holder().filter(|_| self.unsaved_tenancy().is_none()).map(|tenant| (tenant.node, tenant.life))
    }

    /// `tenancy` is durable. [`Offer::advance`] follows in the same step.
    pub fn set_tenancy(&mut self, tenancy: Tenancy) {
        self.config.tenancy = tenancy;
    }

    /// The table has this entry from now on. [`Offer::advance`] follows in the same step.
    pub fn set_entry(&mut self, now: Instant, entry: Entry) {
        self.note_entry(now, &entry);
        self.config.entry = Some(Box::new(entry));
    }

    /// Whose the function is by a new entry is awaited from now on.
    fn note_entry(&mut self, now: Instant, entry: &Entry) {
        let is_news = self.cells.entered.get() != entry.generation.0;
        if let Some(to) = entry.assigned().filter(|_| is_news) {
            // Whose it is now has not been heard of yet, or has had it before: that it was silent since does not count.
            if to.node != self.tenant().node {
                self.awaited_since = now;
            } else if !self.tenant().is_held {
                self.cells.heard_at.set(self.journal, now.as_nanos());
            }
        }
        if is_news {
            self.cells.entered.set(self.journal, entry.generation.0);
        }
    }

    /// By which generation its stream was opened.
    pub fn generation(&self) -> LoanGeneration {
        LoanGeneration(self.cells.generation.get())
    }

    /// How far it is with its entry, as far as it knows, by the last step; `None`: it has none.
    pub fn applied(&self) -> Option<Applied> {
        let entry = self.entry()?;
        let held = match entry.holder {
            _ if self.is_left() => Possession::Leaving,
            Holder::Assigned(_) => Possession::Assigned,
            Holder::Nobody | Holder::Leaving { .. } => Possession::Nobody,
        };
        Some(Applied { generation: entry.generation, held, is_overdue: self.overdue.1 })
    }

    /// Only these nodes may have the function from now on; who has it keeps it as long as it is heard.
    pub fn set_allowed(&mut self, allowed: Option<Box<[NodeId]>>) {
        self.config.allowed = allowed;
    }

    /// Who has the function was removed from the fabric: it has it no more, be its stream open or the function kept for
    /// it, and another one may have it once that is durable. [`Offer::advance`] follows in the same step.
    pub fn evict(&mut self, channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        match self.state() {
            _ if !self.tenant().is_held => {}
            OfferState::Closing => {}
            OfferState::Free => self.set_tenant(self.tenant().given_back()),
            OfferState::Ending | OfferState::Saving | OfferState::Open => self.end_stream(channel, stream),
        }
    }

    /// The function is offered no more: who has the stream, on `channel` where that is there, is told that it is
    /// closed.
    pub fn withdraw(&mut self, channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        let id = StreamId(self.cells.stream.get());
        if let Some(channel) = channel.filter(|channel| self.is_of(channel)) {
            channel.release(id, stream);
            channel.say_of(id, What::Closed);
        }
        self.forget_stream();
        self.events.clear();
    }

    /// What was before the stream that is to be opened has ended; `requester` is what requests to the function bear in
    /// it, and `base` how far into the aperture of its domain the function lies. [`Offer::advance`] follows in the same
    /// step.
    pub fn quiet(&mut self, requester: Bdf, base: u64) {
        if self.state() == OfferState::Ending {
            self.cells.requester.set(self.journal, requester.0);
            self.cells.base.set(self.journal, base);
            self.set_state(OfferState::Saving);
        }
    }

    /// What the borrower is told of the function, when its stream opens and now. True if that is news.
    pub fn set_information(&mut self, now: Instant, information: Information) -> bool {
        let is_news = self.information != Some(information);
        if is_news {
            self.information = Some(information);
            self.informs.begin(now);
        }
        is_news
    }

    /// The next event, or none.
    pub fn poll_event(&mut self) -> Option<OfferEvent> {
        self.events.pop_front()
    }

    /// When [`Offer::advance`] has something to do; `channel` is the one with the node of its stream.
    pub fn poll_timeout(&self, channel: Option<&Channel<'m>>) -> Option<Instant> {
        let inform =
            self.informs.next.filter(|_| self.state() == OfferState::Open && self.information.is_some());
        [inform, self.end_of_patience(channel), self.next_look(channel)].into_iter().flatten().min()
    }

    /// Part of every step; `channel` is the one with the node of its stream, where that is there.
    pub fn advance(&mut self, now: Instant, mut channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        self.overdue = (now, self.is_overdue(now, channel.as_deref()));
        self.enforce(now, channel.as_deref_mut(), stream);
        self.follow(now, channel, stream);
        self.forget_absent();
    }

    /// How the stream begins and ends, but for what the entry says.
    fn follow(&mut self, now: Instant, channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        let here = channel.filter(|channel| self.is_of(channel));
        let (state, is_saved) = (self.state(), self.unsaved_tenancy().is_none());
        match (state, here) {
            (OfferState::Free, _) => {}
            (OfferState::Closing, here) if is_saved => {
                if let Some(channel) = here {
                    channel.say_of(StreamId(self.cells.stream.get()), What::Closed);
                }
                self.forget_stream();
            }
            (OfferState::Closing, _) => {}
            (_, None) => self.lose_stream(now),
            (OfferState::Saving, Some(channel)) if is_saved => {
                self.set_state(OfferState::Open);
                stream.open();
                self.informs.begin(now);
                self.events.push_back(OfferEvent::Opened);
                self.say_opened(channel);
                self.inform(now, channel);
            }
            (OfferState::Open, Some(channel)) => self.inform(now, channel),
            (OfferState::Ending | OfferState::Saving, Some(_)) => {}
        }
    }

    /// Somebody asks for the function. Why it is refused, if it is.
    pub fn handle_asking(&mut self, now: Instant, asking: Asking<'_, 'm>) -> Option<OpenRefusal> {
        let (said, channel) = (asking.said, asking.channel);
        let (id, What::Open { wish, proof }) = (said.stream(), *said.what()) else { return None };
        let proves = |secret| is_proof(secret, &wish.proven(said.hash(), id), &proof);
        let is_proven = wish.is_by_entry()
            || self.config.secret.as_ref().is_some_and(proves)
            || !self.journal.rule(Rule::ProveSecrets);
        if wish.function != self.config.function || !is_proven {
            channel.refuse_unknown(now, id);
            return Some(OpenRefusal::Unknown);
        }
        if self.is_of(channel) && self.cells.stream.get() == id.0 {
            // Said again: the answer got lost, or is still to come.
            if self.state() == OfferState::Open {
                self.say_opened(channel);
            }
            return None;
        }
        if self.state() == OfferState::Closing {
            // Until it is durable that the function was given back, the one who did so listens for the answer.
            return None;
        }
        let obstacle = self.obstacle(now, &wish, channel, asking.holder.as_deref());
        let refusal = obstacle.or_else(|| match channel.admit(id) {
            Ok(()) => None,
            Err(NotNow::Number) => Some(OpenRefusal::Number),
            Err(NotNow::TooMany) => Some(OpenRefusal::NoRoom),
        });
        match refusal {
            Some(refusal) => channel.say_of(id, What::Refused(refusal)),
            None => self.take(now, (id, &wish), channel, asking.holder, asking.stream),
        }
        refusal
    }

    /// The borrower has said something else of the stream.
    pub fn handle_said(
        &mut self,
        now: Instant,
        said: &Said,
        channel: &mut Channel<'m>,
        stream: &mut Stream<'m>,
    ) {
        if !self.is_of(channel) || self.cells.stream.get() != said.stream().0 {
            return channel.handle_stray(now, said);
        }
        match (self.state(), said.what()) {
            (OfferState::Ending | OfferState::Saving | OfferState::Open, What::Close) => {
                channel.release(said.stream(), stream);
                // By an entry it may be this node's still, which is awaited from now on.
                self.cells.heard_at.set(self.journal, now.as_nanos());
                self.set_tenant(self.tenant().given_back());
                self.set_state(OfferState::Closing);
                self.events.push_back(OfferEvent::Closed);
                self.advance(now, Some(channel), stream);
            }
            // The borrower has it no more and has not given it back: its hold time begins.
            (OfferState::Ending | OfferState::Saving | OfferState::Open, What::Closed) => {
                channel.release(said.stream(), stream);
                self.lose_stream(now);
            }
            // Said again: it is answered when that is durable.
            (_, What::Close) => {}
            (_, What::Informed) => self.informs.rest(now + STREAM_CHECK),
            _ => channel.stats().unknown_streams.add(1),
        }
    }

    /// Why who asks on `channel` does not get it.
    fn obstacle(
        &self,
        now: Instant,
        wish: &Wish,
        channel: &Channel<'m>,
        holders: Option<&Channel<'m>>,
    ) -> Option<OpenRefusal> {
        // Who speaks of streams has been met.
        let (node, ..) = channel.peer()?;
        match self.entry() {
            Some(entry) => self.obstacle_by_entry(now, (&entry, wish), node, holders),
            None if wish.is_by_entry() => Some(OpenRefusal::Generation),
            None => self.obstacle_by_line(now, node, holders),
        }
    }

    /// The same of a function that nobody manages.
    fn obstacle_by_line(
        &self,
        now: Instant,
        node: NodeId,
        holders: Option<&Channel<'m>>,
    ) -> Option<OpenRefusal> {
        if !self.is_allowed(node) {
            return Some(OpenRefusal::NotAllowed);
        }
        let holder = self.holder().filter(|holder| holder.node != node)?;
        let heard = self.holder_heard(holders);
        let silent = now.since(heard);
        // So an operator takes a function back from a node that is gone: it may not have it any more.
        let is_kept = self.is_allowed(holder.node) && self.journal.rule(Rule::HoldForSilent);
        let hold = if is_kept { HOLD } else { SILENCE };
        // A card that is new, because the lender itself was away, listens first.
        if silent >= hold && now.since(self.listens_since) >= SILENCE {
            return None;
        }
        Some(self.in_use(now, &holder, silent, hold))
    }

    /// The same of a managed one.
    fn obstacle_by_entry(
        &self,
        now: Instant,
        (entry, wish): (&Entry, &Wish),
        node: NodeId,
        holders: Option<&Channel<'m>>,
    ) -> Option<OpenRefusal> {
        let place = (wish.domain, wish.slot);
        let refusal = self.refusal_by(entry, wish.generation, (node, place));
        if refusal.is_some() {
            return refusal;
        }
        // Another stream of its own is over, if that is where the function was.
        let tenant = self.tenant();
        let was_there = (tenant.node, self.place()) == (node, place);
        if self.is_left() && !was_there && self.journal.rule(Rule::LetLeave) {
            let silent = now.since(self.holder_heard(holders));
            return Some(self.in_use(now, &tenant, silent, self.patience()));
        }
        None
    }

    /// Why a node has no right to the function in this place by an entry of this generation, or by a line where that
    /// is 0.
    fn refusal_by(
        &self,
        entry: &Entry,
        generation: LoanGeneration,
        (node, place): (NodeId, (DomainId, u16)),
    ) -> Option<OpenRefusal> {
        if generation == LoanGeneration(0) {
            return self.journal.rule(Rule::FenceLines).then_some(OpenRefusal::Managed);
        }
        if generation != entry.generation && self.journal.rule(Rule::FenceGenerations) {
            return Some(OpenRefusal::Generation);
        }
        let is_its = entry.assigned().is_some_and(|to| (to.node, (to.domain, to.slot)) == (node, place));
        (!is_its && self.journal.rule(Rule::AssignedOnly)).then_some(OpenRefusal::NotAllowed)
    }

    /// Who has the function by no entry loses it, when it is time.
    fn enforce(&mut self, now: Instant, channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        let Some(entry) = self.entry() else { return };
        if self.is_entitled(&entry) {
            return;
        }
        match self.state() {
            OfferState::Free | OfferState::Closing => {}
            OfferState::Ending | OfferState::Saving => self.end_stream(channel, stream),
            OfferState::Open if self.has_to_go(now, &entry, channel.as_deref()) => {
                self.end_stream(channel, stream);
            }
            OfferState::Open => {}
        }
    }

    fn entry(&self) -> Option<Entry> {
        self.config.entry.as_deref().copied()
    }

    /// Whether who has the function has it by this entry.
    fn is_entitled(&self, entry: &Entry) -> bool {
        let node = self.tenant().node;
        match self.state() {
            OfferState::Free => entry.assigned().is_some_and(|to| to.node == node),
            _ => self.refusal_by(entry, self.generation(), (node, self.place())).is_none(),
        }
    }

    /// Who has no stream and no right to one has nothing.
    fn forget_absent(&self) {
        let is_entitled = self.entry().is_none_or(|entry| self.is_entitled(&entry));
        if self.state() == OfferState::Free && self.tenant().is_held && !is_entitled {
            self.set_tenant(self.tenant().given_back());
        }
    }

    /// Whether somebody has the function still who does not have it by the entry, as far as is durable.
    fn is_left(&self) -> bool {
        let is_entitled = self.entry().is_none_or(|entry| self.is_entitled(&entry));
        let has_something =
            self.state() != OfferState::Free || self.tenant().is_held || self.unsaved_tenancy().is_some();
        !is_entitled && has_something
    }

    /// Whether a stream ends that its borrower has not given back.
    fn has_to_go(&self, now: Instant, entry: &Entry, channel: Option<&Channel<'m>>) -> bool {
        let is_forced = matches!(entry.holder, Holder::Leaving { forced: true, .. });
        (is_forced && self.journal.rule(Rule::ForceOut))
            || self.end_of_patience(channel).is_some_and(|end| end <= now)
    }

    /// When a stream ends that is to be given back, or its borrower is overdue, if nothing is heard of that.
    fn end_of_patience(&self, channel: Option<&Channel<'m>>) -> Option<Instant> {
        let entry = self.entry()?;
        let is_waited_for = self.state() == OfferState::Open && !self.is_entitled(&entry);
        // A card that is new, because the lender itself was away, listens first.
        let end = (self.holder_heard(channel) + self.patience()).max(self.listens_since + SILENCE);
        is_waited_for.then_some(end)
    }

    /// How long who has the stream may be silent.
    fn patience(&self) -> Duration {
        self.entry().map_or(SILENCE, |entry| entry.holder.patience(self.tenant().node))
    }

    /// The stream ends here, whether the borrower hears of it or not. Once that is durable it is told again.
    fn end_stream(&mut self, channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        if let Some(channel) = channel.filter(|channel| self.is_of(channel)) {
            let id = StreamId(self.cells.stream.get());
            channel.release(id, stream);
            channel.say_of(id, What::Closed);
        }
        self.set_tenant(self.tenant().given_back());
        self.set_state(OfferState::Closing);
        self.events.push_back(OfferEvent::Closed);
    }

    /// Whether the one of the entry was silent for longer than it may be: not before this card has listened.
    fn is_overdue(&self, now: Instant, channel: Option<&Channel<'m>>) -> Option<bool> {
        let to = self.entry()?.assigned()?;
        let heard = self.assigned_heard(&to, channel);
        let is_silent = now.since(heard) >= to.patience();
        let has_listened = now.since(self.listens_since) >= SILENCE;
        (has_listened || (!is_silent && heard > self.listens_since)).then_some(is_silent)
    }

    /// When that may be another answer.
    fn next_look(&self, channel: Option<&Channel<'m>>) -> Option<Instant> {
        let to = self.entry()?.assigned()?;
        Some(match self.overdue {
            (looked_at, Some(true)) => looked_at + SILENCE,
            (looked_at, _) => {
                let end = self.assigned_heard(&to, channel) + to.patience();
                end.max(self.listens_since + SILENCE).max(looked_at)
            }
        })
    }

    /// When the one of the entry was last heard, or began to be awaited.
    fn assigned_heard(&self, to: &Assignment, channel: Option<&Channel<'m>>) -> Instant {
        let its = channel.filter(|channel| channel.peer().is_some_and(|(node, ..)| node == to.node));
        let known = match self.tenant().node == to.node {
            true => Instant::from_nanos(self.cells.heard_at.get()),
            false => self.awaited_since,
        };
        its.map_or(known, |channel| channel.last_heard().max(known))
    }

    fn in_use(&self, now: Instant, holder: &Tenancy, silent: Duration, hold: Duration) -> OpenRefusal {
        let is_here = self.state() != OfferState::Free;
        let bound_at = Instant::from_nanos(self.cells.bound_at.get());
        let since = Some(Duration::from_secs(now.since(bound_at).as_secs())).filter(|_| is_here);
        let left = Duration::from_secs(hold.saturating_sub(silent).as_secs().max(1));
        let hold = Some(left).filter(|_| !is_here || silent >= SILENCE);
        OpenRefusal::InUse { by: holder.name, node: holder.node, since, hold }
    }

    /// When who has the function was last heard: its node may be there and want it no more, so without a stream only
    /// the past counts.
    fn holder_heard(&self, holders: Option<&Channel<'m>>) -> Instant {
        let known = Instant::from_nanos(self.cells.heard_at.get());
        let here = holders.filter(|channel| self.is_of(channel));
        here.map_or(known, |channel| channel.last_heard().max(known))
    }

    /// Who has the function, be it that this lender has not met it yet.
    fn holder(&self) -> Option<Tenancy> {
        let is_here = self.state() != OfferState::Free;
        let tenant = self.tenant();
        let remembers = self.journal.rule(Rule::HoldAfterRestart);
        // Who may not have it any more cannot keep it either: so an operator takes a function back.
        let keeps = tenant.is_held && (is_here || (remembers && self.is_allowed(tenant.node)));
        keeps.then_some(tenant)
    }

    fn is_allowed(&self, node: NodeId) -> bool {
        self.config.allowed.as_deref().is_none_or(|allowed| allowed.contains(&node))
    }

    /// Who asks gets it, when what was before has ended.
    fn take(
        &mut self,
        now: Instant,
        (id, wish): (StreamId, &Wish),
        channel: &mut Channel<'m>,
        holder: Option<&mut Channel<'m>>,
        stream: &mut Stream<'m>,
    ) {
        let before = StreamId(self.cells.stream.get());
        if self.is_of(channel) {
            channel.release(before, stream);
        } else if let Some(holder) = holder.filter(|holder| self.is_of(holder)) {
            holder.release(before, stream);
            holder.say_of(before, What::Closed);
        }
        let (Some((node, name, _)), Some(life)) = (channel.peer(), channel.peer_life()) else { return };
        self.set_tenant(self.tenant().taken_by(node, life, name, self.config.life));
        self.cells.bound_at.set(self.journal, now.as_nanos());
        self.cells.heard_at.set(self.journal, now.as_nanos());
        self.cells.course.set(self.journal, channel.course().unwrap_or_default().0);
        self.cells.stream.set(self.journal, id.0);
        self.cells.domain.set(self.journal, wish.domain.0);
        self.cells.slot.set(self.journal, wish.slot.into());
        self.cells.host.set(self.journal, wish.host.0);
        self.cells.generation.set(self.journal, wish.generation.0);
        stream.set_generation(wish.generation);
        self.set_state(OfferState::Ending);
        stream.begin(channel.stream_name(id), channel.max_payload());
        self.ask_for_reset();
    }

    fn ask_for_reset(&mut self) {
        let (domain, slot) = self.place();
        self.events.push_back(OfferEvent::Reset { node: self.tenant().node, domain, slot });
    }

    fn say_opened(&self, channel: &mut Channel<'m>) {
        let (tenancy, requester) = (self.tenant().number, Bdf(self.cells.requester.get()));
        let base = self.cells.base.get();
        channel.say_of(StreamId(self.cells.stream.get()), What::Opened { tenancy, requester, base });
    }

    /// Says what the borrower is to know, and finds out whether it still knows the stream: one that does not says so.
    fn inform(&mut self, now: Instant, channel: &mut Channel<'m>) {
        if let Some(information) = self.information.filter(|_| self.informs.is_due(now)) {
            channel.say_of(StreamId(self.cells.stream.get()), What::Inform(information));
        }
    }

    /// Whether its stream is one of the course that the channel is in.
    fn is_of(&self, channel: &Channel<'m>) -> bool {
        self.stream().is_some_and(|(course, _)| channel.course() == Some(course))
    }

    /// Nothing flows any more. Whose the function is keeps it for the hold time.
    fn lose_stream(&mut self, now: Instant) {
        self.cells.heard_at.set(self.journal, now.as_nanos());
        self.forget_stream();
        self.events.push_back(OfferEvent::Ended);
    }

    fn forget_stream(&mut self) {
        self.cells.course.set(self.journal, 0);
        self.set_state(OfferState::Free);
        self.informs.end();
    }

    fn set_tenant(&self, tenancy: Tenancy) {
        self.cells.tenant.set(self.journal, tenancy.into());
    }

    fn set_state(&self, state: OfferState) {
        self.cells.state.set(self.journal, state.into());
    }
}
