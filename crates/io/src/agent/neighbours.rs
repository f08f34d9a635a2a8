//! Peers on the same machine: whom this node shares memory with, loan by loan.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use base::ids::NodeId;
use node::Role;
use tracing::debug;

use super::{LoanEnd, LoanSpec, NodeSpec, fill_random, token, view};
use crate::event::{Event, seconds};
use crate::memory::Mapping;
use crate::shm::Shared;
use crate::shm::meeting::{self, Agreed, Answer, Call, Meeting, NONCE_LEN, Proof};
use crate::sparing::Sparing;
use crate::wait::{Interest, Waiter};

/// How long a step of the other side may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Callers of whom it is not known yet what they want.
const STRANGERS: usize = 8;
/// Until the next attempt at a neighbour that was not ready; doubles each time.
const RETRY: Duration = Duration::from_millis(20);
/// Attempts at one life of a peer, as long as no memory was shared for [`STABLE`].
const ATTEMPTS: u32 = 9;
/// Memory that was shared for so long ended for a new reason.
const STABLE: Duration = Duration::from_secs(1);
/// How long callers wait who could not be accepted for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the agent has beside its neighbours.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) loans: &'a [LoanSpec],
    pub(super) waiter: &'a Waiter,
    pub(super) mapping: &'a Mapping,
}

impl Surroundings<'_> {
    /// What only the two ends of the channel of `loan` know, as its card has put it into the ledger.
    fn secret(&self, loan: usize) -> io::Result<[u8; 32]> {
        let role = match self.loans[loan].end {
            LoanEnd::Lend { .. } => Role::Lender,
            LoanEnd::Borrow { .. } | LoanEnd::Vacant { .. } => Role::Borrower,
        };
        view::secret(self.mapping, (loan, self.loans[loan].life), role)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The peers of all loans, as far as shared memory is concerned.
pub(super) struct Neighbours {
    node: NodeId,
    incarnation: u64,
    listener: Option<OwnedFd>,
    /// Until then nobody is accepted.
    listen_at: Option<Instant>,
    strangers: [Option<Stranger>; STRANGERS],
    /// By loan; none where shared memory is forbidden.
    places: Vec<Place>,
    /// Loans of which the card does not know yet how they stand.
    changed: Vec<usize>,
}

/// Whoever has called this node.
struct Stranger {
    socket: OwnedFd,
    deadline: Instant,
    /// What was answered: the loan, its call, our number.
    answered: Option<(usize, Call, [u8; NONCE_LEN])>,
}

/// One loan.
struct Place {
    /// Node and incarnation of the peer.
    life: Option<(NodeId, u64)>,
    state: State,
    attempts: u32,
    retry_at: Option<Instant>,
    /// What the log has of those who call and prove nothing.
    impostors: Sparing,
}

/// Where a loan stands.
///
/// ```text
/// Alone --calls (borrower)--> Calling --agreed--> Sharing
///   ^                            |                 | ^
///   +------ refused, late -------+                 | |
///   +------ the peer is gone, or makes no sense ---+ +-- proven (lender), from any state
/// ```
enum State {
    Alone,
    Calling(Calling),
    Sharing { _connection: OwnedFd, shared: Shared, since: Instant },
}

struct Calling {
    socket: OwnedFd,
    call: Call,
    deadline: Instant,
    /// What was offered with the proof.
    offered: Option<Shared>,
}

impl Place {
    fn new() -> Self {
        Self { life: None, state: State::Alone, attempts: 0, retry_at: None, impostors: Sparing::default() }
    }
}

impl Neighbours {
    /// Listens if this node lends anything. A node that cannot goes on without shared memory.
    pub(super) fn new(spec: &NodeSpec, waiter: &Waiter) -> Self {
        let mut neighbours = Self {
            node: spec.identity.id(),
            incarnation: spec.incarnation,
            listener: None,
            listen_at: None,
            strangers: Default::default(),
            places: Vec::new(),
            changed: Vec::new(),
        };
        neighbours.follow(spec, waiter);
        neighbours
    }

    /// Loans have come to the node.
    pub(super) fn follow(&mut self, spec: &NodeSpec, waiter: &Waiter) {
        if !spec.shared_memory {
            return;
        }
        self.places.resize_with(spec.loans.len(), Place::new);
        let lends = spec.loans.iter().any(|loan| matches!(loan.end, LoanEnd::Lend { .. }));
        if lends && self.listener.is_none() {
            match listen(spec.identity.id(), waiter) {
                Ok(socket) => self.listener = Some(socket),
                Err(error) => {
                    let name = meeting::name_of(spec.identity.id());
                    Event::MemoryUnshared { error: error.to_string(), name }.say();
                }
            }
        }
    }

    /// What the card of `loan` shares with its peer, if anything.
    pub(super) fn shared(&self, loan: usize) -> Option<&Shared> {
        match &self.places.get(loan)?.state {
            State::Sharing { shared, .. } => Some(shared),
            _ => None,
        }
    }

    /// Loans that share memory.
    pub(super) fn sharing(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.places.len()).filter(|&loan| self.shared(loan).is_some())
    }

    /// A loan of which the card has to be told how it stands.
    pub(super) fn take_changed(&mut self) -> Option<usize> {
        self.changed.pop()
    }

    /// When [`Neighbours::handle_timeout`] is to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let strangers = self.strangers.iter().flatten().map(|stranger| stranger.deadline);
        let places = self.places.iter().filter_map(|place| match &place.state {
            State::Calling(calling) => Some(calling.deadline),
            State::Alone => place.retry_at,
            State::Sharing { .. } => None,
        });
        strangers.chain(places).chain(self.listen_at).min()
    }

    /// Time has come.
    pub(super) fn handle_timeout(&mut self, now: Instant, around: Surroundings<'_>) {
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen_at = None;
            if let Some(listener) = &self.listener {
                // What is in the set already is just as good.
                let _ = around.waiter.register(listener.as_fd(), token::NEIGHBOURS, Interest::READ);
            }
        }
        for stranger in &mut self.strangers {
            stranger.take_if(|stranger| stranger.deadline <= now);
        }
        for loan in 0..self.places.len() {
            let place = &self.places[loan];
            if matches!(&place.state, State::Calling(calling) if calling.deadline <= now) {
                self.fail(loan, now, &io::ErrorKind::TimedOut.into());
            } else if place.retry_at.is_some_and(|at| at <= now) {
                self.call(loan, now, around);
            }
        }
    }

    /// The streams of `loan` to this life of this node are open. A borrower calls it, once a life if it is not here.
    pub(super) fn met(&mut self, loan: usize, life: (NodeId, u64), around: Surroundings<'_>) {
        let Some(place) = self.places.get_mut(loan).filter(|place| place.life != Some(life)) else { return };
        place.life = Some(life);
        place.attempts = 0;
        self.part(loan);
        if matches!(around.loans[loan].end, LoanEnd::Borrow { .. }) {
            self.call(loan, Instant::now(), around);
        }
    }

    /// `loan` shares nothing any more: it was given back, or its peer is another one.
    fn part(&mut self, loan: usize) {
        let Some(place) = self.places.get_mut(loan) else { return };
        place.retry_at = None;
        if let State::Sharing { .. } = std::mem::replace(&mut place.state, State::Alone) {
            self.changed.push(loan);
        }
    }

    /// The loan was given back: whoever takes it is met anew.
    pub(super) fn forget(&mut self, loan: usize) {
        self.part(loan);
        if let Some(place) = self.places.get_mut(loan) {
            place.life = None;
        }
    }

    /// What `what`, a token of ours, stands for is readable.
    pub(super) fn handle_ready(&mut self, what: u64, around: Surroundings<'_>) {
        let index = (what & u64::from(u32::MAX)) as usize;
        match what - index as u64 {
            token::STRANGERS => self.hear_stranger(index, around),
            token::PLACES => self.hear(index, around),
            _ => self.accept(around.waiter),
        }
    }

    fn accept(&mut self, waiter: &Waiter) {
        let Some(listener) = &self.listener else { return };
        match meeting::accept(listener) {
            Ok(Some(socket)) => {
                let deadline = Instant::now() + PATIENCE;
                let free = self.strangers.iter().position(Option::is_none);
                // One too many is told so by the end of its connection.
                let Some(index) = free else { return };
                let what = token::STRANGERS + index as u64;
                if waiter.register(socket.as_fd(), what, Interest::READ).is_ok() {
                    self.strangers[index] = Some(Stranger { socket, deadline, answered: None });
                }
            }
            Ok(None) => {}
            Err(error) => {
                Event::NeighboursWaiting { error: error.to_string(), again_in_s: seconds(ACCEPT_PAUSE) }
                    .say();
                let _ = waiter.deregister(listener.as_fd());
                self.listen_at = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
    }

    /// A caller of a lender has said something. Whatever is wrong with it ends its connection.
    fn hear_stranger(&mut self, index: usize, around: Surroundings<'_>) {
        let Some(stranger) = self.strangers.get_mut(index).and_then(Option::take) else { return };
        let heard = match stranger.answered {
            None => self.answer(stranger, around).map(|answered| self.strangers[index] = answered),
            Some((loan, call, nonce)) => self.conclude(stranger, loan, call, nonce, around),
        };
        if let Err(error) = heard {
            debug!(%error, "a caller was turned away");
        }
    }

    /// Answers the first message of a caller, if it is from the one who has the loan.
    fn answer(&self, mut stranger: Stranger, around: Surroundings<'_>) -> io::Result<Option<Stranger>> {
        let Some(received) = meeting::receive::<Call>(&stranger.socket)? else { return Ok(Some(stranger)) };
        let call = received.message;
        let is_meant = |spec: &LoanSpec| {
            matches!(spec.end, LoanEnd::Lend { .. }) && (spec.stream, spec.generation) == call.loan()
        };
        let loan = around
            .loans
            .iter()
            .position(is_meant)
            .filter(|_| call.is_ours())
            .ok_or(io::ErrorKind::NotFound)?;
        // The borrower may be faster than the card of this node, which then has not told yet whom it has met.
        if self.places[loan].life != Some(call.life()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce)?;
        let meeting = self.meeting_with_borrower(&stranger.socket, call, around.secret(loan)?)?;
        meeting::send(&stranger.socket, &meeting.answer(nonce), None)?;
        stranger.answered = Some((loan, call, nonce));
        Ok(Some(stranger))
    }

    /// The caller has proven itself, and has brought memory along.
    fn conclude(
        &mut self,
        stranger: Stranger,
        loan: usize,
        call: Call,
        nonce: [u8; NONCE_LEN],
        around: Surroundings<'_>,
    ) -> io::Result<()> {
        let spec = &around.loans[loan];
        let socket = stranger.socket;
        let received = meeting::receive::<Proof>(&socket)?.ok_or(io::ErrorKind::WouldBlock)?;
        if !self.meeting_with_borrower(&socket, call, around.secret(loan)?)?.accepts(nonce, &received.message)
        {
            self.places[loan].impostors.say(|others| {
                Event::NeighbourUnproven { function: spec.function.clone(), others }.say();
            });
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.places[loan].life != Some(call.life()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (memory, bell) = received.descriptors.ok_or(io::ErrorKind::InvalidData)?;
        let shared = Shared::check(memory, bell)?;
        around.waiter.modify(socket.as_fd(), token::PLACES + loan as u64, Interest::READ)?;
        meeting::send(&socket, &Agreed::new(), None)?;
        self.share(loan, socket, shared, spec);
        Ok(())
    }

    fn meeting_with_borrower(&self, socket: &OwnedFd, call: Call, secret: [u8; 32]) -> io::Result<Meeting> {
        let pids = (peer_pid(socket.as_fd())?, std::process::id());
        Ok(Meeting { secret, call, lender: self.node, pids })
    }

    /// A borrower calls its lender.
    fn call(&mut self, loan: usize, now: Instant, around: Surroundings<'_>) {
        let spec = &around.loans[loan];
        let incarnation = around.loans[loan].incarnation(self.incarnation);
        let (life, place) = ((self.node, incarnation), &mut self.places[loan]);
        place.retry_at = None;
        place.attempts += 1;
        let Some((lender, _)) = place.life else { return };
        let called = meeting::connect(lender).and_then(|socket| {
            let mut nonce = [0; NONCE_LEN];
            fill_random(&mut nonce)?;
            let call = Call::new((spec.stream, spec.generation), life, nonce);
            meeting::send(&socket, &call, None)?;
            around.waiter.register(socket.as_fd(), token::PLACES + loan as u64, Interest::READ)?;
            Ok(Calling { socket, call, deadline: now + PATIENCE, offered: None })
        });
        match called {
            Ok(calling) => place.state = State::Calling(calling),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                debug!(function = spec.function, "the lender is not on this machine, or shares no memory");
            }
            Err(error) => self.fail(loan, now, &error),
        }
    }

    /// The peer of a loan has said something, or is gone.
    fn hear(&mut self, loan: usize, around: Surroundings<'_>) {
        let Some(place) = self.places.get_mut(loan) else { return };
        let (now, spec) = (Instant::now(), &around.loans[loan]);
        match std::mem::replace(&mut place.state, State::Alone) {
            State::Alone => {}
            State::Calling(calling) => match self.go_on(loan, calling, around) {
                Ok(state) => {
                    self.places[loan].state = state;
                    if self.shared(loan).is_some() {
                        self.announce(loan, spec);
                    }
                }
                Err(error) => self.fail(loan, now, &error),
            },
            sharing @ State::Sharing { .. } => {
                self.places[loan].state = sharing;
                self.lose(loan, spec);
            }
        }
    }

    /// What `loan` shares is of no use any more: the neighbour is gone, or makes no sense. A borrower asks whether it
    /// is really gone.
    pub(super) fn lose(&mut self, loan: usize, spec: &LoanSpec) {
        let Some(place) = self.places.get_mut(loan) else { return };
        let State::Sharing { since, .. } = &place.state else { return };
        let is_stable = since.elapsed() > STABLE;
        place.state = State::Alone;
        Event::MemoryParted { function: spec.function.clone() }.say();
        self.changed.push(loan);
        if is_stable {
            place.attempts = 0;
        }
        if matches!(spec.end, LoanEnd::Borrow { .. }) {
            self.fail(loan, Instant::now(), &io::ErrorKind::ConnectionReset.into());
        }
    }

    /// What follows from the lender's next message.
    fn go_on(&self, loan: usize, mut calling: Calling, around: Surroundings<'_>) -> io::Result<State> {
        let Some(ours) = calling.offered else {
            let Some(received) = meeting::receive::<Answer>(&calling.socket)? else {
                return Ok(State::Calling(calling));
            };
            let (lender, _) = self.places[loan].life.ok_or(io::ErrorKind::NotFound)?;
            let pids = (std::process::id(), peer_pid(calling.socket.as_fd())?);
            let meeting = Meeting { secret: around.secret(loan)?, call: calling.call, lender, pids };
            if !meeting.believes(&received.message) {
                Event::NeighbourImpostor { function: around.loans[loan].function.clone() }.say();
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let (ours, theirs) = Shared::create()?;
            meeting::send(&calling.socket, &meeting.proof(&received.message), Some(&theirs))?;
            calling.offered = Some(ours);
            return Ok(State::Calling(calling));
        };
        match meeting::receive::<Agreed>(&calling.socket)? {
            Some(received) if received.message == Agreed::new() => {
                Ok(State::Sharing { _connection: calling.socket, shared: ours, since: Instant::now() })
            }
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
            None => Ok(State::Calling(Calling { offered: Some(ours), ..calling })),
        }
    }

    /// An attempt has come to nothing: there is another one, but not for ever.
    fn fail(&mut self, loan: usize, now: Instant, error: &io::Error) {
        let place = &mut self.places[loan];
        place.state = State::Alone;
        let wait = RETRY * (1 << (place.attempts.max(1) - 1).min(10));
        place.retry_at = (place.attempts < ATTEMPTS).then(|| now + wait);
        debug!(%error, attempts = place.attempts, "no memory is shared yet");
    }

    fn share(&mut self, loan: usize, socket: OwnedFd, shared: Shared, spec: &LoanSpec) {
        self.places[loan].state = State::Sharing { _connection: socket, shared, since: Instant::now() };
        self.announce(loan, spec);
    }

    fn announce(&mut self, loan: usize, spec: &LoanSpec) {
        Event::MemoryShared { function: spec.function.clone() }.say();
        self.changed.push(loan);
    }
}

fn listen(node: NodeId, waiter: &Waiter) -> io::Result<OwnedFd> {
    let listener = meeting::listen(node)?;
    waiter.register(listener.as_fd(), token::NEIGHBOURS, Interest::READ)?;
    Ok(listener)
}

/// The process at the other end as proofs name it: 0 for one that this process cannot see.
fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(crate::process::peer_pid(socket)?.map_or(0, i32::cast_unsigned))
}
