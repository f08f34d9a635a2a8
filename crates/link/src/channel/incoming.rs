//! Frames come in.

use core::time::Duration;

use base::ids::{CardGeneration, ChannelIndex, DomainId};
use base::{Instant, Rule};

use super::{CHALLENGES, Change, Channel, ChannelConfig, Event, Role};
use crate::answered::CallName;
use crate::frame::{HEADER_LEN, Header, Kind, TAG_LEN};
use crate::handshake::{KeySet, Unread, is_marked};
use crate::path::AckRanges;
use crate::record::{self, Record, Records};
use crate::seal::{Nonce, packet_number_fits};
use crate::sealing::Sealing;
use crate::stream::{Sink, Taken};

/// From whom a frame was, if it was not dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// From the peer of the channel: but when, nobody knows. A replay is heard so, too, by a card that is new.
    Peer,
    /// From the peer, in answer to this very card: it is there now.
    Answer,
    /// The first under the keys of a new pair: a handshake has just met this peer.
    Newcomer,
    /// A first message that is answered, now or later, on the path it came on; from someone who knows the key of the
    /// loan.
    Proposal(CallName),
    /// The same once more, whose answer is at hand.
    Again(CallName),
    /// What has come before; it is authentic, wherever it comes from now. See [`Channel::hear_duplicates`].
    Duplicate,
    /// It was dropped and counted, or nothing follows from it for those who send.
    Nothing,
}

/// Why a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dropped {
    Auth,
    Replay,
    Malformed,
    Misdirected,
    NotUnderstood,
    Generation,
}

impl From<Unread> for Dropped {
    fn from(why: Unread) -> Self {
        match why {
            Unread::Auth => Self::Auth,
            Unread::Nonsense => Self::NotUnderstood,
        }
    }
}

/// Which key set a frame is sealed with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Current,
    Previous,
    Pending,
}

/// What the records of a frame ask for.
#[derive(Default)]
struct Asked {
    /// An acknowledgement.
    eliciting: bool,
    /// At once.
    urgent: bool,
    /// The packet must not be acknowledged: it counts as lost.
    refused: bool,
    /// It speaks of what this very card has sent.
    answers: bool,
}

impl<'m> Channel<'m> {
    /// Takes a frame that came for this channel over a rail, and says from whom it was. Whatever is wrong with it is
    /// counted, and the frame dropped.
    pub fn handle_frame(&mut self, now: Instant, frame: &mut [u8], sink: &mut dyn Sink<'m>) -> Heard {
        let taken = self.take_frame(now, frame, false, sink);
        self.judge_frame(taken)
    }

    /// Takes a frame that came for this channel over the private path. `frame` must be the caller's own copy: the peer
    /// could change what lies in shared memory while it is looked at.
    pub fn handle_private_frame(&mut self, now: Instant, frame: &mut [u8], sink: &mut dyn Sink<'m>) -> Heard {
        let taken = self.take_frame(now, frame, true, sink);
        self.judge_frame(taken)
    }

    fn judge_frame(&self, taken: Result<Heard, Dropped>) -> Heard {
        match taken {
            Ok(heard) => heard,
            Err(dropped) => {
                let stats = &self.cells.stats;
                match dropped {
                    Dropped::Auth => stats.dropped_auth.add(1),
                    Dropped::Replay => stats.dropped_replay.add(1),
                    Dropped::Malformed => stats.dropped_malformed.add(1),
                    Dropped::Misdirected => stats.dropped_misdirected.add(1),
                    Dropped::NotUnderstood => stats.dropped_not_understood.add(1),
                    Dropped::Generation => stats.dropped_generation.add(1),
                }
                Heard::Nothing
            }
        }
    }

    fn take_frame(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        is_private: bool,
        sink: &mut dyn Sink<'m>,
    ) -> Result<Heard, Dropped> {
        let header = Header::parse(frame).map_err(|_| Dropped::Malformed)?;
        if header.loan_generation != self.config.loan_generation {
            return Err(Dropped::Generation);
        }
        // From here on `path` is one of ours, and `header.source.rail` that of a rail.
        let path = self.paths.index_of(header.path()).ok_or(Dropped::Malformed)?;
        // Whoever sends over a network could claim to be the private path otherwise.
        let claims_private = header.kind == Kind::Private;
        if claims_private != is_private || !packet_number_fits(header.packet_number) {
            return Err(Dropped::Malformed);
        }
        if !self.is_meant(&header) {
            return Err(Dropped::Misdirected);
        }
        let body = HEADER_LEN..frame.len() - TAG_LEN;
        // This costs one MAC; whatever follows costs more.
        let is_handshake = matches!(header.kind, Kind::Initiation | Kind::Response);
        if is_handshake && !is_marked(&self.config.lender.key, frame) {
            return Err(Dropped::Auth);
        }
        match (header.kind, self.config.role) {
            // Handshakes are for those who do not share anything yet.
            (Kind::Initiation | Kind::Response, _) if is_private => Err(Dropped::Malformed),
            (Kind::Initiation, Role::Lender) => self.handle_initiation(now, &header, &frame[body]),
            (Kind::Response, Role::Borrower) => self.handle_response(now, &header, &frame[body]),
            (Kind::Sealed | Kind::Private, _) => self.handle_sealed(now, &header, path, frame, sink),
            _ => Err(Dropped::Malformed),
        }
    }

    /// Whether a frame is a first message that is worth more than a look: by who knows the lender's public key.
    pub fn is_call(&self, header: &Header, frame: &[u8]) -> bool {
        header.kind == Kind::Initiation && is_marked(&self.config.lender.key, frame)
    }

    /// Whether a frame has found the right place. Who sends a first message does not know where he goes.
    fn is_meant(&self, header: &Header) -> bool {
        let ChannelConfig { fabric, group, index, stream, domain, .. } = self.config;
        let is_first = header.kind == Kind::Initiation;
        let (channel, destination) = (header.channel, header.destination.domain);
        (header.fabric, header.group, header.stream) == (fabric, group, stream)
            && channel == if is_first { ChannelIndex::default() } else { index }
            && header.source.rail == header.destination.rail
            && (destination == domain || (is_first && destination == DomainId::default()))
    }

    fn handle_sealed(
        &mut self,
        now: Instant,
        header: &Header,
        path: usize,
        frame: &mut [u8],
        sink: &mut dyn Sink<'m>,
    ) -> Result<Heard, Dropped> {
        let cells = self.cells;
        let which = self.which_keys(header.key_id).ok_or(Dropped::Auth)?;
        // Sealed frames of another life do not open; unsealed ones would.
        let keys = self.key_set(which);
        // A new peer is met over a rail: it has not been asked for memory yet.
        if header.kind == Kind::Private && !self.continues(which) {
            return Err(Dropped::Auth);
        }
        if keys.incarnation() != header.incarnation || keys.domain() != header.source.domain {
            return Err(Dropped::Auth);
        }
        // Under pending keys the peer may be another one altogether, whose generations start anew.
        let known = self.continues(which).then(|| self.peer_generation());
        let id = header.path();
        let nonce = Nonce::new(id, header.packet_number);
        let (len, is_private) = (frame.len(), header.kind == Kind::Private);
        if self.has_come_before(header, path, known) {
            let is_duplicate = self.hears_duplicates && !is_private && known == Some(header.card_generation);
            let sealing = self.sealing_mut(which).filter(|_| is_duplicate).ok_or(Dropped::Replay)?;
            sealing.receive.open(header.card_generation, frame, nonce).ok_or(Dropped::Auth)?;
            self.cells.stats.dropped_replay.add(1);
            return Ok(Heard::Duplicate);
        }
        let sealing = self.sealing_mut(which).expect("`which_keys` names a key set that is there");
        let body = match is_private {
            true => sealing.receive_private.open(frame, nonce),
            false => sealing.receive.open(header.card_generation, frame, nonce),
        };
        let body = body.ok_or(Dropped::Auth)?;
        let (status, records) = record::parse(body).ok_or(Dropped::Malformed)?;
        if records.clone().any(|record| record.is_err()) {
            return Err(Dropped::Malformed);
        }
        // Nobody opens streams here: they are to be understood, and have no meaning.
        if records.clone().flatten().any(|record| matches!(record, Record::Control(_))) {
            return Err(Dropped::NotUnderstood);
        }
        if which == Which::Pending {
            self.promote_pending(now)?;
        }
        let newest = self.peer_generation();
        if header.card_generation > newest {
            cells.peer_generation.set(self.journal, header.card_generation.0);
            // Generations begin at one: the first card of a pair has had no predecessor that could have lost anything.
            if newest > CardGeneration(0) {
                self.forget_received(now);
            }
        }
        cells.stats.received_frames.add(1);
        if !is_private && which != Which::Previous {
            self.wear.add(len);
        }
        self.hear_peer(now);
        let incoming = &mut self.paths[path].incoming;
        incoming.record(now, header.packet_number);
        cells.seen[usize::from(id)].set(self.journal, incoming.seen_below());
        self.stream.handle_status(&status);
        let asked = self.handle_records(now, header, records, sink);
        if asked.answers {
            self.withdraw_offer();
        }
        self.acknowledge(now, path, header.packet_number, &asked);
        Ok(match (known, asked.answers) {
            (None, _) => Heard::Newcomer,
            (_, true) => Heard::Answer,
            (_, false) => Heard::Peer,
        })
    }

    /// Whether a frame is of a card before `known`, the peer's newest as far as it is, or its packet number has come
    /// before.
    fn has_come_before(&self, header: &Header, path: usize, known: Option<CardGeneration>) -> bool {
        let old = known.is_some_and(|known| header.card_generation < known);
        let same = known == Some(header.card_generation);
        let replayed = same && !self.paths[path].incoming.is_fresh(header.packet_number);
        (old && self.journal.rule(Rule::RefuseOldGenerations))
            || (replayed && self.journal.rule(Rule::RefuseReplays))
    }

    fn which_keys(&self, id: u8) -> Option<Which> {
        [Which::Current, Which::Pending, Which::Previous]
            .into_iter()
            .find(|&which| self.sealing(which).is_some_and(|sealing| sealing.id == id))
    }

    fn sealing(&self, which: Which) -> Option<&Sealing> {
        match which {
            Which::Current => self.current.as_ref(),
            Which::Previous => self.previous.as_ref(),
            Which::Pending => self.pending.as_ref(),
        }
    }

    fn sealing_mut(&mut self, which: Which) -> Option<&mut Sealing> {
        match which {
            Which::Current => self.current.as_mut(),
            Which::Previous => self.previous.as_mut(),
            Which::Pending => self.pending.as_mut(),
        }
    }

    /// Whether the peer under these keys is the one whose newest card is known: pending keys may be of another pair.
    fn continues(&self, which: Which) -> bool {
        let keys = self.key_set(which);
        which != Which::Pending || (keys.continues != 0 && self.is_same_pair(&keys))
    }

    fn key_set(&self, which: Which) -> KeySet {
        match which {
            Which::Current => self.cells.current.get(),
            Which::Previous => self.cells.previous.get(),
            Which::Pending => self.cells.pending.get(),
        }
    }

    fn handle_records(
        &mut self,
        now: Instant,
        header: &Header,
        records: Records<'_>,
        sink: &mut dyn Sink<'m>,
    ) -> Asked {
        let mut asked = Asked::default();
        for record in records.flatten() {
            match record {
                Record::Ack { path, generation, delay_us, ranges } => {
                    // What an older card of ours has sent, this one knows nothing of.
                    if generation == self.config.generation.0
                        && let Some(path) = self.paths.index_of(path)
                    {
                        asked.answers = true;
                        let delay = Duration::from_micros(u64::from(delay_us));
                        self.handle_ack(now, path, &ranges, delay);
                    }
                }
                Record::Stream { first, count, tlps } => {
                    asked.eliciting = true;
                    self.handle_tlps(now, (first, count), tlps, sink, &mut asked);
                }
                Record::Ping => (asked.eliciting, asked.urgent) = (true, true),
                Record::Hello => {
                    (asked.eliciting, asked.urgent) = (true, true);
                    self.greeting.answer = Some(header.card_generation.0);
                }
                Record::HelloHeard { generation } if generation == self.config.generation.0 => {
                    asked.answers = true;
                    if !self.goodbye {
                        self.greeting.next = None;
                    }
                }
                Record::HelloHeard { .. } => {}
                Record::Information(information) => {
                    asked.eliciting = true;
                    self.events.push_back(Event::Information(information));
                }
                Record::Goodbye => {
                    (asked.eliciting, asked.urgent) = (true, true);
                    self.handle_goodbye();
                }
                Record::GoodbyeHeard if self.goodbye => {
                    self.goodbye = false;
                    self.greeting.next = None;
                    self.forget_attempts();
                    self.stream.change(Change::GivenBack);
                    self.events.push_back(Event::Closed);
                }
                Record::GoodbyeHeard => {}
                Record::Renew => {
                    if self.begins() && self.handshake.next.is_none() {
                        self.handshake.next = Some(now);
                    }
                }
                // Of channels with more than one stream.
                Record::StreamStatus { .. } | Record::Control(_) => {}
                Record::Challenge(challenge) => {
                    if let Some(path) = self.paths.index_of(header.path()) {
                        self.paths[path].challenged = Some(challenge);
                    }
                }
                Record::ChallengeHeard(challenge) => {
                    if self.proofs.len() < CHALLENGES {
                        self.proofs.push_back(challenge);
                    }
                }
            }
        }
        asked
    }

    fn handle_tlps(
        &mut self,
        now: Instant,
        numbers: (u64, u16),
        tlps: &[u8],
        sink: &mut dyn Sink<'m>,
        asked: &mut Asked,
    ) {
        if self.is_renewing() {
            // It may be for the machine that goes on somewhere else.
            asked.refused = true;
            return;
        }
        match self.stream.handle_tlps(now, numbers, tlps, sink) {
            Taken::InOrder => {}
            Taken::OutOfOrder => asked.urgent = true,
            Taken::Refused => asked.refused = true,
            Taken::Malformed => {
                self.cells.stats.dropped_malformed.add(1);
                asked.refused = true;
            }
        }
    }

    fn handle_ack(&mut self, now: Instant, path: usize, ranges: &AckRanges, delay: Duration) {
        self.answer_probe(now, path, ranges);
        let (outgoing, stream) = (&mut self.paths[path].outgoing, &mut self.stream);
        if outgoing.handle_ack(now, ranges, delay, &mut |carried| stream.handle_received(carried)) {
            outgoing.detect_loss(now, &mut |carried| stream.handle_lost(carried));
        }
    }

    /// The borrower gives the function back: the lender ends everything, and answers as often as it is told.
    fn handle_goodbye(&mut self) {
        if self.config.role != Role::Lender {
            return;
        }
        if self.stream.end() {
            self.set_tenant(self.tenant().given_back());
            self.events.push_back(Event::Closed);
        }
        // Nobody else may find it free before it is, and the lender may be started anew at any time.
        self.goodbye_waits = self.unsaved_tenancy().is_some();
        self.goodbye_heard = !self.goodbye_waits;
    }

    fn acknowledge(&mut self, now: Instant, path: usize, packet_number: u64, asked: &Asked) {
        if asked.refused {
            return;
        }
        self.paths[path].acknowledge(now, packet_number, asked.eliciting, asked.urgent);
    }
}
