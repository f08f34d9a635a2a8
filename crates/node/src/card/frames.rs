//! What comes from peers and goes to them.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::ids::{Group, NodeId, RailId};
use base::{Bucket, Instant};
use link::frame::{FrameError, Header, Kind};
use link::pair::{Call, Event, Heard, LobbyConfig, OpenRefusal, Presence, Reception, Refusal, Said, Why};
use link::{PathId, State};

use super::{Card, CardEvent, Egress, FrameBuffers, Outgoing};
use crate::cells::Address;
use crate::config::{CardConfig, LoanConfig, LoanRole};
use crate::loan::Loan;
use crate::peer::{LoanStreams, Peer, with_streams};
use crate::peers::Entry;
use crate::sightings::Cause;

/// Frames that a peer is sent before another one for which there are some has its turn: enough for segmentation
/// offload.
const FRAMES_PER_TURN: usize = 32;

/// First messages of handshakes that may be opened at once, and after what time there is one more: each costs three key
/// agreements, and as many nodes may come back together.
const CALLS: u32 = 256;
const ONE_MORE_CALL: Duration = Duration::from_millis(2);
/// With fewer left than this only those are opened whose senders have shown that they are where they seem to be.
const UNDER_LOAD: u32 = CALLS / 2;

/// Answers of the lobby that wait to be sent. Whoever is not answered calls again.
const REPLIES: usize = 64;

/// How many first messages may be opened from now on.
pub(super) fn calls(now: Instant) -> Bucket {
    Bucket::full(CALLS, ONE_MORE_CALL, now)
}

/// What the lobby of a card is told.
pub(super) fn lobby_config(card: &CardConfig) -> LobbyConfig {
    let tenancies = card.loans.iter().map(|loan| loan.tenancy).filter(|tenancy| tenancy.is_held);
    LobbyConfig {
        identity: card.identity.clone(),
        protection: card.protection,
        fabric: 0,
        groups: card.groups(),
        domain: card.domain,
        incarnation: card.incarnation,
        life: card.present_life(),
        seed: card.seed.0,
        tenants: tenancies.map(|tenancy| (tenancy.node, tenancy.life)).collect(),
    }
}

/// An answer of the lobby.
pub(super) struct Reply {
    rail: RailId,
    to: Address,
    bytes: Vec<u8>,
}

impl Reply {
    pub(super) fn rail(&self) -> RailId {
        self.rail
    }
}

impl<'m> Card<'m> {
    /// A frame has come on `rail` from `from`. It is opened in place.
    pub fn handle_frame(&mut self, now: Instant, rail: RailId, from: Address, frame: &mut [u8]) {
        let gauges = &self.ledger.root.gauges;
        let header = match Header::parse(frame) {
            Ok(header) => header,
            Err(FrameError::Version(_)) => return gauges.dropped_version.add(1),
            Err(FrameError::Malformed) => return gauges.dropped_malformed.add(1),
        };
        let is_there = self.config.rails[rail.index()].is_some();
        if !is_there || header.destination.rail != rail {
            return gauges.dropped_misdirected.add(1);
        }
        if header.kind == Kind::Initiation {
            return self.handle_call_guarded(now, rail, from, &header, frame);
        }
        let Some(place) = self.peer_named(&header) else { return gauges.dropped_unknown.add(1) };
        if self.is_cut_off(place, &header) {
            return gauges.dropped_unknown.add(1);
        }
        let mut heard = Heard::Nothing;
        self.peer_step(now, place, |peer, streams| {
            heard = peer.handle_frame(now, (header.path(), from), frame, streams);
        });
        self.note_heard(now, place, heard);
    }

    /// A frame has come through the memory that is shared with a peer. `frame` is a private copy: the peer can change
    /// what lies in shared memory at any time.
    pub fn handle_shm_frame(&mut self, now: Instant, peer: usize, frame: &mut [u8]) {
        if !Header::parse(frame).is_ok_and(|header| self.peer_named(&header) == Some(peer)) {
            return self.ledger.root.gauges.dropped_malformed.add(1);
        }
        if self.peers[peer].is_cut_off {
            return self.ledger.root.gauges.dropped_unknown.add(1);
        }
        let mut heard = Heard::Nothing;
        self.peer_step(now, peer, |peer, streams| {
            // From nowhere that could be learned.
            heard = peer.channel.handle_shm_frame(now, frame, streams);
        });
        self.note_heard(now, peer, heard);
    }

    /// Opens, in place, a copy of a frame that this card has sent, or is about to take, for whoever captures it: see
    /// [`Channel::reveal`](link::pair::Channel::reveal).
    pub fn reveal(&mut self, frame: &mut [u8], is_sent: bool) -> bool {
        let Ok(header) = Header::parse(frame) else { return false };
        let place = match is_sent {
            true => self.peers.iter().find(|(_, peer)| peer.channel.may_have_sent(&header)).map(|(at, _)| at),
            false => self.peer_named(&header),
        };
        place.is_some_and(|place| self.peers[place].channel.reveal(frame, is_sent))
    }

    /// Whether nothing that a peer says counts, for its node was removed from the fabric. That it may not come in any
    /// more it is still told, and tells.
    fn is_cut_off(&self, place: usize, header: &Header) -> bool {
        header.kind == Kind::Sealed && self.peers[place].is_cut_off
    }

    /// Memory is shared with a peer from now on, or other memory than before; or none any more.
    pub fn set_shm(&mut self, now: Instant, peer: usize, is_there: bool) {
        self.peer_step(now, peer, |peer, _| peer.channel.set_shm(now, is_there));
    }

    /// The peer whose channel a frame names.
    fn peer_named(&self, header: &Header) -> Option<usize> {
        if header.kind == Kind::Cookie {
            // Who sends it does not know our channels.
            return self
                .peers
                .iter()
                .find(|(_, peer)| peer.channel.awaits_cookie(header))
                .map(|(place, _)| place);
        }
        let place = (header.channel.0 as usize).checked_sub(1)?;
        self.peers.get(place).map(|_| place)
    }

    /// Only an answer to this very card shows that the peer hears it, too. A lender that is there and has not opened
    /// the stream (another one has the function, or it is lent no more) serves nobody: a guest would wait for it again
    /// and again.
    fn note_heard(&mut self, now: Instant, place: usize, heard: Heard) {
        if !matches!(heard, Heard::Answer | Heard::Newcomer) {
            return;
        }
        for loan in self.loans.slots() {
            let waits_for = |loan: &Loan<'_>| loan.peer() == Some(place) && loan.state() == State::Open;
            if self.loans.get(loan).is_some_and(|loan| waits_for(loan) && loan.is_silent()) {
                self.step_one(now, loan, |card| card.loans[loan].note_answer(now));
            }
        }
    }

    /// A first message has come. If an assertion fails meanwhile, that one is dropped.
    fn handle_call_guarded(
        &mut self,
        now: Instant,
        rail: RailId,
        from: Address,
        header: &Header,
        frame: &mut [u8],
    ) {
        if !self.contains_faults {
            return self.handle_call(now, rail, from, header, frame);
        }
        // What is broken in memory is the lobby, which knows nothing but what the ledger has, and how often it was
        // asked.
        if catch_unwind(AssertUnwindSafe(|| self.handle_call(now, rail, from, header, frame))).is_err() {
            self.take_back();
            self.ledger.root.gauges.dropped_calls.add(1);
        }
    }

    /// A first message has come: whoever knows this node can make it do sums, with true messages that are repeated,
    /// too. So only so many are looked at.
    fn handle_call(&mut self, now: Instant, rail: RailId, from: Address, header: &Header, frame: &mut [u8]) {
        let gauges = &self.ledger.root.gauges;
        if !self.lobby.is_call(header, frame) {
            return gauges.dropped_unknown.add(1);
        }
        let left = self.calls.left(now);
        if left == 0 {
            return gauges.dropped_calls.add(1);
        }
        self.now = now;
        let (peers, ledger, config, loans) = (&self.peers, &self.ledger, &self.config, &self.loans);
        let presence = |node: NodeId, group: Group| match config.may_meet(node, group) {
            true => peers.known_call(peers.room_for((node, group), ledger, config, loans, now)),
            false => {
                ledger.root.sightings.note(Cause::NotAllowed, node, None, Some(from));
                Presence::NotAllowed
            }
        };
        let cookies = self.lobby.stats().cookies.get();
        let wants_cookie = left < UNDER_LOAD || peers.are_scarce(config);
        let reception = self.lobby.handle_call(now, frame, &from.0, wants_cookie, &presence);
        self.ledger.journal.commit();
        if let Some((node, fault)) = self.lobby.take_mistrusted() {
            self.ledger.root.sightings.note(Cause::Certificate(fault), node, None, Some(from));
        }
        // A cookie costs next to nothing.
        if self.lobby.stats().cookies.get() == cookies {
            self.calls.take(now);
        }
        let path = header.path();
        let reception = match reception {
            Reception::Call(call) => self.take_call(now, (path, from), call, frame),
            Reception::Again(node, group, name) => {
                let room = self.peers.room_for((node, group), &self.ledger, &self.config, &self.loans, now);
                if let Entry::Present(place) = room {
                    self.peer_step(now, place, |peer, _| {
                        let heard = peer.channel.hear_again(path, name);
                        peer.answer(now, path, from, heard);
                    });
                }
                Reception::Nothing
            }
            other => other,
        };
        self.ledger.journal.commit();
        if let Reception::Reply(len) = reception
            && self.replies.len() < REPLIES
        {
            self.replies.push_back(Reply { rail, to: from, bytes: frame[..len].to_vec() });
        }
    }

    /// A node calls that may have a channel.
    fn take_call(
        &mut self,
        now: Instant,
        (path, from): (PathId, Address),
        call: Box<Call>,
        frame: &mut [u8],
    ) -> Reception {
        let of = (call.node(), call.group());
        let place = match self.peers.room_for(of, &self.ledger, &self.config, &self.loans, now) {
            Entry::Present(place) => place,
            Entry::Vacant(place) => {
                let has_left = self.peers.get(place).is_some();
                let whose = (call.key(), call.group(), false);
                let admitted = self.peers.admit(place, whose, &self.ledger, &self.config, now);
                if admitted.is_err() {
                    return self.lobby.refuse(now, call, Why::NoRoom, &from.0, frame);
                }
                self.events.extend(has_left.then_some(CardEvent::Left(place)));
                // It may be a copy of whoever has something.
                self.tell_copies(place);
                self.call_holders(now);
                place
            }
            Entry::Full => return self.lobby.refuse(now, call, Why::NoRoom, &from.0, frame),
        };
        let mut refused = None;
        self.peer_step(now, place, |peer, streams| match peer.channel.take_call(now, call, streams) {
            Ok(heard) => peer.answer(now, path, from, heard),
            Err(why) => refused = Some(why),
        });
        if let Some((call, Why::Twin(_))) = &refused {
            self.ledger.root.sightings.note(Cause::Twin, call.node(), None, Some(from));
            self.peers[place].channel.tell_of_twin(from.0);
            self.peers[place].wake();
        }
        match refused {
            Some((call, why)) => self.lobby.refuse(now, call, why, &from.0, frame),
            None => Reception::Nothing,
        }
    }

    pub(super) fn handle_peer_timeouts(&mut self, now: Instant) {
        for place in 0..self.peers.len() {
            let deadline = self.peers.get(place).and_then(Peer::poll_timeout);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.peer_step(now, place, |peer, streams| peer.channel.handle_timeout(now, streams));
            }
        }
    }

    /// One step of a peer's channel, and what follows from it for its loans, each in steps of its own. What the peer
    /// has said of a stream and a dead card has not heeded it says again.
    pub(super) fn peer_step(
        &mut self,
        now: Instant,
        place: usize,
        act: impl FnOnce(&mut Peer<'m>, &mut LoanStreams<'_, 'm>),
    ) {
        self.now = now;
        let mut touched = core::mem::take(&mut self.touched);
        touched.clear();
        let step = |card: &mut Self| {
            card.step(None, |card| {
                with_streams(&mut card.peers[place], place, &mut card.loans, act);
                card.peers[place].wake();
                card.drain(place, &mut touched);
            });
        };
        self.guarded_peer(place, step);
        while let Some(said) = self.poll_said(place) {
            self.handle_said(now, place, &said);
        }
        for &loan in &touched {
            if self.loans.get(loan).is_some_and(|loan| loan.has_faulted() && !loan.has_failed()) {
                self.contain(now, loan, self.events.len());
            }
        }
        // What the channel has said of its peer is news to all its loans.
        if !self.behind.is_empty() {
            self.step_urgent(now);
        }
        for &loan in &touched {
            self.step_one(now, loan, |_| ());
        }
        self.touched = touched;
    }

    /// Does something with the channel of a peer that is there. If that fails, so does all that it carries.
    pub(super) fn guarded_peer<T>(&mut self, place: usize, act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.peers.get(place).filter(|peer| !peer.has_failed())?;
        if !self.contains_faults {
            return Some(act(self));
        }
        // What is broken in memory is the channel, which is left alone, and its loans, which end.
        if let Ok(done) = catch_unwind(AssertUnwindSafe(|| act(self))) {
            return Some(done);
        }
        self.take_back();
        self.peers[place].fail();
        for loan in self.loans_with(place).collect::<Vec<_>>() {
            if !self.loans[loan].has_failed() {
                self.contain(self.now, loan, self.events.len());
            }
        }
        None
    }

    /// What a channel has to say of its peer and of streams.
    fn drain(&mut self, place: usize, touched: &mut Vec<usize>) {
        let mut touch = |loan: usize| {
            if !touched.contains(&loan) {
                touched.push(loan);
            }
        };
        while let Some(event) = self.peers[place].channel.poll_event() {
            match event {
                Event::Met => {
                    let peer = &self.peers[place];
                    let met = peer.channel.newest_peer().zip(peer.channel.peer_life());
                    if let Some(((incarnation, _), life)) = met {
                        self.lobby.note_met(peer.node(), peer.group(), incarnation, life);
                    }
                    self.report_joined(place);
                }
                Event::Anew => {}
                Event::TwinRefused(call) => {
                    let at = self.peers[place].note_twin(call);
                    self.note_sighting(Cause::Twin, self.peers[place].node(), at);
                }
                Event::HasTwin(at) => {
                    self.note_sighting(Cause::OwnTwin, self.config.identity.id(), Address(at).known());
                }
                Event::Refused(refusal) => self.hear_refusal(place, refusal),
                Event::Silent(rail) => self.judge(place, rail),
                Event::Notice(notice) => self.heed(place, notice),
            }
            let its: Vec<usize> = self.loans_with(place).collect();
            its.into_iter().for_each(|loan| self.behind.set(loan, true));
        }
        while let Some(id) = self.peers[place].channel.poll_touched() {
            let found = with_streams(&mut self.peers[place], place, &mut self.loans, |_, view| view.find(id));
            found.into_iter().for_each(&mut touch);
        }
    }

    /// The peer in a place has answered a call with no.
    fn hear_refusal(&mut self, place: usize, refusal: Refusal) {
        let its: Vec<_> = (0..self.loans.len()).filter(|loan| self.borrows_from(*loan, place)).collect();
        let (peer, own) = (&self.peers[place], self.config.identity.id());
        match refusal {
            Refusal::Twin { .. } => self.note_sighting(Cause::OwnRefusal, own, peer.address()),
            // It has something of this node. What this one borrows, it asks for once more, as a later life.
            Refusal::Outdated { .. } if its.is_empty() => {
                self.note_sighting(Cause::OwnOutdated, peer.node(), peer.address());
            }
            _ => {}
        }
        self.events.extend(its.into_iter().map(|loan| CardEvent::Refused(loan, refusal.into())));
    }

    /// Tells the agent whom the channel in a place is with, once a life.
    pub(super) fn report_joined(&mut self, place: usize) {
        let Some((node, incarnation)) = self.peers.get_mut(place).and_then(Peer::take_joined) else { return };
        self.events.push_back(CardEvent::Joined(place, node, incarnation));
    }

    /// The agent is to say this.
    fn note_sighting(&self, cause: Cause, node: NodeId, at: Option<Address>) {
        self.ledger.root.sightings.note(cause, node, None, at);
    }

    fn borrows_from(&self, loan: usize, place: usize) -> bool {
        let borrows = matches!(self.config.loans[loan].role, LoanRole::Borrow { .. });
        borrows && self.peer_of(loan) == Some(place)
    }

    fn poll_said(&mut self, place: usize) -> Option<Said> {
        self.peers.get_mut(place).filter(|peer| !peer.has_failed())?.channel.poll_said()
    }

    /// The peer has said something of a stream: what that changes is one step with what its loan makes of it.
    fn handle_said(&mut self, now: Instant, place: usize, said: &Said) {
        let Some(loan) = self.loan_of(place, said) else {
            self.note_asking(place, said, Some(OpenRefusal::Unknown));
            let step = |card: &mut Self| {
                card.step(None, |card| card.peers[place].channel.handle_stray(now, said));
            };
            return self.guarded_peer(place, step).unwrap_or_default();
        };
        // One that has failed or found no room says nothing: the next card answers.
        if self.loans.get(loan).is_none_or(Loan::has_failed) {
            return;
        }
        let holder = self.peer_of(loan);
        self.step_one(now, loan, |card| {
            let this = &mut card.loans[loan];
            if said.function().is_some() {
                let refusal = this.handle_asking(now, place, said, card.peers.channels(place, holder));
                card.note_asking(place, said, refusal);
            } else {
                this.handle_said(now, said, &mut card.peers[place].channel);
            }
        });
        // Who has asked is answered, and who has had the stream hears of it.
        for peer in [Some(place), holder].into_iter().flatten() {
            if let Some(peer) = self.peers.get_mut(peer) {
                peer.wake();
            }
        }
    }

    /// The agent is to say who has asked for what is not for him.
    fn note_asking(&self, place: usize, said: &Said, refusal: Option<OpenRefusal>) {
        let cause = match refusal {
            Some(OpenRefusal::Unknown) => Cause::Unproven,
            Some(OpenRefusal::NotAllowed) => Cause::NotAllowed,
            Some(OpenRefusal::NoRoom) => Cause::NoRoom,
            Some(OpenRefusal::Generation) if self.is_ahead(said, place) => Cause::UnknownGeneration,
            _ => return,
        };
        let (peer, Some(function)) = (&self.peers[place], said.function()) else { return };
        self.ledger.root.sightings.note(cause, peer.node(), Some(function), peer.address());
    }

    /// Whether somebody asks by an entry that this node's table does not have yet.
    fn is_ahead(&self, said: &Said, place: usize) -> bool {
        let of = (said.function(), self.peers[place].group());
        let is_its = |loan: &&LoanConfig| (Some(loan.function), loan.zone()) == of;
        let mut lent = self.config.loans.iter().filter(is_its).filter_map(|loan| loan.role.lent());
        lent.any(|lent| said.generation() > lent.generation())
    }

    /// The loan that something is said of, if there is one.
    fn loan_of(&mut self, place: usize, said: &Said) -> Option<usize> {
        let Some(function) = said.function() else {
            let peer = &mut self.peers[place];
            return with_streams(peer, place, &mut self.loans, |_, view| view.find(said.stream()));
        };
        // In another group there is no such function.
        let of = (function, self.peers[place].group());
        let is_it = |config: &LoanConfig| {
            matches!(config.role, LoanRole::Lend { .. }) && (config.function, config.zone()) == of
        };
        self.config.loans.iter().position(is_it)
    }

    /// The next frame to send, built where `buffers` says. Peers take turns of some frames each.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        buffers: &mut (impl FrameBuffers + ?Sized),
    ) -> Option<Outgoing> {
        if let Some(reply) = self.replies.pop_front() {
            let (egress, len) = (Egress::Rail(reply.rail), reply.bytes.len());
            buffers.of(egress)[..len].copy_from_slice(&reply.bytes);
            return Some(Outgoing { egress, to: Some(reply.to), len, is_last: false });
        }
        self.now = now;
        let count = self.peers.len();
        for turn in 0..count {
            let place = (self.next_peer + turn) % count;
            if !self.peers.get(place).is_some_and(Peer::may_transmit) {
                continue;
            }
            let outgoing = self.guarded_peer(place, |card| {
                with_streams(&mut card.peers[place], place, &mut card.loans, |peer, streams| {
                    peer.poll_transmit(now, place, &mut *buffers, streams)
                })
            });
            if let Some(outgoing) = outgoing.flatten() {
                self.sent_in_turn = if turn == 0 { self.sent_in_turn + 1 } else { 1 };
                let is_over = self.sent_in_turn >= FRAMES_PER_TURN;
                self.sent_in_turn = if is_over { 0 } else { self.sent_in_turn };
                self.next_peer = if is_over { (place + 1) % count } else { place };
                let has_others = self.peers.iter().any(|(at, peer)| at != place && peer.may_transmit());
                return Some(Outgoing { is_last: outgoing.is_last && !has_others, ..outgoing });
            }
        }
        (self.next_peer, self.sent_in_turn) = (if count == 0 { 0 } else { (self.next_peer + 1) % count }, 0);
        None
    }
}
