//! Both ends of a channel between two nodes, with a stream in it: one node borrows a function of the other.

use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LifeId, LoanGeneration, RailId, StreamId,
};
use base::ledger::{Arena, PageCells};
use base::{Instant, Payload};
use link::frame::{Header, Kind};
use link::pair::{
    Asking, Channel, ChannelCells, ChannelConfig, Claim, ClaimCells, ClaimConfig, Course, Event, FunctionId,
    Lobby, LobbyCells, LobbyConfig, Offer, OfferCells, OfferConfig, OfferEvent, Presence, Reception, Said,
    Streams, Wish,
};
use link::{Name, NodeKey, PathConfig, PathId, Port, Sink, State, Stream, StreamCells, Tenancy};
use pcie::{Bdf, MemoryRequest, Tag, TlpView};
use zerocopy::FromBytes;

use crate::Rig;

/// The secret of the function.
const SECRET: [u8; 32] = [5; 32];
const FUNCTION: FunctionId = FunctionId(7);

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Borrower = 0,
    Lender = 1,
}

impl Role {
    fn other(self) -> Self {
        if self == Self::Borrower { Self::Lender } else { Self::Borrower }
    }
}

/// The cells of one end.
#[derive(FromBytes)]
#[repr(C)]
pub struct Root {
    channel: ChannelCells,
    lobby: LobbyCells,
    claim: ClaimCells,
    offer: OfferCells,
    stream: StreamCells,
    pages: PageCells,
}

/// The node at an end.
pub fn identity(role: Role) -> NodeKey {
    NodeKey::numbered(role as u64 + 1)
}

fn life(role: Role) -> LifeId {
    LifeId([role as u8 + 1; 16])
}

fn config(role: Role, rails: usize, rekey_frames: u64) -> ChannelConfig {
    let number = role as u32 + 1;
    ChannelConfig {
        peer: identity(role.other()).public(),
        peer_domain: if role == Role::Borrower { DomainId(2) } else { DomainId::default() },
        calls: role == Role::Borrower,
        protection: link::Protection::Aegis,
        fabric: 0,
        group: Group::DEFAULT,
        index: ChannelIndex(number + 2),
        identity: identity(role),
        name: Name::new("node"),
        domain: DomainId(number),
        incarnation: Incarnation(1),
        life: life(role),
        generation: CardGeneration(1),
        seed: [number as u8; 32],
        rekey_frames,
        rails: core::array::from_fn(|rail| (rail < rails).then_some(PathConfig { max_frame: 9000 })),
        peer_rails: core::array::from_fn(|rail| (rail < rails).then_some(PathConfig { max_frame: 9000 })),
        rail_mode: link::RailMode::default(),
        lost_carriers: 0,
        max_payload: 4096,
        max_streams: 8,
    }
}

/// How the stream begins and ends.
enum Opening<'m> {
    Claim(Claim<'m>),
    Offer(Offer<'m>),
}

/// What has come, by address.
#[derive(Default)]
pub struct Log(pub Vec<u64>);

impl<'m> Sink<'m> for Log {
    fn accept(&mut self, _: Instant, _: &mut Port<'m>, tlp: &TlpView<'_>) {
        if let pcie::Header::MemoryWrite(write) = tlp.header() {
            // The rail that the frame has taken is no part of what was written.
            self.0.push(RailId::default().in_address(write.address));
        }
    }
}

/// The one stream of an end, as its channel sees it.
struct View<'a, 'm> {
    id: Option<StreamId>,
    stream: &'a mut Stream<'m>,
    log: &'a mut Log,
}

impl<'m> Streams<'m> for View<'_, 'm> {
    fn stream(&mut self, id: StreamId) -> Option<(&mut Stream<'m>, &mut dyn Sink<'m>)> {
        (self.id == Some(id)).then_some((&mut *self.stream, &mut *self.log))
    }

    fn each(&mut self, visit: &mut dyn FnMut(StreamId, &mut Stream<'m>)) {
        if let Some(id) = self.id {
            visit(id, self.stream);
        }
    }
}

/// One end.
pub struct End<'m> {
    rig: Rig<'m, Root>,
    pub channel: Channel<'m>,
    lobby: Lobby<'m>,
    stream: Stream<'m>,
    opening: Opening<'m>,
    peer: NodeKey,
    pub log: Log,
    /// Writes that were queued.
    pub written: u64,
    /// Answers of the lobby.
    pub replies: Vec<Vec<u8>>,
}

impl<'m> End<'m> {
    pub fn new(arena: &'m Arena, role: Role, rails: usize, rekey_frames: u64) -> Self {
        let rig = Rig::<Root>::new(arena);
        let (root, journal, now) = (rig.root, rig.journal, crate::START);
        let config = config(role, rails, rekey_frames);
        let lobby = LobbyConfig {
            identity: identity(role),
            protection: config.protection,
            fabric: 0,
            groups: vec![Group::DEFAULT],
            domain: config.domain,
            incarnation: config.incarnation,
            life: config.life,
            seed: config.seed,
            tenants: Vec::new(),
        };
        let (function, generation, secret) = (FUNCTION, LoanGeneration(0), Some(SECRET));
        let opening = match role {
            Role::Borrower => {
                let wish = Wish { function, generation, domain: config.domain, slot: 0, host: Bdf(0) };
                let mut claim = Claim::new(&root.claim, journal, ClaimConfig { wish, secret }, now);
                claim.open(now);
                Opening::Claim(claim)
            }
            Role::Lender => {
                let (entry, allowed, tenancy, life) = (None, None, Tenancy::default(), life(role));
                let config = OfferConfig { function, secret, entry, allowed, tenancy, life };
                Opening::Offer(Offer::new(&root.offer, journal, config, now))
            }
        };
        let patience = base::times::COMPLETION_TIMEOUT;
        let stream = Stream::new(&root.stream, rig.pages(&root.pages), journal, patience, config.max_payload);
        let lobby = Lobby::new(&root.lobby, journal, lobby, now);
        let channel = Channel::new(&root.channel, journal, config, now);
        journal.commit();
        let (log, replies, peer) = (Log::default(), Vec::new(), identity(role.other()));
        Self { rig, channel, lobby, stream, opening, peer, log, written: 0, replies }
    }

    pub fn is_open(&self) -> bool {
        self.stream.state() == State::Open
    }

    fn key(&self) -> Option<(Course, StreamId)> {
        match &self.opening {
            Opening::Claim(claim) => claim.stream(),
            Opening::Offer(offer) => offer.stream(),
        }
    }

    fn id(&self) -> Option<StreamId> {
        let (course, id) = self.key()?;
        (self.channel.course() == Some(course)).then_some(id)
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Channel<'m>, &mut View<'_, 'm>) -> T) -> T {
        let mut view = View { id: self.id(), stream: &mut self.stream, log: &mut self.log };
        act(&mut self.channel, &mut view)
    }

    /// Takes a frame from the address with these bytes.
    pub fn handle_frame(&mut self, now: Instant, frame: &mut [u8], from: &[u8]) {
        match Header::parse(frame) {
            Ok(header) if header.kind == Kind::Initiation => self.handle_call(now, frame, from),
            _ => _ = self.with(|channel, view| channel.handle_frame(now, frame, view)),
        }
        self.settle(now);
    }

    fn handle_call(&mut self, now: Instant, frame: &mut [u8], from: &[u8]) {
        let (known, peer) = (self.channel.known_call(), self.peer.id());
        let presence = |node, _| if node == peer { Presence::Channel(known) } else { Presence::NoRoom };
        let reception = match self.lobby.handle_call(now, frame, from, false, &presence) {
            Reception::Call(call) => match self.with(|channel, view| channel.take_call(now, call, view)) {
                Ok(_) => Reception::Nothing,
                Err((call, why)) => self.lobby.refuse(now, call, why, from, frame),
            },
            Reception::Again(_, _, call) => {
                self.channel.hear_again(PathId::new(RailId::default(), RailId::default()), call);
                Reception::Nothing
            }
            other => other,
        };
        if let Reception::Reply(len) = reception {
            self.replies.push(frame[..len].to_vec());
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.with(|channel, view| channel.handle_timeout(now, view));
        self.settle(now);
    }

    fn say(&mut self, now: Instant, said: &Said) {
        let (channel, stream) = (&mut self.channel, &mut self.stream);
        match &mut self.opening {
            Opening::Offer(offer) if said.function().is_some() => {
                offer.handle_asking(now, Asking { said, channel, holder: None, stream });
            }
            Opening::Claim(claim) if said.function().is_none() => {
                claim.handle_said(now, said, channel, stream)
            }
            Opening::Offer(offer) => offer.handle_said(now, said, channel, stream),
            Opening::Claim(_) => channel.handle_stray(now, said),
        }
    }

    /// What follows from whatever was done.
    fn settle(&mut self, now: Instant) {
        while let Some(event) = self.channel.poll_event() {
            let met = self.channel.newest_peer().zip(self.channel.peer_life());
            if let (Event::Met, Some(((incarnation, _), life))) = (event, met) {
                self.lobby.note_met(self.peer.id(), Group::DEFAULT, incarnation, life);
            }
        }
        while let Some(said) = self.channel.poll_said() {
            self.say(now, &said);
        }
        while self.channel.poll_touched().is_some() {}
        while self.channel.poll_proof().is_some() {}
        // What was before ends at once, and whose the function is becomes durable.
        for _ in 0..3 {
            match &mut self.opening {
                Opening::Claim(claim) => {
                    claim.advance(now, &mut self.channel, &mut self.stream);
                    while claim.poll_event().is_some() {}
                }
                Opening::Offer(offer) => {
                    offer.advance(now, Some(&mut self.channel), &mut self.stream);
                    while let Some(event) = offer.poll_event() {
                        if matches!(event, OfferEvent::Reset { .. }) {
                            offer.quiet(Bdf(0x0100), 1 << 34);
                        }
                    }
                    if let Some(tenancy) = offer.unsaved_tenancy() {
                        offer.set_tenancy(tenancy);
                    }
                }
            }
        }
        if let Some(id) = self.id() {
            while self.channel.deliver_ahead(now, id, &mut self.stream, &mut self.log) {}
            self.channel.tend(now, id, &mut self.stream);
        }
        self.rig.journal.commit();
    }

    /// The next frame in `buffer`.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Vec<u8>> {
        let sent = self.with(|channel, view| channel.poll_transmit(now, buffer, view))?;
        Some(buffer[..sent.len].to_vec())
    }

    /// Queues a write, if there is room. What is queued before the stream opens goes with what was before.
    pub fn write(&mut self) {
        if !self.is_open() || self.stream.port.sender.room(pcie::FlowClass::Posted) == 0 {
            return;
        }
        let write =
            MemoryRequest::new(Bdf(8), Tag::default(), self.written * 4, 4).expect("four bytes in a page");
        let header = pcie::Header::MemoryWrite(write);
        self.stream.port.sender.push(&header, Payload::inline(&[1; 4]), false);
        self.rig.journal.commit();
        self.written += 1;
    }
}
