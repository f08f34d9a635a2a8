//! Frames come in.

use core::time::Duration;

use base::ids::{CardGeneration, ChannelIndex, LoanGeneration, StreamId};
use base::times::REFUSAL_PAUSE;
use base::{Instant, Rule};

use super::{CHALLENGES, CONTROL, Channel, ChannelConfig, Event, Streams};
use crate::answered::CallName;
use crate::frame::{Header, Kind};
use crate::handshake::{KeySet, Unread, is_marked};
use crate::pair::control::{Control, FunctionId, OpenRefusal, What};
use crate::path::AckRanges;
use crate::paths::PathId;
use crate::record::{self, Record, Records, Status};
use crate::seal::{Nonce, packet_number_fits};
use crate::sealing::Sealing;
use crate::stream::{Stream, Taken};

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
            Unread::Invalid => Self::NotUnderstood,
        }
    }
}

/// Which key set a frame is sealed with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
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
    /// The status of its stream.
    pinged: bool,
    /// It has said that a rail seems to have failed.
    noticed: bool,
    /// Of which paths it has acknowledged packets, as bits.
    acked: u32,
}

/// From whom a frame was, if it was not dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// From the peer of the channel: but when, nobody knows. A replay is heard so, too, by a card that is new.
    Peer,
    /// From the peer, in answer to this very card: it is there now.
    Answer,
    /// The first under the keys of a new pair: a handshake has just met this peer.
    Newcomer,
    /// The peer has answered a call of this end with keys, which are in use now.
    Accepted,
    /// A first message that is answered, now or later, on the path it came on; from someone who has the peer's key.
    Proposal(CallName),
    /// The same once more, whose answer is at hand.
    Again(CallName),
    /// What has come before; it is authentic, wherever it comes from now. See [`Channel::hear_duplicates`].
    Duplicate,
    /// It was dropped and counted, or nothing follows from it for those who send.
    Nothing,
}

/// What the peer has said of a stream, for its claim or offer.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    control: Control,
    /// Of the handshake under whose keys it came.
    hash: [u8; 32],
}

impl Said {
    /// Which stream.
    pub fn stream(&self) -> StreamId {
        self.control.stream
    }

    /// Of an opening: which function is asked for.
    pub fn function(&self) -> Option<FunctionId> {
        match &self.control.what {
            What::Open { wish, .. } => Some(wish.function),
            _ => None,
        }
    }

    /// Of an opening: by which entry of the lender's table; 0: by a line.
    pub fn generation(&self) -> LoanGeneration {
        match &self.control.what {
            What::Open { wish, .. } => wish.generation,
            _ => LoanGeneration::default(),
        }
    }

    pub(in crate::pair) fn what(&self) -> &What {
        &self.control.what
    }

    pub(in crate::pair) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

impl<'m> Channel<'m> {
    /// Takes a frame that came for this channel over a rail, and says from whom it was. Whatever is wrong with it is
    /// counted, and the frame dropped. First messages of handshakes are the lobby's.
    pub fn handle_frame(&mut self, now: Instant, frame: &mut [u8], streams: &mut dyn Streams<'m>) -> Heard {
        let taken = self.take_frame(now, frame, false, streams);
        self.settle(streams);
        self.judge_frame(taken)
    }

    /// Takes a frame that came for this channel over the path through shared memory. `frame` must be the caller's own
    /// copy: the peer could change what lies in shared memory while it is looked at.
    pub fn handle_shm_frame(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        streams: &mut dyn Streams<'m>,
    ) -> Heard {
        let taken = self.take_frame(now, frame, true, streams);
        self.settle(streams);
        self.judge_frame(taken)
    }

    fn judge_frame(&self, taken: Result<Heard, Dropped>) -> Heard {
        taken.unwrap_or_else(|dropped| {
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
        })
    }

    fn take_frame(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        is_shm: bool,
        streams: &mut dyn Streams<'m>,
    ) -> Result<Heard, Dropped> {
        let header = Header::parse(frame).map_err(|_| Dropped::Malformed)?;
        // Whoever sends over a network could claim to be the path through shared memory otherwise.
        let claims_shm = header.kind == Kind::Shm;
        if claims_shm != is_shm || !packet_number_fits(header.packet_number) {
            return Err(Dropped::Malformed);
        }
        if !self.is_meant(&header) {
            return Err(Dropped::Misdirected);
        }
        match header.kind {
            // This costs one MAC; whatever follows costs more.
            Kind::Response if !is_marked(&self.config.identity.public(), frame) => Err(Dropped::Auth),
            // The rails of these are confirmed by nothing in them.
            Kind::Response | Kind::Cookie if !self.has_called_on(header.path()) => Err(Dropped::Misdirected),
            Kind::Response => self.handle_response(now, &header, frame, streams),
            Kind::Cookie => self.handle_cookie(now, &header, frame),
            Kind::Sealed | Kind::Shm => self.handle_sealed(now, &header, frame, streams),
            Kind::Initiation | Kind::Information => Err(Dropped::Malformed),
        }
    }

    /// Whether a frame has found the right place. A cookie comes from who does not know our channels.
    fn is_meant(&self, header: &Header) -> bool {
        let ChannelConfig { fabric, group, index, domain, .. } = self.config;
        let channel = if header.kind == Kind::Cookie { ChannelIndex::default() } else { index };
        let has_streams = matches!(header.kind, Kind::Sealed | Kind::Shm);
        (header.fabric, header.group) == (fabric, group)
            && (header.stream != CONTROL || header.loan_generation.0 == 0)
            && header.channel == channel
            && (has_streams || header.stream == CONTROL)
            && self.paths.may_be(header.path())
            && header.destination.domain == domain
    }

    fn handle_sealed(
        &mut self,
        now: Instant,
        header: &Header,
        frame: &mut [u8],
        streams: &mut dyn Streams<'m>,
    ) -> Result<Heard, Dropped> {
        let which = self.which_keys(header.key_id).ok_or(Dropped::Auth)?;
        // Sealed frames of another life do not open; unsealed ones would.
        let keys = self.keys_of(which);
        let hash = keys.hash;
        let is_shm = header.kind == Kind::Shm;
        // A new peer is met over a rail: it has not been asked for memory yet.
        if is_shm && !self.continues(which) {
            return Err(Dropped::Auth);
        }
        if keys.incarnation() != header.incarnation || keys.domain() != header.source.domain {
            return Err(Dropped::Auth);
        }
        // Under pending keys the peer may be another one altogether, whose generations start anew.
        let known = self.continues(which).then(|| self.peer_generation());
        let (nonce, len) = (Nonce::new(header.path().reversed().number(), header.packet_number), frame.len());
        if self.has_come_before(header, known) {
            return self.hear_duplicate(header, (which, known), frame, nonce);
        }
        let sealing = self.sealing_mut(which).expect("`which_keys` names a key set that is there");
        let body = match is_shm {
            true => sealing.receive_shm.open(frame, nonce),
            false => sealing.receive.open(header.card_generation, frame, nonce),
        };
        let (status, records) = split(header.stream, body.ok_or(Dropped::Auth)?)?;
        // A function that was assigned anew is fenced here, whatever of it was under way.
        let fences = self.journal.rule(Rule::FenceFrames);
        let is_other = |stream: &Stream<'_>| fences && stream.generation() != header.loan_generation;
        let stream = if header.stream == CONTROL { None } else { streams.stream(header.stream) };
        if stream.is_some_and(|(stream, _)| is_other(stream)) {
            return Err(Dropped::Generation);
        }
        if which == Which::Pending {
            self.promote_pending(now, streams)?;
        }
        self.note_card(now, header.card_generation, streams);
        self.cells.stats.received_frames.add(1);
        if !is_shm && which != Which::Previous {
            self.wear.add(len);
        }
        self.hear_peer(now);
        let path = self.path_of(now, header.path());
        self.hear_path(now, path);
        let path = self.path_of(now, header.path());
        let incoming = &mut self.paths[path].incoming;
        incoming.record(now, header.packet_number);
        self.cells.seen[header.path().index()].set(self.journal, incoming.seen_below());
        if let Some(status) = status {
            self.handle_status(header.stream, &status, streams);
        }
        let asked = self.handle_records(now, (header, &hash), records, streams);
        if asked.answers {
            self.withdraw_offer();
        }
        if !asked.refused {
            // A hello may have brought paths that are listed before it.
            let path = self.path_of(now, header.path());
            self.paths[path].acknowledge(now, header.packet_number, asked.eliciting, asked.urgent);
        }
        Ok(match (known, asked.answers) {
            (None, _) => Heard::Newcomer,
            (_, true) => Heard::Answer,
            (_, false) => Heard::Peer,
        })
    }

    fn hear_duplicate(
        &mut self,
        header: &Header,
        (which, known): (Which, Option<CardGeneration>),
        frame: &mut [u8],
        nonce: Nonce,
    ) -> Result<Heard, Dropped> {
        let is_of_card = known == Some(header.card_generation) && header.kind != Kind::Shm;
        let is_heard = self.hears_duplicates && is_of_card;
        let sealing = self.sealing_mut(which).filter(|_| is_heard).ok_or(Dropped::Replay)?;
        sealing.receive.open(header.card_generation, frame, nonce).ok_or(Dropped::Auth)?;
        self.cells.stats.dropped_replay.add(1);
        Ok(Heard::Duplicate)
    }

    /// Whether a frame is of a card before `known`, the peer's newest as far as it is, or its packet number has come
    /// before.
    fn has_come_before(&self, header: &Header, known: Option<CardGeneration>) -> bool {
        let old = known.is_some_and(|known| header.card_generation < known);
        let same = known == Some(header.card_generation);
        let replayed = same && !self.is_fresh(header.path(), header.packet_number);
        (old && self.journal.rule(Rule::RefuseOldGenerations))
            || (replayed && self.journal.rule(Rule::RefuseReplays))
    }

    fn is_fresh(&self, path: PathId, number: u64) -> bool {
        match self.paths.index_of(path) {
            Some(at) => self.paths[at].incoming.is_fresh(number),
            None => number >= self.cells.seen[path.index()].get(),
        }
    }

    /// Where in the list a path is on which something authentic has come.
    pub(super) fn path_of(&mut self, now: Instant, path: PathId) -> usize {
        self.paths.obtain(path, self.cells.seen[path.index()].get(), now)
    }

    /// A frame is of this card of the peer's.
    fn note_card(&mut self, now: Instant, card: CardGeneration, streams: &mut dyn Streams<'m>) {
        let newest = self.peer_generation();
        if card <= newest {
            return;
        }
        self.cells.peer_generation.set(self.journal, card.0);
        // Generations begin at one: the first card of a pair has had no predecessor that could have lost anything.
        if newest > CardGeneration(0) {
            self.forget_received(now, streams);
        }
    }

    pub(super) fn which_keys(&self, id: u8) -> Option<Which> {
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

    pub(super) fn sealing_mut(&mut self, which: Which) -> Option<&mut Sealing> {
        match which {
            Which::Current => self.current.as_mut(),
            Which::Previous => self.previous.as_mut(),
            Which::Pending => self.pending.as_mut(),
        }
    }

    /// Whether the peer under these keys is the one whose newest card is known: pending keys may be of another pair.
    fn continues(&self, which: Which) -> bool {
        let keys = self.keys_of(which);
        which != Which::Pending || (keys.continues != 0 && self.is_same_pair(keys))
    }

    pub(super) fn keys_of(&self, which: Which) -> &KeySet {
        &self.keys[which as usize]
    }

    /// The key set in use, or one that is not valid.
    pub(super) fn agreed(&self) -> &KeySet {
        self.keys_of(Which::Current)
    }

    fn handle_records(
        &mut self,
        now: Instant,
        (header, hash): (&Header, &[u8; 32]),
        records: Records<'_>,
        streams: &mut dyn Streams<'m>,
    ) -> Asked {
        let mut asked = Asked::default();
        for record in records.flatten() {
            match record {
                // What an older card of ours has sent, this one knows nothing of.
                Record::Ack { generation, .. } if generation != self.config.generation.0 => {}
                Record::Ack { path, delay_us, ranges, .. } => {
                    // One a path and frame: each looks at all that is under way there.
                    let path = PathId::from_number(path).and_then(|id| self.paths.index_of(id));
                    if let Some(path) = path.filter(|path| asked.acked & (1 << path) == 0) {
                        (asked.answers, asked.acked) = (true, asked.acked | 1 << path);
                        self.handle_ack(now, path, &ranges, Duration::from_micros(u64::from(delay_us)));
                    }
                }
                Record::Stream { first, count, tlps } => {
                    asked.eliciting = true;
                    self.handle_tlps(now, header, (first, count, tlps), streams, &mut asked);
                }
                Record::Ping => (asked.eliciting, asked.urgent, asked.pinged) = (true, true, true),
                Record::Hello { rails, edition } => {
                    (asked.eliciting, asked.urgent) = (true, true);
                    self.greeting.answer = Some((header.card_generation.0, edition));
                    self.hear_rails(now, rails, edition);
                }
                Record::HelloHeard { generation, edition } if generation == self.config.generation.0 => {
                    asked.answers = true;
                    if edition == self.edition {
                        self.greeting.end();
                    }
                }
                Record::Renew => {
                    if self.handshake.next.is_none() {
                        self.call(now);
                    }
                }
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
                Record::Twin(at) => self.events.push_back(Event::HasTwin(at)),
                // One a frame: each asks all rails of a node.
                Record::Notice(notice) if !asked.noticed => {
                    asked.noticed = true;
                    self.events.push_back(Event::Notice(notice));
                }
                Record::Notice(_) => {}
                Record::StreamStatus { stream, status } => self.handle_status(stream, &status, streams),
                Record::Control(control) => {
                    (asked.eliciting, asked.urgent) = (true, true);
                    self.said.push_back(Said { control, hash: *hash });
                }
                // Of the last card.
                Record::HelloHeard { .. } => {}
            }
        }
        if asked.pinged && header.stream != CONTROL {
            self.debts.owe(header.stream, true);
        }
        asked
    }

    /// What the peer says of our half of a stream.
    fn handle_status(&mut self, id: StreamId, status: &Status, streams: &mut dyn Streams<'m>) {
        let Some((stream, _)) = streams.stream(id) else { return self.say_stray(id) };
        let view = |stream: &crate::Stream<'m>| {
            let sender = &stream.port.sender;
            (sender.committed(), sender.credits().1, stream.receiver().granted())
        };
        if status.committed.get() > stream.port.sender.next() && stream.state() == crate::State::Open {
            self.cells.stats.wrong_statuses.add(1);
        }
        let before = view(stream);
        stream.handle_status(status);
        if view(stream) != before {
            self.touched.push_back(id);
        }
    }

    fn handle_tlps(
        &mut self,
        now: Instant,
        header: &Header,
        (first, count, tlps): (u64, u16, &[u8]),
        streams: &mut dyn Streams<'m>,
        asked: &mut Asked,
    ) {
        if self.is_renewing() {
            // It may be for the machine that goes on somewhere else.
            asked.refused = true;
            return;
        }
        let id = header.stream;
        let Some((stream, sink)) = streams.stream(id) else {
            // It is acknowledged: nobody waits for it any more.
            return self.say_stray(id);
        };
        let (rail, _) = header.path().rails().unwrap_or_default();
        match stream.handle_tlps(now, (first, count), (rail, tlps), sink) {
            Taken::InOrder => {}
            Taken::OutOfOrder => asked.urgent = true,
            Taken::Refused => asked.refused = true,
            Taken::Malformed => {
                self.cells.stats.dropped_malformed.add(1);
                asked.refused = true;
            }
        }
        self.touched.push_back(id);
        self.debts.owe(id, !asked.refused);
    }

    fn handle_ack(&mut self, now: Instant, path: usize, ranges: &AckRanges, delay: Duration) {
        self.answer_probe(self.paths[path].id, ranges);
        let (outgoing, fates) = (&mut self.paths[path].outgoing, &mut self.fates);
        if outgoing.handle_ack(now, ranges, delay, &mut |carried| fates.push_back((carried, true))) {
            outgoing.detect_loss(now, &mut |carried| fates.push_back((carried, false)));
        }
    }

    /// Tells streams what became of their packets.
    pub(super) fn settle(&mut self, streams: &mut dyn Streams<'m>) {
        while let Some((carried, has_arrived)) = self.fates.pop_front() {
            if carried.count == 0 {
                continue;
            }
            if carried.stream == CONTROL {
                self.sayings.settle(carried.first, has_arrived);
                continue;
            }
            let Some((stream, _)) = streams.stream(carried.stream) else { continue };
            if has_arrived {
                stream.handle_received(carried);
            } else {
                stream.handle_lost(carried);
                let quantum = self.quantum();
                self.schedule.wake(carried.stream, quantum);
            }
        }
    }

    /// Nobody here knows the stream that was spoken of: the peer is told so, unless that is what it says itself.
    pub fn handle_stray(&mut self, now: Instant, said: &Said) {
        match said.what() {
            What::Open { .. } => self.refuse_unknown(now, said.stream()),
            What::Closed | What::Refused(_) => self.cells.stats.unknown_streams.add(1),
            What::Close => {
                self.bury(said.stream());
                self.say_stray(said.stream());
            }
            _ => self.say_stray(said.stream()),
        }
    }

    /// An opening proves nothing, or is of a function that is not there: who asks cannot tell which. Only so often.
    pub(in crate::pair) fn refuse_unknown(&mut self, now: Instant, id: StreamId) {
        self.cells.stats.wrong_proofs.add(1);
        let is_early = self.refused_at.is_some_and(|last| now.since(last) < REFUSAL_PAUSE);
        if !is_early || !self.journal.rule(Rule::PauseRefusals) {
            self.refused_at = Some(now);
            self.say_of(id, What::Refused(OpenRefusal::Unknown));
        }
    }
}

/// The parts of a body; that of a frame of stream 0 has no status. Whatever does not parse makes all of it malformed.
fn split(stream: StreamId, body: &[u8]) -> Result<(Option<Status>, Records<'_>), Dropped> {
    let (status, records) = match stream {
        CONTROL => (None, record::parse_control(body)),
        _ => {
            let (status, records) = record::parse(body).ok_or(Dropped::Malformed)?;
            (Some(status), records)
        }
    };
    let has_tlps_of_none =
        |record: &Result<Record<'_>, ()>| stream == CONTROL && matches!(record, Ok(Record::Stream { .. }));
    if records.clone().any(|record| record.is_err() || has_tlps_of_none(&record)) {
        return Err(Dropped::Malformed);
    }
    Ok((status, records))
}
