//! The borrower's end of a stream.

use std::collections::VecDeque;

use base::ids::{LoanGeneration, StreamId};
use base::ledger::{Cell, Code, Journal, Layout};
use base::{Instant, coded};
use pcie::Bdf;
use zerocopy::FromBytes;

use super::Repeat;
use crate::pair::channel::{Channel, Course, Said};
use crate::pair::control::{OpenRefusal, What, Wish};
use crate::record::Information;
use crate::stream::Stream;

/// Where a claim stands.
///
/// ```text
/// Idle --open--> Asking --opened--> Open --close--> Closing --closed--> Closed --open--> Asking
///   |             |  ^                |                |
///   |             |  +--closed, anew--+                +--anew--> Asking, to close then
///   +----close----+--close: as Closing, if something was asked------------------------> Closed
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimState {
    /// Nothing is wanted yet.
    Idle = 0,
    /// The lender is asked, as soon as there is a channel.
    Asking = 1,
    /// The stream flows.
    Open = 2,
    /// The function is being given back.
    Closing = 3,
    /// It was given back.
    Closed = 4,
}

coded!(ClaimState: Idle, Asking, Open, Closing, Closed);

/// The storage of a [`Claim`]. All zeroes: nothing is wanted.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct ClaimCells {
    /// The course of the channel that the stream belongs to; 0: it has none.
    course: Cell<u64>,
    /// As the lender has told when it opened last.
    tenancy: Cell<u64>,
    /// The same: how far into the aperture of its domain the function lies.
    base: Cell<u64>,
    stream: Cell<u32>,
    requester: Cell<u32>,
    /// 1: it is asked for only to be given back.
    leaving: Cell<u32>,
    state: Cell<Code<ClaimState>>,
    reserved: [Cell<u8>; 3],
}

impl ClaimCells {
    /// What requests of the borrower bear at its lender: readable by the agent at any time.
    pub fn requester(&self) -> Bdf {
        Bdf(self.requester.get() as u16)
    }

    /// How far into the aperture of its lender's domain the function lies, as the lender has told: readable by the
    /// agent at any time.
    pub fn base(&self) -> u64 {
        self.base.get()
    }
}

/// What a claim is told when it is made.
#[derive(Clone)]
pub struct ClaimConfig {
    /// What is wanted, and where.
    pub wish: Wish,
    /// The secret of the function's line; `None`: it is wanted by an entry of its lender's table, of the wish's
    /// generation.
    pub secret: Option<[u8; 32]>,
}

/// What the owner of a claim has to act on, in the same step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimEvent {
    /// Another stream begins: what was in the one before has ended.
    Reset,
    /// The stream is open.
    Opened {
        /// Number of the [`Tenancy`](crate::Tenancy) that it belongs to.
        tenancy: u64,
        /// What requests to the function bear.
        requester: Bdf,
        /// How far into the aperture of its domain it lies. Nobody has looked whether that can be.
        base: u64,
    },
    /// The lender does not open it. It is asked again.
    Refused(OpenRefusal),
    /// The lender describes its function.
    Information(Information),
    /// It was given back, or there was nothing to give back.
    Closed,
}

/// The borrower's end of a stream.
pub struct Claim<'m> {
    cells: &'m ClaimCells,
    journal: Journal<'m>,
    config: ClaimConfig,
    repeat: Repeat,
    events: VecDeque<ClaimEvent>,
}

impl<'m> Claim<'m> {
    /// The claim over `cells`, new or found: a successor goes on with what its predecessor has agreed.
    pub fn new(cells: &'m ClaimCells, journal: Journal<'m>, config: ClaimConfig, now: Instant) -> Self {
        let mut claim = Self { cells, journal, config, repeat: Repeat::default(), events: VecDeque::new() };
        if matches!(claim.state(), ClaimState::Asking | ClaimState::Closing) {
            claim.repeat.begin(now);
        }
        claim
    }

    /// Where it stands.
    pub fn state(&self) -> ClaimState {
        self.cells.state.value()
    }

    /// The stream that it asks for or has, in which course of its channel.
    pub fn stream(&self) -> Option<(Course, StreamId)> {
        let course = Course(self.cells.course.get());
        (course != Course::default()).then(|| (course, StreamId(self.cells.stream.get())))
    }

    /// By which entry of its lender's table it asks; 0: by a line.
    pub fn generation(&self) -> LoanGeneration {
        self.config.wish.generation
    }

    /// Number of the tenancy under which it was opened last; 0: never.
    pub fn tenancy(&self) -> u64 {
        self.cells.tenancy.get()
    }

    /// What requests to the function bear.
    pub fn requester(&self) -> Bdf {
        self.cells.requester()
    }

    /// How far into the aperture of its domain the function lies, as its lender has told.
    pub fn base(&self) -> u64 {
        self.cells.base()
    }

    /// The stream is wanted, from now on.
    pub fn open(&mut self, now: Instant) {
        self.cells.leaving.set(self.journal, 0);
        if matches!(self.state(), ClaimState::Idle | ClaimState::Closed) {
            self.set_state(ClaimState::Asking);
            self.repeat.begin(now);
        }
    }

    /// The function is given back: what flows in the stream is over. [`ClaimEvent::Closed`] follows.
    pub fn close(&mut self, now: Instant, channel: &mut Channel<'m>, stream: &mut Stream<'m>) {
        match self.state() {
            ClaimState::Idle | ClaimState::Closed => self.end(),
            ClaimState::Asking if self.stream().is_none() && self.cells.leaving.get() == 0 => self.end(),
            ClaimState::Asking | ClaimState::Open => {
                if self.is_of(channel) {
                    // What it has asked for may be open at the lender's end.
                    channel.release(StreamId(self.cells.stream.get()), stream);
                }
                self.set_state(ClaimState::Closing);
                self.repeat.begin(now);
            }
            ClaimState::Closing => {}
        }
    }

    /// Nobody waits for the lender any more, who keeps the function for this node: what flows in the stream is over,
    /// and [`ClaimEvent::Closed`] follows without his answer. He gets to know that it is given back if he is heard
    /// before the channel ends; what he says of the stream later finds none.
    pub fn forget(&mut self, channel: Option<&mut Channel<'m>>, stream: &mut Stream<'m>) {
        match channel.filter(|channel| self.is_of(channel)) {
            Some(channel) => {
                let id = StreamId(self.cells.stream.get());
                channel.release(id, stream);
                channel.say_of(id, What::Close);
            }
            None => stream.clear(),
        }
        self.end();
    }

    /// Part of every step: asks again what was not answered, and begins anew where the channel has.
    pub fn advance(&mut self, now: Instant, channel: &mut Channel<'m>, stream: &mut Stream<'m>) {
        if !matches!(self.state(), ClaimState::Asking | ClaimState::Open | ClaimState::Closing)
            || !channel.is_met()
        {
            return;
        }
        if !self.is_of(channel) {
            if self.state() == ClaimState::Closing {
                // Its lender knows nothing of the stream, but perhaps of whom the function belongs to.
                self.cells.leaving.set(self.journal, 1);
            }
            self.begin_stream(now, channel, stream);
        }
        if self.repeat.is_due(now) {
            let id = StreamId(self.cells.stream.get());
            match self.state() {
                ClaimState::Asking => channel.say_open(id, self.config.wish, self.config.secret),
                ClaimState::Closing => channel.say_of(id, What::Close),
                ClaimState::Idle | ClaimState::Open | ClaimState::Closed => self.repeat.end(),
            }
        }
    }

    /// When [`Claim::advance`] has something to do.
    pub fn poll_timeout(&self, channel: &Channel<'m>) -> Option<Instant> {
        self.repeat.next.filter(|_| channel.is_met())
    }

    /// The next event, or none.
    pub fn poll_event(&mut self) -> Option<ClaimEvent> {
        self.events.pop_front()
    }

    /// The lender has said something of the stream.
    pub fn handle_said(
        &mut self,
        now: Instant,
        said: &Said,
        channel: &mut Channel<'m>,
        stream: &mut Stream<'m>,
    ) {
        if self.stream() != channel.course().map(|course| (course, said.stream())) {
            return channel.handle_stray(now, said);
        }
        match (self.state(), *said.what()) {
            (ClaimState::Asking, What::Opened { tenancy, requester, base }) => {
                self.note_opened(now, (tenancy, requester, base), channel, stream);
            }
            (ClaimState::Asking, What::Refused(refusal)) => {
                self.note_refused(now, refusal, channel, stream);
            }
            (ClaimState::Asking, What::Closed) => self.begin_stream_later(channel, stream),
            (ClaimState::Open, What::Closed) => {
                self.set_state(ClaimState::Asking);
                self.begin_stream(now, channel, stream);
            }
            (ClaimState::Closing, What::Closed) => self.end(),
            (ClaimState::Open, What::Inform(information)) => {
                self.events.push_back(ClaimEvent::Information(information));
                channel.say_of(said.stream(), What::Informed);
            }
            // Said again, or of what was before it.
            (_, What::Opened { .. } | What::Refused(_) | What::Closed | What::Inform(_)) => {}
            (_, What::Open { .. } | What::Close | What::Informed) => {
                channel.stats().unknown_streams.add(1);
            }
        }
    }

    fn note_opened(
        &mut self,
        now: Instant,
        (tenancy, requester, base): (u64, Bdf, u64),
        channel: &mut Channel<'m>,
        stream: &mut Stream<'m>,
    ) {
        self.repeat.end();
        if self.cells.leaving.get() != 0 {
            self.set_state(ClaimState::Open);
            return self.close(now, channel, stream);
        }
        self.set_state(ClaimState::Open);
        self.cells.tenancy.set(self.journal, tenancy);
        self.cells.requester.set(self.journal, requester.0.into());
        self.cells.base.set(self.journal, base);
        stream.open();
        self.events.push_back(ClaimEvent::Opened { tenancy, requester, base });
    }

    fn note_refused(
        &mut self,
        _now: Instant,
        refusal: OpenRefusal,
        channel: &mut Channel<'m>,
        stream: &mut Stream<'m>,
    ) {
        if let OpenRefusal::Other { .. } = refusal {
            channel.stats().unknown_verdicts.add(1);
        }
        if self.cells.leaving.get() != 0 {
            // It is not ours any more.
            channel.release(StreamId(self.cells.stream.get()), stream);
            return self.end();
        }
        if refusal == OpenRefusal::Number {
            self.begin_stream_later(channel, stream);
        }
        self.events.push_back(ClaimEvent::Refused(refusal));
    }

    /// A stream of another number is asked for, at once.
    fn begin_stream(&mut self, now: Instant, channel: &mut Channel<'m>, stream: &mut Stream<'m>) {
        self.begin_stream_later(channel, stream);
        self.repeat.begin(now);
    }

    /// The same, when it is time to ask again.
    fn begin_stream_later(&mut self, channel: &mut Channel<'m>, stream: &mut Stream<'m>) {
        if self.is_of(channel) {
            channel.release(StreamId(self.cells.stream.get()), stream);
        }
        let (Some(course), Some(id)) = (channel.course(), channel.next_stream()) else { return };
        self.set_state(ClaimState::Asking);
        self.cells.course.set(self.journal, course.0);
        self.cells.stream.set(self.journal, id.0);
        stream.begin(channel.stream_name(id), channel.max_payload());
        self.events.push_back(ClaimEvent::Reset);
    }

    /// Whether its stream is one of the course that the channel is in.
    fn is_of(&self, channel: &Channel<'m>) -> bool {
        self.stream().is_some_and(|(course, _)| channel.course() == Some(course))
    }

    fn end(&mut self) {
        self.repeat.end();
        self.cells.course.set(self.journal, 0);
        self.cells.leaving.set(self.journal, 0);
        self.set_state(ClaimState::Closed);
        self.events.push_back(ClaimEvent::Closed);
    }

    fn set_state(&self, state: ClaimState) {
        self.cells.state.set(self.journal, state.into());
    }
}
