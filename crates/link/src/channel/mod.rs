//! The channel of a loan: it decides, its parts compute.
//!
//! `incoming` takes frames apart, `outgoing` builds them, `keys` runs the handshake and `timers` wakes it up. What the
//! ledger keeps is changed only by `handle_*`, `advance` and the [`Port`]; `poll_transmit` changes nothing in it, so
//! everything that leaves has been committed.

mod admission;
mod incoming;
mod keys;
mod outgoing;
#[cfg(test)]
mod tests;
mod timers;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use base::Instant;
use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LifeId, LoanGeneration, NodeId, StreamId,
};
use base::ledger::{Cell, Counter, Journal, Layout, Pages};
use base::times::{COMPLETION_TIMEOUT, MEMORY_TIMEOUT};
use zerocopy::FromBytes;

use crate::answered::{AnsweredCells, Attempt};
use crate::cipher::{Cipher, Protection};
use crate::handshake::{Destination, Initiator, KeySet, Refusal};
use crate::identity::{Lender, NodeKey};
use crate::name::Name;
use crate::path::Incoming;
use crate::paths::{MAX_PATHS, PathConfig, PathId, Paths};
use crate::record::Information;
use crate::sealing::{Sealing, Wear};
use crate::stream::{Change, Sink, State, Stream, StreamCells};
use crate::tenancy::{Tenancy, TenancyWords};
use admission::{PeerProbe, Refused};

pub use incoming::Heard;

/// Challenges of addresses that wait to be sent, and answers that wait to be asked for.
const CHALLENGES: usize = 8;

/// The storage of a [`Channel`]. All zeroes: nobody has been met.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct ChannelCells {
    stream: StreamCells,
    /// The keys in use, those before them (still good for receiving), and those the peer has not used yet.
    current: Cell<KeySet>,
    previous: Cell<KeySet>,
    pending: Cell<KeySet>,
    /// When the pending keys were made, in nanoseconds of the driver's clock.
    pending_at: Cell<u64>,
    /// The borrower's last attempt.
    attempt: Cell<u64>,
    /// What the lender has answered.
    answered: AnsweredCells,
    /// Of a lender: who has the function; it has an effect when the agent has made it durable.
    tenant: Cell<TenancyWords>,
    /// The newest card of the peer.
    peer_generation: Cell<u64>,
    /// 1 from [`Channel::renew_keys`] until there are new ones.
    renewing: Cell<u32>,
    /// When the present borrower came, in nanoseconds of the driver's clock.
    bound_at: Cell<u64>,
    /// When the peer was last heard, to within [`HEARD_STEP`], or the first card of a lender began to listen: the hold
    /// time goes on while cards come and go.
    heard_at: Cell<u64>,
    /// By path: no packet number below is accepted from the peer's newest card, whatever our cards remember.
    seen: [Cell<u64>; MAX_PATHS],
    stats: Stats,
}

/// How exactly the ledger keeps when the peer was last heard: often enough for the hold time, seldom enough to cost
/// nothing.
const HEARD_STEP: Duration = Duration::from_secs(1);

const _: () = assert!(HEARD_STEP.as_nanos() * 10 < base::times::HOLD.as_nanos());

impl ChannelCells {
    /// What was counted: readable by the agent at any time.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What flows in it.
    pub fn stream(&self) -> &StreamCells {
        &self.stream
    }

    /// What only the two ends of the present handshake know, the same at both, in `role`: for their agents, who prove
    /// to each other that they belong to it. `None` where nobody has been met. It tells nothing of the keys of frames.
    pub fn secret(&self, role: Role) -> Option<[u8; 32]> {
        let keys = self.current.get();
        let to_lender = match role {
            Role::Borrower => &keys.send,
            Role::Lender => &keys.receive,
        };
        keys.is_valid().then(|| crate::handshake::derive(to_lender, SECRET))
    }
}

/// What the secret of a handshake is derived with.
const SECRET: u64 = u64::from_le_bytes(*b"agents\0\0");

/// What a channel has counted since its ledger was made.
#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
pub struct Stats {
    /// Frames sent.
    pub sent_frames: Counter,
    /// Frames that were authentic and new.
    pub received_frames: Counter,
    /// Frames that did not authenticate.
    pub dropped_auth: Counter,
    /// Frames whose packet number had come before, or of an older card.
    pub dropped_replay: Counter,
    /// Frames that were authentic and made no sense, or no frames at all.
    pub dropped_malformed: Counter,
    /// Frames of another loan generation.
    pub dropped_generation: Counter,
    /// Frames for another fabric, group, domain, channel or rail.
    pub dropped_misdirected: Counter,
    /// Messages of handshakes that were authentic and not understood: perhaps a later version's.
    pub dropped_not_understood: Counter,
    /// Handshakes completed.
    pub handshakes: Counter,
    /// First messages that were not answered, because another node is just being answered.
    pub deferred_handshakes: Counter,
}

/// Which side of the loan this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Begins handshakes.
    Borrower,
    /// Answers them, and enforces the assignment.
    Lender,
}

impl Role {
    /// How long its requests wait for a completion.
    fn patience(self) -> Duration {
        match self {
            Self::Borrower => COMPLETION_TIMEOUT,
            Self::Lender => MEMORY_TIMEOUT,
        }
    }
}

/// What a channel is told when it is made.
#[derive(Clone)]
pub struct ChannelConfig {
    /// Which side this is.
    pub role: Role,
    /// The secret of the loan's line.
    pub secret: [u8; 32],
    /// The lender, which may be this node.
    pub lender: Lender,
    /// Of a lender: the nodes that may have the function; `None`: all that have its line.
    pub allowed: Option<Arc<[NodeId]>>,
    /// What this end accepts as protection of frames.
    pub protection: Protection,
    /// The fabric.
    pub fabric: u32,
    /// The zone of both nodes.
    pub group: Group,
    /// How frames to this end name the channel: not zero.
    pub index: ChannelIndex,
    /// The loan.
    pub stream: StreamId,
    /// Its assignment.
    pub loan_generation: LoanGeneration,
    /// Of a lender: who has used the function last, as its agent has made durable.
    pub tenancy: Tenancy,
    /// This node.
    pub identity: NodeKey,
    /// Its name, told to the peer.
    pub name: Name,
    /// Its domain.
    pub domain: DomainId,
    /// Which life of its ledger this is.
    pub incarnation: Incarnation,
    /// The same, as nobody else has it.
    pub life: LifeId,
    /// Which card this is.
    pub generation: CardGeneration,
    /// 32 random bytes, new for each card.
    pub seed: [u8; 32],
    /// Frames sealed under one key before there is a new one; [`REKEY_FRAMES`](crate::REKEY_FRAMES) but for tests.
    pub rekey_frames: u64,
    /// The rails, at least one and at most [`MAX_RAILS`](crate::frame::MAX_RAILS); both sides list them in the same
    /// order.
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

/// One end of a loan's channel.
pub struct Channel<'m> {
    cells: &'m ChannelCells,
    journal: Journal<'m>,
    config: ChannelConfig,
    /// What flows.
    pub stream: Stream<'m>,
    paths: Paths,
    current: Option<Sealing>,
    previous: Option<Sealing>,
    pending: Option<Sealing>,
    greeting: Greeting,
    handshake: Handshake,
    wear: Wear,
    hears_duplicates: bool,
    goodbye: bool,
    goodbye_heard: bool,
    /// A goodbye was heard, and is answered once it is durable.
    goodbye_waits: bool,
    information: Option<Information>,
    next_information: Instant,
    /// To be sent on a path, each to an address of its own.
    challenges: VecDeque<(PathId, u64)>,
    /// What the peer has answered.
    proofs: VecDeque<u64>,
    events: VecDeque<Event>,
    last_carried: (u64, u16),
    last_acked: Vec<(PathId, u64)>,
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
    answer: Option<u64>,
}

/// What this card knows of handshakes.
struct Handshake {
    /// The borrower's attempts that have no answer yet, with their times, the last one last.
    attempted: VecDeque<(Initiator, Instant)>,
    /// How long the last answer took.
    round_trip: Duration,
    /// Whose attempt the message answers, and the paths it was sent on, as bits.
    answers: Option<Attempt>,
    answered_paths: u8,
    /// Answers that say no, the last one of each path.
    refusals: Vec<Refused>,
    probe: Option<PeerProbe>,
    /// Of a borrower: the next attempt is to begin new streams, whatever flows.
    anew: bool,
    /// Of a borrower: the lender that was met last comes from a copy of the state folder of the one before.
    is_other_lender: bool,
    /// A message, whom it is for, and the paths it shall still go to, as bits.
    message: Vec<u8>,
    to: Destination,
    kind: crate::frame::Kind,
    due: u8,
    next: Option<Instant>,
    wait: Duration,
    attempts: u64,
    /// When this card began to listen.
    listens_since: Instant,
    /// When the peer was last heard, by this card or one before it.
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
        assert!(config.life != LifeId::default(), "a life is drawn before there is a card");
        let paths = Paths::new(&config.paths, |path| cells.seen[usize::from(path)].get(), now);
        let key_set = cells.current.get();
        if config.role == Role::Lender && !key_set.is_valid() && cells.heard_at.get() == 0 {
            cells.heard_at.set(journal, now.as_nanos());
        }
        let heard_at = Instant::from_nanos(cells.heard_at.get()).min(now);
        let is_known = key_set.is_valid() || config.role == Role::Lender;
        let last_heard = if is_known { heard_at } else { now };
        let max_payload = if key_set.is_valid() { key_set.max_payload as usize } else { config.max_payload };
        let mut channel = Self {
            cells,
            journal,
            stream: Stream::new(&cells.stream, pages, journal, config.role.patience(), max_payload),
            paths,
            current: None,
            previous: None,
            pending: None,
            greeting: Greeting { next: None, wait: base::times::HELLO, due: 0, answer: None },
            handshake: Handshake::new(now, last_heard),
            wear: Wear::default(),
            hears_duplicates: false,
            goodbye: false,
            goodbye_heard: false,
            goodbye_waits: false,
            information: None,
            next_information: now,
            challenges: VecDeque::new(),
            proofs: VecDeque::new(),
            events: VecDeque::new(),
            last_carried: (0, 0),
            last_acked: Vec::new(),
            config,
        };
        if channel.tenant().number < channel.config.tenancy.number {
            channel.set_tenant(channel.config.tenancy);
        }
        channel.load_keys();
        if channel.current.is_some() && channel.state() != State::Closed {
            channel.greet(now);
            if channel.is_renewing() && channel.begins() {
                channel.handshake.next = Some(now);
            }
        } else if channel.begins() {
            channel.handshake.next = Some(now);
        }
        if channel.state() == State::Resetting {
            channel.events.push_back(Event::Reset);
        }
        channel
    }

    /// Where the channel stands.
    pub fn state(&self) -> State {
        self.stream.state()
    }

    /// What was before the new pair of incarnations has ended: the streams may flow.
    pub fn open(&mut self) {
        assert!(self.stream.change(Change::Quiet), "a channel is opened after a reset");
    }

    /// The borrower gives the function back: repeated until it is heard, then [`Event::Closed`]. At once, if it has
    /// none, or has given it back before.
    pub fn close(&mut self, now: Instant) {
        if matches!(self.state(), State::Idle | State::Closed) {
            self.handshake.next = None;
            self.handshake.attempted.clear();
            self.stream.change(Change::GivenBack);
            self.events.push_back(Event::Closed);
            return;
        }
        self.goodbye = true;
        self.greet(now);
    }

    /// Whether the function is being given back.
    pub fn is_leaving(&self) -> bool {
        self.goodbye
    }

    /// What the lender announces periodically.
    pub fn set_information(&mut self, information: Information) {
        self.information = Some(information);
    }

    /// This machine may go on somewhere else, too, from the same memory: there are to be keys that depend on `seed`,
    /// which is new and random. Until then nothing is sent under those that the other one has, but for what it would
    /// send as well.
    ///
    /// If it is certain that it was restored, a borrower calls itself by another `life` from here on. To its lender it is
    /// another user, who is let in when the life before does not answer: so of several copies one goes on, and it is told
    /// that the drive may not be as it knows it.
    pub fn renew_keys(&mut self, now: Instant, seed: [u8; 32], life: Option<LifeId>) {
        self.config.seed = seed;
        if let (Role::Borrower, Some(life)) = (self.config.role, life) {
            self.config.life = life;
        }
        // What was prepared depends on the old seed, or leads to keys that are forgotten here: callers call again.
        let handshake = &mut self.handshake;
        (handshake.attempts, handshake.due) = (0, 0);
        (handshake.answers, handshake.answered_paths, handshake.probe) = (None, 0, None);
        handshake.attempted.clear();
        handshake.refusals.clear();
        handshake.message.clear();
        let pending = self.cells.pending.get();
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..pending });
        self.load_keys();
        if self.current.is_none() || self.state() == State::Closed {
            return;
        }
        self.cells.renewing.set(self.journal, 1);
        match self.config.role {
            Role::Borrower => self.handshake.next = Some(now),
            Role::Lender => self.greet(now),
        }
    }

    /// Challenges who is at an address: `challenge` leaves on `path`, where
    /// [`Transmit::challenge`](crate::Transmit::challenge) says so. Nobody can guess it, and no two addresses have the
    /// same one. Where too many wait, it is dropped: what comes from there again asks for another.
    pub fn challenge(&mut self, path: PathId, challenge: u64) {
        if self.challenges.len() < CHALLENGES {
            self.challenges.push_back((path, challenge));
        }
    }

    /// Whether a frame that has come before is opened once more, to know whether it is authentic: somebody may have
    /// repeated it faster than the network, so whoever is where it comes from now may be the peer. It has no effect
    /// else.
    pub fn hear_duplicates(&mut self, hears: bool) {
        self.hears_duplicates = hears;
    }

    /// The next challenge that the peer has answered.
    pub fn poll_proof(&mut self) -> Option<u64> {
        self.proofs.pop_front()
    }

    /// The next event, or none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Gives numbers to what has credit. Part of every step, behind whatever queues TLPs.
    pub fn assign_numbers(&mut self, now: Instant) {
        self.stream.assign_numbers();
        self.watch_uncommitted(now);
    }

    /// Hands on what arrived ahead of a gap that is closed now, or was left by the step before: one frame a call. True
    /// while there is more for this step.
    pub fn deliver_ahead(&mut self, now: Instant, sink: &mut dyn Sink<'m>) -> bool {
        self.stream.deliver_ahead(now, sink)
    }

    /// What was counted.
    pub fn stats(&self) -> &'m Stats {
        &self.cells.stats
    }

    /// The peer, once there is one: its node, name and domain.
    pub fn peer(&self) -> Option<(NodeId, Name, DomainId)> {
        let keys = self.cells.current.get();
        keys.is_valid().then(|| (keys.node(), Name::from_bytes(keys.peer_name), keys.domain()))
    }

    /// Number of the [`Tenancy`] that the present pair belongs to, as the lender has told.
    pub fn tenancy(&self) -> u64 {
        self.cells.current.get().tenancy
    }

    /// Of a borrower: whether the lender that was met last has the same identity as the one before, and comes from a
    /// copy of its state folder, or from an older one.
    pub fn is_other_lender(&self) -> bool {
        self.handshake.is_other_lender
    }

    /// From now on this end of a borrower calls itself by a greater incarnation, because its lender has seen a greater
    /// one than before. It calls at once.
    pub fn raise_incarnation(&mut self, now: Instant, incarnation: Incarnation) {
        self.config.incarnation = self.config.incarnation.max(incarnation);
        if self.begins() {
            (self.handshake.next, self.handshake.wait) = (Some(now), base::times::HANDSHAKE_RETRY);
        }
    }

    /// The largest payload of a TLP, as agreed with the peer.
    pub fn max_payload(&self) -> usize {
        let keys = self.cells.current.get();
        if keys.is_valid() { keys.max_payload as usize } else { self.config.max_payload }
    }

    /// When anything authentic was last heard, on any path; what an earlier card has heard is known to within a second.
    pub fn last_heard(&self) -> Instant {
        self.handshake.last_heard
    }

    /// How many rails it has.
    pub fn paths(&self) -> usize {
        self.paths.rails()
    }

    /// Whether there is a private path from now on, or another one than before. What was in flight on it is sent again,
    /// and it carries TLPs only when it has answered.
    pub fn set_private(&mut self, now: Instant, is_there: bool) {
        let stream = &mut self.stream;
        self.paths.set_private(now, is_there, &mut |carried| stream.handle_lost(carried));
    }

    /// Of the private path what [`Channel::path_status`] tells of a rail; `None` where there is none.
    pub fn private_status(&self, now: Instant) -> Option<(Option<Duration>, bool, f64)> {
        Some(self.paths.private()).filter(|path| path.is_there).map(|path| path.status(now))
    }

    /// A path's round trip, whether it answers, and the share of its packets that were lost.
    pub fn path_status(&self, path: PathId, now: Instant) -> (Option<Duration>, bool, f64) {
        self.paths[path as usize].status(now)
    }

    /// The newest incarnation and card of the peer that anything was accepted of, for checkers.
    pub fn newest_peer(&self) -> Option<(Incarnation, CardGeneration)> {
        let keys = self.cells.current.get();
        keys.is_valid().then(|| (keys.incarnation(), self.peer_generation()))
    }

    /// What protects the frames, once there is a peer.
    pub fn cipher(&self) -> Option<Cipher> {
        self.cells.current.get().cipher()
    }

    /// Names the key that this card seals frames with, without telling it: for checkers.
    pub fn key_fingerprint(&self) -> Option<u64> {
        self.current.as_ref().map(|sealing| sealing.fingerprint)
    }

    /// First number and count of the TLPs in the frame that was built last, for checkers.
    pub fn last_carried(&self) -> (u64, u16) {
        self.last_carried
    }

    /// What the frame that was built last acknowledges: the peer's card, and by path the greatest packet. For checkers.
    pub fn last_acked(&self) -> (CardGeneration, &[(PathId, u64)]) {
        (self.peer_generation(), &self.last_acked)
    }

    /// Whether the keys in use may be used by a copy of this machine.
    fn is_renewing(&self) -> bool {
        self.cells.renewing.get() != 0
    }

    /// The peer is there.
    fn hear_peer(&mut self, now: Instant) {
        self.handshake.last_heard = now;
        if now.since(Instant::from_nanos(self.cells.heard_at.get())) >= HEARD_STEP {
            self.cells.heard_at.set(self.journal, now.as_nanos());
        }
    }

    /// A new pair of incarnations: the streams begin anew, and the composing card is told to end what was before.
    fn reset_streams(&mut self, max_payload: usize) {
        let keys = self.cells.current.get();
        let to_borrower = if self.config.role == Role::Lender { keys.send } else { keys.receive };
        self.stream.begin(crate::tlp_digest(&to_borrower), max_payload);
        self.events.push_back(Event::Reset);
    }

    /// The peer's card is new: what it had received and not committed is lost.
    fn forget_received(&mut self, now: Instant) {
        for path in self.paths.iter_mut() {
            path.outgoing.forget_in_flight();
            path.incoming = Incoming::new(now, 0);
            self.cells.seen[path.id as usize].set(self.journal, 0);
        }
        self.stream.forget_received();
    }
}

impl Handshake {
    fn new(now: Instant, last_heard: Instant) -> Self {
        Self {
            attempted: VecDeque::new(),
            round_trip: Duration::ZERO,
            answers: None,
            answered_paths: 0,
            refusals: Vec::new(),
            probe: None,
            anew: false,
            is_other_lender: false,
            message: Vec::new(),
            to: Destination::default(),
            kind: crate::frame::Kind::Initiation,
            due: 0,
            next: None,
            wait: base::times::HANDSHAKE_RETRY,
            attempts: 0,
            listens_since: now,
            last_heard,
        }
    }

    /// How long an answer may take.
    fn patience(&self) -> Duration {
        self.round_trip * 3 / 2
    }
}
