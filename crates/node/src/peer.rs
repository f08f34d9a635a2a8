//! A node that this one has a channel with: where it is, and what leaves for it.

mod addresses;
mod callers;

use core::cell::Cell as StdCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::ids::{ChannelIndex, DomainId, Group, Incarnation, LifeId, NodeId, RailId, StreamId};
use base::ledger::Journal;
use base::times::HOLD;
use base::{Instant, Rule};
use link::frame::{Header, Kind, MAX_FRAME};
use link::pair::{COPIES, Channel, ChannelConfig, Course, Heard, MAX_STREAMS, Streams};
use link::{CallName, FrameBuffer, Members, PathConfig, PathId, PublicKey, Sink, Stream, Transmit};

use self::addresses::Addresses;
use self::callers::Callers;
use crate::card::{Egress, FrameBuffers, Outgoing};
use crate::cells::{Address, MAX_RAILS, PeerCells};
use crate::config::{CardConfig, LoanRole, RailConfig, Rails, Route};
use crate::loan_table::{Deadline, LoanTable};
use crate::whereabouts::Whereabouts;

/// How frames to this node name the channel with the peer in this place.
pub(crate) fn channel_index(place: usize) -> ChannelIndex {
    ChannelIndex(place as u32 + 1)
}

/// What `path` of the channel with the peer in this place stands for.
fn egress_of(path: PathId, place: usize) -> Egress {
    path.rails().map_or(Egress::Shm(place), |(own, _)| Egress::Rail(own))
}

/// The buffers of one peer.
struct PeerBuffers<'r, R: ?Sized> {
    buffers: &'r mut R,
    place: usize,
}

impl<R: FrameBuffers + ?Sized> FrameBuffer for PeerBuffers<'_, R> {
    fn of(&mut self, path: PathId) -> &mut [u8] {
        self.buffers.of(egress_of(path, self.place))
    }
}

/// What loans say of a node.
#[derive(Default)]
pub(crate) struct Contact {
    /// Where it is, by rail: a node that lends.
    routes: Vec<Route>,
    domain: DomainId,
    least_incarnation: Incarnation,
    /// Where it was, by rail, when it had something of this one.
    known: [Option<Address>; MAX_RAILS],
}

impl Contact {
    /// What is said of the node with this key in a group.
    pub(crate) fn of((key, group): (PublicKey, Group), card: &CardConfig) -> Self {
        let mut contact = Self::default();
        if let Some(holder) = card.holders.iter().find(|holder| holder.key == key) {
            (contact.domain, contact.known) = (holder.domain, holder.addresses.map(Address::known));
        }
        for loan in &card.loans {
            let LoanRole::Borrow { lender, routes, .. } = &loan.role else { continue };
            if (lender.key, loan.group) != (key, group) {
                continue;
            }
            contact.domain = lender.domain;
            contact.least_incarnation = contact.least_incarnation.max(loan.least_incarnation);
            for route in routes {
                if !contact.routes.iter().any(|known| known.rail == route.rail) {
                    contact.routes.push(*route);
                }
            }
        }
        contact
    }

    /// Its rails, as far as anything is said of them, and what gets there.
    fn rails(&self) -> [Option<PathConfig>; MAX_RAILS] {
        RailId::ALL.map(|rail| {
            let route = self.routes.iter().find(|route| route.rail == rail);
            let known = self.known[rail.index()].map(|_| MAX_FRAME);
            let max_frame = route.map(|route| route.max_frame).or(known);
            max_frame.map(|max_frame| PathConfig { max_frame })
        })
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
    /// Where lines say that it is, by rail: it is called there, too, wherever it has been since.
    routes: Vec<Route>,
    /// Where somebody has said that it is today, by rail: it is called there as well.
    heard: ByRail,
    /// It has something of this node.
    is_holder: bool,
    /// The channel was told to call.
    calls: bool,
    /// Where it is, as the agent knows it.
    located: Option<Whereabouts>,
    /// The loans that were found last by their streams.
    known: BTreeMap<StreamId, usize>,
    /// The channel may have a frame to send: since the last step nobody has been told that it has none.
    may_transmit: bool,
    /// Its node was removed from the fabric: but for handshakes, in which it is told so, it hears nothing.
    pub(crate) is_cut_off: bool,
    /// When the channel is to be looked at, as far as that is known.
    deadline: StdCell<Deadline>,
    /// Whose place it is.
    key: PublicKey,
    /// The node.
    node: NodeId,
    /// It is this one.
    is_own: bool,
    /// Whom it is with, as was reported.
    joined: Option<(NodeId, Incarnation)>,
    /// By rail, when it was said last that it does not answer there.
    pub(crate) silent: [Option<Instant>; MAX_RAILS],
    /// An assertion has failed in the channel: it is left alone.
    has_failed: bool,
}

impl<'m> Peer<'m> {
    /// The peer in `place`, as this card finds it. `seed` is as random as the card's, and of this peer only.
    pub(crate) fn new(
        (key, cells): (PublicKey, &'m PeerCells),
        journal: Journal<'m>,
        card: &CardConfig,
        place: usize,
        seed: [u8; 32],
        now: Instant,
    ) -> Self {
        // A node that calls itself has two channels: one calls, and one is called.
        let calls = key != card.identity.public() || cells.calls_itself();
        let group = cells.group();
        let contact = if calls { Contact::of((key, group), card) } else { Contact::default() };
        let config = channel_config(card, (key, group, place), &contact, seed);
        let channel = Channel::new(&cells.channel, journal, config, now);
        let mut peer = Self {
            cells,
            journal,
            channel,
            callers: Callers::new(now),
            addresses: Addresses::new(&seed),
            routes: Vec::new(),
            heard: ByRail::default(),
            is_holder: false,
            calls: !contact.routes.is_empty(),
            located: card.holders.iter().find(|holder| holder.key == key).copied(),
            known: BTreeMap::new(),
            may_transmit: true,
            is_cut_off: false,
            deadline: StdCell::default(),
            key,
            node: key.id(),
            is_own: key == card.identity.public(),
            joined: None,
            silent: Default::default(),
            has_failed: false,
        };
        if peer.channel.peer().is_none() {
            let known = RailId::ALL.into_iter().zip(contact.known);
            for (rail, address) in known.filter_map(|(rail, address)| Some((rail, address?))) {
                for (own, _) in RailId::present(&card.rails) {
                    peer.locate(PathId::new(own, rail), address);
                }
            }
        }
        peer.route(contact.routes);
        peer
    }

    /// Where lines say that it is counts until it has been elsewhere.
    fn route(&mut self, routes: Vec<Route>) {
        for route in &routes {
            let is_news = self.said(route.rail).is_some_and(|before| before != route.peer);
            for path in RailId::ALL.map(|own| PathId::new(own, route.rail)) {
                let cell = &self.cells.addresses[path.index()];
                if is_news || cell.get().known().is_none() {
                    cell.set(self.journal, route.peer);
                    self.cells.proven.update(self.journal, |proven| proven & !(1 << path.index()));
                }
            }
        }
        self.routes = routes;
        self.tell_found();
    }

    /// Whom the channel is with may be somewhere else now, or be known on other paths.
    fn tell_found(&mut self) {
        self.channel.set_found(self.cells.addresses().map(|(path, _)| path));
    }

    /// What this node knows of its fabric from now on.
    pub(crate) fn believe(&mut self, members: Option<Rc<Members>>) {
        self.is_cut_off = members.as_ref().is_some_and(|members| members.is_revoked(self.node()));
        self.channel.set_members(members);
    }

    /// Somebody says that it is here, by rail. That it is shows when it answers.
    pub(crate) fn hear_of(&mut self, heard: ByRail) {
        self.heard = heard;
    }

    /// Where lines say that its rail is.
    fn said(&self, rail: RailId) -> Option<Address> {
        self.routes.iter().find(|route| route.rail == rail).map(|route| route.peer)
    }

    /// The same, for a path.
    fn said_of(&self, path: PathId) -> Option<Address> {
        path.rails().and_then(|(_, rail)| self.said(rail))
    }

    /// It has proven to be at this address of a path. Where other paths to its rail led to the same address as this
    /// one, they still do.
    fn locate(&self, path: PathId, address: Address) {
        let Some((_, rail)) = path.rails() else { return };
        let before = self.cells.address(path);
        for other in RailId::ALL.map(|own| PathId::new(own, rail)) {
            if other == path || (before.is_some() && self.cells.address(other) == before) {
                self.cells.addresses[other.index()].set(self.journal, address);
            }
        }
        self.cells.proven.update(self.journal, |proven| proven | 1 << path.index());
    }

    /// These are the rails of this node from now on.
    pub(crate) fn set_rails(&mut self, now: Instant, own: &Rails) {
        self.channel.set_rails(now, own.map(path_config));
    }

    /// Loans have come or gone: the node is called as long as one of them borrows from it.
    pub(crate) fn follow(&mut self, now: Instant, card: &CardConfig) {
        let contact = Contact::of((self.key, self.group()), card);
        self.channel.set_peer_rails(now, contact.rails());
        self.channel.set_peer_domain(contact.domain);
        self.route(contact.routes);
        self.call_if_wanted(now);
        self.wake();
    }

    fn call_if_wanted(&mut self, now: Instant) {
        let calls = self.is_called(now);
        if core::mem::replace(&mut self.calls, calls) != calls {
            self.channel.set_calling(now, calls);
            self.wake();
        }
    }

    /// Whether the node is called. One that has something of this one is for as long as that is kept for it: where it
    /// calls to may be where this node was before.
    fn is_called(&self, now: Instant) -> bool {
        !self.routes.is_empty() || self.is_called_as_holder(now)
    }

    /// Whether its place is kept for that.
    pub(crate) fn is_called_as_holder(&self, now: Instant) -> bool {
        let since = self.channel.last_heard().max(self.channel.listens_since());
        self.is_holder && self.cells.proven.get() != 0 && now.since(since) < HOLD
    }

    /// Which lives of the node have something of this one, as the agent knows, and which are copies of those. Returns
    /// where it is if that is news.
    pub(crate) fn set_holder(
        &mut self,
        now: Instant,
        lives: impl Iterator<Item = LifeId>,
        copies: [LifeId; COPIES],
    ) -> Option<Whereabouts> {
        // A node knows where it is itself.
        let mut lives = lives.filter(|_| !self.is_own).peekable();
        self.is_holder = lives.peek().is_some();
        self.channel.set_tenants(lives);
        self.call_if_wanted(now);
        let proven = self.cells.proven.get();
        if !self.is_holder || proven == 0 {
            return None;
        }
        let (_, _, domain) = self.channel.peer()?;
        let addresses = RailId::ALL.map(|rail| self.cells.proven_address(rail).into());
        let located = Some(Whereabouts { key: self.key, domain, addresses, copies });
        let is_news = self.located != located;
        self.located = located;
        located.filter(|_| is_news)
    }

    /// The agent may not know any more where it is.
    pub(crate) fn forget_located(&mut self) {
        self.located = None;
    }

    /// The node's id.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Whom the channel is with, if that was not asked for before.
    pub(crate) fn take_joined(&mut self) -> Option<(NodeId, Incarnation)> {
        let (incarnation, _) = self.channel.newest_peer()?;
        let met = Some((self.node, incarnation));
        let is_news = self.joined != met;
        self.joined = met;
        met.filter(|_| is_news)
    }

    /// The place is nobody's from now on.
    pub(crate) fn leave(&self) {
        self.cells.set_key(self.journal, None);
    }

    /// Whose place it is.
    pub(crate) fn key(&self) -> PublicKey {
        self.key
    }

    /// The group of the channel with it.
    pub(crate) fn group(&self) -> Group {
        self.cells.group()
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
        self.deadline.take();
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
        match self.deadline.get() {
            Deadline::Known(deadline) => deadline,
            Deadline::Stale => {
                let deadline = self.channel.poll_timeout();
                self.deadline.set(Deadline::Known(deadline));
                deadline
            }
        }
    }

    /// Takes a frame that has come on `path` from `from`.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        (path, from): (PathId, Address),
        frame: &mut [u8],
        view: &mut LoanStreams<'_, 'm>,
    ) -> Heard {
        // Until the peer has proven an address, it may be wherever its frames come from, be it that they came from
        // elsewhere first.
        let is_unproven = self.cells.address(path).is_none();
        self.channel.hear_duplicates(is_unproven);
        let heard = self.channel.handle_frame(now, frame, view);
        self.answer(now, path, from, heard);
        self.learn_address(now, path, from, (heard, frame.len()));
        heard
    }

    /// Another life of the node than the one that is met is refused, and was at this address: that one is told so.
    pub(crate) fn note_twin(&mut self, call: CallName) -> Option<Address> {
        let at = self.callers.address_of(call);
        self.channel.tell_of_twin(Address::from(at).0);
        self.wake();
        at
    }

    /// Where it is on the first path that it is known on.
    pub(crate) fn address(&self) -> Option<Address> {
        self.cells.addresses().map(|(_, address)| address).next()
    }

    /// A call was taken that came on `path` from `from`: its answer goes there.
    pub(crate) fn answer(&mut self, now: Instant, path: PathId, from: Address, heard: Heard) {
        match heard {
            Heard::Proposal(call) => self.callers.expect_answer(now, path, call, from),
            Heard::Again(call) if self.callers.note(now, path, call, from) => {
                self.channel.answer_again(path, call);
            }
            _ => {}
        }
    }

    /// It is learned where a peer is from whatever is authentic, once the address it came from has answered a
    /// challenge.
    fn learn_address(&mut self, now: Instant, path: PathId, from: Address, (heard, len): (Heard, usize)) {
        let (journal, known) = (self.journal, &self.cells.addresses);
        let Some(cell) = known.get(path.index()) else { return };
        match heard {
            Heard::Nothing | Heard::Proposal(_) | Heard::Again(_) => return,
            Heard::Newcomer => {
                for rail in RailId::ALL {
                    let said = self.said(rail).into();
                    let paths = RailId::ALL.map(|own| PathId::new(own, rail));
                    paths.iter().for_each(|path| known[path.index()].set(journal, said));
                }
                self.cells.proven.set(journal, 0);
                self.addresses.forget();
            }
            Heard::Answer | Heard::Peer | Heard::Duplicate | Heard::Accepted => {}
        }
        let mut is_news = heard == Heard::Newcomer;
        while let Some(challenge) = self.channel.poll_proof() {
            if let Some((path, address)) = self.addresses.prove(challenge) {
                self.locate(path, address);
                is_news = true;
            }
        }
        if !journal.rule(Rule::ProveAddresses) {
            cell.set(journal, from);
            return self.tell_found();
        }
        if is_news {
            self.tell_found();
        }
        if cell.get() == from {
            return;
        }
        if heard == Heard::Accepted {
            // It uses the new keys when it hears them, where it has come back to, too: whoever has answered first may
            // have repeated its answer.
            let said = self.said_of(path);
            if let Some(said) = said.filter(|said| ![from, cell.get()].contains(said))
                && let Some(challenge) = self.addresses.hear(now, path, said, 0)
            {
                self.channel.challenge(path, challenge);
            }
        }
        let challenge = match heard {
            Heard::Duplicate => self.addresses.hear_duplicate(now, path, from),
            _ => self.addresses.hear(now, path, from, len),
        };
        if let Some(challenge) = challenge {
            self.channel.challenge(path, challenge);
        }
    }

    /// The next frame. There is always room for it, be it that what is built there gets lost: so nobody but a step of
    /// this peer or of its loans can change the answer that there is none.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        place: usize,
        buffers: &mut (impl FrameBuffers + ?Sized),
        view: &mut LoanStreams<'_, 'm>,
    ) -> Option<Outgoing> {
        if !self.may_transmit() {
            return None;
        }
        self.deadline.take();
        let room = &mut PeerBuffers { buffers, place };
        if let Some(copy) = self.callers.next_copy() {
            let len = copy.bytes.len();
            room.of(copy.path)[..len].copy_from_slice(&copy.bytes);
            let (egress, to) = (egress_of(copy.path, place), Some(copy.to));
            return Some(Outgoing { egress, to, len, is_last: false });
        }
        // What goes to a peer whose address is not known is dropped, as a network would. So is what goes to a removed
        // one, which would take it for a sign that all is well.
        loop {
            let Some(frame) = self.channel.poll_transmit(now, room, view) else {
                self.may_transmit = false;
                return None;
            };
            if self.is_cut_off && !frame.is_handshake {
                continue;
            }
            let egress = egress_of(frame.path, place);
            if let Egress::Shm(_) = egress {
                return Some(Outgoing { egress, to: None, len: frame.len, is_last: frame.is_last });
            }
            let bytes = &room.of(frame.path)[..frame.len];
            let to = match frame.answers {
                Some(call) => self.callers.answer(frame.path, call, bytes),
                None if frame.is_handshake && is_call(bytes) => self.address_of_call(&frame, bytes),
                None => self.address_for(&frame),
            };
            let to = to.and_then(Address::known);
            if to.is_some() {
                return Some(Outgoing { egress, to, len: frame.len, is_last: frame.is_last });
            }
        }
    }

    /// Where a frame for a path over rails goes.
    fn address_for(&mut self, frame: &Transmit) -> Option<Address> {
        if let Some(challenge) = frame.challenge {
            return self.addresses.of(challenge);
        }
        let (own, peer) = frame.path.rails()?;
        // A path that is new may lead to where others have found its rail: who is there is asked, and sent no data, for
        // on another network somebody else may have that address.
        let known = match frame.has_tlps {
            true => self.cells.address(frame.path),
            false => self.cells.address_between(own, peer),
        };
        known.or_else(|| self.addresses.spend(frame.path, frame.len))
    }

    /// Where a first message goes: to where the node is known to be, and where its line says, and where it is said to
    /// be today, too. It may have been moved, or have come back.
    fn address_of_call(&mut self, frame: &Transmit, bytes: &[u8]) -> Option<Address> {
        let said = self.said_of(frame.path);
        let known = self.cells.address(frame.path).or(said)?;
        let heard = frame.path.rails().and_then(|(_, rail)| self.heard[rail.index()]);
        let others = [said, heard.filter(|heard| said != Some(*heard))];
        for other in others.into_iter().flatten().filter(|other| *other != known) {
            self.callers.copy(frame.path, other, bytes);
        }
        Some(known)
    }
}

/// Addresses by rail of the peer.
pub(crate) type ByRail = [Option<Address>; MAX_RAILS];

fn is_call(frame: &[u8]) -> bool {
    Header::parse(frame).is_ok_and(|header| header.kind == Kind::Initiation)
}

/// The streams of the loans with one peer, as its channel sees them.
pub(crate) struct LoanStreams<'a, 'm> {
    loans: &'a mut LoanTable<'m>,
    place: usize,
    course: Option<Course>,
    known: BTreeMap<StreamId, usize>,
    /// That of another peer is none of this one.
    tells_apart: bool,
    /// What was found last. While the channel has the streams no loan gets another one.
    last: Option<(StreamId, usize)>,
}

/// Lets `act` have the channel of a peer and its streams.
pub(crate) fn with_streams<'m, T>(
    peer: &mut Peer<'m>,
    place: usize,
    loans: &mut LoanTable<'m>,
    act: impl FnOnce(&mut Peer<'m>, &mut LoanStreams<'_, 'm>) -> T,
) -> T {
    let (course, known) = (peer.channel.course(), core::mem::take(&mut peer.known));
    let tells_apart = peer.journal.rule(Rule::StreamsOfPeer);
    let mut streams = LoanStreams { loans, place, course, known, tells_apart, last: None };
    let done = act(peer, &mut streams);
    peer.known = streams.known;
    done
}

impl LoanStreams<'_, '_> {
    /// The loan that has this stream.
    pub(crate) fn find(&mut self, id: StreamId) -> Option<usize> {
        if self.last.is_none_or(|(of, _)| of != id) {
            self.last = self.search(id).map(|loan| (id, loan));
        }
        self.last.map(|(_, loan)| loan)
    }

    fn search(&mut self, id: StreamId) -> Option<usize> {
        let (course, place, tells_apart) = (self.course?, self.place, self.tells_apart);
        let is_it = |loan: usize, loans: &LoanTable<'_>| {
            let stream = loans.get(loan).and_then(|loan| Some((loan.peer(), loan.stream_id()?)));
            stream.is_some_and(|(peer, (of, known))| {
                known == id && (!tells_apart || (peer, of) == (Some(place), course))
            })
        };
        let known = self.known.get(&id).copied().filter(|loan| is_it(*loan, self.loans));
        let found = known.or_else(|| (0..self.loans.len()).find(|loan| is_it(*loan, self.loans)));
        match found {
            Some(_) if known.is_none() => self.learn(),
            None => _ = self.known.remove(&id),
            Some(_) => {}
        }
        found
    }

    /// Of a new card nobody knows which loan has which stream, and whoever looks for one will look for the others.
    fn learn(&mut self) {
        let (course, place) = (self.course, self.place);
        let of_peer = self.loans.iter_with_places().filter(|(_, loan)| loan.peer() == Some(place));
        let streams = of_peer.filter_map(|(place, loan)| Some((loan.stream_id()?, place)));
        let present = streams.filter(|((of, _), _)| Some(*of) == course);
        self.known.clear();
        self.known.extend(present.map(|((_, id), place)| (id, place)));
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

/// A rail as a channel sees it.
fn path_config(rail: Option<RailConfig>) -> Option<PathConfig> {
    rail.map(|rail| PathConfig { max_frame: rail.max_frame })
}

fn channel_config(
    card: &CardConfig,
    (peer, group, place): (PublicKey, Group, usize),
    contact: &Contact,
    seed: [u8; 32],
) -> ChannelConfig {
    let rails = card.rails.map(path_config);
    let said = contact.rails();
    // Holders are said to be somewhere, and not what gets there.
    let routes = contact.routes.iter().map(|route| route.max_frame);
    let max_payload =
        CardConfig::max_payload(rails.iter().flatten().map(|rail| rail.max_frame).chain(routes));
    ChannelConfig {
        peer,
        peer_domain: contact.domain,
        calls: !contact.routes.is_empty(),
        protection: card.protection,
        fabric: 0,
        group,
        index: channel_index(place),
        identity: card.identity.clone(),
        name: card.name,
        domain: card.domain,
        incarnation: card.incarnation.max(contact.least_incarnation),
        life: card.present_life(),
        generation: card.generation,
        seed,
        rekey_frames: card.rekey_frames,
        max_payload,
        rails,
        peer_rails: said,
        rail_mode: card.rail_mode,
        lost_carriers: card.lost_carriers,
        max_streams: MAX_STREAMS,
    }
}
