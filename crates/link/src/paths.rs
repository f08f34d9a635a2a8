//! The paths of a channel: pairs of a rail of this end and one of the other, and the memory that two nodes share. Which
//! there are, which of them is best, which acknowledgements are due and where they go.
//!
//! Equal rails are a path each. A rail whose id the other end does not have is a path with each rail of that end, since
//! nobody has said which of them it reaches. Where it reaches none, nothing is ever heard on such a path: it is asked
//! ever more seldom, and nothing waits for it. Both ends come to the same pairs once each knows the rails of the other.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

use base::Instant;
use base::ids::RailId;
use base::times::{ACK_DELAY, HEARTBEAT, PROBE_GRANULARITY, RAIL_VERDICT};

use crate::choice::{Choice, RailMode};
use crate::frame::{MAX_FRAME, MAX_RAILS, OVERHEAD};
use crate::path::{Carried, Incoming, Outgoing};
use crate::record::{Record, STREAM_OVERHEAD, Status, Writer};
use crate::standing::Standing;

/// A path of a channel, as one of its ends sees it: a rail of its own and one of the other end, or the memory that the
/// two nodes share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PathId(u8);

/// Paths over rails that there can be.
pub(crate) const RAIL_PATHS: usize = MAX_RAILS * MAX_RAILS;

/// Most paths of a channel: its rails, and the one through memory.
pub(crate) const MAX_PATHS: usize = RAIL_PATHS + 1;

/// The path through memory that the two nodes share, if they do.
pub const SHM_PATH: PathId = PathId(RAIL_PATHS as u8);

impl PathId {
    /// From a rail of this end to one of the other.
    pub const fn new(own: RailId, peer: RailId) -> Self {
        Self(own.get() | peer.get() << 2)
    }

    /// Rail of this end, and of the other one; `None` of the path through memory.
    pub fn rails(self) -> Option<(RailId, RailId)> {
        let rail = |number: u8| RailId::ALL[usize::from(number % MAX_RAILS as u8)];
        (self != SHM_PATH).then(|| (rail(self.0), rail(self.0 >> 2)))
    }

    /// How frames call it that this end sends: bits 0 and 1 are the rail of their sender, 2 and 3 that of their
    /// receiver.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// What [`PathId::number`] says.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        (usize::from(number) < MAX_PATHS).then_some(Self(number))
    }

    /// The same as the other end sees it.
    #[must_use]
    pub fn reversed(self) -> Self {
        self.rails().map_or(self, |(own, peer)| Self::new(peer, own))
    }

    /// Its place in lists by path.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Whether the two rails have the same id.
    fn is_equal(self) -> bool {
        self.rails().is_some_and(|(own, peer)| own == peer)
    }
}

/// Paths, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PathSet(u32);

impl PathSet {
    pub(crate) fn of(path: PathId) -> Self {
        Self(1 << path.0)
    }

    pub(crate) fn insert(&mut self, path: PathId) {
        self.0 |= 1 << path.0;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn contains(self, path: PathId) -> bool {
        self.0 & 1 << path.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(PathId) -> bool) {
        *self = self.iter().filter(|path| keep(*path)).collect();
    }

    pub(crate) fn first(self) -> Option<PathId> {
        (self.0 != 0).then(|| PathId(self.0.trailing_zeros() as u8))
    }

    pub(crate) fn pop(&mut self) -> Option<PathId> {
        let first = self.first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }

    pub(crate) fn iter(mut self) -> impl Iterator<Item = PathId> {
        core::iter::from_fn(move || self.pop())
    }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<T: IntoIterator<Item = PathId>>(paths: T) -> Self {
        let mut set = Self::default();
        paths.into_iter().for_each(|path| set.insert(path));
        set
    }
}

/// Packets after which an acknowledgement is sent at once (RFC 9000 §13.2.2).
pub(crate) const ACK_EVERY: u32 = 2;

/// What a frame needs beside the payload of the largest TLP in it.
const BESIDE_PAYLOAD: usize = OVERHEAD + size_of::<Status>() + STREAM_OVERHEAD + pcie::spec::HEADER_BYTES_MAX;

/// A path on which nothing was ever heard is asked at last each 2^7 heartbeats.
const SELDOM: u32 = 7;

/// The rails of one end, by id.
pub(crate) type Rails = [Option<PathConfig>; MAX_RAILS];

/// Rails as bits.
pub(crate) fn mask(rails: &Rails) -> u8 {
    RailId::present(rails).fold(0, |mask, (rail, _)| mask | bit(rail))
}

fn bit(rail: RailId) -> u8 {
    1 << rail.get()
}

/// The paths between two ends that have these rails, equal ids first. The same at both ends.
pub(crate) fn pairs(own: u8, peer: u8) -> impl Iterator<Item = PathId> {
    let has = |mask: u8, rail: RailId| mask & bit(rail) != 0;
    let equal = RailId::ALL.into_iter().map(|rail| (rail, rail));
    let all = RailId::ALL.into_iter().flat_map(|one| RailId::ALL.map(|other| (one, other)));
    let unequal = all.filter(move |(one, other)| one != other && !(has(peer, *one) && has(own, *other)));
    let there = equal.chain(unequal).filter(move |(one, other)| has(own, *one) && has(peer, *other));
    there.map(|(one, other)| PathId::new(one, other))
}

/// One rail as a channel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConfig {
    /// Bytes of the largest frame it takes.
    pub max_frame: usize,
}

/// One path: both directions.
pub(crate) struct Path {
    pub(crate) id: PathId,
    /// There is something to send over.
    pub(crate) is_there: bool,
    pub(crate) max_frame: usize,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) ping: bool,
    /// A challenge that came over it and shall be answered over it.
    pub(crate) challenged: Option<u64>,
    pub(crate) next_heartbeat: Instant,
    /// The two rails lead to each other: their ids are equal, or something has been heard on it.
    leads: bool,
    /// Heartbeats of a path on which nothing was heard.
    asked: u32,
    standing: Standing,
    /// When it was last heard that it may have failed, and the number of its next packet then.
    doubted: Option<(Instant, u64)>,
    /// Its silence was told.
    is_told: bool,
}

impl Path {
    fn new(id: PathId, max_frame: usize, seen_below: u64, now: Instant) -> Self {
        let is_shm = id == SHM_PATH;
        Self {
            id,
            is_there: false,
            max_frame,
            outgoing: if is_shm { Outgoing::shm() } else { Outgoing::new() },
            incoming: Incoming::new(now, seen_below),
            ping: false,
            challenged: None,
            next_heartbeat: now,
            leads: is_shm || id.is_equal() || seen_below > 0,
            asked: 0,
            standing: Standing::new(),
            doubted: None,
            is_told: false,
        }
    }

    pub(crate) fn is_shm(&self) -> bool {
        self.id == SHM_PATH
    }

    /// Not known to work: it is missing, does not answer, or nobody knows whether its rails lead to each other.
    pub(crate) fn is_suspect(&self) -> bool {
        !self.is_there || !self.leads || self.outgoing.probes() > 0 || self.is_doubted()
    }

    /// It may have failed, and nothing has answered since that was heard.
    fn is_doubted(&self) -> bool {
        self.doubted.is_some_and(|(_, number)| !self.outgoing.has_answered(number))
    }

    /// Others take over until it has answered, which it is asked to do at once. Where it has failed for `certain`, what
    /// is in flight is `lost`.
    fn doubt(&mut self, now: Instant, certain: bool, lost: &mut dyn FnMut(Carried)) {
        self.doubted = Some((now, self.outgoing.next_number()));
        if certain {
            self.outgoing.start_over(lost);
        }
        self.ask(now);
    }

    fn ask(&mut self, now: Instant) {
        self.ping = true;
        self.next_heartbeat = now + HEARTBEAT;
    }

    /// Between two heartbeats of a path that is otherwise idle.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.standing.heartbeat()
    }

    /// It is there from now on, or another one than before, or gone: what was in flight on it is `lost`, and it is
    /// suspect until it has answered.
    fn change(&mut self, now: Instant, is_there: bool, lost: &mut dyn FnMut(Carried)) {
        (self.is_there, self.ping, self.asked) = (is_there, is_there, 0);
        self.challenged = None;
        self.next_heartbeat = now + HEARTBEAT;
        self.outgoing.start_over(lost);
    }

    /// Something authentic has come on it.
    pub(crate) fn heard(&mut self, now: Instant) {
        if !self.leads {
            self.leads = true;
            self.ask_anew(now);
        }
    }

    /// It is what the first exchange with a newcomer takes: nothing better is known.
    pub(crate) fn trust(&mut self) {
        self.ping = false;
        self.outgoing.trust();
    }

    /// The other end may be another one.
    pub(crate) fn ask_anew(&mut self, now: Instant) {
        self.asked = 0;
        self.next_heartbeat = self.next_heartbeat.min(now + HEARTBEAT);
    }

    /// Whether an acknowledgement of what came on it is due.
    pub(crate) fn ack_is_due(&self, now: Instant) -> bool {
        let incoming = &self.incoming;
        incoming.unacked >= ACK_EVERY || (incoming.unacked > 0 && incoming.unacked_since + ACK_DELAY <= now)
    }

    /// The packet may be acknowledged, and asks for it if `eliciting`; `urgent`: at once.
    pub(crate) fn acknowledge(&mut self, now: Instant, number: u64, eliciting: bool, urgent: bool) {
        self.incoming.acknowledge(now, number, eliciting);
        if urgent {
            self.incoming.unacked = self.incoming.unacked.max(ACK_EVERY);
        }
    }

    /// Its round trip, whether it answers, and the share of its packets that were lost.
    pub(crate) fn status(&self, now: Instant) -> PathStatus {
        let is_up = self.outgoing.probes() == 0 && now.since(self.incoming.last_heard) < RAIL_VERDICT;
        let loss = self.outgoing.lost_packets as f64 / self.outgoing.sent_packets.max(1) as f64;
        PathStatus { round_trip: self.outgoing.round_trip(), is_up, loss }
    }

    /// Time has come: what has not arrived is given to `lost`, with `elsewhere` all of it, and who is silent is asked.
    /// Whether others are to be asked as well, so that it is known whose silence that is.
    fn handle_timeout(&mut self, now: Instant, elsewhere: bool, lost: &mut dyn FnMut(Carried)) -> bool {
        let is_silent = self.outgoing.handle_timeout(now, elsewhere, lost) && self.leads;
        self.ping |= is_silent;
        let asks = is_silent && !self.is_told && self.outgoing.has_answered(0);
        if self.next_heartbeat > now {
            return asks;
        }
        self.ping |= self.outgoing.wants_heartbeat();
        self.next_heartbeat = now + self.heartbeat() * (1 << self.asked);
        if !self.leads {
            self.asked = (self.asked + 1).min(SELDOM);
        }
        asks
    }
}

/// What there is to say of a path.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PathStatus {
    /// Smoothed, once there was one.
    pub round_trip: Option<Duration>,
    /// Whether it answers.
    pub is_up: bool,
    /// The share of its packets that were lost.
    pub loss: f64,
}

/// Rails that may have failed: of this end, of the other one, or a pair of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    pub(crate) own: Option<RailId>,
    pub(crate) peer: Option<RailId>,
    /// Who says so knows it.
    pub(crate) certain: bool,
}

impl Doubt {
    fn is_about(&self, own: RailId, peer: RailId) -> bool {
        self.own.is_none_or(|it| it == own) && self.peer.is_none_or(|it| it == peer)
    }
}

/// All of a channel: the path through shared memory, then the pairs of rails, those of equal ids first.
pub(crate) struct Paths {
    list: Vec<Path>,
    own: Rails,
    /// As far as anybody has said how large frames may be that get there.
    said: Rails,
    /// Those on which the driver knows where the peer is; `None`: all.
    found: Option<PathSet>,
    choice: Choice,
    /// Rails of this end that have no carrier, as bits.
    lost_carriers: u8,
}

/// A rail that was doubted is not doubted again for so long.
const DOUBT_AGAIN: Duration = Duration::from_secs(1);

/// Where in the list the path through shared memory is.
const SHM: usize = 0;

/// A path that rests is used all the same where any other takes so many times as long. Of one that has lost packets the
/// round trips are compared, and not what waits on one that is full.
const FAR: u32 = 8;

impl Paths {
    /// The paths of a card with these rails, whose peer has `peer` as far as that is known; `seen_below` says of each
    /// below which number packets are refused.
    pub(crate) fn new(
        (own, said): (&Rails, &Rails),
        peer: u8,
        seen_below: impl Fn(PathId) -> u64,
        now: Instant,
    ) -> Self {
        let shm = Path::new(SHM_PATH, MAX_FRAME, seen_below(SHM_PATH), now);
        let mut paths = Self {
            list: vec![shm],
            own: *own,
            said: *said,
            found: None,
            choice: Choice::default(),
            lost_carriers: 0,
        };
        for id in pairs(mask(own), peer) {
            let at = paths.obtain(id, seen_below(id), now);
            paths.list[at].is_there = true;
        }
        paths
    }

    /// These are the rails of this end from now on.
    pub(crate) fn set_own(&mut self, own: &Rails) {
        self.own = *own;
    }

    /// So much is said of those of the other end from now on.
    pub(crate) fn set_said(&mut self, said: &Rails) {
        self.said = *said;
    }

    /// How several rails are used.
    pub(crate) fn set_mode(&mut self, mode: RailMode) {
        self.choice.mode = mode;
    }

    /// These rails of this end have no carrier from now on: what is in flight there is `lost`, and others take over
    /// until something is answered there all the same.
    pub(crate) fn set_lost_carriers(&mut self, now: Instant, rails: u8, lost: &mut dyn FnMut(Carried)) {
        let changed = core::mem::replace(&mut self.lost_carriers, rails) ^ rails;
        for path in &mut self.list {
            match path.id.rails() {
                Some((own, _)) if changed & rails & bit(own) != 0 => path.doubt(now, true, lost),
                Some((own, _)) if changed & bit(own) != 0 => path.ask(now),
                _ => {}
            }
        }
    }

    /// These rails may have failed. One that was doubted just now is not doubted again, so that nobody talks it down
    /// for good.
    pub(crate) fn doubt(&mut self, now: Instant, doubt: Doubt, lost: &mut dyn FnMut(Carried)) {
        for path in &mut self.list {
            let is_it = path.id.rails().is_some_and(|(own, peer)| doubt.is_about(own, peer));
            let is_new = path.doubted.is_none_or(|(since, _)| now.since(since) >= DOUBT_AGAIN);
            if is_it && is_new && path.is_there && path.leads {
                path.doubt(now, doubt.certain, lost);
            }
        }
    }

    /// Rails of the other end that have become silent since the last call, while it answers `elsewhere`, as bits.
    pub(crate) fn take_silent(&mut self, elsewhere: bool) -> u8 {
        let mut silent = 0;
        for at in SHM + 1..self.len() {
            let path = &self.list[at];
            if path.outgoing.probes() == 0 {
                self.list[at].is_told = false;
            } else if let Some((_, rail)) = path.id.rails().filter(|_| !path.is_told)
                && self.is_silent(path, |(_, other)| other == rail, elsewhere)
            {
                self.list[at].is_told = true;
                silent |= bit(rail);
            }
        }
        silent
    }

    /// Whether nothing is answered over this rail of this end where something was before, but `elsewhere`.
    pub(crate) fn is_silent_on(&self, own: RailId, elsewhere: bool) -> bool {
        let is_of = |path: &&Path| path.id.rails().is_some_and(|(rail, _)| rail == own);
        self.list.iter().filter(is_of).any(|path| self.is_silent(path, |(rail, _)| rail == own, elsewhere))
    }

    /// Whether a path is silent because of a rail, over which those lead of which `is_of` says so: something that was
    /// sent on others is acknowledged, so late that the answer to the second of two questions had to come before, and
    /// nothing over that rail. Who answers nowhere is dead, or has just begun; who dies between two questions of one
    /// moment has answered one of them.
    fn is_silent(&self, path: &Path, is_of: impl Fn((RailId, RailId)) -> bool, elsewhere: bool) -> bool {
        let Some(since) = path.outgoing.silent_since().filter(|_| path.is_there && path.leads) else {
            return false;
        };
        let answers = |path: &&Path| !path.is_suspect() && path.outgoing.has_answered_since(since);
        let mut answering = self.list.iter().filter(answers).map(|path| path.id.rails().is_some_and(&is_of));
        let on_others = answering.next().map(|first| !first && answering.all(|is_of| !is_of));
        on_others.unwrap_or(!elsewhere)
    }

    /// The driver knows where the peer is on these paths: elsewhere it sends no TLPs.
    pub(crate) fn set_found(&mut self, found: PathSet) {
        self.found = Some(found);
    }

    fn is_found(&self, id: PathId) -> bool {
        self.found.is_none_or(|found| found.contains(id))
    }

    /// Which paths there are follows from the rails of both ends, `peer` being those of the other one, and from the
    /// largest payload that was agreed. What was in flight on one that is gone is `lost`; one that has come carries
    /// TLPs when it has answered.
    pub(crate) fn pair(
        &mut self,
        now: Instant,
        (peer, payload): (u8, usize),
        seen_below: impl Fn(PathId) -> u64,
        lost: &mut dyn FnMut(Carried),
    ) {
        let all: PathSet = pairs(mask(&self.own), peer).collect();
        let carries = |id: &PathId| self.largest(*id).is_some_and(|most| most >= BESIDE_PAYLOAD + payload);
        let large: PathSet = all.iter().filter(carries).collect();
        // Where all are small, small TLPs still pass.
        let wanted = if large.is_empty() { all } else { large };
        for id in wanted.iter() {
            self.obtain(id, seen_below(id), now);
        }
        for at in SHM + 1..self.list.len() {
            let (id, is_there) = (self.list[at].id, wanted.contains(self.list[at].id));
            let max_frame = self.largest(id).unwrap_or(self.list[at].max_frame);
            let path = &mut self.list[at];
            path.max_frame = max_frame;
            if path.is_there != is_there {
                path.change(now, is_there, lost);
            }
        }
    }

    /// The largest frame between two rails, if this end has its one.
    fn largest(&self, id: PathId) -> Option<usize> {
        let (own, peer) = id.rails()?;
        let own = self.own[own.index()]?.max_frame;
        Some(self.said[peer.index()].map_or(own, |said| own.min(said.max_frame)))
    }

    /// Where in the list a path is; one that was not there is, though nothing may be sent over it yet.
    pub(crate) fn obtain(&mut self, id: PathId, seen_below: u64, now: Instant) -> usize {
        if let Some(at) = self.index_of(id) {
            return at;
        }
        let rank = |id: PathId| (id != SHM_PATH, !id.is_equal(), id.number());
        let at = self.list.partition_point(|path| rank(path.id) < rank(id));
        let max_frame = self.largest(id).unwrap_or(MAX_FRAME);
        let mut path = Path::new(id, max_frame, seen_below, now);
        if id.rails().is_some_and(|(own, _)| self.lost_carriers & bit(own) != 0) {
            path.doubt(now, true, &mut drop);
        }
        self.list.insert(at, path);
        at
    }

    /// Whether a frame can come and go on it.
    pub(crate) fn may_be(&self, id: PathId) -> bool {
        id.rails().is_none_or(|(own, _)| self.own[own.index()].is_some())
    }

    /// What there is to say of a rail of this end: which path from it is the best, and what that does; `None` if it
    /// leads nowhere.
    pub(crate) fn rail_status(&self, rail: RailId, now: Instant) -> Option<(PathId, PathStatus)> {
        let is_its = |path: &&Path| path.id.rails().is_some_and(|(own, _)| own == rail);
        let leading = self.iter().filter(|path| path.is_there && path.leads).filter(is_its);
        let statuses = leading.map(|path| (path.id, path.status(now)));
        statuses.reduce(|best, it| if best.1.is_up { best } else { it })
    }

    /// Every path that is there.
    pub(crate) fn all_there(&self) -> PathSet {
        self.iter().filter(|path| path.is_there).map(|path| path.id).collect()
    }

    /// Where in the list a path is.
    pub(crate) fn index_of(&self, id: PathId) -> Option<usize> {
        self.iter().position(|path| path.id == id)
    }

    /// The path through memory, be it there or not.
    pub(crate) fn shm(&self) -> &Path {
        &self.list[SHM]
    }

    /// Whether the path through memory is there from now on, or another one than before: what was in flight on it is
    /// `lost`, and it is suspect until it has answered.
    pub(crate) fn set_shm(&mut self, now: Instant, is_there: bool, lost: &mut dyn FnMut(Carried)) {
        self.list[SHM].change(now, is_there, lost);
    }

    /// The bytes of the largest frame of the smallest path between rails: any of them can then replay what another has
    /// lost.
    pub(crate) fn max_frame(&self) -> u32 {
        let own = self.own.iter().flatten().map(|rail| rail.max_frame);
        let there = self.iter().filter(|path| path.is_there && !path.is_shm());
        let least = there.map(|path| path.max_frame).min().or_else(|| own.min());
        least.unwrap_or(MAX_FRAME) as u32
    }

    /// The path for a frame with TLPs: shared memory, else one of those that answer and do not rest, as the mode says.
    pub(crate) fn choose(&mut self, now: Instant) -> Option<usize> {
        let is_single = self.list.len() <= SHM + 2;
        if is_single || !self.shm().is_suspect() {
            return self.best();
        }
        self.judge(now);
        let (list, found) = (&self.list, self.found);
        let is_found = |id: PathId| found.is_none_or(|found| found.contains(id));
        let answers = |(_, path): &(usize, &Path)| !path.is_suspect() && is_found(path.id);
        let answering = list.iter().enumerate().filter(answers);
        let whole = answering.clone().filter(|(_, path)| !path.outgoing.recent.is_lossy());
        let rested = |path: &Path| !path.standing.rests();
        // A rest is for what has failed lately while there is another one: not one that is hardly better than none. But
        // one that loses what it carries is no help to one that is merely full.
        let is_dear = |path: &Path| {
            let takes = match path.standing.has_lost() {
                true => Outgoing::expected_round_trip,
                false => Outgoing::expected,
            };
            let others = whole.clone().filter(|(_, other)| rested(other));
            let least = others.map(|(_, other)| takes(&other.outgoing)).min();
            least.is_some_and(|least| least > takes(&path.outgoing) * FAR + PROBE_GRANULARITY)
        };
        let fit = whole.clone().filter(|(_, path)| rested(path) || is_dear(path));
        fn parts((at, path): (usize, &Path)) -> (usize, PathId, &Outgoing) {
            (at, path.id, &path.outgoing)
        }
        let chosen = self.choice.choose(fit.map(parts)).or_else(|| self.choice.choose(answering.map(parts)));
        chosen.or_else(|| self.best())
    }

    /// Whether a path answers where the peer can be reached, does not rest, and has no reason to.
    fn is_good(&self, at: usize) -> bool {
        let path = &self.list[at];
        let is_well = !path.is_suspect() && !path.standing.rests() && !path.outgoing.recent.is_lossy();
        is_well && self.is_found(path.id)
    }

    /// Looks which paths are to rest, and which have rested.
    fn judge(&mut self, now: Instant) {
        let mut good = (SHM + 1..self.len()).filter(|&at| self.is_good(at)).count();
        for at in SHM + 1..self.len() {
            let is_good = self.is_good(at);
            let path = &mut self.list[at];
            if !path.is_there || !path.leads {
                continue;
            }
            let is_silent = path.outgoing.probes() > 0;
            let beside = good > usize::from(is_good);
            path.standing.judge(now, is_silent, &mut path.outgoing.recent, beside);
            good -= usize::from(is_good && path.standing.rests());
        }
    }

    /// The path for what may take any, if there is one: shared memory if it answers, else the one that was chosen last,
    /// else the first that answers and does not rest. Where none answers, one on which the peer can be reached.
    pub(crate) fn best(&self) -> Option<usize> {
        if !self.shm().is_suspect() {
            return Some(SHM);
        }
        let chosen = self.choice.last().and_then(|id| self.index_of(id));
        if let Some(at) = chosen.filter(|&at| self.is_good(at)) {
            return Some(at);
        }
        let there = (0..self.len()).filter(|&path| self[path].is_there);
        let is_found = |path: usize| self.is_found(self[path].id);
        let rests = |path: usize| self[path].standing.rests();
        there.min_by_key(|&at| (!is_found(at), !self[at].leads, self[at].outgoing.probes(), rests(at)))
    }

    /// The round trip of the best path.
    pub(crate) fn best_round_trip(&self) -> Option<Duration> {
        self[self.best()?].outgoing.round_trip()
    }

    /// The longest round trip of those on which something is under way, or would be.
    pub(crate) fn longest_round_trip(&self) -> Option<Duration> {
        let awaiting = self.iter().filter(|path| path.outgoing.awaits() && !path.is_suspect());
        let longest = awaiting.filter_map(|path| path.outgoing.round_trip()).max();
        longest.max(self.best_round_trip())
    }

    /// After what time a probe on all paths counts as unanswered.
    pub(crate) fn verdict_after(&self) -> Duration {
        let round_trips = self.iter().filter_map(|path| path.outgoing.round_trip());
        round_trips.max().map_or(RAIL_VERDICT, |longest| RAIL_VERDICT.max(longest * 3))
    }

    /// Acknowledgements go back on the path they are about, so that a dead path cannot hide that another one works.
    /// Those about a path that seems dead go on the best one too: it may be dead in one direction only, and the best
    /// one may be deader.
    pub(crate) fn to_acknowledge(&self, now: Instant) -> Option<usize> {
        let best = self.best()?;
        let due = self.iter().position(|path| path.ack_is_due(now));
        if let Some(path) = due {
            return Some(if self[path].is_there { path } else { best });
        }
        let owes = |path: &Path| path.is_suspect() && path.incoming.unacked_elsewhere;
        let owed = (0..self.len()).any(|path| path != best && owes(&self[path]));
        owed.then_some(best)
    }

    /// Writes the acknowledgements that a frame on path `on` carries, of packets of the peer's card `generation`; tells
    /// `acked` the greatest of each path.
    pub(crate) fn write_acks(
        &mut self,
        now: Instant,
        on: usize,
        generation: u64,
        writer: &mut Writer<'_>,
        acked: &mut Vec<(PathId, u64)>,
    ) {
        for (index, path) in self.list.iter_mut().enumerate() {
            let is_suspect = path.is_suspect();
            let (id, incoming) = (path.id, &mut path.incoming);
            if !path.is_there {
                incoming.unacked = 0;
            }
            let ack = match index == on {
                true => incoming.take_ack(now),
                false if is_suspect => incoming.take_ack_elsewhere(now),
                false => None,
            };
            if let Some((ranges, delay)) = ack {
                let delay_us = u16::try_from(delay.as_micros()).unwrap_or(u16::MAX);
                acked.extend(ranges.largest().map(|largest| (id, largest)));
                let path = id.reversed().number();
                writer.record(&Record::Ack { path, generation, delay_us, ranges });
            }
        }
    }

    /// When a path is to be looked at; whether an acknowledgement is due counts only for who `is_sending`.
    pub(crate) fn poll_timeout(&self, is_sending: bool) -> Option<Instant> {
        let deadlines = self.iter().flat_map(|path| {
            let ack =
                (is_sending && path.incoming.unacked > 0).then(|| path.incoming.unacked_since + ACK_DELAY);
            let rest = path.is_there.then_some([path.outgoing.poll_timeout(), Some(path.next_heartbeat)]);
            rest.into_iter().flatten().chain([ack]).flatten()
        });
        deadlines.min()
    }

    /// Time has come: what has not arrived is given to `lost`, and who is silent is asked.
    pub(crate) fn handle_timeout(&mut self, now: Instant, lost: &mut dyn FnMut(Carried)) {
        let mut asks = false;
        for index in 0..self.len() {
            let elsewhere = (0..self.len()).any(|other| other != index && !self[other].is_suspect());
            if self[index].is_there {
                asks |= self[index].handle_timeout(now, elsewhere, lost);
            }
        }
        // Whether the other end is there at all is found out as soon as that a rail is silent.
        for path in self.list.iter_mut().filter(|path| asks && !path.is_suspect()) {
            path.ping = true;
        }
        if self.list.len() > SHM + 2 {
            self.judge(now);
        }
    }
}

impl Deref for Paths {
    type Target = [Path];

    fn deref(&self) -> &[Path] {
        &self.list
    }
}

impl DerefMut for Paths {
    fn deref_mut(&mut self) -> &mut [Path] {
        &mut self.list
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn both_ends_come_to_the_same_paths_and_each_rail_has_one() {
        for (own, peer) in (1..16_u8).flat_map(|own| (1..16_u8).map(move |peer| (own, peer))) {
            let ours: BTreeSet<PathId> = pairs(own, peer).collect();
            let theirs: BTreeSet<PathId> = pairs(peer, own).map(PathId::reversed).collect();
            assert_eq!(ours, theirs, "{own:b} {peer:b}");
            let rails = || ours.iter().filter_map(|path| path.rails());
            let (own_used, peer_used) =
                rails().fold((0, 0), |(one, other), (a, b)| (one | 1 << a.get(), other | 1 << b.get()));
            assert_eq!((own_used, peer_used), (own, peer), "each has a path");
            let equal = rails().filter(|(one, other)| one == other).count();
            assert_eq!(equal, (own & peer).count_ones() as usize);
            assert!(own != peer || ours.len() == equal, "no others where ends are alike");
            let lead = pairs(own, peer).take(equal).all(PathId::is_equal);
            assert!(lead, "equal ids come first");
        }
        assert_eq!((pairs(0, 15).count(), pairs(15, 0).count()), (0, 0));
    }

    #[test]
    fn where_none_answers_one_is_taken_on_which_the_peer_can_be_reached() {
        let rail = Some(PathConfig { max_frame: 1500 });
        let rails = [rail, rail, None, None];
        let mut paths = Paths::new((&rails, &rails), 0b11, |_| 0, Instant::ZERO);
        let path = |rail: usize| PathId::new(RailId::ALL[rail], RailId::ALL[rail]);
        let best = |paths: &Paths| paths.best().map(|at| paths[at].id);
        assert_eq!(best(&paths), Some(path(0)));
        paths.set_found(PathSet::of(path(1)));
        assert_eq!(best(&paths), Some(path(1)));
        paths.set_found(PathSet::default());
        assert_eq!(best(&paths), Some(path(0)), "it is known on none");
    }

    #[test]
    fn a_path_has_one_number_at_each_end() {
        let path = PathId::new(RailId::ALL[1], RailId::ALL[3]);
        assert_eq!((path.number(), path.reversed().number()), (0b1101, 0b0111));
        assert_eq!(path.rails(), Some((RailId::ALL[1], RailId::ALL[3])));
        assert_eq!((SHM_PATH.rails(), SHM_PATH.reversed()), (None, SHM_PATH));
        assert_eq!((PathId::from_number(16), PathId::from_number(17)), (Some(SHM_PATH), None));
    }
}
