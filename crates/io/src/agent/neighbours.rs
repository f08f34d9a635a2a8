//! Nodes on the same machine: whom this one shares memory with, once for each that it has a channel with.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use base::ids::NodeId;
use tracing::debug;

use super::{NodeSpec, attach, fill_random, token, view};
use crate::event::{Event, seconds};
use crate::memory::Mapping;
use crate::messages::{ToCard, ToPeer};
use crate::rate_limited::RateLimited;
use crate::shm::Shared;
use crate::shm::meeting::{self, Agreed, Answer, Call, Meeting, NONCE_LEN, Proof};
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
pub(super) struct Context<'a> {
    pub(super) spec: &'a NodeSpec,
    pub(super) waiter: &'a Waiter,
    pub(super) mapping: &'a Mapping,
}

impl Context<'_> {
    /// Whether this node is the one that calls the node in place `peer`; `None` if that is not there any more. One of
    /// two has to: it is the one with the smaller id. Of a node with itself it is the end that borrows.
    fn calls(&self, peer: usize, node: NodeId) -> Option<bool> {
        let (present, calls_itself) =
            view::peer(self.mapping, peer).filter(|(present, _)| *present == node)?;
        let own = self.spec.identity.id();
        Some(own < present || own == present && calls_itself)
    }

    /// What only the two ends of the channel with `node` in place `peer` know, as the card has put it into the ledger.
    fn secret(&self, peer: usize, node: NodeId) -> io::Result<[u8; 32]> {
        view::secret(self.mapping, peer, node).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// By which incarnation `node` knows this one.
    fn incarnation_to(&self, node: NodeId) -> u64 {
        self.spec.incarnation.max(attach::least_incarnation(&self.spec.loans, node))
    }
}

/// All peers, as far as shared memory is concerned.
pub(super) struct Neighbours {
    node: NodeId,
    listener: Option<OwnedFd>,
    /// Until then nobody is accepted.
    listen_at: Option<Instant>,
    /// Callers cannot be accepted.
    crowded: RateLimited,
    strangers: [Option<Stranger>; STRANGERS],
    /// Those that this node has a channel with, by their place; nobody where shared memory is forbidden.
    peers: BTreeMap<usize, Peer>,
    is_allowed: bool,
    /// Places of peers of which the card does not know yet how they stand.
    changed: Vec<usize>,
}

/// Whoever has called this node.
struct Stranger {
    socket: OwnedFd,
    deadline: Instant,
    /// What was answered: the place of the peer that it says it is, its call, our number.
    answered: Option<(usize, Call, [u8; NONCE_LEN])>,
}

/// A node that this one has a channel with.
struct Peer {
    node: NodeId,
    incarnation: u64,
    /// Whether it is this node that calls.
    calls: bool,
    state: State,
    attempts: u32,
    retry_at: Option<Instant>,
    /// What the log has of those who call and prove nothing.
    impostors: RateLimited,
}

/// How it stands with a peer.
///
/// ```text
/// Alone --calls (who has to)--> Calling --agreed--> Sharing
///   ^                             |                 | ^
///   +------- refused, late -------+                 | |
///   +------- the peer is gone, or makes no sense ---+ +-- proven (who is called), from any state
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

impl Peer {
    fn shared(&self) -> Option<&Shared> {
        match &self.state {
            State::Sharing { shared, .. } => Some(shared),
            _ => None,
        }
    }

    fn life(&self) -> (NodeId, u64) {
        (self.node, self.incarnation)
    }
}

impl Neighbours {
    /// Listens, unless shared memory is forbidden. A node that cannot goes on without it.
    pub(super) fn new(spec: &NodeSpec, waiter: &Waiter) -> Self {
        let node = spec.identity.id();
        let listener = match spec.shared_memory.then(|| listen(node, waiter)) {
            Some(Err(error)) => {
                Event::MemoryUnshared { error: error.to_string(), name: meeting::name_of(node) }.say();
                None
            }
            listener => listener.and_then(Result::ok),
        };
        Self {
            node,
            listener,
            listen_at: None,
            crowded: RateLimited::of_trouble(),
            strangers: Default::default(),
            peers: BTreeMap::new(),
            is_allowed: spec.shared_memory,
            changed: Vec::new(),
        }
    }

    /// What is shared with the node in place `peer`, if it is this one and anything is.
    pub(super) fn shared(&self, peer: usize, node: NodeId) -> Option<&Shared> {
        self.peers.get(&peer).filter(|there| there.node == node)?.shared()
    }

    /// The places of peers that share memory.
    pub(super) fn sharing(&self) -> impl Iterator<Item = usize> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.shared().is_some()).map(|(place, _)| *place)
    }

    /// What a card is told of all memory that is shared.
    pub(super) fn agreements(&self) -> impl Iterator<Item = ToCard> + '_ {
        self.sharing().map(|peer| self.agreement(peer))
    }

    /// What the card is to be told of a peer with which it has changed.
    pub(super) fn take_changed(&mut self) -> Option<ToCard> {
        self.changed.pop().map(|peer| self.agreement(peer))
    }

    fn agreement(&self, peer: usize) -> ToCard {
        let what = match self.peers.get(&peer).filter(|there| there.shared().is_some()) {
            Some(there) => ToPeer::Shared { node: there.node, calls: there.calls },
            None => ToPeer::Parted,
        };
        ToCard::Peer(peer, what)
    }

    /// When [`Neighbours::handle_timeout`] is to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let strangers = self.strangers.iter().flatten().map(|stranger| stranger.deadline);
        let peers = self.peers.values().filter_map(|peer| match &peer.state {
            State::Calling(calling) => Some(calling.deadline),
            State::Alone => peer.retry_at,
            State::Sharing { .. } => None,
        });
        strangers.chain(peers).chain(self.listen_at).min()
    }

    /// Time has come.
    pub(super) fn handle_timeout(&mut self, now: Instant, context: Context<'_>) {
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen_at = None;
            if let Some(listener) = &self.listener {
                // What is in the set already is just as good.
                let _ = context.waiter.register(listener.as_fd(), token::NEIGHBOURS, Interest::READ);
            }
        }
        for stranger in &mut self.strangers {
            stranger.take_if(|stranger| stranger.deadline <= now);
        }
        let is_late = |peer: &Peer| matches!(&peer.state, State::Calling(calling) if calling.deadline <= now);
        let is_due = |peer: &Peer| is_late(peer) || peer.retry_at.is_some_and(|at| at <= now);
        let due: Vec<usize> = self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(at, _)| *at).collect();
        for peer in due {
            if self.peers.get(&peer).is_some_and(is_late) {
                self.fail(peer, now, &io::ErrorKind::TimedOut.into());
            } else {
                self.call(peer, now, context);
            }
        }
    }

    /// There is a channel with this life of a node, which has the place `peer` from now on. Whose part it is calls it,
    /// once a life if it is not here.
    pub(super) fn join(&mut self, peer: usize, (node, incarnation): (NodeId, u64), context: Context<'_>) {
        if !self.is_allowed || self.peers.get(&peer).is_some_and(|there| there.life() == (node, incarnation))
        {
            return;
        }
        // Whoever has made room for it is gone, and perhaps it had another place before.
        self.compare(context);
        // Of one that is not there any more the card says so, too.
        let Some(calls) = context.calls(peer, node) else { return self.leave(peer) };
        self.part(peer);
        match self.peers.get_mut(&peer).filter(|there| there.node == node) {
            Some(there) => (there.incarnation, there.calls, there.attempts) = (incarnation, calls, 0),
            None => {
                let (state, impostors) = (State::Alone, RateLimited::default());
                let there = Peer { node, incarnation, calls, state, attempts: 0, retry_at: None, impostors };
                self.peers.insert(peer, there);
            }
        }
        if calls {
            self.call(peer, Instant::now(), context);
        }
    }

    /// Nothing is shared with the peer any more: it is another one, or another life of it.
    fn part(&mut self, peer: usize) {
        let Some(there) = self.peers.get_mut(&peer) else { return };
        there.retry_at = None;
        if let State::Sharing { .. } = std::mem::replace(&mut there.state, State::Alone) {
            self.changed.push(peer);
        }
    }

    /// There is no channel any more with whoever had the place `peer`.
    pub(super) fn leave(&mut self, peer: usize) {
        self.part(peer);
        self.peers.remove(&peer);
    }

    /// The ledger says who has which place: what was heard may be of earlier ones.
    pub(super) fn compare(&mut self, context: Context<'_>) {
        let is_gone = |(peer, there): (&usize, &Peer)| {
            (context.calls(*peer, there.node) != Some(there.calls)).then_some(*peer)
        };
        let gone: Vec<usize> = self.peers.iter().filter_map(is_gone).collect();
        gone.into_iter().for_each(|peer| self.leave(peer));
    }

    /// What `what`, a token of ours, stands for is readable.
    pub(super) fn handle_ready(&mut self, what: u64, context: Context<'_>) {
        let index = (what & u64::from(u32::MAX)) as usize;
        match what - index as u64 {
            token::STRANGERS => self.hear_stranger(index, context),
            token::PLACES => self.hear(index, context),
            _ => self.accept(context.waiter),
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
                self.crowded.say(|others| {
                    let (error, again_in_s) = (error.to_string(), seconds(ACCEPT_PAUSE));
                    Event::NeighboursWaiting { error, again_in_s, others }.say();
                });
                let _ = waiter.deregister(listener.as_fd());
                self.listen_at = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
    }

    /// A caller has said something. Whatever is wrong with it ends its connection.
    fn hear_stranger(&mut self, index: usize, context: Context<'_>) {
        let Some(stranger) = self.strangers.get_mut(index).and_then(Option::take) else { return };
        let heard = match stranger.answered {
            None => self.answer(stranger, context).map(|answered| self.strangers[index] = answered),
            Some((peer, call, nonce)) => self.conclude(stranger, peer, call, nonce, context),
        };
        if let Err(error) = heard {
            debug!(%error, "a caller was turned away");
        }
    }

    /// Answers the first message of a caller, if it is from a peer that has to call.
    fn answer(&self, mut stranger: Stranger, context: Context<'_>) -> io::Result<Option<Stranger>> {
        let Some(received) = meeting::receive::<Call>(&stranger.socket)? else { return Ok(Some(stranger)) };
        let call = received.message;
        if !call.is_for(self.node) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // The caller may be faster than the card of this node, which then has not told yet whom it has met.
        let is_it = |peer: &Peer| !peer.calls && peer.life() == call.life();
        let peer = self.peers.iter().find(|(_, peer)| is_it(peer)).map(|(place, _)| *place);
        let peer = peer.ok_or(io::ErrorKind::PermissionDenied)?;
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce)?;
        let meeting = meeting_with_caller(&stranger.socket, call, context.secret(peer, call.life().0)?)?;
        meeting::send(&stranger.socket, &meeting.answer(nonce), None)?;
        stranger.answered = Some((peer, call, nonce));
        Ok(Some(stranger))
    }

    /// The caller has proven itself, and has brought memory along.
    fn conclude(
        &mut self,
        stranger: Stranger,
        peer: usize,
        call: Call,
        nonce: [u8; NONCE_LEN],
        context: Context<'_>,
    ) -> io::Result<()> {
        let socket = stranger.socket;
        let received = meeting::receive::<Proof>(&socket)?.ok_or(io::ErrorKind::WouldBlock)?;
        let there = self.peers.get_mut(&peer).filter(|there| there.life() == call.life());
        let there = there.ok_or(io::ErrorKind::PermissionDenied)?;
        let secret = context.secret(peer, there.node)?;
        if !meeting_with_caller(&socket, call, secret)?.accepts(nonce, &received.message) {
            let node = there.node.to_string();
            there.impostors.say(|others| Event::NeighbourUnproven { node, others }.say());
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (memory, bell) = received.descriptors.ok_or(io::ErrorKind::InvalidData)?;
        let shared = Shared::check(memory, bell)?;
        context.waiter.modify(socket.as_fd(), token::PLACES + peer as u64, Interest::READ)?;
        meeting::send(&socket, &Agreed::new(), None)?;
        there.state = State::Sharing { _connection: socket, shared, since: Instant::now() };
        self.announce(peer);
        Ok(())
    }

    /// Calls a peer whom it is this node's part to call.
    fn call(&mut self, peer: usize, now: Instant, context: Context<'_>) {
        let Some(there) = self.peers.get_mut(&peer) else { return };
        let (node, life) = (there.node, (self.node, context.incarnation_to(there.node)));
        there.retry_at = None;
        there.attempts += 1;
        let called = meeting::connect(node).and_then(|socket| {
            let mut nonce = [0; NONCE_LEN];
            fill_random(&mut nonce)?;
            let call = Call::new(node, life, nonce);
            meeting::send(&socket, &call, None)?;
            context.waiter.register(socket.as_fd(), token::PLACES + peer as u64, Interest::READ)?;
            Ok(Calling { socket, call, deadline: now + PATIENCE, offered: None })
        });
        match called {
            Ok(calling) => there.state = State::Calling(calling),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                debug!(%node, "the node is not on this machine, or shares no memory");
            }
            Err(error) => self.fail(peer, now, &error),
        }
    }

    /// A peer has said something, or is gone.
    fn hear(&mut self, peer: usize, context: Context<'_>) {
        let Some(there) = self.peers.get_mut(&peer) else { return };
        match std::mem::replace(&mut there.state, State::Alone) {
            State::Alone => {}
            State::Calling(calling) => match go_on(peer, there.node, calling, context) {
                Ok(state) => {
                    there.state = state;
                    if there.shared().is_some() {
                        self.announce(peer);
                    }
                }
                Err(error) => self.fail(peer, Instant::now(), &error),
            },
            sharing @ State::Sharing { .. } => {
                there.state = sharing;
                self.lose(peer);
            }
        }
    }

    /// What is shared with a peer is of no use any more: the neighbour is gone, or makes no sense. Whose part it is to
    /// call asks whether it is really gone.
    pub(super) fn lose(&mut self, peer: usize) {
        let Some(there) = self.peers.get_mut(&peer) else { return };
        let State::Sharing { since, .. } = &there.state else { return };
        let is_stable = since.elapsed() > STABLE;
        there.state = State::Alone;
        Event::MemoryParted { node: there.node.to_string() }.say();
        self.changed.push(peer);
        if is_stable {
            there.attempts = 0;
        }
        if there.calls {
            self.fail(peer, Instant::now(), &io::ErrorKind::ConnectionReset.into());
        }
    }

    /// An attempt has come to nothing: there is another one, but not for ever.
    fn fail(&mut self, peer: usize, now: Instant, error: &io::Error) {
        let Some(there) = self.peers.get_mut(&peer) else { return };
        there.state = State::Alone;
        let wait = RETRY * (1 << (there.attempts.max(1) - 1).min(10));
        there.retry_at = (there.attempts < ATTEMPTS).then(|| now + wait);
        debug!(%error, attempts = there.attempts, "no memory is shared yet");
    }

    fn announce(&mut self, peer: usize) {
        if let Some(there) = self.peers.get(&peer) {
            Event::MemoryShared { node: there.node.to_string() }.say();
            self.changed.push(peer);
        }
    }
}

/// What follows from the next message of the peer that was called.
fn go_on(peer: usize, node: NodeId, mut calling: Calling, context: Context<'_>) -> io::Result<State> {
    let Some(ours) = calling.offered else {
        let Some(received) = meeting::receive::<Answer>(&calling.socket)? else {
            return Ok(State::Calling(calling));
        };
        let pids = (std::process::id(), peer_pid(calling.socket.as_fd())?);
        let meeting = Meeting { secret: context.secret(peer, node)?, call: calling.call, pids };
        if !meeting.believes(&received.message) {
            Event::NeighbourImpostor { node: node.to_string() }.say();
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

fn meeting_with_caller(socket: &OwnedFd, call: Call, secret: [u8; 32]) -> io::Result<Meeting> {
    Ok(Meeting { secret, call, pids: (peer_pid(socket.as_fd())?, std::process::id()) })
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
