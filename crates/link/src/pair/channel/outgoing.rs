//! Frames go out. Nothing here changes the ledger: what is sent has been committed.

use base::Instant;
use base::ids::{CardGeneration, Incarnation, LoanGeneration, StreamId};

use super::{CONTROL, Channel, Streams};
use crate::frame::{HEADER_LEN, Header, Kind, OVERHEAD, Prefix, Route, TAG_LEN};
use crate::handshake::{Destination, mark};
use crate::pair::cookies::{self, COOKIE_LIFE, MARKS_LEN};
use crate::path::Carried;
use crate::paths::{PathId, RAIL_PATHS};
use crate::record::{Record, STATUS_RECORD, STREAM_OVERHEAD, Writer};
use crate::seal::Nonce;
use crate::stream::{Sink, Stream};
use crate::transmit::{FrameBuffer, Transmit};

/// Statuses of other streams in one frame, beside TLPs and alone.
const STATUSES_BESIDE: usize = 4;
const STATUSES: usize = 64;

/// What a frame carries beside acknowledgements. Decided first, encoded afterwards.
struct Plan {
    path: usize,
    /// Whose status and TLPs; control: of none.
    stream: StreamId,
    hello: bool,
    ping: bool,
    /// It carries records about streams.
    control: bool,
    /// It carries this and nothing else: it goes to who may be a stranger, or under keys that others may have.
    alone: Option<Record<'static>>,
    /// The range of numbers to take TLPs from.
    tlps: Option<(u64, u64)>,
}

impl Plan {
    fn on(path: usize) -> Self {
        Self { path, stream: CONTROL, hello: false, ping: false, control: false, alone: None, tlps: None }
    }
}

impl<'m> Channel<'m> {
    /// Builds the next frame where `room` says, which holds the largest one. None when there is nothing to send now.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        room: &mut (impl FrameBuffer + ?Sized),
        streams: &mut dyn Streams<'m>,
    ) -> Option<Transmit> {
        if let Some(path) = self.handshake.due.pop() {
            return Some(self.write_handshake(now, path, room.of(path)));
        }
        self.current.as_ref()?;
        self.settle(streams);
        let plan = if self.is_renewing() { self.plan_renewal()? } else { self.plan(now, streams)? };
        let out = room.of(self.paths[plan.path].id);
        Some(self.write_sealed(now, &plan, out, streams))
    }

    /// Who does not call has the peer call: that there have to be new keys.
    fn plan_renewal(&mut self) -> Option<Plan> {
        let path = self.greeting.take_path().and_then(|path| self.paths.index_of(path))?;
        let is_asked = !self.config.calls && self.paths[path].is_there;
        is_asked.then_some(Plan { alone: Some(Record::Renew), ..Plan::on(path) })
    }

    fn plan(&mut self, now: Instant, streams: &mut dyn Streams<'m>) -> Option<Plan> {
        if let Some((id, challenge)) = self.challenges.pop_front()
            && let Some(path) = self.paths.index_of(id).filter(|_| self.paths.may_be(id))
        {
            return Some(Plan { alone: Some(Record::Challenge(challenge)), ..Plan::on(path) });
        }
        let best = self.paths.best()?;
        if let Some(at) = self.twin.take() {
            return Some(Plan { alone: Some(Record::Twin(at)), ..Plan::on(best) });
        }
        if let Some(notice) = self.notices.pop_front() {
            return Some(Plan { alone: Some(Record::Notice(notice)), ..Plan::on(best) });
        }
        if let Some(path) = self.greeting.take_path() {
            // A path that has gone meanwhile need not be greeted: the others are.
            let path = self.paths.index_of(path).filter(|&path| self.paths[path].is_there);
            return Some(Plan { hello: true, ..Plan::on(path.unwrap_or(best)) });
        }
        if let Some(path) = self.paths.iter().position(|path| path.ping && path.is_there) {
            self.paths[path].ping = false;
            // A probe is better than a ping if there is something to send anyway.
            let tlps = if best == path { self.next_tlps(streams) } else { None };
            return Some(Plan { ping: true, ..Plan::on(path).with(tlps) });
        }
        if let Some(plan) = self.plan_ping(best, streams) {
            return Some(plan);
        }
        if let Some(path) = self.paths.iter().position(|path| path.challenged.is_some() && path.is_there) {
            return Some(Plan::on(path));
        }
        let has_sayings = !self.sayings.is_empty();
        if has_sayings && !self.was_control {
            return Some(Plan { control: true, ..Plan::on(best) });
        }
        let path = self.paths.choose(now)?;
        let has_window = self.paths[path].outgoing.has_window();
        if let Some(tlps) = if has_window { self.next_tlps(streams) } else { None } {
            return Some(Plan::on(path).with(Some(tlps)));
        }
        if has_sayings {
            return Some(Plan { control: true, ..Plan::on(best) });
        }
        self.plan_acknowledgement(now, best)
    }

    /// A stream's peer is asked for its status, in a frame of that stream.
    fn plan_ping(&mut self, best: usize, streams: &mut dyn Streams<'m>) -> Option<Plan> {
        while let Some(id) = self.pings.pop_front() {
            if let Some((stream, _)) = streams.stream(id) {
                return Some(Plan { ping: true, stream: id, tlps: stream.next_range(), ..Plan::on(best) });
            }
        }
        None
    }

    fn plan_acknowledgement(&mut self, now: Instant, best: usize) -> Option<Plan> {
        let is_answer = self.greeting.answer.is_some();
        let path = if is_answer { Some(best) } else { self.paths.to_acknowledge(now) };
        // Whatever asks for a status asks for an acknowledgement too, and both go together if they can.
        let waits = self.paths.iter().any(|path| path.is_there && path.incoming.unacked > 0);
        let path = path.or_else(|| (self.debts.is_due() && !waits).then_some(best))?;
        let stream = self.debts.first().unwrap_or(CONTROL);
        Some(Plan { stream, ..Plan::on(path) })
    }

    /// The stream whose turn it is, and what it sends.
    fn next_tlps(&mut self, streams: &mut dyn Streams<'m>) -> Option<(StreamId, (u64, u64))> {
        let quantum = self.quantum();
        while let Some(id) = self.schedule.next(quantum) {
            if let Some(range) = streams.stream(id).and_then(|(stream, _)| stream.next_range()) {
                return Some((id, range));
            }
            self.schedule.sleep(id);
        }
        None
    }

    /// The message at hand of the handshake; an answer says to which attempt, so that only one has to be tried. What
    /// else a header could say is zero.
    fn write_handshake(&mut self, now: Instant, path: PathId, out: &mut [u8]) -> Transmit {
        let answers = self.answered_call();
        let number = self.handshake.answers.filter(|_| answers.is_some()).map_or(0, |attempt| attempt.number);
        let (kind, to) = (self.handshake.kind, self.handshake.to);
        let header = self.header(kind, path, CONTROL, to, self.config.incarnation, (0, number));
        Header { card_generation: CardGeneration(0), ..header }.write(out);
        let message = &self.handshake.message;
        let (end, peer) = (HEADER_LEN + message.len(), self.config.peer);
        out[HEADER_LEN..end].copy_from_slice(message);
        mark(&peer, &mut out[..end + TAG_LEN]);
        let len = if kind == Kind::Initiation { end + MARKS_LEN } else { end + TAG_LEN };
        if kind == Kind::Initiation {
            self.mark_by_cookie(now, path, &mut out[..len]);
        }
        self.cells.stats.sent_frames.add(1);
        Transmit { path, len, is_handshake: true, answers, challenge: None, has_tlps: false, is_last: false }
    }

    /// The last mark of a first message: zeroes for whom nobody has given a cookie.
    fn mark_by_cookie(&mut self, now: Instant, path: PathId, frame: &mut [u8]) {
        let len = frame.len();
        frame[len - TAG_LEN..].fill(0);
        // Handshakes go over rails only.
        let at = path.index() % RAIL_PATHS;
        self.handshake.marks[at] = cookies::mark_in(frame);
        let cookie = self.handshake.cookies[at].filter(|(_, at)| now.since(*at) < COOKIE_LIFE);
        if let Some((cookie, _)) = cookie {
            cookie.mark(frame);
        }
    }

    fn header(
        &self,
        kind: Kind,
        path: PathId,
        stream: StreamId,
        to: Destination,
        incarnation: Incarnation,
        (key_id, packet_number): (u8, u64),
    ) -> Header {
        let (own, peer) = path.rails().unwrap_or_default();
        Header {
            kind,
            key_id,
            route: Route::START,
            fabric: self.config.fabric,
            destination: Prefix { rail: peer, domain: to.domain },
            source: Prefix { rail: own, domain: self.config.domain },
            group: self.config.group,
            channel: to.channel,
            stream,
            loan_generation: LoanGeneration(0),
            incarnation,
            card_generation: self.config.generation,
            packet_number,
        }
    }

    fn write_sealed(
        &mut self,
        now: Instant,
        plan: &Plan,
        out: &mut [u8],
        streams: &mut dyn Streams<'m>,
    ) -> Transmit {
        self.last_acked.clear();
        let limit = self.frame_limit(plan.path).min(out.len());
        let challenge = match plan.alone {
            Some(Record::Challenge(challenge)) => Some(challenge),
            _ => None,
        };
        let stream = if plan.stream == CONTROL { None } else { streams.stream(plan.stream) };
        let of_stream = stream.map(|(stream, _)| (stream.status(), stream.generation()));
        let (status, generation) = of_stream.unzip();
        let stream = (if status.is_some() { plan.stream } else { CONTROL }, generation.unwrap_or_default());
        self.debts.pay(plan.stream);
        // The rail of the receiver that addresses are to name: through memory it is the first.
        let (_, rail) = self.paths[plan.path].id.rails().unwrap_or_default();
        let (body, carried, eliciting, told) = {
            let buffer = &mut out[HEADER_LEN..limit - TAG_LEN];
            let mut writer = match status {
                Some(status) => Writer::new(buffer, status),
                None => Writer::of_control(buffer),
            };
            let eliciting = match &plan.alone {
                Some(record) => {
                    writer.record(record);
                    false
                }
                None => self.write_records(now, plan, &mut writer, streams),
            };
            let hash = plan.control.then(|| self.agreed().hash);
            let told = hash.and_then(|hash| self.sayings.write(&hash, &mut writer));
            let tlps = plan.tlps.filter(|_| status.is_some());
            let tlps = tlps.and_then(|range| Some((range, streams.stream(stream.0)?)));
            let written = tlps.map(|(range, (stream, _))| stream.write_tlps(range, rail, &mut writer));
            (writer.len(), Carried { stream: stream.0, ..written.unwrap_or_default() }, eliciting, told)
        };
        self.last_carried = carried;
        let len = body + OVERHEAD;
        self.seal(plan.path, stream, &mut out[..len]);
        let carried = told.unwrap_or(carried);
        let path = &mut self.paths[plan.path];
        let (id, number) = (path.id, path.outgoing.next_number() - 1);
        if eliciting || carried.count > 0 {
            path.outgoing.record(now, number, len, carried);
            path.next_heartbeat = path.next_heartbeat.max(now + path.heartbeat());
        }
        if self.last_carried.count > 0 {
            self.schedule.spend(stream.0, len);
        }
        self.was_control = plan.control;
        if !self.paths[plan.path].is_shm() {
            self.wear.add(len);
        }
        self.cells.stats.sent_frames.add(1);
        let has_tlps = self.last_carried.count > 0;
        let is_last = self.has_told_all(stream.0, streams);
        Transmit { path: id, len, is_handshake: false, answers: None, challenge, has_tlps, is_last }
    }

    /// Whether nothing is known that would follow a frame of this stream at once.
    fn has_told_all(&self, id: StreamId, streams: &mut dyn Streams<'m>) -> bool {
        let has_more = |(stream, _): (&mut Stream<'m>, &mut dyn Sink<'m>)| stream.may_send();
        self.sayings.is_empty() && !self.schedule.has_others(id) && !streams.stream(id).is_some_and(has_more)
    }

    /// Takes a packet number and seals what is in `frame`, of a stream that is of this assignment.
    pub(super) fn seal(
        &mut self,
        path: usize,
        (stream, loan_generation): (StreamId, LoanGeneration),
        frame: &mut [u8],
    ) {
        let path = &mut self.paths[path];
        let (id, is_shm, number) = (path.id, path.is_shm(), path.outgoing.take_number());
        let sealing = self.current.as_ref().expect("frames are built only with keys");
        let (kind, seal) =
            if is_shm { (Kind::Shm, &sealing.send_shm) } else { (Kind::Sealed, &sealing.send) };
        // Frames say what the peer knows us by; a message of the handshake may say something else.
        let peer = self.agreed();
        let (to, incarnation) = (Destination::of_keys(peer), Incarnation(peer.incarnation));
        let header = self.header(kind, id, stream, to, incarnation, (sealing.id, number));
        Header { loan_generation, ..header }.write(frame);
        seal.seal(frame, Nonce::new(id.number(), number));
    }

    /// Any rail takes what another has lost; what the path through shared memory has lost is divided anew.
    fn frame_limit(&self, path: usize) -> usize {
        let (path, agreed) = (&self.paths[path], self.agreed().max_frame as usize);
        if path.is_shm() { path.max_frame } else { path.max_frame.min(agreed) }
    }

    /// Everything but TLPs; true if it asks for an acknowledgement.
    fn write_records(
        &mut self,
        now: Instant,
        plan: &Plan,
        writer: &mut Writer<'_>,
        streams: &mut dyn Streams<'m>,
    ) -> bool {
        let generation = self.cells.peer_generation.get();
        self.paths.write_acks(now, plan.path, generation, writer, &mut self.last_acked);
        if let Some(challenge) = self.paths[plan.path].challenged.take() {
            writer.record(&Record::ChallengeHeard(challenge));
        }
        if let Some((generation, edition)) = self.greeting.answer.take() {
            writer.record(&Record::HelloHeard { generation, edition });
        }
        let mut eliciting = false;
        if plan.hello {
            let hello = Record::Hello { rails: self.own_rails(), edition: self.edition };
            eliciting |= writer.record(&hello);
        }
        if plan.ping {
            eliciting |= writer.record(&Record::Ping);
        }
        self.write_statuses(plan.tlps.is_some(), writer, streams);
        #[cfg(test)]
        for (stream, status) in self.lies.drain(..) {
            writer.record(&Record::StreamStatus { stream, status });
        }
        eliciting
    }

    /// The statuses of other streams that owe one; beside TLPs few, so that the largest one still fits.
    fn write_statuses(&mut self, beside_tlps: bool, writer: &mut Writer<'_>, streams: &mut dyn Streams<'m>) {
        let largest = STREAM_OVERHEAD + pcie::spec::HEADER_BYTES_MAX + self.max_payload();
        let (most, kept) = if beside_tlps { (STATUSES_BESIDE, largest) } else { (STATUSES, 0) };
        for _ in 0..most {
            if writer.room() < STATUS_RECORD + kept {
                return;
            }
            let Some(id) = self.debts.first() else { return };
            if let Some((stream, _)) = streams.stream(id) {
                writer.record(&Record::StreamStatus { stream: id, status: stream.status() });
            }
            self.debts.pay(id);
        }
    }
}

impl Plan {
    fn with(self, tlps: Option<(StreamId, (u64, u64))>) -> Self {
        match tlps {
            Some((stream, range)) => Self { stream, tlps: Some(range), ..self },
            None => self,
        }
    }
}
