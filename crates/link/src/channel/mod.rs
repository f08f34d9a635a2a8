//! The channel of a loan: it decides, its parts compute.
//!
//! `incoming` takes frames apart, `outgoing` builds them, `keys` runs the handshake and `timers` wakes it up. What
//! the ledger keeps is changed only by `handle_*`, `advance` and the [`Port`]; `poll_transmit` changes nothing in it, so
//! everything that leaves has been committed.

mod incoming;
mod keys;
mod outgoing;
#[cfg(test)]
mod tests;
mod timers;

use core::time::Duration;
use std::collections::VecDeque;

use base::Instant;
use base::ids::{CardGeneration, DomainId, Group, Incarnation, LoanGeneration, NodeId};
use base::ledger::{Cell, Counter, Journal, Pages};
use pcie::TlpView;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::handshake::{Initiator, KeySet, Refusal};
use crate::path::{Incoming, Outgoing};
use crate::receiver::{Receiver, ReceiverCells};
use crate::record::Information;
use crate::seal::Seal;
use crate::sender::{SLOTS, Sender, SenderCells};
use crate::tags::{TagCells, Tags};

/// Which rail of a channel.
pub type PathId = u8;

pub use incoming::Heard;
pub use outgoing::Transmit;

/// Frames sealed under one key before the borrower begins a new handshake: far below AES-GCM's limits, and far before packet
/// numbers run out.
pub const REKEY_FRAMES: u64 = 1 << 28;

/// The storage of a [`Channel`]. All zeroes: nobody has been met.
#[derive(FromBytes)]
#[repr(C)]
pub struct ChannelCells {
    sender: SenderCells,
    receiver: ReceiverCells,
    tags: TagCells,
    /// The keys in use, those before them (still good for receiving), and those the peer has not used yet.
    current: Cell<KeySet>,
    previous: Cell<KeySet>,
    pending: Cell<KeySet>,
    /// The greatest attempt: of the borrower its own last one, of the lender the last one it has answered.
    attempt: Cell<Attempt>,
    /// The newest card of the peer.
    peer_generation: Cell<u32>,
    /// A [`State`].
    state: Cell<u32>,
    /// When the present borrower came, in nanoseconds of the driver's clock.
    bound_at: Cell<u64>,
    stats: Stats,
}

impl ChannelCells {
    /// What was counted: readable by the agent at any time.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}

/// Orders handshakes of one borrower: only a greater one is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Attempt {
    node: u64,
    incarnation: u64,
    number: u64,
}

/// What a channel has counted since its ledger was made.
#[derive(FromBytes, Debug)]
#[repr(C)]
pub struct Stats {
    /// Frames sent.
    pub sent_frames: Counter,
    /// Frames that were authentic and new.
    pub received_frames: Counter,
    /// TLPs sent again.
    pub retransmissions: Counter,
    /// Frames that did not authenticate.
    pub dropped_auth: Counter,
    /// Frames whose packet number had come before, or of an older card.
    pub dropped_replay: Counter,
    /// Frames that were authentic and made no sense, or no frames at all.
    pub dropped_malformed: Counter,
    /// Frames of another loan generation.
    pub dropped_generation: Counter,
    /// Handshakes completed.
    pub handshakes: Counter,
}

/// Which side of the loan this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Begins handshakes.
    Borrower,
    /// Answers them, and enforces the assignment.
    Lender,
}

/// Where a channel stands.
///
/// ```text
/// Idle --handshake--> Resetting --open--> Open --goodbye--> Closed
///                        ^                 |                  |
///                        +--new incarnation+------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Nobody has been met.
    Idle = 0,
    /// A new pair of incarnations has met; what was before it is being ended.
    Resetting = 1,
    /// The streams flow.
    Open = 2,
    /// The borrower has given the function back.
    Closed = 3,
}

/// A name of at most 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Name([u8; 32]);

/// One rail as a channel sees it.
#[derive(Clone, Copy, Debug)]
pub struct PathConfig {
    /// Bytes of the largest frame it takes.
    pub max_frame: usize,
}

/// What a channel is told when it is made.
#[derive(Clone)]
pub struct ChannelConfig {
    /// Which side this is.
    pub role: Role,
    /// The key of the loan's line.
    pub key: [u8; 32],
    /// No sealing, only checksums; both sides must say so.
    pub insecure: bool,
    /// The fabric.
    pub fabric: u32,
    /// The loan.
    pub group: Group,
    /// Its assignment.
    pub loan_generation: LoanGeneration,
    /// This node.
    pub node: NodeId,
    /// Its name, told to the peer.
    pub name: Name,
    /// Its domain.
    pub domain: DomainId,
    /// Which life of its ledger this is.
    pub incarnation: Incarnation,
    /// Which card this is.
    pub generation: CardGeneration,
    /// 32 random bytes, new for each card.
    pub seed: [u8; 32],
    /// Frames sealed under one key before there is a new one; [`REKEY_FRAMES`] but for tests.
    pub rekey_frames: u64,
    /// The rails, at least one and at most 8; both sides list them in the same order.
    pub paths: Vec<PathConfig>,
    /// The largest payload of a TLP that the rails can carry: 1024 or 4096.
    pub max_payload: usize,
}

/// What the composing card has to act on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A new pair of incarnations: end what was before, then call [`Channel::open`].
    Reset,
    /// The lender refuses.
    Refused(Refusal),
    /// The peer has given the function back, or has heard that we did.
    Closed,
    /// The lender describes its function.
    Information(Information),
}

/// What a TLP may cause in its own channel: further TLPs, and the end of requests.
pub struct Port<'m> {
    /// Sends.
    pub sender: Sender<'m>,
    /// Our requests.
    pub tags: Tags<'m>,
}

/// Takes the TLPs of a stream, each once and in order.
pub trait Sink<'m> {
    /// Takes one. Never waits and never refuses: credit was granted for it.
    fn accept(&mut self, now: Instant, port: &mut Port<'m>, tlp: &TlpView<'_>);
}

/// One path: both directions.
struct Path {
    config: PathConfig,
    outgoing: Outgoing,
    incoming: Incoming,
    ping: bool,
    next_heartbeat: Instant,
}

/// The two ends' agreement in use: a key set with its ciphers.
struct Sealing {
    id: u8,
    send: Seal,
    receive: Seal,
}

/// One end of a loan's channel.
pub struct Channel<'m> {
    cells: &'m ChannelCells,
    journal: Journal<'m>,
    config: ChannelConfig,
    /// Where TLPs are queued and tags are taken.
    pub port: Port<'m>,
    receiver: Receiver<'m>,
    paths: Vec<Path>,
    current: Option<Sealing>,
    previous: Option<Sealing>,
    pending: Option<Sealing>,
    transmission: Transmission,
    greeting: Greeting,
    handshake: Handshake,
    frames_under_key: u64,
    goodbye: bool,
    goodbye_heard: bool,
    information: Option<Information>,
    next_information: Instant,
    events: VecDeque<Event>,
    last_carried: (u64, u16),
}

/// What has been sent of the numbered TLPs, as far as this card knows.
struct Transmission {
    /// The first number never sent by this card.
    unsent: u64,
    /// Ranges to send again: first number, count.
    resend: VecDeque<(u64, u64)>,
    /// By number modulo the replay buffer: the peer's present card has it.
    received: Box<[bool; SLOTS]>,
    /// When to ask, because something is past committed or blocked and nothing is in flight.
    probe_at: Option<Instant>,
    probes: u32,
}

/// The hello of a new card.
struct Greeting {
    /// When to say hello next; none once it is answered.
    next: Option<Instant>,
    /// Between the last two; doubles, so that a peer that is gone costs nothing.
    wait: Duration,
    /// Paths that shall carry the hello now, as bits.
    due: u8,
    /// The peer's card whose hello is to be answered.
    answer: Option<u32>,
}

/// What this card knows of handshakes.
struct Handshake {
    initiator: Option<Initiator>,
    /// A message, and the paths it shall still go to, as bits.
    message: Vec<u8>,
    kind: crate::frame::Kind,
    due: u8,
    next: Option<Instant>,
    wait: Duration,
    attempts: u64,
    last_heard: Instant,
}

impl<'m> Channel<'m> {
    /// The channel over `cells`, new or found: a successor goes on with its predecessor's numbers, credits and keys.
    pub fn new(
        cells: &'m ChannelCells,
        pages: Pages<'m>,
        journal: Journal<'m>,
        config: ChannelConfig,
        now: Instant,
    ) -> Self {
        assert!((1..=8).contains(&config.paths.len()), "a channel has one to eight rails");
        let path = |config: &PathConfig| Path {
            config: *config,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(now),
            ping: false,
            next_heartbeat: now,
        };
        let sender = Sender::new(&cells.sender, pages, journal);
        let key_set = cells.current.get();
        let max_payload = if key_set.is_valid() { key_set.max_payload as usize } else { config.max_payload };
        let mut channel = Self {
            cells,
            journal,
            receiver: Receiver::new(&cells.receiver, journal, max_payload),
            paths: config.paths.iter().map(path).collect(),
            current: None,
            previous: None,
            pending: None,
            transmission: Transmission::new(sender.committed()),
            greeting: Greeting { next: None, wait: base::times::HELLO, due: 0, answer: None },
            handshake: Handshake::new(now),
            frames_under_key: 0,
            goodbye: false,
            goodbye_heard: false,
            information: None,
            next_information: now,
            events: VecDeque::new(),
            last_carried: (0, 0),
            port: Port { sender, tags: Tags::new(&cells.tags, journal) },
            config,
        };
        channel.load_keys();
        if channel.current.is_some() && channel.state() != State::Closed {
            channel.greet(now);
        } else if channel.config.role == Role::Borrower {
            channel.handshake.next = Some(now);
        }
        if channel.state() == State::Resetting {
            channel.events.push_back(Event::Reset);
        }
        channel
    }

    /// Where the channel stands.
    pub fn state(&self) -> State {
        match self.cells.state.get() {
            1 => State::Resetting,
            2 => State::Open,
            3 => State::Closed,
            _ => State::Idle,
        }
    }

    /// What was before the new pair of incarnations has ended: the streams may flow.
    pub fn open(&mut self) {
        assert_eq!(self.state(), State::Resetting, "a channel is opened after a reset");
        self.set_state(State::Open);
    }

    /// The borrower gives the function back: repeated until it is heard, then [`Event::Closed`].
    pub fn close(&mut self, now: Instant) {
        self.goodbye = true;
        self.greet(now);
    }

    /// What the lender announces periodically.
    pub fn set_information(&mut self, information: Information) {
        self.information = Some(information);
    }

    /// The next event, or none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Gives numbers to what has credit. Part of every step, behind whatever queues TLPs.
    pub fn assign_numbers(&mut self, now: Instant) {
        if self.state() == State::Open {
            self.port.sender.assign_numbers();
        }
        self.watch_uncommitted(now);
    }

    /// Hands on what arrived ahead of a gap that is closed now: one frame a call. True while there is more.
    pub fn deliver_ahead(&mut self, now: Instant, sink: &mut dyn Sink<'m>) -> bool {
        if self.state() == State::Open {
            let port = &mut self.port;
            self.receiver.deliver_ahead(&mut |tlp| sink.accept(now, port, tlp));
        }
        self.receiver.has_ahead()
    }

    /// The receiving half, for status and checkers.
    pub fn receiver(&self) -> &Receiver<'m> {
        &self.receiver
    }

    /// What was counted.
    pub fn stats(&self) -> &'m Stats {
        &self.cells.stats
    }

    /// The peer, once there is one: its node, name and domain.
    pub fn peer(&self) -> Option<(NodeId, Name, DomainId)> {
        let keys = self.cells.current.get();
        keys.is_valid().then(|| (keys.node(), Name(keys.peer_name), keys.domain()))
    }

    /// The largest payload of a TLP, as agreed with the peer.
    pub fn max_payload(&self) -> usize {
        let keys = self.cells.current.get();
        if keys.is_valid() { keys.max_payload as usize } else { self.config.max_payload }
    }

    /// When anything authentic was last heard, on any path.
    pub fn last_heard(&self) -> Instant {
        self.handshake.last_heard
    }

    /// How many rails it has.
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    /// A path's round trip, whether it answers, and the share of its packets that were lost.
    pub fn path_status(&self, path: PathId, now: Instant) -> (Option<Duration>, bool, f64) {
        let path = &self.paths[path as usize];
        let up =
            path.outgoing.probes() == 0 && now.since(path.incoming.last_heard) < base::times::RAIL_VERDICT;
        let ratio = path.outgoing.lost_packets as f64 / path.outgoing.sent_packets.max(1) as f64;
        (path.outgoing.round_trip(), up, ratio)
    }

    /// The newest incarnation and card of the peer that anything was accepted of, for checkers.
    pub fn newest_peer(&self) -> Option<(Incarnation, CardGeneration)> {
        let keys = self.cells.current.get();
        keys.is_valid().then(|| (keys.incarnation(), self.peer_generation()))
    }

    /// Names the key that frames are sealed with, without telling it: for checkers.
    pub fn key_fingerprint(&self) -> Option<u64> {
        let keys = self.cells.current.get();
        keys.is_valid().then(|| crate::tlp_digest(&keys.send))
    }

    /// First number and count of the TLPs in the frame that was built last, for checkers.
    pub fn last_carried(&self) -> (u64, u16) {
        self.last_carried
    }

    /// Whether nothing of ours is on its way or waiting: the state when faults and requests have ended.
    pub fn is_idle(&self) -> bool {
        self.port.sender.is_empty() && self.port.tags.outstanding() == 0
    }

    fn set_state(&mut self, state: State) {
        self.cells.state.set(self.journal, state as u32);
    }

    /// A new pair of incarnations: the streams begin anew, and the composing card is told to end what was before.
    fn reset_streams(&mut self, max_payload: usize) {
        self.port.sender.reset();
        self.port.tags.reset();
        self.receiver.reset();
        self.receiver.set_max_payload(max_payload);
        self.transmission = Transmission::new(0);
        self.set_state(State::Resetting);
        self.events.push_back(Event::Reset);
    }

    /// The peer's card is new: what it had received and not committed is lost.
    fn forget_received(&mut self, now: Instant) {
        for path in &mut self.paths {
            path.outgoing.forget_in_flight();
            path.incoming = Incoming::new(now);
        }
        self.transmission.forget_received(self.port.sender.committed());
    }
}

impl Transmission {
    fn new(committed: u64) -> Self {
        Self {
            unsent: committed,
            resend: VecDeque::new(),
            received: Box::new([false; SLOTS]),
            probe_at: None,
            probes: 0,
        }
    }

    fn forget_received(&mut self, committed: u64) {
        self.resend.clear();
        self.received.fill(false);
        if committed < self.unsent {
            self.resend.push_back((committed, self.unsent - committed));
        }
    }
}

impl Handshake {
    fn new(now: Instant) -> Self {
        Self {
            initiator: None,
            message: Vec::new(),
            kind: crate::frame::Kind::Initiation,
            due: 0,
            next: None,
            wait: base::times::HANDSHAKE_RETRY,
            attempts: 0,
            last_heard: now,
        }
    }
}

impl Name {
    /// The first 32 bytes of `name`, cut at a character.
    pub fn new(name: &str) -> Self {
        let end = (0..=name.len().min(32)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        let mut bytes = [0; 32];
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        Self(bytes)
    }

    /// A name as it lies in a message.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// As it lies in a message: filled up with zeroes.
    pub fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

impl core::fmt::Display for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(32);
        // A peer chose the bytes, and they end in terminals and logs.
        for character in String::from_utf8_lossy(&self.0[..end]).chars() {
            core::fmt::Write::write_char(f, if character.is_control() { '?' } else { character })?;
        }
        Ok(())
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self}")
    }
}
