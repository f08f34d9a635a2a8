//! The channel of two nodes: it decides, its parts compute.
//!
//! `incoming` takes frames apart, `outgoing` builds them, `keys` runs the handshake, `admission` says which life of the
//! other node it is with, and `timers` wakes it up. What the ledger keeps is changed only by `handle_*`, `take_call`,
//! `tend` and the like; `poll_transmit` changes nothing in it, so everything that leaves has been committed.

mod admission;
#[cfg(test)]
mod for_test;
mod greeting;
mod incoming;
mod keys;
mod notices;
mod numbers;
mod outgoing;
mod rails;
mod revealing;
mod sayings;
mod timers;

use std::rc::Rc;

use core::time::Duration;
use std::collections::VecDeque;

use base::Instant;
use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LifeId, NodeId, RailId, StreamId,
};
use base::ledger::{Cell, Counter, Journal, Layout};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::calls::{Line, Refusal};
use super::control::{What, Wish};
use super::cookies::Cookie;
use super::lobby::Known;
use super::schedule::{Debts, Schedule};
use crate::answered::{Attempt, CallName};
use crate::certificate::Members;
use crate::choice::RailMode;
use crate::cipher::{Cipher, Protection};
use crate::frame::{Kind, MAX_RAILS, TAG_LEN};
use crate::handshake::{Destination, Initiator, KeySet, derive};
use crate::identity::{NodeKey, PublicKey};
use crate::name::Name;
use crate::notice::Notice;
use crate::path::{Carried, Incoming};
use crate::paths::{MAX_PATHS, PathConfig, PathId, PathSet, PathStatus, Paths, RAIL_PATHS};
use crate::record::ADDRESS_BYTES;
use crate::sealing::{Sealing, Wear};
use crate::stream::{Sink, State, Stream};
use admission::LifeProbe;
use greeting::Greeting;
use incoming::Which;
use numbers::NumberCells;
use rails::PeerRails;
use sayings::{Saying, Sayings};

pub use incoming::{Heard, Said};
pub(super) use numbers::NotNow;

/// Streams of a channel at once, at most.
pub const MAX_STREAMS: u32 = 4096;

/// The stream of frames that have none: control.
const CONTROL: StreamId = StreamId(0);

/// Challenges of addresses that wait to be sent, and answers that wait to be asked for.
const CHALLENGES: usize = 8;

/// The streams of a channel, which belong to its driver.
pub trait Streams<'m> {
    /// The stream of this number, and who takes its TLPs. `None`: there is none.
    fn stream(&mut self, id: StreamId) -> Option<(&mut Stream<'m>, &mut dyn Sink<'m>)>;

    /// Shows every stream that the claims and offers of this channel have in its present course
    /// ([`Claim::stream`](super::Claim::stream), [`Offer::stream`](super::Offer::stream)), whatever has become of it.
    fn each(&mut self, visit: &mut dyn FnMut(StreamId, &mut Stream<'m>));
}

/// Copies of a peer that are known at once: nobody has more of one folder by accident.
pub const COPIES: usize = 8;

/// The storage of a [`Channel`]. All zeroes: nobody has been met.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct ChannelCells {
    /// The keys in use, those before them (still good for receiving), and those the peer has not used yet.
    current: Cell<KeySet>,
    previous: Cell<KeySet>,
    pending: Cell<KeySet>,
    /// When the pending keys were made, in nanoseconds of the driver's clock.
    pending_at: Cell<u64>,
    /// Our last attempt.
    attempt: Cell<u64>,
    /// The peer's last attempt that was answered.
    called: Cell<CalledWords>,
    /// Names the course that the channel is in; 0: nobody has been met.
    course: Cell<u64>,
    /// The newest card of the peer.
    peer_generation: Cell<u64>,
    /// 1 from [`Channel::renew_keys`] until there are new ones.
    renewing: Cell<u32>,
    /// The peer's rails.
    peer_rails: Cell<PeerRails>,
    reserved: Cell<u32>,
    /// Other lives of the peer, seen while one that was met was there: copies of that node; zeroes: none. The last one
    /// first; of more the oldest are forgotten.
    copies: [Cell<LifeId>; COPIES],
    /// The last life of the peer that was met though its state folder is a copy, or an older one; zeroes: there was
    /// none.
    fork: Cell<LifeId>,
    /// When the peer was last heard, to within [`HEARD_STEP`].
    heard_at: Cell<u64>,
    /// Of a peer that was never met: since when its copies are known.
    copies_since: Cell<u64>,
    /// By path: no packet number below is accepted from the peer's newest card, whatever our cards remember.
    seen: [Cell<u64>; MAX_PATHS],
    /// What has flowed in this course in streams that have ended.
    ended: Cell<Totals>,
    numbers: NumberCells,
    stats: Stats,
}

const _: () = assert!(size_of::<ChannelCells>() <= 2048, "there may be many nodes");

/// An [`Attempt`] of the peer's, whose node is known.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct CalledWords {
    node: NodeId,
    /// Whether there was one.
    used: [u8; 4],
    incarnation: u64,
    life: LifeId,
    number: u64,
}

/// What has flowed, in numbers of TLPs.
#[derive(Clone, Copy, PartialEq, Debug, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Totals {
    /// Those of ours that have been given numbers, and of these the peer has committed.
    numbered: u64,
    committed: u64,
    /// The peer's that were accepted.
    accepted: u64,
}

impl Totals {
    fn with(self, stream: &Stream<'_>) -> Self {
        Self {
            numbered: self.numbered + stream.port.sender.next(),
            committed: self.committed + stream.port.sender.committed(),
            accepted: self.accepted + stream.receiver().committed(),
        }
    }
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

    /// What only the two ends of the present handshake know, the same at both: for their agents, who prove to each
    /// other that they belong to it. `None` where nobody has been met. It tells nothing of the keys of frames.
    pub fn secret(&self) -> Option<[u8; 32]> {
        let keys = self.current.get();
        let to_callee = if keys.called == 0 { &keys.send } else { &keys.receive };
        keys.is_valid().then(|| derive(to_callee, SECRET))
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
    /// Frames for another fabric, group, domain, channel or rail.
    pub dropped_misdirected: Counter,
    /// Messages of handshakes that were authentic and not understood: perhaps a later version's.
    pub dropped_not_understood: Counter,
    /// Frames of a stream that were of another assignment of its function.
    pub dropped_generation: Counter,
    /// Handshakes completed.
    pub handshakes: Counter,
    /// Calls that were not answered, because our own is out or another life is being answered.
    pub deferred_handshakes: Counter,
    /// Records about streams that are not there.
    pub unknown_streams: Counter,
    /// Streams opened with a number that cannot be, or that was used before.
    pub wrong_numbers: Counter,
    /// Streams opened while there were as many as were agreed on.
    pub too_many_streams: Counter,
    /// Streams opened without knowing the secret of the function, or of one that is not there.
    pub wrong_proofs: Counter,
    /// Refusals for a reason that is not known here.
    pub unknown_verdicts: Counter,
    /// Statuses of TLPs that were never sent.
    pub wrong_statuses: Counter,
}

/// What a channel is told when it is made.
#[derive(Clone)]
pub struct ChannelConfig {
    /// The other node, which may be this one.
    pub peer: PublicKey,
    /// Where it is called until it has been met: switches find it by that.
    pub peer_domain: DomainId,
    /// Whether this end calls: it knows where the other one is and wants something. Of a channel of a node with itself
    /// exactly one end does.
    pub calls: bool,
    /// What this end accepts as protection of frames.
    pub protection: Protection,
    /// The fabric.
    pub fabric: u32,
    /// The zone of both nodes.
    pub group: Group,
    /// How frames to this end name the channel: not zero.
    pub index: ChannelIndex,
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
    /// 32 random bytes, new for each card and channel.
    pub seed: [u8; 32],
    /// Frames sealed under one key before there is a new one; [`REKEY_FRAMES`](crate::REKEY_FRAMES) but for tests.
    pub rekey_frames: u64,
    /// The rails of this end, by id.
    pub rails: [Option<PathConfig>; MAX_RAILS],
    /// Where the other end is said to have rails, and what gets there. Those are called, and it may have others.
    pub peer_rails: [Option<PathConfig>; MAX_RAILS],
    /// How it uses several of them.
    pub rail_mode: RailMode,
    /// Those that have no carrier, as bits.
    pub lost_carriers: u8,
    /// The largest payload of a TLP that the rails can carry: 1024 or 4096.
    pub max_payload: usize,
    /// Streams at once, at most [`MAX_STREAMS`]; the smaller number of both ends counts.
    pub max_streams: u32,
}

/// What the composing card has to act on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A handshake is complete: the peer is there. The lobby is to be told.
    Met,
    /// A new pair of lives has met, or one that cannot go on with what it had: each stream has ended, and every claim
    /// and offer of this channel sees that in its next step.
    Anew,
    /// The peer does not answer with keys.
    Refused(Refusal),
    /// This call of another life of the peer is refused, since the one that is met lives. That one is to be told:
    /// [`Channel::tell_of_twin`].
    TwinRefused(CallName),
    /// The peer says that it has refused another life of this node, at this address.
    HasTwin([u8; ADDRESS_BYTES]),
    /// The peer does not answer on this rail of its own any more, and does on others.
    Silent(RailId),
    /// The peer says that a rail of some node seems to have failed, perhaps of this one.
    Notice(Notice),
}

/// Names what flows between two lives from one beginning on: streams of one course are never those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Course(pub(super) u64);

/// Which of the two ends this is: they differ where both begin at once, and in the numbers that they give to streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// Has the smaller id. With itself a node is both, and the end that calls is this one.
    First,
    Second,
}

/// What this card knows of handshakes.
struct Handshake {
    /// Our attempts that have no answer yet, with their times, the last one last.
    attempted: VecDeque<(Initiator, Instant)>,
    /// The paths that they have taken.
    called: PathSet,
    /// The peer has told of its rails since the first of them left: an answer may be older.
    is_told: bool,
    /// How long the last answer took.
    round_trip: Duration,
    /// Whose attempt the message answers, and the paths it was sent on.
    answers: Option<Attempt>,
    answered_paths: PathSet,
    probe: Option<LifeProbe>,
    /// The next attempt is to begin a new course, whatever flows.
    anew: bool,
    /// A message, whom it is for, and the paths it shall still take.
    message: Vec<u8>,
    to: Destination,
    kind: Kind,
    due: PathSet,
    /// By path, of the last first message there: what its answer by a cookie names, and what was answered so.
    marks: [[u8; TAG_LEN]; RAIL_PATHS],
    cookies: [Option<(Cookie, Instant)>; RAIL_PATHS],
    next: Option<Instant>,
    wait: Duration,
    /// Key agreements of this card, for entropy.
    attempts: u64,
    /// When this card began to listen.
    listens_since: Instant,
    /// When the peer was last heard, by this card or one before it.
    last_heard: Instant,
}

/// One end of what joins two nodes.
pub struct Channel<'m> {
    cells: &'m ChannelCells,
    journal: Journal<'m>,
    config: ChannelConfig,
    side: Side,
    paths: Paths,
    /// The key sets as the ledger has them, by [`Which`]: most frames ask for something of them.
    keys: [KeySet; 3],
    current: Option<Sealing>,
    previous: Option<Sealing>,
    pending: Option<Sealing>,
    greeting: Greeting,
    /// Which edition of this end's rails the peer is told of.
    edition: u32,
    handshake: Handshake,
    wear: Wear,
    hears_duplicates: bool,
    schedule: Schedule,
    debts: Debts,
    /// Streams whose peer is to be asked for their status.
    pings: VecDeque<StreamId>,
    sayings: Sayings,
    /// The last frame was one of control: another one goes first, if there is any.
    was_control: bool,
    /// What became of packets, for their streams: true if they have arrived.
    fates: VecDeque<(Carried, bool)>,
    /// Streams that a frame has changed.
    touched: VecDeque<StreamId>,
    said: VecDeque<Said>,
    /// When an opening was last refused for what it proved.
    refused_at: Option<Instant>,
    /// To be sent on a path, each to an address of its own.
    challenges: VecDeque<(PathId, u64)>,
    /// What the peer has answered.
    proofs: VecDeque<u64>,
    events: VecDeque<Event>,
    /// Where another life of the peer was, of which that is to be told.
    twin: Option<[u8; ADDRESS_BYTES]>,
    /// Rails of which the peer is to be told.
    notices: VecDeque<Notice>,
    /// What this node knows of its fabric, if it belongs to one.
    members: Option<Rc<Members>>,
    /// Lives of the peer that have something of this node, be it that none of them is met.
    tenants: Vec<LifeId>,
    last_carried: Carried,
    last_acked: Vec<(PathId, u64)>,
    #[cfg(test)]
    lies: Vec<(StreamId, crate::record::Status)>,
}

impl<'m> Channel<'m> {
    /// The channel over `cells`, new or found: a successor goes on with its predecessor's numbers and keys.
    ///
    /// # Panics
    /// If the configuration has no life or no index.
    pub fn new(cells: &'m ChannelCells, journal: Journal<'m>, config: ChannelConfig, now: Instant) -> Self {
        assert!(config.life != LifeId::default(), "a life is drawn before there is a card");
        assert!(config.index != ChannelIndex::default(), "a channel has an index");
        assert!(config.max_streams <= MAX_STREAMS);
        let peer = cells.peer_rails.get().known(&config.peer_rails);
        let seen_below = |path: PathId| cells.seen[path.index()].get();
        let mut paths = Paths::new((&config.rails, &config.peer_rails), peer, seen_below, now);
        paths.set_mode(config.rail_mode);
        paths.set_lost_carriers(now, config.lost_carriers, &mut drop);
        let is_known = cells.current.get().is_valid();
        let heard_at = Instant::from_nanos(cells.heard_at.get()).min(now);
        let side = side_of(&config);
        let mut channel = Self {
            cells,
            journal,
            side,
            paths,
            keys: [&cells.current, &cells.previous, &cells.pending].map(Cell::get),
            current: None,
            previous: None,
            pending: None,
            greeting: Greeting::default(),
            edition: 0,
            handshake: Handshake::new(now, if is_known { heard_at } else { now }),
            wear: Wear::default(),
            hears_duplicates: false,
            schedule: Schedule::default(),
            debts: Debts::default(),
            pings: VecDeque::new(),
            sayings: Sayings::default(),
            was_control: false,
            fates: VecDeque::new(),
            touched: VecDeque::new(),
            said: VecDeque::new(),
            refused_at: None,
            challenges: VecDeque::new(),
            proofs: VecDeque::new(),
            tenants: Vec::new(),
            events: VecDeque::new(),
            twin: None,
            notices: VecDeque::new(),
            members: None,
            last_carried: Carried::default(),
            last_acked: Vec::new(),
            #[cfg(test)]
            lies: Vec::new(),
            config,
        };
        channel.load_keys();
        if channel.current.is_some() {
            channel.greeting.begin(now);
        }
        if channel.config.calls && (channel.current.is_none() || channel.is_renewing()) {
            channel.handshake.next = Some(now);
        }
        channel
    }

    /// Whether the two have met, so that streams may be opened.
    pub fn is_met(&self) -> bool {
        self.current.is_some() && !self.is_renewing()
    }

    /// The course that the channel is in; `None` where nobody has been met.
    pub fn course(&self) -> Option<Course> {
        Some(Course(self.cells.course.get())).filter(|course| *course != Course::default())
    }

    /// The last call that was answered, for the lobby: what there is of the peer.
    pub fn known_call(&self) -> Option<Known> {
        let CalledWords { node, used, incarnation, life, number } = self.cells.called.get();
        let (group, incarnation) = (self.config.group, Incarnation(incarnation));
        let attempt = Attempt { node, group, incarnation, life, number };
        // That of a life that never came is no better known than any other.
        let is_of = |keys: &Cell<KeySet>| keys.get().is_valid() && keys.get().peer_life == life;
        let (is_met, is_awaited) = (is_of(&self.cells.current), is_of(&self.cells.pending));
        (used != [0; 4] && (is_met || is_awaited)).then_some(Known { attempt, is_met })
    }

    /// Whether this end shall call from now on, and again when the other one is silent.
    pub fn set_calling(&mut self, now: Instant, calls: bool) {
        let begins = calls && !self.config.calls && self.current.is_none();
        self.config.calls = calls;
        if begins && self.handshake.next.is_none() {
            self.call(now);
        }
    }

    /// Where the peer is called from the next attempt on, until it has been met.
    pub fn set_peer_domain(&mut self, domain: DomainId) {
        self.config.peer_domain = domain;
    }

    /// Which lives of the peer have something of this node: no other one is followed before these could have called.
    pub fn set_tenants(&mut self, lives: impl IntoIterator<Item = LifeId>) {
        self.tenants.clear();
        self.tenants.extend(lives);
    }

    /// Of a peer that was never met: these lives of it are copies, as a lender that was started anew at `since` has
    /// kept. See [`Channel::copies`].
    pub fn set_copies(&mut self, since: Instant, lives: &[LifeId]) {
        if self.agreed().is_valid() {
            return;
        }
        // The last one first.
        let known = lives.iter().rev().filter(|life| **life != LifeId::default());
        known.for_each(|life| self.note_copy(*life));
        self.cells.copies_since.set(self.journal, since.as_nanos());
    }

    /// Lives of the peer that were seen beside one that was met; zeroes: none.
    pub fn copies(&self) -> [LifeId; COPIES] {
        self.cells.copies.each_ref().map(Cell::get)
    }

    /// This machine may go on somewhere else, too, from the same memory: there are to be keys that depend on `seed`,
    /// which is new and random. Until then nothing is sent under those that the other one has, but for what it would
    /// send as well.
    ///
    /// If it is certain that it was restored, this end calls itself by another `life` from here on. To its peer it is
    /// another life, which is let in when the one before does not answer: so of several copies one goes on. The lobby
    /// is renewed before: answers to calls depend on its seed.
    pub fn renew_keys(&mut self, now: Instant, seed: [u8; 32], life: Option<LifeId>) {
        self.config.seed = seed;
        self.config.life = life.unwrap_or(self.config.life);
        // What was prepared depends on the old seed, or leads to keys that are forgotten here: callers call again.
        let handshake = &mut self.handshake;
        (handshake.attempts, handshake.due) = (0, PathSet::default());
        (handshake.answers, handshake.answered_paths, handshake.probe) = (None, PathSet::default(), None);
        handshake.attempted.clear();
        handshake.message.clear();
        let pending = *self.keys_of(Which::Pending);
        self.cells.pending.set(self.journal, KeySet { valid: 0, ..pending });
        self.load_keys();
        if self.current.is_none() {
            return;
        }
        self.cells.renewing.set(self.journal, 1);
        if self.config.calls {
            self.call(now);
        } else {
            self.greeting.begin(now);
        }
    }

    /// From now on this end calls itself by a greater incarnation, because the peer has seen a greater one than before.
    /// It calls at once.
    pub fn raise_incarnation(&mut self, now: Instant, incarnation: Incarnation) {
        self.config.incarnation = self.config.incarnation.max(incarnation);
        if self.config.calls {
            self.call(now);
        }
    }

    /// Challenges who is at an address: `challenge` leaves on `path`, where [`Transmit::challenge`] says so. Nobody can
    /// guess it, and no two addresses have the same one. Where too many wait, it is dropped: what comes from there
    /// again asks for another.
    ///
    /// [`Transmit::challenge`]: crate::Transmit::challenge
    pub fn challenge(&mut self, path: PathId, challenge: u64) {
        if self.challenges.len() < CHALLENGES {
            self.challenges.push_back((path, challenge));
        }
    }

    /// Another life of the peer was at this address, and was refused: the one that is met is told so. If that gets
    /// lost, it is told when the other one calls again.
    pub fn tell_of_twin(&mut self, at: [u8; ADDRESS_BYTES]) {
        self.twin = Some(at);
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

    /// The next event, or none. To be asked for in the step in which it has come.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next thing that the peer has said of a stream: for its claim or offer, in the same step.
    pub fn poll_said(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    /// The next stream that a frame has changed: whoever has it looks at it in the same step, and then
    /// [tends](Channel::tend) it.
    pub fn poll_touched(&mut self) -> Option<StreamId> {
        self.touched.pop_front()
    }

    /// Part of every step of a stream, behind whatever queues TLPs: gives numbers to what has credit, has it sent, and
    /// sees to it that the peer is asked while something is not committed or waits for credit.
    pub fn tend(&mut self, now: Instant, id: StreamId, stream: &mut Stream<'m>) {
        stream.assign_numbers();
        self.watch_uncommitted(now, id, stream);
        // The peer is told by the way; if it waits for that, it asks. Nobody is told of a stream before it is open.
        if stream.state() == State::Open && stream.receiver().has_more_credit() {
            self.debts.owe(id, false);
        }
        if stream.may_send() {
            self.schedule.wake(id, self.quantum());
        }
    }

    /// Hands on what arrived ahead of a gap that is closed now, or was left by the step before: one frame a call. True
    /// while there is more for this step.
    pub fn deliver_ahead(
        &mut self,
        now: Instant,
        id: StreamId,
        stream: &mut Stream<'m>,
        sink: &mut dyn Sink<'m>,
    ) -> bool {
        let before = stream.receiver().expected();
        let more = stream.deliver_ahead(now, sink);
        if stream.receiver().expected() > before {
            self.debts.owe(id, false);
        }
        more
    }

    /// What was counted.
    pub fn stats(&self) -> &'m Stats {
        &self.cells.stats
    }

    /// The peer, once there is one: its node, name and domain.
    pub fn peer(&self) -> Option<(NodeId, Name, DomainId)> {
        let keys = self.agreed();
        keys.is_valid().then(|| (keys.node(), Name::from_bytes(keys.peer_name), keys.domain()))
    }

    /// What this node knows of its fabric from now on. What was agreed before stands.
    pub fn set_members(&mut self, members: Option<Rc<Members>>) {
        self.members = members;
    }

    /// Which life of the peer it is with.
    pub fn peer_life(&self) -> Option<LifeId> {
        let keys = self.agreed();
        keys.is_valid().then_some(keys.peer_life)
    }

    /// The life of this end, as it calls itself.
    pub fn life(&self) -> LifeId {
        self.config.life
    }

    /// The last life of the peer that was met here and had the identity of the one before it, but comes from a copy of
    /// its state folder, or from an older one: what was left at the peer before may not be there. The ledger keeps
    /// it, also when others are met after it; zeroes where there was none.
    pub fn fork(&self) -> LifeId {
        self.cells.fork.get()
    }

    /// The largest payload of a TLP, as agreed with the peer.
    pub fn max_payload(&self) -> usize {
        let keys = self.agreed();
        if keys.is_valid() { keys.max_payload as usize } else { self.config.max_payload }
    }

    /// When anything authentic was last heard, on any path; what an earlier card has heard is known to within a second.
    pub fn last_heard(&self) -> Instant {
        self.handshake.last_heard
    }

    /// The smoothed round trip of the slowest path on which something is under way, or would be: who waits for news
    /// waits by it. `None` as long as there was none.
    pub fn longest_round_trip(&self) -> Option<Duration> {
        self.paths.longest_round_trip()
    }

    /// When this card began to listen.
    pub fn listens_since(&self) -> Instant {
        self.handshake.listens_since
    }

    /// Whether nobody is met here and nobody may be: its place can be had by another.
    pub fn is_vacant(&self, now: Instant) -> bool {
        let pending = self.keys_of(Which::Pending);
        let is_young = self.pending_age(now) < base::times::SILENCE;
        self.current.is_none() && !self.config.calls && !(pending.is_valid() && is_young)
    }

    /// Whether there is a path through shared memory from now on, or another one than before. What was in flight on it
    /// is sent again, and it carries TLPs only when it has answered.
    pub fn set_shm(&mut self, now: Instant, is_there: bool) {
        let fates = &mut self.fates;
        self.paths.set_shm(now, is_there, &mut |carried| fates.push_back((carried, false)));
    }

    /// How the path through shared memory is; `None` where there is none.
    pub fn shm_status(&self, now: Instant) -> Option<PathStatus> {
        Some(self.paths.shm()).filter(|path| path.is_there).map(|path| path.status(now))
    }

    /// How a rail of this end is; `None` where it leads to no rail of the peer.
    pub fn rail_status(&self, rail: RailId, now: Instant) -> Option<(PathId, PathStatus)> {
        self.paths.rail_status(rail, now)
    }

    /// The newest incarnation and card of the peer that anything was accepted of, for checkers.
    pub fn newest_peer(&self) -> Option<(Incarnation, CardGeneration)> {
        let keys = self.agreed();
        keys.is_valid().then(|| (keys.incarnation(), self.peer_generation()))
    }

    /// What protects the frames, once there is a peer.
    pub fn cipher(&self) -> Option<Cipher> {
        self.agreed().cipher()
    }

    /// Names the key that this card seals frames with, without telling it: for checkers.
    pub fn key_fingerprint(&self) -> Option<u64> {
        self.current.as_ref().map(|sealing| sealing.fingerprint)
    }

    /// Stream, first number and count of the TLPs in the frame that was built last, for checkers.
    pub fn last_carried(&self) -> (StreamId, u64, u16) {
        let Carried { stream, first, count } = self.last_carried;
        (stream, first, count)
    }

    /// What the frame that was built last acknowledges: the peer's card, and by path the greatest packet. For checkers.
    pub fn last_acked(&self) -> (CardGeneration, &[(PathId, u64)]) {
        (self.peer_generation(), &self.last_acked)
    }

    /// Names the handshake whose keys are in use, for checkers: what openings are proven for.
    pub fn handshake(&self) -> [u8; 32] {
        self.agreed().hash
    }

    /// Names what flows in a stream: the same at both ends, and another one in each course.
    pub(super) fn stream_name(&self, id: StreamId) -> u64 {
        let words = [self.cells.course.get().to_le_bytes(), u64::from(id.0).to_le_bytes()];
        crate::tlp_digest(words.as_flattened())
    }

    /// Whether the keys in use may be used by a copy of this machine.
    fn is_renewing(&self) -> bool {
        self.cells.renewing.get() != 0
    }

    /// What all streams of this course have come to.
    fn totals(&self, streams: &mut dyn Streams<'m>) -> Totals {
        let mut totals = self.cells.ended.get();
        streams.each(&mut |_, stream| totals = totals.with(stream));
        totals
    }

    /// What a stream may send before it is another one's turn.
    fn quantum(&self) -> usize {
        self.agreed().max_frame as usize
    }

    /// What the handshake of this node is bound to.
    fn line(&self) -> Line<'_> {
        let ChannelConfig { ref identity, fabric, group, .. } = self.config;
        Line { identity, fabric, group }
    }

    /// The peer is there.
    fn hear_peer(&mut self, now: Instant) {
        self.handshake.last_heard = now;
        let known = Instant::from_nanos(self.cells.heard_at.get());
        if known == Instant::ZERO || now.since(known) >= HEARD_STEP {
            self.cells.heard_at.set(self.journal, now.as_nanos());
        }
    }

    /// The peer's card is new: what it had received and not committed is lost.
    fn forget_received(&mut self, now: Instant, streams: &mut dyn Streams<'m>) {
        for path in self.paths.iter_mut() {
            path.outgoing.forget_in_flight();
            path.incoming = Incoming::new(now, 0);
            path.ask_anew(now);
        }
        for seen in self.cells.seen.iter().filter(|seen| seen.get() != 0) {
            seen.set(self.journal, 0);
        }
        self.forget_edition();
        self.fates.clear();
        self.sayings.forget_told();
        let quantum = self.quantum();
        streams.each(&mut |id, stream| {
            stream.forget_received();
            self.schedule.wake(id, quantum);
        });
    }

    /// Has a stream opened: said again and again by its claim.
    pub(super) fn say_open(&mut self, id: StreamId, wish: Wish, secret: Option<[u8; 32]>) {
        self.sayings.say(id, Saying::Open(wish, secret));
    }

    /// Has something said of a stream.
    pub(super) fn say_of(&mut self, id: StreamId, what: What) {
        self.sayings.say(id, Saying::Other(what));
    }

    /// The peer speaks of a stream that is not there: it is told so.
    fn say_stray(&mut self, id: StreamId) {
        self.cells.stats.unknown_streams.add(1);
        if id != CONTROL {
            self.sayings.say_stray(id);
        }
    }
}

impl Handshake {
    fn new(now: Instant, last_heard: Instant) -> Self {
        Self {
            attempted: VecDeque::new(),
            called: PathSet::default(),
            is_told: false,
            round_trip: Duration::ZERO,
            answers: None,
            answered_paths: PathSet::default(),
            probe: None,
            anew: false,
            message: Vec::new(),
            to: Destination::default(),
            kind: Kind::Initiation,
            due: PathSet::default(),
            marks: [[0; TAG_LEN]; RAIL_PATHS],
            cookies: [None; RAIL_PATHS],
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

/// Which end a channel of this configuration is.
fn side_of(config: &ChannelConfig) -> Side {
    let (ours, theirs) = (config.identity.id(), config.peer.id());
    let is_first = if ours == theirs { config.calls } else { ours < theirs };
    if is_first { Side::First } else { Side::Second }
}
