//! One path of a channel: packet numbers, acknowledgements, round trips, loss and congestion, in the manner of
//! RFC 9002.
//!
//! Everything here is volatile. A packet number is used once, so an acknowledgement is never ambiguous; what a lost
//! packet carried is sent again under a new number, on whichever path is best then.

use core::time::Duration;
use std::collections::VecDeque;

use base::Instant;
use base::ids::StreamId;
use base::times::{ACK_DELAY, HEARTBEAT, INITIAL_RTT, PROBE_GRANULARITY, PROBE_MAX};

use crate::capacity::{Capacity, Sample};
use crate::record::MAX_RANGES;
use crate::standing::Recent;

/// A packet is lost when one so many later has arrived (RFC 9002 §6.1.1).
const PACKET_THRESHOLD: u64 = 3;
/// A timer that is found so much too late says that we did not run, not that the peer was silent: its answer may lie in
/// the socket.
pub(crate) const LATE: Duration = PROBE_GRANULARITY;
/// How long what has arrived is then read first.
pub(crate) const READ_FIRST: Duration = ACK_DELAY;
/// Congestion window at the start, in bytes.
const INITIAL_WINDOW: usize = 256 << 10;
/// What may always be in flight on a path, in bytes: little enough that whoever shares a narrow way gets his part, and
/// enough that single losses do not starve a fast one. A frame that is larger goes alone.
const MIN_WINDOW: usize = 32 << 10;
/// What may be in flight on a path. The peer's socket has asked for 8 MiB, of which the kernel counts half for its own
/// structures; both directions and both ends' bursts leave a quarter. More would be dropped by ourselves, and 2 MiB
/// fill 10 Gbit/s at a round trip of 1.6 ms.
const MAX_WINDOW: usize = 2 << 20;
/// What may be in flight in shared memory: less than half of a ring, which thus never overflows, since the rest is room
/// for lengths, acknowledgements and what is skipped at its end. It holds what passes while the two ends take turns;
/// more would only be colder.
pub const SHM_WINDOW: usize = 96 << 10;
/// Packets in flight that are remembered.
const MAX_SENT: usize = 4096;
/// Packets taken for lost that are remembered, the oldest forgotten first, should they be acknowledged after all.
const MAX_DOUBTED: usize = 256;
/// Packets under way beside which there are more heartbeats: with them alone, a round trip of ten seconds.
const MAX_HEARTBEATS: usize = 100;
/// Acknowledgements in a row that come so late only where the round trip is longer than was thought.
const LATE_ANSWERS: u32 = 4;
/// Packet numbers behind the largest that are told from replays.
const REPLAY_WINDOW: u64 = 1024;

/// So many questions without an answer are a verdict: one may be lost.
const SILENT: u32 = 2;

/// Ranges of packet numbers, both ends included, highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckRanges {
    ranges: [(u64, u64); MAX_RANGES],
    len: usize,
}

impl AckRanges {
    /// Appends a range below all others; `None` where it is not, or where there are too many.
    pub(crate) fn push(&mut self, low: u64, high: u64) -> Option<()> {
        let below = self.len == 0 || high < self.ranges[self.len - 1].0;
        if low > high || !below || self.len == MAX_RANGES {
            return None;
        }
        self.ranges[self.len] = (low, high);
        self.len += 1;
        Some(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges[..self.len].iter().copied()
    }

    /// The greatest number in them.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.iter().next().map(|(_, high)| high)
    }

    fn contains(&self, number: u64) -> bool {
        self.iter().any(|(low, high)| (low..=high).contains(&number))
    }
}

/// What a packet carried of its stream: `count` TLPs from number `first` on; none for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Carried {
    pub(crate) stream: StreamId,
    pub(crate) first: u64,
    pub(crate) count: u16,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    at: Instant,
    bytes: usize,
    /// Bytes in flight before it.
    before: usize,
    carried: Carried,
}

/// A packet that is taken for lost, and whether that counts against its path.
#[derive(Clone, Copy, Debug)]
struct Doubted {
    packet: Sent,
    counts: bool,
}

/// The sending side of a path.
#[derive(Debug)]
pub(crate) struct Outgoing {
    next_number: u64,
    sent: VecDeque<Sent>,
    /// How many acknowledgements in a row were only of what had been taken for lost, and the shortest time that they
    /// took.
    late: u32,
    late_min: Duration,
    in_flight: usize,
    largest_acked: Option<u64>,
    smoothed: Option<Duration>,
    variance: Duration,
    window: usize,
    /// Between which bounds the window moves.
    bounds: (usize, usize),
    threshold: usize,
    /// Losses of packets sent before this belong to a reduction that has been made.
    recovery_start: Instant,
    loss_deadline: Option<Instant>,
    probes: u32,
    /// Questions without an answer since something was last acknowledged, and when the second of them was asked.
    unanswered: u32,
    asked_at: Instant,
    /// When the last packet was sent that is acknowledged.
    answered: Option<Instant>,
    /// No timer runs out before this, because the one before it was found too late. Once, until an answer or a verdict.
    excused_until: Option<Instant>,
    /// When something was last acknowledged, or the path was last asked whether it is there.
    progress_at: Instant,
    /// Packets taken for lost: what is acknowledged later was only late (RFC 9002 §6.2.1, spurious).
    doubted: VecDeque<Doubted>,
    /// What became of the last packets, by which the path is judged.
    pub(crate) recent: Recent,
    capacity: Capacity,
    /// Losses since the path was made, for the loss ratio.
    pub(crate) lost_packets: u64,
    pub(crate) sent_packets: u64,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self::with_window(INITIAL_WINDOW, (MIN_WINDOW, MAX_WINDOW))
    }

    /// A path through memory, which knows no congestion.
    pub(crate) fn shm() -> Self {
        Self::with_window(SHM_WINDOW, (SHM_WINDOW, SHM_WINDOW))
    }

    fn with_window(window: usize, bounds: (usize, usize)) -> Self {
        Self {
            next_number: 0,
            sent: VecDeque::new(),
            late: 0,
            late_min: Duration::MAX,
            in_flight: 0,
            largest_acked: None,
            smoothed: None,
            variance: INITIAL_RTT / 2,
            window,
            bounds,
            threshold: usize::MAX,
            recovery_start: Instant::ZERO,
            loss_deadline: None,
            probes: 0,
            unanswered: 0,
            asked_at: Instant::ZERO,
            answered: None,
            excused_until: None,
            progress_at: Instant::ZERO,
            doubted: VecDeque::new(),
            recent: Recent::default(),
            capacity: Capacity::new(),
            lost_packets: 0,
            sent_packets: 0,
        }
    }

    /// The number that the next packet has.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Takes the next packet number.
    pub(crate) fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// An ack-eliciting packet has left.
    pub(crate) fn record(&mut self, now: Instant, number: u64, bytes: usize, carried: Carried) {
        self.sent.push_back(Sent { number, at: now, bytes, before: self.in_flight, carried });
        self.in_flight += bytes;
        self.sent_packets += 1;
    }

    /// Whether the congestion window has room for a frame with TLPs.
    pub(crate) fn has_window(&self) -> bool {
        self.in_flight < self.window && self.sent.len() < MAX_SENT
    }

    /// Whether an answer is awaited.
    pub(crate) fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether an idle path is to be asked something: what is under way will be answered soon, unless the way is long.
    pub(crate) fn wants_heartbeat(&self) -> bool {
        let is_long = self.smoothed.is_some_and(|smoothed| smoothed > HEARTBEAT);
        self.sent.is_empty() || (is_long && self.sent.len() < MAX_HEARTBEATS)
    }

    /// Whether a packet of this number or a later one has arrived.
    pub(crate) fn has_answered(&self, number: u64) -> bool {
        self.largest_acked.is_some_and(|largest| largest >= number)
    }

    /// Probes sent since something was last acknowledged: above zero the path is suspect.
    pub(crate) fn probes(&self) -> u32 {
        self.probes
    }

    /// If two questions in a row have no answer, though others had one: when the other end would have sent that to the
    /// second of them.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        let answers_at = self.asked_at + self.smoothed.unwrap_or(INITIAL_RTT) + ACK_DELAY;
        (self.unanswered >= SILENT && self.has_answered(0)).then_some(answers_at)
    }

    /// Whether something has arrived that was sent then or later.
    pub(crate) fn has_answered_since(&self, at: Instant) -> bool {
        self.answered.is_some_and(|answered| answered >= at)
    }

    /// The smoothed round trip, once there was one.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The round trip to expect while nothing waits: what the last answers took, if they came later than was thought.
    pub(crate) fn expected_round_trip(&self) -> Duration {
        self.capacity.round_trip().max(self.lateness())
    }

    /// How long a frame is expected to take to the other end.
    pub(crate) fn expected(&self) -> Duration {
        self.capacity.expected(self.in_flight).max(self.lateness())
    }

    fn lateness(&self) -> Duration {
        if self.late > 0 { self.late_min } else { Duration::ZERO }
    }

    /// Handles an acknowledgement: calls `acked` for what the packets carried. [`Outgoing::detect_loss`] follows.
    /// False, and nothing done, if it is one of packets that were never sent.
    pub(crate) fn handle_ack(
        &mut self,
        now: Instant,
        ranges: &AckRanges,
        delay: Duration,
        acked: &mut dyn FnMut(Carried),
    ) -> bool {
        let Some(largest) = ranges.largest().filter(|largest| *largest < self.next_number) else {
            return false;
        };
        let (mut newest, mut bytes) = (None, 0);
        let mut index = 0;
        while index < self.sent.len() {
            let packet = self.sent[index];
            if packet.number > largest {
                break;
            }
            if ranges.contains(packet.number) {
                self.sent.remove(index);
                self.in_flight -= packet.bytes;
                bytes += packet.bytes;
                self.recent.arrived();
                self.grow(&packet);
                acked(packet.carried);
                newest = Some(packet);
            } else {
                index += 1;
            }
        }
        self.largest_acked = self.largest_acked.max(Some(largest));
        let late = self.acquit(ranges, acked);
        if let Some(packet) = newest.or(late) {
            self.answered = self.answered.max(Some(packet.at));
            (self.probes, self.unanswered) = (0, 0);
            self.excused_until = None;
            self.progress_at = now;
        }
        if let Some(packet) = newest {
            self.late = 0;
            // The delay is that of the largest number, which may have been a mere acknowledgement sent behind this
            // packet.
            let latest = now.since(packet.at);
            self.sample(latest, delay);
            let round_trip = latest.saturating_sub(delay);
            let Sent { at: sent_at, before, .. } = packet;
            self.capacity.sample(now, Sample { sent_at, round_trip, before, acked: bytes }, self.window);
        } else if let Some(packet) = late {
            self.sample_late(now.since(packet.at));
        }
        true
    }

    /// An answer came behind the probe. One says that somebody stood still; if nothing else comes, the way is long.
    fn sample_late(&mut self, latest: Duration) {
        self.late_min = if self.late == 0 { latest } else { self.late_min.min(latest) };
        self.late += 1;
        if self.late >= LATE_ANSWERS {
            (self.smoothed, self.variance) = (Some(self.late_min), self.late_min / 4);
            self.capacity.set_round_trip(self.late_min);
            self.late = 0;
        }
    }

    /// The window grows by what was acknowledged in slow start, else by about a packet a round trip (RFC 9002 §7.3), as
    /// TCP's does: whoever grew faster would take the way from it.
    fn grow(&mut self, packet: &Sent) {
        if packet.at <= self.recovery_start {
            return;
        }
        let is_slow_start = self.window < self.threshold;
        let more = if is_slow_start { packet.bytes } else { packet.bytes * packet.bytes / self.window };
        self.window = (self.window + more).min(self.bounds.1);
    }

    fn sample(&mut self, latest: Duration, delay: Duration) {
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(latest);
            self.variance = latest / 2;
            return;
        };
        let latest = if latest > smoothed + delay { latest - delay } else { latest };
        // What was taken for a long way was a halt.
        if smoothed > PROBE_MAX && latest < smoothed / 4 {
            (self.smoothed, self.variance) = (Some(latest), latest / 2);
            return;
        }
        self.variance = (self.variance * 3 + smoothed.abs_diff(latest)) / 4;
        self.smoothed = Some((smoothed * 7 + latest) / 8);
    }

    /// Declares packets lost that were overtaken (RFC 9002 §6.1).
    pub(crate) fn detect_loss(&mut self, now: Instant, lost: &mut dyn FnMut(Carried)) {
        self.loss_deadline = None;
        let Some(largest) = self.largest_acked else { return };
        let patience = (self.smoothed.unwrap_or(INITIAL_RTT) * 9 / 8).max(PROBE_GRANULARITY);
        while let Some(&packet) = self.sent.front() {
            if packet.number > largest {
                return;
            }
            let overtaken = largest - packet.number >= PACKET_THRESHOLD;
            if !overtaken && packet.at + patience > now {
                self.loss_deadline = Some(packet.at + patience);
                return;
            }
            self.sent.pop_front();
            // What found the path full was lost by who sent too much, and not by the path.
            self.doubt(packet, self.capacity.has_room(packet.before));
            self.shrink(now, packet.at);
            lost(packet.carried);
        }
    }

    /// A packet is taken for lost.
    fn doubt(&mut self, packet: Sent, counts: bool) {
        self.in_flight -= packet.bytes;
        self.lost_packets += 1;
        if counts {
            self.recent.lost();
        }
        if self.doubted.len() == MAX_DOUBTED {
            self.doubted.pop_front();
        }
        self.doubted.push_back(Doubted { packet, counts });
    }

    /// What was taken for lost and is acknowledged was late, because one of the ends did not run or the way is long,
    /// and is no loss of the path's. Returns the last of it.
    fn acquit(&mut self, ranges: &AckRanges, acked: &mut dyn FnMut(Carried)) -> Option<Sent> {
        let mut last = None;
        let before = self.doubted.len();
        self.doubted.retain(|Doubted { packet, counts }| {
            let is_here = ranges.contains(packet.number);
            if is_here {
                acked(packet.carried);
                last = Some(*packet);
                if *counts {
                    self.recent.acquitted();
                }
            }
            !is_here
        });
        self.lost_packets -= (before - self.doubted.len()) as u64;
        last
    }

    /// Once a round trip it is halved (RFC 9002 §7.3.2).
    fn shrink(&mut self, now: Instant, sent_at: Instant) {
        if sent_at > self.recovery_start {
            self.recovery_start = now;
            self.window = (self.window / 2).max(self.bounds.0);
            self.threshold = self.window;
        }
    }

    /// When `handle_timeout` has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.loss_deadline.or_else(|| self.silent_at())?;
        Some(self.excused_until.map_or(deadline, |until| until.max(deadline)))
    }

    /// When the path is silent: of what is in flight nothing was acknowledged for long, whatever was sent meanwhile.
    fn silent_at(&self) -> Option<Instant> {
        let oldest = self.sent.front()?;
        Some(oldest.at.max(self.progress_at) + self.probe_after())
    }

    fn probe_after(&self) -> Duration {
        let smoothed = self.smoothed.unwrap_or(INITIAL_RTT);
        let once = smoothed + (self.variance * 4).max(PROBE_GRANULARITY) + ACK_DELAY;
        // Nothing is given up before it can have been answered.
        (once * (1 << self.probes.min(10))).min(PROBE_MAX.max(smoothed * 3 / 2))
    }

    /// Time has come: true if the path is to be probed. With `all`, everything in flight is given to `lost`, because
    /// another path can carry it; otherwise only the oldest packet.
    pub(crate) fn handle_timeout(&mut self, now: Instant, all: bool, lost: &mut dyn FnMut(Carried)) -> bool {
        let Some(deadline) = self.poll_timeout().filter(|deadline| *deadline <= now) else { return false };
        if self.excused_until.is_none() && now.since(deadline) > LATE {
            self.excused_until = Some(now + READ_FIRST);
            return false;
        }
        self.excused_until = None;
        if self.loss_deadline.is_some() {
            self.detect_loss(now, lost);
            return false;
        }
        if self.unanswered == 0 {
            self.asked_at = now;
        }
        self.unanswered += 1;
        self.probes += 1;
        self.progress_at = now;
        if self.probes > 1 {
            self.shrink(now, now);
        }
        let gone = if all { self.sent.len() } else { 1 };
        for at in 0..gone {
            // There is as much: a timer runs only while something is in flight.
            let Some(packet) = self.sent.pop_front() else { break };
            // Nothing is known of the others: the path is silent.
            self.doubt(packet, at == 0);
            lost(packet.carried);
        }
        true
    }

    /// Everything in flight is given to `lost`: the path is another one from now on, and suspect until it answers.
    pub(crate) fn start_over(&mut self, lost: &mut dyn FnMut(Carried)) {
        self.sent.drain(..).for_each(|packet| lost(packet.carried));
        self.forget_in_flight();
        self.probes = 1;
    }

    /// Nothing speaks against it.
    pub(crate) fn trust(&mut self) {
        (self.probes, self.unanswered) = (0, 0);
    }

    /// Forgets what is in flight, without a verdict: the peer has a new card.
    pub(crate) fn forget_in_flight(&mut self) {
        self.sent.clear();
        self.doubted.clear();
        self.recent = Recent::default();
        self.in_flight = 0;
        self.loss_deadline = None;
        (self.probes, self.unanswered) = (0, 0);
    }
}

/// The receiving side of a path, for one key and one card of the peer.
#[derive(Debug)]
pub(crate) struct Incoming {
    largest: Option<u64>,
    /// Bit `n`: packet number `largest - n` has come.
    seen: [u64; REPLAY_WINDOW as usize / 64],
    /// Received ranges, highest first.
    ranges: VecDeque<(u64, u64)>,
    /// Eliciting packets not acknowledged on this path yet, and when the first of them came.
    pub(crate) unacked: u32,
    pub(crate) unacked_since: Instant,
    /// There are some that were not acknowledged on another path either.
    pub(crate) unacked_elsewhere: bool,
    largest_at: Instant,
    pub(crate) last_heard: Instant,
}

impl Incoming {
    /// Nothing below `seen_below` is fresh: an earlier card has had it, or it is lost and comes again under another
    /// number.
    pub(crate) fn new(now: Instant, seen_below: u64) -> Self {
        Self {
            largest: seen_below.checked_sub(1),
            seen: [if seen_below > 0 { u64::MAX } else { 0 }; REPLAY_WINDOW as usize / 64],
            ranges: VecDeque::new(),
            unacked: 0,
            unacked_since: now,
            unacked_elsewhere: false,
            largest_at: now,
            last_heard: now,
        }
    }

    /// Whether `number` may be new.
    pub(crate) fn is_fresh(&self, number: u64) -> bool {
        let Some(largest) = self.largest else { return true };
        match largest.checked_sub(number) {
            None => true,
            Some(behind) => {
                // Below `REPLAY_WINDOW` it has a bit.
                behind < REPLAY_WINDOW && self.seen[behind as usize / 64] & (1 << (behind % 64)) == 0
            }
        }
    }

    /// Above the largest number that has come: what a successor is told, which then refuses everything below.
    pub(crate) fn seen_below(&self) -> u64 {
        self.largest.map_or(0, |largest| largest + 1)
    }

    /// An authenticated packet with a fresh number has come.
    pub(crate) fn record(&mut self, now: Instant, number: u64) {
        self.last_heard = now;
        let ahead = self.largest.map_or(0, |largest| number.saturating_sub(largest));
        if self.largest.is_none_or(|largest| number > largest) {
            self.shift(ahead);
            self.largest = Some(number);
            self.largest_at = now;
        }
        // Not behind the window: `is_fresh` was asked, or the window began with this packet.
        let behind = self.largest.map_or(0, |largest| largest - number) as usize;
        self.seen[behind / 64] |= 1 << (behind % 64);
    }

    fn shift(&mut self, by: u64) {
        let (words, bits) = ((by / 64).min(self.seen.len() as u64) as usize, (by % 64) as u32);
        self.seen.rotate_right(words);
        self.seen[..words].fill(0);
        if bits > 0 {
            for index in (0..self.seen.len()).rev() {
                let carry = if index > 0 { self.seen[index - 1] >> (64 - bits) } else { 0 };
                self.seen[index] = self.seen[index] << bits | carry;
            }
        }
    }

    /// The packet may be acknowledged, and asks for it if `eliciting`.
    pub(crate) fn acknowledge(&mut self, now: Instant, number: u64, eliciting: bool) {
        let position =
            self.ranges.iter().position(|&(low, _)| low <= number + 1).unwrap_or(self.ranges.len());
        match self.ranges.get_mut(position) {
            Some((low, high)) if (*low..=*high).contains(&number) => {}
            Some((_, high)) if *high + 1 == number => {
                *high = number;
                if position > 0 && self.ranges[position - 1].0 == number + 1 {
                    let upper = self.ranges[position - 1].1;
                    self.ranges[position].1 = upper;
                    self.ranges.remove(position - 1);
                }
            }
            Some((low, _)) if *low == number + 1 => *low = number,
            _ => self.ranges.insert(position, (number, number)),
        }
        self.ranges.truncate(MAX_RANGES);
        if eliciting {
            if self.unacked == 0 {
                self.unacked_since = now;
            }
            self.unacked += 1;
            self.unacked_elsewhere = true;
        }
    }

    /// The acknowledgement to send now on this path, with its delay.
    pub(crate) fn take_ack(&mut self, now: Instant) -> Option<(AckRanges, Duration)> {
        if core::mem::take(&mut self.unacked) == 0 {
            return None;
        }
        self.ack(now)
    }

    /// The same, to send on another path, because this one may lead here only.
    pub(crate) fn take_ack_elsewhere(&mut self, now: Instant) -> Option<(AckRanges, Duration)> {
        if !core::mem::take(&mut self.unacked_elsewhere) {
            return None;
        }
        self.ack(now)
    }

    fn ack(&self, now: Instant) -> Option<(AckRanges, Duration)> {
        let mut ranges = AckRanges::default();
        for &(low, high) in &self.ranges {
            ranges.push(low, high)?;
        }
        Some((ranges, now.since(self.largest_at)))
    }
}

#[cfg(test)]
mod share;
#[cfg(test)]
mod truth;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(list: &[(u64, u64)]) -> AckRanges {
        let mut ranges = AckRanges::default();
        list.iter().for_each(|&(low, high)| ranges.push(low, high).unwrap());
        ranges
    }

    fn carried(first: u64) -> Carried {
        Carried { stream: StreamId(7), first, count: 1 }
    }

    #[test]
    fn overtaken_packets_are_lost_and_acknowledged_ones_are_not() {
        let mut path = Outgoing::new();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        for number in 0..6 {
            assert_eq!(path.take_number(), number);
            path.record(at(0), number, 100, carried(number * 10));
        }
        let (mut acked, mut lost) = (vec![], vec![]);
        let ranges = ranges(&[(5, 5), (3, 3)]);
        path.handle_ack(at(1), &ranges, Duration::ZERO, &mut |carried| acked.push(carried.first));
        path.detect_loss(at(1), &mut |carried| lost.push(carried.first));
        assert_eq!((acked, lost), (vec![30, 50], vec![0, 10, 20]));
        assert!(path.awaits());
    }

    /// What is asked at one moment on two paths may be answered on one of them alone: the other end dies in between.
    #[test]
    fn who_answers_elsewhere_what_was_sent_with_a_question_may_have_died_behind_it() {
        const ROUND_TRIP: Duration = Duration::from_millis(2);
        let mut paths = [Outgoing::new(), Outgoing::new()];
        let mut now = Instant::from_nanos(1);
        let send = |path: &mut Outgoing, now| {
            let number = path.take_number();
            path.record(now, number, 100, Carried::default());
            number
        };
        let answer = |path: &mut Outgoing, now, number| {
            path.handle_ack(now, &ranges(&[(number, number)]), Duration::ZERO, &mut |_| {});
        };
        for path in &mut paths {
            let number = send(path, now);
            answer(path, now + ROUND_TRIP, number);
            send(path, now + ROUND_TRIP);
        }
        // Neither has an answer, and both are asked.
        now = paths[0].poll_timeout().unwrap();
        let asked = paths.each_mut().map(|path| {
            assert!(path.handle_timeout(now, true, &mut |_| {}));
            send(path, now)
        });
        answer(&mut paths[1], now + ROUND_TRIP, asked[1]);
        now = paths[0].poll_timeout().unwrap();
        assert!(paths[0].handle_timeout(now, true, &mut |_| {}));
        let since = paths[0].silent_since().expect("two questions have no answer");
        assert!(!paths[1].has_answered_since(since), "it may have died before the other question came");
        let later = send(&mut paths[1], since);
        answer(&mut paths[1], since + ROUND_TRIP, later);
        assert!(paths[1].has_answered_since(since));
    }

    /// As TCP does: who gave less back, or took more of it again, would push TCP off a way that both use.
    #[test]
    fn a_loss_halves_the_window_and_a_round_trip_gives_a_packet_back() {
        const BYTES: usize = 1_500;
        let mut path = Outgoing::new();
        let mut now = Instant::from_nanos(1);
        let mut fill = |path: &mut Outgoing, first_is_lost: bool| {
            let first = path.next_number();
            while path.has_window() {
                let number = path.take_number();
                path.record(now, number, BYTES, Carried::default());
            }
            now += Duration::from_millis(20);
            let all = ranges(&[(first + u64::from(first_is_lost), path.next_number() - 1)]);
            path.handle_ack(now, &all, Duration::ZERO, &mut |_| {});
            path.detect_loss(now, &mut |_| {});
        };
        let before = path.window;
        fill(&mut path, true);
        let halved = path.window;
        // What was acknowledged beside the loss made it grow first.
        assert!((before / 2..=before).contains(&halved), "{before} {halved}");
        for round_trips in 1..=20 {
            fill(&mut path, false);
            let more = path.window - halved;
            assert!(more <= (round_trips + 1) * BYTES, "{more}");
            assert!(round_trips < 3 || more > round_trips * BYTES / 2, "{more}");
        }
        while path.window > MIN_WINDOW {
            fill(&mut path, true);
        }
        assert!(path.has_window());
    }

    #[test]
    fn who_wakes_late_reads_before_it_judges() {
        let sent = |path: &mut Outgoing| {
            let number = path.take_number();
            path.record(Instant::ZERO, number, 100, carried(number));
        };
        let mut path = Outgoing::new();
        sent(&mut path);
        let late = path.poll_timeout().unwrap() + LATE * 3;
        assert!(!path.handle_timeout(late, false, &mut |_| panic!("its answer may be here")));
        // Nothing was here: now it is a verdict, however late.
        assert_eq!(path.poll_timeout(), Some(late + READ_FIRST));
        let mut lost = 0;
        assert!(path.handle_timeout(late + LATE * 9, false, &mut |_| lost += 1));
        assert_eq!(lost, 1);
    }

    #[test]
    fn what_is_acknowledged_late_was_not_lost() {
        let mut path = Outgoing::new();
        let mut now = Instant::ZERO;
        let mut taken_for_lost = 0;
        for _ in 0..100 {
            let number = path.take_number();
            path.record(now, number, 100, Carried::default());
            // The peer has no processor for so long that a timer runs out first.
            now = path.poll_timeout().unwrap();
            assert!(path.handle_timeout(now, true, &mut |_| taken_for_lost += 1));
            path.handle_ack(now, &ranges(&[(number, number)]), Duration::ZERO, &mut |_| {});
            path.detect_loss(now, &mut |_| {});
        }
        assert_eq!((taken_for_lost, path.lost_packets, path.sent_packets), (100, 0, 100));
        // What nobody acknowledges is.
        let number = path.take_number();
        path.record(now, number, 100, Carried::default());
        now = path.poll_timeout().unwrap();
        path.handle_timeout(now, true, &mut |_| {});
        assert_eq!(path.lost_packets, 1);
    }

    #[test]
    fn who_is_never_acquitted_takes_no_room() {
        let mut path = Outgoing::new();
        for _ in 0..2 * MAX_DOUBTED {
            let number = path.take_number();
            path.record(Instant::ZERO, number, 100, Carried::default());
        }
        let at = path.poll_timeout().unwrap();
        path.handle_timeout(at, true, &mut |_| {});
        assert_eq!((path.doubted.len(), path.lost_packets), (MAX_DOUBTED, 2 * MAX_DOUBTED as u64));
    }

    #[test]
    fn what_a_probe_gave_up_may_have_taken_longer() {
        let mut path = Outgoing::new();
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let (mut now, mut arrived) = (0, 0);
        // Something each 50 ms, answered after 400, on a path of which nothing is known.
        while path.round_trip().is_none() {
            let number = path.take_number();
            path.record(ms(now), number, 100, carried(number));
            now += 50;
            assert!(now < 3_000, "the round trip is never known");
            for _ in 0..8 {
                path.handle_timeout(ms(now), true, &mut |_| {});
            }
            if let Some(sent_at) = now.checked_sub(400) {
                let number = sent_at / 50;
                let ranges = ranges(&[(number, number)]);
                path.handle_ack(ms(now), &ranges, Duration::ZERO, &mut |_| arrived += 1);
                path.detect_loss(ms(now), &mut |_| {});
            }
        }
        assert_eq!(path.round_trip(), Some(Duration::from_millis(400)));
        assert!(arrived >= LATE_ANSWERS && path.probe_after() > Duration::from_millis(400));
        // A halt is no way.
        path.sample(Duration::from_millis(1), Duration::ZERO);
        assert!(path.probe_after() < PROBE_MAX);
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_changes_nothing() {
        let mut path = Outgoing::new();
        let number = path.take_number();
        path.record(Instant::ZERO, number, 100, Carried::default());
        assert!(!path.handle_ack(Instant::ZERO, &ranges(&[(0, 9)]), Duration::ZERO, &mut |_| panic!()));
        assert!(path.awaits());
    }

    #[test]
    fn probes_back_off_and_give_up_the_flight_only_to_another_path() {
        let mut path = Outgoing::new();
        for _ in 0..3 {
            let number = path.take_number();
            path.record(Instant::ZERO, number, 100, carried(number));
        }
        let first = path.poll_timeout().unwrap();
        let mut lost = 0;
        assert!(path.handle_timeout(first, false, &mut |_| lost += 1));
        assert_eq!(lost, 1);
        let second = path.poll_timeout().unwrap();
        assert!(second.since(first) > first.since(Instant::ZERO));
        assert!(path.handle_timeout(second, true, &mut |_| lost += 1));
        assert_eq!((lost, path.awaits()), (3, false));
    }

    proptest! {
        /// The replay window is a set of the numbers that came, as far as it reaches back.
        #[test]
        fn each_packet_number_is_fresh_once(numbers in proptest::collection::vec(0..3000_u64, 1..200)) {
            let mut path = Incoming::new(Instant::ZERO, 0);
            let mut seen = std::collections::BTreeSet::new();
            for number in numbers {
                let largest = seen.last().copied().unwrap_or(0);
                let in_reach = number + REPLAY_WINDOW > largest;
                prop_assert_eq!(path.is_fresh(number), in_reach && !seen.contains(&number));
                if path.is_fresh(number) {
                    path.record(Instant::ZERO, number);
                    path.acknowledge(Instant::ZERO, number, true);
                    seen.insert(number);
                }
            }
            let (ranges, _) = path.take_ack(Instant::ZERO).unwrap();
            for (low, high) in ranges.iter() {
                prop_assert!((low..=high).all(|number| seen.contains(&number)));
            }
        }
    }
}
