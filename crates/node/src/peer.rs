//! A node that this one has a channel with: where it is, and what leaves for it.

mod addresses;
mod callers;

use core::cell::Cell as StdCell;
use std::collections::BTreeMap;

use base::ids::{ChannelIndex, DomainId, Group, Incarnation, NodeId, StreamId};
use base::ledger::Journal;
use base::{Instant, Rule};
use link::pair::{Channel, ChannelConfig, Course, Heard, MAX_STREAMS, Streams};
use link::{PathConfig, PathId, PublicKey, Room, Sink, Stream, Transmit};

use self::addresses::Addresses;
use self::callers::Callers;
use crate::card::{Outgoing, Rooms, Way};
use crate::cells::{Address, PeerCells};
use crate::config::{CardConfig, LoanConfig, LoanRole, Route};
use crate::places::Places;

/// How frames to this node name the channel with the peer in this place.
pub(crate) fn channel_index(place: usize) -> ChannelIndex {
    ChannelIndex(place as u32 + 1)
}

/// The way that `path` of the channel with the peer in this place stands for.
fn way(path: PathId, place: usize) -> Way {
    if path == link::PRIVATE_PATH { Way::Private(place) } else { Way::Rail(path) }
}

/// The rooms of one peer.
struct PeerRooms<'r, R: ?Sized> {
    rooms: &'r mut R,
    place: usize,
}

impl<R: Rooms + ?Sized> Room for PeerRooms<'_, R> {
    fn of(&mut self, path: PathId) -> &mut [u8] {
        self.rooms.of(way(path, self.place))
    }
}

/// What loans say of a node.
#[derive(Default)]
pub(crate) struct Contact {
    /// Where it is, by rail: a node that lends.
    routes: Vec<Route>,
    domain: DomainId,
    least_incarnation: Incarnation,
}

impl Contact {
    /// What `loans` say of the node with this key.
    pub(crate) fn of(key: PublicKey, loans: &[LoanConfig]) -> Self {
        let mut contact = Self::default();
        for loan in loans {
            let LoanRole::Borrow { lender, routes, .. } = &loan.role else { continue };
            if lender.key != key {
                continue;
            }
            contact.domain = lender.domain;
            contact.least_incarnation = contact.least_incarnation.max(loan.least_incarnation);
            contact.routes.extend(routes.get(contact.routes.len()..).unwrap_or_default());
        }
        contact
    }
}

/// A node that this one has a channel with.
pub(crate) struct Peer<'m> {
    cells: &'m PeerCells,
    journal: Journal<'m>,
    pub(crate) channel: Channel<'m>,
    /// Where answers of handshakes go.
    callers: Callers,
    /// Where it may be.
    addresses: Addresses,
    /// How many rails lead to where lines say that it is: nothing is learned of those.
    routes: usize,
    /// The loans that were found last by their streams.
    known: BTreeMap<StreamId, usize>,
    /// The channel may have a frame to send: since the last step nobody has been told that it has none.
    may_transmit: bool,
    /// When the channel is to be looked at, as far as that is known.
    deadline: StdCell<Option<Option<Instant>>>,
    /// Whom it is with, as was reported.
    joined: Option<(NodeId, Incarnation)>,
    /// An assertion has failed in the channel: it is left alone.
    has_failed: bool,
}

impl<'m> Peer<'m> {
    /// The peer in `place`, as this card finds it. `seed` is as random as the card's, and of this peer only.
    pub(crate) fn new(
        cells: &'m PeerCells,
        journal: Journal<'m>,
        card: &CardConfig,
        place: usize,
        seed: [u8; 32],
        now: Instant,
    ) -> Self {
        let key = cells.key.get();
        // A node that calls itself has two channels: one calls, and one is called.
        let calls = key != card.identity.public() || cells.calls_itself();
        let contact = if calls { Contact::of(key, &card.loans) } else { Contact::default() };
        let config = channel_config(card, (key, place), &contact, seed);
        let channel = Channel::new(&cells.channel, journal, config, now);
        let peer = Self {
            cells,
            journal,
            channel,
            callers: Callers::new(now),
            addresses: Addresses::new(&seed),
            routes: contact.routes.len(),
            known: BTreeMap::new(),
            may_transmit: true,
            deadline: StdCell::new(None),
            joined: None,
            has_failed: false,
        };
        peer.route(&contact);
        peer
    }

    fn route(&self, contact: &Contact) {
        for (cell, route) in self.cells.addresses.iter().zip(&contact.routes) {
            cell.set(self.journal, route.peer);
        }
    }

    /// Loans have come or gone: the node is called as long as one of them borrows from it.
    pub(crate) fn follow(&mut self, now: Instant, loans: &[LoanConfig]) {
        let contact = Contact::of(self.cells.key.get(), loans);
        self.route(&contact);
        self.routes = contact.routes.len();
        self.channel.set_calling(now, !contact.routes.is_empty());
        self.wake();
    }

    /// Whom the channel is with, if that was not asked for before.
    pub(crate) fn take_joined(&mut self) -> Option<(NodeId, Incarnation)> {
        let (incarnation, _) = self.channel.newest_peer()?;
        let met = Some((self.key().id(), incarnation));
        let is_news = self.joined != met;
        self.joined = met;
        met.filter(|_| is_news)
    }

    /// The place is nobody's from now on.
    pub(crate) fn leave(&self) {
        self.cells.key.set(self.journal, PublicKey::default());
    }

    /// Whose place it is.
    pub(crate) fn key(&self) -> PublicKey {
        self.cells.key.get()
    }

    /// Of a node with itself: the end that calls.
    pub(crate) fn calls_itself(&self) -> bool {
        self.cells.calls_itself()
    }

    /// An assertion has failed in the channel.
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Something may have changed: the channel is asked again.
    pub(crate) fn wake(&mut self) {
        self.may_transmit = true;
        self.deadline.set(None);
    }

    /// The channel is asked once more, for tests of what it had said.
    #[cfg(test)]
    pub(crate) fn ask_again(&mut self) {
        assert_eq!(self.poll_timeout(), self.channel.poll_timeout(), "it would be late");
        self.may_transmit = true;
    }

    /// Whether the channel may have a frame to send.
    pub(crate) fn may_transmit(&self) -> bool {
        self.may_transmit && !self.has_failed
    }

    /// When the channel is to be looked at.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.has_failed {
            return None;
        }
        let deadline = self.deadline.get().unwrap_or_else(|| self.channel.poll_timeout());
        self.deadline.set(Some(deadline));
        deadline
    }

    /// Takes a frame that has come on `rail` from `from`.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        (rail, from): (u8, Address),
        frame: &mut [u8],
        view: &mut LoanStreams<'_, 'm>,
    ) -> Heard {
        // Until the peer has proven an address, it may be wherever its frames come from, be it that they came from
        // elsewhere first.
        let is_unproven =
            self.cells.addresses.get(rail as usize).is_some_and(|known| !known.get().is_known());
        self.channel.hear_duplicates(is_unproven && self.learns(rail));
        let heard = self.channel.handle_frame(now, frame, view);
        self.answer(now, rail, from, heard);
        // Where a lender is, its line says.
        if self.learns(rail) {
            self.learn_address(now, rail, from, (heard, frame.len()));
        }
        heard
    }

    /// A call was taken that came on `rail` from `from`: its answer goes there.
    pub(crate) fn answer(&mut self, now: Instant, rail: u8, from: Address, heard: Heard) {
        match heard {
            Heard::Proposal(call) => self.callers.expect_answer(now, rail, call, from),
            Heard::Again(call) if self.callers.note(now, rail, call, from) => {
                self.channel.answer_again(rail, call);
            }
            _ => {}
        }
    }

    fn learns(&self, rail: u8) -> bool {
        usize::from(rail) >= self.routes
    }

    /// It is learned where a peer is from whatever is authentic, once the address it came from has answered a
    /// challenge.
    fn learn_address(&mut self, now: Instant, rail: u8, from: Address, (heard, len): (Heard, usize)) {
        let (journal, known) = (self.journal, &self.cells.addresses);
        let Some(cell) = known.get(rail as usize) else { return };
        match heard {
            Heard::Nothing | Heard::Proposal(_) | Heard::Again(_) => return,
            Heard::Newcomer => {
                known[self.routes..].iter().for_each(|address| address.set(journal, Address::default()));
                self.addresses.forget();
            }
            Heard::Answer | Heard::Peer | Heard::Duplicate => {}
        }
        while let Some(challenge) = self.channel.poll_proof() {
            if let Some((rail, address)) = self.addresses.prove(challenge) {
                known[rail].set(journal, address);
            }
        }
        if !journal.rule(Rule::ProveAddresses) {
            return cell.set(journal, from);
        }
        if cell.get() == from {
            return;
        }
        let challenge = match heard {
            Heard::Duplicate => self.addresses.hear_duplicate(now, rail.into(), from),
            _ => self.addresses.hear(now, rail.into(), from, len),
        };
        if let Some(challenge) = challenge {
            self.channel.challenge(rail, challenge);
        }
    }

    /// The next frame. There is always room for it, be it that what is built there gets lost: so nobody but a step of
    /// this peer or of its loans can change the answer that there is none.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        place: usize,
        rooms: &mut (impl Rooms + ?Sized),
        view: &mut LoanStreams<'_, 'm>,
    ) -> Option<Outgoing> {
        if !self.may_transmit() {
            return None;
        }
        self.deadline.set(None);
        let room = &mut PeerRooms { rooms, place };
        if let Some(copy) = self.callers.next_copy() {
            let len = copy.bytes.len();
            room.of(copy.rail)[..len].copy_from_slice(&copy.bytes);
            return Some(Outgoing { way: way(copy.rail, place), to: copy.to, len });
        }
        // What goes to a peer whose address is not known is dropped, as a network would.
        loop {
            let Some(frame) = self.channel.poll_transmit(now, room, view) else {
                self.may_transmit = false;
                return None;
            };
            let way = way(frame.path, place);
            if let Way::Private(_) = way {
                return Some(Outgoing { way, to: Address::default(), len: frame.len });
            }
            let to = match frame.answers {
                Some(call) => self.callers.answer(frame.path, call, &room.of(frame.path)[..frame.len]),
                None => self.address_for(&frame),
            };
            if let Some(to) = to.filter(Address::is_known) {
                return Some(Outgoing { way, to, len: frame.len });
            }
        }
    }

    /// Where a frame for a rail goes.
    fn address_for(&mut self, frame: &Transmit) -> Option<Address> {
        let rail = frame.path as usize;
        let known = Some(self.cells.addresses[rail].get()).filter(Address::is_known);
        match frame.challenge {
            Some(challenge) => self.addresses.of(challenge),
            None if self.learns(frame.path) => known.or_else(|| self.addresses.spend(rail, frame.len)),
            None => known,
        }
    }
}

/// The streams of the loans with one peer, as its channel sees them.
pub(crate) struct LoanStreams<'a, 'm> {
    loans: &'a mut Places<'m>,
    place: usize,
    course: Option<Course>,
    known: BTreeMap<StreamId, usize>,
}

/// Lets `act` have the channel of a peer and its streams.
pub(crate) fn with_streams<'m, T>(
    peer: &mut Peer<'m>,
    place: usize,
    loans: &mut Places<'m>,
    act: impl FnOnce(&mut Peer<'m>, &mut LoanStreams<'_, 'm>) -> T,
) -> T {
    let (course, known) = (peer.channel.course(), core::mem::take(&mut peer.known));
    let mut streams = LoanStreams { loans, place, course, known };
    let done = act(peer, &mut streams);
    peer.known = streams.known;
    done
}

impl LoanStreams<'_, '_> {
    /// The loan that has this stream.
    pub(crate) fn find(&mut self, id: StreamId) -> Option<usize> {
        let (key, place) = (Some((self.course?, id)), self.place);
        let is_it = |loan: usize, loans: &Places<'_>| {
            loans.get(loan).is_some_and(|loan| loan.peer() == Some(place) && loan.stream_id() == key)
        };
        let known = self.known.get(&id).copied().filter(|loan| is_it(*loan, self.loans));
        let found = known.or_else(|| (0..self.loans.len()).find(|loan| is_it(*loan, self.loans)));
        match found {
            Some(loan) if known.is_none() => _ = self.known.insert(id, loan),
            None => _ = self.known.remove(&id),
            Some(_) => {}
        }
        found
    }
}

impl<'m> Streams<'m> for LoanStreams<'_, 'm> {
    fn stream(&mut self, id: StreamId) -> Option<(&mut Stream<'m>, &mut dyn Sink<'m>)> {
        let loan = self.find(id)?;
        let loan = self.loans.get_mut(loan).filter(|loan| !loan.has_failed())?;
        Some((&mut loan.stream, &mut loan.end))
    }

    fn each(&mut self, visit: &mut dyn FnMut(StreamId, &mut Stream<'m>)) {
        for (_, loan) in self.loans.iter_mut() {
            if let Some((course, id)) = loan.stream_id()
                && (Some(course), loan.peer()) == (self.course, Some(self.place))
            {
                visit(id, &mut loan.stream);
            }
        }
    }
}

fn channel_config(
    card: &CardConfig,
    (peer, place): (PublicKey, usize),
    contact: &Contact,
    seed: [u8; 32],
) -> ChannelConfig {
    let lends = card.loans.iter().any(|loan| matches!(loan.role, LoanRole::Lend { .. }));
    // Who lends nothing is reached where it calls from.
    let rails = if lends || contact.routes.is_empty() { card.rails.len() } else { contact.routes.len() };
    let frames = (0..rails.min(card.rails.len()))
        .map(|rail| contact.routes.get(rail).map_or(card.rails[rail], |route| route.max_frame));
    let paths: Vec<PathConfig> = frames.map(|max_frame| PathConfig { max_frame }).collect();
    ChannelConfig {
        peer,
        peer_domain: contact.domain,
        calls: !contact.routes.is_empty(),
        protection: card.protection,
        fabric: 0,
        group: Group::DEFAULT,
        index: channel_index(place),
        identity: card.identity.clone(),
        name: card.name,
        domain: card.domain,
        incarnation: card.incarnation.max(contact.least_incarnation),
        life: card.present_life(),
        generation: card.generation,
        seed,
        rekey_frames: card.rekey_frames,
        max_payload: CardConfig::max_payload(paths.iter().map(|path| path.max_frame)),
        paths,
        max_streams: MAX_STREAMS,
    }
}
