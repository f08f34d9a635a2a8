//! Frames go out. Nothing here changes the ledger: what is sent has been committed.

use base::Instant;
use base::ids::{CardGeneration, Incarnation};

use super::admission::Refused;
use super::{Channel, Handshake, Role};
use crate::answered::{Attempt, CallName};
use crate::frame::{HEADER_LEN, Header, Kind, OVERHEAD, Prefix, Route, TAG_LEN};
use crate::handshake::{Destination, mark};
use crate::paths::PathId;
use crate::record::{Record, Status, Writer};
use crate::seal::Nonce;
use crate::transmit::{Room, Transmit};

/// What a frame carries beside acknowledgements. Decided first, encoded afterwards.
struct Plan {
    path: usize,
    hello: bool,
    ping: bool,
    /// It carries this and nothing else: it goes to who may be a stranger, or under keys that others may have.
    alone: Option<Record<'static>>,
    /// The range of numbers to take TLPs from.
    tlps: Option<(u64, u64)>,
}

impl Channel<'_> {
    /// Builds the next frame where `room` says, which holds the largest one. None when there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, room: &mut (impl Room + ?Sized)) -> Option<Transmit> {
        if self.handshake.due != 0 {
            let path = self.handshake.due.trailing_zeros() as PathId;
            self.handshake.due &= self.handshake.due - 1;
            let Handshake { kind, to, answers, ref message, .. } = self.handshake;
            let attempt = answers.filter(|_| kind == Kind::Response);
            return Some(self.write_handshake(path, to, (kind, attempt), message, room.of(path)));
        }
        if let Some(index) = self.handshake.refusals.iter().position(|refused| refused.is_due) {
            self.handshake.refusals[index].is_due = false;
            let Refused { path, attempt, to, ref message, .. } = self.handshake.refusals[index];
            let what = (Kind::Response, Some(attempt));
            return Some(self.write_handshake(path, to, what, message, room.of(path)));
        }
        self.current.as_ref()?;
        let plan = if self.is_renewing() { self.plan_renewal()? } else { self.plan(now)? };
        let out = room.of(self.paths[plan.path].id);
        Some(self.write_sealed(now, &plan, out))
    }

    /// Only a lender has something to say: that there have to be new keys.
    fn plan_renewal(&mut self) -> Option<Plan> {
        let due = self.greeting.due;
        self.greeting.due &= due.wrapping_sub(1);
        let path = self.paths.index_of(due.trailing_zeros() as PathId)?;
        let is_asked = self.config.role == Role::Lender && self.paths[path].is_there;
        is_asked.then_some(Plan { path, alone: Some(Record::Renew), hello: false, ping: false, tlps: None })
    }

    fn plan(&mut self, now: Instant) -> Option<Plan> {
        let plain = Plan { path: 0, hello: false, ping: false, alone: None, tlps: None };
        if let Some((id, challenge)) = self.challenges.pop_front()
            && let Some(path) = self.paths.index_of(id)
        {
            return Some(Plan { path, alone: Some(Record::Challenge(challenge)), ..plain });
        }
        let due = self.greeting.due;
        if due != 0 {
            self.greeting.due &= due - 1;
            // A path that has gone meanwhile need not be greeted: the others are.
            let path =
                self.paths.index_of(due.trailing_zeros() as PathId).filter(|&path| self.paths[path].is_there);
            return Some(Plan { path: path.unwrap_or(0), hello: true, ..plain });
        }
        if let Some(path) = self.paths.iter().position(|path| path.ping && path.is_there) {
            self.paths[path].ping = false;
            // A probe is better than a ping if there is something to send anyway.
            let tlps = if self.paths.best() == path { self.stream.next_range() } else { None };
            return Some(Plan { path, ping: true, tlps, ..plain });
        }
        if let Some(path) = self.paths.iter().position(|path| path.challenged.is_some() && path.is_there) {
            return Some(Plan { path, ..plain });
        }
        let best = self.paths.best();
        let tlps = if self.paths[best].outgoing.has_window() { self.stream.next_range() } else { None };
        let information = self.information.is_some() && self.next_information <= now;
        let answer = self.greeting.answer.is_some() || self.goodbye_heard;
        let path =
            if tlps.is_some() || answer || information { best } else { self.paths.to_acknowledge(now)? };
        Some(Plan { path, tlps, ..plain })
    }

    /// A message of the handshake; an answer says to which attempt, so that only one has to be tried. What else a header
    /// could say is zero.
    fn write_handshake(
        &self,
        path: PathId,
        to: Destination,
        (kind, attempt): (Kind, Option<Attempt>),
        message: &[u8],
        out: &mut [u8],
    ) -> Transmit {
        let len = HEADER_LEN + message.len() + TAG_LEN;
        let number = attempt.map_or(0, |attempt| attempt.number);
        let header = self.header(kind, path, to, self.config.incarnation, (0, number));
        Header { card_generation: CardGeneration(0), ..header }.write(out);
        out[HEADER_LEN..len - TAG_LEN].copy_from_slice(message);
        mark(&self.config.lender.key, &mut out[..len]);
        self.cells.stats.sent_frames.add(1);
        let answers = attempt.map(|attempt| CallName::of(&attempt));
        Transmit { path, len, is_handshake: true, answers, challenge: None }
    }

    pub(super) fn header(
        &self,
        kind: Kind,
        path: PathId,
        to: Destination,
        incarnation: Incarnation,
        (key_id, packet_number): (u8, u64),
    ) -> Header {
        let rail = if kind == Kind::Private { 0 } else { path };
        Header {
            kind,
            key_id,
            route: Route::START,
            fabric: self.config.fabric,
            destination: Prefix { rail, domain: to.domain },
            source: Prefix { rail, domain: self.config.domain },
            group: self.config.group,
            channel: to.channel,
            stream: self.config.stream,
            loan_generation: self.config.loan_generation,
            incarnation,
            card_generation: self.config.generation,
            packet_number,
        }
    }

    fn write_sealed(&mut self, now: Instant, plan: &Plan, out: &mut [u8]) -> Transmit {
        self.last_acked.clear();
        let frame_limit = self.frame_limit(plan.path).min(out.len());
        let challenge = match plan.alone {
            Some(Record::Challenge(challenge)) => Some(challenge),
            _ => None,
        };
        // Where the same number may be used twice under the same key, the same is sent.
        let status = if self.is_renewing() { Status::default() } else { self.stream.status() };
        let (body, carried, eliciting) = {
            let mut writer = Writer::new(&mut out[HEADER_LEN..frame_limit - TAG_LEN], status);
            let eliciting = match &plan.alone {
                Some(record) => {
                    writer.record(record);
                    false
                }
                None => self.write_records(now, plan, &mut writer),
            };
            let carried = plan.tlps.map(|tlps| self.stream.write_tlps(tlps, &mut writer)).unwrap_or_default();
            (writer.len(), carried, eliciting)
        };
        self.last_carried = (carried.first, carried.count);
        let path = &mut self.paths[plan.path];
        let (id, is_private) = (path.id, path.is_private());
        let number = path.outgoing.take_number();
        let sealing = self.current.as_ref().expect("frames are built only with keys");
        let len = body + OVERHEAD;
        let (kind, seal) =
            if is_private { (Kind::Private, &sealing.send_private) } else { (Kind::Sealed, &sealing.send) };
        // Frames say what the peer knows us by; a message of the handshake may say something else.
        let peer = self.cells.current.get();
        let (to, incarnation) = (Destination::of_keys(&peer), Incarnation(peer.incarnation));
        self.header(kind, id, to, incarnation, (sealing.id, number)).write(out);
        seal.seal(&mut out[..len], Nonce::new(id, number));
        if eliciting || carried.count > 0 {
            self.paths[plan.path].outgoing.record(now, number, len, carried);
            self.paths[plan.path].next_heartbeat = now + base::times::HEARTBEAT;
        }
        if !is_private {
            self.wear.add(len);
        }
        self.cells.stats.sent_frames.add(1);
        Transmit { path: id, len, is_handshake: false, answers: None, challenge }
    }

    /// Any rail takes what another has lost; what the private path has lost is divided anew.
    fn frame_limit(&self, path: usize) -> usize {
        let (path, agreed) = (&self.paths[path], self.cells.current.get().max_frame as usize);
        if path.is_private() { path.config.max_frame } else { path.config.max_frame.min(agreed) }
    }

    /// Everything but TLPs; true if it asks for an acknowledgement.
    fn write_records(&mut self, now: Instant, plan: &Plan, writer: &mut Writer<'_>) -> bool {
        let generation = self.cells.peer_generation.get();
        self.paths.write_acks(now, plan.path, generation, writer, &mut self.last_acked);
        if let Some(challenge) = self.paths[plan.path].challenged.take() {
            writer.record(&Record::ChallengeHeard(challenge));
        }
        if let Some(generation) = self.greeting.answer.take() {
            writer.record(&Record::HelloHeard { generation });
        }
        if core::mem::take(&mut self.goodbye_heard) {
            writer.record(&Record::GoodbyeHeard);
        }
        let mut eliciting = false;
        if plan.hello {
            eliciting |= writer.record(if self.goodbye { &Record::Goodbye } else { &Record::Hello });
        }
        if plan.ping {
            eliciting |= writer.record(&Record::Ping);
        }
        if let Some(information) = self.take_information(now) {
            eliciting |= writer.record(&Record::Information(information));
        }
        eliciting
    }
}
