//! The paths of a channel: its rails, and the one through memory that two nodes share. Which of them is best, which
//! acknowledgements are due and where they go.

use core::ops::{Deref, DerefMut};
use core::time::Duration;

use base::Instant;
use base::ids::RailId;
use base::times::{ACK_DELAY, HEARTBEAT, RAIL_VERDICT};

use crate::frame::{MAX_FRAME, MAX_RAILS};
use crate::path::{Carried, Incoming, Outgoing};
use crate::record::{Record, Writer};

/// Which rail of a channel.
pub type PathId = u8;

/// Most paths of a channel: its rails, and the one through memory.
pub(crate) const MAX_PATHS: usize = MAX_RAILS + 1;

/// The path through memory that the two nodes share, if they do: the same number at both ends, however many rails they
/// have.
pub const PRIVATE_PATH: PathId = MAX_PATHS as PathId - 1;

/// Packets after which an acknowledgement is sent at once (RFC 9000 §13.2.2).
pub(crate) const ACK_EVERY: u32 = 2;

/// Where in the list of a channel that is.
const PRIVATE: usize = PRIVATE_PATH as usize;

/// The rails of a channel, by id.
pub(crate) type Rails = [Option<PathConfig>; MAX_RAILS];

/// One rail as a channel sees it.
#[derive(Clone, Copy, Debug)]
pub struct PathConfig {
    /// Bytes of the largest frame it takes.
    pub max_frame: usize,
}

/// One path: both directions.
pub(crate) struct Path {
    /// As frames name it.
    pub(crate) id: PathId,
    /// There is something to send over.
    pub(crate) is_there: bool,
    pub(crate) config: PathConfig,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) ping: bool,
    /// A challenge that came over it and shall be answered over it.
    pub(crate) challenged: Option<u64>,
    pub(crate) next_heartbeat: Instant,
}

impl Path {
    pub(crate) fn new(id: PathId, config: PathConfig, seen_below: u64, now: Instant) -> Self {
        let is_private = id == PRIVATE_PATH;
        Self {
            id,
            is_there: false,
            config,
            outgoing: if is_private { Outgoing::private() } else { Outgoing::new() },
            incoming: Incoming::new(now, seen_below),
            ping: false,
            challenged: None,
            next_heartbeat: now,
        }
    }

    pub(crate) fn is_private(&self) -> bool {
        self.id == PRIVATE_PATH
    }

    /// Not known to work: it is missing, or does not answer.
    pub(crate) fn is_suspect(&self) -> bool {
        !self.is_there || self.outgoing.probes() > 0
    }

    /// It is there from now on, or another one than before, or gone: what was in flight on it is `lost`, and it is
    /// suspect until it has answered.
    fn change(&mut self, now: Instant, is_there: bool, lost: &mut dyn FnMut(Carried)) {
        (self.is_there, self.ping) = (is_there, is_there);
        self.next_heartbeat = now + HEARTBEAT;
        self.outgoing.start_over(lost);
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
    pub(crate) fn status(&self, now: Instant) -> (Option<Duration>, bool, f64) {
        let up = self.outgoing.probes() == 0 && now.since(self.incoming.last_heard) < RAIL_VERDICT;
        let ratio = self.outgoing.lost_packets as f64 / self.outgoing.sent_packets.max(1) as f64;
        (self.outgoing.round_trip(), up, ratio)
    }
}

/// All of a channel: the rails, then the private path.
pub(crate) struct Paths(Vec<Path>);

impl Paths {
    /// The paths of a card that refuses on each of them the packets below what `seen_below` says.
    pub(crate) fn new(rails: &Rails, seen_below: impl Fn(PathId) -> u64, now: Instant) -> Self {
        let config = PathConfig { max_frame: MAX_FRAME };
        let all = (0..MAX_PATHS as PathId).map(|id| Path::new(id, config, seen_below(id), now));
        let mut paths = Self(all.collect());
        for (rail, config) in RailId::present(rails) {
            let path = &mut paths.0[rail.index()];
            (path.is_there, path.config) = (true, *config);
        }
        paths
    }

    /// These are the rails from now on. What was in flight on one that is gone is `lost`; one that has come is suspect
    /// until it has answered.
    pub(crate) fn set_rails(&mut self, now: Instant, rails: &Rails, lost: &mut dyn FnMut(Carried)) {
        for (path, config) in self.0.iter_mut().zip(rails) {
            path.config = config.unwrap_or(path.config);
            if path.is_there != config.is_some() {
                path.change(now, config.is_some(), lost);
            }
        }
    }

    /// Whether there is such a rail.
    pub(crate) fn has_rail(&self, rail: RailId) -> bool {
        self.0[rail.index()].is_there
    }

    fn present_rails(&self) -> impl Iterator<Item = &Path> {
        self.0[..MAX_RAILS].iter().filter(|path| path.is_there)
    }

    /// Every rail, as bits.
    pub(crate) fn all_rails(&self) -> u8 {
        self.present_rails().fold(0, |bits, path| bits | 1 << path.id)
    }

    /// Every path that is there, as bits.
    pub(crate) fn all_there(&self) -> u8 {
        self.iter().fold(0, |bits, path| bits | u8::from(path.is_there) << path.id)
    }

    /// The path of this number in our list.
    pub(crate) fn index_of(&self, id: PathId) -> Option<usize> {
        Some(usize::from(id)).filter(|index| *index < self.0.len())
    }

    /// The path through memory, be it there or not.
    pub(crate) fn private(&self) -> &Path {
        &self.0[PRIVATE]
    }

    /// Whether the path through memory is there from now on, or another one than before: what was in flight on it is
    /// `lost`, and it is suspect until it has answered.
    pub(crate) fn set_private(&mut self, now: Instant, is_there: bool, lost: &mut dyn FnMut(Carried)) {
        self.0[PRIVATE].change(now, is_there, lost);
    }

    /// The bytes of the largest frame of the smallest rail: any rail can then replay what another has lost.
    pub(crate) fn max_frame(&self) -> u32 {
        self.present_rails().map(|path| path.config.max_frame).min().unwrap_or(MAX_FRAME) as u32
    }

    /// The path for what may take any: one that answers, of those the private one, else the first.
    pub(crate) fn best(&self) -> usize {
        if !self.private().is_suspect() {
            return PRIVATE;
        }
        let there = (0..self.0.len()).filter(|&path| self.0[path].is_there);
        there.min_by_key(|&path| self.0[path].outgoing.probes()).unwrap_or(0)
    }

    /// The round trip of the best path.
    pub(crate) fn best_round_trip(&self) -> Option<Duration> {
        self.0[self.best()].outgoing.round_trip()
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
        let best = self.best();
        let due = self.iter().position(|path| path.ack_is_due(now));
        if let Some(path) = due {
            return Some(if self.0[path].is_there { path } else { best });
        }
        let owes = |path: &Path| path.is_suspect() && path.incoming.unacked_elsewhere;
        let owed = (0..self.0.len()).any(|path| path != best && owes(&self.0[path]));
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
        for (index, path) in self.0.iter_mut().enumerate() {
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
                writer.record(&Record::Ack { path: id, generation, delay_us, ranges });
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
        for index in 0..self.0.len() {
            if !self.0[index].is_there {
                continue;
            }
            let elsewhere = (0..self.0.len()).any(|other| other != index && !self.0[other].is_suspect());
            let path = &mut self.0[index];
            path.ping |= path.outgoing.handle_timeout(now, elsewhere, lost);
            if path.next_heartbeat <= now {
                path.next_heartbeat = now + HEARTBEAT;
                path.ping |= path.outgoing.wants_heartbeat();
            }
        }
    }
}

impl Deref for Paths {
    type Target = [Path];

    fn deref(&self) -> &[Path] {
        &self.0
    }
}

impl DerefMut for Paths {
    fn deref_mut(&mut self) -> &mut [Path] {
        &mut self.0
    }
}
